"""pykeops.numpy: lazy tensors of arrays of NumPy."""

from __future__ import annotations

import numpy as np

from mercer.compat.pykeops._lazy import GenericLazyTensor
from mercer.compat.pykeops._names import names_of

__all__ = [
    "Genred", "KernelSolve", "LazyTensor", "Pm", "Vi", "Vj", "generic_argkmin", "generic_argmin",
    "generic_logsumexp", "generic_sum",
]  # fmt: skip


class LazyTensor(GenericLazyTensor):
    """A formula of arrays of NumPy."""

    xp, array = np, np.ndarray


_names = names_of(LazyTensor)
Vi, Vj, Pm, Genred = (_names[name] for name in ("Vi", "Vj", "Pm", "Genred"))
KernelSolve = _names["KernelSolve"]
generic_sum, generic_logsumexp = _names["generic_sum"], _names["generic_logsumexp"]
generic_argmin, generic_argkmin = _names["generic_argmin"], _names["generic_argkmin"]
