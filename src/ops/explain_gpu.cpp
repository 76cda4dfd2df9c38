// explain and floors for GPUs: the plan that a call would run, and the least time of its programs.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "codegen/cuda_source.h"
#include "core/cuda_driver.h"
#include "core/error.h"
#include "ops/explain_parts.h"
#include "ops/prepared.h"
#include "ops/tuned_plan.h"
#include "plan/gpu/pair_ways.h"
#include "plan/gpu/times.h"
#include "plan/rank_field.h"

namespace mercer {
namespace {

struct NamedGpu {
  plan::GpuInfo info;
  std::string name;  // of the device
  ops::DeviceName tiles = {};
};

int number_after(const std::string& name, std::size_t prefix, int otherwise) {
  int value = otherwise;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + std::min(prefix, name.size()), end, value);
  return error == std::errc() && (stop == end || *stop == 'a' || *stop == 'f') ? value : otherwise;
}

NamedGpu gpu_of_machine(int index) {
  // Of the bandwidth by clock and width, what copies reach on an H200.
  constexpr double kReached = 0.861;
  const CudaDevice& device = cuda_device(index);
  NamedGpu gpu{plan::gpu_info(device.capability()), device.name, ops::DeviceName::of(device)};
  gpu.info.multiprocessors = device.multiprocessors;
  gpu.info.shared_per_block = device.shared_per_block;
  const CudaRates rates = cuda_rates(device);
  if (rates.clock > 0) gpu.info.gigahertz = rates.clock * 1e-9;
  if (rates.memory > 0) gpu.info.bytes_per_second = kReached * rates.memory;
  return gpu;
}

NamedGpu gpu_named(const std::string& target) {
  if (target == "cuda") return gpu_of_machine(0);
  if (target.starts_with("cuda:")) return gpu_of_machine(number_after(target, 5, -1));
  const int capability = target.starts_with("sm_") ? number_after(target, 3, 0) : 0;
  std::string known;
  for (const plan::GpuInfo& info : plan::gpu_infos())
    known += fmt::format("{}{}", known.empty() ? "" : ", ", info.name);
  require(capability >= 80, "explain: a GPU must be \"cuda:0\" or an architecture: {}. Received \"{}\".", known,
          target);
  const plan::GpuInfo& info = plan::gpu_info(capability);
  return {info, info.device};
}

Precision precision_of(const GpuCall& call) { return call.products > 0 ? Precision::fp32 : Precision::direct; }

double pairs_of(ExplainShape shape) { return static_cast<double>(shape.m) * static_cast<double>(shape.n); }
double bytes_of(Dtype dtype) { return static_cast<double>(size_of(dtype)); }

double points_bytes(ExplainShape shape, Dtype dtype) {
  return static_cast<double>(shape.m + shape.n) * static_cast<double>(shape.k) * bytes_of(dtype);
}

/// Plans of a formula as it is explained; nobody keeps them.
class ExplainedPlans : public plan::Planner {
 public:
  explicit ExplainedPlans(Expr formula) : formula_(std::move(formula)), forms_(plan::forms_of(formula_)) {}
  const plan::Forms& forms() override { return forms_; }
  std::shared_ptr<const plan::GpuPairPlan> plan(const plan::GpuPairProblem& problem) override {
    plan::GpuPairProblem own = problem;
    own.outputs = {formula_};
    return plan::plan_gpu_pairs(own);
  }

