"""The estimate of log det a of a KernelOperator with derivatives.

With the probes w and q = P^-1 w of its quadrature, d log det a = tr(a^-1 da) is the mean of
u' da q with a u = w: one more call of cg, which is differentiated as ever, so that further
derivatives are estimates from the same probes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mercer._torch import linalg_cg


class _Followed(torch.autograd.Function):
    @staticmethod
    def forward(
        value: Tensor, system: linalg_cg.System, probes: Tensor, solved: Tensor, *leaves: Tensor
    ) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, ctx.system, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple:
        probes, solved, *leaves = ctx.saved_tensors
        needs = ctx.needs_input_grad[4:]
        wanted = [i for i, need in enumerate(needs) if need]
        u = linalg_cg._solve(ctx.system, probes, leaves)[0]
        g = u * (cotangents[0] / probes.shape[1]).to(u.dtype)
        pulled = iter(linalg_cg._pulled(ctx.system, leaves, wanted, solved, g))
        return None, None, None, None, *(next(pulled) if need else None for need in needs)


def is_followed(a: Any) -> bool:
    """Whether PyTorch records what is computed with a."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in linalg_cg.tensors_of(a))


def followed(value: Tensor, a: Any, probes: Tensor, solved: Tensor, options: dict) -> Tensor:
    system, leaves = linalg_cg.system_of(a, None, {**options, "x0": None, "check": True})
    return _Followed.apply(value, system, probes, solved, *leaves)
