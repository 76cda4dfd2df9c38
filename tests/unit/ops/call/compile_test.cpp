// What compile promises: the calls it was asked for find their plans; rules are checked before anything is compiled.
#include "mercer/compile.h"

#include <unistd.h>

#include <filesystem>
#include <set>

#include "jit/cuda_module.h"
#include "ops/call/compile_sources.h"
#include "ops/testing.h"
#include "plan/gpu/floor.h"

namespace mercer {
namespace {

using namespace testing_support;

TEST(Compile, CallsFindTheirPlans) {
  const Formula f("exp(-sum(abs(x-z)^p)/h)");
  CompileRequest request;
  request.verbs = {"pairwise", "kernel_product", "kernel_reduce", "knn", "kernel_gradient"};
  request.shapes = {{1, 100, 50, 7}, {2, 3, 50, 7}};
  request.dtypes = {Dtype::float32, Dtype::float64};
  request.layouts = {{}, {Layout::row, Layout::row, Layout::column}};
  request.params = {{"p", 1.3}};
  for (Dtype dtype : request.dtypes) {
    Context context;
    compile(f, request, context);
    const std::size_t plans = context.plan_count();
    EXPECT_GT(plans, 0u);
    for (std::int64_t m : {100, 3}) {
      const Array x = normal(dtype, {m, 7}, 1), z = normal(dtype, {50, 7}, 2), v = normal(dtype, {50, 1}, 3);
      const Array coef = normal(dtype, {50}, 4);
      const Array out(dtype, {m, 50}), across(dtype, {m, 50}, {1, m}), product(dtype, {m, 1}), gradient(dtype, {m, 7});
      const Array best(Dtype::int64, {m}), values(dtype, {m, 2}), indices(Dtype::int64, {m, 2});
      const Tensor zt = z;
      Arguments arguments;
      arguments.params = {{"p", 1.3}, {"h", 2.0}};
      pairwise(f, x, &zt, out, arguments, context);
      pairwise(f, x, &zt, across, arguments, context);
      kernel_product(f, x, &zt, v, product, arguments, context);
      kernel_reduce(f, x, &zt, ReduceKind::argmin, best, arguments, context);
      knn(f, x, &zt, 2, values, indices, arguments, context);
      kernel_gradient(f, x, &zt, coef, gradient, arguments, context);
    }
    EXPECT_EQ(context.plan_count(), plans);
  }
}

TEST(Compile, WhatAFormulaReadsIsNotNeeded) {
  Context context;
  CompileRequest request;
  request.shapes = {{1, 0, 9, 3}, {1, 9, 9, 0}, {1, 9, 9, 3}};
  request.verbs = {"pairwise", "kernel_gradient", "kernel_reduce"};
  request.columns = 3;
  compile("sum(w*abs(x-z)^p) + row + col + i", request, context);
  EXPECT_GT(context.plan_count(), 0u);
}

CompileRequest request_for(const std::string& architecture, std::vector<std::string> verbs) {
  CompileRequest request;
  request.verbs = std::move(verbs);
  request.shapes = {{1, 4096, 4096, 20}};
  request.devices = {{{DeviceKind::cuda, 0}, architecture}};
  return request;
}

/// The first words of the kernels' names, "pack x": what there is of each kind.
std::map<std::string, int> kinds_of(const Formula& f, const CompileRequest& request) {
  std::map<std::string, int> kinds;
  std::set<std::string> texts;
  for (const jit::CudaSource& source : ops::cuda_sources(f, request, request.devices.front()))
    if (texts.insert(source.text).second) {
      const auto end = source.name.find(' ', source.name.starts_with("pack") ? 5 : 0);
      ++kinds[source.name.substr(0, end)];
    }
  return kinds;
}

TEST(Compile, ListsEveryKernelOfACallOnCuda) {
  using Kinds = std::map<std::string, int>;
  const auto kinds = [](const char* f, const char* verb) { return kinds_of(f, request_for("sm_90a", {verb})); };
  EXPECT_EQ(kinds("sum(abs(x-z))", "pairwise"), (Kinds{{"tile", 1}, {"pack x", 1}, {"uniforms", 1}}));
  EXPECT_EQ(kinds("sum(abs(x-z))", "kernel_product"),
            (Kinds{{"tile", 1}, {"pack x", 1}, {"pack float32", 1}, {"uniforms", 1}, {"merge", 1}}));
  EXPECT_EQ(kinds("sum(abs(x-z))", "kernel_reduce"),
            (Kinds{{"tile", 6}, {"pack x", 1}, {"uniforms", 1}, {"merge", 6}}));
  EXPECT_EQ(kinds("sum(abs(x-z))", "knn"),
            (Kinds{{"tile", 2}, {"pack x", 1}, {"uniforms", 1}, {"candidates", 1}, {"nearest", 1}}));
  EXPECT_EQ(kinds("sum(abs(x-z))", "kernel_gradient"),
            (Kinds{{"field", 1}, {"pack float32", 1}, {"sum", 1}, {"uniforms", 1}}));
  // Numbers, and arrays.
  EXPECT_EQ(kinds("exp(-sum(abs(x-z))/h)", "pairwise"),
            (Kinds{{"tile", 2}, {"pack x", 1}, {"uniforms", 2}, {"fill", 1}}));
}

TEST(Compile, ANumberIsNotTakenForAnArrayToo) {
  CompileRequest request = request_for("sm_90a", {"pairwise"});
  request.params = {{"h", 2.0}};
  EXPECT_EQ(kinds_of("exp(-sum(abs(x-z))/h)", request)["tile"], 1);
  EXPECT_EQ(kinds_of("exp(-sum(abs(x-z))/h)", request)["fill"], 0);
}

TEST(Compile, SizesDecideAboutTheTiles) {
  CompileRequest request = request_for("sm_90a", {"pairwise"});
  request.shapes = {
      {1, 4096, 4096, 20}, {1, 4096, 4000, 20}, {1, 4096, 20, 20}, {1, 100, 100, 20}, {400, 100, 100, 20}};
  EXPECT_EQ(kinds_of("sum(abs(x-z))", request)["tile"], 3);
}

// Ways that only some devices take at these sizes are rehearsed as well, with no driver at hand.
TEST(Compile, EveryArchitectureIsRehearsedWithoutADevice) {
  for (const plan::GpuInfo& info : plan::gpu_infos()) {
    const std::string architecture = "sm_" + std::to_string(info.capability);
    for (const char* verb : {"pairwise", "kernel_product", "knn", "kernel_gradient"}) {
      CompileRequest request = request_for(architecture, {verb});
      request.shapes = {{1, 2048, 2048, 256}, {1, 300, 200, 3000}, {1, 20000, 300, 64}, {1, 20000, 20000, 3}};
      request.columns = 20;
      for (const char* f : {"sum(abs(x-z)^1.5)^(1/1.5)", "exp(-sum((x-z)^2))", "sum(x*z)"})
        EXPECT_FALSE(ops::cuda_sources(f, request, request.devices.front()).empty()) << architecture << verb << f;
    }
  }
}

/// The texts of a request's kernels.
std::set<std::string> texts_of(const Formula& f, CompileRequest request, std::vector<CompileRequest::Sizes> shapes) {
  request.shapes = std::move(shapes);
  std::set<std::string> texts;
  for (const jit::CudaSource& source : ops::cuda_sources(f, request, request.devices.front()))
    texts.insert(source.text);
  return texts;
}
bool includes(const std::set<std::string>& all, const std::set<std::string>& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

// Sizes at which points with themselves take another way than two arrays of that shape.
TEST(Compile, OneArrayAndTwoOfOneShape) {
  const CompileRequest request = request_for("sm_90a", {"pairwise"});
  const char* f = "sum(abs(x-z)^3)";
  EXPECT_TRUE(includes(texts_of(f, request, {{1, 4096, 4096, 512}}), texts_of(f, request, {{1, 4096, 4095, 512}})));
  EXPECT_FALSE(includes(texts_of(f, request, {{1, 4096, 4095, 512}}), texts_of(f, request, {{1, 4096, 4096, 512}})));
}

TEST(Compile, BatchesAndArraysOfSeveralValues) {
  const CompileRequest request = request_for("sm_90a", {"pairwise"});
  const auto one = texts_of("sum(abs(x-z))", request, {{1, 3000, 2900, 256}});
  const auto several = texts_of("sum(abs(x-z))", request, {{4, 3000, 2900, 256}});
  EXPECT_FALSE(includes(one, several));
  // The kernels that a batch takes in addition, an array of parameters takes too.
  const auto arrays = texts_of("exp(-sum(abs(x-z))/h)", request, {{1, 3000, 2900, 256}});
  int shared = 0;
  for (const std::string& text : several) {
    if (text.find("start_mixed") == std::string::npos) continue;
    ++shared;
    EXPECT_TRUE(arrays.contains(text));
  }
  EXPECT_GT(shared, 0);
}

TEST(Compile, Fields) {
  const Formula field = Formula::field(parse("x-z"));
  CompileRequest request = request_for("sm_90a", {"gradient_field"});
  request.columns = 16;
  const std::map<std::string, int> kinds = kinds_of(field, request);
  EXPECT_GT(kinds.at("field"), 0);
  Context context;
  request.devices = {{}};
  compile(field, request, context);
  EXPECT_EQ(context.plan_count(), 1u);
  request.verbs = {"gradient_field", "pairwise"};
  EXPECT_THROW(compile(field, request, context), Error);
  request.verbs = {"gradient_field"};
  EXPECT_THROW(compile("sum(abs(x-z))", request, context), Error);
}

TEST(Compile, ArchitecturesOfOneGenerationAreTheSame) {
  for (const char* name : {"sm_90", "sm_90a"}) {
    const CompileRequest request = request_for(name, {"pairwise"});
    for (const jit::CudaSource& source : ops::cuda_sources("l1", request, request.devices.front()))
      EXPECT_EQ(source.architecture, "sm_90a");
  }
}

TEST(Compile, ArchitecturesNeedNoGpu) {
  MERCER_NEEDS_NVRTC();
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("mercer-compile-{}", ::getpid());
  jit::CudaCompiler compiler(FileCache(folder, std::int64_t{1} << 26), {});
  const CompileRequest request = request_for("sm_80", {"pairwise", "kernel_product"});
  for (auto origin : {jit::CudaBinary::Origin::compiled, jit::CudaBinary::Origin::cache}) {
    const auto sources = ops::cuda_sources("sum(abs(x-z))", request, request.devices.front());
    for (const jit::CudaBinary& binary : compiler.compile_all(sources)) {
      EXPECT_EQ(binary.origin, origin) << binary.name;
      EXPECT_EQ(binary.cubin.substr(1, 3), "ELF");
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(Compile, CallsOnCudaFindTheirPlans) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  const Formula f("exp(-sum(abs(x-z)^p)/h)");
  CompileRequest request = request_for("", {"pairwise", "kernel_product", "kernel_reduce", "knn", "kernel_gradient"});
  request.shapes = {{1, 300, 200, 7}};
  request.params = {{"p", 1.3}};
  Context context;
  compile(f, request, context);
  const std::size_t plans = context.plan_count();
  const int modules = jit::cuda_module_count();
  const DeviceMemory memory(0, 1 << 20);
  const DeviceMemory result(0, 1 << 20);
  const DeviceStream stream;
  const auto on_device = [](const DeviceMemory& place, Dtype dtype, Shape shape) {
    Tensor t(place.data(), dtype, std::move(shape));
    t.device = {DeviceKind::cuda, 0};
    return t;
  };
  const auto in = [&](Shape shape) { return on_device(memory, Dtype::float32, std::move(shape)); };
  const auto out = [&](Shape shape) { return on_device(result, Dtype::float32, std::move(shape)); };
  const Array host_h = filled(Dtype::float64, {1}, {2.0});
  for (const Argument& h : {Argument(2.0), Argument(static_cast<Tensor>(host_h)),
                            Argument(on_device(memory, Dtype::float64, {1}))}) {
    Arguments arguments;
    arguments.params = {{"p", 1.3}, {"h", h}};
    arguments.queue.stream = static_cast<CuStream>(stream);
    const bool array = !std::holds_alternative<double>(h);
    const auto shaped = [&](Shape shape) {
      if (array) shape.insert(shape.begin(), 1);
      return out(std::move(shape));
    };
    const Tensor x = in({300, 7}), z = in({200, 7});
    pairwise(f, x, &z, shaped({300, 200}), arguments, context);
    kernel_product(f, x, &z, in({200, 1}), shaped({300, 1}), arguments, context);
    for (ReduceKind kind : {ReduceKind::sum, ReduceKind::max, ReduceKind::min, ReduceKind::logsumexp})
      kernel_reduce(f, x, &z, kind, shaped({300}), arguments, context);
    kernel_gradient(f, x, &z, in({200}), shaped({300, 7}), arguments, context);
    stream.wait();
  }
  EXPECT_EQ(context.plan_count(), plans);
  EXPECT_EQ(jit::cuda_module_count(), modules);
}

TEST(Compile, Rules) {
  Context context;
  const auto refused = [&](const CompileRequest& request, const char* words) {
    try {
      compile("sum(abs(x-z))", request, context);
      ADD_FAILURE() << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
    EXPECT_EQ(context.plan_count(), 0u);
  };
  CompileRequest request;
  request.shapes = {{1, 4, 4, 4}};
  CompileRequest other = request;
  other.verbs = {"pairwise", "knm"};
  refused(other, "verbs must be some of pairwise, kernel_matrix");
  other = request;
  other.shapes = {{1, -4, 4, 4}};
  refused(other, "shapes must not be negative. Received (1, -4, 4, 4)");
  other = request;
  other.dtypes = {Dtype::int64};
  refused(other, "dtypes must be float16");
  other = request;
  other.devices = {{{}, "sm90"}};
  refused(other, "architectures such as \"sm_90a\". Received \"sm90\"");
  other = request;
  other.devices = {{{DeviceKind::cuda, 0}, "sm_75"}};
  refused(other, "the architecture must be at least sm_80. Received sm_75");
  other = request;
  other.columns = 0;
  refused(other, "columns must be at least 1");
  other = request;
  other.params = {{"p", 1.0}};
  refused(other, "has no parameter \"p\"");
  EXPECT_THROW(layout_from_text("rows"), Error);
}

}  // namespace
}  // namespace mercer
