// The pool. A Crew is the set of worker threads of one process: a forked child finds another pid in it, leaves it alone
// (its threads are gone and its lock may be held for ever) and makes its own.
//
//   run:    publish the job → take tasks from its counter → withdraw it → wait for the workers still inside
//   worker: wait for a job with tasks and a free place → take tasks → leave
#include "core/parallel.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/settings.h"
#include "mercer/device.h"

namespace mercer {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kProgressPeriod = std::chrono::milliseconds(50);
// About 4 us: a wake-up through the kernel costs 5 to 50 us, and back-to-back runs come closer than that.
constexpr int kSpins = 100;

// True while this thread executes a body, of any pool.
thread_local bool inside_run = false;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Signals belong to the host's threads: those that are started while this lives block them all.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

struct InsideRun {
  bool before = std::exchange(inside_run, true);
  ~InsideRun() { inside_run = before; }
};

class ProgressGate {
 public:
  ProgressGate(const Pool::Progress* progress, std::int64_t total)
      : progress_(progress != nullptr && *progress ? progress : nullptr), total_(total) {
    if (progress_ != nullptr) next_ = Clock::now() + kProgressPeriod;
  }
  /// False when the caller wants to stop.
  bool go_on(std::int64_t done) {
    if (progress_ == nullptr || Clock::now() < next_) return true;
    const bool answer = (*progress_)(static_cast<double>(done), static_cast<double>(total_));
    next_ = Clock::now() + kProgressPeriod;
    asked_ = true;
    return answer;
  }
  void finish() {
    if (asked_) (*progress_)(static_cast<double>(total_), static_cast<double>(total_));
  }

 private:
  const Pool::Progress* progress_;
  std::int64_t total_;
  Clock::time_point next_{};
  bool asked_ = false;
};

void run_inline(std::int64_t tasks, const Pool::Body& body, const Pool::Progress* progress) {
  const InsideRun inside;
  ProgressGate gate(progress, tasks);
  for (std::int64_t task = 0; task < tasks; ++task) {
    if (task > 0 && !gate.go_on(task)) throw Cancelled();
    body(task, 0);
  }
  gate.finish();
}

}  // namespace

thread_local const Settings* WithSettings::current_ = nullptr;

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

  bool wants_help() const { return joined < places && next.load(std::memory_order_relaxed) < tasks; }

  void skip_rest() { next.store(tasks, std::memory_order_relaxed); }

  void keep_error() {
    if (!failed.exchange(true)) error = std::current_exception();
    skip_rest();
  }

  /// False when there was no task left.
  bool take_one(int worker) {
    const std::int64_t task = next.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks) return false;
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

  void withdraw(Job& job) {
    std::unique_lock guard(lock);
    jobs.erase(std::find(jobs.begin(), jobs.end(), &job));
    guard.unlock();
    for (int spin = 0; spin < kSpins && job.inside.load(std::memory_order_relaxed) != 0; ++spin) pause_briefly();
    guard.lock();
    worker_left.wait(guard, [&] { return job.inside.load(std::memory_order_acquire) == 0; });
  }
};

Pool::Pool(int threads) : threads_(threads > 0 ? threads : default_thread_count()) {}

Pool::~Pool() {
  Crew* crew = crew_.load();
  if (crew != nullptr && crew->pid == ::getpid()) delete crew;  // else: the parent's; see the top of the file
}

int Pool::threads() const { return setting(&Settings::threads, threads_.load(std::memory_order_relaxed)); }

void Pool::set_threads(int threads) {
  require(threads >= 0, "set_threads: the count must not be negative. Received {}.", threads);
  threads_.store(threads > 0 ? threads : default_thread_count(), std::memory_order_relaxed);
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
  Crew& crew = this->crew();
  crew.publish(job);
  {
    const InsideRun inside;
    while (job.take_one(0)) {
      try {
        cancelled = !gate.go_on(job.done.load(std::memory_order_relaxed));
      } catch (...) {
        job.keep_error();
      }
      if (cancelled) job.skip_rest();
      if (cancelled) break;
    }
  }
  crew.withdraw(job);
  if (job.error) std::rethrow_exception(job.error);
  if (cancelled) throw Cancelled();
  gate.finish();
}

}  // namespace mercer
