#include "backend/cuda/gradient/linear_doubles.h"

#include <algorithm>

#include "backend/cuda/runtime/ranges.h"
#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kWarps = kThreads / 32, kPadding = 64, kDouble = sizeof(double);

}  // namespace

LinearDoubles::LinearDoubles(const FieldKernels& kernels, const PairJob& job, std::int64_t outputs, std::int64_t rows,
                             Workspace& workspace)
    : kernels_(kernels), plan_(*kernels.plan), job_(job), rows_(rows), ld_(round_up(job.z.count, kPadding)) {
  const std::int64_t k = job.features;
  const plan::LinearSizes sizes =
      plan::double_sizes(job.x.count, job.z.count, k, outputs, plan_.problem.planes, job.part_bytes);
  if (k > 0) pass_ = std::min<std::int64_t>(plan_.linear_outputs(), sizes.columns / k);
  const std::int64_t tiles =
      ceil_div(rows, std::int64_t{plan::kDoubleRows}) * ceil_div(pass_ * k, plan_.problem.stored.columns_of_doubles);
  const std::int64_t slices = ceil_div(job.z.count, std::int64_t{plan::kDoubleSlice});
  if (tiles > 0 && slices > 0)
    splits_ = choose_splits({tiles, slices, plan::kDoubleSlice, std::int64_t{2} * job.hardware().multiprocessors});
  refused_ = workspace.add(sizeof(unsigned));
  centre_ = workspace.add(k * kDouble);
  lengths_ = workspace.add(ld_ * kDouble);
  columns_ = workspace.add(pass_ * k * ld_ * kDouble);
  if (!plan_.has_plain_amplitude()) amplitudes_ = workspace.add(rows * ld_ * kDouble);
  row_largest_ = workspace.add(rows * kDouble);
  row_sums_ = workspace.add(pass_ * rows * kDouble);
  row_spread_ = workspace.add(pass_ * rows * kDouble);
  products_ = workspace.add(splits_ * rows * pass_ * k * kDouble);
  marks_ = workspace.add(rows * ceil_div(k, MERCER_REGION));
}

LinearDoublesArguments LinearDoubles::arguments(const FieldArguments& field, std::int64_t output,
                                                const Workspace& workspace) const {
  LinearDoublesArguments a{};
  a.field = field;
  a.coefs = coefs_ + output * coefs_ld_;
  a.centre = workspace.at<double>(centre_);
  a.lengths = workspace.at<double>(lengths_);
  a.columns = workspace.at<double>(columns_);
  a.amplitudes = plan_.has_plain_amplitude() ? nullptr : workspace.at<double>(amplitudes_);
  a.row_largest = workspace.at<double>(row_largest_);
  a.row_sums = workspace.at<double>(row_sums_);
  a.row_spread = workspace.at<double>(row_spread_);
  a.products = workspace.at<double>(products_);
  a.refused = workspace.at<unsigned>(refused_);
  a.marks = workspace.at<unsigned char>(marks_);
  a.coefs_ld = coefs_ld_;
  a.ld = ld_;
  a.rows_ld = rows_;
  a.x_row = x_.step;
  a.products_ld = pass_ * job_.features;
  a.products_split = rows_ * a.products_ld;
  a.splits = static_cast<int>(splits_);
  return a;
}

void LinearDoubles::launch_step(const char* name, std::int64_t blocks, LinearDoublesArguments& a) const {
  launch(sibling(kernels_.contraction.linear, name, job_), job_, {blocks}, kThreads, 0, a);
}

void LinearDoubles::prepare(const FieldArguments& all, const PlainPanel& coefs, const PointRows& x,
                            const Workspace& workspace) {
  all_ = all;
  x_ = x;
  coefs_ = workspace.at<double>(coefs.place);
  coefs_ld_ = coefs.ld;
}

void LinearDoubles::write_columns(std::int64_t outputs, std::int64_t output, const Workspace& workspace) const {
  LinearDoublesArguments a = arguments(all_, output, workspace);
  a.field.outputs = static_cast<int>(outputs);
  launch_step("find_centre", ceil_div(job_.features, kWarps), a);
  launch_step("examine_columns", ceil_div(job_.features + outputs, kWarps), a);
  if (plan_.of_differences()) launch_step("weigh_points", ceil_div(job_.z.count, 32), a);
  launch_step("write_columns", outputs * job_.features, a);
}

/// Amplitudes times the columns.
void LinearDoubles::multiply(const LinearDoublesArguments& a, const Workspace& workspace) const {
  FieldArguments product = a.field;
  if (a.amplitudes != nullptr) {
    product.pair = a.amplitudes;
    product.pair_row = a.ld;
  }
  product.z = a.columns;
  product.z_ld = a.ld;
  product.k = static_cast<int>(a.field.outputs * job_.features);
  product.out = workspace.at<>(products_);
  product.out_row = a.products_ld;
  product.out_feature = 1;
  product.out_split = a.products_split;
  const int columns = plan_.problem.stored.columns_of_doubles;
  launch(kernels_.contraction.linear_tile, job_,
         {ceil_div(product.k, columns), ceil_div(product.m, std::int64_t{plan::kDoubleRows}), splits_}, kThreads,
         plan::doubles_shared_bytes(columns), product);
}

void LinearDoubles::run(const FieldArguments& part, std::int64_t first, std::int64_t output,
                        const Workspace& workspace) {
  if (written_ != output) {
    write_columns(part.outputs, output, workspace);
    written_ = output;
  }
  LinearDoublesArguments a = arguments(part, output, workspace);
  a.x_rows = static_cast<const double*>(x_.points) + first * x_.step;
  launch_step("examine_rows", ceil_div(part.m, kWarps), a);
  multiply(a, workspace);
  launch_step("finish_rows", ceil_div(part.m, kWarps), a);
}

}  // namespace mercer::cuda
