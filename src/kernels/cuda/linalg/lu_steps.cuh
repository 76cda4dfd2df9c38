// Around the panels of a blocked LU (lu_panel.cuh, backend/cuda/linalg/split_lu.cpp), by rows:
//
//   find_columns, judge_columns, scale_columns, find_rows    A D: powers of two bring columns that are far from 1 there
//   for blocks of columns
//     start_block
//     for panels of the block:  swap_panel    rows of the rest of the block; U next to the panel
//                               update_block  A -= L U of the panel, on its right
//     list_moves, swap_block                  rows of the other columns, each element once
//     find_exponents, write_operands_l/u, judge_strays, update_strays                    A22 -= L21 U12 (see below)
//   scale_columns                             U D^-1
//
// Partial pivoting compares values of one column, so D changes no pivot and not L.
//
// Pieces of products (split_precision.cuh) lose what is far below the largest value of their row, so the operands are
// L21 S and S^-1 U12, S of powers of two that bring the largest value of each row of U12 into [1, 2): what a row of
// L21 S has is then what the row's terms amount to, and is lost next to larger ones of the same row only. Rows of L21 S
// and columns of S^-1 U12 that pieces cannot carry are the strays. Small ones change nothing where rows and columns of
// the matrix are of like scale (`is_tame`); others are left to floats.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "linalg/substitution.cuh"

#define LU_THREADS 256
#define LU_WIDTH 32            // most columns of a panel
#define MOST_EXPONENT 8        // of columns that stay as they are
#define MOST_REACH 80          // binary places from a column's largest value to its least: less is lost nowhere
#define LEAST_CARRIED 0x1p-50f  // of is_carried (split_operands.cuh)
#define MOST_CARRIED 0x1p50f

MERCER_INLINE int exponent_of(u32 bits) { return max((int)(bits >> 23), 1) - 127; }
MERCER_INLINE float two_to(int exponent) { return float_of((u32)(exponent + 127) << 23); }
// An exponent for which two_to of it and of its negative are floats.
MERCER_INLINE int scaling_exponent(u32 bits) {
  return bits == 0 || bits >= 0x7f800000u ? 0 : min(exponent_of(bits), 126);
}
MERCER_INLINE bool scales_columns(const LuState& s) { return s.far && !s.uneven; }
// Whether what is below 2^-50 of the largest of an operand's row changes nothing: no row and no column of the matrix is
// far below the others.
MERCER_INLINE bool is_tame(const LuState& s) {
  const int highest = exponent_of(s.highest), least = exponent_of(s.least);
  return highest - exponent_of(s.lowest) <= 2 * MOST_EXPONENT &&
         least >= (scales_columns(s) ? 0 : highest) - 2 * MOST_EXPONENT;
}
MERCER_INLINE bool is_stray(float largest, bool tame) {
  return !(largest <= MOST_CARRIED) || (largest > 0 && largest < LEAST_CARRIED && !tame);
}
MERCER_INLINE u32 magnitude(float v) { return bits_of(v) & 0x7fffffffu; }

MERCER_INLINE u32 warp_most(u32 value) { return __reduce_max_sync(0xffffffffu, value); }

// The largest and the least value but zero of each column; blocks have 32 columns, a thread every eighth row.
extern "C" __global__ void __launch_bounds__(LU_THREADS) find_columns(const __grid_constant__ LuArguments a) {
  const i64 j = (i64)blockIdx.x * 32 + threadIdx.x % 32;
  if (j >= a.n) return;
  u32 most = 0, least = 0xffffffffu;
#pragma unroll 8
  for (i64 i = (i64)blockIdx.y * 8 + threadIdx.x / 32; i < a.n; i += (i64)gridDim.y * 8) {
    const u32 value = magnitude(a.a[i * a.stride + j]);
    most = max(most, value);
    if (value != 0) least = min(least, value);
  }
  atomicMax(&a.most[j], most);
  atomicMin(&a.least[j], least);
}

extern "C" __global__ void __launch_bounds__(LU_THREADS) judge_columns(const __grid_constant__ LuArguments a) {
  const i64 j = (i64)blockIdx.x * LU_THREADS + threadIdx.x;
  if (j >= a.n || a.most[j] == 0) return;
  const int exponent = scaling_exponent(a.most[j]);
  atomicMax(&a.state->highest, a.most[j]);
  atomicMin(&a.state->lowest, a.most[j]);
  if (exponent > MOST_EXPONENT || exponent < -MOST_EXPONENT) a.state->far = 1;
  if (exponent_of(a.least[j]) < exponent - MOST_REACH) a.state->uneven = 1;
}

