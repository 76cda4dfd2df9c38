#include "jax_call.h"

#include <fmt/format.h>

#include "mercer/error.h"
#include "ops/call/call.h"
#include "settings.h"

namespace mercer::python {
namespace {

using Shape = std::vector<std::int64_t>;

/// Reads the call as the other libraries' are read, then hands it to JAX.
class JaxCall {
 public:
  JaxCall(const char* verb, const char* operation, const Expr& formula)
      : verb_(verb), operation_(operation), formula_(formula) {
    arguments_.verb = verb;
  }

  void read_points(nb::handle x, nb::handle z) {
    x_ = add("x", x);
    check_points(x_, "x", "M");
    if (z.is_none() || z.is(x)) return;
    z_ = add("z", z);
    check_points(*z_, "z", "N");
    if (z_->dtype != x_.dtype) {
      throw DtypeError(fmt::format("{}: x and z must have one dtype. Received {} and {}", verb_, name_of(x_.dtype),
                                   name_of(z_->dtype)));
    }
  }

  void read_options(const Options& options) {
    if (!options.row.is_none()) arguments_.row = add_input("row", options.row);
    if (!options.col.is_none()) arguments_.col = add_input("col", options.col);
    if (!options.w.is_none()) arguments_.w = add_input("w", options.w);
    settings_["options"] = settings_text();
    settings_["i_offset"] = options.i_offset;
    settings_["j_offset"] = options.j_offset;
    arguments_.i_offset = to_offset(options.i_offset, verb_, "i_offset");
    arguments_.j_offset = to_offset(options.j_offset, verb_, "j_offset");
    for (const auto& [name, value] : options.params) read_param(name, value);
  }

  void read_extras(const Extras& extras) {
    for (const auto& [name, object] : extras.arrays) {
      if (object.is_none()) continue;
      const Tensor tensor = add_input(name, object);
      ops::check_computing_type(verb_, name, tensor, compute_type(x_.dtype));
      if (tensor.ndim() > 2) extra_ = ops::broadcast(verb_, extra_, ops::leading(tensor, 2));
    }
    for (const auto& [name, value] : extras.settings) settings_[name] = value;
  }

  nb::object run() {
    // The checks of the verb itself, before anything is traced.
    const std::string_view operation = operation_;
    const Formula formula = operation == "gradient_fold"    ? Formula::fold(formula_)
                            : operation == "gradient_field" ? Formula::field(formula_)
                                                            : Formula(formula_);
    ops::broadcast(verb_, batch_shape(formula, x_, z_ ? *z_ : x_, arguments_), extra_);
    return nb::module_::import_("mercer._jax")
        .attr("call")(verb_, operation_, formula_.to_text(), arrays_, numbers_, settings_);
  }

 private:
  Tensor add(const char* name, nb::handle object) {
    const Tensor tensor = jax_outline(object, {verb_, name});
    arrays_[name] = object;
    return tensor;
  }

  /// Checked here, since an error of XLA's has no class of its own.
  Tensor add_input(const char* name, nb::handle object) {
    const Tensor tensor = add(name, object);
    ops::check_input(verb_, name, tensor, 1);
    return tensor;
  }

  void check_points(const Tensor& points, const char* name, const char* axes) const {
    if (!is_of_points(points.dtype))
      throw DtypeError(fmt::format("{}: {} must be {}. Received {}; write {}.astype('float32')", verb_, name,
                                   kPointTypes, name_of(points.dtype), name));
    if (points.dtype == Dtype::int32 && !has_float64())
      throw DtypeError(
          fmt::format("{}: {} of int32 is computed in float64, which JAX has with jax_enable_x64. Received int32 "
                      "without it; write {}.astype('float32')",
                      verb_, name, name));
    if (points.ndim() >= 2) return;
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: {} must have the shape [..., {}, K]. Received {}.", verb_,
                                                         name, axes, points.to_text()));
  }

  static bool has_float64() {
    return nb::cast<bool>(nb::module_::import_("jax").attr("config").attr("jax_enable_x64"));
  }

  void read_param(nb::handle name, nb::handle value) {
    const auto text = nb::cast<std::string>(name);
    const bool written_out = PyList_Check(value.ptr()) || PyTuple_Check(value.ptr());
    if (written_out || is_array(value)) {
      const bool is_foreign = !written_out && !is_jax(value) && !is_numpy(value);
      if (is_foreign) jax_outline(value, {verb_, text.c_str()});  // refuses it
      const nb::object array =
          nb::module_::import_("mercer._jax").attr("parameter")(value, name_of(compute_type(x_.dtype)));
      arrays_[("p:" + text).c_str()] = array;
      arguments_.params[text] = jax_outline(array, {verb_, text.c_str()});
      return;
    }
    const double number = to_number(value, verb_, text.c_str());
    numbers_[name] = number;
    arguments_.params[text] = number;
  }

  const char* verb_;
  const char* operation_;
  Expr formula_;
  nb::dict arrays_, numbers_, settings_;
  Tensor x_;
  std::optional<Tensor> z_;
  Arguments arguments_;
  Shape extra_;
};

}  // namespace

Tensor jax_outline(nb::handle array, Place place) {
  static constexpr double kZero = 0;
  if (!is_jax(array)) {
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: {} must come from the library of x, jax. Received {}",
                                                         place.verb, place.name, type_text(array)));
  }
  const auto name = nb::cast<std::string>(array.attr("dtype").attr("name"));
  Shape shape;
  for (const nb::handle extent : array.attr("shape")) shape.push_back(nb::cast<std::int64_t>(extent));
  if (const auto dtype = dtype_of_name(name))
    return Tensor(const_cast<double*>(&kZero), *dtype, shape, Shape(shape.size(), 0));
  const bool is_whole = name.find("int") != std::string::npos;
  const char* const rule = place.is_whole ? "float16, bfloat16, float32, float64, int32 or int64" : kPointTypes;
  throw DtypeError(fmt::format("{}: {} must be {}. Received {}{}", place.verb, place.name, rule, name,
                               is_whole ? fmt::format("; write {}.astype('float32')", place.name) : ""));
}

void refuse_memory(const char* verb, nb::handle out, nb::handle workspace) {
  const auto refuse = [&](const char* name, const char* reason) {
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: {} is not offered for arrays of JAX, {}. Received one", verb, name, reason));
  };
  if (Measuring::current() != nullptr) refuse("workspace_size", "whose memory XLA hands out");
  if (!out.is_none()) refuse("out", "which cannot be written");
  if (!workspace.is_none()) refuse("workspace", "whose memory XLA hands out");
}

nb::object call_jax(const char* verb, const char* operation, const Expr& formula, nb::handle x, nb::handle z,
                    const Extras& extras, const Options& options, nb::handle out) {
  refuse_memory(verb, out, options.workspace);
  JaxCall call(verb, operation, formula);
  call.read_points(x, z);
  call.read_options(options);
  call.read_extras(extras);
  return call.run();
}

}  // namespace mercer::python
