// Verbs on arrays of JAX, which may be traced and cannot be written: checked here, then put into JAX's program as a
// call of XLA's foreign function interface (mercer/_jax.py; jax_handler.cpp is the other end).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every file: casters must not differ from one to the next

#include "calls.h"
#include "mercer/formula.h"

namespace mercer::python {

/// An array of JAX by its shape and dtype alone: every element is the same zero. Refuses arrays of other libraries.
Tensor jax_outline(nb::handle array, Place place);

/// Refuses what only arrays with memory of the caller's can offer; so does a question for the size of a workspace.
void refuse_memory(const char* verb, nb::handle out, nb::handle workspace);

/// `verb` is the name in errors, `operation` what runs. For gradient_field `formula` is phi.
nb::object call_jax(const char* verb, const char* operation, const Expr& formula, nb::handle x, nb::handle z,
                    const Extras& extras, const Options& options, nb::handle out);

}  // namespace mercer::python
