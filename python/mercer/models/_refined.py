"""Systems of float64 by a factor of float32, which takes half of the time and of the memory.

Residuals are measured by products in float64, so that each solution with the factor takes the
condition times float32's rounding of the error that is left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import mercer as mc
from mercer.models._costs import LEAST, PROMISES

if TYPE_CHECKING:
    from mercer.models._solve import System

#: What each step is to leave of the one before it, at most.
LEAVES = 0.1
#: The last step, as a part of the solution; and where rounding ends them, at most.
DONE, ENOUGH = 1e-12, 1e-9
#: A step that is not worth a product: no more than rounding in float64.
NOTHING = 1e-14
STEPS = 12


@np.errstate(over="ignore")  # points beyond float32 promise nothing
def solve(system: System, b: Any) -> Any | None:
    """(S K S + ridge)^-1 b for b [n, k]; None where float32 does not serve."""
    n, k = b.shape
    is_wide = system.space.dtype == "float64" and not system.space.on_device
    if not is_wide or n < LEAST or k > n // 100:
        return None
    narrow = system.space.of("float32")
    weights = None if system.weights is None else narrow.array(system.weights)
    small = replace(system, x=narrow.array(system.x), space=narrow, weights=weights)
    if not _promises(small):
        return None
    factor, info = mc.linalg.cholesky(small.matrix(), overwrite_a=True, check=False)
    return None if int(info) else _steps(system, factor, b)


def _promises(system: System) -> bool:
    """Whether the condition, from below, is far from 1 / float32's rounding."""
    ones = system.space.zeros(system.n, 1) + 1
    largest = float(system.product(ones).sum()) / system.n
    return float(np.finfo(np.float32).eps) * largest <= PROMISES * system.ridge


@np.errstate(all="ignore")  # what is not finite is no solution
def _steps(system: System, factor: Any, b: Any) -> Any | None:
    space, narrow = system.space, system.space.of("float32")
    x, rest, last = space.zeros(*b.shape), b, np.inf
    for _ in range(STEPS):
        lengths = space.norms(rest)
        units = space.array(np.where(lengths > 0, lengths, 1))
        step = space.array(mc.linalg.cho_solve(factor, narrow.array(rest / units))) * units
        x = x + step
        sizes = space.norms(x)
        size = float((space.norms(step) / np.where(sizes > 0, sizes, 1)).max(initial=0))
        if not np.isfinite(size) or size <= DONE:
            break
        if size > LEAVES * last:
            break
        if last < np.inf and size * (size / last) <= NOTHING:  # the next one, about
            break
        rest, last = b - system.product(x), size
    return x if size <= ENOUGH else None
