// Locks around fork: a child finds none held, and nothing half written.
#include "core/system/mutex.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "core/system/apart.h"
#include "core/system/parallel.h"
#include "core/testing.h"
#include "mercer/device.h"

namespace mercer {
namespace {

using namespace std::chrono_literals;
using testing_support::holds_in_child;

/// `inside` runs on another thread, which calls `reached` within it; then this one forks, and asks `holds` in the
/// child, where it has ten seconds.
template <class Inside, class Holds>
bool holds_after_fork(const Inside& inside, const Holds& holds) {
  std::atomic<bool> is_there{false};
  std::thread other([&] {
    inside([&] {
      is_there = true;
      std::this_thread::sleep_for(200ms);
    });
  });
  while (!is_there) std::this_thread::yield();
  const bool answer = holds_in_child([&] {
    ::alarm(10);
    return holds();
  });
  other.join();
  return answer;
}

TEST(Mutex, a_child_finds_what_it_guards_whole) {
  Mutex mutex;
  int first = 0, second = 0;
  EXPECT_TRUE(holds_after_fork(
      [&](const auto& reached) {
        const std::lock_guard lock(mutex);
        first = 1;
        reached();
        second = 1;
      },
      [&] {
        const std::lock_guard lock(mutex);
        return first == 1 && second == 1;
      }));
}

TEST(Mutex, locks_are_taken_under_others_while_fork_waits) {
  Mutex outer, inner;
  EXPECT_TRUE(holds_after_fork(
      [&](const auto& reached) {
        const std::lock_guard lock(outer);
        reached();
        const std::lock_guard more(inner);
      },
      [&] {
        const std::lock_guard lock(outer), more(inner);
        return true;
      }));
}

TEST(Mutex, a_thread_may_fork_with_locks_of_its_own) {
  Mutex mutex;
  const std::lock_guard lock(mutex);
  EXPECT_TRUE(holds_in_child([&] {
    ::alarm(10);
    mutex.unlock();
    mutex.lock();
    return true;
  }));
}

TEST(Once, a_child_finds_it_done) {
  Once once;
  int value = 0;
  EXPECT_TRUE(holds_after_fork(
      [&](const auto& reached) {
        once.call([&] {
          reached();
          value = 1;
        });
      },
      [&] {
        once.call([&] { value = 2; });
        return value == 1;
      }));
}

TEST(Once, what_throws_is_called_again) {
  Once once;
  int calls = 0;
  EXPECT_THROW(once.call([&] { throw std::runtime_error(std::to_string(++calls)); }), std::runtime_error);
  for (int i = 0; i < 2; ++i) once.call([&] { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(Lazy, a_child_finds_it_made) {
  static constinit Lazy<std::map<int, int>> lazy;
  EXPECT_TRUE(holds_after_fork(
      [&](const auto& reached) {
        lazy.get([&] {
          reached();
          return std::map<int, int>{{1, 2}};
        });
      },
      [&] { return lazy.get().at(1) == 2; }));
}

TEST(Apart, returns_what_was_done_and_what_was_thrown) {
  const CancelScope scope([] { return true; });
  std::thread::id where;
  run_apart([&] { where = std::this_thread::get_id(); });
  EXPECT_NE(where, std::this_thread::get_id());
  EXPECT_THROW(run_apart([] { throw std::runtime_error("mine"); }), std::runtime_error);
}

TEST(Apart, stays_where_nobody_cancels) {
  std::thread::id where;
  run_apart([&] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST(Apart, a_cancelled_call_returns_and_the_work_goes_on) {
  const auto done = std::make_shared<std::atomic<bool>>(false);
  {
    const CancelScope scope([] { return false; });
    EXPECT_THROW(run_apart([done] {
                   std::this_thread::sleep_for(400ms);
                   *done = true;
                 }),
                 Cancelled);
  }
  EXPECT_FALSE(*done);
  for (int i = 0; i < 1000 && !*done; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(*done);
}

}  // namespace
}  // namespace mercer
