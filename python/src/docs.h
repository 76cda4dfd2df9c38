// Signatures and documentation of the verbs, as Python shows them.
#pragma once

namespace mercer::python {

#define MERCER_MOST_OPTIONS                                                                                           \
  "row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None " \
  "= None, i_offset: int = 0, "                                                                                       \
  "j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False"
#define MERCER_PARAMS ", **params: mercer._types.Parameter"
#define MERCER_SHARED_OPTIONS MERCER_MOST_OPTIONS MERCER_PARAMS
#define MERCER_STREAMED_OPTIONS MERCER_MOST_OPTIONS ", device: str | int | None = None" MERCER_PARAMS
#define MERCER_POINTS "f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None"

inline constexpr char kPairwiseSignature[] =
    "def pairwise(" MERCER_POINTS " = None, *, out: mercer._types.ArrayT | None = None, " MERCER_STREAMED_OPTIONS
    ") -> mercer._types.ArrayT";
inline constexpr char kPairwiseDoc[] =
    R"doc(The formula on all pairs of points: out[..., m, n] = f(x[..., m, :], z[..., n, :]).

- f: an Expr, a text such as "exp(-sum(abs(x-z)^p)/bandwidth)", a name of the zoo, or a function of (x, z, ...).
- x: [..., M, K]; z: [..., N, K], or None for the same points as x. Leading axes broadcast. Both have one dtype:
  float16, bfloat16, uint8 and int8 are computed in float32, int32 in float64, which has all of its values, float32 and
  float64 in themselves. Any strides.
- out: [..., M, N] of the computing dtype (or 16 bits wide), returned as given; made by the library of x when None.
- row: [..., M], col: [..., N]: values per point, read as row and col in the formula. w: [K], the weights w.
- i_offset, j_offset: added to the indices that the formula reads as i and j.
- workspace: on CUDA, an array of uint8 on the device of x, to be used as the call's scratch memory.
- progress: show a bar once the call has taken two seconds; on the CPU, and with device.
- device: "cuda", "cuda:1" or the index of a CUDA device on which arrays of NumPy (memory maps too) or of PyTorch on the
  CPU are computed. Blocks of points stream through it, so that they may be larger than its memory; the result is in
  the memory of the host, or in out on that device. Without batch axes and gradients.
- params: the formula's parameters: numbers, or arrays (lists of numbers) that broadcast with the leading axes: B
  numbers make a batch of B results, also where B is K. A number for each feature is w. A parameter that bears the name
  of an option of this function is given beforehand, with f.bind(name=value).

One set of points and a symmetric formula: half of the pairs is computed, and the result is symmetric bitwise.
Raises ValueError for a broken rule, before anything is written; DtypeError (a ValueError and a TypeError) for a dtype;
NotImplementedError for what is not offered. Ctrl-C stops the call and leaves out half written.

>>> x, z = np.array([[0.0, 0.0], [1.0, 2.0]]), np.array([[1.0, 1.0]])
>>> mc.pairwise("sum(abs(x-z))/b", x, z, b=2.0)
array([[1. ],
       [0.5]])
>>> mc.pairwise("sum(abs(x-z))/b", x, z, b=[1.0, 2.0, 4.0]).shape
(3, 2, 1))doc";

inline constexpr char kKernelMatrixSignature[] =
    "def kernel_matrix(" MERCER_POINTS " = None, *, out: mercer._types.ArrayT | None = None, " MERCER_STREAMED_OPTIONS
    ") -> mercer._types.ArrayT";
inline constexpr char kKernelMatrixDoc[] =
    R"doc(The kernel matrix out[..., m, n] = f(x_m, z_n); of x with itself when z is None.

Arguments, dtypes and errors: those of pairwise.

>>> mc.kernel_matrix("sum(x*z)", np.array([[1.0, 0.0], [1.0, 1.0]]))
array([[1., 1.],
       [1., 2.]]))doc";

