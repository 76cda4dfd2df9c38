// Compilation ahead of time. Every combination of the request is called once, on arrays that hold nothing:
//
//   for each verb, shape, dtype and layout:  verb(f, zeros[m, k], zeros[n, k], …)
//
// On the CPU a plan depends on the sizes only where they are small, so the call is made on a corner of the arrays, a
// few points with all their features. On CUDA it is rehearsed (backend/rehearsal.h): once to list the
// kernels of all calls, which are compiled together, and on a device of this machine once more to load them.
#include "mercer/compile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

#include "core/error.h"
#include "ops/call/call.h"
#include "ops/call/compile_sources.h"
#include "plan/gpu/floor.h"

namespace mercer {
namespace {

using cuda::Rehearsal;
using Shape = std::vector<std::int64_t>;
constexpr const char* kOp = "compile";

/// Where the calls are made: on the CPU, or rehearsed on CUDA.
struct Stage {
  Device device = {};
  Rehearsal* rehearsal = nullptr;
  std::int64_t extent = 0;   // parameters that the request leaves open are arrays of so many values; 0: numbers
  bool with_itself = false;  // z is x
};

/// Inputs are one element under strides of zero; points on CUDA, where nothing is read, lie as the request says.
class SampleCall {
 public:
  SampleCall(const Formula& f, const CompileRequest& request, const CompileRequest::Sizes& sizes, Dtype dtype,
             const CompileRequest::Layouts& layouts, const Stage& stage)
      : formula_(f),
        stage_(stage),
        columns_(request.columns),
        type_(compute_type(dtype)),
        out_layout_(layouts.out),
        batch_(on_cuda() && sizes.batch > 1 ? Shape{sizes.batch} : Shape{}),
        m_(on_cuda() ? sizes.m : std::min(sizes.m, plan::kManyRows)),
        n_(on_cuda() ? sizes.n : std::min(sizes.n, plan::kManyRows)),
        k_(sizes.k),
        x_(matrix_of(dtype, m_, k_, layouts.x)),
        z_(stage.with_itself ? x_ : matrix_of(dtype, n_, k_, layouts.z)) {
    arguments_.verb = kOp;
    arguments_.queue.rehearsal = stage.rehearsal;
    read_values();
    read_params(request);
  }

  void pairwise(Context& context) { mercer::pairwise(formula_, x_, &z_, matrix(m_, n_), arguments_, context); }
  void product(Context& context) {
    kernel_product(formula_, x_, &z_, zeros(type_, {n_, columns_}), output(type_, {m_, columns_}), arguments_, context);
  }
  void reduce(Context& context) {
    if (n_ == 0) return;
    for (ReduceKind kind : {ReduceKind::argmin, ReduceKind::logsumexp}) reduce(kind, context);
    if (!on_cuda()) return;  // the others take nothing of their own there
    for (ReduceKind kind : {ReduceKind::sum, ReduceKind::max, ReduceKind::min, ReduceKind::argmax})
      reduce(kind, context);
  }
  void nearest(Context& context) {
    // Few neighbours and many take different kernels on CUDA; how many of either, does not matter.
    constexpr std::int64_t kMany = 257;
    for (std::int64_t k : {std::int64_t{1}, kMany})
      if (k <= n_ && (k == 1 || on_cuda()))
        knn(formula_, x_, &z_, k, output(type_, {m_, k}), output(Dtype::int64, {m_, k}), arguments_, context);
  }
  void gradient(Context& context) {
    const Shape coef = columns_ == 1 ? Shape{n_} : Shape{columns_, n_};
    const Shape out = columns_ == 1 ? Shape{m_, k_} : Shape{columns_, m_, k_};
    kernel_gradient(formula_, x_, &z_, zeros(type_, coef), output(type_, out), arguments_, context);
  }
  void agop(Context& context) {
    const Shape coef = columns_ == 1 ? Shape{n_} : Shape{columns_, n_};
    kernel_agop(formula_, x_, &z_, zeros(type_, coef), output(type_, {k_, k_}), arguments_, context);
  }
  void field(Context& context) {
    const Shape coef = columns_ == 1 ? Shape{n_} : Shape{columns_, n_};
    const Shape out = columns_ == 1 ? Shape{m_, k_} : Shape{columns_, m_, k_};
    const Formula::Prepared& reads = formula_.prepared();
    const Tensor amplitude = matrix_of(type_, m_, n_, Layout::row), coefs = zeros(type_, coef);
    gradient_field(formula_, x_, z_, reads.reads_amplitude ? &amplitude : nullptr, reads.reads_coef ? &coefs : nullptr,
                   output(type_, reads.reads_coef ? out : Shape{m_, k_}), arguments_, context);
  }

