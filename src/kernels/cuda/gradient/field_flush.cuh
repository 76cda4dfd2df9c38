// Sums of floats, which go to totals in shared memory every FLUSH_STAGES stages (field_products.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gradient/field_shape.cuh"

MERCER_INLINE float sum_of(const FieldSums& sums, int q, int i) { return sums.of[q][place_of(i, 0)]; }
// Sums of the pieces, of so many stages, are added to the totals, or begin them; `last`: the totals stay in the sums.
MERCER_INLINE void flush(FieldSums& sums, const FieldShared& shared, int stages, bool begins, bool last) {
  const u32 totals = shared.totals + threadIdx.x * 16;
  const float grown = 1 + GIVEN_BACK * stages;
#pragma unroll
  for (int unit = 0; unit < TOTAL_UNITS; ++unit) {
    const u32 place = totals + unit * (MULTIPLIERS * 16);
    float total[4] = {};
    if (!begins) shared_floats(total, place);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int q = (unit * 4 + i) / HALF_COLUMNS, c = (unit * 4 + i) % HALF_COLUMNS;
      float part = sums.of[q][place_of(c, 1)];
      if (PIECES == 3) part += sums.of[q][place_of(c, 2)];
      part += sums.of[q][place_of(c, 0)];
      total[i] = GIVEN_BACK > 0 ? mul_add(part, grown, total[i]) : total[i] + part;
      if (last) sums.of[q][place_of(c, 0)] = total[i];
    }
    if (!last) store_floats(place, total);
  }
}
