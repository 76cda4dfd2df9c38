"""ScaLAPACK and BLACS on the ranks of one communicator, by ctypes.

Shards are NumPy arrays by columns. Every function is called by all ranks at once.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np

from mercer import _mercer
from mercer.linalg.distributed import _libraries
from mercer.linalg.distributed._layout import Layout

__all__ = [
    "Context",
    "add_transposed",
    "blas_threads",
    "eigenpairs",
    "eigenvalues",
    "factor_lu",
    "potrf",
    "redistribute",
]

_LARGEST = 2**31 - 1
_NAMES = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}


class Context:
    """A grid of BLACS over ranks of a communicator: ``ranks[p, q]`` is the rank at (p, q)."""

    def __init__(self, comm: Any, ranks: np.ndarray) -> None:
        library, mpi = _libraries.scalapack(), _libraries.mpi()
        handle = ctypes.c_void_p.from_address(mpi._addressof(comm))
        library.Csys2blacs_handle.argtypes = [ctypes.c_void_p]
        self._system = library.Csys2blacs_handle(handle)
        number = ctypes.c_int(self._system)
        places = np.asfortranarray(ranks, dtype=np.int32)
        p, q = ranks.shape
        library.Cblacs_gridmap(ctypes.byref(number), _pointer(places), p, p, q)
        self.member = comm.Get_rank() in ranks
        self.number = number.value if self.member else -1

    def descriptor(self, layout: Layout, lead: int) -> np.ndarray:
        return np.array(
            [1, self.number, *layout.shape, *layout.block, *layout.source, max(1, lead)], np.int32
        )

    def close(self) -> None:
        library = _libraries.scalapack()
        if self.member:
            library.Cblacs_gridexit(self.number)
        library.Cfree_blacs_system_handle(self._system)


def potrf(context: Context, layout: Layout, a: np.ndarray, b: np.ndarray, wide: Layout) -> int:
    """b becomes a^-1 b by Cholesky of the lower triangle; info of pdpotrf."""
    where = context.descriptor(layout, a.shape[0])
    info = _call("potrf", a.dtype, b"L", layout.shape[0], a, 1, 1, where)
    if info == 0:
        to = context.descriptor(wide, b.shape[0])
        n, k = wide.shape
        info = _call("potrs", a.dtype, b"L", n, k, a, 1, 1, where, b, 1, 1, to)
    return info


def factor_lu(context: Context, layout: Layout, a: np.ndarray, b: np.ndarray, wide: Layout) -> int:
    """b becomes a^-1 b by LU with partial pivoting; info of pdgetrf."""
    where = context.descriptor(layout, a.shape[0])
    pivots = np.zeros(a.shape[0] + layout.block[0], np.int32)
    n, k = wide.shape
    info = _call("getrf", a.dtype, n, n, a, 1, 1, where, pivots)
    if info == 0:
        to = context.descriptor(wide, b.shape[0])
        info = _call("getrs", a.dtype, b"N", n, k, a, 1, 1, where, pivots, b, 1, 1, to)
    return info


def eigenpairs(
    context: Context, layout: Layout, a: np.ndarray
) -> tuple[int, np.ndarray, np.ndarray]:
    """info of pdsyevd, all eigenvalues, and the shard of the eigenvectors; a is lost."""
    n = layout.shape[0]
    w, v = np.empty(n, a.dtype), _empty(a.shape, a.dtype)
    where = context.descriptor(layout, a.shape[0])
    call = (a.dtype, b"V", b"L", n, a, 1, 1, where, w, v, 1, 1, where)
    return _with_workspace("syevd", _more(layout, a), *call), w, v


def eigenvalues(
    context: Context, layout: Layout, a: np.ndarray, first: int, last: int, vectors: bool
) -> tuple[int, np.ndarray, np.ndarray]:
    """info of pdsyevr, the eigenvalues from first to last, and the shard of their vectors."""
    n, dtype = layout.shape[0], a.dtype
    w, v = np.empty(n, dtype), _empty(a.shape, dtype)
    where = context.descriptor(layout, a.shape[0])
    counts = [np.zeros(1, np.int32), np.zeros(1, np.int32)]
    job, real = (b"V" if vectors else b"N"), np.zeros(1, dtype)
    call = (dtype, job, b"I", b"L", n, a, 1, 1, where, real, real, first + 1, last + 1)
    info = _with_workspace("syevr", _more(layout, a), *call, *counts, w, v, 1, 1, where)
    expected = last - first + 1
    if info == 0 and (counts[0][0] != expected or (vectors and counts[1][0] != expected)):
        info = int(expected - min(counts[0][0], counts[1][0] if vectors else _LARGEST))
    return info, w[:expected], v


def redistribute(
    union: Context,
    source: tuple[Context, Layout, np.ndarray],
    target: tuple[Context, Layout, np.ndarray],
    shape: tuple[int, int],
    first: int = 0,
) -> None:
    """Copies columns from ``first`` on of the source to the target; union has all their ranks."""
    parts = []
    for at, (context, layout, shard) in ((first, source), (0, target)):
        parts += [shard, 1, at + 1, context.descriptor(layout, shard.shape[0])]
    m, n = shape
    routine = getattr(_libraries.scalapack(), f"p{_NAMES[source[2].dtype]}gemr2d_")
    _invoke(routine, [m, n, *parts, union.number])


def add_transposed(context: Context, layout: Layout, a: np.ndarray, c: np.ndarray) -> None:
    """c += a^T."""
    where, one = context.descriptor(layout, a.shape[0]), np.ones(1, a.dtype)
    n = layout.shape[0]
    routine = getattr(_libraries.scalapack(), f"p{_NAMES[a.dtype]}tran_")
    _invoke(routine, [n, n, one, a, 1, 1, where, one, c, 1, 1, where])


@contextlib.contextmanager
def blas_threads() -> Iterator[None]:
    """Mercer's number of threads for the BLAS below ScaLAPACK."""
    library = _libraries.openblas()
    if library is None:
        yield
        return
    before = library.openblas_get_num_threads()
    library.openblas_set_num_threads(_mercer.get_num_threads())
    try:
        yield
    finally:
        library.openblas_set_num_threads(before)


