// Operands of at most 64 features from points of float32 as they lie, in one kernel, nothing packed before: panels,
// rows, pieces and norms, what pack, find_centre, examine and write_pieces make of more features.
//
// Every block finds all centres by itself, a thread a group of samples: cheaper than a kernel ahead of this one.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "pack/feature_fetch.cuh"
#include "pack/operand_values.cuh"
#include "pack/samples.cuh"
#include "pack/split_operands.cuh"

struct FeatureSamples {
  float values[GROUP_SAMPLES];  // a group of a feature
  MERCER_METHOD explicit FeatureSamples(const SplitArguments& a) {
    static_assert(SPLIT_THREADS == SAMPLE_GROUPS * PIECE_FEATURES);
    const SampledPoints points(a, threadIdx.x / PIECE_FEATURES);
    const SplitSide& side = a.side[points.side];
    const i64 k = threadIdx.x % PIECE_FEATURES;
    const float* from = (const float*)side.points + k * side.feature_stride;
#pragma unroll
    for (int i = 0; i < GROUP_SAMPLES; ++i) values[i] = k < a.k ? from[points.at(i) * side.point_stride] : 0.0f;
  }
  MERCER_METHOD float median() const {
    float medians[GROUP_TRIPLES];
#pragma unroll
    for (int i = 0; i < GROUP_TRIPLES; ++i)
      medians[i] = median_of_three(values[3 * i], values[3 * i + 1], values[3 * i + 2]);
    return median_of_five(medians);
  }
  MERCER_METHOD float farthest(float centre) const {
    float most = 0;
#pragma unroll
    for (const float value : values) most = fmaxf(most, distance_from(centre, value));
    return most;
  }
};

struct PointBlock : PieceBlock {
  double norms[POINT_THREADS][MERCER_IMAGE_ROWS];
  float largest[MERCER_IMAGE_ROWS];
  float medians[SAMPLE_GROUPS][PIECE_FEATURES], farthest[SPLIT_THREADS / 32];  // of samples

  MERCER_METHOD float centre(int k) const {
    return centre_of_groups(medians[0][k], medians[1][k], medians[2][k], medians[3][k]);
  }
  MERCER_METHOD float largest_sampled(float times) const {
    float all = 0;
#pragma unroll
    for (const float of_warp : farthest) all = fmaxf(all, of_warp);
    return all * times;
  }
};

extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) write_points(const __grid_constant__ SplitArguments a) {
  __shared__ PointBlock block;
  const int s = blockIdx.y, p = threadIdx.x / POINT_THREADS, place = threadIdx.x % POINT_THREADS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SplitSide& side = a.side[s];
  const i64 first = (i64)blockIdx.x * MERCER_IMAGE_ROWS;
  const PlainPoints points = points_of(a, s);
  wait_for_kernel_ahead();
  FeatureFetch<PIECE_FEATURES, SPLIT_THREADS> fetch(points, points.points, first);
  fetch.load(0);
  const FeatureSamples samples(a);
  const UniformScale scale = scale_of<float>(a.uniforms);
  const bool is_first = blockIdx.x == 0 && blockIdx.y == 0;
  if (is_first && threadIdx.x == 0) start_state(a, scale);
  clear_areas(a);
  if (first >= side.ld) return;
  fetch.store(block.tile);
  block.medians[threadIdx.x / PIECE_FEATURES][threadIdx.x % PIECE_FEATURES] = samples.median();
  __syncthreads();
  if (threadIdx.x < PIECE_FEATURES) {
    const float centre = block.centre(threadIdx.x);
    block.factors.centres[threadIdx.x] = centre;
    block.factors.times[threadIdx.x] = (float)scale.of_side(s);
    if (is_first && threadIdx.x < a.k) a.centre[threadIdx.x] = centre;
  }
  __syncthreads();
  const float sampled = samples.farthest(block.factors.centres[threadIdx.x % PIECE_FEATURES]);
  const u32 of_warp = __reduce_max_sync(0xffffffffu, bits_of(sampled));
  if (lane == 0) block.farthest[warp] = float_of(of_warp);
  float* values = (float*)side.values + first / MERCER_PANEL * a.k * MERCER_PANEL + first % MERCER_PANEL;
  for (int kk = warp; kk < a.k; kk += SPLIT_THREADS / 32) values[kk * MERCER_PANEL + lane] = block.tile[kk][lane];
  Magnitudes own;
  own.take(block, false);
  const float largest = own.most_of_point(block);
  if (place == 0) block.largest[p] = largest;
  __syncthreads();
  const float top = top_of(a, largest, block.largest[lane]);
  const bool carried = is_carried_with(top, largest);
  const PiecePoint point = point_of(a, side, first, p, carried, a.pieces == 2, top);
  double norm = 0;
  write_values(a, point, block, 0, norm);
  norm = gather_norms(block.norms, norm);
  if (threadIdx.x >= MERCER_IMAGE_ROWS) return;
  write_norm(a, side, first + threadIdx.x, norm, block.largest[threadIdx.x],
             block.largest_sampled(scale.largest(a.sides)));
}
