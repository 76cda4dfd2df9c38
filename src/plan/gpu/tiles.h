// Tiles that may take the place of a plan's own, since no bit of any result differs between them: what mercer.tune
// chooses from.
//
//   stores        shape, threads' share, depth, stages, unroll, blocks; each pair adds up its features in order
//   two programs  where a part of the pairs runs another program, a shape that gives every pair the same one
//   folds over n  stages, unroll, blocks: the shape is the order of the sum over n
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/gpu/plan.h"

namespace mercer::plan {

/// Whether the kernel is written for the tile, it fits the device, and results stay the plan's own bit by bit.
bool gpu_tile_serves(const GpuPairPlan& plan, const GpuTile& tile);

/// The plan's own tile, then those that are worth measuring against it.
std::vector<GpuTile> gpu_tile_candidates(const GpuPairPlan& plan);

/// The plan with a measured tile. Throws compile for one that does not serve.
std::shared_ptr<const GpuPairPlan> with_tile(const GpuPairPlan& plan, const GpuTile& tile);

/// What a measured tile holds for, but for the device: programs, types, what becomes of the values, the class of sizes.
std::string gpu_tile_class(const GpuPairPlan& plan);

/// A tile as a line of numbers, and back; nothing for any other text.
std::string tile_record(const GpuTile& tile);
std::optional<GpuTile> tile_from_record(std::string_view record);

}  // namespace mercer::plan
