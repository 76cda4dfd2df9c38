"""mercer.linalg.eigh_top, and inv_quad_logdet of an operator, for arrays of JAX.

Both are programs of fixed shapes, which work eagerly and under jit and vmap. Where nothing can be
raised, what fails is NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mercer import _jax_cg
from mercer._jax_operator import check_matrix, double, is_known, matmul, taken
from mercer.errors import LinAlgError
from mercer.linalg._stochastic import InvQuadLogdet, check_probes

# ---- One end of a spectrum. ---------------------------------------------------------------------

_STALLED = 100  # products without a smaller residual that end a search


class _Search(NamedTuple):
    k: int
    which: str
    tol: float
    block: int
    most: int
    kept: int
    seed: int


def eigh_top(
    a: Any, k: int, *, which: str = "largest", tol: float | None = None,
    max_basis: int | None = None, seed: int = 0, check: bool = True,
) -> Any:  # fmt: skip
    check_matrix("eigh_top", a)
    n, is_single = a.shape[0], jnp.finfo(a.dtype).bits == 32
    tolerance = (2e-6 if is_single else 1e-10) if tol is None else float(tol)
    if not 0 < tolerance < 1:
        raise ValueError(f"eigh_top: tol must be from 0 to 1. Received {tol}")
    if not 1 <= k <= n:
        raise ValueError(f"eigh_top: k must be from 1 to n, {n}. Received {k}.")
    if which not in ("largest", "smallest", "magnitude"):
        raise ValueError(
            f'eigh_top: which must be "largest", "smallest" or "magnitude". Received {which!r}.'
        )
    block = max(8, k)
    blocks = max(3, -(-(max(10 * k, 96) if max_basis is None else max_basis) // block))
    kept = min(max(-(-k // block) + 1, blocks // 2), blocks - 1)
    form = _Search(int(k), which, tolerance, block, blocks * block, kept * block, int(seed))
    w, v, missed = _pairs(a, form)
    if not check:
        return (w, v), missed.sum()
    if is_known(missed) and bool(missed.any()):
        raise LinAlgError(
            f"eigh_top: residuals must be at most {tolerance:.3g} of the largest eigenvalue. "
            f"Received {int(missed.sum())} of {k} pairs that miss it; a larger tol or max_basis "
            "helps."
        )
    return jnp.where(missed, jnp.nan, w), jnp.where(missed, jnp.nan, v)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _pairs(a: Any, form: _Search) -> tuple[Any, Any, Any]:
    return _found(a, form)


@_pairs.defjvp
def _refused(form: _Search, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple:
    raise NotImplementedError(
        "eigh_top: is not differentiated, since its vectors alone do not tell how they move. "
        "Received an a that JAX differentiates by; write eigh of the stored matrix, or "
        "jax.lax.stop_gradient(a)"
    )


@functools.partial(jax.jit, static_argnums=1)
def _found(a: Any, form: _Search) -> tuple[Any, Any, Any]:
    """w, v, and which of the pairs miss the tolerance."""
    a = taken(a)
    n = a.shape[0]
    if n <= form.most + form.block:
        basis, largest = jnp.eye(n, dtype=a.dtype), 0
    else:
        basis, largest = _searched(a, form)
        basis = jnp.linalg.qr(basis)[0]
    small = matmul(basis.T, a @ basis)  # once more, without the rounding of many steps
    values, turn = jnp.linalg.eigh((small + small.T) / 2)
    vectors, largest = matmul(basis, turn), jnp.maximum(largest, jnp.abs(values).max())
    places = _chosen(values, form.k, form.which)
    values, vectors = values[places], vectors[:, places]
    rest = a @ vectors - vectors * values
    return values, vectors, ~(jnp.sqrt((rest**2).sum(0)) <= form.tol * largest)


def _chosen(values: Any, k: int, which: str) -> Any:
    """Places of the wanted values, ascending by value."""
    key = {"largest": -values, "smallest": values, "magnitude": -jnp.abs(values)}[which]
    places = jnp.argsort(key)[:k]
    return places[jnp.argsort(values[places])]


def _searched(a: Any, form: _Search) -> tuple[Any, Any]:
    """Krylov's method by blocks with thick restarts: vectors that span those sought and more, and
    the largest absolute eigenvalue that was seen."""
    n, wide = a.shape[0], form.most
    fresh = jax.random.normal(jax.random.key(form.seed), (n, form.block), a.dtype)
    empty = jnp.zeros((n, wide), a.dtype)

    def grown(i: Any, state: Any) -> Any:
        basis, products, fresh = state
        place = i * form.block
        basis = jax.lax.dynamic_update_slice_in_dim(basis, fresh, place, 1)
        image = a @ fresh
        products = jax.lax.dynamic_update_slice_in_dim(products, image, place, 1)
        return basis, products, _orthonormal(basis, image)

    def cycle(state: Any) -> Any:
        basis, products, fresh, start, best, stalled, *_ = state
        basis, products, fresh = jax.lax.fori_loop(
            start // form.block, wide // form.block, grown, (basis, products, fresh)
        )
        small = matmul(basis.T, products)
        values, turn = jnp.linalg.eigh((small + small.T) / 2)
        top = turn[:, _chosen(values, form.k, form.which)]
        theta = values[_chosen(values, form.k, form.which)]
        rest = matmul(products, top) - matmul(basis, top) * theta
        worst = jnp.sqrt((rest**2).sum(0)).max()
        largest = jnp.abs(values).max()
        goes_on = ~(worst <= 0.5 * form.tol * largest)
        stalled = jnp.where(worst < 0.9 * best, 0, stalled + (wide - start) // form.block)
        places = _chosen(values, form.kept, form.which)
        kept = jnp.where(jnp.arange(wide) < form.kept, turn[:, jnp.resize(places, wide)], 0)
        basis, products = matmul(basis, kept), matmul(products, kept)
        goes_on &= (stalled <= _STALLED) & jnp.isfinite(worst)
        return (
            basis,
            products,
            fresh,
            form.kept,
            jnp.minimum(best, worst),
            stalled,
            goes_on,
            (largest),
        )

    state = cycle((
        empty, empty, _orthonormal(empty, fresh), 0, jnp.asarray(jnp.inf, a.dtype), 0,
    ))  # fmt: skip
    state = jax.tree.map(jnp.asarray, state)
    basis, *_, largest = jax.lax.while_loop(lambda s: s[6], cycle, state)
    return basis[:, : form.kept], largest


def _orthonormal(basis: Any, columns: Any) -> Any:
    """Orthonormal columns, orthogonal to the basis, that span what of the others is new; where
    nothing is, any."""
    for _ in range(3):
        columns = jnp.linalg.qr(columns - matmul(basis, matmul(basis.T, columns)))[0]
    return columns


# ---- Both parts of a likelihood. ----------------------------------------------------------------

_FIRST, _MOST_STEPS = 12, 400  # Lanczos' steps, between two looks at the result
_WEIGHT = 1e-14  # of a value of the quadrature that is rounding


class _Quadrature(NamedTuple):
    probes: int
    most: int


def inv_quad_logdet(
    a: Any, b: Any, *, n_probes: int = 16, preconditioner: Any = None, tol: float | None = None,
    max_iter: int | None = None, seed: int = 0,
) -> InvQuadLogdet:  # fmt: skip
    check_probes(n_probes)
    options = {"preconditioner": preconditioner, "tol": tol, "max_iter": max_iter}
    x = _jax_cg.cg(a, b, **options)
    quad = (double(b) * double(x)).sum(0)
    held, inverse = jax.tree.map(jax.lax.stop_gradient, (a, preconditioner))
    form = _Quadrature(n_probes, min(a.shape[0], max_iter or _MOST_STEPS))
    logdet, error, failure, probes, solved = _estimated(held, inverse, seed, form)
    if is_known(failure) and failure:
        raise LinAlgError(
            "inv_quad_logdet: a and its preconditioner must be finite and positive definite. "
            f"Received {_FAILURES[int(failure)]}; a larger ridge or float64 helps"
        )
    logdet, error = (jnp.where(failure == 0, part, jnp.nan) for part in (logdet, error))
    limits = _jax_cg.limits("cg", a, tol, max_iter)
    return InvQuadLogdet(quad, _followed(logdet, a, inverse, probes, solved, limits), error)


_FAILURES = ("", "NaN or infinity", "a negative solution with the preconditioner",
             "a negative eigenvalue")  # fmt: skip


@functools.partial(jax.custom_jvp, nondiff_argnums=(5,))
def _followed(value: Any, a: Any, inverse: Any, probes: Any, solved: Any, limits: Any) -> Any:
    """The estimate, with d log det a = tr(a^-1 da) from the same probes w and P^-1 w: the mean of
    u' da P^-1 w with a u = w. u is differentiated as ever, so that derivatives have derivatives."""
    return value


