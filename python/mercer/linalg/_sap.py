"""Sketch and project: kernel systems solved a block of rows at a time, with acceleration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mercer import _linalg_calls, _mercer, _verbs
from mercer._libraries import namespace_of, plain
from mercer._mixed import library_of, require_one_library
from mercer._progress import current, share_of_residual, shown
from mercer.errors import DtypeError, LinAlgError

_SWEEPS = 100
_LARGEST_BLOCK = 16384
_FLAT_SWEEPS = 8  # without a smaller residual, before a column has stagnated
_POWERS = 10


class _Blocks:
    """The operator's rows by blocks of points, from its formula."""

    def __init__(self, a: Any, rank: int | None, seed: int) -> None:
        _, (self.f, self.x, ridge, self.params, sides) = a.__reduce__()
        self.library = namespace_of(self.x)
        sides = dict(sides)
        weights = sides.pop("weights", None)
        self.row = sides.pop("row", None)
        sides.pop("col", None)
        self.params = {**self.params, **sides}
        self.roots = None if weights is None else self.library.sqrt(weights)[:, None]
        self.ridge = ridge if isinstance(ridge, float) else ridge[:, None]
        self.rank, self.random = rank, np.random.default_rng(seed)

    def array(self, numbers: Any) -> Any:
        """Numbers of NumPy in the library of the points, on their device."""
        if isinstance(self.x, np.ndarray):
            return numbers
        made = self.library.asarray(numbers)
        return made.to(self.x.device) if hasattr(made, "to") else made

    def ridge_of(self, rows: Any) -> Any:
        return self.ridge if isinstance(self.ridge, float) else self.ridge[rows]

    def sides(self, rows: Any) -> dict[str, Any]:
        return {} if self.row is None else {"row": self.row[rows], "col": self.row}

    def multiply(self, rows: Any, v: Any) -> Any:
        """The product of some rows of the matrix with v [n, k]."""
        if self.roots is None:
            product = self._product(rows, v)
        else:
            product = self.roots[rows] * self._product(rows, self.roots * v)
        return product + self.ridge_of(rows) * v[rows]

    def _product(self, rows: Any, v: Any) -> Any:
        return _verbs.kernel_product(
            self.f, self.x[rows], self.x, v, **self.sides(rows), **self.params
        )

    def matrix(self, rows: Any) -> Any:
        """The square of these points, without its ridge."""
        sides = {} if self.row is None else dict.fromkeys(("row", "col"), self.row[rows])
        square = _verbs.kernel_matrix(self.f, self.x[rows], **sides, **self.params)
        if self.roots is None:
            return square
        roots = self.roots[rows]
        square *= roots
        square *= roots.T
        return square

    def step(self, rows: Any, gap: Any) -> Any:
        """What these rows of x change by: the block's own system, or what stands for it."""
        square = self.matrix(rows)
        ridge = self.ridge_of(rows)
        if self.rank is None:
            places = self.library.arange(len(square))
            square[places, places] += ridge if isinstance(ridge, float) else ridge[:, 0]
            # What jitter adds makes steps shorter.
            return _mercer.unfollowed("solve_cholesky", square, gap, overwrite_a=True, jitter=1e-7)
        return self._nystrom_step(square, ridge, gap)

    def _nystrom_step(self, square: Any, ridge: Any, gap: Any) -> Any:
        """A step of one over the largest eigenvalue of P^-1 a, found by powers, with
        P = U L U^T + rho, rho the ridge and the least eigenvalue kept."""
        vectors, values = self._nystrom(square)
        largest = ridge if isinstance(ridge, float) else float(ridge.max())
        rho = largest + float(values.min())
        damped = (1 / (values + rho))[:, None]

        def inverse(v: Any) -> Any:
            inner = vectors.T @ v
            return vectors @ (damped * inner) + (v - vectors @ inner) / rho

        power = self.array(self.random.standard_normal((len(square), 1)).astype(_name(gap)))
        size = 1.0
        for _ in range(_POWERS):
            power = inverse(square @ power + ridge * power)
            size = math.sqrt(float((power * power).sum()))
            power = power / size
        return inverse(gap) / max(1.1 * size, 1.0)

    def _nystrom(self, square: Any) -> tuple[Any, Any]:
        rank = min(self.rank or 0, len(square))
        sketch = np.linalg.qr(self.random.standard_normal((len(square), rank)))[0]
        test = self.array(sketch.astype(_name(square)))
        product = square @ test
        trace = float(square.diagonal().sum())
        shift = trace * (4 * np.finfo(_name(square)).eps)
        product = product + shift * test
        core = test.T @ product
        half = _mercer.unfollowed("cholesky", (core + core.T) / 2, jitter=1e-7)
        # product core^-T/2, whose left singular vectors and squared values are those sought.
        factor = _right_divided(product, half)
        squares, turn = _mercer.unfollowed("eigh", factor.T @ factor)
        least = float(squares.max()) * len(square) * np.finfo(_name(square)).eps
        kept = squares > least
        squares, turn = squares[kept], turn[:, kept]
        values = squares - shift
        values = values * (values > 0)
        return factor @ (turn / squares**0.5), values


