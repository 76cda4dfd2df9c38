// Plans of passes in float64 on tensor cores: whom they serve, and that blocks fit a multiprocessor.
#include "plan/gpu/costs/costs.h"
#include "plan/kron/kron_double.h"

#include <gtest/gtest.h>

#include <vector>

#include "plan/kron/kron_gpu.h"
#include "unit/plan/kron/kron_gpu_problem.h"

namespace mercer::plan {
namespace {

KronGpuProblem double_problem(std::vector<KronShape> factors) {
  return kron_problem(std::move(factors), Dtype::float64);
}

std::optional<KronDouble> plan_one(const KronShape& factor, const KronGpuPlace& place, const KronGpuProblem& problem) {
  const std::vector<KronShape> factors = {factor};
  return plan_kron_double(kron_types(Dtype::float64), factors, place, problem);
}

/// Warps divide the tile into whole instructions, a quarter of the registers are left, and shared memory holds it.
void expect_fits(const KronDouble& kernel, std::int64_t shared_per_block) {
  ASSERT_LE(kernel.shared_bytes(), shared_per_block);
  ASSERT_EQ(kernel.group_warps % kernel.warps_q, 0);
  const std::int64_t warp_q = kernel.tile_q / kernel.warps_q;
  const std::int64_t warp_n = kernel.tile_n / (kernel.group_warps / kernel.warps_q);
  ASSERT_EQ(warp_q * kernel.warps_q, kernel.tile_q);
  ASSERT_EQ(warp_q % (kernel.last ? 8 : 16), 0);
  ASSERT_EQ(warp_n % (kernel.last ? 16 : 8), 0);
  ASSERT_LE(warp_q * warp_n, kernel.groups == 3 ? 32 * 32 : 64 * 32);
  ASSERT_LE(kernel.threads(), 384);
  ASSERT_GE(kernel.tile_q * kernel.q_tiles(), kernel.q);
}

TEST(KronDoublePlan, EveryShapeFitsABlock) {
  constexpr std::int64_t kExtents[] = {1, 2, 15, 16, 17, 33, 50, 64, 65, 100, 127, 128, 129, 200, 256, 333, 512, 1000};
  for (const std::int64_t p : kExtents)
    for (const std::int64_t q : kExtents)
      for (const std::int64_t right : {1, 3, 16, 64, 1000})
        for (const std::int64_t rows : {1, 7, 1024})
          for (const int capability : {80, 86, 90}) {
            KronGpuProblem problem = double_problem({{p, q}});
            problem.capability = capability;
            problem.shared_per_block = (capability == 80 ? 163 : capability == 86 ? 99 : 227) << 10;
            const KronGpuPlace place = {1, rows, 1, right};
            const auto kernel = plan_one({p, q}, place, problem);
            ASSERT_EQ(kernel.has_value(), std::max(p, q) >= 12) << p << " " << q;
            if (!kernel) continue;
            expect_fits(*kernel, problem.shared_per_block);
            ASSERT_EQ(kernel->deep, capability == 90);
            ASSERT_GE(kernel->blocks(place), 1);
            ASSERT_LE(kernel->blocks(place), problem.multiprocessors);
            if (kernel->held) ASSERT_EQ(kernel->blocks(place) % kernel->q_tiles(), 0);
          }
}

TEST(KronDoublePlan, WhomItDoesNotServe) {
  const KronShape factor = {64, 64};
  const std::vector<KronShape> pair = {factor, factor}, one = {factor};
  const KronGpuPlace place = {1, 8, 1, 64};
  KronGpuProblem problem = double_problem(pair);
  EXPECT_TRUE(plan_one(factor, place, problem));
  EXPECT_FALSE(plan_kron_double(kron_types(Dtype::float64), pair, {1, 8, 1, 1}, problem));
  EXPECT_FALSE(plan_kron_double(kron_types(Dtype::float32), one, place, problem));
  EXPECT_FALSE(plan_kron_double(kron_types(Dtype::int64), one, place, problem));
  problem.capability = 75;
  EXPECT_FALSE(plan_one(factor, place, problem));
}

/// Two at a time where neighbours in memory are even in number, on each side for itself.
TEST(KronDoublePlan, Widths) {
  const KronGpuProblem problem = double_problem({{52, 51}, {3, 3}});
  const auto last = plan_one({52, 51}, {1, 8, 3, 1}, problem), middle = plan_one({51, 51}, {1, 8, 1, 6}, problem),
             odd = plan_one({52, 52}, {1, 8, 1, 3}, problem);
  ASSERT_TRUE(last && middle && odd);
  EXPECT_EQ(last->in_width, 2);
  EXPECT_EQ(last->out_width, 1);
  EXPECT_EQ(middle->in_width, 2);
  EXPECT_EQ(middle->out_width, 2);
  EXPECT_EQ(odd->in_width, 1);
  EXPECT_EQ(odd->out_width, 1);
}

/// Twice the rows take up to twice the time; no pass is faster than memory and than products at full rate.
TEST(KronDoublePlan, Estimates) {
  for (const std::int64_t size : {20, 64, 128, 300})
    for (const std::int64_t right : {1, 64}) {
      const KronGpuPlace place = {1, 4096, 1, right}, larger = {1, 8192, 1, right};
      const auto kernel = plan_one({size, size}, place, double_problem({{size, size}}));
      ASSERT_TRUE(kernel);
      const KronDoubleCosts& costs = costs_of(90).kron.doubles;
      const double once = kernel->seconds(place, costs), twice = kernel->seconds(larger, costs);
      const auto elements = static_cast<double>(4096 * right * size);
      EXPECT_GT(twice, once);
      EXPECT_LE(twice, 2 * once);
      EXPECT_GT(once, 16 * elements / 4.2e12);
      EXPECT_GT(once, 2 * elements * static_cast<double>(size) / 62e12);
    }
}

TEST(KronDoublePlan, LargeFactorsTakeIt) {
  for (const std::int64_t size : {40, 64, 100, 128, 200, 512}) {
    KronGpuProblem problem = double_problem({{size, size}, {size, size}});
    problem.rows = 256;
    const KronGpuPlan plan = plan_kron_gpu(problem);
    ASSERT_EQ(plan.passes.size(), 2u) << size;
    for (const KronGpuPass& pass : plan.passes) EXPECT_TRUE(std::holds_alternative<KronDouble>(pass.kernel)) << size;
    EXPECT_TRUE(std::get<KronDouble>(plan.passes[0].kernel).last != std::get<KronDouble>(plan.passes[1].kernel).last);
  }
}

}  // namespace
}  // namespace mercer::plan
