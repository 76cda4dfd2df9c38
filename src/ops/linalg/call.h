// What the verbs of linear algebra share: checks of their arrays, the batch, what is thrown for a matrix that failed.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "backend/cpu/linalg/dense.h"
#include "backend/cuda/linalg/dense.h"
#include "backend/dense_job.h"
#include "mercer/linalg.h"
#include "ops/call/call.h"
#include "ops/context.h"

namespace mercer::ops {

/// What a positive info means for the matrices of a call.
enum class Failure : std::uint8_t { not_positive, singular, no_convergence };

/// One call: arrays are checked as they are named, inputs first; then `run`.
class DenseCall {
 public:
  enum class Matrices : std::uint8_t { square, any };
  /// `name` is that of the matrices in messages.
  DenseCall(const char* op, const char* name, const Tensor& a, const linalg::Options& options,
            Matrices matrices = Matrices::square);

  const char* op() const { return job_.op; }
  std::int64_t order() const { return job_.order; }
  Dtype type() const { return job_.type; }
  /// The leading axes of a; with those of b broadcast against them.
  const Shape& a_batch() const { return a_batch_; }
  const Shape& batch() const { return batch_; }
  /// The shape of what is computed for each column of b: batch, `rows` unless negative, columns unless b is a vector.
  Shape of_columns(std::int64_t rows) const;

  /// b [..., n, k] or [n]; the batch is known from then on.
  void right_hand_side(const Tensor& b);
  /// Another input with the leading axes of a, such as pivots.
  void input(const char* name, const Tensor& tensor, Dtype dtype, const Shape& rest);
  /// An output of this shape; `in_place_of`: the input whose very view it may be.
  void output(const char* name, const Tensor& out, Dtype dtype, const Shape& expected,
              const Tensor* in_place_of = nullptr);
  /// a becomes scratch memory when the options say so.
  bool overwrites_a();

  /// A tensor along the axes of the batch; `trailing` axes belong to each item.
  DenseArray array(const Tensor& tensor, int trailing) const;
  DenseArray a() const { return array(a_, 2); }
  /// b or x, or one value for each of their columns.
  DenseArray columns(const Tensor& tensor) const { return array(tensor, is_vector_ ? 1 : 2); }
  DenseArray values(const Tensor& tensor) const;

  /// on_cpu(job, info, tools) or on_cuda(job, info), unless nothing is left to do; then throws for matrices that
  /// failed, if it should.
  template <class OnCpu, class OnCuda>
  void run(Failure failure, Context& context, const OnCpu& on_cpu, const OnCuda& on_cuda);
  /// As `run` above, for a call without info: on_cpu(job, tools) or on_cuda(job).
  template <class OnCpu, class OnCuda>
  void run(Context& context, const OnCpu& on_cpu, const OnCuda& on_cuda);

 private:
  bool on_cuda() const { return a_.device.kind == DeviceKind::cuda; }
  /// Checked, and there is nothing to compute.
  bool ends_checked() const { return job_.matrices == 0 || (!on_cuda() && options_.queue.rehearsal != nullptr); }
  cpu::DenseTools tools(Context& context) const;
  void throw_for(const std::vector<std::int64_t>& info, Failure failure) const;
  void split_batch();
  /// Where the context says which way to go.
  void take_choices(Context& context);

  const Tensor& a_;
  const char* a_name_;
  const linalg::Options& options_;
  DenseJob job_;
  Shape a_batch_, batch_;
  std::vector<bool> is_outer_;  // of each axis of the batch: a varies along it
  bool is_vector_ = false;
  std::vector<std::pair<const char*, const Tensor*>> inputs_, outputs_;
  std::vector<std::int64_t> own_info_;
};

/// How many eigenvalues are wanted; throws for a subset out of range.
std::int64_t check_subset(const DenseCall& call, const std::optional<linalg::Subset>& subset);

template <class OnCpu, class OnCuda>
void DenseCall::run(Failure failure, Context& context, const OnCpu& on_cpu, const OnCuda& on_cuda_device) {
  if (options_.info != nullptr) output("info", *options_.info, Dtype::int64, a_batch_);
  split_batch();
  if (ends_checked()) return;
  take_choices(context);
  if (on_cuda()) {
    if (options_.info != nullptr) return on_cuda_device(job_, cuda::DenseInfo{array(*options_.info, 0), nullptr});
    on_cuda_device(job_, cuda::DenseInfo{{}, &own_info_});
    return throw_for(own_info_, failure);
  }
  const cpu::DenseTools used = tools(context);
  if (options_.info != nullptr) return on_cpu(job_, array(*options_.info, 0), used);
  own_info_.assign(static_cast<std::size_t>(job_.matrices), 0);
  on_cpu(job_, array(Tensor(own_info_.data(), Dtype::int64, a_batch_), 0), used);
  throw_for(own_info_, failure);
}

template <class OnCpu, class OnCuda>
void DenseCall::run(Context& context, const OnCpu& on_cpu, const OnCuda& on_cuda_device) {
  split_batch();
  if (ends_checked()) return;
  take_choices(context);
  if (on_cuda()) return on_cuda_device(job_);
  on_cpu(job_, tools(context));
}

}  // namespace mercer::ops
