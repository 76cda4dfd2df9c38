// Tuning: every candidate computes the call, the fastest stays.
//
//   plan the call                   → the model's choice, its candidates
//   twice: compile them together, run each once
//          runs of those near the fastest in turns, so that a drifting clock meets all alike → medians
//          candidates around the fastest
//
// What is timed is the whole call on its stream; its other kernels are the same for all candidates.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <list>
#include <set>
#include <string>

#include "core/error.h"
#include "core/system/log.h"
#include "jit/cuda_compile.h"
#include "ops/context.h"
#include "ops/tune/stopwatch.h"
#include "ops/tune/trial.h"
#include "ops/tune/tuned_kron.h"
#include "ops/tune/tuned_plan.h"
#include "ops/tune/tuner.h"

namespace mercer::ops {
namespace {

using cuda::Rehearsal;

constexpr int kRounds = 2, kSamples = 7, kMostCalls = 64;
constexpr double kShortest = 2;       // milliseconds of a sample
constexpr double kNear = 1.15;        // times the fastest: measured again
constexpr double kWorthWhile = 0.98, kWorthWhileOnCpu = 0.95;  // of the model's time: a smaller gain is noise

/// The clock of the host, for calls that end with their work.
class HostWatch {
 public:
  template <class Work>
  double operator()(int count, const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) work();
    const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - start;
    return std::max(passed.count(), kTick) / count;
  }

 private:
  static constexpr double kTick = 1e-6;  // so that no call takes no time
};

struct Candidate {
  Choice choice;
  Trial trial;
  std::int64_t bytes = 0;  // of scratch memory
  std::vector<double> samples;
  bool runs = true;

  double median() const {
    std::vector<double> sorted = samples;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? HUGE_VAL : sorted[sorted.size() / 2];
  }
};

using Candidates = std::list<Candidate>;

class Tuner {
 public:
  explicit Tuner(const TunedCall& call) : call_(call), own_(call.queue) {
    add_around({});
    refuse_captures();
  }

  void measure() {
    if (on_cpu_) {
      HostWatch watch;
      return measure_with(watch);
    }
    const CudaScope scope(device_);
    Stopwatch watch(static_cast<CuStream>(call_.queue.stream));
    measure_with(watch);
  }

  TuneReport finish(Context& context) {
    std::set<std::string> keys;
    for (const AskedPlan& asked : chosen().trial.asked) {
      keys.insert(asked.key);
      ChoiceStore::shared().keep(asked.key, asked.taken.record,
                                 fmt::format("{}: {}", asked.title, asked.taken.text));
    }
    if (on_cpu_) {
      mark_cpu_choices(ChoiceStore::shared());
      context.state().kron.choices.clear();
      return report();
    }
    context.state().cuda_pairs.erase_if(
        [&](const cuda::PairKernels& kernels) { return keys.contains(tile_key(*kernels.plan, device_named_)); });
    context.state().cuda_krons.erase_if(
        [&](const cuda::KronProgram& program) { return keys.contains(kron_key(program.problem, device_named_)); });
    return report();
  }

 private:
  template <class Watch>
  void measure_with(Watch& watch) {
    auto fresh = candidates_.begin();
    for (int round = 0; round < kRounds; ++round) {
      if (round > 0) fresh = add_around(best().choice.record);
      if (fresh == candidates_.end()) break;
      compile(fresh);
      if (round == 0) take_memory();
      for (auto candidate = fresh; candidate != candidates_.end(); ++candidate) run_first(*candidate, watch);
      run_in_turns(watch);
    }
    run(chosen());  // the call's outputs are what later calls make
  }

  /// Plans the call with a choice, and adds what is worth measuring against it. Returns the first that is new.
  Candidates::iterator add_around(const std::string& record) {
    Trial trial;
    trial.record = record;
    Rehearsal rehearsal{Rehearsal::Purpose::workspace};
    rehearse(trial, rehearsal);
    if (trial.asked.empty())
      fail(ErrorKind::unsupported, "{}: the call must {}. Received one that does not.", call_.verb, call_.does);
    on_cpu_ = trial.on_cpu;
    device_ = trial.index;
    device_named_ = trial.device;
    const std::size_t known = candidates_.size();
    for (const AskedPlan& asked : trial.asked)
      for (const Choice& choice : asked.candidates()) {
        if (!known_.insert(choice.record).second) continue;
        Candidate& candidate = candidates_.emplace_back();
        candidate.choice = choice;
        candidate.trial.record = choice.record;
      }
    return std::next(candidates_.begin(), static_cast<std::ptrdiff_t>(known));
  }

  void refuse_captures() const {
    require(on_cpu_ || !cuda_is_capturing(device_, static_cast<CuStream>(call_.queue.stream)),
            "{}: nothing can be measured while a CUDA graph is captured; tune before. Received a capturing stream.",
            call_.verb);
  }

  /// The caller's allocator is asked once, for the most that a candidate takes.
  void take_memory() {
    for (const Candidate& candidate : candidates_) bytes_ = std::max(bytes_, candidate.bytes);
    if (!call_.queue.allocate || bytes_ == 0) return;
    void* const memory = call_.queue.allocate(bytes_);
    own_.allocate = [memory, most = bytes_](std::int64_t bytes) { return bytes <= most ? memory : nullptr; };
  }

