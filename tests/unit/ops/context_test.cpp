// What a Context promises: bounded memory under a stream of formulas, cancelling, forks, calls from several threads.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "core/sanitized.h"
#include "core/system/exec_memory.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

std::int64_t resident_bytes() {
  if (kSanitized) return 0;  // the sanitizer keeps freed memory for a while
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(ContextTest, AStreamOfFormulasDoesNotGrowMemory) {
  const Array x = normal(Dtype::float32, {2, 3}, 1), z = normal(Dtype::float32, {2, 3}, 2), out(Dtype::float32, {2, 2});
  const Array coef = normal(Dtype::float32, {2}, 3), gradient(Dtype::float32, {2, 3});
  const Tensor zt = z;
  Context context;
  std::int64_t resident = 0, mappings = 0;
  constexpr int kFormulas = kSanitized ? 1000 : 10000, kOfFullCaches = kSanitized ? 600 : 6000;
  for (int i = 0; i < kFormulas; ++i) {
    const std::string text = "exp(-sum(abs(x-z))/" + std::to_string(i + 2) + ")";
    pairwise(text.c_str(), x, &zt, out, {}, context);
    if (i % 20 == 0) kernel_gradient(text.c_str(), x, &zt, coef, gradient, {}, context);
    if (i == kOfFullCaches) {
      resident = resident_bytes();
      mappings = ExecutableMemory::alive();
    }
  }
  EXPECT_LE(context.plan_count(), 512u);
  EXPECT_LE(ExecutableMemory::alive(), mappings + 64);
  EXPECT_LE(ExecutableMemory::alive(), 512 * 8);
  EXPECT_LT(resident_bytes() - resident, std::int64_t{16} << 20);
  context.clear_plans();
  EXPECT_EQ(context.plan_count(), 0u);
}

TEST(ContextTest, ExponentsAsNumbersDoNotGrowMemory) {
  const Array x = normal(Dtype::float32, {2, 3}, 1), z = normal(Dtype::float32, {2, 3}, 2), out(Dtype::float32, {2, 2});
  const Tensor zt = z;
  Context context;
  const Formula f("sum(abs(x-z)^p)^(1/p)");
  std::int64_t resident = 0;
  for (int i = 0; i < (kSanitized ? 80 : 800); ++i) {
    Arguments arguments;
    arguments.params["p"] = 1 + i * 1e-3;
    pairwise(f, x, &zt, out, arguments, context);
    if (i == 300) resident = resident_bytes();
  }
  EXPECT_LT(resident_bytes() - resident, std::int64_t{16} << 20);
}

TEST(ContextTest, ProgramsAreSharedBetweenCalls) {
  const Array x = normal(Dtype::float32, {20, 3}, 1), out(Dtype::float32, {20, 20});
  const Tensor zt = x;
  Context context;
  for (double b : {1.0, 2.0, 3.0}) {
    Arguments arguments;
    arguments.params["b"] = b;
    pairwise("exp(-sum(abs(x-z))/b)", x, &zt, out, arguments, context);
    pairwise(exp(-sum(abs(points().z - points().x)) / param("b")), x, &zt, out, arguments, context);
  }
  EXPECT_EQ(context.plan_count(), 1u);
}

TEST(ContextTest, ProgressCancels) {
  // The first question comes after 50 ms: seconds of work for one core, in tasks of some 30 ms.
  const Array x = normal(Dtype::float32, {3000, 200}, 1), v = normal(Dtype::float32, {3000, 2}, 2),
              y(Dtype::float32, {3000, 2});
  const Array coef = normal(Dtype::float32, {3000}, 3), g(Dtype::float32, {3000, 200}),
              out(Dtype::float32, {3000, 3000});
  const Array best(Dtype::float32, {3000}), values(Dtype::float32, {3000, 2}), indices(Dtype::int64, {3000, 2});
  Context context;
  const char* text = "sum(exp(-abs(x-z)^1.3))";
  for (int threads : {1, 3}) {
    context.set_threads(threads);
    const std::function<void(const Arguments&)> calls[] = {
        [&](const Arguments& a) { pairwise(text, x, nullptr, out, a, context); },
        [&](const Arguments& a) { kernel_product(text, x, nullptr, v, y, a, context); },
        [&](const Arguments& a) { kernel_reduce(text, x, nullptr, ReduceKind::max, best, a, context); },
        [&](const Arguments& a) { knn(text, x, nullptr, 2, values, indices, a, context); },
        [&](const Arguments& a) { kernel_gradient(text, x, nullptr, coef, g, a, context); }};
    for (const auto& call : calls) {
      int asked = 0;
      const std::thread::id caller = std::this_thread::get_id();
      Arguments arguments;
      arguments.progress = [&](double done, double total) {
        EXPECT_GE(done, 0);
        EXPECT_LE(done, total);
        EXPECT_EQ(std::this_thread::get_id(), caller);
        return ++asked < 1;
      };
      EXPECT_THROW(call(arguments), Cancelled);
      EXPECT_EQ(asked, 1);
    }
  }
}

TEST(ContextTest, AForkedChildComputes) {
  const Array x = normal(Dtype::float32, {200, 30}, 1);
  Context context;
  context.set_threads(3);
  const Array before(Dtype::float32, {200, 200}), after(Dtype::float32, {200, 200});
  pairwise("sum(abs(x-z))", x, nullptr, before, {}, context);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    pairwise("sum(abs(x-z))", x, nullptr, after, {}, context);
    const Array fresh(Dtype::float32, {200, 200});
    pairwise("sum(abs(x-z)^1.7)", x, nullptr, fresh, {}, context);
    _exit(same_bits(before, after) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  pairwise("sum(abs(x-z))", x, nullptr, after, {}, context);
  EXPECT_TRUE(same_bits(before, after));
}

TEST(ContextTest, SeveralThreadsCallAtOnce) {
  const Array x = normal(Dtype::float32, {130, 20}, 1), v = normal(Dtype::float32, {130, 2}, 2);
  Context context;
  const Array k(Dtype::float32, {130, 130}), y(Dtype::float32, {130, 2});
  pairwise("exp(-sum(abs(x-z))/9)", x, nullptr, k, {}, context);
  kernel_product("exp(-sum(abs(x-z))/9)", x, nullptr, v, y, {}, context);
  context.clear_plans();
  std::atomic<int> wrong{0};
  std::vector<std::thread> users;
  for (int user = 0; user < 4; ++user)
    users.emplace_back([&, user] {
      for (int round = 0; round < 12; ++round) {
        // The number of threads changes under running calls; results do not.
        if (user == 0) context.set_threads(1 + round % 7);
        if (user == 1) context.clear_plans();
        const Array mine(Dtype::float32, {130, 130}), product(Dtype::float32, {130, 2});
        pairwise("exp(-sum(abs(x-z))/9)", x, nullptr, mine, {}, context);
        kernel_product("exp(-sum(abs(x-z))/9)", x, nullptr, v, product, {}, context);
        if (!same_bits(mine, k) || !same_bits(product, y)) ++wrong;
      }
    });
  for (std::thread& user : users) user.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ContextTest, ChoosesTargets) {
  Context context;
  EXPECT_EQ(context.target(), target_from_text("auto"));
  EXPECT_GE(context.threads(), 1);
  EXPECT_NE(describe_machine().find("target: "), std::string::npos);
  for (Target target : targets()) {
    context.set_target(target);
    EXPECT_EQ(context.target(), target);
    const std::string text = explain("exp(-sum(abs(x-z))/param(b, 2))", {}, Dtype::float32, target);
    for (const char* section : {"## formula", "## split", "## plan", "## epilogue", "## floor"})
      EXPECT_NE(text.find(section), std::string::npos) << section;
    EXPECT_GT(floor_rate("sum(abs(x-z))", {}, Dtype::float32, target, 1), 0);
  }
  EXPECT_GT(measure_clock().gigahertz, 0.1);
}

/// A formula knows the program that it took last, which is its context's.
TEST(ContextTest, ProgramsThatAreForgottenAreMadeAnew) {
  const Formula f("sum(x*z)");
  TestContext first(targets().front()), second(targets().front());
  const Array x = normal(Dtype::float32, {4, 3}, 1), wide = copy(x, Dtype::float64);
  const auto call = [&](const Array& points, Context& context) {
    const Array out(points.tensor().dtype, {4, 4});
    pairwise(f, points, nullptr, out, {}, context);
    for (std::int64_t m = 0; m < 4; ++m) {
      double expected = 0;
      for (std::int64_t k = 0; k < 3; ++k) expected += x(m, k) * x(0, k);
      EXPECT_NEAR(out(m, 0), expected, 1e-5);
    }
    return context.plan_count();
  };
  EXPECT_EQ(call(x, first), 1u);
  EXPECT_EQ(call(x, second), 1u);
  EXPECT_EQ(call(wide, second), 2u);
  EXPECT_EQ(call(x, second), 2u);
  second.clear_plans();
  EXPECT_EQ(second.plan_count(), 0u);
  EXPECT_EQ(call(x, second), 1u);
  EXPECT_EQ(call(x, first), 1u);
}

}  // namespace
}  // namespace mercer
