// A plan whose sums stay in the range of normal numbers, or whose values do not mind: what stands in the place of
// safe_norms.cuh and pair_guard.cuh, so that kernels need not ask. No sum is out of range, so nothing else is called.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define GUARDED 0
#define SUMS_DECIDE 0
#define GUARD_LANES 1

struct GuardedPair {
  i64 m, n, x_set, z_set;
};
MERCER_INLINE bool is_out_of_range(const REAL*) { return false; }
template <int LANES>
MERCER_INLINE bool are_equal(const PairArguments&, const GuardedPair&) {
  return true;
}
template <int LANES>
MERCER_INLINE void safe_values(REAL (&)[OUTPUTS], const PairArguments&, const REAL*, const GuardedPair&) {}
MERCER_INLINE bool has_safe_values(REAL (&)[OUTPUTS], const PairArguments&, const REAL*, i64, i64, i64, i64) {
  return false;
}
MERCER_INLINE float sum_key(float, float value) { return value; }

// pair_guard.cuh has these for a tile of pairs.
template <class Sums>
MERCER_INLINE u64 marked_pairs(const Sums&) {
  return 0;
}
MERCER_INLINE void store_again(u64, const PairArguments&, const REAL*, OUT*, i64, i64, i64, i64) {}
template <int COUNT, class Place, class Value>
MERCER_INLINE void take_again(u64, int, const PairArguments&, const REAL*, const Place&, const Value&) {}
