// Signatures and documentation of mercer.linalg, as Python shows them. Each verb that may leave errors to its caller
// has two: with check=True the result alone, with check=False the result and info.
#pragma once

namespace mercer::python {

#define MERCER_ARRAY "mercer._types.ArrayT"
#define MERCER_OPTIONAL MERCER_ARRAY " | None = None"
#define MERCER_PAIR "tuple[" MERCER_ARRAY ", " MERCER_ARRAY "]"
#define MERCER_JITTER "jitter: float | collections.abc.Sequence[float] | None = None, "
#define MERCER_CHECKED "check: typing.Literal[True] = True, "
#define MERCER_UNCHECKED "check: typing.Literal[False], "
#define MERCER_WITH_INFO(result) "tuple[" result ", " MERCER_ARRAY "]"

#define MERCER_SIGNATURES(name, arguments, out, result)                                   \
  inline constexpr char k##name##Checked[] = arguments MERCER_CHECKED out ") -> " result; \
  inline constexpr char k##name##Unchecked[] = arguments MERCER_UNCHECKED out ") -> " MERCER_WITH_INFO(result);

#define MERCER_BAR "progress: bool = False"  // of the functions of Python around these: _linalg_calls.py
#define MERCER_OUT "out: " MERCER_OPTIONAL ", workspace: " MERCER_OPTIONAL ", " MERCER_BAR
#define MERCER_OUT_PAIR "out: " MERCER_PAIR " | None = None, workspace: " MERCER_OPTIONAL ", " MERCER_BAR

MERCER_SIGNATURES(Cholesky,
                  "def cholesky(a: " MERCER_ARRAY ", *, lower: bool = True, overwrite_a: bool = False, " MERCER_JITTER,
                  MERCER_OUT, MERCER_ARRAY)
MERCER_SIGNATURES(SolveCholesky,
                  "def solve_cholesky(a: " MERCER_ARRAY ", b: " MERCER_ARRAY
                  ", *, lower: bool = True, overwrite_a: bool = False, overwrite_b: bool = False, " MERCER_JITTER,
                  MERCER_OUT, MERCER_ARRAY)
MERCER_SIGNATURES(InvQuadLogdet,
                  "def inv_quad_logdet(a: " MERCER_ARRAY ", b: " MERCER_ARRAY
                  ", *, lower: bool = True, overwrite_a: bool = False, " MERCER_JITTER,
                  MERCER_OUT_PAIR, MERCER_PAIR)
MERCER_SIGNATURES(LuFactor, "def lu_factor(a: " MERCER_ARRAY ", *, overwrite_a: bool = False, ", MERCER_OUT_PAIR,
                  MERCER_PAIR)
MERCER_SIGNATURES(SolveLu,
                  "def solve_lu(a: " MERCER_ARRAY ", b: " MERCER_ARRAY
                  ", *, overwrite_a: bool = False, overwrite_b: bool = False, ",
                  MERCER_OUT, MERCER_ARRAY)
MERCER_SIGNATURES(Eigh,
                  "def eigh(a: " MERCER_ARRAY
                  ", *, lower: bool = True, overwrite_a: bool = False, eigvals_only: bool = False, "
                  "subset_by_index: tuple[int, int] | None = None, ",
                  "out: typing.Any = None, workspace: " MERCER_OPTIONAL ", " MERCER_BAR, "typing.Any")

inline constexpr char kChoSolveSignature[] =
    "def cho_solve(factor: " MERCER_ARRAY ", b: " MERCER_ARRAY
    ", *, lower: bool = True, overwrite_b: bool = False, " MERCER_OUT ") -> " MERCER_ARRAY;
inline constexpr char kChoInverseSignature[] =
    "def cho_inverse(factor: " MERCER_ARRAY ", *, lower: bool = True, overwrite_factor: bool = False, " MERCER_OUT
    ") -> " MERCER_ARRAY;
inline constexpr char kChoInverseDiagonalSignature[] =
    "def cho_inverse_diagonal(factor: " MERCER_ARRAY ", *, lower: bool = True, " MERCER_OUT ") -> " MERCER_ARRAY;
inline constexpr char kSolveTriangularSignature[] =
    "def solve_triangular(a: " MERCER_ARRAY ", b: " MERCER_ARRAY
    ", *, lower: bool = True, transposed: bool = False, unit_diagonal: bool = False, overwrite_b: bool = False, "
    MERCER_OUT ") -> " MERCER_ARRAY;
inline constexpr char kLuSolveSignature[] =
    "def lu_solve(lu_and_pivots: " MERCER_PAIR ", b: " MERCER_ARRAY
    ", *, transposed: bool = False, overwrite_b: bool = False, " MERCER_OUT ") -> " MERCER_ARRAY;

inline constexpr char kCholeskyDoc[] =
    R"doc(Cholesky's factor of symmetric positive definite matrices: L with a = L L^T, or U with a = U^T U.

a: [..., n, n] of float32 or float64, any strides; only the triangle that ``lower`` names is read. The factor has zeros
in the other one. overwrite_a: the factor takes the place of a, which is returned.

jitter: for matrices that are not positive definite. A number j adds j, 10 j, then 100 j times the mean of the diagonal
to the diagonal, until the factor exists; a sequence of numbers says others. Where the matrix is positive definite
nothing is added.

check: with True a matrix without a factor raises LinAlgError, which names the first and the order of the leading minor
that is not positive definite. With False the result is (factor, info), info int64 of the shape [...]: 0; that order; or
-1 for a matrix that holds NaN or an infinity. Factors of such matrices are NaN, the others are right.

out: [..., n, n], the factor, in place of a new array. workspace: scratch memory of a call on CUDA arrays.
progress: shows how long a call has taken, once that is two seconds.

>>> mc.linalg.cholesky(np.array([[4.0, 2.0], [2.0, 2.0]]))
array([[2., 0.],
       [1., 1.]]))doc";

