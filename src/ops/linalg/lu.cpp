// Verbs by LU with partial pivoting.
#include "ops/linalg/call.h"

namespace mercer::linalg {

using ops::DenseCall;
using ops::Failure;

void lu_factor(const Tensor& a, const Tensor& lu, const Tensor& pivots, const Options& options, Context& context) {
  DenseCall call("lu_factor", "a", a, options, DenseCall::Matrices::any);
  call.output("lu", lu, call.type(), a.shape, &a);
  ops::Shape expected = call.a_batch();
  expected.push_back(call.order());
  call.output("pivots", pivots, Dtype::int64, expected);
  call.run(
      Failure::singular, context,
      [&](const DenseJob& job, const DenseArray& info, cpu::DenseTools tools) {
        cpu::lu_factor(job, call.a(), call.array(lu, 2), call.array(pivots, 1), info, tools);
      },
      [&](const DenseJob& job, const cuda::DenseInfo& info) {
        cuda::lu_factor(job, call.a(), call.array(lu, 2), call.array(pivots, 1), info);
      });
}

void lu_solve(const Tensor& lu, const Tensor& pivots, const Tensor& b, const Tensor& x, bool transposed,
              const Options& options, Context& context) {
  DenseCall call("lu_solve", "lu", lu, options);
  call.input("pivots", pivots, Dtype::int64, {call.order()});
  call.right_hand_side(b);
  call.output("x", x, call.type(), call.of_columns(call.order()), &b);
  call.run(
      context,
      [&](const DenseJob& job, cpu::DenseTools tools) {
        cpu::lu_solve(job, call.a(), call.array(pivots, 1), call.columns(b), call.columns(x), transposed, tools);
      },
      [&](const DenseJob& job) {
        cuda::lu_solve(job, call.a(), call.array(pivots, 1), call.columns(b), call.columns(x), transposed);
      });
}

void solve_lu(const Tensor& a, const Tensor& b, const Tensor& x, const Options& options, Context& context) {
  DenseCall call("solve_lu", "a", a, options);
  call.right_hand_side(b);
  call.output("x", x, call.type(), call.of_columns(call.order()), &b);
  const bool overwrite_a = call.overwrites_a();
  call.run(
      Failure::singular, context,
      [&](const DenseJob& job, const DenseArray& info, cpu::DenseTools tools) {
        cpu::solve_lu(job, call.a(), call.columns(b), call.columns(x), info, overwrite_a, tools);
      },
      [&](const DenseJob& job, const cuda::DenseInfo& info) {
        cuda::solve_lu(job, call.a(), call.columns(b), call.columns(x), info, overwrite_a);
      });
}

}  // namespace mercer::linalg
