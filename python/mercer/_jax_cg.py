"""mercer.linalg.cg and minres for arrays of JAX: loops of XLA's around products.

The solution is that of jax.lax.custom_linear_solve, so that derivatives of every order, by all that
the operator is made of, are more solves and those of kernel_product. JAX cannot raise from what
it compiles: columns that fail are NaN there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mercer._jax_inverse import Preconditioner
from mercer._jax_operator import check_amounts, check_matrix, is_known, taken
from mercer.errors import DtypeError, LinAlgError

_GAIN = 0.75  # a restart must take the residual to that part of the last one


class _Limits(NamedTuple):
    verb: str
    tol: float
    most: int
    check: bool


def cg(
    a: Any, b: Any, *, ridge: Any = None, preconditioner: Any = None, tol: float | None = None,
    max_iter: int | None = None, x0: Any = None, out: Any = None, check: bool = True,
) -> Any:  # fmt: skip
    if preconditioner is not None:
        _check_preconditioner(preconditioner, b)
    return _answered("cg", a, b, ridge, preconditioner, tol, max_iter, x0, out, check)


def minres(
    a: Any, b: Any, *, ridge: Any = None, tol: float | None = None, max_iter: int | None = None,
    x0: Any = None, out: Any = None, check: bool = True,
) -> Any:  # fmt: skip
    return _answered("minres", a, b, ridge, None, tol, max_iter, x0, out, check)


def _check_preconditioner(preconditioner: Any, b: Any) -> None:
    if not isinstance(preconditioner, Preconditioner):
        raise ValueError(
            "cg: preconditioner must be made by rpcholesky, nystrom or pivoted_cholesky of arrays "
            f"of the library of a, jax. Received {type(preconditioner)}"
        )
    shape, k = tuple(getattr(b, "shape", ())), preconditioner.ridge
    if jnp.ndim(k) and shape[1:] != jnp.shape(k):
        raise ValueError(
            f"cg: preconditioner must have one ridge, or one for each column of b. Received "
            f"{jnp.shape(k)[0]} for b of shape {shape}"
        )


def _answered(
    verb: str, a: Any, b: Any, ridge: Any, preconditioner: Any, tol: float | None,
    max_iter: int | None, x0: Any, out: Any, check: bool,
) -> Any:  # fmt: skip
    for name, value in (("x0", x0), ("out", out)):
        if value is not None:
            raise NotImplementedError(
                f"{verb}: {name} is not offered for arrays of jax. Received one"
            )
    check_arguments(verb, a, b, ridge, preconditioner)
    held = limits(verb, a, tol, max_iter, check)
    inverse = jax.tree.map(jax.lax.stop_gradient, preconditioner)
    x, info, count = solved(a, b, ridge, inverse, held)
    if not check:
        return x, info, count
    if is_known(info) and bool((info != 0).any()):
        kind = "symmetric" if verb == "minres" else "positive definite"
        raise LinAlgError(
            f"{verb}: a must be {kind} and residuals at most {held.tol:.3g} of b. Received "
            f"info {info.tolist()}: -1 not finite or not {kind}, -2 stagnated, else "
            f"products taken; a larger ridge, tol or max_iter helps"
        )
    return x


def limits(
    verb: str, a: Any, tol: float | None, max_iter: int | None, check: bool = True
) -> _Limits:
    tolerance = (1e-5 if jnp.finfo(a.dtype).bits == 32 else 1e-10) if tol is None else float(tol)
    if not 0 < tolerance < 1:
        raise ValueError(f"{verb}: tol must be from 0 to 1. Received {tol}")
    most = min(10 * max(a.shape[0], 1), 10000) if max_iter is None else int(max_iter)
    return _Limits(verb, tolerance, most, bool(check))


def check_arguments(verb: str, a: Any, b: Any, ridge: Any, preconditioner: Any) -> None:
    check_matrix(verb, a)
    n = a.shape[0]
    if not isinstance(b, jax.Array) or b.ndim not in (1, 2) or b.shape[0] != n:
        raise ValueError(
            f"{verb}: b must be an array of jax of the shape [n, k] or [n], n = {n} as in a. "
            f"Received {getattr(b, 'shape', type(b))}"
        )
    if b.dtype != a.dtype:
        raise DtypeError(f"{verb}: b must be {a.dtype}, the dtype of a. Received {b.dtype}")
    if preconditioner is not None and (preconditioner.shape[0], preconditioner.dtype) != (
        n, a.dtype,
    ):  # fmt: skip
        raise ValueError(
            f"{verb}: preconditioner must be of {a.dtype} and of order {n}, as a is. Received one "
            f"of {preconditioner.dtype} and {preconditioner.shape[0]}"
        )
    check_amounts(verb, "ridge", ridge, b.shape[1:])


@functools.partial(jax.jit, static_argnums=4)
def solved(a: Any, b: Any, ridge: Any, inverse: Any, limits: _Limits) -> tuple[Any, Any, Any]:
    """x, info and products. One program serves all calls of the same shapes and formula."""
    matrix = taken(a)
    step = _minres if limits.verb == "minres" else _cg

    def multiply(v: Any) -> Any:
        found = matrix @ v
        return found if ridge is None else found + jnp.asarray(ridge, v.dtype) * v

    def solve(product: Callable[[Any], Any], right: Any) -> Any:
        cycle = functools.partial(step, product, inverse)
        x, info, count = _restarted(product, cycle, right, limits.tol, limits.most)
        bad = info != 0 if limits.check else info == -1
        return jnp.where(bad, jnp.nan, x), (info, count)

    columns = b[:, None] if b.ndim == 1 else b
    x, (info, count) = jax.lax.custom_linear_solve(
        multiply, columns, solve, symmetric=True, has_aux=True
    )
    return (x[:, 0], info[0], count[0]) if b.ndim == 1 else (x, info, count)


def _dot(u: Any, v: Any) -> Any:
    return (u * v).sum(0)


def _restarted(
    multiply: Callable[[Any], Any], cycle: Callable[..., Any], b: Any, tol: float, most: int
) -> tuple[Any, Any, Any]:
    """x, info and products of each column. They share the products, and each ends on its own: by a
    residual that was measured, after the one of the recurrence has promised it."""
    bound = tol**2 * _dot(b, b)
    nobody = jnp.zeros(b.shape[1:], bool)

    def measured(state: Any) -> Any:
        x, before, live, failed, stagnated, count = state
        r = b - multiply(x)
        square = _dot(r, r)
        ends = (square <= bound) | failed | (count >= most)
        stuck = live & ~ends & ~(square < _GAIN**2 * before)
        live = live & ~ends & ~stuck
        x, failed, count = cycle(x, r, bound, live, failed, count, most)
        return x, square, live, failed, stagnated | stuck, count

    start = (
        jnp.zeros_like(b), jnp.full(b.shape[1:], jnp.inf, b.dtype), ~nobody, nobody, nobody,
        jnp.zeros(b.shape[1:], int),
    )  # fmt: skip
    x, square, _, failed, stagnated, count = jax.lax.while_loop(
        lambda s: s[2].any(), measured, start
    )
    info = jnp.where(square <= bound, 0, jnp.where(stagnated, -2, count))
    return x, jnp.where(failed | ~jnp.isfinite(square), -1, info), count


def _quotient(live: Any, a: Any, b: Any) -> Any:
    """a / b of the columns that go on, 0 of the others."""
    return jnp.where(live, a / jnp.where(live, b, 1), 0)


def _cg(
    multiply: Any, inverse: Any, x: Any, r: Any, bound: Any, live: Any, failed: Any, count: Any,
    most: int,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Conjugate gradients from the residual r of x, until the recurrence promises the bound."""
    solve = (lambda v: v) if inverse is None else inverse.solve

    def step(state: Any) -> Any:
        x, r, p, product, live, failed, count = state
        q = multiply(p)
        curvature = _dot(p, q)
        bad = live & ~(curvature > 0)
        goes = live & ~bad
        alpha = _quotient(goes, product, curvature)
        x, r = x + alpha * p, r - alpha * q
        z = solve(r)
        fresh = jnp.where(goes, _dot(r, z), product)
        bad = bad | (goes & ~(fresh >= 0))
        p = z + _quotient(goes & (product > 0), fresh, product) * p
        ends = (_dot(r, r) <= bound) | ~(fresh > 0) | (count + 1 >= most)
        return x, r, p, fresh, goes & ~ends, failed | bad, count + live

    z = solve(r)
    start = (x, r, z, _dot(r, z), live, failed, count)
    x, *_, failed, count = jax.lax.while_loop(lambda s: s[4].any(), step, start)
    return x, failed, count


