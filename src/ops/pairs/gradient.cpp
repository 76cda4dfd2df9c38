// Gradients: a first sweep over the features makes what the pair contributes, a second one contracts it with φ. They
// are planned apart: a pair plan and a field plan under one key.
#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/key.h"
#include "ir/passes/safe_field.h"
#include "ir/passes/split.h"
#include "mercer/pairwise.h"
#include "ops/dump.h"
#include "ops/gpu/cuda_call.h"
#include "ops/pairs/coefficients.h"
#include "ops/pairs/cpu_field.h"
#include "ops/pairs/pair_matrix.h"

namespace mercer {
namespace {

using ops::PairCall;
using ops::Shape;

/// The shapes around coef and out [..., O, M, K] or [..., M, K].
struct Contraction : ops::Coefficients {
  int out_axes;

  Contraction(const char* op, const Tensor* coef) : Coefficients(op, coef), out_axes(single ? 2 : 3) {}

  void check(const PairCall& call, const Tensor* coef, const Tensor& out, std::vector<const Tensor*> inputs) const {
    if (coef != nullptr) {
      Coefficients::check(call, *coef);
      inputs.push_back(coef);
    }
    ops::check_output_type(call.op(), out, call.type());
    Shape expected = call.batch();
    if (!single) expected.push_back(outputs);
    expected.insert(expected.end(), {call.m(), call.features()});
    ops::check_output(call.op(), out, expected, inputs);
  }

  void fill(cpu::FieldItem& item, const PairCall& call, std::int64_t index, const Tensor* coef,
            const Tensor& out) const {
    item.outputs = outputs;
    if (coef != nullptr) {
      item.coef = ops::element(*coef, call.offset(index, ops::batch_strides(*coef, axes, call.batch())));
      item.coef_dtype = coef->dtype;
      item.coef_output_stride = single ? 0 : coef->strides[coef->ndim() - 2];
      item.coef_point_stride = coef->strides.back();
    }
    item.out = ops::element(out, call.offset(index, ops::batch_strides(out, out_axes, call.batch())));
    item.out_output_stride = single ? 0 : out.strides[out.ndim() - 3];
    item.out_row_stride = out.strides[out.ndim() - 2];
    item.out_feature_stride = out.strides.back();
  }

  cuda::FieldJob job(const PairCall& call, const Tensor* coef, const Tensor& out) const {
    cuda::FieldJob job;
    if (coef != nullptr) {
      job.coef.array = {coef->data, coef->dtype, ops::batch_strides(*coef, axes, call.batch())};
      job.coef.row_stride = single ? 0 : coef->strides[coef->ndim() - 2];
      job.coef.col_stride = coef->strides.back();
    }
    job.outputs = outputs;
    job.out = out.data;
    job.out_output_stride = single ? 0 : out.strides[out.ndim() - 3];
    job.out_row_stride = out.strides[out.ndim() - 2];
    job.out_feature_stride = out.strides.back();
    job.out_batch_strides = ops::batch_strides(out, out_axes, call.batch());
    return job;
  }
};

void run_on_cuda(const PairCall& call, const cuda::FieldJob& operands, Context& context) {
  const cuda::PairJob job = call.job(context);
  plan::Request request = ops::request_of(call, job, plan::Verb::gradient, context);
  request.columns = operands.outputs;
  const plan::Choice way = ops::choose_way(call, job, request, context);
  ops::run_gradient(job, std::get<plan::GradientPlan>(way.offer.plan), operands, context);
}

/// What the CPU runs: the pair values of φ, where it has any, then φ over n.
struct Programs {
  std::shared_ptr<const cpu::PairProgram> pairs;
  std::shared_ptr<const cpu::FieldProgram> field;

  cpu::GradientItem item(const PairCall& call, std::int64_t index, const Contraction& contraction, const Tensor* coef,
                         const Tensor& out) const {
    cpu::GradientItem item;
    item.item = call.item(index);
    if (pairs) item.pair_params = call.values(index, pairs->plan().general.split.params);
    cpu::FieldItem& of = item.fields.emplace_back();
    of.program = field;
    of.x = item.item.x;
    of.z = item.item.z;
    of.weights = item.item.weights;
    of.params = call.values(index, field->plan->params);
    contraction.fill(of, call, index, coef, out);
    return item;
  }
};

/// The programs that a thread took last: calls of one problem, one after the other, find them without the lock of
/// their context and without the texts of their keys. They are the context's, and gone from here when gone there.
class LastPrograms {
 public:
  struct Problem {
    const void* context = nullptr;
    ir::Form form = ir::Form::pairs;
    Dtype type = Dtype::float32;
    Target target = Target::interpreter;
    const void* cpu = nullptr;
    std::int64_t rows_hint = 0, outputs = 0, features = 0;
    bool operator==(const Problem&) const = default;
  };
  /// Without a field where they are others', and each 64th time: the caches forget what nobody asks them for.
  Programs find(const Problem& problem, const std::string& key) {
    constexpr int kHits = 64;
    if (problem != problem_ || key != key_ || ++hits_ % kHits == 0) return {};
    Programs found{pairs_.lock(), field_.lock()};
    return has_pairs_ && !found.pairs ? Programs() : found;
  }
  void keep(const Problem& problem, const std::string& key, const Programs& programs) {
    problem_ = problem;
    key_ = key;
    pairs_ = programs.pairs;
    field_ = programs.field;
    has_pairs_ = programs.pairs != nullptr;
  }

