// mercer.workspace_size: a call of a verb that ends where it would take its scratch memory.
#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include "calls.h"
#include "symbols.h"

namespace mercer::python {
namespace {

constexpr char kSignature[] =
    "def workspace_size(verb: str, /, *args: typing.Any, **kwargs: typing.Any) -> int";
constexpr char kDoc[] =
    R"doc(Bytes of scratch memory that a call of a verb takes, exactly; 0 on the CPU, but for the verbs of mercer.kron.

The arguments are those of the call, all of them checked: workspace_size("kernel_product", f, x, z, v, bandwidth=2.0).
An output that is not given is not made. Nothing is compiled or run, and no array is read. An array of uint8 with so
many bytes serves as workspace= of the call.

An array may be described in place of given: a pair (shape, dtype), whose elements lie in rows, PyTorch's tensor on
device="meta", or jax.ShapeDtypeStruct. Then device= must say where the call would run: "cpu", "cuda" for the current
device, or "cuda:1". Each description stands for an array of its own, but a meta tensor for the same one wherever it
stands.)doc";

std::int64_t py_workspace_size(const std::string& verb, const nb::args& args, const nb::kwargs& kwargs) {
  const nb::object verbs = nb::module_::import_("mercer._verbs").attr("WITH_WORKSPACE");
  if (!nb::cast<bool>(verbs.attr("__contains__")(verb))) {
    const auto known = nb::cast<std::string>(nb::str(", ").attr("join")(verbs));
    throw Error(ErrorKind::invalid_argument,
                fmt::format("workspace_size: the verb must be one of {}. Received \"{}\".", known, verb));
  }
  if (verb == "cdist" && kwargs.contains("metric") && kwargs["metric"].equal(nb::str("mahalanobis"))) {
    throw Error(ErrorKind::unsupported,
                "workspace_size: cdist with metric=\"mahalanobis\" makes other points first; ask for "
                "metric=\"euclidean\". Received \"mahalanobis\".");
  }
  if (kwargs.contains("normalize") && !kwargs["normalize"].is_none()) {
    throw Error(ErrorKind::unsupported,
                fmt::format("workspace_size: kernel_product with normalize= makes two calls, each with memory of its "
                            "own; leave normalize out. Received {}.",
                            nb::cast<std::string>(nb::repr(kwargs["normalize"]))));
  }
  const Measuring measuring;
  const Unfollowed unfollowed;
  const std::string name = verb.substr(verb.find('.') + 1);
  const nb::object arguments = nb::module_::import_("mercer._outlines").attr("described")(args, kwargs);
  nb::module_::import_("mercer._mercer").attr(name.c_str())(*nb::object(arguments[0]), **nb::object(arguments[1]));
  return measuring.rehearsal.bytes;
}

}  // namespace

void bind_workspace(nb::module_& module) {
  module.def("workspace_size", py_workspace_size, nb::sig(kSignature), kDoc);
}

}  // namespace mercer::python
