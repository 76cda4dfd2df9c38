// CUDA device pointers on a stream of one's own: the call goes into the stream and returns at once. Without a GPU the
// program says so. A program with the CUDA toolkit says cudaMalloc and cudaStreamCreate; this one, to be built without
// it, takes the driver's functions from libcuda.so.1.
#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "check.h"
#include "mercer/mercer.h"

namespace {

constexpr std::int64_t kRows = 200, kColumns = 100, kFeatures = 16;
void* const kDriver = dlopen("libcuda.so.1", RTLD_NOW);

template <class... Arguments>
void cuda(const char* function, Arguments... arguments) {
  using Function = int(Arguments...);
  const int status = reinterpret_cast<Function*>(dlsym(kDriver, function))(arguments...);
  if (status == 0) return;
  std::printf("%s: CUDA error %d\n", function, status);
  std::exit(1);
}

bool has_gpu() {
  int count = 0;
  if (kDriver == nullptr || reinterpret_cast<int (*)(unsigned)>(dlsym(kDriver, "cuInit"))(0) != 0) return false;
  cuda("cuDeviceGetCount", &count);
  return count > 0;
}

/// Memory of the device as a float32 array, a copy of `values` put into the stream.
mercer::Tensor on_device(const std::vector<float>& values, std::vector<std::int64_t> shape, void* stream) {
  std::uint64_t address = 0;
  cuda("cuMemAlloc_v2", &address, values.size() * sizeof(float));
  cuda("cuMemcpyAsync", address, std::uint64_t(values.data()), values.size() * sizeof(float), stream);
  mercer::Tensor array(reinterpret_cast<void*>(address), mercer::Dtype::float32, std::move(shape));
  array.device = {mercer::DeviceKind::cuda, 0};
  return array;
}

}  // namespace

int main() try {
  if (!has_gpu()) return std::puts("no GPU here: nothing to show"), 0;
  void *context = nullptr, *stream = nullptr;
  cuda("cuDevicePrimaryCtxRetain", &context, 0);  // what cudaSetDevice(0) does
  cuda("cuCtxPushCurrent_v2", context);
  cuda("cuStreamCreate", &stream, 1u);  // one that does not wait for the default stream

  const std::vector<float> x = normal_values(kRows * kFeatures, 1), z = normal_values(kColumns * kFeatures, 2);
  std::vector<float> result(kRows * kColumns);
  const mercer::Tensor x_there = on_device(x, {kRows, kFeatures}, stream);
  const mercer::Tensor z_there = on_device(z, {kColumns, kFeatures}, stream);
  const mercer::Tensor out = on_device(result, {kRows, kColumns}, stream);

  mercer::Arguments arguments;
  arguments.params = {{"h", 8.0}};
  arguments.queue.stream = stream;  // `queue.allocate` takes a memory pool of your own
  mercer::pairwise("exp(-sum(abs(x-z))/h)", x_there, &z_there, out, arguments);
  cuda("cuMemcpyAsync", std::uint64_t(result.data()), std::uint64_t(out.data), result.size() * sizeof(float), stream);
  cuda("cuStreamSynchronize", stream);

  Worst worst;
  for (std::int64_t m = 0; m < kRows; ++m)
    for (std::int64_t n = 0; n < kColumns; ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < kFeatures; ++k) sum += std::abs(double(x[m * kFeatures + k]) - z[n * kFeatures + k]);
      worst.compare(result[m * kColumns + n], std::exp(-sum / 8));
    }
  for (const mercer::Tensor& array : {x_there, z_there, out}) cuda("cuMemFree_v2", std::uint64_t(array.data));
  cuda("cuStreamDestroy_v2", stream);
  return worst.report("a kernel matrix on a GPU", 2e-6);
} catch (const mercer::Error& error) {
  std::puts(error.what());
  return error.kind() == mercer::ErrorKind::unsupported ? 0 : 1;  // an old GPU, or no NVRTC
}
