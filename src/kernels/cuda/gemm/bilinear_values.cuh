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
#if GUARDED
    if (threadIdx.x % 32 == owner && is_out_of_range(&sum)) far |= 1u << (15 - pair);
#endif
    return sum;
  });
  return far;
}

#if GUARDED
// The value in place of `own`, which stands where points are equal.
static __device__ __noinline__ float safe_value(float own, const PairArguments& p, i64 m, i64 n) {
  if (are_equal<GUARD_LANES>(p, {m, n, 0, 0})) return own;
  REAL outputs[OUTPUTS];
  safe_values<GUARD_LANES>(outputs, p, params_of(p, 0), {m, n, 0, 0});
#if SUMS_DECIDE
  return sum_key(own, outputs[0]);
#else
  return outputs[0];
#endif
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
#endif

// A strip of 32 columns of the tile as a lane sees it: its columns are `own` + 8 j and the one after.
struct FoldStrip {
  u32 columns;  // of the tile's columns in shared memory
  int own;      // in the tile
  i64 m, n0;    // of its first row, of the tile's first column
  MERCER_METHOD bool has(const PairArguments& p, int j, int q) const { return n0 + own + 8 * j + q < p.n; }
};

struct NoFurther {
  MERCER_METHOD void operator()(int, const REAL (&)[OUTPUTS]) const {}
};
// Sums become values: [j][h][q], as in sums_of_pairs. further(place, outputs): of those behind the first one.
template <class Further = NoFurther>
MERCER_INLINE void values_of_strip(float (&values)[16], const float (&row_slots)[2][ROW_SLOTS + 1], const float* params,
                                   const PairArguments& p, const FoldStrip& strip, const Further& further = {}) {
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
                 (REAL)(strip.m + 8 * h + p.i_offset), (REAL)(strip.n0 + strip.own + 8 * j + q + p.j_offset),
                 (REAL)p.features);
        further(j * 4 + h * 2 + q, outputs);
        values[j * 4 + h * 2 + q] = outputs[0];
      }
  }
}

#if HAS_ALLOWANCE
MERCER_INLINE bool is_all_allowed(const PairArguments& p, const float* params) {
  const float norms = float_of(p.split->most_norm[0]) + float_of(p.split->most_norm[1]);
  return fabsf(FACTOR) * NORMS_LOSE * norms <= PRODUCTS_MAY_LOSE * allowance(params);
}