@_followed.defjvp
def _moves(limits: Any, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple:
    value, a, inverse, probes, solved = primals
    u = _jax_cg.solved(a, probes, None, inverse, limits)[0]
    moved = jax.jvp(lambda a: a @ solved, (a,), (tangents[1],))[1]
    found = (double(u) * double(moved)).sum() / probes.shape[1]
    return _followed(*primals, limits), found.astype(value.dtype)


def _estimated(a: Any, inverse: Any, seed: Any, form: _Quadrature) -> tuple:
    """log det a, its standard error, how it failed, and the probes with their solutions."""
    probes, solved, known, state = _begun(a, inverse, seed, form)
    zero = jnp.zeros((), state[0].dtype)
    found, done, last = (zero, zero, jnp.zeros((), int)), zero > 0, zero + jnp.inf
    begin = 0
    for end in _stages(form.most):
        stage = functools.partial(_stage, form, end, a, inverse, begin)
        if not is_known(done):
            state, found, done, last = jax.lax.cond(
                done, lambda *given: given, stage, state, found, done, last
            )
        elif not done:
            state, found, done, last = stage(state, found, done, last)
        begin = end
    logdet, error, failure = found
    return known + logdet, error, failure, probes, solved


@functools.partial(jax.jit, static_argnums=3)
def _begun(a: Any, inverse: Any, seed: Any, form: _Quadrature) -> tuple:
    probes = jax.random.rademacher(jax.random.key(seed), (a.shape[0], form.probes), a.dtype)
    probes = probes if inverse is None else inverse.sqrt(probes)
    known = 0.0 if inverse is None else inverse.logdet()
    solved = probes if inverse is None else inverse.solve(probes)
    return probes, solved, known, _start(probes, inverse, form.most)


def _stages(most: int) -> list[int]:
    """Steps after which the result is looked at."""
    found, steps = [], _FIRST
    while steps < most:
        found.append(steps)
        steps *= 2
    return [*found, most] if most else []


def _start(probes: Any, inverse: Any, most: int) -> tuple:
    wide = double(probes)
    none, sums = jnp.zeros_like(wide), jnp.zeros((most, probes.shape[1]), wide.dtype)
    turned = _turn(inverse, probes.dtype, wide, none[0])
    return *turned, none, sums, sums, jnp.asarray(jnp.inf, wide.dtype)


def _turn(inverse: Any, dtype: Any, residual: Any, scale: Any) -> tuple:
    """What is left becomes the next pair: v of length 1 in the inner product of P^-1, and P^-1 v;
    with its length, and its square next to the diagonal."""
    solved = residual
    if inverse is not None:
        solved = double(inverse.solve(residual.astype(dtype)))
    square = (residual * solved).sum(0)
    scale = jnp.where(scale == 0, jnp.sqrt(jnp.abs(square)), scale)
    lost = square / jnp.where(scale == 0, 1, scale**2)
    is_live = square > (1e-13 * scale) ** 2
    side = jnp.where(is_live, jnp.sqrt(jnp.abs(square)), 0)
    parts = (jnp.where(is_live, t / jnp.where(is_live, side, 1), 0) for t in (residual, solved))
    return *parts, side, lost


@functools.partial(jax.jit, static_argnums=(0, 1))
def _stage(
    form: _Quadrature, end: int, a: Any, inverse: Any, begin: Any, state: Any, found: Any,
    done: Any, last: Any,
) -> tuple:  # fmt: skip
    """Steps up to this one, and what the result is then. A program of its own, so that an eager
    call compiles no more of them than it needs."""
    n = a.shape[0]

    def step(i: Any, state: Any) -> Any:
        v, q, side, _, before, diagonal, sides, least = state
        product = double(a @ q.astype(a.dtype)) - side * before
        alpha = (q * product).sum(0)
        turned = _turn(inverse, a.dtype, product - alpha * v, alpha)
        diagonal, sides = diagonal.at[i].set(alpha), sides.at[i].set(turned[2])
        return *turned, v, diagonal, sides, jnp.minimum(least, turned[3].min())

    state = jax.lax.fori_loop(begin, end, step, state)
    *_, diagonal, sides, least = state
    is_finite = jnp.isfinite(diagonal[:end]).all() & jnp.isfinite(sides[:end]).all()
    samples, is_positive = _sums(diagonal[:end], sides[: end - 1], is_finite)
    samples = n * samples
    rounding = 1e-4 if jnp.finfo(a.dtype).bits == 32 else 1e-9  # what ends a recurrence
    failure = jnp.where(is_positive, jnp.where(least < -(rounding**2), 2, 0), 3)
    failure = jnp.where(is_finite, failure, 1)
    mean, deviation = samples.mean(), jnp.inf
    if form.probes > 1:
        deviation = samples.std(ddof=1) / math.sqrt(form.probes)
    missing = jnp.abs(mean - last)
    bound = jnp.maximum(n * (1e-6 if rounding == 1e-4 else 1e-10), 0.1 * deviation)
    is_last = end == form.most
    is_done = (missing <= (bound if form.probes > 1 else n * rounding)) | (failure > 0)
    error = jnp.hypot(deviation, missing) if is_last and end < n else deviation
    error = jnp.where(is_done, deviation, error).astype(mean.dtype)
    return state, (mean, error, failure), is_done, mean


def _sums(diagonal: Any, sides: Any, is_finite: Any) -> tuple[Any, Any]:
    """e1^T log(T) e1 of the tridiagonal matrix T of each probe, and whether all are positive."""
    diagonal, sides = (jnp.where(is_finite, t, 1).T for t in (diagonal, sides))
    small = jax.vmap(jnp.diag)(diagonal)
    if sides.shape[1]:
        off = jax.vmap(lambda side: jnp.diag(side, 1))(sides)
        small = small + off + off.mT
    values, vectors = jnp.linalg.eigh(small)
    weights = vectors[:, 0, :] ** 2
    is_used = weights > _WEIGHT
    is_positive = ~(is_used & (values <= 0)).any()
    logs = jnp.log(jnp.where(is_used & (values > 0), values, 1))
    return (weights * logs).sum(1), is_positive
