// The border between C and C++: exceptions end here, and the structs of mercer/c/mercer.h become those of C++. What C
// alone can get wrong (null pointers, numbers that are no value of an enumeration, structs of another version) is
// refused here; all other rules are checked, and worded, after it.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "mercer/c/mercer.h"
#include "mercer/pairwise.h"

struct mercer_context {
  mercer::Context context;
};
struct mercer_formula {
  mercer::Formula formula;
};

namespace mercer::c_api {

/// The status of the exception that is being handled; its text becomes the thread's last error.
mercer_status failed() noexcept;

/// Runs the body of a function of the interface.
template <class Body>
mercer_status guarded(const Body& body) noexcept {
  try {
    body();
    return MERCER_OK;
  } catch (...) {
    return failed();
  }
}

/// Refuses a null pointer.
template <class T>
T& given(const char* op, const char* name, T* pointer) {
  require(pointer != nullptr, "{}: {} must be given. Received a null pointer.", op, name);
  return *pointer;
}

inline Context& context_of(mercer_context* context) {
  return context == nullptr ? Context::shared() : context->context;
}

/// An older or newer struct of a caller as this version's: fields that the caller's does not have take their defaults,
/// those that this one does not have must be zero. `least` is the size of the first version.
template <class Struct>
Struct own_version(const char* op, const char* name, const Struct* theirs, const Struct& defaults,
                   std::size_t least = sizeof(Struct)) {
  constexpr std::size_t kMost = 4096;  // beyond is no size, but memory that nobody has set
  if (theirs == nullptr) return defaults;
  const std::size_t size = theirs->struct_size;
  require(least <= size && size <= kMost, "{}: struct_size of {} must be the size of the struct, from {} bytes on. "
          "Received {}.", op, name, least, size);
  const char* const bytes = reinterpret_cast<const char*>(theirs);
  require(std::all_of(bytes + std::min(size, sizeof(Struct)), bytes + size, [](char byte) { return byte == 0; }),
          "{}: {} must hold nothing after the {} bytes that this version of Mercer knows. Received a field of a later "
          "one.",
          op, name, sizeof(Struct));
  Struct own = defaults;
  std::memcpy(&own, theirs, std::min(size, sizeof(Struct)));
  return own;
}

Tensor tensor_of(const char* op, const char* name, const mercer_tensor* given);
Queue queue_of(const char* op, const mercer_queue* given);
ProgressCallback progress_of(mercer_progress callback, void* user);

/// The answer of a function that tells a shape.
void tell_shape(const char* op, const std::vector<std::int64_t>& found, std::int32_t* ndim, std::int64_t* shape);

}  // namespace mercer::c_api
