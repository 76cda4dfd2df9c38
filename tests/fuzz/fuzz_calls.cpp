// Random calls of every verb on every target, each value held against a bound from the error analysis of its formula,
// and symbolic derivatives against central differences of the oracle.
//
//   fuzz_calls [--seed 1] [--cases 1000] [--part 0/1] [--jobs 1] [--verb knn] [--targets cpu|cuda] [--seconds 3600]
//
// prints for a failure a line that makes the call again, made smaller first:
//
//   fuzz_calls --verb knn --dtype float32 --values 7 --m 2 … --formula 'sum(abs(x-z))'
//
// A seed and a count give the same cases everywhere; --seconds goes on until the time is over.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "fuzz/call_check.h"
#include "fuzz/derivative_check.h"
#include "fuzz/matrix_check.h"
#include "ops/context.h"

namespace mercer::fuzz {
namespace {

struct Options {
  std::uint64_t seed = 1;
  std::int64_t cases = 1000, jobs = 1, seconds = 0, part = 0, parts = 1, failures = 5;
  std::optional<Verb> verb;
  std::string targets = "cpu,cuda";
  std::optional<Case> only;

  bool wants(const char* name) const { return targets.find(name) != std::string::npos; }
};

struct Totals {
  CallCounts calls;
  DerivativeCounts derivatives;
  void add(const Totals& o) {
    calls.values += o.calls.values, calls.known += o.calls.known, calls.tight += o.calls.tight;
    calls.refused += o.calls.refused;
    derivatives.smooth += o.derivatives.smooth, derivatives.kinks += o.derivatives.kinks;
    derivatives.left_out += o.derivatives.left_out;
  }
};

// ---- Contexts. ------------------------------------------------------------------------------------------------------

/// A context for every target of the CPU; for the best one two more, whose thresholds send small calls the ways of
/// large ones.
Contexts cpu_contexts() {
  Contexts list;
  for (const Target target : testing_support::targets()) list.push_back(std::make_unique<TestContext>(target));
  for (const int threads : {1, 3}) {
    list.push_back(std::make_unique<TestContext>(testing_support::targets().front()));
    list.back()->set_threads(threads);
    list.back()->state().own_costs().much_mixed_work = 0;
    list.back()->state().own_costs().part_bytes = 1 << 10;
  }
  return list;
}

/// Contexts of a GPU: as calls have them, with every product on tensor cores, by warps or warpgroups, and with none.
Contexts cuda_contexts() {
  Contexts list;
  const auto add = [&]() -> TestContext& {
    return *list.emplace_back(std::make_unique<TestContext>(TestContext::Cuda()));
  };
  add();
  for (const bool by_warps : {false, true}) {
    TestContext& small = add();
    plan::Costs& costs = small.state().own_costs();
    costs.tensor_cores_from = costs.much_mixed_work = costs.expanded_from = costs.wide_from = 0;
    small.state().own_costs().by_warps = by_warps;
    small.state().own_costs().part_bytes = 1 << 19;
  }
  add().set_precision(Precision::direct);
  return list;
}

// ---- One case. ------------------------------------------------------------------------------------------------------

/// What is wrong with a case; empty when nothing is. A formula without a derivative is refused, and says so.
std::string fault_of(const Case& c, const std::vector<const Contexts*>& lists, Totals& totals) {
  try {
    if (c.verb == Verb::derivative) return derivative_fault(c, totals.derivatives);
    for (const Contexts* list : lists) {
      std::string found = c.verb == Verb::kron    ? KronCheck(c).fault(*list)
                          : c.verb == Verb::solve ? solve_fault(c, *list)
                                                  : CallCheck(c, totals.calls).fault(*list);
      if (!found.empty()) return found;
    }
  } catch (const Error& error) {
    const bool no_derivative = error.kind() == ErrorKind::unsupported &&
                               std::string(error.what()).find("has no known derivative") != std::string::npos;
    if (!no_derivative) return fmt::format("it is refused: {}", error.what());
    ++totals.calls.refused;
  }
  return "";
}

/// Simpler arrays, fewer points and features, then a shorter formula, as long as something stays wrong.
template <class Fails>
Case made_smaller(Case c, const Fails& fails) {
  for (bool changed = true; changed;) {
    changed = false;
    Case::each_number(c, [&](const char* name, std::int64_t& value) {
      const bool extent = std::strlen(name) == 1;
      const std::int64_t least = extent ? 1 : 0, usual = value;
      if (!std::strcmp(name, "option")) return;
      for (const std::int64_t smaller : {least, usual / 2, usual - 1}) {
        if (smaller < least || smaller >= usual) continue;
        value = smaller;
        const bool possible = c.verb != Verb::knn || (c.count >= 1 && c.count <= (c.same ? c.m : c.n));
        if (possible && fails(c)) return void(changed = true);
        value = usual;
      }
    });
    const Expr before = c.formula;
    c.formula = shrink(c.formula, [&](const Expr& f) {
      Case shorter = c;
      shorter.formula = f;
      return fails(shorter);
    });
    changed |= !same(before, c.formula);
  }
  return c;
}

// ---- The run. -------------------------------------------------------------------------------------------------------

class Run {
 public:
  explicit Run(Options options) : options_(std::move(options)), started_(std::chrono::steady_clock::now()) {}

