#include "backend/cuda/gemm/bilinear.h"

#include <algorithm>
#include <limits>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kRowBytes = 128;
constexpr std::int64_t kFloat = sizeof(float);

/// Pairs of an area for one that is listed: of a hundred, two may cancel, and eleven where repairs by areas cost less
/// than direct differences of all. Few areas have room for more.
constexpr std::int64_t kPairsOfRepair = 45, kPairsOfAreaRepair = 9, kFewRepairs = 1 << 16;
constexpr std::int64_t kAreaThreads = 512;
static_assert(plan::kArea == MERCER_AREA);
/// Reading an area's rows once takes less than reading those of each pair, from so many pairs on.
constexpr unsigned kDenseArea = 512;

/// Asking a sample first pays from so many pairs times features on.
constexpr double kSampleFrom = 17179869184.0;  // 2^34

/// Direct differences are cheaper than products and repairs with more cancelling pairs in the sample. Pairs of a
/// product over n are repaired one by one, while everything waits.
constexpr unsigned kMostSampled = MERCER_SAMPLED_PAIRS * 3 / 4, kMostSampledOfFold = MERCER_SAMPLED_PAIRS / 50;

/// Strips of m that go together through n.
constexpr int kGroup = 8;

/// Chunks of the features by which operands of few points fill the device.
std::int64_t chunks_of(std::int64_t points, std::int64_t units, int multiprocessors) {
  constexpr std::int64_t kLeastUnits = 32, kMostChunks = 32;
  return std::clamp<std::int64_t>(std::min(4 * multiprocessors / (points / MERCER_IMAGE_ROWS), units / kLeastUnits), 1,
                                  kMostChunks);
}

/// Tiles of a cluster each, as they are walked (kernels/cuda/gemm/bilinear_walk.cuh).
std::int64_t tiles_of(const plan::BilinearTile& tile, std::int64_t strips, std::int64_t columns, bool symmetric) {
  if (!symmetric) return strips * columns;
  std::int64_t tiles = 0;
  for (std::int64_t strip = 0; strip < strips; ++strip)
    tiles += columns - strip * tile.kRows * tile.cluster / tile.columns;
  return tiles;
}

/// Blocks drift apart in the course of many tiles; of many features, what they then read no longer is in the
/// second-level cache. A launch of some tiles each keeps them together.
std::int64_t strips_of_launch(const plan::GpuPairPlan& plan, std::int64_t units, std::int64_t strips,
                              std::int64_t clusters, std::int64_t tiles_of_strip) {
  constexpr std::int64_t kManyUnits = 128, kTilesOfCluster = 8;
  if (plan.problem.consumer != plan::Consumer::store || units < kManyUnits) return strips;
  return ceil_div(ceil_div(kTilesOfCluster * clusters, tiles_of_strip), kGroup) * kGroup;
}

/// Whether the panels of a side are its points, and one set of them.
bool packs_points(const plan::GpuPairPlan& plan, const JobSide& side, bool of_x) {
  const auto& streams = of_x ? plan.sides.x_streams : plan.sides.z_streams;
  const auto& steps = side.points.batch_strides;
  return plan::are_points(streams) &&
         std::all_of(steps.begin(), steps.end(), [](std::int64_t step) { return step == 0; });
}

/// The caller's points, where they are rows of this length as repairs read them; else null.
const float* given_rows(const plan::GpuPairPlan& plan, const PairJob& job, bool of_x, std::int64_t row_length) {
  constexpr std::uintptr_t kVector = 16;
  const JobSide& side = of_x ? job.x : job.z;
  const bool lies_so = side.points.dtype == Dtype::float32 && side.feature_stride == 1 &&
                       side.point_stride == row_length && job.features == row_length &&
                       reinterpret_cast<std::uintptr_t>(side.points.data) % kVector == 0;
  if (!plan::reads_rows(plan) || !lies_so || !packs_points(plan, side, of_x)) return nullptr;
  return static_cast<const float*>(side.points.data);
}

}  // namespace

