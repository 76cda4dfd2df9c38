// The classes mercer.Expr and mercer.Kernel: an expression with the formula prepared from it, so that repeated calls
// find it ready, and with the arrays that are values of its parameters.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every file: casters must not differ from one to the next

#include <optional>
#include <string>
#include <vector>

#include "mercer/formula.h"
#include "mercer/pairwise.h"
#include "mercer/tune.h"

namespace mercer::python {

namespace nb = nanobind;

/// A parameter whose value is an array of the caller's: it stays one, so that its gradient is not lost.
struct Carried {
  std::string name;
  nb::object array;
};

struct Symbol {
  explicit Symbol(Expr expr_in, std::vector<Carried> arrays_in = {})
      : expr(std::move(expr_in)), arrays(std::move(arrays_in)) {}
  /// Prepared at the first call; equal expressions share one preparation however they were built.
  const Formula& formula() const;
  /// As `formula`, for a field.
  const Formula& field() const;

  Expr expr;
  std::vector<Carried> arrays;

 private:
  mutable std::optional<Formula> formula_, field_;
};

/// A finished formula, mercer.Kernel: == with another one compares them as wholes.
struct Kernel : Symbol {
  using Symbol::Symbol;
  explicit Kernel(const Symbol& symbol) : Symbol(symbol) {}
};

/// One operation on the same leaves, and the same arrays under the same names.
bool same(const Symbol& a, const Symbol& b);

/// What an operation of the formula language is given. Arrays of no axes become parameters that carry them; where two
/// operands bring different arrays under one name, the second one gets a name of its own ("bandwidth_2").
class Operands {
 public:
  explicit Operands(const char* where) : where_(where) {}
  Operands(const char* where, std::initializer_list<nb::handle> objects);

  /// False for anything but an expression, a number and an array. Throws for an array with axes and for a truth value.
  bool take(nb::handle object);
  /// Throws TypeError where take() is false.
  void add(nb::handle object);
  void add(const Symbol& symbol) { given_.push_back({symbol.expr, symbol.arrays}); }
  /// The expressions in the order in which they were added; asked for once all are there.
  const std::vector<Expr>& expressions();
  /// What was made of them, with the arrays that it still reads.
  Symbol made(Expr expr) const;

 private:
  struct Operand {
    Expr expr;
    std::vector<Carried> arrays;
  };
  void settle();
  const std::string& name_of(const Carried& carried, const std::vector<std::string>& taken);
  void add_array(nb::handle array);

  const char* where_;
  std::vector<Operand> given_;
  std::vector<Expr> expressions_;
  std::vector<Carried> arrays_;
  bool settled_ = false;
};

/// `function` of the expressions that these objects stand for.
template <class Function>
Symbol combine(const char* where, std::initializer_list<nb::handle> objects, const Function& function) {
  Operands operands(where, objects);
  return operands.made(function(operands.expressions()));
}

/// Whether an object is an array that a formula carries: any but an array of NumPy without axes, which is a number.
bool is_carried(nb::handle object);

/// What a verb was given for f: an Expr, a text, a name of the zoo, or a function to trace. `weighted` picks the
/// weighted form of a zoo entry; static options of the entry (a norm's p) are taken out of `params`, which may be null,
/// and the arrays that the formula carries are put there, unless the call gave other values.
Formula find_formula(nb::handle object, const char* verb, bool weighted = false, nb::dict* params = nullptr);
/// The formula for code that is compiled before a call: arrays that it carries are left out.
Formula compiled_formula(nb::handle object, const char* verb, nb::dict& options);
/// What gradient_field was given for phi.
Formula find_field(nb::handle object, const char* verb, nb::dict* params = nullptr);
/// A fold: the points are combined by a reduction of this name, whose term phi is; or by phi itself, "reduce".
Formula find_fold(nb::handle object, const char* verb, const std::string& combine, nb::dict* params);
/// As `find_formula`, but an expression that is not yet prepared.
Symbol find_symbol(nb::handle object, const char* verb);

/// The fields of mercer._tune.Tuned: (chosen, model, [(text, milliseconds)]).
nb::tuple fields_of_tuned(const TuneReport& report);

void bind_expressions(nb::module_& module);
void bind_derivatives(nb::module_& module);
void bind_backward_plan(nb::module_& module);
void bind_zoo(nb::module_& module);
void bind_verbs(nb::module_& module);
void bind_jax(nb::module_& module);
void bind_compile(nb::module_& module);
void bind_workspace(nb::module_& module);
void bind_tune(nb::module_& module);
void bind_linalg(nb::module_& module);
void bind_kron(nb::module_& module);
void bind_kernel_operator(nb::module_& module);
void bind_eigh_top(nb::module_& module);
void bind_cg(nb::module_& module);
void bind_preconditioners(nb::module_& module);
void bind_machine(nb::module_& module);
void bind_messages(nb::module_& module);
void bind_sparse(nb::module_& module);

}  // namespace mercer::python
