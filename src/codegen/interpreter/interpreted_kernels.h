// The three skeletons (plan/cpu/kernel.h) run by the interpreter: the same arguments, layouts and results as machine
// code, but no fused kernel.
#pragma once

#include <cstddef>
#include <vector>

#include "codegen/interpreter/interpret.h"
#include "plan/cpu/kernel.h"

namespace mercer::codegen {

class InterpretedUpdate {
 public:
  explicit InterpretedUpdate(const plan::UpdateSource& source);
  void operator()(const plan::UpdateArgs& args) const;

 private:
  struct Row {
    std::vector<LaneInput> inputs;
    std::vector<void*> outputs;
    std::vector<std::byte> partial;
  };
  void run_chunk(const plan::UpdateArgs& args, std::int64_t r, std::int64_t k, Row& row) const;
  /// `steps` lines of the panels from `line` on; k is the first one's feature.
  void run_lines(const InterpretedProgram& program, const plan::UpdateArgs& args, std::int64_t r, std::int64_t line,
                 std::int64_t k, std::int64_t steps, Row& row) const;
  bool has_heads() const { return !source_.start.outputs.empty(); }
  bool is_doubtful(const plan::UpdateArgs& args) const;

  plan::UpdateSource source_;
  InterpretedProgram program_, start_, promote_;
};

class InterpretedEpilogue {
 public:
  explicit InterpretedEpilogue(const plan::EpilogueSource& source);
  void operator()(const plan::EpilogueArgs& args) const;

 private:
  plan::EpilogueSource source_;
  InterpretedProgram program_;
};

class InterpretedField {
 public:
  explicit InterpretedField(const plan::FieldSource& source);
  void operator()(const plan::FieldArgs& args) const;

 private:
  void run_row(const plan::FieldArgs& args, std::int64_t r) const;

  plan::FieldSource source_;
  InterpretedProgram program_;
};

}  // namespace mercer::codegen
