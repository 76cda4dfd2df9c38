"""mercer.linalg as operators that PyTorch knows.

mercer::cholesky         factor [..., n, n] of a, and info
mercer::lu_factor        packed factors of a [..., m, n], pivots and info
mercer::eigh             w [..., n] and v [..., n, n] of a, and info
mercer::cho_solve        x with L L' x = b, of the factor L
mercer::lu_solve         x with P L U x = b, or its transpose, of the packed factors
mercer::solve_factored   x with a x = b, where a factor of a is known
mercer::solve_pivoted    the same with factors of LU, or a' x = b
mercer::inv_quad         b' a^-1 b for each column of b, where a factor of a is known
mercer::logdet           log det a, likewise

The last four take a and its factors: the factors are what they compute with, a is what they are
differentiated by. So a solve costs one factorisation with all of its derivatives, and dL/da is an
outer product in place of a derivative of the factor. With x = a^-1 b and G the cotangent,

    solve      dL/db = a^-1 G,  dL/da = -(a^-1 G) x'
    inv_quad   dL/db = 2 x G,   dL/da = -x G x'
    logdet     dL/da = G a^-1
    cholesky   dL/da = L^-T tril(L' G) L^-1, the diagonal of tril halved
    eigh       dL/da = V (diag(Gw) + V' Gv / (w_j - w_i)) V'

by a symmetric a the symmetric part of that. Rules are made of the operators themselves, so that
there are derivatives of every order, in both modes.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mercer import _linalg_tangents as moves
from mercer import _mercer
from mercer._torch import autograd, batching, operators, products, table

_SUMS = torch.float64  # of the results of inv_quad_logdet

# ---- What the rules are written in. -------------------------------------------------------------


def _triangular(side: Tensor, b: Tensor, *, unit: bool = False, transposed: bool = False) -> Tensor:
    """L^-1 b, or L^-T b; of `side` the lower triangle is read."""
    matrix = side.mT if transposed else side
    if transposed:
        return torch.linalg.solve_triangular(matrix, b, upper=True, unitriangular=unit)
    return torch.linalg.solve_triangular(matrix, b, upper=False, unitriangular=unit)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def _take(rows: Tensor, order: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(rows.shape[:-2], order.shape[:-1])
    index = order.unsqueeze(-1).expand(*batch, order.shape[-1], rows.shape[-1])
    return rows.expand(*batch, *rows.shape[-2:]).gather(-2, index)


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """a / b, but 0 for 0 / 0: where vectors are not asked for their cotangents are 0, also those of
    equal eigenvalues, between which they have no derivative."""
    none = (a == 0) & (b == 0)
    return torch.where(none, 0 * a, a / torch.where(none, 1, b))


LIB = types.SimpleNamespace(
    matmul=products.matmul,
    triangular=_triangular,
    tril=torch.tril,
    triu=torch.triu,
    eye=_eye,
    diagonal=lambda matrix: matrix.diagonal(0, -2, -1),
    take=_take,
    argsort=lambda order: order.argsort(-1),
    quotient=_quotient,
    cut=lambda matrix, start, stop, axis: matrix.narrow(axis, start, stop - start),
    join=lambda a, b, axis: torch.cat([a, b], axis),
)
matmul = products.matmul


def _order(packed: Tensor, pivots: Tensor) -> Tensor:
    """The rows of a in the order in which L U has them."""
    pivots = _along(packed, pivots) + 1
    return torch.lu_unpack(packed, pivots.int(), unpack_data=False)[0].argmax(-2)


def _along(packed: Tensor, pivots: Tensor) -> Tensor:
    """Pivots for each of the matrices, which torch.vmap may have mapped alone."""
    return pivots.expand(*packed.shape[:-2], pivots.shape[-1])


# ---- Computing. ---------------------------------------------------------------------------------


def _engine(verb: str, name: str, *arguments: Any, **options: Any) -> Any:
    """The engine's function, its errors under the name of the verb that was called."""
    given = [a.resolve_neg() if isinstance(a, Tensor) else a for a in arguments]
    try:
        return _mercer.unfollowed(name, *given, **options)
    except (ValueError, ArithmeticError, TypeError, RuntimeError) as error:
        text = str(error)
        if verb == name or not text.startswith(f"{name}:"):
            raise
        raise type(error)(verb + text[len(name) :]) from None


