// The verbs: mercer/pairwise.h for arrays of any library. Each reads its arguments, makes the output where the caller
// gave none, and runs without the GIL.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cmath>
#include <map>

#include "calls.h"
#include "docs.h"
#include "jax_call.h"
#include "mercer/error.h"
#include "mercer/explain.h"
#include "mercer/zoo.h"
#include "ops/call/call.h"
#include "ops/gpu/streamed.h"
#include "ops/pairs/backward_call.h"
#include "ops/pairs/backward_plan.h"
#include "ops/pairs/both_sides.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

using Shape = std::vector<std::int64_t>;

Shape joined(Shape batch, std::initializer_list<std::int64_t> rest) {
  batch.insert(batch.end(), rest);
  return batch;
}

Shape leading(const Tensor& tensor, int trailing) {
  return tensor.ndim() > trailing ? ops::leading(tensor, trailing) : Shape{};
}

/// Which verb runs, and for errors under which name.
struct Verb {
  const char* name;
  const char* operation;
};

/// The operator of PyTorch that stands for the verb (mercer/_torch), for tensors that PyTorch follows.
nb::object call_torch(Verb verb, const std::string& formula, nb::handle x, nb::handle z, const Extras& extras,
                      const Options& options, nb::handle out) {
  nb::dict arrays, settings;
  for (const auto& [name, array] : extras.arrays) arrays[name] = array;
  for (const auto& [name, value] : extras.settings) settings[name] = value;
  arrays["row"] = options.row;
  arrays["col"] = options.col;
  arrays["w"] = options.w;
  settings["i_offset"] = options.i_offset;
  settings["j_offset"] = options.j_offset;
  settings["out"] = out;
  settings["workspace"] = options.workspace;
  return nb::module_::import_("mercer._torch")
      .attr("call")(verb.name, verb.operation, formula, x, z, arrays, settings, options.params);
}

[[noreturn]] void refuse_fold(Verb verb) {
  fail(ErrorKind::unsupported,
       "{}: with combine=, but for a sum of coef*amplitude*phi, it has no derivative and PyTorch cannot trace it; "
       "detach the tensors, or call it outside of what is traced. Received a tensor that requires a gradient or is "
       "traced.",
       verb.name);
}

[[noreturn]] void fail_to_stream(const char* verb, const char* received) {
  throw Error(ErrorKind::unsupported,
              fmt::format("{}: device= takes arrays of NumPy and tensors of PyTorch on the CPU, without gradients and "
                          "tracers. Received {}",
                          verb, received));
}

/// A verb on arrays of any library: `run(call)` where they are memory, else through JAX or PyTorch, which are handed
/// `extras()` as well. For gradient_field the formula is a field.
template <class MakeExtras, class Run>
nb::object run_verb(Verb verb, const Formula& formula, nb::handle x, nb::handle z, const Options& options,
                    nb::handle out, const MakeExtras& extras, const Run& run) {
  const Formula::Prepared& prepared = formula.prepared();
  const char* operation = prepared.is_fold ? "gradient_fold" : verb.operation;
  if (options.streams() && is_jax(x)) fail_to_stream(verb.name, "an array of jax");
  if (is_jax(x)) return call_jax(verb.name, operation, prepared.written, x, z, extras(), options, out);
  const bool is_measured = Measuring::current() != nullptr;
  if (is_measured || !is_recorded(x, {verb.name, "x"})) {
    try {
      Call call(verb.name, formula, x, z, options);
      return run(call);
    } catch (const FollowedTensor&) {
      if (is_measured || !is_torch(x)) throw;  // inside vmap; or a stray tensor among others
    }
  }
  if (prepared.is_fold) refuse_fold(verb);
  if (options.streams()) fail_to_stream(verb.name, "tensors that PyTorch follows");
  const bool is_whole = prepared.written.node() == prepared.expression.node();
  return call_torch(verb, is_whole ? prepared.key : prepared.written.to_text(), x, z, extras(), options, out);
}

Extras no_extras() { return {}; }

using ops::Streamed;

