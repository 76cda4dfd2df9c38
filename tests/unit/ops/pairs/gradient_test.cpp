// kernel_gradient and gradient_field against sums of the oracle's derivative, and against finite differences.
#include "core/emulated.h"
#include "core/sanitized.h"
#include "ops/call/prepared.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"

namespace mercer {
namespace {

using namespace testing_support;

struct Case {
  const char* text;
  Values params = {};
  bool positive = false;
  double factor = 1;     // of the contract; kernels: 1 + |s f'(s)/f(s)| at most 3 on these data
  double cancelled = 0;  // size of the terms of φ that cancel: their rounding stays, however small φ becomes
};

const Case kCases[] = {
    {"exp(-sum(abs(x-z))/b)", {{"b", 20}}, false, 3},
    {"exp(-sum((x-z)^2)/(2*b^2))", {{"b", 4}}, false, 3},
    {"exp(-sum(abs(x-z)^1.3)^(1/1.3)/b)", {{"b", 15}}, false, 3},
    {"exp(-sum(abs(x-z)^p)^(1/p)/b)", {{"b", 15}, {"p", 1.7}}, false, 3},
    {"r = sqrt(3)*sqrt(sum(square(x-z)))/b; (1+r)*exp(-r)", {{"b", 8}}, false, 3},
    {"r = sqrt(5)*sqrt(sum(square(x-z)))/b; (1+r+r*r/3)*exp(-r)", {{"b", 8}}, false, 3, 0.3},  // r e^-r - r e^-r
    {"sqrt(sum((x-z)^2))"},
    {"sum((x-z)^2)"},
    {"sum(abs(x-z))"},
    {"sum(abs(x-z)^3)^(1/3)", {}, false, 2},
    {"sum(x*z)"},
    {"sum(x*z)/sqrt(sum(x*x)*sum(z*z))", {}, true, 4, 4},  // 1/|x| of a feature of at least 0.1, at K = 1
    {"nx = sqrt(sum(x*x)); nz = sqrt(sum(z*z)); sum(square(x/nx - z/nz))/2", {}, true, 40},
    {"max(abs(x-z))"},
    {"min(x*z)"},
    {"prod(1 + x*z/10)", {}, true, 4},
    {"logsumexp(x*z)", {}, false, 4},
    {"sum(abs(x-z)/(abs(x)+abs(z)))", {}, true, 2},
    {"tanh(sum(x*z)/K)", {}, false, 3},
    {"sum(x) + K"},
    {"sum(z)"},
    {"1/(1 + sum((x-z)^2)/b^2)", {{"b", 6}}, false, 3},
    {"sum(abs(x-z)) + sum(x*z)^2/K", {}, false, 4},
    {"sum(sum(x))*sum(z)", {}, false, 2},  // sum(1) in its derivative is no program of numbers
};

class Gradients : public ::testing::TestWithParam<std::tuple<Dtype, int>> {};

TEST_P(Gradients, MatchTheOracle) {
  const auto [dtype, index] = GetParam();
  const Case& c = kCases[index];
  const Expr f = parse(c.text), field = differentiate(f, points().x);
  const Extra extra{c.params, {}, {}, {}, 0, 0};
  for (auto [m, n, k, outputs] :
       {std::array{11, 37, 19, 3}, {3, 205, 5, 1}, {9, 13, 66, 17}, {1, 1, 1, 1}, {2, 0, 3, 2}}) {
    const Shape xs{m, k}, zs{n, k};
    const Array x = c.positive ? uniform(dtype, xs, 1) : normal(dtype, xs, 1);
    const Array z = c.positive ? uniform(dtype, zs, 2) : normal(dtype, zs, 2);
    const Array coef = normal(dtype, {outputs, n}, 3);
    const Field expected = expected_field(field, x, z, coef, extra);
    const Tensor zt = z;
    on_each_target([&](TestContext& context) {
      const Array out(dtype, {outputs, m, k});
      kernel_gradient(f, x, &zt, coef, out, arguments_of(extra), context);
      expect_field(out, expected, c.text, c.factor, c.cancelled * std::sqrt(static_cast<double>(n)));
    });
  }
}

/// The derivative itself, by central differences in float64.
void check_differences(const Case& c) {
  constexpr Dtype dtype = Dtype::float64;
  const Expr f = parse(c.text);
  const Extra extra{c.params, {}, {}, {}, 0, 0};
  const Array x = c.positive ? uniform(dtype, {4, 6}, 1) : normal(dtype, {4, 6}, 1);
  const Array z = c.positive ? uniform(dtype, {9, 6}, 2) : normal(dtype, {9, 6}, 2);
  const Array coef = normal(dtype, {9}, 3), out(dtype, {4, 6});
  const Tensor zt = z;
  kernel_gradient(f, x, &zt, coef, out, arguments_of(extra));
  constexpr double kStep = 1e-6;
  for (int m = 0; m < 4; ++m)
    for (int k = 0; k < 6; ++k) {
      double sides[2];
      for (int side = 0; side < 2; ++side) {
        Array moved = x;
        moved.set({m, k}, x(m, k) + (side ? kStep : -kStep));
        Reference value(f, moved, z, extra);
        sides[side] = 0;
        for (int n = 0; n < 9; ++n) sides[side] += coef(n) * value(m, n);
      }
      EXPECT_NEAR(out(m, k), (sides[1] - sides[0]) / (2 * kStep), 1e-7) << c.text;
    }
}

TEST(Gradient, MatchesFiniteDifferences) {
  for (const Case& c : kCases) check_differences(c);
}

INSTANTIATE_TEST_SUITE_P(All, Gradients,
                         ::testing::Combine(::testing::Values(Dtype::float32, Dtype::float64),
                                            ::testing::Range(0, static_cast<int>(std::size(kCases)))));

TEST(Gradient, CoincidentPointsAreFiniteAndExactlyZero) {
  const char* formulas[] = {"exp(-sum(abs(x-z))/9)",
                            "sqrt(sum((x-z)^2))",
                            "sum(abs(x-z)^1.3)^(1/1.3)",
                            "sum(abs(x-z)^0.5)",
                            "exp(-sum(abs(x-z)^1.3)^(1/1.3))",
                            "exp(-sqrt(sum((x-z)^2))/3)",
                            "max(abs(x-z))",
                            "sum(abs(x-z)^3)^(1/3)"};
  for (Dtype dtype : kWide)
    for (const int k_count : {20, 5}) {  // values of the pairs that are stored, and that are not
      const Array one = normal(dtype, {1, k_count}, 1), coef = normal(dtype, {50}, 2);
      Tensor x = one;
      x.shape = {9, k_count};
      x.strides = {0, 1};
      Tensor z = x;
      z.shape = {50, k_count};
      for (const char* text : formulas)
        on_each_target([&](TestContext& context) {
          const Array out(dtype, {9, k_count});
          kernel_gradient(text, x, &z, coef, out, {}, context);
          each_index({9, k_count}, [&](const Shape& i) { ASSERT_EQ(read(out, i), 0) << text; });
        });
      // A few duplicates, single equal features and zeros among other points.
      Array points = normal(dtype, {9, k_count}, 3), others = normal(dtype, {50, k_count}, 4);
      for (int k = 0; k < k_count; ++k) {
        others.set({7, k}, points(2, k));
        others.set({33, k}, k % 2 ? points(2, k) : 0.0);
        points.set({5, k}, 0);
      }
      const Tensor zt = others;
      for (const char* text : formulas) {
        const Field expected = expected_field(differentiate(parse(text), mercer::points().x), points, others, coef);
        on_each_target([&](TestContext& context) {
          const Array out(dtype, {9, k_count});
          kernel_gradient(text, points, &zt, coef, out, {}, context);
          expect_field(out, expected, text, 9);  // |log f| of exp(-norm) is up to 8
        });
      }
    }
}

/// More rows than a block has, several ranges of n, a last pass of fewer outputs than the others.
TEST(Gradient, FewFeaturesInRangesAndPasses) {
  constexpr std::int64_t kM = kSanitized ? 53 : 530, kN = kSanitized ? 61 : 601, kOutputs = 11;
  const auto check = [](Dtype dtype, const char* text, std::int64_t k, const std::vector<double>& w) {
    const Array x = normal(dtype, {kM, k}, 1), z = normal(dtype, {kN, k}, 2), coef = normal(dtype, {kOutputs, kN}, 3);
    const Extra extra{{}, w, {}, {}, 0, 0};
    const Field expected = expected_field(differentiate(parse(text), points().x), x, z, coef, extra);
    const Tensor zt = z;
    Array weights(dtype, {static_cast<std::int64_t>(w.size())});
    for (std::size_t i = 0; i < w.size(); ++i) weights.set({static_cast<std::int64_t>(i)}, w[i]);
    Arguments arguments;
    if (!w.empty()) arguments.w = weights;
    on_each_target([&](TestContext& context) {
      const Array out(dtype, {kOutputs, kM, k});
      kernel_gradient(text, x, &zt, coef, out, arguments, context);
      expect_field(out, expected, text, 3);
    });
  };
  for (const Dtype dtype : kWide) {
    check(dtype, "exp(-sum((x-z)^2)/2)", 3, {});
    check(dtype, "exp(-sum((x-z)^2)/9)", 16, {});
    check(dtype, "sum(w*abs(x-z))^2", 3, {0.5, 2, 1});
  }
}

/// Rows that go together or are left over, blocks of points and what remains of them, panels of features, tiles of
/// outputs; values of rows, columns and indices.
TEST(Gradient, TilesOfEveryShape) {
  const char* formulas[] = {"exp(-sum((x-z)^2)/40)", "row*sum(abs(x-z))^2+col*sum(x*z)*(1+i/9)"};
  for (const Dtype dtype : kWide)
    for (const auto& [m, n, k, outputs] : {std::array<std::int64_t, 4>{1, 1, 9, 1}, {5, 97, 16, 1}, {13, 193, 33, 1},
                                           {7, 400, 70, 2}, {6, 65, 130, 5}, {11, 30, 17, 17}, {3, 205, 48, 4}})
      for (const char* text : formulas) {
        const Array x = normal(dtype, {m, k}, 1), z = normal(dtype, {n, k}, 2), coef = normal(dtype, {outputs, n}, 3),
                    rows = normal(dtype, {m}, 4), columns = normal(dtype, {n}, 5), weights = normal(dtype, {n, m}, 6);
        const Tensor zt = z;
        Arguments arguments;
        Extra extra;
        if (parse(text)->uses.row) {
          arguments.row = rows;
          arguments.col = columns;
          for (std::int64_t i = 0; i < m; ++i) extra.row.push_back(rows(i));
          for (std::int64_t i = 0; i < n; ++i) extra.col.push_back(columns(i));
        }
        const Expr phi = differentiate(parse(text), points().x);
        Tensor turned = weights;
        std::swap(turned.shape[0], turned.shape[1]);
        std::swap(turned.strides[0], turned.strides[1]);
        const Field expected = expected_field(phi, x, z, coef, extra),
                    weighed = expected_field(phi, x, z, coef, extra, &turned);
        on_each_cpu_target([&](TestContext& context) {
          const Array out(dtype, {outputs, m, k}), of_weights(dtype, {outputs, m, k});
          kernel_gradient(text, x, &zt, coef, out, arguments, context);
          expect_field(out, expected, text, 3);
          gradient_field(phi, x, zt, turned, coef, of_weights, arguments, context);
          expect_field(of_weights, weighed, text, 3);
        });
      }
}

/// Weights of pairs that are a product of matrices, of fewer and of more columns than a pass takes; of few features and
/// of more.
TEST(Gradient, OfProducts) {
  constexpr std::int64_t kM = 300, kN = 203, kItems = 2;
  const char* text = "exp(-sum((x-z)^2)/2)";
  for (const Dtype dtype : kWide)
    for (const auto& [kK, columns] : {std::pair<std::int64_t, std::int64_t>{3, 1}, {3, 5}, {3, 19}, {20, 1}, {20, 7}}) {
      const Array x = normal(dtype, {kM, kK}, 1), z = normal(dtype, {kN, kK}, 2),
                  weights = normal(dtype, {kItems, kM, columns}, 3), v = normal(dtype, {kN, columns}, 4);
      const Tensor zt = z;
      on_cuda([&](TestContext& context) {
        const Array out(dtype, {kItems, kM, kK});
        product_gradient(text, x, &zt, weights, v, out, {}, context);
        const Array ones = Array(Dtype::float64, {kN}).fill([] { return 1.0; });
        for (std::int64_t item = 0; item < kItems; ++item) {
          Array of_pairs(Dtype::float64, {kM, kN}), own(dtype, {kM, kK});
          each_index({kM, kN}, [&](const Shape& i) {
            double sum = 0;
            for (std::int64_t e = 0; e < columns; ++e) sum += weights(item, i[0], e) * v(i[1], e);
            of_pairs.set(i, sum);
          });
          each_index({kM, kK}, [&](const Shape& i) { own.set(i, out(item, i[0], i[1])); });
          const Tensor amplitude = of_pairs;
          // The sum over the columns is rounded as often as it has terms, each as large as the whole.
          expect_field(own, expected_field(differentiate(parse(text), points().x), x, z, ones, {}, &amplitude), text,
                       3 * std::sqrt(static_cast<double>(columns)));
        }
      });
    }
}

/// Derivatives by parameters and values of the rows, and the product with v, in the gradient's pass; of several passes,
/// ranges and items, with and without factors.
TEST(Gradient, BackwardInOnePass) {
  const std::int64_t kM = kSanitized ? 53 : is_emulated() ? 270 : 530;
  constexpr std::int64_t kN = kSanitized ? 61 : 301, kItems = 2, kBy = 2;
  struct Case {
    const char* text;
    std::int64_t features, columns;
    std::vector<std::string> by;
  };
  const Case cases[] = {{"exp(-sum((x-z)^2)/h)*s", 3, 1, {"h", "s"}},
                        {"exp(-sum((x-z)^2)/h)*s", 3, 19, {"s", "h"}},
                        {"row*exp(-sum(abs(x-z))/h)+sum(x*z)^3", 5, 4, {"row", "h"}},
                        {"col*log(h+sum((x-z)^2))+row*row*max(abs(x-z))", 16, 2, {"h", "row"}},
                        {"exp(-sum(abs(x-z))/h)*s", 20, 4, {"h", "s"}},
                        {"exp(-sum(abs(x-z)^1.5)/h)*s", 18, 1, {"s", "h"}},
                        {"row*exp(-sum(abs(x-z))/h)+sum(x*z)^2*col", 19, 2, {"row", "h"}},
                        {"sqrt(s+sum((x-z)^2)/h)*sum(x*z)", 17, 3, {"s", "h"}}};
  for (const Dtype dtype : kWide)
    for (const auto& [text, features, columns, by] : cases) {
      const Array x = normal(dtype, {kM, features}, 1), z = normal(dtype, {kN, features}, 2),
                  weights = normal(dtype, {kItems, kM, columns}, 3), v = normal(dtype, {kN, columns}, 4),
                  rows = normal(dtype, {kM}, 5), values = normal(dtype, {kN}, 6);
      const Tensor zt = z;
      const Expr f = parse(text);
      Extra extra{{{"h", 2.5}}, {}, {}, {}, 0, 0};
      Arguments arguments;
      arguments.params["h"] = 2.5;
      if (std::string(text).find("*s") != std::string::npos) arguments.params["s"] = extra.params["s"] = 0.75;
      if (std::string(text).find("row") != std::string::npos) {
        arguments.row = rows;
        for (std::int64_t m = 0; m < kM; ++m) extra.row.push_back(rows(m));
      }
      if (std::string(text).find("col") != std::string::npos) {
        arguments.col = values;
        for (std::int64_t n = 0; n < kN; ++n) extra.col.push_back(values(n));
      }
      const auto k = table(f, x, z, extra);
      std::vector<std::vector<std::vector<double>>> derivatives;
      for (const std::string& name : by)
        derivatives.push_back(table(differentiate(f, name == "row" ? row_value() : param(name)), x, z, extra));
      on_cuda([&](TestContext& context) {
        const Array out(dtype, {kItems, kM, features}), plain(dtype, {kItems, kM, features}),
            sums(dtype, {kItems, kBy, kM}), product(dtype, {kItems, kM, columns});
        const Tensor sums_view = sums, product_view = product;
        context.state().own_costs().part_bytes = 1 << 19;  // pairs that are stored: 128 rows or more
        ASSERT_TRUE(product_backward(text, x, &zt, weights, v, out, {by, &sums_view, &product_view}, arguments,
                                     context));
        product_gradient(text, x, &zt, weights, v, plain, arguments, context);
        for (std::int64_t item = 0; item < kItems; ++item) {
          expect_product(mercer::testing_support::item(product, {item}), k, v, text);
          for (std::int64_t m = 0; m < kM; ++m) {
            double norm = 0;
            for (std::int64_t c = 0; c < features; ++c) norm += std::pow(plain(item, m, c), 2);
            for (std::int64_t c = 0; c < features; ++c)
              ASSERT_NEAR(out(item, m, c), plain(item, m, c), 20 * unit(dtype) * (std::sqrt(norm) + 1)) << text;
            for (std::int64_t r = 0; r < kBy; ++r) {
              double sum = 0, size = 0;
              for (std::int64_t n = 0; n < kN; ++n) {
                double weight = 0, magnitude = 0;
                for (std::int64_t e = 0; e < columns; ++e) {
                  weight += weights(item, m, e) * v(n, e);
                  magnitude += std::abs(weights(item, m, e) * v(n, e));
                }
                sum += weight * derivatives[r][m][n];
                size += magnitude * std::abs(derivatives[r][m][n]);
              }
              ASSERT_TRUE(within(sums(item, r, m), sum, 10 * unit(dtype) * (size + 1e-3), dtype))
                  << text << " by " << by[r] << " at " << m << ": " << sums(item, r, m) << " for " << sum;
            }
          }
        }
      });
    }
}

/// What product_backward gives in addition to the field by "h".
struct BackwardResults {
  Array out, sums, product;
  BackwardResults(Dtype dtype, const Shape& batch, std::int64_t m, std::int64_t k, std::int64_t columns)
      : out(dtype, behind(batch, {m, k})), sums(dtype, behind(batch, {1, m})),
        product(dtype, behind(batch, {m, columns})) {}
  static Shape behind(Shape batch, const Shape& own) {
    batch.insert(batch.end(), own.begin(), own.end());
    return batch;
  }
  bool run(const char* f, const Tensor& x, const Tensor& z, const Tensor& weights, const Tensor& v,
           const Argument& width, TestContext& context) const {
    Arguments arguments;
    arguments.params["h"] = width;
    const Tensor by = sums, values = product;
    return product_backward(f, x, &z, weights, v, out, {{"h"}, &by, &values}, arguments, context);
  }
};

/// Items with a parameter of their own are what calls with that number are, to the bit. Without points z all is zero.
TEST(Gradient, BackwardOfStoredPairsInBatches) {
  constexpr std::int64_t kM = 40, kN = 70, kK = 20, kItems = 2, kColumns = 2;
  const char* text = "exp(-sum(abs(x-z))/h)";
  for (const Dtype dtype : kWide) {
    const Array x = normal(dtype, {kItems, kM, kK}, 1), z = normal(dtype, {kN, kK}, 2),
                v = normal(dtype, {kN, kColumns}, 3), weights = normal(dtype, {kM, kColumns}, 4);
    const Array no_z(dtype, {0, kK}), no_v(dtype, {0, kColumns});
    Array widths(dtype, {kItems});
    for (std::int64_t i = 0; i < kItems; ++i) widths.set({i}, 20.0 + 7 * static_cast<double>(i));
    on_cuda([&](TestContext& context) {
      const BackwardResults all(dtype, {kItems}, kM, kK, kColumns), empty(dtype, {kItems}, kM, kK, kColumns);
      ASSERT_TRUE(all.run(text, x, z, weights, v, widths.tensor(), context));
      for (std::int64_t i = 0; i < kItems; ++i) {
        const BackwardResults one(dtype, {}, kM, kK, kColumns);
        ASSERT_TRUE(one.run(text, item(x, {i}), z, weights, v, widths(i), context));
        for (auto part : {&BackwardResults::out, &BackwardResults::sums, &BackwardResults::product})
          EXPECT_TRUE(same_bits(copy(item(all.*part, {i}), dtype), one.*part)) << i;
      }
      ASSERT_TRUE(empty.run(text, x, no_z, weights, no_v, 20.0, context));
      for (auto part : {&BackwardResults::out, &BackwardResults::sums, &BackwardResults::product})
        each_index((empty.*part).tensor().shape, [&](const Shape& at) { ASSERT_EQ(read(empty.*part, at), 0); });
    });
  }
}

/// What takes several passes is left alone.
TEST(Gradient, BackwardThatIsNoSinglePass) {
  const Array weights = normal(Dtype::float32, {4, 2}, 2), v = normal(Dtype::float32, {4, 2}, 3);
  on_cuda([&](TestContext& context) {
    const auto is_one_pass = [&](const char* text, std::int64_t features, const std::vector<std::string>& by,
                                 const Arguments& arguments) {
      const Array x = normal(Dtype::float32, {4, features}, 1), out(Dtype::float32, {4, features}),
                  sums(Dtype::float32, {static_cast<std::int64_t>(by.size()), 4});
      const Tensor view = sums;
      const bool found = product_backward(text, x, nullptr, weights, v, out, {by, by.empty() ? nullptr : &view},
                                          arguments, context);
      EXPECT_EQ(!found, out.untouched());
      return found;
    };
    Arguments exponent, a;
    exponent.params["p"] = 1.5;
    a.params["a"] = 1.25;
    Arguments with_row = a;
    const Array rows = normal(Dtype::float32, {4}, 5);
    with_row.row = rows;
    EXPECT_TRUE(is_one_pass("sum(abs(x-z)^p)", 3, {}, exponent));
    EXPECT_FALSE(is_one_pass("sum(abs(x-z)^p)", 3, {"p"}, exponent));
    EXPECT_TRUE(is_one_pass("sum(abs(x-z))", 17, {}, {}));
    EXPECT_TRUE(is_one_pass("a*sum(abs(x-z))^2", 17, {"a"}, a));
    EXPECT_TRUE(is_one_pass("row*a*sum(abs(x-z))^2", 17, {"a", "row"}, with_row));
    EXPECT_TRUE(is_one_pass("(i+1)*a*sum(abs(x-z))^2", 17, {"a"}, a)) << "of indices";
    EXPECT_TRUE(is_one_pass("a*sum(abs(x-z))^2/sum(x*x)", 17, {"a"}, a)) << "of points alone";
    EXPECT_TRUE(is_one_pass("a*sum(x*z)", 170, {"a"}, a)) << "no values of the pairs in the field";
    EXPECT_FALSE(is_one_pass("sum(x*z)", 3, {"row"}, {}));
    EXPECT_FALSE(is_one_pass("sum(x*z)", 0, {}, {}));
    Arguments many;
    std::string text = "sum(x*z)";
    std::vector<std::string> names;
    for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"}) {
      text += std::string("*") + name;
      many.params[name] = 1.25;
      names.push_back(name);
    }
    EXPECT_TRUE(is_one_pass(text.c_str(), 3, names, many));
    many.params["o"] = 1.25;
    names.push_back("o");
    EXPECT_FALSE(is_one_pass((text + "*o").c_str(), 3, names, many));
  });
}

TEST(Gradient, OfProductsRefusesOthers) {
  const Array x = normal(Dtype::float32, {4, 3}, 1), weights = normal(Dtype::float32, {4, 2}, 2),
              out(Dtype::float32, {4, 3});
  on_each_target([&](TestContext& context) {
    const Array wrong = normal(Dtype::float32, {4, 3}, 3);
    EXPECT_EQ(message_of([&] { product_gradient("sum(x*z)", x, nullptr, weights, wrong, out, {}, context); }),
              "product_gradient: weights must have shape (..., 4, 3). Received (4, 2).");
    EXPECT_TRUE(out.untouched());
  });
}

TEST(Gradient, NoPoints) {
  const Array x = normal(Dtype::float32, {4, 3}, 1), z(Dtype::float32, {0, 3}), coef(Dtype::float32, {2, 0}),
              amplitude(Dtype::float32, {4, 0});
  const Tensor zt = z;
  for (const std::int64_t k : {3, 20})
    for (const std::int64_t columns : {1, 2})
      on_cuda([&](TestContext& context) {
        const Array points = normal(Dtype::float32, {4, k}, 1), none(Dtype::float32, {0, k}),
                    weights = normal(Dtype::float32, {4, columns}, 2), v(Dtype::float32, {0, columns}),
                    out(Dtype::float32, {4, k});
        const Tensor none_tensor = none;
        product_gradient("sqrt(sum((x-z)^2))", points, &none_tensor, weights, v, out, {}, context);
        each_index({4, k}, [&](const Shape& i) { EXPECT_EQ(read(out, i), 0); });
      });
  on_each_target([&](TestContext& context) {
    const Array gradient(Dtype::float32, {2, 4, 3}), field(Dtype::float32, {2, 4, 3});
    kernel_gradient("sqrt(sum((x-z)^2))", x, &zt, coef, gradient, {}, context);
    gradient_field(points().x - points().z, x, z, amplitude, coef, field, {}, context);
    each_index({2, 4, 3}, [&](const Shape& i) {
      EXPECT_EQ(read(gradient, i), 0);
      EXPECT_EQ(read(field, i), 0);
    });
  });
}

TEST(Gradient, TiesAndZeros) {
  for (Dtype dtype : kWide) {
    std::mt19937 random(1);
    const auto small = [&] { return static_cast<double>(random() % 3); };
    const Array x = Array(dtype, {12, 7}).fill(small), z = Array(dtype, {60, 7}).fill(small),
                coef = normal(dtype, {2, 60}, 2);
    const Tensor zt = z;
    for (const char* text : {"max(abs(x-z))", "min(abs(x-z))", "max(x*z) + min(x+z)", "prod(x-z)", "prod(x*z)",
                             "max(max(x-z, 0))", "sum(where(x < z, x, z))", "sum(min(x, z))"}) {
      const Field expected = expected_field(differentiate(parse(text), points().x), x, z, coef);
      on_each_target([&](TestContext& context) {
        const Array out(dtype, {2, 12, 7});
        kernel_gradient(text, x, &zt, coef, out, {}, context);
        expect_field(out, expected, text);
      });
    }
  }
}

/// Amplitudes and weights of pairs of every dtype that points have; on CUDA other kernels read them by 40 features.
TEST(Gradient, AmplitudesOfEveryDtype) {
  const Expr f = parse("exp(-sum((x-z)^2)/40)"), phi = differentiate(f, points().x);
  for (const std::int64_t k : {6, 40})
    for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16, Dtype::uint8, Dtype::float32}) {
      const Array x = normal(Dtype::float32, {5, k}, 1), z = normal(Dtype::float32, {70, k}, 2),
                  amplitude = uniform(dtype, {5, 70}, 3, 0, 9), ones = uniform(Dtype::float32, {70}, 4, 1, 1);
      const Tensor zt = z, weights = amplitude;
      const Field expected = expected_field(phi, x, z, ones, {}, &weights);
      on_each_target([&](TestContext& context) {
        const Array field(Dtype::float32, {5, k}), backward(Dtype::float32, {5, k});
        gradient_field(phi, x, zt, weights, ones, field, {}, context);
        expect_field(field, expected, name_of(dtype), 3);
        ASSERT_TRUE(pairwise_backward(f, x, &zt, weights, backward, {}, {}, context));
        expect_field(backward, expected, name_of(dtype), 3);
      });
    }
}

