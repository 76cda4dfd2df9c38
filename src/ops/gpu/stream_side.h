// Arrays that have an entry for each point of one side of a streamed call, and their blocks on the device.
#pragma once

#include <vector>

#include "backend/cuda/runtime/staging.h"
#include "backend/cuda/runtime/workspace.h"
#include "mercer/tensor.h"

namespace mercer::ops {

class StreamSide {
 public:
  /// [N], [N, K], or with `axis` 1 [O, N].
  void add(const Tensor& host, int axis = 0);
  std::int64_t row_bytes() const;
  /// Room for `buffers` blocks of at most `capacity` points.
  void lay_out(cuda::Workspace& workspace, std::int64_t capacity, int buffers);
  /// Points first … first + count - 1 to the places from `place` on of a buffer.
  void upload(cuda::Staging& staging, const cuda::Workspace& workspace, int buffer, std::int64_t place,
              std::int64_t first, std::int64_t count) const;
  /// The array that was added as number `array`, as `count` points of a buffer from `place` on.
  Tensor view(const cuda::Workspace& workspace, Device device, std::size_t array, int buffer, std::int64_t place,
              std::int64_t count) const;

 private:
  struct Array {
    Tensor host;
    bool is_across = false;            // points are its last axis
    std::int64_t planes = 1, columns = 1;
    std::vector<std::int64_t> places = {};  // one a buffer

    std::int64_t size() const { return static_cast<std::int64_t>(size_of(host.dtype)); }
    cuda::HostMatrix plane(std::int64_t index) const;
  };
  std::vector<Array> arrays_;
  std::int64_t capacity_ = 0;
};

}  // namespace mercer::ops
