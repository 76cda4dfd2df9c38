#include "backend/cuda/runtime/side_streams.h"
#include "core/system/mutex.h"

#include <map>
#include <mutex>
#include <utility>

namespace mercer::cuda {
namespace {

/// Work put into `later` from now on starts after what is in `earlier` so far.
int order(CuStream earlier, CuStream later) {
  const CudaDriver& driver = *cuda_driver();
  CuEvent event = nullptr;
  int result = driver.event_create(&event, kCuEventNoTiming);
  if (result != kCuSuccess) return result;
  result = driver.event_record(event, earlier);
  if (result == kCuSuccess) result = driver.stream_wait(later, event, 0);
  driver.event_destroy(event);  // the driver keeps it until the wait is over
  return result;
}

}  // namespace

CuStream side_stream(int device, int index, const char* op) {
  static constinit Mutex mutex;
  static constinit Lazy<std::map<std::pair<int, int>, CuStream>> streams;
  const std::lock_guard lock(mutex);
  CuStream& stream = streams.get()[{device, index}];
  if (stream == nullptr) check_cuda(need_cuda(op).stream_create(&stream, kCuStreamNonBlocking), op);
  return stream;
}

void Fork::start(CuStream caller, std::vector<CuStream> sides, const char* op) {
  caller_ = caller;
  op_ = op;
  for (CuStream side : sides) {
    check_cuda(order(caller, side), op);
    sides_.push_back(side);
  }
}

void Fork::join() {
  while (!sides_.empty()) {
    const CuStream side = sides_.back();
    sides_.pop_back();
    check_cuda(order(side, caller_), op_);
  }
}

Fork::~Fork() {
  // Nothing can be done here about a device that failed: the next call reports it.
  for (CuStream side : sides_) order(side, caller_);
}

}  // namespace mercer::cuda
