// Rows of a field that products leave (rank_field.cuh), by differences: RANK_ROWS of them a block, over all points z.
//
//   64 points z a slice of shared memory, all features    a thread has the pair of one of them with every fourth row:
//                                                         the sum over the features, the amplitude, the weight
//   amplitudes times weights, [row][64]                   then a feature of every fourth row: the sum over the slice
//
// Where sums are made of other things than the points (PLAIN 0), the slice is loaded twice. Sums go to totals every
// slice, these to the rows' every TOTAL_SLICES. FEATURE_BLOCKS: of 64 features. What all threads of a warp read is read
// by four: shared memory would otherwise be what takes the time.
//
// With few rows a block has a range of z, and merge_rows adds the ranges up; their sums lie where those of the products
// did, which have been read.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gradient/side_sums.cuh"
#include "pairs/pair_params.cuh"

#define RANK_THREADS 256
#define RANK_ROWS 16
#define ROW_GROUPS (RANK_THREADS / MERCER_PANEL)
#define OWN_ROWS (RANK_ROWS / ROW_GROUPS)
#define SLICE_ROW (MERCER_PANEL + 1)
#define TOTAL_SLICES 32
#define LEAST_SLICES 4  // of a range
#define ROW_THREADS (RANK_THREADS / RANK_ROWS)  // of extra columns, of which a thread has every so many of a row
#define OWN_PRODUCTS ((EXTRA + ROW_THREADS - 1) / ROW_THREADS)

// Feature k of a point, from a panel and from a plain one.
MERCER_INLINE float of_panel(const void* panels, i64 features, i64 k, i64 point) {
  return ((const float*)panels)[(point / MERCER_PANEL * features + k) * MERCER_PANEL + point % MERCER_PANEL];
}
MERCER_INLINE float of_plain(const void* panel, i64 ld, i64 k, i64 point) {
  return ((const float*)panel)[k * ld + point];
}

// Ranges of z for the blocks that the groups of rows leave idle.
struct RankRanges {
  i64 groups, count;
  MERCER_METHOD RankRanges(const RankFieldArguments& a, i64 rows) {
    groups = (rows + RANK_ROWS - 1) / RANK_ROWS;
    const i64 slices = (a.pairs.n + MERCER_PANEL - 1) / MERCER_PANEL;
    const i64 room = a.columns.partial_ld / (groups * RANK_ROWS);
    count = a.row_blocks / groups;
    if (count > slices / LEAST_SLICES) count = slices / LEAST_SLICES;
    if (count > room) count = room;
    if (count < 1) count = 1;
  }
  MERCER_METHOD float* part(const RankFieldArguments& a, i64 range, i64 row) const {
    const i64 values = a.field.k + SIDE_SUMS + a.side.extra_columns;
    return (float*)a.columns.partial + (range * groups * RANK_ROWS + row) * values;
  }
};

MERCER_INLINE void store_left(const RankFieldArguments& a, i64 m, int k, float sum) {
  const float value = sum * a.scale * (WEIGHTED ? weight_of(((const float*)a.field.w)[k]) : 1.0f);
  float* out = (float*)a.field.out + m * a.field.out_row + k * a.field.out_feature;
  *out = a.adds ? *out + value : value;
}

struct RankRows {
  const RankFieldArguments& a;
  const int group, own;  // of rows; the point of a slice, or the feature of a block
  const int row_length;  // features, in fours
  float *x, *points, *values, *extra;  // [row][row_length], twice; [row][64], twice
  float *u, *z;                         // [row][factor]; [k][SLICE_ROW]
  i64 m[OWN_ROWS];
  double side_sums[SIDE_SUMS + 1][OWN_ROWS];  // of the points that the thread has had
  double products[OWN_PRODUCTS + 1];
  float sum[OWN_ROWS][FEATURE_BLOCKS], total[OWN_ROWS][FEATURE_BLOCKS], all[OWN_ROWS][FEATURE_BLOCKS];

  MERCER_METHOD RankRows(const RankFieldArguments& arguments, float* memory)
      : a(arguments), group(threadIdx.x / MERCER_PANEL), own(threadIdx.x % MERCER_PANEL),
        row_length((arguments.field.k + 3) / 4 * 4) {
    x = memory;
    points = x + (PLAIN ? 0 : RANK_ROWS * row_length);
    values = points + RANK_ROWS * row_length;
    extra = values + (EXTRA > 0 ? RANK_ROWS * MERCER_PANEL : 0);
    u = extra + RANK_ROWS * MERCER_PANEL;
    z = u + RANK_ROWS * a.factors.count;
  }

