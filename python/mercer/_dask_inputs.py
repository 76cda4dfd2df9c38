"""What mercer.dask takes as points and as values of points, checked before anything is computed.

An array in a file that is given as it is (a memory map, a dataset of HDF5, an array of Zarr) is
divided into blocks here; each task then reads its own block, and none is kept.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.blockwise import Blockwise
from dask.graph_manipulation import clone
from dask.tokenize import normalize_token
from dask.utils import parse_bytes

from mercer import _array_likes
from mercer.errors import DtypeError

__all__ = [
    "block_bytes", "known_points", "like", "read_again", "require_file", "require_rows",
    "split_rows", "values_of",
]  # fmt: skip


def block_bytes() -> int:
    """Dask's own measure of a chunk: ``array.chunk-size``, 128 MiB where nothing is said."""
    return parse_bytes(dask.config.get("array.chunk-size"))


def like(array: da.Array, shape: Sequence[int], dtype: Any) -> Any:
    """Zeros of the library of the array's chunks."""
    return np.zeros_like(array._meta, shape=tuple(shape), dtype=dtype)


class Stored:
    """An array in a file: kind "npy" or "hdf5". A process that gets it by pickle opens the file.

    Kind "view" is any other view of a memory map, which travels as what it holds.
    """

    def __init__(
        self, kind: str, place: tuple[Any, ...], shape: Any, dtype: Any, array: Any = None
    ) -> None:
        self.kind, self.place, self.array = kind, place, array
        self.shape, self.dtype, self.ndim = tuple(shape), np.dtype(dtype), len(shape)
        self.file = None if array is None or kind == "view" else _file_of(place[0])

    def __reduce__(self) -> tuple[Any, ...]:
        held = np.array(self.array) if self.kind == "view" else None
        return Stored, (self.kind, self.place, self.shape, self.dtype, held)

    def __getitem__(self, index: Any) -> Any:
        if self.kind == "npy":
            return np.array(self._map()[index])
        if self.kind == "view":
            require_file("mercer.dask", "the points", self.array)
            return np.array(self.array[index])
        if self.array is None:
            import h5py

            self.array = h5py.File(self.place[0], "r")[self.place[1]]
        return self.array[index]

    def _map(self) -> np.memmap:
        """A map of its own for each block: pages that stay mapped count as a worker's memory."""
        path, offset, order = self.place
        if self.file is not None and self.file != _file_of(path):
            raise ValueError(
                f"mercer.dask: the file of a memory map must stay in its place. Received another "
                f"file at {path}"
            )
        needed, found = offset + math.prod(self.shape) * self.dtype.itemsize, os.path.getsize(path)
        if found < needed:
            raise _shrunk("mercer.dask", path, needed, found)
        return np.memmap(path, self.dtype, "r", offset, self.shape, order)


