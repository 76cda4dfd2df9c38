// Operations on all pairs of points. Each is out = verb(formula, x, z, …) with the output given by the caller.
//
// Shapes: x [..., M, K], z [..., N, K] (leading axes broadcast with each other and with the shapes of the parameters),
// w [K], row [..., M], col [..., N]. x and z share one dtype: float16, bfloat16, uint8 (computed in float32), float32, float64.
// Outputs have the computing type (out of pairwise and kernel_matrix may also be 16 bits wide). Every array may have
// any strides; an output must not overlap an input or itself.
// Everything is checked before anything is written; a broken rule throws invalid_argument.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "mercer/device.h"
#include "mercer/formula.h"
#include "mercer/tensor.h"

namespace mercer {

/// A formula made ready for calls: simplified, checked, with its parameters in order. Cheap to copy.
class Formula {
 public:
  struct Prepared;
  Formula(const Expr& expression);  // NOLINT(google-explicit-constructor)
  Formula(std::string_view text);   // NOLINT(google-explicit-constructor)
  Formula(const char* text) : Formula(std::string_view(text)) {}  // NOLINT(google-explicit-constructor)
  const Expr& expression() const;
  bool symmetric() const;
  const Prepared& prepared() const { return *prepared_; }

 private:
  std::shared_ptr<const Prepared> prepared_;
};

/// The value of a parameter: a number, or an array whose shape broadcasts with the batch axes (float32 or float64).
using Argument = std::variant<double, Tensor>;

struct Arguments {
  std::map<std::string, Argument> params;
  std::optional<Tensor> w, row, col;
  std::int64_t i_offset = 0, j_offset = 0;
  ProgressCallback progress;
  const char* verb = nullptr;  ///< the name in error messages, for wrappers that have one of their own
};

/// The batch shape of a call: broadcast(x.shape[:-2], z.shape[:-2], parameter shapes…).
std::vector<std::int64_t> batch_shape(const Formula& f, const Tensor& x, const Tensor& z, const Arguments& arguments = {});

/// out[..., m, n] = f(x[..., m, :], z[..., n, :]). Pass z = nullptr for "the same points as x": then only half of the
/// pairs is computed where the formula is symmetric, and the result is symmetric bitwise.
void pairwise(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& out, const Arguments& arguments = {},
              Context& context = Context::shared());

/// out[..., m, e] = sum_n f(x_m, z_n) v[..., n, e]; v [..., N, E] or [N] (then out is [..., M]). Memory O(M + N).
void kernel_product(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& v, const Tensor& out,
                    const Arguments& arguments = {}, Context& context = Context::shared());

enum class ReduceKind { sum, max, min, argmax, argmin, logsumexp };
const char* name_of(ReduceKind kind);
ReduceKind reduce_kind_from_text(const std::string& name);

/// out[..., m] = reduction over n of f(x_m, z_n). NaN wins in max and min (and its first index in argmax and argmin);
/// ties go to the smaller index. argmax and argmin write int64. N = 0: sum gives 0, logsumexp -Inf, the others refuse.
void kernel_reduce(const Formula& f, const Tensor& x, const Tensor* z, ReduceKind kind, const Tensor& out,
                   const Arguments& arguments = {}, Context& context = Context::shared());

/// The k smallest values of f(x_m, z_n) over n, ascending, ties by index, NaN last. values, indices: [..., M, k], int64 indices.
void knn(const Formula& f, const Tensor& x, const Tensor* z, std::int64_t k, const Tensor& values, const Tensor& indices,
         const Arguments& arguments = {}, Context& context = Context::shared());

/// out[..., o, m, k] = sum_n coef[..., o, n] * d f(x_m, z_n) / d x_mk. coef [..., O, N] or [N] (then out is [..., M, K]).
void kernel_gradient(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& coef, const Tensor& out,
                     const Arguments& arguments = {}, Context& context = Context::shared());

/// out[..., o, m, k] = sum_n coef[..., o, n] * amplitude[..., m, n] * phi(x[m, k], z[n, k]), where phi is a formula without
/// reductions, read at one feature.
void gradient_field(const Expr& phi, const Tensor& x, const Tensor& z, const Tensor& amplitude, const Tensor& coef,
                    const Tensor& out, const Arguments& arguments = {}, Context& context = Context::shared());

/// Every stage of a call as text: IR, split, plan, program, floor. Needs no data.
struct ExplainShape {
  std::int64_t m = 4096, n = 4096, k = 256;
};
std::string explain(const Formula& f, ExplainShape shape, Dtype dtype, Target target);

/// Elements (m, n, k) a second that one core can reach at this clock by the instruction mix, in 1e9.
double floor_rate(const Formula& f, ExplainShape shape, Dtype dtype, Target target, double gigahertz);
/// The core's clock in GHz, measured by a chain of dependent additions.
double measure_clock();

}  // namespace mercer