  void rehearse(Trial& trial, Rehearsal& rehearsal) const {
    Queue rehearsed = call_.queue;
    rehearsed.rehearsal = &rehearsal;
    rehearsed.trial = &trial;
    call_.make(rehearsed);
  }

  /// All at once into the cache. A kernel that does not compile is found out when it is run.
  void compile(Candidates::iterator first) {
    Rehearsal listing{Rehearsal::Purpose::sources};
    for (; first != candidates_.end(); ++first) {
      listing.bytes = 0;
      rehearse(first->trial, listing);
      first->bytes = listing.bytes;
    }
    try {
      jit::compile_all(listing.sources);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::compile) throw;
    }
  }

  /// How many calls of so many milliseconds make one sample.
  static int calls_of(double milliseconds) {
    return static_cast<int>(std::clamp(std::ceil(kShortest / milliseconds), 1.0, double{kMostCalls}));
  }

  void run(Candidate& candidate) {
    own_.trial = &candidate.trial;
    call_.make(own_);
  }

  template <class Watch>
  void run_first(Candidate& candidate, Watch& watch) {
    try {
      run(candidate);  // loads
      const double once = watch(1, [&] { run(candidate); });
      candidate.samples = {once < kShortest ? watch(calls_of(once), [&] { run(candidate); }) : once};
    } catch (const Error& error) {
      // A device that fails for good fails with the model's choice too, and then it is said.
      const bool of_choice = error.kind() == ErrorKind::compile || error.kind() == ErrorKind::device;
      if (&candidate == &candidates_.front() || !of_choice) throw;
      log(LogLevel::info, "tune: {} is left out: {}", candidate.choice.text, error.what());
      candidate.runs = false;
    }
    report_progress();
  }

  /// The model's own choice always takes part: it is what the others are compared with.
  template <class Watch>
  void run_in_turns(Watch& watch) {
    const double fastest = best().median();
    const int count = calls_of(fastest);
    for (int sample = 0; sample < kSamples; ++sample)
      for (Candidate& candidate : candidates_) {
        const bool own = &candidate == &candidates_.front();
        if (!candidate.runs || (!own && candidate.samples.front() > kNear * fastest)) continue;
        candidate.samples.push_back(watch(count, [&] { run(candidate); }));
        report_progress();
      }
  }

  Candidate& best() {
    return *std::min_element(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return a.median() < b.median();
    });
  }
  Candidate& chosen() {
    Candidate& model = candidates_.front();
    return best().median() < (on_cpu_ ? kWorthWhileOnCpu : kWorthWhile) * model.median() ? best() : model;
  }

  TuneReport report() {
    TuneReport found;
    for (const Candidate& candidate : candidates_)
      if (candidate.runs) found.tiles.push_back({candidate.choice.text, candidate.median()});
    std::stable_sort(found.tiles.begin(), found.tiles.end(), [](const TuneReport::Tile& a, const TuneReport::Tile& b) {
      return a.milliseconds < b.milliseconds;
    });
    found.chosen = chosen().choice.text;
    found.model = candidates_.front().choice.text;
    return found;
  }

  void report_progress() {
    const double total = kRounds * (kSamples + 1) * static_cast<double>(candidates_.size());
    done_ = std::min(done_ + 1, total);
    if (call_.progress && !call_.progress(done_, total)) throw Cancelled();
  }

  const TunedCall& call_;
  Queue own_;  // of the calls that are made
  bool on_cpu_ = false;
  int device_ = 0;
  DeviceName device_named_;
  std::int64_t bytes_ = 0;
  Candidates candidates_;
  std::set<std::string> known_;  // records of theirs
  double done_ = 0;
};

}  // namespace

TuneReport tune_call(const TunedCall& call, Context& context) {
  Tuner tuner(call);
  tuner.measure();
  return tuner.finish(context);
}

namespace {

/// `call` with arguments of its own: the tuner's queue, and no progress.
template <class Arguments>
TuneReport tune_with(const Arguments& arguments, const char* verb, const char* purpose,
                     const std::function<void(const Arguments&)>& call, Context& context) {
  const auto make = [&](const Queue& queue) {
    Arguments own = arguments;
    own.queue = queue;
    own.progress = {};
    call(own);
  };
  if (arguments.verb != nullptr) verb = arguments.verb;
  return tune_call({verb, purpose, arguments.queue, arguments.progress, make}, context);
}

}  // namespace

}  // namespace mercer::ops

namespace mercer {

TuneReport tune(const Arguments& arguments, const std::function<void(const Arguments&)>& call, Context& context) {
  return ops::tune_with(arguments, "tune", "compute pairs of points on a CUDA device", call, context);
}

}  // namespace mercer

namespace mercer::kron {

TuneReport tune(const Options& options, const std::function<void(const Options&)>& call, Context& context) {
  return ops::tune_with(options, "kron.tune", "multiply by factors", call, context);
}

}  // namespace mercer::kron
