#include "backend/cuda/runtime/feature_ranges.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {

FeatureRanges::FeatureRanges(const PairKernels& kernels, const PairJob& job, std::int64_t groups, Workspace& workspace)
    : tile_(plan::adding_tile(*kernels.plan)), job_(job),
      split_(plan::split_features(*kernels.plan, job.x.count, job.z.count, job.features,
                                  job.hardware().multiprocessors, job.costs().ranges)) {
  const std::int64_t all = groups * ceil_div(job.x.count, tile_.tile_m) * ceil_div(job.z.count, tile_.tile_n);
  const std::int64_t bytes = std::int64_t{split_.ranges} * tile_.tile_m * tile_.tile_n * kernels.plan->split.states *
                             static_cast<std::int64_t>(size_of(job.type));
  tiles_ = std::min(all, std::max<std::int64_t>(1, job.part_bytes / bytes));
  states_ = workspace.add(tiles_ * bytes);
  arrived_ = workspace.add(tiles_ * static_cast<std::int64_t>(sizeof(unsigned)));
}

void FeatureRanges::run(const Kernel& kernel, PairArguments a, std::int64_t tiles, std::int64_t shared,
                        const Workspace& workspace) const {
  a.ranges.count = split_.ranges;
  a.ranges.length = split_.length;
  a.ranges.states = workspace.at<>(states_);
  a.ranges.arrived = workspace.at<unsigned>(arrived_);
  for (; a.ranges.first_place < tiles; a.ranges.first_place += tiles_) {
    const std::int64_t count = std::min<std::int64_t>(tiles_, tiles - a.ranges.first_place);
    fill_words(job_, a.ranges.arrived, count);
    launch(kernel, job_, {count * split_.ranges}, tile_.threads(), shared, a);
  }
}

}  // namespace mercer::cuda
