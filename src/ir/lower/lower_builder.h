// Builds a Program: value numbering, folding of constants, a few exact peepholes, and operators so that the lowering of
// a function reads like its mathematics.
//
//   Value r = fnma(n, ln2, x);        // x - n * ln2, one rounding
//   return horner(r, kExpFloat) * scale;
#pragma once

#include <array>
#include <span>
#include <unordered_map>

#include "ir/expr/program.h"

namespace mercer::ir {

class Builder;

/// A value of the program that a builder makes; numbers convert through Builder::number.
struct Value {
  Builder* builder = nullptr;
  std::int32_t id = -1;
  bool operator==(const Value&) const = default;
};

class Builder {
 public:
  explicit Builder(Dtype type) : wide_(type == Dtype::float64) { program_.type = type; }

  bool wide() const { return wide_; }  // float64
  int mantissa_bits() const { return wide_ ? 52 : 23; }
  int bias() const { return wide_ ? 1023 : 127; }

  Value input(Site site, int slot);
  Value number(double value);  // rounded to the type
  Value pattern(std::uint64_t bits);
  Value table(std::span<const double, 16> entries, Value index);
  /// |base|^p as a product; see Prim::power_poly. False: the program has another exponent already.
  bool power(Value base, const Power& p, Value& poly, Value& scale);
  /// One output of a user's PTX.
  Value ptx(const std::string& text, std::span<const Value> inputs, int output);
  Value emit(Prim op, Value a, Value b = {}, Value c = {}, std::uint64_t bits = 0);

  std::uint64_t sign_bit() const { return std::uint64_t(1) << (wide_ ? 63 : 31); }
  std::uint64_t all_bits() const { return wide_ ? ~std::uint64_t(0) : 0xffffffffu; }
  std::uint64_t pattern_of_number(double value) const;
  /// The constant behind a value, as a double; false when it is none.
  bool constant_of(Value value, double& out) const;
  /// a where the value is |a|: for users that ignore the sign.
  Value without_sign(Value value);
  bool is_constant(Value value) const { return at(value.id).op == Prim::constant; }

  /// The finished program: only what the outputs need, in order.
  Program finish(const std::vector<Value>& outputs);

 private:
  struct Key {
    Prim op;
    std::int32_t a, b, c, index;
    std::uint64_t bits;
    std::array<std::int32_t, 5> more;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };

  const Instr& at(std::int32_t id) const { return program_.code[static_cast<std::size_t>(id)]; }
  Value append(Instr instr);
  bool fold(Instr& instr) const;
  void tidy(Instr& instr);
  /// Whether this is `op` of a value, which `of` then is, and of the constant with these bits.
  bool is_with(const Instr& instr, Prim op, std::uint64_t bits, std::int32_t& of) const;
  bool is_negation(std::int32_t id, std::int32_t& of) const;
  bool is_magnitude(std::int32_t id, std::int32_t& of) const;