/// Runs the verb on the device of its arrays, or what `streamed` describes on the device that the call names.
template <class Work, class MakeStreamed>
void run_where(Call& call, const Work& work, const MakeStreamed& streamed, double terms = Call::kMany) {
  if (!call.device()) return call.run(work, terms);
  call.require_whole_files();
  const Streamed described = streamed();
  call.run([&] {
    ops::run_streamed(*call.device(), call.formula(), call.x(), call.z(), described, call.arguments());
  });
}

nb::object pairwise_into(Call& call, nb::handle out) {
  const Tensor* view = nullptr;
  nb::object result = call.output(
      out, "out", call.compute_dtype(),
      [&] {
        return joined(call.batch(), {call.rows(), call.columns()});
      },
      view);
  run_where(
      call, [&] { pairwise(call.formula(), call.x(), call.z(), *view, call.arguments()); },
      [&] { return Streamed{Streamed::Verb::pairwise, nullptr, ReduceKind::sum, 1, *view}; },
      static_cast<double>(view->count()) * static_cast<double>(call.x().shape.back() + 16));
  return result;
}

nb::object run_pairwise(const char* verb, nb::handle f, nb::handle x, nb::handle z, nb::handle out, Options options) {
  const Formula formula = find_formula(f, verb, !options.w.is_none(), &options.params);
  return run_verb({verb, "pairwise"}, formula, x, z, options, out, no_extras,
                  [&](Call& call) { return pairwise_into(call, out); });
}

nb::object py_pairwise(nb::handle f, nb::handle x, nb::handle z, nb::handle out, nb::handle row, nb::handle col,
                       nb::handle w, nb::handle i_offset, nb::handle j_offset, nb::handle workspace,
                       nb::handle progress, nb::handle device, nb::kwargs params) {
  return run_pairwise("pairwise", f, x, z, out, {row, col, w, i_offset, j_offset, workspace, progress, params, device});
}

nb::object py_kernel_matrix(nb::handle f, nb::handle x, nb::handle z, nb::handle out, nb::handle row, nb::handle col,
                            nb::handle w, nb::handle i_offset, nb::handle j_offset, nb::handle workspace,
                            nb::handle progress, nb::handle device, nb::kwargs params) {
  const Options options{row, col, w, i_offset, j_offset, workspace, progress, params, device};
  return run_pairwise("kernel_matrix", f, x, z, out, options);
}

nb::object py_kernel_product(nb::handle f, nb::handle x, nb::handle z, nb::handle v, nb::handle out, nb::handle row,
                             nb::handle col, nb::handle w, nb::handle i_offset, nb::handle j_offset,
                             nb::handle workspace, nb::handle progress, nb::handle device, nb::handle normalize,
                             nb::kwargs params) {
  if (!normalize.is_none()) {
    return nb::module_::import_("mercer._normalized")
        .attr("product")(f, x, z, v, normalize, "out"_a = out, "row"_a = row, "col"_a = col, "w"_a = w,
                         "i_offset"_a = i_offset, "j_offset"_a = j_offset, "workspace"_a = workspace,
                         "progress"_a = progress, "device"_a = device, "params"_a = params);
  }
  Options options{row, col, w, i_offset, j_offset, workspace, progress, params, device};
  const Formula formula = find_formula(f, "kernel_product", !w.is_none(), &options.params);
  const auto extras = [&] { return Extras{{{"v", v}}, {}}; };
  return run_verb({"kernel_product", "kernel_product"}, formula, x, z, options, out, extras, [&](Call& call) {
    const Tensor& values = call.input(v, "v");
    const Tensor* view = nullptr;
    nb::object result = call.output(
        out, "out", call.compute_dtype(),
        [&] {
          if (values.ndim() < 2) return joined(call.batch(), {call.rows()});
          return joined(call.batch(leading(values, 2)), {call.rows(), values.shape.back()});
        },
        view);
    run_where(
        call, [&] { kernel_product(call.formula(), call.x(), call.z(), values, *view, call.arguments()); },
        [&] { return Streamed{Streamed::Verb::product, &values, ReduceKind::sum, 1, *view}; });
    return result;
  });
}