 private:
  Expr formula_;
  plan::Forms forms_;
};

constexpr std::string_view kExplain = "explain", kFloor = "gpu_floor";  // calls, as errors name them

plan::Verb verb_of(const std::string& name, std::string_view op) {
  std::string known;
  for (plan::Verb verb : plan::kVerbs) {
    if (name == plan::name_of(verb)) return verb;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", plan::name_of(verb));
  }
  if (op == kFloor) known += ", kernel_gradient";
  fail(ErrorKind::invalid_argument, "{}: the verb must be one of {}. Received \"{}\".", op, known, name);
}

plan::Request request_of(const GpuCall& call, ExplainShape shape, Dtype dtype, const plan::GpuInfo& gpu,
                         Precision precision, std::string_view op) {
  plan::Request request;
  request.verb = verb_of(call.verb, op);
  request.m = shape.m;
  request.n = shape.n;
  request.k = shape.k;
  request.columns = call.columns;
  request.type = request.out = compute_type(dtype);
  request.points = dtype;
  request.symmetric = call.symmetric;
  request.by_value = true;  // one set of parameters
  request.precision = precision;
  request.device = {gpu.capability, gpu.multiprocessors, gpu.shared_per_block};
  return request;
}

plan::FloorOf floor_of(const GpuCall& call) {
  return {static_cast<double>(call.items), call.mixed_pipes, call.products};
}

plan::GpuTimes pairs_times(const Formula& f, ExplainShape shape, Dtype dtype, const plan::GpuInfo& gpu,
                           const GpuCall& call) {
  const plan::Request request = request_of(call, shape, dtype, gpu, precision_of(call), kFloor);
  ExplainedPlans plans(ops::explained(f));
  const plan::Choice way = plan::choose(request, plan::costs_of(gpu.capability), {}, plans);
  return plan::way_times(request, way.offer, floor_of(call), gpu, plans);
}

/// What each way said, the one that is taken marked.
std::string ways_text(const plan::WayRecord& record, const plan::Request& request, const GpuCall& call,
                      const plan::GpuInfo& gpu, plan::Planner& plans) {
  constexpr double kMib = 1 << 20;
  std::string text = fmt::format("{}, the first of these that serves:\n", plan::name_of(request.verb));
  for (const auto& [way, said, is_forced] : record.rows) {
    text += fmt::format("{} {}: ", way == record.taken ? '*' : ' ', way->name);
    if (const auto* refusal = std::get_if<plan::Refusal>(&said)) {
      text += fmt::format("refused, {}\n", refusal->to_text());
      continue;
    }
    const plan::Offer& offer = std::get<plan::Offer>(said);
    text += fmt::format("at least {:.4g} ms; {}; {}", plan::way_times(request, offer, floor_of(call), gpu, plans).ms(),
                        way->does, offer.error_bound);
    if (offer.bytes > 0) text += fmt::format("; {:.4g} MiB of values at once", static_cast<double>(offer.bytes) / kMib);
    if (*offer.needs != '\0') text += fmt::format("; needs {}", offer.needs);
    text += '\n';
  }
  return text;
}

/// The field of a gradient; its pair values are planned apart.
std::shared_ptr<const plan::GpuFieldPlan> field_plan(const Formula& f, ExplainShape shape, Dtype dtype,
                                                     const plan::GpuInfo& gpu, const GpuCall& call) {
  const Formula bound(ops::explained(f));
  plan::GpuFieldProblem problem;
  problem.field = ir::split_field(bound.prepared().field());
  problem.type = compute_type(dtype);
  problem.outputs = static_cast<int>(std::min(call.columns, plan::kFieldOutputs));
  problem.planes = static_cast<int>(problem.field.pair_outputs.size());
  const bool pays = gpu.capability == 90 && call.products > 0 && problem.type == Dtype::float32 &&
                    plan::pays_field_products(shape.m, shape.n, shape.k, plan::kTensorCoresFrom);
  if (pays) problem.product_outputs = plan::most_product_outputs(call.columns);
  problem.thread_features = plan::thread_features(shape.k);
  problem.capability = gpu.capability;
  problem.shared_per_block = gpu.shared_per_block;
  if (call.products > 0 && problem.type == Dtype::float32)
    problem.linear = plan::linear_tile(
        shape.m, shape.n, shape.k, plan::linear_sizes(shape.m, shape.n, shape.k, call.columns, cuda::kPartBytes),
        Precision::fp32, gpu.multiprocessors, plan::kTensorCoresFrom);
  return plan::plan_gpu_field(problem);
}

/// Of a gradient whose amplitudes are contracted as tensor cores make them; null where they are stored, or others'.
std::shared_ptr<const plan::GpuPairPlan> rank_plan(const Formula& f, ExplainShape shape, Dtype dtype,
                                                   const plan::GpuInfo& gpu, const GpuCall& call) {
  const bool serves = gpu.capability == plan::kOfWarpgroups && call.products > 0;
  if (!serves || compute_type(dtype) != Dtype::float32) return nullptr;
  const Formula bound(ops::explained(f));
  auto field = std::make_shared<plan::RankField>(plan::rank_field_of(ir::split_field(bound.prepared().field())));
  const std::int64_t columns = field->columns(shape.k);
  if (!*field || !plan::pays_rank_outputs(call.columns, columns)) return nullptr;
  plan::GpuPairProblem problem =
      plan::problem_of(request_of({}, shape, dtype, gpu, Precision::fp32, kExplain), plan::Consumer::product);
  problem.outputs = {field->amplitude};
  problem.product = plan::rank_field_tile(shape.m, shape.n, shape.k,
                                          plan::rank_outputs(call.columns, columns) * columns, {}, Precision::fp32);
  if (!problem.product) return nullptr;
  problem.columns = problem.product.wide;
  problem.rank_field = std::move(field);
  auto plan = plan::plan_gpu_pairs(problem);
  return plan->bilinear ? plan : nullptr;
}

/// Values of the pairs first, where the field reads them; then φ and its contraction for every (m, n, k).
plan::GpuTimes gradient_times(const Formula& f, ExplainShape shape, Dtype dtype, const plan::GpuInfo& gpu,
                              const GpuCall& call) {
  const auto field = field_plan(f, shape, dtype, gpu, call);
  const auto rank = rank_plan(f, shape, dtype, gpu, call);
  const plan::Request request = request_of({}, shape, dtype, gpu, precision_of(call), kFloor);
  const plan::GpuFieldProblem& problem = field->problem;
  const double elements = pairs_of(shape) * static_cast<double>(shape.k), columns = static_cast<double>(call.columns);
  plan::GpuTimes times;
  if (rank) {
    const double all = columns * static_cast<double>(rank->problem.rank_field->columns(shape.k));
    times = plan::values_times(*rank, request, floor_of(call), gpu);
    times += plan::gpu_tensor_times(pairs_of(shape) * all * 6, gpu);
  } else if (field->linear) {
    times = plan::gpu_tensor_times(pairs_of(shape) * columns * static_cast<double>(shape.k + 1) * 3, gpu);
  } else if (field->products) {
    // Signs: four elements in four instructions, three products of bytes, at twice the rate of 16 bits. Others: three
    // of 16 bits or of tf32, at half of it.
    plan::GpuCost cost{.issue = 1, .fma = 0.5, .alu = 0.5, .unit = 0};
    if (!field->of_signs()) cost = plan::count_gpu(field->factor);
    if (!field->of_signs() && field->has_units() && field->table_eighths() > 0)
      cost = plan::blend(cost, plan::count_gpu(field->factor_by_table), field->table_eighths() / 8.0);
    times = plan::gpu_times(cost, problem.type, elements, gpu);
    times += plan::gpu_tensor_times(elements * columns * (field->of_signs() ? 1.5 : field->has_units() ? 3 : 6), gpu);
  } else {
    times = plan::gpu_times(plan::count_gpu(field->program), problem.type, elements, gpu);
    times += plan::gpu_times({.issue = columns, .fma = columns, .alu = 0, .unit = 0}, problem.type, elements, gpu);
  }
  if (!rank && !problem.field.pair_outputs.empty()) {
    const plan::Costs& costs = plan::costs_of(gpu.capability);
    plan::GpuPairProblem values = plan::problem_of(request, plan::Consumer::store);
    values.outputs = problem.field.pair_outputs;
    values.product = plan::values_tile(request, costs);
    values.plane_product = plan::plane_tile(request, costs);
    times += plan::values_times(*plan::plan_gpu_pairs(values), request, floor_of(call), gpu);
  }
  const double out = columns * static_cast<double>(shape.m) * static_cast<double>(shape.k) * bytes_of(problem.type);
  return times += plan::gpu_memory_times(points_bytes(shape, dtype) + out, gpu);
}

std::string with_slots(const ir::Program& program) {
  const plan::GpuCost cost = plan::count_gpu(program);
  return fmt::format("{}issue {:.0f}, multiply-add {:.0f}, integer {:.0f}, special {:.0f}: {:.1f} slots\n",
                     program.to_text(), cost.issue, cost.fma, cost.alu, cost.unit, cost.slots());
}

std::string source_text(const plan::GpuPairPlan& plan, Dtype dtype) {
  return fmt::format("tile {} bytes, packing of x {} bytes, of z {} bytes; NVRTC compiles them for {}\n",
                     codegen::cuda_pair_source(plan).size(), codegen::cuda_pack_source(plan, true, dtype).size(),
                     codegen::cuda_pack_source(plan, false, dtype).size(),
                     fmt::format("sm_{}{}", plan.problem.capability, plan.problem.capability >= 90 ? "a" : ""));
}

std::string gradient_text(const Formula& f, ExplainShape shape, Dtype dtype, const plan::GpuInfo& gpu) {
  constexpr std::int64_t kOutputs = 16;
  try {
    const GpuCall call{.verb = "kernel_gradient", .columns = kOutputs};
    const auto field = field_plan(f, shape, dtype, gpu, call);
    if (shape.k > 0 && shape.k <= plan::kFewFeatures)
      return "phi by multiply-adds, in one pass over the pairs: few features\n";
    if (const auto rank = rank_plan(f, shape, dtype, gpu, call))
      return fmt::format(
          "tensor cores: amplitudes are contracted as they come, {} outputs a pass; rows whose sums cancel by "
          "differences\n{}\n",
          plan::rank_outputs(kOutputs, rank->problem.rank_field->columns(shape.k)), rank->problem.product.to_text());
    if (!field->on_tensor_cores()) return "phi by multiply-adds\n";
    if (field->linear)
      return fmt::format(
          "phi = {}\ntensor cores: amplitudes times coefficients and features, three products of 16 bits; rows whose "
          "sums cancel by differences\n{}\n",
          field->factors.to_text(), field->linear->problem.product.to_text());
    const char* const way =
        field->of_signs() ? "signs by ranks, exact; three products of bytes with exact sums, of bfloat16 in rows whose "
                            "largest value is over 64 times the mean"
        : field->has_units() ? "three products of 16 bits, to float32 every 256 n; of tf32, every 64 n, in rows whose "
                               "largest value is over 64 times the mean and where many differences are too small"
                             : "three products of tf32, to float32 every 64 n";
    return fmt::format("phi = {}\ntensor cores: {}\n", field->factors.to_text(), way);
  } catch (const Error& error) {
    return fmt::format("{}\n", error.what());  // a reduction of the user's own
  }
}

/// The products of 16-bit pieces that a precision takes.
int products_of(Precision precision) {
  return precision == Precision::fp32 ? 3 : precision == Precision::direct ? 0 : 1;
}

std::string floor_text(const plan::GpuTimes& times, ExplainShape shape, const NamedGpu& gpu) {
  return fmt::format(
      "{} x {} x {} on an {} ({} multiprocessors, {:.2f} GHz): {:.4g} ms\n"
      "issue {:.4g} ms, multiply-add {:.4g} ms, integer {:.4g} ms, special-function unit {:.4g} ms, tensor cores "
      "{:.4g} ms, memory {:.4g} ms\n",
      shape.m, shape.n, shape.k, gpu.name, gpu.info.multiprocessors, gpu.info.gigahertz, times.ms(), times.issue,
      times.fma, times.alu, times.unit, times.tensor, times.memory);
}

}  // namespace

