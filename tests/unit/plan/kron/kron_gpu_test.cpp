// Whole plans of products with Kronecker products on a GPU: which ones are measured, and how they are written down.
#include "plan/kron/kron_gpu.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "unit/plan/kron/kron_gpu_problem.h"

namespace mercer::plan {
namespace {

std::int64_t shared_bytes(const KronGpuKernel& kernel) {
  return std::visit([](const auto& k) { return k.shared_bytes(); }, kernel);
}

std::int64_t threads(const KronGpuKernel& kernel) {
  return std::visit([](const auto& k) { return k.threads(); }, kernel);
}

/// Every factor is multiplied once, and every kernel fits.
void expect_sound(const KronGpuPlan& plan, const KronGpuProblem& problem) {
  std::set<int> multiplied;
  for (const KronGpuPass& pass : plan.passes) {
    for (int i = pass.first; i < pass.first + pass.count; ++i) EXPECT_TRUE(multiplied.insert(i).second);
    EXPECT_LE(shared_bytes(pass.kernel), problem.shared_per_block) << plan.to_text();
    EXPECT_LE(threads(pass.kernel), 1024) << plan.to_text();
    const KronGpuTypes& types = std::visit([](const auto& k) -> const KronGpuTypes& { return k.types; }, pass.kernel);
    EXPECT_EQ(types.final, &pass == &plan.passes.back());
    EXPECT_EQ(types.in, &pass == &plan.passes.front() ? problem.dtype : problem.type);
  }
  EXPECT_EQ(multiplied.size(), problem.factors.size());
}

std::vector<KronGpuProblem> problems() {
  const std::vector<std::vector<KronShape>> all = {
      {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}},
      {{16, 16}, {16, 16}, {16, 16}, {16, 16}},
      {{64, 64}, {64, 64}},
      {{5, 3}, {2, 9}},
      {{200, 150}},
      {{129, 2}, {2, 129}, {31, 63}},
      std::vector<KronShape>(15, KronShape{2, 2}),
  };
  std::vector<KronGpuProblem> problems;
  for (const Dtype type : {Dtype::float32, Dtype::float64, Dtype::int64, Dtype::float16})
    for (const auto& factors : all)
      for (const int capability : {80, 90})
        for (const bool by_columns : {false, true}) {
          KronGpuProblem& problem = problems.emplace_back(kron_problem(factors, type));
          if (type == Dtype::float16) problem.type = Dtype::float32;
          problem.capability = capability;
          if (capability == 80) problem.shared_per_block = 163 << 10;
          if (by_columns) problem.columns = 64, problem.rows = 1;
          problem.vectors_in = problem.vectors_out = !by_columns || type == Dtype::float32;
        }
  return problems;
}

TEST(KronGpuPlan, CandidatesAreSoundAndTheModelIsTheFirst) {
  std::size_t most = 0;
  for (const KronGpuProblem& problem : problems()) {
    const KronGpuPlan model = plan_kron_gpu(problem);
    for (const KronGpuPlan& around : {model, kron_gpu_candidates(problem, model).back()}) {
      const std::vector<KronGpuPlan> candidates = kron_gpu_candidates(problem, around);
      EXPECT_EQ(candidates.front().record(), around.record());
      EXPECT_LE(candidates.size(), kMostKronCandidates);
      most = std::max(most, candidates.size());
      std::set<std::string> records, texts;
      for (const KronGpuPlan& candidate : candidates) {
        expect_sound(candidate, problem);
        EXPECT_LE(candidate.seconds(problem.costs()), 2 * model.seconds(problem.costs()));
        EXPECT_TRUE(records.insert(candidate.record()).second) << candidate.record();
        EXPECT_TRUE(texts.insert(candidate.to_text()).second) << candidate.to_text();
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_EQ(most, kMostKronCandidates);
}

/// Fewest multiplications would multiply by the pair first where arrays grow, by the factor alone where they shrink.
/// But these passes take as long as their bytes.
TEST(KronGpuPlan, LittleLiesBetweenPasses) {
  for (const auto& [p, q] : {std::pair(31, 63), std::pair(63, 31), std::pair(32, 64)}) {
    KronGpuProblem problem = kron_problem(std::vector<KronShape>(3, KronShape{p, q}));
    problem.rows = 64;
    const KronGpuPlan plan = plan_kron_gpu(problem);
    ASSERT_EQ(plan.passes.size(), 2u) << plan.to_text();
    EXPECT_EQ(plan.passes.front().count, p < q ? 1 : 2) << plan.to_text();
    EXPECT_EQ(plan.widest, std::min(std::int64_t{p} * p * q, std::int64_t{p} * q * q)) << plan.to_text();
    // The other order can be tried.
    std::set<int> counts;
    for (const KronGpuPlan& candidate : kron_gpu_candidates(problem, plan))
      if (candidate.passes.size() == 2) counts.insert(candidate.passes.front().count);
    EXPECT_EQ(counts, (std::set<int>{1, 2}));
  }
}

TEST(KronGpuPlan, CandidatesDivideRowsDifferently) {
  const KronGpuProblem problem = kron_problem(std::vector<KronShape>(5, {8, 8}));
  std::set<std::size_t> passes;
  std::set<int> clusters;
  for (const KronGpuPlan& candidate : kron_gpu_candidates(problem, plan_kron_gpu(problem))) {
    passes.insert(candidate.passes.size());
    if (const auto* chain = std::get_if<KronChain>(&candidate.passes.front().kernel)) clusters.insert(chain->cluster);
  }
  EXPECT_GT(passes.size(), 1u);
  EXPECT_GT(clusters.size(), 1u);
}

TEST(KronGpuPlan, RecordsMakePlansAgain) {
  for (const KronGpuProblem& problem : problems()) {
    const KronGpuPlan model = plan_kron_gpu(problem);
    // A second step away from the model, as well.
    for (const KronGpuPlan& plan : kron_gpu_candidates(problem, kron_gpu_candidates(problem, model).back())) {
      const auto again = kron_gpu_plan_of(problem, plan.record());
      ASSERT_TRUE(again) << plan.record();
      EXPECT_EQ(again->record(), plan.record());
      EXPECT_EQ(again->widest, plan.widest);
      EXPECT_EQ(again->seconds(problem.costs()), plan.seconds(problem.costs()));
    }
  }
}

TEST(KronGpuPlan, OtherTextsAreNoRecords) {
  const KronGpuProblem problem = kron_problem({{129, 2}, {2, 129}, {31, 63}});
  const std::string record = plan_kron_gpu(problem).record();
  ASSERT_TRUE(kron_gpu_plan_of(problem, record));
  std::string other_version = record, without_end = record, without_pass = record, other_kernel = record;
  other_version[0] = '2';
  without_end.pop_back();
  without_pass.erase(without_pass.find('\n') + 1, without_pass.find('\n', 2) - without_pass.find('\n'));
  other_kernel.replace(other_kernel.find("kron "), 4, "cron");
  for (const std::string& text : {std::string(), std::string("1\n"), std::string("words"), record + "\n",
                                  record + record, other_version, without_end, without_pass, other_kernel})
    EXPECT_FALSE(kron_gpu_plan_of(problem, text)) << text;
  EXPECT_FALSE(kron_gpu_plan_of(kron_problem({{129, 2}, {2, 129}, {31, 62}}), record));
}

/// Rows that only a cluster holds are not written without vectors: they take two passes then.
TEST(KronGpuPlan, ArraysWithoutVectors) {
  for (const KronShape shape : {KronShape{16, 16}, KronShape{8, 8}})
    for (const Dtype type : {Dtype::float32, Dtype::float64})
      for (const std::size_t count : {4, 5, 6})
        for (const bool in : {false, true})
          for (const bool out : {false, true}) {
            KronGpuProblem problem = kron_problem(std::vector<KronShape>(count, shape), type);
            problem.vectors_in = in;
            problem.vectors_out = out;
            expect_sound(plan_kron_gpu(problem), problem);
          }
}

}  // namespace
}  // namespace mercer::plan
