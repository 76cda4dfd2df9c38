// Sums by the weights of the features in the pass of a backward.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "ir/expr/expr.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"
#include "ops/weighted_pairs.h"

namespace mercer {
namespace {

using namespace testing_support;

/// An amplitude of the pair as by x, another one, none; w next to other factors, and in places where it is none.
constexpr const char* kFormulas[] = {"exp(-sum(w*(x-z)^2)/h)",
                                     "row*exp(-sum(abs((x-z)/w))/h)*col",
                                     "(1 + sum(w*x*z)/h)^3",
                                     "sum(w*(x-z)^2) + exp(-sum(sin(w*x)*z)/h)",
                                     "exp(-sum(abs(x-z)^(1+w))/h) + 0.01*i*sum(w)/j",
                                     "sum(where(x < z, w, 1)*(x-z))",
                                     "exp(-sum(exp(-w)*(x-z)^2)/h)*sum(w*x)"};
/// More features: no values of the pair, one, two; factors that are linear, signs, powers, others; by x and by w.
constexpr const char* kManyFeatures[] = {"sum(w*sin(x-z))",
                                         "exp(-sum(w*abs(x-z))/h)",
                                         "exp(-sum((x-z)^2)/h)*sum(w)",
                                         "row*exp(-sum(w*(x-z)^2)/h)*col",
                                         "tanh(sum(w*x*z)/h) + sum(abs(x-z)^1.3*w)"};

struct Problem : WeightedPairs {
  Problem(const char* text, Dtype dtype, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns)
      : WeightedPairs(parse(text), dtype, m, n, k, columns), w_(uniform(dtype, {k}, 7)) {
    arguments.j_offset = extra.j_offset = 1;
    arguments.w = w_;
    for (std::int64_t c = 0; c < k; ++c) extra.w.push_back(w_(c));
    if (std::string(text).find("/h") != std::string::npos)
      arguments.params["h"] = extra.params["h"] = 1.5 * static_cast<double>(k);
  }

 private:
  Array w_;
};

/// The oracle's results: an element is a sum of n terms, each rounded as values and weights of a pair are.
struct Expected {
  Field by_x, by_w;
  double factor;  // terms of a weight

