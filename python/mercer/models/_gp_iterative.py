"""Gaussian processes by products with the matrix alone: gradients of the likelihood from probes.

A = amplitude (K + ridge) as in _gp_exact. With P near K + ridge and z = P^(1/2) e, e normal,

    trace (K + ridge)^-1 dK = E [(K + ridge)^-1 z]^T dK [P^-1 z],

so one call of conjugate gradients for y and all probes, and one pass over the pairs, give the whole
gradient. The e are drawn once: z moves little from step to step, and the solutions of the last step
are the first guess of the next one.
"""

from __future__ import annotations

from operator import truediv
from typing import Any

import numpy as np

from mercer.errors import LinAlgError
from mercer.linalg._stochastic import stochastic_logdet
from mercer.models import _gp_parameters
from mercer.models._arrays import host
from mercer.models._gp_base import Solver
from mercer.models._gp_exact import Problem, folded, repetitions, total
from mercer.models._inverse import Inverse
from mercer.models._kernels import FittedKernel
from mercer.models._low_rank import Solved
from mercer.models._products import gradient_sums, operator
from mercer.models._spread import mapped


class IterativeLikelihood:
    """The gradient of the log likelihood; its value by ``value``, which costs more."""

    def __init__(
        self, data: Problem, *, rank: int, n_probes: int, tol: float, max_products: int, seed: int
    ) -> None:
        self.data, self.rank, self.tol, self.seed = data, rank, tol, seed
        self.max_products, self.n_probes = max_products, n_probes
        noise = np.random.default_rng(seed).standard_normal((data.x.shape[0], n_probes))
        self._probes = data.space.array(noise)
        self._last: Any = None
        self.n_products = 0

    def system(self, theta: np.ndarray) -> tuple[Any, Any]:
        """K + ridge of the scaled points, and its preconditioner."""
        amplitude, lengthscale, noise = _gp_parameters.values(theta)
        scaled = mapped(truediv, self.data.x, self.data.space.array(lengthscale))
        ridge = noise / amplitude * self.data.noise_scale
        made = operator(self.data.f, scaled, ridge=ridge)
        middle = np.exp(np.log(host(ridge)).mean(keepdims=True))  # P has one number on its diagonal
        kernel, space = FittedKernel(self.data.f), self.data.space
        return made, Inverse(kernel, scaled, None, space, middle, self.rank, self.seed)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        data, (amplitude, _, noise) = self.data, _gp_parameters.values(theta)
        p, xp = data.y.shape[1], data.space.xp
        matrix, inverse = self.system(theta)
        z = inverse.sqrt(self._probes)
        right = xp.concatenate([data.y, z], 1)
        self._last = solved = self.solve(matrix, right, inverse, self._last).x
        coef, s, q = solved[:, :p], solved[:, p:], inverse.solve(z)
        ridge = (noise / amplitude * data.noise_scale)[:, None]
        trace = p * total(ridge * s * q) / self.n_probes
        squares, quad = (total(a * coef) / amplitude for a in (ridge * coef, data.y))
        slope = np.empty_like(theta)
        slope[0] = -0.5 * (p * data.x.shape[0] - trace - (quad - squares))
        slope[1:-1] = self._by_lengthscales(theta, coef, s, q)
        slope[-1] = -0.5 * (trace - squares) + repetitions(data, noise)[1]
        return slope

    def _by_lengthscales(self, theta: np.ndarray, coef: Any, s: Any, q: Any) -> np.ndarray:
        data, (amplitude, lengthscale, _) = self.data, _gp_parameters.values(theta)
        xp = data.space.xp
        left = xp.concatenate([data.y.shape[1] / self.n_probes * s, coef / -amplitude], 1)
        right = xp.concatenate([q, coef], 1)
        scaled = mapped(truediv, data.x, data.space.array(lengthscale))
        sums = gradient_sums(data.f, scaled, left, right, data.space)
        return 0.5 * folded(sums, len(lengthscale))

    def solve(
        self, operator: Any, b: Any, inverse: Any, first: Any = None, tol: float | None = None
    ) -> Solved:
        """(K + ridge)^-1 b. LinAlgError where that shows not to be positive definite."""
        tol = self.tol if tol is None else tol
        found = Solver(operator, inverse, tol, self.max_products, self.data.space)(b, first)
        self.n_products += found.taken
        if not (found.met or found.is_sound):
            raise LinAlgError(
                "the kernel matrix plus noise is not positive definite in "
                f"{self.data.space.dtype}, or holds NaN or an infinity. A larger noise would do"
            )
        return found

    def value(self, theta: np.ndarray) -> tuple[float, float]:
        """The log likelihood from a stochastic log determinant, with its standard error.

        2 y^T c - c^T (K + ridge) c is below y^T (K + ridge)^-1 y by the square of c's error alone.
        """
        (amplitude, _, noise), (n, p) = _gp_parameters.values(theta), self.data.y.shape
        matrix, inverse = self.system(theta)
        coef = self.solve(matrix, self.data.y, inverse, tol=0.1 * self.tol).x
        quad = total(coef * (2 * self.data.y - matrix @ coef)) / amplitude
        logdet, error = stochastic_logdet(
            matrix, self.data.y, n_probes=self.n_probes, preconditioner=inverse,
            max_iter=self.max_products, seed=self.seed,
        )  # fmt: skip
        log_a = float(logdet) + n * np.log(amplitude)
        value = -0.5 * (quad + p * (log_a + n * np.log(2 * np.pi)))
        return float(value + repetitions(self.data, noise)[0]), 0.5 * p * float(error)
