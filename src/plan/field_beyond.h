// Fields at pairs whose sums of powers leave the range of numbers (ir/safe_field.h), as a GPU computes them again: the
// values of the pair by scaled sums (plan/gpu_guard.h), then the field of r t, all in float64.
#pragma once

#include <vector>

#include "ir/program.h"
#include "ir/split.h"

namespace mercer::plan {

struct FieldBeyond {
  std::vector<double> identity;           // of the scaled sums, then those of all else
  ir::Program largest, update, epilogue;  // as of a guard
  ir::Program phi;                        // reads what the epilogue makes, and the amplitude behind that
  int mark = 0;                           // a value of the pair that is marked
  int norms() const { return static_cast<int>(largest.outputs.size()); }
  int values() const { return static_cast<int>(epilogue.outputs.size()); }
  explicit operator bool() const { return !phi.outputs.empty(); }
  bool reads_weights() const;
};

/// Marks would be true as conditions, which have the values of scaled sums in their place.
bool is_condition(const Expr& value);

/// The program of the scaled field of a split that has one, over the parameters and uniforms of `field`, which gets
/// what it lacks. An empty one where it reads more of a pair than its points, or `phi`, the field itself, may hide a
/// mark.
FieldBeyond field_beyond(const ir::FieldSplit& scaled, ir::FieldSplit& field, const Expr& phi);

}  // namespace mercer::plan