def _factored(verb: str, name: str, a: Tensor, check: bool, **options: Any) -> tuple[Any, Tensor]:
    """The result, and info, which is 0 since the engine raises for what failed."""
    if not check:
        return _engine(verb, name, a, check=False, **options)
    found = _engine(verb, name, a, **options)
    return found, a.new_zeros(a.shape[:-2], dtype=torch.int64)


def _cholesky(a: Tensor, lower: bool, check: bool, verb: str) -> tuple[Tensor, Tensor]:
    return _factored(verb, "cholesky", a, check, lower=lower)


def _lu_factor(a: Tensor, check: bool, verb: str) -> tuple[Tensor, Tensor, Tensor]:
    out = (_by_columns(a), _pivots(a))
    (packed, pivots), info = _factored(verb, "lu_factor", a, check, out=out)
    return packed, pivots, info


def _eigh(a: Tensor, lower: bool, check: bool, verb: str) -> tuple[Tensor, Tensor, Tensor]:
    out = (a.new_empty(a.shape[:-1]), _by_columns(a))
    (w, v), info = _factored(verb, "eigh", a, check, lower=lower, out=out)
    return w, v, info


def _cho_solve(factor: Tensor, b: Tensor, lower: bool) -> Tensor:
    return _engine("cho_solve", "cho_solve", factor, b, lower=lower)


def _lu_solve(packed: Tensor, pivots: Tensor, b: Tensor, transposed: bool) -> Tensor:
    pair = (packed.resolve_neg(), _along(packed, pivots))
    return _engine("lu_solve", "lu_solve", pair, b, transposed=transposed)


def _solve_factored(a: Tensor, factor: Tensor, b: Tensor, lower: bool) -> Tensor:
    return _cho_solve(factor, b, lower)


def _solve_pivoted(
    a: Tensor, packed: Tensor, pivots: Tensor, b: Tensor, transposed: bool
) -> Tensor:
    return _lu_solve(packed, pivots, b, transposed)


def _inv_quad(a: Tensor, factor: Tensor, b: Tensor, lower: bool) -> Tensor:
    half = _triangular(factor if lower else factor.mT, b)
    return half.to(_SUMS).square().sum(-2)


def _logdet(a: Tensor, factor: Tensor, lower: bool) -> Tensor:
    return 2 * factor.diagonal(0, -2, -1).to(_SUMS).log().sum(-1)


# ---- Shapes. ------------------------------------------------------------------------------------


def _info(a: Tensor) -> Tensor:
    return a.new_empty(a.shape[:-2], dtype=torch.int64)


def _by_columns(a: Tensor) -> Tensor:
    """Like a, laid out by columns; no view, whose tangents PyTorch would want to be laid out so."""
    rows, columns = a.shape[-2:]
    strides, step = [1, max(rows, 1)], max(rows, 1) * max(columns, 1)
    for extent in reversed(a.shape[:-2]):
        strides.insert(0, step)
        step *= max(extent, 1)
    return a.new_empty_strided(a.shape, strides)


def _pivots(a: Tensor) -> Tensor:
    return a.new_empty((*a.shape[:-2], min(a.shape[-2:])), dtype=torch.int64)


def _solution(a: Tensor, b: Tensor) -> Tensor:
    return b.new_empty((*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]))


def _of_columns(a: Tensor, b: Tensor, kind: torch.dtype) -> Tensor:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return b.new_empty((*batch, b.shape[-1]), dtype=kind)


# ---- Gradients: (inputs, outputs, cotangents, needs) -> a gradient or None for each input. ------


def _to(gradient: Tensor, operand: Tensor) -> Tensor:
    return gradient.sum_to_size(operand.shape)


def _cholesky_gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    lower, factor, g = inputs[1], outputs[0], cotangents[0]
    side, g = (factor, g) if lower else (factor.mT, g.mT)
    inner = moves.half_tril(LIB, matmul(side.mT, g))
    inner = _triangular(side, _triangular(side, inner, transposed=True).mT, transposed=True)
    return moves.symmetric(inner), None, None, None


