#include "plan/gpu/field.h"

#include "core/integers.h"
#include "ir/lower/fit_power.h"
#include "ir/passes/passes.h"
#include "plan/forms/sides.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::plan {
namespace {

constexpr std::int64_t kThreads = 256, kSlice = 32, kChunk = 512;

bool has_work(std::int64_t m, std::int64_t n, std::int64_t k, const Costs& costs) {
  const double from = costs.tensor_cores_from;
  if (m == 0 || n == 0 || k == 0) return false;
  const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return from == 0 || (n >= costs.gradient.least_points && work >= from);
}

}  // namespace

std::int64_t linear_columns(std::int64_t k, bool difference) { return round_up(k + difference, 4); }

std::int64_t LinearSizes::row_bytes() const {
  constexpr std::int64_t kFloat = 4, kUnit = 32;
  return (points + round_up(points, kUnit) + columns) * kFloat;  // amplitudes, their pieces, products
}

LinearSizes linear_sizes(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t outputs,
                         std::int64_t part_bytes) {
  constexpr std::int64_t kFloat = 4, kLeastPoints = 1024, kMostPoints = 16384, kSlice = 64, kRows = 128;
  LinearSizes sizes;
  sizes.columns = std::min(outputs, kLinearOutputs) * linear_columns(k);
  // Operands of the columns may take twice what those of the rows do: they are made once for all rows.
  const std::int64_t most =
      std::clamp(2 * part_bytes / (kFloat * sizes.columns) / kSlice * kSlice, kLeastPoints, kMostPoints);
  sizes.points = std::min(n, round_up(ceil_div(n, std::max<std::int64_t>(1, ceil_div(n, most))), kSlice));
  sizes.fits = sizes.columns * sizes.points * kFloat <= 2 * part_bytes;
  const std::int64_t fitting = part_bytes / std::max<std::int64_t>(1, sizes.row_bytes());
  sizes.rows = std::min(m, std::max<std::int64_t>(1, fitting / kRows) * kRows);
  return sizes;
}

BilinearTile linear_tile(const LinearSizes& sizes, int multiprocessors, const Costs& costs) {
  BilinearTile tile = bilinear_tile(sizes.rows, sizes.columns, sizes.points, Precision::fp32, multiprocessors,
                                    costs.everywhere());
  tile.own_scales = static_cast<bool>(tile);  // features of all sizes, times coefficients
  return tile;
}

BilinearTile linear_tile(std::int64_t m, std::int64_t n, std::int64_t k, const LinearSizes& sizes, Precision precision,
                         int multiprocessors, const Costs& costs) {
  const GradientCosts& own = costs.gradient;
  const bool pays = pays_field_products(m, n, k, costs) ||
                    (k > kFewFeatures && sizes.columns >= own.linear_columns && has_work(m, n, k, costs));
  if (!pays || precision == Precision::direct) return {};
  if (costs.tensor_cores_from > 0 && (m < own.linear_rows || !sizes.fits)) return {};
  return linear_tile(sizes, multiprocessors, costs);
}

std::int64_t double_row_bytes(const LinearSizes& sizes, int planes) {
  return (sizes.points * (planes + 1) + sizes.columns) * static_cast<std::int64_t>(sizeof(double));
}

LinearSizes double_sizes(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t outputs, int planes,
                         std::int64_t part_bytes) {
  constexpr std::int64_t kDouble = sizeof(double), kLeastPoints = 1024, kMostPoints = 16384, kSlice = 64;
  const auto at_least_one = [](std::int64_t count) { return std::max<std::int64_t>(1, count); };
  LinearSizes sizes;
  // Columns are made once for all rows, of as many outputs as fit twice a part.
  const std::int64_t fitting = 2 * part_bytes / (kDouble * at_least_one(k));
  const std::int64_t most = std::clamp(fitting / kSlice * kSlice, kLeastPoints, kMostPoints);
  sizes.points = std::min(n, round_up(ceil_div(n, at_least_one(ceil_div(n, most))), kSlice));
  // Each of several passes has an even number of outputs, for coefficients are read by two.
  const std::int64_t all = at_least_one(std::min(outputs, kLinearOutputs)), pair = std::min<std::int64_t>(all, 2);
  sizes.columns = k * std::clamp<std::int64_t>(fitting / at_least_one(sizes.points) / pair * pair, pair, all);
  sizes.fits = k * pair * sizes.points * kDouble <= 2 * part_bytes;
  const std::int64_t tiles = at_least_one(part_bytes / at_least_one(double_row_bytes(sizes, planes)) / kDoubleRows);
  const std::int64_t parts = at_least_one(ceil_div(m, tiles * kDoubleRows));
  sizes.rows = std::min(m, round_up(ceil_div(m, parts), std::int64_t{kDoubleRows}));
  return sizes;
}

