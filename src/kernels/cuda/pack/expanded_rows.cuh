// Whether pieces of 16 bits lose little enough of every row of expanded squares times many columns of v (expanded.cuh).
// Where the bound by means does not say so of a row, values of some points do: all addends of
//
//   S_e = sum_n 2^(rate |u - w_n|^2) |v_ne|
//
// are positive, so that those of the points seen so far are a bound from below. Pieces of values and of v lose 2^-37 of
// the largest |v| for every point, compared with f(0) (2^-40 of values, times up to 2 from each factor, and 2^-39 of
// v). Points are seen until this is little of each S_e. The expanded tile does not stand where they do not suffice, are
// not likely to, or where a block would see so many that the question costs more than a few hundredths of the tile.
// Rows that are farthest out have the least sums, so each block begins with one of them.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pack/expanded_points.cuh"
#include "pairs/expanded.cuh"

#define COLUMNS_TOGETHER 8
#define BOUND_ROWS 32                 // of a block
#define SEEN_OF_A_ROW 4               // times EXPANDED_THREADS points and COLUMNS_TOGETHER, on average
#define STEPS_OF_A_GUESS 16           // after which what all points will add is guessed,
#define LIKELY 4                      // which has to be so many times as much as is needed
#define PIECES_LOSE_OF_V 0x1.02p-37f  // of the largest |v|; a hundredth for the sums' own roundings

// All threads have a row in turn; those of a warp see neighbours, and each warp a range of the points.
extern "C" __global__ void __launch_bounds__(EXPANDED_THREADS) bound_rows(const __grid_constant__ PairArguments a) {
  constexpr int kWarps = EXPANDED_THREADS / 32;
  __shared__ float sums[kWarps][COLUMNS_TOGETHER];
  __shared__ int stands;
  ExpandedState& state = *a.expanded.state;
  const float left = EXPANDED_TOLERANCE - exponents_lose(state);
  if (threadIdx.x == 0) stands = state.stands;
  __syncthreads();
  if (!stands || pieces_lose(state, sqrtf(float_of(state.most[0]))) <= left) return;
  const float rate = state.rate, least = (float)(a.n + 31) * (PIECES_LOSE_OF_V * float_of(state.most_v)) / left;
  const i64 first = (i64)blockIdx.x * BOUND_ROWS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto place = [&](i64 own) { return own / MERCER_PANEL * a.k * MERCER_PANEL + own % MERCER_PANEL; };
  float u[FEATURES_OF_EXPANDED], norm = 0;
  const auto load = [&](i64 m) {
#pragma unroll
    for (int k = 0; k < FEATURES_OF_EXPANDED; ++k) u[k] = a.x.expanded[place(m) + k * MERCER_PANEL] / (-2 * rate);
  };
  load(first + lane < a.m ? first + lane : a.m - 1);
#pragma unroll
  for (int k = 0; k < FEATURES_OF_EXPANDED; ++k) norm = mul_add(u[k], u[k], norm);
  const bool asks = first + lane < a.m && !(pieces_lose(state, sqrtf(norm) * (1 + 0x1p-20f)) <= left);
  u32 asked = __ballot_sync(0xffffffffu, asks);
  float farthest = norm;
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) farthest = fmaxf(farthest, __shfl_xor_sync(0xffffffffu, farthest, lanes));
  int row = __ffs(__ballot_sync(0xffffffffu, norm == farthest)) - 1;
  const i64 steps = (a.n + EXPANDED_THREADS - 1) / EXPANDED_THREADS;
  i64 may_see = (BOUND_ROWS * SEEN_OF_A_ROW + steps / 4) * ((a.v.columns + COLUMNS_TOGETHER - 1) / COLUMNS_TOGETHER);
  bool suffices = true;
#pragma unroll 1
  for (; asked != 0 && suffices; row = __ffs(asked) - 1) {
    if (!(asked >> row & 1)) continue;
    asked &= ~(1u << row);
    load(first + row);
#pragma unroll 1
    for (int e = 0; e < a.v.columns && suffices; e += COLUMNS_TOGETHER) {
      float own[COLUMNS_TOGETHER] = {};
      bool is_likely = true;
      suffices = false;
#pragma unroll 1
      for (i64 step = 0; step < steps && may_see > 0 && is_likely && !suffices; ++step, --may_see) {
        const i64 n = (warp * steps + step) * 32 + lane;
        if (n < a.n) {
          float square = 0;
#pragma unroll
          for (int k = 0; k < FEATURES_OF_EXPANDED; ++k) {
            const float difference = u[k] - a.z.expanded[place(n) + k * MERCER_PANEL];
            square = mul_add(difference, difference, square);
          }
          const float value = exp2_unit(rate * square);
#pragma unroll
          for (int c = 0; c < COLUMNS_TOGETHER; ++c)
            if (e + c < a.v.columns)
              own[c] = mul_add(value, fabsf(((const REAL*)a.v.data)[(e + c) * a.v.ld + n]), own[c]);
        }
        // To ask takes longer than to see some points: after 1, 2, 4, … steps.
        if ((step & (step + 1)) != 0 && step + 1 < steps && may_see > 1) continue;
#pragma unroll
        for (int c = 0; c < COLUMNS_TOGETHER; ++c) {
          float sum = own[c];
#pragma unroll
          for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
          if (lane == 0) sums[warp][c] = sum;
        }
        if (threadIdx.x == 0) stands = *(volatile int*)&state.stands;
        __syncthreads();
        float least_sum = INFINITY;
        for (int c = 0; c < COLUMNS_TOGETHER && e + c < a.v.columns; ++c) {
          float sum = 0;
          for (int w = 0; w < kWarps; ++w) sum += sums[w][c];
          least_sum = fminf(least_sum, sum);
        }
        const float of_all = least_sum * ((float)steps / (float)(step + 1));
        suffices = stands && least_sum >= least;
        is_likely = stands && (step + 1 < STEPS_OF_A_GUESS || of_all >= LIKELY * least);
        __syncthreads();
      }
    }
  }
  if (!suffices && threadIdx.x == 0) state.stands = 0;
}
