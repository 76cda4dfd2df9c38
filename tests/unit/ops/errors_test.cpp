// Every refusal: its message, its kind, and that nothing was written.
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

/// What a call says, which every target says alike; empty when it refuses nothing.
template <class Call>
std::string refusal_of(const Call& call) {
  std::string said;
  bool first = true;
  on_each_target([&](TestContext& context) {
    const std::string message = message_of([&] { call(context); });
    if (std::exchange(first, false)) said = message;
    EXPECT_EQ(message, said);
  });
  return said;
}

/// Arrays of a call that would be right; each test breaks one rule. Some are read as if their elements were wider.
struct Call {
  static constexpr std::int64_t kSpare = 512;
  Array x = copy(normal(Dtype::float32, {4, 3}, 1), Dtype::float32, {}, kSpare), z = normal(Dtype::float32, {5, 3}, 2),
        w = uniform(Dtype::float32, {3}, 3);
  Array out = Array(Dtype::float32, {4, 5}, {}, kSpare), row = normal(Dtype::float32, {4}, 4),
        col = normal(Dtype::float32, {5}, 5);
  Arguments arguments;

  std::string pairwise(const char* text, const Tensor& xt, const Tensor& zt, const Tensor& to) const {
    return refusal_of([&](TestContext& context) {
      testing_support::pairwise(text, xt, &zt, to, arguments, context);
    });
  }
  std::string pairwise(const char* text) const { return pairwise(text, x, z, out); }
};

/// The message starts with the operation, states the rule, and `out` is as it was.
void expect_refusal(const std::string& message, const std::string& rule, const Array& out) {
  EXPECT_NE(message.find(rule), std::string::npos) << "received \"" << message << "\" without \"" << rule << "\"";
  EXPECT_TRUE(out.untouched()) << rule;
}

TEST(Errors, Points) {
  Call c;
  Tensor flat = c.x, null = c.x, wide = c.x;
  flat.shape = {12};
  flat.strides = {1};
  expect_refusal(c.pairwise("sum(x*z)", flat, c.z, c.out),
                 "pairwise: x must have at least 2 axes. Received shape (12,).", c.out);
  expect_refusal(c.pairwise("sum(x*z)", c.x, flat, c.out), "pairwise: z must have at least 2 axes.", c.out);
  null.data = nullptr;
  expect_refusal(c.pairwise("sum(x*z)", null, c.z, c.out), "pairwise: x has no memory. Received a null pointer.",
                 c.out);
  wide.dtype = Dtype::int64;
  expect_refusal(c.pairwise("sum(x*z)", wide, c.z, c.out), "cast it, to float32 for instance. Received int64.", c.out);
  wide.dtype = Dtype::boolean;
  expect_refusal(c.pairwise("sum(x*z)", wide, c.z, c.out), "Received bool.", c.out);
  wide.dtype = Dtype::float16;
  expect_refusal(c.pairwise("sum(x*z)", wide, c.z, c.out), "x and z must have one dtype. Received float16 and float32.",
                 c.out);
  wide = c.x;
  wide.shape = {4, 2};
  expect_refusal(c.pairwise("sum(x*z)", wide, c.z, c.out),
                 "the same number of features (last axis). Received (4, 2) and (5, 3).", c.out);
  const Array xb = normal(Dtype::float32, {2, 4, 3}, 1), zb = normal(Dtype::float32, {3, 5, 3}, 1);
  expect_refusal(c.pairwise("sum(x*z)", xb, zb, c.out), "batch axes must broadcast. Received (2,) and (3,).", c.out);
}

TEST(Errors, HugeBatches) {
  Call c;
  Tensor x = c.x;
  x.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40, 4, 3};
  x.strides = {0, 0, 3, 1};
  expect_refusal(c.pairwise("sum(x*z)", x, c.z, c.out), "the batch is too large.", c.out);
}