  bool wide_;
  Program program_;
  std::unordered_map<Key, std::int32_t, KeyHash> known_;
};

inline Value operator+(Value a, Value b) { return a.builder->emit(Prim::add, a, b); }
inline Value operator-(Value a, Value b) { return a.builder->emit(Prim::sub, a, b); }
inline Value operator*(Value a, Value b) { return a.builder->emit(Prim::mul, a, b); }
inline Value operator/(Value a, Value b) { return a.builder->emit(Prim::div, a, b); }
inline Value operator+(Value a, double b) { return a + a.builder->number(b); }
inline Value operator-(Value a, double b) { return a - a.builder->number(b); }
inline Value operator*(Value a, double b) { return a * a.builder->number(b); }
inline Value operator+(double a, Value b) { return b.builder->number(a) + b; }
inline Value operator-(double a, Value b) { return b.builder->number(a) - b; }
inline Value operator*(double a, Value b) { return b.builder->number(a) * b; }
inline Value operator/(double a, Value b) { return b.builder->number(a) / b; }

inline Value fma(Value a, Value b, Value c) { return a.builder->emit(Prim::fma, a, b, c); }
inline Value fma(Value a, Value b, double c) { return fma(a, b, a.builder->number(c)); }
inline Value fma(Value a, double b, Value c) { return fma(a, a.builder->number(b), c); }
inline Value fma(Value a, double b, double c) { return fma(a, a.builder->number(b), a.builder->number(c)); }
inline Value fnma(Value a, Value b, Value c) { return a.builder->emit(Prim::fnma, a, b, c); }
inline Value fnma(Value a, double b, Value c) { return fnma(a, a.builder->number(b), c); }
inline Value sqrt(Value a) { return a.builder->emit(Prim::sqrt, a); }

/// x86 order: the second argument where either is NaN.
inline Value min_second(Value a, Value b) { return a.builder->emit(Prim::min, a, b); }
inline Value max_second(Value a, Value b) { return a.builder->emit(Prim::max, a, b); }
inline Value at_most(double bound, Value a) { return min_second(a.builder->number(bound), a); }   // keeps NaN
inline Value at_least(double bound, Value a) { return max_second(a.builder->number(bound), a); }  // keeps NaN

inline Value bit_and(Value a, Value b) { return a.builder->emit(Prim::bit_and, a, b); }
inline Value bit_or(Value a, Value b) { return a.builder->emit(Prim::bit_or, a, b); }
inline Value bit_xor(Value a, Value b) { return a.builder->emit(Prim::bit_xor, a, b); }
inline Value bit_and(Value a, std::uint64_t bits) { return bit_and(a, a.builder->pattern(bits)); }
inline Value bit_or(Value a, std::uint64_t bits) { return bit_or(a, a.builder->pattern(bits)); }
inline Value bit_xor(Value a, std::uint64_t bits) { return bit_xor(a, a.builder->pattern(bits)); }
inline Value shift_left(Value a, int by) { return a.builder->emit(Prim::shift_left, a, {}, {}, std::uint64_t(by)); }
inline Value shift_right(Value a, int by) { return a.builder->emit(Prim::shift_right, a, {}, {}, std::uint64_t(by)); }
inline Value int_add(Value a, Value b) { return a.builder->emit(Prim::int_add, a, b); }
inline Value int_sub(Value a, Value b) { return a.builder->emit(Prim::int_sub, a, b); }
inline Value int_add(Value a, std::uint64_t bits) { return int_add(a, a.builder->pattern(bits)); }
inline Value int_sub(Value a, std::uint64_t bits) { return int_sub(a, a.builder->pattern(bits)); }

inline Value magnitude(Value a) { return bit_and(a, a.builder->all_bits() ^ a.builder->sign_bit()); }
inline Value negated(Value a) { return bit_xor(a, a.builder->sign_bit()); }
inline Value sign_of(Value a) { return bit_and(a, a.builder->sign_bit()); }

inline Value less(Value a, Value b) { return a.builder->emit(Prim::less, a, b); }
inline Value less_equal(Value a, Value b) { return a.builder->emit(Prim::less_equal, a, b); }
inline Value equal(Value a, Value b) { return a.builder->emit(Prim::equal, a, b); }
inline Value not_equal(Value a, Value b) { return a.builder->emit(Prim::not_equal, a, b); }
inline Value less(Value a, double b) { return less(a, a.builder->number(b)); }
inline Value less(double a, Value b) { return less(b.builder->number(a), b); }
inline Value equal(Value a, double b) { return equal(a, a.builder->number(b)); }
inline Value is_nan(Value a) { return a.builder->emit(Prim::unordered, a, a); }
inline Value mask_and(Value a, Value b) { return a.builder->emit(Prim::mask_and, a, b); }
inline Value mask_or(Value a, Value b) { return a.builder->emit(Prim::mask_or, a, b); }
inline Value mask_not(Value a) { return a.builder->emit(Prim::mask_not, a); }
inline Value select(Value mask, Value a, Value b) { return mask.builder->emit(Prim::select, mask, a, b); }
inline Value select(Value mask, double a, Value b) { return select(mask, mask.builder->number(a), b); }
inline Value select(Value mask, Value a, double b) { return select(mask, a, mask.builder->number(b)); }
inline Value select(Value mask, double a, double b) { return select(mask, mask.builder->number(a), b); }

/// c[0] + r (c[1] + r (c[2] + …)), every coefficient times `scale` (a power of two).
Value horner(Value r, std::span<const double> coefficients, double scale = 1);

}  // namespace mercer::ir