TEST(Gradient, WeightsValuesAndOffsets) {
  for (Dtype dtype : kWide) {
    const Array x = normal(dtype, {11, 9}, 1), z = normal(dtype, {230, 9}, 2), coef = normal(dtype, {230}, 3);
    const Array w = uniform(dtype, {9}, 4), row = normal(dtype, {11}, 5), col = normal(dtype, {230}, 6);
    Extra extra;
    extra.i_offset = 2;
    extra.j_offset = 1;
    for (int i = 0; i < 9; ++i) extra.w.push_back(w(i));
    for (int i = 0; i < 11; ++i) extra.row.push_back(row(i));
    for (int i = 0; i < 230; ++i) extra.col.push_back(col(i));
    Arguments arguments = arguments_of(extra);
    arguments.w = w;
    arguments.row = row;
    arguments.col = col;
    const Tensor zt = z;
    for (const char* text : {"where(i == j, 0, exp(-sum(w*abs(x-z))/9))*abs(row)*col",
                             "sqrt(sum(w*square(x-z)))*(row + col)", "sum(w*square(x - z + row*col))"}) {
      const Field expected = expected_field(differentiate(parse(text), points().x), x, z, coef, extra);
      on_each_target([&](TestContext& context) {
        const Array out(dtype, {11, 9});
        kernel_gradient(text, x, &zt, coef, out, arguments, context);
        expect_field(out, expected, text, 2);
      });
    }
  }
}

