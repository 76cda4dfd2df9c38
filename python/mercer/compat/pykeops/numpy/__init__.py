"""pykeops.numpy: lazy tensors of arrays of NumPy."""

from __future__ import annotations

import numpy as np

from mercer.compat.pykeops._lazy import GenericLazyTensor
from mercer.compat.pykeops._names import NAMES, names_of

__all__ = list(NAMES)


class LazyTensor(GenericLazyTensor):
    """A formula of arrays of NumPy."""

    xp, array = np, np.ndarray


(
    Genred, KernelSolve, Pm, Vi, Vj, generic_argkmin, generic_argmin, generic_logsumexp,
    generic_sum,
) = names_of(LazyTensor)  # fmt: skip
