#include "codegen/x86/cpu_probe.h"

#include <array>

#include "codegen/x86/x86_assembler.h"

namespace mercer::codegen {
namespace {

using plan::Kind;

/// Registers: results go round in the first twelve, the last four hold numbers. Masks: results in k1 … k5.
class ProbeEmitter {
 public:
  explicit ProbeEmitter(Target target) : a_(plan::target_info(target), Dtype::float32) {}

  /// A loop of `step(0)` … `step(kProbeSteps - 1)`.
  template <class Step>
  std::vector<std::uint8_t> operator()(const Step& step) {
    a_.enter(0);
    a_.mov(a_.count, a_.rdi);
    a_.lea(a_.scratch, a_.ptr[a_.rip + a_.pool().table(kNumbers)]);
    for (int r = 0; r < kZero; ++r) a_.move(a_.reg(r), a_.ptr[a_.scratch]);
    a_.broadcast(a_.reg(kSecond), Xbyak::RegExp(a_.scratch));
    a_.zero(a_.reg(kZero));
    if (a_.wide())
      for (const Xbyak::Opmask& mask : {a_.k6, a_.k7}) a_.kxnorw(mask, mask, mask);
    Xbyak::Label loop;
    a_.align(64);
    a_.L(loop);
    for (int i = 0; i < kProbeSteps; ++i) step(i);
    a_.dec(a_.count);
    a_.jnz(loop, Xbyak::CodeGenerator::T_NEAR);
    a_.leave();
    return a_.finish();
  }

  void multiply_add() { a_.multiply_into(false, a_.reg(0), a_.reg(kFirst), a_.reg(kSecond)); }
  void load() { a_.move(next(), a_.ptr[a_.scratch]); }

  void emit(Kind kind) {
    using ir::Prim;
    const Xbyak::Xmm x = a_.reg(kFirst), y = a_.reg(kSecond);
    switch (kind) {
      // No multiply-add: three operands take a way into the registers from the adder on Zen.
      case Kind::multiply: return a_.binary(Prim::mul, next(), x, y);
      case Kind::add: return a_.binary(Prim::add, next(), x, y);
      case Kind::extreme: return a_.binary(Prim::max, next(), x, y);
      case Kind::range: return a_.binary(Prim::abs_max, next(), x, y);
      case Kind::logic: return a_.binary(Prim::bit_and, next(), x, y);
      case Kind::int_add: return a_.binary(Prim::int_add, next(), x, y);
      case Kind::int_max: return a_.binary(Prim::int_max, next(), x, y);
      case Kind::round: return a_.unary(Prim::round, next(), y, 0);
      case Kind::convert: return a_.unary(Prim::int_to_float, next(), y, 0);
      case Kind::shift: return a_.unary(Prim::shift_right, next(), y, 4);
      case Kind::divide: return a_.binary(Prim::div, next(), x, y);
      case Kind::divide64: return a_.vdivpd(next(), x, y);
      case Kind::root: return a_.unary(Prim::sqrt, next(), y, 0);
      case Kind::root64: return a_.vsqrtpd(next(), y);
      case Kind::compare: return compare(x, y);
      case Kind::select: return select(x, y);
      case Kind::permute: return permute(next(), x, y);
      case Kind::mask: return a_.kandw(next_mask(), a_.k6, a_.k7);
      case Kind::table: return table(x, y);
      case Kind::gather: return gather();
    }
  }

 private:
  static constexpr int kResults = 12, kFirst = 12, kSecond = 13, kThird = 14, kZero = 15, kMasks = 5;
  /// No simple fractions, which divide sooner on some processors.
  static constexpr std::array<double, 16> kNumbers{1.2345678, 1.9876543, 1.3141592, 1.7182818, 1.4142135, 1.6180339,
                                                   1.1928374, 1.5647382, 1.8473625, 1.0987612, 1.7654321, 1.2718281,
                                                   1.4567891, 1.9128374, 1.3344556, 1.6677889};

  Xbyak::Xmm next() { return a_.reg(result_++ % kResults); }
  Xbyak::Opmask next_mask() { return Xbyak::Opmask(1 + mask_++ % kMasks); }

  void compare(const Xbyak::Xmm& x, const Xbyak::Xmm& y) {
    constexpr int kLess = 17;
    if (a_.wide()) a_.vcmpps(next_mask(), x, y, kLess);
    else a_.vcmpps(next(), x, y, kLess);
  }
  void select(const Xbyak::Xmm& x, const Xbyak::Xmm& y) {
    if (a_.wide()) a_.vblendmps(next() | a_.k7, x, y);
    else a_.vblendvps(next(), x, y, a_.reg(kThird));
  }
  void permute(const Xbyak::Xmm& to, const Xbyak::Xmm& index, const Xbyak::Xmm& from) {
    if (a_.wide()) a_.vpermps(Xbyak::Zmm(to.getIdx()), Xbyak::Zmm(index.getIdx()), from);
    else a_.vpermps(Xbyak::Ymm(to.getIdx()), Xbyak::Ymm(index.getIdx()), from);
  }
  void table(const Xbyak::Xmm& x, const Xbyak::Xmm& y) {
    const Xbyak::Xmm choose = next(), high = next(), low = next();
    a_.vpslld(choose, x, 28);
    permute(high, x, y);
    permute(low, x, y);
    a_.vblendvps(low, low, high, choose);
  }
  void gather() {
    const Xbyak::Ymm all(next().getIdx()), to(next().getIdx()), index(kZero);
    a_.vpcmpeqd(all, all, all);
    a_.vgatherqpd(to, a_.ptr[a_.scratch + index * 8], all);
  }

  VectorAssembler a_;
  int result_ = 0, mask_ = 0;
};

}  // namespace

bool has_kind(Target target, Kind kind) {
  if (target == Target::interpreter) return false;
  const bool wide = target == Target::x86_avx512;
  if (kind == Kind::range || kind == Kind::mask) return wide;
  return wide ? kind != Kind::table && kind != Kind::gather : true;
}

std::vector<std::uint8_t> emit_probe(Target target, const std::vector<Kind>& kinds) {
  ProbeEmitter emitter(target);
  return emitter([&](int step) { emitter.emit(kinds[static_cast<std::size_t>(step) % kinds.size()]); });
}

std::vector<std::uint8_t> emit_chain_probe(Target target) {
  ProbeEmitter emitter(target);
  return emitter([&](int) { emitter.multiply_add(); });
}

std::vector<std::uint8_t> emit_load_probe(Target target) {
  ProbeEmitter emitter(target);
  return emitter([&](int) { emitter.load(); });
}

}  // namespace mercer::codegen
