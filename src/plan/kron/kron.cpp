#include "plan/kron/kron.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/integers.h"

namespace mercer::plan {
namespace {

/// What a vector costs a step on top of its multiply-adds, in cycles: it is read, and a store keeps its port for two.
constexpr double kStepCost = 3;
/// Elements of a block that lies by columns, enough to hide what a call of a kernel costs, and bytes of a row of it.
constexpr std::int64_t kBlockElements = 8192, kColumnBytes = 256;

/// What is measured. Factors multiplied out are at most as large as the model's, which the error bound reckons with.
constexpr std::int64_t kMergedChoices[] = {0, 64, 256, 1024}, kTileChoices[] = {15, 35, 75, 150, 400},
                       kBlockChoices[] = {2048, 8192, 32768}, kPieceChoices[] = {64, 128, 192, 384};

/// Cycles of one vector of so many elements, in units of a full vector: halves cost half.
double vectors_of(std::int64_t extent, int lanes) {
  const std::int64_t full = extent / lanes, rest = extent % lanes;
  return static_cast<double>(full) + (rest == 0 ? 0 : rest <= lanes / 2 ? 0.5 : 1);
}

/// Costs are asked of divisions that nobody takes, so products that do not fit stop at the largest number.
std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<std::int64_t>::max() : result;
}

std::int64_t product(const std::vector<KronShape>& shapes, int first, int end, bool of_p) {
  std::int64_t result = 1;
  for (int i = first; i < end; ++i) result = times(result, of_p ? shapes[i].p : shapes[i].q);
  return result;
}

/// Cycles of applying factors first .. end - 1 as one to a row, in its turn from the last to the first.
double cost_of(const KronProblem& problem, int first, int end, std::int64_t p, std::int64_t q) {
  const int n = static_cast<int>(problem.factors.size());
  const auto left = static_cast<double>(product(problem.factors, 0, first, true));
  const std::int64_t right = product(problem.factors, end, n, false);
  const double vectors = problem.by_columns ? static_cast<double>(q) * static_cast<double>(right)
                         : right == 1       ? vectors_of(q, problem.lanes)
                                            : static_cast<double>(q) * vectors_of(right, problem.lanes);
  return left * vectors * (static_cast<double>(p) + kStepCost);
}

/// The cheapest division of the factors into neighbours that are multiplied out.
std::vector<KronGroup> merge_factors(const KronProblem& problem, std::int64_t most) {
  const int n = static_cast<int>(problem.factors.size());
  std::vector<double> best(n + 1, std::numeric_limits<double>::infinity());
  std::vector<int> from(n + 1, 0);
  best[0] = 0;
  for (int end = 1; end <= n; ++end) {
    std::int64_t p = 1, q = 1;
    for (int first = end - 1; first >= 0; --first) {
      p = times(p, problem.factors[first].p);
      q = times(q, problem.factors[first].q);
      if (first < end - 1 && times(p, q) > most) break;
      const double cost = best[first] + cost_of(problem, first, end, p, q);
      if (cost >= best[end]) continue;
      best[end] = cost;
      from[end] = first;
    }
  }
  std::vector<KronGroup> groups;
  for (int end = n; end > 0; end = from[end]) {
    const int first = from[end];
    groups.push_back({first, end - first, product(problem.factors, first, end, true),
                      product(problem.factors, first, end, false)});
  }
  std::reverse(groups.begin(), groups.end());
  return groups;
}

std::vector<int> order_of(const std::vector<KronGroup>& groups, int first, int count) {
  std::vector<int> order;
  for (int i = first + count; i-- > first;) order.push_back(i);  // the last first, among equals
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return growth(static_cast<double>(groups[a].p), static_cast<double>(groups[a].q)) <
           growth(static_cast<double>(groups[b].p), static_cast<double>(groups[b].q));
  });
  return order;
}

