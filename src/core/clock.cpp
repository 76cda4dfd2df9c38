// The clock of a core. Timers tick at a rate of their own, so it is measured by work of a known number of cycles.
#include <algorithm>
#include <chrono>
#include <cstdint>

#include "mercer/explain.h"

namespace mercer {

double measure_clock() {
  // A dependent integer addition takes one cycle on every x86-64 core of this century.
  constexpr std::int64_t kAdditions = 40'000'000;
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    std::uint64_t value = 1;
    for (std::int64_t i = 0; i < kAdditions / 8; ++i)
      asm volatile(
          "add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n"
          "add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0"
          : "+r"(value));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(kAdditions) / seconds.count() * 1e-9);
  }
  return best;
}

}  // namespace mercer
