// Sums that are products of matrices: which are, and which tile serves a call.
#include "plan/forms/bilinear.h"

#include <gtest/gtest.h>

#include "ir/passes/passes.h"
#include "mercer/formula.h"
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/floor.h"
#include "plan/gpu/plan.h"

namespace mercer::plan {
namespace {

constexpr int kMultiprocessors = 132;

Bilinear bilinear(const char* text) { return bilinear_of(ir::split({ir::simplify(parse(text))})); }

BilinearTile tile(std::int64_t m, std::int64_t n, std::int64_t k, Precision precision = Precision::fp32) {
  return bilinear_tile(m, n, k, precision, kMultiprocessors, costs_of(90));
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
  EXPECT_TRUE(weighted.weighted());
  EXPECT_EQ(weighted.factor * (weighted.kind == BilinearKind::square), 2);
  EXPECT_FALSE(bilinear("sum(x*z)").weighted());
  GpuPairProblem problem;
  problem.outputs = {ir::simplify(parse("sum(1e-60*(x-z)^2)"))};
  problem.product = tile(30000, 30000, 1024);
  EXPECT_FALSE(plan_gpu_pairs(problem)->products.bilinear) << "no float32";
  problem.type = problem.arrays.out = Dtype::float64;
  EXPECT_EQ(plan_gpu_pairs(problem)->products.bilinear.factor, 1e-60);
}

/// However a user writes them, length scales are functions of w; what is under a root there has none of their squares.
TEST(Bilinear, FunctionsOfTheWeights) {
  for (auto [text, multiplier] : {std::pair("sum(((x-z)/w)^2)", "1/w"), {"sum((x-z)^2/w^2)", "1/w"},
                                  {"sum(w^2*(x-z)^2/(2*h))", "w"}, {"sum((x-z)^2/w)", "sqrt(1/w)"},
                                  {"sum(w^3*(x-z)^2)", "w*sqrt(w)"}, {"sum(exp(-2*w)*(x-z)^2)", "sqrt(exp(-2*w))"},
                                  {"sum(x*z/w^2)", "1/(w*w)"}, {"sum((w*x)*(w*z))", ""}}) {
    const Bilinear own = bilinear(text);
    ASSERT_TRUE(own) << text;
    if (*multiplier == 0)
      EXPECT_FALSE(own.weighted()) << "the sides have them";
    else
      EXPECT_EQ(own.multiplier_text, ir::simplify(parse(multiplier)).to_text()) << text;
  }
  for (const char* text : {"sum(w/w*(x-z)^2)", "sum((w+h)*(x-z)^2)", "sum(max(w, x)*(x-z)^2)"})
    EXPECT_FALSE(bilinear(text)) << text;
}

/// However a user writes it, what is the same for all features scales the operands.
TEST(Bilinear, ParametersOfEveryTerm) {
  for (const char* text : {"sum(((x-z)/h)^2)", "exp(-sum((x-z)^2/h^2)/2)", "sum(-0.5*(x-z)^2/(h*g))",
                           "sum(w*(x-z)^2/h)", "exp(-sum(square(g*(x-z))))"}) {
    EXPECT_EQ(bilinear(text).kind, BilinearKind::square) << text;
    EXPECT_FALSE(bilinear(text).uniforms.empty()) << text;
  }
  EXPECT_EQ(bilinear("sum(-0.5*(x-z)^2/h)").factor, -0.5);
  EXPECT_TRUE(bilinear("sum((x-z)^2/h)").uniforms[0].divides);
  EXPECT_EQ(bilinear("sum(x*z/h)").kind, BilinearKind::product);
  EXPECT_EQ(bilinear("-sum(-x*z*h)").kind, BilinearKind::product);
  EXPECT_TRUE(bilinear("sum((x/h-z/h)^2)").uniforms.empty()) << "the sides have them";
  for (const char* text : {"sum(x/z)", "sum((x-z)^2/row)", "sum(a*b*c*d*e*f*g*h*i*x*z*l)"})
    EXPECT_FALSE(bilinear(text)) << text;
}

TEST(BilinearTile, PaysForLargeCallsOnly) {
  EXPECT_TRUE(tile(30000, 30000, 1024));
  EXPECT_TRUE(tile(2048, 2048, 256));
  EXPECT_FALSE(tile(1024, 1024, 256));
  EXPECT_TRUE(tile(30000, 30000, 20));
  EXPECT_FALSE(tile(30000, 30000, 19)) << "multiply-adds are faster";
  const auto fold = [](std::int64_t k, std::int64_t columns) {
    return bilinear_fold_tile(30000, 30000, k, columns, Precision::fp32, costs_of(90));
  };
  EXPECT_TRUE(fold(17, 1));
  EXPECT_FALSE(fold(23, 0)) << "of folds that keep one value";
  EXPECT_FALSE(tile(1 << 20, 255, 1024)) << "operands cost more than they save";
  EXPECT_FALSE(tile(1 << 18, 1 << 18, 64)) << "more pairs than the list counts";
  EXPECT_FALSE(tile(0, 30000, 1024));
}

TEST(BilinearTile, FewTilesOfManyFeaturesGoInRanges) {
  const BilinearTile large{.columns = 192}, brief{.columns = 128, .brief = 2}, warps{.columns = 128, .by_warps = true};
  EXPECT_EQ(feature_ranges(large, 9, 80000, kMultiprocessors, costs_of(90)), 7) << "of two blocks a tile";
  EXPECT_EQ(feature_ranges(large, 1, 3000, kMultiprocessors, costs_of(90)), 2) << "of 1024 features at least";
  EXPECT_EQ(feature_ranges(large, 1, 1 << 17, kMultiprocessors, costs_of(90)), 16);
  EXPECT_EQ(feature_ranges(large, 67, 80000, kMultiprocessors, costs_of(90)), 1);
  for (const BilinearTile& tile : {brief, warps})
    EXPECT_EQ(feature_ranges(tile, 1, 80000, kMultiprocessors, costs_of(90)), 1);
  EXPECT_EQ(tile(768, 768, 80000).columns, 192) << "wide tiles read less";
}

TEST(BilinearTile, OfNearestNeighbours) {
  EXPECT_EQ(bilinear_nearest_tile(100000, 1 << 20, 128, Precision::fp32, costs_of(90)).columns, 192);
  EXPECT_EQ(bilinear_nearest_tile(100000, 1 << 20, 64, Precision::fp32, costs_of(90)).brief, 2);
  EXPECT_TRUE(bilinear_nearest_tile(100000, 1 << 20, 64, Precision::tf32, costs_of(90)).single);
  EXPECT_FALSE(bilinear_nearest_tile(100000, 1 << 20, 64, Precision::direct, costs_of(90)));
  EXPECT_FALSE(bilinear_nearest_tile(100, 1 << 20, 64, Precision::fp32, costs_of(90))) << "few rows";
}

/// The epilogue waits where it rises with the sum, and nothing of one side or a parameter is in it.
TEST(BilinearTile, SumsDecideWhichPairsAreNear) {
  const auto decide = [](const char* text) {
    GpuPairProblem problem;
    problem.outputs = {ir::simplify(parse(text))};
    problem.consumer = Consumer::nearest;
    return plan_gpu_pairs(problem)->folding.sums_decide;
  };
  for (const char* text : {"sum((x-z)^2)", "sqrt(sum((x-z)^2))", "2*sum(abs(x-z))", "sum(abs(x-z)^3)^(1/3)", "sum(x*z)",
                           "sqrt(sum((x-z)^2))/3"})
    EXPECT_TRUE(decide(text)) << text;
  for (const char* text : {"-sum(x*z)", "sqrt(sum(x*z))", "sum((x-z)^2)*row", "sum((x-z)^2)/b", "exp(-sum((x-z)^2))",
                           "sum((x-z)^2)^-1"})
    EXPECT_FALSE(decide(text)) << text;
}

TEST(BilinearTile, OfFewFeaturesWithManyColumns) {
  const auto wide = [](std::int64_t k, std::int64_t columns, Precision precision = Precision::fp32) {
    return wide_tile(100000, 100000, k, columns, precision, costs_of(90));
  };
  EXPECT_TRUE(wide(3, 16).of_values);
  EXPECT_EQ(wide(3, 16).blocks, 2);
  EXPECT_EQ(wide(16, 16).blocks, 1);
  EXPECT_EQ(wide(3, 200).wide, 104) << "two passes of as many columns";
  EXPECT_FALSE(wide(17, 16));
  EXPECT_FALSE(wide(3, 4)) << "multiply-adds do";
  EXPECT_FALSE(wide(3, 16, Precision::direct));
  EXPECT_FALSE(wide_tile(1000, 1000, 3, 16, Precision::fp32, costs_of(90)));
}

/// A pass of more than 104 columns, by tiles of half the matrix's columns, where it saves passes enough.
TEST(BilinearTile, PassesOfManyColumns) {
  struct Row {
    std::int64_t k, columns;
    int wide, tile;
  };
  for (const Row& row : {Row{64, 104, 104, 128}, {64, 128, 128, 64}, {64, 256, 128, 64}, {64, 512, 104, 128},
                         {784, 104, 104, 128}, {784, 512, 128, 64}, {784, 1024, 128, 64}, {784, 300, 104, 128}}) {
    const BilinearTile tile = bilinear_fold_tile(50000, 50000, row.k, row.columns, Precision::fp32, costs_of(90));
    EXPECT_EQ(tile.wide, row.wide) << row.k << " features, " << row.columns << " columns";
    EXPECT_EQ(tile.columns, row.tile) << row.k << " features, " << row.columns << " columns";
  }
  EXPECT_EQ(wide_tile(100000, 100000, 3, 512, Precision::fp32, costs_of(90)).wide, 128);
}

/// Values are stored where passes would make them several times over.
TEST(BilinearTile, KeepsValuesOfVeryManyColumns) {
  const auto keeps = [](std::int64_t m, std::int64_t k, std::int64_t columns, Precision precision = Precision::fp32) {
    return bilinear_fold_tile(m, m, k, columns, precision, costs_of(90)).keeps;
  };
  EXPECT_FALSE(keeps(50000, 64, 128));
  EXPECT_TRUE(keeps(50000, 64, 256));
  EXPECT_TRUE(keeps(50000, 64, 512));
  EXPECT_TRUE(keeps(10000, 784, 256));
  EXPECT_FALSE(keeps(10000, 784, 100)) << "one pass";
  EXPECT_FALSE(keeps(1000, 784, 512)) << "few rows";
  EXPECT_FALSE(keeps(4096, 64, 512)) << "the other kernels cost more";
  EXPECT_FALSE(keeps(50000, 64, 512, Precision::tf32));
}

TEST(BilinearTile, OfPlansThatStoreValues) {
  const auto keeps = [](const char* text, int capability = 90) {
    GpuPairProblem problem;
    problem.outputs = {ir::simplify(parse(text))};
    problem.consumer = Consumer::product;
    problem.use.columns = kFewColumns;
    problem.device.capability = capability;
    problem.device.shared_per_block = capability == 90 ? 232448 : 101376;
    problem.sizes = sizes_of(50000, 50000, 64, 132);
    problem.product = bilinear_fold_tile(50000, 50000, 64, 512, Precision::fp32, costs_of(90));
    return plan_gpu_pairs(problem)->keeps();
  };
  EXPECT_TRUE(keeps("exp(-sum((x-z)^2)/(2*b^2))"));
  EXPECT_TRUE(keeps("exp(-sum((x-z)^2)^0.5/b)"));
  EXPECT_TRUE(keeps("exp(-sum(w*(x-z)^2)/b)"));
  EXPECT_FALSE(keeps("(sum(x*z) + 1)^3"));
  EXPECT_FALSE(keeps("exp(-sum((x-z)^2)/b)*row"));
  EXPECT_FALSE(keeps("exp(-sum((x-z)^2)/b)*(i + 1)"));
  EXPECT_FALSE(keeps("exp(-sum((x-z)^2)/(2*b^2))", 86));
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

/// Products of float64 have a tile of their own, whatever the precision is.
TEST(BilinearTile, IsForFloat32) {
  GpuPairProblem problem;
  problem.outputs = {ir::simplify(parse("sum((x-z)^2)"))};
  problem.product = tile(30000, 30000, 1024, Precision::tf32);
  problem.type = problem.arrays.out = Dtype::float64;
  for (int capability : {80, 86, 89, 90, 100, 120})
    for (Consumer consumer : {Consumer::store, Consumer::product, Consumer::fold})
      for (std::int64_t k : {64, 1024})
        for (std::int64_t m : {512, 30000}) {
          problem.device.capability = capability;
          problem.device.shared_per_block = gpu_info(capability).shared_per_block;
          problem.consumer = consumer;
          problem.sizes = sizes_of(m, m, k, 132);
          const auto plan = plan_gpu_pairs(problem);
          ASSERT_TRUE(plan->has_double_products());
          EXPECT_FALSE(plan->problem.product);
          EXPECT_EQ(plan->products.deep_doubles, capability >= 90);
          EXPECT_EQ(plan->products.double_tile.tile_k, 16);
          EXPECT_LE(plan->shared_bytes(plan->products.double_tile, k), problem.device.shared_per_block);
        }
  problem.outputs = {ir::simplify(parse("sum(abs(x-z))"))};
  EXPECT_FALSE(plan_gpu_pairs(problem)->has_double_products());
}

TEST(BilinearTile, WorksByWarpsWhereThereAreNoWarpgroups) {
  GpuPairProblem problem;
  problem.outputs = {ir::simplify(parse("sum((x-z)^2)"))};
  problem.product = tile(30000, 30000, 1024, Precision::tf32);
  for (int capability : {80, 86, 89, 90, 100, 120}) {
    problem.device.capability = capability;
    problem.device.shared_per_block = gpu_info(capability).shared_per_block;
    const auto plan = plan_gpu_pairs(problem);
    const BilinearTile& product = plan->problem.product;
    EXPECT_TRUE(plan->products.bilinear) << capability;
    EXPECT_EQ(product.by_warps, capability != 90) << capability;
    EXPECT_TRUE(product.single) << capability;
    EXPECT_LE(product.shared_bytes(plan->programs.col_slots), problem.device.shared_per_block) << capability;
  }
  EXPECT_EQ(BilinearTile{.columns = 192}.of_warps(1, 16, 101376).stages, 2) << "99 KiB of shared memory";
  EXPECT_FALSE(BilinearTile{.columns = 192}.of_warps(1, 16, 49152)) << "a stage is 32 KiB";
}

}  // namespace
}  // namespace mercer::plan
