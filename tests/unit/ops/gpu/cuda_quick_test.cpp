// First calls of a formula: quick kernels, and full ones after them, with the same bits.
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <random>

#include "core/testing.h"
#include "jit/quick_compile.h"
#include "ops/call/compile_sources.h"
#include "ops/context.h"
#include "ops/device_arrays.h"
#include "ops/drawn_data.h"
#include "ops/quick_kernels.h"

namespace mercer {
namespace {

using namespace testing_support;

class QuickPairs : public QuickKernels {
 protected:
  /// A number that no cache has seen in a formula.
  std::string fresh() { return fmt::format("{:.9f}", 1 + 1e-9 * static_cast<double>(draws_() % 100'000'000)); }

  std::random_device draws_;
};

/// Sets of kernels that a context keeps, of which some are quick.
int quick_in(TestContext& test) {
  Context& context = test;
  int count = 0;
  const auto counted = [&](const auto& kernels) { return count += kernels.are_quick() ? 1 : 0, false; };
  context.state().cuda_pairs.erase_if(counted);
  context.state().cuda_fields.erase_if(counted);
  return count;
}

int bare_in(TestContext& test) {
  int count = 0;
  static_cast<Context&>(test).state().cuda_pairs.erase_if(
      [&](const auto& kernels) { return count += kernels.first.bare ? 1 : 0, false; });
  return count;
}

/// A graph keeps the kernels that it was captured with, so those are full ones. `bare`: of the first call's.
void expect_full_kernels_in_captures(const Formula& f, const Array& x_values, const Array& z_values, int bare,
                                     TestContext& context) {
  const DeviceStream stream;
  DeviceArrays arrays(stream, 1 << 20);
  const Tensor x = arrays.take(x_values), z = arrays.take(z_values);
  const Tensor out = arrays.take(Dtype::float32, {x.shape[0], z.shape[0]});
  Arguments arguments;
  arguments.queue.stream = static_cast<CuStream>(stream);
  const auto call = [&] { mercer::pairwise(f, x, &z, out, arguments, context); };
  call();
  const Array first = arrays.download(out);
  EXPECT_GT(quick_in(context), 0);
  EXPECT_EQ(bare_in(context), bare);
  const Recording recording(stream, call);
  EXPECT_EQ(quick_in(context), 0);
  arrays.poison(out);
  recording.play();
  EXPECT_TRUE(same_bits(first, arrays.download(out)));
}

struct Verb {
  const char* name;
  std::int64_t features;
  std::string formula;
  std::function<void(const Formula& f, const Tensor& x, const Tensor& z, const Tensor& out, TestContext& context)> call;
  Shape shape;  // of its output
};

constexpr std::int64_t kM = 150, kN = 140;

void pairs(const Formula& f, const Tensor& x, const Tensor& z, const Tensor& out, TestContext& context) {
  pairwise(f, x, &z, out, {}, context);
}
void product(const Formula& f, const Tensor& x, const Tensor& z, const Tensor& out, TestContext& context) {
  kernel_product(f, x, &z, drawn(kN, out.shape[1], 3, kUniform), out, {}, context);
}
void fold(const Formula& f, const Tensor& x, const Tensor& z, const Tensor& out, TestContext& context) {
  kernel_reduce(f, x, &z, ReduceKind::logsumexp, out, {}, context);
}
void gradient(const Formula& f, const Tensor& x, const Tensor& z, const Tensor& out, TestContext& context) {
  kernel_gradient(f, x, &z, drawn(2, kN, 3, kUniform), out, {}, context);
}

/// Tiles of one state and of several, on mixed pipes, by differences and by products of tensor cores, folds, fields.
TEST_F(QuickPairs, TheSecondCallHasTheSameBits) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  const Verb verbs[] = {
      {"mixed pipes", 160, "sum(abs(x-z))*" + fresh(), pairs, {kM, kN}},
      {"differences", 161, fresh() + "*sum(abs(x-z)^3)", pairs, {kM, kN}},
      {"powers", 20, "sum(abs(x-z)^1.7)*" + fresh(), pairs, {kM, kN}},
      {"two sums", 9, "sum(x*z)*sum(max(x,z)) + " + fresh(), pairs, {kM, kN}},
      {"squares", 70, "exp(-sum((x-z)^2)/9)*" + fresh(), pairs, {kM, kN}},
      {"wide products", 130, "exp(-sum((x-z)^2)/9)*" + fresh(), product, {kM, 20}},
      {"folds", 70, "-sum((x-z)^2)*" + fresh(), fold, {kM}},
      {"products with v", 5, "exp(-sum(abs(x-z))/3)*" + fresh(), product, {kM, 1}},
      {"gradient", 12, "exp(-sum((x-z)^2)/9)*" + fresh(), gradient, {2, kM, 12}},
  };
  for (const Verb& verb : verbs) {
    SCOPED_TRACE(verb.name);
    TestContext context{TestContext::Cuda()}, host(Target::interpreter);
    for (Context* each : {static_cast<Context*>(&context), static_cast<Context*>(&host)}) {
      each->state().own_costs().much_mixed_work = 0;
      each->state().own_costs().differences = each->state().own_costs().everywhere().differences;
      each->state().own_costs().tensor_cores_from = 0;
    }
    const Array x = drawn(kM, verb.features, 1, kUniform), z = drawn(kN, verb.features, 2, kUniform);
    Array first(Dtype::float32, verb.shape), second = first, by_host = first;
    const Formula f = parse(verb.formula);
    verb.call(f, x, z, first, context);
    EXPECT_GT(quick_in(context), 0) << "the first kernels should be quick ones";
    verb.call(f, x, z, second, context);
    EXPECT_EQ(quick_in(context), 0);
    EXPECT_TRUE(same_bits(first, second));
    verb.call(f, x, z, by_host, host);
    // Each of two paths keeps 1e-6 (1 + |s f' / f|) of a value f of sums s, which is 5e-6 of these at most.
    double largest = 0;
    const Tensor wanted = by_host, got = first;
    each_index(wanted.shape, [&](const Shape& at) { largest = std::max(largest, std::abs(read(wanted, at))); });
    each_index(wanted.shape, [&](const Shape& at) { EXPECT_NEAR(read(got, at), read(wanted, at), 1e-5 * largest); });
  }
}

TEST_F(QuickPairs, CapturesWaitForTheFullKernels) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  TestContext context{TestContext::Cuda()};
  const Formula f = parse("exp(-sum((x-z)^2)/9)*" + fresh());
  expect_full_kernels_in_captures(f, drawn(kM, 40, 1, kUniform), drawn(kN, 40, 2, kUniform), 0, context);
}

