"""The GPUs of a grid that this process works for, a thread each: several of one process, or one."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mercer.errors import DeviceError
from mercer.linalg.distributed import _cusolvermp, _libraries

if TYPE_CHECKING:
    from mercer.linalg.distributed._grid import Grid
    from mercer.linalg.distributed._matrix import Matrix

__all__ = ["Gpus"]

_LOWER, _PLAIN = 0, 0


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


class Gpus:
    """The engine of a grid of GPUs."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.devices: list[torch.device] = []
        self._comms: list[Any] = []
        self._pools: list[ThreadPoolExecutor] = []
        self._workers: list[_cusolvermp.Worker] = []
        # Calls of several threads of the caller's would meet in each other's collectives.
        self._alone = threading.Lock()
        self._unique: bytes | None = None
        grid.board.agree("Grid", self._open)
        grid.board.agree("Grid", self._connect(grid.board.exchange(self._unique)[0]))
        self._workers = self._phase("Grid", self._open_worker, range(len(self.devices)))

    def close(self) -> None:
        self._each(lambda worker: worker.close(), self._workers)
        for comm in self._comms:
            _libraries.nccl().ncclCommDestroy(comm)
        for pool in self._pools:
            pool.shutdown()

    def empty(self, shapes: list[tuple[int, int]], dtype: np.dtype) -> list[torch.Tensor]:
        """Arrays by columns on the devices."""
        kind = getattr(torch, np.dtype(dtype).name)
        return [
            torch.empty((cols, max(1, rows)), dtype=kind, device=device).mT[:rows]
            for (rows, cols), device in zip(shapes, self.devices, strict=True)
        ]

    def upload(self, parts: list[np.ndarray]) -> list[torch.Tensor]:
        shards = self.empty([part.shape for part in parts], parts[0].dtype)
        for shard, part in zip(shards, parts, strict=True):
            shard.copy_(torch.from_numpy(part))
        return shards

    def operands(self, at: int, operands: dict[str, Any]) -> dict[str, Any]:
        """Points and values on the device number ``at``."""
        device = self.devices[at]
        return {
            name: None if value is None else torch.as_tensor(value).to(device)
            for name, value in operands.items()
        }

    def solve(self, verb: str, a: Matrix, x: Matrix) -> int:
        """x becomes a^-1 x; the info of the factorisation, of whatever GPU."""
        jobs = _cholesky_jobs if verb == "solve_cholesky" else _lu_jobs
        with self._alone, contextlib.ExitStack() as open_until:
            shards = list(zip(a.shards, x.shards, strict=True))

            def prepare(worker: Any, pair: Any) -> Any:
                parts = [
                    open_until.enter_context(worker.described(matrix.layout, shard))
                    for matrix, shard in zip((a, x), pair, strict=True)
                ]
                return jobs(worker, a, x, pair[0], *parts)

            ready = self._phase(verb, prepare, shards)
            told = self._phase(verb, lambda _, pair: pair[0].attempt(), ready)
            info = self._worst([info for info, _ in told]) or self._worst(_bad_diagonals(verb, a))
            if info == 0:
                # Potrf fails with an internal error where a is not positive definite, so that a
                # failure is one of the library only where the factor's diagonal is right.
                self._phase(verb, _succeeded, told)
                info = self._worst(self._phase(verb, lambda _, pair: pair[1].run(), ready))
        return info

    def eigh(self, a: Matrix) -> tuple[int, np.ndarray, list[torch.Tensor]]:
        """info, all eigenvalues, and the shards of the eigenvectors; a is lost."""
        n, block = a.shape[0], a.block[0]
        if block & (block - 1):
            raise ValueError(
                f"eigh: on GPUs the block must be a power of two, for cuSOLVERMp. Received {block}"
            )
        with self._alone, contextlib.ExitStack() as open_until:

            def prepare(worker: Any, shard: torch.Tensor) -> Any:
                values = torch.empty(n, dtype=shard.dtype, device=worker.device)
                vectors = torch.zeros_like(shard.mT.contiguous()).mT
                there = [
                    open_until.enter_context(worker.described(a.layout, some))
                    for some in (shard, vectors)
                ]
                leading = (b"V", _LOWER, n, *there[0], values.data_ptr(), *there[1])
                kind = _cusolvermp.real(shard.dtype)
                return _cusolvermp.Job(worker, "Syevd", *leading, kind), values, vectors

            ready = self._phase("eigh", prepare, a.shards)
            infos = self._phase("eigh", lambda _, job: job[0].run(), ready)
        return self._worst(infos), ready[0][1].cpu().numpy(), [vectors for _, _, vectors in ready]

    def _worst(self, infos: list[int]) -> int:
        """The first argument that was refused, else the first minor or pivot that is wrong."""
        told = [info for info in itertools.chain(*self._grid.board.exchange(infos)) if info]
        return min(told, default=0)

    def _open(self) -> dict[str, Any]:
        _libraries.cusolvermp()
        self.devices = [_device(device) for device in self._grid.devices or ()]
        if len(set(self.devices)) != len(self.devices):
            raise ValueError(f"Grid: devices must differ. Received {self._grid.devices}")
        self._pools = [ThreadPoolExecutor(1) for _ in self.devices]
        if self._grid.board.comm is not None and self._grid.board.rank == 0:
            unique = _UniqueId()
            _nccl("GetUniqueId", ctypes.byref(unique))
            self._unique = bytes(unique)
        return {}

    def _connect(self, unique: bytes | None) -> Callable[[], dict[str, Any]]:
        def connect() -> dict[str, Any]:
            count = len(self.devices)
            comms = (ctypes.c_void_p * count)()
            if unique is None:
                numbers = (ctypes.c_int * count)(*(device.index or 0 for device in self.devices))
                _nccl("CommInitAll", comms, count, numbers)
            else:
                torch.cuda.set_device(self.devices[0])
                board = self._grid.board
                _nccl("CommInitRank", comms, board.size, _UniqueId.from_buffer_copy(unique),
                      board.rank)  # fmt: skip
            self._comms = [ctypes.c_void_p(comm) for comm in comms]
            return {}

        return connect

    def _open_worker(self, at: int) -> _cusolvermp.Worker:
        return _cusolvermp.Worker(self.devices[at], self._comms[at], self._grid.shape)

    def _phase(self, verb: str, step: Callable[..., Any], items: Any) -> list[Any]:
        """step on the thread of every GPU; an error on one is one on all, before the next phase."""
        results: list[Any] = []

        def check() -> dict[str, Any]:
            results.extend(self._each(step, *([self._workers] if self._workers else []), items))
            return {}

        self._grid.board.agree(verb, check)
        return results

    def _each(self, step: Callable[..., Any], *items: Any) -> list[Any]:
        calls = [pool.submit(step, *some) for pool, *some in zip(self._pools, *items, strict=True)]
        for call in calls:
            call.exception()
        return [call.result() for call in calls]


