// Backwards: gradients whose pairs weigh the product of two factors, or a matrix, and what else the same pass yields.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/key.h"
#include "ir/passes/safe_field.h"
#include "ir/passes/split.h"
#include "mercer/pairwise.h"
#include "ops/dump.h"
#include "ops/gpu/cuda_call.h"
#include "ops/pairs/backward_call.h"
#include "ops/pairs/cpu_field.h"
#include "ops/pairs/pair_matrix.h"

namespace mercer {

using ops::PairCall;
using ops::Shape;

namespace {

/// An output of this shape after the batch, `others`: inputs in addition to the call's.
void check_result(const PairCall& call, const Tensor& out, const Shape& shape,
                  const std::vector<const Tensor*>& others) {
  ops::check_output_type(call.op(), out, call.type());
  Shape expected = call.batch();
  expected.insert(expected.end(), shape.begin(), shape.end());
  std::vector<const Tensor*> inputs = call.inputs();
  inputs.insert(inputs.end(), others.begin(), others.end());
  ops::check_output(call.op(), out, expected, inputs);
}

void check_extra(const PairCall& call, const ExtraOutputs& extra, const std::vector<const Tensor*>& inputs) {
  const std::int64_t count = static_cast<std::int64_t>(extra.by.size());
  require((extra.sums != nullptr) == (count > 0),
          "{}: sums must be given where there are leaves that they are by. Received {} leaves.", call.op(), count);
  if (extra.sums != nullptr) check_result(call, *extra.sums, {count, call.m()}, inputs);
  if (extra.by_weights != nullptr) check_result(call, *extra.by_weights, {call.features(), call.m()}, inputs);
}

void check_weight_form(const PairCall& call) {
  const Expr& field = call.formula().field();
  const bool is_zero = field->op == ir::Op::constant && field->value == 0;  // as of an exponent that is 0
  require(is_zero || call.formula().has_weight_form(),
          "{}: a gradient without its factor of w must have one, of terms that are homogeneous in the points. Received "
          "{}.",
          call.op(), call.formula().expression.to_text());
}

/// Where the only output goes.
cuda::FieldJob result_job(const PairCall& call, const Tensor& out) {
  cuda::FieldJob operands;
  operands.out = out.data;
  operands.out_row_stride = out.strides[out.ndim() - 2];
  operands.out_feature_stride = out.strides.back();
  operands.out_batch_strides = ops::batch_strides(out, 2, call.batch());
  return operands;
}

cuda::FieldJob::ExtraOutput extra_output(const PairCall& call, const Tensor* to) {
  if (to == nullptr) return {};
  return {to->data, to->strides[to->ndim() - 2], to->strides.back(), ops::batch_strides(*to, 2, call.batch())};
}

/// A parameter of the formula, or "row".
Expr leaf_named(const Formula::Prepared& formula, const std::string& name) {
  if (name == "row") return row_value();
  return *std::find_if(formula.params.begin(), formula.params.end(),
                       [&](const Expr& leaf) { return leaf->name == name; });
}

ops::PassParts parts_of(const Formula::Prepared& formula, const ops::BackwardCall::Wanted& wanted) {
  ops::SummedLeaves leaves{{}, formula.uses.row, formula.uses.w};
  for (const Expr& leaf : formula.params) leaves.params.push_back(leaf->name);
  return ops::parts_of(leaves, wanted.by, wanted.weights);
}

/// The gradient of a product: weights of the rows [..., M, E] and v [..., N, E], after their checks.
class ProductFactors {
 public:
  ProductFactors(const PairCall& call, const Tensor& weights, const Tensor& v) : weights_(weights), v_(v) {
    require(columns() > 0, "{}: v must have at least one column. Received shape {}.", call.op(),
            ops::text_of(v.shape));
    const auto check = [&](const char* name, const Tensor& factor, std::int64_t points) {
      require(factor.shape[factor.ndim() - 2] == points && factor.shape.back() == columns(),
              "{}: {} must have shape (..., {}, {}). Received {}.", call.op(), name, points, columns(),
              ops::text_of(factor.shape));
      ops::check_device(call.op(), name, factor, call.device());
      ops::check_computing_type(call.op(), name, factor, call.type());
    };
    check("weights", weights, call.m());
    check("v", v, call.n());
  }
  static std::vector<Shape> leading(const char* op, const Tensor& weights, const Tensor& v) {
    ops::check_input(op, "weights", weights, 2);
    ops::check_input(op, "v", v, 2);
    return {ops::leading(weights, 2), ops::leading(v, 2)};
  }

