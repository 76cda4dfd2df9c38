// Plans of products with Kronecker products: what is multiplied out, in which order factors go, what the tiles hold.
#include "plan/kron/kron.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace mercer::plan {
namespace {

KronProblem problem_of(std::vector<KronShape> factors, std::int64_t rows = 1024) {
  KronProblem problem;
  problem.factors = std::move(factors);
  problem.rows = rows;
  return problem;
}

/// Every factor in one group, every group in one step, extents that follow from the order of the steps.
void expect_sound(const KronPlan& plan) {
  int next = 0;
  std::vector<std::int64_t> extents;
  for (const KronGroup& group : plan.groups) {
    EXPECT_EQ(group.first, next);
    next += group.count;
    std::int64_t p = 1, q = 1;
    for (int i = group.first; i < next; ++i) {
      p *= plan.problem.factors[i].p;
      q *= plan.problem.factors[i].q;
    }
    EXPECT_EQ(group.p, p);
    EXPECT_EQ(group.q, q);
    extents.push_back(p);
  }
  EXPECT_EQ(next, static_cast<int>(plan.problem.factors.size()));
  std::vector<int> steps;
  for (const KronPass& pass : plan.passes) {
    std::int64_t left = 1, right = plan.columns;
    for (int i = 0; i < static_cast<int>(extents.size()); ++i) {
      if (i < pass.first) left *= extents[i];
      if (i >= pass.first + pass.count) right *= extents[i];
    }
    EXPECT_EQ(pass.left, left);
    EXPECT_EQ(pass.right, right);
    EXPECT_GE(pass.tile_left, 1);
    EXPECT_LE(pass.tile_left, left * plan.block_rows);
    EXPECT_GE(pass.tile_right, 1);
    EXPECT_LE(pass.tile_right, right);
    const std::int64_t arrays = std::min<std::int64_t>(pass.steps() - 1, 2);
    // Long pieces of columns are worth more than the first-level cache; so are tiles of some choices.
    const std::int64_t first_level = plan.problem.l1_bytes * std::max<std::int64_t>(plan.choice.tile, 100) / 100;
    const std::int64_t cache = plan.columns > 1 ? std::max(plan.problem.l2_bytes / 16, first_level) : first_level;
    EXPECT_LE(arrays * pass.widest * pass.tile_left * pass.tile_right * 4, cache);
    for (const int step : pass.order) {
      steps.push_back(step);
      extents[step] = plan.groups[step].q;
    }
    std::int64_t size = 1;
    for (const std::int64_t extent : extents) size *= extent;
    EXPECT_LE(size, plan.widest);
  }
  std::sort(steps.begin(), steps.end());
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) EXPECT_EQ(steps[i], i);
  EXPECT_EQ(steps.size(), plan.groups.size());
}

TEST(KronPlan, ManyShapes) {
  for (const auto& factors : std::vector<std::vector<KronShape>>{
           {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}},
           {{16, 16}, {16, 16}, {16, 16}, {16, 16}},
           {{128, 128}, {128, 128}},
           {{52, 50}, {52, 50}, {52, 50}},
           {{3, 7}, {100, 2}, {1, 1}, {2, 90}},
           std::vector<KronShape>(30, {2, 2}),
           {{1, 1}}})
    for (const bool by_columns : {false, true})
      for (const std::int64_t rows : {1, 5, 1024}) {
        KronProblem problem = problem_of(factors, rows);
        problem.by_columns = by_columns && rows > 1;
        problem.packed = rows == 5;
        expect_sound(plan_kron(problem));
        for (const KronChoice& choice : kron_choices(problem, {64, 35, 2048, 64}))
          expect_sound(plan_kron(problem, choice));
      }
}

TEST(KronPlan, ChoicesAreOtherPlans) {
  const KronProblem problem = problem_of(std::vector<KronShape>(5, {8, 8}), 100);
  const std::vector<KronChoice> choices = kron_choices(problem, {});
  EXPECT_EQ(choices.front(), KronChoice{});
  EXPECT_GT(choices.size(), 2u);
  std::set<std::string> plans;
  for (const KronChoice& choice : choices) {
    EXPECT_TRUE(plans.insert(plan_kron(problem, choice).to_text()).second);
    EXPECT_EQ(kron_choice_of(choice.record()), choice);
  }
  for (const char* text : {"", "merged 1024", "merged 1024, tile 75, block 8192, piece 193",
                           "merged 1024, tile 75, block 8192, piece 192 "})
    EXPECT_EQ(kron_choice_of(text), std::nullopt) << text;
}

TEST(KronPlan, TwoPassesOfFive) {
  EXPECT_EQ(plan_kron(problem_of(std::vector<KronShape>(5, {8, 8}))).to_text(),
            "kron 5 of float32: 32768 -> 32768, blocks of 1 rows\n"
            "  pass [64, 512->512, 1] tile 2 x 1: 8->8 8->8 8->8\n"
            "  pass [1, 64->64, 512] tile 1 x 48: 8->8 8->8\n");
}

TEST(KronPlan, TinyFactorsAreMultipliedOut) {
  const KronPlan plan = plan_kron(problem_of(std::vector<KronShape>(12, {2, 2})));
  EXPECT_LE(plan.groups.size(), 5u);
  for (const KronGroup& group : plan.groups) EXPECT_LE(group.p * group.q, 1024);
  EXPECT_EQ(plan_kron(problem_of({{16, 16}, {16, 16}})).groups.size(), 2u);
  EXPECT_EQ(plan_kron(problem_of(std::vector<KronShape>(64, {1, 1}))).groups.size(), 1u);
}

TEST(KronPlan, WhatShrinksGoesFirst) {
  const KronPlan plan = plan_kron(problem_of({{20, 40}, {30, 30}, {40, 20}}));
  std::vector<int> steps;
  for (const KronPass& pass : plan.passes) steps.insert(steps.end(), pass.order.begin(), pass.order.end());
  EXPECT_EQ(steps, (std::vector<int>{2, 1, 0}));
  const KronPlan turned = plan_kron(problem_of({{40, 20}, {30, 30}, {20, 40}}));
  steps.clear();
  for (const KronPass& pass : turned.passes) steps.insert(steps.end(), pass.order.begin(), pass.order.end());
  EXPECT_EQ(steps, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(turned.widest, 40 * 30 * 20);
}

}  // namespace
}  // namespace mercer::plan
