#include "backend/cuda/linalg/small_matrices.h"

#include <algorithm>

#include "backend/cuda/runtime/batch.h"
#include "backend/cuda/runtime/kernels.h"
#include "backend/cuda/runtime/workspace.h"
#include "core/error.h"
#include "core/integers.h"
#include "core/system/aligned.h"
#include "kernels/cuda/common/arguments.h"
#include "plan/gpu/small_tile.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kBlocksWanted = 8;       // on a multiprocessor
constexpr std::int64_t kPartsOfATeam = 8;       // at least, of right-hand sides, for which it factors anew
constexpr std::int64_t kMostOfSeveralAxes = std::int64_t{1} << 32;
constexpr std::int64_t kMostSlices = 65535;     // of a grid's second axis
constexpr std::int64_t kOrderForAnyColumns = 64, kMostColumns = 16;

PairJob place_of(const DenseJob& job) {
  PairJob place;
  place.op = job.op;
  place.device = job.device;
  place.queue = job.queue;
  place.type = job.type;
  return place;
}

DenseSide side_of(const DenseArray& array, bool turned = false) {
  DenseSide side{};
  side.data = array.data;
  side.row = turned ? array.col_stride : array.row_stride;
  side.col = turned ? array.row_stride : array.col_stride;
  return side;
}

/// Steps of the arrays along axes of the batch.
void walk(const char* op, const std::vector<std::int64_t>& extents, BatchAxes& axes,
          std::initializer_list<std::pair<const std::vector<std::int64_t>*, long long (*)[MERCER_MAX_AXES]>> arrays) {
  BatchWalk walk;
  walk.extent = extents;
  for (const auto& [strides, to] : arrays)
    walk.steps.push_back(strides->empty() ? std::vector<std::int64_t>(extents.size(), 0) : *strides);
  walk.merge(op);
  axes = walk.axes();
  std::size_t array = 0;
  for (const auto& [strides, to] : arrays) walk.write(array++, *to);
}

SmallArguments arguments_of(const DenseJob& job, const SmallCall& call, const DenseArray& info) {
  SmallArguments a{};
  // An upper triangle is the lower one of the transpose.
  const bool is_lu = call.verb == plan::SmallVerb::lu, upper = !is_lu && !job.lower;
  a.a = side_of(call.a, upper || call.transposed);
  a.out = side_of(call.out, upper && call.verb == plan::SmallVerb::cholesky);
  a.b = side_of(call.b);
  a.x = side_of(call.x);
  a.pivots = side_of(call.pivots);
  a.logdet = side_of(call.logdet);
  a.info = side_of(info);
  walk(job.op, job.outer, a.outer,
       {{&call.a.outer_strides, &a.a.step},
        {&call.out.outer_strides, &a.out.step},
        {&call.b.outer_strides, &a.b.step},
        {&call.x.outer_strides, &a.x.step},
        {&call.pivots.outer_strides, &a.pivots.step},
        {&call.logdet.outer_strides, &a.logdet.step},
        {&info.outer_strides, &a.info.step}});
  walk(job.op, job.inner, a.inner,
       {{&call.b.inner_strides, &a.b_repeat}, {&call.x.inner_strides, &a.x_repeat}});
  a.matrices = job.matrices;
  a.repeats = job.repeats;
  a.columns = call.b.data != nullptr ? call.b.cols : 0;
  a.order = static_cast<int>(job.order);
  a.factors = call.factors;
  a.lower = !is_lu;
  a.transposed = call.transposed;
  a.sums = call.sums;
  a.skipped = static_cast<int>(call.skipped);
  a.count = static_cast<int>(call.x.rows);
  a.attempts = static_cast<int>(job.jitter.size());
  std::copy(job.jitter.begin(), job.jitter.end(), a.jitter);
  return a;
}

/// Teams that share the right-hand sides of a matrix.
std::int64_t slices_of(const SmallArguments& a, std::int64_t blocks, const CudaDevice& device) {
  const std::int64_t parts = checked_product({a.repeats, ceil_div(a.columns, plan::kSmallColumns)});
  const std::int64_t wanted = ceil_div(kBlocksWanted * device.multiprocessors, blocks);
  return std::clamp<std::int64_t>(wanted, 1, std::clamp<std::int64_t>(parts / kPartsOfATeam, 1, kMostSlices));
}

/// Statuses to the host, if one of them is not 0; else it gets none.
void download(const PairJob& place, const SmallArguments& a, std::vector<std::int64_t>& host) {
  const auto copy = [&](void* to, const int* from, std::size_t count) {
    check_cuda(cuda_driver()->copy_async(reinterpret_cast<CuPointer>(to), reinterpret_cast<CuPointer>(from),
                                         count * sizeof(int), place.stream()),
               place.op);
    check_cuda(cuda_driver()->stream_synchronize(place.stream()), place.op);
  };
  int failed = 0;
  copy(&failed, a.failed, 1);
  host.clear();
  if (failed == 0) return;
  std::vector<int> found(static_cast<std::size_t>(a.matrices));
  copy(found.data(), a.status, found.size());
  host.assign(found.begin(), found.end());
}

}  // namespace

bool are_small(const DenseJob& job, std::int64_t columns) {
  const std::int64_t most = std::min(job.costs.small_until, plan::most_of_small_tiles(job.type));
  if (job.rows != job.cols || job.order <= 0 || job.order > most) return false;
  if (job.jitter.size() > MERCER_MAX_NUMBERS) return false;
  return job.order <= kOrderForAnyColumns || columns <= kMostColumns / std::max<std::int64_t>(job.repeats, 1);
}

bool are_small_for_eigh(const DenseJob& job) {
  return job.order > 0 && job.order <= std::min(job.costs.small_until, plan::kMostOfSmallEigen);
}

void run_small(const DenseJob& job, const SmallCall& call, const DenseInfo& info) {
  const PairJob place = place_of(job);
  const JobScope scope(place);
  require(info.host == nullptr || place.rehearsal() != nullptr || !cuda_is_capturing(job.device, place.stream()),
          "{}: a call that throws for its matrices must stay out of the capture of a CUDA graph. Received a capturing "
          "stream and no info.",
          job.op);
  const plan::SmallTile tile = call.verb == plan::SmallVerb::eigh ? plan::small_eigen_tile(job.order, job.type)
                                                                  : plan::small_tile(job.order, job.type);
  const Kernel kernel = small_kernel(tile, call.verb, place);
  SmallArguments a = arguments_of(job, call, info.array);
  require(a.outer.count < 2 || job.matrices < kMostOfSeveralAxes,
          "{}: batches with axes that step differently must have fewer than 2^32 items on CUDA. Received {}.", job.op,
          job.matrices);
  Workspace workspace;
  if (info.host != nullptr) {
    const std::int64_t status = workspace.add(checked_product({job.matrices, std::int64_t{sizeof(int)}})),
                       failed = workspace.add(sizeof(int));
    if (!workspace.take(place)) return;
    a.status = workspace.at<int>(status);
    a.failed = workspace.at<int>(failed);
    if (place.rehearsal() == nullptr)
      check_cuda(cuda_driver()->set_words_async(reinterpret_cast<CuPointer>(a.failed), 0, 1, place.stream()), job.op);
  }
  const std::int64_t blocks = ceil_div(job.matrices, tile.teams());
  const jit::Dim3 grid = {blocks, slices_of(a, blocks, place.hardware())};
  launch(kernel, place, grid, tile.threads(), tile.shared_bytes(), a);
  if (info.host != nullptr && place.rehearsal() == nullptr) download(place, a, *info.host);
}

}  // namespace mercer::cuda
