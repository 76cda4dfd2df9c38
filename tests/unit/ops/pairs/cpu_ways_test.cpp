// Ways on CPUs, each forced: against the oracle, on awkward layouts, batches and values, and on several threads.
#include <cmath>
#include <limits>

#include "core/devices/lapack.h"
#include "ops/expected_folds.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kDistance = "sqrt(sum((x-z)^2))";
constexpr const char* kCosine = "sum(x*z)/sqrt(sum(x*x)*sum(z*z))";
constexpr const char* kGauss = "exp(-sum((x-z)^2)/(b*K))";

struct Case {
  const char* text;
  const char* scale;  // what errors are relative to
};
constexpr Case kCases[] = {{"sum(x*z)", "sqrt(sum(x*x)*sum(z*z))"},
                           {"sum((x-z)^2)", "sum((x-z)^2)"},
                           {kDistance, kDistance},
                           {"sum(abs(x-z))", "sum(abs(x-z))"},
                           {"max(abs(x-z))", "max(abs(x-z))"},
                           {kGauss, "s = sum((x-z)^2)/(b*K); exp(-s)*(1+s)"},
                           {kCosine, "2 + 0*sum(x)*sum(z)"},
                           {"(1 + r*sum(x*z))^3/c + i", "3*(1 + abs(r)*sqrt(sum(x*x)*sum(z*z)))^3/c + i"}};

bool is_bare_product(const Case& c) { return std::string(c.text) == "sum(x*z)"; }
bool reads(const Case& c, const char* name) { return std::string(c.text).find(name) != std::string::npos; }

Extra extra_of(const Case& c) {
  Extra extra;
  if (reads(c, "(b*")) extra.params["b"] = 1.5;
  if (reads(c, "r*")) extra.params["r"] = 0.05;
  if (reads(c, "/c")) extra.params["c"] = 2.0;
  return extra;
}

std::vector<const char*> ways_of(const Case& c, std::int64_t features) {
  std::vector<const char*> ways{"few_points", "packed_tile"};
  if (is_bare_product(c) && features > 32 && lapack() != nullptr) ways.push_back("gemm");
  return ways;
}

TEST(CpuWays, MatchTheOracle) {
  for (const Dtype dtype : kWide)
    for (const Case& c : kCases)
      for (auto [m, n, k] : {std::array{1, 1, 1}, {1, 70, 33}, {70, 1, 67}, {5, 49, 16}, {33, 3, 2500}, {11, 18, 7}}) {
        const Array x = normal(dtype, {m, k}, 1), z = normal(dtype, {n, k}, 2);
        const double factor = dtype == Dtype::float64 ? std::max(1.0, k * 1.2e-3) : 1;
        const Extra extra = extra_of(c);
        const Expected expected =
            expected_pairs(parse(c.text), x, z, factor * unit(dtype), parse(c.scale), extra);
        const Tensor zt = z;
        on_each_cpu_target([&](TestContext& context) {
          for (const char* way : ways_of(c, k)) {
            context.set_ways(way);
            const Array out(dtype, {m, n});
            pairwise(c.text, x, &zt, out, arguments_of(extra), context);
            expect_pairs(out, expected, std::string(c.text) + " by " + way);
          }
        });
      }
}

/// Rows of the whole and of its parts, however many, are then the same.
TEST(CpuWays, OfFewFeaturesAllHaveTheSameBits) {
  for (const char* text : {"sum(x*z)", kDistance, "sum(abs(x-z))", "max(abs(x-z))", kCosine})
    for (const Dtype dtype : kWide)
      for (const std::int64_t k : {1, 5, 32}) {
        const Array x = normal(dtype, {19, k}, 1), z = normal(dtype, {67, k}, 2);
        const Tensor zt = z;
        for (const Target target : targets()) {
          if (target == Target::interpreter) continue;  // whose instructions may not fuse
          TestContext context(target);
          Array out[2] = {Array(dtype, {19, 67}), Array(dtype, {19, 67})};
          for (int way = 0; way < 2; ++way) {
            context.set_ways(way == 0 ? "few_points" : "packed_tile");
            pairwise(text, x, &zt, out[way], {}, context);
          }
          EXPECT_TRUE(same_bits(out[0], out[1])) << text << " of " << k << " on " << name_of(target);
        }
      }
}

