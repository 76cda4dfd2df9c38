#include "backend/cuda/workspace.h"

#include "core/error.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;

}  // namespace

std::int64_t Workspace::add(std::int64_t bytes) {
  const std::int64_t place = bytes_;
  std::int64_t sum = 0;
  const bool fits = bytes >= 0 && !__builtin_add_overflow(bytes_, bytes + kAlignment - 1, &sum);
  require(fits, "workspace: the sizes must fit 64 bits. Received {} more bytes.", bytes);
  bytes_ = sum / kAlignment * kAlignment;
  return place;
}

void Workspace::take(const Queue& queue, const char* op) {
  if (bytes_ == 0) return;
  if (queue.allocate) {
    base_ = static_cast<char*>(queue.allocate(bytes_));
    require(base_ != nullptr && reinterpret_cast<std::uintptr_t>(base_) % 16 == 0,
            "{}: workspace memory must lie at a multiple of 16 bytes. Received {}.", op, fmt::ptr(base_));
    return;
  }
  stream_ = static_cast<CuStream>(queue.stream);
  check_cuda(cuda_driver()->memory_alloc_async(&pool_memory_, static_cast<std::size_t>(bytes_), stream_), op, bytes_);
  base_ = reinterpret_cast<char*>(pool_memory_);
}

Workspace::~Workspace() {
  // Nothing can be done here about a device that failed: the next call reports it.
  if (pool_memory_ != 0) cuda_driver()->memory_free_async(pool_memory_, stream_);
}

}  // namespace mercer::cuda