def _lu_gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    (packed, pivots), g = outputs, cotangents[0]
    rows, columns = packed.shape[-2:]
    n = min(rows, columns)
    square, own = (t.narrow(-1, 0, n).narrow(-2, 0, n) for t in (packed, g))
    left, upper = torch.tril(square, -1) + _eye(square), torch.triu(square)
    below, above = matmul(left.mT, torch.tril(own, -1)), matmul(torch.triu(own), upper.mT)
    under = None
    if columns > n:
        u, by_u = (t.narrow(-1, n, columns - n) for t in (packed, g))
        below = below - matmul(by_u, u.mT)
        under = _triangular(square, by_u, unit=True, transposed=True)
    if rows > n:
        low, by_low = (t.narrow(-2, n, rows - n) for t in (packed, g))
        above = above - matmul(low.mT, by_low)
        under = _behind(upper, by_low)
    inner = _behind(upper, torch.tril(below, -1) + torch.triu(above))
    found = _triangular(square, inner, unit=True, transposed=True)
    if under is not None:
        found = torch.cat([found, under], -1 if columns > n else -2)
    return _take(found, _order(packed, pivots).argsort(-1)), None, None


def _behind(upper: Tensor, rows: Tensor) -> Tensor:
    """rows U^-T."""
    return torch.linalg.solve_triangular(upper.mT, rows, upper=False, left=False)


def _eigh_gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    (w, v), (by_w, by_v) = outputs, cotangents[:2]
    inner = torch.diag_embed(by_w) + moves.by_gaps(LIB, matmul(v.mT, by_v), w)
    return moves.symmetric(matmul(v, matmul(inner, v.mT))), None, None, None


def _cho_solve_gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    (factor, b, lower), x = inputs, outputs[0]
    g = cho_solve(factor, cotangents[0], lower)
    found = None
    if needs[0]:
        whole = -matmul(g, x.mT)
        whole = whole + whole.mT
        if lower:
            found = torch.tril(matmul(whole, torch.tril(factor)))
        else:
            found = torch.triu(matmul(torch.triu(factor), whole))
    return None if found is None else _to(found, factor), _to(g, b) if needs[1] else None, None


def _lu_solve_gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    (packed, pivots, b, transposed), x = inputs, outputs[0]
    g = lu_solve(packed, pivots, cotangents[0], not transposed)
    found = None
    if needs[0]:
        whole = -matmul(x, g.mT) if transposed else -matmul(g, x.mT)
        rows = _take(whole, _order(packed, pivots))
        left = torch.tril(packed, -1) + _eye(packed)
        found = torch.tril(matmul(rows, torch.triu(packed).mT), -1)
        found = _to(found + torch.triu(matmul(left.mT, rows)), packed)
    return found, None, _to(g, b) if needs[2] else None, None


def _factored_gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    (a, factor, b, lower), x = inputs, outputs[0]
    g = solve_factored(a, factor, cotangents[0], lower)
    by_a = _to(-moves.symmetric(matmul(g, x.mT)), a) if needs[0] else None
    return by_a, None, _to(g, b) if needs[2] else None, None


def _pivoted_gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    (a, packed, pivots, b, transposed), x = inputs, outputs[0]
    g = solve_pivoted(a, packed, pivots, cotangents[0], not transposed)
    by_a = None
    if needs[0]:
        by_a = _to(-matmul(x, g.mT) if transposed else -matmul(g, x.mT), a)
    return by_a, None, None, _to(g, b) if needs[3] else None, None


def _inv_quad_gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    a, factor, b, lower = inputs
    x, g = solve_factored(a, factor, b, lower), cotangents[0].to(b.dtype).unsqueeze(-2)
    by_a = _to(-matmul(x * g, x.mT), a) if needs[0] else None
    return by_a, None, _to(2 * x * g, b) if needs[2] else None, None


def _logdet_gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    a, factor, lower = inputs
    inverse = moves.symmetric(_inverse(a, factor, lower))
    return cotangents[0].to(a.dtype)[..., None, None] * inverse, None, None


def _inverse(a: Tensor, factor: Tensor, lower: bool) -> Tensor:
    return solve_factored(a, factor, _eye(a), lower)


# ---- Tangents: (inputs, outputs, given) -> tangents of the outputs. -----------------------------


def _cholesky_tangent(inputs: tuple, outputs: tuple, given: tuple) -> tuple:
    return moves.cholesky(LIB, outputs[0], given[0], inputs[1]), None


def _lu_tangent(inputs: tuple, outputs: tuple, given: tuple) -> tuple:
    packed, pivots = outputs
    return moves.lu(LIB, packed, _order(packed, pivots), given[0]), None, None


def _eigh_tangent(inputs: tuple, outputs: tuple, given: tuple) -> tuple:
    w, v = outputs
    return *moves.eigh(LIB, w, v, given[0]), None


