"""The derivatives of the operators, made of the operators themselves.

With L the value that is differentiated and W[m, n] the weight of a pair, dL/df(x_m, z_n):

    pairwise   W = the cotangent C
    product    W = C v',  dL/dv = f' C
    reduce     sum: W = C 1',  logsumexp: W = C exp(f - out),  max, min: W = C at the extremum
    knn        W = C at the neighbours
    field      W as given, of the formula differentiated in the direction C: field is linear in it

    dL/dx[m, k]   = sum_n W df/dx[m, k]         a field; to z with the sides swapped
    dL/dw[k]      = sum_mn W df/dw[k]           a field, summed over m
    dL/drow[m]    = sum_n W df/drow             df/drow, df/dp are formulas again
    dL/dp         = sum_mn W df/dp
    dL/ddirection = the field by what the direction is added to, without that direction

Which passes over the pairs have these is planned by the engine, and run by passes.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mercer import _mercer
from mercer._derived import leaves, parsed
from mercer._torch import autograd, calls, products, table
from mercer._torch.calls import ones, pairwise, product
from mercer._torch.operands import Pairs, Weights, like, split_field
from mercer._torch.passes import NONE, gradients, gradients_and_v

_FIELDS = len(Pairs._fields)


# ---- The rules: (inputs, outputs, cotangents, which inputs need a gradient) -> gradients. --------


def _of_pairwise(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    return tuple(gradients(Pairs(*inputs), Weights(cotangents[0]), Pairs(*needs)))


def _of_product(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    pairs, v = Pairs(*inputs[:_FIELDS]), inputs[_FIELDS]
    weights = Weights(None, cotangents[0], v.to(pairs.type))
    wanted, needs_v = Pairs(*needs[:_FIELDS]), needs[_FIELDS]
    found, by_v = gradients_and_v(pairs, weights, wanted, needs_v)
    return (*found, like(by_v, v) if needs_v else None)


def _of_field(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    pairs, wrt, weights = split_field(inputs)
    wanted = Pairs(*needs[:_FIELDS])
    moved = pairs.moved(wrt, cotangents[0])
    found = gradients(moved, weights, wanted._replace(directions=[*wanted.directions, False]))
    found = found._replace(directions=found.directions[:-1])
    return (*found, None, *_by_weights(moved, weights, Weights(*needs[_FIELDS + 1 :])))


def _by_weights(pairs: Pairs, weights: Weights, needs: Weights) -> Weights:
    """Gradients of the sum of weight times formula over the pairs, by the weights' factors."""
    amplitude, u, v = weights
    by_amplitude = by_u = by_v = None
    if amplitude is None:
        if u is not None and needs.u:
            by_u = product(pairs, ones(pairs, pairs.columns) if v is None else v)
        if v is not None and needs.v:
            by_v = product(pairs.swapped(), ones(pairs, pairs.x) if u is None else u)
    elif any(needs):
        values = pairwise(pairs)
        factor = calls.factor(weights)
        if needs.amplitude:
            by_amplitude = values if factor is None else values * factor
        values = values * amplitude
        if u is not None and needs.u:
            by_u = values.sum(-1, keepdim=True) if v is None else products.matmul(values, v)
        if v is not None and needs.v:
            one = values.sum(-2).unsqueeze(-1)
            by_v = one if u is None else products.matmul(values.mT, u)
    found = zip((by_amplitude, by_u, by_v), weights, strict=True)
    return Weights(*(None if g is None else like(g, t) for g, t in found))