  std::int64_t columns() const { return v_.shape.back(); }
  plan::FieldWeights weights() const { return {plan::FieldWeights::Kind::factors, columns()}; }

  cuda::FieldJob job(const PairCall& call, const Tensor& out) const {
    cuda::FieldJob operands = result_job(call, out);
    const auto operand = [&](const Tensor& factor, std::size_t row, std::size_t column) -> cuda::JobOperand {
      return {{factor.data, factor.dtype, ops::batch_strides(factor, 2, call.batch())},
              factor.strides[factor.ndim() - row],
              factor.strides[factor.ndim() - column]};
    };
    operands.coef = operand(v_, 1, 2);  // outputs, then points
    operands.rows = operand(weights_, 2, 1);
    operands.outputs = columns();
    return operands;
  }

 private:
  const Tensor &weights_, &v_;
};

/// Where the results of a pass go; what is not asked for is null.
struct PassResults {
  const Tensor* out;
  const ExtraOutputs& extra;
};

/// A backward on CPUs, whose fields share the planes of values.
class CpuBackward {
 public:
  CpuBackward(const PairCall& call, const plan::FieldWeights& weights, const plan::SideSums& side_sums,
              Context& context)
      : call_(call), side_sums_(side_sums), factors_(weights.of_matrix() ? 0 : weights.count) {
    const Formula::Prepared& formula = call.formula();
    std::optional<ir::FieldSplit> made;
    const auto split = [&]() -> const ir::FieldSplit& {
      if (!made) made = plan::field_of(formula.expression, formula.field(), side_sums, ir::most_scale(call.type()));
      return *made;
    };
    plan::PairProblem problem = ops::block_problem(call, context);
    const std::string text = cache_key("backward", formula.key, side_sums.names());
    pairs_ = context.state().pairs.get(ops::key_of(text, problem), [&] {
      const auto with_side_sums = [&](std::vector<Expr> values) {
        plan::add_outputs(values, formula.expression, side_sums);
        for (Expr& value : values) value = ir::simplify(value);
        return values;
      };
      problem.outputs = with_side_sums(split().pair_outputs);
      if (!split().again.empty()) problem.again = with_side_sums(split().again);
      return std::make_shared<const cpu::PairProgram>(ops::dumped(plan::plan_pairs(problem)));
    });
    planes_count_ = static_cast<int>(pairs_->plan().problem.outputs.size());
    first_side_plane_ = planes_count_ - static_cast<int>(side_sums.by.size()) - side_sums.product;
    const ops::PlaneShape planes = ops::plane_shape(pairs_.get());
    const auto of_field = [&](Expr ir::FieldSplit::*phi, Expr ir::FieldSplit::*scaled) {
      const std::string key = cache_key(text, phi == &ir::FieldSplit::field, has_plane());
      return ops::cpu_field(key, planes, problem, 1, call.features(), context, [&] {
        ir::FieldSplit field = split();
        if (!field.units.empty()) field.scaled = weighed(field.*scaled);
        field.field = weighed(field.*phi);
        return field;
      });
    };
    const auto of_plane = [&](ops::PlaneShape shape, const Expr& value, std::int64_t features) {
      return ops::cpu_field(cache_key("plane", value.to_text()), shape, problem, 1, features, context, [&] {
        ir::FieldSplit field;
        field.field = value * points().z;
        return field;
      });
    };
    main_ = of_field(&ir::FieldSplit::field, &ir::FieldSplit::scaled);
    if (side_sums.product && factors_ > 1) product_ = of_plane(planes, plane_value(planes_count_ - 1), factors_);
    if (side_sums.weights) extra_ = of_field(&ir::FieldSplit::extra, &ir::FieldSplit::scaled_extra);
    // The contraction of u with v', whose features are the points.
    if (factors_ > 1) factor_ = of_plane({static_cast<int>(factors_), 0}, plane_value(0), planes.width);
  }