  int operator()() {
    std::vector<std::thread> threads;
    for (std::int64_t job = 1; job < options_.jobs; ++job) threads.emplace_back([this] { work(); });
    work();
    for (std::thread& thread : threads) thread.join();
    report();
    const bool broken = ::testing::UnitTest::GetInstance()->Failed();  // what the device's arrays found by themselves
    return failures_ > 0 || broken ? 1 : 0;
  }

 private:
  bool is_over(std::int64_t index) const {
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - started_;
    if (failures_ >= options_.failures) return true;
    return options_.seconds > 0 ? gone.count() > static_cast<double>(options_.seconds) : index >= options_.cases;
  }

  void work() {
    const Contexts cpu = options_.wants("cpu") ? cpu_contexts() : Contexts{};
    const bool has_cuda = options_.wants("cuda") && testing_support::cuda_missing().empty();
    const Contexts cuda = has_cuda ? cuda_contexts() : Contexts{};
    std::vector<const Contexts*> lists;
    for (const Contexts* list : {&cpu, &cuda})
      if (!list->empty()) lists.push_back(list);
    Totals totals;
    for (std::int64_t index = next_++; !is_over(index); index = next_++) {
      const auto seed = options_.seed + static_cast<std::uint64_t>(index * options_.parts + options_.part);
      const Case c = options_.only ? *options_.only : drawn_case(seed, options_.verb);
      if (const char* trace = std::getenv("FUZZ_TRACE"); trace) std::fprintf(stderr, "%s\n", c.to_text().c_str());
      const std::string found = fault_of(c, lists, totals);
      if (!found.empty()) tell(c, found, lists);
      if (options_.only) break;
    }
    const std::lock_guard lock(mutex_);
    totals_.add(totals);
  }

  void tell(const Case& c, const std::string& found, const std::vector<const Contexts*>& lists) {
    Totals unused;
    const auto fails = [&](const Case& s) { return !fault_of(s, lists, unused).empty(); };
    const Case small = options_.only ? c : made_smaller(c, fails);
    const std::string again = fault_of(small, lists, unused);
    const std::lock_guard lock(mutex_);
    ++failures_;
    std::printf("FAILED (seed %llu): %s\n  fuzz_calls %s\n", static_cast<unsigned long long>(c.values), found.c_str(),
                c.to_text().c_str());
    if (again.empty()) std::printf("  and not when the call is made again\n");
    else if (!options_.only) std::printf("  smaller: %s\n  fuzz_calls %s\n", again.c_str(), small.to_text().c_str());
    std::fflush(stdout);
  }

  void report() const {
    const auto& [calls, derivatives] = totals_;
    fmt::print("{} values, {} of them known, {} within 1e-3; {} smooth derivatives, {} kinks, {} left out; "
               "{} formulas without a derivative; {} failures\n",
               calls.values, calls.known, calls.tight, derivatives.smooth, derivatives.kinks, derivatives.left_out,
               calls.refused, failures_.load());
    if (options_.wants("cuda") && !testing_support::cuda_missing().empty())
      std::printf("CUDA: skipped, every case: %s\n", testing_support::cuda_missing().c_str());
  }

  Options options_;
  std::chrono::steady_clock::time_point started_;
  std::atomic<std::int64_t> next_{0}, failures_{0};
  std::mutex mutex_;
  Totals totals_;
};

// ---- The command line. ----------------------------------------------------------------------------------------------

Verb verb_from(const std::string& name) {
  for (std::size_t v = 0; v < std::size(kVerbs); ++v)
    if (name == kVerbs[v]) return static_cast<Verb>(v);
  fail(ErrorKind::invalid_argument, "fuzz_calls: there is no verb {}.", name);
}

Dtype dtype_from(const std::string& name) {
  for (const Dtype dtype : kPointDtypes)
    if (name == name_of(dtype)) return dtype;
  fail(ErrorKind::invalid_argument, "fuzz_calls: points have no dtype {}.", name);
}

Options options_from(int count, char** words) {
  Options o;
  Case only;
  for (int at = 1; at + 1 < count; at += 2) {
    const std::string name = words[at], value = words[at + 1];
    const auto number = [&] { return std::strtoll(value.c_str(), nullptr, 10); };
    bool known = true;
    if (name == "--seed") o.seed = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "--cases") o.cases = number();
    else if (name == "--jobs") o.jobs = number();
    else if (name == "--seconds") o.seconds = number();
    else if (name == "--failures") o.failures = number();
    else if (name == "--targets") o.targets = value;
    else if (name == "--part") known = std::sscanf(value.c_str(), "%ld/%ld", &o.part, &o.parts) == 2;
    else if (name == "--verb") o.verb = only.verb = verb_from(value);
    else if (name == "--dtype") only.dtype = dtype_from(value);
    else if (name == "--values") only.values = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "--formula") only.formula = parse(value);
    else {
      known = false;
      Case::each_number(only, [&](const char* field, std::int64_t& to) {
        if (name == std::string("--") + field) to = number(), known = true;
      });
    }
    require(known, "fuzz_calls: options are those of tests/fuzz/fuzz_calls.cpp. Received {} {}.", name, value);
  }
  require(count % 2 == 1, "fuzz_calls: every option has a value. Received {} without one.", words[count - 1]);
  if (!only.formula.empty()) o.only = only;
  return o;
}

}  // namespace
}  // namespace mercer::fuzz

int main(int count, char** words) {
  ::testing::InitGoogleTest();
  ::setenv("MERCER_QUICK_COMPILE", "0", 0);  // a case has no second call
  try {
    return mercer::fuzz::Run(mercer::fuzz::options_from(count, words))();
  } catch (const mercer::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
