// Gradients by both sides of pairs that are made once, on each target of CPUs: against the oracle, on awkward layouts,
// batches and values, and on several threads.
#include "ops/pairs/both_sides.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "ir/expr/expr.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"
#include "ops/pairs/backward_plan.h"
#include "ops/weighted_pairs.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kGauss = "exp(-sum((x-z)^2)/(b*K))";
constexpr const char* kFormulas[] = {kGauss, "sqrt(sum((x-z)^2))", "(1 + sum(x*z)/(b*K))^3",
                                     "row*col*exp(-sum((z-x)^2)/(b*K))/(1 + j)"};

struct Problem : WeightedPairs {
  Problem(const char* text, Dtype dtype, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns)
      : WeightedPairs(parse(text), dtype, m, n, k, columns) {
    arguments.j_offset = extra.j_offset = 3;
    if (std::string(text).find("b*") != std::string::npos) arguments.params["b"] = extra.params["b"] = 1.5;
  }

  Extra turned() const {
    Extra other = extra;
    std::swap(other.row, other.col);
    std::swap(other.i_offset, other.j_offset);
    return other;
  }
};

/// What a call of the verb writes.
struct Results {
  Array by_x, by_z, product;
  explicit Results(const Problem& p, Dtype dtype)
      : by_x(dtype, {p.m(), p.k()}), by_z(dtype, {p.n(), p.k()}), product(dtype, {p.n(), p.u.shape()[1]}) {}

  void make(const char* text, const Problem& p, Context& context) {
    const Tensor v = p.v, z = p.z, values = product;
    ops::both_sides_backward(Formula(text), p.x, z, p.u, &v, {by_x, by_z, &values}, p.arguments, context);
  }
  bool same(const Results& other) const {
    return same_bits(by_x, other.by_x) && same_bits(by_z, other.by_z) && same_bits(product, other.product);
  }
};

/// Compares with the oracle: an element is a sum of n terms, each rounded as values and weights of a pair are.
void expect(const Array& by_x, const Array& by_z, const char* text, const Problem& p, const Array& weights,
            const std::string& what) {
  const double factor = 8 * std::sqrt(static_cast<double>(p.u.shape()[1]));
  const Expr f = parse(text);
  const Array of_n = Array(Dtype::float64, {p.n()}).fill([] { return 1.0; }),
              of_m = Array(Dtype::float64, {p.m()}).fill([] { return 1.0; });
  const Tensor matrix = weights, turned = transposed(weights);
  const Expr by_rows = differentiate(f, points().x), by_cols = differentiate(ir::swap_sides(f), points().x);
  expect_field(by_x, expected_field(by_rows, p.x, p.z, of_n, p.extra, &matrix), what + ", by x", factor, 1e-30);
  expect_field(by_z, expected_field(by_cols, p.z, p.x, of_m, p.turned(), &turned), what + ", by z", factor, 1e-30);
}

TEST(BothSides, MatchTheOracle) {
  for (const Dtype dtype : kWide)
    for (const char* text : kFormulas)
      for (const auto& [m, n, k, columns] :
           {std::array{1, 1, 1, 1}, {3, 61, 33, 2}, {210, 5, 7, 3}, {31, 35, 16, 17}}) {
        const Problem p(text, dtype, m, n, k, columns);
        const Array weights = p.matrix(dtype);
        on_each_cpu_target([&](TestContext& context) {
          const std::string what = std::string(text) + ", " + std::to_string(m) + "x" + std::to_string(n);
          Results of(p, dtype), of_matrix(p, dtype);
          of.make(text, p, context);
          expect(of.by_x, of.by_z, text, p, p.matrix(Dtype::float64), what);
          expect_product(of.product, table(ir::swap_sides(parse(text)), p.z, p.x, p.turned()), p.u, what);
          const Tensor z = p.z;
          ops::both_sides_backward(Formula(text), p.x, z, weights, nullptr, {of_matrix.by_x, of_matrix.by_z},
                                   p.arguments, context);
          expect(of_matrix.by_x, of_matrix.by_z, text, p, weights, what + " by a matrix");
        });
      }
}

