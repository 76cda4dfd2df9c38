#include "core/devices/cuda_driver.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <memory>

#include "core/devices/device_memory.h"
#include "core/devices/library.h"
#include "core/error.h"
#include "core/system/mutex.h"

namespace mercer {
namespace {

constexpr const char* kForked =
    "this process was forked after CUDA had started, and NVIDIA's driver does not work in such a child; start it by "
    "spawn or forkserver, or fork before the first use of the GPU";

struct Table {
  Library library{{"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"}};
  CudaDriver driver{};
  std::string missing;  // a symbol that an old driver lacks

  Table() {
    if (!library) return;
    take_devices();
    take_modules();
    take_memory();
    take_streams();
    take_optional(driver.launch_ex, "cuLaunchKernelEx");
    take_optional(driver.cluster_occupancy, "cuOccupancyMaxActiveClusters");
    take_optional(driver.tensor_map_tiled, "cuTensorMapEncodeTiled");
    take_conditions();
  }

 private:
  template <class Function>
  void take_optional(Function*& slot, const char* symbol) {
    slot = reinterpret_cast<Function*>(library.find(symbol));
  }
  template <class Function>
  void take(Function*& slot, const char* symbol) {
    take_optional(slot, symbol);
    if (slot == nullptr && missing.empty()) missing = symbol;
  }

  /// Takes the conditional nodes of CUDA 12.4 and newer; those of 12.3 have bodies of kernels alone.
  void take_conditions() {
    constexpr int kCopiesInBodies = 12040;
    int version = 0;
    if (driver.get_version == nullptr || driver.get_version(&version) != kCuSuccess || version < kCopiesInBodies)
      return;
    take_optional(driver.stream_capture_info, "cuStreamGetCaptureInfo_v3");
    take_optional(driver.stream_set_dependencies, "cuStreamUpdateCaptureDependencies_v2");
    take_optional(driver.stream_begin_capture_to_graph, "cuStreamBeginCaptureToGraph");
    take_optional(driver.graph_condition, "cuGraphConditionalHandleCreate");
    take_optional(driver.graph_add_node, "cuGraphAddNode_v2");
  }

