"""solve_cholesky, solve_lu and eigh of matrices in shards: checks on all ranks, then the engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from mercer import linalg
from mercer.errors import LinAlgError
from mercer.linalg.distributed import _elpa, _probe, _scalapack
from mercer.linalg.distributed._board import digest
from mercer.linalg.distributed._matrix import Matrix, empty_shards, host, moved, numpy_dtype

__all__ = ["eigh", "solve_cholesky", "solve_lu"]


def solve_cholesky(
    a: Matrix, b: Any, *, overwrite_a: bool = False, overwrite_b: bool = False
) -> Any:
    """Solves a x = b for symmetric positive definite a ``[n, n]``, whose lower triangle is read.

    b: a Matrix ``[n, k]`` of the grid and the blocks of a, and so is x; or an array ``[n, k]`` or
    ``[n]``, the same on every rank, and so is x. overwrite_a: a becomes scratch memory.
    overwrite_b: x takes the place of a Matrix b. NaN in b stays in its column.

    Raises on every rank: ValueError for shapes, grids and blocks that do not fit; LinAlgError where
    a holds NaN or an infinity, and with the order of the leading minor where a is not positive
    definite.
    """
    return _solve("solve_cholesky", a, b, overwrite_a, overwrite_b)


def solve_lu(a: Matrix, b: Any, *, overwrite_a: bool = False, overwrite_b: bool = False) -> Any:
    """Solves a x = b for any a ``[n, n]`` that is not singular, by LU with partial pivoting.

    Arguments, result and errors: those of solve_cholesky; all of a is read. LinAlgError names the
    pivot, counted from 1, that is zero.
    """
    return _solve("solve_lu", a, b, overwrite_a, overwrite_b)


def eigh(
    a: Matrix,
    *,
    subset_by_index: tuple[int, int] | None = None,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
) -> Any:
    """Eigenvalues, ascending, and eigenvectors of a symmetric a ``[n, n]``: (w, v).

    The lower triangle of a is read. w: ``[n]`` on every rank; v: a Matrix ``[n, n]`` of orthonormal
    columns, a v[:, j] = w[j] v[:, j]. subset_by_index: (first, last) of the eigenvalues, counted
    from 0, both included; w and v have so many columns. eigvals_only: w alone. overwrite_a: a
    becomes scratch memory, and the eigenvectors are not checked; otherwise products of a and v with
    random vectors are compared, to the precision of LAPACK.

    Raises on every rank ValueError for a broken rule; LinAlgError where a holds NaN or an infinity,
    where eigenvalues do not converge, and where the eigenvectors fail that check.
    """
    n = a.shape[0] if isinstance(a, Matrix) else 0

    def check() -> dict[str, Any]:
        facts = _check_square("eigh", a)
        if subset_by_index is not None:
            first, last = subset_by_index
            if not 0 <= first <= last < n:
                raise ValueError(
                    "eigh: subset_by_index must be (first, last), 0 <= first <= last < "
                    f"{n}. Received {subset_by_index}."
                )
        return {**facts, "subset_by_index": subset_by_index, "eigvals_only": bool(eigvals_only),
                "overwrite_a": bool(overwrite_a)}  # fmt: skip

    _board(a).agree("eigh", check)
    _board(a).agree_finite("eigh", _probe.finite_lower(a))
    first, last = (0, n - 1) if subset_by_index is None else map(int, subset_by_index)
    v: Matrix | None
    if n == 0:
        w, v = np.empty(0, a.dtype), Matrix(a.grid, a.layout, _like(a), a._torch)
    elif n <= a.block[0]:
        w, v = _eigh_alone(a, first, last)
    else:
        w, v = _eigh_shared(a, first, last, eigvals_only, overwrite_a)
    if v is not None and not eigvals_only and not overwrite_a and n > 0:
        _probe.looked_at(a, w, v)
    values = _values(w, a._torch)
    return values if eigvals_only else (values, v)


def _solve(verb: str, a: Matrix, b: Any, overwrite_a: bool, overwrite_b: bool) -> Any:
    def check() -> dict[str, Any]:
        facts = _check_square(verb, a)
        return {**facts, **_check_right(verb, a, b), "overwrite_a": bool(overwrite_a)}

    board = _board(a)
    board.agree(verb, check)
    finite = _probe.finite_lower(a) if verb == "solve_cholesky" else _all_finite(a)
    board.agree_finite(verb, finite)
    everywhere = not isinstance(b, Matrix)
    x = _dealt(a, b) if everywhere else b if overwrite_b else b.copy()
    if min(x.shape) > 0:
        checked = _probe.SolutionCheck(verb, a, x) if a.grid.devices is not None else None
        work = a if overwrite_a and checked is None else a.copy()
        info = _factor_and_solve(verb, work, x)
        _raise_for(verb, max(board.exchange(info), key=lambda i: (i != 0, -i)))
        if checked is not None:
            checked.of(x)
    if not everywhere:
        return x
    whole = x.everywhere()
    return whole[:, 0] if b.ndim == 1 else whole


def _factor_and_solve(verb: str, a: Matrix, x: Matrix) -> int:
    """x becomes a^-1 x; info."""
    if a.grid.devices is not None:
        return a.grid.engine().solve(verb, a, x)
    work = {"solve_cholesky": _scalapack.potrf, "solve_lu": _scalapack.factor_lu}[verb]
    return work(a.grid.context(), a.layout, a.shards[0], x.shards[0], x.layout)


def _raise_for(verb: str, info: int) -> None:
    if info == 0:
        return
    if info < 0:
        raise RuntimeError(f"{verb}: the library refused its argument {-info}")
    if verb == "solve_cholesky":
        raise LinAlgError(
            f"{verb}: a must be positive definite. Received one whose leading minor of order "
            f"{info} is not."
        )
    if verb == "solve_lu":
        raise LinAlgError(
            f"{verb}: a must not be singular. Received one whose pivot {info} is zero."
        )
    raise LinAlgError(f"{verb}: eigenvalues did not converge. Received info {info}.")


def _eigh_shared(
    a: Matrix, first: int, last: int, values_only: bool, overwrite_a: bool
) -> tuple[np.ndarray, Matrix | None]:
    """Eigenvalues, and eigenvectors where they are wanted, by the library of the grid."""
    work = a if overwrite_a else a.copy()
    n = a.shape[0]
    if a.grid.devices is not None:
        info, w, shards = a.grid.engine().eigh(work)
    elif values_only:
        info, w, _ = _scalapack.eigenvalues(
            a.grid.context(), a.layout, work.shards[0], first, last, False
        )
        shards = None
    else:
        info, w, shard = _eigenpairs(work, last + 1)
        shards = [shard]
    _raise_for("eigh", max(a.grid.board.exchange(info), key=abs))
    if shards is None:
        return w, None
    v = Matrix(a.grid, a.layout, shards, a._torch)
    if (first, last) != (0, n - 1):
        layout = a.grid.layout((n, last - first + 1), a.block)
        v = Matrix(a.grid, layout, _put(a, moved(v, layout, first)), a._torch)
    return w[first : last + 1], v


def _eigenpairs(a: Matrix, count: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Eigenpairs by ELPA, which need not find more than the first vectors, or by ScaLAPACK."""
    grid, shard = a.grid, a.shards[0]
    if _elpa.serves(a.layout, a.dtype):
        found = _elpa.eigenpairs(
            grid.board.comm, grid.context(), a.layout, grid.places[0], shard, count
        )
        if not any(grid.board.exchange(found[0])):
            return found
    return _scalapack.eigenpairs(grid.context(), a.layout, shard)


