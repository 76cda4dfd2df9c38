#include "queues.h"

#include <fmt/format.h>

#include <algorithm>

#include "calls.h"
#include "core/devices/cuda_driver.h"

namespace mercer::python {
namespace {

constexpr std::uintptr_t kAlignment = 256;

/// The legacy default stream has two names, 0 and 1.
void* to_stream(std::uintptr_t handle) { return handle == 1 ? nullptr : reinterpret_cast<void*>(handle); }

void* current_stream(const Array& x) {
  const Library& library = x.library();
  const int device = x.tensor().device.index;
  if (library.exchange != nullptr && library.exchange->current_stream != nullptr) {
    void* stream = nullptr;
    if (library.exchange->current_stream(kDLCUDA, device, &stream) == 0) return stream;
    if (PyErr_Occurred()) throw nb::python_error();
    throw Error(ErrorKind::device, fmt::format("{}: {} must have a current stream on {}. Received none.",
                                               x.place().verb, library.name, x.tensor().device.to_text()));
  }
  switch (library.kind) {
    case Library::Kind::torch: return to_stream(nb::cast<std::uintptr_t>(library.stream_of(device)));
    case Library::Kind::cupy: {
      const CupyDevice current(library, device);
      return to_stream(nb::cast<std::uintptr_t>(library.stream_of().attr("ptr")));
    }
    default: return to_stream(x.producer_stream().value_or(0));
  }
}

/// Work put into `later` from now on starts after what is in `earlier` so far. Nobody waits on the host.
void order_streams(int device, void* earlier, void* later) {
  const CudaDriver& driver = need_cuda("streams");
  const CudaScope current(device);
  CuEvent event = nullptr;
  check_cuda(driver.event_create(&event, kCuEventNoTiming), "streams");
  const int recorded = driver.event_record(event, static_cast<CuStream>(earlier));
  const int waited = recorded == kCuSuccess ? driver.stream_wait(static_cast<CuStream>(later), event, 0) : kCuSuccess;
  driver.event_destroy(event);  // the driver keeps it until the wait is over
  check_cuda(recorded, "streams");
  check_cuda(waited, "streams");
}

}  // namespace

CallQueue::~CallQueue() {
  if (managed_ != nullptr && managed_->deleter != nullptr) managed_->deleter(managed_);
}

Queue CallQueue::open(const Array& x) {
  x_ = &x;
  stream_ = current_stream(x);
  if (workspace_ && Measuring::current() == nullptr) wait_for(*workspace_);
  Queue queue{stream_};
  const Library& library = x.library();
  const bool allocates = library.exchange != nullptr || library.kind != Library::Kind::other;
  if (allocates || workspace_) queue.allocate = [this](std::int64_t bytes) { return allocate(bytes); };
  return queue;
}

void CallQueue::use_workspace(nb::handle workspace, const Array& x) {
  const Place place{x.place().verb, "workspace"};
  workspace_.emplace(workspace, place, Access::write);
  workspace_->require_same_library(x);
  workspace_->require_same_device(x);
  const Tensor& memory = workspace_->tensor();
  if (memory.dtype == Dtype::uint8 && memory.ndim() == 1 && (memory.strides[0] == 1 || memory.count() <= 1)) return;
  const std::string message =
      fmt::format("{}: workspace must be a contiguous array of uint8 with one axis. Received {}{}.", place.verb,
                  memory.to_text(), memory.ndim() == 1 && memory.strides[0] != 1 ? ", not contiguous" : "");
  if (memory.dtype != Dtype::uint8) throw DtypeError(message);
  throw Error(ErrorKind::invalid_argument, message);
}

void CallQueue::wait_for(const Array& array) {
  if (!array.producer_stream()) return;
  void* const stream = to_stream(*array.producer_stream());
  if (stream == stream_ || std::find(other_streams_.begin(), other_streams_.end(), stream) != other_streams_.end()) {
    return;
  }
  order_streams(array.tensor().device.index, stream, stream_);
  other_streams_.push_back(stream);
}

void CallQueue::release_streams() {
  for (void* stream : other_streams_) order_streams(x_->tensor().device.index, stream_, stream);
}

void* CallQueue::allocate(std::int64_t bytes) {
  if (workspace_) return workspace_memory(bytes, kAlignment);
  if (bytes == 0) return nullptr;
  const Library& library = x_->library();
  if (library.kind == Library::Kind::torch && library.exchange != nullptr) return exchange_memory(bytes);  // no GIL
  const Locked locked;
  if (library.kind == Library::Kind::other) return exchange_memory(bytes);
  return library_memory(bytes);
}

void* CallQueue::workspace_memory(std::int64_t bytes, std::uintptr_t alignment) const {
  const Tensor& memory = workspace_->tensor();
  const char* verb = workspace_->place().verb;
  if (memory.count() < bytes) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: workspace must have at least {} bytes. Received {}.", verb, bytes, memory.count()));
  }
  const std::uintptr_t excess = reinterpret_cast<std::uintptr_t>(memory.data) % alignment;
  if (excess != 0 && bytes != 0) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: workspace must start at a multiple of {} bytes. Received one {} bytes after.", verb,
                            alignment, excess));
  }
  return memory.data;
}

/// Takes memory from the library's C table. It goes back with the call: a caching allocator hands it out again to work
/// after ours in the same stream.
void* CallQueue::exchange_memory(std::int64_t bytes) {
  DLTensor prototype{};
  prototype.device = to_dlpack(x_->tensor().device);
  prototype.ndim = 1;
  prototype.dtype = to_dlpack(Dtype::uint8);
  prototype.shape = &bytes;
  std::string reason = "no memory";
  const auto set_error = [](void* context, const char*, const char* message) {
    *static_cast<std::string*>(context) = message;
  };
  if (x_->library().exchange->allocate(&prototype, &managed_, &reason, set_error) != 0) {
    managed_ = nullptr;
    throw Error(ErrorKind::device, fmt::format("{}: {} bytes of scratch memory could not be had. Received from {}: {}",
                                               x_->place().verb, bytes, x_->library().name, reason));
  }
  return static_cast<char*>(managed_->tensor.data) + managed_->tensor.byte_offset;
}

void* CallQueue::library_memory(std::int64_t bytes) {
  Library& library = x_->library();
  if (library.kind == Library::Kind::cupy) {
    const CupyDevice current(library, x_->tensor().device.index);
    held_ = library.namespace_.attr("cuda").attr("alloc")(bytes);
    return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(held_.attr("ptr")));
  }
  held_ = make_array(library, x_->object(), Dtype::uint8, {bytes}, {x_->place().verb, "workspace"});
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(held_.attr("data_ptr")()));
}

}  // namespace mercer::python
