// mercer.tune: a call of a verb, made again and again with different tiles (mercer/tune.h).
#include "mercer/tune.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include "calls.h"
#include "jax_call.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

using Shape = std::vector<std::int64_t>;

constexpr char kSignature[] =
    "def tune_tiles(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, verb: str, "
    "v: mercer._types.ArrayT | None, reduce: str | None, out: mercer._types.ArrayT | None, row: mercer._types.ArrayT | "
    "None, col: mercer._types.ArrayT | None, w: mercer._types.ArrayT | None, progress: bool, params: dict[str, "
    "mercer._types.Parameter]) -> tuple[str, str, list[tuple[str, float]]]";
constexpr char kDoc[] = "What mercer.tune calls: (the chosen tile, the model's, all of them with their milliseconds).";

[[noreturn]] void refuse(ErrorKind kind, const std::string& rule, const std::string& received) {
  throw Error(kind, fmt::format("tune: {}. Received {}.", rule, received));
}

enum class Verb { pairwise, product, reduce };

Verb verb_named(const std::string& name, bool has_v, bool has_reduce) {
  const bool product = name == "kernel_product", reduce = name == "kernel_reduce";
  if (!product && !reduce && name != "pairwise" && name != "kernel_matrix" && name != "cdist" && name != "knn")
    refuse(ErrorKind::invalid_argument,
           "the verb must be pairwise, kernel_matrix, cdist, knn, kernel_product or kernel_reduce", '"' + name + '"');
  if (product != has_v)
    refuse(ErrorKind::invalid_argument, "v belongs to kernel_product, which needs it",
           fmt::format("{} v for {}", has_v ? "a" : "no", name));
  if (reduce != has_reduce)
    refuse(ErrorKind::invalid_argument, "reduce belongs to kernel_reduce, which needs it",
           fmt::format("{} for {}", has_reduce ? "one" : "none", name));
  return product ? Verb::product : reduce ? Verb::reduce : Verb::pairwise;
}

/// The verb's call for mercer::tune. Its output, where the caller gave none, lives as long as the Call.
class TunedCall {
 public:
  TunedCall(Call& call, Verb verb, nb::handle v, ReduceKind kind, nb::handle out)
      : call_(call), verb_(verb), kind_(kind), v_(verb == Verb::product ? &call.input(v, "v") : nullptr) {
    const bool index = verb == Verb::reduce && (kind == ReduceKind::argmin || kind == ReduceKind::argmax);
    held_ = call.output(out, "out", index ? Dtype::int64 : call.compute_dtype(), [&] { return shape(); }, out_);
  }

  void operator()(const Arguments& arguments) const {
    switch (verb_) {
      case Verb::pairwise: return pairwise(call_.formula(), call_.x(), call_.z(), *out_, arguments);
      case Verb::product: return kernel_product(call_.formula(), call_.x(), call_.z(), *v_, *out_, arguments);
      case Verb::reduce: return kernel_reduce(call_.formula(), call_.x(), call_.z(), kind_, *out_, arguments);
    }
  }

 private:
  Shape shape() const {
    const bool columns = v_ != nullptr && v_->ndim() > 1;
    Shape shape = call_.batch(columns ? Shape(v_->shape.begin(), v_->shape.end() - 2) : Shape{});
    shape.push_back(call_.rows());
    if (verb_ == Verb::pairwise) shape.push_back(call_.columns());
    if (columns) shape.push_back(v_->shape.back());
    return shape;
  }

  Call& call_;
  Verb verb_;
  ReduceKind kind_;
  const Tensor* v_;
  const Tensor* out_ = nullptr;
  nb::object held_;
};

nb::tuple py_tune(nb::handle f, nb::handle x, nb::handle z, const std::string& verb_name, nb::handle v,
                  nb::handle reduce, nb::handle out, nb::handle row, nb::handle col, nb::handle w, nb::handle progress,
                  nb::dict params) {
  const Verb verb = verb_named(verb_name, !v.is_none(), !reduce.is_none());
  if (!reduce.is_none() && !PyUnicode_Check(reduce.ptr()))
    refuse(ErrorKind::invalid_argument, "reduce must be a name", nb::cast<std::string>(nb::repr(reduce)));
  const ReduceKind kind =
      verb == Verb::reduce ? reduce_kind_from_text(nb::cast<std::string>(reduce)) : ReduceKind::sum;
  if (is_jax(x))
    refuse(ErrorKind::unsupported, "the arrays must be of a library whose stream is known, such as PyTorch or CuPy",
           "arrays of JAX");
  const nb::int_ zero(0);
  const nb::none none;
  Call call("tune", f, x, z, Options{row, col, w, zero, zero, none, progress, params});
  if (call.x().device.kind != DeviceKind::cuda)
    refuse(ErrorKind::unsupported, "x must lie on a CUDA device; tiles of the CPU are not measured",
           call.x().to_text());
  const TunedCall tuned(call, verb, v, kind, out);
  TuneReport report;
  call.run([&] { report = tune(call.arguments(), [&](const Arguments& arguments) { tuned(arguments); }); });
  return fields_of_tuned(report);
}

}  // namespace

nb::tuple fields_of_tuned(const TuneReport& report) {
  nb::list tiles;
  for (const TuneReport::Tile& tile : report.tiles) tiles.append(nb::make_tuple(tile.text, tile.milliseconds));
  return nb::make_tuple(report.chosen, report.model, tiles);
}

void bind_tune(nb::module_& module) {
  module.def("tune_tiles", py_tune, "f"_a, "x"_a, "z"_a.none(), "verb"_a, "v"_a.none(), "reduce"_a.none(),
             "out"_a.none(), "row"_a.none(), "col"_a.none(), "w"_a.none(), "progress"_a, "params"_a,
             nb::sig(kSignature), kDoc);
  module.def(
      "tune_cpu",
      [] {
        const Unlocked unlocked;
        return tune_cpu();
      },
      "Measures what vector instructions and ways cost on this processor and keeps it on disk; a table of it.");
  module.def(
      "tune_gpu",
      [](nb::handle device) {
        const int index = to_cuda_index(device, "tune");
        const Unlocked unlocked;
        return tune_gpu(index);
      },
      "device"_a, "Measures what stored values cost on a CUDA device and keeps it on disk; a table of it.");
}

}  // namespace mercer::python
