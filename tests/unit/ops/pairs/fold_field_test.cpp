// gradient_field with folds: what combines the points n, against loops in double.
#include <cmath>

#include "core/emulated.h"
#include "ir/passes/split.h"
#include "ops/call/prepared.h"
#include "ops/expected_fields.h"

namespace mercer {
namespace {

using namespace testing_support;

/// The field of a fold, with null for arrays that it does not read.
void gradient_field(const Formula& fold, const Tensor& x, const Tensor& z, const Tensor* amplitude, const Tensor* coef,
                    const Tensor& out, const Arguments& arguments, TestContext& context) {
  Context& plain = context;
  if (!context.on_cuda()) return mercer::gradient_field(fold, x, z, amplitude, coef, out, arguments, plain);
  std::vector<const Tensor*> inputs;
  for (const Tensor* array : {amplitude, coef})
    if (array != nullptr) inputs.push_back(array);
  take_to_cuda(x, &z, inputs, {&out}, arguments, context, [&](const CudaCall& at, const Tensor* zd) {
    const Tensor a = amplitude ? at(*amplitude) : Tensor{}, c = coef ? at(*coef) : Tensor{};
    mercer::gradient_field(fold, at(x), *zd, amplitude ? &a : nullptr, coef ? &c : nullptr, at(out), at.arguments(),
                           plain);
  });
}

/// What a term reads.
struct Place {
  double x, z, coef, amplitude, w, row, col, distance;  // sum over the features of |x - z|
  std::int64_t m, n;
};
using Term = std::function<double(const Place&)>;
/// What becomes of the terms of all n, in order, and of a value of the row.
using Combine = std::function<double(const std::vector<double>& terms, double row)>;

struct FoldCase {
  const char* text;
  Term term;
  Combine combine;
  double roundings = 4;  // of each term and each step
};

double kept_max(double a, double b) { return std::isnan(a) || std::isnan(b) ? kNan : std::max(a, b); }

Combine follow(double start, std::function<double(double, double)> step) {
  return [=](const std::vector<double>& terms, double) {
    double state = start;
    for (const double t : terms) state = step(state, t);
    return state;
  };
}
const Combine kMax = follow(-kInf, kept_max);
const Combine kMin = follow(kInf, [](double a, double t) { return -kept_max(-a, -t); });
const Combine kSum = follow(0, [](double a, double t) { return a + t; });
const Combine kHalf = follow(0, [](double a, double t) { return 0.5 * a + t; });

double log_sum_exp(const std::vector<double>& terms, double) {
  const double top = kMax(terms, 0);
  if (std::isinf(top)) return top;
  double sum = 0;
  for (const double t : terms) sum += std::exp(t - top);
  return top + std::log(sum);
}

const FoldCase kFolds[] = {
    {"max(coef*amplitude*abs(x-z))", [](auto& p) { return p.coef * p.amplitude * std::abs(p.x - p.z); }, kMax},
    {"min(coef + amplitude*(x-z))", [](auto& p) { return p.coef + p.amplitude * (p.x - p.z); }, kMin},
    {"prod(1 + coef*amplitude*x*z/h)", [](auto& p) { return 1 + p.coef * p.amplitude * p.x * p.z / 40; },
     follow(1, [](double a, double t) { return a * t; }), 8},
    {"logsumexp(coef + amplitude*abs(x-z)/h)",
     [](auto& p) { return p.coef + p.amplitude * std::abs(p.x - p.z) / 40; }, log_sum_exp, 8},
    {"sum(exp(-abs(coef*amplitude*(x-z))))",
     [](auto& p) { return std::exp(-std::abs(p.coef * p.amplitude * (p.x - p.z))); }, kSum},
    {"sum(coef*(x-z))", [](auto& p) { return p.coef * (p.x - p.z); }, kSum},
    {"reduce(coef*amplitude*(x-z), 0.5*a + t, 0)", [](auto& p) { return p.coef * p.amplitude * (p.x - p.z); }, kHalf},
    {"reduce(coef*(x-z), 0.5*a + t, 0, finish=a*row + h)", [](auto& p) { return p.coef * (p.x - p.z); },
     [](auto& terms, double row) { return kHalf(terms, 0) * row + 40; }},
    {"reduce(x*z, a*col + t, 3)", [](auto& p) { return p.x * p.z; }, nullptr},  // below: the combine reads col
    {"reduce((coef*z, 1, x), (a0 + t0, a1 + t1, max(a2, t2)), (0, 0, 0), finish=a0/(a1 + 1))",
     [](auto& p) { return p.coef * p.z; },
     [](auto& terms, double) { return kSum(terms, 0) / static_cast<double>(terms.size() + 1); }},
    {"max(exp(-sum(abs(x-z))/h)*coef*sign(x-z))",
     [](auto& p) { return std::exp(-p.distance / 40) * p.coef * ((p.x > p.z) - (p.x < p.z)); }, kMax, 16},
    {"max(where(i == j, 100, w*col*x*amplitude))",
     [](auto& p) { return p.m == p.n ? 100 : p.w * p.col * p.x * p.amplitude; }, kMax},
    {"sum(row*tanh(sum(abs(x-z))/h)*amplitude*x + coef)",
     [](auto& p) { return p.row * std::tanh(p.distance / 40) * p.amplitude * p.x + p.coef; }, kSum, 16},
};

/// Multiples of 1/8, whose differences are exact.
Array eighths(Dtype dtype, Shape shape, unsigned seed, Shape strides = {}) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> values(-16, 16);
  return Array(dtype, std::move(shape), std::move(strides)).fill([&] { return values(random) / 8.0; });
}

struct FoldData {
  FoldData(Dtype dtype, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t outputs)
      : x(eighths(dtype, {m, k}, 1)), z(eighths(dtype, {n, k}, 2, {1, n + 3})), coef(normal(dtype, {outputs, n}, 3)),
        amplitude(normal(dtype, {m, n}, 4, 1, {1, m})), w(uniform(dtype, {k}, 5)), row(uniform(dtype, {m}, 6)),
        col(uniform(dtype, {n}, 7, 0.1, 0.9)), m(m), n(n), k(k), outputs(outputs) {}

