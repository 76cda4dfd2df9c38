// What block methods on operators share: arrays of the caller, and the device that the operator's are on.
#pragma once

#include <functional>
#include <memory>

#include "backend/block_basis.h"
#include "backend/cpu/linalg/dense_matrix.h"
#include "mercer/linalg.h"
#include "ops/call/call.h"
#include "ops/context.h"

namespace mercer::ops {

/// A matrix, or a vector as one column.
template <class T>
cpu::Matrix<T> as_matrix(const Tensor& t) {
  return {static_cast<T*>(t.data), t.shape[0], t.ndim() > 1 ? t.shape[1] : 1, t.strides[0],
          t.ndim() > 1 ? t.strides[1] : 1};
}

/// Throws for an operator of another dtype than float32 and float64, or too large for the libraries.
void check_operator(const char* op, const linalg::Operator& a);
/// Throws for an array that is not of this shape and of the dtype and device of the operator.
void check_operand(const char* op, const char* name, const Tensor& t, const Shape& expected,
                   const linalg::Operator& a);
/// Numbers below this are too small to be squared.
double least_size(Dtype type);
/// 1 where `run` has served. Else, where it has met numbers whose squares leave the range, a power of two near the size
/// of a, to run again with: it says itself whether there were too small ones; what it throws for numbers is thrown on
/// where a is no larger than others.
double size_to_divide_by(const char* op, const linalg::Operator& a, Context& context, const std::function<bool()>& run);
/// The operator divided by a power of two, for products alone.
linalg::Operator divided(const char* op, const linalg::Operator& a, double size);
/// Where the operator's products are.
std::unique_ptr<BlockBasis> block_basis(const linalg::Operator& a, const BlockBasis::Sizes& sizes, Context& context);

}  // namespace mercer::ops
