// What the results of a verb may be, from the ranges of the formula's values and of its derivative.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "fuzz/call_case.h"
#include "fuzz/error_bound.h"
#include "mercer/pairwise.h"

namespace mercer::fuzz {

/// The ranges of one item of a batch, a row at a time.
class ItemBounds {
 public:
  ItemBounds(const Case& c, const Item& item, bool on_gpu)
      : item_(item), single_(compute_type(c.dtype) == Dtype::float32), on_gpu_(on_gpu),
        unit_(testing_support::unit(compute_type(c.dtype))) {}

  ErrorBound pair(std::int64_t i, std::int64_t j) const { return ErrorBound(single_, item_.pair(i, j), on_gpu_); }
  ErrorBound rules() const { return ErrorBound(single_, {}, on_gpu_); }

  std::vector<Range> row(const Expr& f, std::int64_t i) const {
    std::vector<Range> values;
    for (std::int64_t j = 0; j < item_.n; ++j) values.push_back(pair(i, j)(f));
    return values;
  }

  static Range exactly(double v) {
    if (std::isnan(v)) return Range::not_a_number();
    return {v, v};
  }

  /// sum_n weights[n] values[n]: what rounding does, at least the contract of sums over n.
  Range weighted(const std::vector<Range>& values, const std::vector<Range>& weights) const {
    const ErrorBound bound = rules();
    std::vector<Range> terms;
    for (std::size_t n = 0; n < values.size(); ++n) terms.push_back(bound.times(values[n], weights[n]));
    return bound.sum_of(terms, 2 * unit_);
  }

  /// [o][k] sum_n weights[o][n] phi(i, n, k), within the contract of gradients too: errors are of the norm of the row,
  /// of which kernels of the tests' sizes have up to ten units on GPUs.
  std::vector<std::vector<Range>> field(const Expr& phi, std::int64_t i,
                                        const std::vector<std::vector<Range>>& weights) const {
    std::vector<std::vector<Range>> values(static_cast<std::size_t>(item_.k));
    for (std::int64_t j = 0; j < item_.n; ++j) {
      ErrorBound bound = pair(i, j);
      for (std::int64_t k = 0; k < item_.k; ++k) values[static_cast<std::size_t>(k)].push_back(bound(phi, k));
    }
    std::vector<std::vector<Range>> result;
    for (const auto& of_output : weights) {
      std::vector<Range> sums;
      long double norm = 0;
      for (const auto& of_feature : values) {
        sums.push_back(weighted(of_feature, of_output));
        long double size = 0;
        for (std::size_t n = 0; n < of_feature.size(); ++n)
          if (of_feature[n].known && of_output[n].known) size += of_feature[n].magnitude() * of_output[n].magnitude();
        if (std::isfinite(size)) norm += size * size;
      }
      for (Range& sum : sums)
        if (sum.known && !sum.is_special()) {
          const long double error = (on_gpu_ ? 10 : 2) * unit_ * std::sqrt(norm);
          sum = {sum.low - error, sum.high + error};
        }
      result.push_back(std::move(sums));
    }
    return result;
  }

 private:
  const Item& item_;
  bool single_, on_gpu_;
  long double unit_;
};

inline bool all_known(const std::vector<Range>& row) {
  return std::all_of(row.begin(), row.end(), [](const Range& r) { return r.known; });
}

/// The fold of a row; of an index, unknown: see index_fault.
inline Range folded(ReduceKind kind, const std::vector<Range>& row, const ErrorBound& rules, long double contract) {
  if (!all_known(row)) return Range::unknown();
  if (kind == ReduceKind::sum) return rules.sum_of(row, contract);
  if (kind == ReduceKind::logsumexp) return rules.log_sum_exp(row);
  Range best = row[0];
  for (const Range& r : row) {
    if (r.nan) return r;
    const bool largest = kind == ReduceKind::max;
    best = largest ? Range{std::max(best.low, r.low), std::max(best.high, r.high)}
                   : Range{std::min(best.low, r.low), std::min(best.high, r.high)};
  }
  return best;
}

/// Whether `index` may be that of the largest (smallest) value of a row: NaN wins, the first one.
inline bool may_be_best(ReduceKind kind, const std::vector<Range>& row, std::int64_t index) {
  if (!all_known(row)) return true;
  if (index < 0 || index >= static_cast<std::int64_t>(row.size())) return false;
  const auto nan = std::find_if(row.begin(), row.end(), [](const Range& r) { return r.nan; });
  if (nan != row.end()) return nan - row.begin() == index;
  const Range& chosen = row[static_cast<std::size_t>(index)];
  return std::all_of(row.begin(), row.end(), [&](const Range& r) {
    return kind == ReduceKind::argmax ? chosen.high >= r.low : chosen.low <= r.high;
  });
}

/// What is wrong with the neighbours of a row, or nothing.
inline std::string neighbours_fault(const std::vector<Range>& row, const std::vector<double>& values,
                                    const std::vector<double>& indices) {
  std::vector<long double> lows, highs;
  for (const Range& r : row) {
    if (!r.known) return "";
    lows.push_back(r.nan ? INFINITY : r.low), highs.push_back(r.nan ? INFINITY : r.high);
  }
  std::sort(lows.begin(), lows.end()), std::sort(highs.begin(), highs.end());
  std::vector<bool> seen(row.size(), false);
  for (std::size_t place = 0; place < values.size(); ++place) {
    const double v = values[place];
    const auto index = static_cast<std::size_t>(indices[place]);
    if (!(indices[place] >= 0) || index >= row.size() || seen[index])
      return fmt::format("neighbour {} is {}, which is no point or was one before", place, indices[place]);
    seen[index] = true;
    if (!row[index].contains(v)) return fmt::format("neighbour {} has the value {}, which is not its own", place, v);
    if (std::isnan(v) ? std::isfinite(highs[place]) : v < lows[place] || v > highs[place])
      return fmt::format("neighbour {} has the value {}, which is not among the smallest", place, v);
    if (place > 0 && (values[place - 1] > v || (std::isnan(values[place - 1]) && !std::isnan(v))))
      return fmt::format("neighbours {} and {} are not in order", place - 1, place);
    if (place > 0 && values[place - 1] == v && indices[place - 1] > indices[place])
      return fmt::format("neighbours {} and {} are equal and not in the order of their indices", place - 1, place);
  }
  return "";
}

}  // namespace mercer::fuzz
