#include "backend/cuda/operations.h"
#include "backend/cuda/pair_values.h"

namespace mercer::cuda {
namespace {

std::int64_t power_of_two(std::int64_t least) {
  std::int64_t size = 1;
  while (size < least) size *= 2;
  return size;
}

void* element(const JobMatrix& matrix, std::int64_t offset) {
  return static_cast<char*>(matrix.data) + offset * static_cast<std::int64_t>(size_of(matrix.dtype));
}

}  // namespace

void nearest(const PairKernels& kernels, const PairJob& job, std::int64_t count, const JobMatrix& values,
             const JobMatrix& indices) {
  const JobScope scope(job);
  const std::int64_t size = static_cast<std::int64_t>(size_of(job.type)), keys = power_of_two(count);
  const std::int64_t rows = rows_of_part(job, job.z.count * size + keys * 16);
  const std::int64_t ld = (job.z.count + 3) / 4 * 4;
  Workspace workspace;
  for (std::int64_t index = 0; index < job.items; ++index) {
    const PairJob one = job.item(index);
    workspace.reuse();
    const PairValues pair_values(kernels, one, rows, workspace);
    const std::int64_t pairs = workspace.add(rows * ld * size), key_place = workspace.add(rows * keys * 16);
    if (!workspace.take(job)) return;
    const Kernel select = nearest_kernel(job);
    pair_values.prepare(workspace);
    for (std::int64_t first = 0; first < job.x.count; first += rows) {
      const std::int64_t present = std::min(rows, job.x.count - first);
      pair_values.store(workspace, first, present, workspace.at<>(pairs), ld, 0);
      NearestArguments a{};
      a.values = workspace.at<>(pairs);
      a.keys = workspace.at<>(key_place);
      a.value_row = ld;
      a.key_row = keys;
      a.n = job.z.count;
      a.count = count;
      a.out_values = element(values, batch_offset(job.batch, values.batch_strides, index) + first * values.row_stride);
      a.out_indices =
          element(indices, batch_offset(job.batch, indices.batch_strides, index) + first * indices.row_stride);
      a.out_values_row = values.row_stride;
      a.out_values_col = values.col_stride;
      a.out_indices_row = indices.row_stride;
      a.out_indices_col = indices.col_stride;
      launch(select, job, {present}, 256, 0, a);
    }
  }
}

}  // namespace mercer::cuda