inline constexpr char kSolveCholeskyDoc[] =
    R"doc(Solves a x = b for symmetric positive definite a: x of the shape of b.

a: [..., n, n]; b: [..., n, k], or [n]. Leading axes broadcast; a matrix that serves several b is factored once.
overwrite_a: a becomes scratch memory. overwrite_b: x takes the place of b, which is returned; b must have the shape of
the result. NaN in b stays in its column. The other arguments, info and errors: those of cholesky.

>>> mc.linalg.solve_cholesky(np.array([[4.0, 2.0], [2.0, 2.0]]), np.array([8.0, 6.0]))
array([1., 2.]))doc";

inline constexpr char kChoSolveDoc[] =
    R"doc(Solves a x = b with the factor that cholesky gave for a, of the same ``lower``.

factor: [..., n, n], of which one triangle is read; b, overwrite_b, out: those of solve_cholesky.

>>> mc.linalg.cho_solve(np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([8.0, 6.0]))
array([1., 2.]))doc";

inline constexpr char kChoInverseDoc[] =
    R"doc(The inverse of a symmetric positive definite matrix from the factor that cholesky gave, of the same ``lower``.

factor: [..., n, n], of which one triangle is read; the result has its shape and dtype, and both triangles, exactly
symmetric. It takes a third of the operations of cho_solve with the identity. Where the factor has a diagonal that is
not positive, NaN or an infinity, as that of a matrix without a factor, the inverse is NaN. overwrite_factor: the
inverse takes the place of the factor, which is returned. out: [..., n, n], in place of a new array.

>>> mc.linalg.cho_inverse(np.array([[2.0, 0.0], [1.0, 1.0]]))
array([[ 0.5, -0.5],
       [-0.5,  1. ]]))doc";

inline constexpr char kChoInverseDiagonalDoc[] =
    R"doc(The diagonal of that inverse, [..., n], in half the operations and with no matrix but the factor.

Leave-one-out residuals of kernel regression are a^-1 y over it. Its sums are taken in float64. The arguments and what
is NaN: those of cho_inverse.

>>> mc.linalg.cho_inverse_diagonal(np.array([[2.0, 0.0], [1.0, 1.0]]))
array([0.5, 1. ]))doc";

inline constexpr char kSolveTriangularDoc[] =
    R"doc(Solves t x = b, or t^T x = b with ``transposed``, for the triangle t of a that ``lower`` names.

