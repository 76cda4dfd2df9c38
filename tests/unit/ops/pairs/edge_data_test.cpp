// pairwise on hostile data: duplicates, near-duplicates, zeros, scales, NaN and Inf in single rows.
#include "ir/expr/program.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kDistances[] = {"sum(abs(x-z))",
                                      "sqrt(sum((x-z)^2))",
                                      "sum((x-z)^2)",
                                      "max(abs(x-z))",
                                      "sum(abs(x-z)^1.3)^(1/1.3)",
                                      "sum(abs(x-z)^p)^(1/p)",
                                      "sum(abs(x-z)^3)^(1/3)",
                                      "sum(x != z)",
                                      "sum(sqrt(abs(x-z)))",
                                      "sum(abs(x-z)/where(abs(x)+abs(z)==0, 1, abs(x)+abs(z)))",
                                      "sum(log1p(abs(x-z)))"};

Extra with_p(const Expr& f) {
  Extra extra;
  if (!parameters(f).empty()) extra.params["p"] = 1.7;
  return extra;
}

class EdgeData : public ::testing::TestWithParam<Dtype> {
 protected:
  /// Every distance on these points, by the contract. `terms_far_from_one`: so is every |x - z|, whatever the distance.
  void check_distances(const Array& x, const Array& z, bool far_from_one = false, bool terms_far_from_one = false) {
    for (const std::string text : kDistances) {
      const bool root = text.find(")^(1/") != std::string::npos;
      const bool general = root && text.find("^3)") == std::string::npos && (far_from_one || terms_far_from_one);
      check(text.c_str(), x, z, 1, far_from_one && root ? with_rounded_exponent(text) : "",
            general ? with_unit_power(text) : "");
    }
  }
  /// An exponent q rounds to float: s^q errs by q |log s| 2^-24 = |log f| 0.06e-6; the inner power by as much.
  static std::string with_rounded_exponent(const std::string& text) {
    return "f = " + text + "; where(f == 0, 0, f*(1 + 0.12*abs(log(f))))";
  }
  /// The special-function unit's d^p = 2^(p log2 d) errs, relative to itself, by 2^-22 of 2^( ); by 2^-22 of the
  /// logarithm, or absolutely where that is below 1; by 2^-24 of p log2 d for the product and for the exponent each:
  /// in 1e-6, 0.24 + 0.17 p + 0.36 |ln d^p|. The root divides the error of the sum by p.
  static std::string with_unit_power(const std::string& text) {
    const std::string p = text.find("1.3") != std::string::npos ? "1.3" : "p";
    return "f = " + text + "; u = abs(x-z)^" + p + "; e = sum(u*(0.24 + 0.17*" + p +
           ") + 0.36*abs(xlogy(u, u)))/sum(u); where(f == 0, 0, f*(1 + 0.12*abs(log(f)) + e/" + p + "))";
  }
  /// `unit_scale` serves where powers come from the special-function unit.
  void check(const char* text, const Array& x, const Array& z, double factor = 1, const std::string& scale = "",
             const std::string& unit_scale = "") {
    const Expr f = parse(text);
    const Extra extra = with_p(f);
    const auto expect = [&](const std::string& size) {
      return expected_pairs(f, x, z, factor * unit(GetParam()), size.empty() ? Expr() : parse(size), extra);
    };
    const Expected expected = expect(scale);
    const Tensor zt = z;
    on_each_target([&](TestContext& context) {
      const Array out(GetParam(), {x.shape()[0], z.shape()[0]});
      pairwise(f, x, &zt, out, arguments_of(extra), context);
      const bool by_unit = context.has_unit(GetParam()) && !unit_scale.empty();
      expect_pairs(out, by_unit ? expect(unit_scale) : expected, text);
    });
  }
};

TEST_P(EdgeData, DuplicatesAreExactlyZero) {
  Array x = normal(GetParam(), {21, 45}, 1), z = normal(GetParam(), {50, 45}, 2);
  for (int m = 0; m < 21; ++m)
    for (int k = 0; k < 45; ++k) z.set({(m * 7 + 3) % 50, k}, x(m, k));
  check_distances(x, z);  // the bound of 0 is 0
}

