"""Kernel ridge regression on centres: f(x) = sum_j k(x, z_j) c_j with m centres z.

The coefficients minimise |W^(1/2) (y - K_nm c)|^2 + alpha c^T K_mm c, so that
(K_nm^T W K_nm + alpha K_mm) c = K_nm^T W y. Sums over points make that system exactly (`Moments`),
or conjugate gradients solve it by products (`falkon`; Rudi, Carratino, Rosasco, "FALKON: an optimal
large scale kernel method", 2017) in coordinates where it is well-conditioned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import mercer as mc
from mercer._progress import current
from mercer.models import _memory
from mercer.models._arrays import Space
from mercer.models._kernels import FittedKernel
from mercer.models._low_rank import solved
from mercer.models._solve import Solution, add_diagonal, in_groups, relative
from mercer.models._triangles import divided_by, transposed_times_self

#: Centres up to which summing the matrix costs less than twenty steps of conjugate gradients.
EXACT = 1000
_JITTER = 1e-12  # of the mean diagonal, in float64
#: What makes K_mm definite for products in a dtype: it bounds the coefficients that they multiply.
_DEFINITE = {"float32": 1e-6, "float64": 1e-12}


def choose(centers: Any, x: Any, space: Space, rng: np.random.RandomState) -> Any:
    """Centres [m, d]: those given, or so many points drawn without replacement."""
    if not isinstance(centers, (int, np.integer)):
        given = space.array(centers)
        if given.ndim != 2 or given.shape[1] != x.shape[1] or given.shape[0] < 1:
            raise ValueError(
                f"centers must be a number, or points of {x.shape[1]} features. "
                f"Received the shape {tuple(given.shape)}"
            )
        return given
    if centers < 1:
        raise ValueError(f"centers must be at least 1. Received {centers}")
    chosen = np.sort(rng.permutation(x.shape[0])[:centers])
    return space.array(x[space.index(chosen)])


@dataclass
class Moments:
    """Sums over all points so far, in float64: K_nm^T W K_nm and K_nm^T W y."""

    gram: Any  # [m, m]
    target: Any  # [m, k]

    @classmethod
    def none(cls, m: int, columns: int, space: Space) -> Moments:
        wide = space.of("float64")
        return cls(wide.zeros(m, m), wide.zeros(m, columns))

    def plus(self, kernel: FittedKernel, x: Any, z: Any, y: Any, weights: Any,
             space: Space) -> Moments:  # fmt: skip
        """The moments with the points x [n, d] and targets y [n, k] added; self stays as it is."""
        wide = space.of("float64")
        gram, target = self.gram + 0, self.target + 0
        rows = max(1, _memory.CENTER_BLOCK // z.shape[0])
        fit = current()
        for start in range(0, x.shape[0], rows):
            if fit is not None:
                fit.step(start / x.shape[0], f"{start} points")
            stop = min(start + rows, x.shape[0])
            k = wide.array(kernel.matrix(x[start:stop], z))
            right = k if weights is None else k * wide.array(weights[start:stop])[:, None]
            gram += k.T @ right
            target += right.T @ wide.array(y[start:stop])
        return Moments(gram, target)

    def solve(self, kernel: FittedKernel, z: Any, ridge: Any, space: Space) -> Solution:
        """Coefficients [m, k] and what their rounding to the space's dtype leaves of the system.

        ridge: a number, or one for each column.
        """
        kernel.require_symmetric()
        wide = space.of("float64")
        regular = kernel.matrix(wide.array(z))

        def solve(ridge: float, target: Any, _: Any) -> Solution:
            a = self.gram + ridge * regular
            exact = mc.linalg.solve_cholesky(a, target, jitter=_JITTER)
            coef = wide.array(space.array(exact))
            return Solution(coef, "direct", 1, relative(target - a @ coef, target, wide))

        found = in_groups(ridge, self.target, None, wide, solve)
        return replace(found, coef=space.array(found.coef))


def solve(kernel: FittedKernel, x: Any, z: Any, y: Any, weights: Any, ridge: Any, space: Space,
          *, solver: str, tol: float, max_iter: int | None, coef0: Any,
          name: str) -> tuple[Solution, bool, Moments | None]:  # fmt: skip
    """Coefficients of the centres z for y [n, k], whether tol was met, and the sums, if taken."""
    kernel.require_symmetric()
    m = z.shape[0]
    exact = solver == "direct" or (solver == "auto" and m <= EXACT)
    what = f"solver={'direct' if exact else 'falkon'!r} with {m} centres"
    needed = _memory.bytes_of_centers(m, x.shape[0], y.shape[1], exact, space)
    _memory.require(needed, space, what, x.shape[0], name)
    if not exact:
        steps = 100 if max_iter is None else max_iter
        met: list[bool] = []

        def descend(ridge: float, y: Any, coef0: Any) -> Solution:
            found, converged = falkon(
                kernel, x, z, y, weights, ridge, space, tol, steps, coef0
            )  # fmt: skip
            met.append(converged)
            return found

        return in_groups(ridge, y, coef0, space, descend), all(met), None
    moments = Moments.none(m, y.shape[1], space).plus(kernel, x, z, y, weights, space)
    return moments.solve(kernel, z, ridge, space), True, moments


def falkon(kernel: FittedKernel, x: Any, z: Any, y: Any, weights: Any, ridge: float, space: Space,
           tol: float, max_iter: int, coef0: Any) -> tuple[Solution, bool]:  # fmt: skip
    """Conjugate gradients for b = R^T L^T c with K_mm = L L^T and R R^T = n/m L^T L + alpha, where
    R^-1 (L^-1 K_nm^T W K_nm L^-T + alpha) R^-T b = R^-1 L^-1 K_nm^T W y is well-conditioned.

    Residuals are measured there.
    """
    mass = x.shape[0] if weights is None else float(weights.sum())
    wide = space.of("float64")
    lower, inner = _factors(kernel, z, mass / z.shape[0], ridge, space)
    guess = None if coef0 is None else inner.T @ (lower.T @ wide.array(coef0))
    by_lower, by_inner = (divided_by(each, wide, wide.on_device) for each in (lower, inner))

    def gathered(values: Any) -> Any:
        values = values if weights is None else values * weights[:, None]
        return by_lower(wide.array(kernel.product(z, x, values)), False)

    def coefficients(a: Any) -> Any:
        return space.array(by_lower(a, True))

    def product(b: Any) -> Any:
        a = by_inner(b, True)
        return by_inner(gathered(kernel.product(x, z, coefficients(a))) + ridge * a, False)

    found = solved(
        product, lambda r: r, by_inner(gathered(y), False), guess, wide, tol=tol, limit=max_iter,
        strict=True,
    )  # fmt: skip
    coef = coefficients(by_inner(found.x, True))
    return Solution(coef, "falkon", found.taken, found.residual), found.met


def _factors(kernel: FittedKernel, z: Any, ratio: float, ridge: float,
             space: Space) -> tuple[Any, Any]:  # fmt: skip
    """Lower factors in float64 of K_mm, made definite, and of ratio L^T L + ridge."""
    jitter = _DEFINITE[space.dtype]
    wide = space.of("float64")
    points = wide.array(z)
    k = kernel.matrix(points)
    add_diagonal(k, jitter * float(kernel.diagonal(points).sum()) / k.shape[0])
    lower = mc.linalg.cholesky(k, overwrite_a=True, jitter=10 * jitter)
    inner = transposed_times_self(lower, wide.empty(*lower.shape))
    inner *= ratio
    add_diagonal(inner, ridge)
    return lower, mc.linalg.cholesky(inner, overwrite_a=True)
