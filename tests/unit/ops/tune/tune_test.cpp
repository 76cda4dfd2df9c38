// Measured tiles: the store and the plans that read it need no GPU; measuring and the bits of the candidates do.
#include <filesystem>
#include <fstream>

#include "core/testing.h"
#include "jit/cuda_compile.h"
#include "ops/testing.h"
#include "ops/tune/tuned_plan.h"
#include "ops/tune_report.h"

namespace mercer {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

const ops::DeviceName kDevice{"sm_90a", "a device"};

std::shared_ptr<const plan::GpuPairPlan> plan_of(const char* text) {
  plan::GpuPairProblem problem;
  problem.outputs = {Formula(text).expression()};
  problem.sizes = plan::sizes_of(30000, 30000, 1024, 132);
  return plan::plan_gpu_pairs(problem);
}

class TunedTiles : public ::testing::Test {
 protected:
  FileCache cache() const { return FileCache(folder_.path(), 1 << 20); }
  ops::ChoiceStore store() const { return ops::ChoiceStore(cache()); }

  TemporaryFolder folder_;
  std::shared_ptr<const plan::GpuPairPlan> plan_ = plan_of("sum(abs(x-z))");
  std::string key_ = ops::tile_key(*plan_, kDevice);
  plan::GpuTile other_ = plan::gpu_tile_candidates(*plan_).back();
  std::string record_ = plan::tile_record(other_);
};

TEST_F(TunedTiles, KeepsATileForLaterProcesses) {
  ops::ChoiceStore first = store();
  EXPECT_EQ(first.find(key_), std::nullopt);
  first.keep(key_, record_, "a title\nof two lines");
  EXPECT_EQ(first.find(key_), std::optional(record_));
  EXPECT_EQ(store().find(key_), std::optional(record_));
  const auto files = cache().files();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].first_line, "a title of two lines");
  EXPECT_TRUE(files[0].key.starts_with("tile\nsm_90a\na device\n"));
}

TEST_F(TunedTiles, RemembersWithoutADisk) {
  ops::ChoiceStore off(FileCache({}, 0));
  off.keep(key_, record_, "title");
  EXPECT_EQ(off.find(key_), std::optional(record_));
}

TEST_F(TunedTiles, PlansUseIt) {
  ops::ChoiceStore kept = store();
  EXPECT_FALSE(ops::tuned_plan(plan_, kDevice, kept)->tuned());
  kept.keep(key_, record_, "title");
  const auto tuned = ops::tuned_plan(plan_, kDevice, kept);
  EXPECT_TRUE(tuned->tuned());
  EXPECT_EQ(tuned->tile, other_);
  EXPECT_EQ(ops::tile_key(*tuned, kDevice), key_);
  for (const ops::DeviceName& elsewhere :
       {ops::DeviceName{"sm_100a", "a device"}, ops::DeviceName{"sm_90a", "another"}, ops::DeviceName{"sm_90a", ""}})
    EXPECT_FALSE(ops::tuned_plan(plan_, elsewhere, kept)->tuned());
  EXPECT_FALSE(ops::tuned_plan(plan_of("max(abs(x-z))"), kDevice, kept)->tuned());
}

TEST_F(TunedTiles, IgnoresWhatIsNotItsOwn) {
  for (const char* payload : {"", "no second line", "title\n", "title\nwords", "title\n1 64 64 16 4 4 3 8 2 1",
                              "title\n2 64 64 16 4 4 3 8 2 1 1", "title\n2 64 64 16 4 4 3 8 2",
                              "title\n2 99999999999999999999 64 16 4 4 3 8 2 1"}) {
    cache().write(key_, payload);
    EXPECT_FALSE(ops::tuned_plan(plan_, kDevice, store())->tuned()) << payload;
  }
  // A tile that is one, but not for this plan.
  cache().write(key_, "title\n1 4096 64 16 4 4 3 8 2 1");
  EXPECT_FALSE(ops::tuned_plan(plan_, kDevice, store())->tuned());
}

TEST_F(TunedTiles, IgnoresDamage) {
  store().keep(key_, record_, "title");
  const fs::path file = cache().path_of(key_);
  const auto size = fs::file_size(file);
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(size) - 3) << '7';
  stream.close();
  EXPECT_EQ(store().find(key_), std::nullopt);
  store().keep(key_, record_, "title");
  fs::resize_file(file, size / 2);
  EXPECT_EQ(store().find(key_), std::nullopt);
}