/// At which the choice among them changes.
TEST(CpuWays, LargeOutputsOfFewFeaturesHaveTheSameBits) {
  constexpr std::int64_t kRows = 517, kCols = 403;
  for (const char* text : {"sum(x*z)", kDistance, "max(abs(x-z))", kCosine})
    for (const Dtype dtype : kWide)
      for (const std::int64_t k : {1, 3, 32}) {
        const Array x = normal(dtype, {kRows, k}, 1), z = normal(dtype, {kCols, k}, 2);
        const Tensor zt = z;
        for (const Target target : targets()) {
          if (target == Target::interpreter) continue;  // whose instructions may not fuse
          TestContext context(target);
          Array out[2] = {Array(dtype, {kRows, kCols}), Array(dtype, {kRows, kCols})};
          for (int run = 0; run < 2; ++run) {
            context.set_ways(run == 0 ? "packed_tile" : "few_points");
            pairwise(text, x, &zt, out[run], {}, context);
          }
          EXPECT_TRUE(same_bits(out[0], out[1])) << text << " of " << k << " on " << name_of(target);
        }
      }
}

TEST(CpuWays, LayoutsOfPointsAndOutputs) {
  const Case& c = kCases[2];
  const Array x = normal(Dtype::float32, {37, 21}, 1, 1, {50, 1}), z = normal(Dtype::float32, {53, 21}, 2, 1, {-21, 1});
  const Expected expected = expected_pairs(parse(c.text), x, z, 1e-6);
  const Tensor zt = z;
  on_each_cpu_target([&](TestContext& context) {
    context.set_ways("few_points");
    for (const Shape& strides : {Shape{53, 1}, Shape{1, 37}, Shape{60, 1}, Shape{120, 2}, Shape{-53, 1}}) {
      const Array out(Dtype::float32, {37, 53}, strides);
      pairwise(c.text, x, &zt, out, {}, context);
      expect_pairs(out, expected, c.text);
    }
    const Array half(Dtype::float16, {37, 53});
    pairwise(c.text, x, &zt, half, {}, context);
    for (std::int64_t i = 0; i < 37; ++i)
      for (std::int64_t j = 0; j < 53; ++j)
        ASSERT_NEAR(half(i, j), expected.values[i * 53 + j], 1e-3 * expected.values[i * 53 + j]);
    const Array turned = copy(x, Dtype::float32, {1, 37});
    const Array plain(Dtype::float32, {37, 53}), same(Dtype::float32, {37, 53});
    pairwise(c.text, x, &zt, plain, {}, context);
    pairwise(c.text, turned, &zt, same, {}, context);
    EXPECT_TRUE(same_bits(plain, same));
  });
}

TEST(CpuWays, ItemsOfABatchAreThoseOfCallsAlone) {
  for (const char* text : {"sum(x*z)", kDistance, kCosine, "max(abs(x-z))"}) {
    const Array x = normal(Dtype::float32, {2, 37, 3, 11}, 1), z = normal(Dtype::float32, {37, 5, 11}, 2);
    const Tensor zt = z, xt = x;
    on_each_cpu_target([&](TestContext& context) {
      context.set_ways("few_points");
      const Array out(Dtype::float32, {2, 37, 3, 5});
      pairwise(text, x, &zt, out, {}, context);
      each_index({2, 37}, [&](const Shape& i) {
        Tensor one_x(static_cast<float*>(xt.data) + (i[0] * 37 + i[1]) * 33, Dtype::float32, {3, 11});
        Tensor one_z(static_cast<float*>(zt.data) + i[1] * 55, Dtype::float32, {5, 11});
        const Array one(Dtype::float32, {3, 5});
        pairwise(text, one_x, &one_z, one, {}, context);
        each_index({3, 5}, [&](const Shape& p) { EXPECT_EQ(out(i[0], i[1], p[0], p[1]), one(p[0], p[1])) << text; });
      });
    });
  }
}

TEST(CpuWays, SumsOutOfTheirRange) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> values{1e-25, 2e-25, -1e-25, 1e25, -2e25, 3e25, 1, 2, 3, kInf, 0, 1, kNan, 0, 1, 0, 0, 0};
  const Array x = filled(Dtype::float32, {6, 3}, values);
  const Array z = filled(Dtype::float32, {7, 3}, [&] {
    std::vector<double> more = values;
    more.insert(more.end(), {1e-25, 2e-25, 1e-25});
    return more;
  }());
  const Tensor zt = z;
  const Expected expected = expected_pairs(parse(kDistance), x, z, 1e-6);
  on_each_cpu_target([&](TestContext& context) {
    context.set_ways("few_points");
    const Array out(Dtype::float32, {6, 7});
    pairwise(kDistance, x, &zt, out, {}, context);
    expect_pairs(out, expected, kDistance);
    for (std::int64_t i : {0, 1, 2, 5}) EXPECT_EQ(out(i, i), 0) << "a duplicate";
  });
}

