"""Exact Gaussian processes: the likelihood of a Cholesky factor, its gradient, predictions.

The model is y ~ N(0, A), A = amplitude f(x / lengthscale) + noise / weights, for every column of y.
A weight counts as repetitions: m rows with the same x and y have the likelihood of one of weight m.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import mercer as mc
from mercer import _mercer, linalg
from mercer._libraries import namespace_of
from mercer.models import _gp_parameters, _triangles
from mercer.models._arrays import Space, host

ROWS = 256  # of a block that is updated at a time


def total(a: Any, axis: int | None = None) -> Any:
    """A sum in float64: a number, or along an axis an array of the host."""
    xp = namespace_of(a)
    if axis is None:
        return float(a.sum(dtype=xp.float64))
    return host(a.sum(axis, dtype=xp.float64))


def diagonal_of(a: Any) -> Any:
    """The diagonal of a contiguous square matrix, as a view that can be written."""
    return a.reshape(-1)[:: a.shape[0] + 1]


def self_similarity(f: Any, x: Any) -> Any:
    """f(x_i, x_i), [n]."""
    return mc.paired_distances(x, x, metric=f)


def inverse_of_factor(factor: Any, space: Space) -> Any:
    """(L L^T)^-1 [n, n] of a factor [n, n], whose memory it may take."""
    if space.on_device and factor.shape[0] > 2 * _triangles.PANEL:
        inverse = _triangles.triangular_inverse(factor, space)
        return _triangles.transposed_times_self(inverse, inverse)
    return linalg.cho_inverse(factor, overwrite_factor=True)


class Problem(NamedTuple):
    """What a Gaussian process is fitted to."""

    space: Space
    f: Any
    x: Any  # [n, d]
    y: Any  # [n, p], of x's dtype
    noise_scale: Any  # [n], 1 / weights
    repeats: float  # sum of (weights - 1), from which repetitions have their likelihood,
    log_weights: float  # and the sum of their logarithms
    within: float  # weighted squares that merging rows left out, per variance of the noise

    def rows(self, index: Any) -> Problem:
        """Some of the rows, or all in another order."""
        x, y, scale = (self.space.array(a[index]) for a in (self.x, self.y, self.noise_scale))
        whole = x.shape[0] == self.x.shape[0]
        return problem(self.space, self.f, x, y, 1 / scale, self.within if whole else 0.0)


def problem(
    space: Space, f: Any, x: Any, y: Any, weights: Any = None, within: float = 0.0
) -> Problem:
    """y: [n] or [n, p]; weights: [n], positive, or None."""
    y = y[:, None] if y.ndim == 1 else y
    if weights is None:
        return Problem(space, f, x, y, space.zeros(x.shape[0]) + 1, 0.0, 0.0, within)
    xp = namespace_of(weights)
    return Problem(space, f, x, y, 1 / weights, total(weights - 1), total(xp.log(weights)), within)


def repetitions(data: Problem, noise: float) -> tuple[float, float]:
    """What weights add to the log likelihood, and to its derivative by the noise's logarithm."""
    p, squares = data.y.shape[1], 0.5 * data.within / noise
    value = -0.5 * p * (data.repeats * np.log(2 * np.pi * noise) + data.log_weights)
    return value - squares, -0.5 * p * data.repeats + squares


class Factored(NamedTuple):
    """A factor of A and the solution with it."""

    scaled: Any  # x / lengthscale [n, d]
    factor: Any  # [n, n], lower
    coef: Any  # A^-1 y [n, p]


