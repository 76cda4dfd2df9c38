// Formulas beyond the usual: values per point, weights, offsets, several reductions, user reductions, infinities.
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

struct Inputs {
  Array x, z, w, row, col;
  Extra extra;
};

Inputs make_inputs(Dtype dtype, std::int64_t m, std::int64_t n, std::int64_t k) {
  Inputs in{normal(dtype, {m, k}, 1), normal(dtype, {n, k}, 2), uniform(dtype, {k}, 3),
            normal(dtype, {m}, 4),    normal(dtype, {n}, 5),    {}};
  for (std::int64_t i = 0; i < k; ++i) in.extra.w.push_back(in.w(i));
  for (std::int64_t i = 0; i < m; ++i) in.extra.row.push_back(in.row(i));
  for (std::int64_t i = 0; i < n; ++i) in.extra.col.push_back(in.col(i));
  in.extra.i_offset = 4;
  in.extra.j_offset = -3;
  in.extra.params = {{"p", 1.6}, {"c", 0.75}};
  return in;
}

/// Gives exactly what the formula reads.
Arguments arguments_for(const std::string& text, const Inputs& in) {
  Arguments arguments;
  arguments.i_offset = in.extra.i_offset;
  arguments.j_offset = in.extra.j_offset;
  if (text.find("w*") != std::string::npos) arguments.w = in.w;
  if (text.find("row") != std::string::npos) arguments.row = in.row;
  if (text.find("col") != std::string::npos) arguments.col = in.col;
  for (const auto& [name, value] : parameters(parse(text))) arguments.params[name] = in.extra.params.at(name);
  return arguments;
}

void check(const char* text, const char* scale, double factor = 1) {
  for (Dtype dtype : kWide)
    for (auto [m, n, k] : {std::array{11, 53, 37}, {3, 130, 300}, {2, 5, 1}}) {
      const Inputs in = make_inputs(dtype, m, n, k);
      const Arguments arguments = arguments_for(text, in);
      const Expected expected =
          expected_pairs(parse(text), in.x, in.z, factor * unit(dtype), *scale ? parse(scale) : Expr(), in.extra);
      const Tensor zt = in.z;
      on_each_target([&](TestContext& context) {
        const Array out(dtype, {m, n}), turned(dtype, {m, n}, column_major({m, n}));
        pairwise(text, in.x, &zt, out, arguments, context);
        expect_pairs(out, expected, text);
        pairwise(text, in.x, &zt, turned, arguments, context);  // runs with its sides swapped
        expect_pairs(turned, expected, text);
      });
    }
}

TEST(Formulas, AParameterNamedAsTheSplitNamesItsOwn) {
  const Array x = normal(Dtype::float64, {3, 2}, 1), out(Dtype::float64, {3, 3}), expected(Dtype::float64, {3, 3});
  Arguments arguments;
  arguments.params = {{"h", 1.0}, {"other", 3.0}};
  pairwise("sum(abs(x-z))*exp(h) + other", x, nullptr, expected, arguments);
  arguments.params = {{"h", 1.0}, {"uniform0", 3.0}};
  pairwise("sum(abs(x-z))*exp(h) + param(uniform0, nan)", x, nullptr, out, arguments);
  EXPECT_TRUE(same_bits(out, expected));
}

TEST(Formulas, ValuesPerPoint) {
  check("abs(row) + 3*abs(col) + sum(abs(x-z))", "");
  check("sum(max(x - z + row, 0)*exp(-abs(col)))", "sum(abs(x) + abs(z) + abs(row))");
  check("max(x*row - z*col)", "max(abs(x*row) + abs(z*col))");
  check("where(row < col, sum(abs(x-z)), 7)", "");
}

TEST(Formulas, IndicesAndOffsets) {
  check("where(i == j, 1 + c, exp(-sum(abs(x-z))/30))", "s = sum(abs(x-z))/30; 2 + exp(-s)*(1 + s)");
  check("i - 1000*j", "abs(i) + 1000*abs(j)");
  check("sum(abs(x-z)) + abs(i - j)", "");
  check("sum(where(i < j, x, z))", "sum(abs(x) + abs(z))");
}

TEST(Formulas, Weights) {
  check("sum(w*abs(x-z))", "");
  check("sqrt(sum(w*square(x-z))/sum(w*1))", "", 2);
  check("sum(w*abs(x-z)^p)^(1/p)", "");
  check("max(w*abs(x-z))", "");
  // Weights of one side, with values of the points.
  check("sum(w*x*x) + sum(sqrt(abs(w*x + row))*z)", "sum(abs(w)*x*x) + sum(sqrt(abs(w*x + row))*abs(z))", 2);
  check("sum(exp(w*z*col/9)*x)/(1 + sum(w*abs(z*col)))", "sum(exp(w*z*col/9)*abs(x))/(1 + sum(w*abs(z*col)))", 2);
}

