// Gradients: a first sweep over the features makes what the pair contributes, a second one contracts it with φ. They
// are planned apart: a pair plan and a field plan under one key.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "core/error.h"
#include "core/key.h"
#include "ir/split.h"
#include "mercer/pairwise.h"
#include "ops/coefficients.h"
#include "ops/cuda_call.h"
#include "ops/dump.h"

namespace mercer {
namespace {

using ops::PairCall;
using ops::Shape;

/// Columns n that a block of pair values holds, about.
constexpr int kBlockColumns = 192;

/// The shapes around coef and out [..., O, M, K] or [..., M, K].
struct Contraction : ops::Coefficients {
  int out_axes;

  Contraction(const char* op, const Tensor& coef) : Coefficients(op, coef), out_axes(single ? 2 : 3) {}

  void check(const PairCall& call, const Tensor& coef, const Tensor& out, std::vector<const Tensor*> inputs) const {
    Coefficients::check(call, coef);
    ops::check_output_type(call.op(), out, call.type());
    Shape expected = call.batch();
    if (!single) expected.push_back(outputs);
    expected.insert(expected.end(), {call.m(), call.features()});
    inputs.push_back(&coef);
    ops::check_output(call.op(), out, expected, inputs);
  }

  void fill(cpu::FieldItem& item, const PairCall& call, std::int64_t index, const Tensor& coef,
            const Tensor& out) const {
    item.coef = ops::element(coef, call.offset(index, ops::batch_strides(coef, axes, call.batch())));
    item.coef_dtype = coef.dtype;
    item.outputs = outputs;
    item.coef_output_stride = single ? 0 : coef.strides[coef.ndim() - 2];
    item.coef_point_stride = coef.strides.back();
    item.out = ops::element(out, call.offset(index, ops::batch_strides(out, out_axes, call.batch())));
    item.out_output_stride = single ? 0 : out.strides[out.ndim() - 3];
    item.out_row_stride = out.strides[out.ndim() - 2];
    item.out_feature_stride = out.strides.back();
  }

  cuda::FieldJob job(const PairCall& call, const Tensor& coef, const Tensor& out) const {
    cuda::FieldJob job;
    job.coef.array = {coef.data, coef.dtype, ops::batch_strides(coef, axes, call.batch())};
    job.coef.row_stride = single ? 0 : coef.strides[coef.ndim() - 2];
    job.coef.col_stride = coef.strides.back();
    job.outputs = outputs;
    job.out = out.data;
    job.out_output_stride = single ? 0 : out.strides[out.ndim() - 3];
    job.out_row_stride = out.strides[out.ndim() - 2];
    job.out_feature_stride = out.strides.back();
    job.out_batch_strides = ops::batch_strides(out, out_axes, call.batch());
    return job;
  }
};

/// What the CPU runs: the pair values of φ, where it has any, then φ over n.
struct Programs {
  std::shared_ptr<const cpu::PairProgram> pairs;
  std::shared_ptr<const cpu::FieldProgram> field;

