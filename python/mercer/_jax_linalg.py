"""mercer.linalg for arrays of JAX: primitives that call the engine, traced, mapped, differentiated.

    cholesky        factor and info              solve_factored  x with a x = b, a's factor known
    lu_factor       packed, pivots and info      solve_pivoted   likewise of LU; or a' x = b
    eigh            w, v and info
    cho_solve, lu_solve   x from a factor alone

All operands have the same number of leading axes, b those of x. As in ``_torch/linalg.py`` a solve
takes a and its factor: it computes with the factor and is differentiated by a. Tangents are those
of ``_linalg_tangents``; they are linear in what moves, and solves have transposes, so that JAX has
gradients of every order. JAX cannot raise from what it compiles: matrices that fail there are NaN.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from mercer import _jax, _jax_primitive, _jax_sharding, _linalg_calls, _mercer
from mercer import _linalg_tangents as moves

# ---- What tangents are written in. --------------------------------------------------------------


def matmul(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _triangular(side: Any, b: Any, *, unit: bool = False, transposed: bool = False) -> Any:
    """L^-1 b, or L^-T b; of `side` the lower triangle is read."""
    batch = jnp.broadcast_shapes(side.shape[:-2], b.shape[:-2])
    side, b = (jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (side, b))
    return jax.lax.linalg.triangular_solve(
        side, b, left_side=True, lower=True, transpose_a=transposed, unit_diagonal=unit
    )


LIB = types.SimpleNamespace(
    matmul=matmul,
    triangular=_triangular,
    tril=jnp.tril,
    triu=jnp.triu,
    eye=lambda like: jnp.eye(like.shape[-1], dtype=like.dtype),
    diagonal=lambda matrix: jnp.diagonal(matrix, 0, -2, -1),
    cut=lambda matrix, start, stop, axis: jax.lax.slice_in_dim(matrix, start, stop, axis=axis),
    join=lambda a, b, axis: jnp.concatenate([a, b], axis),
    take=lambda rows, order: jnp.take_along_axis(rows, order[..., None], -2),
    argsort=lambda order: jnp.argsort(order, -1),
    quotient=jnp.divide,
)


def _order(packed: Any, pivots: Any) -> Any:
    """The rows of a in the order in which L U has them."""
    return jax.lax.linalg.lu_pivots_to_permutation(
        _numbers(pivots).astype(jnp.int32), packed.shape[-2]
    )


# ---- Whole numbers: int64, or their halves in pairs of int32 where JAX has no int64. ------------


def _whole(shape: tuple[int, ...]) -> Any:
    if jax.config.jax_enable_x64:
        return jax.core.ShapedArray(shape, np.dtype("int64"))
    return jax.core.ShapedArray((*shape, 2), np.dtype("int32"))


def _numbers(found: Any) -> Any:
    return found if found.dtype == np.dtype("int64") else found[..., 0]


def _halves(numbers: Any) -> Any:
    if jax.config.jax_enable_x64:
        return numbers.astype(jnp.int64)
    return jnp.stack([numbers.astype(jnp.int32), jnp.zeros_like(numbers, jnp.int32)], -1)


# ---- Primitives. --------------------------------------------------------------------------------


def _called(
    operation: str, names: str, results: Sequence[Any], *operands: Any, **settings: Any
) -> Any:
    found = _jax.ffi_call([jax.ShapeDtypeStruct(r.shape, r.dtype) for r in results])(
        *operands,
        verb=operation,
        operation=f"linalg.{operation}",
        operands=names,
        options=settings.pop("options"),
        **{name: np.int64(value) for name, value in settings.items()},
    )
    return list(found)


def _like(array: Any, shape: tuple[int, ...]) -> Any:
    return jax.core.ShapedArray(shape, array.dtype)


def _cholesky_results(a: Any, **_: Any) -> list[Any]:
    return [_like(a, a.shape), _whole(a.shape[:-2])]


def _lu_results(a: Any, **_: Any) -> list[Any]:
    count = min(a.shape[-2:])
    return [_like(a, a.shape), _whole((*a.shape[:-2], count)), _whole(a.shape[:-2])]


def _eigh_results(a: Any, **_: Any) -> list[Any]:
    return [_like(a, a.shape[:-1]), _like(a, a.shape), _whole(a.shape[:-2])]


def _solution(*operands: Any, **_: Any) -> list[Any]:
    return [_like(operands[-1], operands[-1].shape)]


def _mapped(primitive: Any, operands: Sequence[Any], axes: Sequence[Any], **settings: Any) -> tuple:
    """One more leading axis for each, that of x for b."""
    size = next(o.shape[x] for o, x in zip(operands, axes, strict=True) if x is not None)
    led = [
        o[None] if axis is None else jnp.moveaxis(o, axis, 0)
        for o, axis in zip(operands, axes, strict=True)
    ]
    led[-1] = jnp.broadcast_to(led[-1], (size, *led[-1].shape[1:]))
    found = primitive.bind(*led, **settings)
    return found, [0] * len(found)


def _primitive(name: str, results: Callable, lowered: Callable, jvp: Callable, **more: Any) -> Any:
    def batched(operands: Sequence[Any], axes: Sequence[Any], **settings: Any) -> tuple:
        return _mapped(made, operands, axes, **settings)

    made = _jax_primitive.primitive(
        name, abstract=results, lowered=lowered, jvp=jvp, batched=batched, several=True, **more
    )
    return made


def _moves(tangent: Any) -> bool:
    return type(tangent) is not ad.Zero


def _of_matrix(primitive: Any, move: Callable) -> Callable:
    """The rule of a function of one matrix, whose last results are whole numbers."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **settings: Any) -> tuple:
        found = primitive().bind(*primals, **settings)
        if not _moves(tangents[0]):
            return found, [_jax_sharding.zero(f) for f in found]
        moved = move(found, tangents[0], settings)
        return found, [*moved, *(_jax_sharding.zero(f) for f in found[len(moved) :])]

    return jvp


