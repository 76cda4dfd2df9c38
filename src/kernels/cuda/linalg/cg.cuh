// Conjugate gradients on many columns at once (cg_state.h), every number of them on the device.
//
//   blockIdx.x = column * parts + part;   sums[kind][column][part] = what a block has of a sum over the rows
//
// Sums are taken in double and in a fixed order: a block adds its part, whoever needs the sum adds the parts. A kernel
// that changes a column's state writes it to another place than it is read from, as all blocks of the column read it.
//
// Floor: bytes. A round without a preconditioner reads or writes eleven vectors, with one two more and its products.
// Budget: 80 registers, no shared memory but for the sums of warps.
#pragma once

#include "common/prelude.cuh"
#include "linalg/cg_state.h"

#define CG_THREADS 256
#define CG_RESIDUAL 0
#define CG_PRECONDITIONED 1
#define CG_CURVATURE 2
#define CG_VECTOR 3  // the largest |p|
#define CG_PRODUCT 4 // and |a p|

// What this block works on.
struct CgPart {
  i64 column, part, first, step;
  MERCER_METHOD explicit CgPart(const CgArguments& a)
      : column(blockIdx.x / a.parts), part(blockIdx.x % a.parts), first(part * CG_THREADS + threadIdx.x),
        step(a.parts * CG_THREADS) {}
  MERCER_METHOD REAL* of(const CgArguments& a, const void* vectors) const { return (REAL*)vectors + column * a.rows; }
};

MERCER_INLINE double cg_max(double u, double v) { return u > v ? u : v; }

// All threads get the sum, or the largest.
template <bool kSums>
MERCER_INLINE double cg_fold(double value) {
  __shared__ double warps[CG_THREADS / 32];
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const double other = __shfl_xor_sync(0xffffffffu, value, lanes);
    value = kSums ? value + other : cg_max(value, other);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  double total = warps[0];
  for (int warp = 1; warp < CG_THREADS / 32; ++warp) total = kSums ? total + warps[warp] : cg_max(total, warps[warp]);
  return total;
}

MERCER_INLINE double* cg_place(const CgArguments& a, const CgPart& at, int kind) {
  return a.sums + ((i64)kind * a.columns + at.column) * a.parts;
}
MERCER_INLINE void cg_store(const CgArguments& a, const CgPart& at, int kind, double value) {
  const double total = cg_fold<true>(value);
  if (threadIdx.x == 0) cg_place(a, at, kind)[at.part] = total;
}
MERCER_INLINE double cg_sum(const CgArguments& a, const CgPart& at, int kind) {
  const double* parts = cg_place(a, at, kind);
  double sum = 0;
  for (i64 part = 0; part < a.parts; ++part) sum += parts[part];
  return sum;
}

// A block's part of the inner product u^T (of_right v + of_left u) of two vectors.
MERCER_INLINE void cg_store_product(const CgArguments& a, const CgPart& at, int kind, const void* left,
                                    const void* right, double of_right, double of_left) {
  const REAL *u = at.of(a, left), *v = at.of(a, right);
  double sum = 0;
  for (i64 i = at.first; i < a.rows; i += at.step) {
    const double value = (double)u[i];
    sum += value * (of_right * (double)v[i] + of_left * value);
  }
  cg_store(a, at, kind, sum);
}

// A block's part of what tells the unit of a.
MERCER_INLINE void cg_store_sizes(const CgArguments& a, const CgPart& at, double ridge) {
  const REAL *p = at.of(a, a.p), *product = at.of(a, a.product);
  double most = 0, most_product = 0;
  for (i64 i = at.first; i < a.rows; i += at.step) {
    most = cg_max(most, fabs((double)p[i]));
    most_product = cg_max(most_product, fabs((double)product[i] + ridge * (double)p[i]));
  }
  most = cg_fold<false>(most);
  most_product = cg_fold<false>(most_product);
  if (threadIdx.x != 0) return;
  cg_place(a, at, CG_VECTOR)[at.part] = most;
  cg_place(a, at, CG_PRODUCT)[at.part] = most_product;
}
MERCER_INLINE CgUnit cg_unit_of(const CgArguments& a, const CgPart& at, const CgColumn& state, int turns) {
  double vector = 0, product = 0;
  if (state.of_product == 0 && state.operand == kCgDirection) {
    const double *vectors = cg_place(a, at, CG_VECTOR), *products = cg_place(a, at, CG_PRODUCT);
    for (i64 part = 0; part < a.parts; ++part) {
      vector = cg_max(vector, vectors[part]);
      product = cg_max(product, products[part]);
    }
  }
  return cg_unit(&state, vector, product, turns);
}
// p^T a p in that unit.
MERCER_INLINE double cg_curvature(const CgArguments& a, const CgPart& at, const CgColumn& state, const CgUnit& unit) {
  const double sum = cg_sum(a, at, CG_CURVATURE);
  return state.of_product == 0 ? unit.of_direction * (unit.of_direction * sum) * unit.factor : sum;
}