 private:
  Problem problem_;
  std::string key_;
  int hits_ = 0;
  bool has_pairs_ = false;
  std::weak_ptr<const cpu::PairProgram> pairs_;
  std::weak_ptr<const cpu::FieldProgram> field_;
};

/// Programs for the gradient of a formula, or of a field whose amplitude the caller gives.
Programs make_programs(const PairCall& call, std::int64_t outputs, Context& context) {
  const Formula::Prepared& formula = call.formula();
  const double most = ir::most_scale(call.type());
  const auto split = [&] {
    if (formula.is_fold) return ir::split_fold(formula.expression);
    return formula.is_field ? ir::split_amplitude_field(formula.expression, false, {.most_scale = most})
                            : ir::split_field(formula.field(), {}, {.most_scale = most});
  };
  plan::PairProblem problem = ops::block_problem(call, context);
  static thread_local LastPrograms last;
  const LastPrograms::Problem sought{&context.state(), formula.form,      problem.type, problem.target,
                                     problem.cpu,      problem.rows_hint, outputs,      call.features()};
  if (Programs known = last.find(sought, formula.key); known.field) return known;
  const std::string text = cache_key(static_cast<int>(formula.form), formula.key);
  Programs programs;
  if (!formula.is_field || formula.reads_pairs) {
    programs.pairs = context.state().pairs.get(ops::key_of(text, problem), [&] {
      const ir::FieldSplit of = split();
      problem.outputs = of.pair_outputs;
      problem.again = of.again;
      return std::make_shared<const cpu::PairProgram>(ops::dumped(plan::plan_pairs(problem)));
    });
  }
  const ops::PlaneShape planes = ops::plane_shape(programs.pairs.get());
  programs.field = ops::cpu_field(text, planes, problem, outputs, call.features(), context, split);
  last.keep(sought, formula.key, programs);
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
  of_feature.row.reset(), of_feature.col.reset();  // of a formula with such there is none
  if (!uses.w) of_feature.w.reset();
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
  const Contraction contraction(op, &coef);
  const PairCall call(op, f, x, z, arguments, false, {ops::leading(coef, contraction.axes)});
  contraction.check(call, &coef, out, call.inputs());
  if (call.ends_checked(out)) return;
  if (call.on_cuda()) {
    return run_on_cuda(call, contraction.job(call, &coef, out), context);
  }
  if (pays_products(call, f, x, z, contraction.outputs))
    return gradient_by_products(op, f, x, z, coef, contraction.single, out, arguments, context);
  const Programs programs = make_programs(call, contraction.outputs, context);
  ops::for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
    cpu::gradient(programs.pairs.get(), programs.item(call, index, contraction, &coef, out), run);
  });
}

void gradient_field(const Expr& phi, const Tensor& x, const Tensor& z, const Tensor& amplitude, const Tensor& coef,
                    const Tensor& out, const Arguments& arguments, Context& context) {
  gradient_field(Formula::field(phi), x, z, amplitude, coef, out, arguments, context);
}

void gradient_field(const Formula& field, const Tensor& x, const Tensor& z, const Tensor& amplitude,
                    const Tensor& coef, const Tensor& out, const Arguments& arguments, Context& context) {
  gradient_field(field, x, z, &amplitude, &coef, out, arguments, context);
}

namespace {

/// An array that a fold does not read is refused, as one is missed that it reads.
void check_given(const char* op, const char* name, bool is_read, bool is_given) {
  require(is_read || !is_given, "{}: {} was given, but the term does not read it.", op, name);
  require(is_given || !is_read, "{}: the formula reads {}; give it. Received none.", op, name);
}

}  // namespace

void gradient_field(const Formula& field, const Tensor& x, const Tensor& z, const Tensor* amplitude,
                    const Tensor* coef, const Tensor& out, const Arguments& arguments, Context& context) {
  const char* op = "gradient_field";
  const Formula::Prepared& prepared = field.prepared();
  require(prepared.is_field, "{}: the formula must be made by Formula::field or fold. Received another.", op);
  check_given(op, "amplitude", prepared.reads_amplitude, amplitude != nullptr);
  check_given(op, "coef", prepared.reads_coef, coef != nullptr);
  if (amplitude != nullptr) ops::check_input(op, "amplitude", *amplitude, 2);
  const Contraction contraction(op, coef);
  std::vector<Shape> batches;
  if (coef != nullptr) batches.push_back(ops::leading(*coef, contraction.axes));
  if (amplitude != nullptr) batches.push_back(ops::leading(*amplitude, 2));
  const PairCall call(op, field, x, &z, arguments, false, batches);
  std::vector<const Tensor*> inputs = call.inputs();
  if (amplitude != nullptr) {
    ops::check_matrix(call, "amplitude", *amplitude);
    inputs.push_back(amplitude);
  }
  contraction.check(call, coef, out, inputs);
  if (call.ends_checked(out)) return;
  if (call.on_cuda()) {
    cuda::FieldJob operands = contraction.job(call, coef, out);
    if (amplitude != nullptr) operands.amplitude = ops::matrix_operand(call, *amplitude);
    return run_on_cuda(call, operands, context);
  }
  const Programs programs = make_programs(call, contraction.outputs, context);
  ops::for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
    cpu::GradientItem item = programs.item(call, index, contraction, coef, out);
    if (amplitude != nullptr) ops::fill_amplitude(item, call, index, *amplitude);
    cpu::gradient(programs.pairs.get(), item, run);
  });
}

}  // namespace mercer
