// mercer.linalg.KernelOperator as Python sees it: what it is made of, and its products, rows and diagonal.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "linalg_docs.h"
#include "operators.h"
#include "ops/call/call.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

using Shape = std::vector<std::int64_t>;

constexpr char kVerb[] = "KernelOperator";

Tensor as_columns(const Tensor& t) {
  Tensor columns = t;
  if (t.ndim() == 1) {
    columns.shape.push_back(1);
    columns.strides.push_back(1);
  }
  return columns;
}

nb::object multiplied(nb::handle self, nb::handle v) {
  OperatorCall call(kVerb, self);
  const linalg::Operator& matrix = call.matrix();
  const Tensor& right = call.input(v, "v");
  if (right.ndim() < 1 || right.ndim() > 2 || right.shape[0] != matrix.order)
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: v must have the shape [n, k] or [n], n = {}. Received {}.", kVerb, matrix.order,
                            right.to_text()));
  if (right.dtype != matrix.dtype)
    throw DtypeError(
        fmt::format("{}: v must be {}. Received {}", kVerb, name_of(matrix.dtype), name_of(right.dtype)));
  const OperatorCall::Output out = call.output(nb::none(), "out", matrix.dtype, right.shape);
  if (right.count() > 0)
    Watch(kVerb, false).run([&] { matrix.multiply(as_columns(right), as_columns(*out.view)); });
  call.finish();
  return out.object;
}

/// v @ a is (a @ v^T)^T, a being symmetric. Vectors are not turned: PyTorch warns of it.
nb::object multiplied_from_the_left(const nb::object& self, nb::handle v) {
  if (!is_array(v)) return multiplied(self, v);
  const auto shape = nb::cast<Shape>(nb::object(v.attr("shape")));
  if (shape.size() == 1) return multiplied(self, v);
  const auto order = nb::cast<const KernelOperator&>(self).order;
  if (shape.size() != 2 || shape[1] != order)
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: v on the left must have the shape [k, n] or [n], n = {}. Received {}.", kVerb, order,
                            ops::text_of(shape)));
  return multiplied(self, nb::object(v.attr("T"))).attr("T");
}

nb::object diagonal(nb::handle self) {
  OperatorCall call(kVerb, self);
  const linalg::Operator& matrix = call.matrix();
  if (!matrix.diagonal)
    throw Error(ErrorKind::unsupported, fmt::format("{}: diagonal is not offered for formulas that read indices. "
                                                    "Received {}",
                                                    kVerb, call.kernel_call().formula().expression().to_text()));
  const OperatorCall::Output out = call.output(nb::none(), "out", matrix.dtype, {matrix.order});
  if (matrix.order > 0) Watch(kVerb, false).run([&] { matrix.diagonal(*out.view); });
  call.finish();
  return out.object.attr("__add__")(call.kernel()->sides.ridge);
}

/// Indices as Python writes them, from 0 to n - 1; `single`: there is one, and no axis.
std::vector<std::int64_t> indices_of(nb::handle i, std::int64_t n, bool& single) {
  single = PyIndex_Check(i.ptr()) != 0 && !is_list_of_numbers(i);
  nb::object list = nb::borrow(i);
  if (single) list = nb::make_tuple(i);
  if (PySlice_Check(i.ptr())) list = nb::module_::import_("builtins").attr("range")(*nb::tuple(i.attr("indices")(n)));
  if (!single && nb::hasattr(i, "tolist")) list = i.attr("tolist")();
  std::vector<std::int64_t> found;
  for (const nb::handle index : list) {
    if (PyBool_Check(index.ptr()) || PyIndex_Check(index.ptr()) == 0)
      throw nb::type_error(fmt::format("{}: rows are whole numbers. Received {}", kVerb, text_of(index, true)).c_str());
    const std::int64_t given = to_offset(nb::steal(PyNumber_Index(index.ptr())), kVerb, "a row");
    if (given < -n || given >= n)
      throw nb::index_error(
          fmt::format("{}: rows must be from {} to {}. Received {}", kVerb, -n, n - 1, given).c_str());
    found.push_back(given < 0 ? given + n : given);
  }
  return found;
}

nb::object rows(nb::handle self, nb::handle i) {
  OperatorCall call(kVerb, self);
  const linalg::Operator& matrix = call.matrix();
  bool single = false;
  const std::vector<std::int64_t> indices = indices_of(i, matrix.order, single);
  const auto count = static_cast<std::int64_t>(indices.size());
  const OperatorCall::Output out =
      call.output(nb::none(), "out", matrix.dtype, single ? Shape{matrix.order} : Shape{count, matrix.order});
  Tensor whole = *out.view;
  if (single) {
    whole.shape = {1, matrix.order};
    whole.strides = {matrix.order, 1};
  }
  Watch(kVerb, false).run([&] { matrix.rows(indices, whole); });
  call.finish();
  nb::list places;
  for (const std::int64_t index : indices) places.append(index);
  nb::module_::import_("mercer.linalg._foreign").attr("add_ridges")(out.object, places, call.kernel()->sides.ridge);
  return out.object;
}

