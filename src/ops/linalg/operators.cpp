// Symmetric matrices that are known by their products: one that is stored, and one of a formula on points.
#include <memory>
#include <optional>

#include "backend/cg_columns.h"
#include "backend/cpu/dense_matrix.h"
#include "backend/cuda/device_blas.h"
#include "backend/cuda/few_columns.h"
#include "backend/cuda/workspace.h"
#include "core/aligned.h"
#include "core/dtype_error.h"
#include "core/error.h"
#include "ops/linalg/block_method.h"

namespace mercer::linalg {
namespace {

using cpu::Matrix;

/// Calls body with a value of the type, float or double.
template <class Body>
void with_type(Dtype dtype, const Body& body) {
  if (dtype == Dtype::float64)
    body(double{});
  else
    body(float{});
}

/// Queues of calls inside of a call: the caller's memory is asked for once, for what is kept through all of them.
Queue without_memory(Queue queue) {
  queue.allocate = {};
  return queue;
}

template <class T>
void multiply_on_cpu(const char* op, const Tensor& a, const Tensor& v, const Tensor& out, Context& context) {
  Matrix<T> matrix = ops::as_matrix<T>(a);
  AlignedBuffer copied;
  if (!matrix.suits_lapack()) {
    copied = aligned_array<T>(matrix.rows * matrix.rows);
    cpu::copy(matrix, cpu::packed_columns(copied.as<T>(), matrix.rows, matrix.rows));
    matrix = cpu::packed_columns(copied.as<T>(), matrix.rows, matrix.rows);
  }
  const bool by_rows = !matrix.is_column_major();
  const std::int64_t stride = (by_rows ? matrix.transposed() : matrix).stride();
  const Lapack& lapack = need_lapack(op);
  const LapackThreads threads(lapack, context.state().pool.threads());
  lapack.gemm<T>(by_rows, false, matrix.rows, v.shape[1], matrix.rows, 1, matrix.data, stride,
                 static_cast<const T*>(v.data), v.strides[1], 0, static_cast<T*>(out.data), out.strides[1]);
}

/// A matrix of a device as cuBLAS reads it: where it lies, or a copy that lives as long.
struct DeviceMatrix {
  Tensor view;
  Queue queue;
  std::optional<cuda::Workspace> memory;
  ~DeviceMatrix() {
    if (!memory) return;
    try {
      const CudaScope scope(view.device.index);
      memory.reset();
    } catch (const Error&) {  // the context is lost, and the memory with it
    }
  }
};

bool suits_blas(const Tensor& a) {
  const std::int64_t n = a.shape[0];
  return n <= 1 || (a.strides[0] == 1 && a.strides[1] >= n) || (a.strides[1] == 1 && a.strides[0] >= n);
}

std::shared_ptr<const DeviceMatrix> on_device(const char* op, const Tensor& a, const Queue& queue) {
  auto matrix = std::make_shared<DeviceMatrix>();
  matrix->view = a;
  if (suits_blas(a)) {
    if (a.shape[0] <= 1) matrix->view.strides = {1, 1};
    return matrix;
  }
  matrix->queue = without_memory(queue);
  const cuda::DeviceBlas blas(op, a.device, matrix->queue, a.dtype);
  const std::int64_t n = a.shape[0], bytes = checked_product({n, n, static_cast<std::int64_t>(size_of(a.dtype))});
  const std::int64_t place = matrix->memory.emplace().add(bytes);
  matrix->memory->take(blas.place());
  matrix->view = Tensor(matrix->memory->at(place), a.dtype, {n, n});
  matrix->view.device = a.device;
  blas.move(a, matrix->view);
  return matrix;
}

void multiply_few_columns(const char* op, const Tensor& a, const Tensor& v, const Tensor& out, const Queue& queue) {
  const cuda::PairJob place = cuda::place_of(op, a.device, queue, a.dtype);
  const cuda::JobScope scope(place);
  cuda::multiply_few_columns(place, a, v, out);
}

/// In sums of so many rows: those of more lose more than their last digit in float32.
void multiply_by_cublas(const char* op, const Tensor& a, const Tensor& v, const Tensor& out, const Queue& queue) {
  constexpr std::int64_t kPartialSum = 4096;
  const cuda::DeviceBlas blas(op, a.device, queue, a.dtype, cuda::Captures::allowed);
  cuda::few_columns_kernels(blas.place());  // a capture after this call has them
  const std::int64_t n = a.shape[0], columns = v.shape[1];
  const bool by_rows = a.strides[0] != 1 || a.strides[1] < n;
  const std::int64_t stride = a.strides[by_rows ? 0 : 1];
  const auto bytes = static_cast<std::int64_t>(size_of(a.dtype));
  for (std::int64_t k = 0; k < n; k += kPartialSum)
    blas.gemm(by_rows, false, n, columns, std::min(kPartialSum, n - k), 1,
              static_cast<const char*>(a.data) + k * a.strides[1] * bytes, stride,
              static_cast<const char*>(v.data) + k * bytes, v.strides[1], k == 0 ? 0 : 1, out.data, out.strides[1]);
}

void add_ridge(const char* op, double ridge, const Tensor& v, const Tensor& out, const Queue& queue) {
  if (v.device.kind == DeviceKind::cuda) {
    cuda::add_multiple(op, ridge, v, out, queue);
    return;
  }
  with_type(v.dtype, [&](auto type) {
    using T = decltype(type);
    const Matrix<T> from = ops::as_matrix<T>(v), to = ops::as_matrix<T>(out);
    for (std::int64_t j = 0; j < from.cols; ++j)
      for (std::int64_t i = 0; i < from.rows; ++i) to(i, j) += static_cast<T>(ridge) * from(i, j);
  });
}

}  // namespace

Operator matrix_operator(const Tensor& a, const Queue& queue, Context& context, const char* verb) {
  const char* op = verb != nullptr ? verb : "matrix_operator";
  require(a.ndim() == 2 && a.shape[0] == a.shape[1], "{}: a must have the shape [n, n]. Received {}.", op,
          ops::text_of(a.shape));
  ops::check_layout(op, "a", a);
  require_dtype(a.dtype == Dtype::float32 || a.dtype == Dtype::float64,
                "{}: a must be float32 or float64. Received {}.", op, name_of(a.dtype));
  Operator result{a.shape[0], a.dtype, {}, a.device, queue};
  if (a.device.kind == DeviceKind::cuda) {
    const auto matrix = on_device(op, a, queue);
    result.multiply = [op, matrix, inner = without_memory(queue)](const Tensor& v, const Tensor& out) {
      if (v.shape[1] <= cuda::few_columns_of(v.dtype))
        multiply_few_columns(op, matrix->view, v, out, inner);
      else
        multiply_by_cublas(op, matrix->view, v, out, inner);
    };
    result.multiply_in = [op, matrix](const Tensor& v, const Tensor& out, const Queue& other) {
      multiply_few_columns(op, matrix->view, v, out, other);
    };
    return result;
  }
  Context* const used = &context;
  result.multiply = [op, a, used](const Tensor& v, const Tensor& out) {
    with_type(a.dtype, [&](auto type) { multiply_on_cpu<decltype(type)>(op, a, v, out, *used); });
  };
  return result;
}

Operator kernel_operator(const Formula& f, const Tensor& x, double ridge, const Arguments& arguments,
                         Context& context) {
  const char* op = arguments.verb != nullptr ? arguments.verb : "kernel_operator";
  require(x.ndim() == 2, "{}: x must have the shape [n, K]. Received {}.", op, ops::text_of(x.shape));
  require_dtype(x.dtype == Dtype::float32 || x.dtype == Dtype::float64,
                "{}: x must be float32 or float64. Received {}.", op, name_of(x.dtype));
  require(f.symmetric(), "{}: the formula must be symmetric, f(x, z) = f(z, x). Received {}.", op,
          f.expression());
  Operator result{x.shape[0], x.dtype, {}, x.device, arguments.queue};
  Context* const used = &context;
  Arguments inner = arguments;
  inner.queue = without_memory(arguments.queue);
  const auto multiply = [op, f, x, ridge, inner, used](const Tensor& v, const Tensor& out, const Queue& queue) {
    Arguments own = inner;
    own.queue = queue;
    kernel_product(f, x, nullptr, v, out, own, *used);
    if (ridge != 0) add_ridge(op, ridge, v, out, queue);
  };
  result.multiply = [multiply, queue = inner.queue](const Tensor& v, const Tensor& out) { multiply(v, out, queue); };
  if (x.device.kind == DeviceKind::cuda) result.multiply_in = multiply;
  return result;
}

}  // namespace mercer::linalg
