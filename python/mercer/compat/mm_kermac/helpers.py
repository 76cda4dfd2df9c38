"""mm_kermac.helpers: comparisons, and references by PyTorch that make all values of the sums."""

from __future__ import annotations

import torch

__all__ = ["compare_tensors", "torch_einsum_L2_norm", "torch_inefficient_p_norm"]


def compare_tensors(tensor_a: torch.Tensor, tensor_b: torch.Tensor) -> None:
    """Prints the root of the mean squared, the largest and the mean absolute difference."""
    error = (tensor_a - tensor_b).abs()
    for name, value in (
        ("Root Mean Squared Error", error.square().mean().sqrt()),
        ("Max Absolute Error", error.max()),
        ("Mean Absolute Error", error.mean()),
    ):
        print(f"\t{name + ':':<28} {value.item():.6e}")


def torch_einsum_L2_norm(
    x: torch.Tensor, z: torch.Tensor, coefs: torch.Tensor, grad_kernel_matrix: torch.Tensor
) -> torch.Tensor:
    """sum over k of coefs[o, k] grad_kernel_matrix[k, m] (z[n, m] - x[n, k]), ``[B, O, N, M]``."""
    return torch_inefficient_p_norm(x, z, coefs, grad_kernel_matrix, 2.0)


def torch_inefficient_p_norm(
    x: torch.Tensor,
    z: torch.Tensor,
    coefs: torch.Tensor,
    grad_kernel_matrix: torch.Tensor,
    p: float,
    eps: float = 0.0,
) -> torch.Tensor:
    """That sum with sign(t) max(|t|, eps)^(p - 1) in place of t = z[n, m] - x[n, k].

    x: ``[B, N, K]``, z: ``[B, N, M]``, coefs: ``[B, O, K]``, grad_kernel_matrix: ``[B, K, M]``.
    """
    t = z[:, :, :, None] - x[:, :, None, :]
    g = t if p == 2 and eps == 0 else t.sign() * t.abs().clamp_min(eps) ** (p - 1)
    return torch.einsum("bok,bkm,bnmk->bonm", coefs, grad_kernel_matrix, g)
