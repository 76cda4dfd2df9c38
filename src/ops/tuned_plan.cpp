#include "ops/tuned_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda_text.h"
#include "core/hash.h"

namespace mercer::ops {

std::string tile_key(const plan::GpuPairPlan& plan, const TileDevice& device) {
  static const std::string kernel = hash128(std::string(codegen::cuda_text("pair_slices.cuh")) +
                                            std::string(codegen::cuda_text("pair_update.cuh")) +
                                            std::string(codegen::cuda_text("pair_consumers.cuh")) +
                                            std::string(codegen::cuda_text("pair_rows.cuh")) +
                                            std::string(codegen::cuda_text("pair_tile.cuh")))
                                        .to_text();
  return fmt::format("tile\n{}\n{}\n{}", device.architecture, device.name,
                     hash128(kernel + plan::gpu_tile_class(plan)).to_text());
}

TileStore& TileStore::shared() {
  static TileStore store(FileCache::from_environment());
  return store;
}

std::optional<plan::GpuTile> TileStore::find(const std::string& key) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = kept_.find(key); found != kept_.end()) return found->second;
  }
  const std::optional<std::string> text = cache_.read(key);
  if (!text) return std::nullopt;
  const std::size_t title = text->find('\n');
  if (title == std::string::npos) return std::nullopt;
  return plan::tile_from_record(std::string_view(*text).substr(title + 1));
}

void TileStore::keep(const std::string& key, const plan::GpuTile& tile, const std::string& title) {
  std::string line = title;
  std::replace(line.begin(), line.end(), '\n', ' ');
  cache_.write(key, line + "\n" + plan::tile_record(tile));
  const std::lock_guard lock(mutex_);
  kept_.insert_or_assign(key, tile);
}

std::shared_ptr<const plan::GpuPairPlan> tuned_plan(std::shared_ptr<const plan::GpuPairPlan> plan,
                                                    const TileDevice& device, const TileStore& store) {
  if (device.name.empty()) return plan;
  const std::optional<plan::GpuTile> tile = store.find(tile_key(*plan, device));
  if (!tile || !plan::gpu_tile_serves(*plan, *tile)) return plan;
  return plan::with_tile(*plan, *tile);
}

std::shared_ptr<const plan::GpuPairPlan> plan_for(const plan::GpuPairProblem& problem, const cuda::PairJob& job) {
  auto plan = plan::plan_gpu_pairs(problem);
  const TileDevice device = TileDevice::of(job.hardware());
  TileTrial* trial = job.queue->trial;
  if (trial == nullptr) return tuned_plan(std::move(plan), device);
  trial->model = plan;
  trial->device = device;
  trial->index = job.device;
  if (!trial->tile || !plan::gpu_tile_serves(*plan, *trial->tile)) return plan;
  return plan::with_tile(*plan, *trial->tile);
}

}  // namespace mercer::ops
