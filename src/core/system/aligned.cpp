#include "core/system/aligned.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "core/system/env.h"
#include "core/system/mutex.h"

namespace mercer {
namespace {

constexpr std::size_t kAlignment = AlignedBuffer::kAlignment, kHugePage = std::size_t{2} << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kKeepsBlocks = false;  // they would see one long life where there are several
#else
constexpr bool kKeepsBlocks = true;
#endif

/// Blocks that a thread has given back, for its next call: a call on tiny arrays takes ten of them, for which the heap
/// takes as long as all of the arithmetic. Sizes are powers of 2, up to 64 KiB; a thread keeps at most 256 KiB.
struct KeptBlocks {
  static constexpr std::size_t kLargest = std::size_t{64} << 10;
  static constexpr int kSizes = std::countr_zero(kLargest) - std::countr_zero(kAlignment) + 1, kOfSize = 4;
  static constexpr std::size_t kMost = std::size_t{256} << 10;

  void* blocks[kSizes][kOfSize];
  int counts[kSizes];
  std::size_t bytes;
  bool is_closed;  // the thread ends: what is given back now goes to the heap

  static int place_of(std::size_t size) { return std::countr_zero(size) - std::countr_zero(kAlignment); }
};
constinit thread_local KeptBlocks kept{};

/// Gives the blocks of a thread that ends to the heap. The blocks themselves outlive this: buffers may go later.
struct Closing {
  ~Closing() {
    kept.is_closed = true;
    for (int size = 0; size < KeptBlocks::kSizes; ++size)
      while (kept.counts[size] > 0) std::free(kept.blocks[size][--kept.counts[size]]);
  }
};

bool is_kept(std::size_t bytes) { return kKeepsBlocks && bytes <= KeptBlocks::kLargest; }

std::size_t block_size(std::size_t bytes) { return std::bit_ceil(std::max(bytes, kAlignment)); }

void* from_heap(std::size_t bytes, std::size_t alignment) {
  void* made = nullptr;
  if (::posix_memalign(&made, alignment, bytes) != 0)
    throw OutOfMemory(fmt::format("memory: {} bytes could not be allocated.", bytes));
  return made;
}

}  // namespace

bool poisons_memory() {
  static constinit Lazy<bool> poisons;
  return poisons.get([] { return env_flag("MERCER_POISON"); });
}

void AlignedBuffer::allocate(std::int64_t bytes) {
  require(bytes >= 0, "memory: a size must not be negative. Received {} bytes.", bytes);
  if (bytes == 0) return;
  const auto wanted = static_cast<std::size_t>(bytes);
  if (is_kept(wanted)) {
    const std::size_t size = block_size(wanted);
    const int place = KeptBlocks::place_of(size);
    if (kept.counts[place] > 0) {
      data_ = kept.blocks[place][--kept.counts[place]];
      kept.bytes -= size;
    } else {
      data_ = from_heap(size, kAlignment);
    }
  } else {
    const bool huge = wanted >= 2 * kHugePage;
    data_ = from_heap(wanted, huge ? kHugePage : kAlignment);
    if (huge) ::madvise(data_, wanted, MADV_HUGEPAGE);  // only advice: a refusal costs speed, not results
  }
  bytes_ = bytes;
  if (poisons_memory()) poison();
}

void AlignedBuffer::release() noexcept {
  const auto given = static_cast<std::size_t>(bytes_);
  if (!is_kept(given) || kept.is_closed) return std::free(data_);
  const std::size_t size = block_size(given);
  const int place = KeptBlocks::place_of(size);
  if (kept.counts[place] == KeptBlocks::kOfSize || kept.bytes + size > KeptBlocks::kMost) return std::free(data_);
  static thread_local const Closing closing;
  kept.blocks[place][kept.counts[place]++] = data_;
  kept.bytes += size;
}

}  // namespace mercer
