#include "ops/pairs/both_sides.h"

#include <utility>

#include "backend/cpu/gradient/both_sides.h"
#include "core/error.h"
#include "core/key.h"
#include "ir/passes/passes.h"
#include "ir/passes/split.h"
#include "ops/context.h"
#include "ops/dump.h"
#include "ops/pairs/backward_call.h"
#include "ops/pairs/cpu_field.h"
#include "ops/pairs/pair_matrix.h"
#include "plan/cpu/sum_field.h"

namespace mercer::ops {
namespace {

constexpr const char* kOp = "both_sides_backward";

void check_factor(const PairCall& call, const char* name, const Tensor& factor, std::int64_t points,
                  std::int64_t columns) {
  require(columns > 0 && factor.shape[factor.ndim() - 2] == points && factor.shape.back() == columns,
          "{}: {} must have shape (..., {}, {}), with columns. Received {}.", call.op(), name, points, columns,
          text_of(factor.shape));
  check_device(call.op(), name, factor, call.device());
  check_computing_type(call.op(), name, factor, call.type());
}

/// One item of a batched array, its last two axes.
Tensor item_of(const PairCall& call, const Tensor& tensor, std::int64_t index) {
  const int axes = tensor.ndim();
  return {element(tensor, call.offset(index, batch_strides(tensor, 2, call.batch()))), tensor.dtype,
          {tensor.shape[axes - 2], tensor.shape[axes - 1]},
          {tensor.strides[axes - 2], tensor.strides[axes - 1]}};
}
Tensor turned(Tensor matrix) {
  std::swap(matrix.shape[0], matrix.shape[1]);
  std::swap(matrix.strides[0], matrix.strides[1]);
  return matrix;
}
std::optional<Tensor> item_of(const PairCall& call, const std::optional<Tensor>& values, std::int64_t index) {
  if (!values) return std::nullopt;
  return Tensor(element(*values, call.offset(index, batch_strides(*values, 1, call.batch()))), values->dtype,
                {values->shape.back()}, {values->strides.back()});
}

class BothSides {
 public:
  BothSides(const Formula& f, const Tensor& x, const Tensor& z, const Tensor& weights, const Tensor* v,
            const BothSidesResults& results, const Arguments& arguments, Context& context)
      : f_(f), x_(x), z_(z), weights_(weights), v_(v), results_(results), arguments_(arguments), context_(context),
        call_(kOp, f, x, &z, arguments, false, leading_axes()) {
    check();
  }

  void operator()() {
    const bool has_product = results_.product != nullptr && !call_.ends_checked(*results_.product);
    if (call_.ends_checked(results_.by_x) && call_.ends_checked(results_.by_z) && !has_product) return;
    turns_ = call_.m() > call_.n();
    if (turns_) call_.swap_sides();
    make_program();
    for_each_group(call_.items(), context_, arguments_, [&](std::int64_t index, const cpu::RunOptions& run) {
      const bool serves = program_->forms.sum != plan::cpu::PairSum::none && call_.features() > 0;
      if (!serves || !cpu::both_sides(*program_, job(index), run)) run_side_by_side(index);
    });
  }

 private:
  std::vector<Shape> leading_axes() const {
    check_input(kOp, "weights", weights_, 2);
    std::vector<Shape> axes{leading(weights_, 2)};
    if (v_ == nullptr) return axes;
    check_input(kOp, "v", *v_, 2);
    axes.push_back(leading(*v_, 2));
    return axes;
  }

  void check() {
    require(!call_.on_cuda(), "{}: x must be in the memory of the host. Received one on {}.", call_.op(),
            call_.device());
    if (v_ == nullptr) {
      check_matrix(call_, "weights", weights_);
      require(results_.product == nullptr, "{}: a matrix of weights has no product. Received one.", call_.op());
    } else {
      check_factor(call_, "weights", weights_, call_.m(), v_->shape.back());
      check_factor(call_, "v", *v_, call_.n(), v_->shape.back());
    }
    std::vector<const Tensor*> inputs = call_.inputs();
    inputs.push_back(&weights_);
    if (v_ != nullptr) inputs.push_back(v_);
    const auto check_result = [&](const Tensor& out, std::int64_t points, std::int64_t columns) {
      check_output_type(call_.op(), out, call_.type());
      Shape shape = call_.batch();
      shape.insert(shape.end(), {points, columns});
      check_output(call_.op(), out, shape, inputs);
      inputs.push_back(&out);
    };
    check_result(results_.by_x, call_.m(), call_.features());
    check_result(results_.by_z, call_.n(), call_.features());
    if (results_.product != nullptr) check_result(*results_.product, call_.n(), v_->shape.back());
  }