def _right_divided(columns: Any, lower: Any) -> Any:
    """columns lower^-T, by LU, which serves every triangle."""
    return _mercer.unfollowed("solve_lu", lower, columns.T).T


def _name(array: Any) -> str:
    return str(array.dtype).rpartition(".")[2]


class _Sweeps:
    """The iteration: x moves by blocks, `fast` by longer steps, and `at` lies between."""

    def __init__(self, blocks: _Blocks, b: Any, x: Any, block: int, mu: float) -> None:
        self.blocks, self.b, self.block, self.mu = blocks, b, block, mu
        self.start(x)

    def start(self, x: Any) -> None:
        self.x, self.at, self.fast = x, _copy(x), _copy(x)
        nu = max(len(x), 1) / self.block
        self.beta = 1 - math.sqrt(self.mu / nu)
        self.gamma = 1 / math.sqrt(self.mu * nu)
        self.alpha = 1 / (1 + self.gamma * nu)

    def sweep(self) -> Any:
        """Every row once, in random blocks. Gives the squared residuals that the blocks met."""
        order = self.blocks.random.permutation(len(self.b))
        squares: Any = 0.0
        for start in range(0, len(order), self.block):
            rows = self.blocks.array(order[start : start + self.block])
            gap = self.blocks.multiply(rows, self.at) - self.b[rows]
            squares = squares + _squares(gap)
            self.move(rows, self.blocks.step(rows, gap))
        return squares

    def move(self, rows: Any, step: Any) -> None:
        self.x[...] = self.at
        self.x[rows] -= step
        self.fast *= self.beta
        self.fast += (1 - self.beta) * self.at
        self.fast[rows] -= self.gamma * step
        self.at[...] = self.alpha * self.fast + (1 - self.alpha) * self.x


def _copy(x: Any) -> Any:
    return x.clone() if hasattr(x, "clone") else x.copy()


def _squares(columns: Any) -> np.ndarray[Any, Any]:
    """Squared norms of columns in float64, on the host."""
    wide = columns.double() if hasattr(columns, "double") else columns.astype("float64")
    return _host((wide * wide).sum(0))


class _Solve:
    def __init__(self, a: Any, b: Any, sweeps: _Sweeps, tol: float, most: int) -> None:
        self.scales = _scales(b, sweeps.blocks)
        if self.scales is not None:
            b = sweeps.b = b / self.scales
            sweeps.start(sweeps.x / self.scales)
        self.a, self.b, self.sweeps, self.most = a, b, sweeps, most
        self.right = _squares(b)
        self.tol, self.wanted = tol, tol**2 * self.right
        self.info = np.zeros(len(self.right), np.int64)
        self.residual = np.zeros(len(self.right))
        self.taken = 0

    def measure(self) -> Any:
        """b - a x of all columns, by one product."""
        self.residual = _squares(self.b - self.a @ self.sweeps.x)
        return self.residual <= self.wanted

    def run(self) -> None:
        bad = ~np.isfinite(self.right)
        if bad.any():
            self.b = _copy(self.b)
            self.b[:, self.sweeps.blocks.array(bad)] = 0
            self.sweeps.b = self.b
            self.right = np.where(bad, 0, self.right)
            self.wanted = np.where(bad, 0, self.wanted)
        done = self.measure()
        start, first = _copy(self.sweeps.x), self.residual
        best, flat, kept = np.inf, 0, _copy(start)
        lost, bar = ~np.isfinite(first), current()
        while not (done | lost).all() and self.taken < self.most and flat < _FLAT_SWEEPS:
            met = self.sweeps.sweep()
            self.taken += 1
            worst = _worst(met, self.right)
            if bar is not None:
                share = share_of_residual(math.sqrt(worst), self.tol) if worst >= 0 else 0.0
                share = max(share, self.taken / self.most)
                bar.step(share, f"residual {math.sqrt(max(worst, 0)):.1e}")
            if not math.isfinite(worst) or worst > 100 * min(best, 1.0):
                # The acceleration was too bold: it goes on from the best, and more carefully.
                self.sweeps.mu /= 10
                self.sweeps.start(_copy(kept))
                flat += 1
                continue
            flat = 0 if worst < 0.98 * best else flat + 1
            if worst < best:
                best = worst
                kept[...] = self.sweeps.x
            if (met <= 2 * self.wanted).all() or self.taken == self.most:
                done = self.measure()
        if not done.all():
            self.sweeps.x[...] = kept
            done = self.measure()
            worse = ~(self.residual <= first)
            self.sweeps.x[:, self.sweeps.blocks.array(worse)] = start[
                :, self.sweeps.blocks.array(worse)
            ]
            self.residual = np.where(worse, first, self.residual)
        finite = np.isfinite(self.residual)
        self.info = np.where(done, 0, -2 if flat >= _FLAT_SWEEPS else self.taken)
        self.info = np.where(finite & ~bad, self.info, -1)
        self.sweeps.x[:, self.sweeps.blocks.array(self.info == -1)] = math.nan
        if self.scales is not None:
            self.sweeps.x *= self.scales

    def require_done(self, tol: float) -> None:
        failed = np.flatnonzero(self.info)
        if not len(failed):
            return
        ratio = np.sqrt(self.residual / np.where(self.right > 0, self.right, 1))
        worst = max(failed, key=lambda j: (self.info[j] == -1, ratio[j]))
        which = f"column {worst} ({len(failed)} of {len(self.info)} failed)"
        if self.info[worst] == -1:
            raise LinAlgError(
                f"sap: b, x and products with a must be finite. Received NaN or infinity in "
                f"{which}."
            )
        end = "where it stagnated" if self.info[worst] == -2 else "which were all of them"
        raise LinAlgError(
            f"sap: residuals must be at most {tol:.3g} of b. Received {ratio[worst]:.3g} in "
            f"{which} after {self.taken} sweeps, {end}; a larger ridge, tol, block or max_iter "
            f"helps."
        )


