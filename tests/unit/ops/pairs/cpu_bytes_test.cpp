// Points of 8 bits by exact sums, forced: values, layouts, batches, one set, threads, and what takes them.
#include <algorithm>

#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr Dtype kBytes[] = {Dtype::uint8, Dtype::int8};
constexpr const char* kSums[] = {"sum(x*z)", "sum((x-z)^2)", "sum(abs(x-z))", "max(abs(x-z))"};

/// Both ends of the range are among them.
Array bytes(Dtype dtype, Shape shape, unsigned seed, Shape strides = {}) {
  const double least = dtype == Dtype::int8 ? -128 : 0;
  std::mt19937 random(seed);
  return Array(dtype, std::move(shape), std::move(strides)).fill([&] {
    const double value = static_cast<double>(random() % 300) - 22;
    return least + std::clamp(value, 0.0, 255.0);
  });
}

TEST(CpuBytes, SumsAreExact) {
  for (const Dtype dtype : kBytes)
    for (const char* text : kSums)
      for (auto [m, n, k] : {std::array{1, 1, 1}, {9, 50, 3}, {17, 100, 8}, {33, 7, 70}, {3, 97, 1500}}) {
        const Array x = bytes(dtype, {m, k}, 1), z = bytes(dtype, {n, k}, 2);
        const Expected expected = expected_pairs(parse(text), x, z, 0);
        const Tensor zt = z;
        on_each_cpu_target([&](TestContext& context) {
          context.set_ways("byte_sums");
          const Array out(Dtype::float32, {m, n});
          pairwise(text, x, &zt, out, {}, context);
          each_index({m, n}, [&](const Shape& p) {
            ASSERT_EQ(read(out, p), static_cast<float>(expected.values[p[0] * n + p[1]])) << text << name_of(dtype);
          });
        });
      }
}

/// The largest sums of 32 bits, and one feature more, of which other ways make sums.
TEST(CpuBytes, ManyFeaturesFitTheirSums) {
  for (const Dtype dtype : kBytes)
    for (const char* text : {"sum((x-z)^2)", "sum(x*z)"}) {
      const std::int64_t k = 32768;
      const bool is_signed = dtype == Dtype::int8;
      const Array x = uniform(dtype, {2, k + 1}, 1, is_signed ? -128 : 255, is_signed ? -128 : 255);
      const Array z = uniform(dtype, {3, k + 1}, 1, is_signed ? 127 : 0, is_signed ? 127 : 0);
      const Array same = copy(x, dtype);
      const double square = 65025.0 * k, product = is_signed ? -128.0 * 127 * k : 0;
      const double own = (is_signed ? 128.0 * 128 : 65025.0) * k;
      const auto part = [&](const Tensor& points, std::int64_t features) {
        Tensor of = points;
        of.shape[1] = features;
        return of;
      };
      on_each_cpu_target([&](TestContext& context) {
        context.set_ways("byte_sums");
        const Array out(Dtype::float32, {2, 3}), alike(Dtype::float32, {2, 2});
        const Tensor zt = part(z, k), st = part(same, k);
        pairwise(text, part(x, k), &zt, out, {}, context);
        pairwise(text, part(x, k), &st, alike, {}, context);
        const bool is_square = std::string(text) != "sum(x*z)";
        EXPECT_EQ(out(1, 2), static_cast<float>(is_square ? square : product));
        EXPECT_EQ(alike(1, 0), static_cast<float>(is_square ? 0 : own));
        const Tensor more = z;
        EXPECT_NE(message_of([&] { pairwise(text, x, &more, out, {}, context); }).find("more than 32768 features"),
                  std::string::npos);
      });
    }
}

TEST(CpuBytes, EpiloguesAndWhatTheyRead) {
  struct Case {
    const char *text, *scale;
  };
  for (const Case& c : {Case{"sqrt(sum((x-z)^2))", ""}, {"exp(-sum(abs(x-z))/(b*K))", ""},
                        {"sum(x*z)/sqrt(sum(x*x)*sum(z*z))", "1 + 0*sum(x)*sum(z)"}, {"row*max(abs(x-z)) + col*j", ""}})
    for (const Dtype dtype : kBytes) {
      const Array x = bytes(dtype, {19, 21}, 1), z = bytes(dtype, {77, 21}, 2);
      const Array row = uniform(Dtype::float32, {19}, 3), col = uniform(Dtype::float32, {77}, 4);
      const std::string text = c.text;
      Extra extra;
      Arguments arguments;
      if (text.find("b*") != std::string::npos) extra.params["b"] = 90;
      arguments = arguments_of(extra);
      if (text.find("row") != std::string::npos) {
        for (std::int64_t i = 0; i < 19; ++i) extra.row.push_back(row(i));
        for (std::int64_t i = 0; i < 77; ++i) extra.col.push_back(col(i));
        arguments.row = row.tensor();
        arguments.col = col.tensor();
      }
      const Expr scale = *c.scale == '\0' ? Expr() : parse(c.scale);
      const Expected expected = expected_pairs(parse(text), x, z, 1e-6, scale, extra);
      const Tensor zt = z;
      on_each_cpu_target([&](TestContext& context) {
        context.set_ways("byte_sums");
        const Array out(Dtype::float32, {19, 77});
        pairwise(c.text, x, &zt, out, arguments, context);
        expect_pairs(out, expected, text);
      });
    }
}

