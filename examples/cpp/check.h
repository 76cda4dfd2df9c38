// What the examples share: data of one sequence, and the answer to "is it right?".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

/// `count` values of the normal distribution, the same ones for the same seed.
template <class T = float>
std::vector<T> normal_values(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<T> normal;
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& value : values) value = normal(generator);
  return values;
}

/// The largest |found - expected| / max(1, |expected|) so far. NaN, once there, stays.
class Worst {
 public:
  void compare(double found, double expected) {
    const double error = std::abs(found - expected) / std::max(1.0, std::abs(expected));
    if (!(error <= error_)) error_ = error;
  }
  /// The exit status of a program: 0 where every value lies within the bound.
  int report(const char* what, double bound) const {
    const bool right = error_ <= bound;
    std::printf("%s: largest error %.1e, allowed %.0e: %s\n", what, error_, bound, right ? "right" : "WRONG");
    return right ? 0 : 1;
  }

 private:
  double error_ = 0;
};