// The ridge of a column; NaN in place of one that is negative.
MERCER_INLINE double cg_ridge(const CgArguments& a, const CgPart& at) {
  double ridge = a.amount;
  const i64 place = at.column * a.ridge_step;
  if (a.ridges != nullptr)
    ridge = a.ridge_is_double ? ((const double*)a.ridges)[place] : (double)((const float*)a.ridges)[place];
  return ridge >= 0 ? ridge : (double)__int_as_float(0x7fc00000);
}

// largest = max |b|, infinite where b, the guess or the ridge is not finite.
extern "C" __global__ void __launch_bounds__(CG_THREADS) cg_find_scales(const __grid_constant__ CgArguments a) {
  const CgPart at(a);
  double most = 0;
  for (i64 i = at.first; i < a.rows; i += at.step) {
    const double b = (double)((const REAL*)a.b)[i * a.b_row + at.column * a.b_col];
    const double x = a.guess == nullptr ? 0 : (double)((const REAL*)a.guess)[i * a.guess_row + at.column * a.guess_col];
    const double size = cg_is_finite(b) && cg_is_finite(x) ? fabs(b) : (double)INFINITY;
    most = cg_max(most, size);
  }
  most = cg_fold<false>(cg_is_finite(cg_ridge(a, at)) ? most : (double)INFINITY);
  if (threadIdx.x == 0) a.largest[at.column * a.parts + at.part] = most;
}

// r = b, x = guess, divided by the power of two at or below the largest |b|.
extern "C" __global__ void __launch_bounds__(CG_THREADS) cg_begin(const __grid_constant__ CgArguments a) {
  const CgPart at(a);
  double most = 0;
  for (i64 part = 0; part < a.parts; ++part) most = cg_max(most, a.largest[at.column * a.parts + part]);
  const bool finite = cg_is_finite(most);
  const i64 exponent = __double_as_longlong(most) & 0x7ff0000000000000ll;
  const double scale = finite && exponent != 0 ? __longlong_as_double(exponent) : finite && most > 0 ? 0x1p-1022 : 1;
  double sum = 0;
  for (i64 i = at.first; i < a.rows; i += at.step) {
    REAL b = 0, x = 0;
    if (finite) b = (REAL)((double)((const REAL*)a.b)[i * a.b_row + at.column * a.b_col] / scale);
    if (finite && a.guess != nullptr)
      x = (REAL)((double)((const REAL*)a.guess)[i * a.guess_row + at.column * a.guess_col] / scale);
    at.of(a, a.right)[i] = b;
    at.of(a, a.r)[i] = b;
    at.of(a, a.x)[i] = x;
    sum += (double)b * (double)b;
  }
  cg_store(a, at, CG_RESIDUAL, finite ? sum : (double)INFINITY);
  if (at.part != 0 || threadIdx.x != 0) return;
  CgColumn state = {};
  state.scale = scale;
  state.ridge = finite ? cg_ridge(a, at) : 0;
  a.state[at.column] = state;
}

extern "C" __global__ void __launch_bounds__(CG_THREADS) cg_measure_curvature(const __grid_constant__ CgArguments a) {
  const CgPart at(a);
  const CgColumn state = a.state[at.column];
  if (state.operand != kCgDirection) return;
  if (state.of_product == 0) cg_store_sizes(a, at, state.ridge);
  const CgUnit unit = cg_unit(&state, 0, 0, 0);
  cg_store_product(a, at, CG_CURVATURE, a.p, a.product, unit.factor, unit.of_vector);
}

