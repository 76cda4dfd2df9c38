// The gradient field: pairs' values contracted with φ over n.
//
//   out[o][m][k] = sum over n of coef[o][n] * phi(x[m][k], z[n][k], pair[·][m][n], row[m], col[n], w[k], …)
//
// A block owns TILE_R rows m and TILE_F features k; a thread THREAD_R x THREAD_F of them for OUTPUTS outputs, all in
// registers. n passes in slices through shared memory, four at a time into registers:
//
//        k ─────▶               z      [TILE_F][SLICE + pad]    one row a feature
//     m  ┌───────────┐          pair   [PLANES][TILE_R][…]      one row a point m
//     │  │ TILE_R x  │          coef   [SLICE][OUTPUTS]         read by all threads alike
//     ▼  │ TILE_F    │          col    [COL_VALUES][…]
//        └───────────┘
//
// With FACTORS φ is SCALE amplitude(pairs' values) factor(x, z, w), times weight_of(w) where that is WEIGHTED: the
// amplitude goes to the coefficients, once for all features of a thread.
//
// With FOLDS a thread has STATES of each in place of a sum, which follow combine() n by n; finished() makes results.
//
// Sums are promoted every FIELD_CHUNK points to shared memory. blockIdx.z: a range of n, with partial results.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define FIELD_THREADS 256
#define THREADS_F 16
#define THREADS_R 16
#define TILE_F (THREADS_F * THREAD_F)
#define TILE_R (THREADS_R * THREAD_R)
#define VECTOR (16 / (int)sizeof(REAL))
#define SLICE 32
#define SLICE_ROW (SLICE + VECTOR)
#define COEF_ROW ((OUTPUTS + VECTOR - 1) / VECTOR * VECTOR)
#define SLICE_SIZE ((TILE_F + PLANES * TILE_R + COL_VALUES) * SLICE_ROW + SLICE * COEF_ROW)
#define FIELD_CHUNK 512

struct FieldTile {
  REAL value[OUTPUTS][THREAD_R][THREAD_F][STATES];
};

// Rows of one array into a slice, `left` points of them; those after the last row repeat it.
MERCER_INLINE void copy_rows(REAL* to, const REAL* from, i64 ld, i64 first, i64 rows, int count, i64 left) {
  for (int c = threadIdx.x; c < count * (SLICE / VECTOR); c += FIELD_THREADS) {
    const int row = c / (SLICE / VECTOR), at = c % (SLICE / VECTOR) * VECTOR;
    const i64 wanted = first + row, source = wanted < rows ? wanted : rows - 1;
    if (at < left) copy_16(to + row * SLICE_ROW + at, from + source * ld + at);
  }
}

MERCER_INLINE bool is_marked(const FieldArguments& a, i64 m, i64 k) {
  return !MARKED || a.marks == nullptr || a.marks[m * ((a.k + 63) / 64) + k / 64] != 0;
}
// Whether there is anything to do for the tile: products on tensor cores leave some (field_products.cuh). A tile lies
// within 64 features.
MERCER_INLINE bool is_wanted(const FieldArguments& a, i64 m0, i64 k0) {
  if (!MARKED || a.marks == nullptr) return true;
  bool found = false;
  for (int r = threadIdx.x; r < TILE_R && m0 + r < a.m; r += FIELD_THREADS) found = found || is_marked(a, m0 + r, k0);
  return __syncthreads_or(found);
}

