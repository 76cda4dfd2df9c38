#include "ops/gpu/stream_totals.h"

#include <algorithm>

#include "core/integers.h"
#include "kernels/cuda/common/stream_merge.h"

namespace mercer::ops {
namespace {

constexpr std::int64_t kThreads = 256, kIndexBytes = 8;

int merge_of(const Streamed& call) {
  if (call.verb != Streamed::Verb::reduce) return kStreamSum;
  switch (call.reduce) {
    case ReduceKind::sum: return kStreamSum;
    case ReduceKind::max: return kStreamMax;
    case ReduceKind::min: return kStreamMin;
    case ReduceKind::argmax: return kStreamArgmax;
    case ReduceKind::argmin: return kStreamArgmin;
    case ReduceKind::logsumexp: return kStreamLogSumExp;
  }
  return kStreamSum;
}

bool on_device(const Tensor& out) { return out.device.kind == DeviceKind::cuda; }

/// Strides of an output [M], [M, width] or [O, M, width].
struct Steps {
  std::int64_t plane = 0, row = 0, column = 0;
};
Steps steps_of(const Tensor& out) {
  if (out.ndim() == 1) return {0, out.strides[0], 1};
  return {out.ndim() > 2 ? out.strides[0] : 0, out.strides[out.ndim() - 2], out.strides.back()};
}

}  // namespace

StreamTotals::StreamTotals(const Streamed& call, Dtype type, std::int64_t features)
    : call_(call), type_(type), real_(static_cast<std::int64_t>(size_of(type))) {
  const Tensor* factor = call.factor;
  if (finds_neighbours()) width_ = call.k;
  if (call.verb == Streamed::Verb::product && factor->ndim() > 1) width_ = factor->shape[1];
  if (call.verb == Streamed::Verb::gradient) {
    width_ = features;
    if (factor->ndim() > 1) planes_ = factor->shape[0];
  }
}

bool StreamTotals::gives_index() const {
  return call_.verb == Streamed::Verb::reduce &&
         (call_.reduce == ReduceKind::argmax || call_.reduce == ReduceKind::argmin);
}

void StreamTotals::load(const cuda::PairJob& place) { kernels_ = cuda::stream_merge_kernels(place); }

std::int64_t StreamTotals::row_bytes() const {
  const std::int64_t value = 3 * real_ + 2 * static_cast<std::int64_t>(sizeof(double));
  return row_values() * (value + (has_indices() ? 5 * kIndexBytes : 0));
}

void StreamTotals::lay_out(cuda::Workspace& workspace, std::int64_t rows) {
  const std::int64_t count = rows * row_values(), indices = has_indices() ? count * kIndexBytes : 0;
  part_ = workspace.add(count * real_);
  part_index_ = workspace.add(indices);
  for (int turn = 0; turn < 2; ++turn) {
    const bool is_used = turn == 0 || finds_neighbours();
    totals_[turn] = workspace.add(is_used ? count * static_cast<std::int64_t>(sizeof(double)) : 0);
    total_indices_[turn] = workspace.add(is_used ? indices : 0);
    results_[turn] = workspace.add(on_device(call_.out) || gives_index() ? 0 : count * real_);
    const bool at_home = on_device(finds_neighbours() ? call_.indices : call_.out);
    result_indices_[turn] = workspace.add(at_home ? 0 : indices);
  }
}

Tensor StreamTotals::part(const cuda::Workspace& workspace, Device device, std::int64_t rows,
                          std::int64_t found) const {
  std::vector<std::int64_t> shape{rows};
  if (finds_neighbours()) shape.push_back(found);
  else if (call_.verb == Streamed::Verb::gradient || (call_.factor != nullptr && call_.factor->ndim() > 1))
    shape.push_back(width_);
  if (call_.verb == Streamed::Verb::gradient && call_.factor->ndim() > 1) shape.insert(shape.begin(), planes_);
  Tensor part(workspace.at<char>(part_), type_, std::move(shape));
  part.device = device;
  return part;
}

Tensor StreamTotals::part_indices(const cuda::Workspace& workspace, Device device, std::int64_t rows,
                                  std::int64_t found) const {
  std::vector<std::int64_t> shape{rows};
  if (finds_neighbours()) shape.push_back(found);
  Tensor part(workspace.at<char>(part_index_), Dtype::int64, std::move(shape));
  part.device = device;
  return part;
}

void StreamTotals::merge(const cuda::Workspace& workspace, const cuda::PairJob& place, std::int64_t rows,
                         std::int64_t found, std::int64_t offset, bool is_first) {
  if (finds_neighbours()) {
    if (is_first) had_ = 0;
    const std::int64_t kept = std::min(width_, had_ + found);
    const int to = 1 - turn_;
    StreamNearestArguments a{workspace.at(totals_[turn_]), workspace.at(part_),
                             workspace.at<long long>(total_indices_[turn_]), workspace.at<long long>(part_index_),
                             workspace.at(totals_[to]), workspace.at<long long>(total_indices_[to]),
                             rows, had_, found, kept, offset};
    cuda::launch(sibling(kernels_, "merge_nearest", place), place, {ceil_div(rows, kThreads)}, kThreads, 0, a);
    had_ = kept;
    turn_ = to;
    return;
  }
  const std::int64_t count = rows * row_values();
  if (count == 0) return;
  StreamMergeArguments a{workspace.at(part_), workspace.at<long long>(part_index_), workspace.at<double>(totals_[0]),
                         gives_index() ? workspace.at<long long>(total_indices_[0]) : nullptr,
                         count, offset, merge_of(call_), is_first};
  cuda::launch(kernels_, place, {ceil_div(count, kThreads)}, kThreads, 0, a);
}

void StreamTotals::store_one(const cuda::Workspace& workspace, const cuda::PairJob& place, const char* kernel,
                             const void* from, const Tensor& out, std::int64_t row, std::int64_t rows,
                             const std::int64_t* places, int buffer) const {
  const std::int64_t count = rows * row_values();
  if (count == 0) return;
  StreamStoreArguments a{from, nullptr, count, rows, width_, rows * width_, width_, 1};
  if (on_device(out)) {
    const Steps steps = steps_of(out);
    a.plane_stride = steps.plane;
    a.row_stride = steps.row;
    a.column_stride = steps.column;
    a.to = static_cast<char*>(out.data) + row * steps.row * static_cast<std::int64_t>(size_of(out.dtype));
  } else {
    a.to = workspace.at(places[buffer]);
  }
  cuda::launch(sibling(kernels_, kernel, place), place, {ceil_div(count, kThreads)}, kThreads, 0, a);
}

void StreamTotals::store(const cuda::Workspace& workspace, const cuda::PairJob& place, std::int64_t row,
                         std::int64_t rows, int buffer) {
  const int turn = finds_neighbours() ? turn_ : 0;
  const void* const numbers = workspace.at(totals_[turn]);
  const void* const indices = workspace.at(total_indices_[turn]);
  if (gives_index())
    return store_one(workspace, place, "store_indices", indices, call_.out, row, rows, result_indices_, buffer);
  store_one(workspace, place, finds_neighbours() ? "store_values" : "store_totals", numbers, call_.out, row, rows,
            results_, buffer);
  if (finds_neighbours())
    store_one(workspace, place, "store_indices", indices, call_.indices, row, rows, result_indices_, buffer);
}

void StreamTotals::download_one(cuda::Staging& staging, const cuda::Workspace& workspace, const Tensor& out,
                                std::int64_t row, std::int64_t rows, std::int64_t from) const {
  if (on_device(out)) return;
  const auto size = static_cast<std::int64_t>(size_of(out.dtype));
  const Steps steps = steps_of(out);
  for (std::int64_t plane = 0; plane < planes_; ++plane) {
    const cuda::HostMatrix to{static_cast<char*>(out.data) + plane * steps.plane * size, size, width_, steps.row,
                              steps.column};
    staging.download(to, row, rows, reinterpret_cast<CuPointer>(workspace.at<char>(from)) +
                                        static_cast<CuPointer>(plane * rows * width_ * size));
  }
}

void StreamTotals::download(cuda::Staging& staging, const cuda::Workspace& workspace, std::int64_t row,
                            std::int64_t rows, int buffer) const {
  download_one(staging, workspace, call_.out, row, rows,
               gives_index() ? result_indices_[buffer] : results_[buffer]);
  if (finds_neighbours())
    download_one(staging, workspace, call_.indices, row, rows, result_indices_[buffer]);
}

}  // namespace mercer::ops
