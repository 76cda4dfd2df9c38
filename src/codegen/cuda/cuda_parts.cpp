#include "codegen/cuda/cuda_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>

#include "codegen/cuda/cuda_products.h"
#include "codegen/cuda/cuda_program.h"
#include "codegen/cuda/cuda_text.h"
#include "ir/lower/fit_power.h"

namespace mercer::codegen {

using ir::Input;
using ir::Site;
using plan::GpuPairPlan;

std::string define(const char* name, std::int64_t value) { return fmt::format("#define {} {}\n", name, value); }
std::string define(const char* name, const char* value) { return fmt::format("#define {} {}\n", name, value); }

std::string prelude(Dtype type) { return include("common/prelude.cuh") + define("REAL", cuda_type(type)); }

std::string site_name(const Input& input) {
  switch (input.site) {
    case Site::x: return fmt::format("x[{}]", input.slot);
    case Site::z: return fmt::format("z[{}]", input.slot);
    case Site::w: return "w";
    case Site::row: return fmt::format("row[{}]", input.slot);
    case Site::col: return fmt::format("col[{}]", input.slot);
    case Site::param: return fmt::format("params[{}]", input.slot);
    case Site::accumulator: return fmt::format("acc[{}]", input.slot);
    case Site::pair_value: return fmt::format("pair[{}]", input.slot);
    case Site::index_i: return "i";
    case Site::index_j: return "j";
    case Site::features: return "features";
    case Site::incoming: return fmt::format("incoming[{}]", input.slot);
  }
  return {};
}

std::string statements(const ir::Program& program, const char* output) {
  return cuda_statements(program, site_name, [&](std::size_t o) { return fmt::format("{}[{}]", output, o); });
}

std::string identity_function(const GpuPairPlan& plan) {
  std::string text = "MERCER_INLINE void identity(REAL (&acc)[STATES + (STATES == 0)]) {\n";
  for (std::size_t s = 0; s < plan.programs.identity.size(); ++s)
    text += fmt::format("  acc[{}] = {};\n", s, cuda_number(plan.programs.identity[s], plan.problem.type));
  return text + "}\n";
}

std::string update_function(const GpuPairPlan& plan, const char* name, const ir::Program& program) {
  std::string text = fmt::format("MERCER_INLINE void {}", name) +
                     "(REAL (&acc)[STATES + (STATES == 0)], const REAL* x, const REAL* z, REAL w,\n"
                     "                          const REAL* row, const REAL* col, const REAL* params, REAL i, REAL j,\n"
                     "                          REAL features) {\n";
  if (plan.input.bytes)
    text +=
        "  u32 sum = bits_of(acc[0]);\n"
        "  asm(\"vabsdiff4.u32.u32.u32.add %0, %1, %2, %0;\" : \"+r\"(sum)\n"
        "      : \"r\"(bits_of(x[0])), \"r\"(bits_of(z[0])));\n"
        "  acc[0] = float_of(sum);\n";
  else if (!program.outputs.empty())
    text += statements(program, "acc");
  return text + "}\n";
}

std::string power_functions(double p, int mantissa_bits) {
  const ir::PowerTable table = ir::power_table(p, mantissa_bits);
  std::string text = define("POWER_ENTRIES", static_cast<std::int64_t>(table.entries.size()) / 2) +
                     define("POWER_SHIFT", 20 - mantissa_bits) + "__device__ const u32 kPowers[2 * POWER_ENTRIES] = {";
  for (float entry : table.entries) text += fmt::format("{:#x},", std::bit_cast<std::uint32_t>(entry));
  text +=
      "};\n__shared__ __align__(16) uint2 power_table[POWER_ENTRIES];\n"
      "MERCER_INLINE void load_power_table() {\n"
      "  for (int i = threadIdx.x; i < POWER_ENTRIES; i += THREADS) power_table[i] = ((const uint2*)kPowers)[i];\n}\n"
      "MERCER_INLINE uint2 power_entry(float a) {\n"
      "  return *(const uint2*)((const char*)power_table + (bits_of(a) >> POWER_SHIFT & 8 * (POWER_ENTRIES - 1)));\n}\n"
      "MERCER_INLINE float power_scale(float a) { return float_of(power_entry(a).x); }\n"
      "MERCER_INLINE float power_poly(float a) {\n  const float m = fabsf(a) * float_of(power_entry(a).y);\n";
  const auto number = [](float value) { return cuda_number(value, Dtype::float32); };
  const float* c = table.coefficients;
  return text + fmt::format("  return mul_add(mul_add(mul_add({}, m, {}), m, {}), m, {});\n}}\n", number(c[3]),
                            number(c[2]), number(c[1]), number(c[0]));
}

std::string power_functions_of_param(int mantissa_bits) {
  const ir::PowerFamily family = ir::power_family(mantissa_bits);
  const auto array = [](const char* type, const char* name, const auto& values) {
    return fmt::format("__device__ const {} {} = {{{}}};\n", type, name, fmt::join(values, ", "));
  };
  const auto floats = [](const std::vector<float>& values) {
    std::vector<std::string> texts;
    for (float value : values) texts.push_back(cuda_number(value, Dtype::float32));
    return texts;
  };
  std::vector<std::string> rows;
  for (const auto& row : family.polynomial) {
    std::vector<std::string> terms;
    for (double term : row) terms.push_back(cuda_number(term, Dtype::float64));
    rows.push_back(fmt::format("{{{}}}", fmt::join(terms, ", ")));
  }
  return define("POWER_BITS", mantissa_bits) + define("POWER_TERMS", ir::PowerFamily::kTerms) +
         define("MIDDLE_POWER", cuda_number(ir::kMiddlePower, Dtype::float64).c_str()) +
         define("LARGEST_TABLE_POWER", cuda_number(ir::kLargestTablePower, Dtype::float32).c_str()) +
         array("float", "kCellScales[]", floats(family.scale)) + array("float", "kCellLogs[]", floats(family.log2)) +
         array("float", "kCellLogRests[]", floats(family.log2_rest)) +
         array("double", "kPowerTerms[4][POWER_TERMS]", rows) + include("pairs/power_table.cuh");
}

std::string epilogue_function(const std::string& body) {
  return "MERCER_INLINE void epilogue(REAL (&outputs)[OUTPUTS], const REAL* acc, const REAL* row, const REAL* col,\n"
         "                            const REAL* params, REAL i, REAL j, REAL features) {\n" +
         body + "}\n";
}

namespace {

/// Values that tensor cores store divide alike for all pairs, those that they leave to other kernels too.
bool divides_by_unit(const GpuPairPlan& plan) {
  const plan::GpuPairProblem& problem = plan.problem;
  return plan.products.bilinear && problem.consumer == plan::Consumer::store && problem.type == Dtype::float32;
}

}  // namespace

std::string epilogue_function(const GpuPairPlan& plan) {
  constexpr std::string_view kExact = "quotient(", kUnit = "unit_quotient(";
  std::string text = statements(plan.programs.epilogue, "outputs");
  if (divides_by_unit(plan))
    for (auto at = text.find(kExact); at != std::string::npos; at = text.find(kExact, at + kUnit.size()))
      text.replace(at, kExact.size(), kUnit);
  return epilogue_function(text);
}

std::string wide_text(const plan::BilinearTile& tile, bool halves) {
  const char* type = halves ? "k16.f32.f16.f16" : "k8.f32.tf32.tf32";
  const auto product = [&](int columns) {
    return product_function({"wide_product", columns, columns / 2, type, true, halves ? ", 1, 1, 0" : ", 1, 1"});
  };
  return define("HALVES", halves) + define("EXTRA", tile.extra) + (halves ? include("common/split_pieces.cuh") : "") +
         product(tile.wide) + (tile.extra > 0 ? product(tile.extra) : "");
}

std::string streams_defines(const GpuPairPlan& plan) {
  return define("X_STREAMS", static_cast<std::int64_t>(plan.sides.x_streams.size())) +
         define("Z_STREAMS", static_cast<std::int64_t>(plan.sides.z_streams.size()));
}

std::string epilogue_text(const GpuPairPlan& plan, const std::string& function) {
  std::string text = define("ROW_SLOTS", plan.programs.row_slots) + define("COL_SLOTS", plan.programs.col_slots);
  text += define("OUTPUTS", static_cast<std::int64_t>(plan.problem.outputs.size()));
  text += define("OUT", element_type(plan.problem.arrays.out)) + define("NUMBERS", plan.problem.params.by_value);
  text += define("PARAMS", static_cast<std::int64_t>(plan.split.params.size() + plan.split.uniforms.size()));
  return text + define("LONG_EPILOGUE", plan.programs.long_epilogue) + function + include("pairs/pair_params.cuh");
}

std::string wide_defines(const plan::BilinearTile& tile, plan::VPieces pieces) {
  return define("TILE_N", tile.columns) + define("CLUSTER", tile.cluster) + define("BLOCKS", tile.blocks) +
         define("WIDE", tile.wide) + define("V_STAGES", tile.wide_stages) + define("WIDE_THREADS", tile.threads()) +
         define("V_STAGE_BYTES", tile.v_bytes(pieces)) + define("JOINS_RANGES", false) + define("CONSUMER", 1);
}

}  // namespace mercer::codegen
