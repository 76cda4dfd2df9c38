// |d|^p for a p known while lowering.
//
//   |d| = 2^E m:   |d|^r = 2^(r E) m^r,   1 <= m < 2
//
// E is read a few bits at a time by table lookups straight from the pattern of d; m^r is one polynomial, fitted here.
//
// float32, p >= 1:   |d|^p = |d|^n |d|^r with a whole n >= 1 and r < 1.9. 0^p = 0 by the first factor, Inf and NaN
//   stay, so this holds for all data. The polynomial is monic (its leading coefficient goes into a table), and its
//   variable v is shifted so that v^(degree - 1) drops out: v * v + c begins it, a multiply-add less than Horner takes.
//   Two tables of sixteen: 16 instructions, eight for the FMA pipes. Where tables of eight entries cost much less
//   (AVX2), three of them; the ninth bit is the sign, so that d itself can be the other factor: 19 instructions, nine
//   for the FMA pipes. Two of them where exponents are known to lie among 64 neighbours: 17 instructions, eight for
//   the FMA pipes. Powers between 0 and 1 may take these forms too, but for subnormal d.
// Otherwise:   |d|^p = y * y, y = |d|^(p / 2). The zeroth entry of the top table is 0: 0^p = 0 exactly, and
//   |d| < 2^-111 (float64: 2^-767) counts as 0.
//   float32, two tables of sixteen: 17 instructions.
//   float64: a reciprocal r_i for the top four bits of m leaves (1 + r)^q, |r| <= 1/32, degree 7. 26 instructions.
// float32 errs by at most 6e-7 (by squares: 7e-7), float64 by 1.5e-15.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "ir/fit_power.h"
#include "ir/lower_math.h"

namespace mercer::ir {
namespace {

using Table = std::array<double, 16>;

// 2^(q (step * index + offset)); entries past `size` repeat those before.
Table power_table(Real q, Real step, Real offset, std::size_t size = 16) {
  Table table;
  for (std::size_t i = 0; i < 16; ++i)
    table[i] = static_cast<double>(std::exp2(q * (step * static_cast<Real>(i % size) + offset)));
  return table;
}

Value mantissa_of(Value d) {
  Builder& b = *d.builder;
  const std::uint64_t mantissa = (std::uint64_t(1) << b.mantissa_bits()) - 1;
  return bit_or(bit_and(d, mantissa), b.pattern_of_number(1.0));
}

constexpr Real kCentre = 1.5;  // of the mantissas

Fit fit_mantissa(double power, double target) {
  Fit fit = fit_power(power, kCentre, 0.5, 5);
  for (int degree = 6; degree <= 8 && fit.error > target; ++degree) fit = fit_power(power, kCentre, 0.5, degree);
  return fit;
}

/// The fit as lead (v^n + 0 v^(n-1) + c[n-2] v^(n-2) + … + c[0]), v = m + shift. None where that would cost digits.
struct Depressed {
  double shift, lead;
  std::vector<double> c;
};

std::optional<Depressed> depressed(const Fit& fit) {
  constexpr double kSmallestLead = 1e-6, kFarthest = 0.5;
  std::vector<Real> c(fit.coefficients.begin(), fit.coefficients.end());
  const std::size_t n = c.size() - 1;
  const Real lead = c[n];
  if (std::fabs(lead) < kSmallestLead * std::fabs(c[0])) return std::nullopt;
  const Real exact = c[n - 1] / (static_cast<Real>(n) * lead);
  if (std::fabs(exact) > kFarthest) return std::nullopt;
  const Real shift = static_cast<float>(exact - kCentre), by = shift + kCentre;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = n; j-- > i;) c[j] -= by * c[j + 1];
  Depressed result{static_cast<double>(shift), static_cast<double>(lead), {}};
  for (std::size_t i = 0; i + 1 < n; ++i) result.c.push_back(static_cast<double>(c[i] / lead));
  return result;
}

/// The product of lookups by the bits of d, made one at a time: between the steps of a polynomial, so that neither
/// chain keeps the other from a processor's schedulers.
class Scale {
 public:
  struct Step {
    Table table;
    int shift;
  };
  Scale(Value d, std::vector<Step> steps) : d_(d), steps_(std::move(steps)) {}
  /// Begins the product with this.
  void begin_with(Value factor) { product_ = factor; }
  void advance() {
    if (done_ == steps_.size()) return;
    const Step& step = steps_[done_++];
    const Value entry = d_.builder->table(step.table, shift_right(d_, step.shift));
    product_ = product_ ? *product_ * entry : entry;
  }
  Value finish() {
    while (done_ < steps_.size()) advance();
    return *product_;
  }

