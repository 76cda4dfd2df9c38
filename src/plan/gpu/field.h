// Plans of gradient fields on GPUs (kernels/cuda/gradient/field.cuh).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/expr/program.h"
#include "ir/passes/split.h"
#include "plan/forms/field_beyond.h"
#include "plan/forms/field_factors.h"
#include "plan/gpu/plan.h"

namespace mercer::plan {

struct GradientCosts;

/// Features of a block of products, and of a wide one, which has half as many points m.
inline constexpr std::int64_t kFieldTileFeatures = 192, kWideFieldTileFeatures = 256;
/// Whether the wide tile takes less time, as it has fewer features that are not there.
bool pays_wide_field_tile(std::int64_t k, const GradientCosts& costs);
/// Whether a call of these sizes runs on tensor cores.
bool pays_field_products(std::int64_t m, std::int64_t n, std::int64_t k, const Costs& costs);

/// A linear factor makes the field a product of matrices (kernels/cuda/gradient/linear_field.cuh): of the amplitudes,
/// and of the coefficients times the features, with the coefficients themselves after those. Sizes that memory is
/// bounded by.
struct LinearSizes {
  std::int64_t points = 0;   // n of a range
  std::int64_t columns = 0;  // of a pass
  std::int64_t rows = 0;     // m of a part
  bool fits = true;          // operands of the columns keep within the bound even so
  std::int64_t row_bytes() const;
};
/// Columns of an output.
std::int64_t linear_columns(std::int64_t k, bool difference = true);
/// Outputs of a pass at most.
inline constexpr std::int64_t kLinearOutputs = 16;
LinearSizes linear_sizes(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t outputs, std::int64_t part_bytes);
/// As `linear_sizes`, of float64 on tensor cores (kernels/cuda/gradient/linear_doubles.cuh), with `planes` values of a
/// pair; the sums of coefficients are none of its columns.
LinearSizes double_sizes(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t outputs, int planes,
                         std::int64_t part_bytes);
/// Bytes of a row of a part: the values of its pairs, their amplitudes, products.
std::int64_t double_row_bytes(const LinearSizes& sizes, int planes);
/// Whether a call of these sizes takes them.
bool pays_doubles(std::int64_t m, std::int64_t n, std::int64_t k, const Costs& costs);
/// The tile of that product.
BilinearTile linear_tile(const LinearSizes& sizes, int multiprocessors, const Costs& costs);
/// An empty one where it does not pay.
BilinearTile linear_tile(std::int64_t m, std::int64_t n, std::int64_t k, const LinearSizes& sizes, Precision precision,
                         int multiprocessors, const Costs& costs);

/// What pairs are weighed with: the coefficients of each output; or, for one output, the product of factors of both
/// points, or a matrix.
struct FieldWeights {
  enum class Kind : std::uint8_t { coefficients, factors, matrix };
  Kind kind = Kind::coefficients;
  std::int64_t count = 1;  // outputs, or factors
  bool of_outputs() const { return kind == Kind::coefficients; }
  bool of_matrix() const { return kind == Kind::matrix; }
};

/// How these lie: rows with room after the last column, as kernels store them; a caller's rows or columns.
enum class StoredValues : std::uint8_t { padded, rows, columns };

/// Rows and depth of a block of products of float64 matrices (kernels/cuda/gradient/stored_doubles.cuh).
inline constexpr int kDoubleRows = 128, kDoubleSlice = 16;
/// Columns of a tile, of so many in all: 32 or 64.
int columns_of_doubles(std::int64_t columns);
std::int64_t doubles_shared_bytes(int columns);

/// φ contracted on tensor cores.
struct FieldContraction {
  int product_outputs = 0;  // of a pass, where φ has factors; 0: none
  BilinearTile linear;      // of the product, where the factor is linear; an empty one: none
  bool doubles = false;     // that product in float64 (kernels/cuda/gradient/linear_doubles.cuh)
  bool wide = false;        // of a block of products, where factors are powers: kWideFieldTileFeatures
  int cluster = 1;          // blocks of products that share coefficients times amplitudes, 1 or 2
};

/// Stored values times v, in place of z (plan/gpu/value_products.h).
struct StoredProduct {
  bool of_product = false;
  int columns_of_doubles = 64;  // of its tile in float64, or of that of a linear factor: 32 or 64
  BilinearTile tile;            // where values are read where they lie; an empty one: they are not
  StoredValues lie = StoredValues::padded;
};

/// One pass over the pairs (kernels/cuda/gradient/few_features.cuh).
struct FieldPass {
  bool few_features = false;
  int sums = 0;  // in addition, sums of so many values of the pairs, and a value times the columns
  bool with_product = false;
  int features = 0;  // of sums by each, of the extra field; 0: there is none
};

struct GpuFieldProblem {
  ir::FieldSplit field;
  Dtype type = Dtype::float32;  // computing type
  int outputs = 1;              // coefficients of one pass
  int planes = 0;               // pair values
  int thread_features = 4;      // of a thread, 16 in a row of a block, where registers hold as many
  FieldWeights::Kind weights = FieldWeights::Kind::coefficients;  // of a pass of few features
  FieldContraction contraction;
  StoredProduct stored;
  FieldPass pass;
  bool is_extra = false;  // `field.extra` takes the place of the field, which is contracted apart from it
  PlanDevice device;
};

struct FieldPrograms {
  ir::Program phi;               // one output: φ; or of a fold one for each state, of one output
  std::vector<double> identity;  // of a fold
  ir::Program finish;            // of a fold
  ir::Program uniforms;          // float64
};
/// Points m and features of a thread.
struct FieldBlock {
  int thread_r = 4, thread_f = 4;
};
struct FieldReads {
  bool row = false, col = false, weights = false;
};
/// Programs of φ in factors.
struct FactorPrograms {
  ir::Program amplitude, factor, factor_by_table;
  ir::Program extra_amplitude, extra_value;  // the extra field: a factor of the pair, and what is left
};

struct GpuFieldPlan {
  GpuFieldProblem problem;
  FieldPrograms programs;
  FieldBlock block;
  FieldReads reads;
  FieldFactors factors;
  FactorPrograms contracted;
  bool products = false;                      // point by point: field_products.cuh
  std::shared_ptr<const GpuPairPlan> linear;  // the product of matrices; what it leaves is done by `products`
  bool doubles = false;                       // the same in float64

