#include "codegen/x86/program_emitter.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "core/error.h"
#include "plan/cpu/registers.h"

namespace mercer::codegen {

using ir::Instr;
using ir::Prim;
using Xbyak::Xmm;

namespace {

constexpr int kNever = std::numeric_limits<int>::max();

}  // namespace

ProgramEmitter::ProgramEmitter(VectorAssembler& assembler, const ir::Program& program, int vectors,
                               std::vector<int> free_registers, int group)
    : a_(assembler), program_(program), vectors_(vectors),
      group_(group > 0 ? group : plan::side_by_side(program, vectors, assembler.target())),
      free_(std::move(free_registers)) {
  for (int k = a_.target().mask_registers; k >= 1; --k) free_masks_.push_back(k);
  analyse();
}

ProgramEmitter::ProgramEmitter(VectorAssembler& assembler, const plan::Rotation& rotation, int vectors,
                               std::vector<int> free_registers)
    : ProgramEmitter(assembler, rotation.program, vectors, std::move(free_registers), vectors) {
  rotation_ = &rotation;
}

int ProgramEmitter::registers_needed() const {
  return rotation_ ? rotation_->registers : plan::temporaries(program_, group_, a_.target().embedded_broadcast);
}

void ProgramEmitter::analyse() {
  const std::size_t n = program_.code.size();
  uniform_.assign(n, false);
  skipped_.assign(n, false);
  ternary_.assign(n, false);
  in_place_.assign(n, -1);
  pinned_.assign(n, -1);
  table_register_.assign(program_.tables.size(), -1);
  places_.assign(n * vectors_, {});
  uses_.assign(n, {});
  for (std::size_t i = 0; i < n; ++i)
    for (std::int32_t o : operands(program_.code[i]))
      if (o >= 0) uses_[o].push_back(static_cast<int>(i));
  for (std::size_t i = 0; i < n; ++i) fuse_ternary(i);
  last_use_.assign(n, -1);
  for (std::size_t i = 0; i < n; ++i)
    if (!uses_[i].empty()) last_use_[i] = uses_[i].back();
}

/// bit_or(bit_and(p, q), r) is one instruction with AVX-512; the and then happens at the or.
void ProgramEmitter::fuse_ternary(std::size_t i) {
  Instr& instr = program_.code[i];
  if (!a_.wide() || instr.op != Prim::bit_or) return;
  if (program_.code[instr.a].op != Prim::bit_and) std::swap(instr.a, instr.b);
  const std::int32_t inner = instr.a;
  if (program_.code[inner].op != Prim::bit_and || uses_[inner].size() != 1) return;
  if (is_output(inner)) return;
  ternary_[i] = true;
  skipped_[inner] = true;
  instr.c = instr.b;
  instr.a = program_.code[inner].a;
  instr.b = program_.code[inner].b;
  for (std::int32_t o : {instr.a, instr.b}) {
    auto& list = uses_[o];
    *std::find(list.begin(), list.end(), inner) = static_cast<int>(i);
    std::sort(list.begin(), list.end());
  }
}

bool ProgramEmitter::is_output(std::int32_t i) const {
  return std::find(program_.outputs.begin(), program_.outputs.end(), i) != program_.outputs.end();
}

const Binding* ProgramEmitter::binding_of(std::int32_t i) const {
  return program_.code[i].op == Prim::input ? &(*inputs_)[program_.code[i].index] : nullptr;
}

/// Whether a constant becomes the addend of a product whose factors are read again: a load of its own.
bool ProgramEmitter::is_copied(std::int32_t c) const {
  return std::any_of(uses_[c].begin(), uses_[c].end(), [&](int i) {
    const Instr& instr = program_.code[i];
    const bool multiply_add = instr.op == Prim::fma || instr.op == Prim::fnma;
    return multiply_add && instr.c == c && last_use_[instr.a] != i && last_use_[instr.b] != i;
  });
}

void ProgramEmitter::pin_constants(const std::vector<Binding>& inputs) {
  // Registers that the temporaries do not need go to the tables, then to the constants that must be in registers, then
  // to those used most.
  const std::vector<bool> needed = plan::leaves_in_registers(program_, a_.target().embedded_broadcast);
  auto is_constant = [&](std::size_t i) {
    const Instr& leaf = program_.code[i];
    // Embedded broadcasts read a parameter at no cost.
    const bool param = !a_.wide() && leaf.op == Prim::input && !inputs.empty() &&
                       program_.inputs[leaf.index].site == ir::Site::param;
    return (leaf.op == Prim::constant || param) && !uses_[i].empty();
  };
  int spare = static_cast<int>(free_.size()) - registers_needed();
  for (std::size_t i = 0; i < needed.size(); ++i) spare += needed[i] && is_constant(i);
  auto take = [&] {
    const int reg = free_.back();
    free_.pop_back();
    --spare;
    return reg;
  };
  if (a_.wide() && !a_.is_double()) {
    for (std::size_t t = 0; t < program_.tables.size() && spare > 0; ++t) {
      table_register_[t] = take();
      a_.move(a_.reg(table_register_[t]), a_.ptr[a_.rip + a_.pool().table(program_.tables[t])]);
    }
  }
  std::vector<std::int32_t> constants;
  for (std::size_t i = 0; i < program_.code.size(); ++i)
    if (is_constant(i)) constants.push_back(static_cast<std::int32_t>(i));
  const auto wanted = [&](std::int32_t c) {
    return std::tuple(static_cast<bool>(needed[c]), rotation_ && is_copied(c), uses_[c].size());
  };
  std::stable_sort(constants.begin(), constants.end(),
                   [&](std::int32_t p, std::int32_t q) { return wanted(p) > wanted(q); });
  for (std::int32_t c : constants) {
    if (spare <= 0) break;
    pinned_[c] = take();
    const Instr& leaf = program_.code[c];
    const Xmm reg = a_.reg(pinned_[c]);
    if (leaf.op == Prim::input) a_.broadcast(reg, inputs[leaf.index].base + inputs[leaf.index].disp);
    else if (leaf.bits == 0) a_.zero(reg);
    else a_.broadcast(reg, a_.pool().scalar(leaf.bits));
  }
}

int ProgramEmitter::allocate(int preferred) {
  if (free_.empty()) spill_one();
  auto at = preferred < 0 ? free_.end() : std::find(free_.begin(), free_.end(), preferred);
  // Rather one that no value wants between two turns.
  if (at == free_.end() && !carried_free_.empty())
    at = std::find_first_of(free_.begin(), free_.end(), carried_free_.begin(), carried_free_.end());
  if (at == free_.end()) --at;
  const int reg = *at;
  free_.erase(at);
  locked_.push_back(reg);
  return reg;
}

int ProgramEmitter::allocate_mask() {
  if (free_masks_.empty()) fail(ErrorKind::compile, "codegen: the formula needs more masks than the target has.");
  const int mask = free_masks_.back();
  free_masks_.pop_back();
  return mask;
}

void ProgramEmitter::spill_one() {
  std::int32_t victim = -1;
  int victim_v = 0, farthest = -1;
  for (std::size_t i = 0; i < program_.code.size(); ++i) {
    for (int v = 0; v < copies(i); ++v) {
      const Place& p = places_[i * vectors_ + v];
      if (p.reg < 0 || std::find(locked_.begin(), locked_.end(), p.reg) != locked_.end()) continue;
      if (a_.wide() && ir::makes_mask(program_.code[i].op)) continue;
      auto next = std::lower_bound(uses_[i].begin(), uses_[i].end(), now_);
      const int distance = next == uses_[i].end() ? kNever : *next;
      if (distance > farthest) {
        farthest = distance;
        victim = static_cast<std::int32_t>(i);
        victim_v = v;
      }
    }
  }
  if (victim < 0) fail(ErrorKind::compile, "codegen: the formula needs more registers than the target has.");
  Place& p = places_[victim * vectors_ + victim_v];
  if (!is_leaf(program_.code[victim].op) && p.stack < 0) {
    if (free_stack_.empty()) {
      if (next_stack_ + 1 >= kStackBytes / 64)
        fail(ErrorKind::compile, "codegen: the formula has too many live values for one kernel.");
      free_stack_.push_back(next_stack_++);
    }
    p.stack = free_stack_.back();
    free_stack_.pop_back();
    a_.store(a_.ptr[a_.rsp + p.stack * 64], a_.reg(p.reg));
  }
  release(p.reg);
  p.reg = -1;
}

bool ProgramEmitter::dies(std::int32_t value, std::int32_t at, int v) const {
  if (last_use_[value] != at) return false;
  // A uniform value serves all vectors: with several groups of them the last one ends it.
  return !uniform_[value] || (uniform_[at] && group_ == vectors_) || v == vectors_ - 1;
}

void ProgramEmitter::release_dead(std::int32_t i, int v) {
  const std::array<std::int32_t, 3> values = operands(program_.code[i]);
  for (int o = 0; o < 3; ++o) {
    const std::int32_t value = values[o];
    if (value < 0 || (o > 0 && value == values[0]) || (o > 1 && value == values[1])) continue;
    if (!dies(value, i, v)) continue;
    if (is_output(value)) continue;
    Place& p = place(value, v);
    if (p.reg >= 0) {
      if (a_.wide() && ir::makes_mask(program_.code[value].op)) free_masks_.push_back(p.reg);
      else release(p.reg);
    }
    if (p.stack >= 0) released_stack_.push_back(p.stack);
    p = {};
  }
}

/// A leaf or a spilled value brought into a register, where it stays until its last use.
ProgramEmitter::Operand ProgramEmitter::load(std::int32_t i, int v) {
  const int reg = allocate();
  Place& p = place(i, v);
  p.reg = reg;
  const Xmm dst = a_.reg(reg);
  const Instr& instr = program_.code[i];
  if (p.stack >= 0) {
    a_.move(dst, a_.ptr[a_.rsp + p.stack * 64]);
  } else if (instr.op == Prim::constant) {
    if (instr.bits == 0) a_.zero(dst);
    else a_.broadcast(dst, a_.pool().scalar(instr.bits));
  } else {
    const Binding& b = *binding_of(i);
    if (b.kind == Binding::Kind::uniform) a_.broadcast(dst, b.base + b.disp);
    else a_.move(dst, a_.ptr[b.base + b.disp + v * a_.vector_bytes()]);
  }
  return {dst, {}};
}

ProgramEmitter::Operand ProgramEmitter::operand(std::int32_t i, int v, bool need_register) {
  const Instr& instr = program_.code[i];
  if (pinned_[i] >= 0) return {a_.reg(pinned_[i]), {}};
  const Place& p = place(i, v);
  if (p.reg >= 0) {
    locked_.push_back(p.reg);
    return {a_.reg(p.reg), {}};
  }
  const Binding* b = binding_of(i);
  if (b && b->kind == Binding::Kind::pinned) return {a_.reg(b->first_register + v * b->step), {}};
  if (need_register) return load(i, v);
  if (p.stack >= 0) return {{}, a_.ptr[a_.rsp + p.stack * 64]};
  if (instr.op == Prim::constant) {
    if (a_.wide()) return {{}, a_.ptr_b[a_.rip + a_.pool().scalar(instr.bits)]};
    return {{}, a_.ptr[a_.rip + a_.pool().vector(instr.bits)]};
  }
  if (b->kind == Binding::Kind::vector) return {{}, a_.ptr[b->base + b->disp + v * a_.vector_bytes()]};
  if (a_.wide()) return {{}, a_.ptr_b[b->base + b->disp]};
  return load(i, v);
}

/// Outputs that no instruction could write in place: copies, inputs passed through, stores to memory.
void ProgramEmitter::finish_outputs() {
  now_ = kNever - 1;
  locked_.clear();
  struct Move {
    int output, v;
    Xmm from;
  };
  std::vector<Move> moves;
  for (std::size_t o = 0; o < program_.outputs.size(); ++o) {
    const std::int32_t value = program_.outputs[o];
    const Binding& to = (*outputs_)[o];
    if (in_place_[value] == static_cast<int>(o)) continue;
    for (int v = 0; v < vectors_; ++v) {
      locked_.clear();
      for (const Move& m : moves) locked_.push_back(m.from.getIdx());
      Xmm from = in_register(value, v);
      if (to.kind == Binding::Kind::vector) {
        a_.store(a_.ptr[to.base + to.disp + v * a_.vector_bytes()], from);
        continue;
      }
      const Binding* source = binding_of(value);
      if (source && source->kind == Binding::Kind::pinned && source->first_register != to.first_register) {
        const Xmm copy = a_.reg(allocate());  // its register may be overwritten by another output's move
        a_.move(copy, from);
        from = copy;
      }
      moves.push_back({static_cast<int>(o), v, from});
    }
  }
  for (const Move& m : moves) {
    const Xmm to = a_.reg((*outputs_)[m.output].first_register + m.v);
    if (to.getIdx() != m.from.getIdx()) a_.move(to, m.from);
  }
}

void ProgramEmitter::find_uniform() {
  if (rotation_) return;  // its vectors are at different features
  for (std::size_t i = 0; i < program_.code.size(); ++i) {
    const Instr& instr = program_.code[i];
    if (instr.op == Prim::input) {
      uniform_[i] = (*inputs_)[instr.index].kind == Binding::Kind::uniform;
      continue;
    }
    uniform_[i] = true;
    for (std::int32_t o : operands(instr)) uniform_[i] = uniform_[i] && (o < 0 || uniform_[o]);
  }
}

/// Which instructions write a new state over the old one, in its own register.
void ProgramEmitter::choose_in_place() {
  in_place_.assign(program_.code.size(), -1);
  for (std::size_t o = 0; o < program_.outputs.size(); ++o) {
    const Binding& to = (*outputs_)[o];
    const std::int32_t value = program_.outputs[o];
    const Instr& instr = program_.code[value];
    if (to.kind != Binding::Kind::pinned || is_leaf(instr.op) || uniform_[value]) continue;
    if (std::count(program_.outputs.begin(), program_.outputs.end(), value) > 1 || last_use_[value] >= 0) continue;
    // The register of the old state may be overwritten once nothing reads that state any more.
    bool safe = true, own_addend = false;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(program_.code.size()); ++i) {
      const Binding* b = binding_of(i);
      if (!b || b->kind != Binding::Kind::pinned || b->first_register != to.first_register) continue;
      safe = last_use_[i] <= value && !is_output(i);
      own_addend = instr.c == i && instr.a != i && instr.b != i;
    }
    const bool multiply_add = instr.op == Prim::fma || instr.op == Prim::fnma;
    const bool several_steps = instr.op == Prim::table16 || ternary_[value];
    if (safe && !ir::makes_mask(instr.op) && !several_steps && (!multiply_add || own_addend))
      in_place_[value] = static_cast<int>(o);
  }
}

