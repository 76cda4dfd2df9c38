// |d|^p for a p known while lowering.
//
//   |d| = 2^E m:   |d|^r = 2^(r E) m^r,   1 <= m < 2
//
// E is read a few bits at a time by table lookups straight from the pattern of d; m^r is one polynomial, fitted here.
//
// float32:   |d|^p = |d|^n |d|^r with a whole n >= 1 and r < 1.9. 0^p = 0 by the first factor, Inf and NaN
//   stay, so for p >= 1 this holds for all data. The polynomial is monic (its leading coefficient goes into a table),
//   and its variable v is shifted so that v^(degree - 1) drops out: v * v + c begins it, a multiply-add less than
//   Horner takes.
//   Two tables of sixteen: 16 instructions, eight for the FMA pipes. Where tables of eight entries cost much less
//   (AVX2), three of them; the ninth bit is the sign, so that d itself can be the other factor: 19 instructions, nine
//   for the FMA pipes. So of p between 0 and 1, where d is no subnormal number: they take n = 1 and a negative r.
// float32, d known to be narrow: T0 T1 m^r without d, of which the polynomial is a degree lower. An entry of 0 stands
//   for d = 0, so exponents have 56 values, and d is scaled to where those of normal numbers begin with 0: one
//   operation then sets the mantissa's. 13 instructions, six for the FMA pipes: two tables of eight for scaled data
//   (a multiplication more where it is scaled here), or of sixteen, which need no scaling where AVX-512 sets the
//   mantissa's bits at once.
// float64: a reciprocal for the top three bits of m leaves (1 + r)^q, |r| <= 1/16, degree 8 or 9. Otherwise like
//   float32, the sign in the third table (27 instructions), and of narrow d, always scaled (21).
// float32 errs by at most 6e-7 (of narrow data: 7e-7), float64 by 1.5e-15 (p < 1: 2e-15).
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "ir/lower/fit_power.h"
#include "ir/lower/lower_math.h"

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
constexpr int kLeastDegree = 5, kMostDegree = 8;

Fit fit_mantissa(double power, double target) {
  Fit fit = fit_power(power, kCentre, 0.5, kLeastDegree);
  for (int degree = kLeastDegree + 1; degree <= kMostDegree && fit.error > target; ++degree)
    fit = fit_power(power, kCentre, 0.5, degree);
  return fit;
}

/// A polynomial of v = u + shift, without v^(n - 1) and with leading coefficient 1 where `monic`.
struct MantissaPolynomial {
  double shift = 0, lead = 1;  // what the polynomial is to be multiplied with
  bool monic = false;
  std::vector<double> c;

  template <class Step>
  Value operator()(Value u, const Step& step) const {
    const Value v = u + shift;
    if (!monic) return horner(v, c);
    step();
    Value sum = fma(v, v, c.back());
    for (std::size_t i = c.size() - 1; i-- > 0;) {
      sum = fma(sum, v, c[i]);
      if ((c.size() - 1 - i) % 2 == 1) step();
    }
    return sum;
  }
};

/// m^power as lead (v^n + 0 v^(n-1) + c[n-2] v^(n-2) + … + c[0]) of u = m, or u = -m where `negative`; as it was fitted
/// where that would cost digits.
MantissaPolynomial mantissa_polynomial(const Fit& fit, bool negative = false) {
  constexpr double kSmallestLead = 1e-6, kFarthest = 0.75;
  const Real centre = negative ? -kCentre : kCentre;
  MantissaPolynomial result{static_cast<double>(-centre), 1, false, fit.coefficients};
  for (std::size_t i = 1; negative && i < result.c.size(); i += 2) result.c[i] = -result.c[i];
  std::vector<Real> c(result.c.begin(), result.c.end());
  const std::size_t n = c.size() - 1;
  const Real lead = c[n];
  if (std::fabs(lead) < kSmallestLead * std::fabs(c[0])) return result;
  const Real exact = c[n - 1] / (static_cast<Real>(n) * lead);
  if (std::fabs(exact) > kFarthest) return result;
  const Real shift = static_cast<float>(exact - centre), by = shift + centre;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = n; j-- > i;) c[j] -= by * c[j + 1];
  result = {static_cast<double>(shift), static_cast<double>(lead), true, {}};
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
Table times(Table table, double factor) {
  for (double& entry : table) {
    entry *= factor;
    if (std::fabs(entry) > std::numeric_limits<float>::max()) entry = std::copysign(HUGE_VAL, entry);
  }
  return table;
}

