// Programs as CUDA C++ statements.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/expr/program.h"

namespace mercer::codegen {

/// Where device text finds an input: an expression of the program's type.
using InputName = std::function<std::string(const ir::Input&)>;
/// What becomes of output `index`: a statement's left side, "acc[0]".
using OutputName = std::function<std::string(std::size_t index)>;

/// One statement a line, each indented by two blanks; all outputs are assigned after the last computation, so an
/// output may be an input's place.
std::string cuda_statements(const ir::Program& program, const InputName& input, const OutputName& output);

/// The comment in front of every use of a user's PTX.
inline constexpr std::string_view kPtxComment = "  // PTX of the formula: ";
/// The texts of users that a generated source holds.
std::vector<std::string> ptx_of(std::string_view source);

/// "float" or "double".
const char* cuda_type(Dtype type);
/// The element type of an array in memory.
const char* element_type(Dtype dtype);
/// A number as a literal of the type; NaN and infinities by their patterns.
std::string cuda_number(double value, Dtype type);

}  // namespace mercer::codegen
