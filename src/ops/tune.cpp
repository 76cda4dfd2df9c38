// Tuning: every candidate computes the call, the fastest stays.
//
//   plan the call                   → the model's tile, its candidates
//   twice: compile them together, run each once
//          runs of those near the fastest in turns, so that a drifting clock meets all alike → medians
//          candidates around the fastest
//
// What is timed is the whole call on its stream; its other kernels are the same for all candidates.
#include "mercer/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <list>

#include "core/error.h"
#include "core/log.h"
#include "jit/cuda_compile.h"
#include "ops/tuned_plan.h"

namespace mercer {
namespace {

using cuda::Rehearsal;
using plan::GpuTile;
using Call = std::function<void(const Arguments&)>;

constexpr int kRounds = 2, kSamples = 7, kMostCalls = 64;
constexpr double kShortest = 2;       // milliseconds of a sample
constexpr double kNear = 1.15;        // times the fastest: measured again
constexpr double kWorthWhile = 0.98;  // of the model's time: a smaller gain is noise

const char* name_of_verb(const Arguments& arguments) { return arguments.verb != nullptr ? arguments.verb : "tune"; }

/// Two events around some calls.
class Stopwatch {
 public:
  explicit Stopwatch(CuStream stream) : stream_(stream) {
    for (CuEvent* event : {&start_, &end_}) check_cuda(driver_.event_create(event, kCuEventDefault), "tune");
  }
  ~Stopwatch() {
    for (CuEvent event : {start_, end_})
      if (event != nullptr) driver_.event_destroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// Milliseconds of one of `count` calls in a row.
  template <class Work>
  double operator()(int count, const Work& work) {
    check_cuda(driver_.event_record(start_, stream_), "tune");
    for (int i = 0; i < count; ++i) work();
    check_cuda(driver_.event_record(end_, stream_), "tune");
    check_cuda(driver_.event_synchronize(end_), "tune");
    float milliseconds = 0;
    check_cuda(driver_.event_elapsed(&milliseconds, start_, end_), "tune");
    return static_cast<double>(milliseconds) / count;
  }

 private:
  const CudaDriver& driver_ = need_cuda("tune");
  CuStream stream_;
  CuEvent start_ = nullptr, end_ = nullptr;
};

struct Candidate {
  ops::TileTrial trial;
  std::vector<double> samples;
  bool runs = true;

  const GpuTile& tile() const { return *trial.tile; }
  double median() const {
    std::vector<double> sorted = samples;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? HUGE_VAL : sorted[sorted.size() / 2];
  }
};

class Tuner {
 public:
  Tuner(const Arguments& arguments, const Call& call) : arguments_(arguments), call_(call) {
    plan_call();
    take_memory();
  }

  void measure() {
    const CudaScope scope(device_);
    Stopwatch watch(static_cast<CuStream>(arguments_.queue.stream));
    for (int round = 0; round < kRounds; ++round) {
      const std::size_t known = candidates_.size();
      add_around(round == 0 ? model_->tile : best().tile());
      if (candidates_.size() == known) return;
      const auto fresh = std::next(candidates_.begin(), static_cast<std::ptrdiff_t>(known));
      compile(fresh);
      for (auto candidate = fresh; candidate != candidates_.end(); ++candidate) run_first(*candidate, watch);
      run_in_turns(watch);
    }
  }

  TuneReport finish(Context& context) const {
    const std::string key = ops::tile_key(*model_, device_named_);
    const GpuTile& tile = chosen().tile();
    ops::TileStore::shared().keep(
        key, tile, fmt::format("{} {}: {}", model_->problem.outputs.front().to_text(), name_of(model_->problem.type),
                               tile.to_text()));
    context.state().cuda_pairs.erase_if(
        [&](const cuda::PairKernels& kernels) { return ops::tile_key(*kernels.plan, device_named_) == key; });
    return report();
  }

 private:
  /// The call without its work: what it plans, and its scratch memory.
  void plan_call() {
    ops::TileTrial trial;
    Rehearsal rehearsal{Rehearsal::Purpose::workspace};
    rehearse(trial, rehearsal);
    if (trial.model == nullptr)
      fail(ErrorKind::unsupported,
           "{}: the call must compute pairs of points on a CUDA device. Received one that does not.",
           name_of_verb(arguments_));
    model_ = trial.model;
    device_ = trial.index;
    device_named_ = trial.device;
    bytes_ = rehearsal.bytes;
    require(!cuda_is_capturing(device_, static_cast<CuStream>(arguments_.queue.stream)),
            "{}: tiles cannot be measured while a CUDA graph is captured; tune before. Received a capturing stream.",
            name_of_verb(arguments_));
  }

