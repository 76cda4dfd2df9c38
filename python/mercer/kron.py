"""Kronecker products of small matrices, which are never stored.

``matmul(x, factors)`` is x (F1 (x) ... (x) FN), ``kron_matmul(factors, x)`` the product from the
left. ``solve``, ``eigh`` and ``logdet`` work on the factors one by one: the kernel matrix of a grid
of points is such a product, and a Gaussian process on a grid needs nothing else: Saatci, "Scalable
inference for structured Gaussian process models", PhD thesis, Cambridge (2011).

Arrays come from NumPy, PyTorch and other libraries that speak DLPack; any strides, and batches that
broadcast. PyTorch and JAX differentiate all of them; under ``jax.jit``, where nothing can be
raised, what cannot be solved is infinite or NaN.
"""

from __future__ import annotations

import math as _math
import sys as _sys
import typing as _typing
from collections.abc import Sequence as _Sequence

import numpy as _np

from mercer import _mercer as _engine
from mercer import _progress
from mercer import linalg as _linalg
from mercer._libraries import namespace_of as _namespace_of
from mercer._tune import Tuned as _Tuned
from mercer._verbs import kron_matmul, matmul
from mercer.errors import LinAlgError

if _typing.TYPE_CHECKING:
    from mercer._types import Array as _Array
    from mercer._types import ArrayT

__all__ = [
    "eigh", "intermediates", "kron_matmul", "linear_operator", "logdet", "matmul", "solve", "tune",
]  # fmt: skip


@_progress.watched
def intermediates(
    x: ArrayT,
    factors: _Sequence[ArrayT],
    *,
    verb: str = "matmul",
    transpose_x: bool = False,
    transpose_factors: bool | _Sequence[bool] = False,
    progress: bool = False,
) -> list[ArrayT]:
    """What lies between the factors of a product, for a backward pass of one's own.

    Entry i is x with the factors from F_i on applied, ``[..., M, P1 ... P_(i-1) Q_i ... QN]``, i
    from 1; the first one is the product itself, the last one has met the last factor alone. With
    verb="kron_matmul" they are ``[..., Q1 ... Q_(i-1) P_i ... PN, M]``. A vector x is a matrix of
    one row, or column.

    Each takes a pass over memory, so the product alone is sooner made by ``matmul``. Arguments,
    libraries, derivatives, progress and errors: those of the verbs.

    >>> swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> mc.kron.intermediates(np.array([[1.0, 2.0, 3.0, 4.0]]), [swap, 2 * swap])
    [array([[8., 6., 4., 2.]]), array([[4., 2., 8., 6.]])]
    """
    _require(
        verb in ("matmul", "kron_matmul"),
        f'kron.intermediates: the verb must be matmul or kron_matmul. Received "{verb}"',
    )
    left, array = verb == "kron_matmul", _typing.cast("_typing.Any", x)
    sides: list[_typing.Any] = list(factors)
    turned = transpose_factors
    flags = [turned] * len(sides) if isinstance(turned, bool) else list(turned)
    _require(
        0 < len(sides) == len(flags),
        "kron.intermediates: there must be 1 to 64 factors, each with its flag. "
        f"Received {len(sides)} and {len(flags)}",
    )
    # kron_matmul multiplies from the left: its factors are taken transposed.
    for i, (factor, flag) in enumerate(zip(sides, flags, strict=True)):
        matrix = factor[:, None] if factor.ndim == 1 else factor
        is_row = factor.ndim > 1 and left
        sides[i] = matrix.swapaxes(-1, -2) if flag != is_row else matrix
    turned_x = array.swapaxes(-1, -2) if transpose_x != left and array.ndim > 1 else array
    rows = array[None] if array.ndim == 1 else turned_x
    wanted = _math.prod(side.shape[-2] for side in sides)
    _require(
        rows.shape[-1] == wanted,
        "kron.intermediates: op(x) must have the product of the extents of op(factors), "
        f"{wanted}. Received shape {tuple(array.shape)}",
    )
    kept: list[_typing.Any] = []
    for i in reversed(range(len(sides))):
        before = _math.prod(side.shape[-2] for side in sides[:i])
        after = _math.prod(side.shape[-1] for side in sides[i + 1 :])
        rows = _multiply_along(rows, sides[i], before, after)
        kept.insert(0, rows.swapaxes(-1, -2) if left else rows)
    return kept


