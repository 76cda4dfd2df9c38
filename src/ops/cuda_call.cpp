#include "ops/cuda_call.h"

#include <fmt/format.h>

#include "backend/cuda/panels.h"
#include "core/error.h"

namespace mercer::ops {
namespace {

plan::GpuPairProblem problem_of(const cuda::PairJob& job, const CudaUse& use, const CudaDevice& device) {
  plan::GpuPairProblem problem;
  problem.type = job.type;
  problem.out = use.consumer == plan::Consumer::store ? use.out : job.type;
  problem.consumer = use.consumer;
  problem.fold = use.fold;
  problem.columns = use.columns;
  problem.m = job.x.count;
  problem.n = job.z.count;
  problem.k = job.features;
  problem.multiprocessors = device.multiprocessors;
  return problem;
}

}  // namespace

std::shared_ptr<const cuda::PairKernels> cuda_kernels(const PairCall& call, const cuda::PairJob& job,
                                                      const CudaUse& use, Context& context) {
  const CudaDevice& device = cuda_device(job.device);
  plan::GpuPairProblem problem = problem_of(job, use, device);
  const plan::GpuTile tile = plan::choose_gpu_tile(problem, call.formula().states());
  const auto compiled = [&](bool reciprocals) {
    problem.reciprocals = reciprocals;
    const std::string key =
        fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", call.formula().key, static_cast<int>(job.type),
                    static_cast<int>(job.x.points.dtype), static_cast<int>(use.out), static_cast<int>(use.consumer),
                    static_cast<int>(use.fold), use.columns, reciprocals, job.device, tile.to_text());
    return context.state().cuda_pairs.get(key, [&] {
      cuda::require_no_capture(job.op, job.device, static_cast<CuStream>(job.queue->stream));
      problem.outputs = {call.formula().expression};
      return cuda::compile_pair_kernels(plan::plan_gpu_pairs(problem), job.x.points.dtype, use.out, job.device);
    });
  };
  bool numbers = true;
  for (const cuda::JobParam& param : job.params) numbers = numbers && param.is_number();
  if (numbers) {
    auto kernels = compiled(true);
    if (cuda::reciprocals_are_normal(*kernels->plan, job)) return kernels;
  }
  return compiled(false);
}

}  // namespace mercer::ops
