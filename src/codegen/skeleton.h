// What the two implementations of the skeletons (plan/cpu/kernel.h) share.
#pragma once

#include "ir/expr/program.h"
#include "plan/cpu/kernel.h"

namespace mercer::codegen {

/// Appends acc[o] + φ coef[o] for every output of a field to the program of φ; coef[o] is read as incoming(o).
ir::Program with_contraction(const plan::FieldSource& source);

/// Slot of a row or col input in the packed arrays of values per point.
int point_slot(const ir::Input& input);

/// Throws Error(compile): the program reads what this skeleton does not have.
[[noreturn]] void refuse_input(const char* skeleton, ir::Site site);

}  // namespace mercer::codegen
