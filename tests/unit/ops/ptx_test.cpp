// A user's PTX through the operations: its meaning on CPUs and in float64, its text in float32 on GPUs.
#include "core/sanitized.h"
#include "jit/cuda_compile.h"
#include "mercer/compile.h"
#include "ops/call/compile_sources.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

struct Row {
  const char* user;
  const char* plain;
};
/// Calls in terms, epilogues and states; with registers of their own; of several outputs; of one side; of parameters.
const Row kRows[] = {
    {"sum(ptx(\"sub.f32 {out}, {0}, {1}; abs.f32 {out}, {out};\", x, z; abs(x - z)))", "sum(abs(x - z))"},
    {"exp(-sum(ptx(\"{ .reg .f32 t; sub.f32 t, {0}, {1}; mul.f32 {out}, t, t; }\", x, z; square(x - z)))/b)",
     "exp(-sum(square(x - z))/b)"},
    {"s = sum(abs(x - z)); ptx(\"fma.rn.f32 {out}, {0}, {1}, {2};\", s, b, row; fma(s, b, row))",
     "fma(sum(abs(x - z)), b, row)"},
    {"lo = ptx(\"min.f32 {out0}, {0}, {1}; max.f32 {out1}, {0}, {1};\", x, z; out0=min(x, z));"
     "hi = ptx(\"min.f32 {out0}, {0}, {1}; max.f32 {out1}, {0}, {1};\", x, z; out1=max(x, z)); sum(hi - lo)/b",
     "sum(max(x, z) - min(x, z))/b"},
    {"sum(ptx(\"abs.f32 {out}, {0};\", x; abs(x))*abs(z)) + sum(ptx(\"abs.f32 {out}, {0};\", x; abs(x)))",
     "sum(abs(x)*abs(z)) + sum(abs(x))"},
    {"reduce(abs(x - z), ptx(\"add.f32 {out}, {0}, {1};\", a, t; a + t), 0)", "sum(abs(x - z))"},
    {"sum(abs(x - z))*ptx(\"mul.f32 {out}, {0}, {0};\", b; b*b)", "sum(abs(x - z))*(b*b)"},
    // Bits and predicates, as inputs, outputs and registers; of eight inputs and of none.
    {"sum(ptx(\"{ .reg .u32 t; and.b32 t, {0:u32}, 0x7fffffff; mov.u32 {out:u32}, t; }\", x - z; abs(x - z))"
     " + ptx(\"selp.f32 {out}, {1}, {2}, {0:pred};\", x < z, x, z; where(x < z, x, z))"
     " + ptx(\"setp.lt.f32 {out:pred}, {0}, {1};\", x, z; x < z))*ptx(\"mov.f32 {out}, 0f40000000;\"; 2)",
     "sum(abs(x - z) + where(x < z, x, z) + where(x < z, 1, 0))*2"},
    {"sum(ptx(\"{ .reg .f32 t; mov.f32 t, {0}; @{2:pred} neg.f32 t, t; fma.rn.f32 t, {1}, {3}, t; fma.rn.f32 t, {4}, "
     "{5}, t; fma.rn.f32 t, {6}, {7}, t; mov.f32 {out}, t; }\", x, z, z < 0, x, x, x, z, b; "
     "where(z < 0, -x, x) + z*x + x*x + z*b))",
     "sum(where(z < 0, -x, x) + z*x + x*x + z*b)"},
};

Arguments arguments_for(const char* text, const Array& row) {
  Arguments arguments;
  if (std::string(text).find("b") != std::string::npos && !parameters(parse(text)).empty()) arguments.params["b"] = 1.5;
  if (std::string(text).find("row") != std::string::npos) arguments.row = row;
  return arguments;
}

TEST(PtxCalls, EveryTargetComputesTheFormula) {
  for (const Row& row : kRows)
    for (Dtype dtype : kWide) {
      const Array x = normal(dtype, {37, 21}, 1), z = normal(dtype, {70, 21}, 2), values = normal(dtype, {37}, 3);
      const Tensor zt = z;
      Extra extra;
      extra.params["b"] = 1.5;
      for (std::int64_t i = 0; i < 37; ++i) extra.row.push_back(values(i));
      const Expected expected = expected_pairs(parse(row.plain), x, z, 4 * unit(dtype),
                                               parse("abs(row) + sum(abs(x) + abs(z))^2"), extra);
      on_each_target([&](TestContext& context) {
        const Array out(dtype, {37, 70});
        pairwise(row.user, x, &zt, out, arguments_for(row.user, values), context);
        expect_pairs(out, expected, row.user);
      });
    }
}

