// Columns of conjugate gradients on the CPU: what a turn reads.
#include "backend/cg_columns.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <limits>
#include <vector>

namespace mercer {
namespace {

/// A guess is measured before anything is preconditioned: signalling NaN there would be seen by any arithmetic.
TEST(CgColumns, AGuessIsMeasuredWithoutThePreconditioner) {
  constexpr std::int64_t kLength = 20;
  Pool pool(1);
  const auto columns = cpu::cg_columns({"test", Dtype::float32, kLength, 2, 1e-5, true}, pool);
  const std::vector<float> right(2 * kLength, 1.5f), guess(2 * kLength, 0.25f);
  const Tensor b = view(right.data(), {kLength, 2}), x = view(guess.data(), {kLength, 2});
  const Tensor z = columns->preconditioned();
  for (std::int64_t i = 0; i < 2 * kLength; ++i)
    static_cast<float*>(z.data)[i] = std::numeric_limits<float>::signaling_NaN();
  columns->begin(b, &x, {});
  std::feclearexcept(FE_ALL_EXCEPT);
  columns->turn({.first = true, .measures = true});
  EXPECT_EQ(std::fetestexcept(FE_INVALID), 0);
  EXPECT_EQ(static_cast<const float*>(columns->operand().data)[3], 0.25f);  // x itself, b of the scale 1
}

}  // namespace
}  // namespace mercer