nb::object device_of(const KernelOperator& self) {
  return nb::hasattr(self.x, "device") ? nb::object(self.x.attr("device")) : nb::object(nb::str("cpu"));
}

nb::tuple reduced(const KernelOperator& self) {
  const nb::object restore = nb::module_::import_("mercer.linalg").attr("_restored_operator");
  nb::dict sides;
  const KernelOperator::Sides& own = self.sides;
  for (const auto& [name, value] : {std::pair("weights", &own.weights), std::pair("w", &own.w),
                                    std::pair("row", &own.row), std::pair("col", &own.col)})
    if (!value->is_none()) sides[name] = *value;
  return nb::make_tuple(restore, nb::make_tuple(self.f, self.x, own.ridge, self.params, sides));
}

}  // namespace

void bind_kernel_operator(nb::module_& module) {
  nb::class_<KernelOperator> operators(module, "KernelOperator", kKernelOperatorDoc);
  operators
      .def(
          "__init__",
          [](KernelOperator* self, nb::object f, nb::object x, nb::object ridge, nb::object weights, nb::object w,
             nb::object row, nb::object col, nb::kwargs params) {
            new (self) KernelOperator(std::move(f), std::move(x),
                                      {std::move(ridge), std::move(weights), std::move(w), std::move(row),
                                       std::move(col)},
                                      nb::dict(params));
          },
          "f"_a, "x"_a, nb::kw_only(), "ridge"_a = 0.0, "weights"_a = nb::none(), "w"_a = nb::none(),
          "row"_a = nb::none(), "col"_a = nb::none(), "params"_a, nb::sig(kKernelOperatorSignature))
      .def_prop_ro(
          "shape", [](const KernelOperator& self) { return nb::make_tuple(self.order, self.order); },
          nb::sig("def shape(self) -> tuple[int, int]"), "(n, n) for n points.")
      .def_prop_ro(
          "dtype", [](const KernelOperator& self) { return self.x.attr("dtype"); },
          nb::sig("def dtype(self) -> typing.Any"), "That of the points, as their library writes it.")
      .def_prop_ro("device", device_of, nb::sig("def device(self) -> typing.Any"),
                   "That of the points, as their library writes it; \"cpu\" where it has none.")
      .def_prop_ro(
          "ridge", [](const KernelOperator& self) { return self.sides.ridge; },
          nb::sig("def ridge(self) -> typing.Any"), "What is added to the diagonal, a float or an array [n].")
      .def_prop_ro(
          "weights", [](const KernelOperator& self) { return self.sides.weights; },
          nb::sig("def weights(self) -> typing.Any"), "The weights of the points, [n], or None.")
      .def_prop_ro(
          "points", [](const KernelOperator& self) { return self.x; }, nb::sig("def points(self) -> typing.Any"),
          "The points x, as they were given.")
      .def_prop_ro("T", [](nb::object self) { return self; }, nb::sig("def T(self) -> KernelOperator"),
                   "The operator itself, which is symmetric.")
      .def("__matmul__", multiplied, "v"_a, nb::sig(kMultipliedSignature), kMultipliedDoc)
      .def("__rmatmul__", multiplied_from_the_left, "v"_a, nb::sig(kMultipliedFromTheLeftSignature),
           "v a, which is (a v^T)^T.")
      .def("diagonal", diagonal, nb::sig("def diagonal(self) -> typing.Any"), kDiagonalDoc)
      .def("rows", rows, "i"_a, nb::sig("def rows(self, i: typing.Any) -> typing.Any"), kRowsDoc)
      .def(
          "to_linear_operator",
          [](nb::object self) {
            return nb::module_::import_("mercer.linalg._foreign").attr("to_linear_operator")(self);
          },
          nb::sig("def to_linear_operator(self) -> typing.Any"), kToLinearOperatorDoc)
      .def("__reduce__", reduced, nb::sig("def __reduce__(self) -> tuple"));
  operators.def("matvec", multiplied, "v"_a, nb::sig(kMatvecSignature), kScipyDoc);
  operators.def("matmat", multiplied, "v"_a, nb::sig(kMatmatSignature), kScipyDoc);
  operators.def("rmatvec", multiplied, "v"_a, nb::sig(kRmatvecSignature), kScipyDoc);
  operators.def("rmatmat", multiplied, "v"_a, nb::sig(kRmatmatSignature), kScipyDoc);
  // Arrays of NumPy leave v @ a to this class.
  operators.attr("__array_ufunc__") = nb::none();
}

}  // namespace mercer::python
