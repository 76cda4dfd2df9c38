#include "backend/cuda/gemm/wide.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

/// Points of a block, and its threads for a column (four steps, two halves).
constexpr std::int64_t kPoints = 32, kColumnThreads = 8;
constexpr std::int64_t kThreads = 256;

}  // namespace

WideOperand::WideOperand(const plan::BilinearTile& tile, const PairJob& job, const Options& options,
                         Workspace& workspace)
    : tile_(tile), job_(job), options_(options), write_v_(wide_operands(job)) {
  image_ = workspace.add(blocks() * std::max(tile_.v_bytes(plan::VPieces::floats),
                                             tile_.v_bytes(plan::VPieces::floats_and_norms)));
}

std::int64_t WideOperand::blocks() const { return round_up(job_.z.count, tile_.columns) / kPoints; }

WideArguments WideOperand::arguments(const PairArguments& group, const PlainColumns& v,
                                     const Workspace& workspace) const {
  WideArguments a{};
  a.v = v.data;
  a.expanded = group.expanded.state;
  a.split = options_.rates ? group.split.state : nullptr;
  a.image = workspace.at<float>(image_);
  a.n = group.n;
  a.v_row = v.row;
  a.v_column = v.column;
  a.blocks = blocks();
  a.columns = group.v.columns;
  a.wide = tile_.wide;
  a.by_fours = options_.by_fours ? 1 : 0;
  return a;
}

WideArguments WideOperand::arguments(const BilinearArguments& group, const PlainColumns& v,
                                     const Workspace& workspace) const {
  WideArguments a = arguments(group.pairs, v, workspace);
  a.norm = group.z.norm;
  a.norm_tail = group.z.norm_tail;
  a.scale = group.z.scale;
  return a;
}

void WideOperand::write(const PairArguments& group, const PlainColumns& v, const Workspace& workspace,
                        const ExtraColumns& extra) const {
  WideArguments a = arguments(group, v, workspace);
  a.block_bytes = tile_.v_bytes(plan::VPieces::floats);
  a.extra = extra.data;
  a.extra_ld = extra.ld;
  a.extra_columns = extra.columns;
  a.extra_wide = tile_.extra;
  launch_floats(a);
}

void WideOperand::write_powers(const BilinearArguments& group, const PlainColumns& v,
                               const Workspace& workspace) const {
  WideArguments a = arguments(group, v, workspace);
  a.block_bytes = tile_.v_bytes(plan::VPieces::floats_and_norms);
  launch_floats(a);
}

void WideOperand::write_halves(const PairArguments& group, const PlainColumns& v, const Workspace& workspace) const {
  WideArguments a = arguments(group, v, workspace);
  a.block_bytes = tile_.v_bytes(plan::VPieces::halves);
  launch_halves(a);
}

void WideOperand::write_halves(const BilinearArguments& group, const PlainColumns& v,
                               const Workspace& workspace) const {
  WideArguments a = arguments(group, v, workspace);
  a.block_bytes = tile_.v_bytes(plan::VPieces::halves_and_norms);
  launch_halves(a);
}

void WideOperand::launch_floats(const WideArguments& a) const {
  launch(write_v_, job_, {ceil_div(a.blocks * kColumnThreads * (a.wide + a.extra_wide), kThreads)}, kThreads, 0, a);
}

void WideOperand::launch_halves(const WideArguments& a) const {
  launch(sibling(write_v_, "write_halves", job_), job_, {ceil_div(a.blocks * a.wide, kThreads)}, kThreads, 0, a);
}

}  // namespace mercer::cuda
