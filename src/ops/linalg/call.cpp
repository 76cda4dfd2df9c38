#include "ops/linalg/call.h"

#include <algorithm>
#include <cmath>

#include "core/dtype_error.h"
#include "core/error.h"
#include "ops/context.h"

namespace mercer::ops {
namespace {

void check_type(const char* op, const char* name, const Tensor& tensor) {
  require_dtype(tensor.dtype == Dtype::float32 || tensor.dtype == Dtype::float64,
                "{}: {} must be float32 or float64. Received {}.", op, name, name_of(tensor.dtype));
}

std::int64_t count_of(const char* op, const Shape& extents) {
  std::int64_t count = 1;
  for (const std::int64_t extent : extents) {
    const bool fits = !__builtin_mul_overflow(count, extent, &count);
    require(fits, "{}: the batch is too large. Received {}.", op, text_of(extents));
  }
  return count;
}

/// The position of an item in the batch: " (1, 2)"; nothing where there is no batch.
std::string place_of(std::int64_t index, const Shape& batch) {
  if (batch.empty()) return "";
  Shape at(batch.size());
  for (std::size_t axis = batch.size(); axis-- > 0;) {
    at[axis] = index % batch[axis];
    index /= batch[axis];
  }
  return " " + text_of(at).to_text();
}

}  // namespace

DenseCall::DenseCall(const char* op, const char* name, const Tensor& a, const linalg::Options& options,
                     Matrices matrices)
    : a_(a), a_name_(name), options_(options) {
  job_.op = options.verb != nullptr ? options.verb : op;
  job_.type = a.dtype;
  job_.device = a.device.index;
  job_.queue = &options_.queue;
  job_.lower = options.lower;
  job_.jitter = options.jitter;
  const bool is_any = matrices == Matrices::any;
  require(a.ndim() >= 2 && (is_any || a.shape[a.ndim() - 1] == a.shape[a.ndim() - 2]),
          "{}: {} must have the shape [..., {}, n]. Received {}.", job_.op, name, is_any ? "m" : "n", text_of(a.shape));
  check_type(job_.op, name, a);
  check_layout(job_.op, name, a);
  job_.rows = a.shape[a.ndim() - 2];
  job_.cols = a.shape.back();
  job_.order = std::min(job_.rows, job_.cols);
  a_batch_ = batch_ = leading(a, 2);
  inputs_.emplace_back(name, &a_);
  for (const double amount : job_.jitter)
    require(std::isfinite(amount) && amount > 0, "{}: jitter must be positive and finite. Received {}.", job_.op,
            amount);
}

void DenseCall::right_hand_side(const Tensor& b) {
  check_type(op(), "b", b);
  check_layout(op(), "b", b);
  require_dtype(b.dtype == type(), "{}: b must have the dtype of {}, {}. Received {}.", op(), a_name_, name_of(type()),
                name_of(b.dtype));
  require(b.device == a_.device, "{}: b must lie on the device of {}, {}. Received one on {}.", op(), a_name_,
          a_.device, b.device);
  is_vector_ = b.ndim() == 1;
  const int axis = b.ndim() - (is_vector_ ? 1 : 2);
  require(b.ndim() >= 1 && b.shape[axis] == order(),
          "{}: b must have the shape [..., n, k] or [n], n = {} as in {}. Received {}.", op(), order(), a_name_,
          text_of(b.shape));
  if (!is_vector_) batch_ = broadcast(op(), batch_, leading(b, 2));
  inputs_.emplace_back("b", &b);
}

Shape DenseCall::of_columns(std::int64_t rows) const {
  Shape shape = batch_;
  if (rows >= 0) shape.push_back(rows);
  if (!is_vector_) shape.push_back(inputs_.back().second->shape.back());
  return shape;
}

void DenseCall::input(const char* name, const Tensor& tensor, Dtype dtype, const Shape& rest) {
  Shape expected = a_batch_;
  expected.insert(expected.end(), rest.begin(), rest.end());
  require_dtype(tensor.dtype == dtype, "{}: {} must be {}. Received {}.", op(), name, name_of(dtype),
                name_of(tensor.dtype));
  require(tensor.shape == expected, "{}: {} must have shape {}. Received {}.", op(), name, text_of(expected),
          text_of(tensor.shape));
  require(tensor.device == a_.device, "{}: {} must lie on the device of {}, {}. Received one on {}.", op(), name,
          a_name_, a_.device, tensor.device);
  check_layout(op(), name, tensor);
  inputs_.insert(inputs_.begin() + 1, {name, &tensor});  // b stays the last
}

void DenseCall::output(const char* name, const Tensor& out, Dtype dtype, const Shape& expected,
                       const Tensor* in_place_of) {
  require(out.shape == expected, "{}: {} must have shape {}. Received {}.", op(), name, text_of(expected),
          text_of(out.shape));
  require_dtype(out.dtype == dtype, "{}: {} must be {}. Received {}.", op(), name, name_of(dtype), name_of(out.dtype));
  require(out.device == a_.device, "{}: {} must lie on the device of {}, {}. Received one on {}.", op(), name, a_name_,
          a_.device, out.device);
  check_layout(op(), name, out);
  require(out.count() == 0 || !overlaps_itself(out), "{}: no two elements of {} may share memory. Received strides {}.",
          op(), name, text_of(out.strides));
  for (const auto& [other_name, other] : inputs_) {
    const bool in_place = other == in_place_of && same_view(out, *other);
    require(in_place || other == &out || !overlap(out, *other),
            "{}: {} must not overlap {}. Received {} sharing memory with {}.", op(), name, other_name, out, *other);
  }
  for (const auto& [other_name, other] : outputs_)
    require(!overlap(out, *other), "{}: {} must not overlap {}. Received {} sharing memory with {}.", op(), name,
            other_name, out, *other);
  outputs_.emplace_back(name, &out);
}

bool DenseCall::overwrites_a() {
  if (!options_.overwrite_a) return false;
  output(a_name_, a_, type(), a_.shape);
  return true;
}

void DenseCall::take_choices(Context& context) {
  job_.costs = context.state().costs_on(a_.device, options_.queue).dense;
}

/// a varies along the axes that it has, unless its extent there is 1 and that of the batch is not.
void DenseCall::split_batch() {
  const std::size_t added = batch_.size() - a_batch_.size();
  is_outer_.assign(batch_.size(), false);
  for (std::size_t axis = 0; axis < batch_.size(); ++axis) {
    is_outer_[axis] = axis >= added && a_batch_[axis - added] == batch_[axis];
    (is_outer_[axis] ? job_.outer : job_.inner).push_back(batch_[axis]);
  }
  job_.matrices = count_of(op(), job_.outer);
  job_.repeats = count_of(op(), job_.inner);
}

DenseArray DenseCall::array(const Tensor& tensor, int trailing) const {
  DenseArray array;
  array.data = static_cast<char*>(tensor.data);
  array.dtype = tensor.dtype;
  const int axes = tensor.ndim();
  array.rows = trailing > 0 ? tensor.shape[axes - trailing] : 1;
  array.cols = trailing > 1 ? tensor.shape[axes - 1] : 1;
  array.row_stride = trailing > 0 ? tensor.strides[axes - trailing] : 1;
  array.col_stride = trailing > 1 ? tensor.strides[axes - 1] : 1;
  const Shape strides = batch_strides(tensor, trailing, batch_);
  for (std::size_t axis = 0; axis < batch_.size(); ++axis)
    (is_outer_[axis] ? array.outer_strides : array.inner_strides).push_back(strides[axis]);
  return array;
}

DenseArray DenseCall::values(const Tensor& tensor) const {
  DenseArray values = array(tensor, is_vector_ ? 0 : 1);
  if (is_vector_) return values;
  std::swap(values.rows, values.cols);
  std::swap(values.row_stride, values.col_stride);
  return values;
}

cpu::DenseTools DenseCall::tools(Context& context) const {
  const Lapack& lapack = need_lapack(op());
  for (const auto* arrays : {&inputs_, &outputs_}) {
    for (const auto& [name, tensor] : *arrays) {
      for (int axis = std::max(0, tensor->ndim() - 2); axis < tensor->ndim(); ++axis) {
        if (std::max(tensor->shape[axis], std::abs(tensor->strides[axis])) <= lapack.largest_size()) continue;
        fail(ErrorKind::unsupported,
             "{}: extents and strides of {} must be at most {} with this LAPACK, whose integers have 32 bits ({}). "
             "Received shape {}, strides {}.",
             op(), name, lapack.largest_size(), lapack.file(), text_of(tensor->shape), text_of(tensor->strides));
      }
    }
  }
  return {lapack, context.state().pool};
}

void DenseCall::throw_for(const std::vector<std::int64_t>& info, Failure failure) const {
  const auto first = std::find_if(info.begin(), info.end(), [](std::int64_t value) { return value != 0; });
  if (first == info.end()) return;
  const std::int64_t failed = std::count_if(info.begin(), info.end(), [](std::int64_t value) { return value != 0; });
  std::string which = a_batch_.empty() ? "one" : "item" + place_of(first - info.begin(), a_batch_);
  if (failed > 1) which += fmt::format(" ({} of {} failed)", failed, info.size());
  if (*first == kNotFinite)
    fail(ErrorKind::numerical, "{}: {} must be finite. Received {} with NaN or infinity.", op(), a_name_, which);
  if (failure == Failure::not_positive) {
    const std::string advice =
        job_.jitter.empty() ? "; jitter adds to the diagonal" : fmt::format(", with jitter {} too", job_.jitter.back());
    fail(ErrorKind::numerical,
         "{}: {} must be positive definite. Received {} whose leading minor of order {} is not{}.", op(), a_name_,
         which, *first, advice);
  }
  if (failure == Failure::singular)
    fail(ErrorKind::numerical, "{}: {} must not be singular. Received {} whose pivot {} is zero.", op(), a_name_, which,
         *first);
  fail(ErrorKind::numerical, "{}: the eigenvalues of {} must converge. Received {} of which {} did not.", op(), a_name_,
       which, *first);
}

}  // namespace mercer::ops