cholesky_p: Any = _primitive(
    "cholesky", _cholesky_results,
    lambda a, **s: _called("cholesky", "a", _cholesky_results(a), a, **s),
    _of_matrix(lambda: cholesky_p,
               lambda found, da, s: [moves.cholesky(LIB, found[0], da, s["lower"])]),
)  # fmt: skip
lu_factor_p: Any = _primitive(
    "lu_factor", _lu_results, lambda a, **s: _called("lu_factor", "a", _lu_results(a), a, **s),
    _of_matrix(lambda: lu_factor_p,
               lambda found, da, s: [moves.lu(LIB, found[0], _order(*found[:2]), da)]),
)  # fmt: skip
eigh_p: Any = _primitive(
    "eigh", _eigh_results, lambda a, **s: _called("eigh", "a", _eigh_results(a), a, **s),
    _of_matrix(lambda: eigh_p, lambda found, da, s: moves.eigh(LIB, found[0], found[1], da)),
)  # fmt: skip


def _solver(name: str, lowered: Callable, moved: Callable, transposed: Callable) -> Any:
    """A primitive that is linear in its last operand. moved(operands, tangents, settings): how the
    matrix moves, or None; transposed(settings): those of the transposed solve."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **settings: Any) -> tuple:
        *factors, _ = primals
        x = made.bind(*primals, **settings)[0]
        parts = [tangents[-1]] if _moves(tangents[-1]) else []
        da = moved(factors, tangents[:-1], settings)
        parts += [] if da is None else [-matmul(da, x)]
        if not parts:
            return [x], [_jax_sharding.zero(x)]
        return [x], made.bind(*factors, sum(parts[1:], parts[0]), **settings)

    def transpose(cotangents: Sequence[Any], *operands: Any, **settings: Any) -> list[Any]:
        *factors, _ = operands
        skipped = [None] * len(factors)
        if not _moves(cotangents[0]):
            return [*skipped, None]
        return [*skipped, *made.bind(*factors, cotangents[0], **transposed(settings))]

    made = _primitive(name, _solution, lowered, jvp, transposed=transpose)
    return made


def _cho_solve(factor: Any, b: Any, **settings: Any) -> list[Any]:
    return _called("cho_solve", "factor b", _solution(b), factor, b, **settings)


def _lu_solve(packed: Any, pivots: Any, b: Any, **settings: Any) -> list[Any]:
    return _called("lu_solve", "lu pivots b", _solution(b), packed, pivots, b, **settings)


def _same(settings: dict[str, Any]) -> dict[str, Any]:
    return settings


def _other(settings: dict[str, Any]) -> dict[str, Any]:
    return settings | {"transposed": not settings["transposed"]}


def _of_factor(factors: Sequence[Any], tangents: Sequence[Any], settings: dict) -> Any:
    if not _moves(tangents[0]):
        return None
    return moves.of_factor(LIB, factors[0], tangents[0], settings["lower"])


def _of_packed(factors: Sequence[Any], tangents: Sequence[Any], settings: dict) -> Any:
    if not _moves(tangents[0]):
        return None
    da = moves.of_lu(LIB, factors[0], _order(*factors), tangents[0])
    return da.mT if settings["transposed"] else da


def _of_symmetric(factors: Sequence[Any], tangents: Sequence[Any], settings: dict) -> Any:
    return moves.symmetric(tangents[0]) if _moves(tangents[0]) else None


def _of_any(factors: Sequence[Any], tangents: Sequence[Any], settings: dict) -> Any:
    if not _moves(tangents[0]):
        return None
    return tangents[0].mT if settings["transposed"] else tangents[0]


cho_solve_p = _solver("cho_solve", _cho_solve, _of_factor, _same)
lu_solve_p = _solver("lu_solve", _lu_solve, _of_packed, _other)
solve_factored_p = _solver(
    "solve_factored", lambda a, *rest, **s: _cho_solve(*rest, **s), _of_symmetric, _same
)
solve_pivoted_p = _solver(
    "solve_pivoted", lambda a, *rest, **s: _lu_solve(*rest, **s), _of_any, _other
)


# ---- The functions. -----------------------------------------------------------------------------


def _bound(primitive: Any, matrices: Sequence[tuple[Any, int]], b: Any, **settings: Any) -> Any:
    """A solve whose matrices, each with so many axes of an item, and b have any leading axes."""
    column = b[:, None] if b.ndim == 1 else b
    batch = jnp.broadcast_shapes(
        *(m.shape[: m.ndim - axes] for m, axes in matrices), column.shape[:-2]
    )
    led = [m.reshape(*[1] * (len(batch) - (m.ndim - axes)), *m.shape) for m, axes in matrices]
    column = jnp.broadcast_to(column, (*batch, *column.shape[-2:]))
    options = _mercer.settings_text()
    x = primitive.bind(*led, column, options=options, **settings)[0]
    return x[..., 0] if b.ndim == 1 else x


def _cholesky(a: Any, lower: bool) -> tuple[Any, Any]:
    factor, info = cholesky_p.bind(a, lower=lower, options=_mercer.settings_text())
    return factor, _numbers(info)


def _lu_factor(a: Any) -> tuple[Any, Any, Any]:
    packed, pivots, info = lu_factor_p.bind(a, options=_mercer.settings_text())
    return packed, pivots, _numbers(info)


def _answer(name: str, found: Any, info: Any, check: bool, a: Any, **options: Any) -> Any:
    """The results; with check=True an eager call raises where the engine would."""
    if not check:
        return found, info
    if not isinstance(info, jax.core.Tracer) and bool((info != 0).any()):
        _linalg_calls.raise_as(name, a, **options)
    return found


def _with_jitter(verb: str, a: Any, lower: bool, jitter: Any) -> Any:
    """a with the jitter that it needs, which is a multiple of the mean of its diagonal."""
    amounts = _linalg_calls.amounts_of(verb, jitter)
    if not amounts or a.shape[-1] == 0:
        return a
    mean = jnp.diagonal(a, 0, -2, -1).mean(-1)
    eye = jnp.eye(a.shape[-1], dtype=a.dtype)
    found = jnp.zeros_like(mean)
    for amount in amounts:
        given = jax.lax.stop_gradient(a + (found * mean)[..., None, None] * eye)
        found = jnp.where(_cholesky(given, lower)[1] > 0, amount, found)
    return a + (found * mean)[..., None, None] * eye


def _check(verb: str, name: str, a: Any, b: Any = None, square: bool = True) -> None:
    _linalg_calls.check(verb, name, a, b, "jax", lambda array: isinstance(array, jax.Array), square)


def cholesky(a: Any, *, lower: bool = True, jitter: Any = None, check: bool = True) -> Any:
    _check("cholesky", "a", a)
    factor, info = _cholesky(_with_jitter("cholesky", a, lower, jitter), lower)
    return _answer("cholesky", factor, info, check, a, lower=lower, jitter=jitter)


def _factored(verb: str, a: Any, lower: bool, jitter: Any) -> tuple[Any, Any, Any]:
    given = _with_jitter(verb, a, lower, jitter)
    return given, *_cholesky(jax.lax.stop_gradient(given), lower)


def solve_cholesky(
    a: Any, b: Any, *, lower: bool = True, jitter: Any = None, check: bool = True
) -> Any:
    _check("solve_cholesky", "a", a, b)
    given, factor, info = _factored("solve_cholesky", a, lower, jitter)
    x = _bound(solve_factored_p, [(given, 2), (factor, 2)], b, lower=lower)
    return _answer("solve_cholesky", x, info, check, a, b=b, lower=lower, jitter=jitter)


def cho_solve(factor: Any, b: Any, *, lower: bool = True) -> Any:
    _check("cho_solve", "factor", factor, b)
    return _bound(cho_solve_p, [(factor, 2)], b, lower=lower)


def _double(array: Any) -> Any:
    """The array in the dtype of sums: float64, where JAX has it."""
    return array.astype(jnp.float64) if jax.config.jax_enable_x64 else array


def cho_inverse(factor: Any, *, lower: bool = True) -> Any:
    """NaN where a factor's diagonal is not positive, as the engine's is."""
    _check("cho_inverse", "factor", factor)
    eye = jnp.eye(factor.shape[-1], dtype=factor.dtype)
    inverse = moves.symmetric(_bound(cho_solve_p, [(factor, 2)], eye, lower=lower))
    is_factor = (jnp.diagonal(factor, 0, -2, -1) > 0).all(-1)[..., None, None]
    return jnp.where(is_factor, inverse, jnp.nan)


def cho_inverse_diagonal(factor: Any, *, lower: bool = True) -> Any:
    _check("cho_inverse_diagonal", "factor", factor)
    return jnp.diagonal(cho_inverse(factor, lower=lower), 0, -2, -1)


def solve_triangular(
    a: Any, b: Any, *, lower: bool = True, transposed: bool = False, unit_diagonal: bool = False
) -> Any:
    """JAX's own, with its derivatives."""
    _check("solve_triangular", "a", a, b)
    matrix = a if lower else a.mT  # of which the lower triangle counts
    column = b[:, None] if b.ndim == 1 else b
    x = _triangular(matrix, column, unit=unit_diagonal, transposed=transposed == lower)
    return x[..., 0] if b.ndim == 1 else x


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _logdet(a: Any, factor: Any, lower: bool) -> Any:
    return 2 * jnp.log(_double(jnp.diagonal(factor, 0, -2, -1))).sum(-1)


