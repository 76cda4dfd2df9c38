// The pool. A Crew is the set of worker threads of one process: a forked child finds another pid in it, leaves it alone
// (its threads are gone and its lock may be held for ever) and makes its own.
//
//   run:    publish the job → take tasks from its counter → withdraw it → wait for the workers still inside
//   worker: wait for a job with tasks and a free place → take tasks → leave
#include "core/system/parallel.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/settings.h"
#include "core/system/coarse_clock.h"
#include "core/system/log.h"
#include "mercer/device.h"

namespace mercer {
namespace {

using Clock = CoarseClock;
constexpr auto kProgressPeriod = std::chrono::milliseconds(50);
// About 4 us: a wake-up through the kernel costs 5 to 50 us, and back-to-back runs come closer than that.
constexpr int kSpins = 100;

// True while this thread executes a body, of any pool.
constinit thread_local bool inside_run = false;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Subnormal numbers are numbers while it lives. XLA flushes them to 0 on the threads that it calls from, PyTorch where
/// its user asks for that, and a new thread inherits the mode of the one that starts it.
class SubnormalNumbers {
#if defined(__x86_64__)
 public:
  SubnormalNumbers() : before_(__builtin_ia32_stmxcsr()) {
    if ((before_ & kFlushing) != 0) __builtin_ia32_ldmxcsr(before_ & ~kFlushing);
  }
  ~SubnormalNumbers() {
    if ((before_ & kFlushing) != 0) __builtin_ia32_ldmxcsr(before_);
  }
  SubnormalNumbers(const SubnormalNumbers&) = delete;
  SubnormalNumbers& operator=(const SubnormalNumbers&) = delete;

 private:
  static constexpr unsigned kFlushing = 0x8040;  // results (FTZ) and operands (DAZ)
  const unsigned before_;
#endif
};

struct InsideRun {
  bool before = std::exchange(inside_run, true);
  [[maybe_unused]] const SubnormalNumbers numbers{};
  ~InsideRun() { inside_run = before; }
};

class ProgressGate;
constinit thread_local ProgressGate* gate_of_thread = nullptr;  // asks the caller, whose thread this is
constinit thread_local const std::atomic<bool>* stop_of_thread = nullptr;  // of the run whose body this thread executes

/// Sets a variable of the thread for a while.
template <class T>
class Within {
 public:
  Within(T& variable, T value) : variable_(variable), before_(std::exchange(variable, value)) {}
  ~Within() { variable_ = before_; }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;

 private:
  T& variable_;
  T before_;
};

class ProgressGate {
 public:
  ProgressGate(const Pool::Progress* progress, std::int64_t total)
      : progress_(progress != nullptr && *progress ? progress : nullptr), total_(total) {
    if (progress_ != nullptr) next_ = Clock::now() + kProgressPeriod;
  }
  /// False when the caller wants to stop.
  bool go_on(std::int64_t done) {
    done_ = done;
    return go_on();
  }
  /// False when the caller wants to stop; asked between tasks and within one.
  bool go_on() {
    if (progress_ == nullptr) return outer_ == nullptr || outer_->go_on();
    if (stopped_) return false;
    if (Clock::now() < next_) return true;
    stopped_ = !(*progress_)(static_cast<double>(done_), static_cast<double>(total_));
    next_ = Clock::now() + kProgressPeriod;
    asked_ = true;
    return !stopped_;
  }
  /// Throws too when the caller wants to stop now: an interrupt that it has taken would be lost otherwise.
  void finish() {
    const auto total = static_cast<double>(total_);
    if (asked_ && !(*progress_)(total, total)) throw Cancelled();
  }

