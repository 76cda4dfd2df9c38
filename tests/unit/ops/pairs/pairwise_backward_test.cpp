// The backward of pairwise in one pass: fields whose pairs a matrix weighs, and more sums.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/emulated.h"
#include "core/sanitized.h"
#include "ir/expr/expr.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"

namespace mercer {
namespace {

using namespace testing_support;

struct Case {
  const char* text;
  std::vector<std::string> by;
};

/// Every way of making the pass: any formula of few features, linear factors of more, stored pairs.
const Case kCases[] = {{"exp(-sum((x-z)^2)/h)", {"h"}},
                       {"row*exp(-sqrt(sum((x-z)^2)/h))", {"h", "row"}},
                       {"(sum(x*z)/h + 1)^3", {}},
                       {"row*sum(x*z)*col", {"row"}},
                       {"s*exp(-sum(abs(x-z))/h)", {"s", "h"}},
                       {"-2*sum(w*(z-x)^2)", {}},
                       {"(1 + i)*exp(-abs(i-j)/40)*exp(-sum(abs(x-z))/h)", {"h"}},
                       {"sum(x*z)", {}}};

struct Problem {
  Array x, z, weights;
  std::vector<std::string> by;
  Arguments arguments;
  Extra extra;

  Problem(const Case& own, Dtype dtype, std::int64_t m, std::int64_t n, std::int64_t k)
      : x(normal(dtype, {m, k}, 1)), z(normal(dtype, {n, k}, 2)), weights(normal(dtype, {m, n}, 3)), by(own.by),
        row_(normal(dtype, {m}, 4)), col_(normal(dtype, {n}, 5)), w_(uniform(dtype, {k}, 6)) {
    const Expr f = parse(own.text);
    const std::string text = own.text;
    for (const auto& [name, value] : {std::pair<std::string, double>{"h", 0.7 * static_cast<double>(k)}, {"s", 0.75}})
      if (text.find(name + "*") != std::string::npos || text.find("/" + name) != std::string::npos)
        arguments.params[name] = extra.params[name] = value;
    if (f->uses.row) {
      arguments.row = row_;
      for (std::int64_t i = 0; i < m; ++i) extra.row.push_back(row_(i));
    }
    if (f->uses.col) {
      arguments.col = col_;
      for (std::int64_t i = 0; i < n; ++i) extra.col.push_back(col_(i));
    }
    if (f->uses.w) {
      arguments.w = w_;
      for (std::int64_t i = 0; i < k; ++i) extra.w.push_back(w_(i));
    }
  }

  void set_weight(std::int64_t feature, double weight) {
    w_.set({feature}, weight);
    extra.w[static_cast<std::size_t>(feature)] = weight;
  }

