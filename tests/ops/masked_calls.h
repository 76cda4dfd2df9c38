// Calls whose formula has a mask, on CUDA.
#pragma once

#include "ops/context.h"
#include "ops/testing.h"

namespace mercer::testing_support {

/// Calls of any size look for strips.
template <class Body>
void on_masked_cuda(const Body& body) {
  on_cuda([&](TestContext& context) {
    plan::Costs& costs = context.state().own_costs();
    costs.mask_strip = costs.mask_byte = 0;
    body(context);
  });
}

}  // namespace mercer::testing_support
