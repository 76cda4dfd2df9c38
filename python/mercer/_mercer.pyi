"""The compiled part of mercer; use the package."""

from collections.abc import Sequence
from typing import Any, Literal, NoReturn, overload

import mercer._types


class Expr:
    """
    A formula over pairs of points, or a part of one. Immutable.

    Built from the symbols x, z, w, row, col, i, j, K and param(), with operators and the functions of this package.
    Outside reductions an expression is evaluated once per pair; inside one, once per feature.

    An array of one number among the operands, as a tensor that is trained, stays an array: it becomes a parameter whose
    value the formula carries, differentiable and never read back. Where two parts bring different arrays under one name,
    the second one's is called name_2; ``parameters`` shows them, and a call may give other values.

    ``==`` and ``!=`` build expressions too (1 where they hold, else 0), so an expression has no truth value and no hash:
    use where(condition, a, b) to choose, a.same(b) to compare two expressions as wholes, and kernel(a) as the key of a
    dictionary.
    """

    def __add__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __radd__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __sub__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __rsub__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __mul__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __rmul__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __truediv__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __rtruediv__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __pow__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __rpow__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __and__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __rand__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __or__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __ror__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __lt__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __le__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __gt__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __ge__(self, other: mercer._types.ExprLike, /) -> Expr: ...

    def __eq__(self, other: mercer._types.ExprLike, /) -> Expr: ...  # type: ignore[override]

    def __ne__(self, other: mercer._types.ExprLike, /) -> Expr: ...  # type: ignore[override]

    def __neg__(self) -> Expr: ...

    def __pos__(self) -> Expr: ...

    def __abs__(self) -> Expr: ...

    def __invert__(self) -> Expr: ...

    def __floor__(self) -> Expr: ...

    def __ceil__(self) -> Expr: ...

    def sum(self, **options: None) -> Expr:
        """Equal to mercer.sum(self)."""

    def prod(self, **options: None) -> Expr:
        """Equal to mercer.prod(self)."""

    def max(self, **options: None) -> Expr:
        """Equal to mercer.max(self)."""

    def min(self, **options: None) -> Expr:
        """Equal to mercer.min(self)."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Expr: ...

    def __array_function__(self, function: Any, types: Any, inputs: tuple[Any, ...], options: dict[str, Any], /) -> Expr: ...

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn: ...

    __array_priority__: float = 1000000.0

    def __hash__(self) -> int: ...

    def __bool__(self) -> bool: ...

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def same(self, other: Expr) -> bool:
        """
        True when both are built of the same operations on the same leaves, and carry the same arrays.
        """

    def bind(self, **values: mercer._types.Parameter | Expr) -> Expr:
        """
        This expression with parameters replaced by numbers, expressions or arrays; an array may have the axes of a batch. Raises ValueError for a name that the formula does not have.
        """

    @property
    def parameters(self) -> dict[str, Any]:
        """
        Names of the parameters in order of first use, with their defaults: a number, an array that the formula carries, or None where a call must give the value.
        """

    @property
    def symmetric(self) -> bool:
        """
        True when swapping x and z leaves the formula unchanged; then half of the pairs of the same points is computed.
        """

class Kernel(Expr):
    """
    A finished formula.

    Functions that give one are kernel, metric, parse, differentiate and those of the zoo.

    ``==`` and ``!=`` between two kernels compare them as wholes: True where they are built of the same operations on the
    same leaves and carry the same arrays. So kernels have hashes and serve as keys of dictionaries, of functools.lru_cache
    and of jax.jit(static_argnums=...). Against anything else, and in every other operator, a kernel is an expression like
    any other, and so is what comes out: kernel(f + g) is a kernel again.
    """

    def __eq__(self, other: Any, /) -> Any: ...

    def __ne__(self, other: Any, /) -> Any: ...

    def __hash__(self) -> int: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def bind(self, **values: mercer._types.Parameter | Expr) -> Kernel:
        """As Expr.bind; the result is a kernel."""

    def __call__(self, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None = None, /, **params: mercer._types.Parameter) -> mercer._types.ArrayT:
        """
        The kernel matrix k(x), k(x, z), or the number k(row, other) of two points.

            x: [..., M, K]; z: [..., N, K], or None for x itself: the matrix of ``mercer.kernel_matrix``,
            whose parameters and options go by name. Two points [K] give a number of the computing dtype.
            Lists and tables are read as the verbs read them. Raises ValueError for one point alone, or
            next to a set.

            >>> k = mc.gauss(bandwidth=2.0)
            >>> SVC(kernel=k).fit(rows, labels)
        """

def restored(text: str, arrays: dict[str, Any], is_kernel: bool) -> Expr:
    """What pickle makes an expression of."""

x: Expr = ...

z: Expr = ...

w: Expr = ...

row: Expr = ...

col: Expr = ...

i: Expr = ...

j: Expr = ...

K: Expr = ...

def param(name: str, default: float | mercer._types.Array | None = None) -> Expr:
    """
    A named parameter. Each call gives its value, a number or an array, unless it has a default.

    The name has ASCII letters, digits and underscores, and starts with no digit. An array as default, such as a tensor that is trained, stays one: gradients reach it.
    """

def abs(a: mercer._types.ExprLike) -> Expr:
    """|a|; the builtin abs(a) does the same."""

def sign(a: mercer._types.ExprLike) -> Expr:
    """-1, 0 or 1."""

def sqrt(a: mercer._types.ExprLike) -> Expr:
    """The square root; NaN below zero."""

def rsqrt(a: mercer._types.ExprLike) -> Expr:
    """1 / sqrt(a)."""

def rcp(a: mercer._types.ExprLike) -> Expr:
    """1 / a."""

def exp(a: mercer._types.ExprLike) -> Expr:
    """e**a."""

def exp2(a: mercer._types.ExprLike) -> Expr:
    """2**a."""

def expm1(a: mercer._types.ExprLike) -> Expr:
    """e**a - 1, accurate near 0."""

def log(a: mercer._types.ExprLike) -> Expr:
    """The natural logarithm."""

def log2(a: mercer._types.ExprLike) -> Expr:
    """The logarithm to base 2."""

def log1p(a: mercer._types.ExprLike) -> Expr:
    """log(1 + a), accurate near 0."""

def sin(a: mercer._types.ExprLike) -> Expr:
    """The sine; a in radians."""

def cos(a: mercer._types.ExprLike) -> Expr:
    """The cosine; a in radians."""

def asin(a: mercer._types.ExprLike) -> Expr:
    """The arc sine, in radians."""

def acos(a: mercer._types.ExprLike) -> Expr:
    """The arc cosine, in radians."""

def tanh(a: mercer._types.ExprLike) -> Expr:
    """The hyperbolic tangent."""

def erf(a: mercer._types.ExprLike) -> Expr:
    """The error function."""

def floor(a: mercer._types.ExprLike) -> Expr:
    """The largest whole number not above a."""

def ceil(a: mercer._types.ExprLike) -> Expr:
    """The smallest whole number not below a."""

def round(a: mercer._types.ExprLike) -> Expr:
    """The nearest whole number, ties to even."""

def minimum(a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr:
    """The smaller of two; NaN wins."""

def maximum(a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr:
    """The larger of two; NaN wins."""

def pow(a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr:
    """a**b."""

def xlogy(a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr:
    """a * log(b), and 0 where a is 0."""

def atan2(a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr:
    """The angle of the point (b, a), in radians."""

def copysign(a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr:
    """|a| with the sign of b."""

def ops() -> list[tuple[str, str, str, str]]:
    """
    Rows of the table of scalar ops: the name in `steps`, Python's, NumPy's (with blanks between) and torch's.
    """

def square(a: mercer._types.ExprLike) -> Expr:
    """a * a."""

def logical_not(a: mercer._types.ExprLike) -> Expr:
    """1 where a is 0, else 0; also ~a."""

def sum(a: mercer._types.ExprLike) -> Expr:
    """The sum of the term over the features k."""

def prod(a: mercer._types.ExprLike) -> Expr:
    """The product of the term over the features k."""

def logsumexp(a: mercer._types.ExprLike) -> Expr:
    """log(sum(exp(term))) over the features k, without overflow."""

def equal(a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr:
    """1 where a equals b, else 0; also a == b."""

def not_equal(a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr:
    """1 where a differs from b, else 0; also a != b."""

def logical_and(a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr:
    """1 where both differ from 0; also a & b."""

def logical_or(a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr:
    """1 where one of them differs from 0; also a | b."""

def max(a: mercer._types.ExprLike, b: mercer._types.ExprLike | None = None) -> Expr:
    """
    max(term): the largest over the features k; max(a, b): the larger of two. NaN wins.
    """

def min(a: mercer._types.ExprLike, b: mercer._types.ExprLike | None = None) -> Expr:
    """
    min(term): the smallest over the features k; min(a, b): the smaller of two. NaN wins.
    """

def where(condition: mercer._types.ExprLike, a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr:
    """a where the condition differs from 0, else b."""

def fma(a: mercer._types.ExprLike, b: mercer._types.ExprLike, c: mercer._types.ExprLike) -> Expr:
    """a * b + c, rounded once."""

def state(slot: int = 0) -> Expr:
    """
    The state of a custom reduction; mercer.reduce passes it to your functions.
    """

def incoming(slot: int = 0) -> Expr:
    """The new term of a custom reduction, or the second state of its merge."""

def custom_reduction(term: Sequence[mercer._types.ExprLike], combine: Sequence[mercer._types.ExprLike], identity: Sequence[mercer._types.ExprLike], merge: Sequence[mercer._types.ExprLike], finish: mercer._types.ExprLike, associative: bool) -> Expr:
    """What mercer.reduce builds once it has called your functions."""

def ptx_outputs(text: str, inputs: Sequence[mercer._types.ExprLike], meanings: Sequence[mercer._types.ExprLike]) -> tuple[Expr, ...]:
    """What mercer.ptx builds once it has called your function."""

def constant(value: float) -> Expr:
    """A number as an expression."""

def parse(text: str) -> Kernel:
    """
    Reads the text form of a formula. Raises ValueError with a caret under the fault.
    """

def differentiate(f: mercer._types.FormulaLike, variable: Expr | str) -> Kernel:
    """
    The derivative of a formula as a formula.

    ``variable`` is x, z, w (as a symbol or its name) or a parameter's name. By a feature the result has x and z outside
    reductions: they are the points' values at that feature. Zero at kinks and singular points.
    """

def swap_sides(f: Expr) -> Expr:
    """The formula with x and z, row and col, i and j exchanged."""

def point_form(f: Expr) -> tuple[str, tuple[str, str, str], tuple[str, str, str]] | None:
    """
    A formula of points (x - shift) * scale and z likewise, and of a value of each, row and col: its text, and
    those of shift, scale and value over x, for x and for z, empty where there is none. None where that is no form
    of f.
    """

def weight_form(f: Expr) -> tuple[str, str, bool, bool] | None:
    """
    For terms c(w) t(x, z) with t homogeneous of degree d: c and c' / d, over row in place of w; whether sums
    of both sides' points times gradients without c are the one by w, or of one side; whether the points are read
    as x - z. None of other terms.
    """

def linear_form(f: Expr) -> tuple[float, float, bool, bool, str, str] | None:
    """
    For offset + scale [row] [col] sum(c(w) x z): scale, offset, whether row and col are factors, and c and its
    derivative, over row in place of w, empty where there is none. None of other formulas.
    """

def leaves(f: Expr) -> list[str]:
    """Which of x, z, w, row, col, i and j a formula reads."""

def unfollowed(verb: str, *args: Any, **kwargs: Any) -> Any:
    """A verb on the memory of its tensors, whatever PyTorch records."""

def operations() -> list[str]:
    """The scalar operations, by their names in steps."""

def steps(f: Expr, along: Sequence[str], wrt: str | None) -> list[tuple[str, tuple[int, ...], float, int, str]]:
    """
    A derivative of a formula as steps, each a function of earlier ones.

    Differentiated in the direction number d of each target along[d] ("x", "z", "w", or "t" and "s" for the multiplier of
    a field), then, where wrt is given, by that target at the free feature.

    A step: its name, the numbers of the steps that it reads, a value (of a reduce: whether it is associative), a slot,
    and a word: the name of a parameter, or the text of a reduction without directions, which is a formula; but for those
    whose terms are compared, as with their maximum: the steps round these as they do the terms.
    """

def plan_backward(f: Expr, weights: str, wanted: str, m: int, n: int, k: int, columns: int, doubles: bool, device: int, facts: str, along: str, arrays: str, points: int = 0, passes: int = 0, both_sides: int = 0) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...], bool, bool]]:
    """
    The passes that have the gradients of a weighted sum over pairs by the leaves that are wanted.

    weights: "factors", "matrix" or "other", of `columns` columns. wanted: words among x, z, w, row, col, v, p:NAME and d:0,
    a direction. device: the index of a CUDA device, -1 for CPUs. facts: words among same_points, same_row (row is col),
    same_offsets, tiny_items, in_memory (nobody follows the arrays), recorded, and w, row and col where they are given.
    along: targets of the directions. arrays: names of the parameters that have axes or lie on a device. points, passes,
    both_sides: 1 never, 2 always makes a choice in place of the plan, for tests.

    A pass: its verb, its rows (x, z or both), what it is by, the leaves that its results are added to, whether the product
    with v is among them, and whether the field lacks its factor of w.
    """

def plan_field(f: Expr, target: str, weights: str, k: int, columns: int, on_cuda: bool) -> str:
    """
    How the field by one target is computed, with those of amplitude, u and v as weights that are given.
    """

def plan_parameter_gradient(f: Expr, weights: str, wanted: str, m: int, n: int, k: int, device: int, facts: str, arrays: str) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...], bool, bool]]:
    """
    The list of parameter_gradient: passes of the engine, and sums by one name.
    """

def tiny_batch(device: int) -> tuple[int, int]:
    """
    Pairs times features of a tiny item on a CUDA device, and how many items are too many for the engine.
    """

def alone_until(device: int) -> float:
    """
    Operations of a product, n^2 (features + columns), up to which each of several GPUs finds eigenpairs alone.
    """

def zoo_rows() -> list[dict[str, Any]]:
    """The table of named metrics and kernels, one dict a row."""

def zoo_formula(name: str, options: dict[str, Any] = {}, weighted: bool = False) -> Kernel:
    """The formula of an entry of the zoo, by name or alias."""

def formula_for(f: mercer._types.FormulaLike, verb: str, weighted: bool, options: dict[str, Any]) -> Kernel:
    """
    What a verb makes of f; options that choose the formula (a norm's p) are taken out of the dict, and arrays that f carries put there.
    """

def formula_of(f: mercer._types.FormulaLike) -> Kernel:
    """
    An Expr as it is, a text parsed, a name of the zoo looked up, a function traced.
    """

def pairwise(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None = None, *, out: mercer._types.ArrayT | None = None, row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False, device: str | int | None = None, **params: mercer._types.Parameter) -> mercer._types.ArrayT:
    """
    The formula on all pairs of points: out[..., m, n] = f(x[..., m, :], z[..., n, :]).

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
    (3, 2, 1)
    """

def kernel_matrix(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None = None, *, out: mercer._types.ArrayT | None = None, row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False, device: str | int | None = None, **params: mercer._types.Parameter) -> mercer._types.ArrayT:
    """
    The kernel matrix out[..., m, n] = f(x_m, z_n); of x with itself when z is None.

    Arguments, dtypes and errors: those of pairwise.

    >>> mc.kernel_matrix("sum(x*z)", np.array([[1.0, 0.0], [1.0, 1.0]]))
    array([[1., 1.],
           [1., 2.]])
    """

def kernel_product(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, v: mercer._types.ArrayT, *, out: mercer._types.ArrayT | None = None, row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False, device: str | int | None = None, normalize: Literal["softmax", "sum"] | None = None, **params: mercer._types.Parameter) -> mercer._types.ArrayT:
    """
    A kernel matrix times v without the matrix: out[..., m, e] = sum_n f(x_m, z_n) v[..., n, e].

    v: [..., N, E], or [N] (then out is [..., M]): float64 or int32 where x is, else another dtype of points.
    out: [..., M, E], of the computing dtype. Memory: O(M + N); of many columns on CUDA up to 1 GiB
    more, for a part of the values.
    normalize: "sum" divides each row by sum_n f(x_m, z_n), as kernel smoothing does; "softmax" has the weights
    exp(f(x_m, z_n)) / sum_n exp(f(x_m, z_n)), as attention has them, for values f of any size: a formula that does not read
    row. It makes a copy of v and is not offered with workspace.
    The other arguments, dtypes and errors: those of pairwise.

    >>> x, z = np.array([[0.0], [1.0]]), np.array([[1.0], [3.0]])
    >>> mc.kernel_product("sum(abs(x-z))", x, z, np.array([1.0, 10.0]))
    array([31., 20.])
    """

@overload
def kernel_reduce(f: mercer._types.FormulaLike, x: mercer._types.Numbers[mercer._types.ScalarT], z: mercer._types.Numbers[mercer._types.ScalarT] | None, reduce: Literal["argmax", "argmin"], *, out: mercer._types.Indices | None = None, row: mercer._types.Numbers[mercer._types.ScalarT] | None = None, col: mercer._types.Numbers[mercer._types.ScalarT] | None = None, w: mercer._types.Numbers[mercer._types.ScalarT] | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.Numbers[mercer._types.ScalarT] | None = None, progress: bool = False, device: str | int | None = None, **params: mercer._types.Parameter) -> mercer._types.Indices: ...

@overload
def kernel_reduce(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, reduce: Literal["sum", "max", "min", "argmax", "argmin", "logsumexp"], *, out: mercer._types.ArrayT | None = None, row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False, device: str | int | None = None, **params: mercer._types.Parameter) -> mercer._types.ArrayT:
    """
    A reduction over the points of z: out[..., m] = reduce over n of f(x_m, z_n).

    reduce: "sum", "max", "min", "argmax", "argmin" (int64 indices) or "logsumexp". NaN wins, ties go to the smaller index.
    No points in z: "sum" gives 0, "logsumexp" -inf, the others raise ValueError.
    The other arguments, dtypes and errors: those of pairwise.

    >>> x, z = np.array([[0.0], [4.0]]), np.array([[1.0], [3.0]])
    >>> mc.kernel_reduce("sum(abs(x-z))", x, z, "argmin")
    array([0, 1])
    """

@overload
def knn(f: mercer._types.FormulaLike, x: mercer._types.Numbers[mercer._types.ScalarT], z: mercer._types.Numbers[mercer._types.ScalarT] | None, k: int, *, out: tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Indices] | None = None, row: mercer._types.Numbers[mercer._types.ScalarT] | None = None, col: mercer._types.Numbers[mercer._types.ScalarT] | None = None, w: mercer._types.Numbers[mercer._types.ScalarT] | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.Numbers[mercer._types.ScalarT] | None = None, progress: bool = False, device: str | int | None = None, **params: mercer._types.Parameter) -> tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Indices]: ...

@overload
def knn(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, k: int, *, out: tuple[mercer._types.ArrayT, mercer._types.ArrayT] | None = None, row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False, device: str | int | None = None, **params: mercer._types.Parameter) -> tuple[mercer._types.ArrayT, mercer._types.ArrayT]:
    """
    The k nearest points: (values, indices), both [..., M, k], of the k smallest f(x_m, z_n) over n.

    Ascending; ties by index; NaN last. Indices are int64. With z None each point finds itself too.
    The other arguments, dtypes and errors: those of pairwise.

    >>> mc.knn("cityblock", np.array([[0.0]]), np.array([[5.0], [1.0], [-2.0]]), k=2)
    (array([[1., 2.]]), array([[1, 2]]))
    """

def kernel_gradient(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, coef: mercer._types.ArrayT, *, out: mercer._types.ArrayT | None = None, row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False, device: str | int | None = None, **params: mercer._types.Parameter) -> mercer._types.ArrayT:
    """
    A weighted sum of gradients: out[..., o, m, k] = sum_n coef[..., o, n] d f(x_m, z_n) / d x[m, k].

    coef: [..., O, N], or [N] (then out is [..., M, K]): float64 or int32 where x is, else another dtype of points.
    Derivatives are 0 at kinks and singular points, so coincident points contribute nothing.
    The other arguments, dtypes and errors: those of pairwise.

    >>> mc.kernel_gradient("sum((x-z)^2)", np.array([[1.0, 2.0]]), np.array([[0.0, 0.0]]), np.array([1.0]))
    array([[2., 4.]])
    """

def product_gradient(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, weights: mercer._types.ArrayT, v: mercer._types.ArrayT, /, *, out: mercer._types.ArrayT | None = None, row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False, **params: mercer._types.Parameter) -> mercer._types.ArrayT:
    """
    The gradient of sum(weights * kernel_product(f, x, z, v)) by x, [..., M, K]: backward of products has it.

    weights: [..., M, E], v: [..., N, E], E >= 1.
    The other arguments, dtypes and errors: those of pairwise.
    """

def product_backward(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, weights: mercer._types.ArrayT, v: mercer._types.ArrayT, by: Sequence[str], product: bool, without_weight: bool, by_weights: bool, /, *, row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False, **params: mercer._types.Parameter) -> tuple[mercer._types.ArrayT, mercer._types.ArrayT | None, mercer._types.ArrayT | None, mercer._types.ArrayT | None]:
    """
    One pass over the pairs of the backward of a product: what product_gradient gives, [..., M, K], and

        sums        [..., R, M]  sum_ne weights[m, e] v[n, e] d f(x_m, z_n) / d by[r], for names of parameters, or "row"
        product     [..., M, E]  kernel_product(f, x, z, v), where that is asked for
        by_weights  [..., K, M]  the same sums of d f(x_m, z_n) / d w_k, where those are asked for

    without_weight: the gradient lacks its factor of w, which weight_form has.
    What the pass does not have is None, and takes calls of its own: the product on CUDA where more columns than pay are
    asked for; sums by an exponent that is a number, by a name that the formula does not read, or by more than eight, and
    with them the product; sums by the weights of a formula that reads none; all of no features.
    The other arguments, dtypes and errors: those of product_gradient.
    """

def pairwise_backward(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, weights: mercer._types.ArrayT, by: Sequence[str], without_weight: bool, by_weights: bool, /, *, row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False, **params: mercer._types.Parameter) -> tuple[mercer._types.ArrayT, mercer._types.ArrayT | None, mercer._types.ArrayT | None]:
    """
    One pass over the pairs of the backward of pairwise: the gradient of sum(weights * pairwise(f, x, z)) by x,
    [..., M, K], and

        sums        [..., R, M]  sum_n weights[m, n] d f(x_m, z_n) / d by[r], for names of parameters, or "row"
        by_weights  [..., K, M]  sum_n weights[m, n] d f(x_m, z_n) / d w_k, where those are asked for

    weights: [..., M, N], read where they lie, of any strides. without_weight: that of product_backward.
    What the pass does not have is None, as of product_backward.
    The other arguments, dtypes and errors: those of pairwise.
    """

def both_sides_backward(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, weights: mercer._types.ArrayT, v: mercer._types.ArrayT | None, product: bool, /, *, row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False, **params: mercer._types.Parameter) -> tuple[mercer._types.ArrayT, mercer._types.ArrayT, mercer._types.ArrayT | None]:
    """
    One pass over the pairs, on CPUs, for the gradients of a weighted sum of f by the points of both sides:
    [..., M, K] and [..., N, K]; with `product` the sum over m of f(x_m, z_n) weights[m, e] as well, [..., N, E], else None.

    weights: [..., M, E] with v [..., N, E], or without v a matrix [..., M, N]. f must be a function of one sum of
    (x - z)^2 or of x z. The other arguments, dtypes and errors: those of product_gradient.
    """

def kernel_agop(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, coef: mercer._types.ArrayT, *, out: mercer._types.ArrayT | None = None, row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False, **params: mercer._types.Parameter) -> mercer._types.ArrayT:
    """
    The gradients' outer products, added up: out[..., k, l] = sum_om g[..., o, m, k] g[..., o, m, l].

    g: what kernel_gradient gives for coef [..., O, N] or [N]; only some of its rows are stored at a time. out: [..., K, K],
    of the computing dtype, symmetric. Divided by M it is the average gradient outer product (AGOP) of recursive feature
    machines (Radhakrishnan, Beaglehole, Pandit, Belkin, Science 2024).
    The other arguments, dtypes and errors: those of pairwise.

    >>> mc.kernel_agop("sum((x-z)^2)", np.array([[1.0, 2.0]]), np.array([[0.0, 0.0]]), np.array([1.0]))
    array([[ 4.,  8.],
           [ 8., 16.]])
    """

def gradient_field(phi: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, amplitude: mercer._types.ArrayT | None, coef: mercer._types.ArrayT | None, *, combine: str | None = None, out: mercer._types.ArrayT | None = None, row: mercer._types.ArrayT | None = None, col: mercer._types.ArrayT | None = None, w: mercer._types.ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: mercer._types.ArrayT | None = None, progress: bool = False, **params: mercer._types.Parameter) -> mercer._types.ArrayT:
    """
    A field: out[..., o, m, k] = sum_n coef[..., o, n] amplitude[..., m, n] phi(x[m, k], z[n, k]).

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
    array([[3., 6.]])
    """

def cdist(x1: mercer._types.ArrayT, x2: mercer._types.ArrayT | None, p: float | None = None, *, metric: mercer._types.FormulaLike | None = None, w: mercer._types.ArrayT | None = None, out: mercer._types.ArrayT | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False, device: str | int | None = None, **params: mercer._types.Parameter) -> mercer._types.ArrayT:
    """
    Distances of all pairs, of PyTorch's norms and SciPy's metrics: out[..., m, n] = d(x1_m, x2_n).

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
    array([[7.]])
    """

def explain(f: mercer._types.FormulaLike, shape: tuple[int, int, int] = (4096, 4096, 256), dtype: str = "float32", target: str = "auto", verb: str = "pairwise", columns: int = 1, backward: bool = False) -> str:
    """
    Every stage of a call as text: the formula, its parts, the plan, the program. Needs no data.

    shape: (M, N, K). target: "auto", "x86_avx512", "x86_avx2" or "interpreter"; a family of CPUs, as "zen4", or a target of
    it, "zen4:x86_avx2"; "sm_80" to "sm_120" for GPUs of that architecture, "cuda:0" for one of this machine. dtype: of the
    points. verb: "kernel_product", "kernel_reduce" or "knn" too, for a GPU also "kernel_gradient" or "kernel_agop", with
    the columns of v, the neighbours or the outputs; the section "ways" has the least time of each way to compute the call,
    or why it does not serve. backward: the passes of the backwards of pairwise and of kernel_product with one column
    follow, by all that the formula reads; of a GPU with their ways. Raises ValueError for an unknown target, verb or dtype
    and for sizes that are negative, NotImplementedError for what the target cannot run.

    >>> mc.explain("exp(-sum(abs(x-z))/b)", target="x86_avx2").splitlines()[1]
    'exp(-(sum(abs(x - z))/b))'
    """

class SparsePairs:
    """
    Sums over the features of pairs of sparse points in float64, for mercer._sparse.
    """

    def __init__(self, x: tuple[Any, Any, Any], z: tuple[Any, Any, Any] | None, features: int, w: Any | None, unit: bool = False) -> None:
        """
        Reads x and z, each (starts, columns, values) of compressed rows; z None: the same points. unit: sums are those of points divided by their norms. ValueError for columns out of range or out of order.
        """

    def dots(self, row: int, col: int, out: Any) -> None:
        """
        Writes the sums of w x z for rows from row and columns from col on: out is float64 [count, N - col].
        """

    def squares(self, row: int, col: int, near: float, out: Any, root: bool = False) -> None:
        """
        Writes the sums of w (x - z)^2 likewise, or their roots; those of at most near of the sums of squares by differences.
        """

def are_plain_rows(points: tuple[Any, Any, Any], features: int, least: float, most: float) -> bool:
    """
    Whether (starts, columns, values) are compressed rows with ascending columns and floats of sizes from least to most.
    """

def mirror_rows(matrix: Any, first: int, last: int) -> None:
    """Copies matrix[i, j] to matrix[j, i] for first <= i < last and j > i."""

def compile(f: mercer._types.FormulaLike, *, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any] = ('float32',), layouts: Sequence[str | tuple[str, str, str]] = ('row',), devices: Sequence[int | str] = ('cpu',), verbs: Sequence[str] = ('pairwise',), columns: int = 1, combine: str | None = None, **params: float) -> None:
    """
    Compiles ahead of time what the calls of every combination of these lists will need.

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

    >>> mc.compile("sum(abs(x-z))", shapes=[(8, 8, 2)], dtypes=["float64"])
    """

def write_cuda_store(folder: str, f: mercer._types.FormulaLike, *, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any] = ('float32',), layouts: Sequence[str | tuple[str, str, str]] = ('row',), devices: Sequence[int | str], verbs: Sequence[str] = ('pairwise',), columns: int = 1, **params: float) -> None:
    """
    Compiles as compile does for CUDA, into a folder of GPU kernels that will be shipped.
    """

def workspace_size(verb: str, /, *args: Any, **kwargs: Any) -> int:
    """
    Bytes of scratch memory that a call of a verb takes, exactly; 0 on the CPU, but for the verbs of mercer.kron.

    The arguments are those of the call, all of them checked: workspace_size("kernel_product", f, x, z, v, bandwidth=2.0).
    An output that is not given is not made. Nothing is compiled or run, and no array is read. An array of uint8 with so
    many bytes serves as workspace= of the call.

    An array may be described in place of given: a pair (shape, dtype), whose elements lie in rows, PyTorch's tensor on
    device="meta", or jax.ShapeDtypeStruct. Then device= must say where the call would run: "cpu", "cuda" for the current
    device, or "cuda:1". Each description stands for an array of its own, but a meta tensor for the same one wherever it
    stands.
    """

def tune_tiles(f: mercer._types.FormulaLike, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None, verb: str, v: mercer._types.ArrayT | None, reduce: str | None, out: mercer._types.ArrayT | None, row: mercer._types.ArrayT | None, col: mercer._types.ArrayT | None, w: mercer._types.ArrayT | None, progress: bool, params: dict[str, mercer._types.Parameter]) -> tuple[str, str, list[tuple[str, float]]]:
    """
    What mercer.tune calls: (the chosen tile, the model's, all of them with their milliseconds).
    """

def tune_cpu() -> str:
    """
    Measures what vector instructions and ways cost on this processor and keeps it on disk; a table of it.
    """

def tune_gpu(device: object) -> str:
    """
    Measures what stored values cost on a CUDA device and keeps it on disk; a table of it.
    """

def jax_handler(platform: str) -> object:
    """
    What jax.ffi.register_ffi_target takes: the function that XLA calls, for "cpu" or "CUDA".
    """

@overload
def cholesky(a: mercer._types.ArrayT, *, lower: bool = True, overwrite_a: bool = False, jitter: float | Sequence[float] | None = None, check: Literal[True] = True, out: mercer._types.ArrayT | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> mercer._types.ArrayT:
    """
    Cholesky's factor of symmetric positive definite matrices: L with a = L L^T, or U with a = U^T U.

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
           [1., 1.]])
    """

@overload
def cholesky(a: mercer._types.Numbers[mercer._types.ScalarT], *, lower: bool = True, overwrite_a: bool = False, jitter: float | Sequence[float] | None = None, check: Literal[False], out: mercer._types.Numbers[mercer._types.ScalarT] | None = None, workspace: mercer._types.Numbers[mercer._types.ScalarT] | None = None, progress: bool = False) -> tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Indices]: ...

@overload
def cholesky(a: mercer._types.ArrayT, *, lower: bool = True, overwrite_a: bool = False, jitter: float | Sequence[float] | None = None, check: Literal[False], out: mercer._types.ArrayT | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> tuple[mercer._types.ArrayT, mercer._types.ArrayT]: ...

@overload
def solve_cholesky(a: mercer._types.ArrayT, b: mercer._types.ArrayT, *, lower: bool = True, overwrite_a: bool = False, overwrite_b: bool = False, jitter: float | Sequence[float] | None = None, check: Literal[True] = True, out: mercer._types.ArrayT | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> mercer._types.ArrayT:
    """
    Solves a x = b for symmetric positive definite a: x of the shape of b.

    a: [..., n, n]; b: [..., n, k], or [n]. Leading axes broadcast; a matrix that serves several b is factored once.
    overwrite_a: a becomes scratch memory. overwrite_b: x takes the place of b, which is returned; b must have the shape of
    the result. NaN in b stays in its column. The other arguments, info and errors: those of cholesky.

    >>> mc.linalg.solve_cholesky(np.array([[4.0, 2.0], [2.0, 2.0]]), np.array([8.0, 6.0]))
    array([1., 2.])
    """

@overload
def solve_cholesky(a: mercer._types.Numbers[mercer._types.ScalarT], b: mercer._types.Numbers[mercer._types.ScalarT], *, lower: bool = True, overwrite_a: bool = False, overwrite_b: bool = False, jitter: float | Sequence[float] | None = None, check: Literal[False], out: mercer._types.Numbers[mercer._types.ScalarT] | None = None, workspace: mercer._types.Numbers[mercer._types.ScalarT] | None = None, progress: bool = False) -> tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Indices]: ...

@overload
def solve_cholesky(a: mercer._types.ArrayT, b: mercer._types.ArrayT, *, lower: bool = True, overwrite_a: bool = False, overwrite_b: bool = False, jitter: float | Sequence[float] | None = None, check: Literal[False], out: mercer._types.ArrayT | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> tuple[mercer._types.ArrayT, mercer._types.ArrayT]: ...

def cho_solve(factor: mercer._types.ArrayT, b: mercer._types.ArrayT, *, lower: bool = True, overwrite_b: bool = False, out: mercer._types.ArrayT | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> mercer._types.ArrayT:
    """
    Solves a x = b with the factor that cholesky gave for a, of the same ``lower``.

    factor: [..., n, n], of which one triangle is read; b, overwrite_b, out: those of solve_cholesky.

    >>> mc.linalg.cho_solve(np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([8.0, 6.0]))
    array([1., 2.])
    """

def cho_inverse(factor: mercer._types.ArrayT, *, lower: bool = True, overwrite_factor: bool = False, out: mercer._types.ArrayT | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> mercer._types.ArrayT:
    """
    The inverse of a symmetric positive definite matrix from the factor that cholesky gave, of the same ``lower``.

    factor: [..., n, n], of which one triangle is read; the result has its shape and dtype, and both triangles, exactly
    symmetric. It takes a third of the operations of cho_solve with the identity. Where the factor has a diagonal that is
    not positive, NaN or an infinity, as that of a matrix without a factor, the inverse is NaN. overwrite_factor: the
    inverse takes the place of the factor, which is returned. out: [..., n, n], in place of a new array.

    >>> mc.linalg.cho_inverse(np.array([[2.0, 0.0], [1.0, 1.0]]))
    array([[ 0.5, -0.5],
           [-0.5,  1. ]])
    """

def cho_inverse_diagonal(factor: mercer._types.ArrayT, *, lower: bool = True, out: mercer._types.ArrayT | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> mercer._types.ArrayT:
    """
    The diagonal of that inverse, [..., n], in half the operations and with no matrix but the factor.

    Leave-one-out residuals of kernel regression are a^-1 y over it. Its sums are taken in float64. The arguments and what
    is NaN: those of cho_inverse.

    >>> mc.linalg.cho_inverse_diagonal(np.array([[2.0, 0.0], [1.0, 1.0]]))
    array([0.5, 1. ])
    """

def solve_triangular(a: mercer._types.ArrayT, b: mercer._types.ArrayT, *, lower: bool = True, transposed: bool = False, unit_diagonal: bool = False, overwrite_b: bool = False, out: mercer._types.ArrayT | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> mercer._types.ArrayT:
    """
    Solves t x = b, or t^T x = b with ``transposed``, for the triangle t of a that ``lower`` names.

    a: [..., n, n] of float32 or float64, any strides; b: [..., n, k], or [n]; x has the shape of b. Leading axes broadcast.
    unit_diagonal: t has ones on its diagonal, whatever lies there. overwrite_b: x takes the place of b, which is returned.
    No error is raised for a singular t: zeros on its diagonal give infinities and NaN in x, and NaN in t gives NaN.

    >>> mc.linalg.solve_triangular(np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([2.0, 3.0]))
    array([1., 2.])
    """

@overload
def inv_quad_logdet(a: mercer._types.ArrayT, b: mercer._types.ArrayT, *, lower: bool = True, overwrite_a: bool = False, jitter: float | Sequence[float] | None = None, check: Literal[True] = True, out: tuple[mercer._types.ArrayT, mercer._types.ArrayT] | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> tuple[mercer._types.ArrayT, mercer._types.ArrayT]:
    """
    The parts of a Gaussian's log-likelihood from one factor: b_e^T a^-1 b_e for each column of b, and log det a.

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
    (20.0, 4.0)
    """

@overload
def inv_quad_logdet(a: mercer._types.Numbers[mercer._types.ScalarT], b: mercer._types.Numbers[mercer._types.ScalarT], *, lower: bool = True, overwrite_a: bool = False, jitter: float | Sequence[float] | None = None, check: Literal[False], out: tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Numbers[mercer._types.ScalarT]] | None = None, workspace: mercer._types.Numbers[mercer._types.ScalarT] | None = None, progress: bool = False) -> tuple[tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Numbers[mercer._types.ScalarT]], mercer._types.Indices]: ...

@overload
def inv_quad_logdet(a: mercer._types.ArrayT, b: mercer._types.ArrayT, *, lower: bool = True, overwrite_a: bool = False, jitter: float | Sequence[float] | None = None, check: Literal[False], out: tuple[mercer._types.ArrayT, mercer._types.ArrayT] | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> tuple[tuple[mercer._types.ArrayT, mercer._types.ArrayT], mercer._types.ArrayT]: ...

@overload
def lu_factor(a: mercer._types.Numbers[mercer._types.ScalarT], *, overwrite_a: bool = False, check: Literal[True] = True, out: tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Indices] | None = None, workspace: mercer._types.Numbers[mercer._types.ScalarT] | None = None, progress: bool = False) -> tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Indices]: ...

@overload
def lu_factor(a: mercer._types.ArrayT, *, overwrite_a: bool = False, check: Literal[True] = True, out: tuple[mercer._types.ArrayT, mercer._types.ArrayT] | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> tuple[mercer._types.ArrayT, mercer._types.ArrayT]:
    """
    LU with partial pivoting, a = P L U, as (lu, pivots).

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
    array([1, 1])
    """

@overload
def lu_factor(a: mercer._types.Numbers[mercer._types.ScalarT], *, overwrite_a: bool = False, check: Literal[False], out: tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Indices] | None = None, workspace: mercer._types.Numbers[mercer._types.ScalarT] | None = None, progress: bool = False) -> tuple[tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Indices], mercer._types.Indices]: ...

@overload
def lu_factor(a: mercer._types.ArrayT, *, overwrite_a: bool = False, check: Literal[False], out: tuple[mercer._types.ArrayT, mercer._types.ArrayT] | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> tuple[tuple[mercer._types.ArrayT, mercer._types.ArrayT], mercer._types.ArrayT]: ...

@overload
def lu_solve(lu_and_pivots: tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Indices], b: mercer._types.Numbers[mercer._types.ScalarT], *, transposed: bool = False, overwrite_b: bool = False, out: mercer._types.Numbers[mercer._types.ScalarT] | None = None, workspace: mercer._types.Numbers[mercer._types.ScalarT] | None = None, progress: bool = False) -> mercer._types.Numbers[mercer._types.ScalarT]: ...

@overload
def lu_solve(lu_and_pivots: tuple[mercer._types.ArrayT, mercer._types.ArrayT], b: mercer._types.ArrayT, *, transposed: bool = False, overwrite_b: bool = False, out: mercer._types.ArrayT | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> mercer._types.ArrayT:
    """
    Solves a x = b, or a^T x = b with ``transposed``, with what lu_factor gave for a: lu_solve(lu_factor(a), b).

    b: [..., n, k], or [n]. overwrite_b: x takes the place of b, which is returned.

    >>> factors = mc.linalg.lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]]))
    >>> mc.linalg.lu_solve(factors, np.array([5.0, 12.0]))
    array([1., 2.])
    """

@overload
def solve_lu(a: mercer._types.ArrayT, b: mercer._types.ArrayT, *, overwrite_a: bool = False, overwrite_b: bool = False, check: Literal[True] = True, out: mercer._types.ArrayT | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> mercer._types.ArrayT:
    """
    Solves a x = b for any a that is not singular: x of the shape of b.

    a: [..., n, n]; b: [..., n, k], or [n]. Leading axes broadcast; a matrix that serves several b is factored once.
    overwrite_a: a becomes scratch memory. overwrite_b: x takes the place of b, which is returned. check, info and errors:
    those of lu_factor.

    >>> mc.linalg.solve_lu(np.array([[1.0, 2.0], [4.0, 4.0]]), np.array([5.0, 12.0]))
    array([1., 2.])
    """

@overload
def solve_lu(a: mercer._types.Numbers[mercer._types.ScalarT], b: mercer._types.Numbers[mercer._types.ScalarT], *, overwrite_a: bool = False, overwrite_b: bool = False, check: Literal[False], out: mercer._types.Numbers[mercer._types.ScalarT] | None = None, workspace: mercer._types.Numbers[mercer._types.ScalarT] | None = None, progress: bool = False) -> tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Indices]: ...

@overload
def solve_lu(a: mercer._types.ArrayT, b: mercer._types.ArrayT, *, overwrite_a: bool = False, overwrite_b: bool = False, check: Literal[False], out: mercer._types.ArrayT | None = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> tuple[mercer._types.ArrayT, mercer._types.ArrayT]: ...

@overload
def eigh(a: mercer._types.ArrayT, *, lower: bool = True, overwrite_a: bool = False, eigvals_only: bool = False, subset_by_index: tuple[int, int] | None = None, check: Literal[True] = True, out: Any = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> Any:
    """
    Eigenvalues, ascending, and eigenvectors of symmetric matrices, (w, v): a v[:, j] = w[j] v[:, j].

    a: [..., n, n] of float32 or float64, any strides; only the triangle that ``lower`` names is read. w: [..., n]; v: [...,
    n, n], orthonormal columns, laid out by columns. eigvals_only: w alone.

    subset_by_index: (first, last) of the eigenvalues, counted from 0, both included; w and v have so many columns and keep
    no more memory. overwrite_a: a becomes scratch memory, or v where all vectors are wanted. out: (w, v), or w.

    check: with True eigenvalues that do not converge raise LinAlgError. With False the result is (what it would be, info),
    info int64 of the shape [...]: 0; how many did not; or -1 for a matrix that holds NaN or an infinity. w and v of such
    matrices are NaN, the others are right.

    >>> w, v = mc.linalg.eigh(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> w.round(6)
    array([1., 3.])
    """

@overload
def eigh(a: mercer._types.Numbers[mercer._types.ScalarT], *, lower: bool = True, overwrite_a: bool = False, eigvals_only: bool = False, subset_by_index: tuple[int, int] | None = None, check: Literal[False], out: Any = None, workspace: mercer._types.Numbers[mercer._types.ScalarT] | None = None, progress: bool = False) -> tuple[Any, mercer._types.Indices]: ...

@overload
def eigh(a: mercer._types.ArrayT, *, lower: bool = True, overwrite_a: bool = False, eigvals_only: bool = False, subset_by_index: tuple[int, int] | None = None, check: Literal[False], out: Any = None, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> tuple[Any, mercer._types.ArrayT]: ...

class KernelOperator:
    """
    The symmetric matrix s_m f(x_m, x_n) s_n + ridge_m (m = n), known by its products and never stored.

    f: a symmetric formula, as for kernel_product, with its parameters by name, each one number. x: [n, K] of float32 or
    float64; it must not change while the operator is in use. ridge: a number, or one for each point, [n]. weights: of the
    points, [n], whose roots are s; ones when nothing is said. w: [K], weights of the features, and row and col: [n], equal,
    where the formula reads them. Arrays are of the library, and on the device, of x; ridge and weights of its dtype too.

    Everything is checked here: ValueError for what breaks a rule (negative or infinite ridges and weights among it),
    DtypeError for other element types. Serves cg, minres, rpcholesky, nystrom, pivoted_cholesky
    and eigh_top, SciPy's functions of LinearOperators, and ``a @ v``. Operators pickle, with their arrays.

    >>> op = mc.linalg.KernelOperator("sum(x*z)", np.array([[1.0], [2.0]]), ridge=1.0)
    >>> op @ np.array([1.0, 1.0])
    array([4., 7.])
    """

    def __init__(self, f: mercer._types.FormulaLike, x: Any, *, ridge: Any = 0.0, weights: Any = None, w: Any = None, row: Any = None, col: Any = None, **params: mercer._types.Parameter) -> None: ...

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n) for n points."""

    @property
    def dtype(self) -> Any:
        """That of the points, as their library writes it."""

    @property
    def device(self) -> Any:
        """
        That of the points, as their library writes it; "cpu" where it has none.
        """

    @property
    def ridge(self) -> Any:
        """What is added to the diagonal, a float or an array [n]."""

    @property
    def weights(self) -> Any:
        """The weights of the points, [n], or None."""

    @property
    def points(self) -> Any:
        """The points x, as they were given."""

    @property
    def T(self) -> KernelOperator:
        """The operator itself, which is symmetric."""

    def __matmul__(self, v: mercer._types.ArrayT) -> mercer._types.ArrayT:
        """
        The product with v [n, k] or [n], of the library, device and dtype of the points, in a new array.
        """

    def __rmatmul__(self, v: mercer._types.ArrayT) -> mercer._types.ArrayT:
        """v a, which is (a v^T)^T."""

    def diagonal(self) -> Any:
        """
        The diagonal [n], ridges and weights included. NotImplementedError for formulas that read indices.
        """

    def rows(self, i: Any) -> Any:
        """
        Rows of the matrix, ridges and weights included: [n] for a whole number i, which may be negative, [r, n] for a
        slice, a list or an array of r whole numbers. IndexError for others.
        """

    def to_linear_operator(self) -> Any:
        """
        The operator for the package linear_operator, of points that are tensors of PyTorch. ImportError without
        it.
        """

    def __reduce__(self) -> tuple[Any, ...]: ...

    def matvec(self, v: mercer._types.ArrayT) -> mercer._types.ArrayT:
        """The product with v, by a name that SciPy calls."""

    def matmat(self, v: mercer._types.ArrayT) -> mercer._types.ArrayT:
        """The product with v, by a name that SciPy calls."""

    def rmatvec(self, v: mercer._types.ArrayT) -> mercer._types.ArrayT:
        """The product with v, by a name that SciPy calls."""

    def rmatmat(self, v: mercer._types.ArrayT) -> mercer._types.ArrayT:
        """The product with v, by a name that SciPy calls."""

    __array_ufunc__: None = None

@overload
def eigh_top(a: mercer._types.ArrayT | KernelOperator, k: int, *, which: Literal['largest', 'smallest', 'magnitude'] = 'largest', tol: float | None = None, max_basis: int | None = None, seed: int = 0, progress: bool = False, check: Literal[True] = True) -> tuple[Any, Any]:
    """
    One end of a spectrum by products alone: (w, v), k eigenvalues, ascending, and their vectors in columns.

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
    array([5.])
    """

@overload
def eigh_top(a: mercer._types.ArrayT | KernelOperator, k: int, *, which: Literal['largest', 'smallest', 'magnitude'] = 'largest', tol: float | None = None, max_basis: int | None = None, seed: int = 0, progress: bool = False, check: Literal[False]) -> tuple[tuple[Any, Any], int]: ...

class Preconditioner:
    """
    A symmetric positive definite matrix P near an operator k + ridge: a multiple of the identity and a low rank.

    Made by rpcholesky, nystrom and pivoted_cholesky, for cg and for what else needs an inverse, a square root or a
    determinant that cost n numbers times the rank. P = U diag(l) U^T + ridge with orthonormal columns U; nystrom's is
    (U diag(l) U^T + ridge + least (1 - U U^T)) / (least + ridge), least being its smallest l. Rounding of U bounds (l +
    ridge) / ridge: at about 1e5 in float32 and 1e13 in float64, larger l are taken for that. Preconditioners do not change,
    share U where they can, and pickle.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n), that of the operator."""

    @property
    def rank(self) -> int:
        """Columns of its factor."""

    @property
    def ridge(self) -> float | Any:
        """A number, or an array [k] of NumPy: one for each column."""

    def solve(self, v: mercer._types.ArrayT) -> mercer._types.ArrayT:
        """
        P^-1 v, for v [n] or [n, k] of the dtype and the device of P.

        Where P has a ridge for each column, v has so many. On a CUDA device the first call of solve, as that of sqrt, takes
        memory and waits; later ones do neither, and may be captured in a graph, which P must outlive. Raises ValueError for
        other shapes and devices, DtypeError for other dtypes.
        """

    def sqrt(self, v: mercer._types.ArrayT) -> mercer._types.ArrayT:
        """
        P^(1/2) v by the symmetric square root, for v as in solve.

        For standard normal v it is a sample of N(0, P).
        """

    def logdet(self) -> float | Any:
        """
        log det P in float64: a number, or an array [k] of NumPy where P has a ridge for each column.
        """

    def diagonal(self) -> Any:
        """
        The diagonal of P [n], or [n, k] where P has a ridge for each column, an array like those of the operator.
        """

    def with_ridge(self, ridge: float | Sequence[float] | mercer._types.ArrayT) -> Preconditioner:
        """
        P with another ridge, or with one for each column of what solve, sqrt and cg get; U is shared.

        ridge: a positive number, or k of them, of any library. Raises ValueError for others.
        """

    def weighted(self, w: mercer._types.ArrayT) -> Preconditioner:
        """
        P of diag(s) k diag(s) + ridge, s the square roots of the weights w [n], from 0 on, of the dtype of P.

        It costs an orthonormalisation of diag(s) U diag(l)^(1/2), and reads nothing of k. Raises ValueError for weights that
        are negative or not finite.
        """

    def __reduce__(self) -> tuple[Any, ...]: ...

def restored_preconditioner(rows: Any, values: list[float], ridges: list[float], least: float, is_relative: bool, most_weight: float, like: Any, device: int = -1) -> Preconditioner:
    """What pickle makes a preconditioner of."""

def nystrom(a: mercer._types.ArrayT | KernelOperator, rank: int, *, ridge: float | None = None, seed: int = 0, progress: bool = False) -> Preconditioner:
    """
    A preconditioner from products of a with ``rank`` random vectors, for a = k + ridge, k positive semi-definite.

    It turns the largest eigenvalues of a into its smallest one that was seen (Frangella, Tropp, Udell, "Randomized Nystrom
    preconditioning", 2023): worth it where few of them are far above the ridge. a: as for cg. ridge: the multiple of the
    identity that a contains; a KernelOperator's own, and 0 for a matrix, when nothing is said. It holds rank vectors of n
    numbers, and four times as many while it is made; the call waits for its work. Raises LinAlgError for products that are
    not finite, and for a matrix that is not positive semi-definite when the ridge is taken away.

    >>> op = mc.linalg.KernelOperator(mc.gauss(), np.arange(9.0)[:, None], ridge=0.1)
    >>> mc.linalg.nystrom(op, 4).rank
    4
    """

def rpcholesky(a: mercer._types.ArrayT | KernelOperator, rank: int, *, ridge: float | None = None, block: int | Literal['auto'] = 'auto', seed: int = 0, progress: bool = False) -> Preconditioner:
    """
    A preconditioner from ``rank`` rows of a = k + ridge, k positive semi-definite: the one to begin with.

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
    (9,)
    """

def pivoted_cholesky(a: KernelOperator, rank: int, *, progress: bool = False) -> Preconditioner:
    """
    A preconditioner from ``rank`` rows of a kernel matrix: L L^T + ridge, with columns L of Cholesky's factor.

    The pivots are the largest diagonals that are left (Harbrecht, Peters, Schneider, 2012), none below half of the largest,
    and it ends before where they are used up. Its pivots are not random; elsewhere rpcholesky serves better, as points that
    lie apart come first here. a: a KernelOperator with a positive ridge. Memory, waiting and errors: those of
    rpcholesky.

    >>> op = mc.linalg.KernelOperator(mc.gauss(), np.arange(9.0)[:, None], ridge=0.1)
    >>> mc.linalg.pivoted_cholesky(op, 4).shape
    (9, 9)
    """

@overload
def cg(a: Any, b: mercer._types.ArrayT, *, ridge: Any = None, preconditioner: Preconditioner | None = None, tol: float | None = None, max_iter: int | None = None, x0: mercer._types.ArrayT | None = None, out: mercer._types.ArrayT | None = None, progress: bool = False, check: Literal[True] = True) -> mercer._types.ArrayT:
    """
    Solves a x = b for a symmetric positive definite operator by products alone: conjugate gradients.

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
    array([1., 2.])
    """

@overload
def cg(a: Any, b: mercer._types.Numbers[mercer._types.ScalarT], *, ridge: Any = None, preconditioner: Preconditioner | None = None, tol: float | None = None, max_iter: int | None = None, x0: mercer._types.Numbers[mercer._types.ScalarT] | None = None, out: mercer._types.Numbers[mercer._types.ScalarT] | None = None, progress: bool = False, check: Literal[False]) -> tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Indices, mercer._types.Indices]: ...