inline constexpr char kKernelProductSignature[] =
    "def kernel_product(" MERCER_POINTS
    ", v: mercer._types.ArrayT, *, out: mercer._types.ArrayT | None = None, " MERCER_MOST_OPTIONS
    ", device: str | int | None = None, normalize: typing.Literal[\"softmax\", \"sum\"] | None = None" MERCER_PARAMS
    ") -> mercer._types.ArrayT";
inline constexpr char kKernelProductDoc[] =
    R"doc(A kernel matrix times v without the matrix: out[..., m, e] = sum_n f(x_m, z_n) v[..., n, e].

v: [..., N, E], or [N] (then out is [..., M]): float64 or int32 where x is, else another dtype of points.
out: [..., M, E], of the computing dtype. Memory: O(M + N); of many columns on CUDA up to 1 GiB
more, for a part of the values.
normalize: "sum" divides each row by sum_n f(x_m, z_n), as kernel smoothing does; "softmax" has the weights
exp(f(x_m, z_n)) / sum_n exp(f(x_m, z_n)), as attention has them, for values f of any size: a formula that does not read
row. It makes a copy of v and is not offered with workspace.
The other arguments, dtypes and errors: those of pairwise.

>>> x, z = np.array([[0.0], [1.0]]), np.array([[1.0], [3.0]])
>>> mc.kernel_product("sum(abs(x-z))", x, z, np.array([1.0, 10.0]))
array([31., 20.]))doc";

inline constexpr char kKernelReduceSignature[] =
    "def kernel_reduce(" MERCER_POINTS
    ", reduce: typing.Literal[\"sum\", \"max\", \"min\", \"argmax\", \"argmin\", "
    "\"logsumexp\"], *, out: mercer._types.ArrayT | None = None, " MERCER_STREAMED_OPTIONS ") -> mercer._types.ArrayT";
inline constexpr char kKernelReduceDoc[] =
    R"doc(A reduction over the points of z: out[..., m] = reduce over n of f(x_m, z_n).

reduce: "sum", "max", "min", "argmax", "argmin" (int64 indices) or "logsumexp". NaN wins, ties go to the smaller index.
No points in z: "sum" gives 0, "logsumexp" -inf, the others raise ValueError.
The other arguments, dtypes and errors: those of pairwise.

>>> x, z = np.array([[0.0], [4.0]]), np.array([[1.0], [3.0]])
>>> mc.kernel_reduce("sum(abs(x-z))", x, z, "argmin")
array([0, 1]))doc";

inline constexpr char kKnnSignature[] =
    "def knn(" MERCER_POINTS
    ", k: int, *, out: tuple[mercer._types.ArrayT, mercer._types.ArrayT] | None = None, " MERCER_STREAMED_OPTIONS
    ") -> tuple[mercer._types.ArrayT, mercer._types.ArrayT]";
inline constexpr char kKnnDoc[] =
    R"doc(The k nearest points: (values, indices), both [..., M, k], of the k smallest f(x_m, z_n) over n.

Ascending; ties by index; NaN last. Indices are int64. With z None each point finds itself too.
The other arguments, dtypes and errors: those of pairwise.

>>> mc.knn("cityblock", np.array([[0.0]]), np.array([[5.0], [1.0], [-2.0]]), k=2)
(array([[1., 2.]]), array([[1, 2]])))doc";

inline constexpr char kKernelGradientSignature[] =
    "def kernel_gradient(" MERCER_POINTS
    ", coef: mercer._types.ArrayT, *, out: mercer._types.ArrayT | None = None, " MERCER_STREAMED_OPTIONS
    ") -> mercer._types.ArrayT";
inline constexpr char kKernelGradientDoc[] =
    R"doc(A weighted sum of gradients: out[..., o, m, k] = sum_n coef[..., o, n] d f(x_m, z_n) / d x[m, k].

coef: [..., O, N], or [N] (then out is [..., M, K]): float64 or int32 where x is, else another dtype of points.
Derivatives are 0 at kinks and singular points, so coincident points contribute nothing.
The other arguments, dtypes and errors: those of pairwise.

