/// \file
/// Linear algebra of kernel machines: Cholesky's factorisation, LU, eigenvalues of symmetric matrices, and what is
/// solved with them. On the CPU by LAPACK, on CUDA devices by cuSOLVER and cuBLAS, all loaded at the first call.
///
/// - **Shapes**: a [..., n, n]; b [..., n, k], or [n] alone. Leading axes of a and b broadcast by NumPy's rule; a
///   matrix that serves several right-hand sides is factored once. n, k and batches may be 0.
/// - **Dtypes**: float32 or float64, one for all arrays of a call but where it says else; pivots and info are int64.
/// - **Memory**: Any strides, in elements. Rows or columns of neighbouring elements are read where they lie, padded or
///   not; other layouts are copied. Inputs are left as they are, but for what is said to be overwritten. An output must
///   not overlap an input or another output; x may be the very view b, and out, lu or v the view a, which is then
///   overwritten.
/// - **Info**: One number a matrix: 0; or the order of the leading minor that is not positive definite, the position of
///   the zero pivot counted from 1 (in solve_lu perhaps that of the transpose), the number of eigenvalues that did not
///   converge; or -1 for a matrix with NaN or an infinity in the part that is read. The outputs of a matrix that failed
///   are NaN, those of the others are right. With Options::info nothing is thrown for it; without, numerical is, once
///   all outputs are written.
/// - **Streams**: On CUDA work goes into the stream of Options::queue. With info a call returns at once; without, it
///   waits, to know whether to throw. Graph captures are refused, but for cg and, with info, for factors and solutions
///   of orders up to 64 (128 in float32 with up to 16 right-hand sides) and eigh of orders up to 32.
/// - **Errors**: Arguments are checked before anything is written; a broken rule throws invalid_argument, a machine
///   without these libraries unsupported. Pivots out of range cannot be seen on CUDA: their x is NaN. NaN in b is no
///   error: it goes to its column of x.
/// - **Results**: Those of LAPACK. Their last bits may depend on the number of threads.
///
/// \code
/// std::vector<double> k(100 * 100), y(100), c(100);
/// mercer::linalg::Options options;
/// options.jitter = {0, 1e-10, 1e-8};  // parts of the mean diagonal, added until the matrix is positive definite
/// mercer::linalg::solve_cholesky(mercer::view(k.data(), {100, 100}), mercer::view(y.data(), {100}),
///                                mercer::view(c.data(), {100}), options);
/// \endcode
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "mercer/device.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"