// x and r after the round's product.
extern "C" __global__ void __launch_bounds__(CG_THREADS) cg_step(const __grid_constant__ CgArguments a) {
  const CgPart at(a);
  const CgColumn state = a.state[at.column];
  if (state.operand == kCgZeros) return;
  REAL *x = at.of(a, a.x), *r = at.of(a, a.r);
  const REAL *p = at.of(a, a.p), *product = at.of(a, a.product), *right = at.of(a, a.right);
  const CgUnit unit = cg_unit_of(a, at, state, 1);
  double sum = 0;
  if (state.operand == kCgSolution) {
    for (i64 i = at.first; i < a.rows; i += at.step) {
      r[i] = (REAL)((double)right[i] - (unit.factor * (double)product[i] + unit.of_vector * (double)p[i]));
      sum += (double)r[i] * (double)r[i];
    }
  } else {
    const double curvature = cg_curvature(a, at, state, unit);
    const double alpha =
        curvature > 0 ? unit.of_direction * state.product / curvature * unit.of_direction : 0;
    for (i64 i = at.first; i < a.rows; i += at.step) {
      const double direction = (double)p[i];
      x[i] = (REAL)(unit.of_solution * (double)x[i] + alpha * direction);
      r[i] = (REAL)((double)r[i] - alpha * (unit.factor * (double)product[i] + unit.of_vector * direction));
      sum += (double)r[i] * (double)r[i];
    }
  }
  cg_store(a, at, CG_RESIDUAL, sum);
}

// r = b - a x, or a v - alpha v - beta v_before.
extern "C" __global__ void __launch_bounds__(CG_THREADS) minres_step(const __grid_constant__ CgArguments a) {
  const CgPart at(a);
  const CgColumn state = a.state[at.column];
  if (state.operand == kCgZeros) return;
  const bool measures = state.operand == kCgSolution;
  REAL* r = at.of(a, a.r);
  const REAL *v = at.of(a, a.p), *product = at.of(a, a.product), *right = at.of(a, a.right);
  const REAL* before = at.of(a, a.v_before);
  const CgUnit unit = cg_unit_of(a, at, state, 0);
  const double alpha = measures ? 0 : cg_curvature(a, at, state, unit);
  double sum = 0;
  for (i64 i = at.first; i < a.rows; i += at.step) {
    const double product_of = unit.factor * (double)product[i] + (unit.of_vector - alpha) * (double)v[i];
    r[i] = (REAL)(measures ? (double)right[i] - product_of : product_of - state.beta * (double)before[i]);
    sum += (double)r[i] * (double)r[i];
  }
  cg_store(a, at, CG_RESIDUAL, sum);
}

extern "C" __global__ void __launch_bounds__(CG_THREADS) minres_turn_columns(const __grid_constant__ CgArguments a) {
  const CgPart at(a);
  CgColumn state = a.state[at.column];
  CgSums sums = {};
  const CgUnit unit = cg_unit_of(a, at, state, 0);
  if (state.status == kCgLive) {
    sums.residual = cg_sum(a, at, CG_RESIDUAL);
    sums.curvature = state.operand == kCgDirection ? cg_curvature(a, at, state, unit) : 0;
  }
  state.of_product = unit.of_product;
  const MinresNext next = minres_turn(&state, sums, a.turn);
  REAL *x = at.of(a, a.x), *p = at.of(a, a.p), *w = at.of(a, a.w);
  REAL *w_before = at.of(a, a.w_before), *v_before = at.of(a, a.v_before);
  const REAL* r = at.of(a, a.r);
  for (i64 i = at.first; i < a.rows; i += at.step) {
    if (next.moves) {
      const double v = (double)p[i], last = (double)w[i];
      const double moved = next.scale * (v - next.of_w * last - next.of_before * (double)w_before[i]);
      w_before[i] = w[i];
      w[i] = (REAL)moved;
      v_before[i] = p[i];
      x[i] = (REAL)(unit.of_solution * (double)x[i] + next.step * moved);
    }
    if (next.begins) w[i] = w_before[i] = v_before[i] = 0;
    double value = 0;
    if (state.operand == kCgSolution) value = (double)x[i];
    if (state.operand == kCgDirection) value = next.of_residual * (double)r[i];
    p[i] = (REAL)value;
  }
  if (at.part != 0 || threadIdx.x != 0) return;
  a.state_next[at.column] = state;
  a.flags[at.column] = state.status;
}

extern "C" __global__ void __launch_bounds__(CG_THREADS) cg_measure_preconditioned(
    const __grid_constant__ CgArguments a) {
  const CgPart at(a);
  const CgColumn state = a.state[at.column];
  if (state.status != kCgLive) return;
  cg_store_product(a, at, CG_PRECONDITIONED, a.r, a.z, cg_unit_of(a, at, state, 1).inverse, 0);
}

