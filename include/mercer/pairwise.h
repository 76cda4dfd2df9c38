/// \file
/// Operations on all pairs of points. Each is out = verb(formula, x, z, …) with the output given by the caller.
///
/// - **Shapes**: x [..., M, K], z [..., N, K], w [K], row [..., M], col [..., N]. Leading axes broadcast with each
///   other and with the shapes of the parameters, by NumPy's rule; "..." in the shape of an output is the result.
/// - **Dtypes**: x and z share one: float16, bfloat16, uint8, int8 (computed in float32), float32, float64, int32
///   (computed in float64, which has all its values). Outputs have the computing type; `pairwise` also writes float16
///   and bfloat16 when that is float32. w, row and col may be any of these, int32 where float64 is computed in; v, coef
///   and amplitude must be of a type that is computed in the type of x.
/// - **Memory**: Every array may have any strides, in elements. An output must not overlap an input or itself.
/// - **Errors**: Everything is checked before anything is written; a broken rule throws invalid_argument, a formula
///   that is not offered throws unsupported. Only a cancelled call (Arguments::progress) leaves its output half
///   written.
/// - **Results**: Equal from run to run, and independent of the number of threads and of the other batch items.
///
/// \code
/// std::vector<float> a(300 * 16), b(400 * 16), k(300 * 400), y(300), coef(400);
/// const mercer::Tensor p = mercer::view(a.data(), {300, 16}), q = mercer::view(b.data(), {400, 16});
/// const mercer::Formula laplace("exp(-sum(abs(x-z))/h)");
/// const mercer::Arguments h = {.params = {{"h", 2.0}}};
/// mercer::pairwise(laplace, p, &q, mercer::view(k.data(), {300, 400}), h);                        // the matrix
/// mercer::kernel_product(laplace, p, &q, mercer::view(coef.data(), {400}), mercer::view(y.data(), {300}), h);
/// \endcode
#pragma once

#include <cstdint>
#include <functional>
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

namespace cuda {
struct Rehearsal;
}
namespace ops {
struct Trial;
}

/// A formula made ready for calls: simplified, checked, with its parameters in order. Cheap to copy; plans are kept by
/// the context under its text, so equal formulas share them. Throws invalid_argument for an expression that breaks the
/// grammar (a term outside a reduction, say), with the part at fault.
class Formula {
 public:
  struct Prepared;  // of Mercer itself
  /// As written with operators.
  Formula(const Expr& expression);  // NOLINT(google-explicit-constructor)
  /// As text (docs/reference/grammar.md).
  Formula(std::string_view text);  // NOLINT(google-explicit-constructor)
  /// As text.
  Formula(const char* text) : Formula(std::string_view(text)) {}  // NOLINT(google-explicit-constructor)
  /// A field: x, z and w stand outside reductions too, for the values at one feature. For gradient_field alone.
  static Formula field(const Expr& phi);
  /// A field whose values at the points n are combined by a reduction of any kind, in place of a sum: the outermost
  /// operation, whose term is read at one feature and reads the arrays of the call as the parameters `coef` and
  /// `amplitude`, each or neither. For gradient_field alone; a sum of coef * amplitude * phi is the field of phi.
  ///
  ///     max(coef * amplitude * abs(x - z))      reduce(coef * sign(x - z), 0.5 * a + t, 0)      in the order of n
  ///
  /// Identities are numbers, `finish` reads states, parameters and row.
  static Formula fold(const Expr& reduction);
  const Expr& expression() const;  ///< simplified
  bool symmetric() const;  ///< f(x, z) = f(z, x), row and i swapped with col and j
  const Prepared& prepared() const { return *prepared_; }  ///< for Mercer itself

 private:
  explicit Formula(std::shared_ptr<const Prepared> prepared) : prepared_(std::move(prepared)) {}
  std::shared_ptr<const Prepared> prepared_;
};

/// The value of a parameter: a number, or an array of float32, float64 or int64 whose shape broadcasts with the batch
/// axes. An array adds its axes to the output; in `pairwise`, values that only the epilogue reads share one
/// accumulation.
using Argument = std::variant<double, Tensor>;

/// Where a call on CUDA arrays puts its work, and where its scratch memory comes from. Calls on arrays of the CPU
/// ignore it.
struct Queue {
  void* stream = nullptr;  ///< CUstream or cudaStream_t of the arrays' device; null: its default stream
  /// Asked at most once a call, for bytes on the arrays' device at a multiple of 16, that stay until the work put into
  /// the stream is done. Empty: the driver's own pool, ordered by the stream.
  std::function<void*(std::int64_t bytes)> allocate = {};
  cuda::Rehearsal* rehearsal = nullptr;  ///< set by compile and workspace_size: the call is checked, but not made
  ops::Trial* trial = nullptr;  ///< set by tune: the call runs with a choice under trial
};

