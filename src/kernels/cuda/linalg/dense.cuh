// What surrounds the routines of cuSOLVER and cuBLAS: matrices of a batch come from the caller's strides into packed
// columns and go back, are looked through for NaN, and are spoiled where they failed.
//
//   status[matrix]: 0; -1 for NaN or an infinity; -2 for pivots out of range; > 0 what the routine said
//
// A block moves 64 x 64 elements through shared memory, so that both sides are read along what lies together.
// blockIdx.y is the matrix of the chunk. Budget: 64 registers, 33 KB of shared memory in float64.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define DENSE_TILE 64
#define DENSE_THREADS 256

MERCER_INLINE i64 dense_offset(const DenseSide& side, const BatchAxes& axes, i64 first, i64 matrix) {
  return batch_offset(axes, side.step, first + matrix) + matrix * side.packed;
}

// 0 all, 1 and 2 the lower and the upper triangle, 3 and 4 the same without the diagonal.
MERCER_INLINE bool is_of_part(int part, i64 i, i64 j) {
  if (i == j) return part < 3;
  return part == 0 || (i > j) == (part % 2 == 1);
}

MERCER_INLINE REAL not_a_number() { return (REAL)__int_as_float(0x7fc00000); }

// Whether neighbours in a column lie nearer than neighbours in a row.
MERCER_INLINE bool goes_down(const DenseSide& side) {
  return (side.row < 0 ? -side.row : side.row) <= (side.col < 0 ? -side.col : side.col);
}

// Element `pass` of a thread in a tile: along lines of memory the lanes.
MERCER_INLINE void find_element(int pass, bool down, int& r, int& c) {
  constexpr int kWarps = DENSE_THREADS / 32, kLines = DENSE_TILE / kWarps;
  const int along = pass / kLines * 32 + threadIdx.x % 32, line = pass % kLines * kWarps + threadIdx.x / 32;
  r = down ? along : line;
  c = down ? line : along;
}

extern "C" __global__ void __launch_bounds__(DENSE_THREADS) move_dense(const __grid_constant__ DenseArguments a) {
  __shared__ REAL tile[DENSE_TILE][DENSE_TILE + 1];
  constexpr int kPasses = DENSE_TILE * DENSE_TILE / DENSE_THREADS;
  const i64 matrix = blockIdx.y;
  const u32 tiles = (u32)((a.rows + DENSE_TILE - 1) / DENSE_TILE);
  const i64 top = (i64)(blockIdx.x % tiles) * DENSE_TILE, left = (i64)(blockIdx.x / tiles) * DENSE_TILE;
  const int rows = (int)min(a.rows - top, (i64)DENSE_TILE), cols = (int)min(a.cols - left, (i64)DENSE_TILE);
  // Tiles that the diagonal crosses have elements with i >= j, or i <= j; others have all, or none.
  const i64 apart = left - top;
  const int diagonal = (int)max(min(apart, (i64)DENSE_TILE), -(i64)DENSE_TILE);
  const auto has = [&](int r, int c) { return is_of_part(a.part, r, c + diagonal); };
  if (a.adopted && !(a.status[matrix] > 0 && a.adopted[matrix] == 0)) return;
  const bool failed = a.spoils && a.status[matrix] != 0;
  if (!failed) {
    const bool down = goes_down(a.from);
    const REAL* from = (const REAL*)a.from.data + dense_offset(a.from, a.axes, a.first, matrix) + top * a.from.row +
                       left * a.from.col;
    REAL values[kPasses];
    bool bad = false;
    // All loads are on their way before the first is waited for.
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      int r, c;
      find_element(pass, down, r, c);
      const bool inside = r < rows && c < cols && has(r, c);
      values[pass] = inside ? from[r * a.from.row + c * a.from.col] : (REAL)0;
    }
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      int r, c;
      find_element(pass, down, r, c);
      bad |= !(fabs(values[pass]) < INFINITY);
      tile[r][c] = values[pass];
    }
    if (bad && a.examines) a.status[matrix] = -1;
  }
  if (a.to.data == nullptr) return;
  __syncthreads();
  const bool down = goes_down(a.to), writes_all = failed || a.clears;
  REAL* const to =
      (REAL*)a.to.data + dense_offset(a.to, a.axes, a.first, matrix) + top * a.to.row + left * a.to.col;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    int r, c;
    find_element(pass, down, r, c);
    if (r < rows && c < cols && (writes_all || has(r, c)))
      to[r * a.to.row + c * a.to.col] = failed ? not_a_number() : tile[r][c];
  }
}

