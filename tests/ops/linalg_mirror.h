// The verbs of linear algebra on a TestContext: as they are on the CPU, on CUDA by way of arrays of the device
// (ops/cuda_mirror.h).
#pragma once

#include "backend/dense_job.h"
#include "mercer/linalg.h"
#include "ops/cuda_mirror.h"

namespace mercer::testing_support {

/// body(view on the device, options on the device). Inputs that may be written are outputs too.
template <class Body>
void take_linalg_to_cuda(std::vector<const Tensor*> inputs, std::vector<const Tensor*> outputs,
                         const linalg::Options& options, const TestContext& context, const Body& body) {
  if (options.info != nullptr) outputs.push_back(options.info);
  CudaCall call(std::move(inputs), std::move(outputs), {}, context);
  linalg::Options moved = options;
  moved.queue = call.arguments().queue;
  Tensor info;
  if (options.info != nullptr) info = call(*options.info);
  if (options.info != nullptr) moved.info = &info;
  // What is thrown for a matrix comes when all outputs are written.
  std::optional<Error> failed;
  call.run([&] {
    try {
      body(call, moved);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::numerical) throw;
      failed = error;
    }
  });
  if (failed) throw *failed;
}

inline void cholesky(const Tensor& a, const Tensor& out, const linalg::Options& options, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return linalg::cholesky(a, out, options, plain);
  take_linalg_to_cuda({&a}, {&out}, options, context, [&](const CudaCall& at, const linalg::Options& moved) {
    linalg::cholesky(at(a), at(out), moved, plain);
  });
}

inline void solve_cholesky(const Tensor& a, const Tensor& b, const Tensor& x, const linalg::Options& options,
                           TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return linalg::solve_cholesky(a, b, x, options, plain);
  std::vector<const Tensor*> outputs{&x};
  if (options.overwrite_a) outputs.push_back(&a);
  take_linalg_to_cuda({&a, &b}, outputs, options, context, [&](const CudaCall& at, const linalg::Options& moved) {
    linalg::solve_cholesky(at(a), at(b), at(x), moved, plain);
  });
}

inline void cho_solve(const Tensor& factor, const Tensor& b, const Tensor& x, const linalg::Options& options,
                      TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return linalg::cho_solve(factor, b, x, options, plain);
  take_linalg_to_cuda({&factor, &b}, {&x}, options, context, [&](const CudaCall& at, const linalg::Options& moved) {
    linalg::cho_solve(at(factor), at(b), at(x), moved, plain);
  });
}

inline void cho_inverse(const Tensor& factor, const Tensor& out, const linalg::Options& options, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return linalg::cho_inverse(factor, out, options, plain);
  take_linalg_to_cuda({&factor}, {&out}, options, context, [&](const CudaCall& at, const linalg::Options& moved) {
    linalg::cho_inverse(at(factor), at(out), moved, plain);
  });
}

inline void cho_inverse_diagonal(const Tensor& factor, const Tensor& out, const linalg::Options& options,
                                 TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return linalg::cho_inverse_diagonal(factor, out, options, plain);
  take_linalg_to_cuda({&factor}, {&out}, options, context, [&](const CudaCall& at, const linalg::Options& moved) {
    linalg::cho_inverse_diagonal(at(factor), at(out), moved, plain);
  });
}

inline void solve_triangular(const Tensor& a, const Tensor& b, const Tensor& x, TriangleUse use,
                             const linalg::Options& options, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda())
    return linalg::solve_triangular(a, b, x, use.transposed, use.unit_diagonal, options, plain);
  take_linalg_to_cuda({&a, &b}, {&x}, options, context, [&](const CudaCall& at, const linalg::Options& moved) {
    linalg::solve_triangular(at(a), at(b), at(x), use.transposed, use.unit_diagonal, moved, plain);
  });
}

inline void inv_quad_logdet(const Tensor& a, const Tensor& b, const Tensor& inv_quad, const Tensor& logdet,
                            const linalg::Options& options, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return linalg::inv_quad_logdet(a, b, inv_quad, logdet, options, plain);
  take_linalg_to_cuda({&a, &b}, {&inv_quad, &logdet}, options, context,
                      [&](const CudaCall& at, const linalg::Options& moved) {
                        linalg::inv_quad_logdet(at(a), at(b), at(inv_quad), at(logdet), moved, plain);
                      });
}

inline void lu_factor(const Tensor& a, const Tensor& lu, const Tensor& pivots, const linalg::Options& options,
                      TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return linalg::lu_factor(a, lu, pivots, options, plain);
  take_linalg_to_cuda({&a}, {&lu, &pivots}, options, context, [&](const CudaCall& at, const linalg::Options& moved) {
    linalg::lu_factor(at(a), at(lu), at(pivots), moved, plain);
  });
}

inline void lu_solve(const Tensor& lu, const Tensor& pivots, const Tensor& b, const Tensor& x, bool transposed,
                     const linalg::Options& options, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return linalg::lu_solve(lu, pivots, b, x, transposed, options, plain);
  take_linalg_to_cuda({&lu, &pivots, &b}, {&x}, options, context,
                      [&](const CudaCall& at, const linalg::Options& moved) {
                        linalg::lu_solve(at(lu), at(pivots), at(b), at(x), transposed, moved, plain);
                      });
}

