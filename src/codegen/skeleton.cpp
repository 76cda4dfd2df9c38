#include "codegen/skeleton.h"

#include "core/error.h"

namespace mercer::codegen {

using ir::Input;
using ir::Site;

int point_slot(const Input& input) {
  if (input.site == Site::index_i || input.site == Site::index_j) return plan::kIndexSlot;
  return input.slot == 0 ? plan::kUserSlot : plan::kFirstStageSlot + input.slot - 1;
}

ir::Program with_contraction(const plan::FieldSource& source) {
  ir::Program program = source.program;
  if (source.states > 0) return program;
  const std::int32_t phi = program.outputs[0];
  program.outputs.clear();
  auto append = [&](ir::Instr instr) {
    program.code.push_back(instr);
    return static_cast<std::int32_t>(program.code.size()) - 1;
  };
  auto input = [&](Site site, int slot) {
    program.inputs.push_back({site, slot});
    ir::Instr instr{};
    instr.op = ir::Prim::input;
    instr.index = static_cast<std::int32_t>(program.inputs.size()) - 1;
    return append(instr);
  };
  for (int o = 0; o < source.outputs; ++o) {
    const std::int32_t coef = input(Site::incoming, o), acc = input(Site::accumulator, o);
    program.outputs.push_back(append({ir::Prim::fma, phi, coef, acc, 0, 0}));
  }
  return program;
}

void refuse_input(const char* skeleton, Site site) {
  fail(ErrorKind::compile, "codegen: the {} skeleton has no such input. Received site {}.", skeleton,
       static_cast<int>(site));
}

}  // namespace mercer::codegen