TEST(BothSides, LayoutsAndThreadsChangeNoBit) {
  for (const auto& [m, n, k] : {std::array{37, 900, 40}, {450, 29, 5}, {300, 300, 20}}) {
    const Problem p(kGauss, Dtype::float32, m, n, k, 3);
    Problem other = p;
    other.x = copy(p.x, Dtype::float32, column_major({m, k}));
    other.z = copy(p.z, Dtype::float32, Shape{2 * k + 1, 2});
    other.v = copy(p.v, Dtype::float32, column_major({n, 3}));
    TestContext context(targets().front());
    Results plain(p, Dtype::float32), moved(p, Dtype::float32), again(p, Dtype::float32);
    context.set_threads(1);
    plain.make(kGauss, p, context);
    moved.make(kGauss, other, context);
    context.set_threads(3);
    again.make(kGauss, p, context);
    EXPECT_TRUE(plain.same(moved)) << m;
    EXPECT_TRUE(plain.same(again)) << m;
  }
}

/// Items alone; the second one has a pair whose sum leaves the range, and goes another way.
TEST(BothSides, ItemsOfABatch) {
  constexpr std::int64_t kM = 5, kN = 7, kK = 3;
  const char* const text = "sqrt(sum((x-z)^2))";
  Array x = normal(Dtype::float32, {3, kM, kK}, 1);
  const Array z = normal(Dtype::float32, {kN, kK}, 2), u = normal(Dtype::float32, {3, kM, 2}, 3),
              v = normal(Dtype::float32, {kN, 2}, 4);
  for (std::int64_t k = 0; k < kK; ++k) x.set({1, 2, k}, 3e25);
  const Tensor zt = z, vt = v, xt = x, ut = u;
  on_each_cpu_target([&](TestContext& context) {
    const Array by_x(Dtype::float32, {3, kM, kK}), by_z(Dtype::float32, {3, kN, kK}),
        values(Dtype::float32, {3, kN, 2});
    const Tensor product = values;
    ops::both_sides_backward(Formula(text), x, zt, u, &vt, {by_x, by_z, &product}, {}, context);
    for (std::int64_t item = 0; item < 3; ++item) {
      const Tensor one_x(static_cast<float*>(xt.data) + item * kM * kK, Dtype::float32, {kM, kK});
      const Tensor one_u(static_cast<float*>(ut.data) + item * kM * 2, Dtype::float32, {kM, 2});
      const Array x_alone(Dtype::float32, {kM, kK}), z_alone(Dtype::float32, {kN, kK}),
          v_alone(Dtype::float32, {kN, 2});
      const Tensor alone = v_alone;
      ops::both_sides_backward(Formula(text), one_x, zt, one_u, &vt, {x_alone, z_alone, &alone}, {}, context);
      each_index({kM, kK}, [&](const Shape& i) { ASSERT_EQ(by_x(item, i[0], i[1]), x_alone(i[0], i[1])); });
      each_index({kN, kK}, [&](const Shape& i) { ASSERT_EQ(by_z(item, i[0], i[1]), z_alone(i[0], i[1])); });
      each_index({kN, 2}, [&](const Shape& i) { ASSERT_EQ(values(item, i[0], i[1]), v_alone(i[0], i[1])); });
      // Far points have unit directions, which squares in float32 would lose.
      const Array ones = Array(Dtype::float64, {kN}).fill([] { return 1.0; });
      Array weights(Dtype::float64, {kM, kN});
      each_index({kM, kN}, [&](const Shape& i) {
        weights.set(i, u(item, i[0], 0) * v(i[1], 0) + u(item, i[0], 1) * v(i[1], 1));
      });
      const Tensor matrix = weights;
      const Expr field = differentiate(parse(text), points().x);
      expect_field(x_alone, expected_field(field, one_x, z, ones, {}, &matrix), text, 12, 1e-30);
    }
  });
}

TEST(BothSides, RefuseWhatTheyDoNotServe) {
  TestContext context(targets().front());
  const Problem p("sum(x*z)", Dtype::float32, 4, 5, 3, 2);
  const Tensor z = p.z, v = p.v, u = p.u;
  const Results results(p, Dtype::float32);
  const auto message = [&](const char* text, const Tensor& weights, const Tensor* factors) {
    return message_of([&] {
      ops::both_sides_backward(Formula(text), p.x, z, weights, factors, {results.by_x, results.by_z}, {}, context);
    });
  };
  for (const char* text : {"sum(abs(x-z))", "sum(x*z)*sum(z)", "exp(-sum((x-z)^2))*sum(x*z)", "sum(w*x*z)"})
    EXPECT_NE(message(text, u, &v), "") << text;
  EXPECT_NE(message("sum(abs(x-z))", u, &v).find("a function of one sum of (x - z)^2 or of x z"), std::string::npos);
  EXPECT_EQ(message("sum(x*z)^2", v, &v),
            "both_sides_backward: weights must have shape (..., 4, 2), with columns. Received (5, 2).");
  EXPECT_TRUE(results.by_x.untouched());
  EXPECT_TRUE(results.by_z.untouched());
}

