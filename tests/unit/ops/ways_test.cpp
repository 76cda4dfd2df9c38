// Ways on GPUs: what explain says of them is what calls take, and ways that are forced. No GPU is needed.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "backend/cuda/rehearsal.h"
#include "mercer/mercer.h"
#include "ops/context.h"
#include "ops/prepared.h"
#include "plan/gpu_floor.h"

namespace mercer {
namespace {

CudaDevice device_of(int capability) {
  const plan::GpuInfo& info = plan::gpu_info(capability);
  CudaDevice device;
  device.major = capability / 10;
  device.minor = capability % 10;
  device.multiprocessors = info.multiprocessors;
  device.shared_per_block = info.shared_per_block;
  return device;
}

struct Case {
  const char* text = "sum(abs(x-z))";
  plan::Verb verb = plan::Verb::pairwise;
  ExplainShape shape;
  std::int64_t columns = 1;
  Dtype points = Dtype::float32;
  int capability = 90;
  std::string to_text() const {
    return std::string(plan::name_of(verb)) + " " + text + ", " + std::to_string(shape.m) + "x" +
           std::to_string(shape.n) + "x" + std::to_string(shape.k) + ", " + std::to_string(columns) + " columns, " +
           name_of(points) + ", sm_" + std::to_string(capability);
  }
};

/// The way that a call takes, which is not made.
std::string way_of_call(const Case& c, Context& context) {
  const CudaDevice device = device_of(c.capability);
  cuda::Rehearsal rehearsal{cuda::Rehearsal::Purpose::workspace, &device};
  Arguments arguments;
  arguments.queue.rehearsal = &rehearsal;
  const Formula f(c.text);
  for (const Expr& leaf : f.prepared().params) arguments.params[leaf->name] = 1.5;
  std::uintptr_t places = 0;
  const auto array = [&](Dtype dtype, std::vector<std::int64_t> shape) {
    Tensor t(reinterpret_cast<void*>(++places << 44), dtype, std::move(shape));
    t.device = {DeviceKind::cuda, 0};
    return t;
  };
  const Dtype type = compute_type(c.points);
  const auto [m, n, k] = c.shape;
  if (f.prepared().uses.w) arguments.w = array(type, {k});
  const Tensor x = array(c.points, {m, k}), z = array(c.points, {n, k});
  switch (c.verb) {
    case plan::Verb::pairwise: pairwise(f, x, &z, array(type, {m, n}), arguments, context); break;
    case plan::Verb::product:
      kernel_product(f, x, &z, array(type, {n, c.columns}), array(type, {m, c.columns}), arguments, context);
      break;
    case plan::Verb::reduce:
      kernel_reduce(f, x, &z, ReduceKind::sum, array(type, {m}), arguments, context);
      break;
    case plan::Verb::nearest:
      knn(f, x, &z, c.columns, array(type, {m, c.columns}), array(Dtype::int64, {m, c.columns}), arguments, context);
      break;
    case plan::Verb::gradient:
      kernel_gradient(f, x, &z, array(type, {c.columns, n}), array(type, {c.columns, m, k}), arguments, context);
      break;
  }
  return rehearsal.ways.size() == 1 ? rehearsal.ways[0] : "none, or several";
}

std::string explained(const Case& c) {
  return explain(Formula(c.text), c.shape, c.points, "sm_" + std::to_string(c.capability),
                 {.verb = plan::name_of(c.verb), .columns = c.columns});
}

/// The way that explain marks as the one that is taken.
std::string way_of_explain(const Case& c) {
  const std::string text = explained(c);
  const std::size_t from = text.find("\n* ") + 3;
  return text.substr(from, text.find(':', from) - from);
}

/// The ways of passes that are not run.
struct DryBackward {
  DryBackward() : device(device_of(90)) { arguments.queue.rehearsal = &rehearsal; }

  Tensor array(std::vector<std::int64_t> shape, Dtype dtype = Dtype::float32) {
    Tensor t(reinterpret_cast<void*>(++places << 44), dtype, std::move(shape));
    t.device = {DeviceKind::cuda, 0};
    return t;
  }
  std::string of_matrix(const char* text, ExplainShape of, const Tensor& weights) {
    pairwise_backward(Formula(text), array({of.m, of.k}, type), &(z = array({of.n, of.k}, type)), weights,
                      array({of.m, of.k}, compute_type(type)), {}, arguments, context);
    return rehearsal.ways.back();
  }
  /// With the product of so many columns, or false where that is another call's.
  bool has_product(const char* text, ExplainShape of, std::int64_t columns) {
    const Tensor product = array({of.m, columns});
    BesideGradient beside;
    beside.product = &product;
    return product_backward(Formula(text), array({of.m, of.k}), &(z = array({of.n, of.k})), array({of.m, columns}),
                            array({of.n, columns}), array({of.m, of.k}), beside, arguments, context);
  }