  /// `weights` and `v` as product_backward has them; without v, weights of the pairs.
  cpu::GradientItem item(std::int64_t index, const Tensor& weights, const Tensor* v, const PassResults& results) const {
    const auto at = [&](const Tensor& tensor) { return place(index, tensor); };
    cpu::GradientItem item;
    item.item = call_.item(index);
    item.pair_params = call_.values(index, pairs_->plan().general.split.params);
    cpu::Points ones = constant(call_.n()), scale;
    if (v == nullptr) {
      ops::fill_amplitude(item, call_, index, weights);
    } else if (has_plane()) {
      item.factors = {factor_, columns_of(index, weights, call_.m()), columns_of(index, *v, call_.n())};
    } else {
      scale = columns_of(index, weights, call_.m());
    }
    const auto add = [&](const Program& program, const cpu::Points& z, bool is_weighed, void* out,
                         std::int64_t row_stride, std::int64_t feature_stride) -> cpu::FieldItem& {
      cpu::FieldItem& field = item.fields.emplace_back();
      field.program = program;
      field.x.count = call_.m();
      field.z = z;
      const cpu::Points coef = is_weighed && v != nullptr && !has_plane() ? columns_of(index, *v, call_.n()) : ones;
      field.coef = coef.data;
      field.coef_dtype = coef.dtype;
      field.coef_point_stride = coef.point_stride;
      if (is_weighed) field.row_scale = scale;
      field.out = out;
      field.out_row_stride = row_stride;
      field.out_feature_stride = feature_stride;
      return field;
    };
    const auto add_field = [&](const Program& program, const Tensor& out, bool of_rows) {
      std::int64_t row = out.strides[out.ndim() - 2], feature = out.strides.back();
      if (!of_rows) std::swap(row, feature);
      cpu::FieldItem& field = add(program, item.item.z, true, at(out), row, feature);
      field.x = item.item.x;
      field.weights = item.item.weights;
      field.params = call_.values(index, program->plan->params);
    };
    add_field(main_, *results.out, true);
    const cpu::Points single = factors_ == 1 ? columns_of(index, *v, call_.n()) : cpu::Points{};
    for (std::size_t s = 0; s < side_sums_.by.size(); ++s) {
      const Tensor& sums = *results.extra.sums;
      const std::int64_t from = static_cast<std::int64_t>(s) * sums.strides[sums.ndim() - 2];
      const std::int64_t size = static_cast<std::int64_t>(size_of(sums.dtype));
      const int plane = first_side_plane_ + static_cast<int>(s);
      item.sums.push_back(
          {plane, call_.n(), single, scale, static_cast<char*>(at(sums)) + from * size, sums.strides.back()});
    }
    if (side_sums_.product && factors_ == 1) {
      const Tensor& product = *results.extra.product;
      item.sums.push_back({planes_count_ - 1, call_.n(), single, {}, at(product), product.strides[product.ndim() - 2]});
    }
    if (product_) {
      const Tensor& product = *results.extra.product;
      add(product_, columns_of(index, *v, call_.n()), false, at(product), product.strides[product.ndim() - 2],
          product.strides.back());
    }
    if (extra_) add_field(extra_, *results.extra.by_weights, false);
    return item;
  }

  const cpu::PairProgram* pairs() const { return pairs_.get(); }

