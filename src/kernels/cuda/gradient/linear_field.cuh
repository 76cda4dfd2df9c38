// Gradient fields whose factor is linear in x and z: one product of matrices for all points m (bilinear_tile.cuh).
//
//   factor z        out[o][m][k] = P[m][o][k]                       P[m][o][k] = sum over n of a[m][n] c[o][n] z'[n][k]
//   factor x - z    out[o][m][k] = x'[m][k] S[m][o] - P[m][o][k]    S[m][o]    = sum over n of a[m][n] c[o][n]
//
// with the amplitudes a, the coefficients c, and x' = x - centre, z' = z - centre. The product has the amplitudes of m
// as rows and c z', of each output the features one after the other, as columns; after the features c itself gives S.
// Both are written as pieces of 16 bits (split_pieces.cuh):
//
//   find_field_centre → examine_columns → weigh_points → write_columns           once for all rows
//   examine_rows → write_rows → the tiles of products → finish_field          rows by rows
//
// x' S - P loses digits where few neighbours of x have all the weight (cancelled_rows.cuh; the spread by weigh_points
// and examine_rows). Such a row is marked, and computed by differences.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "common/split_precision.cuh"
#include "gradient/cancelled_rows.cuh"
#include "pack/centre.cuh"

#define LINEAR_THREADS 256
#define LINEAR_WARPS (LINEAR_THREADS / 32)
#define WARP_ROWS 16      // of examine_rows
#define POINT_THREADS 8   // of write_pieces: a point's features in a unit
#define UNIT_POINTS 32    // features of a unit: points n
#define CHUNK_UNITS 32    // of a block that writes pieces
#define SAMPLE_HALF (CENTRE_SAMPLES / 2)
// What pieces carry, as the largest amplitude of a row, feature, coefficient: their squares stay within the floats.
#define LEAST_AMPLITUDE 0x1p-60f
#define MOST_AMPLITUDE 0x1p60f
#define LEAST_FACTOR 0x1p-50f
#define MOST_FACTOR 0x1p50f
// OF_PRODUCT: z is v, the coefficients are one. Sums keep 1e-6 of their addends' magnitudes, so pieces may lose no more
// than 2^-22 of an amplitude, and of a column of v beyond that what cannot matter to rows without zeros.
#define LEAST_OF_ROW 0x1p-18f
#define LOST_OF_ITSELF 0x1p-22f
#define MOST_LOST (LEAST_OF_ROW * 0x1p-20f)  // of the sum of magnitudes

// Columns of an output: rows of the product are read by four.
MERCER_INLINE int own_columns(const LinearArguments& a) { return (a.field.k + DIFFERENCE + 3) / 4 * 4; }
MERCER_INLINE float centre_of(const LinearArguments& a, i64 k) { return DIFFERENCE ? a.centre[k] : 0.0f; }

MERCER_INLINE float largest_of(const Pack<float, 4>& values, float so_far) {
#pragma unroll
  for (int e = 0; e < 4; ++e) so_far = max_nan(so_far, fabsf(values.value[e]));
  return so_far;
}

// The least but zero, which counts as `zero`; of `count` values.
MERCER_INLINE float least_of(const Pack<float, 4>& values, i64 count, float zero, float so_far) {
#pragma unroll
  for (int e = 0; e < 4; ++e)
    if (e < count) so_far = fminf(so_far, values.value[e] != 0 ? fabsf(values.value[e]) : zero);
  return so_far;
}

// Amplitudes of row m, points n … n + 3; nothing after the last one.
MERCER_INLINE Pack<float, 4> row_values(const LinearArguments& a, i64 m, i64 n) {
  Pack<float, 4> result = {};
  if (n >= a.field.n) return result;
  const float* params = a.field.params ? (const float*)a.field.params : (const float*)a.field.numbers;
  Pack<float, 4> pairs[PLANES + 1];
#pragma unroll
  for (int p = 0; p < PLANES; ++p)
    pairs[p] = *(const Pack<float, 4>*)((const float*)a.field.pair + p * a.field.pair_plane + m * a.field.pair_row + n);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    float own[PLANES + 1];
#pragma unroll
    for (int p = 0; p < PLANES; ++p) own[p] = pairs[p].value[e];
    result.value[e] = n + e < a.field.n ? amplitude(own, params, (float)a.field.k) : 0.0f;
  }
  return result;
}

