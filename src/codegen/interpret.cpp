#include "codegen/interpret.h"

#include <algorithm>
#include <cstring>

#include "codegen/interpret_kernel.h"
#include "core/aligned.h"
#include "core/cpu_features.h"

namespace mercer::codegen {
namespace {

using ir::Instr;
using ir::operand_count;
using ir::operand_of;
using ir::Prim;

constexpr KernelTable kTables[] = {baseline_kernel, avx2_kernel, avx512_kernel};

// A primitive of one call: its kernel, its operands for the current block and step, and how they move.
struct Operation {
  Kernel kernel;
  KernelArgs args;
  std::int64_t step[3];
  bool moves;  // some operand has a step
};

// Where a value lies for lane 0 of the call, and what a lane and a step add to that.
struct Place {
  const char* data = nullptr;
  std::int64_t per_lane = 0, per_step = 0;
};

struct Scratch {
  AlignedBuffer memory;
  std::vector<Operation> operations;
  std::vector<Place> places;
  std::vector<char> uniform, moving;
};

Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

}  // namespace

const char* name_of(Isa isa) {
  constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

Isa best_isa() {
  const CpuFeatures& cpu = cpu_features();
  return cpu.avx512 ? Isa::avx512 : cpu.avx2 ? Isa::avx2 : Isa::baseline;
}

InterpretedProgram::InterpretedProgram(ir::Program program, Isa isa)
    : program_(std::move(program)), isa_(isa), wide_(program_.type == Dtype::float64), element_(wide_ ? 8 : 4) {
  verify(program_);
  give_outputs_their_own_instructions();
  assign_slots();
  for (const Instr& instr : program_.code) cells_.push_back(instr.op == Prim::constant ? instr.bits : 0);
  for (const auto& table : program_.tables) {
    std::vector<std::uint64_t> packed(16);
    for (std::size_t i = 0; i < 16; ++i) {
      const float narrow = static_cast<float>(table[i]);
      char* place = reinterpret_cast<char*>(packed.data()) + i * element_;
      std::memcpy(place, wide_ ? static_cast<const void*>(&table[i]) : &narrow, element_);
    }
    tables_.push_back(std::move(packed));
  }
}

// Every output becomes the result of one instruction of its own that is no input and no constant: a copy (v | v) where
// needed. Outputs can then be written where they belong by the instruction that makes them.
void InterpretedProgram::give_outputs_their_own_instructions() {
  std::vector<std::int32_t> owner(program_.code.size(), -1);
  for (std::size_t o = 0; o < program_.outputs.size(); ++o) {
    std::int32_t& output = program_.outputs[o];
    const Prim op = program_.code[static_cast<std::size_t>(output)].op;
    if (op == Prim::input || op == Prim::constant || owner[static_cast<std::size_t>(output)] >= 0) {
      program_.code.push_back({.op = Prim::bit_or, .a = output, .b = output});
      owner.push_back(-1);
      output = static_cast<std::int32_t>(program_.code.size()) - 1;
    }
    owner[static_cast<std::size_t>(output)] = static_cast<std::int32_t>(o);
  }
  output_of_ = std::move(owner);
}

// Linear scan: a slot is free again after the last use of its value; a result may take the slot of an operand.
void InterpretedProgram::assign_slots() {
  const auto size = static_cast<std::int32_t>(program_.code.size());
  std::vector<std::int32_t> last_use(program_.code.size(), -1);
  for (std::int32_t i = 0; i < size; ++i) {
    const Instr& instr = program_.code[static_cast<std::size_t>(i)];
    for (int k = 0; k < operand_count(instr.op); ++k) last_use[static_cast<std::size_t>(operand_of(instr, k))] = i;
  }
  for (std::int32_t output : program_.outputs) last_use[static_cast<std::size_t>(output)] = size;
  std::vector<std::int32_t> free;
  slots_.assign(program_.code.size(), -1);
  for (std::int32_t i = 0; i < size; ++i) {
    const Instr& instr = program_.code[static_cast<std::size_t>(i)];
    if (instr.op == Prim::input || instr.op == Prim::constant) continue;
    for (int k = 0; k < operand_count(instr.op); ++k) {
      const auto from = static_cast<std::size_t>(operand_of(instr, k));
      if (last_use[from] != i || slots_[from] < 0) continue;
      free.push_back(slots_[from]);
      last_use[from] = -1;  // freed once, even when it is two operands
    }
    if (free.empty()) free.push_back(slot_count_++);
    slots_[static_cast<std::size_t>(i)] = free.back();
    free.pop_back();
  }
}

// Makes the operations of one call.
struct InterpretedProgram::Resolver {
  const InterpretedProgram& self;
  const LaneInput* inputs;
  void* const* outputs;
  Scratch& scratch;

  const Instr& instr(std::size_t i) const { return self.program_.code[i]; }
  std::int64_t block_bytes() const { return kBlock * static_cast<std::int64_t>(self.element_); }
  char* cell(std::size_t i) const {
    return scratch.memory.as<char>() + self.slot_count_ * block_bytes() + static_cast<std::int64_t>(8 * i);
  }

  void prepare() {
    const std::size_t size = self.program_.code.size();
    scratch.memory.reserve(self.slot_count_ * block_bytes() + static_cast<std::int64_t>(8 * size));
    std::memcpy(cell(0), self.cells_.data(), 8 * size);
    scratch.places.assign(size, {});
    scratch.uniform.assign(size, 0);
    scratch.moving.assign(size, 0);
    for (std::size_t i = 0; i < size; ++i) classify(i);
  }

  void classify(std::size_t i) {
    const Instr& in = instr(i);
    if (in.op == Prim::constant) {
      scratch.uniform[i] = 1;
      scratch.places[i] = {cell(i), 0, 0};
    } else if (in.op == Prim::input) {
      const LaneInput& input = inputs[in.index];
      scratch.uniform[i] = input.uniform;
      scratch.moving[i] = input.step != 0;
      scratch.places[i] = {static_cast<const char*>(input.data),
                           input.uniform ? 0 : static_cast<std::int64_t>(self.element_), input.step};
    } else {
      bool uniform = self.output_of_[i] < 0, moving = false;
      for (int k = 0; k < operand_count(in.op); ++k) {
        const auto from = static_cast<std::size_t>(operand_of(in, k));
        uniform = uniform && scratch.uniform[from];
        moving = moving || scratch.moving[from];
      }
      scratch.uniform[i] = uniform;
      scratch.moving[i] = moving;
      scratch.places[i].data = uniform ? cell(i) : scratch.memory.as<char>() + self.slots_[i] * block_bytes();
    }
  }

  // An output is written in place unless a later instruction still reads an input from that array.
  bool direct(std::size_t i) const {
    const void* target = outputs[self.output_of_[i]];
    for (std::size_t later = i + 1; later < self.program_.code.size(); ++later) {
      for (int k = 0; k < operand_count(instr(later).op); ++k) {
        const Instr& from = instr(static_cast<std::size_t>(operand_of(instr(later), k)));
        if (from.op == Prim::input && inputs[from.index].data == target) return false;
      }
    }
    return true;
  }

  Operation operation(std::size_t i, std::int64_t first_lane, std::int64_t lanes) const {
    const Instr& in = instr(i);
    Operation result{};
    int variant = 0;
    const void** operands[3] = {&result.args.a, &result.args.b, &result.args.c};
    for (int k = 0; k < operand_count(in.op); ++k) {
      const auto from = static_cast<std::size_t>(operand_of(in, k));
      const Place& place = scratch.places[from];
      variant |= (scratch.uniform[from] ? 1 : 0) << k;
      *operands[k] = place.data + first_lane * place.per_lane;
      result.step[k] = place.per_step;
      result.moves = result.moves || place.per_step != 0;
    }
    if (scratch.uniform[i]) variant = 0, lanes = 1;
    result.kernel = kTables[static_cast<int>(self.isa_)](static_cast<int>(in.op), self.wide_, variant);
    result.args.out = const_cast<char*>(scratch.places[i].data) + first_lane * scratch.places[i].per_lane;
    result.args.table = in.op == Prim::table16 ? self.tables_[static_cast<std::size_t>(in.index)].data() : nullptr;
    result.args.bits = static_cast<std::int64_t>(in.bits);
    result.args.count = lanes;
    return result;
  }

  Operation copy(std::size_t i, std::int64_t first_lane, std::int64_t lanes) const {
    Operation result{};
    result.kernel = kTables[static_cast<int>(self.isa_)](static_cast<int>(Prim::bit_or), self.wide_, 0);
    result.args.a = result.args.b = scratch.places[i].data;
    result.args.out = static_cast<char*>(outputs[self.output_of_[i]]) + first_lane * static_cast<std::int64_t>(self.element_);
    result.args.count = lanes;
    return result;
  }

  // The operations of every step for one block; those that never change run now.
  void resolve_block(std::int64_t first_lane, std::int64_t lanes) {
    scratch.operations.clear();
    std::vector<std::size_t>& late = late_outputs;
    late.clear();
    for (std::size_t i = 0; i < self.program_.code.size(); ++i) {
      if (instr(i).op == Prim::input || instr(i).op == Prim::constant) continue;
      if (self.output_of_[i] >= 0) {
        if (direct(i)) scratch.places[i] = {static_cast<const char*>(outputs[self.output_of_[i]]), static_cast<std::int64_t>(self.element_), 0};
        else late.push_back(i);
      }
      const Operation made = operation(i, first_lane, lanes);
      if (scratch.uniform[i] && !scratch.moving[i]) made.kernel(made.args);
      else scratch.operations.push_back(made);
    }
    for (std::size_t i : late) scratch.operations.push_back(copy(i, first_lane, lanes));
  }

  std::vector<std::size_t> late_outputs;
};

void InterpretedProgram::run_steps(const LaneInput* inputs, void* const* outputs, std::int64_t count,
                                   std::int64_t steps) const {
  if (count <= 0 || steps <= 0) return;
  Scratch& scratch = thread_scratch();
  Resolver resolver{*this, inputs, outputs, scratch, {}};
  resolver.prepare();
  for (std::int64_t first = 0; first < count; first += kBlock) {
    resolver.resolve_block(first, std::min(kBlock, count - first));
    for (std::int64_t step = 0; step < steps; ++step) {
      for (Operation& operation : scratch.operations) {
        operation.kernel(operation.args);
        if (!operation.moves) continue;
        operation.args.a = static_cast<const char*>(operation.args.a) + operation.step[0];
        operation.args.b = static_cast<const char*>(operation.args.b) + operation.step[1];
        operation.args.c = static_cast<const char*>(operation.args.c) + operation.step[2];
      }
    }
  }
}

}  // namespace mercer::codegen
