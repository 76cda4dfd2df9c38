// The update on integers: machine code and interpreter agree to the bit, sums and doubts alike, and both with the sums
// of the integers themselves.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "codegen/interpreted_kernels.h"
#include "codegen/x86_emit.h"
#include "core/cpu_features.h"
#include "core/exec_memory.h"
#include "ir/passes.h"
#include "mercer/formula.h"
#include "plan/planner.h"

namespace mercer::codegen {
namespace {

constexpr std::int64_t kFeatures = 23;

/// Panels as a quantiser writes them: heads, lines of even numbers, bounds.
std::vector<std::int32_t> panel(std::mt19937& random, int width, std::int64_t chunk, float bound) {
  std::uniform_int_distribution<std::int32_t> values(-40000000, 40000000);
  std::vector<std::int32_t> lines;
  for (std::int64_t first = 0; first < kFeatures; first += chunk) {
    const std::size_t head = lines.size();
    lines.resize(head + static_cast<std::size_t>(width));
    for (std::int64_t k = first; k < std::min(kFeatures, first + chunk); ++k)
      for (int r = 0; r < width; ++r) {
        const std::int32_t q = values(random);
        lines[head + static_cast<std::size_t>(r)] -= q;
        lines.push_back(2 * q);
      }
  }
  std::int32_t bits;
  std::memcpy(&bits, &bound, sizeof bits);
  lines.resize(lines.size() + static_cast<std::size_t>(width), bits);
  return lines;
}

struct Result {
  std::vector<float> acc;
  std::uint32_t doubtful;
};

class IntegerUpdate : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!plan::target_info(GetParam()).runs_here()) GTEST_SKIP() << "this machine cannot run it";
    plan::PairProblem problem;
    problem.outputs = {ir::simplify(parse("sum(abs(x-z))"))};
    problem.target = GetParam();
    plan_ = plan::plan_pairs(problem);
    ASSERT_NE(plan_->integers.factor, 0);
    source_ = plan_->integer_source();
  }

  plan::UpdateArgs arguments(const std::vector<std::int32_t>& x, const std::vector<std::int32_t>& z, std::int64_t chunk,
                             Result& result) {
    static constexpr float kIdentity = 0, kStep = 0x1p-20f;
    result.acc.assign(static_cast<std::size_t>(source_.tile.rows * source_.tile.cols()), -1.0f);
    result.doubtful = 7;
    plan::UpdateArgs args{};
    args.x = x.data();
    args.z = z.data();
    args.params = &kStep;
    args.acc = result.acc.data();
    args.identity = &kIdentity;
    args.k = kFeatures;
    args.chunk = chunk;
    args.doubtful = &result.doubtful;
    return args;
  }

  /// The sum of a pair, chunk by chunk as floats.
  float sum(const std::vector<std::int32_t>& x, const std::vector<std::int32_t>& z, int r, int c, std::int64_t chunk) {
    const int rows = source_.tile.rows, cols = source_.tile.cols();
    float total = 0, partial = 0;
    std::int64_t line = 0;
    for (std::int64_t first = 0; first < kFeatures; first += chunk) {
      ++line;
      std::int64_t integer = 0;
      for (std::int64_t k = first; k < std::min(kFeatures, first + chunk); ++k, ++line)
        integer += std::abs(std::int64_t{x[line * rows + r]} - z[line * cols + c]) / 2;
      partial = static_cast<float>(static_cast<std::int32_t>(integer)) * 0x1p-20f;
      total = first == 0 ? partial : total + partial;
    }
    return total;
  }

  std::shared_ptr<const plan::PairPlan> plan_;
  UpdateSource source_;
};

TEST_P(IntegerUpdate, SumsAndDoubts) {
  const std::vector<std::uint8_t> code = emit_update(source_);
  const ExecutableMemory memory(code.data(), code.size());
  const InterpretedUpdate interpreted(source_);
  std::mt19937 random(1);
  for (std::int64_t chunk : {1, 4, 6, 22, 23, 40}) {
    const auto x = panel(random, source_.tile.rows, chunk, 3), z = panel(random, source_.tile.cols(), chunk, 4);
    Result native, expected;
    const plan::UpdateArgs args = arguments(x, z, chunk, native);
    memory.as<void(const plan::UpdateArgs*)>()(&args);
    interpreted(arguments(x, z, chunk, expected));
    EXPECT_EQ(std::memcmp(native.acc.data(), expected.acc.data(), native.acc.size() * sizeof(float)), 0) << chunk;
    EXPECT_EQ(native.doubtful, 0u) << chunk;
    EXPECT_EQ(expected.doubtful, 0u) << chunk;
    for (int r = 0; r < source_.tile.rows; ++r)
      for (int c = 0; c < source_.tile.cols(); ++c)
        ASSERT_EQ(native.acc[static_cast<std::size_t>(r * source_.tile.cols() + c)], sum(x, z, r, c, chunk))
            << r << "," << c << " in chunks of " << chunk;
  }
}

TEST_P(IntegerUpdate, OnePairIsEnough) {
  const std::vector<std::uint8_t> code = emit_update(source_);
  const ExecutableMemory memory(code.data(), code.size());
  const InterpretedUpdate interpreted(source_);
  std::mt19937 random(2);
  const int rows = source_.tile.rows, cols = source_.tile.cols();
  const auto x0 = panel(random, rows, 10, 1), z = panel(random, cols, 10, 0.5f);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < cols; ++c)
      for (bool exact : {false, true}) {
        // Row r becomes column c, at distance 0: beneath any bound but 0.
        std::vector<std::int32_t> x = x0, columns = z;
        const std::size_t lines = x.size() / static_cast<std::size_t>(rows);
        for (std::size_t line = 0; line + 1 < lines; ++line)
          x[line * static_cast<std::size_t>(rows) + static_cast<std::size_t>(r)] =
              z[line * static_cast<std::size_t>(cols) + static_cast<std::size_t>(c)];
        if (exact) {
          std::fill(x.end() - rows, x.end(), 0);
          std::fill(columns.end() - cols, columns.end(), 0);
        }
        Result native, expected;
        const plan::UpdateArgs args = arguments(x, columns, 10, native);
        memory.as<void(const plan::UpdateArgs*)>()(&args);
        interpreted(arguments(x, columns, 10, expected));
        ASSERT_EQ(native.acc[static_cast<std::size_t>(r * cols + c)], 0);
        ASSERT_EQ(native.doubtful == 0, exact) << r << "," << c;
        ASSERT_EQ(expected.doubtful == 0, exact) << r << "," << c;
      }
}

INSTANTIATE_TEST_SUITE_P(Targets, IntegerUpdate, ::testing::Values(Target::x86_avx512, Target::x86_avx2),
                         [](const auto& info) { return info.param == Target::x86_avx512 ? "avx512" : "avx2"; });

}  // namespace
}  // namespace mercer::codegen