nb::object py_kernel_reduce(nb::handle f, nb::handle x, nb::handle z, const std::string& reduce, nb::handle out,
                            nb::handle row, nb::handle col, nb::handle w, nb::handle i_offset, nb::handle j_offset,
                            nb::handle workspace, nb::handle progress, nb::handle device, nb::kwargs params) {
  const ReduceKind kind = reduce_kind_from_text(reduce);
  Options options{row, col, w, i_offset, j_offset, workspace, progress, params, device};
  const Formula formula = find_formula(f, "kernel_reduce", !w.is_none(), &options.params);
  const auto extras = [&] { return Extras{{}, {{"reduce", nb::str(reduce.c_str())}}}; };
  return run_verb({"kernel_reduce", "kernel_reduce"}, formula, x, z, options, out, extras, [&](Call& call) {
    const bool gives_index = kind == ReduceKind::argmax || kind == ReduceKind::argmin;
    const Tensor* view = nullptr;
    nb::object result = call.output(
        out, "out", gives_index ? Dtype::int64 : call.compute_dtype(),
        [&] { return joined(call.batch(), {call.rows()}); }, view);
    run_where(
        call, [&] { kernel_reduce(call.formula(), call.x(), call.z(), kind, *view, call.arguments()); },
        [&] { return Streamed{Streamed::Verb::reduce, nullptr, kind, 1, *view}; });
    return result;
  });
}

nb::object knn_into(Call& call, std::int64_t k, nb::handle out) {
  if (k < 1 || k > call.columns()) {  // before its arrays are made
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("knn: k must be from 1 to the number of points of z ({}). Received {}.", call.columns(), k));
  }
  nb::object given_values = nb::none(), given_indices = nb::none();
  if (!out.is_none()) {
    if (!PyTuple_Check(out.ptr()) || PyTuple_Size(out.ptr()) != 2) {
      throw nb::type_error(
          fmt::format("knn: out must be a pair of arrays (values, indices). Received {}", type_text(out)).c_str());
    }
    given_values = out[0];
    given_indices = out[1];
  }
  const auto shape = [&] { return joined(call.batch(), {call.rows(), k}); };
  const Tensor *values = nullptr, *indices = nullptr;
  nb::object value_array = call.output(given_values, "out[0]", call.compute_dtype(), shape, values);
  nb::object index_array = call.output(given_indices, "out[1]", Dtype::int64, shape, indices);
  run_where(
      call, [&] { knn(call.formula(), call.x(), call.z(), k, *values, *indices, call.arguments()); },
      [&] { return Streamed{Streamed::Verb::nearest, nullptr, ReduceKind::sum, k, *values, *indices}; });
  return nb::make_tuple(value_array, index_array);
}

nb::object py_knn(nb::handle f, nb::handle x, nb::handle z, std::int64_t k, nb::handle out, nb::handle row,
                  nb::handle col, nb::handle w, nb::handle i_offset, nb::handle j_offset, nb::handle workspace,
                  nb::handle progress, nb::handle device, nb::kwargs params) {
  Options options{row, col, w, i_offset, j_offset, workspace, progress, params, device};
  const Formula formula = find_formula(f, "knn", !w.is_none(), &options.params);
  const auto extras = [&] { return Extras{{}, {{"k", nb::int_(k)}}}; };
  return run_verb({"knn", "knn"}, formula, x, z, options, out, extras,
                  [&](Call& call) { return knn_into(call, k, out); });
}

/// The shape of a gradient: coefficients [N], or none, give [..., M, K], [..., O, N] give [..., O, M, K].
Shape gradient_shape(const Call& call, const Tensor* coef, const Shape& extra = {}) {
  const int axes = coef == nullptr ? 1 : coef->ndim();
  Shape batch = call.batch(axes > 2 ? ops::broadcast(call.verb(), leading(*coef, 2), extra) : extra);
  if (axes > 1) batch.push_back(coef->shape[axes - 2]);
  return joined(std::move(batch), {call.rows(), call.x().shape.back()});
}

