// Lowering: which primitives come out, and that they mean what the op table says.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ir/expr/ops.h"
#include "ir/expr/program.h"
#include "mercer/error.h"

namespace mercer::ir {
namespace {

Expr x() { return leaf(Op::x); }
Expr z() { return leaf(Op::z); }
Expr acc(int slot = 0) { return leaf(Op::accumulator, slot); }

LowerOptions options_of(Dtype type, bool finite = false) {
  LowerOptions options;
  options.type = type;
  options.assume_finite = finite;
  return options;
}

// Primitives without inputs and constants, in order.
std::vector<Prim> prims(const Program& program) {
  std::vector<Prim> result;
  for (const Instr& instr : program.code)
    if (instr.op != Prim::input && instr.op != Prim::constant) result.push_back(instr.op);
  return result;
}

std::vector<Prim> prims_of(const Expr& e, bool finite = false, Dtype type = Dtype::float32) {
  return prims(lower({e}, options_of(type, finite)));
}

using Prims = std::vector<Prim>;

TEST(Lower, ShortTermsTakeTheFewestPrimitives) {
  const Expr d = x() - z();
  EXPECT_EQ(prims_of(acc() + x() * z()), (Prims{Prim::fma}));
  EXPECT_EQ(prims_of(acc() + square(d)), (Prims{Prim::sub, Prim::fma}));
  EXPECT_EQ(prims_of(acc() + pow(abs(d), 2.0)), (Prims{Prim::sub, Prim::fma}));
  EXPECT_EQ(prims_of(acc() + abs(d)), (Prims{Prim::sub, Prim::bit_and, Prim::add}));
  EXPECT_EQ(prims_of(acc() + pow(abs(d), 3.0)), (Prims{Prim::sub, Prim::bit_and, Prim::mul, Prim::fma}));
  EXPECT_EQ(prims_of(acc() + pow(abs(d), 1.5)), (Prims{Prim::sub, Prim::bit_and, Prim::sqrt, Prim::fma}));
  const Expr t = max(abs(d) - 0.5, 0.0);
  EXPECT_EQ(prims_of(acc() + t * t), (Prims{Prim::sub, Prim::bit_and, Prim::sub, Prim::max, Prim::fma}));
  EXPECT_EQ(prims_of(acc() - x() * z()), (Prims{Prim::fnma}));
}

TEST(Lower, OnlyAccumulatorsContract) {
  EXPECT_EQ(prims_of(x() * z() + leaf(Op::w)), (Prims{Prim::mul, Prim::add}));
  EXPECT_EQ(prims_of(fma(x(), z(), leaf(Op::w))), (Prims{Prim::fma}));
}

TEST(Lower, MaximumPropagatesNanWithAsFewPrimitivesAsThePromisesAllow) {
  const Expr update = max(acc(), abs(x() - z()));
  EXPECT_EQ(prims_of(update), (Prims{Prim::sub, Prim::bit_and, Prim::int_max}));
  EXPECT_EQ(prims_of(update, true), (Prims{Prim::sub, Prim::bit_and, Prim::max}));
  LowerOptions options = options_of(Dtype::float32, true);
  options.nonnegative_slots = {true};
  EXPECT_EQ(prims(lower({update}, options)), (Prims{Prim::sub, Prim::abs_max}));
  EXPECT_EQ(prims_of(update, false, Dtype::float64),
            (Prims{Prim::sub, Prim::bit_and, Prim::max, Prim::unordered, Prim::select}));
}

// Inf - Inf is a NaN with a sign on x86, which is less than any number as a signed integer.
TEST(Lower, MaximumKeepsNanOfEitherSign) {
  const Expr terms[] = {square(x()), sqrt(abs(x())), exp(x()), abs(x()), where(x() < 0.5, 2.0, x() * x())};
  std::vector<Expr> updates;
  for (const Expr& term : terms)
    for (const Expr& other : {acc(), Expr(3.0), square(leaf(Op::z))}) updates.push_back(max(other, term));
  for (const Expr& update : updates)
    for (bool promised : {false, true}) {
      LowerOptions options = options_of(Dtype::float32);
      options.nonnegative_slots = {promised};
      const Program program = lower({update}, options);
      for (float sign : {1.0f, -1.0f}) {
        std::vector<float> inputs;
        for (const Input& input : program.inputs)
          inputs.push_back(input.site == Site::x ? std::copysign(std::numeric_limits<float>::quiet_NaN(), sign) : 1.0f);
        EXPECT_TRUE(std::isnan(run<float>(program, inputs)[0])) << update.to_text() << "\n" << program.to_text();
      }
    }
}

TEST(Lower, ConditionsStayMasks) {
  EXPECT_EQ(prims_of(where(x() < z(), x(), z())), (Prims{Prim::less, Prim::select}));
  EXPECT_EQ(prims_of(where(logical_and(x() < z(), logical_not(equal(x(), 0.0))), x(), z())),
            (Prims{Prim::less, Prim::equal, Prim::mask_not, Prim::mask_and, Prim::select}));
  EXPECT_EQ(prims_of(acc() + not_equal(x(), z())), (Prims{Prim::not_equal, Prim::select, Prim::add}));
}

TEST(Lower, EqualSubexpressionsAreComputedOnce) {
  const Program program = lower({exp(x() * z()), exp(z() * x()) + 1.0}, options_of(Dtype::float32));
  int lookups = 0;
  for (Prim prim : prims(program)) lookups += prim == Prim::table16;
  EXPECT_EQ(lookups, 1);
  EXPECT_EQ(program.outputs.size(), 2u);
}

TEST(Lower, ParametersTakeTheirSlots) {
  LowerOptions options = options_of(Dtype::float32);
  options.params = {param("a"), param("b")};
  const Program program = lower({x() * param("b")}, options);
  EXPECT_EQ(program.inputs[1], (Input{Site::param, 1}));
  EXPECT_THROW(lower({x() * param("c")}, options), Error);
  EXPECT_THROW(lower({sum(x())}, options), Error);
}

TEST(Lower, FactsChooseTheCheaperForms) {
  const Expr s = acc() / leaf(Op::features);
  LowerOptions promised = options_of(Dtype::float32);
  const std::size_t general = prims(lower({exp(-s)}, promised)).size();
  promised.nonnegative_slots = {true};
  EXPECT_LT(prims(lower({exp(-s)}, promised)).size(), general);
}

double eval(const Expr& e, double x_value, double z_value) {
  if (e->op == Op::constant) return e->value;
  if (e->op == Op::x) return x_value;
  if (e->op == Op::z) return z_value;
  double args[3] = {};
  for (std::size_t i = 0; i < e->args.size(); ++i) args[i] = eval(e->args[i], x_value, z_value);
  return info(e->op).eval(args);
}

Expr random_expression(std::mt19937_64& random, int depth) {
  if (depth == 0) {
    constexpr double kConstants[] = {0, 1, -1, 0.5, 2, 3, -2.5};
    switch (random() % 3) {
      case 0: return x();
      case 1: return z();
      default: return Expr(kConstants[random() % 7]);
    }
  }
  const auto& table = op_table();
  const OpInfo& row = table[random() % table.size()];
  std::vector<Expr> args;
  for (int i = 0; i < row.arity; ++i) args.push_back(random_expression(random, depth - 1));
  return make(row.op, std::move(args));
}

// Single ops and small trees over ordinary and special values. Deeper trees can turn an ulp into anything.
TEST(Lower, EveryOpAgreesWithTheTable) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const double values[] = {0, 1, -1, 0.3, -0.7, 2.5, -3, 10.25, inf, -inf, nan};
  std::vector<Expr> expressions;
  for (const OpInfo& row : op_table()) {
    if (row.arity == 1) expressions.push_back(make(row.op, {x()}));
    if (row.arity == 2) expressions.push_back(make(row.op, {x(), z()}));
    if (row.arity == 3)
      expressions.push_back(make(row.op, {x(), z(), 0.5})), expressions.push_back(make(row.op, {x(), 1.5, z()}));
  }
  for (const Expr& e : expressions) {
    const Program program = lower({e}, options_of(Dtype::float64));
    for (double x_value : values)
      for (double z_value : values) {
        std::vector<double> inputs;
        for (const Input& input : program.inputs) inputs.push_back(input.site == Site::x ? x_value : z_value);
        const double got = run<double>(program, inputs)[0], want = eval(e, x_value, z_value);
        EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want)) ||
                    std::fabs(got - want) <= 1e-14 * std::fabs(want) + 1e-15)
            << e.to_text() << " at " << x_value << ", " << z_value << ": " << got << " for " << want;
      }
  }
}

