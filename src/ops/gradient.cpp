#include <fmt/format.h>

#include "core/error.h"
#include "ir/split.h"
#include "mercer/pairwise.h"
#include "ops/call.h"
#include "ops/dump.h"

namespace mercer {
namespace {

using ops::PairCall;
using ops::Shape;

/// Columns n that a block of pair values holds, about.
constexpr int kBlockColumns = 192;

char* element(const Tensor& t, std::int64_t elements) {
  return static_cast<char*>(t.data) + elements * static_cast<std::int64_t>(size_of(t.dtype));
}

/// The shapes around coef [..., O, N] or [N] and out [..., O, M, K] or [..., M, K].
struct Contraction {
  bool single;
  int coef_axes, out_axes;
  std::int64_t outputs;

  explicit Contraction(const char* op, const Tensor& coef) {
    ops::check_input(op, "coef", coef, 1);
    single = coef.ndim() == 1;
    coef_axes = single ? 1 : 2;
    out_axes = single ? 2 : 3;
    outputs = single ? 1 : coef.shape[coef.ndim() - 2];
  }

  Shape leading(const Tensor& coef) const { return Shape(coef.shape.begin(), coef.shape.end() - coef_axes); }

  void check(const char* op, const PairCall& call, const Tensor& coef, const Tensor& out,
             std::vector<const Tensor*> inputs) const {
    require(coef.shape.back() == call.n(), "{}: coef must have one entry per point of z ({}) in its last axis. Received shape {}.",
            op, call.n(), ops::text_of(coef.shape));
    require(compute_type(coef.dtype) == call.type(), "{}: coef must have the computing type of x, {}. Received {}.", op,
            name_of(call.type()), name_of(coef.dtype));
    require(out.dtype == call.type(), "{}: out must be {}. Received {}.", op, name_of(call.type()), name_of(out.dtype));
    Shape expected = call.batch();
    if (!single) expected.push_back(outputs);
    expected.insert(expected.end(), {call.m(), call.features()});
    inputs.push_back(&coef);
    ops::check_output(op, out, expected, inputs);
  }

  void fill(cpu::FieldItem& item, const PairCall& call, std::int64_t index, const Tensor& coef, const Tensor& out) const {
    item.coef = element(coef, call.offset(index, ops::batch_strides(coef, coef_axes, call.batch())));
    item.coef_dtype = coef.dtype;
    item.outputs = outputs;
    item.coef_output_stride = single ? 0 : coef.strides[coef.ndim() - 2];
    item.coef_point_stride = coef.strides.back();
    item.out = element(out, call.offset(index, ops::batch_strides(out, out_axes, call.batch())));
    item.out_output_stride = single ? 0 : out.strides[out.ndim() - 3];
    item.out_row_stride = out.strides[out.ndim() - 2];
    item.out_feature_stride = out.strides.back();
  }
};

std::string field_key(const PairCall& call, const std::string& text, std::int64_t outputs, const char* kind, Context& context) {
  return fmt::format("{}|{}|{}{}|{}|{}|{}", kind, text, static_cast<int>(call.type()),
                     static_cast<int>(context.target()), outputs, call.features(), call.m() < 8 ? call.m() : 8);
}

}  // namespace

void kernel_gradient(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& coef, const Tensor& out,
                     const Arguments& arguments, Context& context) {
  const char* op = "kernel_gradient";
  const Contraction contraction(op, coef);
  const PairCall call(op, f, x, z, arguments, false, {contraction.leading(coef)});
  contraction.check(op, call, coef, out, call.inputs());
  if (out.count() == 0) return;
  Context::State& state = context.state();
  const Formula::Prepared& formula = call.formula();
  const std::string key = field_key(call, formula.key, contraction.outputs, "gradient", context);
  ir::FieldSplit split;
  bool have_split = false;
  auto field_split = [&]() -> const ir::FieldSplit& {
    if (!have_split) split = ir::split_field(formula.field());
    have_split = true;
    return split;
  };
  // The tile decides how many columns a block of pair values holds, and the block is part of the pair program.
  const auto pairs = state.pairs.get(key, [&] {
    plan::PairProblem problem;
    problem.outputs = field_split().pair_outputs;
    problem.type = call.type();
    problem.target = state.target;
    problem.empty_features = call.features() == 0;
    problem.rows_hint = call.m() < 8 ? call.m() : 8;
    problem.block_columns = kBlockColumns;
    return std::make_shared<const cpu::PairProgram>(ops::dumped(plan::plan_pairs(problem)));
  });
  const int width = static_cast<int>(pairs->plan().plane_width());
  const auto field = state.fields.get(key, [&] {
    return std::make_shared<const cpu::FieldProgram>(
        ops::dumped(plan::plan_field(field_split(), call.type(), state.target, static_cast<int>(std::min<std::int64_t>(contraction.outputs, 64)),
                         call.features(), width, pairs->plan().tile.rows * width)));
  });
  ops::for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
    cpu::FieldItem item;
    item.item = call.item(index);
    item.pair_params = call.values(index, pairs->plan().general.split.params);
    item.field_params = call.values(index, field->plan->params);
    contraction.fill(item, call, index, coef, out);
    cpu::gradient(pairs.get(), *field, item, run);
  });
}

