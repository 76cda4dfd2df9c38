"""Conjugate gradients with a low-rank factor of the kernel matrix that is weighted anew at will."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

import mercer as mc
from mercer._progress import Fit, current, share_of_residual
from mercer.models._arrays import Space, host
from mercer.models._kernels import FittedKernel
from mercer.models._solve import Solution, System, add_diagonal, is_lost, rank_of

_ROWS = 2**14  # whose products are summed in the dtype of the factor, before float64
_AIM = 0.95  # of tol, which residuals that are measured then meet, too


@dataclass
class LowRank:
    """K near F F^T, and the diagonal of what is left."""

    factor: Any  # F, [n, r]
    left: Any  # [n]
    space: Space

    def inverse(self, ridge: float, s: Any = None) -> Callable[[Any], Any]:
        """Nearly the inverse of ridge + diag(s) K diag(s), for v [n, k]; s: [n].

        What the factor leaves is stood for by a diagonal, half of each entry and half of their
        mean. For Laplace kernels the ridge alone takes three to nine times the steps, the mean or
        the entries alone up to a half more.
        """
        space, f = self.space, self.factor
        left = self.left if s is None else self.left * s * s
        scale = ((left + left.sum() / left.shape[0]) / 2 + ridge)[:, None] ** -0.5
        if f.shape[1] == 0:
            return lambda v: scale * scale * v
        f = f * (scale if s is None else scale * s[:, None])
        wide = space.of("float64")
        gram = wide.zeros(f.shape[1], f.shape[1])
        for start in range(0, f.shape[0], _ROWS):
            part = f[start : start + _ROWS]
            gram += wide.array(part.T @ part)
        top = float((gram.reshape(-1)[:: gram.shape[0] + 1]).max())
        add_diagonal(gram, max(1.0, float(np.finfo(space.dtype).eps) * 10 * top))
        inner = solved_by(mc.linalg.cholesky(gram, overwrite_a=True), wide)

        def solve(v: Any) -> Any:
            v = scale * v
            return scale * (v - f @ space.array(inner(wide.array(f.T @ v))))

        return solve


def solved_by(factor: Any, space: Space) -> Callable[[Any], Any]:
    """(L L^T)^-1 v for few columns and many calls; it may take the memory of L [m, m].

    Two triangles make a device wait row for row, some ten times as long as a product with the
    inverse.
    """
    if not space.on_device:
        return lambda v: mc.linalg.cho_solve(factor, v)
    inverse = mc.linalg.cho_inverse(factor, overwrite_factor=True)
    return lambda v: inverse @ v


def random_cholesky(kernel: FittedKernel, x: Any, space: Space, rank: int, ridge: float,
                    seed: int) -> LowRank:  # fmt: skip
    """Blocks of pivots drawn by the diagonal that is left, until that is a tenth of the ridge.

    (Chen, Epperly, Tropp, Webber, "Randomly pivoted Cholesky", 2023.)
    """
    n, block = x.shape[0], min(128, max(16, rank // 8)) if space.on_device else 64
    left = np.maximum(np.array(host(kernel.diagonal(x)), np.float64), 0)
    total, count = left.sum(), 0
    if not np.isfinite(total):
        raise mc.LinAlgError("the kernel matrix holds NaN or an infinity")
    # Its transpose: products of it with a few columns are sums along memory.
    factor, rng = space.empty(rank, n), np.random.default_rng(seed)
    while count < rank and left.sum() > max(1e-6 * total, 0.1 * n * ridge):
        drawn = np.unique(rng.choice(n, min(block, rank - count), p=left / left.sum()))
        new, chosen = _rows(kernel, x, space, factor[:count], drawn)
        if not len(chosen):
            break  # rounding is all that is left
        factor[count : count + len(chosen)] = new
        count += len(chosen)
        left = np.maximum(left - np.asarray(host((new * new).sum(0)), np.float64), 0)
        left[chosen] = 0
    return LowRank(factor[:count].T, space.array(left), space)


def _rows(kernel: FittedKernel, x: Any, space: Space, factor: Any,
          drawn: np.ndarray) -> tuple[Any, np.ndarray]:  # fmt: skip
    """New rows of the factor's transpose for some of the points drawn, and these points."""
    points = space.index(drawn)
    some = space.array(x[points])
    values = some if kernel.precomputed else kernel.matrix(some, x)
    values -= factor[:, points].T @ factor
    corner = np.array(host(values[:, points]), np.float64)
    lower, pivots, found, _ = scipy.linalg.lapack.dpstrf(
        corner, lower=1, tol=1e-6 * max(corner.trace() / len(corner), 1e-300)
    )
    inverse = scipy.linalg.solve_triangular(
        np.tril(lower)[:found, :found], np.eye(found), lower=True
    )
    chosen = pivots[:found] - 1
    return space.array(inverse) @ values[space.index(chosen)], drawn[chosen]


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
    is_definite: bool = True  # as far as the steps show
    least: float = 0.0  # p' A p / p' p of a step that shows otherwise


