"""Titsias' collapsed bound of the log likelihood, by blocks of rows, with its gradient.

With m inducing points u, G = K_uu + jitter = L L^T, D = noise / weights, and of every block of rows
a = L^-1 K_ub D_b^(-1/2), the bound of one column of y is

    -0.5 (n log 2 pi + log |B| + log |D| + y^T D^-1 y - c^T B^-1 c + trace D^-1 (K - Q)),

B = I + sum a a^T and c = sum a D_b^(-1/2) y_b [m, p]: nothing larger than [m, rows of a block] is
stored. Titsias, "Variational learning of inducing variables in sparse Gaussian processes", 2009.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import mercer as mc
from mercer import _mercer, linalg
from mercer._libraries import namespace_of
from mercer.models import _gp_parameters
from mercer.models._arrays import host
from mercer.models._gp_exact import (
    Problem,
    diagonal_of,
    folded,
    half_solve,
    repetitions,
    self_similarity,
    total,
)  # fmt: skip

JITTER = 1e-6  # of the amplitude, on the diagonal of K_uu
BLOCK = 1 << 22  # elements of K_ub at a time


class SparseFactors(NamedTuple):
    """What the bound and predictions need of all rows; points are divided by the length scales."""

    x: Any  # [n, d]
    inducing: Any  # [m, d]
    factor: Any  # L [m, m], lower
    inner: Any  # the factor of B [m, m]
    gram: Any  # B - I [m, m]
    gamma: Any  # B^-1 c [m, p]
    fit: float  # the sum of c B^-1 c

    @property
    def coef(self) -> Any:
        """The mean is K_xu coef, [m, p]."""
        return half_solve(self.factor, self.gamma, transposed=True)


class SparseLikelihood:
    """The bound at theta and inducing points u [m, d], with its gradient by both."""

    def __init__(self, data: Problem) -> None:
        self.data = data

    def factored(self, theta: np.ndarray, u: Any) -> SparseFactors:
        """Raises LinAlgError where K_uu is not positive definite with its jitter."""
        data, (amplitude, lengthscale, _) = self.data, _gp_parameters.values(theta)
        xp, lengths = namespace_of(data.x), data.space.array(lengthscale)
        x, inducing = data.x / lengths, u / lengths
        k = mc.pairwise(data.f, inducing) * amplitude
        diagonal = diagonal_of(k)
        diagonal += JITTER * amplitude
        factor = linalg.cholesky(k, overwrite_a=True)
        gram, c = xp.zeros_like(factor), xp.zeros_like(u[:, :1] * data.y[:1])
        for rows, cross, root in self._blocks(x, inducing, theta):
            a = half_solve(factor, cross * root)
            gram += a @ a.T
            c += a @ (root[:, None] * data.y[rows])
        b = gram + 0.0
        diagonal = diagonal_of(b)
        diagonal += 1.0
        inner = linalg.cholesky(b, overwrite_a=True)
        gamma = linalg.cho_solve(inner, c)
        return SparseFactors(x, inducing, factor, inner, gram, gamma, total(c * gamma))

    def _blocks(self, x: Any, inducing: Any, theta: np.ndarray) -> Iterator[tuple[Any, Any, Any]]:
        """Some rows, K_ub [m, b], and D_b^(-1/2) [b]."""
        data, (amplitude, _, noise) = self.data, _gp_parameters.values(theta)
        step = max(64, BLOCK // inducing.shape[0])
        for first in range(0, x.shape[0], step):
            rows = slice(first, first + step)
            cross = mc.pairwise(data.f, inducing, x[rows])
            cross *= amplitude
            yield rows, cross, (noise * data.noise_scale[rows]) ** -0.5

    def __call__(self, theta: np.ndarray, u: Any, by_inducing: bool = False) -> Any:
        """(value, gradient by theta, gradient by u [m, d] on the host or None).

        -inf and zeros where K_uu is not positive definite.
        """
        try:
            state = self.factored(theta, u)
        except mc.LinAlgError:
            return -np.inf, np.zeros_like(theta), np.zeros(u.shape) if by_inducing else None
        data, (amplitude, _, noise) = self.data, _gp_parameters.values(theta)
        xp, (n, p) = namespace_of(data.x), data.y.shape
        precision = 1 / (noise * data.noise_scale)
        traces = amplitude * total(precision * self_similarity(data.f, state.x))
        squares = total(precision[:, None] * data.y * data.y)
        logdet = 2 * total(xp.log(diagonal_of(state.inner))) - total(xp.log(precision))
        rest = traces - total(diagonal_of(state.gram))
        extra = repetitions(data, noise)
        value = -0.5 * (p * (n * np.log(2 * np.pi) + logdet + rest) + squares - state.fit)
        slope, by_u = self._gradient(theta, state, by_inducing)
        slope[0] -= 0.5 * p * traces
        slope[-1] += 0.5 * (squares + p * (traces - n)) + extra[1]
        return float(value + extra[0]), slope, by_u

    def _gradient(self, theta: Any, state: SparseFactors, by_inducing: bool) -> tuple[Any, Any]:
        """The gradient but for what the values f(x_i, x_i) and D add."""
        data, lengthscale = self.data, _gp_parameters.values(theta).lengthscale
        p, count, factor = data.y.shape[1], len(lengthscale), state.factor
        identity = data.space.array(np.eye(factor.shape[0]))
        h = p * (identity - linalg.cho_solve(state.inner, identity)) - state.gamma @ state.gamma.T
        fitted, residual = total(h * state.gram), h - p * state.gram
        slope = np.zeros_like(theta)
        slope[0] = 0.5 * total(diagonal_of(residual)) + fitted + state.fit
        slope[-1] = -0.5 * fitted - state.fit
        beta, h = state.coef, _congruent(factor, h)
        by_u, by_l = self._by_points(theta, state, _congruent(factor, residual), h, beta)
        slope[1:-1] = -folded(by_l, count)
        by_u = host(by_u / data.space.array(lengthscale)) if by_inducing else None
        return slope, by_u

    def _by_points(self, theta: Any, state: SparseFactors, by_g: Any, h: Any, beta: Any) -> Any:
        """The gradient by the scaled u, and sums over points of each feature times its gradient."""
        data, amplitude = self.data, _gp_parameters.values(theta).amplitude
        by_u = amplitude * _by_first(data.f, state.inducing, None, by_g)
        sums = 0.0
        for rows, cross, root in self._blocks(state.x, state.inducing, theta):
            c = (h @ cross) * root**2 + beta @ (root[:, None] ** 2 * data.y[rows]).T
            c *= amplitude
            x = state.x[rows]
            by_u += _by_first(data.f, state.inducing, x, c)
            sums = sums + total(x * _by_first(data.f, x, state.inducing, c.T), axis=0)
        sums = sums + self._by_self_similarity(theta, state.x)
        return by_u, sums + total(state.inducing * by_u, axis=0)

    def _by_self_similarity(self, theta: np.ndarray, x: Any) -> Any:
        """What f(x_i, x_i) adds to those sums: nothing where it is one number, as of distances."""
        data, (amplitude, _, noise) = self.data, _gp_parameters.values(theta)
        values = self_similarity(data.f, x)
        if bool((values == values[0]).all()):
            return 0.0
        weights = -data.y.shape[1] * amplitude / (noise * data.noise_scale)
        gradient = _by_first(data.f, x[:, None], x[:, None], weights[:, None, None])
        return total(x * gradient[:, 0], axis=0)


def _by_first(f: Any, x: Any, z: Any, c: Any) -> Any:
    """The gradient of sum(c f(x, z)) by x."""
    return _mercer.pairwise_backward(f, x, z, c, [], False, False)[0]


def _congruent(factor: Any, a: Any) -> Any:
    """L^-T a L^-1, a symmetric."""
    half = half_solve(factor, a, transposed=True)
    return half_solve(factor, half.T, transposed=True)