void launch_products(const Kernel& kernel, const plan::GpuPairPlan& plan, const PairJob& job,
                     const BilinearArguments& products, std::int64_t tiles_of_strip) {
  const plan::BilinearTile& tile = plan.problem.product;
  const std::int64_t strips = ceil_div(products.pairs.m, tile.kRows * tile.cluster);
  const std::int64_t tiles = strips * tiles_of_strip;
  const std::int64_t clusters =
      std::min<std::int64_t>(tiles, job.hardware().multiprocessors * tile.blocks / tile.cluster);
  BilinearArguments arguments = products;
  arguments.group = products.ranges > 1 ? 1 : kGroup;  // of few tiles, those below the diagonal must not be counted
  const std::int64_t together = strips_of_launch(plan, products.units, strips, clusters, tiles_of_strip);
  for (std::int64_t first = 0; first < strips; first += together) {
    arguments.first_strip = static_cast<int>(first);
    arguments.end_strip = static_cast<int>(std::min(strips, first + together));
    launch_overlapping(kernel, job, {clusters * tile.cluster}, tile.threads(), arguments, plan.product_shared_bytes());
  }
}

std::int64_t tiles_of_candidates(const CandidateArguments& found, std::int64_t n, std::int64_t tile_n) {
  const std::int64_t whole = n / MERCER_COLUMN_BLOCK;
  const std::int64_t rest = static_cast<std::int64_t>(found.end) > whole ? n % MERCER_COLUMN_BLOCK : 0;
  return (std::min<std::int64_t>(found.end, whole) - found.first) * (MERCER_COLUMN_BLOCK / tile_n) +
         ceil_div(rest, tile_n);
}

SplitProducts::SplitProducts(const PairKernels& kernels, const PairJob& job, const Panels& panels, std::int64_t rows,
                             bool symmetric, Workspace& workspace)
    : kernels_(kernels), job_(job), panels_(panels), find_centre_(operand_kernels(*kernels.plan, job)) {
  const plan::BilinearTile& product = kernels.plan->problem.product;
  if (&panels.x() == &panels.z() && shares_operands(kernels.plan->products.bilinear) && product.weight_units == 0)
    sides_ = 1;
  units_ = ceil_div(job.features, 32);
  image_units_ = units_ + product.weight_units;
  row_length_ = ceil_div(job.features, 8) * 8;
  const PackedPanels* sides[] = {&panels.x(), &panels.z()};
  chunks_ = chunks_of(std::max(sides[0]->ld, sides[1]->ld), units_, job.hardware().multiprocessors);
  for (int s = 0; s < sides_; ++s) {
    const std::int64_t ld = sides[s]->ld;
    side_[s].image = workspace.add(ld * image_units_ * kRowBytes);
    // Room for rows there always is: how much a call needs must not depend on where its arrays lie.
    side_[s].given_rows = given_rows(*kernels.plan, job, s == 0, row_length_);
    if (plan::reads_rows(*kernels.plan)) side_[s].rows = workspace.add(ld * row_length_ * kFloat);
    side_[s].largest = workspace.add(chunks_ * ld * kFloat);
    if (chunks_ > 1) side_[s].norms = workspace.add(chunks_ * ld * static_cast<std::int64_t>(sizeof(double)));
    for (std::int64_t* values : {&side_[s].norm, &side_[s].norm_tail, &side_[s].scale})
      *values = workspace.add(ld * kFloat);
  }
  state_ = workspace.add(sizeof(SplitState));
  centre_ = workspace.add(job.features * kFloat);
  farthest_ = workspace.add(job.features * kFloat);
  const bool rates = kernels.plan->rates() || kernels.plan->keeps();
  if (product.wide > 0) v_.emplace(product, job, WideOperand::Options{.rates = rates}, workspace);
  if (kernels.plan->problem.consumer != plan::Consumer::store) return;
  areas_ = ceil_div(rows, MERCER_AREA) * ceil_div(job.z.count, MERCER_AREA);
  const std::int64_t pairs =
      std::min<std::int64_t>(rows, MERCER_AREA) * std::min<std::int64_t>(job.z.count, MERCER_AREA);
  const std::int64_t for_one = product.areas ? kPairsOfAreaRepair : kPairsOfRepair;
  area_capacity_ = std::min(pairs, ceil_div(pairs, for_one) + ceil_div(kFewRepairs, areas_));
  area_counts_ = workspace.add(areas_ * static_cast<std::int64_t>(sizeof(unsigned)));
  area_pairs_ = workspace.add(areas_ * area_capacity_ * static_cast<std::int64_t>(sizeof(unsigned)));
  marks_ = workspace.add(ceil_div(rows, MERCER_REGION) * ceil_div(job.z.count, MERCER_REGION) *
                         static_cast<std::int64_t>(sizeof(unsigned)));
  const std::int64_t strips = ceil_div(rows, product.kRows * product.cluster),
                     columns = ceil_div(job.z.count, product.columns);
  ranges_ = plan::feature_ranges(product, tiles_of(product, strips, columns, symmetric), job.features,
                                 job.hardware().multiprocessors, job.costs());
  if (ranges_ == 1) return;
  constexpr std::int64_t kWarps = 8;
  arrivals_ = strips * product.cluster * columns * kWarps;
  arrived_ = workspace.add(arrivals_ * static_cast<std::int64_t>(sizeof(unsigned)));
  partial_ = workspace.add(strips * product.cluster * columns * ranges_ * product.kRows * product.columns * kFloat);
}

