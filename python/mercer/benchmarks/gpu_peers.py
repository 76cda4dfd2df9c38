"""The peers on a GPU: what PyTorch offers, called the fastest way that it has.

``make(x, z)`` gives ``call(rows)``: the first ``rows`` rows. ``most_rows`` bounds what is timed at
once: where the whole would not fit or would take minutes, some rows are timed and scaled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str
    make: Callable
    most_rows: int | None = None
    columns: int = 1  # of v


def _computed(tensor: Any) -> Any:
    """torch.cdist takes float32 and float64 only; converted before the clock runs."""
    import torch

    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def cdist(p: float, mm: bool | None = None) -> Peer:
    """torch.cdist; ``mm``: by a matrix product, or as direct differences."""
    mode = {
        None: "use_mm_for_euclid_dist_if_necessary",
        True: "use_mm_for_euclid_dist",
        False: "donot_use_mm_for_euclid_dist",
    }[mm]

    def make(x: Any, z: Any) -> Callable[[int], Any]:
        import torch

        x, z = _computed(x), _computed(z)
        return lambda rows: torch.cdist(x[:rows], z, p=p, compute_mode=mode)

    how = {None: "", True: " (mm)", False: " (direct)"}[mm]
    return Peer(f"torch.cdist p={p:g}{how}", make)


def gauss(bandwidth: float) -> Peer:
    """exp(-cdist^2 / (2 bandwidth^2)) by a matrix product, in place."""

    def make(x: Any, z: Any) -> Callable[[int], Any]:
        import torch

        x, z = _computed(x), _computed(z)
        scale = -1 / (2 * bandwidth * bandwidth)
        mode = "use_mm_for_euclid_dist"
        return lambda rows: torch.cdist(x[:rows], z, compute_mode=mode).square_().mul_(scale).exp_()

    return Peer("torch.cdist (mm), exp", make)


def gauss_times_product(h: float) -> Peer:
    """exp(-cdist^2 / h) times x @ z.T, in place where it can be."""

    def make(x: Any, z: Any) -> Callable[[int], Any]:
        import torch

        x, z = _computed(x), _computed(z)
        mode = "use_mm_for_euclid_dist"

        def call(rows: int) -> Any:
            squares = torch.cdist(x[:rows], z, compute_mode=mode).square_()
            return squares.mul_(-1 / h).exp_().mul_(x[:rows] @ z.T)

        return call

    return Peer("torch.cdist (mm), exp, @", make)


def matmul() -> Peer:
    """x @ z.T in the computing type."""

    def make(x: Any, z: Any) -> Callable[[int], Any]:
        x, z = _computed(x), _computed(z)
        return lambda rows: x[:rows] @ z.T

    return Peer("torch x @ z.T", make)


def laplace(bandwidth: float) -> Peer:
    """exp(-cdist / bandwidth), in place."""

    def make(x: Any, z: Any) -> Callable[[int], Any]:
        import torch

        return lambda rows: torch.cdist(x[:rows], z, p=1).div_(-bandwidth).exp_()

    return Peer("torch.cdist, exp", make)


def _product(name: str, values: Callable, columns: int) -> Peer:
    """A matrix of some rows at a time, multiplied with ones."""

    def make(x: Any, z: Any) -> Callable[[int], Any]:
        import torch

        v = torch.ones(len(z), columns, dtype=z.dtype, device=z.device)
        return lambda rows: values(x[:rows], z) @ v

    return Peer(f"{name}, @ v", make, most_rows=4000, columns=columns)


def laplace_product(bandwidth: float, columns: int = 1) -> Peer:
    def values(x: Any, z: Any) -> Any:
        import torch

        return torch.cdist(x, z, p=1).div_(-bandwidth).exp_()

    return _product("torch.cdist, exp", values, columns)


def gauss_product(bandwidth: float, columns: int = 1) -> Peer:
    def values(x: Any, z: Any) -> Any:
        import torch

        squares = torch.cdist(x, z, compute_mode="use_mm_for_euclid_dist").square_()
        return squares.mul_(-1 / (2 * bandwidth * bandwidth)).exp_()

    return _product("torch.cdist (mm), exp", values, columns)


def gauss_backward(bandwidth: float, columns: int) -> Peer:
    """The gradients by x, z and v by matrix products; the matrix is made some rows at a time."""

    def make(x: Any, z: Any) -> Callable[[int], Any]:
        import torch

        scale = -1 / (2 * bandwidth * bandwidth)
        u, v = (torch.ones(len(t), columns, device=z.device) for t in (x, z))

        def call(rows: int) -> Any:
            by_z, by_v = torch.zeros_like(z), torch.zeros_like(v)
            for first in range(0, rows, 2000):
                part, own = x[first : min(rows, first + 2000)], u[first : min(rows, first + 2000)]
                values = torch.cdist(part, z, compute_mode="use_mm_for_euclid_dist").square_()
                values.mul_(scale).exp_()
                by_v += values.mT @ own
                values *= (own @ v.mT).mul_(2 * scale)
                part * values.sum(1, keepdim=True) - values @ z
                by_z += z * values.sum(0).unsqueeze(1) - values.mT @ part
            return by_z, by_v

        return call

    return Peer("torch, matmuls", make, most_rows=10000, columns=columns)


def gauss_matrix_backward(bandwidth: float) -> Peer:
    """Autograd's backward of the matrix, by x and z, from what its forward by a product kept."""

    def make(x: Any, z: Any) -> Callable[[int], Any]:
        import torch

        own, others = x.clone().requires_grad_(), z.clone().requires_grad_()
        norms = (own * own).sum(1, keepdim=True) + (others * others).sum(1)
        out = torch.exp((norms - 2 * own @ others.mT) * (-1 / (2 * bandwidth * bandwidth)))
        cotangent = torch.randn_like(out)
        return lambda rows: torch.autograd.grad(out, [own, others], cotangent, retain_graph=True)

    return Peer("torch, autograd", make)


