"""Forward derivatives of mercer.linalg, for PyTorch and JAX: how results move when operands move.

Written in `lib`, the functions that both have: matmul, triangular, tril, triu, eye, diagonal, cut,
join, take, argsort and quotient. Every rule is made of functions that have rules themselves, so
derivatives of any order follow. A function that reads one triangle of a
symmetric matrix moves with the symmetric part of its tangent, as in torch.linalg.
"""

from __future__ import annotations

from typing import Any


def symmetric(matrix: Any) -> Any:
    return (matrix + matrix.mT) / 2


def half_tril(lib: Any, matrix: Any) -> Any:
    """The lower triangle with half of the diagonal."""
    return (lib.tril(matrix, 0) + lib.tril(matrix, -1)) / 2


def cholesky(lib: Any, factor: Any, da: Any, lower: bool) -> Any:
    side = factor if lower else factor.mT
    inner = lib.triangular(side, symmetric(da))
    inner = lib.triangular(side, inner.mT)
    moved = lib.matmul(side, half_tril(lib, inner))
    return moved if lower else moved.mT


def of_factor(lib: Any, factor: Any, moved: Any, lower: bool) -> Any:
    """How a = L L' moves with its factor."""
    side, ds = (lib.tril(factor, 0), lib.tril(moved, 0)) if lower else (
        lib.triu(factor, 0).mT, lib.triu(moved, 0).mT)  # fmt: skip
    product = lib.matmul(ds, side.mT)
    return product + product.mT


def lu(lib: Any, packed: Any, order: Any, da: Any) -> Any:
    """The derivative of the packed factors; a[order] = L U."""
    rows, columns = packed.shape[-2:]
    n = min(rows, columns)
    da = lib.take(da, order)
    square = lib.cut(lib.cut(packed, 0, n, -1), 0, n, -2)
    # F = L^-1 da U^-1 of the leading square.
    inner = lib.triangular(square, lib.cut(da, 0, n, -2), unit=True)
    both = _behind(lib, square, lib.cut(inner, 0, n, -1))
    below, above = lib.tril(both, -1), lib.triu(both, 0)
    top = lib.matmul(_unit(lib, square), below) + lib.matmul(above, lib.triu(square, 0))
    if columns > n:
        rest = lib.matmul(below, lib.cut(packed, n, columns, -1))
        return lib.join(top, lib.cut(inner, n, columns, -1) - rest, -1)
    if rows > n:
        rest = _behind(lib, square, lib.cut(da, n, rows, -2))
        return lib.join(top, rest - lib.matmul(lib.cut(packed, n, rows, -2), above), -2)
    return top


def _behind(lib: Any, upper: Any, b: Any) -> Any:
    """b U^-1."""
    return lib.triangular(upper.mT, b.mT).mT


def _unit(lib: Any, packed: Any) -> Any:
    return lib.tril(packed, -1) + lib.eye(packed)


def of_lu(lib: Any, packed: Any, order: Any, moved: Any) -> Any:
    """How a square a moves with its packed factors."""
    rows = lib.matmul(lib.tril(moved, -1), lib.triu(packed, 0))
    rows = rows + lib.matmul(_unit(lib, packed), lib.triu(moved, 0))
    return lib.take(rows, lib.argsort(order))


def eigh(lib: Any, w: Any, v: Any, da: Any) -> tuple[Any, Any]:
    inner = lib.matmul(v.mT, lib.matmul(symmetric(da), v))
    return lib.diagonal(inner), lib.matmul(v, by_gaps(lib, inner, w))


def by_gaps(lib: Any, matrix: Any, w: Any) -> Any:
    """matrix[i, j] / (w[j] - w[i]), without its diagonal."""
    eye = lib.eye(matrix)
    return lib.quotient(matrix * (1 - eye), w[..., None, :] - w[..., :, None] + eye)