// Scales the columns of the whole matrix; `undoes`: of U.
extern "C" __global__ void __launch_bounds__(LU_THREADS) scale_columns(const __grid_constant__ LuArguments a) {
  if (!scales_columns(*a.state)) return;
  for (i64 i = blockIdx.x; i < a.n; i += gridDim.x)
    for (i64 j = (a.undoes ? i : 0) + threadIdx.x; j < a.n; j += LU_THREADS) {
      const int exponent = scaling_exponent(a.most[j]);
      a.a[i * a.stride + j] *= two_to(a.undoes ? exponent : -exponent);
    }
}

// The least of the rows' largest values; a warp a row.
extern "C" __global__ void __launch_bounds__(LU_THREADS) find_rows(const __grid_constant__ LuArguments a) {
  const i64 i = (i64)blockIdx.x * (LU_THREADS / 32) + threadIdx.x / 32;
  if (i >= a.n) return;
  u32 most = 0;
#pragma unroll 8
  for (i64 j = threadIdx.x % 32; j < a.n; j += 32) most = max(most, magnitude(a.a[i * a.stride + j]));
  most = warp_most(most);
  if (threadIdx.x % 32 == 0 && most != 0) atomicMin(&a.state->least, most);
}

extern "C" __global__ void __launch_bounds__(LU_THREADS) start_block(const __grid_constant__ LuArguments a) {
  const i64 i = (i64)blockIdx.x * LU_THREADS + threadIdx.x;
  if (i >= a.n) return;
  a.order[i] = (int)i;
  if (a.first == 0) a.permutation[i] = (int)i;
  a.least[i] = 0;
  if (i == 0) a.state->strays = 0;
}

// ---- rows change places ---------------------------------------------------------------------------------------------
#define SWAP_WARPS (LU_THREADS / 32)
#define SWAP_ROWS (LU_WIDTH / SWAP_WARPS)  // of a warp

// The order of the block's rows; a lane a row of the panel.
MERCER_INLINE void swap_order(const LuArguments& a) {
  const int lane = threadIdx.x;
  int* order = a.order + a.column;
  if (lane >= LU_WIDTH) return;
  const bool is_row = lane < a.width;
  const int to = is_row ? a.to[lane] : -1;
  const int first = order[is_row ? a.from[lane] : 0], displaced = order[is_row ? lane : 0];
  __syncwarp();
  if (is_row) order[lane] = first;
  if (to >= 0) order[to] = displaced;
}

// 32 columns of the block: the rows that the panel's pivots moved; on the panel's right, L^-1 of the first ones, by one
// warp. All that moves is read before anything is written. The last block has the order of the rows.
extern "C" __global__ void __launch_bounds__(LU_THREADS) swap_panel(const __grid_constant__ LuArguments a) {
  __shared__ __align__(16) float factors[LU_WIDTH][LU_WIDTH];
  __shared__ float solved[LU_WIDTH][32];
  const int lane = threadIdx.x % 32, own_row = threadIdx.x / 32 * SWAP_ROWS;
  const i64 at = (i64)blockIdx.x * 32 + lane, c = at < a.column ? at : at + a.width;
  const float* const corner = a.a + (a.first + a.column) * (a.stride + 1);
  float* const column = a.a + (a.first + a.column) * a.stride + a.first + c;
  wait_for_kernel_ahead();
  if (blockIdx.x == gridDim.x - 1) return swap_order(a);
  const bool has_column = c < a.block;
  int to[SWAP_ROWS];
  float first[SWAP_ROWS], displaced[SWAP_ROWS], factor[SWAP_ROWS];
#pragma unroll
  for (int r = 0; r < SWAP_ROWS; ++r) {
    const int k = own_row + r;
    const bool is_row = k < a.width;
    const int from = is_row ? a.from[k] : 0;
    to[r] = is_row ? a.to[k] : -1;
    first[r] = has_column ? column[from * a.stride] : 0.0f;
    displaced[r] = has_column && is_row ? column[k * a.stride] : 0.0f;
    factor[r] = lane < k && is_row ? corner[k * a.stride + lane] : 0.0f;
  }
#pragma unroll
  for (int r = 0; r < SWAP_ROWS; ++r) {
    factors[lane][place_behind<LU_WIDTH>(own_row + r, lane)] = factor[r];
    solved[own_row + r][lane] = first[r];
  }
  __syncthreads();
  if (!has_column) return;
  const bool solves = c >= a.column;
#pragma unroll
  for (int r = 0; r < SWAP_ROWS; ++r) {
    if (to[r] >= 0) column[to[r] * a.stride] = displaced[r];
    if (!solves && own_row + r < a.width) column[(own_row + r) * a.stride] = first[r];
  }
  if (!solves || threadIdx.x >= 32) return;
  float x[LU_WIDTH];
#pragma unroll
  for (int k = 0; k < LU_WIDTH; ++k) x[k] = solved[k][lane];
  substitute_down<LU_WIDTH, LU_WIDTH>(x, factors[0], a.width, [&](int k, float v) { column[k * a.stride] = v; });
}