/// A formula of a sum whose kernels are at hand, and how its call is made.
struct OfKnownSum {
  const char* name;
  std::int64_t features;
  const char* of_store;  // a formula of that sum
  std::string formula;
  Dtype dtype = Dtype::float32;
  bool symmetric = false;
  std::vector<double> scales = {};  // of the parameter s, an array
  Dtype out = Dtype::float32;
  bool is_bare = true;
  bool column_major = false;
  Draw draw = kUniform;
};

constexpr std::int64_t kRows = 70, kColumns = 66;

/// What large calls take is tried of small ones.
void take_large_paths(Context& context) {
  context.state().own_costs().much_mixed_work = 0;
  context.state().own_costs().differences = context.state().own_costs().everywhere().differences;
  context.state().own_costs().tensor_cores_from = 0;
}

/// The store gets the kernels of a formula.
void fill_store(Context& context, const OfKnownSum& known, const std::filesystem::path& store) {
  CompileRequest request;
  request.shapes = {{1, kRows, kColumns, known.features}};
  request.dtypes = {known.dtype};
  request.devices = {{{DeviceKind::cuda, 0}, ""}};
  ops::write_cuda_store(store, parse(known.of_store), request, context);
}

/// The first call of a formula whose sum is in the store, and its second.
void expect_bare_sums(const OfKnownSum& known, const std::filesystem::path& store) {
  TestContext context{TestContext::Cuda()};
  take_large_paths(context);
  fill_store(context, known, store);
  const Array x = drawn(kRows, known.features, 1, known.draw, known.dtype);
  const Array other = drawn(kColumns, known.features, 2, known.draw, known.dtype);
  const Tensor z = other;
  Shape shape = {kRows, known.symmetric ? kRows : kColumns};
  Arguments arguments;
  Array scales(Dtype::float64, {static_cast<std::int64_t>(known.scales.size())});
  for (std::size_t i = 0; i < known.scales.size(); ++i) scales.set({static_cast<std::int64_t>(i)}, known.scales[i]);
  if (!known.scales.empty()) {
    arguments.params["s"] = scales.tensor();
    shape.insert(shape.begin(), scales.shape()[0]);
  }
  Array first(known.out, shape, known.column_major ? column_major(shape) : row_major(shape)), second = first;
  const Formula f = parse(known.formula);
  const auto call = [&](const Tensor& out) {
    pairwise(f, x, known.symmetric ? nullptr : &z, out, arguments, context);
  };
  call(first);
  EXPECT_EQ(bare_in(context), known.is_bare ? 1 : 0);
  EXPECT_EQ(quick_in(context), 1);
  call(second);
  EXPECT_EQ(bare_in(context), 0);
  EXPECT_EQ(quick_in(context), 0);
  EXPECT_TRUE(same_bits(first, second));
}

