// The interpreter against ir::run, bit by bit, on every instruction set of this machine.
#include "codegen/interpreter/interpret.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace mercer::codegen {
namespace {

using ir::Instr;
using ir::Op;
using ir::Prim;
using ir::Program;
using ir::Site;

std::vector<Isa> machine_isas() {
  std::vector<Isa> isas = {Isa::baseline};
  if (best_isa() >= Isa::avx2) isas.push_back(Isa::avx2);
  if (best_isa() >= Isa::avx512) isas.push_back(Isa::avx512);
  return isas;
}

constexpr std::int64_t kCounts[] = {0, 1, 15, 16, 17, 255, 257, 1000};

template <class T>
T draw(std::mt19937_64& random) {
  constexpr double kSpecial[] = {0, -0.0, 1, -1, 0.5, 1e-30, 3e38, -7.25};
  if (random() % 4 == 0) return static_cast<T>(kSpecial[random() % 8]);
  return static_cast<T>(
      std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random), static_cast<int>(random() % 40) - 20));
}

// NaN compare equal whatever their bits: processors differ in sign and payload.
template <class T>
bool same_bits(T a, T b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(T)) == 0;
}

// Random programs over all primitives. Bits of a possible NaN must not be looked at, since NaN are not reproducible:
// bit operations read inputs, constants or other bit operations' results only.
template <class T>
Program random_program(std::mt19937_64& random) {
  Program program;
  program.type = dtype_of<T>();
  for (int i = 0; i < 4; ++i) {
    program.inputs.push_back({Site::z, i});
    program.code.push_back({.op = Prim::input, .index = i});
  }
  std::array<double, 16> table;
  for (double& entry : table) entry = draw<T>(random);
  program.tables.push_back(table);
  std::vector<std::int32_t> floats = {0, 1, 2, 3}, bits = {0, 1, 2, 3}, masks;
  for (int i = 0; i < 3; ++i) {
    const T value = draw<T>(random);
    std::uint64_t pattern = 0;
    std::memcpy(&pattern, &value, sizeof(T));
    program.code.push_back({.op = Prim::constant, .bits = pattern});
    floats.push_back(4 + i), bits.push_back(4 + i);
  }
  const auto pick = [&](const std::vector<std::int32_t>& from) { return from[random() % from.size()]; };
  while (program.code.size() < 60) {
    const auto op = static_cast<Prim>(2 + random() % static_cast<std::uint64_t>(Prim::select));
    const bool narrow = op == Prim::int_max || op == Prim::int_to_float;
    if (op > Prim::select || ir::is_of_gpus(op) || (narrow && sizeof(T) == 8)) continue;
    const bool on_masks = op >= Prim::mask_and && op <= Prim::mask_not;
    const bool on_bits = op >= Prim::bit_and && op <= Prim::table16;
    if ((on_masks || op == Prim::select) && masks.empty()) continue;
    const auto& from = on_masks ? masks : on_bits ? bits : floats;
    Instr instr{.op = op, .a = pick(from), .b = -1, .c = -1};
    if (op == Prim::select) instr.a = pick(masks);
    if (ir::operand_count(op) > 1) instr.b = pick(from);
    if (ir::operand_count(op) > 2) instr.c = pick(from);
    if (op == Prim::shift_left || op == Prim::shift_right) instr.bits = random() % (8 * sizeof(T));
    const auto id = static_cast<std::int32_t>(program.code.size());
    program.code.push_back(instr);
    if (ir::makes_mask(op))
      masks.push_back(id);
    else
      floats.push_back(id);
    if (on_bits) bits.push_back(id);
  }
  for (int i = 0; i < 4; ++i) program.outputs.push_back(pick(floats));
  program.outputs.push_back(program.outputs.front());
  verify(program);
  return program;
}

template <class T>
void check_random_program(std::uint64_t seed, Isa isa) {
  std::mt19937_64 random(seed);
  const Program program = random_program<T>(random);
  const InterpretedProgram interpreted(program, isa);
  const std::int64_t count = kCounts[seed % std::size(kCounts)];
  std::vector<std::vector<T>> inputs(4, std::vector<T>(static_cast<std::size_t>(count) + 1));
  for (auto& input : inputs)
    for (T& value : input) value = draw<T>(random);
  const T guard = T(12345);
  std::vector<std::vector<T>> outputs(program.outputs.size(),
                                      std::vector<T>(static_cast<std::size_t>(count) + 1, guard));
  std::vector<LaneInput> lane_inputs;
  for (const auto& input : inputs) lane_inputs.push_back({input.data(), random() % 2 == 0, 0});
  std::vector<void*> pointers;
  for (auto& output : outputs) pointers.push_back(output.data());
  interpreted.run(lane_inputs.data(), pointers.data(), count);
  for (std::int64_t lane = 0; lane < count; ++lane) {
    std::vector<T> values;
    for (std::size_t i = 0; i < 4; ++i)
      values.push_back(inputs[i][lane_inputs[i].uniform ? 0 : static_cast<std::size_t>(lane)]);
    const std::vector<T> want = run<T>(program, values);
    for (std::size_t o = 0; o < want.size(); ++o)
      ASSERT_TRUE(same_bits(outputs[o][static_cast<std::size_t>(lane)], want[o]))
          << name_of(isa) << " seed " << seed << " lane " << lane << " output " << o << ": "
          << outputs[o][static_cast<std::size_t>(lane)] << " for " << want[o] << "\n"
          << program.to_text();
  }
  for (const auto& output : outputs) EXPECT_EQ(output.back(), guard) << "written past the end";
}

TEST(Interpret, RandomProgramsMatchTheReference) {
  for (Isa isa : machine_isas()) {
    for (std::uint64_t seed = 0; seed < 160; ++seed) {
      check_random_program<float>(seed, isa);
      check_random_program<double>(seed, isa);
      if (HasFatalFailure()) return;
    }
  }
}

