"""kernel_tools.kernels on Mercer: matrices ``[N, M]`` of kernels of float32 or float64 tensors.

samples: ``[N, K]``, centers: ``[M, K]`` on the same device; PyTorch's autograd goes through.
"""

from __future__ import annotations

import functools

import torch

import mercer as mc

__all__ = [
    "EPSILON", "dispersal", "euclidean", "gaussian", "laplacian", "ntk_relu",
    "ntk_relu_unit_sphere",
]  # fmt: skip

EPSILON = 1e-12
_EUCLIDEAN, _SQUARED = mc.kernel("euclidean"), mc.kernel("sqeuclidean")
_GAUSSIAN, _LAPLACIAN = mc.metric("gauss"), mc.metric("laplace", p=2)
_DISPERSAL = mc.metric("dispersal")


def euclidean(samples: torch.Tensor, centers: torch.Tensor, squared: bool = True) -> torch.Tensor:
    """Squared distances, or distances."""
    return mc.pairwise(_SQUARED if squared else _EUCLIDEAN, samples, centers)


def gaussian(samples: torch.Tensor, centers: torch.Tensor, bandwidth: float) -> torch.Tensor:
    """exp(-d^2 / (2 bandwidth^2)) of the distances d."""
    _check_bandwidth(bandwidth)
    return mc.pairwise(_GAUSSIAN, samples, centers, bandwidth=bandwidth)


def laplacian(samples: torch.Tensor, centers: torch.Tensor, bandwidth: float) -> torch.Tensor:
    """exp(-d / bandwidth) of the distances d."""
    _check_bandwidth(bandwidth)
    return mc.pairwise(_LAPLACIAN, samples, centers, bandwidth=bandwidth)


def dispersal(
    samples: torch.Tensor, centers: torch.Tensor, bandwidth: float, gamma: float
) -> torch.Tensor:
    """exp(-d^gamma / bandwidth) of the distances d."""
    _check_bandwidth(bandwidth)
    return mc.pairwise(_DISPERSAL, samples, centers, bandwidth=bandwidth, gamma=gamma)


def ntk_relu(
    X: torch.Tensor, Z: torch.Tensor | None, depth: int = 1, bias: float = 0.0
) -> torch.Tensor:
    """The neural tangent kernel of a fully connected ReLU network of ``depth`` layers."""
    return mc.pairwise(_ntk(depth), X, Z, bias=bias)


def ntk_relu_unit_sphere(
    X: torch.Tensor, Z: torch.Tensor | None, depth: int = 1, bias: float = 0.0
) -> torch.Tensor:
    """ntk_relu for points of norm 1, which is not checked."""
    return mc.pairwise(_ntk_of_unit_vectors(depth), X, Z, bias=bias)


@functools.cache
def _ntk(depth: int) -> mc.Expr:
    return mc.metric("ntk_relu", depth=depth)


@functools.cache
def _ntk_of_unit_vectors(depth: int) -> mc.Expr:
    steps = ["c = sum(x*z)", "v = c + bias^2"]
    for _ in range(1, depth):
        steps += [
            f"c = max(min(c, 1 - {EPSILON}), {EPSILON} - 1)",
            "a = 1 - acos(c)/pi",
            "c = c*a + sqrt(1 - c*c)/pi",
            "v = v*a + c + bias^2",
        ]
    return mc.kernel("; ".join([*steps, "v"]))


def _check_bandwidth(bandwidth: float) -> None:
    if isinstance(bandwidth, (int, float)) and bandwidth <= 0:
        raise ValueError(f"bandwidth must be positive. Received {bandwidth}")
