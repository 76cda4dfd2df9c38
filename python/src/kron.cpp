// mercer.kron: mercer/kron.h for arrays of any library.
#include "mercer/kron.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "calls.h"
#include "jax_call.h"
#include "mercer/tune.h"
#include "ops/call/call.h"
#include "ops/kron/factor_name.h"
#include "ops/kron/kron_call.h"
#include "queues.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

constexpr std::uintptr_t kFarApart = std::uintptr_t{1} << 48;  // the address of an output that is not there

#define MERCER_ARRAY "mercer._types.ArrayT"
#define MERCER_FACTORS "factors: collections.abc.Sequence[" MERCER_ARRAY "]"
#define MERCER_REST                                                                                                  \
  ", *, alpha: float | mercer._types.Array = 1, beta: float | mercer._types.Array = 0, y: " MERCER_ARRAY             \
  " | None = None, out: " MERCER_ARRAY                                                                               \
  " | None = None, transpose_x: bool = False, transpose_factors: bool | collections.abc.Sequence[bool] = False, "    \
  "workspace: " MERCER_ARRAY " | None = None, progress: bool = False) -> " MERCER_ARRAY
constexpr char kMatmulSignature[] = "def matmul(x: " MERCER_ARRAY ", " MERCER_FACTORS MERCER_REST;
constexpr char kKronMatmulSignature[] = "def kron_matmul(" MERCER_FACTORS ", x: " MERCER_ARRAY MERCER_REST;

constexpr char kMatmulDoc[] =
    R"doc(alpha op(x) (op(F1) (x) ... (x) op(FN)) + beta y; the Kronecker product is never stored.

op(x): [..., M, P1 ... PN], or a vector. factors: 1 to 64 arrays, op(F_i) [..., P_i, Q_i], each of its own shape. The
result is [..., M, Q1 ... QN]; leading axes of x and of all factors broadcast. A factor that is a vector is summed over:
[P, 1]; in kron_matmul [1, Q]. transpose_x: op(x) is x with its last two
axes swapped; transpose_factors: likewise, one flag for all factors or one for each.

All arrays have one dtype: float16, bfloat16 (summed in float32), float32, float64, int32 or int64 (sums wrap around;
alpha and beta must be whole numbers). Any strides. With alpha = 0 neither x nor factors are read; y is read where beta
is not 0, and broadcasts to the result.

out: takes the result, in place of a new array; it may be the very array x, where the shapes allow, or y. workspace:
scratch memory of mercer.workspace_size("kron.matmul", ...) bytes, on the CPU too. progress: a bar for long calls.

PyTorch's tensors may require gradients, by x, y and every factor; JAX differentiates by them and takes no out. With
either, alpha and beta may be arrays of one number, which are differentiated by as well and never read back; they take
no out and no workspace.

>>> swap = np.array([[0.0, 1.0], [1.0, 0.0]])
>>> mc.kron.matmul(np.array([[1.0, 2.0, 3.0, 4.0]]), [np.eye(2), swap])
array([[2., 1., 4., 3.]]))doc";
constexpr char kKronMatmulDoc[] =
    R"doc(alpha (op(F1) (x) ... (x) op(FN)) op(x) + beta y; the Kronecker product is never stored.

op(x): [..., Q1 ... QN, M], or a vector; op(F_i): [..., P_i, Q_i]; the result is [..., P1 ... PN, M]. Everything else is
as for matmul.

>>> swap = np.array([[0.0, 1.0], [1.0, 0.0]])
>>> mc.kron.kron_matmul([np.eye(2), swap], np.array([1.0, 2.0, 3.0, 4.0]))
array([2., 1., 4., 3.]))doc";

constexpr char kTuneSignature[] =
    "def tune_kron(x: " MERCER_ARRAY ", " MERCER_FACTORS ", verb: str, alpha: float, beta: float, y: " MERCER_ARRAY
    " | None, out: " MERCER_ARRAY
    " | None, transpose_x: bool, transpose_factors: bool | collections.abc.Sequence[bool], progress: bool) -> "
    "tuple[str, str, list[tuple[str, float]]]";
constexpr char kTuneDoc[] =
    "What mercer.kron.tune calls: (the chosen plan, the model's, all of them with their milliseconds).";