// The identity in place of matrices that no routine should see.
extern "C" __global__ void __launch_bounds__(DENSE_THREADS) replace_dense(const __grid_constant__ DenseArguments a) {
  const i64 matrix = blockIdx.y;
  if (a.status[matrix] >= 0) return;
  REAL* to = (REAL*)a.to.data + dense_offset(a.to, a.axes, a.first, matrix);
  const i64 count = a.rows * a.cols, stride = (i64)gridDim.x * DENSE_THREADS;
  for (i64 at = (i64)blockIdx.x * DENSE_THREADS + threadIdx.x; at < count; at += stride) {
    const i64 i = at % a.rows, j = at / a.rows;
    to[i * a.to.row + j * a.to.col] = i == j ? (REAL)1 : (REAL)0;
  }
}

// All threads get the sum.
MERCER_INLINE double block_sum(double value) {
  __shared__ double sums[DENSE_THREADS / 32];
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  for (int warp = 0; warp < DENSE_THREADS / 32; ++warp) total += sums[warp];
  return total;
}

// Adds `amount` times the mean of the diagonal's absolute values to the diagonals of matrices that failed.
extern "C" __global__ void __launch_bounds__(DENSE_THREADS) raise_dense(const __grid_constant__ DenseArguments a) {
  const i64 matrix = blockIdx.y;
  if (a.status[matrix] <= 0) return;
  REAL* to = (REAL*)a.to.data + dense_offset(a.to, a.axes, a.first, matrix);
  double sum = 0;
  for (i64 i = threadIdx.x; i < a.rows; i += DENSE_THREADS) sum += fabs((double)to[i * (a.to.row + a.to.col)]);
  const double amount = a.amount * (block_sum(sum) / (double)a.rows);
  for (i64 i = threadIdx.x; i < a.rows; i += DENSE_THREADS) {
    REAL* diagonal = to + i * (a.to.row + a.to.col);
    *diagonal = (REAL)((double)*diagonal + amount);
  }
}

// The first pivot of a factor that is not positive, where Cholesky's routine passed it by: cuSOLVER does so with the
// last one of some orders.
extern "C" __global__ void __launch_bounds__(DENSE_THREADS) check_pivots(const __grid_constant__ DenseArguments a) {
  __shared__ int bad;
  const i64 matrix = blockIdx.y;
  if (threadIdx.x == 0) bad = 0x7fffffff;
  __syncthreads();
  const REAL* from = (const REAL*)a.from.data + dense_offset(a.from, a.axes, a.first, matrix);
  for (i64 i = threadIdx.x; i < a.rows; i += DENSE_THREADS)
    if (!(from[i * (a.from.row + a.from.col)] > 0)) atomicMin(&bad, (int)i + 1);
  __syncthreads();
  int* said = (int*)a.to.data + matrix;
  if (threadIdx.x == 0 && *said == 0 && bad != 0x7fffffff) *said = bad;
}

// What routines said becomes the status; with `to`, info of the caller. `adopted`: of another attempt at matrices that
// failed.
extern "C" __global__ void __launch_bounds__(DENSE_THREADS) settle_dense(const __grid_constant__ DenseArguments a) {
  const i64 matrix = (i64)blockIdx.x * DENSE_THREADS + threadIdx.x;
  if (matrix >= a.rows) return;
  int status = a.status[matrix];
  if (a.said && status == 0) status = a.said[matrix];
  if (a.adopted && status > 0) status = a.adopted[matrix];
  a.status[matrix] = status;
  if (a.to.data) ((i64*)a.to.data)[dense_offset(a.to, a.axes, a.first, matrix)] = status;
}

extern "C" __global__ void __launch_bounds__(DENSE_THREADS) point_dense(const __grid_constant__ DenseArguments a) {
  const i64 matrix = (i64)blockIdx.x * DENSE_THREADS + threadIdx.x;
  if (matrix < a.rows) ((REAL**)a.to.data)[matrix] = (REAL*)a.from.data + matrix * a.from.packed;
}