>>> mc.kernel_gradient("sum((x-z)^2)", np.array([[1.0, 2.0]]), np.array([[0.0, 0.0]]), np.array([1.0]))
array([[2., 4.]]))doc";

inline constexpr char kProductGradientSignature[] =
    "def product_gradient(" MERCER_POINTS
    ", weights: mercer._types.ArrayT, v: mercer._types.ArrayT, /, *, out: mercer._types.ArrayT | None = None, "
    MERCER_SHARED_OPTIONS ") -> mercer._types.ArrayT";
inline constexpr char kProductGradientDoc[] =
    R"doc(The gradient of sum(weights * kernel_product(f, x, z, v)) by x, [..., M, K]: backward of products has it.

weights: [..., M, E], v: [..., N, E], E >= 1.
The other arguments, dtypes and errors: those of pairwise.)doc";

inline constexpr char kProductBackwardSignature[] =
    "def product_backward(" MERCER_POINTS
    ", weights: mercer._types.ArrayT, v: mercer._types.ArrayT, by: typing.Sequence[str], product: bool, "
    "without_weight: bool, by_weights: bool, /, *, " MERCER_SHARED_OPTIONS
    ") -> tuple[mercer._types.ArrayT, mercer._types.ArrayT | None, mercer._types.ArrayT | None, mercer._types.ArrayT | "
    "None]";
inline constexpr char kProductBackwardDoc[] =
    R"doc(One pass over the pairs of the backward of a product: what product_gradient gives, [..., M, K], and

    sums        [..., R, M]  sum_ne weights[m, e] v[n, e] d f(x_m, z_n) / d by[r], for names of parameters, or "row"
    product     [..., M, E]  kernel_product(f, x, z, v), where that is asked for
    by_weights  [..., K, M]  the same sums of d f(x_m, z_n) / d w_k, where those are asked for

without_weight: the gradient lacks its factor of w, which weight_form has.
What the pass does not have is None, and takes calls of its own: the product on CUDA where more columns than pay are
asked for; sums by an exponent that is a number, by a name that the formula does not read, or by more than eight, and
with them the product; sums by the weights of a formula that reads none; all of no features.
The other arguments, dtypes and errors: those of product_gradient.)doc";

inline constexpr char kBothSidesBackwardSignature[] =
    "def both_sides_backward(" MERCER_POINTS
    ", weights: mercer._types.ArrayT, v: mercer._types.ArrayT | None, product: bool, /, *, " MERCER_SHARED_OPTIONS
    ") -> tuple[mercer._types.ArrayT, mercer._types.ArrayT, mercer._types.ArrayT | None]";
inline constexpr char kBothSidesBackwardDoc[] =
    R"doc(One pass over the pairs, on CPUs, for the gradients of a weighted sum of f by the points of both sides:
[..., M, K] and [..., N, K]; with `product` the sum over m of f(x_m, z_n) weights[m, e] as well, [..., N, E], else None.

weights: [..., M, E] with v [..., N, E], or without v a matrix [..., M, N]. f must be a function of one sum of
(x - z)^2 or of x z. The other arguments, dtypes and errors: those of product_gradient.)doc";

inline constexpr char kPairwiseBackwardSignature[] =
    "def pairwise_backward(" MERCER_POINTS
    ", weights: mercer._types.ArrayT, by: typing.Sequence[str], without_weight: bool, by_weights: bool, /, *, "
    MERCER_SHARED_OPTIONS
    ") -> tuple[mercer._types.ArrayT, mercer._types.ArrayT | None, mercer._types.ArrayT | None]";
inline constexpr char kPairwiseBackwardDoc[] =
    R"doc(One pass over the pairs of the backward of pairwise: the gradient of sum(weights * pairwise(f, x, z)) by x,
[..., M, K], and

    sums        [..., R, M]  sum_n weights[m, n] d f(x_m, z_n) / d by[r], for names of parameters, or "row"
    by_weights  [..., K, M]  sum_n weights[m, n] d f(x_m, z_n) / d w_k, where those are asked for

