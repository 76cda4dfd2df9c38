"""PyTorch's DTensor: its shards are blocks dealt out once, so that ScaLAPACK moves them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mercer.linalg.distributed import _scalapack
from mercer.linalg.distributed._grid import Grid
from mercer.linalg.distributed._layout import Layout
from mercer.linalg.distributed._matrix import (
    _BLOCK,
    Matrix,
    _check_dtype,
    _describe,
    _layout,
    _placed,
    host,
)

__all__ = ["from_dtensor", "to_dtensor"]


def from_dtensor(grid: Grid, tensor: Any, *, block: int = _BLOCK) -> Matrix:
    """The Matrix of a DTensor ``[M, N]`` of float32 or float64, whose ranks are among the grid's.

    The tensor is sharded over a mesh of one axis by rows, ``[Shard(0)]``, or by columns,
    ``[Shard(1)]``, replicated, or sharded by both over two axes; others are redistributed by
    PyTorch first (``tensor.redistribute``). All ranks of the grid call.
    """
    wanted: list[Any] = []

    def check() -> dict[str, Any]:
        _check_dtype("from_dtensor", _describe(tensor)[1])
        layout = _layout(grid, tensor.shape, block)
        if len(tensor.shape) != 2:
            raise ValueError(f"from_dtensor: tensor must be [M, N]. Received {tuple(tensor.shape)}")
        wanted.append(_blocks("from_dtensor", tensor.device_mesh, tensor.placements, layout.shape))
        return {"shape": layout.shape, "block": block, "placements": str(tensor.placements),
                "mesh": str(wanted[0][0].tolist())}  # fmt: skip

    grid.board.agree("from_dtensor", check)
    ranks, source = _mpi_ranks(grid, wanted[0][0]), wanted[0][1]
    mine = np.argwhere(ranks == grid.board.rank)
    local = host(tensor.to_local())
    shard = np.asfortranarray(local) if len(mine) else np.empty((0, 0), local.dtype)
    _check_shards(grid, source, mine, shard)
    layout = _layout(grid, tensor.shape, block)
    parts = [np.zeros(layout.local_shape(place), local.dtype, order="F") for place in grid.places]
    _move(grid, (ranks, source, shard), (None, layout, parts[0]))
    return Matrix(grid, layout, _placed(grid, parts), True)


def to_dtensor(matrix: Matrix, mesh: Any, placements: Any) -> Any:
    """A DTensor of the values of a Matrix, on PyTorch's mesh with these placements.

    Placements that from_dtensor does not take are reached by PyTorch's redistribute, from rows.
    """
    from torch.distributed.tensor import DTensor

    grid, found = matrix.grid, []

    def check() -> dict[str, Any]:
        found.append(_way(mesh, placements, matrix.shape))
        return {"placements": str(placements), "mesh": str(mesh.mesh.tolist())}

    grid.board.agree("to_dtensor", check)
    between, (places, target) = found[0]
    ranks = _mpi_ranks(grid, places)
    mine = np.argwhere(ranks == grid.board.rank)
    shape = target.local_shape(tuple(mine[0])) if len(mine) else (0, 0)
    shard = np.zeros(shape, matrix.dtype, order="F")
    _move(grid, (None, matrix.layout, np.asfortranarray(host(matrix.shards[0]))),
          (ranks, target, shard))  # fmt: skip
    import torch

    local = torch.from_numpy(np.ascontiguousarray(shard)).to(mesh.device_type)
    tensor = DTensor.from_local(
        local, mesh, between, run_check=False, shape=torch.Size(matrix.shape),
        stride=(max(1, matrix.shape[1]), 1),
    )  # fmt: skip
    return tensor.redistribute(mesh, list(placements))


def _way(mesh: Any, placements: Any, shape: tuple[int, int]) -> tuple[list[Any], Any]:
    """Placements that ScaLAPACK reaches, on the way to the ones asked for."""
    from torch.distributed.tensor import Shard

    replicated = any(not placement.is_shard() for placement in placements)
    between = [Shard(axis) for axis in range(mesh.ndim)] if replicated else list(placements)
    return between, _blocks("to_dtensor", mesh, between, shape)


def _blocks(
    verb: str, mesh: Any, placements: Any, shape: tuple[int, int]
) -> tuple[np.ndarray, Layout]:
    """The ranks of PyTorch as a grid, and the layout over them."""
    ranks = np.asarray(mesh.mesh)
    axes = [placement.dim % 2 if placement.is_shard() else None for placement in placements]
    sharded = [axis for axis in axes if axis is not None]
    if (
        ranks.ndim > 2
        or len(set(sharded)) != len(sharded)
        or any(placement.is_partial() for placement in placements)
    ):
        raise ValueError(
            f"{verb}: a DTensor must be sharded by rows, by columns, or by both over a mesh of two "
            f"axes; redistribute it first. Received {tuple(placements)} on a mesh {ranks.shape}"
        )
    # The first of several replicas is read.
    for axis in range(ranks.ndim - 1, -1, -1):
        if axes[axis] is None:
            ranks = ranks.take(0, axis)
    if len(sharded) == 2:
        places = ranks if sharded == [0, 1] else ranks.T
    else:
        places = ranks.reshape([ranks.size if axis in sharded else 1 for axis in (0, 1)])
    block = tuple(max(1, -(-extent // count)) for extent, count in zip(shape, places.shape,
                                                                       strict=True))  # fmt: skip
    return places, Layout(shape, block, places.shape)


def _mpi_ranks(grid: Grid, ranks: np.ndarray) -> np.ndarray:
    """PyTorch's ranks as those of the grid's communicator."""
    if grid.board.comm is None:
        raise ValueError("a DTensor needs a grid of processes. Received one of this process alone")
    import torch.distributed as dist

    known = grid.board.exchange(dist.get_rank() if dist.is_initialized() else -1)
    missing = sorted(set(ranks.ravel().tolist()) - set(known))
    if missing:
        raise ValueError(f"a DTensor's ranks must be the grid's. Received {missing} beyond {known}")
    return np.vectorize(known.index)(ranks)


def _check_shards(grid: Grid, layout: Layout, mine: np.ndarray, shard: np.ndarray) -> None:
    def check() -> dict[str, Any]:
        expected = layout.local_shape(tuple(mine[0])) if len(mine) else shard.shape
        if shard.shape != expected:
            raise ValueError(
                f"from_dtensor: shards must add up to {layout.shape}: this one must be {expected}. "
                f"Received {shard.shape}"
            )
        return {}

    grid.board.agree("from_dtensor", check)


def _move(grid: Grid, source: Any, target: Any) -> None:
    if min(target[1].shape) == 0:
        return
    a, b = [(grid.context(ranks), layout, shard) for ranks, layout, shard in (source, target)]
    _scalapack.redistribute(grid.context(), a, b, target[1].shape)