a: [..., n, n] of float32 or float64, any strides; b: [..., n, k], or [n]; x has the shape of b. Leading axes broadcast.
unit_diagonal: t has ones on its diagonal, whatever lies there. overwrite_b: x takes the place of b, which is returned.
No error is raised for a singular t: zeros on its diagonal give infinities and NaN in x, and NaN in t gives NaN.

>>> mc.linalg.solve_triangular(np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([2.0, 3.0]))
array([1., 2.]))doc";

inline constexpr char kInvQuadLogdetDoc[] =
    R"doc(The parts of a Gaussian's log-likelihood from one factor: b_e^T a^-1 b_e for each column of b, and log det a.

a: [..., n, n], symmetric positive definite; b: [..., n, k] or [n]. The first result has the shape [..., k], or [...]
for b [n]; the second that of the leading axes of a. Both are float64, and so are the sums, whatever the dtype of a is.
out: a pair of arrays. The other arguments, info and errors: those of cholesky.

For a KernelOperator, inv_quad_logdet(a, b, *, n_probes=16, preconditioner=None, tol=None, max_iter=None, seed=0) is a
named tuple (inv_quad, logdet, error): b_e^T x_e with the solutions x of cg, to which preconditioner, tol and max_iter
go, and an estimate of log det a by Lanczos quadrature with n_probes random vectors, which share each product with a.
error is its standard error over them (of one vector infinite), with what is missing where max_iter steps (400) did not
suffice. A preconditioner with solve, sqrt and logdet leaves to the vectors what is not in its determinant alone. Raises
LinAlgError as cg does.

>>> quadratic, logdet = mc.linalg.inv_quad_logdet(np.array([[4.0, 2.0], [2.0, 2.0]]), np.array([8.0, 6.0]))
>>> round(float(quadratic), 6), round(float(np.exp(logdet)), 6)
(20.0, 4.0))doc";

inline constexpr char kLuFactorDoc[] =
    R"doc(LU with partial pivoting, a = P L U, as (lu, pivots).

a: [..., m, n] of float32 or float64, any strides. lu: L below the diagonal (ones on its own), U on and above it; laid
out by columns, unless it takes the place of a (overwrite_a) or of out, a pair of arrays. pivots: int64 [..., min(m,
n)]; row i changed places with row pivots[i], i = 0 first, counted from 0, as in SciPy. lu_solve takes the factors of
square matrices.

check: with True a zero pivot, as of a singular matrix, raises LinAlgError, which names the first such matrix and the
pivot, counted from 1. With False the result is ((lu, pivots), info), info int64 of the shape [...]: 0; that position;
or -1 for a matrix that holds NaN or an infinity. The lu of such matrices is NaN, the others are right.

>>> lu, pivots = mc.linalg.lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]]))
>>> lu
array([[4.  , 4.  ],
       [0.25, 1.  ]])
>>> pivots
array([1, 1]))doc";

inline constexpr char kLuSolveDoc[] =
    R"doc(Solves a x = b, or a^T x = b with ``transposed``, with what lu_factor gave for a: lu_solve(lu_factor(a), b).

b: [..., n, k], or [n]. overwrite_b: x takes the place of b, which is returned.

>>> factors = mc.linalg.lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]]))
>>> mc.linalg.lu_solve(factors, np.array([5.0, 12.0]))
array([1., 2.]))doc";

inline constexpr char kSolveLuDoc[] =
    R"doc(Solves a x = b for any a that is not singular: x of the shape of b.

a: [..., n, n]; b: [..., n, k], or [n]. Leading axes broadcast; a matrix that serves several b is factored once.
overwrite_a: a becomes scratch memory. overwrite_b: x takes the place of b, which is returned. check, info and errors:
those of lu_factor.

>>> mc.linalg.solve_lu(np.array([[1.0, 2.0], [4.0, 4.0]]), np.array([5.0, 12.0]))
array([1., 2.]))doc";

inline constexpr char kEighDoc[] =
    R"doc(Eigenvalues, ascending, and eigenvectors of symmetric matrices, (w, v): a v[:, j] = w[j] v[:, j].

a: [..., n, n] of float32 or float64, any strides; only the triangle that ``lower`` names is read. w: [..., n]; v: [...,
n, n], orthonormal columns, laid out by columns. eigvals_only: w alone.

subset_by_index: (first, last) of the eigenvalues, counted from 0, both included; w and v have so many columns and keep
no more memory. overwrite_a: a becomes scratch memory, or v where all vectors are wanted. out: (w, v), or w.

