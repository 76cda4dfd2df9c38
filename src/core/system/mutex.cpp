#include "core/system/mutex.h"

#include <pthread.h>

#include <chrono>
#include <cstdint>
#include <thread>

namespace mercer {
namespace {

constexpr std::uint32_t kClosed = std::uint32_t{1} << 31;  // added to the number of threads inside
constexpr auto kPause = std::chrono::microseconds(20);
/// A fork goes on after that: better a child that may hang than a parent that does.
constexpr auto kMostWait = std::chrono::seconds(5);

constinit std::atomic<std::uint32_t> gate{0};
constinit thread_local std::uint32_t depth = 0;  // locks that this thread holds

std::uint32_t own_place() { return depth > 0 ? 1 : 0; }

std::mutex forking;  // one fork at a time

void close_gate() {
  forking.lock();
  gate.fetch_or(kClosed);
  const auto end = std::chrono::steady_clock::now() + kMostWait;
  while ((gate.load() & ~kClosed) > own_place() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kPause);
}

void open_gate_of_parent() {
  gate.fetch_and(~kClosed);
  forking.unlock();
}

void open_gate_of_child() {
  gate.store(own_place());
  forking.unlock();
}

[[maybe_unused]] const int registered = ::pthread_atfork(close_gate, open_gate_of_parent, open_gate_of_child);

}  // namespace

void enter_fork_gate() {
  if (depth++ > 0) return;
  while ((gate.fetch_add(1, std::memory_order_acquire) & kClosed) != 0) {
    gate.fetch_sub(1, std::memory_order_release);
    while ((gate.load(std::memory_order_relaxed) & kClosed) != 0) std::this_thread::sleep_for(kPause);
  }
}

void leave_fork_gate() noexcept {
  if (--depth == 0) gate.fetch_sub(1, std::memory_order_release);
}

}  // namespace mercer
