// The products of mercer/compat/fastkron.h, each line of their contract, on the CPU.
#include <limits>

#include "unit/compat/problem.h"

namespace mercer {
namespace {

using namespace testing_support;

TEST(FastKronProducts, EverySideOperationAndType) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.fill();
    expect_success(problem.call(handle));
    problem.expect_product();
  });
}

TEST(FastKronProducts, AlphaBetaAndY) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.alpha = -0.5;
    problem.beta = 3;
    problem.fill();
    expect_success(problem.call(handle));
    problem.expect_product();
  });
}

TEST(FastKronProducts, ZMayBeY) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.beta = 2;
    problem.fill();
    const auto before = problem.y;
    problem.z = problem.y;
    problem.z_data = problem.z.data();
    problem.y_data = problem.z.data();
    expect_success(problem.call(handle));
    problem.expect_product(before);
  });
}

TEST(FastKronProducts, YIsNotReadWithoutBeta) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.fill();
    for (auto& value : problem.y) value = std::numeric_limits<double>::quiet_NaN();
    expect_success(problem.call(handle));
    problem.expect_product();
    problem.y_data = nullptr;
    expect_success(problem.call(handle));
  });
}

TEST(FastKronProducts, OneRowOrColumn) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.m = 1;
    problem.fill();
    expect_success(problem.call(handle));
    problem.expect_product();
  });
}

TEST(FastKronProducts, SixtyFourFactors) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.p.assign(64, 1);
    problem.q.assign(64, 1);
    problem.p[0] = problem.q[63] = 3;
    problem.fill();
    expect_success(problem.call(handle));
    problem.expect_product();
  });
}

TEST(FastKronProducts, TemporariesAreIgnored) {
  const OwnHandle handle;
  Problem<double> problem;
  problem.fill();
  std::vector<double> first(1000, 5), second(1000, 6);
  expect_success(dgemkm(handle, fastKronBackend_X86, problem.m, 3, problem.p.data(), problem.q.data(), problem.x_data,
                        fastKronOp_N, problem.f_data.data(), fastKronOp_N, problem.z_data, 1, 0, nullptr, first.data(),
                        second.data()));
  problem.expect_product();
  EXPECT_EQ(first, std::vector<double>(1000, 5));
  EXPECT_EQ(second, std::vector<double>(1000, 6));
}

TEST(FastKronProducts, BatchesByStrides) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.batch = 3;
    problem.beta = 0.25;
    problem.fill();
    const auto unwritten = problem.kUnwritten;
    expect_success(problem.call_batched(handle));
    problem.expect_product();
    const std::size_t end = problem.m * problem.l();
    for (std::size_t gap = 0; gap < 3; ++gap) EXPECT_EQ(problem.z[end + gap], unwritten) << "between two items";
  });
}

TEST(FastKronProducts, AStrideOfZeroRepeats) {
  const OwnHandle handle;
  for (int repeated = 0; repeated < 8; ++repeated)
    on_each_problem([&](auto& problem) {
      SCOPED_TRACE(repeated);
      problem.batch = 2;
      problem.beta = 1;
      problem.fill((repeated & 1) != 0, (repeated & 2) != 0, (repeated & 4) != 0);
      expect_success(problem.call_batched(handle));
      problem.expect_product();
    });
}

TEST(FastKronProducts, ForwardKeepsWhatLiesBetween) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.fill();
    std::size_t y_elements = 0, sizes[2] = {};
    expect_success(gekmmSizesForward(handle, problem.m, 3, problem.p.data(), problem.q.data(), &y_elements, sizes));
    auto first = problem.z, second = problem.z;
    first.resize(sizes[0]), second.resize(sizes[1]);
    expect_success(problem.call_forward(handle, {first.data(), second.data()}));
    problem.expect_product();
    problem.expect_kept(1, first, 0);
    problem.expect_kept(2, second, 0);
  });
}

TEST(FastKronProducts, ForwardOfOneFactor) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.p = {4};
    problem.q = {3};
    problem.fill();
    expect_success(problem.call_forward(handle, {}));
    problem.expect_product();
  });
}

