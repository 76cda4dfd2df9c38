#include "ops/tune/product_samples.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "core/system/mutex.h"
#include "mercer/formula.h"
#include "mercer/pairwise.h"
#include "ops/tune/stopwatch.h"

namespace mercer::ops {
namespace {

constexpr const char* kTune = "tune";

/// Numbers of any size up to 1.
template <class Number>
std::vector<char> drawn(std::int64_t count) {
  std::vector<char> bytes(static_cast<std::size_t>(count) * sizeof(Number));
  std::minstd_rand bits(1);
  const Number most = static_cast<Number>(std::minstd_rand::max());
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Number)) {
    const Number number = 2 * static_cast<Number>(bits()) / most - 1;
    std::memcpy(bytes.data() + at, &number, sizeof number);
  }
  return bytes;
}

/// Sums of |x - z| are no products of matrices; of float64 it is Gauss kernels whose values take long.
const Formula& formula_of(Dtype type) {
  static constinit Lazy<Formula> laplace, gauss;
  return type == Dtype::float64 ? gauss.get([] { return Formula("exp(-sum((x-z)^2)/16)"); })
                                : laplace.get([] { return Formula("exp(-sum(abs(x-z))/16)"); });
}

}  // namespace

SampleMemory::SampleMemory(int device, std::int64_t bytes) : device_(device) {
  const CudaScope scope(device_);
  check_cuda(need_cuda(kTune).memory_alloc(&memory_, static_cast<std::size_t>(bytes)), kTune, bytes);
}

SampleMemory::~SampleMemory() {
  const CudaScope scope(device_);
  cuda_driver()->memory_free(memory_);
}

Tensor SampleMemory::array(std::int64_t offset, Dtype type, std::vector<std::int64_t> shape) const {
  Tensor tensor(reinterpret_cast<void*>(memory_ + static_cast<CuPointer>(offset)), type, std::move(shape));
  tensor.device = {DeviceKind::cuda, device_};
  return tensor;
}

void SampleMemory::upload(const std::vector<char>& bytes) const {
  const CudaScope scope(device_);
  const CudaDriver& driver = need_cuda(kTune);
  check_cuda(driver.copy_async(memory_, reinterpret_cast<CuPointer>(bytes.data()), bytes.size(), nullptr), kTune);
  check_cuda(driver.stream_synchronize(nullptr), kTune);
}

ProductSamples::ProductSamples(int device) : device_(cuda_device(device).index) {
  stores_.set_ways("kernel_product:materialised");
  passes_.set_ways("kernel_product:direct");
  double_passes_.set_ways("kernel_product:gemm_sum_float64");
}

double ProductSamples::milliseconds(const plan::ProductSample& sample) {
  constexpr std::size_t kCalls = 5;
  const Dtype type = sample.type;
  const std::int64_t n = sample.points, k = sample.features, columns = sample.columns;
  const std::int64_t inputs = n * (2 * k + columns), element = static_cast<std::int64_t>(size_of(type));
  const SampleMemory memory(device_, (inputs + n * columns) * element);
  memory.upload(type == Dtype::float64 ? drawn<double>(inputs) : drawn<float>(inputs));
  const Tensor x = memory.array(0, type, {n, k}), z = memory.array(n * k * element, type, {n, k});
  const Tensor v = memory.array(2 * n * k * element, type, {n, columns});
  const Tensor out = memory.array(inputs * element, type, {n, columns});
  Context& context = sample.stores ? stores_ : type == Dtype::float64 ? double_passes_ : passes_;
  const auto call = [&] { kernel_product(formula_of(type), x, &z, v, out, {.verb = kTune}, context); };
  call();
  const CudaScope scope(device_);
  Stopwatch watch(nullptr);
  std::array<double, kCalls> times;
  for (double& time : times) time = watch(1, call);
  std::ranges::sort(times);
  return times[kCalls / 2];
}

}  // namespace mercer::ops