nb::object py_kernel_gradient(nb::handle f, nb::handle x, nb::handle z, nb::handle coef, nb::handle out, nb::handle row,
                              nb::handle col, nb::handle w, nb::handle i_offset, nb::handle j_offset,
                              nb::handle workspace, nb::handle progress, nb::handle device, nb::kwargs params) {
  Options options{row, col, w, i_offset, j_offset, workspace, progress, params, device};
  const Formula formula = find_formula(f, "kernel_gradient", !w.is_none(), &options.params);
  const auto extras = [&] { return Extras{{{"coef", coef}}, {}}; };
  return run_verb({"kernel_gradient", "kernel_gradient"}, formula, x, z, options, out, extras, [&](Call& call) {
    const Tensor& coefficients = call.input(coef, "coef");
    const Tensor* view = nullptr;
    nb::object result = call.output(
        out, "out", call.compute_dtype(), [&] { return gradient_shape(call, &coefficients); }, view);
    run_where(
        call, [&] { kernel_gradient(call.formula(), call.x(), call.z(), coefficients, *view, call.arguments()); },
        [&] { return Streamed{Streamed::Verb::gradient, &coefficients, ReduceKind::sum, 1, *view}; });
    return result;
  });
}

nb::object py_product_gradient(nb::handle f, nb::handle x, nb::handle z, nb::handle weights, nb::handle v,
                               nb::handle out, nb::handle row, nb::handle col, nb::handle w, nb::handle i_offset,
                               nb::handle j_offset, nb::handle workspace, nb::handle progress, nb::kwargs params) {
  Options options{row, col, w, i_offset, j_offset, workspace, progress, params};
  const Formula formula = find_formula(f, "product_gradient", !w.is_none(), &options.params);
  Call call("product_gradient", formula, x, z, options);
  const Tensor &rows = call.input(weights, "weights"), &columns = call.input(v, "v");
  const Tensor* view = nullptr;
  nb::object result = call.output(
      out, "out", call.compute_dtype(),
      [&] {
        const Shape extra = ops::broadcast(call.verb(), leading(rows, 2), leading(columns, 2));
        return joined(call.batch(extra), {call.rows(), call.x().shape.back()});
      },
      view);
  call.run([&] { product_gradient(call.formula(), call.x(), call.z(), rows, columns, *view, call.arguments()); });
  return result;
}

/// One pass of a backward: what the pass has is decided first, then its results are made, those that it has not None.
class Backward {
 public:
  using Wanted = ops::BackwardCall::Wanted;

  Backward(Call& call, const Tensor& weights, const Tensor* v, const Wanted& wanted) : call_(call) {
    std::optional<ops::BackwardCall> pass;
    const auto plan = [&] {
      pass.emplace(call.verb(), call.formula(), call.x(), call.z(), weights, v, wanted, call.arguments(),
                   Context::shared());
    };
    if (call.x().device.kind == DeviceKind::cpu) plan();
    else call.prepare(plan);  // may compile kernels
    const ops::PassParts parts = pass->parts();
    batch_ = v == nullptr ? leading(weights, 2) : ops::broadcast(call.verb(), leading(weights, 2), leading(*v, 2));
    const std::int64_t count = static_cast<std::int64_t>(wanted.by.size());
    ExtraOutputs extra_outputs;
    const Tensor* view = nullptr;
    gradient = output("out", {call.rows(), call.x().shape.back()}, view);
    if (count > 0 && parts.sums) {
      extra_outputs.by = wanted.by;
      sums = output("sums", {count, call.rows()}, extra_outputs.sums);
    }
    if (wanted.product && parts.product)
      product = output("product", {call.rows(), v->shape.back()}, extra_outputs.product);
    if (wanted.weights && parts.weights)
      by_weights = output("by_weights", {call.x().shape.back(), call.rows()}, extra_outputs.by_weights);
    call.run([&] { pass->run(*view, extra_outputs); });
  }

