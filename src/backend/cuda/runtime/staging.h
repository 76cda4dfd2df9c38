// Copies between arrays of the host, of any strides, and a device, through two pinned buffers, while kernels run.
#pragma once

#include <array>
#include <cstdint>

#include "backend/cuda/runtime/pinned.h"
#include "core/system/parallel.h"
#include "mercer/tensor.h"

namespace mercer::cuda {

/// Owned; made on the device that is current.
class OwnStream {
 public:
  explicit OwnStream(const char* op) {
    check_cuda(need_cuda(op).stream_create(&stream_, kCuStreamNonBlocking), op);
  }
  ~OwnStream() { cuda_driver()->stream_destroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  CuStream get() const { return stream_; }

 private:
  CuStream stream_ = nullptr;
};

class OwnEvent {
 public:
  explicit OwnEvent(const char* op, unsigned flags = kCuEventNoTiming) {
    check_cuda(need_cuda(op).event_create(&event_, flags), op);
  }
  ~OwnEvent() { cuda_driver()->event_destroy(event_); }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  CuEvent get() const { return event_; }

 private:
  CuEvent event_ = nullptr;
};

/// A matrix of the host's memory, strides in elements of `size` bytes.
struct HostMatrix {
  char* data = nullptr;
  std::int64_t size = 4, columns = 1, row_stride = 1, column_stride = 1;
};

class Staging {
 public:
  /// `piece`: bytes of a pinned buffer. The copies run on threads of `pool` and in a stream of their own.
  Staging(const char* op, std::int64_t piece, Pool& pool);
  /// Waits for the copies.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Rows first … first + rows - 1 to contiguous memory of the device. Returns when the host's have been read.
  void upload(CuPointer to, const HostMatrix& from, std::int64_t first, std::int64_t rows);
  /// Contiguous memory of the device to these rows. Returns when they are written.
  void download(const HostMatrix& to, std::int64_t first, std::int64_t rows, CuPointer from);
  CuStream stream() const { return stream_.get(); }

 private:
  struct Buffer {
    Buffer(std::int64_t bytes, const char* op) : memory(static_cast<std::size_t>(bytes), op), copied(op) {}
    PinnedMemory memory;
    OwnEvent copied;
  };

  template <bool to_host>
  void move(const HostMatrix& matrix, std::int64_t first, std::int64_t count, char* piece);

  const char* op_;
  std::int64_t piece_;
  Pool& pool_;
  OwnStream stream_;
  Buffer first_, second_;
  std::array<Buffer*, 2> buffers_{&first_, &second_};
  std::size_t next_ = 0;
};

}  // namespace mercer::cuda
