// Values of a field of signs as integers (field_products.cuh): amplitude times coefficient, in units of the largest
// amplitude of the row times the largest coefficient of the column by MOST_DIGITS, which three digits from -128 to 127
// have.
#define MOST_DIGITS 8355000.0f

// Rounding errs by half a unit at most, by 1/32 on average over sixteen equal values, by 0.3 / sqrt(n) over n unlike
// ones. Where the magnitudes are 1 / MOST_OF_MEAN of the largest on average, that is 5e-7 of their sum.
#define MOST_OF_MEAN 128.0f

// Points z that are x have no part in the sum, whatever their amplitudes are. So that the sum cannot be theirs alone,
// amplitudes are 1 / MOST_OF_AMPLITUDES of the largest on average, and fewer where there are few points.
#define MOST_OF_AMPLITUDES 24.0f
#define LEAST_EQUAL 16.0f

MERCER_INLINE bool is_unit(float largest) { return largest >= 0x1p-60f && largest <= 0x1p60f; }
// In 256ths.
MERCER_INLINE float digit_scale(float row_unit, float column_unit) {
  return column_unit > 0 ? 256 * MOST_DIGITS / (row_unit * column_unit) : 0.0f;
}
