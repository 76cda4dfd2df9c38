// Powers with any exponent: base^p = 2^(p log2 base), the logarithm and the product in two parts.
#include "ir/lower_math.h"

namespace mercer::ir {

Value integer_power(Value base, int n) {
  if (n == 1) return base;
  const Value half = integer_power(base, n / 2);
  return n % 2 == 0 ? half * half : half * half * base;
}

Value lower_pow(Value base, Value exponent, Range base_range) {
  return lower_exp2(exponent * lower_log2(base, base_range));
}

}  // namespace mercer::ir