 private:
  const Pool::Progress* progress_;
  std::int64_t total_, done_ = 0;
  Clock::time_point next_{};
  bool asked_ = false, stopped_ = false;
  ProgressGate* const outer_ = gate_of_thread;
};

bool is_stopped() { return stop_of_thread != nullptr && stop_of_thread->load(std::memory_order_relaxed); }

void run_inline(std::int64_t tasks, const Pool::Body& body, const Pool::Progress* progress) {
  const InsideRun inside;
  ProgressGate gate(progress, tasks);
  const Within within(gate_of_thread, &gate);
  for (std::int64_t task = 0; task < tasks; ++task) {
    if (task > 0 && (is_stopped() || !gate.go_on(task))) throw Cancelled();
    body(task, 0);
  }
  gate.finish();
}

}  // namespace

constinit thread_local const Settings* WithSettings::current_ = nullptr;

NoSignals::NoSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

NoSignals::~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

bool may_be_cancelled() { return stop_of_thread != nullptr || gate_of_thread != nullptr; }

void stop_if_cancelled() {
  if (is_stopped()) throw Cancelled();
  if (gate_of_thread != nullptr && !gate_of_thread->go_on()) throw Cancelled();
}

struct CancelScope::State {
  explicit State(std::function<bool()> asked)
      : go_on(std::move(asked)), progress([this](double, double) { return go_on(); }), gate(&progress, 1),
        within(gate_of_thread, &gate) {}
  const std::function<bool()> go_on;
  const Pool::Progress progress;
  ProgressGate gate;
  const Within<ProgressGate*> within;
};

CancelScope::State& CancelScope::state() { return *std::launder(reinterpret_cast<State*>(memory_)); }
CancelScope::CancelScope(std::function<bool()> go_on) {
  static_assert(sizeof(State) <= sizeof(memory_) && alignof(State) <= alignof(std::max_align_t));
  new (memory_) State(std::move(go_on));
}
CancelScope::~CancelScope() { state().~State(); }

struct Pool::Job {
  const Body& body;
  const std::int64_t tasks;
  const int places;  // workers that may join, the caller not counted
  const Settings* settings = WithSettings::current();  // of the caller
  std::atomic<std::int64_t> next{0}, done{0};
  std::atomic<int> inside{0};  // workers at work; changed under the lock of the crew
  int joined = 0;              // under the lock
  std::exception_ptr error{};  // the first; written by whoever wins `failed`
  std::atomic<bool> failed{false};
  std::atomic<bool> stopped{false};  // the tasks that have begun are to end too

  bool wants_help() const { return joined < places && next.load(std::memory_order_relaxed) < tasks; }

  void skip_rest() { next.store(tasks, std::memory_order_relaxed); }

  void keep_error() {
    if (!failed.exchange(true)) error = std::current_exception();
    stop();
  }

  void stop() {
    stopped.store(true, std::memory_order_relaxed);
    skip_rest();
  }

  /// False when there was no task left.
  bool take_one(int worker) {
    const std::int64_t task = next.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks) return false;
    const Within<const std::atomic<bool>*> within(stop_of_thread, &stopped);
    try {
      body(task, worker);
    } catch (...) {
      keep_error();
    }
    done.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
};

struct Pool::Crew {
  const pid_t pid = ::getpid();
  mutable std::mutex lock;
  std::condition_variable job_published, worker_left;
  std::vector<Job*> jobs;  // oldest first
  std::vector<std::thread> workers;
  std::atomic<std::uint64_t> published{0};
  bool stopping = false;