TEST(Gradient, NanStaysInItsRows) {
  Array x = normal(Dtype::float32, {20, 9}, 1), z = normal(Dtype::float32, {60, 9}, 2),
        coef = normal(Dtype::float32, {60}, 3);
  x.set({3, 2}, kNan);
  const Tensor zt = z;
  const Field expected = expected_field(differentiate(parse("sqrt(sum((x-z)^2))"), points().x), x, z, coef);
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {20, 9});
    kernel_gradient("sqrt(sum((x-z)^2))", x, &zt, coef, out, {}, context);
    expect_field(out, expected, "NaN");
  });
}

TEST(Gradient, BatchesStridesAndTheSamePoints) {
  const Array x = normal(Dtype::float64, {3, 1, 9, 5}, 1, 1, {45, 45, 1, 9}),
              coef = normal(Dtype::float64, {2, 4, 9}, 2, 1, {1, 18, 2});
  const Array b = filled(Dtype::float64, {2}, {3, 9});
  Arguments arguments;
  arguments.params["b"] = b.tensor();
  const Expr f = parse("exp(-sum(abs(x-z))/b)"), field = differentiate(f, points().x);
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float64, {3, 2, 4, 9, 5}, {400, 200, 1, -4, 36});
    kernel_gradient(f, x, nullptr, coef, out, arguments, context);
    each_index({3, 2}, [&](const Shape& i) {
      const Tensor points = item(x, {i[0], 0});
      const Extra extra{{{"b", b(i[1])}}, {}, {}, {}, 0, 0};
      expect_field(item(out, i), expected_field(field, points, points, item(coef, {i[1]}), extra), "batch", 9);
    });
  });
}