/// What both take in addition to x and the factors.
struct Rest {
  nb::handle alpha, beta, y, out;
  bool transpose_x;
  nb::handle transpose_factors, workspace;
  bool progress;
};

/// How many factors there are.
std::size_t count_of(const char* verb, nb::handle factors) {
  const bool is_list = PyList_Check(factors.ptr()) || PyTuple_Check(factors.ptr());
  if (!is_list && (is_array(factors) || PyUnicode_Check(factors.ptr()) || !PySequence_Check(factors.ptr())))
    throw nb::type_error(fmt::format("{}: factors must be a list or tuple of arrays. Received {}", verb,
                                     type_text(factors)).c_str());
  return static_cast<std::size_t>(nb::len(factors));
}

/// transpose_factors, of so many factors.
std::vector<bool> flags_of(const char* verb, nb::handle flags, std::size_t factors) {
  if (PyBool_Check(flags.ptr())) return std::vector<bool>(factors, flags.ptr() == Py_True);
  std::vector<bool> read;
  const bool is_list = PySequence_Check(flags.ptr()) && !PyUnicode_Check(flags.ptr()) && !is_array(flags);
  for (std::size_t i = 0; is_list && i < static_cast<std::size_t>(nb::len(flags)); ++i) {
    const nb::object flag = flags[i];
    if (!PyBool_Check(flag.ptr())) break;
    read.push_back(flag.ptr() == Py_True);
  }
  const bool all_read = is_list && read.size() == static_cast<std::size_t>(nb::len(flags));
  if (all_read && (!read.empty() || factors == 0)) return read;
  throw nb::type_error(fmt::format("{}: transpose_factors must be a bool, or a list of one for each factor. "
                                   "Received {}", verb, nb::cast<std::string>(nb::repr(flags))).c_str());
}

std::vector<std::int64_t> shape_of(bool left, const Tensor& x, const std::vector<Tensor>& factors,
                                   const kron::Options& options) {
  return left ? kron::kron_matmul_shape(factors, x, options) : kron::matmul_shape(x, factors, options);
}

void product(bool left, const Tensor& x, const std::vector<Tensor>& factors, const Tensor& out,
             const kron::Options& options) {
  if (left) kron::kron_matmul(factors, x, out, options);
  else kron::matmul(x, factors, out, options);
}

class KronCall {
 public:
  KronCall(const char* verb, nb::handle x, nb::handle factors, const Rest& rest)
      : verb_(verb), x_(x, place("x")), watch_(verb, rest.progress) {
    x_.require_unwatched();
    if (!rest.workspace.is_none()) queue_.use_workspace(rest.workspace, x_);
    if (x_.on_cuda()) options_.queue = queue_.open(x_);
    else if (!rest.workspace.is_none())
      options_.queue.allocate = [this](std::int64_t bytes) { return queue_.cpu_workspace(bytes); };
    if (Measuring* measuring = Measuring::current()) options_.queue.rehearsal = &measuring->rehearsal;
    if (options_.queue.rehearsal == nullptr) queue_.wait_for(x_);
    read_factors(factors);
    options_.transpose_x = rest.transpose_x;
    options_.transpose_factors = flags_of(verb, rest.transpose_factors, factors_.size());
    options_.verb = verb;
    options_.alpha = to_number(rest.alpha, verb, "alpha");
    options_.beta = to_number(rest.beta, verb, "beta");
    if (!rest.y.is_none()) options_.y = &input(rest.y, "y");
    options_.progress = [this](double done, double total) { return watch_.step(done, total); };
  }

  const Tensor& x() const { return x_.tensor(); }
  const std::vector<Tensor>& factors() const { return factors_; }
  const kron::Options& options() const { return options_; }

  ops::KronCall& checked(bool left) {
    return checked_ ? *checked_ : checked_.emplace(left, x(), factors_, options_);
  }

  /// The caller's array, or a new one.
  nb::object output(nb::handle out, bool left) {
    if (!out.is_none()) {
      out_ = input(out, "out", Access::write);
      return nb::borrow(out);
    }
    const std::vector<std::int64_t> shape = checked(left).out_shape();
    if (options_.queue.rehearsal != nullptr) {
      out_ = Tensor(reinterpret_cast<void*>(kFarApart), x().dtype, shape);
      out_.device = x().device;
      return nb::none();
    }
    nb::object made = make_array(x_.library(), x_.object(), x().dtype, shape, place("out"), &x());
    out_ = held_.emplace_back(made, place("out"), Access::fresh).tensor();
    return made;
  }