def _scales(columns: Any, blocks: _Blocks) -> Any:
    """Powers of two that columns of float64 are divided by where their squares leave its range;
    None where there are none."""
    if _name(columns) != "float64" or not len(columns):
        return None
    most = _host(abs(columns).max(0) if hasattr(columns, "astype") else columns.abs().amax(0))
    is_extreme = np.isfinite(most) & (most > 0) & ((most < 2.0**-400) | (most > 2.0**400))
    if not is_extreme.any():
        return None
    exponents = np.frexp(np.where(is_extreme, most, 0.5))[1]
    return blocks.array(np.ldexp(1.0, np.clip(exponents, -1021, 1023)))


def _host(values: Any) -> np.ndarray[Any, Any]:
    host = values.cpu().numpy() if hasattr(values, "cpu") else values
    return np.asarray(host.get() if hasattr(host, "get") else host)


def _worst(squares: Any, right: Any) -> float:
    if not len(right):
        return 0.0
    return float(np.max(squares / np.where(right > 0, right, 1)))


def _check(a: Any, b: Any, x0: Any, numbers: dict[str, Any], tol: float) -> None:
    if not isinstance(a, _mercer.KernelOperator) and not hasattr(type(a), "_mercer_is_followed"):
        raise TypeError(f"sap: a must be a KernelOperator of points in memory. Received {type(a)}")
    require_one_library("sap", {"a": a, "b": b, "x0": x0})
    if library_of(b) is None:
        raise ValueError(f"sap: b must be an array. Received {type(b)}")
    if not 0 < tol < 1:
        raise ValueError(f"sap: tol must be from 0 to 1. Received {tol}.")
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"sap: {name} must be a whole number. Received {value!r}")
        if value < 1:
            raise ValueError(f"sap: {name} must be positive. Received {value}.")
    if b.ndim not in (1, 2) or b.shape[0] != a.shape[0]:
        raise ValueError(
            f"sap: b must have the shape [n, k] or [n], n = {a.shape[0]}. "
            f"Received {tuple(b.shape)}."
        )
    if b.dtype != a.dtype:
        raise DtypeError(f"sap: b must be {a.dtype}. Received {b.dtype}")
    if str(getattr(b, "device", "cpu")) != str(a.device):
        raise ValueError(f"sap: b must lie on {a.device}. Received one on {b.device}.")