@overload
def cg(a: Any, b: mercer._types.ArrayT, *, ridge: Any = None, preconditioner: Preconditioner | None = None, tol: float | None = None, max_iter: int | None = None, x0: mercer._types.ArrayT | None = None, out: mercer._types.ArrayT | None = None, progress: bool = False, check: Literal[False]) -> tuple[mercer._types.ArrayT, mercer._types.ArrayT, mercer._types.ArrayT]: ...

@overload
def minres(a: Any, b: mercer._types.ArrayT, *, ridge: Any = None, tol: float | None = None, max_iter: int | None = None, x0: mercer._types.ArrayT | None = None, out: mercer._types.ArrayT | None = None, progress: bool = False, check: Literal[True] = True) -> mercer._types.ArrayT:
    """
    Solves a x = b for a symmetric operator, indefinite ones among them, by products alone: minimal residuals.

    Arguments, result, errors, and work on CUDA: those of cg, without a preconditioner (Paige, Saunders, 1975). For a
    positive definite operator cg takes as many products and three vectors a column less. Where a is singular and b not in
    its range, the residual stagnates at its least value: info is -2.

    >>> mc.linalg.minres(np.array([[4.0, 2.0], [2.0, 2.0]]), np.array([8.0, 6.0])).round(6)
    array([1., 2.])
    """

