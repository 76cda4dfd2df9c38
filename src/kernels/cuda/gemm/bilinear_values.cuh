// Sums of a tile of products become values where they are, in registers: for what stores no pairs (bilinear_fold.cuh,
// bilinear_candidates.cuh). A lane has two rows and 16 of the columns of a strip of 32.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_precision.cuh"
#include "gemm/bilinear_pairs.cuh"
#include "gemm/bilinear_shared.cuh"
#include "pairs/pair_params.cuh"
#include "pairs/row_sums.cuh"

// The whole warp takes those of its 16 x 32 pairs that have a bit in `mask` (the last pair lowest), one after the
// other: values[pair] = make(row, column, pair), where that pair is there, elsewhere `nothing`.
template <class Make>
MERCER_INLINE void for_pairs(float (&values)[16], const PairArguments& p, i64 m, i64 n, u32 mask, const Make& make,
                             float nothing = 0) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (u32 owners = __ballot_sync(0xffffffffu, mask != 0); owners; owners = __ballot_sync(0xffffffffu, mask != 0)) {
    const int owner = __ffs(owners) - 1, pair = __shfl_sync(0xffffffffu, 16 - __ffs(mask), owner);
    const i64 row = m + owner / 4 + (pair & 2 ? 8 : 0), column = n + pair / 4 * 8 + owner % 4 * 2 + pair % 2;
    const float value = row < p.m && column < p.n ? make(row, column, pair, owner) : nothing;
    if (lane != owner) continue;
    mask &= mask - 1;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if (i == pair) values[i] = value;
  }
}

// Their sums from the values themselves; which of them are out of range.
MERCER_INLINE u32 repair_pairs(float (&values)[16], const PairArguments& p, i64 m, i64 n, u32 mask) {
  u32 far = 0;
  for_pairs(values, p, m, n, mask, [&](i64 row, i64 column, int pair, int owner) {
    const float sum = (float)direct_sum<1>(p, row, column);
    if (GUARDED && threadIdx.x % 32 == owner && is_out_of_range(&sum)) far |= 1u << (15 - pair);
    return sum;
  });
  return far;
}

// The value in place of `own`, which stands where points are equal.
static __device__ __noinline__ float safe_value(float own, const PairArguments& p, i64 m, i64 n) {
  if (are_equal<GUARD_LANES>(p, {m, n, 0, 0})) return own;
  REAL outputs[OUTPUTS];
  safe_values<GUARD_LANES>(outputs, p, params_of(p, 0), {m, n, 0, 0});
  return SUMS_DECIDE ? sum_key(own, outputs[0]) : outputs[0];
}
// The values of such pairs.
MERCER_INLINE void take_safe_values(float (&values)[16], const PairArguments& p, i64 m, i64 n, u32 far) {
  if (!__any_sync(0xffffffffu, far != 0)) return;
  for_pairs(values, p, m, n, far, [&](i64 row, i64 column, int pair, int owner) {
    float own = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if (i == pair) own = values[i];
    return safe_value(__shfl_sync(0xffffffffu, own, owner), p, row, column);
  });
}

// A strip of 32 columns of the tile as a lane sees it: its columns are `own` + 8 j and the one after.
struct FoldStrip {
  u32 columns;  // of the tile's columns in shared memory
  int own;      // in the tile
  i64 m, n0;    // of its first row, of the tile's first column
  MERCER_METHOD bool has(const PairArguments& p, int j, int q) const { return n0 + own + 8 * j + q < p.n; }
};

struct NoSideValues {
  MERCER_METHOD void operator()(int, const REAL (&)[OUTPUTS]) const {}
};
// Sums become values: [j][h][q], as in sums_of_pairs. side_values(place, outputs): of those after the first one.
template <class SideValues = NoSideValues>
MERCER_INLINE void values_of_strip(float (&values)[16], const float (&row_slots)[2][ROW_SLOTS + 1], const float* params,
                                   const PairArguments& p, const FoldStrip& strip, const SideValues& side_values = {}) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float col_slots[2][COL_SLOTS + 1];
#pragma unroll
    for (int s = 0; s < COL_SLOTS; ++s) {
      const float2 pair = shared_pair(strip.columns + ((POINT_PLANES + s) * PLANE_ROW + strip.own + 8 * j) * 4);
      col_slots[0][s] = pair.x;
      col_slots[1][s] = pair.y;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        REAL outputs[OUTPUTS];
        epilogue(outputs, &values[j * 4 + h * 2 + q], row_slots[h], col_slots[q], params,
                 (REAL)(strip.m + 8 * h + p.x.offset), (REAL)(strip.n0 + strip.own + 8 * j + q + p.z.offset),
                 (REAL)p.features);
        side_values(j * 4 + h * 2 + q, outputs);
        values[j * 4 + h * 2 + q] = outputs[0];
      }
  }
}