  // The suffix _v2 is what cuda.h makes of the plain name; the plain symbols have 32-bit sizes or other contexts.
  void take_devices() {
    take(driver.get_version, "cuDriverGetVersion");
    take(driver.init, "cuInit");
    take(driver.error_name, "cuGetErrorName");
    take(driver.error_string, "cuGetErrorString");
    take(driver.device_count, "cuDeviceGetCount");
    take(driver.device_get, "cuDeviceGet");
    take(driver.device_name, "cuDeviceGetName");
    take(driver.device_attribute, "cuDeviceGetAttribute");
    take(driver.device_memory, "cuDeviceTotalMem_v2");
    take(driver.primary_retain, "cuDevicePrimaryCtxRetain");
    take(driver.context_push, "cuCtxPushCurrent_v2");
    take(driver.context_pop, "cuCtxPopCurrent_v2");
    take(driver.context_current, "cuCtxGetCurrent");
    take(driver.context_device, "cuCtxGetDevice");
    take(driver.context_synchronize, "cuCtxSynchronize");
  }
  void take_modules() {
    take(driver.module_load, "cuModuleLoadData");
    take(driver.module_unload, "cuModuleUnload");
    take(driver.module_function, "cuModuleGetFunction");
    take(driver.module_global, "cuModuleGetGlobal_v2");
    take(driver.function_attribute, "cuFuncGetAttribute");
    take(driver.set_function_attribute, "cuFuncSetAttribute");
    take(driver.launch, "cuLaunchKernel");
  }
  void take_memory() {
    take(driver.memory_info, "cuMemGetInfo_v2");
    take(driver.memory_alloc, "cuMemAlloc_v2");
    take(driver.memory_free, "cuMemFree_v2");
    take(driver.host_memory_alloc, "cuMemAllocHost_v2");
    take(driver.memory_alloc_async, "cuMemAllocAsync");
    take(driver.memory_free_async, "cuMemFreeAsync");
    take(driver.pool_create, "cuMemPoolCreate");
    take(driver.pool_set, "cuMemPoolSetAttribute");
    take(driver.pool_alloc_async, "cuMemAllocFromPoolAsync");
    take(driver.pool_trim, "cuMemPoolTrimTo");
    take(driver.set_bytes_async, "cuMemsetD8Async");
    take(driver.set_words_async, "cuMemsetD32Async");
    take(driver.copy_async, "cuMemcpyAsync");
    take(driver.pointer_attribute, "cuPointerGetAttribute");
  }
  void take_streams() {
    take(driver.stream_create, "cuStreamCreate");
    take(driver.stream_destroy, "cuStreamDestroy_v2");
    take(driver.stream_query, "cuStreamQuery");
    take(driver.stream_synchronize, "cuStreamSynchronize");
    take(driver.stream_wait, "cuStreamWaitEvent");
    take(driver.stream_is_capturing, "cuStreamIsCapturing");
    take(driver.stream_begin_capture, "cuStreamBeginCapture_v2");
    take(driver.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
    take(driver.stream_end_capture, "cuStreamEndCapture");
    take(driver.graph_instantiate, "cuGraphInstantiateWithFlags");
    take(driver.graph_launch, "cuGraphLaunch");
    take(driver.graph_executable_destroy, "cuGraphExecDestroy");
    take(driver.graph_destroy, "cuGraphDestroy");
    take(driver.event_create, "cuEventCreate");
    take(driver.event_destroy, "cuEventDestroy_v2");
    take(driver.event_record, "cuEventRecord");
    take(driver.event_query, "cuEventQuery");
    take(driver.event_synchronize, "cuEventSynchronize");
    take(driver.event_elapsed, "cuEventElapsedTime");
  }
};

const Table& table() {
  static constinit Lazy<Table> table;
  return table.get();
}

/// No symbol may be missing, but for the functions that may be null.
bool complete(const Table& table) { return table.library && table.missing.empty(); }

std::atomic<bool> starting{false}, forked{false};

void note_fork() {
  if (starting) forked = true;
}

std::string load_failure(const Table& table) {
  if (table.library) return fmt::format("{} is too old: it has no {}", table.library.path(), table.missing);
  const std::string reason = table.library.why_not().substr(0, table.library.why_not().find('\n'));
  return reason.substr(reason.find(": ") + 2);  // the loader's own words name the library too
}

/// Empty when the driver has started.
std::string start() {
  const Table& loaded = table();
  if (!complete(loaded)) return load_failure(loaded);
  ::pthread_atfork(nullptr, nullptr, note_fork);
  starting = true;
  const int result = loaded.driver.init(0);
  if (result == kCuSuccess) return {};
  // What cuInit says in a child whose parent had started CUDA by other means, such as torch.
  if (result == kCuNotInitialized) return kForked;
  return fmt::format("cuInit gave {}", cuda_error_text(result));
}

const std::string& start_failure() {
  static constinit Lazy<std::string> failure;
  return failure.get(start);
}

int attribute(const CudaDriver& cuda, int which, int device) {
  int value = 0;
  return cuda.device_attribute(&value, which, device) == kCuSuccess ? value : 0;
}

CudaDevice query_device(const CudaDriver& cuda, int index) {
  constexpr int kMultiprocessors = 16, kL2 = 38, kMajor = 75, kMinor = 76, kShared = 81, kSharedOptIn = 97,
                kMemoryPools = 115;
  int handle = 0;
  check_cuda(cuda.device_get(&handle, index), "cuda: cuDeviceGet");
  std::array<char, 256> name{};
  check_cuda(cuda.device_name(name.data(), static_cast<int>(name.size()) - 1, handle), "cuda: cuDeviceGetName");
  std::size_t memory = 0;
  check_cuda(cuda.device_memory(&memory, handle), "cuda: cuDeviceTotalMem");
  CudaDevice device;
  device.index = index;
  device.name = name.data();
  device.memory = static_cast<std::int64_t>(memory);
  device.major = attribute(cuda, kMajor, handle);
  device.minor = attribute(cuda, kMinor, handle);
  device.multiprocessors = attribute(cuda, kMultiprocessors, handle);
  device.shared_per_block = attribute(cuda, kSharedOptIn, handle);
  device.shared_per_multiprocessor = attribute(cuda, kShared, handle);
  device.l2_bytes = attribute(cuda, kL2, handle);
  device.memory_pools = attribute(cuda, kMemoryPools, handle) != 0;
  return device;
}

std::vector<CudaDevice> query_devices() {
  const CudaDriver& cuda = *cuda_driver();
  int count = 0;
  check_cuda(cuda.device_count(&count), "cuda: cuDeviceGetCount");
  std::vector<CudaDevice> devices;
  for (int index = 0; index < count; ++index) devices.push_back(query_device(cuda, index));
  return devices;
}

/// The primary context of a device, retained once and for good.
CuContext primary_context(const CudaDriver& cuda, int device) {
  static constinit Lazy<std::vector<std::atomic<CuContext>>> contexts;
  std::atomic<CuContext>& slot = contexts.get([] {
    return std::vector<std::atomic<CuContext>>(cuda_devices().size());
  })[static_cast<std::size_t>(device)];
  if (CuContext known = slot.load(std::memory_order_acquire)) return known;
  int handle = 0;
  CuContext context = nullptr;
  check_cuda(cuda.device_get(&handle, device), "cuda: cuDeviceGet");
  check_cuda(cuda.primary_retain(&context, handle), "cuda: cuDevicePrimaryCtxRetain");
  slot.store(context, std::memory_order_release);
  return context;
}

/// Errors after which the context refuses everything.
bool is_lost(int result) { return result == 700 || result == 702 || result == 710 || (result >= 714 && result <= 719); }

[[noreturn]] void fail_out_of_memory(const char* what, std::int64_t bytes) {
  std::size_t free = 0, total = 0;
  std::string rest;
  if (const CudaDriver* cuda = cuda_driver(); cuda != nullptr && cuda->memory_info(&free, &total) == kCuSuccess)
    rest = fmt::format("; {} of its {} bytes are free", free, total);
  const std::string asked = bytes < 0 ? "what is asked for" : fmt::format("{} bytes more", bytes);
  throw DeviceMemoryError(
      ErrorKind::device,
      fmt::format("{}: the GPU's memory must hold {}. Received CUDA_ERROR_OUT_OF_MEMORY{}.", what, asked, rest));
}

}  // namespace

const CudaDriver* cuda_driver() {
  if (forked.load(std::memory_order_relaxed) || !start_failure().empty()) return nullptr;
  return &table().driver;
}

std::string cuda_why_not() { return forked ? kForked : start_failure(); }

const CudaDriver& need_cuda(const char* op) {
  if (const CudaDriver* driver = cuda_driver()) return *driver;
  const std::string reason = cuda_why_not();
  fail(reason == kForked ? ErrorKind::device : ErrorKind::unsupported,
       "{}: a CUDA driver that works in this process is needed. Received none: {}.", op, reason);
}

int cuda_driver_version() {
  int version = 0;
  if (complete(table())) table().driver.get_version(&version);
  return version;
}

std::string CudaDevice::architecture() const { return fmt::format("sm_{}{}", capability(), major >= 9 ? "a" : ""); }

const std::vector<CudaDevice>& cuda_devices() {
  static constinit Lazy<std::vector<CudaDevice>> none, devices;
  return cuda_driver() == nullptr ? none.get() : devices.get(query_devices);
}

int cuda_device_count() { return static_cast<int>(cuda_devices().size()); }

const CudaDevice& cuda_device(int index) {
  need_cuda("cuda");
  const auto& devices = cuda_devices();
  require(index >= 0 && index < cuda_device_count(), "cuda: the device must be one of {} that there are. Received {}.",
          devices.size(), index);
  const CudaDevice& device = devices[static_cast<std::size_t>(index)];
  if (device.major < 8)
    fail(ErrorKind::unsupported, "cuda: compute capability 8.0 or newer is needed. Received {}.{} ({}).", device.major,
         device.minor, device.name);
  return device;
}

CudaRates cuda_rates(const CudaDevice& device) {
  constexpr int kClock = 13, kMemoryClock = 36, kMemoryBits = 37;  // kHz, kHz, bits
  constexpr double kTransfers = 2;                                 // a clock
  const CudaDriver& cuda = need_cuda("cuda");
  int handle = 0;
  check_cuda(cuda.device_get(&handle, device.index), "cuda: cuDeviceGet");
  const double bytes = attribute(cuda, kMemoryBits, handle) / 8.0;
  return {1e3 * attribute(cuda, kClock, handle),
          kTransfers * 1e3 * attribute(cuda, kMemoryClock, handle) * bytes};
}

int cuda_device_of(const void* pointer) {
  constexpr unsigned kHost = 1;
  const CudaDriver* cuda = cuda_driver();
  if (cuda == nullptr || pointer == nullptr) return -1;
  const auto address = reinterpret_cast<CuPointer>(pointer);
  unsigned type = 0;
  int device = -1;
  if (cuda->pointer_attribute(&type, kCuPointerMemoryType, address) != kCuSuccess || type == kHost) return -1;
  return cuda->pointer_attribute(&device, kCuPointerDevice, address) == kCuSuccess ? device : -1;
}

bool cuda_is_capturing(int device, CuStream stream) {
  // The legacy stream answers so while any other stream records; using it would spoil that recording.
  constexpr int kCaptureImplicit = 906;
  const CudaScope scope(device);
  int status = 0;
  const int result = cuda_driver()->stream_is_capturing(stream, &status);
  if (result == kCaptureImplicit) return true;
  check_cuda(result, "cuda: cuStreamIsCapturing");
  return status != 0;
}

CaptureBreak::CaptureBreak() { check_cuda(need_cuda("cuda").exchange_capture_mode(&mode_), "cuda: capture mode"); }

CaptureBreak::~CaptureBreak() { cuda_driver()->exchange_capture_mode(&mode_); }

CudaScope::CudaScope(int device) {
  const CudaDriver& cuda = need_cuda("cuda");
  require(device >= 0 && device < cuda_device_count(),
          "cuda: the device must be one of {} that there are. Received {}.", cuda_device_count(), device);
  CuContext wanted = primary_context(cuda, device), current = nullptr;
  check_cuda(cuda.context_current(&current), "cuda: cuCtxGetCurrent");
  if (current == wanted) return;
  check_cuda(cuda.context_push(wanted), "cuda: cuCtxPushCurrent");
  pushed_ = true;
}

CudaScope::~CudaScope() {
  if (!pushed_) return;
  CuContext popped = nullptr;
  table().driver.context_pop(&popped);  // fails only when the context is lost, which the next call tells
}

std::string cuda_error_text(int result) {
  const CudaDriver& cuda = table().driver;
  const char *name = nullptr, *text = nullptr;
  if (!complete(table()) || cuda.error_name(result, &name) != kCuSuccess || name == nullptr)
    return fmt::format("CUDA error {}", result);
  if (cuda.error_string(result, &text) != kCuSuccess || text == nullptr) return name;
  return fmt::format("{} ({})", name, text);
}

void check_cuda(int result, const char* what, std::int64_t bytes) {
  if (result == kCuSuccess) [[likely]]
    return;
  if (result == kCuOutOfMemory) fail_out_of_memory(what, bytes);
  if (is_lost(result))
    fail(ErrorKind::device,
         "{}: kernels that ran before must have succeeded. Received {}; this process cannot use the GPU any more.",
         what, cuda_error_text(result));
  fail(ErrorKind::device, "{}: the CUDA driver must accept it. Received {}.", what, cuda_error_text(result));
}

std::string describe_cuda() {
  if (cuda_driver() == nullptr) return fmt::format("GPU: none; {}\n", cuda_why_not());
  const int version = cuda_driver_version();
  std::string text = fmt::format("CUDA driver: {}.{}\n", version / 1000, version % 1000 / 10);
  for (const CudaDevice& device : cuda_devices()) {
    text += fmt::format("GPU {}: {}, {}, {} multiprocessors, {:.1f} GiB{}\n", device.index, device.name,
                        device.architecture(), device.multiprocessors, static_cast<double>(device.memory) / (1 << 30),
                        device.major < 8 ? "; too old, 8.0 is needed" : "");
  }
  return text;
}

}  // namespace mercer
