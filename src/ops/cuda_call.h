// A checked call on a CUDA device: the kernels of its formula, compiled once.
#pragma once

#include <memory>

#include "backend/cuda/operations.h"
#include "ops/call.h"
#include "ops/further_sums.h"
#include "plan/gpu/ways.h"

namespace mercer::ops {

/// What a call asks of its device: its sizes, types and settings; v and its columns, neighbours and folds are still to
/// be filled in.
plan::Request request_of(const PairCall& call, const cuda::PairJob& job, plan::Verb verb, Context& context);

/// The way that the call takes, which a rehearsal lists.
plan::Choice choose_way(const PairCall& call, const cuda::PairJob& job, const plan::Request& request,
                        Context& context);

/// Kernels of a plan that a way offered. Throws inside a graph capture when they are still to be compiled.
std::shared_ptr<const cuda::PairKernels> cuda_kernels(const PairCall& call, const cuda::PairJob& job,
                                                      plan::GpuPairProblem problem, Dtype out, Context& context,
                                                      cuda::FirstCall first = cuda::FirstCall::quick);

/// Both passes of a gradient, of a formula or of a field whose amplitude the caller gives; `pairs` is null for one that
/// reads no other value of the pair. `beside`: of the sums by w, where they are asked for and there is a `field`.
struct CudaGradient {
  std::shared_ptr<const cuda::PairKernels> pairs;
  std::shared_ptr<const cuda::FieldKernels> field, beside;
  void run(const cuda::PairJob& job, const cuda::FieldJob& operands) const {
    cuda::gradient(pairs.get(), field.get(), job, operands, beside.get());
  }
};
/// Of few features, in one pass; null where that is no way to compute it.
std::shared_ptr<const cuda::PairKernels> few_features_kernels(const PairCall& call, const cuda::PairJob& job,
                                                              const plan::FieldWeights& weights, Context& context,
                                                              const FurtherSums& further = {});
/// The same of a linear factor (plan/rank_field.h).
std::shared_ptr<const cuda::PairKernels> rank_field_kernels(const PairCall& call, const cuda::PairJob& job,
                                                            const plan::FieldWeights& weights, Context& context,
                                                            const FurtherSums& further = {});
/// Kernels of a product whose values are stored.
CudaGradient stored_product(const PairCall& call, const cuda::PairJob& job, const plan::StoredPlan& plan,
                            Context& context);
CudaGradient cuda_gradient(const PairCall& call, const cuda::PairJob& job, std::int64_t outputs, Context& context);
/// Of sum(x*z), whose pairs weigh a matrix: a product of that with the points z, which are v of the job; no kernels
/// where others compute it.
CudaGradient matrix_gradient(const PairCall& call, const cuda::PairJob& job, const cuda::JobOperand& matrix,
                             Context& context);
/// Of one output, whose pairs are stored some rows at a time, with what the same pass has beside; no kernels where that
/// is no way to compute it (plan/stored_sums.h).
CudaGradient stored_gradient(const PairCall& call, const cuda::PairJob& job, const plan::FieldWeights& weights,
                             Context& context, const FurtherSums& further = {});

}  // namespace mercer::ops
