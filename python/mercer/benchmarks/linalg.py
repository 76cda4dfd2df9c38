"""Linear algebra on a GPU and by torch.linalg, which calls cuSOLVER: times, backward errors and how
orthogonal eigenvectors are, of both, in one run.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import mercer

from .gpu_data import points
from .gpu_result import GpuLine
from .gpu_settings import GpuSettings

FEATURES = 8
RIDGE = 1e-3
TOP = 64
SIDES = 16
PROBES = 4
KERNELS = {
    "gauss": "exp(-sum((x-z)^2)/8)",
    "laplace": "exp(-sqrt(sum((x-z)^2))/2)",
    "linear": "sum(x*z)",  # of rank 8: all other eigenvalues are the ridge
}
# Milliseconds, at least and to reach for; batches have BATCH_RATIO.
BARS = {
    "top 64 gauss 4096": (8, 5),
    "top 64 gauss 8192": (10, 6),
    "top 64 gauss 16384": (18, 12),
    "cholesky 8192": (6, 4),
    "cholesky 16384": (25, 18),
    "cholesky 32768": (150, 110),
    "solve_lu 8192": (20, 15),
    "solve_lu 16384": (60, 45),
}
BATCH_RATIO = 1.0  # times as fast as the peer
TOP_ERROR = 1e-6  # of the largest eigenvalue
ERROR_RATIO = 1.5  # of the peer's own
ONE_FULL_EIGH = 8192  # larger ones take torch seconds


@dataclasses.dataclass(frozen=True)
class Top:
    """The largest eigenpairs of a kernel matrix with a ridge."""

    kernel: str
    n: int

    @property
    def name(self) -> str:
        return f"top {TOP} {self.kernel} {self.n}"


@dataclasses.dataclass(frozen=True)
class One:
    """One matrix: cholesky of a kernel's, whose condition is at most n / ridge + 1, or solve_lu."""

    verb: str
    n: int
    ridge: float = RIDGE

    @property
    def name(self) -> str:
        return f"{self.verb} {self.n}" + (f" ridge {self.ridge:g}" if self.ridge != RIDGE else "")


@dataclasses.dataclass(frozen=True)
class Batch:
    """Many small ones: ``verb`` is solve_cholesky, solve_lu or eigh."""

    verb: str
    count: int
    n: int

    @property
    def name(self) -> str:
        return f"{self.verb} {self.count} of {self.n}"


@dataclasses.dataclass(frozen=True)
class Systems:
    """A kernel ridge system by products, with a preconditioner and without."""

    n: int
    rank: int
    sides: int

    @property
    def name(self) -> str:
        return f"cg nystrom {self.n}"


ROWS: tuple[Top | One | Batch | Systems, ...] = (
    *(Top(kernel, n) for n in (4096, 8192, 16384) for kernel in ("gauss", "laplace")),
    Top("linear", 8191),
    *(One("cholesky", n) for n in (8192, 16384, 32768)),
    *(One("cholesky", 8191, ridge) for ridge in (1.0, 1e-4)),
    *(One("solve_lu", n) for n in (8192, 16384, 8191)),
    *(Batch("solve_cholesky", count, n) for count, n in ((500, 100), (4096, 32), (100000, 8))),
    *(Batch("solve_lu", count, n) for count, n in ((500, 100), (4096, 32), (100000, 8))),
    *(Batch("eigh", count, n) for count, n in ((500, 100), (4096, 32), (100000, 8))),
    Systems(20000, 500, 4),
)


def normal(s: GpuSettings, *shape: int, seed: int = 3) -> Any:
    return points("normal", math.prod(shape), 1, "float32", s.device, seed).reshape(shape)


def kernel_matrix(s: GpuSettings, n: int, kernel: str = "gauss", ridge: float = RIDGE) -> Any:
    x = normal(s, n, FEATURES, seed=1)
    a = mercer.kernel_matrix(mercer.kernel(KERNELS[kernel]), x)
    a.diagonal().add_(ridge)
    return a


