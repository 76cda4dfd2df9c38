// Products with many columns of v whose values are computed pair by pair, a few columns a pass. Stored, some rows m and
// points n at a time, values are made once and are an operand of a product with all columns (docs/kernels/wide.md):
// a field whose factor is v in place of z, with coefficients of one (kernels/cuda/gemm/wide_stored.cuh, of very many
// columns linear_field.cuh, of float64 stored_doubles.cuh).
#pragma once

#include "plan/gpu/costs/costs.h"
#include "plan/gpu/field.h"
#include "plan/gpu/request.h"

namespace mercer::plan {

/// Milliseconds of a product of so many columns whose values are made for every few of them again, and whose values are
/// stored. `of_sums`: sums are stored in either case (plan/gpu/sums/sum_planes.h).
struct ValueTimes {
  double passes, stored;
};
ValueTimes value_times(const Costs& costs, const Request& request, bool of_sums);

/// Times for values that are products of matrices, which are made in so many passes on tensor cores, or stored.
ValueTimes value_times(const Costs& costs, const Request& request, std::int64_t passes, std::int64_t pass_columns);

/// Milliseconds that the better of both takes for 10^9 pairs, whose values are no products of matrices.
double product_time(const Costs& costs, Dtype type, std::int64_t k, std::int64_t columns);

/// The tile that reads values of float32 where they lie; an empty one where pieces of them are better, with very many
/// columns.
BilinearTile stored_tile(std::int64_t columns, const Costs& costs);

/// Sizes for pieces of float32. Parts have about as many rows as fill the device with tiles.
LinearSizes value_product_sizes(std::int64_t m, std::int64_t n, std::int64_t columns, std::int64_t part_bytes,
                                int multiprocessors);

/// Value of the pair times v.
ir::FieldSplit value_product_field();

}  // namespace mercer::plan
