// Squared differences from digits of 8 bits, forced: by AMX where this machine has it, by plain loops over the same
// tiles on the other targets.
#include <cmath>

#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kSquares = "sum((x-z)^2)";
constexpr const char* kDistance = "sqrt(sum((x-z)^2))";
constexpr const char* kGauss = "exp(-sum((x-z)^2)/(b*K))";

/// On each target, with the way forced.
template <class Body>
void by_digits(const Body& body) {
  on_each_cpu_target([&](TestContext& context) {
    context.set_ways("amx_digits");
    body(context);
  });
}

void expect_distances(const Array& x, const Array& z, double tolerance, const char* what) {
  const Expected expected = expected_pairs(parse(kDistance), x, z, tolerance);
  const Tensor zt = z;
  by_digits([&](TestContext& context) {
    const Array out(Dtype::float32, {x.shape()[0], z.shape()[0]});
    pairwise(kDistance, x, &zt, out, {}, context);
    expect_pairs(out, expected, what);
  });
}

/// Whole blocks of 32 points and of 64 features, and parts of them. Numbers of both signs with a spread of 1 have
/// errors far below the contract's.
TEST(CpuDigits, SizesOfAllKinds) {
  for (auto [m, n, k] :
       {std::array{1, 1, 33}, {32, 96, 64}, {33, 97, 65}, {1, 200, 128}, {300, 5, 100}, {70, 70, 1000}}) {
    const Array x = normal(Dtype::float32, {m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
    expect_distances(x, z, 3e-7, "normal");
    const Expected squares = expected_pairs(parse(kSquares), x, z, 6e-7);
    const Tensor zt = z;
    by_digits([&](TestContext& context) {
      const Array out(Dtype::float32, {m, n});
      pairwise(kSquares, x, &zt, out, {}, context);
      expect_pairs(out, squares, kSquares);
    });
  }
}

/// Distances of whole numbers are those of exact integer sums.
TEST(CpuDigits, WholeNumbersAreExact) {
  const auto whole = [](Shape shape, unsigned seed) {
    std::mt19937 random(seed);
    return Array(Dtype::float32, std::move(shape)).fill([&] { return static_cast<double>(random() % 201) - 100; });
  };
  const Array x = whole({40, 100}, 1), z = whole({130, 100}, 2);
  const Tensor zt = z;
  const Expected expected = expected_pairs(parse(kSquares), x, z, 0);
  by_digits([&](TestContext& context) {
    const Array out(Dtype::float32, {40, 130});
    pairwise(kSquares, x, &zt, out, {}, context);
    each_index({40, 130}, [&](const Shape& p) {
      ASSERT_EQ(read(out, p), expected.values[p[0] * 130 + p[1]]) << p[0] << "," << p[1];
    });
  });
}

/// Duplicates, points that nearly agree, and clusters far from each other and from 0.
TEST(CpuDigits, PairsThatCancel) {
  constexpr std::int64_t kPoints = 100, kFeatures = 70;
  const Array x = normal(Dtype::float32, {kPoints, kFeatures}, 1);
  Array z = normal(Dtype::float32, {kPoints, kFeatures}, 2);
  for (std::int64_t p = 0; p < kPoints; ++p)
    for (std::int64_t f = 0; f < kFeatures; ++f) {
      const double moved = f == 0 ? std::ldexp(1.0, -static_cast<int>(p % 23)) : 0;
      if (p % 3 == 0) z.set({p, f}, x(p, f));
      if (p % 3 == 1) z.set({p, f}, x(p, f) + moved);
    }
  const Tensor zt = z;
  const Expected expected = expected_pairs(parse(kDistance), x, z, 1e-6);
  by_digits([&](TestContext& context) {
    const Array out(Dtype::float32, {kPoints, kPoints});
    pairwise(kDistance, x, &zt, out, {}, context);
    expect_pairs(out, expected, "near");
    for (std::int64_t p = 0; p < kPoints; p += 3) ASSERT_EQ(out(p, p), 0) << "a duplicate";
  });
  Array clusters = normal(Dtype::float32, {kPoints, kFeatures}, 3, 0.01);
  for (std::int64_t p = 0; p < kPoints; ++p)
    for (std::int64_t f = 0; f < kFeatures; ++f) clusters.set({p, f}, clusters(p, f) + 50 + p % 4);
  expect_distances(clusters, copy(clusters, Dtype::float32), 1e-6, "clusters");
}

/// Roundings of such points agree in sign, and so do the digits of products that are left out.
TEST(CpuDigits, FeaturesThatAreAllAlike) {
  const auto alike = [](std::int64_t points, unsigned seed) {
    const Array values = normal(Dtype::float32, {points, 1}, seed);
    Array x(Dtype::float32, {points, 130});
    each_index(x.shape(), [&](const Shape& at) { x.set(at, values(at[0], 0)); });
    return x;
  };
  const Array x = alike(60, 1), z = alike(100, 2);
  expect_distances(x, z, 1e-6, "alike");
  const Expected products = expected_pairs(parse("sum(x*z)"), x, z, 1e-6);
  const Tensor zt = z;
  by_digits([&](TestContext& context) {
    const Array out(Dtype::float32, {60, 100});
    pairwise("sum(x*z)", x, &zt, out, {}, context);
    expect_pairs(out, products, "products");
  });
}

/// Points with a few large features have their digits there, and lose the others': they are seen, as are values that
/// are not finite, and scales that squares of float32 do not hold.
TEST(CpuDigits, PointsThatDoNotSuitDigits) {
  const auto points = [](const auto& change) {
    Array x = normal(Dtype::float32, {67, 90}, 1);
    for (std::int64_t p = 0; p < 67; ++p)
      for (std::int64_t f = 0; f < 90; ++f) x.set({p, f}, change(p, f, x(p, f)));
    return x;
  };
  const Array z = normal(Dtype::float32, {50, 90}, 2);
  const auto expect = [&](const char* what, const auto& change) { expect_distances(points(change), z, 1e-6, what); };
  using Index = std::int64_t;
  expect("one large feature each", [](Index p, Index f, double v) { return f == p ? 3000 : v * 1e-3; });
  expect("one feature that is large in some", [](Index p, Index f, double v) { return f == 0 ? 1e4 * (p % 3) : v; });
  expect("zeros", [](Index, Index, double) { return 0.0; });
  expect("some zeros", [](Index p, Index f, double v) { return (p + f) % 3 == 0 ? v : 0; });
  expect("huge", [](Index p, Index, double v) { return p == 5 ? v * 1e25 : v; });
  expect("tiny", [](Index, Index, double v) { return v * 1e-30; });
  expect("infinite", [](Index p, Index f, double v) { return p == 66 && f == 89 ? kInf : v; });
  expect("a NaN", [](Index p, Index f, double v) { return p == 0 && f == 64 ? kNan : v; });
  for (const double scale : {1e-18, 1e-30, 1e14, 1e18, 1e30}) {
    Array x = normal(Dtype::float32, {40, 70}, 3), y = normal(Dtype::float32, {35, 70}, 4);
    for (Array* a : {&x, &y})
      each_index(a->shape(), [&](const Shape& at) { a->set(at, read(*a, at) * scale); });
    expect_distances(x, y, 1e-6, "scaled");
  }
}

/// Errors are relative to |x||z|: of points that suit digits, of some that do not, and of whole numbers, which are
/// exact.
TEST(CpuDigits, InnerProducts) {
  constexpr const char* kProduct = "sum(x*z)";
  const Expr scale = parse("sqrt(sum(x*x)*sum(z*z))");
  const auto expect = [&](const Array& x, const Array& z, double tolerance, const char* text, const Expr& size) {
    const std::int64_t m = x.shape()[0], n = z.shape()[0];
    const Expected expected = expected_pairs(parse(text), x, z, tolerance, size);
    const Tensor zt = z;
    by_digits([&](TestContext& context) {
      const Array out(Dtype::float32, {m, n});
      pairwise(text, x, &zt, out, {}, context);
      expect_pairs(out, expected, text);
    });
  };
  for (auto [m, n, k] : {std::array{1, 1, 33}, {33, 97, 65}, {64, 130, 256}, {7, 40, 3000}}) {
    const Array x = normal(Dtype::float32, {m, k}, 1), z = uniform(Dtype::float32, {n, k}, 2, -1, 3);
    expect(x, z, 3e-7, kProduct, scale);
    expect(x, z, 1e-6, "sum(x*z)/sqrt(sum(x*x)*sum(z*z))", parse("1 + 0*sum(x)*sum(z)"));
    expect(x, z, 1e-6, "2 - sum(x*z)", parse("2 + sqrt(sum(x*x)*sum(z*z))"));
  }
  Array x = normal(Dtype::float32, {70, 90}, 3), z = normal(Dtype::float32, {60, 90}, 4);
  for (std::int64_t f = 0; f < 90; ++f) {
    x.set({5, f}, f == 7 ? 1e6 : x(5, f));
    x.set({40, f}, 0);
    z.set({33, f}, f == 80 ? -1e6 : z(33, f));
  }
  expect(x, z, 1e-6, kProduct, scale);
  x.set({69, 89}, kInf);
  z.set({0, 3}, kNan);
  expect(x, z, 1e-6, kProduct, scale);
  std::mt19937 random(5);
  const auto whole = [&] { return static_cast<double>(random() % 255) - 127; };
  const Array a = Array(Dtype::float32, {34, 100}).fill(whole), b = Array(Dtype::float32, {50, 100}).fill(whole);
  expect(a, b, 0, kProduct, {});
}

TEST(CpuDigits, ResultsOfEpiloguesAndTypes) {
  for (const Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::bfloat16, Dtype::uint8}) {
    const bool is_byte = dtype == Dtype::uint8;
    const Array x = uniform(dtype, {45, 77}, 1, is_byte ? 0 : -1, is_byte ? 4 : 1);
    const Array z = uniform(dtype, {101, 77}, 2, is_byte ? 0 : -1, is_byte ? 4 : 1);
    const Array row = uniform(Dtype::float32, {45}, 3), col = uniform(Dtype::float32, {101}, 4);
    const Tensor zt = z;
    for (const char* text : {kGauss, "row*sqrt(sum((x-z)^2)) + col*j", "1/(1 + sum((x-z)^2))"}) {
      Extra extra;
      if (text == kGauss) extra.params["b"] = 0.8;
      Arguments arguments = arguments_of(extra);
      if (std::string(text).find("row") != std::string::npos) {
        for (std::int64_t i = 0; i < 45; ++i) extra.row.push_back(row(i));
        for (std::int64_t i = 0; i < 101; ++i) extra.col.push_back(col(i));
        arguments.row = row.tensor();
        arguments.col = col.tensor();
      }
      const Expr scale = text == kGauss ? parse("s = sum((x-z)^2)/(b*K); exp(-s)*(1+s)") : Expr();
      const Expected expected = expected_pairs(parse(text), x, z, 1e-6, scale, extra);
      by_digits([&](TestContext& context) {
        for (const Shape& strides : {Shape{101, 1}, Shape{1, 45}, Shape{110, 1}, Shape{-202, 2}}) {
          const Array out(Dtype::float32, {45, 101}, strides);
          pairwise(text, x, &zt, out, arguments, context);
          expect_pairs(out, expected, text);
        }
      });
    }
  }
}

TEST(CpuDigits, BatchesLayoutsAndEmptyCalls) {
  const Array x = normal(Dtype::float32, {2, 3, 41, 50}, 1), z = normal(Dtype::float32, {3, 99, 50}, 2);
  const Array turned = copy(x, Dtype::float32, {3 * 2050, 2050, 1, 41});
  const Array backwards = copy(z, Dtype::float32, {-99 * 120, 120, -2});
  const Tensor zt = z, bt = backwards;
  by_digits([&](TestContext& context) {
    const Array plain(Dtype::float32, {2, 3, 41, 99}), other(Dtype::float32, {2, 3, 41, 99}, {12177, 4059, 1, 41});
    const Array half(Dtype::float16, {2, 3, 41, 99});
    pairwise(kDistance, x, &zt, plain, {}, context);
    pairwise(kDistance, turned, &bt, other, {}, context);
    pairwise(kDistance, x, &zt, half, {}, context);
    each_index({2, 3}, [&](const Shape& i) {
      const Expected expected = expected_pairs(parse(kDistance), item(x, i), item(z, {i[1]}), 1e-6);
      expect_pairs(item(plain, i), expected, kDistance);
      each_index({41, 99}, [&](const Shape& p) {
        ASSERT_EQ(plain(i[0], i[1], p[0], p[1]), other(i[0], i[1], p[0], p[1]));
        ASSERT_NEAR(half(i[0], i[1], p[0], p[1]), plain(i[0], i[1], p[0], p[1]), 0.01);
      });
    });
    for (const auto& [m, n] : {std::pair{0, 3}, {3, 0}}) {
      const Array none(Dtype::float32, {m, 40}), points(Dtype::float32, {n, 40}), out(Dtype::float32, {m, n});
      const Tensor pt = points;
      pairwise(kDistance, none, &pt, out, {}, context);
    }
  });
}

TEST(CpuDigits, OneSetAndThreads) {
  const Array x = normal(Dtype::float32, {650, 90}, 1);
  by_digits([&](TestContext& context) {
    for (const char* text : {kDistance, "sum(x*z)"}) {
      Array out[2] = {Array(Dtype::float32, {650, 650}), Array(Dtype::float32, {650, 650})};
      for (int turn = 0; turn < 2; ++turn) {
        context.set_threads(turn == 0 ? 1 : 3);
        pairwise(text, x, nullptr, out[turn], {}, context);
      }
      EXPECT_TRUE(same_bits(out[0], out[1]));
      each_index({650, 650}, [&](const Shape& p) { ASSERT_EQ(out[0](p[0], p[1]), out[0](p[1], p[0])) << text; });
      for (std::int64_t i = 0; i < 650 && text == kDistance; ++i) ASSERT_EQ(out[0](i, i), 0);
    }
  });
}

/// A call with its sides in turn, and an output by columns, have the same bits.
TEST(CpuDigits, SidesInTurn) {
  const Array x = normal(Dtype::float32, {37, 70}, 1), z = normal(Dtype::float32, {150, 70}, 2, 3);
  const Tensor xt = x, zt = z;
  by_digits([&](TestContext& context) {
    const Array plain(Dtype::float32, {37, 150}), turned(Dtype::float32, {150, 37}),
        columns(Dtype::float32, {37, 150}, {1, 37});
    pairwise(kDistance, x, &zt, plain, {}, context);
    pairwise(kDistance, z, &xt, turned, {}, context);
    pairwise(kDistance, x, &zt, columns, {}, context);
    each_index({37, 150}, [&](const Shape& p) {
      ASSERT_EQ(plain(p[0], p[1]), turned(p[1], p[0]));
      ASSERT_EQ(plain(p[0], p[1]), columns(p[0], p[1]));
    });
  });
}

TEST(CpuDigits, WhatTheyRefuse) {
  TestContext context(targets().front());
  context.set_ways("amx_digits");
  const auto said = [&](const char* text, Dtype dtype, std::int64_t k) {
    const Array x = normal(dtype, {2, k}, 1), z = normal(dtype, {3, k}, 2), out(dtype, {2, 3});
    const Tensor zt = z;
    const std::string message = message_of([&] { pairwise(text, x, &zt, out, {}, context); });
    EXPECT_TRUE(out.untouched()) << text;
    return message;
  };
  const auto expect = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(said("sum(abs(x-z))", Dtype::float32, 40), "amx_digits: the only reduction must be a sum of x z or (x - z)^2");
  expect(said(kSquares, Dtype::float64, 40), "amx_digits: points must be float32 or narrower");
  expect(said(kSquares, Dtype::float32, 32), "amx_digits: few features are added up in their order");
  expect(said(kSquares, Dtype::float32, 32769), "amx_digits: sums of more than 32768 features");
}

/// The variable is read by each call.
TEST(CpuDigits, TheVariableSwitchesAmxOff) {
  const auto text = [] {
    return explain("sqrt(sum((x-z)^2))", ExplainShape{4096, 4096, 256}, Dtype::float32, Target::x86_avx512);
  };
  ::setenv("MERCER_AMX", "off", 1);
  EXPECT_NE(text().find("amx_digits: refused, the processor has no AMX"), std::string::npos);
  ::setenv("MERCER_AMX", "perhaps", 1);
  EXPECT_NE(message_of(text).find("MERCER_AMX must be auto or off. Received 'perhaps'."), std::string::npos);
  ::unsetenv("MERCER_AMX");
  EXPECT_NE(text().find("amx_digits: "), std::string::npos);
}

}  // namespace
}  // namespace mercer
