"""Products with Kronecker products on a GPU, and reshaped products of PyTorch in the same run,
and, where the package linear_operator is installed, with GPyTorch's.

The arrays of a call are others than those of the call before, so that no cache holds them, and
calls run in one CUDA graph, so that the host's part of short ones does not show.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import mercer

from . import engine
from .gpu_result import GpuLine
from .gpu_settings import GpuSettings
from .kron import Kron, shuffled

CALLS = 24  # of a graph
MOST_BYTES = 4e8  # that the calls of a graph take in turn; arrays that are larger are used by all
CHECKED = 2e7  # elements of x whose results are compared
ERROR_BARS = {"float32": 1e-6, "float64": 1e-14}
MATRIX = ("sum(x*z)", (16384, 16384, 1))  # whose floor is the storing of its result


@dataclasses.dataclass(frozen=True)
class GpuKron(Kron):
    """``least``, ``reach``: milliseconds, at most and aimed at."""

    dtype: str = "float32"
    least: float | None = None
    reach: float | None = None

    @property
    def name(self) -> str:
        rows = "" if self.m == 1024 else f" of {self.m}"
        return super().name + rows + (" float64" if self.dtype == "float64" else "")


ROWS = (
    GpuKron(1024, 8, 8, 5, least=0.095, reach=0.072),
    GpuKron(1024, 16, 16, 4, least=0.20, reach=0.155),
    GpuKron(1024, 32, 32, 3, least=0.105, reach=0.075),
    GpuKron(1024, 64, 64, 2, least=0.018, reach=0.013),
    GpuKron(1024, 128, 128, 2, least=0.060, reach=0.045),
    GpuKron(1024, 64, 64, 3, least=1.3, reach=0.9),
    GpuKron(320, 128, 128, 3, least=3.8, reach=2.9),
    GpuKron(1024, 8, 8, 6, least=1.0, reach=0.8),
    GpuKron(1024, 16, 16, 5, least=5.8, reach=4.8),
    GpuKron(1024, 32, 32, 4, least=5.8, reach=4.8),
    GpuKron(1, 128, 128, 3, least=0.030, reach=0.020),
    GpuKron(16, 16, 16, 5, least=0.09, reach=0.06),
    GpuKron(10, 52, 50, 3, least=0.035),
    GpuKron(64, 31, 63, 3),
    GpuKron(64, 32, 64, 3),
    GpuKron(1024, 8, 8, 5, dtype="float64", least=0.20, reach=0.15),
    GpuKron(1024, 128, 128, 2, dtype="float64", least=0.25, reach=0.19),
)


def uniform(s: GpuSettings, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Between -1 and 1."""
    import torch

    random = torch.Generator(s.device).manual_seed(seed)
    of = getattr(torch, dtype)
    return torch.rand(shape, generator=random, device=s.device, dtype=of) * 2 - 1


class GpuKronCase:
    """The arrays of several calls, which take turns."""

    def __init__(self, row: GpuKron, s: GpuSettings) -> None:
        import torch

        m, k, j = row.shape
        m = max(1, int(m * s.scale))
        if s.scale < 1e-3:  # the tests' size
            row = dataclasses.replace(row, p=min(row.p, 4), q=min(row.q, 3), n=min(row.n, 3))
            k, j = row.shape[1:]
        self.row, self.shape = row, (m, k, j)
        self.bytes = m * (k + j) * (8 if row.dtype == "float64" else 4)
        turns = max(1, min(12, int(MOST_BYTES // self.bytes)))
        self.xs = [uniform(s, (m, k), row.dtype, turn) for turn in range(turns)]
        self.outs = [torch.full_like(x[:, :1], math.nan).repeat(1, j) for x in self.xs]
        self.factors = [
            uniform(s, (row.p, row.q), row.dtype, 100 + i) / row.p**0.5 for i in range(row.n)
        ]
        if s.tunes:
            mercer.kron.tune(self.xs[0], self.factors, out=self.outs[0])
            self.outs[0].fill_(math.nan)
        size = mercer.workspace_size("kron.matmul", self.xs[0], self.factors, out=self.outs[0])
        self.scratch = torch.empty(max(size, 1), dtype=torch.uint8, device=s.device)

    def mercer(self, turn: int) -> None:
        at = turn % len(self.xs)
        out, scratch = self.outs[at], self.scratch
        mercer.kron.matmul(self.xs[at], self.factors, out=out, workspace=scratch)

    def torch(self, turn: int) -> None:
        shuffled(self.xs[turn % len(self.xs)], self.factors)

    def gpytorch(self) -> Callable[[], object] | None:
        """GPyTorch's product from the left with the columns of x; without the package none."""
        try:
            from linear_operator.operators import KroneckerProductLinearOperator
        except ImportError:
            return None
        operator = KroneckerProductLinearOperator(*(f.mT for f in self.factors))
        xs = itertools.cycle(self.xs)
        return lambda: operator.matmul(next(xs).mT)

    def error(self, found: Callable) -> float:
        """The largest of rows, relative to the norm of their exact results."""
        rows = max(1, min(self.shape[0], int(CHECKED // self.shape[1])))
        x = self.xs[0][:rows]
        exact = shuffled(x.double(), [f.double() for f in self.factors])
        misses = (found(x, rows).double() - exact).norm(dim=1)
        return float((misses / exact.norm(dim=1)).max())


def kron_lines(row: GpuKron, s: GpuSettings) -> Iterator[GpuLine]:
    case = GpuKronCase(row, s)
    calls = CALLS if case.bytes < MOST_BYTES else 4
    line = GpuLine(row.name, case.shape, row.dtype, data="uniform")
    line.ms = s.watch.in_turn(case.mercer, calls)
    line.clock_mhz = s.watch.clock_mhz
    copy = engine.gpu_floor(*MATRIX, "float32", s.floors)["ms"]
    line.floor_ms = copy * case.bytes / (4 * MATRIX[1][0] * MATRIX[1][1])
    line.error = case.error(lambda _, rows: case.outs[0][:rows])
    line.error_bar = ERROR_BARS[row.dtype]
    if s.has_bars():
        line.least, line.reach = row.least, row.reach
    line.peer = "torch, reshaped"
    line.peer_ms = s.watch.in_turn(case.torch, max(2, calls // 4))
    line.peer_error = case.error(lambda x, _: shuffled(x, case.factors))
    yield line
    gpytorch = case.gpytorch()
    if gpytorch is None:
        return
    its_ms = s.watch.median(gpytorch)
    yield dataclasses.replace(line, peer="linear_operator", peer_ms=its_ms, peer_error=None)


def all_rows() -> dict[str, Callable[[GpuSettings], Iterator[GpuLine]]]:
    return {row.name: functools.partial(kron_lines, row) for row in ROWS}
