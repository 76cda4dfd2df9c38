// 16-bit floats: every pattern, every tie, against the definition.
#include "core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace mercer {
namespace {

/// The definition: sign, exponent field of `exponent_bits`, fraction.
double meaning(std::uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

struct Format {
  int exponent_bits;
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);
  std::uint16_t infinity;
};

class HalfFormat : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Types, HalfFormat,
                         testing::Values(Format{5, float_from_half, half_from_float, 0x7c00},
                                         Format{8, float_from_bfloat16, bfloat16_from_float, 0x7f80}));

TEST_P(HalfFormat, every_pattern_widens_exactly_and_comes_back) {
  const Format format = GetParam();
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const float value = format.widen(pattern);
    const double expected = meaning(pattern, format.exponent_bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_TRUE(std::isnan(format.widen(format.narrow(value))));
      continue;
    }
    ASSERT_EQ(value, expected) << bits;
    ASSERT_EQ(std::signbit(value), std::signbit(expected));
    ASSERT_EQ(format.narrow(value), pattern);
  }
}

TEST_P(HalfFormat, ties_go_to_even_and_their_neighbours_to_the_nearest) {
  const Format format = GetParam();
  const float infinity = std::numeric_limits<float>::infinity();
  for (int bits = 0; bits + 1 < format.infinity; ++bits) {
    const float low = format.widen(static_cast<std::uint16_t>(bits));
    const float high = format.widen(static_cast<std::uint16_t>(bits + 1));
    const auto middle = static_cast<float>((static_cast<double>(low) + high) / 2);  // exact
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(format.narrow(middle), even) << bits;
    ASSERT_EQ(format.narrow(-middle), even | 0x8000) << bits;
    ASSERT_EQ(format.narrow(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(format.narrow(std::nextafter(middle, infinity)), bits + 1);
  }
}

TEST_P(HalfFormat, overflow_and_special_values) {
  const Format format = GetParam();
  const auto largest = static_cast<std::uint16_t>(format.infinity - 1);
  const double top = format.widen(largest), below = format.widen(static_cast<std::uint16_t>(largest - 1));
  const auto edge = static_cast<float>(top + (top - below) / 2);
  EXPECT_EQ(format.narrow(edge), format.infinity);
  EXPECT_EQ(format.narrow(std::nextafter(edge, 0.0f)), largest);
  EXPECT_EQ(format.narrow(std::numeric_limits<float>::infinity()), format.infinity);
  EXPECT_EQ(format.narrow(-std::numeric_limits<float>::infinity()), format.infinity | 0x8000);
  EXPECT_EQ(format.narrow(-0.0f), 0x8000);
  EXPECT_EQ(format.narrow(std::numeric_limits<float>::denorm_min()), 0);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("f16c"))) std::uint16_t narrow_by_hardware(float value) {
  const auto vector = __extension__(__attribute__((vector_size(16))) float){value};
  return static_cast<std::uint16_t>(__builtin_ia32_vcvtps2ph(vector, 0)[0]);
}

TEST(Half, agrees_with_the_hardware) {
  if (!__builtin_cpu_supports("f16c")) GTEST_SKIP();
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000000; ++trial) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    ASSERT_EQ(half_from_float(value), narrow_by_hardware(value)) << value;
  }
}
#endif

}  // namespace
}  // namespace mercer
