// Measured plans of products with Kronecker products: the store needs no GPU; measuring and the candidates do.
#include <filesystem>
#include <list>

#include "core/devices/cuda_driver.h"
#include "core/testing.h"
#include "ops/kron_calls.h"
#include "ops/tune/trial.h"
#include "ops/tune/tuned_kron.h"
#include "ops/tune_report.h"
#include "unit/plan/kron/kron_gpu_problem.h"

namespace mercer {
namespace {

using namespace testing_support;
using kron::Options;
namespace fs = std::filesystem;

const ops::DeviceName kDevice{"sm_90a", "a device"};

class TunedKron : public ::testing::Test {
 protected:
  FileCache cache() const { return FileCache(folder_.path(), 1 << 20); }
  ops::ChoiceStore store() const { return ops::ChoiceStore(cache()); }
  std::string planned(const ops::DeviceName& device) const {
    return ops::tuned_kron_plan(problem_, device, store()).record();
  }

  TemporaryFolder folder_;
  plan::KronGpuProblem problem_ = plan::kron_problem({{8, 8}, {8, 8}, {8, 8}});
  std::string key_ = ops::kron_key(problem_, kDevice), model_ = plan::plan_kron_gpu(problem_).record();
  std::string other_ = plan::kron_gpu_candidates(problem_, plan::plan_kron_gpu(problem_)).back().record();
};

TEST_F(TunedKron, KeepsAPlanForLaterProcesses) {
  ASSERT_NE(other_, model_);
  EXPECT_EQ(planned(kDevice), model_);
  store().keep(key_, other_, "a title\nof two lines");
  EXPECT_EQ(planned(kDevice), other_);
  const auto files = cache().files();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].first_line, "a title of two lines");
  EXPECT_TRUE(files[0].key.starts_with("kron\nsm_90a\na device\n"));
  for (const ops::DeviceName& elsewhere :
       {ops::DeviceName{"sm_100a", "a device"}, ops::DeviceName{"sm_90a", "another"}, ops::DeviceName{"sm_90a", ""}})
    EXPECT_EQ(planned(elsewhere), model_);
}

TEST_F(TunedKron, IgnoresWhatIsNotItsOwn) {
  for (const std::string& payload : {std::string(), std::string("no second line"), "title\n" + other_ + "more",
                                     "title\n" + other_.substr(0, other_.size() / 2), std::string("title\n2\n")}) {
    cache().write(key_, payload);
    EXPECT_EQ(planned(kDevice), model_) << payload;
  }
  // A plan that is one, but of another problem.
  cache().write(key_, "title\n" + plan::plan_kron_gpu(plan::kron_problem({{4, 4}, {9, 9}})).record());
  EXPECT_EQ(planned(kDevice), model_);
  store().keep(key_, other_, "title");
  fs::resize_file(cache().path_of(key_), 20);
  EXPECT_EQ(planned(kDevice), model_);
}

/// The scratch memory that a process was told of is that of the plan that it runs.
TEST_F(TunedKron, ReadsTheDiskOnce) {
  const ops::ChoiceStore reader = store();
  EXPECT_EQ(reader.find(key_), std::nullopt);
  store().keep(key_, other_, "title");
  EXPECT_EQ(reader.find(key_), std::nullopt);
  EXPECT_EQ(store().find(key_), std::optional(other_));
}

TEST_F(TunedKron, KeysTellProblemsApart) {
  std::set<std::string> keys = {key_};
  const auto differs = [&](auto change) {
    plan::KronGpuProblem other = problem_;
    change(other);
    EXPECT_TRUE(keys.insert(ops::kron_key(other, kDevice)).second);
  };
  differs([](auto& p) { p.dtype = Dtype::float16; });
  differs([](auto& p) { p.type = Dtype::float64; });
  differs([](auto& p) { p.factors.pop_back(); });
  differs([](auto& p) { p.factors[1].q = 7; });
  differs([](auto& p) { p.items = 2; });
  differs([](auto& p) { p.rows = 2; });
  differs([](auto& p) { p.columns = 2; });
  differs([](auto& p) { p.vectors_in = false; });
  differs([](auto& p) { p.vectors_out = false; });
  differs([](auto& p) { p.capability = 80; });
  differs([](auto& p) { p.multiprocessors = 108; });
  differs([](auto& p) { p.shared_per_block = 48 << 10; });
  EXPECT_EQ(ops::kron_key(problem_, kDevice), key_);
}

