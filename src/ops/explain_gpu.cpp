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
#include "plan/differences.h"
#include "plan/expanded.h"
#include "plan/gpu_floor.h"
#include "plan/rank_field.h"
#include "plan/sum_planes.h"
#include "plan/value_products.h"

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

/// With tiles for sums of several.
plan::GpuPairProblem problem_of(const std::vector<Expr>& outputs, ExplainShape shape, Dtype dtype,
                                const plan::GpuInfo& gpu, Precision precision) {
  plan::GpuPairProblem problem;
  problem.outputs = outputs;
  problem.type = problem.out = compute_type(dtype);
  problem.points = dtype;
  problem.bytes = dtype == Dtype::uint8 && shape.k < plan::kMostByteFeatures;
  problem.normal_reciprocals = true;
  problem.sizes = plan::sizes_of(shape.m, shape.n, shape.k, gpu.multiprocessors);
  problem.capability = gpu.capability;
  problem.shared_per_block = gpu.shared_per_block;
  const std::int64_t row_bytes = std::max<std::int64_t>(1, shape.n) * static_cast<std::int64_t>(size_of(problem.type));
  problem.plane_product =
      plan::plane_tile(shape.m, shape.n, shape.k, precision, gpu.multiprocessors, plan::kTensorCoresFrom,
                       std::max<std::int64_t>(1, cuda::kPartBytes / row_bytes));
  problem.by_value = true;  // parameters are numbers, one set of them
  return problem;
}

double pairs_of(ExplainShape shape) { return static_cast<double>(shape.m) * static_cast<double>(shape.n); }
double bytes_of(Dtype dtype) { return static_cast<double>(size_of(dtype)); }

double points_bytes(ExplainShape shape, Dtype dtype) {
  return static_cast<double>(shape.m + shape.n) * static_cast<double>(shape.k) * bytes_of(dtype);
}

/// Values of all pairs, the epilogue `items` times. Planes are written and read by choice: no part of a floor.
plan::GpuTimes pair_times(const plan::GpuPairPlan& plan, ExplainShape shape, double items, const plan::GpuInfo& gpu,
                          bool quantised = true) {
  constexpr double kPieces = 3;
  const double pairs = pairs_of(shape);
  const bool differs = !plan.first_update.code.empty();  // one feature takes the shorter program
  const double features = static_cast<double>(shape.k - (differs ? 1 : 0));
  const plan::GpuCost cost = plan::mean_update_cost(plan, quantised);
  plan::GpuTimes times = plan::gpu_times(cost, plan.problem.type, pairs * features, gpu);
  if (differs) times += plan::gpu_times(plan::count_gpu(plan.first_update), plan.problem.type, pairs, gpu);
  const double elements = pairs * static_cast<double>(shape.k);
  constexpr double kNumbers = 16;  // of a difference by tensor cores
  if (plan.differs && !(quantised && plan.mixed_sixteenths > 0))
    times += plan::gpu_tensor_times(elements * kNumbers, gpu);
  for (const auto& plane : plan.planes)
    times += plane->has_double_products() ? plan::gpu_double_tensor_times(elements, gpu)
                                          : plan::gpu_tensor_times(elements * kPieces, gpu);
  return times += plan::gpu_times(plan::count_gpu(plan.epilogue), plan.problem.type, pairs * items, gpu);
}

/// The same on tensor cores.
plan::GpuTimes products_times(const plan::GpuPairPlan& plan, ExplainShape shape, double items, int products,
                              const plan::GpuInfo& gpu) {
  const double elements = pairs_of(shape) * static_cast<double>(shape.k);
  plan::GpuTimes times = plan.has_double_products() ? plan::gpu_double_tensor_times(elements, gpu)
                                                    : plan::gpu_tensor_times(elements * products, gpu);
  return times += plan::gpu_times(plan::count_gpu(plan.epilogue), plan.problem.type, pairs_of(shape) * items, gpu);
}