// Column j of the product: output j / own_columns, feature j % own_columns.
MERCER_INLINE Pack<float, 4> column_values(const LinearArguments& a, i64 j, i64 n) {
  Pack<float, 4> result = {};
  if (j >= a.columns.count || n >= a.field.n) return result;
  const i64 o = j / own_columns(a), k = j % own_columns(a);
  if (k >= a.field.k + DIFFERENCE) return result;
  const Pack<float, 4> c = *(const Pack<float, 4>*)(a.coefs + o * a.coefs_ld + n);
  Pack<float, 4> z = {};
  const bool is_feature = k < a.field.k;
  const float centre = is_feature ? centre_of(a, k) : 0.0f;
  if (is_feature) z = *(const Pack<float, 4>*)((const float*)a.field.z + k * a.field.z_ld + n);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float value = is_feature ? c.value[e] * (z.value[e] - centre) : c.value[e];
    result.value[e] = n + e < a.field.n ? value : 0.0f;
  }
  return result;
}

// The median of a sample of both sides, a warp a feature.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
    find_field_centre(const __grid_constant__ LinearArguments a) {
  wait_for_kernel_ahead();
  // Both pieces, and products that stand (split_precision.cuh) until a column proves otherwise.
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *a.state = {1, 0, 0, 0};
    *a.lossy = 0;
  }
  const i64 k = (i64)blockIdx.x * LINEAR_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (!DIFFERENCE || k >= a.field.k) return;
  const float* x = (const float*)a.field.x + k * a.field.x_ld;
  const float* z = (const float*)a.field.z + k * a.field.z_ld;
  const float samples[2] = {x[lane * a.field.m / SAMPLE_HALF], z[lane * a.field.n / SAMPLE_HALF]};
  const float median = median_of(samples);
  if (lane == 0) a.centre[k] = median;
}

// What pieces lose of the values of column k, whose largest one is known, and where that could matter.
MERCER_INLINE void judge_losses(const LinearArguments& a, i64 k, float most) {
  const float* v = (const float*)a.field.z + k * a.field.z_ld;
  const float up = power_of_two(piece_exponent(most));
  float lost = 0, sum = 0;
#pragma unroll 4
  for (i64 n = threadIdx.x % 32; n < a.field.n; n += 32) {
    const float value = v[n] * up, size = fabsf(value), high = half_value(half_pair(value, 0.0f), 0);
    const float rest = value - high - half_value(half_pair(value - high, 0.0f), 0);
    lost += fmaxf(mul_add(-LOST_OF_ITSELF, size, fabsf(rest)), 0.0f);
    sum += size;
  }
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) {
    lost += __shfl_xor_sync(0xffffffffu, lost, offset);
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  if (threadIdx.x % 32 != 0) return;
  if (!(lost <= MOST_LOST * sum)) a.state->sampled = 1;
  if (lost > 0) *a.lossy = 1;
}

// The largest value of each feature of z', then of each output's coefficients, a warp each.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)
    examine_columns(const __grid_constant__ LinearArguments a) {
  wait_for_kernel_ahead();
  const i64 at = (i64)blockIdx.x * LINEAR_WARPS + threadIdx.x / 32, o = at - a.field.k;
  const int lane = threadIdx.x % 32;
  if (o >= a.field.outputs) return;
  const float* values = o < 0 ? (const float*)a.field.z + at * a.field.z_ld : a.coefs + o * a.coefs_ld;
  const float centre = o < 0 ? centre_of(a, at) : 0.0f;
  float largest = 0;
#pragma unroll 8
  for (i64 n = lane; n < a.field.n; n += 32) largest = max_nan(largest, fabsf(values[n] - centre));
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2)
    largest = max_nan(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  const bool carried = largest == 0 || (largest >= LEAST_FACTOR && largest <= MOST_FACTOR);
  if (OF_PRODUCT && o < 0 && carried) judge_losses(a, at, largest);
  if (lane != 0) return;
  if (!carried) a.state->sampled = 1;
  a.largest[at] = carried ? largest : 0.0f;
}