/// Sizes at which another choice, or another order of OpenBLAS, would show.
TEST(CpuWays, LayoutsChangeNoBit) {
  for (const Dtype dtype : kWide)
    for (const char* text : {"sum(x*z)", kDistance, kCosine, "sum(abs(x-z))", "max(abs(x-z))"})
      for (auto [m, n, k] : {std::array{86, 23, 69}, {212, 27, 50}, {34, 462, 66}, {126, 120, 5}, {9, 90, 23}}) {
        const Array x = normal(dtype, {m, k}, 1), z = normal(dtype, {n, k}, 2);
        const Tensor zt = z;
        const Array columns_of_x = copy(x, dtype, column_major({m, k})), twice = copy(x, dtype, Shape{2 * k + 1, 2});
        on_each_cpu_target([&](TestContext& context) {
          for (const char* way : {"", "gemm,few_points", "packed_tile"}) {
            context.set_ways(way);
            const Array plain(dtype, {m, n}), turned(dtype, {m, n}, column_major({m, n}));
            pairwise(text, x, &zt, plain, {}, context);
            const auto expect_same = [&](const Array& out) {
              each_index({m, n}, [&](const Shape& p) { ASSERT_EQ(read(out, p), read(plain, p)) << text << way; });
            };
            pairwise(text, x, &zt, turned, {}, context);
            expect_same(turned);
            for (const Array* other : {&columns_of_x, &twice}) {
              const Array out(dtype, {m, n});
              pairwise(text, *other, &zt, out, {}, context);
              expect_same(out);
            }
          }
        });
      }
}

TEST(CpuWays, OneSetHasTheSameBitsOnBothSides) {
  for (const char* text : {kDistance, "sum(abs(x-z))", "max(abs(x-z))", "sum(x*z)",
                           "where(i == j, 0, exp(-sum((x-z)^2)/9))", "exp(-sum(abs(x-z)))*exp(-abs(j-i)/7)",
                           "where(j != i, sum(x*z), 2)", "sum(x*z)*sqrt(0.1*i + 0.7 + 0.1*j)"}) {
    const bool reads_one_index = std::string(text).find("0.1*i") != std::string::npos;
    const Array x = normal(Dtype::float32, {131, 9}, 1);
    on_each_cpu_target([&](TestContext& context) {
      for (const char* way : {"few_points", "packed_halves", "packed_tile", ""}) {
        if (std::string(text).find("abs(x-z)") != std::string::npos && std::string(way) == "packed_tile") continue;
        context.set_ways(way);
        if (reads_one_index && std::string(way) != "packed_halves" && *way != '\0') {
          const Array out(Dtype::float32, {131, 131});
          EXPECT_THROW(pairwise(text, x, nullptr, out, {}, context), Error) << text << way;
          continue;
        }
        const Array out(Dtype::float32, {131, 131});
        pairwise(text, x, nullptr, out, {}, context);
        each_index({131, 131}, [&](const Shape& p) { ASSERT_EQ(out(p[0], p[1]), out(p[1], p[0])) << text << way; });
      }
    });
  }
}

TEST(CpuWays, ProductsByStoredValues) {
  if (lapack() == nullptr) GTEST_SKIP() << "OpenBLAS is not installed";
  for (const Dtype dtype : kWide)
    for (auto [m, n, k, columns] :
         {std::array{1, 80, 30, 53}, {90, 1, 4, 20}, {13, 21, 3, 1}, {40, 33, 17, 7}, {3, 600, 5, 9}}) {
      const Array x = normal(dtype, {m, k}, 1), z = normal(dtype, {n, k}, 2), v = normal(dtype, {n, columns}, 3);
      Extra extra;
      extra.params["b"] = 1.5;
      const auto pairs = table(parse(kGauss), x, z, extra);
      const Tensor zt = z;
      on_each_cpu_target([&](TestContext& context) {
        context.set_ways("kernel_product:materialised");
        const Array out(dtype, {m, columns}, {columns + 3, 1});
        kernel_product(kGauss, x, &zt, v, out, arguments_of(extra), context);
        expect_product(out, pairs, v, kGauss);
      });
    }
}