def _multiply_along(x: _typing.Any, factor: _typing.Any, before: int, after: int) -> _typing.Any:
    """x [..., M, before P after] times a factor [..., P, Q] along its own axis."""
    m, (p, q) = x.shape[-2], factor.shape[-2:]
    columns = x.reshape(*x.shape[:-2], m * before, p, after)
    product = kron_matmul([factor.swapaxes(-1, -2)[..., None, :, :]], columns)
    return product.reshape(*product.shape[:-3], m, before * q * after)


@_progress.watched
def solve(
    factors: _Sequence[ArrayT],
    b: ArrayT,
    *,
    shift: float | _Array = 0.0,
    positive: bool = True,
    jitter: float | _Sequence[float] | None = None,
    progress: bool = False,
) -> ArrayT:
    """x with (F1 (x) ... (x) FN + shift I) x = b.

    factors: square, ``[..., n_i, n_i]``, float32 or float64. b: ``[..., n_1 ... n_N, C]`` or
    ``[n_1 ... n_N]``; x has its shape, and the batch. Leading axes broadcast.

    Without a shift each factor is solved with along its own axis: by Cholesky's factorisation where
    ``positive`` says that all are symmetric positive definite (``jitter`` as in
    ``mercer.linalg.solve_cholesky``), else by LU. With a shift the factors must be symmetric; their
    eigenvectors turn b, and each row is divided by its eigenvalue: shift is the variance of the
    noise of a Gaussian process. Then ``positive`` is not read, and ``jitter`` must be None.

    shift may be an array of one number, such as a tensor, which is not read back and, in PyTorch,
    differentiated by; then the eigenvectors are taken whatever its value is. PyTorch and JAX
    differentiate by factors and b as well, as often as wanted, of equal eigenvalues too.

    progress: that of mercer.linalg.cholesky, for each part of the work.

    Raises ValueError for shapes that do not fit, LinAlgError for a factor without an inverse, and
    where an eigenvalue and the shift add to zero, to the rounding of the eigenvalues.

    >>> mc.kron.solve([np.diag([1.0, 2.0]), np.diag([1.0, 4.0])], np.array([1.0, 4.0, 2.0, 8.0]))
    array([1., 1., 1., 1.])
    """
    sizes = _sizes("kron.solve", factors)
    shifted = _is_shift("kron.solve", shift)
    right: _typing.Any = b
    order, is_vector = _math.prod(sizes), right.ndim == 1
    _require(
        right.ndim >= 1 and right.shape[-1 if is_vector else -2] == order,
        f"kron.solve: b must have the shape [..., n, C] or [n], n = {order}, the product of the "
        f"orders of the factors. Received {tuple(right.shape)}",
    )
    _require(
        not shifted or jitter is None,
        f"kron.solve: jitter must be None where shift is not 0. Received {jitter} and {shift}",
    )
    x = right[:, None] if is_vector else right
    if shifted:
        x = _solve_shifted(factors, x, shift)
    else:
        for i, factor in enumerate(factors):
            x = _solve_along(x, factor, i, sizes, positive, jitter)
    return x[..., 0] if is_vector else x


def _solve_shifted(
    factors: _Sequence[_typing.Any], x: _typing.Any, shift: _typing.Any
) -> _typing.Any:
    if _is_followed((*factors, x, shift)):
        from mercer._torch import kron_shift

        return kron_shift.solve(factors, x, shift)
    if _is_jax(x):
        from mercer import _jax_linalg

        return _jax_linalg.kron_solve(factors, x, shift)
    values, vectors = eigh(factors)
    sums = values + shift
    require_regular(values, sums)
    turned = kron_matmul(vectors, x, transpose_factors=True)
    return kron_matmul(vectors, turned / sums[..., None])


def _solve_along(
    x: _typing.Any, factor: _typing.Any, i: int, sizes: list[int], positive: bool,
    jitter: float | _Sequence[float] | None,
) -> _typing.Any:  # fmt: skip
    """F_i^-1 along the axis of its index in x [..., n_1 ... n_N, C]."""
    left, right = _math.prod(sizes[:i]), _math.prod(sizes[i + 1 :]) * x.shape[-1]
    columns = x.reshape(*x.shape[:-2], left, sizes[i], right)
    factor = factor[..., None, :, :]
    try:
        if positive:
            columns = _linalg.solve_cholesky(factor, columns, jitter=jitter)
        else:
            columns = _linalg.solve_lu(factor, columns)
    except LinAlgError as error:
        raise LinAlgError(f"kron.solve: factors[{i}]: {error}") from None
    return columns.reshape(*columns.shape[:-3], *x.shape[-2:])