// The power of two of column j, from what bounds it.
MERCER_INLINE int column_exponent(const LinearArguments& a, i64 j) {
  if (j >= a.columns.count) return 0;
  const i64 o = j / own_columns(a), k = j % own_columns(a);
  return piece_exponent(a.largest[a.field.k + o] * (k < a.field.k ? a.largest[k] : 1.0f));
}
// A power of two by which coefficients of an output are one or less.
MERCER_INLINE float coefficient_unit(const LinearArguments& a, i64 o) {
  return power_of_two(piece_exponent(a.largest[a.field.k + o]) - 15);
}

// spread[o][n] = (c |z'|)^2: a block takes 32 points, eight warps the features in turn.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS) weigh_points(const __grid_constant__ LinearArguments a) {
  wait_for_kernel_ahead();
#if DIFFERENCE
  __shared__ float parts[LINEAR_WARPS][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 n = (i64)blockIdx.x * 32 + lane, own = n < a.field.n ? n : a.field.n - 1;
  float sum = 0;
#pragma unroll 8
  for (i64 k = warp; k < a.field.k; k += LINEAR_WARPS) {
    const float value = ((const float*)a.field.z)[k * a.field.z_ld + own] - a.centre[k];
    sum = mul_add(value, value, sum);
  }
  parts[warp][lane] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int w = 0; w < LINEAR_WARPS; ++w) sum += parts[w][lane];
  for (int o = warp; o < a.field.outputs; o += LINEAR_WARPS) {
    const float c = a.coefs[o * a.coefs_ld + own] * coefficient_unit(a, o);
    if (n < a.spread_ld) a.spread[o * a.spread_ld + n] = n < a.field.n ? c * c * sum : 0.0f;
  }
#endif
}

// Pieces of 32 points of `side` in CHUNK_UNITS units of the image. Eight threads a point, four features each.
template <bool OF_ROWS>
MERCER_INLINE void write_image(const LinearArguments& a, const LinearSide& side, float up) {
  const i64 first = (i64)blockIdx.x * MERCER_IMAGE_ROWS;
  const int p = threadIdx.x / POINT_THREADS, place = threadIdx.x % POINT_THREADS;
  u8* image = side.image + first * a.units * 128 + quad_row(p) * 128;
  const i64 unit0 = (i64)blockIdx.y * CHUNK_UNITS, end = unit0 + CHUNK_UNITS < a.units ? unit0 + CHUNK_UNITS : a.units;
#pragma unroll 4
  for (i64 unit = unit0; unit < end; ++unit) {
    const i64 n = unit * UNIT_POINTS + place * 4;
    const Pack<float, 4> values = OF_ROWS ? row_values(a, first + p < side.count ? first + p : side.count - 1, n)
                                          : column_values(a, first + p, n);
    u32 high[2], low[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float x = values.value[2 * c] * up, y = values.value[2 * c + 1] * up;
      high[c] = half_pair(x, y);
      low[c] = half_pair(x - half_value(high[c], 0), y - half_value(high[c], 1));
    }
    write_both(image + unit * (MERCER_IMAGE_ROWS * 128), quad_row(p), place, high, low);
  }
}

extern "C" __global__ void __launch_bounds__(LINEAR_THREADS) write_columns(const __grid_constant__ LinearArguments a) {
  wait_for_kernel_ahead();
  const i64 j = (i64)blockIdx.x * MERCER_IMAGE_ROWS + threadIdx.x / POINT_THREADS;
  const int exponent = column_exponent(a, j);
  if (blockIdx.y == 0 && threadIdx.x % POINT_THREADS == 0) {
    a.columns.norm[j] = 0;
    a.columns.scale[j] = power_of_two(-exponent);
  }
  write_image<false>(a, a.columns, power_of_two(exponent));
}