namespace ops {

bool is_gpu_target(const std::string& target) {
  return target.starts_with("sm_") || target == "cuda" || target.starts_with("cuda:");
}

std::string explain_gpu(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target, GpuCall call) {
  require(shape.m >= 0 && shape.n >= 0 && shape.k >= 0, "explain: sizes must not be negative. Received {}x{}x{}.",
          shape.m, shape.n, shape.k);
  require(call.columns >= 1, "explain: columns must be at least 1. Received {}.", call.columns);
  const NamedGpu gpu = gpu_named(target);
  Context& context = Context::shared();
  call.products = products_of(context.precision());
  const plan::Request request = request_of(call, shape, dtype, gpu.info, context.precision(), kExplain);
  ExplainedPlans plans(explained(f));
  const plan::ForcedWays* forced = context.state().forced_ways.load();
  const plan::Costs& costs = plan::costs_of(gpu.info.capability);
  const plan::Choice way = plan::choose(request, costs, *forced, plans);
  const auto plan = tuned_plan(plans.plan(way.offer.pairs()), gpu.tiles);
  std::string text = formula_section(f);
  text += section("forms", plans.forms().to_text());
  const plan::WayRecord record = plan::consider_all(request, costs, *forced, plans);
  text += section("ways", ways_text(record, request, call, gpu.info, plans));
  text += section("split", plan->split.to_text());
  text += section("plan", plan->to_text() +
                              fmt::format("the tile {}\n", plan->tuned() ? "was measured (tune)" : "is the model's") +
                              fmt::format("features in chunks of {}, {} bytes of shared memory a block\n",
                                          plan->chunk(shape.k), plan->shared_bytes(shape.k)));
  const std::string mean = fmt::format("on average {:.4g} slots\n", plan::mean_update_cost(*plan).slots());
  if (plan->split.states > 0)
    text += section("update, per (m, n, k)",
                    with_slots(plan->update) + (plan->bytes || plan->mixed_sixteenths > 0 ? mean : ""));
  if (plan->powers)
    text += section("update where the exponent is above 0 and at most 3", with_slots(plan->powers.moderate)) +
            section("update where it is 1", with_slots(plan->powers.one)) +
            section("update where it is 2", with_slots(plan->powers.two));
  if (plan->alternative_eighths > 0)
    text += section(fmt::format("update of {} pairs in 8, per (m, n, k)", plan->alternative_eighths),
                    with_slots(plan->alternative) + mean);
  text += section("epilogue, per (m, n)", with_slots(plan->epilogue));
  text += section("gradient of 16 outputs", gradient_text(f, shape, dtype, gpu.info));
  text += section("source", source_text(*plan, dtype));
  const plan::GpuTimes times = plan::way_times(request, way.offer, floor_of(call), gpu.info, plans);
  return text + section("floor", floor_text(times, shape, gpu));
}

}  // namespace ops

GpuFloor gpu_floor(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target, const GpuCall& call) {
  require(shape.m >= 0 && shape.n >= 0 && shape.k >= 0, "gpu_floor: sizes must not be negative. Received {}x{}x{}.",
          shape.m, shape.n, shape.k);
  const plan::GpuInfo gpu = gpu_named(target).info;
  const bool is_gradient = call.verb == "kernel_gradient";
  const plan::GpuTimes times =
      is_gradient ? gradient_times(f, shape, dtype, gpu, call) : pairs_times(f, shape, dtype, gpu, call);
  return {times.issue, times.fma, times.alu, times.unit, times.tensor, times.memory, times.ms()};
}

}  // namespace mercer
