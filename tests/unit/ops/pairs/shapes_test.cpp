// pairwise on all shapes, strides and types: sizes around the tiles, many features, views, 16-bit and 8-bit values.
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kDistance = "sqrt(sum((x-z)^2))";

TEST(Shapes, SizesAroundTheTiles) {
  // Tiles have 1, 2, 4, 5, 6 or 8 rows and 4 to 128 columns (256 in the interpreter); blocks have 96 rows.
  for (Dtype dtype : kWide) {
    const Array x = normal(dtype, {193, 5}, 1), z = normal(dtype, {257, 5}, 2);
    const Expected all = expected_pairs(parse(kDistance), x, z, unit(dtype));
    on_each_target([&](TestContext& context) {
      for (std::int64_t m : {0, 1, 2, 5, 7, 8, 9, 95, 96, 97, 193})
        for (std::int64_t n : {0, 1, 15, 16, 17, 31, 47, 48, 49, 127, 128, 129, 256, 257}) {
          Tensor xt = x, zt = z;
          xt.shape[0] = m;
          zt.shape[0] = n;
          const Array out(dtype, {m, n});
          pairwise(kDistance, xt, &zt, out, {}, context);
          if (m == 0 || n == 0) ASSERT_TRUE(out.untouched());
          expect_pairs(out, all, kDistance);
        }
    });
  }
}

TEST(Shapes, FeaturesAroundTheChunks) {
  for (Dtype dtype : kWide)
    for (std::int64_t k : {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 769, 1024, 3000})
      for (const char* text :
           {"sum(abs(x-z))", "sqrt(sum((x-z)^2))", "max(abs(x-z))", "sum(x*z)", "sum(abs(x-z)^1.5)^(1/1.5)"}) {
        const Array x = normal(dtype, {3, k}, 1), z = normal(dtype, {50, k}, 2);
        const bool dot = std::string(text) == "sum(x*z)";
        // float64 is not promoted: rounding errors of K terms add up to K 2^-53 at most.
        const double factor = dtype == Dtype::float64 ? std::max(1.0, static_cast<double>(k) * 1.2e-3) : 1;
        const Expected expected =
            expected_pairs(parse(text), x, z, factor * unit(dtype), dot ? parse("sqrt(sum(x*x)*sum(z*z))") : Expr());
        const Tensor zt = z;
        on_each_target([&](TestContext& context) {
          const Array out(dtype, {3, 50});
          pairwise(text, x, &zt, out, {}, context);
          expect_pairs(out, expected, std::string(text) + " of " + std::to_string(k));
        });
      }
}

TEST(Shapes, ManyFeaturesOfOneSignAreWithinTheContract) {
  // Sequential float32 sums of equal terms drift most; K of several promotions.
  for (std::int64_t k : {257, 1000, 3000, 8193, 100000}) {
    const Array x = uniform(Dtype::float32, {6, k}, 1, 0.9, 1.1), z = uniform(Dtype::float32, {20, k}, 2, -1.1, -0.9);
    for (const char* text : {"sum(abs(x-z))", "sqrt(sum((x-z)^2))", "sum(abs(x-z)^3)^(1/3)", "sum(x*z)"}) {
      const Expected expected = expected_pairs(parse(text), x, z, 1e-6);
      const Tensor zt = z;
      on_each_target([&](TestContext& context) {
        const Array out(Dtype::float32, {6, 20});
        pairwise(text, x, &zt, out, {}, context);
        expect_pairs(out, expected, text);
      });
    }
  }
}

/// A sum of 256 such addends is off by 2.4e-7, and 390 such sums, one after the other, by 5.3e-6.
TEST(Shapes, TotalsOfEqualSums) {
  constexpr std::int64_t kFeatures = 100000;
  constexpr double kAddend = 1.0145416f;
  const Array x = Array(Dtype::float32, {5, kFeatures}).fill([] { return kAddend; });
  const Array z = Array(Dtype::float32, {40, kFeatures}).fill([] { return 0.0; });
  const Expected expected = expected_pairs(parse("sum(abs(x-z))"), x, z, 1e-6);
  const Tensor zt = z;
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {5, 40});
    pairwise("sum(abs(x-z))", x, &zt, out, {}, context);
    expect_pairs(out, expected, "equal addends");
  });
}

/// Strides for [rows, cols]: row-major, column-major, padded, negative, every second.
std::vector<Shape> layouts(std::int64_t rows, std::int64_t cols) {
  return {{cols, 1}, {1, rows}, {cols + 5, 1}, {-cols, 1}, {cols, -1}, {-1, -rows}, {2 * cols, 2}, {3, 3 * rows + 1}};
}