weights: [..., M, N], read where they lie, of any strides. without_weight: that of product_backward.
What the pass does not have is None, as of product_backward.
The other arguments, dtypes and errors: those of pairwise.)doc";

inline constexpr char kKernelAgopSignature[] =
    "def kernel_agop(" MERCER_POINTS
    ", coef: mercer._types.ArrayT, *, out: mercer._types.ArrayT | None = None, " MERCER_SHARED_OPTIONS
    ") -> mercer._types.ArrayT";
inline constexpr char kKernelAgopDoc[] =
    R"doc(The gradients' outer products, added up: out[..., k, l] = sum_om g[..., o, m, k] g[..., o, m, l].

g: what kernel_gradient gives for coef [..., O, N] or [N]; only some of its rows are stored at a time. out: [..., K, K],
of the computing dtype, symmetric. Divided by M it is the average gradient outer product (AGOP) of recursive feature
machines (Radhakrishnan, Beaglehole, Pandit, Belkin, Science 2024).
The other arguments, dtypes and errors: those of pairwise.

>>> mc.kernel_agop("sum((x-z)^2)", np.array([[1.0, 2.0]]), np.array([[0.0, 0.0]]), np.array([1.0]))
array([[ 4.,  8.],
       [ 8., 16.]]))doc";

inline constexpr char kGradientFieldSignature[] =
    "def gradient_field(phi: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, "
    "amplitude: mercer._types.ArrayT | None, coef: mercer._types.ArrayT | None, "
    "*, combine: str | None = None, out: mercer._types.ArrayT | None = None, " MERCER_SHARED_OPTIONS
    ") -> mercer._types.ArrayT";
inline constexpr char kGradientFieldDoc[] =
    R"doc(A field: out[..., o, m, k] = sum_n coef[..., o, n] amplitude[..., m, n] phi(x[m, k], z[n, k]).

phi: a formula read at one feature, such as "sign(x-z)*abs(x-z)^(p-1)"; a reduction in it is a value of the pair, as in
what differentiate(f, "x") gives. amplitude: [..., M, N]; coef: [..., O, N], or [N] (then out is [..., M, K]).
kernel_gradient makes phi of a formula.
combine: how the points n are combined in place of this sum: "sum", "prod", "max", "min" or "logsumexp" of phi over n;
or "reduce", where phi is a reduction of your own, mercer.reduce(...), taken over n in order and not over the features.
phi is the whole term then: it reads the arrays as parameters of the names amplitude and coef, and what it does not read
is None; without coef out is [..., M, K]. A sum of coef*amplitude*phi is the field of phi. Any other has no derivative:
tensors that require a gradient are refused (NotImplementedError).
The other arguments, dtypes and errors: those of pairwise.

>>> mc.gradient_field("x-z", np.array([[1.0, 2.0]]), np.array([[0.0, 0.0]]), np.array([[3.0]]), np.array([1.0]))
array([[3., 6.]]))doc";

inline constexpr char kCdistSignature[] =
    "def cdist(x1: mercer._types.ArrayT, x2: mercer._types.ArrayT | None, p: float | None = None, *, "
    "metric: mercer._types.FormulaLike | None = None, w: mercer._types.ArrayT | None = None, out: mercer._types.ArrayT "
    "| None = None, "
    "workspace: mercer._types.ArrayT | None = None, progress: bool = False, device: str | int | None = None, **params: "
    "mercer._types.Parameter) -> mercer._types.ArrayT";
inline constexpr char kCdistDoc[] =
    R"doc(Distances of all pairs, of PyTorch's norms and SciPy's metrics: out[..., m, n] = d(x1_m, x2_n).