TEST(KronTune, RefusesWhatMultipliesByNothing) {
  const Arrays a({.sizes = {{4, 3}}});
  const std::string message = message_of([&] {
    kron::tune({.alpha = 0}, [&](const Options& o) { kron::matmul(a.x, a.views, a.out, o); });
  });
  EXPECT_EQ(message, "kron.tune: the call must multiply by factors. Received one that does not.");
}

TEST(KronTune, RefusesOutputsThatAreInputs) {
  const Arrays a({.sizes = {{4, 4}}});
  const Array before = copy(a.x, Dtype::float32);
  const std::string message = message_of([&] {
    kron::tune({}, [&](const Options& o) { kron::matmul(a.x, a.views, a.x, o); });
  });
  EXPECT_NE(message.find("Received an out that is x."), std::string::npos) << message;
  EXPECT_TRUE(same_bits(copy(a.x, Dtype::float32), before));
}

/// Choices of processors: their keys tell problems, instruction sets and numbers of threads apart.
TEST(KronTune, KeepsChoicesOfProcessors) {
  const TemporaryFolder folder;
  const ops::ChoiceStore store(FileCache(folder.path(), 1 << 20));
  Pool pool(2), single(1);
  cpu::KronKernels kernels;
  const cpu::KronTools tools{pool, Target::x86_avx2, kernels, ops::kron_choice_for};
  const plan::KronProblem problem{.factors = {{8, 8}, {8, 8}}};
  KronJob job;
  const std::string key = ops::kron_cpu_key(job, problem, tools);
  const plan::KronChoice other{64, 35, 2048, 64};
  EXPECT_EQ(ops::tuned_kron_choice(key, store), plan::KronChoice{});
  ops::ChoiceStore(FileCache(folder.path(), 1 << 20)).keep(key, other.record(), "title");
  const ops::ChoiceStore later(FileCache(folder.path(), 1 << 20));
  EXPECT_EQ(ops::tuned_kron_choice(key, later), other);
  std::set<std::string> keys = {key};
  EXPECT_TRUE(keys.insert(ops::kron_cpu_key(job, problem, {pool, Target::x86_avx512, kernels, nullptr})).second);
  EXPECT_TRUE(keys.insert(ops::kron_cpu_key(job, problem, {single, Target::x86_avx2, kernels, nullptr})).second);
  plan::KronProblem wide = problem;
  wide.factors[1].q = 7;
  EXPECT_TRUE(keys.insert(ops::kron_cpu_key(job, wide, tools)).second);
  job.row_count = 2;
  EXPECT_TRUE(keys.insert(ops::kron_cpu_key(job, problem, tools)).second);
  for (const char* damaged : {"", "merged 1, tile 2, block 3, piece 4"}) {
    ops::ChoiceStore(FileCache(folder.path(), 1 << 20)).keep(damaged, damaged, "title");
    EXPECT_EQ(ops::tuned_kron_choice(damaged, ops::ChoiceStore(FileCache(folder.path(), 1 << 20))), plan::KronChoice{});
  }
}

