// Sources of gradient fields, and of products of stored values.
#include <fmt/format.h>

#include "codegen/cuda/cuda_parts.h"
#include "codegen/cuda/cuda_products.h"
#include "codegen/cuda/cuda_program.h"
#include "codegen/cuda/cuda_source.h"
#include "codegen/cuda/cuda_text.h"
#include "codegen/cuda/weight_text.h"
#include "plan/gpu/stored_sums.h"

namespace mercer::codegen {

using ir::Input;
using ir::Site;
using plan::GpuPairPlan;

namespace {

/// The statements of a function of features that returns its value.
std::string value_statements(const ir::Program& program) {
  const auto name = [](const Input& input) {
    if (input.site == Site::x || input.site == Site::z) return std::string(input.site == Site::x ? "x" : "z");
    return site_name(input);
  };
  return cuda_statements(program, name, [](std::size_t) { return std::string("const REAL value"); }) +
         "  return value;\n}\n";
}

std::string amplitude_function(const ir::Program& program, const char* name = "amplitude") {
  return fmt::format("MERCER_INLINE REAL {}(const REAL* pair, const REAL* params, REAL features) {{\n", name) +
         value_statements(program);
}

std::string factor_function(const plan::GpuFieldPlan& plan) {
  return "MERCER_INLINE REAL factor(REAL x, REAL z, REAL w, const REAL* params, REAL features) {\n" +
         value_statements(plan.contracted.factor);
}

/// `name`: of a field at one feature.
std::string phi_function(const ir::Program& program, const char* name = "phi") {
  return fmt::format("MERCER_INLINE REAL {}(REAL x, REAL z, REAL w, const REAL* row, const REAL* col,\n"
                     "                       const REAL* pair, const REAL* params, REAL features) {{\n",
                     name) +
         value_statements(program);
}

// Functions that a kernel names and that this plan has none of: nothing calls them.
constexpr const char* kNoPhi = "template <class... A> MERCER_INLINE REAL phi(A&&...) { return 0; }\n";
constexpr const char* kNoFactors =
    "template <class... A> MERCER_INLINE REAL amplitude(A&&...) { return 0; }\n"
    "template <class... A> MERCER_INLINE REAL factor(A&&...) { return 0; }\n";
constexpr const char* kNoExtra =
    "template <class... A> MERCER_INLINE REAL extra_amplitude(A&&...) { return 0; }\n"
    "template <class... A> MERCER_INLINE REAL extra_phi(A&&...) { return 0; }\n";
constexpr const char* kNoFold =
    "template <class... A> MERCER_INLINE void identity(A&&...) {}\n"
    "template <class... A> MERCER_INLINE void combine(A&&...) {}\n"
    "template <class... A> MERCER_INLINE REAL finished(A&&...) { return 0; }\n"
    "MERCER_INLINE bool is_summed(int) { return true; }\n";

/// φ by its factors, or as a whole.
std::string phi_functions(const plan::GpuFieldPlan& plan, bool factors) {
  std::string text = define("FACTORS", factors);
  if (factors)
    return text + weight_text(plan.factors.weight, plan.problem.type) +
           define("SCALE", cuda_number(plan.factors.scale, plan.problem.type).c_str()) +
           amplitude_function(plan.contracted.amplitude) + factor_function(plan) + kNoPhi;
  return text + weight_text({}, plan.problem.type) + define("SCALE", 1) + phi_function(plan.programs.phi) + kNoFactors;
}

/// A function of doubles that field_beyond.cuh calls; `of`: where its results go.
std::string beyond_function(const std::string& head, const ir::Program& program, const OutputName& of) {
  const auto name = [](const Input& input) {
    if (input.site == Site::x || input.site == Site::z) return std::string(input.site == Site::x ? "x" : "z");
    const std::string own = site_name(input);
    return input.site == Site::param ? "(double)" + own : own;
  };
  return head + "const REAL* params, double features) {\n" + cuda_statements(program, name, of) + "}\n";
}
std::string beyond_phi(const ir::Program& phi, const char* name) {
  constexpr const char* kHead =
      "  static MERCER_METHOD void take(double& value, const double* pair, double x, double z, double w, ";
  const auto value = [](std::size_t) { return std::string("value"); };
  return fmt::format("struct {} {{\n{}}};\n", name, beyond_function(kHead, phi, value));
}

/// What computes marked pairs again; no more than a definition where there are none.
std::string beyond_text(const plan::GpuFieldPlan& plan, bool with_guard) {
  const plan::FieldBeyond& beyond = plan.beyond;
  if (!beyond) return define("BEYOND", std::int64_t{0});
  const auto of_feature = [](const char* name) {
    return fmt::format("MERCER_INLINE void {}(double* acc, const double* pair, double x, double z, double w, ", name);
  };
  const auto states = [](std::size_t s) { return fmt::format("acc[{}]", s); };
  const auto values = [](std::size_t v) { return fmt::format("values[{}]", v); };
  std::string identity;
  for (std::size_t s = 0; s < beyond.identity.size(); ++s)
    identity += fmt::format("  acc[{}] = {};\n", s, cuda_number(beyond.identity[s], Dtype::float64));
  std::string text = define("BEYOND", 1) + define("BEYOND_NORMS", beyond.norms()) +
                     define("BEYOND_STATES", static_cast<std::int64_t>(beyond.identity.size())) +
                     define("BEYOND_VALUES", beyond.values()) + define("MARK_PLANE", beyond.mark);
  if (!with_guard) text += mark_text(plan.problem.type);
  text += "MERCER_INLINE void beyond_identity(double (&acc)[BEYOND_STATES]) {\n" + identity + "}\n";
  text += beyond_function(of_feature("beyond_largest"), beyond.largest, states);
  text += beyond_function(of_feature("beyond_update"), beyond.update, states);
  text += beyond_function("MERCER_INLINE void beyond_epilogue(double* values, const double* acc, const double* pair, ",
                          beyond.epilogue, values);
  text += beyond_phi(beyond.phi, "BeyondPhi");
  text += plan.problem.pass.features > 0 ? beyond_phi(beyond.extra, "BeyondExtra") : "struct BeyondExtra;\n";
  return text + include("gradient/field_beyond.cuh");
}

/// A fold's states: where they start, what becomes of them at a point n and in the end.
std::string fold_functions(const plan::GpuFieldPlan& plan) {
  const ir::FieldFold& fold = plan.problem.field.fold;
  std::string identity, summed = "false";
  for (std::size_t s = 0; s < plan.programs.identity.size(); ++s) {
    identity += fmt::format("  state[{}] = {};\n", s, cuda_number(plan.programs.identity[s], plan.problem.type));
    if (fold.summed[s]) summed += fmt::format(" || s == {}", s);
  }
  const auto name = [](const Input& input) {
    if (input.site == Site::x || input.site == Site::z) return std::string(input.site == Site::x ? "x" : "z");
    if (input.site == Site::incoming) return std::string("coef");
    if (input.site == Site::accumulator) return fmt::format("state[{}]", input.slot);
    return site_name(input);
  };
  const auto state = [](std::size_t s) { return fmt::format("state[{}]", s); };
  return "MERCER_INLINE void identity(REAL (&state)[STATES]) {\n" + identity + "}\n" +
         "MERCER_INLINE bool is_summed(int s) { return " + summed + "; }\n" +
         "MERCER_INLINE void combine(REAL (&state)[STATES], REAL coef, REAL x, REAL z, REAL w, const REAL* row,\n"
         "                           const REAL* col, const REAL* pair, const REAL* params, REAL features) {\n" +
         cuda_statements(plan.programs.phi, name, state) + "}\n" +
         "MERCER_INLINE REAL finished(const REAL (&state)[STATES], const REAL* row, const REAL* params, REAL features) "
         "{\n" +
         cuda_statements(plan.programs.finish, name, [](std::size_t) { return std::string("const REAL value"); }) +
         "  return value;\n}\n";
}

/// Stages of 64 points whose ranks fit the codes of 16-bit floats.
constexpr int kCodeStages = 94;
std::string field_product_defines(const plan::GpuFieldPlan& plan) {
  return define("SIGN", plan.of_signs()) + define("COLUMNS", plan.product_columns()) +
         define("CODE_STAGES", kCodeStages) + define("SIGNS_ZEROS", plan.factors.signs_zeros);
}

}  // namespace

std::string cuda_stored_doubles_source(const plan::GpuFieldProblem& problem) {
  return flattened(prelude(Dtype::float64) + define("DEEP_DOUBLES", problem.device.capability >= 90) +
                   define("TILE_F", problem.stored.columns_of_doubles) + include("gradient/stored_doubles.cuh"));
}

std::string cuda_field_source(const plan::GpuFieldPlan& plan) {
  if (plan.by_doubles()) return cuda_stored_doubles_source(plan.problem);
  std::string text = prelude(plan.problem.type);
  text += define("OUTPUTS", plan.problem.outputs) + define("PLANES", plan.problem.planes);
  text += define("THREAD_R", plan.block.thread_r) + define("THREAD_F", plan.block.thread_f);
  text += define("COL_VALUES", plan.reads.col) + define("READS_ROW", plan.reads.row);
  text +=
      define("READS_WEIGHTS", plan.reads.weights) + define("READS_X", plan::reads_site(plan.programs.phi, {Site::x}));
  text += define("MARKED", plan.on_tensor_cores()) + define("FOLDS", plan.folds()) + define("STATES", plan.states());
  if (plan.folds())
    return flattened(text + define("FACTORS", std::int64_t{0}) + define("SCALE", 1) +
                     define("BEYOND", std::int64_t{0}) + weight_text({}, plan.problem.type) + kNoPhi +
                     kNoFactors + fold_functions(plan) + include("gradient/field.cuh"));
  // What tensor cores leave may have amplitudes and factors of all sizes; several outputs, a weight each, lost by it.
  const bool factors = plan.factors && plan.problem.outputs == 1 && !plan.on_tensor_cores();
  return flattened(text + phi_functions(plan, factors) + kNoFold + beyond_text(plan, false) +
                   include("gradient/field.cuh"));
}

std::string cuda_few_features_source(const GpuPairPlan& plan) {
  const plan::GpuFieldPlan& field = *plan.problem.gradient.field;
  std::string text = prelude(plan.problem.type);
  text += epilogue_text(plan, epilogue_function(plan)) + streams_defines(plan) + define("STATES", plan.split.states);
  text += define("EXACT_FEATURES", plan.problem.sizes.exact_features);
  text += define("PLAIN_X", plan::are_points(plan.sides.x_streams));
  text += define("PLAIN_Z", plan::are_points(plan.sides.z_streams));
  text += define("READS_WEIGHTS", plan::reads_site(plan.programs.update, {Site::w}) || field.reads.weights);
  text += define("COL_VALUES", field.reads.col) + define("READS_ROW", field.reads.row);
  text += define("COLUMNS", field.columns()) + define("ONE_OUTPUT", field.has_one_output());
  text += define("FIRST_VALUE", field.problem.planes) + define("SUMMED", field.problem.pass.sums) +
          define("WITH_PRODUCT", field.problem.pass.with_product);
  text += define("ROWS", plan::few_features_rows(plan));
  text += define("BLOCKS", plan::few_features_blocks(plan.problem.sizes.exact_features));
  text += identity_function(plan) + update_function(plan, "update", plan.programs.update);
  text += guard_text(plan, GuardSource::panels);
  text += phi_functions(field, static_cast<bool>(field.factors)) + define("EXTRA", field.problem.pass.features > 0);
  if (field.problem.pass.features > 0)
    text += amplitude_function(field.contracted.extra_amplitude, "extra_amplitude") +
            phi_function(field.contracted.extra_value, "extra_phi");
  else
    text += kNoExtra;
  text += plan.guard ? beyond_text(field, true) : define("BEYOND", std::int64_t{0});
  return flattened(text + include("gradient/few_features.cuh"));
}

namespace {

std::string exponent_text(const plan::FieldFactors& factors) {
  return define("EXPONENT", cuda_number(factors.power, Dtype::float32).c_str()) + define("BOUNDED", factors.least > 0) +
         define("LEAST", cuda_number(factors.least, Dtype::float32).c_str());
}

std::string powers_text(const plan::GpuFieldPlan& plan) {
  const int eighths = plan.table_eighths();
  std::string text = exponent_text(plan.factors);
  text += define("IS_ROOT", plan.factors.power == 0.5) + define("TABLE_EIGHTHS", eighths);
  // FIELD_THREADS, which the skeleton defines after this.
  if (eighths > 0)
    text += define("THREADS", plan.product_threads()) + power_functions(plan.factors.power, plan::kFieldPowerBits);
  return text;
}

/// `units`: digits of signs, halves of powers.
std::string units_defines(const plan::GpuFieldPlan& plan, bool units) {
  return define("DIGITS", units && plan.of_signs()) + define("HALVES", units && !plan.of_signs());
}

std::string field_products_text(const plan::GpuFieldPlan& plan, bool units) {
  const bool digits = units && plan.of_signs(), halves = units && !digits;
  std::string text = prelude(Dtype::float32) + field_product_defines(plan);
  text += define("TILE_GROUPS", plan.product_groups());
  text += define("PLANES", plan.problem.planes) + define("STAGES", plan.product_stages(units)) +
          define("INPUT_STAGES", plan.product_inputs(units)) + units_defines(plan, units);
  text += define("FALLBACK", !units && plan.products_are_fallback());
  text += define("BATCH", plan.product_batch(units)) + define("CLUSTER", plan.problem.contraction.cluster);
  text += define("READS_WEIGHTS", plan.factors.weighted() || plan::reads_site(plan.contracted.factor, {Site::w}));
  text += weight_text(plan.factors.weight, Dtype::float32);
  const double scale = plan.of_signs() && !digits ? plan.factors.scale / 2 : plan.factors.scale;  // signs are 2 and -2
  text += define("SCALE", cuda_number(scale, Dtype::float32).c_str());
  text += amplitude_function(plan.contracted.amplitude);
  const int columns = plan.product_columns();
  const char* of = "gradient/field_of_factors.cuh";
  if (digits) {
    of = "gradient/field_of_digits.cuh";
    text += product_function({"product", columns * 3, columns * 3 / 2, "k32.s32.s8.s8", true, "", true});
  } else if (halves) {
    of = "gradient/field_of_powers.cuh";
    text += powers_text(plan);
    text += product_function({"product", columns * 2, columns, "k16.f32.f16.f16", true, ", 1, 1, 0"});
    text += product_function({"product_low", columns, columns, "k16.f32.f16.f16", true, ", 1, 1, 0"});
  } else if (plan.of_signs()) {
    of = "gradient/field_of_signs.cuh";
    text += product_function({"product", columns * 3, columns * 3 / 2, "k16.f32.bf16.bf16", true, ", 1, 1, 0"});
  } else {
    text += factor_function(plan);
    text += product_function({"product", columns * 2, columns, "k8.f32.tf32.tf32", true, ", 1, 1"});
    text += product_function({"product_low", columns, columns, "k8.f32.tf32.tf32", true, ", 1, 1"});
  }
  return flattened(text + include(of) + include("gradient/field_products.cuh"));
}

}  // namespace

std::string cuda_field_products_source(const plan::GpuFieldPlan& plan) { return field_products_text(plan, false); }

std::string cuda_field_units_source(const plan::GpuFieldPlan& plan) { return field_products_text(plan, true); }

std::string cuda_field_rows_source(const plan::GpuFieldPlan& plan) {
  std::string text = prelude(Dtype::float32) + define("COLUMNS", plan.product_columns()) +
                     define("PLANES", plan.problem.planes) + units_defines(plan, true) +
                     amplitude_function(plan.contracted.amplitude);
  text += include("gradient/field_rows.cuh");
  if (!plan.of_signs()) text += exponent_text(plan.factors) + include("gradient/power_range.cuh");
  return flattened(text);
}

std::string cuda_field_operands_source(const plan::GpuFieldPlan& plan) {
  return flattened(field_product_defines(plan) + include("gradient/field_operands.cuh"));
}

std::string cuda_stored_sums_source(const plan::StoredSums& plan) {
  std::string text = prelude(plan.type) +
                     define("REDUCTIONS", static_cast<std::int64_t>(plan.split.reductions.size()));
  text += define("PLANES_BEFORE", plan.planes_before()) + define("STORES_AMPLITUDES", !plan.as_they_are);
  text += define("AMPLITUDES", plan.amplitudes) + define("SUMS", plan.sums) + define("PRODUCT", plan.product) +
          define("COLUMNS", plan.columns);
  text += define("OUTPUTS", static_cast<std::int64_t>(plan.program.outputs.size())) +
          define("READS_ROW", plan.reads_row) + define("READS_COL", plan.reads_col);
  text +=
      "MERCER_INLINE void values_of(REAL (&values)[OUTPUTS], const REAL* pair, const REAL* row, const REAL* col,\n"
      "                             const REAL* params, REAL features) {\n" +
      statements(plan.program, "values") + "}\n";
  return flattened(text + include("gradient/stored_sums.cuh"));
}

std::string cuda_stored_source(const plan::BilinearTile& tile, plan::StoredValues lie) {
  const bool turned = lie == plan::StoredValues::columns;
  return flattened(prelude(Dtype::float32) + wide_defines(tile, plan::VPieces::floats) +
                   define("EXPANDED", std::int64_t{0}) + define("TURNED", turned) +
                   define("OF_CALLER", lie != plan::StoredValues::padded) + (turned ? "#define SECOND_ROW 1\n" : "") +
                   wide_text(tile, false) + include("gemm/wide_stored.cuh") + include("gemm/wide_kernel.cuh"));
}

std::string cuda_linear_source(const plan::GpuFieldPlan& plan) {
  std::string text = prelude(Dtype::float32) + define("PLANES", plan.problem.planes);
  text += define("DIFFERENCE", plan.of_differences()) + define("PASS", plan.linear_outputs()) +
          define("OF_PRODUCT", plan.problem.stored.of_product);
  text += weight_text(plan.factors.weight, Dtype::float32) +
          define("SCALE", cuda_number(plan.factors.scale, Dtype::float32).c_str());
  return flattened(text + amplitude_function(plan.contracted.amplitude) + include("gradient/linear_field.cuh"));
}

std::string cuda_linear_doubles_source(const plan::GpuFieldPlan& plan) {
  std::string text = prelude(Dtype::float64) + define("PLANES", plan.problem.planes);
  text += define("DIFFERENCE", plan.of_differences()) + define("PASS", plan.linear_outputs()) +
          define("STORES_AMPLITUDES", !plan.has_plain_amplitude());
  text += weight_text(plan.factors.weight, Dtype::float64) +
          define("SCALE", cuda_number(plan.factors.scale, Dtype::float64).c_str());
  return flattened(text + amplitude_function(plan.contracted.amplitude) + include("gradient/linear_doubles.cuh"));
}

}  // namespace mercer::codegen
