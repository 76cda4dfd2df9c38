#include "backend/cuda/matrix_products.h"

#include "backend/cuda/bilinear.h"
#include "backend/cuda/double_products.h"

namespace mercer::cuda {

void MatrixProducts::run(const PairArguments& a, std::int64_t groups, const plan::GpuPairPlan& plan, Dtype out,
                         const Workspace& workspace) const {
  for (std::int64_t group = 0; group < groups; ++group) {
    const PairArguments one = group_of(a, group, plan, out);
    prepare(one, workspace);
    store(one, 0, workspace);
  }
}

std::unique_ptr<MatrixProducts> matrix_products(const PairKernels& kernels, const PairJob& job, const Panels& panels,
                                                std::int64_t rows, bool symmetric, Workspace& workspace) {
  if (!kernels.plan->bilinear) return nullptr;
  if (kernels.plan->has_double_products()) return std::make_unique<DoubleProducts>(kernels, job, panels, workspace);
  return std::make_unique<SplitProducts>(kernels, job, panels, rows, symmetric, workspace);
}

}  // namespace mercer::cuda
