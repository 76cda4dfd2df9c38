// Names, values and signatures of mercer/compat/fastkron.h; handles, sizes and errors.
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <type_traits>

#include "mercer/compat/fastkronMg.h"
#include "unit/compat/problem.h"

extern "C" fastKronError fastkron_product_in_c(const double* x, const double* f, const double* g, double* z);

namespace mercer {
namespace {

using namespace testing_support;
using Sizes32 = std::uint32_t*;
using Strides = std::uint64_t*;

// As in FastKron's own header: a program compiled against one links against the other.
template <class T>
using Gemkm = fastKronError (*)(fastKronHandle, fastKronBackend, uint32_t, uint32_t, Sizes32, Sizes32, const T*,
                                fastKronOp, const T* const*, fastKronOp, T*, T, T, const T*, T*, T*);
template <class T>
using Gekmm = fastKronError (*)(fastKronHandle, fastKronBackend, uint32_t, Sizes32, Sizes32, uint32_t, const T* const*,
                                fastKronOp, const T*, fastKronOp, T*, T, T, const T*, T*, T*);
template <class T>
using GemkmBatched = fastKronError (*)(fastKronHandle, fastKronBackend, uint32_t, uint32_t, Sizes32, Sizes32, const T*,
                                       fastKronOp, uint64_t, const T* const*, fastKronOp, Strides, T*, uint64_t, T, T,
                                       uint32_t, const T*, uint64_t, T*, T*);
template <class T>
using GekmmBatched = fastKronError (*)(fastKronHandle, fastKronBackend, uint32_t, Sizes32, Sizes32, uint32_t,
                                       const T* const*, fastKronOp, Strides, const T*, fastKronOp, uint64_t, T*,
                                       uint64_t, T, T, uint32_t, const T*, uint64_t, T*, T*);
template <class T>
using MkmForward = fastKronError (*)(fastKronHandle, fastKronBackend, uint32_t, uint32_t, Sizes32, Sizes32, const T*,
                                     fastKronOp, const T* const*, fastKronOp, T*, T**);
template <class T>
using KmmForward = fastKronError (*)(fastKronHandle, fastKronBackend, uint32_t, Sizes32, Sizes32, uint32_t,
                                     const T* const*, fastKronOp, const T*, fastKronOp, T*, T**);
template <class T>
using MkmForwardBatched = fastKronError (*)(fastKronHandle, fastKronBackend, uint32_t, uint32_t, Sizes32, Sizes32,
                                            const T*, fastKronOp, uint64_t, const T* const*, fastKronOp, Strides, T*,
                                            uint64_t, uint32_t, T**, Strides);
template <class T>
using KmmForwardBatched = fastKronError (*)(fastKronHandle, fastKronBackend, uint32_t, Sizes32, Sizes32, uint32_t,
                                            const T* const*, fastKronOp, Strides, const T*, fastKronOp, uint64_t, T*,
                                            uint64_t, uint32_t, T**, Strides);

template <class T>
constexpr bool has_signatures() {
  return std::is_same_v<decltype(Fast<T>::gemkm), const Gemkm<T>> &&
         std::is_same_v<decltype(Fast<T>::gekmm), const Gekmm<T>> &&
         std::is_same_v<decltype(Fast<T>::gemkm_batched), const GemkmBatched<T>> &&
         std::is_same_v<decltype(Fast<T>::gekmm_batched), const GekmmBatched<T>> &&
         std::is_same_v<decltype(Fast<T>::mkm_forward), const MkmForward<T>> &&
         std::is_same_v<decltype(Fast<T>::kmm_forward), const KmmForward<T>> &&
         std::is_same_v<decltype(Fast<T>::mkm_forward_batched), const MkmForwardBatched<T>> &&
         std::is_same_v<decltype(Fast<T>::kmm_forward_batched), const KmmForwardBatched<T>>;
}
static_assert(has_signatures<float>() && has_signatures<double>());
static_assert(std::is_same_v<decltype(&gekmmSizes), fastKronError (*)(fastKronHandle, uint32_t, uint32_t, Sizes32,
                                                                      Sizes32, size_t*, size_t*)>);
static_assert(std::is_same_v<decltype(&gekmmSizesForward), decltype(&gekmmSizes)>);
static_assert(std::is_same_v<decltype(&fastKronInit), fastKronError (*)(fastKronHandle*, uint32_t)>);
static_assert(std::is_same_v<decltype(&fastKronInitCUDA), fastKronError (*)(fastKronHandle, void*)>);
static_assert(std::is_same_v<decltype(&fastKronSetStream), fastKronError (*)(fastKronHandle, fastKronBackend, void*)>);
static_assert(std::is_same_v<decltype(&fastKronMgInitCUDA), fastKronError (*)(fastKronHandle, void*, int, int, int,
                                                                              int)>);
static_assert(std::is_same_v<fastKronHandle, void*> && sizeof(fastKronOp) == 4 && sizeof(fastKronError) == 4);
static_assert(fastKronOp_N == 1 && fastKronOp_T == 2);
static_assert(fastKronBackend_NONE == 1 && fastKronBackend_X86 == 2 && fastKronBackend_ARM == 4 &&
              fastKronBackend_CUDA == 8 && fastKronBackend_HIP == 16);
static_assert(fastKronOptionsNone == 1 && fastKronOptionsUseFusion == 2 && fastKronOptionsTune == 4);
static_assert(fastKronSuccess == 0 && fastKronBackendNotAvailable == 1 && fastKronInvalidMemoryAccess == 2 &&
              fastKronKernelNotFound == 3 && fastKronInvalidArgument == 4 && fastKronInvalidKMMProblem == 5 &&
              fastKronOtherError == 6);

TEST(FastKronHandles, Texts) {
  EXPECT_EQ(std::string(fastKronVersion()).find("1.1.0+x86_64+CUDA+mercer"), 0u);
  EXPECT_NE(std::string(fastKronCUDAArchs()), "");
  std::set<std::string> texts;
  for (unsigned error = 0; error <= 7; ++error) texts.insert(fastKronGetErrorString(static_cast<fastKronError>(error)));
  EXPECT_EQ(texts.size(), 8u);
  EXPECT_EQ(texts.count(""), 0u);
}

TEST(FastKronHandles, InitAndDestroy) {
  EXPECT_EQ(fastKronGetBackends(), 10u);
  fastKronHandle handle = nullptr;
  expect_success(fastKronInitAllBackends(&handle));
  ASSERT_NE(handle, nullptr);
  expect_success(fastKronInitX86(handle));
  expect_success(fastKronSetOptions(handle, fastKronOptionsNone | fastKronOptionsUseFusion | fastKronOptionsTune));
  fastKronDestroy(handle);
  fastKronDestroy(nullptr);
  int other = 0;
  handle = &other;
  expect_answer(fastKronInit(&handle, fastKronBackend_X86 | fastKronBackend_HIP), fastKronInvalidArgument,
                "fastKronInit: backends must be of fastKronBackend_X86 and fastKronBackend_CUDA. Received 18.");
  EXPECT_EQ(handle, nullptr);
  expect_answer(fastKronInit(nullptr, fastKronBackend_X86), fastKronInvalidArgument,
                "fastKronInit: handle must be given.");
  expect_answer(fastKronInitAllBackends(nullptr), fastKronInvalidArgument, "handle must be given");
}

TEST(FastKronHandles, OptionsAndBackends) {
  const OwnHandle handle;
  expect_answer(fastKronSetOptions(handle, 8), fastKronInvalidArgument,
                "options must be of fastKronOptions. Received 8.");
  expect_answer(fastKronSetOptions(nullptr, 1), fastKronInvalidArgument, "the handle must be one of fastKronInit.");
  void* stream = nullptr;
  expect_answer(fastKronInitHIP(handle, &stream), fastKronBackendNotAvailable, "Received 16.");
  expect_answer(fastKronInitCUDA(handle, &stream), fastKronBackendNotAvailable, "Received one made for 2.");
  expect_answer(fastKronInitX86(nullptr), fastKronInvalidArgument, "the handle must be one of fastKronInit.");
  expect_success(fastKronSetStream(handle, fastKronBackend_X86, &stream));
  expect_answer(fastKronSetStream(handle, fastKronBackend_X86, nullptr), fastKronInvalidArgument,
                "ptrToStream must be given.");
  expect_answer(fastKronSetStream(handle, fastKronBackend_HIP, &stream), fastKronBackendNotAvailable, "Received 16.");
  const OwnHandle of_cuda(fastKronBackend_CUDA);
  expect_answer(fastKronInitX86(of_cuda), fastKronBackendNotAvailable, "Received one made for 8.");
}

TEST(FastKronHandles, CudaWithoutADevice) {
  if (cuda_device_count() > 0) return;
  const OwnHandle handle(fastKronBackend_CUDA);
  expect_answer(fastKronInitCUDA(handle, nullptr), fastKronBackendNotAvailable, "needs a CUDA device. Received none");
  Problem<float> problem;
  problem.fill();
  problem.backend = fastKronBackend_CUDA;
  expect_answer(problem.call(handle), fastKronBackendNotAvailable, "sgemkm: fastKronBackend_CUDA needs a CUDA device.");
  EXPECT_TRUE(problem.untouched());
}

TEST(FastKronHandles, TuneMeasuresOnTheCpu) {
  ::setenv("MERCER_CACHE_DIR", "off", 1);
  const OwnHandle handle;
  expect_success(fastKronSetOptions(handle, fastKronOptionsTune));
  Problem<double> problem;
  problem.fill();
  expect_success(problem.call(handle));
  problem.expect_product();
}

TEST(FastKronHandles, SeveralGpusAreNotServed) {
  const OwnHandle handle;
  expect_answer(fastKronMgInitCUDA(handle, nullptr, 2), fastKronBackendNotAvailable,
                "fastKronMgInitCUDA: a product must run on one device. Received a call for several.");
  expect_answer(fastKronMgSGEMM(handle, 1, nullptr, nullptr, nullptr, 1, 1, 1, nullptr, nullptr, nullptr, nullptr,
                                nullptr), fastKronBackendNotAvailable, "fastKronMgSGEMM: ");
  expect_answer(fastKronMgAllocX(handle, nullptr, nullptr, 1, 1), fastKronBackendNotAvailable, "fastKronMgAllocX: ");
  expect_answer(fastKronMgGatherY(handle, nullptr, nullptr, 1, 1, 1, nullptr, nullptr), fastKronBackendNotAvailable,
                "fastKronMgGatherY: ");
  EXPECT_NE(std::string(fastKronGetErrorString(fastKronBackendNotAvailable)).find("several GPUs"), std::string::npos);
}

TEST(FastKronSizes, ResultAndLargest) {
  const OwnHandle handle;
  std::uint32_t p[] = {2, 3, 4}, q[] = {3, 2, 5};
  std::size_t y = 0, largest = 0, kept[2] = {};
  expect_success(gekmmSizes(handle, 7, 3, p, q, &y, &largest));
  EXPECT_EQ(y, 7u * 30);
  EXPECT_EQ(largest, 7u * 30);  // X has 24 columns; 2 * 3 * 5 = 30 and 2 * 2 * 5 = 20 lie between
  expect_success(gekmmSizesForward(handle, 7, 3, p, q, &y, kept));
  EXPECT_EQ(y, 7u * 30);
  EXPECT_EQ(kept[0], 7u * 20);
  EXPECT_EQ(kept[1], 7u * 30);
  expect_success(gekmmSizesForward(handle, 7, 1, p, q, &y, nullptr));
  EXPECT_EQ(y, 7u * 3);
}

TEST(FastKronSizes, MoreThan32Bits) {
  const OwnHandle handle;
  std::uint32_t p[] = {1024, 1024, 1024}, q[] = {2048, 2048, 2048};
  std::size_t y = 0, largest = 0, kept[2] = {};
  expect_success(gekmmSizes(handle, 1 << 20, 3, p, q, &y, &largest));
  EXPECT_EQ(y, std::size_t{1} << 53);
  EXPECT_EQ(largest, std::size_t{1} << 53);
  expect_success(gekmmSizesForward(handle, 1 << 20, 3, p, q, &y, kept));
  EXPECT_EQ(kept[0], std::size_t{1} << 52);
  EXPECT_EQ(kept[1], std::size_t{1} << 51);
}

TEST(FastKronSizes, Refusals) {
  const OwnHandle handle;
  std::uint32_t p[65], q[65];
  std::fill_n(p, 65, 2u), std::fill_n(q, 65, 2u);
  std::size_t y = 17, largest = 18;
  expect_answer(gekmmSizes(handle, 1, 0, p, q, &y, &largest), fastKronInvalidKMMProblem, "Received N = 0.");
  expect_answer(gekmmSizes(handle, 1, 65, p, q, &y, &largest), fastKronInvalidKMMProblem, "Received N = 65.");
  expect_answer(gekmmSizes(handle, 1, 64, p, q, &y, &largest), fastKronInvalidKMMProblem, "counted in 63 bits");
  expect_answer(gekmmSizes(handle, 1, 3, nullptr, q, &y, &largest), fastKronInvalidArgument, "Ps and Qs must be given");
  expect_answer(gekmmSizes(handle, 1, 3, p, q, nullptr, &largest), fastKronInvalidArgument, "must be given");
  expect_answer(gekmmSizes(handle, 1, 3, p, q, &y, nullptr), fastKronInvalidArgument, "must be given");
  expect_answer(gekmmSizes(nullptr, 1, 3, p, q, &y, &largest), fastKronInvalidArgument, "the handle must be");
  expect_answer(gekmmSizesForward(handle, 1, 3, p, q, &y, nullptr), fastKronInvalidArgument, "must be given");
  expect_answer(gekmmSizesForward(handle, 1, 65, p, q, &y, &largest), fastKronInvalidKMMProblem, "Received N = 65.");
  EXPECT_EQ(y, 17u);
  EXPECT_EQ(largest, 18u);
}

TEST(FastKronHandles, FromC) {
  const double x[] = {1, 2, 3, 4}, f[] = {1, 2}, g[] = {3, 5};  // [2, 2], [1, 2], [2, 1]
  double z[4] = {};
  expect_success(fastkron_product_in_c(x, f, g, z));
  const double expected[] = {13, 26, 29, 58};  // x g, then times 1 and 2
  for (int i = 0; i < 4; ++i) EXPECT_EQ(z[i], expected[i]) << i;
}

}  // namespace
}  // namespace mercer
