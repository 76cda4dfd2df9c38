#include "backend/cuda/gemm/few_columns.h"

#include <algorithm>

#include "backend/cuda/runtime/kernels.h"
#include "backend/cuda/runtime/workspace.h"
#include "core/integers.h"
#include "core/system/aligned.h"
#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {
namespace {

/// Rows of v that are summed at once: sums of more lose more than their last digit in float32.
constexpr std::int64_t kPartialSum = 4096;
constexpr std::int64_t kLeastPart = 128, kLeastPartByRows = 1024, kSlice = 8;  // rows of v in a part, and of a step
constexpr std::int64_t kThreads = 128, kStages = 4, kVectorBytes = 16, kTileByRows = 8;
constexpr std::int64_t kBlocksOfMultiprocessor = 2, kBlocksByRows = 4, kMostParts = 65535;

std::int64_t shared_bytes(std::int64_t width, std::int64_t size) {
  const std::int64_t vector = kVectorBytes / size;
  return kStages * kSlice * (kThreads * vector + width + vector) * size + kVectorBytes;
}

}  // namespace

FewColumns::FewColumns(const PairJob& place, const Tensor& a, std::int64_t columns)
    : place_(place), a_(a), columns_(columns), by_rows_(a.strides[0] != 1 || a.strides[1] < a.shape[0]) {
  const std::int64_t rows = a.shape[0], depth = a.shape[1], vector = kVectorBytes / std::int64_t(size_of(a.dtype));
  width_ = by_rows_ ? kTileByRows : columns > 16 ? 32 : columns > 8 ? 16 : 8;
  tiles_ = ceil_div(rows, by_rows_ ? kTileByRows : kThreads * vector);
  groups_ = ceil_div(columns, width_);
  const std::int64_t blocks = (by_rows_ ? kBlocksByRows : kBlocksOfMultiprocessor) * place.hardware().multiprocessors;
  const std::int64_t wanted = std::max<std::int64_t>(blocks / std::max<std::int64_t>(tiles_ * groups_, 1), 1);
  part_ = std::clamp(round_up(ceil_div(depth, wanted), kSlice), by_rows_ ? kLeastPartByRows : kLeastPart, kPartialSum);
  part_ = std::max(part_, round_up(ceil_div(depth, kMostParts), kSlice));
  parts_ = std::max<std::int64_t>(ceil_div(depth, part_), 1);
  sums_stride_ = round_up(rows, vector);
}

std::int64_t FewColumns::bytes() const {
  return checked_product({parts_, columns_, sums_stride_, std::int64_t(size_of(a_.dtype))});
}

void FewColumns::run(const Tensor& v, const Tensor& out, void* scratch, double alpha, const Tensor* b,
                     double beta) const {
  if (a_.shape[0] == 0 || columns_ == 0) return;
  const auto size = static_cast<std::int64_t>(size_of(a_.dtype));
  FewColumnsArguments arguments{};
  arguments.a = a_.data;
  arguments.v = v.data;
  arguments.sums = scratch;
  arguments.out = out.data;
  arguments.rows = a_.shape[0];
  arguments.depth = a_.shape[1];
  arguments.columns = columns_;
  arguments.stride = a_.strides[by_rows_ ? 0 : 1];
  arguments.v_stride = v.strides[1];
  arguments.out_stride = out.strides[1];
  arguments.sums_stride = sums_stride_;
  arguments.part = part_;
  arguments.alpha = alpha;
  arguments.beta = beta;
  arguments.parts = static_cast<int>(parts_);
  arguments.vectors = arguments.stride * size % kVectorBytes == 0 &&
                      reinterpret_cast<std::uintptr_t>(a_.data) % kVectorBytes == 0;
  if (b != nullptr) {
    arguments.b = b->data;
    arguments.b_stride = b->strides[1];
  }
  const Kernel add = few_columns_kernels(place_);
  if (place_.rehearsal() != nullptr) return;
  const auto kernel = [&](const std::string& name) { return Kernel{add.module, &add.module->function(name)}; };
  if (by_rows_)
    launch_overlapping(kernel("multiply_rows"), place_, {tiles_ * groups_, parts_}, kThreads, arguments);
  else
    launch_overlapping(kernel(fmt::format("multiply_{}_columns", width_)), place_, {tiles_, parts_, groups_}, kThreads,
                       arguments, shared_bytes(width_, size));
  launch_overlapping(add, place_, {ceil_div(sums_stride_ * size, kVectorBytes * kThreads), columns_}, kThreads,
                     arguments);
}

void multiply_few_columns(const PairJob& place, const Tensor& a, const Tensor& v, const Tensor& out) {
  if (a.shape[0] == 0 || v.shape[1] == 0) return;
  Tensor by_columns = a;
  if (a.strides[0] != 1 || a.strides[1] < a.shape[0]) std::swap(by_columns.strides[0], by_columns.strides[1]);
  const FewColumns product(place, by_columns, v.shape[1]);
  Workspace memory;
  const std::int64_t sums = memory.add(product.bytes());
  if (!memory.take(place)) return;
  product.run(v, out, memory.at(sums));
}

}  // namespace mercer::cuda
