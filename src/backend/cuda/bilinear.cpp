#include "backend/cuda/bilinear.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kRowBytes = 128;
constexpr std::int64_t kFloat = sizeof(float);

/// Pairs of an output for one that is listed: of a hundred, one may cancel.
constexpr std::int64_t kPairsOfRepair = 90, kFewRepairs = 1 << 16;

/// From so many pairs and features on it pays to ask a sample first.
constexpr double kSampleFrom = 17179869184.0;  // 2^34

/// Of the sample, so many cancelling pairs make direct differences cheaper than products and repairs. Those of a
/// product over n are repaired one by one, while everything waits.
constexpr unsigned kMostSampled = MERCER_SAMPLED_PAIRS * 3 / 4, kMostSampledOfFold = MERCER_SAMPLED_PAIRS / 50;

/// Strips of m that go together through n.
constexpr int kGroup = 8;

}  // namespace

std::int64_t tiles_of_candidates(const CandidateArguments& found, std::int64_t n, std::int64_t tile_n) {
  const std::int64_t whole = n / MERCER_COLUMN_BLOCK;
  const std::int64_t rest = static_cast<std::int64_t>(found.end) > whole ? n % MERCER_COLUMN_BLOCK : 0;
  return (std::min<std::int64_t>(found.end, whole) - found.first) * (MERCER_COLUMN_BLOCK / tile_n) +
         ceil_div(rest, tile_n);
}

SplitProducts::SplitProducts(const PairKernels& kernels, const PairJob& job, const Panels& panels, std::int64_t rows,
                             Workspace& workspace)
    : kernels_(kernels), job_(job), find_centre_(operand_kernels(kernels.plan->bilinear, job)) {
  if (&panels.x() == &panels.z()) sides_ = 1;
  units_ = ceil_div(job.features, 32);
  row_length_ = ceil_div(job.features, 8) * 8;
  const PackedPanels* sides[] = {&panels.x(), &panels.z()};
  for (int s = 0; s < sides_; ++s) {
    const std::int64_t ld = sides[s]->ld;
    side_[s].image = workspace.add(ld * units_ * kRowBytes);
    side_[s].rows = workspace.add(ld * row_length_ * kFloat);
    for (std::int64_t* values : {&side_[s].largest, &side_[s].norm, &side_[s].norm_tail, &side_[s].scale})
      *values = workspace.add(ld * kFloat);
  }
  state_ = workspace.add(sizeof(SplitState));
  centre_ = workspace.add(job.features * kFloat);
  if (kernels.plan->problem.product.wide > 0) v_.emplace(kernels, job, workspace);
  if (kernels.plan->problem.consumer != plan::Consumer::store) return;
  capacity_ = ceil_div(rows * job.z.count, kPairsOfRepair) + kFewRepairs;
  repairs_ = workspace.add(capacity_ * static_cast<std::int64_t>(sizeof(unsigned long long)));
  marks_ = workspace.add(ceil_div(rows, MERCER_REGION) * ceil_div(job.z.count, MERCER_REGION) *
                         static_cast<std::int64_t>(sizeof(unsigned)));
}

SplitArguments SplitProducts::operands(const PairArguments& a, const Workspace& workspace) const {
  SplitArguments split{};
  split.state = workspace.at<SplitState>(state_);
  const void* values[] = {a.x, a.z};
  const std::int64_t counts[] = {a.m, a.n}, lds[] = {a.x_ld, a.z_ld};
  for (int s = 0; s < sides_; ++s) {
    const Side& side = side_[s];
    split.side[s] = {static_cast<const float*>(values[s]),
                     workspace.at<unsigned char>(side.image),
                     workspace.at<float>(side.rows),
                     workspace.at<float>(side.largest),
                     workspace.at<float>(side.norm),
                     workspace.at<float>(side.norm_tail),
                     workspace.at<float>(side.scale),
                     counts[s],
                     lds[s]};
  }
  split.weights = static_cast<const float*>(a.w);
  split.centre = workspace.at<float>(centre_);
  split.k = a.k;
  split.row_length = row_length_;
  split.units = units_;
  split.sides = sides_;
  const plan::BilinearTile& tile = kernels_.plan->problem.product;
  split.pieces = tile.single ? 1 : tile.brief > 0 ? 2 : 0;
  split.capacity = static_cast<unsigned>(capacity_);
  const bool stores = kernels_.plan->problem.consumer == plan::Consumer::store;
  split.most_sampled = stores ? kMostSampled : kMostSampledOfFold;
  return split;
}

void SplitProducts::prepare(const PairArguments& group, const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  const auto step = [&](const char* name) {
    return job_.rehearsal() != nullptr ? Kernel{} : Kernel{find_centre_.module, &find_centre_.module->function(name)};
  };
  SplitArguments split = operands(group, workspace);
  const std::int64_t ld = std::max(group.x_ld, group.z_ld);
  launch(find_centre_, job_, {ceil_div(split.k, kThreads / 32)}, kThreads, 0, split);
  launch(step("examine"), job_, {ld / MERCER_PANEL, sides_}, kThreads, 0, split);
  launch(step("write_pieces"), job_, {ld / MERCER_IMAGE_ROWS, sides_}, kThreads, 0, split);
  const double work = static_cast<double>(group.m) * static_cast<double>(group.n) * static_cast<double>(group.k);
  const bool asks = plan.problem.consumer != plan::Consumer::store || work >= kSampleFrom;
  if (plan.bilinear.kind == plan::BilinearKind::square && asks)
    launch(step("sample_pairs"), job_, {MERCER_SAMPLED_PAIRS / (kThreads / 32)}, kThreads, 0, split);
}