def gauss_weights_backward(bandwidth: float, columns: int) -> Peer:
    """Autograd's backward of a product by x, z, v and the weights of the features, of scaled points
    and a stored matrix."""

    def make(x: Any, z: Any) -> Callable[[int], Any]:
        import torch

        leaves = [x.clone(), z.clone(), torch.randn(len(z), columns, device=z.device)]
        leaves = [t.requires_grad_() for t in [*leaves, torch.ones_like(x[0])]]
        own, others = (points * leaves[3].sqrt() for points in leaves[:2])
        norms = (own * own).sum(1, keepdim=True) + (others * others).sum(1)
        values = torch.exp((norms - 2 * own @ others.mT) * (-1 / (2 * bandwidth * bandwidth)))
        out = values @ leaves[2]
        cotangent = torch.randn_like(out)
        return lambda rows: torch.autograd.grad(out, leaves, cotangent, retain_graph=True)

    return Peer("torch, autograd", make, columns=columns)


def cosine_backward(columns: int) -> Peer:
    """The gradients of a cosine by x, z and v, by products of normalised points."""

    def make(x: Any, z: Any) -> Callable[[int], Any]:
        import torch

        u, v = (torch.ones(len(t), columns, device=z.device) for t in (x, z))

        def by_points(by_unit: Any, unit: Any, norm: Any) -> Any:
            return (by_unit - unit * (by_unit * unit).sum(1, keepdim=True)) / norm

        def call(rows: int) -> Any:
            norm_z = z.norm(dim=1, keepdim=True)
            unit_z = z / norm_z
            by_z, by_v = torch.zeros_like(z), torch.zeros_like(v)
            for first in range(0, rows, 2000):
                part, own = x[first : min(rows, first + 2000)], u[first : min(rows, first + 2000)]
                norm = part.norm(dim=1, keepdim=True)
                unit = part / norm
                by_v += (unit @ unit_z.mT).mT @ own
                weights = own @ v.mT
                by_points(weights @ unit_z, unit, norm)
                by_z += weights.mT @ unit
            return by_points(by_z, unit_z, norm_z), by_v

        return call

    return Peer("torch, matmuls", make, most_rows=10000, columns=columns)


def nearest(p: float, count: int) -> Peer:
    """torch.cdist and topk, 500 rows at a time."""
    mode = "use_mm_for_euclid_dist" if p == 2 else "donot_use_mm_for_euclid_dist"

    def make(x: Any, z: Any) -> Callable[[int], Any]:
        import torch

        def call(rows: int) -> Any:
            for first in range(0, rows, 500):
                part = x[first : min(rows, first + 500)]
                torch.cdist(part, z, p=p, compute_mode=mode).topk(min(count, len(z)), largest=False)

        return call

    return Peer("torch.cdist, topk", make, most_rows=2000 if p == 2 else 500)


def gauss_gradients(bandwidth: float, outputs: int, agop: bool = False) -> Peer:
    """The gradients of exp(-cdist^2 / (2 bandwidth^2)) by matrix products, output by output."""

    def make(x: Any, z: Any) -> Callable[[int], Any]:
        import torch

        scale = -1 / (2 * bandwidth * bandwidth)
        coef = torch.ones(outputs, len(z), device=z.device)

        def call(rows: int) -> Any:
            part = x[:rows]
            values = torch.cdist(part, z, compute_mode="use_mm_for_euclid_dist").square_()
            values.mul_(scale).exp_().mul_(2 * scale)
            total = x.new_zeros(x.shape[1], x.shape[1])
            for o in range(outputs):
                weighted = values * coef[o]
                gradient = part * weighted.sum(1, keepdim=True) - weighted @ z
                if agop:
                    total += gradient.mT @ gradient
            return total

        return call

    return Peer("torch, outer products" if agop else "torch, matmuls", make)