/// What a call takes with its points. A name that the formula as written does not have, w, row and col among them,
/// is refused, as is one that it needs and does not get.
struct Arguments {
  std::map<std::string, Argument> params = {};  ///< those with a default may be left out
  std::optional<Tensor> w = {};  ///< [K], weights of the features
  std::optional<Tensor> row = {};  ///< [..., M], a number per point of x
  std::optional<Tensor> col = {};  ///< [..., N], a number per point of z
  std::int64_t i_offset = 0;  ///< i = m + i_offset: for parts of a larger matrix
  std::int64_t j_offset = 0;  ///< j = n + j_offset
  Queue queue = {};  ///< of CUDA arrays
  ProgressCallback progress = {};  ///< CPU only; asked at most every 50 ms
  const char* verb = nullptr;  ///< the name in errors, for wrappers that have one of their own
};

/// The batch shape of a call, the "..." of its output: broadcast(x.shape[:-2], z.shape[:-2], parameter shapes…).
std::vector<std::int64_t> batch_shape(const Formula& f, const Tensor& x, const Tensor& z,
                                      const Arguments& arguments = {});

/// out[..., m, n] = f(x[..., m, :], z[..., n, :]); out [..., M, N].
///
/// z = nullptr means "the same points as x", as does a z that is the same view. Where the formula is symmetric too,
/// half of the pairs is computed and the result is symmetric bitwise. The other verbs take z = nullptr likewise.
void pairwise(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& out, const Arguments& arguments = {},
              Context& context = Context::shared());

/// out[..., m, e] = sum_n f(x_m, z_n) v[..., n, e]; the matrix of f is never stored, memory is O(M + N).
/// v [..., N, E] and out [..., M, E], or v [N] and out [..., M].
void kernel_product(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& v, const Tensor& out,
                    const Arguments& arguments = {}, Context& context = Context::shared());

/// What becomes of a row of values.
enum class ReduceKind { sum, max, min, argmax, argmin, logsumexp };
const char* name_of(ReduceKind kind);  ///< "argmin"
ReduceKind reduce_kind_from_text(const std::string& name);  ///< throws invalid_argument with the known names

/// out[..., m] = reduction over n of f(x_m, z_n); out [..., M], int64 for argmax and argmin. NaN wins in max and min
/// (and its first index in argmax and argmin); ties go to the smaller index. N = 0: sum gives 0, logsumexp -Inf, the
/// others refuse.
void kernel_reduce(const Formula& f, const Tensor& x, const Tensor* z, ReduceKind kind, const Tensor& out,
                   const Arguments& arguments = {}, Context& context = Context::shared());

/// The k smallest values of f(x_m, z_n) over n, ascending, ties by index, NaN last; 1 <= k <= N.
/// values [..., M, k] in the computing type, indices [..., M, k] int64.
void knn(const Formula& f, const Tensor& x, const Tensor* z, std::int64_t k, const Tensor& values,
         const Tensor& indices, const Arguments& arguments = {}, Context& context = Context::shared());

/// out[..., o, m, k] = sum_n coef[..., o, n] * d f(x_m, z_n) / d x_mk. The derivative is 0 at kinks and singular
/// points, so that coincident points contribute nothing. With z = nullptr, z is still held fixed.
/// coef [..., O, N] and out [..., O, M, K], or coef [N] and out [..., M, K].
void kernel_gradient(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& coef, const Tensor& out,
                     const Arguments& arguments = {}, Context& context = Context::shared());

/// The gradient of sum(weights * kernel_product(f, x, z, v)) by x: out[..., m, k] = sum_ne weights[..., m, e] v[...,
/// n, e] d f(x_m, z_n) / d x_mk. weights [..., M, E], v [..., N, E], out [..., M, K]. In one pass over the pairs,
/// none of which is stored on CPUs; nor on CUDA of few features, or of more where the derivative is an amplitude of
/// the pair times x - z or z (compute capability 9.0); otherwise they are there some rows at a time.
void product_gradient(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights, const Tensor& v,
                      const Tensor& out, const Arguments& arguments = {}, Context& context = Context::shared());

