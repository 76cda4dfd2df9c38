"""DTensors on GPUs, through NCCL, against the calls of one GPU."""

from __future__ import annotations

import math

import mercer as mc
import mercer.distributed
import pytest
import torch
from distributed_worker import ROWS, WHOLE, close, raises, randn, same
from torch.distributed.tensor import Shard


def points(ranks, *shapes, dtype=torch.float64):
    return [randn(*s, seed=i, dtype=dtype).to(ranks.device) for i, s in enumerate(shapes)]


def check_pairs(ranks):
    x, z, v = points(ranks, (701, 8), (503, 8), (503, 3))
    for placements in ((ROWS, WHOLE, WHOLE), (WHOLE, ROWS, ROWS), (ROWS, ROWS, ROWS)):
        leaves = [t.clone().requires_grad_() for t in (x, z, v)]
        split = ranks.leaves((x, z, v), placements)
        value, own = mc.kernel_product("gauss", *leaves), mc.kernel_product("gauss", *split)
        close(own, value.detach(), 1e-11)
        expected = torch.autograd.grad((value**2).sum(), leaves)
        for mine, one in zip(torch.autograd.grad((own**2).sum(), split), expected, strict=True):
            close(mine, one, 1e-10)
        for mine, one in zip(
            mc.knn("l1", *[t.detach() for t in split[:2]], 5), mc.knn("l1", x, z, 5), strict=True
        ):
            same(mine, one)
    ring = mercer.distributed.ring_product("gauss", *[ranks.put(t) for t in (x, z, v)])
    close(ring, mc.kernel_product("gauss", x, z, v), 1e-11)
    text = "all ranks must make the same call"
    if ranks.size > 1:
        raises(ValueError, text, lambda: mc.pairwise("gauss", *split[:2], bandwidth=1 + ranks.rank))


def check_algebra(ranks):
    x, b = points(ranks, (901, 3), (901, 4))
    dense = mc.pairwise("gauss", x) + 0.5 * torch.eye(901, device=x.device).double()
    a = mc.linalg.KernelOperator("gauss", ranks.put(x), ridge=0.5)
    expected = torch.linalg.solve(dense, b)
    for inverse in (None, mc.linalg.nystrom(a, 40), mc.linalg.pivoted_cholesky(a, 40)):
        found = mc.linalg.cg(a, ranks.put(b), preconditioner=inverse)
        close(found, expected, 2e-10 * b.norm(dim=0).max().item())
    close(mc.linalg.eigh_top(a, 3)[0], torch.linalg.eigvalsh(dense)[-3:], 1e-8)
    close(mc.linalg.inv_quad_logdet(a, ranks.put(b))[0], (b * expected).sum(0), 1e-7)


def check_models(ranks):
    pytest.importorskip("sklearn", minversion="1.6")
    from mercer.models import GaussianProcessRegressor, KernelPCA, KernelRidge
    from sklearn.base import clone

    x, new = points(ranks, (901, 3), (61, 3))
    y = torch.sin(x[:, 0])
    gp = {"random_state": 0, "optimizer": None, "tol": 1e-8, "solver": "cg"}
    for estimator, given in (
        (KernelRidge(alpha=0.1, tol=1e-9, solver="cg", random_state=0), (y,)),
        (GaussianProcessRegressor(**gp), (y,)),
        (KernelPCA(3, kernel="rbf", random_state=0), ()),
    ):
        method = "transform" if isinstance(estimator, KernelPCA) else "predict"
        one = getattr(clone(estimator).fit(x, *given), method)(new)
        model = clone(estimator).fit(ranks.put(x), *map(ranks.put, given))
        assert model._space.device == str(ranks.device)
        close(getattr(model, method)(ranks.put(new)), one, 1e-6)


def check_kron(ranks):
    shapes = [(33, 30), (40, 41), (67, 70)]
    x, *factors = points(ranks, (2, math.prod(s[0] for s in shapes)), *shapes)
    for placement in (ROWS, Shard(1)):
        found = mc.kron.matmul(ranks.put(x, placement), [ranks.put(f, WHOLE) for f in factors])
        magnitudes = mc.kron.matmul(x.abs(), [f.abs() for f in factors]).max().item()
        close(found, mc.kron.matmul(x, factors), 140 * 2.3e-16 * magnitudes)
