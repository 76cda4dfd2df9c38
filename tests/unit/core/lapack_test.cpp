// LAPACK: found, called in either width of integers, and its number of threads, which calls share.
#include "core/devices/lapack.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "core/system/parallel.h"
#include "core/testing.h"
#include "device/lapack.h"
#include "mercer/device.h"

namespace mercer {
namespace {

using testing_support::error_of;
using testing_support::holds_in_child;

/// The first of all, since what was found is kept.
TEST(Lapack, a_wrong_name_is_told_and_nothing_else_is_tried) {
  EXPECT_TRUE(holds_in_child([] {
    ::setenv("MERCER_LAPACK", "libnosuchlapack.so", 1);
    add_lapack_file("/nowhere/libopenblas.so");  // looks again, were it not found before
    if (lapack() != nullptr) return true;        // by a test before this one
    const std::string text = error_of([] { need_lapack("cholesky"); }).what();
    return text.find("cholesky: needs LAPACK") == 0 && text.find("MERCER_LAPACK names no LAPACK") < text.size() &&
           text.find("nowhere") == std::string::npos && describe_lapack().find("pip install") < 400;
  }));
}

TEST(Lapack, says_what_it_is) {
  MERCER_NEEDS_LAPACK();
  EXPECT_NE(describe_lapack().find(lapack()->file()), std::string::npos) << describe_lapack();
  EXPECT_GE(lapack()->largest_size(), 2147483647);
  EXPECT_GE(lapack()->largest_syevd(), 32766);
}

template <class T>
void factors_and_solves() {
  const Lapack& lapack = need_lapack("test");
  // [4 2; 2 5] = L L^T, L = [2 0; 1 2].
  std::vector<T> a = {4, 2, -7, 5};
  ASSERT_EQ(lapack.potrf<T>(true, 2, a.data(), 2), 0);
  EXPECT_EQ(a, (std::vector<T>{2, 1, -7, 2}));
  std::vector<T> b = {2, 5, 4, 6};  // two columns
  lapack.trsm<T>(false, true, false, false, 2, 2, a.data(), 2, b.data(), 2);
  EXPECT_EQ(b, (std::vector<T>{1, 2, 2, 2}));
  std::vector<T> v = {5, 0, 2};  // from the back, every second element
  lapack.trsv<T>(true, false, false, 2, a.data(), 2, v.data() + 2, -2);
  EXPECT_EQ(v, (std::vector<T>{2, 0, 1}));
  std::vector<T> indefinite = {1, 2, 0, 1};
  EXPECT_EQ(lapack.potrf<T>(true, 2, indefinite.data(), 2), 2);
}

template <class T>
void pivots_count_from_zero() {
  std::vector<T> a = {0, 0, 2, 1, 0, 1, 0, 3, 0};  // columns
  std::vector<std::int64_t> pivots(3, -1);
  ASSERT_EQ(need_lapack("test").getrf<T>(3, 3, a.data(), 3, pivots.data()), 0);
  EXPECT_EQ(pivots, (std::vector<std::int64_t>{2, 2, 2}));
  std::vector<T> singular = {0, 0, 1, 1};
  EXPECT_EQ(need_lapack("test").getrf<T>(2, 2, singular.data(), 2, pivots.data()), 1);
}

template <class T>
void eigenvalues_ascend() {
  const Lapack& lapack = need_lapack("test");
  for (const bool range : {false, true}) {
    std::vector<T> a = {2, 1, 1, 2}, w(2), v(2);  // 1 and 3
    const auto size = range ? lapack.syevr_scratch<T>(true, 2) : lapack.syevd_scratch<T>(true, 2);
    std::vector<T> elements(static_cast<std::size_t>(size.elements));
    std::vector<std::int64_t> integers(static_cast<std::size_t>(size.integers));
    const auto info =
        range ? lapack.syevr<T>(true, true, 2, a.data(), 2, 1, 1, w.data(), v.data(), 2, elements.data(),
                                integers.data(), size)
              : lapack.syevd<T>(true, true, 2, a.data(), 2, w.data(), elements.data(), integers.data(), size);
    ASSERT_EQ(info, 0);
    EXPECT_NEAR(w[range ? 0 : 1], 3, 1e-6);
    if (!range) EXPECT_NEAR(w[0], 1, 1e-6);
    const std::vector<T>& vectors = range ? v : a;
    EXPECT_NEAR(std::abs(vectors[range ? 0 : 2]), std::sqrt(0.5), 1e-6);
  }
}

TEST(Lapack, float32) {
  MERCER_NEEDS_LAPACK();
  factors_and_solves<float>();
  pivots_count_from_zero<float>();
  eigenvalues_ascend<float>();
}

TEST(Lapack, float64) {
  MERCER_NEEDS_LAPACK();
  factors_and_solves<double>();
  pivots_count_from_zero<double>();
  eigenvalues_ascend<double>();
}

TEST(LapackThreads, calls_of_one_number_share_it_and_others_wait) {
  MERCER_NEEDS_LAPACK();
  std::atomic<bool> entered{false};
  std::thread other;
  {
    const LapackThreads first(*lapack(), 1);
    const LapackThreads second(*lapack(), 1);
    other = std::thread([&] {
      const LapackThreads third(*lapack(), 2);
      entered = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(entered);
  }
  other.join();
  EXPECT_TRUE(entered);
}

TEST(LapackThreads, forked_children_have_their_own) {
  MERCER_NEEDS_LAPACK();
  const LapackThreads held(*lapack(), 1);
  EXPECT_TRUE(holds_in_child([] {
    const LapackThreads own(*lapack(), 2);
    std::vector<double> a(300 * 300, 0.5);
    for (int i = 0; i < 300; ++i) a[static_cast<std::size_t>(i) * 301] = 300;
    return lapack()->potrf<double>(true, 300, a.data(), 300) == 0;
  }));
}

/// What short calls make of long ones differs by rounding: of sums of n products, n + 1 roundings of what they add.
template <class T>
void parts_are_the_whole() {
  const Lapack& whole = need_lapack("test");
  const Lapack parts = whole.in_calls_of(1e6);  // cut down to the thinnest
  constexpr std::int64_t n = 420, k = 300, stride = n + 3;
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const auto drawn = [&] {
    std::vector<T> values(static_cast<std::size_t>(stride * n));
    for (T& value : values) value = static_cast<T>(uniform(random));
    return values;
  };
  const auto expect_near = [&](const std::vector<T>& a, const std::vector<T>& b, double size, const std::string& what) {
    double gap = 0;
    for (std::size_t i = 0; i < a.size(); ++i) gap = std::max(gap, std::abs(double(a[i]) - double(b[i])));
    EXPECT_LE(gap, 2 * double(n + 1) * double(std::numeric_limits<T>::epsilon()) * size) << what;
  };
  const std::vector<T> a = drawn(), b = drawn(), c = drawn();
  std::vector<T> dominant = a;  // of n and more on its diagonal: solutions and factors are of about the size of a
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j <= i; ++j) dominant[i + j * stride] = dominant[j + i * stride] = a[i + j * stride];
  for (std::int64_t i = 0; i < n; ++i) dominant[i * (stride + 1)] = 2 * n;
  for (const bool first : {false, true})
    for (const bool second : {false, true}) {
      std::vector<T> one = c, two = c;
      const auto multiply = [&](const Lapack& lapack, std::vector<T>& to) {
        lapack.gemm<T>(first, second, n, n - 40, k, T(2), a.data(), stride, b.data(), stride, T(0.5), to.data(),
                       stride);
      };
      multiply(whole, one);
      multiply(parts, two);
      expect_near(one, two, 2 * k, fmt::format("gemm {} {}", first, second));
      one = two = c;
      whole.syrk<T>(first, second, n, k, T(-1), a.data(), stride, T(1), one.data(), stride);
      parts.syrk<T>(first, second, n, k, T(-1), a.data(), stride, T(1), two.data(), stride);
      expect_near(one, two, k, fmt::format("syrk {} {}", first, second));
      for (const bool right : {false, true})
        for (const std::int64_t columns : {40, 300}) {
          one = two = c;
          const auto solve = [&](const Lapack& lapack, std::vector<T>& to) {
            lapack.trsm<T>(right, first, second, false, right ? columns : n, right ? n : columns, dominant.data(),
                           stride, to.data(), stride);
          };
          solve(whole, one);
          solve(parts, two);
          expect_near(one, two, 1, fmt::format("trsm {} {} {} {}", first, second, right, columns));
        }
    }
  for (const bool lower : {true, false}) {
    std::vector<T> one = dominant, two = dominant;
    ASSERT_EQ(whole.potrf<T>(lower, n, one.data(), stride), 0);
    ASSERT_EQ(parts.potrf<T>(lower, n, two.data(), stride), 0);
    expect_near(one, two, std::sqrt(2.0 * n), fmt::format("potrf {}", lower));
    for (const std::int64_t bad : {5, 300, 419}) {
      std::vector<T> indefinite = dominant;
      indefinite[bad * (stride + 1)] = -1;
      EXPECT_EQ(parts.potrf<T>(lower, n, indefinite.data(), stride), bad + 1);
    }
  }
  std::vector<T> one = a, two = a;
  for (std::vector<T>* each : {&one, &two})
    for (std::int64_t i = 0; i < n; ++i) (*each)[(i * 7919 % n) + i * stride] = 2 * n;  // pivots of every row
  std::vector<std::int64_t> pivots(n), others(n);
  ASSERT_EQ(whole.getrf<T>(n, n, one.data(), stride, pivots.data()), 0);
  ASSERT_EQ(parts.getrf<T>(n, n, two.data(), stride, others.data()), 0);
  EXPECT_EQ(pivots, others);
  expect_near(one, two, 2 * n, "getrf");
  for (const std::int64_t bad : {5, 300, 419}) {
    std::vector<T> singular = dominant;
    for (std::int64_t i = 0; i < n; ++i) singular[i + bad * stride] = 0;
    EXPECT_EQ(parts.getrf<T>(n, n, singular.data(), stride, pivots.data()), bad + 1);
  }
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{n / 2, n}, {n, n / 2}}) {
    std::vector<T> here = a, there = a;
    ASSERT_EQ(whole.getrf<T>(rows, cols, here.data(), stride, pivots.data()), 0);
    ASSERT_EQ(parts.getrf<T>(rows, cols, there.data(), stride, others.data()), 0);
    EXPECT_TRUE(std::equal(pivots.begin(), pivots.begin() + n / 2, others.begin()));
    expect_near(here, there, 2 * n, "getrf of another shape");
  }
}

TEST(Lapack, long_calls_are_made_of_short_ones) {
  MERCER_NEEDS_LAPACK();
  parts_are_the_whole<float>();
  parts_are_the_whole<double>();
}

TEST(Lapack, long_calls_are_cancelled_between_the_short_ones) {
  MERCER_NEEDS_LAPACK();
  const Lapack parts = lapack()->in_calls_of(1e5);
  constexpr std::int64_t n = 700;
  std::vector<double> a(n * n, 0), c(n * n);
  for (std::int64_t i = 0; i < n; ++i) a[i * (n + 1)] = 1;
  std::vector<std::int64_t> pivots(n);
  const CancelScope scope([] { return false; });
  std::this_thread::sleep_for(std::chrono::milliseconds(60));  // the first question is due
  EXPECT_THROW(parts.gemm<double>(false, false, n, n, n, 1, a.data(), n, a.data(), n, 0, c.data(), n), Cancelled);
  EXPECT_THROW(parts.potrf<double>(true, n, a.data(), n), Cancelled);
  EXPECT_THROW(parts.getrf<double>(n, n, a.data(), n, pivots.data()), Cancelled);
}

}  // namespace
}  // namespace mercer
