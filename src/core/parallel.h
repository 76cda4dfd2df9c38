// A small fork-safe thread pool. One object, no globals; the calling thread takes part in the work.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace mercer {

/// MERCER_THREADS, else the cpus that the affinity mask and the cgroup quota leave to this process.
int default_thread_count();

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
  /// Threads alive in this process, the caller's not counted.
  int started_workers() const;

  /// Calls body(task, worker) once for each task in 0..tasks-1, in any order, and returns when all are done.
  /// worker is in 0..threads()-1 (0 is the caller) and no two calls of one run share it at a time. A run inside a body
  /// is executed inline; runs from several threads share the workers. The first exception of a body is thrown here and
  /// the tasks not yet begun are skipped. At most `most` workers take part (0: threads()), which bounds `worker` for
  /// callers that made room for each of them before. progress is asked on the calling thread between its tasks, at
  /// most every 50 ms, and once more at the end if it was asked at all (that answer is ignored); false throws
  /// Cancelled.
  void run(std::int64_t tasks, const Body& body, const Progress* progress = nullptr, int most = 0);

 private:
  struct Crew;
  struct Job;
  Crew& crew();

  std::atomic<int> threads_;
  std::atomic<Crew*> crew_{nullptr};
};

}  // namespace mercer