def block_of(n: int) -> int:
    """Rows of a block where nothing is said."""
    return min(max(n // 100, 64), _LARGEST_BLOCK)


def _is_followed(a: Any, b: Any) -> bool:
    """Whether PyTorch records what is computed with them."""
    if library_of(b) != "torch":
        return False
    from mercer import _watchers
    from mercer._torch import linalg_cg

    return _watchers.follow([b, *linalg_cg.tensors_of(a)])


def sap(
    a: Any, b: Any, *, block: int | None = None, rank: int | None = None, tol: float = 1e-3,
    max_iter: int = _SWEEPS, x0: Any = None, seed: int = 0, check: bool = True,
    progress: bool = False,
) -> Any:  # fmt: skip
    """Solves a x = b for a kernel operator by blocks of rows: accelerated sketch and project.

    For systems so large that a few dozen sweeps are all there is time for, from about 500 000
    points on; for smaller ones, and for small tolerances, cg with a preconditioner is faster.
    A sweep takes every row once, in random blocks: as many pairs as one product, and the systems of
    the blocks (Rathore, Frangella, Yang, Derezinski, Udell, "Have ASkotch", 2025).

    a: a KernelOperator with positive ridges, whose formula reads no indices; b: [n, k] or [n], of
    its library, device and dtype. block: rows of a block, n / 100 from 64 to 16384 when nothing is
    said; memory is that of its square and some vectors of n. rank: of Nystrom approximations that
    stand for the blocks, with damping and a step by powers; blocks are factored when nothing is
    said. tol: |b_j - a x_j| of each column at most, as a part of |b_j|, which is measured by one
    product where the blocks say so. max_iter: sweeps. x0: a first guess. seed: of the blocks.
    progress: shows a bar once the call has taken two seconds.

    check: with True the worst column that misses the tolerance raises LinAlgError. With False the
    result is (x, info, iterations), as cg gives them, of NumPy; iterations are sweeps. info: 0; the
    sweeps when they were used up; -2 where residuals stagnated; -1 for NaN, whose x is NaN.

    PyTorch differentiates x by b and by all that the operator is made of, as often as wanted. Each
    derivative is one more solve with these options, to this tolerance; x0 has no part in it.

    >>> x = mercer.linalg.sap(operator, y, tol=1e-2)
    """
    if library_of(a) == "jax":
        return _linalg_calls.of_jax(
            "sap", a, b, block=block, rank=rank, tol=tol, max_iter=max_iter, x0=x0, seed=seed,
            check=check,
        )  # fmt: skip
    n = a.shape[0] if hasattr(type(a), "points") else 0
    size = block_of(n) if block is None else block
    b, x0 = plain(b), plain(x0)
    numbers = {"block": size, "rank": 1 if rank is None else rank, "max_iter": max_iter}
    _check(a, b, x0, numbers, tol)
    if x0 is not None and (tuple(x0.shape) != tuple(b.shape) or x0.dtype != b.dtype):
        raise ValueError(
            f"sap: x0 must be {b.dtype} of shape {tuple(b.shape)}. "
            f"Received {x0.dtype} {tuple(x0.shape)}."
        )
    options = {
        "block": size,
        "rank": rank,
        "tol": tol,
        "max_iter": max_iter,
        "x0": x0,
        "seed": seed,
    }
    options["check"] = check
    if _is_followed(a, b):
        from mercer._torch import linalg_cg

        return linalg_cg.sap(a, b, options)
    with shown("sap", progress):
        return computed(a, b, **options)


def computed(
    a: Any, b: Any, *, block: int, rank: int | None, tol: float, max_iter: int, seed: int,
    check: bool, x0: Any = None,
) -> Any:  # fmt: skip
    """The solution for checked arguments, whatever PyTorch records."""
    if a.shape[0] and _least(a) <= 0:
        raise ValueError("sap: ridges must be positive. Received one of 0.")
    n, columns = a.shape[0], b if b.ndim == 2 else b[:, None]
    start = 0 * columns if x0 is None else (x0 if b.ndim == 2 else x0[:, None])
    x = _copy(start)
    x[...] = _finite(x) if x0 is None else x
    blocks = _Blocks(a, rank, seed)
    sweeps = _Sweeps(blocks, columns, x, min(block, max(n, 1)), _mu(a))
    solve = _Solve(a, columns, sweeps, tol, max_iter)
    if n > 0 and columns.shape[1] > 0:
        solve.run()
    solved = solve.sweeps.x if b.ndim == 2 else solve.sweeps.x[:, 0]
    if check:
        solve.require_done(tol)
        return solved
    taken = np.full_like(solve.info, solve.taken)
    return (solved, solve.info, taken) if b.ndim == 2 else (solved, solve.info[0], taken[0])


def _finite(x: Any) -> Any:
    """Zeros, where 0 b was NaN."""
    x[x != 0] = 0
    return x


def _mu(a: Any) -> float:
    """The strong convexity that the acceleration assumes: the ridge in units of the kernel."""
    if not a.shape[0]:
        return 1.0
    mean = a.ridge if isinstance(a.ridge, float) else float(a.ridge.mean())
    kernel = float(a.diagonal().mean()) - mean
    return min(1.0, _least(a) / kernel) if kernel > 0 else 1.0


def _least(a: Any) -> float:
    ridge = a.ridge
    return ridge if isinstance(ridge, float) else float(ridge.min())