bool SplitProducts::takes_points(std::int64_t groups) {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  takes_points_ = groups == 1 && plan.problem.arrays.points == Dtype::float32 && !plan.input.direct &&
                  packs_points(plan, job_.x, true) && packs_points(plan, job_.z, false);
  writes_panels_ = takes_points_ && chunks_ == 1 && has_few_features(plan);
  return takes_points_;
}

bool SplitProducts::takes_v(const PlainPanel& v) {
  if (v_ && job_.items == 1 && v.array.dtype == Dtype::float32 && !kernels_.plan->keeps()) lying_v_ = &v;
  return lying_v_ != nullptr;
}

/// The columns of v of a pass: its panel's first column tells which those are.
PlainColumns SplitProducts::columns_of_v(const PairArguments& group, const Workspace& workspace) const {
  if (lying_v_ == nullptr) return PlainColumns::of_panel(group);
  const PlainPanel& v = *lying_v_;
  const std::int64_t first = (static_cast<const float*>(group.v.data) - workspace.at<float>(v.place)) / v.ld;
  return {static_cast<const float*>(v.array.data) + first * v.column_stride, v.row_stride, v.column_stride};
}

SplitArguments SplitProducts::operands(const PairArguments& a, const Workspace& workspace) const {
  SplitArguments split{};
  split.state = workspace.at<SplitState>(state_);
  const bool has_rows = plan::reads_rows(*kernels_.plan);
  const void* values[] = {a.x.points, a.z.points};
  const std::int64_t counts[] = {a.m, a.n}, lds[] = {a.x.ld, a.z.ld};
  const bool early = !kernels_.plan->input.direct && packs_points(*kernels_.plan, job_.x, true) &&
                     packs_points(*kernels_.plan, job_.z, false);
  for (int s = 0; s < sides_; ++s) {
    const Side& side = side_[s];
    float* const rows = has_rows && side.given_rows == nullptr ? workspace.at<float>(side.rows) : nullptr;
    const JobSide& points = s == 0 ? job_.x : job_.z;
    split.side[s] = {static_cast<const float*>(values[s]),
                     early ? points.points.data : nullptr,
                     points.point_stride,
                     points.feature_stride,
                     static_cast<int>(points.points.dtype),
                     workspace.at<unsigned char>(side.image),
                     rows != nullptr ? rows : side.given_rows,
                     rows,
                     workspace.at<float>(side.largest),
                     workspace.at<double>(side.norms),
                     workspace.at<float>(side.norm),
                     workspace.at<float>(side.norm_tail),
                     workspace.at<float>(side.scale),
                     counts[s],
                     lds[s]};
  }
  split.weights = static_cast<const float*>(a.w);
  split.centre = workspace.at<float>(centre_);
  split.farthest = workspace.at<float>(farthest_);
  split.k = a.k;
  split.row_length = row_length_;
  split.units = units_;
  split.image_units = image_units_;
  split.sides = sides_;
  split.chunks = static_cast<int>(chunks_);
  split.as_they_lie = takes_points_ ? 1 : 0;
  const plan::BilinearTile& tile = kernels_.plan->problem.product;
  split.pieces = tile.single ? 1 : tile.brief > 0 ? 2 : 0;
  split.own_scales = tile.own_scales ? 1 : 0;
  split.uniforms = uniform_factors(*kernels_.plan, a);
  const bool stores = kernels_.plan->problem.consumer == plan::Consumer::store;
  split.quads = stores ? 1 : 0;
  split.most_sampled = stores ? kMostSampled : kMostSampledOfFold;
  split.area_counts = stores ? workspace.at<unsigned>(area_counts_) : nullptr;
  split.areas = stores ? areas_ : 0;
  return split;
}

