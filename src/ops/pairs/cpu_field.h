// Fields on CPUs: the values of the pairs of a block, then φ over n.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ops/call/call.h"

namespace mercer::ops {

/// The call's problem, for blocks of values of pairs.
plan::PairProblem block_problem(const PairCall& call, Context& context);

/// Planes of values of pairs: points n of a block; elements from one plane to the next.
struct PlaneShape {
  int width = 0, stride = 0;
};
/// As the pairs' tiles make them; without pairs there is one at most.
PlaneShape plane_shape(const cpu::PairProgram* pairs);

/// Made once for a key. `features`: of φ, which lie along the vectors.
std::shared_ptr<const cpu::FieldProgram> cpu_field(const std::string& key, PlaneShape planes,
                                                   const plan::PairProblem& problem, std::int64_t outputs,
                                                   std::int64_t features, Context& context,
                                                   const std::function<ir::FieldSplit()>& field);

}  // namespace mercer::ops
