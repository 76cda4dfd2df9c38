#include "backend/cuda/few_columns.h"

#include <algorithm>

#include "backend/cuda/workspace.h"
#include "core/aligned.h"
#include "core/integers.h"
#include "kernels/cuda/arguments.h"

namespace mercer::cuda {
namespace {

/// Rows of v that are summed at once: sums of more lose more than their last digit in float32.
constexpr std::int64_t kPartialSum = 4096;
constexpr std::int64_t kLeastPart = 128, kSlice = 8;  // rows of v in a part, and of a step
constexpr std::int64_t kTile = 512, kThreads = 128, kStages = 4;
constexpr std::int64_t kBlocksOfMultiprocessor = 2, kMostColumns = 64, kMostParts = 65535;

std::int64_t shared_bytes(std::int64_t width) {
  constexpr std::int64_t kPad = 4, kZeros = 4;
  return (kStages * kSlice * (kTile + width + kPad) + kZeros) * static_cast<std::int64_t>(sizeof(float));
}

void multiply_few_columns(const PairJob& place, const void* a, std::int64_t stride, const Tensor& v,
                          const Tensor& out) {
  const std::int64_t n = v.shape[0], columns = v.shape[1], width = columns > 16 ? 32 : columns > 8 ? 16 : 8;
  const std::int64_t tiles = ceil_div(n, kTile), groups = ceil_div(columns, width);
  const std::int64_t wanted = kBlocksOfMultiprocessor * place.hardware().multiprocessors / (tiles * groups);
  const std::int64_t depth = std::clamp(round_up(ceil_div(n, std::max<std::int64_t>(wanted, 1)), kSlice), kLeastPart,
                                        kPartialSum);
  FewColumnsArguments arguments{};
  arguments.a = static_cast<const float*>(a);
  arguments.v = static_cast<const float*>(v.data);
  arguments.out = static_cast<float*>(out.data);
  arguments.n = n;
  arguments.columns = columns;
  arguments.stride = stride;
  arguments.v_stride = v.strides[1];
  arguments.out_stride = out.strides[1];
  arguments.sums_stride = round_up(n, 4);
  arguments.depth = depth;
  arguments.parts = static_cast<int>(ceil_div(n, depth));
  arguments.vectors = stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(a) % 16 == 0;
  Workspace memory;
  const std::int64_t sums =
      memory.add(checked_product({arguments.parts, columns, arguments.sums_stride, std::int64_t{sizeof(float)}}));
  if (!memory.take(place)) return;
  arguments.sums = memory.at<float>(sums);
  const Kernel add = few_columns_kernels(place);
  const Kernel multiply{add.module, &add.module->function(fmt::format("multiply_{}_columns", width))};
  launch_overlapping(multiply, place, {tiles, arguments.parts, groups}, kThreads, arguments, shared_bytes(width));
  launch_overlapping(add, place, {ceil_div(arguments.sums_stride, 4 * kThreads), columns}, kThreads, arguments);
}

}  // namespace

void multiply_matrix(const DeviceBlas& blas, const Tensor& a, const Tensor& v, const Tensor& out) {
  const std::int64_t n = a.shape[0], columns = v.shape[1];
  if (n == 0 || columns == 0) return;
  const bool by_rows = a.strides[0] != 1 || a.strides[1] < n;
  const std::int64_t stride = by_rows ? a.strides[0] : a.strides[1];
  if (a.dtype == Dtype::float32 && columns <= kMostColumns && n <= kMostParts * kPartialSum)
    return multiply_few_columns(blas.place(), a.data, stride, v, out);
  const auto bytes = static_cast<std::int64_t>(size_of(a.dtype));
  for (std::int64_t k = 0; k < n; k += kPartialSum) {
    const std::int64_t count = std::min(kPartialSum, n - k);
    blas.gemm(by_rows, false, n, columns, count, 1, static_cast<const char*>(a.data) + k * a.strides[1] * bytes, stride,
              static_cast<const char*>(v.data) + k * bytes, v.strides[1], k == 0 ? 0 : 1, out.data, out.strides[1]);
  }
}

}  // namespace mercer::cuda