  nb::object gradient, sums = nb::none(), product = nb::none(), by_weights = nb::none();

 private:
  nb::object output(const char* name, Shape shape, const Tensor*& to) {
    return call_.output(
        nb::none(), name, call_.compute_dtype(),
        [&] {
          Shape all = call_.batch(batch_);
          all.insert(all.end(), shape.begin(), shape.end());
          return all;
        },
        to);
  }

  Call& call_;
  Shape batch_;
};

Backward::Wanted wanted_of(const nb::sequence& by, bool product, bool without_weight, bool by_weights) {
  Backward::Wanted wanted{{}, product, by_weights, without_weight};
  for (nb::handle name : by) wanted.by.push_back(nb::cast<std::string>(name));
  return wanted;
}

nb::object py_product_backward(nb::handle f, nb::handle x, nb::handle z, nb::handle weights, nb::handle v,
                               const nb::sequence& by, bool product, bool without_weight, bool by_weights,
                               nb::handle row, nb::handle col, nb::handle w, nb::handle i_offset, nb::handle j_offset,
                               nb::handle workspace, nb::handle progress, nb::kwargs params) {
  Options options{row, col, w, i_offset, j_offset, workspace, progress, params};
  const Formula formula = find_formula(f, "product_backward", !w.is_none(), &options.params);
  Call call("product_backward", formula, x, z, options);
  const Tensor &rows = call.input(weights, "weights"), &columns = call.input(v, "v");
  const Backward pass(call, rows, &columns, wanted_of(by, product, without_weight, by_weights));
  return nb::make_tuple(pass.gradient, pass.sums, pass.product, pass.by_weights);
}

nb::object py_pairwise_backward(nb::handle f, nb::handle x, nb::handle z, nb::handle weights, const nb::sequence& by,
                                bool without_weight, bool by_weights, nb::handle row, nb::handle col, nb::handle w,
                                nb::handle i_offset, nb::handle j_offset, nb::handle workspace, nb::handle progress,
                                nb::kwargs params) {
  Options options{row, col, w, i_offset, j_offset, workspace, progress, params};
  const Formula formula = find_formula(f, "pairwise_backward", !w.is_none(), &options.params);
  Call call("pairwise_backward", formula, x, z, options);
  const Backward pass(call, call.input(weights, "weights"), nullptr, wanted_of(by, false, without_weight, by_weights));
  return nb::make_tuple(pass.gradient, pass.sums, pass.by_weights);
}

/// The gradients by both sides, and the product with the weights where it is asked for, else None.
nb::object py_both_sides_backward(nb::handle f, nb::handle x, nb::handle z, nb::handle weights, nb::handle v,
                                  bool product, nb::handle row, nb::handle col, nb::handle w, nb::handle i_offset,
                                  nb::handle j_offset, nb::handle workspace, nb::handle progress, nb::kwargs params) {
  Options options{row, col, w, i_offset, j_offset, workspace, progress, params};
  const Formula formula = find_formula(f, "both_sides_backward", !w.is_none(), &options.params);
  Call call("both_sides_backward", formula, x, z, options);
  const Tensor& rows = call.input(weights, "weights");
  const Tensor* const columns = v.is_none() ? nullptr : &call.input(v, "v");
  const Shape batch = columns == nullptr ? leading(rows, 2)
                                         : ops::broadcast(call.verb(), leading(rows, 2), leading(*columns, 2));
  const auto output = [&](const char* name, std::int64_t points, std::int64_t features, const Tensor*& view) {
    const auto shape = [&] { return joined(call.batch(batch), {points, features}); };
    return call.output(nb::none(), name, call.compute_dtype(), shape, view);
  };
  const Tensor *by_x = nullptr, *by_z = nullptr, *values = nullptr;
  nb::object made[3] = {output("by_x", call.rows(), call.x().shape.back(), by_x),
                        output("by_z", call.columns(), call.x().shape.back(), by_z), nb::none()};
  if (product && columns != nullptr) made[2] = output("product", call.columns(), columns->shape.back(), values);
  const Tensor& points = call.z() != nullptr ? *call.z() : call.x();
  call.run([&] {
    ops::both_sides_backward(call.formula(), call.x(), points, rows, columns, {*by_x, *by_z, values},
                             call.arguments());
  });
  return nb::make_tuple(made[0], made[1], made[2]);
}

