#include "ops/dump.h"

#include <fmt/format.h>

#include <cstdio>
#include <string_view>
#include <utility>

#include "codegen/cuda/cuda_source.h"
#include "codegen/x86/x86_emit.h"
#include "core/error.h"
#include "core/system/env.h"

namespace mercer::ops {
namespace {

std::string section(std::string_view title, std::string_view text) {
  return fmt::format("## {}\n{}{}", title, text, text.ends_with('\n') ? "" : "\n");
}

std::string section_of(std::string_view title, const ir::Program& program) {
  return program.outputs.empty() ? "" : section(title, program.to_text());
}

/// The code of a kernel, 32 bytes a line, or why there is none.
template <class Source>
std::string hexadecimal(const Source& source, std::vector<std::uint8_t> (*emit)(const Source&)) try {
  std::string text;
  const std::vector<std::uint8_t> code = emit(source);
  for (std::size_t i = 0; i < code.size(); ++i)
    text += fmt::format("{:02x}{}", code[i], i % 32 == 31 || i + 1 == code.size() ? "\n" : "");
  return text;
} catch (const Error& error) {
  return fmt::format("none: {}\n", error.what());
}

std::string programs_of(const plan::PairPlan& plan) {
  std::string text;
  for (std::size_t s = 0; s < plan.sides.stages.size(); ++s) {
    text += section_of(fmt::format("program: stage {}, per feature", s), plan.sides.stages[s].update);
    text += section_of(fmt::format("program: stage {}, per point", s), plan.sides.stages[s].finish);
  }
  for (const auto& [name, streams] : {std::pair{'x', &plan.sides.x_streams}, std::pair{'z', &plan.sides.z_streams}})
    for (std::size_t s = 0; s < streams->size(); ++s)
      text += section_of(fmt::format("program: stream {}{}", name, s), (*streams)[s].program);
  for (const auto& [name, variant] : {std::pair{"general", &plan.general}, std::pair{"fast", &plan.fast}}) {
    text += section_of(fmt::format("program: {} uniforms", name), variant->uniforms);
    text += section_of(fmt::format("program: {} update", name), variant->update);
    text += section_of(fmt::format("program: {} epilogue", name), variant->epilogue);
  }
  text += section_of("program: start of maxima", plan.maxima.start);
  text += section_of("program: update by maxima", plan.maxima.update);
  text += section_of("program: promotion of maxima", plan.maxima.promote);
  return text;
}

std::string sources_of(const plan::PairPlan& plan) {
  std::string text;
  for (const bool fast : {false, true}) {
    if (fast && !plan.has_fast) continue;
    const char* name = fast ? "fast" : "general";
    if (!plan.promoted.empty())
      text +=
          section(fmt::format("source: {} update", name), hexadecimal(plan.update_source(fast), codegen::emit_update));
    if (plan.can_fuse(fast))
      text += section(fmt::format("source: {} update and epilogue", name),
                      hexadecimal(plan.update_source(fast, true), codegen::emit_update));
    text += section(fmt::format("source: {} epilogue", name),
                    hexadecimal(plan.epilogue_source(fast), codegen::emit_epilogue));
  }
  if (plan.maxima.factor == 0) return text;
  text += section("source: update by maxima", hexadecimal(plan.maxima_source(), codegen::emit_update));
  if (plan.can_fuse(plan.has_fast))
    text += section("source: update by maxima and epilogue",
                    hexadecimal(plan.maxima_source(true), codegen::emit_update));
  return text;
}

}  // namespace

DumpStages DumpStages::from_environment() {
  DumpStages stages;
  const std::string text = env_text("MERCER_DUMP").value_or("");
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view word = std::string_view(text).substr(begin, end - begin);
    if (word == "ir")
      stages.ir = true;
    else if (word == "plan")
      stages.plan = true;
    else if (word == "program")
      stages.program = true;
    else if (word == "source")
      stages.source = true;
    else
      fail(ErrorKind::invalid_argument, "MERCER_DUMP: must be a list of ir, plan, program and source. Received {}.",
           text);
    begin = end + 1;
  }
  return stages;
}

std::string dump_text(const plan::PairPlan& plan, const DumpStages& stages) {
  const bool native = plan.problem.target != Target::interpreter;
  std::string text;
  if (stages.ir) {
    for (const Expr& output : plan.problem.outputs) text += section("formula", output.to_text());
    text += section("split", plan.general.split.to_text());
  }
  if (stages.plan) text += section("plan", plan.to_text());
  if (stages.program) text += programs_of(plan);
  if (stages.source && native) text += sources_of(plan);
  return text;
}

std::string dump_text(const plan::FieldPlan& plan, const DumpStages& stages) {
  const bool native = plan.target != Target::interpreter;
  std::string text;
  if (stages.plan)
    text += section("field plan",
                    fmt::format("target {}, {}, {} outputs, {} rows, {} vectors of features", name_of(plan.target),
                                name_of(plan.type), plan.outputs, plan.rows, plan.vectors));
  if (stages.program) {
    text += section_of("program: field uniforms", plan.uniforms);
    text += section_of("program: general field", plan.program);
    if (plan.has_fast) text += section_of("program: fast field", plan.fast_program);
  }
  if (!stages.source || !native) return text;
  text += section("source: general field", hexadecimal(plan.source(false), codegen::emit_field));
  if (plan.has_fast) text += section("source: fast field", hexadecimal(plan.source(true), codegen::emit_field));
  return text;
}

std::string dump_text(const plan::GpuPairPlan& plan, const DumpStages& stages) {
  std::string text;
  if (stages.ir) {
    for (const Expr& output : plan.problem.outputs) text += section("formula", output.to_text());
    text += section("split", plan.split.to_text());
  }
  if (stages.plan) text += section("GPU plan", plan.to_text());
  if (stages.program) {
    text += section_of("program: update", plan.programs.update);
    text += section_of("program: epilogue", plan.programs.epilogue);
  }
  if (stages.source) text += section("source: tile", codegen::cuda_pair_source(plan));
  return text;
}

void print_dump(const std::string& text) {
  if (!text.empty()) std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace mercer::ops
