#include "ops/tuned_kron.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "codegen/cuda_text.h"
#include "core/hash.h"
#include "core/key.h"
#include "core/mutex.h"

namespace mercer::ops {
namespace {

using plan::KronGpuPlan;
using plan::KronGpuProblem;

/// What the kernels are made of.
std::string kernel_texts() {
  std::string texts;
  for (const codegen::CudaText& file : codegen::cuda_texts())
    if (file.name.starts_with("kron_")) texts += file.text;
  for (const char* file : {"arguments.h", "prelude.cuh", "split_pieces.cuh", "warpgroups.cuh", "double_units.cuh"})
    texts += codegen::cuda_text(file);
  return texts;
}

Choice choice_of(const KronGpuPlan& plan) { return {plan.record(), plan.to_text()}; }

/// "1024 rows, 8 x 8, 8 x 8, float32"
std::string title_of(const KronGpuProblem& problem) {
  std::string title = fmt::format("{} rows", problem.items * problem.rows * problem.columns);
  for (const plan::KronShape& factor : problem.factors) title += fmt::format(", {} x {}", factor.p, factor.q);
  return title + fmt::format(", {}", name_of(problem.dtype));
}

KronGpuPlan with_record(const KronGpuProblem& problem, const std::string& record) {
  std::optional<KronGpuPlan> plan = plan::kron_gpu_plan_of(problem, record);
  return plan ? std::move(*plan) : plan::plan_kron_gpu(problem);
}

}  // namespace

std::string kron_key(const KronGpuProblem& p, const DeviceName& device) {
  static constinit Lazy<std::string> kept;
  const std::string& kernels = kept.get([] { return hash128(kernel_texts()).to_text(); });
  std::string text = cache_key(p.dtype, p.type, p.items, p.rows, p.columns, p.vectors_in, p.vectors_out, p.combines,
                               p.capability, p.multiprocessors, p.shared_per_block);
  for (const plan::KronShape& factor : p.factors) text += cache_key(factor.p, factor.q);
  return fmt::format("kron\n{}\n{}\n{}", device.architecture, device.name, hash128(kernels + text).to_text());
}

KronGpuPlan tuned_kron_plan(const KronGpuProblem& problem, const DeviceName& device, const ChoiceStore& store) {
  const std::optional<std::string> record =
      device.name.empty() ? std::nullopt : store.find(kron_key(problem, device));
  return record ? with_record(problem, *record) : plan::plan_kron_gpu(problem);
}

KronGpuPlan kron_plan_for(const KronGpuProblem& problem, const cuda::PairJob& place) {
  const DeviceName device = DeviceName::of(place.hardware());
  Trial* trial = place.queue->trial;
  if (trial == nullptr) return tuned_kron_plan(problem, device);
  KronGpuPlan taken = with_record(problem, trial->record);
  trial->device = device;
  trial->index = place.device;
  const std::string key = kron_key(problem, device);
  std::erase_if(trial->asked, [&](const AskedPlan& asked) { return asked.key == key; });
  // A call that is taken apart asks for a plan of the whole and of each size of parts.
  trial->asked.push_back({key, title_of(problem), choice_of(plan::plan_kron_gpu(problem)), choice_of(taken),
                          [problem, taken] {
                            std::vector<Choice> choices;
                            for (const KronGpuPlan& plan : plan::kron_gpu_candidates(problem, taken))
                              choices.push_back(choice_of(plan));
                            return choices;
                          }});
  return taken;
}

}  // namespace mercer::ops
