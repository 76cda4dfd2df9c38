// Formulas with several sums: those that are products of matrices are computed first, into planes of some rows, which
// the tile reads in addition to the sums that it makes itself (plan/gpu/sums/sum_planes.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/drawn_data.h"
#include "ops/testing.h"
#include "plan/gpu/sums/sum_planes.h"

namespace mercer {
namespace {

using namespace testing_support;

// The rows make two whole parts of 128 and a rest.
constexpr std::int64_t kM = 300, kN = 210, kK = 40;

/// `size` bounds a value's error in units: that of a sum is its contract's, an exponential has that of its exponent.
struct Form {
  const char* text;
  const char* size;
};
constexpr Form kForms[] = {
    {"exp(-sum((x-z)^2)/h)*(1+sum(x*z))^2",
     "exp(-sum((x-z)^2)/h)*((1+sum((x-z)^2)/h)*(1+sum(x*z))^2+2*abs(1+sum(x*z))*sqrt(sum(x*x)*sum(z*z)))"},
    {"exp(-sum(abs(x-z))/h)+sum(x*z)", "exp(-sum(abs(x-z))/h)*(1+sum(abs(x-z))/h)+sqrt(sum(x*x)*sum(z*z))"},
    {"sqrt(sum(w*(x-z)^2))-max(x*z)*sum((x-z)^2/h)+i-2*j",
     "sqrt(sum(w*(x-z)^2))+abs(max(x*z))*sum((x-z)^2/h)+i+2*j"},
    {"(sum(x*z)/sqrt(sum(x*x)*sum(z*z))+row)*(sum((x-z)^2)+col)",
     "(1+abs(row))*(sum((x-z)^2)+abs(col))+abs(row)*sum((x-z)^2)"}};

struct Call {
  PointPair points;
  Array w, row, col;
  Extra extra;

