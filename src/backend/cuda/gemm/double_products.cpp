#include "backend/cuda/gemm/double_products.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kOperandPoints = 16, kDouble = sizeof(double);

/// The most cancelling pairs of a sample where products pay: a pair that is computed again takes what some twenty take.
constexpr unsigned kMostSampled = MERCER_SAMPLED_PAIRS / 16;

}  // namespace

DoubleProducts::DoubleProducts(const PairKernels& kernels, const PairJob& job, const Panels& panels,
                               Workspace& workspace)
    : kernels_(kernels), job_(job), start_(double_operand_kernels(kernels.plan->products.bilinear, job)) {
  if (&panels.x() == &panels.z() && shares_operands(kernels.plan->products.bilinear)) sides_ = 1;
  image_k_ = round_up(job.features, kernels.plan->products.double_tile.tile_k);
  const PackedPanels* sides[] = {&panels.x(), &panels.z()};
  for (int s = 0; s < sides_; ++s) {
    side_[s].image = workspace.add(sides[s]->ld * image_k_ * kDouble);
    if (!of_squares()) continue;
    side_[s].rows = workspace.add(sides[s]->ld * image_k_ * kDouble);
    side_[s].norms = workspace.add(sides[s]->ld * kDouble);
  }
  state_ = workspace.add(sizeof(SplitState));
  centre_ = workspace.add(job.features * kDouble);
  if (kernels.plan->by_ranges()) ranges_.emplace(kernels, job, 1, workspace);
}

DoubleArguments DoubleProducts::operands(const PairArguments& a, const Workspace& workspace) const {
  DoubleArguments operands{};
  operands.state = workspace.at<SplitState>(state_);
  const void* values[] = {a.x.points, a.z.points};
  const std::int64_t counts[] = {a.m, a.n}, lds[] = {a.x.ld, a.z.ld};
  for (int s = 0; s < sides_; ++s)
    operands.side[s] = {static_cast<const double*>(values[s]), workspace.at<double>(side_[s].image),
                        workspace.at<double>(side_[s].rows), workspace.at<double>(side_[s].norms), counts[s], lds[s]};
  operands.weights = static_cast<const double*>(a.w);
  operands.centre = workspace.at<double>(centre_);
  operands.k = a.k;
  operands.image_k = image_k_;
  operands.sides = sides_;
  operands.most_sampled = kMostSampled;
  operands.uniforms = uniform_factors(*kernels_.plan, a);
  return operands;
}

void DoubleProducts::prepare(const PairArguments& group, const Workspace& workspace) const {
  const auto step = [&](const char* name) { return sibling(start_, name, job_); };
  DoubleArguments arguments = operands(group, workspace);
  const std::int64_t ld = std::max(group.x.ld, group.z.ld);
  launch(start_, job_, {ceil_div(arguments.k, kThreads / 32)}, kThreads, 0, arguments);
  launch(step("write_image"), job_, {ld / kOperandPoints, sides_}, kThreads, 0, arguments);
  if (of_squares())
    launch(step("sample_squares"), job_, {MERCER_SAMPLED_PAIRS / (kThreads / 32)}, kThreads, 0, arguments);
}

template <class BlocksN>
void DoubleProducts::launch_tiles(const PairArguments& part, const PairPlace& first, const Workspace& workspace,
                                  const BlocksN& blocks_n) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  const DoubleArguments all = operands(part, workspace);
  const DoubleSide &x = all.side[0], &z = all.side[sides_ - 1];
  PairArguments a = part;
  a.split.state = all.state;
  PairArguments products = a;
  products.x.points = x.image + first.m * image_k_;
  products.z.points = z.image + first.n * image_k_;
  products.k = static_cast<int>(image_k_);
  if (of_squares()) {
    products.x.norms = x.norms + first.m;
    products.z.norms = z.norms + first.n;
    products.x.rows = reinterpret_cast<const float*>(x.rows + first.m * image_k_);
    products.z.rows = reinterpret_cast<const float*>(z.rows + first.n * image_k_);
    products.split.row_length = image_k_;
  }
  const auto put = [&](const Kernel& kernel, const plan::GpuTile& tile, PairArguments& arguments) {
    arguments.tiles_m = ceil_div(part.m, tile.tile_m);
    arguments.tiles_n = ceil_div(part.n, tile.tile_n);
    const std::int64_t blocks = arguments.tiles_m * blocks_n(arguments), shared = plan.shared_bytes(tile, 1 << 20);
    if (ranges_ && &kernel == &kernels_.products.tile)
      ranges_->run(kernel, arguments, blocks, shared, workspace);
    else
      launch(kernel, job_, {blocks}, tile.threads(), shared, arguments);
  };
  put(kernels_.products.tile, plan.products.double_tile, products);
  if (plan::leaves_pairs(plan)) put(kernels_.common.tile, plan.tile, a);
}

void DoubleProducts::store(const PairArguments& part, const PairPlace& first, const Workspace& workspace) const {
  launch_tiles(part, first, workspace, [](const PairArguments& a) { return a.tiles_n; });
}

void DoubleProducts::fold(const PairArguments& group, const Workspace& workspace) const {
  launch_tiles(group, {}, workspace, [](const PairArguments& a) { return a.splits; });
}

}  // namespace mercer::cuda