/// A call of another verb, which stores values by the same kernels, does not run on bare sums, nor on what they left.
void expect_neighbours(const OfKnownSum& known, const std::filesystem::path& store) {
  for (const bool behind : {false, true}) {
    TestContext context{TestContext::Cuda()};
    fill_store(context, known, store);
    const Array x = drawn(kRows, known.features, 1, kUniform), z = drawn(kColumns, known.features, 2, kUniform);
    const Formula f = parse(known.formula + (behind ? "*2" : "*3"));
    Array values(Dtype::float32, {kRows, kColumns}), least(Dtype::float32, {kRows, 2});
    Array places(Dtype::int64, {kRows, 2});
    const Tensor other = z;
    if (behind) pairwise(f, x, &other, values, {}, context);
    EXPECT_EQ(bare_in(context), behind ? 1 : 0);
    knn(f, x, &other, 2, least, places, {}, context);
    EXPECT_EQ(bare_in(context), 0);
    if (!behind) pairwise(f, x, &other, values, {}, context);
    for (std::int64_t m = 0; m < kRows; ++m) EXPECT_EQ(least(m, 0), values(m, static_cast<std::int64_t>(places(m, 0))));
  }
}

void expect_captures(const OfKnownSum& known, const std::filesystem::path& store) {
  TestContext context{TestContext::Cuda()};
  fill_store(context, known, store);
  const Array x = drawn(kRows, known.features, 1, kUniform), z = drawn(kColumns, known.features, 2, kUniform);
  expect_full_kernels_in_captures(parse(known.formula), x, z, 1, context);
}

/// Tests in processes of their own, whose caches are empty at first.
class BareSums : public QuickPairs {
 protected:
  BareSums() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  OfKnownSum known(const std::string& name) {
    for (const OfKnownSum& call : calls())
      if (call.name == name) return call;
    throw std::logic_error("no call is named " + name);
  }

