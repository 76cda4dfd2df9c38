#include "ir/lower/lower_builder.h"

#include <algorithm>
#include <bit>

#include "ir/expr/prim_semantics.h"

namespace mercer::ir {
namespace {

bool commutes(Prim op) {
  switch (op) {
    case Prim::add:
    case Prim::mul:
    case Prim::fma:
    case Prim::fnma:
    case Prim::abs_max:
    case Prim::bit_and:
    case Prim::bit_or:
    case Prim::bit_xor:
    case Prim::int_add:
    case Prim::int_max:
    case Prim::equal:
    case Prim::not_equal:
    case Prim::unordered:
    case Prim::mask_and:
    case Prim::mask_or:
    case Prim::mask_xor: return true;
    default: return false;
  }
}

template <class T>
bool fold_to_constant(Instr& instr, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  using U = Pattern<T>;
  const U bits = apply_prim<T>(instr.op, U(a), U(b), U(c), instr.bits);
  // A NaN made here may differ in its sign from the one the processor makes.
  if (std::isnan(std::bit_cast<T>(bits)) && instr.op < Prim::bit_and) return false;
  instr = {.op = Prim::constant, .bits = bits};
  return true;
}

}  // namespace

std::size_t Builder::KeyHash::operator()(const Key& key) const {
  std::uint64_t hash = key.bits * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(key.op);
  const auto add = [&](std::int32_t part) {
    hash = (hash ^ static_cast<std::uint32_t>(part)) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
  };
  for (std::int32_t part : {key.a, key.b, key.c, key.index}) add(part);
  if (key.op == Prim::ptx) std::for_each(key.more.begin(), key.more.end(), add);
  return hash;
}

std::uint64_t Builder::pattern_of_number(double value) const {
  return wide_ ? std::bit_cast<std::uint64_t>(value) : std::bit_cast<std::uint32_t>(static_cast<float>(value));
}

bool Builder::constant_of(Value value, double& out) const {
  const Instr& instr = at(value.id);
  if (instr.op != Prim::constant) return false;
  out = wide_ ? std::bit_cast<double>(instr.bits) : std::bit_cast<float>(static_cast<std::uint32_t>(instr.bits));
  return true;
}

Value Builder::input(Site site, int slot) {
  const auto found = std::find(program_.inputs.begin(), program_.inputs.end(), Input{site, slot});
  const auto index = static_cast<std::int32_t>(found - program_.inputs.begin());
  if (found == program_.inputs.end()) program_.inputs.push_back({site, slot});
  return append({.op = Prim::input, .index = index});
}

Value Builder::number(double value) { return pattern(pattern_of_number(value)); }
Value Builder::pattern(std::uint64_t bits) { return append({.op = Prim::constant, .bits = bits & all_bits()}); }

bool Builder::power(Value base, const Power& p, Value& poly, Value& scale) {
  if (!program_.powers.empty() && program_.powers[0] != p) return false;
  program_.powers.assign(1, p);
  const Value magnitude = without_sign(base);
  poly = append({.op = Prim::power_poly, .a = magnitude.id, .index = 0});
  scale = append({.op = Prim::power_scale, .a = magnitude.id, .index = 0});
  return true;
}

Value Builder::table(std::span<const double, 16> entries, Value index) {
  std::array<double, 16> copy;
  for (std::size_t i = 0; i < 16; ++i) copy[i] = wide_ ? entries[i] : static_cast<float>(entries[i]);
  const auto same = [&](const std::array<double, 16>& other) {
    return std::equal(copy.begin(), copy.end(), other.begin(), [](double a, double b) {
      return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
    });
  };
  const auto found = std::find_if(program_.tables.begin(), program_.tables.end(), same);
  const auto number = static_cast<std::int32_t>(found - program_.tables.begin());
  if (found == program_.tables.end()) program_.tables.push_back(copy);
  return append({.op = Prim::table16, .a = index.id, .index = number});
}

Value Builder::ptx(const std::string& text, std::span<const Value> inputs, int output) {
  const auto found = std::find(program_.ptx.begin(), program_.ptx.end(), text);
  const auto index = static_cast<std::int32_t>(found - program_.ptx.begin());
  if (found == program_.ptx.end()) program_.ptx.push_back(text);
  Instr instr{.op = Prim::ptx, .index = index, .bits = static_cast<std::uint64_t>(output)};
  for (std::size_t i = 0; i < inputs.size(); ++i) operand_of(instr, static_cast<int>(i)) = inputs[i].id;
  return append(instr);
}

Value Builder::without_sign(Value value) {
  std::int32_t inner = -1;
  return is_magnitude(value.id, inner) ? Value{this, inner} : value;
}

Value Builder::emit(Prim op, Value a, Value b, Value c, std::uint64_t bits) {
  Instr instr{.op = op, .a = a.id, .b = b.id, .c = c.id, .bits = bits};
  tidy(instr);
  if (fold(instr)) return append(instr);
  if (op == Prim::bit_xor && instr.b == -1) return {this, instr.a};  // tidy found the identity
  return append(instr);
}

Value Builder::append(Instr instr) {
  const Key key{instr.op, instr.a, instr.b, instr.c, instr.index, instr.bits, instr.more};
  const auto [place, fresh] = known_.try_emplace(key, static_cast<std::int32_t>(program_.code.size()));
  if (fresh) program_.code.push_back(instr);
  return {this, place->second};
}

bool Builder::fold(Instr& instr) const {
  const int operands = operand_count(instr.op);
  if (operands == 0 || instr.op == Prim::table16 || makes_mask(instr.op) || instr.op == Prim::select) return false;
  std::uint64_t bits[3] = {0, 0, 0};
  for (int i = 0; i < operands; ++i) {
    const std::int32_t from = operand_of(instr, i);
    if (from < 0 || at(from).op != Prim::constant) return false;
    bits[i] = at(from).bits;
  }
  return wide_ ? fold_to_constant<double>(instr, bits[0], bits[1], bits[2])
               : fold_to_constant<float>(instr, bits[0], bits[1], bits[2]);
}

bool Builder::is_with(const Instr& instr, Prim op, std::uint64_t bits, std::int32_t& of) const {
  if (instr.op != op || instr.b < 0) return false;
  const auto is_constant = [&](std::int32_t id) { return at(id).op == Prim::constant && at(id).bits == bits; };
  const bool first = is_constant(instr.a), second = is_constant(instr.b);
  of = first ? instr.b : instr.a;
  return first != second;
}

bool Builder::is_negation(std::int32_t id, std::int32_t& of) const {
  return is_with(at(id), Prim::bit_xor, sign_bit(), of);
}

bool Builder::is_magnitude(std::int32_t id, std::int32_t& of) const {
  return is_with(at(id), Prim::bit_and, all_bits() ^ sign_bit(), of);
}

// Rewrites that change no bit of the result (but for signs of NaN): signs move into the operation.
void Builder::tidy(Instr& instr) {
  std::int32_t inner = -1, other = -1;
  if (instr.op == Prim::add && is_negation(instr.b, inner))
    instr = {.op = Prim::sub, .a = instr.a, .b = inner};
  else if (instr.op == Prim::add && is_negation(instr.a, inner))
    instr = {.op = Prim::sub, .a = instr.b, .b = inner};
  else if (instr.op == Prim::sub && is_negation(instr.b, inner))
    instr = {.op = Prim::add, .a = instr.a, .b = inner};
  if (instr.op == Prim::mul && is_negation(instr.a, inner) && is_negation(instr.b, other))
    instr.a = inner, instr.b = other;
  if (instr.op == Prim::fma || instr.op == Prim::fnma) {
    for (std::int32_t* factor : {&instr.a, &instr.b})
      if (is_negation(*factor, inner)) *factor = inner, instr.op = instr.op == Prim::fma ? Prim::fnma : Prim::fma;
  }
  // |a| |a| = a a, in products that only the FMA pipe sees.
  if ((instr.op == Prim::mul || instr.op == Prim::fma || instr.op == Prim::fnma) && instr.a == instr.b &&
      is_magnitude(instr.a, inner))
    instr.a = instr.b = inner;
  // |-a| = |a|, ||a|| = |a|.
  if (instr.op == Prim::bit_and) {
    for (auto [value, constant] : {std::pair{&instr.a, instr.b}, std::pair{&instr.b, instr.a}}) {
      if (at(constant).op != Prim::constant || at(constant).bits != (all_bits() ^ sign_bit())) continue;
      if (is_negation(*value, inner) || is_magnitude(*value, inner)) *value = inner;
    }
  }
  if (is_with(instr, Prim::bit_xor, sign_bit(), other) && is_negation(other, inner)) {  // -(-a) = a
    instr.a = inner, instr.b = -1;
    return;
  }
  if (commutes(instr.op) && instr.a > instr.b) std::swap(instr.a, instr.b);
}

Program Builder::finish(const std::vector<Value>& outputs) {
  std::vector<char> live(program_.code.size(), 0);
  for (Value output : outputs) live[static_cast<std::size_t>(output.id)] = 1;
  for (std::size_t at_end = program_.code.size(); at_end-- > 0;) {
    if (!live[at_end]) continue;
    const Instr& instr = program_.code[at_end];
    for (int i = 0; i < operand_count(instr); ++i) live[static_cast<std::size_t>(operand_of(instr, i))] = 1;
  }
  Program result{.type = program_.type, .inputs = {}, .code = {}, .outputs = {}, .tables = {}, .powers = {}};
  std::vector<std::int32_t> moved(program_.code.size(), -1);
  std::vector<std::int32_t> input_at(program_.inputs.size(), -1), table_at(program_.tables.size(), -1);
  std::vector<std::int32_t> ptx_at(program_.ptx.size(), -1);
  const auto keep = [](auto& from, auto& to, std::vector<std::int32_t>& map, std::int32_t index) {
    auto& place = map[static_cast<std::size_t>(index)];
    if (place < 0) place = static_cast<std::int32_t>(to.size()), to.push_back(from[static_cast<std::size_t>(index)]);
    return place;
  };
  for (std::size_t i = 0; i < program_.code.size(); ++i) {
    if (!live[i]) continue;
    Instr instr = program_.code[i];
    for (int k = 0; k < operand_count(instr); ++k) {
      std::int32_t& operand = operand_of(instr, k);
      if (operand >= 0) operand = moved[static_cast<std::size_t>(operand)];
    }
    if (instr.op == Prim::input) instr.index = keep(program_.inputs, result.inputs, input_at, instr.index);
    if (instr.op == Prim::power_poly || instr.op == Prim::power_scale) result.powers = program_.powers;
    if (instr.op == Prim::ptx) instr.index = keep(program_.ptx, result.ptx, ptx_at, instr.index);
    if (instr.op == Prim::table16) instr.index = keep(program_.tables, result.tables, table_at, instr.index);
    moved[i] = static_cast<std::int32_t>(result.code.size());
    result.code.push_back(instr);
  }
  for (Value output : outputs) result.outputs.push_back(moved[static_cast<std::size_t>(output.id)]);
  return result;
}

Value horner(Value r, std::span<const double> coefficients, double scale) {
  Builder& builder = *r.builder;
  Value sum = builder.number(coefficients.back() * scale);
  for (std::size_t i = coefficients.size() - 1; i-- > 0;) sum = fma(sum, r, builder.number(coefficients[i] * scale));
  return sum;
}

}  // namespace mercer::ir
