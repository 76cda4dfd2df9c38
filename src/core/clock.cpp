// The clock of a core. Timers tick at a rate of their own, so it is measured by work of a known number of cycles.
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "mercer/explain.h"

namespace mercer {
namespace {

/// CPU time: that other programs run meanwhile does not make a core slower.
double seconds_of_this_thread() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double measure_clock() {
  // A dependent integer addition takes one cycle on every core of this century. A burst takes about a millisecond, so
  // that most are not interrupted.
  constexpr std::int64_t kAdditions = 4'000'000;
  constexpr int kBursts = 50, kUnrolled = 8;
  std::array<double, kBursts> clocks{};
  for (double& clock : clocks) {
    const double start = seconds_of_this_thread();
    std::uint64_t value = 1;
    for (std::int64_t i = 0; i < kAdditions / kUnrolled; ++i) {
#pragma GCC unroll 8
      for (int step = 0; step < kUnrolled; ++step) {
        ++value;
        asm volatile("" : "+r"(value));  // so that each addition waits for the one before
      }
    }
    clock = static_cast<double>(kAdditions) / (seconds_of_this_thread() - start) * 1e-9;
  }
  // Not the highest: a virtual machine's time has been seen to stand still for a burst.
  std::nth_element(clocks.begin(), clocks.begin() + kBursts / 2, clocks.end());
  return clocks[kBursts / 2];
}

}  // namespace mercer
