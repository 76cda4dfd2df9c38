"""The estimate of log det a of a KernelOperator with derivatives.

With the probes w and q = P^-1 w of its quadrature, d log det a = tr(a^-1 da) is the mean of
u' da q with a u = w: one more call of cg, which is differentiated as ever, so that more
derivatives are estimates from the same probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mercer._torch import autograd, batching, linalg_cg, table


def _value(
    system: linalg_cg.System,
    value: Tensor,
    probes: Tensor,
    solved: Tensor,
    leaves: Sequence[Tensor],
) -> Tensor:
    return value.clone()


def _gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    system, _, probes, solved, leaves = inputs
    wanted = [i for i, need in enumerate(needs[4]) if need]
    u = linalg_cg._solve(system, probes, leaves)[0]
    g = u * (cotangents[0] / probes.shape[1]).to(u.dtype)
    pulled = iter(linalg_cg._pulled(system, leaves, wanted, solved, g))
    return None, None, None, None, [next(pulled) if need else None for need in needs[4]]


def _tangent(inputs: tuple, outputs: tuple, given: tuple) -> Tensor:
    (system, value, probes, solved, leaves), along = inputs, given[4]
    moving = [i for i, direction in enumerate(along) if direction is not None]
    u = linalg_cg._solve(system, probes, leaves)[0]
    moved = linalg_cg._moved(system, leaves, moving, solved, [along[i] for i in moving])
    return (u.to(value.dtype) * moved.to(value.dtype)).sum() / probes.shape[1]


def _mapped(name: str, info: Any, in_dims: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
    """Nothing is computed that the leaves have a part in."""
    value = batching.Operand(inputs[1], in_dims[1], 0).tensor
    return value.expand(info.batch_size), 0


table.FUNCTIONS["estimate"] = _value
table.GRADIENTS["estimate"], table.TANGENTS["estimate"] = _gradients, _tangent
table.MAPPED["estimate"] = _mapped


def is_followed(a: Any) -> bool:
    """Whether PyTorch records what is computed with a."""
    tensors = linalg_cg.tensors_of(a)
    is_wrapped = any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))
    if is_wrapped or forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def followed(value: Tensor, a: Any, probes: Tensor, solved: Tensor, options: dict) -> Tensor:
    system, leaves = linalg_cg.system_of(a, None, {**options, "x0": None, "check": True})
    return autograd.call("estimate", system, value, probes, solved, leaves)
