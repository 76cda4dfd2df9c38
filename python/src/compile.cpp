// mercer.compile: a request of Python's lists for mercer/compile.h.
#include "mercer/compile.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <algorithm>

#include "docs.h"
#include "gil.h"
#include "libraries.h"
#include "mercer/error.h"
#include "ops/call/compile_sources.h"
#include "settings.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

[[noreturn]] void refuse(const char* rule, nb::handle received) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("compile: {}. Received {}.", rule, nb::cast<std::string>(nb::repr(received))));
}

CompileRequest::Sizes sizes_of(nb::handle shape) {
  constexpr const char* kRule = "shapes must be tuples (M, N, K) or (batch, M, N, K) of whole numbers";
  if (!PySequence_Check(shape.ptr()) || PyUnicode_Check(shape.ptr())) refuse(kRule, shape);
  const std::size_t axes = nb::len(shape);
  if (axes != 3 && axes != 4) refuse(kRule, shape);
  std::int64_t extents[4] = {1, 0, 0, 0};
  for (std::size_t axis = 0; axis < axes; ++axis) {
    if (!nb::try_cast(shape[axis], extents[4 - axes + axis])) refuse(kRule, shape);
  }
  return {extents[0], extents[1], extents[2], extents[3]};
}

/// A name, or a dtype of any library: the last word of its text, "float32" of "torch.float32" and of numpy.float32.
Dtype dtype_of_object(nb::handle object) {
  std::string name;
  if (PyUnicode_Check(object.ptr()))
    name = nb::cast<std::string>(object);
  else if (nb::hasattr(object, "__name__"))
    name = nb::cast<std::string>(object.attr("__name__"));
  else
    name = nb::cast<std::string>(nb::str(object));
  name = name.substr(name.rfind('.') + 1);
  if (const auto dtype = dtype_of_name(name); dtype && is_of_points(*dtype)) return *dtype;
  refuse(fmt::format("dtypes must be {}", kPointTypes).c_str(), object);
}

Layout layout_of(nb::handle name) {
  if (!PyUnicode_Check(name.ptr())) refuse("a layout must be \"row\" or \"column\"", name);
  return layout_from_text(nb::cast<std::string>(name));
}

CompileRequest::Layouts layouts_of(nb::handle entry) {
  if (PyUnicode_Check(entry.ptr())) return {layout_of(entry), layout_of(entry), layout_of(entry)};
  if (!PySequence_Check(entry.ptr()) || nb::len(entry) != 3) {
    refuse("layouts must be \"row\", \"column\" or triples of them, of x, z and out", entry);
  }
  return {layout_of(entry[0]), layout_of(entry[1]), layout_of(entry[2])};
}

CompileRequest::Where device_of(nb::handle entry) {
  constexpr const char* kRule = "devices must be \"cpu\", indices of CUDA devices or architectures such as \"sm_90a\"";
  if (int index = 0; PyLong_Check(entry.ptr())) {
    if (!nb::try_cast(entry, index)) refuse(kRule, entry);
    return {{DeviceKind::cuda, index}, {}};
  }
  if (!PyUnicode_Check(entry.ptr()) || nb::len(entry) == 0) refuse(kRule, entry);
  const auto name = nb::cast<std::string>(entry);
  return name == "cpu" ? CompileRequest::Where{} : CompileRequest::Where{{DeviceKind::cuda, 0}, name};
}

template <class Entry>
std::vector<Entry> list_of(nb::handle entries, const char* name, Entry (*read)(nb::handle)) {
  if (PyUnicode_Check(entries.ptr()) || !PySequence_Check(entries.ptr())) {
    refuse(fmt::format("{} must be a list", name).c_str(), entries);
  }
  std::vector<Entry> list;
  for (const nb::handle entry : entries) list.push_back(read(entry));
  return list;
}

