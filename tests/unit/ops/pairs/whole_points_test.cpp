// Points of int8, computed in float32, and of int32, computed in float64: of every verb what the points have in the
// computing type, and values that float32 does not have.
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

struct WholeRow {
  Dtype dtype;
  double least, most;
};
constexpr WholeRow kWhole[] = {{Dtype::int8, -128, 127}, {Dtype::uint8, 0, 255}, {Dtype::int32, -90, 90}};

/// Every verb's results on these points, and on the same ones of the computing type.
template <class Check>
void with_every_verb(const Tensor& x, const Tensor& z, TestContext& context, const Check& check) {
  const Dtype type = compute_type(x.dtype);
  const std::int64_t m = x.shape[0], n = z.shape[0], k = x.shape[1];
  const Array v = normal(type, {n, 2}, 3), coef = normal(type, {2, n}, 4), plane = normal(type, {m, n}, 5);
  const Array pairs(type, {m, n}), product(type, {m, 2}), most(type, {m}), nearest(type, {m, 3});
  const Array which(Dtype::int64, {m, 3}), gradient(type, {2, m, k}), agop(type, {k, k}), field(type, {2, m, k});
  const char* const f = "exp(-sum(abs(x-z))/900)";
  pairwise(f, x, &z, pairs, {}, context);
  check("pairwise", pairs);
  pairwise("sqrt(sum((x-z)^2))", x, &z, pairs, {}, context);
  check("distances", pairs);
  kernel_product(f, x, &z, v, product, {}, context);
  check("kernel_product", product);
  kernel_reduce("sum(x*z)", x, &z, ReduceKind::max, most, {}, context);
  check("kernel_reduce", most);
  knn("sum(abs(x-z))", x, &z, 3, nearest, which, {}, context);
  check("knn", nearest);
  check("indices", which);
  kernel_gradient("exp(-sum((x-z)^2)/90000)", x, &z, coef, gradient, {}, context);
  check("kernel_gradient", gradient);
  kernel_agop("exp(-sum((x-z)^2)/90000)", x, &z, coef, agop, {}, context);
  check("kernel_agop", agop);
  gradient_field(parse("x*z"), x, z, plane, coef, field, {}, context);
  check("gradient_field", field);
}

TEST(WholePoints, AreTheirValuesInEveryVerb) {
  for (const WholeRow& row : kWhole)
    for (const std::int64_t k : {3, 40}) {
      const Array x = uniform(row.dtype, {9, k}, 1, row.least, row.most);
      const Array z = uniform(row.dtype, {70, k}, 2, row.least, row.most, column_major({70, k}));
      const Dtype type = compute_type(row.dtype);
      const Array same_x = copy(x, type), same_z = copy(z, type);
      on_each_target([&](TestContext& context) {
        std::vector<std::pair<const char*, Array>> expected;
        with_every_verb(same_x, same_z, context,
                        [&](const char* what, const Array& result) { expected.emplace_back(what, result); });
        std::size_t next = 0;
        with_every_verb(x, z, context, [&](const char* what, const Array& result) {
          const Array& other = expected[next++].second;
          double largest = 0;
          each_index(result.shape(), [&](const Shape& at) { largest = std::max(largest, std::abs(read(other, at))); });
          // Plans may sum in another order; values of |x| <= 255 and at most 70 points are far from cancelling.
          each_index(result.shape(), [&](const Shape& at) {
            EXPECT_NEAR(read(result, at), read(other, at), 4 * unit(row.dtype) * largest) << name_of(row.dtype) << what;
          });
        });
      });
    }
}

TEST(WholePoints, OfInt32AreNotRounded) {
  constexpr double kFar = 2147483647;
  const Array x = filled(Dtype::int32, {3, 2}, {kFar, -kFar - 1, kFar - 1, 16777217, 5, -7});
  const Array z = filled(Dtype::int32, {2, 2}, {kFar - 1, -kFar, 16777216, 0});
  const Tensor zt = z;
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float64, {3, 2}), nearest(Dtype::float64, {3, 1}), which(Dtype::int64, {3, 1});
    pairwise("sum(abs(x-z))", x, &zt, out, {}, context);
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t j = 0; j < 2; ++j)
        EXPECT_EQ(out(i, j), std::abs(x(i, 0) - z(j, 0)) + std::abs(x(i, 1) - z(j, 1)));
    EXPECT_EQ(out(0, 0), 2);
    knn("sum(abs(x-z))", x, &zt, 1, nearest, which, {}, context);
    EXPECT_EQ(nearest(0, 0), 2);
  });
}

TEST(WholePoints, SidesOfInt32NeedFloat64) {
  if (!is_wanted("cpu")) return;
  TestContext context(Target::interpreter);
  const Array w = filled(Dtype::int32, {2}, {16777217, 3});
  Arguments arguments;
  arguments.w = w.tensor();
  const Array x = uniform(Dtype::int32, {3, 2}, 1, 1, 9), out(Dtype::float64, {3, 3});
  pairwise("sum(w*x*z)", x, nullptr, out, arguments, context);
  EXPECT_EQ(out(0, 1), 16777217 * x(0, 0) * x(1, 0) + 3 * x(0, 1) * x(1, 1));
  const Array narrow = copy(x, Dtype::float32), untouched(Dtype::float32, {3, 3});
  const auto message = [&](const char* f) -> std::string {
    try {
      pairwise(f, narrow, nullptr, untouched, arguments, context);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message("sum(w*x*z)"),
            "pairwise: w may be int32 where x is float64 or int32: float32 has not all of its values. Received int32.");
  arguments.w.reset();
  arguments.row = filled(Dtype::int32, {3}, {1, 2, 3}).tensor();
  EXPECT_NE(message("sum(x*z)*row").find("row may be int32"), std::string::npos);
  EXPECT_TRUE(untouched.untouched());
}

}  // namespace
}  // namespace mercer
