// The clock of a core. Timers tick at a rate of their own, so it is measured by work of a known number of cycles.
#include <time.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "mercer/explain.h"

namespace mercer {
namespace {

/// Bursts take about a millisecond, so that most are not interrupted.
constexpr std::int64_t kCycles = 4'000'000;
constexpr int kBursts = 25, kUnrolled = 8;

/// CPU time: that other programs run meanwhile does not make a core slower.
double seconds_of_this_thread() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Neither chain is of additions of constants or of moves, which renaming removes from Golden Cove on.
struct Multiplications {
  static constexpr std::int64_t kLatency = 3;
  static std::uint64_t step(std::uint64_t value, std::uint64_t factor) { return value * factor; }
};
struct Rotations {
  static constexpr std::int64_t kLatency = 1;
  static std::uint64_t step(std::uint64_t value, std::uint64_t) { return std::rotr(value, 7); }
};

template <class Chain>
double gigahertz_of_burst() {
  constexpr std::int64_t kTurns = kCycles / (Chain::kLatency * kUnrolled);
  const double start = seconds_of_this_thread();
  std::uint64_t value = 0x9e3779b97f4a7c15;
  std::uint64_t factor = value;
  asm volatile("" : "+r"(factor));  // which the compiler does not know
  for (std::int64_t i = 0; i < kTurns; ++i) {
#pragma GCC unroll 8
    for (int step = 0; step < kUnrolled; ++step) {
      value = Chain::step(value, factor);
      asm volatile("" : "+r"(value));  // so that each step waits for the one before
    }
  }
  return static_cast<double>(kTurns * kUnrolled * Chain::kLatency) / (seconds_of_this_thread() - start) * 1e-9;
}

/// Not the highest: a virtual machine's time has been seen to stand still for a burst.
double median(std::array<double, kBursts> clocks) {
  std::nth_element(clocks.begin(), clocks.begin() + kBursts / 2, clocks.end());
  return clocks[kBursts / 2];
}

}  // namespace

bool Clock::agrees() const {
  constexpr double kTolerance = 0.05;
  return gigahertz > 0 && std::fabs(gigahertz - by_rotations) <= kTolerance * by_rotations;
}

Clock measure_clock() {
  std::array<double, kBursts> by_multiplications{}, by_rotations{};
  for (std::size_t burst = 0; burst < kBursts; ++burst) {  // in turns, so that a drifting clock meets both alike
    by_multiplications[burst] = gigahertz_of_burst<Multiplications>();
    by_rotations[burst] = gigahertz_of_burst<Rotations>();
  }
  return {median(by_multiplications), median(by_rotations)};
}

}  // namespace mercer
