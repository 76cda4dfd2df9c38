// Pairwise matrices from C: the very bits of mercer/pairwise.h, and refusals.
#include "mercer/pairwise.h"

#include "mercer/zoo.h"
#include "unit/c_api/views.h"

namespace mercer {
namespace {

using namespace testing_support;

struct OwnFormula {
  mercer_formula* c = nullptr;
  explicit OwnFormula(const char* text) { expect_ok(mercer_formula_create(text, &c)); }
  ~OwnFormula() { mercer_formula_destroy(c); }
};

constexpr char kText[] = "exp(-sum(w*abs(x-z)^p)/h)*row+col*i-j";

/// A call that reads all that a formula may read.
struct Call {
  Array x = normal(Dtype::float32, {7, 3}, 1), z = normal(Dtype::float32, {5, 3}, 2),
        w = uniform(Dtype::float32, {3}, 3), row = normal(Dtype::float32, {7}, 4), col = normal(Dtype::float32, {5}, 5),
        h = filled(Dtype::float64, {2, 1, 1}, {1.5, 4}), out = Array(Dtype::float32, {2, 1, 1, 7, 5}, {}, 4096);
  View cx{x}, cz{z}, cw{w}, crow{row}, ccol{col}, ch{h}, cout{out};
  OwnFormula formula{kText};
  mercer_param params[2] = {{"p", 1.3, nullptr}, {"h", 0, nullptr}};
  mercer_arguments arguments = MERCER_ARGUMENTS_INIT;

