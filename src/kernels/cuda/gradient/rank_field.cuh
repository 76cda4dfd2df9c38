// A gradient field of a linear factor whose pairs weigh products of two factors, u of the points x and v of the points
// z: what the backward of a product with v asks for. Nothing of the size of the matrix is stored.
//
//   weight[m][n] = sum over e of u[m][e] v[n][e]
//   out[m][k]    = sum over n of a(x_m, z_n) weight[m][n] (x[m][k] - z[n][k])   or z[n][k] in place of the difference
//                = x'[m][k] S[m] - P[m][k]          x' = x - centre, z' = z - centre
//
// with the amplitudes a. P and S are one product with k + 1 columns, z' and 1 (bilinear_tile.cuh, wide_fold.cuh): a
// tile has the sums that amplitudes are made of and the weights in registers, multiplies them, and the result with the
// columns.
//
//   write_factors → write_columns → the tiles of products → finish_rows → what is left, by differences (rank_rows.cuh)
//
// The factors of a point share a power of two, by which the largest comes to lie between 1/2 and 1. That of u is undone
// in the end, that of v in the columns. A single factor takes its place, and there are no weights: then a pass may have
// several outputs, of a factor v each, whose columns follow one another.
//
// x' S - P loses digits where few neighbours of x have all the weight (cancelled_rows.cuh; the tile adds the spread
// up). Such a row is left to differences.
//
// Or the weights are a matrix of the caller's: the tile reads them where they lie, and single factors are ones.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "common/split_precision.cuh"
#include "gradient/cancelled_rows.cuh"
#include "gradient/side_sums.cuh"

#define RANK_THREADS 256
#define FACTOR_THREADS 8    // of write_factors: of a point
#define FINISH_POINTS 32    // rows of a block of finish_rows
#define FINISH_GROUPS (RANK_THREADS / FINISH_POINTS)
#define LEAST_FACTOR 0x1p-50f
#define LEAST_SINGLE 0x1p-100f
#define MOST_SINGLE 0x1p100f
#define MOST_FACTOR 0x1p50f
#define WEIGHT_SAMPLES 8   // of a matrix, of a thread
// Pieces of values below one.
MERCER_INLINE int unit_exponent(float largest) { return piece_exponent(largest) - 15; }

MERCER_INLINE bool is_carried(float largest, float least) {
  return largest == 0 || (largest >= least && largest <= MOST_FACTOR);
}

// The power of two by which samples of a matrix of weights come to lie below one. Were it none, squares of small ones
// would be lost. What is much larger than the samples has infinite squares, and its rows are left to differences.
extern "C" __global__ void __launch_bounds__(RANK_THREADS)
    scale_weights(const __grid_constant__ RankFieldArguments a) {
  __shared__ float most[RANK_THREADS / 32];
  float largest = 0;
#pragma unroll
  for (int s = 0; s < WEIGHT_SAMPLES; ++s) {
    // Rows and columns in steps of their own; both are fewer than 2^31.
    const u32 sample = s * RANK_THREADS + threadIdx.x;
    const i64 m = (u64)(sample * 0x9e3779b1u) * (u64)a.field.m >> 32;
    const i64 n = (u64)(sample * 0x85ebca77u) * (u64)a.field.n >> 32;
    const float value = fabsf(a.weights.data[m * a.weights.row + n * a.weights.column]);
    if (value < INFINITY) largest = fmaxf(largest, value);
  }
#pragma unroll
  for (int lanes = 16; lanes >= 1; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < RANK_THREADS / 32; ++w) largest = fmaxf(largest, most[w]);
  const bool has_power = largest >= LEAST_SINGLE && largest <= MOST_SINGLE;
  *a.weights.scale = has_power ? power_of_two(unit_exponent(largest)) : 1.0f;
}

// Single factors of 32 points, as write_factors: a lane a point, a warp an output.
MERCER_INLINE void write_single(const RankFieldArguments& a, bool of_x, i64 first, i64 count) {
  const int lane = threadIdx.x % 32;
  const i64 point = first + lane, ld = of_x ? a.factors.rows_ld : a.factors.columns_ld;
  const float* factors = of_x ? a.factors.rows : a.factors.columns;
  float* scales = of_x ? a.factors.row_scales : a.factors.column_scales;
  for (int o = threadIdx.x / 32; o < (of_x ? 1 : a.outputs); o += RANK_THREADS / 32) {
    const float value = point >= count ? 0.0f : factors != nullptr ? factors[o * ld + point] : 1.0f;
    scales[o * a.pairs.z.ld + point] = value;
    const bool carried = is_carried(fabsf(value), LEAST_SINGLE);
    if (of_x && a.weights.data != nullptr)
      scales[point] = 1 / *a.weights.scale;
    else if (!carried) a.state->sampled = MERCER_NO_PRODUCTS;
    const u32 most = __reduce_max_sync(0xffffffffu, carried && !of_x ? bits_of(fabsf(value)) : 0u);
    if (lane == 0 && most > 0) atomicMax(a.factors.most + o, most);
  }
}

