// The power of two that takes a magnitude to [1, 2), or as near to it as a normal number does.
#pragma once

#include "common/prelude.cuh"

MERCER_INLINE float power_below(float a) {
  const int exponent = 0x7f000000 - (int)(bits_of(a) & 0x7f800000u);
  return float_of((u32)(exponent > 0x00800000 ? exponent : 0x00800000));
}
MERCER_INLINE double power_below(double a) {
  const i64 exponent = 0x7fe0000000000000ll - (i64)(bits_of(a) & 0x7ff0000000000000ull);
  return float_of((u64)(exponent > 0x0010000000000000ll ? exponent : 0x0010000000000000ll));
}