plan::GpuTimes matrix_times(const Formula& f, ExplainShape shape, Dtype dtype, const plan::GpuInfo& gpu,
                            const GpuCall& call) {
  plan::GpuPairProblem problem = problem_of({ops::explained(f)}, shape, dtype, gpu, precision_of(call));
  problem.mixed_work = plan::mixed_work(shape.m, shape.n, shape.k);
  problem.differs = plan::fills_waves(shape.m, shape.n, shape.k, gpu.multiprocessors, call.symmetric);
  if (call.products > 0)
    problem.product = plan::bilinear_tile(shape.m, shape.n, shape.k, Precision::fp32, gpu.multiprocessors);
  const auto plan = plan::plan_gpu_pairs(problem);
  const double items = static_cast<double>(call.items);
  plan::GpuTimes times = plan->bilinear ? products_times(*plan, shape, items, call.products, gpu)
                                        : pair_times(*plan, shape, items, gpu, call.mixed_pipes);
  const double half = call.symmetric ? 0.5 : 1;
  for (double* time : {&times.issue, &times.fma, &times.alu, &times.unit, &times.tensor}) *time *= half;
  const double bytes = pairs_of(shape) * items * bytes_of(plan->problem.out) + points_bytes(shape, dtype) * half;
  return times += plan::gpu_memory_times(bytes, gpu);
}

/// A multiply-add for every column of v or of the coefficients.
plan::GpuCost contraction(double columns) { return {.issue = columns, .fma = columns, .alu = 0, .unit = 0}; }

plan::GpuTimes product_times(const Formula& f, ExplainShape shape, Dtype dtype, const plan::GpuInfo& gpu,
                             const GpuCall& call) {
  plan::GpuPairProblem problem = problem_of({ops::explained(f)}, shape, dtype, gpu, precision_of(call));
  problem.consumer = plan::Consumer::product;
  problem.columns = static_cast<int>(std::min<std::int64_t>(call.columns, plan::kFewColumns));
  if (call.mixed_pipes) problem.mixed_work = plan::mixed_work(shape.m, shape.n, shape.k);
  problem.expands = call.mixed_pipes && plan::pays_expanded(shape.m, shape.n, shape.k);
  if (call.products > 0)
    problem.product = shape.k <= plan::kFewFeatures
                          ? plan::wide_tile(shape.m, shape.n, shape.k, call.columns, Precision::fp32)
                          : plan::bilinear_fold_tile(shape.m, shape.n, shape.k, call.columns, Precision::fp32);
  const auto plan = plan::plan_gpu_pairs(problem);
  const double columns = static_cast<double>(call.columns), m = static_cast<double>(shape.m),
               n = static_cast<double>(shape.n);
  plan::GpuTimes times = plan->bilinear ? products_times(*plan, shape, 1, call.products, gpu)
                                        : pair_times(plan->expanded ? *plan->expanded : *plan, shape, 1, gpu);
  const bool of_floats = problem.type == Dtype::float32;
  const bool may_store = !of_floats || (call.products > 0 && problem.product && !problem.product.of_values &&
                                        !plan->bilinear);
  const bool stores = may_store && plan::pays_value_products(problem.type, shape.m, shape.n, shape.k, call.columns,
                                                             !plan->planes.empty(), plan::kTensorCoresFrom);
  // Three products of 16 bits, or of tf32 at half their rate.
  const bool halves = stores ? gpu.capability != plan::kOfWarpgroups || !plan::stored_tile(call.columns)
                             : plan->takes_halves();
  if (stores && !of_floats)
    times += plan::gpu_double_tensor_times(pairs_of(shape) * columns, gpu);
  else if (plan->problem.product.wide > 0 || stores)
    times += plan::gpu_tensor_times(pairs_of(shape) * columns * (halves ? 3 : 6), gpu);
  else
    times += plan::gpu_times(contraction(columns), problem.type, pairs_of(shape), gpu);
  return times +=
         plan::gpu_memory_times(points_bytes(shape, dtype) + (m + n) * columns * bytes_of(problem.type), gpu);
}

