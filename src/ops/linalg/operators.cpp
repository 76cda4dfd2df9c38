// Symmetric matrices that are known by their products: one that is stored, and one of a formula on points.
#include <cmath>
#include <memory>
#include <optional>

#include "backend/cpu/linalg/dense_matrix.h"
#include "backend/cuda/gemm/device_blas.h"
#include "backend/cuda/gemm/few_columns.h"
#include "backend/cuda/runtime/workspace.h"
#include "backend/rehearsal.h"
#include "backend/row_sums.h"
#include "core/dtype_error.h"
#include "core/error.h"
#include "core/system/aligned.h"
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

/// Multiplies in sums of so many rows: longer sums lose more than their last digit in float32.
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

/// out = scaled or shifted rows, where the arrays are.
void sum_rows(const char* op, const RowSum& sum, const Tensor& out, const Queue& queue) {
  if (out.device.kind == DeviceKind::cuda)
    cuda::sum_rows(op, sum, out, queue);
  else
    cpu::sum_rows(sum, out);
}

Tensor tensor_at(void* data, Dtype dtype, ops::Shape shape, ops::Shape strides, Device device) {
  Tensor made(data, dtype, std::move(shape), std::move(strides));
  made.device = device;
  return made;
}

/// [n] as one column.
Tensor as_column(Tensor t) {
  t.shape.push_back(1);
  t.strides.push_back(1);
  return t;
}

Tensor row_of(const Tensor& matrix, std::int64_t i) {
  Tensor row = matrix;
  row.data = ops::element(matrix, i * matrix.strides[0]);
  row.shape = {matrix.shape[1]};
  row.strides = {matrix.strides[1]};
  return row;
}

void check_indices(const char* op, const std::vector<std::int64_t>& indices, const Tensor& out, const Operator& a) {
  ops::check_operand(op, "out", out, {static_cast<std::int64_t>(indices.size()), a.order}, a);
  for (const std::int64_t i : indices)
    require(i >= 0 && i < a.order, "{}: rows must be from 0 to {}. Received {}.", op, a.order - 1, i);
}

/// Products, rows and the diagonal of a formula on points.
class KernelMatrix {
 public:
  KernelMatrix(const char* op, const Formula& f, const Tensor& x, const KernelTerms& terms, const Arguments& arguments,
               Context& context)
      : op_(op), f_(f), x_(x), arguments_(arguments), context_(context), ridge_(terms.ridge) {
    arguments_.queue = without_memory(arguments.queue);
    if (terms.ridges != nullptr) ridges_ = *terms.ridges;
    if (terms.weights != nullptr) weights_ = *terms.weights;
    const ir::Uses& uses = f.prepared().uses;
    reads_indices_ = uses.index_i || uses.index_j;
  }

  bool reads_indices() const { return reads_indices_; }
  const Queue& queue() const { return arguments_.queue; }

  void multiply(const Tensor& v, const Tensor& out, const Queue& queue) const {
    if (!weights_) {
      kernel_product(f_, x_, nullptr, v, out, in(queue), context_);
    } else if (x_.device.kind == DeviceKind::cuda) {
      multiply_weighted_on_cuda(v, out, queue);
    } else {
      const AlignedBuffer memory(v.count() * static_cast<std::int64_t>(size_of(v.dtype)));
      multiply_weighted(v, packed_like(v, memory.as<char>()), out, queue);
    }
    if (ridge_ != 0 || ridges_ || weights_) {
      const RowSum sum{.from = &out, .weights = of(weights_), .v = &v, .amount = ridge_, .ridges = of(ridges_)};
      sum_rows(op_, sum, out, queue);
    }
  }

  /// f(x_i, x_i): a batch of matrices of one pair each.
  void diagonal(const Tensor& out) const {
    const std::int64_t n = x_.shape[0];
    Tensor points = x_, each = out;
    points.shape = {n, 1, x_.shape[1]};
    points.strides = {x_.strides[0], x_.strides[0], x_.strides[1]};
    each.shape = {n, 1, 1};
    each.strides = {out.strides[0], 1, 1};
    Arguments arguments = arguments_;
    for (auto* values : {&arguments.row, &arguments.col})
      if (*values) **values = as_column(**values);
    pairwise(f_, points, &points, each, arguments, context_);
    if (!weights_) return;
    const Tensor column = as_column(out);
    const RowSum sum{.from = &column, .weights = of(weights_)};
    for (int side = 0; side < 2; ++side) sum_rows(op_, sum, column, queue());
  }