x1: [..., M, K]; x2: [..., N, K], or None for the same points. p: the norm (sum |x1 - x2|^p)^(1/p), 2 when nothing is
said, inf for the largest difference, 0 for the number of differing features. metric: in place of p a name of the zoo
("canberra"; the table is mercer.zoo.table) or any formula; its options and parameters are given by name. w: [K]
weights, where the metric has a weighted form. out, workspace, progress, device and errors: those of
pairwise.
Other arguments of SciPy's: V of "seuclidean", the variance [K] of each feature, by default (ddof = 1) that of all
points; VI of "mahalanobis", [K, K], positive semi-definite, of which the symmetric part counts, by default the inverse
of the points' covariance. "haversine" takes latitude and longitude in radians.
In float32 the relative error is at most 1e-6, for p < 1 it is 1e-6 (1 + 1/p); duplicates have distance 0. It
holds for all distances that are normal numbers, in float64 too, also where sums of powers are not. Gradients hold
there on CPUs; on CUDA those for p other than 2 need powers that are normal numbers of the points' type.

>>> mc.cdist(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]]))
array([[5.]])
>>> mc.cdist(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]]), metric="cityblock")
array([[7.]]))doc";

inline constexpr char kExplainSignature[] =
    "def explain(f: mercer._types.FormulaLike, shape: tuple[int, int, int] = (4096, 4096, 256), "
    "dtype: str = \"float32\", target: str = \"auto\", verb: str = \"pairwise\", columns: int = 1, "
    "backward: bool = False) -> str";
inline constexpr char kExplainDoc[] =
    R"doc(Every stage of a call as text: the formula, its parts, the plan, the program. Needs no data.

shape: (M, N, K). target: "auto", "x86_avx512", "x86_avx2" or "interpreter"; a family of CPUs, as "zen4", or a target of
it, "zen4:x86_avx2"; "sm_80" to "sm_120" for GPUs of that architecture, "cuda:0" for one of this machine. dtype: of the
points. verb: "kernel_product", "kernel_reduce" or "knn" too, for a GPU also "kernel_gradient" or "kernel_agop", with
the columns of v, the neighbours or the outputs; the section "ways" has the least time of each way to compute the call,
or why it does not serve. backward: the passes of the backwards of pairwise and of kernel_product with one column
follow, by all that the formula reads; of a GPU with their ways. Raises ValueError for an unknown target, verb or dtype
and for sizes that are negative, NotImplementedError for what the target cannot run.

>>> mc.explain("exp(-sum(abs(x-z))/b)", target="x86_avx2").splitlines()[1]
'exp(-(sum(abs(x - z))/b))')doc";

inline constexpr char kCompileSignature[] =
    "def compile(f: mercer._types.FormulaLike, *, shapes: collections.abc.Sequence[tuple[int, ...]], dtypes: "
    "collections.abc.Sequence[typing.Any] = ('float32',), layouts: collections.abc.Sequence[str | tuple[str, str, "
    "str]] "
    "= ('row',), devices: collections.abc.Sequence[int | str] = ('cpu',), verbs: collections.abc.Sequence[str] = "
    "('pairwise',), columns: int = 1, combine: str | None = None, **params: float) -> None";
inline constexpr char kCompileDoc[] =
    R"doc(Compiles ahead of time what the calls of every combination of these lists will need.

- shapes: (M, N, K) or (batch, M, N, K). dtypes: of x and z.
- layouts: "row" or "column" for x, z and out alike, or a triple of them.
- devices: "cpu"; the index of a CUDA device; or an architecture such as "sm_90a", whose code goes to the cache on disk,
  which takes NVRTC and no GPU.
- verbs: "pairwise", "kernel_matrix", "cdist", "kernel_product", "kernel_reduce", "knn", "kernel_gradient",
  "kernel_agop"; or "gradient_field" alone, with phi for f.
- columns: of v in kernel_product; rows of coef in kernel_gradient and gradient_field. combine: of gradient_field.
- params: numbers that the calls will give. Only those in exponents matter: they become part of the code. Others may be
  left out, as may an exponent that the calls will give as an array; CUDA has code of its own for numbers and for
  arrays, and those that are left out get both.

A call inside the capture of a CUDA graph must find its code ready. Raises ValueError for a broken rule, before anything
is compiled.

>>> mc.compile("sum(abs(x-z))", shapes=[(8, 8, 2)], dtypes=["float64"]))doc";

#undef MERCER_POINTS
#undef MERCER_SHARED_OPTIONS

}  // namespace mercer::python
