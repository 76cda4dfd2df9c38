// Sums of differences that take other pipes where their values allow it: absolute ones on two sets of pipes
// (kernels/cuda/pairs/mixed.cuh), with quantised panels and a list of repairs, and such whose differences tensor cores
// make (kernels/cuda/pairs/pair_differences.cuh), from pieces. Which tile's results stand is decided on the device.
#pragma once

#include "backend/cuda/runtime/panels.h"

namespace mercer::cuda {

class MixedPipes {
 public:
  /// Lays its memory out in `workspace`. Integers and repairs are of one item of a batch, and are taken by the next one
  /// in the order of the stream.
  MixedPipes(const PairKernels& kernels, const PairJob& job, const Panels& panels, Workspace& workspace);
  /// Called before the panels are packed. Panels of plain points that are no batch are left to prepare(), whose kernels
  /// make panels and integers together.
  PanelRanges start(std::int64_t groups, const Workspace& workspace);
  /// Stores the pairs of every group of `a`.
  void run(const PairArguments& a, std::int64_t groups, std::int64_t blocks_of_group, Dtype out,
           const Workspace& workspace) const;
  /// What a group's kernels share; `one` are its arguments (panels.h, group_of).
  MixedArguments arguments(const PairArguments& a, std::int64_t group, const PairArguments& one,
                           const Workspace& workspace) const;
  /// Quantises the values of one group.
  void prepare(const PairArguments& one, const MixedArguments& mixed, const Workspace& workspace) const;
  /// Its tiles, from integers and from values, and repairs between them.
  void launch_tiles(const PairArguments& one, const MixedArguments& mixed, std::int64_t blocks,
                    const Workspace& workspace) const;

 private:
  bool has_integers() const { return kernels_.plan->pipes.mixed_sixteenths > 0; }
  bool has_differences() const { return kernels_.plan->pipes.differs; }
  /// Where points have kernels of their own (kernels/cuda/pack/quantise_points.cuh).
  QuantisePointsArguments of_points(const MixedArguments& mixed, const Workspace& workspace) const;
  /// Launches the tiles of differences, for values that no integers stand for.
  void launch_differences(const PairArguments& values, const MixedArguments& mixed) const;
  std::int64_t bytes_of_pieces(std::int64_t ld) const;
  std::int64_t range_blocks() const;  // of a side
  bool stores() const { return kernels_.plan->problem.consumer == plan::Consumer::store; }

  const PairKernels& kernels_;
  const PairJob& job_;
  Kernel start_;
  bool reads_points_ = false;
  Kernel find_ranges_;  // of points
  int sides_ = 2;
  std::int64_t capacity_ = 0;  // of the list of repairs: none of products
  std::int64_t sets_of_x_ = 1, ranges_count_ = 1;
  std::int64_t states_ = 0, ranges_ = 0, block_ranges_ = 0, repairs_ = 0;
  std::int64_t quantised_[2] = {}, errors_[2] = {}, pieces_[2] = {};
};

}  // namespace mercer::cuda
