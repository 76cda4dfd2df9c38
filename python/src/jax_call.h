// Verbs on arrays of JAX, which may be traced and cannot be written: checked here, then put into JAX's program as a
// call of XLA's foreign function interface (mercer/_jax.py; jax_handler.cpp is the other end).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every file: casters must not differ from one to the next

#include <utility>
#include <vector>

#include "calls.h"
#include "mercer/formula.h"

namespace mercer::python {

/// What a verb takes besides its points and options.
struct JaxExtras {
  std::vector<std::pair<const char*, nb::handle>> arrays;    // v, coef, amplitude
  std::vector<std::pair<const char*, nb::object>> settings;  // k, reduce
};

/// `verb` is the name in errors, `operation` what runs. For gradient_field `formula` is phi.
nb::object call_jax(const char* verb, const char* operation, const Expr& formula, nb::handle x, nb::handle z,
                    const JaxExtras& extras, const Options& options, nb::handle out);

}  // namespace mercer::python