TEST(FastKronProducts, ForwardOfBatches) {
  const OwnHandle handle;
  for (const bool packed : {false, true})
    on_each_problem([&](auto& problem) {
      problem.batch = 3;
      problem.fill();
      std::uint64_t strides[2];
      auto kept = std::vector{problem.z, problem.z};
      for (std::size_t i = 1; i <= 2; ++i) {
        strides[i - 1] = problem.m * problem.kept_columns(i) + (packed ? 0 : 5);
        kept[i - 1].resize(3 * strides[i - 1]);
      }
      expect_success(
          problem.call_forward_batched(handle, {kept[0].data(), kept[1].data()}, packed ? nullptr : strides));
      problem.expect_product();
      problem.expect_kept(1, kept[0], strides[0]);
      problem.expect_kept(2, kept[1], strides[1]);
    });
}

TEST(FastKronProducts, NothingToDo) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.fill();
    problem.m = 0;
    problem.x_data = nullptr;
    problem.z_data = nullptr;
    expect_success(problem.call(handle));
    expect_success(problem.call_forward(handle, {nullptr, nullptr}));
    problem.m = 3;
    problem.batch = 0;
    expect_success(problem.call_batched(handle));
    expect_success(problem.call_forward_batched(handle, {nullptr, nullptr}, nullptr));
  });
}

TEST(FastKronProducts, FactorsWithoutRowsGiveBetaY) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.p[1] = 0;
    problem.beta = 2;
    problem.fill();
    expect_success(problem.call(handle));
    problem.expect_product();
    problem.beta = 0;
    auto first = problem.z, second = problem.z;
    first.resize(problem.m * problem.kept_columns(1));
    expect_success(problem.call_forward(handle, {first.data(), nullptr}));
    problem.expect_product();
  });
}

// ---- What is refused, before anything is written --------------------------------------------------------------------

/// A call of each kind, with one thing changed, and the answer.
template <class Change>
void expect_refused(fastKronError answer, const std::string& words, const Change& change) {
  SCOPED_TRACE(words);
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.batch = 2;
    problem.fill();
    auto first = problem.z, second = problem.z;
    first.resize(1000), second.resize(1000);
    change(problem);
    expect_answer(problem.call(handle), answer, words);
    expect_answer(problem.call_batched(handle), answer, words);
    if (problem.beta == 0)
      expect_answer(problem.call_forward(handle, {first.data(), second.data()}), answer, words);
    EXPECT_TRUE(problem.untouched());
  });
}

TEST(FastKronProducts, NullPointers) {
  expect_refused(fastKronInvalidArgument, ": X must be given. Received a null pointer.",
                 [](auto& problem) { problem.x_data = nullptr; });
  expect_refused(fastKronInvalidArgument, ": Z must be given. Received a null pointer.",
                 [](auto& problem) { problem.z_data = nullptr; });
  expect_refused(fastKronInvalidArgument, ": a factor of Fs must be given. Received a null pointer.",
                 [](auto& problem) { problem.f_data[1] = nullptr; });
  expect_refused(fastKronInvalidArgument, ": Y must be given where beta is not 0. Received beta = 2.",
                 [](auto& problem) { problem.y_data = nullptr, problem.beta = 2; });
  const OwnHandle handle;
  Problem<float> c;
  c.fill();
  expect_answer(sgemkm(handle, fastKronBackend_X86, 3, 3, nullptr, c.q.data(), c.x_data, fastKronOp_N, c.f_data.data(),
                       fastKronOp_N, c.z_data, 1, 0, nullptr, nullptr, nullptr),
                fastKronInvalidArgument, "sgemkm: Ps and Qs must be given.");
  expect_answer(sgemkm(handle, fastKronBackend_X86, 3, 3, c.p.data(), c.q.data(), c.x_data, fastKronOp_N, nullptr,
                       fastKronOp_N, c.z_data, 1, 0, nullptr, nullptr, nullptr),
                fastKronInvalidArgument, "sgemkm: Fs must be given.");
  expect_answer(sgekmmStridedBatched(handle, fastKronBackend_X86, 3, c.q.data(), c.p.data(), 3, c.f_data.data(),
                                     fastKronOp_N, nullptr, c.x_data, fastKronOp_N, 0, c.z_data, 0, 1, 0, 1, nullptr, 0,
                                     nullptr, nullptr),
                fastKronInvalidArgument, "sgekmmStridedBatched: strideF must be given.");
  expect_answer(smkmForward(handle, fastKronBackend_X86, 3, 3, c.p.data(), c.q.data(), c.x_data, fastKronOp_N,
                            c.f_data.data(), fastKronOp_N, c.z_data, nullptr),
                fastKronInvalidArgument, "smkmForward: Intermediates must be given.");
  std::vector<float> kept(1000);
  expect_answer(c.call_forward(handle, {kept.data(), nullptr}), fastKronInvalidArgument,
                "smkmForward: an array of Intermediates must be given.");
  expect_answer(c.call(nullptr), fastKronInvalidArgument, "sgemkm: the handle must be one of fastKronInit.");
  EXPECT_TRUE(c.untouched());
}

