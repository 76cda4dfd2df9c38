"""Backwards of formulas linear in x and in z: inner products, cosines and correlations.

For f = offset + scale r q sum_k c_k x_k z_k (plan/forms/linear_form.h), with factors r of the row,
q of the column and c of w, a pass over the pairs makes products of matrices:

    F[m, k]    = sum_n W[m, n] q_n z[n, k]          W = C, or u v', of which v' (q z) comes first
    dL/dx      = scale r c F
    dL/dr      = scale sum_k c x F
    dL/dw      = c' sum_m scale r x F
    sum_n f v  = scale r (c x) (v' (q z))' + offset sum_n v
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mercer._torch import autograd, products
from mercer._torch.operands import LinearForm, Pairs, Weights, linear_form
from mercer._torch.weight_form import of_weights

_PRODUCT = "sum(x*z)"


def _by_pass(matrix: Tensor, pairs: Pairs, points: Tensor) -> Tensor:
    """The matrix times points, by a pass of the engine over the pairs."""
    x = pairs.x.to(points.dtype)
    near = pairs._replace(f=_PRODUCT, x=x, z=points, row=None, col=None, w=None)
    return autograd.call("pairwise_backward", *near, matrix, "", False)[0]


def _weighed(form: LinearForm, pairs: Pairs, points: Tensor) -> Tensor:
    if not form.weight:
        return points
    assert pairs.w is not None
    return points * of_weights(form.weight, pairs.w.to(pairs.type)).unsqueeze(-2)


def passed(
    pairs: Pairs,
    weights: Weights,
    by: Sequence[str],
    needs_v: bool,
    without_weight: bool,
    is_by_pass: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The field to x, and gradients by `by` ("w", "row") and v."""
    form = linear_form(pairs.f)
    assert form is not None
    amplitude, u, v = (None if t is None else t.to(pairs.type) for t in weights)
    x, z = pairs.x.to(pairs.type), pairs.columns.to(pairs.type)
    row, col, w = (None if t is None else t.to(pairs.type) for t in (pairs.row, pairs.col, pairs.w))
    if form.of_col:
        assert col is not None
        z = z * col.unsqueeze(-1)
    found: dict[str, Tensor] = {}
    if amplitude is not None:
        field = _by_pass(amplitude, pairs, z) if is_by_pass else products.matmul(amplitude, z)
    else:
        assert u is not None
        assert v is not None
        moments = products.matmul(v.mT, z)
        field = products.matmul(u, moments)
    if form.scale != 1:
        field = form.scale * field
    if "row" in by:
        by_row = (_weighed(form, pairs, x) * field).sum(-1)
        found["row"] = by_row if form.of_row else torch.zeros_like(by_row)
    if form.of_row:
        assert row is not None
        field = field * row.unsqueeze(-1)
    if "w" in by:
        assert w is not None
        found["w"] = of_weights(form.slope or "0", w) * (x * field).sum(-2)
    if needs_v:
        assert v is not None
        values = form.scale * products.matmul(_weighed(form, pairs, x), moments.mT)
        values = values * row.unsqueeze(-1) if row is not None and form.of_row else values
        found["v"] = values + form.offset * v.sum(-2, keepdim=True) if form.offset else values
    return field if without_weight else _weighed(form, pairs, field), found
