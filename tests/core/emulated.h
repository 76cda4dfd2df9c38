// Whether the GPU is the emulator (tests/emulator), some thousand times slower than one: long tests are short there.
#pragma once

#include <cstdlib>

namespace mercer::testing_support {

inline bool is_emulated() { return std::getenv("EMULATOR_CAPABILITY") != nullptr; }

/// The emulator has one of `of` cases of a test in turn, the first among them; a GPU has all.
class Turns {
 public:
  explicit Turns(int of) : of_(is_emulated() ? of : 1) {}
  bool leaves_out() { return next_++ % of_ != 0; }

 private:
  int of_, next_ = 0;
};

}  // namespace mercer::testing_support
