// A pair of a row as an integer, in the order of values, then of columns: zeros of both signs are equal, NaN is last.
#pragma once

#include "common/prelude.cuh"

MERCER_INLINE u64 candidate_key(float value, i64 n) {
  const u32 key = value == value ? ordered(value + 0.0f) : 0xffffffffu;
  return (u64)key << 32 | (u32)n;
}
MERCER_INLINE float value_of(u64 key) { return float_in_order((u32)(key >> 32)); }
