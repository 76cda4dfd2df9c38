// Loaded cubins: launches, shared memory beyond 48 KB, clusters, errors, trimming. Needs a GPU.
#include "jit/cuda_module.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "core/testing.h"
#include "device/nvrtc.h"

namespace mercer::jit {
namespace {

using testing_support::error_of;

const std::string kText = R"(
extern "C" __global__ void scale(float* out, const float* in, float factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * factor;
}
extern "C" __global__ void reverse(float* out, const float* in, int count) {
  extern __shared__ float values[];
  for (int i = threadIdx.x; i < count; i += blockDim.x) values[i] = in[i];
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = values[count - 1 - i];
}
)";

class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<float>& values) : size_(values.size()) {
    const CudaDriver& cuda = need_cuda("test");
    check_cuda(cuda.memory_alloc(&pointer_, size_ * sizeof(float)), "test");
    check_cuda(cuda.copy_async(pointer_, reinterpret_cast<CuPointer>(values.data()), size_ * sizeof(float), nullptr),
               "test");
  }
  ~DeviceArray() { cuda_driver()->memory_free(pointer_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  CuPointer* argument() { return &pointer_; }
  std::vector<float> values() const {
    std::vector<float> values(size_);
    const CudaDriver& cuda = need_cuda("test");
    check_cuda(cuda.copy_async(reinterpret_cast<CuPointer>(values.data()), pointer_, size_ * sizeof(float), nullptr),
               "test");
    check_cuda(cuda.stream_synchronize(nullptr), "test");
    return values;
  }

 private:
  std::size_t size_;
  CuPointer pointer_ = 0;
};

std::vector<float> counting(int count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = static_cast<float>(i);
  return values;
}

std::shared_ptr<const CudaModule> load(const std::string& text = kText) {
  CudaCompiler compiler(FileCache({}, 0), {});
  return CudaModule::load(compiler.compile_now({"test", text, cuda_device(0).architecture(), {}}), 0);
}

class CudaModuleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MERCER_NEEDS_GPU();
    MERCER_NEEDS_NVRTC();
    scope_ = std::make_unique<CudaScope>(0);
  }
  std::unique_ptr<CudaScope> scope_;
};

TEST_F(CudaModuleTest, launches) {
  const auto module = load();
  const CudaFunction& scale = module->function("scale");
  EXPECT_GT(scale.registers(), 0);
  EXPECT_EQ(&module->function("scale"), &scale);
  DeviceArray in(counting(1000)), out(std::vector<float>(1000, -1));
  float factor = 3;
  int count = 1000;
  void* args[] = {out.argument(), in.argument(), &factor, &count};
  scale.launch({4}, {256}, 0, nullptr, args);
  const std::vector<float> result = out.values();
  for (std::size_t i = 0; i < result.size(); ++i) ASSERT_EQ(result[i], 3.0f * static_cast<float>(i));
}

TEST_F(CudaModuleTest, shared_memory_beyond_48_kilobytes) {
  const auto module = load();
  const CudaFunction& reverse = module->function("reverse");
  for (const int count : {16 << 10, 24 << 10, 1000}) {  // 64, 96 and 4 KB
    DeviceArray in(counting(count)), out(std::vector<float>(static_cast<std::size_t>(count), -1));
    int size = count;
    void* args[] = {out.argument(), in.argument(), &size};
    reverse.launch({1}, {512}, count * 4, nullptr, args);
    EXPECT_EQ(out.values().front(), static_cast<float>(count - 1));
    EXPECT_EQ(out.values().back(), 0.0f);
  }
  const Error error = error_of([&] { reverse.launch({1}, {512}, 1 << 20, nullptr, nullptr); });
  EXPECT_EQ(error.kind(), ErrorKind::device);
  EXPECT_NE(std::string(error.what()).find("shared memory"), std::string::npos) << error.what();
}

