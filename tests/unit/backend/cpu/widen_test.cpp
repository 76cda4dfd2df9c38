// Runs of 16-bit floats: each of the 65536 has the bits that a conversion alone gives, wherever a run begins and ends.
#include "backend/cpu/pack/widen.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

namespace mercer::cpu {
namespace {

template <class Narrow>
void expect_all() {
  constexpr std::int64_t kAll = 1 << 16;
  std::vector<Narrow> narrow;
  for (std::int64_t i = 0; i < kAll; ++i) narrow.push_back({static_cast<std::uint16_t>(i)});
  std::int64_t first = 0;
  for (std::int64_t count = 1; first < kAll; first += count, count = count % 37 + 1) {
    count = std::min(count, kAll - first);
    std::vector<float> wide(count + 1, 77.0f);
    widen(narrow.data() + first, count, wide.data());
    for (std::int64_t i = 0; i < count; ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]),
                std::bit_cast<std::uint32_t>(static_cast<float>(narrow[first + i])))
          << "of " << first + i;
    ASSERT_EQ(wide[count], 77.0f);
  }
}

TEST(Widen, HasTheBitsOfEachAlone) {
  expect_all<Half>();
  expect_all<Bfloat16>();
}

}  // namespace
}  // namespace mercer::cpu
