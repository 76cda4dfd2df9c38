"""Functions over the features that are made of the reductions: mean, norm, dot."""

from __future__ import annotations

import math

import numpy as np

from mercer import _mercer
from mercer._mercer import Expr
from mercer._types import ExprLike

__all__ = ["dot", "mean", "norm"]


def mean(term: ExprLike) -> Expr:
    """The mean of the term over the features k: sum(term)/K; NaN where there are none.

    >>> centred = mc.x - mc.mean(mc.x)
    """
    return _mercer.sum(term) / _mercer.K


def norm(term: ExprLike, ord: ExprLike = 2) -> Expr:
    """The norm of the term over the features k: sum(abs(term)**ord)**(1/ord).

    ord is a positive number; inf gives the largest magnitude, 0 counts what differs from 0. Without
    features it is 0. An expression, or an array of one number such as a tensor that is trained, may
    stand for a positive finite ord. Raises ValueError for any other.

    >>> euclidean = mc.norm(mc.x - mc.z)
    """
    size = _mercer.abs(term)
    if isinstance(ord, np.generic) or (isinstance(ord, np.ndarray) and ord.ndim == 0):
        ord = float(ord)
    if not isinstance(ord, (int, float)):
        return _mercer.sum(size**ord) ** (1 / ord if isinstance(ord, Expr) else _mercer.rcp(ord))
    if ord == 2:
        return _mercer.sqrt(_mercer.sum(_mercer.square(term)))
    if ord == math.inf:
        return _mercer.max(_mercer.max(size), 0)
    if ord == 0:
        return _mercer.sum(_mercer.abs(_mercer.sign(term)))  # NaN stays NaN
    if not ord > 0:
        raise ValueError(f"norm: ord must be from 0 to inf. Received {ord}")
    return _mercer.sum(size) if ord == 1 else _mercer.sum(size**ord) ** (1 / ord)


def dot(a: ExprLike | None = None, b: ExprLike | None = None, *, weighted: bool = False) -> Expr:
    """The dot product of two terms over the features k: sum(a*b), weighted sum(w*a*b).

    Without terms it is the kernel of that name of the zoo, that of the points x and z.

    >>> cosine = mc.dot(mc.x, mc.z) / mc.sqrt(mc.dot(mc.x, mc.x) * mc.dot(mc.z, mc.z))
    """
    if a is None and b is None:
        return _mercer.zoo_formula("dot", {}, weighted)
    if a is None or b is None:
        raise TypeError("dot: both terms must be given, or none. Received one")
    first = _mercer.w * a if weighted else a
    return _mercer.sum(first * b)  # type: ignore[operator]  # of two arrays without axes too