// Nothing of the warp's rows is left to others.
MERCER_INLINE void clear_marks(const LinearArguments& a, i64 m0) {
  const i64 groups = (a.field.k + 63) / 64, end = m0 + WARP_ROWS < a.rows.count ? m0 + WARP_ROWS : a.rows.count;
  for (i64 at = m0 * groups + threadIdx.x % 32; at < end * groups; at += 32) a.marks[at] = 0;
}

// A warp has 16 rows and a range of n: the largest amplitude, and the sum over n of (a c |z'|)^2 of every output, in
// tf32. A lane has amplitudes of rows lane / 4 and + 8 and eight points in a row, four lanes a line of 128 bytes.
extern "C" __global__ void __launch_bounds__(LINEAR_THREADS) examine_rows(const __grid_constant__ LinearArguments a) {
  wait_for_kernel_ahead();
  constexpr int kBlocks = (PASS + 7) / 8;  // of outputs
  const int lane = threadIdx.x % 32, place = lane % 4 * 8;
  const i64 m0 = ((i64)blockIdx.x * LINEAR_WARPS + threadIdx.x / 32) * WARP_ROWS;
  if (m0 >= a.rows.count) return;
  if (blockIdx.y == 0) clear_marks(a, m0);
  const i64 steps = a.spread_ld / 32, end = steps * (blockIdx.y + 1) / gridDim.y * 32;
  const float zero = OF_PRODUCT && *a.lossy != 0 ? 0.0f : INFINITY;
  float largest[2] = {}, least[2] = {INFINITY, INFINITY}, sum[kBlocks][4] = {};
#pragma unroll 2
  for (i64 n0 = steps * blockIdx.y / gridDim.y * 32; n0 < end; n0 += 32) {
    Pack<float, 4> rows[2][2], spread[2][kBlocks];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i64 n = n0 + place + half * 4;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const i64 m = m0 + lane / 4 + 8 * h;
        rows[half][h] = row_values(a, m < a.rows.count ? m : a.rows.count - 1, n);
      }
#pragma unroll
      for (int block = 0; DIFFERENCE && block < kBlocks; ++block) {
        const int o = block * 8 + lane / 4;
        spread[half][block] =
            *(const Pack<float, 4>*)(a.spread + (o < a.field.outputs ? o : a.field.outputs - 1) * a.spread_ld + n);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        largest[h] = largest_of(rows[half][h], largest[h]);
        if (OF_PRODUCT) least[h] = least_of(rows[half][h], a.field.n - n0 - place - half * 4, zero, least[h]);
      }
#pragma unroll
      for (int e = 0; DIFFERENCE && e < 4; e += 2) {
        const float own[4] = {rows[half][0].value[e], rows[half][1].value[e], rows[half][0].value[e + 1],
                              rows[half][1].value[e + 1]};
        const float squares[4] = {own[0] * own[0], own[1] * own[1], own[2] * own[2], own[3] * own[3]};
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
          multiply_16x8(sum[block], squares, spread[half][block].value[e], spread[half][block].value[e + 1]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int offset = 2; offset >= 1; offset /= 2)
      largest[h] = max_nan(largest[h], __shfl_xor_sync(0xffffffffu, largest[h], offset));
#pragma unroll
    for (int offset = 2; OF_PRODUCT && offset >= 1; offset /= 2)
      least[h] = fminf(least[h], __shfl_xor_sync(0xffffffffu, least[h], offset));
    const i64 m = m0 + lane / 4 + 8 * h;
    if (m >= a.rows.count) continue;
    if (lane % 4 == 0) a.row_largest[blockIdx.y * a.rows.ld + m] = largest[h];
    if (OF_PRODUCT && lane % 4 == 0) a.row_least[blockIdx.y * a.rows.ld + m] = least[h];
#pragma unroll
    for (int i = 0; DIFFERENCE && i < kBlocks * 2; ++i) {
      const int o = i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (o < PASS) a.row_spread[((i64)blockIdx.y * PASS + o) * a.rows.ld + m] = sum[i / 2][h * 2 + i % 2];
    }
  }
}

