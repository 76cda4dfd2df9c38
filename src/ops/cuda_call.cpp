#include "ops/cuda_call.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "backend/cuda/pair_values.h"
#include "core/error.h"
#include "core/integers.h"
#include "core/key.h"
#include "ops/dump.h"
#include "ops/tuned_plan.h"
#include "plan/gpu/pair_ways.h"
#include "plan/gpu/stored_ways.h"
#include "plan/rank_field.h"
#include "plan/stored_sums.h"
#include "plan/value_products.h"

namespace mercer::ops {
namespace {

/// Plans of a call's formula, which the context keeps.
class KeptPlans : public plan::Planner {
 public:
  KeptPlans(const Formula::Prepared& formula, Context& context) : formula_(formula), context_(context) {}
  const plan::Forms& forms() override { return formula_.forms(); }
  std::shared_ptr<const plan::GpuPairPlan> plan(const plan::GpuPairProblem& problem) override {
    return context_.state().gpu_plans.get(cache_key(formula_.key, problem), [&] {
      plan::GpuPairProblem own = problem;
      own.outputs = {formula_.expression};
      return plan::plan_gpu_pairs(own);
    });
  }

 private:
  const Formula::Prepared& formula_;
  Context& context_;
};

const plan::Costs& costs_of(const cuda::PairJob& job, Context& context) {
  return context.state().costs ? *context.state().costs : plan::costs_of(job.hardware().capability());
}

/// Values of a gradient's pairs.
struct ValuesRequest {
  plan::Request request;
  const plan::Costs& costs;

