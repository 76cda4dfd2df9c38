// The CUDA driver (libcuda.so.1), loaded at run time: a table of its functions, devices, contexts, errors.
//
// Nothing is touched before the first question, so programs that compute on the CPU never start CUDA. A process forked
// after that cannot use the driver, by NVIDIA's rule; here it gets a reason in place of a hang or a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mercer {

// The driver's handles, as in cuda.h.
using CuContext = struct CuContextHandle*;
using CuModule = struct CuModuleHandle*;
using CuFunction = struct CuFunctionHandle*;
using CuStream = struct CuStreamHandle*;  // also a cudaStream_t; nullptr is the legacy default stream
using CuEvent = struct CuEventHandle*;
using CuGraph = struct CuGraphHandle*;
using CuGraphExec = struct CuGraphExecHandle*;
using CuGraphNode = struct CuGraphNodeHandle*;
using CuGraphCondition = std::uint64_t;  // CUgraphConditionalHandle
using CuPool = struct CuPoolHandle*;
using CuPointer = std::uint64_t;

// Values of the driver's enumerations that Mercer uses.
inline constexpr int kCuSuccess = 0, kCuOutOfMemory = 2, kCuNotInitialized = 3, kCuInvalidImage = 200,
                     kCuNoBinary = 209, kCuUnsupportedPtx = 222, kCuNotReady = 600;
inline constexpr int kCuFunctionMaxThreads = 0, kCuFunctionSharedBytes = 1, kCuFunctionRegisters = 4,
                     kCuFunctionMaxDynamicShared = 8, kCuFunctionCarveout = 9, kCuFunctionNonPortableCluster = 14;
inline constexpr int kCuPointerMemoryType = 2, kCuPointerDevice = 9;
inline constexpr int kCuLaunchCluster = 4, kCuLaunchProgrammaticSerialization = 6;
inline constexpr unsigned kCuStreamNonBlocking = 1, kCuEventDefault = 0, kCuEventNoTiming = 2;
inline constexpr int kCuCaptureThreadLocal = 1, kCuCaptureRelaxed = 2;
inline constexpr int kCuConditionalNode = 13, kCuConditionIf = 0, kCuConditionWhile = 1;
inline constexpr unsigned kCuAssignDefault = 1, kCuSetDependencies = 1;

/// CUlaunchAttribute and CUlaunchConfig of cuda.h.
struct CuLaunchAttribute {
  int id = 0, padding = 0;
  union Value {
    unsigned char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int programmatic_serialization;
  } value = {};
};
struct CuLaunchConfig {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1, block_x = 1, block_y = 1, block_z = 1, shared_bytes = 0;
  CuStream stream = nullptr;
  const CuLaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};
static_assert(sizeof(CuLaunchAttribute) == 72 && sizeof(CuLaunchConfig) == 56);

/// CUgraphNodeParams of cuda.h, as a conditional node has it.
struct CuConditionalParams {
  int type = kCuConditionalNode, reserved[3] = {};
  CuGraphCondition condition = 0;
  int kind = kCuConditionWhile;
  unsigned bodies = 1;
  CuGraph* body = nullptr;  // written by the driver
  CuContext context = nullptr;
  long long rest[25] = {}, end = 0;
};
static_assert(sizeof(CuConditionalParams) == 256);

/// CUmemPoolProps of cuda.h: pinned memory of one device.
struct CuPoolProperties {
  int allocation_type = 1, handle_types = 0;
  int location_type = 1, device = 0;
  void* security = nullptr;
  std::size_t max_bytes = 0;
  unsigned char reserved[56] = {};
};
static_assert(sizeof(CuPoolProperties) == 88);
inline constexpr int kCuPoolReleaseThreshold = 4;

/// The functions. All return a CUresult as int; check_cuda turns it into an error. Functions of the second group may be
/// null with a driver that is older than they are.
struct CudaDriver {
  int (*get_version)(int* version);
  int (*init)(unsigned flags);
  int (*error_name)(int result, const char** name);
  int (*error_string)(int result, const char** text);

