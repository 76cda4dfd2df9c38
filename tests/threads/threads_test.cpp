// What several threads may do at once, for the thread sanitizer: verbs of one context while others change its settings,
// forget its plans and cancel; contexts that come and go; the pool; the caches; compilation after first calls.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/system/file_cache.h"
#include "core/system/parallel.h"
#include "core/system/recent_cache.h"
#include "core/testing.h"
#include "jit/quick_compile.h"
#include "mercer/kron.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

/// body(thread, round) on several threads, all rounds of all.
void on_threads(int threads, int rounds, const std::function<void(int, int)>& body) {
  std::vector<std::thread> users;
  for (int thread = 0; thread < threads; ++thread)
    users.emplace_back([&, thread] {
      for (int round = 0; round < rounds; ++round) body(thread, round);
    });
  for (std::thread& user : users) user.join();
}

constexpr const char* kTexts[] = {"exp(-sum(abs(x-z))/9)", "sqrt(sum((x-z)^2))", "max(abs(x-z))", "sum(x*z)"};

/// Every verb of one formula, into arrays of its own.
struct Verbs {
  Array x = normal(Dtype::float32, {70, 20}, 1), z = normal(Dtype::float32, {90, 20}, 2),
        v = normal(Dtype::float32, {90, 3}, 3), coef = normal(Dtype::float32, {2, 90}, 4),
        weights = normal(Dtype::float32, {70, 3}, 5), factor = normal(Dtype::float32, {20, 20}, 6);
  Array k{Dtype::float32, {70, 90}}, half{Dtype::float32, {70, 70}}, y{Dtype::float32, {70, 3}},
      best{Dtype::float32, {70}}, values{Dtype::float32, {70, 2}}, indices{Dtype::int64, {70, 2}},
      g{Dtype::float32, {2, 70, 20}}, agop{Dtype::float32, {20, 20}}, gx{Dtype::float32, {70, 20}},
      product{Dtype::float32, {70, 20}};

  void run(const char* text, Context& context) const {
    const Tensor zt = z;
    pairwise(text, x, &zt, k, {}, context);
    pairwise(text, x, nullptr, half, {}, context);
    kernel_product(text, x, &zt, v, y, {}, context);
    kernel_reduce(text, x, &zt, ReduceKind::max, best, {}, context);
    knn(text, x, &zt, 2, values, indices, {}, context);
    kernel_gradient(text, x, &zt, coef, g, {}, context);
    kernel_agop(text, x, &zt, coef, agop, {}, context);
    product_gradient(text, x, &zt, weights, v, gx, {}, context);
    const Tensor factors[] = {factor};
    kron::matmul(x, factors, product, {}, context);
  }
  bool same_as(const Verbs& o) const {
    return same_bits(k, o.k) && same_bits(half, o.half) && same_bits(y, o.y) && same_bits(best, o.best) &&
           same_bits(indices, o.indices) && same_bits(g, o.g) && same_bits(agop, o.agop) && same_bits(gx, o.gx) &&
           same_bits(product, o.product);
  }
};

