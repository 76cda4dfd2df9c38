// MERCER_DUMP: the stages of every plan, printed to stderr as it is made.
//
//   ir       the formula and its parts (stages, streams, reductions, epilogue)
//   plan     target, tile, states, variants; of a backward its passes
//   program  the straight-line code of every part
//   source   the machine code in hexadecimal; `xxd -r -p | objdump -D -b binary -m i386:x86-64 /dev/stdin` reads it.
//            For GPUs the text of the tile's kernel
#pragma once

#include <string>

#include "plan/cpu/planner.h"
#include "plan/gpu/plan.h"

namespace mercer::ops {

/// The stages to print, read from MERCER_DUMP. Throws invalid_argument for a word that names none.
struct DumpStages {
  bool ir = false, plan = false, program = false, source = false;
  static DumpStages from_environment();
};

std::string dump_text(const plan::PairPlan& plan, const DumpStages& stages);
std::string dump_text(const plan::FieldPlan& plan, const DumpStages& stages);
std::string dump_text(const plan::GpuPairPlan& plan, const DumpStages& stages);

/// Writes text to stderr in one piece, so that threads do not mix their lines.
void print_dump(const std::string& text);

/// Prints what MERCER_DUMP asks for and returns the plan.
template <class Plan>
std::shared_ptr<const Plan> dumped(std::shared_ptr<const Plan> plan) {
  print_dump(dump_text(*plan, DumpStages::from_environment()));
  return plan;
}

}  // namespace mercer::ops
