// The loop over features of a long program, rotated: a turn ends one feature and begins the next.
//
// A core's schedulers hold few instructions, in program order. A chain of twenty dependent steps fills them with
// instructions that wait, so each vector's program is spread over the turn and the one after it, as its latencies are:
//
//   feature   k - 1                     k                         k + 1
//   vector 0  head ........ | tail      head ........ | tail      head ........ | tail
//   vector 1  ... head .... | ... tail  ... head .... | ... tail  ... head .... | ... tail
//                           ╰──────── one turn ──────╯
//
// The vectors follow each other by an equal number of steps. An accumulator sees its terms in the same order as before.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/expr/program.h"
#include "plan/cpu/target.h"

namespace mercer::plan {

struct Rotation {
  struct Step {
    std::int32_t instr;
    int vector;
    bool tail;  // of the feature before
  };
  ir::Program program;      // its steps in the order of their times
  std::vector<Step> steps;  // one turn
  int registers = 0;        // that the values of a turn take
};

/// None where the target has many registers, where the program is short, very long or divides, where its values would
/// not fit `registers`, or where a new state does not take the place of the old one.
std::optional<Rotation> rotate(const ir::Program& update, int vectors, int registers, const TargetInfo& target);

}  // namespace mercer::plan
