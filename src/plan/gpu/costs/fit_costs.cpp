#include "plan/gpu/costs/fit_costs.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "core/integers.h"
#include "plan/gpu/sums/bilinear_tile.h"

namespace mercer::plan {
namespace {

constexpr std::int64_t kLeastFeatures = 24;

/// As records have it.
double three_digits(double number) { return std::stod(fmt::format("{:.3g}", number)); }

void set(double& cost, double measured) {
  if (std::isfinite(measured) && measured > 0) cost = three_digits(measured);
}

/// Slope and value at 0 of the line through two points.
struct Line {
  double slope, start;
};
Line line_through(double x0, double y0, double x1, double y1) {
  const double slope = (y1 - y0) / (x1 - x0);
  return {slope, y0 - slope * x0};
}

class Fit {
 public:
  Fit(const Costs& base, Dtype type, const SampleTime& time)
      : base_(base), points_(type == Dtype::float64 ? kSamplePoints / 2 : kSamplePoints), type_(type), time_(time) {}

  void passes(ValueCosts& costs) const {
    const Line line = by_features(false, kFewColumns);
    set(costs.pass, line.start);
    set(costs.feature, line.slope);
  }

  /// Fits the costs of stored values to products of so many columns, and of more.
  void stored(ValueCosts& costs, std::int64_t few, std::int64_t many) const {
    const double narrow = static_cast<double>(round_up(few, costs.multiple));
    const double wide = static_cast<double>(round_up(many, costs.multiple));
    const Line features = by_features(true, few);
    const double more = at(true, kLeastFeatures, many);
    const Line columns = line_through(narrow, features.start + features.slope * kLeastFeatures, wide, more);
    set(costs.stored_feature, features.slope);
    set(costs.column, columns.slope);
    set(costs.store, features.start - columns.slope * narrow);
  }

 private:
  /// Milliseconds of 10^9 pairs, without the launches around values that are stored.
  double at(bool stores, std::int64_t features, std::int64_t columns) const {
    const ProductSample sample{type_, stores, points_, features, columns};
    return (time_(sample) - (stores ? base_.stored_call : 0)) / sample.billions();
  }
  Line by_features(bool stores, std::int64_t columns) const {
    return line_through(kLeastFeatures, at(stores, kLeastFeatures, columns), kSampleFeatures,
                        at(stores, kSampleFeatures, columns));
  }

  const Costs& base_;
  std::int64_t points_;
  Dtype type_;
  const SampleTime& time_;
};

}  // namespace

Costs fit_costs(const Costs& base, bool reads_stored, const SampleTime& time) {
  Costs costs = base;
  const Fit floats(base, Dtype::float32, time), doubles(base, Dtype::float64, time);
  floats.passes(costs.pieces);
  const std::int64_t most_read = base.stored_columns;
  if (reads_stored) {
    costs.stored.pass = costs.pieces.pass;
    costs.stored.feature = costs.pieces.feature;
    floats.stored(costs.stored, 64, 256);
    floats.stored(costs.pieces, round_up(most_read + 1, costs.pieces.multiple), kSampleColumns);
  } else {
    floats.stored(costs.pieces, 64, 256);
  }
  doubles.passes(costs.float64);
  doubles.stored(costs.float64, 64, 256);
  return costs;
}

}  // namespace mercer::plan
