// What the interpreter does once per program: an instruction of its own for each output, fusion, scratch slots.
#include <algorithm>
#include <cstring>

#include "codegen/interpreter/interpret.h"
#include "codegen/interpreter/interpret_kernel.h"
#include "core/error.h"

namespace mercer::codegen {

using ir::Instr;
using ir::Prim;

InterpretedProgram::InterpretedProgram(ir::Program program, Isa isa)
    : program_(std::move(program)), isa_(isa), wide_(program_.type == Dtype::float64), element_(wide_ ? 8 : 4) {
  verify(program_);
  give_outputs_their_own_instructions();
  for (const Instr& instr : program_.code) {
    if (ir::is_of_gpus(instr.op))
      fail(ErrorKind::compile, "interpret: '{}' is for GPUs alone.", ir::name_of(instr.op));
    const bool has_table = instr.op == Prim::input || instr.op == Prim::table16;
    Step step{.op = static_cast<int>(instr.op),
              .operands = operand_count(instr.op),
              .table = has_table ? instr.index : -1,
              .bits = instr.bits};
    for (int k = 0; k < step.operands; ++k) step.operand[k] = operand_of(instr, k);
    steps_.push_back(step);
    cells_.push_back(instr.op == Prim::constant ? instr.bits : 0);
  }
  for (std::size_t o = 0; o < program_.outputs.size(); ++o)
    steps_[static_cast<std::size_t>(program_.outputs[o])].output = static_cast<std::int32_t>(o);
  fuse();
  assign_slots();
  note_later_inputs();
  for (const auto& table : program_.tables) {
    std::vector<std::uint64_t> packed(16);
    for (std::size_t i = 0; i < 16; ++i) {
      const float narrow = static_cast<float>(table[i]);
      char* place = reinterpret_cast<char*>(packed.data()) + i * element_;
      std::memcpy(place, wide_ ? static_cast<const void*>(&table[i]) : &narrow, element_);
    }
    tables_.push_back(std::move(packed));
  }
}

// Every output becomes the result of one instruction of its own that is no input and no constant: a copy (v | v) where
// needed. Outputs can then be written where they belong by the instruction that makes them.
void InterpretedProgram::give_outputs_their_own_instructions() {
  std::vector<char> taken(program_.code.size(), 0);
  for (std::int32_t& output : program_.outputs) {
    const Prim op = program_.code[static_cast<std::size_t>(output)].op;
    if (op == Prim::input || op == Prim::constant || taken[static_cast<std::size_t>(output)]) {
      program_.code.push_back({.op = Prim::bit_or, .a = output, .b = output});
      taken.push_back(0);
      output = static_cast<std::int32_t>(program_.code.size()) - 1;
    }
    taken[static_cast<std::size_t>(output)] = 1;
  }
}

// Merges an instruction into its only user where a kernel for both exists. Stores cost twice what loads and arithmetic
// do, so that nearly halves the time of the pair.
void InterpretedProgram::fuse() {
  std::vector<int> uses(steps_.size(), 0);
  for (const Step& step : steps_)
    for (int k = 0; k < step.operands; ++k) ++uses[static_cast<std::size_t>(step.operand[k])];
  const auto constant = [&](std::int32_t i) {
    return steps_[static_cast<std::size_t>(i)].op == static_cast<int>(Prim::constant);
  };
  for (Step& user : steps_) {
    bool again = true;
    while (again) {
      again = false;
      for (int k = 0; k < user.operands && !again; ++k) {
        Step& maker = steps_[static_cast<std::size_t>(user.operand[k])];
        // A square reads its operand twice.
        const bool square = user.operands == 3 && user.operand[0] == user.operand[1] && k == 0;
        const int expected = square ? 2 : 1;
        if (constant(user.operand[k]) || maker.output >= 0 ||
            uses[static_cast<std::size_t>(user.operand[k])] != expected)
          continue;
        again = fuse_into(user, k, maker);
        if (again) maker.op = -1, maker.operands = 0;
      }
    }
  }
}

// Whether operand `position` of `user`, made by `maker`, could be computed inside; changes `user` if so.
bool InterpretedProgram::fuse_into(Step& user, int position, const Step& maker) const {
  const auto is = [](const Step& step, Prim prim) { return step.op == static_cast<int>(prim); };
  const auto constant = [&](std::int32_t i) {
    return steps_[static_cast<std::size_t>(i)].op == static_cast<int>(Prim::constant);
  };
  const auto become = [&](int op, int operands, std::int32_t a, std::int32_t b, std::int32_t c = -1,
                          std::int32_t d = -1) {
    user.op = op;
    user.operands = operands;
    const std::int32_t list[] = {a, b, c, d};
    for (int k = 0; k < 4; ++k) user.operand[k] = k < operands ? list[k] : -1;
    return true;
  };
  const std::int32_t other = position < 2 ? user.operand[1 - position] : -1;
  const std::int32_t *from = maker.operand, *to = user.operand;
  const bool square = user.operands == 3 && to[0] == to[1];
  if (is(user, Prim::bit_and) && is(maker, Prim::sub) && constant(other) &&
      cells_[static_cast<std::size_t>(other)] == (wide_ ? ~std::uint64_t(0) >> 1 : 0x7fffffffu))
    return become(kAbsDifference, 2, from[0], from[1]);
  if (is(user, Prim::add) && maker.op == kAbsDifference) return become(kAddAbsDifference, 3, from[0], from[1], other);
  if (is(user, Prim::fma) && square && position == 0 && is(maker, Prim::sub))
    return become(kAddSquaredDifference, 3, from[0], from[1], to[2]);
  if (is(user, Prim::fma) && square && position == 0 && is(maker, Prim::max))
    return become(kAddSquaredMax, 3, from[0], from[1], to[2]);
  if (is(user, Prim::bit_or) && is(maker, Prim::bit_and)) return become(kAndOr, 3, from[0], from[1], other);
  if (is(user, Prim::table16) && is(maker, Prim::shift_right)) {
    user.bits = maker.bits;
    return become(kShiftedTable, 1, from[0], -1);
  }
  if (is(user, Prim::fma) && is(maker, Prim::fma) && position < 2 && constant(to[2]) && constant(from[2]) &&
      (other == from[0] || other == from[1]))
    return become(kTwoSteps, 4, other == from[1] ? from[0] : from[1], other, from[2], to[2]);
  return false;
}

// Linear scan: a slot is free again after the last use of its value; a result may take the slot of an operand.
void InterpretedProgram::assign_slots() {
  const std::size_t size = steps_.size();
  std::vector<std::size_t> last_use(size, 0);
  for (std::size_t i = 0; i < size; ++i)
    for (int k = 0; k < steps_[i].operands; ++k) last_use[static_cast<std::size_t>(steps_[i].operand[k])] = i;
  for (std::int32_t output : program_.outputs) last_use[static_cast<std::size_t>(output)] = size;
  std::vector<std::int32_t> free;
  for (std::size_t i = 0; i < size; ++i) {
    Step& step = steps_[i];
    if (step.op < 0 || step.op == static_cast<int>(Prim::input) || step.op == static_cast<int>(Prim::constant))
      continue;
    for (int k = 0; k < step.operands; ++k) {
      const auto from = static_cast<std::size_t>(step.operand[k]);
      if (last_use[from] != i || steps_[from].slot < 0) continue;
      free.push_back(steps_[from].slot);
      last_use[from] = size;  // freed once, even when it is two operands
    }
    if (free.empty()) free.push_back(slot_count_++);
    step.slot = free.back();
    free.pop_back();
  }
}

void InterpretedProgram::note_later_inputs() {
  std::uint64_t inputs = 0;
  for (std::size_t i = steps_.size(); i-- > 0;) {
    steps_[i].later_inputs = inputs;
    for (int k = 0; k < steps_[i].operands; ++k) {
      const Step& from = steps_[static_cast<std::size_t>(steps_[i].operand[k])];
      if (from.op == static_cast<int>(Prim::input)) inputs |= std::uint64_t(1) << std::min(from.table, 63);
    }
  }
}

}  // namespace mercer::codegen
