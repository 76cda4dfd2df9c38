"""Newton's method with conjugate gradients for log losses of kernel expansions f = K a.

The objective is sum_i s_i loss(f_i, y_i) + ridge / 2 tr(a^T K a). Its Hessian in f is W = A A^T, so
that a Newton step d solves (A A^T K + ridge) d = -(G + ridge a), G the losses' derivatives; d = A u
with the symmetric (ridge + A^T K A) u = -A^+ (G + ridge a), where A^+ A A^+ = A^+.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import mercer as mc
from mercer._progress import between, current, share_of_residual
from mercer.models._arrays import Space
from mercer.models._kernels import FittedKernel
from mercer.models._low_rank import LowRank, conjugate_gradients, of_all, random_cholesky
from mercer.models._products import is_shared
from mercer.models._solve import add_diagonal
from mercer.models._triangles import divided_by

_BLOCK = 2**23  # values of K_nm at a time
_FLOOR = 1e-6  # of probabilities inside Hessians, which must not vanish


@dataclass
class Curvature:
    """The losses' derivatives at f, and a root A of their Hessian."""

    gradient: Any  # G, [n, k]
    weights: Any  # [n, k], of which diag(w_c) bounds the blocks of classes from above
    root: Callable[[Any], Any]  # A v
    transposed: Callable[[Any], Any]  # A^T v
    inverse: Callable[[Any], Any]  # A^+ v


@dataclass
class BinaryLoss:
    """log(1 + exp(f)) - y f, for f and y [n, 1] and labels 0 and 1; s: weights [n, 1]."""

    y: Any
    s: Any
    space: Space

    def probabilities(self, f: Any) -> Any:
        e = self.space.xp.exp(-abs(f))
        return self.space.xp.where(f >= 0, 1 / (1 + e), e / (1 + e))

    def value(self, f: Any) -> float:
        xp = self.space.xp
        soft = (f + abs(f)) / 2 + xp.log(1 + xp.exp(-abs(f)))
        return _total(self.s * (soft - self.y * f), self.space)

    def curvature(self, f: Any) -> Curvature:
        p = self.probabilities(f)
        weights = _lifted(self.s) * (p * (1 - p) + _FLOOR)
        root = weights**0.5
        return Curvature(
            self.s * (p - self.y), weights, lambda v: root * v, lambda v: root * v,
            lambda v: v / root,
        )  # fmt: skip


@dataclass
class MultinomialLoss:
    """log(sum_c exp(f_c)) - f_y, for f [n, k] and y [n, k] of one 1 a row; s: weights [n, 1].

    With q = sqrt(p) the Hessian diag(p) - p p^T is diag(q) (1 - q q^T) diag(q), and 1 - q q^T is a
    projection.
    """

    y: Any
    s: Any
    space: Space

    def _shares(self, f: Any) -> tuple[Any, Any, Any]:
        top = f.max(1)
        top = getattr(top, "values", top)[:, None]  # PyTorch tells the indices too
        e = self.space.xp.exp(f - top)
        return e, e.sum(1)[:, None], top

    def probabilities(self, f: Any) -> Any:
        e, total, _ = self._shares(f)
        return e / total

    def value(self, f: Any) -> float:
        _, total, top = self._shares(f)
        own = (self.y * f).sum(1)[:, None]
        return _total(self.s * (self.space.xp.log(total) + top - own), self.space)

    def curvature(self, f: Any) -> Curvature:
        p = self.probabilities(f)
        q = ((p + _FLOOR) / (1 + p.shape[1] * _FLOOR)) ** 0.5
        scaled = _lifted(self.s) ** 0.5 * q

        def project(v: Any) -> Any:
            return v - q * (q * v).sum(1)[:, None]

        return Curvature(
            self.s * (p - self.y), scaled * scaled, lambda v: scaled * project(v),
            lambda v: project(scaled * v), lambda v: v / scaled,
        )  # fmt: skip


