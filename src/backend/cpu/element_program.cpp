#include "backend/cpu/element_program.h"

namespace mercer::cpu {

ElementProgram::ElementProgram(const ir::Program& program)
    : program_(program), prepared_(std::make_shared<codegen::InterpretedProgram>(program)) {}

void ElementProgram::operator()(const std::vector<LaneSource>& inputs, double* const* outputs,
                                std::int64_t count) const {
  std::vector<codegen::LaneInput> lanes;
  lanes.reserve(inputs.size());
  for (const LaneSource& source : inputs) lanes.push_back({source.data, source.uniform, 0});
  prepared_->run(lanes.data(), reinterpret_cast<void* const*>(outputs), count);
}

}  // namespace mercer::cpu