TEST_F(TunedTiles, KeysTellArchitecturesDevicesAndProgramsApart) {
  EXPECT_NE(ops::tile_key(*plan_, {"sm_100a", "a device"}), key_);
  EXPECT_NE(ops::tile_key(*plan_, {"sm_90a", "another"}), key_);
  EXPECT_NE(ops::tile_key(*plan_of("max(abs(x-z))"), kDevice), key_);
  EXPECT_EQ(ops::tile_key(*plan_of("sum(abs(x-z))"), kDevice), key_);
}

TEST(Tune, RefusesTheCpu) {
  const Array x = normal(Dtype::float32, {5, 3}, 1), out(Dtype::float32, {5, 5});
  try {
    tune({}, [&](const Arguments& a) { pairwise("sum(abs(x-z))", x, nullptr, out, a); });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(error.what()).find("tune: the call must compute pairs"), std::string::npos);
  }
}

TEST(Tune, ExplainSaysWhoseTheTileIs) {
  EXPECT_NE(explain("sum(abs(x-z))", {64, 64, 16}, Dtype::float32, "sm_90").find("the tile is the model's"),
            std::string::npos);
}

// ---- on a GPU -------------------------------------------------------------------------------------------------------

struct TunedRow {
  const char* text;
  std::int64_t m, n, k;
  Dtype dtype = Dtype::float32;
  bool product = false, same = false;  // the same points on both sides
};

/// Ragged on all sides, and large enough for the tiles of large calls.
const TunedRow kTunedRows[] = {
    {"sum(abs(x-z))", 1531, 1603, 301},
    {"sum(abs(x-z)^1.3)", 1531, 1603, 301},
    {"exp(-sum(abs(x-z))/7)", 1531, 1603, 13},
    {"exp(-sum(abs(x-z))/7)", 1531, 1603, 3},
    {"sum((x-z)^2)", 301, 203, 77},
    {"sum(abs(x-z)^1.3)", 1531, 1531, 70, Dtype::float32, false, true},
    {"sum(abs(x-z))", 1531, 1603, 70, Dtype::float64},
    {"sum(abs(x-z))", 1531, 1603, 301, Dtype::uint8},
    {"exp(-sum(abs(x-z))/7)", 1531, 1603, 70, Dtype::float32, true},
};

class TuneOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_wanted("cuda")) GTEST_SKIP() << "MERCER_TEST_TARGETS does not name cuda";
    if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
    stream_ = std::make_unique<DeviceStream>();
  }

  Tensor upload(const Array& host) {
    const auto bytes = static_cast<std::int64_t>(host.bytes().size());
    stream_->upload(memory_.emplace_back(0, bytes).at(), host.bytes().data(), bytes);
    stream_->wait();
    Tensor t = host;
    t.data = memory_.back().data();
    t.device = {DeviceKind::cuda, 0};
    return t;
  }

  /// The row's call, into an output full of a pattern.
  std::function<void(const Arguments&)> call_of(const TunedRow& row) {
    const double most = row.dtype == Dtype::uint8 ? 255 : 1;
    const Tensor x = upload(uniform(row.dtype, {row.m, row.k}, 1, 0, most));
    const Tensor z = upload(uniform(row.dtype, {row.n, row.k}, 2, 0, most));
    const Tensor v = upload(normal(compute_type(row.dtype), {row.n}, 3));
    host_ = std::make_unique<Array>(compute_type(row.dtype), row.product ? Shape{row.m} : Shape{row.m, row.n});
    out_ = upload(*host_);
    return [=, this, formula = Formula(row.text)](const Arguments& arguments) {
      if (row.product) return kernel_product(formula, x, &z, v, out_, arguments, context_);
      pairwise(formula, x, row.same ? nullptr : &z, out_, arguments, context_);
    };
  }

  Arguments on_stream() const {
    Arguments arguments;
    arguments.queue.stream = static_cast<CuStream>(*stream_);
    return arguments;
  }

  std::vector<char> result_of(const std::function<void(const Arguments&)>& call, ops::Trial* trial) {
    stream_->upload(reinterpret_cast<CuPointer>(out_.data), host_->bytes().data(), bytes_of_out());
    Arguments arguments = on_stream();
    arguments.queue.trial = trial;
    call(arguments);
    stream_->wait();
    std::vector<char> bytes(host_->bytes().size());
    stream_->download(bytes.data(), reinterpret_cast<CuPointer>(out_.data), bytes_of_out());
    return bytes;
  }
  std::int64_t bytes_of_out() const { return static_cast<std::int64_t>(host_->bytes().size()); }

  void rehearse(const std::function<void(const Arguments&)>& call, ops::Trial& trial, cuda::Rehearsal& listing) {
    Arguments arguments = on_stream();
    arguments.queue.trial = &trial;
    arguments.queue.rehearsal = &listing;
    call(arguments);
  }

  Context context_;
  std::unique_ptr<DeviceStream> stream_;
  std::list<DeviceMemory> memory_;
  std::unique_ptr<Array> host_;
  Tensor out_{nullptr, Dtype::float32, {0}};
};

