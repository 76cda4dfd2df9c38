// The products of mercer/compat/fastkron.h on a CUDA device.
#include "ops/device_arrays.h"
#include "unit/compat/problem.h"

namespace mercer {
namespace {

using namespace testing_support;

/// A problem whose arrays lie on the device, in double, which no tensor core rounds.
struct OnDevice {
  DeviceStream stream;
  DeviceMemory memory{0, 1 << 16};
  std::int64_t taken = 0;
  Problem<double> problem;
  OwnHandle handle{fastKronBackend_X86 | fastKronBackend_CUDA};

  OnDevice(bool left, fastKronOp op, std::uint32_t batch) {
    problem.left = left;
    problem.op_x = problem.op_fs = op;
    problem.batch = batch;
    problem.backend = fastKronBackend_CUDA;
    problem.fill();
    problem.x_data = upload(problem.x);
    problem.y_data = upload(problem.y);
    problem.z_data = upload(problem.z);
    for (std::size_t i = 0; i < problem.f.size(); ++i) problem.f_data[i] = upload(problem.f[i]);
    CuStream own = stream;
    expect_success(fastKronInitCUDA(handle, &own));
  }
  double* upload(const std::vector<double>& values) {
    const std::int64_t at = taken, bytes = static_cast<std::int64_t>(values.size() * sizeof(double));
    taken += (bytes + 255) / 256 * 256;
    EXPECT_LE(taken, memory.size());
    stream.upload(memory.at(at), values.data(), bytes);
    return reinterpret_cast<double*>(memory.data() + at);
  }
  void download(std::vector<double>& to, const double* from) const {
    stream.download(to.data(), reinterpret_cast<CuPointer>(from),
                    static_cast<std::int64_t>(to.size() * sizeof(double)));
  }
  void expect_product() {
    download(problem.z, problem.z_data);
    problem.expect_product();
  }
};

TEST(FastKronCuda, Products) {
  if (!cuda_serves()) return;
  for (const bool left : {false, true}) {
    OnDevice on(left, left ? fastKronOp_N : fastKronOp_T, 2);
    on.problem.alpha = 0.5;
    on.problem.beta = 2;
    expect_success(on.problem.call_batched(on.handle));
    on.expect_product();
  }
}

TEST(FastKronCuda, ForwardKeepsWhatLiesBetween) {
  if (!cuda_serves()) return;
  for (const bool left : {false, true}) {
    OnDevice on(left, fastKronOp_N, 1);
    std::vector<double> first(on.problem.m * on.problem.kept_columns(1)),
        second(on.problem.m * on.problem.kept_columns(2));
    double *const first_data = on.upload(first), *const second_data = on.upload(second);
    expect_success(on.problem.call_forward(on.handle, {first_data, second_data}));
    on.expect_product();
    on.download(first, first_data);
    on.download(second, second_data);
    on.problem.expect_kept(1, first, 0);
    on.problem.expect_kept(2, second, 0);
  }
}

TEST(FastKronCuda, MemoryOfTheHost) {
  if (!cuda_serves()) return;
  OnDevice on(false, fastKronOp_N, 1);
  const auto expect_refused = [&](const char* words) {
    expect_answer(on.problem.call(on.handle), fastKronInvalidMemoryAccess, words);
    on.download(on.problem.z, reinterpret_cast<double*>(on.problem.z_data));
    EXPECT_TRUE(on.problem.untouched());
  };
  const double* const x = std::exchange(on.problem.x_data, on.problem.x.data());
  expect_refused("dgemkm: X must lie on a CUDA device for fastKronBackend_CUDA. Received memory of the host.");
  on.problem.x_data = x;
  on.problem.f_data[2] = on.problem.f[2].data();
  expect_refused("dgemkm: a factor of Fs must lie on a CUDA device");
}

TEST(FastKronCuda, Tune) {
  if (!cuda_serves()) return;
  OnDevice on(false, fastKronOp_N, 1);
  expect_success(fastKronSetOptions(on.handle, fastKronOptionsTune));
  for (int call = 0; call < 2; ++call) {
    expect_success(on.problem.call(on.handle));
    on.expect_product();
  }
  on.problem.beta = 2;  // Z is Y: no plan can be measured
  on.problem.y_data = on.problem.z_data;
  const auto before = on.problem.z;
  expect_success(on.problem.call(on.handle));
  on.download(on.problem.z, on.problem.z_data);
  on.problem.stride_y = on.problem.stride_z;
  on.problem.expect_product(before);
}

}  // namespace
}  // namespace mercer