@_logdet.defjvp
def _logdet_jvp(lower: bool, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple:
    a, factor = primals
    eye = jnp.eye(a.shape[-1], dtype=a.dtype)
    inverse = _bound(solve_factored_p, [(a, 2), (factor, 2)], eye, lower=lower)
    moved = _double(inverse * moves.symmetric(tangents[0])).sum((-2, -1))
    return _logdet(a, factor, lower), moved


def inv_quad_logdet(
    a: Any, b: Any, *, lower: bool = True, jitter: Any = None, check: bool = True
) -> Any:
    _check("inv_quad_logdet", "a", a, b)
    given, factor, info = _factored("inv_quad_logdet", a, lower, jitter)
    x = _bound(solve_factored_p, [(given, 2), (factor, 2)], b, lower=lower)
    quad = (_double(b) * _double(x)).sum(-1 if b.ndim == 1 else -2)
    found = quad, _logdet(given, factor, lower)
    return _answer("inv_quad_logdet", found, info, check, a, b=b, lower=lower, jitter=jitter)


def lu_factor(a: Any, *, check: bool = True) -> Any:
    _check("lu_factor", "a", a, square=False)
    packed, pivots, info = _lu_factor(a)
    return _answer("lu_factor", (packed, _numbers(pivots)), info, check, a)


def lu_solve(lu_and_pivots: Any, b: Any, *, transposed: bool = False) -> Any:
    packed, pivots = lu_and_pivots
    _check("lu_solve", "lu", packed, b)
    return _bound_pivoted(lu_solve_p, [packed], pivots, b, transposed)


def _bound_pivoted(primitive: Any, matrices: list, pivots: Any, b: Any, transposed: bool) -> Any:
    pivots = jnp.broadcast_to(pivots, (*matrices[-1].shape[:-2], pivots.shape[-1]))
    halves = _halves(pivots)
    whole = [*((m, 2) for m in matrices), (halves, halves.ndim - pivots.ndim + 1)]
    return _bound(primitive, whole, b, transposed=transposed)


def solve_lu(a: Any, b: Any, *, check: bool = True) -> Any:
    _check("solve_lu", "a", a, b)
    packed, pivots, info = _lu_factor(jax.lax.stop_gradient(a))
    x = _bound_pivoted(solve_pivoted_p, [a, packed], _numbers(pivots), b, False)
    return _answer("solve_lu", x, info, check, a, b=b)


def eigh(
    a: Any, *, lower: bool = True, eigvals_only: bool = False, subset_by_index: Any = None,
    check: bool = True,
) -> Any:  # fmt: skip
    _check("eigh", "a", a)
    first, last = _linalg_calls.subset_of(subset_by_index, a.shape[-1])
    w, v, info = eigh_p.bind(a, lower=lower, options=_mercer.settings_text())
    w, v = w[..., first : last + 1], v[..., first : last + 1]
    return _answer("eigh", w if eigvals_only else (w, v), _numbers(info), check, a, lower=lower)


VERBS: dict[str, Callable[..., Any]] = {name: globals()[name] for name in _linalg_calls.STORED}


# ---- Of mercer.kron: with a shift, where equal eigenvalues of a factor must do no harm. ----------


def kron_solve(factors: Sequence[Any], b: Any, shift: Any) -> Any:
    """Solves by the eigenvectors of the factors; gradients are those by the factors."""
    from mercer import kron

    shift = jnp.reshape(jnp.asarray(shift, b.dtype), ())
    parts = [eigh(jax.lax.stop_gradient(factor)) for factor in factors]
    vectors = [part[1] for part in parts]
    w = kron.products_of([part[0] for part in parts])
    sums = w + jax.lax.stop_gradient(shift)
    kron.require_regular(w, sums)
    whole = [moves.symmetric(factor) for factor in factors]
    batch = jnp.broadcast_shapes(*(f.shape[:-2] for f in factors), b.shape[:-2])
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))

    def multiply(v: Any) -> Any:
        return kron.kron_matmul(whole, v) + shift * v

    def solve(_: Any, right: Any) -> Any:
        turned = kron.kron_matmul(vectors, right, transpose_factors=True)
        return kron.kron_matmul(vectors, turned / sums[..., None])

    return jax.lax.custom_linear_solve(multiply, b, solve, symmetric=True)
