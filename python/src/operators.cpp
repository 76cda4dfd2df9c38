#include "operators.h"

#include <fmt/format.h>

namespace mercer::python {

OperatorCall::OperatorCall(const char* verb, nb::handle a) : verb_(verb) {
  if (!nb::try_cast(a, kernel_)) {
    stored_call_.emplace(verb, "a", a, false, nb::none());
    library_ = &library_of(a, {verb, "a"});
    like_ = nb::borrow(a);
    matrix_ = linalg::matrix_operator(stored_call_->a(), stored_call_->options().queue, Context::shared(), verb);
    return;
  }
  if (is_jax(kernel_->x))
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: is not offered for arrays of jax. Received one for x.", verb));
  const nb::int_ zero(0);
  const nb::bool_ no_bar(false);
  kernel_call_.emplace(verb, kernel_->f, kernel_->x, nb::none(),
                       Options{nb::none(), nb::none(), nb::none(), zero, zero, nb::none(), no_bar,
                               nb::steal<nb::dict>(PyDict_Copy(kernel_->params.ptr()))});
  Arguments arguments = kernel_call_->arguments();
  arguments.progress = {};  // asked under the interpreter's lock, which products between others' threads do not hold
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
