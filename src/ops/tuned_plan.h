// Plans with measured tiles. The store is read while a plan is made, never by a call whose kernels are there.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backend/cuda/job.h"
#include "backend/cuda/kernels.h"
#include "core/file_cache.h"
#include "ops/context.h"
#include "plan/gpu_tiles.h"

namespace mercer::ops {

/// What tiles are measured for.
struct TileDevice {
  std::string architecture;  // "sm_90a"
  std::string name;          // empty: a device that stands for its generation, of which nothing is measured

  static TileDevice of(const CudaDevice& device) { return {device.architecture(), device.name}; }
};

/// Readable at its beginning, for `mercer cache list`. The kernel's own text is in it: a tile was measured with that.
std::string tile_key(const plan::GpuPairPlan& plan, const TileDevice& device);

/// The measured tiles of this machine, a file each in the cache of kernels; those of this process also in memory, for a
/// cache that is off.
class TileStore {
 public:
  explicit TileStore(FileCache cache) : cache_(std::move(cache)) {}
  /// That of MERCER_CACHE_DIR.
  static TileStore& shared();

  /// Nothing where the file is missing, damaged, or not of this version.
  std::optional<plan::GpuTile> find(const std::string& key) const;
  /// `title` is a line for people.
  void keep(const std::string& key, const plan::GpuTile& tile, const std::string& title);

 private:
  FileCache cache_;
  mutable std::mutex mutex_;
  std::map<std::string, plan::GpuTile> kept_;
};

/// A call that runs with a tile under trial, or with the model's own, whatever the store says. Its kernels are its own.
struct TileTrial {
  std::optional<plan::GpuTile> tile;
  std::shared_ptr<const plan::GpuPairPlan> model;  // the plan that the call asked for last, with the model's tile
  TileDevice device;
  int index = 0;  // of that device
  RecentCache<cuda::PairKernels> kernels{8};
};

/// The plan, with the tile that the store has for it if that still serves.
std::shared_ptr<const plan::GpuPairPlan> tuned_plan(std::shared_ptr<const plan::GpuPairPlan> plan,
                                                    const TileDevice& device,
                                                    const TileStore& store = TileStore::shared());
/// The plan that a call runs.
std::shared_ptr<const plan::GpuPairPlan> plan_for(const plan::GpuPairProblem& problem, const cuda::PairJob& job);

}  // namespace mercer::ops