def check_counts(layout: Layout, rank: tuple[int, int]) -> None:
    """ScaLAPACK counts the elements of a shard in 32 bits."""
    rows, cols = layout.local_shape(rank)
    if rows * cols > _LARGEST or max(layout.shape) > _LARGEST:
        raise ValueError(
            f"a rank of ScaLAPACK holds at most {_LARGEST} elements. Received a matrix "
            f"{layout.shape} of which one holds {rows * cols}; use more ranks"
        )


def _empty(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    return np.empty(shape, dtype, order="F")


def _call(name: str, dtype: np.dtype, *arguments: Any) -> int:
    """p?NAME(*arguments, info), with blas_threads; info."""
    info = ctypes.c_int()
    routine = getattr(_libraries.scalapack(), f"p{_NAMES[dtype]}{name}_")
    with blas_threads():
        _invoke(routine, [*arguments, info])
    return info.value


def _more(layout: Layout, a: np.ndarray) -> int:
    """What the eigensolvers need beyond the scratch memory they ask for, where blocks are large.

    Without it pdlasrt and pdormtr refuse their shares and return at once: eigenvectors stay
    unsorted, or those of the tridiagonal matrix, and info is 0.
    """
    nb, (rows, cols) = layout.block[0], a.shape
    return rows * (nb + cols) + 3 * layout.shape[0] + 2 * nb * (rows + cols + 2 * nb)


def _with_workspace(name: str, more: int, dtype: np.dtype, *arguments: Any) -> int:
    """_call with (work, lwork, iwork, liwork), of the sizes that a first call says, and more."""
    work, iwork = np.zeros(8, dtype), np.zeros(8, np.int32)
    info = _call(name, dtype, *arguments, work, -1, iwork, -1)
    if info != 0:
        return info
    # Sizes are said as numbers of the dtype, of which float32 rounds large ones.
    size, whole = int(work[0] * (1 + 2 * np.finfo(dtype).eps)) + 64 + more, int(iwork[0]) + 64
    if size > _LARGEST:
        raise ValueError(f"p{name} counts its scratch memory in 32 bits. Use more ranks")
    work, iwork = np.empty(size, dtype), np.empty(whole, np.int32)
    return _call(name, dtype, *arguments, work, size, iwork, whole)


def _invoke(routine: Any, arguments: list[Any]) -> None:
    """Fortran's way: everything by its address, and in the end the lengths of the texts."""
    passed: list[Any] = []
    lengths = []
    for value in arguments:
        if isinstance(value, bytes):
            passed.append(ctypes.c_char_p(value))
            lengths.append(ctypes.c_size_t(len(value)))
        elif isinstance(value, np.ndarray):
            passed.append(_pointer(value))
        else:
            number = value if isinstance(value, ctypes.c_int) else ctypes.c_int(value)
            passed.append(ctypes.byref(number))
    routine.restype = None
    routine(*passed, *lengths)


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