TEST(Errors, Outputs) {
  Call c;
  Tensor out = c.out;
  out.shape = {5, 4};
  expect_refusal(c.pairwise("sum(x*z)", c.x, c.z, out), "out must have shape (4, 5). Received (5, 4).", c.out);
  out = c.out;
  out.data = nullptr;
  expect_refusal(c.pairwise("sum(x*z)", c.x, c.z, out), "out has no memory.", c.out);
  out = c.out;
  out.strides = {0, 1};
  expect_refusal(c.pairwise("sum(x*z)", c.x, c.z, out), "no two elements of out may share memory.", c.out);
  for (Dtype dtype : {Dtype::float64, Dtype::uint8, Dtype::int64}) {
    out = c.out;
    out.dtype = dtype;
    expect_refusal(c.pairwise("sum(x*z)", c.x, c.z, out), "pairwise: out must be float32, float16 or bfloat16.", c.out);
  }
  const Array x = normal(Dtype::float64, {4, 3}, 1), z = normal(Dtype::float64, {5, 3}, 1);
  expect_refusal(c.pairwise("sum(x*z)", x, z, c.out), "pairwise: out must be float64. Received float32.", c.out);
}

TEST(Errors, OutputsThatOverlapInputs) {
  Call c;
  const Array before = c.x;
  Tensor out = c.x;
  out.shape = {2, 5};
  out.strides = {5, 1};
  Tensor x = c.x;
  x.shape = {2, 3};
  expect_refusal(c.pairwise("sum(x*z)", x, c.z, out), "out must not overlap an input.", c.out);
  EXPECT_TRUE(same_bits(c.x, before));
  c.arguments.params["b"] = out;
  Tensor scratch = out;  // a parameter whose memory is the output
  Array theta = normal(Dtype::float32, {2, 4, 5}, 1);
  const Array untouched = theta;
  Tensor b = theta;
  b.shape = {2};
  b.strides = {1};
  c.arguments.params["b"] = b;
  expect_refusal(c.pairwise("sum(x*z)*b", c.x, c.z, theta), "out must not overlap an input.", c.out);
  EXPECT_TRUE(same_bits(theta, untouched));
}

TEST(Errors, Weights) {
  Call c;
  expect_refusal(c.pairwise("sum(w*x*z)"), "the formula reads the weights w[k]; give w. Received none.", c.out);
  c.arguments.w = normal(Dtype::float32, {4}, 1);
  Array four = normal(Dtype::float32, {4}, 1);
  c.arguments.w = four;
  expect_refusal(c.pairwise("sum(w*x*z)"), "w must have shape (3,), one weight per feature. Received (4,).", c.out);
  Tensor matrix = c.w;
  matrix.shape = {1, 3};
  matrix.strides = {3, 1};
  c.arguments.w = matrix;
  expect_refusal(c.pairwise("sum(w*x*z)"), "w must have shape (3,)", c.out);
  Tensor boolean = c.w;
  boolean.dtype = Dtype::boolean;
  c.arguments.w = boolean;
  expect_refusal(c.pairwise("sum(w*x*z)"), std::string("w must be ") + kPointTypes, c.out);
  Tensor null = c.w;
  null.data = nullptr;
  c.arguments.w = null;
  expect_refusal(c.pairwise("sum(w*x*z)"), "w has no memory.", c.out);
  c.arguments.w = c.w;
  expect_refusal(c.pairwise("sum(x*z)"), "w was given, but the formula does not read the weights w[k].", c.out);
}

TEST(Errors, ValuesPerPoint) {
  Call c;
  expect_refusal(c.pairwise("sum(x*z)*row"), "the formula reads row; give it, one value per point. Received none.",
                 c.out);
  c.arguments.row = c.row;
  expect_refusal(c.pairwise("sum(x*z)"), "row was given, but the formula does not read it.", c.out);
  expect_refusal(c.pairwise("sum(x*z)*row*col"), "the formula reads col;", c.out);
  c.arguments.col = c.row;
  expect_refusal(c.pairwise("sum(x*z)*row*col"),
                 "col must have one value per point (5 in the last axis). Received (4,).", c.out);
  Tensor scalar = c.row;
  scalar.shape = scalar.strides = {};
  c.arguments.col = scalar;
  expect_refusal(c.pairwise("sum(x*z)*row*col"), "col must have at least 1 axes.", c.out);
}

