// A checked call on a CUDA device: the kernels of its formula, compiled once.
#pragma once

#include <memory>

#include "backend/cuda/operations.h"
#include "ops/call.h"
#include "ops/further_sums.h"
#include "plan/gpu_field.h"

namespace mercer::ops {

/// What the verb makes of the pairs.
struct CudaUse {
  Dtype out = Dtype::float32;
  plan::Consumer consumer = plan::Consumer::store;
  ReduceKind fold = ReduceKind::sum;
  int columns = 1;
  plan::MixedWork mixed_work = plan::MixedWork::little;  // plan::GpuPairProblem
  bool expands = false, differs = false;
  plan::BilinearTile product = {};
  cuda::FirstCall first = cuda::FirstCall::quick;
};

/// Throws inside a graph capture when they are still to be compiled.
std::shared_ptr<const cuda::PairKernels> cuda_kernels(const PairCall& call, const cuda::PairJob& job,
                                                      const CudaUse& use, Context& context);

/// On tensor cores, where that pays for values of the pairs that are stored some rows at a time (pair_values.h).
plan::BilinearTile values_tile(const cuda::PairJob& job, Context& context);

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
/// Of a product with many columns of v, whose values are stored (plan/value_products.h); no kernels where a fold is the
/// way to compute it. `use`: that of the fold.
CudaGradient value_product(const PairCall& call, const cuda::PairJob& job, const CudaUse& use, std::int64_t columns,
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
