// Runs of 16-bit floats as float32, which has all of their values: by vectors where the processor converts them.
#pragma once

#include <cstdint>

#include "core/half.h"

namespace mercer::cpu {

struct Half {
  std::uint16_t bits;
  explicit operator float() const { return float_from_half(bits); }
  explicit operator double() const { return float_from_half(bits); }
};

struct Bfloat16 {
  std::uint16_t bits;
  explicit operator float() const { return float_from_bfloat16(bits); }
  explicit operator double() const { return float_from_bfloat16(bits); }
};

void widen(const Half* from, std::int64_t count, float* to);
void widen(const Bfloat16* from, std::int64_t count, float* to);

}  // namespace mercer::cpu