namespace mercer::linalg {

/// What a call takes in addition to its arrays.
struct Options {
  bool lower = true;  ///< the triangle of a that is read, and that of the factor; the other may hold anything
  bool overwrite_a = false;  ///< where a is no output: its memory may serve as scratch memory
  std::vector<double> jitter = {};  ///< for matrices that are not positive definite: parts of the mean of the diagonal
                                    ///< (of its absolute values) that are added to it, in turn, until one serves
  const Tensor* info = nullptr;  ///< [...] of a, int64: what became of each matrix
  Queue queue = {};  ///< of CUDA arrays
  const char* verb = nullptr;  ///< the name in errors, for wrappers that have one of their own
};

/// out = L with a = L L^T, or U with a = U^T U when Options::lower is false; zero in the other triangle.
/// out [..., n, n].
void cholesky(const Tensor& a, const Tensor& out, const Options& options = {}, Context& context = Context::shared());

/// x = a^-1 b for symmetric positive definite a, of which one triangle is read. x [..., n, k], or [..., n] for b [n].
void solve_cholesky(const Tensor& a, const Tensor& b, const Tensor& x, const Options& options = {},
                    Context& context = Context::shared());

/// As `solve_cholesky`, with the factor that cholesky gave. Options: lower, queue, verb.
void cho_solve(const Tensor& factor, const Tensor& b, const Tensor& x, const Options& options = {},
               Context& context = Context::shared());

/// out = a^-1 with the factor that cholesky gave: all of it, symmetric, in 2/3 n^3 operations, a third of what
/// cho_solve takes for the identity. out [..., n, n] may be the very view factor. A factor with a pivot that is not
/// positive, with NaN or an infinity, gives NaN. Options: lower, queue, verb.
void cho_inverse(const Tensor& factor, const Tensor& out, const Options& options = {},
                 Context& context = Context::shared());

/// Its diagonal alone, out [..., n], in half the operations and without a matrix; sums are taken in double.
void cho_inverse_diagonal(const Tensor& factor, const Tensor& out, const Options& options = {},
                          Context& context = Context::shared());

/// x = t^-1 b, or t^-T b when `transposed`, where t is the triangle of a [..., n, n] that Options::lower names, with
/// ones on its diagonal, whatever lies there, when `unit_diagonal`. x [..., n, k], or [..., n] for b [n]. Zeros on the
/// diagonal give infinities and NaN. Options: lower, queue, verb.
void solve_triangular(const Tensor& a, const Tensor& b, const Tensor& x, bool transposed = false,
                      bool unit_diagonal = false, const Options& options = {}, Context& context = Context::shared());

/// inv_quad[..., e] = b_e^T a^-1 b_e for the columns b_e of b ([...] for b [n]) and logdet[...] = log det a, of the
/// axes of a: the two parts of a Gaussian's log-likelihood, from one factor. Both are float64.
void inv_quad_logdet(const Tensor& a, const Tensor& b, const Tensor& inv_quad, const Tensor& logdet,
                     const Options& options = {}, Context& context = Context::shared());

/// lu [..., m, n] of any a [..., m, n] holds L below its diagonal (whose own is of ones) and U on and above it: a =
/// P L U. pivots [..., min(m, n)] int64: P is the product of the swaps of the rows i and pivots[i], i = 0 first and
/// counted from 0.
void lu_factor(const Tensor& a, const Tensor& lu, const Tensor& pivots, const Options& options = {},
               Context& context = Context::shared());

/// x = a^-1 b, or a^-T b when `transposed`, with what lu_factor gave. Options: queue, verb.
void lu_solve(const Tensor& lu, const Tensor& pivots, const Tensor& b, const Tensor& x, bool transposed = false,
              const Options& options = {}, Context& context = Context::shared());

/// x = a^-1 b for any a that is not singular.
void solve_lu(const Tensor& a, const Tensor& b, const Tensor& x, const Options& options = {},
              Context& context = Context::shared());

/// Indices of eigenvalues, ascending from 0: both ends belong to it.
using Subset = std::pair<std::int64_t, std::int64_t>;

/// a v_j = w_j v_j for symmetric a, of which one triangle is read; w ascending, columns of v orthonormal.
/// w [..., m] and v [..., n, m], m = n or the number of indices in the subset; v = nullptr: eigenvalues alone.
void eigh(const Tensor& a, const Tensor& w, const Tensor* v, const std::optional<Subset>& subset = {},
          const Options& options = {}, Context& context = Context::shared());

/// A symmetric matrix that is known by its products.
struct Operator {
  std::int64_t order = 0;  ///< n
  Dtype dtype = Dtype::float32;  ///< float32 or float64
  /// out = a v, both [n, columns] of this dtype on the device, the elements of a column one after another.
  std::function<void(const Tensor& v, const Tensor& out)> multiply = {};
  Device device = {};  ///< that it works on
  Queue queue = {};  ///< of a CUDA device: what multiply puts work into, and memory comes from
  /// As `multiply`, for a part of a loop in a captured graph, on the device: in that queue, with memory from it alone;
  /// where the queue has a rehearsal, it is only asked for. Empty: a captured `cg` plays all its rounds.
  std::function<void(const Tensor& v, const Tensor& out, const Queue& queue)> multiply_in = {};
  /// Writes the diagonal to out [n]; that of kernel_operator is without its ridges. Empty where it cannot be known.
  std::function<void(const Tensor& out)> diagonal = {};
  /// Writes rows, likewise: row j of out [rows, n], of neighbouring elements along each row, is row indices[j] of the
  /// matrix.
  std::function<void(const std::vector<std::int64_t>& indices, const Tensor& out)> rows = {};
};
/// a [n, n], all of which may be read, or its transpose in its place; it must outlive the operator, but for a CUDA
/// array without neighbouring elements along an axis, which is copied. The queue is that of a CUDA array.
Operator matrix_operator(const Tensor& a, const Queue& queue = {}, Context& context = Context::shared(),
                         const char* verb = nullptr);
/// What is done to a kernel matrix: s_m f(x_m, x_n) s_n + (ridge + ridges_m) where m = n, s the roots of the weights.
struct KernelTerms {
  double ridge = 0;  ///< added to the diagonal
  const Tensor* ridges = nullptr;  ///< [n] of the dtype of x, where x is
  const Tensor* weights = nullptr;  ///< likewise, from 0 on; a point of weight 0 leaves its ridge alone
};
/// f(x_m, x_n) with these terms, never stored: kernel_product on points x [n, K] of float32 or float64. x and what the
/// arguments and the terms point to must outlive the operator. The queue is that of the arguments, whose row and col,
/// if the formula reads them, must be one array. Ridges and weights in memory of the host must not be negative; those
/// of a device are not looked at. Formulas that read indices have rows, one call each, and no diagonal.
Operator kernel_operator(const Formula& f, const Tensor& x, const KernelTerms& terms, const Arguments& arguments = {},
                         Context& context = Context::shared());
/// As above, with a ridge alone.
Operator kernel_operator(const Formula& f, const Tensor& x, double ridge = 0, const Arguments& arguments = {},
                         Context& context = Context::shared());

/// The largest eigenvalues, the smallest, or those of the largest absolute values.
enum class Which : std::uint8_t { largest, smallest, magnitude };

/// What eigh_top takes in addition to the operator and its outputs.
struct TopOptions {
  Which which = Which::largest;  ///< the end of the spectrum
  /// The largest |a v - w v|, as a part of the largest |w|; 0: 2e-6 for float32, 1e-10 for float64.
  double tolerance = 0;
  std::int64_t most_basis = 0;  ///< vectors held in addition to v; 0: ten times as many as are wanted, or 96
  std::uint64_t seed = 0;  ///< of the vectors to start with
  std::int64_t* unconverged = nullptr;  ///< how many pairs miss the tolerance; null: numerical is thrown if any does
  const char* verb = nullptr;  ///< the name in errors
};

/// Some eigenvalues at one end of the spectrum, ascending, and their vectors, by products alone: w [k], v [n, k],
/// 1 <= k <= n. Errors of w are relative to the largest eigenvalue, not to each. Stops when the residuals, measured by
/// one more product, meet the tolerance.
/// Randomised block Lanczos with full orthogonalisation and thick restarts: Wu, Simon, "Thick-restart Lanczos method
/// for large symmetric eigenvalue problems", SIAM J. Matrix Anal. Appl. 22 (2000).
void eigh_top(const Operator& a, const Tensor& w, const Tensor& v, const TopOptions& options = {},
              Context& context = Context::shared());

struct LowRankParts;  // of Mercer itself

/// A symmetric positive definite matrix P that is near an operator, for its inverse. It may be copied, outlive the
/// operator, and serve many calls, at once too; copies share their memory.
struct Preconditioner {
  std::int64_t order = 0;  ///< n
  std::int64_t rank = 0;  ///< columns of its factor
  Dtype dtype = Dtype::float32;  ///< float32 or float64
  Device device = {};  ///< that it works on
  /// out = P^-1 r, both [order, columns] of this dtype on the device, the elements of a column one after another; in
  /// the stream of the queue.
  std::function<void(const Tensor& r, const Tensor& out, const Queue& queue)> apply = {};
  /// As `apply`, for a part of a loop in a captured graph, as `Operator::multiply_in` is.
  std::function<void(const Tensor& r, const Tensor& out, const Queue& queue)> apply_in = {};
  /// Where columns have ridges of their own: how many `apply` takes. 0: any number.
  std::int64_t columns = 0;
  std::shared_ptr<const LowRankParts> parts = {};  ///< what the functions below make it of

