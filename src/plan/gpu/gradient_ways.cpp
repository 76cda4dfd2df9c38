#include "plan/gpu/gradient_ways.h"

#include <algorithm>

#include "core/integers.h"
#include "core/key.h"
#include "ir/passes/safe_field.h"
#include "plan/gpu/gradient_values.h"
#include "plan/gpu/pair_ways.h"
#include "plan/gpu/rank_field_tile.h"
#include "plan/gpu/stored_sums.h"
#include "plan/gpu/stored_ways.h"

namespace mercer::plan {
namespace {

using Kind = FieldWeights::Kind;

constexpr Refusal kOfFloat64{"values are computed in float64"};
constexpr Refusal kIsDirect{"the precision is \"direct\", which has no tensor cores"};
constexpr Refusal kOfOwnField{"the field is the caller's own"};

double real(std::int64_t count) { return static_cast<double>(count); }

FieldWeights weights_of(const Request& request) { return {request.gradient.weights, request.columns}; }

/// Results of a pass that have coefficients of their own.
std::int64_t outputs_of(const Request& request) {
  return request.gradient.weights == Kind::coefficients ? request.columns : 1;
}

/// What pairs are weighed with is one more value of them: a matrix, or a sum of products of factors.
bool has_weight_plane(const Request& request) {
  return request.gradient.weights == Kind::matrix || (request.gradient.weights == Kind::factors && request.columns > 1);
}

/// Why a call's sizes leave it without tensor cores.
Refusal too_small(const Request& request, const Costs& costs, const char* others) {
  const double work = request.pairs() * real(request.k);
  if (work >= costs.tensor_cores_from) return {others};
  return {"pairs times features", costs.tensor_cores_from, work};
}

ir::FieldSplit field_of(Planner& planner, const SideSums& side_sums) {
  return field_of(planner.formula().expression, planner.derivative(), side_sums);
}

/// The fields with their units, of a formula or of one whose amplitude the caller gives.
ir::FieldSplit scaled_field_of(Planner& planner, const SideSums& side_sums) {
  const double most = ir::most_scale(Dtype::float64);
  const PlannedFormula formula = planner.formula();
  if (formula.form == ir::Form::fold) return {};
  if (formula.form == ir::Form::field)
    return ir::split_amplitude_field(formula.expression, false, {.most_scale = most});
  return field_of(formula.expression, planner.derivative(), side_sums, most);
}

/// What all plans of pairs start from: one kernel serves parameters that are numbers and those that are arrays.
GpuPairProblem pairs_problem(const Request& request, Consumer consumer) {
  GpuPairProblem problem = problem_of(request, consumer);
  problem.params.by_value = problem.params.normal_reciprocals = false;
  return problem;
}

template <class... Parts>
std::string key_of(const char* what, const Request& request, Planner& planner, const Parts&... parts) {
  return cache_key(what, planner.formula().key, planner.costs_key(), request.type, request.points,
                   request.device.capability, request.device.shared_per_block, request.gradient.side_sums.names(),
                   parts...);
}

/// Pairs whose gradient multiplies the points z, and which a matrix weighs: a product of both.
Considered matrix_times_points(const Request& request, const Costs& costs, Planner& planner) {
  const GradientRequest& gradient = request.gradient;
  if (gradient.weights != Kind::matrix || gradient.side_sums.any())
    return Refusal{"no matrix weighs the pairs, or the pass has more than the gradient"};
  if (planner.formula().form != ir::Form::pairs) return kOfOwnField;
  if (planner.derivative()->op != ir::Op::z) return Refusal{"the derivative by x is not z, as that of sum(x*z) is"};
  if (request.k <= kFewFeatures) return Refusal{"features", kFewFeatures + 1, real(request.k)};
  if (request.precision == Precision::direct) return kIsDirect;
  if (request.n == 0) return Refusal{"there are no points of z"};
  const std::int64_t points = std::min(request.m, request.n);
  if (costs.tensor_cores_from > 0 && points < costs.gradient.matrix_points)
    return Refusal{"points of either side", real(costs.gradient.matrix_points), real(points)};
  auto product = product_of_values(request, request.k, costs);
  if (!product) return Refusal{"the operands of so many features would be too large"};
  if (product->contraction.linear) return Refusal{"no tile reads the matrix where it is: grad_gemm has no more to do"};
  if (product->stored.tile) product->stored.lie = gradient.matrix;
  GradientPlan plan;
  plan.field = product_plan(*std::move(product), planner);
  return Offer{plan, "products in pieces of tf32, or of float64"};
}

GpuFieldProblem few_features_field(const Request& request) {
  const SideSums& side_sums = request.gradient.side_sums;
  GpuFieldProblem field;
  field.type = request.type;
  field.outputs = few_features_outputs(weights_of(request), request.k);
  field.pass.few_features = true;
  field.weights = request.gradient.weights;
  field.pass.sums = static_cast<int>(side_sums.by.size());
  field.pass.with_product = side_sums.product;
  field.pass.features = side_sums.weights ? static_cast<int>(request.k) : 0;
  field.device.capability = request.device.capability;
  return field;
}

Considered few_features(const Request& request, const Costs&, Planner& planner) {
  const SideSums& side_sums = request.gradient.side_sums;
  if (planner.formula().form != ir::Form::pairs) return kOfOwnField;
  if (request.k < 1 || request.k > kFewFeatures) return Refusal{"more than 16 features, or none"};
  if (request.gradient.converts) return Refusal{"the matrix that weighs the pairs is not of the computing type"};
  GpuPairProblem problem = pairs_problem(request, Consumer::field);
  problem.arrays.bytes = false;
  problem.sizes.pairs = GpuSizes::Pairs::many;
  GpuFieldProblem field = few_features_field(request);
  const std::string key = key_of("field of few features", request, planner, problem.sizes.exact_features,
                                 field.outputs, field.weights);
  GradientPlan plan{.product = side_sums.product};
  plan.pairs = planner.pairs(key, [&] {
    field.field = field_of(planner, side_sums);
    field.planes = static_cast<int>(field.field.pair_outputs.size());
    problem.outputs = field.field.pair_outputs;
    add_outputs(problem.outputs, planner.formula().expression, side_sums);
    if (problem.outputs.empty()) problem.outputs = {0.0};
    problem.gradient.field = plan_gpu_field(field, scaled_field_of(planner, side_sums));
    if (problem.gradient.field->beyond) problem.gradient.marked = static_cast<std::uint8_t>(field.planes);
    return plan_gpu_pairs(problem, planner.costs());
  });
  const std::int64_t bytes = few_features_bytes(*plan.pairs);
  if (bytes > problem.device.shared_per_block)
    return Refusal{"bytes of shared memory", real(bytes), real(problem.device.shared_per_block)};
  return Offer{plan, bound_of(request)};
}

/// The product with several columns of v goes through tensor cores, too; with one it is a sum like others.
bool multiplies_columns(const Request& request) { return request.gradient.side_sums.product && request.columns > 1; }

/// The tile of a product that contracts amplitudes with so many columns.
BilinearTile lowrank_tile(const Request& request, const Costs& costs, std::int64_t columns) {
  const SideSums& side_sums = request.gradient.side_sums;
  const bool has_extra = multiplies_columns(request);
  BilinearTile tile =
      rank_field_tile(request.m, request.n, request.k, rank_outputs(outputs_of(request), columns) * columns,
                      weights_of(request), request.precision, costs, has_extra);
  if (tile) tile.side_sums = static_cast<int>(side_sums.by.size()) + (side_sums.product && !has_extra);
  return tile;
}

/// What a call must be, but for its formula.
std::optional<Refusal> refuses_lowrank(const Request& request, const Costs& costs) {
  const GradientRequest& gradient = request.gradient;
  if (request.type != Dtype::float32) return kOfFloat64;
  if (gradient.side_sums.weights || gradient.converts)
    return Refusal{"values are read once more, for sums by w or a matrix of another type: they must be stored"};
  if (request.device.capability != kOfWarpgroups || request.device.by_warps)
    return Refusal{"it needs warpgroups (compute capability 9.0)"};
  if (multiplies_columns(request) && request.columns > kMostExtraColumns)
    return Refusal{"the product has more than 16 columns"};
  if (!lowrank_tile(request, costs, request.k + 1)) {
    if (request.precision == Precision::direct) return kIsDirect;
    if (request.k <= kFewFeatures) return Refusal{"features", kFewFeatures + 1, real(request.k)};
    if (request.k > costs.gradient.rank_features) return Refusal{"features are many, which would take many passes"};
    return too_small(request, costs, "points of either side are too few");
  }
  if (!pays_rank_outputs(outputs_of(request), request.k + 1, costs.gradient))
    return Refusal{"so many outputs take less time with amplitudes that are stored"};
  return {};
}

/// Null where the formula does not serve.
std::shared_ptr<const GpuPairPlan> plan_lowrank(const Request& request, const Costs& costs, GpuPairProblem problem,
                                                int feature_blocks, Planner& planner) {
  const SideSums& side_sums = request.gradient.side_sums;
  const Expr& formula = planner.formula().expression;
  auto field = std::make_shared<RankField>(rank_field_of(field_of(planner, side_sums)));
  if (!*field) return nullptr;
  if (field->of_differences) field->amplitude = without_duplicates(field->amplitude, 0.0);
  field->feature_blocks = feature_blocks;
  problem.outputs = {field->amplitude};
  add_outputs(problem.outputs, formula, side_sums);
  problem.product = lowrank_tile(request, costs, field->columns(request.k));
  // The tile has the points' sums, of which some value must be made: of functions linear in them one nobody asks for.
  if (!ir::reads_pairs(field->amplitude) && !side_sums.any()) {
    problem.outputs.push_back(formula);
    problem.product.side_sums = 1;
  }
  problem.use.columns = problem.product.wide;
  problem.gradient.rank_field = std::move(field);
  auto plan = plan_gpu_pairs(problem, planner.costs());
  return plan->products.bilinear ? plan : nullptr;
}

Considered grad_lowrank(const Request& request, const Costs& costs, Planner& planner) {
  constexpr std::int64_t kFeaturesOfBlock = 64;
  if (planner.formula().form != ir::Form::pairs) return kOfOwnField;
  if (const auto refusal = refuses_lowrank(request, costs)) return *refusal;
  const GpuPairProblem problem = pairs_problem(request, Consumer::product);
  const int feature_blocks = static_cast<int>(ceil_div(request.k, kFeaturesOfBlock));
  const std::string key =
      key_of("field that weighs products", request, planner, problem.sizes, lowrank_tile(request, costs, request.k),
             lowrank_tile(request, costs, request.k + 1), feature_blocks);
  GradientPlan plan{.product = request.gradient.side_sums.product};
  plan.pairs = planner.pairs(key, [&] { return plan_lowrank(request, costs, problem, feature_blocks, planner); });
  if (!plan.pairs)
    return Refusal{"phi is no amplitude times x - z, or z, whose sum over the features is a product of two matrices"};
  return Offer{plan, "1e-6 of a row's terms; rows whose sums cancel are computed by differences"};
}

/// The tile of a field that is a product of matrices, if its factor is linear.
BilinearTile gemm_tile(const Request& request, const Costs& costs) {
  const auto& [m, n, k] = std::tie(request.m, request.n, request.k);
  BilinearTile tile =
      linear_tile(m, n, k, linear_sizes(m, n, k, outputs_of(request), request.part_bytes), request.precision,
                  request.device.multiprocessors, costs);
  tile.by_warps = tile && request.device.by_warps;
  return tile;
}

/// Why a call's fields are no products of matrices, whatever they are.
std::optional<Refusal> refuses_products(const Request& request, Planner& planner) {
  if (planner.formula().form == ir::Form::fold) return Refusal{"a fold is no sum of products"};
  if (request.precision == Precision::direct) return kIsDirect;
  return {};
}

/// Why a call's fields are not contracted on tensor cores, whatever they are.
std::optional<Refusal> refuses_contraction(const Request& request, const Costs& costs, Planner& planner) {
  if (request.type != Dtype::float32) return kOfFloat64;
  if (const auto refusal = refuses_products(request, planner)) return refusal;
  if (request.device.capability != kOfWarpgroups) return Refusal{"it needs warpgroups (compute capability 9.0)"};
  if (!pays_field_products(request.m, request.n, request.k, costs))
    return too_small(request, costs, "features, or points of z, are too few");
  return {};
}

/// Which products of matrices a field may be.
struct FieldUse {
  BilinearTile linear;
  bool contracts = false, doubles = false;
};

GpuFieldProblem field_problem(const Request& request, const FieldUse& use, const Costs& costs) {
  GpuFieldProblem problem;
  problem.type = request.type;
  problem.outputs = static_cast<int>(std::min(outputs_of(request), kFieldOutputs));
  problem.contraction.product_outputs = use.contracts ? most_product_outputs(outputs_of(request)) : 0;
  problem.contraction.cluster = use.contracts && ceil_div(request.k, kFieldTileFeatures) % 2 == 0 ? 2 : 1;
  problem.contraction.wide = use.contracts && pays_wide_field_tile(request.k, costs.gradient);
  problem.thread_features = thread_features(request.k, costs.gradient);
  problem.device.capability = request.device.capability;
  problem.contraction.linear = use.linear;
  problem.contraction.doubles = use.doubles;
  if (use.doubles)
    problem.stored.columns_of_doubles = columns_of_doubles(request.k * std::min(outputs_of(request), kLinearOutputs));
  problem.device.shared_per_block = request.device.shared_per_block;
  return problem;
}

/// Fields times a weight of each pair, which is a value of it after all others.
ir::FieldSplit weighed(ir::FieldSplit field) {
  const auto weigh = [](Expr& phi, std::size_t values) {
    if (!phi.empty()) phi = ir::leaf(ir::Op::pair_value, static_cast<int>(values)) * phi;
  };
  for (Expr* const phi : {&field.field, &field.extra}) weigh(*phi, field.pair_outputs.size());
  for (Expr* const phi : {&field.scaled, &field.scaled_extra}) weigh(*phi, field.again.size());
  return field;
}

/// The fields with what the pairs are weighed with.
ir::FieldSplit weighed_field(const Request& request, Planner& planner) {
  const PlannedFormula formula = planner.formula();
  if (formula.form == ir::Form::fold) return ir::split_fold(formula.expression);
  if (formula.form == ir::Form::field) return amplitude_field(formula.expression, request.type);
  const ir::FieldSplit field = field_of(planner, request.gradient.side_sums);
  return has_weight_plane(request) ? weighed(field) : field;
}
ir::FieldSplit weighed_scaled_field(const Request& request, Planner& planner) {
  const ir::FieldSplit field = scaled_field_of(planner, request.gradient.side_sums);
  const bool weighs = has_weight_plane(request) && planner.formula().form == ir::Form::pairs;
  return weighs && !field.again.empty() ? weighed(field) : field;
}

KeptPlan<GpuFieldPlan> field_plan(const Request& request, const FieldUse& use, Planner& planner,
                                  bool is_extra = false) {
  const PlannedFormula formula = planner.formula();
  GpuFieldProblem problem = field_problem(request, use, planner.costs());
  const SideSums& side_sums = request.gradient.side_sums;
  const std::string key =
      cache_key(is_extra ? "extra field" : "field", formula.form, has_weight_plane(request), side_sums.without_weight,
                side_sums.weights, formula.key, problem.type, problem.outputs, problem.contraction.product_outputs,
                problem.contraction.cluster, problem.contraction.wide, problem.thread_features,
                problem.contraction.linear, problem.contraction.doubles, problem.stored.columns_of_doubles,
                problem.device.capability, problem.device.shared_per_block);
  return planner.field(key, [&] {
    problem.field = weighed_field(request, planner);
    problem.is_extra = is_extra;
    const bool has_plane = formula.reads_amplitude || has_weight_plane(request);
    problem.planes = static_cast<int>(problem.field.pair_outputs.size()) + has_plane;
    return plan_gpu_field(problem, weighed_scaled_field(request, planner));
  });
}

GpuPairProblem values_problem(const Request& request, const Costs& costs) {
  GpuPairProblem problem = pairs_problem(request, Consumer::store);
  problem.product = values_tile(request, costs);
  problem.plane_product = plane_tile(request, costs);
  return problem;
}

/// Values of the pairs, and the sums that are made of them.
KeptPlan<GpuPairPlan> values_plan(const Request& request, const Costs& costs, const GpuFieldPlan& field,
                                  Planner& planner) {
  const SideSums& side_sums = request.gradient.side_sums;
  const PlannedFormula formula = planner.formula();
  const std::int64_t columns = side_sums.product ? request.columns : 0;
  GpuPairProblem problem = values_problem(request, costs);
  const std::string key = key_of("values of a gradient", request, planner, formula.form, problem.arrays.bytes,
                                 problem.product, problem.plane_product, problem.sizes, field.is_linear(),
                                 field.has_units(), static_cast<bool>(field.beyond), columns_at_once(columns));
  return planner.pairs(key, [&] {
    problem.outputs = values_of(field);
    const auto amplitudes = static_cast<std::uint8_t>(problem.outputs.size());
    if (field.beyond) problem.gradient.marked = amplitudes;
    if (side_sums.has_sums()) {
      std::vector<Expr> side_values;
      add_outputs(side_values, formula.expression, side_sums);
      problem.gradient.stored_sums = plan_stored_sums(problem.outputs, side_values, columns, request.type);
      problem.outputs = problem.gradient.stored_sums->split.reductions;
      problem.gradient.first_marked = static_cast<std::uint8_t>(problem.outputs.size() - amplitudes);
      if (!problem.gradient.stored_sums->as_they_are) problem.gradient.marked = 0;
    }
    return plan_gpu_pairs(problem, planner.costs());
  });
}

/// Whether the product with v takes less in the pass than by itself; `values`: what the pass stores.
bool pays_product(const Request& request, const Costs& costs, const GpuPairPlan& values) {
  const auto pays = [&](bool of_products) {
    return pays_product_in_pass(costs, request.type, request.k, request.columns, of_products);
  };
  if (pays(false) == pays(true)) return pays(false);
  return pays(values_tile(request, costs) &&
              bilinear_of(ir::split(values.problem.gradient.stored_sums->split.reductions)));
}

/// A pass that stores no pairs, but lacks the product with v, comes before those that store them for its sake.
std::optional<Refusal> refuses_product(const Request& request, const Costs& costs, Planner& planner) {
  if (!request.gradient.side_sums.product) return {};
  Request without = request;
  without.gradient.side_sums.product = false;
  if (!std::holds_alternative<Offer>(grad_lowrank(without, costs, planner))) return {};
  return Refusal{"grad_lowrank without the product with v, and that by itself, take less"};
}

std::int64_t stored_bytes(const Request& request, const GpuFieldPlan& field) {
  if (field.linear) {
    const LinearSizes sizes =
        linear_sizes(request.m, request.n, request.k, outputs_of(request), request.part_bytes);
    return sizes.rows * sizes.row_bytes();
  }
  if (field.doubles) {
    const LinearSizes sizes = double_sizes(request.m, request.n, request.k, outputs_of(request), field.problem.planes,
                                           request.part_bytes);
    return sizes.rows * double_row_bytes(sizes, field.problem.planes);
  }
  const std::int64_t row = request.n * field.problem.planes * static_cast<std::int64_t>(size_of(request.type));
  return row * rows_of_part(request.m, row, request.part_bytes);
}

/// A field and what else its pass has, of values of the pairs that are stored.
Considered with_values(const Request& request, const Costs& costs, KeptPlan<GpuFieldPlan> field, Planner& planner,
                       const Offer& offer) {
  const SideSums& side_sums = request.gradient.side_sums;
  GradientPlan plan{.field = std::move(field), .product = side_sums.product};
  if (side_sums.weights) {
    // Ranges of z and their rows are those of the gradient's own field.
    const FieldUse use{plan.field->linear ? plan.field->problem.contraction.linear : BilinearTile{},
                       !refuses_contraction(request, costs, planner)};
    plan.extra = field_plan(request, use, planner, true);
  }
  if (!plan.field->problem.field.pair_outputs.empty() || side_sums.has_sums()) {
    plan.pairs = values_plan(request, costs, *plan.field.plan, planner);
    if (side_sums.product && !pays_product(request, costs, *plan.pairs.plan))
      return Refusal{"the product with v takes less by itself"};
  }
  Offer complete = offer;
  complete.bytes = stored_bytes(request, *plan.field.plan);
  complete.plan = std::move(plan);
  return complete;
}

Considered grad_gemm(const Request& request, const Costs& costs, Planner& planner) {
  if (request.type != Dtype::float32) return kOfFloat64;
  if (const auto refusal = refuses_products(request, planner)) return *refusal;
  if (const auto refusal = refuses_product(request, costs, planner)) return *refusal;
  const FieldUse use{gemm_tile(request, costs), !refuses_contraction(request, costs, planner)};
  if (!use.linear) return too_small(request, costs, "features times outputs, or points of either side, are too few");
  auto field = field_plan(request, use, planner);
  if (!field->linear) return Refusal{"phi is no amplitude times x - z, or z"};
  return with_values(request, costs, std::move(field), planner,
                     {.error_bound = "three products of 16 bits; rows whose sums cancel are computed by differences"});
}

Considered grad_gemm_float64(const Request& request, const Costs& costs, Planner& planner) {
  if (request.type != Dtype::float64) return Refusal{"values are computed in float32"};
  if (const auto refusal = refuses_products(request, planner)) return *refusal;
  if (!pays_doubles(request.m, request.n, request.k, costs)) {
    if (request.k < costs.gradient.double_features)
      return Refusal{"features", real(costs.gradient.double_features), real(request.k)};
    return too_small(request, costs, "points of either side are too few");
  }
  const bool fits = double_sizes(request.m, request.n, request.k, outputs_of(request), 1, request.part_bytes).fits;
  if (costs.tensor_cores_from > 0 && !fits)
    return Refusal{"the operands of so many features would be too large"};
  auto field = field_plan(request, {.doubles = true}, planner);
  if (!field->doubles) return Refusal{"phi is no amplitude times x - z, or z"};
  return with_values(request, costs, std::move(field), planner,
                     {.error_bound = "sums rounded in float64; rows whose sums cancel are computed by differences"});
}

/// How exact the products of a field are, and what its values must be.
Offer contraction_offer(const GpuFieldPlan& field) {
  if (field.of_signs())
    return {.error_bound = "signs by ranks, exact; three products of bytes with exact sums",
            .needs = "rows whose largest value is at most 64 times the mean, else products of bfloat16"};
  if (field.has_units())
    return {.error_bound = "three products of 16 bits, to float32 every 256 points",
            .needs = "rows as for signs, and few very small differences, else products of tf32"};
  return {.error_bound = "three products of tf32, to float32 every 64 points"};
}

Considered grad_contract(const Request& request, const Costs& costs, Planner& planner) {
  if (const auto refusal = refuses_contraction(request, costs, planner)) return *refusal;
  if (const auto refusal = refuses_product(request, costs, planner)) return *refusal;
  auto field = field_plan(request, {{}, true}, planner);
  if (!field->products)
    return Refusal{"phi is no amplitude of the pair times a factor of the feature, or reads too many values of a pair"};
  const Offer offer = contraction_offer(*field.plan);
  return with_values(request, costs, std::move(field), planner, offer);
}

Considered stored_values(const Request& request, const Costs& costs, Planner& planner) {
  if (const auto refusal = refuses_product(request, costs, planner)) return *refusal;
  return with_values(request, costs, field_plan(request, {}, planner), planner, {.error_bound = bound_of(request)});
}

}  // namespace

const Way kMatrixTimesPoints{"matrix_times_points", "the matrix that weighs the pairs times the points z",
                             matrix_times_points};
const Way kFewFeaturesGradient{"few_features", "phi by multiply-adds, in one pass over the pairs", few_features};
const Way kGradLowrank{"grad_lowrank", "amplitudes are contracted as tensor cores make them", grad_lowrank};
const Way kGradGemm{"grad_gemm", "stored amplitudes times coefficients and features: a product of matrices",
                    grad_gemm};
const Way kGradGemmFloat64{"grad_gemm_float64", "the same by tensor cores of float64", grad_gemm_float64};
const Way kGradContract{"grad_contract", "coefficients times stored amplitudes, and factors of phi, on tensor cores",
                        grad_contract};
const Way kStoredValues{"stored_values", "values of the pairs are stored, a part at a time, phi by multiply-adds",
                        stored_values};

}  // namespace mercer::plan
