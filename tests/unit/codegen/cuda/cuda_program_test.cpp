// Programs as CUDA text: what a user's PTX becomes.
#include "codegen/cuda/cuda_program.h"

#include <gtest/gtest.h>

#include "core/devices/nvrtc.h"
#include "device/nvrtc.h"
#include "ir/expr/program.h"
#include "mercer/formula.h"

namespace mercer::codegen {
namespace {

const Expr x = points().x, z = points().z;

std::string cuda_text_of(const std::vector<Expr>& outputs) {
  ir::LowerOptions options;
  options.processor = ir::Processor::gpu_terms;
  return cuda_statements(ir::lower(outputs, options),
                         [](const ir::Input& input) { return input.site == ir::Site::x ? "x" : "z"; },
                         [](std::size_t o) { return "out[" + std::to_string(o) + "]"; });
}

TEST(CudaProgram, OneInstructionIsWrittenInPlace) {
  EXPECT_EQ(cuda_text_of({ptx("sub.f32 {out}, {0}, {1};", {x, z}, x - z)}),
            "  // PTX of the formula: sub.f32 {out}, {0}, {1};\n"
            "  float v2_0;\n"
            "  asm(\"{ sub.f32 %0, %1, %2; }\" : \"=f\"(v2_0) : \"f\"(x), \"f\"(z));\n"
            "  const float result0 = v2_0;\n"
            "  out[0] = result0;\n");
}

TEST(CudaProgram, SeveralWriteARegisterOfTheirOwn) {
  EXPECT_EQ(cuda_text_of({ptx("{ .reg .f32 %t; sub.f32 %t, {0}, {1}; abs.f32 {out}, %t; }", {x, z}, abs(x - z))}),
            "  // PTX of the formula: { .reg .f32 %t; sub.f32 %t, {0}, {1}; abs.f32 {out}, %t; }\n"
            "  float v2_0;\n"
            "  asm(\"{ .reg .f32 mercer_out0; { .reg .f32 %%t; sub.f32 %%t, %1, %2; abs.f32 mercer_out0, %%t; } "
            "mov.b32 %0, mercer_out0; }\" : \"=f\"(v2_0) : \"f\"(x), \"f\"(z));\n"
            "  const float result0 = v2_0;\n"
            "  out[0] = result0;\n");
}

TEST(CudaProgram, BitsAndPredicatesAreMadeOfFloats) {
  EXPECT_EQ(cuda_text_of({ptx("selp.u32 {out:u32}, {1:u32}, 0, {0:pred};", {x, z}, z)}),
            "  // PTX of the formula: selp.u32 {out:u32}, {1:u32}, 0, {0:pred};\n"
            "  float v2_0;\n"
            "  asm(\"{ .reg .pred mercer_in0; setp.neu.f32 mercer_in0, %1, 0f00000000; .reg .u32 mercer_out0; "
            "selp.u32 mercer_out0, %2, 0, mercer_in0; mov.b32 %0, mercer_out0; }\" "
            ": \"=f\"(v2_0) : \"f\"(x), \"r\"(bits_of(z)));\n"
            "  const float result0 = v2_0;\n"
            "  out[0] = result0;\n");
  const std::string written = cuda_text_of({ptx("setp.lt.f32 {out:pred}, {0}, {1};", {x, z}, x < z)});
  EXPECT_NE(written.find(".reg .pred mercer_out0; setp.lt.f32 mercer_out0, %1, %2; "
                         "selp.f32 %0, 0f3F800000, 0f00000000, mercer_out0; }"), std::string::npos) << written;
}

TEST(CudaProgram, OneTextServesAllOutputs) {
  const char* text = "min.f32 {out0}, {0}, {1}; max.f32 {out1}, {0}, {1};";
  const auto outputs = ptx_outputs(text, {x, z}, {min(x, z), max(x, z)});
  EXPECT_EQ(cuda_text_of({outputs[1], outputs[0]}),
            "  // PTX of the formula: min.f32 {out0}, {0}, {1}; max.f32 {out1}, {0}, {1};\n"
            "  float v2_0, v2_1;\n"
            "  asm(\"{ .reg .f32 mercer_out0; .reg .f32 mercer_out1; min.f32 mercer_out0, %2, %3; "
            "max.f32 mercer_out1, %2, %3; mov.b32 %0, mercer_out0; mov.b32 %1, mercer_out1; }\" "
            ": \"=f\"(v2_0), \"=f\"(v2_1) : \"f\"(x), \"f\"(z));\n"
            "  const float result0 = v2_1;\n"
            "  const float result1 = v2_0;\n"
            "  out[0] = result0;\n"
            "  out[1] = result1;\n");
}

TEST(CudaProgram, TextsOfUsersAreFoundInASource) {
  const std::string one = cuda_text_of({ptx("sub.f32 {out}, {0}, {1};", {x, z}, x - z)});
  const std::string other = cuda_text_of({ptx("abs.f32 {out}, {0};", {x}, abs(x))});
  EXPECT_EQ(ptx_of(one + other + one), (std::vector<std::string>{"sub.f32 {out}, {0}, {1};", "abs.f32 {out}, {0};"}));
  EXPECT_TRUE(ptx_of("float v;").empty());
}

/// The PTX that the compiler makes of texts, characters with a meaning in strings and in assemblers among them.
TEST(CudaProgram, TheCompilerTakesIt) {
  MERCER_NEEDS_NVRTC();
  const Expr formulas[] = {
      ptx("sub.f32 {out}, {0}, {1};", {x, z}, x - z),
      ptx("{ .reg .f32 %t<2>; .reg .pred p, q; setp.lt.f32 p|q, {0}, {1}; @p sub.f32 %t1, {1}, {0}; "
          "@!p sub.f32 %t1, {0}, {1}; mov.f32 {out}, %t1; }", {x, z}, abs(x - z)),
      ptx("{ .reg .b64 $d; .reg .f32 lo; mov.b64 $d, {{0}, {1}}; mov.b64 {lo, {out}}, $d; }", {x, z}, z),
      ptx("{ setp_free: add.f32 {out}, {0}, 0f3F800000; }", {x}, x + 1.0),
  };
  for (const Expr& f : formulas) {
    const std::string kernel = "__device__ __forceinline__ void one(float* out, float x, float z) {\n" +
                               cuda_text_of({f}) +
                               "}\nextern \"C\" __global__ void kernel(float* out, float x, float z) {\n"
                               "  for (int i = 0; i < 4; ++i) one(out + i, x * i, z);\n}\n";
    const NvrtcResult result = mercer::testing::nvrtc_for_tests()->compile("kernel.cu", kernel, {"-arch=sm_90a"});
    EXPECT_TRUE(result.ok) << kernel << result.log;
  }
}

}  // namespace
}  // namespace mercer::codegen