// The next state and operand of each column.
extern "C" __global__ void __launch_bounds__(CG_THREADS) cg_turn_columns(const __grid_constant__ CgArguments a) {
  const CgPart at(a);
  CgColumn state = a.state[at.column];
  CgSums sums = {};
  const CgUnit unit = cg_unit_of(a, at, state, 1);
  if (state.status == kCgLive) {
    sums.residual = cg_sum(a, at, CG_RESIDUAL);
    sums.preconditioned = a.z == a.r ? sums.residual : cg_sum(a, at, CG_PRECONDITIONED);
    sums.curvature = state.operand == kCgDirection ? cg_curvature(a, at, state, unit) : 0;
  }
  state.of_product = unit.of_product;
  state.inverse = unit.inverse;
  state.product *= unit.of_direction;
  const CgNext next = cg_turn(&state, sums, a.turn);
  const void* const taken = next.source == kCgOfResidual ? a.r : a.z;
  const double of_source = taken == a.r ? 1 : unit.inverse, of_last = next.beta * unit.of_direction;
  const REAL *source = at.of(a, taken), *x = at.of(a, a.x);
  REAL* p = at.of(a, a.p);
  for (i64 i = at.first; i < a.rows; i += at.step) {
    double value = 0;
    if (state.operand == kCgSolution) value = (double)x[i];
    if (state.operand == kCgDirection) value = of_source * (double)source[i];
    if (next.beta != 0) value += of_last * (double)p[i];  // what p holds at first may be anything
    p[i] = (REAL)value;
  }
  if (at.part != 0 || threadIdx.x != 0) return;
  a.state_next[at.column] = state;
  a.flags[at.column] = state.status;
}

// The caller's arrays.
extern "C" __global__ void __launch_bounds__(CG_THREADS) cg_end(const __grid_constant__ CgArguments a) {
  const CgPart at(a);
  const CgColumn state = a.state[at.column];
  const bool failed = cg_info(&state) == -1;
  const REAL* x = at.of(a, a.x);
  for (i64 i = at.first; i < a.rows; i += at.step) {
    const double solved = state.right == 0 ? 0 : cg_solution(&state, (double)x[i]);
    const double value = failed ? (double)__int_as_float(0x7fc00000) : solved;
    ((REAL*)a.out)[i * a.out_row + at.column * a.out_col] = (REAL)value;
  }
  if (at.part != 0 || threadIdx.x != 0) return;
  if (a.info != nullptr) a.info[at.column * a.info_step] = cg_info(&state);
  if (a.rounds_out != nullptr) a.rounds_out[at.column * a.rounds_step] = state.rounds;
}

// What operators do apart from their products; out may be from or v.
extern "C" __global__ void __launch_bounds__(CG_THREADS) sum_rows(const __grid_constant__ RowSumArguments a) {
  const i64 step = (i64)gridDim.x * CG_THREADS;
  for (i64 at = (i64)blockIdx.x * CG_THREADS + threadIdx.x; at < a.rows * a.columns; at += step) {
    const i64 i = at % a.rows, j = at / a.rows;
    double sum = 0;
    if (a.from != nullptr) sum = (double)((const REAL*)a.from)[i * a.from_row + j * a.from_col];
    if (a.weights != nullptr) sum *= sqrt((double)((const REAL*)a.weights)[i * a.weights_step]);
    if (a.v != nullptr) {
      const double ridge = a.ridges != nullptr ? (double)((const REAL*)a.ridges)[i * a.ridges_step] : 0;
      sum += (a.amount + ridge) * (double)((const REAL*)a.v)[i * a.v_row + j * a.v_col];
    }
    ((REAL*)a.out)[i * a.out_row + j * a.out_col] = (REAL)sum;
  }
}

template <class T>
MERCER_INLINE void gather_elements(const GatherArguments& a) {
  const i64 step = (i64)gridDim.x * CG_THREADS;
  for (i64 at = (i64)blockIdx.x * CG_THREADS + threadIdx.x; at < a.rows * a.columns; at += step)
    ((T*)a.to)[at] = ((const T*)a.from)[a.indices[at / a.columns] * a.from_row + at % a.columns * a.from_col];
}

extern "C" __global__ void __launch_bounds__(CG_THREADS) gather_rows(const __grid_constant__ GatherArguments a) {
  if (a.element == 8)
    gather_elements<u64>(a);
  else if (a.element == 4)
    gather_elements<u32>(a);
  else if (a.element == 2)
    gather_elements<unsigned short>(a);
  else
    gather_elements<unsigned char>(a);
}
