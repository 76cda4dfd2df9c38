"""The verbs, as torch.compile can read them. Written by tools/make_verbs.py.

Each is the compiled function and nothing else, except while torch.compile traces: a compiled
function is opaque to it, so it is shown the registered operator instead. PyTorch is not imported.
Arguments go on one by one and by their places: as a tuple and a dict the compiled function has them
0.3 us later, as keywords 0.25 us. Places of keywords are not in their stubs, hence call-arg.
What it refuses is called once more where lists, tables or whole numbers can be read as arrays.
"""
# fmt: off
# mypy: disable-error-code="no-any-return, call-arg, call-overload, misc"

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, overload

from mercer import _array_likes, _mercer, _sparse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from mercer._types import Array, ArrayT, FormulaLike, Indices, Numbers, Parameter, ScalarT

NAMES = (
    "pairwise", "kernel_matrix", "kernel_product", "kernel_reduce", "knn", "kernel_gradient",
    "kernel_agop", "gradient_field", "cdist",
)
KRON = ("matmul", "kron_matmul")
# What mercer.workspace_size serves.
WITH_WORKSPACE = (
    "pairwise", "kernel_matrix", "kernel_product", "kernel_reduce", "knn", "kernel_gradient",
    "kernel_agop", "gradient_field", "cdist", "cho_inverse", "cho_inverse_diagonal", "cho_solve",
    "cholesky", "eigh", "inv_quad_logdet", "lu_factor", "lu_solve", "solve_cholesky", "solve_lu",
    "solve_triangular", "kron.matmul", "kron.kron_matmul",
)
_modules = sys.modules
_REFUSED = _array_likes.REFUSED


def pairwise(
    f: FormulaLike, x: ArrayT, z: ArrayT | None = None, *, out: ArrayT | None = None,
    row: ArrayT | None = None, col: ArrayT | None = None, w: ArrayT | None = None,
    i_offset: int = 0, j_offset: int = 0, workspace: ArrayT | None = None, progress: bool = False,
    device: str | int | None = None, **params: Parameter,
) -> ArrayT:
    """The formula on all pairs of points: out[..., m, n] = f(x[..., m, :], z[..., n, :])."""
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        if device is not None:
            raise NotImplementedError(
                f"pairwise: device= is not offered under torch.compile. Received {device!r}"
            )
        return traced.pairwise(
            f, x, z, out=out, row=row, col=col, w=w, i_offset=i_offset, j_offset=j_offset,
            workspace=workspace, progress=progress, **params,
        )
    try:
        if not params:
            return _mercer.pairwise(
                f, x, z, out, row, col, w, i_offset, j_offset, workspace, progress, device,
            )
        return _mercer.pairwise(
            f, x, z, out, row, col, w, i_offset, j_offset, workspace, progress, device, **params,
        )
    except _REFUSED:
        if _sparse.is_sparse(x, z):
            return _sparse.call("pairwise", locals())
        again = _array_likes.read("pairwise", locals())
        if again is None:
            raise
    return pairwise(**again)


def kernel_matrix(
    f: FormulaLike, x: ArrayT, z: ArrayT | None = None, *, out: ArrayT | None = None,
    row: ArrayT | None = None, col: ArrayT | None = None, w: ArrayT | None = None,
    i_offset: int = 0, j_offset: int = 0, workspace: ArrayT | None = None, progress: bool = False,
    device: str | int | None = None, **params: Parameter,
) -> ArrayT:
    """The kernel matrix out[..., m, n] = f(x_m, z_n); of x with itself when z is None."""
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        if device is not None:
            raise NotImplementedError(
                f"kernel_matrix: device= is not offered under torch.compile. Received {device!r}"
            )
        return traced.kernel_matrix(
            f, x, z, out=out, row=row, col=col, w=w, i_offset=i_offset, j_offset=j_offset,
            workspace=workspace, progress=progress, **params,
        )
    try:
        if not params:
            return _mercer.kernel_matrix(
                f, x, z, out, row, col, w, i_offset, j_offset, workspace, progress, device,
            )
        return _mercer.kernel_matrix(
            f, x, z, out, row, col, w, i_offset, j_offset, workspace, progress, device, **params,
        )
    except _REFUSED:
        if _sparse.is_sparse(x, z):
            return _sparse.call("kernel_matrix", locals())
        again = _array_likes.read("kernel_matrix", locals())
        if again is None:
            raise
    return kernel_matrix(**again)


