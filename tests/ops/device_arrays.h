// Arrays of a test that lie on a CUDA device from call to call.
#pragma once

#include <functional>
#include <numeric>

#include "ops/testing.h"

namespace mercer::testing_support {

/// Arrays one after the other in memory of the device; copies and fills go into the stream.
class DeviceArrays {
 public:
  DeviceArrays(const DeviceStream& stream, std::int64_t bytes) : stream_(stream), memory_(0, bytes) {}

  Tensor take(Dtype dtype, Shape shape) {
    Tensor t(memory_.data() + taken_, dtype, std::move(shape));
    t.device = {DeviceKind::cuda, 0};
    taken_ += (bytes_of(t) + kAlignment - 1) / kAlignment * kAlignment;
    EXPECT_LE(taken_, memory_.size());
    return t;
  }
  Tensor take(const Array& values) {
    const Tensor t = take(values.tensor().dtype, values.shape());
    upload(t, values);
    return t;
  }
  /// And waits: `from` may go.
  void upload(const Tensor& to, const Array& from) const {
    stream_.upload(reinterpret_cast<CuPointer>(to.data), from.tensor().data, bytes_of(to));
    stream_.wait();
  }
  Array download(const Tensor& from) const {
    Array to(from.dtype, from.shape);
    stream_.download(to.tensor().data, reinterpret_cast<CuPointer>(from.data), bytes_of(from));
    return to;
  }
  void poison(const Tensor& t) const { stream_.fill(reinterpret_cast<CuPointer>(t.data), 0x5a, bytes_of(t)); }

 private:
  static constexpr std::int64_t kAlignment = 256;
  static std::int64_t bytes_of(const Tensor& t) {
    return std::accumulate(t.shape.begin(), t.shape.end(), static_cast<std::int64_t>(size_of(t.dtype)),
                           std::multiplies<>());
  }
  const DeviceStream& stream_;
  DeviceMemory memory_;
  std::int64_t taken_ = 0;
};

}  // namespace mercer::testing_support