TEST(Shapes, StridesOfInputsAndOutputs) {
  constexpr std::int64_t kM = 29, kN = 53, kK = 18;
  for (Dtype dtype : kWide) {
    const Array x0 = normal(dtype, {kM, kK}, 1), z0 = normal(dtype, {kN, kK}, 2);
    // A formula that is not symmetric, so that a transposed result shows.
    const Expr f = parse("sum(max(x-z, 0)) + 2*sum(abs(x-z))");
    const Expected expected = expected_pairs(f, x0, z0, unit(dtype));
    on_each_target([&](TestContext& context) {
      for (std::size_t layout = 0; layout < layouts(1, 1).size(); ++layout)
        for (std::size_t other = 0; other < layouts(1, 1).size(); ++other) {
          const Array x = copy(x0, dtype, layouts(kM, kK)[layout]), z = copy(z0, dtype, layouts(kN, kK)[other]);
          const Array out(dtype, {kM, kN}, layouts(kM, kN)[(layout + other) % layouts(1, 1).size()]);
          const Tensor zt = z;
          pairwise(f, x, &zt, out, {}, context);
          expect_pairs(out, expected, "layouts " + std::to_string(layout) + " " + std::to_string(other));
        }
    });
  }
}

TEST(Shapes, NothingIsWrittenBetweenTheElements) {
  const Array x = normal(Dtype::float32, {21, 7}, 1), z = normal(Dtype::float32, {50, 7}, 2);
  const Tensor zt = z;
  on_each_target([&](TestContext& context) {
    for (const Shape& strides : layouts(21, 50)) {
      const Array out(Dtype::float32, {21, 50}, strides), fresh(Dtype::float32, {21, 50}, strides);
      pairwise(kDistance, x, &zt, out, {}, context);
      Array restored = out;  // its elements set back to those of a fresh array
      each_index(out.shape(), [&](const Shape& i) { restored.set(i, read(fresh, i)); });
      EXPECT_TRUE(restored.untouched());
    }
  });
}

TEST(Shapes, BroadcastInputs) {
  for (Dtype dtype : kWide) {
    const Array one = normal(dtype, {1, 12}, 1), z = normal(dtype, {40, 12}, 2), feature = normal(dtype, {9, 1}, 3);
    Tensor rows = one, columns = feature;
    rows.shape = {9, 12};
    rows.strides = {0, 1};
    columns.shape = {9, 12};
    columns.strides = {1, 0};
    const Tensor zt = z;
    for (const Tensor& x : {rows, columns}) {
      const Expected expected = expected_pairs(parse(kDistance), x, z, unit(dtype));
      on_each_target([&](TestContext& context) {
        const Array out(dtype, {9, 40});
        pairwise(kDistance, x, &zt, out, {}, context);
        expect_pairs(out, expected, kDistance);
      });
    }
  }
}

TEST(Shapes, NarrowInputs) {
  for (Dtype dtype : {Dtype::float16, Dtype::bfloat16, Dtype::uint8}) {
    const bool bytes = dtype == Dtype::uint8;
    const Array x = bytes ? uniform(dtype, {19, 37}, 1, 0, 255) : normal(dtype, {19, 37}, 1);
    Array z = bytes ? uniform(dtype, {50, 37}, 2, 0, 255) : normal(dtype, {50, 37}, 2, 1, column_major({50, 37}));
    if (!bytes) z.set({3, 3}, dtype == Dtype::float16 ? 3e-7 : 1e-39);  // subnormal
    for (const char* text :
         {"sum(abs(x-z))", "sqrt(sum((x-z)^2))", "sum(x*z)", "sqrt(sum(square(x/sqrt(1+sum(x*x)) - z)))"}) {
      const Expected expected = expected_pairs(
          parse(text), x, z, 1e-6, std::string(text) == "sum(x*z)" ? parse("sqrt(sum(x*x)*sum(z*z))") : Expr());
      const Tensor zt = z;
      on_each_target([&](TestContext& context) {
        const Array out(Dtype::float32, {19, 50});
        pairwise(text, x, &zt, out, {}, context);
        expect_pairs(out, expected, text);
      });
    }
  }
}

TEST(Shapes, NarrowOutputs) {
  const Array x = normal(Dtype::float32, {19, 37}, 1), z = normal(Dtype::float32, {50, 37}, 2);
  const Tensor zt = z;
  on_each_target([&](TestContext& context) {
    const Array wide(Dtype::float32, {19, 50});
    pairwise(kDistance, x, &zt, wide, {}, context);
    for (Dtype dtype : {Dtype::float16, Dtype::bfloat16})
      for (const Shape& strides : layouts(19, 50)) {
        const Array out(dtype, {19, 50}, strides), rounded = copy(wide, dtype, strides);
        pairwise(kDistance, x, &zt, out, {}, context);
        EXPECT_TRUE(same_bits(out, rounded));
      }
  });
}

TEST(Shapes, ColumnsOfOneWideArray) {
  // x, z and out as column blocks of one row-major array: no two share an element.
  Array all = normal(Dtype::float32, {24, 40}, 1);
  Tensor x = all, z = all, out = all;
  x.shape = {24, 8};
  z.shape = {20, 8};
  out.shape = {24, 20};
  z.data = static_cast<float*>(z.data) + 8;
  out.data = static_cast<float*>(out.data) + 16;
  const Expected expected = expected_pairs(parse(kDistance), x, z, 1e-6);
  on_each_target([&](TestContext& context) {
    pairwise(kDistance, x, &z, out, {}, context);
    expect_pairs(out, expected, kDistance);
  });
}

}  // namespace
}  // namespace mercer
