#include "codegen/interpreter/interpret.h"

#include <algorithm>
#include <cstring>

#include "codegen/interpreter/interpret_kernel.h"
#include "core/system/aligned.h"
#include "core/system/cpu_features.h"

namespace mercer::codegen {
namespace {

using ir::Prim;

constexpr KernelTable kTables[] = {baseline_kernel, avx2_kernel, avx512_kernel};

// A step of one call: its kernel, its operands for the current block and step, and how they move.
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
  bool uniform = false;
  bool moving = false;  // it or something it is made of has a step
};

struct Scratch {
  AlignedBuffer memory;
  std::vector<Operation> operations;
  std::vector<Place> places;
  std::vector<std::size_t> late;  // outputs to copy at the end of a step
};

Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

bool makes_no_step(int op) {
  return op < 0 || op == static_cast<int>(Prim::input) || op == static_cast<int>(Prim::constant);
}

}  // namespace

// Makes the operations of one call.
struct InterpretedProgram::Resolver {
  const InterpretedProgram& self;
  const LaneInput* inputs;
  void* const* outputs;
  Scratch& scratch;

  std::int64_t element() const { return static_cast<std::int64_t>(self.element_); }
  std::int64_t block_bytes() const { return kBlock * element(); }
  char* cell(std::size_t i) const {
    return scratch.memory.as<char>() + self.slot_count_ * block_bytes() + static_cast<std::int64_t>(8 * i);
  }

  void prepare() {
    const std::size_t size = self.steps_.size();
    scratch.memory.reserve(self.slot_count_ * block_bytes() + static_cast<std::int64_t>(8 * size));
    std::memcpy(cell(0), self.cells_.data(), 8 * size);
    scratch.places.resize(size);
    for (std::size_t i = 0; i < size; ++i) scratch.places[i] = place_of(i);
  }

  Place place_of(std::size_t i) const {
    const Step& step = self.steps_[i];
    if (step.op < 0) return {};
    if (step.op == static_cast<int>(Prim::constant)) return {cell(i), 0, 0, true, false};
    if (step.op == static_cast<int>(Prim::input)) {
      const LaneInput& input = inputs[step.table];
      return {static_cast<const char*>(input.data), input.uniform ? 0 : element(), input.step, input.uniform,
              input.step != 0};
    }
    Place place;
    place.uniform = step.output < 0;  // outputs are arrays even where all their lanes are equal
    for (int k = 0; k < step.operands; ++k) {
      const Place& from = scratch.places[static_cast<std::size_t>(step.operand[k])];
      place.uniform = place.uniform && from.uniform;
      place.moving = place.moving || from.moving;
    }
    place.data = place.uniform ? cell(i) : scratch.memory.as<char>() + step.slot * block_bytes();
    return place;
  }

  // An output is written in place unless a later step still reads an input from that array.
  bool direct(const Step& step) const {
    for (std::size_t i = 0; i < self.program_.inputs.size(); ++i) {
      const bool read_later = step.later_inputs >> std::min<std::size_t>(i, 63) & 1;
      if (read_later && inputs[i].data == outputs[step.output]) return false;
    }
    return true;
  }

  Kernel kernel(int op, int variant) const { return kTables[static_cast<int>(self.isa_)](op, self.wide_, variant); }

  Operation operation(std::size_t i, std::int64_t first_lane, std::int64_t lanes) const {
    const Step& step = self.steps_[i];
    const Place& target = scratch.places[i];
    Operation result{};
    int variant = 0;
    const void** operands[4] = {&result.args.a, &result.args.b, &result.args.c, &result.args.d};
    for (int k = 0; k < step.operands; ++k) {
      const Place& place = scratch.places[static_cast<std::size_t>(step.operand[k])];
      *operands[k] = place.data + first_lane * place.per_lane;
      if (k == 3) continue;  // always a constant
      variant |= (place.uniform ? 1 : 0) << k;
      result.step[k] = place.per_step;
      result.moves = result.moves || place.per_step != 0;
    }
    result.kernel = kernel(step.op, target.uniform ? 0 : variant);
    result.args.count = target.uniform ? 1 : lanes;
    result.args.out = const_cast<char*>(target.data) + first_lane * target.per_lane;
    result.args.table = step.table >= 0 ? self.tables_[static_cast<std::size_t>(step.table)].data() : nullptr;
    result.args.bits = static_cast<std::int64_t>(step.bits);
    return result;
  }

  Operation copy(std::size_t i, std::int64_t first_lane, std::int64_t lanes) const {
    Operation result{};
    result.kernel = kernel(static_cast<int>(Prim::bit_or), 0);
    result.args.a = result.args.b = scratch.places[i].data;
    result.args.out = static_cast<char*>(outputs[self.steps_[i].output]) + first_lane * element();
    result.args.count = lanes;
    return result;
  }

  // The operations of every step for one block; those that never change run now.
  void resolve_block(std::int64_t first_lane, std::int64_t lanes) {
    scratch.operations.clear();
    scratch.late.clear();
    for (std::size_t i = 0; i < self.steps_.size(); ++i) {
      const Step& step = self.steps_[i];
      if (makes_no_step(step.op)) continue;
      Place& place = scratch.places[i];
      if (step.output >= 0) {
        if (direct(step))
          place.data = static_cast<const char*>(outputs[step.output]), place.per_lane = element();
        else
          scratch.late.push_back(i);
      }
      const Operation made = operation(i, first_lane, lanes);
      if (place.uniform && !place.moving)
        made.kernel(made.args);
      else
        scratch.operations.push_back(made);
    }
    for (std::size_t i : scratch.late) scratch.operations.push_back(copy(i, first_lane, lanes));
  }
};

void InterpretedProgram::run_steps(const LaneInput* inputs, void* const* outputs, std::int64_t count,
                                   std::int64_t steps) const {
  if (count <= 0 || steps <= 0) return;
  Scratch& scratch = thread_scratch();
  Resolver resolver{*this, inputs, outputs, scratch};
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

const char* name_of(Isa isa) {
  constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

Isa best_isa() {
  const CpuFeatures& cpu = cpu_features();
  return cpu.avx512 ? Isa::avx512 : cpu.avx2 ? Isa::avx2 : Isa::baseline;
}

}  // namespace mercer::codegen