BilinearArguments SplitProducts::products(const PairArguments& group, const Workspace& workspace) const {
  const SplitArguments split = operands(group, workspace);
  BilinearArguments products{};
  products.pairs = group;
  products.pairs.split = split.state;
  const SplitSide &x = split.side[0], &z = split.side[sides_ - 1];
  products.pairs.x_rows = x.rows;
  products.pairs.z_rows = z.rows;
  products.pairs.row_length = row_length_;
  products.x = {x.image, x.norm, x.norm_tail, x.scale};
  products.z = {z.image, z.norm, z.norm_tail, z.scale};
  products.units = units_;
  products.x_end = group.x_ld;
  products.group = kGroup;
  if (v_) products.v_image = v_->image(workspace);
  return products;
}

/// `tiles`: what there is to do, of a cluster.
void SplitProducts::launch_products(const BilinearArguments& products, std::int64_t tiles) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  const plan::BilinearTile& tile = plan.problem.product;
  const std::int64_t clusters =
      std::min<std::int64_t>(tiles, kernels_.device->multiprocessors * tile.blocks / tile.cluster);
  BilinearArguments arguments = products;
  launch(kernels_.product, job_, {clusters * tile.cluster}, tile.threads(),
         plan.product_shared_bytes(), arguments);
}

BilinearArguments SplitProducts::products_from(const PairArguments& part, std::int64_t first,
                                               const Workspace& workspace) const {
  BilinearArguments all = products(part, workspace);
  all.x.image += first / MERCER_IMAGE_ROWS * units_ * (MERCER_IMAGE_ROWS * kRowBytes);
  for (const float** values : {&all.x.norm, &all.x.norm_tail, &all.x.scale}) *values += first;
  all.x_end -= first;
  all.pairs.x_rows += first * row_length_;
  return all;
}

void SplitProducts::store(const PairArguments& part, std::int64_t first, const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  const plan::BilinearTile& tile = plan.problem.product;
  const std::int64_t multiprocessors = kernels_.device->multiprocessors;
  BilinearArguments all = products_from(part, first, workspace);
  PairArguments& a = all.pairs;
  a.marks = workspace.at<unsigned>(marks_);
  a.repairs = workspace.at<unsigned long long>(repairs_);
  if (first > 0 && job_.rehearsal() == nullptr) {  // the list of the rows before has been repaired
    const auto listed = reinterpret_cast<CuPointer>(&a.split->listed);
    check_cuda(cuda_driver()->set_words_async(listed, 0, 1, job_.stream()), job_.op);
  }
  launch_products(all, ceil_div(a.m, tile.kRows * tile.cluster) * ceil_div(a.n, tile.columns));
  launch(kernels_.repair, job_, {8 * multiprocessors}, kThreads, 0, a);
  launch(kernels_.tile, job_, {plan.tile.min_blocks * multiprocessors}, plan.tile.threads(),
         plan.shared_bytes(job_.features), a);
}

void SplitProducts::find(PairArguments& part, std::int64_t first, const Workspace& workspace) const {
  const plan::BilinearTile& tile = kernels_.plan->problem.product;
  const BilinearArguments all = products_from(part, first, workspace);
  launch_products(all, ceil_div(part.m, tile.kRows * tile.cluster) *
                           tiles_of_candidates(part.found, part.n, tile.columns));
  part.split = all.pairs.split;
  part.x_rows = all.pairs.x_rows;
  part.z_rows = all.pairs.z_rows;
  part.row_length = row_length_;
}

void SplitProducts::fold(const PairArguments& group, const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  const plan::BilinearTile& tile = plan.problem.product;
  if (v_) v_->write(group, workspace);
  const BilinearArguments all = products(group, workspace);
  launch_products(all, ceil_div(group.m, tile.kRows * tile.cluster) * group.splits);
  // The direct tile takes fewer columns of v at a time.
  for (int column = 0; column < group.columns; column += plan.problem.columns) {
    PairArguments a = all.pairs;
    a.columns = std::min(plan.problem.columns, group.columns - column);
    if (a.v != nullptr) a.v = static_cast<const float*>(a.v) + column * a.v_ld;
    a.out = static_cast<char*>(a.out) + column * a.partial_ld * kFloat;
    launch(kernels_.tile, job_, {a.tiles_m * a.splits}, plan.tile.threads(), plan.shared_bytes(job_.features), a);
  }
}

void SplitProducts::run(const PairArguments& a, std::int64_t groups, Dtype out, const Workspace& workspace) const {
  for (std::int64_t group = 0; group < groups; ++group) {
    const PairArguments one = group_of(a, group, *kernels_.plan, out);
    prepare(one, workspace);
    store(one, 0, workspace);
  }
}

}  // namespace mercer::cuda
