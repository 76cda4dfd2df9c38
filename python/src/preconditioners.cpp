// Preconditioners of mercer.linalg: how they are made, what they do, and how they pickle.
#include "preconditioners.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <variant>

#include "core/devices/cuda_driver.h"
#include "linalg_docs.h"
#include "operators.h"
#include "ops/context.h"
#include "ops/linalg/low_rank_parts.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

constexpr char kVerb[] = "Preconditioner";

/// What `work` makes of an operator.
template <class Work>
KeptPreconditioner make(const char* verb, OperatorCall& call, const Work& work) {
  std::optional<linalg::Preconditioner> made;
  Watch(verb, false).run([&] { made = work(call.matrix()); });
  call.finish();
  return {std::move(*made), make_array(call.library(), call.like(), call.matrix().dtype, {0}, {verb, "like"})};
}

double ridge_of(const OperatorCall& call, nb::handle given, const char* verb) {
  return given.is_none() ? call.ridge() : to_number(given, verb, "ridge");
}

KeptPreconditioner py_nystrom(nb::handle a, std::int64_t rank, nb::handle ridge, std::uint64_t seed) {
  OperatorCall call("nystrom", a);
  const double part = ridge_of(call, ridge, "nystrom");
  return make("nystrom", call, [&](const linalg::Operator& matrix) {
    return linalg::nystrom_preconditioner(matrix, rank, part, seed);
  });
}

KeptPreconditioner py_rpcholesky(nb::handle a, std::int64_t rank, nb::handle ridge, nb::handle block,
                                 std::uint64_t seed) {
  OperatorCall call("rpcholesky", a);
  const double part = ridge_of(call, ridge, "rpcholesky");
  linalg::RpcholeskyOptions options{.seed = seed, .ridge_in_rows = call.kernel() == nullptr};
  if (!nb::isinstance<nb::str>(block))
    options.block = not_zero(to_offset(block, "rpcholesky", "block"), "rpcholesky", "block");
  else if (nb::cast<std::string>(block) != "auto")
    throw Error(ErrorKind::invalid_argument,
                fmt::format("rpcholesky: block must be \"auto\" or a number. Received {}.", text_of(block, true)));
  return make("rpcholesky", call, [&](const linalg::Operator& matrix) {
    return linalg::rpcholesky_preconditioner(matrix, rank, part, options);
  });
}

KeptPreconditioner py_pivoted_cholesky(const KernelOperator& kernel, std::int64_t rank) {
  OperatorCall call("pivoted_cholesky", nb::find(kernel));
  return make("pivoted_cholesky", call, [&](const linalg::Operator& matrix) {
    return linalg::pivoted_cholesky_preconditioner(matrix, rank, call.ridge());
  });
}

nb::object apply(const KeptPreconditioner& self, nb::handle v, const char* verb,
                 void (linalg::Preconditioner::*work)(const Tensor&, const Tensor&, const Queue&) const) {
  LinalgCall call(verb, "v", v, false, nb::none());
  const LinalgCall::Output out = call.output(nb::none(), "out", call.a().dtype, call.a().shape);
  call.run([&](const linalg::Options& options) { (self.*work)(call.a(), *out.view, options.queue); });
  return out.object;
}

nb::object diagonal(const KeptPreconditioner& self) {
  LinalgCall call(kVerb, "like", self.like, false, nb::none());
  std::vector<std::int64_t> shape = {self.order};
  if (self.columns > 0) shape.push_back(self.columns);
  const LinalgCall::Output out = call.output(nb::none(), "out", self.dtype, shape);
  call.run([&](const linalg::Options& options) { self.diagonal(*out.view, options.queue); });
  return out.object;
}

/// A number, or an array of NumPy where there is one for each column.
nb::object numbers(const std::vector<double>& values, std::int64_t columns) {
  if (columns == 0) return nb::float_(values.front());
  return nb::module_::import_("numpy").attr("asarray")(nb::cast(values));
}

