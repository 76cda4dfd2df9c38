// Values of points as they are as integers, in two kernels, nothing packed before. Ranges, integers, errors and the
// sample are those of quantise.cuh to the bit:
//
//   find_ranges      a range of what each block reads; the state starts
//   allow            (allowance.cuh)
//   quantise_points  panels of values and of integers, errors; a sample of pairs
//
// The second one has asked for its first features before it waits for the kernels ahead, none of which writes points.
//   POINT  element type of the points
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "pack/feature_fetch.cuh"
#include "pack/panel_range.cuh"
#include "pack/quantised_steps.cuh"

#define RANGE_THREADS 512
#define POINTS_THREADS 512
#define POINTS_WARPS (POINTS_THREADS / 32)
#define POINTS_DEPTH 256  // features on their way at once
#define SAMPLE_ROWS (POINTS_THREADS / SAMPLE_POINTS)
#define RESIDUAL_ROWS 64  // features apart of those whose residuals are added up first, as in quantise.cuh
#define RESIDUALS (RESIDUAL_ROWS / POINTS_WARPS)

extern "C" __global__ void __launch_bounds__(RANGE_THREADS, 3)
    find_ranges(const __grid_constant__ QuantisePointsArguments a) {
  wait_for_kernel_ahead();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *a.mixed.state = {0, 0, 0, 0, a.capacity, {0, 0}, 0};
  const PlainPoints& points = a.points[blockIdx.y];
  ThreadRange range;
  read_points(points, blockIdx.x, gridDim.x, [&](float value) { range.include(value); });
  range.gather<RANGE_THREADS>();
  if (threadIdx.x == 0) a.of_blocks[blockIdx.y * gridDim.x + blockIdx.x] = {range.low, range.high, range.place};
}

// A warp finds the range; the first one of all blocks keeps it.
MERCER_INLINE PanelRange range_of_blocks(const QuantisePointsArguments& a) {
  constexpr int kTogether = 5;
  ThreadRange lanes;
  for (int first = threadIdx.x % 32; first < a.range_blocks; first += 32 * kTogether) {
    PanelRange own[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) own[i] = a.of_blocks[min(first + 32 * i, a.range_blocks - 1)];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) lanes.include(own[i]);
  }
  const PanelRange range = lanes.of_warp();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    keep_step(a.mixed, range);
    for (int s = 0; s < a.mixed.sides; ++s) a.ranges[s] = range;
  }
  return range;
}

MERCER_INLINE void sample_points(const QuantisePointsArguments& a, int block) {
  __shared__ float sums[SAMPLE_ROWS][SAMPLE_POINTS];
  const PlainPoints &x = a.points[0], &z = a.points[a.mixed.sides - 1];
  const bool along_k = FeatureFetch<POINTS_DEPTH, POINTS_THREADS>::lies_along_k(x);
  const int point = along_k ? threadIdx.x / SAMPLE_ROWS : threadIdx.x % SAMPLE_POINTS;
  const int row = along_k ? threadIdx.x % SAMPLE_ROWS : threadIdx.x / SAMPLE_POINTS;
  const SampledPair pair = sampled_pair(a.mixed, block, point);
  const POINT* x_values = (const POINT*)x.points + pair.m * x.point_stride;
  const POINT* z_values = (const POINT*)z.points + pair.n * z.point_stride;
  float sum = 0;
#pragma unroll 16
  for (i64 k = row; k < x.k; k += SAMPLE_ROWS)
    sum += fabsf(widen<float>(x_values[k * x.feature_stride]) - widen<float>(z_values[k * z.feature_stride]));
  sums[row][point] = sum;
  wait_for_kernel_ahead();
  __syncthreads();
  if (threadIdx.x >= SAMPLE_POINTS) return;
  const PanelRange range = range_of_blocks(a);
  if (step_of(range) == 0) return;
  sum = sums[0][threadIdx.x];
#pragma unroll
  for (int r = 1; r < SAMPLE_ROWS; ++r) sum += sums[r][threadIdx.x];
  judge_pair(a.mixed, range, sum);
}

// The features of 32 points in shared memory; then the sums of residuals of every sixty-fourth feature, in its place.
union PointsShared {
  POINT tile[POINTS_DEPTH][FETCHED_POINTS + 1];
  struct {
    double rows[RESIDUAL_ROWS][FETCHED_POINTS], quads[RESIDUAL_ROWS / 4][FETCHED_POINTS];
  } residual;
};