/// Values of the pairs; the few that are kept cost nothing.
plan::GpuTimes nearest_times(const Formula& f, ExplainShape shape, Dtype dtype, const plan::GpuInfo& gpu,
                             const GpuCall& call) {
  plan::GpuPairProblem problem = problem_of({ops::explained(f)}, shape, dtype, gpu, precision_of(call));
  problem.consumer = plan::Consumer::nearest;
  if (call.products > 0) problem.product = plan::bilinear_nearest_tile(shape.m, shape.n, shape.k, Precision::fp32);
  const auto plan = plan::plan_gpu_pairs(problem);
  const double items = plan->sums_decide ? 0 : 1;
  plan::GpuTimes times = plan->bilinear ? products_times(*plan, shape, items, call.products, gpu)
                                        : pair_times(*plan, shape, items, gpu);
  return times += plan::gpu_memory_times(points_bytes(shape, dtype), gpu);
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
  plan::GpuPairProblem problem = problem_of({field->amplitude}, shape, dtype, gpu, Precision::fp32);
  problem.plane_product = {};
  problem.consumer = plan::Consumer::product;
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
  const plan::GpuFieldProblem& problem = field->problem;
  const double elements = pairs_of(shape) * static_cast<double>(shape.k), columns = static_cast<double>(call.columns);
  plan::GpuTimes times;
  if (rank) {
    const double all = columns * static_cast<double>(rank->problem.rank_field->columns(shape.k));
    times = products_times(*rank, shape, 1, call.products, gpu);
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
    times += plan::gpu_times(contraction(columns), problem.type, elements, gpu);
  }
  if (!rank && !problem.field.pair_outputs.empty()) {
    plan::GpuPairProblem values = problem_of(problem.field.pair_outputs, shape, dtype, gpu, precision_of(call));
    if (call.products > 0)
      values.product = plan::bilinear_tile(shape.m, shape.n, shape.k, Precision::fp32, gpu.multiprocessors);
    const auto pairs = plan::plan_gpu_pairs(values);
    times += pairs->bilinear ? products_times(*pairs, shape, 1, call.products, gpu) : pair_times(*pairs, shape, 1, gpu);
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

/// The call that explain() prints the floor of.
GpuCall call_of(Precision precision) {
  return {.products = precision == Precision::fp32 ? 3 : precision == Precision::direct ? 0 : 1};
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

std::string explain_gpu(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target) {
  require(shape.m >= 0 && shape.n >= 0 && shape.k >= 0, "explain: sizes must not be negative. Received {}x{}x{}.",
          shape.m, shape.n, shape.k);
  const NamedGpu gpu = gpu_named(target);
  plan::GpuPairProblem problem =
      problem_of({explained(f)}, shape, dtype, gpu.info, Context::shared().precision());
  problem.mixed_work = plan::mixed_work(shape.m, shape.n, shape.k);
  problem.differs = plan::fills_waves(shape.m, shape.n, shape.k, gpu.info.multiprocessors);
  problem.product = plan::bilinear_tile(shape.m, shape.n, shape.k, Context::shared().precision(),
                                        gpu.info.multiprocessors);
  const auto plan = tuned_plan(plan::plan_gpu_pairs(problem), gpu.tiles);
  std::string text = formula_section(f);
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
  const GpuCall call = call_of(Context::shared().precision());
  return text + section("floor", floor_text(matrix_times(f, shape, dtype, gpu.info, call), shape, gpu));
}

}  // namespace ops

GpuFloor gpu_floor(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target, const GpuCall& call) {
  require(shape.m >= 0 && shape.n >= 0 && shape.k >= 0, "gpu_floor: sizes must not be negative. Received {}x{}x{}.",
          shape.m, shape.n, shape.k);
  const plan::GpuInfo gpu = gpu_named(target).info;
  plan::GpuTimes times;
  if (call.verb == "pairwise")
    times = matrix_times(f, shape, dtype, gpu, call);
  else if (call.verb == "kernel_product")
    times = product_times(f, shape, dtype, gpu, call);
  else if (call.verb == "kernel_gradient")
    times = gradient_times(f, shape, dtype, gpu, call);
  else if (call.verb == "knn")
    times = nearest_times(f, shape, dtype, gpu, call);
  else
    fail(ErrorKind::invalid_argument,
         "gpu_floor: the verb must be pairwise, kernel_product, kernel_gradient or knn. Received \"{}\".", call.verb);
  return {times.issue, times.fma, times.alu, times.unit, times.tensor, times.memory, times.ms()};
}

}  // namespace mercer
