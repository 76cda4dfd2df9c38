// Random programs over all primitives, for tests that compare an emitter with ir::run.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ir/expr/prim_semantics.h"
#include "ir/expr/program.h"

namespace mercer::testing {

/// What a generator may use, and how.
struct ProgramShape {
  Dtype type = Dtype::float32;
  std::vector<ir::Input> inputs;
  int outputs = 1;
  int size = 12;       // instructions, leaves not counted
  unsigned far = 4;    // one operand in `far` is any earlier value: low numbers make long lives
  unsigned masks = 4;  // one instruction in `masks` makes a mask
};

class RandomProgram {
 public:
  explicit RandomProgram(std::uint64_t seed) : random_(seed) {}

  unsigned below(std::size_t n) { return static_cast<unsigned>(random_() % n); }
  bool chance(unsigned in) { return below(in) == 0; }

  ir::Program operator()(const ProgramShape& shape) {
    program_ = {};
    program_.type = shape.type;
    program_.inputs = shape.inputs;
    numbers_.clear();
    masks_.clear();
    for (std::size_t i = 0; i < shape.inputs.size(); ++i) add({.op = Prim::input, .index = static_cast<int>(i)});
    const unsigned constants = 1 + below(4), tables = below(3);
    for (unsigned i = 0; i < constants; ++i) add({.op = Prim::constant, .bits = number()});
    for (unsigned t = 0; t < tables; ++t) {
      program_.tables.emplace_back();
      for (double& value : program_.tables.back()) value = std::uniform_real_distribution<double>(-9, 9)(random_);
    }
    for (int i = 0; i < shape.size; ++i) instruction(shape);
    for (int o = 0; o < shape.outputs; ++o) program_.outputs.push_back(output(shape));
    return program_;
  }

  /// A pattern: ordinary numbers, integers, zeros, subnormals, infinities, NaN, huge and tiny values.
  std::uint64_t number() {
    using Limits = std::numeric_limits<double>;
    static constexpr double kSpecial[] = {
        0.0,  -0.0,  1.0,   -1.0,   0.5, 2.0,   -3.0, Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
        1e30, -1e30, 1e-39, -1e-44, 7.0, 0x1p23};
    const double value =
        chance(3) ? kSpecial[below(std::size(kSpecial))] : std::normal_distribution<double>(0, 2)(random_);
    if (program_.type == Dtype::float64) {
      if (chance(40)) return below(1000);  // subnormal in double
      return std::bit_cast<std::uint64_t>(value);
    }
    return std::bit_cast<std::uint32_t>(static_cast<float>(value));
  }
  void set_type(Dtype type) { program_.type = type; }

 private:
  using Prim = ir::Prim;

  std::int32_t add(const ir::Instr& instr) {
    program_.code.push_back(instr);
    const auto at = static_cast<std::int32_t>(program_.code.size()) - 1;
    (ir::makes_mask(instr.op) ? masks_ : numbers_).push_back(at);
    return at;
  }

  std::int32_t recent(const std::vector<std::int32_t>& from, std::size_t reach) {
    return from[from.size() - 1 - below(std::min(reach, from.size()))];
  }
  std::int32_t operand(const std::vector<std::int32_t>& from, const ProgramShape& shape) {
    return chance(shape.far) ? from[below(from.size())] : recent(from, 5);
  }

  /// Any value, a recent one, or a state combined with a recent one, as reductions do.
  std::int32_t output(const ProgramShape& shape) {
    const auto state = std::find_if(shape.inputs.begin(), shape.inputs.end(), [&](const ir::Input& in) {
      return in.site == ir::Site::accumulator && !chance(3);
    });
    if (chance(3) || state == shape.inputs.end())
      return chance(3) ? numbers_[below(numbers_.size())] : recent(numbers_, 4);
    static constexpr Prim kCombines[] = {Prim::add, Prim::sub,     Prim::fma,    Prim::fnma,    Prim::min,
                                         Prim::max, Prim::abs_max, Prim::bit_or, Prim::bit_and, Prim::bit_or};
    const auto from = static_cast<std::int32_t>(state - shape.inputs.begin());
    ir::Instr instr{.op = kCombines[below(std::size(kCombines))], .a = recent(numbers_, 4), .b = from};
    if (instr.op == Prim::bit_or && chance(2))
      instr.a = add({.op = Prim::bit_and, .a = instr.a, .b = recent(numbers_, 4)});
    if (ir::operand_count(instr.op) == 3) instr.b = recent(numbers_, 4), instr.c = from;
    if (ir::operand_count(instr.op) == 2 && chance(3)) std::swap(instr.a, instr.b);
    return add(instr);
  }

