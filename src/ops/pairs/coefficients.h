// Coefficients of a weighted sum of gradients.
#pragma once

#include "core/error.h"
#include "ops/call/call.h"

namespace mercer::ops {

/// coef [..., O, N], or [N], or none for one output that has no axis.
struct Coefficients {
  bool single;
  int axes;
  std::int64_t outputs;

  Coefficients(const char* op, const Tensor* coef) {
    if (coef != nullptr) check_input(op, "coef", *coef, 1);
    single = coef == nullptr || coef->ndim() == 1;
    axes = single ? 1 : 2;
    outputs = single ? 1 : coef->shape[coef->ndim() - 2];
  }

  void check(const PairCall& call, const Tensor& coef) const {
    require(coef.shape.back() == call.n(),
            "{}: coef must have one entry per point of z ({}) in its last axis. Received shape {}.", call.op(),
            call.n(), text_of(coef.shape));
    check_device(call.op(), "coef", coef, call.device());
    check_computing_type(call.op(), "coef", coef, call.type());
  }
};

}  // namespace mercer::ops
