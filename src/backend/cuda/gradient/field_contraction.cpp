#include "backend/cuda/gradient/field_contraction.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kFieldThreads = 256, kSlice = 32, kMostSplits = 64;

}  // namespace

FieldContraction::FieldContraction(const FieldKernels& kernels, const PairJob& job, const FieldResult& result,
                                   std::int64_t outputs, const FieldRows& rows, const RangePlace& range,
                                   Workspace& workspace)
    : kernels_(kernels), plan_(*kernels.plan), job_(job), result_(result), outputs_(outputs), rows_(rows),
      range_(range), workspace_(workspace), size_(static_cast<std::int64_t>(size_of(job.type))) {
  if (plan_.products) products_.emplace(kernels, job, outputs, rows.operands, workspace);
  if (plan_.linear) linear_.emplace(kernels, job, rows.part, workspace);
  if (plan_.doubles) doubles_.emplace(kernels, job, outputs, rows.part, workspace);
  if (plan_.problem.stored.tile) stored_.emplace(kernels, job, rows.part, workspace);
  splits_ = choose_splits();
  pass_ = products_  ? products_->pass()
          : linear_  ? linear_->pass()
          : doubles_ ? doubles_->pass()
                     : plan_.problem.outputs;
  if (!stored_ && (is_partial() || range.several))
    partial_ = workspace.add(splits_ * pass_ * rows.part * job.features * size_);
}

/// Ranges of n, when rows and features alone do not fill the device; of what a linear factor leaves there are none, and
/// none of a fold, whose states follow one n after the other.
std::int64_t FieldContraction::choose_splits() const {
  if (linear_ || doubles_ || stored_ || plan_.folds()) return 1;
  const std::int64_t blocks = products_
                                  ? products_->blocks(rows_.part)
                                  : ceil_div(rows_.part, plan_.tile_r()) * ceil_div(job_.features, plan_.tile_f());
  const std::int64_t wanted = std::int64_t{2} * job_.hardware().multiprocessors;
  const std::int64_t slices = ceil_div(job_.z.count, kSlice);
  if (blocks == 0 || blocks * 2 > wanted) return 1;
  return std::clamp<std::int64_t>(wanted / blocks, 1, std::clamp<std::int64_t>(slices / 16, 1, kMostSplits));
}

void FieldContraction::prepare(const FieldArguments& all, const PlainPanel& coefs, const PointRows& x) {
  if (linear_) linear_->prepare(all, coefs, x, workspace_);
  if (doubles_) doubles_->prepare(all, coefs, x, workspace_);
}

void FieldContraction::prepare_rows(const FieldArguments& rows) const {
  if (products_) products_->prepare(rows, workspace_);
}

void FieldContraction::run(const FieldArguments& part, std::int64_t first) {
  for (std::int64_t output = 0; output < outputs_; output += pass_) {
    FieldArguments all = part;
    all.coef = static_cast<const char*>(part.coef) + output * size_;
    all.outputs = static_cast<int>(std::min(pass_, outputs_ - output));
    contract(all, first, output);
  }
}

void FieldContraction::contract(FieldArguments all, std::int64_t first, std::int64_t output) {
  char* const out =
      static_cast<char*>(result_.data) + (output * result_.output_stride + first * result_.row_stride) * size_;
  all.out = is_partial() ? workspace_.at<>(partial_) : out;
  all.out_output = is_partial() ? all.m * job_.features : result_.output_stride;
  all.out_row = is_partial() ? job_.features : result_.row_stride;
  all.out_feature = is_partial() ? 1 : result_.feature_stride;
  all.out_split = all.outputs * all.m * job_.features;
  if (stored_) return stored_->run(all, range_.adds, workspace_);
  if (linear_) linear_->run(all, first, output, workspace_);
  if (doubles_) doubles_->run(all, first, output, workspace_);
  const unsigned char* left = linear_    ? linear_->marks(workspace_)
                              : doubles_ ? doubles_->marks(workspace_)
                                         : nullptr;
  if (products_) products_->run(all, first % products_->rows(), output / pass_, splits_, left, workspace_);
  launch_field(all, first, left);
  if (is_partial()) add_up(all, out);
}

void FieldContraction::launch_field(const FieldArguments& all, std::int64_t first, const unsigned char* left) const {
  for (std::int64_t o = 0; o < all.outputs; o += plan_.problem.outputs) {
    FieldArguments a = all;
    a.coef = static_cast<const char*>(all.coef) + o * size_;
    a.out = static_cast<char*>(all.out) + o * all.out_output * size_;
    a.outputs = static_cast<int>(std::min<std::int64_t>(plan_.problem.outputs, all.outputs - o));
    a.marks = products_ ? products_->marks(first % products_->rows(), workspace_) : left;
    launch(kernels_.field, job_, {ceil_div(job_.features, plan_.tile_f()), ceil_div(all.m, plan_.tile_r()), splits_},
           kFieldThreads, plan_.shared_bytes(job_.z.count), a);
  }
}

void FieldContraction::add_up(const FieldArguments& all, void* out) const {
  SumArguments sum{workspace_.at<>(partial_),
                   out,
                   all.m,
                   job_.features,
                   all.out_split,
                   result_.output_stride,
                   result_.row_stride,
                   result_.feature_stride,
                   all.outputs,
                   static_cast<int>(splits_),
                   range_.adds};
  launch(sum_splits(job_), job_, {ceil_div(all.out_split, 256)}, 256, 0, sum);
}

}  // namespace mercer::cuda
