// Machine code in memory that is first writable, then executable, never both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace mercer {

/// One kernel's code in a mapping of its own; unmapped when dropped. Move-only.
class ExecutableMemory {
 public:
  ExecutableMemory() = default;
  /// Copies the code. Throws compile when the system denies it or too many kernels are alive, std::bad_alloc when there
  /// is no memory left.
  ExecutableMemory(const void* code, std::size_t bytes);
  ExecutableMemory(ExecutableMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), mapped_(std::exchange(other.mapped_, 0)) {}
  ExecutableMemory& operator=(ExecutableMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~ExecutableMemory();

  /// Whether code can be run here: tried once. False while MERCER_NO_EXEC=1.
  static bool available() { return why_not().empty(); }
  /// Who denies it; empty where code can be run.
  static std::string why_not();
  /// Mappings alive in this process, and how many are allowed (half of vm.max_map_count: the rest is the host's).
  static std::int64_t alive();
  static std::int64_t limit();

  const void* data() const { return data_; }
  /// `as<void(const float*, float*)>()` gives the function pointer.
  template <class Function>
  Function* as() const {
    return reinterpret_cast<Function*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::size_t mapped_ = 0;
};

}  // namespace mercer
