// Values of a pair whose sums of powers left the range of normal numbers (plan/forms/guarded_sums.h): the largest |t|
// of its features, then the sums of powers of |t| in units of that, by one thread or by the LANES of a warp, who all
// get them. t is multiplied with a power of two first: its reciprocal alone might not be a normal number.
#pragma once

#include "common/arguments.h"
#include "common/power_below.cuh"
#include "common/prelude.cuh"

#define GUARDED 1

struct GuardedPair {
  i64 m, n, x_set, z_set;
};

// The streams of a point.
template <int STREAMS>
struct GuardedPoint {
  const GuardPoint* at;
  i64 step;  // from one feature to the next
  MERCER_METHOD void read(REAL (&values)[STREAMS + (STREAMS == 0)], int k) const {
#pragma unroll
    for (int s = 0; s < STREAMS; ++s) values[s] = widen<REAL>(at[k * step + s * MERCER_PANEL]);
  }
  static MERCER_METHOD GuardedPoint in_panels(const void* panels, const PairArguments& a, i64 set, i64 ld, i64 point) {
    constexpr i64 kStep = STREAMS * MERCER_PANEL;
    const i64 panel = set * (ld / MERCER_PANEL) + point / MERCER_PANEL;
    return {(const GuardPoint*)panels + panel * a.k * kStep + point % MERCER_PANEL, kStep};
  }
};
MERCER_INLINE GuardedPoint<X_STREAMS> guarded_x(const PairArguments& a, const GuardedPair& pair) {
  if constexpr (GUARD_SOURCE == GUARD_POINTS)
    return {(const GuardPoint*)a.x.points + pair.x_set + pair.m * a.x.point, a.x.feature};
  else if constexpr (GUARD_SOURCE == GUARD_ROWS)
    return {(const GuardPoint*)a.x.rows + pair.m * a.split.row_length, 1};
  else
    return GuardedPoint<X_STREAMS>::in_panels(GUARD_SOURCE == GUARD_VALUES ? a.x.rows : a.x.points, a, pair.x_set,
                                              a.x.ld, pair.m);
}
MERCER_INLINE GuardedPoint<Z_STREAMS> guarded_z(const PairArguments& a, const GuardedPair& pair) {
  if constexpr (GUARD_SOURCE == GUARD_POINTS)
    return {(const GuardPoint*)a.z.points + pair.z_set + pair.n * a.z.point, a.z.feature};
  else if constexpr (GUARD_SOURCE == GUARD_ROWS)
    return {(const GuardPoint*)a.z.rows + pair.n * a.split.row_length, 1};
  else
    return GuardedPoint<Z_STREAMS>::in_panels(GUARD_SOURCE == GUARD_VALUES ? a.z.rows : a.z.points, a, pair.z_set,
                                              a.z.ld, pair.n);
}

// Sums of equal points are 0, and stand.
template <int LANES>
MERCER_INLINE bool are_equal(const PairArguments& a, const GuardedPair& pair) {
  if (!GUARD_VANISHES) return false;
  constexpr int kTogether = 2 * SAFE_UNROLL;
  const GuardedPoint<X_STREAMS> x = guarded_x(a, pair);
  const GuardedPoint<Z_STREAMS> z = guarded_z(a, pair);
  if (x.at == z.at && x.step == z.step) return true;
#pragma unroll 1
  for (int first = LANES == 1 ? 0 : threadIdx.x % LANES, k0 = 0; k0 < a.features; k0 += LANES * kTogether) {
    bool differ = false;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int k = k0 + i * LANES + first;
      REAL xs[X_STREAMS + (X_STREAMS == 0)], zs[Z_STREAMS + (Z_STREAMS == 0)];
      x.read(xs, k < a.features ? k : 0);
      z.read(zs, k < a.features ? k : 0);
#pragma unroll
      for (int s = 0; s < X_STREAMS; ++s) differ = differ || !(xs[s] == zs[s]);
    }
    if (LANES == 1 ? differ : __any_sync(0xffffffffu, differ)) return false;
  }
  return true;
}

// take(x, z, w) for the features first, first + STEP, ...
template <int STEP, class Take>
MERCER_INLINE void for_features(const PairArguments& a, const GuardedPair& pair, int first, const Take& take) {
  const GuardedPoint<X_STREAMS> x = guarded_x(a, pair);
  const GuardedPoint<Z_STREAMS> z = guarded_z(a, pair);
#pragma unroll SAFE_UNROLL
  for (int k = first; k < a.features; k += STEP) {
    REAL xs[X_STREAMS + (X_STREAMS == 0)], zs[Z_STREAMS + (Z_STREAMS == 0)];
    x.read(xs, k);
    z.read(zs, k);
    take(xs, zs, GUARD_READS_WEIGHTS ? ((const REAL*)a.w)[k] : (REAL)0);
  }
}

// The states of a pair: of the features that are alike but for multiples of 32, then of these by halves, 0 and 16, 8
// and 24, ... A lane has its own ones, or a thread has all of them in that order, so that both have the same bits.
MERCER_INLINE void merge_lanes(REAL (&acc)[SAFE_STATES]) {
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) {
    REAL others[SAFE_STATES];
#pragma unroll
    for (int s = 0; s < SAFE_STATES; ++s) others[s] = __shfl_xor_sync(0xffffffffu, acc[s], offset);
    safe_merge(acc, others);
  }
