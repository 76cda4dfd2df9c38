// The parts of a rotated loop (plan/cpu/rotation.h). Values that a turn leaves to the next one lie in the same
// registers after the head and after every turn.
#include <algorithm>

#include "codegen/x86/program_emitter.h"
#include "core/error.h"

namespace mercer::codegen {

using ir::Instr;

void ProgramEmitter::emit(Part part, const std::vector<Binding>& inputs, const std::vector<Binding>& earlier,
                          const std::vector<Binding>& outputs) {
  inputs_ = &inputs;
  outputs_ = &outputs;
  choose_in_place();
  if (part == Part::head) {
    std::fill(places_.begin(), places_.end(), Place{});
    free_stack_.clear();
    released_stack_.clear();
    next_stack_ = 0;
    initial_free_ = free_;
  }
  for (const plan::Rotation::Step& step : rotation_->steps) {
    if (part != Part::turn && step.tail != (part == Part::tail)) continue;
    if (skipped_[step.instr]) continue;
    inputs_ = step.tail ? &earlier : &inputs;
    now_ = step.instr;
    emit_instruction(now_, step.vector);
    forget_leaves(step);
  }
  if (part == Part::tail) {
    homes_.clear();
    carried_.clear();
    carried_free_.clear();
    free_ = initial_free_;
    return;
  }
  load_spilled();
  if (part == Part::head) {
    carried_ = places_;
    carried_free_ = free_;
    find_homes();
  } else {
    settle();
  }
}

/// A product's sum takes over the register of an operand that it reads last. Such a chain starts in the register in
/// which its last value is carried, so that few moves are left to settle().
void ProgramEmitter::find_homes() {
  homes_.assign(carried_.size(), -1);
  for (std::size_t p = 0; p < carried_.size(); ++p) homes_[p] = carried_[p].reg;
  for (std::size_t i = program_.code.size(); i-- > 0;) {
    const Instr& instr = program_.code[i];
    if ((instr.op != ir::Prim::fma && instr.op != ir::Prim::fnma) || in_place_[i] >= 0) continue;
    for (std::int32_t o : {instr.c, instr.a, instr.b}) {
      if (is_leaf(program_.code[o].op) || last_use_[o] != static_cast<int>(i)) continue;
      for (int v = 0; v < vectors_; ++v)
        if (homes_[o * vectors_ + v] < 0) homes_[o * vectors_ + v] = homes_[i * vectors_ + v];
      break;
    }
  }
}

/// The next step that reads the same input may be another feature's.
void ProgramEmitter::forget_leaves(const plan::Rotation::Step& step) {
  for (std::int32_t o : operands(program_.code[step.instr])) {
    if (o < 0 || !is_leaf(program_.code[o].op)) continue;
    Place& p = place(o, step.vector);
    if (p.reg >= 0) release(p.reg);
    p = {};
  }
}

/// Between two turns every value lies in a register.
void ProgramEmitter::load_spilled() {
  locked_.clear();
  for (std::size_t p = 0; p < places_.size(); ++p) {
    if (places_[p].stack < 0) continue;
    if (places_[p].reg < 0) {
      if (free_.empty()) fail(ErrorKind::compile, "codegen: a turn leaves more values than there are registers.");
      load(static_cast<std::int32_t>(p) / vectors_, static_cast<int>(p) % vectors_);
    }
    free_stack_.push_back(places_[p].stack);
    places_[p].stack = -1;
  }
}

/// Moves the values to where the next turn looks for them.
void ProgramEmitter::settle() {
  struct Move {
    int from, to;
  };
  constexpr int kAside = -1;
  const Xbyak::Address aside = a_.ptr[a_.rsp];  // no value is on the stack now
  std::vector<Move> moves;
  for (std::size_t p = 0; p < places_.size(); ++p)
    if (places_[p].reg != carried_[p].reg) moves.push_back({places_[p].reg, carried_[p].reg});
  const auto blocked = [&](int reg) {
    return std::any_of(moves.begin(), moves.end(), [&](const Move& m) { return m.from == reg; });
  };
  while (!moves.empty()) {
    const auto free = std::find_if(moves.begin(), moves.end(), [&](const Move& m) { return !blocked(m.to); });
    if (free != moves.end()) {
      if (free->from == kAside) a_.move(a_.reg(free->to), aside);
      else a_.move(a_.reg(free->to), a_.reg(free->from));
      moves.erase(free);
      continue;
    }
    // All that is left are cycles: one value steps aside, to a register that no turn begins with.
    Move& first = moves.front();
    const auto spare = std::find_if(carried_free_.begin(), carried_free_.end(), [&](int r) { return !blocked(r); });
    if (spare != carried_free_.end()) a_.move(a_.reg(*spare), a_.reg(first.from));
    else a_.store(aside, a_.reg(first.from));
    first.from = spare != carried_free_.end() ? *spare : kAside;
  }
  places_ = carried_;
  free_ = carried_free_;
}

}  // namespace mercer::codegen