TEST(PtxCalls, OnCpusTheMeaningHasTheCodeOfThePlainFormula) {
  for (const Row& row : kRows) {
    if (std::string(row.user).find("reduce") != std::string::npos) continue;  // whose order of terms is fixed
    const Array x = normal(Dtype::float32, {37, 21}, 1), z = normal(Dtype::float32, {70, 21}, 2),
                values = normal(Dtype::float32, {37}, 3), v = normal(Dtype::float32, {70, 2}, 4);
    const Tensor zt = z;
    on_each_cpu_target([&](TestContext& context) {
      const Array user(Dtype::float32, {37, 70}), plain(Dtype::float32, {37, 70});
      const Array y(Dtype::float32, {37, 2}), y_plain(Dtype::float32, {37, 2});
      pairwise(row.user, x, &zt, user, arguments_for(row.user, values), context);
      pairwise(row.plain, x, &zt, plain, arguments_for(row.plain, values), context);
      EXPECT_TRUE(same_bits(user, plain)) << row.user;
      kernel_product(row.user, x, &zt, v, y, arguments_for(row.user, values), context);
      kernel_product(row.plain, x, &zt, v, y_plain, arguments_for(row.plain, values), context);
      EXPECT_TRUE(same_bits(y, y_plain)) << row.user;
    });
  }
}

TEST(PtxCalls, GradientsFollowTheMeaning) {
  const Array x = normal(Dtype::float64, {9, 5}, 1), z = normal(Dtype::float64, {12, 5}, 2),
              coef = normal(Dtype::float64, {12}, 3);
  const Tensor zt = z;
  Arguments arguments;
  arguments.params["b"] = 1.5;
  on_each_target([&](TestContext& context) {
    const Array user(Dtype::float64, {9, 5}), plain(Dtype::float64, {9, 5});
    kernel_gradient(kRows[1].user, x, &zt, coef, user, arguments, context);
    kernel_gradient(kRows[1].plain, x, &zt, coef, plain, arguments, context);
    EXPECT_TRUE(same_bits(user, plain));
  });
}

/// Only GPUs would show a text that differs from its meaning.
TEST(PtxCalls, GpusRunTheText) {
  const Array x = normal(Dtype::float32, {37, 21}, 1), z = normal(Dtype::float32, {70, 21}, 2);
  const Tensor zt = z;
  const Expected twice = expected_pairs(parse("sum(2*abs(x - z))"), x, z, unit(Dtype::float32));
  const char* text = "sum(ptx(\"sub.f32 {out}, {0}, {1}; abs.f32 {out}, {out}; add.f32 {out}, {out}, {out};\", x, z; "
                     "abs(x - z)))";
  if (!is_wanted("cuda") || !cuda_serves()) GTEST_SKIP() << cuda_missing();
  on_cuda([&](TestContext& context) {
    const Array out(Dtype::float32, {37, 70});
    pairwise(text, x, &zt, out, {}, context);
    expect_pairs(out, twice, text);
  });
}

std::vector<jit::CudaSource> sources_of(const char* text, Dtype dtype = Dtype::float32) {
  CompileRequest request;
  request.verbs = {"pairwise"};
  request.shapes = {{1, 4096, 4096, 20}};
  request.dtypes = {dtype};
  request.devices = {{{DeviceKind::cuda, 0}, "sm_90a"}};
  if (std::string(text).find("b") != std::string::npos)
    for (const auto& [name, value] : parameters(parse(text))) request.params[name] = 1.5;
  return ops::cuda_sources(Formula(text), request, request.devices.front());
}