TEST(Formulas, SeveralReductions) {
  check("sum(abs(x-z)) + max(abs(x-z)) + sqrt(sum((x-z)^2))", "");
  check("sum(abs(x-z))/max(abs(x-z)) + min(abs(x-z))", "", 2);
  check("prod(1 + abs(x-z)/100)*exp(-max(abs(x-z)))",
        "f = prod(1 + abs(x-z)/100)*exp(-max(abs(x-z))); f*(1 + max(abs(x-z)) + K*0.06)", 2);
  check("s = sum(abs(x-z)); sum(x*z)/(1 + s)", "sqrt(sum(x*x)*sum(z*z))/(1 + sum(abs(x-z)))", 2);
  check("sum(x*x)*sum(z*z) + sum(x*z)^2", "2*sum(x*x)*sum(z*z)", 2);
}

TEST(Formulas, StagesThatReadStages) {
  check("m = sum(x)/K; n = sum(z)/K; sum(abs((x - m) - (z - n)))", "sum(abs(x) + abs(z)) + 2*K");
  check("v = sqrt(sum(square(x - sum(x)/K))); sum(abs(x/(1 + v) - z))", "sum(abs(x) + abs(z)) + K");
  check("sum(abs(x/(c + max(abs(x))) - z/(c + max(abs(z)))))", "sum(abs(x) + abs(z))");
  check("logsumexp(x) - logsumexp(z) + sum(abs(x-z))", "1 + abs(logsumexp(x)) + abs(logsumexp(z)) + sum(abs(x-z))");
}

TEST(Formulas, ProductsAndExtremes) {
  check("prod(1 + abs(x-z)/50)", "(1 + K*0.06)*prod(1 + abs(x-z)/50)");  // K products of two roundings each
  check("min(x-z)", "");
  check("max(x+z) - min(x-z)", "max(abs(x) + abs(z))", 2);
  check("sum(min(x, z)) + sum(max(x, z))", "2*sum(abs(x) + abs(z))");
  // 1.34 keeps the product of 300 differences near 1: about two thirds of a rounding for each of three per factor.
  check("prod(1.34*(x-z))", "(1 + K*0.12)*prod(1.34*(x-z)) + 1e-30");
}

TEST(Formulas, UserReductions) {
  // The largest difference and its product, by a tuple: ties keep the first.
  check("reduce((abs(x-z), x*z), (where(t0 > a0, t0, a0), where(t0 > a0, t1, a1)), (-1, 0), finish=a0 + 0.125*a1)",
        "2*max(abs(x-z)) + max(abs(x*z))");
  // Depends on the order of k: a running average.
  check("reduce(x-z, 0.75*a + t, 0)", "sum(0*x) + 4*max(abs(x) + abs(z))");
  // Kahan-like pair, associative, with merge.
  check(
      "reduce((x-z, (x-z)^2), (a0 + t0, a1 + t1), (0, 0), merge=(a0 + t0, a1 + t1), finish=a1 - square(a0)/K, "
      "associative=true)",
      "2*sum((x-z)^2)", 3);
  check("reduce(abs(x-z), max(a, t), 0, merge=max(a, t), finish=2*a, associative=true)", "");
  // f(acc, 0, 0) is not acc: ragged tiles must be masked.
  check("reduce(x-z, a + 1 + 0*t, 0)", "");
}

TEST(Formulas, LogsumexpOfInfinities) {
  for (Dtype dtype : kWide) {
    Array x = normal(dtype, {9, 20}, 1), z = normal(dtype, {50, 20}, 2);
    x.set({1, 3}, kInf);
    x.set({2, 3}, -kInf);
    for (int k = 0; k < 20; ++k) x.set({3, k}, -kInf);
    x.set({4, 0}, 800);
    x.set({5, 0}, kNan);
    const Expected expected = expected_pairs(parse("logsumexp(x+z)"), x, z, unit(dtype),
                                             parse("s = logsumexp(x+z); where(abs(s) < 1e9, 1 + abs(s), 0)"));
    const Tensor zt = z;
    on_each_target([&](TestContext& context) {
      const Array out(dtype, {9, 50});
      pairwise("logsumexp(x+z)", x, &zt, out, {}, context);
      expect_pairs(out, expected, "logsumexp");
    });
  }
}

TEST(Formulas, NoFeatures) {
  for (Dtype dtype : kWide)
    for (const char* text :
         {"sum(x*z)", "prod(x*z)", "max(x-z)", "min(x-z)", "logsumexp(x*z)", "max(abs(x-z))", "max(max(abs(x-z)), 0)",
          "exp(-sum(abs(x-z)))", "reduce(x-z, a + t, 3)", "sqrt(sum(x*x)) + sum(z)", "K"}) {
      const Array x(dtype, {3, 0}), z(dtype, {20, 0});
      const Expected expected = expected_pairs(parse(text), x, z, 0);
      const Tensor zt = z;
      on_each_target([&](TestContext& context) {
        const Array out(dtype, {3, 20});
        pairwise(text, x, &zt, out, {}, context);
        expect_pairs(out, expected, text);
      });
    }
}

}  // namespace
}  // namespace mercer