  template <class Work>
  void run(nb::handle workspace, const Work& work) {
    if (!workspace.is_none()) check_workspace(Array(workspace, place("workspace"), Access::write).tensor());
    watch_.run([&] { work(out_); });
    queue_.release_streams();
  }

 private:
  Place place(const char* name) const { return {verb_, name, true}; }

  Array& hold(nb::handle object, const char* name, Access access) {
    Array& array = held_.emplace_back(object, place(name), access);
    array.require_same_library(x_);
    array.require_same_device(x_);
    if (options_.queue.rehearsal == nullptr) queue_.wait_for(array);
    return array;
  }

  const Tensor& input(nb::handle object, const char* name, Access access = Access::read) {
    return hold(object, name, access).tensor();
  }

  void read_factors(nb::handle factors) {
    const std::size_t count = count_of(verb_, factors);
    factors_.reserve(count);
    for (std::size_t i = 0; i < count; ++i)
      factors_.push_back(hold(nb::object(factors[i]), ops::factor_name(i), Access::read).release_tensor());
  }

  void check_workspace(const Tensor& workspace) const {
    const auto check = [&](const char* name, const Tensor& array) {
      if (ops::overlap(workspace, array))
        throw Error(ErrorKind::invalid_argument,
                    fmt::format("{}: workspace must not overlap {}. Received {} sharing memory with {}.", verb_, name,
                                workspace.to_text(), array.to_text()));
    };
    check("x", x());
    check("out", out_);
    if (options_.y != nullptr) check("y", *options_.y);
    for (std::size_t i = 0; i < factors_.size(); ++i) check(ops::factor_name(i), factors_[i]);
  }

  CallSettings settings_;
  const char* verb_;
  Array x_;
  CallQueue queue_;
  Watch watch_;
  kron::Options options_;
  std::deque<Array> held_;
  std::vector<Tensor> factors_;
  std::optional<ops::KronCall> checked_;
  Tensor out_;
};

/// The operators of mercer._torch, which PyTorch follows.
nb::object call_torch(bool left, nb::handle x, nb::handle factors, const Rest& rest) {
  return nb::module_::import_("mercer._torch.kron")
      .attr("call")(left, x, factors, rest.alpha, rest.beta, rest.y, rest.out, rest.transpose_x,
                    rest.transpose_factors, rest.workspace);
}

/// Checked as the call itself would be, by shapes and dtypes alone; then JAX's.
nb::object call_jax(bool left, const char* verb, nb::handle x, nb::handle factors, const Rest& rest) {
  refuse_memory(verb, rest.out, rest.workspace);
  const Tensor points = jax_outline(x, {verb, "x", true});
  std::vector<Tensor> sides;
  nb::list arrays;
  for (std::size_t i = 0, count = count_of(verb, factors); i < count; ++i) {
    arrays.append(nb::object(factors[i]));
    sides.push_back(jax_outline(arrays[i], {verb, ops::factor_name(i), true}));
  }
  kron::Options options;
  options.verb = verb;
  const auto number = [&](nb::handle value, const char* name) {
    return is_jax(value) ? 1.0 : to_number(value, verb, name);  // JAX's own multiply afterwards
  };
  options.alpha = number(rest.alpha, "alpha");
  options.beta = number(rest.beta, "beta");
  options.transpose_x = rest.transpose_x;
  options.transpose_factors = flags_of(verb, rest.transpose_factors, sides.size());
  std::optional<Tensor> y;
  if (!rest.y.is_none()) options.y = &y.emplace(jax_outline(rest.y, {verb, "y", true}));
  const Tensor out(reinterpret_cast<void*>(kFarApart), points.dtype, shape_of(left, points, sides, options));
  kron::workspace_size(options, [&](const kron::Options& asked) { product(left, points, sides, out, asked); });
  nb::list flags;
  for (const bool flag : options.transpose_factors) flags.append(flag);
  return nb::module_::import_("mercer._jax_kron")
      .attr("call")(left, x, arrays, is_jax(rest.alpha) ? nb::borrow(rest.alpha) : nb::float_(options.alpha),
                    is_jax(rest.beta) ? nb::borrow(rest.beta) : nb::float_(options.beta), rest.y, options.transpose_x,
                    flags);
}