  int (*device_count)(int* count);
  int (*device_get)(int* device, int index);
  int (*device_name)(char* name, int length, int device);
  int (*device_attribute)(int* value, int attribute, int device);
  int (*device_memory)(std::size_t* bytes, int device);
  int (*primary_retain)(CuContext* context, int device);
  int (*context_push)(CuContext context);
  int (*context_pop)(CuContext* context);
  int (*context_current)(CuContext* context);
  int (*context_device)(int* device);
  int (*context_synchronize)();

  int (*module_load)(CuModule* module, const void* image);
  int (*module_unload)(CuModule module);
  int (*module_function)(CuFunction* function, CuModule module, const char* name);
  int (*module_global)(CuPointer* pointer, std::size_t* bytes, CuModule module, const char* name);
  int (*function_attribute)(int* value, int attribute, CuFunction function);
  int (*set_function_attribute)(CuFunction function, int attribute, int value);
  int (*launch)(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, CuStream stream, void** args, void** extra);

  int (*memory_info)(std::size_t* free, std::size_t* total);
  int (*memory_alloc)(CuPointer* pointer, std::size_t bytes);
  int (*memory_free)(CuPointer pointer);
  int (*host_memory_alloc)(void** pointer, std::size_t bytes);  // pinned
  int (*memory_alloc_async)(CuPointer* pointer, std::size_t bytes, CuStream stream);
  int (*memory_free_async)(CuPointer pointer, CuStream stream);
  int (*pool_create)(CuPool* pool, const CuPoolProperties* properties);
  int (*pool_set)(CuPool pool, int attribute, void* value);
  int (*pool_alloc_async)(CuPointer* pointer, std::size_t bytes, CuPool pool, CuStream stream);
  int (*pool_trim)(CuPool pool, std::size_t keep_bytes);
  int (*set_bytes_async)(CuPointer pointer, unsigned char value, std::size_t count, CuStream stream);
  int (*set_words_async)(CuPointer pointer, unsigned value, std::size_t count, CuStream stream);  // of 32 bits
  int (*copy_async)(CuPointer to, CuPointer from, std::size_t bytes, CuStream stream);            // host pointers too
  int (*pointer_attribute)(void* value, int attribute, CuPointer pointer);

  int (*stream_create)(CuStream* stream, unsigned flags);
  int (*stream_destroy)(CuStream stream);
  int (*stream_query)(CuStream stream);
  int (*stream_synchronize)(CuStream stream);
  int (*stream_wait)(CuStream stream, CuEvent event, unsigned flags);
  int (*stream_is_capturing)(CuStream stream, int* status);
  int (*stream_begin_capture)(CuStream stream, int mode);
  int (*exchange_capture_mode)(int* mode);  // of this thread
  int (*stream_end_capture)(CuStream stream, CuGraph* graph);
  int (*graph_instantiate)(CuGraphExec* executable, CuGraph graph, unsigned long long flags);
  int (*graph_launch)(CuGraphExec executable, CuStream stream);
  int (*graph_executable_destroy)(CuGraphExec executable);
  int (*graph_destroy)(CuGraph graph);
  int (*event_create)(CuEvent* event, unsigned flags);
  int (*event_destroy)(CuEvent event);
  int (*event_record)(CuEvent event, CuStream stream);
  int (*event_query)(CuEvent event);
  int (*event_synchronize)(CuEvent event);
  int (*event_elapsed)(float* milliseconds, CuEvent start, CuEvent end);

