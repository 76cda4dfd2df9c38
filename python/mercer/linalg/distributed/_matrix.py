"""Matrices in block-cyclic shards: from points, an array of one rank, or shards."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np

import mercer as mc
from mercer._array_likes import computing_type
from mercer.errors import DtypeError
from mercer.linalg.distributed import _scalapack
from mercer.linalg.distributed._board import digest
from mercer.linalg.distributed._grid import Grid
from mercer.linalg.distributed._layout import Layout

__all__ = ["Matrix", "from_local", "kernel_matrix", "scatter"]

_BLOCK = 64
_DTYPES = ("float32", "float64")
_INDEX = re.compile(r"\b[ij]\b")


class Matrix:
    """A matrix of float32 or float64 whose blocks are dealt out over the ranks of a grid.

    Made by ``kernel_matrix``, ``scatter``, ``from_local`` or ``from_dtensor``. shape; block: rows
    and columns of a block; dtype; shards: the parts that this process holds, arrays by columns.
    """

    def __init__(self, grid: Grid, layout: Layout, shards: list[Any], torch: bool = False) -> None:
        self.grid, self.layout, self.shards, self._torch = grid, layout, shards, torch

    @property
    def shape(self) -> tuple[int, int]:
        return self.layout.shape

    @property
    def block(self) -> tuple[int, int]:
        return self.layout.block

    @property
    def dtype(self) -> np.dtype:
        return numpy_dtype(self.shards[0])

    @property
    def local(self) -> Any:
        """The shard of this rank, in the library of what the matrix was made from."""
        (shard,) = self.shards
        return _in_library(shard, self._torch)

    @property
    def rows(self) -> np.ndarray:
        """The rows of the matrix that ``local`` holds, ascending."""
        return self.layout.indices(0, self._place()[0])

    @property
    def cols(self) -> np.ndarray:
        """The columns of the matrix that ``local`` holds, ascending."""
        return self.layout.indices(1, self._place()[1])

    def __repr__(self) -> str:
        return f"<Matrix {self.shape} of {self.dtype}, blocks of {self.block}, on {self.grid}>"

    def gather(self, root: int = 0) -> Any:
        """The whole matrix on rank ``root``, None on the others; called by all of them."""
        self.grid.board.agree("gather", lambda: {"root": _check_root(self.grid, root)})
        whole = moved(self, _alone(self.grid, self.shape, root))
        at = self.grid.board.rank
        if self.grid.board.comm is not None and at != root:
            return None
        return _in_library(whole[0], self._torch)

    def everywhere(self) -> Any:
        """The whole matrix on every rank."""
        whole = np.zeros(self.shape, self.dtype)
        for place, shard in zip(self.grid.places, self.shards, strict=True):
            whole[np.ix_(*self.layout.of(place))] = host(shard)
        return _in_library(self.grid.board.total(whole), self._torch)

    def copy(self) -> Matrix:
        shards = [_copy(shard) for shard in self.shards]
        return Matrix(self.grid, self.layout, shards, self._torch)

    def _place(self) -> tuple[int, int]:
        (place,) = self.grid.places
        return place


def kernel_matrix(
    grid: Grid,
    f: Any,
    x: Any,
    z: Any = None,
    *,
    block: int = _BLOCK,
    ridge: float = 0.0,
    row: Any = None,
    col: Any = None,
    w: Any = None,
    **params: Any,
) -> Matrix:
    """The matrix of a formula on all pairs of points, of which every rank computes its own blocks.

    f, x ``[M, K]``, z ``[N, K]`` (by default x), row ``[M]``, col ``[N]``, w and the parameters,
    numbers: those of ``mercer.pairwise``, the same on all ranks, of which checksums are compared
    first. Arrays of NumPy or PyTorch on the CPU. ridge is added to the diagonal. block: the rows
    and columns of a block.

    Raises, on every rank and before anything is computed, ValueError where ranks differ and what
    ``mercer.pairwise`` raises, and LinAlgError for NaN or infinities among the results.
    """
    operands = {"x": x, "z": z, "row": row, "col": col, "w": w}
    formula: list[Any] = []

    def check() -> dict[str, Any]:
        formula.append(mc.kernel(f))
        sizes = [_check_points(x, "x"), _check_points(x if z is None else z, "z")]
        for name, values, count in (("row", row, sizes[0]), ("col", col, sizes[1])):
            if values is not None and tuple(np.shape(values)) != (count,):
                raise ValueError(
                    f"kernel_matrix: {name} must be [{count}]. Received {tuple(np.shape(values))}"
                )
        for name, value in params.items():
            if np.ndim(value) != 0:
                raise ValueError(
                    f"kernel_matrix: {name} must be a number. Received shape {np.shape(value)}"
                )
        layout = _layout(grid, sizes, block)
        # A first pair, so that all other rules of the call are checked before the ranks go on.
        some = _part(operands, np.arange(min(1, sizes[0])), np.arange(min(1, sizes[1])))
        mc.pairwise(formula[0], **some, **params)
        given = {name: digest(value) for name, value in {**operands, **params}.items()}
        carried = {name: digest(value) for name, value in formula[0].parameters.items()}
        return {"formula": str(formula[0]), "its parameters": str(carried), "block": block,
                "ridge": float(ridge), "shape": layout.shape, **given}  # fmt: skip

    grid.board.agree("kernel_matrix", check)
    shape = (len(x), len(x if z is None else z))
    layout = _layout(grid, shape, block)
    parts: list[Any] = []

    def make() -> dict[str, Any]:
        parts.extend(empty_shards(grid, layout, computing_type(x.dtype)))
        for at, (place, part) in enumerate(zip(grid.places, parts, strict=True)):
            there = operands if grid.devices is None else grid.engine().operands(at, operands)
            _fill(layout, place, formula[0], there, params, part)
            _add_ridge(layout, place, part, ridge)
        return {}

    grid.board.agree("kernel_matrix", make)
    finite = all(is_finite(part) for part in parts)
    grid.board.agree_finite("kernel_matrix", finite, "the matrix")
    return Matrix(grid, layout, parts, _is_torch(x))


def scatter(grid: Grid, array: Any, *, root: int = 0, block: int = _BLOCK) -> Matrix:
    """The matrix that rank ``root`` has, ``[M, N]`` of float32 or float64; array is None elsewhere.

    A grid of one process's GPUs takes it from that process.
    """
    board = grid.board
    told = board.exchange(_describe(array))
    # Rank 0 reads what root says; a root that is wrong is refused by agree.
    words = told[root] if isinstance(root, int) and 0 <= root < len(told) else None

    def check() -> dict[str, Any]:
        _check_root(grid, root)
        if words is None:
            raise ValueError(f"scatter: rank {root} must pass the matrix. Received None")
        if board.rank != root and array is not None:
            raise ValueError(f"scatter: ranks but {root} must pass None. Received an array")
        shape, dtype, _ = words
        _check_dtype("scatter", dtype)
        if len(shape) != 2:
            raise ValueError(f"scatter: array must be [M, N]. Received {shape}")
        _layout(grid, shape, block)
        return {"root": root, "block": block}

    board.agree("scatter", check)
    assert words is not None  # what is None has been refused
    shape, dtype, torch = words
    whole = _alone(grid, shape, root)
    if board.comm is None:
        shards = [host(array)]
    else:
        mine = board.rank == root
        shards = [
            np.asfortranarray(host(array))
            if mine
            else np.empty(whole.local_shape(grid.places[0]), dtype)
        ]
    source = Matrix(grid, whole, shards, torch)
    layout = _layout(grid, shape, block)
    return Matrix(grid, layout, _placed(grid, moved(source, layout)), torch)


def from_local(grid: Grid, shape: tuple[int, int], local: Any, *, block: int = _BLOCK) -> Matrix:
    """A matrix of ``shape`` from the shard of each rank, as ``Matrix.local`` gives it.

    local: the elements of the rows r and columns c of this rank: those for which ``r // block`` is
    the rank's row of the grid modulo p, and ``c // block`` its column modulo q. A list of such
    arrays where one process has several GPUs. They are copied.

    Raises ValueError on every rank where a shard has another shape than its share.
    """
    shards = list(local) if isinstance(local, (list, tuple)) else [local]

    def check() -> dict[str, Any]:
        layout = _layout(grid, shape, block)
        if len(shards) != len(grid.places):
            raise ValueError(
                f"from_local: one shard a rank. Received {len(shards)} for {len(grid.places)}"
            )
        for place, shard in zip(grid.places, shards, strict=True):
            _check_dtype("from_local", _describe(shard)[1])
            if tuple(shard.shape) != layout.local_shape(place):
                raise ValueError(
                    f"from_local: the shard at {place} of a matrix {layout.shape} in blocks of "
                    f"{block} must be {layout.local_shape(place)}. Received {tuple(shard.shape)}"
                )
        return {"shape": layout.shape, "block": block, "dtype": str(numpy_dtype(shards[0]))}

    grid.board.agree("from_local", check)
    layout = _layout(grid, shape, block)
    parts = [np.array(host(shard), order="F") for shard in shards]
    return Matrix(grid, layout, _placed(grid, parts), _is_torch(shards[0]))


def moved(source: Matrix, layout: Layout, first: int = 0) -> list[np.ndarray]:
    """Shards on the host in another layout, of the columns from ``first`` on."""
    grid = source.grid
    if grid.board.comm is None:
        return _moved_here(source, layout, first)
    shards = [np.asfortranarray(host(shard)) for shard in source.shards]
    place = grid.places[0]
    target = np.zeros(layout.local_shape(place), source.dtype, order="F")
    if min(layout.shape) > 0:
        context = grid.context()
        _scalapack.redistribute(
            context, (context, source.layout, shards[0]), (context, layout, target), layout.shape,
            first,
        )  # fmt: skip
    return [target]


def numpy_dtype(array: Any) -> np.dtype:
    return np.dtype(str(array.dtype).removeprefix("torch."))


def host(array: Any) -> np.ndarray:
    """The values of an array of NumPy or PyTorch, in the host's memory."""
    return np.asarray(array.detach().cpu() if _is_torch(array) else array)


