// The function that XLA calls for Mercer: one handler for all verbs, on the CPU and on CUDA.
//
// Attributes say what is computed: `operation`, `formula` (its text), `operands` (the name of each argument, parameters
// as "p:name"), `n:name` for parameters that are numbers, and what else the operation takes. The results are its
// outputs; indices come as pairs of 32 bits where JAX has no int64. Kronecker products ("kron.matmul") have no formula,
// factors "f:0" and so on, and int32 that are numbers; functions of linear algebra ("linalg.cholesky") have no formula
// either, and info as their last result. Runs without the GIL, on any thread of XLA's.
#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <cstddef>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/devices/cuda_driver.h"
#include "core/dtypes.h"
#include "mercer/error.h"
#include "mercer/kron.h"
#include "mercer/linalg.h"
#include "mercer/pairwise.h"
#include "ops/context.h"
#include "settings.h"
#include "symbols.h"
#include "xla_ffi.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

[[noreturn]] void refuse(const std::string& message) { throw mercer::Error(ErrorKind::invalid_argument, message); }

Dtype dtype_of_element(xla::ElementType type) {
  Dtype dtype{};
  if (find_dtype(dtype, [&](const DtypeRow& row) { return type == row.xla; })) return dtype;
  refuse(fmt::format("jax: arrays must hold real numbers. Received XLA's type {}.", static_cast<int>(type)));
}

/// `halves`: int32 are the halves of int64.
Tensor tensor_of(const xla::Buffer& buffer, bool halves) {
  std::vector<std::int64_t> shape(buffer.dims, buffer.dims + buffer.rank);
  if (buffer.type != xla::kS32 || !halves) return Tensor(buffer.data, dtype_of_element(buffer.type), std::move(shape));
  if (shape.empty() || shape.back() != 2) refuse("jax: indices must be int64 or pairs of int32. Received int32.");
  shape.pop_back();
  return Tensor(buffer.data, Dtype::int64, std::move(shape));
}

/// A call as XLA describes it, read into Mercer's terms.
class FfiCall {
 public:
  FfiCall(const xla::CallFrame& frame, DeviceKind kind) : frame_(frame) {
    read_attributes(frame.attributes);
    for (std::int64_t i = 0; i < frame.results.size; ++i) outputs_.push_back(buffer(frame.results, i, !is_kron()));
    read_operands(frame.arguments);
    arguments_.verb = text("verb").c_str();
    arguments_.i_offset = number("i_offset");
    arguments_.j_offset = number("j_offset");
    if (kind == DeviceKind::cuda) move_to_cuda();
  }
  ~FfiCall() {
    for (const auto& [data, bytes] : scratch_) {
      xla::MemoryFree args{sizeof args, nullptr, frame_.context, bytes, data};
      discard(frame_.api->free(&args));
    }
  }
  FfiCall(const FfiCall&) = delete;
  FfiCall& operator=(const FfiCall&) = delete;

  void run() const;

 private:
  const std::string& text(const char* name) const {
    const auto found = texts_.find(name);
    if (found == texts_.end()) refuse(fmt::format("jax: the call must have the attribute {}. Received none.", name));
    return found->second;
  }
  std::int64_t number(const char* name) const {
    const auto found = integers_.find(name);
    return found == integers_.end() ? 0 : found->second;
  }
  const Tensor& array(const char* name) const {
    const auto found = arrays_.find(name);
    if (found == arrays_.end()) refuse(fmt::format("jax: the call must have the operand {}. Received none.", name));
    return found->second;
  }
  const Tensor& output(std::size_t index) const {
    if (index >= outputs_.size()) refuse(fmt::format("jax: the call must have {} results.", index + 1));
    return outputs_[index];
  }
  /// nullptr for the same points.
  const Tensor* columns() const { return known("z"); }
  const Tensor* known(const char* name) const {
    const auto found = arrays_.find(name);
    return found == arrays_.end() ? nullptr : &found->second;
  }

  bool is_kron() const { return text("operation").starts_with("kron."); }
  Tensor buffer(const xla::Arguments& list, std::int64_t index, bool halves = false) const {
    if (list.kinds[index] != xla::kBuffer) refuse("jax: arguments and results must be arrays.");
    return tensor_of(*static_cast<const xla::Buffer*>(list.values[index]), halves);
  }
  void read_attributes(const xla::Attributes& list);
  void read_operands(const xla::Arguments& list);
  void run_kron() const;
  void run_linalg() const;
  void move_to_cuda();
  void* allocate(std::int64_t bytes);
  void discard(xla::Error* error) const {
    if (error == nullptr) return;
    struct {
      std::size_t struct_size;
      xla::Extension* extensions;
      xla::Error* error;
    } args{sizeof args, nullptr, error};
    frame_.api->destroy_error(&args);
  }

  const xla::CallFrame& frame_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::int64_t> integers_;
  std::map<std::string, double> reals_;
  std::map<std::string, Tensor> arrays_;
  std::vector<Tensor> factors_;
  std::vector<Tensor> outputs_;
  mercer::Arguments arguments_;
  std::vector<std::pair<void*, std::size_t>> scratch_;
};

