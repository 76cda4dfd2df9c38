// Which functions a text may call, and what a misspelt name may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/expr/ops.h"

namespace mercer::formula {

/// True for a scalar op that is called by name; the others are written with a symbol.
bool is_function(const ir::OpInfo& row);

/// The candidate nearest in spelling, empty when none is near.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

/// What an unknown function may have meant, as " (did you mean 'sqrt'?)"; empty when nothing is near.
std::string function_hint(std::string_view word);

/// What is said of a parameter that a call gives and the formula, whose parameters `names` are, does not have.
std::string unknown_parameter(std::string_view name, const std::vector<std::string_view>& names);

}  // namespace mercer::formula