  template <class Array>
  static MERCER_METHOD void add(Array& to, Array& from) {
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r)
#pragma unroll
      for (int b = 0; b < FEATURE_BLOCKS; ++b) {
        to[r][b] += from[r][b];
        from[r][b] = 0;
      }
  }

  // Rows `first` … of those that are left; after the last one it repeats.
  MERCER_METHOD void start(i64 first, i64 count) {
    const auto row = [&](int r) { return (i64)a.left[1 + (first + r < count ? first + r : count - 1)]; };
    __syncthreads();
    for (int at = threadIdx.x; at < RANK_ROWS * row_length; at += RANK_THREADS) {
      const i64 point = row(at / row_length), k = at % row_length;
      x[at] = k < a.field.k ? of_panel(a.pairs.x.points, a.field.k, k, point) : 0.0f;
      if (!PLAIN) points[at] = k < a.field.k ? of_plain(a.field.x, a.field.x_ld, k, point) : 0.0f;
    }
    const RankFactors& f = a.factors;
    for (int at = threadIdx.x; at < RANK_ROWS * f.count; at += RANK_THREADS)
      u[at] = f.rows != nullptr ? f.rows[at % f.count * f.rows_ld + row(at / f.count)] : 1.0f;
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) {
      m[r] = row(group + ROW_GROUPS * r);
#pragma unroll
      for (int b = 0; b < FEATURE_BLOCKS; ++b) sum[r][b] = total[r][b] = all[r][b] = 0;
#pragma unroll
      for (int f = 0; f < SIDE_SUMS; ++f) side_sums[f][r] = 0;
    }
#pragma unroll
    for (int i = 0; i < OWN_PRODUCTS; ++i) products[i] = 0;
  }

  template <class Value>
  MERCER_METHOD void load(i64 n0, const Value& value) {
    __syncthreads();
#pragma unroll 8
    for (int k = group; k < a.field.k; k += ROW_GROUPS) z[k * SLICE_ROW + own] = value(k, n0 + own);
    __syncthreads();
  }

  // Amplitudes times weights of the slice; 0 after the last point, which repeats in panels.
  MERCER_METHOD void weigh(i64 n) {
    const PairArguments& p = a.pairs;
    const float *params = params_of(p, 0), *w = (const float*)p.w;
    float sums[OWN_ROWS][1] = {}, weights[OWN_ROWS] = {}, col[COL_SLOTS + 1];
#pragma unroll 2
    for (int k0 = 0; k0 < a.field.k; k0 += 4) {
      Pack<float, 4> own_x[OWN_ROWS];
#pragma unroll
      for (int r = 0; r < OWN_ROWS; ++r)
        own_x[r] = *(const Pack<float, 4>*)(x + (group + ROW_GROUPS * r) * row_length + k0);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (k0 + c >= a.field.k) continue;
        const float own_z = z[(k0 + c) * SLICE_ROW + own];
#pragma unroll
        for (int r = 0; r < OWN_ROWS; ++r)
          update(sums[r], &own_x[r].value[c], &own_z, READS_WEIGHTS ? w[k0 + c] : 0.0f, nullptr, nullptr, params, 0, 0,
                 (float)p.features);
      }
    }
#if WEIGHT_MATRIX
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r)
      weights[r] = n < p.n ? a.weights.data[m[r] * a.weights.row + n * a.weights.column] : 0.0f;
#endif
#pragma unroll 4
    for (int e = 0; e < a.factors.count; ++e) {
      const float v = a.factors.columns[e * a.factors.columns_ld + n];
#pragma unroll
      for (int r = 0; r < OWN_ROWS; ++r)
        weights[r] = mul_add(u[(group + ROW_GROUPS * r) * a.factors.count + e], v, weights[r]);
    }
