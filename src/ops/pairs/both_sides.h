// The gradients of a weighted sum over pairs by the points of both sides, of values that are made once.
#pragma once

#include "ops/call/call.h"

namespace mercer::ops {

/// Results of one pass over the pairs, on CPUs.
struct BothSidesResults {
  const Tensor& by_x;               // [..., M, K]
  const Tensor& by_z;               // [..., N, K]
  const Tensor* product = nullptr;  // [..., N, E], the sum over m of f u, with factors alone
};

/// Weights u v' of the pairs, [..., M, E] and [..., N, E]; without v `weights` are a matrix [..., M, N]. The formula
/// must be a function of one sum of (x - z)^2 or of x z (plan/cpu/sum_field.h).
void both_sides_backward(const Formula& f, const Tensor& x, const Tensor& z, const Tensor& weights, const Tensor* v,
                         const BothSidesResults& results, const Arguments& arguments,
                         Context& context = Context::shared());

}  // namespace mercer::ops
