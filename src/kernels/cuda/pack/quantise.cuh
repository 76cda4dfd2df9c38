// Values of both sides as integers of 23 bits, and whether sums of them will do (mixed.cuh). Panels in, panels out, for
// batches and for what formulas make of points; points as they are have kernels of their own (quantise_points.cuh):
//
//   start_mixed → pack (panel_range.cuh) → allow (allowance.cuh) → quantise, and of matrices a sample of pairs
//     matrices → quantised tile → repairs, or the tile of the values themselves
//     products → quantised tile, or that of the values
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "pack/quantised_steps.cuh"

#define START_THREADS 256
#define QUANTISE_THREADS 512
#define QUADS (MERCER_QUANTISED / 4)
#define QUANTISE_ROWS (QUANTISE_THREADS / QUADS)
#define QUANTISE_WARPS (QUANTISE_THREADS / 32)
#define SAMPLE_ROWS (QUANTISE_THREADS / SAMPLE_POINTS)

extern "C" __global__ void __launch_bounds__(START_THREADS)
    start_mixed(const __grid_constant__ StartMixedArguments a) {
  wait_for_kernel_ahead();
  const i64 first = (i64)blockIdx.x * START_THREADS + threadIdx.x, step = (i64)gridDim.x * START_THREADS;
  for (i64 i = first; i < a.range_count; i += step) a.ranges[i] = {0xffffffffu, 0u, 0x7fffffff};
  for (i64 i = first; i < a.state_count; i += step) a.states[i] = {0, 0, 0, 0, a.capacity, {0, 0}, 0};
}

MERCER_INLINE PanelRange range_of_both(const MixedArguments& a) {
  const PanelRange x = *a.side[0].range, z = *a.side[a.sides - 1].range;
  return {min(x.low, z.low), max(x.high, z.high), min(x.place, z.place)};
}

// 8 threads take four points each, so many features at once.
MERCER_INLINE void quantise_panels(const MixedArguments& a, const MixedSide& side, i64 first, const PanelRange& range) {
  __shared__ double residuals[QUANTISE_WARPS][MERCER_QUANTISED];
  const int quad = threadIdx.x % QUADS, row = threadIdx.x / QUADS;
  const i64 place = first / MERCER_PANEL * a.k * MERCER_PANEL + first % MERCER_PANEL + quad * 4;
  const float* from = side.values + place;
  float* to = side.quantised + place;
  const Steps steps = steps_of(range);
  double residual[4] = {};
#pragma unroll 4
  for (i64 k = row; k < a.k; k += QUANTISE_ROWS) {
    Pack<float, 4> values = *(const Pack<float, 4>*)(from + k * MERCER_PANEL);
#pragma unroll
    for (int c = 0; c < 4; ++c) values.value[c] = steps.nearest(values.value[c], residual[c]);
    *(Pack<float, 4>*)(to + k * MERCER_PANEL) = values;
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
#pragma unroll
    for (int lanes = QUADS; lanes < 32; lanes *= 2) residual[c] += __shfl_xor_sync(0xffffffffu, residual[c], lanes);
    if (threadIdx.x % 32 < QUADS) residuals[threadIdx.x / 32][quad * 4 + c] = residual[c];
  }
  __syncthreads();
  if (threadIdx.x >= MERCER_QUANTISED) return;
  double sum = 0;
#pragma unroll
  for (int warp = 0; warp < QUANTISE_WARPS; ++warp) sum += residuals[warp][threadIdx.x];
  keep_errors(a, side, first, sum);
}

// Samples pairs of panels.
MERCER_INLINE void sample_pairs(const MixedArguments& a, const PanelRange& range, int block) {
  __shared__ float sums[SAMPLE_ROWS][SAMPLE_POINTS];
  const MixedSide &x = a.side[0], &z = a.side[a.sides - 1];
  const int point = threadIdx.x % SAMPLE_POINTS, row = threadIdx.x / SAMPLE_POINTS;
  const SampledPair pair = sampled_pair(a, block, point);
  const float* x_values = x.values + pair.m / MERCER_PANEL * a.k * MERCER_PANEL + pair.m % MERCER_PANEL;
  const float* z_values = z.values + pair.n / MERCER_PANEL * a.k * MERCER_PANEL + pair.n % MERCER_PANEL;
  float sum = 0;
#pragma unroll 16
  for (i64 k = row; k < a.k; k += SAMPLE_ROWS) sum += fabsf(x_values[k * MERCER_PANEL] - z_values[k * MERCER_PANEL]);
  sums[row][point] = sum;
  __syncthreads();
  if (row > 0) return;
#pragma unroll
  for (int r = 1; r < SAMPLE_ROWS; ++r) sum += sums[r][point];
  judge_pair(a, range, sum);
}

// Blocks of both sides' points, then those of the sample.
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS) quantise(const __grid_constant__ MixedArguments a) {
  wait_for_kernel_ahead();
  const PanelRange range = range_of_both(a);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) keep_step(a, range);
  if (step_of(range) == 0) return;
  const MixedSide& side = a.side[blockIdx.y];
  const i64 block = blockIdx.x, sampled = block - (gridDim.x - a.sampled_blocks);
  if (sampled >= 0) {
    if (blockIdx.y == 0) sample_pairs(a, range, (int)sampled);
  } else if (block * MERCER_QUANTISED < side.ld) {
    quantise_panels(a, side, block * MERCER_QUANTISED, range);
  }
}