void FfiCall::read_attributes(const xla::Attributes& list) {
  for (std::int64_t i = 0; i < list.size; ++i) {
    const std::string name(list.names[i]->data, list.names[i]->size);
    if (list.kinds[i] == xla::kTextAttribute) {
      const auto& value = *static_cast<const xla::Text*>(list.values[i]);
      texts_[name] = std::string(value.data, value.size);
    } else if (list.kinds[i] == xla::kScalarAttribute) {
      const auto& value = *static_cast<const xla::Scalar*>(list.values[i]);
      if (value.type == xla::kS64)
        integers_[name] = *static_cast<const std::int64_t*>(value.value);
      else if (value.type == xla::kF64 && name.starts_with("n:"))
        arguments_.params[name.substr(2)] = *static_cast<const double*>(value.value);
      else if (value.type == xla::kF64)
        reals_[name] = *static_cast<const double*>(value.value);
    }
  }
}

void FfiCall::read_operands(const xla::Arguments& list) {
  std::istringstream names(text("operands"));
  std::string name;
  for (std::int64_t i = 0; i < list.size && names >> name; ++i) {
    const Tensor tensor = buffer(list, i, name == "pivots");
    if (name.starts_with("p:"))
      arguments_.params[name.substr(2)] = tensor;
    else if (name.starts_with("f:"))
      factors_.push_back(tensor);
    else if (name == "row")
      arguments_.row = tensor;
    else if (name == "col")
      arguments_.col = tensor;
    else if (name == "w")
      arguments_.w = tensor;
    else
      arrays_[name] = tensor;
  }
}

/// Everything lies where the first array with memory does.
void FfiCall::move_to_cuda() {
  const void* some = outputs_.empty() ? nullptr : outputs_[0].data;
  const Device device{DeviceKind::cuda, some == nullptr ? 0 : std::max(0, cuda_device_of(some))};
  for (Tensor& tensor : outputs_) tensor.device = device;
  for (auto& [name, tensor] : arrays_) tensor.device = device;
  for (Tensor& tensor : factors_) tensor.device = device;
  for (auto* tensor : {&arguments_.row, &arguments_.col, &arguments_.w})
    if (*tensor) (*tensor)->device = device;
  for (auto& [name, value] : arguments_.params)
    if (auto* tensor = std::get_if<Tensor>(&value)) tensor->device = device;
  xla::StreamGet args{sizeof args, nullptr, frame_.context, nullptr};
  if (xla::Error* error = frame_.api->stream(&args)) {
    discard(error);
    throw mercer::Error(ErrorKind::device, "jax: XLA must give the stream of the call. Received an error.");
  }
  arguments_.queue.stream = args.stream;
  arguments_.queue.allocate = [this](std::int64_t bytes) { return allocate(bytes); };
}

/// XLA's allocator is ordered by its stream, so the memory may go back with the call. It is asked for no more than 16
/// bytes of alignment, the most it takes.
void* FfiCall::allocate(std::int64_t bytes) {
  if (bytes == 0) return nullptr;
  xla::MemoryAllocate args{sizeof args, nullptr, frame_.context, static_cast<std::size_t>(bytes), 16, nullptr};
  if (xla::Error* error = frame_.api->allocate(&args)) {
    discard(error);
    throw mercer::Error(ErrorKind::device, fmt::format("{}: XLA must have {} bytes of scratch memory. Received none.",
                                                       arguments_.verb, bytes));
  }
  scratch_.emplace_back(args.data, args.size);
  return args.data;
}

/// Prepared once for each text.
Formula formula_of(const std::string& text) {
  static auto& known = *new RecentCache<Formula>(256);
  return *known.get(text, [&] { return std::make_shared<const Formula>(text); });
}

void FfiCall::run_kron() const {
  kron::Options options{.alpha = reals_.at("alpha"), .beta = reals_.at("beta")};
  if (options.beta != 0) options.y = &array("y");
  options.transpose_x = number("transpose_x") != 0;
  for (const char flag : text("transpose_factors")) options.transpose_factors.push_back(flag == '1');
  options.queue = arguments_.queue;
  options.verb = arguments_.verb;
  if (text("operation") == "kron.matmul") kron::matmul(array("x"), factors_, output(0), options);
  else kron::kron_matmul(factors_, array("x"), output(0), options);
}

/// Where matrices fail their results are NaN, and info says so.
void FfiCall::run_linalg() const {
  linalg::Options options;
  options.verb = arguments_.verb;
  options.queue = arguments_.queue;
  options.lower = number("lower") != 0;
  const std::string& operation = text("operation");
  if (operation == "linalg.cho_solve") return linalg::cho_solve(array("factor"), array("b"), output(0), options);
  if (operation == "linalg.lu_solve")
    return linalg::lu_solve(array("lu"), array("pivots"), array("b"), output(0), number("transposed") != 0, options);
  options.info = &outputs_.back();
  if (operation == "linalg.cholesky") linalg::cholesky(array("a"), output(0), options);
  else if (operation == "linalg.lu_factor") linalg::lu_factor(array("a"), output(0), output(1), options);
  else if (operation == "linalg.eigh") linalg::eigh(array("a"), output(0), &output(1), std::nullopt, options);
  else refuse(fmt::format("jax: the operation must be a function of mercer.linalg. Received \"{}\".", operation));
}

