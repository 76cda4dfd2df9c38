// Memory for packed panels and tiles: aligned to a cache line, uninitialised, with errors that tell the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <utility>

#include <fmt/ranges.h>

#include "core/error.h"

namespace mercer {

/// The product of sizes; throws invalid_argument when it does not fit in 63 bits or a factor is negative.
inline std::int64_t checked_product(std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  bool ok = true;
  for (const std::int64_t factor : factors) {
    ok = ok && factor >= 0;
    if (factor == 0) return 0;
  }
  for (const std::int64_t factor : factors) ok = ok && !__builtin_mul_overflow(product, factor, &product);
  require(ok, "size: a product of sizes must fit in 63 bits. Received {}.",
          fmt::join(factors.begin(), factors.end(), " x "));
  return product;
}

/// Whether fresh memory is filled with bytes of 0xff, NaN of every float type. Tests ask for it by MERCER_POISON, so
/// that what is read before it is written shows.
bool poisons_memory();

/// Bytes aligned to 64 (to 2 MiB, with huge pages asked for, from 4 MiB on). Move-only.
class AlignedBuffer {
 public:
  static constexpr std::size_t kAlignment = 64;

  AlignedBuffer() = default;
  explicit AlignedBuffer(std::int64_t bytes) { allocate(bytes); }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AlignedBuffer() {
    if (data_ != nullptr) release();
  }

  void* data() const { return data_; }
  std::int64_t size() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  /// At least `bytes` from now on; the contents are lost.
  void reserve(std::int64_t bytes) {
    if (bytes > bytes_) *this = AlignedBuffer(bytes);
    else if (poisons_memory()) poison();
  }

 private:
  void allocate(std::int64_t bytes);
  void release() noexcept;  // memory that there is
  void poison() {
    if (bytes_ > 0) std::memset(data_, 0xff, static_cast<std::size_t>(bytes_));
  }

  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// count elements of T, aligned as above.
template <class T>
AlignedBuffer aligned_array(std::int64_t count) {
  return AlignedBuffer(checked_product({count, static_cast<std::int64_t>(sizeof(T))}));
}

}  // namespace mercer