/// Ties, NaN and infinities among them; both ways have the same neighbours in the same order.
TEST(CpuWays, NeighboursOfStoredValues) {
  for (const Dtype dtype : kWide)
    for (auto [m, n, k, wanted] :
         {std::array{3, 90, 40, 5}, {200, 8, 3, 8}, {7, 500, 2, 40}, {1, 1, 1, 1}, {2, 33, 5, 32}}) {
      constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
      Array x = uniform(dtype, {m, k}, 1), z = uniform(dtype, {n, k}, 2);
      for (std::int64_t p = 0; p < n; p += 3) z.set({p, 0}, p % 2 == 0 ? 0.5 : kNan);
      for (std::int64_t p = 1; p < n; p += 5)
        for (std::int64_t c = 0; c < k; ++c) z.set({p, c}, z(p / 2, c));
      const Tensor zt = z;
      const auto pairs = table(parse("sum((x-z)^2)"), x, z);
      on_each_cpu_target([&](TestContext& context) {
        Array values[2] = {Array(dtype, {m, wanted}), Array(dtype, {m, wanted})};
        Array indices[2] = {Array(Dtype::int64, {m, wanted}), Array(Dtype::int64, {m, wanted}, {wanted + 1, 1})};
        for (int way = 0; way < 2; ++way) {
          context.set_ways(way == 0 ? "knn:packed_tile,pairwise:packed_tile" : "knn:materialised,pairwise:packed_tile");
          knn("sum((x-z)^2)", x, &zt, wanted, values[way], indices[way], {}, context);
        }
        each_index({m, wanted}, [&](const Shape& i) {
          const auto at = static_cast<std::int64_t>(indices[1](i[0], i[1]));
          ASSERT_EQ(indices[0](i[0], i[1]), static_cast<double>(at)) << n;
          const double expected = pairs[i[0]][at], found = values[1](i[0], i[1]);
          const double bound = 8 * unit(dtype) * expected;
          ASSERT_TRUE(std::isnan(expected) ? std::isnan(found) : std::abs(found - expected) <= bound);
          if (i[1] == 0) return;
          const double before = values[1](i[0], i[1] - 1);
          const bool is_tie = before == found || (std::isnan(before) && std::isnan(found));
          ASSERT_TRUE(std::isnan(found) || before <= found);
          ASSERT_TRUE(!is_tie || indices[1](i[0], i[1] - 1) < static_cast<double>(at));
        });
      });
    }
}

/// An item of a batch may be one part: progress runs over all of them, and its last word counts, too.
TEST(CpuWays, StoredValuesOfABatchStopWhenAsked) {
  const Array x = uniform(Dtype::float32, {3, 16, 8}, 1), z = uniform(Dtype::float32, {3, 40, 8}, 2);
  const Array v = uniform(Dtype::float32, {3, 40, 2}, 3), out(Dtype::float32, {3, 16, 2});
  const Array values(Dtype::float32, {3, 16, 5}), indices(Dtype::int64, {3, 16, 5});
  const Tensor zt = z;
  for (const bool is_knn : {true, false})
    for (const double last : {1.0, 3.0}) {
      TestContext context(targets().front());
      context.set_ways("materialised");
      Arguments arguments;
      double before = 0;
      arguments.progress = [&](double done, double total) {
        EXPECT_EQ(total, 3);
        EXPECT_GT(done, before);
        before = done;
        return done < last;
      };
      const auto call = [&] {
        if (is_knn) knn("sum((x-z)^2)", x, &zt, 5, values, indices, arguments, context);
        else kernel_product("exp(-sum((x-z)^2))", x, &zt, v, out, arguments, context);
      };
      EXPECT_THROW(call(), Cancelled) << is_knn << ", " << last;
      EXPECT_EQ(before, last);
    }
}

TEST(CpuWays, PartsOfStoredValuesKnowTheirRows) {
  if (lapack() == nullptr) GTEST_SKIP() << "OpenBLAS is not installed";
  constexpr const char* kText = "(1 + row)*exp(-abs(i - j)/50)/(1 + sum(abs(x-z)))";
  const Array x = normal(Dtype::float32, {300, 1}, 1), z = normal(Dtype::float32, {8000, 1}, 2);
  const Array v = uniform(Dtype::float32, {8000, 2}, 3), row = uniform(Dtype::float32, {300}, 4);
  const Tensor zt = z;
  Arguments arguments;
  arguments.row = row.tensor();
  arguments.i_offset = 70;
  TestContext context(targets().front());
  Array by[2] = {Array(Dtype::float32, {300, 2}), Array(Dtype::float32, {300, 2})};
  for (int way = 0; way < 2; ++way) {
    context.set_ways(way == 0 ? "materialised" : "kernel_product:packed_tile");
    kernel_product(kText, x, &zt, v, by[way], arguments, context);
  }
  each_index({300, 2}, [&](const Shape& i) { ASSERT_NEAR(by[0](i[0], i[1]) / by[1](i[0], i[1]), 1, 4e-6); });
}

