// A cubin loaded on a device, its functions, launches.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/devices/cuda_driver.h"
#include "core/system/mutex.h"
#include "jit/cuda_compile.h"

namespace mercer::jit {

struct Dim3 {
  std::int64_t x = 1, y = 1, z = 1;
};

/// What of a kernel may run during the end of the one ahead of it on the stream: its launch; or its blocks too, for
/// which it gives up its first-level cache: kernels that stream large matrices take up to 1.8 times as long.
enum class Overlap : std::uint8_t { none, launch, blocks };

/// A kernel ready to run. Belongs to its module and lives as long as that.
class CudaFunction {
 public:
  CudaFunction(CuFunction handle, std::string name, const CudaDevice& device);

  const std::string& name() const { return name_; }
  CuFunction handle() const { return handle_; }
  int registers() const { return registers_; }
  /// Clusters of so many blocks that the device holds at once; 0 where the driver does not tell.
  int clusters_at_once(int cluster, int threads, std::int64_t dynamic_shared) const;

  /// Puts the kernel onto the stream and returns; `args` are pointers to the arguments, in order. Dynamic shared memory
  /// beyond 48 KB is opted in to at the first launch that asks for it. Throws device for a launch that the device
  /// cannot do, before it is tried where the sizes tell.
  void launch(Dim3 grid, Dim3 block, std::int64_t dynamic_shared, CuStream stream, void** args) const;
  /// As `launch`, in clusters of blocks (compute capability 9.0 and newer), and allowed to start before the kernel
  /// ahead of it on the stream has ended; it then waits itself (griddepcontrol.wait).
  void launch_clusters(Dim3 grid, Dim3 block, Dim3 cluster, std::int64_t dynamic_shared, CuStream stream, void** args,
                       Overlap overlap = Overlap::none) const;

 private:
  void prepare(Dim3 grid, Dim3 block, std::int64_t dynamic_shared) const;
  void check_launch(int result, Dim3 grid, Dim3 block, std::int64_t dynamic_shared) const;
  void opt_in_to_shared(std::int64_t dynamic_shared) const;
  void share_alike() const;

  CuFunction handle_;
  std::string name_;
  const CudaDevice* device_;
  int registers_ = 0, static_shared_ = 0, max_threads_ = 0;
  mutable Mutex mutex_;
  mutable std::atomic<std::int64_t> opted_in_{0};  // bytes of dynamic shared memory
  mutable std::atomic<bool> shares_alike_{false};
};

/// A loaded cubin. Loading synchronises the device, so it must not happen inside a graph capture; nor is it undone by
/// itself: unloading synchronises too and breaks captured graphs.
class CudaModule {
 public:
  /// The module of these bytes on this device: loaded once in the life of the process.
  static std::shared_ptr<const CudaModule> load(const CudaBinary& binary, int device);
  ~CudaModule();
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;

  int device() const { return device_->index; }
  /// Whether it was loaded for quick kernels alone: full ones may have the same bytes.
  bool is_quick() const { return is_quick_; }
  /// A kernel of it by its name in the cubin: declare kernels extern "C". Throws compile when there is none.
  const CudaFunction& function(const std::string& name) const;

 private:
  CudaModule(const CudaBinary& binary, const CudaDevice& device);

  std::string name_;
  const CudaDevice* device_;
  CuModule handle_ = nullptr;
  mutable std::atomic<bool> is_quick_;
  mutable Mutex mutex_;
  mutable std::map<std::string, CudaFunction> functions_;
};

/// Unloads the modules that nobody holds and returns their number, for tests, which count modules. It waits for the
/// devices; graphs that were captured with their kernels must not be launched again.
int trim_cuda_modules();
/// Modules loaded now, and those of them whose kernels were compiled quickly.
int cuda_module_count();
int quick_cuda_module_count();

}  // namespace mercer::jit