struct PhiCase {
  const char* text;
  Values params = {};
};

const PhiCase kPhis[] = {{"sign(x-z)*abs(x-z)^(p-1)", {{"p", 1.4}}},
                         {"sign(x-z)"},
                         {"x-z"},
                         {"x*z"},
                         {"z"},
                         {"1"},
                         {"p*x", {{"p", 3}}},
                         {"exp(-abs(x-z)^1.3)*sign(x-z)*abs(x-z)^0.3"},
                         {"max(x, z)"},
                         {"w*(x-z)"},
                         {"abs(x-z) + 0.5"},
                         // Values of the pair.
                         {"where(sum(square(x-z)) == 0, 0, rsqrt(sum(square(x-z))))*(x-z)"},
                         {"exp(-sum(abs(x-z))/p)*sign(x-z)", {{"p", 30}}},
                         {"tanh(sum(x*z)/p)*x + z/(1 + sum(abs(x-z)))", {{"p", 3}}},
                         {"where(x-z == max(x-z), 1, 0)*sum(x*x)"},
                         {"w*where(i == j, 2, tanh(sum(w*x*z)))*(x+z)"}};

TEST(GradientField, MatchesTheOracle) {
  for (Dtype dtype : kWide)
    for (const PhiCase& c : kPhis)
      for (auto [m, n, k, outputs] :
           {std::array{11, 37, 19, 1}, {3, 400, 5, 3}, {9, 13, 66, 16}, {4, 7, 3, 40}, {2, 0, 3, 2}}) {
        const Array x = normal(dtype, {m, k}, 1), z = normal(dtype, {n, k}, 2), coef = normal(dtype, {outputs, n}, 3);
        const Array amplitude = normal(dtype, {m, n}, 4, 1, {1, m}), w = uniform(dtype, {k}, 5);
        Extra extra{c.params, {}, {}, {}, 0, 0};
        for (int i = 0; i < k; ++i) extra.w.push_back(w(i));
        Arguments arguments = arguments_of(extra);
        if (std::string(c.text).find("w*") == 0) arguments.w = w;
        const Expr phi = parse("sum(" + std::string(c.text) + ")")->args[0];
        const Tensor a = amplitude;
        const Field expected = expected_field(phi, x, z, coef, extra, &a);
        on_each_target([&](TestContext& context) {
          const Array out(dtype, {outputs, m, k});
          gradient_field(phi, x, z, amplitude, coef, out, arguments, context);
          expect_field(out, expected, c.text);
        });
      }
}

