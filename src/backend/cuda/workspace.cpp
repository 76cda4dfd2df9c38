#include "backend/cuda/workspace.h"

#include <map>
#include <mutex>

#include "core/error.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;

/// A pool of our own for each device: it keeps what was freed, where the default one gives it back to the system at
/// every synchronisation, and taking it again costs milliseconds.
CuPool pool_of(int device, const char* op) {
  static std::mutex mutex;
  static auto& pools = *new std::map<int, CuPool>;
  std::lock_guard lock(mutex);
  if (const auto found = pools.find(device); found != pools.end()) return found->second;
  const CudaDriver& driver = need_cuda(op);
  CuPoolProperties properties;
  properties.device = device;
  CuPool pool = nullptr;
  check_cuda(driver.pool_create(&pool, &properties), op);
  std::uint64_t keep_all = ~std::uint64_t(0);
  check_cuda(driver.pool_set(pool, kCuPoolReleaseThreshold, &keep_all), op);
  return pools.emplace(device, pool).first->second;
}

}  // namespace

std::int64_t Workspace::add(std::int64_t bytes) {
  const std::int64_t place = bytes_;
  std::int64_t sum = 0;
  const bool fits = bytes >= 0 && !__builtin_add_overflow(bytes_, bytes + kAlignment - 1, &sum);
  require(fits, "workspace: the sizes must fit 64 bits. Received {} more bytes.", bytes);
  bytes_ = sum / kAlignment * kAlignment;
  return place;
}

void Workspace::take(const Queue& queue, int device, const char* op) {
  if (bytes_ <= taken_) return;
  require(taken_ == 0, "{}: the items of a batch must need the same scratch memory. Received {} bytes after {}.", op,
          bytes_, taken_);
  taken_ = bytes_;
  if (queue.allocate) {
    base_ = static_cast<char*>(queue.allocate(bytes_));
    require(base_ != nullptr && reinterpret_cast<std::uintptr_t>(base_) % 16 == 0,
            "{}: workspace memory must lie at a multiple of 16 bytes. Received {}.", op, fmt::ptr(base_));
    return;
  }
  stream_ = static_cast<CuStream>(queue.stream);
  CuPool pool = pool_of(device, op);
  const auto take = [&] {
    return cuda_driver()->pool_alloc_async(&pool_memory_, static_cast<std::size_t>(bytes_), pool, stream_);
  };
  int result = take();
  if (result == kCuOutOfMemory && !cuda_is_capturing(device, stream_)) {
    // What other streams gave back is free once they are done.
    cuda_driver()->context_synchronize();
    cuda_driver()->pool_trim(pool, 0);
    result = take();
  }
  check_cuda(result, op, bytes_);
  base_ = reinterpret_cast<char*>(pool_memory_);
}

Workspace::~Workspace() {
  // Nothing can be done here about a device that failed: the next call reports it.
  if (pool_memory_ != 0) cuda_driver()->memory_free_async(pool_memory_, stream_);
}

}  // namespace mercer::cuda