std::vector<Scale::Step> float_steps(double r, double lead, bool eight, bool with_sign) {
  if (!eight) return {{times(power_table(r, 1, -8), lead), 23}, {times(power_table(r, 16, 8 - 127), 1), 27}};
  Table high = times(power_table(r, 64, 28 - 127, 4), 1);
  for (std::size_t i = 4; with_sign && i < 16; ++i)
    if (i % 8 >= 4) high[i] = -high[i];
  return {{times(power_table(r, 1, -4, 8), lead), 23}, {power_table(r, 8, -24, 8), 26}, {high, 29}};
}

/// d^whole |d|^r; with_sign: times the sign of d, once more.
Product float_power(Value d, int whole, double r, bool eight, bool with_sign) {
  constexpr double kFitTarget = 2.8e-7;
  const MantissaPolynomial polynomial = mantissa_polynomial(fit_mantissa(r, kFitTarget));
  const Value m = mantissa_of(d), power = integer_power(d, whole);
  Scale scale(d, float_steps(r, polynomial.lead, eight, with_sign));
  const Value sum = polynomial(m, [&] { scale.advance(); });
  return {power, sum * scale.finish()};
}

/// |d|^whole |d|^r of narrow d.
Product narrow_power(Value d, int whole, double r, bool eight, bool scaled) {
  constexpr double kFitTarget = 4e-7;
  constexpr int kBias = 127;
  // (d 2^-8)^whole is a normal number wherever |d|^p is, up to this one.
  constexpr int kMostScaledWhole = 4;
  const bool takes_scaled = whole <= kMostScaledWhole;
  const Value unscaled = scaled && !takes_scaled ? d * (1 / kNarrowScale) : d;
  if (eight && !scaled) d = d * kNarrowScale;
  scaled = scaled || eight;
  const double taken = scaled ? -std::log2(kNarrowScale) : 0;
  // One operation sets the ones after the zero that exponents begin with, and the sign.
  const Value m = scaled ? bit_or(d, d.builder->pattern_of_number(-1.0)) : mantissa_of(d);
  const MantissaPolynomial polynomial = mantissa_polynomial(fit_mantissa(r, kFitTarget), scaled);
  const int bits = eight ? 3 : 4, size = 1 << bits;
  const Table low = times(power_table(r, 1, -size / 2, size), polynomial.lead);
  // A table of eight has biased exponents from 72 to 127, whose bits above the lowest three count 9 ... 15.
  Table high = power_table(r, size, size / 2 - kBias + (eight ? 64 : 0) + taken, size);
  high = times(high, std::exp2(takes_scaled ? whole * taken : 0));
  for (int i = 0; i < 16; i += size) high[i] = 0;
  Scale scale(d, {{low, 23}, {high, 23 + bits}});
  const Value sum = polynomial(m, [&] { scale.advance(); });
  if (whole == 0) return {scale.finish(), sum};
  const Value base = takes_scaled ? d : unscaled;
  return {scale.finish() * sum, integer_power(whole % 2 == 1 ? magnitude(base) : base, whole)};
}