class ExactLikelihood:
    """The log likelihood of theta, with its gradient, from one matrix [n, n] that is kept.

    The gradient takes one pass over the pairs: with C = p A^-1 - A^-1 y y^T A^-1 it is
    -0.5 sum(C dA), and of the length scales that is a sum of x times the gradient by x, since f
    reads x / lengthscale. Sums over the matrix by the amplitude and the noise follow from
    sum(A^-1 A) = n.
    """

    def __init__(self, data: Problem) -> None:
        self.data = data
        self._matrix: Any = None

    def factored(self, theta: np.ndarray) -> Factored:
        """Raises LinAlgError where A is not positive definite."""
        data, (amplitude, lengthscale, noise) = self.data, _gp_parameters.values(theta)
        n = data.x.shape[0]
        if self._matrix is None:
            self._matrix = data.space.empty(n, n)
        scaled = data.x / data.space.array(lengthscale)
        a = mc.pairwise(data.f, scaled, out=self._matrix)
        a *= amplitude
        diagonal = diagonal_of(a)
        diagonal += noise * data.noise_scale
        factor = linalg.cholesky(a, overwrite_a=True)
        return Factored(scaled, factor, linalg.cho_solve(factor, data.y))

    def __call__(self, theta: np.ndarray, gradient: bool = True) -> tuple[float, np.ndarray]:
        """-inf, with a gradient of zeros, where A is not positive definite."""
        try:
            scaled, factor, coef = self.factored(theta)
        except mc.LinAlgError:
            return -np.inf, np.zeros_like(theta)
        noise, (n, p) = _gp_parameters.values(theta).noise, self.data.y.shape
        quad = total(self.data.y * coef)
        logdet = 2 * total(namespace_of(factor).log(diagonal_of(factor)))
        extra = repetitions(self.data, noise)
        value = float(-0.5 * (quad + p * (logdet + n * np.log(2 * np.pi))) + extra[0])
        if not gradient:
            return value, np.zeros_like(theta)
        slope = self._gradient(theta, scaled, factor, coef, quad)
        slope[-1] += extra[1]
        return value, slope

    def _gradient(self, theta: Any, scaled: Any, factor: Any, coef: Any, quad: float) -> Any:
        data, (amplitude, lengthscale, noise) = self.data, _gp_parameters.values(theta)
        n, p = data.y.shape
        c = inverse_of_factor(factor, data.space)
        noises = noise * data.noise_scale
        trace, squares = total(diagonal_of(c) * noises), total(coef * coef * noises[:, None])
        _less_outer(c, coef, p)
        slope = np.empty_like(theta)
        slope[0] = -0.5 * (p * (n - trace) - (quad - squares))
        slope[1:-1] = amplitude * by_lengthscales(data.f, scaled, c, len(lengthscale))
        slope[-1] = -0.5 * (p * trace - squares)
        return slope


def not_definite(data: Problem, theta: np.ndarray) -> mc.LinAlgError:
    """The error of a matrix without a factor; names the noise that would do."""
    amplitude, lengthscale, noise = _gp_parameters.values(theta)
    k = mc.pairwise(data.f, data.x / data.space.array(lengthscale)) * amplitude
    if not np.isfinite(total(k)):
        return mc.LinAlgError("the kernel matrix holds NaN or an infinity")
    smallest = float(linalg.eigh_top(k, 1, which="smallest", check=False)[0][0][0])
    rounding = float(np.finfo(data.space.dtype).eps) * float(abs(k).sum(1).max())
    return mc.LinAlgError(
        f"the kernel matrix with noise = {noise:.3g} is not positive definite in "
        f"{data.space.dtype}: its smallest eigenvalue without noise is near {smallest:.2g}. "
        f"noise = {2 * (max(-smallest, 0) + rounding):.1e}, in units of the normalised y, would do"
    )


def _less_outer(c: Any, coef: Any, p: int) -> None:
    """c = p c - coef coef^T, some rows at a time."""
    for first in range(0, c.shape[0], ROWS):
        rows = c[first : first + ROWS]
        if p > 1:
            rows *= p
        rows -= coef[first : first + ROWS] @ coef.T


def by_lengthscales(f: Any, scaled: Any, c: Any, count: int) -> np.ndarray:
    """sum over k of x_k times the gradient of sum(c f(x, x)) by the first argument, [count].

    c: symmetric [n, n]. Twice its negative is the derivative by the logarithms of the length
    scales, as f is symmetric.
    """
    gradient = _mercer.pairwise_backward(f, scaled, None, c, [], False, False)[0]
    return folded(total(scaled * gradient, axis=0), count)


def folded(sums: np.ndarray, count: int) -> np.ndarray:
    """Derivatives by each feature's length scale, [d], or by the one of all, [1]."""
    return sums if count == len(sums) else sums.sum(keepdims=True)


def half_solve(factor: Any, b: Any, transposed: bool = False) -> Any:
    """L^-1 b, or L^-T b."""
    return linalg.solve_triangular(factor, b, transposed=transposed)
