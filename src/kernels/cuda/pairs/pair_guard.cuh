// Pairs of a tile whose sums left the range of normal numbers get their values again (safe_norms.cuh). After its sums a
// thread asks once for all of its pairs; what follows is a function of its own, whose registers are not the tile's.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"
#include "pairs/safe_norms.cuh"

MERCER_INLINE float smaller(float a, float b) { return fminf(a, b); }
MERCER_INLINE float larger(float a, float b) { return fmaxf(a, b); }
MERCER_INLINE double smaller(double a, double b) { return fmin(a, b); }
MERCER_INLINE double larger(double a, double b) { return fmax(a, b); }

// The thread's pairs that are out of range, a bit each, row by row: by minima and maxima for almost all threads.
MERCER_INLINE u64 marked_pairs(const Accumulators& acc) {
  constexpr int kPairs = THREAD_M * THREAD_N, kChains = kPairs < 4 ? kPairs : 4;
  bool any = false;
#pragma unroll
  for (int q = 0; q < NORMS; ++q) {
    REAL least[kChains], most[kChains];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const REAL sum = magnitude(acc.value[pair / THREAD_N][pair % THREAD_N][guarded_state(q)]);
      least[pair % kChains] = pair < kChains ? sum : smaller(least[pair % kChains], sum);
      most[pair % kChains] = pair < kChains ? sum : larger(most[pair % kChains], sum);
    }
#pragma unroll
    for (int c = 1; c < kChains; ++c) least[0] = smaller(least[0], least[c]), most[0] = larger(most[0], most[c]);
    any = any || least[0] < GUARD_LEAST || most[0] >= GUARD_MOST;
  }
  u64 marked = 0;
  if (!any) return marked;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair)
    if (is_out_of_range(acc.value[pair / THREAD_N][pair % THREAD_N])) marked |= (u64)1 << pair;
  return marked;
}

// take(pair, m, n, outputs) for the marked pairs of a thread, counted from `first` on. A warp shares the features of
// one pair after the other; where most threads have some, each computes its own.
template <class Take>
MERCER_INLINE void for_marked(u64 marked, int first, const PairArguments& a, const REAL* params, const TilePlace& place,
                              const Take& take) {
  constexpr u32 kAll = 0xffffffffu, kThreadsOfWarp = 8;  // what sharing costs on top of the features
  const Position own = position();
  const auto is_there = [&](const GuardedPair& pair) {
    return pair.m < a.m && pair.n < a.n && (CONSUMER != STORE || !a.symmetric || pair.n >= pair.m);
  };
  const u32 count = __popcll(marked), all = __reduce_add_sync(kAll, count), most = __reduce_max_sync(kAll, count);
  if (!GUARD_MERGES || all > kThreadsOfWarp * most) {
#pragma unroll 1
    for (; marked; marked &= marked - 1) {
      const int at = __ffsll((long long)marked) - 1, of_thread = first + at;
      const GuardedPair pair = {place.m0 + row_of(own, of_thread / THREAD_N),
                                place.n0 + col_of(own, of_thread % THREAD_N), place.x_set, place.z_set};
      if (!is_there(pair) || are_equal<1>(a, pair)) continue;
      REAL outputs[OUTPUTS];
      safe_values<1>(outputs, a, params, pair);
      take(at, pair, outputs);
    }
    return;
  }
#pragma unroll 1
  for (u32 owners = __ballot_sync(kAll, marked != 0); owners; owners = __ballot_sync(kAll, marked != 0)) {
    const int owner = __ffs(owners) - 1, at = __shfl_sync(kAll, __ffsll((long long)marked) - 1, owner);
    const int row = row_of(own, (first + at) / THREAD_N), column = col_of(own, (first + at) % THREAD_N);
    const GuardedPair pair = {place.m0 + __shfl_sync(kAll, row, owner), place.n0 + __shfl_sync(kAll, column, owner),
                              place.x_set, place.z_set};
    const bool is_own = threadIdx.x % 32 == owner;
    if (is_own) marked &= marked - 1;
    if (!is_there(pair) || are_equal<GUARD_LANES>(a, pair)) continue;
    REAL outputs[OUTPUTS];
    safe_values<GUARD_LANES>(outputs, a, params, pair);
    if (is_own) take(at, pair, outputs);
  }
}

static __device__ __noinline__ void store_again(u64 marked, const PairArguments& a, const REAL* params, OUT* out,
                                                i64 m0, i64 n0, i64 x_set, i64 z_set) {
  for_marked(marked, 0, a, params, {m0, n0, x_set, z_set},
             [&](int, const GuardedPair& pair, const REAL (&outputs)[OUTPUTS]) {
#pragma unroll
    for (int p = 0; p < OUTPUTS; ++p) {
      OUT value;
      convert(value, outputs[p]);
      OUT* const plane = out + p * a.out.plane;
      plane[pair.m * a.out.row + pair.n * a.out.column] = value;
      if (a.symmetric) plane[pair.n * a.out.row + pair.m * a.out.column] = value;
    }
  });
}

// The values of marked pairs, each at its own place of `again`; which of them are new.
static __device__ __noinline__ u64 values_again(REAL* again, u64 marked, int first, const PairArguments& a,
                                                const REAL* params, i64 m0, i64 n0, i64 x_set, i64 z_set) {
  u64 found = 0;
  for_marked(marked, first, a, params, {m0, n0, x_set, z_set},
             [&](int at, const GuardedPair&, const REAL (&outputs)[OUTPUTS]) {
    found |= (u64)1 << at;
    again[at] = outputs[0];
  });
  return found;
}

// COUNT values of a thread from pair `first` on.
template <int COUNT, class Value>
MERCER_INLINE void take_again(u64 marked, int first, const PairArguments& a, const REAL* params, const TilePlace& place,
                              const Value& value) {
  if (!__any_sync(0xffffffffu, marked != 0)) return;
  REAL again[COUNT];
  marked = values_again(again, marked, first, a, params, place.m0, place.n0, place.x_set, place.z_set);
#pragma unroll
  for (int at = 0; at < COUNT; ++at) {
    REAL& own = value(at);
    if (!(marked >> at & 1)) continue;
    own = SUMS_DECIDE ? sum_key(own, again[at]) : again[at];
  }
}
