"""Kernels as functions: what scikit-learn, SciPy and others call for a matrix or a pair of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mercer import _array_likes, _mercer, _verbs

if TYPE_CHECKING:
    import mercer._types  # the stub has annotations as they are written here


def _call(
    self: Any, x: mercer._types.ArrayT, z: mercer._types.ArrayT | None = None, /,
    **params: mercer._types.Parameter,
) -> mercer._types.ArrayT:  # fmt: skip
    """The kernel matrix k(x), k(x, z), or the number k(row, other) of two points.

    x: [..., M, K]; z: [..., N, K], or None for x itself: the matrix of ``mercer.kernel_matrix``,
    whose parameters and options go by name. Two points [K] give a number of the computing dtype.
    Lists and tables are read as the verbs read them. Raises ValueError for one point alone, or
    next to a set.

    >>> k = mc.gauss(bandwidth=2.0)
    >>> SVC(kernel=k).fit(rows, labels)
    """
    rows, others = _row(x), _row(z)
    options: dict[str, Any] = params
    if getattr(rows, "ndim", 2) != 1 and getattr(others, "ndim", 2) != 1:
        return _verbs.kernel_matrix(self, rows, others, **options)
    if getattr(rows, "ndim", 2) != getattr(others, "ndim", 2):
        raise ValueError(
            "a kernel is called with sets of points [..., M, K], or with two points [K]. Received "
            f"{' and '.join(str(getattr(a, 'shape', a)) for a in (rows, others))}"
        )
    return _verbs.kernel_matrix(self, rows[None], others[None], **options)[0, 0]


def _row(values: Any) -> Any:
    """A list, or a Series, as an array; what has axes as it is."""
    is_read = isinstance(values, (list, tuple)) or _array_likes.is_table(values)
    return _array_likes.array(values) if is_read else values


_call.__name__, _call.__qualname__ = "__call__", "Kernel.__call__"
_call.__module__ = _mercer.Kernel.__module__
_mercer.Kernel.__call__ = _call  # type: ignore[method-assign]
