// The steps before a tile: parameters of every batch item, and both sides packed.
#pragma once

#include "backend/cuda/runtime/batch.h"
#include "backend/cuda/runtime/job.h"
#include "backend/cuda/runtime/kernels.h"
#include "backend/cuda/runtime/params.h"
#include "backend/cuda/runtime/workspace.h"

namespace mercer::cuda {

ParamPlan param_plan(const plan::GpuPairPlan& plan);
/// Whether every divisor made of parameters has a normal reciprocal; asked of a plan that assumes it, in a call of
/// numbers.
bool reciprocals_are_normal(const plan::GpuPairPlan& plan, const PairJob& job);

/// One side of a call, packed: which batch axes it differs along, and where it lies.
struct PackedPanels {
  // Packed sets per step of each batch axis, 0 where it is the same; elements of points that are not packed.
  std::vector<std::int64_t> batch_steps;
  std::int64_t sets = 1, ld = 0;
  std::int64_t values = 0, slots = 0;     // places in the workspace
};

/// What packing leaves in addition to panels, null where nobody wants it: ranges of the packed sets
/// (kernels/cuda/pack/panel_range.cuh), pieces of their values (kernels/cuda/pack/difference_pieces.cuh). Or panels are
/// left to whoever wants them so (mixed.h, bilinear.h), and there are slots and weights alone.
struct PanelRanges {
  bool packs = true;
  PanelRange *x = nullptr, *z = nullptr;
  void *x_pieces = nullptr, *z_pieces = nullptr;
};

class Panels {
 public:
  /// Lays its memory out in `workspace`.
  Panels(const PairKernels& kernels, const PairJob& job, Workspace& workspace);
  /// Puts the kernels into the stream.
  void run(const Workspace& workspace, const PanelRanges& ranges = {}) const;
  /// The panels that `run` was not asked for, where products on tensor cores leave pairs to who reads them.
  void run_left(const SplitState* products, Overlap overlap, const Workspace& workspace) const;
  /// What a tile's arguments say of panels and parameters, but for the batch.
  PairArguments arguments(const Workspace& workspace) const;

  const PackedPanels& x() const { return x_; }
  const PackedPanels& z() const { return same_ ? x_ : z_; }
  const ParamTable& params() const { return params_; }

 private:
  PackedPanels lay_out(bool of_x, Workspace& workspace);
  PackArguments pack_arguments(bool of_x, const Workspace& workspace) const;
  void launch(const PackArguments& x, const PackArguments& z, Overlap overlap = Overlap::blocks) const;

  const PairKernels& kernels_;
  const PairJob& job_;
  ParamTable params_;
  bool same_ = false;  // z is x
  PackedPanels x_, z_;
  std::int64_t weights_ = 0;
};

/// The first row and column of a part: multiples of the panels' padding.
struct PairPlace {
  std::int64_t m = 0, n = 0;
};
/// The arguments of `rows` rows and of all columns from `first` on.
PairArguments part_of(const PairArguments& a, const PairPlace& first, std::int64_t rows, const PairKernels& kernels,
                      const PairJob& job);

/// The packed sets that a group of a batch takes.
struct GroupSets {
  std::int64_t x = 0, z = 0;
};
GroupSets sets_of(const PairArguments& a, std::int64_t group);

/// The arguments of one group of a batch, as those of a call without batch, for paths whose scratch memory is of one.
PairArguments group_of(const PairArguments& a, std::int64_t group, const plan::GpuPairPlan& plan, Dtype out);

/// Values of one array as a packed panel of its own: [columns][ld], for v and coefficients.
struct PlainPanel {
  BatchedArray array;
  std::int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;
  std::int64_t ld = 0, place = 0;
  std::vector<std::int64_t> batch_steps;  // elements
};
inline PlainPanel panel_of(const JobSide& side, std::int64_t features) {
  return {side.points, side.count, features, side.point_stride, side.feature_stride, 0, 0, {}};
}
void lay_out(PlainPanel& panel, const PairJob& job, Workspace& workspace);
/// Packs a panel; with `products`, only where these leave pairs to kernels that read panels.
void pack(const PlainPanel& panel, const PairJob& job, const Workspace& workspace,
          const SplitState* products = nullptr);

}  // namespace mercer::cuda