extern "C" __global__ void __launch_bounds__(LINEAR_THREADS) write_rows(const __grid_constant__ LinearArguments a) {
  wait_for_kernel_ahead();
  const i64 m = (i64)blockIdx.x * MERCER_IMAGE_ROWS + threadIdx.x / POINT_THREADS;
  float largest = 0;
  if (m < a.rows.count)
    for (int r = 0; r < a.ranges; ++r) largest = max_nan(largest, a.row_largest[r * a.rows.ld + m]);
  float least = INFINITY;
  if (OF_PRODUCT && m < a.rows.count)
    for (int r = 0; r < a.ranges; ++r) least = fminf(least, a.row_least[r * a.rows.ld + m]);
  const bool in_range = largest >= LEAST_AMPLITUDE && largest <= MOST_AMPLITUDE;
  const bool carried = largest == 0 || (in_range && least >= LEAST_OF_ROW * largest);
  const int exponent = carried ? piece_exponent(largest) : 0;
  if (blockIdx.y == 0 && threadIdx.x % POINT_THREADS == 0) {
    a.rows.norm[m] = carried ? 0.0f : NOT_CARRIED;
    a.rows.scale[m] = power_of_two(-exponent);
  }
  write_image<true>(a, a.rows, carried ? power_of_two(exponent) : 0.0f);
}

// A block finishes FINISH_ROWS rows with ROW_WARPS warps each; a warp has OWN_OUTPUTS outputs, ROW_WARPS apart.
#define ROW_WARPS (PASS > 4 ? 8 : PASS > 2 ? 4 : PASS)
#define FINISH_ROWS (LINEAR_WARPS / ROW_WARPS)
#define OWN_OUTPUTS ((PASS + ROW_WARPS - 1) / ROW_WARPS)

// Features k … k + 3 of x'; zero after the last one.
MERCER_INLINE Pack<float, 4> centred_values(const LinearArguments& a, const float* point, i64 k) {
  Pack<float, 4> x = *(const Pack<float, 4>*)(point + k);
  const Pack<float, 4> centre = *(const Pack<float, 4>*)(a.centre + k);
#pragma unroll
  for (int e = 0; e < 4; ++e) x.value[e] = k + e < a.field.k ? x.value[e] - centre.value[e] : 0.0f;
  return x;
}

// What a warp has of a row: some of its outputs, or, where there are none, the first one.
struct FinishRow {
  int row;  // in the block
  i64 m;
  const float* products[OWN_OUTPUTS];
  float sum[OWN_OUTPUTS];  // S
  bool has[OWN_OUTPUTS];
  int outputs[OWN_OUTPUTS];
  MERCER_METHOD FinishRow(const LinearArguments& a) {
    const int warp = threadIdx.x / 32;
    row = warp / ROW_WARPS;
    m = (i64)blockIdx.x * FINISH_ROWS + row;
    const bool is_there = m < a.field.m;
#pragma unroll
    for (int own = 0; own < OWN_OUTPUTS; ++own) {
      const int o = warp % ROW_WARPS + own * ROW_WARPS;
      has[own] = is_there && o < a.field.outputs;
      outputs[own] = has[own] ? o : 0;
      products[own] = a.products + (is_there ? m : a.field.m - 1) * a.products_ld + (i64)outputs[own] * own_columns(a);
      sum[own] = DIFFERENCE ? products[own][a.field.k] : 0.0f;
    }
  }
};

// Sums over the features of a row: of squares of x', and of each output's values in its own unit; the largest of those.
struct FinishSums {
  float point, field[OWN_OUTPUTS], largest[OWN_OUTPUTS];
};

