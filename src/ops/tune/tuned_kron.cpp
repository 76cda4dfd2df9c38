#include "ops/tune/tuned_kron.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "codegen/cuda/cuda_text.h"
#include "core/hash.h"
#include "core/key.h"
#include "core/system/cpu_features.h"
#include "core/system/mutex.h"

namespace mercer::ops {
namespace {

using plan::KronGpuPlan;
using plan::KronGpuProblem;

/// Version of the loops that run a plan on a processor, for which measured choices hold.
constexpr std::string_view kCpuVersion = "1\n";

/// What the kernels are made of.
std::string kernel_texts() {
  std::string texts;
  for (const codegen::CudaText& file : codegen::cuda_texts())
    if (file.name.starts_with("kron/")) texts += codegen::include(file.name);
  return codegen::flattened(texts);
}

Choice choice_of(const KronGpuPlan& plan) { return {plan.record(), plan.to_text()}; }

/// "1024 rows, 8 x 8, 8 x 8, float32"
std::string title_of(std::int64_t rows, const std::vector<plan::KronShape>& factors, Dtype dtype) {
  std::string title = fmt::format("{} rows", rows);
  for (const plan::KronShape& factor : factors) title += fmt::format(", {} x {}", factor.p, factor.q);
  return title + fmt::format(", {}", name_of(dtype));
}

Choice choice_of(const plan::KronChoice& choice) { return {choice.record(), choice.record()}; }

/// Whether choices of processors are stored: elsewhere no call takes the time to ask for its own. As the store, it is
/// the process's.
enum class Measured : std::uint8_t { unknown, nothing, something };
constinit std::atomic<Measured> measured_on_cpu{Measured::unknown};

std::string mark_key() { return fmt::format("kron\nprocessors\n{}\n", cpu_features().brand); }

bool may_be_measured() {
  Measured known = measured_on_cpu.load(std::memory_order_relaxed);
  if (known == Measured::unknown) {
    const bool is_marked = ChoiceStore::shared().find(mark_key()).has_value();
    measured_on_cpu.compare_exchange_strong(known, is_marked ? Measured::something : Measured::nothing);
    known = measured_on_cpu;
  }
  return known == Measured::something;
}

/// All that the time of a product on a processor may depend on.
std::string cpu_problem_key(const KronJob& job, const plan::KronProblem& p, const cpu::KronTools& tools) {
  std::string text = cache_key(job.dtype, p.type, p.lanes, p.rows, job.row_count, job.items, p.by_columns, p.packed,
                               job.x.stride == 1, job.out.stride == 1, p.l1_bytes, p.l2_bytes, tools.pool.threads(),
                               tools.target);
  for (const plan::KronShape& factor : p.factors) text += cache_key(factor.p, factor.q);
  return text;
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
  const std::string title = title_of(problem.items * problem.rows * problem.columns, problem.factors, problem.dtype);
  trial->asked.push_back({key, title, choice_of(plan::plan_kron_gpu(problem)), choice_of(taken),
                          [problem, taken] {
                            std::vector<Choice> choices;
                            for (const KronGpuPlan& plan : plan::kron_gpu_candidates(problem, taken))
                              choices.push_back(choice_of(plan));
                            return choices;
                          }});
  return taken;
}

std::string kron_cpu_key(const KronJob& job, const plan::KronProblem& problem, const cpu::KronTools& tools) {
  return fmt::format("kron\n{}\n{}\n{}", name_of(tools.target), cpu_features().brand,
                     hash128(std::string(kCpuVersion) + cpu_problem_key(job, problem, tools)).to_text());
}

plan::KronChoice tuned_kron_choice(const std::string& key, const ChoiceStore& store) {
  const std::optional<std::string> record = store.find(key);
  return record ? plan::kron_choice_of(*record).value_or(plan::KronChoice{}) : plan::KronChoice{};
}

void mark_cpu_choices(ChoiceStore& store) {
  store.keep(mark_key(), "measured", "products on processors");
  measured_on_cpu = Measured::something;
}

plan::KronChoice kron_choice_for(const KronJob& job, const plan::KronProblem& problem, const cpu::KronTools& tools) {
  Trial* const trial = job.queue->trial;
  if (trial == nullptr && !may_be_measured()) return {};
  if (trial == nullptr)
    return *tools.kernels.choices.get(cpu_problem_key(job, problem, tools), [&] {
      return std::make_shared<const plan::KronChoice>(tuned_kron_choice(kron_cpu_key(job, problem, tools)));
    });
  const plan::KronChoice taken = plan::kron_choice_of(trial->record).value_or(plan::KronChoice{});
  trial->on_cpu = true;
  const std::string key = kron_cpu_key(job, problem, tools);
  std::erase_if(trial->asked, [&](const AskedPlan& asked) { return asked.key == key; });
  // Columns that fill no block are a problem of their own.
  const std::string title = title_of(job.items * job.row_count, problem.factors, job.dtype);
  trial->asked.push_back({key, title, choice_of(plan::KronChoice{}), choice_of(taken), [problem, taken] {
                            std::vector<Choice> choices;
                            for (const plan::KronChoice& choice : plan::kron_choices(problem, taken))
                              choices.push_back(choice_of(choice));
                            return choices;
                          }});
  return taken;
}

}  // namespace mercer::ops