#if BEYOND
// Rows of the tile with a pair that is marked among points n, by warps.
MERCER_INLINE void find_marked_rows(const FieldArguments& a, bool* rows, i64 m0, i64 first, i64 end) {
#pragma unroll 1
  for (int r = threadIdx.x / 32; r < TILE_R && m0 + r < a.m; r += FIELD_THREADS / 32) {
    const REAL* const row = (const REAL*)a.pair + MARK_PLANE * a.pair_plane + (m0 + r) * a.pair_row;
    bool found = false;
#pragma unroll 4
    for (i64 n = first + threadIdx.x % 32; n < end; n += 32) found |= is_mark(row[n]);
    found = __any_sync(0xffffffffu, found);
    if (threadIdx.x % 32 == 0) rows[r] = found;
  }
}
// A sum of points n that marked pairs have made no number, again. Inlined: ptxas gives a kernel that calls a function
// more registers, 172 for 128 or 121 for 80.
MERCER_INLINE void sum_again(const FieldArguments& a, REAL& own, i64 m, int k, int o, i64 first, i64 end) {
  count_again();
  const REAL* params = a.params ? (const REAL*)a.params : (const REAL*)a.numbers;
  const REAL features = (REAL)a.k, w = READS_WEIGHTS ? ((const REAL*)a.w)[k] : (REAL)0;
  const REAL x = ((const REAL*)a.x)[k * a.x_ld + m], row[1] = {READS_ROW ? ((const REAL*)a.row)[m] : (REAL)0};
  double sum = 0;
#pragma unroll 1
  for (i64 n = first; n < end && sum == sum; ++n) {
    REAL pair[PLANES + 1];
#pragma unroll
    for (int p = 0; p < PLANES; ++p) pair[p] = ((const REAL*)a.pair)[p * a.pair_plane + m * a.pair_row + n];
    double value;
    if (is_mark(pair[MARK_PLANE])) {
      const BeyondPair points = {(const REAL*)a.x + m, (const REAL*)a.z + n, (const REAL*)a.w, a.x_ld, a.z_ld, a.k};
      value = beyond<BeyondPhi>(points, k, (double)pair[PLANES - 1], params);
    } else {
      const REAL z = ((const REAL*)a.z)[k * a.z_ld + n];
      if constexpr (FACTORS) {
        value = (double)(amplitude(pair, params, features) * SCALE) * factor(x, z, w, params, features);
        if (WEIGHTED) value *= weight_of(w);
      } else {
        const REAL col = COL_VALUES > 0 ? ((const REAL*)a.col)[n] : (REAL)0;
        value = phi(x, z, w, row, &col, pair, params, features);
      }
    }
    sum += ((const REAL*)a.coef)[n * a.coef_ld + o] * value;
  }
  own = (REAL)sum;
}
#endif

extern "C" __global__ void __launch_bounds__(FIELD_THREADS) field(const __grid_constant__ FieldArguments a) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  REAL* const shared = (REAL*)shared_bytes;
  REAL* const promoted = shared + 2 * SLICE_SIZE;
  const int tf = threadIdx.x % THREADS_F, tr = threadIdx.x / THREADS_F;
  const i64 k0 = (i64)blockIdx.x * TILE_F, m0 = (i64)blockIdx.y * TILE_R;
  if (!is_wanted(a, m0, k0)) return;
  const i64 slices = (a.n + SLICE - 1) / SLICE;
  const i64 first = slices * blockIdx.z / gridDim.z, end = slices * (blockIdx.z + 1) / gridDim.z;
  const REAL* params = a.params ? (const REAL*)a.params : (const REAL*)a.numbers;
  const REAL features = (REAL)a.k;

  // Rows and features of a thread lie THREADS apart, so that neighbours read neighbouring rows of shared memory.
  REAL x[THREAD_R][THREAD_F], w[THREAD_F], row[THREAD_R][2];
#pragma unroll
  for (int f = 0; f < THREAD_F; ++f) {
    const i64 k = k0 + f * THREADS_F + tf < a.k ? k0 + f * THREADS_F + tf : a.k - 1;
    w[f] = READS_WEIGHTS ? ((const REAL*)a.w)[k] : (REAL)0;
#pragma unroll
    for (int r = 0; r < THREAD_R; ++r) {
      const i64 m = m0 + r * THREADS_R + tr < a.m ? m0 + r * THREADS_R + tr : a.m - 1;
      x[r][f] = READS_X ? ((const REAL*)a.x)[k * a.x_ld + m] : (REAL)0;
      row[r][0] = READS_ROW ? ((const REAL*)a.row)[m] : (REAL)0;
    }
  }
  FieldTile acc;
#pragma unroll
  for (int o = 0; o < OUTPUTS; ++o)
#pragma unroll
    for (int r = 0; r < THREAD_R; ++r)