check: with True eigenvalues that do not converge raise LinAlgError. With False the result is (what it would be, info),
info int64 of the shape [...]: 0; how many did not; or -1 for a matrix that holds NaN or an infinity. w and v of such
matrices are NaN, the others are right.

>>> w, v = mc.linalg.eigh(np.array([[2.0, 1.0], [1.0, 2.0]]))
>>> w.round(6)
array([1., 3.]))doc";

#define MERCER_TOP                                                                                                   \
  "def eigh_top(a: " MERCER_ARRAY                                                                                    \
  " | KernelOperator, k: int, *, which: typing.Literal['largest', 'smallest', 'magnitude'] = 'largest', tol: float " \
  "| None = None, max_basis: int | None = None, seed: int = 0, " MERCER_BAR ", "
inline constexpr char kEighTopChecked[] =
    MERCER_TOP "check: typing.Literal[True] = True) -> tuple[typing.Any, typing.Any]";
inline constexpr char kEighTopUnchecked[] =
    MERCER_TOP "check: typing.Literal[False]) -> tuple[tuple[typing.Any, typing.Any], int]";
#undef MERCER_TOP
inline constexpr char kEighTopDoc[] =
    R"doc(One end of a spectrum by products alone: (w, v), k eigenvalues, ascending, and their vectors in columns.

a: a symmetric matrix [n, n] of float32 or float64, all of which is read, or a KernelOperator, whose matrix is never
stored; on the CPU or a CUDA device, where w and v are too. A call on CUDA arrays waits for its work. k: from 1 to n.
which: "largest", "smallest", or "magnitude" for the largest absolute values.

tol: |a v - w v| of each pair at most, as a part of the largest eigenvalue; 2e-6 in float32 and 1e-10 in float64 when
nothing is said. It is measured, not estimated; errors of w are relative to the largest eigenvalue too. max_basis:
vectors of n numbers held in addition to v, 10 k or 96 when nothing is said; more of them mean fewer products. seed: of
the random vectors to start with.

check: with True pairs that miss the tolerance in the end raise LinAlgError. With False the result is ((w, v), how many
pairs miss it).

>>> w, v = mc.linalg.eigh_top(np.diag([1.0, 2.0, 5.0]), 1)
>>> w.round(6)
array([5.]))doc";

inline constexpr char kKernelOperatorSignature[] =
    "def __init__(self, f: mercer._types.FormulaLike, x: typing.Any, *, ridge: typing.Any = 0.0, weights: typing.Any = "
    "None, w: typing.Any = None, row: typing.Any = None, col: typing.Any = None, **params: mercer._types.Parameter) -> "
    "None";
inline constexpr char kKernelOperatorDoc[] =
    R"doc(The symmetric matrix s_m f(x_m, x_n) s_n + ridge_m (m = n), known by its products and never stored.

f: a symmetric formula, as for kernel_product, with its parameters by name, each one number. x: [n, K] of float32 or
float64; it must not change while the operator is in use. ridge: a number, or one for each point, [n]. weights: of the
points, [n], whose roots are s; ones when nothing is said. w: [K], weights of the features, and row and col: [n], equal,
where the formula reads them. Arrays are of the library, and on the device, of x; ridge and weights of its dtype too.

Everything is checked here: ValueError for what breaks a rule (negative or infinite ridges and weights among it),
DtypeError for other element types. Serves cg, minres, rpcholesky, nystrom, pivoted_cholesky
and eigh_top, SciPy's functions of LinearOperators, and ``a @ v``. Operators pickle, with their arrays.

>>> op = mc.linalg.KernelOperator("sum(x*z)", np.array([[1.0], [2.0]]), ridge=1.0)
>>> op @ np.array([1.0, 1.0])
array([4., 7.]))doc";
inline constexpr char kMultipliedSignature[] =
    "def __matmul__(self, v: " MERCER_ARRAY ") -> " MERCER_ARRAY;
