#include "cuda_driver.h"

#include <fmt/format.h>

#include <cstdint>

#include "core/library.h"
#include "mercer/error.h"

namespace mercer::python {
namespace {

constexpr int kDeviceOrdinal = 9;            // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr unsigned kEventWithoutTiming = 2;  // CU_EVENT_DISABLE_TIMING

using Result = int;

struct Driver {
  mercer::Library library{{"libcuda.so.1"}};
  Result (*init)(unsigned) = library.function<Result(unsigned)>("cuInit");
  Result (*pointer_attribute)(void*, int, std::uintptr_t) =
      library.function<Result(void*, int, std::uintptr_t)>("cuPointerGetAttribute");
  Result (*current_device)(int*) = library.function<Result(int*)>("cuCtxGetDevice");
  Result (*retain_context)(void**, int) = library.function<Result(void**, int)>("cuDevicePrimaryCtxRetain");
  Result (*push_context)(void*) = library.function<Result(void*)>("cuCtxPushCurrent_v2");
  Result (*pop_context)(void**) = library.function<Result(void**)>("cuCtxPopCurrent_v2");
  Result (*create_event)(void**, unsigned) = library.function<Result(void**, unsigned)>("cuEventCreate");
  Result (*record_event)(void*, void*) = library.function<Result(void*, void*)>("cuEventRecord");
  Result (*wait_event)(void*, void*, unsigned) = library.function<Result(void*, void*, unsigned)>("cuStreamWaitEvent");
  Result (*destroy_event)(void*) = library.function<Result(void*)>("cuEventDestroy_v2");
};

void check(Result result, const char* what) {
  if (result == 0) return;
  throw Error(ErrorKind::device, fmt::format("cuda: {} failed. Received the driver's error {}.", what, result));
}

const Driver& driver() {
  static const Driver& loaded = *new Driver;  // throws while there is none, and tries again
  check(loaded.init(0), "cuInit");
  return loaded;
}

/// The primary context of a device as the current one. Kept for good, as the libraries that made the arrays keep it.
class PrimaryContext {
 public:
  explicit PrimaryContext(int device) {
    void* context = nullptr;
    check(driver().retain_context(&context, device), "cuDevicePrimaryCtxRetain");
    check(driver().push_context(context), "cuCtxPushCurrent");
  }
  ~PrimaryContext() {
    void* context = nullptr;
    driver().pop_context(&context);
  }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
};

}  // namespace

int device_of_pointer(const void* pointer) {
  int device = 0;
  if (pointer == nullptr) {
    if (driver().current_device(&device) != 0) device = 0;
    return device;
  }
  check(driver().pointer_attribute(&device, kDeviceOrdinal, reinterpret_cast<std::uintptr_t>(pointer)),
        "looking up the device of a pointer");
  return device;
}

void order_streams(int device, void* earlier, void* later) {
  const PrimaryContext current(device);
  void* event = nullptr;
  check(driver().create_event(&event, kEventWithoutTiming), "cuEventCreate");
  const Result recorded = driver().record_event(event, earlier);
  const Result waited = recorded == 0 ? driver().wait_event(later, event, 0) : 0;
  driver().destroy_event(event);  // the driver keeps it until the wait is over
  check(recorded, "cuEventRecord");
  check(waited, "cuStreamWaitEvent");
}

}  // namespace mercer::python