def _eigh_alone(a: Matrix, first: int, last: int) -> tuple[np.ndarray, Matrix]:
    """Eigenpairs by LAPACK on the rank that holds the one block that there is."""
    n, k = a.shape[0], last - first + 1
    layout = a.grid.layout((n, k), a.block)
    shards = empty_shards(a.grid, layout, a.dtype)
    w, error = np.zeros(k, a.dtype), None
    for at, shard in enumerate(a.shards):
        if 0 not in shard.shape:
            try:
                values, shards[at] = linalg.eigh(shard, subset_by_index=(first, last))
                w = host(values)
            except LinAlgError as mine:
                error = mine

    def check() -> dict[str, Any]:
        if error is not None:
            raise error
        return {}

    a.grid.board.agree("eigh", check)
    return a.grid.board.total(w), Matrix(a.grid, layout, shards, a._torch)


def _check_square(verb: str, a: Any) -> dict[str, Any]:
    if not isinstance(a, Matrix):
        raise TypeError(f"{verb}: a must be a Matrix. Received {type(a).__name__}")
    if a.shape[0] != a.shape[1]:
        raise ValueError(f"{verb}: a must be [n, n]. Received {a.shape}")
    if a.grid.devices is not None:
        a.grid.engine()
    return {"shape": a.shape, "block": a.block, "dtype": str(a.dtype)}


def _check_right(verb: str, a: Matrix, b: Any) -> dict[str, Any]:
    if not hasattr(b, "shape"):
        raise TypeError(f"{verb}: b must be a Matrix or an array. Received {type(b).__name__}")
    shape, dtype = tuple(b.shape), numpy_dtype(b)
    if dtype != a.dtype:
        raise ValueError(f"{verb}: a and b must have one dtype. Received {a.dtype} and {dtype}")
    if len(shape) not in (1, 2) or shape[0] != a.shape[0]:
        raise ValueError(f"{verb}: b must be [{a.shape[0]}, k]. Received {shape}")
    if not isinstance(b, Matrix):
        return {"b": digest(b)}
    if b.grid is not a.grid:
        raise ValueError(f"{verb}: a and b must be on one grid. Received {a.grid} and {b.grid}")
    if b.block != a.block:
        raise ValueError(f"{verb}: a and b must have one block. Received {a.block} and {b.block}")
    return {"shape of b": shape}


def _board(a: Any) -> Any:
    """The board of a; what is no Matrix has none, and its rank speaks for itself."""
    from mercer.linalg.distributed._board import Board

    return a.grid.board if isinstance(a, Matrix) else Board()


def _dealt(a: Matrix, b: Any) -> Matrix:
    """An array that every rank has, as a Matrix."""
    values = host(b)
    values = values[:, None] if values.ndim == 1 else values
    layout = a.grid.layout(values.shape, a.block)
    parts = [np.asfortranarray(values[np.ix_(*layout.of(place))]) for place in a.grid.places]
    return Matrix(a.grid, layout, _put(a, parts), type(b).__module__.startswith("torch"))


def _put(a: Matrix, parts: list[np.ndarray]) -> list[Any]:
    return parts if a.grid.devices is None else a.grid.engine().upload(parts)


def _like(a: Matrix) -> list[Any]:
    return a.copy().shards


def _all_finite(a: Matrix) -> bool:
    from mercer.linalg.distributed._matrix import is_finite

    return all(is_finite(shard) for shard in a.shards)


def _values(w: np.ndarray, torch: bool) -> Any:
    if not torch:
        return w
    import torch as library

    return library.from_numpy(np.ascontiguousarray(w))
