// mercer.linalg.cg and minres.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "linalg_docs.h"
#include "operators.h"
#include "preconditioners.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

using Shape = std::vector<std::int64_t>;

/// A number, or one for each column: those written as a list become an array of the library of b.
void read_ridge(const char* verb, OperatorCall& call, nb::handle given, linalg::CgOptions& options) {
  if (given.is_none()) return;
  const bool is_list = PyList_Check(given.ptr()) || PyTuple_Check(given.ptr());
  if (!is_list && !is_carried(given)) {
    options.ridge = to_number(given, verb, "ridge");
    return;
  }
  options.ridges = &call.input(is_list ? call.numbers(given) : nb::borrow(given), "ridge");
}

using Method = void (*)(const linalg::Operator&, const Tensor&, const Tensor&, const linalg::CgOptions&, Context&);

/// What cg and minres share.
nb::object solved(const char* verb, Method method, nb::handle a, nb::handle b, nb::handle ridge,
                  const linalg::Preconditioner* preconditioner, nb::handle tol, nb::handle max_iter, nb::handle x0,
                  nb::handle out, bool check) {
  linalg::CgOptions options;
  options.verb = verb;
  if (!tol.is_none()) options.tolerance = not_zero(to_number(tol, verb, "tol"), verb, "tol");
  if (!max_iter.is_none()) options.most_products = not_zero(to_offset(max_iter, verb, "max_iter"), verb, "max_iter");
  options.preconditioner = preconditioner;
  OperatorCall call(verb, a, b);
  const Tensor& right = call.input(b, "b");
  read_ridge(verb, call, ridge, options);
  if (!x0.is_none()) options.guess = &call.input(x0, "x0");
  if (right.ndim() < 1 || right.ndim() > 2 || right.shape[0] != call.matrix().order)
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: b must have the shape [n, k] or [n], n = {} as in a. Received {}.", verb,
                            call.matrix().order, right.to_text()));
  const Shape columns(right.shape.begin() + 1, right.shape.end());
  const OperatorCall::Output x = call.output(out, "out", call.matrix().dtype, right.shape);
  OperatorCall::Output info, iterations;
  if (!check) {
    info = call.output(nb::none(), "info", Dtype::int64, columns);
    iterations = call.output(nb::none(), "iterations", Dtype::int64, columns);
    options.info = info.view;
    options.iterations = iterations.view;
  }
  Watch(verb, false).run([&] { method(call.matrix(), right, *x.view, options, Context::shared()); });
  call.finish();
  return check ? x.object : nb::object(nb::make_tuple(x.object, info.object, iterations.object));
}

nb::object py_cg(nb::handle a, nb::handle b, nb::handle ridge, nb::handle preconditioner, nb::handle tol,
                 nb::handle max_iter, nb::handle x0, nb::handle out, bool check) {
  return solved("cg", linalg::cg, a, b, ridge, to_preconditioner(preconditioner), tol, max_iter, x0, out, check);
}

nb::object py_minres(nb::handle a, nb::handle b, nb::handle ridge, nb::handle tol, nb::handle max_iter, nb::handle x0,
                     nb::handle out, bool check) {
  return solved("minres", linalg::minres, a, b, ridge, nullptr, tol, max_iter, x0, out, check);
}

}  // namespace

void bind_cg(nb::module_& module) {
  module.def("cg", py_cg, "a"_a, "b"_a, nb::kw_only(), "ridge"_a = nb::none(), "preconditioner"_a = nb::none(),
             "tol"_a = nb::none(), "max_iter"_a = nb::none(), "x0"_a = nb::none(), "out"_a = nb::none(),
             "check"_a = true, nb::sig(kCgChecked), kCgDoc);
  module.def("cg", py_cg, "a"_a, "b"_a, nb::kw_only(), "ridge"_a = nb::none(), "preconditioner"_a = nb::none(),
             "tol"_a = nb::none(), "max_iter"_a = nb::none(), "x0"_a = nb::none(), "out"_a = nb::none(), "check"_a,
             nb::sig(kCgUnchecked));
  module.def("minres", py_minres, "a"_a, "b"_a, nb::kw_only(), "ridge"_a = nb::none(), "tol"_a = nb::none(),
             "max_iter"_a = nb::none(), "x0"_a = nb::none(), "out"_a = nb::none(), "check"_a = true,
             nb::sig(kMinresChecked), kMinresDoc);
  module.def("minres", py_minres, "a"_a, "b"_a, nb::kw_only(), "ridge"_a = nb::none(), "tol"_a = nb::none(),
             "max_iter"_a = nb::none(), "x0"_a = nb::none(), "out"_a = nb::none(), "check"_a,
             nb::sig(kMinresUnchecked));
}

}  // namespace mercer::python
