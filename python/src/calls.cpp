#include "calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "formula/suggest.h"
#include "mercer/error.h"
#include "ops/call/call.h"
#include "ops/context.h"
#include "symbols.h"

namespace mercer::python {
namespace {

constexpr std::uintptr_t kFarApart = std::uintptr_t{1} << 48;  // addresses of outputs that are not there
constexpr auto kSignalInterval = std::chrono::milliseconds(50);
constexpr auto kBarDelay = std::chrono::seconds(2);

bool same_points(const Tensor& x, const Tensor& z) {
  return x.data == z.data && x.dtype == z.dtype && x.shape == z.shape && x.strides == z.strides && x.device == z.device;
}

}  // namespace

thread_local Measuring* Measuring::current_ = nullptr;

std::int64_t to_offset(nb::handle object, const char* verb, const char* name) {
  const long long value = PyLong_AsLongLong(object.ptr());
  if (value == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    throw nb::type_error(fmt::format("{}: {} must be a whole number of 64 bits. Received {}", verb, name,
                                     nb::cast<std::string>(nb::repr(object)))
                             .c_str());
  }
  return value;
}

int to_cuda_index(nb::handle device, const char* verb) {
  const std::string text = nb::cast<std::string>(nb::str(device));
  const bool is_number = PyLong_Check(device.ptr()) && !PyBool_Check(device.ptr());
  const std::string_view all = text;
  const std::string_view digits = is_number ? all : all.starts_with("cuda:") ? all.substr(5) : std::string_view();
  int index = 0;
  if (text == "cuda") return index;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (!digits.empty() && problem == std::errc() && end == digits.data() + digits.size() && index >= 0) return index;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{}: device must be \"cuda\", one such as \"cuda:1\", or the index of a CUDA device. "
                          "Received {}",
                          verb, nb::cast<std::string>(nb::repr(device))));
}

double to_number(nb::handle value, const char* verb, const char* name) {
  if (PyFloat_Check(value.ptr())) return PyFloat_AsDouble(value.ptr());
  if (PyLong_Check(value.ptr())) {
    const double number = PyLong_AsDouble(value.ptr());
    if (number == -1.0 && PyErr_Occurred()) throw nb::python_error();
    return number;
  }
  // An array would be read back from its device, and its gradient be lost without a word.
  if (is_carried(value))
    throw nb::type_error(fmt::format("{}: {} must be a number. Received an array, {}; write float({}) for its value",
                                     verb, name, type_text(value), name)
                             .c_str());
  if (PyType_GetSlot(Py_TYPE(value.ptr()), Py_nb_float) != nullptr)  // a NumPy scalar
    return nb::cast<double>(nb::float_(value));
  throw nb::type_error(fmt::format("{}: the parameter {} must be a number, an array or a list of numbers. Received {}",
                                   verb, name, nb::cast<std::string>(nb::repr(value)))
                           .c_str());
}

ExplainShape to_shape(nb::handle shape, const char* verb) {
  std::int64_t sizes[3] = {};
  bool fits = PySequence_Check(shape.ptr()) && !PyUnicode_Check(shape.ptr()) && nb::len(shape) == 3;
  for (std::size_t axis = 0; fits && axis < 3; ++axis) fits = nb::try_cast(nb::object(shape[axis]), sizes[axis]);
  if (fits) return {sizes[0], sizes[1], sizes[2]};
  throw Error(ErrorKind::invalid_argument, fmt::format("{}: shape must be (M, N, K), whole numbers. Received {}.", verb,
                                                       nb::cast<std::string>(nb::repr(shape))));
}

Dtype to_dtype(const std::string& name, const char* verb) {
  if (const auto dtype = dtype_of_name(name); dtype && is_of_points(*dtype)) return *dtype;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{}: dtype must be {}. Received \"{}\".", verb, kPointTypes, name));
}

namespace {
bool is_worker_known = false;
}  // namespace

void follow_worker() {
  if (is_worker_known) return;
  is_worker_known = true;
  const auto most = nb::cast<int>(nb::module_::import_("mercer._threads").attr("worker_threads")());
  if (most > 0) Context::shared().state().pool.limit_threads(most);
}

void forget_worker() { is_worker_known = false; }

bool Watch::is_due() {
  const Clock::time_point now = Clock::now();
  if (now - last_ < kSignalInterval) return false;
  last_ = now;
  return true;
}

thread_local bool Watch::wants_bars = false;
thread_local Watch* Watch::current_ = nullptr;

bool Watch::go_on() {
  return !is_due() || ask([this] {
    if (!bar_.is_valid()) bar_ = nb::module_::import_("mercer._progress").attr("open_bar")(verb_);
    bar_.attr("wait")(products_);
  });
}