KronPass make_pass(const std::vector<KronGroup>& groups, int first, int count) {
  KronPass pass{.first = first, .count = count};
  pass.order = order_of(groups, first, count);
  for (int i = first; i < first + count; ++i) {
    pass.in *= groups[i].p;
    pass.out *= groups[i].q;
  }
  std::int64_t size = pass.in;
  for (std::size_t step = 0; step + 1 < pass.order.size(); ++step) {
    const KronGroup& group = groups[pass.order[step]];
    size = size / group.p * group.q;
    pass.widest = std::max(pass.widest, size);
  }
  return pass;
}

/// Bytes that a tile of so many elements keeps between its steps.
std::int64_t tile_bytes(const KronPass& pass, std::int64_t elements, Dtype type) {
  const std::int64_t arrays = std::min<std::int64_t>(pass.steps() - 1, 2);
  return arrays * pass.widest * elements * static_cast<std::int64_t>(size_of(type));
}

/// As many neighbours as the first-level cache holds, from the last group on.
void group_passes(KronPlan& plan) {
  const KronProblem& problem = plan.problem;
  const auto budget = plan.choice.tile * problem.l1_bytes / 100;
  int end = static_cast<int>(plan.groups.size());
  const bool by_columns = plan.columns > 1;
  while (end > 0) {
    const bool is_last = end == static_cast<int>(plan.groups.size()) && !by_columns;
    const std::int64_t least = is_last ? 1 : problem.lanes;
    int first = end - 1;
    while (first > 0 && tile_bytes(make_pass(plan.groups, first - 1, end - first + 1), least, problem.type) <= budget)
      --first;
    plan.passes.push_back(make_pass(plan.groups, first, end - first));
    end = first;
  }
  std::stable_sort(plan.passes.begin(), plan.passes.end(), [](const KronPass& a, const KronPass& b) {
    return growth(static_cast<double>(a.in), static_cast<double>(a.out)) <
           growth(static_cast<double>(b.in), static_cast<double>(b.out));
  });
}

/// A part of the columns that divides them.
std::int64_t piece_of_columns(std::int64_t columns, std::int64_t held, int lanes) {
  std::int64_t piece = columns;
  while (piece > std::max<std::int64_t>(held, lanes) && piece % 2 == 0) piece /= 2;
  return piece;
}

/// Extents around each pass at its turn, and its tiles.
void lay_out(KronPlan& plan) {
  const KronProblem& problem = plan.problem;
  const auto budget = plan.choice.tile * problem.l1_bytes / 100;
  std::vector<std::int64_t> extents;
  for (const KronGroup& group : plan.groups) extents.push_back(group.p);
  std::int64_t size = plan.k;
  plan.widest = size;
  for (KronPass& pass : plan.passes) {
    for (int i = 0; i < pass.first; ++i) pass.left *= extents[i];
    for (int i = pass.first + pass.count; i < static_cast<int>(extents.size()); ++i) pass.right *= extents[i];
    pass.right *= plan.columns;
    for (const int step : pass.order) {
      size = size / plan.groups[step].p * plan.groups[step].q;
      plan.flops += 2.0 * static_cast<double>(size) * static_cast<double>(plan.groups[step].p);
      extents[step] = plan.groups[step].q;
    }
    plan.widest = std::max(plan.widest, size);
    const std::int64_t one = std::max<std::int64_t>(tile_bytes(pass, 1, problem.type), 1);
    // Pieces by columns would be narrow, and lie far apart: longer ones are worth more than the first-level cache.
    const std::int64_t most = std::max<std::int64_t>((plan.columns > 1 ? problem.l2_bytes / 16 : budget) / one, 1);
    const auto element = static_cast<std::int64_t>(size_of(problem.type));
    if (pass.right == 1) {
      const std::int64_t enough = std::max<std::int64_t>(1024 / std::max(pass.in, pass.out), 1);
      pass.tile_left = std::min({pass.left * plan.block_rows, most, enough});
    } else {
      const std::int64_t piece = std::max<std::int64_t>(plan.choice.piece / element, problem.lanes);
      const std::int64_t held = std::max<std::int64_t>(most / problem.lanes * problem.lanes, 1);
      const std::int64_t most_right = std::min({pass.right, piece, held});
      // Pieces of about one size, of whole vectors.
      const std::int64_t even = ceil_div(pass.right, ceil_div(pass.right, most_right));
      pass.tile_right = std::min(most_right, round_up(even, std::int64_t{problem.lanes}));
      if (plan.columns > 1 && !problem.packed) pass.tile_right = piece_of_columns(plan.columns, held, problem.lanes);
    }
  }
}

