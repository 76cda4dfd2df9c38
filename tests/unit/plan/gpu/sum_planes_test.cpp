// Which sums of a formula are computed first, as planes, and what is left to the tile that reads them.
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/sums/sum_planes.h"

#include <gtest/gtest.h>

#include "ir/passes/passes.h"
#include "mercer/mercer.h"

namespace mercer::plan {
namespace {

GpuPairProblem problem_of(const char* text, Consumer consumer = Consumer::store) {
  constexpr std::int64_t kPoints = 30000, kFeatures = 1024, kRows = 1024;
  constexpr int kMultiprocessors = 132;
  GpuPairProblem problem;
  problem.outputs = {ir::simplify(parse(text))};
  problem.consumer = consumer;
  problem.sizes = sizes_of(kPoints, kPoints, kFeatures, kMultiprocessors);
  problem.product = bilinear_tile(kPoints, kPoints, kFeatures, Precision::fp32, kMultiprocessors, costs_of(90));
  problem.plane_product = plane_tile(kPoints, kPoints, kFeatures, Precision::fp32, kMultiprocessors,
                                     costs_of(90), kRows);
  return problem;
}

std::size_t planes_of(const char* text, Consumer consumer = Consumer::store) {
  return plan_gpu_pairs(problem_of(text, consumer))->products.planes.size();
}

TEST(SumPlanes, OfSeveralSums) {
  EXPECT_EQ(planes_of("sum((x-z)^2)"), 0u) << "its own tile runs on tensor cores";
  EXPECT_EQ(planes_of("exp(-sum((x-z)^2))*sum(x*z)"), 2u);
  EXPECT_EQ(planes_of("exp(-sum((x-z)^2))*sum((x-z)^2)"), 0u) << "one sum, read twice";
  EXPECT_EQ(planes_of("exp(-sum(abs(x-z)))+sum(x*z)"), 1u);
  EXPECT_EQ(planes_of("sum(abs(x-z))+max(abs(x-z))"), 0u);
  EXPECT_EQ(planes_of("sum(x*z)/sqrt(sum(x*x)*sum(z*z))"), 0u) << "norms are values of a point";
  EXPECT_EQ(planes_of("exp(-sum((x-z)^2))*sum(x*z)", Consumer::product), 2u);
  EXPECT_EQ(planes_of("exp(-sum((x-z)^2))*sum(x*z)", Consumer::fold), 2u);
  EXPECT_EQ(planes_of("exp(-sum((x-z)^2))*sum(x*z)", Consumer::nearest), 0u) << "pairs are computed again one by one";
  constexpr const char* kLong = "log(1+exp(-sum((x-z)^2)))*erf(sum((x-z)^2))";
  EXPECT_EQ(planes_of(kLong), 0u) << "stored by its own tile";
  EXPECT_EQ(planes_of(kLong, Consumer::product), 1u) << "an epilogue too long for values in registers";
  GpuPairProblem direct = problem_of("exp(-sum((x-z)^2))*sum(x*z)");
  direct.plane_product = {};
  EXPECT_TRUE(plan_gpu_pairs(direct)->products.planes.empty());
}

TEST(SumPlanes, WhatTheTileKeeps) {
  const auto joined = plan_gpu_pairs(problem_of("exp(-sum((x-z)^2))*sum(x*z)"));
  EXPECT_EQ(joined->split.states, 0);
  EXPECT_EQ(joined->states(), 2);
  EXPECT_EQ(joined->panel_rows(1024), 0) << "it goes through no features";
  for (const auto& plane : joined->products.planes) {
    EXPECT_TRUE(plane->products.bilinear);
    EXPECT_TRUE(plane->products.planes.empty());
    EXPECT_EQ(plane->problem.consumer, Consumer::store);
  }
  EXPECT_NE(joined->to_text().find("acc1: a plane"), std::string::npos) << joined->to_text();
  const auto mixed = plan_gpu_pairs(problem_of("exp(-sum(abs(x-z)))+sum(x*z)"));
  EXPECT_EQ(mixed->split.states, 1);
  EXPECT_EQ(mixed->states(), 2);
  EXPECT_EQ(mixed->pipes.mixed_sixteenths, 0) << "repairs do not know planes";
  EXPECT_EQ(mixed->panel_rows(1024), 1024);
}

TEST(SumPlanes, PayFromSomeFeaturesOn) {
  EXPECT_FALSE(plane_tile(30000, 30000, costs_of(90).sums_features - 1, Precision::fp32, 132, costs_of(90), 1024));
  EXPECT_TRUE(plane_tile(30000, 30000, costs_of(90).sums_features, Precision::fp32, 132, costs_of(90), 1024));
  EXPECT_FALSE(plane_tile(30000, 30000, 1024, Precision::direct, 132, costs_of(90), 1024));
}

/// Several outputs have one plane where they read one sum.
TEST(SumPlanes, OfSeveralOutputs) {
  GpuPairProblem problem = problem_of("exp(-sum((x-z)^2))");
  problem.outputs.push_back(ir::simplify(parse("sqrt(sum((x-z)^2))")));
  const auto plan = plan_gpu_pairs(problem);
  EXPECT_EQ(plan->products.planes.size(), 1u);
  EXPECT_EQ(plan->states(), 1);
}

}  // namespace
}  // namespace mercer::plan
