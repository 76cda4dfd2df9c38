// Random formulas: pairwise on every target and type against what the error analysis of the formula allows; also text,
// simplification and symmetry. MERCER_TEST_FORMULAS sets the number of formulas, MERCER_TEST_CUDA_FORMULAS that
// of CUDA, where each takes a compilation, MERCER_TEST_SEED the first.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "core/error.h"
#include "core/sanitized.h"
#include "fuzz/error_bound.h"
#include "fuzz/formula_generator.h"
#include "mercer/mercer.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using fuzz::ErrorBound;
using fuzz::Range;
using testing_support::TestContext;
using Contexts = std::vector<std::unique_ptr<TestContext>>;

int number_from(const char* variable, int usual) {
  const char* text = std::getenv(variable);
  return text ? std::max(1, std::atoi(text)) : usual;
}

int formulas() { return number_from("MERCER_TEST_FORMULAS", testing_support::kSanitized ? 200 : 2000); }

/// Another stream of formulas.
std::uint64_t first_seed() {
  const char* text = std::getenv("MERCER_TEST_SEED");
  return text ? std::strtoull(text, nullptr, 10) : 1;
}

/// Points and everything that a formula may read, the same in both types.
struct Data {
  std::int64_t m, n, k;
  std::vector<double> x, z, w, row, col;
  std::map<std::string, double> params;

  explicit Data(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    m = 1 + static_cast<std::int64_t>(random() % 5);
    n = 1 + static_cast<std::int64_t>(random() % 9);
    k = 1 + static_cast<std::int64_t>(random() % 12);
    const auto fill = [&](std::vector<double>& values, std::int64_t count) {
      // Numbers of float32, some of them equal and some zero.
      for (std::int64_t i = 0; i < count; ++i)
        values.push_back(random() % 6 == 0 ? static_cast<double>(random() % 3) : static_cast<float>(normal(random)));
    };
    fill(x, m * k);
    fill(z, n * k);
    fill(w, k);
    fill(row, m);
    fill(col, n);
    if (random() % 3 == 0 && m > 1 && n > 1) std::copy_n(x.begin(), k, z.begin() + k);  // a pair of equal points
    params = {{"a", 1.25}, {"b", 0.5 + static_cast<double>(random() % 4)}, {"c", 0.375}};
  }

  ir::PairInputs pair(std::int64_t i, std::int64_t j) const {
    ir::PairInputs in;
    in.x = x.data() + i * k;
    in.z = z.data() + j * k;
    in.w = w.data();
    in.features = k;
    in.row = row[i];
    in.col = col[j];
    in.i = static_cast<double>(i);
    in.j = static_cast<double>(j);
    in.params = &params;
    return in;
  }
};

template <class T>
std::vector<double> run(const Expr& e, const Data& data, TestContext& context, bool same) {
  const Formula f(e);
  const auto narrow = [](const std::vector<double>& v) { return std::vector<T>(v.begin(), v.end()); };
  const auto x = narrow(data.x), z = narrow(data.z), w = narrow(data.w), row = narrow(data.row), col = narrow(data.col);
  const std::int64_t n = same ? data.m : data.n;
  std::vector<T> out(static_cast<std::size_t>(data.m * n));
  Arguments arguments;
  const ir::Uses uses = ir::uses(f.expression());
  if (uses.w) arguments.w = view(w.data(), {data.k});
  if (uses.row) arguments.row = view(row.data(), {data.m});
  if (uses.col) arguments.col = same ? view(row.data(), {data.m}) : view(col.data(), {data.n});
  for (const auto& [name, value] : parameters(e)) arguments.params[name] = data.params.at(name);
  const Tensor zs = view(z.data(), {data.n, data.k});
  testing_support::pairwise(f, view(x.data(), {data.m, data.k}), same ? nullptr : &zs,
                            view(out.data(), {data.m, n}), arguments, context);
  return std::vector<double>(out.begin(), out.end());
}

std::vector<double> run(const Expr& e, const Data& data, Dtype type, TestContext& context, bool same = false) {
  return type == Dtype::float64 ? run<double>(e, data, context, same) : run<float>(e, data, context, same);
}

struct Counts {
  std::int64_t pairs = 0, known = 0, tight = 0;
};

Contexts cpu_contexts() {
  Contexts list;
  for (const Target target : testing_support::targets())
    if (testing_support::is_wanted(name_of(target))) list.push_back(std::make_unique<TestContext>(target));
  return list;
}

std::string numeric_fault(const Expr& e, const Data& data, Dtype type, const Contexts& list, Counts* counts) {
  const bool single = type == Dtype::float32;
  const Formula f(e);
  std::vector<Range> bounds;
  for (std::int64_t i = 0; i < data.m; ++i)
    for (std::int64_t j = 0; j < data.n; ++j) {
      const Range bound = ErrorBound(single, data.pair(i, j), list.front()->on_cuda())(e);
      bounds.push_back(bound);
      if (counts) {
        ++counts->pairs;
        counts->known += bound.known;
        counts->tight += bound.known && bound.high - bound.low <= 1e-3L * bound.magnitude();
      }
      const long double oracle = ir::evaluate_wide(e, data.pair(i, j));
      if (bound.known && !bound.contains(oracle))
        return fmt::format("the oracle gives {}", static_cast<double>(oracle));
    }
  for (const auto& context : list) {
    const std::vector<double> out = run(e, data, type, *context);
    for (std::size_t p = 0; p < out.size(); ++p)
      if (bounds[p].known && !bounds[p].contains(out[p]))
        return fmt::format("{} {} gives {} for pair {}, which lies in [{}, {}]", context->name(), name_of(type), out[p],
                           p, static_cast<double>(bounds[p].low), static_cast<double>(bounds[p].high));
    if (!f.symmetric() || ir::uses(e).index_i || ir::uses(e).index_j) continue;
    const std::vector<double> half = run(e, data, type, *context, true);
    for (std::int64_t i = 0; i < data.m; ++i)
      for (std::int64_t j = 0; j < i; ++j) {
        const double a = half[i * data.m + j], b = half[j * data.m + i];
        if (a != b && !(std::isnan(a) && std::isnan(b)))
          return fmt::format("{} is not symmetric: {} and {}", context->name(), a, b);
      }
  }
  return "";
}

