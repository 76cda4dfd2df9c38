// Times of calls on a CUDA stream, for tune.
#pragma once

#include "core/devices/cuda_driver.h"

namespace mercer::ops {

/// Two events around some calls.
class Stopwatch {
 public:
  explicit Stopwatch(CuStream stream) : stream_(stream) {
    for (CuEvent* event : {&start_, &end_}) check_cuda(driver_.event_create(event, kCuEventDefault), "tune");
  }
  ~Stopwatch() {
    for (CuEvent event : {start_, end_})
      if (event != nullptr) driver_.event_destroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// Milliseconds of one of `count` calls in a row.
  template <class Work>
  double operator()(int count, const Work& work) {
    check_cuda(driver_.event_record(start_, stream_), "tune");
    for (int i = 0; i < count; ++i) work();
    check_cuda(driver_.event_record(end_, stream_), "tune");
    check_cuda(driver_.event_synchronize(end_), "tune");
    float milliseconds = 0;
    check_cuda(driver_.event_elapsed(&milliseconds, start_, end_), "tune");
    return static_cast<double>(milliseconds) / count;
  }

 private:
  const CudaDriver& driver_ = need_cuda("tune");
  CuStream stream_;
  CuEvent start_ = nullptr, end_ = nullptr;
};

}  // namespace mercer::ops
