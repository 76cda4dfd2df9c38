// Scratch memory of one call: laid out first, taken once, given back in the order of the stream.
#pragma once

#include <cstdint>

#include "backend/cuda/runtime/job.h"

namespace mercer::cuda {

/// Makes the device's pool: a graph capture that meets it for the first time would be spoiled.
void prepare_pool(int device, const char* op);

/// Gives memory of the pool that nobody uses back to the device, for other libraries and larger blocks.
void trim_pool(int device, const char* op);

class Workspace {
 public:
  /// Room for so many bytes, at a multiple of 256; the result is a place for at().
  std::int64_t add(std::int64_t bytes);
  std::int64_t bytes() const { return bytes_; }
  /// Takes the memory, once, from the queue, or from a pool of the device, in the order of the stream. False where
  /// the call ends here: it was to find out how much that is.
  bool take(const PairJob& job);
  /// Lies in memory that is there, of so many bytes, in place of `take`.
  void use(char* memory, std::int64_t bytes, const PairJob& job);
  /// Lays out anew in the memory that is there: for the next item of a loop, whose kernels run after this one's.
  void reuse() { bytes_ = 0; }
  template <class T = void>
  T* at(std::int64_t place) const {
    return reinterpret_cast<T*>(base_ + place);
  }
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace();

 private:
  void take_from_pool(const PairJob& job);
  bool rehearse(Rehearsal& rehearsal);

  std::int64_t bytes_ = 0, taken_ = 0;
  char* base_ = nullptr;
  CuPointer pool_memory_ = 0;
  CuStream stream_ = nullptr;
};

}  // namespace mercer::cuda