/// A number, a sequence or an array [k] of any library.
KeptPreconditioner with_ridge(const KeptPreconditioner& self, nb::object ridge) {
  if (nb::hasattr(ridge, "requires_grad") && nb::cast<bool>(ridge.attr("requires_grad")))
    throw Error(ErrorKind::unsupported, fmt::format("{}: ridge must not track gradients; pass ridge.detach()", kVerb));
  if (nb::hasattr(ridge, "tolist")) ridge = ridge.attr("tolist")();
  std::vector<double> ridges;
  if (PySequence_Check(ridge.ptr()) && !PyUnicode_Check(ridge.ptr())) {
    for (const nb::handle each : ridge) ridges.push_back(to_number(each, kVerb, "ridge"));
  } else {
    ridges.push_back(to_number(ridge, kVerb, "ridge"));
  }
  return {self.with_ridges(std::move(ridges)), self.like};
}

KeptPreconditioner weighted(const KeptPreconditioner& self, nb::handle w) {
  LinalgCall call(kVerb, "w", w, false, nb::none());
  std::optional<linalg::Preconditioner> made;
  call.run([&](const linalg::Options& options) { made = self.weighted(call.a(), options.queue); });
  return {std::move(*made), self.like};
}

/// What `like` pickles as: itself, or the name of its library, since arrays of CuPy come back where CuPy happens to be.
nb::object pickled(const nb::object& like, Device device) {
  const auto module = nb::cast<std::string>(nb::object(like.type().attr("__module__")));
  const std::string library = module.substr(0, module.find('.'));
  return device.kind == DeviceKind::cuda && (library == "torch" || library == "cupy") ? nb::str(library.c_str()) : like;
}

/// An empty array of that library on that device, which must be there.
nb::object unpickled(nb::object like, int device, Dtype dtype) {
  if (device >= cuda_device_count())
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: CUDA device {}, which it was made on, must be there where it is restored. Received {} "
                            "CUDA devices{}{}.",
                            kVerb, device, cuda_device_count(), cuda_why_not().empty() ? "" : ": ", cuda_why_not()));
  if (!nb::isinstance<nb::str>(like)) return like;
  return nb::module_::import_("mercer.linalg._foreign").attr("empty_on")(like, device, name_of(dtype));
}

/// The factor as an array of NumPy, a column a row, and the numbers that go with it; and back.
nb::tuple reduced(const KeptPreconditioner& self) {
  const linalg::LowRankParts& parts = *self.parts;
  const Tensor columns =
      parts.columns != nullptr ? parts.columns->columns() : Tensor(nullptr, self.dtype, {0, 0});
  const nb::object numpy = nb::module_::import_("numpy");
  const nb::object rows = numpy.attr("empty")(nb::make_tuple(columns.shape[1], columns.shape[0]),
                                              nb::arg("dtype") = numpy.attr(name_of(self.dtype)));
  if (parts.columns != nullptr)
    parts.columns->copy(Array(rows, {kVerb, "factor"}, Access::fresh).tensor().data, true);
  const nb::object restore = nb::module_::import_("mercer.linalg").attr("_restored_preconditioner");
  return nb::make_tuple(restore,
                        nb::make_tuple(rows, nb::cast(parts.values), nb::cast(parts.ridges), parts.least,
                                       parts.is_relative, parts.most_weight, pickled(self.like, self.device),
                                       self.device.kind == DeviceKind::cuda ? self.device.index : -1));
}

KeptPreconditioner restored(nb::handle rows, std::vector<double> values, std::vector<double> ridges, double least,
                            bool is_relative, double most_weight, nb::object like, int index) {
  const Array array(rows, {kVerb, "factor"});
  const Tensor& given = array.tensor();
  const bool fits = given.ndim() == 2 && (given.dtype == Dtype::float32 || given.dtype == Dtype::float64) &&
                    given.device.kind == DeviceKind::cpu && !ridges.empty() &&
                    (given.shape[1] == 0 || given.shape[0] == std::max<std::int64_t>(1, std::ssize(values)));
  if (!fits || (given.count() > 0 && (given.strides[1] != 1 || given.strides[0] != given.shape[1])))
    throw Error(ErrorKind::invalid_argument,
                fmt::format("Preconditioner: its factor must be a matrix of floats on the CPU, a row after another. "
                            "Received {}.",
                            given.to_text()));
  like = unpickled(std::move(like), index, given.dtype);
  const Device device =
      index >= 0 ? Device{DeviceKind::cuda, index} : Array(like, {kVerb, "like"}).tensor().device;
  const std::int64_t order = given.shape[1];
  linalg::LowRankParts parts{{}, std::move(values), least, is_relative, most_weight, std::move(ridges)};
  if (order > 0) {
    const std::shared_ptr<TallFactor> factor =
        device.kind == DeviceKind::cuda
            ? cuda::tall_factor(kVerb, given.dtype, order, given.shape[0], device)
            : cpu::tall_factor(kVerb, given.dtype, order, given.shape[0], Context::shared().state().pool);
    factor->copy(given.data, false);
    parts.columns = factor;
  }
  return {linalg::preconditioner_of(std::move(parts), order, given.dtype, device), std::move(like)};
}

}  // namespace

