// mercer.linalg.Preconditioner as Python has it.
#pragma once

#include <nanobind/nanobind.h>

#include "mercer/linalg.h"

namespace mercer::python {

namespace nb = nanobind;

struct KeptPreconditioner : linalg::Preconditioner {
  KeptPreconditioner(linalg::Preconditioner made, nb::object like_in)
      : linalg::Preconditioner(std::move(made)), like(std::move(like_in)) {}
  nb::object like;  // an array [0] of the library and the device of what it was made from: its diagonal is like it
};

/// Null for None.
const linalg::Preconditioner* to_preconditioner(nb::handle object);

}  // namespace mercer::python