def kernel_product(
    f: FormulaLike, x: ArrayT, z: ArrayT | None, v: ArrayT, *, out: ArrayT | None = None,
    row: ArrayT | None = None, col: ArrayT | None = None, w: ArrayT | None = None,
    i_offset: int = 0, j_offset: int = 0, workspace: ArrayT | None = None, progress: bool = False,
    device: str | int | None = None, normalize: Literal['softmax', 'sum'] | None = None,
    **params: Parameter,
) -> ArrayT:
    """A kernel matrix times v without the matrix: out[..., m, e] = sum_n f(x_m, z_n) v[..., n,
    e].
    """
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        if device is not None:
            raise NotImplementedError(
                f"kernel_product: device= is not offered under torch.compile. Received {device!r}"
            )
        return traced.kernel_product(
            f, x, z, v, out=out, row=row, col=col, w=w, i_offset=i_offset, j_offset=j_offset,
            workspace=workspace, progress=progress, normalize=normalize, **params,
        )
    try:
        if not params:
            return _mercer.kernel_product(
                f, x, z, v, out, row, col, w, i_offset, j_offset, workspace, progress, device,
                normalize,
            )
        if "ranges" in params:
            return _array_likes.by_ranges("kernel_product", locals())
        return _mercer.kernel_product(
            f, x, z, v, out, row, col, w, i_offset, j_offset, workspace, progress, device,
            normalize, **params,
        )
    except _REFUSED:
        if _sparse.is_sparse(x, z):
            return _sparse.call("kernel_product", locals())
        again = _array_likes.read("kernel_product", locals())
        if again is None:
            raise
    return kernel_product(**again)


@overload
def kernel_reduce(
    f: FormulaLike, x: Numbers[ScalarT], z: Numbers[ScalarT] | None,
    reduce: Literal['argmax', 'argmin'], *, out: Indices | None = None,
    row: Numbers[ScalarT] | None = None, col: Numbers[ScalarT] | None = None,
    w: Numbers[ScalarT] | None = None, i_offset: int = 0, j_offset: int = 0,
    workspace: Numbers[ScalarT] | None = None, progress: bool = False,
    device: str | int | None = None, **params: Parameter,
) -> Indices: ...


@overload
def kernel_reduce(
    f: FormulaLike, x: ArrayT, z: ArrayT | None,
    reduce: Literal['sum', 'max', 'min', 'argmax', 'argmin', 'logsumexp'], *,
    out: ArrayT | None = None, row: ArrayT | None = None, col: ArrayT | None = None,
    w: ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: ArrayT | None = None,
    progress: bool = False, device: str | int | None = None, **params: Parameter,
) -> ArrayT: ...


def kernel_reduce(
    f: FormulaLike, x: ArrayT, z: ArrayT | None,
    reduce: Literal['sum', 'max', 'min', 'argmax', 'argmin', 'logsumexp'], *,
    out: ArrayT | None = None, row: ArrayT | None = None, col: ArrayT | None = None,
    w: ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: ArrayT | None = None,
    progress: bool = False, device: str | int | None = None, **params: Parameter,
) -> ArrayT:
    """A reduction over the points of z: out[..., m] = reduce over n of f(x_m, z_n)."""
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        if device is not None:
            raise NotImplementedError(
                f"kernel_reduce: device= is not offered under torch.compile. Received {device!r}"
            )
        return traced.kernel_reduce(
            f, x, z, reduce, out=out, row=row, col=col, w=w, i_offset=i_offset, j_offset=j_offset,
            workspace=workspace, progress=progress, **params,
        )
    try:
        if not params:
            return _mercer.kernel_reduce(
                f, x, z, reduce, out, row, col, w, i_offset, j_offset, workspace, progress, device,
            )
        if "ranges" in params:
            return _array_likes.by_ranges("kernel_reduce", locals())
        return _mercer.kernel_reduce(
            f, x, z, reduce, out, row, col, w, i_offset, j_offset, workspace, progress, device,
            **params,
        )
    except _REFUSED:
        if _sparse.is_sparse(x, z):
            return _sparse.call("kernel_reduce", locals())
        again = _array_likes.read("kernel_reduce", locals())
        if again is None:
            raise
    return kernel_reduce(**again)


@overload
def knn(
    f: FormulaLike, x: Numbers[ScalarT], z: Numbers[ScalarT] | None, k: int, *,
    out: tuple[Numbers[ScalarT], Indices] | None = None, row: Numbers[ScalarT] | None = None,
    col: Numbers[ScalarT] | None = None, w: Numbers[ScalarT] | None = None, i_offset: int = 0,
    j_offset: int = 0, workspace: Numbers[ScalarT] | None = None, progress: bool = False,
    device: str | int | None = None, **params: Parameter,
) -> tuple[Numbers[ScalarT], Indices]: ...


