// The update by maxima: machine code and interpreter agree to the bit, sums and doubts alike, and both with the sums of
// the numbers themselves, which are integers here, and small enough to be exact in float64.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "codegen/interpreter/interpreted_kernels.h"
#include "codegen/x86/x86_emit.h"
#include "core/system/cpu_features.h"
#include "core/system/exec_memory.h"
#include "ir/passes/passes.h"
#include "mercer/formula.h"
#include "plan/cpu/planner.h"

namespace mercer::codegen {
namespace {

constexpr std::int64_t kFeatures = 23;
constexpr double kScale = 0x1p-20;

/// Heads and lines of even numbers, as packing makes them; after them comes a line of bounds.
struct Panel {
  int width;
  std::vector<std::int64_t> lines;
  std::vector<double> bounds;

  Panel(std::mt19937& random, int columns, std::int64_t chunk, double bound)
      : width(columns), bounds(static_cast<std::size_t>(columns), bound) {
    std::uniform_int_distribution<std::int32_t> values(-40000000, 40000000);
    for (std::int64_t first = 0; first < kFeatures; first += chunk) {
      const std::size_t head = lines.size();
      lines.resize(head + static_cast<std::size_t>(width));
      for (std::int64_t k = first; k < std::min(kFeatures, first + chunk); ++k)
        for (int r = 0; r < width; ++r) {
          const std::int32_t q = values(random);
          lines[head + static_cast<std::size_t>(r)] -= q;
          lines.push_back(2 * std::int64_t{q});
        }
    }
  }

  /// Modulo 2^32 in float32.
  std::vector<std::byte> in_memory(Dtype type) const {
    std::vector<std::byte> bytes;
    const auto append = [&](auto value) {
      bytes.resize(bytes.size() + sizeof value);
      std::memcpy(bytes.data() + bytes.size() - sizeof value, &value, sizeof value);
    };
    for (std::int64_t value : lines)
      type == Dtype::float64 ? append(static_cast<double>(value)) : append(static_cast<std::int32_t>(value));
    for (double bound : bounds) type == Dtype::float64 ? append(bound) : append(static_cast<float>(bound));
    return bytes;
  }
};

struct Result {
  std::vector<std::byte> acc;
  std::uint32_t doubtful;
};

struct Case {
  Target target;
  Dtype type;
};

class MaximaUpdate : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!plan::target_info(GetParam().target).runs_here()) GTEST_SKIP() << "this machine cannot run it";
    plan::PairProblem problem;
    problem.outputs = {ir::simplify(parse("sum(abs(x-z))"))};
    problem.target = GetParam().target;
    problem.type = GetParam().type;
    plan_ = plan::plan_pairs(problem);
    ASSERT_NE(plan_->maxima.factor, 0);
    source_ = plan_->maxima_source();
    code_ = emit_update(source_);
  }

  bool wide() const { return GetParam().type == Dtype::float64; }

  template <class Update>
  Result run(const Update& update, const Panel& x, const Panel& z, std::int64_t chunk) const {
    static constexpr double kZero = 0, kWideScale = kScale;
    static constexpr float kNarrowScale = kScale;
    const std::vector<std::byte> xs = x.in_memory(GetParam().type), zs = z.in_memory(GetParam().type);
    const std::size_t count = static_cast<std::size_t>(source_.tile.rows) * source_.tile.cols();
    Result result{std::vector<std::byte>(count * size_of(GetParam().type), std::byte{0xcd}), 7};
    plan::UpdateArgs args{};
    args.x = xs.data();
    args.z = zs.data();
    args.params = wide() ? static_cast<const void*>(&kWideScale) : &kNarrowScale;
    args.acc = result.acc.data();
    args.identity = &kZero;
    args.k = kFeatures;
    args.chunk = chunk;
    args.doubtful = &result.doubtful;
    update(args);
    return result;
  }
  Result native(const Panel& x, const Panel& z, std::int64_t chunk) const {
    const ExecutableMemory memory(code_.data(), code_.size());
    return run([&](const plan::UpdateArgs& args) { memory.as<void(const plan::UpdateArgs*)>()(&args); }, x, z, chunk);
  }
  Result interpreted(const Panel& x, const Panel& z, std::int64_t chunk) const {
    return run(InterpretedUpdate(source_), x, z, chunk);
  }

  double value(const Result& result, int r, int c) const {
    const std::size_t at = static_cast<std::size_t>(r * source_.tile.cols() + c);
    double value;
    float narrow;
    std::memcpy(&value, result.acc.data() + (wide() ? at * sizeof value : 0), sizeof value);
    std::memcpy(&narrow, result.acc.data() + at * sizeof narrow, sizeof narrow);
    return wide() ? value : narrow;
  }

  /// The sum of a pair, chunk by chunk as numbers of the type.
  double sum(const Panel& x, const Panel& z, int r, int c, std::int64_t chunk) const {
    double total = 0;
    std::int64_t line = 0;
    for (std::int64_t first = 0; first < kFeatures; first += chunk) {
      ++line;
      std::int64_t integer = 0;
      for (std::int64_t k = first; k < std::min(kFeatures, first + chunk); ++k, ++line)
        integer += std::abs(x.lines[static_cast<std::size_t>(line * x.width + r)] -
                            z.lines[static_cast<std::size_t>(line * z.width + c)]) /
                   2;
      if (wide()) total += static_cast<double>(integer) * kScale;
      else total = static_cast<float>(total) + static_cast<float>(integer) * static_cast<float>(kScale);
    }
    return total;
  }

  std::shared_ptr<const plan::PairPlan> plan_;
  plan::UpdateSource source_;
  std::vector<std::uint8_t> code_;
};