TEST(PtxCalls, EveryKernelCompiles) {
  if (testing_support::kSanitized) GTEST_SKIP() << "NVRTC is not what the sanitizers look at";
  MERCER_NEEDS_NVRTC();
  jit::CudaCompiler compiler(FileCache({}, 0), {});
  for (const Row& row : kRows) {
    bool written = false;
    for (const jit::CudaSource& source : sources_of(row.user)) {
      written = written || source.text.find("asm(\"{") != std::string::npos;
      EXPECT_NO_THROW(compiler.compile_now(source)) << row.user;
    }
    EXPECT_TRUE(written) << row.user;
    for (const jit::CudaSource& source : sources_of(row.user, Dtype::float64))
      EXPECT_EQ(source.text.find("PTX of the formula"), std::string::npos) << row.user;
  }
}

/// Calls stand in terms that read the points, a value of the pair, or a value of one side.
TEST(PtxCalls, FieldsRunTheText) {
  if (testing_support::kSanitized) GTEST_SKIP() << "NVRTC is not what the sanitizers look at";
  MERCER_NEEDS_NVRTC();
  const char* const fields[] = {
      "ptx(\"sub.f32 {out}, {0}, {1}; abs.f32 {out}, {out};\", x, z; abs(x - z))",
      "ptx(\"fma.rn.f32 {out}, {0}, {1}, {2};\", sum(abs(x - z)), x, z; sum(abs(x - z))*x + z)",
      "(x - z)*ptx(\"mul.f32 {out}, {0}, {0};\", row; row*row)"};
  jit::CudaCompiler compiler(FileCache({}, 0), {});
  for (const char* text : fields)
    for (const Dtype dtype : kWide) {
      CompileRequest request;
      request.verbs = {"gradient_field"};
      request.shapes = {{1, 4096, 4096, 20}};
      request.dtypes = {dtype};
      request.devices = {{{DeviceKind::cuda, 0}, "sm_90a"}};
      bool written = false;
      const Formula field = Formula::field(parse(text));
      for (const jit::CudaSource& source : ops::cuda_sources(field, request, request.devices[0])) {
        const bool has_text = source.text.find("PTX of the formula") != std::string::npos;
        written = written || has_text;
        if (has_text) EXPECT_NO_THROW(compiler.compile_now(source)) << text;
      }
      EXPECT_EQ(written, dtype == Dtype::float32) << text;
    }
}

TEST(PtxCalls, FieldsComputeTheFormula) {
  const char *user = "ptx(\"sub.f32 {out}, {0}, {1}; mul.f32 {out}, {out}, {2};\", x, z, sum(abs(x - z)); "
                     "(x - z)*sum(abs(x - z)))",
             *plain = "(x - z)*sum(abs(x - z))";
  for (const Dtype dtype : kWide) {
    const Array x = normal(dtype, {19, 33}, 1), z = normal(dtype, {40, 33}, 2), coef = normal(dtype, {40}, 3),
                amplitude = normal(dtype, {19, 40}, 4);
    on_each_target([&](TestContext& context) {
      const Array got(dtype, {19, 33}), wanted(dtype, {19, 33});
      gradient_field(parse(user), x, z, amplitude, coef, got, {}, context);
      gradient_field(parse(plain), x, z, amplitude, coef, wanted, {}, context);
      each_index({19, 33}, [&](const Shape& i) {
        EXPECT_NEAR(read(got, i), read(wanted, i), 4000 * unit(dtype)) << i[0] << "," << i[1];
      });
    });
  }
}

TEST(PtxCalls, TheAssemblersErrorsNameTheText) {
  MERCER_NEEDS_NVRTC();
  jit::CudaCompiler compiler(FileCache({}, 0), {});
  std::string error;
  for (const jit::CudaSource& source : sources_of("sum(ptx(\"sub.f33 {out}, {0}, {1};\", x, z; x - z))"))
    if (source.text.find("asm(\"{") != std::string::npos) error = message_of([&] { compiler.compile_now(source); });
  EXPECT_NE(error.find("which the assembler must take for sm_90a:\n  ptx \"sub.f33 {out}, {0}, {1};\"\nReceived from"),
            std::string::npos) << error;
  EXPECT_LT(error.size(), 500u) << error;  // one message, however often the loop was unrolled
}

}  // namespace
}  // namespace mercer