  cpu::FieldItem item(const PairCall& call, std::int64_t index) const {
    cpu::FieldItem item;
    item.item = call.item(index);
    if (pairs) item.pair_params = call.values(index, pairs->plan().general.split.params);
    item.field_params = call.values(index, field->plan->params);
    return item;
  }
};

/// Of the gradient of a formula, or of a field whose amplitude the caller gives.
Programs make_programs(const PairCall& call, std::int64_t outputs, Context& context) {
  Context::State& state = context.state();
  const Formula::Prepared& formula = call.formula();
  const auto split = [&] {
    return formula.is_field ? ir::split_amplitude_field(formula.expression) : ir::split_field(formula.field());
  };
  plan::PairProblem problem = ops::pair_problem(call, context);
  problem.block_columns = kBlockColumns;
  const std::string text = cache_key(formula.is_field, formula.key, outputs, call.features());
  const std::string key = ops::key_of(text, problem);
  Programs programs;
  if (!formula.is_field || formula.reads_pairs) {
    programs.pairs = state.pairs.get(key, [&] {
      problem.outputs = split().pair_outputs;
      return std::make_shared<const cpu::PairProgram>(ops::dumped(plan::plan_pairs(problem)));
    });
  }
  programs.field = state.fields.get(key, [&] {
    plan::FieldProblem second;
    second.type = problem.type;
    second.target = problem.target;
    second.outputs = outputs;
    second.features = call.features();
    second.field = split();
    second.n_capacity = kBlockColumns;
    if (programs.pairs) {  // their tile decides how many columns a block of values holds
      second.n_capacity = static_cast<int>(programs.pairs->plan().plane_width());
      second.pair_stride = programs.pairs->plan().tile.rows * second.n_capacity;
    }
    return std::make_shared<const cpu::FieldProgram>(ops::dumped(plan::plan_field(second)));
  });
  return programs;
}

/// Features that are fewer than a vector of a CPU: as products over n, feature by feature, vectors go along n. Each
/// makes the pair's sums anew. Milliseconds of 4000 x 4000 pairs, float32, two cores of Zen 5: of a product's pairs,
/// of each of its columns, of a field's pairs and of each of its outputs; where terms are short, and where not.
struct FieldCosts {
  double product, column, field, output;
};
constexpr FieldCosts kShortTerms{1.9, 0.1, 3.2, 2.3}, kLongTerms{8, 0.15, 22, 2.6};
constexpr std::int64_t kLeastPairsOfProducts = 1 << 14, kMostFeaturesOfProducts = 8;

bool has_short_terms(const Expr& formula) {
  using ir::Op;
  constexpr Op kShort[] = {Op::add, Op::sub, Op::mul, Op::neg, Op::abs, Op::min, Op::max};
  bool all = true;
  ir::for_each(formula, [&](const Expr& e) {
    if (!ir::is_reduction(e->op)) return;
    ir::for_each(e->args[0], [&](const Expr& part) {
      const bool is_short = std::find(std::begin(kShort), std::end(kShort), part->op) != std::end(kShort);
      all = all && (ir::is_leaf(part->op) || is_short);
    });
  });
  return all;
}

/// The values at one place of the last axis.
Tensor at(Tensor view, std::int64_t place) {
  view.data = static_cast<char*>(view.data) +
              place * view.strides.back() * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape.pop_back();
  view.strides.pop_back();
  return view;
}

/// The last two axes exchanged.
Tensor transposed(Tensor view) {
  const std::size_t axes = view.shape.size();
  std::swap(view.shape[axes - 1], view.shape[axes - 2]);
  std::swap(view.strides[axes - 1], view.strides[axes - 2]);
  return view;
}

bool pays_products(const PairCall& call, const Formula& f, const Tensor& x, const Tensor* z,
                   std::int64_t outputs) {
  const bool are_values = x.dtype == call.type() && (z == nullptr || z->dtype == call.type());
  if (!are_values || call.features() > kMostFeaturesOfProducts || call.m() * call.n() < kLeastPairsOfProducts)
    return false;
  const FieldCosts& costs = has_short_terms(f.expression()) ? kShortTerms : kLongTerms;
  const double features = static_cast<double>(call.features()), columns = static_cast<double>(outputs);
  if (features * (costs.product + columns * costs.column) >= costs.field + columns * costs.output) return false;
  return f.prepared().of_feature() != nullptr;
}

void gradient_by_products(const char* op, const Formula& f, const Tensor& x, const Tensor* z, const Tensor& coef,
                          bool is_single, const Tensor& out, const Arguments& arguments, Context& context) {
  const ir::Uses& uses = f.prepared().of_feature()->prepared().uses;
  Arguments of_feature = arguments;
  of_feature.verb = op;
  const std::int64_t features = x.shape.back();
  for (std::int64_t k = 0; k < features; ++k) {
    if (arguments.progress)
      of_feature.progress = [&, k](double done, double total) {
        return arguments.progress(static_cast<double>(k) * total + done, static_cast<double>(features) * total);
      };
    if (uses.row) of_feature.row = at(x, k);
    if (uses.col) of_feature.col = at(z != nullptr ? *z : x, k);
    const Tensor to = at(out, k);
    kernel_product(*f.prepared().of_feature(), x, z, is_single ? coef : transposed(coef),
                   is_single ? to : transposed(to), of_feature, context);
  }
}

}  // namespace

void kernel_gradient(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& coef, const Tensor& out,
                     const Arguments& arguments, Context& context) {
  const char* op = "kernel_gradient";
  const Contraction contraction(op, coef);
  const PairCall call(op, f, x, z, arguments, false, {ops::leading(coef, contraction.axes)});
  contraction.check(call, coef, out, call.inputs());
  if (call.ends_checked(out)) return;
  if (call.on_cuda()) {
    const cuda::PairJob job = call.job(context);
    const auto kernels = ops::cuda_gradient(call, job, contraction.outputs, context);
    return cuda::gradient(kernels.pairs.get(), kernels.field.get(), job, contraction.job(call, coef, out));
  }
  if (pays_products(call, f, x, z, contraction.outputs))
    return gradient_by_products(op, f, x, z, coef, contraction.single, out, arguments, context);
  const Programs programs = make_programs(call, contraction.outputs, context);
  ops::for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
    cpu::FieldItem item = programs.item(call, index);
    contraction.fill(item, call, index, coef, out);
    cpu::gradient(programs.pairs.get(), *programs.field, item, run);
  });
}