 private:
  Value d_;
  std::optional<Value> product_;
  std::vector<Step> steps_;
  std::size_t done_ = 0;
};

/// Entries beyond the range of float stand for results beyond it.
std::vector<Scale::Step> float_steps(double r, double lead, PowerTables tables, bool with_sign) {
  const auto times = [](Table table, double factor) {
    for (double& entry : table) {
      entry *= factor;
      if (std::fabs(entry) > std::numeric_limits<float>::max()) entry = std::copysign(HUGE_VAL, entry);
    }
    return table;
  };
  if (tables == PowerTables::two_of_sixteen)
    return {{times(power_table(r, 1, -8), lead), 23}, {times(power_table(r, 16, 8 - 127), 1), 27}};
  const Table low = times(power_table(r, 1, -4, 8), lead);
  if (tables == PowerTables::two_of_eight) {
    // Biased exponents from 72 to 135: their high bits are 9 ... 16, of which an index has three.
    Table high = power_table(r, 8, 9 * 8 + 4 - 127, 8);
    std::rotate(high.begin(), high.begin() + 7, high.end());
    return {{low, 23}, {high, 26}};
  }
  Table high = times(power_table(r, 64, 28 - 127, 4), 1);
  for (std::size_t i = 4; with_sign && i < 16; ++i)
    if (i % 8 >= 4) high[i] = -high[i];
  return {{low, 23}, {power_table(r, 8, -24, 8), 26}, {high, 29}};
}

/// d^whole |d|^r; with_sign: times the sign of d, once more.
Product float_power(Value d, int whole, double r, PowerTables tables, bool with_sign) {
  constexpr double kFitTarget = 2.8e-7, kSmallest = 126, kLead = 20;  // the last two in bits
  const Fit fit = fit_mantissa(r, kFitTarget);
  const Value m = mantissa_of(d), power = integer_power(d, whole);
  const std::optional<Depressed> short_form = depressed(fit);
  // Where no partial product leaves the range, d enters the lookups' product first: it is done with long before the
  // polynomial is, in which time a register holds something else.
  const bool early = tables == PowerTables::two_of_eight && (whole + r) * kNarrowBits + kLead <= kSmallest;
  Scale scale(d, float_steps(r, short_form ? short_form->lead : 1, tables, with_sign));
  if (early) scale.begin_with(power);
  const auto product = [&](Value sum) {
    return early ? Product(scale.finish(), sum) : Product(power, sum * scale.finish());
  };
  if (!short_form) return product(horner(m - static_cast<double>(kCentre), fit.coefficients));
  const std::vector<double>& c = short_form->c;
  const Value v = m + short_form->shift;
  scale.advance();
  Value sum = fma(v, v, c.back());
  for (std::size_t i = c.size() - 1; i-- > 0;) {
    sum = fma(sum, v, c[i]);
    if ((c.size() - 1 - i) % 2 == 1) scale.advance();
  }
  return product(sum);
}

Value float_root(Value d, double q) {
  constexpr double kFitTarget = 1.4e-7;
  // Offsets centre the low table around 1: its entries then never leave the range while the product is within it.
  Table high = power_table(q, 16, 8 - 127);
  high[0] = 0;
  for (double& entry : high) entry = std::min(entry, 0x1p127);  // past the promised bound
  Scale scale(d, {{power_table(q, 1, -8), 23}, {high, 27}});
  const Value factor = scale.finish();
  return horner(mantissa_of(d) - static_cast<double>(kCentre), fit_mantissa(q, kFitTarget).coefficients) * factor;
}

Value double_root(Value d, double q) {
  Builder& b = *d.builder;
  std::array<double, 16> high = power_table(q, 256, 128 - 1023, 8);
  high[0] = high[8] = 0;
  std::array<double, 16> rcp, rcp_power;
  for (std::size_t i = 0; i < 16; ++i) {
    rcp[i] = 1 / (1 + (static_cast<double>(i) + 0.5) / 16);
    rcp_power[i] = static_cast<double>(std::pow(Real(rcp[i]), -Real(q)));
  }
  const Value low = b.table(power_table(q, 1, -8), shift_right(d, 52));
  const Value middle = b.table(power_table(q, 16, 8 - 128), shift_right(d, 56));
  const Value scale = b.table(high, shift_right(d, 60)) * middle;
  const Value top = shift_right(d, 48);
  const Value r = fma(mantissa_of(d), b.table(rcp, top), -1.0);
  const Fit fit = fit_power(q, 1, 1 / Real(32), 7);
  return horner(r, fit.coefficients) * (low * b.table(rcp_power, top)) * scale;
}

}  // namespace

bool fixed_power_takes_all(Dtype type, double p) { return type == Dtype::float32 && p >= 1; }

Product fixed_power(Value base, double p, PowerTables tables) {
  if (!base.builder->wide() && (p >= 1 || tables != PowerTables::two_of_sixteen)) {
    constexpr double kLargestRest = 1.9;
    const int whole = std::max(1, static_cast<int>(std::ceil(p - kLargestRest)));
    const bool odd = whole % 2 == 1, by_sign = odd && tables == PowerTables::three_of_eight;
    const Value d = odd && !by_sign ? base : base.builder->without_sign(base);
    return float_power(d, whole, p - whole, tables, by_sign);
  }
  const Value d = base.builder->without_sign(base);
  // Larger q cost digits in the fit and range in the tables; whole powers come off by multiplication. Their sign does
  // not matter: y is squared.
  constexpr double kLargestRoot = 2.5;
  const double q = p / 2;
  const int whole = q > kLargestRoot ? static_cast<int>(std::ceil(q - kLargestRoot)) : 0;
  Value root = d.builder->wide() ? double_root(d, q - whole) : float_root(d, q - whole);
  if (whole > 0) root = root * integer_power(d, whole);
  return {root, root};
}

}  // namespace mercer::ir
