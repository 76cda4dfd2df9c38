// The nearest of each row's candidates (candidates.cuh), a block a row: `tighten` keeps the smallest and lowers the
// bound, `rank` computes what is left from the points themselves, sorts and writes it. `scan_rows` looks at all pairs
// of the rows that had more candidates than there is room for, or fewer than wanted: ties, NaN and infinities.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "nearest/candidate_keys.cuh"
#include "pairs/pair_params.cuh"

#define RANK_THREADS 256  // at most; a warp where rows have few candidates
#define RANK_CHUNK 128  // features whose sums are added up at once

struct PairPoints {
  REAL row[ROW_SLOTS + 1], col[COL_SLOTS + 1], i, j, features;
  const REAL* params;
  MERCER_METHOD PairPoints(const PairArguments& p, i64 m, i64 n) {
#pragma unroll
    for (int s = 0; s < ROW_SLOTS; ++s) row[s] = ((const REAL*)p.x.user)[s * p.x.ld + m];
#pragma unroll
    for (int s = 0; s < COL_SLOTS; ++s) col[s] = ((const REAL*)p.z.user)[s * p.z.ld + n];
    i = (REAL)(m + p.x.offset);
    j = (REAL)(n + p.z.offset);
    features = (REAL)p.features;
    params = params_of(p, 0);
  }
  MERCER_METHOD float value(const REAL* acc) const {
    REAL outputs[OUTPUTS];
    epilogue(outputs, acc, row, col, params, i, j, features);
    return outputs[0];
  }
};

// The value of a pair, by one thread.
MERCER_INLINE float pair_value(const PairArguments& p, i64 m, i64 n) {
  REAL acc[STATES + (STATES == 0)];
  double total[STATES + (STATES == 0)] = {};
  const PairPoints at(p, m, n);
  const REAL* x = (const REAL*)p.x.points + m / MERCER_PANEL * p.k * X_STREAMS * MERCER_PANEL + m % MERCER_PANEL;
  const REAL* z = (const REAL*)p.z.points + n / MERCER_PANEL * p.k * Z_STREAMS * MERCER_PANEL + n % MERCER_PANEL;
  identity(acc);
  for (int k0 = 0; k0 < p.k; k0 += RANK_CHUNK) {
    const int end = p.k - k0 < RANK_CHUNK ? p.k : k0 + RANK_CHUNK;
#pragma unroll 4
    for (int k = k0; k < end; ++k) {
      REAL xs[X_STREAMS + (X_STREAMS == 0)], zs[Z_STREAMS + (Z_STREAMS == 0)];
#pragma unroll
      for (int s = 0; s < X_STREAMS; ++s) xs[s] = x[((i64)k * X_STREAMS + s) * MERCER_PANEL];
#pragma unroll
      for (int s = 0; s < Z_STREAMS; ++s) zs[s] = z[((i64)k * Z_STREAMS + s) * MERCER_PANEL];
      update(acc, xs, zs, READS_WEIGHTS ? ((const REAL*)p.w)[k] : (REAL)0, at.row, at.col, at.params, at.i, at.j,
             at.features);
    }
#pragma unroll
    for (int s = 0; !BYTES && s < STATES; ++s)
      if (is_promoted(s)) {
        total[s] += acc[s];
        acc[s] = 0;
      }
  }
  if constexpr (BYTES) acc[0] = (float)bits_of(acc[0]);
#pragma unroll
  for (int s = 0; !BYTES && s < STATES; ++s)
    if (is_promoted(s)) acc[s] = (REAL)total[s];
  REAL outputs[OUTPUTS];
  if (is_out_of_range(acc) && has_safe_values(outputs, p, params_of(p, 0), m, n, 0, 0)) return outputs[0];
  return at.value(acc);
}

#if RECOMPUTES
MERCER_INLINE void compute_again(u64* keys, u32 count, const PairArguments& p, i64 m) {
#if SPLIT
  // Rows of values are there (split_operands.cuh): a warp a pair.
  for (u32 i = threadIdx.x / 32; i < count; i += blockDim.x / 32) {
    const i64 n = (u32)keys[i];
    const REAL sum = (REAL)direct_sum<1>(p, m, n);
    float value = PairPoints(p, m, n).value(&sum);
    REAL outputs[OUTPUTS];
    if (is_out_of_range(&sum) && has_safe_values(outputs, p, params_of(p, 0), m, n, 0, 0)) value = outputs[0];
    __syncwarp();  // all have read the key
    if (threadIdx.x % 32 == 0) keys[i] = candidate_key(value, n);
  }
#else
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
    const i64 n = (u32)keys[i];
    keys[i] = candidate_key(pair_value(p, m, n), n);
  }
