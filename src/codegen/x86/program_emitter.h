// Emits one instance of a program: straight-line vector code with register allocation.
//
// A skeleton (x86_emit.cpp) owns the loops; for every row it calls emit() with bindings that say where each input lies
// and where each output goes. Instances of an instruction are emitted side by side, `group` of the `vectors` at a time,
// so that a long dependency chain (a polynomial) always has that many independent neighbours.
//
// Allocation is a linear scan over the program: a register is freed at the last use of its value; when none is free,
// the value with the farthest next use goes to the stack (or is dropped, when it can be loaded again).
//
// program_emitter.cpp has the analysis, the allocation and the loop over a program; program_instructions.cpp what each
// primitive becomes. `i` is an instruction of the program, `v` one of its instances.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/x86/x86_assembler.h"
#include "plan/cpu/rotation.h"

namespace mercer::codegen {

/// Where an input lies, or where an output goes.
struct Binding {
  enum class Kind { pinned, vector, uniform } kind = Kind::uniform;
  int first_register = 0;   // pinned: vector v lies in register first_register + v * step
  Xbyak::Reg64 base;        // memory: vector v at base + disp + v * vector_bytes; uniform: one element at base + disp
  int disp = 0;
  int step = 1;

  static Binding registers(int first) { return {Kind::pinned, first, Xbyak::Reg64(0), 0}; }
  /// One register for all vectors.
  static Binding shared_register(int reg) { return {Kind::pinned, reg, Xbyak::Reg64(0), 0, 0}; }
  static Binding memory(Xbyak::Reg64 base, int disp) { return {Kind::vector, 0, base, disp}; }
  static Binding broadcast(Xbyak::Reg64 base, int disp) { return {Kind::uniform, 0, base, disp}; }
};

class ProgramEmitter {
 public:
  /// `free_registers` are for temporaries and pinned constants; stack slots start at rsp. `group` of the vectors are
  /// emitted side by side (0: the planner's choice).
  ProgramEmitter(VectorAssembler& assembler, const ir::Program& program, int vectors, std::vector<int> free_registers,
                 int group = 0);
  /// Emits turns of a rotated loop; `rotation` must outlive it.
  ProgramEmitter(VectorAssembler& assembler, const plan::Rotation& rotation, int vectors,
                 std::vector<int> free_registers);

  /// Loads the constants and tables that registers are left for, and the parameters where `inputs` says where they lie;
  /// call once, before the loop.
  void pin_constants(const std::vector<Binding>& inputs = {});
  /// One instance. `inputs` and `outputs` follow the program's order.
  void emit(const std::vector<Binding>& inputs, const std::vector<Binding>& outputs);
  /// The parts of a rotated loop, once each and in this order: the head of the first feature, a turn, the tail of the
  /// last one. `earlier`: the inputs of the feature before.
  enum class Part { head, turn, tail };
  void emit(Part part, const std::vector<Binding>& inputs, const std::vector<Binding>& earlier,
            const std::vector<Binding>& outputs);

  /// Bytes of stack that emit() may use, for VectorAssembler::enter.
  static constexpr int kStackBytes = 64 * 96;

 private:
  /// Where an instance's value lies now: a (mask) register, a slot of the stack, both, or neither.
  struct Place {
    int reg = -1;
    int stack = -1;
  };
  /// An operand of an x86 instruction: a register or memory.
  struct Operand {
    std::optional<Xbyak::Xmm> reg;
    std::optional<Xbyak::Address> memory;
    const Xbyak::Operand& get() const {
      if (reg) return *reg;
      return *memory;
    }
  };

  // Once per program.
  void analyse();
  int registers_needed() const;
  bool is_copied(std::int32_t c) const;
  void fuse_ternary(std::size_t i);
  // Once per instance of the program: the bindings decide these.
  void find_uniform();
  void choose_in_place();
  void finish_outputs();
  std::int32_t end_of_run(std::int32_t first) const;
  bool bound_by_loads() const;
  std::vector<std::int32_t> share_constants(std::int32_t i);
  void unshare(const std::vector<std::int32_t>& constants);

  // Functions for a rotated loop.
  void find_homes();
  void forget_leaves(const plan::Rotation::Step& step);
  void load_spilled();
  void settle();

  int copies(std::int32_t i) const { return uniform_[i] ? 1 : vectors_; }
  Place& place(std::int32_t i, int v) { return places_[i * vectors_ + (uniform_[i] ? 0 : v)]; }
  const Binding* binding_of(std::int32_t i) const;  // null: not an input
  bool is_output(std::int32_t i) const;
  bool in_a_register(std::int32_t i, int v);

  /// A free register, locked until the instruction is out.
  int allocate(int preferred = -1);
  int allocate_mask();
  void spill_one();
  void release(int reg) { free_.push_back(reg); }
  /// Gives back what the operands of `i` held, where this was their last use.
  void release_dead(std::int32_t i, int v);
  bool dies(std::int32_t value, std::int32_t at, int v) const;

  Operand operand(std::int32_t i, int v, bool need_register);
  Xbyak::Xmm in_register(std::int32_t i, int v) { return *operand(i, v, true).reg; }
  Operand load(std::int32_t i, int v);
  /// The register that instruction `i` writes: the output's own, or a new one.
  Xbyak::Xmm destination(std::int32_t i, int v);

  void emit_instruction(std::int32_t i, int v);
  void emit_multiply_add(std::int32_t i, int v);
  void emit_ternary(std::int32_t i, int v);
  void emit_table(std::int32_t i, int v);
  void emit_compare(std::int32_t i, int v);
  void emit_mask(std::int32_t i, int v);
  void emit_select(std::int32_t i, int v);
  void emit_abs_max(std::int32_t i, int v);
  void emit_large_sine(std::int32_t i, int v);
  void copy_addend(const Xbyak::Xmm& dst, std::int32_t i, const Operand& from);

  VectorAssembler& a_;
  ir::Program program_;
  int vectors_, group_;                     // `group_` of the `vectors_` instances are emitted side by side
  std::vector<int> free_, free_masks_;
  // Per instruction.
  std::vector<std::vector<int>> uses_;      // the instructions that read it, in order
  std::vector<int> last_use_;               // -1: none
  std::vector<bool> uniform_;               // one value for all vectors: one instance
  std::vector<bool> skipped_;               // a bit_and that a ternary bit_or performs
  std::vector<bool> ternary_;               // a bit_or that also performs its first operand's bit_and
  std::vector<int> in_place_;               // output index whose pinned register the instruction may write, or -1
  std::vector<int> pinned_;                 // register of a pinned constant, or -1
  std::vector<Place> places_;               // [instruction][vector]
  std::vector<int> table_register_;         // per table, or -1
  std::vector<int> locked_;                 // registers that the current instruction uses
  std::vector<int> free_stack_, released_stack_;
  bool shares_ = false;                     // constants, between the vectors of a group
  int next_stack_ = 0;                      // the first stack slot that was never used
  std::int32_t now_ = 0;                    // the current instruction
  // State of a rotated loop: where values lie between two turns, and what is free then.
  const plan::Rotation* rotation_ = nullptr;
  std::vector<Place> carried_;
  std::vector<int> homes_;  // [instruction][vector], the register that its value should take, or -1
  std::vector<int> carried_free_, initial_free_;
  const std::vector<Binding>* inputs_ = nullptr;
  const std::vector<Binding>* outputs_ = nullptr;
};

}  // namespace mercer::codegen
