#include "jit/cpu_probe.h"

#include <time.h>

#include <algorithm>
#include <vector>

#include "codegen/x86/cpu_probe.h"
#include "core/error.h"
#include "core/system/exec_memory.h"
#include "mercer/device.h"

namespace mercer::jit {
namespace {

using plan::Kind;

constexpr int kSweeps = 8;
constexpr std::int64_t kFirstTurns = 200;
constexpr double kSeconds = 1e-4;  // of a run: long compared with reading the time, short compared with a time slice

/// CPU time: that other programs run meanwhile does not make a core slower.
double seconds_of_this_thread() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// A loop that was made once and runs now and then.
class Timed {
 public:
  explicit Timed(const std::vector<std::uint8_t>& code) : memory_(code.data(), code.size()) {
    const double of_one = run(kFirstTurns);
    turns_ = std::max<std::int64_t>(kFirstTurns, static_cast<std::int64_t>(kSeconds / of_one));
  }
  void again() { least_ = std::min(least_, run(turns_)); }
  /// Seconds of a turn, the least that was measured.
  double seconds() const { return least_; }

 private:
  double run(std::int64_t turns) const {
    constexpr double kTick = 1e-9;
    const double start = seconds_of_this_thread();
    memory_.as<void(std::int64_t)>()(turns);
    return std::max(kTick, seconds_of_this_thread() - start) / static_cast<double>(turns);
  }

  ExecutableMemory memory_;
  std::int64_t turns_;
  double least_ = 1;
};

/// Cycles of one instruction of each of some kinds.
struct KindProbe {
  std::vector<Kind> kinds;
  Timed timed;
};

std::vector<KindProbe> probes_of(Target target) {
  std::vector<KindProbe> probes;
  const auto add = [&](std::vector<Kind> kinds) {
    for (Kind kind : kinds)
      if (!codegen::has_kind(target, kind)) return;
    Timed timed(codegen::emit_probe(target, kinds));
    probes.push_back({std::move(kinds), std::move(timed)});
  };
  for (int a = 0; a < plan::kKinds; ++a) {
    const auto kind = static_cast<Kind>(a);
    add({kind});
    for (int b = a + 1; b < plan::kKinds; ++b) add({kind, static_cast<Kind>(b)});
    if (kind != Kind::multiply && kind != Kind::add) add({Kind::multiply, Kind::add, kind});
  }
  return probes;
}

double cycles_of_step(const std::vector<std::uint8_t>& code, double gigahertz) {
  Timed timed(code);
  for (int sweep = 0; sweep < kSweeps; ++sweep) timed.again();
  return timed.seconds() * gigahertz * 1e9 / codegen::kProbeSteps;
}

}  // namespace

plan::PortTimes measure_ports(Target target, double gigahertz, const Told& told) {
  std::vector<KindProbe> probes = probes_of(target);
  // Sweep after sweep, so that what disturbs one run of a probe has gone before the next.
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    if (told && !told(sweep, kSweeps)) throw Cancelled();
    for (KindProbe& probe : probes) probe.timed.again();
  }
  plan::PortTimes times;
  for (const KindProbe& probe : probes) {
    const double of_step = probe.timed.seconds() * gigahertz * 1e9 / codegen::kProbeSteps;
    const std::size_t count = probe.kinds.size();
    const auto first = static_cast<std::size_t>(probe.kinds.front());
    const auto last = static_cast<std::size_t>(probe.kinds.back());
    const double cycles = of_step * static_cast<double>(count);
    if (count == 1) times.alone[first] = cycles;
    else if (count == 2) times.pair[first][last] = times.pair[last][first] = cycles;
    else
      times.with_both[last] = cycles;
  }
  return times;
}

double measure_latency(Target target, double gigahertz) {
  return cycles_of_step(codegen::emit_chain_probe(target), gigahertz);
}

double measure_loads(Target target, double gigahertz) {
  return 1 / cycles_of_step(codegen::emit_load_probe(target), gigahertz);
}

}  // namespace mercer::jit