def _file_of(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


@normalize_token.register(Stored)
def _token_of(stored: Stored) -> tuple[Any, ...]:
    if stored.kind == "view":
        return "mercer.Stored", *stored.place
    found = os.stat(stored.place[0])
    return (
        "mercer.Stored", stored.kind, stored.place, stored.shape, stored.dtype.str,
        found.st_mtime_ns, found.st_size, found.st_ino,
    )  # fmt: skip


def _shrunk(verb: str, path: Any, needed: int, found: int) -> ValueError:
    return ValueError(
        f"{verb}: a memory map must have its whole file, {needed} bytes of {path}. "
        f"Received a file of {found} bytes"
    )


def require_file(verb: str, name: str, array: Any) -> None:
    """Refuses a view of a memory map whose file has become shorter: reading it ends the process."""
    root, base = None, array
    while isinstance(base, np.ndarray):
        root, base = base, base.base
    if not isinstance(base, mmap.mmap):
        return
    needed = len(base)
    if isinstance(root, np.memmap):
        needed = root.offset + root.nbytes
    found = base.size()
    if found < needed:
        raise _shrunk(verb, getattr(root, "filename", None) or name, needed, found)


def _map_of(array: np.memmap) -> Stored:
    """A contiguous map by the name of its file; a copy on write, or another view, as it is."""
    root = array
    while isinstance(root.base, np.memmap):
        root = root.base
    flags = array.flags
    is_own = isinstance(root.base, mmap.mmap) and array.mode != "c" and array.size > 0
    is_named = array.filename is not None and os.path.isfile(array.filename)
    if not (is_own and is_named and (flags.c_contiguous or flags.f_contiguous)):
        return Stored("view", (uuid.uuid4().hex,), array.shape, array.dtype, array)
    address, start = (a.__array_interface__["data"][0] for a in (array, root))
    place = (str(array.filename), root.offset + address - start, "C" if flags.c_contiguous else "F")
    return Stored("npy", place, array.shape, array.dtype, array)


def _is_hdf5(array: Any) -> bool:
    module = sys.modules.get("h5py")
    if module is None or not isinstance(array, module.Dataset):
        return False
    return os.path.isfile(array.file.filename)


def _rows_of(stored: Any, width: int, most: int | None) -> int:
    """Rows of a block: at most Dask's chunk size, whole chunks of the file."""
    rows = max(1, block_bytes() // max(1, width * np.dtype(stored.dtype).itemsize))
    rows = rows if most is None else min(rows, most)
    own = getattr(stored, "chunks", None)
    if own and not isinstance(stored, Stored) and isinstance(own[0], int):
        rows = max(own[0], rows // own[0] * own[0])
    return rows


def _collection(verb: str, name: str, a: Any, chunks: Callable[[Any], Any]) -> da.Array:
    """A Dask array as it is; another array in blocks that suit its shape."""
    if isinstance(a, da.Array):
        return a
    known = all(hasattr(a, known) for known in ("shape", "dtype", "ndim", "__getitem__"))
    if not known or not isinstance(getattr(a, "dtype", None), np.dtype):
        raise TypeError(
            f"{verb}: {name} must be an array of Dask, NumPy, CuPy, Zarr or h5py. "
            f"Received {type(a)}"
        )
    wanted = chunks(a)
    if isinstance(a, np.memmap):
        require_file(verb, name, a)
        a = _map_of(a)
    elif _is_hdf5(a):
        a = Stored("hdf5", (os.path.abspath(a.file.filename), a.name), a.shape, a.dtype, a)
    in_memory = isinstance(a, np.ndarray) or hasattr(a, "__cuda_array_interface__")
    return da.from_array(a, chunks=wanted, inline_array=not in_memory, asarray=None)


def _text(a: da.Array) -> str:
    return f"{a.dtype} [{', '.join(str(extent) for extent in a.shape)}]"


def _require_known(verb: str, name: str, a: da.Array) -> None:
    if any(math.isnan(rows) for axis in a.chunks for rows in axis):
        raise ValueError(
            f"{verb}: {name} must have chunks of known sizes; write {name}.compute_chunk_sizes(). "
            f"Received chunks {a.chunks}"
        )


def known_points(verb: str, name: str, a: Any, most_rows: int | None = None) -> da.Array:
    """Points [rows, K] in chunks of whole rows; `most_rows` of a chunk where none are given."""

    def chunks(a: Any) -> Any:
        if a.ndim != 2:
            return a.shape
        return (_rows_of(a, a.shape[1], most_rows), max(1, a.shape[1]))

    array = _collection(verb, name, a, chunks)
    if array.dtype.kind in "biu" and array.dtype not in _array_likes.TAKEN:
        # Chunks would be computed in float64, which the array's declared dtype could not say.
        raise DtypeError(
            f"{verb}: {name} must be uint8, int8, int32 or real numbers as an array of Dask; write "
            f"{name}.astype('float32'). Received {_text(array)}"
        )
    if array.ndim > 2:
        raise NotImplementedError(
            f"{verb}: batches are not offered for arrays of Dask; {name} must have the shape "
            f"[rows, K]. Received {_text(array)}"
        )
    if array.ndim != 2:
        raise ValueError(f"{verb}: {name} must have the shape [rows, K]. Received {_text(array)}")
    _require_known(verb, name, array)
    if len(array.chunks[1]) > 1:
        raise ValueError(
            f"{verb}: {name} must have all features of a point in one chunk; write "
            f"{name}.rechunk({{1: -1}}). Received chunks {array.chunks}"
        )
    return array


def values_of(
    verb: str, name: str, a: Any, points: tuple[str, da.Array], axis: int, dims: Sequence[int]
) -> da.Array | None:
    """Values that belong to points along an axis, in the same chunks: row, col, v, coef."""
    if a is None:
        return None
    whose, owner = points
    rows = owner.chunks[0]

    def chunks(a: Any) -> Any:
        fits = a.ndim in dims and a.shape[axis] == owner.shape[0]
        own = [(extent,) for extent in a.shape]
        if fits:
            own[axis] = rows
        return tuple(own)

    array = _collection(verb, name, a, chunks)
    if array.ndim > max(dims):
        raise NotImplementedError(
            f"{verb}: batches are not offered for arrays of Dask; {name} must have "
            f"{' or '.join(map(str, dims))} axes. Received {_text(array)}"
        )
    _require_known(verb, name, array)
    if array.ndim not in dims or array.shape[axis] != owner.shape[0]:
        raise ValueError(
            f"{verb}: {name} must have one value for each of the {owner.shape[0]} points of "
            f"{whose}. Received {_text(array)}"
        )
    if array.chunks[axis] != rows:
        place = axis % array.ndim
        raise ValueError(
            f"{verb}: {name} must have the chunks of {whose}; write "
            f"{name}.rechunk({{{place}: {whose}.chunks[0]}}). Received chunks "
            f"{array.chunks[axis]} for {rows}"
        )
    return array


def split_rows(x: da.Array, row: da.Array | None, most: int) -> tuple[da.Array, da.Array | None]:
    """Chunks of at most so many rows, each a part of one chunk that was given."""
    if max(x.chunks[0], default=0) <= most:
        return x, row
    rows: list[int] = []
    for count in x.chunks[0]:
        parts = max(1, -(-count // most))
        rows += [count * (i + 1) // parts - count * i // parts for i in range(parts)]
    split = {0: tuple(rows)}
    return x.rechunk(split), row if row is None else row.rechunk(split)


def read_again(array: da.Array, side: str) -> da.Array:
    """Chunks that come straight from storage under a name of their own.

    Blocks then read them when they compute. Chunks that have another use as well, as the other side
    of the pairs, would be read once and held until their last use. What took work is left alone.
    """
    graph = array.__dask_graph__()
    layers = getattr(graph, "layers", None)
    if layers is None or not all(
        isinstance(layer, Blockwise) or name.startswith("original-")
        for name, layer in layers.items()
    ):
        return array
    return clone(array, seed=f"mercer-{side}")


def require_rows(verb: str, name: str, block: Any, shape: Sequence[int], dtype: Any) -> None:
    """A chunk must be what its array said of it."""
    if tuple(block.shape[: len(shape)]) != tuple(shape):
        raise ValueError(
            f"{verb}: a chunk of {name} must have the shape that its array declares, "
            f"{list(shape)}. Received {list(block.shape)}"
        )
    if block.dtype != dtype:
        raise DtypeError(
            f"{verb}: a chunk of {name} must have the dtype that its array declares, {dtype}. "
            f"Received {block.dtype}"
        )
