#include "backend/cuda/gradient/stored_sums.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kRowsOfBlock = 32, kRange = 2048;

}  // namespace

StoredSumsLaunch::StoredSumsLaunch(const PairKernels& kernels, const PairJob& job, const FieldJob& operands,
                                   std::int64_t rows, const PlainPanel& row_factors, const PlainPanel& column_factors,
                                   Workspace& workspace)
    : kernels_(kernels),
      plan_(*kernels.plan->problem.gradient.stored_sums),
      job_(job),
      operands_(operands),
      row_factors_(row_factors),
      column_factors_(column_factors),
      params_({&plan_.split.params, &plan_.uniforms, plan_.split.uniforms.size()}, job, workspace),
      size_(static_cast<std::int64_t>(size_of(job.type))),
      ranges_(std::max<std::int64_t>(1, ceil_div(job.z.count, kRange))),
      ld_(rows),
      partial_(workspace.add(ranges_ * plan_.states() * rows * size_)) {}

StoredSumArguments StoredSumsLaunch::arguments(const StoredPlanes& planes, std::int64_t first, std::int64_t rows,
                                               const Workspace& workspace) const {
  const auto result = [&](const FieldJob::ExtraOutput& of, std::int64_t row_stride) -> void* {
    return of.data == nullptr ? nullptr : static_cast<char*>(of.data) + first * row_stride * size_;
  };
  StoredSumArguments a{};
  a.planes = planes.values;
  a.weights = planes.weights;
  a.row_values = planes.row_values;
  a.col_values = planes.col_values;
  a.row = planes.row;
  a.plane = planes.plane;
  a.single = workspace.at<>(column_factors_.place);
  a.row_weights = workspace.at<char>(row_factors_.place) + first * size_;
  a.partial = workspace.at<>(partial_);
  a.m = rows;
  a.n = job_.z.count;
  a.columns_ld = column_factors_.ld;
  a.partial_ld = ld_;
  a.ranges = ranges_;
  a.sums = result(operands_.sums, operands_.sums.second_stride);
  a.sums_first = operands_.sums.first_stride;
  a.sums_row = operands_.sums.second_stride;
  a.product = result(operands_.product, operands_.product.first_stride);
  a.product_row = operands_.product.first_stride;
  a.product_column = operands_.product.second_stride;
  a.features = static_cast<double>(job_.features);
  params_.write_narrow(a.params, a.numbers, workspace);
  return a;
}

void StoredSumsLaunch::run(const StoredPlanes& planes, std::int64_t first, std::int64_t rows, bool adds,
                           const Workspace& workspace) const {
  StoredSumArguments a = arguments(planes, first, rows, workspace);
  a.adds = adds ? 1 : 0;
  const std::int64_t columns = plan_.product ? operands_.outputs : 1;
  for (std::int64_t from = 0; from < columns; from += plan_.columns) {
    a.count = plan_.product ? static_cast<int>(std::min<std::int64_t>(plan_.columns, columns - from)) : 0;
    a.stores = from + plan_.columns >= columns ? 1 : 0;
    a.columns = workspace.at<char>(column_factors_.place) + from * column_factors_.ld * size_;
    launch(kernels_.common.stored_sums, job_, {ceil_div(rows, kRowsOfBlock), ranges_}, kThreads, 0, a);
    launch(sibling(kernels_.common.stored_sums, "add_ranges", job_), job_, {ceil_div(rows, kThreads), plan_.states()},
           kThreads, 0, a);
    if (plan_.product) a.product = static_cast<char*>(a.product) + plan_.columns * a.product_column * size_;
  }
}

}  // namespace mercer::cuda