void SplitProducts::prepare(const PairArguments& group, const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  SplitArguments split = operands(group, workspace);
  const std::int64_t ld = std::max(group.x.ld, group.z.ld);
  const auto launch_step = [&](const char* name, jit::Dim3 blocks) {
    launch_overlapping(sibling(find_centre_, name, job_), job_, blocks, kThreads, split);
  };
  if (writes_panels_) {
    launch_step("write_points", {ld / MERCER_IMAGE_ROWS, sides_});
  } else {
    launch_step("find_centre", {ceil_div(split.k, kThreads / 32)});
    launch_step("examine", {ld / MERCER_IMAGE_ROWS, sides_, chunks_});
    launch_step("write_pieces", {ld / MERCER_IMAGE_ROWS, sides_, chunks_});
  }
  if (chunks_ > 1) launch_step("join_norms", {ceil_div(ld, kThreads), sides_});
  const double work = static_cast<double>(group.m) * static_cast<double>(group.n) * static_cast<double>(group.k);
  const bool asks = plan.problem.consumer != plan::Consumer::store || work >= kSampleFrom;
  if (plan.products.bilinear.kind != plan::BilinearKind::square || !asks) return;
  const jit::Dim3 sampled{MERCER_SAMPLED_PAIRS / (kThreads / 32)};
  if (plan.loss.allowance.outputs.empty()) return launch_step("sample_pairs", sampled);
  BilinearArguments arguments = products(group, workspace);
  launch_overlapping(sibling(kernels_.products.tile, "sample_values", job_), job_, sampled, kThreads, arguments);
}

BilinearArguments SplitProducts::products(const PairArguments& group, const Workspace& workspace) const {
  const SplitArguments split = operands(group, workspace);
  BilinearArguments products{};
  products.pairs = group;
  products.pairs.split.state = split.state;
  const SplitSide &x = split.side[0], &z = split.side[sides_ - 1];
  products.pairs.x.rows = x.rows;
  products.pairs.z.rows = z.rows;
  products.pairs.split.row_length = row_length_;
  products.x = {x.image, x.norm, x.norm_tail, x.scale};
  products.z = {z.image, z.norm, z.norm_tail, z.scale};
  products.units = image_units_;
  products.ranges = 1;
  products.x_end = group.x.ld;
  products.z_end = group.z.ld;
  if (v_) products.v_image = v_->image(workspace);
  return products;
}

BilinearArguments SplitProducts::products_from(const PairArguments& part, const PairPlace& first,
                                               const Workspace& workspace) const {
  BilinearArguments all = products(part, workspace);
  const auto skip = [&](BilinearSide& side, const float*& rows, long long& end, std::int64_t points) {
    side.image += points / MERCER_IMAGE_ROWS * image_units_ * (MERCER_IMAGE_ROWS * kRowBytes);
    for (const float** values : {&side.norm, &side.norm_tail, &side.scale}) *values += points;
    end -= points;
    if (rows != nullptr) rows += points * row_length_;
  };
  skip(all.x, all.pairs.x.rows, all.x_end, first.m);
  skip(all.z, all.pairs.z.rows, all.z_end, first.n);
  return all;
}

