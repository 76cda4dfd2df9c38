#include "plan/target.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "plan/registers.h"

namespace mercer {

const char* name_of(Target target) { return plan::target_info(target).name; }

namespace plan {

extern const TargetInfo kAvx512, kAvx2, kInterpreter;

std::span<const TargetInfo* const> targets() {
  static constexpr const TargetInfo* kTargets[] = {&kAvx512, &kAvx2, &kInterpreter};
  return kTargets;
}

const TargetInfo& target_info(Target target) {
  for (const TargetInfo* info : targets())
    if (info->target == target) return *info;
  return kInterpreter;
}

double PipeCount::cycles() const {
  const double three_pipes = (std::max(fma, add) + shuffle) * 2 / 3;
  return std::max({fma, add, shuffle, divide, three_pipes, (fma + add + either + shuffle) / 2});
}

namespace {

/// A short table is one permutation, as long as a shift.
PrimCost cost_of(const ir::Program& program, const ir::Instr& instr, const TargetInfo& target) {
  const bool short_table = instr.op == ir::Prim::table16 && program.type == Dtype::float32 &&
                           repeats_after_eight(program.tables[instr.index]);
  if (short_table) return {Pipe::shuffle, target.cost(ir::Prim::shift_right, program.type).cycles};
  return target.cost(instr.op, program.type);
}

/// Index of a constant 1 that stands before instruction `user`. When there is none, it becomes the first instruction:
/// one from further down, or a new one; `user` then follows its instruction.
std::int32_t one_before(ir::Program& program, std::size_t& user) {
  const std::uint64_t bits = program.type == Dtype::float64 ? std::bit_cast<std::uint64_t>(1.0)
                                                            : std::bit_cast<std::uint32_t>(1.0f);
  const auto is_one = [&](const ir::Instr& c) { return c.op == ir::Prim::constant && c.bits == bits; };
  const auto from = static_cast<std::size_t>(std::find_if(program.code.begin(), program.code.end(), is_one) -
                                             program.code.begin());
  if (from < user) return static_cast<std::int32_t>(from);
  if (from == program.code.size()) program.code.push_back({.op = ir::Prim::constant, .bits = bits});
  std::rotate(program.code.begin(), program.code.begin() + static_cast<std::ptrdiff_t>(from),
              program.code.begin() + static_cast<std::ptrdiff_t>(from) + 1);
  const auto moved = static_cast<std::int32_t>(from);
  const auto follow = [&](std::int32_t& o) { o = o < 0 || o > moved ? o : o == moved ? 0 : o + 1; };
  for (ir::Instr& instr : program.code)
    for (std::int32_t* operand : {&instr.a, &instr.b, &instr.c}) follow(*operand);
  for (std::int32_t& output : program.outputs) follow(output);
  ++user;
  return 0;
}

/// True when every use of value `i` would be the same for its negative.
bool sign_is_irrelevant(const ir::Program& program, std::int32_t i) {
  using ir::Prim;
  const bool is_double = program.type == Dtype::float64;
  const std::uint64_t sign = is_double ? 0x8000000000000000ull : 0x80000000ull;
  auto constant = [&](std::int32_t o, bool with_sign) {
    const ir::Instr& c = program.code[o];
    return c.op == Prim::constant && ((c.bits & sign) != 0) == with_sign;
  };
  auto used_by = [&](const ir::Instr& instr, std::int32_t o) { return instr.a == o || instr.b == o || instr.c == o; };
  for (std::int32_t o : program.outputs)
    if (o == i) return false;
  for (const ir::Instr& use : program.code) {
    if (!used_by(use, i)) continue;
    bool fine = false;
    if (use.op == Prim::bit_and) fine = constant(use.a == i ? use.b : use.a, false);
    if (use.op == Prim::bit_andnot) fine = use.b == i && constant(use.a, true);
    if (use.op == Prim::mul) fine = use.a == use.b;
    if (use.op == Prim::fma || use.op == Prim::fnma) fine = use.a == use.b && use.c != i;
    if (use.op == Prim::abs_max) fine = true;
    if (use.op == Prim::shift_right) {
      // A table reads four bits: the sign must stay above them.
      const std::int32_t shifted = static_cast<std::int32_t>(&use - program.code.data());
      fine = (is_double ? 63 : 31) - static_cast<int>(use.bits) >= 4;
      for (const ir::Instr& reader : program.code)
        if (used_by(reader, shifted)) fine = fine && reader.op == Prim::table16;
    }
    if (!fine) return false;
  }
  return true;
}

}  // namespace

PipeCount count_pipes(const ir::Program& program, const TargetInfo& target) {
  PipeCount count;
  // bit_or(bit_and(p, q), r) is one instruction with AVX-512, where nobody else reads the inner one.
  std::vector<int> readers(program.code.size(), 0);
  for (const ir::Instr& instr : program.code)
    for (std::int32_t o : operands(instr))
      if (o >= 0) ++readers[o];
  for (std::int32_t o : program.outputs) ++readers[o];
  const auto merges = [&](std::int32_t o) { return program.code[o].op == ir::Prim::bit_and && readers[o] == 1; };
  for (const ir::Instr& instr : program.code) {
    PrimCost cost = cost_of(program, instr, target);
    const bool one_of_two =
        target.embedded_broadcast && instr.op == ir::Prim::bit_or && (merges(instr.a) || merges(instr.b));
    if (one_of_two) cost.cycles = 0;
    switch (cost.pipe) {
      case Pipe::fma: count.fma += cost.cycles; break;
      case Pipe::add: count.add += cost.cycles; break;
      case Pipe::either: count.either += cost.cycles; break;
      case Pipe::shuffle: count.shuffle += cost.cycles; break;
      case Pipe::divide: count.divide += cost.cycles; break;
      default: break;
    }
  }
  return count;
}

ir::Program orient_differences(ir::Program program, const TargetInfo& target) {
  if (!target.embedded_broadcast) return program;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    ir::Instr& instr = program.code[i];
    if (instr.op != ir::Prim::sub || program.code[instr.a].op != ir::Prim::input) continue;
    if (program.inputs[program.code[instr.a].index].site == ir::Site::x &&
        sign_is_irrelevant(program, static_cast<std::int32_t>(i)))
      std::swap(instr.a, instr.b);
  }
  return program;
}

ir::Program balance_pipes(ir::Program program, const TargetInfo& target) {
  // From the end: the accumulating add goes first, its operands are registers already.
  for (std::size_t i = program.code.size(); i-- > 0;) {
    PipeCount count = count_pipes(program, target);
    const double before = count.cycles();
    const double slot = target.cost(ir::Prim::add, program.type).cycles;
    count.add -= slot;
    count.fma += slot;
    if (count.cycles() >= before) break;
    const ir::Prim op = program.code[i].op;
    if (op != ir::Prim::add && op != ir::Prim::sub) continue;
    const std::int32_t one = one_before(program, i);
    ir::Instr& instr = program.code[i];
    if (op == ir::Prim::add) {
      // The accumulator, when there is one, is the addend: the instruction then updates it in place.
      if (program.code[instr.a].op == ir::Prim::input &&
          program.inputs[program.code[instr.a].index].site == ir::Site::accumulator)
        std::swap(instr.a, instr.b);
      instr = {ir::Prim::fma, instr.a, one, instr.b, 0, 0};
    } else {
      instr = {ir::Prim::fnma, instr.b, one, instr.a, 0, 0};
    }
  }
  return program;
}

}  // namespace plan
}  // namespace mercer
