// The table of a power whose exponent is known on the device alone (ir/lower/fit_power.h), made by the block that reads
// it: a block of tiles makes 1024 entries in the time of some ten features.
#pragma once

#include "common/prelude.cuh"
#include "pairs/power_kind.cuh"

#define POWER_CELLS (1 << POWER_BITS)
#define POWER_ENTRIES (256 * POWER_CELLS)
#define POWER_SHIFT (20 - POWER_BITS)
__shared__ __align__(16) uint2 power_table[POWER_ENTRIES];
__shared__ __align__(16) float power_coefficients[4];

MERCER_INLINE int kind_of_power(float p) {
  return p == 1 ? POWER_ONE : p == 2 ? POWER_TWO : p > 0 && p <= LARGEST_TABLE_POWER ? POWER_TABLE : POWER_ANY;
}

// 2^a, |a| <= 0.5, within 2^-24: the series of the exponential function.
MERCER_INLINE float exp2_of_fraction(float a) {
  float sum = 1.52527338e-5f;
  sum = mul_add(sum, a, 1.54035304e-4f);
  sum = mul_add(sum, a, 1.33335581e-3f);
  sum = mul_add(sum, a, 9.61812911e-3f);
  sum = mul_add(sum, a, 5.55041087e-2f);
  sum = mul_add(sum, a, 0.240226507f);
  sum = mul_add(sum, a, 0.693147181f);
  return mul_add(sum, a, 1.0f);
}

// 2^(p (exponent + log2 + rest)). Whole parts of both products go first, so that no digits are lost to them.
MERCER_INLINE float power_of_centre(float p, float exponent, float log2, float rest) {
  const float whole = rintf(p * exponent), second_whole = rintf(p * log2);
  const float second = mul_add(p, rest, mul_add(p, log2, -second_whole));
  const float fraction = mul_add(p, exponent, -whole) + second, third_whole = rintf(fraction);
  const float power = exp2_of_fraction(fraction - third_whole);
  // Powers are made in two steps: beyond the range of float they end at 0 and infinity.
  const int all = (int)fminf(fmaxf(whole + second_whole + third_whole, -160), 140), half = all / 2;
  return power * float_of((u32)(127 + half) << 23) * float_of((u32)(127 + all - half) << 23);
}

// Never 0, which times infinity would be no number.
MERCER_INLINE float power_coefficient(int k, float p) {
  const double a = (double)p - MIDDLE_POWER;
  double sum = kPowerTerms[k][POWER_TERMS - 1];
  for (int j = POWER_TERMS - 2; j >= 0; --j) sum = mul_add(sum, a, kPowerTerms[k][j]);
  return sum == 0 ? 1e-30f : (float)sum;
}

// Threads meet after it before they read.
MERCER_INLINE void make_power_table(float p) {
  if (threadIdx.x < 4) power_coefficients[threadIdx.x] = power_coefficient(threadIdx.x, p);
#pragma unroll 1
  for (int i = threadIdx.x; i < POWER_ENTRIES; i += THREADS) {
    const int biased = i / POWER_CELLS, cell = i % POWER_CELLS, exponent = biased - 127;
    float power = power_of_centre(p, (float)exponent, kCellLogs[cell], kCellLogRests[cell]);
    float scale = kCellScales[cell] * float_of((u32)(127 - exponent / 2) << 23) *
                  float_of((u32)(127 - exponent + exponent / 2) << 23);
    if (biased == 0) power = 0, scale = 1;
    // The cubic of infinity has the sign of its last coefficient.
    if (biased == 255) power = power_coefficient(3, p) < 0 ? -1.0f : 1.0f, scale = 1;
    const uint2 entry = {bits_of(power), bits_of(scale)};
    power_table[i] = entry;
  }
}

MERCER_INLINE uint2 power_entry(float a) {
  return *(const uint2*)((const char*)power_table + (bits_of(a) >> POWER_SHIFT & 8 * (POWER_ENTRIES - 1)));
}
MERCER_INLINE float power_scale(float a) { return float_of(power_entry(a).x); }
MERCER_INLINE float power_poly(float a) {
  const float m = fabsf(a) * float_of(power_entry(a).y);
  const float* c = power_coefficients;
  return mul_add(mul_add(mul_add(c[3], m, c[2]), m, c[1]), m, c[0]);
}
