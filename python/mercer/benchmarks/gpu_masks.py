"""Calls on a GPU whose formula has a mask, against the same calls on all pairs: those of a mask
that reads i as ``row``, whose values the host does not know."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import mercer

from .gpu_data import Case
from .gpu_result import GpuLine
from .gpu_settings import GpuSettings

#: Name -> the condition in a formula, and whether (i, j) of n points is kept.
MASKS: dict[str, tuple[str, Callable[[Any, Any, int], Any]]] = {
    "triangle": ("j <= i", lambda i, j, n: j <= i),
    "band": ("abs(i-j) < width", lambda i, j, n: (i - j).abs() < n // 20),
}
GAUSS, SQUARE = "exp(-sum((x-z)^2)/8)", "sum((x-z)^2)"


@dataclasses.dataclass(frozen=True)
class Masked:
    """``call(formula, case, v, params)``; ``rows`` gives rows of the result from values [R, N] and
    v in float64, where the result is checked."""

    verb: str
    value: str
    outside: float
    shape: tuple[int, int, int]
    call: Callable[..., Any]
    rows: Callable[[Any, Any], Any] | None = None


def _product(f: Any, case: Case, v: Any, params: dict[str, Any]) -> Any:
    return mercer.kernel_product(f, case.x, case.z, v, **params)


def _gradient(f: Any, case: Case, v: Any, params: dict[str, Any]) -> Any:
    return mercer.kernel_gradient(f, case.x, case.z, v[:, 0].contiguous(), **params)


def _backward(f: Any, case: Case, v: Any, params: dict[str, Any]) -> Any:
    x, z = (points.detach().requires_grad_() for points in (case.x, case.z))
    return mercer.kernel_product(f, x, z, v, **params).sum().backward()


MASKED = (
    Masked("pairs", GAUSS, 0.0, (30000, 30000, 64), lambda f, c, v, p: mercer.pairwise(
        f, c.x, c.z, **p), lambda values, v: values),
    Masked("product", GAUSS, 0.0, (100000, 100000, 3), _product, lambda values, v: values @ v),
    Masked("gradient", GAUSS, 0.0, (100000, 100000, 3), _gradient),
    Masked("gradient-64", GAUSS, 0.0, (50000, 50000, 64), _gradient),
    Masked("backward", GAUSS, 0.0, (100000, 100000, 3), _backward),
    Masked("knn", SQUARE, float("inf"), (100000, 100000, 8), lambda f, c, v, p:
        mercer.knn(f, c.x, c.z, min(10, c.shape[1]), **p)[0],
        lambda values, v: values.sort(-1).values[:, :10]),
    Masked("argmin", SQUARE, float("inf"), (100000, 100000, 3), lambda f, c, v, p:
        mercer.kernel_reduce(f, c.x, c.z, "argmin", **p), lambda values, v: values.argmin(-1)),
)  # fmt: skip


def mask_lines(name: str, row: Masked, s: GpuSettings) -> Iterator[GpuLine]:
    import torch

    condition, keeps = MASKS[name]
    case = Case(s.shape(row.shape), "normal", "float32", s.device)
    points, v = case.shape[1], case.normal(case.shape[1], 1)
    params: dict[str, Any] = {"width": points // 20} if "width" in condition else {}
    masked = mercer.kernel(f"where({condition}, {row.value}, {row.outside:g})")
    of_rows = re.sub(r"\bi\b", "row", condition)
    everything = mercer.kernel(f"where({of_rows}, {row.value}, {row.outside:g})")
    all_params = {**params, "row": torch.arange(case.shape[0], device=s.device).float()}
    line = GpuLine(f"mask-{name}-{row.verb}", case.shape, peer="mercer, all pairs")
    line.peer_ms = s.watch.median(lambda: row.call(everything, case, v, all_params))
    s.time(line, lambda: row.call(masked, case, v, params))
    if row.rows is not None:
        got, some = row.call(masked, case, v, params), [0, points // 3, points - 1]
        i = torch.tensor(some, device=s.device)[:, None]
        j = torch.arange(points, device=s.device)
        squares = (case.x[some, None].double() - case.z.double()).square().sum(-1)
        values = (-squares / 8).exp() if row.value == GAUSS else squares
        values = values.where(keeps(i, j, points), torch.full_like(values, row.outside))
        exact = row.rows(values, v.double())
        size = row.rows(values, v.double().abs()).abs().clamp(min=1e-30)
        found, finite = got[some].double(), exact.double().isfinite()
        gaps = torch.where(finite, (found - exact).abs() / size, (found != exact).double())
        line.error = float(gaps.max())
        line.error_bar = 8e-6  # of values far below 1, whose relative error is that of exponents
    yield line


def all_rows() -> dict[str, Callable[[GpuSettings], Iterator[GpuLine]]]:
    return {
        f"mask-{name}-{row.verb}": functools.partial(mask_lines, name, row)
        for name in MASKS
        for row in MASKED
    }