TEST(Errors, Parameters) {
  Call c;
  expect_refusal(c.pairwise("sum(x*z)*b"), "the parameter \"b\" needs a value. Received none.", c.out);
  c.arguments.params["q"] = 1.0;
  expect_refusal(c.pairwise("sum(x*z)*param(b, 2)"), "the formula has no parameter \"q\". It has b.", c.out);
  expect_refusal(c.pairwise("sum(x*z)"), "the formula has no parameter \"q\". It has none.", c.out);
  c.arguments.params.clear();
  Array values = normal(Dtype::float32, {3}, 1);
  Tensor t = values;
  t.dtype = Dtype::float16;
  c.arguments.params["b"] = t;
  expect_refusal(c.pairwise("sum(x*z)*b"), "must be a number or an array of float32, float64 or int64.", c.out);
  t = values;
  t.data = nullptr;
  c.arguments.params["b"] = t;
  expect_refusal(c.pairwise("sum(x*z)*b"), "the parameter \"b\" has no memory.", c.out);
  c.arguments.params["b"] = values.tensor();
  const Array x = normal(Dtype::float32, {2, 4, 3}, 1);
  expect_refusal(c.pairwise("sum(x*z)*b", x, c.z, c.out), "batch axes must broadcast. Received (2,) and (3,).", c.out);
}

TEST(Errors, LayoutsFilledByHand) {
  const Array points = normal(Dtype::float32, {4, 3}, 1), matrix(Dtype::float32, {4, 4});
  const auto refused = [&](const Tensor& x, const Tensor& out, const char* text, const Arguments& arguments,
                           const char* rule) {
    const std::string message = message_of([&] { pairwise(text, x, nullptr, out, arguments); });
    EXPECT_NE(message.find(rule), std::string::npos) << message;
  };
  Tensor bad = points;
  bad.strides = {3};
  refused(bad, matrix, "sum(x*z)", {}, "x must have extents of at least 0 and a stride for each.");
  bad = points;
  bad.shape = {-4, 3};
  refused(bad, matrix, "sum(x*z)", {}, "Received shape (-4, 3) and strides (3, 1).");
  bad = matrix;
  bad.strides.clear();
  refused(points, bad, "sum(x*z)", {}, "out must have extents of at least 0");
  Arguments arguments;
  bad = points;
  bad.shape = {-4, 3};
  arguments.params["b"] = bad;
  refused(points, matrix, "sum(x*z)*b", arguments, "the parameter \"b\" must have extents of at least 0");
}