  // May be null.
  int (*launch_ex)(const CuLaunchConfig* config, CuFunction function, void** args, void** extra);  // CUDA 11.8
  int (*cluster_occupancy)(int* clusters, CuFunction function, const CuLaunchConfig* config);      // CUDA 11.8
  // Conditional nodes of graphs, CUDA 12.4: all or none.
  int (*stream_capture_info)(CuStream stream, int* status, std::uint64_t* id, CuGraph* graph, const CuGraphNode** nodes,
                             const void** edges, std::size_t* count);
  int (*stream_set_dependencies)(CuStream stream, CuGraphNode* nodes, const void* edges, std::size_t count,
                                 unsigned flags);
  int (*stream_begin_capture_to_graph)(CuStream stream, CuGraph graph, const CuGraphNode* nodes, const void* edges,
                                       std::size_t count, int mode);
  int (*graph_condition)(CuGraphCondition* condition, CuGraph graph, CuContext context, unsigned value, unsigned flags);
  int (*graph_add_node)(CuGraphNode* node, CuGraph graph, const CuGraphNode* nodes, const void* edges,
                        std::size_t count, void* params);
  bool has_conditions() const {
    return stream_capture_info != nullptr && stream_set_dependencies != nullptr &&
           stream_begin_capture_to_graph != nullptr && graph_condition != nullptr && graph_add_node != nullptr;
  }
  /// cuTensorMapEncodeTiled, CUDA 12.0; the map is 128 bytes at an address divisible by 64.
  int (*tensor_map_tiled)(void* map, int type, std::uint32_t rank, void* address, const std::uint64_t* dims,
                          const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* element_strides,
                          int interleave, int swizzle, int promotion, int out_of_bounds);
};

/// The driver, started; nullptr when there is none that works here. The first call may take a tenth of a second.
const CudaDriver* cuda_driver();
/// Why cuda_driver() is null, one line; empty when it is not.
std::string cuda_why_not();
/// The driver, or an error that says what `op` needs: unsupported where there is none, device in a forked child.
const CudaDriver& need_cuda(const char* op);
/// The newest CUDA that the driver serves, 12040 for 12.4; 0 without a driver. Does not start it.
int cuda_driver_version();

struct CudaDevice {
  int index = 0;
  std::string name;
  int major = 0, minor = 0, multiprocessors = 0;
  std::int64_t memory = 0;                                           // bytes, as are the next three
  std::int64_t shared_per_block = 0, shared_per_multiprocessor = 0;  // a block's: the most it can opt in to
  std::int64_t l2_bytes = 0;
  bool memory_pools = false;  // memory_alloc_async works

  int capability() const { return major * 10 + minor; }
  /// What NVRTC is asked for: "sm_80", "sm_90a". From 9.0 on with the features of this very generation.
  std::string architecture() const;
};

/// All devices, in the driver's order; empty without a driver. Devices too old for Mercer are among them.
const std::vector<CudaDevice>& cuda_devices();
int cuda_device_count();
/// Throws unsupported where there is no driver or the device is older than compute capability 8.0, invalid_argument
/// for an index that there is not, device in a forked child.
const CudaDevice& cuda_device(int index);
struct CudaRates {
  double clock = 0;   // Hz; 0 where the driver does not say
  double memory = 0;  // bytes a second by its clock and width, likewise
};
/// Asked of the driver at every call, which takes it 0.9 ms (H200).
CudaRates cuda_rates(const CudaDevice& device);
/// The device that an address belongs to; -1 for memory of the host.
int cuda_device_of(const void* pointer);
/// True while a CUDA graph is being recorded from this stream: nothing may be compiled, allocated or waited for.
bool cuda_is_capturing(int device, CuStream stream);

/// While it lives, the device's primary context is current on this thread, the one that the runtime API uses; then the
/// former one is again. Costs some 20 ns when it is current already.
class CudaScope {
 public:
  explicit CudaScope(int device);
  ~CudaScope();
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

 private:
  bool pushed_ = false;
};

/// While it lives, this thread may load modules though graphs are being captured.
class CaptureBreak {
 public:
  CaptureBreak();
  ~CaptureBreak();
  CaptureBreak(const CaptureBreak&) = delete;
  CaptureBreak& operator=(const CaptureBreak&) = delete;

 private:
  int mode_ = kCuCaptureRelaxed;
};

/// Throws device unless `result` is success: "<what>: the CUDA driver must accept it. Received CUDA_ERROR_…".
/// `bytes` is what was asked for, where memory was.
void check_cuda(int result, const char* what, std::int64_t bytes = -1);
/// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
std::string cuda_error_text(int result);

/// Driver and GPUs as lines of text, or why there are none.
std::string describe_cuda();

}  // namespace mercer
