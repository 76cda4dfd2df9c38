#include "backend/cpu/pack/element_program.h"

namespace mercer::cpu {

ElementProgram::ElementProgram(const ir::Program& program)
    : program_(program), prepared_(std::make_shared<codegen::InterpretedProgram>(program)) {}

void ElementProgram::operator()(const std::vector<LaneSource>& inputs, double* const* outputs, std::int64_t count,
                                std::int64_t steps) const {
  constexpr std::int64_t kBytes = sizeof(double);
  std::vector<codegen::LaneInput> lanes;
  lanes.reserve(inputs.size());
  for (const LaneSource& source : inputs) lanes.push_back({source.data, source.uniform, source.step * kBytes});
  prepared_->run_steps(lanes.data(), reinterpret_cast<void* const*>(outputs), count, steps);
}

}  // namespace mercer::cpu
