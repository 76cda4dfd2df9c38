// Plans as CUDA C++: configuration and generated functions, then the skeleton from kernels/cuda/.
#pragma once

#include <string>

#include "mercer/pairwise.h"
#include "plan/gpu/field.h"
#include "plan/gpu/plan.h"
#include "plan/gpu/small_tile.h"

namespace mercer::codegen {

/// The kernel `pair_tile` (kernels/cuda/pairs/pair_tile.cuh).
std::string cuda_pair_source(const plan::GpuPairPlan& plan);

/// The kernel `pair_tile` on quantised panels: for a plan on mixed pipes (kernels/cuda/pairs/mixed.cuh).
std::string cuda_integers_source(const plan::GpuPairPlan& plan);
/// The kernel `pair_tile` by differences of tensor cores (kernels/cuda/pairs/pair_differences.cuh).
std::string cuda_differences_source(const plan::GpuPairPlan& plan);
/// The kernel `finish_stored`: a formula without the sum that it is of (plan/gpu/sums/bare_sums.h); and `allow`, where
/// the plan has an allowance.
std::string cuda_finish_source(const plan::GpuPairPlan& plan);
/// The kernels `start_mixed`, `quantise` and `write_pieces`.
std::string cuda_quantise_source();
/// The kernels `find_ranges` and `quantise_points`.
std::string cuda_quantise_points_source(Dtype points);

/// The kernels of a plan on tensor cores (kernels/cuda/common/split_precision.cuh): `bilinear_tile`, and those that
/// make its operands, `find_centre`, `examine`, `write_pieces` and `sample_pairs`; of at most 64 features also
/// `write_points`. Its pairs that cancel take `repair`, `repair_areas` and `pair_tile`. Where plan.rates() there is a
/// kernel `rated` in addition, launched first; the device decides which one leaves.
std::string cuda_bilinear_source(const plan::GpuPairPlan& plan, bool rated = false);
std::string cuda_repair_source(const plan::GpuPairPlan& plan);
/// `bilinear_tile` that stores values, where plan.keeps(); and `write_kept`, which makes operands of v.
std::string cuda_kept_source(const plan::GpuPairPlan& plan);
std::string cuda_kept_operands_source();
/// `multiplier`: of plan::Bilinear.
std::string cuda_operands_source(bool squares, const Expr& multiplier, bool few_features);
/// The kernels of a plan on tensor cores of float64 (kernels/cuda/gemm/double_products.cuh): `pair_tile` by products;
/// `start_doubles`, `write_image` and `sample_squares`.
std::string cuda_double_source(const plan::GpuPairPlan& plan);
std::string cuda_double_operands_source(bool squares, const Expr& multiplier);
/// Products of few features with many columns of v: the kernel `wide_tile`.
std::string cuda_wide_source(const plan::GpuPairPlan& plan);
/// The kernels `start_expanded` and `expand_points`: for a plan with expanded squares
/// (kernels/cuda/pairs/expanded.cuh).
std::string cuda_expand_source(const plan::GpuPairPlan& plan);
/// Fields that weigh products of two factors (kernels/cuda/gradient/rank_field.cuh): the kernels `write_factors`,
/// `write_columns` and `finish_rows`; and `rank_rows`, of a plan.
std::string cuda_rank_field_source(const Expr& weight);
std::string cuda_rank_rows_source(const plan::GpuPairPlan& plan);
/// The kernels of stream_merge.cuh.
std::string cuda_stream_merge_source(Dtype type);
/// The kernels of pair_weights.cuh.
std::string cuda_pair_weights_source(Dtype type);
/// The kernels `write_v` and `write_halves`.
std::string cuda_wide_operands_source();

/// The kernel `pack`: one side of a plan, for points of this dtype.
std::string cuda_pack_source(const plan::GpuPairPlan& plan, bool of_x, Dtype points);
/// The kernel `pack` without a formula: values are the features.
std::string cuda_plain_pack_source(Dtype type, Dtype points);

/// The kernel `fill`.
std::string cuda_fill_source();
/// The kernels of skipped.cuh, for v of type `v` and results of type `out`.
std::string cuda_skipped_source(Dtype type, Dtype v, Dtype out);
/// The kernel of known_folds.cuh, with results of type `out`.
std::string cuda_known_folds_source(ReduceKind fold, Dtype type, Dtype out);
/// The kernel of known_neighbours.cuh.
std::string cuda_known_neighbours_source(Dtype type);
std::string cuda_factor_source();
/// The kernels of lu_panel.cuh, and those of lu_steps.cuh.
std::string cuda_lu_panel_source();
std::string cuda_lu_steps_source();
/// The kernels of triangles.cuh.
std::string cuda_triangles_source();
/// The kernels of few_columns.cuh.
std::string cuda_few_columns_source(Dtype type);

/// The kernel `uniforms`: so many parameters and what `program` makes of them.
std::string cuda_uniforms_source(Dtype type, std::size_t params, std::size_t uniforms, const ir::Program& program);

/// The kernels `field` and, after ranges of n, `sum_splits`.
/// The tile of a gradient field of few features.
std::string cuda_few_features_source(const plan::GpuPairPlan& plan);
std::string cuda_field_source(const plan::GpuFieldPlan& plan);
/// The kernels of a plan with products: `field_products`, and `write_coefs` and what else makes operands.
std::string cuda_field_products_source(const plan::GpuFieldPlan& plan);
std::string cuda_field_operands_source(const plan::GpuFieldPlan& plan);
/// The kernels of a field with values in units: `field_products` on these, and `measure_coefs` and what else decides
/// which rows may be.
std::string cuda_field_units_source(const plan::GpuFieldPlan& plan);
std::string cuda_field_rows_source(const plan::GpuFieldPlan& plan);
/// The kernels of a plan whose factor is linear: `finish_field` and what else lies around the product of matrices.
std::string cuda_linear_source(const plan::GpuFieldPlan& plan);
/// As `cuda_linear_source`, of float64; and the kernel `field` that multiplies stored float64 with columns.
std::string cuda_linear_doubles_source(const plan::GpuFieldPlan& plan);
std::string cuda_stored_doubles_source(const plan::GpuFieldProblem& problem);
/// The kernels `finish_values` and `add_ranges` of a pass that stores reductions.
std::string cuda_stored_sums_source(const plan::StoredSums& plan);
/// The kernel `wide_tile`: stored values of float32 times v.
std::string cuda_stored_source(const plan::BilinearTile& tile, plan::StoredValues lie);
std::string cuda_sum_source(Dtype type);

/// The kernels `move_dense` and what else surrounds routines of linear algebra (kernels/cuda/linalg/dense.cuh).
std::string cuda_dense_source(Dtype type);
/// The kernel `small_cholesky`, `small_lu` or `small_eigh`.
std::string cuda_small_source(Dtype type, const plan::SmallTile& tile, plan::SmallVerb verb);
std::string cuda_columns_source(Dtype type);
/// The kernels for clusters of so many blocks, whose lanes have so many rows each: matrices of up to 32 lane_rows.
std::string cuda_tridiagonal_source(int cluster, int lane_rows);
std::string cuda_cg_source(Dtype type);
/// The kernel of cg_condition.cuh.
std::string cuda_cg_condition_source();
std::string cuda_low_rank_source(Dtype type);

/// The kernel `nearest`.
std::string cuda_nearest_source(Dtype type);
/// The kernels of a plan that finds candidates: `tighten`, `rank` and `scan_rows`.
std::string cuda_candidates_source(const plan::GpuPairPlan& plan);

/// The kernel `merge_ranges` after a fold over n.
std::string cuda_merge_source(plan::Consumer consumer, ReduceKind fold, Dtype type, Dtype out);

}  // namespace mercer::codegen
