#include "ops/linalg/block_method.h"

#include <limits>

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

std::unique_ptr<BlockBasis> block_basis(const linalg::Operator& a, const BlockBasis::Sizes& sizes, Context& context) {
  if (a.device.kind == DeviceKind::cuda) return cuda::block_basis(sizes, a.device, a.queue);
  return cpu::block_basis(sizes, context.state().pool);
}

}  // namespace mercer::ops
