// Elements of the arrays of a product with a Kronecker product, and where they lie. REAL is the computing type, IN and
// OUT are those of memory. Whole numbers have no signs here, so that they wrap around.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

typedef REAL Value;

MERCER_INLINE float kron_load(float v) { return v; }
MERCER_INLINE double kron_load(double v) { return v; }
MERCER_INLINE u32 kron_load(u32 v) { return v; }
MERCER_INLINE u64 kron_load(u64 v) { return v; }
MERCER_INLINE float kron_load(half_bits v) { return to_float(v); }
MERCER_INLINE float kron_load(bfloat_bits v) { return to_float(v); }
MERCER_INLINE void kron_store(u32& to, u32 v) { to = v; }
MERCER_INLINE void kron_store(u64& to, u64 v) { to = v; }
MERCER_INLINE void kron_store(float& to, float v) { to = v; }
MERCER_INLINE void kron_store(double& to, double v) { to = v; }
MERCER_INLINE void kron_store(half_bits& to, float v) { convert(to, v); }
MERCER_INLINE void kron_store(bfloat_bits& to, float v) { convert(to, v); }
MERCER_INLINE float kron_mul_add(float a, float b, float c) { return mul_add(a, b, c); }
MERCER_INLINE double kron_mul_add(double a, double b, double c) { return mul_add(a, b, c); }
MERCER_INLINE u32 kron_mul_add(u32 a, u32 b, u32 c) { return a * b + c; }
MERCER_INLINE u64 kron_mul_add(u64 a, u64 b, u64 c) { return a * b + c; }
MERCER_INLINE void kron_scalar(float& to, double v) { to = (float)v; }
MERCER_INLINE void kron_scalar(double& to, double v) { to = v; }
MERCER_INLINE void kron_scalar(u32& to, double v) { to = (u32)(i64)v; }
MERCER_INLINE void kron_scalar(u64& to, double v) { to = (u64)(i64)v; }

// Items and rows may be more than 32 bits count; they seldom are.
MERCER_INLINE i64 kron_quotient(i64 a, i64 b) {
  return (u64)(a | b) >> 32 ? (i64)((u64)a / (u64)b) : (i64)((u32)a / (u32)b);
}
MERCER_INLINE i64 kron_offset(const BatchAxes& axes, const long long* steps, i64 index) {
  if (axes.count == 1) return index * steps[0];
  i64 offset = 0;
#pragma unroll 1
  for (int axis = axes.count - 1; axis >= 0; --axis) {
    const i64 next = kron_quotient(index, axes.extent[axis]);
    offset += (index - next * axes.extent[axis]) * steps[axis];
    index = next;
  }
  return offset;
}
MERCER_INLINE i64 kron_behind(const KronSide& side, i64 a) {
  if (side.columns == 1) return a * side.behind;
  const i64 next = kron_quotient(a, side.columns);
  return next * side.behind + (a - next * side.columns) * side.column;
}
MERCER_INLINE i64 kron_place(const KronArguments& k, const KronSide& side, i64 item, i64 b) {
  const i64 row = kron_quotient(b, k.left), l = b - row * k.left;
  return kron_offset(k.items, side.item_step, item) + kron_offset(k.rows, side.row_step, row) + l * side.left;
}
// alpha value + beta y, y not read where there is none.
struct KronEnd {
  Value alpha, beta;
  const OUT* y;
  MERCER_METHOD explicit KronEnd(const KronArguments& k) {
    kron_scalar(alpha, k.alpha);
    kron_scalar(beta, k.beta);
    y = (const OUT*)k.y.data;
  }
  MERCER_METHOD Value operator()(Value value, i64 y_place) const {
    value = value * alpha;
    return y ? kron_mul_add(beta, kron_load(y[y_place]), value) : value;
  }
};