#pragma unroll
      for (int f = 0; f < THREAD_F; ++f) {
        if constexpr (FOLDS)
          identity(acc.value[o][r][f]);
        else
          acc.value[o][r][f][0] = 0;
      }

  auto copy = [&](i64 slice) {
    if (slice < end) {
      REAL* to = shared + (slice & 1) * SLICE_SIZE;
      const i64 n = slice * SLICE;
      copy_rows(to, (const REAL*)a.z + n, a.z_ld, k0, a.k, TILE_F, a.n - n);
      to += TILE_F * SLICE_ROW;
      for (int p = 0; p < PLANES; ++p, to += TILE_R * SLICE_ROW)
        copy_rows(to, (const REAL*)a.pair + p * a.pair_plane + n, a.pair_row, m0, a.m, TILE_R, a.n - n);
      if (COL_VALUES > 0) copy_rows(to, (const REAL*)a.col + n, 0, 0, 1, COL_VALUES, a.n - n);
      to += COL_VALUES * SLICE_ROW;
      for (int c = threadIdx.x; c < SLICE * (COEF_ROW / VECTOR); c += FIELD_THREADS) {
        const int row = c / (COEF_ROW / VECTOR), at = c % (COEF_ROW / VECTOR) * VECTOR;
        if (n + row < a.n) copy_16(to + row * COEF_ROW + at, (const REAL*)a.coef + (n + row) * a.coef_ld + at);
      }
    }
    commit_copies();
  };
  auto contract = [&](const REAL (&z)[THREAD_F], const REAL (&pair)[THREAD_R][PLANES + 1], REAL col,
                      const REAL* coefs) {
    REAL coef[COEF_ROW];
#pragma unroll
    for (int o = 0; o < COEF_ROW; o += VECTOR) {
      const Pack<REAL, VECTOR> pack = *(const Pack<REAL, VECTOR>*)(coefs + o);
#pragma unroll
      for (int c = 0; c < VECTOR; ++c) coef[o + c] = pack.value[c];
    }
#pragma unroll
    for (int r = 0; r < THREAD_R; ++r) {
      REAL of_pair[OUTPUTS];
      const REAL* const weights = FACTORS ? of_pair : coef;
      if constexpr (FACTORS) {
        const REAL own = amplitude(pair[r], params, features) * SCALE;
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o) of_pair[o] = coef[o] * own;
      }
#pragma unroll
      for (int f = 0; f < THREAD_F; ++f) {
        if constexpr (FOLDS) {
#pragma unroll
          for (int o = 0; o < OUTPUTS; ++o)
            combine(acc.value[o][r][f], weights[o], x[r][f], z[f], w[f], row[r], &col, pair[r], params, features);
        } else {
          REAL value;
          if constexpr (FACTORS)
            value = factor(x[r][f], z[f], w[f], params, features);
          else
            value = phi(x[r][f], z[f], w[f], row[r], &col, pair[r], params, features);
#pragma unroll
          for (int o = 0; o < OUTPUTS; ++o) acc.value[o][r][f][0] = mul_add(weights[o], value, acc.value[o][r][f][0]);
        }
      }
    }
  };
  auto promote = [&](bool first_time, bool last) {
    int slot = 0;
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o)
#pragma unroll
      for (int r = 0; r < THREAD_R; ++r)
#pragma unroll
        for (int f = 0; f < THREAD_F; ++f)
