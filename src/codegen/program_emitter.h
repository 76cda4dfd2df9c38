// Emits one instance of a program: straight-line vector code with register allocation.
//
// A skeleton (x86_emit.cpp) owns the loops; for every row it calls emit() with bindings that say where each input lies
// and where each output goes. The `vectors` instances of an instruction are emitted side by side, so that a long
// dependency chain (a polynomial) always has that many independent neighbours.
//
// Allocation is a linear scan over the program: a register is freed at the last use of its value; when none is free, the
// value with the farthest next use goes to the stack (or is dropped, when it can be loaded again).
#pragma once

#include <optional>
#include <vector>

#include "codegen/x86_assembler.h"

namespace mercer::codegen {

struct Binding {
  enum class Kind { pinned, vector, uniform } kind = Kind::uniform;
  int first_register = 0;   // pinned: vector v lies in register first_register + v
  Xbyak::Reg64 base;        // memory: vector v at base + disp + v * vector_bytes; uniform: one element at base + disp
  int disp = 0;

  static Binding registers(int first) { return {Kind::pinned, first, Xbyak::Reg64(0), 0}; }
  static Binding memory(Xbyak::Reg64 base, int disp) { return {Kind::vector, 0, base, disp}; }
  static Binding broadcast(Xbyak::Reg64 base, int disp) { return {Kind::uniform, 0, base, disp}; }
};

class ProgramEmitter {
 public:
  /// `free_registers` are for temporaries and pinned constants; stack slots start at rsp. `group` of the vectors are
  /// emitted side by side (0: the planner's choice).
  ProgramEmitter(VectorAssembler& assembler, const ir::Program& program, int vectors, std::vector<int> free_registers,
                 int group = 0);

  /// Loads the constants and tables that registers are left for; call once, before the loop.
  void pin_constants();
  /// One instance. `inputs` and `outputs` follow the program's order.
  void emit(const std::vector<Binding>& inputs, const std::vector<Binding>& outputs);

  /// Bytes of stack that emit() may use, for VectorAssembler::enter.
  static constexpr int kStackBytes = 64 * 96;

 private:
  struct Place {
    int reg = -1;
    int stack = -1;
  };
  struct Operand {
    std::optional<Xbyak::Xmm> reg;
    std::optional<Xbyak::Address> memory;
    const Xbyak::Operand& get() const {
      if (reg) return *reg;
      return *memory;
    }
  };

  void analyse();
  void fuse_ternary(std::size_t i);
  int copies(std::int32_t i) const { return uniform_[i] ? 1 : vectors_; }
  Place& place(std::int32_t i, int v) { return places_[i * vectors_ + (uniform_[i] ? 0 : v)]; }
  const Binding* binding_of(std::int32_t i) const;

  int allocate();
  void spill_one();
  void release(int reg) { free_.push_back(reg); }
  void release_dead(std::int32_t i, int v);
  bool dies(std::int32_t value, std::int32_t at, int v) const;

  Operand operand(std::int32_t i, int v, bool need_register);
  Xbyak::Xmm in_register(std::int32_t i, int v) { return *operand(i, v, true).reg; }
  Operand load(std::int32_t i, int v);

  void emit_instruction(std::int32_t i, int v);
  void emit_multiply_add(std::int32_t i, int v);
  void emit_ternary(std::int32_t i, int v);
  void emit_table(std::int32_t i, int v);
  void emit_compare(std::int32_t i, int v);
  void emit_mask(std::int32_t i, int v);
  void emit_select(std::int32_t i, int v);
  void emit_abs_max(std::int32_t i, int v);
  Xbyak::Xmm destination(std::int32_t i, int v);
  void finish_outputs();

  VectorAssembler& a_;
  ir::Program program_;
  int vectors_, group_;                     // `group_` of the `vectors_` instances are emitted side by side
  std::vector<int> free_, free_masks_;
  std::vector<int> last_use_;
  std::vector<std::vector<int>> uses_;
  std::vector<bool> uniform_, skipped_;
  std::vector<bool> ternary_;               // a bit_or that also performs its first operand's bit_and
  std::vector<int> in_place_;               // output index whose pinned register the instruction may write, or -1
  std::vector<int> pinned_;                 // register of a pinned constant, or -1
  std::vector<int> table_register_;
  std::vector<Place> places_;
  std::vector<int> locked_;
  std::vector<int> free_stack_, released_stack_;
  int next_stack_ = 0;
  std::int32_t now_ = 0;
  const std::vector<Binding>* inputs_ = nullptr;
  const std::vector<Binding>* outputs_ = nullptr;
};

}  // namespace mercer::codegen