def _succeeded(_: Any, told: tuple[int, DeviceError | None]) -> None:
    if told[1] is not None:
        raise told[1]


def _cholesky_jobs(worker: Any, a: Matrix, x: Matrix, shard: Any, left: Any, right: Any) -> Any:
    kind, (n, k) = _cusolvermp.real(shard.dtype), x.shape
    return (
        _cusolvermp.Job(worker, "Potrf", _LOWER, n, *left, kind),
        _cusolvermp.Job(worker, "Potrs", _LOWER, n, k, *left, *right, kind),
    )


def _lu_jobs(worker: Any, a: Matrix, x: Matrix, shard: Any, left: Any, right: Any) -> Any:
    kind, (n, k) = _cusolvermp.real(shard.dtype), x.shape
    # cuSOLVERMp spreads the pivots as the columns, unlike ScaLAPACK, which does as the rows.
    count = max(shard.shape) + max(a.block)
    pivots = torch.zeros(count, dtype=torch.int64, device=worker.device)
    worker.pivots = pivots
    return (
        _cusolvermp.Job(worker, "Getrf", n, n, *left, pivots.data_ptr(), kind),
        _cusolvermp.Job(worker, "Getrs", _PLAIN, n, k, *left, pivots.data_ptr(), *right, kind),
    )


def _bad_diagonals(verb: str, a: Matrix) -> list[int]:
    """The places, from 1, of what no factor has on its diagonal; the library may not say them."""
    found = []
    for place, shard in zip(a.grid.places, a.shards, strict=True):
        common, rows, cols = np.intersect1d(*a.layout.of(place), return_indices=True)
        diagonal = shard[torch.from_numpy(rows), torch.from_numpy(cols)].cpu()
        fine = diagonal.isfinite() & (diagonal > 0 if verb == "solve_cholesky" else diagonal != 0)
        found += (common[~fine.numpy()] + 1).tolist()[:1]
    return found


def _device(device: Any) -> torch.device:
    found = torch.device(f"cuda:{device}" if isinstance(device, int) else device)
    if found.type != "cuda":
        raise ValueError(f"Grid: devices must be CUDA devices. Received {device}")
    if not torch.cuda.is_available() or (found.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"Grid: PyTorch sees {torch.cuda.device_count()} CUDA devices. Received {device}"
        )
    return torch.device("cuda", found.index or 0)


def _nccl(name: str, *arguments: Any) -> None:
    status = getattr(_libraries.nccl(), f"nccl{name}")(*arguments)
    if status != 0:
        raise DeviceError(f"nccl{name} failed with status {status}")
