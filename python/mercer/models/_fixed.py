"""Paths of ridges in a fixed number of steps: arithmetic of arrays alone, of which nothing is read.

What solvers elsewhere decide on the host (pivots, who has converged, which ridge predicts best) is
decided where the arrays are. So a fit returns before it is computed, and a CUDA graph holds it.
Small matrices are factored in blocks that `mercer.linalg` takes in the capture of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import mercer as mc
from mercer.models._arrays import Space, library_of
from mercer.models._base import checked_alpha
from mercer.models._costs import BLOCK, LEFT
from mercer.models._kernels import FittedKernel
from mercer.models._solve import auto_rank

#: Steps where max_iter is None, and columns of the preconditioner at most where rank is "auto".
STEPS, MOST = 50, 512
#: The residual of random signs: the error of their quadratic form is of the order of its square.
LOOSELY = 0.1
#: What a block of pivots gets on its diagonal, as a part of it: drawn at once, some may be near
#: each other, and rounding would be all of what the later ones add.
NEAR = 1e-6


@dataclass
class Fit:
    """The result of a path of A ridges for k outputs; all are arrays of the space."""

    coef: Any  # [n, A, k]
    residuals: Any  # [A], the largest |b - A a| / |b| of an output, measured
    scores: (
        Any  # [A], generalised cross-validation, infinite where tol was missed; None if not asked
    )


def fit(kernel: FittedKernel, x: Any, targets: Any, ridges: Any, space: Space, *,
        weights: Any = None, rank: int | str = "auto", tol: float, steps: int | None,
        probes: int = 0, seed: int = 0) -> Fit:  # fmt: skip
    """Coefficients of (S K S + ridge) a = S y for targets y [n, k] and ridges [A]."""
    xp, n, k, many = space.xp, x.shape[0], targets.shape[1], ridges.shape[0]
    scale = None if weights is None else (weights**0.5)[:, None]
    b = targets if scale is None else scale * targets
    tops = xp.amax(abs(b), 0)
    tops = xp.where(tops == 0, 1 + 0 * tops, tops)
    b = b / tops
    signs = space.array(2.0 * (_hashed(space, n, probes, seed) >= 2**31) - 1)
    columns = xp.concatenate([b, signs], axis=1)
    factor, left = low_rank(kernel, x, scale, space, _rank(rank, n), seed)
    inverse = Inverse.of(factor, ridges + LEFT * left, space)

    def product(v: Any) -> Any:
        flat = v.reshape(n, -1)
        flat = flat if scale is None else scale * flat
        found = kernel.product(x, x, flat)
        found = found if scale is None else scale * found
        return found.reshape(v.shape) + ridges[:, None] * v

    tols = xp.concatenate([space.zeros(k) + tol / 2, space.zeros(probes) + LOOSELY])
    found = conjugate_gradients(product, columns, many, inverse, tols, steps or STEPS, space)
    a = found[:, :, :k]
    lengths = (b * b).sum(0) ** 0.5
    gaps = ((b[:, None, :] - product(a)) ** 2).sum(0) ** 0.5
    residuals = xp.amax(gaps / xp.where(lengths == 0, 1 + 0 * lengths, lengths), 1)
    a, scores = a * tops, None
    if probes:
        traces = inverse.trace_of_inverse(signs, found[:, :, k:])
        scores = _scores(a, ridges, traces, weights, space)
        scores = xp.where(residuals <= tol, scores, np.inf + 0 * ridges)
    return Fit(a if scale is None else a * scale[:, None], residuals, scores)


@dataclass
class Best:
    """The choice of least score; NaN where no ridge of a bandwidth has one."""

    coef: Any  # [n, k]
    kernel: FittedKernel
    ridge: Any
    score: Any
    residual: Any
    table: dict[str, Any]  # bandwidths [B] or [None], scores [B, A], residuals [B, A]


def fit_best(kernels: Sequence[FittedKernel], x: Any, targets: Any, ridges: Any, space: Space,
             **options: Any) -> Best:  # fmt: skip
    """The best of all ridges [A] and kernels [B]; the options: those of ``fit``."""
    xp, each = space.xp, []
    scores, residuals = [], []
    for kernel in kernels:
        found = fit(kernel, x, targets, ridges, space, **options)
        row = xp.where(xp.isfinite(found.scores), found.scores, np.inf + 0 * ridges)
        i = xp.argmin(row, 0).reshape(1)
        each.append((row[i], ridges[i], found.residuals[i], found.coef[:, i]))
        scores.append(row)
        residuals.append(found.residuals)
    score, ridge, residual = (xp.concatenate([part[j] for part in each]) for j in range(3))
    i = xp.argmin(score, 0).reshape(1)
    is_none = xp.isinf(score[i])[0]
    coef, ridge, residual = (
        xp.where(is_none, np.nan + 0 * value, value)
        for value in (xp.stack([part[3][:, 0] for part in each])[i][0], ridge[i][0], residual[i][0])
    )
    table = {"bandwidths": [None], "scores": xp.stack(scores), "residuals": xp.stack(residuals)}
    kernel = kernels[0]
    if kernel.bandwidth is not None:
        table["bandwidths"] = xp.stack([space.zeros() + one.bandwidth for one in kernels])
        kernel = kernel.with_bandwidth(table["bandwidths"][i][0])
    return Best(coef, kernel, ridge, score[i][0], residual, table)


def ridges_of(alphas: Any, space: Space) -> Any:
    """[A]; of an array that is not read, negative ones are NaN."""
    if library_of(alphas) == "numpy":
        values = [checked_alpha(alpha) for alpha in np.ravel(alphas)]
        if not values:
            raise ValueError("alphas must have one number at least. Received none")
        return space.xp.concatenate([space.zeros(1) + value for value in values])
    values = space.array(alphas).reshape(-1)
    return space.xp.where(values >= 0, values, np.nan + 0 * values)


def _rank(rank: int | str, n: int) -> int:
    return min(auto_rank(n), MOST) if rank == "auto" else max(0, min(int(rank), n))


def _scores(a: Any, ridges: Any, traces: Any, weights: Any, space: Space) -> Any:
    """`_select.gcv` of all ridges."""
    n, wide, xp = a.shape[0], space.of("float64"), space.xp
    mass, r = n, wide.array(ridges)
    most = n + 0 * r
    if weights is not None:
        weights = wide.array(weights)
        mass = weights.sum()
        most = xp.maximum(mass, (weights > 0).sum() * 1.0) + 0 * r
    squares = ((r[:, None] * wide.array(a)) ** 2).sum(0).sum(1) / (mass * a.shape[2])
    share = (n - r * traces) / most
    left = xp.where(share > 1 - 1e-12, 1e-12 + 0 * share, 1 - share)
    return space.array(squares / left**2)


def conjugate_gradients(product: Any, b: Any, many: int, inverse: Inverse, tols: Any, steps: int,
                        space: Space) -> Any:  # fmt: skip
    """x [n, A, c] for b [n, c] and A ridges in so many steps; columns rest when they meet tols [c].

    A column of a matrix that shows itself indefinite becomes NaN, as does one of NaN.
    """
    xp = space.xp
    r = b[:, None, :] + space.zeros(1, many, 1)
    x = 0 * r
    least = (tols * tols) * (b * b).sum(0)
    p = inverse(r)
    rho = (r * p).sum(0)
    for _ in range(steps):
        q = product(p)
        curvature = (p * q).sum(0)
        rests = (r * r).sum(0) <= least
        bad, none = np.nan + 0 * curvature, np.inf + 0 * least
        step = rho / xp.where(rests, none + 0 * rho, xp.where(curvature <= 0, bad, curvature))
        x = x + step * p
        r = r - step * q
        z = inverse(r)
        new = (r * z).sum(0)
        p = z + new / xp.where(rho == 0, 1 + 0 * rho, rho) * p
        rho = new
    return x


@dataclass
class Inverse:
    """P^-1 of P = F F^T + ridge for each of A ridges."""

    factor: Any  # F [n, r]
    roots: Any  # [A, r, r], R of R^T R = (F^T F + ridge)^-1
    ridges: Any  # [A], in float64
    space: Space

    @classmethod
    def of(cls, factor: Any, ridges: Any, space: Space) -> Inverse:
        """Ridges below the rounding of F F^T are raised to it."""
        wide = space.of("float64")
        f, ridges = wide.array(factor), wide.array(ridges)
        gram = f.T @ f
        rounding = 16 * float(np.finfo(space.dtype).eps)
        least = np.finfo(np.float64).tiny + 0 * ridges
        if factor.shape[1]:
            least = least + rounding * space.xp.amax(abs(gram).sum(0), 0)
        ridges = space.xp.where(ridges < least, least, ridges)
        shifted = gram[None] + ridges[:, None, None] * _identity(factor.shape[1], wide)
        return cls(factor, inverse_root(shifted, wide), ridges, space)

    def __call__(self, v: Any) -> Any:
        """P^-1 v for v [n, A, c]."""
        xp, (n, many, c) = self.space.xp, v.shape
        f, roots = self.factor, self.space.array(self.roots)
        small = xp.swapaxes((f.T @ v.reshape(n, -1)).reshape(-1, many, c), 0, 1)
        small = xp.swapaxes(roots, 1, 2) @ (roots @ small)
        back = (f @ xp.swapaxes(small, 0, 1).reshape(-1, many * c)).reshape(n, many, c)
        return (v - back) / self.space.array(self.ridges)[:, None]

    def trace_of_inverse(self, signs: Any, solved: Any) -> Any:
        """Traces of A^-1 [A] in float64 from A^-1 z of signs z [n, c], P^-1 as their control."""
        wide, xp = self.space.of("float64"), self.space.xp
        z = wide.array(signs)[:, None, :]
        found = (z * wide.array(solved)).sum(0)
        control = (z * wide.array(self(signs[:, None, :] + 0 * solved))).sum(0)
        n, r = self.factor.shape
        exact = (n - r) / self.ridges + (self.roots**2).sum(2).sum(1)
        middle = control.sum(1) / control.shape[1]
        spread = control - middle[:, None]
        square = (spread * spread).sum(1)
        slope = (spread * found).sum(1) / xp.where(square == 0, 1 + 0 * square, square)
        return found.sum(1) / found.shape[1] + slope * (exact - middle)


def low_rank(
    kernel: FittedKernel, x: Any, scale: Any, space: Space, rank: int, seed: int,
    goes_on: Callable[[int, float, float], bool] | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """(F [n, rank], the mean diagonal that F F^T leaves of S K S), by randomly pivoted Cholesky.

    A block of rows is drawn at once, each with the probability of what is left of its diagonal.
    With rank 0 nothing is read, and 0 is said to be left. goes_on: whether there is another block
    after so many rows, with what they leave of the mean diagonal, and with a largest eigenvalue as
    the sum of all elements has it; where it is None, no number is read.
    """
    if rank == 0:
        return space.zeros(x.shape[0], 0), space.zeros(1)[0]
    kernel.require_rows()
    n, xp, wide = x.shape[0], space.xp, space.of("float64")
    diagonal = kernel.diagonal(x)
    diagonal = diagonal if scale is None else diagonal * scale[:, 0] ** 2
    left, factor = diagonal + 0, space.zeros(rank, n)  # F^T, whose rows lie together
    rounding = 64 * float(np.finfo(space.dtype).eps) * xp.amax(diagonal, 0)
    largest = 0.0
    for start in range(0, rank, BLOCK):
        size = min(BLOCK, rank - start)
        drawn = -xp.log((_hashed(space, n, 1, seed + 1 + start)[:, 0] + 0.5) / 2**32)
        pivots = xp.argsort(drawn / xp.where(left > rounding, left, 1e-30 + 0 * left))[:size]
        rows = kernel.rows(x, pivots)
        if scale is not None:
            rows = scale[pivots] * rows * scale[:, 0]
        done = factor[:start]
        rows = rows - done[:, pivots].T @ done
        square = wide.array(rows[:, pivots])
        slack = wide.array(rounding) * (8 if start else 1)  # what is left has rounded, too
        columns = space.array(_root_of_block(square, slack, wide)) @ rows
        columns = xp.where(xp.isfinite(columns), columns, 0 * left)  # indefinite: goes without
        factor[start : start + size] = columns
        left = left - (columns * columns).sum(0)
        left = xp.where(left > 0, left, 0 * left)
        if goes_on is not None:
            mean, largest = float(left.sum()) / n, largest + float((columns.sum(1) ** 2).sum()) / n
            if not goes_on(start + size, mean, largest) or mean <= float(rounding):
                factor = factor[: start + size]
                break
    return factor.T, left.sum() / n


def _root_of_block(a: Any, rounding: Any, space: Space) -> Any:
    """`inverse_root` of a [r, r], which may be singular or less by rounding: with 8 times as much
    on its diagonal, where once does not do."""
    xp, r = space.xp, a.shape[0]
    a, near = (a + a.T) / 2, NEAR * a.reshape(-1)[:: r + 1].sum() / r
    more = [(times * rounding + near) * _identity(r, space) for times in (1, 8)]
    first, second = inverse_root(xp.stack([a + more[0], a + more[1]]), space)
    return xp.where(xp.isfinite(first).all(), first, second)


def inverse_root(a: Any, space: Space) -> Any:
    """L^-1 [A, r, r] of a = L L^T, symmetric positive definite; NaN for others. By blocks."""
    xp, r = space.xp, a.shape[-1]
    a, root = a + 0, space.zeros(*a.shape)
    for start in range(0, r, BLOCK):
        own = slice(start, min(start + BLOCK, r))
        block = a[:, own, own] + 0
        identity = _identity(block.shape[-1], space)
        lower, _ = mc.linalg.cholesky(block, check=False)
        inverted, _ = mc.linalg.solve_cholesky(block, identity, check=False)
        turned = xp.swapaxes(lower, 1, 2) @ inverted  # of the lower factor, the inverse
        below = slice(own.stop, r)
        panel = a[:, below, own] @ xp.swapaxes(turned, 1, 2)
        a[:, below, below] -= panel @ xp.swapaxes(panel, 1, 2)
        # Rows of L^-1 beyond this block hold the sums over the columns of L so far.
        root[:, own, :start] = turned @ root[:, own, :start]
        root[:, own, own] = turned
        root[:, below, : own.stop] -= panel @ root[:, own, : own.stop]
    return root


def _identity(r: int, space: Space) -> Any:
    flat = space.zeros(r * r)
    flat[:: r + 1] = 1
    return flat.reshape(r, r)


def _hashed(space: Space, n: int, columns: int, seed: int) -> Any:
    """[n, columns] whole numbers below 2^32 in int64, as random as a hash of their place is."""
    found = space.counted(n * columns)
    for word in (seed & 0xFFFFFFFF, 0x9E3779B9):
        found = (found ^ word) & 0xFFFFFFFF
        for _ in range(2):
            found = ((found ^ (found >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
        found = found ^ (found >> 16)
    return found.reshape(n, columns)