#define JOIN_ROWS 64
#define JOIN_COLUMNS 64
#define JOIN_PITCH 4  // beyond a row of shared memory: vectors of neighbouring rows meet in no bank

// Four values of a row, those after the first `count` zero.
MERCER_INLINE Pack<float, 4> load_four(const float* from, i64 count) {
  if (count >= 4) return *(const Pack<float, 4>*)from;
  Pack<float, 4> four = {};
#pragma unroll
  for (int c = 0; c < 3; ++c)
    if (c < count) four.value[c] = from[c];
  return four;
}

// The block's columns on the right of a panel, below it, 64 x 64 of them: A -= L U, 4 x 4 values a thread. What is read
// and written lies in the second-level cache, so all that a thread needs is on its way before it waits.
extern "C" __global__ void __launch_bounds__(LU_THREADS) update_block(const __grid_constant__ LuArguments a) {
  __shared__ __align__(16) float l[JOIN_ROWS][LU_WIDTH + JOIN_PITCH], u[LU_WIDTH][JOIN_COLUMNS + JOIN_PITCH];
  constexpr int kRows = JOIN_ROWS / 16, kL = JOIN_ROWS * LU_WIDTH / 4 / LU_THREADS,
                kU = LU_WIDTH * JOIN_COLUMNS / 4 / LU_THREADS;
  const i64 corner = a.first + a.column, top = corner + a.width + (i64)blockIdx.x * JOIN_ROWS;
  const i64 left = corner + a.width + (i64)blockIdx.y * JOIN_COLUMNS, end = a.first + a.block;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  Pack<float, 4> own[kRows], of_l[kL], of_u[kU];
  wait_for_kernel_ahead();
#pragma unroll
  for (int v = 0; v < kL; ++v) {
    const int row = (v * LU_THREADS + threadIdx.x) / 8, k = threadIdx.x % 8 * 4;
    of_l[v] = load_four(a.a + (top + row) * a.stride + corner + k, top + row < a.n ? a.width - k : 0);
  }
#pragma unroll
  for (int v = 0; v < kU; ++v) {
    const int k = v * 16 + ty;
    of_u[v] = load_four(a.a + (corner + k) * a.stride + left + 4 * tx, k < a.width ? end - left - 4 * tx : 0);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const i64 row = top + 16 * r + ty;
    own[r] = load_four(a.a + row * a.stride + left + 4 * tx, row < a.n ? end - left - 4 * tx : 0);
  }
#pragma unroll
  for (int v = 0; v < kL; ++v)
    *(Pack<float, 4>*)&l[(v * LU_THREADS + threadIdx.x) / 8][threadIdx.x % 8 * 4] = of_l[v];
#pragma unroll
  for (int v = 0; v < kU; ++v) *(Pack<float, 4>*)&u[v * 16 + ty][4 * tx] = of_u[v];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < LU_WIDTH; k += 4) {
    Pack<float, 4> right[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) right[i] = *(const Pack<float, 4>*)&u[k + i][4 * tx];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Pack<float, 4> factors = *(const Pack<float, 4>*)&l[16 * r + ty][k];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          own[r].value[c] = __fmaf_rn(-factors.value[i], right[i].value[c], own[r].value[c]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const i64 row = top + 16 * r + ty;
    float* const to = a.a + row * a.stride + left + 4 * tx;
    if (row >= a.n) continue;
    if (left + 4 * tx + 4 <= end) {
      *(Pack<float, 4>*)to = own[r];
    } else {
#pragma unroll
      for (int c = 0; c < 3; ++c)
        if (left + 4 * tx + c < end) to[c] = own[r].value[c];
    }
  }
}

