// What stored values cost on a GPU, measured and kept:
//
//   products with v by two ways, of a few sizes → times → a row of costs (plan/gpu/costs/fit_costs.h) → the store
#include <fmt/format.h>

#include <map>
#include <string_view>

#include "core/error.h"
#include "mercer/tune.h"
#include "ops/costs/device_costs.h"
#include "ops/tune/product_samples.h"
#include "plan/gpu/costs/costs_fields.h"
#include "plan/gpu/sums/bilinear_tile.h"

namespace mercer {
namespace {

/// Numbers that were measured, next to those of the generation.
std::string table_of(const plan::Costs& own, const plan::Costs& generation) {
  std::map<std::string_view, double> others;
  plan::each_cost(generation,
                  [&](const char* name, const auto& number, auto...) { others[name] = static_cast<double>(number); });
  std::string text = fmt::format("{:<24} {:>9} {:>11}\n", "ms of 10^9 pairs", "measured", "generation");
  plan::each_cost(own, [&](const char* name, const auto& number, auto...) {
    const double measured = static_cast<double>(number);
    if (measured != others.at(name))
      text += fmt::format("{:<24} {:>9.3g} {:>11.3g}\n", name, measured, others.at(name));
  });
  return text;
}

}  // namespace

std::string tune_gpu(int device, const ProgressCallback& progress) {
  const CudaDevice& gpu = cuda_device(device);
  const plan::Costs& generation = plan::costs_of(gpu.capability());
  const bool reads_stored = gpu.capability() == plan::kOfWarpgroups;
  ops::ProductSamples samples(device);
  double done = 0;
  const double total = plan::samples_of_fit(reads_stored);
  const plan::Costs own = plan::fit_costs(generation, reads_stored, [&](const plan::ProductSample& sample) {
    const double time = samples.milliseconds(sample);
    if (progress && !progress(++done, total)) throw Cancelled();
    return time;
  });
  ops::keep_costs(gpu, own, ops::ChoiceStore::shared());
  return fmt::format("{}\n{}kept: the ways of later processes follow it\n", gpu.name, table_of(own, generation));
}

}  // namespace mercer