/// m^q = polynomial(m rcp - 1) rcp^-q, rcp an entry by the top three bits. `m` is -m where it is `negative`.
Product double_mantissa(Value d, Value m, Real q, bool negative) {
  constexpr int kLeast = 8, kMost = 9, kEntries = 8;
  constexpr double kFitTarget = 2.5e-16;
  Builder& b = *d.builder;
  std::array<double, 16> rcp, rcp_power;
  for (std::size_t i = 0; i < 16; ++i) {
    rcp[i] = 1 / (1 + (static_cast<double>(i % kEntries) + 0.5) / kEntries);
    rcp_power[i] = static_cast<double>(std::pow(Real(rcp[i]), -q));
  }
  const Value top = shift_right(d, 49);
  const Value rest = fma(m, b.table(rcp, top), negative ? 1.0 : -1.0);
  Fit fit = fit_power(q, 1, Real(0.5) / kEntries, kLeast);
  if (fit.error > kFitTarget) fit = fit_power(q, 1, Real(0.5) / kEntries, kMost);
  for (std::size_t i = 1; negative && i < fit.coefficients.size(); i += 2) fit.coefficients[i] = -fit.coefficients[i];
  return {horner(rest, fit.coefficients), b.table(rcp_power, top)};
}

/// |d|^q. `with_sign`: times the sign of d.
Product double_power(Value d, Real q, bool with_sign) {
  Builder& b = *d.builder;
  Table high = power_table(q, 256, 128 - 1023, 8);
  for (std::size_t i = 8; with_sign && i < 16; ++i) high[i] = -high[i];
  const Value low = b.table(power_table(q, 1, -8), shift_right(d, 52));
  const Value middle = b.table(power_table(q, 16, 8 - 128), shift_right(d, 56));
  const Value scale = b.table(high, shift_right(d, 60)) * middle;
  const Product m = double_mantissa(d, mantissa_of(d), q, false);
  return {m.first * (low * m.second), scale};
}

/// |d|^q of narrow d, as narrow_power() has it.
Product narrow_double(Value d, double q, bool scaled) {
  if (!scaled) d = d * kNarrowScale;
  const double taken = -std::log2(kNarrowScale);
  const Value m = bit_or(d, d.builder->pattern_of_number(-1.0));
  // Biased exponents from 912 to 1023, whose bits above the lowest four count 57 ... 63.
  Table high = power_table(q, 16, 896 + 8 - 1023 + taken, 8);
  high[0] = high[8] = 0;
  const Value low = d.builder->table(power_table(q, 1, -8), shift_right(d, 52));
  const Value scale = low * d.builder->table(high, shift_right(d, 56));
  const Product power = double_mantissa(d, m, q, true);
  return {power.first, scale * power.second};
}

}  // namespace

bool fixed_power_takes_all(double p) { return p >= 1; }

Product fixed_power(Value base, double p, bool short_tables, PowerBase is) {
  const Value d = base.builder->without_sign(base);
  const bool wide = base.builder->wide();
  if (is != PowerBase::any) {
    constexpr double kLargestNarrow = 2.5;  // in float32 2^-kNarrowBits to this power is a normal number
    const bool scaled = is == PowerBase::scaled;
    const int whole = std::max(0, static_cast<int>(std::ceil(p - kLargestNarrow)));
    if (!wide) return narrow_power(d, whole, p - whole, short_tables, scaled);
    const Product power = narrow_double(d, p - whole, scaled);
    if (whole == 0) return power;
    const Value unscaled = scaled ? d * (1 / kNarrowScale) : d;
    return {power.first * power.second, integer_power(whole % 2 == 1 ? magnitude(unscaled) : unscaled, whole)};
  }
  constexpr double kLargestRest = 1.9;
  const int whole = std::max(1, static_cast<int>(std::ceil(p - kLargestRest)));
  const bool odd = whole % 2 == 1, by_sign = odd && (wide || short_tables);
  const Value of = odd && !by_sign ? base : d;
  if (!wide) return float_power(of, whole, p - whole, short_tables, by_sign);
  const Product rest = double_power(d, Real(p) - whole, by_sign);  // p - 1 is no double for small p
  return {integer_power(of, whole) * rest.first, rest.second};
}

}  // namespace mercer::ir
