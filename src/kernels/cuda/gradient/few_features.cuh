// Gradient fields of few features in one pass over the pairs: nothing of the size of the matrix is stored.
//
//   out[o][m][k] = sum over n of coef[o][n] phi(x[m][k], z[n][k], values of the pair (m, n), row[m], col[n], w[k], …)
//
// ONE_OUTPUT: the sum over o of rows[m][o] times these; without COLUMNS, a matrix of weights in place of that sum.
// SUMMED more sums over n are of other values of the pairs with the same weights, WITH_PRODUCT those of one value
// with each column of coefficients, and EXTRA those of another field at each feature: the derivative by its w.
//
//   128 threads x ROWS points m         x of a thread, and its sums of every output and feature, are in registers
//   64 points n a slice of shared       all threads read the same points z: broadcasts, VECTOR points n a load
//   memory, the next one on its way
//
// Both loops over the features, before the values of the pairs and after them, read z. Sums are added to totals every
// SUM_SLICES slices; the side sums, of float64, every slice: terms of one sign are many there. blockIdx.y: a range
// of n, with partial results.
//
// Floor: issue slots. |x - z|^2 in 3 features and one output take 3 subtractions and 3 multiply-adds, the value, 3
// multiply-adds.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/pair_params.cuh"

#define FEW_THREADS 128
#define VECTOR (16 / (int)sizeof(REAL))
#define SLICE MERCER_PANEL
#define SUM_SLICES 4
#define Z_ROWS (EXACT_FEATURES * Z_STREAMS)
#define POINT_ROWS (PLAIN_Z ? 0 : EXACT_FEATURES)
#define FIRST_POINT (Z_ROWS + COL_SLOTS)
#define FIRST_COL (FIRST_POINT + POINT_ROWS)
#define FIRST_COEF (FIRST_COL + COL_VALUES)
#define SLICE_ROWS (FIRST_COEF + COLUMNS)
#define SUM_OUTPUTS (ONE_OUTPUT ? 1 : COLUMNS)
#define WEIGHT_MATRIX (COLUMNS == 0)
#define FIRST_EXTRA (SUMMED + (WITH_PRODUCT ? COLUMNS : 0))
#define SIDE_SUMS (FIRST_EXTRA + (EXTRA ? EXACT_FEATURES : 0))
// So many features of several points are not kept from one loop to the other.
#define MOST_KEPT 4

typedef Pack<REAL, VECTOR> FewVector;

// What a thread has of its points m, FEW_THREADS apart.
struct FewRow {
  REAL x[EXACT_FEATURES][X_STREAMS + (X_STREAMS == 0)], point[EXACT_FEATURES], slots[ROW_SLOTS + 1], value[1],
      weights[COLUMNS + WEIGHT_MATRIX];
  i64 m;

  MERCER_METHOD void load(const FewFeaturesArguments& a, i64 wanted) {
    const PairArguments& p = a.pairs;
    m = wanted < p.m ? wanted : p.m - 1;
    const REAL* from = (const REAL*)p.x.points + m / MERCER_PANEL * (EXACT_FEATURES * X_STREAMS * MERCER_PANEL);
#pragma unroll
    for (int k = 0; k < EXACT_FEATURES; ++k) {
#pragma unroll
      for (int s = 0; s < X_STREAMS; ++s) x[k][s] = from[(k * X_STREAMS + s) * MERCER_PANEL + m % MERCER_PANEL];
      point[k] = PLAIN_X ? x[k][0] : ((const REAL*)a.field.x)[k * a.field.x_ld + m];
    }
#pragma unroll
    for (int s = 0; s < ROW_SLOTS; ++s) slots[s] = ((const REAL*)p.x.user)[s * p.x.ld + m];
    value[0] = READS_ROW ? ((const REAL*)a.field.row)[m] : (REAL)0;
#pragma unroll
    for (int c = 0; ONE_OUTPUT && c < COLUMNS; ++c)
      weights[c] = c < a.field.outputs ? ((const REAL*)a.rows)[c * a.rows_ld + m] : (REAL)0;
  }
};