def _moved_right(b: Tensor, db: Tensor | None, da: Tensor | None, x: Tensor) -> Tensor:
    """db - da x, of the shape of x."""
    parts = [] if db is None else [db.expand(x.shape)]
    parts += [] if da is None else [-matmul(da, x)]
    return sum(parts[1:], parts[0])


def _cho_solve_tangent(inputs: tuple, outputs: tuple, given: tuple) -> Tensor:
    (factor, b, lower), (moved, db, _), x = inputs, given, outputs[0]
    da = None if moved is None else moves.of_factor(LIB, factor, moved, lower)
    return cho_solve(factor, _moved_right(b, db, da, x), lower)


def _lu_solve_tangent(inputs: tuple, outputs: tuple, given: tuple) -> Tensor:
    (packed, pivots, b, transposed), x = inputs, outputs[0]
    da = None
    if given[0] is not None:
        da = moves.of_lu(LIB, packed, _order(packed, pivots), given[0])
        da = da.mT if transposed else da
    return lu_solve(packed, pivots, _moved_right(b, given[2], da, x), transposed)


def _factored_tangent(inputs: tuple, outputs: tuple, given: tuple) -> Tensor:
    (a, factor, b, lower), (da, _, db, _), x = inputs, given, outputs[0]
    da = None if da is None else moves.symmetric(da)
    return solve_factored(a, factor, _moved_right(b, db, da, x), lower)


def _pivoted_tangent(inputs: tuple, outputs: tuple, given: tuple) -> Tensor:
    (a, packed, pivots, b, transposed), x = inputs, outputs[0]
    da = given[0] if given[0] is None or not transposed else given[0].mT
    return solve_pivoted(a, packed, pivots, _moved_right(b, given[3], da, x), transposed)


def _inv_quad_tangent(inputs: tuple, outputs: tuple, given: tuple) -> Tensor:
    (a, factor, b, lower), (da, _, db, _) = inputs, given
    x = solve_factored(a, factor, b, lower)
    parts = [] if db is None else [2 * (x * db).sum(-2)]
    parts += [] if da is None else [-(x * matmul(moves.symmetric(da), x)).sum(-2)]
    return sum(parts[1:], parts[0]).to(_SUMS)


def _logdet_tangent(inputs: tuple, outputs: tuple, given: tuple) -> Tensor:
    a, factor, lower = inputs
    return (_inverse(a, factor, lower) * given[0]).sum((-2, -1)).to(_SUMS)


# ---- The table. ---------------------------------------------------------------------------------


class Row(NamedTuple):
    """kept: how many of the first outputs the rules read; axes: of an item of each tensor input."""

    schema: str
    compute: Callable[..., Any]
    fake: Callable[..., Any]
    gradients: Callable[[tuple, tuple, tuple, tuple], tuple]
    tangent: Callable[[tuple, tuple, tuple], Any]
    kept: int
    axes: tuple[int, ...]


TABLE: dict[str, Row] = {
    "cholesky": Row(
        "(Tensor a, bool lower, bool check, str verb) -> (Tensor, Tensor)", _cholesky,
        lambda a, *rest: (a.new_empty(a.shape), _info(a)),
        _cholesky_gradients, _cholesky_tangent, 1, (2,),
    ),
    "lu_factor": Row(
        "(Tensor a, bool check, str verb) -> (Tensor, Tensor, Tensor)", _lu_factor,
        lambda a, *rest: (_by_columns(a), _pivots(a), _info(a)),
        _lu_gradients, _lu_tangent, 2, (2,),
    ),
    "eigh": Row(
        "(Tensor a, bool lower, bool check, str verb) -> (Tensor, Tensor, Tensor)", _eigh,
        lambda a, *rest: (a.new_empty(a.shape[:-1]), _by_columns(a), _info(a)),
        _eigh_gradients, _eigh_tangent, 2, (2,),
    ),
    "cho_solve": Row(
        "(Tensor factor, Tensor b, bool lower) -> Tensor", _cho_solve,
        lambda factor, b, lower: _solution(factor, b),
        _cho_solve_gradients, _cho_solve_tangent, 1, (2, 2),
    ),
    "lu_solve": Row(
        "(Tensor lu, Tensor pivots, Tensor b, bool transposed) -> Tensor", _lu_solve,
        lambda packed, pivots, b, transposed: _solution(packed, b),
        _lu_solve_gradients, _lu_solve_tangent, 1, (2, 1, 2),
    ),
    "solve_factored": Row(
        "(Tensor a, Tensor factor, Tensor b, bool lower) -> Tensor", _solve_factored,
        lambda a, factor, b, lower: _solution(factor, b),
        _factored_gradients, _factored_tangent, 1, (2, 2, 2),
    ),
    "solve_pivoted": Row(
        "(Tensor a, Tensor lu, Tensor pivots, Tensor b, bool transposed) -> Tensor", _solve_pivoted,
        lambda a, packed, pivots, b, transposed: _solution(packed, b),
        _pivoted_gradients, _pivoted_tangent, 1, (2, 2, 1, 2),
    ),
    "inv_quad": Row(
        "(Tensor a, Tensor factor, Tensor b, bool lower) -> Tensor", _inv_quad,
        lambda a, factor, b, lower: _of_columns(factor, b, _SUMS),
        _inv_quad_gradients, _inv_quad_tangent, 0, (2, 2, 2),
    ),
    "logdet": Row(
        "(Tensor a, Tensor factor, bool lower) -> Tensor", _logdet,
        lambda a, factor, lower: a.new_empty(a.shape[:-2], dtype=_SUMS),
        _logdet_gradients, _logdet_tangent, 0, (2, 2),
    ),
}  # fmt: skip