TEST_P(EdgeData, NearDuplicatesKeepTheirDigits) {
  // float32 features 1e-4 … 1e-6 of the norm apart: relative to the same rounded inputs.
  Array x = normal(GetParam(), {20, 300}, 1), z(GetParam(), {60, 300});
  std::mt19937 random(3);
  std::normal_distribution<double> noise;
  for (int n = 0; n < 60; ++n)
    for (int k = 0; k < 300; ++k) z.set({n, k}, x(n % 20, k) + noise(random) * std::pow(10.0, -4 - n / 20));
  check_distances(x, z, false, true);
}

TEST_P(EdgeData, ZerosOfBothSigns) {
  Array x = normal(GetParam(), {9, 17}, 1), z = normal(GetParam(), {35, 17}, 2);
  for (int k = 0; k < 17; ++k) {
    x.set({0, k}, 0);
    x.set({1, k}, -0.0);
    z.set({0, k}, -0.0);
    z.set({34, k}, 0);
    z.set({5, k}, k % 2 ? 0.0 : z(5, k));
  }
  check_distances(x, z);
}

TEST_P(EdgeData, LargeAndSmallScales) {
  // Squares and cubes of 1e-10 and 1e10 stay normal numbers of float32.
  for (double scale : {1e-10, 1e10}) {
    const Array x = normal(GetParam(), {9, 33}, 1, scale), z = normal(GetParam(), {50, 33}, 2, scale);
    check_distances(x, z, true);
  }
  // Rows of different scales next to each other.
  Array x = normal(GetParam(), {9, 33}, 3), z = normal(GetParam(), {50, 33}, 4);
  for (int n = 0; n < 50; n += 3)
    for (int k = 0; k < 33; ++k) z.set({n, k}, z(n, k) * std::pow(10.0, n % 20 - 10));
  check_distances(x, z, true);
}

TEST_P(EdgeData, NeighbouringTilesOfNarrowAndOfOtherData) {
  // Columns at the edges of ir::kNarrow, and every 30th beyond them; differences of neighbours at the least magnitude.
  constexpr double kLeast = ir::kNarrow.least, kMost = ir::kNarrow.most;
  Array x = normal(GetParam(), {9, 33}, 5), z = normal(GetParam(), {100, 33}, 6);
  for (int k = 0; k < 33; ++k) {
    for (int n = 0; n < 100; n += 3) z.set({n, k}, k % 2 ? kMost : -kLeast * (1 + std::ldexp(n, -23)));
    for (int n = 1; n < 100; n += 30) z.set({n, k}, k % 2 ? 2 * kMost : kLeast / 2);
    x.set({2, k}, k % 2 ? -kMost : -kLeast);
    x.set({3, k}, k % 3 ? 0.0 : kLeast);
  }
  check_distances(x, z, true, true);
}

