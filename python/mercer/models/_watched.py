"""Conjugate gradients seen from outside, for a bar: their residuals follow from their products.

A round multiplies p and gets q = A p, and r^T p is r^T z of the method, so that its step is
r^T p / p^T q and its next residual r - step q. A residual that is measured multiplies x, which is
orthogonal to r but for rounding, and changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mercer._progress import Fit, share_of_residual
from mercer.models._arrays import Space, host


class Watched:
    """An operator that tells a bar of the residuals of columns b [n, k]."""

    def __init__(self, operator: Any, fit: Fit, b: Any, x0: Any, ridges: Any, tol: float,
                 max_iter: int | None, space: Space) -> None:  # fmt: skip
        self._operator, self._fit, self._space = operator, fit, space
        self.shape, self.dtype, self.ridge = operator.shape, b.dtype, 0.0
        self._mercer_like = b[:0]
        self._ridges = space.array(np.asarray(ridges))
        self._b, self._left, self._has_guess = b, b + 0, x0 is not None
        self._tol, self._most, self._taken = tol, max_iter, 0
        self._size = np.maximum(space.norms(b), 1e-300)

    def _mercer_multiply(self, columns: Any) -> Any:
        product = self._operator @ self._space.array(columns)
        self._taken += 1
        image = product + self._ridges * columns
        if self._has_guess and self._taken == 1:
            self._left = self._b - image
        else:
            along, bend = self._sums(self._left * columns), self._sums(columns * image)
            step = np.where(bend > 0, along / np.where(bend > 0, bend, 1), 0)
            self._left = self._left - self._space.array(step) * image
        self._tell()
        return product

    def _sums(self, a: Any) -> np.ndarray:
        return np.asarray(host(self._space.of("float64").array(a).sum(0)))

    def _tell(self) -> None:
        residual = float((self._space.norms(self._left) / self._size).max(initial=0))
        share = share_of_residual(residual, self._tol)
        if self._most:
            share = max(share, self._taken / self._most)
        self._fit.step(share, f"residual {residual:.1e}")