@_progress.watched
def eigh(factors: _Sequence[ArrayT], *, progress: bool = False) -> tuple[ArrayT, list[ArrayT]]:
    """Eigenvalues of F1 (x) ... (x) FN, and the eigenvectors of its factors.

    factors: symmetric, ``[..., n_i, n_i]``, float32 or float64; their lower triangles are read.
    Returns (w, v): w ``[..., n_1 ... n_N]``, in the order of the product and not of size, and a
    list of v_i ``[..., n_i, n_i]``: the product is V diag(w) V' with V = v_1 (x) ... (x) v_N:

    >>> factors, x = [np.diag([1.0, 2.0]), np.diag([3.0, 5.0])], np.eye(4)
    >>> w, v = mc.kron.eigh(factors)
    >>> w
    array([ 3.,  5.,  6., 10.])
    >>> turned = mc.kron.kron_matmul(v, x, transpose_factors=True)
    >>> np.diag(mc.kron.kron_matmul(v, w[:, None] * turned))
    array([ 3.,  5.,  6., 10.])

    Derivatives and progress: those of mercer.linalg.eigh. Raises ValueError for factors that are
    not square.
    """
    _sizes("kron.eigh", factors)
    parts = [_linalg.eigh(factor) for factor in factors]
    return products_of([values for values, _ in parts]), [vectors for _, vectors in parts]


def products_of(parts: _Sequence[_typing.Any]) -> _typing.Any:
    """[..., n]: the eigenvalues of a product from those of its factors."""
    w = parts[0]
    for values in parts[1:]:
        joined = w[..., :, None] * values[..., None, :]
        w = joined.reshape(*joined.shape[:-2], joined.shape[-2] * joined.shape[-1])
    return w


