// What the pairs of a gradient are stored as, for a field that is contracted with them.
#pragma once

#include <vector>

#include "plan/gpu/field.h"

namespace mercer::plan {

/// The values of the pairs that a field reads.
std::vector<Expr> values_of(const GpuFieldPlan& field);

/// An amplitude of differences or signs that are zero where the points are the same has no part in the field; but it
/// might be so much larger than the others that their digits were lost among them. `at_zero`: what it is there, if it
/// is finite.
Expr without_duplicates(const Expr& amplitude, const Expr& at_zero);

/// The field of an amplitude that the caller gives. Functions of row and col are cheap to read for each feature, but
/// where the rest is x - z or z, a product of matrices is much less than what reads them.
ir::FieldSplit amplitude_field(const Expr& phi, Dtype type);

}  // namespace mercer::plan