@overload
def knn(
    f: FormulaLike, x: ArrayT, z: ArrayT | None, k: int, *,
    out: tuple[ArrayT, ArrayT] | None = None, row: ArrayT | None = None, col: ArrayT | None = None,
    w: ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: ArrayT | None = None,
    progress: bool = False, device: str | int | None = None, **params: Parameter,
) -> tuple[ArrayT, ArrayT]: ...


def knn(
    f: FormulaLike, x: ArrayT, z: ArrayT | None, k: int, *,
    out: tuple[ArrayT, ArrayT] | None = None, row: ArrayT | None = None, col: ArrayT | None = None,
    w: ArrayT | None = None, i_offset: int = 0, j_offset: int = 0, workspace: ArrayT | None = None,
    progress: bool = False, device: str | int | None = None, **params: Parameter,
) -> tuple[ArrayT, ArrayT]:
    """The k nearest points: (values, indices), both [..., M, k], of the k smallest f(x_m, z_n)
    over n.
    """
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        if device is not None:
            raise NotImplementedError(
                f"knn: device= is not offered under torch.compile. Received {device!r}"
            )
        return traced.knn(
            f, x, z, k, out=out, row=row, col=col, w=w, i_offset=i_offset, j_offset=j_offset,
            workspace=workspace, progress=progress, **params,
        )
    try:
        if not params:
            return _mercer.knn(
                f, x, z, k, out, row, col, w, i_offset, j_offset, workspace, progress, device,
            )
        if "ranges" in params:
            return _array_likes.by_ranges("knn", locals())
        return _mercer.knn(
            f, x, z, k, out, row, col, w, i_offset, j_offset, workspace, progress, device, **params,
        )
    except _REFUSED:
        if _sparse.is_sparse(x, z):
            return _sparse.call("knn", locals())
        again = _array_likes.read("knn", locals())
        if again is None:
            raise
    return knn(**again)


def kernel_gradient(
    f: FormulaLike, x: ArrayT, z: ArrayT | None, coef: ArrayT, *, out: ArrayT | None = None,
    row: ArrayT | None = None, col: ArrayT | None = None, w: ArrayT | None = None,
    i_offset: int = 0, j_offset: int = 0, workspace: ArrayT | None = None, progress: bool = False,
    device: str | int | None = None, **params: Parameter,
) -> ArrayT:
    """A weighted sum of gradients: out[..., o, m, k] = sum_n coef[..., o, n] d f(x_m, z_n) / d
    x[m, k].
    """
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        if device is not None:
            raise NotImplementedError(
                f"kernel_gradient: device= is not offered under torch.compile. Received {device!r}"
            )
        return traced.kernel_gradient(
            f, x, z, coef, out=out, row=row, col=col, w=w, i_offset=i_offset, j_offset=j_offset,
            workspace=workspace, progress=progress, **params,
        )
    try:
        if not params:
            return _mercer.kernel_gradient(
                f, x, z, coef, out, row, col, w, i_offset, j_offset, workspace, progress, device,
            )
        return _mercer.kernel_gradient(
            f, x, z, coef, out, row, col, w, i_offset, j_offset, workspace, progress, device,
            **params,
        )
    except _REFUSED:
        if _array_likes.is_grouped(locals()):
            return _array_likes.gradient_of_groups(locals())
        again = _array_likes.read("kernel_gradient", locals())
        if again is None:
            raise
    return kernel_gradient(**again)


def kernel_agop(
    f: FormulaLike, x: ArrayT, z: ArrayT | None, coef: ArrayT, *, out: ArrayT | None = None,
    row: ArrayT | None = None, col: ArrayT | None = None, w: ArrayT | None = None,
    i_offset: int = 0, j_offset: int = 0, workspace: ArrayT | None = None, progress: bool = False,
    **params: Parameter,
) -> ArrayT:
    """The gradients' outer products, added up: out[..., k, l] = sum_om g[..., o, m, k] g[..., o,
    m, l].
    """
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        return traced.kernel_agop(
            f, x, z, coef, out=out, row=row, col=col, w=w, i_offset=i_offset, j_offset=j_offset,
            workspace=workspace, progress=progress, **params,
        )
    try:
        if not params:
            return _mercer.kernel_agop(
                f, x, z, coef, out, row, col, w, i_offset, j_offset, workspace, progress,
            )
        return _mercer.kernel_agop(
            f, x, z, coef, out, row, col, w, i_offset, j_offset, workspace, progress, **params,
        )
    except _REFUSED:
        again = _array_likes.read("kernel_agop", locals())
        if again is None:
            raise
    return kernel_agop(**again)


