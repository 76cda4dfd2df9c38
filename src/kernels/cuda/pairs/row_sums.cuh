// The sum of one pair from the values themselves, by all lanes of a warp, in double; from rows (split_operands.cuh) or,
// without ROWS, from panels.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/pair_params.cuh"

MERCER_INLINE void add_terms(REAL (&part)[1], const PairArguments& a, const Pack<REAL, 4>& x, const Pack<REAL, 4>& z,
                             int k) {
  const REAL* weights = (const REAL*)a.w;
  const REAL* params = READS_PARAMS ? params_of(a, 0) : nullptr;  // a sum's are those of the whole group
#pragma unroll
  for (int c = 0; c < 4; ++c)
    if (k + c < a.features)
      update(part, &x.value[c], &z.value[c], READS_WEIGHTS ? weights[k + c] : (REAL)0, nullptr, nullptr, params, 0, 0,
             (REAL)a.features);
}

// Features k … k + 3 of a point.
MERCER_INLINE Pack<REAL, 4> four_values(const PairArguments& a, const void* rows, const void* panels, i64 point,
                                         int k) {
  if (ROWS) return load_constant((const Pack<REAL, 4>*)((const REAL*)rows + point * a.split.row_length + k));
  const REAL* panel = (const REAL*)panels + point / MERCER_PANEL * a.k * MERCER_PANEL + point % MERCER_PANEL;
  Pack<REAL, 4> values;
#pragma unroll
  for (int c = 0; c < 4; ++c) values.value[c] = panel[(i64)(k + c < a.k ? k + c : a.k - 1) * MERCER_PANEL];
  return values;
}

// Pairs of one row m, each sum as if it were alone: four features a lane and load, LOADS of them in float before they
// are added in double, AT_ONCE of each point on their way at once.
template <int COUNT, int LOADS, int AT_ONCE>
MERCER_INLINE void direct_sums(double (&sums)[COUNT], const PairArguments& a, i64 m, const i64 (&n)[COUNT]) {
  constexpr int kStep = 128;
  int k = threadIdx.x % 32 * 4;
#pragma unroll
  for (int c = 0; c < COUNT; ++c) sums[c] = 0;
#pragma unroll 1
  for (; k + (LOADS - 1) * kStep + 3 < a.features; k += LOADS * kStep) {
    REAL part[COUNT][1] = {};
#pragma unroll
    for (int first = 0; first < LOADS; first += AT_ONCE) {
      Pack<REAL, 4> x[AT_ONCE], z[COUNT][AT_ONCE];
#pragma unroll
      for (int l = 0; l < AT_ONCE; ++l) {
        x[l] = four_values(a, a.x.rows, a.x.points, m, k + (first + l) * kStep);
#pragma unroll
        for (int c = 0; c < COUNT; ++c) z[c][l] = four_values(a, a.z.rows, a.z.points, n[c], k + (first + l) * kStep);
      }
#pragma unroll
      for (int c = 0; c < COUNT; ++c)
#pragma unroll
        for (int l = 0; l < AT_ONCE; ++l) add_terms(part[c], a, x[l], z[c][l], k + (first + l) * kStep);
    }
#pragma unroll
    for (int c = 0; c < COUNT; ++c) sums[c] += part[c][0];
  }
#pragma unroll 1
  for (; k < a.features; k += kStep) {
    const Pack<REAL, 4> x = four_values(a, a.x.rows, a.x.points, m, k);
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
      REAL part[1] = {0};
      add_terms(part, a, x, four_values(a, a.z.rows, a.z.points, n[c], k), k);
      sums[c] += part[0];
    }
  }
#pragma unroll
  for (int c = 0; c < COUNT; ++c)
#pragma unroll
    for (int offset = 16; offset >= 1; offset /= 2) sums[c] += __shfl_xor_sync(0xffffffffu, sums[c], offset);
}

template <int LOADS>
MERCER_INLINE double direct_sum(const PairArguments& a, i64 m, i64 n) {
  double sums[1];
  direct_sums<1, LOADS, LOADS>(sums, a, m, {n});
  return sums[0];
}
