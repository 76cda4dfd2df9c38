// Pairs of products that cancel are listed by areas of MERCER_AREA x MERCER_AREA pairs, each with a list of its own:
// what repairs read of an area's points is near, and a list that is too short is so for its area alone.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

MERCER_INLINE u32 areas_along(i64 points) { return (u32)((points + MERCER_AREA - 1) / MERCER_AREA); }
MERCER_INLINE u32 area_of(const PairArguments& a, i64 m, i64 n) {
  return (u32)(m / MERCER_AREA) * areas_along(a.n) + (u32)(n / MERCER_AREA);
}
MERCER_INLINE const u32* pairs_of_area(const PairArguments& a, u32 area) {
  return a.split.area_pairs + (i64)area * a.split.area_capacity;
}
MERCER_INLINE u32 row_in_area(u32 pair) { return pair >> 16; }
MERCER_INLINE u32 column_in_area(u32 pair) { return pair & 0xffff; }