// Stores four features at a time, whether they are to stay or not.
MERCER_INLINE void store_row(FinishSums& sums, const LinearArguments& a, const FinishRow& row) {
  const FieldArguments& f = a.field;
  float unit[OWN_OUTPUTS];
#pragma unroll
  for (int own = 0; own < OWN_OUTPUTS; ++own) unit[own] = coefficient_unit(a, row.outputs[own]);
  const float* point = a.x_rows + (row.m < f.m ? row.m : f.m - 1) * a.x_row;
#pragma unroll 1  // more blocks on a multiprocessor hide more than loads ahead
  for (i64 k = threadIdx.x % 32 * 4; k < f.k; k += 128) {
    Pack<float, 4> x = {}, products[OWN_OUTPUTS];
    if (DIFFERENCE) x = centred_values(a, point, k);
#pragma unroll
    for (int own = 0; own < OWN_OUTPUTS; ++own) products[own] = *(const Pack<float, 4>*)(row.products[own] + k);
    float scale[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      scale[e] = WEIGHTED && k + e < f.k ? SCALE * weight_of(((const float*)f.w)[k + e]) : SCALE;
      sums.point = mul_add(x.value[e], x.value[e], sums.point);
    }
#pragma unroll
    for (int own = 0; own < OWN_OUTPUTS; ++own) {
      float* out = (float*)f.out + row.outputs[own] * f.out_output + row.m * f.out_row + k * f.out_feature;
      Pack<float, 4> result;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float product = products[own].value[e];
        const float value = DIFFERENCE ? x.value[e] * row.sum[own] - product : product;
        const float counted = k + e < f.k ? value : 0.0f, scaled = counted * unit[own];
        sums.field[own] = mul_add(scaled, scaled, sums.field[own]);
        sums.largest[own] = max_nan(sums.largest[own], fabsf(counted));
        result.value[e] = value * scale[e];
      }
      if (!row.has[own]) continue;
      if (f.out_feature == 1 && k + 4 <= f.k && (u64)out % 16 == 0) {
        store_pack(out, result);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (k + e < f.k) out[e * f.out_feature] = result.value[e];
      }
    }
  }
}

// Whether the errors of a warp's row are within the contract, for all of its outputs.
MERCER_INLINE bool is_accurate(const LinearArguments& a, const FinishRow& row, const FinishSums& sums) {
  bool accurate = true;
#pragma unroll
  for (int own = 0; own < OWN_OUTPUTS; ++own) {
    float point = sums.point, field = sums.field[own], largest = sums.largest[own];
#pragma unroll
    for (int offset = 16; offset >= 1; offset /= 2) {
      point += __shfl_xor_sync(0xffffffffu, point, offset);
      field += __shfl_xor_sync(0xffffffffu, field, offset);
      largest = max_nan(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
    if (!row.has[own]) continue;
    const float scaled = row.sum[own] * coefficient_unit(a, row.outputs[own]);
    float spread = 0;
    for (int r = 0; r < a.ranges; ++r) spread += a.row_spread[((i64)r * PASS + row.outputs[own]) * a.rows.ld + row.m];
    accurate = accurate && keeps_digits(spread, point, scaled, field, largest);
  }
  return accurate;
}

extern "C" __global__ void __launch_bounds__(LINEAR_THREADS) finish_field(const __grid_constant__ LinearArguments a) {
  __shared__ u32 left[FINISH_ROWS];
  wait_for_kernel_ahead();
  if (threadIdx.x < FINISH_ROWS) left[threadIdx.x] = a.state->sampled != 0;
  __syncthreads();
  const FinishRow row(a);
  FinishSums sums = {};
  store_row(sums, a, row);
  bool fails = row.m < a.field.m && a.rows.norm[row.m] < 0;
  if (DIFFERENCE && !is_accurate(a, row, sums)) fails = true;
  if (fails && threadIdx.x % 32 == 0) left[row.row] = 1;
  __syncthreads();
  const i64 groups = (a.field.k + 63) / 64;
  if (left[row.row] != 0 && threadIdx.x / 32 % ROW_WARPS == 0 && row.m < a.field.m)
    for (i64 group = threadIdx.x % 32; group < groups; group += 32) a.marks[row.m * groups + group] = 1;
}
