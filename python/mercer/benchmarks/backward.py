"""The backward of a product with a Gauss kernel, by x, z, v and the width, through PyTorch.

The peer is PyTorch's autograd of products of matrices, which stores the kernel's matrix.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import mercer

from . import engine
from .data import Case
from .result import Line
from .settings import Settings
from .timing import best_times


@dataclasses.dataclass(frozen=True)
class Backward:
    """N x N points of K features, E columns of v."""

    points: int
    features: int
    columns: int
    ratio_bar: float | None

    @property
    def name(self) -> str:
        return f"backward-d{self.features}-{self.columns}"


BACKWARDS = (
    Backward(4000, 3, 1, 3.0),
    Backward(4000, 3, 16, 3.0),
    Backward(3000, 64, 1, 1.2),
    Backward(3000, 64, 16, 1.2),
    Backward(2000, 300, 1, None),  # a product of matrices is half the operations of differences
    Backward(2000, 784, 10, None),
)
ERROR_BAR = 1e-5  # of the largest value of a gradient


class _Operands:
    """Leaves, and the cotangent of the product."""

    def __init__(self, row: Backward, dtype: str) -> None:
        import torch

        torch.manual_seed(0)
        n, kind = row.points, getattr(torch, dtype)
        sizes = ((n, row.features), (n, row.features), (n, row.columns), (n, row.columns))
        x, z, v, self.cotangent = (torch.randn(*size).to(kind) for size in sizes)
        width = torch.tensor(2.0 * row.features, dtype=kind)
        self.leaves = [t.requires_grad_() for t in (x, z, v, width)]

    def backward_of(self, out: Any) -> Callable[[], Any]:
        import torch

        return lambda: torch.autograd.grad(out, self.leaves, self.cotangent, retain_graph=True)

    def ours(self) -> Callable[[], Any]:
        x, z, v, width = self.leaves
        return self.backward_of(mercer.kernel_product("exp(-sum((x-z)^2)/h)", x, z, v, h=width))

    def theirs(self) -> Callable[[], Any]:
        x, z, v, width = self.leaves
        squares = (x * x).sum(1)[:, None] + (z * z).sum(1) - 2 * x @ z.T
        return self.backward_of((-squares.clamp_min(0) / width).exp() @ v)


def lines(row: Backward, s: Settings) -> Iterator[Line]:
    """float32, one thread, the best target."""
    if importlib.util.find_spec("torch") is None:
        return
    if s.quick:
        row = dataclasses.replace(row, points=row.points // 4)
    single = _Operands(row, "float32")
    calls = {"mercer": single.ours(), "torch": single.theirs()}
    shape = (row.points, row.points, row.features)
    line = Line(row.name, shape, target=engine.targets()[0], ratio_bar=row.ratio_bar)
    line.error, line.error_bar = _error(calls["mercer"](), row), ERROR_BAR
    times = best_times(calls, s.repeats)
    line.seconds, line.peer_seconds = times["mercer"], times["torch"]
    line.gelem = Case(*shape).elements / line.seconds / 1e9
    line.peer, line.ratio = "torch autograd (mm)", line.peer_seconds / line.seconds
    yield line


def _error(found: tuple, row: Backward) -> float:
    """Largest of all gradients, of that gradient's largest value in float64."""
    exact = _Operands(row, "float64").theirs()()
    pairs = zip(found, exact, strict=True)
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)
