// A float64 program run over lanes by the interpreter: stage 0 and the streams of the packing step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "codegen/interpreter/interpret.h"
#include "ir/expr/program.h"

namespace mercer::cpu {

/// Where an input of the program lies: `uniform` inputs are one value for all lanes.
struct LaneSource {
  const double* data;
  bool uniform;
  std::int64_t step = 0;  // values from one step's to the next's
};

class ElementProgram {
 public:
  ElementProgram() = default;
  explicit ElementProgram(const ir::Program& program);

  /// out[o][lane] for lane in 0 … count - 1; an output may be the array of an input. Later steps write there again.
  void operator()(const std::vector<LaneSource>& inputs, double* const* outputs, std::int64_t count,
                  std::int64_t steps = 1) const;
  const std::vector<ir::Input>& inputs() const { return program_.inputs; }

 private:
  ir::Program program_;
  std::shared_ptr<const codegen::InterpretedProgram> prepared_;
};

}  // namespace mercer::cpu