  void rows(const std::vector<std::int64_t>& indices, const Tensor& out) const {
    const auto count = static_cast<std::int64_t>(indices.size());
    if (count == 0 || x_.shape[0] == 0) return;
    if (reads_indices_)
      read_each(indices, out);
    else
      read_together(indices, out);
    if (!weights_) return;
    const Tensor turned = tensor_at(out.data, out.dtype, {out.shape[1], out.shape[0]}, {out.strides[1], out.strides[0]},
                                    out.device);
    sum_rows(op_, {.from = &turned, .weights = of(weights_)}, turned, queue());
    for (std::int64_t j = 0; j < count; ++j) {
      Tensor weight = *weights_;
      weight.data = ops::element(*weights_, indices[j] * weights_->strides[0]);
      weight.strides = {0};
      const Tensor row = as_column(row_of(out, j));
      sum_rows(op_, {.from = &row, .weights = &weight}, row, queue());
    }
  }

 private:
  static const Tensor* of(const std::optional<Tensor>& t) { return t ? &*t : nullptr; }
  static Tensor packed_like(const Tensor& v, void* memory) {
    return tensor_at(memory, v.dtype, v.shape, {1, v.shape[0]}, v.device);
  }
  Arguments in(const Queue& queue) const {
    Arguments arguments = arguments_;
    arguments.queue = queue;
    return arguments;
  }

  /// out = k s v, still to be scaled.
  void multiply_weighted(const Tensor& v, const Tensor& scaled, const Tensor& out, const Queue& queue) const {
    sum_rows(op_, {.from = &v, .weights = of(weights_)}, scaled, queue);
    kernel_product(f_, x_, nullptr, scaled, out, in(queue), context_);
  }

  /// One request for memory, as a queue expects: s v, and after it what the product takes.
  void multiply_weighted_on_cuda(const Tensor& v, const Tensor& out, const Queue& queue) const {
    cuda::Rehearsal asked{.purpose = cuda::Rehearsal::Purpose::workspace};
    Queue asks = without_memory(queue);
    asks.rehearsal = &asked;
    kernel_product(f_, x_, nullptr, packed_like(v, v.data), out, in(asks), context_);
    const cuda::PairJob place = cuda::place_of(op_, x_.device, queue, x_.dtype);
    const CudaScope scope(x_.device.index);
    cuda::Workspace memory;
    const std::int64_t columns = memory.add(checked_product({v.count(), static_cast<std::int64_t>(size_of(v.dtype))}));
    const std::int64_t rest = memory.add(asked.bytes);
    if (!memory.take(place)) return;
    Queue inner = queue;
    inner.allocate = [&](std::int64_t bytes) -> void* { return bytes <= asked.bytes ? memory.at<>(rest) : nullptr; };
    multiply_weighted(v, packed_like(v, memory.at<>(columns)), out, inner);
  }

  void read_each(const std::vector<std::int64_t>& indices, const Tensor& out) const {
    for (std::size_t j = 0; j < indices.size(); ++j) {
      Tensor point = x_, to = out;
      point.data = ops::element(x_, indices[j] * x_.strides[0]);
      point.shape[0] = 1;
      to.data = ops::element(out, static_cast<std::int64_t>(j) * out.strides[0]);
      to.shape[0] = 1;
      Arguments one = arguments_;
      one.i_offset = indices[j];
      if (one.row) {
        one.row->data = ops::element(*arguments_.row, indices[j] * arguments_.row->strides[0]);
        one.row->shape = {1};
      }
      pairwise(f_, point, &x_, to, one, context_);
    }
  }

  void read_together(const std::vector<std::int64_t>& indices, const Tensor& out) const {
    const auto count = static_cast<std::int64_t>(indices.size());
    const auto bytes_of = [count](const Tensor& t) {
      const std::int64_t columns = t.ndim() > 1 ? t.shape[1] : 1;
      return checked_product({count, columns, static_cast<std::int64_t>(size_of(t.dtype))});
    };
    const std::int64_t row_bytes = arguments_.row ? bytes_of(*arguments_.row) : 0;
    const auto read = [&](void* points, void* row) {
      Arguments some = arguments_;
      if (some.row) some.row = tensor_at(row, some.row->dtype, {count}, {1}, x_.device);
      const Tensor chosen = tensor_at(points, x_.dtype, {count, x_.shape[1]}, {x_.shape[1], 1}, x_.device);
      pairwise(f_, chosen, &x_, out, some, context_);
    };
    if (x_.device.kind == DeviceKind::cpu) {
      const AlignedBuffer points(bytes_of(x_)), row(row_bytes);
      cpu::gather_rows(x_, indices, points.as<char>());
      if (arguments_.row) cpu::gather_rows(*arguments_.row, indices, row.as<char>());
      return read(points.as<char>(), row.as<char>());
    }
    const cuda::PairJob place = cuda::place_of(op_, x_.device, queue(), x_.dtype);
    const CudaScope scope(x_.device.index);
    cuda::Workspace memory;
    const std::int64_t points = memory.add(bytes_of(x_)), row = memory.add(row_bytes),
                       list = memory.add(count * static_cast<std::int64_t>(sizeof(std::int64_t)));
    memory.take(place);
    auto* const places = memory.at<std::int64_t>(list);
    cuda::gather_rows(op_, x_, indices, places, memory.at<>(points), queue());
    if (arguments_.row) cuda::gather_rows(op_, *arguments_.row, indices, places, memory.at<>(row), queue());
    read(memory.at<>(points), memory.at<>(row));
  }