// Pieces of the factors, u for blockIdx.y = 0, 32 points a block. Factors that cannot be carried leave all rows to
// differences.
extern "C" __global__ void __launch_bounds__(RANK_THREADS)
    write_factors(const __grid_constant__ RankFieldArguments a) {
  const bool of_x = blockIdx.y == 0;
  const i64 first = (i64)blockIdx.x * MERCER_IMAGE_ROWS, count = of_x ? a.field.m : a.field.n;
  if (first >= (of_x ? a.pairs.x.ld : a.pairs.z.ld)) return;
  if (a.factors.units == 0) return write_single(a, of_x, first, count);
  const int p = threadIdx.x / FACTOR_THREADS, place = threadIdx.x % FACTOR_THREADS;
  const i64 point = first + p;
  const float* factors = of_x ? a.factors.rows : a.factors.columns;
  const i64 ld = of_x ? a.factors.rows_ld : a.factors.columns_ld;
  const auto factor = [&](int e) { return e < a.factors.count && point < count ? factors[e * ld + point] : 0.0f; };
  float largest = 0;
  for (int e = place; e < a.factors.count; e += FACTOR_THREADS) largest = max_nan(largest, fabsf(factor(e)));
#pragma unroll
  for (int offset = FACTOR_THREADS / 2; offset >= 1; offset /= 2)
    largest = max_nan(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  const bool carried = is_carried(largest, LEAST_FACTOR);
  const int exponent = carried && largest > 0 ? unit_exponent(largest) : 0;
  const float up = carried ? power_of_two(exponent) : 0.0f;
  if (place == 0) {
    (of_x ? a.factors.row_scales : a.factors.column_scales)[point] = power_of_two(-exponent);
    if (!carried) a.state->sampled = MERCER_NO_PRODUCTS;
    if (!of_x && carried) atomicMax(a.factors.most, bits_of(largest));
  }
  u8* image = (of_x ? a.x_image : a.z_image) + (first * a.units + a.first_unit * MERCER_IMAGE_ROWS) * 128 + p * 128;
  for (int unit = 0; unit < a.factors.units; ++unit) {
    u32 high[2], low[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int e = unit * 32 + place * 4 + c * 2;
      split_pair(factor(e) * up, factor(e + 1) * up, high[c], low[c]);
    }
    write_both(image + unit * (MERCER_IMAGE_ROWS * 128), p, place, high, low);
  }
}

// The powers of two of v divided by the largest of them, which finish_rows undoes.
MERCER_INLINE float largest_column_scale(const RankFieldArguments& a, int output) {
  const float most = float_of(a.factors.most[output]);
  return most > 0 ? power_of_two(-unit_exponent(most)) : 1.0f;
}

// The columns of the product, and the squares of z' times the largest square of an output's factor, a thread a point n.
extern "C" __global__ void __launch_bounds__(RANK_THREADS)
    write_columns(const __grid_constant__ RankFieldArguments a) {
  const i64 n = (i64)blockIdx.x * RANK_THREADS + threadIdx.x, columns = a.field.k + a.difference;
  if (n == 0) a.left[0] = 0;
  if (n >= a.pairs.z.ld) return;
  const float* z = (const float*)a.field.z + n;
  float squares = 0, most = 0, last_times = 0;
#pragma unroll 1
  for (int o = 0; o < a.outputs; ++o) {
    const float times =
        n < a.field.n ? a.factors.column_scales[o * a.pairs.z.ld + n] / largest_column_scale(a, o) : 0.0f;
    float* v = a.columns.v + o * columns * a.columns.ld + n;
    squares = 0;
#pragma unroll 4
    for (i64 k = 0; k < a.field.k; ++k) {
      const float value = n < a.field.n ? z[k * a.field.z_ld] - (a.difference ? a.centre[k] : 0.0f) : 0.0f;
      v[k * a.columns.ld] = value * times;
      squares = mul_add(value, value, squares);
    }
    if (a.difference) v[a.field.k * a.columns.ld] = times;
    most = max_nan(most, fabsf(times));
    last_times = times;
  }
  a.columns.shares[n] = squares * most * most;
  if (a.side.summed + a.side.with_product > 0) a.side.times[n] = last_times;
}

// Sums over the features of a row that say whether it is accurate, by the threads that have some of them.
struct RankSums {
  float point, field, largest;
};

// Stores an output of the block's rows, but for those that fail.
MERCER_INLINE void store_finished(const RankFieldArguments& a, int output, i64 m0, const float* values,
                                  const bool* fails) {
  const FieldArguments& f = a.field;
  const float column_scale = largest_column_scale(a, output), *weights = (const float*)f.w;
  for (i64 at = threadIdx.x; at < FINISH_POINTS * f.k; at += RANK_THREADS) {
    const int r = (int)(at / f.k);
    const i64 k = at % f.k;
    if (m0 + r >= f.m || fails[r]) continue;
    float scale = a.factors.row_scales[m0 + r] * column_scale * a.scale;
    if (WEIGHTED) scale *= weight_of(weights[k]);
    float* out = (float*)f.out + output * f.out_output + (m0 + r) * f.out_row + k * f.out_feature;
    const float value = values[k * (FINISH_POINTS + 1) + r] * scale;
    *out = a.adds ? *out + value : value;
  }
}

// A block finishes FINISH_POINTS rows: a lane has one, a warp some of the features. A row of which one output has lost
// digits is left as a whole.
extern "C" __global__ void __launch_bounds__(RANK_THREADS)
    finish_rows(const __grid_constant__ RankFieldArguments a) {
  extern __shared__ float values[];  // [k][FINISH_POINTS + 1]
  __shared__ RankSums sums[FINISH_GROUPS][FINISH_POINTS];
  __shared__ float own_sums[FINISH_POINTS];  // S
  __shared__ bool fails[FINISH_POINTS];
  const FieldArguments& f = a.field;
  const int row = threadIdx.x % FINISH_POINTS, group = threadIdx.x / FINISH_POINTS;
  const i64 m0 = (i64)blockIdx.x * FINISH_POINTS, m = m0 + row < f.m ? m0 + row : f.m - 1;
  const i64 columns = f.k + a.difference;
  float spread = 0;
  if (group == 0) {
    for (int s = 0; s < a.columns.splits; ++s) spread += a.columns.spread[s * a.columns.partial_ld + m];
    fails[row] = !products_stand(*a.state);
  }
#pragma unroll 1
  for (int o = 0; o < a.outputs; ++o) {
    const auto total = [&](i64 column) {
      double sum = 0;
      for (int s = 0; s < a.columns.splits; ++s)
        sum += a.columns.partial[((s * a.outputs + o) * columns + column) * a.columns.partial_ld + m];
      return (float)sum;
    };
    if (a.difference && group == 0) own_sums[row] = total(f.k);
    __syncthreads();
    const float own_sum = a.difference ? own_sums[row] : 0.0f;
    RankSums own = {};
    for (i64 k = group; k < f.k; k += FINISH_GROUPS) {
      const float product = total(k);
      float value = product;
      if (a.difference) {
        const float x = ((const float*)f.x)[k * f.x_ld + m] - a.centre[k];
        own.point = mul_add(x, x, own.point);
        value = x * own_sum - product;
      }
      own.field = mul_add(value, value, own.field);
      own.largest = max_nan(own.largest, fabsf(value));
      values[k * (FINISH_POINTS + 1) + row] = value;
    }
    sums[group][row] = own;
    __syncthreads();
    if (group == 0) {
      for (int g = 1; g < FINISH_GROUPS; ++g) {
        own.point += sums[g][row].point;
        own.field += sums[g][row].field;
        own.largest = max_nan(own.largest, sums[g][row].largest);
      }
      const bool accurate = a.difference ? keeps_digits(spread, own.point, own_sum, own.field, own.largest)
                                         : own.field < INFINITY;
      fails[row] = fails[row] || !accurate;
    }
    __syncthreads();
    store_finished(a, o, m0, values, fails);
    __syncthreads();
  }
  const auto all_splits = [&](const float* sums, int count, int i) {
    double sum = 0;
    for (int s = 0; s < a.columns.splits; ++s) sum += sums[(s * count + i) * a.columns.partial_ld + m];
    return (float)sum;
  };
  const bool stands = m0 + row < f.m && !fails[row];
  const int side_sums = a.side.summed + a.side.with_product;
  for (int i = group; i < side_sums && stands; i += FINISH_GROUPS) {
    const float scale = largest_column_scale(a, 0) * (i < a.side.summed ? a.factors.row_scales[m] : 1.0f);
    store_side_sum(a, i, m, all_splits(a.side.partial, side_sums, i) * scale);
  }
  for (int e = group; e < a.side.extra_columns && stands; e += FINISH_GROUPS)
    store_product(a, e, m, all_splits(a.side.extra, a.side.extra_columns, e));
  if (group == 0 && fails[row] && m0 + row < f.m) a.left[1 + atomicAdd(a.left, 1u)] = (u32)m;
}