#if BEYOND
// What a pair is multiplied with, of output o.
MERCER_INLINE double weight_of_pair(const FewFeaturesArguments& a, i64 m, i64 n, int o) {
  if (WEIGHT_MATRIX) return ((const REAL*)a.weights)[m * a.weights_row + n * a.weights_column];
  const REAL* const coefs = (const REAL*)a.coefs + n;
  if (!ONE_OUTPUT) return coefs[o * a.coefs_ld];
  double weight = 0;
  for (int c = 0; c < a.field.outputs; ++c)
    weight += (double)((const REAL*)a.rows)[c * a.rows_ld + m] * coefs[c * a.coefs_ld];
  return weight;
}
MERCER_INLINE const REAL* few_point(const void* panels, const void* points, bool plain, i64 at) {
  if (!plain) return (const REAL*)points + at;
  return (const REAL*)panels + at / MERCER_PANEL * (EXACT_FEATURES * MERCER_PANEL) + at % MERCER_PANEL;
}
// A sum of points n that marked pairs have made no number, again.
template <class Phi>
static __device__ __noinline__ double sum_again(const FewFeaturesArguments& a, i64 m, int k, int o, i64 first,
                                                i64 end) {
  count_again();
  const REAL* params = a.field.params ? (const REAL*)a.field.params : (const REAL*)a.field.numbers;
  const REAL* const x = few_point(a.pairs.x.points, a.field.x, PLAIN_X, m);
  const i64 x_step = PLAIN_X ? (i64)MERCER_PANEL : a.field.x_ld, z_step = PLAIN_Z ? (i64)MERCER_PANEL : a.field.z_ld;
  double sum = 0;
#pragma unroll 1
  for (i64 n = first; n < end && sum == sum; ++n) {
    const REAL* const z = few_point(a.pairs.z.points, a.field.z, PLAIN_Z, n);
    const BeyondPair points = {x, z, (const REAL*)a.pairs.w, x_step, z_step, EXACT_FEATURES};
    sum += weight_of_pair(a, m, n, o) * beyond<Phi>(points, k, 0.0, params);
  }
  return sum;
}
#endif

struct FewFeatures {
  const FewFeaturesArguments& a;
  FewRow rows[ROWS];
  REAL sum[SUM_OUTPUTS][ROWS][EXACT_FEATURES], total[SUM_OUTPUTS][ROWS][EXACT_FEATURES];
  REAL side_sums[SIDE_SUMS + 1][ROWS];
  double side_total[SIDE_SUMS + 1][ROWS];
  FewVector next[ROWS];  // of the matrix of weights, on their way

  MERCER_METHOD explicit FewFeatures(const FewFeaturesArguments& arguments) : a(arguments) {
    const i64 m0 = (i64)blockIdx.x * (FEW_THREADS * ROWS) + threadIdx.x;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      rows[r].load(a, m0 + r * FEW_THREADS);
#pragma unroll
      for (int o = 0; o < SUM_OUTPUTS; ++o)
#pragma unroll
        for (int k = 0; k < EXACT_FEATURES; ++k) sum[o][r][k] = total[o][r][k] = 0;
#pragma unroll
      for (int i = 0; i < SIDE_SUMS; ++i) side_sums[i][r] = 0, side_total[i][r] = 0;
    }
  }

  // Columns of coefficients that there are not repeat the last one; nobody stores them, or their weights are zero.
  MERCER_METHOD const REAL* row_of_slice(int row, i64 n0) const {
    const PairArguments& p = a.pairs;
    if (row < Z_ROWS) return (const REAL*)p.z.points + n0 * Z_ROWS + row * SLICE;
    if (row < FIRST_POINT) return (const REAL*)p.z.user + (row - Z_ROWS) * p.z.ld + n0;
    if (row < FIRST_COL) return (const REAL*)a.field.z + (row - FIRST_POINT) * a.field.z_ld + n0;
    if (row < FIRST_COEF) return (const REAL*)a.field.col + n0;
    const int column = row - FIRST_COEF < a.field.outputs ? row - FIRST_COEF : a.field.outputs - 1;
    return (const REAL*)a.coefs + column * a.coefs_ld + n0;
  }
  MERCER_METHOD void copy(REAL* to, i64 n0) const {
    constexpr int kVectors = SLICE / VECTOR;
    for (int c = threadIdx.x; c < SLICE_ROWS * kVectors; c += FEW_THREADS)
      copy_16(to + c * VECTOR, row_of_slice(c / kVectors, n0) + c % kVectors * VECTOR);
  }

  // Weights of VECTOR points from n on; 0 after the last one. A row's neighbours lie in the sectors that the thread
  // has asked for, a column's in those of its warp.
  MERCER_METHOD void fetch_weights(i64 n) {
#pragma unroll
    for (int r = 0; WEIGHT_MATRIX && r < ROWS; ++r) {
      const REAL* from = (const REAL*)a.weights + rows[r].m * a.weights_row + n * a.weights_column;
      if (a.weights_whole && n + VECTOR <= a.pairs.n) {
        next[r] = *(const FewVector*)from;
        continue;
      }
#pragma unroll
      for (int c = 0; c < VECTOR; ++c)
        next[r].value[c] = n + c < a.pairs.n ? from[c * a.weights_column] : (REAL)0;
    }
  }

  // Values after those of the field, of the first `count` of VECTOR points whose coefficients begin at `from`.
  MERCER_METHOD void add_side_sums(const REAL* from, const REAL (&weights)[ROWS][VECTOR],
                                   const REAL (&values)[ROWS][VECTOR][OUTPUTS], int count) {
#pragma unroll
    for (int i = 0; i < FIRST_EXTRA; ++i) {
      const bool is_column = i >= SUMMED;
      FewVector coef = {};
      if (is_column) coef = *(const FewVector*)(from + (FIRST_COEF + i - SUMMED) * SLICE);
      const int value = FIRST_VALUE + (is_column ? SUMMED : i);
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int c = 0; c < VECTOR; ++c)
          if (c < count)
            side_sums[i][r] = mul_add(is_column ? coef.value[c] : weights[r][c], values[r][c][value], side_sums[i][r]);
    }
  }