/// Where the instructions end that are emitted for one vector after the other, starting with `first`: an index, its
/// lookup in eight entries and the product that this enters. Side by side they would take a register more per vector.
std::int32_t ProgramEmitter::end_of_run(std::int32_t first) const {
  const auto& code = program_.code;
  const auto feeds_next = [&](std::int32_t i, Prim op) {
    return i + 1 < static_cast<std::int32_t>(code.size()) && code[i + 1].op == op && uses_[i].size() == 1 &&
           uses_[i][0] == i + 1 && !is_output(i) && in_place_[i + 1] < 0;
  };
  if (a_.wide() || code[first].op != Prim::shift_right || !feeds_next(first, Prim::table16)) return first + 1;
  if (!plan::repeats_after_eight(program_.tables[code[first + 1].index])) return first + 1;
  return first + (feeds_next(first + 1, Prim::mul) ? 3 : 2);
}

/// Whether its loads, two a cycle, would take longer than a program's arithmetic. Only with lookups: without them
/// sharing won nothing (on Zen 4 exp and sin lost 1 and 3 %).
bool ProgramEmitter::bound_by_loads() const {
  constexpr int kFewestLookups = 2;
  double loads = 0;
  int lookups = 0;
  for (std::size_t i = 0; i < program_.code.size(); ++i) {
    const Instr& instr = program_.code[i];
    if (instr.op == Prim::constant && pinned_[i] < 0) loads += static_cast<double>(uses_[i].size());
    loads += instr.op == Prim::input && !uniform_[i];
    lookups += instr.op == Prim::table16;
  }
  return lookups >= kFewestLookups && (loads + lookups) / 2 > plan::count_pipes(program_, a_.target()).cycles();
}

