// A checked call on arrays of one CUDA device, all batch items of it at once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/rehearsal.h"
#include "core/devices/cuda_driver.h"
#include "ir/expr/expr.h"
#include "mercer/pairwise.h"
#include "plan/gpu/request.h"

namespace mercer::plan {
struct Costs;
}

namespace mercer::cuda {

/// `elements` farther on; null stays null.
inline const void* shifted(const void* data, std::int64_t elements, Dtype dtype) {
  if (data == nullptr) return nullptr;
  return static_cast<const char*>(data) + elements * static_cast<std::int64_t>(size_of(dtype));
}

/// An array and how it steps along the batch axes (elements; 0 where it is broadcast).
struct BatchedArray {
  const void* data = nullptr;
  Dtype dtype = Dtype::float32;
  std::vector<std::int64_t> batch_strides;

  bool steps(std::size_t axis) const { return axis < batch_strides.size() && batch_strides[axis] != 0; }
};

/// Axes of a batch of which an item is taken; the others stay.
class FixedAxes {
 public:
  FixedAxes(std::vector<std::int64_t> batch, std::vector<bool> fixed)
      : batch_(std::move(batch)), fixed_(std::move(fixed)) {}
  std::int64_t items() const;
  /// What the axes that stay have of `axes`.
  std::vector<std::int64_t> rest(const std::vector<std::int64_t>& axes) const { return of(axes, false); }
  std::int64_t offset(const std::vector<std::int64_t>& strides, std::int64_t index) const;
  BatchedArray at(const BatchedArray& array, std::int64_t index) const;

 private:
  std::vector<std::int64_t> of(const std::vector<std::int64_t>& axes, bool fixed) const;

  std::vector<std::int64_t> batch_;
  std::vector<bool> fixed_;
};

/// Points [count, features] and a value per point.
struct JobSide {
  BatchedArray points;
  std::int64_t count = 0, point_stride = 0, feature_stride = 0;
  BatchedArray user;  // data is null where nothing was given
  std::int64_t user_stride = 0;
  std::int64_t index_offset = 0;
};

struct JobParam {
  Expr leaf;
  double number = 0;
  BatchedArray array;    // data is null for a number
  bool on_device = false;
  bool is_number() const { return array.data == nullptr; }
};

using plan::kPartBytes;

struct PairJob {
  const char* op = "";
  int device = 0;
  const Queue* queue = nullptr;
  std::vector<std::int64_t> batch;
  std::int64_t items = 1;
  JobSide x, z;
  std::int64_t features = 0;
  BatchedArray weights;  // [K]
  std::int64_t weight_stride = 0;
  std::vector<JobParam> params;
  Dtype type = Dtype::float32;  // computing type
  bool same_points = false;
  std::int64_t part_bytes = kPartBytes;  // of pair values that are stored at once for a second kernel
  const plan::Costs* own_costs = nullptr;  // in place of those of the device's capability

  CuStream stream() const { return static_cast<CuStream>(queue->stream); }
  Rehearsal* rehearsal() const { return queue->rehearsal; }
  /// The device that the call is planned for, and what ways cost there.
  const CudaDevice& hardware() const;
  const plan::Costs& costs() const;

  /// One batch item of it, as a job without batch axes.
  PairJob item(std::int64_t index) const;
  /// The job with some axes at their item `index`; the others stay.
  PairJob at(const FixedAxes& axes, std::int64_t index) const;
  const JobParam& param(const Expr& leaf) const;
};

/// What launches and scratch memory ask of a call that is not of pairs; the queue must outlive it.
PairJob place_of(const char* op, Device device, const Queue& queue, Dtype type);

/// Sets words of the device's memory in the stream of a call; nothing in a rehearsal, which may be without a driver.
void fill_words(const PairJob& job, const void* at, std::int64_t count, unsigned value = 0);

/// The device is current on this thread while it lives; not in a rehearsal, whose device need not be there.
class JobScope {
 public:
  explicit JobScope(const PairJob& job) {
    if (job.rehearsal() == nullptr) scope_.emplace(job.device);
  }

 private:
  std::optional<CudaScope> scope_;
};

/// Offset of a batch item in an array, in elements.
std::int64_t batch_offset(const std::vector<std::int64_t>& batch, const std::vector<std::int64_t>& strides,
                          std::int64_t item);

/// A strided matrix to write: [rows, columns] of every batch item.
struct JobMatrix {
  void* data = nullptr;
  Dtype dtype = Dtype::float32;
  std::int64_t row_stride = 0, col_stride = 0;
  std::vector<std::int64_t> batch_strides;

  JobMatrix at(const FixedAxes& axes, std::int64_t index) const;
};

/// A strided matrix to read, likewise.
struct JobOperand {
  BatchedArray array;
  std::int64_t row_stride = 0, col_stride = 0;
};

/// Whether 16 bytes can be read at once along an axis of stride `along`, whose lines are `across` elements apart.
inline bool has_whole_lines(const BatchedArray& array, std::int64_t along, std::int64_t across) {
  constexpr std::int64_t kBytes = 16;
  return along == 1 && across * static_cast<std::int64_t>(size_of(array.dtype)) % kBytes == 0 &&
         reinterpret_cast<std::uintptr_t>(array.data) % kBytes == 0;
}

}  // namespace mercer::cuda