void choose_block(KronPlan& plan) {
  const KronProblem& problem = plan.problem;
  const std::int64_t row = std::max(plan.k, plan.j);
  std::int64_t rows = std::max<std::int64_t>(plan.choice.block / row, 1);
  if (problem.by_columns) rows = kron_columns(problem, row);
  plan.block_rows = std::max<std::int64_t>(std::min(rows, problem.rows), 1);
  plan.columns = problem.by_columns ? plan.block_rows : 1;
}

}  // namespace

/// Columns of a block, if there are so many: a few lines of the cache of each row of x, more where a row is short.
std::int64_t kron_columns(const KronProblem& problem, std::int64_t row) {
  const std::int64_t piece = kColumnBytes / static_cast<std::int64_t>(size_of(problem.type));
  return std::max<std::int64_t>(kBlockElements / row / piece, 1) * piece;
}

KronPlan plan_kron(const KronProblem& problem, const KronChoice& choice) {
  KronPlan plan;
  plan.problem = problem;
  plan.choice = choice;
  plan.groups = merge_factors(problem, choice.merged);
  for (const KronShape& shape : problem.factors) {
    plan.k *= shape.p;
    plan.j *= shape.q;
  }
  choose_block(plan);
  group_passes(plan);
  lay_out(plan);
  return plan;
}

std::string KronChoice::record() const {
  return fmt::format("merged {}, tile {}, block {}, piece {}", merged, tile, block, piece);
}

std::optional<KronChoice> kron_choice_of(std::string_view record) {
  for (const std::int64_t merged : kMergedChoices)
    for (const std::int64_t tile : kTileChoices)
      for (const std::int64_t block : kBlockChoices)
        for (const std::int64_t piece : kPieceChoices)
          if (const KronChoice choice{merged, tile, block, piece}; choice.record() == record) return choice;
  return std::nullopt;
}

std::vector<KronChoice> kron_choices(const KronProblem& problem, const KronChoice& around) {
  std::vector<KronChoice> choices;
  std::vector<std::string> plans;
  const auto add = [&](const KronChoice& choice) {
    const std::string plan = plan_kron(problem, choice).to_text();
    if (std::find(plans.begin(), plans.end(), plan) != plans.end()) return;
    plans.push_back(plan);
    choices.push_back(choice);
  };
  add({});
  add(around);
  for (const std::int64_t merged : kMergedChoices)
    for (const std::int64_t tile : kTileChoices) add({merged, tile, around.block, around.piece});
  for (const std::int64_t block : kBlockChoices) add({around.merged, around.tile, block, around.piece});
  for (const std::int64_t piece : kPieceChoices) add({around.merged, around.tile, around.block, piece});
  return choices;
}

std::string KronPlan::to_text() const {
  std::string text = fmt::format("kron {} of {}: {} -> {}, blocks of {} rows{}\n", problem.factors.size(),
                                 name_of(problem.type), k, j, block_rows, columns > 1 ? " by columns" : "");
  for (const KronPass& pass : passes) {
    text += fmt::format("  pass [{}, {}->{}, {}] tile {} x {}:", pass.left, pass.in, pass.out, pass.right,
                        pass.tile_left, pass.tile_right);
    for (const int step : pass.order) {
      const KronGroup& group = groups[step];
      text += fmt::format(" {}->{}", group.p, group.q);
      if (group.count > 1) text += fmt::format(" (factors {} to {})", group.first, group.first + group.count - 1);
    }
    text += '\n';
  }
  return text;
}

}  // namespace mercer::plan