 private:
  Array row_, col_, w_;
};

/// What one call gives; arrays are poisoned before.
struct Results {
  Array out, sums;
  bool without_weight = false;
  Results(Dtype dtype, std::int64_t m, std::int64_t k, std::int64_t by) : out(dtype, {m, k}), sums(dtype, {by, m}) {}
  bool run(const char* text, const Problem& problem, const Tensor& weights, TestContext& context) const {
    const Tensor z = problem.z, view = sums;
    const ExtraOutputs extra_outputs{problem.by, problem.by.empty() ? nullptr : &view, nullptr, without_weight};
    return pairwise_backward(text, problem.x, &z, weights, out, extra_outputs, problem.arguments, context);
  }
};

/// Against the oracle: an element is a sum of n terms of which each is rounded as values and weights are.
void expect_results(const Results& results, const char* text, const Problem& problem, const Tensor& weights,
                    const std::string& what, double factor = 3, const Expr& field = {}) {
  const Dtype dtype = results.out.tensor().dtype;
  const std::int64_t m = problem.x.shape()[0], n = problem.z.shape()[0];
  const Expr f = parse(text);
  const Array ones = Array(Dtype::float64, {n}).fill([] { return 1.0; });
  expect_field(results.out,
               expected_field(field.empty() ? differentiate(f, points().x) : field, problem.x, problem.z, ones,
                              problem.extra, &weights),
               what + ", " + text, factor, 1e-30);
  for (std::size_t r = 0; r < problem.by.size(); ++r) {
    const Expr leaf = problem.by[r] == "row" ? row_value() : param(problem.by[r]);
    const auto values = table(differentiate(f, leaf), problem.x, problem.z, problem.extra);
    for (std::int64_t i = 0; i < m; ++i) {
      double sum = 0, size = 0;
      for (std::int64_t j = 0; j < n; ++j) {
        const double term = read(weights, {i, j}) * values[i][j];
        sum += term;
        size += std::abs(term);
      }
      const double value = read(results.sums, {static_cast<std::int64_t>(r), i});
      ASSERT_TRUE(within(value, sum, factor * unit(dtype) * (size + 1e-30), dtype))
          << what << ", " << text << " by " << problem.by[r] << " at " << i << ": " << value << " for " << sum;
    }
  }
}

TEST(PairwiseBackward, FormulasAndSizes) {
  on_each_target([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    for (const Dtype dtype : kWide)
      for (const auto& [m, n, k] : {std::array{530, 301, 3}, {67, 70, 16}, {140, 203, 20}, {70, 300, 64}, {9, 131, 120},
                                    {40, 90, 170}, {20, 420, 10}, {1, 1, 17}, {5, 1, 2}})
        for (const Case& own : kCases) {
          if (dtype == Dtype::float64 && k > 20) continue;
          if (kSanitized && k > 64) continue;
          if (!context.on_cuda() && m * n * k > 200000) continue;  // the oracle takes seconds, three times
          const Problem problem(own, dtype, m, n, k);
          const Results results(dtype, m, k, static_cast<std::int64_t>(own.by.size())),
              again(dtype, m, k, static_cast<std::int64_t>(own.by.size()));
          ASSERT_TRUE(results.run(own.text, problem, problem.weights, context)) << own.text;
          expect_results(results, own.text, problem, problem.weights,
                         std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k));
          ASSERT_TRUE(again.run(own.text, problem, problem.weights, context));
          EXPECT_TRUE(same_bits(results.out, again.out)) << own.text;
          if (::testing::Test::HasFatalFailure()) return;
        }
  });
}

/// Whole and odd rows, columns whose values are neighbours, values that are none, one value for all.
TEST(PairwiseBackward, MatricesAsTheyLie) {
  constexpr std::int64_t kM = 72, kN = 132;
  on_each_target([&](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    Turns turns(2);
    for (const std::int64_t k : {3, 20, 64})
      for (const int at : {0, 4, 7}) {
        if (at == 4 && k > 20) continue;
        const Case& own = kCases[at];
        const Problem whole(own, Dtype::float32, kM, kN, k);
        const Array wide = normal(Dtype::float32, {kM, kN + 5}, 7), tall = normal(Dtype::float32, {kN, kM}, 8),
                    taller = normal(Dtype::float32, {kN, kM + 3}, 8), single = normal(Dtype::float32, {1}, 9);
        Tensor odd = wide, turned = tall, odd_turned = taller, steps = wide, one = single;
        odd.shape = turned.shape = odd_turned.shape = one.shape = {kM, kN};
        odd.data = static_cast<float*>(odd.data) + 3;
        turned.strides = {1, kM};
        odd_turned.strides = {1, kM + 3};
        steps.shape = {kM, kN / 2};
        steps.strides.back() = 2;
        one.strides = {0, 0};
        const Problem half(own, Dtype::float32, kM, kN / 2, k);
        for (const auto& [name, weights] : {std::pair{"odd rows", odd}, {"turned", turned}, {"odd columns", odd_turned},
                                            {"steps", steps}, {"one value", one}}) {
          if (turns.leaves_out()) continue;
          const Problem& problem = weights.shape.back() == kN ? whole : half;
          const Results results(Dtype::float32, kM, k, static_cast<std::int64_t>(own.by.size()));
          ASSERT_TRUE(results.run(own.text, problem, weights, context));
          expect_results(results, own.text, problem, weights, name);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
  });
}

/// Sizes that squares lose, rows of other sizes than the rest, rows of zeros, infinities and NaN.
TEST(PairwiseBackward, WeightsOfAllSizes) {
  constexpr std::int64_t kM = 64, kN = 140;
  on_each_target([&](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    Turns turns(3);
    for (const std::int64_t k : {3, 20, 64, 100}) {
      if (!context.on_cuda() && k > 20) continue;
      for (const double size : {1e-28, 1e-18, 1.0, 1e18, 1e25}) {
        if (turns.leaves_out()) continue;
        const Case& own = kCases[0];
        Problem problem(own, Dtype::float32, kM, kN, k);
        each_index({kM, kN}, [&](const Shape& i) {
          const double of_row = i[0] == 3 ? 0 : i[0] == 5 ? 1e-9 : i[0] == 7 ? 1e9 : i[0] == 9 && i[1] == 4 ? 1e6 : 1;
          problem.weights.set(i, problem.weights(i[0], i[1]) * size * of_row);
        });
        // A row whose neighbours have all the weight, and duplicates.
        for (std::int64_t c = 0; c < k; ++c) {
          problem.z.set({6, c}, problem.x(6, c));
          problem.x.set({11, c}, problem.x(11, c) + 30);
          problem.z.set({11, c}, problem.x(11, c) * (1 + 1e-4));
        }
        const Results results(Dtype::float32, kM, k, 1);
        ASSERT_TRUE(results.run(own.text, problem, problem.weights, context));
        expect_results(results, own.text, problem, problem.weights, "weights of " + std::to_string(size));
        if (::testing::Test::HasFatalFailure()) return;
        problem.weights.set({2, 5}, kInf);
        problem.weights.set({4, 139}, kNan);
        const Results others(Dtype::float32, kM, k, 1);
        ASSERT_TRUE(others.run(own.text, problem, problem.weights, context));
        for (std::int64_t i = 0; i < kM; ++i) {
          double norm = 0;
          for (std::int64_t c = 0; c < k; ++c) norm += std::pow(results.out(i, c), 2);
          for (std::int64_t c = 0; c < k; ++c) {
            if (i == 4)
              ASSERT_TRUE(std::isnan(others.out(i, c))) << k << " " << c;
            else if (i == 2)
              ASSERT_EQ(others.out(i, c), problem.x(i, c) < problem.z(5, c) ? kInf : -kInf) << k << " " << c;
            else
              ASSERT_NEAR(others.out(i, c), results.out(i, c), 1e-5 * std::sqrt(norm)) << k << " " << i;
          }
        }
      }
    }
  });
}

/// The matrix times the points alone: of a batch, of points with themselves, in several passes; a row of no numbers.
TEST(PairwiseBackward, ProductsOfMatrices) {
  constexpr std::int64_t kM = 133, kItems = 2;
  const char* const text = "sum(x*z)";
  on_each_target([&](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    for (const Dtype dtype : kWide)
      for (const std::int64_t k : {17, 64, 130, 320}) {
        if (k > 64 && !(context.on_cuda() && dtype == Dtype::float32)) continue;
        const Array x = normal(dtype, {kItems, kM, k}, 1), out(dtype, {kItems, kM, k}),
                    turned_out(dtype, {kItems, kM, k});
        Array weights = normal(dtype, {kItems, kM, kM}, 2);
        weights.set({1, 5, 7}, kNan);
        Tensor turned = weights;
        std::swap(turned.shape[1], turned.shape[2]);
        std::swap(turned.strides[1], turned.strides[2]);
        ASSERT_TRUE(pairwise_backward(text, x, nullptr, weights, out, {}, {}, context));
        ASSERT_TRUE(pairwise_backward(text, x, nullptr, turned, turned_out, {}, {}, context));
        const Array no_z(dtype, {kItems, 0, k}), none(dtype, {kItems, kM, 0}), zeros(dtype, {kItems, kM, k});
        const Tensor no_points = no_z;
        ASSERT_TRUE(pairwise_backward(text, x, &no_points, none, zeros, {}, {}, context));
        each_index({kItems, kM, k}, [&](const Shape& at) { ASSERT_EQ(read(zeros, at), 0); });
        for (std::int64_t b = 0; b < kItems; ++b)
          for (const bool is_turned : {false, true})
            for (std::int64_t i = 0; i < kM; ++i)
              for (std::int64_t c = 0; c < k; ++c) {
                double sum = 0, size = 0;
                for (std::int64_t j = 0; j < kM; ++j) {
                  const double term = (is_turned ? weights(b, j, i) : weights(b, i, j)) * x(b, j, c);
                  sum += term;
                  size += std::abs(term);
                }
                const double value = is_turned ? turned_out(b, i, c) : out(b, i, c);
                ASSERT_TRUE(within(value, sum, 3 * unit(dtype) * size, dtype)) << b << " " << i << " " << c;
              }
      }
  });
}

/// Items of a batch are what calls on their own are, to the bit; without points z all is zero.
TEST(PairwiseBackward, Batches) {
  constexpr std::int64_t kM = 40, kN = 70, kItems = 2;
  const Case& own = kCases[0];
  for (const Dtype dtype : kWide)
    for (const std::int64_t k : {3, 20}) {
      const Problem problem(own, dtype, kM, kN, k);
      const Array weights = normal(dtype, {kItems, kM, kN}, 8), no_z(dtype, {0, k}), none(dtype, {kM, 0});
      Array widths(dtype, {kItems});
      for (std::int64_t i = 0; i < kItems; ++i) widths.set({i}, 9.0 + 7 * static_cast<double>(i));
      const Tensor z = problem.z, empty_z = no_z;
      on_each_target([&](TestContext& context) {
        context.state().own_costs().tensor_cores_from = 0;
        const auto run = [&](const Tensor* points, const Tensor& of_pairs, const Argument& width, const Array& out,
                             const Array& sums) {
          Arguments arguments;
          arguments.params["h"] = width;
          const Tensor view = sums;
          const ExtraOutputs extra_outputs{{"h"}, &view};
          ASSERT_TRUE(pairwise_backward(own.text, problem.x, points, of_pairs, out, extra_outputs, arguments, context));
        };
        const Array out(dtype, {kItems, kM, k}), sums(dtype, {kItems, 1, kM});
        run(&z, weights, widths.tensor(), out, sums);
        for (std::int64_t i = 0; i < kItems; ++i) {
          const Array one(dtype, {kM, k}), one_sums(dtype, {1, kM});
          run(&z, item(weights, {i}), widths(i), one, one_sums);
          EXPECT_TRUE(same_bits(copy(item(out, {i}), dtype), one)) << i;
          EXPECT_TRUE(same_bits(copy(item(sums, {i}), dtype), one_sums)) << i;
        }
        const Array zeros(dtype, {kM, k}), zero_sums(dtype, {1, kM});
        run(&empty_z, none, 9.0, zeros, zero_sums);
        each_index({kM, k}, [&](const Shape& at) { ASSERT_EQ(read(zeros, at), 0); });
        each_index({1, kM}, [&](const Shape& at) { ASSERT_EQ(read(zero_sums, at), 0); });
      });
    }
}

/// Gradients without their factor of w, of features that weigh nothing, too.
TEST(PairwiseBackward, WithoutTheFactorOfWeights) {
  struct Weighted {
    Case own;
    const char* field;  // the derivative by x without it
  };
  const Weighted formulas[] = {{{"exp(-sum(w*(x-z)^2)/h)", {"h"}}, "-2*(x-z)/h*exp(-sum(w*(x-z)^2)/h)"},
                               {{"sum(w*x*z)^2/h", {"h"}}, "2*z/h*sum(w*x*z)"},
                               {{"exp(-sum(w^2*abs(x-z))/h)", {"h"}}, "-sign(x-z)/h*exp(-sum(w^2*abs(x-z))/h)"},
                               {{"-2*sum(w*(z-x)^2)", {}}, "-4*(x-z)"}};
  on_each_target([&](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    Turns turns(3);
    for (const Dtype dtype : kWide)
      for (const auto& [m, n, k] : {std::array{40, 70, 3}, {20, 131, 40}, {9, 40, 170}})
        for (const auto& [own, field] : formulas) {
          if (dtype == Dtype::float64 && k > 40) continue;
          if (turns.leaves_out()) continue;
          Problem problem(own, dtype, m, n, k);
          problem.set_weight(1, 0);
          Results results(dtype, m, k, static_cast<std::int64_t>(own.by.size()));
          results.without_weight = true;
          ASSERT_TRUE(results.run(own.text, problem, problem.weights, context)) << own.text;
          expect_results(results, own.text, problem, problem.weights, "without weight", 4, parse(field));
          if (::testing::Test::HasFatalFailure()) return;
        }
  });
}

/// Nothing is written where there is no such pass, or where the call is refused.
TEST(PairwiseBackward, IsRefused) {
  const Array x = normal(Dtype::float32, {4, 18}, 1), weights = normal(Dtype::float32, {4, 4}, 2),
              short_weights = normal(Dtype::float32, {4, 3}, 2), doubles = normal(Dtype::float64, {4, 4}, 2),
              out(Dtype::float32, {4, 18}), sums(Dtype::float32, {1, 4});
  const Tensor view = sums;
  const char* text = "exp(-sum(abs(x-z))/h)";
  Arguments arguments;
  arguments.params["h"] = 2.5;
  on_each_target([&](TestContext& context) {
    const auto call = [&](const char* f, const Tensor& of_pairs, const ExtraOutputs& extra_outputs) {
      return pairwise_backward(f, x, nullptr, of_pairs, out, extra_outputs, arguments, context);
    };
    EXPECT_FALSE(call(text, weights, {{"row"}, &view})) << "reads no row";
    EXPECT_EQ(message_of([&] { call(text, short_weights, {}); }),
              "pairwise_backward: weights must have shape (..., 4, 4). Received (4, 3).");
    EXPECT_NE(message_of([&] { call(text, doubles, {}); }).find("float32"), std::string::npos);
    EXPECT_EQ(message_of([&] { call(text, weights, {{"h"}, nullptr}); }),
              "pairwise_backward: sums must be given where there are leaves that they are by. Received 1 leaves.");
    EXPECT_NE(message_of([&] { call(text, weights, {{}, nullptr, &view}); }).find("no product"), std::string::npos);
    EXPECT_EQ(message_of([&] { call(text, weights, {{}, nullptr, nullptr, true}); }),
              "pairwise_backward: a gradient without its factor of w must have one, of terms that are homogeneous in "
              "the points. Received exp(-(sum(abs(x - z))/h)).");
  });
  EXPECT_TRUE(out.untouched());
  EXPECT_TRUE(sums.untouched());
}

}  // namespace
}  // namespace mercer
