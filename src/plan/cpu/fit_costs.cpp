#include "plan/cpu/fit_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "plan/cpu/costs_fields.h"
#include "plan/named_costs.h"

namespace mercer::plan::cpu {
namespace {

constexpr double kWeight = 0.003;  // of the start: times that are off by 5 % against numbers that are off by a factor e
constexpr double kStep = 1e-4, kLongest = 0.5;  // of u: for slopes, and of one round
constexpr int kRounds = 30;

using Vector = std::vector<double>;

/// base, each number times e^u.
Costs scaled(const Costs& base, const Vector& u) {
  Costs costs = base;
  std::size_t at = 0;
  each_cost(costs, [&](const char*, double& number, Unit) { number *= std::exp(u[at++]); });
  return costs;
}

/// Solves a x = b for a positive definite matrix, by elimination.
Vector solved(std::vector<Vector> a, Vector b) {
  const std::size_t n = b.size();
  for (std::size_t pivot = 0; pivot < n; ++pivot)
    for (std::size_t row = pivot + 1; row < n; ++row) {
      const double factor = a[row][pivot] / a[pivot][pivot];
      if (factor == 0) continue;
      for (std::size_t col = pivot; col < n; ++col) a[row][col] -= factor * a[pivot][col];
      b[row] -= factor * b[pivot];
    }
  for (std::size_t row = n; row-- > 0;) {
    for (std::size_t col = row + 1; col < n; ++col) b[row] -= a[row][col] * b[col];
    b[row] /= a[row][row];
  }
  return b;
}

class Fit {
 public:
  Fit(const Costs& base, std::span<const TimedCall> calls) : base_(base) {
    double sum = 0;
    for (const TimedCall& call : calls) {
      const std::optional<double> time = predicted(call, base);
      if (!time || *time <= 0 || !(call.microseconds > 0)) continue;
      calls_.push_back(&call);
      sum += std::log(call.microseconds / *time);
    }
    const double pace = calls_.empty() ? 0 : sum / static_cast<double>(calls_.size());
    each_cost(base, [&](const char*, double, Unit unit) { start_.push_back(unit == Unit::nanoseconds ? pace : 0); });
  }

  Costs row() const {
    Vector u = start_;
    for (int round = 0; round < kRounds; ++round) {
      const Vector step = step_from(u);
      double longest = 0;
      for (const double of_one : step) longest = std::max(longest, std::fabs(of_one));
      const double part = longest > kLongest ? kLongest / longest : 1;
      for (std::size_t at = 0; at < u.size(); ++at) u[at] += part * step[at];
    }
    return scaled(base_, u);
  }

 private:
  Vector logarithms(const Vector& u) const {
    const Costs costs = scaled(base_, u);
    Vector logs;
    for (const TimedCall* call : calls_) logs.push_back(std::log(predicted(*call, costs).value()));
    return logs;
  }

  /// One of Gauss and Newton.
  Vector step_from(const Vector& u) const {
    const std::size_t numbers = u.size(), calls = calls_.size();
    const Vector here = logarithms(u);
    std::vector<Vector> slopes;
    for (std::size_t at = 0; at < numbers; ++at) {
      Vector moved = u;
      moved[at] += kStep;
      slopes.push_back(logarithms(moved));
      for (std::size_t call = 0; call < calls; ++call) slopes[at][call] = (slopes[at][call] - here[call]) / kStep;
    }
    std::vector<Vector> normal(numbers, Vector(numbers));
    Vector right(numbers);
    for (std::size_t a = 0; a < numbers; ++a) {
      for (std::size_t b = 0; b < numbers; ++b)
        for (std::size_t call = 0; call < calls; ++call) normal[a][b] += slopes[a][call] * slopes[b][call];
      for (std::size_t call = 0; call < calls; ++call)
        right[a] += slopes[a][call] * (std::log(calls_[call]->microseconds) - here[call]);
      normal[a][a] += kWeight;
      right[a] += kWeight * (start_[a] - u[a]);
    }
    return solved(std::move(normal), std::move(right));
  }

  const Costs& base_;
  std::vector<const TimedCall*> calls_;
  Vector start_;
};

}  // namespace

std::optional<double> predicted(const TimedCall& call, const Costs& costs) {
  const Considered said = call.way->consider(call.request, call.forms, costs);
  const auto* const offer = std::get_if<Offer>(&said);
  return offer == nullptr ? std::nullopt : std::optional(offer->microseconds);
}

Costs fit_costs(const Costs& base, std::span<const TimedCall> calls) {
  Costs costs = Fit(base, calls).row();
  each_cost(costs, [](const char*, double& number, Unit) { number = std::stod(fmt::format("{:.3g}", number)); });
  return costs;
}

double median_error(const Costs& costs, std::span<const TimedCall> calls) {
  std::vector<double> errors;
  for (const TimedCall& call : calls)
    if (const std::optional<double> time = predicted(call, costs); time && call.microseconds > 0)
      errors.push_back(std::fabs(std::log(call.microseconds / *time)));
  if (errors.empty()) return 1;
  std::ranges::nth_element(errors, errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2));
  return std::exp(errors[errors.size() / 2]);
}

namespace {

Costs without_numbers() {
  Costs none;
  each_cost(none, [](const char*, double& number, Unit) { number = 0; });
  return none;
}

}  // namespace

std::string costs_record(const Costs& costs) { return record_of_costs(costs, without_numbers()); }

std::optional<Costs> costs_from_record(std::string_view record) {
  const std::optional<Costs> read = costs_of_record(record, without_numbers());
  bool is_whole = read.has_value();
  if (read) each_cost(*read, [&](const char*, double number, Unit) { is_whole = is_whole && number > 0; });
  return is_whole ? read : std::nullopt;
}

}  // namespace mercer::plan::cpu
