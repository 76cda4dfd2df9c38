// Compiled kernels of one plan on one device.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/runtime/job.h"
#include "core/system/mutex.h"
#include "jit/cuda_module.h"
#include "plan/gpu/field.h"
#include "plan/gpu/plan.h"
#include "plan/gpu/small_tile.h"
#include "plan/kron/kron_gpu.h"

namespace mercer::cuda {

/// A loaded kernel; keeps its module.
struct Kernel {
  std::shared_ptr<const jit::CudaModule> module;
  const jit::CudaFunction* function = nullptr;
  bool is_quick = false;  // of shared ones: for one call (jit/quick_compile.h)
  explicit operator bool() const { return function != nullptr; }
};

/// Where a kernel is in what owns it: `place_of<&PairKernels::common, &CommonParts<Kernel>::tile>`.
template <class Owner>
using KernelPlace = Kernel& (*)(Owner&);
template <auto group, auto member, class Owner>
Kernel& place_of(Owner& owner) {
  return owner.*group.*member;
}
template <auto member, class Owner>
Kernel& place_of(Owner& owner) {
  return owner.*member;
}

/// What takes its place in `Owner` at the next call: that of a quick kernel, or of none after bare sums.
template <class Owner>
struct FullKernel {
  KernelPlace<Owner> place;
  const char* function;
  std::shared_future<jit::CudaBinary> binary;
};

/// The tile of a plan and what goes with it, whatever the way: sources or kernels.
template <class Part>
struct CommonParts {
  Part tile, pack_x, pack_z, uniforms;
  Part merge;           // of a fold, or empty
  Part candidates;      // `tighten`, of nearest neighbours; its module has the others of nearest_candidates.cuh
  Part field_uniforms;  // of a field of few features, whose kernel is the tile; that of one that weighs products is
                        // `rank_rows`; or of stored sums
  Part stored_sums;     // `finish_values`; its module has `add_ranges`
};
/// Tiles of other arithmetic, for what the device finds that they serve (plan::PairPipes, plan::PairOfFewFeatures).
template <class Part>
struct PipeParts {
  Part integers, differences;
  Part expand, expanded;  // `start_expanded`, whose module has `expand_points`; the tile
};
/// Products on tensor cores (plan::PairProducts).
template <class Part>
struct ProductParts {
  Part tile;
  Part repair;                      // of products of pairs that are stored
  Part rated;                       // with values in pieces of 16 bits, for what `tile` otherwise does
  Part kept_values, kept_products;  // what stores such values, and what multiplies them with all columns
};

/// What is compiled for a plan, by the dtype of the points; texts are empty where the plan has no such kernel.
struct PairSources {
  CommonParts<jit::CudaSource> common;
  PipeParts<jit::CudaSource> pipes;
  ProductParts<jit::CudaSource> products;
};
PairSources pair_sources(const plan::GpuPairPlan& plan, Dtype points, Dtype out, const std::string& architecture);

struct PairKernels;
struct BareSums;
struct BareValues;

struct ProductKernels : ProductParts<Kernel> {
  std::vector<std::shared_ptr<const PairKernels>> sums;  // of plan->products.planes
};
/// What first calls take in place of kernels that are not there yet.
struct FirstKernels {
  std::shared_ptr<const BareSums> bare;      // of a first call that takes them: nothing else is sure to be there
  std::shared_ptr<const BareValues> values;  // of bare sums: what becomes of them
};
struct PairKernels {
  std::shared_ptr<const plan::GpuPairPlan> plan;
  CommonParts<Kernel> common;
  PipeParts<Kernel> pipes;
  ProductKernels products;
  FirstKernels first;
  std::vector<FullKernel<PairKernels>> full;
  bool are_quick() const;
};
/// What a first call runs where the kernels of its sums are at hand (plan/gpu/sums/bare_sums.h): these, which store the
/// sums, then what makes values of them in their places, of parameters that are arrays after `uniforms`.
struct BareSums {
  std::shared_ptr<const PairKernels> sums;
  Kernel finish, uniforms;
};
/// What the values may lose of the sums: `allow` of their plan, where that has an allowance.
struct BareValues {
  std::shared_ptr<const plan::GpuPairPlan> plan;
  Kernel allow;
};

/// What a first call may run before its kernels are compiled with full care. Who keeps kernels that are not full ones
/// asks for them again, by `finish_kernels`, before the second call.
enum class FirstCall : std::uint8_t {
  full,          ///< nothing: of kernels that are kept as they are
  quick,         ///< quick kernels, where it is short enough (jit/quick_compile.h)
  on_bare_sums,  ///< before them, stored sums by kernels that are at hand: calls of `pairwise` (operations.h)
};
/// Compiles what is not in a cache, several at once, and loads all of it; in a rehearsal, as far as that goes.
std::shared_ptr<const PairKernels> compile_pair_kernels(std::shared_ptr<const plan::GpuPairPlan> plan, Dtype out,
                                                        const PairJob& job, FirstCall first = FirstCall::full);

/// A field that is contracted on tensor cores: its sources or kernels.
template <class Part>
struct ContractionParts {
  Part products, operands;  // `write_coefs`; its module has the others of field_operands.cuh
  Part units, rows;         // with values in units; `judge_rows`; its module has the others of field_rows.cuh
  Part linear;              // of a linear factor: `finish_field`; its module has the others of linear_field.cuh
  Part linear_tile;
};

/// Texts are empty where the plan has no such kernel.
struct FieldSources {
  jit::CudaSource field, uniforms;
  jit::CudaSource stored;  // of stored values times v, in place of `field`
  ContractionParts<jit::CudaSource> contraction;
};
FieldSources field_sources(const plan::GpuFieldPlan& plan, const std::string& architecture);

struct FieldKernels {
  std::shared_ptr<const plan::GpuFieldPlan> plan;
  Kernel field, uniforms;
  Kernel stored;  // `wide_tile`
  ContractionParts<Kernel> contraction;
  std::vector<FullKernel<FieldKernels>> full;
  bool are_quick() const { return !full.empty(); }
};
std::shared_ptr<const FieldKernels> compile_field_kernels(std::shared_ptr<const plan::GpuFieldPlan> plan,
                                                          const PairJob& job, FirstCall first = FirstCall::full);

/// The kernels of `quick`, with full ones where some are quick. Waits for them; even while a graph is captured.
std::shared_ptr<const PairKernels> finish_kernels(const PairKernels& quick, const PairJob& job);
std::shared_ptr<const FieldKernels> finish_kernels(const FieldKernels& quick, const PairJob& job);

/// Kernels that depend on no formula, compiled once a process and device. Throw inside a graph capture when that is
/// still to be done.
Kernel plain_pack(Dtype points, const PairJob& job);
Kernel fill(const PairJob& job);
/// `mark_skipped`; its module has the others of skipped.cuh.
Kernel skipped_kernels(Dtype v, Dtype out, const PairJob& job);
Kernel merge_known(ReduceKind fold, Dtype out, const PairJob& job);
Kernel merge_neighbours(const PairJob& job);
/// `find_scales`; its module has the others of split_factor.cuh.
Kernel factor_kernels(const PairJob& job);
/// `panel_of_2`; its module has the others of lu_panel.cuh (compute capability 9.0).
Kernel lu_panel_kernels(const PairJob& job);
/// `start_block`; its module has the others of lu_steps.cuh.
Kernel lu_step_kernels(const PairJob& job);
/// `solve_lower`; its module has the others of triangles.cuh.
Kernel triangle_kernels(const PairJob& job);
/// `add_parts`; its module has the others of few_columns.cuh.
Kernel few_columns_kernels(const PairJob& job);
Kernel sum_splits(const PairJob& job);
/// `merge_ranges` after products of float32.
Kernel merge_products(const PairJob& job);
Kernel nearest_kernel(const PairJob& job);
/// `start_mixed`; its module has the others of quantise.cuh.
Kernel quantise_kernels(const PairJob& job);
/// `find_ranges`; its module has `quantise_points`.
Kernel quantise_points_kernels(Dtype points, const PairJob& job);
/// `write_v` (wide_operands.cuh).
Kernel wide_operands(const PairJob& job);
/// `write_kept`.
Kernel kept_operands(const PairJob& job);
/// `write_factors`; its module has the others of rank_field.cuh.
Kernel rank_field_kernels(const plan::RankField& field, const PairJob& job);
/// `merge_values`; its module has the others of stream_merge.cuh.
Kernel stream_merge_kernels(const PairJob& job);
/// `weigh_pairs`; its module has the others of pair_weights.cuh.
Kernel pair_weight_kernels(const PairJob& job);
/// Whether operands of few features may be made of points that nothing has packed (kernels/cuda/pack/split_points.cuh).
bool has_few_features(const plan::GpuPairPlan& plan);
/// `find_centre`; its module has the others of split_operands.cuh, and that of split_points.cuh.
Kernel operand_kernels(const plan::GpuPairPlan& plan, const PairJob& job);
/// `start_doubles`; its module has the others of double_operands.cuh.
Kernel double_operand_kernels(const plan::Bilinear& bilinear, const PairJob& job);

/// `move_dense`; its module has the others of dense.cuh.
Kernel dense_kernels(const PairJob& job);
/// `small_lu`, `small_cholesky` or `small_eigh`, as the verb has it.
Kernel small_kernel(const plan::SmallTile& tile, plan::SmallVerb verb, const PairJob& job);
/// `draw_columns`; its module has the others of columns.cuh.
Kernel column_kernels(const PairJob& job);
/// `reduce_symmetric`; its module has the others of tridiagonal.cuh.
Kernel tridiagonal_kernels(const PairJob& job, int cluster, int lane_rows);
/// `cg_begin`; its module has the others of cg.cuh.
Kernel cg_kernels(const PairJob& job);
/// `cg_go_on` (cg_condition.cuh); for drivers with conditional nodes alone.
Kernel cg_condition_kernel(const PairJob& job);
/// `weigh_elements`; its module has the others of low_rank.cuh.
Kernel low_rank_kernels(const PairJob& job);

/// The kernel of each pass. Where `quickly`, those that no cache has are quick ones; asked for again, they are full
/// ones, waited for and loaded even while a graph is captured.
std::vector<Kernel> kron_kernels(const std::vector<plan::KronGpuPass>& passes, const PairJob& job, bool quickly);
/// `kron_finish` of arrays of one dtype.
Kernel kron_finish_kernel(Dtype out, const PairJob& job);

/// Refuses to compile while a graph is recorded from the stream of this call.
void require_no_capture(const PairJob& job);

/// Another kernel of the same module; in a rehearsal, which loads nothing, an empty one.
inline Kernel sibling(const Kernel& kernel, const char* name, const PairJob& job) {
  return job.rehearsal() != nullptr ? Kernel{} : Kernel{kernel.module, &kernel.module->function(name)};
}

/// Puts a kernel into the stream of a call; nothing in a rehearsal.
template <class KernelArguments>
void launch(const Kernel& kernel, const PairJob& job, jit::Dim3 grid, std::int64_t threads, std::int64_t shared_bytes,
            KernelArguments& arguments) {
  if (job.rehearsal() != nullptr) return;
  void* args[] = {const_cast<std::remove_const_t<KernelArguments>*>(&arguments)};
  kernel.function->launch(grid, {threads}, shared_bytes, job.stream(), args);
}

/// Whether kernels may be launched to overlap, in captured graphs too.
inline bool overlaps(const PairJob& job) {
  constexpr int kRecordsOverlaps = 12030;  // the first CUDA whose captures do
  static constinit Lazy<bool> is_recorded;
  return is_recorded.get([] { return cuda_driver_version() >= kRecordsOverlaps; }) && job.hardware().major >= 9;
}

using jit::Overlap;

/// Launches a kernel that waits itself for the one ahead of it on the stream (kernels/cuda/common/overlap.cuh).
template <class KernelArguments>
void launch_overlapping(const Kernel& kernel, const PairJob& job, jit::Dim3 grid, std::int64_t threads,
                        KernelArguments& arguments, std::int64_t shared_bytes = 0, Overlap overlap = Overlap::blocks) {
  if (job.rehearsal() != nullptr) return;
  if (overlap == Overlap::none || !overlaps(job)) return launch(kernel, job, grid, threads, shared_bytes, arguments);
  void* args[] = {const_cast<std::remove_const_t<KernelArguments>*>(&arguments)};
  kernel.function->launch_clusters(grid, {threads}, {1}, shared_bytes, job.stream(), args, overlap);
}

/// Every kernel is compiled so: contraction of a * b + c is asked for by name, never by the compiler.
jit::CudaSource cuda_source(std::string name, std::string text, const std::string& architecture);

}  // namespace mercer::cuda