nb::object py_kernel_agop(nb::handle f, nb::handle x, nb::handle z, nb::handle coef, nb::handle out, nb::handle row,
                          nb::handle col, nb::handle w, nb::handle i_offset, nb::handle j_offset, nb::handle workspace,
                          nb::handle progress, nb::kwargs params) {
  Options options{row, col, w, i_offset, j_offset, workspace, progress, params};
  const Formula formula = find_formula(f, "kernel_agop", !w.is_none(), &options.params);
  const auto extras = [&] { return Extras{{{"coef", coef}}, {}}; };
  return run_verb({"kernel_agop", "kernel_agop"}, formula, x, z, options, out, extras, [&](Call& call) {
    const Tensor& coefficients = call.input(coef, "coef");
    const Tensor* view = nullptr;
    nb::object result = call.output(
        out, "out", call.compute_dtype(),
        [&] {
          const std::int64_t features = call.x().shape.back();
          return joined(call.batch(leading(coefficients, coefficients.ndim() > 1 ? 2 : 1)), {features, features});
        },
        view);
    call.run([&] { kernel_agop(call.formula(), call.x(), call.z(), coefficients, *view, call.arguments()); });
    return result;
  });
}

void require_given(const char* verb, const char* name, nb::handle array, bool is_read) {
  if (is_read && array.is_none())
    fail(ErrorKind::invalid_argument, "{}: the formula reads {}; give it. Received None.", verb, name);
}

nb::object py_gradient_field(nb::handle phi, nb::handle x, nb::handle z, nb::handle amplitude, nb::handle coef,
                             const std::optional<std::string>& combine, nb::handle out, nb::handle row, nb::handle col,
                             nb::handle w, nb::handle i_offset, nb::handle j_offset, nb::handle workspace,
                             nb::handle progress, nb::kwargs params) {
  Options options{row, col, w, i_offset, j_offset, workspace, progress, params};
  const char* verb = "gradient_field";
  const Formula field =
      combine ? find_fold(phi, verb, *combine, &options.params) : find_field(phi, verb, &options.params);
  const Formula::Prepared& prepared = field.prepared();
  require_given(verb, "amplitude", amplitude, prepared.reads_amplitude);
  require_given(verb, "coef", coef, prepared.reads_coef);
  const auto extras = [&] { return Extras{{{"amplitude", amplitude}, {"coef", coef}}, {}}; };
  return run_verb({"gradient_field", "gradient_field"}, field, x, z, options, out, extras, [&](Call& call) {
    const Tensor* amplitudes = amplitude.is_none() ? nullptr : &call.input(amplitude, "amplitude");
    const Tensor* coefficients = coef.is_none() ? nullptr : &call.input(coef, "coef");
    const Tensor* view = nullptr;
    nb::object result = call.output(
        out, "out", call.compute_dtype(),
        [&] { return gradient_shape(call, coefficients, amplitudes ? leading(*amplitudes, 2) : Shape{}); }, view);
    const Tensor& columns = call.z() != nullptr ? *call.z() : call.x();
    call.run([&] {
      gradient_field(call.formula(), call.x(), columns, amplitudes, coefficients, *view, call.arguments());
    });
    return result;
  });
}

/// Minkowski's distance with this p; a program uses few of them.
Formula minkowski_formula(double p, bool weighted) {
  static auto& known = *new std::map<std::pair<double, bool>, Formula>;
  if (std::isnan(p)) return Formula(minkowski(p, weighted));  // throws; no key of an ordered map
  auto found = known.find({p, weighted});
  if (found == known.end()) {
    Formula made(minkowski(p, weighted));
    if (known.size() >= 256) known.clear();
    found = known.emplace(std::pair{p, weighted}, std::move(made)).first;
  }
  return found->second;
}