  CudaDevice device;
  cuda::Rehearsal rehearsal{cuda::Rehearsal::Purpose::workspace, &device};
  Arguments arguments;
  Context context;
  Dtype type = Dtype::float32;
  Tensor z;
  std::uintptr_t places = 0;
};

constexpr const char* kTexts[] = {"exp(-sum((x-z)^2)/(2*b^2))",
                                  "sum(abs(x-z))",
                                  "exp(-sum(abs(x-z))/b)",
                                  "sum(abs(x-z)^3)^(1/3)",
                                  "sum(abs(x-z)^1.3)",
                                  "sum(x*z)",
                                  "1-sum(x*z)/sqrt(sum(x*x)*sum(z*z))",
                                  "exp(-sum(w*(x-z)^2)/b)*sum(x*z)",
                                  "expm1(tanh(sin(sum(x*z)/8)))*b",
                                  "max(abs(x-z))"};

class Draw {
 public:
  Case operator()() {
    constexpr int kCapabilities[] = {90, 90, 90, 80, 86, 100, 120};
    constexpr Dtype kTypes[] = {Dtype::float32, Dtype::float32, Dtype::float32, Dtype::float64, Dtype::bfloat16,
                                Dtype::uint8};
    Case c;
    c.text = one_of(kTexts);
    c.verb = one_of(plan::kVerbs);
    c.shape = {size(200000, 300), size(200000, 300), below(3) == 0 ? size(16) : size(1500)};
    c.columns = std::min(below(2) == 0 ? size(16) : size(1000),
                         c.verb == plan::Verb::nearest ? c.shape.n : std::int64_t{1} << 20);
    c.points = one_of(kTypes);
    c.capability = one_of(kCapabilities);
    return c;
  }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }
  template <class T, std::size_t count>
  T one_of(const T (&list)[count]) {
    return list[below(count)];
  }
  std::int64_t size(double most, double least = 1) {
    std::uniform_real_distribution<double> logarithms(std::log(least), std::log(most));
    return static_cast<std::int64_t>(std::exp(logarithms(random_)));
  }
  std::mt19937_64 random_{20261130};
};

TEST(Ways, ExplainSaysWhatACallTakes) {
  Draw draw;
  Context context;
  std::map<std::string, int> taken;
  for (int turn = 0; turn < 240; ++turn) {
    const Case c = draw();
    const std::string way = way_of_call(c, context);
    EXPECT_EQ(way_of_explain(c), way) << c.to_text();
    ++taken[std::string(plan::name_of(c.verb)) + " " + way];
  }
  EXPECT_GE(taken.size(), 18u) << "the calls should take most of the ways";
}

TEST(Ways, EveryWayHasItsSay) {
  for (const plan::Verb verb : plan::kVerbs) {
    const std::string text = explained({.verb = verb, .shape = {10000, 10000, 64}, .columns = 20});
    for (const plan::Way* way : plan::ways_of(verb))
      EXPECT_NE(text.find(std::string(way->name) + ": "), std::string::npos) << way->name << " is not in\n" << text;
  }
  const std::string text = explained({.verb = plan::Verb::product, .shape = {10000, 10000, 64}, .columns = 3});
  EXPECT_NE(text.find("materialised: refused, columns of v: at least 17 must be there, 3 are"), std::string::npos)
      << text;
}

/// Passes over a few columns each would make the values again and again.
TEST(Ways, ValuesOfFewPairsAreStoredForManyColumns) {
  constexpr const char* kMatern = "(1+sqrt(3*sum((x-z)^2))/b)*exp(-sqrt(3*sum((x-z)^2))/b)";
  constexpr const char* kLaplace = "exp(-sum(abs(x-z))/b)";
  const auto product = [](const char* text, ExplainShape shape, std::int64_t columns, Dtype points = Dtype::float32) {
    return Case{.text = text, .verb = plan::Verb::product, .shape = shape, .columns = columns, .points = points};
  };
  Context context;
  for (const Case& c : {product(kLaplace, {2116, 321, 609}, 449), product(kMatern, {18384, 189, 6}, 503),
                        product(kMatern, {274, 9606, 93}, 362, Dtype::bfloat16),
                        product(kLaplace, {13066, 144, 48}, 100, Dtype::float64)})
    EXPECT_EQ(way_of_call(c, context), "materialised") << c.to_text();
  for (const Case& c : {product(kLaplace, {2116, 321, 609}, 16), product(kLaplace, {300, 200, 10}, 449),
                        product(kLaplace, {32, 100000, 609}, 449)})
    EXPECT_EQ(way_of_call(c, context), "direct") << c.to_text();
  context.set_precision(Precision::direct);
  EXPECT_EQ(way_of_call(product(kLaplace, {2116, 321, 609}, 449), context), "direct");
}

TEST(Ways, ForcedOnesAreTakenWhateverTheSizes) {
  const Case small{
      .text = "exp(-sum(abs(x-z))/b)", .verb = plan::Verb::product, .shape = {300, 200, 40}, .columns = 20};
  const Case matrix{.shape = {300, 200, 40}};
  Context context;
  EXPECT_EQ(way_of_call(small, context), "direct");
  context.set_ways("materialised");
  EXPECT_EQ(way_of_call(small, context), "materialised");
  EXPECT_EQ(way_of_call(matrix, context), "direct") << "a verb that has no such way chooses as ever";
  context.set_ways("kernel_product:gemm_sum,kernel_product:dual_pipe,direct");
  EXPECT_EQ(context.ways(), "kernel_product:gemm_sum,kernel_product:dual_pipe,direct");
  EXPECT_EQ(way_of_call(small, context), "dual_pipe") << "gemm_sum does not serve this formula";
  context.set_ways("");
  EXPECT_EQ(way_of_call(small, context), "direct");
}

TEST(Ways, GradientsTakeThoseThatAreForced) {
  Case gauss{.text = "exp(-sum((x-z)^2)/b)", .verb = plan::Verb::gradient, .shape = {300, 200, 40}, .columns = 3};
  Context context;
  EXPECT_EQ(way_of_call(gauss, context), "stored_values");
  for (const char* way : {"grad_lowrank", "grad_gemm", "grad_contract", "stored_values"}) {
    context.set_ways(std::string("kernel_gradient:") + way);
    EXPECT_EQ(way_of_call(gauss, context), way);
  }
  gauss.shape.k = 5;
  context.set_ways("");
  EXPECT_EQ(way_of_call(gauss, context), "few_features");
  context.set_ways("grad_gemm");
  EXPECT_EQ(way_of_call(gauss, context), "grad_gemm");
  gauss.text = "exp(-sum(abs(x-z))/b)";
  EXPECT_THROW(way_of_call(gauss, context), Error) << "its factor is a sign";
}

TEST(Ways, BackwardsChooseByWhatWeighsThePairs) {
  const ExplainShape large{4000, 4000, 64}, few{4000, 4000, 8};
  DryBackward dry;
  EXPECT_EQ(dry.of_matrix("sum(x*z)", large, dry.array({4000, 4000})), "matrix_times_points");
  EXPECT_EQ(dry.of_matrix("sum(x*z)", few, dry.array({4000, 4000})), "few_features");
  EXPECT_EQ(dry.of_matrix("exp(-sum((x-z)^2))", large, dry.array({4000, 4000})), "grad_lowrank");
  EXPECT_TRUE(dry.has_product("exp(-sum((x-z)^2))", large, 16));
  EXPECT_EQ(dry.rehearsal.ways.back(), "grad_lowrank");
  EXPECT_FALSE(dry.has_product("exp(-sum((x-z)^2))", large, 17)) << "a pass without it stores no pairs";
  EXPECT_EQ(dry.rehearsal.ways.back(), "grad_lowrank");
  EXPECT_TRUE(dry.has_product("exp(-sum((x-z)^2))", few, 17));
  EXPECT_EQ(dry.rehearsal.ways.back(), "few_features");
}

TEST(Ways, ForcedOnesThatDoNotServeAreErrors) {
  Context context;
  context.set_ways("gemm_sum");
  try {
    way_of_call({.shape = {300, 200, 40}}, context);
    FAIL() << "sum(abs(x-z)) is no product of matrices";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(error.what()).find("gemm_sum: the formula's sum over the features is no product of two"),
              std::string::npos)
        << error.what();
  }
  for (const char* unknown : {"gemm", "knn:gemm_sum", "direct,,x", "verb:direct"})
    EXPECT_THROW(context.set_ways(unknown), Error) << unknown;
  EXPECT_EQ(context.ways(), "gemm_sum");
}

}  // namespace
}  // namespace mercer
