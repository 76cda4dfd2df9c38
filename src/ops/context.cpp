#include "ops/context.h"

#include <fmt/format.h>

#include "core/cpu_features.h"
#include "core/env.h"
#include "core/error.h"
#include "core/exec_memory.h"

namespace mercer {
namespace {

Target best_target() {
  if (!ExecutableMemory::available()) return Target::interpreter;
  if (cpu_features().avx512) return Target::x86_avx512;
  return cpu_features().avx2 ? Target::x86_avx2 : Target::interpreter;
}

bool can_run(Target target) {
  switch (target) {
    case Target::x86_avx512: return cpu_features().avx512 && ExecutableMemory::available();
    case Target::x86_avx2: return cpu_features().avx2 && ExecutableMemory::available();
    default: return true;
  }
}

}  // namespace

const char* name_of(Target target) {
  switch (target) {
    case Target::x86_avx512: return "x86_avx512";
    case Target::x86_avx2: return "x86_avx2";
    default: return "interpreter";
  }
}

Target target_from_text(const std::string& name) {
  if (name == "auto") return best_target();
  for (Target t : {Target::x86_avx512, Target::x86_avx2, Target::interpreter})
    if (name == name_of(t)) return t;
  fail(ErrorKind::invalid_argument, "target: must be auto, x86_avx512, x86_avx2 or interpreter. Received \"{}\".", name);
}

Context::State::State() : target(target_from_text(env_text("MERCER_TARGET").value_or("auto"))) {
  if (can_run(target)) return;
  fail(ErrorKind::unsupported, "target: this machine cannot run {} (MERCER_TARGET).", name_of(target.load()));
}

Context::Context() : state_(std::make_unique<State>()) {}
Context::~Context() = default;

int Context::threads() const { return state_->pool.threads(); }

void Context::set_threads(int count) {
  require(count >= 0 && count <= 4096, "threads: must be from 1 to 4096, or 0 for the machine's own number. Received {}.",
          count);
  state_->pool.set_threads(count);
}

Target Context::target() const { return state_->target; }

void Context::set_target(Target target) {
  if (!can_run(target)) fail(ErrorKind::unsupported, "target: this machine cannot run it. Received {}.", name_of(target));
  state_->target = target;
}

std::size_t Context::plan_count() const { return state_->pairs.size() + state_->fields.size(); }

void Context::clear_plans() {
  state_->pairs.clear();
  state_->fields.clear();
}

Context& Context::shared() {
  static Context context;
  return context;
}

std::string describe_machine() {
  const CpuFeatures& cpu = cpu_features();
  return fmt::format("{}\nexecutable memory: {}\ntarget: {}\nthreads: {}\n", cpu.to_text(),
                     ExecutableMemory::available() ? "available" : "denied, the interpreter serves",
                     name_of(Context::shared().target()), Context::shared().threads());
}

}  // namespace mercer
