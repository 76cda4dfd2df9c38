// Operands of products in float64 (double_precision.cuh), from panels:
//
//   start_doubles → write_image → sample_squares → tiles of pairs
#pragma once

#include "common/arguments.h"
#include "common/double_precision.cuh"
#include "common/prelude.cuh"
#include "pack/centre.cuh"
#include "pack/operand_values.cuh"

#define OPERAND_THREADS 256
#define OPERAND_POINTS 16
#define OPERAND_FEATURES (OPERAND_THREADS / OPERAND_POINTS)

// 64 points for a centre, two a lane: `value` of them.
template <class Value>
MERCER_INLINE void take_samples(double (&samples)[2], const DoubleArguments& a, const Value& value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const DoubleSide& side = a.side[s == 0 ? 0 : a.sides - 1];
    const i64 place = s == 1 && a.sides == 1 ? lane + 32 : lane, places = a.sides == 1 ? 64 : 32;
    samples[s] = value(side, place * side.count / places);
  }
}

// Centres of the features.
extern "C" __global__ void __launch_bounds__(OPERAND_THREADS)
    start_doubles(const __grid_constant__ DoubleArguments a) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *a.state = {0, 0, 0, a.most_sampled, 1};
    write_scale(a.state, scale_of<double>(a.uniforms));
  }
  const i64 k = centred_feature(OPERAND_THREADS);
  if (k >= a.k) return;
  double samples[2] = {};
  if (SQUARES)
    take_samples(samples, a, [&](const DoubleSide& side, i64 point) { return panel_value(side, a.k, k, point); });
  const double median = median_of(samples);
  if (threadIdx.x % 32 == 0) a.centre[k] = median;
}

// A block has 16 points; a thread one of them and every sixteenth feature. Squares take norms and the values as rows,
// [point][feature], too.
extern "C" __global__ void __launch_bounds__(OPERAND_THREADS) write_image(const __grid_constant__ DoubleArguments a) {
  __shared__ double tile[OPERAND_FEATURES][OPERAND_POINTS + 1];
  const int s = blockIdx.y, p = threadIdx.x % OPERAND_POINTS, f = threadIdx.x / OPERAND_POINTS;
  const DoubleSide& side = a.side[s];
  const i64 first = (i64)blockIdx.x * OPERAND_POINTS;
  if (first >= side.ld) return;
  const int in_panel = (int)(first % MERCER_PANEL) + p;
  const double* panel = side.values + first / MERCER_PANEL * a.k * MERCER_PANEL;
  double* image = side.image + first / MERCER_PANEL * a.image_k * MERCER_PANEL;
  double norm = 0;
#pragma unroll 4
  for (i64 k0 = 0; k0 < a.image_k; k0 += OPERAND_FEATURES) {
    const i64 k = k0 + f;
    const double raw = k < a.k ? panel[k * MERCER_PANEL + in_panel] : 0;
    const double value = k < a.k ? (raw - a.centre[k]) * multiplier<double>(a, s, k) : 0;
    image[k * MERCER_PANEL + place_in_image(in_panel, (int)(k & 3))] = value;
    if (!SQUARES) continue;
    norm = __fma_rn(value, value, norm);
    __syncthreads();
    tile[f][p] = raw;
    __syncthreads();
    side.rows[(first + f) * a.image_k + k0 + p] = tile[p][f];
  }
  if (!SQUARES) return;
  __syncthreads();
  tile[f][p] = norm;
  __syncthreads();
  if (f != 0) return;
  for (int other = 1; other < OPERAND_FEATURES; ++other) norm += tile[other][p];
  side.norms[first + p] = norm;
}

// How many pairs cancel, of a sample spread over rows and columns. A warp a pair.
extern "C" __global__ void __launch_bounds__(OPERAND_THREADS)
    sample_squares(const __grid_constant__ DoubleArguments a) {
  const DoubleSide &x = a.side[0], &z = a.side[a.sides - 1];
  const u32 pair = (blockIdx.x * OPERAND_THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const i64 m = (i64)((u64)pair * (u64)x.count / MERCER_SAMPLED_PAIRS);
  const i64 n = (i64)((u64)((pair + 1) * 2654435761u) * (u64)z.count >> 32);
  double sum = 0;
  for (i64 k = lane; k < a.k; k += 32) {
    const double difference = (x.rows[m * a.image_k + k] - z.rows[n * a.image_k + k]) * multiplier<double>(a, 0, k);
    sum = __fma_rn(difference, difference, sum);
  }
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  const bool cancels = !(sum >= DOUBLE_CANCELS_BELOW * (x.norms[m] + z.norms[n]));
  if (lane == 0 && cancels && a.state->sampled != MERCER_NO_PRODUCTS) atomicAdd(&a.state->sampled, 1u);
}