TEST(GradientField, BatchesNarrowInputsAndStrides) {
  const Array x = normal(Dtype::float16, {3, 9, 5}, 1), z = normal(Dtype::float16, {40, 5}, 2),
              coef = normal(Dtype::float32, {40}, 3);
  const Array amplitude = normal(Dtype::float32, {2, 1, 9, 40}, 4);
  const Expr phi = parse("sum(sign(x-z)*abs(x-z)^0.5)")->args[0];
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {2, 3, 9, 5}, {1, 2, 6, 54});
    gradient_field(phi, x, z, amplitude, coef, out, {}, context);
    each_index({2, 3}, [&](const Shape& i) {
      const Tensor a = item(amplitude, {i[0], 0});
      expect_field(item(out, i), expected_field(phi, item(x, {i[1]}), z, coef, {}, &a), "batch");
    });
  });
}

/// A CPU makes products over n of few features, feature by feature: items, strides, the same points, one output,
/// offsets and parameters as the field has them, and what it does not take (row, weights of the feature).
TEST(Gradient, FewFeaturesAsProducts) {
  constexpr std::int64_t kItems = 2, kM = kSanitized ? 90 : 130, kN = kSanitized ? 190 : 140, kOutputs = 3;
  const std::pair<const char*, bool> formulas[] = {
      {"exp(-sum((x-z)^2)/h)", true},        {"sum(abs(x-z))*(i + j)/h", true},
      {"max(abs(x-z))/h", true},             {"(sum(x*z)/h + 1)^3", true},
      {"sum(w*abs(x-z))/h", false},          {"row*exp(-sum(abs(x-z))/h)", false},
      {"sqrt(sum(w)*sum((x-z)^2))/h", true}, {"sum(x*z)*sum(x*x)/h", true},
      {"sum(abs(x-z)^1.5)/h + b", false}};
  for (const Dtype dtype : kWide)
    for (const auto& [text, serves] : formulas)
      for (const std::int64_t k : {1, 2, 5, 7}) {
        const Expr f = parse(text);
        EXPECT_EQ(Formula(f).prepared().of_feature() != nullptr, serves) << text;
        const Array x = normal(dtype, {kItems, kM, k}, 1), z = normal(dtype, {kN, k}, 2, 1, {1, kN}),
                    coef = normal(dtype, {kOutputs, kN}, 3, 1, {1, kOutputs}), one = normal(dtype, {kN}, 4),
                    w = uniform(dtype, {k}, 5), row = normal(dtype, {kM}, 6);
        Extra extra{{{"h", 2.5}, {"b", 1.5}}, {}, {}, {}, 4, 7};
        Arguments arguments = {.params = {{"h", 2.5}}, .i_offset = 4, .j_offset = 7};
        if (f->uses.w) {
          arguments.w = w;
          for (std::int64_t c = 0; c < k; ++c) extra.w.push_back(w(c));
        }
        if (f->uses.row) {
          arguments.row = row;
          for (std::int64_t m = 0; m < kM; ++m) extra.row.push_back(row(m));
        }
        if (std::string(text).find("+ b") != std::string::npos) arguments.params["b"] = 1.5;
        arguments.progress = [](double done, double total) { return done <= total; };
        const Expr by_x = differentiate(f, points().x);
        const Tensor zt = z;
        on_each_cpu_target([&](TestContext& context) {
          const Array out(dtype, {kItems, kOutputs, kM, k}, {1, kItems, kItems * kOutputs, kItems * kOutputs * kM});
          kernel_gradient(text, x, &zt, coef, out, arguments, context);
          for (std::int64_t i = 0; i < kItems; ++i)
            expect_field(item(out, {i}), expected_field(by_x, item(x, {i}), z, coef, extra), text, 3);
          const Array single(dtype, {kN, k});
          if (f->uses.row) return;
          kernel_gradient(text, z, nullptr, one, single, arguments, context);
          expect_field(single, expected_field(by_x, z, z, one, extra), text, 3);
        });
      }
}