// Slack of the tests of pairs, small beside NOT_CARRIED.
MERCER_INLINE float slack_of_pairs(const float* params) {
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
#else
MERCER_INLINE float slack_of_pairs(const float*) { return 0; }
MERCER_INLINE bool is_all_allowed(const PairArguments&, const float*) { return false; }
#endif

#if HAS_ALLOWANCE || KEEPS
MERCER_INLINE float value_at_zero(const PairArguments& p, const float* params) {
  REAL outputs[OUTPUTS];
  const float sum = 0, slots[ROW_SLOTS + COL_SLOTS + 1] = {};
  epilogue(outputs, &sum, slots, slots, params, 0, 0, (REAL)p.features);
  return outputs[0];
}
#endif

#if HAS_RATE
// Rates of which a norm that pieces cannot carry leaves a large exponent, and others a number.
#define LEAST_RATE 0x1p-118f
#define MOST_RATE 0x1p120f
#define MOST_RATED_NORM 0x1p120f  // times the rate
#if POWERS == 2
#define POWER_EXPONENT 0
#else
#define POWER_EXPONENT VALUE_EXPONENT
#endif
#define MOST_POWER 10  // of 2^(-2 rate x · z), in pieces of 16 bits

// Norms of a strip of 32 columns, their scale and the largest one, as they come with v (a column that there is not has
// an infinite one); of POWERS == 1 exponents, their scale and the least one.
struct StageNorms {
  u32 columns;
  MERCER_METHOD float scale() const { return shared_float(columns + 32 * 4); }
  MERCER_METHOD float bound() const { return shared_float(columns + 33 * 4); }
  MERCER_METHOD float2 pair(int own) const { return shared_pair(columns + own * 4); }
};
// As `StageNorms`, from the planes of a tile, where all columns are taken for points.
struct PlaneNorms {
  u32 columns;
  int first;
  MERCER_METHOD float scale() const { return shared_float(columns + (2 * PLANE_ROW + first) * 4); }
  MERCER_METHOD float2 pair(int own) const {
    const float2 norm = shared_pair(columns + (first + own) * 4);
    const float2 tail = shared_pair(columns + (PLANE_ROW + first + own) * 4);
    return {norm.x + tail.x, norm.y + tail.y};
  }
};

#if POWERS == 1
// Values f = c 2^(rate |x|^2) 2^(rate |z|^2) 2^(-2 rate x · z): the last powers are multiplied with v times those of z,
// sums with c and those of x. Pieces of 16 bits carry them times 2^VALUE_EXPONENT while they are between 2^-MOST_POWER
// and 2^MOST_POWER: the large ones, near pairs, to 2^-22 of themselves, and the small ones, whose |x - z|^2 is larger
// than both norms, to what these may lose. A tile that finds another one tells so, and all are made again in tf32.
//
// Every 32 points share a power of two of v. What pieces of v lose beyond 2^-22 of themselves, compared with the sum of
// their magnitudes, is multiplied with 2^(2 MOST_POWER) at most. Sums of 2^30 terms stay finite where c and v are at
// most MOST_FACTOR.
#define MOST_FACTOR 0x1p60f
#define MOST_LOST_V 4e-7f
MERCER_INLINE bool halves_stand(const PairArguments& p) {
  const SplitState& s = *p.split;
  const float c = fabsf(s.at_zero), norms = sqrtf(float_of(s.most_norm[0])) * sqrtf(float_of(s.most_norm[1]));
  const float powers = fminf(4 * fabsf(s.rate) * norms, 2 * MOST_POWER);
  return s.rated != MERCER_RATED_NEVER && norms < INFINITY && float_of(s.lost_v) * exp2_unit(powers) <= MOST_LOST_V &&
         c <= MOST_FACTOR && c >= 1 / MOST_FACTOR && float_of(s.most_v) <= MOST_FACTOR;
}
// One thread calls this, before a tile may say that it found others.
MERCER_INLINE void tell_rated(SplitState& s, bool stands) {
  if (stands)
    atomicMax(&s.rated, MERCER_RATED_YES);
  else if (s.rated == MERCER_RATED_YES)
    s.rated = MERCER_RATED_NO;
}

// What sums of a lane's rows are multiplied with, and the largest exponents of pairs that need not be computed again,
// but for what those of their columns add.
struct RatedRows {
  static constexpr float kSlack = 0.75f * SLACK_OF_ALLOWANCE * 1.44269504f;
  float scales[2], limits[2], factors[2];
  MERCER_METHOD void start(const PointNorm (&x)[2], const float* params, float at_zero) {
    const float rate = rate_of_squares(params);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const PointExponent own(rate, x[h].norm, x[h].tail);
      scales[h] = rate * x[h].scale;
      limits[h] = mul_add(CANCELS_BELOW - 1, own.value, kSlack);
      factors[h] = at_zero * own.factor(0);
    }
  }
  MERCER_METHOD float factor(int h) const { return factors[h]; }
  // Which exponents, with POWER_EXPONENT, are those of pairs that cancel, the last one lowest.
  MERCER_METHOD u32 cancelling(const float (&exponents)[16], const StageNorms& columns) const {
    u32 mask = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 z = columns.pair(8 * j + threadIdx.x % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float limit = mul_add(1 - CANCELS_BELOW, i % 2 == 0 ? z.x : z.y, limits[i / 2]);
        mask = mask << 1 | (exponents[j * 4 + i] - POWER_EXPONENT <= limit ? 0 : 1);
      }
    }
    return mask;
  }
  // The powers of two of a strip. Few strips have a pair that cancels: the largest product of a row and the least
  // exponent of the columns tell of most that they have none.
  MERCER_METHOD void values(float (&values)[16], const float* sum, const StageNorms& columns, const PairArguments& p,
                            i64 m, i64 n) const {
    const float of_columns = columns.scale(), times[2] = {scales[0] * of_columns, scales[1] * of_columns};
    float most[2] = {};
#pragma unroll
    for (int at = 0; at < 16; ++at) {
      values[at] = mul_add(times[at / 2 % 2], sum[at], POWER_EXPONENT);
      most[at / 2 % 2] = fmaxf(most[at / 2 % 2], fabsf(sum[at]));
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) most[h] *= fabsf(times[h]);
    const float bound = columns.bound() * (1 - CANCELS_BELOW);
    if (__any_sync(0xffffffffu, !(most[0] <= limits[0] + bound && most[1] <= limits[1] + bound))) {
      const u32 mask = cancelling(values, columns);
      const float rate = rate_of_squares(member_params(p, 0));
      for_pairs(values, p, m, n, mask, [&](i64 row, i64 column, int pair, int) {
        const float square = (float)direct_sum<1>(p, row, column) * (1.0f / FACTOR);
        const float2 z = columns.pair(8 * (pair / 4) + threadIdx.x % 4 * 2);
        const float of_row = (limits[pair / 2 % 2] - kSlack) * (1.0f / (1 - CANCELS_BELOW));
        return mul_add(rate, square, of_row + (pair % 2 == 0 ? z.x : z.y)) + POWER_EXPONENT;
      }, POWER_EXPONENT);
      most[0] = most[1] = 0;
#pragma unroll
      for (int at = 0; at < 16; ++at) most[0] = fmaxf(most[0], fabsf(values[at] - POWER_EXPONENT));
    }
    if (!(fmaxf(most[0], most[1]) <= MOST_POWER))
      if (p.split->rated != MERCER_RATED_BEYOND) atomicMax(&p.split->rated, MERCER_RATED_BEYOND);
#pragma unroll
    for (int at = 0; at < 16; ++at) values[at] = exp2_unit(values[at]);
  }
};
#else
// The rate in the norms and scales of a lane's rows, and the largest exponents of pairs that need not be computed
// again, but for what the norms of their columns take from them.
struct RatedRows {
  float rate, norms[2], scales[2], limits[2];
  MERCER_METHOD void start(const PointNorm (&x)[2], const float* params, float) {
    constexpr float kSlack = SLACK_OF_ALLOWANCE * 1.44269504f;
    rate = rate_of_squares(params);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float norm = rate * (x[h].norm + x[h].tail);
      const bool carried = norm <= 0 && norm >= -MOST_RATED_NORM;
      norms[h] = carried ? mul_add(rate, x[h].norm + x[h].tail, POWER_EXPONENT) : 0.0f;
      scales[h] = rate * x[h].scale;
      limits[h] = carried ? mul_add(CANCELS_BELOW, norm, POWER_EXPONENT + kSlack) : -INFINITY;
    }
  }
  // Logarithms of the powers of two of a strip, as in sums_of_pairs, and the largest one of each row.
  template <class Norms>
  MERCER_METHOD void exponents(float (&values)[16], float (&most)[2], const float* sum, const Norms& columns) const {
    const float of_columns = columns.scale();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 z = columns.pair(8 * j + threadIdx.x % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = j * 4 + i;
        const float row = mul_add(scales[i / 2] * of_columns, sum[at], norms[i / 2]);
        values[at] = mul_add(rate, i % 2 == 0 ? z.x : z.y, row);
        most[i / 2] = at == i / 2 * 2 ? values[at] : fmaxf(most[i / 2], values[at]);
      }
    }
  }
  static MERCER_METHOD void raise(float (&values)[16]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) values[i] = exp2_unit(values[i]);
  }
  static MERCER_METHOD float factor(int) { return 1; }