 private:
  using Program = std::shared_ptr<const cpu::FieldProgram>;

  static Expr plane_value(int plane) { return ir::leaf(ir::Op::pair_value, plane); }
  /// Weights of the pairs are the last plane; one factor needs none: v is the coefficients, u a factor of the rows.
  bool has_plane() const { return factors_ != 1; }
  Expr weighed(const Expr& phi) const { return has_plane() ? plane_value(planes_count_) * phi : phi; }

  void* place(std::int64_t index, const Tensor& tensor) const {
    return ops::element(tensor, call_.offset(index, ops::batch_strides(tensor, 2, call_.batch())));
  }
  cpu::Points columns_of(std::int64_t index, const Tensor& factor, std::int64_t count) const {
    return {place(index, factor), factor.dtype, count, factors_, factor.strides[factor.ndim() - 2],
            factor.strides.back(), {}, 0};
  }
  static cpu::Points constant(std::int64_t count) {
    static constexpr double kOne = 1;
    return {&kOne, Dtype::float64, count, 1, 0, 0, {}, 0};
  }

  const PairCall& call_;
  const plan::SideSums& side_sums_;
  std::int64_t factors_;  // 0: a matrix
  int planes_count_ = 0, first_side_plane_ = 0;  // planes that are made; the first of those that no field reads
  std::shared_ptr<const cpu::PairProgram> pairs_;
  Program main_, product_, extra_, factor_;
};

/// Runs a checked call on CPUs.
void run_on_cpu(const PairCall& call, const plan::FieldWeights& kind, const plan::SideSums& side_sums,
                const Tensor& weights, const Tensor* v, const PassResults& results, const Arguments& arguments,
                Context& context) {
  const CpuBackward backward(call, kind, side_sums, context);
  ops::for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
    cpu::gradient(backward.pairs(), backward.item(index, weights, v, results), run);
  });
}

}  // namespace

namespace ops {

struct BackwardCall::State {
  State(const char* op, const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights_in,
        const Tensor* v_in, const Arguments& arguments_in, const std::vector<Shape>& leading)
      : call(op, f, x, z, arguments_in, false, leading), weights(weights_in), v(v_in), arguments(arguments_in) {}

  PairCall call;
  const Tensor& weights;
  const Tensor* v;
  const Arguments& arguments;
  std::optional<ProductFactors> factors;
  plan::SideSums side_sums;
  std::optional<cuda::PairJob> job;
  plan::GradientPlan way;  // on CUDA

  plan::FieldWeights kind() const {
    return factors ? factors->weights() : plan::FieldWeights{plan::FieldWeights::Kind::matrix};
  }
  bool has_results() const { return call.items() > 0 && call.m() > 0 && call.features() > 0; }

  plan::Request request(Context& context) const {
    plan::Request request = request_of(call, *job, plan::Verb::gradient, context);
    request.columns = kind().count;
    request.gradient = {kind().kind, !factors && weights.dtype != call.type(), plan::StoredValues::padded, side_sums};
    if (!factors) request.gradient.matrix = cuda::lie_of(*job, matrix_operand(call, weights));
    return request;
  }

  void choose(Context& context) {
    job = call.job(context);
    way = std::get<plan::GradientPlan>(choose_way(call, *job, request(context), context).offer.plan);
    side_sums.product = way.product;  // where that is less by itself, the pass goes without
  }