/// The fault of a formula on data, or nothing. All contexts are of the CPU, or all of CUDA.
std::string fault_of(const Expr& e, const Data& data, Dtype type, const Contexts& list,
                     Counts* counts = nullptr) try {
  return numeric_fault(e, data, type, list, counts);
} catch (const Error& error) {
  return fmt::format("it is refused: {}", error.what());
}

/// The value with the roles of the points exchanged.
long double exchanged(const Expr& e, const Data& data, std::int64_t i, std::int64_t j) {
  ir::PairInputs in = data.pair(i, j);
  std::swap(in.x, in.z);
  std::swap(in.row, in.col);
  std::swap(in.i, in.j);
  return ir::evaluate_wide(e, in);
}

std::string plain_faults(const Expr& e, const Data& data) {
  if (!same(parse(e.to_text()), e)) return "its text reads as another formula";
  const Expr simple = ir::simplify(e);
  if (!same(parse(simple.to_text()), simple)) return "the text of its simplified form reads as another formula";
  const bool symmetric = ir::is_symmetric(simple);
  for (std::int64_t i = 0; i < data.m; ++i)
    for (std::int64_t j = 0; j < data.n; ++j) {
      const Range bound = ErrorBound(false, data.pair(i, j))(e);
      if (!bound.known) continue;
      const long double value = ir::evaluate_wide(simple, data.pair(i, j));
      if (!bound.contains(value))
        return fmt::format("simplified, {}, it gives {}", simple.to_text(), static_cast<double>(value));
      if (symmetric && !bound.contains(exchanged(e, data, i, j))) return "it is called symmetric and is not";
    }
  return "";
}

TEST(FormulaFuzz, TextAndSimplificationKeepTheMeaning) {
  for (int index = 0; index < formulas(); ++index) {
    const auto seed = static_cast<std::uint64_t>(index) + first_seed();
    const Expr f = fuzz::FormulaGenerator(seed)();
    const Data data(seed);
    if (plain_faults(f, data).empty()) continue;
    const Expr small = fuzz::shrink(f, [&](const Expr& e) { return !plain_faults(e, data).empty(); });
    FAIL() << "formula " << index << ": " << plain_faults(small, data) << "\n"
           << small.to_text() << "\nfrom " << f.to_text();
  }
}

/// A formula, its data and its type, by its number.
struct Sample {
  std::uint64_t seed;
  Expr formula;
  Data data;
  Dtype type;
  explicit Sample(int index)
      : seed(static_cast<std::uint64_t>(index) + first_seed()),
        formula(fuzz::FormulaGenerator(seed)()),
        data(seed),
        type(index % 2 ? Dtype::float64 : Dtype::float32) {}
};

/// Adds a failure with the smallest formula that shows it; false when there is none.
bool fails(int index, const Contexts& list, Counts* counts) {
  const Sample s(index);
  if (fault_of(s.formula, s.data, s.type, list, counts).empty()) return false;
  const Expr small =
      fuzz::shrink(s.formula, [&](const Expr& e) { return !fault_of(e, s.data, s.type, list).empty(); });
  ADD_FAILURE() << "formula " << index << ": " << fault_of(small, s.data, s.type, list) << "\n"
                << small.to_text() << "\nfrom " << s.formula.to_text();
  return true;
}

TEST(FormulaFuzz, EveryTargetStaysWithinTheErrorBound) {
  const Contexts list = cpu_contexts();
  if (list.empty()) GTEST_SKIP() << "MERCER_TEST_TARGETS names no target of the CPU";
  Counts counts;
  int failures = 0;
  for (int index = 0; index < formulas() && failures < 5; ++index) failures += fails(index, list, &counts);
  EXPECT_GE(counts.known * 2, counts.pairs) << counts.known << " of " << counts.pairs << " pairs are well defined";
  EXPECT_GE(counts.tight * 3, counts.pairs) << counts.tight << " of " << counts.pairs << " pairs have a tight bound";
}

/// Compiles the formulas [first, end) on several threads; what fails there fails again when it is looked at.
void compile_on_cuda(int first, int end, TestContext& context) {
  std::atomic<int> next{first};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency() / 2); ++t)
    threads.emplace_back([&] {
      for (int index = next++; index < end; index = next++) {
        const Sample s(index);
        try {
          run(s.formula, s.data, s.type, context);
        } catch (const Error&) {}
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(FormulaFuzz, CudaStaysWithinTheErrorBound) {
  constexpr int kUsual = 60, kAtOnce = 60;  // of the 256 plans that a context keeps
  if (!testing_support::is_wanted("cuda")) GTEST_SKIP() << "MERCER_TEST_TARGETS does not name cuda";
  if (!testing_support::cuda_serves()) GTEST_SKIP() << testing_support::cuda_missing();
  Contexts list;
  list.push_back(std::make_unique<TestContext>(TestContext::Cuda()));
  const int count = number_from("MERCER_TEST_CUDA_FORMULAS", kUsual);
  int failures = 0;
  for (int index = 0; index < count && failures < 3; ++index) {
    if (index % kAtOnce == 0) compile_on_cuda(index, std::min(count, index + kAtOnce), *list.front());
    failures += fails(index, list, nullptr);
  }
}

}  // namespace
}  // namespace mercer