// Whether the allowance serves every pair; without one, none.
MERCER_INLINE bool is_all_allowed(const PairArguments& p, const float* params) {
  if (!HAS_ALLOWANCE) return false;
  const float norms = float_of(p.split.state->most_norm[0]) + float_of(p.split.state->most_norm[1]);
  return fabsf(FACTOR) * NORMS_LOSE * norms <= PRODUCTS_MAY_LOSE * allowance(params);
}

// Slack of the tests of pairs, small next to NOT_CARRIED.
MERCER_INLINE float slack_of_pairs(const float* params) {
  if (!HAS_ALLOWANCE) return 0;
  const float slack = SLACK_OF_ALLOWANCE / fabsf(FACTOR) * allowance(params);
  return slack > 0 ? fminf(slack, 0x1p100f) : 0.0f;
}

// The 16 sums of a strip, as in sums_of_pairs, and whether the least square of either row and the largest norm of the
// columns tell that no pair cancels.
MERCER_INLINE bool allowed_sums(float (&values)[16], const float* sum, const PointNorm (&x)[2], u32 columns, int column,
                                float slack) {
  const float norms[2] = {x[0].norm + x[0].tail, x[1].norm + x[1].tail};
  const ColumnNorms z(columns, column);
  float least[2] = {INFINITY, INFINITY}, most = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const PointNorm own = z.at(j, q);
      const float norm = own.norm + own.tail;
      most = fmaxf(most, norm);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = j * 4 + h * 2 + q;
        const float square = mul_add(x[h].scale * own.scale, sum[i], norms[h] + norm);
        least[h] = fminf(least[h], square);
        values[i] = FACTOR * square;
      }
    }
  return least[0] + slack >= CANCELS_BELOW * (norms[0] + most) && least[1] + slack >= CANCELS_BELOW * (norms[1] + most);
}
// Which of these do, as in sums_of_pairs.
MERCER_INLINE u32 cancelling_sums(const float (&values)[16], const PointNorm (&x)[2], u32 columns, int column,
                                  float slack) {
  const ColumnNorms z(columns, column);
  u32 mask = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const PointNorm own = z.at(j, i % 2);
      const float norms = (x[i / 2].norm + x[i / 2].tail) + (own.norm + own.tail);
      mask = mask << 1 | (values[j * 4 + i] * (1.0f / FACTOR) + slack >= CANCELS_BELOW * norms ? 0 : 1);
    }
  return mask;
}

MERCER_INLINE float value_at_zero(const PairArguments& p, const float* params) {
  REAL outputs[OUTPUTS];
  const float sum = 0, slots[ROW_SLOTS + COL_SLOTS + 1] = {};
  epilogue(outputs, &sum, slots, slots, params, 0, 0, (REAL)p.features);
  return outputs[0];
}

// The values of a strip from its sums; pairs that cancel are computed again where that matters.
template <class SideValues = NoSideValues>
MERCER_INLINE void strip_values(float (&values)[16], const float* sum, const PointNorm (&x)[2], const PairArguments& p,
                                const FoldStrip& strip, i64 m, int column, const float (&row_slots)[2][ROW_SLOTS + 1],
                                const float* params, bool allowed, const SideValues& side_values = {}) {
  u32 far = 0;
  if constexpr (HAS_ALLOWANCE) {
    const float slack = slack_of_pairs(params);
    if (allowed)
      allowed_sums(values, sum, x, strip.columns, column, slack);
    else if (__any_sync(0xffffffffu, !allowed_sums(values, sum, x, strip.columns, column, slack)))
      far = repair_pairs(values, p, m, strip.n0 + column, cancelling_sums(values, x, strip.columns, column, slack));
  } else {
    const u32 mask = sums_of_pairs(values, sum, x, strip.columns, column);
    if (__any_sync(0xffffffffu, mask != 0)) far = repair_pairs(values, p, m, strip.n0 + column, mask);
  }
  values_of_strip(values, row_slots, params, p, strip, side_values);
  if constexpr (GUARDED) take_safe_values(values, p, m, strip.n0 + column, far);
}
