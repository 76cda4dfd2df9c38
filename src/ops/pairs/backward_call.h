// One pass of a backward: its arguments are checked and what the pass has is decided before its results are made.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mercer/pairwise.h"
#include "ops/pairs/summed_leaves.h"

namespace mercer::ops {

class BackwardCall {
 public:
  /// What is asked for in addition to the gradient.
  struct Wanted {
    std::vector<std::string> by;  // parameters, and "row"
    bool product = false, weights = false, without_weight = false;  // ExtraOutputs
  };
  /// Weights of the rows [..., M, E] and v [..., N, E]; without v those of the pairs [..., M, N]. All that is handed in
  /// must outlive it.
  BackwardCall(const char* op, const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights,
               const Tensor* v, const Wanted& wanted, const Arguments& arguments, Context& context);
  ~BackwardCall();
  BackwardCall(const BackwardCall&) = delete;
  BackwardCall& operator=(const BackwardCall&) = delete;

  /// What of that the pass has; the rest takes calls of its own.
  const PassParts& parts() const { return parts_; }
  /// `results` has what the pass has.
  void run(const Tensor& out, const ExtraOutputs& results) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  PassParts parts_;
  Context& context_;
};

}  // namespace mercer::ops
