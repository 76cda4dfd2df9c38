// How large powers of a feature's differences are, and whether two pieces of 16 bits carry them (row_units.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gradient/field_rows.cuh"
#include "gradient/row_units.cuh"

struct Range {
  float least, most;  // NaN stays; of nothing infinity and -infinity
  MERCER_METHOD void add(const Range& other) {
    least = min_nan(least, other.least);
    most = max_nan(most, other.most);
  }
};
struct Small {
  i64 all;      // magnitudes below a threshold
  int nonzero;  // of those
};
MERCER_INLINE Range range_of(const float* values, i64 count) {
  Range range = {INFINITY, -INFINITY};
  for (i64 i = threadIdx.x; i < count; i += ROW_THREADS) range.add({values[i], values[i]});
  return range;
}
MERCER_INLINE Small small_of(const float* values, i64 count, float threshold) {
  Small small = {0, 0};
  for (i64 i = threadIdx.x; i < count; i += ROW_THREADS) {
    small.all += fabsf(values[i]) < threshold;
    small.nonzero |= fabsf(values[i]) < threshold && values[i] != 0;
  }
  return small;
}

// A block takes a feature. The largest difference gives the power of two of its powers; `refused` is set where too many
// may be small, or LEAST is. Unlike floats differ by 2^-24 of the lesser one at least: small differences are those of
// small points.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    measure_points(const __grid_constant__ FieldProductArguments a) {
  const i64 k = blockIdx.x;
  const float *x = (const float*)a.field.x + k * a.field.x_ld, *z = (const float*)a.field.z + k * a.field.z_ld;
  __shared__ Range ranges[2][ROW_THREADS / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Range range[2] = {range_of(x, a.field.m), range_of(z, a.field.n)};
#pragma unroll
  for (int side = 0; side < 2; ++side) {
#pragma unroll
    for (int offset = 16; offset >= 1; offset /= 2)
      range[side].add({__shfl_xor_sync(0xffffffffu, range[side].least, offset),
                       __shfl_xor_sync(0xffffffffu, range[side].most, offset)});
    if (lane == 0) ranges[side][warp] = range[side];
  }
  __syncthreads();
#pragma unroll
  for (int side = 0; side < 2; ++side)
    for (int w = 0; w < ROW_THREADS / 32; ++w) range[side].add(ranges[side][w]);
  float largest = max_nan(range[0].most - range[1].least, range[1].most - range[0].least);
  if (BOUNDED) {
    largest = max_nan(largest, LEAST);
    if (threadIdx.x != 0) return;
    a.power_shifts[k] = (int)floorf(POWER_BITS - EXPONENT * log2f(largest));
    if (!is_unit(largest) || LEAST < largest * exp2f(-SMALL_BITS / EXPONENT)) *a.refused = 1;
    return;
  }
  if (largest == 0) {
    if (threadIdx.x == 0) a.power_shifts[k] = 0;
    return;
  }
  const float threshold = fmaxf(largest * LEAST_POINT, 0x1p-100f);
  const Small of_x = small_of(x, a.field.m, threshold), of_z = small_of(z, a.field.n, threshold);
  const bool nonzero = __syncthreads_or(of_x.nonzero || of_z.nonzero);
  __shared__ i64 counts[ROW_THREADS];
  counts[threadIdx.x] = of_z.all;
  __syncthreads();
  if (threadIdx.x != 0) return;
  i64 count = 0;
  for (int i = 0; i < ROW_THREADS; ++i) count += counts[i];
  a.power_shifts[k] = (int)floorf(POWER_BITS - EXPONENT * log2f(largest));
  if (!is_unit(largest) || (nonzero && (float)count * (2 * MOST_OF_MEAN) > (float)a.field.n)) *a.refused = 1;
}
