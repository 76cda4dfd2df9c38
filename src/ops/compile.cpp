// Compilation ahead of time. On the CPU a plan depends on the sizes only where they are small, so a call on a corner of
// the arrays, a few points with all their features, finds and compiles what the whole call will need:
//
//   for each verb, shape, dtype and layout:  verb(f, zeros[min(m, 8), k], zeros[min(n, 8), k], …)
#include "mercer/compile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

#include "core/error.h"
#include "ops/call.h"

namespace mercer {
namespace {

using Shape = std::vector<std::int64_t>;
constexpr const char* kOp = "compile";

/// Inputs are one element under strides of zero.
class Corner {
 public:
  Corner(const Formula& f, const CompileRequest& request, const CompileRequest::Sizes& sizes, Dtype dtype,
         Layout out_layout)
      : formula_(f),
        columns_(request.columns),
        type_(compute_type(dtype)),
        out_layout_(out_layout),
        m_(std::min(sizes.m, plan::kManyRows)),
        n_(std::min(sizes.n, plan::kManyRows)),
        k_(sizes.k),
        x_(zeros(dtype, {m_, k_})),
        z_(zeros(dtype, {n_, k_})) {
    read_arguments(request);
  }

  void pairwise(Context& context) { mercer::pairwise(formula_, x_, &z_, matrix(m_, n_), arguments_, context); }
  void product(Context& context) {
    kernel_product(formula_, x_, &z_, zeros(type_, {n_, columns_}), output(type_, {m_, columns_}), arguments_, context);
  }
  void reduce(Context& context) {
    if (n_ == 0) return;
    kernel_reduce(formula_, x_, &z_, ReduceKind::argmin, output(Dtype::int64, {m_}), arguments_, context);
    kernel_reduce(formula_, x_, &z_, ReduceKind::logsumexp, output(type_, {m_}), arguments_, context);
  }
  void nearest(Context& context) {
    if (n_ == 0) return;
    knn(formula_, x_, &z_, 1, output(type_, {m_, 1}), output(Dtype::int64, {m_, 1}), arguments_, context);
  }
  void gradient(Context& context) {
    const Shape coef = columns_ == 1 ? Shape{n_} : Shape{columns_, n_};
    const Shape out = columns_ == 1 ? Shape{m_, k_} : Shape{columns_, m_, k_};
    kernel_gradient(formula_, x_, &z_, zeros(type_, coef), output(type_, out), arguments_, context);
  }

 private:
  static Tensor zeros(Dtype dtype, Shape shape) {
    static constexpr double kZero = 0;
    Shape strides(shape.size(), 0);
    return Tensor(const_cast<double*>(&kZero), dtype, std::move(shape), std::move(strides));
  }

  void read_arguments(const CompileRequest& request) {
    const Formula::Prepared& prepared = formula_.prepared();
    arguments_.verb = kOp;
    if (prepared.uses.row) arguments_.row = zeros(type_, {m_});
    if (prepared.uses.col) arguments_.col = zeros(type_, {n_});
    if (prepared.uses.w) arguments_.w = zeros(type_, {k_});
    for (const auto& [name, value] : request.params) arguments_.params[name] = value;
    for (const Expr& leaf : prepared.params) {
      if (leaf->has_default || arguments_.params.contains(leaf->name)) continue;
      arguments_.params[leaf->name] = zeros(Dtype::float64, {1});  // an array: its values are not of the code
    }
  }

  /// The axes that arrays of parameters add to every output.
  Tensor output(Dtype dtype, const Shape& shape) {
    Shape whole = batch_shape(formula_, x_, z_, arguments_);
    whole.insert(whole.end(), shape.begin(), shape.end());
    std::size_t bytes = size_of(dtype);
    for (std::int64_t extent : whole) bytes *= static_cast<std::size_t>(extent);
    return Tensor(memory_.emplace_back(bytes + 1).data(), dtype, std::move(whole));
  }

