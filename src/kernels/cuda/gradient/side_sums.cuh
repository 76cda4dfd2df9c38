// Side sum f of row m: those that have weights, then that of the single factor.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

MERCER_INLINE void store_side_sum(const RankFieldArguments& a, int f, i64 m, float sum) {
  if (f >= a.side.summed) {
    a.side.product[m * a.side.product_row] = sum;
    return;
  }
  float& to = a.side.sums[f * a.side.sums_first + m * a.side.sums_row];
  to = a.adds ? to + sum : sum;
}
// Stores the product with column e of several.
MERCER_INLINE void store_product(const RankFieldArguments& a, int e, i64 m, float sum) {
  a.side.product[m * a.side.product_row + e * a.side.product_column] = sum;
}
