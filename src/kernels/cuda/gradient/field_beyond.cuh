// A field at one feature of a pair whose sums of powers left the range of normal numbers (plan/forms/field_beyond.h):
// the largest |t| of its features, the sums of powers in units of that, the values of the pair, all in double. One
// thread does it, in sums that turned out to be no numbers: values of such pairs are marked in place of what they would
// be.
#pragma once

#include "common/power_below.cuh"
#include "common/prelude.cuh"

struct BeyondPair {
  const REAL *x, *z, *w;
  i64 x_step, z_step;  // from one feature to the next
  int features;
};
// Profilers count what is computed again (prof_trigger_00).
MERCER_INLINE void count_again() { asm volatile("pmevent 0;"); }

template <class Phi>
MERCER_INLINE double beyond(const BeyondPair& pair, int k, double amplitude, const REAL* params) {
  const double features = (double)pair.features;
  const auto x = [&](int f) { return (double)pair.x[f * pair.x_step]; };
  const auto z = [&](int f) { return (double)pair.z[f * pair.z_step]; };
  const auto w = [&](int f) { return READS_WEIGHTS ? (double)pair.w[f] : 0.0; };
  double largest[BEYOND_NORMS] = {}, scales[2 * BEYOND_NORMS], acc[BEYOND_STATES], values[BEYOND_VALUES + 1];
#pragma unroll 1
  for (int f = 0; f < pair.features; ++f) beyond_largest(largest, nullptr, x(f), z(f), w(f), params, features);
#pragma unroll
  for (int q = 0; q < BEYOND_NORMS; ++q) {
    const double power = power_below(largest[q]), rest = largest[q] * power;
    scales[2 * q] = power;
    scales[2 * q + 1] = rest > 0 && rest < INFINITY ? 1 / rest : 0.0;
  }
  beyond_identity(acc);
#pragma unroll 1
  for (int f = 0; f < pair.features; ++f) beyond_update(acc, scales, x(f), z(f), w(f), params, features);
#pragma unroll
  for (int q = 0; q < BEYOND_NORMS; ++q)
    if (!(largest[q] < INFINITY)) acc[q] = 1;
  beyond_epilogue(values, acc, largest, params, features);
  values[BEYOND_VALUES] = amplitude;
  double value;
  Phi::take(value, values, x(k), z(k), w(k), params, features);
  return value;
}