  /// The caller's allocator is asked once.
  void take_memory() {
    own_ = arguments_;
    own_.progress = {};
    if (!arguments_.queue.allocate) return;
    void* const memory = arguments_.queue.allocate(bytes_);
    own_.queue.allocate = [memory, most = bytes_](std::int64_t bytes) { return bytes <= most ? memory : nullptr; };
  }

  void rehearse(ops::TileTrial& trial, Rehearsal& rehearsal) const {
    Arguments rehearsed = arguments_;
    rehearsed.queue.rehearsal = &rehearsal;
    rehearsed.queue.trial = &trial;
    call_(rehearsed);
  }

  void add_around(const GpuTile& tile) {
    const auto plan = plan::with_tile(*model_, tile);
    for (const GpuTile& next : plan::gpu_tile_candidates(*plan)) {
      const bool known = std::any_of(candidates_.begin(), candidates_.end(),
                                     [&](const Candidate& candidate) { return candidate.tile() == next; });
      if (!known) candidates_.emplace_back().trial.tile = next;
    }
  }

  /// All at once into the cache. A tile that does not compile is found out when it is run.
  void compile(std::list<Candidate>::iterator first) {
    Rehearsal listing{Rehearsal::Purpose::sources};
    for (; first != candidates_.end(); ++first) rehearse(first->trial, listing);
    try {
      jit::compile_all(listing.sources);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::compile) throw;
    }
  }

  /// In one sample, for calls of so many milliseconds.
  static int calls_of(double milliseconds) {
    return static_cast<int>(std::clamp(std::ceil(kShortest / milliseconds), 1.0, double{kMostCalls}));
  }

  void run(Candidate& candidate) {
    own_.queue.trial = &candidate.trial;
    call_(own_);
  }

  void run_first(Candidate& candidate, Stopwatch& watch) {
    try {
      run(candidate);  // loads
      const double once = watch(1, [&] { run(candidate); });
      candidate.samples = {once < kShortest ? watch(calls_of(once), [&] { run(candidate); }) : once};
    } catch (const Error& error) {
      // A device that fails for good fails with the model's tile too, and then it is said.
      const bool of_tile = error.kind() == ErrorKind::compile || error.kind() == ErrorKind::device;
      if (&candidate == &candidates_.front() || !of_tile) throw;
      log(LogLevel::info, "tune: the tile {} is left out: {}", candidate.tile().to_text(), error.what());
      candidate.runs = false;
    }
    report_progress();
  }

  /// The model's own tile always takes part: it is what the others are compared with.
  void run_in_turns(Stopwatch& watch) {
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

  const Candidate& best() const {
    return *std::min_element(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return a.median() < b.median();
    });
  }
  const Candidate& chosen() const {
    const Candidate& model = candidates_.front();
    return best().median() < kWorthWhile * model.median() ? best() : model;
  }

  TuneReport report() const {
    TuneReport found;
    for (const Candidate& candidate : candidates_)
      if (candidate.runs) found.tiles.push_back({candidate.tile().to_text(), candidate.median()});
    std::stable_sort(found.tiles.begin(), found.tiles.end(), [](const TuneReport::Tile& a, const TuneReport::Tile& b) {
      return a.milliseconds < b.milliseconds;
    });
    found.chosen = chosen().tile().to_text();
    found.model = model_->tile.to_text();
    return found;
  }

  void report_progress() {
    const double total = kRounds * (kSamples + 1) * static_cast<double>(candidates_.size());
    done_ = std::min(done_ + 1, total);
    if (arguments_.progress && !arguments_.progress(done_, total)) throw Cancelled();
  }

  const Arguments& arguments_;
  const Call& call_;
  Arguments own_;  // of the calls that are made
  std::shared_ptr<const plan::GpuPairPlan> model_;
  int device_ = 0;
  ops::TileDevice device_named_;
  std::int64_t bytes_ = 0;
  std::list<Candidate> candidates_;
  double done_ = 0;
};

}  // namespace

TuneReport tune(const Arguments& arguments, const Call& call, Context& context) {
  Tuner tuner(arguments, call);
  tuner.measure();
  return tuner.finish(context);
}

}  // namespace mercer
