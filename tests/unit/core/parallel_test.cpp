// The pool: every task once, exceptions, nesting, concurrency, cancelling, forking.
#include "core/system/parallel.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/settings.h"
#include "core/system/log.h"
#include "core/testing.h"
#include "mercer/device.h"
#include "mercer/error.h"

namespace mercer {
namespace {

using namespace std::chrono_literals;
using testing_support::holds_in_child;

std::vector<int> count_tasks(Pool& pool, int tasks) {
  std::vector<std::atomic<int>> counts(tasks);
  pool.run(tasks, [&](std::int64_t task, int) { ++counts[task]; });
  return {counts.begin(), counts.end()};
}

TEST(Pool, workers_follow_the_settings_of_the_caller) {
  Pool pool(4);
  const Settings settings{.threads = 3, .target = Target::interpreter};
  {
    const WithSettings with(&settings);
    EXPECT_EQ(pool.threads(), 3);
    std::atomic<int> followed{0}, most{0};
    pool.run(100, [&](std::int64_t, int worker) {
      followed += WithSettings::current() == &settings && pool.threads() == 3;
      for (int known = most; known < worker && !most.compare_exchange_weak(known, worker);) {
      }
    });
    EXPECT_EQ(followed, 100);
    EXPECT_LT(most, 3);
  }
  EXPECT_EQ(pool.threads(), 4);
  pool.run(100, [&](std::int64_t, int) { EXPECT_EQ(WithSettings::current(), nullptr); });
}

class PoolOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, PoolOf, testing::Values(1, 2, 3, 8));

TEST_P(PoolOf, runs_every_task_once) {
  Pool pool(GetParam());
  for (const int tasks : {0, 1, 2, 7, 1000}) {
    for (const int count : count_tasks(pool, tasks)) EXPECT_EQ(count, 1);
  }
}

TEST_P(PoolOf, workers_are_in_range_and_not_shared) {
  Pool pool(GetParam());
  std::vector<std::atomic<int>> inside(GetParam());
  std::atomic<bool> ok{true};
  pool.run(500, [&](std::int64_t, int worker) {
    if (worker < 0 || worker >= GetParam() || inside[worker].fetch_add(1) != 0) ok = false;
    std::this_thread::yield();
    --inside[worker];
  });
  EXPECT_TRUE(ok);
}

TEST_P(PoolOf, first_exception_reaches_the_caller_and_the_rest_is_skipped) {
  Pool pool(GetParam());
  std::atomic<int> ran{0};
  const auto body = [&](std::int64_t task, int) {
    ++ran;
    if (task == 5) throw std::runtime_error("task 5");
    std::this_thread::sleep_for(100us);
  };
  try {
    pool.run(100000, body);
    FAIL() << "no exception";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "task 5");
  }
  EXPECT_LT(ran, 10000);
  for (const int count : count_tasks(pool, 50)) EXPECT_EQ(count, 1);
}

TEST_P(PoolOf, nested_run_is_inline_on_the_same_thread) {
  Pool pool(GetParam()), other(4);
  std::atomic<int> inner{0}, foreign{0};
  pool.run(8, [&](std::int64_t, int) {
    const auto self = std::this_thread::get_id();
    for (Pool* p : {&pool, &other}) {
      p->run(5, [&](std::int64_t, int worker) {
        ++inner;
        if (std::this_thread::get_id() != self || worker != 0) ++foreign;
      });
    }
  });
  EXPECT_EQ(inner, 80);
  EXPECT_EQ(foreign, 0);
  EXPECT_EQ(other.started_workers(), 0);
}

TEST_P(PoolOf, exception_of_a_nested_run_passes_through) {
  Pool pool(GetParam());
  EXPECT_THROW(pool.run(4, [&](std::int64_t, int) { pool.run(2, [](std::int64_t, int) { throw 7; }); }), int);
}

TEST_P(PoolOf, progress_sees_growing_counts_on_the_calling_thread) {
  Pool pool(GetParam());
  std::vector<double> seen;
  const auto self = std::this_thread::get_id();
  const Pool::Progress progress = [&](double done, double total) {
    EXPECT_EQ(std::this_thread::get_id(), self);
    EXPECT_EQ(total, 100.0);
    seen.push_back(done);
    return true;
  };
  const auto start = std::chrono::steady_clock::now();
  pool.run(100, [](std::int64_t, int) { std::this_thread::sleep_for(4ms); }, &progress);
  const double periods = (std::chrono::steady_clock::now() - start) / 1.0ms / 50.0;
  if (GetParam() == 1) {
    EXPECT_GE(seen.size(), 3u);
  }
  EXPECT_LE(static_cast<double>(seen.size()), periods + 2);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  if (!seen.empty()) {
    EXPECT_EQ(seen.back(), 100.0);
  }
}

