#include "ops/tune/tuned_plan.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <vector>

#include "codegen/cuda/cuda_text.h"
#include "core/hash.h"
#include "core/system/mutex.h"

namespace mercer::ops {
namespace {

Choice choice_of(const plan::GpuTile& tile) { return {plan::tile_record(tile), tile.to_text()}; }

/// The plan, with the tile of the record if there is one and it serves.
std::shared_ptr<const plan::GpuPairPlan> with_record(std::shared_ptr<const plan::GpuPairPlan> plan,
                                                     std::string_view record) {
  const std::optional<plan::GpuTile> tile = plan::tile_from_record(record);
  return tile && plan::gpu_tile_serves(*plan, *tile) ? plan::with_tile(*plan, *tile) : plan;
}

}  // namespace

std::string tile_key(const plan::GpuPairPlan& plan, const DeviceName& device) {
  static constinit Lazy<std::string> kept;
  const std::string& kernel = kept.get([] {
    std::string texts;
    for (const char* name :
         {"pairs/pair_slices.cuh", "pairs/pair_update.cuh", "pairs/pair_integers.cuh", "pairs/pair_rows.cuh",
          "pairs/tile_stored.cuh", "pairs/tile_values.cuh", "pairs/tile_products.cuh", "pairs/tile_folds.cuh",
          "nearest/tile_nearest.cuh", "pairs/pair_tile.cuh"})
      texts += codegen::cuda_text(name);
    return hash128(texts).to_text();
  });
  return fmt::format("tile\n{}\n{}\n{}", device.architecture, device.name,
                     hash128(kernel + plan::gpu_tile_class(plan)).to_text());
}

std::shared_ptr<const plan::GpuPairPlan> tuned_plan(std::shared_ptr<const plan::GpuPairPlan> plan,
                                                    const DeviceName& device, const ChoiceStore& store) {
  if (device.name.empty()) return plan;
  const std::optional<std::string> record = store.find(tile_key(*plan, device));
  return record ? with_record(std::move(plan), *record) : plan;
}

std::shared_ptr<const plan::GpuPairPlan> plan_for(std::shared_ptr<const plan::GpuPairPlan> model,
                                                  const cuda::PairJob& job) {
  const DeviceName device = DeviceName::of(job.hardware());
  Trial* trial = job.queue->trial;
  if (trial == nullptr) return tuned_plan(model, device);
  const auto taken = with_record(model, trial->record);
  trial->device = device;
  trial->index = job.device;
  // Where a call asks for several plans, the last one is what it runs.
  trial->asked = {{tile_key(*model, device),
                   fmt::format("{} {}", model->problem.outputs.front().to_text(), name_of(model->problem.type)),
                   choice_of(model->tile), choice_of(taken->tile), [taken] {
                     std::vector<Choice> choices;
                     for (const plan::GpuTile& tile : plan::gpu_tile_candidates(*taken))
                       choices.push_back(choice_of(tile));
                     return choices;
                   }}};
  return taken;
}

}  // namespace mercer::ops