std::string text_of(nb::handle name) {
  if (!PyUnicode_Check(name.ptr())) refuse("verbs must be names", name);
  return nb::cast<std::string>(name);
}

CompileRequest request_of(nb::handle shapes, nb::handle dtypes, nb::handle layouts, nb::handle devices,
                          nb::handle verbs, std::int64_t columns, const nb::kwargs& params) {
  CompileRequest request;
  request.shapes = list_of(shapes, "shapes", sizes_of);
  request.dtypes = list_of(dtypes, "dtypes", dtype_of_object);
  request.layouts = list_of(layouts, "layouts", layouts_of);
  request.devices = list_of(devices, "devices", device_of);
  request.verbs = list_of(verbs, "verbs", text_of);
  request.columns = columns;
  for (const auto& [name, value] : params) {
    double& number = request.params[nb::cast<std::string>(name)];
    if (is_carried(value) || !nb::try_cast(value, number))
      refuse("params must be numbers; leave out those that the calls will give as arrays", value);
  }
  return request;
}

Formula formula_of(nb::handle f, nb::handle verbs, nb::handle combine, nb::kwargs& params) {
  const std::vector<std::string> names = list_of(verbs, "verbs", text_of);
  if (!combine.is_none()) return find_fold(f, "compile", text_of(combine), nullptr);
  if (std::find(names.begin(), names.end(), "gradient_field") != names.end()) return find_field(f, "compile");
  return compiled_formula(f, "compile", params);
}

void py_compile(nb::handle f, nb::handle shapes, nb::handle dtypes, nb::handle layouts, nb::handle devices,
                nb::handle verbs, std::int64_t columns, nb::handle combine, nb::kwargs params) {
  const Formula formula = formula_of(f, verbs, combine, params);
  const CompileRequest request = request_of(shapes, dtypes, layouts, devices, verbs, columns, params);
  const CallSettings settings;
  const Unlocked unlocked;
  compile(formula, request);
}

void py_write_store(const std::string& folder, nb::handle f, nb::handle shapes, nb::handle dtypes, nb::handle layouts,
                    nb::handle devices, nb::handle verbs, std::int64_t columns, nb::kwargs params) {
  const Formula formula = formula_of(f, verbs, nb::none(), params);
  const CompileRequest request = request_of(shapes, dtypes, layouts, devices, verbs, columns, params);
  const Unlocked unlocked;
  ops::write_cuda_store(folder, formula, request);
}

}  // namespace

void bind_compile(nb::module_& module) {
  module.def("compile", py_compile, "f"_a, nb::kw_only(), "shapes"_a, "dtypes"_a = nb::make_tuple("float32"),
             "layouts"_a = nb::make_tuple("row"), "devices"_a = nb::make_tuple("cpu"),
             "verbs"_a = nb::make_tuple("pairwise"), "columns"_a = 1, "combine"_a = nb::none(), "params"_a,
             nb::sig(kCompileSignature), kCompileDoc);
  module.def("write_cuda_store", py_write_store, "folder"_a, "f"_a, nb::kw_only(), "shapes"_a,
             "dtypes"_a = nb::make_tuple("float32"), "layouts"_a = nb::make_tuple("row"), "devices"_a,
             "verbs"_a = nb::make_tuple("pairwise"), "columns"_a = 1, "params"_a,
             nb::sig("def write_cuda_store(folder: str, f: mercer._types.FormulaLike, *, shapes: "
                     "collections.abc.Sequence[tuple[int, ...]], dtypes: collections.abc.Sequence[typing.Any] = "
                     "('float32',), layouts: collections.abc.Sequence[str | tuple[str, str, str]] = ('row',), devices: "
                     "collections.abc.Sequence[int | str], verbs: collections.abc.Sequence[str] = ('pairwise',), "
                     "columns: int = 1, **params: float) -> None"),
             "Compiles as compile does for CUDA, into a folder of GPU kernels that will be shipped.");
}

}  // namespace mercer::python
