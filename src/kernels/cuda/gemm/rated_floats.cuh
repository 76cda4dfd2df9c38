// Values that are powers of two: in pieces of tf32 (POWERS 2; bilinear_wide.cuh), or stored (bilinear_kept.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_precision.cuh"
#include "gemm/bilinear_pairs.cuh"
#include "gemm/bilinear_values.cuh"
#include "gemm/rates.cuh"
#include "pairs/row_sums.cuh"

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
};

MERCER_INLINE void load_norms(RatedRows& rows, const BilinearArguments& a, i64 m) {
  PointNorm x[2];
  load_norms(x, a, m);
  rows.start(x, member_params(a.pairs, 0), a.pairs.split.state->at_zero);
}
