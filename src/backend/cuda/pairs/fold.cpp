// Operations that fold the pairs over n: every block keeps its rows' states over a range of n; a second kernel merges
// the ranges in order.
#include <algorithm>
#include <optional>

#include "backend/cuda/gemm/kept_products.h"
#include "backend/cuda/gemm/matrix_products.h"
#include "backend/cuda/gemm/wide.h"
#include "backend/cuda/pairs/expanded.h"
#include "backend/cuda/pairs/mask_strips.h"
#include "backend/cuda/pairs/mixed.h"
#include "backend/cuda/pairs/operations.h"
#include "backend/cuda/pairs/sum_planes.h"
#include "backend/cuda/runtime/ranges.h"
#include "core/error.h"
#include "core/integers.h"
#include "kernels/cuda/pairs/skipped.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kMostBlocks = 0x7fffffff;

/// Bytes of the state of a range of n, for a row and column of v (kernels/cuda/pairs/fold.cuh).
std::int64_t state_bytes(const plan::GpuPairProblem& problem) {
  const std::int64_t real = static_cast<std::int64_t>(size_of(problem.type));
  if (problem.consumer == plan::Consumer::product) return real;
  switch (problem.use.fold) {
    case ReduceKind::argmax:
    case ReduceKind::argmin: return 16;
    case ReduceKind::sum:
    case ReduceKind::logsumexp: return 2 * real;
    default: return real;
  }
}

class FoldLaunch {
 public:
  /// `strip`: what the call is of another one of so many columns, whose other values are known; or null.
  FoldLaunch(const PairKernels& kernels, const PairJob& job, const JobMatrix& out, Workspace& workspace,
             const MaskStrip* strip = nullptr, std::int64_t columns = 0)
      : kernels_(kernels), job_(job), out_(out), workspace_(workspace), panels_(kernels, job, workspace), strip_(strip),
        all_columns_(columns) {
    const plan::GpuPairProblem& problem = kernels.plan->problem;
    if (strip != nullptr && problem.consumer == plan::Consumer::fold)
      merge_known_ = merge_known(problem.use.fold, out.dtype, job);
    groups_.steps.resize(5);
    products_ = matrix_products(kernels, job, panels_, 0, false, workspace_);
    if (kernels.plan->few.mma_rhs) v_.emplace(kernels.plan->problem.product, job, WideOperand::Options{}, workspace_);
    if (kernels.plan->pipes.mixed_sixteenths > 0) mixed_.emplace(kernels, job, panels_, workspace_);
    if (kernels.plan->few.expanded) expanded_.emplace(kernels, job, panels_, workspace_);
    rows_ = job.x.count;
    if (kernels.products.sums.empty()) return;
    rows_ = SumPlanes::rows_of(kernels, job);
    sums_.emplace(kernels, job, rows_, workspace_);
  }

  /// False where the call ends with the lay-out of its memory.
  bool run(const JobOperand* v, std::int64_t columns) {
    const plan::GpuPairPlan& plan = *kernels_.plan;
    const std::int64_t tiles_m = ceil_div(rows_, plan.tile.tile_m);
    const std::int64_t items = job_.items;
    splits_ = choose_splits(cut());
    if (v) panel_ = {v->array, job_.z.count, columns, v->row_stride, v->col_stride, 0, 0, {}};
    if (v) lay_out(panel_, job_, workspace_);
    if (plan.keeps())
      kept_.emplace(kernels_, job_, static_cast<const SplitProducts&>(*products_), columns, workspace_);
    const plan::BilinearTile& product = plan.problem.product;
    pass_ = std::min<std::int64_t>(columns, product.wide > 0 ? product.wide : plan.problem.use.columns);
    ld_ = panels_.x().ld;
    partial_ = workspace_.add(items * splits_ * pass_ * ld_ * state_bytes(plan.problem));
    std::int64_t blocks = 0;
    const bool fits = !__builtin_mul_overflow(tiles_m * splits_, items, &blocks) && blocks <= kMostBlocks;
    require(fits, "{}: at most 2^31 - 1 blocks are offered in one call on CUDA. Received {} rows, {} times.", job_.op,
            job_.x.count, items);
    for (std::size_t axis = 0; axis < job_.batch.size(); ++axis) {
      groups_.extent.push_back(job_.batch[axis]);
      groups_.steps[0].push_back(panels_.x().batch_steps[axis]);
      groups_.steps[1].push_back(panels_.z().batch_steps[axis]);
      groups_.steps[2].push_back(panels_.params().item_steps()[axis]);
      groups_.steps[3].push_back(out_.batch_strides[axis]);
      groups_.steps[4].push_back(v ? panel_.batch_steps[axis] : 0);
    }
    groups_.merge(job_.op);
    if (!workspace_.take(job_)) return false;
    PanelRanges ranges;
    if (mixed_) ranges = mixed_->start(job_.items, workspace_);
    if (products_) ranges.packs = !products_->takes_points(job_.items);
    panels_.run(workspace_, ranges);
    if (v && !(products_ && products_->takes_v(panel_))) pack(panel_, job_, workspace_);
    if (sums_) sums_->prepare(workspace_);
    for (std::int64_t row = 0; row < job_.x.count; row += rows_) {
      const PairArguments part = rows_from(row);
      for (std::int64_t first = 0; first < columns; first += pass_) {
        launch_tiles(part, blocks, first, std::min(pass_, columns - first));
        launch_merge(row, part.m, first, std::min(pass_, columns - first));
      }
    }
    if (kept_) merge_kept();
    return true;
  }