TEST(Lower, RandomExpressionsLowerToValidPrograms) {
  std::mt19937_64 random(5);
  int compared = 0, close = 0;
  for (int i = 0; i < 1500; ++i) {
    const Expr e = random_expression(random, 1 + static_cast<int>(random() % 3));
    for (Dtype type : {Dtype::float32, Dtype::float64}) {
      const Program program = lower({e}, options_of(type, i % 2 == 0));
      verify(program);
      if (type == Dtype::float32) continue;
      std::vector<double> inputs;
      for (const Input& input : program.inputs) inputs.push_back(input.site == Site::x ? 0.83 : -1.7);
      const double got = run<double>(program, inputs)[0], want = eval(e, 0.83, -1.7);
      ++compared;
      close += got == want || (std::isnan(got) && std::isnan(want)) ||
               std::fabs(got - want) <= 1e-12 * (1 + std::fabs(want));
    }
  }
  EXPECT_GE(close, compared * 99 / 100);
}

TEST(Program, TextShowsEveryInstruction) {
  const Program program = lower({acc() + abs(x() - z())}, options_of(Dtype::float32));
  EXPECT_EQ(program.to_text(),
            "float32 program\n"
            "  v0 = input acc0\n"
            "  v1 = input x0\n"
            "  v2 = input z0\n"
            "  v3 = sub v1 v2\n"
            "  v4 = constant 0x7fffffff (nan)\n"
            "  v5 = bit_and v3 v4\n"
            "  v6 = add v0 v5\n"
            "  return v6\n");
}

TEST(Program, VerifyFindsBrokenPrograms) {
  Program program;
  program.inputs = {{Site::x, 0}};
  program.code = {{.op = Prim::input}, {.op = Prim::add, .a = 0, .b = 1}};
  program.outputs = {1};
  EXPECT_THROW(verify(program), Error);  // reads itself
  program.code[1] = {.op = Prim::less, .a = 0, .b = 0};
  EXPECT_THROW(verify(program), Error);  // a mask as output
  program.code.push_back({.op = Prim::add, .a = 0, .b = 1});
  program.outputs = {2};
  EXPECT_THROW(verify(program), Error);  // a mask as number
  program.code[2] = {.op = Prim::select, .a = 1, .b = 0, .c = 0};
  EXPECT_NO_THROW(verify(program));
  program.code[0].index = 3;
  EXPECT_THROW(verify(program), Error);  // no such input
}

}  // namespace
}  // namespace mercer::ir