TEST(Errors, IndicesBeyondTheType) {
  Call c;
  c.arguments.i_offset = 1 << 24;
  expect_refusal(c.pairwise("sum(x*z) + i"), "which float32 counts up to 16777216; use float64. Received 16777220.",
                 c.out);
  c.arguments.i_offset = 0;
  c.arguments.j_offset = -(std::int64_t{1} << 30);
  expect_refusal(c.pairwise("where(i == j, 1, sum(x*z))"), "use float64.", c.out);
  for (std::int64_t offset : {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
    c.arguments.j_offset = offset;
    expect_refusal(c.pairwise("sum(x*z) + j"), "use float64. Received 9223372036854775807.", c.out);
  }
  EXPECT_EQ(c.pairwise("sum(x*z)"), "");  // offsets that nothing reads do no harm
}

TEST(Errors, IndicesBeyondFloat64) {
  const Array x = normal(Dtype::float64, {4, 3}, 1), out(Dtype::float64, {4, 4});
  Arguments arguments;
  arguments.i_offset = arguments.j_offset = (std::int64_t{1} << 53) - 4;
  pairwise("i - j", x, nullptr, out, arguments);
  arguments.i_offset += 1;
  const std::string message = message_of([&] { pairwise("i - j", x, nullptr, out, arguments); });
  EXPECT_NE(message.find("which float64 counts up to 9007199254740992. Received 9007199254740993."), std::string::npos)
      << message;
}

TEST(Errors, Formulas) {
  EXPECT_NE(message_of([] { Formula f{Expr()}; }).find("formula: must not be empty."), std::string::npos);
  EXPECT_NE(message_of([] { Formula f("x - z"); }), "");
  Call c;
  expect_refusal(c.pairwise("reduce(x*z, a + t, b)"), "", c.out);
  c.arguments.params["b"] = 1.0;
  expect_refusal(c.pairwise("reduce(x*z, a + t, b)"), "the identity of a reduction must be a number.", c.out);
}

TEST(Errors, Products) {
  Call c;
  const Array v = normal(Dtype::float32, {5, 2}, 1), out(Dtype::float32, {4, 2});
  const Tensor zt = c.z;
  const auto message = [&](const Tensor& vt, const Tensor& to) {
    return refusal_of([&](TestContext& context) { kernel_product("sum(x*z)", c.x, &zt, vt, to, {}, context); });
  };
  Tensor odd = v;
  odd.shape = {4, 2};
  expect_refusal(message(odd, out), "kernel_product: v must have one row per point of z (5). Received shape (4, 2).",
                 out);
  odd = v;
  odd.shape = odd.strides = {};
  expect_refusal(message(odd, out), "kernel_product: v must have at least 1 axes.", out);
  const Array wide = normal(Dtype::float64, {5, 2}, 1), wide_out(Dtype::float64, {4, 2});
  expect_refusal(message(wide, out), "v must have the computing type of x, float32. Received float64.", out);
  expect_refusal(message(v, wide_out), "out must be float32. Received float64.", wide_out);
  Tensor half = out;
  half.dtype = Dtype::float16;
  expect_refusal(message(v, half), "out must be float32. Received float16.", out);
  odd = out;
  odd.shape = {4};
  odd.strides = {2};
  expect_refusal(message(v, odd), "out must have shape (4, 2). Received (4,).", out);
  Array both = normal(Dtype::float32, {5, 2}, 1);
  Tensor overlapping = both;
  overlapping.shape = {4, 2};
  const Array before = both;
  expect_refusal(message(both, overlapping), "out must not overlap an input.", out);
  EXPECT_TRUE(same_bits(both, before));
}

TEST(Errors, Reductions) {
  Call c;
  const Array out(Dtype::float32, {4}), index(Dtype::int64, {4}), wrong(Dtype::float32, {5});
  const Tensor zt = c.z;
  const auto message = [&](ReduceKind kind, const Tensor& to) {
    return refusal_of([&](TestContext& context) { kernel_reduce("sum(x*z)", c.x, &zt, kind, to, {}, context); });
  };
  expect_refusal(message(ReduceKind::argmax, out), "kernel_reduce: out must be int64 for argmax. Received float32.",
                 out);
  expect_refusal(message(ReduceKind::max, index), "out must be float32 for max. Received int64.", index);
  expect_refusal(message(ReduceKind::max, wrong), "out must have shape (4,). Received (5,).", wrong);
  EXPECT_NE(message_of([] {
              reduce_kind_from_text("mean");
            }).find("reduce must be sum, max, min, argmax, argmin or logsumexp. Received \"mean\"."),
            std::string::npos);
  for (ReduceKind kind : {ReduceKind::sum, ReduceKind::max, ReduceKind::min, ReduceKind::argmax, ReduceKind::argmin,
                          ReduceKind::logsumexp})
    EXPECT_EQ(reduce_kind_from_text(name_of(kind)), kind);
}

TEST(Errors, Neighbours) {
  Call c;
  const Array values(Dtype::float32, {4, 2}), indices(Dtype::int64, {4, 2}), wide(Dtype::float64, {4, 2});
  const Tensor zt = c.z;
  const auto message = [&](std::int64_t k, const Tensor& v, const Tensor& i) {
    return refusal_of([&](TestContext& context) { knn("sum(x*z)", c.x, &zt, k, v, i, {}, context); });
  };
  expect_refusal(message(0, values, indices), "knn: k must be from 1 to the number of points of z (5). Received 0.",
                 values);
  expect_refusal(message(6, values, indices), "Received 6.", values);
  expect_refusal(message(2, wide, indices), "values must be float32. Received float64.", wide);
  expect_refusal(message(2, values, values), "indices must be int64. Received float32.", values);
  expect_refusal(message(3, values, indices), "out must have shape (4, 3). Received (4, 2).", values);
  Tensor shared = indices;  // values inside the memory of the indices
  shared.dtype = Dtype::float32;
  expect_refusal(message(2, shared, indices), "out must not overlap an input.", indices);
}

TEST(Errors, Gradients) {
  Call c;
  const Array coef = normal(Dtype::float32, {2, 5}, 1), out(Dtype::float32, {2, 4, 3});
  const Tensor zt = c.z;
  const auto message = [&](const Tensor& co, const Tensor& to) {
    return refusal_of([&](TestContext& context) { kernel_gradient("sum(x*z)", c.x, &zt, co, to, {}, context); });
  };
  Tensor odd = coef;
  odd.shape = {2, 4};
  expect_refusal(
      message(odd, out),
      "kernel_gradient: coef must have one entry per point of z (5) in its last axis. Received shape (2, 4).", out);
  odd.shape = odd.strides = {};
  expect_refusal(message(odd, out), "coef must have at least 1 axes.", out);
  const Array wide = normal(Dtype::float64, {2, 5}, 1);
  expect_refusal(message(wide, out), "coef must have the computing type of x, float32. Received float64.", out);
  odd = out;
  odd.dtype = Dtype::float16;
  expect_refusal(message(coef, odd), "out must be float32. Received float16.", out);
  odd = out;
  odd.shape = {4, 2, 3};
  expect_refusal(message(coef, odd), "out must have shape (2, 4, 3). Received (4, 2, 3).", out);
  on_each_target([&](TestContext& context) {
    try {
      kernel_gradient("reduce(x*z, 0.9*a + t, 0)", c.x, &zt, coef, out, {}, context);
      ADD_FAILURE() << "a combine without a derivative";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unsupported) << error.what();
      EXPECT_TRUE(out.untouched());
    }
  });
}