  double distance(std::int64_t r, std::int64_t p) {
    if (distances.empty()) {
      distances.assign(m * n, 0);
      for (std::int64_t i = 0; i < m * n; ++i)
        for (std::int64_t c = 0; c < k; ++c) distances[i] += std::abs(x(i / n, c) - z(i % n, c));
    }
    return distances[r * n + p];
  }

  Place place(std::int64_t o, std::int64_t r, std::int64_t p, std::int64_t f) {
    return {x(r, f), z(p, f), coef(o, p), amplitude(r, p), w(f), row(r), col(p), distance(r, p), r, p};
  }

  Array x, z, coef, amplitude, w, row, col;
  std::int64_t m, n, k, outputs;
  std::vector<double> distances;
};

double expected_of(const FoldCase& c, FoldData& d, std::int64_t o, std::int64_t m, std::int64_t k, double& size) {
  std::vector<double> terms;
  double state = 3;
  for (std::int64_t n = 0; n < d.n; ++n) {
    terms.push_back(c.term(d.place(o, m, n, k)));
    state = state * d.col(n) + terms.back();
    if (std::isfinite(terms.back())) size = std::max(size, std::abs(terms.back()));
  }
  return c.combine ? c.combine(terms, d.row(m)) : state;
}

/// Compares a fold with the oracle on every target.
void expect_fold(const FoldCase& c, FoldData& d) {
  const Formula fold = Formula::fold(parse(c.text));
  const Formula::Prepared& reads = fold.prepared();
  const Dtype dtype = d.x.tensor().dtype;
  const std::int64_t outputs = reads.reads_coef ? d.outputs : 1;
  const double epsilon = dtype == Dtype::float64 ? 0x1p-52 : 0x1p-23;
  std::vector<double> expected, bounds;
  each_index({outputs, d.m, d.k}, [&](const Shape& i) {
    double size = 1;
    expected.push_back(expected_of(c, d, i[0], i[1], i[2], size));
    const double steps = static_cast<double>(std::max<std::int64_t>(d.n, 1));
    const double bound = epsilon * c.roundings * (std::abs(expected.back()) + size) * steps;
    bounds.push_back(std::isfinite(bound) ? bound : 0);
  });
  Arguments arguments;
  if (!reads.params.empty()) arguments.params["h"] = 40.0;
  if (reads.names.w) arguments.w = d.w;
  if (reads.names.row) arguments.row = d.row;
  if (reads.names.col) arguments.col = d.col;
  const Tensor amplitude = d.amplitude, coef = d.coef;
  on_each_target([&](TestContext& context) {
    const Array out(dtype, reads.reads_coef ? Shape{outputs, d.m, d.k} : Shape{d.m, d.k});
    gradient_field(fold, d.x, d.z, reads.reads_amplitude ? &amplitude : nullptr, reads.reads_coef ? &coef : nullptr,
                   out, arguments, context);
    std::size_t at = 0;
    each_index({outputs, d.m, d.k}, [&](const Shape& i) {
      const double value = reads.reads_coef ? out(i[0], i[1], i[2]) : out(i[1], i[2]);
      ASSERT_TRUE(within(value, expected[at], bounds[at], dtype))
          << c.text << " at " << i[0] << "," << i[1] << "," << i[2] << " of " << d.m << " x " << d.n << " x " << d.k
          << ": " << value << " for " << expected[at];
      ++at;
    });
  });
}

TEST(FoldField, MatchesLoops) {
  Turns turns(7);
  for (const Dtype dtype : kWide)
    for (const FoldCase& c : kFolds)
      for (auto [m, n, k, outputs] : {std::array{9, 37, 19, 1}, {3, 200, 5, 3}, {2, 23, 66, 6}, {2, 0, 3, 2}}) {
        if (turns.leaves_out()) continue;
        FoldData data(dtype, m, n, k, outputs);
        expect_fold(c, data);
      }
}

/// Added one after the other in float32, 20000 times 0.1 is off by 2e-4 of the sum; 512 of them by 5e-6.
TEST(FoldField, ManyPointsAreAddedUpAsSumsAre) {
  constexpr std::int64_t kN = 20000;
  const Array x = filled(Dtype::float32, {1, 1}, {1}), z = normal(Dtype::float32, {kN, 1}, 2);
  const Array coef = filled(Dtype::float32, {1, kN}, std::vector<double>(kN, 0.1));
  const Tensor c = coef;
  for (const char* text : {"sum(coef*x)", "reduce((coef, x), (a0 + t0, t1 + a1), (0, 0), finish=a0*20000/a1)",
                           "reduce((coef*x, z), (a0 - t0, max(a1, t1)), (0, 0), finish=where(a1 > 0, -a0, 0))"})
    on_each_target([&](TestContext& context) {
      const Array out(Dtype::float32, {1, 1, 1});
      gradient_field(Formula::fold(parse(text)), x, z, nullptr, &c, out, {}, context);
      EXPECT_NEAR(out(0, 0, 0), coef(0, 0) * kN, 1e-5 * 2000) << text;
    });
}

TEST(FoldField, SpecialValuesGoTheirWay) {
  Turns turns(2);
  for (const Dtype dtype : kWide) {
    FoldData data(dtype, 7, 70, 18, 2);
    data.x.set({1, 2}, kNan);
    data.x.set({2, 17}, kInf);
    data.z.set({33, 5}, kNan);
    data.z.set({69, 0}, -kInf);
    data.amplitude.set({4, 50}, kNan);
    data.amplitude.set({5, 0}, kInf);
    data.coef.set({1, 20}, kInf);
    for (const char* text : {"max(coef*amplitude*abs(x-z))", "min(coef + amplitude*(x-z))",
                             "reduce(coef*amplitude*(x-z), 0.5*a + t, 0)"})
      for (const FoldCase& c : kFolds)
        if (std::string(c.text) == text && !turns.leaves_out()) expect_fold(c, data);
  }
}

TEST(FoldField, BatchesNarrowInputsAndStrides) {
  const FoldCase& c = kFolds[6];
  Array x(Dtype::float16, {3, 9, 5}), z = eighths(Dtype::float16, {40, 5}, 2);
  x.fill([random = std::mt19937(1)]() mutable { return static_cast<int>(random() % 33) / 8.0 - 2; });
  const Array coef = normal(Dtype::float32, {40}, 3), amplitude = normal(Dtype::float32, {2, 1, 9, 40}, 4);
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {2, 3, 9, 5}, {1, 2, 6, 54});
    const Tensor a = amplitude, co = coef;
    gradient_field(Formula::fold(parse(c.text)), x, z, &a, &co, out, {}, context);
    each_index({2, 3, 9, 5}, [&](const Shape& i) {
      double expected = 0;
      for (std::int64_t n = 0; n < 40; ++n)
        expected = 0.5 * expected + coef(n) * amplitude(i[0], 0, i[2], n) * (x(i[1], i[2], i[3]) - z(n, i[3]));
      ASSERT_NEAR(out(i[0], i[1], i[2], i[3]), expected, 1e-5);
    });
  });
}

