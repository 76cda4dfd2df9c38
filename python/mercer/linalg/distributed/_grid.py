"""Grids of ranks: processes of MPI on CPUs, or GPUs of this process or of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mercer.linalg.distributed import _libraries, _scalapack
from mercer.linalg.distributed._board import Board
from mercer.linalg.distributed._layout import Layout, grid_shape

__all__ = ["Grid"]


class Grid:
    """The ranks that share matrices, as p rows of q.

    comm: a communicator of mpi4py, each of whose processes is a rank and makes the grid, with the
    same arguments; MPI.COMM_WORLD when neither comm nor devices are given. Ranks of CPUs compute
    with ScaLAPACK.

    shape: (p, q), p q the number of ranks, counted by rows; by default the factors nearest to each
    other.

    devices: CUDA devices, ``"cuda:0"`` or numbers. Without comm they are the ranks, and this one
    process works for all of them, on a thread each; with comm every process names its own one.
    Ranks of GPUs compute with cuSOLVERMp.

    Raises ValueError, on every rank, for a shape that does not fit, and ImportError with the
    command to run where a library is missing. ``close()``, or the end of a with block, on all
    ranks, frees what the libraries keep.
    """

    def __init__(
        self,
        comm: Any = None,
        shape: tuple[int, int] | None = None,
        *,
        devices: Sequence[Any] | None = None,
    ) -> None:
        if comm is None and devices is None:
            comm = _libraries.mpi().COMM_WORLD
        self.board = Board(comm)
        self.size = self.board.size if comm is not None else len(devices or ())
        self.devices = None if devices is None else tuple(devices)
        self.board.agree("Grid", lambda: self._check(shape))
        self.shape = grid_shape(self.size) if shape is None else (int(shape[0]), int(shape[1]))
        first = self.board.rank
        count = 1 if comm is not None else self.size
        #: The places (row, column) that this process holds shards for.
        self.places = tuple(divmod(rank, self.shape[1]) for rank in range(first, first + count))
        self._contexts: dict[bytes, _scalapack.Context] = {}
        self._gpus = self._open_gpus() if devices is not None else None

    def __enter__(self) -> Grid:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        p, q = self.shape
        kind = "CPUs" if self.devices is None else "GPUs"
        return f"<Grid of {p} x {q} {kind}>"

    def close(self) -> None:
        """Frees the handles of the libraries; the grid's matrices can no longer be used."""
        for context in self._contexts.values():
            context.close()
        self._contexts = {}
        if self._gpus is not None:
            self._gpus.close()
            self._gpus = None

    def engine(self) -> Any:
        """The GPUs; None on CPU ranks."""
        if self.devices is not None and self._gpus is None:
            raise ValueError("the grid is closed")
        return self._gpus

    def context(self, ranks: np.ndarray | None = None) -> _scalapack.Context:
        """BLACS' grid of these ranks, or of this grid; made once."""
        if ranks is None:
            ranks = np.arange(self.size).reshape(self.shape)
        key = repr(ranks.shape).encode() + ranks.tobytes()
        if key not in self._contexts:
            self._contexts[key] = _scalapack.Context(self.board.comm, ranks)
        return self._contexts[key]

    def layout(self, shape: tuple[int, int], block: tuple[int, int]) -> Layout:
        return Layout(shape, block, self.shape)

    def _check(self, shape: Any) -> dict[str, Any]:
        if self.size == 0:
            raise ValueError("Grid: devices must name at least one GPU. Received none")
        if shape is not None:
            given = tuple(shape)
            if len(given) != 2 or min(given) < 1 or given[0] * given[1] != self.size:
                raise ValueError(
                    f"Grid: shape must be (p, q), p q the number of ranks, {self.size}. "
                    f"Received {given}"
                )
            shape = given
        if self.board.comm is not None and self.devices is not None and len(self.devices) != 1:
            raise ValueError(
                "Grid: with comm every process names one GPU of its own. "
                f"Received {len(self.devices)}"
            )
        if self.devices is None:
            _libraries.scalapack()
        return {"shape": shape, "kind of ranks": "CPUs" if self.devices is None else "GPUs"}

    def _open_gpus(self) -> Any:
        from mercer.linalg.distributed._gpus import Gpus

        return Gpus(self)
