// Source → kernel: machine code and the interpreter give the same bits; what does not fit falls back.
#include "jit/compile.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "codegen/x86/x86_emit.h"
#include "core/error.h"
#include "core/system/cpu_features.h"
#include "core/system/exec_memory.h"
#include "ir/passes/passes.h"

namespace mercer {
namespace {

using plan::EpilogueArgs;
using plan::EpilogueSource;

/// While alive, the system denies executable memory.
class NoExec {
 public:
  NoExec() { setenv("MERCER_NO_EXEC", "1", 1); }
  ~NoExec() { unsetenv("MERCER_NO_EXEC"); }
};

bool can_run(Target target) {
  return ExecutableMemory::available() && (target == Target::x86_avx512 ? cpu_features().avx512 : cpu_features().avx2);
}

std::shared_ptr<const plan::PairPlan> plan_of(const char* text, Target target, Dtype type = Dtype::float32) {
  plan::PairProblem problem;
  problem.outputs = {ir::simplify(parse(text))};
  problem.type = type;
  problem.target = target;
  return plan::plan_pairs(problem);
}

/// acc(0) + acc(1) - … : the values of `width` registers, all alive until the last.
EpilogueSource wide_source(Target target, int width, int masks) {
  EpilogueSource source;
  source.target = target;
  source.tile = {2, 2, plan::target_info(target).lanes(Dtype::float32)};
  source.plane = 2 * source.tile.cols();
  ir::Program& p = source.program;
  p.inputs = {{ir::Site::accumulator, 0}, {ir::Site::param, 0}};
  const auto add = [&](ir::Instr instr) {
    p.code.push_back(instr);
    return static_cast<std::int32_t>(p.code.size()) - 1;
  };
  const auto acc = add({.op = ir::Prim::input, .index = 0}), scale = add({.op = ir::Prim::input, .index = 1});
  std::vector<std::int32_t> values{acc}, conditions;
  for (int i = 0; i < width; ++i)
    values.push_back(add({.op = ir::Prim::fma, .a = values.back(), .b = scale, .c = acc}));
  for (int i = 0; i < masks; ++i) conditions.push_back(add({.op = ir::Prim::less, .a = values[i], .b = values[i + 1]}));
  std::int32_t total = values.back();
  for (int i = width; i-- > 0;) total = add({.op = ir::Prim::add, .a = total, .b = values[i]});
  for (std::int32_t mask : conditions) total = add({.op = ir::Prim::select, .a = mask, .b = total, .c = acc});
  p.outputs = {total};
  return source;
}

std::vector<float> run(const jit::EpilogueKernel& kernel, const EpilogueSource& source) {
  const int cols = source.tile.cols();
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> acc(2 * cols), params{0.75f}, out(2 * cols, -1.0f), points(2 * cols);
  for (float& v : acc) v = normal(random);
  const EpilogueArgs args{acc.data(),
                          points.data(),
                          points.data(),
                          params.data(),
                          out.data(),
                          static_cast<std::int64_t>(cols * sizeof(float)),
                          2};
  kernel(args);
  return out;
}

class Compile : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!can_run(GetParam())) GTEST_SKIP() << "this machine cannot run the target";
  }
  /// The kernel of the target and the interpreter give the same bits; returns the bytes of machine code.
  static std::size_t expect_interpreted_bits(const EpilogueSource& source) {
    EpilogueSource interpreted = source;
    interpreted.target = Target::interpreter;
    const auto kernel = jit::compile(source);
    EXPECT_EQ(run(*kernel, source), run(*jit::compile(interpreted), interpreted));
    return kernel->code_bytes();
  }
};

TEST_P(Compile, ManyLiveValuesSpill) { EXPECT_GT(expect_interpreted_bits(wide_source(GetParam(), 40, 0)), 0u); }

TEST_P(Compile, TooManyLiveValuesAreInterpreted) {
  EXPECT_EQ(expect_interpreted_bits(wide_source(GetParam(), 200, 0)), 0u);
}

TEST_P(Compile, TooManyMasksAreInterpreted) {
  const std::size_t bytes = expect_interpreted_bits(wide_source(GetParam(), 30, 20));
  EXPECT_EQ(bytes == 0, GetParam() == Target::x86_avx512);  // AVX2 keeps masks in vector registers, which spill
}

TEST_P(Compile, TooMuchCodeIsInterpreted) {
  EpilogueSource source = wide_source(GetParam(), 4, 0);
  ir::Program& p = source.program;
  for (int i = 0; i < 26000; ++i) {
    p.code.push_back({.op = ir::Prim::fma, .a = p.outputs[0], .b = 1, .c = 0});
    p.outputs[0] = static_cast<std::int32_t>(p.code.size()) - 1;
  }
  EXPECT_EQ(expect_interpreted_bits(source), 0u);
}

TEST_P(Compile, WithoutExecutableMemoryTheInterpreterServes) {
  const EpilogueSource source = wide_source(GetParam(), 5, 2);
  const auto native = jit::compile(source);
  ASSERT_GT(native->code_bytes(), 0u);
  const NoExec denied;
  const auto served = jit::compile(source);
  EXPECT_EQ(served->code_bytes(), 0u);
  EXPECT_EQ(run(*served, source), run(*native, source));
}

TEST_P(Compile, VariantsAreCompiledWhenNeeded) {
  const auto plan = plan_of("sum(abs(x-z)^1.3/s)", GetParam());
  const jit::PairKernels kernels(plan);
  EXPECT_GT(kernels.variant(false).update->code_bytes(), 0u);
  EXPECT_GT(kernels.variant(true).update->code_bytes(), 0u);
  EXPECT_EQ(&kernels.variant(false) == &kernels.variant(true), !plan->has_fast);
}

TEST_P(Compile, AFormulaWithoutReductionHasNoUpdate) {
  const jit::PairKernels kernels(plan_of("row*col + i", GetParam()));
  EXPECT_EQ(kernels.variant(false).update, nullptr);
  EXPECT_NE(kernels.variant(false).epilogue, nullptr);
}

TEST_P(Compile, AMonstrousFormulaIsServed) {
  const Expr s = sum(abs(points().x - points().z));
  Expr f = s;
  for (int i = 0; i < 200; ++i)
    f = where(f < exp(sin(s * i) + row_value()), erf(s + col_value() * i), f + pow(s, 0.1 * i));
  plan::PairProblem problem;
  problem.outputs = {ir::simplify(f)};
  problem.target = GetParam();
  const jit::PairKernels kernels(plan::plan_pairs(problem));
  EXPECT_GT(kernels.variant(false).update->code_bytes(), 0u);
  EXPECT_NE(kernels.variant(false).epilogue, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Targets, Compile, ::testing::Values(Target::x86_avx512, Target::x86_avx2),
                         [](const auto& info) { return info.param == Target::x86_avx512 ? "avx512" : "avx2"; });

}  // namespace
}  // namespace mercer
