// Forward substitution, ones on the diagonal, down a column of COUNT rows in registers. The first is solved, its
// multiples leave the rows after it, and these move up by one: so the loop is not unrolled, whose instructions would
// run once and be waited for one by one. Step s has the factors of the rows after row s at factors + s PITCH, from the
// next row on, as many as there are rows: zeros after the last (`place_behind`).
#pragma once

#include "common/prelude.cuh"

template <int COUNT, int PITCH, int SIZE, class Store>
MERCER_INLINE void substitute_down(float (&x)[SIZE], const float* factors, int steps, const Store& store) {
#pragma unroll 2
  for (int s = 0; s < steps; ++s) {
    const float solved = x[0];
    store(s, solved);
#pragma unroll
    for (int c = 0; c < COUNT; c += 4) {
      const Pack<float, 4> four = *(const Pack<float, 4>*)(factors + s * PITCH + c);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (c + k + 1 < COUNT) x[c + k] = __fmaf_rn(-four.value[k], solved, x[c + k + 1]);
    }
  }
}

// Where row i's factor of step s lies, COUNT a power of two; rows that are not after s fill the rest.
template <int COUNT>
MERCER_INLINE int place_behind(int i, int s) {
  return (i - s - 1) & (COUNT - 1);
}