  void run_on_cuda(const Tensor& out, const ExtraOutputs& extra, Context& context) const {
    cuda::FieldJob operands = factors ? factors->job(call, out) : result_job(call, out);
    if (!factors) operands.amplitude = matrix_operand(call, weights);
    if (way.by_points()) {
      operands.v = {job->z.points, job->z.point_stride, job->z.feature_stride};
      operands.columns = job->features;
      return run_gradient(*job, way, operands, context);
    }
    operands.by_matrix = !factors;
    operands.sums = extra_output(call, extra.sums);
    operands.product = extra_output(call, extra.product);
    operands.extra = extra_output(call, extra.by_weights);
    run_gradient(*job, way, operands, context);
  }
};

BackwardCall::BackwardCall(const char* op, const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights,
                           const Tensor* v, const Wanted& wanted, const Arguments& arguments, Context& context)
    : context_(context) {
  if (v == nullptr) check_input(op, "weights", weights, 2);
  const std::vector<Shape> batches =
      v != nullptr ? ProductFactors::leading(op, weights, *v) : std::vector<Shape>{leading(weights, 2)};
  state_ = std::make_unique<State>(op, f, x, z, weights, v, arguments, batches);
  const PairCall& call = state_->call;
  if (v != nullptr) state_->factors.emplace(call, weights, *v);
  else check_matrix(call, "weights", weights);
  if (wanted.without_weight) check_weight_form(call);
  parts_ = call.features() > 0 ? mercer::parts_of(call.formula(), wanted) : PassParts{false, false, false};
  plan::SideSums& side_sums = state_->side_sums;
  if (parts_.sums)
    for (const std::string& name : wanted.by) side_sums.by.push_back(leaf_named(call.formula(), name));
  side_sums.product = wanted.product && parts_.product;
  side_sums.weights = wanted.weights && parts_.weights;
  side_sums.without_weight = wanted.without_weight;
  if (call.on_cuda() && state_->has_results()) state_->choose(context);
  parts_.product = parts_.product && (!wanted.product || side_sums.product);
}

BackwardCall::~BackwardCall() = default;

void BackwardCall::run(const Tensor& out, const ExtraOutputs& results) const {
  const PairCall& call = state_->call;
  std::vector<const Tensor*> inputs{&state_->weights};
  if (state_->v != nullptr) inputs.push_back(state_->v);
  check_result(call, out, {call.m(), call.features()}, inputs);
  check_extra(call, results, inputs);
  if (results.product != nullptr)
    check_result(call, *results.product, {call.m(), state_->factors->columns()}, inputs);
  if (call.ends_checked(out)) return;
  if (call.on_cuda()) return state_->run_on_cuda(out, results, context_);
  mercer::run_on_cpu(call, state_->kind(), state_->side_sums, state_->weights, state_->v, {&out, results},
                     state_->arguments, context_);
}

}  // namespace ops

namespace {

ops::BackwardCall::Wanted wanted_of(const ExtraOutputs& extra) {
  return {extra.by, extra.product != nullptr, extra.by_weights != nullptr, extra.without_weight};
}

bool run_whole(const ops::BackwardCall& call, const Tensor& out, const ExtraOutputs& extra) {
  const ops::PassParts parts = call.parts();
  const bool has_any = parts.sums || parts.weights || parts.product;  // none: of no features
  const bool has_sums = (parts.sums || extra.by.empty()) && (parts.weights || extra.by_weights == nullptr);
  const bool has_all = has_any && has_sums && (parts.product || extra.product == nullptr);
  if (has_all) call.run(out, extra);
  return has_all;
}

}  // namespace

void product_gradient(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights, const Tensor& v,
                      const Tensor& out, const Arguments& arguments, Context& context) {
  ops::BackwardCall("product_gradient", f, x, z, weights, &v, {}, arguments, context).run(out, {});
}

bool product_backward(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights, const Tensor& v,
                      const Tensor& out, const ExtraOutputs& extra, const Arguments& arguments, Context& context) {
  return run_whole({"product_backward", f, x, z, weights, &v, wanted_of(extra), arguments, context}, out, extra);
}

bool pairwise_backward(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights, const Tensor& out,
                       const ExtraOutputs& extra, const Arguments& arguments, Context& context) {
  const char* op = "pairwise_backward";
  require(extra.product == nullptr, "{}: there must be no product. Received one.", op);
  return run_whole({op, f, x, z, weights, nullptr, wanted_of(extra), arguments, context}, out, extra);
}

}  // namespace mercer