TEST_F(CudaModuleTest, clusters_and_overlap) {
  if (cuda_device(0).major < 9) GTEST_SKIP() << "clusters need compute capability 9.0";
  const auto module = load();
  DeviceArray in(counting(1024)), out(std::vector<float>(1024, -1));
  float factor = 2;
  int count = 1024;
  void* args[] = {out.argument(), in.argument(), &factor, &count};
  for (const auto& [cluster, overlap] :
       {std::pair(1, Overlap::none), {1, Overlap::launch}, {2, Overlap::blocks}, {4, Overlap::none}})
    module->function("scale").launch_clusters({4}, {256}, {cluster}, 0, nullptr, args, overlap);
  EXPECT_EQ(out.values().back(), 2046.0f);
}

TEST_F(CudaModuleTest, a_recorded_graph_runs_again) {
  const auto module = load();
  const CudaDriver& cuda = need_cuda("test");
  DeviceArray in(counting(64)), out(std::vector<float>(64, -1));
  float factor = 5;
  int count = 64;
  void* args[] = {out.argument(), in.argument(), &factor, &count};
  const CudaFunction& scale = module->function("scale");
  check_cuda(cuda.context_synchronize(), "test");
  CuStream stream = nullptr;
  CuGraph graph = nullptr;
  CuGraphExec executable = nullptr;
  check_cuda(cuda.stream_create(&stream, kCuStreamNonBlocking), "test");
  check_cuda(cuda.stream_begin_capture(stream, kCuCaptureThreadLocal), "test");
  scale.launch({1}, {64}, 0, stream, args);
  check_cuda(cuda.stream_end_capture(stream, &graph), "test");
  check_cuda(cuda.graph_instantiate(&executable, graph, 0), "test");
  check_cuda(cuda.graph_launch(executable, stream), "test");
  check_cuda(cuda.stream_synchronize(stream), "test");
  EXPECT_EQ(out.values().back(), 315.0f);
  check_cuda(cuda.graph_executable_destroy(executable), "test");
  check_cuda(cuda.graph_destroy(graph), "test");
  check_cuda(cuda.stream_destroy(stream), "test");
}

TEST_F(CudaModuleTest, impossible_launches_are_refused) {
  const auto module = load();
  const CudaFunction& scale = module->function("scale");
  EXPECT_EQ(error_of([&] { scale.launch({1, 65536}, {32}, 0, nullptr, nullptr); }).kind(), ErrorKind::device);
  EXPECT_EQ(error_of([&] { scale.launch({0}, {32}, 0, nullptr, nullptr); }).kind(), ErrorKind::device);
  EXPECT_EQ(error_of([&] { scale.launch({1}, {2048}, 0, nullptr, nullptr); }).kind(), ErrorKind::device);
  EXPECT_EQ(error_of([&] { module->function("absent"); }).kind(), ErrorKind::compile);
}

TEST_F(CudaModuleTest, code_for_another_device_is_refused) {
  CudaBinary binary;
  binary.name = "broken";
  binary.architecture = "sm_80";
  binary.cubin = "no cubin";
  const Error error = error_of([&] { CudaModule::load(binary, 0); });
  EXPECT_EQ(error.kind(), ErrorKind::device);
  EXPECT_NE(std::string(error.what()).find("broken"), std::string::npos) << error.what();
}

TEST_F(CudaModuleTest, one_module_for_equal_bytes_and_trimming_spares_those_in_use) {
  trim_cuda_modules();
  const int before = cuda_module_count();
  {
    const auto first = load(), second = load();
    EXPECT_EQ(first, second);
    EXPECT_EQ(cuda_module_count(), before + 1);
    EXPECT_EQ(trim_cuda_modules(), 0);
  }
  EXPECT_EQ(trim_cuda_modules(), 1);
  EXPECT_EQ(cuda_module_count(), before);
}

TEST(CudaModule, without_a_gpu_there_is_a_reason) {
  if (cuda_driver() != nullptr) GTEST_SKIP() << "there is a driver";
  const Error error = error_of([] { CudaModule::load({}, 0); });
  EXPECT_EQ(error.kind(), ErrorKind::unsupported);
}

}  // namespace
}  // namespace mercer::jit
