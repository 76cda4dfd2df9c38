// What the functions of mercer/compat/fastkron.h share: handles, and errors as FastKron numbers them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "c_api/border.h"
#include "core/system/mutex.h"
#include "mercer/compat/fastkron.h"

namespace mercer::compat::fastkron {

inline constexpr std::uint32_t kBackends = fastKronBackend_X86 | fastKronBackend_CUDA;

/// Problems that a handle has measured.
class TunedProblems {
 public:
  bool has(const std::string& problem) {
    const std::lock_guard lock(mutex_);
    return problems_.contains(problem);
  }
  void add(const std::string& problem) {
    const std::lock_guard lock(mutex_);
    problems_.insert(problem);
  }

 private:
  Mutex mutex_;
  std::set<std::string> problems_;
};

struct Handle {
  std::uint32_t backends = 0, options = fastKronOptionsUseFusion;
  void* stream = nullptr;
  TunedProblems tuned = {};
};

/// A failure that FastKron has a number of its own for.
class Refusal : public std::runtime_error {
 public:
  Refusal(fastKronError code, const std::string& message) : std::runtime_error(message), code_(code) {}
  fastKronError code() const noexcept { return code_; }

 private:
  fastKronError code_;
};

/// Throws a Refusal of this code unless `ok`.
template <class... Args>
void require_or(fastKronError code, bool ok, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) [[unlikely]] throw Refusal(code, fmt::format(format, std::forward<Args>(args)...));
}

inline fastKronError code_of(mercer_status status) {
  switch (status) {
    case MERCER_OK: return fastKronSuccess;
    case MERCER_INVALID_ARGUMENT: return fastKronInvalidArgument;
    case MERCER_UNSUPPORTED: return fastKronBackendNotAvailable;  // no driver, or a device that is too old
    case MERCER_COMPILE_FAILED: return fastKronKernelNotFound;
    default: return fastKronOtherError;
  }
}

/// Runs the body of a function of the interface; mercer_last_error() has the text of what it throws.
template <class Body>
fastKronError answered(const Body& body) noexcept {
  try {
    body();
    return fastKronSuccess;
  } catch (const Refusal& refusal) {
    c_api::failed();
    return refusal.code();
  } catch (...) {
    return code_of(c_api::failed());
  }
}

inline Handle& handle_of(const char* op, fastKronHandle handle) {
  require(handle != nullptr, "{}: the handle must be one of fastKronInit. Received a null pointer.", op);
  return *static_cast<Handle*>(handle);
}

/// Refuses a backend that Mercer does not have on this machine, with `missing` one that the handle was not made for.
void check_backend(const char* op, const Handle& handle, std::uint32_t backend, fastKronError missing);

}  // namespace mercer::compat::fastkron
