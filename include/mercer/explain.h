// What a call would do, and how fast it could be, without doing it. No data and no permission to run code are needed:
// any target can be explained on any machine.
#pragma once

#include <cstdint>
#include <string>

#include "mercer/device.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"

namespace mercer {

/// Sizes of a call: x [m, k], z [n, k].
struct ExplainShape {
  std::int64_t m = 4096, n = 4096, k = 256;
};

/// Every stage of `pairwise` as text: the simplified formula, its split, the plan, the programs with the slots that
/// they take on each pipe, the size of the code, and the floor in cycles. `dtype` is that of x and z. Exponents that
/// have a default are taken as numbers. Throws invalid_argument for negative sizes, unsupported or compile for what the
/// target cannot run.
std::string explain(const Formula& f, ExplainShape shape, Dtype dtype, Target target);

/// The floor as a rate: elements (m, n, k) a second, in 1e9, that one core at this clock (GHz) can reach by the
/// instruction mix alone. Compare a measured rate with it.
double floor_rate(const Formula& f, ExplainShape shape, Dtype dtype, Target target, double gigahertz);

/// The clock of the calling core now, in GHz, measured by a chain of dependent additions; takes some 50 ms.
double measure_clock();

}  // namespace mercer