inline void solve_lu(const Tensor& a, const Tensor& b, const Tensor& x, const linalg::Options& options,
                     TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return linalg::solve_lu(a, b, x, options, plain);
  std::vector<const Tensor*> outputs{&x};
  if (options.overwrite_a) outputs.push_back(&a);
  take_linalg_to_cuda({&a, &b}, outputs, options, context, [&](const CudaCall& at, const linalg::Options& moved) {
    linalg::solve_lu(at(a), at(b), at(x), moved, plain);
  });
}

inline void eigh(const Tensor& a, const Tensor& w, const Tensor* v, const std::optional<linalg::Subset>& subset,
                 const linalg::Options& options, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return linalg::eigh(a, w, v, subset, options, plain);
  std::vector<const Tensor*> outputs{&w};
  if (v != nullptr) outputs.push_back(v);
  if (options.overwrite_a) outputs.push_back(&a);
  take_linalg_to_cuda({&a}, outputs, options, context, [&](const CudaCall& at, const linalg::Options& moved) {
    const Tensor vectors = v != nullptr ? at(*v) : Tensor();
    linalg::eigh(at(a), at(w), v != nullptr ? &vectors : nullptr, subset, moved, plain);
  });
}

/// out = a v, by the operator of a stored matrix.
inline void multiply(const Tensor& a, const Tensor& v, const Tensor& out, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return linalg::matrix_operator(a, {}, plain).multiply(v, out);
  take_linalg_to_cuda({&a, &v}, {&out}, {}, context, [&](const CudaCall& at, const linalg::Options& moved) {
    linalg::matrix_operator(at(a), moved.queue, plain).multiply(at(v), at(out));
  });
}

/// eigh_top of a stored matrix, by its operator.
inline void eigh_top(const Tensor& a, const Tensor& w, const Tensor& v, const linalg::TopOptions& options,
                     TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return linalg::eigh_top(linalg::matrix_operator(a, {}, plain), w, v, options, plain);
  take_linalg_to_cuda({&a}, {&w, &v}, {}, context, [&](const CudaCall& at, const linalg::Options& moved) {
    linalg::eigh_top(linalg::matrix_operator(at(a), moved.queue, plain), at(w), at(v), options, plain);
  });
}

/// eigh_top of a formula on points.
inline void eigh_top(const Formula& f, const Tensor& x, double ridge, const Tensor& w, const Tensor& v,
                     const linalg::TopOptions& options, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda())
    return linalg::eigh_top(linalg::kernel_operator(f, x, ridge, {}, plain), w, v, options, plain);
  take_linalg_to_cuda({&x}, {&w, &v}, {}, context, [&](const CudaCall& at, const linalg::Options& moved) {
    Arguments arguments;
    arguments.queue = moved.queue;
    linalg::eigh_top(linalg::kernel_operator(f, at(x), ridge, arguments, plain), at(w), at(v), options, plain);
  });
}

/// What a preconditioner is made of, where the call is.
using MakePreconditioner =
    std::function<linalg::Preconditioner(const linalg::Operator& a, const Tensor& points, Context& context)>;
using MakeOperator = std::function<linalg::Operator(const Tensor& points, const Queue& queue, Context& context)>;

/// cg with the operator that `make` gives for a matrix or points.
inline void cg(const MakeOperator& make, const Tensor& points, const Tensor& b, const Tensor& x,
               const linalg::CgOptions& options, TestContext& context, const MakePreconditioner& precondition = {},
               decltype(&linalg::cg) method = linalg::cg) {
  Context& plain = context;
  const auto solve = [&](const Tensor& at_points, const Tensor& at_b, const Tensor& at_x, const Queue& queue,
                         linalg::CgOptions moved) {
    const linalg::Operator a = make(at_points, queue, plain);
    linalg::Preconditioner inverse;
    if (precondition) inverse = precondition(a, at_points, plain);
    if (precondition) moved.preconditioner = &inverse;
    method(a, at_b, at_x, moved, plain);
  };
  if (!context.on_cuda()) return solve(points, b, x, {}, options);
  std::vector<const Tensor*> outputs{&x};
  for (const Tensor* numbers : {options.info, options.iterations})
    if (numbers != nullptr) outputs.push_back(numbers);
  const std::vector<const Tensor*> inputs{&points, &b, options.guess, options.ridges};
  take_linalg_to_cuda(inputs, outputs, {}, context, [&](const CudaCall& at, const linalg::Options& queued) {
    linalg::CgOptions moved = options;
    const Tensor info = options.info != nullptr ? at(*options.info) : Tensor();
    const Tensor iterations = options.iterations != nullptr ? at(*options.iterations) : Tensor();
    const Tensor guess = options.guess != nullptr ? at(*options.guess) : Tensor();
    const Tensor ridges = options.ridges != nullptr ? at(*options.ridges) : Tensor();
    if (options.ridges != nullptr) moved.ridges = &ridges;
    if (options.info != nullptr) moved.info = &info;
    if (options.guess != nullptr) moved.guess = &guess;
    if (options.iterations != nullptr) moved.iterations = &iterations;
    solve(at(points), at(b), at(x), queued.queue, moved);
  });
}

/// The operator of a stored matrix.
inline linalg::Operator stored(const Tensor& a, const Queue& queue, Context& context) {
  return linalg::matrix_operator(a, queue, context);
}

}  // namespace mercer::testing_support
