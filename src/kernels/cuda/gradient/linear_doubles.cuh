// Gradient fields in float64 whose factor is linear in x and z: what linear_field.cuh has, by products of float64
// matrices (stored_doubles.cuh). Its letters are those of linear_field.cuh:
//
//   find_centre → examine_columns → weigh_points → write_columns      once for all rows
//   examine_rows → products → finish_rows                             rows by rows
//
// The products have amplitudes as rows and c z' as columns, of each output the features one after the other. S is
// added up as the amplitudes are examined.
//
// Tensor cores round each addition, so the error of a row of n points is about 2^-53 sqrt(n) times
//
//   sqrt(sum over n of (a c |z'|)^2 + (|x'| S)^2)
//
// A row with less than a quarter of that root is marked, and computed by differences. So are rows and columns with
// values that are not finite, or of such sizes that products or squares leave the range.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pack/centre.cuh"

#define LINEAR_THREADS 256
#define LINEAR_WARPS (LINEAR_THREADS / 32)
#define SAMPLE_HALF (CENTRE_SAMPLES / 2)
#define LEAST_CARRIED 0x1p-300
#define MOST_CARRIED 0x1p300
#define MOST_CANCELLED 16.0
#define LEAST_SPREAD 0x1p-900  // below it squares are lost

MERCER_INLINE double centre_of(const LinearDoublesArguments& a, i64 k) { return DIFFERENCE ? a.centre[k] : 0.0; }
// Nothing but zeros, or values whose products keep their digits; false for NaN.
MERCER_INLINE bool is_carried(double largest) {
  return largest == 0 || (largest >= LEAST_CARRIED && largest <= MOST_CARRIED);
}
MERCER_INLINE double largest_of_warp(double value) {
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) value = max_nan(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}
MERCER_INLINE double sum_of_warp(double value) {
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// The median of a sample of both sides, a warp a feature.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
    find_centre(const __grid_constant__ LinearDoublesArguments a) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.refused = 0;
  const i64 k = (i64)blockIdx.x * LINEAR_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (!DIFFERENCE || k >= a.field.k) return;
  const double* x = (const double*)a.field.x + k * a.field.x_ld;
  const double* z = (const double*)a.field.z + k * a.field.z_ld;
  const double samples[2] = {x[lane * a.field.m / SAMPLE_HALF], z[lane * a.field.n / SAMPLE_HALF]};
  const double median = median_of(samples);
  if (lane == 0) a.centre[k] = median;
}

// Whether the products can have each feature of z', then each output's coefficients, a warp each.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
    examine_columns(const __grid_constant__ LinearDoublesArguments a) {
  const i64 at = (i64)blockIdx.x * LINEAR_WARPS + threadIdx.x / 32, o = at - a.field.k;
  if (o >= a.field.outputs) return;
  const double* values = o < 0 ? (const double*)a.field.z + at * a.field.z_ld : a.coefs + o * a.coefs_ld;
  const double centre = o < 0 ? centre_of(a, at) : 0.0;
  double largest = 0;
#pragma unroll 4
  for (i64 n = threadIdx.x % 32; n < a.field.n; n += 32) largest = max_nan(largest, fabs(values[n] - centre));
  if (!is_carried(largest_of_warp(largest))) *a.refused = 1;
}

// lengths[n] = |z'|^2: a block takes 32 points, eight warps the features in turn.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
    weigh_points(const __grid_constant__ LinearDoublesArguments a) {
#if DIFFERENCE
  __shared__ double parts[LINEAR_WARPS][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 n = (i64)blockIdx.x * 32 + lane, own = n < a.field.n ? n : a.field.n - 1;
  double sum = 0;
#pragma unroll 4
  for (i64 k = warp; k < a.field.k; k += LINEAR_WARPS) {
    const double value = ((const double*)a.field.z)[k * a.field.z_ld + own] - a.centre[k];
    sum = mul_add(value, value, sum);
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || n >= a.field.n) return;
#pragma unroll
  for (int w = 1; w < LINEAR_WARPS; ++w) sum += parts[w][lane];
  a.lengths[n] = sum;
#endif
}

// A block has a feature of an output.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
    write_columns(const __grid_constant__ LinearDoublesArguments a) {
  const i64 o = blockIdx.x / a.field.k, k = blockIdx.x % a.field.k;
  const double* c = a.coefs + o * a.coefs_ld;
  const double* z = (const double*)a.field.z + k * a.field.z_ld;
  const double centre = centre_of(a, k);
  double* const column = a.columns + blockIdx.x * a.ld;
  for (i64 n = threadIdx.x; n < a.field.n; n += LINEAR_THREADS) column[n] = c[n] * (z[n] - centre);
}

// Amplitudes of row m, points n and n + 1; nothing after the last one.
MERCER_INLINE Pack<double, 2> row_values(const LinearDoublesArguments& a, i64 m, i64 n) {
  const double* params = a.field.params ? (const double*)a.field.params : (const double*)a.field.numbers;
  Pack<double, 2> pairs[PLANES + 1], result;
#pragma unroll
  for (int p = 0; p < PLANES; ++p)
    pairs[p] =
        *(const Pack<double, 2>*)((const double*)a.field.pair + p * a.field.pair_plane + m * a.field.pair_row + n);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    double own[PLANES + 1];
#pragma unroll
    for (int p = 0; p < PLANES; ++p) own[p] = pairs[p].value[e];
    result.value[e] = n + e < a.field.n ? amplitude(own, params, (double)a.field.k) : 0.0;
  }
  return result;
}

