#include "backend/row_sums.h"

#include <algorithm>
#include <cmath>

#include "backend/cuda/runtime/kernels.h"
#include "backend/cuda/runtime/uploads.h"
#include "core/integers.h"
#include "kernels/cuda/linalg/cg_state.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kMostBlocks = 1024;

struct Strided {
  const void* data = nullptr;
  std::int64_t row = 0, col = 0;
  explicit Strided(const Tensor* t) {
    if (t == nullptr) return;
    data = t->data;
    row = t->strides[0];
    if (t->ndim() > 1) col = t->strides[1];
  }
};

template <class Arguments>
void run(const char* name, const PairJob& place, std::int64_t elements, const Arguments& arguments) {
  const Kernel kernels = cg_kernels(place);
  if (place.rehearsal() != nullptr || elements == 0) return;
  const Kernel kernel{kernels.module, &kernels.module->function(name)};
  launch(kernel, place, {std::min(ceil_div(elements, kThreads), kMostBlocks), 1}, kThreads, 0, arguments);
}

}  // namespace

void sum_rows(const char* op, const RowSum& sum, const Tensor& out, const Queue& queue) {
  const PairJob place = place_of(op, out.device, queue, out.dtype);
  const CudaScope scope(out.device.index);
  const Strided from(sum.from), weights(sum.weights), v(sum.v), ridges(sum.ridges);
  RowSumArguments a{};
  a.from = from.data;
  a.from_row = from.row;
  a.from_col = from.col;
  a.weights = weights.data;
  a.weights_step = weights.row;
  a.v = v.data;
  a.v_row = v.row;
  a.v_col = v.col;
  a.ridges = ridges.data;
  a.ridges_step = ridges.row;
  a.amount = sum.amount;
  a.out = out.data;
  a.out_row = out.strides[0];
  a.out_col = out.strides[1];
  a.rows = out.shape[0];
  a.columns = out.shape[1];
  run("sum_rows", place, out.count(), a);
}

void gather_rows(const char* op, const Tensor& from, const std::vector<std::int64_t>& rows, std::int64_t* indices,
                 void* to, const Queue& queue) {
  const PairJob place = place_of(op, from.device, queue, Dtype::float32);
  const CudaScope scope(from.device.index);
  if (rows.empty() || place.rehearsal() != nullptr) return;
  upload(place, indices, rows.data(), rows.size() * sizeof(std::int64_t));
  const Strided points(&from);
  GatherArguments a{};
  a.from = points.data;
  a.from_row = points.row;
  a.from_col = points.col;
  a.to = to;
  a.indices = reinterpret_cast<const long long*>(indices);
  a.rows = static_cast<long long>(rows.size());
  a.columns = from.ndim() > 1 ? from.shape[1] : 1;
  a.element = static_cast<int>(size_of(from.dtype));
  run("gather_rows", place, a.rows * a.columns, a);
}

}  // namespace mercer::cuda
