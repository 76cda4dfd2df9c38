#include "codegen/x86/x86_assembler.h"

#include <bit>
#include <iterator>
#include <new>

#include "core/error.h"
#include "core/system/mutex.h"
#include "ir/expr/large_angle.h"

namespace mercer::codegen {
namespace {

constexpr std::size_t kMaxCodeBytes = 1 << 18;

/// Memory that is never executed, so xbyak need not make it so. Its own allocator gives null where there is none left,
/// and what follows would write there.
struct CodeBuffers final : Xbyak::Allocator {
  std::uint8_t* alloc(std::size_t bytes) override {
    return static_cast<std::uint8_t*>(::operator new(bytes, kAlignment));
  }
  void free(std::uint8_t* buffer) override { ::operator delete(buffer, kAlignment); }
  bool useProtect() const override { return false; }

 private:
  static constexpr std::align_val_t kAlignment{64};
};

Xbyak::Allocator* code_buffers() {
  static constinit Lazy<CodeBuffers> buffers;
  return &buffers.get();
}

}  // namespace

Xbyak::Label& ConstantPool::scalar(std::uint64_t bits) { return scalars_[bits]; }
Xbyak::Label& ConstantPool::vector(std::uint64_t bits) { return vectors_[bits]; }
Xbyak::Label& ConstantPool::table(const std::array<double, 16>& values) { return tables_[values]; }

void ConstantPool::write_element(Xbyak::CodeGenerator& code, std::uint64_t bits) const {
  if (is_double_) code.dq(bits);
  else code.dd(static_cast<std::uint32_t>(bits));
}

void ConstantPool::write(Xbyak::CodeGenerator& code, int vector_bytes) {
  const int lanes = vector_bytes / (is_double_ ? 8 : 4);
  code.align(64, false);
  auto bits_of = [&](double v) {
    return is_double_ ? std::bit_cast<std::uint64_t>(v) : std::bit_cast<std::uint32_t>(static_cast<float>(v));
  };
  for (auto& [values, label] : tables_) {
    code.L(label);
    for (double v : values) write_element(code, bits_of(v));
  }
  for (auto& [bits, label] : vectors_) {
    code.L(label);
    for (int lane = 0; lane < lanes; ++lane) write_element(code, bits);
  }
  for (auto& [bits, label] : scalars_) {
    code.L(label);
    write_element(code, bits);
  }
}

VectorAssembler::VectorAssembler(const plan::TargetInfo& target, Dtype type)
    : Xbyak::CodeGenerator(4096, Xbyak::AutoGrow, code_buffers()), target_(target), is_double_(type == Dtype::float64),
      wide_(target.vector_bytes == 64), pool_(is_double_) {
  setDefaultJmpNEAR(true);
}

Xbyak::Xmm VectorAssembler::reg(int index) const {
  if (wide_) return Xbyak::Zmm(index);
  return Xbyak::Ymm(index);
}

#define MERCER_FP(name, ...) (is_double_ ? name##pd(__VA_ARGS__) : name##ps(__VA_ARGS__))

void VectorAssembler::binary(ir::Prim op, const Xbyak::Xmm& dst, const Xbyak::Xmm& a, const Xbyak::Operand& b,
                             std::uint64_t bits) {
  using ir::Prim;
  switch (op) {
    case Prim::add: return MERCER_FP(vadd, dst, a, b);
    case Prim::sub: return MERCER_FP(vsub, dst, a, b);
    case Prim::mul: return MERCER_FP(vmul, dst, a, b);
    case Prim::div: return MERCER_FP(vdiv, dst, a, b);
    case Prim::min: return MERCER_FP(vmin, dst, a, b);
    case Prim::max: return MERCER_FP(vmax, dst, a, b);
    case Prim::abs_max: return MERCER_FP(vrange, dst, a, b, 0x0B);  // AVX-512 only: larger magnitude, sign cleared
    case Prim::int_max: return bits ? vpmaxud(dst, a, b) : vpmaxsd(dst, a, b);
    case Prim::bit_and:
      if (!wide_) return vpand(dst, a, b);
      return is_double_ ? vpandq(dst, a, b) : vpandd(dst, a, b);
    case Prim::bit_or:
      if (!wide_) return vpor(dst, a, b);
      return is_double_ ? vporq(dst, a, b) : vpord(dst, a, b);
    case Prim::bit_xor:
      if (!wide_) return vpxor(dst, a, b);
      return is_double_ ? vpxorq(dst, a, b) : vpxord(dst, a, b);
    case Prim::bit_andnot:
      if (!wide_) return vpandn(dst, a, b);
      return is_double_ ? vpandnq(dst, a, b) : vpandnd(dst, a, b);
    case Prim::int_add: return is_double_ ? vpaddq(dst, a, b) : vpaddd(dst, a, b);
    case Prim::int_sub: return is_double_ ? vpsubq(dst, a, b) : vpsubd(dst, a, b);
    default: fail(ErrorKind::compile, "codegen: no x86 instruction for the primitive. Received {}.", ir::name_of(op));
  }
}

void VectorAssembler::unary(ir::Prim op, const Xbyak::Xmm& dst, const Xbyak::Operand& a, std::uint64_t bits) {
  using ir::Prim;
  const int count = static_cast<int>(bits);
  auto rounded = [&](int mode) {
    if (wide_) MERCER_FP(vrndscale, dst, a, mode);
    else MERCER_FP(vround, dst, a, mode);
  };
  switch (op) {
    case Prim::sqrt: return MERCER_FP(vsqrt, dst, a);
    case Prim::round: return rounded(8);  // 8: no inexact exceptions
    case Prim::floor: return rounded(9);
    case Prim::ceil: return rounded(10);
    case Prim::int_to_float: return vcvtdq2ps(dst, a);
    case Prim::shift_left: return is_double_ ? vpsllq(dst, a, count) : vpslld(dst, a, count);
    case Prim::shift_right: return is_double_ ? vpsrlq(dst, a, count) : vpsrld(dst, a, count);
    default: fail(ErrorKind::compile, "codegen: no x86 instruction for the primitive. Received {}.", ir::name_of(op));
  }
}

void VectorAssembler::multiply_into(bool negate, const Xbyak::Xmm& dst, const Xbyak::Xmm& a, const Xbyak::Operand& b) {
  if (negate) MERCER_FP(vfnmadd231, dst, a, b);
  else MERCER_FP(vfmadd231, dst, a, b);
}

void VectorAssembler::multiply_onto(bool negate, const Xbyak::Xmm& dst, const Xbyak::Xmm& a, const Xbyak::Operand& c) {
  if (negate) MERCER_FP(vfnmadd213, dst, a, c);
  else MERCER_FP(vfmadd213, dst, a, c);
}

void VectorAssembler::move(const Xbyak::Xmm& dst, const Xbyak::Operand& src) { MERCER_FP(vmovu, dst, src); }
void VectorAssembler::store(const Xbyak::Address& dst, const Xbyak::Xmm& src) { MERCER_FP(vmovu, dst, src); }

void VectorAssembler::broadcast(const Xbyak::Xmm& dst, const Xbyak::RegExp& address) {
  if (is_double_) vbroadcastsd(dst.isZMM() ? Xbyak::Zmm(dst.getIdx()) : Xbyak::Ymm(dst.getIdx()), ptr[address]);
  else vbroadcastss(dst, ptr[address]);
}

void VectorAssembler::broadcast(const Xbyak::Xmm& dst, Xbyak::Label& scalar) {
  if (is_double_) vbroadcastsd(dst.isZMM() ? Xbyak::Zmm(dst.getIdx()) : Xbyak::Ymm(dst.getIdx()), ptr[rip + scalar]);
  else vbroadcastss(dst, ptr[rip + scalar]);
}

void VectorAssembler::zero(const Xbyak::Xmm& dst) {
  // The 128-bit form clears the whole register; registers 16 … 31 need EVEX.
  if (dst.getIdx() < 16) vpxor(Xbyak::Xmm(dst.getIdx()), Xbyak::Xmm(dst.getIdx()), Xbyak::Xmm(dst.getIdx()));
  else vpxord(dst, dst, dst);
}

void VectorAssembler::mask_not_at_least(const Xbyak::Reg64& dst, const Xbyak::Xmm& a, const Xbyak::Xmm& b) {
  constexpr int kNotAtLeast = 25;  // NGE_UQ
  if (wide_) {
    MERCER_FP(vcmp, k1, a, b, kNotAtLeast);
    kmovw(dst.cvt32(), k1);
  } else {
    MERCER_FP(vcmp, b, a, b, kNotAtLeast);
    MERCER_FP(vmovmsk, dst, b);
  }
}

void VectorAssembler::large_sine(const Xbyak::Xmm& dst, const Xbyak::Xmm& angle, const Xbyak::Xmm& sine,
                                 const Xbyak::Xmm& magnitude, const Xbyak::Opmask& mask, bool cosine) {
  constexpr int kGreater = 30;  // GT_OQ
  const auto bits_of = [&](double v) {
    return is_double_ ? std::bit_cast<std::uint64_t>(v) : std::bit_cast<std::uint32_t>(static_cast<float>(v));
  };
  const std::uint64_t largest = bits_of(is_double_ ? ir::kLargeAngle<double> : ir::kLargeAngle<float>);
  const std::uint64_t no_sign = is_double_ ? ~0ull >> 1 : 0x7fffffffull;
  const auto constant = [&](std::uint64_t bits) {
    return wide_ ? ptr_b[rip + pool_.scalar(bits)] : ptr[rip + pool_.vector(bits)];
  };
  binary(ir::Prim::bit_and, magnitude, angle, constant(no_sign));
  if (wide_) {
    MERCER_FP(vcmp, mask, magnitude, constant(largest), kGreater);
    kortestw(mask, mask);
  } else {
    MERCER_FP(vcmp, magnitude, magnitude, constant(largest), kGreater);
    MERCER_FP(vtest, magnitude, magnitude);
  }
  RareCall& call = rare_calls_.emplace_back(RareCall{{}, {}, dst, angle, sine, cosine});
  jnz(call.start, T_NEAR);
  if (dst.getIdx() != sine.getIdx()) move(dst, sine);
  L(call.back);
}

/// What the helper reads lies on the stack: whether the cosine is wanted, and 64 bytes on the angles, then the sines.
void VectorAssembler::write_call(RareCall& call, Xbyak::Label& helper) {
  L(call.start);
  lea(rsp, ptr[rsp - 192]);
  mov(qword[rsp], static_cast<int>(call.cosine));
  store(ptr[rsp + 64], call.angle);
  store(ptr[rsp + 64 + vector_bytes()], call.sine);
  Xbyak::CodeGenerator::call(helper);
  move(call.dst, ptr[rsp + 64 + vector_bytes()]);
  lea(rsp, ptr[rsp + 192]);
  jmp(call.back, T_NEAR);
}

/// Calls C++ with every register saved that C++ may change, so that the code around a call need not know of it.
void VectorAssembler::write_helper() {
  const Xbyak::Reg64 saved[] = {rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11};
  const int vectors = wide_ ? 32 : 16, vector_slot = vector_bytes();
  push(rbp);
  mov(rbp, rsp);
  for (const Xbyak::Reg64& reg_of_caller : saved) push(reg_of_caller);
  const int below = 8 * static_cast<int>(std::size(saved));
  sub(rsp, vectors * vector_slot + 64);
  and_(rsp, -64);
  for (int r = 0; r < vectors; ++r) store(ptr[rsp + r * vector_slot], reg(r));
  for (int k = 1; wide_ && k < 8; ++k) kmovw(ptr[rsp + vectors * vector_slot + 2 * k], Xbyak::Opmask(k));
  lea(rdi, ptr[rbp + 16 + 64]);
  mov(esi, vector_bytes());
  mov(edx, ptr[rbp + 16]);
  mov(rax, reinterpret_cast<std::uint64_t>(is_double_ ? ir::replace_sines_of_doubles : ir::replace_sines_of_floats));
  vzeroupper();
  Xbyak::CodeGenerator::call(rax);
  for (int r = 0; r < vectors; ++r) move(reg(r), ptr[rsp + r * vector_slot]);
  for (int k = 1; wide_ && k < 8; ++k) kmovw(Xbyak::Opmask(k), ptr[rsp + vectors * vector_slot + 2 * k]);
  lea(rsp, ptr[rbp - below]);
  for (std::size_t r = std::size(saved); r-- > 0;) pop(saved[r]);
  pop(rbp);
  ret();
}

void VectorAssembler::write_rare_calls() {
  if (rare_calls_.empty()) return;
  Xbyak::Label helper;
  for (RareCall& call : rare_calls_) write_call(call, helper);
  L(helper);
  write_helper();
}

void VectorAssembler::enter(int bytes) {
  push(rbp);
  mov(rbp, rsp);
  for (const Xbyak::Reg64& saved : {rbx, r12, r13, r14}) push(saved);
  sub(rsp, bytes + 64);
  and_(rsp, -64);
}

void VectorAssembler::leave() {
  lea(rsp, ptr[rbp - 32]);
  for (const Xbyak::Reg64& saved : {r14, r13, r12, rbx}) pop(saved);
  pop(rbp);
  vzeroupper();
  ret();
}

std::vector<std::uint8_t> VectorAssembler::finish() {
  write_rare_calls();
  pool_.write(*this, target_.vector_bytes);
  ready();
  if (Xbyak::GetError() != Xbyak::ERR_NONE) {
    const char* why = Xbyak::ConvertErrorToString(Xbyak::GetError());
    Xbyak::ClearError();
    fail(ErrorKind::compile, "codegen: the assembler refused the kernel. Received {}.", why);
  }
  if (getSize() > kMaxCodeBytes)
    fail(ErrorKind::compile, "codegen: a kernel has at most {} bytes of code. Received {}.", kMaxCodeBytes, getSize());
  const std::uint8_t* code = getCode();
  return {code, code + getSize()};
}

#undef MERCER_FP

}  // namespace mercer::codegen
