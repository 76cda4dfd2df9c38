#include "backend/cuda/gemm/stored_product.h"

#include <algorithm>

#include "backend/cuda/runtime/ranges.h"
#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kPadding = 32, kMergeThreads = 128;

}  // namespace

StoredProduct::StoredProduct(const FieldKernels& kernels, const PairJob& job, std::int64_t rows, Workspace& workspace)
    : kernels_(kernels),
      tile_(kernels.plan->problem.stored.tile),
      job_(job),
      v_(tile_, job, {.by_fours = true}, workspace),
      merge_(merge_products(job)),
      ld_(round_up(rows, kPadding)) {
  splits_ = choose_splits({ceil_div(rows, tile_.kRows * tile_.cluster), ceil_div(job.z.count, tile_.columns),
                           tile_.columns, job.hardware().multiprocessors * tile_.blocks / tile_.cluster});
  partial_ = workspace.add(splits_ * tile_.wide * ld_ * static_cast<std::int64_t>(sizeof(float)));
}

void StoredProduct::run(const FieldArguments& part, bool adds, const Workspace& workspace) {
  for (std::int64_t first = 0; first < part.k; first += tile_.wide) {
    const std::int64_t columns = std::min<std::int64_t>(tile_.wide, part.k - first);
    if (written_ != first) {
      PairArguments v{};
      v.n = part.n;
      v.v.columns = static_cast<int>(columns);
      v_.write(v, {static_cast<const float*>(part.z) + first * part.z_ld, 1, part.z_ld}, workspace);
      written_ = first;
    }
    multiply(part, columns, workspace);
    merge(part, first, columns, adds, workspace);
  }
}

void StoredProduct::multiply(const FieldArguments& part, std::int64_t columns, const Workspace& workspace) const {
  BilinearArguments a{};
  PairArguments& pairs = a.pairs;
  pairs.planes.data = part.pair;
  pairs.planes.ld = part.pair_row;
  pairs.m = part.m;
  pairs.n = part.n;
  pairs.out.data = workspace.at<>(partial_);
  pairs.out.partial_ld = ld_;
  pairs.splits = static_cast<int>(splits_);
  pairs.v.columns = pairs.v.partial_columns = static_cast<int>(columns);
  a.v_image = v_.image(workspace);
  const std::int64_t tiles = ceil_div(part.m, tile_.kRows * tile_.cluster) * splits_;
  const std::int64_t clusters =
      std::min<std::int64_t>(tiles, job_.hardware().multiprocessors * tile_.blocks / tile_.cluster);
  launch(kernels_.stored, job_, {clusters * tile_.cluster}, tile_.threads(), tile_.shared_bytes(0), a);
}

void StoredProduct::merge(const FieldArguments& part, std::int64_t first, std::int64_t columns, bool adds,
                          const Workspace& workspace) const {
  MergeArguments a{};
  a.partial = workspace.at<>(partial_);
  a.out = static_cast<float*>(part.out) + first * part.out_feature;
  a.m = part.m;
  a.ld = ld_;
  a.out_row = part.out_row;
  a.out_column = part.out_feature;
  a.columns = static_cast<int>(columns);
  a.splits = static_cast<int>(splits_);
  a.adds = adds ? 1 : 0;
  const std::int64_t tasks = ceil_div(columns, MERCER_MERGED_COLUMNS);
  const std::int64_t neighbours = std::min<std::int64_t>(tasks, MERCER_MERGE_NEIGHBOURS);
  launch(merge_, job_, {ceil_div(round_up(tasks, neighbours) * round_up(a.m, 32), kMergeThreads)}, kMergeThreads, 0, a);
}

}  // namespace mercer::cuda