nb::object run_kron(bool left, nb::handle x, nb::handle factors, const Rest& rest) {
  const char* const verb = left ? "kron.kron_matmul" : "kron.matmul";
  if (is_jax(x)) return call_jax(left, verb, x, factors, rest);
  // A tensor for a number stays one, on its device and with its gradient.
  const bool has_tensors = is_torch(rest.alpha) || is_torch(rest.beta);
  if (is_torch(x) && has_tensors && Measuring::current() == nullptr) return call_torch(left, x, factors, rest);
  if (Measuring::current() != nullptr || !is_recorded(x, {verb, "x", true})) {
    try {
      KronCall call(verb, x, factors, rest);
      const nb::object result = call.output(rest.out, left);
      call.run(rest.workspace,
               [&](const Tensor& out) { call.checked(left).run(out, Context::shared()); });
      return result;
    } catch (const FollowedTensor&) {
      if (Measuring::current() != nullptr || !is_torch(x)) throw;
    }
  }
  return call_torch(left, x, factors, rest);
}

nb::object py_matmul(nb::handle x, nb::handle factors, nb::handle alpha, nb::handle beta, nb::handle y, nb::handle out,
                     bool transpose_x, nb::handle transpose_factors, nb::handle workspace, bool progress) {
  return run_kron(false, x, factors, {alpha, beta, y, out, transpose_x, transpose_factors, workspace, progress});
}

nb::object py_kron_matmul(nb::handle factors, nb::handle x, nb::handle alpha, nb::handle beta, nb::handle y,
                          nb::handle out, bool transpose_x, nb::handle transpose_factors, nb::handle workspace,
                          bool progress) {
  return run_kron(true, x, factors, {alpha, beta, y, out, transpose_x, transpose_factors, workspace, progress});
}

nb::tuple py_tune(nb::handle x, nb::handle factors, const std::string& verb, nb::handle alpha, nb::handle beta,
                  nb::handle y, nb::handle out, bool transpose_x, nb::handle transpose_factors, bool progress) {
  const bool left = verb == "kron_matmul";
  if (!left && verb != "matmul")
    throw Error(ErrorKind::invalid_argument,
                fmt::format("kron.tune: the verb must be matmul or kron_matmul. Received \"{}\".", verb));
  if (is_jax(x))
    throw Error(ErrorKind::unsupported, "kron.tune: the arrays must be of a library whose stream is known, such as "
                                        "PyTorch or CuPy. Received arrays of JAX.");
  const Unfollowed unfollowed;
  const nb::none none;
  KronCall call("kron.tune", x, factors, {alpha, beta, y, out, transpose_x, transpose_factors, none, progress});
  const nb::object written = call.output(out, left);
  TuneReport report;
  call.run(none, [&](const Tensor& to) {
    report = kron::tune(call.options(), [&](const kron::Options& options) {
      product(left, call.x(), call.factors(), to, options);
    });
  });
  return fields_of_tuned(report);
}

}  // namespace

void bind_kron(nb::module_& module) {
#define MERCER_OPTIONS                                                                                              \
  nb::kw_only(), "alpha"_a = 1, "beta"_a = 0, "y"_a = nb::none(), "out"_a = nb::none(), "transpose_x"_a = false,    \
      "transpose_factors"_a = false, "workspace"_a = nb::none(), "progress"_a = false
  module.def("matmul", py_matmul, "x"_a, "factors"_a, MERCER_OPTIONS, nb::sig(kMatmulSignature), kMatmulDoc);
  module.def("kron_matmul", py_kron_matmul, "factors"_a, "x"_a, MERCER_OPTIONS, nb::sig(kKronMatmulSignature),
             kKronMatmulDoc);
#undef MERCER_OPTIONS
  module.def("tune_kron", py_tune, "x"_a, "factors"_a, "verb"_a, "alpha"_a, "beta"_a, "y"_a.none(), "out"_a.none(),
             "transpose_x"_a, "transpose_factors"_a, "progress"_a, nb::sig(kTuneSignature), kTuneDoc);
}

}  // namespace mercer::python