// A warp examines a row: its amplitudes; the largest; S and the sum over n of (a c |z'|)^2 of every output.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
    examine_rows(const __grid_constant__ LinearDoublesArguments a) {
  const i64 m = (i64)blockIdx.x * LINEAR_WARPS + threadIdx.x / 32;
  if (m >= a.field.m) return;
  double largest = 0, sum[PASS] = {}, spread[PASS] = {};
#pragma unroll 2
  for (i64 n = threadIdx.x % 32 * 2; n < a.field.n; n += 64) {
    const Pack<double, 2> own = row_values(a, m, n);
    if (STORES_AMPLITUDES) store_pack(a.amplitudes + m * a.ld + n, own);
#pragma unroll
    for (int e = 0; e < 2; ++e) largest = max_nan(largest, fabs(own.value[e]));
#if DIFFERENCE
    const Pack<double, 2> lengths = *(const Pack<double, 2>*)(a.lengths + n);
#pragma unroll
    for (int o = 0; o < PASS; ++o) {
      if (o >= a.field.outputs) break;
      const Pack<double, 2> c = *(const Pack<double, 2>*)(a.coefs + o * a.coefs_ld + n);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (n + e >= a.field.n) continue;
        const double weight = own.value[e] * c.value[e];
        sum[o] += weight;
        spread[o] = mul_add(weight * weight, lengths.value[e], spread[o]);
      }
    }
#endif
  }
  largest = largest_of_warp(largest);
  const int lane = threadIdx.x % 32;
  if (lane == 0) a.row_largest[m] = largest;
#pragma unroll
  for (int o = 0; DIFFERENCE && o < PASS; ++o) {
    if (o >= a.field.outputs) break;
    const double all = sum_of_warp(sum[o]), squares = sum_of_warp(spread[o]);
    if (lane != 0) continue;
    a.row_sums[o * a.rows_ld + m] = all;
    a.row_spread[o * a.rows_ld + m] = squares;
  }
}

// Stores an output's row by a warp. Whether its error is small enough.
MERCER_INLINE bool finish_row(const LinearDoublesArguments& a, i64 m, int o) {
  const FieldArguments& f = a.field;
  const double* products = a.products + m * a.products_ld + (i64)o * f.k;
  double* const out = (double*)f.out + o * f.out_output + m * f.out_row;
  const double row_sum = DIFFERENCE ? a.row_sums[o * a.rows_ld + m] : 0.0;
  double point = 0, field = 0, largest = 0;
  for (i64 k = threadIdx.x % 32; k < f.k; k += 32) {
    double product = products[k];
    for (int s = 1; s < a.splits; ++s) product += products[s * a.products_split + k];
    const double x = DIFFERENCE ? a.x_rows[m * a.x_row + k] - a.centre[k] : 0.0;
    const double value = DIFFERENCE ? x * row_sum - product : product;
    point = mul_add(x, x, point);
    field = mul_add(value, value, field);
    largest = max_nan(largest, fabs(value));
    out[k * f.out_feature] = value * (WEIGHTED ? SCALE * weight_of(((const double*)f.w)[k]) : SCALE);
  }
  if (!DIFFERENCE) return true;
  point = sum_of_warp(point);
  field = sum_of_warp(field);
  largest = largest_of_warp(largest);
  const double spread = a.row_spread[o * a.rows_ld + m];
  return field < INFINITY && spread + point * (row_sum * row_sum) <= MOST_CANCELLED * field &&
         (spread >= LEAST_SPREAD || largest == 0);
}

// A warp a row, all outputs.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
    finish_rows(const __grid_constant__ LinearDoublesArguments a) {
  const i64 m = (i64)blockIdx.x * LINEAR_WARPS + threadIdx.x / 32;
  if (m >= a.field.m) return;
  bool stands = *a.refused == 0 && is_carried(a.row_largest[m]);
  for (int o = 0; o < a.field.outputs; ++o) stands = finish_row(a, m, o) && stands;
  const i64 groups = (a.field.k + 63) / 64;
  for (i64 group = threadIdx.x % 32; group < groups; group += 32) a.marks[m * groups + group] = !stands;
}
