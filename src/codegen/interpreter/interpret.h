// The interpreter: runs a Program over lanes, one primitive at a time over blocks that stay in the first-level cache.
// It serves where executable memory is denied, runs stage 0 and the packing streams, and is the emitters' oracle.
//
//   for block of 256 lanes:  for step:  for primitive:  for lane:  slot[primitive] = op(operands)
//
// Contract
//  - Results are bit-identical on every instruction set and to ir::run, but for signs and payloads of NaN.
//  - `count` lanes, any number; nothing past them is read or written, and elements need only their own alignment.
//  - An input is uniform (one value for all lanes, read at data[0]) or an array of `count` values.
//  - An output may be exactly the array of an input, of its own or another one; partial overlap is not allowed.
//  - run_steps() repeats the program: before step s, input i lies at data + s * step bytes. Outputs are written at
//  every
//    step to the same place; an accumulator is an input with step 0 whose array is also the output. Its cost per call
//    is about 40 ns a primitive; each step then takes 4 ns a primitive and the lanes' work, about two cycles per 64
//    bytes and primitive (a sum of |x - z|: five cycles in all, of max(|x - z| - c, 0)^2: eight). Primitives on uniform
//    values alone run once per call, or once per step when an operand moves.
//  - Thread-safe; the scratch memory belongs to the calling thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ir/expr/program.h"

namespace mercer::codegen {

enum class Isa : std::uint8_t { baseline, avx2, avx512 };
const char* name_of(Isa isa);
/// The best of this machine.
Isa best_isa();

struct LaneInput {
  const void* data = nullptr;
  bool uniform = false;
  std::int64_t step = 0;  // bytes from one step's data to the next
};

class InterpretedProgram {
 public:
  explicit InterpretedProgram(ir::Program program, Isa isa = best_isa());

  /// One input per program.inputs, one output per program.outputs, both in the program's order.
  void run(const LaneInput* inputs, void* const* outputs, std::int64_t count) const {
    run_steps(inputs, outputs, count, 1);
  }
  void run_steps(const LaneInput* inputs, void* const* outputs, std::int64_t count, std::int64_t steps) const;

  const ir::Program& program() const { return program_; }
  static constexpr std::int64_t kBlock = 256;  // lanes

 private:
  struct Resolver;
  struct Step {  // an instruction of the program, or several fused
    int op = 0;  // ir::Prim or FusedPrim
    int operands = 0;
    std::int32_t operand[4] = {-1, -1, -1, -1};
    std::int32_t table = -1;
    std::uint64_t bits = 0;
    std::int32_t output = -1;        // the output it makes
    std::int32_t slot = -1;          // its block in the scratch memory
    std::uint64_t later_inputs = 0;  // inputs (the 64th stands for all later ones) that later steps read
  };
  void give_outputs_their_own_instructions();
  void fuse();
  bool fuse_into(Step& user, int position, const Step& maker) const;
  void assign_slots();
  void note_later_inputs();

  ir::Program program_;
  Isa isa_;
  bool wide_;
  std::size_t element_;
  std::vector<Step> steps_;                         // indexed like program_.code; those that were fused away have no op
  std::vector<std::uint64_t> cells_;                // per instruction: a constant's pattern
  std::vector<std::vector<std::uint64_t>> tables_;  // 16 values of the type, packed
  std::int32_t slot_count_ = 0;
};

}  // namespace mercer::codegen