TEST(CpuWays, ThreadsChangeNoBit) {
  struct Call {
    const char *way, *text;
    std::int64_t m, n, k;
  };
  for (const Call& c : {Call{"few_points", kDistance, 30, 2000, 40}, {"few_points", kCosine, 4, 3000, 90},
                        {"gemm", "sum(x*z)", 1100, 60, 300}}) {
    if (std::string(c.way) == "gemm" && lapack() == nullptr) continue;
    const Array x = normal(Dtype::float32, {c.m, c.k}, 1), z = normal(Dtype::float32, {c.n, c.k}, 2);
    const Tensor zt = z;
    TestContext context(targets().front());
    context.set_ways(c.way);
    Array out[2] = {Array(Dtype::float32, {c.m, c.n}), Array(Dtype::float32, {c.m, c.n})};
    for (int turn = 0; turn < 2; ++turn) {
      context.set_threads(turn == 0 ? 1 : 3);
      pairwise(c.text, x, &zt, out[turn], {}, context);
    }
    EXPECT_TRUE(same_bits(out[0], out[1])) << c.way;
  }
}

TEST(CpuWays, OnesThatDoNotServeAreErrors) {
  TestContext context(targets().front());
  const Array x = normal(Dtype::float32, {5, 3}, 1), z = normal(Dtype::float32, {6, 3}, 2), out(Dtype::float32, {5, 6});
  const Tensor zt = z;
  for (const auto& [way, said] :
       {std::pair{"few_points", "few_points: the only reduction must be a sum"}, {"gemm", "gemm: the only reduction"},
        {"packed_halves", "packed_halves: the formula is not symmetric, or its points are two sets"}}) {
    context.set_ways(way);
    EXPECT_NE(message_of([&] { pairwise("sum(abs(x-z)^3)", x, &zt, out, {}, context); }).find(said), std::string::npos);
    EXPECT_TRUE(out.untouched());
  }
}

/// Stores of sums in place gain nothing in memory that is farther than a core's own cache.
TEST(CpuWays, LargeOutputsOfFewFeaturesArePacked) {
  for (const auto& [shape, dtype, taken] : {std::tuple{ExplainShape{707, 4419, 15}, Dtype::float32, "packed_tile"},
                                            {{3109, 1038, 3}, Dtype::float64, "packed_tile"},
                                            {{200, 300, 15}, Dtype::float32, "few_points"}}) {
    const std::string said = explain(Formula("sum(x*z)"), shape, dtype, "auto");
    EXPECT_NE(said.find(std::string("\n* ") + taken + ": "), std::string::npos) << said;
  }
}

TEST(CpuWays, ExplainHasAllOfThem) {
  for (const auto& [text, shape, taken] :
       {std::tuple{"sum(x*z)", ExplainShape{1, 109, 300}, "few_points"},
        {"sum(abs(x-z))", ExplainShape{4000, 4000, 200}, "packed_tile"}}) {
    const std::string said = explain(Formula(text), shape, Dtype::float32, "auto");
    for (const char* way : {"few_points", "gemm", "packed_halves", "packed_tile"})
      EXPECT_NE(said.find(std::string(" ") + way + ": "), std::string::npos) << said;
    EXPECT_NE(said.find(std::string("\n* ") + taken + ": "), std::string::npos) << said;
  }
}

/// A tile would pack all of v for a few points.
TEST(CpuWays, WideProductsOfFewPointsAreStored) {
  if (lapack() == nullptr) GTEST_SKIP() << "OpenBLAS is not installed";
  GpuCall call;
  call.verb = "kernel_product";
  call.columns = 145;
  const std::string said = explain(Formula("exp(-sum((x-z)^2))"), {6, 291, 5}, Dtype::float32, "auto", call);
  EXPECT_NE(said.find("\n* materialised: "), std::string::npos) << said;
}

TEST(CpuWays, FewNeighboursAreTakenFromStoredValues) {
  GpuCall call;
  call.verb = "knn";
  call.columns = 5;
  for (const auto& [shape, taken] :
       {std::pair{ExplainShape{2, 5000, 44}, "materialised"}, {{3000, 30, 2}, "materialised"}}) {
    const std::string said = explain(Formula("sum((x-z)^2)"), shape, Dtype::float32, "auto", call);
    EXPECT_NE(said.find(std::string("\n* ") + taken + ": "), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace mercer
