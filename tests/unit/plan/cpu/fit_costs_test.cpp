// Costs of ways fitted to made-up times, their record, and choices that follow a row.
#include "plan/cpu/fit_costs.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "plan/cpu/costs_fields.h"

namespace mercer::plan::cpu {
namespace {

/// Calls of pairwise by every way that serves them, which take what `truth` says.
std::vector<TimedCall> calls_of(const Costs& truth) {
  std::vector<TimedCall> calls;
  for (const PairSum sum : {PairSum::product, PairSum::square, PairSum::absolute, PairSum::largest})
    for (const bool is_bare : {true, false})
      for (const auto [m, n, k] : {std::array{1, 1, 8},
                                   {20, 20, 4},
                                   {4, 4, 100},
                                   {100, 100, 100},
                                   {600, 600, 8},
                                   {300, 300, 300},
                                   {1, 3000, 64},
                                   {2000, 16, 200},
                                   {1500, 900, 32}}) {
        TimedCall call;
        call.forms.sum = sum;
        call.forms.is_bare = is_bare;
        call.forms.sides_turn = true;
        call.forms.update_cycles = 1;
        call.forms.epilogue_cycles = is_bare ? 0 : 8;
        call.request.m = m, call.request.n = n, call.request.k = k;
        call.request.has_amx = true;
        for (const Way* way : ways_of(Verb::pairwise)) {
          call.way = way;
          if (const auto time = predicted(call, truth)) {
            call.microseconds = *time;
            calls.push_back(call);
          }
        }
      }
  return calls;
}

Costs another_processor() {
  Costs truth;
  each_cost(truth, [](const char*, double& number, Unit unit) {
    if (unit == Unit::nanoseconds) number *= 1.6;
  });
  truth.cycle *= 1.5;
  truth.few_vector[2] *= 0.6;
  truth.digit_term *= 0.5;
  truth.gemm_term *= 0.7;
  truth.few_call *= 2;
  return truth;
}

TEST(FitCosts, GiveBackThoseThatTimesWereMadeOf) {
  const Costs truth = another_processor();
  const std::vector<TimedCall> calls = calls_of(truth);
  ASSERT_GT(calls.size(), 150u);
  const Costs found = fit_costs({}, calls);
  for (const TimedCall& call : calls)
    EXPECT_NEAR(*predicted(call, found) / call.microseconds, 1, 0.03) << call.way->name << ' ' << call.request.m;
  EXPECT_GT(median_error({}, calls), 1.3);
  EXPECT_LT(median_error(found, calls), 1.01);
  const auto expect_close = [](double number, double expected) { EXPECT_NEAR(number / expected, 1, 0.15); };
  expect_close(found.cycle, truth.cycle);
  expect_close(found.few_vector[2], truth.few_vector[2]);
  expect_close(found.digit_term, truth.digit_term);
  expect_close(found.gemm_term, truth.gemm_term);
  expect_close(found.few_call, truth.few_call);
}

TEST(FitCosts, ScaleWhatNoCallDependsOn) {
  const Costs shipped, found = fit_costs({}, calls_of(another_processor()));
  const double pace = found.both_term / shipped.both_term;
  EXPECT_GT(pace, 1.3);
  EXPECT_NEAR(found.heap_step / shipped.heap_step, pace, 0.01);
  EXPECT_EQ(found.pack_wide, shipped.pack_wide) << "a ratio";
}

TEST(FitCosts, AreAtTheStartWithoutCalls) { EXPECT_EQ(costs_record(fit_costs({}, {})), costs_record({})); }

TEST(FitCosts, AreKeptAsText) {
  const Costs truth = another_processor();
  const auto read = costs_from_record(costs_record(truth));
  ASSERT_TRUE(read);
  std::vector<double> expected;
  each_cost(truth, [&](const char*, double number, Unit) { expected.push_back(number); });
  std::size_t at = 0;
  each_cost(*read, [&](const char* name, double number, Unit) { EXPECT_EQ(number, expected[at++]) << name; });
}

TEST(FitCosts, DoNotComeFromADamagedRecord) {
  const std::string good = costs_record({});
  const std::size_t line = good.find("cycle ");
  for (const std::string& bad :
       {std::string(), "2" + good.substr(1), good.substr(0, good.size() / 2), good + "oven 1\n", good + "cycle 1\n",
        good.substr(0, line) + "cycle 0\n" + good.substr(good.find('\n', line) + 1),
        good.substr(0, line) + "cycle -1\n" + good.substr(good.find('\n', line) + 1),
        good.substr(0, line) + "cycle nan\n" + good.substr(good.find('\n', line) + 1),
        good.substr(0, line) + good.substr(good.find('\n', line) + 1)})
    EXPECT_FALSE(costs_from_record(bad)) << bad;
  EXPECT_TRUE(costs_from_record(good));
}

TEST(FitCosts, DecideWhichWayIsTaken) {
  PairForms forms;
  forms.sum = PairSum::square;
  forms.update_cycles = 1;
  Request request;
  request.m = request.n = 100, request.k = 100;
  Costs slow_tile, slow_points;
  slow_tile.packed_call = slow_points.few_call = 1e9;
  EXPECT_EQ(&choose(request, forms, slow_tile, ForcedWays()), &kFewPoints);
  EXPECT_EQ(&choose(request, forms, slow_points, ForcedWays()), &kPackedTile);
}

}  // namespace
}  // namespace mercer::plan::cpu
