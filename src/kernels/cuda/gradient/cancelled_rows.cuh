// Rows of a field x' S - P that may have lost digits (linear_field.cuh, rank_field.cuh). The errors of S and P are
// random: the square of a row's is about (2.5e-7)^2 times
//
//   sum over n of (a c |z'|)^2 + (|x'| S)^2                  `spread`, and `point`, |x'|^2, times the square of S
//
// with amplitudes and coefficients, or weights. The contract is 1e-6 of the norm of the row.
#pragma once

#include "common/prelude.cuh"

#define MOST_CANCELLED 16.0f
#define LEAST_SPREAD 0x1p-110f  // below it squares are lost

// `field`: the square of the row's norm; `largest`: of its values.
MERCER_INLINE bool keeps_digits(float spread, float point, float sum, float field, float largest) {
  return field < INFINITY && spread + point * (sum * sum) <= MOST_CANCELLED * field &&
         (spread >= LEAST_SPREAD || largest == 0);
}