def times(a: Any, v: Any, rows: int = 4096) -> Any:
    """a v in float64, some rows at a time: a copy of a large matrix would not fit."""
    import torch

    return torch.cat([part.double() @ v for part in a.split(rows)])


def both(
    row: Top | One | Batch | Systems,
    shape: tuple,
    s: GpuSettings,
    ours: Callable,
    peer: str,
    theirs: Callable | None,
    error: Callable,
    vectors: Callable | None = None,
) -> GpuLine:
    """Times of both, and ``error`` of what each gives; how orthogonal its ``vectors`` are."""
    random = isinstance(row, One) and row.verb == "solve_lu"
    line = GpuLine(row.name, shape, data="normal" if random else "kernel matrix")
    measured = s.has_bars()
    if measured:
        line.least, line.reach = BARS.get(row.name, (None, None))

    losses = []

    def judge(result: Any) -> float:
        if vectors is not None:
            losses.append(f"{loss(vectors(result)):.1e}")
            line.note = "v^T v - 1: " + "; its ".join(losses)
        return float(error(result))

    s.time(line, ours)
    line.error = judge(ours())
    if measured and isinstance(row, Top):
        line.error_bar = TOP_ERROR
    if theirs is None:
        return line
    line.peer = peer
    try:
        line.peer_ms, line.peer_error = s.watch.median(theirs), judge(theirs())
    except RuntimeError as problem:  # cuSOLVER's batches have sizes that they do not serve
        line.note = "; ".join(filter(None, (line.note, f"the peer fails: {str(problem)[:60]}")))
        return line
    if measured and not isinstance(row, Systems):
        line.error_bar = line.error_bar or ERROR_RATIO * line.peer_error
    if measured and isinstance(row, Batch):
        line.ratio_bar = BATCH_RATIO
    return line


def loss(v: Any) -> float:
    """The largest element of v^T v - 1, in float64."""
    import torch

    v = v.double()
    return float((v.mT @ v - torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)).abs().max())


def top_lines(row: Top, s: GpuSettings) -> Iterator[GpuLine]:
    """Error: the largest residual, of the largest eigenvalue."""
    import torch

    n = max(4 * TOP, int(row.n * s.scale))
    a = kernel_matrix(s, n, row.kernel)

    def error(pairs: Any) -> Any:
        w, v = (part[..., -TOP:].double() for part in pairs)
        return (times(a, v) - v * w).norm(dim=0).max() / w[-1]

    theirs = (lambda: torch.linalg.eigh(a)) if n <= ONE_FULL_EIGH else None
    yield both(
        row,
        (n, n, TOP),
        s,
        lambda: mercer.linalg.eigh_top(a, TOP),
        "torch.linalg.eigh",
        theirs,
        error,
        lambda pairs: pairs[1][..., -TOP:],
    )


def one_lines(row: One, s: GpuSettings) -> Iterator[GpuLine]:
    """Errors, for random columns: |L L^T v - a v| / |a v|, and |b - a x| / (|a| |x|)."""
    import torch

    n = max(64, int(row.n * s.scale))
    if row.verb == "cholesky":
        a, v = kernel_matrix(s, n, ridge=row.ridge), normal(s, n, PROBES).double()
        exact, out = times(a, v), torch.empty_like(a)

        def factor_error(result: Any) -> Any:
            factor = result[0]
            turned = torch.cat([part.T.double() @ v for part in factor.split(4096, dim=1)])
            return (times(factor, turned) - exact).norm() / exact.norm()

        yield both(
            row,
            (n, n, 1),
            s,
            lambda: mercer.linalg.cholesky(a, out=out, check=False),
            "torch cholesky_ex",
            lambda: torch.linalg.cholesky_ex(a),
            factor_error,
        )
        return
    a, b = normal(s, n, n, seed=1), normal(s, n, SIDES)
    size = a.norm(dtype=torch.float64)

    def error(result: Any) -> Any:
        x = (result[0] if isinstance(result, tuple) else result).double()
        return (times(a, x) - b.double()).norm() / (size * x.norm())

    yield both(
        row,
        (n, n, SIDES),
        s,
        lambda: mercer.linalg.solve_lu(a, b, check=False),
        "torch solve_ex",
        lambda: torch.linalg.solve_ex(a, b),
        error,
    )