 private:
  /// The ranges serve both where products on tensor cores may leave all to the tile.
  Cut cut() const {
    const plan::GpuPairPlan& plan = *kernels_.plan;
    const plan::BilinearTile& product =
        plan.few.mma_rhs && plan.few.expanded ? plan.few.expanded->problem.product : plan.problem.product;
    const std::int64_t multiprocessors = job_.hardware().multiprocessors;
    const auto of_tile = [&](const plan::GpuTile& tile, int blocks) -> Cut {
      return {ceil_div(rows_, tile.tile_m), ceil_div(job_.z.count, tile.tile_n), tile.tile_n,
              multiprocessors * blocks};
    };
    if (plan.has_double_products()) return of_tile(plan.products.double_tile, plan.products.double_tile.min_blocks);
    if (!plan.products.bilinear && !plan.few.mma_rhs) return of_tile(plan.tile, plan.wave_blocks());
    const std::int64_t tile_n =
        std::max<std::int64_t>(plan.problem.product.columns, plan.few.mma_rhs ? 0 : plan.tile.tile_n);
    return {ceil_div(job_.x.count, product.kRows * product.cluster), ceil_div(job_.z.count, tile_n), tile_n,
            multiprocessors * product.blocks / product.cluster};
  }

  /// Operands are those of one group: made again in every pass where there are several.
  void run_groups(const PairArguments& a, std::int64_t blocks, std::int64_t first) const {
    const plan::GpuPairPlan& plan = *kernels_.plan;
    for (std::int64_t group = 0; group < job_.items; ++group) {
      PairArguments one = group_of(a, group, plan, job_.type);
      one.out.data = workspace_.at<char>(partial_) + group * splits_ * one.v.columns * ld_ * state_bytes(plan.problem);
      if (v_) {
        run_wide(one);
        continue;
      }
      const bool prepares = first == 0 || job_.items > 1;
      if (mixed_) {
        const MixedArguments mixed = mixed_->arguments(a, group, one, workspace_);
        if (prepares) mixed_->prepare(one, mixed, workspace_);
        mixed_->launch_tiles(one, mixed, blocks / job_.items, workspace_);
        continue;
      }
      if (expanded_) {
        const ExpandedSquares::Both both = expanded_->prepare(one, workspace_);
        const std::int64_t threads = plan.tile.threads(), shared = plan.shared_bytes(job_.features);
        launch(kernels_.pipes.expanded, job_, {blocks / job_.items}, threads, shared, both.expanded);
        launch(kernels_.common.tile, job_, {blocks / job_.items}, threads, shared, both.values);
        continue;
      }
      if (prepares) products_->prepare(one, workspace_);
      if (prepares && kept_) kept_->run(one, workspace_);
      products_->fold(one, workspace_);
    }
  }

  void run_wide(const PairArguments& group) const {
    if (!expanded_) return run_wide(kernels_.products.tile, group, false);
    const ExpandedSquares::Both both = expanded_->prepare(group, workspace_);
    run_wide(kernels_.pipes.expanded, both.expanded, true);
    run_wide(kernels_.products.tile, both.values, false);
  }