/// What is stored is what runs, and what its scratch memory is counted for.
TEST(KronTune, StoredChoicesOfProcessorsRun) {
  if (!is_wanted("cpu")) return;
  ::setenv("MERCER_CACHE_DIR", "off", 1);  // where no test has asked for it before, nothing is left on disk
  const Call call = call_of(Sizes(5, {4, 4}), 257);
  const Arrays a(call);
  std::set<std::int64_t> sizes;
  TestContext context(Target::interpreter);
  ops::Trial model;
  a.multiply(call, context, a.out, &model);
  const ops::AskedPlan asked = model.asked.front();
  for (const ops::Choice& choice : asked.candidates()) {
    ops::ChoiceStore::shared().keep(asked.key, choice.record, "title");
    ops::mark_cpu_choices(ops::ChoiceStore::shared());
    context.state().kron.choices.clear();
    Context& plain = context;
    sizes.insert(kron::workspace_size({}, [&](const Options& o) { kron::matmul(a.x, a.views, a.out, o, plain); }));
    a.multiply(call, context, a.out);
    expect_right(call, a, a.out);
  }
  EXPECT_GT(sizes.size(), 1u);
  ops::ChoiceStore::shared().keep(asked.key, asked.model.record, "title");
}

/// Ragged and whole, in one pass and in several, by multiply-adds and on tensor cores.
TEST(KronTune, EveryCandidateComputesRight) {
  const std::vector<Call> calls = {
      {.sizes = {{6, 5}, {4, 9}}, .rows = 5, .alpha = -2, .beta = 3},
      {.sizes = {{16, 16}, {16, 16}}, .rows = 4},
      {.sizes = {{32, 32}, {32, 32}, {16, 16}}, .rows = 7},
      {.sizes = {{33, 40}, {50, 48}}, .rows = 3, .items = 2},
      {.sizes = {{24, 20}}, .rows = 7, .dtype = Dtype::float64},
      {.sizes = Sizes(5, {4, 4}), .rows = 40},
      {.sizes = {{5, 6}, {4, 4}, {3, 3}}, .rows = 70, .by_columns = true},
  };
  on_each_target([&](TestContext& context) {
    for (const Call& call : calls) {
      const Arrays a(call);
      ops::Trial model;
      a.multiply(call, context, a.out, &model);
      ASSERT_GE(model.asked.size(), 1u);
      if (context.on_cuda()) ASSERT_EQ(model.asked.size(), 1u);
      const std::vector<ops::Choice> choices = model.asked.front().candidates();
      if (context.on_cuda() || call.rows == 40) EXPECT_GT(choices.size(), 1u);
      EXPECT_EQ(choices.front().record, model.asked.front().model.record);
      for (const ops::Choice& choice : choices) {
        ops::Trial trial;
        trial.record = choice.record;
        std::memset(a.out.tensor().data, 0xff, a.out.bytes().size());
        a.multiply(call, context, a.out, &trial);
        ASSERT_EQ(trial.asked.front().taken.record, choice.record);
        expect_right(call, a, a.out);
        if (::testing::Test::HasFailure()) FAIL() << choice.text;
      }
    }
  });
}

// ---- on a GPU -------------------------------------------------------------------------------------------------------

/// Blocks of a cluster that ask for their first tile before they have operands. Blocks that are alone on a
/// multiprocessor take two rows, of items with other factors.
TEST(KronTune, TilesAreAskedForBeforeOperandsAreMade) {
  const Call ragged = call_of({{16, 12}, {16, 16}, {16, 14}, {16, 16}}, 1);
  const Call several = with_items(call_of(Sizes(4, {16, 16}), 4), 2);
  on_cuda([&](TestContext& context) {
    if (cuda_device(0).capability() < 90) return;  // no clusters
    for (const Call& call : {ragged, several}) {
      const Arrays a(call);
      ops::Trial model;
      a.multiply(call, context, a.out, &model);
      expect_right(call, a, a.out);
      ops::Trial alone;
      alone.record = model.asked.front().model.record;
      const std::string shared = "256 threads, 3 resident, cluster 4";
      ASSERT_NE(alone.record.find(shared), std::string::npos) << alone.record;
      alone.record.replace(alone.record.find(shared), shared.size(), "512 threads, 1 resident, cluster 4");
      std::memset(a.out.tensor().data, 0xff, a.out.bytes().size());
      a.multiply(call, context, a.out, &alone);
      EXPECT_EQ(alone.asked.front().taken.record, alone.record);
      expect_right(call, a, a.out);
    }
  });
}

