#include "backend/cuda/gemm/matrix_products.h"

#include "backend/cuda/gemm/bilinear.h"
#include "backend/cuda/gemm/double_products.h"

namespace mercer::cuda {

void MatrixProducts::run(const PairArguments& a, std::int64_t groups, const plan::GpuPairPlan& plan, Dtype out,
                         const Workspace& workspace) const {
  for (std::int64_t group = 0; group < groups; ++group) {
    const PairArguments one = group_of(a, group, plan, out);
    prepare(one, workspace);
    store(one, {}, workspace);
  }
}

static_assert(plan::Bilinear::kMostUniforms == MERCER_UNIFORM_FACTORS);

UniformFactors uniform_factors(const plan::GpuPairPlan& plan, const PairArguments& group) {
  UniformFactors factors{};
  factors.params = group.params.values;
  for (const plan::UniformFactor& uniform : plan.products.bilinear.uniforms) {
    const auto slot = static_cast<std::size_t>(uniform.slot);
    const int at = factors.count++;
    factors.slot[at] = uniform.slot;
    factors.divides[at] = uniform.divides ? 1 : 0;
    if (group.params.values != nullptr) continue;
    if (plan.problem.type == Dtype::float64)
      factors.numbers[at] = group.params.numbers[slot];
    else
      factors.numbers[at] = reinterpret_cast<const float*>(group.params.numbers)[slot];
  }
  return factors;
}

bool shares_operands(const plan::Bilinear& bilinear) {
  return bilinear.kind == plan::BilinearKind::square || (!bilinear.weighted() && bilinear.uniforms.empty());
}

std::unique_ptr<MatrixProducts> matrix_products(const PairKernels& kernels, const PairJob& job, const Panels& panels,
                                                std::int64_t rows, bool symmetric, Workspace& workspace) {
  if (!kernels.plan->products.bilinear) return nullptr;
  if (kernels.plan->has_double_products()) return std::make_unique<DoubleProducts>(kernels, job, panels, workspace);
  return std::make_unique<SplitProducts>(kernels, job, panels, rows, symmetric, workspace);
}

}  // namespace mercer::cuda