double norm_of(nb::handle p) {
  double value = 0;
  if (!is_carried(p) && nb::try_cast(p, value)) return value;
  const char* const hint = nb::isinstance<nb::str>(p) ? "; the name of a metric goes by keyword (metric=)"
                           : is_carried(p) ? "; where it is an array write metric=\"sum(abs(x-z)^p)^(1/p)\", p=p"
                                           : "";
  throw nb::type_error(
      fmt::format("cdist: p must be a number{}. Received {}", hint, nb::cast<std::string>(nb::repr(p))).c_str());
}

/// Metrics of which `mercer._metrics` makes weights or other points before they are a formula.
bool is_prepared_metric(nb::handle metric) {
  if (!PyUnicode_Check(metric.ptr())) return false;
  const auto is = [&](const char* name) { return PyUnicode_CompareWithASCIIString(metric.ptr(), name) == 0; };
  return is("seuclidean") || is("mahalanobis") || is("haversine");
}

nb::object prepared_cdist(nb::handle x1, nb::handle x2, nb::handle metric, nb::handle w, nb::handle out,
                          nb::handle workspace, nb::handle progress, nb::handle device, const nb::kwargs& params) {
  nb::dict options;
  options["out"] = out;
  options["workspace"] = workspace;
  options["progress"] = progress;
  options["device"] = device;
  return nb::module_::import_("mercer._metrics").attr("cdist")(x1, x2, metric, w, params, options);
}

nb::object py_cdist(nb::handle x1, nb::handle x2, nb::handle p, nb::handle metric, nb::handle w, nb::handle out,
                    nb::handle workspace, nb::handle progress, nb::handle device, nb::kwargs params) {
  const nb::int_ zero(0);
  if (!p.is_none() && !metric.is_none()) params["p"] = p;  // an option of the metric
  if (is_prepared_metric(metric)) return prepared_cdist(x1, x2, metric, w, out, workspace, progress, device, params);
  Options options{nb::none(), nb::none(), w, zero, zero, workspace, progress, params, device};
  const Formula formula = metric.is_none() ? minkowski_formula(p.is_none() ? 2.0 : norm_of(p), !w.is_none())
                                           : find_formula(metric, "cdist", !w.is_none(), &options.params);
  return run_verb({"cdist", "pairwise"}, formula, x1, x2, options, out, no_extras,
                  [&](Call& call) { return pairwise_into(call, out); });
}

std::string py_explain(nb::handle f, nb::handle shape, const std::string& dtype, const std::string& target,
                       const std::string& verb, std::int64_t columns, bool backward) {
  const CallSettings settings;
  const Formula formula = find_formula(f, "explain");
  const ExplainShape sizes = to_shape(shape, "explain");
  const Dtype type = to_dtype(dtype, "explain");
  std::string text = explain(formula, sizes, type, target, {.verb = verb, .columns = columns});
  return backward ? text + ops::explain_backward(formula, sizes, type, target) : text;
}

}  // namespace