bool pays_doubles(std::int64_t m, std::int64_t n, std::int64_t k, const Costs& costs) {
  if (!has_work(m, n, k, costs)) return false;
  return costs.tensor_cores_from == 0 || (k >= costs.gradient.double_features && m >= costs.gradient.linear_rows);
}

int columns_of_doubles(std::int64_t columns) { return columns <= 32 ? 32 : 64; }

std::int64_t doubles_shared_bytes(int columns) {
  constexpr std::int64_t kStages = 3, kRowOfSlice = 20;
  return kStages * (kDoubleRows + columns) * kRowOfSlice * static_cast<std::int64_t>(sizeof(double));
}

bool GpuFieldPlan::has_plain_amplitude() const {
  const Expr& own = factors.amplitude;
  return !own.empty() && own->op == ir::Op::pair_value && own->slot == 0;
}

int most_product_outputs(std::int64_t outputs) {
  constexpr std::int64_t kOutputs = 32;
  const bool twice = round_up(outputs, 2 * kOutputs) == round_up(outputs, kOutputs);
  return static_cast<int>(std::min(outputs, twice ? 2 * kOutputs : kOutputs));
}

bool pays_field_products(std::int64_t m, std::int64_t n, std::int64_t k, const Costs& costs) {
  return has_work(m, n, k, costs) && (costs.tensor_cores_from == 0 || k >= costs.gradient.product_features);
}

bool pays_wide_field_tile(std::int64_t k, const GradientCosts& costs) {
  const auto features = [k](std::int64_t tile) { return static_cast<double>(round_up(k, tile)); };
  return features(kWideFieldTileFeatures) < costs.wide_field_share * features(kFieldTileFeatures);
}

std::int64_t GpuFieldPlan::product_shared_bytes(int stages, bool units) const {
  constexpr std::int64_t kPoints = 64, kFloat = 4, kBarriers = 3 * 8;
  constexpr std::int64_t kInputBarriers = 2 * 8, kSearch = 8;
  const std::int64_t columns = product_columns(), queries = product_queries();
  const bool digits = units && of_signs();
  const std::int64_t totals = digits ? 0 : queries * columns / 2 * kFloat * (product_groups() * 32);
  const std::int64_t pieces = of_signs() ? (digits ? 3 : 6) : (units ? 4 : 8);  // bytes of a value
  const std::int64_t stage = product_groups() * 4 * group_bytes() + queries * columns * pieces * kPoints;
  const std::int64_t rows = std::max<std::int64_t>(queries / problem.contraction.cluster, 1) * problem.planes;
  const std::int64_t inputs = (columns + rows) * kPoints * kFloat;
  return totals + stages * (stage + kBarriers) + product_inputs(units) * (inputs + kInputBarriers) +
         (units ? 0 : kSearch);
}

int GpuFieldPlan::product_inputs(bool units) const {
  return units && of_signs() ? 4 : product_columns() >= 32 ? 2 : 3;
}

int GpuFieldPlan::product_stages(bool units) const {
  const std::int64_t table_bytes =
      units && !of_signs() && table_eighths() > 0 ? ir::power_table_bytes(kFieldPowerBits) : 0;
  int stages = 4;
  while (stages > 1 && product_shared_bytes(stages, units) + table_bytes > problem.device.shared_per_block) --stages;
  return stages;
}

std::int64_t GpuFieldPlan::shared_bytes(std::int64_t n) const {
  if (by_doubles()) return doubles_shared_bytes(problem.stored.columns_of_doubles);
  const std::int64_t element = problem.type == Dtype::float64 ? 8 : 4, vector = 16 / element;
  const std::int64_t rows = tile_f() + std::int64_t{problem.planes} * tile_r() + reads.col;
  const std::int64_t coef_row = round_up(problem.outputs, vector);
  std::int64_t elements = 2 * (rows * (kSlice + vector) + kSlice * coef_row);
  if (n > kChunk) elements += kThreads * problem.outputs * states() * block.thread_r * block.thread_f;
  return elements * element;
}

namespace {

/// Amplitudes times columns of coefficients and features.
void plan_linear(GpuFieldPlan& plan) {
  GpuPairProblem product;
  product.outputs = {ir::simplify(sum(points().x * points().z))};
  product.product = plan.problem.contraction.linear;
  product.params.by_value = true;
  product.device.capability = plan.problem.device.capability;
  product.device.shared_per_block = plan.problem.device.shared_per_block;
  const auto pairs = plan_gpu_pairs(product);
  if (!pairs->products.bilinear) return;
  plan.linear = pairs;
  plan.problem.contraction.product_outputs =
      static_cast<int>(std::min<std::int64_t>(plan.problem.contraction.product_outputs, kLinearOutputs));
}

}  // namespace