  void make_program() {
    const Formula::Prepared& formula = call_.formula();
    plan::PairProblem problem = block_problem(call_, context_);
    const bool has_product = results_.product != nullptr;
    program_ = context_.state().pairs.get(key_of(cache_key("both sides", formula.key, has_product), problem), [&] {
      const plan::cpu::SumField field = plan::cpu::sum_field(formula.expression);
      require(static_cast<bool>(field),
              "{}: the formula must be a function of one sum of (x - z)^2 or of x z. Received {}.", call_.op(),
              formula.expression.to_text());
      problem.outputs = {field.slope};
      if (has_product) problem.outputs.push_back(ir::simplify(formula.expression));
      return std::make_shared<const cpu::PairProgram>(dumped(plan::plan_pairs(problem)));
    });
  }

  cpu::Points factor(std::int64_t index, const Tensor& tensor) const {
    const Tensor item = item_of(call_, tensor, index);
    return {item.data, item.dtype, item.shape[0], item.shape[1], item.strides[0], item.strides[1], {}, 0};
  }
  cpu::OutputMatrix output(std::int64_t index, const Tensor& tensor) const {
    const Tensor item = item_of(call_, tensor, index);
    return {item.data, item.dtype, item.strides[0], item.strides[1]};
  }

  cpu::BothSidesJob job(std::int64_t index) const {
    cpu::BothSidesJob job;
    job.item = call_.item(index);
    job.params = call_.values(index, program_->plan().general.split.params);
    job.by_x = output(index, results_.by_x);
    job.by_z = output(index, results_.by_z);
    if (v_ == nullptr) {
      const Tensor matrix = item_of(call_, weights_, index);
      job.matrix = matrix.data;
      job.matrix_dtype = matrix.dtype;
      job.matrix_row_stride = matrix.strides[turns_ ? 1 : 0];
      job.matrix_col_stride = matrix.strides[turns_ ? 0 : 1];
    } else {
      job.u = factor(index, weights_);
      job.v = factor(index, *v_);
    }
    if (results_.product != nullptr) (turns_ ? job.to_rows : job.to_cols) = output(index, *results_.product);
    if (turns_) {
      std::swap(job.by_x, job.by_z);
      std::swap(job.u, job.v);
    }
    return job;
  }

  /// One item whose sums leave the range of their type: a pass for each side, which computes such pairs again.
  void run_side_by_side(std::int64_t index) const {
    Arguments own = arguments_;
    own.progress = nullptr;
    own.row = item_of(call_, arguments_.row, index);
    own.col = item_of(call_, arguments_.col, index);
    for (auto& [name, value] : own.params)
      if (std::holds_alternative<Tensor>(value)) value = call_.number(index, name);
    Arguments other = own;
    std::swap(other.row, other.col);
    std::swap(other.i_offset, other.j_offset);
    const Formula swapped(ir::swap_sides(f_.expression()));
    const auto item = [&](const Tensor& tensor) { return item_of(call_, tensor, index); };
    const Tensor x = item(x_), z = item(z_), weights = item(weights_), by_x = item(results_.by_x),
                 by_z = item(results_.by_z);
    if (v_ == nullptr) {
      const Tensor of_z = turned(weights);
      BackwardCall(call_.op(), f_, x, &z, weights, nullptr, {}, own, context_).run(by_x, {});
      BackwardCall(call_.op(), swapped, z, &x, of_z, nullptr, {}, other, context_).run(by_z, {});
      return;
    }
    const Tensor v = item(*v_);
    BackwardCall(call_.op(), f_, x, &z, weights, &v, {}, own, context_).run(by_x, {});
    BackwardCall(call_.op(), swapped, z, &x, v, &weights, {}, other, context_).run(by_z, {});
    if (results_.product != nullptr)
      kernel_product(swapped, z, &x, weights, item(*results_.product), other, context_);
  }

  const Formula& f_;
  const Tensor &x_, &z_, &weights_;
  const Tensor* v_;
  const BothSidesResults& results_;
  const Arguments& arguments_;
  Context& context_;
  PairCall call_;
  bool turns_ = false;  // blocks are of the side with more points
  std::shared_ptr<const cpu::PairProgram> program_;
};

}  // namespace

void both_sides_backward(const Formula& f, const Tensor& x, const Tensor& z, const Tensor& weights, const Tensor* v,
                         const BothSidesResults& results, const Arguments& arguments, Context& context) {
  BothSides(f, x, z, weights, v, results, arguments, context)();
}

}  // namespace mercer::ops