// Pivots of the caller count from 0 and have 64 bits; those of routines count from 1 and have 64 bits where `wide`.
extern "C" __global__ void __launch_bounds__(DENSE_THREADS) write_pivots(const __grid_constant__ DenseArguments a) {
  const i64 matrix = blockIdx.y;
  const i64 i = (i64)blockIdx.x * DENSE_THREADS + threadIdx.x;
  if (i >= a.rows) return;
  const i64 at = matrix * a.rows + i;
  const i64 said = a.wide ? ((const i64*)a.from.data)[at] : (i64)((const int*)a.from.data)[at];
  const i64 pivot = a.status[matrix] != 0 ? i : said - 1;
  ((i64*)a.to.data)[dense_offset(a.to, a.axes, a.first, matrix) + i * a.to.row] = pivot;
}

extern "C" __global__ void __launch_bounds__(DENSE_THREADS) read_pivots(const __grid_constant__ DenseArguments a) {
  const i64 matrix = blockIdx.y;
  const i64 i = (i64)blockIdx.x * DENSE_THREADS + threadIdx.x;
  if (i >= a.rows) return;
  i64 pivot = ((const i64*)a.from.data)[dense_offset(a.from, a.axes, a.first, matrix) + i * a.from.row];
  if (pivot < i || pivot >= a.rows) {
    a.status[matrix] = -2;
    pivot = i;
  }
  const i64 at = matrix * a.rows + i;
  if (a.wide) ((i64*)a.to.data)[at] = pivot + 1;
  else ((int*)a.to.data)[at] = (int)pivot + 1;
}

// Columns of the identity, from `first` on.
extern "C" __global__ void __launch_bounds__(DENSE_THREADS) unit_columns(const __grid_constant__ DenseArguments a) {
  REAL* to = (REAL*)a.to.data + (i64)blockIdx.y * a.to.packed;
  const i64 count = a.rows * a.cols, stride = (i64)gridDim.x * DENSE_THREADS;
  for (i64 at = (i64)blockIdx.x * DENSE_THREADS + threadIdx.x; at < count; at += stride) {
    const i64 i = at % a.rows, j = at / a.rows;
    to[i * a.to.row + j * a.to.col] = i == j + a.first ? (REAL)1 : (REAL)0;
  }
}

// The sum of squares of each column of `from`, of 64 bits where `wide`.
extern "C" __global__ void __launch_bounds__(DENSE_THREADS) sum_squares(const __grid_constant__ DenseArguments a) {
  const i64 matrix = blockIdx.y;
  for (i64 j = blockIdx.x; j < a.cols; j += gridDim.x) {
    const REAL* column = (const REAL*)a.from.data + matrix * a.from.packed + j * a.from.col;
    double sum = 0;
    for (i64 i = threadIdx.x; i < a.rows; i += DENSE_THREADS) {
      const double value = column[i];
      sum = fma(value, value, sum);
    }
    sum = block_sum(sum);
    if (threadIdx.x != 0) continue;
    const i64 at = dense_offset(a.to, a.axes, a.first, matrix) + j * a.to.col;
    if (a.status[matrix] != 0) sum = not_a_number();
    if (a.wide) ((double*)a.to.data)[at] = sum;
    else ((REAL*)a.to.data)[at] = (REAL)sum;
  }
}

// Twice the sum of the logarithms of the diagonal.
extern "C" __global__ void __launch_bounds__(DENSE_THREADS) sum_logarithms(const __grid_constant__ DenseArguments a) {
  const i64 matrix = blockIdx.y;
  const REAL* from = (const REAL*)a.from.data + dense_offset(a.from, a.axes, a.first, matrix);
  double sum = 0;
  for (i64 i = threadIdx.x; i < a.rows; i += DENSE_THREADS) sum += log((double)from[i * (a.from.row + a.from.col)]);
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  double* to = (double*)a.to.data + dense_offset(a.to, a.axes, a.first, matrix);
  *to = a.status[matrix] != 0 ? (double)not_a_number() : 2 * sum;
}
