"""Definitions in float64, as direct sums, for the tests of drop-in modules."""

from __future__ import annotations

import torch


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().double().cpu()


def differences(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a[..., m, None, k] - b[..., None, n, k] in float64."""
    return wide(a)[..., :, None, :] - wide(b)[..., None, :, :]


def products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return wide(a)[..., :, None, :] * wide(b)[..., None, :, :]


def field(a, b, c, d, g):
    """sum over k of c[o, k] a[k, m] g(d[n, m] - b[n, k]), [..., O, N, M], in float64."""
    t = wide(d)[..., :, :, None] - wide(b)[..., :, None, :]
    return torch.einsum("...ok,...km,...nmk->...onm", wide(c), wide(a), g(t))


def assert_close(result: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-5) -> None:
    """Relative to the value, and to the largest one near zero."""
    result = wide(result)
    assert result.shape == expected.shape
    finite = expected[expected.isfinite()].abs()
    largest = max(1.0, float(finite.max())) if finite.numel() else 1.0
    torch.testing.assert_close(
        result, expected, rtol=tolerance, atol=0.1 * tolerance * largest, equal_nan=True
    )
