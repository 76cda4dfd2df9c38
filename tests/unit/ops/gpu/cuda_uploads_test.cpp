// Numbers of the host on their way to a device: their memory may change or go as soon as the call returns.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/runtime/uploads.h"
#include "ops/cuda_mirror.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

/// Bytes that say where they are.
void number(std::vector<unsigned char>& bytes, unsigned seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>((i * 31 + seed * 7) >> (i % 5));
}

class Uploads : public ::testing::Test {
 protected:
  void SetUp() override { on_cuda([this](TestContext&) { is_there_ = true; }); }
  bool is_there_ = false;
};

TEST_F(Uploads, SourcesMayGoAtOnce) {
  if (!is_there_) return;
  const DeviceStream stream;
  const Queue queue{.stream = static_cast<CuStream>(stream)};
  const cuda::PairJob place = cuda::place_of("test", {DeviceKind::cuda, 0}, queue, Dtype::float32);
  const CudaScope scope(0);
  constexpr std::size_t kMost = 3u << 20;
  const DeviceMemory memory(0, kMost);
  for (const std::size_t size : {std::size_t{1}, std::size_t{1000}, (std::size_t{1} << 14) + 1, kMost}) {
    std::vector<unsigned char> source(size), wanted(size), found(size);
    number(wanted, 1);
    source = wanted;
    cuda::upload(place, memory.data(), source.data(), size);
    std::fill(source.begin(), source.end(), 0xee);
    stream.download(found.data(), memory.at(), static_cast<std::int64_t>(size));
    EXPECT_TRUE(found == wanted) << size;
  }
  // More of them than there is pinned memory for.
  constexpr std::size_t kOnes = 150, kSize = 999;
  std::vector<unsigned char> source(kSize), found(kOnes * kSize);
  for (unsigned one = 0; one < kOnes; ++one) {
    number(source, one);
    cuda::upload(place, memory.data() + one * kSize, source.data(), kSize);
  }
  stream.download(found.data(), memory.at(), kOnes * kSize);
  for (unsigned one = 0; one < kOnes; ++one) {
    number(source, one);
    EXPECT_TRUE(std::equal(source.begin(), source.end(), found.begin() + one * kSize)) << one;
  }
}

TEST_F(Uploads, CapturesRefuse) {
  if (!is_there_) return;
  const DeviceStream stream;
  const Queue queue{.stream = static_cast<CuStream>(stream)};
  const cuda::PairJob place = cuda::place_of("test", {DeviceKind::cuda, 0}, queue, Dtype::float32);
  const CudaScope scope(0);
  const DeviceMemory memory(0, 256);
  std::string message;
  const int source = 3;
  const Recording recording(stream, [&] {
    message = message_of([&] { cuda::upload(place, memory.data(), &source, sizeof source); });
  });
  EXPECT_NE(message.find("numbers of the host must not be copied in the capture"), std::string::npos) << message;
}

}  // namespace
}  // namespace mercer
