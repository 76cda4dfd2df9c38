// One set of points on both sides: half of the pairs computed, mirrored bitwise; and where that must not happen.
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kFormulas[] = {"sum(abs(x-z))", "exp(-sum((x-z)^2)/9)", "sum(x*z)", "sum(abs(x-z)^1.3)^(1/1.3)",
                                     "nx = sqrt(sum(x*x)); nz = sqrt(sum(z*z)); sum(square(x/nx - z/nz))/2"};

bool bitwise_symmetric(const Array& out) {
  for (std::int64_t m = 0; m < out.shape()[0]; ++m)
    for (std::int64_t n = 0; n < m; ++n) {
      const double a = out(m, n), b = out(n, m);
      if (std::memcmp(&a, &b, sizeof a) != 0) return false;
    }
  return true;
}

TEST(Symmetric, SamePointsByNullAndByAlias) {
  for (Dtype dtype : kWide)
    for (std::int64_t m : {1, 2, 47, 96, 97, 150, 211})
      for (const char* text : kFormulas) {
        const Formula f(text);
        ASSERT_TRUE(f.symmetric()) << text;
        const Array x = normal(dtype, {m, 11}, 1), twin = x;
        const Tensor xt = x, tt = twin;
        on_each_target([&](TestContext& context) {
          const Array half(dtype, {m, m}), alias(dtype, {m, m}), full(dtype, {m, m});
          pairwise(f, x, nullptr, half, {}, context);
          pairwise(f, x, &xt, alias, {}, context);
          pairwise(f, x, &tt, full, {}, context);
          EXPECT_TRUE(bitwise_symmetric(half)) << text << " of " << m;
          EXPECT_TRUE(same_bits(half, alias));
          const bool distance = std::string(text).find("exp") == std::string::npos && std::string(text) != "sum(x*z)";
          for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t j = 0; j < m; ++j) {
              // Both are within the contract: of a dot product (11 normal features) 1e-6 |x||z|.
              const double size = std::string(text) == "sum(x*z)" ? 40 : std::abs(full(i, j)) * 6;
              ASSERT_NEAR(half(i, j), full(i, j), 2 * unit(dtype) * size) << text;
              if (distance && i == j) ASSERT_EQ(half(i, i), 0) << text;
            }
        });
      }
}

TEST(Symmetric, OutputsOfEveryLayoutAndType) {
  const Array x = normal(Dtype::float32, {113, 11}, 1);
  on_each_target([&](TestContext& context) {
    const Array plain(Dtype::float32, {113, 113});
    pairwise("sum(abs(x-z))", x, nullptr, plain, {}, context);
    for (Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::bfloat16})
      for (const Shape& strides : {Shape{113, 1}, Shape{1, 113}, Shape{120, 1}, Shape{-113, -1}, Shape{3, 400}}) {
        const Array out(dtype, {113, 113}, strides), wanted = copy(plain, dtype, strides);
        pairwise("sum(abs(x-z))", x, nullptr, out, {}, context);
        EXPECT_TRUE(same_bits(out, wanted));
      }
  });
}

TEST(Symmetric, BatchesAndParameters) {
  const Array x = normal(Dtype::float32, {3, 70, 9}, 1), b = filled(Dtype::float32, {2, 1}, {2, 8});
  Arguments arguments;
  arguments.params["b"] = b.tensor();
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {2, 3, 70, 70});
    pairwise("exp(-sum(abs(x-z))/b)", x, nullptr, out, arguments, context);
    for (int p = 0; p < 2; ++p)
      for (int i = 0; i < 3; ++i) {
        const Tensor points = item(x, {i});
        const Extra extra{{{"b", b(p, 0)}}, {}, {}, {}, 0, 0};
        expect_pairs(item(out, {p, i}),
                     expected_pairs(parse("exp(-sum(abs(x-z))/b)"), points, points, 1e-6,
                                    parse("s = sum(abs(x-z))/b; exp(-s)*(1+s)"), extra),
                     "batch");
        EXPECT_TRUE(bitwise_symmetric(copy(item(out, {p, i}), Dtype::float32)));
      }
  });
}

TEST(Symmetric, NanAndInfinity) {
  Array x = normal(Dtype::float32, {130, 9}, 1);
  x.set({5, 5}, kNan);
  x.set({97, 0}, kInf);
  const Expected expected = expected_pairs(parse("sum(abs(x-z))"), x, x, 1e-6);
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {130, 130});
    pairwise("sum(abs(x-z))", x, nullptr, out, {}, context);
    expect_pairs(out, expected, "with NaN");
  });
}

TEST(Symmetric, NotForFormulasThatAreNot) {
  const Formula f("sum(max(x-z, 0)) + i");
  EXPECT_FALSE(f.symmetric());
  const Array x = normal(Dtype::float64, {60, 7}, 1);
  const Expected expected = expected_pairs(f.expression(), x, x, 1e-13);
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float64, {60, 60});
    pairwise(f, x, nullptr, out, {}, context);
    expect_pairs(out, expected, "one-sided");
  });
}

TEST(Symmetric, NotWhenOffsetsOrValuesDiffer) {
  const Array x = normal(Dtype::float64, {60, 7}, 1), row = normal(Dtype::float64, {60}, 2),
              col = normal(Dtype::float64, {60}, 3);
  const Formula diagonal("sum(abs(x-z)) + (i == j)*100"), values("sum(abs(x-z)) + abs(row) + abs(col)");
  ASSERT_TRUE(diagonal.symmetric());
  ASSERT_TRUE(values.symmetric());
  Extra offsets;
  offsets.i_offset = 3;
  Extra points;
  for (int m = 0; m < 60; ++m) {
    points.row.push_back(row(m));
    points.col.push_back(col(m));
  }
  Arguments with_values;
  with_values.row = row;
  with_values.col = col;
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float64, {60, 60});
    pairwise(diagonal, x, nullptr, out, arguments_of(offsets), context);
    expect_pairs(out, expected_pairs(diagonal.expression(), x, x, 1e-13, {}, offsets), "offsets");
    EXPECT_FALSE(bitwise_symmetric(out));
    pairwise(values, x, nullptr, out, with_values, context);
    expect_pairs(out, expected_pairs(values.expression(), x, x, 1e-13, {}, points), "row and col");
    Arguments same_values;
    same_values.row = row;
    same_values.col = row;
    pairwise(values, x, nullptr, out, same_values, context);
    EXPECT_TRUE(bitwise_symmetric(out));
    offsets.j_offset = 3;
    pairwise(diagonal, x, nullptr, out, arguments_of(offsets), context);
    EXPECT_TRUE(bitwise_symmetric(out));
    offsets.j_offset = 0;
  });
}

}  // namespace
}  // namespace mercer
