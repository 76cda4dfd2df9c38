// Products with many columns of v whose values are computed pair by pair, a few columns a pass. Stored, some rows m and
// points n at a time, values are made once and are an operand of a product with all columns (docs/kernels/wide.md):
// a field whose factor is v in place of z, with coefficients of one (kernels/cuda/linear_field.cuh, of float64
// field.cuh).
#pragma once

#include "plan/gpu_field.h"

namespace mercer::plan {

/// Whether storing values takes less than passes of kFewColumns; `from`: as of tensor cores, 0 for all sizes.
/// `of_sums`: sums are stored for all passes as it is (plan/sum_planes.h).
bool pays_value_products(Dtype type, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns,
                         bool of_sums, double from);

/// Of float32. Parts have about as many rows as fill the device with tiles.
LinearSizes value_product_sizes(std::int64_t m, std::int64_t n, std::int64_t columns, std::int64_t part_bytes,
                                int multiprocessors);

/// Value of the pair times v.
ir::FieldSplit value_product_field();

}  // namespace mercer::plan
