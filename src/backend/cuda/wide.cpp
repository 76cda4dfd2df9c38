#include "backend/cuda/wide.h"

#include "core/integers.h"

namespace mercer::cuda {
namespace {

/// Of a block: points, bytes for a column, threads for a column (four steps, two halves).
constexpr std::int64_t kPoints = 32, kColumnBytes = 256, kColumnThreads = 8;
constexpr std::int64_t kThreads = 256;

}  // namespace

WideOperand::WideOperand(const PairKernels& kernels, const PairJob& job, Workspace& workspace)
    : tile_(kernels.plan->problem.product), job_(job), write_v_(wide_operands(job)) {
  image_ = workspace.add(blocks() * tile_.wide * kColumnBytes);
}

std::int64_t WideOperand::blocks() const { return round_up(job_.z.count, tile_.columns) / kPoints; }

void WideOperand::write(const PairArguments& group, bool of_expanded, const Workspace& workspace) const {
  WideArguments a{};
  a.expanded = group.expanded;
  a.of_expanded = of_expanded;
  a.v = static_cast<const float*>(group.v);
  a.split = group.split;
  a.image = workspace.at<float>(image_);
  a.n = group.n;
  a.v_ld = group.v_ld;
  a.blocks = blocks();
  a.columns = group.columns;
  a.wide = tile_.wide;
  launch(write_v_, job_, {ceil_div(a.blocks * kColumnThreads * a.wide, kThreads)}, kThreads, 0, a);
}

}  // namespace mercer::cuda
