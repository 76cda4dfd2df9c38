// Backwards of products whose pairs are stored: what the pass stores are the formula's reductions, of which a kernel
// then makes the amplitudes of the field in their place, and adds up what else the backward wants
// (kernels/cuda/gradient/stored_sums.cuh). Where values read more than reductions (indices, sums of one side), or are
// fewer, the pass stores them as they are.
#pragma once

#include <algorithm>
#include <memory>

#include "ir/expr/program.h"
#include "ir/passes/split.h"
#include "mercer/tensor.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::plan {

struct StoredSums {
  ir::ValueSplit split;
  Dtype type = Dtype::float32;
  int amplitudes = 0;    // the first values, whose planes are after those of other reductions
  bool as_they_are = false;  // what is stored are the values: of the sums and the product, then the amplitudes
  int sums = 0;          // the next ones, times the weights of the pairs
  bool product = false;  // the last one, times the columns of v
  int columns = 1;       // of these that are added up at once
  ir::Program program;   // over pair values, row, col and parameters
  ir::Program uniforms;  // float64
  bool reads_row = false, reads_col = false;
  /// Planes before those of the amplitudes.
  int planes_before() const { return std::max(0, static_cast<int>(split.reductions.size()) - amplitudes); }
  /// Sums of a row at once.
  int states() const { return sums + (product ? columns : 0); }
};

/// `side_values`: sums, then the value of the product where that is wanted of `columns` columns, else 0.
std::shared_ptr<const StoredSums> plan_stored_sums(const std::vector<Expr>& amplitudes,
                                                   const std::vector<Expr>& side_values, std::int64_t columns,
                                                   Dtype type);

/// Columns of v that are added up at once, of so many in all.
int columns_at_once(std::int64_t columns);

/// Whether the product with v is better in the pass of such a field than by itself; `of_products`: whose values are
/// functions of a product of matrices.
bool pays_product_in_pass(const Costs& costs, Dtype type, std::int64_t k, std::int64_t columns, bool of_products);

}  // namespace mercer::plan