  Tensor matrix(std::int64_t rows, std::int64_t cols) {
    if (out_layout_ == Layout::row) return output(type_, {rows, cols});
    Tensor out = output(type_, {cols, rows});
    std::swap(out.shape.end()[-1], out.shape.end()[-2]);
    std::swap(out.strides.end()[-1], out.strides.end()[-2]);
    return out;
  }

  const Formula& formula_;
  std::int64_t columns_;
  Dtype type_;
  Layout out_layout_;
  std::int64_t m_, n_, k_;
  Tensor x_, z_;
  Arguments arguments_;
  std::vector<std::vector<std::byte>> memory_;
};

struct VerbRow {
  const char* name;
  void (Corner::*run)(Context&);
};
constexpr VerbRow kVerbs[] = {
    {"pairwise", &Corner::pairwise},        {"kernel_matrix", &Corner::pairwise}, {"cdist", &Corner::pairwise},
    {"kernel_product", &Corner::product},   {"kernel_reduce", &Corner::reduce},   {"knn", &Corner::nearest},
    {"kernel_gradient", &Corner::gradient},
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
  return name.starts_with("sm_") && digits.size() >= 2 && digits.find_first_not_of("0123456789") == std::string::npos;
}

void check(const CompileRequest& request) {
  for (const std::string& name : request.verbs) verb_of(name);
  for (const auto& [batch, m, n, k] : request.shapes) {
    require(batch >= 0 && m >= 0 && n >= 0 && k >= 0, "{}: shapes must not be negative. Received ({}, {}, {}, {}).",
            kOp, batch, m, n, k);
  }
  for (Dtype dtype : request.dtypes) {
    require(dtype != Dtype::int64 && dtype != Dtype::boolean,
            "{}: dtypes must be float16, bfloat16, float32, float64 or uint8. Received {}.", kOp, name_of(dtype));
  }
  for (const CompileRequest::Where& where : request.devices) {
    require(
        where.architecture.empty() || is_architecture(where.architecture),
        "{}: devices must be \"cpu\", indices of CUDA devices or architectures such as \"sm_90a\". Received \"{}\".",
        kOp, where.architecture);
  }
  require(request.columns >= 1, "{}: columns must be at least 1. Received {}.", kOp, request.columns);
}

void compile_for_cpu(const Formula& f, const CompileRequest& request, Context& context) {
  for (const CompileRequest::Sizes& sizes : request.shapes)
    for (Dtype dtype : request.dtypes)
      for (const CompileRequest::Layouts& layouts : request.layouts)
        for (const std::string& verb : request.verbs) {
          Corner corner(f, request, sizes, dtype, layouts.out);
          (corner.*verb_of(verb).run)(context);
        }
}

/// The CUDA part: every combination of the request for this device, or for this architecture without a device.
void compile_for_cuda(const Formula&, const CompileRequest&, const CompileRequest::Where& where, Context&) {
  fail(ErrorKind::unsupported, "{}: CUDA is not offered yet. Received {}.", kOp,
       where.architecture.empty() ? where.device.to_text() : where.architecture);
}

}  // namespace

const char* name_of(Layout layout) { return layout == Layout::row ? "row" : "column"; }

Layout layout_from_text(const std::string& name) {
  for (Layout layout : {Layout::row, Layout::column})
    if (name == name_of(layout)) return layout;
  fail(ErrorKind::invalid_argument, "{}: a layout must be \"row\" or \"column\". Received \"{}\".", kOp, name);
}

void compile(const Formula& f, const CompileRequest& request, Context& context) {
  check(request);
  for (const CompileRequest::Where& where : request.devices) {
    if (where.device.kind == DeviceKind::cpu && where.architecture.empty())
      compile_for_cpu(f, request, context);
    else
      compile_for_cuda(f, request, where, context);
  }
}

}  // namespace mercer