TEST(FastKronProducts, UnknownEnumerators) {
  expect_refused(fastKronInvalidArgument, ": opX must be fastKronOp_N or fastKronOp_T. Received 3.",
                 [](auto& problem) { problem.op_x = static_cast<fastKronOp>(3); });
  expect_refused(fastKronInvalidArgument, ": opFs must be fastKronOp_N or fastKronOp_T. Received 0.",
                 [](auto& problem) { problem.op_fs = static_cast<fastKronOp>(0); });
  expect_refused(fastKronBackendNotAvailable, ": the backend must be fastKronBackend_X86 or fastKronBackend_CUDA. "
                 "Received 10.", [](auto& problem) { problem.backend = static_cast<fastKronBackend>(10); });
  expect_refused(fastKronBackendNotAvailable, "Received 4.", [](auto& p) { p.backend = fastKronBackend_ARM; });
  expect_refused(fastKronInvalidArgument, ": the handle must be made for the backend 8. Received one made for 2.",
                 [](auto& problem) { problem.backend = fastKronBackend_CUDA; });
}

constexpr std::uint32_t kLarge = std::numeric_limits<std::uint32_t>::max();

TEST(FastKronProducts, CountsAndSizes) {
  expect_refused(fastKronInvalidKMMProblem, ": there must be 1 to 64 factors. Received N = 0.",
                 [](auto& problem) { problem.p.clear(), problem.q.clear(); });
  expect_refused(fastKronInvalidKMMProblem, ": there must be 1 to 64 factors. Received N = 65.", [](auto& problem) {
    problem.p.assign(65, 1), problem.q.assign(65, 1), problem.f_data.assign(65, problem.f_data[0]);
    problem.stride_f.assign(65, 0);
  });
  expect_refused(fastKronInvalidKMMProblem, ": the bytes of an array must be counted in 63 bits.",
                 [](auto& problem) { problem.p = {kLarge, kLarge, kLarge}; });
  expect_refused(fastKronInvalidKMMProblem, ": the bytes of an array must be counted in 63 bits.",
                 [](auto& problem) { problem.p = {kLarge, 1, 1}, problem.q = {kLarge, 1, 1}, problem.m = 1; });
}

TEST(FastKronProducts, SharedMemory) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.batch = 2;
    problem.fill();
    const auto x = problem.x;
    const auto z_data = problem.z_data;
    problem.z_data = problem.x.data() + 1;
    expect_answer(problem.call(handle), fastKronInvalidArgument, ": out must not overlap an input.");
    problem.z_data = z_data;
    problem.stride_z = 0;
    expect_answer(problem.call_batched(handle), fastKronInvalidArgument, ": no two elements of out may share memory.");
    problem.stride_z = std::numeric_limits<std::uint64_t>::max();
    expect_answer(problem.call_batched(handle), fastKronInvalidArgument,
                  ": the batch of Z must end within 63 bits of bytes. Received a stride of 18446744073709551615.");
    EXPECT_TRUE(problem.untouched());
    EXPECT_EQ(problem.x, x);
  });
}

TEST(FastKronProducts, SharedMemoryOfForward) {
  const OwnHandle handle;
  on_each_problem([&](auto& problem) {
    problem.fill();
    const auto f = problem.f;
    auto kept = problem.z;
    kept.resize(1000, 1);
    const auto before = kept;
    // A factor that later calls read, one array for both, Z.
    expect_answer(problem.call_forward(handle, {kept.data(), problem.f[0].data()}), fastKronInvalidArgument,
                  ": out must not overlap an input.");
    expect_answer(problem.call_forward(handle, {kept.data(), kept.data()}), fastKronInvalidArgument,
                  ": out must not overlap an input.");
    expect_answer(problem.call_forward(handle, {kept.data(), problem.z_data}), fastKronInvalidArgument,
                  ": out must not overlap an input.");
    EXPECT_TRUE(problem.untouched());
    EXPECT_EQ(kept, before);
    EXPECT_EQ(problem.f, f);
  });
}

}  // namespace
}  // namespace mercer
