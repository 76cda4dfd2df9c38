// Values of a field, amplitude times coefficient, in units of the largest amplitude of the row times the largest
// coefficient of the column (field_products.cuh): LARGEST such units are one.
//
//   DIGITS  integers: three digits, two from -128 to 127 and a last one from -64 to 63
//   HALVES  two pieces of 16-bit floats
#pragma once

#include "common/prelude.cuh"

// Rounding digits errs by half a unit at most, by 1/32 on average over sixteen equal values, by 0.3 / sqrt(n) over n
// unlike ones. Where the magnitudes are 1 / MOST_OF_MEAN of the largest on average, that is 5e-7 of their sum.
#define MOST_OF_MEAN 64.0f

// So that no few points have all the weight, amplitudes are 1 / MOST_OF_AMPLITUDES of the largest on average, and fewer
// where there are few points.
#define MOST_OF_AMPLITUDES 24.0f
#define LEAST_EQUAL 16.0f

#if DIGITS
#define LARGEST 4161000.0f  // on top of DIGIT_OFFSET an integer of 23 bits, and with the other sign
#else
#define LARGEST 16384.0f
// Powers of differences, 2^14 to 2^15 of the largest one, lose 2^-25 at most, which is 2^-21 of 2^-4. So small and
// smaller ones may be 1 / (2 MOST_OF_MEAN) of the points: half of a row's weight is elsewhere.
#define POWER_BITS 15
#define SMALL_BITS 18  // below the largest
#define LEAST_POINT exp2f(24 - SMALL_BITS / EXPONENT)  // of the largest difference, that differences of others exceed
#endif

MERCER_INLINE bool is_unit(float largest) { return largest >= 0x1p-60f && largest <= 0x1p60f; }
// LARGEST by their product is a float.
MERCER_INLINE bool are_units(float row_unit, float column_unit) {
  return is_unit(row_unit) && is_unit(column_unit) && row_unit * column_unit >= 0x1p-90f;
}
MERCER_INLINE float unit_scale(float row_unit, float column_unit) {
  return column_unit > 0 ? LARGEST / (row_unit * column_unit) : 0.0f;
}
