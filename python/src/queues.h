// The stream of a call on CUDA arrays, and its scratch memory, both of the caller's library.
#pragma once

#include <optional>
#include <vector>

#include "arrays.h"
#include "mercer/pairwise.h"

namespace mercer::python {

/// Opened, used for one call, and destroyed with the GIL held; only `allocate` runs without it.
class CallQueue {
 public:
  CallQueue() = default;
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  /// The queue of a call on x: the current stream of its library on its device.
  Queue open(const Array& x);
  /// Makes scratch memory lie in this array from now on. Throws unless it is a contiguous one of uint8 on x's
  /// device.
  void use_workspace(nb::handle workspace, const Array& x);
  /// The workspace of a call on the CPU, of at least so many bytes.
  void* cpu_workspace(std::int64_t bytes) const { return workspace_memory(bytes, 1); }
  /// Work waits for the stream in which this array is in use, where its library names another one.
  void wait_for(const Array& array);
  /// After the call: the streams that `wait_for` found wait for the work.
  void release_streams();

 private:
  void* allocate(std::int64_t bytes);
  void* workspace_memory(std::int64_t bytes, std::uintptr_t alignment) const;
  void* exchange_memory(std::int64_t bytes);
  void* library_memory(std::int64_t bytes);

  const Array* x_ = nullptr;
  void* stream_ = nullptr;
  std::vector<void*> other_streams_;
  std::optional<Array> workspace_;
  DLManagedTensorVersioned* managed_ = nullptr;
  nb::object held_;
};

}  // namespace mercer::python