def _moved_here(source: Matrix, layout: Layout, first: int) -> list[np.ndarray]:
    """moved for one process, which has all shards."""
    whole = np.empty(source.shape, source.dtype, order="F")
    for place, shard in zip(_places(source.layout), source.shards, strict=True):
        whole[np.ix_(*source.layout.of(place))] = host(shard)
    parts = [layout.of(place) for place in _places(layout)]
    return [np.asfortranarray(whole[np.ix_(rows, cols + first)]) for rows, cols in parts]


def _places(layout: Layout) -> list[tuple[int, int]]:
    return list(np.ndindex(layout.grid))


def _fill(
    layout: Layout, place: tuple[int, int], f: Any, operands: dict[str, Any],
    params: dict[str, Any], shard: Any,
) -> Any:  # fmt: skip
    """The shard of a kernel matrix: one call, or one a block where the formula reads i, j."""
    rows, cols = layout.of(place)
    if len(rows) * len(cols) == 0:
        return shard
    if not _INDEX.search(str(f)):
        _pairs(f, operands, params, rows, cols, shard)
        return shard
    offsets = {"i": params.get("i_offset", 0), "j": params.get("j_offset", 0)}
    for r in _runs(rows):
        for c in _runs(cols):
            at = {"i_offset": offsets["i"] + int(rows[r.start]),
                  "j_offset": offsets["j"] + int(cols[c.start])}  # fmt: skip
            _pairs(f, operands, {**params, **at}, rows[r], cols[c], shard[r, c])
    return shard


