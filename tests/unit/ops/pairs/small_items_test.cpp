// Batches of small items, which one call of a kernel takes many of: each item has the bits that it has alone.
#include <cmath>
#include <limits>

#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kTexts[] = {"sum(x*z)",      "sum((x-z)^2)",  "sqrt(sum((x-z)^2))",
                                  "sum(abs(x-z))", "max(abs(x-z))", "exp(-sum((x-z)^2)/K)"};

struct Sizes {
  std::int64_t items, m, n, k;
};
// clang-format off
constexpr Sizes kSizes[] = {{2, 1, 1, 40}, {9, 1, 1, 11}, {37, 1, 1, 1}, {16, 1, 1, 32}, {300, 1, 1, 3}, {70, 2, 3, 5},
                            {17, 7, 7, 31}, {33, 5, 1, 17}, {19, 1, 6, 16}, {21, 4, 9, 4}, {8, 20, 17, 6},
                            {40, 3, 2, 33}, {7, 6, 7, 300}, {5, 30, 33, 64}, {11, 16, 16, 7}};
// clang-format on

/// Items in a batch of axes `batch`, against calls of `pairwise` for each.
void expect_items(const char* text, const Tensor& x, const Tensor& z, const Tensor& out, const Shape& batch,
                  TestContext& context) {
  context.set_ways("few_points");
  pairwise(text, x, &z, out, {}, context);
  const Shape square{out.shape[out.ndim() - 2], out.shape.back()};
  each_index(batch, [&](const Shape& i) {
    const auto own = [&](const Tensor& t) {
      Tensor wide = t;  // an axis of 1 is broadcast
      for (std::size_t axis = 0; axis < batch.size(); ++axis)
        if (t.shape[axis] == 1) wide.strides[axis] = 0;
      return item(wide, i);
    };
    const Tensor one_z = own(z), part = item(out, i);
    const Array one(out.dtype, square);
    pairwise(text, own(x), &one_z, one, {}, context);
    each_index(square, [&](const Shape& p) {
      const double found = read(part, p), expected = read(one, p);
      ASSERT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
          << text << " of " << x.to_text() << ": " << found << " for " << expected;
    });
  });
}

TEST(SmallItems, HaveTheBitsOfCallsAlone) {
  for (const Dtype dtype : kWide)
    for (const char* text : kTexts)
      for (const Sizes& s : kSizes) {
        const Array x = normal(dtype, {s.items, s.m, s.k}, 1), z = normal(dtype, {s.items, s.n, s.k}, 2);
        on_each_cpu_target([&](TestContext& context) {
          expect_items(text, x, z, Array(dtype, {s.items, s.m, s.n}), {s.items}, context);
        });
      }
}

TEST(SmallItems, InAnyLayout) {
  for (const char* text : {"sum(x*z)", "sqrt(sum((x-z)^2))"})
    for (const std::int64_t k : {5, 40}) {
      const Array x = normal(Dtype::float32, {3, 23, 4, k}, 1), z = normal(Dtype::float32, {3, 23, 5, k}, 2);
      const Array of_all = normal(Dtype::float32, {1, 23, 5, k}, 3), one = normal(Dtype::float32, {1, 1, 4, k}, 4);
      const Array padded = copy(x, Dtype::float32, {23 * 4 * (k + 3), 4 * (k + 3), k + 3, 1});
      const Array turned = copy(z, Dtype::float32, {5 * k, 3 * 5 * k, k, 1});
      const Array backwards = copy(x, Dtype::float32, {-23 * 4 * k, -4 * k, -k, 1});
      const Array by_features = copy(x, Dtype::float32, {23 * 4 * k, 4 * k, 1, 4});
      const Array half = copy(x, Dtype::float16), half_z = copy(z, Dtype::float16);
      const Shape whole{3, 23, 4, 5}, batch{3, 23};
      on_each_cpu_target([&](TestContext& context) {
        for (const Array* points : {&x, &padded, &backwards, &by_features, &one})
          for (const Array* others : {&z, &turned, &of_all})
            if (points != &one || others != &of_all)  // neither of which has the whole batch
              expect_items(text, *points, *others, Array(Dtype::float32, whole), batch, context);
        expect_items(text, half, half_z, Array(Dtype::float32, whole), batch, context);
        for (const Shape& strides : {Shape{460, 20, 1, 4}, {23 * 28, 28, 7, 1}, {20, 60, 5, 1}, {-460, -20, -5, -1}})
          expect_items(text, x, z, Array(Dtype::float32, whole, strides), batch, context);
        expect_items(text, x, z, Array(Dtype::float16, whole), batch, context);
      });
    }
}