const linalg::Preconditioner* to_preconditioner(nb::handle object) {
  if (object.is_none()) return nullptr;
  KeptPreconditioner* found = nullptr;
  if (nb::try_cast(object, found)) return found;
  throw nb::type_error(fmt::format("cg: preconditioner must come from rpcholesky, nystrom or pivoted_cholesky. "
                                   "Received {}",
                                   type_text(object))
                           .c_str());
}

void bind_preconditioners(nb::module_& module) {
  using Self = KeptPreconditioner;
  nb::class_<Self>(module, "Preconditioner", kPreconditionerDoc)
      .def_prop_ro(
          "shape", [](const Self& self) { return nb::make_tuple(self.order, self.order); },
          nb::sig("def shape(self) -> tuple[int, int]"), "(n, n), that of the operator.")
      .def_prop_ro("rank", [](const Self& self) { return self.rank; }, "Columns of its factor.")
      .def_prop_ro(
          "ridge", [](const Self& self) { return numbers(self.ridges(), self.columns); },
          nb::sig("def ridge(self) -> float | typing.Any"), "A number, or an array [k] of NumPy: one for each column.")
      .def(
          "solve",
          [](const Self& self, nb::handle v) {
            return apply(self, v, "Preconditioner.solve", &linalg::Preconditioner::solve);
          },
          "v"_a, nb::sig(kPreconditionerSolveSignature), kPreconditionerSolveDoc)
      .def(
          "sqrt",
          [](const Self& self, nb::handle v) {
            return apply(self, v, "Preconditioner.sqrt", &linalg::Preconditioner::multiply_root);
          },
          "v"_a, nb::sig(kPreconditionerSqrtSignature), kPreconditionerSqrtDoc)
      .def(
          "logdet", [](const Self& self) { return numbers(self.logdet(), self.columns); },
          nb::sig("def logdet(self) -> float | typing.Any"),
          "log det P in float64: a number, or an array [k] of NumPy where P has a ridge for each column.")
      .def("diagonal", diagonal, nb::sig("def diagonal(self) -> typing.Any"),
           "The diagonal of P [n], or [n, k] where P has a ridge for each column, an array like those of the operator.")
      .def("with_ridge", with_ridge, "ridge"_a, nb::sig(kPreconditionerWithRidgeSignature), kPreconditionerWithRidgeDoc)
      .def("weighted", weighted, "w"_a, nb::sig(kPreconditionerWeightedSignature), kPreconditionerWeightedDoc)
      .def("__reduce__", reduced, nb::sig("def __reduce__(self) -> tuple"));
  module.def("restored_preconditioner", restored, "rows"_a, "values"_a, "ridges"_a, "least"_a, "is_relative"_a,
             "most_weight"_a, "like"_a, "device"_a = -1,
             nb::sig("def restored_preconditioner(rows: typing.Any, values: list[float], ridges: list[float], least: "
                     "float, is_relative: bool, most_weight: float, like: typing.Any, device: int = -1) -> "
                     "Preconditioner"),
             "What pickle makes a preconditioner of.");
  module.def("nystrom", py_nystrom, "a"_a, "rank"_a, nb::kw_only(), "ridge"_a = nb::none(), "seed"_a = 0,
             nb::sig(kNystromSignature), kNystromDoc);
  module.def("rpcholesky", py_rpcholesky, "a"_a, "rank"_a, nb::kw_only(), "ridge"_a = nb::none(), "block"_a = "auto",
             "seed"_a = 0, nb::sig(kRpcholeskySignature), kRpcholeskyDoc);
  module.def("pivoted_cholesky", py_pivoted_cholesky, "a"_a, "rank"_a, nb::sig(kPivotedCholeskySignature),
             kPivotedCholeskyDoc);
}

}  // namespace mercer::python
