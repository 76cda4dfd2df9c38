// Powers whose exponents are no numbers of the call: along a batch, with exponents of 1 and 2, of all kinds of data.
#include "core/emulated.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

/// The cheap ones, tables from their smallest to their largest exponent and where their cubics err most, neighbours of
/// the cheap ones, and those beyond tables.
const std::vector<double> kExponents{1, 1.3, 2, 0.05, 0.375, 2.625, 3, 1.0000001, 1.9999999, 3.5, 64};

/// Terms are off by 1.1e-6 of themselves by tables, and by the special-function unit by what rounding p log2 |x - z|
/// costs.
double tolerance_of(double p) { return p <= 3 ? 1.3e-6 : 1e-6 * (1 + p); }

Array powers_of(TestContext& context, const char* text, const Array& x, const Array& z, const Array& p) {
  const Tensor zt = z;
  Array out(Dtype::float32, {p.shape()[0], x.shape()[0], z.shape()[0]});
  Arguments arguments;
  arguments.params["p"] = p.tensor();
  pairwise(text, x, &zt, out, arguments, context);
  return out;
}

struct Row {
  const char *text, *scale;
};
/// A reduction that is no sum; an exponent that is an expression; a function of the power; next to a power of a number,
/// which may have the table; next to a power of another parameter.
const Row kRows[] = {
    {"sum(abs(x-z)^p)", "sum(abs(x-z)^p)"},
    {"max(abs(x-z)^p)", "max(abs(x-z)^p)"},
    {"sum(square(x-z)^(p/2))", "sum(square(x-z)^(p/2))"},
    {"sum(exp(-(abs(x-z)^p)))", "sum(exp(-(abs(x-z)^p))*(1+abs(x-z)^p))"},
    {"sum(abs(x-z)^1.7*abs(x)^p)", "sum(abs(x-z)^1.7*abs(x)^p)"},
    {"sum(abs(x-z)^p+abs(x-z)^1.7)", "sum(abs(x-z)^p+abs(x-z)^1.7)"},
    {"sum(abs(x-z)^p*abs(x-z)^(p+1))", "2*sum(abs(x-z)^p*abs(x-z)^(p+1))"},
};

TEST(BatchedPowers, EveryItemHasItsExponent) {
  const Array p = filled(Dtype::float32, {static_cast<std::int64_t>(kExponents.size())}, kExponents);
  Turns turns(3);
  for (const auto& [text, scale] : kRows)
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{33, 70, 40}, {130, 65, 9}}) {
      if (turns.leaves_out()) continue;
      Array x = normal(Dtype::float32, {m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
      for (std::int64_t f = 0; f < k; ++f) z.set({5, f}, x(7, f));  // duplicates
      z.set({6, 1}, x(8, 1));
      std::vector<Expected> expected;
      for (std::size_t i = 0; i < kExponents.size(); ++i) {
        const double exponent = p(i);
        const Extra extra{{{"p", exponent}}, {}, {}, {}, 0, 0};
        expected.push_back(expected_pairs(parse(text), x, z, tolerance_of(exponent), parse(scale), extra));
      }
      on_each_target([&](TestContext& context) {
        const Array out = powers_of(context, text, x, z, p);
        for (std::size_t i = 0; i < kExponents.size(); ++i)
          expect_pairs(item(out, {static_cast<std::int64_t>(i)}), expected[i],
                       fmt::format("{}, p = {}, K = {}", text, kExponents[i], k));
      });
    }
}

/// |x - z| is the value itself, so that each sum is one of 40 equal terms.
TEST(BatchedPowers, ZerosInfinitiesAndNaN) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values{0, 1, 1e-30, 1e30, kInfinity, std::nan("")};
  const auto count = static_cast<std::int64_t>(values.size());
  const Array p = filled(Dtype::float32, {static_cast<std::int64_t>(kExponents.size())}, kExponents);
  Array x(Dtype::float32, {count, 40}), z(Dtype::float32, {1, 40});
  z.fill([] { return 0.0; });
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t f = 0; f < 40; ++f) x.set({i, f}, values[static_cast<std::size_t>(i)]);
  on_each_target([&](TestContext& context) {
    const Array out = powers_of(context, "sum(abs(x-z)^p)", x, z, p);
    for (std::size_t e = 0; e < kExponents.size(); ++e)
      for (std::int64_t i = 0; i < count; ++i) {
        const double exponent = p(e), exact = 40 * std::pow(x(i, 0), exponent);
        // Terms that leave the range of normal numbers may do so a little earlier or later.
        const double wanted = exact > 1e38 ? kInfinity : exact < 1e-36 ? 0 : exact;
        const double got = out(e, i, 0);
        const double seen = got > 1e38 ? kInfinity : got < 1e-36 ? 0 : got;
        EXPECT_TRUE(within(seen, wanted, 20 * tolerance_of(exponent) * wanted, Dtype::float32))
            << x(i, 0) << "^" << exponent << ": " << got << " for " << exact;
      }
  });
}

}  // namespace
}  // namespace mercer