/// Some items have duplicates, infinities, or sums that leave the range of float32, next to others that do not.
TEST(SmallItems, WithSumsOutOfTheirRange) {
  for (const std::int64_t k : {3, 50}) {
    Array x = normal(Dtype::float32, {90, 2, k}, 1), z = normal(Dtype::float32, {90, 3, k}, 2);
    const auto set = [&](std::int64_t item, double scale) {
      for (std::int64_t c = 0; c < k; ++c) {
        for (std::int64_t p = 0; p < 2; ++p) x.set({item, p, c}, scale * x(item, p, c));
        for (std::int64_t p = 0; p < 3; ++p) z.set({item, p, c}, scale * z(item, p, c));
      }
    };
    set(0, 1e-25), set(17, 1e25), set(50, 1e-30), set(89, 1e22);
    x.set({30, 1, 2}, kInf), z.set({31, 0, 1}, kNan);
    for (std::int64_t c = 0; c < k; ++c) z.set({40, 2, c}, x(40, 1, c));
    on_each_cpu_target([&](TestContext& context) {
      const Array out(Dtype::float32, {90, 2, 3});
      expect_items("sqrt(sum((x-z)^2))", x, z, out, {90}, context);
      EXPECT_EQ(out(40, 1, 2), 0) << "a duplicate";
      EXPECT_GT(out(0, 0, 0), 0);
      EXPECT_TRUE(std::isfinite(out(17, 0, 0)));
    });
  }
}

TEST(SmallItems, OnSeveralThreads) {
  const Array x = normal(Dtype::float32, {5000, 3, 29}, 1), z = normal(Dtype::float32, {5000, 4, 29}, 2);
  const Tensor zt = z;
  TestContext context(targets().front());
  Array out[2] = {Array(Dtype::float32, {5000, 3, 4}), Array(Dtype::float32, {5000, 3, 4})};
  for (int turn = 0; turn < 2; ++turn) {
    context.set_threads(turn == 0 ? 1 : 3);
    pairwise("sqrt(sum((x-z)^2))", x, &zt, out[turn], {}, context);
  }
  EXPECT_TRUE(same_bits(out[0], out[1]));
}

TEST(SmallItems, MatchTheOracle) {
  for (const std::int64_t k : {7, 45}) {
    const Array x = normal(Dtype::float32, {29, 3, k}, 1), z = normal(Dtype::float32, {29, 2, k}, 2);
    const Tensor zt = z;
    on_each_cpu_target([&](TestContext& context) {
      const Array out(Dtype::float32, {29, 3, 2});
      pairwise("sqrt(sum((x-z)^2))", x, &zt, out, {}, context);
      for (std::int64_t i = 0; i < 29; ++i) {
        const Tensor one = item(x, {i}), other = item(z, {i});
        Reference expected(parse("sqrt(sum((x-z)^2))"), one, other);
        each_index({3, 2}, [&](const Shape& p) {
          const double value = expected(p[0], p[1]);
          ASSERT_NEAR(out(i, p[0], p[1]), value, 1e-6 * value);
        });
      }
    });
  }
}

}  // namespace
}  // namespace mercer
