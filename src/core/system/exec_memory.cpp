// mmap read+write, copy, mprotect read+execute. One mapping a kernel: packing several into a page would need a page
// that is written after it became executable.
#include "core/system/exec_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "core/error.h"
#include "core/integers.h"
#include "core/system/env.h"
#include "core/system/mutex.h"
#include "core/system/mutex.h"

namespace mercer {
namespace {

// Mappings belong to the process, and so does their count.
std::atomic<std::int64_t> mappings_alive{0};

std::size_t round_to_pages(std::size_t bytes) {
  return round_up(bytes, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
}

std::int64_t read_limit() {
  constexpr std::int64_t kLinuxDefault = 65530;
  long long value = kLinuxDefault;
  if (std::FILE* file = std::fopen("/proc/sys/vm/max_map_count", "re")) {
    if (std::fscanf(file, "%lld", &value) != 1 || value < 2) value = kLinuxDefault;
    std::fclose(file);
  }
  return value / 2;
}

/// nullptr on failure, with errno set.
void* map_code(const void* code, std::size_t bytes, std::size_t mapped) {
  void* data = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  std::memcpy(data, code, bytes);
  constexpr int kTrap = 0xcc;  // int3: running past the end stops at once
  std::memset(static_cast<char*>(data) + bytes, kTrap, mapped - bytes);
  if (::mprotect(data, mapped, PROT_READ | PROT_EXEC) == 0) return data;
  const int error = errno;
  ::munmap(data, mapped);
  errno = error;
  return nullptr;
}

/// Empty where code could be run. What the system lacks for a moment is not a denial.
std::string try_once() {
#if defined(__x86_64__)
  constexpr unsigned char kReturn42[] = {0xb8, 42, 0, 0, 0, 0xc3};  // mov eax, 42; ret
  const std::size_t mapped = round_to_pages(sizeof kReturn42);
  void* data = map_code(kReturn42, sizeof kReturn42, mapped);
  if (data == nullptr && errno == ENOMEM) throw std::bad_alloc();
  if (data == nullptr) return std::string("the system denies it: ") + std::strerror(errno);
  const bool ran = reinterpret_cast<int (*)()>(data)() == 42;
  ::munmap(data, mapped);
  return ran ? "" : "what was written there does not run";
#else
  return "Mercer has no code for this processor";
#endif
}

}  // namespace

std::string ExecutableMemory::why_not() {
  if (env_flag("MERCER_NO_EXEC")) return "MERCER_NO_EXEC denies it";
  static constinit Lazy<std::string> reason;
  return reason.get(try_once);
}

std::int64_t ExecutableMemory::alive() { return mappings_alive.load(std::memory_order_relaxed); }

std::int64_t ExecutableMemory::limit() {
  static constinit Lazy<std::int64_t> limit;
  return limit.get(read_limit);
}

ExecutableMemory::ExecutableMemory(const void* code, std::size_t bytes) {
  require(bytes > 0, "executable memory: code must not be empty. Received 0 bytes.");
  if (const std::string reason = why_not(); !reason.empty())
    fail(ErrorKind::compile, "executable memory: {}.", reason);
  if (mappings_alive.fetch_add(1, std::memory_order_relaxed) >= limit()) {
    mappings_alive.fetch_sub(1, std::memory_order_relaxed);
    fail(ErrorKind::compile,
         "executable memory: at most {} kernels (half of vm.max_map_count) may be alive; clear plans.", limit());
  }
  mapped_ = round_to_pages(bytes);
  data_ = map_code(code, bytes, mapped_);
  if (data_ == nullptr) {
    const int error = errno;
    mappings_alive.fetch_sub(1, std::memory_order_relaxed);
    if (error == ENOMEM) throw std::bad_alloc();
    fail(ErrorKind::compile, "executable memory: the system denies it: {}.", std::strerror(error));
  }
}

ExecutableMemory::~ExecutableMemory() {
  if (data_ == nullptr) return;
  ::munmap(data_, mapped_);
  mappings_alive.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace mercer
