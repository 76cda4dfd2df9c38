"""Forward mode: how a result moves when the operands move, (inputs, outputs, tangents) -> tangent.

pairwise   the formula differentiated in the direction of each tangent
product    that times v, and the formula times the tangent of v
field      likewise; it is linear in its weights
reduce     sum: the sum; logsumexp: the mean by exp(f - out); max, min: at the extremum
knn        at the neighbours
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mercer._derived import derivative
from mercer._torch import autograd, calls, table
from mercer._torch.operands import Pairs, Weights, split_field

_FIELDS = len(Pairs._fields)


def _moves(pairs: Pairs, tangents: Pairs) -> Iterator[tuple[Pairs, str, Tensor | None]]:
    """The derived operands, and of what (row, col or a parameter) the tangent is still a factor."""
    for target, tangent in (("x", tangents.x), ("z", tangents.z), ("w", tangents.w)):
        if tangent is not None:
            yield pairs.moved(target, tangent), "", None
    if pairs.z is None and tangents.x is not None:
        yield pairs.moved("z", tangents.x), "", None
    for d, tangent in enumerate(tangents.directions):
        if tangent is not None:
            directions = list(pairs.directions)
            directions[d] = tangent
            yield pairs._replace(directions=directions), "", None
    for name, tangent in (("row", tangents.row), ("col", tangents.col)):
        if tangent is not None:
            yield pairs.with_formula(derivative(pairs.f, name)), name, tangent.to(pairs.type)
    for name, tangent in zip(pairs.names.split(), tangents.params, strict=False):
        if tangent is not None:
            by = pairs.with_formula(derivative(pairs.f, f"p:{name}"))
            yield by, "param", tangent.to(pairs.x.device, pairs.type)


def _factor(kind: str, tangent: Tensor) -> Tensor:
    """[..., m, n]-shaped."""
    if kind == "row":
        return tangent.unsqueeze(-1)
    return tangent.unsqueeze(-2) if kind == "col" else tangent[..., None, None]


def _total(parts: list[Tensor], like: Any) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total if like is None else total.expand(like)


def _of_pairwise(inputs: tuple, outputs: tuple, tangents: tuple) -> Tensor:
    return _matrix(Pairs(*inputs), Pairs(*tangents))


def _matrix(pairs: Pairs, tangents: Pairs) -> Tensor:
    parts = [
        calls.pairwise(moved) if factor is None else calls.pairwise(moved) * _factor(kind, factor)
        for moved, kind, factor in _moves(pairs, tangents)
    ]
    shape = (*pairs.batch(), pairs.x.shape[-2], pairs.columns.shape[-2])
    return _total(parts, shape)


def _of_product(inputs: tuple, outputs: tuple, tangents: tuple) -> Tensor:
    pairs, v = Pairs(*inputs[:_FIELDS]), inputs[_FIELDS]
    v_tangent = tangents[_FIELDS]
    parts = [] if v_tangent is None else [calls.product(pairs, v_tangent)]
    for moved, kind, factor in _moves(pairs, Pairs(*tangents[:_FIELDS])):
        if kind == "col" and factor is not None:
            parts.append(calls.product(moved, v * factor.unsqueeze(-1)))
        else:
            part = calls.product(moved, v)
            parts.append(part if factor is None else part * _factor(kind, factor))
    shape = (*pairs.batch((v, 2)), pairs.x.shape[-2], v.shape[-1])
    return _total(parts, shape)


def _of_field(inputs: tuple, outputs: tuple, tangents: tuple) -> Tensor:
    pairs, wrt, weights = split_field(inputs)
    parts = []
    for moved, kind, factor in _moves(pairs, Pairs(*tangents[:_FIELDS])):
        if factor is None:
            parts.append(calls.field(moved, wrt, weights))
            continue
        one = torch.ones((), dtype=pairs.type, device=pairs.x.device)
        pair = (pairs.x.shape[-2], pairs.columns.shape[-2])
        amplitude = one if weights.amplitude is None else weights.amplitude
        amplitude = (amplitude * _factor(kind, factor)).expand(
            *torch.broadcast_shapes(amplitude.shape, _factor(kind, factor).shape, pair)
        )
        parts.append(calls.field(moved, wrt, weights._replace(amplitude=amplitude)))
    for name, tangent in zip(Weights._fields, tangents[_FIELDS + 1 :], strict=True):
        if tangent is not None:
            parts.append(calls.field(pairs, wrt, weights._replace(**{name: tangent})))
    return _total(parts, None)


def _of_reduce(inputs: tuple, outputs: tuple, tangents: tuple) -> Tensor | None:
    pairs, kind, (out,) = Pairs(*inputs[:_FIELDS]), inputs[_FIELDS], outputs
    if kind.startswith("arg"):
        return None
    matrix = _matrix(pairs, Pairs(*tangents[:_FIELDS]))
    if kind == "sum":
        return matrix.sum(-1)
    if kind == "logsumexp":
        return (matrix * torch.exp(calls.pairwise(pairs) - out.unsqueeze(-1))).sum(-1)
    index = autograd.call("reduce", *pairs, "arg" + kind)
    return matrix.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def _of_knn(inputs: tuple, outputs: tuple, tangents: tuple) -> tuple[Tensor, None]:
    matrix = _matrix(Pairs(*inputs[:_FIELDS]), Pairs(*tangents[:_FIELDS]))
    return matrix.gather(-1, outputs[1]), None


table.TANGENTS |= {
    "pairwise": _of_pairwise,
    "product": _of_product,
    "field": _of_field,
    "reduce": _of_reduce,
    "knn": _of_knn,
}
