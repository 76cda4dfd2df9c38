#include "backend/cuda/mixed.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kWarp = 32, kStartThreads = 256, kQuantiseThreads = 512, kRepairThreads = 256;
constexpr int kSampleBlocks = 64;  // of 32 pairs
constexpr std::int64_t kFloat = sizeof(float);

/// A repaired pair reads 64 bytes a feature: this many of 1024 features take what the integers save of 10^9 pairs.
constexpr std::int64_t kMostRepairs = 1 << 18;

}  // namespace

MixedPipes::MixedPipes(const PairKernels& kernels, const PairJob& job, const Panels& panels, Workspace& workspace)
    : kernels_(kernels), job_(job), start_(quantise_kernels(job)) {
  if (&panels.x() == &panels.z()) sides_ = 1;
  const PackedPanels* sides[] = {&panels.x(), &panels.z()};
  for (int s = 0; s < sides_; ++s) {
    quantised_[s] = workspace.add(sides[s]->ld * job.features * kFloat);
    errors_[s] = workspace.add((sides[s]->ld + sides[s]->ld / MERCER_QUANTISED) * kFloat);
  }
  constexpr std::int64_t kPairsOfRepair = 64;
  if (stores()) capacity_ = std::min(ceil_div(job.x.count * job.z.count, kPairsOfRepair), kMostRepairs);
  sets_of_x_ = panels.x().sets;
  ranges_count_ = sets_of_x_ + (sides_ == 1 ? 0 : panels.z().sets);
  states_ = workspace.add(job.items * static_cast<std::int64_t>(sizeof(MixedState)));
  ranges_ = workspace.add(ranges_count_ * static_cast<std::int64_t>(sizeof(PanelRange)));
  repairs_ = workspace.add(capacity_ * static_cast<std::int64_t>(sizeof(unsigned long long)));
}

PanelRanges MixedPipes::start(const Workspace& workspace) const {
  PanelRange* const ranges = workspace.at<PanelRange>(ranges_);
  const StartMixedArguments a{workspace.at<MixedState>(states_), ranges, job_.items, ranges_count_,
                              static_cast<unsigned>(capacity_)};
  const std::int64_t blocks = ceil_div(std::max(a.state_count, a.range_count), kStartThreads);
  const std::int64_t most = kernels_.device->multiprocessors;
  launch_overlapping(start_, job_, {std::min(blocks, most)}, kStartThreads, a);
  return {ranges, sides_ == 1 ? ranges : ranges + sets_of_x_};
}

MixedArguments MixedPipes::arguments(const PairArguments& a, std::int64_t group, const PairArguments& one,
                                     const Workspace& workspace) const {
  MixedArguments mixed{};
  mixed.state = workspace.at<MixedState>(states_) + group;
  const GroupSets sets = sets_of(a, group);
  const PanelRange* const ranges = workspace.at<PanelRange>(ranges_);
  const void* values[] = {one.x, one.z};
  const std::int64_t counts[] = {one.m, one.n}, lds[] = {one.x_ld, one.z_ld};
  const std::int64_t of_sides[] = {sets.x, sets_of_x_ + sets.z};
  for (int s = 0; s < sides_; ++s)
    mixed.side[s] = {static_cast<const float*>(values[s]),
                     workspace.at<float>(quantised_[s]),
                     workspace.at<float>(errors_[s]),
                     ranges + of_sides[s],
                     counts[s],
                     lds[s]};
  mixed.k = one.k;
  mixed.sides = sides_;
  mixed.sampled_blocks = stores() ? kSampleBlocks : 0;
  return mixed;
}

void MixedPipes::prepare(const PairArguments& one, const MixedArguments& mixed) const {
  if (!kernels_.plan->allowance.outputs.empty()) {
    PairArguments members = one;
    members.mixed = mixed.state;
    launch_overlapping(beside(kernels_.integers, "allow", job_), job_, {1}, kWarp, members);
  }
  const std::int64_t blocks = std::max(one.x_ld, one.z_ld) / MERCER_QUANTISED;
  launch_overlapping(beside(start_, "quantise", job_), job_, {blocks + mixed.sampled_blocks, sides_}, kQuantiseThreads,
                     mixed);
}

void MixedPipes::launch_tiles(const PairArguments& one, const MixedArguments& mixed, std::int64_t blocks,
                              const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  PairArguments values = one;
  values.mixed = mixed.state;
  values.x_errors = mixed.side[0].errors;
  values.z_errors = mixed.side[sides_ - 1].errors;
  values.repairs = workspace.at<unsigned long long>(repairs_);
  PairArguments integers = values;
  integers.x = mixed.side[0].quantised;
  integers.z = mixed.side[sides_ - 1].quantised;
  const std::int64_t threads = plan.tile.threads(), shared = plan.shared_bytes(job_.features);
  launch_overlapping(kernels_.integers, job_, {blocks}, threads, integers, shared);
  if (stores())
    launch_overlapping(kernels_.repair, job_, {4 * kernels_.device->multiprocessors}, kRepairThreads, values);
  launch_overlapping(kernels_.tile, job_, {blocks}, threads, values, shared);
}

void MixedPipes::run(const PairArguments& a, std::int64_t groups, std::int64_t blocks_of_group, Dtype out,
                     const Workspace& workspace) const {
  for (std::int64_t group = 0; group < groups; ++group) {
    const PairArguments one = group_of(a, group, *kernels_.plan, out);
    const MixedArguments mixed = arguments(a, group, one, workspace);
    prepare(one, mixed);
    launch_tiles(one, mixed, blocks_of_group, workspace);
  }
}

}  // namespace mercer::cuda