// Makes the same two lists as a panel's from the order of the block's rows.
extern "C" __global__ void __launch_bounds__(LU_THREADS) list_moves(const __grid_constant__ LuArguments a) {
  const i64 i = (i64)blockIdx.x * LU_THREADS + threadIdx.x;
  if (i >= a.n - a.first) return;
  const int from = a.order[i];
  if (i < a.block) a.block_from[i] = from;
  if (from < a.block) a.block_to[from] = i < a.block ? -1 : (int)i;
}

#define SWAP_THREADS 512
#define SWAP_COLUMNS 16  // of a block
#define SWAP_PASSES 16   // of 128 rows, up to 2 x 1024

struct Move {
  i64 from, to;  // to < 0: none
};
MERCER_INLINE Move block_move(const LuArguments& a, int at) {
  if (at < a.block) return {a.block_from[at], at};
  return at < 2 * a.block ? Move{at - a.block, a.block_to[at - a.block]} : Move{0, -1};
}

// Sixteen columns that are not the block's: all that moves is in registers before it is written. The last block has the
// permutation of the matrix.
extern "C" __global__ void __launch_bounds__(SWAP_THREADS) swap_block(const __grid_constant__ LuArguments a) {
  if (blockIdx.x == gridDim.x - 1) {
    int* rows = a.permutation + a.first;
    int moved[4];
#pragma unroll
    for (int pass = 0; pass < 4; ++pass) moved[pass] = rows[block_move(a, threadIdx.x + pass * SWAP_THREADS).from];
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < 4; ++pass) {
      const Move move = block_move(a, threadIdx.x + pass * SWAP_THREADS);
      if (move.to >= 0) rows[move.to] = moved[pass];
    }
    return;
  }
  const i64 at = (i64)blockIdx.x * SWAP_COLUMNS + threadIdx.x % 4 * 4, j = at < a.first ? at : at + a.block;
  float* const columns = a.a + a.first * a.stride + j;
  const int row = threadIdx.x / 4;
  Pack<float, 4> moved[SWAP_PASSES];
#pragma unroll
  for (int pass = 0; pass < SWAP_PASSES; ++pass) {
    if (pass * 128 >= 2 * a.block) break;
    const Move move = block_move(a, row + pass * 128);
    const float* from = columns + move.from * a.stride;
    if (move.to < 0) continue;
    if (j + 4 <= a.n) {
      moved[pass] = *(const Pack<float, 4>*)from;
    } else {
#pragma unroll
      for (int c = 0; c < 3; ++c)
        if (j + c < a.n) moved[pass].value[c] = from[c];
    }
  }
  __syncthreads();
#pragma unroll
  for (int pass = 0; pass < SWAP_PASSES; ++pass) {
    if (pass * 128 >= 2 * a.block) break;
    const Move move = block_move(a, row + pass * 128);
    float* to = columns + move.to * a.stride;
    if (move.to < 0) continue;
    if (j + 4 <= a.n) {
      *(Pack<float, 4>*)to = moved[pass];
    } else {
#pragma unroll
      for (int c = 0; c < 3; ++c)
        if (j + c < a.n) to[c] = moved[pass].value[c];
    }
  }
}

// Right-hand sides, by columns.
extern "C" __global__ void __launch_bounds__(LU_THREADS) gather_rows(const __grid_constant__ LuArguments a) {
  const i64 i = (i64)blockIdx.x * LU_THREADS + threadIdx.x;
  if (i >= a.n) return;
  const i64 from = a.permutation[i];
  for (i64 j = blockIdx.y; j < a.count; j += gridDim.y) a.columns[i + j * a.n] = a.given[from + j * a.n];
}

// ---- the update -----------------------------------------------------------------------------------------------------
// The largest values of rows of U12; a block a row.
extern "C" __global__ void __launch_bounds__(LU_THREADS) find_exponents(const __grid_constant__ LuArguments a) {
  __shared__ u32 most[LU_THREADS / 32];
  const float* row = a.a + (a.first + blockIdx.x) * a.stride;
  u32 own = 0;
#pragma unroll 8
  for (i64 j = a.first + a.block + threadIdx.x; j < a.n; j += LU_THREADS) own = max(own, magnitude(row[j]));
  own = warp_most(own);
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  own = warp_most(threadIdx.x < LU_THREADS / 32 ? most[threadIdx.x] : 0u);
  if (threadIdx.x == 0) a.exponents[blockIdx.x] = scaling_exponent(own);
}

