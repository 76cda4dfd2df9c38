// A small fork-safe thread pool. One object, no globals; the calling thread takes part in the work.
#pragma once

#include <signal.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace mercer {

/// MERCER_THREADS, else the cpus that the affinity mask and the cgroup quota leave to this process.
int usable_cpus();
/// usable_cpus(), and no more than OMP_NUM_THREADS where MERCER_THREADS says nothing.
int default_thread_count();
/// MERCER_THREADS; 0 where it says nothing.
int threads_of_environment();

/// Ends the call that this thread works for, by Cancelled, where its caller wants that: long work asks now and then,
/// between the steps of a body of a pool too. Costs a few nanoseconds, and the clock on the caller's own thread.
void stop_if_cancelled();
/// Whether anybody might.
bool may_be_cancelled();

/// While it lives, work of this thread is asked for by `go_on`, at most every 50 ms: runs of pools that have no
/// progress of their own, and `stop_if_cancelled`.
class CancelScope {
 public:
  explicit CancelScope(std::function<bool()> go_on);
  ~CancelScope();
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;

 private:
  struct State;
  // In place: memory of the heap for it takes a thirtieth of a call on tiny arrays.
  alignas(std::max_align_t) std::byte memory_[192];
  State& state();
};

/// Signals belong to the host's threads: those that are started while this lives block them all.
class NoSignals {
 public:
  NoSignals();
  ~NoSignals();
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

class Pool {
 public:
  using Body = std::function<void(std::int64_t task, int worker)>;
  /// done and total count tasks; false cancels.
  using Progress = std::function<bool(double done, double total)>;

  /// threads = 0 takes the default count. No thread is started before the first run that needs one.
  explicit Pool(int threads = 0);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// What this thread's Settings say, else what set_threads said.
  int threads() const;
  /// Holds for runs that start afterwards; 0 takes the default count.
  void set_threads(int threads);
  /// What was asked for by the constructor or by set_threads; 0: the default.
  int asked_threads() const { return asked_.load(std::memory_order_relaxed); }
  /// Most threads where neither set_threads nor MERCER_THREADS asks for a number; 0: no limit.
  void limit_threads(int most);
  /// Threads alive in this process, the caller's not counted.
  int started_workers() const;

  /// Calls body(task, worker) once for each task in 0..tasks-1, in any order, and returns when all are done.
  /// worker is in 0..threads()-1 (0 is the caller) and no two calls of one run share it at a time. A run inside a body
  /// is executed inline; runs from several threads share the workers. The first exception of a body is thrown here and
  /// the tasks not yet begun are skipped. At most `most` workers take part (0: threads()), which bounds `worker` for
  /// callers that made room for each of them before. progress is asked on the calling thread between its tasks, at
  /// most every 50 ms, and once more at the end if it was asked at all (that answer is ignored); false throws
  /// Cancelled. Without one the CancelScope of the calling thread is asked, if there is one.
  void run(std::int64_t tasks, const Body& body, const Progress* progress = nullptr, int most = 0);

 private:
  struct Crew;
  struct Job;
  Crew& crew();
  void settle();

  std::atomic<int> threads_{1}, asked_{0}, limit_{0};
  std::atomic<Crew*> crew_{nullptr};
};

}  // namespace mercer
