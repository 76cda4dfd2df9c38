// A tile on mixed pipes (mixed.cuh): most of a thread's sums are unsigned integers, the others floats (pair_tile.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/mixed.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"

// Pairs of a thread whose sums are unsigned integers, kept as bits: eleven in sixteen, so that both sets of pipes are
// busy. Which ones, and that rows go back and forth, is a matter of operands: a multiprocessor reads one a cycle from
// each of two register banks, `sad` has three, and the compiler keeps most of them at hand in this order.
MERCER_INLINE constexpr bool on_integers(int i, int j) { return 0xaf37ee5du >> (i * THREAD_N + j) % 32 & 1; }
// Adds the difference of pair (i, j) of a thread where integers take it. `is_first`: there is no sum yet.
MERCER_INLINE bool add_integers(Accumulators& acc, int i, int j, float x, float z, bool is_first) {
  if (!on_integers(i, j)) return false;
  REAL& sum = acc.value[i][j][0];
  u32 bits = is_first ? 0 : bits_of(sum);
  asm("sad.u32 %0, %1, %2, %0;" : "+r"(bits) : "r"(bits_of(x)), "r"(bits_of(z)));
  sum = float_of(bits);
  return true;
}
// All sums as floats. Sums of a chunk fit: 512 differences below 2^23.
MERCER_INLINE void settle(Accumulators& acc) {
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j)
      if (on_integers(i, j)) acc.value[i][j][0] = (float)bits_of(acc.value[i][j][0]);
}

// Operands whose places are found for each feature anew: that takes more instructions and 2.6 % less time
// (docs/kernels/pairwise-cuda.md).
template <>
struct SliceOperands<true> {
  const REAL* slice;
  const Position& at;
  MERCER_METHOD SliceOperands(const REAL* own_slice, const Position& own) : slice(own_slice), at(own) {}
  MERCER_METHOD void load(REAL (&x)[THREAD_M][X_STREAMS], REAL (&z)[THREAD_N][Z_STREAMS], int kk) const {
    load_side<X_STREAMS, PANEL_X>(x, slice, kk, [&](int i) { return row_of(at, i); });
    load_side<Z_STREAMS, PANEL_Z>(z, slice + SLICE_X, kk, [&](int j) { return col_of(at, j); });
  }
  // `place`: the point of an operand.
  template <int STREAMS, int PANEL, int COUNT, class Place>
  static MERCER_METHOD void load_side(REAL (&operands)[COUNT][STREAMS], const REAL* side, int kk, const Place& place) {
    constexpr int kVector = COUNT < VECTOR ? COUNT : VECTOR;
#pragma unroll
    for (int s = 0; s < STREAMS; ++s)
#pragma unroll
      for (int p = 0; p < COUNT; p += kVector) {
        const Pack<REAL, kVector> pack =
            *(const Pack<REAL, kVector>*)(side + place_of<STREAMS, PANEL>(kk, s, place(p)));
#pragma unroll
        for (int c = 0; c < kVector; ++c) operands[p + c][s] = pack.value[c];
      }
  }
};

static __device__ __noinline__ void list_pair(const PairArguments& a, i64 m, i64 n) {
  if (m >= a.m || n >= a.n || (a.symmetric && n < m)) return;
  const u32 at = atomicAdd(&a.mixed.state->listed, 1u);
  if (at < a.mixed.state->capacity) a.mixed.repairs[at] = (u64)m << 32 | (u64)n;
}

// The worst error of a tile's points from `first` on: quantise.cuh leaves a number of each 32 after the points'.
template <int POINTS>
MERCER_INLINE float worst_of_points(const float* worst, i64 first) {
  float most = 0;
#pragma unroll
  for (int at = 0; at < POINTS; at += MERCER_QUANTISED) most = fmaxf(most, worst[(first + at) / MERCER_QUANTISED]);
  return most;
}

// Sums of integers become sums of values, in products by the parameter that they are multiplied with; those that may
// have lost too much are listed, where any can. A point is not listed with itself.
MERCER_STEP void to_values(Accumulators& acc, const PairArguments& a, const TilePlace& place, const Position& at) {
  const float step = a.mixed.state->step;
  if (CONSUMER != 0 && RATE_SLOT >= 0) return;
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) acc.value[i][j][0] *= step;
  if (CONSUMER != 0) return;
  const float allowance = HAS_ALLOWANCE ? a.mixed.state->allowance : 0;
  if (HAS_ALLOWANCE) {
    // The least sum and the worst errors of the tile's points tell most threads that none of their pairs is doubtful.
    float least = acc.value[0][0][0], errors = 0;
#pragma unroll
    for (int pair = 1; pair < THREAD_M * THREAD_N; ++pair)
      least = fminf(least, acc.value[pair / THREAD_N][pair % THREAD_N][0]);
    errors += worst_of_points<TILE_M>(a.x.errors + a.x.ld, place.m0);
    errors += worst_of_points<TILE_N>(a.z.errors + a.z.ld, place.n0);
    if (!is_doubtful(errors, least, allowance)) return;
  }
  float z_errors[THREAD_N];
#pragma unroll
  for (int j = 0; j < THREAD_N; ++j) z_errors[j] = a.z.errors[place.n0 + col_of(at, j)];
  u64 doubtful = 0;
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    const float x_error = a.x.errors[place.m0 + row_of(at, i)];
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      if (is_doubtful(x_error + z_errors[j], acc.value[i][j][0], allowance)) doubtful |= (u64)1 << (i * THREAD_N + j);
    }
  }
  for (; doubtful; doubtful &= doubtful - 1) {
    const int pair = __ffsll((long long)doubtful) - 1;
    const i64 m = place.m0 + row_of(at, pair / THREAD_N), n = place.n0 + col_of(at, pair % THREAD_N);
    if (a.x.points != a.z.points || m != n) list_pair(a, m, n);
  }
}