/// A call on the device, with an allocator that counts.
class KronTuneOnGpu : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 16, kSide = 40 * 8 * 8, kBytes = kRows * kSide * 4, kScratch = 1 << 20;
  static constexpr std::int64_t kApart = 4;  // an out that begins no vector cannot hold what lies between passes

  void SetUp() override {
    if (!is_wanted("cuda")) GTEST_SKIP() << "MERCER_TEST_TARGETS does not name cuda";
    if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
    stream_ = std::make_unique<DeviceStream>();
    memory_ = std::make_unique<DeviceMemory>(0, 4 * kBytes + kScratch);
    for (const auto& [p, q] : Sizes{{40, 40}, {8, 8}, {8, 8}}) {
      const Array& host = hosts_.emplace_back(normal(Dtype::float32, {p, q}, static_cast<unsigned>(hosts_.size())));
      factors_.push_back(on_device(3 * kBytes + 256 + 8192 * static_cast<std::int64_t>(factors_.size()), {p, q}));
      upload(host, factors_.back());
    }
    x_ = on_device(0, {kRows, kSide});
    out_ = on_device(kBytes + kApart, {kRows, kSide});
    y_ = on_device(2 * kBytes + 256, {kRows, kSide});
    for (const Tensor& t : {x_, y_}) upload(hosts_.emplace_back(normal(Dtype::float32, {kRows, kSide}, 7)), t);
    options_.queue.stream = static_cast<CuStream>(*stream_);
    options_.queue.allocate = [this](std::int64_t bytes) {
      asked_.push_back(bytes);
      EXPECT_LE(bytes, kScratch);
      return static_cast<void*>(memory_->data() + 4 * kBytes);
    };
  }

  Tensor on_device(std::int64_t place, Shape shape) const {
    Tensor t(memory_->data() + place, Dtype::float32, std::move(shape));
    t.device = {DeviceKind::cuda, 0};
    return t;
  }
  void upload(const Array& host, const Tensor& to) {
    stream_->upload(reinterpret_cast<CuPointer>(to.data), host.bytes().data(),
                    static_cast<std::int64_t>(host.bytes().size()));
    stream_->wait();
  }
  std::vector<float> download(const Tensor& from) {
    std::vector<float> values(kRows * kSide);
    stream_->wait();
    stream_->download(reinterpret_cast<char*>(values.data()), reinterpret_cast<CuPointer>(from.data), kBytes);
    return values;
  }

  std::function<void(const Options&)> call_to(const Tensor& out) {
    return [=, this](const Options& options) { kron::matmul(x_, factors_, out, options, context_); };
  }
  /// The plans whose kernels the context has.
  std::vector<std::string> plans() {
    std::vector<std::string> texts;
    context_.state().cuda_krons.erase_if([&](const cuda::KronProgram& program) {
      texts.push_back(program.plan.to_text());
      return false;
    });
    return texts;
  }
  ops::AskedPlan ask() {
    ops::Trial trial;
    Options options = options_;
    options.queue.trial = &trial;
    kron::workspace_size(options, call_to(out_));
    return trial.asked.front();
  }

  Context context_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceMemory> memory_;
  std::list<Array> hosts_;
  std::vector<Tensor> factors_;
  Tensor x_, y_, out_;
  Options options_;
  std::vector<std::int64_t> asked_;
};

TEST_F(KronTuneOnGpu, ChoosesAndIsUsed) {
  call_to(out_)(options_);
  ASSERT_EQ(plans().size(), 1u);
  asked_.clear();
  const TuneReport report = kron::tune(options_, call_to(out_), context_);
  EXPECT_EQ(asked_.size(), 1u);
  EXPECT_TRUE(plans().empty());  // made anew
  expect_measured(report);
  if (HasFatalFailure()) return;
  const std::vector<float> tuned = download(out_);
  EXPECT_EQ(ops::ChoiceStore::shared().find(ask().key).has_value(), true);
  stream_->upload(reinterpret_cast<CuPointer>(out_.data), hosts_.back().bytes().data(), kBytes);
  call_to(out_)(options_);
  EXPECT_EQ(plans(), std::vector<std::string>{report.chosen});
  EXPECT_EQ(download(out_), tuned);
}