 private:
  bool on_cuda() const { return stage_.device.kind == DeviceKind::cuda; }

  void reduce(ReduceKind kind, Context& context) {
    const bool index = kind == ReduceKind::argmin || kind == ReduceKind::argmax;
    kernel_reduce(formula_, x_, &z_, kind, output(index ? Dtype::int64 : type_, {m_}), arguments_, context);
  }

  static Tensor zeros_on(Device device, Dtype dtype, Shape shape) {
    static constexpr double kZero = 0;
    Shape strides(shape.size(), 0);
    Tensor t(const_cast<double*>(&kZero), dtype, std::move(shape), std::move(strides));
    t.device = device;
    return t;
  }
  Tensor zeros(Dtype dtype, Shape shape) const { return zeros_on(stage_.device, dtype, std::move(shape)); }

  Tensor matrix_of(Dtype dtype, std::int64_t rows, std::int64_t columns, Layout layout) {
    Shape shape = batch_;
    shape.insert(shape.end(), {rows, columns});
    if (!on_cuda()) return zeros(dtype, std::move(shape));
    Tensor t(far_away(), dtype, std::move(shape));
    t.device = stage_.device;
    if (layout == Layout::column) t.strides.end()[-2] = 1, t.strides.end()[-1] = rows;
    return t;
  }

  void read_values() {
    const ir::Uses& uses = formula_.prepared().uses;
    if (uses.row) arguments_.row = zeros(type_, {m_});
    if (uses.col) arguments_.col = zeros(type_, {n_});
    if (uses.w) arguments_.w = zeros(type_, {k_});
  }

  void read_params(const CompileRequest& request) {
    const Formula::Prepared& prepared = formula_.prepared();
    for (const auto& [name, value] : request.params) arguments_.params[name] = value;
    for (const Expr& leaf : prepared.params) {
      if (arguments_.params.contains(leaf->name)) continue;
      const bool exponent = std::any_of(prepared.exponents.begin(), prepared.exponents.end(),
                                        [&](const Expr& e) { return same(e, leaf); });
      // The values of an array are not of the code; of CUDA's, those of numbers other than 0 are not either.
      if (on_cuda() && !exponent && stage_.extent == 0)
        arguments_.params[leaf->name] = 1.0;
      else if (!leaf->has_default || (stage_.extent > 0 && !exponent))
        arguments_.params[leaf->name] = zeros_on({}, Dtype::float64, parameter_shape());
    }
  }

  /// A parameter's shape: its own axis next to the axes of a batch.
  Shape parameter_shape() const {
    Shape shape(batch_.size(), 1);
    shape.insert(shape.begin(), std::max<std::int64_t>(stage_.extent, 1));
    return shape;
  }

  /// The axes that batches and arrays of parameters add to every output.
  Tensor output(Dtype dtype, const Shape& shape) {
    Shape whole = batch_shape(formula_, x_, z_, arguments_);
    whole.insert(whole.end(), shape.begin(), shape.end());
    Tensor t(nullptr, dtype, std::move(whole));
    t.device = stage_.device;
    t.data = on_cuda() ? far_away() : memory(t);
    return t;
  }

