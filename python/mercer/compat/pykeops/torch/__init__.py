"""pykeops.torch: lazy tensors of PyTorch's tensors, whose reductions autograd follows."""

from __future__ import annotations

import torch

from mercer.compat.pykeops._lazy import GenericLazyTensor
from mercer.compat.pykeops._names import NAMES, names_of

__all__ = list(NAMES)


class LazyTensor(GenericLazyTensor):
    """A formula of tensors of PyTorch."""

    xp, array = torch, torch.Tensor


(
    Genred, KernelSolve, Pm, Vi, Vj, generic_argkmin, generic_argmin, generic_logsumexp,
    generic_sum,
) = names_of(LazyTensor)  # fmt: skip