/// What is stored is what runs, and what its scratch memory is counted for.
TEST_F(KronTuneOnGpu, StoredPlansRun) {
  const ops::AskedPlan asked = ask();
  std::set<std::int64_t> sizes;
  for (const ops::Choice& choice : asked.candidates()) {
    ops::ChoiceStore::shared().keep(asked.key, choice.record, "title");
    context_.state().cuda_krons.clear();
    const std::int64_t bytes = kron::workspace_size(options_, call_to(out_));
    if (!sizes.insert(bytes).second) continue;  // a plan of each number of passes
    asked_.clear();
    call_to(out_)(options_);
    EXPECT_EQ(asked_, bytes > 0 ? std::vector<std::int64_t>{bytes} : std::vector<std::int64_t>{});
    EXPECT_EQ(plans(), std::vector<std::string>{choice.text});
    // What other processes find out changes nothing of a plan that is there.
    ops::ChoiceStore::shared().keep(asked.key, asked.model.record, "title");
    EXPECT_EQ(kron::workspace_size(options_, call_to(out_)), bytes);
  }
  EXPECT_GT(sizes.size(), 1u);
}

TEST_F(KronTuneOnGpu, PartsAreServedToo) {
  context_.state().own_costs().part_bytes = kBytes / 3;
  kron::tune(options_, call_to(out_), context_);
  ops::Trial trial;
  trial.record = ops::ChoiceStore::shared().find(ask().key).value();
  Options options = options_;
  options.queue.trial = &trial;
  call_to(out_)(options);
  EXPECT_GT(trial.asked.size(), 1u);
  for (const ops::AskedPlan& asked : trial.asked)
    EXPECT_EQ(ops::ChoiceStore::shared().find(asked.key), std::optional(asked.taken.record));
}

TEST_F(KronTuneOnGpu, RefusesOutputsThatAreInputs) {
  const std::vector<float> before = download(x_);
  EXPECT_NE(message_of([&] { kron::tune(options_, call_to(x_), context_); }).find("Received an out that is x."),
            std::string::npos);
  EXPECT_EQ(download(x_), before);
  options_.beta = 0.5;
  options_.y = &y_;
  const std::vector<float> added = download(y_);
  EXPECT_NE(message_of([&] { kron::tune(options_, call_to(y_), context_); }).find("Received an out that is y."),
            std::string::npos);
  EXPECT_EQ(download(y_), added);
}

TEST_F(KronTuneOnGpu, RefusesACapture) {
  const CudaScope scope(0);
  const CudaDriver& driver = need_cuda("test");
  check_cuda(driver.stream_begin_capture(*stream_, kCuCaptureThreadLocal), "test");
  const std::string message = message_of([&] { kron::tune(options_, call_to(out_), context_); });
  CuGraph graph = nullptr;
  EXPECT_EQ(driver.stream_end_capture(*stream_, &graph), kCuSuccess);  // and has not spoiled it
  if (graph != nullptr) driver.graph_destroy(graph);
  EXPECT_NE(message.find("while a CUDA graph is captured"), std::string::npos) << message;
}

TEST_F(KronTuneOnGpu, StopsWhenAskedTo) {
  const std::string key = ask().key;
  const auto kept = ops::ChoiceStore::shared().find(key);
  options_.progress = [](double, double) { return false; };
  EXPECT_THROW(kron::tune(options_, call_to(out_), context_), Cancelled);
  EXPECT_EQ(ops::ChoiceStore::shared().find(key), kept);
}

}  // namespace
}  // namespace mercer
