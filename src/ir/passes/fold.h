// Folds: fields whose values at the points n are combined by a reduction of any kind, in place of a sum.
//
//   out[o, m, k] = finish of the states that follow combine(states, term(x[m, k], z[n, k], coef[o, n], …)), n by n
//
// A fold is written as a reduction. What it has as its term is read at one feature, as φ of a field is, and reads the
// arrays of a call under the names `coef` and `amplitude`; reductions in the term are values of the pair.
#pragma once

#include "ir/expr/expr.h"

namespace mercer::ir {

/// What stands for these arrays from simplification on: x[m, k], and two more values of the pair and the feature.
Expr amplitude_leaf();
Expr coef_leaf();
/// Names become leaves, or leaves names.
Expr with_fold_leaves(const Expr& fold);
Expr with_fold_names(const Expr& fold);

/// Throws invalid_argument with the broken rule: no reduction, or a part that reads what it must not.
void verify_fold(const Expr& fold);

/// φ where a fold, as written, is the field sum over n of coef * amplitude * φ; else an empty expression.
Expr field_of_fold(const Expr& fold);

/// Whether the terms have values of the pair: reductions, indices.
bool fold_reads_pairs(const Expr& fold);

}  // namespace mercer::ir