  ~Crew() {
    {
      const std::lock_guard guard(lock);
      stopping = true;
      published.fetch_add(1);
    }
    job_published.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  /// Under the lock.
  void start_workers(int wanted) {
    if (static_cast<int>(workers.size()) >= wanted) return;
    const NoSignals none;
    try {
      while (static_cast<int>(workers.size()) < wanted) workers.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      log_once(LogLevel::warning, "pool: only {} of {} workers could be started: {}", workers.size(), wanted,
               error.what());
    }
  }

  Job* job_to_help() const {
    for (Job* job : jobs) {
      if (job->wants_help()) return job;
    }
    return nullptr;
  }

  void work() {
    inside_run = true;
    [[maybe_unused]] const SubnormalNumbers numbers;
    std::unique_lock guard(lock);
    while (!stopping) {
      Job* job = job_to_help();
      if (job == nullptr) {
        wait_for_job(guard);
        continue;
      }
      const int worker = ++job->joined;
      job->inside.fetch_add(1, std::memory_order_relaxed);
      guard.unlock();
      {
        const WithSettings settings(job->settings);
        while (job->take_one(worker)) {
        }
      }
      guard.lock();
      // The caller may free the job as soon as it sees 0, so this is the last touch.
      if (job->inside.fetch_sub(1, std::memory_order_release) == 1) worker_left.notify_all();
    }
  }

  void wait_for_job(std::unique_lock<std::mutex>& guard) {
    const std::uint64_t seen = published.load(std::memory_order_relaxed);
    guard.unlock();
    for (int spin = 0; spin < kSpins && published.load(std::memory_order_relaxed) == seen; ++spin) pause_briefly();
    guard.lock();
    job_published.wait(guard, [&] { return stopping || published.load(std::memory_order_relaxed) != seen; });
  }

  void publish(Job& job) {
    {
      const std::lock_guard guard(lock);
      start_workers(job.places);
      jobs.push_back(&job);
      published.fetch_add(1, std::memory_order_relaxed);
    }
    if (job.places == 1) {
      job_published.notify_one();
    } else {
      job_published.notify_all();
    }
  }

  /// `ask`: whether to go on, of which workers are told that are still inside; asked now and then.
  template <class Ask>
  void withdraw(Job& job, const Ask& ask) {
    std::unique_lock guard(lock);
    jobs.erase(std::find(jobs.begin(), jobs.end(), &job));
    guard.unlock();
    for (int spin = 0; spin < kSpins && job.inside.load(std::memory_order_relaxed) != 0; ++spin) pause_briefly();
    guard.lock();
    const auto is_alone = [&] { return job.inside.load(std::memory_order_acquire) == 0; };
    while (!worker_left.wait_for(guard, kProgressPeriod, is_alone)) {
      guard.unlock();
      ask();
      guard.lock();
    }
  }
};

Pool::Pool(int threads) : asked_(std::max(threads, 0)) { settle(); }

Pool::~Pool() {
  Crew* crew = crew_.load();
  if (crew != nullptr && crew->pid == ::getpid()) delete crew;  // else: the parent's; see the top of the file
}

int Pool::threads() const { return setting(&Settings::threads, threads_.load(std::memory_order_relaxed)); }

void Pool::set_threads(int threads) {
  require(threads >= 0, "set_threads: the count must not be negative. Received {}.", threads);
  asked_.store(threads, std::memory_order_relaxed);
  settle();
}

void Pool::limit_threads(int most) {
  require(most >= 0, "limit_threads: the count must not be negative. Received {}.", most);
  limit_.store(most, std::memory_order_relaxed);
  settle();
}

void Pool::settle() {
  const int asked = asked_.load(std::memory_order_relaxed), limit = limit_.load(std::memory_order_relaxed);
  int count = asked > 0 ? asked : default_thread_count();
  if (asked == 0 && limit > 0 && threads_of_environment() == 0) count = std::min(count, limit);
  threads_.store(count, std::memory_order_relaxed);
}

int Pool::started_workers() const {
  const Crew* crew = crew_.load(std::memory_order_acquire);
  if (crew == nullptr || crew->pid != ::getpid()) return 0;
  const std::lock_guard guard(crew->lock);
  return static_cast<int>(crew->workers.size());
}

Pool::Crew& Pool::crew() {
  const pid_t pid = ::getpid();
  Crew* found = crew_.load(std::memory_order_acquire);
  while (found == nullptr || found->pid != pid) {
    Crew* fresh = new Crew;
    if (crew_.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *found;
}

void Pool::run(std::int64_t tasks, const Body& body, const Progress* progress, int most) {
  if (tasks <= 0) return;
  const int workers = static_cast<int>(std::min<std::int64_t>(most > 0 ? most : threads(), tasks));
  if (workers <= 1 || inside_run) return run_inline(tasks, body, progress);

  Job job{body, tasks, workers - 1};
  ProgressGate gate(progress, tasks);
  bool cancelled = false;
  const auto ask = [&] {
    try {
      cancelled = cancelled || !gate.go_on(job.done.load(std::memory_order_relaxed));
    } catch (...) {
      job.keep_error();
    }
    if (cancelled) job.stop();
  };
  Crew& crew = this->crew();
  crew.publish(job);
  {
    const InsideRun inside;
    const Within within(gate_of_thread, &gate);
    while (!cancelled && job.take_one(0)) ask();
  }
  crew.withdraw(job, ask);
  if (job.error) std::rethrow_exception(job.error);
  if (cancelled) throw Cancelled();
  gate.finish();
}

}  // namespace mercer