// L21 S, a warp a row.
extern "C" __global__ void __launch_bounds__(LU_THREADS) write_operands_l(const __grid_constant__ LuArguments a) {
  const i64 i = (i64)blockIdx.x * (LU_THREADS / 32) + threadIdx.x / 32, rest = a.n - a.first - a.block;
  if (i >= rest) return;
  const float* from = a.a + (a.first + a.block + i) * a.stride + a.first;
  u32 most = 0;
#pragma unroll 4
  for (int k = threadIdx.x % 32; k < a.block; k += 32) {
    const float value = from[k] * two_to(a.exponents[k]);
    a.l[i * a.block + k] = value;
    most = max(most, magnitude(value));
  }
  most = warp_most(most);
  if (threadIdx.x % 32 != 0) return;
  const bool stray = is_stray(float_of(most), is_tame(*a.state));
  a.stray_rows[i] = stray;
  if (stray) a.state->strays = 1;
}

// S^-1 U12: 32 rows of 256 columns.
extern "C" __global__ void __launch_bounds__(LU_THREADS) write_operands_u(const __grid_constant__ LuArguments a) {
  const i64 j = (i64)blockIdx.x * LU_THREADS + threadIdx.x, rest = a.n - a.first - a.block;
  if (j >= rest) return;
  u32 most = 0;
#pragma unroll 8
  for (int k = blockIdx.y * 32; k < min((int)blockIdx.y * 32 + 32, a.block); ++k) {
    const float value = a.a[(a.first + k) * a.stride + a.first + a.block + j] * two_to(-a.exponents[k]);
    a.u[k * rest + j] = value;
    most = max(most, magnitude(value));
  }
  atomicMax(&a.least[j], most);
}

extern "C" __global__ void __launch_bounds__(LU_THREADS) judge_strays(const __grid_constant__ LuArguments a) {
  const i64 j = (i64)blockIdx.x * LU_THREADS + threadIdx.x;
  if (j >= a.n - a.first - a.block) return;
  const bool stray = is_stray(float_of(a.least[j]), is_tame(*a.state));
  a.stray_columns[j] = stray;
  if (stray) a.state->strays = 1;
}

#define STRAY_TILE 64
#define STRAY_DEPTH 16

// A22 -= L21 U12 of strays, in floats, 64 x 64 pairs at a time, 4 x 4 a thread.
extern "C" __global__ void __launch_bounds__(LU_THREADS) update_strays(const __grid_constant__ LuArguments a) {
  __shared__ float l[STRAY_DEPTH][STRAY_TILE + 1], u[STRAY_DEPTH][STRAY_TILE];
  if (a.state->strays == 0) return;
  const i64 begin = a.first + a.block, rest = a.n - begin;
  const u32 tiles = (u32)((rest + STRAY_TILE - 1) / STRAY_TILE);
  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  for (u32 tile = blockIdx.x; tile < tiles * tiles; tile += gridDim.x) {
    const i64 top = (i64)(tile / tiles) * STRAY_TILE, left = (i64)(tile % tiles) * STRAY_TILE;
    const i64 own = (threadIdx.x < STRAY_TILE ? top : left) + threadIdx.x % STRAY_TILE;
    const u8* strays = threadIdx.x < STRAY_TILE ? a.stray_rows : a.stray_columns;
    if (!__syncthreads_or(threadIdx.x < 2 * STRAY_TILE && own < rest && strays[own])) continue;
    float sum[4][4] = {};
    for (int k0 = 0; k0 < a.block; k0 += STRAY_DEPTH) {
#pragma unroll
      for (int at = threadIdx.x; at < STRAY_TILE * STRAY_DEPTH; at += LU_THREADS) {
        const i64 i = at / STRAY_DEPTH, lk = k0 + at % STRAY_DEPTH, j = at % STRAY_TILE, uk = k0 + at / STRAY_TILE;
        l[at % STRAY_DEPTH][i] =
            top + i < rest && lk < a.block ? a.a[(begin + top + i) * a.stride + a.first + lk] : 0.0f;
        u[at / STRAY_TILE][j] =
            left + j < rest && uk < a.block ? a.a[(a.first + uk) * a.stride + begin + left + j] : 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < STRAY_DEPTH; ++k)
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int c = 0; c < 4; ++c) sum[r][c] = __fmaf_rn(l[k][row + r], u[k][column + c], sum[r][c]);
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const i64 i = top + row + r, j = left + column + c;
        if (i < rest && j < rest && (a.stray_rows[i] || a.stray_columns[j]))
          a.a[(begin + i) * a.stride + begin + j] -= sum[r][c];
      }
  }
}