@_progress.watched
def logdet(
    factors: _Sequence[ArrayT], *, shift: float | _Array = 0.0, progress: bool = False
) -> ArrayT:
    """log det(F1 (x) ... (x) FN + shift I), of the shape of the batch.

    factors: symmetric positive definite, ``[..., n_i, n_i]``, float32 or float64. Without a shift
    it is the sum over i of n / n_i log det F_i, n = n_1 ... n_N, from Cholesky's factors. With one
    it is the sum of log(w + shift) over the eigenvalues.

    shift may be an array of one number, as in solve. PyTorch and JAX differentiate by it and by the
    factors; second derivatives with a shift ask for distinct eigenvalues within each factor.

    Raises ValueError for factors that are not square, LinAlgError for one that is not positive
    definite, and where an eigenvalue and the shift do not add to more than zero.

    >>> round(float(np.exp(mc.kron.logdet([np.diag([1.0, 2.0]), np.eye(3)]))), 6)
    8.0
    """
    sizes = _sizes("kron.logdet", factors)
    library = _namespace_of(factors[0])
    if _is_shift("kron.logdet", shift):
        values: _typing.Any = eigh(factors)[0]
        sums = values + shift
        if _is_followed((sums,)):
            from mercer._torch import kron_shift

            return kron_shift.log(sums).sum(-1)
        require_positive(sums)
        return library.log(sums).sum(-1)
    total: _typing.Any = 0
    for factor, n in zip(factors, sizes, strict=True):
        lower = _linalg.cholesky(factor)
        diagonal = library.diagonal(lower, 0, -2, -1)
        total = total + 2 * (_math.prod(sizes) // max(n, 1)) * library.log(diagonal).sum(-1)
    return total


def linear_operator(*factors: _typing.Any) -> _typing.Any:
    """A KroneckerProductLinearOperator of linear_operator that multiplies through Mercer.

    factors: tensors of PyTorch or linear operators, ``[..., P_i, Q_i]``; or one operator that is a
    Kronecker product, whose factors are taken. GPyTorch takes it wherever it takes its own.
    Raises ModuleNotFoundError without the package linear_operator.

    >>> mc.kron.linear_operator(torch.eye(2), torch.eye(3)).shape
    torch.Size([6, 6])
    """
    from mercer import _linear_operator

    return _linear_operator.operator_of(*factors)


def tune(
    x: ArrayT,
    factors: _Sequence[ArrayT],
    *,
    verb: str = "matmul",
    alpha: float = 1,
    beta: float = 0,
    y: ArrayT | None = None,
    transpose_x: bool = False,
    transpose_factors: bool | _Sequence[bool] = False,
    out: ArrayT | None = None,
    progress: bool = False,
) -> _Tuned:
    """Measures which plan computes this product fastest where its arrays are, and keeps the answer.

    A plan divides the factors into passes over memory; on CUDA it has a kernel for each pass, on
    CPUs sizes of blocks and tiles. Calls with factors of these shapes, as many rows and items, this
    dtype and alignment use the fastest from then on, in this process and, by the cache on disk, in
    later ones, whatever the values of alpha and beta. On CUDA those with alpha = 1 and no y have a
    choice of their own; on CPUs it holds for as many threads. Every plan keeps the error bound of
    the products; the last bits of results may change.

    - verb: "matmul" or "kron_matmul". The other arguments are those of the verb.
    - out: an array to write into, neither x nor y: the call is made again and again. It then has
      the product. A new array when None, which is dropped.

    Returns (chosen, model, tiles): the plan in use from now on, the model's, and all that were
    measured with their milliseconds, the fastest first; printing it shows a line for each. On CUDA
    it takes seconds, most of them for the compiler.

    Raises NotImplementedError for arrays of JAX and where no factor is multiplied;
    ValueError while a CUDA graph is being captured, where out is x or y, and for arguments that the
    verb refuses. A graph captured before keeps its kernels.

    >>> print(mc.kron.tune(np.ones((64, 16)), [np.eye(4), np.eye(4)]))  # doctest: +SKIP
    """
    return _Tuned(
        *_engine.tune_kron(
            x, factors, verb, alpha, beta, y, out, transpose_x, transpose_factors, progress
        )
    )


def _sizes(verb: str, factors: _Sequence[_typing.Any]) -> list[int]:
    _require(len(factors) > 0, f"{verb}: there must be 1 to 64 factors. Received 0")
    for i, factor in enumerate(factors):
        _require(
            factor.ndim >= 2 and factor.shape[-1] == factor.shape[-2],
            f"{verb}: factors[{i}] must have the shape [..., n, n]. Received {tuple(factor.shape)}",
        )
    return [factor.shape[-1] for factor in factors]


def _is_shift(verb: str, shift: _typing.Any) -> bool:
    """Whether there is one. An array is, since its value stays where it is."""
    if isinstance(shift, (int, float, _np.generic)):
        _require(_math.isfinite(shift), f"{verb}: shift must be finite. Received {shift}")
        return bool(shift != 0)
    if getattr(shift, "ndim", None) != 0:
        raise TypeError(f"{verb}: shift must be a number or an array of one. Received {shift!r}")
    return True


def _is_followed(arrays: _Sequence[_typing.Any]) -> bool:
    """Whether PyTorch records what is done with them."""
    torch = _sys.modules.get("torch")
    if torch is None or not any(isinstance(array, torch.Tensor) for array in arrays):
        return False
    from mercer import _watchers

    return _watchers.follow(arrays)


def _is_jax(array: _typing.Any) -> bool:
    jax = _sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.Array)


def _is_traced(array: _typing.Any) -> bool:
    """Whether JAX traces it and it has no values: what fails there is infinite or NaN."""
    return _is_jax(array) and isinstance(array, _sys.modules["jax"].core.Tracer)


def require_positive(sums: _typing.Any) -> None:
    if _is_traced(sums):
        return
    if not bool((sums > 0).all()):
        raise LinAlgError(
            "kron.logdet: every eigenvalue and the shift must add to more than 0. "
            f"Received {float(sums.min())}"
        )


def require_regular(values: _typing.Any, sums: _typing.Any) -> None:
    """Eigenvalues are known to the rounding of the largest one."""
    if sums.shape[-1] == 0 or _is_traced(sums):
        return
    rounding = _namespace_of(values).finfo(values.dtype).eps
    largest, least = abs(values).max(-1), abs(sums).min(-1)
    largest, least = (getattr(found, "values", found) for found in (largest, least))  # PyTorch's
    if bool((least > 8 * rounding * largest).all()):
        return
    raise LinAlgError(
        "kron.solve: no eigenvalue and the shift may add to 0, to the rounding of the eigenvalues. "
        f"Received {float(least.min())}"
    )


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)
