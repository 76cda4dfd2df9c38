"""The derivatives of mercer::agop, A = sum over m and o of g[o, m] g[o, m]'.

The gradients g are a field, linear in its weights; with C the cotangent of A,

    dL/dg[o, m] = (C + C') g[o, m]       and on by the rule of a field
    A moves by    dg' g + g' dg          where g moves by dg

Both take some rows m and outputs o at a time: g, of O M K values, is never there as a whole. Where
the backward is recorded to be differentiated again, its parts stay with the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mercer._torch import calls, passes, products, table
from mercer._torch.operands import Pairs, Weights, like

_FIELDS = len(Pairs._fields)
# Bytes of the gradients of a part, and of what the outputs of a part have for the points z.
_BYTES = 1 << 26
_WHOLE = slice(None)


class _Part(NamedTuple):
    rows: slice
    outputs: slice

    def pairs(self, pairs: Pairs) -> Pairs:
        """Its operands, the outputs as the last axis of the batch. Some tangents are absent."""
        return pairs._replace(
            x=_at(pairs.x, None, self.rows, _WHOLE), z=_at(pairs.z, None, _WHOLE, _WHOLE),
            row=_at(pairs.row, None, self.rows), col=_at(pairs.col, None, _WHOLE),
            params=[p if p is None or p.ndim == 0 else _at(p, None) for p in pairs.params],
            i_offset=(pairs.i_offset or 0) + self.rows.start,
        )  # fmt: skip

    def weights(self, coef: Tensor | None) -> Weights:
        return Weights(v=_at(coef, self.outputs, _WHOLE, None))


def _at(tensor: Tensor | None, *index: slice | None) -> Tensor | None:
    return None if tensor is None else tensor[(..., *index)]


def _parts(pairs: Pairs, coef: Tensor, needs_z: bool = False) -> Iterator[_Part]:
    m, n, outputs = pairs.x.shape[-2], pairs.columns.shape[-2], coef.shape[-2]
    each = pairs.batch((coef, 2)).numel() * pairs.x.shape[-1] * pairs.type.itemsize
    most = _BYTES // max(each, 1)
    some = max(1, min(outputs, most // max(n, 1) if needs_z else most))
    rows = max(1, min(m, most // some))
    for first in range(0, max(m, 1), rows):
        for start in range(0, max(outputs, 1), some):
            yield _Part(
                slice(first, min(first + rows, m)), slice(start, min(start + some, outputs))
            )


class _Sums:
    """Gradients of parts: those of one name and place are added up."""

    def __init__(self) -> None:
        self._found: dict[str, dict[int, Tensor]] = {}

    def add(self, name: str, gradient: Tensor | None, place: int = 0) -> None:
        if gradient is not None:
            places = self._found.setdefault(name, {})
            places[place] = places[place] + gradient if place in places else gradient

    def get(self, name: str, place: int = 0) -> Tensor | None:
        return self._found.get(name, {}).get(place)

    def joined(self, name: str, axis: int) -> Tensor | None:
        """The gradients of all places, one after the other."""
        parts = list(self._found.get(name, {}).values())
        return torch.cat(parts, axis) if len(parts) > 1 else parts[0] if parts else None


def _shaped(
    gradient: Tensor | None, operand: Tensor | None, axis: int | None = None
) -> Tensor | None:
    """The gradient without the axis that was added to the operand."""
    if gradient is None or operand is None:
        return None
    return like(gradient if axis is None else gradient.squeeze(axis), operand)


def _rows(g: Tensor) -> Tensor:
    """The rows of all outputs, one after the other; flatten has no rule for is_grads_batched."""
    return g.reshape(*g.shape[:-3], g.shape[-3] * g.shape[-2], g.shape[-1])


def _gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    given, coef, needs_coef = Pairs(*inputs[:_FIELDS]), inputs[_FIELDS], needs[_FIELDS]
    wanted, both = Pairs(*needs[:_FIELDS]), cotangents[0] + cotangents[0].mT
    wanted = wanted._replace(z=wanted.x if given.z is None else wanted.z)
    needs_field = (*wanted, None, *Weights(v=needs_coef))
    # What is added up part by part is not rounded to 16 bits at each.
    pairs, wide = given._replace(z=given.columns).widened(), coef.to(given.type)
    sums = _Sums()
    for part in _parts(pairs, wide, bool(wanted.z)):
        near, weights = part.pairs(pairs), part.weights(wide)
        g = calls.field(near, "x", weights)
        turned = products.matmul(_rows(g), both).reshape(g.shape)
        found = table.GRADIENTS["field"]((*near, "x", *weights), (), (turned,), needs_field)
        by, by_weights = Pairs(*found[:_FIELDS]), Weights(*found[_FIELDS + 1 :])
        sums.add("x", by.x, part.rows.start)
        sums.add("row", by.row, part.rows.start)
        sums.add("coef", by_weights.v, part.outputs.start)
        for name in ("z", "col", "w"):
            sums.add(name, getattr(by, name))
        for number, gradient in enumerate(by.params):
            sums.add("params", gradient, number)
    by_x, by_z = sums.joined("x", -2), sums.get("z")
    if given.z is None and by_x is not None:
        by_x = by_x + by_z
    params = [
        _shaped(sums.get("params", number), p, -1 if p.ndim > 0 else None)
        for number, p in enumerate(given.params)
    ]
    numbers: dict[str, Any] = {"numbers": None if given.numbers else []}
    by = passes.NONE._replace(
        x=_shaped(by_x, given.x, -3), z=_shaped(by_z, given.z, -3),
        row=_shaped(sums.joined("row", -1), given.row, -2),
        col=_shaped(sums.get("col"), given.col, -2),
        w=_shaped(sums.get("w"), given.w),
        params=params, directions=[], **numbers,
    )  # fmt: skip
    return (*by, _shaped(sums.joined("coef", -3), coef, -1))


def _tangent(inputs: tuple, outputs: tuple, given: tuple) -> Tensor:
    pairs, coef = Pairs(*inputs[:_FIELDS]), inputs[_FIELDS]
    moves, coef_moves = Pairs(*given[:_FIELDS]), given[_FIELDS]
    moves = moves._replace(z=moves.x if pairs.z is None else moves.z)
    pairs = pairs._replace(z=pairs.columns)
    total: Any = None
    for part in _parts(pairs, coef):
        near, weights = part.pairs(pairs), part.weights(coef)
        g = calls.field(near, "x", weights)
        moved = (*part.pairs(moves), None, *part.weights(coef_moves))
        dg = table.TANGENTS["field"]((*near, "x", *weights), (), moved)
        moves_by = products.matmul(_rows(dg).mT, _rows(g))
        total = moves_by if total is None else total + moves_by
    return total + total.mT


table.GRADIENTS["agop"] = _gradients
table.TANGENTS["agop"] = _tangent