/// Constants that `i` would read from memory once per vector go through a register that is free just now. The list is
/// for unshare().
std::vector<std::int32_t> ProgramEmitter::share_constants(std::int32_t i) {
  std::vector<std::int32_t> shared;
  const Instr& instr = program_.code[i];
  if (!shares_ || copies(i) == 1) return shared;
  // Registers for the results, where no operand gives up its own, and for operands that come from the stack.
  int needed = 0;
  for (int v = 0; v < group_; ++v) {
    bool takes_over = in_place_[i] >= 0;
    for (std::int32_t o : operands(instr)) {
      if (o < 0 || is_leaf(program_.code[o].op)) continue;
      needed += place(o, v).reg < 0;
      takes_over = takes_over || (place(o, v).reg >= 0 && dies(o, i, v));
    }
    needed += !takes_over;
  }
  locked_.clear();
  for (std::int32_t o : operands(instr)) {
    if (o < 0 || program_.code[o].op != Prim::constant || in_a_register(o, 0)) continue;
    // A copy of the addend that becomes the sum comes from memory at no cost.
    const bool copied = needed > 0 && (instr.op == Prim::fma || instr.op == Prim::fnma) && o == instr.c;
    if (copied || static_cast<int>(free_.size()) <= needed) continue;
    load(o, 0);
    shared.push_back(o);
  }
  return shared;
}