  /// Columns of coefficients that a product has: 8, 16, 32 or, of signs, 64. Powers take 16 at least: with 8, eight
  /// points m leave their values too few registers.
  int product_columns() const {
    if (problem.contraction.product_outputs <= 8 && factors.power == 0) return 8;
    if (problem.contraction.product_outputs <= 16) return 16;
    return problem.contraction.product_outputs <= 32 || !of_signs() ? 32 : 64;
  }
  /// The factor is linear, and the field a product of matrices.
  bool is_linear() const { return linear || doubles; }
  bool on_tensor_cores() const { return products || is_linear(); }
  bool folds() const { return static_cast<bool>(problem.field.fold); }
  int states() const { return folds() ? problem.field.fold.states() : 1; }
  bool has_one_output() const { return problem.weights != FieldWeights::Kind::coefficients; }
  /// Columns of coefficients of that pass.
  int columns() const { return problem.weights == FieldWeights::Kind::matrix ? 0 : problem.outputs; }
  /// Sums of a pass, in addition to its results.
  int side_sums() const {
    return problem.pass.sums + (problem.pass.with_product ? problem.outputs : 0) + problem.pass.features;
  }
  /// Coefficients of one pass.
  int pass_outputs() const { return std::min(problem.contraction.product_outputs, product_columns()); }
  int product_queries() const { return (problem.contraction.wide ? 32 : 64) / product_columns(); }
  /// A block of products has so many groups of 16 features, which a warp each multiplies, and four warps more.
  int product_groups() const {
    return static_cast<int>((problem.contraction.wide ? kWideFieldTileFeatures : kFieldTileFeatures) / 16);
  }
  int product_threads() const { return product_groups() * 32 + 128; }
  /// Points m whose products go together; twice as many have left operands in registers.
  int product_batch(bool units = false) const { return units ? 1 : std::clamp(product_queries() / 2, 1, 2); }
  int linear_outputs() const { return static_cast<int>(std::min<std::int64_t>(problem.outputs, kLinearOutputs)); }
  bool of_differences() const { return factors.linear == FieldFactors::Linear::difference; }
  bool of_signs() const { return factors.kind == FieldFactors::Kind::sign; }
  /// Values in units of their rows and columns where these allow it: of signs as integers, of powers as 16-bit floats.
  /// Very many planes leave no memory for the stages that this takes.
  bool has_units() const {
    return products && (of_signs() ? product_stages(true) > 2 : factors.power > 0 && product_stages(true) > 1);
  }
  /// Products without units are for the rows that others leave.
  bool products_are_fallback() const { return has_units() || linear; }
  /// How many of eight powers as 16-bit floats are taken by table.
  int table_eighths() const { return factors.power == 0.5 ? 0 : 2; }
  /// Bytes of 16 features and 16 points in the image of z.
  std::int64_t group_bytes() const { return of_signs() ? 512 : 1024; }
  /// `units`: with values in units.
  int product_stages(bool units = false) const;
  /// Stages of coefficients and amplitudes, which are read before.
  int product_inputs(bool units = false) const;
  std::int64_t product_shared_bytes(int stages, bool units = false) const;
  /// Stored values times v, as a linear field with coefficients.
  bool linear_of_product() const { return problem.stored.of_product && linear; }
  /// Stored values times v on tensor cores of float64 (kernels/cuda/gradient/stored_doubles.cuh).
  bool by_doubles() const { return problem.stored.of_product && problem.type == Dtype::float64; }
  int tile_r() const { return by_doubles() ? kDoubleRows : 16 * block.thread_r; }
  int tile_f() const { return by_doubles() ? problem.stored.columns_of_doubles : 16 * block.thread_f; }
  std::int64_t shared_bytes(std::int64_t n) const;
  /// Amplitudes are the first value of the pairs as it is.
  bool has_plain_amplitude() const;

