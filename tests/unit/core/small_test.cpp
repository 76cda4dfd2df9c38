// The small parts of core: aligned memory, environment, log, hash, libraries.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/devices/library.h"
#include "core/hash.h"
#include "core/system/aligned.h"
#include "core/system/env.h"
#include "core/system/log.h"
#include "mercer/explain.h"

#ifdef MERCER_SANITIZED
// A refused allocation must reach us as the C library reports it.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#endif

namespace mercer {
namespace {

template <class Function>
ErrorKind kind_of_error(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::invalid_argument;
}

TEST(Aligned, is_aligned_and_writable) {
  for (const std::int64_t bytes : {1, 63, 64, 1000, 3 << 20, 5 << 20}) {
    const AlignedBuffer buffer(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % AlignedBuffer::kAlignment, 0u);
    EXPECT_EQ(buffer.size(), bytes);
    buffer.as<char>()[bytes - 1] = 1;
  }
  EXPECT_EQ(AlignedBuffer(0).data(), nullptr);
}

TEST(Aligned, reserve_only_grows) {
  AlignedBuffer buffer(100);
  void* const before = buffer.data();
  buffer.reserve(50);
  EXPECT_EQ(buffer.data(), before);
  buffer.reserve(200);
  EXPECT_EQ(buffer.size(), 200);
}

/// Buffers that are alive at once, of sizes that are kept for the next call and of others, on several threads.
TEST(Aligned, buffers_that_are_alive_share_nothing) {
  const auto work = [] {
    std::mt19937 random(7);
    std::vector<AlignedBuffer> alive;
    std::vector<unsigned char> marks;
    const auto is_whole = [&](std::size_t b) {
      const auto* const bytes = alive[b].as<unsigned char>();
      return std::all_of(bytes, bytes + alive[b].size(), [&](unsigned char byte) { return byte == marks[b]; });
    };
    for (int step = 0; step < 2000; ++step) {
      if (alive.size() < 40 && random() % 2 == 0) {
        alive.emplace_back(1 + random() % (std::size_t{1} << (4 + random() % 14)));
        marks.push_back(static_cast<unsigned char>(step));
        std::memset(alive.back().data(), marks.back(), static_cast<std::size_t>(alive.back().size()));
      } else if (!alive.empty()) {
        const std::size_t b = random() % alive.size();
        ASSERT_TRUE(is_whole(b));
        std::swap(alive[b], alive.back());
        std::swap(marks[b], marks.back());
        alive.pop_back();
        marks.pop_back();
      }
    }
    for (std::size_t b = 0; b < alive.size(); ++b) ASSERT_TRUE(is_whole(b));
  };
  std::thread other(work);
  work();
  other.join();
}

/// A buffer that another thread gives back, and one that outlives the thread that made it.
TEST(Aligned, buffers_go_from_thread_to_thread) {
  AlignedBuffer buffer(100);
  std::thread([&] {
    buffer = AlignedBuffer(200);
    std::memset(buffer.data(), 1, 200);
  }).join();
  EXPECT_EQ(buffer.as<char>()[199], 1);
  std::thread([moved = std::move(buffer)] {}).join();
  AlignedBuffer again(100);
  std::memset(again.data(), 2, 100);
  EXPECT_EQ(again.as<char>()[99], 2);
}

TEST(Aligned, refusal_tells_the_bytes) {
  const std::int64_t huge = std::int64_t{1} << 60;
  EXPECT_THROW(AlignedBuffer{huge}, std::bad_alloc);
  try {
    AlignedBuffer buffer(huge);
  } catch (const std::bad_alloc& error) {
    EXPECT_NE(std::string(error.what()).find("1152921504606846976 bytes"), std::string::npos) << error.what();
  }
  EXPECT_EQ(kind_of_error([] { AlignedBuffer buffer(-1); }), ErrorKind::invalid_argument);
}

TEST(Aligned, products_are_checked) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(checked_product({}), 1);
  EXPECT_EQ(checked_product({3, 4, 5}), 60);
  EXPECT_EQ(checked_product({kLargest, 1}), kLargest);
  EXPECT_EQ(checked_product({kLargest, kLargest, 0}), 0);
  EXPECT_EQ(kind_of_error([] { checked_product({kLargest, 2}); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of_error([] { checked_product({std::int64_t{1} << 32, std::int64_t{1} << 31}); }),
            ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of_error([] { checked_product({-1, -1}); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of_error([] { aligned_array<double>(std::int64_t{1} << 61); }), ErrorKind::invalid_argument);
  EXPECT_EQ(aligned_array<double>(8).size(), 64);
}

TEST(Env, values_are_checked) {
  ::setenv("MERCER_CACHE_SIZE", "12", 1);
  EXPECT_EQ(env_integer("MERCER_CACHE_SIZE", 0, 100), 12);
  for (const char* bad : {"-1", "101", "1x", " 1", "99999999999999999999"}) {
    ::setenv("MERCER_CACHE_SIZE", bad, 1);
    EXPECT_EQ(kind_of_error([] { env_integer("MERCER_CACHE_SIZE", 0, 100); }), ErrorKind::invalid_argument) << bad;
  }
  ::setenv("MERCER_CACHE_SIZE", "", 1);
  EXPECT_FALSE(env_integer("MERCER_CACHE_SIZE", 0, 100));
  ::unsetenv("MERCER_CACHE_SIZE");
  EXPECT_FALSE(env_text("MERCER_CACHE_SIZE"));
}

TEST(Env, flags) {
  for (const char* yes : {"1", "on", "TRUE", "yes"}) {
    ::setenv("MERCER_NO_EXEC", yes, 1);
    EXPECT_TRUE(env_flag("MERCER_NO_EXEC"));
  }
  for (const char* no : {"0", "off", "", "no"}) {
    ::setenv("MERCER_NO_EXEC", no, 1);
    EXPECT_FALSE(env_flag("MERCER_NO_EXEC"));
  }
  ::setenv("MERCER_NO_EXEC", "perhaps", 1);
  EXPECT_EQ(kind_of_error([] { env_flag("MERCER_NO_EXEC"); }), ErrorKind::invalid_argument);
  ::unsetenv("MERCER_NO_EXEC");
}

TEST(Env, only_names_of_the_table) {
  EXPECT_THROW(env_text("HOME"), Error);
  for (const EnvRow& row : env_table()) {
    EXPECT_TRUE(std::string(row.name).starts_with("MERCER_"));
    EXPECT_NE(*row.doc, '\0');
  }
}

TEST(Log, levels_filter_and_equal_messages_come_once) {
  static int repeats = 0;  // --gtest_repeat stays in one process, and "once" is once a process
  const int repeat = ++repeats;
  testing::internal::CaptureStderr();
  set_log_level(LogLevel::warning);
  log(LogLevel::info, "hidden {}", 1);
  log(LogLevel::error, "shown {}", 2);
  for (int round = 0; round < 3; ++round) log_once(LogLevel::warning, "once {}", repeat);
  set_log_level(LogLevel::debug);
  log(LogLevel::debug, "debug");
  set_log_level(LogLevel::warning);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            fmt::format("mercer: error: shown 2\nmercer: warning: once {}\nmercer: debug: debug\n", repeat));
}

TEST(Hash, is_the_published_function) {
  EXPECT_EQ(hash64(""), 0x2d06800538d394c2u);  // XXH3 of nothing, from the specification
  EXPECT_EQ(hash128("").to_text(), "99aa06d3014798d86001c324468d497f");
  EXPECT_NE(hash64("a"), hash64("b"));
  EXPECT_NE(hash64("a", 1), hash64("a", 2));
}

// No comparison of two measurements: a virtual core may be taken away while its thread's clock goes on.
TEST(Clock, is_one_that_a_core_can_have) {
  const Clock clock = measure_clock();
  for (const double gigahertz : {clock.gigahertz, clock.by_rotations}) {
    EXPECT_GT(gigahertz, 0.01);
    EXPECT_LT(gigahertz, 10.0);  // more: the steps were not waited for, or not made
  }
}

TEST(Clock, agrees_where_both_chains_measure_one) {
  EXPECT_TRUE((Clock{3.7, 3.7}.agrees()));
  EXPECT_TRUE((Clock{3.62, 3.7}.agrees()));
  EXPECT_FALSE((Clock{3.3, 10.0}.agrees()));  // one chain was renamed away
  EXPECT_FALSE((Clock{2.2, 3.7}.agrees()));   // multiplications of five cycles
  EXPECT_FALSE(Clock().agrees());
}

TEST(Library, takes_the_first_that_loads) {
  const Library math({"libmercer_nothing.so.1", "libm.so.6"}, {"cos"});
  ASSERT_TRUE(math);
  EXPECT_EQ(math.name(), "libm.so.6");
  EXPECT_NE(math.path().find("libm"), std::string::npos);
  EXPECT_EQ(math.function<double(double)>("cos")(0.0), 1.0);
  EXPECT_EQ(math.find("no_such_symbol"), nullptr);
  EXPECT_EQ(kind_of_error([&] { math.get("no_such_symbol"); }), ErrorKind::unsupported);
}

TEST(Library, tells_why_it_failed) {
  const Library none({"libmercer_nothing.so.1", "libm.so.6"}, {"no_such_symbol"});
  EXPECT_FALSE(none);
  EXPECT_NE(none.why_not().find("libmercer_nothing.so.1: "), std::string::npos);
  EXPECT_NE(none.why_not().find("libm.so.6: has no symbol no_such_symbol"), std::string::npos);
  EXPECT_EQ(kind_of_error([&] { none.get("cos"); }), ErrorKind::unsupported);
  EXPECT_FALSE(Library().why_not().empty() && Library());
}

}  // namespace
}  // namespace mercer
