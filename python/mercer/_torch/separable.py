"""Values of pairs as sums of products of three factors, P[m, n] X[m, k] Z[n, k].

Tensors of a block are [..., m, n, k] with extents of 1 where they do not vary. What would vary
along all three stays a sum of such products as long as it is added and multiplied: its sum over k,
or over n with weights, is a product of matrices then, and nothing of the size M N K is made. x - z
is such a sum, of which a constant is taken from both sides; products and sums are made in float64,
where what cancels costs no digit of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

_MOST_TERMS = 16


class Term(NamedTuple):
    """A product; a factor that is absent is one. p: k = 1, or a number; x: n = 1, z: m = 1."""

    p: Tensor | None = None
    x: Tensor | None = None
    z: Tensor | None = None

    def times(self, other: Term) -> Term:
        return Term(*map(_times, self, other))

    def negative(self) -> Term:
        if self.p is not None:
            return self._replace(p=-self.p)
        return self._replace(p=self._number(-1.0))

    def plus(self, other: Term) -> Term:
        """The sum with a term whose x and z are the same objects."""
        if self.p is None and other.p is None:
            return self._replace(p=self._number(2.0))
        return self._replace(
            p=(1.0 if self.p is None else self.p) + (1.0 if other.p is None else other.p)
        )

    def _number(self, value: float) -> Tensor:
        factor = self.z if self.x is None else self.x
        assert factor is not None
        return factor.new_full((), value)


class Separable:
    """A sum of products; `make` makes the tensor that it stands for."""

    def __init__(self, terms: list[Term], make: Callable[[], Tensor]):
        self.terms, self._make = terms, make
        self._whole: Tensor | None = None

    def whole(self) -> Tensor:
        if self._whole is None:
            self._whole = self._make()
        return self._whole


Value: TypeAlias = Tensor | Separable


def _times(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a * b


def _merged(terms: Iterable[Term]) -> list[Term]:
    found: dict[tuple[int, int], Term] = {}
    for term in terms:
        key = id(term.x), id(term.z)
        found[key] = found[key].plus(term) if key in found else term
    return list(found.values())


def is_whole(*tensors: Tensor) -> bool:
    """Whether they vary, together, along rows, columns and features."""
    return all(any(t.shape[axis] > 1 for t in tensors) for axis in (-3, -2, -1))


def terms_of(value: Value) -> list[Term] | None:
    if isinstance(value, Separable):
        return value.terms
    m, n, k = value.shape[-3:]
    if k == 1:
        return [Term(p=value)]
    if n == 1:
        return [Term(x=value)]
    return [Term(z=value)] if m == 1 else None


def product(a: Value, b: Value, make: Callable[[], Tensor]) -> Separable | None:
    """None where it has no such form, or a long one."""
    left, right = terms_of(a), terms_of(b)
    if left is None or right is None:
        return None
    terms = _merged(s.times(t) for s in left for t in right)
    return None if len(terms) > _MOST_TERMS else Separable(terms, make)


def total(a: Value, b: Value, sign: int, make: Callable[[], Tensor]) -> Separable | None:
    """a + sign b."""
    left, right = terms_of(a), terms_of(b)
    if left is None or right is None:
        return None
    if sign < 0 and len(left) == len(right) == 1:
        left, right = _centred(left[0], right[0])
    if sign < 0:
        right = [term.negative() for term in right]
    terms = _merged(left + right)
    return None if len(terms) > _MOST_TERMS else Separable(terms, make)


def _centred(a: Term, b: Term) -> tuple[list[Term], list[Term]]:
    """Both sides of a difference, centred where one is a value of the row, one of the column."""
    if a.p is not None or b.p is not None or (a.x is None) == (b.x is None):
        return [a], [b]
    rows, columns = (a.x, b.z) if b.x is None else (b.x, a.z)
    assert rows is not None
    assert columns is not None
    centre = columns.mean(-2, keepdim=True)
    centre = torch.where(centre.isfinite(), centre, 0.0)  # one point must not be in all others
    row, column = Term(x=rows - centre), Term(z=columns - centre)
    return ([row], [column]) if b.x is None else ([column], [row])


def over_features(value: Separable, features: int) -> Tensor:
    """[..., m, n, 1] in float64: the sum over k."""
    parts = []
    for p, x, z in value.terms:
        if x is not None and z is not None:
            rows = x.squeeze(-2).double().expand(*x.shape[:-3], x.shape[-3], features)
            columns = z.squeeze(-3).double().expand(*z.shape[:-3], z.shape[-2], features)
            part = (rows @ columns.mT).unsqueeze(-1)
        else:
            one = x if z is None else z
            part = None if one is None else one.double().sum(-1, keepdim=True)
        if part is None:
            assert p is not None
            part = p * float(features)
        elif p is not None:
            part = p * part
        parts.append(part)
    return sum(parts[1:], parts[0])


def over_columns(terms: list[Term], weight: Tensor | None, m: int, n: int) -> Tensor:
    """[..., m, k] in float64: the sum over n with these weights [..., m, n]."""
    result = None
    for p, x, z in terms:
        pair = _times(weight, None if p is None else p.squeeze(-1))
        if pair is None:
            varying = x if z is None else z
            assert varying is not None
            pair = varying.new_ones(())
        pair = pair.double()
        pair = pair.expand(*pair.shape[:-2], m, n)
        part = pair.sum(-1, keepdim=True) if z is None else pair @ z.squeeze(-3).double()
        if x is not None:
            part = part * x.squeeze(-2)
        result = part if result is None else result + part
    return result
