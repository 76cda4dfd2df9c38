#include "ops/context.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/devices/cuda_driver.h"
#include "core/devices/cuda_solver.h"
#include "core/devices/lapack.h"
#include "core/devices/nvrtc.h"
#include "core/error.h"
#include "core/system/cpu_features.h"
#include "core/system/env.h"
#include "core/system/exec_memory.h"
#include "core/system/log.h"
#include "core/system/mutex.h"
#include "mercer/explain.h"
#include "ops/costs/cpu_costs.h"
#include "ops/costs/device_costs.h"
#include "ops/settings.h"
#include "plan/cpu/target.h"
#include "plan/cpu/ways.h"
#include "plan/gpu/ways.h"

namespace mercer {
namespace {

bool can_run(Target target) {
  if (target == Target::interpreter) return true;
  return plan::target_info(target).runs_here() && ExecutableMemory::available();
}

Target best_target() {
  for (const plan::TargetInfo* info : plan::targets()) {
    if (info->target == Target::interpreter || !info->runs_here()) continue;
    const std::string why_not = ExecutableMemory::why_not();
    if (why_not.empty()) return info->target;
    log_once(LogLevel::warning, "executable memory: {}; the interpreter runs all formulas, several times slower",
             why_not);
    break;
  }
  return Target::interpreter;
}

/// `what` names, in errors, the thing that was to be a target.
Target target_named(const std::string& name, const char* what) {
  if (name == "auto") return best_target();
  std::string known = "auto";
  for (const plan::TargetInfo* info : plan::targets()) {
    if (name == info->name) return info->target;
    known += fmt::format("{}{}", info == plan::targets().back() ? " or " : ", ", info->name);
  }
  fail(ErrorKind::invalid_argument, "{}: must be {}. Received \"{}\".", what, known, name);
}

void require_runs_here(Target target, const char* what) {
  if (!can_run(target))
    fail(ErrorKind::unsupported, "{}: this machine must be able to run it. Received {}.", what, name_of(target));
}

constexpr const char* kVariable = "MERCER_TARGET";
constexpr const char* kWaysVariable = "MERCER_WAY";

/// Names of a verb's ways, on GPUs and then on CPUs, each once.
std::vector<std::string> names_of_ways(plan::Verb verb) {
  std::vector<std::string> names;
  const auto add = [&](const auto& ways) {
    for (const auto* way : ways)
      if (std::ranges::find(names, way->name) == names.end()) names.emplace_back(way->name);
  };
  add(plan::ways_of(verb));
  add(plan::cpu::ways_of(verb));
  return names;
}

struct PrecisionRow {
  Precision precision;
  const char* name;
};
constexpr PrecisionRow kPrecisions[] = {{Precision::fp32, "fp32"},
                                        {Precision::direct, "direct"},
                                        {Precision::tf32, "tf32"},
                                        {Precision::bf16, "bf16"},
                                        {Precision::fp32, "fp64"}};  // float64 has its own tensor cores anyway

void check_threads(int count) {
  require(count >= 0 && count <= 4096,
          "threads: must be from 1 to 4096, or 0 for the machine's own number. Received {}.", count);
}

}  // namespace

Settings checked_settings(std::optional<int> threads, std::optional<Target> target,
                          std::optional<Precision> precision) {
  if (threads) check_threads(*threads);
  if (threads == 0) threads = default_thread_count();
  if (target) require_runs_here(*target, "target");
  return {threads, target, precision};
}

const char* name_of(Precision precision) {
  for (const PrecisionRow& row : kPrecisions)
    if (row.precision == precision) return row.name;
  return "";
}

Precision precision_from_text(const std::string& name) {
  for (const PrecisionRow& row : kPrecisions)
    if (name == row.name) return row.precision;
  fail(ErrorKind::invalid_argument, "precision: must be fp32, direct, tf32, bf16 or fp64. Received \"{}\".", name);
}

Target target_from_text(const std::string& name) { return target_named(name, "target"); }

Context::State::State()
    : target(target_named(env_text(kVariable).value_or("auto"), kVariable)) {
  forced_ways = &ways_given.emplace_back(env_text(kWaysVariable).value_or(""), kWaysVariable, names_of_ways);
  require_runs_here(target, kVariable);
}

Context::Context() : state_(std::make_unique<State>()) {}
Context::~Context() = default;

int Context::threads() const { return state_->pool.threads(); }

void Context::set_threads(int count) {
  check_threads(count);
  state_->pool.set_threads(count);
}

Target Context::target() const { return setting(&Settings::target, state_->target.load()); }

void Context::set_target(Target target) {
  require_runs_here(target, "target");
  state_->target = target;
}

Precision Context::precision() const { return setting(&Settings::precision, state_->precision.load()); }
void Context::set_precision(Precision precision) { state_->precision = precision; }

std::string Context::ways() const { return state_->forced_ways.load()->text(); }

void Context::set_ways(const std::string& names) {
  plan::ForcedWays ways(names, "ways", names_of_ways);
  const std::lock_guard lock(state_->ways_mutex);
  state_->forced_ways = &state_->ways_given.emplace_back(std::move(ways));
}

const plan::Costs& Context::State::costs_on(Device device, const Queue& queue) const {
  if (costs) return *costs;
  const auto index = static_cast<std::size_t>(device.index);
  const CudaDevice* const planned = queue.rehearsal != nullptr ? queue.rehearsal->device : nullptr;
  if (device.kind != DeviceKind::cuda) return plan::costs_of(plan::kMeasuredCapability);
  if (planned != nullptr) return ops::device_costs(*planned);
  if (index >= cuda_devices().size()) return plan::costs_of(plan::kMeasuredCapability);  // the call fails elsewhere
  return ops::device_costs(cuda_devices()[index]);
}

const plan::cpu::Costs& Context::State::way_costs(Target of) const {
  return own_way_costs ? *own_way_costs : ops::way_costs(of);
}

std::size_t Context::plan_count() const {
  return state_->pairs.size() + state_->fields.size() + state_->cuda_pairs.size() + state_->cuda_fields.size();
}

void Context::clear_plans() {
  state_->pairs.clear();
  state_->fields.clear();
  state_->gpu_plans.clear();
  state_->gpu_fields.clear();
  state_->cuda_pairs.clear();
  state_->cuda_fields.clear();
  state_->dots.clear();
  state_->exponentials.clear();
  state_->kron.clear();
}

Context& Context::shared() {
  static constinit Lazy<Context> context;  // never destroyed: threads may be inside calls while a process ends
  return context.get();
}

namespace {

/// Looked for where there is a GPU to use it.
std::string describe_solver() { return cuda_device_count() > 0 ? describe_cuda_solver() : std::string(); }

}  // namespace

std::string describe_machine() {
  const Context& context = Context::shared();
  return fmt::format(
      "{}\nexecutable memory: {}\ntarget: {}\ncosts of vector instructions: {}\n"
      "costs of ways: {}\nthreads: {}\n{}{}",
      cpu_features().to_text(),
      ExecutableMemory::available() ? "available"
                                    : fmt::format("denied ({}), the interpreter serves", ExecutableMemory::why_not()),
      name_of(context.target()), cpu_costs().text, ops::source_of_way_costs(context.target()), context.threads(),
      describe_cuda() + describe_nvrtc(), describe_solver() + describe_lapack());
}

}  // namespace mercer