def _of_reduce(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    pairs, kind = Pairs(*inputs[:_FIELDS]), inputs[_FIELDS]
    wanted, column = Pairs(*needs[:_FIELDS]), cotangents[0].unsqueeze(-1)
    if kind == "sum":
        found = gradients(pairs, Weights(None, column, ones(pairs, pairs.columns)), wanted)
    elif kind == "logsumexp":
        found = _of_logsumexp(pairs, outputs[0], column, wanted)
    else:
        index = autograd.call("reduce", *pairs, "arg" + kind)
        found = _at(pairs, index.unsqueeze(-1), column, wanted)
    return (*found, None)


def _of_logsumexp(pairs: Pairs, out: Tensor, column: Tensor, needs: Pairs) -> Pairs:
    if "row" in leaves(pairs.f):
        matrix = column * torch.exp(pairwise(pairs) - out.unsqueeze(-1))
        return gradients(pairs, Weights(matrix), needs)
    # exp(f - out) is a formula, its derivative exp(f - out) df: nothing of the size M * N is made.
    shifted = pairs._replace(f=str(_mercer.exp(parsed(pairs.f) - _mercer.row)), row=out)
    weights = Weights(None, column, ones(pairs, pairs.columns))
    return gradients(shifted, weights, needs._replace(row=False))


def _of_knn(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    pairs = Pairs(*inputs[:_FIELDS])
    return (*_at(pairs, outputs[1], cotangents[0], Pairs(*needs[:_FIELDS])), None)


def _at(pairs: Pairs, index: Tensor, cotangent: Tensor, needs: Pairs) -> Pairs:
    """The gradients of f(x_m, z_index[m, q]), with a cotangent for each."""
    if leaves(pairs.f) & {"i", "j"}:
        zeros = cotangent.new_zeros(*cotangent.shape[:-1], pairs.columns.shape[-2])
        return gradients(pairs, Weights(zeros.scatter(-1, index, cotangent)), needs)
    batch, items = index.shape[:-2], index.shape[:-2].numel()
    columns = pairs.columns.shape[-2]
    # Indices into the points of all items: index_put adds up in a fixed order, scatter_add in any.
    first = torch.arange(items, device=index.device).reshape(*batch, 1, 1) * columns
    flat = (index + first).reshape(-1)

    def gathered(points: Tensor) -> Tensor:  # [..., N, k] -> [..., M, q, k]
        wide = points.expand(*batch, *points.shape[-2:]).reshape(items * columns, points.shape[-1])
        return wide[flat].reshape(*index.shape, points.shape[-1])

    def scattered(gradient: Tensor, points: Tensor) -> Tensor:
        features = points.shape[-1]
        zeros = gradient.new_zeros(items * columns, features)
        total = zeros.index_put((flat,), gradient.reshape(len(flat), features), accumulate=True)
        return like(total.reshape(*batch, columns, features), points)

    # Each row of x becomes an item of the batch, with its own few columns.
    near = pairs._replace(
        x=pairs.x.expand(*batch, *pairs.x.shape[-2:]).unsqueeze(-2),
        z=gathered(pairs.columns),
        row=None if pairs.row is None else pairs.row.unsqueeze(-1),
        col=None if pairs.col is None else gathered(pairs.col.unsqueeze(-1)).squeeze(-1),
        params=[p if p.ndim == 0 else p.unsqueeze(-1) for p in pairs.params],
    )
    wanted = needs._replace(z=needs.x if pairs.z is None else needs.z)
    found = gradients(near, Weights(cotangent.unsqueeze(-2)), wanted)
    by: dict[str, Any] = {"w": found.w, "numbers": found.numbers, "directions": []}
    if found.x is not None:
        by["x"] = like(found.x.squeeze(-2), pairs.x)
    if found.z is not None and pairs.z is None:
        by["x"] = by["x"] + scattered(found.z, pairs.x)
    elif found.z is not None:
        by["z"] = scattered(found.z, pairs.z)
    if found.row is not None:
        by["row"] = like(found.row.squeeze(-1), pairs.row)
    if found.col is not None and pairs.col is not None:
        by["col"] = scattered(found.col.unsqueeze(-1), pairs.col.unsqueeze(-1)).squeeze(-1)
    by["params"] = [
        None if g is None else g if p.ndim == 0 else g.squeeze(-1)
        for g, p in zip(found.params, pairs.params, strict=True)
    ]
    return NONE._replace(**by)


table.GRADIENTS |= {
    "pairwise": _of_pairwise,
    "product": _of_product,
    "field": _of_field,
    "reduce": _of_reduce,
    "knn": _of_knn,
}
