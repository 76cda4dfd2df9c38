// Plans of passes on tensor cores: whom they serve, and that blocks fit a multiprocessor.
#include "plan/gpu/costs/costs.h"
#include "plan/kron/kron_wide.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "plan/kron/kron_gpu.h"
#include "unit/plan/kron/kron_gpu_problem.h"

namespace mercer::plan {
namespace {

constexpr std::int64_t kExtents[] = {1, 2, 15, 16, 17, 33, 48, 50, 63, 64, 65, 80, 96, 100, 112, 127, 128};

TEST(KronWidePlan, EveryShapeFitsABlock) {
  for (const std::int64_t p1 : kExtents)
    for (const std::int64_t q1 : kExtents)
      for (const std::int64_t p2 : kExtents)
        for (const std::int64_t q2 : {1, 50, 64, 100, 128}) {
          const std::vector<KronShape> factors = {{p1, q1}, {p2, q2}};
          const KronGpuProblem problem = kron_problem(factors);
          const auto wide = plan_kron_wide(kron_types(), factors, {1, 1024, 1, 1}, problem);
          ASSERT_TRUE(wide) << p1 << " " << q1 << " " << p2 << " " << q2;
          ASSERT_LE(wide->shared_bytes(), problem.shared_per_block);
          ASSERT_LE(wide->threads(), 512);
          ASSERT_GE(wide->warpgroups * 64, q1);
          ASSERT_GE(wide->tile_n, p2);
          // Sums of the first factor stay below 2^15.
          ASSERT_LE(wide->x_exponent() + wide->first_exponent(), 15);
          ASSERT_LE(static_cast<double>(p1) * std::ldexp(1.0, wide->x_exponent() + wide->first_exponent()), 32768.0);
        }
}

TEST(KronWidePlan, SingleFactors) {
  for (const std::int64_t p : kExtents)
    for (const std::int64_t q : kExtents)
      for (const std::int64_t right : {32, 50, 64, 100, 129, 4096}) {
        const std::vector<KronShape> factor = {{p, q}};
        const KronGpuProblem problem = kron_problem({{p, q}, {right, right}});
        const auto wide = plan_kron_wide(kron_types(), factor, {1, 1024, 1, right}, problem);
        ASSERT_TRUE(wide);
        ASSERT_LE(wide->shared_bytes(), problem.shared_per_block);
        ASSERT_GE(wide->tiles({1, 1, 1, right}) * wide->tile_n, right);
      }
}

TEST(KronWidePlan, WhomItDoesNotServe) {
  const std::vector<KronShape> pair = {{64, 64}, {64, 64}}, large = {{64, 64}, {129, 64}}, one = {{64, 64}};
  const KronGpuPlace end = {1, 8, 1, 1}, middle = {1, 8, 1, 64}, narrow = {1, 8, 1, 7};
  KronGpuProblem problem = kron_problem(pair);
  KronGpuTypes types = kron_types();
  EXPECT_TRUE(plan_kron_wide(types, pair, end, problem));
  EXPECT_FALSE(plan_kron_wide(types, pair, middle, problem));
  EXPECT_FALSE(plan_kron_wide(types, large, end, problem));
  EXPECT_TRUE(plan_kron_wide(types, one, middle, problem));
  EXPECT_FALSE(plan_kron_wide(types, one, narrow, problem));
  EXPECT_FALSE(plan_kron_wide(types, one, middle, problem)->column_scales);
  problem.columns = 8;  // rows that are neighbours have scales of their own
  EXPECT_TRUE(plan_kron_wide(types, one, middle, problem)->column_scales);
  problem.columns = 1;
  types.type = Dtype::float64;
  EXPECT_FALSE(plan_kron_wide(types, pair, end, problem));
  types.type = Dtype::float32;
  for (const int capability : {80, 89, 100, 120}) {
    problem.capability = capability;
    EXPECT_FALSE(plan_kron_wide(types, pair, end, problem));
  }
}

/// Elements go so many at a time as divide every line.
TEST(KronWidePlan, Widths) {
  const std::vector<KronShape> factors = {{52, 50}, {52, 50}};
  const auto wide = plan_kron_wide(kron_types(), factors, {1, 8, 1, 1}, kron_problem(factors));
  ASSERT_TRUE(wide);
  EXPECT_EQ(wide->in_width, 4);
  EXPECT_EQ(wide->out_width, 2);
  const std::vector<KronShape> odd = {{52, 50}, {51, 49}};
  const auto plain = plan_kron_wide(kron_types(), odd, {1, 8, 1, 1}, kron_problem(odd));
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->in_width, 1);
  EXPECT_EQ(plain->out_width, 1);
}

/// Twice the rows take up to twice the time, and no pass is faster than memory.
TEST(KronWidePlan, Estimates) {
  for (const std::int64_t size : {40, 64, 128}) {
    const std::vector<KronShape> factors = {{size, size}, {size, size}};
    const auto wide = plan_kron_wide(kron_types(), factors, {1, 1024, 1, 1}, kron_problem(factors));
    ASSERT_TRUE(wide);
    const KronWideCosts& costs = costs_of(90).kron.wide;
    const double once = wide->seconds({1, 1024, 1, 1}, costs), twice = wide->seconds({1, 2048, 1, 1}, costs);
    EXPECT_GT(twice, once);
    EXPECT_LE(twice, 2 * once);
    EXPECT_GT(once, static_cast<double>(1024 * size * size * 8) / 4.2e12);
  }
}

TEST(KronWidePlan, PairsAtTheEndAndSinglesBefore) {
  const KronGpuPlan plan = plan_kron_gpu(kron_problem({{64, 64}, {64, 64}, {64, 64}}));
  ASSERT_EQ(plan.passes.size(), 2u);
  EXPECT_EQ(plan.passes[0].first, 1);
  EXPECT_EQ(plan.passes[0].count, 2);
  EXPECT_EQ(plan.passes[0].place.left, 64);
  EXPECT_EQ(plan.passes[1].first, 0);
  EXPECT_EQ(plan.passes[1].place.right, 4096);
  EXPECT_TRUE(std::get<KronWide>(plan.passes[1].kernel).types.final);
  EXPECT_EQ(plan.widest, 64 * 64 * 64);
  for (const auto& [p, q, rows] : std::vector<std::array<std::int64_t, 3>>{
           {128, 128, 320}, {128, 128, 1}, {52, 50, 10}, {100, 100, 7}, {40, 60, 1000}}) {
    KronGpuProblem problem = kron_problem({{p, q}, {p, q}, {p, q}});
    problem.rows = rows;
    const KronGpuPlan other = plan_kron_gpu(problem);
    ASSERT_EQ(other.passes.size(), 2u) << p;
    for (const KronGpuPass& pass : other.passes) EXPECT_TRUE(std::holds_alternative<KronWide>(pass.kernel)) << p;
  }
}

}  // namespace
}  // namespace mercer::plan
