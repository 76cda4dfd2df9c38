#include "backend/cuda/runtime/uploads.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "backend/cuda/runtime/pinned.h"
#include "core/error.h"
#include "core/system/mutex.h"

namespace mercer::cuda {
namespace {

constexpr std::size_t kSmallPiece = std::size_t{1} << 14, kLargePiece = std::size_t{1} << 20;
constexpr std::size_t kMostPieces = 32;  // of one size for one device

/// Pinned memory, and an event after the copy that reads it.
struct Piece {
  Piece(std::size_t bytes, const char* op) : memory(bytes, op) {
    check_cuda(cuda_driver()->event_create(&read, kCuEventNoTiming), op);
  }
  PinnedMemory memory;
  CuEvent read = nullptr;
};

/// Pieces of one size for one device, the one whose copy is the oldest first. More than kMostPieces are made only while
/// threads hold all of them.
class Ring {
 public:
  /// A piece that may still be read.
  Piece* take(std::size_t bytes, const char* op) {
    const std::lock_guard lock(mutex_);
    auto found = std::find_if(pieces_.begin(), pieces_.end(), [](const Piece* piece) {
      return cuda_driver()->event_query(piece->read) == kCuSuccess;
    });
    if (found == pieces_.end() && (made_ < kMostPieces || pieces_.empty())) {
      auto* const made = new Piece(bytes, op);  // stays, as pinned memory does
      ++made_;
      return made;
    }
    if (found == pieces_.end()) found = pieces_.begin();
    Piece* const piece = *found;
    pieces_.erase(found);
    return piece;
  }
  void give_back(Piece* piece) {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(piece);
  }

 private:
  Mutex mutex_;
  std::list<Piece*> pieces_;
  std::size_t made_ = 0;
};

Ring& ring_of(int device, std::size_t bytes) {
  static constinit Mutex mutex;
  static constinit Lazy<std::map<std::pair<int, std::size_t>, Ring>> rings;
  const std::lock_guard lock(mutex);
  return rings.get()[{device, bytes}];
}

/// A piece that nothing reads any more, while it lives.
class Lease {
 public:
  Lease(Ring& ring, std::size_t bytes, const char* op) : ring_(ring), piece_(ring.take(bytes, op)) {
    const int result = cuda_driver()->event_synchronize(piece_->read);
    if (result != kCuSuccess) ring_.give_back(piece_);
    check_cuda(result, op);
  }
  ~Lease() { ring_.give_back(piece_); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  const Piece& operator*() const { return *piece_; }

 private:
  Ring& ring_;
  Piece* piece_;
};

}  // namespace

void upload(const PairJob& place, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  require(!cuda_is_capturing(place.device, place.stream()),
          "{}: numbers of the host must not be copied in the capture of a CUDA graph. Received a capturing stream.",
          place.op);
  const CudaDriver& driver = *cuda_driver();
  const CaptureBreak others;  // threads that capture forbid questions about events
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t size = bytes - done <= kSmallPiece ? kSmallPiece : kLargePiece;
    const std::size_t count = std::min(size, bytes - done);
    const Lease lease(ring_of(place.device, size), size, place.op);
    const Piece& piece = *lease;
    std::memcpy(piece.memory.as<char>(), static_cast<const char*>(from) + done, count);
    check_cuda(driver.copy_async(reinterpret_cast<CuPointer>(to) + done,
                                 reinterpret_cast<CuPointer>(piece.memory.as<char>()), count, place.stream()),
               place.op);
    check_cuda(driver.event_record(piece.read, place.stream()), place.op);
    done += count;
  }
}

}  // namespace mercer::cuda