// Rows kk, kk + POINTS_WARPS … of the tile, a value a thread.
template <bool WHOLE>
MERCER_INLINE void write_rows(const POINT (&tile)[POINTS_DEPTH][FETCHED_POINTS + 1], int kk, int depth, float* values,
                              float* quantised, const Steps& steps, double (&residual)[RESIDUALS]) {
#pragma unroll
  for (int r = 0; r < RESIDUALS; ++r) {
    if (!WHOLE && kk + r * POINTS_WARPS >= depth) break;
    const float value = widen<float>(tile[kk + r * POINTS_WARPS][threadIdx.x % 32]);
    values[r * POINTS_WARPS * MERCER_PANEL] = value;
    const float q = steps.nearest(value, residual[r]);
    if (steps.step > 0) quantised[r * POINTS_WARPS * MERCER_PANEL] = q;
  }
}

MERCER_INLINE void quantise_block(const QuantisePointsArguments& a, i64 first) {
  __shared__ __align__(16) PointsShared shared;
  __shared__ Steps shared_steps;
  const PlainPoints& points = a.points[blockIdx.y];
  const MixedSide& side = a.mixed.side[blockIdx.y];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 place = first / MERCER_PANEL * points.k * MERCER_PANEL + first % MERCER_PANEL + lane;
  float* values = (float*)side.values + place + warp * MERCER_PANEL;
  float* quantised = side.quantised + (values - side.values);
  double residual[RESIDUALS] = {};
  for (i64 k0 = 0; k0 < points.k; k0 += POINTS_DEPTH) {
    FeatureFetch<POINTS_DEPTH, POINTS_THREADS> fetch(points, points.points, first);
    fetch.load((int)k0);
    fetch.store(shared.tile);
    if (k0 == 0) {
      wait_for_kernel_ahead();
      if (warp == 0) {
        const PanelRange range = range_of_blocks(a);
        if (lane == 0) shared_steps = steps_of(range);
      }
    }
    __syncthreads();
    const Steps steps = shared_steps;
    const int depth = points.k - k0 < POINTS_DEPTH ? (int)(points.k - k0) : POINTS_DEPTH;
#pragma unroll 1
    for (int kk = warp; kk < depth; kk += RESIDUAL_ROWS) {
      if (kk + RESIDUAL_ROWS - POINTS_WARPS < depth)
        write_rows<true>(shared.tile, kk, depth, values, quantised, steps, residual);
      else
        write_rows<false>(shared.tile, kk, depth, values, quantised, steps, residual);
      values += RESIDUAL_ROWS * MERCER_PANEL;
      quantised += RESIDUAL_ROWS * MERCER_PANEL;
    }
    __syncthreads();
  }
  if (!(shared_steps.step > 0)) return;
#pragma unroll
  for (int r = 0; r < RESIDUALS; ++r) shared.residual.rows[warp + r * POINTS_WARPS][lane] = residual[r];
  __syncthreads();
  const auto& rows = shared.residual.rows;
  shared.residual.quads[warp][lane] =
      (rows[4 * warp][lane] + rows[4 * warp + 1][lane]) + (rows[4 * warp + 2][lane] + rows[4 * warp + 3][lane]);
  __syncthreads();
  if (warp > 0) return;
  double sum = 0;
#pragma unroll
  for (int quad = 0; quad < RESIDUAL_ROWS / 4; ++quad) sum += shared.residual.quads[quad][lane];
  keep_errors(a.mixed, side, first, sum);
}

// Blocks of both sides' points, one a multiprocessor of small calls, and those of the sample.
extern "C" __global__ void __launch_bounds__(POINTS_THREADS, 2)
    quantise_points(const __grid_constant__ QuantisePointsArguments a) {
  const i64 block = blockIdx.x, sampled = block - (gridDim.x - a.mixed.sampled_blocks);
  if (sampled >= 0) {
    if (blockIdx.y == 0) sample_points(a, (int)sampled);
  } else if (block * MERCER_QUANTISED < a.mixed.side[blockIdx.y].ld) {
    quantise_block(a, block * MERCER_QUANTISED);
  }
}
