#include "ops/tune/way_samples.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "core/devices/lapack.h"
#include "core/system/amx.h"
#include "ir/passes/passes.h"
#include "mercer/pairwise.h"
#include "ops/context.h"
#include "ops/costs/cpu_costs.h"
#include "plan/cpu/planner.h"

namespace mercer::ops {
namespace {

using plan::Verb;
using plan::cpu::TimedCall;
using plan::cpu::Way;

struct Shape {
  std::int64_t m, n, k, columns = 1;  // of v, or neighbours
};

constexpr const char* kSums[] = {"sum(x*z)", "sum((x-z)^2)", "sum(abs(x-z))", "max(abs(x-z))"};
constexpr const char* kValues[] = {"exp(-sum((x-z)^2)/K)", "1 - sum(x*z)/sqrt(sum(x*x)*sum(z*z))"};
constexpr Shape kPairs[] = {{1, 1, 8},      {20, 20, 4},    {4, 4, 100},     {100, 100, 100},
                            {200, 200, 16}, {600, 600, 8},  {300, 300, 300}, {700, 700, 64},
                            {1, 3000, 64},  {2000, 3, 200}, {1500, 900, 32}};
constexpr Shape kBytes[] = {{4, 4, 100}, {100, 100, 100}, {600, 600, 16}, {300, 300, 300}, {1, 3000, 64}};
constexpr Shape kSets[] = {{20, 20, 4}, {100, 100, 100}, {300, 300, 16}, {900, 900, 8}, {400, 400, 200}};
constexpr Shape kProducts[] = {{100, 100, 4, 1},   {100, 100, 4, 100},   {800, 800, 8, 1},   {800, 800, 8, 16},
                               {800, 800, 8, 128}, {1200, 300, 100, 40}, {1, 1400, 100, 50}, {2000, 20, 64, 2}};
constexpr Shape kNeighbours[] = {{1000, 1000, 2, 5}, {500, 500, 64, 5}, {500, 500, 64, 60},
                                 {3000, 30, 8, 10},  {30, 3000, 8, 10}, {100, 100, 20, 20}};

/// One call, made again and again, and the ways that serve it.
class Sample {
 public:
  Sample(Verb verb, const char* formula, Dtype type, bool is_one_set, Shape shape)
      : verb_(verb), formula_(formula), type_(type), is_one_set_(is_one_set), shape_(shape) {
    const std::int64_t of_x = shape.m * shape.k, of_z = shape.n * shape.k;
    const std::int64_t of_v = verb == Verb::product ? shape.n * shape.columns : 0;
    const std::int64_t most = std::max({shape.m * shape.n, shape.m * shape.columns});
    inputs_ = type == Dtype::uint8 ? bytes(of_x + of_z) : numbers(of_x + of_z + of_v);
    values_.resize(static_cast<std::size_t>(most));
    if (verb == Verb::nearest) indices_.resize(static_cast<std::size_t>(shape.m * shape.columns));
  }

  void add_ways(Target target, std::vector<TimedCall>& calls) const {
    TimedCall call;
    plan::PairProblem problem;
    problem.outputs = {formula_.expression()};
    problem.type = compute_type(type_);
    problem.target = target;
    problem.cpu = cpu_in_use().row;
    problem.rows_hint = std::min(shape_.m, plan::kManyRows);
    call.forms = plan::cpu::forms_of(*plan::plan_pairs(problem));
    plan::cpu::Request& request = call.request;
    request.verb = verb_;
    plan::cpu::set_sides(request, shape_.m, shape_.n);
    request.k = shape_.k;
    request.columns = shape_.columns;
    request.has_bytes = type_ == Dtype::uint8;
    request.symmetric = is_one_set_;
    request.has_blas = lapack() != nullptr;
    request.has_amx = shape_.k > plan::cpu::kOrderedFeatures && target == Target::x86_avx512 && has_amx();
    for (const Way* way : plan::cpu::ways_of(verb_)) {
      call.way = way;
      if (plan::cpu::predicted(call, {})) calls.push_back(call);
    }
  }

  void run(Context& context) {
    const auto element = static_cast<std::int64_t>(size_of(type_));
    const Tensor x(inputs_.data(), type_, {shape_.m, shape_.k});
    const Tensor z(inputs_.data() + shape_.m * shape_.k * element, type_, {shape_.n, shape_.k});
    const Tensor* const other = is_one_set_ ? nullptr : &z;
    const Arguments arguments{.verb = "tune"};
    if (verb_ == Verb::pairwise)
      return pairwise(formula_, x, other, {values_.data(), Dtype::float32, {shape_.m, shape_.n}}, arguments, context);
    const Tensor out(values_.data(), Dtype::float32, {shape_.m, shape_.columns});
    if (verb_ == Verb::nearest)
      return knn(formula_, x, other, shape_.columns, out, {indices_.data(), Dtype::int64, {shape_.m, shape_.columns}},
                 arguments, context);
    const Tensor v(inputs_.data() + (shape_.m + shape_.n) * shape_.k * element, type_, {shape_.n, shape_.columns});
    kernel_product(formula_, x, other, v, out, arguments, context);
  }