def _minres(
    multiply: Any, _: Any, x: Any, r: Any, bound: Any, live: Any, failed: Any, count: Any,
    most: int,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Lanczos' recurrence and its rotations (Paige, Saunders, 1975), from the residual r of x."""
    zero, none = jnp.zeros_like(r), jnp.zeros_like(bound)
    size, eps = jnp.sqrt(_dot(r, r)), jnp.finfo(r.dtype).eps

    def step(state: Any) -> Any:
        x, before, v, d_before, d, beta, left, turns, live, failed, count, steps = state
        cosine_before, sine_before, cosine, sine = turns
        q = multiply(v)
        alpha = _dot(v, q)
        q = q - alpha * v - beta * before
        longer = jnp.sqrt(_dot(q, q))
        bad = live & ~jnp.isfinite(longer)
        # The column (0, beta, alpha, longer) of the tridiagonal matrix, turned.
        above = sine_before * beta
        bent = cosine_before * beta
        aside, corner = cosine * bent + sine * alpha, cosine * alpha - sine * bent
        diagonal = jnp.hypot(corner, longer)
        goes = live & ~bad & (diagonal > 0)
        fresh_cosine = _quotient(goes, corner, diagonal)
        fresh_sine = _quotient(goes, longer, diagonal)
        direction = _quotient(goes, v - aside * d - above * d_before, diagonal)
        x = x + jnp.where(goes, fresh_cosine * left, 0) * direction
        left = jnp.where(goes, -fresh_sine * left, left)
        # A residual is measured when the space is used up, or after as many steps as it has axes.
        ends = (longer <= eps * (jnp.abs(alpha) + beta)) | (steps >= len(r))
        ends |= (left**2 <= bound) | (count + 1 >= most)
        turns = cosine, sine, fresh_cosine, fresh_sine
        v, before = _quotient(goes & (longer > 0), q, longer), v
        return x, before, v, d, direction, longer, left, turns, goes & ~ends, failed | bad, (
            count + live), steps + 1  # fmt: skip

    one = jnp.ones_like(bound)
    v = _quotient(live & (size > 0), r, size)
    start = (x, zero, v, zero, zero, none, size, (one, none, one, none), live, failed, count,
             jnp.ones((), int))  # fmt: skip
    x, *_, failed, count, _ = jax.lax.while_loop(lambda s: s[8].any(), step, start)
    return x, failed, count
