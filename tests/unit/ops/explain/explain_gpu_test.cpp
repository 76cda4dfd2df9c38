// explain and floors for GPUs, which need none.
#include <gtest/gtest.h>

#include "mercer/mercer.h"

namespace mercer {
namespace {

constexpr ExplainShape kLarge{30000, 30000, 1024};

double floor_of(const char* text, ExplainShape shape = kLarge, Dtype dtype = Dtype::float32, const GpuCall& call = {}) {
  return gpu_floor(Formula(text), shape, dtype, "sm_90", call).ms;
}

TEST(ExplainGpu, SaysEveryStage) {
  const std::string text = explain(Formula("exp(-sum(abs(x-z))/h)"), {4096, 4096, 256}, Dtype::float32, "sm_90");
  for (const char* part : {"## formula", "## split", "## plan", "tile ", "## update, per (m, n, k)", "slots",
                           "## epilogue, per (m, n)", "## source", "sm_90a", "## floor", "NVIDIA H200", " ms"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
}

TEST(ExplainGpu, KnowsEveryGeneration) {
  for (const char* target : {"sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"})
    EXPECT_NE(explain(Formula("max(abs(x-z))"), {64, 64, 16}, Dtype::float64, target).find("## floor"),
              std::string::npos);
  for (const char* target : {"sm_75", "sm_", "sm_90z", "sm_9x"})
    EXPECT_THROW(explain(Formula("max(abs(x-z))"), {64, 64, 16}, Dtype::float32, target), Error) << target;
  EXPECT_THROW(explain(Formula("max(abs(x-z))"), {-1, 64, 16}, Dtype::float32, "sm_90"), Error);
}

/// The floor is that of the products that calls take.
TEST(ExplainGpu, FloorsKnowThePrecision) {
  const auto floor = [](Precision precision) {
    Context::shared().set_precision(precision);
    const std::string text = explain(Formula("sum((x-z)^2)"), kLarge, Dtype::float32, "sm_90");
    Context::shared().set_precision(Precision::fp32);
    return text.substr(text.find("## floor"));
  };
  EXPECT_NE(floor(Precision::fp32).find("tensor cores 7.899 ms"), std::string::npos);
  EXPECT_NE(floor(Precision::tf32).find("tensor cores 2.633 ms"), std::string::npos);
  EXPECT_NE(floor(Precision::direct).find("tensor cores 42.13 ms"), std::string::npos) << "of sixteen numbers each";
}

TEST(ExplainGpu, NamesOfCpuTargetsStillServe) {
  const Formula f("sum(abs(x-z))");
  EXPECT_EQ(explain(f, {64, 64, 16}, Dtype::float32, "x86_avx2"),
            explain(f, {64, 64, 16}, Dtype::float32, Target::x86_avx2));
}

TEST(GpuFloor, CountsSlots) {
  EXPECT_NEAR(floor_of("sum(max(abs(x-z)-c,0)^2)"), 4 * 27.55, 0.1);  // subtract, subtract, maximum, multiply-add
  EXPECT_NEAR(floor_of("exp(-sum(abs(x-z))/h)", {30000, 30000, 3}), 0.85, 0.01);  // its output alone
}

TEST(GpuFloor, CountsBothProgramsOfAPower) {
  const char* power = "sum(abs(x-z)^1.3)";
  EXPECT_LT(floor_of(power), 16 * 27.55);  // all on the special-function unit: two of eight slots each
  EXPECT_NE(explain(Formula(power), kLarge, Dtype::float32, "sm_90").find("pairs in 8"), std::string::npos);
}

/// Sixteen multiply-adds of 16 bits, at 700 TFLOP/s.
constexpr double kByTensorCores = 16 * 2e3 * 30000.0 * 30000.0 * 1024 / 700e12;

TEST(GpuFloor, CountsAbsoluteDifferencesOnTwoPipes) {
  const char* text = "sum(abs(x-z))";
  EXPECT_NEAR(floor_of(text, kLarge, Dtype::float32, {.mixed_pipes = false}), kByTensorCores, 0.1);
  EXPECT_NEAR(floor_of(text), 1.375 * 27.55, 0.1);  // five pairs in eight take one slot, three take two
  EXPECT_NEAR(floor_of(text, {2048, 2048, 256}), 0.0441, 0.001);
  EXPECT_NEAR(floor_of(text, {1024, 1024, 256}), 0.0160, 0.001);  // too small to pay for it
  EXPECT_NE(explain(Formula(text), kLarge, Dtype::float32, "sm_90").find("on average 1.375 slots"), std::string::npos);
}

/// Tensor cores multiply stored values by many columns of v, whatever the formula.
TEST(GpuFloor, CountsColumnsOfStoredValues) {
  const auto floor = [](std::int64_t columns) {
    return floor_of("sum(abs(x-z))", {10000, 10000, 20}, Dtype::float32,
                    {.verb = "kernel_product", .columns = columns});
  };
  constexpr double kPairs = 1e8, kMultiplyAdds = 132 * 128 * 1.755e6;  // in a millisecond
  EXPECT_GT(floor(16), 16 * kPairs / kMultiplyAdds);
  EXPECT_NEAR(floor(512), 512 * 6 * kPairs / 700e9, 0.05);
}

/// Passes over 16 columns make the values again, where they are not stored.
TEST(GpuFloor, CountsValuesOfEveryPass) {
  const ExplainShape few{1000, 40, 64};  // below the size from which storing is considered
  const auto floor = [&](std::int64_t columns) {
    const GpuCall call{.verb = "kernel_product", .columns = columns};
    return gpu_floor(Formula("sum(abs(x-z))"), few, Dtype::float32, "sm_90", call);
  };
  const double one_column = 4e4 / (132 * 128 * 1.98e6);  // a multiply-add for each pair
  EXPECT_NEAR(floor(64).issue - 64 * one_column, 4 * (floor(16).issue - 16 * one_column), 1e-9);
}

TEST(GpuFloor, CountsBytesFourAnInstruction) {
  EXPECT_NEAR(floor_of("sum(abs(x-z))", kLarge, Dtype::uint8), 0.5 * 27.55, 0.1);
  EXPECT_NEAR(floor_of("sum((x-z)^2)", kLarge, Dtype::uint8, {.products = 0}), kByTensorCores, 0.1);
  EXPECT_NEAR(floor_of("sum(abs(x-z)^3)"), 2 * 27.55, 0.1);  // a third instruction is the tensor cores'
  EXPECT_NEAR(floor_of("sum(abs(x-z)^3)", {3000, 3000, 1024}), 3 * 0.2755, 0.01);
  EXPECT_NE(explain(Formula("sum(abs(x-z))"), kLarge, Dtype::uint8, "sm_90").find("on average 0.5 slots"),
            std::string::npos);
}

TEST(GpuFloor, OfProductsOnTensorCores) {
  EXPECT_NEAR(floor_of("sum((x-z)^2)"), 3 * 2e3 * 30000.0 * 30000 * 1024 / 700e12, 0.01);
  EXPECT_NEAR(floor_of("sum(x*z)", kLarge, Dtype::float32, {.products = 1}), floor_of("sum(x*z)") / 3, 0.01);
  EXPECT_NEAR(floor_of("sum(x*z)", kLarge, Dtype::float32, {.products = 0}), 27.55, 0.1);
  const std::string text = explain(Formula("sum((x-z)^2)"), kLarge, Dtype::float32, "sm_90");
  EXPECT_NE(text.find("three products of 16-bit pieces"), std::string::npos);
}

TEST(GpuFloor, OfCallsThatShareOrSkipWork) {
  const char* text = "exp(-sum(abs(x-z))/h)";
  const ExplainShape shape{8192, 8192, 64};
  const double one = floor_of(text, shape), eight = floor_of(text, shape, Dtype::float32, {.items = 8});
  EXPECT_LT(eight, 8 * one);
  EXPECT_GT(eight, one);
  EXPECT_NEAR(floor_of("sum(abs(x-z))", kLarge, Dtype::float32, {.symmetric = true}), floor_of("sum(abs(x-z))") / 2,
              0.1);
}

TEST(ExplainGpu, SaysHowGradientsRun) {
  const auto expect = [](const char* f, ExplainShape shape, std::initializer_list<const char*> parts) {
    const std::string text = explain(Formula(f), shape, Dtype::float32, std::string("sm_90"),
                                     {.verb = "kernel_gradient", .columns = 16});
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  };
  const ExplainShape shape{10000, 10000, 768};
  expect("sum(abs(x-z))", shape, {"* grad_contract", "signs by ranks", "phi = 1 * (sign(x - z)) * amplitude (1)\n"});
  expect("sum(abs(x-z)^1.5)", shape, {"* grad_contract", "three products of 16 bits, to float32"});
  expect("sum(abs(x-z)^1.8)", shape, {"* grad_contract", "three products of tf32, to float32"});
  expect("exp(-sum((x-z)^2)/30)", shape, {"* grad_gemm", "stored amplitudes times coefficients and features"});
  expect("sum(abs(x-z))/sum(abs(x+z))", shape, {"* stored_values", "phi by multiply-adds"});
  expect("sum((x-z)^2)", {1000, 1000, 3}, {"* few_features", "phi by multiply-adds, in one pass over the pairs"});
  expect("exp(-sum((x-z)^2))", {30000, 30000, 20}, {"* grad_lowrank", "amplitudes are contracted"});
}

TEST(GpuFloor, OfProductsAndGradients) {
  const char* text = "exp(-sum((x-z)^2)/h)";
  const ExplainShape shape{10000, 10000, 64};
  const double product = floor_of(text, shape, Dtype::float32, {.verb = "kernel_product"});
  EXPECT_GT(product, 0);
  EXPECT_GT(floor_of(text, shape, Dtype::float32, {.verb = "kernel_product", .columns = 64}), product);
  // Values times v: pieces of 16 bits of a Gauss kernel and of stored values, of tf32 of others, and the products
  // that values come from.
  const ExplainShape many{50000, 50000, 64};
  const double products = 3 * 2 * 2.5e9 * 64 / 7e14 * 1e3;
  const GpuCall call{.verb = "kernel_product", .columns = 512};
  EXPECT_NEAR(floor_of(text, many, Dtype::float32, call), 9 * products, 0.1);
  const char* laplace = "exp(-sqrt(sum((x-z)^2))/h)";
  EXPECT_NEAR(floor_of(laplace, many, Dtype::float32, {.verb = "kernel_product", .columns = 64}), 3 * products, 0.1);
  EXPECT_NEAR(floor_of(laplace, many, Dtype::float32, call), 9 * products, 0.1) << "values are stored";
  const double gradient = floor_of("sum(abs(x-z))", shape, Dtype::float32, {.verb = "kernel_gradient", .columns = 16});
  EXPECT_GT(gradient, 16 * 1e8 * 64 / 3.345e13 * 1e3);  // the multiply-adds of the contraction alone
  // A linear factor takes three products for the sums and three of tf32 for every feature and one.
  EXPECT_NEAR(floor_of(text, many, Dtype::float32, {.verb = "kernel_gradient", .columns = 2}),
              products + 2 * 65 * 6 * 2 * 2.5e9 / 7e14 * 1e3, 0.1);
  // Signs: three products of bytes at twice 700 TFLOP/s; whatever else the tile does takes less.
  const ExplainShape wide{10000, 10000, 768};
  EXPECT_NEAR(floor_of("sum(abs(x-z))", wide, Dtype::float32, {.verb = "kernel_gradient", .columns = 16}),
              1.5 * 2 * 1e8 * 768 * 16 / 7e14 * 1e3, 0.1);
  // Nearest neighbours take the values of the pairs alone: three products.
  EXPECT_NEAR(floor_of("sqrt(sum((x-z)^2))", {20000, 1000000, 128}, Dtype::float32, {.verb = "knn"}),
              3 * 2 * 2e10 * 128 / 7e14 * 1e3, 0.1);
  EXPECT_THROW(floor_of(text, shape, Dtype::float32, {.verb = "kernel_agop"}), Error);
}

TEST(GpuFloor, Float64TakesItsOwnLanes) {
  EXPECT_NEAR(floor_of("sum(abs(x-z))", kLarge, Dtype::float64), 2 * 55.1, 0.1);
}

}  // namespace
}  // namespace mercer