  void run_wide(const Kernel& kernel, const PairArguments& group, bool of_expanded) const {
    const plan::GpuPairPlan& plan = of_expanded ? *kernels_.plan->few.expanded : *kernels_.plan;
    const plan::BilinearTile& tile = plan.problem.product;
    if (of_expanded)
      v_->write_halves(group, PlainColumns::of_panel(group), workspace_);
    else
      v_->write(group, PlainColumns::of_panel(group), workspace_);
    BilinearArguments a{};
    a.pairs = group;
    a.v_image = v_->image(workspace_);
    const std::int64_t tiles = ceil_div(group.m, tile.kRows * tile.cluster) * group.splits;
    const std::int64_t clusters =
        std::min<std::int64_t>(tiles, job_.hardware().multiprocessors * tile.blocks / tile.cluster);
    launch(kernel, job_, {clusters * tile.cluster}, tile.threads(), plan.product_shared_bytes(), a);
  }

  /// All rows, or those from `row` on whose sums are computed here.
  PairArguments rows_from(std::int64_t row) const {
    const PairArguments all = panels_.arguments(workspace_);
    if (!sums_) return all;
    PairArguments part = part_of(all, {row, 0}, std::min(rows_, job_.x.count - row), kernels_, job_);
    sums_->write(part, {row, 0}, workspace_);
    return part;
  }

  void launch_tiles(const PairArguments& part, std::int64_t blocks, std::int64_t first, std::int64_t columns) {
    const plan::GpuPairPlan& plan = *kernels_.plan;
    PairArguments a = part;
    a.out.data = workspace_.at<>(partial_);
    a.out.partial_ld = ld_;
    a.splits = static_cast<int>(splits_);
    a.v.columns = a.v.partial_columns = static_cast<int>(columns);
    if (plan.product_columns() > 0)
      a.v.data = workspace_.at<char>(panel_.place) + first * panel_.ld * static_cast<std::int64_t>(size_of(job_.type));
    a.v.ld = panel_.ld;
    a.groups = groups_.axes();
    groups_.write(0, a.x.step);
    groups_.write(1, a.z.step);
    groups_.write(2, a.params.step);
    groups_.write(4, a.v.step);
    if (products_ || v_ || mixed_ || expanded_) return run_groups(a, blocks, first);
    if (sums_) blocks = a.tiles_m * a.splits;
    launch(kernels_.common.tile, job_, {blocks}, plan.tile.threads(), plan.shared_bytes(job_.features), a);
  }

  void launch_merge(std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t columns) {
    MergeArguments a = merge_arguments();
    a.partial = workspace_.at<>(partial_);
    a.out = static_cast<char*>(out_.data) +
            (row * out_.row_stride + first * out_.col_stride) * static_cast<std::int64_t>(size_of(out_.dtype));
    a.m = rows;
    a.ld = ld_;
    a.columns = static_cast<int>(columns);
    a.splits = static_cast<int>(splits_);
    if (strip_ != nullptr && kernels_.plan->problem.consumer == plan::Consumer::fold) return launch_merge_known(a);
    launch_merge(a);
  }

  void launch_merge_known(const MergeArguments& merge) const {
    constexpr std::int64_t kThreads = 256;
    KnownFoldArguments a{};
    a.partial = merge.partial;
    a.out = merge.out;
    a.m = merge.m;
    a.ld = merge.ld;
    a.splits = merge.splits;
    a.out_row = merge.out_row;
    a.column = strip_->column;
    a.end = strip_->column_end();
    a.n = all_columns_;
    a.before = strip_->before;
    a.after = strip_->after;
    launch(merge_known_, job_, {ceil_div(a.m, kThreads)}, kThreads, 0, a);
  }

  void merge_kept() {
    MergeArguments a = merge_arguments();
    a.out = out_.data;
    a.m = job_.x.count;
    kept_->write(a, workspace_);
    launch_merge(a);
  }

  MergeArguments merge_arguments() {
    MergeArguments a{};
    a.out_row = out_.row_stride;
    a.out_column = out_.col_stride;
    a.groups = groups_.axes();
    groups_.write(3, a.out_step);
    if (kept_) a.state = kept_->state(workspace_);
    return a;
  }

  void launch_merge(const MergeArguments& a) const {
    const bool is_product = kernels_.plan->problem.consumer == plan::Consumer::product;
    const std::int64_t tasks = ceil_div(a.columns, is_product ? MERCER_MERGED_COLUMNS : 1);
    const std::int64_t neighbours = std::min<std::int64_t>(tasks, MERCER_MERGE_NEIGHBOURS);
    const std::int64_t threads = job_.items * round_up(tasks, neighbours) * round_up(a.m, 32);
    launch(kernels_.common.merge, job_, {ceil_div(threads, 128)}, 128, 0, a);
  }