void SplitProducts::store(const PairArguments& part, const PairPlace& first, const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  const plan::BilinearTile& tile = plan.problem.product;
  const std::int64_t multiprocessors = job_.hardware().multiprocessors;
  BilinearArguments all = products_from(part, first, workspace);
  PairArguments& a = all.pairs;
  a.split.marks = workspace.at<unsigned>(marks_);
  a.split.area_counts = workspace.at<unsigned>(area_counts_);
  a.split.area_pairs = workspace.at<unsigned>(area_pairs_);
  a.split.area_capacity = static_cast<unsigned>(area_capacity_);
  a.split.dense_area = tile.areas ? kDenseArea : std::numeric_limits<unsigned>::max();
  if (first.m > 0) fill_words(job_, a.split.area_counts, areas_);  // the lists of the rows before have been repaired
  if (ranges_ > 1) {
    all.ranges = ranges_;
    all.partial = workspace.at<float>(partial_);
    all.arrived = workspace.at<unsigned>(arrived_);
    fill_words(job_, all.arrived, arrivals_);
  }
  launch_products(kernels_.products.tile, plan, job_, all, ceil_div(a.n, tile.columns) * ranges_);
  if (plan.problem.use.subtracts) return;
  // Repairs of many features do not overlap: when they ran during the last tiles, they took a tenth longer.
  const Overlap overlap = tile.brief > 0 ? Overlap::blocks : Overlap::none;
  pack_left(overlap, workspace);
  launch_overlapping(kernels_.products.repair, job_, {8 * multiprocessors}, kThreads, a, 0, overlap);
  if (tile.areas)
    launch(sibling(kernels_.products.repair, "repair_areas", job_), job_, {multiprocessors}, kAreaThreads,
           plan::kRepairAreasBytes, a);
  launch_overlapping(kernels_.common.tile, job_, {plan.tile.min_blocks * multiprocessors}, plan.tile.threads(), a,
                     plan.shared_bytes(job_.features), overlap);
}

void SplitProducts::pack_left(Overlap overlap, const Workspace& workspace) const {
  if (takes_points_ && !writes_panels_) panels_.run_left(state(workspace), overlap, workspace);
}

void SplitProducts::find(PairArguments& part, const PairPlace& first, const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  const BilinearArguments all = products_from(part, first, workspace);
  launch_products(kernels_.products.tile, plan, job_, all,
                  tiles_of_candidates(part.found, part.n, plan.problem.product.columns));
  part.split.state = all.pairs.split.state;
  part.x.rows = all.pairs.x.rows;
  part.z.rows = all.pairs.z.rows;
  part.split.row_length = row_length_;
}

void SplitProducts::multiply(const BilinearArguments& products, const Workspace& workspace,
                             const ExtraColumns& extra) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  if (v_ && plan.rates())
    v_->write_powers(products, columns_of_v(products.pairs, workspace), workspace);
  else if (v_)
    v_->write(products.pairs, columns_of_v(products.pairs, workspace), workspace, extra);
  launch_products(kernels_.products.tile, plan, job_, products, products.pairs.splits);
}

void SplitProducts::fold(const PairArguments& group, const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  const BilinearArguments all = products(group, workspace);
  if (plan.rates() && !plan.keeps()) {
    v_->write_halves(all, columns_of_v(all.pairs, workspace), workspace);
    launch_products(kernels_.products.rated, plan, job_, all, group.splits);
  }
  multiply(all, workspace);
  pack_left(Overlap::blocks, workspace);
  if (lying_v_ != nullptr) pack(*lying_v_, job_, workspace, state(workspace));
  const std::int64_t blocks = group.tiles_m * group.splits * ceil_div(group.v.columns, plan.problem.use.columns);
  const std::int64_t at_once = plan.tile.min_blocks * job_.hardware().multiprocessors;
  launch_overlapping(kernels_.common.tile, job_, {std::min(blocks, at_once)}, plan.tile.threads(), all.pairs,
                     plan.shared_bytes(job_.features));
}

}  // namespace mercer::cuda
