#include "operators.h"

#include <fmt/format.h>

#include <cmath>

#include "ir/passes.h"
#include "ir/split.h"
#include "ops/call.h"
#include "symbols.h"

namespace mercer::python {
namespace {

/// Names of options that the verbs of pairs have and an operator has not.
constexpr const char* kNotOffered[] = {"z", "row", "col", "w", "i_offset", "j_offset", "out", "workspace", "progress"};

}  // namespace

KernelOperator::KernelOperator(nb::object f_in, nb::object x_in, nb::handle ridge_in, nb::dict params_in)
    : f(std::move(f_in)), x(std::move(x_in)), params(std::move(params_in)) {
  constexpr const char* kVerb = "KernelOperator";
  for (const char* name : kNotOffered)
    if (params.contains(name))
      throw Error(ErrorKind::unsupported,
                  fmt::format("{}: {} is not offered in operators, whose formulas read x, z and parameters. Received "
                              "one",
                              kVerb, name));
  ridge = to_number(ridge_in, kVerb, "ridge");
  if (!(ridge >= 0) || !std::isfinite(ridge))
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: ridge must be from 0 on and finite. Received {}.", kVerb, ridge));
  if (PyCallable_Check(f.ptr())) f = nb::cast(Kernel(find_symbol(f, kVerb)));
  const Unfollowed unfollowed;
  const OperatorCall call(kVerb, *this);
  order = call.matrix().order;
  const ir::Uses uses = ir::uses(call.kernel_call().formula().expression());
  if (uses.w || uses.row || uses.col)
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: a formula that reads w, row or col is not offered in operators. Received {}.", kVerb,
                            call.kernel_call().formula().expression().to_text()));
  const ops::PairCall checked(kVerb, call.kernel_call().formula(), call.kernel_call().x(), nullptr,
                              call.kernel_call().arguments(), false);
  if (!checked.batch().empty())
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: parameters must be numbers or arrays of one, since a batch of operators is not "
                            "offered. Received a batch {}.",
                            kVerb, ops::text_of(checked.batch()).to_text()));
}

OperatorCall::OperatorCall(const char* verb, nb::handle a) : verb_(verb) {
  if (KernelOperator* kernel = nullptr; nb::try_cast(a, kernel)) {
    kernel_ = kernel;
    take_kernel();
  } else {
    stored_call_.emplace(verb, "a", a, false, nb::none());
    library_ = &library_of(a, {verb, "a"});
    like_ = nb::borrow(a);
    matrix_ = linalg::matrix_operator(stored_call_->a(), stored_call_->options().queue, Context::shared(), verb);
  }
}

OperatorCall::OperatorCall(const char* verb, const KernelOperator& kernel) : verb_(verb), kernel_(&kernel) {
  take_kernel();
}

void OperatorCall::take_kernel() {
  const char* const verb = verb_;
  if (is_jax(kernel_->x))
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: is not offered for arrays of jax. Received one for x.", verb));
  const nb::int_ zero(0);
  const nb::bool_ no_bar(false);
  kernel_call_.emplace(verb, kernel_->f, kernel_->x, nb::none(),
                       Options{nb::none(), nb::none(), nb::none(), zero, zero, nb::none(), no_bar,
                               nb::steal<nb::dict>(PyDict_Copy(kernel_->params.ptr()))});
  Arguments arguments = kernel_call_->arguments();
  arguments.progress = {};  // of one product; the call that takes many is watched
  library_ = &library_of(kernel_->x, {verb, "x"});
  like_ = kernel_->x;
  matrix_ = linalg::kernel_operator(kernel_call_->formula(), kernel_call_->x(), kernel_->ridge, arguments);
}

const Tensor& OperatorCall::input(nb::handle object, const char* name) {
  return stored_call_ ? stored_call_->input(object, name) : kernel_call_->input(object, name);
}

OperatorCall::Output OperatorCall::output(nb::handle out, const char* name, Dtype dtype,
                                          const std::vector<std::int64_t>& shape) {
  if (stored_call_) {
    const LinalgCall::Output made = stored_call_->output(out, name, dtype, shape);
    return {made.object, made.view};
  }
  Output made;
  made.object = kernel_call_->output(out, name, dtype, [&] { return shape; }, made.view);
  return made;
}

void OperatorCall::finish() {
  if (stored_call_) stored_call_->finish();
  if (kernel_call_) kernel_call_->finish();
}

}  // namespace mercer::python