TEST_F(TuneOnGpu, CandidatesGiveTheSameBits) {
  for (const TunedRow& row : kTunedRows) {
    const auto call = call_of(row);
    ops::Trial model;
    const std::vector<char> expected = result_of(call, &model);
    std::list<ops::Trial> trials;
    cuda::Rehearsal listing{cuda::Rehearsal::Purpose::sources};
    for (const ops::Choice& choice : model.asked.front().candidates()) {
      trials.emplace_back().record = choice.record;
      rehearse(call, trials.back(), listing);
    }
    jit::compile_all(listing.sources);
    for (ops::Trial& trial : trials) {
      EXPECT_TRUE(result_of(call, &trial) == expected) << row.text << ", " << trial.record;
      EXPECT_EQ(trial.asked.front().taken.record, trial.record);
    }
  }
}

TEST_F(TuneOnGpu, ChoosesAndIsUsed) {
  const TunedRow row{"sum(abs(x-z)*1.0078125)", 1531, 1603, 70};
  const auto call = call_of(row);
  const std::vector<char> before = result_of(call, nullptr);
  const TuneReport report = tune(on_stream(), call, context_);
  EXPECT_EQ(context_.plan_count(), 0u);
  expect_measured(report);
  if (HasFatalFailure()) return;
  EXPECT_TRUE(result_of(call, nullptr) == before);
  const std::string text = explain(row.text, {row.m, row.n, row.k}, row.dtype, "cuda:0");
  EXPECT_NE(text.find("the tile was measured"), std::string::npos) << text;
  EXPECT_NE(text.find(report.chosen), std::string::npos) << text;
}

TEST_F(TuneOnGpu, AsksTheAllocatorOnce) {
  const auto call = call_of({"sum(abs(x-z)*1.015625)", 301, 203, 7});
  DeviceMemory memory(0, std::int64_t{1} << 24);
  int asked = 0;
  Arguments arguments = on_stream();
  arguments.queue.allocate = [&](std::int64_t bytes) {
    ++asked;
    EXPECT_LE(bytes, memory.size());
    return static_cast<void*>(memory.data());
  };
  const bool takes_memory = workspace_size(on_stream(), call) > 0;
  tune(arguments, call, context_);
  EXPECT_EQ(asked, takes_memory ? 1 : 0);
}

TEST_F(TuneOnGpu, RefusesACapture) {
  const auto call = call_of({"sum(abs(x-z))", 301, 203, 7});
  const CudaScope scope(0);
  const CudaDriver& driver = need_cuda("test");
  check_cuda(driver.stream_begin_capture(*stream_, kCuCaptureThreadLocal), "test");
  EXPECT_THROW(tune(on_stream(), call, context_), Error);
  CuGraph graph = nullptr;
  EXPECT_EQ(driver.stream_end_capture(*stream_, &graph), kCuSuccess);  // and has not spoiled it
  if (graph != nullptr) driver.graph_destroy(graph);
}

TEST_F(TuneOnGpu, StopsWhenAskedTo) {
  const auto call = call_of({"sum(abs(x-z)*1.03125)", 301, 203, 7});
  Arguments arguments = on_stream();
  arguments.progress = [](double, double) { return false; };
  EXPECT_THROW(tune(arguments, call, context_), Cancelled);
}

}  // namespace
}  // namespace mercer