def _pairs(
    f: Any, operands: dict[str, Any], params: dict[str, Any], rows: np.ndarray, cols: np.ndarray,
    out: Any,
) -> None:  # fmt: skip
    some = _part(operands, rows, cols)
    mc.pairwise(f, **some, **params, out=_in_library(out, _is_torch(some["x"])))


def _part(operands: dict[str, Any], rows: np.ndarray, cols: np.ndarray) -> dict[str, Any]:
    """The operands of these rows and columns."""
    sides = {"x": rows, "row": rows, "z": cols, "col": cols}
    given = {**operands, "z": operands["x"] if operands["z"] is None else operands["z"]}
    return {
        name: value[sides[name]] if name in sides else value
        for name, value in given.items()
        if value is not None
    }


def _runs(indices: np.ndarray) -> list[slice]:
    """The runs of neighbouring indices."""
    ends = [0, *(np.flatnonzero(np.diff(indices) != 1) + 1).tolist(), len(indices)]
    return [slice(start, stop) for start, stop in itertools.pairwise(ends) if stop > start]


def empty_shards(grid: Grid, layout: Layout, dtype: np.dtype) -> list[Any]:
    shapes = [layout.local_shape(place) for place in grid.places]
    if grid.devices is not None:
        return grid.engine().empty(shapes, dtype)
    return [np.empty(shape, dtype, order="F") for shape in shapes]