/// Without reductions, row and col are all that the pairs have: with x - z or z next to them they go where values of
/// the pair do, a product of matrices on a GPU.
TEST(GradientField, FunctionsOfRowAndColumn) {
  for (const char* text : {"z/sqrt(row*col)", "(x-z)*exp(row-col)", "z*col", "sign(x-z)*row"})
    for (auto [m, n, k, outputs] : {std::array{11, 37, 19, 1}, {70, 130, 66, 3}, {4, 7, 3, 2}}) {
      const Array x = normal(Dtype::float32, {m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
      const Array coef = normal(Dtype::float32, {outputs, n}, 3), amplitude = normal(Dtype::float32, {m, n}, 4);
      const Array row = uniform(Dtype::float32, {m}, 5), col = uniform(Dtype::float32, {n}, 6);
      Extra extra;
      for (int i = 0; i < m; ++i) extra.row.push_back(row(i));
      for (int j = 0; j < n; ++j) extra.col.push_back(col(j));
      Arguments arguments;
      const Expr phi = parse("sum(" + std::string(text) + ")")->args[0];
      if (phi->uses.row) arguments.row = row;
      if (phi->uses.col) arguments.col = col;
      const Tensor a = amplitude;
      const Field expected = expected_field(phi, x, z, coef, extra, &a);
      on_each_target([&](TestContext& context) {
        context.state().own_costs().tensor_cores_from = 0;
        const Array out(Dtype::float32, {outputs, m, k});
        gradient_field(phi, x, z, amplitude, coef, out, arguments, context);
        expect_field(out, expected, text);
      });
    }
}

}  // namespace
}  // namespace mercer
