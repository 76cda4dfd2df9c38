// What compile promises: the calls it was asked for find their plans; rules are checked before anything is compiled.
#include "mercer/compile.h"

#include "ops/testing.h"

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
  other.columns = 0;
  refused(other, "columns must be at least 1");
  other = request;
  other.params = {{"p", 1.0}};
  refused(other, "has no parameter \"p\"");
  EXPECT_THROW(layout_from_text("rows"), Error);
}

}  // namespace
}  // namespace mercer
