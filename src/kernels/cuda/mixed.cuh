// Sums of absolute differences on two sets of pipes. Values become integers q of 23 bits on one common scale,
//
//   value = origin + q * step + residual             kept as the float 2^23 + q
//
// so that float differences are exact and bit patterns differ by the same integer: a register feeds two FADDs or one
// `sad.u32`, which runs beside them. The sum of two points' |residual| bounds what their pair can lose; pairs that
// could lose too much are listed and computed again from the values themselves (repair.cuh).

// What quantising may cost a pair, of its sum: the rest of 1e-6 is for the rounding of sums.
#define MIXED_TOLERANCE 7e-7f

// Whether the quantised tile's results are kept, all or but for the listed pairs.
MERCER_INLINE bool mixed_stands(const MixedState& s) {
  return s.step > 0 && s.doubtful == 0 && s.listed <= s.capacity;
}

MERCER_INLINE bool is_doubtful(float errors, float sum) { return errors > MIXED_TOLERANCE * sum; }
