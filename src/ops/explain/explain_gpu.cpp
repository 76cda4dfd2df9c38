// explain and floors for GPUs: the plan that a call would run, and the least time of its programs.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "codegen/cuda/cuda_source.h"
#include "core/devices/cuda_driver.h"
#include "core/error.h"
#include "ops/call/formula_plans.h"
#include "ops/costs/device_costs.h"
#include "ops/explain/explain_parts.h"
#include "ops/pairs/agop_parts.h"
#include "ops/tune/tuned_plan.h"
#include "plan/gpu/costs/times.h"

namespace mercer {
namespace {

struct NamedGpu {
  plan::GpuInfo info;
  std::string name;  // of the device
  const plan::Costs* costs;
  std::string costs_of;  // whose they are
  ops::DeviceName tiles = {};
};

int number_after(const std::string& name, std::size_t prefix, int otherwise) {
  int value = otherwise;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + std::min(prefix, name.size()), end, value);
  return error == std::errc() && (stop == end || *stop == 'a' || *stop == 'f') ? value : otherwise;
}

NamedGpu gpu_of_machine(int index) {
  // The part of the bandwidth by clock and width that copies reach on an H200.
  constexpr double kReached = 0.861;
  const CudaDevice& device = cuda_device(index);
  NamedGpu gpu{plan::gpu_info(device.capability()), device.name, &ops::device_costs(device),
               ops::source_of_costs(device), ops::DeviceName::of(device)};
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
  return {info, info.device, &plan::costs_of(capability), ops::source_of_costs(info.capability)};
}

Precision precision_of(const GpuCall& call) { return call.products > 0 ? Precision::fp32 : Precision::direct; }

constexpr std::string_view kExplain = "explain", kFloor = "gpu_floor";  // calls, as errors name them
constexpr std::string_view kAgop = "kernel_agop";  // which calls other verbs

plan::Verb verb_of(const std::string& name, std::string_view op) {
  std::string known;
  for (plan::Verb verb : plan::kVerbs) {
    if (name == plan::name_of(verb)) return verb;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", plan::name_of(verb));
  }
  if (op == kExplain) known += fmt::format(", {}", kAgop);
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

/// What each way said, the one that is taken marked.
std::string ways_text(const plan::WayRecord& record, const plan::Request& request, const GpuCall& call,
                      const plan::GpuInfo& gpu, plan::Planner& plans) {
  constexpr double kMib = 1 << 20;
  std::string text = fmt::format("{}{}, the first of these that serves:\n", plan::name_of(request.verb),
                                 record.without_product ? " without the product with v" : "");
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

std::string with_slots(const ir::Program& program) {
  const plan::GpuCost cost = plan::count_gpu(program);
  return fmt::format("{}issue {:.0f}, multiply-add {:.0f}, integer {:.0f}, special {:.0f}: {:.1f} slots\n",
                     program.to_text(), cost.issue, cost.fma, cost.alu, cost.unit, cost.slots());
}

std::string source_text(const plan::GpuPairPlan& plan, Dtype dtype) {
  return fmt::format(
      "tile {} bytes, packing of x {} bytes, of z {} bytes; NVRTC compiles them for {}\n",
      codegen::cuda_pair_source(plan).size(), codegen::cuda_pack_source(plan, true, dtype).size(),
      codegen::cuda_pack_source(plan, false, dtype).size(),
      fmt::format("sm_{}{}", plan.problem.device.capability, plan.problem.device.capability >= 90 ? "a" : ""));
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

std::shared_ptr<const plan::GpuPairPlan> pairs_of(const plan::Offer& offer, plan::Planner& plans) {
  const auto* gradient = std::get_if<plan::GradientPlan>(&offer.plan);
  return gradient != nullptr ? gradient->pairs.plan : plans.plan(offer.pairs());
}

/// Null where there is none, or it is the product of values and points.
const plan::GpuFieldPlan* field_of(const plan::Offer& offer) {
  const auto* gradient = std::get_if<plan::GradientPlan>(&offer.plan);
  if (gradient == nullptr || gradient->by_points()) return nullptr;
  return gradient->field ? gradient->field.plan.get() : gradient->pairs->problem.gradient.field.get();
}

std::string field_text(const plan::GpuFieldPlan& field) {
  if (field.factors) return fmt::format("phi = {}\n", field.factors.to_text());
  return field.folds() ? field.programs.phi.to_text() : with_slots(field.programs.phi);
}

/// The sections of the kernels that make values of the pairs.
std::string pairs_text(const plan::GpuPairPlan& plan, ExplainShape shape, Dtype dtype) {
  const bool is_tile = !plan.problem.gradient.field && !plan.problem.gradient.rank_field;
  std::string text = ops::section("split", plan.split.to_text());
  std::string about = plan.to_text();
  if (is_tile)
    about += fmt::format("the tile {}\n", plan.tuned() ? "was measured (tune)" : "is the model's") +
             fmt::format("features in chunks of {}, {} bytes of shared memory a block\n", plan.chunk(shape.k),
                         plan.shared_bytes(shape.k));
  text += ops::section("plan", about);
  const std::string mean = fmt::format("on average {:.4g} slots\n", plan::mean_update_cost(plan).slots());
  if (plan.split.states > 0)
    text +=
        ops::section("update, per (m, n, k)", with_slots(plan.programs.update) +
                                                  (plan.input.bytes || plan.pipes.mixed_sixteenths > 0 ? mean : ""));
  if (plan.pipes.powers)
    text += ops::section("update where the exponent is above 0 and at most 3", with_slots(plan.pipes.powers.moderate)) +
            ops::section("update where it is 1", with_slots(plan.pipes.powers.one)) +
            ops::section("update where it is 2", with_slots(plan.pipes.powers.two));
  if (plan.pipes.alternative_eighths > 0)
    text += ops::section(fmt::format("update of {} pairs in 8, per (m, n, k)", plan.pipes.alternative_eighths),
                         with_slots(plan.pipes.alternative) + mean);
  text += ops::section("epilogue, per (m, n)", with_slots(plan.programs.epilogue));
  return is_tile ? text + ops::section("source", source_text(plan, dtype)) : text;
}

/// The calls that kernel_agop makes for each part of its rows.
std::string agop_text(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target,
                      const GpuCall& call, std::int64_t part_bytes) {
  const Dtype type = compute_type(dtype);
  const std::int64_t row = call.columns * shape.k * static_cast<std::int64_t>(size_of(type));
  const ops::AgopParts parts = ops::agop_parts(shape.m, call.columns, row, part_bytes);
  plan::Request gradient, product;
  gradient.verb = plan::Verb::gradient;
  gradient.m = std::min(parts.rows, shape.m);
  gradient.n = shape.n;
  gradient.columns = call.columns;
  gradient.k = product.m = product.n = shape.k;
  gradient.type = gradient.out = product.type = product.out = product.points = type;
  gradient.points = dtype;
  product.k = call.columns * gradient.m;
  product.symmetric = product.by_value = true;
  return ops::formula_section(f) +
         ops::section("parts", fmt::format("{} of {} rows\n", parts.count, parts.rows) + ops::costs_on_gpu(target)) +
         ops::section("ways of the gradients of a part", ops::ways_on_gpu(f, gradient, target)) +
         ops::section("ways of their inner products", ops::ways_on_gpu(Formula("sum(x*z)"), product, target));
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
  if (call.verb == kAgop) return agop_text(f, shape, dtype, target, call, gpu.costs->part_bytes);
  const plan::Request request = request_of(call, shape, dtype, gpu.info, context.precision(), kExplain);
  const Formula bound(explained(f));
  const plan::Costs& costs = *gpu.costs;
  FormulaPlans plans(bound.prepared(), costs, context);
  const plan::ForcedWays* forced = context.state().forced_ways.load();
  const plan::Choice way = plan::choose(request, costs, *forced, plans);
  std::string text = formula_section(f);
  text += section("forms", plans.forms().to_text());
  const plan::WayRecord record = plan::consider_all(request, costs, *forced, plans);
  text += section("ways", ways_text(record, request, call, gpu.info, plans) + costs_on_gpu(target));
  if (const auto pairs = pairs_of(way.offer, plans)) text += pairs_text(*tuned_plan(pairs, gpu.tiles), shape, dtype);
  const plan::GpuFieldPlan* field = field_of(way.offer);
  if (field != nullptr) text += section("field, per (m, n, k)", field_text(*field));
  const plan::GpuTimes times = plan::way_times(request, way.offer, floor_of(call), gpu.info, plans);
  return text + section("floor", floor_text(times, shape, gpu));
}

std::string costs_on_gpu(const std::string& target) { return fmt::format("costs: {}\n", gpu_named(target).costs_of); }

std::string ways_on_gpu(const Formula& f, plan::Request request, const std::string& target) {
  const NamedGpu named = gpu_named(target);
  const plan::GpuInfo& gpu = named.info;
  Context& context = Context::shared();
  request.precision = context.precision();
  request.device = {gpu.capability, gpu.multiprocessors, gpu.shared_per_block};
  const Formula bound(explained(f));
  FormulaPlans plans(bound.prepared(), *named.costs, context);
  const plan::WayRecord record =
      plan::consider_all(request, *named.costs, *context.state().forced_ways.load(), plans);
  return ways_text(record, request, {.products = products_of(request.precision)}, gpu, plans);
}

}  // namespace ops

GpuFloor gpu_floor(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target, const GpuCall& call) {
  require(shape.m >= 0 && shape.n >= 0 && shape.k >= 0, "gpu_floor: sizes must not be negative. Received {}x{}x{}.",
          shape.m, shape.n, shape.k);
  const NamedGpu named = gpu_named(target);
  const plan::GpuInfo& gpu = named.info;
  const plan::Request request = request_of(call, shape, dtype, gpu, precision_of(call), kFloor);
  const Formula bound(ops::explained(f));
  ops::FormulaPlans plans(bound.prepared(), *named.costs, Context::shared());
  const plan::Choice way = plan::choose(request, *named.costs, {}, plans);
  const plan::GpuTimes times = plan::way_times(request, way.offer, floor_of(call), gpu, plans);
  return {times.issue, times.fma, times.alu, times.unit, times.tensor, times.memory, times.ms()};
}

}  // namespace mercer
