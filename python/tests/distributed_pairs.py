"""The verbs on pairs of DTensors: rules, their derivatives, and what no rule says."""

from __future__ import annotations

import mercer as mc
import torch
from distributed_worker import ROWS, WHOLE, close, randn, same
from torch.distributed.tensor import Partial, Shard

GAUSS = "exp(-sum((x-z)^2)/h)"
OFFSET = "exp(-sum((x-z)^2)) * (1 + i + j/2) + (i == j)"
EPS = torch.finfo(torch.float64).eps
# Sums of some ten terms of magnitude ten, in float64.
BOUND = 1e3 * EPS
H = torch.tensor(1.7, dtype=torch.float64)


def points(m=7, n=5, k=3, dtype=torch.float64):
    return randn(m, k, seed=1, dtype=dtype), randn(n, k, seed=2, dtype=dtype)


def derivatives(ranks, call, tensors, placements, second=True):
    """Value, gradients and gradients of their squares: of DTensors, and of one process."""
    found = []
    for leaves, put in (
        ([t.clone().requires_grad_() for t in tensors], lambda t: t),
        (ranks.leaves(tensors, placements), lambda t: ranks.put(t, WHOLE)),
    ):
        value = call(*leaves)
        cotangent = put(randn(*value.shape, seed=3))
        first = torch.autograd.grad((value * cotangent).sum(), leaves, create_graph=second)
        squares = sum((g**2).sum() for g in first)
        rest = torch.autograd.grad(squares, leaves, materialize_grads=True) if second else ()
        found.append((value, first, rest))
    (value, first, rest), (own, own_first, own_rest) = found
    close(own, value.detach(), BOUND)
    for mine, one in zip([*own_first, *own_rest], [*first, *rest], strict=True):
        close(mine, one.detach(), 100 * BOUND)
    return own


def check_products_and_matrices(ranks):
    x, z = points()
    v = randn(5, 2, seed=4)
    product = lambda x, z, v, h: mc.kernel_product(GAUSS, x, z, v, h=h)  # noqa: E731
    own = derivatives(ranks, product, (x, z, v, H), (ROWS, WHOLE, WHOLE, WHOLE))
    assert own.placements == (ROWS,)
    same(own, mc.kernel_product(GAUSS, x, z, v, h=H))
    own = derivatives(ranks, product, (x, z, v, H), (WHOLE, ROWS, ROWS, WHOLE))
    assert own.placements == (Partial(),)
    for placements in (
        (ROWS, ROWS, ROWS, WHOLE), (WHOLE, WHOLE, Shard(1), WHOLE), (WHOLE,) * 4,
        (Shard(1), WHOLE, ROWS, WHOLE),
    ):  # fmt: skip
        derivatives(ranks, product, (x, z, v, H), placements)
    matrix = lambda x, z, h: mc.pairwise(GAUSS, x, z, h=h)  # noqa: E731
    for placements, result in (
        ((ROWS, WHOLE, WHOLE), ROWS), ((WHOLE, ROWS, WHOLE), Shard(1)), ((ROWS, ROWS, WHOLE), ROWS),
    ):  # fmt: skip
        own = derivatives(ranks, matrix, (x, z, H), placements)
        assert own.placements == (result,)
        same(own, mc.pairwise(GAUSS, x, z, h=H))
    derivatives(ranks, lambda x: mc.kernel_matrix("gauss", x, bandwidth=1.1), (x,), (ROWS,))


def check_float32(ranks):
    x, z = points(33, 29, 8, torch.float32)
    v = randn(29, 3, seed=4, dtype=torch.float32)
    expected = mc.kernel_product("gauss", x, z, v)
    same(
        mc.kernel_product("gauss", ranks.put(x), ranks.put(z, WHOLE), ranks.put(v, WHOLE)), expected
    )
    own = mc.kernel_product("gauss", ranks.put(x, WHOLE), ranks.put(z), ranks.put(v))
    magnitude = mc.kernel_product("gauss", x, z, v.abs()).max().item()
    close(own, expected, 29 * torch.finfo(torch.float32).eps * magnitude)
