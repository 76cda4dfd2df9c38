// Plans that store the sum of a formula alone: of which formulas there are some, and that formulas of one sum share
// their texts, which is how they find each other's kernels.
#include "plan/gpu/sums/bare_sums.h"

#include <gtest/gtest.h>

#include "codegen/cuda/cuda_source.h"
#include "ir/passes/passes.h"
#include "mercer/mercer.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::plan {
namespace {

GpuPairProblem problem_of(const char* text, std::int64_t features = 1024) {
  constexpr std::int64_t kPoints = 30000;
  constexpr int kMultiprocessors = 132;
  GpuPairProblem problem;
  problem.outputs = {ir::simplify(parse(text))};
  problem.sizes = sizes_of(kPoints, kPoints, features, kMultiprocessors);
  problem.product = bilinear_tile(kPoints, kPoints, features, Precision::fp32, kMultiprocessors,
                                  costs_of(90));
  problem.tries.mixed_work = MixedWork::much;
  problem.tries.differs = true;
  problem.params.by_value = true;
  return problem;
}

std::shared_ptr<const GpuPairPlan> bare_of(const GpuPairProblem& problem) {
  return bare_sums(*plan_gpu_pairs(problem));
}

std::string texts_of(const GpuPairPlan& plan) {
  std::string texts = codegen::cuda_pair_source(plan);
  if (plan.pipes.mixed_sixteenths > 0) texts += codegen::cuda_integers_source(plan);
  if (plan.pipes.differs) texts += codegen::cuda_differences_source(plan);
  if (plan.products.bilinear) texts += codegen::cuda_bilinear_source(plan) + codegen::cuda_repair_source(plan);
  return texts + codegen::cuda_pack_source(plan, true, Dtype::float32);
}

TEST(BareSums, FormulasOfOneSumShareTheirTexts) {
  struct Row {
    const char *sum, *formula;
  };
  for (const auto& [sum, formula] : {
           Row{"sum(abs(x-z))", "sum(abs(x-z))*1.5"},
           Row{"sum(abs(x-z))", "log(1 + sum(abs(x-z))/h)"},
           Row{"exp(-sum(abs(x-z))/h)", "exp(-sum(abs(x-z))*0.25)*3"},
           Row{"sum((x-z)^2)", "exp(-sum((x-z)^2)/h^2)"},
           Row{"sum(x*z)", "tanh(a*sum(x*z) + b)"},
           Row{"sum(abs(x-z)^3)", "sum(abs(x-z)^3)^(1/3)"},
           Row{"sum(abs(x-z)^1.3)", "exp(-sum(abs(x-z)^1.3))"},
           Row{"max(abs(x-z))", "2/(1 + max(abs(x-z)))"},
       })
    for (std::int64_t features : {1024, 100, 20}) {
      SCOPED_TRACE(formula + fmt::format(", {} features", features));
      const auto own = bare_of(problem_of(sum, features)), other = bare_of(problem_of(formula, features));
      ASSERT_TRUE(own && other);
      EXPECT_EQ(texts_of(*own), texts_of(*other));
    }
}

TEST(BareSums, ASumItselfIsOne) {
  for (const char* text : {"sum(abs(x-z))", "sum((x-z)^2)", "sum(x*z)", "max(abs(x-z))"}) {
    const auto plan = plan_gpu_pairs(problem_of(text));
    EXPECT_EQ(texts_of(*plan), texts_of(*bare_sums(*plan))) << text;
  }
}

TEST(BareSums, WhatTheyCannotStandFor) {
  const auto refused = [](const GpuPairProblem& problem) { return bare_of(problem) == nullptr; };
  EXPECT_TRUE(refused(problem_of("sum(abs(x-z)) + sum(max(x,z))"))) << "two sums";
  EXPECT_TRUE(refused(problem_of("sum(abs(x-z)) + i"))) << "an index";
  EXPECT_TRUE(refused(problem_of("sum(abs(x-z))*row"))) << "a value of a point";
  EXPECT_TRUE(refused(problem_of("sum(x*z)/sqrt(sum(x*x)*sum(z*z))"))) << "norms";
  EXPECT_TRUE(refused(problem_of("sum(abs(x-z)/(1 + h))^2 + sum(where(x > h, z, 0))"))) << "parameters in sums";
  EXPECT_TRUE(refused(problem_of("sum(abs(x-z)^p)"))) << "an exponent that is no number";
  for (const char* text : {"sum(abs(x/K - z/K))^2", "sum(abs(x*K - z))*2", "tanh(sum((x-mean(x))*(z-mean(z))))"})
    EXPECT_TRUE(refused(problem_of(text))) << text << ": the number of features in a sum";
  EXPECT_FALSE(refused(problem_of("mean(abs(x-z))^2")));
  EXPECT_TRUE(refused(problem_of("row*col"))) << "no sum";
  GpuPairProblem problem = problem_of("exp(-sum(abs(x-z))/h)");
  EXPECT_FALSE(refused(problem));
  problem.params.by_value = false;
  EXPECT_TRUE(refused(problem)) << "items that share an allowance";
  problem = problem_of("sum(abs(x-z))*2");
  problem.arrays.out = Dtype::float16;
  EXPECT_TRUE(refused(problem)) << "no room for a sum";
  problem.arrays.out = Dtype::float32;
  problem.consumer = Consumer::product;
  EXPECT_TRUE(refused(problem)) << "nowhere stored";
}

}  // namespace
}  // namespace mercer::plan
