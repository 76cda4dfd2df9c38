"""The inverse and the root of P = F F^T + ridge for a factor F of low rank, where F is.

The host sees the eigenvalues of F^T F alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mercer as mc
from mercer.models._arrays import Space, host
from mercer.models._costs import LEFT, TINY, Plan
from mercer.models._fixed import low_rank
from mercer.models._kernels import FittedKernel
from mercer.models._spread import kind_of


class Inverse:
    """P^-1 for one of some ridges in each column, by eigenvalues of F^T F.

    A part of what the factor leaves of the mean diagonal is added to the ridges.
    """

    def __init__(self, kernel: FittedKernel, x: Any, scale: Any, space: Space, ridges: np.ndarray,
                 rank: int, seed: int, plan: Plan | None = None) -> None:  # fmt: skip
        """The inverse of S K S for points x [n, d]; scale: S, [n, 1], or None.

        plan: that says how many columns pay, up to rank; where it turns, nothing else is made.
        """
        self.space, self.n = space, x.shape[0]
        # A block of rows takes a pass over points in chunks: none for what is far below the ridge.
        goes_on = None if plan is None else plan.goes_on
        if kind_of(x) == "dask":
            goes_on = lambda rank, left, largest: left > 0.1 * float(min(ridges))  # noqa: E731
        self.factor, left = low_rank(kernel, x, scale, space, min(rank, self.n), seed, goes_on)
        if plan is not None and plan.has_turned:
            return
        self.left = max(float(left), 0.0)
        values, self.vectors = mc.linalg.eigh(self.factor.T @ self.factor)
        self.values = np.maximum(host(values).astype("float64"), 0)
        self.rounding = 16 * float(np.finfo(space.dtype).eps) * self.values.max(initial=0)
        self.ridges = np.maximum(ridges + LEFT * self.left, max(self.rounding, TINY))

    def __call__(self, v: Any, which: np.ndarray) -> Any:
        """P^-1 v for v [n, c], column j with ridge number which[j]."""
        ridges = self.ridges[which]
        inner = self._within(v, 1 / (self.values[:, None] + ridges))
        return (v - inner) * self.space.array(1 / ridges)

    def _within(self, v: Any, weights: np.ndarray) -> Any:
        """F V diag(weights) V^T F^T v for v [n, c] and weights [r, c] or [r, 1]."""
        small = self.vectors.T @ (self.factor.T @ v)
        return self.factor @ (self.vectors @ (small * self.space.array(weights)))

    def traces(self) -> np.ndarray:
        """Traces of P^-1 for each ridge."""
        rest = (self.n - len(self.values)) / self.ridges
        return rest + (1 / (self.values[:, None] + self.ridges)).sum(0)

    # ---- Of the first ridge, as mercer.linalg's preconditioners have them. ----------------------

    def solve(self, v: Any) -> Any:
        """P^-1 v for v [n, c]."""
        return self(v, np.zeros(v.shape[1], int))

    def sqrt(self, v: Any) -> Any:
        """P^(1/2) v for v [n, c]."""
        root = float(self.ridges[0]) ** 0.5  # no number of NumPy, which would widen float32
        weights = 1 / ((self.values[:, None] + self.ridges[0]) ** 0.5 + root)
        return root * v + self._within(v, weights)

    def logdet(self) -> float:
        rest = (self.n - len(self.values)) * np.log(self.ridges[0])
        return float(rest + np.log(self.values + self.ridges[0]).sum())