TEST_P(PoolOf, progress_cancels) {
  Pool pool(GetParam());
  std::atomic<int> ran{0};
  const Pool::Progress stop = [](double, double) { return false; };
  const auto body = [&](std::int64_t, int) {
    ++ran;
    std::this_thread::sleep_for(2ms);
  };
  EXPECT_THROW(pool.run(100000, body, &stop), Cancelled);
  EXPECT_LT(ran, 5000);
  for (const int count : count_tasks(pool, 50)) EXPECT_EQ(count, 1);
}

/// A callback that has taken an interrupt says it once.
TEST_P(PoolOf, progress_cancels_when_all_is_done) {
  Pool pool(GetParam());
  const Pool::Progress stop = [](double done, double total) { return done < total; };
  const auto body = [](std::int64_t, int) { std::this_thread::sleep_for(30ms); };
  EXPECT_THROW(pool.run(4 * GetParam(), body, &stop), Cancelled);
  for (const int count : count_tasks(pool, 50)) EXPECT_EQ(count, 1);
}

TEST_P(PoolOf, exception_of_progress_reaches_the_caller) {
  Pool pool(GetParam());
  const Pool::Progress bad = [](double, double) -> bool { throw std::logic_error("progress"); };
  EXPECT_THROW(pool.run(100000, [](std::int64_t, int) { std::this_thread::sleep_for(2ms); }, &bad), std::logic_error);
}

TEST(Pool, one_thread_starts_none) {
  Pool pool(1);
  count_tasks(pool, 100);
  EXPECT_EQ(pool.started_workers(), 0);
}

TEST(Pool, workers_are_started_lazily_and_no_more_than_tasks) {
  Pool pool(8);
  EXPECT_EQ(pool.started_workers(), 0);
  count_tasks(pool, 3);
  EXPECT_EQ(pool.started_workers(), 2);
  pool.set_threads(2);
  count_tasks(pool, 100);
  EXPECT_EQ(pool.threads(), 2);
  EXPECT_EQ(pool.started_workers(), 2);
  EXPECT_THROW(pool.set_threads(-1), Error);
}

TEST(Pool, uses_several_threads) {
  Pool pool(3);
  std::atomic<int> waiting{0};
  // Each of three tasks waits until all three run: this ends only with three threads.
  pool.run(3, [&](std::int64_t, int) {
    ++waiting;
    while (waiting < 3) std::this_thread::yield();
  });
  EXPECT_EQ(waiting, 3);
}

TEST(Pool, runs_from_many_threads_at_once) {
  Pool pool(3);
  std::atomic<std::int64_t> total{0};
  std::vector<std::thread> users;
  for (int user = 0; user < 6; ++user) {
    users.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        std::atomic<std::int64_t> sum{0};
        pool.run(20, [&](std::int64_t task, int) { sum += task; });
        total += sum;
      }
    });
  }
  for (std::thread& user : users) user.join();
  EXPECT_EQ(total, 6 * 200 * 190);
}

TEST(Pool, many_short_runs) {
  Pool pool(2);
  std::int64_t sum = 0;
  for (int round = 0; round < 5000; ++round) {
    std::atomic<std::int64_t> part{0};
    pool.run(4, [&](std::int64_t task, int) { part += task; });
    sum += part;
  }
  EXPECT_EQ(sum, 5000 * 6);
}

bool works_with_workers(Pool& pool) {
  std::atomic<int> waiting{0};
  pool.run(2, [&](std::int64_t, int) {
    ++waiting;
    while (waiting < 2) std::this_thread::yield();
  });
  return waiting == 2 && pool.started_workers() >= 1;
}

TEST(Pool, a_forked_child_starts_its_own_workers) {
  Pool pool(2);
  ASSERT_TRUE(works_with_workers(pool));
  EXPECT_TRUE(holds_in_child([&] {
    if (pool.started_workers() != 0) return false;
    return works_with_workers(pool) && holds_in_child([&] { return works_with_workers(pool); });
  }));
  EXPECT_TRUE(works_with_workers(pool));
}

TEST(Pool, fork_while_another_thread_is_running) {
  Pool pool(3);
  std::atomic<bool> stop{false};
  std::thread user([&] {
    while (!stop) pool.run(50, [](std::int64_t, int) {});
  });
  for (int round = 0; round < 20; ++round) EXPECT_TRUE(holds_in_child([&] { return works_with_workers(pool); }));
  stop = true;
  user.join();
}

TEST(Pool, a_forked_child_may_destroy_the_pool) {
  auto* pool = new Pool(2);
  ASSERT_TRUE(works_with_workers(*pool));
  EXPECT_TRUE(holds_in_child([&] {
    delete pool;
    return true;
  }));
  delete pool;
}