TEST(FoldField, SumsOfProductsAreFields) {
  for (const char* text : {"sum(coef*amplitude*(x-z)/h)", "sum(-(amplitude*((x-z)/h*coef)))",
                           "reduce(coef*amplitude*((x-z)/h), a + t, 0)"})
    EXPECT_FALSE(Formula::fold(parse(text)).prepared().is_fold) << text;
  EXPECT_EQ(Formula::fold(parse("sum(-(amplitude*((x-z)*coef)))")).expression().to_text(),
            Formula::field(-(points().x - points().z)).expression().to_text());
  for (const char* text : {"sum(coef*(x-z))", "sum(coef*coef*amplitude)", "sum(x/(coef*amplitude))",
                           "reduce(coef*amplitude*x, a + t, 1)", "max(coef*amplitude*x)", "sum(coef*amplitude*coef*x)"})
    EXPECT_TRUE(Formula::fold(parse(text)).prepared().is_fold) << text;
}

TEST(FoldField, StatesThatNoResultNeedsAreLeftOut) {
  const Expr fold = parse("reduce((x, z, x*z), (a0 + t0, a1*t1, a0 + a2), (0, 1, 2), finish=a0)");
  const ir::FieldSplit split = ir::split_fold(Formula::fold(fold).expression());
  EXPECT_EQ(split.fold.states(), 1);
  EXPECT_EQ(split.fold.summed, std::vector<bool>{true});
}

