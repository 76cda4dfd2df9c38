#include <fmt/format.h>

#include "codegen/cuda/cuda_parts.h"
#include "codegen/cuda/cuda_program.h"
#include "codegen/cuda/cuda_text.h"
#include "plan/forms/field_beyond.h"

namespace mercer::codegen {
namespace {

constexpr const char* kOfFeature = "const REAL* x, const REAL* z, REAL w, ";
constexpr const char* kOfPair =
    "const REAL* row, const REAL* col,\n    const REAL* params, REAL i, REAL j, REAL features";

std::string function(const char* head, const std::string& parameters, const std::string& body) {
  return fmt::format("MERCER_INLINE {}(\n    {}) {{\n{}}}\n", head, parameters, body);
}

std::string range_text(const plan::GpuPairPlan& plan) {
  const plan::GpuGuard& guard = plan.guard;
  const Dtype type = plan.problem.type;
  std::string text = define("GUARD_LEAST", cuda_number(guard.least, type).c_str()) +
                     define("GUARD_MOST", cuda_number(guard.most, type).c_str());
  text += fmt::format("MERCER_INLINE REAL magnitude(REAL a) {{ return {}(a); }}\n",
                      type == Dtype::float64 ? "fabs" : "fabsf");
  std::string states, tests;
  for (std::size_t q = 0; q < guard.states.size(); ++q) {
    const int state = guard.states[q];
    states += fmt::format("q == {} ? {} : ", q, state);
    tests += fmt::format("{}magnitude(acc[{}]) < GUARD_LEAST || magnitude(acc[{}]) >= GUARD_MOST", q > 0 ? " || " : "",
                         state, state);
  }
  return text + fmt::format("MERCER_INLINE constexpr int guarded_state(int q) {{ return {}0; }}\n", states) +
         fmt::format("MERCER_INLINE bool is_out_of_range(const REAL* acc) {{ return {}; }}\n", tests);
}

std::string marks_text(const plan::GpuPairProblem& problem) {
  std::string marks = "false";
  for (int p = problem.gradient.first_marked; p < problem.gradient.first_marked + problem.gradient.marked; ++p)
    if (!plan::is_condition(problem.outputs[static_cast<std::size_t>(p)])) marks += fmt::format(" || p == {}", p);
  return define("MARKS", problem.gradient.marked > 0) + mark_text(problem.type) +
         fmt::format("MERCER_INLINE constexpr bool is_marked_output(int p) {{ return {}; }}\n", marks);
}

}  // namespace

std::string mark_text(Dtype type) {
  const bool wide = type == Dtype::float64;
  return define("MARK", wide ? "float_of(0x7ff8a5a5a5a5a5a5ull)" : "float_of(0x7fc5a5a5u)") +
         "MERCER_INLINE bool is_mark(REAL value) { return bits_of(value) == bits_of((REAL)MARK); }\n";
}

std::string guard_text(const plan::GpuPairPlan& plan, GuardSource source, const char* unroll) {
  const plan::GpuGuard& guard = plan.guard;
  if (!guard) return include("pairs/unguarded.cuh");
  std::string text = define("SAFE_UNROLL", unroll) + define("NORMS", guard.norms()) +
                     define("GUARD_VANISHES", guard.vanishes) +
                     define("SAFE_STATES", static_cast<std::int64_t>(guard.identity.size())) +
                     define("GUARD_MERGES", !guard.merge.outputs.empty()) +
                     define("SUMS_DECIDE", plan.folding.sums_decide) + marks_text(plan.problem);
  const char* const names[] = {"GUARD_PANELS", "GUARD_POINTS", "GUARD_ROWS", "GUARD_VALUES"};
  for (int s = 0; s < 4; ++s) text += define(names[s], s);
  text += define("GUARD_SOURCE", static_cast<int>(source));
  const Dtype type = source == GuardSource::points ? plan.problem.arrays.points : plan.problem.type;
  text += fmt::format("typedef {} GuardPoint;\n", element_type(type));
  text += define("GUARD_READS_WEIGHTS", plan::reads_site(guard.largest, {ir::Site::w}) ||
                                            plan::reads_site(guard.update, {ir::Site::w}));
  text += range_text(plan);
  const std::string of_feature = std::string(kOfFeature) + kOfPair;
  std::string identity;
  for (std::size_t s = 0; s < guard.identity.size(); ++s)
    identity += fmt::format("  acc[{}] = {};\n", s, cuda_number(guard.identity[s], plan.problem.type));
  text += function("void safe_identity", "REAL (&acc)[SAFE_STATES]", identity);
  text += function("void safe_largest", "REAL (&acc)[NORMS], const REAL* pair, " + of_feature,
                   statements(guard.largest, "acc"));
  text += function("void safe_update", "REAL (&acc)[SAFE_STATES], const REAL* pair, " + of_feature,
                   statements(guard.update, "acc"));
  text += function("void safe_merge", "REAL (&acc)[SAFE_STATES], const REAL* incoming",
                   guard.merge.outputs.empty() ? "" : statements(guard.merge, "acc"));
  text += function("void safe_epilogue",
                   std::string("REAL (&outputs)[OUTPUTS], const REAL* acc, const REAL* pair, ") + kOfPair,
                   statements(guard.epilogue, "outputs"));
  return text + include("pairs/safe_norms.cuh");
}

}  // namespace mercer::codegen
