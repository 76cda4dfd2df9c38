#include "operators.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "backend/row_sums.h"
#include "gil.h"
#include "ops/call/call.h"
#include "symbols.h"

namespace mercer::python {
namespace {

/// Names of options that the verbs of pairs have and an operator has not.
constexpr const char* kNotOffered[] = {"z", "i_offset", "j_offset", "out", "workspace", "progress"};
/// The method of objects that multiply: columns [n, k] to their product with the matrix, of the same dtype and device.
/// The arrays are NumPy's, or of the library and on the device of the object's attribute kLike.
constexpr char kMultiply[] = "_mercer_multiply", kLike[] = "_mercer_like";
constexpr char kKernelVerb[] = "KernelOperator";

void copy(const char* verb, const Tensor& from, const Tensor& to, const Queue& queue) {
  if (to.device.kind == DeviceKind::cuda)
    cuda::sum_rows(verb, {.from = &from}, to, queue);
  else
    cpu::sum_rows({.from = &from}, to);
}

/// An object that multiplies, and the arrays of its products.
struct Method {
  nb::handle function, like;
  Library* library;
  Queue queue;
};

/// out = a v by the object's method, called with the GIL.
void multiply_by_method(const char* verb, const Method& method, const Tensor& v, const Tensor& out) {
  const Locked locked;
  const nb::object rows = make_array(*method.library, method.like, v.dtype, {v.shape[1], v.shape[0]}, {verb, "v"});
  const Array given(rows, {verb, "v"}, Access::fresh);
  Tensor columns = given.tensor();
  std::swap(columns.shape[0], columns.shape[1]);
  std::swap(columns.strides[0], columns.strides[1]);
  copy(verb, v, columns, method.queue);
  const nb::object made = method.function(rows.attr("T"));
  const Array product(made, {verb, "product"});
  const Tensor& found = product.tensor();
  if (found.shape != out.shape || found.dtype != out.dtype || found.device != out.device)
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: a product with a must be {} on {}. Received {} on {}.", verb, out.to_text(),
                            out.device.to_text(), found.to_text(), found.device.to_text()));
  copy(verb, found, out, method.queue);
}

/// Numbers of a list as an array like another one.
nb::object written_out(Library& library, nb::handle like, Dtype dtype, nb::handle list) {
  nb::dict options;
  options["dtype"] = library.dtype(dtype);
  if (library.kind == Library::Kind::torch) options["device"] = like.attr("device");
  return library.namespace_.attr("asarray")(list, **options);
}

/// The minimum or maximum of an array. A tensor that PyTorch follows is detached first, since reading it warns.
double extreme(nb::handle values, const char* name) {
  const nb::object plain = nb::hasattr(values, "detach") ? nb::object(values.attr("detach")()) : nb::borrow(values);
  return nb::cast<double>(nb::float_(plain.attr(name)()));
}

bool is_none(const nb::object& object) { return !object.is_valid() || object.is_none(); }

}  // namespace

bool is_list_of_numbers(nb::handle object) {
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) return true;
  return is_array(object) && nb::hasattr(object, "shape") && nb::len(nb::object(object.attr("shape"))) > 0;
}

KernelOperator::KernelOperator(nb::object f_in, nb::object x_in, Sides sides_in, nb::dict params_in)
    : f(std::move(f_in)), x(std::move(x_in)), sides(std::move(sides_in)), params(std::move(params_in)) {
  for (const char* name : kNotOffered)
    if (params.contains(name))
      throw Error(ErrorKind::unsupported,
                  fmt::format("{}: {} is not offered in operators, which are of the points x with themselves. Received "
                              "one",
                              kKernelVerb, name));
  if (PyCallable_Check(f.ptr())) f = nb::cast(Kernel(find_symbol(f, kKernelVerb)));
  const Unfollowed unfollowed;
  read_ridge();
  write_out(sides.weights);
  join_row_and_col();
  const OperatorCall call(kKernelVerb, *this);
  order = call.matrix().order;
  const ops::PairCall checked(kKernelVerb, call.kernel_call().formula(), call.kernel_call().x(), nullptr,
                              call.kernel_call().arguments(), false);
  if (!checked.batch().empty())
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: parameters must be numbers or arrays of one, since a batch of operators is not "
                            "offered. Received a batch {}.",
                            kKernelVerb, ops::text_of(checked.batch()).to_text()));
  if (order == 0) return;
  const bool unseen = call.matrix().device.kind == DeviceKind::cuda;
  for (const auto& [name, values] : {std::pair("ridge", &sides.ridge), std::pair("weights", &sides.weights)})
    if (unseen && is_array(*values)) require_not_negative(name, *values);
  if (is_array(sides.ridge)) ridge = extreme(sides.ridge, "min");
}

void KernelOperator::read_ridge() {
  if (is_list_of_numbers(sides.ridge)) return write_out(sides.ridge);
  ridge = to_number(sides.ridge, kKernelVerb, "ridge");
  if (!(ridge >= 0) || !std::isfinite(ridge))
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: ridge must be from 0 on and finite. Received {}.", kKernelVerb, ridge));
  sides.ridge = nb::float_(ridge);
}

/// Numbers of a list become an array of the library and dtype of x.
void KernelOperator::write_out(nb::object& values) const {
  if (is_none(values) || is_array(values)) return;
  const Array points(x, {kKernelVerb, "x"});
  values = written_out(points.library(), x, points.tensor().dtype, values);
}

