"""Predictive means and covariances, whoever solved for them.

Points are those divided by the length scales. A posterior's covariance at points x is that of the
prior less what the data explain, sums of left^T right of matrices made from the cross covariances.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mercer as mc
from mercer.models import _gp_parameters, _memory
from mercer.models._arrays import space_of
from mercer.models._gp_exact import diagonal_of, half_solve, self_similarity
from mercer.models._products import kernel_product

BLOCK = 1 << 23  # elements of cross covariances at a time
MANY = 120  # of n points, a factor is sooner than products for more than n / MANY covariances


@dataclass
class Posterior:
    """points [n, d]: the data or the inducing points; coef [n, p]: mean = amplitude f(x, points)
    coef."""

    f: Any
    amplitude: float
    points: Any
    coef: Any

    def mean(self, x: Any) -> Any:
        """[m, p]"""
        return self.amplitude * kernel_product(self.f, x, self.points, self.coef)

    def variance(self, x: Any) -> Any:
        """[m]; rounding may leave negative ones."""
        prior = self.amplitude * self_similarity(self.f, x)
        for rows in self._blocks(x):
            for sign, left, right in self._explained(self._cross(x[rows])):
                prior[rows] -= sign * (left * right).sum(0)
        return prior

    def covariance(self, x: Any) -> Any:
        """[m, m]"""
        prior = self.amplitude * mc.pairwise(self.f, x)
        for sign, left, right in self._explained(self._cross(x)):
            prior -= sign * (left.T @ right)
        return 0.5 * (prior + prior.T)

    def _cross(self, x: Any) -> Any:
        return self.amplitude * mc.pairwise(self.f, self.points, x)

    def _blocks(self, x: Any) -> Iterator[slice]:
        step = max(1, BLOCK // self.points.shape[0])
        return (slice(i, i + step) for i in range(0, x.shape[0], step))

    def _explained(self, cross: Any) -> list[tuple[int, Any, Any]]:
        """(sign, left [n, m], right [n, m]) of cross covariances [n, m]."""
        raise NotImplementedError


@dataclass
class ExactPosterior(Posterior):
    factor: Any  # of amplitude f(points) + noise [n, n]

    def _explained(self, cross: Any) -> Any:
        half = half_solve(self.factor, cross)
        return [(1, half, half)]


@dataclass
class SolvedPosterior(Posterior):
    """Covariances by conjugate gradients; of many points by a factor, once made and kept, where it
    fits into half of the free memory."""

    solver: Any  # b -> (f(points) + ridge)^-1 b
    factor: Any = None  # of f(points) + ridge [n, n]

    def variance(self, x: Any) -> Any:
        self._prepare(x.shape[0])
        return super().variance(x)

    def covariance(self, x: Any) -> Any:
        self._prepare(x.shape[0])
        return super().covariance(x)

    def _prepare(self, count: int) -> None:
        """n^3 / 3 operations are fewer than those of some twenty products with so many columns."""
        n = self.points.shape[0]
        needed = 2 * n * n * self.points.dtype.itemsize
        if self.factor is not None or count < n / MANY:
            return
        if needed <= _memory.free(space_of(self.points)):
            a = mc.pairwise(self.f, self.points)
            diagonal = diagonal_of(a)
            diagonal += self.solver.operator.ridge
            factor, info = mc.linalg.cholesky(a, overwrite_a=True, check=False)
            self.factor = None if int(info) else factor

    def _explained(self, cross: Any) -> list[tuple[int, Any, Any]]:
        if self.factor is None:
            found = self.solver(cross)
            if not found.met:
                _gp_parameters.warn_unsolved("GaussianProcessRegressor", self.solver.max_iter)
            return [(1, cross, found.x / self.amplitude)]
        half = half_solve(self.factor, cross) / self.amplitude**0.5
        return [(1, half, half)]

    def _blocks(self, x: Any) -> Iterator[slice]:
        if self.factor is not None:
            return super()._blocks(x)
        return (slice(i, i + 64) for i in range(0, x.shape[0], 64))


@dataclass
class SparsePosterior(Posterior):
    factor: Any  # of K_uu with its jitter [m, m]
    inner: Any  # of B [m, m]

    def _explained(self, cross: Any) -> Any:
        prior = half_solve(self.factor, cross)
        kept = half_solve(self.inner, prior)
        return [(1, prior, prior), (-1, kept, kept)]


def root_of_covariance(covariance: Any, scale: float) -> Any:
    """A lower factor [m, m] of a covariance, to whose diagonal as little is added as gives one."""
    n = covariance.shape[0]
    for power in range(14):
        factor, info = mc.linalg.cholesky(covariance, check=False)
        if not int(info):
            return factor
        diagonal = diagonal_of(covariance)
        diagonal += (1e-15 * scale * n) * 10**power
    raise mc.LinAlgError(f"the covariance [{n}, {n}] of the points is not positive definite")
