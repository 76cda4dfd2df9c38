// Gradients of products with v: fields whose pairs weigh the product of two factors, on tensor cores and by rows.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/emulated.h"
#include "ir/expr/expr.h"
#include "ir/passes/point_form.h"
#include "ir/passes/split.h"
#include "mercer/zoo.h"
#include "ops/call/call.h"
#include "ops/drawn_data.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/rank_field_tile.h"
#include "plan/gpu/stored_sums.h"

namespace mercer {
namespace {

using namespace testing_support;

struct Factors {
  Array u, v;
};
Factors factors_of(std::int64_t m, std::int64_t n, std::int64_t count) {
  return {normal(Dtype::float32, {m, count}, 3), normal(Dtype::float32, {n, count}, 4)};
}

/// Against the oracle, whose pairs weigh the product in float64: an element of it is rounded as often as it has terms,
/// each as large as the whole.
void expect_gradient_of_product(const char* text, const Array& x, const Array& z, const Factors& factors,
                                const std::string& what, TestContext& context, double factor = 8) {
  const std::int64_t m = x.tensor().shape[0], n = z.tensor().shape[0], k = x.tensor().shape[1];
  const std::int64_t count = factors.u.tensor().shape[1];
  Array weights(Dtype::float64, {m, n});
  each_index({m, n}, [&](const Shape& i) {
    double sum = 0;
    for (std::int64_t e = 0; e < count; ++e) sum += factors.u(i[0], e) * factors.v(i[1], e);
    weights.set(i, sum);
  });
  Extra extra;
  Arguments arguments;
  const Array w = uniform(Dtype::float32, {k}, 5), ones = Array(Dtype::float64, {n}).fill([] { return 1.0; });
  if (parse(text)->uses.w) {
    for (std::int64_t i = 0; i < k; ++i) extra.w.push_back(w(i));
    arguments.w = w;
  }
  const Tensor zt = z, amplitude = weights;
  const Array out(Dtype::float32, {m, k}), again(Dtype::float32, {m, k});
  product_gradient(text, x, &zt, factors.u, factors.v, out, arguments, context);
  const Field expected = expected_field(differentiate(parse(text), points().x), x, z, ones, extra, &amplitude);
  expect_field(out, expected, what + ", " + text, factor * std::sqrt(static_cast<double>(count)),
               1e-30);  // below the floats there is nothing
  product_gradient(text, x, &zt, factors.u, factors.v, again, arguments, context);
  EXPECT_TRUE(same_bits(out, again)) << what << ", " << text;
}

/// Linear factors, of differences and of points, weighted or not; one that is not linear.
constexpr const char* kFormulas[] = {"exp(-sum((x-z)^2)/90)", "exp(-sqrt(sum((x-z)^2))/8)", "-2*sum(w*(z-x)^2)",
                                     "(sum(x*z)/K + 1)^3", "exp(-sum(abs(x-z))/40)",
                                     "exp(-sum(((x-z)/w)^2)/400)"};

TEST(FieldsOfProducts, FormulasAndSizes) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    for (auto [m, n, k, count] :
         {std::array{70, 200, 40, 3}, {5, 65, 20, 1}, {140, 300, 64, 1}, {9, 70, 120, 1}, {150, 130, 100, 40},
          {1, 1, 17, 2}, {3, 90, 170, 2}})
      for (const char* f : kFormulas) {
        const Array x = normal(Dtype::float32, {m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
        expect_gradient_of_product(f, x, z, factors_of(m, n, count), std::to_string(count) + " factors", context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

/// Derivatives by parameters and by row, and the product, in the gradient's pass: against the oracle.
void expect_backward(const char* text, const std::vector<std::string>& by, const Array& x, const Array& z,
                     const Factors& factors, bool has_product, TestContext& context) {
  const std::int64_t m = x.tensor().shape[0], n = z.tensor().shape[0], k = x.tensor().shape[1];
  const std::int64_t count = factors.u.tensor().shape[1], leaves = static_cast<std::int64_t>(by.size());
  const Array rows = normal(Dtype::float32, {m}, 7);
  const Expr f = parse(text);
  Extra extra{{{"h", 0.7 * static_cast<double>(k)}}, {}, {}, {}, 0, 0};
  Arguments arguments;
  arguments.params["h"] = extra.params["h"];
  if (f->uses.row) {
    arguments.row = rows;
    for (std::int64_t i = 0; i < m; ++i) extra.row.push_back(rows(i));
  }
  const Tensor zt = z;
  const Array out(Dtype::float32, {m, k}), plain(Dtype::float32, {m, k}), sums(Dtype::float32, {leaves, m}),
      product(Dtype::float32, {m, count});
  const Tensor sums_view = sums, product_view = product;
  const ExtraOutputs extra_outputs{by, leaves > 0 ? &sums_view : nullptr, has_product ? &product_view : nullptr};
  ASSERT_TRUE(product_backward(text, x, &zt, factors.u, factors.v, out, extra_outputs, arguments, context)) << text;
  product_gradient(text, x, &zt, factors.u, factors.v, plain, arguments, context);
  for (std::int64_t i = 0; i < m; ++i) {
    double norm = 0, difference = 0;
    for (std::int64_t c = 0; c < k; ++c) {
      norm += std::pow(plain(i, c), 2);
      difference += std::pow(out(i, c) - plain(i, c), 2);
    }
    ASSERT_LE(std::sqrt(difference), 1e-5 * std::sqrt(norm) + 1e-30) << text << " at " << i;
  }
  if (has_product) expect_product(product, table(f, x, z, extra), factors.v, text);
  for (std::int64_t r = 0; r < leaves; ++r) {
    const std::string& name = by[static_cast<std::size_t>(r)];
    const auto values = table(differentiate(f, name == "row" ? row_value() : param(name)), x, z, extra);
    for (std::int64_t i = 0; i < m; ++i) {
      double sum = 0, size = 0;
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t e = 0; e < count; ++e) {
          const double term = factors.u(i, e) * factors.v(j, e) * values[i][j];
          sum += term;
          size += std::abs(term);
        }
      ASSERT_TRUE(within(sums(r, i), sum, 4e-6 * size + 1e-30, Dtype::float32))
          << text << " by " << name << " at " << i << ": " << sums(r, i) << " for " << sum << " of " << size;
    }
  }
}

/// Sizes m, n and k, and columns of v.
void expect_backwards(std::initializer_list<std::array<int, 4>> sizes) {
  on_cuda([&](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    const std::pair<const char*, std::vector<std::string>> formulas[] = {
        {"exp(-sum((x-z)^2)/h)", {}}, {"exp(-sum((x-z)^2)/h)", {"h"}}, {"row*exp(-sqrt(sum((x-z)^2)/h))", {"h", "row"}},
        {"(sum(x*z)/h + 1)^3", {"h"}}};
    Turns turns(3);
    for (auto [m, n, k, count] : sizes)
      for (const auto& [text, by] : formulas) {
        if (turns.leaves_out()) continue;
        Array x = normal(Dtype::float32, {m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
        // Neighbours far from all others: rows that are left to differences.
        for (std::int64_t row = 0; row < m; row += 7)
          for (std::int64_t c = 0; c < k; ++c) {
            x.set({row, c}, x(row, c) + 30);
            z.set({row % n, c}, x(row, c) * (1 + 1e-4 * static_cast<double>(c % 7)));
          }
        expect_backward(text, by, x, z, factors_of(m, n, count), count <= plan::kMostExtraColumns, context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

TEST(FieldsOfProducts, BackwardInOnePass) { expect_backwards({{70, 200, 40, 3}, {20, 170, 20, 1}, {33, 300, 80, 16}}); }
TEST(FieldsOfProducts, BackwardOfMoreFeaturesAndFactors) {
  expect_backwards({{140, 300, 64, 1}, {9, 70, 120, 70}, {20, 90, 24, 100}, {150, 130, 100, 1}, {20, 150, 100, 10}});
}

/// Pairs of more features, and of factors that are not linear, are stored: parts of the rows, ranges of n.
TEST(FieldsOfProducts, BackwardOfStoredPairs) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    context.state().own_costs().part_bytes = 1 << 20;
    const char* const laplace = "exp(-sum(abs(x-z))/h)";
    const std::pair<const char*, std::vector<std::string>> formulas[] = {
        {"exp(-sum((x-z)^2)/h)", {"h"}}, {"(1 + sum(x*z)/h)^2", {}}, {laplace, {"h"}}};
    Turns turns(2);
    for (auto [m, n, k, count] : {std::array{150, 1100, 170, 1}, {70, 200, 165, 3}, {9, 70, 200, 20}})
      for (const auto& [text, by] : formulas) {
        if (turns.leaves_out()) continue;
        const Array x = normal(Dtype::float32, {m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
        // For many columns products of matrices are a pass of their own.
        const bool has_product = count <= 4 || text == laplace;
        expect_backward(text, by, x, z, factors_of(m, n, count), has_product, context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

/// What is stored are values: of indices, of one side's points; fewer than there are sums; none for the field.
TEST(FieldsOfProducts, BackwardOfStoredValues) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    const std::pair<const char*, std::vector<std::string>> formulas[] = {
        {"(1 + i)*exp(-abs(i-j)/40)*exp(-sum(abs(x-z))/h)", {"h"}},
        {"exp(-sum(abs(x-z))/h)/(1 + sum(x*x))", {"h"}},
        {"exp(-sum(abs(x-z))/h)*cos(sum(x*z))*sum(max(x,z))", {}},
        {"h*sum(x*z)", {"h"}}};
    for (auto [m, n, k, count] : {std::array{37, 90, 165, 1}, {9, 70, 165, 3}})
      for (const auto& [text, by] : formulas) {
        const Array x = normal(Dtype::float32, {m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
        expect_backward(text, by, x, z, factors_of(m, n, count), true, context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

TEST(FieldsOfProducts, ProductsInThePassWhereThatPays) {
  const auto pays = [](std::int64_t k, std::int64_t columns, bool of_products, Dtype type = Dtype::float32) {
    return plan::pays_product_in_pass(plan::costs_of(90), type, k, columns, of_products);
  };
  EXPECT_TRUE(pays(256, 4, true));
  EXPECT_FALSE(pays(256, 16, true));
  EXPECT_TRUE(pays(784, 10, false));
  EXPECT_TRUE(pays(17, 4, false));
  EXPECT_TRUE(pays(784, 64, false)) << "four launches cost less than all values again";
  EXPECT_FALSE(pays(64, 64, false));
  EXPECT_FALSE(pays(784, 512, false));
  EXPECT_TRUE(pays(64, 4, false, Dtype::float64));
  EXPECT_FALSE(pays(64, 64, false, Dtype::float64));
}

/// More factors than the tile keeps, and than a pass takes, so that results are added up.
TEST(FieldsOfProducts, ManyFactors) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    for (const char* f : {"exp(-sum((x-z)^2)/90)", "exp(-sum((x-z)^2)/2)"})
      for (auto [m, n, k, count] : {std::array{9, 70, 33, 65}, {140, 400, 33, 130}, {9, 200, 100, 170},
                                    {9, 70, 33, 1030}}) {
        const Array x = normal(Dtype::float32, {m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
        expect_gradient_of_product(f, x, z, factors_of(m, n, count), std::to_string(count) + " factors", context);
      }
  });
}

TEST(FieldsOfProducts, EveryKindOfData) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    for (const Kind& kind : kinds()) {
      if (std::string(kind.name) == "huge" || std::string(kind.name) == "tiny") continue;
      PointPair points{drawn(40, 70, 1, kind.draw), drawn(150, 70, 2, kind.draw)};
      add_neighbours(points);
      const std::int64_t m = points.x.tensor().shape[0], n = points.z.tensor().shape[0];
      for (const char* f : {"sum((x-z)^2)", "exp(-sqrt(sum((x-z)^2)))"})
        expect_gradient_of_product(f, points.x, points.z, factors_of(m, n, 5), kind.name, context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// Points far away from the centre that have all their weight among neighbours: a product would lose their digits.
TEST(FieldsOfProducts, RowsOfNeighboursAlone) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    constexpr std::int64_t kM = 90, kN = 170, kK = 35;
    Array x = normal(Dtype::float32, {kM, kK}, 1), z = normal(Dtype::float32, {kN, kK}, 2);
    for (std::int64_t m = 0; m < kM; m += 3)
      for (std::int64_t k = 0; k < kK; ++k) {
        x.set({m, k}, x(m, k) + 50);
        for (std::int64_t other = 0; other < 2; ++other)
          z.set({(2 * m + other) % kN, k}, x(m, k) * (1 + 1e-4 * static_cast<double>(k % 7 + other)));
      }
    const char* f = "exp(-sum((x-z)^2)/30)";
    expect_gradient_of_product(f, x, z, factors_of(kM, kN, 2), "neighbours", context, 16);
    expect_gradient_of_product(f, x, x, factors_of(kM, kM, 1), "the same points", context, 16);
  });
}

/// Factors of unlike sizes, zeros, and those that pieces cannot carry.
TEST(FieldsOfProducts, FactorsOfAllSizes) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  on_cuda([&](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    constexpr std::int64_t kM = 40, kN = 100, kK = 36;
    const Array x = normal(Dtype::float32, {kM, kK}, 1), z = normal(Dtype::float32, {kN, kK}, 2);
    for (auto [bad, count] : {std::pair{0.0f, 1}, {1e18f, 1}, {0.0f, 3}, {kInf, 3}, {kNan, 3}}) {
      Factors factors = factors_of(kM, kN, count);
      for (std::int64_t e = 0; e < count; ++e) {
        for (std::int64_t m = 0; m < kM; ++m) factors.u.set({m, e}, factors.u(m, e) * std::pow(10.0, m % 20 - 10.0));
        for (std::int64_t n = 0; n < kN; ++n)
          factors.v.set({n, e}, n % 7 == 0 ? 0 : factors.v(n, e) * std::pow(2.0, n % 9));
      }
      if (bad != 0) factors.u.set({7, count / 2}, bad);
      expect_gradient_of_product("exp(-sum((x-z)^2)/90)", x, z, factors, "rows with " + std::to_string(bad), context);
      if (bad != 0) factors.v.set({11, count - 1}, bad);
      expect_gradient_of_product("exp(-sum((x-z)^2)/90)", x, z, factors, "both with " + std::to_string(bad), context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(FieldsOfProducts, InfinitiesAndNan) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  on_cuda([&](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    for (const float bad : {kInf, -kInf, kNan}) {
      Array x = normal(Dtype::float32, {40, 50}, 1), z = normal(Dtype::float32, {92, 50}, 2);
      x.set({1, 3}, bad);
      expect_gradient_of_product("(sum(x*z) + 1)^2", x, z, factors_of(40, 92, 3), "in x", context);
      expect_gradient_of_product("sum((x-z)^2)", x, z, factors_of(40, 92, 3), "in x", context);
      z.set({7, 20}, bad);
      expect_gradient_of_product("(sum(x*z) + 1)^2", x, z, factors_of(40, 92, 3), "in both", context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// A gradient of one output is that of a product whose rows weigh one.
TEST(FieldsOfProducts, OneOutput) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    const Array x = normal(Dtype::float32, {2, 130, 40}, 1), z = normal(Dtype::float32, {75, 40}, 2),
                v = normal(Dtype::float32, {75, 1}, 4), ones = Array(Dtype::float32, {130, 1}).fill([] { return 1.0; }),
                coef = normal(Dtype::float32, {1, 75}, 4);
    const Tensor zt = z;
    for (const char* text : kFormulas) {
      if (parse(text)->uses.w) continue;
      const Array out(Dtype::float32, {2, 1, 130, 40}), expected(Dtype::float32, {2, 130, 40});
      product_gradient(text, x, &zt, ones, v, expected, {}, context);
      kernel_gradient(text, x, &zt, coef, out, {}, context);
      each_index({2, 130, 40}, [&](const Shape& i) {
        ASSERT_EQ(out(i[0], 0, i[1], i[2]), expected(i[0], i[1], i[2])) << text << " " << i[1] << "," << i[2];
      });
    }
  });
}

/// Both sides share their operands.
TEST(FieldsOfProducts, PointsWithThemselves) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    const Array x = normal(Dtype::float32, {150, 50}, 1), coef = normal(Dtype::float32, {3, 150}, 4);
    for (const char* text : {"exp(-sum((x-z)^2)/60)", "exp(-sqrt(sum((x-z)^2))/8)", "(sum(x*z)/K + 1)^3"}) {
      const Array out(Dtype::float32, {3, 150, 50});
      kernel_gradient(text, x, nullptr, coef, out, {}, context);
      expect_field(out, expected_field(differentiate(parse(text), points().x), x, x, coef), text, 8);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// Outputs of a pass or several, of unlike sizes, some without coefficients, and rows that lose digits.
TEST(FieldsOfProducts, SeveralOutputs) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    for (auto [m, n, k, outputs] : {std::array{33, 130, 20, 7}, {9, 90, 110, 2}})
      for (const char* text : {"exp(-sum((x-z)^2)/60)", "-2*sum(w*(z-x)^2)", "(sum(x*z)/K + 1)^3"}) {
        Array x = normal(Dtype::float32, {m, k}, 1), coef = normal(Dtype::float32, {outputs, n}, 3);
        const Array z = normal(Dtype::float32, {n, k}, 2);
        for (std::int64_t i = 0; i < k; ++i) x.set({1, i}, z(5, i) * (1 + 1e-5 * static_cast<double>(i % 3)));
        for (std::int64_t i = 0; i < n; ++i) {
          coef.set({0, i}, coef(0, i) * 1e6);
          coef.set({1, i}, i == 5 ? 1e-4 : 0);
        }
        if (text[0] == '-') coef.set({outputs - 1, 3}, 1e18);
        expect_gradient(text, x, z, coef, std::to_string(outputs) + " outputs", context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

TEST(FieldsOfProducts, BatchesAndStrides) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    const Array x = normal(Dtype::float16, {3, 130, 40}, 1), z = normal(Dtype::float16, {75, 40}, 2),
                u = normal(Dtype::float32, {2, 1, 130, 4}, 3), v = normal(Dtype::float32, {3, 75, 4}, 4);
    const Tensor zt = z;
    for (const char* text : {"exp(-sum((x-z)^2)/90)", "exp(-sum(abs(x-z))/30)"}) {
      const Array out(Dtype::float32, {2, 3, 130, 40}, {1, 2, 240, 6}), alone(Dtype::float32, {130, 40});
      product_gradient(text, x, &zt, u, v, out, {}, context);
      each_index({2, 3}, [&](const Shape& i) {
        product_gradient(text, item(x, {i[1]}), &zt, item(u, {i[0], 0}), item(v, {i[1]}), alone, {}, context);
        each_index({130, 40}, [&](const Shape& at) {
          ASSERT_EQ(out(i[0], i[1], at[0], at[1]), alone(at[0], at[1])) << text << " " << i[0] << "," << i[1];
        });
      });
    }
  });
}

TEST(FieldsOfProducts, ThePlanKnowsLinearFactors) {
  const auto field_of = [](const char* text) {
    return plan::rank_field_of(ir::split_field(Formula(text).prepared().field()));
  };
  EXPECT_TRUE(field_of("exp(-sum((x-z)^2)/3)").of_differences);
  EXPECT_FALSE(field_of("(sum(x*z) + 1)^2").of_differences);
  EXPECT_FALSE(field_of("exp(-sum(w*(x-z)^2)*b)").weight.empty());
  EXPECT_FALSE(field_of("exp(-sum(abs(x-z)))")) << "signs";
  EXPECT_FALSE(field_of("sum(x*z)/sqrt(sum(x*x)*sum(z*z))")) << "two terms";
  const Expr of_norms[] = {parse("sum(x*z)/sqrt(sum(x*x)*sum(z*z))"), zoo("cosine"), zoo("correlation"),
                           zoo("arc_cosine"), zoo("ntk")};
  for (const Expr& f : of_norms)
    EXPECT_TRUE(plan::rank_field_of(ir::split_field(Formula(ir::point_form(f).formula).prepared().field())))
        << f.to_text();
  using Kind = plan::FieldWeights::Kind;
  const plan::Costs& costs = plan::costs_of(90);
  EXPECT_FALSE(plan::rank_field_tile(1000, 1000, 16, 17, {}, Precision::fp32, costs)) << "few features";
  EXPECT_FALSE(plan::rank_field_tile(100000, 100000, 200, 201, {}, Precision::fp32, costs)) << "many passes";
  EXPECT_EQ(plan::rank_field_tile(100000, 100000, 64, 65, {Kind::factors, 33}, Precision::fp32, costs).weight_units, 2);
  EXPECT_EQ(plan::rank_field_tile(100000, 100000, 64, 65, {Kind::factors, 1}, Precision::fp32, costs).weight_units, 0);
  EXPECT_EQ(plan::rank_field_tile(100000, 100000, 128, 129, {}, Precision::fp32, costs).wide, 72) << "two passes alike";
  EXPECT_EQ(plan::rank_outputs(1, 129), 1);
  EXPECT_EQ(plan::rank_outputs(4, 21), 4);
  EXPECT_EQ(plan::rank_outputs(6, 21), 3) << "two passes alike";
  EXPECT_TRUE(plan::pays_rank_outputs(16, 21, costs.gradient));
  EXPECT_TRUE(plan::pays_rank_outputs(2, 65, costs.gradient));
  EXPECT_FALSE(plan::pays_rank_outputs(16, 65, costs.gradient)) << "as many passes as outputs";
}

}  // namespace
}  // namespace mercer
