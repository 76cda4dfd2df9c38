"""Products with Kronecker products: against reshaped matrix products and the rate of a core."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import mercer

from . import engine
from .result import Line
from .rows import THREADS_BAR
from .settings import Settings
from .timing import best_times, usable_cpus


@dataclasses.dataclass(frozen=True)
class Kron:
    """x [m, p^n] times n factors of p x q."""

    m: int
    p: int
    q: int
    n: int
    floor_bar: float | None = None  # of the multiply-adds that a core can do
    ratio_bar: float | None = 1.5  # over NumPy

    @property
    def name(self) -> str:
        return (
            f"kron {self.p}^{self.n}" if self.p == self.q else f"kron ({self.p}->{self.q})^{self.n}"
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.m, self.p**self.n, self.q**self.n)

    @property
    def elements(self) -> float:
        """Multiply-adds, the last factor first."""
        sizes = [self.p ** (self.n - i - 1) * self.q ** (i + 1) for i in range(self.n)]
        return float(self.m) * self.p * sum(sizes)


KRON = (
    Kron(1024, 8, 8, 5, 0.66),
    Kron(1024, 16, 16, 4, 0.72),
    Kron(1024, 32, 32, 3, 0.80),
    Kron(1024, 64, 64, 2, 0.80),
    Kron(1024, 128, 128, 2, 0.83),
    Kron(16, 16, 16, 5),
    Kron(1, 128, 128, 3, ratio_bar=None),  # NumPy's products are large ones as well
    Kron(10, 52, 50, 3),
)
FP64_BAR = 0.45


def aligned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Zeros that start at a line of the cache, as PyTorch's arrays do."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + size].view(dtype).reshape(shape)


class KronCase:
    def __init__(self, row: Kron, dtype: str = "float32") -> None:
        rng = np.random.default_rng(0)
        self.row = row
        self.x, self.out = aligned(row.shape[:2], dtype), aligned(row.shape[::2], dtype)
        self.x[:] = rng.uniform(-1, 1, row.shape[:2])
        shape = (row.p, row.q)
        self.factors = [rng.uniform(-1, 1, shape).astype(dtype) for _ in range(row.n)]

    def mercer(self) -> object:
        return mercer.kron.matmul(self.x, self.factors, out=self.out)

    def error(self) -> float:
        """Largest error of two rows relative to the product of magnitudes."""
        wide = [f.astype(np.float64) for f in self.factors]
        x = self.x[:2].astype(np.float64)
        exact, size = shuffled(x, wide), shuffled(abs(x), [abs(f) for f in wide])
        got = mercer.kron.matmul(self.x[:2], self.factors)
        return float(np.max(abs(got - exact) / size))


def shuffled(x: Any, factors: list[Any]) -> Any:
    """One matrix product and one transposition a factor, the last first."""
    m, y = x.shape[0], x
    for f in reversed(factors):
        y = (y.reshape(-1, f.shape[0]) @ f).reshape(m, -1, f.shape[1]).swapaxes(1, 2)
    return y.reshape(m, -1)


def numpy_call(case: KronCase) -> Callable[[], object]:
    return lambda: shuffled(case.x, case.factors)


def torch_call(case: KronCase) -> Callable[[], object] | None:
    try:
        import torch
    except ImportError:
        return None
    x, factors = torch.from_numpy(case.x), [torch.from_numpy(f) for f in case.factors]
    return lambda: shuffled(x, factors)


def rate(dtype: str, target: str) -> float | None:
    """Multiply-adds a second, in 1e9: those of an inner product."""
    return engine.floor("sum(x*z)", (4096, 4096, 256), dtype, target)


def smaller(row: Kron, s: Settings) -> Kron:
    return dataclasses.replace(row, m=max(1, row.m // 16)) if s.quick else row


def lines(s: Settings) -> Iterator[Line]:
    target = engine.targets()[0]
    for row in KRON:
        case = KronCase(smaller(row, s))
        peers = {"numpy, reshaped": numpy_call(case), "torch, reshaped": torch_call(case)}
        calls = {name: call for name, call in peers.items() if call is not None}
        times = best_times({"mercer": case.mercer} | calls, min(s.repeats, 3))
        for name in calls:
            line = Line(row.name, case.row.shape, target=target, seconds=times["mercer"])
            line.gelem = case.row.elements / times["mercer"] / 1e9
            line.peer, line.peer_seconds = name, times[name]
            line.ratio = times[name] / times["mercer"]
            if name.startswith("numpy"):
                line.ratio_bar, line.error, line.error_bar = row.ratio_bar, case.error(), 1e-6
                floor = rate("float32", target)
                line.floor = line.gelem / floor if floor else None
                line.floor_bar = None if s.quick else row.floor_bar
            yield line


def fp64_lines(s: Settings) -> Iterator[Line]:
    for row in KRON[:5]:
        single, double = (KronCase(smaller(row, s), dtype) for dtype in ("float32", "float64"))
        times = best_times({"f32": single.mercer, "f64": double.mercer}, s.repeats)
        line = Line(f"fp64 {row.name}", double.row.shape, "float64", seconds=times["f64"])
        line.gelem = double.row.elements / times["f64"] / 1e9
        line.peer, line.peer_seconds = "mercer float32", times["f32"]
        line.ratio, line.ratio_bar = times["f32"] / times["f64"], FP64_BAR
        yield line


def thread_lines(s: Settings) -> Iterator[Line]:
    """Two threads against one, in wall time: other work on the machine shows here."""
    if usable_cpus() < 2:
        return
    for row in KRON[:5]:
        case = KronCase(smaller(row, s))

        def with_threads(count: int, case: KronCase = case) -> None:
            mercer.set_num_threads(count)
            case.mercer()

        calls = {str(n): functools.partial(with_threads, n) for n in (1, 2)}
        times = best_times(calls, 2 * s.repeats, time.perf_counter)
        mercer.set_num_threads(1)
        line = Line(f"threads {row.name}", case.row.shape, seconds=times["2"], note="wall time")
        line.gelem = case.row.elements / times["2"] / 1e9
        line.peer, line.peer_seconds = "mercer, one thread", times["1"]
        line.ratio, line.ratio_bar = times["1"] / times["2"], THREADS_BAR
        yield line