TEST(Pool, works_alone_where_no_thread_can_be_started) {
  set_log_level(LogLevel::off);
  Pool pool(4);
  {
    const testing_support::NoThreads none;
    EXPECT_EQ(count_tasks(pool, 100), std::vector<int>(100, 1));
    EXPECT_EQ(pool.started_workers(), 0);
  }
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_FALSE(sigismember(&mask, SIGINT));
  EXPECT_TRUE(works_with_workers(pool));
  set_log_level(LogLevel::warning);
}

/// Bodies that take long are ended too, on whichever thread, as is the wait for them.
TEST(Pool, bodies_are_cancelled_where_they_ask) {
  for (const int threads : {1, 4})
    for (const bool has_progress : {true, false}) {
      Pool pool(threads);
      const auto begin = std::chrono::steady_clock::now();
      const Pool::Progress stop = [](double, double) { return false; };
      const CancelScope scope([] { return false; });
      const auto body = [](std::int64_t task, int worker) {
        if (worker == 0 && task == 0) std::this_thread::sleep_for(60ms);
        for (int step = 0; step < 2000; ++step) {
          stop_if_cancelled();
          std::this_thread::sleep_for(10ms);
        }
      };
      EXPECT_THROW(pool.run(4, body, has_progress ? &stop : nullptr), Cancelled);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    }
  EXPECT_FALSE(may_be_cancelled());
  stop_if_cancelled();
}

TEST(Pool, an_error_ends_the_other_bodies) {
  Pool pool(4);
  const auto body = [](std::int64_t task, int) {
    if (task == 3) throw std::runtime_error("mine");
    for (int step = 0; step < 2000; ++step) {
      stop_if_cancelled();
      std::this_thread::sleep_for(10ms);
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(pool.run(4, body), std::runtime_error);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

TEST(Pool, workers_take_no_signals) {
  Pool pool(2);
  std::atomic<int> waiting{0}, unblocked_workers{0};
  pool.run(2, [&](std::int64_t, int worker) {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    if (worker > 0 && !sigismember(&mask, SIGINT)) ++unblocked_workers;
    ++waiting;
    while (waiting < 2) std::this_thread::yield();
  });
  EXPECT_EQ(unblocked_workers, 0);
}

TEST(ThreadCount, environment_wins) {
  ::setenv("MERCER_THREADS", "3", 1);
  EXPECT_EQ(default_thread_count(), 3);
  EXPECT_EQ(Pool().threads(), 3);
  ::setenv("MERCER_THREADS", "many", 1);
  EXPECT_THROW(default_thread_count(), Error);
  ::unsetenv("MERCER_THREADS");
  EXPECT_GE(default_thread_count(), 1);
}

TEST(ThreadCount, openmp_and_limits_hold_where_nobody_asks) {
  EXPECT_TRUE(holds_in_child([] {
    ::unsetenv("MERCER_THREADS");
    ::setenv("OMP_NUM_THREADS", "1,4", 1);
    if (default_thread_count() != 1 || Pool().threads() != 1) return false;
    for (const char* nothing : {"", "many", "-3", "0"}) {
      ::setenv("OMP_NUM_THREADS", nothing, 1);
      if (default_thread_count() != usable_cpus()) return false;
    }
    Pool pool;
    pool.limit_threads(1);
    if (pool.threads() != 1) return false;
    pool.set_threads(3);
    if (pool.threads() != 3 || pool.asked_threads() != 3) return false;
    pool.set_threads(0);
    if (pool.threads() != 1 || pool.asked_threads() != 0) return false;
    ::setenv("MERCER_THREADS", "5", 1);
    ::setenv("OMP_NUM_THREADS", "2", 1);
    pool.set_threads(0);
    return pool.threads() == 5;
  }));
}

#if defined(__x86_64__)
TEST(Pool, subnormal_numbers_count_on_threads_that_flush_them) {
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040);
  volatile double least = 0x1p-1022;
  Pool pool(3);  // whose workers start with the mode of this thread
  std::vector<double> halves(1000);
  for (const int threads : {3, 1}) {
    pool.set_threads(threads);
    pool.run(1000, [&](std::int64_t task, int) { halves[static_cast<std::size_t>(task)] = least * 0.5; });
    for (const double half : halves) ASSERT_EQ(std::signbit(half) ? 0 : std::bit_cast<std::uint64_t>(half), 1ull << 51);
  }
  EXPECT_EQ(__builtin_ia32_stmxcsr() & 0x8040, 0x8040u);
  __builtin_ia32_ldmxcsr(before);
}
#endif

TEST(ThreadCount, follows_the_affinity_mask) {
  EXPECT_TRUE(holds_in_child([] {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    }
    sched_setaffinity(0, sizeof one, &one);
    return default_thread_count() == 1;
  }));
}

}  // namespace
}  // namespace mercer
