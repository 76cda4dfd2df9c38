"""Points on the device, made there, the same for all contestants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

KINDS = ("normal", "uniform", "integer", "lognormal", "mixed", "sparse", "3 clusters in order")


def clusters(kind: str, values: Any) -> Any:
    """Points around centres; those of "10 clusters in order" lie by centre."""
    import torch

    count, features = values.shape
    centres = int(kind.split()[0])
    generator = torch.Generator(values.device).manual_seed(9)
    options = {"generator": generator, "dtype": values.dtype, "device": values.device}
    centre = torch.randn(centres, features, **options)
    order = torch.arange(count, device=values.device) * centres // count
    if not kind.endswith("in order"):
        order = order[torch.randperm(count, generator=generator, device=values.device)]
    return centre[order] + values * 1e-2


def points(kind: str, count: int, features: int, dtype: str, device: str, seed: int) -> Any:
    """[count, features] of a kind; "mixed" are features of scales from 1e-3 to 1e3; five in a
    hundred "sparse" values are not zero."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    wide = torch.float64 if dtype == "float64" else torch.float32
    options = {"generator": generator, "device": device}
    if kind == "integer":
        whole = torch.randint(0, 256, (count, features), **options)
        return whole.to(getattr(torch, dtype))
    if kind == "uniform":
        values = torch.rand(count, features, dtype=wide, **options)
    else:
        values = torch.randn(count, features, dtype=wide, **options)
    if "clusters" in kind:
        values = clusters(kind, values)
    if kind == "lognormal":
        values = values.exp_()
    if kind == "sparse":
        values *= torch.rand(count, features, **options) < 0.05
    if kind == "mixed":
        values *= torch.logspace(-3, 3, features, dtype=wide, device=device)
    return values.to(getattr(torch, dtype))


class Case:
    """x [M, K], z [N, K] and, when asked for, an output and v."""

    def __init__(self, shape: tuple[int, int, int], kind: str, dtype: str, device: str) -> None:
        m, n, k = shape
        self.shape, self.device = shape, device
        self.x = points(kind, m, k, dtype, device, 1)
        self.z = points(kind, n, k, dtype, device, 2)

    def empty(self, *shape: int, dtype: str = "float32") -> Any:
        """An output full of NaN: what a call leaves out shows in the error."""
        import torch

        return torch.full(shape, float("nan"), dtype=getattr(torch, dtype), device=self.device)

    def normal(self, *shape: int) -> Any:
        """Right-hand sides or coefficients."""
        return points("normal", shape[0], shape[1] if shape[1:] else 1, "float32", self.device, 3)


def median_square(case: Case, pairs: int = 4096) -> float:
    """The median of the squared distances of some pairs."""
    import torch

    generator = torch.Generator(case.device).manual_seed(5)
    options = {"generator": generator, "device": case.device}
    rows = torch.randint(0, case.shape[0], (pairs,), **options)
    cols = torch.randint(0, case.shape[1], (pairs,), **options)
    return float((case.x[rows].double() - case.z[cols].double()).square().sum(-1).median())


def sampled_error(
    out: Any,
    case: Case,
    reference: Callable[..., Any],
    pairs: int = 4096,
    *,
    of_points: bool = False,
) -> float:
    """Largest error of some pairs against float64, relative to the value.

    ``of_points``: of a function of x · z, relative to the larger of it and that of |x| |z|.
    """
    import torch

    m, n, _ = case.shape
    generator = torch.Generator(case.device).manual_seed(4)
    rows = torch.randint(0, m, (pairs,), generator=generator, device=case.device)
    cols = torch.randint(0, n, (pairs,), generator=generator, device=case.device)
    x, z = case.x[rows].double(), case.z[cols].double()
    exact = reference(x, z) if of_points else reference(x - z)
    scale = exact.abs()
    if of_points:
        along = z * (x.norm(dim=-1) / z.norm(dim=-1)).unsqueeze(-1)
        scale = scale.maximum(reference(along, z).abs())
    return worst((out[rows, cols].double() - exact).abs(), scale)


def worst(difference: Any, scale: Any) -> float:
    """The largest ratio; NaN where one is NaN."""
    return float((difference / scale.clamp(min=1e-300)).max())


def product_error(
    out: Any, case: Case, v: Any, reference: Callable[..., Any], rows: int = 16
) -> float:
    """Largest error of some rows against float64, relative to sum |K| |v|."""
    found = []
    for m in range(0, case.shape[0], max(1, case.shape[0] // rows)):
        values = reference(case.x[m].double() - case.z.double())
        exact, scale = values @ v.double(), values.abs() @ v.double().abs()
        found.append(worst((out[m].double() - exact).abs(), scale))
    return max(found, key=lambda e: (e != e, e))


def nearest_error(values: Any, case: Case, reference: Callable[..., Any], rows: int = 16) -> float:
    """Largest error of some rows' values against the smallest in float64, relative to these."""
    found = []
    for m in range(0, case.shape[0], max(1, case.shape[0] // rows)):
        exact = reference(case.x[m].double() - case.z.double())
        exact = exact.topk(values.shape[1], largest=False).values
        found.append(worst((values[m].double() - exact).abs(), exact.abs()))
    return max(found, key=lambda e: (e != e, e))


def agop_error(out: Any, gradients: Any) -> float:
    """Largest error against the gradients' products in float64, relative to their norms."""
    exact = out.double() * 0
    for part in gradients.split(1 << 14):
        exact += part.double().mT @ part.double()
    norms = exact.diagonal().sqrt()
    return worst((out.double() - exact).abs(), norms[:, None] * norms)


def gradient_error(
    out: Any, case: Case, weights_of: Callable[[int], Any], slope: Callable[..., Any], rows: int = 4
) -> float:
    """Largest error of some rows m against float64, relative to sum |weight| |slope|.

    ``weights_of(m)``: [outputs, N], float64.
    """
    found = []
    for m in range(0, case.shape[0], max(1, case.shape[0] // rows)):
        slopes = slope(case.x[m].double(), case.z.double())
        weights = weights_of(m)
        exact = weights @ slopes
        scale = weights.abs() @ slopes.abs()
        found.append(worst((out[:, m].double() - exact).abs(), scale))
    return max(found, key=lambda e: (e != e, e))
