"""Backwards of formulas that read more of a point than its features one by one: norms, means.

Where f is a formula of other points and of a value of each (mercer::ir::PointForm),

    f(x, z) = g(x', z', r, q)    x'[m, k] = (x[m, k] - shift[m]) scale[m],  r[m] = value[m]

the pairs are those of g, whose derivatives have no sums of one side; the rest is work on points:

    dL/dx = scale dL/dx' + dL/dr dvalue/dx + dL/dscale dscale/dx + dL/dshift dshift/dx
    dL/dscale = sum_k dL/dx' (x - shift),  dL/dshift = -scale sum_k dL/dx'

A cosine's norms and a correlation's means are such values, as are those of arc-cosine kernels.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from mercer import _mercer
from mercer._torch import autograd
from mercer._torch.operands import Pairs, Weights, is_swarm, like, parsed

# Pairs times features of an item from which it pays: 40 launches more take half a millisecond.
_LEAST_WORK = {"cpu": 1 << 22, "cuda": 1 << 29}


@functools.lru_cache(4096)
def _form(text: str) -> tuple[str, tuple[str, str, str], tuple[str, str, str]] | None:
    return _mercer.point_form(parsed(text))


def _alone(text: str, x: Tensor) -> Pairs:
    """A formula of x alone, on pairs with one point."""
    other = x.new_zeros(1, x.shape[-1])
    return Pairs(text, x, other, None, None, None, [], "", [], [], "", 0, 0)


class _Side(NamedTuple):
    """Points and what is made of them: shift and scale [..., M, 1], value [..., M]."""

    texts: tuple[str, str, str]
    x: Tensor
    shift: Tensor | None
    scale: Tensor | None
    value: Tensor | None

    @staticmethod
    def of(texts: tuple[str, str, str], x: Tensor) -> _Side:
        def made(text: str) -> Tensor | None:
            return autograd.call("pairwise", *_alone(text, x)) if text else None

        value = made(texts[2])
        return _Side(
            texts, x, made(texts[0]), made(texts[1]), None if value is None else value.squeeze(-1)
        )

    def centred(self) -> Tensor:
        return self.x if self.shift is None else self.x - self.shift

    def points(self) -> Tensor:
        return self.centred() if self.scale is None else self.centred() * self.scale

    def back(self, points: Tensor, value: Tensor | None) -> Tensor:
        """dL/dx of the derivatives by the points and the value."""
        total = points if self.scale is None else points * self.scale
        by: list[Tensor | None] = [None, None, None if value is None else value.unsqueeze(-1)]
        if self.shift is not None:
            by[0] = -total.sum(-1, keepdim=True)
        if self.scale is not None:
            by[1] = (points * self.centred()).sum(-1, keepdim=True)
        for text, cotangent in zip(self.texts, by, strict=True):
            if cotangent is None:
                continue
            slope = autograd.call("field", *_alone(text, self.x), "x", *Weights())
            # A norm has none at the origin, where what asks for it may be infinite.
            total = total + torch.where(slope == 0, 0, cotangent * slope)
        return total


class PointForm(NamedTuple):
    """The pairs of g, and what they are made of."""

    given: Pairs
    pairs: Pairs
    x: _Side
    z: _Side

    def needs(self, needs: Pairs) -> Pairs:
        z = needs.x if self.given.z is None else needs.z
        return needs._replace(
            z=self.pairs.z is not None and z,
            row=needs.x if self.x.value is not None else needs.row,
            col=z if self.z.value is not None else needs.col,
        )

    def back(self, found: Pairs, needs: Pairs) -> Pairs:
        """Gradients of f of those of g."""
        row, col = found.row, found.col
        of_row = row if self.x.value is not None else None
        of_col = col if self.z.value is not None else None
        x = z = None
        if self.pairs.z is None and needs.x:  # g has both sides' points together
            both = of_row if of_col is None else of_col if of_row is None else of_row + of_col
            x = self.x.back(found.x, both)
        else:
            if found.x is not None:
                x = self.x.back(found.x, of_row)
            if found.z is not None:
                z = self.z.back(found.z, of_col)
            if self.given.z is None and z is not None:
                x, z = x + z, None
        return found._replace(
            x=None if x is None else like(x, self.given.x),
            z=None if z is None else like(z, self.given.z),
            row=None if self.x.value is not None else row,
            col=None if self.z.value is not None else col,
        )


def point_form(pairs: Pairs, needs: Pairs) -> PointForm | None:
    """Where gradients by the points are wanted, and sooner so."""
    if pairs.along or not (needs.x or needs.z) or is_swarm(pairs):
        return None
    work = pairs.x.shape[-2] * pairs.columns.shape[-2] * pairs.x.shape[-1]
    form = _form(pairs.f)
    if form is None or work < _LEAST_WORK[pairs.x.device.type]:
        return None
    text, of_x, of_z = form
    if not _pays(pairs, bool(of_x[2] or of_z[2])):
        return None
    wide = pairs.widened()
    x = _Side.of(of_x, wide.x)
    is_shared = pairs.z is None and of_x == of_z
    z = x if is_shared else _Side.of(of_z, wide.columns)
    made = pairs._replace(
        x=x.points(),
        z=None if is_shared else z.points(),
        row=pairs.row if x.value is None else x.value,
        col=pairs.col if z.value is None else z.value,
    )
    return PointForm(pairs, made.with_formula(text), x, z)


def _pays(pairs: Pairs, has_values: bool) -> bool:
    """On CPUs the derivatives by the values take passes of their own."""
    return pairs.x.is_cuda or not has_values