  void instruction(const ProgramShape& shape) {
    static constexpr Prim kNumbers[] = {
        Prim::add,        Prim::sub,        Prim::mul,         Prim::div,     Prim::fma,     Prim::fnma,
        Prim::fma,        Prim::fnma,       Prim::min,         Prim::max,     Prim::abs_max, Prim::sqrt,
        Prim::floor,      Prim::ceil,       Prim::round,       Prim::bit_and, Prim::bit_or,  Prim::bit_xor,
        Prim::bit_andnot, Prim::shift_left, Prim::shift_right, Prim::int_add, Prim::int_sub, Prim::int_max,
        Prim::int_to_float, Prim::table16,  Prim::large_sine,  Prim::bit_and, Prim::bit_or,  Prim::add,
        Prim::sub};
    ir::Instr instr{};
    if (chance(shape.masks)) {
      const bool logical = !masks_.empty() && chance(3);
      instr.op = static_cast<Prim>(static_cast<int>(logical ? Prim::mask_and : Prim::less) + below(logical ? 4 : 5));
    } else {
      instr.op = !masks_.empty() && chance(4) ? Prim::select : kNumbers[below(std::size(kNumbers))];
    }
    if (instr.op == Prim::table16 && program_.tables.empty()) instr.op = Prim::sqrt;
    if (instr.op == Prim::int_max && program_.type == Dtype::float64) instr.op = Prim::int_add;
    if (instr.op == Prim::int_to_float && program_.type == Dtype::float64) instr.op = Prim::round;
    if (instr.op == Prim::table16) instr.index = static_cast<int>(below(program_.tables.size()));
    if (instr.op == Prim::shift_left || instr.op == Prim::shift_right)
      instr.bits = below(program_.type == Dtype::float64 ? 64 : 32);
    if (instr.op == Prim::large_sine || instr.op == Prim::int_max) instr.bits = below(2);
    const bool logical = instr.op >= Prim::mask_and && instr.op <= Prim::mask_not;
    std::int32_t* const operands[] = {&instr.a, &instr.b, &instr.c};
    for (int k = 0; k < ir::operand_count(instr.op); ++k) {
      const bool mask = logical || (instr.op == Prim::select && k == 0);
      *operands[k] = operand(mask ? masks_ : numbers_, shape);
    }
    if (ir::operand_count(instr.op) == 3 && chance(3)) instr.c = chance(2) ? instr.b : instr.c;
    if (ir::operand_count(instr.op) == 2 && chance(8)) instr.b = instr.a;
    add(instr);
  }

  std::mt19937_64 random_;
  ir::Program program_;
  std::vector<std::int32_t> numbers_, masks_;
};

/// How much of a value is specified. The sign and payload of a computed NaN depend on the order of operands; what reads
/// its bits is unspecified, and so is abs_max of a NaN.
enum class Known : std::uint8_t { all, but_nan_bits, nothing };

template <class T>
struct LaneValue {
  T value{};
  Known known = Known::all;
};

/// ir::run on one lane, and what is known of its results.
template <class T>
class LaneReference {
 public:
  explicit LaneReference(const ir::Program& program) : program_(program), all_(program), known_(program.code.size()) {
    // Every value becomes an output; masks are read through a select.
    values_.resize(program.code.size());
    const auto append = [&](ir::Instr instr) {
      all_.code.push_back(instr);
      return static_cast<std::int32_t>(all_.code.size()) - 1;
    };
    const std::int32_t zero = append({.op = ir::Prim::constant}), one = append({.op = ir::Prim::constant, .bits = 1});
    all_.outputs.clear();
    for (std::size_t i = 0; i < program.code.size(); ++i) {
      const auto at = static_cast<std::int32_t>(i);
      const bool mask = ir::makes_mask(program.code[i].op);
      all_.outputs.push_back(mask ? append({.op = ir::Prim::select, .a = at, .b = one, .c = zero}) : at);
    }
  }