/// Blocks of points are not all as wide as vectors: what a block before had in its last lanes stays out.
TEST(BothSides, AnInfinityStaysWithItsPoint) {
  constexpr std::int64_t kM = 40, kN = 197;
  for (const Dtype dtype : kWide)
    for (const std::int64_t at : {5, 6, 10, 185, 196}) {
      Problem p("exp(-sum((x-z)^2)/50)", dtype, kM, kN, 3, 2);
      p.v.set({at, 0}, std::numeric_limits<double>::infinity());
      on_each_cpu_target([&](TestContext& context) {
        Results found(p, dtype);
        found.make("exp(-sum((x-z)^2)/50)", p, context);
        for (std::int64_t m = 0; m < kM; ++m)
          for (std::int64_t k = 0; k < 3; ++k) ASSERT_FALSE(std::isfinite(found.by_x(m, k))) << at;
        for (std::int64_t n = 0; n < kN; ++n)
          for (std::int64_t k = 0; k < 3; ++k) ASSERT_EQ(std::isfinite(found.by_z(n, k)), n != at) << at << ", " << n;
      });
      Problem other("exp(-sum((x-z)^2)/50)", dtype, kN, kM, 3, 2);
      other.u.set({at, 0}, std::numeric_limits<double>::infinity());
      on_each_cpu_target([&](TestContext& context) {
        Results found(other, dtype);
        found.make("exp(-sum((x-z)^2)/50)", other, context);
        for (std::int64_t n = 0; n < kM; ++n) ASSERT_TRUE(std::isinf(found.product(n, 0))) << at << ", " << n;
      });
    }
}

TEST(BothSides, ProductsOfPointsWithoutFeatures) {
  const Problem p("exp(-sum((x-z)^2)/3)", Dtype::float64, 3, 4, 0, 2);
  on_each_cpu_target([&](TestContext& context) {
    Results found(p, Dtype::float64);
    found.make("exp(-sum((x-z)^2)/3)", p, context);
    each_index({4, 2}, [&](const Shape& i) {
      ASSERT_NEAR(found.product(i[0], i[1]), p.u(0, i[1]) + p.u(1, i[1]) + p.u(2, i[1]), 1e-14);
    });
  });
}

TEST(BothSides, ArePlannedAndExplained) {
  ops::BackwardRequest request;
  request.formula = parse("exp(-sum((x-z)^2))");
  request.wanted = {"x", "z", "v"};
  request.m = 20, request.n = 300, request.k = 10;
  const auto first = [&] { return ops::text_of(ops::plan_backward(request)); };
  EXPECT_NE(first(), "both_sides, rows x, with the product -> x z v\n");
  request.in_memory = true;
  EXPECT_EQ(first(), "both_sides, rows x, with the product -> x z v\n");
  EXPECT_NE(ops::ways_of_both_sides(request).find("* both_sides: about"), std::string::npos);
  for (const auto& change : {+[](ops::BackwardRequest& r) { r.recorded = true; },
                             +[](ops::BackwardRequest& r) { r.same_points = true; },
                             +[](ops::BackwardRequest& r) { r.wanted.pop_back(), r.wanted.erase(r.wanted.begin()); },
                             +[](ops::BackwardRequest& r) { r.capability = 90; },
                             +[](ops::BackwardRequest& r) { r.both_sides = ops::Choice::never; },
                             +[](ops::BackwardRequest& r) { r.formula = parse("exp(-sum(abs(x-z)))"); }}) {
    ops::BackwardRequest other = request;
    change(other);
    EXPECT_EQ(ops::text_of(ops::plan_backward(other)).find("both_sides"), std::string::npos);
  }
  request.m = 4100, request.n = 4096, request.k = 16, request.columns = 1024;
  const std::string wide = ops::ways_of_both_sides(request);
  EXPECT_NE(wide.find("both_sides: refused, totals of parts would take more than 128 MiB"), std::string::npos) << wide;
  const std::string said = ops::explain_backward(Formula("exp(-sum((x-z)^2))"), {20, 300, 10}, Dtype::float32, "auto");
  EXPECT_NE(said.find("both_sides, rows x"), std::string::npos) << said;
}

}  // namespace
}  // namespace mercer