void FfiCall::run() const {
  const Settings settings = settings_from_text(text("options"));  // of the thread that called JAX
  const WithSettings with(&settings);
  if (is_kron()) return run_kron();
  if (text("operation").starts_with("linalg.")) return run_linalg();
  const std::string& operation = text("operation");
  const std::string& formula = text("formula");
  const Tensor& x = array("x");
  const Tensor* z = columns();
  const Tensor& out = output(0);
  if (operation == "pairwise") {
    pairwise(formula_of(formula), x, z, out, arguments_);
  } else if (operation == "kernel_product") {
    kernel_product(formula_of(formula), x, z, array("v"), out, arguments_);
  } else if (operation == "kernel_reduce") {
    kernel_reduce(formula_of(formula), x, z, reduce_kind_from_text(text("reduce")), out, arguments_);
  } else if (operation == "knn") {
    knn(formula_of(formula), x, z, number("k"), out, output(1), arguments_);
  } else if (operation == "kernel_gradient") {
    kernel_gradient(formula_of(formula), x, z, array("coef"), out, arguments_);
  } else if (operation == "product_gradient") {
    product_gradient(formula_of(formula), x, z, array("u"), array("v"), out, arguments_);
  } else if (operation == "kernel_agop") {
    kernel_agop(formula_of(formula), x, z, array("coef"), out, arguments_);
  } else if (operation == "gradient_fold") {
    gradient_field(Formula::fold(parse(formula)), x, z ? *z : x, known("amplitude"), known("coef"), out, arguments_);
  } else if (operation == "gradient_field") {
    gradient_field(parse(formula), x, z ? *z : x, array("amplitude"), array("coef"), out, arguments_);
  } else {
    refuse(fmt::format("jax: the operation must be a verb of Mercer. Received \"{}\".", operation));
  }
}

xla::Error* error_of(const xla::Api* api, xla::ErrorCode code, const char* message) {
  xla::ErrorCreate args{sizeof args, nullptr, message, code};
  return api->create_error(&args);
}

xla::ErrorCode code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument: return xla::kInvalidArgument;
    case ErrorKind::unsupported: return xla::kUnimplemented;
    default: return xla::kInternal;
  }
}

/// Answers what XLA asks at registration. The handler claims the version that asks, where it is one it can serve: all
/// that it reads has stood at the same place since 0.1.
xla::Error* describe(const xla::CallFrame& frame, const xla::MetadataExtension& question) {
  const bool newer = frame.api != nullptr && frame.api->version.major == xla::kMajorVersion;
  xla::Metadata& answer = *question.metadata;
  answer.version.struct_size = sizeof(xla::ApiVersion);
  answer.version.extensions = nullptr;
  answer.version.major = xla::kMajorVersion;
  answer.version.minor = newer ? frame.api->version.minor : xla::kMinorVersion;
  answer.traits = 0;
  return nullptr;
}

/// NOTE: XLA of 2024 declares its table smaller than it is, up to `stream`; what follows has been there since 0.1.
bool serves(const xla::CallFrame& frame) {
  const xla::ApiVersion& version = frame.api->version;
  return version.major == xla::kMajorVersion && version.minor >= xla::kMinorVersion &&
         frame.api->struct_size >= offsetof(xla::Api, register_type) && frame.struct_size >= sizeof(xla::CallFrame);
}

template <DeviceKind kind>
xla::Error* handle(xla::CallFrame* frame) {
  for (const xla::Extension* e = frame->extensions; e != nullptr; e = e->next) {
    if (e->type == xla::kExtensionMetadata)
      return describe(*frame, *reinterpret_cast<const xla::MetadataExtension*>(e));
  }
  if (!serves(*frame)) {
    return error_of(frame->api, xla::kUnimplemented, "mercer: this version of XLA's interface is not known.");
  }
  if (frame->stage != xla::kExecuteStage) return nullptr;
  try {
    FfiCall(*frame, kind).run();
    return nullptr;
  } catch (const mercer::Error& error) {
    return error_of(frame->api, code_of(error.kind()), error.what());
  } catch (const std::exception& error) {
    return error_of(frame->api, xla::kInternal, error.what());
  }
}

}  // namespace

void bind_jax(nb::module_& module) {
  module.def(
      "jax_handler",
      [](const std::string& platform) {
        xla::Handler* const handler = platform == "CUDA" ? handle<DeviceKind::cuda> : handle<DeviceKind::cpu>;
        return nb::steal<nb::capsule>(
            PyCapsule_New(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET", nullptr));
      },
      "platform"_a, nb::sig("def jax_handler(platform: str) -> object"),
      "What jax.ffi.register_ffi_target takes: the function that XLA calls, for \"cpu\" or \"CUDA\".");
}

}  // namespace mercer::python
