// The CUDA driver: harmless and explained where there is none, and what it says where there is.
#include "core/devices/cuda_driver.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/testing.h"
#include "device/nvrtc.h"

namespace mercer {
namespace {

using testing_support::error_of;
using testing_support::holds_in_child;

TEST(CudaDriver, architectures_have_names) {
  CudaDevice device;
  device.major = 8, device.minor = 6;
  EXPECT_EQ(device.architecture(), "sm_86");
  device.major = 9, device.minor = 0;
  EXPECT_EQ(device.architecture(), "sm_90a");
  device.major = 12, device.minor = 1;
  EXPECT_EQ(device.architecture(), "sm_121a");
  EXPECT_EQ(device.capability(), 121);
}

TEST(CudaDriver, errors_say_the_rule_and_the_code) {
  check_cuda(kCuSuccess, "test");
  const Error plain = error_of([] { check_cuda(1, "pairwise: cuLaunchKernel"); });
  EXPECT_EQ(plain.kind(), ErrorKind::device);
  EXPECT_EQ(std::string(plain.what()).find("pairwise: cuLaunchKernel: the CUDA driver must accept it. Received "), 0u);
  const Error memory = error_of([] { check_cuda(kCuOutOfMemory, "pairwise: out", 12345); });
  EXPECT_NE(std::string(memory.what()).find("12345 bytes more"), std::string::npos) << memory.what();
  const Error lost = error_of([] { check_cuda(700, "pairwise"); });
  EXPECT_NE(std::string(lost.what()).find("cannot use the GPU any more"), std::string::npos) << lost.what();
}

TEST(CudaDriver, without_one_there_is_a_reason) {
  if (cuda_driver() != nullptr) GTEST_SKIP() << "there is a driver";
  EXPECT_NE(cuda_why_not(), "");
  EXPECT_EQ(cuda_device_count(), 0);
  EXPECT_TRUE(cuda_devices().empty());
  const int local = 0;
  EXPECT_EQ(cuda_device_of(&local), -1);
  for (const Error& error : {error_of([] { cuda_device(0); }), error_of([] { CudaScope scope(0); })}) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(error.what()).find(cuda_why_not()), std::string::npos) << error.what();
  }
  EXPECT_EQ(describe_cuda(), "GPU: none; " + cuda_why_not() + "\n");
  EXPECT_TRUE(holds_in_child([] { return cuda_device_count() == 0 && !cuda_why_not().empty(); }));
}

TEST(CudaDriver, many_threads_ask_at_once) {
  std::vector<std::thread> threads;
  std::vector<int> counts(8, -1);
  for (int& count : counts) threads.emplace_back([&count] { count = cuda_device_count(); });
  for (std::thread& thread : threads) thread.join();
  for (const int count : counts) EXPECT_EQ(count, cuda_device_count());
}

TEST(CudaDevices, are_described) {
  MERCER_NEEDS_GPU();
  for (const CudaDevice& device : cuda_devices()) {
    EXPECT_GE(device.major, 5);
    EXPECT_GT(device.memory, std::int64_t{1} << 30);
    EXPECT_GT(device.multiprocessors, 0);
    EXPECT_GE(device.shared_per_block, 48 << 10);
    EXPECT_GE(device.shared_per_multiprocessor, device.shared_per_block);
    EXPECT_GT(device.l2_bytes, 0);
    EXPECT_NE(describe_cuda().find(device.name), std::string::npos);
  }
  EXPECT_GE(cuda_driver_version(), 11000);
  EXPECT_EQ(error_of([] { cuda_device(cuda_device_count()); }).kind(), ErrorKind::invalid_argument);
  EXPECT_EQ(error_of([] { cuda_device(-1); }).kind(), ErrorKind::invalid_argument);
}

TEST(CudaDevices, scopes_nest_and_restore) {
  MERCER_NEEDS_GPU();
  const CudaDriver& cuda = *cuda_driver();
  CuContext before = nullptr, inside = nullptr, nested = nullptr, after = nullptr;
  cuda.context_current(&before);
  {
    const CudaScope scope(0);
    cuda.context_current(&inside);
    EXPECT_NE(inside, nullptr);
    {
      const CudaScope again(cuda_device_count() - 1);
      const CudaScope back(0);
      cuda.context_current(&nested);
      EXPECT_EQ(nested, inside);
    }
    cuda.context_current(&nested);
    EXPECT_EQ(nested, inside);
  }
  cuda.context_current(&after);
  EXPECT_EQ(after, before);
}

TEST(CudaDevices, memory_is_set_copied_and_belongs_to_its_device) {
  MERCER_NEEDS_GPU();
  const CudaScope scope(0);
  const CudaDriver& cuda = *cuda_driver();
  CuPointer pointer = 0;
  check_cuda(cuda.memory_alloc(&pointer, 1024), "test", 1024);
  EXPECT_EQ(cuda_device_of(reinterpret_cast<const void*>(pointer)), 0);
  std::vector<unsigned> words(256, 7);
  EXPECT_EQ(cuda_device_of(words.data()), -1);
  check_cuda(cuda.set_words_async(pointer, 42, 256, nullptr), "test");
  check_cuda(cuda.copy_async(reinterpret_cast<CuPointer>(words.data()), pointer, 1024, nullptr), "test");
  check_cuda(cuda.stream_synchronize(nullptr), "test");
  EXPECT_EQ(words, std::vector<unsigned>(256, 42));
  check_cuda(cuda.memory_free(pointer), "test");
  const std::int64_t too_much = std::int64_t{1} << 46;
  const Error error = error_of([&] {
    CuPointer never = 0;
    check_cuda(cuda.memory_alloc(&never, static_cast<std::size_t>(too_much)), "test", too_much);
  });
  EXPECT_NE(std::string(error.what()).find("bytes are free"), std::string::npos) << error.what();
}

TEST(CudaDevices, a_recording_stream_is_known) {
  MERCER_NEEDS_GPU();
  const CudaScope scope(0);
  const CudaDriver& cuda = *cuda_driver();
  CuStream stream = nullptr;
  CuGraph graph = nullptr;
  check_cuda(cuda.stream_create(&stream, kCuStreamNonBlocking), "test");
  EXPECT_FALSE(cuda_is_capturing(0, stream));
  check_cuda(cuda.stream_begin_capture(stream, kCuCaptureThreadLocal), "test");
  EXPECT_TRUE(cuda_is_capturing(0, stream));
  check_cuda(cuda.stream_end_capture(stream, &graph), "test");
  EXPECT_FALSE(cuda_is_capturing(0, stream));
  check_cuda(cuda.graph_destroy(graph), "test");
  check_cuda(cuda.stream_destroy(stream), "test");
}

TEST(CudaDevices, a_forked_child_is_told_why_not) {
  MERCER_NEEDS_GPU();
  { const CudaScope scope(0); }
  EXPECT_TRUE(holds_in_child([] {
    const Error error = error_of([] { cuda_device(0); });
    return cuda_device_count() == 0 && error.kind() == ErrorKind::device &&
           std::string(error.what()).find("forked") != std::string::npos;
  }));
}

}  // namespace
}  // namespace mercer