/// Panels of narrow data may be scaled: whatever reads them together with other panels sees the same values.
TEST(NarrowData, EveryVerbWithOtherData) {
  constexpr std::int64_t kRows = 90, kColumns = 130, kFeatures = 33;
  Array x = normal(Dtype::float32, {kRows, kFeatures}, 7), z = normal(Dtype::float32, {kColumns, kFeatures}, 8);
  for (std::int64_t m : {20, 21, 60}) x.set({m, 5}, 1e-9);
  for (std::int64_t n : {0, 50, 129}) z.set({n, 7}, 300);
  const Array v = normal(Dtype::float32, {kColumns, 2}, 9), b = filled(Dtype::float64, {2}, {20, 50});
  const Tensor zt = z;
  const char* f = "exp(-sum(abs(x-z)^1.3)/b)";
  on_each_target([&](TestContext& context) {
    Arguments arguments;
    arguments.params["b"] = 50.0;
    const Array values(Dtype::float32, {kRows, kColumns}), batch(Dtype::float32, {2, kRows, kColumns});
    pairwise(f, x, &zt, values, arguments, context);
    const Array product(Dtype::float32, {kRows, 2}), largest(Dtype::float32, {kRows});
    kernel_product(f, x, &zt, v, product, arguments, context);
    kernel_reduce(f, x, &zt, ReduceKind::max, largest, arguments, context);
    const Array symmetric(Dtype::float32, {kColumns, kColumns}), whole(Dtype::float32, {kColumns, kColumns});
    const Array copied = copy(z, Dtype::float32);
    const Tensor other = copied;
    pairwise(f, z, nullptr, symmetric, arguments, context);
    pairwise(f, z, &other, whole, arguments, context);
    arguments.params["b"] = b.tensor();
    pairwise(f, x, &zt, batch, arguments, context);
    constexpr double kTolerance = 2e-6;  // of kernel values: twice the contract's
    for (std::int64_t m = 0; m < kRows; ++m) {
      double most = 0, sums[2] = {}, sizes[2] = {};
      for (std::int64_t n = 0; n < kColumns; ++n) {
        ASSERT_NEAR(read(batch, {1, m, n}), values(m, n), kTolerance * values(m, n)) << m << "," << n;
        most = std::max(most, values(m, n));
        for (int e = 0; e < 2; ++e) {
          sums[e] += values(m, n) * v(n, e);
          sizes[e] += values(m, n) * std::abs(v(n, e));
        }
      }
      ASSERT_NEAR(largest(m), most, kTolerance * most) << m;
      for (int e = 0; e < 2; ++e) ASSERT_NEAR(product(m, e), sums[e], kTolerance * sizes[e]) << m;
    }
    each_index({kColumns, kColumns}, [&](const Shape& i) {
      ASSERT_NEAR(read(symmetric, i), read(whole, i), kTolerance * read(whole, i)) << i[0] << "," << i[1];
    });
  });
}

TEST_P(EdgeData, BeyondModerateTakesTheGeneralVariant) {
  for (double scale : {1e-30, 1e25}) {
    const Array x = normal(GetParam(), {9, 33}, 1, scale), z = normal(GetParam(), {50, 33}, 2, scale);
    for (const char* text : {"sum(abs(x-z))", "max(abs(x-z))", "sum(sqrt(abs(x-z)))", "sum(x != z)"}) check(text, x, z);
    const std::string power = "sum(abs(x-z)^1.3)^(1/1.3)";
    // 1e-30^1.3 is a subnormal of float32: each term errs by 2^-149, their sum by 33 of them, 1.3e-4 of 1e-39.
    // The special-function unit gives 0 in place of subnormals: a term loses 2^-126 at most.
    const std::string flushed = "s = sum(abs(x-z)^1.3); f = s^(1/1.3); "
                                "1e6*(f - max(s - K*1.1755e-38, 0)^(1/1.3)) + 100*f";
    check(power.c_str(), x, z, 1, scale > 1 ? with_rounded_exponent(power) : power + "*100",
          scale > 1 ? with_unit_power(power) : flushed);
  }
}

TEST_P(EdgeData, OverflowGivesInfinity) {
  const double huge = GetParam() == Dtype::float64 ? 1e300 : 1e30;
  const Array x = normal(GetParam(), {9, 12}, 1, huge), z = normal(GetParam(), {50, 12}, 2);
  for (const char* text : {"sum((x-z)^2)", "sum(abs(x-z)^3)"}) check(text, x, z);
  check("exp(-sum((x-z)^2))", x, z);
}

TEST_P(EdgeData, NanAndInfinityStayInTheirPairs) {
  Array x = normal(GetParam(), {23, 40}, 1), z = normal(GetParam(), {103, 40}, 2);
  x.set({3, 7}, kNan);
  x.set({9, 0}, kInf);
  x.set({10, 39}, -kInf);
  z.set({0, 0}, kNan);
  z.set({47, 3}, kInf);
  z.set({48, 0}, kInf);
  z.set({102, 39}, -kInf);
  check_distances(x, z);
  const char* dot_scale = "sqrt(sum(where(abs(x) < 1e9, x*x, 0))*sum(where(abs(z) < 1e9, z*z, 0)))";
  check("sum(x*z)", x, z, 1, dot_scale);
  check("exp(-sum(abs(x-z))/9)", x, z, 1, "s = sum(abs(x-z))/9; where(s < 1e9, exp(-s)*(1+s), 0)");
  check("max(x-z)", x, z);
  check("min(x*z)", x, z);
  check("min(max(sum(x*z), -1), 1)", x, z, 1, "where(sum(x*z) < 1e9 && sum(x*z) > -1e9, sqrt(sum(x*x)*sum(z*z)), 0)");
}