void gradient_field(const Expr& phi, const Tensor& x, const Tensor& z, const Tensor& amplitude, const Tensor& coef,
                    const Tensor& out, const Arguments& arguments, Context& context) {
  const char* op = "gradient_field";
  ir::verify(phi, true);
  ir::for_each(phi, [&](const Expr& e) {
    if (ir::is_reduction(e->op))
      fail(ErrorKind::unsupported, "{}: phi is read at one feature and has no reductions. Received {}.", op, phi.to_text());
  });
  ops::check_input(op, "amplitude", amplitude, 2);
  const Contraction contraction(op, coef);
  // The sum of φ names the same parameters, weights and values per point; its checks are the ones needed here.
  const PairCall call(op, Formula(sum(phi)), x, &z, arguments, false,
                      {contraction.leading(coef), Shape(amplitude.shape.begin(), amplitude.shape.end() - 2)});
  require(amplitude.shape[amplitude.ndim() - 2] == call.m() && amplitude.shape.back() == call.n(),
          "{}: amplitude must have shape (..., {}, {}). Received {}.", op, call.m(), call.n(), ops::text_of(amplitude.shape));
  require(compute_type(amplitude.dtype) == call.type(), "{}: amplitude must have the computing type of x, {}. Received {}.",
          op, name_of(call.type()), name_of(amplitude.dtype));
  std::vector<const Tensor*> inputs = call.inputs();
  inputs.push_back(&amplitude);
  contraction.check(op, call, coef, out, inputs);
  if (out.count() == 0) return;
  Context::State& state = context.state();
  const Expr& bound = call.formula().expression;  // simplify() may have moved a factor out of the sum: use φ itself then
  const Expr term = bound->op == ir::Op::sum ? bound->args[0] : ir::simplify(phi);
  const auto field = state.fields.get(field_key(call, term.to_text(), contraction.outputs, "field", context), [&] {
    ir::FieldSplit split = ir::split_amplitude_field(term);
    return std::make_shared<const cpu::FieldProgram>(
        ops::dumped(plan::plan_field(split, call.type(), state.target, static_cast<int>(std::min<std::int64_t>(contraction.outputs, 64)),
                         call.features(), kBlockColumns, 8 * kBlockColumns)));
  });
  const Shape amplitude_strides = ops::batch_strides(amplitude, 2, call.batch());
  ops::for_each_group(call.items(), context, arguments, [&](std::int64_t index, const cpu::RunOptions& run) {
    cpu::FieldItem item;
    item.item = call.item(index);
    item.field_params = call.values(index, field->plan->params);
    item.amplitude = element(amplitude, call.offset(index, amplitude_strides));
    item.amplitude_dtype = amplitude.dtype;
    item.amplitude_row_stride = amplitude.strides[amplitude.ndim() - 2];
    item.amplitude_col_stride = amplitude.strides.back();
    contraction.fill(item, call, index, coef, out);
    cpu::gradient(nullptr, *field, item, run);
  });
}

}  // namespace mercer
