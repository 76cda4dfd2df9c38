#include "backend/cuda/pairs/mixed.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kWarp = 32, kStartThreads = 256, kRangeThreads = 512, kQuantiseThreads = 512;
constexpr int kSampleBlocks = 64;  // of 32 pairs
constexpr std::int64_t kFloat = sizeof(float);
constexpr std::int64_t kPiecesThreads = 256, kPiecesFeatures = 64;
constexpr std::int64_t kFeedingThreads = 128;  // in addition to those of a tile of differences

/// A repaired pair reads 64 bytes a feature: this many of 1024 features take what the integers save of 10^9 pairs.
constexpr std::int64_t kMostRepairs = 1 << 18;

/// Whether panels have the points' own features, and nothing else.
bool reads_plain_points(const plan::GpuPairPlan& plan) {
  return plan::are_points(plan.sides.x_streams) && plan::are_points(plan.sides.z_streams) &&
         plan.programs.row_slots == 0 && plan.programs.col_slots == 0;
}

/// Tiles that a block of differences stores one after the other, so that the next one's slices are on their way while
/// one is finished: as many as keep all multiprocessors busy to the end.
std::int64_t tiles_of_block(std::int64_t tiles_m, std::int64_t tiles_n, std::int64_t multiprocessors) {
  constexpr std::int64_t kMost = 16;
  std::int64_t best = 1, least = -1;
  for (std::int64_t tiles = 1; tiles <= std::min(kMost, tiles_n); ++tiles) {
    const std::int64_t turns = ceil_div(tiles_m * ceil_div(tiles_n, tiles), multiprocessors) * tiles;
    if (least < 0 || turns <= least) best = tiles, least = turns;
  }
  return best;
}

}  // namespace

MixedPipes::MixedPipes(const PairKernels& kernels, const PairJob& job, const Panels& panels, Workspace& workspace)
    : kernels_(kernels), job_(job) {
  if (&panels.x() == &panels.z()) sides_ = 1;
  const PackedPanels* sides[] = {&panels.x(), &panels.z()};
  for (int s = 0; has_differences() && s < 2; ++s)
    pieces_[s] = workspace.add((kernels.plan->packs_pieces() ? sides[s]->sets : 1) * bytes_of_pieces(sides[s]->ld));
  for (int s = 0; has_integers() && s < sides_; ++s) {
    quantised_[s] = workspace.add(sides[s]->ld * job.features * kFloat);
    errors_[s] = workspace.add((sides[s]->ld + sides[s]->ld / MERCER_QUANTISED) * kFloat);
  }
  constexpr std::int64_t kPairsOfRepair = 64;
  if (stores() && has_integers())
    capacity_ = std::min(ceil_div(job.x.count * job.z.count, kPairsOfRepair), kMostRepairs);
  sets_of_x_ = panels.x().sets;
  ranges_count_ = sets_of_x_ + (sides_ == 1 ? 0 : panels.z().sets);
  reads_points_ = has_integers() && reads_plain_points(*kernels.plan) && sets_of_x_ == 1 && panels.z().sets == 1;
  if (!reads_points_ || has_differences() || job.items > 1) start_ = quantise_kernels(job);
  if (reads_points_) {
    find_ranges_ = quantise_points_kernels(job.x.points.dtype, job);
    block_ranges_ = workspace.add(range_blocks() * sides_ * static_cast<std::int64_t>(sizeof(PanelRange)));
  }
  states_ = workspace.add(job.items * static_cast<std::int64_t>(sizeof(MixedState)));
  ranges_ = workspace.add(ranges_count_ * static_cast<std::int64_t>(sizeof(PanelRange)));
  repairs_ = workspace.add(capacity_ * static_cast<std::int64_t>(sizeof(unsigned long long)));
}

std::int64_t MixedPipes::range_blocks() const { return job_.hardware().multiprocessors; }

