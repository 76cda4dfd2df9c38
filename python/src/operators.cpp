#include "operators.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "gil.h"
#include "ir/passes.h"
#include "ir/split.h"
#include "ops/call.h"
#include "symbols.h"

namespace mercer::python {
namespace {

/// Names of options that the verbs of pairs have and an operator has not.
constexpr const char* kNotOffered[] = {"z", "row", "col", "w", "i_offset", "j_offset", "out", "workspace", "progress"};
/// The method of objects that multiply: columns [n, k] of NumPy to their product with the matrix, of the same dtype.
constexpr char kMultiply[] = "_mercer_multiply";

/// Copies columns between a tensor whose elements of a column are neighbours and an array [k, n] of NumPy.
void copy_columns(const Tensor& columns, char* rows, bool into_rows) {
  const auto bytes = static_cast<std::int64_t>(size_of(columns.dtype));
  const std::int64_t length = columns.shape[0] * bytes;
  for (std::int64_t j = 0; j < columns.shape[1] && length > 0; ++j) {
    char* const column = static_cast<char*>(columns.data) + j * columns.strides[1] * bytes;
    char* const row = rows + j * length;
    std::memcpy(into_rows ? row : column, into_rows ? column : row, static_cast<std::size_t>(length));
  }
}

/// out = a v by the object's method, called with the GIL.
void multiply_by_method(const char* verb, nb::handle a, const Tensor& v, const Tensor& out) {
  const Locked locked;
  const nb::object numpy = nb::module_::import_("numpy"), dtype = numpy.attr("dtype")(name_of(v.dtype));
  const nb::object given = numpy.attr("empty")(nb::make_tuple(v.shape[1], v.shape[0]), nb::arg("dtype") = dtype);
  copy_columns(v, static_cast<char*>(Array(given, {verb, "v"}, Access::fresh).tensor().data), true);
  const nb::object made = a.attr(kMultiply)(given.attr("T"));
  const Array product(made, {verb, "product"});
  const Tensor& found = product.tensor();
  if (found.shape != out.shape || found.dtype != out.dtype || found.device.kind != DeviceKind::cpu)
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: a product with a must be {} on the CPU. Received {}.",
                                                         verb, out.to_text(), found.to_text()));
  const nb::object rows = numpy.attr("ascontiguousarray")(made.attr("T"));
  copy_columns(out, static_cast<char*>(Array(rows, {verb, "product"}).tensor().data), false);
}

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
  } else if (nb::hasattr(a.type(), kMultiply)) {  // proxies of tracers have any attribute
    take_products(a);
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

/// Results are NumPy's, as what the method is given: `like` stands for the matrix.
void OperatorCall::take_products(nb::handle a) {
  const nb::object like =
      nb::module_::import_("numpy").attr("empty")(nb::make_tuple(0, 0), nb::arg("dtype") = a.attr("dtype"));
  stored_call_.emplace(verb_, "a", like, false, nb::none());
  library_ = &library_of(like, {verb_, "a"});
  like_ = like;
  ridge_ = nb::cast<double>(a.attr("ridge"));
  linalg::Operator made{nb::cast<std::int64_t>(a.attr("shape")[0]), stored_call_->a().dtype};
  made.multiply = [verb = verb_, a](const Tensor& v, const Tensor& out) { multiply_by_method(verb, a, v, out); };
  matrix_ = std::move(made);
}

void OperatorCall::take_kernel() {
  const char* const verb = verb_;
  ridge_ = kernel_->ridge;
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