  const PairKernels& kernels_;
  const PairJob& job_;
  const JobMatrix& out_;
  Workspace& workspace_;
  Panels panels_;
  std::optional<SumPlanes> sums_;
  std::unique_ptr<MatrixProducts> products_;
  std::optional<KeptProducts> kept_;
  std::optional<WideOperand> v_;  // of values of few features
  std::optional<MixedPipes> mixed_;
  std::optional<ExpandedSquares> expanded_;
  PlainPanel panel_;
  BatchWalk groups_;
  const MaskStrip* strip_;
  std::int64_t all_columns_;
  Kernel merge_known_;  // in place of the plan's, where values around those of a strip are known
  std::int64_t rows_ = 0;  // of m at once
  std::int64_t splits_ = 1, pass_ = 1, ld_ = 0, partial_ = 0;
};

/// One item of a batch, strip by strip. False where the call ends with the lay-out of its memory.
bool fold_strips(const PairKernels& kernels, const PairJob& job, const JobOperand* v, std::int64_t columns,
                 const JobMatrix& out, const std::vector<MaskStrip>& strips, Workspace& workspace) {
  std::optional<SkippedRows> skipped;
  if (v != nullptr) skipped.emplace(job, *v, columns, out.dtype);
  const std::int64_t flags = skipped ? skipped->bytes() : 0;
  const auto v_of = [&](const MaskStrip& strip) {
    return v != nullptr ? std::optional(part_of(*v, strip)) : std::nullopt;
  };
  const auto pointer = [](const std::optional<JobOperand>& part) { return part ? &*part : nullptr; };
  std::int64_t bytes = 0;
  for (const MaskStrip& strip : strips)
    bytes = std::max(bytes, scratch_bytes(part_of(job, strip), [&](const PairJob& part, Workspace& rehearsed) {
                       const std::optional<JobOperand> from = v_of(strip);
                       FoldLaunch(kernels, part, part_of(out, strip.row, 0), rehearsed, &strip, job.z.count)
                           .run(pointer(from), columns);
                     }));
  workspace.reuse();
  workspace.add(flags);
  workspace.add(bytes);
  if (!workspace.take(job)) return false;
  if (skipped) skipped->find(workspace.at<char>(0));
  for (const MaskStrip& strip : strips) {
    workspace.reuse();
    workspace.add(flags);
    const PairJob part = part_of(job, strip);
    const JobMatrix to = part_of(out, strip.row, 0);
    const std::optional<JobOperand> from = v_of(strip);
    if (!FoldLaunch(kernels, part, to, workspace, &strip, job.z.count).run(pointer(from), columns)) return false;
    if (skipped) skipped->mark(strip, out, workspace.at<char>(0));
  }
  return true;
}

/// Planes are those of one item of a batch, and so are stored values and strips.
void fold(const PairKernels& kernels, const PairJob& job, const JobOperand* v, std::int64_t columns,
          const JobMatrix& out) {
  const JobScope scope(job);
  Workspace workspace;
  const std::vector<MaskStrip> strips = mask_strips(*kernels.plan, job);
  if (strips.empty() && kernels.products.sums.empty() && (job.items == 1 || !kernels.plan->keeps())) {
    FoldLaunch(kernels, job, out, workspace).run(v, columns);
    return;
  }
  const FixedAxes items(job.batch, std::vector<bool>(job.batch.size(), true));
  for (std::int64_t index = 0; index < items.items(); ++index) {
    const PairJob one = job.at(items, index);
    const JobMatrix to = out.at(items, index);
    JobOperand from;
    if (v != nullptr) from = {items.at(v->array, index), v->row_stride, v->col_stride};
    workspace.reuse();
    const JobOperand* own = v != nullptr ? &from : nullptr;
    const bool goes_on = strips.empty() ? FoldLaunch(kernels, one, to, workspace).run(own, columns)
                                        : fold_strips(kernels, one, own, columns, to, strips, workspace);
    if (!goes_on) return;
  }
}

}  // namespace

void product(const PairKernels& kernels, const PairJob& job, const JobOperand& v, std::int64_t columns,
             const JobMatrix& out) {
  fold(kernels, job, &v, columns, out);
}

void reduce(const PairKernels& kernels, const PairJob& job, const JobMatrix& out) {
  fold(kernels, job, nullptr, 1, out);
}

}  // namespace mercer::cuda