bool Watch::step(double done, double total) {
  return !is_due() || ask([&] {
    if (!bar_.is_valid()) bar_ = nb::module_::import_("mercer._progress").attr("open_bar")(verb_);
    bar_.attr("show")(done, total);
  });
}

/// Signals and messages of the log, and the bar once the work has taken so long.
template <class Draw>
bool Watch::ask(const Draw& draw) {
  const Locked locked;
  if (PyErr_CheckSignals() != 0) return false;
  try {
    deliver_messages();
    if (shows_bar_ && last_ - start_ >= kBarDelay) draw();
  } catch (nb::python_error& error) {
    error.restore();
    return false;
  }
  return true;
}

void Watch::close() noexcept {
  if (!bar_.is_valid()) return;
  nb::error_scope keep;  // a pending KeyboardInterrupt stays pending
  try {
    bar_.attr("close")();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("mercer: closing the progress bar");
  }
  bar_.reset();
}

Call::Call(const char* verb, nb::handle f, nb::handle x, nb::handle z, Options options)
    : Call(verb, find_formula(f, verb, !options.w.is_none(), &options.params), x, z, options) {}

Call::Call(const char* verb, const Formula& formula, nb::handle x, nb::handle z, const Options& options)
    : verb_(verb), formula_(formula), x_(x, {verb, "x"}), watch_(verb, options.progress.ptr() == Py_True) {
  arguments_.verb = verb;
  x_.require_unwatched();
  if (options.streams()) require_streamable(options);
  if (!options.workspace.is_none()) queue_.use_workspace(options.workspace, x_);
  if (x_.on_cuda()) arguments_.queue = queue_.open(x_);
  if (Measuring* measuring = Measuring::current()) arguments_.queue.rehearsal = &measuring->rehearsal;
  read_points(x, z);
  if (!options.row.is_none()) arguments_.row = input(options.row, "row");
  if (!options.col.is_none()) arguments_.col = input(options.col, "col");
  if (!options.w.is_none()) arguments_.w = input(options.w, "w");
  arguments_.i_offset = to_offset(options.i_offset, verb, "i_offset");
  arguments_.j_offset = to_offset(options.j_offset, verb, "j_offset");
  read_params(options.params);
  arguments_.progress = [watch = &watch_](double done, double total) { return watch->step(done, total); };
}

void Call::require_streamable(const Options& options) {
  device_ = to_cuda_index(options.device, verb_);
  if (x_.on_cuda())
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: with device=, x must be in the memory of the host. Received an array on {}", verb_,
                            x_.tensor().device.to_text()));
  if (!options.workspace.is_none())
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: with device=, scratch memory is taken as it is needed. Received a workspace", verb_));
}

/// Outputs of a call that streams may be on its device.
void Call::require_home(const Array& array) const {
  const Device& home = array.tensor().device;
  if (home.index == *device_) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{}: {} must be in the memory of the host or on cuda:{}, the device of the call. Received an "
                          "array on {}",
                          verb_, array.place().name, *device_, home.to_text()));
}

void Call::require_whole_files() const {
  const nb::object check = nb::module_::import_("mercer._memory_maps").attr("require_whole_file");
  check(verb_, x_.place().name, x_.object());
  for (const Array& array : held_) check(verb_, array.place().name, array.object());
}

void Call::read_points(nb::handle x, nb::handle z) {
  x_.require_points();
  const auto require_matrix = [&](const Tensor& points, const char* name, const char* axes) {
    if (points.ndim() >= 2) return;
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: {} must have the shape [..., {}, K]. Received {}.", verb_,
                                                         name, axes, points.to_text()));
  };
  require_matrix(x_.tensor(), "x", "M");
  if (z.is_none() || z.is(x)) return;
  const Array& columns = hold(z, "z", Access::read);
  columns.require_points();
  require_matrix(columns.tensor(), "z", "N");
  if (columns.tensor().dtype != x_.tensor().dtype) {
    throw DtypeError(fmt::format("{}: x and z must have one dtype. Received {} and {}", verb_,
                                 name_of(x_.tensor().dtype), name_of(columns.tensor().dtype)));
  }
  if (!same_points(x_.tensor(), columns.tensor())) z_ = &columns.tensor();
}

/// Verbs that do not stream have no option of that name, and few formulas a parameter.
void Call::require_no_device(nb::handle name) const {
  if (PyUnicode_CompareWithASCIIString(name.ptr(), "device") != 0) return;
  for (const auto& parameter : parameters(formula_.expression()))
    if (parameter.first == "device") return;
  throw Error(ErrorKind::unsupported,
              fmt::format("{}: device= is an option of pairwise, cdist, kernel_matrix, kernel_product, kernel_reduce, "
                          "knn and kernel_gradient. Received it here",
                          verb_));
}

