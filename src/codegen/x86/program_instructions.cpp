// The emission of single instructions: which operands come from memory, which register the result takes. The registers
// themselves are handed out by program_emitter.cpp.
#include "codegen/x86/program_emitter.h"
#include "plan/cpu/registers.h"

namespace mercer::codegen {

using ir::Instr;
using ir::Prim;
using Xbyak::Xmm;

bool ProgramEmitter::in_a_register(std::int32_t i, int v) {
  const Binding* bound = binding_of(i);
  return pinned_[i] >= 0 || place(i, v).reg >= 0 || (bound && bound->kind == Binding::Kind::pinned);
}

Xmm ProgramEmitter::destination(std::int32_t i, int v) {
  if (in_place_[i] >= 0) return a_.reg((*outputs_)[in_place_[i]].first_register + v);
  Place& p = place(i, v);
  p.reg = allocate(homes_.empty() ? -1 : homes_[i * vectors_ + v]);
  return a_.reg(p.reg);
}

/// A move has no embedded broadcast: that is an instruction of its own.
void ProgramEmitter::copy_addend(const Xmm& dst, std::int32_t i, const Operand& from) {
  const Instr& addend = program_.code[i];
  if (!from.memory || !from.memory->isBroadcast()) a_.move(dst, from.get());
  else if (addend.op == Prim::constant) a_.broadcast(dst, a_.pool().scalar(addend.bits));
  else a_.broadcast(dst, binding_of(i)->base + binding_of(i)->disp);
}

/// Four forms: onto the old state in place; over a dying addend; over a dying factor; else a copy of the addend.
void ProgramEmitter::emit_multiply_add(std::int32_t i, int v) {
  const Instr& instr = program_.code[i];
  const bool negate = instr.op == Prim::fnma;
  std::int32_t a = instr.a, b = instr.b;
  auto reusable = [&](std::int32_t o) {
    return place(o, v).reg >= 0 && pinned_[o] < 0 && dies(o, i, v) && !is_output(o);
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
  if (!in_a_register(a, v) && in_a_register(b, v)) std::swap(a, b);
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
  const Operand oc = operand(instr.c, v, in_a_register(instr.c, v));
  const Xmm dst = destination(i, v);
  copy_addend(dst, instr.c, oc);
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
  if (!a_.wide() && !a_.is_double() && plan::repeats_after_eight(values)) {
    release_dead(i, v);
    const Xbyak::Ymm d(destination(i, v).getIdx()), n(index.getIdx());
    return a_.vpermps(d, n, a_.ptr[a_.rip + a_.pool().table(values)]);
  }
  const Xmm dst = destination(i, v);
  auto table = [&](int byte) { return a_.ptr[a_.rip + a_.pool().table(values) + byte]; };
  if (a_.wide() && !a_.is_double()) {
    const Xbyak::Zmm d(dst.getIdx()), n(index.getIdx());
    const int pinned = table_register_[instr.index];
    if (pinned >= 0) a_.vpermps(d, n, a_.reg(pinned));
    else a_.vpermps(d, n, table(0));
  } else if (a_.wide() && plan::repeats_after_eight(values)) {
    a_.vpermpd(Xbyak::Zmm(dst.getIdx()), Xbyak::Zmm(index.getIdx()), table(0));
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
    const Xbyak::Opmask k(allocate_mask());
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
  const Xbyak::Opmask dst(allocate_mask());
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
  const std::uint64_t magnitude = a_.is_double() ? 0x7fffffffffffffffull : 0x7fffffffull;
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

/// The sine as it is, unless some lane's angle is large: then a call, out of the way of others.
void ProgramEmitter::emit_large_sine(std::int32_t i, int v) {
  const Instr& instr = program_.code[i];
  const Xmm angle = in_register(instr.a, v), sine = in_register(instr.b, v);
  const Xmm magnitude = a_.reg(allocate());
  int mask = 0;
  if (a_.wide()) {
    mask = allocate_mask();
    free_masks_.push_back(mask);
  }
  release(magnitude.getIdx());
  release_dead(i, v);
  a_.large_sine(destination(i, v), angle, sine, magnitude, Xbyak::Opmask(mask), instr.bits != 0);
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
    case Prim::large_sine: return emit_large_sine(i, v);
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
  const bool in_memory = is_leaf(program_.code[a].op) && !in_a_register(a, v);
  if (in_memory && plan::commutes(instr.op)) std::swap(a, b);
  const Xmm ra = in_register(a, v);
  const Operand ob = operand(b, v, false);
  release_dead(i, v);
  a_.binary(instr.op, destination(i, v), ra, ob.get(), instr.bits);
}

}  // namespace mercer::codegen