/// What one pass over the pairs computes in addition to product_gradient.
struct ExtraOutputs {
  std::vector<std::string> by;  ///< names of parameters that the formula reads, or "row": R of them
  const Tensor* sums = nullptr;  ///< [..., R, M]: [r, m] = sum_ne weights[m, e] v[n, e] d f(x_m, z_n) / d by[r]
  const Tensor* product = nullptr;  ///< [..., M, E]: kernel_product(f, x, z, v)
  /// The gradient lacks its factor of the weights of the features, which it must have: w_k of a squared distance.
  /// Gradients by w are made of such gradients.
  bool without_weight = false;
  /// [..., K, M]: [k, m] = sum_ne weights[m, e] v[n, e] d f(x_m, z_n) / d w_k; on CUDA of more than 16 features
  /// the values of the pairs are stored for it, some rows at a time.
  const Tensor* by_weights = nullptr;
};
/// As product_gradient, with these. False, and nothing is written, where it would take several passes, or is nothing:
/// by an exponent that is a number, a name that the formula does not read, or more than eight; by the weights of a
/// formula that reads none; of no features; and on CUDA from 17 to 160 features, where product_gradient stores no
/// pairs, with the product of more than 16 columns; where it stores them, as of more features, with that of more
/// columns than pay there.
bool product_backward(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights, const Tensor& v,
                      const Tensor& out, const ExtraOutputs& extra, const Arguments& arguments = {},
                      Context& context = Context::shared());

/// The gradient of sum(weights * pairwise(f, x, z)) by x: out[..., m, k] = sum_n weights[..., m, n] d f(x_m, z_n) /
/// d x_mk. weights [..., M, N], of any strides. `extra` has sums as above, with these weights; no product. It takes
/// one pass over the pairs, whose values are stored, some rows at a time, where product_gradient stores them. False,
/// and nothing is written, where that pass cannot have the sums, as above.
bool pairwise_backward(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& weights, const Tensor& out,
                       const ExtraOutputs& extra, const Arguments& arguments = {},
                       Context& context = Context::shared());

/// The gradients' outer products, added up: out[..., k, l] = sum_om g[..., o, m, k] g[..., o, m, l] with the g of
/// kernel_gradient, of which only some rows m are ever stored. out [..., K, K], symmetric bitwise. Divided by M it is
/// the average gradient outer product (AGOP) of recursive feature machines: Radhakrishnan, Beaglehole, Pandit, Belkin,
/// "Mechanism for feature learning in neural networks and backpropagation-free machine learning models", Science 2024.
void kernel_agop(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& coef, const Tensor& out,
                 const Arguments& arguments = {}, Context& context = Context::shared());

/// out[..., o, m, k] = sum_n coef[..., o, n] * amplitude[..., m, n] * phi(x[m, k], z[n, k]); phi is read at one
/// feature, a reduction in it is a value of the pair, as in what differentiate(f, x) gives. amplitude [..., M, N]; coef
/// and out as above.
/// With Formula::field(phi) in place of phi, repeated calls find it ready. With Formula::fold(r) the points n are
/// combined as r says; amplitude and coef are null where its term reads none; without coef out is [..., M, K]. For no
/// points z it is what r makes of its identities.
void gradient_field(const Expr& phi, const Tensor& x, const Tensor& z, const Tensor& amplitude, const Tensor& coef,
                    const Tensor& out, const Arguments& arguments = {}, Context& context = Context::shared());
/// As above, with a field or a fold that was made before.
void gradient_field(const Formula& field, const Tensor& x, const Tensor& z, const Tensor& amplitude,
                    const Tensor& coef, const Tensor& out, const Arguments& arguments = {},
                    Context& context = Context::shared());
/// As above, for folds that read no amplitude or no coef: null.
void gradient_field(const Formula& field, const Tensor& x, const Tensor& z, const Tensor* amplitude,
                    const Tensor* coef, const Tensor& out, const Arguments& arguments = {},
                    Context& context = Context::shared());

/// Bytes of scratch memory that a call on CUDA arrays takes, exactly; 0 on the CPU. `call` makes it with the arguments
/// that it is handed:
///
///     workspace_size(arguments, [&](const Arguments& a) { kernel_product(f, x, &z, v, out, a); })
///
/// All is checked as in a call. Nothing is compiled or put into a stream, and no array is read or written but
/// parameters on the CPU: the others need an address, not memory.
std::int64_t workspace_size(const Arguments& arguments, const std::function<void(const Arguments&)>& call);

}  // namespace mercer
