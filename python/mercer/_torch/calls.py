"""The operators as functions of pairs, and sums of what they give."""

from __future__ import annotations

from torch import Tensor

from mercer._torch import autograd
from mercer._torch.operands import Pairs, Weights


def pairwise(pairs: Pairs) -> Tensor:
    return autograd.call("pairwise", *pairs)


def product(pairs: Pairs, v: Tensor) -> Tensor:
    return autograd.call("product", *pairs, v)


def field(pairs: Pairs, wrt: str, weights: Weights) -> Tensor:
    return autograd.call("field", *pairs, wrt, *weights)


def ones(pairs: Pairs, points: Tensor) -> Tensor:
    return points.new_ones(1, 1, dtype=pairs.type).expand(points.shape[-2], 1)


def over_columns(pairs: Pairs, weights: Weights) -> Tensor:
    """[..., M]: the sum over n of weight times formula."""
    if weights.amplitude is not None:
        return (matrix(weights) * pairwise(pairs)).sum(-1)
    values = product(pairs, ones(pairs, pairs.columns) if weights.v is None else weights.v)
    return (values if weights.u is None else weights.u * values).sum(-1)


def factor(weights: Weights) -> Tensor | None:
    """sum_e u[m, e] v[n, e] as far as it is given: [..., M, N], [..., M, 1] or [..., 1, N]."""
    _, u, v = weights
    if u is not None and v is not None:
        return u * v.mT if u.shape[-1] == 1 else autograd.call("matmul", u, v.mT)
    if u is not None:
        return u.sum(-1, keepdim=True)
    return None if v is None else v.sum(-1).unsqueeze(-2)


def matrix(weights: Weights) -> Tensor | None:
    own = factor(weights)
    if weights.amplitude is None or own is None:
        return own if weights.amplitude is None else weights.amplitude
    return weights.amplitude * own