  const char* op_;
  Formula f_;
  Tensor x_;
  Arguments arguments_;
  Context& context_;
  double ridge_;
  bool reads_indices_ = false;
  std::optional<Tensor> ridges_, weights_;
};

void check_terms(const char* op, const KernelTerms& terms, const Operator& a) {
  require(terms.ridge >= 0 && std::isfinite(terms.ridge), "{}: ridge must be from 0 on and finite. Received {}.", op,
          terms.ridge);
  for (const auto& [name, t] : {std::pair("ridge", terms.ridges), std::pair("weights", terms.weights)}) {
    if (t == nullptr) continue;
    ops::check_operand(op, name, *t, {a.order}, a);
    if (a.device.kind == DeviceKind::cuda) continue;
    with_type(a.dtype, [&, name = name, t = t](auto type) {
      const Matrix<decltype(type)> values = ops::as_matrix<decltype(type)>(*t);
      for (std::int64_t i = 0; i < values.rows; ++i)
        require(values(i, 0) >= 0 && std::isfinite(values(i, 0)), "{}: {} must be from 0 on and finite. Received {}.",
                op, name, double(values(i, 0)));
    });
  }
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
  const std::shared_ptr<const DeviceMatrix> matrix =
      a.device.kind == DeviceKind::cuda ? on_device(op, a, queue) : nullptr;
  const Tensor stored = matrix != nullptr ? matrix->view : a;
  result.diagonal = [op, stored, matrix, inner = without_memory(queue)](const Tensor& out) {
    Tensor diagonal = stored;
    diagonal.shape = {stored.shape[0], 1};
    diagonal.strides = {stored.strides[0] + stored.strides[1], 1};
    sum_rows(op, {.from = &diagonal}, as_column(out), inner);
  };
  result.rows = [op, stored, matrix, inner = without_memory(queue)](const std::vector<std::int64_t>& indices,
                                                                    const Tensor& out) {
    for (std::size_t j = 0; j < indices.size(); ++j) {
      const Tensor from = as_column(row_of(stored, indices[j]));
      sum_rows(op, {.from = &from}, as_column(row_of(out, static_cast<std::int64_t>(j))), inner);
    }
  };
  if (matrix != nullptr) {
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

Operator kernel_operator(const Formula& f, const Tensor& x, const KernelTerms& terms, const Arguments& arguments,
                         Context& context) {
  const char* op = arguments.verb != nullptr ? arguments.verb : "kernel_operator";
  require(x.ndim() == 2, "{}: x must have the shape [n, K]. Received {}.", op, ops::text_of(x.shape));
  require_dtype(x.dtype == Dtype::float32 || x.dtype == Dtype::float64,
                "{}: x must be float32 or float64. Received {}.", op, name_of(x.dtype));
  require(f.symmetric(), "{}: the formula must be symmetric, f(x, z) = f(z, x). Received {}.", op,
          f.expression());
  const bool one_side = arguments.row.has_value() == arguments.col.has_value() &&
                        (!arguments.row || ops::same_view(*arguments.row, *arguments.col));
  require(one_side, "{}: row and col must be one array, since the matrix is symmetric. Received {} and {}.", op,
          arguments.row ? arguments.row->to_text() : "none", arguments.col ? arguments.col->to_text() : "none");
  Operator result{x.shape[0], x.dtype, {}, x.device, arguments.queue};
  check_terms(op, terms, result);
  const auto matrix = std::make_shared<const KernelMatrix>(op, f, x, terms, arguments, context);
  result.multiply = [matrix](const Tensor& v, const Tensor& out) { matrix->multiply(v, out, matrix->queue()); };
  if (x.device.kind == DeviceKind::cuda)
    result.multiply_in = [matrix](const Tensor& v, const Tensor& out, const Queue& queue) {
      matrix->multiply(v, out, queue);
    };
  if (!matrix->reads_indices()) result.diagonal = [matrix](const Tensor& out) { matrix->diagonal(out); };
  result.rows = [matrix, op, as = Operator{x.shape[0], x.dtype, {}, x.device}](
                    const std::vector<std::int64_t>& indices, const Tensor& out) {
    check_indices(op, indices, out, as);
    matrix->rows(indices, out);
  };
  return result;
}

Operator kernel_operator(const Formula& f, const Tensor& x, double ridge, const Arguments& arguments,
                         Context& context) {
  return kernel_operator(f, x, KernelTerms{.ridge = ridge}, arguments, context);
}

}  // namespace mercer::linalg
