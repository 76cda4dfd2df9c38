#include "plan/cpu/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "plan/cpu/registers.h"

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

TargetInfo target_info(Target target, const CpuRow& row) {
  TargetInfo info = target_info(target);
  if (target == Target::x86_avx512 && row.has_wide()) info.uses = &row.wide;
  if (target == Target::x86_avx2) {
    info.uses = &row.narrow;
    info.loads = row.loads;
  }
  info.latency = row.latency;
  return info;
}

double pace(const TargetInfo& target) {
  const auto cycles = [](const TargetInfo& of) { return use_of(*of.uses, Kind::multiply).alone(); };
  return cycles(target) / cycles(target_info(target.target));
}

namespace {

/// The instructions that a primitive is made of, as many of one kind as bound it.
struct Instructions {
  Kind kind;
  int count = 1;
};

Instructions instructions_of(ir::Prim prim, bool wide, bool is_double) {
  using ir::Prim;
  switch (prim) {
    case Prim::mul:
    case Prim::fma:
    case Prim::fnma: return {Kind::multiply};
    case Prim::add:
    case Prim::sub: return {Kind::add};
    case Prim::min:
    case Prim::max: return {Kind::extreme};
    case Prim::abs_max: return wide ? Instructions{Kind::range} : Instructions{Kind::logic, 3};
    case Prim::less:
    case Prim::less_equal:
    case Prim::equal:
    case Prim::not_equal:
    case Prim::unordered: return {Kind::compare};
    case Prim::select: return {Kind::select};
    case Prim::div: return {is_double ? Kind::divide64 : Kind::divide};
    case Prim::sqrt: return {is_double ? Kind::root64 : Kind::root};
    case Prim::floor:
    case Prim::ceil:
    case Prim::round: return {Kind::round};
    case Prim::int_to_float: return {Kind::convert};
    case Prim::shift_left:
    case Prim::shift_right: return {Kind::shift};
    case Prim::large_sine: return {Kind::logic, 2};  // a magnitude and a comparison
    case Prim::int_add:
    case Prim::int_sub: return {Kind::int_add};
    case Prim::int_max: return {Kind::int_max};
    case Prim::table16: return {wide ? Kind::permute : is_double ? Kind::gather : Kind::table};
    case Prim::mask_and:
    case Prim::mask_or:
    case Prim::mask_xor:
    case Prim::mask_not: return {wide ? Kind::mask : Kind::logic};
    default: return {Kind::logic};
  }
}

}  // namespace

PortUse TargetInfo::cost(ir::Prim prim, Dtype type) const {
  if (ir::is_leaf(prim)) return {};
  if (target == Target::interpreter) return use_of(*uses, Kind::logic);
  constexpr int kWideBytes = 64;
  const Instructions made_of = instructions_of(prim, vector_bytes == kWideBytes, type == Dtype::float64);
  PortUse use = use_of(*uses, made_of.kind);
  use.cycles *= made_of.count;
  return use;
}

void PipeCount::add(PortUse use) {
  if (use.ports == 0) return;
  const auto same = std::ranges::find_if(sets_, [&](const PortUse& set) { return set.ports == use.ports; });
  if (same == sets_.end()) sets_.push_back(use);
  else same->cycles += use.cycles;
}

double PipeCount::cycles() const {
  double longest = 0;
  for (unsigned ports = 1; ports < 1u << kPorts; ++ports) {
    double taken = 0;
    for (const PortUse& set : sets_)
      if ((set.ports & ~ports) == 0) taken += set.cycles;
    longest = std::max(longest, taken / std::popcount(ports));
  }
  return longest;
}

std::string PipeCount::to_text(const PortUses& uses) const {
  struct Label {
    const char* name;
    Kind kind;
  };
  constexpr Label kAlways[] = {{"multiply", Kind::multiply}, {"add", Kind::add}, {"either", Kind::logic},
                               {"shuffle", Kind::permute}};
  constexpr double kPair = 2;
  std::string text;
  std::uint64_t shown = 1;  // a bit for each set of ports
  const auto show = [&](const char* name, std::uint8_t ports, bool always) {
    const auto set = std::ranges::find_if(sets_, [&](const PortUse& s) { return s.ports == ports; });
    if ((shown >> ports & 1) != 0 || (set == sets_.end() && !always)) return;
    shown |= std::uint64_t{1} << ports;
    const double cycles = set == sets_.end() ? 0 : set->cycles / (std::popcount(ports) == 1 && !always ? 1 : kPair);
    text += fmt::format("{}{} {:.1f}", text.empty() ? "" : ", ", name, cycles);
  };
  for (const Label& label : kAlways) show(label.name, use_of(uses, label.kind).ports, true);
  for (int kind = 0; kind < kKinds; ++kind)
    show(name_of(static_cast<Kind>(kind)), uses[static_cast<std::size_t>(kind)].ports, false);
  return text;
}

namespace {

/// A short table is one permutation.
PortUse cost_of(const ir::Program& program, const ir::Instr& instr, const TargetInfo& target) {
  const bool short_table = instr.op == ir::Prim::table16 && program.type == Dtype::float32 &&
                           repeats_after_eight(program.tables[instr.index]);
  return short_table ? use_of(*target.uses, Kind::permute) : target.cost(instr.op, program.type);
}

/// Index of a constant 1 that stands before instruction `user`. When there is none, it becomes the first instruction:
/// one from farther down, or a new one; `user` then follows its instruction.
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
    const bool one_of_two =
        target.embedded_broadcast && instr.op == ir::Prim::bit_or && (merges(instr.a) || merges(instr.b));
    if (!one_of_two) count.add(cost_of(program, instr, target));
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
  // The loop runs from the end: the accumulating add goes first, its operands are registers already.
  for (std::size_t i = program.code.size(); i-- > 0;) {
    PipeCount count = count_pipes(program, target);
    const double before = count.cycles();
    PortUse addition = target.cost(ir::Prim::add, program.type);
    addition.cycles = -addition.cycles;
    count.add(addition);
    count.add(target.cost(ir::Prim::fma, program.type));
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
