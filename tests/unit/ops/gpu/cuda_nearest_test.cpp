// Nearest neighbours found while the pairs are computed: few points take the path too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "ops/drawn_data.h"
#include "ops/expected_folds.h"

namespace mercer {
namespace {

using namespace testing_support;

/// Small values may err by `relative` of themselves, all by `absolute` of the row's largest.
struct Search {
  const char* text;
  double relative = 1e-6, absolute = 0;
};
constexpr Search kSearches[] = {{"sum(abs(x-z))"},
                                {"sum((x-z)^2)^0.5"},
                                {"3*sum((x-z)^2)", 2e-6},
                                {"-sum(x*z)", 0, 1e-6},
                                {"1 - sum(x*z)/sqrt(sum(x*x)*sum(z*z))", 0, 2e-6},
                                {"max(abs(x-z))"},
                                {"sum(abs(x-z)^1.3)*(1 + j/1000) + i", 3e-6},
                                {"logsumexp(x*z) - sum(abs(x-z))", 0, 2e-6}};

/// Every row: values are those of their columns, ascending, and none that was left out is clearly smaller.
void expect_nearest(const Search& search, const Tensor& x, const Tensor& z, std::int64_t count, const std::string& what,
                    TestContext& context) {
  const std::int64_t rows = x.shape[0], columns = z.shape[0];
  const Array values(Dtype::float32, {rows, count}, column_major({rows, count})), indices(Dtype::int64, {rows, count});
  const Array again(Dtype::float32, {rows, count}), same(Dtype::int64, {rows, count});
  knn(search.text, x, &z, count, values, indices, {}, context);
  knn(search.text, x, &z, count, again, same, {}, context);
  const auto expected = table(parse(search.text), x, z);
  const auto at = [&](std::int64_t m, std::int64_t n) { return expected[m][n]; };
  for (std::int64_t m = 0; m < rows; ++m) {
    std::vector<double> row(columns);
    double largest = 0;
    for (std::int64_t n = 0; n < columns; ++n) {
      row[n] = at(m, n);
      if (std::isfinite(row[n])) largest = std::max(largest, std::abs(row[n]));
    }
    const auto tolerance = [&](double v) { return search.relative * std::abs(v) + search.absolute * largest; };
    std::vector<double> sorted = row;
    std::sort(sorted.begin(), sorted.end(), [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; });
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::string place = what + ", " + search.text + " at " + std::to_string(m) + "," + std::to_string(i);
      const auto n = static_cast<std::int64_t>(indices(m, i));
      ASSERT_TRUE(n >= 0 && n < columns && seen.insert(n).second) << place << ": column " << n;
      ASSERT_EQ(same(m, i), indices(m, i)) << place;
      const double value = values(m, i);
      ASSERT_TRUE(value == again(m, i) || std::isnan(value)) << place;
      ASSERT_EQ(std::isnan(value), std::isnan(sorted[i])) << place;
      if (std::isnan(value)) continue;
      ASSERT_TRUE(value == row[n] || std::abs(value - row[n]) <= tolerance(row[n])) << place << ": " << value;
      ASSERT_TRUE(value == sorted[i] || std::abs(value - sorted[i]) <= 2 * tolerance(sorted[i]))
          << place << ": " << value << " for " << sorted[i];
      if (i == 0) continue;
      ASSERT_TRUE(values(m, i - 1) < value || (values(m, i - 1) == value && indices(m, i - 1) < n)) << place;
    }
  }
}

template <class Body>
void on_candidates(const Body& body) {
  on_tensor_cores([&](TestContext& context) {
    context.state().own_costs().candidates_from = 0;
    body(context);
  });
}

TEST(NearestCandidates, FormulasAndSizes) {
  on_candidates([](TestContext& context) {
    for (auto [m, n, k, count] : {std::array{65, 1100, 70, 1}, {65, 700, 22, 3}, {64, 1537, 3, 100}})
      for (const Search& search : kSearches) {
        const Array x = normal(Dtype::float32, {m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
        expect_nearest(search, x, z, count, std::to_string(count) + " of " + std::to_string(n), context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

TEST(NearestCandidates, AsManyAsThereAre) {
  on_candidates([](TestContext& context) {
    for (auto [n, count] : {std::array{300, 256}, {256, 256}, {390, 3}, {1, 1}})
      for (const Search& search : {kSearches[0], kSearches[1]})
        expect_nearest(search, normal(Dtype::float32, {64, 33}, 1), normal(Dtype::float32, {n, 33}, 2), count,
                       std::to_string(count) + " of " + std::to_string(n), context);
  });
}

TEST(NearestCandidates, EveryKindOfData) {
  on_candidates([](TestContext& context) {
    for (const Kind& kind : kinds()) {
      PointPair points{drawn(66, 36, 1, kind.draw), drawn(900, 36, 2, kind.draw)};
      add_neighbours(points);
      const std::string name = kind.name;
      if (name == "huge") continue;  // sums leave the floats
      expect_nearest(kSearches[0], points.x, points.z, 9, name, context);
      if (name != "tiny")  // squares leave the floats
        expect_nearest(kSearches[1], points.x, points.z, 9, name, context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// Many more candidates than there is room for: ties go by column, NaN come last.
TEST(NearestCandidates, TiesAndNan) {
  on_candidates([](TestContext& context) {
    constexpr std::int64_t kM = 64, kN = 2500, kK = 34;
    std::mt19937 random(3);
    const auto small = [&] { return static_cast<double>(random() % 2); };
    Array x = Array(Dtype::float32, {kM, kK}).fill(small), z = Array(Dtype::float32, {kN, kK}).fill(small);
    for (std::int64_t n = 0; n < kN; ++n)
      for (std::int64_t k = 4; k < kK; ++k) z.set({n, k}, 0.25);
    const Tensor zt = z;
    for (const char* text : {"sum(abs(x-z))", "sum((x-z)^2)^0.5"}) {
      const Array pairs(Dtype::float32, {kM, kN}), values(Dtype::float32, {kM, 20}), indices(Dtype::int64, {kM, 20});
      pairwise(text, x, &zt, pairs, {}, context);
      knn(text, x, &zt, 20, values, indices, {}, context);
      for (std::int64_t m = 0; m < kM; ++m) {
        std::vector<std::int64_t> order(kN);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return pairs(m, a) < pairs(m, b); });
        for (std::int64_t i = 0; i < 20; ++i) ASSERT_EQ(indices(m, i), order[i]) << text << " at " << m << "," << i;
      }
    }
    for (std::int64_t n = 0; n < kN; ++n)
      if (n % 500 != 7) z.set({n, n % kK}, n % 2 == 0 ? kNan : kInf);
    x.set({1, 1}, kNan);
    x.set({2, 2}, -kInf);
    for (const Search& search : {kSearches[0], kSearches[1], kSearches[4]})
      expect_nearest(search, x, z, 12, "infinities and NaN", context);
  });
}

/// Columns that come closer and closer, and groups of them: the order in memory says nothing.
TEST(NearestCandidates, SortedPoints) {
  on_candidates([](TestContext& context) {
    constexpr std::int64_t kM = 64, kN = 3000, kK = 33;
    const Array x = normal(Dtype::float32, {kM, kK}, 1);
    Array z = normal(Dtype::float32, {kN, kK}, 2);
    for (std::int64_t n = 0; n < kN; ++n)
      for (std::int64_t k = 0; k < kK; ++k) z.set({n, k}, z(n, k) * (1.0 + static_cast<double>(kN - n) / 100));
    for (const Search& search : {kSearches[0], kSearches[1]}) expect_nearest(search, x, z, 5, "closer", context);
  });
}

TEST(NearestCandidates, RowsPartsBatchesAndTypes) {
  on_candidates([](TestContext& context) {
    context.state().own_costs().part_bytes = 1;  // parts of 128 rows
    const Array z = normal(Dtype::float32, {800, 40}, 2);
    for (const Search& search : {kSearches[0], kSearches[1]})
      expect_nearest(search, normal(Dtype::float32, {300, 40}, 1), z, 6, "parts", context);
    for (Dtype dtype : {Dtype::float16, Dtype::uint8}) {
      const Array x = uniform(dtype, {65, 40}, 1), points = uniform(dtype, {900, 40}, 2);
      for (const Search& search : {kSearches[0], kSearches[1]})
        expect_nearest(search, x, points, 4, std::string(name_of(dtype)), context);
    }
    const Array x = normal(Dtype::float32, {2, 70, 36}, 3), points = normal(Dtype::float32, {2, 500, 36}, 4);
    const Array bandwidth = filled(Dtype::float64, {3, 1}, {0.5, 1, 9});
    const Tensor zt = points;
    Arguments arguments;
    arguments.params["b"] = bandwidth.tensor();
    const Array values(Dtype::float32, {3, 2, 70, 5}), indices(Dtype::int64, {3, 2, 70, 5});
    knn("-exp(-sum((x-z)^2)/(60*b))", x, &zt, 5, values, indices, arguments, context);
    for (std::int64_t b = 0; b < 3; ++b)
      for (std::int64_t s = 0; s < 2; ++s) {
        const Array value(Dtype::float32, {70, 5}), index(Dtype::int64, {70, 5});
        const Tensor zs = item(zt, {s});
        Arguments one;
        one.params["b"] = item(bandwidth, {b, 0});
        knn("-exp(-sum((x-z)^2)/(60*b))", item(x, {s}), &zs, 5, value, index, one, context);
        EXPECT_TRUE(same_bits(value, copy(item(values, {b, s}), Dtype::float32)));
        EXPECT_TRUE(same_bits(index, copy(item(indices, {b, s}), Dtype::int64)));
      }
  });
}

}  // namespace
}  // namespace mercer
