// A private assembler over xbyak: one method per primitive, for AVX-512 or AVX2, float or double. Nothing outside
// codegen sees xbyak. xbyak writes into its own buffer; the finished bytes are copied into write-xor-execute memory.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <vector>

#define XBYAK_NO_EXCEPTION
#include <xbyak/xbyak.h>

#include "ir/expr/program.h"
#include "plan/cpu/target.h"

namespace mercer::codegen {

/// Appends constants after the code and refers to them relative to the instruction pointer.
class ConstantPool {
 public:
  explicit ConstantPool(bool is_double) : is_double_(is_double) {}
  /// One element with this bit pattern, a vector of it, sixteen elements.
  Xbyak::Label& scalar(std::uint64_t bits);
  Xbyak::Label& vector(std::uint64_t bits);
  Xbyak::Label& table(const std::array<double, 16>& values);
  void write(Xbyak::CodeGenerator& code, int vector_bytes);

 private:
  void write_element(Xbyak::CodeGenerator& code, std::uint64_t bits) const;

  bool is_double_;
  std::map<std::uint64_t, Xbyak::Label> scalars_, vectors_;
  std::map<std::array<double, 16>, Xbyak::Label> tables_;
};

class VectorAssembler : public Xbyak::CodeGenerator {
 public:
  VectorAssembler(const plan::TargetInfo& target, Dtype type);

  Xbyak::Xmm reg(int index) const;
  int element_bytes() const { return is_double_ ? 8 : 4; }
  int vector_bytes() const { return target_.vector_bytes; }
  bool is_double() const { return is_double_; }
  bool wide() const { return wide_; }
  const plan::TargetInfo& target() const { return target_; }
  ConstantPool& pool() { return pool_; }

  /// dst = op(a, b). `a` is a register; `b` may be memory (an embedded broadcast with AVX-512).
  void binary(ir::Prim op, const Xbyak::Xmm& dst, const Xbyak::Xmm& a, const Xbyak::Operand& b, std::uint64_t bits = 0);
  /// dst = op(a), `a` may be memory (not with shifts on AVX2).
  void unary(ir::Prim op, const Xbyak::Xmm& dst, const Xbyak::Operand& a, std::uint64_t bits);
  /// dst = (negate ? -(a * b) : a * b) + dst.
  void multiply_into(bool negate, const Xbyak::Xmm& dst, const Xbyak::Xmm& a, const Xbyak::Operand& b);
  /// dst = (negate ? -(dst * a) : dst * a) + c.
  void multiply_onto(bool negate, const Xbyak::Xmm& dst, const Xbyak::Xmm& a, const Xbyak::Operand& c);
  void move(const Xbyak::Xmm& dst, const Xbyak::Operand& src);
  void store(const Xbyak::Address& dst, const Xbyak::Xmm& src);
  void broadcast(const Xbyak::Xmm& dst, const Xbyak::RegExp& address);
  void broadcast(const Xbyak::Xmm& dst, Xbyak::Label& scalar);
  void zero(const Xbyak::Xmm& dst);
  /// dst = sine, but where |angle| is large, its sine (or cosine) by a call that keeps all other registers.
  /// `magnitude` and `mask` are overwritten.
  void large_sine(const Xbyak::Xmm& dst, const Xbyak::Xmm& angle, const Xbyak::Xmm& sine, const Xbyak::Xmm& magnitude,
                  const Xbyak::Opmask& mask, bool cosine);
  /// dst: a bit per lane where !(a >= b). On AVX2 b is lost.
  void mask_not_at_least(const Xbyak::Reg64& dst, const Xbyak::Xmm& a, const Xbyak::Xmm& b);

  /// Saves the callee-saved registers, aligns the stack and reserves `bytes` there.
  void enter(int bytes);
  void leave();
  std::vector<std::uint8_t> finish();

  // The registers of the skeletons. rdi holds the arguments.
  const Xbyak::Reg64 args = rdi, count = rcx, x = r8, z = r9, w = r10, params = r11, row = rsi, col = rdx, acc = rax,
                     out = rbx, pair = r12, scratch = r13, loop = r14;

 private:
  /// A call that an instruction rarely needs: after the code, so that others run past it.
  struct RareCall {
    Xbyak::Label start, back;
    Xbyak::Xmm dst, angle, sine;
    bool cosine;
  };
  void write_rare_calls();
  void write_call(RareCall& call, Xbyak::Label& helper);
  void write_helper();

  const plan::TargetInfo& target_;
  bool is_double_, wide_;
  ConstantPool pool_;
  std::list<RareCall> rare_calls_;
};

}  // namespace mercer::codegen
