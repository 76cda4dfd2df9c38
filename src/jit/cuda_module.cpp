#include "jit/cuda_module.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/devices/nvrtc.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/system/mutex.h"

namespace mercer::jit {
namespace {

constexpr std::int64_t kSharedWithoutAsking = 48 << 10;  // static and dynamic together

int attribute(const CudaDriver& cuda, int which, CuFunction function) {
  int value = 0;
  check_cuda(cuda.function_attribute(&value, which, function), "cuda: cuFuncGetAttribute");
  return value;
}

std::string to_text(Dim3 d) { return fmt::format("{} x {} x {}", d.x, d.y, d.z); }

/// Modules are found again by device and bytes; the registry outlives every static object that may still hold one.
struct Registry {
  Mutex mutex;
  std::map<std::pair<int, std::string>, std::shared_ptr<const CudaModule>> modules;
};

Registry& registry() {
  static constinit Lazy<Registry> kept;
  return kept.get();
}

[[noreturn]] void fail_to_load(int result, const CudaBinary& binary, const CudaDevice& device) {
  const int driver = cuda_driver_version();
  const bool mismatch = result == kCuInvalidImage || result == kCuNoBinary || result == kCuUnsupportedPtx;
  if (!mismatch)
    check_cuda(result, ("cuda: loading " + binary.name).c_str(), static_cast<std::int64_t>(binary.cubin.size()));
  fail(ErrorKind::device,
       "cuda: {}, compiled for {}, must load on {} ({}) with a driver of CUDA {}.{}. Received {}; a driver older than "
       "NVRTC refuses its code: pip install {}, then mercer cache clear.",
       binary.name, binary.architecture, device.name, device.architecture(), driver / 1000, driver % 1000 / 10,
       cuda_error_text(result), nvrtc_package());
}

}  // namespace

CudaFunction::CudaFunction(CuFunction handle, std::string name, const CudaDevice& device)
    : handle_(handle), name_(std::move(name)), device_(&device) {
  const CudaDriver& cuda = need_cuda("cuda");
  registers_ = attribute(cuda, kCuFunctionRegisters, handle);
  static_shared_ = attribute(cuda, kCuFunctionSharedBytes, handle);
  max_threads_ = attribute(cuda, kCuFunctionMaxThreads, handle);
}

int CudaFunction::clusters_at_once(int cluster, int threads, std::int64_t dynamic_shared) const {
  const CudaScope scope(device_->index);
  const CudaDriver& cuda = need_cuda("cuda");
  if (cuda.cluster_occupancy == nullptr) return 0;
  opt_in_to_shared(dynamic_shared);
  CuLaunchAttribute attribute;
  attribute.id = kCuLaunchCluster;
  attribute.value.cluster = {static_cast<unsigned>(cluster), 1, 1};
  CuLaunchConfig config;
  config.grid_x = static_cast<unsigned>(cluster);
  config.block_x = static_cast<unsigned>(threads);
  config.shared_bytes = static_cast<unsigned>(dynamic_shared);
  config.attributes = &attribute;
  config.attribute_count = 1;
  int clusters = 0;
  return cuda.cluster_occupancy(&clusters, handle_, &config) == kCuSuccess ? clusters : 0;
}

void CudaFunction::opt_in_to_shared(std::int64_t dynamic_shared) const {
  if (static_shared_ + dynamic_shared <= kSharedWithoutAsking) return;
  if (dynamic_shared <= opted_in_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);  // the limit must only ever rise
  if (dynamic_shared <= opted_in_.load(std::memory_order_relaxed)) return;
  const int result =
      need_cuda("cuda").set_function_attribute(handle_, kCuFunctionMaxDynamicShared, static_cast<int>(dynamic_shared));
  check_cuda(result, "cuda: cuFuncSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)");
  opted_in_.store(dynamic_shared, std::memory_order_release);
}

// A multiprocessor divides its memory between the first-level cache and shared memory, by what the kernel on it would
// have, and does so anew only when it is empty: kernels that ask for different shares never overlap.
void CudaFunction::share_alike() const {
  constexpr int kAllShared = 100;  // percent
  if (shares_alike_.exchange(true, std::memory_order_relaxed)) return;
  const int result = need_cuda("cuda").set_function_attribute(handle_, kCuFunctionCarveout, kAllShared);
  check_cuda(result, "cuda: cuFuncSetAttribute(PREFERRED_SHARED_MEMORY_CARVEOUT)");
}

void CudaFunction::prepare(Dim3 grid, Dim3 block, std::int64_t dynamic_shared) const {
  constexpr std::int64_t kMostGridX = (std::int64_t{1} << 31) - 1, kMostGridYZ = 65535;
  const bool grid_ok =
      std::min({grid.x, grid.y, grid.z}) >= 1 && grid.x <= kMostGridX && std::max(grid.y, grid.z) <= kMostGridYZ;
  if (!grid_ok)
    fail(ErrorKind::device, "cuda: a grid of {} must be from 1 to 2147483647 x 65535 x 65535 blocks. Received {}.",
         name_, to_text(grid));
  const bool block_ok = std::min({block.x, block.y, block.z}) >= 1 && block.x * block.y * block.z <= max_threads_;
  if (!block_ok)
    fail(ErrorKind::device, "cuda: a block of {} must have from 1 to {} threads. Received {}.", name_, max_threads_,
         to_text(block));
  if (dynamic_shared < 0 || static_shared_ + dynamic_shared > device_->shared_per_block)
    fail(ErrorKind::device,
         "cuda: a block of {} must fit the {} bytes of shared memory of {}. Received {} static and {} dynamic.", name_,
         device_->shared_per_block, device_->name, static_shared_, dynamic_shared);
  opt_in_to_shared(dynamic_shared);
}

void CudaFunction::check_launch(int result, Dim3 grid, Dim3 block, std::int64_t dynamic_shared) const {
  if (result == kCuSuccess) [[likely]]
    return;
  const std::string what =
      fmt::format("cuda: launching {} ({} blocks of {} threads, {} registers a thread, {} bytes of shared memory)",
                  name_, to_text(grid), to_text(block), registers_, static_shared_ + dynamic_shared);
  check_cuda(result, what.c_str());
}

void CudaFunction::launch(Dim3 grid, Dim3 block, std::int64_t dynamic_shared, CuStream stream, void** args) const {
  const CudaScope scope(device_->index);
  prepare(grid, block, dynamic_shared);
  const auto u = [](std::int64_t value) { return static_cast<unsigned>(value); };
  const int result = need_cuda("cuda").launch(handle_, u(grid.x), u(grid.y), u(grid.z), u(block.x), u(block.y),
                                              u(block.z), u(dynamic_shared), stream, args, nullptr);
  check_launch(result, grid, block, dynamic_shared);
}

void CudaFunction::launch_clusters(Dim3 grid, Dim3 block, Dim3 cluster, std::int64_t dynamic_shared, CuStream stream,
                                   void** args, Overlap overlap) const {
  const CudaScope scope(device_->index);
  const CudaDriver& cuda = need_cuda("cuda");
  if (cuda.launch_ex == nullptr || device_->major < 9)
    fail(ErrorKind::unsupported,
         "cuda: clusters need compute capability 9.0 and a driver of CUDA 11.8. Received {}.{} ({}).", device_->major,
         device_->minor, device_->name);
  prepare(grid, block, dynamic_shared);
  const auto u = [](std::int64_t value) { return static_cast<unsigned>(value); };
  const std::int64_t blocks = cluster.x * cluster.y * cluster.z;
  constexpr std::int64_t kPortableCluster = 8;
  if (blocks > kPortableCluster)
    check_cuda(cuda.set_function_attribute(handle_, kCuFunctionNonPortableCluster, 1), "cuda: clusters of more than 8");
  CuLaunchAttribute attributes[2];
  unsigned count = 0;
  if (blocks > 1) {
    attributes[count].id = kCuLaunchCluster;
    attributes[count++].value.cluster = {u(cluster.x), u(cluster.y), u(cluster.z)};
  }
  if (overlap != Overlap::none) {
    if (overlap == Overlap::blocks) share_alike();
    attributes[count].id = kCuLaunchProgrammaticSerialization;
    attributes[count++].value.programmatic_serialization = 1;
  }
  const CuLaunchConfig config{u(grid.x),  u(grid.y),         u(grid.z), u(block.x), u(block.y),
                              u(block.z), u(dynamic_shared), stream,    attributes, count};
  check_launch(cuda.launch_ex(&config, handle_, args, nullptr), grid, block, dynamic_shared);
}

CudaModule::CudaModule(const CudaBinary& binary, const CudaDevice& device)
    : name_(binary.name), device_(&device), is_quick_(binary.is_quick) {
  const CudaScope scope(device.index);
  const int result = need_cuda("cuda").module_load(&handle_, binary.cubin.c_str());  // PTX must end in 0
  if (result != kCuSuccess) fail_to_load(result, binary, device);
}

CudaModule::~CudaModule() {
  try {
    const CudaScope scope(device_->index);
    need_cuda("cuda").module_unload(handle_);
  } catch (const Error&) {  // the context is lost, and the module with it
  }
}

std::shared_ptr<const CudaModule> CudaModule::load(const CudaBinary& binary, int device) {
  const CudaDevice& where = cuda_device(device);
  const std::pair key(device, hash128(binary.cubin).to_text());
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (const auto known = all.modules.find(key); known != all.modules.end()) {
    if (!binary.is_quick) known->second->is_quick_ = false;
    return known->second;
  }
  const std::shared_ptr<const CudaModule> module(new CudaModule(binary, where));
  all.modules.emplace(key, module);
  return module;
}

const CudaFunction& CudaModule::function(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = functions_.find(name); known != functions_.end()) return known->second;
  constexpr int kNotFound = 500;
  const CudaScope scope(device_->index);
  CuFunction handle = nullptr;
  const int result = need_cuda("cuda").module_function(&handle, handle_, name.c_str());
  if (result == kNotFound)
    fail(ErrorKind::compile, "cuda: {} must have the kernel that is asked for. Received {}.", name_, name);
  check_cuda(result, "cuda: cuModuleGetFunction");
  return functions_.try_emplace(name, handle, name, *device_).first->second;
}

int trim_cuda_modules() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return static_cast<int>(std::erase_if(all.modules, [](const auto& entry) { return entry.second.use_count() <= 1; }));
}

int cuda_module_count() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return static_cast<int>(all.modules.size());
}

int quick_cuda_module_count() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto is_quick = [](const auto& entry) { return entry.second->is_quick(); };
  return static_cast<int>(std::count_if(all.modules.begin(), all.modules.end(), is_quick));
}

}  // namespace mercer::jit