TEST(FoldField, Refusals) {
  const FoldData d(Dtype::float32, 3, 4, 2, 1);
  const Array out(Dtype::float32, {1, 3, 2});
  const Tensor amplitude = d.amplitude, coef = d.coef;
  const auto refused = [&](const char* text, const Tensor* a, const Tensor* c, const char* words) {
    try {
      mercer::gradient_field(Formula::fold(parse(text)), d.x, d.z, a, c, out);
      ADD_FAILURE() << text << " is not refused";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
    EXPECT_TRUE(out.untouched());
  };
  refused("x - z", &amplitude, &coef, "whose outermost operation is a reduction");
  refused("max(coef*x)", &amplitude, &coef, "amplitude was given, but the term does not read it");
  refused("max(coef*amplitude*x)", nullptr, &coef, "the formula reads amplitude; give it");
  refused("max(amplitude*x)", &amplitude, &coef, "coef was given");
  refused("reduce(coef*x, 0.5*a + t, 0, finish=a*col)", nullptr, &coef, "finish reads the states");
  refused("reduce(coef*x, 0.5*a + t, 0, finish=a*coef)", nullptr, &coef, "finish reads the states");
  refused("reduce(coef*x, 0.5*a + t, K)", nullptr, &coef, "identity");
  refused("max(sum(coef*x)*z)", nullptr, &coef, "reads neither amplitude nor coef");
}

}  // namespace
}  // namespace mercer
