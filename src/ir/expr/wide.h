// Double-double arithmetic: the number hi + lo with |lo| <= ulp(hi) / 2. Knuth's and Dekker's error-free sums and
// products; about 2^-104 relative error an operation. A result that is zero, infinite or NaN has lo = 0.
#pragma once

#include <cmath>
#include <limits>

namespace mercer::ir {

struct Wide {
  double hi = 0, lo = 0;

  Wide() = default;
  Wide(double value) : hi(value) {}  // NOLINT(google-explicit-constructor)
  Wide(double high, double low) : hi(high + low), lo(std::isfinite(hi) && hi != 0 ? low - (hi - high) : 0) {}
  static Wide from(long double v) {
    const double high = static_cast<double>(v);
    return std::isfinite(high) && high != 0 ? Wide(high, static_cast<double>(v - high)) : Wide(high);
  }
  explicit operator long double() const { return static_cast<long double>(hi) + lo; }
};

inline Wide operator-(const Wide& a) {
  Wide r;
  r.hi = -a.hi;
  r.lo = -a.lo;
  return r;
}

inline Wide operator+(const Wide& a, const Wide& b) {
  const double s = a.hi + b.hi;
  if (!std::isfinite(s) || (s == 0 && a.lo == 0 && b.lo == 0)) return s;
  const double v = s - a.hi;
  const double error = (a.hi - (s - v)) + (b.hi - v);
  const double t = a.lo + b.lo;
  const double u = t - a.lo;
  const double low_error = (a.lo - (t - u)) + (b.lo - u);
  const Wide first(s, error + t);
  return Wide(first.hi, first.lo + low_error);
}

inline Wide operator-(const Wide& a, const Wide& b) { return a + -b; }

inline Wide operator*(const Wide& a, const Wide& b) {
  const double p = a.hi * b.hi;
  if (!std::isfinite(p) || p == 0) return p;
  return Wide(p, std::fma(a.hi, b.hi, -p) + (a.hi * b.lo + a.lo * b.hi));
}

inline Wide operator/(const Wide& a, const Wide& b) {
  const double first = a.hi / b.hi;
  if (!std::isfinite(first) || first == 0 || std::isinf(b.hi)) return first;
  const Wide rest = a - b * first;
  const double second = rest.hi / b.hi;
  const double third = (rest - b * second).hi / b.hi;
  return Wide(first, second) + third;
}

inline Wide sqrt(const Wide& a) {
  const double root = std::sqrt(a.hi);
  if (!std::isfinite(root) || root == 0) return root;
  return Wide(root, (a - Wide(root) * root).hi / (2 * root));
}

inline bool operator<(const Wide& a, const Wide& b) { return a.hi < b.hi || (a.hi == b.hi && a.lo < b.lo); }
inline bool operator==(const Wide& a, const Wide& b) { return a.hi == b.hi && a.lo == b.lo; }

}  // namespace mercer::ir