#if POWERS
  // Which exponents are those of pairs that cancel, the last one lowest.
  MERCER_METHOD u32 cancelling(const float (&exponents)[16], const StageNorms& columns) const {
    u32 mask = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 z = columns.pair(8 * j + threadIdx.x % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float norm = rate * (i % 2 == 0 ? z.x : z.y);
        const bool kept = exponents[j * 4 + i] <= mul_add(CANCELS_BELOW, norm, limits[i / 2]);
        mask = mask << 1 | (kept && norm >= -MOST_RATED_NORM ? 0 : 1);
      }
    }
    return mask;
  }
  // The powers of two of a strip. Few strips have a pair that cancels: the largest norm of the columns tells of most
  // that they have none.
  MERCER_METHOD void values(float (&values)[16], const float* sum, const StageNorms& columns, const PairArguments& p,
                            i64 m, i64 n) const {
    float most[2];
    exponents(values, most, sum, columns);
    const float of_columns = rate * columns.bound();
    const bool kept = most[0] <= mul_add(CANCELS_BELOW, of_columns, limits[0]) &&
                      most[1] <= mul_add(CANCELS_BELOW, of_columns, limits[1]) && of_columns >= -MOST_RATED_NORM;
    if (__any_sync(0xffffffffu, !kept)) {
      const u32 mask = cancelling(values, columns);
      for_pairs(values, p, m, n, mask, [&](i64 row, i64 column, int, int) {
        return mul_add(rate, (float)direct_sum<1>(p, row, column) * (1.0f / FACTOR), POWER_EXPONENT);
      }, -INFINITY);
    }
    raise(values);
  }
#endif
};
#endif
MERCER_INLINE void load_norms(RatedRows& rows, const BilinearArguments& a, i64 m) {
  PointNorm x[2];
  load_norms(x, a, m);
  rows.start(x, member_params(a.pairs, 0), a.pairs.split->at_zero);
}
#endif

// The values of a strip from its sums; pairs that cancel are computed again where that matters.
template <class Further = NoFurther>
MERCER_INLINE void strip_values(float (&values)[16], const float* sum, const PointNorm (&x)[2], const PairArguments& p,
                                const FoldStrip& strip, i64 m, int column, const float (&row_slots)[2][ROW_SLOTS + 1],
                                const float* params, bool allowed, const Further& further = {}) {
  u32 far = 0;
#if HAS_ALLOWANCE
  const float slack = slack_of_pairs(params);
  if (allowed)
    allowed_sums(values, sum, x, strip.columns, column, slack);
  else if (__any_sync(0xffffffffu, !allowed_sums(values, sum, x, strip.columns, column, slack)))
    far = repair_pairs(values, p, m, strip.n0 + column, cancelling_sums(values, x, strip.columns, column, slack));
#else
  const u32 mask = sums_of_pairs(values, sum, x, strip.columns, column);
  if (__any_sync(0xffffffffu, mask != 0)) far = repair_pairs(values, p, m, strip.n0 + column, mask);
#endif
  values_of_strip(values, row_slots, params, p, strip, further);
#if GUARDED
  take_safe_values(values, p, m, strip.n0 + column, far);
#endif
}
