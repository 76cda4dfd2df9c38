// Rotated loops: a turn holds every step of every vector once, in an order that keeps values alive until they are read.
#include "plan/cpu/rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ir/passes/passes.h"
#include "mercer/formula.h"
#include "plan/cpu/planner.h"

namespace mercer::plan {
namespace {

constexpr int kVectors = 3, kRegisters = 13;

ir::Program update_of(const char* text, Target target = Target::x86_avx2) {
  PairProblem problem;
  problem.outputs = {ir::simplify(parse(text))};
  problem.target = target;
  return plan_pairs(problem)->general.update;
}

std::optional<Rotation> rotated(const ir::Program& update, int registers = kRegisters,
                                Target target = Target::x86_avx2) {
  return rotate(update, kVectors, registers, target_info(target));
}

TEST(Rotation, ThePlacesThatLeaveMostRegistersWin) {
  PairProblem problem;
  problem.outputs = {ir::simplify(parse("sum(abs(x-z)^1.3)"))};
  problem.target = Target::x86_avx2;
  const auto plan = plan_pairs(problem);
  const auto general = rotated(plan->general.update), narrow = rotated(plan->fast.update);
  ASSERT_TRUE(general && narrow);
  EXPECT_LT(narrow->registers, general->registers);
}

TEST(Rotation, ATurnHoldsEveryStepOfEveryVectorOnce) {
  const ir::Program update = update_of("sum(abs(x-z)^1.3)");
  const auto r = rotated(update);
  ASSERT_TRUE(r);
  ir::verify(r->program);
  EXPECT_EQ(r->program.code.size(), update.code.size());
  EXPECT_LE(r->registers, kRegisters);
  std::vector<int> count(r->program.code.size() * kVectors, 0);
  for (const Rotation::Step& step : r->steps) ++count[step.instr * kVectors + step.vector];
  for (std::size_t i = 0; i < r->program.code.size(); ++i)
    for (int v = 0; v < kVectors; ++v) EXPECT_EQ(count[i * kVectors + v], is_leaf(r->program.code[i].op) ? 0 : 1);
}

TEST(Rotation, ValuesAreReadAfterTheyAreMadeAndBeforeTheNextFeatureMakesThem) {
  for (const char* text : {"sum(abs(x-z)^1.3)", "sum(exp(-abs(x-z)))", "sum(sin(x-z))"}) {
    const auto r = rotated(update_of(text));
    ASSERT_TRUE(r) << text;
    const int turn = static_cast<int>(r->steps.size());
    std::vector<int> time(r->program.code.size() * kVectors, -1);
    int tails = 0;
    for (int at = 0; at < turn; ++at) {
      const Rotation::Step& step = r->steps[at];
      time[step.instr * kVectors + step.vector] = at + (step.tail ? turn : 0);
      tails += step.tail;
    }
    EXPECT_GT(tails, 0) << text;
    EXPECT_LT(tails, turn) << text;
    for (std::size_t i = 0; i < r->program.code.size(); ++i)
      for (std::int32_t o : operands(r->program.code[i])) {
        if (o < 0 || is_leaf(r->program.code[o].op)) continue;
        for (int v = 0; v < kVectors; ++v) {
          const int made = time[o * kVectors + v], read = time[i * kVectors + v];
          EXPECT_GT(read, made) << text << ", instructions " << o << " and " << i;
          EXPECT_LT(read, made + turn) << text << ", instructions " << o << " and " << i;
        }
      }
  }
}

TEST(Rotation, FewRegistersShortenTheOverlapOrForbidIt) {
  const ir::Program update = update_of("sum(abs(x-z)^1.3)");
  const auto wide = rotated(update), narrow = rotated(update, 7);
  ASSERT_TRUE(wide);
  ASSERT_TRUE(narrow);
  EXPECT_LE(narrow->registers, 7);
  EXPECT_LT(narrow->registers, wide->registers);
  EXPECT_FALSE(rotated(update, 3));
}

TEST(Rotation, ShortProgramsAndStatesReadTwiceAreLeftAlone) {
  EXPECT_FALSE(rotated(update_of("sum((x-z)^2)")));
  ir::Program update = update_of("sum(abs(x-z)^1.3)");
  ASSERT_TRUE(rotated(update));
  const auto state = std::find_if(update.code.begin(), update.code.end(), [&](const ir::Instr& i) {
    return i.op == ir::Prim::input && update.inputs[i.index].site == ir::Site::accumulator;
  });
  const auto number = static_cast<std::int32_t>(state - update.code.begin());
  const std::int32_t term = update.outputs[0];
  update.code.push_back({.op = ir::Prim::max, .a = term, .b = number});
  update.outputs[0] = static_cast<std::int32_t>(update.code.size()) - 1;
  EXPECT_FALSE(rotated(update)) << "the sum would read a state that the maximum has changed";
}

TEST(Rotation, DivisionsAndTargetsOfManyRegistersAreLeftAlone) {
  EXPECT_FALSE(rotated(update_of("sum(tanh(x-z))")));
  const ir::Program update = update_of("sum(abs(x-z)^1.3)", Target::x86_avx512);
  EXPECT_FALSE(rotated(update, 20, Target::x86_avx512));
}

}  // namespace
}  // namespace mercer::plan