 private:
  std::vector<OfKnownSum> calls() {
    // A feature far from the others makes integers coarse: what sums may lose decides whether they serve, and shows.
    const Draw far = [](double, double u, std::int64_t k, std::int64_t) { return k == 0 ? 1000 : u; };
    // Whose sums are 0.
    const Draw tiny = [](double g, double, std::int64_t, std::int64_t) { return g * 1e-25; };
    const std::string c = fresh();
    return {
        {.name = "mixed_pipes", .features = 160, .of_store = "sum(abs(x-z))", .formula = "sum(abs(x-z))*" + c,
         .column_major = true},
        {.name = "allowance", .features = 300, .of_store = "exp(-sum(abs(x-z))/7)",
         .formula = "exp(-sum(abs(x-z))/30000)*" + c, .draw = far},
        {.name = "differences", .features = 161, .of_store = "sum(abs(x-z)^3)", .formula = c + "*sum(abs(x-z)^3)"},
        {.name = "squares", .features = 70, .of_store = "sum((x-z)^2)", .formula = "exp(-sum((x-z)^2)/9)*" + c},
        {.name = "maxima", .features = 20, .of_store = "max(abs(x-z))", .formula = "exp(-max(abs(x-z)))*" + c},
        {.name = "doubles", .features = 20, .of_store = "sum(abs(x-z)^1.7)",
         .formula = "log(1 + sum(abs(x-z)^1.7)/" + c + ")", .dtype = Dtype::float64, .out = Dtype::float64},
        {.name = "symmetric", .features = 20, .of_store = "sum(abs(x-z))",
         .formula = "1/(1 + sum(abs(x-z))*" + c + ")", .symmetric = true},
        {.name = "arrays", .features = 300, .of_store = "sum(x*z)", .formula = "(sum(x*z)*s + " + c + ")^3",
         .scales = {0.5}},
        {.name = "mixed_arrays", .features = 160, .of_store = "sum(abs(x-z))", .formula = "s*sum(abs(x-z)) + " + c,
         .scales = {0.5}},
        {.name = "square_doubles", .features = 70, .of_store = "sum((x-z)^2)",
         .formula = "exp(-sum((x-z)^2)/9)*" + c, .dtype = Dtype::float64, .out = Dtype::float64},
        {.name = "items_with_arrays", .features = 300, .of_store = "sum(x*z)",
         .formula = "(sum(x*z)*s + " + c + ")^3", .scales = {0.5, 2, 3}, .is_bare = false},
        {.name = "features", .features = 20, .of_store = "sum(abs(x/K-z/K))",
         .formula = "exp(-sum(abs(x/K-z/K)))*" + c, .is_bare = false},
        {.name = "half_precision", .features = 20, .of_store = "sum(abs(x-z))", .formula = "sum(abs(x-z))*" + c,
         .out = Dtype::float16, .is_bare = false},
        {.name = "quotients", .features = 70, .of_store = "sum((x-z)^2)",
         .formula = "1/(1 + sum((x-z)^2)*" + c + ")", .column_major = true},
        {.name = "tiny_cubes", .features = 20, .of_store = "sum(abs(x-z)^3)",
         .formula = "sum(abs(x-z)^3)^(1/3)*" + c, .draw = tiny},
        {.name = "tiny_squares", .features = 70, .of_store = "sum((x-z)^2)", .formula = "sqrt(sum((x-z)^2))*" + c,
         .draw = tiny},
        {.name = "neighbours", .features = 20, .of_store = "sum(abs(x-z))", .formula = "sum(abs(x-z))*" + c},
        {.name = "indices", .features = 20, .of_store = "sum(abs(x-z))", .formula = "sum(abs(x-z)) + i*" + c,
         .is_bare = false},
    };
  }
};

using Expectation = void (*)(const OfKnownSum& known, const std::filesystem::path& store);

[[noreturn]] void run(const OfKnownSum& known, Expectation expect) {
  end_after([&](const std::filesystem::path& store) { expect(known, store); });
}

class BareSumsOf : public BareSums, public ::testing::WithParamInterface<const char*> {};
TEST_P(BareSumsOf, TheSecondCallHasTheSameBits) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  EXPECT_EXIT(run(known(GetParam()), expect_bare_sums), ::testing::ExitedWithCode(0), "");
}
INSTANTIATE_TEST_SUITE_P(Calls, BareSumsOf,
                         ::testing::Values("mixed_pipes", "allowance", "differences", "squares", "maxima", "doubles",
                                           "symmetric", "arrays", "mixed_arrays", "square_doubles",
                                           "items_with_arrays", "features", "half_precision", "quotients", "indices",
                                           "tiny_cubes", "tiny_squares"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(BareSums, NeighboursHaveKernelsOfTheirOwn) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  EXPECT_EXIT(run(known("neighbours"), expect_neighbours), ::testing::ExitedWithCode(0), "");
}
TEST_F(BareSums, CapturesWaitForTheFullKernels) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  EXPECT_EXIT(run(known("neighbours"), expect_captures), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace mercer
