// A value for each pair that the caller gives: [..., M, N], of the computing type.
#pragma once

#include "core/error.h"
#include "ops/call/call.h"

namespace mercer::ops {

inline void check_matrix(const PairCall& call, const char* name, const Tensor& matrix) {
  require(matrix.shape[matrix.ndim() - 2] == call.m() && matrix.shape.back() == call.n(),
          "{}: {} must have shape (..., {}, {}). Received {}.", call.op(), name, call.m(), call.n(),
          text_of(matrix.shape));
  check_device(call.op(), name, matrix, call.device());
  check_computing_type(call.op(), name, matrix, call.type());
}

inline cuda::JobOperand matrix_operand(const PairCall& call, const Tensor& matrix) {
  return {{matrix.data, matrix.dtype, batch_strides(matrix, 2, call.batch())},
          matrix.strides[matrix.ndim() - 2],
          matrix.strides.back()};
}

/// Sets the amplitude of one item of the batch.
inline void fill_amplitude(cpu::GradientItem& item, const PairCall& call, std::int64_t index, const Tensor& matrix) {
  item.amplitude = element(matrix, call.offset(index, batch_strides(matrix, 2, call.batch())));
  item.amplitude_dtype = matrix.dtype;
  item.amplitude_row_stride = matrix.strides[matrix.ndim() - 2];
  item.amplitude_col_stride = matrix.strides.back();
}

}  // namespace mercer::ops