void bind_verbs(nb::module_& module) {
  // Options of public verbs are keywords to their callers, but mercer._verbs hands them on by their places, which takes
  // a quarter of a microsecond less. The options that all verbs over pairs share; i_offset and j_offset count from 0.
#define MERCER_PAIR_OPTIONS                                                                           \
  "row"_a = nb::none(), "col"_a = nb::none(), "w"_a = nb::none(), "i_offset"_a = 0, "j_offset"_a = 0, \
  "workspace"_a = nb::none(), "progress"_a = false
#define MERCER_OPTIONS MERCER_PAIR_OPTIONS, "params"_a
#define MERCER_OPTIONS_DEVICE MERCER_PAIR_OPTIONS, "device"_a = nb::none(), "params"_a  // of verbs that stream
  module.def("pairwise", py_pairwise, "f"_a, "x"_a, "z"_a = nb::none(), "out"_a = nb::none(), MERCER_OPTIONS_DEVICE,
             nb::sig(kPairwiseSignature), kPairwiseDoc);
  module.def("kernel_matrix", py_kernel_matrix, "f"_a, "x"_a, "z"_a = nb::none(), "out"_a = nb::none(),
             MERCER_OPTIONS_DEVICE, nb::sig(kKernelMatrixSignature), kKernelMatrixDoc);
  module.def("kernel_product", py_kernel_product, "f"_a, "x"_a, "z"_a.none(), "v"_a, "out"_a = nb::none(),
             MERCER_PAIR_OPTIONS, "device"_a = nb::none(), "normalize"_a = nb::none(), "params"_a,
             nb::sig(kKernelProductSignature), kKernelProductDoc);
  module.def("kernel_reduce", py_kernel_reduce, "f"_a, "x"_a, "z"_a.none(), "reduce"_a, "out"_a = nb::none(),
             MERCER_OPTIONS_DEVICE, nb::sig(kKernelReduceSignature), kKernelReduceDoc);
  module.def("knn", py_knn, "f"_a, "x"_a, "z"_a.none(), "k"_a, "out"_a = nb::none(), MERCER_OPTIONS_DEVICE,
             nb::sig(kKnnSignature), kKnnDoc);
  module.def("kernel_gradient", py_kernel_gradient, "f"_a, "x"_a, "z"_a.none(), "coef"_a, "out"_a = nb::none(),
             MERCER_OPTIONS_DEVICE, nb::sig(kKernelGradientSignature), kKernelGradientDoc);
  module.def("product_gradient", py_product_gradient, "f"_a, "x"_a, "z"_a.none(), nb::arg(), nb::arg(), nb::kw_only(),
             "out"_a = nb::none(), MERCER_OPTIONS, nb::sig(kProductGradientSignature), kProductGradientDoc);
  // Without names, which parameters may have.
  module.def("product_backward", py_product_backward, "f"_a, "x"_a, "z"_a.none(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg(), nb::arg(), nb::arg(), nb::kw_only(), MERCER_OPTIONS, nb::sig(kProductBackwardSignature),
             kProductBackwardDoc);
  module.def("pairwise_backward", py_pairwise_backward, "f"_a, "x"_a, "z"_a.none(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg(), nb::kw_only(), MERCER_OPTIONS, nb::sig(kPairwiseBackwardSignature), kPairwiseBackwardDoc);
  module.def("both_sides_backward", py_both_sides_backward, "f"_a, "x"_a, "z"_a.none(), nb::arg(), nb::arg().none(),
             nb::arg(), nb::kw_only(), MERCER_OPTIONS, nb::sig(kBothSidesBackwardSignature), kBothSidesBackwardDoc);
  module.def("kernel_agop", py_kernel_agop, "f"_a, "x"_a, "z"_a.none(), "coef"_a, "out"_a = nb::none(), MERCER_OPTIONS,
             nb::sig(kKernelAgopSignature), kKernelAgopDoc);
  module.def("gradient_field", py_gradient_field, "phi"_a, "x"_a, "z"_a.none(), "amplitude"_a.none(), "coef"_a.none(),
             "combine"_a = nb::none(), "out"_a = nb::none(), MERCER_OPTIONS, nb::sig(kGradientFieldSignature),
             kGradientFieldDoc);
#undef MERCER_OPTIONS_DEVICE
#undef MERCER_OPTIONS
#undef MERCER_PAIR_OPTIONS
  module.def("cdist", py_cdist, "x1"_a, "x2"_a.none(), "p"_a = nb::none(), "metric"_a = nb::none(), "w"_a = nb::none(),
             "out"_a = nb::none(), "workspace"_a = nb::none(), "progress"_a = false, "device"_a = nb::none(),
             "params"_a, nb::sig(kCdistSignature), kCdistDoc);
  module.def("explain", py_explain, "f"_a, "shape"_a.none() = nb::make_tuple(4096, 4096, 256), "dtype"_a = "float32",
             "target"_a = "auto", "verb"_a = "pairwise", "columns"_a = 1, "backward"_a = false,
             nb::sig(kExplainSignature), kExplainDoc);
}

}  // namespace mercer::python