std::int64_t MixedPipes::bytes_of_pieces(std::int64_t ld) const {
  constexpr std::int64_t kOfValue = 8;
  return ld * round_up(job_.features, 2) * kOfValue;
}

PanelRanges MixedPipes::start(std::int64_t groups, const Workspace& workspace) {
  reads_points_ = reads_points_ && groups == 1;
  if (reads_points_) return {.packs = false};
  PanelRange* const ranges = workspace.at<PanelRange>(ranges_);
  const StartMixedArguments a{workspace.at<MixedState>(states_), ranges, job_.items, ranges_count_,
                              static_cast<unsigned>(capacity_)};
  const std::int64_t blocks = ceil_div(std::max(a.state_count, a.range_count), kStartThreads);
  const std::int64_t most = job_.hardware().multiprocessors;
  launch_overlapping(start_, job_, {std::min(blocks, most)}, kStartThreads, a);
  PanelRanges wanted{.x = ranges, .z = sides_ == 1 ? ranges : ranges + sets_of_x_};
  if (kernels_.plan->packs_pieces()) {
    wanted.x_pieces = workspace.at<>(pieces_[0]);
    wanted.z_pieces = workspace.at<>(pieces_[1]);
  }
  return wanted;
}

MixedArguments MixedPipes::arguments(const PairArguments& a, std::int64_t group, const PairArguments& one,
                                     const Workspace& workspace) const {
  MixedArguments mixed{};
  mixed.state = workspace.at<MixedState>(states_) + group;
  const GroupSets sets = sets_of(a, group);
  const PanelRange* const ranges = workspace.at<PanelRange>(ranges_);
  const void* values[] = {one.x.points, one.z.points};
  const std::int64_t counts[] = {one.m, one.n}, lds[] = {one.x.ld, one.z.ld};
  const std::int64_t of_sides[] = {sets.x, sets_of_x_ + sets.z};
  const std::int64_t packed[] = {sets.x, sets.z};
  for (int s = 0; s < 2; ++s) {
    const int own = sides_ == 1 ? 0 : s;
    const std::int64_t set = kernels_.plan->packs_pieces() ? packed[s] : 0;
    mixed.side[s] = {static_cast<const float*>(values[own]),
                     workspace.at<float>(quantised_[own]),
                     workspace.at<float>(errors_[own]),
                     workspace.at<char>(pieces_[s]) + set * bytes_of_pieces(lds[s]),
                     ranges + of_sides[own],
                     counts[own],
                     lds[own]};
  }
  mixed.k = one.k;
  mixed.sides = sides_;
  mixed.sampled_blocks = stores() ? kSampleBlocks : 0;
  return mixed;
}

QuantisePointsArguments MixedPipes::of_points(const MixedArguments& mixed, const Workspace& workspace) const {
  QuantisePointsArguments a{};
  a.mixed = mixed;
  const JobSide* sides[] = {&job_.x, &job_.z};
  for (int s = 0; s < sides_; ++s) {
    const JobSide& side = *sides[s];
    a.points[s] = {side.points.data, side.count, job_.features, side.point_stride, side.feature_stride};
  }
  a.of_blocks = workspace.at<PanelRange>(block_ranges_);
  a.ranges = workspace.at<PanelRange>(ranges_);
  a.range_blocks = static_cast<int>(range_blocks()) * sides_;
  a.capacity = static_cast<unsigned>(capacity_);
  return a;
}