TEST(CpuBytes, LayoutsBatchesAndOutputs) {
  for (const char* text : kSums) {
    const Array x = bytes(Dtype::int8, {2, 3, 11, 13}, 1), z = bytes(Dtype::int8, {3, 60, 13}, 2);
    const Array turned = copy(x, Dtype::int8, {429 * 2 + 7, 143, 1, 11});
    const Array backwards = copy(z, Dtype::int8, {-60 * 30, 30, -2});
    const Tensor zt = z, bt = backwards;
    on_each_cpu_target([&](TestContext& context) {
      context.set_ways("byte_sums");
      const Array plain(Dtype::float32, {2, 3, 11, 60}), columns(Dtype::float32, {2, 3, 11, 60}, {1980, 660, 1, 11});
      const Array half(Dtype::bfloat16, {2, 3, 11, 60});
      pairwise(text, x, &zt, plain, {}, context);
      pairwise(text, turned, &bt, columns, {}, context);
      pairwise(text, x, &zt, half, {}, context);
      each_index({2, 3}, [&](const Shape& i) {
        const Expected expected = expected_pairs(parse(text), item(x, i), item(z, {i[1]}), 0);
        expect_pairs(item(plain, i), expected, text);
        expect_pairs(item(columns, i), expected, text);
        each_index({11, 60}, [&](const Shape& p) {
          const double value = expected.values[p[0] * 60 + p[1]];
          ASSERT_NEAR(half(i[0], i[1], p[0], p[1]), value, std::abs(value) / 250);
        });
      });
      for (const auto& [m, n, k] : {std::array{0, 3, 2}, {3, 0, 2}}) {
        const Array none(Dtype::uint8, {m, k}), other(Dtype::uint8, {n, k}), out(Dtype::float32, {m, n});
        const Tensor ot = other;
        pairwise(text, none, &ot, out, {}, context);
      }
    });
  }
}

TEST(CpuBytes, OneSetAndThreads) {
  const Array x = bytes(Dtype::uint8, {140, 900}, 1);
  on_each_cpu_target([&](TestContext& context) {
    context.set_ways("byte_sums");
    Array out[2] = {Array(Dtype::float32, {140, 140}), Array(Dtype::float32, {140, 140})};
    for (int turn = 0; turn < 2; ++turn) {
      context.set_threads(turn == 0 ? 1 : 3);
      pairwise("sqrt(sum((x-z)^2))", x, nullptr, out[turn], {}, context);
    }
    EXPECT_TRUE(same_bits(out[0], out[1]));
    each_index({140, 140}, [&](const Shape& p) { ASSERT_EQ(out[0](p[0], p[1]), out[0](p[1], p[0])); });
    for (std::int64_t i = 0; i < 140; ++i) ASSERT_EQ(out[0](i, i), 0);
    EXPECT_NE(message_of([&] { pairwise("sum(x*z)/sqrt(sum(x*x)*sum(z*z))", x, nullptr, out[0], {}, context); })
                  .find("byte_sums: both halves must have the same bits"),
              std::string::npos);
  });
}

/// Lines of so many rows, whose features do not lie together, take longer than progress waits.
TEST(CpuBytes, ProgressGoesForwardAlone) {
  constexpr std::int64_t kRows = 500000, kFeatures = 256;
  const Array points = bytes(Dtype::int8, {kRows + 2 * kFeatures}, 1), z = bytes(Dtype::int8, {16, kFeatures}, 2);
  const Tensor x(points.tensor().data, Dtype::int8, {kRows, kFeatures}, {1, 2}), zt = z;
  const Array out(Dtype::float32, {kRows, 16});
  TestContext context(targets().front());
  context.set_ways("byte_sums");
  context.set_threads(1);
  double before = 0, all = 0;
  int asked = 0;
  Arguments arguments;
  arguments.progress = [&](double done, double total) {
    EXPECT_GE(done, before);
    if (asked++ > 0) EXPECT_EQ(total, all);
    before = done;
    all = total;
    return true;
  };
  pairwise("sum(x*z)", x, &zt, out, arguments, context);
}

TEST(CpuBytes, AreTakenForBytesAlone) {
  const std::string of_bytes = explain(Formula("sum((x-z)^2)"), {4096, 4096, 256}, Dtype::uint8, "auto");
  EXPECT_NE(of_bytes.find("\n* byte_sums: "), std::string::npos) << of_bytes;
  const std::string of_floats = explain(Formula("sum((x-z)^2)"), {4096, 4096, 256}, Dtype::float32, "auto");
  EXPECT_NE(of_floats.find("byte_sums: refused, points must be uint8 or int8"), std::string::npos) << of_floats;
  const std::string other = explain(Formula("sum(abs(x-z)^3)"), {4096, 4096, 256}, Dtype::uint8, "auto");
  EXPECT_NE(other.find("byte_sums: refused, the only reduction must be a sum"), std::string::npos) << other;
}

}  // namespace
}  // namespace mercer
