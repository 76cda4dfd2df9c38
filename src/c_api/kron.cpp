// mercer/kron.h for C.
#include "mercer/kron.h"

#include "c_api/border.h"
#include "ops/kron/factor_name.h"

namespace mercer::c_api {
namespace {

/// A call with its arrays in the terms of C++.
class KronCall {
 public:
  KronCall(bool left, const mercer_tensor* x, const mercer_tensor* factors, std::size_t count,
           const mercer_kron_options* options)
      : left_(left), op_(left ? "kron.kron_matmul" : "kron.matmul"), x_(tensor_of(op_, "x", x)) {
    // Said here as well: nothing after a wrong count may be read.
    require(count >= 1 && count <= kron::kMostFactors, "{}: there must be 1 to {} factors. Received {}.", op_,
            kron::kMostFactors, count);
    given(op_, "factors", factors);
    for (std::size_t i = 0; i < count; ++i) factors_.push_back(tensor_of(op_, ops::factor_name(i), factors + i));
    read(own_version<mercer_kron_options>(op_, "the options", options, MERCER_KRON_OPTIONS_INIT));
  }
  KronCall(const KronCall&) = delete;  // options_ points to y_
  KronCall& operator=(const KronCall&) = delete;

  void run(const mercer_tensor* out, mercer_context* context) const {
    product(tensor_of(op_, "out", out), options_, context_of(context));
  }
  void tell_shape(std::int32_t* ndim, std::int64_t* shape) const {
    c_api::tell_shape(op_, left_ ? kron::kron_matmul_shape(factors_, x_, options_)
                                 : kron::matmul_shape(x_, factors_, options_), ndim, shape);
  }
  void tell_workspace_size(const mercer_tensor* out, mercer_context* context, std::int64_t* bytes) const {
    std::int64_t& answer = given(op_, "bytes", bytes);
    const Tensor to = tensor_of(op_, "out", out);
    answer = kron::workspace_size(options_, [&](const kron::Options& o) { product(to, o, context_of(context)); });
  }

 private:
  void read(const mercer_kron_options& from) {
    options_.alpha = from.alpha;
    options_.beta = from.beta;
    if (from.y != nullptr) {
      y_ = tensor_of(op_, "y", from.y);
      options_.y = &y_;
    }
    options_.transpose_x = from.transpose_x != 0;
    for (std::size_t i = 0; from.transpose_factors != nullptr && i < factors_.size(); ++i)
      options_.transpose_factors.push_back(from.transpose_factors[i] != 0);
    options_.queue = queue_of(op_, from.queue);
    options_.progress = progress_of(from.progress, from.progress_user);
  }

  void product(const Tensor& out, const kron::Options& options, Context& context) const {
    if (left_) kron::kron_matmul(factors_, x_, out, options, context);
    else kron::matmul(x_, factors_, out, options, context);
  }

  bool left_;
  const char* op_;
  Tensor x_, y_;
  std::vector<Tensor> factors_;
  kron::Options options_;
};

}  // namespace
}  // namespace mercer::c_api

using mercer::c_api::guarded;
using mercer::c_api::KronCall;

mercer_status mercer_kron_matmul(const mercer_tensor* x, const mercer_tensor* factors, size_t factor_count,
                                 const mercer_tensor* out, const mercer_kron_options* options,
                                 mercer_context* context) {
  return guarded([&] { KronCall(false, x, factors, factor_count, options).run(out, context); });
}

mercer_status mercer_kron_kron_matmul(const mercer_tensor* factors, size_t factor_count, const mercer_tensor* x,
                                      const mercer_tensor* out, const mercer_kron_options* options,
                                      mercer_context* context) {
  return guarded([&] { KronCall(true, x, factors, factor_count, options).run(out, context); });
}

mercer_status mercer_kron_matmul_shape(const mercer_tensor* x, const mercer_tensor* factors, size_t factor_count,
                                       const mercer_kron_options* options, int32_t* ndim, int64_t* shape) {
  return guarded([&] { KronCall(false, x, factors, factor_count, options).tell_shape(ndim, shape); });
}

mercer_status mercer_kron_kron_matmul_shape(const mercer_tensor* factors, size_t factor_count, const mercer_tensor* x,
                                            const mercer_kron_options* options, int32_t* ndim, int64_t* shape) {
  return guarded([&] { KronCall(true, x, factors, factor_count, options).tell_shape(ndim, shape); });
}

mercer_status mercer_kron_matmul_workspace_size(const mercer_tensor* x, const mercer_tensor* factors,
                                                size_t factor_count, const mercer_tensor* out,
                                                const mercer_kron_options* options, mercer_context* context,
                                                int64_t* bytes) {
  return guarded([&] {
    KronCall(false, x, factors, factor_count, options).tell_workspace_size(out, context, bytes);
  });
}

mercer_status mercer_kron_kron_matmul_workspace_size(const mercer_tensor* factors, size_t factor_count,
                                                     const mercer_tensor* x, const mercer_tensor* out,
                                                     const mercer_kron_options* options, mercer_context* context,
                                                     int64_t* bytes) {
  return guarded([&] {
    KronCall(true, x, factors, factor_count, options).tell_workspace_size(out, context, bytes);
  });
}
