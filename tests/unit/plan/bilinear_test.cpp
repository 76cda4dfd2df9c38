// Sums that are products of matrices: which are, and which tile serves a call.
#include "plan/bilinear.h"

#include <gtest/gtest.h>

#include "ir/passes.h"
#include "mercer/formula.h"
#include "plan/gpu_floor.h"
#include "plan/gpu_plan.h"

namespace mercer::plan {
namespace {

constexpr int kMultiprocessors = 132;

Bilinear bilinear(const char* text) { return bilinear_of(ir::split({ir::simplify(parse(text))})); }

BilinearTile tile(std::int64_t m, std::int64_t n, std::int64_t k, Precision precision = Precision::fp32) {
  return bilinear_tile(m, n, k, precision, kMultiprocessors);
}

TEST(Bilinear, ProductsAndSquaresOfAnythingOfOneSide) {
  for (const char* text : {"sum(x*z)", "1 - sum(x*z)/sqrt(sum(x*x)*sum(z*z))", "(1 + sum(x*z)/K)^3",
                           "sum((x - mean(x))*(z - mean(z)))", "sum(sqrt(x)*sqrt(z))"})
    EXPECT_EQ(bilinear(text).kind, BilinearKind::product) << text;
  for (const char* text : {"sum((x-z)^2)", "exp(-sum((z-x)^2)/h)", "sum((sqrt(x)-sqrt(z))^2)", "sum((x-z)^2)^0.5*row"})
    EXPECT_EQ(bilinear(text).kind, BilinearKind::square) << text;
  for (const char* text : {"sum(abs(x-z))", "sum((x+z)^2)", "sum((x-z)^4)", "max((x-z)^2)", "sum((x-z)^2*x*z)",
                           "sum((x-z)^2) + sum(x*z)", "sum(w*x*w*z*x)", "sum(x*z*row)", "row*col"})
    EXPECT_FALSE(bilinear(text)) << text;
}

TEST(Bilinear, FactorsAndWeights) {
  const Bilinear weighted = bilinear("sum(2*w*(x-z)^2)");
  EXPECT_TRUE(weighted.weighted);
  EXPECT_EQ(weighted.factor * (weighted.kind == BilinearKind::square), 2);
  EXPECT_FALSE(bilinear("sum(x*z)").weighted);
  EXPECT_FALSE(bilinear("sum(1e-60*w*(x-z)^2)")) << "no float32";
}

TEST(BilinearTile, PaysForLargeCallsOnly) {
  EXPECT_TRUE(tile(30000, 30000, 1024));
  EXPECT_TRUE(tile(2048, 2048, 256));
  EXPECT_FALSE(tile(1024, 1024, 256));
  EXPECT_FALSE(tile(30000, 30000, 31)) << "a unit has 32 features";
  EXPECT_FALSE(tile(1 << 20, 255, 1024)) << "operands cost more than they save";
  EXPECT_FALSE(tile(1 << 18, 1 << 18, 64)) << "more pairs than the list counts";
  EXPECT_FALSE(tile(0, 30000, 1024));
}

TEST(BilinearTile, FollowsPrecision) {
  EXPECT_FALSE(tile(30000, 30000, 1024, Precision::direct));
  for (Precision precision : {Precision::tf32, Precision::bf16})
    EXPECT_TRUE(tile(30000, 30000, 1024, precision).single);
  EXPECT_FALSE(tile(30000, 30000, 1024).single);
}

TEST(BilinearTile, FollowsSizes) {
  EXPECT_EQ(tile(30000, 30000, 1024).columns, 192);
  EXPECT_EQ(tile(2048, 2048, 256).columns, 128) << "two waves in place of two of larger tiles";
  EXPECT_TRUE(tile(30000, 30000, 64).brief);
  EXPECT_FALSE(tile(30000, 30000, 65).brief);
}

TEST(BilinearTile, FitsAMultiprocessor) {
  constexpr std::int64_t kReserved = 1024, kShared = 228 * 1024, kRegisters = 65536;
  for (const BilinearTile& t : {tile(30000, 30000, 1024), tile(2048, 2048, 256), tile(30000, 30000, 64)}) {
    EXPECT_LE(t.shared_bytes(2), gpu_info(90).shared_per_block) << t.to_text();
    EXPECT_LE(t.blocks * (t.shared_bytes(2) + kReserved), kShared) << t.to_text();
    EXPECT_LE(t.blocks * t.threads() * 32, kRegisters) << t.to_text();
  }
}

TEST(BilinearTile, IsForFloat32) {
  GpuPairProblem problem;
  problem.outputs = {ir::simplify(parse("sum((x-z)^2)"))};
  problem.product = tile(30000, 30000, 1024);
  problem.type = problem.out = Dtype::float64;
  EXPECT_FALSE(plan_gpu_pairs(problem)->bilinear);
}

TEST(BilinearTile, WorksByWarpsWhereThereAreNoWarpgroups) {
  GpuPairProblem problem;
  problem.outputs = {ir::simplify(parse("sum((x-z)^2)"))};
  problem.product = tile(30000, 30000, 1024, Precision::tf32);
  for (int capability : {80, 86, 89, 90, 100, 120}) {
    problem.capability = capability;
    problem.shared_per_block = gpu_info(capability).shared_per_block;
    const auto plan = plan_gpu_pairs(problem);
    const BilinearTile& product = plan->problem.product;
    EXPECT_TRUE(plan->bilinear) << capability;
    EXPECT_EQ(product.by_warps, capability != 90) << capability;
    EXPECT_TRUE(product.single) << capability;
    EXPECT_LE(product.shared_bytes(plan->col_slots), problem.shared_per_block) << capability;
  }
  EXPECT_EQ(BilinearTile{.columns = 192}.of_warps(1, 16, 101376).stages, 2) << "99 KiB of shared memory";
  EXPECT_FALSE(BilinearTile{.columns = 192}.of_warps(1, 16, 49152)) << "a stage is 32 KiB";
}

}  // namespace
}  // namespace mercer::plan
