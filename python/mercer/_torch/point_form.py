"""Backwards of formulas that read more of a point than its features one by one: norms, means.

Where f is a formula of other points and of a value of each (mercer::ir::PointForm),

    f(x, z) = g(x', z', r, q)    x'[m, k] = (x[m, k] - shift[m]) scale[m],  r[m] = value[m]

the pairs are those of g, whose derivatives have no sums of one side; the rest is work on points:

    dL/dx = scale dL/dx' + dL/dr dvalue/dx + dL/dscale dscale/dx + dL/dshift dshift/dx
    dL/dscale = sum_k dL/dx' (x - shift),  dL/dshift = -scale sum_k dL/dx'

and likewise by the weights and parameters that shift, scale and value read. A cosine's norms and a
correlation's means are such values, as are those of arc-cosine kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mercer import _mercer
from mercer._derived import derivative, leaves, parsed
from mercer._torch import autograd
from mercer._torch.operands import Pairs, Weights, like


@functools.lru_cache(4096)
def _form(text: str) -> tuple[str, tuple[str, str, str], tuple[str, str, str]] | None:
    return _mercer.point_form(parsed(text))


class _Side(NamedTuple):
    """Points and what is made of them: shift and scale [..., M, 1], value [..., M]."""

    texts: tuple[str, str, str]
    given: Pairs  # whose rows are x
    shift: Tensor | None
    scale: Tensor | None
    value: Tensor | None

    @staticmethod
    def of(texts: tuple[str, str, str], given: Pairs) -> _Side:
        def made(text: str) -> Tensor | None:
            return autograd.call("pairwise", *_alone(text, given)) if text else None

        value = made(texts[2])
        return _Side(
            texts,
            given,
            made(texts[0]),
            made(texts[1]),
            None if value is None else value.squeeze(-1),
        )

    def centred(self) -> Tensor:
        return self.given.x if self.shift is None else self.given.x - self.shift

    def points(self) -> Tensor:
        return self.centred() if self.scale is None else self.centred() * self.scale

    def back(self, points: Tensor | None, value: Tensor | None, wanted: frozenset[str]) -> _Parts:
        """Parts of the derivatives by x, w and parameters, of those by the points and the value."""
        by: list[Tensor | None] = [None, None, None if value is None else value.unsqueeze(-1)]
        if points is not None:
            total = points if self.scale is None else points * self.scale
            if "x" in wanted:
                yield "x", total
            if self.shift is not None:
                by[0] = -total.sum(-1, keepdim=True)
            if self.scale is not None:
                by[1] = (points * self.centred()).sum(-1, keepdim=True)
        for text, cotangent in zip(self.texts, by, strict=True):
            if cotangent is not None:
                yield from _back(_alone(text, self.given), cotangent, wanted & leaves(text))

    def reads(self, wanted: frozenset[str]) -> tuple[bool, bool]:
        """Whether these derivatives take that by the points, and that by the value."""
        shift, scale, value = (bool(text and wanted & leaves(text)) for text in self.texts)
        return "x" in wanted or shift or scale, value


_Parts = Iterator[tuple[str, Tensor]]  # of gradients by "x", "w", and "p:name" of parameters


def _alone(text: str, given: Pairs) -> Pairs:
    """A formula of x alone, on pairs with one point."""
    other = given.x.new_zeros(1, given.x.shape[-1])
    return given.with_formula(text)._replace(z=other, i_offset=0, j_offset=0)


def _back(alone: Pairs, cotangent: Tensor, wanted: frozenset[str]) -> _Parts:
    if not wanted:
        return
    slope = autograd.call("field", *alone, "x", *Weights())
    # A norm has none at the origin, where what asks for it may be infinite.
    is_flat = slope == 0
    if "x" in wanted:
        yield "x", (cotangent * slope).masked_fill_(is_flat, 0)
    others = sorted(wanted - {"x"})
    if others:
        is_none = is_flat.all(-1, keepdim=True) & ~torch.isfinite(cotangent)
        cotangent = torch.where(is_none, 0, cotangent)
    for leaf in others:
        if leaf == "w":
            yield leaf, autograd.call("field", *alone, "w", *Weights(cotangent))
        else:
            values = autograd.call("pairwise", *alone.with_formula(derivative(alone.f, leaf)))
            yield leaf, (cotangent * values).sum((-2, -1))


class PointForm(NamedTuple):
    """The pairs of g, and what they are made of."""

    given: Pairs
    pairs: Pairs
    x: _Side
    z: _Side

    @staticmethod
    def of(pairs: Pairs) -> PointForm:
        form = _form(pairs.f)
        assert form is not None
        text, of_x, of_z = form
        wide = pairs.widened()
        x = _Side.of(of_x, wide)
        is_shared = pairs.z is None and of_x == of_z
        z = x if is_shared else _Side.of(of_z, wide._replace(x=wide.columns))
        made = pairs._replace(
            x=x.points(),
            z=None if is_shared else z.points(),
            row=pairs.row if x.value is None else x.value,
            col=pairs.col if z.value is None else z.value,
        )
        return PointForm(pairs, made.with_formula(text), x, z)

    def needs(self, needs: Pairs) -> Pairs:
        """Which operands of the pairs of g need a gradient."""
        x, row = self.x.reads(_wanted_of_side(self.given, needs, "x"))
        z, col = self.z.reads(_wanted_of_side(self.given, needs, "z"))
        own = dict(zip(self.given.names.split(), needs.params, strict=False))
        return needs._replace(
            x=x or (z and self.pairs.z is None),  # g has both sides' points together
            z=z and self.pairs.z is not None,
            row=row if self.x.value is not None else needs.row,
            col=col if self.z.value is not None else needs.col,
            params=[own[name] for name in self.pairs.names.split()[: len(self.pairs.params)]],
        )

    def back(self, found: Pairs, needs: Pairs) -> Pairs:
        """Gradients of f of those of g."""
        given, row, col = self.given, found.row, found.col
        of_row = row if self.x.value is not None else None
        of_col = col if self.z.value is not None else None
        operands = {"x": given.x, "z": given.z, "w": given.w}
        operands |= _by_name(given.names, given.params)
        total: dict[str, Tensor] = {}

        def add(parts: Iterable[tuple[str, Tensor | None]], z: str = "x") -> None:
            for leaf, part in parts:
                name = z if leaf == "x" else leaf
                if part is not None:
                    own = like(part, operands[name])
                    total[name] = total[name] + own if name in total else own

        add([("w", found.w), *_by_name(self.pairs.names, found.params).items()])
        of_x = _wanted_of_side(given, needs, "x")
        if self.pairs.z is None:
            both = of_row if of_col is None else of_col if of_row is None else of_row + of_col
            add(self.x.back(found.x, both, of_x))
        else:
            add(self.x.back(found.x, of_row, of_x))
            of_z = self.z.back(found.z, of_col, _wanted_of_side(given, needs, "z"))
            add(of_z, "x" if given.z is None else "z")
        numbers: dict[str, Any] = {"numbers": None if given.numbers else []}
        return found._replace(
            x=total.get("x"),
            z=total.get("z"),
            w=total.get("w"),
            row=None if self.x.value is not None else row,
            col=None if self.z.value is not None else col,
            params=[total.get(name) for name in _by_name(given.names, given.params)],
            **numbers,
        )


def _by_name(names: str, values: Sequence[Any]) -> dict[str, Any]:
    return {f"p:{name}": value for name, value in zip(names.split(), values, strict=False)}


def _wanted_of_side(pairs: Pairs, needs: Pairs, side: str) -> frozenset[str]:
    """What of "x" (the points of this side), "w" and "p:name" needs a gradient."""
    points = needs.z if side == "z" and pairs.z is not None else needs.x
    given = {"x": points, "w": needs.w} | _by_name(pairs.names, needs.params)
    return frozenset(name for name, needed in given.items() if needed)