TEST(Threads, VerbsWhileSettingsChangeAndPlansAreForgotten) {
  Context context;
  context.set_threads(3);
  std::vector<Verbs> expected(std::size(kTexts));
  for (std::size_t f = 0; f < expected.size(); ++f) expected[f].run(kTexts[f], context);
  std::atomic<int> wrong{0};
  on_threads(5, 8, [&](int thread, int round) {
    if (thread == 0) context.set_threads(1 + round % 4);
    if (thread == 1) context.clear_plans();
    if (thread == 2) context.set_precision(round % 2 ? Precision::direct : Precision::fp32);
    if (context.threads() < 1 || context.plan_count() > 10000) ++wrong;
    const auto f = static_cast<std::size_t>(thread + round) % std::size(kTexts);
    const Verbs mine;
    mine.run(kTexts[f], context);
    wrong += !mine.same_as(expected[f]);
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, TargetsChange) {
  Context context;
  std::atomic<int> wrong{0};
  on_threads(4, 12, [&](int thread, int round) {
    if (thread == 0) context.set_target(targets()[static_cast<std::size_t>(round) % targets().size()]);
    const Verbs mine;
    mine.run(kTexts[round % 4], context);
    for (int m = 0; m < 70; ++m)  // coincident points, on every target
      if (round % 4 == 1 && mine.half(m, m) != 0) ++wrong;
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, CancelledCallsAmongOthers) {
  const Array x = normal(Dtype::float64, {600, 40}, 1);
  Context context;
  context.set_target(Target::interpreter);
  context.set_threads(2);
  std::atomic<int> cancelled{0};
  on_threads(3, 2, [&](int thread, int) {
    const Array out(Dtype::float64, {600, 600});
    Arguments arguments;
    if (thread > 0) arguments.progress = [](double, double) { return false; };
    try {
      pairwise("sum(exp(-abs(x-z)^1.3))", x, nullptr, out, arguments, context);
    } catch (const Cancelled&) {
      ++cancelled;
    }
  });
  EXPECT_GE(cancelled, 1);
}

TEST(Threads, ContextsComeAndGo) {
  std::atomic<int> wrong{0};
  on_threads(4, 6, [&](int thread, int round) {
    const Array x = normal(Dtype::float32, {30, 5}, 1), out(Dtype::float32, {30, 30});
    Context own;
    own.set_threads(2);
    pairwise(kTexts[(thread + round) % 4], x, nullptr, out, {}, own);
    pairwise(kTexts[round % 4], x, nullptr, out, {}, Context::shared());
    wrong += own.plan_count() != 1;
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, FormulasAndTextsAreShared) {
  const Formula f("sum(abs(x-z)^p)^(1/p)");
  on_threads(4, 20, [&](int, int round) {
    const Array x = normal(Dtype::float32, {9, 5}, 1), out(Dtype::float32, {9, 9}), g(Dtype::float32, {9, 5}),
                coef = normal(Dtype::float32, {9}, 2);
    Arguments arguments;
    arguments.params["p"] = 1 + round / 8.0;
    pairwise(f, x, nullptr, out, arguments);
    kernel_gradient(f, x, nullptr, coef, g, arguments);
    EXPECT_FALSE(explain(f, {}, Dtype::float32, "auto").empty());
    EXPECT_FALSE(describe_machine().empty());
  });
}

TEST(Threads, APoolRunsForSeveralCallers) {
  constexpr std::int64_t kTasks = 50;
  Pool pool(3);
  std::atomic<int> wrong{0};
  on_threads(4, 30, [&](int thread, int round) {
    if (thread == 0) pool.set_threads(1 + round % 4);
    const bool throws = round % 5 == 4;
    std::vector<int> done(kTasks, 0);  // plain: the caller reads what workers wrote
    std::vector<int> inside(kTasks, 0);
    const auto body = [&](std::int64_t task, int) {
      const auto i = static_cast<std::size_t>(task);
      ++done[i];
      if (task % 9 == 0) pool.run(3, [&](std::int64_t, int) { ++inside[i]; });  // inline, by this thread
      if (throws && task == kTasks / 2) throw std::out_of_range("of a body");
    };
    try {
      pool.run(kTasks, body);
      for (std::size_t i = 0; i < done.size(); ++i) wrong += done[i] != 1 || inside[i] != (i % 9 == 0 ? 3 : 0);
      wrong += throws;
    } catch (const std::out_of_range&) {
      for (const int count : done) wrong += count > 1;
      wrong += !throws;
    }
    wrong += pool.started_workers() < 0;
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, PoolsComeAndGo) {
  std::atomic<std::int64_t> sum{0};
  on_threads(3, 20, [&](int, int round) {
    Pool pool(2 + round % 3);
    pool.run(20, [&](std::int64_t task, int) { sum += task; });
  });
  EXPECT_EQ(sum, 3 * 20 * 190);
}

TEST(Threads, RecentCache) {
  RecentCache<int> cache(8);
  on_threads(5, 400, [&](int thread, int round) {
    const std::string key = std::to_string((thread * 7 + round) % 20);
    EXPECT_EQ(*cache.get(key, [&] { return std::make_shared<const int>(std::stoi(key)); }), std::stoi(key));
    if (round % 50 == 0) cache.clear();
    if (round % 30 == 0) cache.erase_if([](int value) { return value % 2 == 0; });
    if (const auto found = cache.find(key); found) EXPECT_EQ(*found, std::stoi(key));
    cache.replace(key, std::make_shared<const int>(std::stoi(key)));
    EXPECT_LE(cache.size(), 8u);
  });
}

TEST(Threads, FileCache) {
  const TemporaryFolder folder;
  FileCache shared(folder.path() / "cache", 1 << 16);
  on_threads(4, 40, [&](int thread, int round) {
    const std::string key = std::to_string((thread + round) % 6), payload(4000, key[0]);
    FileCache own(folder.path() / "cache", 1 << 16);
    FileCache& cache = round % 2 ? own : shared;
    cache.write(key, payload);
    if (const auto found = cache.read(key); found) EXPECT_EQ(*found, payload);
    if (round % 10 == 9) cache.trim(8000);
    EXPECT_GE(cache.stats().files, 0);
  });
}

TEST(Threads, FilesAreRemovedWhileTheyAreRead) {
  const TemporaryFolder folder;
  constexpr std::int64_t kCap = 1 << 14;  // holds four of the eight
  FileCache shared(folder.path() / "cache", kCap);
  on_threads(4, 40, [&](int thread, int round) {
    const std::string key = std::to_string((3 * thread + round) % 8), payload(4000, key[0]);
    shared.write(key, payload);
    if (const auto found = shared.read(key); found) EXPECT_EQ(*found, payload);
    if (round % 16 == 15) shared.trim(0);
  });
  shared.trim(kCap);
  EXPECT_LE(shared.stats().bytes, kCap);
}

TEST(Threads, CompilationBehindFirstCalls) {
  ::setenv("MERCER_QUICK_COMPILE", "1", 1);
  ASSERT_TRUE(jit::compiles_first());
  std::atomic<int> wrong{0};
  on_threads(4, 6, [&](int thread, int round) {
    std::vector<jit::CudaSource> sources;
    for (int i = 0; i < 3; ++i)  // some of them the same on several threads
      sources.push_back({"kernel", fmt::format("kernel {}", (thread / 2 * 100 + round * 3 + i)), "sm_90", {}});
    const std::vector<jit::QuickBinary> quick = jit::compile_quickly(sources);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const std::string& code = quick[i].full.valid() ? quick[i].full.get().cubin : quick[i].binary.cubin;
      wrong += code.find(sources[i].text) == std::string::npos;
    }
    if (round == 3) jit::finish_compiling();
  });
  jit::finish_compiling();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace mercer
