#include "backend/cuda/gemm/split_update.h"

#include <map>
#include <mutex>

#include "backend/cuda/gemm/matrix_products.h"
#include "backend/cuda/runtime/panels.h"
#include "core/system/mutex.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::cuda {
namespace {

/// Kernels of a tile, compiled with full care: they serve every later call of the process. Null where the device has
/// none. Never emptied: there are a few tiles.
std::shared_ptr<const PairKernels> kernels_of(const plan::BilinearTile& tile, const PairJob& job) {
  static constinit Mutex mutex;
  static constinit Lazy<std::map<std::pair<std::string, int>, std::shared_ptr<const PairKernels>>> kept;
  auto& known = kept.get();
  const std::pair key(tile.to_text(), job.device);
  const bool is_loaded = job.rehearsal() == nullptr || job.rehearsal()->purpose == Rehearsal::Purpose::kernels;
  if (is_loaded) {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
    require_no_capture(job);
  }
  constexpr std::int64_t kMany = 1 << 14;
  const CudaDevice& device = job.hardware();
  plan::GpuPairProblem problem;
  problem.outputs = {sum(points().x * points().z)};
  problem.product = tile;
  problem.use.subtracts = problem.params.by_value = true;
  problem.sizes = plan::sizes_of(kMany, kMany, kMany, device.multiprocessors);
  problem.device.capability = device.capability();
  problem.device.shared_per_block = device.shared_per_block;
  const auto plan = plan::plan_gpu_pairs(problem);
  std::shared_ptr<const PairKernels> kernels;
  if (plan->products.bilinear) kernels = compile_pair_kernels(plan, Dtype::float32, job);
  if (!is_loaded) return kernels;
  const std::lock_guard lock(mutex);
  return known.emplace(key, kernels).first->second;
}

std::shared_ptr<const PairKernels> kernels_of(const PairJob& job) {
  plan::BilinearTile tile = plan::bilinear_tile(job.x.count, job.z.count, job.features, Precision::fp32,
                                                job.hardware().multiprocessors, job.costs().everywhere());
  tile.own_scales = static_cast<bool>(tile);  // rows of factors are of all sizes, and nobody repairs
  return kernels_of(tile, job);
}

}  // namespace

SplitUpdate::SplitUpdate(const PairJob& place, std::int64_t rows, std::int64_t columns, std::int64_t features,
                         bool same)
    : place_(place) {
  const UpdateSide x{nullptr, rows, 1, 1}, z{nullptr, columns, 1, 1};
  const PairJob job = job_of(x, same ? x : z, features);
  const auto kernels = kernels_of(job);
  if (kernels == nullptr) return;
  Workspace workspace;
  const Panels panels(*kernels, job, workspace);
  matrix_products(*kernels, job, panels, rows, false, workspace);
  bytes_ = workspace.bytes();
}

void SplitUpdate::prepare(std::int64_t rows, std::int64_t columns, std::int64_t features, bool same) const {
  const UpdateSide x{nullptr, rows, 1, 1}, z{nullptr, columns, 1, 1};
  kernels_of(job_of(x, same ? x : z, features));
}

PairJob SplitUpdate::job_of(const UpdateSide& x, const UpdateSide& z, std::int64_t features) const {
  PairJob job = place_;
  job.features = features;
  for (auto [side, from] : {std::pair(&job.x, &x), std::pair(&job.z, &z)}) {
    side->points = {from->data, Dtype::float32, {}};
    side->count = from->count;
    side->point_stride = from->point_stride;
    side->feature_stride = from->feature_stride;
  }
  job.type = Dtype::float32;
  job.same_points = &x == &z;
  return job;
}

void SplitUpdate::run(const UpdateSide& x, const UpdateSide& z, std::int64_t features, float* c, std::int64_t stride,
                      char* memory) const {
  const PairJob job = job_of(x, z, features);
  const auto kernels = kernels_of(job);
  Workspace workspace;
  const Panels panels(*kernels, job, workspace);
  const auto products = matrix_products(*kernels, job, panels, x.count, job.same_points, workspace);
  workspace.use(memory, bytes_, job);
  panels.run(workspace, {.packs = !products->takes_points(1)});
  PairArguments a = panels.arguments(workspace);
  a.out.data = c;
  a.out.row = stride;
  a.out.column = 1;
  a.members.count = 1;
  a.symmetric = job.same_points;
  products->prepare(a, workspace);
  products->store(a, {}, workspace);
}

}  // namespace mercer::cuda
