#include "codegen/program_emitter.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "plan/registers.h"

namespace mercer::codegen {

using ir::Instr;
using ir::Prim;
using Xbyak::Xmm;

namespace {

constexpr int kNever = std::numeric_limits<int>::max();

std::uint64_t sign_mask(const ir::Program& program) {
  return program.type == Dtype::float64 ? 0x8000000000000000ull : 0x80000000ull;
}

bool is_leaf(Prim op) { return op == Prim::input || op == Prim::constant; }

std::array<std::int32_t, 3> operands(const Instr& instr) { return {instr.a, instr.b, instr.c}; }

}  // namespace

ProgramEmitter::ProgramEmitter(VectorAssembler& assembler, const ir::Program& program, int vectors,
                               std::vector<int> free_registers, int group)
    : a_(assembler), program_(program), vectors_(vectors),
      group_(group > 0 ? group : plan::side_by_side(program, vectors, assembler.target())), free_(std::move(free_registers)) {
  for (int k = a_.target().mask_registers; k >= 1; --k) free_masks_.push_back(k);
  analyse();
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
  if (std::find(program_.outputs.begin(), program_.outputs.end(), inner) != program_.outputs.end()) return;
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

const Binding* ProgramEmitter::binding_of(std::int32_t i) const {
  return program_.code[i].op == Prim::input ? &(*inputs_)[program_.code[i].index] : nullptr;
}

void ProgramEmitter::pin_constants() {
  // Registers that the temporaries do not need go to the tables, then to the constants that must be in registers, then
  // to those used most.
  const std::vector<bool> needed = plan::leaves_in_registers(program_, a_.target().embedded_broadcast);
  auto is_constant = [&](std::size_t i) { return program_.code[i].op == Prim::constant && !uses_[i].empty(); };
  int spare = static_cast<int>(free_.size()) - plan::temporaries(program_, group_, a_.target().embedded_broadcast);
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
  std::stable_sort(constants.begin(), constants.end(), [&](std::int32_t p, std::int32_t q) {
    return std::pair(needed[p] ? 1u : 0u, uses_[p].size()) > std::pair(needed[q] ? 1u : 0u, uses_[q].size());
  });
  for (std::int32_t c : constants) {
    if (spare <= 0) break;
    pinned_[c] = take();
    if (program_.code[c].bits == 0) a_.zero(a_.reg(pinned_[c]));
    else a_.broadcast(a_.reg(pinned_[c]), a_.pool().scalar(program_.code[c].bits));
  }
}

int ProgramEmitter::allocate() {
  if (free_.empty()) spill_one();
  const int reg = free_.back();
  free_.pop_back();
  locked_.push_back(reg);
  return reg;
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
  std::array<std::int32_t, 3> seen = operands(program_.code[i]);
  for (int o = 0; o < 3; ++o) {
    const std::int32_t value = seen[o];
    if (value < 0 || (o > 0 && value == seen[0]) || (o > 1 && value == seen[1])) continue;
    if (!dies(value, i, v)) continue;
    if (std::find(program_.outputs.begin(), program_.outputs.end(), value) != program_.outputs.end()) continue;
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
  if (b && b->kind == Binding::Kind::pinned) return {a_.reg(b->first_register + v), {}};
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

Xmm ProgramEmitter::destination(std::int32_t i, int v) {
  if (in_place_[i] >= 0) return a_.reg((*outputs_)[in_place_[i]].first_register + v);
  Place& p = place(i, v);
  p.reg = allocate();
  return a_.reg(p.reg);
}

void ProgramEmitter::emit_multiply_add(std::int32_t i, int v) {
  const Instr& instr = program_.code[i];
  const bool negate = instr.op == Prim::fnma;
  std::int32_t a = instr.a, b = instr.b;
  auto held = [&](std::int32_t o) {
    const Binding* bound = binding_of(o);
    return pinned_[o] >= 0 || place(o, v).reg >= 0 || (bound && bound->kind == Binding::Kind::pinned);
  };
  auto reusable = [&](std::int32_t o) {
    return place(o, v).reg >= 0 && pinned_[o] < 0 && dies(o, i, v) &&
           std::find(program_.outputs.begin(), program_.outputs.end(), o) == program_.outputs.end();
  };
  auto take_over = [&](std::int32_t o) {  // the result moves into the register of a dying operand
    const int reg = place(o, v).reg;
    locked_.push_back(reg);
    return reg;
  };
  auto settle = [&](std::int32_t o, int reg) {
    place(o, v).reg = -1;
    release_dead(i, v);
    place(i, v).reg = reg;
  };
  if (!held(a) && held(b)) std::swap(a, b);
  if (in_place_[i] >= 0) {
    const Xmm ra = in_register(a, v);
    a_.multiply_into(negate, a_.reg((*outputs_)[in_place_[i]].first_register + v), ra, operand(b, v, false).get());
    return release_dead(i, v);
  }
  if (reusable(instr.c) && instr.c != a && instr.c != b) {
    const int reg = take_over(instr.c);
    const Xmm ra = in_register(a, v);
    a_.multiply_into(negate, a_.reg(reg), ra, operand(b, v, false).get());
    return settle(instr.c, reg);
  }
  if (!reusable(a) && reusable(b)) std::swap(a, b);
  if (reusable(a) && a != instr.c) {
    const int reg = take_over(a);
    const Xmm rb = in_register(b, v);
    a_.multiply_onto(negate, a_.reg(reg), rb, operand(instr.c, v, false).get());
    return settle(a, reg);
  }
  const Xmm ra = in_register(a, v);
  const Operand ob = operand(b, v, false);
  const Operand oc = operand(instr.c, v, held(instr.c));
  const Xmm dst = destination(i, v);
  if (oc.memory && oc.memory->isBroadcast()) {
    if (program_.code[instr.c].op == Prim::constant) a_.broadcast(dst, a_.pool().scalar(program_.code[instr.c].bits));
    else a_.broadcast(dst, binding_of(instr.c)->base + binding_of(instr.c)->disp);
  } else {
    a_.move(dst, oc.get());
  }
  a_.multiply_into(negate, dst, ra, ob.get());
  release_dead(i, v);
}

void ProgramEmitter::emit_ternary(std::int32_t i, int v) {
  const Instr& instr = program_.code[i];
  std::int32_t a = instr.a, b = instr.b;
  if (program_.code[a].op == Prim::constant) std::swap(a, b);
  const Xmm ra = in_register(a, v), rb = in_register(b, v);
  const Operand oc = operand(instr.c, v, false);
  const Xmm dst = destination(i, v);
  a_.move(dst, ra);
  constexpr int kAndOr = 0xEA;  // (dst & second) | third
  if (a_.is_double()) a_.vpternlogq(dst, rb, oc.get(), kAndOr);
  else a_.vpternlogd(dst, rb, oc.get(), kAndOr);
  release_dead(i, v);
}

void ProgramEmitter::emit_table(std::int32_t i, int v) {
  const Instr& instr = program_.code[i];
  const auto& values = program_.tables[instr.index];
  const Xmm index = in_register(instr.a, v);
  const Xmm dst = destination(i, v);
  auto table = [&](int byte) { return a_.ptr[a_.rip + a_.pool().table(values) + byte]; };
  if (a_.wide() && !a_.is_double()) {
    if (table_register_[instr.index] >= 0) a_.vpermps(Xbyak::Zmm(dst.getIdx()), Xbyak::Zmm(index.getIdx()), a_.reg(table_register_[instr.index]));
    else a_.vpermps(Xbyak::Zmm(dst.getIdx()), Xbyak::Zmm(index.getIdx()), table(0));
  } else if (a_.wide()) {
    const Xmm low = a_.reg(allocate());
    a_.move(low, table(0));
    if (dst.getIdx() != index.getIdx()) a_.move(dst, index);
    a_.vpermi2pd(dst, low, table(64));
    release(low.getIdx());
  } else if (!a_.is_double()) {
    const Xbyak::Ymm d(dst.getIdx()), n(index.getIdx()), high(allocate()), choose(allocate());
    a_.vpslld(choose, n, 28);  // bit 3 of the index becomes the sign that the blend reads
    a_.vpermps(high, n, table(32));
    a_.vpermps(d, n, table(0));
    a_.vblendvps(d, d, high, choose);
    release(high.getIdx());
    release(choose.getIdx());
  } else {
    const Xbyak::Ymm d(dst.getIdx()), low_bits(allocate()), all(allocate());
    a_.vpand(low_bits, Xbyak::Ymm(index.getIdx()), a_.ptr[a_.rip + a_.pool().vector(15)]);
    a_.vpcmpeqd(all, all, all);
    a_.vpxor(d, d, d);
    a_.lea(a_.scratch, table(0));
    a_.vgatherqpd(d, a_.ptr[a_.scratch + low_bits * 8], all);
    release(low_bits.getIdx());
    release(all.getIdx());
  }
  release_dead(i, v);
}

void ProgramEmitter::emit_compare(std::int32_t i, int v) {
  const Instr& instr = program_.code[i];
  int predicate = 0;
  switch (instr.op) {
    case Prim::less: predicate = 17; break;        // LT_OQ
    case Prim::less_equal: predicate = 18; break;  // LE_OQ
    case Prim::equal: predicate = 0; break;        // EQ_OQ
    case Prim::not_equal: predicate = 4; break;    // NEQ_UQ
    default: predicate = 3; break;                 // UNORD_Q
  }
  const Xmm ra = in_register(instr.a, v);
  const Operand ob = operand(instr.b, v, false);
  if (a_.wide()) {
    if (free_masks_.empty()) fail(ErrorKind::compile, "codegen: the formula needs more masks than the target has.");
    const Xbyak::Opmask k(free_masks_.back());
    free_masks_.pop_back();
    place(i, v).reg = k.getIdx();
    if (a_.is_double()) a_.vcmppd(k, ra, ob.get(), predicate);
    else a_.vcmpps(k, ra, ob.get(), predicate);
  } else {
    const Xmm dst = destination(i, v);
    if (a_.is_double()) a_.vcmppd(dst, ra, ob.get(), predicate);
    else a_.vcmpps(dst, ra, ob.get(), predicate);
  }
  release_dead(i, v);
}

void ProgramEmitter::emit_mask(std::int32_t i, int v) {
  const Instr& instr = program_.code[i];
  if (!a_.wide()) {
    const Xmm ra = in_register(instr.a, v);
    Xmm rb = ra;
    if (instr.b >= 0) rb = in_register(instr.b, v);
    const Xmm dst = destination(i, v);
    switch (instr.op) {
      case Prim::mask_and: a_.vpand(dst, ra, rb); break;
      case Prim::mask_or: a_.vpor(dst, ra, rb); break;
      case Prim::mask_xor: a_.vpxor(dst, ra, rb); break;
      default: a_.vpxor(dst, ra, a_.ptr[a_.rip + a_.pool().vector(~0ull)]); break;
    }
    return release_dead(i, v);
  }
  const Xbyak::Opmask ka(place(instr.a, v).reg), kb(instr.b >= 0 ? place(instr.b, v).reg : 0);
  release_dead(i, v);  // the result may take the register of an operand
  if (free_masks_.empty()) fail(ErrorKind::compile, "codegen: the formula needs more masks than the target has.");
  const Xbyak::Opmask dst(free_masks_.back());
  free_masks_.pop_back();
  place(i, v).reg = dst.getIdx();
  switch (instr.op) {
    case Prim::mask_and: return a_.kandw(dst, ka, kb);
    case Prim::mask_or: return a_.korw(dst, ka, kb);
    case Prim::mask_xor: return a_.kxorw(dst, ka, kb);
    default: return a_.knotw(dst, ka);
  }
}

void ProgramEmitter::emit_select(std::int32_t i, int v) {
  const Instr& instr = program_.code[i];
  if (a_.wide()) {
    const Xbyak::Opmask k(place(instr.a, v).reg);
    const Xmm rc = in_register(instr.c, v);
    const Operand ob = operand(instr.b, v, false);
    const Xmm dst = destination(i, v);
    if (a_.is_double()) a_.vblendmpd(dst | k, rc, ob.get());
    else a_.vblendmps(dst | k, rc, ob.get());
  } else {
    const Xmm mask = in_register(instr.a, v), rc = in_register(instr.c, v);
    const Operand ob = operand(instr.b, v, false);
    const Xmm dst = destination(i, v);
    if (a_.is_double()) a_.vblendvpd(dst, rc, ob.get(), mask);
    else a_.vblendvps(dst, rc, ob.get(), mask);
  }
  release_dead(i, v);
}

/// AVX2 has no vrange: clear both signs, then take the larger.
void ProgramEmitter::emit_abs_max(std::int32_t i, int v) {
  const Instr& instr = program_.code[i];
  const std::uint64_t magnitude = ~sign_mask(program_) & (a_.is_double() ? ~0ull : 0xffffffffull);
  const Xmm ra = in_register(instr.a, v), rb = in_register(instr.b, v);
  const Xmm cleared = a_.reg(allocate());
  a_.binary(Prim::bit_and, cleared, ra, a_.ptr[a_.rip + a_.pool().vector(magnitude)]);
  const Xmm other = a_.reg(allocate());
  a_.binary(Prim::bit_and, other, rb, a_.ptr[a_.rip + a_.pool().vector(magnitude)]);
  const Xmm dst = destination(i, v);
  a_.binary(Prim::max, dst, cleared, other);
  release(cleared.getIdx());
  release(other.getIdx());
  release_dead(i, v);
}

void ProgramEmitter::emit_instruction(std::int32_t i, int v) {
  const Instr& instr = program_.code[i];
  locked_.clear();
  // A slot stays taken until the instruction that reads it is out.
  free_stack_.insert(free_stack_.end(), released_stack_.begin(), released_stack_.end());
  released_stack_.clear();
  if (ternary_[i]) return emit_ternary(i, v);
  switch (instr.op) {
    case Prim::fma:
    case Prim::fnma: return emit_multiply_add(i, v);
    case Prim::table16: return emit_table(i, v);
    case Prim::select: return emit_select(i, v);
    case Prim::less:
    case Prim::less_equal:
    case Prim::equal:
    case Prim::not_equal:
    case Prim::unordered: return emit_compare(i, v);
    case Prim::mask_and:
    case Prim::mask_or:
    case Prim::mask_xor:
    case Prim::mask_not: return emit_mask(i, v);
    case Prim::abs_max:
      if (!a_.wide()) return emit_abs_max(i, v);
      break;
    default: break;
  }
  if (ir::operand_count(instr.op) == 1) {
    const bool shift = instr.op == Prim::shift_left || instr.op == Prim::shift_right;
    const Operand oa = operand(instr.a, v, shift && !a_.wide());
    release_dead(i, v);
    return a_.unary(instr.op, destination(i, v), oa.get(), instr.bits);
  }
  std::int32_t a = instr.a, b = instr.b;
  const Binding* bound = binding_of(a);
  const bool a_in_memory = is_leaf(program_.code[a].op) && pinned_[a] < 0 && place(a, v).reg < 0 &&
                           !(bound && bound->kind == Binding::Kind::pinned);
  if (a_in_memory && plan::commutes(instr.op)) std::swap(a, b);
  const Xmm ra = in_register(a, v);
  const Operand ob = operand(b, v, false);
  release_dead(i, v);
  a_.binary(instr.op, destination(i, v), ra, ob.get());
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

void ProgramEmitter::emit(const std::vector<Binding>& inputs, const std::vector<Binding>& outputs) {
  inputs_ = &inputs;
  outputs_ = &outputs;
  const std::vector<int> free_before = free_, masks_before = free_masks_;
  std::fill(places_.begin(), places_.end(), Place{});
  free_stack_.clear();
  released_stack_.clear();
  next_stack_ = 0;
  const std::int32_t n = static_cast<std::int32_t>(program_.code.size());
  for (std::int32_t i = 0; i < n; ++i) {
    const Instr& instr = program_.code[i];
    if (instr.op == Prim::constant) uniform_[i] = true;
    else if (instr.op == Prim::input) uniform_[i] = inputs[instr.index].kind == Binding::Kind::uniform;
    else {
      uniform_[i] = true;
      for (std::int32_t o : operands(instr)) uniform_[i] = uniform_[i] && (o < 0 || uniform_[o]);
    }
    in_place_[i] = -1;
  }
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    const std::int32_t value = program_.outputs[o];
    if (outputs[o].kind != Binding::Kind::pinned || is_leaf(program_.code[value].op) || uniform_[value]) continue;
    if (std::count(program_.outputs.begin(), program_.outputs.end(), value) > 1 || last_use_[value] >= 0) continue;
    // The register of the old state may be overwritten once nothing reads that state any more.
    bool safe = true, own_addend = false;
    for (std::int32_t i = 0; i < n; ++i) {
      const Binding* b = binding_of(i);
      if (!b || b->kind != Binding::Kind::pinned || b->first_register != outputs[o].first_register) continue;
      safe = last_use_[i] <= value;
      for (std::int32_t other : program_.outputs) safe = safe && other != i;
      own_addend = program_.code[value].c == i && program_.code[value].a != i && program_.code[value].b != i;
    }
    const bool multiply_add = program_.code[value].op == Prim::fma || program_.code[value].op == Prim::fnma;
    const bool mask = ir::makes_mask(program_.code[value].op);
    const bool several_steps = program_.code[value].op == Prim::table16 || ternary_[value];
    if (safe && !mask && !several_steps && (!multiply_add || own_addend)) in_place_[value] = static_cast<int>(o);
  }
  for (int first = 0; first < vectors_; first += group_)
    for (std::int32_t i = 0; i < n; ++i) {
      if (is_leaf(program_.code[i].op) || skipped_[i] || first >= copies(i)) continue;
      now_ = i;
      for (int v = first; v < std::min(first + group_, copies(i)); ++v) emit_instruction(i, v);
    }
  finish_outputs();
  free_ = free_before;
  free_masks_ = masks_before;
}

}  // namespace mercer::codegen