int few_features_outputs(const FieldWeights& weights, std::int64_t k) {
  constexpr std::int64_t kSums = 32, kFactors = 16;
  const std::int64_t most = weights.of_outputs() ? kSums / std::max<std::int64_t>(k, 1) : kFactors;
  return static_cast<int>(std::clamp<std::int64_t>(most, 1, std::max<std::int64_t>(weights.count, 1)));
}

namespace {

std::int64_t few_features_words(const GpuFieldProblem& field) { return field.type == Dtype::float64 ? 2 : 1; }
std::int64_t count_of(const std::vector<Sides::Stream>& streams) { return static_cast<std::int64_t>(streams.size()); }

/// A factor of the pair is multiplied with its weight, once for all features.
void plan_extra(GpuFieldPlan& plan, const ir::LowerOptions& options) {
  const Expr& extra = plan.problem.field.extra;
  const FieldFactors factors = factors_of(extra, plan.problem.type);
  const auto own = [](const Expr& weight) { return weight.empty() ? Expr(1.0) : weight; };
  plan.contracted.extra_amplitude =
      ir::lower({factors ? ir::simplify(factors.scale * factors.amplitude) : Expr(1.0)}, options);
  plan.contracted.extra_value =
      ir::lower({factors ? ir::simplify(own(factors.weight) * factors.factor) : extra}, options);
  for (const ir::Program* program : {&plan.contracted.extra_amplitude, &plan.contracted.extra_value}) {
    plan.reads.row |= reads_site(*program, {ir::Site::row});
    plan.reads.col |= reads_site(*program, {ir::Site::col});
    plan.reads.weights |= reads_site(*program, {ir::Site::w});
  }
}

}  // namespace

std::int64_t few_features_bytes(const GpuPairPlan& pairs) {
  constexpr std::int64_t kPoints = 64, kStages = 2, kWord = 4;
  const GpuFieldPlan& field = *pairs.problem.gradient.field;
  const std::int64_t of_feature = count_of(pairs.sides.z_streams) + !are_points(pairs.sides.z_streams);
  const std::int64_t rows =
      pairs.problem.sizes.exact_features * of_feature + pairs.programs.col_slots + field.reads.col + field.columns();
  const std::int64_t marks = field.beyond ? kFewFeaturesThreads : 0;
  return kStages * rows * kPoints * kWord * few_features_words(field.problem) + marks;
}

int few_features_rows(const GpuPairPlan& pairs) {
  constexpr std::int64_t kRegisters = 96, kMost = 4, kVectorWords = 4;
  const GpuFieldProblem& field = pairs.problem.gradient.field->problem;
  const bool is_one = pairs.problem.gradient.field->has_one_output();
  const std::int64_t words = few_features_words(field), sums = is_one ? 1 : field.outputs;
  const std::int64_t of_feature = count_of(pairs.sides.x_streams) + !are_points(pairs.sides.x_streams) + 2 * sums;
  const std::int64_t side_sums = pairs.problem.gradient.field->side_sums();  // with totals of float64
  const std::int64_t of_row = pairs.problem.sizes.exact_features * of_feature + pairs.programs.row_slots +
                              (is_one ? field.outputs : 0) + side_sums * (1 + 2 / words) +
                              kVectorWords / words * (pairs.split.states + sums + field.planes + field.pass.sums);
  std::int64_t rows = kMost;
  while (rows > 1 && rows * of_row * words > kRegisters) rows /= 2;
  return static_cast<int>(rows);
}

int thread_features(std::int64_t k, const GradientCosts& costs) {
  constexpr std::int64_t kThreadsOfRow = 16;
  // Values of a pair are read once for all features of a thread.
  const auto cost = [&](int features) {
    return static_cast<double>(round_up(k, kThreadsOfRow * features)) * (1 + costs.thread_reads / features);
  };
  int best = 4;
  for (const int features : {3, 2, 1})
    if (cost(features) < (best == 4 ? costs.thread_gain : 1) * cost(best)) best = features;
  return best;
}