/// Two arrays of the same numbers become one: the matrix is symmetric.
void KernelOperator::join_row_and_col() {
  if (is_none(sides.row) || is_none(sides.col) || sides.row.is(sides.col)) return;
  const auto shape_of = [](const nb::object& a) { return nb::tuple(a.attr("shape")); };
  const bool comparable = is_array(sides.row) && is_array(sides.col) &&
                          shape_of(sides.row).equal(shape_of(sides.col)) &&
                          sides.row.type().is(sides.col.type());
  if (!comparable) return;
  const nb::object are_same = nb::object(sides.row.attr("__eq__")(sides.col)).attr("all")();
  if (PyObject_IsTrue(are_same.ptr()) == 1) sides.col = sides.row;
}

/// Asks a device once: NaN is neither below zero nor above.
void KernelOperator::require_not_negative(const char* name, nb::handle values) const {
  const double least = extreme(values, "min"), largest = extreme(values, "max");
  if (!(least >= 0) || !std::isfinite(largest))
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: {} must be from 0 on and finite. Received {}.",
                                                         kKernelVerb, name, least >= 0 ? largest : least));
}

OperatorCall::OperatorCall(const char* verb, nb::handle a, nb::handle b) : verb_(verb) {
  if (KernelOperator* kernel = nullptr; nb::try_cast(a, kernel)) {
    kernel_ = kernel;
    take_kernel();
  } else if (nb::hasattr(a.type(), kMultiply)) {  // proxies of tracers have any attribute
    take_products(a);
  } else if (const nb::object foreign = adapted(a, b); !foreign.is_none()) {
    take_products(foreign);
  } else {
    stored_call_.emplace(verb, "a", a, false, nb::none());
    library_ = &library_of(a, {verb, "a"});
    like_ = nb::borrow(a);
    matrix_ = linalg::matrix_operator(stored_call_->a(), stored_call_->options().queue, Context::shared(), verb);
  }
  count_products();
}

OperatorCall::OperatorCall(const char* verb, const KernelOperator& kernel) : verb_(verb), kernel_(&kernel) {
  take_kernel();
  count_products();
}

/// None for arrays, and for what is no operator.
nb::object OperatorCall::adapted(nb::handle a, nb::handle b) const {
  if (is_array(a)) return nb::none();
  const nb::object adapt = nb::module_::import_("mercer.linalg._foreign").attr("adapted");
  return adapt(verb_, a, b.is_valid() ? nb::borrow(b) : nb::none());
}

/// Results are as what the method is given: `like` stands for the matrix.
void OperatorCall::take_products(nb::handle a) {
  nb::object like;
  if (nb::hasattr(a, kLike))
    like = a.attr(kLike);
  else
    like = nb::module_::import_("numpy").attr("empty")(nb::make_tuple(0, 0), nb::arg("dtype") = a.attr("dtype"));
  stored_call_.emplace(verb_, "a", like, false, nb::none());
  library_ = &library_of(like, {verb_, "a"});
  like_ = like;
  ridge_ = nb::cast<double>(a.attr("ridge"));
  const Queue& queue = stored_call_->options().queue;
  linalg::Operator made{nb::cast<std::int64_t>(a.attr("shape")[0]), stored_call_->a().dtype, {},
                        stored_call_->a().device, queue};
  Queue plain = queue;
  plain.allocate = {};
  // Copies of the operator are made without the GIL: they hold nothing.
  method_ = a.attr(kMultiply);
  const Method method{method_, like_, library_, plain};
  made.multiply = [verb = verb_, method](const Tensor& v, const Tensor& out) {
    multiply_by_method(verb, method, v, out);
  };
  matrix_ = std::move(made);
}

void OperatorCall::take_kernel() {
  const char* const verb = verb_;
  ridge_ = kernel_->ridge;
  if (is_jax(kernel_->x))
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: is not offered for arrays of jax. Received one for x.", verb));
  const KernelOperator::Sides& sides = kernel_->sides;
  const nb::int_ zero(0);
  const nb::bool_ no_bar(false);
  kernel_call_.emplace(verb, kernel_->f, kernel_->x, nb::none(),
                       Options{sides.row, sides.col, sides.w, zero, zero, nb::none(), no_bar,
                               nb::steal<nb::dict>(PyDict_Copy(kernel_->params.ptr()))});
  Arguments arguments = kernel_call_->arguments();
  arguments.progress = {};  // of one product; the call that takes many is watched
  library_ = &library_of(kernel_->x, {verb, "x"});
  like_ = kernel_->x;
  linalg::KernelTerms terms;
  if (is_array(sides.ridge))
    terms.ridges = &kernel_call_->input(sides.ridge, "ridge");
  else
    terms.ridge = nb::cast<double>(sides.ridge);
  if (!is_none(sides.weights)) terms.weights = &kernel_call_->input(sides.weights, "weights");
  matrix_ = linalg::kernel_operator(kernel_call_->formula(), kernel_call_->x(), terms, arguments);
}

/// Where a bar may show how many there were.
void OperatorCall::count_products() {
  if (!Watch::wants_bars) return;
  matrix_->multiply = [inner = std::move(matrix_->multiply)](const Tensor& v, const Tensor& out) {
    inner(v, out);
    Watch::count_product();
  };
}

nb::object OperatorCall::numbers(nb::handle list) const { return written_out(*library_, like_, Dtype::float64, list); }

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
