#include "c_api/border.h"

#include <new>

namespace mercer::c_api {
namespace {

struct LastError {
  std::string text;
  const char* shown = "";
};
thread_local LastError last_error;

void remember(const char* text) noexcept {
  try {
    last_error.text = text;
    last_error.shown = last_error.text.c_str();
  } catch (const std::bad_alloc&) {
    last_error.shown = "mercer: the host's memory is exhausted.";
  }
}

mercer_status status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument: return MERCER_INVALID_ARGUMENT;
    case ErrorKind::unsupported: return MERCER_UNSUPPORTED;
    case ErrorKind::compile: return MERCER_COMPILE_FAILED;
    case ErrorKind::device: return MERCER_DEVICE_FAILED;
    case ErrorKind::numerical: return MERCER_NUMERICAL;
  }
  return MERCER_INTERNAL;
}

Dtype dtype_of(const char* op, const char* name, std::int32_t dtype) {
  static_assert(MERCER_FLOAT16 == static_cast<int>(Dtype::float16) && MERCER_INT8 == kDtypeCount - 1,
                "both enumerations have one order");
  require(dtype >= 0 && dtype < kDtypeCount, "{}: the dtype of {} must be a mercer_dtype. Received {}.", op, name,
          dtype);
  return static_cast<Dtype>(dtype);
}

Device device_of(const char* op, const char* name, const mercer_tensor& tensor) {
  if (tensor.device_kind == MERCER_CPU) return {};
  require(tensor.device_kind == MERCER_CUDA, "{}: the device_kind of {} must be a mercer_device_kind. Received {}.", op,
          name, tensor.device_kind);
  require(tensor.device_index >= 0, "{}: the device_index of {} must be at least 0. Received {}.", op, name,
          tensor.device_index);
  return {DeviceKind::cuda, tensor.device_index};
}

/// Strides of a contiguous array. A negative extent, which is refused where all tensors are checked, counts as none.
std::vector<std::int64_t> row_major(const char* op, const char* name, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t step = 1;
  bool fits = true;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = step;
    fits = fits && !__builtin_mul_overflow(step, std::max<std::int64_t>(shape[axis], 0), &step);
  }
  require(fits, "{}: the elements of {} must be counted in 63 bits. Received more.", op, name);
  return strides;
}

}  // namespace

mercer_status failed() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    remember(error.what());
    return status_of(error.kind());
  } catch (const Cancelled& cancelled) {
    remember(cancelled.what());
    return MERCER_CANCELLED;
  } catch (const std::bad_alloc&) {
    remember("mercer: the host's memory is exhausted.");
    return MERCER_OUT_OF_MEMORY;
  } catch (const std::exception& exception) {
    remember(exception.what());
    return MERCER_INTERNAL;
  } catch (...) {
    remember("mercer: an exception of an unknown type was thrown.");
    return MERCER_INTERNAL;
  }
}

Tensor tensor_of(const char* op, const char* name, const mercer_tensor* tensor) {
  const mercer_tensor& from = given(op, name, tensor);
  require(from.ndim >= 0 && from.ndim <= MERCER_TENSOR_MAX_AXES,
          "{}: the ndim of {} must be from 0 to {}. Received {}.", op, name, MERCER_TENSOR_MAX_AXES, from.ndim);
  require(from.ndim == 0 || from.shape != nullptr, "{}: {} must have a shape. Received a null pointer.", op, name);
  Tensor to;
  to.data = from.data;
  to.dtype = dtype_of(op, name, from.dtype);
  to.device = device_of(op, name, from);
  to.shape.assign(from.shape, from.shape + from.ndim);
  if (from.strides == nullptr) to.strides = row_major(op, name, to.shape);
  else to.strides.assign(from.strides, from.strides + from.ndim);
  return to;
}

Queue queue_of(const char* op, const mercer_queue* queue) {
  const mercer_queue from = own_version<mercer_queue>(op, "the queue", queue, MERCER_QUEUE_INIT);
  Queue to;
  to.stream = from.stream;
  if (from.allocate != nullptr)
    to.allocate = [allocate = from.allocate, user = from.user](std::int64_t bytes) { return allocate(user, bytes); };
  return to;
}

ProgressCallback progress_of(mercer_progress callback, void* user) {
  if (callback == nullptr) return {};
  return [=](double done, double total) { return callback(user, done, total) != 0; };
}

void tell_shape(const char* op, const std::vector<std::int64_t>& found, std::int32_t* ndim, std::int64_t* shape) {
  std::int32_t& room = given(op, "ndim", ndim);
  const auto axes = static_cast<std::int32_t>(found.size());
  require(shape == nullptr || room >= axes, "{}: shape must have room for {} axes. Received room for {}.", op, axes,
          room);
  if (shape != nullptr) std::copy(found.begin(), found.end(), shape);
  room = axes;
}

}  // namespace mercer::c_api

const char* mercer_last_error(void) { return mercer::c_api::last_error.shown; }