namespace {

void require_cuda(const PairCall& call) {
  require(call.on_cuda(), "{}: points must lie on CUDA. Received points on {}.", call.op(), call.device());
}

/// A value for each pair.
void check_matrix(const PairCall& call, const char* name, const Tensor& matrix) {
  require(matrix.shape[matrix.ndim() - 2] == call.m() && matrix.shape.back() == call.n(),
          "{}: {} must have shape (..., {}, {}). Received {}.", call.op(), name, call.m(), call.n(),
          ops::text_of(matrix.shape));
  ops::check_device(call.op(), name, matrix, call.device());
  ops::check_computing_type(call.op(), name, matrix, call.type());
}

cuda::JobOperand matrix_operand(const PairCall& call, const Tensor& matrix) {
  return {{matrix.data, matrix.dtype, ops::batch_strides(matrix, 2, call.batch())},
          matrix.strides[matrix.ndim() - 2],
          matrix.strides.back()};
}

/// An output of this shape behind the batch, `further` inputs beside the call's.
void check_result(const PairCall& call, const Tensor& out, const Shape& shape,
                  const std::vector<const Tensor*>& further) {
  ops::check_output_type(call.op(), out, call.type());
  Shape expected = call.batch();
  expected.insert(expected.end(), shape.begin(), shape.end());
  std::vector<const Tensor*> inputs = call.inputs();
  inputs.insert(inputs.end(), further.begin(), further.end());
  ops::check_output(call.op(), out, expected, inputs);
}

void check_beside(const PairCall& call, const BesideGradient& beside, const std::vector<const Tensor*>& inputs) {
  const std::int64_t count = static_cast<std::int64_t>(beside.by.size());
  require((beside.sums != nullptr) == (count > 0),
          "{}: sums must be given where there are leaves that they are by. Received {} leaves.", call.op(), count);
  if (beside.sums != nullptr) check_result(call, *beside.sums, {count, call.m()}, inputs);
  if (beside.by_weights != nullptr) check_result(call, *beside.by_weights, {call.features(), call.m()}, inputs);
  if (!beside.without_weight) return;
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

cuda::FieldJob::Further further_output(const PairCall& call, const Tensor* to) {
  if (to == nullptr) return {};
  return {to->data, to->strides[to->ndim() - 2], to->strides.back(), ops::batch_strides(*to, 2, call.batch())};
}

/// A parameter of the formula, or "row"; empty where it reads none of that name.
Expr leaf_named(const Formula::Prepared& formula, const std::string& name) {
  if (name == "row") return formula.uses.row ? row_value() : Expr();
  for (const Expr& leaf : formula.params)
    if (leaf->name == name) return leaf;
  return {};
}

/// Nothing where no pass has them.
std::optional<ops::FurtherSums> further_sums(const PairCall& call, const BesideGradient& beside) {
  constexpr std::size_t kMostSums = 8;  // beside a pass, for registers
  if (beside.by.size() > kMostSums || call.features() == 0) return {};
  if (beside.by_weights != nullptr && !call.formula().uses.w) return {};
  ops::FurtherSums further{{}, beside.product != nullptr, beside.by_weights != nullptr, beside.without_weight};
  for (const std::string& name : beside.by) {
    // An exponent that is a number is none of the running formula's parameters.
    const Expr leaf = leaf_named(call.formula(), name);
    if (leaf.empty()) return {};
    further.by.push_back(leaf);
  }
  return further;
}

/// One pass over the pairs; nothing where it cannot have all of that.
std::optional<ops::CudaGradient> weighed_gradient(const PairCall& call, const cuda::PairJob& job,
                                                  const plan::FieldWeights& weights, const ops::FurtherSums& further,
                                                  Context& context) {
  ops::CudaGradient kernels;
  kernels.pairs = ops::few_features_kernels(call, job, weights, context, further);
  if (!kernels.pairs && further.weights) return {};
  if (!kernels.pairs) kernels.pairs = ops::rank_field_kernels(call, job, weights, context, further);
  if (kernels.pairs) return kernels;
  // Products make less of a pass than storing its pairs does, where the product with v is all that is too much.
  ops::FurtherSums without_product = further;
  without_product.product = false;
  if (further.product && ops::rank_field_kernels(call, job, weights, context, without_product)) return {};
  kernels = ops::stored_gradient(call, job, weights, context, further);
  if (!kernels.field) return {};
  return kernels;
}

/// The gradient of a product: weights of the rows [..., M, E] and v [..., N, E], after their checks.
class ProductFactors {
 public:
  ProductFactors(const PairCall& call, const Tensor& weights, const Tensor& v) : weights_(weights), v_(v) {
    require_cuda(call);
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

}  // namespace

void product_gradient(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights, const Tensor& v,
                      const Tensor& out, const Arguments& arguments, Context& context) {
  const char* op = "product_gradient";
  const PairCall call(op, f, x, z, arguments, false, ProductFactors::leading(op, weights, v));
  const ProductFactors factors(call, weights, v);
  check_result(call, out, {call.m(), call.features()}, {&weights, &v});
  if (call.ends_checked(out)) return;
  const cuda::PairJob job = call.job(context);
  const auto kernels = *weighed_gradient(call, job, factors.weights(), {}, context);
  cuda::gradient(kernels.pairs.get(), kernels.field.get(), job, factors.job(call, out));
}

bool product_backward(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights, const Tensor& v,
                      const Tensor& out, const BesideGradient& beside, const Arguments& arguments, Context& context) {
  const char* op = "product_backward";
  const PairCall call(op, f, x, z, arguments, false, ProductFactors::leading(op, weights, v));
  const ProductFactors factors(call, weights, v);
  const std::vector<const Tensor*> inputs{&weights, &v};
  check_result(call, out, {call.m(), call.features()}, inputs);
  check_beside(call, beside, inputs);
  if (beside.product != nullptr) check_result(call, *beside.product, {call.m(), factors.columns()}, inputs);
  auto further = further_sums(call, beside);
  if (!further) return false;
  if (call.ends_checked(out)) return true;
  const cuda::PairJob job = call.job(context);
  const auto kernels = weighed_gradient(call, job, factors.weights(), *further, context);
  if (!kernels) return false;
  cuda::FieldJob operands = factors.job(call, out);
  operands.sums = further_output(call, beside.sums);
  operands.product = further_output(call, beside.product);
  operands.beside = further_output(call, beside.by_weights);
  cuda::gradient(kernels->pairs.get(), kernels->field.get(), job, operands);
  return true;
}

bool pairwise_backward(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights, const Tensor& out,
                       const BesideGradient& beside, const Arguments& arguments, Context& context) {
  const char* op = "pairwise_backward";
  ops::check_input(op, "weights", weights, 2);
  const PairCall call(op, f, x, z, arguments, false, {ops::leading(weights, 2)});
  require_cuda(call);
  require(beside.product == nullptr, "{}: there must be no product. Received one.", op);
  check_matrix(call, "weights", weights);
  const std::vector<const Tensor*> inputs{&weights};
  check_result(call, out, {call.m(), call.features()}, inputs);
  check_beside(call, beside, inputs);
  auto further = further_sums(call, beside);
  if (!further) return false;
  if (call.ends_checked(out)) return true;
  const cuda::PairJob job = call.job(context);
  const auto kernels = weighed_gradient(call, job, {plan::FieldWeights::Kind::matrix}, *further, context);
  if (!kernels) return false;
  cuda::FieldJob operands = result_job(call, out);
  operands.amplitude = matrix_operand(call, weights);
  operands.by_matrix = true;
  operands.sums = further_output(call, beside.sums);
  operands.beside = further_output(call, beside.by_weights);
  cuda::gradient(kernels->pairs.get(), kernels->field.get(), job, operands);
  return true;
}

void gradient_field(const Expr& phi, const Tensor& x, const Tensor& z, const Tensor& amplitude, const Tensor& coef,
                    const Tensor& out, const Arguments& arguments, Context& context) {
  gradient_field(Formula::field(phi), x, z, amplitude, coef, out, arguments, context);
}

void gradient_field(const Formula& field, const Tensor& x, const Tensor& z, const Tensor& amplitude,
                    const Tensor& coef, const Tensor& out, const Arguments& arguments, Context& context) {
  const char* op = "gradient_field";
  require(field.prepared().is_field, "{}: the formula must be made by Formula::field. Received another.", op);
  ops::check_input(op, "amplitude", amplitude, 2);
  const Contraction contraction(op, coef);
  const PairCall call(op, field, x, &z, arguments, false,
                      {ops::leading(coef, contraction.axes), ops::leading(amplitude, 2)});
  check_matrix(call, "amplitude", amplitude);
  std::vector<const Tensor*> inputs = call.inputs();
  inputs.push_back(&amplitude);
  contraction.check(call, coef, out, inputs);
  if (call.ends_checked(out)) return;
  if (call.on_cuda()) {
    const cuda::PairJob job = call.job(context);
    const auto kernels = ops::cuda_gradient(call, job, contraction.outputs, context);
    cuda::FieldJob operands = contraction.job(call, coef, out);
    operands.amplitude = matrix_operand(call, amplitude);
    return cuda::gradient(kernels.pairs.get(), kernels.field.get(), job, operands);
  }
  const Programs programs = make_programs(call, contraction.outputs, context);
  const Shape amplitude_strides = ops::batch_strides(amplitude, 2, call.batch());
  ops::for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
    cpu::FieldItem item = programs.item(call, index);
    item.amplitude = ops::element(amplitude, call.offset(index, amplitude_strides));
    item.amplitude_row_stride = amplitude.strides[amplitude.ndim() - 2];
    item.amplitude_col_stride = amplitude.strides.back();
    contraction.fill(item, call, index, coef, out);
    cpu::gradient(programs.pairs.get(), *programs.field, item, run);
  });
}

}  // namespace mercer