Program lowered(const Expr& e, Dtype type) {
  ir::LowerOptions options;
  options.type = type;
  options.params = {param("c")};
  return ir::lower({e}, options);
}

Expr acc() { return ir::leaf(Op::accumulator); }
Expr difference() { return ir::leaf(Op::x) - ir::leaf(Op::z); }

// acc[c] += max(|x - z[c]| - c, 0)^2 over k, in place, against the same loop by hand.
TEST(Interpret, StepsAccumulateInPlace) {
  const Expr t = max(abs(difference()) - param("c"), 0.0);
  const Program program = lowered(acc() + t * t, Dtype::float32);
  constexpr std::int64_t kCols = 300, kSteps = 37;
  std::mt19937_64 random(1);
  std::vector<float> x(kSteps), z(kSteps * kCols), start(kCols), want;
  for (auto* values : {&x, &z, &start})
    for (float& value : *values) value = draw<float>(random);
  const float c = 0.25f;
  want = start;
  for (std::int64_t k = 0; k < kSteps; ++k)
    for (std::int64_t col = 0; col < kCols; ++col) {
      const float s = std::fabs(x[k] - z[k * kCols + col]) - c;
      const float u = s > 0 ? s : 0;
      want[col] = std::fma(u, u, want[col]);
    }
  for (Isa isa : machine_isas()) {
    std::vector<float> state = start;
    std::vector<LaneInput> inputs;
    for (const ir::Input& input : program.inputs) {
      switch (input.site) {
        case Site::x: inputs.push_back({x.data(), true, 4}); break;
        case Site::z: inputs.push_back({z.data(), false, 4 * kCols}); break;
        case Site::param: inputs.push_back({&c, true, 0}); break;
        default: inputs.push_back({state.data(), false, 0}); break;
      }
    }
    void* output = state.data();
    InterpretedProgram(program, isa).run_steps(inputs.data(), &output, kCols, kSteps);
    for (std::size_t i = 0; i < state.size(); ++i)
      ASSERT_TRUE(same_bits(state[i], want[i])) << name_of(isa) << " " << i;
  }
}

// Lowered functions use every fused kernel; NaN and Inf among the inputs.
template <class T>
void check_formula(const Expr& e, bool finite, Isa isa) {
  ir::LowerOptions options;
  options.type = dtype_of<T>();
  options.assume_finite = finite;
  options.params = {param("c")};
  const Program program = ir::lower({e}, options);
  const InterpretedProgram interpreted(program, isa);
  constexpr std::int64_t kCount = 531;
  std::mt19937_64 random(9);
  std::vector<std::vector<T>> data;
  std::vector<LaneInput> inputs;
  for (const ir::Input& input : program.inputs) {
    data.emplace_back(kCount);
    for (T& value : data.back()) value = draw<T>(random);
    if (!finite)
      data.back()[3] = std::numeric_limits<T>::quiet_NaN(), data.back()[4] = std::numeric_limits<T>::infinity();
    inputs.push_back({nullptr, input.site == Site::x || input.site == Site::param, 0});
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i].data = data[i].data();
  std::vector<T> got(kCount);
  void* output = got.data();
  interpreted.run(inputs.data(), &output, kCount);
  for (std::size_t lane = 0; lane < kCount; ++lane) {
    std::vector<T> values;
    for (std::size_t i = 0; i < inputs.size(); ++i) values.push_back(data[i][inputs[i].uniform ? 0 : lane]);
    const T want = run<T>(program, values)[0];
    ASSERT_TRUE(same_bits(got[lane], want))
        << name_of(isa) << " " << e.to_text() << " lane " << lane << ": " << got[lane] << " for " << want;
  }
}

TEST(Interpret, LoweredFormulasMatchTheReference) {
  const Expr d = difference(), z = ir::leaf(Op::z);
  const Expr formulas[] = {acc() + abs(d),
                           acc() + d * d,
                           acc() + pow(abs(d), 1.3),
                           acc() + pow(abs(d), param("c")),
                           max(acc(), abs(d)),
                           exp(-abs(d)),
                           exp(d),
                           log(z),
                           log1p(abs(z)),
                           tanh(z),
                           erf(z),
                           sin(z),
                           cos(d),
                           asin(z),
                           acos(z),
                           atan2(z, d),
                           expm1(z),
                           sign(z),
                           z < d,
                           where(z < d, z, d),
                           square(max(d, z)) + z};
  for (Isa isa : machine_isas())
    for (const Expr& e : formulas)
      for (bool finite : {false, true}) {
        check_formula<float>(e, finite, isa);
        check_formula<double>(e, finite, isa);
      }
}

// Two states that exchange their values: no output may overwrite what a later one reads.
TEST(Interpret, OutputsMayTakeTheArraysOfInputs) {
  ir::LowerOptions options;
  const Expr a = ir::leaf(Op::accumulator, 0), b = ir::leaf(Op::accumulator, 1);
  const Program program = ir::lower({b, a + b}, options);
  for (Isa isa : machine_isas()) {
    std::vector<float> first(20, 1), second(20, 1);
    std::vector<LaneInput> inputs;
    for (const ir::Input& input : program.inputs)
      inputs.push_back({input.slot == 0 ? first.data() : second.data(), false, 0});
    void* outputs[] = {first.data(), second.data()};
    InterpretedProgram(program, isa).run_steps(inputs.data(), outputs, 20, 5);
    EXPECT_EQ(first[7], 8);  // 1 1 2 3 5 8 13
    EXPECT_EQ(second[7], 13);
  }
}

}  // namespace
}  // namespace mercer::codegen