inline constexpr char kMultipliedFromTheLeftSignature[] = "def __rmatmul__(self, v: " MERCER_ARRAY ") -> " MERCER_ARRAY;
inline constexpr char kMatvecSignature[] = "def matvec(self, v: " MERCER_ARRAY ") -> " MERCER_ARRAY;
inline constexpr char kMatmatSignature[] = "def matmat(self, v: " MERCER_ARRAY ") -> " MERCER_ARRAY;
inline constexpr char kRmatvecSignature[] = "def rmatvec(self, v: " MERCER_ARRAY ") -> " MERCER_ARRAY;
inline constexpr char kRmatmatSignature[] = "def rmatmat(self, v: " MERCER_ARRAY ") -> " MERCER_ARRAY;
inline constexpr char kScipyDoc[] = "The product with v, by a name that SciPy calls.";
inline constexpr char kMultipliedDoc[] =
    R"doc(The product with v [n, k] or [n], of the library, device and dtype of the points, in a new array.)doc";
inline constexpr char kDiagonalDoc[] =
    R"doc(The diagonal [n], ridges and weights included. NotImplementedError for formulas that read indices.)doc";
inline constexpr char kRowsDoc[] =
    R"doc(Rows of the matrix, ridges and weights included: [n] for a whole number i, which may be negative, [r, n] for a
slice, a list or an array of r whole numbers. IndexError for others.)doc";
inline constexpr char kToLinearOperatorDoc[] =
    R"doc(The operator for the package linear_operator, of points that are tensors of PyTorch. ImportError without
it.)doc";

#define MERCER_CG                                                                                               \
  "def cg(a: typing.Any, b: " MERCER_ARRAY                                                                      \
  ", *, ridge: typing.Any = None, preconditioner: Preconditioner | None = None, tol: float | None = None, "     \
  "max_iter: int | None = None, x0: " MERCER_OPTIONAL ", out: " MERCER_OPTIONAL ", " MERCER_BAR ", "
inline constexpr char kCgChecked[] = MERCER_CG "check: typing.Literal[True] = True) -> " MERCER_ARRAY;
inline constexpr char kCgUnchecked[] =
    MERCER_CG "check: typing.Literal[False]) -> tuple[" MERCER_ARRAY ", " MERCER_ARRAY ", " MERCER_ARRAY "]";
#undef MERCER_CG
inline constexpr char kCgDoc[] =
    R"doc(Solves a x = b for a symmetric positive definite operator by products alone: conjugate gradients.

a: a matrix [n, n] of float32 or float64, all of which is read; a KernelOperator, whose matrix is never stored; a
LinearOperator of SciPy or of the package linear_operator; or a function that multiplies columns [n, k] of the library,
device and dtype of b. On the CPU or a CUDA device. b: [n, k] or [n]; all columns share their products with a, and each
ends on its own. ridge: added to the diagonal of a, a number or one for each column, [k]: column j solves (a + ridge_j)
x_j = b_j. From 0 on; of an array on a CUDA device that is not looked at before, and another value ends its column as
NaN would. preconditioner: of rpcholesky, nystrom or pivoted_cholesky, near a with its ridge; it serves any number of
calls.

tol: |b_j - a x_j| of each column at most, as a part of |b_j|; 1e-5 in float32 and 1e-10 in float64 when nothing is
said. It is measured by one more product, not estimated. A matrix of condition c leaves float32 about 1e-7 c, so that
less may be out of its reach. max_iter: products with a, for each column; ten times n and at most 10000 when nothing is
said. x0: a first guess, of the shape of b. out: x, in place of a new array; it may be b.
progress: shows how long the call has taken, once that is two seconds, and its products.

check: with True the worst column that misses the tolerance raises LinAlgError. With False the result is (x, info,
iterations), int64 of the shape [k], or [] for b [n]. info: 0; where the tolerance was missed and x is as good as it
got, the products taken when max_iter ran out, or -2 when the measured residual stagnated (a dtype reaches no more than
its rounding); or -1 where b or a product was not finite, or a is not positive definite, and x is NaN. iterations: the
products that each column took.

On CUDA the work is in the current stream. The host looks at what the device decided one product ago, so that nothing
waits but the host; with check=False the call returns when all columns have ended. In the capture of a graph max_iter
and check=False must be given: the graph repeats its rounds until all columns have ended, at most so often (with drivers
older than CUDA 12.4 all of them, with zeros for columns that have ended). A call outside of the capture must have gone
before, in the same stream, and a, b and the preconditioner must live as long as the graph.