  FieldBeyond beyond;  // at pairs whose values are marked
};

/// Points m of a thread, and bytes of shared memory of a block, for a field of few features, whose values of the pairs
/// come from `pairs`.
int few_features_rows(const GpuPairPlan& pairs);
std::int64_t few_features_bytes(const GpuPairPlan& pairs);
inline constexpr int kFewFeaturesThreads = 128;
/// Blocks of a multiprocessor at once: sums of many features want registers.
inline int few_features_blocks(std::int64_t k) { return k <= 8 ? 4 : 2; }
/// Outputs, or factors, that a pass takes.
int few_features_outputs(const FieldWeights& weights, std::int64_t k);

/// Features of a thread by which blocks have few that are not there, of k in all.
int thread_features(std::int64_t k, const GradientCosts& costs);

/// Coefficients that one pass takes at most; more take several.
inline constexpr std::int64_t kFieldOutputs = 16;
/// As `kFieldOutputs`, of products, for so many in all: twice as many where that takes no more columns.
int most_product_outputs(std::int64_t outputs);

/// `scaled`: the fields with their units (ir/passes/safe_field.h), which read the amplitude after `again`; or an empty
/// one.
std::shared_ptr<const GpuFieldPlan> plan_gpu_field(const GpuFieldProblem& given, const ir::FieldSplit& scaled = {});

}  // namespace mercer::plan
