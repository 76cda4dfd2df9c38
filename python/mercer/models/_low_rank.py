"""Conjugate gradients with a low-rank factor of the kernel matrix that is weighted anew at will."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

import mercer as mc
from mercer.models._arrays import Space, host
from mercer.models._kernels import FittedKernel
from mercer.models._solve import Solution, System, add_diagonal, auto_rank


@dataclass
class LowRank:
    """K near F F^T, and the diagonal of what is left."""

    factor: Any  # F, [n, r]
    left: Any  # [n]
    space: Space

    def inverse(self, ridge: float, s: Any = None) -> Callable[[Any], Any]:
        """Nearly the inverse of ridge + diag(s) K diag(s), for v [n, k]; s: [n].

        What the factor leaves is stood for by a diagonal, half of each entry and half of their
        mean. Of Laplace kernels the ridge alone takes three to nine times the steps, the mean or
        the entries alone up to a half more.
        """
        space, f = self.space, self.factor
        left = self.left if s is None else self.left * s * s
        scale = ((left + left.sum() / left.shape[0]) / 2 + ridge)[:, None] ** -0.5
        if f.shape[1] == 0:
            return lambda v: scale * scale * v
        f = f * (scale if s is None else scale * s[:, None])
        wide = space.of("float64")
        gram = wide.array(f.T @ f)
        top = float((gram.reshape(-1)[:: gram.shape[0] + 1]).max())
        add_diagonal(gram, max(1.0, float(np.finfo(space.dtype).eps) * 10 * top))
        root = mc.linalg.cholesky(gram, overwrite_a=True)

        def solve(v: Any) -> Any:
            v = scale * v
            inner = mc.linalg.cho_solve(root, wide.array(f.T @ v))
            return scale * (v - f @ space.array(inner))

        return solve


def random_cholesky(kernel: FittedKernel, x: Any, space: Space, rank: int, ridge: float,
                    seed: int, block: int = 64) -> LowRank:  # fmt: skip
    """Blocks of pivots drawn by the diagonal that is left, until that is a tenth of the ridge.

    (Chen, Epperly, Tropp, Webber, "Randomly pivoted Cholesky", 2023.)
    """
    n = x.shape[0]
    left = np.maximum(np.array(host(kernel.diagonal(x)), np.float64), 0)
    total, count = left.sum(), 0
    if not np.isfinite(total):
        raise mc.LinAlgError("the kernel matrix holds NaN or an infinity")
    factor, rng = space.empty(n, rank), np.random.default_rng(seed)
    while count < rank and left.sum() > max(1e-6 * total, 0.1 * n * ridge):
        drawn = np.unique(rng.choice(n, min(block, rank - count), p=left / left.sum()))
        new, chosen = _columns(kernel, x, space, factor[:, :count], drawn)
        if not len(chosen):
            break  # rounding is all that is left
        factor[:, count : count + len(chosen)] = new
        count += len(chosen)
        left = np.maximum(left - np.asarray(host((new * new).sum(1)), np.float64), 0)
        left[chosen] = 0
    return LowRank(space.array(factor[:, :count]), space.array(left), space)


def _columns(kernel: FittedKernel, x: Any, space: Space, factor: Any,
             drawn: np.ndarray) -> tuple[Any, np.ndarray]:  # fmt: skip
    """New columns of the factor for some of the rows drawn, and these rows."""
    rows = space.index(drawn)
    columns = x[:, rows] if kernel.precomputed else kernel.matrix(x, space.array(x[rows]))
    columns = columns - factor @ factor[rows].T
    corner = np.array(host(columns[rows]), np.float64)
    lower, pivots, found, _ = scipy.linalg.lapack.dpstrf(
        corner, lower=1, tol=1e-6 * max(corner.trace() / len(corner), 1e-300)
    )
    inverse = scipy.linalg.solve_triangular(
        np.tril(lower)[:found, :found], np.eye(found), lower=True
    )
    chosen = pivots[:found] - 1
    return space.array(columns[:, space.index(chosen)]) @ space.array(inverse.T), drawn[chosen]


def by_columns(a: Any, b: Any, space: Space) -> np.ndarray:
    """Inner products [k] of columns, in float64 on the host."""
    return np.asarray(host(space.of("float64").array(a * b).sum(0)))


def of_all(a: Any, b: Any, space: Space) -> np.ndarray:
    """One inner product of all entries, for each column."""
    return np.full(a.shape[1], by_columns(a, b, space).sum())


@dataclass
class Iterate:
    x: Any
    kept: Any  # what multiply keeps, added up as x is
    taken: int
    converged: bool


def conjugate_gradients(multiply: Callable[[Any], tuple[Any, Any]], inverse: Callable[[Any], Any],
                        r: Any, goals: Any, limit: int, space: Space,
                        dot: Callable[..., np.ndarray]) -> Iterate:  # fmt: skip
    """Solves for r [n, k] from 0 on, until lengths are at most goals [k] or limit products.

    multiply(p): the matrix times p, and what to keep of the way there. Where the matrix shows not
    to be positive definite it ends with what it has.
    """
    p = z = inverse(r)
    x, kept = space.zeros(*r.shape), space.zeros(*r.shape)
    rz = dot(r, z, space)
    for taken in range(1, limit + 1):
        q, part = multiply(p)
        curve = dot(p, q, space)
        live = (curve > 0) & (rz > 0)
        if not live.any():
            return Iterate(x, kept, taken, False)
        step = space.array(np.where(live, rz / np.where(live, curve, 1), 0))
        x, kept, r = x + step * p, kept + step * part, r - step * q
        if (dot(r, r, space) <= np.square(goals)).all():
            return Iterate(x, kept, taken, True)
        z = inverse(r)
        rz, last = dot(r, z, space), rz
        p = z + space.array(np.where(live, rz / np.where(live, last, 1), 0)) * p
    return Iterate(x, kept, limit, False)


def solve(system: System, b: Any, *, rank: int | str, tol: float, max_iter: int,
          coef0: Any = None, seed: int = 0) -> tuple[Solution, bool]:  # fmt: skip
    """The coefficients of a system for b [n, k], and whether all columns reached tol."""
    space, s = system.space, system.scale
    rank = auto_rank(system.n) if rank == "auto" else min(int(rank), system.n)
    low = random_cholesky(system.kernel, system.x, space, rank, system.ridge, seed)
    inverse = low.inverse(system.ridge, None if s is None else s[:, 0])
    b = b if s is None else s * b
    start, r, taken = _start(system, b, coef0)
    lengths = np.sqrt(by_columns(b, b, space))
    found = conjugate_gradients(
        lambda p: (system.product(p), p), inverse, r, tol * lengths, max_iter, space, by_columns
    )
    a = found.x if start is None else start + found.x
    rest = b - system.product(a)
    ratios = np.sqrt(by_columns(rest, rest, space)) / np.where(lengths > 0, lengths, 1)
    coef = a if s is None else s * a
    residual = float(ratios.max())
    return Solution(coef, "cg", found.taken + taken, residual), residual <= 2 * tol


def _start(system: System, b: Any, coef0: Any) -> tuple[Any, Any, int]:
    """The multiple of the first guess that is nearest to the solution, and what it leaves of b."""
    if coef0 is None:
        return None, b, 0
    space = system.space
    guess = coef0 if system.weights is None else coef0 / system.scale
    image = system.product(guess)
    energy = by_columns(guess, image, space)
    share = np.where(energy > 0, by_columns(guess, b, space) / np.where(energy > 0, energy, 1), 0)
    share = space.array(share)
    return share * guess, b - share * image, 1