def gradient_field(
    phi: FormulaLike, x: ArrayT, z: ArrayT | None, amplitude: ArrayT | None, coef: ArrayT | None, *,
    combine: str | None = None, out: ArrayT | None = None, row: ArrayT | None = None,
    col: ArrayT | None = None, w: ArrayT | None = None, i_offset: int = 0, j_offset: int = 0,
    workspace: ArrayT | None = None, progress: bool = False, **params: Parameter,
) -> ArrayT:
    """A field: out[..., o, m, k] = sum_n coef[..., o, n] amplitude[..., m, n] phi(x[m, k], z[n,
    k]).
    """
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        return traced.gradient_field(
            phi, x, z, amplitude, coef, combine=combine, out=out, row=row, col=col, w=w,
            i_offset=i_offset, j_offset=j_offset, workspace=workspace, progress=progress, **params,
        )
    try:
        if not params:
            return _mercer.gradient_field(
                phi, x, z, amplitude, coef, combine, out, row, col, w, i_offset, j_offset,
                workspace, progress,
            )
        return _mercer.gradient_field(
            phi, x, z, amplitude, coef, combine, out, row, col, w, i_offset, j_offset, workspace,
            progress, **params,
        )
    except _REFUSED:
        again = _array_likes.read("gradient_field", locals())
        if again is None:
            raise
    return gradient_field(**again)


def cdist(
    x1: ArrayT, x2: ArrayT | None, p: float | None = None, *, metric: FormulaLike | None = None,
    w: ArrayT | None = None, out: ArrayT | None = None, workspace: ArrayT | None = None,
    progress: bool = False, device: str | int | None = None, **params: Parameter,
) -> ArrayT:
    """Distances of all pairs, of PyTorch's norms and SciPy's metrics: out[..., m, n] = d(x1_m,
    x2_n).
    """
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        if device is not None:
            raise NotImplementedError(
                f"cdist: device= is not offered under torch.compile. Received {device!r}"
            )
        return traced.cdist(
            x1, x2, p, metric=metric, w=w, out=out, workspace=workspace, progress=progress,
            **params,
        )
    try:
        if not params:
            return _mercer.cdist(x1, x2, p, metric, w, out, workspace, progress, device)
        return _mercer.cdist(x1, x2, p, metric, w, out, workspace, progress, device, **params)
    except _REFUSED:
        if _sparse.is_sparse(x1, x2):
            return _sparse.call("cdist", locals())
        again = _array_likes.read("cdist", locals())
        if again is None:
            raise
    return cdist(**again)


def matmul(
    x: ArrayT, factors: Sequence[ArrayT], *, alpha: float | Array = 1, beta: float | Array = 0,
    y: ArrayT | None = None, out: ArrayT | None = None, transpose_x: bool = False,
    transpose_factors: bool | Sequence[bool] = False, workspace: ArrayT | None = None,
    progress: bool = False,
) -> ArrayT:
    """alpha op(x) (op(F1) (x) ... (x) op(FN)) + beta y; the Kronecker product is never stored."""
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        return traced.matmul(
            x, factors, alpha=alpha, beta=beta, y=y, out=out, transpose_x=transpose_x,
            transpose_factors=transpose_factors, workspace=workspace, progress=progress,
        )
    return _mercer.matmul(
        x, factors, alpha=alpha, beta=beta, y=y, out=out, transpose_x=transpose_x,
        transpose_factors=transpose_factors, workspace=workspace, progress=progress,
    )


def kron_matmul(
    factors: Sequence[ArrayT], x: ArrayT, *, alpha: float | Array = 1, beta: float | Array = 0,
    y: ArrayT | None = None, out: ArrayT | None = None, transpose_x: bool = False,
    transpose_factors: bool | Sequence[bool] = False, workspace: ArrayT | None = None,
    progress: bool = False,
) -> ArrayT:
    """alpha (op(F1) (x) ... (x) op(FN)) op(x) + beta y; the Kronecker product is never stored."""
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        return traced.kron_matmul(
            factors, x, alpha=alpha, beta=beta, y=y, out=out, transpose_x=transpose_x,
            transpose_factors=transpose_factors, workspace=workspace, progress=progress,
        )
    return _mercer.kron_matmul(
        factors, x, alpha=alpha, beta=beta, y=y, out=out, transpose_x=transpose_x,
        transpose_factors=transpose_factors, workspace=workspace, progress=progress,
    )


def _describe(module: str, *verbs: Any) -> None:
    for verb in verbs:
        verb.__module__ = module
        verb.__doc__ = getattr(_mercer, verb.__name__).__nb_signature__[0][1]


_describe(
    "mercer", pairwise, kernel_matrix, kernel_product, kernel_reduce, knn, kernel_gradient,
    kernel_agop, gradient_field, cdist,
)
_describe("mercer.kron", matmul, kron_matmul)