#pragma unroll
          for (int s = 0; s < STATES; ++s, ++slot) {
            if (!is_summed(s)) continue;
            REAL& sum = promoted[slot * FIELD_THREADS + threadIdx.x];
            REAL& own = acc.value[o][r][f][s];
            const REAL total = first_time ? own : sum + own;
            if (!last) sum = total;
            own = last ? total : (REAL)0;
          }
  };

  copy(first);
  bool promoted_before = false;
  for (i64 s = first; s < end; ++s) {
    wait_copies<0>();
    __syncthreads();
    copy(s + 1);
    const REAL* zs = shared + (s & 1) * SLICE_SIZE;
    const REAL* pairs = zs + TILE_F * SLICE_ROW;
    const REAL* cols = pairs + PLANES * TILE_R * SLICE_ROW;
    const REAL* coefs = cols + COL_VALUES * SLICE_ROW;
    const int count = a.n - s * SLICE < SLICE ? (int)(a.n - s * SLICE) : SLICE;
#pragma unroll 1
    for (int n = 0; n + VECTOR <= count; n += VECTOR) {
      Pack<REAL, VECTOR> z[THREAD_F], pair[THREAD_R][PLANES + 1];
#pragma unroll
      for (int f = 0; f < THREAD_F; ++f)
        z[f] = *(const Pack<REAL, VECTOR>*)(zs + (f * THREADS_F + tf) * SLICE_ROW + n);
#pragma unroll
      for (int r = 0; r < THREAD_R; ++r)
#pragma unroll
        for (int p = 0; p < PLANES; ++p)
          pair[r][p] = *(const Pack<REAL, VECTOR>*)(pairs + (p * TILE_R + r * THREADS_R + tr) * SLICE_ROW + n);
#pragma unroll
      for (int c = 0; c < VECTOR; ++c) {
        REAL z_now[THREAD_F], pair_now[THREAD_R][PLANES + 1];
#pragma unroll
        for (int f = 0; f < THREAD_F; ++f) z_now[f] = z[f].value[c];
#pragma unroll
        for (int r = 0; r < THREAD_R; ++r)
#pragma unroll
          for (int p = 0; p < PLANES; ++p) pair_now[r][p] = pair[r][p].value[c];
        contract(z_now, pair_now, COL_VALUES > 0 ? cols[n + c] : (REAL)0, coefs + (n + c) * COEF_ROW);
      }
    }
#pragma unroll 1
    for (int n = count / VECTOR * VECTOR; n < count; ++n) {
      REAL z[THREAD_F], pair[THREAD_R][PLANES + 1];
#pragma unroll
      for (int f = 0; f < THREAD_F; ++f) z[f] = zs[(f * THREADS_F + tf) * SLICE_ROW + n];
#pragma unroll
      for (int r = 0; r < THREAD_R; ++r)
#pragma unroll
        for (int p = 0; p < PLANES; ++p) pair[r][p] = pairs[(p * TILE_R + r * THREADS_R + tr) * SLICE_ROW + n];
      contract(z, pair, COL_VALUES > 0 ? cols[n] : (REAL)0, coefs + n * COEF_ROW);
    }
    if ((s - first + 1) % (FIELD_CHUNK / SLICE) == 0 && s + 1 < end) {
      promote(!promoted_before, false);
      promoted_before = true;
    }
  }
  if (promoted_before) promote(false, true);
  REAL* out = (REAL*)a.out + (i64)blockIdx.z * a.out_split;
  u64 again = 0;
#pragma unroll
  for (int o = 0; o < OUTPUTS; ++o)
#pragma unroll
    for (int r = 0; r < THREAD_R; ++r)
#pragma unroll
      for (int f = 0; f < THREAD_F; ++f) {
        const i64 m = m0 + r * THREADS_R + tr, k = k0 + f * THREADS_F + tf;
        if (o < a.outputs && m < a.m && k < a.k && is_marked(a, m, k)) {
          REAL own;
          if constexpr (FOLDS)
            own = finished(acc.value[o][r][f], row[r], params, features);
          else
            own = WEIGHTED ? acc.value[o][r][f][0] * weight_of(w[f]) : acc.value[o][r][f][0];
          if (BEYOND && own != own) again |= (u64)1 << ((o * THREAD_R + r) * THREAD_F + f);
          out[o * a.out_output + m * a.out_row + k * a.out_feature] = own;
        }
      }
#if BEYOND
  // After all stores, where registers are free and slices are done with.
  if (!__syncthreads_or(again != 0)) return;
  const i64 first_n = first * SLICE, end_n = end * SLICE < a.n ? end * SLICE : a.n;
  bool* const marked = (bool*)shared;
  find_marked_rows(a, marked, m0, first_n, end_n);
  __syncthreads();
#pragma unroll 1
  for (; again; again &= again - 1) {
    const int at = __ffsll((long long)again) - 1, f = at % THREAD_F, r = at / THREAD_F % THREAD_R;
    const int o = at / (THREAD_F * THREAD_R), k = (int)k0 + f * THREADS_F + tf;
    const i64 m = m0 + r * THREADS_R + tr;
    if (marked[r * THREADS_R + tr])
      sum_again(a, out[o * a.out_output + m * a.out_row + k * a.out_feature], m, k, o, first_n, end_n);
  }
#endif
}
