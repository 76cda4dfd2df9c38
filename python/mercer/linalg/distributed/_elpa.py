"""ELPA's eigenvectors of float64, where it is installed.

In one stage: the second one of Debian's build has no vector kernels, and two stages take three
times as long (3.4 s for 1.1, 1200 rows on one core). That build refuses float32, with
ELPA_ERROR_DURING_COMPUTATION; ScaLAPACK takes it.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from mercer.linalg.distributed import _libraries, _scalapack
from mercer.linalg.distributed._layout import Layout

__all__ = ["eigenpairs", "serves"]

_API, _ONE_STAGE = 20211125, 1


def serves(layout: Layout, dtype: np.dtype) -> bool:
    """Whether it is there, and every rank has two blocks of rows and of columns."""
    spread = layout.block[0] * max(layout.grid)
    return dtype == np.float64 and layout.shape[0] >= 2 * spread and _library() is not None


def eigenpairs(
    comm: Any, context: Any, layout: Layout, place: tuple[int, int], a: np.ndarray, count: int
) -> tuple[int, np.ndarray, np.ndarray]:
    """info, all eigenvalues, and the shard of the eigenvectors of the first ``count``."""
    library = _library()
    whole = _both_triangles(context, layout, place, a)
    w, v = np.empty(layout.shape[0]), np.zeros(a.shape, order="F")
    error = ctypes.c_int()
    handle = library.elpa_allocate(ctypes.byref(error))
    try:
        info = error.value or _set_up(library, handle, {
            b"na": layout.shape[0], b"nev": count, b"nblk": layout.block[0],
            b"local_nrows": a.shape[0], b"local_ncols": a.shape[1],
            b"mpi_comm_parent": comm.py2f(), b"process_row": place[0], b"process_col": place[1],
        })  # fmt: skip
        if info == 0:
            pointers = [ctypes.c_void_p(array.ctypes.data) for array in (whole, w, v)]
            with _scalapack.blas_threads():
                library.elpa_eigenvectors_a_h_a_d(handle, *pointers, ctypes.byref(error))
            info = error.value
    finally:
        library.elpa_deallocate(handle, ctypes.byref(error))
    return info, w, v


@functools.cache
def _library() -> Any:
    library = _libraries.elpa()
    if library is None:
        return None
    handle = ctypes.c_void_p
    library.elpa_allocate.restype = handle
    library.elpa_set_integer.argtypes = [handle, ctypes.c_char_p, ctypes.c_int, handle]
    library.elpa_setup.argtypes = [handle]
    library.elpa_eigenvectors_a_h_a_d.argtypes = [handle] * 5
    library.elpa_deallocate.argtypes = [handle, handle]
    return library if library.elpa_init(_API) == 0 else None


def _set_up(library: Any, handle: Any, values: dict[bytes, int]) -> int:
    error = ctypes.c_int()
    for name, value in values.items():
        library.elpa_set_integer(handle, name, value, ctypes.byref(error))
        if error.value:
            return error.value
    status = library.elpa_setup(handle)
    if status == 0:
        library.elpa_set_integer(handle, b"solver", _ONE_STAGE, ctypes.byref(error))
    return status or error.value


def _both_triangles(
    context: Any, layout: Layout, place: tuple[int, int], a: np.ndarray
) -> np.ndarray:
    """The symmetric matrix of a's lower triangle, in full."""
    rows, cols = layout.of(place)
    below = np.asfortranarray(np.where(rows[:, None] > cols, a, 0))
    whole = np.asfortranarray(np.where(rows[:, None] >= cols, a, 0))
    _scalapack.add_transposed(context, layout, below, whole)
    return whole