void Call::read_params(const nb::dict& params) {
  for (const auto& [name, value] : params) {
    require_no_device(name);
    try {
      arguments_.params.emplace(nb::cast<std::string>(name), read_param(name, value));
    } catch (const nb::builtin_exception&) {
      require_parameter(nb::cast<std::string>(name));
      throw;
    }
  }
}

/// A value that is no number is, mostly, that of an option with a misspelt name.
void Call::require_parameter(const std::string& name) const {
  const auto known = parameters(formula_.expression());
  std::vector<std::string_view> names;
  for (const auto& parameter : known) names.push_back(parameter.first);
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  throw Error(ErrorKind::invalid_argument, fmt::format("{}: {}", verb_, formula::unknown_parameter(name, names)));
}

Argument Call::read_param(nb::handle name, nb::handle value) {
  if (PyFloat_Check(value.ptr())) return PyFloat_AsDouble(value.ptr());
  const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), nullptr);
  if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) {
    // Numbers written out: an array of the library of x, but on the CPU.
    const bool numpy = x_.on_cuda() && x_.library().kind != Library::Kind::torch;
    const nb::object home = numpy ? nb::object(nb::module_::import_("numpy")) : x_.library().namespace_;
    const nb::object type = home.attr(name_of(compute_dtype()));
    return hold_param(home.attr("asarray")(value, nb::arg("dtype") = type), text);
  }
  if (!PyLong_Check(value.ptr()) && is_array(value)) return hold_param(value, text);
  return to_number(value, verb_, text);
}

const Array& Call::hold(nb::handle object, const char* name, Access access) {
  Array& array = held_.emplace_back(object, Place{verb_, name}, access);
  if (device_ && access == Access::write && array.on_cuda()) {
    require_home(array);
    return array;
  }
  array.require_same_library(x_);
  array.require_same_device(x_);
  wait_for(array);
  return array;
}

/// Parameters of a call on CUDA arrays may stay on the CPU, in NumPy's arrays too.
const Tensor& Call::hold_param(nb::handle object, const char* name) {
  Array& array = held_.emplace_back(object, Place{verb_, name}, Access::parameter);
  const bool stays = x_.on_cuda() && !array.on_cuda();
  if (!stays || array.library().kind != Library::Kind::numpy) array.require_same_library(x_);
  if (!stays) array.require_same_device(x_);
  wait_for(array);
  return array.tensor();
}

void Call::wait_for(const Array& array) {
  if (arguments_.queue.rehearsal == nullptr) queue_.wait_for(array);
}

const Tensor& Call::placeholder(Dtype dtype, std::vector<std::int64_t> shape) {
  void* const address = reinterpret_cast<void*>(kFarApart * (placeholders_.size() + 1));
  Tensor& tensor = placeholders_.emplace_back(address, dtype, std::move(shape));
  tensor.device = x().device;
  return tensor;
}

const Tensor& Call::input(nb::handle object, const char* name) { return hold(object, name, Access::read).tensor(); }

std::vector<std::int64_t> Call::batch(const std::vector<std::int64_t>& extra) const {
  std::vector<std::int64_t> batch = extra;
  const auto add = [&](const Tensor& tensor, int trailing) {
    if (tensor.ndim() > trailing) batch = ops::broadcast(verb_, batch, ops::leading(tensor, trailing));
  };
  add(x(), 2);
  if (z_) add(*z_, 2);
  if (arguments_.row) add(*arguments_.row, 1);
  if (arguments_.col) add(*arguments_.col, 1);
  for (const auto& [name, value] : arguments_.params) {
    if (const auto* tensor = std::get_if<Tensor>(&value)) add(*tensor, 0);
  }
  return batch;
}

nb::object Call::output(nb::handle out, const char* name, Dtype dtype,
                        const std::function<std::vector<std::int64_t>()>& shape, const Tensor*& view) {
  if (!out.is_none()) {
    view = &hold(out, name, Access::write).tensor();
    return nb::borrow(out);
  }
  if (arguments_.queue.rehearsal != nullptr) {
    view = &placeholder(dtype, shape());
    return nb::none();
  }
  nb::object made = make_array(x_.library(), x_.object(), dtype, shape(), {verb_, name}, &x_.tensor());
  view = &held_.emplace_back(made, Place{verb_, name}, Access::fresh).tensor();
  return made;
}

}  // namespace mercer::python
