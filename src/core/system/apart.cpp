#include "core/system/apart.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "core/system/mutex.h"
#include "core/system/parallel.h"

namespace mercer {
namespace {

/// Nobody waits for its lock but the two threads of a call.
struct Work {
  std::function<void()> run;
  std::mutex mutex;
  std::condition_variable ended;
  bool is_done = false;
  std::exception_ptr error = {};
};

/// The threads at work in this process: a child that was forked has none.
struct AtWork {
  pid_t pid;
  std::atomic<int> count{0};
  std::atomic<bool> ends{false};
  std::thread::id ending_thread{};
};

AtWork& at_work() {
  static constinit std::atomic<AtWork*> current{nullptr};
  AtWork* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->pid != ::getpid()) {
    auto* const fresh = new AtWork{::getpid()};
    if (current.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *found;
}

void end_without_them(int status, void*) {
  AtWork& all = at_work();
  all.ending_thread = std::this_thread::get_id();
  all.ends = true;
  if (all.count <= 0) return;
  std::fflush(nullptr);
  ::_exit(status);
}

void work_to_the_end(const std::shared_ptr<Work>& work) {
  try {
    const ForeignWork foreign;
    work->run();
  } catch (...) {
    work->error = std::current_exception();
  }
  work->run = nullptr;  // what it owns goes before anybody is told
  const std::lock_guard lock(work->mutex);
  work->is_done = true;
  work->ended.notify_all();
}

bool start(const std::shared_ptr<Work>& work) {
  try {
    const NoSignals none;
    std::thread([work] { work_to_the_end(work); }).detach();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace

ForeignWork::ForeignWork() {
  static constinit Once once;
  once.call([] { ::on_exit(end_without_them, nullptr); });
  AtWork& all = at_work();
  ++all.count;
  while (all.ends && all.ending_thread != std::this_thread::get_id()) ::pause();
}

ForeignWork::~ForeignWork() { --at_work().count; }

void run_apart(std::function<void()> run) {
  constexpr auto kPeriod = std::chrono::milliseconds(50);
  if (!may_be_cancelled()) return run();
  const auto work = std::make_shared<Work>();
  work->run = std::move(run);
  if (!start(work)) return work->run();
  std::unique_lock lock(work->mutex);
  while (!work->ended.wait_for(lock, kPeriod, [&] { return work->is_done; })) {
    lock.unlock();
    stop_if_cancelled();
    lock.lock();
  }
  if (work->error) std::rethrow_exception(work->error);
}

}  // namespace mercer