@overload
def minres(a: Any, b: mercer._types.Numbers[mercer._types.ScalarT], *, ridge: Any = None, tol: float | None = None, max_iter: int | None = None, x0: mercer._types.Numbers[mercer._types.ScalarT] | None = None, out: mercer._types.Numbers[mercer._types.ScalarT] | None = None, progress: bool = False, check: Literal[False]) -> tuple[mercer._types.Numbers[mercer._types.ScalarT], mercer._types.Indices, mercer._types.Indices]: ...

@overload
def minres(a: Any, b: mercer._types.ArrayT, *, ridge: Any = None, tol: float | None = None, max_iter: int | None = None, x0: mercer._types.ArrayT | None = None, out: mercer._types.ArrayT | None = None, progress: bool = False, check: Literal[False]) -> tuple[mercer._types.ArrayT, mercer._types.ArrayT, mercer._types.ArrayT]: ...

def matmul(x: mercer._types.ArrayT, factors: Sequence[mercer._types.ArrayT], *, alpha: float | mercer._types.Array = 1, beta: float | mercer._types.Array = 0, y: mercer._types.ArrayT | None = None, out: mercer._types.ArrayT | None = None, transpose_x: bool = False, transpose_factors: bool | Sequence[bool] = False, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> mercer._types.ArrayT:
    """
    alpha op(x) (op(F1) (x) ... (x) op(FN)) + beta y; the Kronecker product is never stored.

    op(x): [..., M, P1 ... PN], or a vector. factors: 1 to 64 arrays, op(F_i) [..., P_i, Q_i], each of its own shape. The
    result is [..., M, Q1 ... QN]; leading axes of x and of all factors broadcast. A factor that is a vector is summed over:
    [P, 1]; in kron_matmul [1, Q]. transpose_x: op(x) is x with its last two
    axes swapped; transpose_factors: likewise, one flag for all factors or one for each.

    All arrays have one dtype: float16, bfloat16 (summed in float32), float32, float64, int32 or int64 (sums wrap around;
    alpha and beta must be whole numbers). Any strides. With alpha = 0 neither x nor factors are read; y is read where beta
    is not 0, and broadcasts to the result.

    out: takes the result, in place of a new array; it may be the very array x, where the shapes allow, or y. workspace:
    scratch memory of mercer.workspace_size("kron.matmul", ...) bytes, on the CPU too. progress: a bar for long calls.

    PyTorch's tensors may require gradients, by x, y and every factor; JAX differentiates by them and takes no out. With
    either, alpha and beta may be arrays of one number, which are differentiated by as well and never read back; they take
    no out and no workspace.

    >>> swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> mc.kron.matmul(np.array([[1.0, 2.0, 3.0, 4.0]]), [np.eye(2), swap])
    array([[2., 1., 4., 3.]])
    """

def kron_matmul(factors: Sequence[mercer._types.ArrayT], x: mercer._types.ArrayT, *, alpha: float | mercer._types.Array = 1, beta: float | mercer._types.Array = 0, y: mercer._types.ArrayT | None = None, out: mercer._types.ArrayT | None = None, transpose_x: bool = False, transpose_factors: bool | Sequence[bool] = False, workspace: mercer._types.ArrayT | None = None, progress: bool = False) -> mercer._types.ArrayT:
    """
    alpha (op(F1) (x) ... (x) op(FN)) op(x) + beta y; the Kronecker product is never stored.

    op(x): [..., Q1 ... QN, M], or a vector; op(F_i): [..., P_i, Q_i]; the result is [..., P1 ... PN, M]. Everything else is
    as for matmul.

    >>> swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> mc.kron.kron_matmul([np.eye(2), swap], np.array([1.0, 2.0, 3.0, 4.0]))
    array([2., 1., 4., 3.])
    """

def tune_kron(x: mercer._types.ArrayT, factors: Sequence[mercer._types.ArrayT], verb: str, alpha: float, beta: float, y: mercer._types.ArrayT | None, out: mercer._types.ArrayT | None, transpose_x: bool, transpose_factors: bool | Sequence[bool], progress: bool) -> tuple[str, str, list[tuple[str, float]]]:
    """
    What mercer.kron.tune calls: (the chosen plan, the model's, all of them with their milliseconds).
    """

class Settings:
    """Options of a thread or task, over those of the process."""

def settings(threads: int | None, target: str | None, precision: str | None) -> Settings:
    """
    The options in force with these in their place; what is None stays as it is.
    """

def current_settings() -> Settings | None:
    """
    The options in force in this thread or task, None where the process's are.
    """

def set_settings(settings: Settings | None) -> None:
    """
    Sets the options of this thread or task; mercer.options does it for a while.
    """

def settings_text() -> str:
    """The options in force as text, empty where the process's are."""

def describe_machine() -> str:
    """What this machine offers and what Mercer chose, as text."""

def get_num_threads() -> int:
    """Threads that a call may use here."""

def limit_num_threads(most: int) -> None:
    """
    Most threads of a call where neither set_num_threads nor MERCER_THREADS asks for a number; 0 lifts the limit.
    """

def forget_worker() -> None:
    """For a child that was forked: it may be a worker of its own."""

def set_num_threads(count: int) -> None:
    """
    Sets how many threads a call of this process may use, where mercer.options says nothing else: 1 to 4096, or 0 for the machine's own number, at most OMP_NUM_THREADS; ValueError otherwise. Results do not depend on it, but for the last bits of mercer.linalg on the CPU.
    """

def get_target() -> str:
    """
    The instruction set in use here: "x86_avx512", "x86_avx2" or "interpreter".
    """

def set_target(name: str) -> None:
    """
    Chooses the instruction set of this process: "x86_avx512", "x86_avx2", "interpreter", or "auto" for the best of this machine. ValueError for another name.
    """

def get_precision() -> str:
    """
    How products run here on tensor cores: "fp32", "direct", "tf32" or "bf16".
    """

def set_precision(name: str) -> None:
    """
    Chooses how products of this process run on tensor cores: "fp32" (or "fp64", the same), "direct", "tf32" or "bf16". ValueError for another name.
    """

def plan_count() -> int:
    """Compiled plans held now."""

def clear_plans() -> None:
    """Forgets all compiled plans."""

def point_types() -> dict[str, str]:
    """
    The dtypes that points may have, each with the one in which values are computed.
    """

def clock_ghz() -> tuple[float, float, bool]:
    """
    The clock of this core in GHz, measured by a chain of multiplications, and by one of rotations; whether they agree.
    """

def cpu_costs() -> tuple[str, bool, str]:
    """
    Whose costs plans and floors of CPUs follow: a name, whether they are this processor's, a line for people.
    """

def floor_rate(formula: str, shape: tuple[int, int, int], dtype: str, target: str, gigahertz: float) -> float:
    """
    Elements (m, n, k) a second, in 1e9, that one core can reach by the formula's instruction mix.
    """

def gpu_floor(formula: str, shape: tuple[int, int, int], dtype: str, target: str, verb: str = 'pairwise', items: int = 1, columns: int = 1, symmetric: bool = False, mixed_pipes: bool = True, products: int = 3) -> dict[str, float]:
    """
    Milliseconds that a call takes at least on a GPU ("cuda:0", "sm_90"): of each unit, and of the busiest, "ms".
    """

def env_rows() -> list[tuple[str, str, str]]:
    """The environment variables that Mercer reads: (name, default, meaning)."""

def add_library_folder(folder: str) -> None:
    """Names a folder in which NVIDIA's libraries may lie."""

def add_lapack_file(file: str, shared: bool) -> None:
    """Names a file that may have LAPACK, a copy that others use if shared."""

def set_cuda_store(folder: str) -> None:
    """Names the folder of GPU kernels that came with the package."""

def finish_compiling() -> None:
    """Waits for all GPU kernels that are still compiled after first calls."""

def cache_path() -> str:
    """The folder of compiled kernels (MERCER_CACHE_DIR)."""

def cache_stats() -> tuple[int, int]:
    """Number of files in the cache and their bytes."""

def cache_files() -> list[tuple[bytes, bytes, int, int]]:
    """
    The files of the cache, the youngest first: (key, first line, bytes, age in seconds).
    """

def cache_clear() -> None:
    """Removes all compiled kernels from the disk."""

def log_to_python(listens: bool) -> None:
    """
    Whether messages go to mercer._messages.emit; those that are kept go there now, if not.
    """

def forget_messages() -> None:
    """For a child that was forked: they are the parent's."""

def say(level: str, text: str) -> None:
    """Says something as the engine does."""

def log_level() -> str:
    """
    The least severe level that the engine says: "off", "error", "warning", "info" or "debug".
    """

def set_log_level(name: str) -> None:
    """Sets that level; ValueError for another name."""

def show_bars(wanted: bool) -> bool:
    """
    Whether every call of this thread shows how long it has taken, once that is two seconds; returns what held.
    """

__version__: str