  ValuesRequest(const PairCall& call, const cuda::PairJob& job, Context& context)
      : request(request_of(call, job, plan::Verb::pairwise, context)), costs(costs_of(job, context)) {
    request.by_value = false;
  }
  plan::GpuPairProblem problem(plan::Consumer consumer) const { return plan::problem_of(request, consumer); }
  plan::GpuPairProblem stored() const {
    plan::GpuPairProblem problem = this->problem(plan::Consumer::store);
    problem.product = plan::values_tile(request, costs);
    problem.plane_product = plan::plane_tile(request, costs);
    return problem;
  }
};

/// What the context has under this key; kernels that were quick ones are full ones from the second call on. A rehearsal
/// that loads nothing leaves nothing there.
template <class Kernels, class Make>
std::shared_ptr<const Kernels> kept(RecentCache<Kernels>& cache, const std::string& key, const cuda::PairJob& job,
                                    const Make& make) {
  const cuda::Rehearsal* rehearsal = job.rehearsal();
  if (rehearsal != nullptr && rehearsal->purpose != cuda::Rehearsal::Purpose::kernels) {
    const bool of_this_device = rehearsal->device == nullptr;
    if (auto known = of_this_device ? cache.find(key) : nullptr) return known;
    return make();
  }
  std::shared_ptr<const Kernels> made;
  auto kernels = cache.get(key, [&] {
    cuda::require_no_capture(job);
    return made = make();
  });
  if (kernels == made || !kernels->are_quick()) return kernels;  // or those of a first call on another thread
  kernels = cuda::finish_kernels(*kernels, job);
  cache.replace(key, kernels);
  return kernels;
}

RecentCache<cuda::PairKernels>& pairs_of(const cuda::PairJob& job, Context& context) {
  return job.queue->trial != nullptr ? job.queue->trial->pairs : context.state().cuda_pairs;
}

/// A field of stored values of the pairs. `amplitude`: of one more plane, which the caller gives.
struct FieldUse {
  std::int64_t outputs = 1;
  bool amplitude = false, may_be_linear = true, may_be_products = true;
};

std::shared_ptr<const cuda::FieldKernels> field_kernels(const std::string& text, const cuda::PairJob& job,
                                                        const FieldUse& use, Context& context,
                                                        const std::function<ir::FieldSplit()>& field) {
  plan::GpuFieldProblem problem;
  problem.type = job.type;
  problem.outputs = static_cast<int>(std::min(use.outputs, plan::kFieldOutputs));
  const bool pays =
      use.may_be_products && job.type == Dtype::float32 && job.hardware().capability() == 90 &&
      context.precision() != Precision::direct &&
      plan::pays_field_products(job.x.count, job.z.count, job.features, costs_of(job, context).tensor_cores_from);
  problem.product_outputs = pays ? plan::most_product_outputs(use.outputs) : 0;
  problem.cluster = pays && ceil_div(job.features, plan::kFieldTileFeatures) % 2 == 0 ? 2 : 1;
  problem.thread_features = plan::thread_features(job.features);
  problem.capability = job.hardware().capability();
  if (job.type == Dtype::float32 && use.may_be_linear)
    problem.linear = plan::linear_tile(
        job.x.count, job.z.count, job.features,
        plan::linear_sizes(job.x.count, job.z.count, job.features, use.outputs, job.part_bytes), context.precision(),
        job.hardware().multiprocessors, costs_of(job, context).tensor_cores_from);
  problem.linear.by_warps = context.state().products_by_warps;
  const std::string key = cache_key(text, job.type, problem.outputs, problem.product_outputs, problem.cluster,
                                    problem.thread_features, problem.linear, job.device);
  return kept(context.state().cuda_fields, key, job, [&] {
    problem.field = field();
    problem.planes = static_cast<int>(problem.field.pair_outputs.size()) + use.amplitude;
    problem.shared_per_block = job.hardware().shared_per_block;
    return cuda::compile_field_kernels(plan::plan_gpu_field(problem), job, cuda::FirstCall::quick);
  });
}

bool has_value_as_factor(const Expr& amplitude) {
  if (amplitude->op == ir::Op::pair_value) return amplitude->slot == 0;
  if (amplitude->op != ir::Op::mul && amplitude->op != ir::Op::neg) return false;
  return std::any_of(amplitude->args.begin(), amplitude->args.end(), has_value_as_factor);
}

/// Whether a distance is zero where the points are the same and nowhere else.
bool is_distance_of_points(const Expr& sum) {
  const ir::Split split = ir::split({sum});
  const plan::Bilinear squares = plan::bilinear_of(split);
  const bool of_squares =
      squares.kind == plan::BilinearKind::square && !squares.weighted() && squares.uniforms.empty();
  return (of_squares || plan::factor_of_absolute_differences(split) > 0) && split.x_streams[0]->op == ir::Op::x &&
         split.z_streams[0]->op == ir::Op::z;
}

/// An amplitude of differences or signs that are zero where the points are the same has no part in the field; but it
/// might be so much larger than the others that their digits were lost beside it. `at_zero`: what it is there, if it
/// is finite.
Expr without_duplicates(const Expr& amplitude, const Expr& at_zero) {
  Expr distance;
  int reductions = 0;
  ir::for_each(amplitude, [&](const Expr& node) {
    if (node->op != ir::Op::sum) return;
    distance = node;
    ++reductions;
  });
  if (reductions != 1 || !is_distance_of_points(distance)) return amplitude;
  return ir::simplify(where(equal(distance, 0.0), at_zero, amplitude));
}

}  // namespace

plan::Request request_of(const PairCall& call, const cuda::PairJob& job, plan::Verb verb, Context& context) {
  const CudaDevice& device = job.hardware();
  plan::Request request;
  request.verb = verb;
  request.m = job.x.count;
  request.n = job.z.count;
  request.k = job.features;
  request.type = request.out = job.type;
  request.points = job.x.points.dtype;
  request.symmetric = call.symmetric();
  request.by_value =
      std::all_of(job.params.begin(), job.params.end(), [](const cuda::JobParam& param) { return param.is_number(); });
  request.precision = context.precision();
  request.part_bytes = job.part_bytes;
  request.device = {device.capability(), device.multiprocessors, device.shared_per_block,
                    context.state().products_by_warps};
  return request;
}

plan::Choice choose_way(const PairCall& call, const cuda::PairJob& job, const plan::Request& request,
                        Context& context) {
  KeptPlans plans(call.formula(), context);
  const plan::ForcedWays* forced = context.state().forced_ways.load();
  plan::Choice choice = plan::choose(request, costs_of(job, context), *forced, plans);
  if (cuda::Rehearsal* rehearsal = job.rehearsal()) rehearsal->ways.emplace_back(choice.way->name);
  return choice;
}

std::shared_ptr<const cuda::PairKernels> few_features_kernels(const PairCall& call, const cuda::PairJob& job,
                                                              const plan::FieldWeights& weights, Context& context,
                                                              const FurtherSums& further) {
  const Formula::Prepared& formula = call.formula();
  if (formula.is_field || job.features < 1 || job.features > plan::kFewFeatures) return nullptr;
  plan::GpuPairProblem problem = ValuesRequest(call, job, context).problem(plan::Consumer::field);
  problem.bytes = false;
  problem.sizes.pairs = plan::GpuSizes::Pairs::many;
  plan::GpuFieldProblem field;
  field.type = job.type;
  field.outputs = plan::few_features_outputs(weights, job.features);
  field.few_features = true;
  field.weights = weights.kind;
  field.sums = static_cast<int>(further.by.size());
  field.with_product = further.product;
  field.features = further.weights ? static_cast<int>(job.features) : 0;
  field.capability = job.hardware().capability();
  const std::string key = cache_key("field of few features", formula.key, job.type, job.x.points.dtype, job.device,
                                    problem.sizes.exact_features, field.outputs, static_cast<int>(weights.kind),
                                    further.names());
  const auto fits = [&](const plan::GpuPairPlan& plan) {
    return plan::few_features_bytes(plan) <= problem.shared_per_block;
  };
  const auto kernels = kept(pairs_of(job, context), key, job, [&] {
    field.field = field_of(formula, further);
    field.planes = static_cast<int>(field.field.pair_outputs.size());
    problem.outputs = field.field.pair_outputs;
    add_outputs(problem.outputs, formula.expression, further);
    if (problem.outputs.empty()) problem.outputs = {0.0};
    problem.field = plan::plan_gpu_field(field);
    const auto plan = plan::plan_gpu_pairs(problem);
    if (fits(*plan)) return cuda::compile_pair_kernels(plan, job.type, job, cuda::FirstCall::quick);
    auto without = std::make_shared<cuda::PairKernels>();
    without->plan = plan;
    return std::shared_ptr<const cuda::PairKernels>(without);
  });
  return fits(*kernels->plan) ? kernels : nullptr;  // shared memory may have no room
}

std::shared_ptr<const cuda::PairKernels> rank_field_kernels(const PairCall& call, const cuda::PairJob& job,
                                                            const plan::FieldWeights& weights, Context& context,
                                                            const FurtherSums& further) {
  constexpr std::int64_t kFeaturesOfBlock = 64;
  const Formula::Prepared& formula = call.formula();
  if (formula.is_field || job.type != Dtype::float32 || context.state().products_by_warps) return nullptr;
  if (job.hardware().capability() != plan::kOfWarpgroups) return nullptr;
  const std::int64_t outputs = weights.of_outputs() ? weights.count : 1;
  const bool beside = further.product && weights.count > 1;
  if (beside && weights.count > plan::kMostBeside) return nullptr;
  const int sums = static_cast<int>(further.by.size()) + (further.product && !beside);
  const auto tile = [&](std::int64_t columns) {
    plan::BilinearTile tile = plan::rank_field_tile(job.x.count, job.z.count, job.features,
                                                    plan::rank_outputs(outputs, columns) * columns, weights,
                                                    context.precision(), costs_of(job, context).tensor_cores_from,
                                                    beside);
    if (tile) tile.further = sums;
    return tile;
  };
  if (!tile(job.features + 1) || !plan::pays_rank_outputs(outputs, job.features + 1)) return nullptr;
  plan::GpuPairProblem problem = ValuesRequest(call, job, context).problem(plan::Consumer::product);
  const int feature_blocks = static_cast<int>(ceil_div(job.features, kFeaturesOfBlock));
  const std::string key = cache_key("field that weighs products", formula.key, job.type, job.x.points.dtype, job.device,
                                    problem.sizes, tile(job.features), tile(job.features + 1), feature_blocks,
                                    further.names());
  const auto kernels = kept(pairs_of(job, context), key, job, [&] {
    auto field = std::make_shared<plan::RankField>(plan::rank_field_of(field_of(formula, further)));
    auto kernels = std::make_shared<cuda::PairKernels>();
    if (!*field) return std::shared_ptr<const cuda::PairKernels>(kernels);
    if (field->of_differences) field->amplitude = without_duplicates(field->amplitude, 0.0);
    field->feature_blocks = feature_blocks;
    problem.outputs = {field->amplitude};
    add_outputs(problem.outputs, formula.expression, further);
    problem.product = tile(field->columns(job.features));
    // The tile has the points' sums, of which some value must be made: of functions linear in them one nobody asks for.
    if (!ir::reads_pairs(field->amplitude) && !further.any()) {
      problem.outputs.push_back(formula.expression);
      problem.product.further = 1;
    }
    problem.columns = problem.product.wide;
    problem.rank_field = std::move(field);
    const auto plan = plan::plan_gpu_pairs(problem);
    if (plan->bilinear) return cuda::compile_pair_kernels(plan, job.type, job, cuda::FirstCall::quick);
    return std::shared_ptr<const cuda::PairKernels>(kernels);
  });
  return kernels->plan ? kernels : nullptr;
}

namespace {

/// What a field's pairs are stored as. The one beside need not be zero where the points are the same.
std::vector<Expr> values_of(const plan::GpuFieldPlan& field) {
  std::vector<Expr> values = field.problem.field.pair_outputs;
  if (!field.problem.field.beside.empty()) return values;
  const bool is_factor = values.size() == 1 && field.factors && has_value_as_factor(field.factors.amplitude);
  if (field.linear && field.of_differences() && is_factor)
    values[0] = without_duplicates(values[0], 0.0);
  else if (field.has_units() && is_factor)
    values[0] = without_duplicates(values[0], values[0] * 0.0);
  return values;
}

/// Those, made some rows at a time, with further sums beside; kernels without a plan where these cannot be had so.
std::shared_ptr<const cuda::PairKernels> stored_values(const PairCall& call, const cuda::PairJob& job,
                                                       const plan::GpuFieldPlan& field, std::int64_t factors,
                                                       Context& context, const FurtherSums& further) {
  const Formula::Prepared& formula = call.formula();
  plan::GpuPairProblem problem = ValuesRequest(call, job, context).stored();
  const std::int64_t columns = further.product ? factors : 0;
  const auto pays = [&](bool of_products) {
    return columns == 0 ||
           plan::pays_product_beside(costs_of(job, context), job.type, job.features, columns, of_products);
  };
  const std::string key = cache_key(
      formula.is_fold ? "values of a fold" : formula.is_field ? "values of a field" : "values of a gradient",
      formula.key, job.type, job.x.points.dtype,
      problem.bytes, job.device, problem.product, problem.plane_product, problem.sizes, field.linear != nullptr,
      field.has_units(), further.names(), plan::columns_at_once(columns), pays(false), pays(true));
  return kept(pairs_of(job, context), key, job, [&] {
    problem.outputs = values_of(field);
    if (further.has_sums()) {
      std::vector<Expr> beside;
      add_outputs(beside, formula.expression, further);
      problem.stored_sums = plan::plan_stored_sums(problem.outputs, beside, columns, job.type);
      problem.outputs = problem.stored_sums->split.reductions;
      const bool of_products = problem.product && plan::bilinear_of(ir::split(problem.outputs));
      if (!pays(of_products))
        return std::shared_ptr<const cuda::PairKernels>(std::make_shared<cuda::PairKernels>());
    }
    const auto plan = dumped(plan_for(plan::plan_gpu_pairs(problem), job));
    return cuda::compile_pair_kernels(plan, job.type, job, cuda::FirstCall::quick);
  });
}

/// Functions of row and col are cheap to read for each feature, but where the rest is x - z or z, a product of matrices
/// is much less than what reads them.
ir::FieldSplit amplitude_field(const Expr& phi, Dtype type) {
  const bool keep_ptx = type == Dtype::float32;
  const ir::FieldSplit field = ir::split_amplitude_field(phi, false, {.keep_ptx = keep_ptx});
  if (plan::factors_of(field.field)) return field;
  const ir::FieldSplit stored = ir::split_amplitude_field(phi, true, {.keep_ptx = keep_ptx});
  return plan::factors_of(stored.field).linear == plan::FieldFactors::Linear::none ? field : stored;
}

/// Of pairs that are stored; weights of their own are an amplitude.
CudaGradient gradient_of_parts(const PairCall& call, const cuda::PairJob& job, const plan::FieldWeights& weights,
                               Context& context, const FurtherSums& further) {
  const Formula::Prepared& formula = call.formula();
  const bool weighs = !weights.of_outputs() && (weights.of_matrix() || weights.count > 1);
  FieldUse use{weights.of_outputs() ? weights.count : 1,
               (formula.is_field && formula.reads_amplitude) || weighs, !formula.is_fold, !formula.is_fold};
  CudaGradient gradient;
  const auto weighed = [&](ir::FieldSplit field, const Expr& phi) {
    const Expr weight = ir::leaf(ir::Op::pair_value, static_cast<int>(field.pair_outputs.size()));
    field.field = weighs ? weight * phi : phi;
    return field;
  };
  const std::string text = cache_key(static_cast<int>(formula.form), weighs, further.without_weight, further.weights,
                                     formula.key);
  gradient.field = field_kernels(text, job, use, context, [&] {
    if (formula.is_fold) return ir::split_fold(formula.expression);
    if (formula.is_field) return amplitude_field(formula.expression, job.type);
    const ir::FieldSplit field = field_of(formula, further);
    return weighed(field, field.field);
  });
  const plan::GpuFieldPlan& plan = *gradient.field->plan;
  if (further.weights) {
    use.may_be_linear = plan.linear != nullptr;  // ranges of z and their rows are those of the gradient's own field
    gradient.beside = field_kernels(cache_key("beside", text, use.may_be_linear), job, use, context, [&] {
      const ir::FieldSplit field = field_of(formula, further);
      return weighed(field, field.beside);
    });
  }
  if (plan.problem.field.pair_outputs.empty() && !further.has_sums()) return gradient;
  gradient.pairs = stored_values(call, job, plan, weights.count, context, further);
  return gradient.pairs->plan ? gradient : CudaGradient{};
}

}  // namespace

CudaGradient cuda_gradient(const PairCall& call, const cuda::PairJob& job, std::int64_t outputs, Context& context) {
  const plan::FieldWeights weights{plan::FieldWeights::Kind::coefficients, outputs};
  CudaGradient gradient;
  gradient.pairs = few_features_kernels(call, job, weights, context);
  if (!gradient.pairs) gradient.pairs = rank_field_kernels(call, job, weights, context);
  return gradient.pairs ? gradient : gradient_of_parts(call, job, weights, context, {});
}

CudaGradient stored_gradient(const PairCall& call, const cuda::PairJob& job, const plan::FieldWeights& weights,
                             Context& context, const FurtherSums& further) {
  return gradient_of_parts(call, job, weights, context, further);
}

namespace {

std::shared_ptr<const cuda::FieldKernels> product_kernels(plan::GpuFieldProblem field, const cuda::PairJob& job,
                                                          Context& context) {
  const int columns = job.type == Dtype::float32 ? 0 : field.columns_of_doubles;
  const std::string text = cache_key("product of values", job.type, field.linear, field.stored,
                                     static_cast<int>(field.lie), columns, job.device);
  return kept(context.state().cuda_fields, text, job, [&] {
    field.field = plan::value_product_field();
    field.planes = 1;
    field.shared_per_block = job.hardware().shared_per_block;
    return cuda::compile_field_kernels(plan::plan_gpu_field(field), job, cuda::FirstCall::quick);
  });
}

}  // namespace

CudaGradient stored_product(const PairCall& call, const cuda::PairJob& job, const plan::StoredPlan& plan,
                            Context& context) {
  CudaGradient product;
  product.pairs = cuda_kernels(call, job, plan.pairs, job.type, context);
  product.field = product_kernels(plan.product, job, context);
  return product;
}

CudaGradient matrix_gradient(const PairCall& call, const cuda::PairJob& job, const cuda::JobOperand& matrix,
                             Context& context) {
  constexpr std::int64_t kLeastPoints = 1024;
  const Formula::Prepared& formula = call.formula();
  if (formula.is_field || formula.field()->op != ir::Op::z || job.features <= plan::kFewFeatures) return {};
  if (context.precision() == Precision::direct || call.n() == 0) return {};
  if (costs_of(job, context).tensor_cores_from > 0 && std::min(call.m(), call.n()) < kLeastPoints) return {};
  auto field = plan::product_of_values(ValuesRequest(call, job, context).request, job.features);
  if (!field || field->linear) return {};  // with the points in place of v, a linear field has no more to do
  if (field->stored) field->lie = cuda::lie_of(job, matrix);
  return {nullptr, product_kernels(*field, job, context), nullptr};
}

std::shared_ptr<const cuda::PairKernels> cuda_kernels(const PairCall& call, const cuda::PairJob& job,
                                                      plan::GpuPairProblem problem, Dtype out, Context& context,
                                                      cuda::FirstCall first) {
  const auto compiled = [&](bool normal_reciprocals) {
    problem.normal_reciprocals = normal_reciprocals;
    const std::string key = cache_key(call.formula().key, problem, out, job.device);
    auto kernels = kept(pairs_of(job, context), key, job, [&] {
      KeptPlans plans(call.formula(), context);
      return cuda::compile_pair_kernels(dumped(plan_for(plans.plan(problem), job)), out, job, first);
    });
    if (kernels->bare && first != cuda::FirstCall::on_bare_sums)
      fail(ErrorKind::compile,
           "{}: the formula's kernels must compile; calls of pairwise go on without. Received an error, which the log "
           "has as a warning.",
           job.op);
    return kernels;
  };
  if (problem.normal_reciprocals) {
    auto kernels = compiled(true);
    const auto is_normal = [&](const auto& own) { return cuda::reciprocals_are_normal(*own->plan, job); };
    if (is_normal(kernels) && std::all_of(kernels->sums.begin(), kernels->sums.end(), is_normal)) return kernels;
  }
  return compiled(false);
}

}  // namespace mercer::ops