def _lifted(s: Any) -> Any:
    """Weights of points in Hessians, which have roots to divide by; those of 0 have no gradient."""
    return s + 1e-9 * s.max()


def _total(values: Any, space: Space) -> float:
    return float(space.of("float64").array(values).sum())


def _dot(a: Any, b: Any, space: Space) -> float:
    return _total(a * b, space)


@dataclass
class Expansion:
    """K a for points x, and preconditioners of ridge + diag(sqrt(w)) K diag(sqrt(w))."""

    kernel: FittedKernel
    x: Any
    space: Space
    ridge: float
    rank: int
    direct: bool
    seed: int
    products: int = 0
    _matrix: Any = None
    _factor: LowRank | None = None

    def product(self, v: Any) -> Any:
        self.products += 1
        if self.direct or self.kernel.precomputed:
            return self._stored() @ v
        return self.space.array(self.kernel.product(self.x, None, self.space.array(v)))

    def coefficients(self, a: Any) -> Any:
        """Coefficients of the points that functions are sums over."""
        return a

    def rounding(self) -> float:
        """What rounding may take of a quotient p' K p / p' p of a positive K: a unit of its trace,
        which bounds its largest eigenvalue, for the product and one for the quotient. The points of
        several ranks count as the first of them."""
        if is_shared(self.x):
            first = self.space.array(self.x[:1])
            trace = self.x.shape[0] * abs(float(self.kernel.diagonal(first)[0]))
        else:
            trace = _total(abs(self.kernel.diagonal(self.x)), self.space)
        return 2 * float(np.finfo(self.space.dtype).eps) * trace

    def _stored(self) -> Any:
        if self._matrix is None:
            self._matrix = self.x if self.kernel.precomputed else self.kernel.matrix(self.x)
        return self._matrix

    def preconditioner(self, weights: Any) -> Callable[[Any], Any]:
        """An approximate inverse for each column of weights [n, k]."""
        make = self._dense if self.direct else self._low_rank
        solves = [make(self.space.array(weights[:, c] ** 0.5)) for c in range(weights.shape[1])]
        return lambda v: self.space.xp.concatenate(
            [solve(self.space.array(v[:, c : c + 1])) for c, solve in enumerate(solves)], 1
        )

    def _dense(self, s: Any) -> Callable[[Any], Any]:
        a = self._stored() * s[:, None] * s
        add_diagonal(a, self.ridge)
        factor = mc.linalg.cholesky(a, overwrite_a=True, jitter=1e-6)
        return lambda v: mc.linalg.cho_solve(factor, v)

    def _low_rank(self, s: Any) -> Callable[[Any], Any]:
        if self._factor is None:
            self._factor = random_cholesky(
                self.kernel, self.x, self.space, self.rank, self.ridge, self.seed
            )
        return self._factor.inverse(self.ridge, s)