def conjugate_gradients(multiply: Callable[[Any], tuple[Any, Any]], inverse: Callable[[Any], Any],
                        r: Any, goals: Any, limit: int, space: Space,
                        dot: Callable[..., np.ndarray]) -> Iterate:  # fmt: skip
    """Solves for r [n, k] from 0 on, until lengths are at most goals [k] or limit products.

    multiply(p): the matrix times p, and what to keep of the way there. Where the matrix shows not
    to be positive definite it ends with what it has.
    """
    fit, size = current(), np.maximum(dot(r, r, space), 1e-300)
    p = z = inverse(r)
    x, kept = space.zeros(*r.shape), space.zeros(*r.shape)
    rz = dot(r, z, space)
    for taken in range(1, limit + 1):
        q, part = multiply(p)
        curve = dot(p, q, space)
        live = (curve > 0) & (rz > 0)
        if not live.any():
            is_low = (curve < 0) & (rz > 0)
            least = np.where(is_low, curve / np.maximum(dot(p, p, space), 1e-300), 0).min()
            return Iterate(x, kept, taken, False, not is_low.any(), float(least))
        step = space.array(np.where(live, rz / np.where(live, curve, 1), 0))
        x, kept, r = x + step * p, kept + step * part, r - step * q
        left = dot(r, r, space)
        if fit is not None:
            _tell(fit, left / size, np.square(goals) / size, taken / limit)
        if (left <= np.square(goals)).all():
            return Iterate(x, kept, taken, True)
        z = inverse(r)
        rz, last = dot(r, z, space), rz
        p = z + space.array(np.where(live, rz / np.where(live, last, 1), 0)) * p
    return Iterate(x, kept, limit, False)


def _tell(fit: Fit, left: Any, goals: Any, share: float) -> None:
    """Squares of the residuals and of their goals, as parts of the right-hand sides'."""
    worst = int(np.argmax(left / np.maximum(goals, 1e-300)))
    residual, tol = (float(np.sqrt(squares[worst])) for squares in (left, goals))
    fit.step(max(share, share_of_residual(residual, tol)), f"residual {residual:.1e}")


def preconditioner(system: System, rank: int | str, seed: int) -> Callable[[Any], Any]:
    """Nearly the inverse of a system."""
    space, s = system.space, system.scale
    rank = min(rank_of(rank, system.n, space), system.n)
    low = random_cholesky(system.kernel, system.x, space, rank, system.ridge, seed)
    return low.inverse(system.ridge, None if s is None else s[:, 0])


def solve(system: System, b: Any, *, rank: int | str, tol: float, max_iter: int,
          coef0: Any = None, seed: int = 0) -> tuple[Solution, bool]:  # fmt: skip
    """The coefficients of a system for b [n, k], and whether all columns reached tol."""
    b = b if system.scale is None else system.scale * b
    x0 = None if coef0 is None else system.unscaled(coef0)
    return steps(system, b, rank=rank, tol=tol, max_iter=max_iter, x0=x0, seed=seed)


def steps(system: System, b: Any, *, rank: int | str, tol: float, max_iter: int, x0: Any = None,
          seed: int = 0, strict: bool = False) -> tuple[Solution, bool]:  # fmt: skip
    """`solve` for right-hand sides and a first guess that S is in. strict: all of tol is to be met,
    and a matrix that shows not to be positive definite is a LinAlgError."""
    found = solved(
        system.product, preconditioner(system, rank, seed), b, x0, system.space, tol=tol,
        limit=max_iter, strict=strict,
    )  # fmt: skip
    if strict and not found.is_sound:
        raise system.not_definite()
    a = found.x if system.scale is None else system.scale * found.x
    lost = strict and found.is_lost
    return Solution(a, "cg", found.taken, found.residual, is_lost=lost), found.met


@dataclass
class Solved:
    x: Any
    taken: int  # products
    residual: float  # the largest |b - A x| / |b| of a column, measured
    met: bool
    is_sound: bool  # whether A shows to be positive definite and the residual is a number
    is_lost: bool  # whether rounding is all that steps found


@np.errstate(all="ignore")  # a singular matrix makes steps overflow, which residuals show
def solved(product: Callable[[Any], Any], inverse: Callable[[Any], Any], b: Any, guess: Any,
           space: Space, *, tol: float, limit: int, strict: bool) -> Solved:  # fmt: skip
    """A x = b for b [n, k] by products with A. strict: all of tol is to be met, not 2 tol, and a
    matrix that is not sound ends the steps."""
    x, r, taken = _start(product, b, guess, space)
    lengths = np.sqrt(by_columns(b, b, space))

    def part(r: Any) -> float:
        ratios = np.sqrt(by_columns(r, r, space)) / np.where(lengths > 0, lengths, 1)
        return float(ratios.max(initial=0))

    most, aim = (tol, _AIM * tol) if strict else (2 * tol, tol)
    residual, before, is_sound = np.inf if guess is None else part(r), np.inf, True
    start, ended = 1.0 if guess is None else max(1.0, residual), False
    while most < residual <= before / 2 and taken < limit:  # again, where rounding led astray
        found = conjugate_gradients(
            lambda p: (product(p), p), inverse, r, aim * lengths, limit - taken, space, by_columns
        )
        ended = not found.converged and found.taken < limit - taken
        x, taken = x + found.x, taken + found.taken
        r = b - product(x)
        before, residual = residual, part(r)
        is_sound = found.is_definite and bool(np.isfinite(residual))
        if strict and not is_sound:
            break
    lost = bool(is_lost(residual, start, ended, space))
    return Solved(x, taken, residual, residual <= most, is_sound, lost)


def _start(product: Callable[[Any], Any], b: Any, guess: Any, space: Space) -> tuple[Any, Any, int]:
    """The multiple of the first guess that is nearest to the solution, and what it leaves of b."""
    if guess is None:
        return space.zeros(*b.shape), b, 0
    image = product(guess)
    energy = by_columns(guess, image, space)
    share = np.where(energy > 0, by_columns(guess, b, space) / np.where(energy > 0, energy, 1), 0)
    share = space.array(share)
    return share * guess, b - share * image, 1
