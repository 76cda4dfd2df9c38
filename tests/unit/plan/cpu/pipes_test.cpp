// What the planner does to programs keeps their results; tiles and floors on a target that does not exist.
#include <gtest/gtest.h>

#include "ir/passes/passes.h"
#include "mercer/formula.h"
#include "plan/cpu/registers.h"
#include "plan/cpu/target.h"
#include "unit/codegen/random_program.h"

namespace mercer::plan {
namespace {

using ir::Prim;
using ir::Site;
using testing::LaneReference;
using testing::LaneValue;
using testing::RandomProgram;

template <class T>
void expect_same_results(const ir::Program& before, const ir::Program& after, std::uint64_t seed) {
  verify(after);
  LaneReference<T> first(before), second(after);
  RandomProgram random(seed);
  random.set_type(dtype_of<T>());
  for (int lane = 0; lane < 40; ++lane) {
    std::vector<LaneValue<T>> inputs(before.inputs.size());
    for (auto& input : inputs) input.value = std::bit_cast<T>(static_cast<ir::Pattern<T>>(random.number()));
    const auto expected = first(inputs), got = second(inputs);
    for (std::size_t o = 0; o < expected.size(); ++o)
      ASSERT_TRUE(testing::agree(got[o].value, expected[o])) << expected[o].value << " became " << got[o].value << "\n"
                                                             << before.to_text() << after.to_text();
  }
}

class Passes : public ::testing::TestWithParam<Dtype> {
 protected:
  template <class Pass>
  void expect_exact(Pass&& pass) {
    int changed = 0;
    for (std::uint64_t seed = 1; seed <= 400; ++seed) {
      RandomProgram random(seed);
      testing::ProgramShape shape;
      shape.type = GetParam();
      shape.inputs = {{Site::x, 0}, {Site::z, 0}, {Site::accumulator, 0}, {Site::accumulator, 1}, {Site::param, 0}};
      shape.outputs = 2;
      shape.size = 4 + static_cast<int>(random.below(16));
      const ir::Program before = testing::without_dead_code(random(shape)), after = pass(before);
      changed += before.to_text() != after.to_text();
      if (GetParam() == Dtype::float64)
        expect_same_results<double>(before, after, seed);
      else
        expect_same_results<float>(before, after, seed);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(changed, 0);
  }
};

TEST_P(Passes, BalancingKeepsTheBits) {
  expect_exact([](const ir::Program& p) { return balance_pipes(p, target_info(Target::x86_avx512)); });
}

TEST_P(Passes, OrientingKeepsTheBits) {
  const Expr acc = ir::leaf(ir::Op::accumulator, 0), t = points().x - points().z;
  int changed = 0;
  for (const Expr& update :
       {acc + abs(t), acc + t * t, max(acc, abs(t)), acc + pow(abs(t), 1.3), acc + pow(abs(t), 3.0), acc + t,
        acc + abs(t) * t, acc + exp(-abs(t)), min(acc, t), acc + sqrt(abs(t)), acc + sin(t)})
    for (bool finite : {false, true}) {
      ir::LowerOptions options;
      options.type = GetParam();
      options.assume_finite = finite;
      const ir::Program before = ir::lower({update}, options);
      const ir::Program after = orient_differences(before, target_info(Target::x86_avx512));
      changed += before.to_text() != after.to_text();
      if (GetParam() == Dtype::float64)
        expect_same_results<double>(before, after, 3);
      else
        expect_same_results<float>(before, after, 3);
    }
  EXPECT_GT(changed, 4);
}

INSTANTIATE_TEST_SUITE_P(Types, Passes, ::testing::Values(Dtype::float32, Dtype::float64),
                         [](const auto& info) { return mercer::name_of(info.param); });

TEST(Passes, BalancingLowersTheFloor) {
  ir::LowerOptions options;
  const Expr acc = ir::leaf(ir::Op::accumulator, 0), x = points().x, z = points().z;
  const ir::Program before = ir::lower({acc + abs(x - z)}, options);
  const TargetInfo& target = target_info(Target::x86_avx512);
  EXPECT_LT(count_pipes(balance_pipes(before, target), target).cycles(), count_pipes(before, target).cycles());
}

TEST(Passes, BalancingMovesAConstantThatStandsTooFarDown) {
  const auto [x, z] = points();
  const Expr update = ir::leaf(ir::Op::accumulator, 0) + logical_and(z, logical_or(weights(), x - z));
  const ir::Program before = ir::lower({update}, {});
  const ir::Program after = balance_pipes(before, target_info(Target::x86_avx2));
  EXPECT_NE(before.to_text(), after.to_text());
  expect_same_results<float>(before, after, 7);
}

/// Four registers more than a small program needs, two lanes, one pipe.
TEST(FakeTarget, FloorsComeFromItsTable) {
  PortUses flat;
  flat.fill({0b11, 6});
  const TargetInfo fake{Target::x86_avx2, "fake", 16, 8, 0, false, &flat};
  const ir::Program program = ir::lower({ir::leaf(ir::Op::accumulator, 0) + points().x * points().z}, {});
  EXPECT_DOUBLE_EQ(count_pipes(program, fake).cycles(), 3.0 * static_cast<double>(program.code.size() - 3));
  EXPECT_EQ(fake.lanes(Dtype::float64), 2);
  EXPECT_EQ(balance_pipes(program, fake).to_text(), program.to_text());
}

TEST(Registers, LongLivesNeedMore) {
  ir::Program chain, fan;
  for (ir::Program* p : {&chain, &fan}) {
    p->inputs = {{Site::z, 0}};
    p->code = {{.op = Prim::input}};
  }
  for (std::int32_t i = 0; i < 6; ++i) {
    chain.code.push_back({.op = Prim::sqrt, .a = i});
    fan.code.push_back({.op = Prim::floor, .a = 0});
  }
  chain.outputs = {6};
  for (std::int32_t i = 1; i < 6; ++i) fan.code.push_back({.op = Prim::add, .a = i == 1 ? 6 : i + 5, .b = i});
  fan.outputs = {static_cast<std::int32_t>(fan.code.size()) - 1};
  EXPECT_LE(temporaries(chain, 1, true), 1);
  EXPECT_EQ(temporaries(fan, 1, true), 6);
  EXPECT_EQ(temporaries(fan, 2, true), 12);
}

}  // namespace
}  // namespace mercer::plan