>>> mc.linalg.cg(np.array([[4.0, 2.0], [2.0, 2.0]]), np.array([8.0, 6.0])).round(6)
array([1., 2.]))doc";

#define MERCER_MINRES                                                                                          \
  "def minres(a: typing.Any, b: " MERCER_ARRAY                                                                 \
  ", *, ridge: typing.Any = None, tol: float | None = None, max_iter: int | None = None, x0: " MERCER_OPTIONAL \
  ", out: " MERCER_OPTIONAL ", " MERCER_BAR ", "
inline constexpr char kMinresChecked[] = MERCER_MINRES "check: typing.Literal[True] = True) -> " MERCER_ARRAY;
inline constexpr char kMinresUnchecked[] =
    MERCER_MINRES "check: typing.Literal[False]) -> tuple[" MERCER_ARRAY ", " MERCER_ARRAY ", " MERCER_ARRAY "]";
#undef MERCER_MINRES
inline constexpr char kMinresDoc[] =
    R"doc(Solves a x = b for a symmetric operator, indefinite ones among them, by products alone: minimal residuals.

Arguments, result, errors, and work on CUDA: those of cg, without a preconditioner (Paige, Saunders, 1975). For a
positive definite operator cg takes as many products and three vectors a column less. Where a is singular and b not in
its range, the residual stagnates at its least value: info is -2.

>>> mc.linalg.minres(np.array([[4.0, 2.0], [2.0, 2.0]]), np.array([8.0, 6.0])).round(6)
array([1., 2.]))doc";

inline constexpr char kPreconditionerDoc[] =
    R"doc(A symmetric positive definite matrix P near an operator k + ridge: a multiple of the identity and a low rank.

Made by rpcholesky, nystrom and pivoted_cholesky, for cg and for what else needs an inverse, a square root or a
determinant that cost n numbers times the rank. P = U diag(l) U^T + ridge with orthonormal columns U; nystrom's is
(U diag(l) U^T + ridge + least (1 - U U^T)) / (least + ridge), least being its smallest l. Rounding of U bounds (l +
ridge) / ridge: at about 1e5 in float32 and 1e13 in float64, larger l are taken for that. Preconditioners do not change,
share U where they can, and pickle.)doc";
inline constexpr char kPreconditionerSolveSignature[] = "def solve(self, v: " MERCER_ARRAY ") -> " MERCER_ARRAY;
inline constexpr char kPreconditionerSolveDoc[] =
    R"doc(P^-1 v, for v [n] or [n, k] of the dtype and the device of P.

Where P has a ridge for each column, v has so many. On a CUDA device the first call of solve, as that of sqrt, takes
memory and waits; later ones do neither, and may be captured in a graph, which P must outlive. Raises ValueError for
other shapes and devices, DtypeError for other dtypes.)doc";
inline constexpr char kPreconditionerSqrtSignature[] = "def sqrt(self, v: " MERCER_ARRAY ") -> " MERCER_ARRAY;
inline constexpr char kPreconditionerSqrtDoc[] =
    R"doc(P^(1/2) v by the symmetric square root, for v as in solve.

For standard normal v it is a sample of N(0, P).)doc";
inline constexpr char kPreconditionerWithRidgeSignature[] =
    "def with_ridge(self, ridge: float | collections.abc.Sequence[float] | " MERCER_ARRAY ") -> Preconditioner";
inline constexpr char kPreconditionerWithRidgeDoc[] =
    R"doc(P with another ridge, or with one for each column of what solve, sqrt and cg get; U is shared.

ridge: a positive number, or k of them, of any library. Raises ValueError for others.)doc";
inline constexpr char kPreconditionerWeightedSignature[] = "def weighted(self, w: " MERCER_ARRAY ") -> Preconditioner";
inline constexpr char kPreconditionerWeightedDoc[] =
    R"doc(P of diag(s) k diag(s) + ridge, s the square roots of the weights w [n], from 0 on, of the dtype of P.

It costs an orthonormalisation of diag(s) U diag(l)^(1/2), and reads nothing of k. Raises ValueError for weights that
are negative or not finite.)doc";

#define MERCER_RANKED(name) \
  "def " name "(a: " MERCER_ARRAY " | KernelOperator, rank: int, *, ridge: float | None = None, "