def _mapped(name: str, info: Any, in_dims: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
    """The mapped axis is one more axis of the batch."""
    axes = iter(TABLE[name].axes)
    operands = [
        batching.Operand(value, dim, next(axes)) if isinstance(value, Tensor) else value
        for value, dim in zip(inputs, in_dims, strict=True)
    ]
    leading = max(o.leading for o in operands if isinstance(o, batching.Operand))
    found = autograd.call(
        name, *(o.aligned(leading) if isinstance(o, batching.Operand) else o for o in operands)
    )
    return found, 0 if isinstance(found, Tensor) else (0,) * len(found)


def _register(name: str, row: Row) -> None:
    operator = operators.operator(name, row.compute, row.schema)
    operator.register_fake(row.fake)
    table.GRADIENTS[name], table.TANGENTS[name] = row.gradients, row.tangent
    table.MAPPED[name], autograd.KEPT[name] = _mapped, slice(0, row.kept)
    autograd.register(name, operator)


def register_constant(name: str, operator: Any, mapped: Callable[..., tuple[Any, Any]]) -> None:
    """An operator on one tensor that nothing is differentiated through."""
    table.GRADIENTS[name] = lambda inputs, *_: (None,) * len(inputs)
    table.TANGENTS[name] = lambda inputs, outputs, given: torch.zeros_like(outputs[0])
    table.MAPPED[name], autograd.KEPT[name] = mapped, slice(0, 1)
    autograd.register(name, operator)


for _name, _row in TABLE.items():
    _register(_name, _row)


def cholesky(a: Tensor, lower: bool, check: bool, verb: str) -> tuple[Tensor, Tensor]:
    return autograd.call("cholesky", a, lower, check, verb)


def lu_factor(a: Tensor, check: bool, verb: str) -> tuple[Tensor, Tensor, Tensor]:
    return autograd.call("lu_factor", a, check, verb)


def eigh(a: Tensor, lower: bool, check: bool, verb: str) -> tuple[Tensor, Tensor, Tensor]:
    return autograd.call("eigh", a, lower, check, verb)


def cho_solve(factor: Tensor, b: Tensor, lower: bool) -> Tensor:
    return autograd.call("cho_solve", factor, b, lower)


def lu_solve(packed: Tensor, pivots: Tensor, b: Tensor, transposed: bool) -> Tensor:
    return autograd.call("lu_solve", packed, pivots, b, transposed)


def solve_factored(a: Tensor, factor: Tensor, b: Tensor, lower: bool) -> Tensor:
    return autograd.call("solve_factored", a, factor, b, lower)


def solve_pivoted(a: Tensor, packed: Tensor, pivots: Tensor, b: Tensor, transposed: bool) -> Tensor:
    return autograd.call("solve_pivoted", a, packed, pivots, b, transposed)


def inv_quad(a: Tensor, factor: Tensor, b: Tensor, lower: bool) -> Tensor:
    return autograd.call("inv_quad", a, factor, b, lower)


def logdet(a: Tensor, factor: Tensor, lower: bool) -> Tensor:
    return autograd.call("logdet", a, factor, lower)
