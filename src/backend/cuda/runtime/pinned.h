// Pinned memory of the host.
#pragma once

#include <algorithm>
#include <list>
#include <mutex>

#include "core/devices/cuda_driver.h"
#include "core/system/mutex.h"

namespace mercer::cuda {

/// Pinned memory of the host, which a device writes while the host goes on. Never given back to the driver, which
/// would wait for all work; kept for the next call.
class PinnedMemory {
 public:
  PinnedMemory(std::size_t bytes, const char* op) {
    std::lock_guard lock(idle().mutex);
    auto& list = idle().list;
    // Not a much larger one, which a small piece would keep from the call that needs it.
    const std::size_t most = 2 * std::max<std::size_t>(bytes, 4096);
    const auto found = std::find_if(list.begin(), list.end(), [&](const Block& block) {
      return block.bytes >= bytes && block.bytes <= most;
    });
    if (found != list.end()) {
      block_ = *found;
      list.erase(found);
      return;
    }
    block_.bytes = std::max<std::size_t>(bytes, 4096);
    check_cuda(need_cuda(op).host_memory_alloc(&block_.data, block_.bytes), op,
               static_cast<std::int64_t>(block_.bytes));
  }
  ~PinnedMemory() {
    std::lock_guard lock(idle().mutex);
    idle().list.push_front(block_);
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(block_.data);
  }

 private:
  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  struct Idle {
    Mutex mutex;
    std::list<Block> list;
  };
  static Idle& idle() {
    static constinit Lazy<Idle> kept;
    return kept.get();
  }
  Block block_;
};

}  // namespace mercer::cuda