void MixedPipes::prepare(const PairArguments& one, const MixedArguments& mixed, const Workspace& workspace) const {
  if (!has_integers()) return;
  const QuantisePointsArguments points = reads_points_ ? of_points(mixed, workspace) : QuantisePointsArguments{};
  if (reads_points_) launch_overlapping(find_ranges_, job_, {range_blocks(), sides_}, kRangeThreads, points);
  if (!kernels_.plan->loss.allowance.outputs.empty()) {
    PairArguments members = one;
    members.mixed.state = mixed.state;
    if (kernels_.first.values) {
      Workspace none;  // its parameters are numbers
      ParamTable(param_plan(*kernels_.first.values->plan), job_, none)
          .write_narrow(members.params.values, members.params.numbers, none);
    }
    const Kernel allow =
        kernels_.first.values ? kernels_.first.values->allow : sibling(kernels_.pipes.integers, "allow", job_);
    launch_overlapping(allow, job_, {1}, kWarp, members);
  }
  const jit::Dim3 blocks{std::max(one.x.ld, one.z.ld) / MERCER_QUANTISED + mixed.sampled_blocks, sides_};
  if (reads_points_)
    launch_overlapping(sibling(find_ranges_, "quantise_points", job_), job_, blocks, kQuantiseThreads, points);
  else
    launch_overlapping(sibling(start_, "quantise", job_), job_, blocks, kQuantiseThreads, mixed);
}

void MixedPipes::launch_tiles(const PairArguments& one, const MixedArguments& mixed, std::int64_t blocks,
                              const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  PairArguments values = one;
  values.mixed.state = mixed.state;
  values.x.range = mixed.side[0].range;
  values.z.range = mixed.side[1].range;
  values.x.errors = mixed.side[0].errors;
  values.z.errors = mixed.side[sides_ - 1].errors;
  values.mixed.repairs = workspace.at<unsigned long long>(repairs_);
  const std::int64_t threads = plan.tile.threads(), shared = plan.shared_bytes(job_.features);
  if (has_integers()) {
    PairArguments integers = values;
    integers.x.points = mixed.side[0].quantised;
    integers.z.points = mixed.side[sides_ - 1].quantised;
    launch_overlapping(kernels_.pipes.integers, job_, {blocks}, threads, integers, shared);
  }
  if (has_differences()) launch_differences(values, mixed);
  if (stores()) blocks = std::min<std::int64_t>(blocks, plan.tile.min_blocks * job_.hardware().multiprocessors);
  launch_overlapping(kernels_.common.tile, job_, {blocks}, threads, values, shared);
}

void MixedPipes::launch_differences(const PairArguments& values, const MixedArguments& mixed) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  if (!plan.packs_pieces()) {
    const std::int64_t panels = std::max(values.x.ld, values.z.ld) / MERCER_DIFFERENCE_PANEL;
    launch_overlapping(sibling(start_, "write_pieces", job_), job_, {panels, ceil_div(mixed.k, kPiecesFeatures), 2},
                       kPiecesThreads, mixed);
  }
  PairArguments differences = values;
  differences.x.rows = static_cast<const float*>(values.x.points);
  differences.z.rows = static_cast<const float*>(values.z.points);
  differences.x.points = mixed.side[0].pieces;
  differences.z.points = mixed.side[1].pieces;
  differences.tiles_m = ceil_div(values.m, plan.pipes.difference_tile.tile_m);
  differences.tiles_n = ceil_div(values.n, plan.pipes.difference_tile.tile_n);
  differences.splits = static_cast<int>(
      ceil_div(differences.tiles_n, values.symmetric != 0 ? 1
                                                          : tiles_of_block(differences.tiles_m, differences.tiles_n,
                                                                           job_.hardware().multiprocessors)));
  launch_overlapping(kernels_.pipes.differences, job_, {differences.tiles_m * differences.splits},
                     plan.pipes.difference_tile.threads() + kFeedingThreads, differences,
                     plan.difference_shared_bytes());
}

void MixedPipes::run(const PairArguments& a, std::int64_t groups, std::int64_t blocks_of_group, Dtype out,
                     const Workspace& workspace) const {
  for (std::int64_t group = 0; group < groups; ++group) {
    const PairArguments one = group_of(a, group, *kernels_.plan, out);
    const MixedArguments mixed = arguments(a, group, one, workspace);
    prepare(one, mixed, workspace);
    launch_tiles(one, mixed, blocks_of_group, workspace);
  }
}

}  // namespace mercer::cuda