TEST(Errors, GradientFields) {
  Call c;
  const Array coef = normal(Dtype::float32, {5}, 1), out(Dtype::float32, {4, 3}),
              amplitude = normal(Dtype::float32, {4, 5}, 1);
  const Expr phi = points().x - points().z;
  const auto message = [&](const Expr& f, const Tensor& a) {
    return refusal_of([&](TestContext& context) { gradient_field(f, c.x, c.z, a, coef, out, {}, context); });
  };
  expect_refusal(message(sum(phi * sum(phi)), amplitude), "a reduction inside another one has one side only", out);
  Tensor odd = amplitude;
  odd.shape = {5, 4};
  expect_refusal(message(phi, odd), "amplitude must have shape (..., 4, 5). Received (5, 4).", out);
  odd.shape = {20};
  odd.strides = {1};
  expect_refusal(message(phi, odd), "amplitude must have at least 2 axes.", out);
  const Array wide = normal(Dtype::float64, {4, 5}, 1);
  expect_refusal(message(phi, wide), "amplitude must have the computing type of x, float32. Received float64.", out);
  expect_refusal(message(phi * param("q"), amplitude), "the parameter \"q\" needs a value.", out);
}

TEST(Errors, Contexts) {
  EXPECT_NE(message_of([] {
              target_from_text("sse");
            }).find("must be auto, x86_avx512, x86_avx2 or interpreter. Received \"sse\"."),
            std::string::npos);
  for (Target target : {Target::x86_avx512, Target::x86_avx2, Target::interpreter})
    EXPECT_EQ(target_from_text(name_of(target)), target);
  Context context;
  EXPECT_NE(message_of([&] { context.set_threads(-1); }).find("threads: must be from 1 to 4096"), std::string::npos);
  EXPECT_NE(message_of([&] { context.set_threads(5000); }).find("Received 5000."), std::string::npos);
  EXPECT_NE(message_of([] {
              explain("sum(x*z)", {-1, 1, 1}, Dtype::float32, Target::interpreter);
            }).find("sizes must not be negative."),
            std::string::npos);
}

}  // namespace
}  // namespace mercer