TEST_P(EdgeData, OtherPairsAreUntouchedByNan) {
  // The fast and the general variant may differ in their last bits, but not beyond the contract; with explicit data
  // in the same panel as a NaN, values of the other pairs stay within the bounds of the same oracle.
  const Array x = normal(GetParam(), {30, 65}, 1), z = normal(GetParam(), {60, 65}, 2);
  Array spoiled = z;
  for (int k = 0; k < 65; ++k) spoiled.set({31, k}, kNan);
  check("sqrt(sum((x-z)^2))", x, spoiled);
  check("max(abs(x-z))", x, spoiled);
  on_each_target([&](TestContext& context) {
    const Array clean(GetParam(), {30, 60}), dirty(GetParam(), {30, 60});
    const Tensor zt = z, st = spoiled;
    pairwise("sum(abs(x-z))", x, &zt, clean, {}, context);
    pairwise("sum(abs(x-z))", x, &st, dirty, {}, context);
    for (int m = 0; m < 30; ++m)
      for (int n = 0; n < 60; ++n) {
        if (n == 31)
          EXPECT_TRUE(std::isnan(dirty(m, n)));
        else
          ASSERT_NEAR(dirty(m, n), clean(m, n), unit(GetParam()) * clean(m, n));
      }
  });
}

/// NaN and Inf from what is not packed: weights, values per point and parameters.
TEST_P(EdgeData, NanAndInfinityInOtherInputs) {
  const Array x = normal(GetParam(), {11, 20}, 1), z = normal(GetParam(), {52, 20}, 2);
  const Tensor zt = z;
  for (double odd : {kNan, kInf, -kInf, 0.0, 1e-42, 1e38}) {
    Extra extra;
    extra.w.assign(20, 0.5);
    extra.w[7] = odd;
    extra.row.assign(11, 0.25);
    extra.row[4] = odd;
    extra.col.assign(52, 2.0);
    extra.col[33] = odd;
    extra.params["c"] = odd;
    if (GetParam() == Dtype::float32)
      for (auto* list : {&extra.w, &extra.row, &extra.col})
        for (double& value : *list) value = static_cast<float>(value);
    const Array w = filled(GetParam(), {20}, extra.w), row = filled(GetParam(), {11}, extra.row),
                col = filled(GetParam(), {52}, extra.col);
    for (const char* text :
         {"max(w*abs(x-z))", "max(max(abs(x-z), row))", "min(max(abs(x-z), col))", "max(max(abs(x-z) - c, 0))",
          "max(abs(x-z))/c", "max(max(w*x*z, c))", "min(where(x<c, x, z))"}) {
      const Expr f = parse(text);
      const std::string known(text);
      Arguments arguments;
      if (known.find("w*") != std::string::npos) arguments.w = w;
      if (known.find("row") != std::string::npos) arguments.row = row;
      if (known.find("col") != std::string::npos) arguments.col = col;
      if (!parameters(f).empty()) arguments.params["c"] = odd;
      Expected expected = expected_pairs(f, x, z, unit(GetParam()), {}, extra);
      // Subtracting c rounds relative to c.
      if (known.find("- c") != std::string::npos && std::isfinite(odd))
        for (double& bound : expected.bounds) bound += unit(GetParam()) * (8 + std::abs(odd));
      if (GetParam() == Dtype::float32 && known.find("/c") != std::string::npos && odd == 1e-42) {
        // 1e-42 is a subnormal of float32, known to 2^-150/1e-42; its quotients overflow.
        for (std::size_t i = 0; i < expected.values.size(); ++i) expected.values[i] = kInf;
      }
      on_each_target([&](TestContext& context) {
        const Array out(GetParam(), {11, 52});
        pairwise(f, x, &zt, out, arguments, context);
        expect_pairs(out, expected, known + " with " + std::to_string(odd));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EdgeData, ::testing::Values(Dtype::float32, Dtype::float64),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace mercer
