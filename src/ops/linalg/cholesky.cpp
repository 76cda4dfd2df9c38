// Verbs on symmetric positive definite matrices.
#include "ops/linalg/call.h"

namespace mercer::linalg {

using ops::DenseCall;
using ops::Failure;

void cholesky(const Tensor& a, const Tensor& out, const Options& options, Context& context) {
  DenseCall call("cholesky", "a", a, options);
  call.output("out", out, call.type(), a.shape, &a);
  call.run(
      Failure::not_positive, context,
      [&](const DenseJob& job, const DenseArray& info, cpu::DenseTools tools) {
        cpu::cholesky(job, call.a(), call.array(out, 2), info, tools);
      },
      [&](const DenseJob& job, const cuda::DenseInfo& info) {
        cuda::cholesky(job, call.a(), call.array(out, 2), info);
      });
}

void solve_cholesky(const Tensor& a, const Tensor& b, const Tensor& x, const Options& options, Context& context) {
  DenseCall call("solve_cholesky", "a", a, options);
  call.right_hand_side(b);
  call.output("x", x, call.type(), call.of_columns(call.order()), &b);
  const bool overwrite_a = call.overwrites_a();
  call.run(
      Failure::not_positive, context,
      [&](const DenseJob& job, const DenseArray& info, cpu::DenseTools tools) {
        cpu::solve_cholesky(job, call.a(), call.columns(b), call.columns(x), info, overwrite_a, tools);
      },
      [&](const DenseJob& job, const cuda::DenseInfo& info) {
        cuda::solve_cholesky(job, call.a(), call.columns(b), call.columns(x), info, overwrite_a);
      });
}

void cho_solve(const Tensor& factor, const Tensor& b, const Tensor& x, const Options& options, Context& context) {
  DenseCall call("cho_solve", "factor", factor, options);
  call.right_hand_side(b);
  call.output("x", x, call.type(), call.of_columns(call.order()), &b);
  call.run(
      context,
      [&](const DenseJob& job, cpu::DenseTools tools) {
        cpu::cho_solve(job, call.a(), call.columns(b), call.columns(x), tools);
      },
      [&](const DenseJob& job) { cuda::cho_solve(job, call.a(), call.columns(b), call.columns(x)); });
}

void cho_inverse(const Tensor& factor, const Tensor& out, const Options& options, Context& context) {
  DenseCall call("cho_inverse", "factor", factor, options);
  call.output("out", out, call.type(), factor.shape, &factor);
  call.run(
      context,
      [&](const DenseJob& job, cpu::DenseTools tools) { cpu::cho_inverse(job, call.a(), call.array(out, 2), tools); },
      [&](const DenseJob& job) { cuda::cho_inverse(job, call.a(), call.array(out, 2)); });
}

void cho_inverse_diagonal(const Tensor& factor, const Tensor& out, const Options& options, Context& context) {
  DenseCall call("cho_inverse_diagonal", "factor", factor, options);
  ops::Shape expected = call.a_batch();
  expected.push_back(call.order());
  call.output("out", out, call.type(), expected);
  call.run(
      context,
      [&](const DenseJob& job, cpu::DenseTools tools) {
        cpu::cho_inverse_diagonal(job, call.a(), call.array(out, 1), tools);
      },
      [&](const DenseJob& job) { cuda::cho_inverse_diagonal(job, call.a(), call.array(out, 1)); });
}

void solve_triangular(const Tensor& a, const Tensor& b, const Tensor& x, bool transposed, bool unit_diagonal,
                      const Options& options, Context& context) {
  DenseCall call("solve_triangular", "a", a, options);
  call.right_hand_side(b);
  call.output("x", x, call.type(), call.of_columns(call.order()), &b);
  const TriangleUse use{transposed, unit_diagonal};
  call.run(
      context,
      [&](const DenseJob& job, cpu::DenseTools tools) {
        cpu::solve_triangular(job, call.a(), call.columns(b), call.columns(x), use, tools);
      },
      [&](const DenseJob& job) { cuda::solve_triangular(job, call.a(), call.columns(b), call.columns(x), use); });
}

void inv_quad_logdet(const Tensor& a, const Tensor& b, const Tensor& inv_quad, const Tensor& logdet,
                     const Options& options, Context& context) {
  DenseCall call("inv_quad_logdet", "a", a, options);
  call.right_hand_side(b);
  call.output("inv_quad", inv_quad, Dtype::float64, call.of_columns(-1));
  call.output("logdet", logdet, Dtype::float64, call.a_batch());
  const bool overwrite_a = call.overwrites_a();
  call.run(
      Failure::not_positive, context,
      [&](const DenseJob& job, const DenseArray& info, cpu::DenseTools tools) {
        cpu::inv_quad_logdet(job, call.a(), call.columns(b), call.values(inv_quad), call.array(logdet, 0), info,
                             overwrite_a, tools);
      },
      [&](const DenseJob& job, const cuda::DenseInfo& info) {
        cuda::inv_quad_logdet(job, call.a(), call.columns(b), call.values(inv_quad), call.array(logdet, 0), info,
                              overwrite_a);
      });
}

std::int64_t workspace_size(const Options& options, const std::function<void(const Options&)>& call) {
  Options own = options;
  return mercer::workspace_size({.queue = options.queue}, [&](const Arguments& arguments) {
    own.queue = arguments.queue;
    call(own);
  });
}

}  // namespace mercer::linalg