void ProgramEmitter::unshare(const std::vector<std::int32_t>& constants) {
  for (std::int32_t o : constants) {
    Place& p = place(o, 0);
    if (p.reg >= 0) release(p.reg);
    p.reg = -1;
  }
}

void ProgramEmitter::emit(const std::vector<Binding>& inputs, const std::vector<Binding>& outputs) {
  inputs_ = &inputs;
  outputs_ = &outputs;
  const std::vector<int> free_before = free_, masks_before = free_masks_;
  std::fill(places_.begin(), places_.end(), Place{});
  free_stack_.clear();
  released_stack_.clear();
  next_stack_ = 0;
  find_uniform();
  choose_in_place();
  shares_ = !a_.wide() && group_ > 1 && bound_by_loads();
  const std::int32_t n = static_cast<std::int32_t>(program_.code.size());
  for (int first = 0; first < vectors_; first += group_)
    for (std::int32_t i = 0, end = 0; i < n; i = end) {
      end = i + 1;
      if (is_leaf(program_.code[i].op) || skipped_[i] || first >= copies(i)) continue;
      end = end_of_run(i);
      now_ = i;
      const std::vector<std::int32_t> shared = share_constants(i);
      for (int v = first; v < std::min(first + group_, copies(i)); ++v)
        for (now_ = i; now_ < end; ++now_) emit_instruction(now_, v);
      unshare(shared);
    }
  finish_outputs();
  free_ = free_before;
  free_masks_ = masks_before;
}

}  // namespace mercer::codegen
