// Ways on GPUs: what explain says of them is what calls take, and ways that are forced. No GPU is needed.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "backend/rehearsal.h"
#include "ir/passes/split.h"
#include "mercer/mercer.h"
#include "ops/call/prepared.h"
#include "ops/context.h"
#include "ops/pairs/backward_call.h"
#include "ops/pairs/backward_plan.h"
#include "plan/gpu/floor.h"

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
  explicit DryBackward(int capability = 90) : device(device_of(capability)) { arguments.queue.rehearsal = &rehearsal; }

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
  /// Whether the call includes the product of so many columns; false where that is another call's.
  bool has_product(const char* text, ExplainShape of, std::int64_t columns) {
    const Tensor product = array({of.m, columns});
    ExtraOutputs extra_outputs;
    extra_outputs.product = &product;
    return product_backward(Formula(text), array({of.m, of.k}), &(z = array({of.n, of.k})), array({of.m, columns}),
                            array({of.n, columns}), array({of.m, of.k}), extra_outputs, arguments, context);
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

/// Values on tensor cores that the way of the passes does not store itself: of inner products, of rows.
TEST(Ways, ValuesOnTensorCoresAreStoredForManyColumns) {
  constexpr const char *kCubes = "(1+sum(x*z)/b)^3", *kGauss = "exp(-sum(square(x-z))/(2*b^2))";
  const auto product = [](const char* text, ExplainShape shape, std::int64_t columns) {
    return Case{.text = text, .verb = plan::Verb::product, .shape = shape, .columns = columns};
  };
  Context context;
  for (const Case& c : {product(kCubes, {20000, 20000, 784}, 512), product(kGauss, {1000, 100000, 784}, 512)})
    EXPECT_EQ(way_of_call(c, context), "materialised") << c.to_text();
  for (const Case& c : {product(kCubes, {20000, 20000, 784}, 100), product(kCubes, {20000, 20000, 64}, 200),
                        product(kGauss, {20000, 20000, 784}, 512), product(kGauss, {50000, 50000, 64}, 512)})
    EXPECT_EQ(way_of_call(c, context), "gemm_sum") << c.to_text();
}

/// Blocks share the features of few tiles; many tiles fill the device, and little work is no gain.
TEST(Ways, FewTilesOfManyFeaturesAreShared) {
  constexpr const char *kDot = "sum(x*z)", *kPower = "sum(abs(x-z)^1.3)", *kL1 = "sum(abs(x-z))";
  const auto matrix = [](const char* text, ExplainShape shape, Dtype type = Dtype::float32) {
    return Case{.text = text, .shape = shape, .points = type};
  };
  Context context;
  for (const Case& c : {matrix(kDot, {370, 1570, 1257}), matrix(kDot, {13066, 144, 1877}, Dtype::float64),
                        matrix(kPower, {201, 135, 48}, Dtype::float64), matrix(kL1, {300, 400, 3000})})
    EXPECT_EQ(way_of_call(c, context), "split_k") << c.to_text();
  for (const Case& c : {matrix(kL1, {1000, 1000, 1000}), matrix(kL1, {100, 100, 40}), matrix(kL1, {10000, 10000, 64}),
                        matrix(kPower, {201, 135, 16}, Dtype::float64)})
    EXPECT_EQ(way_of_call(c, context), "direct") << c.to_text();
  EXPECT_EQ(way_of_call(matrix(kDot, {5000, 5000, 784}), context), "gemm_sum");
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
  gauss.points = Dtype::float64;
  context.set_ways("kernel_gradient:grad_gemm_float64");
  EXPECT_EQ(way_of_call(gauss, context), "grad_gemm_float64");
  context.set_ways("");
  gauss.shape = {4000, 4000, 127};
  EXPECT_EQ(way_of_call(gauss, context), "stored_values");
  gauss.shape = {2000, 2000, 128};
  EXPECT_EQ(way_of_call(gauss, context), "stored_values") << "2^28.9 pairs times features";
  gauss.shape = {2100, 2100, 128};
  EXPECT_EQ(way_of_call(gauss, context), "grad_gemm_float64");
  gauss.points = Dtype::float32;
  gauss.shape = {300, 200, 5};
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

/// The ways that a text marks, in order.
std::vector<std::string> marked_in(const std::string& text) {
  std::vector<std::string> ways;
  for (std::size_t at = text.find("\n* "); at != std::string::npos; at = text.find("\n* ", at + 1))
    ways.push_back(text.substr(at + 3, text.find(':', at) - at - 3));
  return ways;
}

/// kernel_agop takes the gradients of some rows and multiplies them.
TEST(Ways, ExplainSaysWhatOuterProductsTake) {
  Draw draw;
  for (int turn = 0; turn < 40; ++turn) {
    const Case c = draw();
    const auto [m, n, k] = c.shape;
    const Dtype type = compute_type(c.points);
    DryBackward dry(c.capability);
    const Formula f(c.text);
    for (const Expr& leaf : f.prepared().params) dry.arguments.params[leaf->name] = 1.5;
    if (f.prepared().uses.w) dry.arguments.w = dry.array({k}, type);
    const Tensor z = dry.array({n, k}, c.points);
    kernel_agop(f, dry.array({m, k}, c.points), &z, dry.array({c.columns, n}, type), dry.array({k, k}, type),
                dry.arguments, dry.context);
    const std::string text = explain(f, c.shape, c.points, "sm_" + std::to_string(c.capability),
                                     {.verb = "kernel_agop", .columns = c.columns});
    EXPECT_EQ(marked_in(text), dry.rehearsal.ways) << c.to_text() << "\n" << text;
  }
}

/// The leaves by which backwards are explained, but for v.
ops::BackwardRequest backward_of(const Formula& f, ExplainShape shape, Dtype points, int capability) {
  const Formula::Prepared& prepared = f.prepared();
  ops::BackwardRequest request;
  request.formula = prepared.written;
  request.wanted = {"x", "z"};
  request.m = shape.m, request.n = shape.n, request.k = shape.k;
  request.type = compute_type(points);
  request.capability = capability;
  request.has_w = prepared.uses.w;
  if (request.has_w) request.wanted.push_back("w");
  for (const Expr& leaf : prepared.params) request.wanted.push_back("p:" + leaf->name);
  return request;
}

/// The ways of the passes over the pairs, which are not run.
std::vector<std::string> ways_of_passes(const ops::BackwardRequest& request, Dtype points, DryBackward& dry) {
  using Verb = ops::BackwardPass::Verb;
  Expr f = request.formula;
  dry.rehearsal.ways.clear();
  for (const ops::BackwardPass& pass : ops::plan_backward(request)) {
    if (pass.verb == Verb::point_form) f = parse(pass.formula), points = request.type;
    const bool is_linear = pass.verb == Verb::linear_form_by_pass, of_z = pass.rows == ops::PassRows::z;
    const bool of_matrix = is_linear || pass.verb == Verb::pairwise_backward;
    const Formula own(is_linear ? parse("sum(x*z)") : of_z ? ir::swap_sides(f) : f);
    const std::int64_t m = of_z ? request.n : request.m, n = of_z ? request.m : request.n;
    const Dtype stored = is_linear ? request.type : points;
    const Tensor x = dry.array({m, request.k}, stored), z = dry.array({n, request.k}, stored);
    Arguments arguments;
    arguments.queue = dry.arguments.queue;
    for (const Expr& leaf : own.prepared().params) arguments.params[leaf->name] = 1.5;
    const ir::Uses& uses = own.prepared().uses;
    if (uses.w) arguments.w = dry.array({request.k}, request.type);
    if (uses.row) arguments.row = dry.array({m}, request.type);
    if (uses.col) arguments.col = dry.array({n}, request.type);
    const Tensor weights = dry.array({m, of_matrix ? n : 1}, request.type), v = dry.array({n, 1}, request.type);
    ops::BackwardCall::Wanted wanted;
    if (!is_linear) wanted.product = pass.product, wanted.without_weight = pass.without_weight;
    for (const std::string& by : is_linear ? std::vector<std::string>() : pass.by)
      by == "w" ? void(wanted.weights = true) : wanted.by.push_back(by.starts_with("p:") ? by.substr(2) : by);
    if (of_matrix || pass.verb == Verb::product_backward)
      ops::BackwardCall("dry", own, x, &z, weights, of_matrix ? nullptr : &v, wanted, arguments, dry.context);
    if (pass.verb == Verb::product)
      kernel_product(own, x, &z, v, dry.array({m, 1}, request.type), arguments, dry.context);
  }
  return dry.rehearsal.ways;
}

TEST(Ways, ExplainSaysWhatBackwardsTake) {
  Draw draw;
  std::set<std::string> taken;
  for (int turn = 0; turn < 150; ++turn) {
    const Case c = draw();
    DryBackward dry(c.capability);
    const Formula f(c.text);
    ops::BackwardRequest request = backward_of(f, c.shape, c.points, c.capability);
    std::vector<std::string> expected;
    for (const auto weights : {ops::PairWeights::matrix, ops::PairWeights::factors}) {
      request.weights = weights;
      if (weights == ops::PairWeights::factors) request.wanted.push_back("v");
      const auto ways = ways_of_passes(request, c.points, dry);
      expected.insert(expected.end(), ways.begin(), ways.end());
    }
    const std::string text = ops::explain_backward(f, c.shape, c.points, "sm_" + std::to_string(c.capability));
    const std::vector<std::string> said = marked_in(text);
    EXPECT_EQ(said, expected) << c.to_text() << "\n" << text;
    taken.insert(said.begin(), said.end());
  }
  const std::string refused =
      ops::explain_backward(Formula("reduce(x-z, a0*0.5+t0, 0)"), {5000, 4000, 64}, Dtype::float32, "sm_90");
  EXPECT_NE(refused.find("cannot run: differentiate: by x, z or w this reduce has no"), std::string::npos) << refused;
  EXPECT_GE(taken.size(), 5u) << "the passes should take most of the ways";
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
  for (const char* unknown : {"gems", "knn:gemm_sum", "direct,,x", "verb:direct"})
    EXPECT_THROW(context.set_ways(unknown), Error) << unknown;
  EXPECT_EQ(context.ways(), "gemm_sum");
}

}  // namespace
}  // namespace mercer