namespace {

/// A tile whose sums or states fit the registers, and what it reads shared memory.
void choose_tile(GpuFieldPlan& plan) {
  const GpuFieldProblem& problem = plan.problem;
  const int words = (problem.type == Dtype::float64 ? 2 : 1) * plan.states();
  const auto fits = [&] {
    return problem.outputs * plan.block.thread_r * plan.block.thread_f * words <= kAccumulatorWords;
  };
  // What products leave is marked by 64 features, of which a tile is a part.
  if (fits() && !plan.on_tensor_cores()) plan.block.thread_f = problem.thread_features;
  while (!fits() && plan.block.thread_r * plan.block.thread_f > 1)
    (plan.block.thread_f >= plan.block.thread_r ? plan.block.thread_f : plan.block.thread_r) /= 2;
  // Each plane takes as many rows as the tile has.
  while (plan.shared_bytes(kChunk + 1) > problem.device.shared_per_block &&
         plan.block.thread_r * plan.block.thread_f > 1)
    (plan.block.thread_r > 1 ? plan.block.thread_r : plan.block.thread_f) /= 2;
}

/// Outputs of a fold are passes where several would not leave a thread a row and a feature.
void plan_fold(GpuFieldPlan& plan, const ir::LowerOptions& options) {
  const ir::FieldFold& fold = plan.problem.field.fold;
  plan.programs.phi = ir::lower(fold.update, options);
  plan.programs.finish = ir::lower({fold.finish}, options);
  plan.programs.identity = numbers_of(fold.identity);
  const int words = plan.problem.type == Dtype::float64 ? 2 : 1;
  plan.problem.outputs = std::clamp(kAccumulatorWords / (fold.states() * words), 1, plan.problem.outputs);
}

/// A linear factor, of squares of differences, keeps the range of their sums; so does the extra field.
void plan_beyond(GpuFieldPlan& plan, const ir::FieldSplit& scaled) {
  ir::FieldSplit& field = plan.problem.field;
  const auto is_linear = [&](const Expr& phi) {
    return !phi.empty() && factors_of(phi, plan.problem.type).linear != FieldFactors::Linear::none;
  };
  if (scaled.again.empty() || is_linear(field.field) || is_linear(field.extra)) return;
  plan.beyond = field_beyond(scaled, field);
}

/// The two fields change places.
void take_extra(GpuFieldPlan& plan) {
  std::swap(plan.problem.field.field, plan.problem.field.extra);
  if (plan.beyond) std::swap(plan.beyond.phi, plan.beyond.extra);
}

}  // namespace

std::shared_ptr<const GpuFieldPlan> plan_gpu_field(const GpuFieldProblem& given, const ir::FieldSplit& scaled) {
  auto plan = std::make_shared<GpuFieldPlan>();
  plan->problem = given;
  const GpuFieldProblem& problem = plan->problem;
  plan_beyond(*plan, scaled);
  if (problem.is_extra) take_extra(*plan);
  if (!problem.field.fold) plan->factors = factors_of(problem.field.field, problem.type);
  ir::LowerOptions options;
  options.type = problem.type;
  options.params = problem.field.param_leaves();
  options.processor = ir::Processor::gpu_terms;
  if (problem.field.fold) plan_fold(*plan, options);
  else
    plan->programs.phi = ir::lower({problem.field.field}, options);
  plan->programs.uniforms = lower_uniforms(problem.field.uniforms, problem.field.params);
  plan->reads.row =
      reads_site(plan->programs.phi, {ir::Site::row}) || reads_site(plan->programs.finish, {ir::Site::row});
  plan->reads.col = reads_site(plan->programs.phi, {ir::Site::col});
  plan->reads.weights = reads_site(plan->programs.phi, {ir::Site::w}) || (plan->beyond && plan->beyond.reads_weights());
  if (problem.pass.features > 0) plan_extra(*plan, options);
  FieldContraction& contraction = plan->problem.contraction;
  contraction.wide = contraction.wide && plan->factors.power > 0;
  if (contraction.wide) contraction.cluster = 1;
  if (problem.contraction.product_outputs > 0 && plan->factors.power > 0 && plan->table_eighths() > 0) {
    options.table_powers = true;
    plan->contracted.factor_by_table = ir::lower({plan->factors.factor}, options);
    options.table_powers = false;
  }
  if (plan->factors) {
    plan->contracted.amplitude = ir::lower({plan->factors.amplitude}, options);
    plan->contracted.factor = ir::lower({plan->factors.factor}, options);
    if (problem.contraction.linear && plan->factors.linear != FieldFactors::Linear::none) plan_linear(*plan);
    plan->doubles = problem.contraction.doubles && plan->factors.linear != FieldFactors::Linear::none;
    plan->products = problem.contraction.product_outputs > 0 && plan->product_stages() >= 2;  // but for too many planes
  }
  choose_tile(*plan);
  return plan;
}

}  // namespace mercer::plan