  explicit Call(Dtype dtype, bool self = false)
      : points{drawn(kM, kK, 1, kUniform, dtype), drawn(self ? kM : kN, kK, self ? 1 : 2, kUniform, dtype)},
        w(uniform(dtype, {kK}, 3)),
        row(normal(dtype, {kM}, 4)),
        col(normal(dtype, {self ? kM : kN}, 5)) {
    for (std::int64_t k = 0; k < kK && !self; ++k) points.z.set({3, k}, points.x(5, k));
    extra = {{{"h", 2.5}}, {}, {}, {}, 7, 11};
    for (std::int64_t k = 0; k < kK; ++k) extra.w.push_back(w(k));
    for (std::int64_t m = 0; m < kM; ++m) extra.row.push_back(row(m));
    for (std::int64_t n = 0; n < points.z.shape()[0]; ++n) extra.col.push_back(col(n));
  }
  /// What this formula reads of it.
  Arguments of(const std::string& text) {
    const auto has = [&](const char* name) { return text.find(name) != std::string::npos; };
    Arguments own = arguments_of(extra);
    if (!has("h")) own.params.clear();
    if (has("w*")) own.w = w.tensor();
    if (has("row")) own.row = row.tensor();
    if (has("col")) own.col = col.tensor();
    return own;
  }
};

/// Results would be right without planes too.
void expect_planes(TestContext& context) {
  bool found = false;
  context.state().cuda_pairs.erase_if([&](const cuda::PairKernels& kernels) {
    found = found || !kernels.products.sums.empty();
    return false;
  });
  EXPECT_TRUE(found);
}

void expect_matrix(const Array& out, const Form& form, const Call& call, const Tensor& z, Dtype dtype) {
  Reference value(parse(form.text), call.points.x, z, call.extra), size(parse(form.size), call.points.x, z, call.extra);
  for (std::int64_t m = 0; m < kM; m += 3)
    for (std::int64_t n = 0; n < z.shape[0]; n += 2)
      ASSERT_NEAR(out(m, n), value(m, n), 3 * unit(dtype) * std::abs(size(m, n))) << form.text << " " << m << "," << n;
}

TEST(SumPlanes, Matrices) {
  on_tensor_cores([](TestContext& context) {
    context.state().own_costs().part_bytes = 1;
    for (Dtype dtype : kWide)
      for (const Form& form : kForms)
        for (bool columns : {false, true}) {
          Call call(dtype);
          const Tensor z = call.points.z;
          const Array out(dtype, {kM, kN}, columns ? column_major({kM, kN}) : Shape{});
          pairwise(form.text, call.points.x, &z, out, call.of(form.text), context);
          expect_matrix(out, form, call, z, dtype);
          const Array again(dtype, {kM, kN}, columns ? column_major({kM, kN}) : Shape{});
          pairwise(form.text, call.points.x, &z, again, call.of(form.text), context);
          ASSERT_TRUE(same_bits(out, again));
        }
  });
}

/// Forms whose terms are products of matrices each: one sum is left to compute, or several.
constexpr Form kOfTerms[] = {
    {"sum((x-z)^2+x*z)", "sum((x-z)^2)+sqrt(sum(x*x)*sum(z*z))"},
    {"exp(-sum(w*(x+z)^2)/h)", "exp(-sum(w*(x+z)^2)/h)*(1+sum(w*(x+z)^2)/h)"},
    {"2*sum(1-w*x*z)", "2*(K+sqrt(sum(w*x*x)*sum(w*z*z)))"},
    {"sum((2*x*z-(x-z)^2/h+x-z*z)/3)*row",
     "(2*sqrt(sum(x*x)*sum(z*z))+sum((x-z)^2)/h+sum(abs(x))+sum(z*z))/3*abs(row)"},
    {"sqrt(sum(w*(x-z)^2+w*(x+z)^2))", "sqrt(sum(w*(x-z)^2+w*(x+z)^2))"}};

TEST(SumPlanes, TermsOfOneSum) {
  on_tensor_cores([](TestContext& context) {
    context.state().own_costs().part_bytes = 1;
    context.state().own_costs().ranges.gain = 1e-9;  // no splits of the features
    for (Dtype dtype : kWide)
      for (const Form& form : kOfTerms)
        for (bool self : {false, true}) {
          Call call(dtype, self);
          const Tensor z = call.points.z;
          const Array out(dtype, {kM, z.shape[0]});
          pairwise(form.text, call.points.x, self ? nullptr : &z, out, call.of(form.text), context);
          expect_matrix(out, form, call, z, dtype);
        }
    bool all = true;
    context.state().cuda_pairs.erase_if([&](const cuda::PairKernels& kernels) {
      all = all && (kernels.plan->products.bilinear || !kernels.products.sums.empty());
      return false;
    });
    EXPECT_TRUE(all);
  });
}

TEST(SumPlanes, SelfCallsAreSymmetric) {
  on_tensor_cores([](TestContext& context) {
    context.state().own_costs().part_bytes = 1;
    for (Dtype dtype : kWide) {
      Call call(dtype, true);
      call.extra.i_offset = call.extra.j_offset = 0;
      for (const Form& form : {kForms[0], kForms[1]}) {
        const Array out(dtype, {kM, kM});
        pairwise(form.text, call.points.x, nullptr, out, call.of(form.text), context);
        expect_matrix(out, form, call, call.points.x, dtype);
        for (std::int64_t m = 0; m < kM; ++m)
          for (std::int64_t n = 0; n < m; ++n) ASSERT_EQ(out(m, n), out(n, m)) << form.text << " " << m << "," << n;
      }
    }
  });
}

/// Items that differ in the epilogue alone share their sums; others do not. Each as alone, bit by bit.
TEST(SumPlanes, Batches) {
  on_tensor_cores([](TestContext& context) {
    context.state().own_costs().part_bytes = 1;
    expect_items_alone("exp(-sum((x-z)^2)/b)*sum(x*z)", 20.0, 50.0, context);
    expect_items_alone("sum((x-z)^2/b)+sum(x*z)", 2.0, 5.0, context);
    expect_items_alone("b*exp(-sum((x-z)^2)/30)*sum(x*z)+sum(abs(x)^b)", 2.0, 1.5, context);
    expect_planes(context);
  });
}

/// The tile's own side reads a parameter that is the same for all items, which differ in the epilogue.
TEST(SumPlanes, ItemsOfSidesWithParameters) {
  on_tensor_cores([](TestContext& context) {
    const char* text = "s*exp(-sum((x-z)^2)/h)*sum(x*z)+sum(abs(x)^p)";
    const PointPair points{drawn(kM, kK, 1, kUniform), drawn(kN, kK, 2, kUniform)};
    const Tensor z = points.z;
    const std::vector<double> values{0.5, -2, 3};
    const Array s = filled(Dtype::float32, {3}, values), out(Dtype::float32, {3, kM, kN});
    Arguments arguments;
    arguments.params["s"] = s.tensor();
    arguments.params["p"] = 1.5;
    arguments.params["h"] = 4.0;
    pairwise(text, points.x, &z, out, arguments, context);
    for (std::int64_t i = 0; i < 3; ++i) {
      Reference value(parse(text), points.x, z, {{{"s", values[i]}, {"p", 1.5}, {"h", 4.0}}, {}, {}, {}, 0, 0});
      for (std::int64_t m = 0; m < kM; m += 7)
        for (std::int64_t n = 0; n < kN; n += 5) {
          const double wanted = value(m, n);
          ASSERT_NEAR(out(i, m, n), wanted, 1e-5 * std::abs(wanted)) << i << "," << m << "," << n;
        }
    }
    expect_planes(context);
  });
}

/// A divisor inside a sum whose reciprocal is no float32.
TEST(SumPlanes, DivisorsWithoutReciprocals) {
  on_tensor_cores([](TestContext& context) {
    const PointPair points{normal(Dtype::float32, {kM, kK}, 1, 1e-3), normal(Dtype::float32, {kN, kK}, 2, 1e-3)};
    const Tensor z = points.z;
    for (double h : {1e-40, 1e42}) {
      const char* text = "sum((x-z)^2/h)+sum(x*z)";
      const Array out(Dtype::float32, {kM, kN});
      Arguments arguments;
      arguments.params["h"] = h;
      pairwise(text, points.x, &z, out, arguments, context);
      Reference value(parse(text), points.x, z, {{{"h", h}}, {}, {}, {}, 0, 0});
      Reference size(parse("sum((x-z)^2/h)+sqrt(sum(x*x)*sum(z*z))"), points.x, z, {{{"h", h}}, {}, {}, {}, 0, 0});
      for (std::int64_t m = 0; m < kM; m += 7)
        for (std::int64_t n = 0; n < kN; n += 5)
          ASSERT_TRUE(within(out(m, n), value(m, n), 4e-6 * std::abs(size(m, n)), Dtype::float32))
              << h << " " << out(m, n);
    }
  });
}

/// The last one's epilogue is too long for values in registers.
TEST(SumPlanes, Folds) {
  constexpr Form kLong{"log(1+exp(-sum((x-z)^2)/h))*erf(sum((x-z)^2)/h)", "1+sum((x-z)^2)/h"};
  on_tensor_cores([&](TestContext& context) {
    context.state().own_costs().part_bytes = 1;
    for (Dtype dtype : kWide)
      for (const Form& form : {kForms[0], kForms[3], kLong, kOfTerms[0], kOfTerms[1]}) {
        Call call(dtype);
        const Tensor z = call.points.z;
        Reference value(parse(form.text), call.points.x, z, call.extra),
            size(parse(form.size), call.points.x, z, call.extra);
        for (std::int64_t columns : {1, 20}) {
          const Array v = normal(dtype, {kN, columns}, 6), out(dtype, {kM, columns});
          kernel_product(form.text, call.points.x, &z, v, out, call.of(form.text), context);
          for (std::int64_t m = 0; m < kM; m += 7)
            for (std::int64_t e = 0; e < columns; ++e) {
              double sum = 0, bound = 0;
              for (std::int64_t n = 0; n < kN; ++n) {
                sum += value(m, n) * v(n, e);
                bound += std::abs(size(m, n) * v(n, e));
              }
              ASSERT_NEAR(out(m, e), sum, 3 * unit(dtype) * bound) << form.text << " " << m << "," << e;
            }
        }
        const Array most(dtype, {kM}), place(Dtype::int64, {kM});
        kernel_reduce(form.text, call.points.x, &z, ReduceKind::max, most, call.of(form.text), context);
        kernel_reduce(form.text, call.points.x, &z, ReduceKind::argmin, place, call.of(form.text), context);
        for (std::int64_t m = 0; m < kM; m += 5) {
          double largest = -kInf, bound = 0, least = kInf;
          for (std::int64_t n = 0; n < kN; ++n) {
            largest = std::max(largest, value(m, n));
            least = std::min(least, value(m, n));
            bound = std::max(bound, std::abs(size(m, n)));
          }
          ASSERT_NEAR(most(m), largest, 3 * unit(dtype) * bound) << form.text << " " << m;
          ASSERT_NEAR(value(m, static_cast<std::int64_t>(place(m))), least, 6 * unit(dtype) * bound) << form.text;
        }
      }
  });
}

/// Several values of a pair, as gradients have them, from one plane each.
TEST(SumPlanes, Gradients) {
  on_tensor_cores([](TestContext& context) {
    context.state().own_costs().part_bytes = 1;
    const char* text = "exp(-sum((x-z)^2)/h)*sum(x*z)";
    Call call(Dtype::float64);
    const Tensor z = call.points.z;
    const Array coef = normal(Dtype::float64, {2, kN}, 6), out(Dtype::float64, {2, kM, kK});
    kernel_gradient(text, call.points.x, &z, coef, out, call.of(text), context);
    Context direct;
    const Array wanted(Dtype::float64, {2, kM, kK});
    kernel_gradient(text, call.points.x, &z, coef, wanted, call.of(text), direct);
    for (std::int64_t o = 0; o < 2; ++o)
      for (std::int64_t m = 0; m < kM; m += 7)
        for (std::int64_t k = 0; k < kK; ++k) {
          double size = 0;
          for (std::int64_t n = 0; n < kN; ++n) size += std::abs(coef(o, n));
          ASSERT_NEAR(out(o, m, k), wanted(o, m, k), 1e-12 * size * kK);
        }
  });
}

}  // namespace
}  // namespace mercer
