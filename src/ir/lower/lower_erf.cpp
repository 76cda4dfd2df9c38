// erf |x| = polynomial_j(|x| - j width), j the nearest of 16 intervals up to where erf rounds to 1. The coefficients
// come from one table a power. At most 2.2 ulp; the polynomial around 0 is odd, so tiny arguments keep their digits.
#include "ir/lower/lower_math.h"
#include "ir/lower/math_coefficients.h"

namespace mercer::ir {
namespace {

using Row = double[16];

Value erf_from(Value x, std::span<const Row> coefficients, const Row& linear_low, double width, double magic) {
  Builder& b = *x.builder;
  const Value m = at_most(15 * width, magnitude(x));
  const Value t = fma(m, 1 / width, magic);
  const Value r = fnma(t - magic, width, m);
  Value sum = b.table(coefficients.back(), t);
  for (std::size_t k = coefficients.size() - 1; k-- > 2;) sum = fma(sum, r, b.table(coefficients[k], t));
  // The slope in two parts: around 0 its rounding would be an error of the result.
  const Value slope_low = fma(sum, r, b.table(linear_low, t));
  const Value y = fma(r, b.table(coefficients[1], t), fma(r, slope_low, b.table(coefficients[0], t)));
  return bit_or(magnitude(y), sign_of(x));
}

}  // namespace

Value lower_erf(Value x) {
  using namespace coefficients;
  return x.builder->wide() ? erf_from(x, kErfDouble, kErfSlopeLowDouble, kErfWidthDouble, 0x1.8p52)
                           : erf_from(x, kErfFloat, kErfSlopeLowFloat, kErfWidthFloat, 0x1.8p23);
}

}  // namespace mercer::ir