inline constexpr char kRpcholeskySignature[] =
    MERCER_RANKED("rpcholesky") "block: int | typing.Literal['auto'] = 'auto', seed: int = 0, " MERCER_BAR
    ") -> Preconditioner";
inline constexpr char kRpcholeskyDoc[] =
    R"doc(A preconditioner from ``rank`` rows of a = k + ridge, k positive semi-definite: the one to begin with.

P = L L^T + ridge, L of columns of Cholesky's factor of k whose pivots are drawn in proportion to what is left of the
diagonal (Chen, Epperly, Tropp, Webber, "Randomly pivoted Cholesky", 2025; in blocks, by rejection: Epperly, Tropp,
Webber, 2024). It saves cg as many products as nystrom of that rank and takes a fraction of its time, since it
multiplies nothing by k. a: a KernelOperator, or a matrix [n, n] of float32 or float64 of which rows are read. ridge:
positive; what a matrix has on its diagonal in addition to k, and a KernelOperator's own when nothing is said: the
least where it has one for each point.

block: rows that are proposed together; "auto" is an eighth of the rank, from 16 to 128. seed: the same one gives the
same pivots. It ends before rank where nothing is left of the diagonal. It holds rank vectors of n numbers, and three
times as many while it is made; the call waits for its work. Raises LinAlgError for values that are not finite, and for
a matrix that is seen not to be positive semi-definite when the ridge is taken away; NotImplementedError for an operator
whose formula reads indices.

>>> op = mc.linalg.KernelOperator(mc.gauss(), np.arange(9.0)[:, None], ridge=0.1)
>>> p = mc.linalg.rpcholesky(op, 4)
>>> mc.linalg.cg(op, np.ones(9), preconditioner=p).shape
(9,))doc";

inline constexpr char kNystromSignature[] =
    MERCER_RANKED("nystrom") "seed: int = 0, " MERCER_BAR ") -> Preconditioner";
#undef MERCER_RANKED
inline constexpr char kNystromDoc[] =
    R"doc(A preconditioner from products of a with ``rank`` random vectors, for a = k + ridge, k positive semi-definite.

It turns the largest eigenvalues of a into its smallest one that was seen (Frangella, Tropp, Udell, "Randomized Nystrom
preconditioning", 2023): worth it where few of them are far above the ridge. a: as for cg. ridge: the multiple of the
identity that a contains; a KernelOperator's own, and 0 for a matrix, when nothing is said. It holds rank vectors of n
numbers, and four times as many while it is made; the call waits for its work. Raises LinAlgError for products that are
not finite, and for a matrix that is not positive semi-definite when the ridge is taken away.

>>> op = mc.linalg.KernelOperator(mc.gauss(), np.arange(9.0)[:, None], ridge=0.1)
>>> mc.linalg.nystrom(op, 4).rank
4)doc";

inline constexpr char kPivotedCholeskySignature[] =
    "def pivoted_cholesky(a: KernelOperator, rank: int, *, " MERCER_BAR ") -> Preconditioner";
inline constexpr char kPivotedCholeskyDoc[] =
    R"doc(A preconditioner from ``rank`` rows of a kernel matrix: L L^T + ridge, with columns L of Cholesky's factor.

The pivots are the largest diagonals that are left (Harbrecht, Peters, Schneider, 2012), none below half of the largest,
and it ends before where they are used up. Its pivots are not random; elsewhere rpcholesky serves better, as points that
lie apart come first here. a: a KernelOperator with a positive ridge. Memory, waiting and errors: those of
rpcholesky.

>>> op = mc.linalg.KernelOperator(mc.gauss(), np.arange(9.0)[:, None], ridge=0.1)
>>> mc.linalg.pivoted_cholesky(op, 4).shape
(9, 9))doc";

#undef MERCER_BAR
#undef MERCER_OUT_PAIR
#undef MERCER_OUT
#undef MERCER_SIGNATURES
#undef MERCER_WITH_INFO
#undef MERCER_UNCHECKED
#undef MERCER_CHECKED
#undef MERCER_JITTER
#undef MERCER_PAIR
#undef MERCER_OPTIONAL
#undef MERCER_ARRAY

}  // namespace mercer::python