def batch_calls(row: Batch, a: Any, b: Any) -> tuple[Callable, str, Callable]:
    import torch

    if row.verb == "eigh":
        return (
            lambda: mercer.linalg.eigh(a, check=False)[0],
            "torch.linalg.eigh",
            lambda: torch.linalg.eigh(a),
        )
    if row.verb == "solve_lu":
        return (
            lambda: mercer.linalg.solve_lu(a, b, check=False),
            "torch solve_ex",
            lambda: torch.linalg.solve_ex(a, b),
        )
    return (
        lambda: mercer.linalg.solve_cholesky(a, b, check=False),
        "torch cholesky, solve",
        lambda: torch.cholesky_solve(b, torch.linalg.cholesky_ex(a)[0]),
    )


def batch_lines(row: Batch, s: GpuSettings) -> Iterator[GpuLine]:
    """Error: the largest residual of the batch, of |a| |x|, or of |a| for eigenpairs."""
    count = max(4, int(row.count * s.scale))
    x = normal(s, count, row.n, FEATURES, seed=1)
    a = mercer.pairwise(mercer.kernel(KERNELS["gauss"]), x, x)
    a.diagonal(dim1=-2, dim2=-1).add_(RIDGE)
    b = normal(s, count, row.n, 1)
    ours, peer, theirs = batch_calls(row, a, b)
    wide = a.double()
    sizes = wide.flatten(1).norm(dim=1)

    def error(result: Any) -> Any:
        if row.verb == "eigh":
            w, v = result[0].double(), result[1].double()
            return ((wide @ v - v * w.unsqueeze(-2)).flatten(1).norm(dim=1) / sizes).max()
        found = (result[0] if isinstance(result, tuple) else result).double()
        rest = (wide @ found - b.double()).flatten(1).norm(dim=1)
        return (rest / (sizes * found.flatten(1).norm(dim=1))).max()

    vectors = (lambda pairs: pairs[1]) if row.verb == "eigh" else None
    yield both(row, (count, row.n, row.n), s, ours, peer, theirs, error, vectors)


def system_lines(row: Systems, s: GpuSettings) -> Iterator[GpuLine]:
    """The whole of a solve, the preconditioner's making with it. Error: |b - a x| / |b|."""
    n = max(256, int(row.n * s.scale))
    rank, ridge = min(row.rank, n // 4), 0.1
    x, b = normal(s, n, 3, seed=1), normal(s, n, row.sides)
    operator = mercer.linalg.KernelOperator(mercer.kernel(KERNELS["gauss"]), x, ridge=ridge)

    def preconditioned() -> Any:
        inverse = mercer.linalg.nystrom(operator, rank)
        return mercer.linalg.cg(operator, b, preconditioner=inverse, check=False)

    def alone() -> Any:
        return mercer.linalg.cg(operator, b, check=False)

    def error(result: Any) -> Any:
        found, wide = result[0].double(), x.double()
        product = mercer.kernel_product(mercer.kernel(KERNELS["gauss"]), wide, wide, found)
        return (b.double() - product - ridge * found).norm() / b.double().norm()

    line = both(row, (n, n, row.sides), s, preconditioned, "mercer, alone", alone, error)
    taken = int(preconditioned()[2].max()), int(alone()[2].max())
    line.note = f"{taken[0]} products and rank {rank}, alone {taken[1]}"
    yield line


LINES: dict[type, Callable[[Any, GpuSettings], Iterator[GpuLine]]] = {
    Top: top_lines, One: one_lines, Batch: batch_lines, Systems: system_lines,
}  # fmt: skip


def all_rows() -> dict[str, Callable[[GpuSettings], Iterator[GpuLine]]]:
    return {row.name: functools.partial(LINES[type(row)], row) for row in ROWS}