#pragma unroll
  for (int s = 0; s < SAFE_STATES; ++s) acc[s] = __shfl_sync(0xffffffffu, acc[s], 0);
}
template <class Add>
MERCER_INLINE void add_in_order(REAL (&acc)[SAFE_STATES], const Add& add) {
  REAL before[5][SAFE_STATES];
#pragma unroll 1
  for (int place = 0; place < 32; ++place) {
    REAL own[SAFE_STATES];
    safe_identity(own);
    add(own, (int)(__brev((u32)place) >> 27));
    bool merges = true;
#pragma unroll
    for (int level = 0; level < 5; ++level) {
      const bool is_second = place >> level & 1;
      if (merges && is_second) {
        safe_merge(before[level], own);
#pragma unroll
        for (int s = 0; s < SAFE_STATES; ++s) own[s] = before[level][s];
      }
#pragma unroll
      for (int s = 0; s < SAFE_STATES; ++s)
        if (merges && !is_second) before[level][s] = own[s];
      merges = merges && is_second;
    }
#pragma unroll
    for (int s = 0; s < SAFE_STATES; ++s) acc[s] = own[s];
  }
}

// Marks take the place of values that a field computes again (plan/forms/field_beyond.h). Where a point is infinite,
// values stand: nobody is to look for what is no number anyway.
template <int LANES>
MERCER_INLINE void mark_values(REAL (&outputs)[OUTPUTS], const PairArguments& a, const GuardedPair& pair) {
  bool finite = true;
  for_features<LANES>(a, pair, LANES == 1 ? 0 : threadIdx.x % 32, [&](const REAL* xs, const REAL* zs, REAL) {
#pragma unroll
    for (int s = 0; s < X_STREAMS; ++s) finite = finite && magnitude(xs[s]) < INFINITY;
#pragma unroll
    for (int s = 0; s < Z_STREAMS; ++s) finite = finite && magnitude(zs[s]) < INFINITY;
  });
  if (LANES > 1) finite = __all_sync(0xffffffffu, finite);
#pragma unroll
  for (int p = 0; p < OUTPUTS; ++p)
    if (finite && is_marked_output(p)) outputs[p] = (REAL)MARK;
}

template <int LANES>
MERCER_INLINE void safe_values(REAL (&outputs)[OUTPUTS], const PairArguments& a, const REAL* params,
                               const GuardedPair& pair) {
  const REAL i = (REAL)(pair.m + a.x.offset), j = (REAL)(pair.n + a.z.offset), features = (REAL)a.features;
  REAL row[ROW_SLOTS + 1], col[COL_SLOTS + 1];
#pragma unroll
  for (int s = 0; s < ROW_SLOTS; ++s) row[s] = ((const REAL*)a.x.user)[(pair.x_set * ROW_SLOTS + s) * a.x.ld + pair.m];
#pragma unroll
  for (int s = 0; s < COL_SLOTS; ++s) col[s] = ((const REAL*)a.z.user)[(pair.z_set * COL_SLOTS + s) * a.z.ld + pair.n];
  REAL largest[NORMS] = {}, scales[2 * NORMS], acc[SAFE_STATES];
  const int lane = LANES == 1 ? 0 : threadIdx.x % 32;
  for_features<LANES>(a, pair, lane, [&](const REAL* xs, const REAL* zs, REAL w) {
    safe_largest(largest, nullptr, xs, zs, w, row, col, params, i, j, features);
  });
#pragma unroll
  for (int q = 0; q < NORMS; ++q) {
#pragma unroll
    for (int offset = LANES / 2; offset >= 1; offset /= 2)
      largest[q] = max_nan(largest[q], __shfl_xor_sync(0xffffffffu, largest[q], offset));
    const REAL power = power_below(largest[q]), rest = largest[q] * power;
    scales[2 * q] = power;
    scales[2 * q + 1] = rest > 0 && rest < INFINITY ? 1 / rest : (REAL)0;
  }
  const auto add = [&](REAL (&sums)[SAFE_STATES], int first) {
    for_features<GUARD_MERGES ? 32 : 1>(a, pair, first, [&](const REAL* xs, const REAL* zs, REAL w) {
      safe_update(sums, scales, xs, zs, w, row, col, params, i, j, features);
    });
  };
  if constexpr (GUARD_MERGES && LANES == 1) {
    add_in_order(acc, add);
  } else {
    safe_identity(acc);
    add(acc, GUARD_MERGES ? lane : 0);
    if constexpr (GUARD_MERGES) merge_lanes(acc);
  }
#pragma unroll
  for (int q = 0; q < NORMS; ++q)
    if (!(largest[q] < INFINITY)) acc[q] = 1;
  safe_epilogue(outputs, acc, largest, row, col, params, i, j, features);
  if constexpr (MARKS) mark_values<LANES>(outputs, a, pair);
}

// Lanes may share the features of a pair unless some state wants them in order.
#define GUARD_LANES (GUARD_MERGES ? 32 : 1)

// The key where sums stand for values, never negative: below or above all sums in range, in the order of the values.
MERCER_INLINE float sum_key(float sum, float value) {
  const u32 least = bits_of((float)GUARD_LEAST), most = bits_of((float)GUARD_MOST), code = bits_of(value) << 1;
  return float_of(sum < GUARD_LEAST ? __umulhi(code, least) : most + __umulhi(code, 0x7f800000u - most));
}

// One thread calls this, whose registers are not those of the function; false where values stand.
static __device__ __noinline__ bool has_safe_values(REAL (&outputs)[OUTPUTS], const PairArguments& a,
                                                    const REAL* params, i64 m, i64 n, i64 x_set, i64 z_set) {
  const GuardedPair pair = {m, n, x_set, z_set};
  if (are_equal<1>(a, pair)) return false;
  safe_values<1>(outputs, a, params, pair);
  return true;
}
