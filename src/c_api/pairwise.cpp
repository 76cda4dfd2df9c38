// mercer/pairwise.h for C.
#include "mercer/pairwise.h"

#include <memory>

#include "c_api/border.h"
#include "mercer/zoo.h"

namespace mercer::c_api {
namespace {

constexpr char kOp[] = "pairwise";

/// A call with its arrays in the terms of C++.
class PairwiseCall {
 public:
  PairwiseCall(const mercer_formula* formula, const mercer_tensor* x, const mercer_tensor* z,
               const mercer_arguments* arguments)
      : formula_(given(kOp, "formula", formula).formula), x_(tensor_of(kOp, "x", x)) {
    if (z != nullptr) z_ = tensor_of(kOp, "z", z);
    read(own_version<mercer_arguments>(kOp, "the arguments", arguments, MERCER_ARGUMENTS_INIT));
    arguments_.verb = kOp;
  }

  void run(const mercer_tensor* out, mercer_context* context) const {
    pairwise(formula_, x_, columns(), tensor_of(kOp, "out", out), arguments_, context_of(context));
  }
  void tell_shape(std::int32_t* ndim, std::int64_t* shape) const {
    const Tensor& z = z_ ? *z_ : x_;
    std::vector<std::int64_t> found = batch_shape(formula_, x_, z, arguments_);
    found.insert(found.end(), {x_.shape[x_.ndim() - 2], z.shape[z.ndim() - 2]});
    c_api::tell_shape(kOp, found, ndim, shape);
  }
  void tell_workspace_size(const mercer_tensor* out, mercer_context* context, std::int64_t* bytes) const {
    std::int64_t& answer = given(kOp, "bytes", bytes);
    const Tensor to = tensor_of(kOp, "out", out);
    answer = workspace_size(arguments_, [&](const Arguments& a) {
      pairwise(formula_, x_, columns(), to, a, context_of(context));
    });
  }

 private:
  const Tensor* columns() const { return z_ ? &*z_ : nullptr; }

  void read(const mercer_arguments& from) {
    require(from.param_count == 0 || from.params != nullptr,
            "{}: params must be given where param_count is not 0. Received a null pointer.", kOp);
    for (std::size_t i = 0; i < from.param_count; ++i) read(from.params[i]);
    if (from.w != nullptr) arguments_.w = tensor_of(kOp, "w", from.w);
    if (from.row != nullptr) arguments_.row = tensor_of(kOp, "row", from.row);
    if (from.col != nullptr) arguments_.col = tensor_of(kOp, "col", from.col);
    arguments_.i_offset = from.i_offset;
    arguments_.j_offset = from.j_offset;
    arguments_.queue = queue_of(kOp, from.queue);
    arguments_.progress = progress_of(from.progress, from.progress_user);
  }

  void read(const mercer_param& param) {
    const std::string name = &given(kOp, "the name of a parameter", param.name);
    const Argument value = param.array != nullptr ? Argument(tensor_of(kOp, name.c_str(), param.array))
                                                  : Argument(param.number);
    require(arguments_.params.emplace(name, value).second, "{}: a parameter must be given once. Received \"{}\" twice.",
            kOp, name);
  }

  const Formula& formula_;
  Tensor x_;
  std::optional<Tensor> z_;
  Arguments arguments_;
};

}  // namespace
}  // namespace mercer::c_api

using mercer::c_api::given;
using mercer::c_api::guarded;
using mercer::c_api::PairwiseCall;

mercer_status mercer_formula_create(const char* text, mercer_formula** formula) {
  return guarded([&] {
    mercer_formula*& made = given("formula_create", "formula", formula);
    const mercer::Formula ready(&given("formula_create", "text", text));
    made = std::make_unique<mercer_formula>(mercer_formula{ready}).release();
  });
}

mercer_status mercer_formula_from_zoo(const char* name, mercer_formula** formula) {
  return guarded([&] {
    mercer_formula*& made = given("formula_from_zoo", "formula", formula);
    const mercer::Formula ready(mercer::zoo(&given("formula_from_zoo", "name", name)));
    made = std::make_unique<mercer_formula>(mercer_formula{ready}).release();
  });
}

void mercer_formula_destroy(mercer_formula* formula) { delete formula; }

mercer_status mercer_pairwise(const mercer_formula* formula, const mercer_tensor* x, const mercer_tensor* z,
                              const mercer_tensor* out, const mercer_arguments* arguments, mercer_context* context) {
  return guarded([&] { PairwiseCall(formula, x, z, arguments).run(out, context); });
}

mercer_status mercer_pairwise_shape(const mercer_formula* formula, const mercer_tensor* x, const mercer_tensor* z,
                                    const mercer_arguments* arguments, int32_t* ndim, int64_t* shape) {
  return guarded([&] { PairwiseCall(formula, x, z, arguments).tell_shape(ndim, shape); });
}

mercer_status mercer_pairwise_workspace_size(const mercer_formula* formula, const mercer_tensor* x,
                                             const mercer_tensor* z, const mercer_tensor* out,
                                             const mercer_arguments* arguments, mercer_context* context,
                                             int64_t* bytes) {
  return guarded([&] { PairwiseCall(formula, x, z, arguments).tell_workspace_size(out, context, bytes); });
}