  Expected(const char* text, const Problem& problem, const Array& weights)
      : factor(8 * std::sqrt(static_cast<double>(problem.u.shape()[1]))) {
    const Array ones = Array(Dtype::float64, {problem.n()}).fill([] { return 1.0; });
    const Tensor matrix = weights;
    const auto by = [&](const Expr& leaf) {
      return expected_field(differentiate(parse(text), leaf), problem.x, problem.z, ones, problem.extra, &matrix);
    };
    by_x = by(points().x);
    by_w = by(mercer::weights());
  }
  void expect(const Array& x, const Array& w, const std::string& what) const {
    expect_field(x, by_x, what + ", by x", factor, 1e-30);
    expect_field(transposed(w), by_w, what + ", by w", factor, 1e-30);
  }
};

TEST(WeightSums, FormulasAndSizes) {
  on_each_target([](TestContext& context) {
    for (const Dtype dtype : kWide)
      for (const auto& [m, n, k, columns] :
           {std::array{530, 301, 3, 1}, {67, 70, 16, 3}, {9, 431, 1, 20}, {140, 203, 10, 16}, {1, 1, 3, 1}}) {
        if (!context.on_cuda() && m > 67) continue;  // the oracle takes seconds, three times
        for (const char* text : kFormulas) {
          const Problem problem(text, dtype, m, n, k, columns);
          const std::string what = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
          const Tensor z = problem.z;
          const Array by_x(dtype, {m, k}), by_w(dtype, {k, m}), product(dtype, {m, columns}), again(dtype, {k, m}),
              of_matrix(dtype, {m, k}), of_matrix_w(dtype, {k, m});
          const Tensor w_view = by_w, product_view = product, again_view = again, matrix_view = of_matrix_w;
          ASSERT_TRUE(product_backward(text, problem.x, &z, problem.u, problem.v, by_x,
                                       {{}, nullptr, &product_view, false, &w_view}, problem.arguments, context));
          Expected(text, problem, problem.matrix(Dtype::float64)).expect(by_x, by_w, what + ", " + text);
          expect_product(product, table(parse(text), problem.x, problem.z, problem.extra), problem.v, text);
          ASSERT_TRUE(product_backward(text, problem.x, &z, problem.u, problem.v, by_x,
                                       {{}, nullptr, &product_view, false, &again_view}, problem.arguments, context));
          EXPECT_TRUE(same_bits(by_w, again)) << text;
          const Array weights = problem.matrix(dtype);
          ASSERT_TRUE(pairwise_backward(text, problem.x, &z, weights, of_matrix,
                                        {{}, nullptr, nullptr, false, &matrix_view}, problem.arguments, context));
          Expected(text, problem, weights).expect(of_matrix, of_matrix_w, what + " by a matrix, " + text);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
  });
}

/// Fields of pairs that are stored, some rows at a time, by products and without.
TEST(WeightSums, ManyFeatures) {
  on_cuda([](TestContext& context) {
    const double from = context.state().own_costs().tensor_cores_from;
    for (const Dtype dtype : kWide)
      for (const auto& [m, n, k, columns] : {std::array{35, 150, 21, 1}, {21, 70, 100, 3}, {65, 40, 24, 18}})
        for (const char* text : kManyFeatures) {
          const Problem problem(text, dtype, m, n, k, columns);
          const Array weights = problem.matrix(dtype), product(dtype, {m, columns});
          const Expected expected(text, problem, problem.matrix(Dtype::float64));
          const Tensor z = problem.z, product_view = product;
          for (const double least : {from, 0.0}) {
            context.state().own_costs().tensor_cores_from = least;
            const std::string what = std::string(text) + (least > 0 ? "" : " by products") + ", " + std::to_string(k);
            const Array by_x(dtype, {m, k}), by_w(dtype, {k, m}), of_matrix(dtype, {m, k}), of_matrix_w(dtype, {k, m}),
                again(dtype, {k, m});
            const Tensor w_view = by_w, matrix_view = of_matrix_w, again_view = again;
            const auto backward = [&](const Tensor& to, const Tensor* of_v) {
              return product_backward(text, problem.x, &z, problem.u, problem.v, by_x,
                                      {{}, nullptr, of_v, false, &to}, problem.arguments, context);
            };
            // The product does not always pay in their pass.
            if (backward(w_view, &product_view))
              expect_product(product, table(parse(text), problem.x, problem.z, problem.extra), problem.v, text);
            else
              ASSERT_TRUE(backward(w_view, nullptr)) << what;
            expected.expect(by_x, by_w, what);
            ASSERT_TRUE(backward(again_view, nullptr)) << what;
            expected.expect(by_x, again, what + " again");
            ASSERT_TRUE(pairwise_backward(text, problem.x, &z, weights, of_matrix,
                                          {{}, nullptr, nullptr, false, &matrix_view}, problem.arguments, context));
            expected.expect(of_matrix, of_matrix_w, what + " by a matrix");
          }
          context.state().own_costs().tensor_cores_from = from;
          if (::testing::Test::HasFatalFailure()) return;
        }
  });
}

/// Sums by parameters and by row are what they are without, and so is a gradient without its factor of w.
TEST(WeightSums, OtherSums) {
  constexpr std::int64_t kM = 150, kN = 170;
  const char* const text = "row*exp(-sum(w*(x-z)^2)/h)*col";
  on_each_target([&](TestContext& context) {
    for (const std::int64_t k : {3, 7, 16, 30}) {
      const Problem problem(text, Dtype::float32, kM, kN, k, 2);
      const Tensor z = problem.z;
      const Array by_w(Dtype::float32, {k, kM}), sums(Dtype::float32, {2, kM}), plain_sums(Dtype::float32, {2, kM}),
          by_x(Dtype::float32, {kM, k}), plain(Dtype::float32, {kM, k});
      const Tensor w_view = by_w, sums_view = sums, plain_view = plain_sums;
      const std::vector<std::string> by{"h", "row"};
      ASSERT_TRUE(product_backward(text, problem.x, &z, problem.u, problem.v, by_x,
                                   {by, &sums_view, nullptr, true, &w_view}, problem.arguments, context));
      ASSERT_TRUE(product_backward(text, problem.x, &z, problem.u, problem.v, plain,
                                   {by, &plain_view, nullptr, true}, problem.arguments, context));
      const Array matrix = problem.matrix(Dtype::float64), ones = Array(Dtype::float64, {kN}).fill([] { return 1.0; });
      const Tensor view = matrix;
      const Expr without = parse("-2*(x-z)/h*row*exp(-sum(w*(x-z)^2)/h)*col"),
                 by_weight = differentiate(parse(text), mercer::weights());
      expect_field(by_x, expected_field(without, problem.x, problem.z, ones, problem.extra, &view), "without w", 8,
                   1e-30);
      expect_field(transposed(by_w), expected_field(by_weight, problem.x, problem.z, ones, problem.extra, &view),
                   "by w", 8, 1e-30);
      for (std::int64_t r = 0; r < 2; ++r) {
        double norm = 0, difference = 0;
        for (std::int64_t i = 0; i < kM; ++i) {
          norm += std::pow(plain_sums(r, i), 2);
          difference += std::pow(sums(r, i) - plain_sums(r, i), 2);
        }
        EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm)) << by[static_cast<std::size_t>(r)];
      }
    }
  });
}

/// A row whose weight is NaN or infinite, infinite points, duplicates; items of a batch.
void expect_values_of_all_kinds(std::int64_t kK) {
  constexpr std::int64_t kM = 40, kN = 70, kItems = 2;
  const char* const text = "exp(-sum(w*(x-z)^2)/h)";
  on_each_target([&](TestContext& context) {
    for (const Dtype dtype : kWide) {
      Problem problem(text, dtype, kM, kN, kK, 1);
      for (std::int64_t c = 0; c < kK; ++c) problem.z.set({c, c}, problem.x(c, c));
      const Tensor z = problem.z;
      const Array by_x(dtype, {kM, kK}), by_w(dtype, {kK, kM}), sums(dtype, {1, kM}), none(dtype, {0, kK}),
          no_v(dtype, {0, 1});
      const Tensor w_view = by_w, sums_view = sums, no_points = none;
      problem.u.set({3, 0}, kNan);
      problem.u.set({4, 0}, kInf);
      ASSERT_TRUE(product_backward(text, problem.x, &z, problem.u, problem.v, by_x,
                                   {{}, nullptr, nullptr, false, &w_view}, problem.arguments, context));
      for (std::int64_t c = 0; c < kK; ++c)
        for (std::int64_t i = 0; i < kM; ++i) ASSERT_EQ(std::isfinite(by_w(c, i)), i != 3 && i != 4) << c << " " << i;
      ASSERT_TRUE(product_backward(text, problem.x, &no_points, problem.u, no_v, by_x,
                                   {{"h"}, &sums_view, nullptr, false, &w_view}, problem.arguments, context));
      each_index({kM, kK}, [&](const Shape& at) {
        ASSERT_EQ(by_x(at[0], at[1]), 0);
        ASSERT_EQ(by_w(at[1], at[0]), 0);
        ASSERT_EQ(sums(0, at[0]), 0);
      });

      const Array widths = uniform(Dtype::float64, {kItems}, 9), matrix = normal(dtype, {kM, kN}, 11),
                  all_x(dtype, {kItems, kM, kK}), all_w(dtype, {kItems, kK, kM});
      const Tensor all_view = all_w;
      Arguments batched = problem.arguments;
      batched.params["h"] = widths.tensor();
      ASSERT_TRUE(pairwise_backward(text, problem.x, &z, matrix, all_x, {{}, nullptr, nullptr, false, &all_view},
                                    batched, context));
      for (std::int64_t b = 0; b < kItems; ++b) {
        Arguments own = problem.arguments;
        own.params["h"] = widths(b);
        ASSERT_TRUE(pairwise_backward(text, problem.x, &z, matrix, by_x, {{}, nullptr, nullptr, false, &w_view}, own,
                                      context));
        EXPECT_TRUE(same_bits(copy(item(all_w, {b}), dtype), by_w)) << b;
        EXPECT_TRUE(same_bits(copy(item(all_x, {b}), dtype), by_x)) << b;
      }
    }
  });
}

TEST(WeightSums, ValuesOfAllKinds) { expect_values_of_all_kinds(5); }
TEST(WeightSums, ValuesOfAllKindsOfManyFeatures) { expect_values_of_all_kinds(33); }

/// False where the formula reads no weights; a result of another shape is refused.
TEST(WeightSums, AreRefused) {
  on_each_target([](TestContext& context) {
    const auto backward = [&](const char* text, std::int64_t k, const Shape& shape) {
      const Problem problem(text, Dtype::float32, 6, 5, k, 1);
      const Tensor z = problem.z;
      const Array by_x(Dtype::float32, {6, k}), by_w(Dtype::float32, shape);
      const Tensor view = by_w;
      const ExtraOutputs extra_outputs{{}, nullptr, nullptr, false, &view};
      bool has_pass = false;
      Arguments arguments = problem.arguments;
      if (!parse(text)->uses.w) arguments.w = {};
      const std::string message = message_of([&] {
        has_pass = product_backward(text, problem.x, &z, problem.u, problem.v, by_x, extra_outputs, arguments, context);
      });
      EXPECT_TRUE(by_x.untouched());
      EXPECT_TRUE(by_w.untouched());
      EXPECT_FALSE(has_pass);
      return message;
    };
    EXPECT_EQ(backward("exp(-sum((x-z)^2)/h)", 3, {3, 6}), "");
    EXPECT_EQ(backward("exp(-sum(w*(x-z)^2)/h)", 3, {6, 3}),
              "product_backward: out must have shape (3, 6). Received (6, 3).");
  });
}

}  // namespace
}  // namespace mercer
