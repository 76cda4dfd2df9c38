"""pykeops.torch: lazy tensors of PyTorch's tensors, whose reductions autograd follows."""

from __future__ import annotations

import torch

from mercer.compat.pykeops._lazy import GenericLazyTensor
from mercer.compat.pykeops._names import names_of

__all__ = [
    "Genred", "KernelSolve", "LazyTensor", "Pm", "Vi", "Vj", "generic_argkmin", "generic_argmin",
    "generic_logsumexp", "generic_sum",
]  # fmt: skip


class LazyTensor(GenericLazyTensor):
    """A formula of tensors of PyTorch."""

    xp, array = torch, torch.Tensor


_names = names_of(LazyTensor)
Vi, Vj, Pm, Genred = (_names[name] for name in ("Vi", "Vj", "Pm", "Genred"))
KernelSolve = _names["KernelSolve"]
generic_sum, generic_logsumexp = _names["generic_sum"], _names["generic_logsumexp"]
generic_argmin, generic_argkmin = _names["generic_argmin"], _names["generic_argkmin"]