#endif
  __syncthreads();
}
#endif

// Bitonic; places after the last key take the largest. Returns with all threads at one point.
MERCER_INLINE void sort_keys(u64* keys, u32 count) {
  u32 size = 1;
  while (size < count) size *= 2;
  for (u32 i = count + threadIdx.x; i < size; i += blockDim.x) keys[i] = ~0ull;
  __syncthreads();
  for (u32 run = 2; run <= size; run *= 2)
    for (u32 gap = run / 2; gap > 0; gap /= 2) {
      for (u32 at = threadIdx.x; at < size / 2; at += blockDim.x) {
        const u32 i = at / gap * gap * 2 + at % gap, other = i + gap;
        const u64 a = keys[i], b = keys[other];
        if ((b < a) != ((i & run) == 0)) continue;
        keys[i] = b;
        keys[other] = a;
      }
      __syncthreads();
    }
}

// A row's candidates, sorted; their number, or 0 where the row is left to scan_rows.
MERCER_INLINE u32 sorted_candidates(u64* keys, const CandidateArguments& found, i64 m, u32 least) {
  const u32 count = found.counts[m];
  if (found.bounds[m] != found.bounds[m]) return 0;
  if (count < least || count > found.capacity) {
    __syncthreads();
    if (threadIdx.x == 0) found.bounds[m] = float_of(0x7fffffffu);
    return 0;
  }
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) keys[i] = found.keys[m * found.capacity + i];
  sort_keys(keys, count);
  return count;
}

MERCER_INLINE void write_nearest(const RankArguments& a, i64 m, const u64* keys) {
  for (u32 i = threadIdx.x; i < a.count; i += blockDim.x) {
    ((float*)a.out_values)[m * a.out_values_row + i * a.out_values_col] = value_of(keys[i]);
    ((i64*)a.out_indices)[m * a.out_indices_row + i * a.out_indices_col] = (u32)keys[i];
  }
}

extern "C" __global__ void __launch_bounds__(RANK_THREADS) tighten(const __grid_constant__ RankArguments a) {
  extern __shared__ __align__(16) u64 keys[];
  const CandidateArguments& found = a.pairs.found;
  const i64 m = blockIdx.x;
  const u32 count = sorted_candidates(keys, found, m, 1);
  const u32 kept = count < a.kept ? count : a.kept;
  for (u32 i = threadIdx.x; i < kept; i += blockDim.x) found.keys[m * found.capacity + i] = keys[i];
  if (threadIdx.x != 0 || count == 0) return;
  found.counts[m] = kept;
  if (kept == a.kept) found.bounds[m] = value_of(keys[kept - 1]);
}

extern "C" __global__ void __launch_bounds__(RANK_THREADS) rank(const __grid_constant__ RankArguments a) {
  extern __shared__ __align__(16) u64 keys[];
  const i64 m = blockIdx.x;
  const u32 count = sorted_candidates(keys, a.pairs.found, m, a.count);
  if (count == 0) return;
#if RECOMPUTES
  const u32 kept = count < a.kept ? count : a.kept;
  compute_again(keys, kept, a.pairs, m);
  sort_keys(keys, kept);
#endif
  write_nearest(a, m, keys);
}

extern "C" __global__ void __launch_bounds__(RANK_THREADS) scan_rows(const __grid_constant__ RankArguments a) {
  extern __shared__ __align__(16) u64 keys[];
  __shared__ u32 kept;
  __shared__ u64 limit;
  const PairArguments& p = a.pairs;
#pragma unroll 1
  for (i64 m = blockIdx.x; m < p.m; m += gridDim.x) {
    const float bound = p.found.bounds[m];
    if (bound == bound) continue;
    if (threadIdx.x == 0) {
      kept = 0;
      limit = ~0ull;
    }
    __syncthreads();
#pragma unroll 1
    for (i64 n0 = 0; n0 < p.n; n0 += RANK_THREADS) {
      const i64 n = n0 + threadIdx.x;
      const u64 key = n < p.n ? candidate_key(pair_value(p, m, n), n) : ~0ull;
      if (key < limit) keys[atomicAdd(&kept, 1u)] = key;
      __syncthreads();
      const u32 count = kept;
      __syncthreads();
      if (count + RANK_THREADS <= p.found.capacity && n0 + RANK_THREADS < p.n) continue;
      sort_keys(keys, count);
      if (threadIdx.x == 0 && count >= a.count) {
        kept = a.count;
        limit = keys[a.count - 1];
      }
      __syncthreads();
    }
    write_nearest(a, m, keys);
    __syncthreads();
  }
}
