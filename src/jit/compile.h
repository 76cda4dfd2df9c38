// Source → something that runs: machine code where the target and the system allow it, else the interpreter.
#pragma once

#include <cstddef>
#include <memory>

#include "core/system/mutex.h"
#include "plan/cpu/kernel.h"
#include "plan/cpu/planner.h"

namespace mercer::jit {

/// A compiled skeleton. Calling it is safe from many threads at once.
template <class Args>
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void operator()(const Args& args) const = 0;
  /// Bytes of machine code; 0 for interpreted kernels.
  virtual std::size_t code_bytes() const { return 0; }
};

using UpdateKernel = Kernel<plan::UpdateArgs>;
using EpilogueKernel = Kernel<plan::EpilogueArgs>;
using FieldKernel = Kernel<plan::FieldArgs>;

/// Machine code if it can be had. A formula that is too large for the target's registers is served by the interpreter,
/// with a warning; a system that denies executable memory has all of them served so.
std::unique_ptr<UpdateKernel> compile(const plan::UpdateSource& source);
std::unique_ptr<EpilogueKernel> compile(const plan::EpilogueSource& source);
std::unique_ptr<FieldKernel> compile(const plan::FieldSource& source);

/// The kernels of a pair plan, each compiled when a call first needs it.
class PairKernels {
 public:
  struct Variant {
    std::unique_ptr<UpdateKernel> update;  // null when the formula has no reduction of pairs
    std::unique_ptr<EpilogueKernel> epilogue;
  };

  explicit PairKernels(std::shared_ptr<const plan::PairPlan> plan) : plan_(std::move(plan)) {}
  const plan::PairPlan& plan() const { return *plan_; }
  const Variant& variant(bool fast) const;
  /// The variant's update for features after those that are in the accumulators already.
  const UpdateKernel& continued(bool fast) const;
  /// Update and epilogue in one kernel; null where they do not fit the registers together, or the interpreter serves.
  const UpdateKernel* fused(bool fast) const;
  /// Kernels of a plan with sums of maxima: the update alone, and with the best variant's epilogue (or null).
  const UpdateKernel& maxima() const;
  const UpdateKernel* fused_maxima() const;

 private:
  std::shared_ptr<const plan::PairPlan> plan_;
  // [fast]
  mutable Once compiled_[2], fused_compiled_[2], continued_compiled_[2];
  mutable Variant variants_[2];
  mutable std::unique_ptr<UpdateKernel> fused_[2], continued_[2];
  mutable Once maxima_compiled_, fused_maxima_compiled_;
  mutable std::unique_ptr<UpdateKernel> maxima_, fused_maxima_;
};

}  // namespace mercer::jit