  Call() {
    params[1].array = ch;
    arguments.params = params;
    arguments.param_count = 2;
    arguments.w = cw;
    arguments.row = crow;
    arguments.col = ccol;
    arguments.i_offset = 3;
    arguments.j_offset = 100;
  }
  mercer_status run() { return mercer_pairwise(formula.c, cx, cz, cout, &arguments, nullptr); }
  void expect_refused(const std::string& words) {
    std::int64_t bytes = -5;
    expect_invalid(run(), words);
    expect_invalid(mercer_pairwise_workspace_size(formula.c, cx, cz, cout, &arguments, nullptr, &bytes), words);
    EXPECT_EQ(bytes, -5);
    EXPECT_TRUE(out.untouched()) << words;
  }
};

TEST(CPairwise, TheBitsOfCpp) {
  Call c;
  expect_ok(c.run());
  Array expected(Dtype::float32, {2, 1, 1, 7, 5}, {}, 4096);
  Arguments arguments{.params = {{"p", 1.3}, {"h", c.h.tensor()}}, .w = c.w, .row = c.row, .col = c.col};
  arguments.i_offset = 3;
  arguments.j_offset = 100;
  const Tensor z = c.z;
  pairwise(kText, c.x, &z, expected, arguments);
  EXPECT_TRUE(same_bits(c.out, expected));
}

TEST(CPairwise, SamePointsAreSymmetric) {
  const OwnFormula formula("exp(-sum(abs(x-z))/2)");
  const Array x = normal(Dtype::float64, {9, 4}, 1);
  const Array got(Dtype::float64, {9, 9});
  Array expected(Dtype::float64, {9, 9});
  const View cx(x), out(got);
  expect_ok(mercer_pairwise(formula.c, cx, nullptr, out, nullptr, nullptr));
  pairwise("exp(-sum(abs(x-z))/2)", x, nullptr, expected);
  EXPECT_TRUE(same_bits(got, expected));
  for (int m = 0; m < 9; ++m)
    for (int n = 0; n < 9; ++n) EXPECT_EQ(got(m, n), got(n, m));
}

TEST(CPairwise, ShapesAndSizes) {
  Call c;
  std::int64_t shape[5] = {}, bytes = -1;
  std::int32_t ndim = 5;
  expect_ok(mercer_pairwise_shape(c.formula.c, c.cx, c.cz, &c.arguments, &ndim, shape));
  EXPECT_EQ(Shape(shape, shape + ndim), c.out.shape());
  ndim = 5;
  const OwnFormula plain("sum(x*z)");
  expect_ok(mercer_pairwise_shape(plain.c, c.cx, nullptr, nullptr, &ndim, shape));
  EXPECT_EQ(Shape(shape, shape + ndim), (Shape{7, 7}));
  expect_ok(mercer_pairwise_workspace_size(c.formula.c, c.cx, c.cz, c.cout, &c.arguments, nullptr, &bytes));
  EXPECT_EQ(bytes, 0);  // on the CPU
  EXPECT_TRUE(c.out.untouched());
  expect_invalid(mercer_pairwise_shape(c.formula.c, c.cx, c.cz, &c.arguments, nullptr, shape),
                 "pairwise: ndim must be given.");
  expect_invalid(mercer_pairwise_workspace_size(c.formula.c, c.cx, c.cz, c.cout, &c.arguments, nullptr, nullptr),
                 "pairwise: bytes must be given.");
}

TEST(CPairwise, TheZoo) {
  mercer_formula* formula = nullptr;
  expect_ok(mercer_formula_from_zoo("manhattan", &formula));
  Call c;
  const Array got(Dtype::float32, {7, 5});
  Array expected(Dtype::float32, {7, 5});
  const View out(got);
  expect_ok(mercer_pairwise(formula, c.cx, c.cz, out, nullptr, nullptr));
  mercer_formula_destroy(formula);
  const Tensor z = c.z;
  pairwise(zoo("cityblock"), c.x, &z, expected);
  EXPECT_TRUE(same_bits(got, expected));
}

TEST(CPairwise, Formulas) {
  mercer_formula* formula = nullptr;
  expect_invalid(mercer_formula_create("sum(abs(x-)", &formula), "^");
  expect_invalid(mercer_formula_create("x*z", &formula), "reduction");
  expect_invalid(mercer_formula_create(nullptr, &formula), "formula_create: text must be given.");
  expect_invalid(mercer_formula_create("sum(x*z)", nullptr), "formula_create: formula must be given.");
  expect_invalid(mercer_formula_from_zoo("manhatan", &formula), "manhatan");
  expect_invalid(mercer_formula_from_zoo(nullptr, &formula), "formula_from_zoo: name must be given.");
  expect_invalid(mercer_formula_from_zoo("l1", nullptr), "formula_from_zoo: formula must be given.");
  EXPECT_EQ(formula, nullptr);
  mercer_formula_destroy(nullptr);
}

template <class Change>
void expect_refused(const std::string& words, const Change& change) {
  expect_refused_with<Call>(words, change);
}

TEST(CPairwise, Refusals) {
  Call c;
  expect_invalid(mercer_pairwise(nullptr, c.cx, c.cz, c.cout, nullptr, nullptr), "pairwise: formula must be given.");
  expect_invalid(mercer_pairwise(c.formula.c, nullptr, c.cz, c.cout, nullptr, nullptr), "pairwise: x must be given.");
  expect_invalid(mercer_pairwise(c.formula.c, c.cx, c.cz, nullptr, &c.arguments, nullptr),
                 "pairwise: out must be given.");
  expect_refused("pairwise: the dtype of z must be a mercer_dtype. Received 77.", [](Call& c) { c.cz.c.dtype = 77; });
  expect_refused("pairwise: x and z must have one dtype. Received float32 and float16.",
                 [](Call& c) { c.cz.c.dtype = MERCER_FLOAT16; });
  expect_refused("pairwise: out must be float32, float16 or bfloat16. Received float64.",
                 [](Call& c) { c.cout.c.dtype = MERCER_FLOAT64; });
  expect_refused("pairwise: out must not overlap an input.", [](Call& c) { c.cx.c.data = c.cout.c.data; });
  expect_refused("pairwise: x has no memory.", [](Call& c) { c.cx.c.data = nullptr; });
  expect_refused("pairwise: params must be given where param_count is not 0.",
                 [](Call& c) { c.arguments.params = nullptr; });
  expect_refused("pairwise: the name of a parameter must be given.", [](Call& c) { c.params[0].name = nullptr; });
  expect_refused("pairwise: a parameter must be given once. Received \"p\" twice.",
                 [](Call& c) { c.params[1].name = "p"; });
  expect_refused("\"h\"", [](Call& c) { c.arguments.param_count = 1; });
  expect_refused("\"q\"", [](Call& c) { c.params[0].name = "q"; });
  expect_refused("pairwise: the ndim of h must be from 0 to 64. Received 70.", [](Call& c) { c.ch.c.ndim = 70; });
  expect_refused("w", [](Call& c) { c.arguments.w = nullptr; });
  expect_refused("pairwise: struct_size of the arguments must be the size of the struct",
                 [](Call& c) { c.arguments.struct_size = 1; });
}

}  // namespace
}  // namespace mercer
