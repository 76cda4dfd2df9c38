// The class mercer.Expr: an expression with the formula prepared from it, so that repeated calls find it ready.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every file: casters must not differ from one to the next

#include <optional>
#include <string>

#include "mercer/formula.h"
#include "mercer/pairwise.h"
#include "mercer/tune.h"

namespace mercer::python {

namespace nb = nanobind;

struct Symbol {
  explicit Symbol(Expr expr_in) : expr(std::move(expr_in)) {}
  /// Prepared at the first call; equal expressions share one preparation however they were built.
  const Formula& formula() const;
  /// The same for a field.
  const Formula& field() const;

  Expr expr;

 private:
  mutable std::optional<Formula> formula_, field_;
};

/// An Expr or a number as an expression; absent for anything else.
std::optional<Expr> try_expr(nb::handle object);
/// The same, throwing TypeError.
Expr to_expr(nb::handle object, const char* where);

/// What a verb was given for f: an Expr, a text, a name of the zoo, or a function to trace. `weighted` picks the
/// weighted form of a zoo entry; static options of the entry (a norm's p) are taken out of `params`, which may be null.
Formula find_formula(nb::handle object, const char* verb, bool weighted = false, nb::dict* params = nullptr);
/// What gradient_field was given for phi.
Formula find_field(nb::handle object, const char* verb);
/// The same as an expression, not yet prepared.
Expr find_expr(nb::handle object, const char* verb);

/// The fields of mercer._tune.Tuned: (chosen, model, [(text, milliseconds)]).
nb::tuple fields_of_tuned(const TuneReport& report);

void bind_expressions(nb::module_& module);
void bind_derivatives(nb::module_& module);
void bind_zoo(nb::module_& module);
void bind_verbs(nb::module_& module);
void bind_jax(nb::module_& module);
void bind_compile(nb::module_& module);
void bind_workspace(nb::module_& module);
void bind_tune(nb::module_& module);
void bind_linalg(nb::module_& module);
void bind_kron(nb::module_& module);
void bind_eigh_top(nb::module_& module);
void bind_cg(nb::module_& module);
void bind_machine(nb::module_& module);

}  // namespace mercer::python