TEST_P(MaximaUpdate, SumsAndDoubts) {
  std::mt19937 random(1);
  for (std::int64_t chunk : {1, 4, 6, 22, 23, 40}) {
    const Panel x(random, source_.tile.rows, chunk, 3), z(random, source_.tile.cols(), chunk, 4);
    const Result result = native(x, z, chunk), expected = interpreted(x, z, chunk);
    EXPECT_EQ(result.acc, expected.acc) << chunk;
    EXPECT_EQ(result.doubtful, 0u) << chunk;
    EXPECT_EQ(expected.doubtful, 0u) << chunk;
    for (int r = 0; r < source_.tile.rows; ++r)
      for (int c = 0; c < source_.tile.cols(); ++c)
        ASSERT_EQ(value(result, r, c), sum(x, z, r, c, chunk)) << r << "," << c << " in chunks of " << chunk;
  }
}

TEST_P(MaximaUpdate, OnePairIsEnough) {
  std::mt19937 random(2);
  const int rows = source_.tile.rows, cols = source_.tile.cols();
  const Panel x0(random, rows, 10, 1), z0(random, cols, 10, 0.5);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < cols; ++c)
      for (bool exact : {false, true}) {
        // Row r becomes column c, at distance 0: beneath any bound but 0.
        Panel x = x0, z = z0;
        for (std::size_t line = 0; line < x.lines.size() / static_cast<std::size_t>(rows); ++line)
          x.lines[line * static_cast<std::size_t>(rows) + static_cast<std::size_t>(r)] =
              z.lines[line * static_cast<std::size_t>(cols) + static_cast<std::size_t>(c)];
        if (exact) {
          std::fill(x.bounds.begin(), x.bounds.end(), 0);
          std::fill(z.bounds.begin(), z.bounds.end(), 0);
        }
        const Result result = native(x, z, 10), expected = interpreted(x, z, 10);
        ASSERT_EQ(value(result, r, c), 0);
        ASSERT_EQ(result.doubtful == 0, exact) << r << "," << c;
        ASSERT_EQ(expected.doubtful == 0, exact) << r << "," << c;
      }
}

INSTANTIATE_TEST_SUITE_P(Targets, MaximaUpdate,
                         ::testing::Values(Case{Target::x86_avx512, Dtype::float32},
                                           Case{Target::x86_avx2, Dtype::float32},
                                           Case{Target::x86_avx512, Dtype::float64},
                                           Case{Target::x86_avx2, Dtype::float64}),
                         [](const auto& info) {
                           const bool wide = info.param.target == Target::x86_avx512;
                           return std::string(wide ? "avx512" : "avx2") + "_" + name_of(info.param.type);
                         });

}  // namespace
}  // namespace mercer::codegen