#if BEYOND
  // Rows of the thread with marked pairs since sums were added to totals, a bit each, after the slices.
  static MERCER_METHOD unsigned char& marked_rows() {
    extern __shared__ __align__(16) unsigned char shared[];
    return shared[2 * SLICE_ROWS * SLICE * sizeof(REAL) + threadIdx.x];
  }
  MERCER_METHOD bool is_there(int r) const {
    return (i64)blockIdx.x * (FEW_THREADS * ROWS) + threadIdx.x + r * FEW_THREADS < a.pairs.m;
  }

  // Sums with such pairs, after slice s: those of points n from `first` on, where they go to the totals, and the
  // side sums of the slice.
  MERCER_METHOD void sum_marked(i64 s, i64 first, bool promotes) {
    const u32 marked = marked_rows();
    if (marked == 0) return;
    const i64 end = (s + 1) * SLICE < a.pairs.n ? (s + 1) * SLICE : a.pairs.n;
    if constexpr (EXTRA) {
#pragma unroll
      for (int k = 0; k < EXACT_FEATURES; ++k)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          REAL& own = side_sums[FIRST_EXTRA + k][r];
          if ((marked >> r & 1) && own != own) own = (REAL)sum_again<BeyondExtra>(a, rows[r].m, k, 0, s * SLICE, end);
        }
    }
    if (!promotes) return;
#pragma unroll
    for (int o = 0; o < SUM_OUTPUTS; ++o)
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < EXACT_FEATURES; ++k) {
          REAL& own = sum[o][r][k];
          if ((ONE_OUTPUT || o < a.field.outputs) && (marked >> r & 1) && own != own)
            own = (REAL)sum_again<BeyondPhi>(a, rows[r].m, k, o, first, end);
        }
    marked_rows() = 0;
  }
  MERCER_METHOD void start_marks() const { marked_rows() = 0; }
  MERCER_METHOD void mark_row(int r, const REAL (&values)[OUTPUTS]) const {
    if (is_there(r) && is_mark(values[MARK_PLANE])) marked_rows() |= 1 << r;
  }
#else
  MERCER_METHOD void sum_marked(i64, i64, bool) const {}
  MERCER_METHOD void start_marks() const {}
  MERCER_METHOD void mark_row(int, const REAL (&)[OUTPUTS]) const {}