 private:
  static std::vector<char> bytes(std::int64_t count) {
    std::minstd_rand bits(1);
    std::vector<char> drawn(static_cast<std::size_t>(count));
    for (char& byte : drawn) byte = static_cast<char>(bits() >> 8);
    return drawn;
  }
  static std::vector<char> numbers(std::int64_t count) {
    std::minstd_rand bits(1);
    std::vector<char> drawn(static_cast<std::size_t>(count) * sizeof(float));
    for (std::size_t at = 0; at < drawn.size(); at += sizeof(float)) {
      const float number = 2 * static_cast<float>(bits()) / static_cast<float>(std::minstd_rand::max()) - 1;
      std::memcpy(drawn.data() + at, &number, sizeof number);
    }
    return drawn;
  }

  Verb verb_;
  Formula formula_;
  Dtype type_;
  bool is_one_set_;
  Shape shape_;
  std::vector<char> inputs_;
  std::vector<float> values_;
  std::vector<std::int64_t> indices_;
};

using Samples = std::vector<std::unique_ptr<Sample>>;

Samples samples_of_pairs() {
  Samples samples;
  const auto add = [&](const char* formula, Dtype type, bool is_one_set, std::span<const Shape> shapes) {
    for (const Shape& shape : shapes)
      samples.push_back(std::make_unique<Sample>(Verb::pairwise, formula, type, is_one_set, shape));
  };
  for (const char* formula : kSums) {
    add(formula, Dtype::float32, false, kPairs);
    add(formula, Dtype::uint8, false, kBytes);
    add(formula, Dtype::float32, true, kSets);
  }
  for (const char* formula : kValues) add(formula, Dtype::float32, false, kPairs);
  return samples;
}

Samples samples_of_folds() {
  Samples samples;
  for (const Shape& shape : kProducts)
    samples.push_back(std::make_unique<Sample>(Verb::product, kValues[0], Dtype::float32, false, shape));
  for (const Shape& shape : kNeighbours)
    samples.push_back(std::make_unique<Sample>(Verb::nearest, kSums[1], Dtype::float32, false, shape));
  return samples;
}

/// Microseconds of one call, of as many in a row as take a while.
double microseconds(Sample& sample, Context& context, double least) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  double passed = 0;
  int count = 0;
  do {
    sample.run(context);
    ++count;
    passed = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  } while (passed < least);
  return passed / count;
}

/// Adds the calls of samples by every way; the least time of several rounds counts, so that the work of others, which
/// comes and goes, meets none of the calls each time.
class Watch {
 public:
  Watch(Target target, const ProgressCallback& progress) : target_(target), progress_(progress) {
    context_.set_threads(1);
    context_.set_target(target);
  }

  void add(const Samples& samples, std::vector<TimedCall>& calls) {
    constexpr int kRounds = 7;
    constexpr double kLeast = 400;
    struct Timed {
      Sample* sample;
      std::size_t call;
    };
    std::vector<Timed> timed;
    for (const auto& sample : samples) {
      std::size_t call = calls.size();
      sample->add_ways(target_, calls);
      for (; call < calls.size(); ++call) timed.push_back({sample.get(), call});
    }
    for (int round = 0; round < kRounds; ++round)
      for (std::size_t at = 0; at < timed.size(); ++at) {
        TimedCall& call = calls[timed[at].call];
        context_.set_ways(std::string(plan::name_of(call.request.verb)) + ":" + call.way->name);
        if (round == 0) timed[at].sample->run(context_);  // compiles
        const double time = microseconds(*timed[at].sample, context_, kLeast);
        call.microseconds = round == 0 ? time : std::min(time, call.microseconds);
        const double done = static_cast<double>(round * timed.size() + at + 1);
        if (progress_ && !progress_(done, static_cast<double>(kRounds * timed.size()))) throw Cancelled();
      }
  }

  void choose_by(const plan::cpu::Costs& costs) { context_.state().own_way_costs = costs; }

 private:
  Target target_;
  const ProgressCallback& progress_;
  Context context_;
};

}  // namespace

MeasuredWays measure_ways(Target target, const ProgressCallback& progress) {
  MeasuredWays measured;
  Watch watch(target, progress);
  watch.add(samples_of_pairs(), measured.calls);
  watch.choose_by(plan::cpu::fit_costs({}, measured.calls));
  watch.add(samples_of_folds(), measured.calls);
  measured.costs = plan::cpu::fit_costs({}, measured.calls);
  return measured;
}

}  // namespace mercer::ops