  // The functions below serve what the library has made; a caller's own, of `apply` alone, is refused.

  /// out = P^-1 v. v and out [order, k], or [order], of any strides; out may be v.
  void solve(const Tensor& v, const Tensor& out, const Queue& queue = {}) const;
  /// out = P^(1/2) v by the symmetric root, likewise.
  void multiply_root(const Tensor& v, const Tensor& out, const Queue& queue = {}) const;
  /// log det P, for each ridge.
  std::vector<double> logdet() const;
  /// The diagonal of P: out [order], or [order, columns] with a ridge for each column.
  void diagonal(const Tensor& out, const Queue& queue = {}) const;
  const std::vector<double>& ridges() const;  ///< one, or one for each column
  /// The preconditioner of other ridges: one, or one for each column of what it is applied to. The columns of the
  /// factor are shared.
  Preconditioner with_ridges(std::vector<double> ridges) const;
  /// The preconditioner of diag(s) k diag(s) + ridge, where s are the roots of the weights w [order], from 0 on, of P's
  /// dtype and device.
  Preconditioner weighted(const Tensor& w, const Queue& queue = {}, Context& context = Context::shared()) const;
};

/// How rpcholesky_preconditioner chooses.
struct RpcholeskyOptions {
  std::int64_t block = 0;  ///< rows that are proposed together; 0: an eighth of the rank, from 16 to 128
  std::uint64_t seed = 0;  ///< of the pivots that are drawn
  bool ridge_in_rows = false;  ///< the operator's rows and diagonal are those of k + ridge, as of a stored matrix
};
/// A preconditioner P = L L^T + ridge of k + ridge, where k is positive semi-definite and its rows are those of the
/// operator. L has `rank` columns of Cholesky's factor of k, whose pivots are drawn in proportion to what is left of
/// the diagonal. It is as good as Nystrom's, which takes products with all of k, and reads `rank` rows of k alone. The
/// rank is less where nothing is left of the diagonal. ridge > 0; 1 <= rank; ranks beyond the order are taken for it.
/// Equal seeds give equal pivots.
/// Chen, Epperly, Tropp, Webber, "Randomly pivoted Cholesky", Comm. Pure Appl. Math. 78 (2025); blocks by rejection:
/// Epperly, Tropp, Webber, "Embrace rejection" (2024). Memory: `rank` vectors, three times as many while it is made. On
/// CUDA the call waits. Throws numerical for values that are not finite, and for a matrix that is seen not to be
/// positive semi-definite; unsupported for an operator without rows.
Preconditioner rpcholesky_preconditioner(const Operator& a, std::int64_t rank, double ridge,
                                         const RpcholeskyOptions& options = {}, Context& context = Context::shared());
/// A preconditioner of a = k + ridge, k positive semi-definite: P^-1 = (l_r + ridge) U (L + ridge)^-1 U^T + 1 - U U^T,
/// where U L U^T is Nystrom's approximation of k from its products with `rank` random vectors, and l_r its least
/// eigenvalue. It is worth it where few eigenvalues are far above the ridge. 1 <= rank; ranks beyond the order are
/// taken for it.
/// Frangella, Tropp, Udell, "Randomized Nystrom preconditioning", SIAM J. Matrix Anal. Appl. 44 (2023).
/// Memory: rank vectors, four times as many while it is made. On CUDA the call waits.
/// Throws numerical for products that are not finite, and for a matrix that is not positive semi-definite.
Preconditioner nystrom_preconditioner(const Operator& a, std::int64_t rank, double ridge, std::uint64_t seed = 0,
                                      Context& context = Context::shared());
/// A preconditioner of k + ridge, k of a formula on points x as in kernel_operator: P = L L^T + ridge, where L has
/// `rank` columns of Cholesky's factor of k, those with the largest diagonals that are left: pivots are taken from
/// blocks of rows, and none has less than half of the largest diagonal. It takes no product with k, and ends before
/// where nothing is left of the diagonal. ridge > 0; 1 <= rank. Worse than rpcholesky_preconditioner where points lie
/// apart.
/// Harbrecht, Peters, Schneider, "On the low-rank approximation by the pivoted Cholesky decomposition", Appl. Numer.
/// Math. 62 (2012). Memory, errors: those of nystrom_preconditioner; unsupported for formulas that read indices.
Preconditioner pivoted_cholesky_preconditioner(const Formula& f, const Tensor& x, double ridge, std::int64_t rank,
                                               const Arguments& arguments = {}, Context& context = Context::shared());
/// This overload reads the rows of an operator, which do not contain the ridge.
Preconditioner pivoted_cholesky_preconditioner(const Operator& a, std::int64_t rank, double ridge,
                                               Context& context = Context::shared());

/// What cg and minres take in addition to the operator and its right-hand sides.
struct CgOptions {
  double tolerance = 0;  ///< of |b_j - a x_j|, as a part of |b_j|; 0: 1e-5 for float32, 1e-10 for float64
  std::int64_t most_products = 0;  ///< with the operator, for each column; 0: ten times the order, 10000 at most
  const Preconditioner* preconditioner = nullptr;  ///< of cg alone
  const Tensor* guess = nullptr;  ///< of the shape of x, which it may be; null: zeros
  double ridge = 0;  ///< of all columns, added to a
  const Tensor* ridges = nullptr;  ///< or one for each, [k] or [], float32 or float64 where a is; ridge is then 0
  const Tensor* info = nullptr;  ///< [k], or [] for b [n], int64
  const Tensor* iterations = nullptr;  ///< likewise: the products each column took
  const char* verb = nullptr;  ///< the name in errors
};

/// x = a^-1 b for a symmetric positive definite operator, by products alone. b and x [n, k] or [n], of the operator's
/// dtype and device; x may be the very view b.
/// Conjugate gradients (Hestenes, Stiefel, J. Res. Nat. Bur. Standards 49, 1952) on all columns at once: each has its
/// own steps, and none any more once it has ended. A column ends when its residual b_j - a x_j, computed by one more
/// product, meets the tolerance; where the recurrence promised too much, it starts again from there. A column of zeros
/// gives zeros.
///
/// - **ridges**: Column j solves (a + ridge_j) x_j = b_j, so that a path of ridges shares every product. From 0 on and
///   finite; those of a device are not looked at before: a column with another one ends as one of NaN.
/// - **info**: 0; or, where the tolerance was missed, the products taken when they were used up, or -2 where the
///   measured residual fell no more (float32 cannot reach every tolerance): x is what they led to; or -1, and x NaN,
///   where a value was not finite or a is not positive definite. Without info numerical is thrown for the worst column,
///   once x is written.
/// - **Streams**: On CUDA in the operator's. Every decision is taken on the device; the host reads what was decided one
///   round later, so that the device never waits for it, and returns when all columns have ended, after one product too
///   many. With info it does not wait for the last of the work.
/// - **Captures**: With info and most_products. The graph repeats its rounds until all columns have ended, at most so
///   often; with drivers older than CUDA 12.4, and where the operator or the preconditioner serves one queue alone, all
///   are recorded, with zeros for columns that have ended. The operator, and the preconditioner, must have been used in
///   this stream before, and outlive the graph.
void cg(const Operator& a, const Tensor& b, const Tensor& x, const CgOptions& options = {},
        Context& context = Context::shared());

/// x = a^-1 b for a symmetric operator that may be indefinite, or singular: minimal residuals (Paige, Saunders,
/// "Solution of sparse indefinite systems of linear equations", SIAM J. Numer. Anal. 12, 1975). Arguments, info and
/// streams are those of cg, but for a preconditioner. Where b is not in the range of a singular a, x has the least
/// residual, which stagnates: info is -2. It holds three vectors a column more than cg.
void minres(const Operator& a, const Tensor& b, const Tensor& x, const CgOptions& options = {},
            Context& context = Context::shared());

/// Bytes of scratch memory that a call on CUDA arrays takes; 0 on the CPU. See workspace_size of mercer/pairwise.h.
std::int64_t workspace_size(const Options& options, const std::function<void(const Options&)>& call);

}  // namespace mercer::linalg
