"""mercer.linalg.sap for arrays of JAX: the iteration of linalg/_sap.py as one program.

Blocks are factored. The last block of a sweep is filled with rows of the first one, so that all
have one shape. Derivatives are those of jax.lax.custom_linear_solve, as in _jax_cg.py.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mercer import _jax_cg, _jax_linalg
from mercer._jax_operator import KernelOperator, double, is_known
from mercer.errors import LinAlgError

_SWEEPS, _LARGEST_BLOCK = 100, 16384
_FLAT_SWEEPS = 8  # without a smaller residual, before a column has stagnated


class _Form(NamedTuple):
    block: int
    tol: float
    most: int
    check: bool


def sap(
    a: Any, b: Any, *, block: int | None = None, rank: int | None = None, tol: float = 1e-3,
    max_iter: int = _SWEEPS, x0: Any = None, seed: int = 0, check: bool = True,
) -> Any:  # fmt: skip
    for name, value in (("x0", x0), ("rank", rank)):
        if value is not None:
            raise NotImplementedError(f"sap: {name} is not offered for arrays of jax. Received one")
    if not isinstance(a, KernelOperator):
        raise TypeError(f"sap: a must be a KernelOperator. Received {type(a)}")
    if a.reads_indices:
        raise NotImplementedError(
            f"sap: is not offered for formulas that read indices, as its blocks are of points in "
            f"any order. Received {a._f}; cg takes it"
        )
    n = a.shape[0]
    size = min(max(n // 100, 64), _LARGEST_BLOCK) if block is None else block
    for name, value in (("block", size), ("max_iter", max_iter)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"sap: {name} must be a whole number. Received {value!r}")
        if value < 1:
            raise ValueError(f"sap: {name} must be positive. Received {value}.")
    _jax_cg.check_arguments("sap", a, b, None, None)
    limits = _jax_cg.limits("sap", a, tol, max_iter)
    if is_known(a.ridge) and n and not (np.asarray(a.ridge) > 0).all():
        raise ValueError("sap: ridges must be positive. Received one of 0.")
    form = _Form(min(int(size), max(n, 1)), limits.tol, limits.most, bool(check))
    x, info, count = _solved(a, b, seed, form)
    if not check:
        return x, info, count
    if is_known(info) and bool((info != 0).any()):
        raise LinAlgError(
            f"sap: residuals must be at most {tol:.3g} of b. Received info {info.tolist()}: -1 not "
            "finite, -2 stagnated, else sweeps taken; a larger ridge, tol, block or max_iter helps"
        )
    return x


@functools.partial(jax.jit, static_argnums=3)
def _solved(a: Any, b: Any, seed: Any, form: _Form) -> tuple[Any, Any, Any]:
    held = jax.tree.map(jax.lax.stop_gradient, a)

    def solve(_: Any, right: Any) -> tuple[Any, Any]:
        x, info, count = _iterated(held, right, jax.random.key(seed), form)
        bad = info != 0 if form.check else info == -1
        return jnp.where(bad, jnp.nan, x), (info, count)

    columns = b[:, None] if b.ndim == 1 else b
    x, (info, count) = jax.lax.custom_linear_solve(
        lambda v: a @ v, columns, solve, symmetric=True, has_aux=True
    )
    return (x[:, 0], info[0], count[0]) if b.ndim == 1 else (x, info, count)


def _squares(columns: Any) -> Any:
    return (double(columns) ** 2).sum(0)


class _Run(NamedTuple):
    """x moves by blocks, `fast` by longer steps, and `at` lies between; `kept` is the best x."""

    x: Any
    at: Any
    fast: Any
    kept: Any
    mu: Any
    best: Any
    flat: Any
    taken: Any
    done: Any


def _iterated(a: Any, b: Any, key: Any, form: _Form) -> tuple[Any, Any, Any]:
    right = _squares(b)
    bad = ~jnp.isfinite(right)
    b, right = jnp.where(bad, 0, b), jnp.where(bad, 0, right)
    wanted, zero = form.tol**2 * right, jnp.zeros_like(b)
    if b.size == 0:
        none = jnp.zeros(b.shape[1:], int)
        return zero, none, none

    def measured(x: Any) -> Any:
        return _squares(b - a @ x) <= wanted

    def step(run: _Run) -> _Run:
        moved, met = _sweep(a, b, run, jax.random.fold_in(key, run.taken), form.block)
        worst = (met / jnp.where(right > 0, right, 1)).max()
        is_bold = ~(worst <= 100 * jnp.minimum(run.best, 1))
        is_best = worst < run.best
        kept = jnp.where(is_best & ~is_bold, moved.x, run.kept)
        flat = jnp.where(is_bold | (worst >= 0.98 * run.best), run.flat + 1, 0)
        taken = run.taken + 1
        may_end = ~is_bold & ((met <= 2 * wanted).all() | (taken == form.most))
        done = jax.lax.cond(may_end, measured, lambda _: run.done, moved.x)
        # Where the acceleration was too bold, it goes on from the best, and more carefully.
        x, at, fast = (jnp.where(is_bold, kept, t) for t in (moved.x, moved.at, moved.fast))
        mu = jnp.where(is_bold, run.mu / 10, run.mu)
        best = jnp.where(is_bold, run.best, jnp.minimum(worst, run.best))
        return _Run(x, at, fast, kept, mu, best, flat, taken, done)

    whole = jnp.zeros((), int)
    start = _Run(zero, zero, zero, zero, _mu(a), jnp.asarray(jnp.inf, right.dtype), whole, whole,
                 right <= wanted)  # fmt: skip
    run = jax.lax.while_loop(
        lambda run: ~run.done.all() & (run.taken < form.most) & (run.flat < _FLAT_SWEEPS), step,
        start,
    )  # fmt: skip
    x = jnp.where(run.done.all(), run.x, run.kept)
    residual = _squares(b - a @ x)
    x = jnp.where(residual <= right, x, 0)
    info = jnp.where(run.flat >= _FLAT_SWEEPS, -2, run.taken)
    info = jnp.where(residual <= wanted, 0, info)
    info = jnp.where(bad | ~jnp.isfinite(residual), -1, info)
    return jnp.where(info == -1, jnp.nan, x), info, jnp.full_like(info, run.taken)


def _sweep(a: Any, b: Any, run: _Run, key: Any, block: int) -> tuple[_Run, Any]:
    """Every row once, in random blocks, and the squared residuals that the blocks met."""
    n = len(b)
    count = math.ceil(n / block)
    order = jax.random.permutation(key, n)
    order = jnp.concatenate([order, order[: count * block - n]]).reshape(count, block)
    nu = n / block
    beta, gamma = 1 - jnp.sqrt(run.mu / nu), 1 / jnp.sqrt(run.mu * nu)
    alpha = 1 / (1 + gamma * nu)
    ridge = jnp.broadcast_to(jnp.asarray(a.ridge, a.dtype), (n,))

    def one(i: Any, state: Any) -> Any:
        _, at, fast, met = state
        rows = order[i]
        gap = a.product_of_rows(rows, at) + ridge[rows][:, None] * at[rows] - b[rows]
        square = a.square(rows) + jnp.diag(ridge[rows])
        # What jitter adds makes steps shorter.
        step, _ = _jax_linalg.solve_cholesky(square, gap, jitter=1e-7, check=False)
        x = at.at[rows].add(-step)
        fast = (beta * fast + (1 - beta) * at).at[rows].add(-gamma * step)
        return x, alpha * fast + (1 - alpha) * x, fast, met + _squares(gap)

    met = jnp.zeros(b.shape[1:], double(b[:0]).dtype)
    x, at, fast, met = jax.lax.fori_loop(0, count, one, (run.x, run.at, run.fast, met))
    return run._replace(x=x, at=at, fast=fast), met


def _mu(a: Any) -> Any:
    """The strong convexity that the acceleration assumes: the ridge in units of the kernel."""
    kernel = a.kernel_diagonal().mean()
    least = jnp.asarray(a.ridge, a.dtype).min()
    return jnp.where(kernel > 0, jnp.minimum(1, least / jnp.where(kernel > 0, kernel, 1)), 1)
