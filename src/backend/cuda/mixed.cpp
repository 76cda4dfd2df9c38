#include "backend/cuda/mixed.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kWarp = 32, kRangeThreads = 256, kQuantiseThreads = 512, kRepairThreads = 256;
constexpr std::int64_t kSampleBlocks = 64;  // of 32 pairs
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
    errors_[s] = workspace.add((sides[s]->ld + sides[s]->ld / MERCER_PANEL) * kFloat);
  }
  constexpr std::int64_t kPairsOfRepair = 64;
  if (stores()) capacity_ = std::min(ceil_div(job.x.count * job.z.count, kPairsOfRepair), kMostRepairs);
  state_ = workspace.add(sizeof(MixedState));
  repairs_ = workspace.add(capacity_ * static_cast<std::int64_t>(sizeof(unsigned long long)));
}

MixedArguments MixedPipes::arguments(const PairArguments& a, const Workspace& workspace) const {
  MixedArguments mixed{};
  mixed.state = workspace.at<MixedState>(state_);
  const void* values[] = {a.x, a.z};
  const std::int64_t counts[] = {a.m, a.n}, lds[] = {a.x_ld, a.z_ld};
  for (int s = 0; s < sides_; ++s)
    mixed.side[s] = {static_cast<const float*>(values[s]), workspace.at<float>(quantised_[s]),
                     workspace.at<float>(errors_[s]), counts[s], lds[s]};
  mixed.k = a.k;
  mixed.sides = sides_;
  mixed.capacity = static_cast<unsigned>(capacity_);
  return mixed;
}

void MixedPipes::prepare(const PairArguments& group, const Workspace& workspace) const {
  const MixedArguments mixed = arguments(group, workspace);
  const std::int64_t panels = std::max(group.x_ld, group.z_ld) / MERCER_PANEL;
  launch(start_, job_, {1}, 1, 0, mixed);
  if (!kernels_.plan->allowance.outputs.empty()) {
    PairArguments members = group;
    members.mixed = mixed.state;
    launch(beside(kernels_.integers, "allow", job_), job_, {1}, kWarp, 0, members);
  }
  const std::int64_t blocks = 2 * kernels_.device->multiprocessors;
  launch(beside(start_, "find_range", job_), job_, {blocks, sides_}, kRangeThreads, 0, mixed);
  launch(beside(start_, "quantise", job_), job_, {panels, sides_}, kQuantiseThreads, 0, mixed);
  if (stores()) launch(beside(start_, "sample_pairs", job_), job_, {kSampleBlocks}, kQuantiseThreads, 0, mixed);
}

void MixedPipes::launch_tiles(const PairArguments& group, std::int64_t blocks, const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  const MixedArguments mixed = arguments(group, workspace);
  PairArguments values = group;
  values.mixed = mixed.state;
  values.x_errors = mixed.side[0].errors;
  values.z_errors = mixed.side[sides_ - 1].errors;
  values.repairs = workspace.at<unsigned long long>(repairs_);
  PairArguments integers = values;
  integers.x = mixed.side[0].quantised;
  integers.z = mixed.side[sides_ - 1].quantised;
  const std::int64_t threads = plan.tile.threads(), shared = plan.shared_bytes(job_.features);
  launch(kernels_.integers, job_, {blocks}, threads, shared, integers);
  if (stores()) launch(kernels_.repair, job_, {4 * kernels_.device->multiprocessors}, kRepairThreads, 0, values);
  launch(kernels_.tile, job_, {blocks}, threads, shared, values);
}

void MixedPipes::run(const PairArguments& a, std::int64_t groups, std::int64_t blocks_of_group, Dtype out,
                     const Workspace& workspace) const {
  for (std::int64_t group = 0; group < groups; ++group) {
    const PairArguments one = group_of(a, group, *kernels_.plan, out);
    prepare(one, workspace);
    launch_tiles(one, blocks_of_group, workspace);
  }
}

}  // namespace mercer::cuda