#endif

  // Puts safe values in place of those whose sums are out of range.
  MERCER_METHOD void take_safe_values(REAL (&values)[ROWS][VECTOR][OUTPUTS],
                                      const REAL (&states)[ROWS][VECTOR][STATES + (STATES == 0)], i64 n) const {
    bool any = false;
#pragma unroll
    for (int pair = 0; pair < ROWS * VECTOR; ++pair)
      any = any || is_out_of_range(states[pair / VECTOR][pair % VECTOR]);
    if (!any) return;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int c = 0; c < VECTOR; ++c) {
        REAL again[OUTPUTS];
        if (n + c >= a.pairs.n || !is_out_of_range(states[r][c]) ||
            !has_safe_values(again, a.pairs, params_of(a.pairs, 0), rows[r].m, n + c, 0, 0))
          continue;
#pragma unroll
        for (int p = 0; p < OUTPUTS; ++p) values[r][c][p] = again[p];
        mark_row(r, again);
      }
  }

  // VECTOR points n from place `at` of the slice on. Unless WHOLE, `count` of them have a part in the sums.
  template <bool WHOLE>
  MERCER_METHOD void take(const REAL* slice, int at, i64 n, int count) {
    const PairArguments& p = a.pairs;
    const REAL *params = params_of(p, 0), *field_params = a.field.params ? (const REAL*)a.field.params
                                                                         : (const REAL*)a.field.numbers;
    const REAL* const w = (const REAL*)p.w;
    const REAL features = (REAL)EXACT_FEATURES;
    const auto vector = [&](int row) { return *(const FewVector*)(slice + row * SLICE + at); };
    REAL slots[VECTOR][COL_SLOTS + 1], col[VECTOR];
#pragma unroll
    for (int s = 0; s < COL_SLOTS; ++s) {
      const FewVector own = vector(Z_ROWS + s);
#pragma unroll
      for (int c = 0; c < VECTOR; ++c) slots[c][s] = own.value[c];
    }
#pragma unroll
    for (int c = 0; c < VECTOR; ++c) col[c] = COL_VALUES > 0 ? vector(FIRST_COL).value[c] : (REAL)0;

    REAL states[ROWS][VECTOR][STATES + (STATES == 0)], values[ROWS][VECTOR][OUTPUTS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int c = 0; c < VECTOR; ++c) identity(states[r][c]);
#pragma unroll
    for (int k = 0; STATES > 0 && k < EXACT_FEATURES; ++k) {
      FewVector z[Z_STREAMS + (Z_STREAMS == 0)];
#pragma unroll
      for (int s = 0; s < Z_STREAMS; ++s) z[s] = vector(k * Z_STREAMS + s);
#pragma unroll
      for (int c = 0; c < VECTOR; ++c) {
        REAL own[Z_STREAMS + (Z_STREAMS == 0)];
#pragma unroll
        for (int s = 0; s < Z_STREAMS; ++s) own[s] = z[s].value[c];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
          update(states[r][c], rows[r].x[k], own, READS_WEIGHTS ? w[k] : (REAL)0, rows[r].slots, slots[c], params,
                 (REAL)(rows[r].m + p.x.offset), (REAL)(n + c + p.z.offset), features);
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int c = 0; c < VECTOR; ++c)
        epilogue(values[r][c], states[r][c], rows[r].slots, slots[c], params, (REAL)(rows[r].m + p.x.offset),
                 (REAL)(n + c + p.z.offset), features);
    if constexpr (GUARDED) take_safe_values(values, states, n);

    // What phi of a pair, or its factor, is multiplied with in the end.
    REAL weights[SUM_OUTPUTS][ROWS][VECTOR];
#pragma unroll
    for (int r = 0; WEIGHT_MATRIX && r < ROWS; ++r)
#pragma unroll
      for (int c = 0; c < VECTOR; ++c) weights[0][r][c] = next[r].value[c];
    fetch_weights(n + VECTOR);
#pragma unroll
    for (int o = 0; o < COLUMNS; ++o) {
      const FewVector coef = vector(FIRST_COEF + o);
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int c = 0; c < VECTOR; ++c) {
          if (!ONE_OUTPUT)
            weights[ONE_OUTPUT ? 0 : o][r][c] = coef.value[c];
          else if (o == 0)
            weights[0][r][c] = rows[r].weights[0] * coef.value[c];
          else
            weights[0][r][c] = mul_add(rows[r].weights[o], coef.value[c], weights[0][r][c]);
        }
    }
    add_side_sums(slice + at, weights[0], values, WHOLE ? VECTOR : count);
    REAL extra_weights[ROWS][VECTOR];
#pragma unroll
    for (int r = 0; EXTRA && r < ROWS; ++r)
#pragma unroll
      for (int c = 0; c < VECTOR; ++c)
        extra_weights[r][c] = weights[0][r][c] * extra_amplitude(values[r][c], field_params, features);
#pragma unroll
    for (int r = 0; FACTORS && r < ROWS; ++r)
#pragma unroll
      for (int c = 0; c < VECTOR; ++c) {
        const REAL own = amplitude(values[r][c], field_params, features) * SCALE;
#pragma unroll
        for (int o = 0; o < SUM_OUTPUTS; ++o) weights[o][r][c] *= own;
      }
    if (EXACT_FEATURES > MOST_KEPT) keep(at);
#pragma unroll
    for (int k = 0; k < EXACT_FEATURES; ++k) {
      const FewVector z = vector(PLAIN_Z ? k : FIRST_POINT + k);
      const REAL weight = READS_WEIGHTS ? w[k] : (REAL)0;
#pragma unroll
      for (int c = 0; c < VECTOR; ++c)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          REAL own;
          if constexpr (FACTORS) {
            own = factor(rows[r].point[k], z.value[c], weight, field_params, features);
            if (WEIGHTED) own *= weight_of(weight);
          } else {
            own = phi(rows[r].point[k], z.value[c], weight, rows[r].value, &col[c], values[r][c], field_params,
                      features);
          }
#pragma unroll
          for (int o = 0; o < SUM_OUTPUTS; ++o)
            if (WHOLE || c < count) sum[o][r][k] = mul_add(weights[o][r][c], own, sum[o][r][k]);
          if constexpr (EXTRA) {
            const REAL other = extra_phi(rows[r].point[k], z.value[c], weight, rows[r].value, &col[c], values[r][c],
                                         field_params, features);
            REAL& to = side_sums[FIRST_EXTRA + k][r];
            if (WHOLE || c < count) to = mul_add(extra_weights[r][c], other, to);
          }
        }
    }
  }

  MERCER_METHOD void promote() {
#pragma unroll
    for (int o = 0; o < SUM_OUTPUTS; ++o)
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < EXACT_FEATURES; ++k) {
          total[o][r][k] += sum[o][r][k];
          sum[o][r][k] = 0;
        }
  }

  MERCER_METHOD void promote_side_sums() {
#pragma unroll
    for (int i = 0; i < SIDE_SUMS; ++i)
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        side_total[i][r] += side_sums[i][r];
        side_sums[i][r] = 0;
      }
  }

  MERCER_METHOD void run(REAL* shared) {
    const i64 slices = (a.pairs.n + SLICE - 1) / SLICE;
    const i64 first = slices * blockIdx.y / gridDim.y, end = slices * (blockIdx.y + 1) / gridDim.y;
    start_marks();
    if (first < end) {
      copy(shared, first * SLICE);
      fetch_weights(first * SLICE);
    }
    commit_copies();
#pragma unroll 1
    for (i64 s = first; s < end; ++s) {
      wait_copies<0>();
      __syncthreads();
      if (s + 1 < end) copy(shared + (s + 1 - first & 1) * (SLICE_ROWS * SLICE), (s + 1) * SLICE);
      commit_copies();
      const REAL* slice = shared + (s - first & 1) * (SLICE_ROWS * SLICE);
      const i64 n0 = s * SLICE, left = a.pairs.n - n0;
#pragma unroll 1
      for (int at = 0; at < SLICE && at < left; at += VECTOR) {
        if (at + VECTOR <= left)
          take<true>(slice, at, n0 + at, VECTOR);
        else
          take<false>(slice, at, n0 + at, (int)left - at);
      }
      const i64 since = (s - first) % SUM_SLICES;
      const bool promotes = since == SUM_SLICES - 1 || s + 1 == end;
      sum_marked(s, (s - since) * SLICE, promotes);
      promote_side_sums();
      if (promotes) promote();
    }
  }

  MERCER_METHOD void store() const {
    REAL* const out = (REAL*)a.field.out + (i64)blockIdx.y * a.field.out_split;
    const i64 m0 = (i64)blockIdx.x * (FEW_THREADS * ROWS) + threadIdx.x;
#pragma unroll
    for (int o = 0; o < SUM_OUTPUTS; ++o)
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const i64 m = m0 + r * FEW_THREADS;
        if (m >= a.pairs.m || (!ONE_OUTPUT && o >= a.field.outputs)) continue;
#pragma unroll
        for (int k = 0; k < EXACT_FEATURES; ++k)
          out[o * a.field.out_output + m * a.field.out_row + k * a.field.out_feature] = total[o][r][k];
      }
    REAL* const sums = (REAL*)a.side_sums + (i64)blockIdx.y * SIDE_SUMS * a.pairs.m;
#pragma unroll
    for (int i = 0; i < SIDE_SUMS; ++i)
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        if (m0 + r * FEW_THREADS < a.pairs.m) sums[i * a.pairs.m + m0 + r * FEW_THREADS] = (REAL)side_total[i][r];
  }
};

extern "C" __global__ void __launch_bounds__(FEW_THREADS, BLOCKS)
    few_features(const __grid_constant__ FewFeaturesArguments a) {
  extern __shared__ __align__(16) unsigned char shared[];
  FewFeatures field(a);
  field.run((REAL*)shared);
  field.store();
}