  /// Far from every other array: a rehearsal touches none, and their overlap is looked at.
  void* far_away() { return reinterpret_cast<void*>(++far_ << 48); }

  void* memory(const Tensor& t) {
    return memory_.emplace_back(static_cast<std::size_t>(t.count()) * size_of(t.dtype) + 1).data();
  }

  Tensor matrix(std::int64_t rows, std::int64_t cols) {
    if (out_layout_ == Layout::row) return output(type_, {rows, cols});
    Tensor out = output(type_, {cols, rows});
    std::swap(out.shape.end()[-1], out.shape.end()[-2]);
    std::swap(out.strides.end()[-1], out.strides.end()[-2]);
    return out;
  }

  const Formula& formula_;
  Stage stage_;
  std::int64_t columns_;
  Dtype type_;
  Layout out_layout_;
  Shape batch_;
  std::int64_t m_, n_, k_;
  std::uintptr_t far_ = 0;
  Tensor x_, z_;
  Arguments arguments_;
  std::vector<std::vector<std::byte>> memory_;
};

struct VerbRow {
  const char* name;
  void (SampleCall::*run)(Context&);
};
constexpr const char* kFieldVerb = "gradient_field";
constexpr VerbRow kVerbs[] = {
    {"pairwise", &SampleCall::pairwise},
    {"kernel_matrix", &SampleCall::pairwise},
    {"cdist", &SampleCall::pairwise},
    {"kernel_product", &SampleCall::product},
    {"kernel_reduce", &SampleCall::reduce},
    {"knn", &SampleCall::nearest},
    {"kernel_gradient", &SampleCall::gradient},
    {"kernel_agop", &SampleCall::agop},
    {kFieldVerb, &SampleCall::field},
};

const VerbRow& verb_of(const std::string& name) {
  std::vector<std::string> known;
  for (const VerbRow& row : kVerbs) {
    if (name == row.name) return row;
    known.emplace_back(row.name);
  }
  fail(ErrorKind::invalid_argument, "{}: verbs must be some of {}. Received \"{}\".", kOp, fmt::join(known, ", "),
       name);
}

bool is_architecture(const std::string& name) {
  const bool feature = !name.empty() && (name.back() == 'a' || name.back() == 'f');
  const std::string digits = name.substr(std::min<std::size_t>(name.size(), 3), name.size() - 3 - (feature ? 1 : 0));
  return name.starts_with("sm_") && digits.size() >= 2 && digits.size() <= 4 &&
         digits.find_first_not_of("0123456789") == std::string::npos;
}

int capability_of(const std::string& architecture) { return std::stoi(architecture.substr(3)); }

void check_architecture(const std::string& name) {
  require(is_architecture(name),
          "{}: devices must be \"cpu\", indices of CUDA devices or architectures such as \"sm_90a\". Received \"{}\".",
          kOp, name);
  const int oldest = plan::gpu_infos().front().capability;
  if (capability_of(name) < oldest)
    fail(ErrorKind::unsupported, "{}: the architecture must be at least sm_{}. Received {}.", kOp, oldest, name);
}

void check(const Formula& f, const CompileRequest& request) {
  for (const std::string& name : request.verbs) {
    verb_of(name);
    const bool is_field = f.prepared().is_field;
    require((name == kFieldVerb) == is_field,
            "{}: the verb gradient_field takes a field, and no other verb does. Received {} with {}.", kOp, name,
            is_field ? "a field" : "a formula of pairs");
  }
  for (const auto& [batch, m, n, k] : request.shapes) {
    require(batch >= 0 && m >= 0 && n >= 0 && k >= 0, "{}: shapes must not be negative. Received ({}, {}, {}, {}).",
            kOp, batch, m, n, k);
  }
  for (Dtype dtype : request.dtypes) {
    require(is_of_points(dtype), "{}: dtypes must be {}. Received {}.", kOp, kPointTypes, name_of(dtype));
  }
  for (const CompileRequest::Where& where : request.devices) {
    if (!where.architecture.empty())
      check_architecture(where.architecture);
    else if (where.device.kind == DeviceKind::cuda)
      cuda_device(where.device.index);
  }
  require(request.columns >= 1, "{}: columns must be at least 1. Received {}.", kOp, request.columns);
}

void run_all(const Formula& f, const CompileRequest& request, const Stage& stage, Context& context) {
  for (const CompileRequest::Sizes& sizes : request.shapes)
    for (Dtype dtype : request.dtypes)
      for (const CompileRequest::Layouts& layouts : request.layouts)
        for (const std::string& verb : request.verbs) {
          if (stage.with_itself && (sizes.m != sizes.n || layouts.x != layouts.z)) continue;
          SampleCall call(f, request, sizes, dtype, layouts, stage);
          (call.*verb_of(verb).run)(context);
        }
}

/// Numbers, arrays and batches have kernels of their own, and so have points with themselves.
void rehearse_all(const Formula& f, const CompileRequest& request, Rehearsal& rehearsal, Context& context) {
  const Device device{DeviceKind::cuda, rehearsal.device->index};
  for (std::int64_t extent : {0, 1, 2})
    for (bool with_itself : {false, true}) run_all(f, request, {device, &rehearsal, extent, with_itself}, context);
}

/// A device of that architecture, as far as plans are concerned.
CudaDevice device_like(const std::string& architecture) {
  const int capability = capability_of(architecture);
  const plan::GpuInfo& info = plan::gpu_info(capability);
  CudaDevice device;  // without a name: nothing is measured on it
  device.major = capability / 10;
  device.minor = capability % 10;
  device.multiprocessors = info.multiprocessors;
  device.shared_per_block = info.shared_per_block;
  return device;
}

void compile_for_cuda(const Formula& f, const CompileRequest& request, const CompileRequest::Where& where,
                      Context& context) {
  jit::compile_all(ops::cuda_sources(f, request, where, ops::SourcesOf::calls, context));
  if (!where.architecture.empty()) return;
  Rehearsal loading{Rehearsal::Purpose::kernels, &cuda_device(where.device.index)};
  rehearse_all(f, request, loading, context);
}

}  // namespace

std::vector<jit::CudaSource> ops::cuda_sources(const Formula& f, const CompileRequest& request,
                                               const CompileRequest::Where& where, SourcesOf of, Context& context) {
  check(f, request);
  const CudaDevice device =
      where.architecture.empty() ? cuda_device(where.device.index) : device_like(where.architecture);
  Rehearsal listing{Rehearsal::Purpose::sources, &device, of == SourcesOf::store};
  rehearse_all(f, request, listing, context);
  return std::move(listing.sources);
}

void ops::write_cuda_store(const std::filesystem::path& folder, const Formula& f, const CompileRequest& request,
                           Context& context) {
  for (const CompileRequest::Where& where : request.devices) {
    const std::vector<jit::CudaSource> sources = cuda_sources(f, request, where, SourcesOf::store, context);
    const std::vector<jit::CudaBinary> binaries = jit::compile_all(sources);
    for (std::size_t i = 0; i < sources.size(); ++i) jit::add_to_cuda_store(folder, sources[i], binaries[i]);
  }
}

const char* name_of(Layout layout) { return layout == Layout::row ? "row" : "column"; }

Layout layout_from_text(const std::string& name) {
  for (Layout layout : {Layout::row, Layout::column})
    if (name == name_of(layout)) return layout;
  fail(ErrorKind::invalid_argument, "{}: a layout must be \"row\" or \"column\". Received \"{}\".", kOp, name);
}

void compile(const Formula& f, const CompileRequest& request, Context& context) {
  check(f, request);
  for (const CompileRequest::Where& where : request.devices) {
    if (where.device.kind == DeviceKind::cpu && where.architecture.empty())
      run_all(f, request, {}, context);
    else
      compile_for_cuda(f, request, where, context);
  }
}

}  // namespace mercer