#pragma unroll
    for (int s = 0; s < COL_SLOTS; ++s) col[s] = ((const float*)p.z.user)[s * p.z.ld + n];
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) {
      float row[ROW_SLOTS + 1], outputs[OUTPUTS];
#pragma unroll
      for (int s = 0; s < ROW_SLOTS; ++s) row[s] = ((const float*)p.x.user)[s * p.x.ld + m[r]];
      epilogue(outputs, sums[r], row, col, params, (float)(m[r] + p.x.offset), (float)(n + p.z.offset),
               (float)p.features);
      values[(group + ROW_GROUPS * r) * MERCER_PANEL + own] = n < p.n ? outputs[0] * weights[r] : 0.0f;
#pragma unroll
      for (int f = 0; f < SIDE_SUMS; ++f)
        if (n < p.n)
          side_sums[f][r] += outputs[1 + f] * (WEIGHT_MATRIX || f < a.side.summed ? weights[r] : a.factors.columns[n]);
#if EXTRA
      extra[(group + ROW_GROUPS * r) * MERCER_PANEL + own] = outputs[1 + SIDE_SUMS];
#endif
    }
  }

  MERCER_METHOD void multiply(i64 n0) {
    const float* const row = extra + threadIdx.x / ROW_THREADS * MERCER_PANEL;
#pragma unroll
    for (int i = 0; i < OWN_PRODUCTS; ++i) {
      const int e = i * ROW_THREADS + threadIdx.x % ROW_THREADS;
      if (e >= a.side.extra_columns) continue;
      const float* const column = a.factors.columns + e * a.factors.columns_ld + n0;
      float part = 0;
      for (int n = 0; n < MERCER_PANEL && n0 + n < a.pairs.n; ++n) part = mul_add(row[n], column[n], part);
      products[i] += part;
    }
  }

  MERCER_METHOD void contract() {
    const float* rows = PLAIN ? x : points;
#pragma unroll
    for (int b = 0; b < FEATURE_BLOCKS; ++b) {
      const int k = b * MERCER_PANEL + own;
      if (k >= a.field.k) continue;
      float point[OWN_ROWS];
#pragma unroll
      for (int r = 0; r < OWN_ROWS; ++r) point[r] = rows[(group + ROW_GROUPS * r) * row_length + k];
#pragma unroll 2
      for (int n0 = 0; n0 < MERCER_PANEL; n0 += 4) {
        Pack<float, 4> value[OWN_ROWS];
#pragma unroll
        for (int r = 0; r < OWN_ROWS; ++r)
          value[r] = *(const Pack<float, 4>*)(values + (group + ROW_GROUPS * r) * MERCER_PANEL + n0);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float of_z = z[k * SLICE_ROW + n0 + c];
#pragma unroll
          for (int r = 0; r < OWN_ROWS; ++r)
            sum[r][b] = mul_add(value[r].value[c], a.difference ? point[r] - of_z : of_z, sum[r][b]);
        }
      }
    }
  }

  MERCER_METHOD void run(i64 first, i64 end) {
    const PairArguments& p = a.pairs;
    int slices = 0;
#pragma unroll 1
    for (i64 n0 = first * MERCER_PANEL; n0 < end * MERCER_PANEL && n0 < p.n; n0 += MERCER_PANEL) {
      load(n0, [&](int k, i64 n) { return of_panel(p.z.points, a.field.k, k, n); });
      weigh(n0 + own);
      if (PLAIN)
        __syncthreads();
      else
        load(n0, [&](int k, i64 n) { return of_plain(a.field.z, a.field.z_ld, k, n); });
      contract();
      multiply(n0);
      add(total, sum);
      if (++slices % TOTAL_SLICES == 0) add(all, total);
    }
    add(all, total);
  }

  // The sums over a group's threads go where the features' do.
  MERCER_METHOD void finish_side_sums(i64 first, i64 count, const RankRanges& ranges, i64 range) {
    constexpr int kWarps = MERCER_PANEL / 32;
    double* const of_warps = (double*)values;  // [group][warp of it][side sum][row]
    static_assert(kWarps * ROW_GROUPS * OWN_ROWS * SIDE_SUMS * 8 <= RANK_ROWS * MERCER_PANEL * 4);
    __syncthreads();
#pragma unroll
    for (int f = 0; f < SIDE_SUMS; ++f)
#pragma unroll
      for (int r = 0; r < OWN_ROWS; ++r) {
        double all_lanes = side_sums[f][r];
#pragma unroll
        for (int lanes = 16; lanes >= 1; lanes /= 2) all_lanes += __shfl_xor_sync(0xffffffffu, all_lanes, lanes);
        if (threadIdx.x % 32 == 0) of_warps[(threadIdx.x / 32 * SIDE_SUMS + f) * OWN_ROWS + r] = all_lanes;
      }
    __syncthreads();
    for (int at = own; at < SIDE_SUMS * OWN_ROWS; at += MERCER_PANEL) {
      const int f = at / OWN_ROWS, r = at % OWN_ROWS;
      const i64 row = first + group + ROW_GROUPS * r;
      double sum_of_group = 0;
      for (int w = 0; w < kWarps; ++w) sum_of_group += of_warps[(group * kWarps + w) * SIDE_SUMS * OWN_ROWS + at];
      if (row >= count) continue;
      if (ranges.count > 1)
        ranges.part(a, range, row)[a.field.k + f] = (float)sum_of_group;
      else
        store_side_sum(a, f, a.left[1 + row], (float)sum_of_group);
    }
  }

  MERCER_METHOD void store_products(i64 first, i64 count, const RankRanges& ranges, i64 range) const {
    const i64 row = first + threadIdx.x / ROW_THREADS;
#pragma unroll
    for (int i = 0; i < OWN_PRODUCTS; ++i) {
      const int e = i * ROW_THREADS + threadIdx.x % ROW_THREADS;
      if (row >= count || e >= a.side.extra_columns) continue;
      if (ranges.count > 1)
        ranges.part(a, range, row)[a.field.k + SIDE_SUMS + e] = (float)products[i];
      else
        store_product(a, e, a.left[1 + row], (float)products[i]);
    }
  }

  // Stores to the output, or to where merge_rows finds the range.
  MERCER_METHOD void store(i64 first, i64 count, const RankRanges& ranges, i64 range) const {
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) {
      const i64 row = first + group + ROW_GROUPS * r;
      if (row >= count) continue;
#pragma unroll
      for (int b = 0; b < FEATURE_BLOCKS; ++b) {
        const int k = b * MERCER_PANEL + own;
        if (k >= a.field.k) continue;
        if (ranges.count > 1)
          ranges.part(a, range, row)[k] = all[r][b];
        else
          store_left(a, m[r], k, all[r][b]);
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(RANK_THREADS) rank_rows(const __grid_constant__ RankFieldArguments a) {
  extern __shared__ __align__(16) float memory[];
  const i64 count = a.left[0], slices = (a.pairs.n + MERCER_PANEL - 1) / MERCER_PANEL;
  if (count == 0) return;
  RankRows rows(a, memory);
  const RankRanges ranges(a, count);
#pragma unroll 1
  for (i64 work = blockIdx.x; work < ranges.groups * ranges.count; work += gridDim.x) {
    const i64 first = work / ranges.count * RANK_ROWS, range = work % ranges.count;
    rows.start(first, count);
    rows.run(slices * range / ranges.count, slices * (range + 1) / ranges.count);
    rows.store(first, count, ranges, range);
    if (SIDE_SUMS > 0) rows.finish_side_sums(first, count, ranges, range);
    if (EXTRA > 0) rows.store_products(first, count, ranges, range);
  }
}

extern "C" __global__ void __launch_bounds__(RANK_THREADS) merge_rows(const __grid_constant__ RankFieldArguments a) {
  const i64 count = a.left[0];
  if (count == 0) return;
  const RankRanges ranges(a, count);
  if (ranges.count == 1) return;
  const int columns = a.field.k + SIDE_SUMS + a.side.extra_columns;
  for (i64 at = (i64)blockIdx.x * RANK_THREADS + threadIdx.x; at < count * columns;
       at += (i64)gridDim.x * RANK_THREADS) {
    const i64 row = at / columns;
    const int k = (int)(at % columns);
    float sum = 0;
    for (i64 range = 0; range < ranges.count; ++range) sum += ranges.part(a, range, row)[k];
    if (k < a.field.k)
      store_left(a, a.left[1 + row], k, sum);
    else if (k >= a.field.k + SIDE_SUMS)
      store_product(a, k - a.field.k - SIDE_SUMS, a.left[1 + row], sum);
    else
      store_side_sum(a, k - a.field.k, a.left[1 + row], sum);
  }
}