def is_finite(part: Any) -> bool:
    if _is_torch(part):
        return bool(part.isfinite().all())
    return bool(np.isfinite(part).all())


def _add_ridge(layout: Layout, place: tuple[int, int], part: Any, ridge: float) -> None:
    if ridge:
        _, rows, cols = np.intersect1d(*layout.of(place), return_indices=True)
        part[rows, cols] += ridge


def _layout(grid: Grid, shape: Any, block: Any) -> Layout:
    shape = tuple(int(extent) for extent in shape)
    if not isinstance(block, int) or block < 1:
        raise ValueError(f"block must be a number of rows, 1 or more. Received {block}")
    if len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"shape must be (M, N). Received {shape}")
    layout = grid.layout(shape, (block, block))
    if grid.devices is None:
        for place in grid.places:
            _scalapack.check_counts(layout, place)
    return layout


def _alone(grid: Grid, shape: tuple[int, int], root: int) -> Layout:
    """All of a matrix on one rank: in one block, whose rank is the first."""
    block = (max(1, shape[0]), max(1, shape[1]))
    if grid.board.comm is None:
        return Layout(shape, block, (1, 1))
    return Layout(shape, block, grid.shape, divmod(root, grid.shape[1]))


def _placed(grid: Grid, parts: list[np.ndarray]) -> list[Any]:
    """The shards where they are computed with."""
    return parts if grid.devices is None else grid.engine().upload(parts)


def _describe(array: Any) -> Any:
    """Shape, dtype and library, of whatever was passed: other ranks wait to hear of it."""
    if array is None:
        return None
    dtype = str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
    return tuple(getattr(array, "shape", ())), dtype, _is_torch(array)


def _check_root(grid: Grid, root: Any) -> int:
    if not isinstance(root, int) or not 0 <= root < grid.board.size:
        raise ValueError(f"root must be a rank, 0 <= root < {grid.board.size}. Received {root}")
    return root


def _check_points(x: Any, name: str) -> int:
    if len(np.shape(x)) != 2:
        raise ValueError(
            f"kernel_matrix: {name} must be points [., K]. Received {tuple(np.shape(x))}"
        )
    if _is_torch(x) and x.device.type != "cpu":
        raise ValueError(f"kernel_matrix: {name} must be on the CPU. Received {x.device}")
    return len(x)


def _check_dtype(verb: str, dtype: Any) -> None:
    if str(dtype) not in _DTYPES:
        raise DtypeError(f"{verb}: a matrix must be float32 or float64. Received {dtype}")


def _is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch"


def _in_library(array: Any, torch: bool) -> Any:
    if not torch or _is_torch(array):
        return array
    import torch as library

    return library.from_numpy(array)


def _copy(shard: Any) -> Any:
    return shard.mT.clone().mT if _is_torch(shard) else shard.copy(order="F")
