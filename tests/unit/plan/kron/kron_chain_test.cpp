// Plans of passes of several factors: every value has a place of its own, every factor its turn, and a block its room.
#include "plan/kron/kron_chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "plan/kron/kron_gpu.h"
#include "unit/plan/kron/kron_gpu_problem.h"

namespace mercer::plan {
namespace {

/// All places of a block's tile, which has room for the larger extent of each axis that it does not share.
std::vector<std::int64_t> places_of(const KronChain& chain) {
  std::vector<std::int64_t> places{0};
  const auto add_axis = [&](std::int64_t extent, std::int64_t step) {
    std::vector<std::int64_t> next;
    for (const std::int64_t place : places)
      for (std::int64_t i = 0; i < extent; ++i) next.push_back(place + i * step);
    places.swap(next);
  };
  add_axis(chain.tile_l, chain.step_l);
  for (std::size_t axis = 0; axis < chain.axes.size(); ++axis) add_axis(chain.room(axis), chain.axes[axis].step);
  add_axis(chain.tile_r, 1);
  return places;
}

void expect_sound(const KronChain& chain, const KronGpuProblem& problem) {
  EXPECT_LE(chain.shared_bytes(), problem.shared_per_block);
  const bool by_warps = chain.has_tensor() || chain.has_eights();
  const int registers = chain.ring > 0 ? 112 : chain.cluster > 1 && by_warps ? 80 : 128;
  EXPECT_LE(chain.threads() * chain.resident * registers, 65536);
  std::vector<std::int64_t> places = places_of(chain);
  std::sort(places.begin(), places.end());
  EXPECT_EQ(std::adjacent_find(places.begin(), places.end()), places.end()) << chain.key();
  EXPECT_LT(places.back(), chain.tile_values());
  int next = 0;
  for (const KronChainAxis& axis : chain.axes) {
    EXPECT_EQ(axis.first, next);
    next += axis.count;
    std::int64_t p = 1, q = 1;
    for (int i = axis.first; i < next; ++i) {
      p *= chain.factors[static_cast<std::size_t>(i)].p;
      q *= chain.factors[static_cast<std::size_t>(i)].q;
    }
    EXPECT_EQ(axis.p, p);
    EXPECT_EQ(axis.q, q);
  }
  EXPECT_EQ(next, static_cast<int>(chain.factors.size()));
  std::vector<int> turns(chain.axes.size(), 0);
  for (const KronChainPhase& phase : chain.phases) {
    for (int axis = phase.axis; axis < phase.axis + phase.axes; ++axis) ++turns[static_cast<std::size_t>(axis)];
    EXPECT_FALSE(phase.tensor && phase.eights);
    // A scale is shared by what lies in one row.
    if (phase.tensor && phase.axes == 1) EXPECT_GT(phase.inner, 1) << chain.key();
    if (phase.width > 1) EXPECT_EQ(phase.inner % phase.width, 0);
  }
  EXPECT_EQ(turns, std::vector<int>(chain.axes.size(), 1));
  const KronChainPhase& shared = chain.ring > 0 ? chain.phases.front() : chain.phases.back();
  if (chain.cluster > 1) EXPECT_EQ(shared.axis, chain.shared_axis);
}

TEST(KronChainPlan, EveryValueHasAPlace) {
  const std::vector<std::vector<KronShape>> all = {
      {{8, 8}, {8, 8}, {8, 8}},   {{2, 2}, {3, 1}, {2, 5}, {7, 7}}, {{16, 16}, {16, 16}}, {{32, 32}, {32, 32}},
      {{31, 29}, {17, 32}},       {{9, 12}, {20, 17}, {11, 9}},     {{1, 1}},             {{5, 32}},
      {{4, 4}, {24, 32}, {8, 6}}, {{1, 7}, {7, 1}, {30, 30}},
  };
  int planned = 0;
  for (const Dtype type : {Dtype::float32, Dtype::float64, Dtype::int32})
    for (const auto& factors : all)
      for (const std::int64_t right : {1, 3, 8, 28, 100, 4096})
        for (const std::int64_t rows : {1, 5, 1024}) {
          KronGpuProblem problem = kron_problem(factors, type);
          problem.rows = rows;
          const auto chain = plan_kron_chain(kron_types(type), factors, {1, rows, 1, right}, problem);
          if (!chain) continue;
          ++planned;
          expect_sound(*chain, problem);
          if (::testing::Test::HasFailure()) return;
        }
  EXPECT_GT(planned, 400);
}

TEST(KronChainPlan, WhoIsRefused) {
  const auto planned = [](std::vector<KronShape> factors, std::int64_t right, auto change) {
    KronGpuProblem problem = kron_problem(factors);
    change(problem);
    return plan_kron_chain(kron_types(Dtype::float32), factors, {1, 1024, 1, right}, problem);
  };
  const auto nothing = [](KronGpuProblem&) {};
  EXPECT_FALSE(planned({{33, 8}}, 64, nothing));
  EXPECT_FALSE(planned({{8, 33}}, 64, nothing));
  EXPECT_FALSE(planned({{32, 32}, {32, 32}, {32, 32}, {32, 32}}, 1, nothing));
  // Columns are rows of their own, and old devices have no such products: multiply-adds.
  const auto by_columns = [](KronGpuProblem& p) { p.columns = 64; };
  const auto old = [](KronGpuProblem& p) { p.capability = 75; };
  for (const auto& change : {+by_columns, +old}) {
    const auto chain = planned({{16, 16}, {16, 16}}, 64, change);
    ASSERT_TRUE(chain);
    for (const KronChainPhase& phase : chain->phases) EXPECT_FALSE(phase.tensor);
  }
  const auto row_end = planned({{16, 16}}, 1, nothing);  // its rows would share a scale
  ASSERT_TRUE(row_end);
  EXPECT_FALSE(row_end->phases.front().tensor);
}

TEST(KronChainPlan, AsFewPassesAsFit) {
  const auto passes = [](std::int64_t p, int count) {
    return plan_kron_gpu(kron_problem(std::vector<KronShape>(static_cast<std::size_t>(count), {p, p}))).passes.size();
  };
  EXPECT_EQ(passes(8, 5), 1u);
  EXPECT_EQ(passes(2, 15), 1u);
  EXPECT_EQ(passes(32, 3), 1u);
  EXPECT_EQ(passes(16, 4), 1u);  // 256 KB a row: several blocks
  EXPECT_EQ(passes(8, 6), 1u);
  EXPECT_EQ(passes(32, 4), 2u);
}

/// Axes of five to eight in float64 are multiplied on tensor cores, in pairs, or where something comes after them.
TEST(KronChainPlan, EightsOfFloat64) {
  const auto phases = [](const std::vector<KronShape>& factors, Dtype type = Dtype::float64, int capability = 90) {
    KronGpuProblem problem = kron_problem(factors, type);
    problem.capability = capability;
    const auto chain = plan_kron_chain(kron_types(type), factors, {1, 1024, 1, 1}, problem);
    std::vector<int> counts(3, 0);  // multiply-adds, one axis of eight, two of them
    for (const KronChainPhase& phase : chain->phases) ++counts[phase.eights ? static_cast<std::size_t>(phase.axes) : 0];
    return counts;
  };
  EXPECT_EQ(phases(std::vector<KronShape>(5, {8, 8})), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(phases({{5, 7}, {8, 6}, {7, 8}, {6, 5}}), (std::vector<int>{0, 0, 2}));
  EXPECT_EQ(phases({{8, 8}, {3, 3}, {8, 8}}), (std::vector<int>{2, 1, 0}));  // nothing comes after the last one
  EXPECT_EQ(phases({{4, 8}, {8, 4}, {9, 8}}), (std::vector<int>{3, 0, 0}));
  EXPECT_EQ(phases(std::vector<KronShape>(4, {8, 8}), Dtype::float64, 75), (std::vector<int>{4, 0, 0}));
  EXPECT_EQ(phases(std::vector<KronShape>(4, {8, 8}), Dtype::float32), (std::vector<int>{2, 0, 0}));
}

/// Where a block is alone, and a lane reads whole vectors in either phase.
TEST(KronChainPlan, PhasesThatAlternate) {
  // Plans of a block alone with two phases on tensor cores, the first along the last axis; of these, which alternate.
  const auto count = [](const std::vector<KronShape>& factors) {
    const KronGpuProblem problem = kron_problem(factors);
    std::pair<int, int> alone_and_alternating;
    for (const KronGpuPlan& plan : kron_gpu_candidates(problem, plan_kron_gpu(problem)))
      for (const KronGpuPass& pass : plan.passes) {
        const auto* chain = std::get_if<KronChain>(&pass.kernel);
        if (chain == nullptr || chain->cluster > 1 || chain->resident > 1 || !chain->direct()) continue;
        const std::vector<KronChainPhase>& phases = chain->phases;
        if (phases.size() != 2 || !phases[0].tensor || !phases[1].tensor || !phases[0].along) continue;
        ++alone_and_alternating.first;
        alone_and_alternating.second += chain->alternates();
      }
    return alone_and_alternating;
  };
  const auto [whole, alternating] = count({{32, 32}, {32, 32}, {32, 32}});
  EXPECT_GT(whole, 0);
  EXPECT_EQ(alternating, whole);
  const auto [halves, none] = count({{32, 32}, {32, 32}, {16, 16}});  // lanes read 8 bytes of the last axis
  EXPECT_GT(halves, 0);
  EXPECT_EQ(none, 0);
}

/// Large rows are shared where a device can, and every value of a row has one block.
TEST(KronChainPlan, BlocksThatShareRows) {
  const auto plan = [](std::vector<KronShape> factors, Dtype type, int capability, std::int64_t right = 1) {
    KronGpuProblem problem = kron_problem(factors, type);
    problem.capability = capability;
    const auto chain = plan_kron_chain(kron_types(type), factors, {1, 1024, 1, right}, problem);
    if (chain) expect_sound(*chain, problem);
    return chain;
  };
  const std::vector<KronShape> eights(5, {8, 8}), sixteens(4, {16, 16});
  for (const auto& chain : {plan(eights, Dtype::float64, 90),
                            plan(sixteens, Dtype::float32, 90)}) {
    ASSERT_TRUE(chain);
    EXPECT_GT(chain->cluster, 1);
    EXPECT_TRUE(chain->direct());
    EXPECT_EQ(chain->blocks({1, 1024, 1, 1}) % chain->cluster, 0);
    EXPECT_EQ(chain->blocks({1, 1, 1, 1}), chain->cluster);
    const auto shared = static_cast<std::size_t>(chain->shared_axis);
    EXPECT_EQ(chain->room(shared) * chain->cluster, chain->axes[shared].p);
    EXPECT_EQ(chain->phases.back().axes, shared == 0 ? 1 : 2);
    EXPECT_TRUE(chain->is_shared(chain->phases.size() - 1));
  }
  // One block's memory holds a row, and would have a multiprocessor to itself; tensor cores keep that busy.
  EXPECT_EQ(plan({{32, 32}, {32, 32}, {32, 32}}, Dtype::float32, 90)->cluster, 1);
  EXPECT_FALSE(plan(sixteens, Dtype::float32, 80));
  EXPECT_FALSE(plan(sixteens, Dtype::float32, 90, 64));                   // neighbours after the factors
  EXPECT_FALSE(plan({{7, 7}, {16, 16}, {16, 16}, {16, 16}, {4, 4}}, Dtype::float32, 90));  // seven are not shared
}

/// Rows that leave room for what comes next, of axes of five to eight; the last one is eight long.
TEST(KronChainPlan, RowsThroughARing) {
  const auto plan = [](const std::vector<KronShape>& factors, auto change) {
    KronGpuProblem problem = kron_problem(factors);
    KronGpuTypes types = kron_types(Dtype::float32);
    change(problem, types);
    const auto chain = plan_kron_chain(types, factors, {1, 1024, 1, 1}, problem);
    expect_sound(*chain, problem);
    return *chain;
  };
  const auto nothing = [](KronGpuProblem&, KronGpuTypes&) {};
  const std::vector<KronShape> eights(5, {8, 8});
  for (const auto& factors : {eights, std::vector<KronShape>(15, {2, 2}),
                              std::vector<KronShape>{{5, 5}, {5, 6}, {6, 5}, {5, 5}, {5, 5}, {8, 8}}}) {
    const KronChain chain = plan(factors, nothing);
    ASSERT_GE(chain.ring, 3);
    EXPECT_LE(chain.ring * KronChain::kRingColumns, chain.in() / chain.axes.front().p + KronChain::kRingColumns - 1);
    EXPECT_EQ(chain.cluster, 1);
    EXPECT_EQ(chain.phases.front().axes, 1);
    EXPECT_EQ(chain.phases.back().axes, 2);
    EXPECT_TRUE(chain.phases.back().along);
    for (std::size_t i = 0; i < chain.phases.size(); ++i) {
      EXPECT_TRUE(chain.phases[i].eights);
      if (i + 1 < chain.phases.size()) EXPECT_EQ(chain.phases[i].width, 4);
    }
  }
  EXPECT_EQ(plan(std::vector<KronShape>(4, {8, 8}), nothing).ring, 0);  // several rows fit a multiprocessor
  EXPECT_EQ(plan({{8, 8}, {8, 8}, {8, 8}, {8, 8}, {7, 7}}, nothing).ring, 0);
  EXPECT_EQ(plan({{8, 8}, {8, 8}, {8, 8}, {4, 4}, {16, 16}}, nothing).ring, 0);
  EXPECT_EQ(plan(eights, [](KronGpuProblem& p, KronGpuTypes&) { p.capability = 80; }).ring, 0);
  EXPECT_EQ(plan(eights, [](KronGpuProblem&, KronGpuTypes& types) { types.vectors_in = false; }).ring, 0);
  EXPECT_EQ(plan(eights, [](KronGpuProblem&, KronGpuTypes& types) { types.in = Dtype::float16; }).ring, 0);
}

/// Rows of six axes of eight come through the rings of eight blocks: one element of the first axis for each.
TEST(KronChainPlan, RowsThroughTheRingsOfACluster) {
  const auto plan = [](const std::vector<KronShape>& factors, int capability = 90, bool vectors = true) {
    KronGpuProblem problem = kron_problem(factors);
    problem.capability = capability;
    KronGpuTypes types = kron_types(Dtype::float32);
    types.vectors_in = vectors;
    const auto chain = plan_kron_chain(types, factors, {1, 1024, 1, 1}, problem);
    if (chain) expect_sound(*chain, problem);
    return chain;
  };
  const std::vector<KronShape> eights(6, {8, 8});
  std::vector<KronShape> merged(16, {2, 2});
  merged[0] = merged[2] = {4, 4};
  for (const auto& factors : {eights, merged}) {
    const auto chain = plan(factors);
    ASSERT_TRUE(chain);
    EXPECT_EQ(chain->cluster, 8);
    EXPECT_GE(chain->ring, 3);
    EXPECT_EQ(chain->room(0), 1);
    EXPECT_FALSE(chain->is_shared(chain->phases.size() - 1));
    EXPECT_EQ(chain->blocks({1, 1024, 1, 1}), 16 * 8);  // all that the device has room for, each with as many rows
    EXPECT_EQ(chain->blocks({1, 17, 1, 1}), 9 * 8);
    EXPECT_EQ(plan_kron_gpu(kron_problem(factors)).passes.size(), 1u);
  }
  EXPECT_FALSE(plan(eights, 80));
  const auto gaps = plan(eights, 90, false);
  EXPECT_TRUE(!gaps || gaps->ring == 0);
  const auto other = plan({{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 7}, {8, 8}});
  EXPECT_TRUE(!other || other->ring == 0);
}

/// Clusters come in whole rounds: those that come last have a row less.
TEST(KronChainPlan, RoundsOfClusters) {
  const KronGpuProblem problem = kron_problem(std::vector<KronShape>(4, {16, 16}));
  const auto chain = plan_kron_chain(kron_types(Dtype::float32), problem.factors, {1, 1024, 1, 1}, problem);
  ASSERT_TRUE(chain && chain->cluster > 1 && !chain->asks());
  const std::int64_t at_once = chain->resident * chain->multiprocessors / chain->cluster;
  for (const std::int64_t rows : {1, 50, 100, 500, 1024, 5000, 100000}) {
    const std::int64_t clusters = chain->blocks({1, rows, 1, 1}) / chain->cluster;
    EXPECT_LE(clusters, rows);
    EXPECT_TRUE(clusters == rows || clusters % at_once == 0) << rows;
  }
}

}  // namespace
}  // namespace mercer::plan
