/// \file
/// Products with Kronecker products of small matrices, which are never stored.
///
///     matmul        out = alpha op(X) (op(F1) (x) ... (x) op(FN)) + beta Y
///     kron_matmul   out = alpha (op(F1) (x) ... (x) op(FN)) op(X) + beta Y
///
/// With A (x) B [i P + k, j Q + l] = A[i, j] B[k, l] for B of P x Q, the first factor belongs to the slowest index. A
/// row of X is read as an array of N axes, one for each factor, and each factor is multiplied along its own axis:
/// M K (Q1 + ... + QN) multiply-adds for square factors in place of M K^2. Van Loan, "The ubiquitous Kronecker
/// product", J. Comput. Appl. Math. 123 (2000).
///
/// - **Shapes**: op(F_i) [..., P_i, Q_i], 1 to 64 of them, each of a shape of its own; extents from 0 on. A vector is a
///   factor that is summed over: [P, 1] in matmul, [1, Q] in kron_matmul, before it is transposed. matmul: op(x) [...,
///   M, P1 ... PN], out [..., M, Q1 ... QN]. kron_matmul: op(x) [..., Q1 ... QN, M], out [..., P1 ... PN, M]. x without
///   batch and M may be a vector; out then is one, with the batch of the factors before it. Leading axes of x and of
///   all factors broadcast by NumPy's rule. Sizes are counted in 64 bits.
/// - **Dtypes**: One for all arrays of a call: float16, bfloat16 (summed in float32), float32, float64, int32 or int64.
///   Sums of whole numbers are exact modulo 2^32 or 2^64: they wrap around.
/// - **Scalars**: alpha and beta are whole numbers where the arrays hold such. With alpha = 0 neither x nor factors are
///   read, with beta = 0 y is not: NaN there goes nowhere.
/// - **Memory**: Any strides, in elements, read where they lie; y broadcasts to the shape of out. out must not overlap
///   x, y or itself, but may be the very view x, where the shapes allow, or the very view y. It must not overlap a
///   factor.
/// - **Streams**: On CUDA work goes into the stream of Options::queue, and nothing waits.
/// - **Errors**: Everything is checked before anything is written; a broken rule throws invalid_argument.
/// - **Results**: Equal from run to run, whatever the number of threads. float32 and float64: neighbouring tiny factors
///   may be multiplied out first, and each factor rounds once for each of its P_i terms, so |error| <= (P1 + ... + PN +
///   2 N + 2) u (|alpha| |X| (|F1| (x) ... (x) |FN|) + |beta| |Y|), u the rounding unit of the computing type, and one
///   rounding to 16 bits at the end. Where tensor cores multiply, on CUDA for all but float64 and whole numbers, u is
///   2^-22 and 2^-26 |alpha| max |x| P1 max |F1| ... PN max |FN| is added, max |x| of the row: docs/kernels/kron.md
///   derives both. In float32, values of x, of factors and between two factors whose magnitudes are below 2^-104 may
///   err by another 2^-126 each. Infinities may become NaN there.
///
/// \code
/// std::vector<double> k1(5 * 5), k2(8 * 8), c(3 * 40), y(3 * 40);
/// const mercer::Tensor factors[] = {mercer::view(k1.data(), {5, 5}), mercer::view(k2.data(), {8, 8})};
/// mercer::kron::matmul(mercer::view(c.data(), {3, 40}), factors, mercer::view(y.data(), {3, 40}));
/// \endcode
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "mercer/device.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"

namespace mercer::kron {

/// The most factors of a product.
inline constexpr int kMostFactors = 64;

/// What a call takes in addition to x, the factors and out.
struct Options {
  double alpha = 1;  ///< the factor of the product
  double beta = 0;  ///< the factor of y
  const Tensor* y = nullptr;  ///< needed where beta is not 0
  bool transpose_x = false;  ///< op(x) is x with its last two axes swapped
  std::vector<bool> transpose_factors = {};  ///< of each factor; empty: none
  Queue queue = {};  ///< on the CPU its `allocate` too is asked, where there is one
  ProgressCallback progress = {};  ///< CPU only; asked at most every 50 ms
  const char* verb = nullptr;  ///< the name in errors, for wrappers that have one of their own
};

/// out = alpha op(x) (op(F1) (x) ... (x) op(FN)) + beta y, out [..., M, Q1 ... QN].
void matmul(const Tensor& x, std::span<const Tensor> factors, const Tensor& out, const Options& options = {},
            Context& context = Context::shared());

/// out = alpha (op(F1) (x) ... (x) op(FN)) op(x) + beta y, out [..., P1 ... PN, M].
void kron_matmul(std::span<const Tensor> factors, const Tensor& x, const Tensor& out, const Options& options = {},
                 Context& context = Context::shared());

/// The shape that the out of matmul must have; throws as the call would for shapes that do not fit.
std::vector<std::int64_t> matmul_shape(const Tensor& x, std::span<const Tensor> factors, const Options& options = {});
/// The shape that the out of kron_matmul must have, likewise.
std::vector<std::int64_t> kron_matmul_shape(std::span<const Tensor> factors, const Tensor& x,
                                            const Options& options = {});

/// Bytes of scratch memory that a call takes from Options::queue.allocate, on the CPU too: there it depends on the
/// number of threads. `call` makes it with the options that it is handed:
///
///     workspace_size(options, [&](const Options& o) { matmul(x, factors, out, o); })
std::int64_t workspace_size(const Options& options, const std::function<void(const Options&)>& call);

}  // namespace mercer::kron
