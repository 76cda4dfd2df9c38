#include "ops/linalg/block_method.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/row_sums.h"
#include "core/dtype_error.h"
#include "core/error.h"

namespace mercer::ops {

void check_operator(const char* op, const linalg::Operator& a) {
  require_dtype(a.dtype == Dtype::float32 || a.dtype == Dtype::float64,
                "{}: the operator must be of float32 or float64. Received {}.", op, name_of(a.dtype));
  const bool on_cpu = a.device.kind == DeviceKind::cpu;
  const std::int64_t largest = on_cpu ? need_lapack(op).largest_size() : std::numeric_limits<int>::max();
  require(a.order >= 0 && a.order <= largest, "{}: orders must be at most {} with these libraries. Received {}.", op,
          largest, a.order);
}

void check_operand(const char* op, const char* name, const Tensor& t, const Shape& expected,
                   const linalg::Operator& a) {
  require(t.shape == expected, "{}: {} must have shape {}. Received {}.", op, name, text_of(expected),
          text_of(t.shape));
  require_dtype(t.dtype == a.dtype, "{}: {} must be {}. Received {}.", op, name, name_of(a.dtype), name_of(t.dtype));
  check_layout(op, name, t);
  require(t.device == a.device, "{}: {} must lie on {}. Received one on {}.", op, name, a.device, t.device);
}

namespace {

/// The power of two at or below the largest element of a product with a random vector; 1 where that is 0 or not finite.
double size_of(const char* op, const linalg::Operator& a, Context& context) {
  linalg::Operator own = a;
  own.queue.allocate = {};
  const std::unique_ptr<BlockBasis> column = block_basis(
      own, {.op = op, .type = a.dtype, .length = a.order, .columns = 1, .results = 1, .most_block = 1, .seed = 1},
      context);
  column->draw(0, 1);
  a.multiply(column->basis(0, 1), column->results(0, 1));
  double most = 0;
  for (const double value : column->read(column->results(0, 1)))
    most = std::isfinite(value) ? std::max(most, std::abs(value)) : std::numeric_limits<double>::quiet_NaN();
  return most > 0 ? std::ldexp(1.0, std::clamp(std::ilogb(most), -1000, 1000)) : 1;
}

/// Sums of squares of larger numbers may overflow.
double largest_size(Dtype type) { return type == Dtype::float64 ? 0x1p490 : 0x1p52; }

}  // namespace

// The square of its rounding is in range.
double least_size(Dtype type) { return type == Dtype::float64 ? 0x1p-450 : 0x1p-38; }

double size_to_divide_by(const char* op, const linalg::Operator& a, Context& context,
                         const std::function<bool()>& run) {
  try {
    return run() ? size_of(op, a, context) : 1;
  } catch (const Error& error) {
    const double size = error.kind() == ErrorKind::numerical ? size_of(op, a, context) : 1;
    if (size <= largest_size(a.dtype) && size >= least_size(a.dtype)) throw;
    return size;
  }
}

linalg::Operator divided(const char* op, const linalg::Operator& a, double size) {
  linalg::Operator result{a.order, a.dtype, {}, a.device, a.queue};
  result.queue.allocate = {};  // the run before this one has asked
  result.multiply = [op, size, multiply = a.multiply, queue = a.queue](const Tensor& v, const Tensor& out) {
    multiply(v, out);
    Queue inner = queue;
    inner.allocate = {};
    const RowSum sum{.v = &out, .amount = 1 / size};
    if (out.device.kind == DeviceKind::cuda)
      cuda::sum_rows(op, sum, out, inner);
    else
      cpu::sum_rows(sum, out);
  };
  return result;
}

std::unique_ptr<BlockBasis> block_basis(const linalg::Operator& a, const BlockBasis::Sizes& sizes, Context& context) {
  if (a.device.kind == DeviceKind::cuda) return cuda::block_basis(sizes, a.device, a.queue);
  return cpu::block_basis(sizes, context.state().pool);
}

}  // namespace mercer::ops
