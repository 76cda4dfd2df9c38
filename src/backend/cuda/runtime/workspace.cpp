#include "backend/cuda/runtime/workspace.h"

#include <map>
#include <mutex>

#include "core/error.h"
#include "core/system/mutex.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;

/// A pool of our own for each device: it keeps what was freed, where the default one gives it back to the system at
/// every synchronisation, and taking it again costs milliseconds.
CuPool pool_of(int device, const char* op) {
  static constinit Mutex mutex;
  static constinit Lazy<std::map<int, CuPool>> kept;
  std::map<int, CuPool>& pools = kept.get();
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

void prepare_pool(int device, const char* op) { pool_of(device, op); }

void trim_pool(int device, const char* op) { check_cuda(cuda_driver()->pool_trim(pool_of(device, op), 0), op); }

std::int64_t Workspace::add(std::int64_t bytes) {
  const std::int64_t place = bytes_;
  std::int64_t sum = 0;
  const bool fits = bytes >= 0 && !__builtin_add_overflow(bytes_, bytes + kAlignment - 1, &sum);
  require(fits, "workspace: the sizes must fit 64 bits. Received {} more bytes.", bytes);
  bytes_ = sum / kAlignment * kAlignment;
  return place;
}

bool Workspace::take(const PairJob& job) {
  require(taken_ == 0 || bytes_ <= taken_,
          "{}: the items of a batch must need the same scratch memory. Received {} bytes after {}.", job.op, bytes_,
          taken_);
  if (job.rehearsal() != nullptr) return rehearse(*job.rehearsal());
  if (bytes_ <= taken_) return true;
  taken_ = bytes_;
  if (!job.queue->allocate) {
    take_from_pool(job);
    return true;
  }
  base_ = static_cast<char*>(job.queue->allocate(bytes_));
  require(base_ != nullptr && reinterpret_cast<std::uintptr_t>(base_) % 16 == 0,
          "{}: workspace memory must lie at a multiple of 16 bytes. Received {}.", job.op, fmt::ptr(base_));
  return true;
}

void Workspace::use(char* memory, std::int64_t bytes, const PairJob& job) {
  require(bytes_ <= bytes, "{}: a step needs no more scratch memory than the first. Received {} bytes after {}.",
          job.op, bytes_, bytes);
  base_ = memory;
  taken_ = bytes;
}

bool Workspace::rehearse(Rehearsal& rehearsal) {
  base_ = reinterpret_cast<char*>(kAlignment);  // nothing is there
  rehearsal.bytes = std::max(rehearsal.bytes, bytes_);  // of calls one after the other
  return rehearsal.purpose != Rehearsal::Purpose::workspace;
}

void Workspace::take_from_pool(const PairJob& job) {
  stream_ = job.stream();
  CuPool pool = pool_of(job.device, job.op);
  const auto take = [&] {
    return cuda_driver()->pool_alloc_async(&pool_memory_, static_cast<std::size_t>(bytes_), pool, stream_);
  };
  int result = take();
  if (result == kCuOutOfMemory && !cuda_is_capturing(job.device, stream_)) {
    // What other streams gave back is free once they are done.
    cuda_driver()->context_synchronize();
    cuda_driver()->pool_trim(pool, 0);
    result = take();
  }
  check_cuda(result, job.op, bytes_);
  base_ = reinterpret_cast<char*>(pool_memory_);
}

Workspace::~Workspace() {
  // Nothing can be done here about a device that failed: the next call reports it.
  if (pool_memory_ != 0) cuda_driver()->memory_free_async(pool_memory_, stream_);
}

}  // namespace mercer::cuda
