// Fields at pairs whose sums of powers leave the range of numbers (ir/passes/safe_field.h), as a GPU computes them
// again: the values of the pair by scaled sums (plan/forms/guarded_sums.h), then the field of r t, all in float64.
#pragma once

#include <vector>

#include "ir/expr/program.h"
#include "ir/passes/split.h"

namespace mercer::plan {

/// One field, or two of the same values of the pairs.
struct FieldBeyond {
  std::vector<double> identity;           // of the scaled sums, then those of all else
  ir::Program largest, update, epilogue;  // as of a guard
  ir::Program phi, extra;                // read what the epilogue makes, and the amplitude after that
  int mark = 0;                           // a value of the pair that is marked
  int norms() const { return static_cast<int>(largest.outputs.size()); }
  int values() const { return static_cast<int>(epilogue.outputs.size()); }
  explicit operator bool() const { return !phi.outputs.empty(); }
  bool reads_weights() const;
};

/// Marks would be true as conditions, which have the values of scaled sums in their place.
bool is_condition(const Expr& value);

/// Made of the scaled fields of a split, over the parameters and uniforms of `field`, which gets those that it lacks.
/// An empty one, and `field` as it is, where one of them reads more of a pair than its points, or a field of `field`
/// may hide a mark: pairs are marked for both or for none.
FieldBeyond field_beyond(const ir::FieldSplit& scaled, ir::FieldSplit& field);

}  // namespace mercer::plan
