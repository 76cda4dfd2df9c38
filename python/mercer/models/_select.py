"""How well a fit predicts what it has not seen: left-one-out, exactly, and generalised.

With A = S K S + ridge the leverage of point i is h_i = 1 - ridge (A^-1)_ii, and what its residual
would be without it is r_i / (1 - h_i). A point of weight w > 1 counts as w points of which one is
left out: h_i / w, as if it were repeated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mercer as mc
from mercer.models._arrays import host
from mercer.models._solve import Solution, System, add_diagonal


def inverse_diagonal(system: System, factor: Any) -> Any:
    """The diagonal [n] of A^-1 from A's lower Cholesky factor."""
    eye = system.space.zeros(system.n, system.n)
    add_diagonal(eye, 1.0)
    return mc.linalg.cho_solve(factor, eye, overwrite_b=True).reshape(-1)[:: system.n + 1]


def mean_inverse(system: System, solution: Solution, seed: int, probes: int = 16) -> float:
    """The mean of the diagonal of A^-1 from random signs."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (system.n, probes))
    z = system.space.array(signs)
    answer = system.inverse(z, solution.preconditioner, tol=1e-2)
    return float(host((z * answer).sum())) / (probes * system.n)


def left_out(system: System, solution: Solution, diagonal: Any) -> Any:
    """y - f [n, k] of each point in a fit without it; diagonal: of A^-1, [n], or its mean."""
    ridge = max(system.ridge, 1e-300)
    if system.weights is None:
        return solution.coef / (diagonal[:, None] if hasattr(diagonal, "shape") else diagonal)
    w = system.weights
    units = system.space.xp.where(w > 1, w, 1 + 0 * w)
    return solution.coef / (w * ((1 - 1 / units) / ridge + diagonal / units))[:, None]