@dataclass
class CentredExpansion(Expansion):
    """Functions of m centres: K is K_nm K_mm^-1 K_mn = F F^T.

    F = K_nm L^-T [n, m], with K_mm = L L^T, is stored by columns; coefficients of centres are
    L^-T F^T a.
    """

    centers: Any = None  # [m, d], as the kernel sees them

    def __post_init__(self) -> None:
        wide = self.space.of("float64")
        centers = wide.array(self.centers)
        root = mc.linalg.cholesky(self.kernel.matrix(centers), jitter=1e-12)
        # Float32 rounds features by more than an inverse does.
        by_products = self.space.on_device and self.space.dtype == "float32"
        self._by_root = divided_by(root, wide, by_products)
        features = self.space.empty(centers.shape[0], self.x.shape[0])
        rows = max(1, _BLOCK // centers.shape[0])
        for start in range(0, self.x.shape[0], rows):
            block = self.kernel.matrix(centers, wide.array(self.x[start : start + rows]))
            features[:, start : start + rows] = self.space.array(self._by_root(block, False))
        left = self.space.zeros(self.x.shape[0])
        self._factor = LowRank(features.T, left, self.space)

    def product(self, v: Any) -> Any:
        self.products += 1
        factor = self._columns()
        return factor @ (factor.T @ v)

    def coefficients(self, a: Any) -> Any:
        inner = self.space.of("float64").array(self._columns().T @ a)
        return self.space.array(self._by_root(inner, True))

    def _columns(self) -> Any:
        assert self._factor is not None  # made with the expansion
        return self._factor.factor


@dataclass
class Minimum:
    coef: Any  # a, [n, k]
    scores: Any  # K a
    objective: float
    history: list[float]  # of the objective, from the start on
    residual: float  # |G + ridge a| / |G|
    converged: bool


def minimise(loss: Any, expansion: Expansion, *, tol: float, max_iter: int,
             inner: int = 300, coef0: Any = None) -> Minimum:  # fmt: skip
    """Steps until one is expected to take less than tol of the objective; each lowers it."""
    space, ridge = expansion.space, expansion.ridge
    a = space.zeros(*loss.y.shape) if coef0 is None else coef0
    f = space.zeros(*loss.y.shape) if coef0 is None else expansion.product(a)

    def objective(a: Any, f: Any) -> float:
        return loss.value(f) + 0.5 * ridge * _dot(a, f, space)

    history, converged, first, bar = [objective(a, f)], False, None, current()
    done = 0.0  # of the way to the end, for a bar
    for _ in range(max_iter):
        bend = loss.curvature(f)
        slope = bend.gradient + ridge * a
        target = -bend.inverse(slope)
        length = _dot(target, target, space) ** 0.5
        first = first or length
        if length == 0:
            converged = True
            break
        forcing = min(0.1, max(length / first, 1e-3))
        note = f"objective {history[-1]:.7g}"
        with between(done, done + (1 - done) / 4, note):
            d, kd, least = _newton_step(bend, target, expansion, forcing * length, inner)
        fall = -_dot(slope, kd, space)
        is_low = least < 0 and -least > expansion.rounding() * float(bend.weights.max())
        if is_low or not d.any():
            raise mc.LinAlgError("K shows a negative direction")
        step, reached = 1.0, history[-1]
        while step > 1e-4:
            reached = objective(a + step * d, f + step * kd)
            if reached < history[-1]:
                break
            step /= 2
        else:  # rounding hides what is left
            rounding = 10 * float(np.finfo(space.dtype).eps)
            converged = fall <= max(tol, rounding) * abs(history[-1])
            break
        a, f = a + step * d, f + step * kd
        history.append(reached)
        if bar is not None:
            done = max(share_of_residual(fall / abs(reached or 1.0), tol), len(history) / max_iter)
            bar.step(done, f"objective {reached:.7g}")
        if fall / 2 <= tol * abs(reached):
            converged = True
            break
    gradient = loss.curvature(f).gradient
    norm = _dot(gradient, gradient, space) ** 0.5
    rest = gradient + ridge * a
    residual = _dot(rest, rest, space) ** 0.5 / (norm or 1.0)
    return Minimum(a, f, history[-1], history, residual, converged)


def _newton_step(bend: Curvature, target: Any, expansion: Expansion, goal: float,
                 limit: int) -> tuple[Any, Any, float]:  # fmt: skip
    """d = A u and K d, with |target - (ridge + A^T K A) u| at most goal, and how far below 0 that
    matrix was seen."""

    def multiply(p: Any) -> tuple[Any, Any]:
        image = expansion.product(bend.root(p))
        return expansion.ridge * p + bend.transposed(image), image

    inverse = expansion.preconditioner(bend.weights)
    found = conjugate_gradients(multiply, inverse, target, goal, limit, expansion.space, of_all)
    return bend.root(found.x), found.kept, found.least
