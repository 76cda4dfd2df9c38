// Plans of typical formulas: what becomes a stage, a stream, a state; tiles, chunks and floors.
#include "plan/cpu/planner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "ir/passes/passes.h"
#include "mercer/formula.h"
#include "plan/cpu/registers.h"

namespace mercer::plan {
namespace {

std::shared_ptr<const PairPlan> plan_of(const char* text, Target target = Target::x86_avx512,
                                        Dtype type = Dtype::float32) {
  PairProblem problem;
  problem.outputs = {ir::simplify(parse(text))};
  problem.type = type;
  problem.target = target;
  return plan_pairs(problem);
}

int accumulators(const PairPlan& plan) {
  return static_cast<int>(plan.promoted.size()) * plan.tile.rows * plan.tile.vectors;
}

TEST(Planner, NormsAndMeansBecomeStages) {
  const auto cosine = plan_of("1 - sum(x*z)/sqrt(sum(x*x)*sum(z*z))");
  EXPECT_EQ(cosine->sides.stages.size(), 2u);
  EXPECT_EQ(cosine->general.split.states, 1);
  const auto centred = plan_of("sum((x - sum(x)/K)*(z - sum(z)/K))");
  EXPECT_EQ(centred->sides.stages.size(), 2u);
  EXPECT_EQ(centred->sides.x_streams.size(), 1u);
  EXPECT_FALSE(centred->sides.x_streams[0].plain);
}

TEST(Planner, OneSidedFunctionsBecomeStreams) {
  const auto plan = plan_of("sum((sqrt(x)-sqrt(z))^2)");
  ASSERT_EQ(plan->sides.x_streams.size(), 1u);
  EXPECT_FALSE(plan->sides.x_streams[0].plain);
  EXPECT_FALSE(plan->sides.z_streams[0].plain);
  EXPECT_TRUE(plan_of("sum(abs(x-z))")->sides.x_streams[0].plain);
  EXPECT_TRUE(plan_of("sum(abs(x-z))")->sides.stages.empty());
}

TEST(Planner, SumsArePromotedAndOthersAreNot) {
  const auto plan = plan_of("sum(abs(x-z)) + max(abs(x-z))");
  ASSERT_EQ(plan->promoted.size(), 2u);
  EXPECT_NE(plan->promoted[0], plan->promoted[1]);
  EXPECT_TRUE(plan_of("row*col")->promoted.empty());
}

TEST(Planner, TilesOfOneRowTakeLongEpiloguesIntoTheirKernel) {
  const auto root = plan_of("sum(abs(x-z)^1.3)^(1/1.3)", Target::x86_avx2);
  ASSERT_EQ(root->tile.rows, 1);
  EXPECT_TRUE(root->can_fuse(root->has_fast));
}

TEST(Planner, MaximaOfMagnitudesStartAtZeroUnlessThereAreNoFeatures) {
  EXPECT_EQ(plan_of("max(abs(x-z))")->general.identity[0], 0.0);
  PairProblem empty;
  empty.outputs = {ir::simplify(parse("max(abs(x-z))"))};
  empty.empty_features = true;
  EXPECT_EQ(plan_pairs(empty)->general.identity[0], -std::numeric_limits<double>::infinity());
}

TEST(Planner, ParametersOfTheEpilogueAloneDoNotRepeatTheAccumulation) {
  EXPECT_TRUE(plan_of("exp(-sum(abs(x-z))/b)")->accumulation_params.empty());
  EXPECT_EQ(plan_of("exp(-sum(max(abs(x-z)-c,0))/b)")->accumulation_params.size(), 1u);
}

TEST(Planner, IdentitiesMustBeNumbers) { EXPECT_THROW(plan_of("reduce(x*z, state+incoming, identity=t)"), Error); }

TEST(Planner, AbsoluteDifferencesAreSumsOfMaxima) {
  EXPECT_EQ(plan_of("sum(abs(x-z))", Target::interpreter)->maxima.factor, 0);
  for (Target target : {Target::x86_avx512, Target::x86_avx2}) {
    const auto plan = plan_of("exp(-sum(abs(x-z))/b)", target);
    EXPECT_EQ(plan->maxima.factor, 1);
    EXPECT_LT(count_pipes(plan->maxima.update, target_info(target)).cycles(),
              count_pipes(plan->best().update, target_info(target)).cycles());
    EXPECT_TRUE(plan->pays_maxima(4096, 4096, 256));
    EXPECT_FALSE(plan->pays_maxima(300, 300, 256));   // looking at the data would be felt
    EXPECT_FALSE(plan->pays_maxima(8, 1000000, 256));  // so would packing them
    EXPECT_FALSE(plan->pays_maxima(4096, 4096, 2));
    EXPECT_FALSE(plan->pays_maxima(4096, 4096, 0));
    EXPECT_EQ(floor_of(*plan, 300, 300, 256).update_cycles, floor_of(*plan).update_cycles);
    EXPECT_LT(floor_of(*plan, 4096, 4096, 256).update_cycles, floor_of(*plan).update_cycles);
  }
  EXPECT_EQ(floor_of(*plan_of("sum(abs(x-z))"), 4096, 4096, 256).update_cycles, 1.0);
  EXPECT_EQ(plan_of("sum(2*abs(z-x))")->maxima.factor, 2);
  EXPECT_EQ(plan_of("sum(abs(sqrt(x)-sqrt(z)))^2 + row")->maxima.factor, 1);
  for (const char* other : {"sum(-abs(x-z))", "sum(t*abs(x-z))", "sum(w*abs(x-z))", "sum(abs(x-z)^2)", "sum(abs(x+z))",
                            "max(abs(x-z))", "sum(abs(x-z)) + sum(x*z)", "sum(abs(x-z-row))", "sum(x*z)", "row"})
    EXPECT_EQ(plan_of(other)->maxima.factor, 0) << other;
  for (Target target : {Target::x86_avx512, Target::x86_avx2}) {
    const auto plan = plan_of("sum(abs(x-z))", target, Dtype::float64);
    EXPECT_EQ(plan->maxima.factor, 1);
    // A maximum and a multiply-add, which do not share a pipe.
    EXPECT_EQ(floor_of(*plan, 4096, 4096, 256).update_cycles, target == Target::x86_avx512 ? 1.0 : 0.5);
  }
}

TEST(Planner, ChunksOfMaximaAreEven) {
  for (std::int64_t longest : maxima_chunks(Dtype::float32))
    for (std::int64_t k : {1, 64, 128, 129, 513, 1000, 100000}) {
      const std::int64_t chunk = maxima_chunk(k, longest), chunks = (k + chunk - 1) / chunk;
      EXPECT_LE(chunk, longest);
      EXPECT_GT(chunk * chunks + chunks, k);
    }
}

TEST(Planner, ChunksAreEvenAndShort) {
  const auto plan = plan_of("sum(abs(x-z))");
  EXPECT_EQ(plan->chunk(0), 1);
  EXPECT_EQ(plan->chunk(64), 64);
  EXPECT_EQ(plan->chunk(100), 50);
  for (std::int64_t k : {65, 257, 512, 513, 1024, 4096, 100000}) {
    EXPECT_LE(plan->chunk(k), 256) << k;
    EXPECT_GE(plan->chunk(k), 33) << k;
    const std::int64_t chunks = (k + plan->chunk(k) - 1) / plan->chunk(k);
    EXPECT_GT(plan->chunk(k) * chunks + chunks, k);
  }
  EXPECT_EQ(plan_of("max(abs(x-z))")->chunk(5000), 5000);
  EXPECT_EQ(plan_of("sum(abs(x-z))", Target::x86_avx512, Dtype::float64)->chunk(5000), 5000);
}

TEST(Planner, TilesFitTheRegisters) {
  for (const char* text : {"sum(abs(x-z))", "sum((x-z)^2)", "sum(x*z)", "max(abs(x-z))", "sum(abs(x-z)^1.3)",
                           "sum(exp(-abs(x-z)))", "sum(abs(x-z)) + max(x*z) + sum(w*(x-z)^2)", "prod(1+x*z)"})
    for (Dtype type : {Dtype::float32, Dtype::float64})
      for (Target target : {Target::x86_avx512, Target::x86_avx2}) {
        const auto plan = plan_of(text, target, type);
        EXPECT_EQ(plan->tile.lanes, target_info(target).lanes(type)) << text;
        EXPECT_LE(accumulators(*plan) + static_cast<int>(plan->sides.z_streams.size()) * plan->tile.vectors,
                  target_info(target).registers - 1)
            << text;
      }
}

TEST(Planner, ShortTermsTakeTheLargeTile) {
  for (const char* text : {"sum(abs(x-z))", "sum((x-z)^2)", "sum(x*z)", "max(abs(x-z))"}) {
    const TileShape tile = plan_of(text)->tile;
    EXPECT_EQ(tile.rows, 8) << text;
    EXPECT_EQ(tile.vectors, 3) << text;
  }
}

TEST(Planner, WithSixteenRegisters) {
  // Five steps: the constants 0, 1 and the parameter are in registers once.
  const TileShape clipped = plan_of("sum(max(abs(x-z)-c,0)^2)", Target::x86_avx2)->tile;
  EXPECT_EQ(clipped.rows, 3);
  EXPECT_EQ(clipped.vectors, 2);
  for (const char* text : {"sum(abs(x-z)^1.3)", "sum(exp(-abs(x-z)))", "sum(abs(x-z)^p)"}) {
    const TileShape tile = plan_of(text, Target::x86_avx2)->tile;
    EXPECT_EQ(tile.rows, 1) << text;
    EXPECT_EQ(tile.vectors, 3) << text;
  }
}

TEST(Planner, Avx2TakesShortTablesForFixedPowers) {
  const auto lookups = [](const ir::Program& update) {
    return std::count_if(update.code.begin(), update.code.end(),
                         [](const ir::Instr& instr) { return instr.op == ir::Prim::table16; });
  };
  const auto avx2 = plan_of("sum(abs(x-z)^1.3)", Target::x86_avx2);
  EXPECT_EQ(lookups(avx2->general.update), 3);
  EXPECT_EQ(lookups(avx2->best().update), 2);
  EXPECT_EQ(lookups(plan_of("sum(abs(x-z)^1.3)", Target::x86_avx512)->best().update), 2);
  // Data that are finite, but not narrow, would otherwise run a program for all that takes four times as long.
  EXPECT_EQ(lookups(plan_of("sum(abs(x-z)^0.3)", Target::x86_avx2)->best().update), 3);
}

TEST(Planner, OnlyPowersOfDifferencesAskForNarrowData) {
  const auto least = [](const char* text, Target target = Target::x86_avx2, Dtype type = Dtype::float32) {
    PairProblem problem;
    problem.outputs = {ir::simplify(parse(text))};
    problem.target = target;
    problem.type = type;
    return plan_pairs(problem)->best().magnitudes.least;
  };
  for (const char* text : {"sum(abs(x-z)^1.3)", "sum(abs(z-x)^2.2)^(1/2.2)", "sum(w*abs(x+z)^1.3)"})
    EXPECT_EQ(least(text), ir::kNarrow.least) << text;
  for (const char* text : {"sum(abs(x*z)^1.3)", "sum(abs(x-z-w)^1.3)", "max(abs(x-z))"})
    EXPECT_EQ(least(text), 0) << text;
  EXPECT_EQ(least("sum(abs(x-z)^0.3)"), ir::kCoarse.least);
  for (Target target : {Target::x86_avx512, Target::interpreter})
    EXPECT_EQ(least("sum(abs(x-z)^1.3)", target), ir::kNarrow.least);
  EXPECT_EQ(least("sum(abs(x-z)^1.3)", Target::x86_avx512, Dtype::float64), ir::kNarrow.least);
}

/// Where its exponents then begin with a zero saves more than taking the scale back elsewhere costs.
TEST(Planner, PackingScalesDataForShortTables) {
  const auto scale = [](const char* text, Target target, Dtype type = Dtype::float32) {
    PairProblem problem;
    problem.outputs = {ir::simplify(parse(text))};
    problem.target = target;
    problem.type = type;
    return plan_pairs(problem)->best().magnitudes.scale;
  };
  EXPECT_EQ(scale("sum(abs(x-z)^1.3)", Target::x86_avx2), ir::kNarrowScale);
  EXPECT_EQ(scale("sum(abs(x-z)^1.3 + x*z)", Target::x86_avx2), 1);
  EXPECT_EQ(scale("sum(abs(x-z)^1.3)", Target::x86_avx512), 1);
  EXPECT_EQ(scale("sum(abs(x-z))", Target::x86_avx2), 1);
  // The narrow scale tells 0 from other exponents in float64, with tables of sixteen too.
  EXPECT_EQ(scale("sum(abs(x-z)^1.3)", Target::x86_avx512, Dtype::float64), ir::kNarrowScale);
}

TEST(Planner, RootsOfSumsThatAreNormalNumbersTakeLookups) {
  const auto lookups = [](const char* text, Target target = Target::x86_avx2) {
    return plan_of(text, target)->best().epilogue.tables.size();
  };
  const std::size_t general = lookups("sum(abs(x-z)^1.3)^0.7", Target::x86_avx512);
  EXPECT_EQ(lookups("sum(abs(x-z)^1.3)^0.7"), 3u);
  for (const char* text : {"sum(w*abs(x-z)^1.3)^0.7", "sum(abs(x-z)^2.7)^0.7", "sum(abs(x-z))^0.7"})
    EXPECT_EQ(lookups(text), general) << text;
}

TEST(Planner, FewRowsTakeALowerTile) {
  PairProblem problem;
  problem.outputs = {ir::simplify(parse("sum(abs(x-z))"))};
  problem.target = Target::x86_avx512;
  problem.rows_hint = 1;
  EXPECT_EQ(plan_pairs(problem)->tile.rows, 1);
  problem.rows_hint = 3;
  EXPECT_EQ(plan_pairs(problem)->tile.rows, 4);
}

TEST(Planner, PlanesHoldWholeTiles) {
  PairProblem problem;
  problem.outputs = {ir::simplify(parse("sum(abs(x-z))"))};
  problem.target = Target::x86_avx512;
  EXPECT_EQ(plan_pairs(problem)->plane_width(), plan_pairs(problem)->tile.cols());
  problem.block_columns = 200;
  const auto plan = plan_pairs(problem);
  EXPECT_EQ(plan->plane_width() % plan->tile.cols(), 0);
  EXPECT_LE(plan->plane_width(), 200);
}

/// Cycles a vector of the update on a machine that runs one 512-bit instruction of each class a cycle.
double floor_cycles(const char* text, Target target = Target::x86_avx512) {
  return floor_of(*plan_of(text, target)).update_cycles;
}

TEST(Planner, FloorsOfTheClassicNorms) {
  EXPECT_DOUBLE_EQ(floor_cycles("sum(x*z)"), 1.0);
  EXPECT_DOUBLE_EQ(floor_cycles("sum((x-z)^2)"), 1.0);
  // |x - z| is a subtraction and a bit operation, the sum an addition; one of the two additions may go to the
  // multiplier.
  EXPECT_DOUBLE_EQ(floor_cycles("sum(abs(x-z))"), 1.5);
  EXPECT_DOUBLE_EQ(floor_cycles("sum(abs(x-z)^3)"), 2.0);
  EXPECT_DOUBLE_EQ(floor_cycles("sum(x*z)", Target::x86_avx2), 0.5);
  EXPECT_DOUBLE_EQ(floor_cycles("sum(abs(x-z))", Target::x86_avx2), 0.75);
  EXPECT_DOUBLE_EQ(floor_cycles("sum(abs(x-z)^1.3)", Target::x86_avx2), 3.25);
  EXPECT_DOUBLE_EQ(floor_cycles("sum(abs(x-z)^1.3)"), 6.5);
}

TEST(Planner, TheRateSpreadsTheEpilogueOverTheFeatures) {
  const Floor floor{1.0, 10.0, 16};
  EXPECT_DOUBLE_EQ(floor.elements_per_second(1e9, 10), 16e9 / 2.0);
  EXPECT_DOUBLE_EQ(floor.elements_per_second(1e9, 0), 16e9 / 11.0);
}

TEST(Planner, TextNamesTheTileAndTheVariants) {
  const std::string text = plan_of("exp(-sum(abs(x-z))/b)")->to_text();
  EXPECT_NE(text.find("x86_avx512"), std::string::npos);
  EXPECT_NE(text.find("partial sums promoted"), std::string::npos);
}

}  // namespace
}  // namespace mercer::plan
