// mercer.linalg.cg and its preconditioners.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "linalg_docs.h"
#include "operators.h"
#include "ops/context.h"
#include "ops/linalg/low_rank_inverse.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

using Shape = std::vector<std::int64_t>;

/// What is not there stands for nothing.
const linalg::Preconditioner* to_preconditioner(nb::handle object) {
  if (object.is_none()) return nullptr;
  linalg::Preconditioner* found = nullptr;
  if (nb::try_cast(object, found)) return found;
  throw nb::type_error(
      fmt::format("cg: preconditioner must come from nystrom or pivoted_cholesky. Received {}", type_text(object))
          .c_str());
}

/// A number, or one for each column: those written as a list become an array of the library of b.
void read_ridge(OperatorCall& call, nb::handle given, linalg::CgOptions& options) {
  if (given.is_none()) return;
  const bool is_list = PyList_Check(given.ptr()) || PyTuple_Check(given.ptr());
  if (!is_list && !is_carried(given)) {
    options.ridge = to_number(given, "cg", "ridge");
    return;
  }
  options.ridges = &call.input(is_list ? call.numbers(given) : nb::borrow(given), "ridge");
}

nb::object py_cg(nb::handle a, nb::handle b, nb::handle ridge, nb::handle preconditioner, nb::handle tol,
                 nb::handle max_iter, nb::handle x0, nb::handle out, bool check) {
  linalg::CgOptions options;
  options.verb = "cg";
  if (!tol.is_none()) options.tolerance = not_zero(to_number(tol, "cg", "tol"), "cg", "tol");
  if (!max_iter.is_none())
    options.most_products = not_zero(to_offset(max_iter, "cg", "max_iter"), "cg", "max_iter");
  options.preconditioner = to_preconditioner(preconditioner);
  OperatorCall call("cg", a, b);
  const Tensor& right = call.input(b, "b");
  read_ridge(call, ridge, options);
  if (!x0.is_none()) options.guess = &call.input(x0, "x0");
  if (right.ndim() < 1 || right.ndim() > 2 || right.shape[0] != call.matrix().order)
    throw Error(ErrorKind::invalid_argument,
                fmt::format("cg: b must have the shape [n, k] or [n], n = {} as in a. Received {}.",
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
  Watch("cg", false).run([&] { linalg::cg(call.matrix(), right, *x.view, options); });
  call.finish();
  return check ? x.object : nb::object(nb::make_tuple(x.object, info.object, iterations.object));
}

linalg::Preconditioner py_nystrom(nb::handle a, std::int64_t rank, nb::handle ridge, std::uint64_t seed) {
  OperatorCall call("nystrom", a);
  double part = call.ridge();
  if (!ridge.is_none()) part = to_number(ridge, "nystrom", "ridge");
  std::optional<linalg::Preconditioner> made;
  Watch("nystrom", false).run([&] { made = linalg::nystrom_preconditioner(call.matrix(), rank, part, seed); });
  call.finish();
  return *made;
}

linalg::Preconditioner py_pivoted_cholesky(const KernelOperator& kernel, std::int64_t rank) {
  if (!kernel.sides.weights.is_none())
    throw Error(ErrorKind::unsupported,
                "pivoted_cholesky: is not offered for operators with weights of points. Received one");
  OperatorCall call("pivoted_cholesky", nb::find(kernel));
  Arguments arguments = call.kernel_call().arguments();
  arguments.progress = {};
  std::optional<linalg::Preconditioner> made;
  Watch("pivoted_cholesky", false).run([&] {
    made = linalg::pivoted_cholesky_preconditioner(call.kernel_call().formula(), call.kernel_call().x(), kernel.ridge,
                                                   rank, arguments);
  });
  call.finish();
  return *made;
}

/// The factor as an array of NumPy, a column a row, and the number of its CUDA device; and back.
nb::tuple reduced(const linalg::Preconditioner& self) {
  const auto* inverse = self.apply.target<linalg::LowRankInverse>();  // null where there are no rows
  const Tensor columns = inverse != nullptr ? inverse->factor->columns() : Tensor(nullptr, self.dtype, {0, 0});
  const nb::object numpy = nb::module_::import_("numpy");
  const nb::object rows = numpy.attr("empty")(nb::make_tuple(columns.shape[1], columns.shape[0]),
                                              nb::arg("dtype") = numpy.attr(name_of(self.dtype)));
  if (inverse != nullptr)
    inverse->factor->copy(Array(rows, {"Preconditioner", "factor"}, Access::fresh).tensor().data, true);
  const nb::object device = self.device.kind == DeviceKind::cuda ? nb::object(nb::int_(self.device.index)) : nb::none();
  const nb::object restore = nb::module_::import_("mercer.linalg").attr("_restored_preconditioner");
  return nb::make_tuple(restore, nb::make_tuple(rows, inverse != nullptr ? inverse->scale : 1.0, self.rank, device));
}

linalg::Preconditioner restored(nb::handle rows, double scale, std::int64_t rank, std::optional<int> index) {
  const Array array(rows, {"Preconditioner", "factor"});
  const Tensor& given = array.tensor();
  const bool fits = given.ndim() == 2 && (given.dtype == Dtype::float32 || given.dtype == Dtype::float64) &&
                    given.device.kind == DeviceKind::cpu;
  if (!fits || (given.count() > 0 && (given.strides[1] != 1 || given.strides[0] != given.shape[1])))
    throw Error(ErrorKind::invalid_argument,
                fmt::format("Preconditioner: its factor must be a matrix of floats on the CPU, a row after another. "
                            "Received {}.",
                            given.to_text()));
  const Device device = index ? Device{DeviceKind::cuda, *index} : Device{};
  const std::int64_t order = given.shape[1];
  if (order == 0) {
    const auto nothing = [](const Tensor&, const Tensor&, const Queue&) {};
    return {0, 0, given.dtype, device, nothing, nothing};
  }
  const std::shared_ptr<TallFactor> factor =
      index ? cuda::tall_factor("Preconditioner", given.dtype, order, given.shape[0], device)
            : cpu::tall_factor("Preconditioner", given.dtype, order, given.shape[0], Context::shared().state().pool);
  factor->copy(given.data, false);
  return linalg::preconditioner_of({factor, scale}, order, rank, given.dtype, device);
}

}  // namespace

void bind_cg(nb::module_& module) {
  using linalg::Preconditioner;
  nb::class_<Preconditioner>(module, "Preconditioner", kPreconditionerDoc)
      .def_prop_ro(
          "shape", [](const Preconditioner& self) { return nb::make_tuple(self.order, self.order); },
          nb::sig("def shape(self) -> tuple[int, int]"), "(n, n), that of the operator.")
      .def_prop_ro(
          "rank", [](const Preconditioner& self) { return self.rank; }, "Columns of its factor.")
      .def("__reduce__", reduced, nb::sig("def __reduce__(self) -> tuple"));
  module.def("restored_preconditioner", restored, "rows"_a, "scale"_a, "rank"_a, "device"_a = nb::none(),
             nb::sig("def restored_preconditioner(rows: typing.Any, scale: float, rank: int, "
                     "device: int | None = None) -> Preconditioner"),
             "What pickle makes a preconditioner of.");
  module.def("cg", py_cg, "a"_a, "b"_a, nb::kw_only(), "ridge"_a = nb::none(), "preconditioner"_a = nb::none(),
             "tol"_a = nb::none(), "max_iter"_a = nb::none(), "x0"_a = nb::none(), "out"_a = nb::none(),
             "check"_a = true, nb::sig(kCgChecked), kCgDoc);
  module.def("cg", py_cg, "a"_a, "b"_a, nb::kw_only(), "ridge"_a = nb::none(), "preconditioner"_a = nb::none(),
             "tol"_a = nb::none(), "max_iter"_a = nb::none(), "x0"_a = nb::none(), "out"_a = nb::none(), "check"_a,
             nb::sig(kCgUnchecked));
  module.def("nystrom", py_nystrom, "a"_a, "rank"_a, nb::kw_only(), "ridge"_a = nb::none(), "seed"_a = 0,
             nb::sig(kNystromSignature), kNystromDoc);
  module.def("pivoted_cholesky", py_pivoted_cholesky, "a"_a, "rank"_a, nb::sig(kPivotedCholeskySignature),
             kPivotedCholeskyDoc);
}

}  // namespace mercer::python