  std::vector<LaneValue<T>> operator()(const std::vector<LaneValue<T>>& inputs) {
    std::vector<T> plain;
    for (const auto& input : inputs) plain.push_back(input.value);
    values_ = ir::run<T>(all_, plain);
    for (std::size_t i = 0; i < program_.code.size(); ++i) {
      const ir::Instr& instr = program_.code[i];
      known_[i] = instr.op == ir::Prim::input      ? inputs[static_cast<std::size_t>(instr.index)].known
                  : instr.op == ir::Prim::constant ? Known::all
                                                   : known_result(instr, values_[i]);
    }
    std::vector<LaneValue<T>> results;
    for (std::int32_t o : program_.outputs) results.push_back({values_[o], known_[o]});
    return results;
  }

 private:
  Known known_result(const ir::Instr& instr, T value) const {
    using ir::Prim;
    if (instr.op == Prim::select) {
      if (known_[instr.a] == Known::nothing) return Known::nothing;
      return known_[ir::pattern_of(values_[instr.a]) ? instr.b : instr.c];
    }
    const bool bits = instr.op >= Prim::bit_and && instr.op <= Prim::table16;
    const bool passes = instr.op == Prim::min || instr.op == Prim::max;
    Known worst = Known::all;
    for (int k = 0; k < ir::operand_count(instr.op); ++k) {
      const std::int32_t o = ir::operand_of(instr, k);
      worst = std::max(worst, known_[o]);
      if (instr.op == Prim::abs_max && std::isnan(values_[o])) worst = Known::nothing;
    }
    if (worst == Known::nothing) return Known::nothing;
    if (ir::makes_mask(instr.op)) return Known::all;
    if (bits) return worst == Known::all ? Known::all : Known::nothing;
    return std::isnan(value) && (!passes || worst == Known::but_nan_bits) ? Known::but_nan_bits : Known::all;
  }

  ir::Program program_, all_;
  std::vector<T> values_;
  std::vector<Known> known_;
};

template <class T>
bool agree(T value, const LaneValue<T>& expected) {
  if (expected.known == Known::nothing) return true;
  if (std::isnan(value) && std::isnan(expected.value)) return true;
  return ir::pattern_of(value) == ir::pattern_of(expected.value);
}

/// The program without what no output needs. Inputs keep their numbers.
inline ir::Program without_dead_code(const ir::Program& program) {
  std::vector<bool> live(program.code.size(), false);
  for (std::int32_t o : program.outputs) live[o] = true;
  for (std::size_t i = program.code.size(); i-- > 0;)
    for (int k = 0; live[i] && k < ir::operand_count(program.code[i].op); ++k)
      live[ir::operand_of(program.code[i], k)] = true;
  ir::Program result = program;
  result.code.clear();
  std::vector<std::int32_t> at(program.code.size(), -1);
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    if (!live[i]) continue;
    ir::Instr instr = program.code[i];
    for (std::int32_t* o : {&instr.a, &instr.b, &instr.c})
      if (*o >= 0) *o = at[*o];
    at[i] = static_cast<std::int32_t>(result.code.size());
    result.code.push_back(instr);
  }
  for (std::int32_t& o : result.outputs) o = at[o];
  return result;
}

/// The smallest program that still fails: instructions are replaced by their operands or a leaf while it does.
template <class Fails>
ir::Program shrink(ir::Program program, Fails&& fails) {
  const auto replaced = [](const ir::Program& p, std::int32_t i, std::int32_t by) {
    ir::Program q = p;
    for (ir::Instr& instr : q.code)
      for (std::int32_t* o : {&instr.a, &instr.b, &instr.c})
        if (*o == i) *o = by;
    for (std::int32_t& o : q.outputs)
      if (o == i) o = by;
    return without_dead_code(q);
  };
  if (fails(without_dead_code(program))) program = without_dead_code(program);
  for (bool changed = true; changed;) {
    changed = false;
    for (auto i = static_cast<std::int32_t>(program.code.size()) - 1; i >= 0; --i) {
      if (i >= static_cast<std::int32_t>(program.code.size())) continue;
      const ir::Instr instr = program.code[i];
      for (std::int32_t by : {instr.a, instr.b, instr.c, 0, 1, 2}) {
        if (by < 0 || by >= i || ir::makes_mask(program.code[by].op) != ir::makes_mask(instr.op)) continue;
        ir::Program smaller = replaced(program, i, by);
        if (smaller.code.size() >= program.code.size() || !fails(smaller)) continue;
        program = std::move(smaller);
        changed = true;
        break;
      }
    }
  }
  return program;
}

}  // namespace mercer::testing
