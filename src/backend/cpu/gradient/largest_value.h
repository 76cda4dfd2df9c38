// A bound of the values of a field's program.
#pragma once

#include "ir/expr/program.h"

namespace mercer::cpu {

/// A number that no |output| exceeds where features are of at most this magnitude; infinity where none is known, as of
/// programs that read anything else, divide, or take roots or powers.
double largest_value(const ir::Program& program, double feature);

}  // namespace mercer::cpu
