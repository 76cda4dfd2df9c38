"""The verbs on pairs of DTensors: rules, their derivatives, and what no rule says."""

from __future__ import annotations

import mercer as mc
import mercer.distributed
import torch
from distributed_worker import ROWS, WHOLE, close, derivatives, randn, same
from torch.distributed.tensor import Partial, Shard, init_device_mesh

GAUSS = "exp(-sum((x-z)^2)/h)"
INDEXED = "exp(-sum((x-z)^2)) * (1 + i + j/2) + (i == j)"
H = torch.tensor(1.7, dtype=torch.float64)


def points(m=7, n=5, k=3, dtype=torch.float64):
    return randn(m, k, seed=1, dtype=dtype), randn(n, k, seed=2, dtype=dtype)


def check_products(ranks):
    x, z = points()
    v = randn(5, 2, seed=4)

    def call(x, z, v, h):
        return mc.kernel_product(GAUSS, x, z, v, h=h)

    own = derivatives(ranks, call, (x, z, v, H), (ROWS, WHOLE, WHOLE, WHOLE))
    assert own.placements == (ROWS,)
    same(own, call(x, z, v, H))
    own = derivatives(ranks, call, (x, z, v, H), (WHOLE, ROWS, ROWS, WHOLE))
    assert own.placements == (Partial(),)
    for placements in (
        (ROWS, ROWS, ROWS, WHOLE), (WHOLE, WHOLE, Shard(1), WHOLE), (WHOLE,) * 4,
        (Shard(1), WHOLE, ROWS, WHOLE),
    ):  # fmt: skip
        derivatives(ranks, call, (x, z, v, H), placements)


def check_normalized_products(ranks):
    x, z = points()
    v = randn(5, 2, seed=4)

    def call(x, z, v):
        return mc.kernel_product("sum(x*z)", x, z, v, normalize="softmax")

    for placements in ((ROWS, ROWS, ROWS), (WHOLE, ROWS, ROWS), (ROWS, WHOLE, Shard(1))):
        derivatives(ranks, call, (x, z, v), placements, second=False)


def check_vectors_and_plain_parameters(ranks):
    x, z = points()
    v = randn(5, seed=4)
    h = H.clone().requires_grad_()
    for zs in (WHOLE, ROWS):
        own = mc.kernel_product(GAUSS, ranks.put(x), *(ranks.put(t, zs) for t in (z, v)), h=h)
        value = mc.kernel_product(GAUSS, x, z, v, h=h)
        close(own.detach(), value.detach(), 1e-12)
        (found,) = torch.autograd.grad((own**2).sum(), [h])
        close(found, torch.autograd.grad((value**2).sum(), [h])[0], 1e-12)
        w = randn(3, seed=5).abs()
        close(
            mc.cdist(ranks.put(x), ranks.put(z, zs), metric="seuclidean", V=w),
            mc.cdist(x, z, metric="seuclidean", V=w), 1e-12,
        )  # fmt: skip
        close(
            mc.kernel_gradient("gauss", ranks.put(x), *(ranks.put(t, zs) for t in (z, v))),
            mc.kernel_gradient("gauss", x, z, v), 1e-12,
        )  # fmt: skip


def check_matrices(ranks):
    x, z = points()

    def call(x, z, h):
        return mc.pairwise(GAUSS, x, z, h=h)

    for placements, result in (
        ((ROWS, WHOLE, WHOLE), ROWS), ((WHOLE, ROWS, WHOLE), Shard(1)), ((ROWS, ROWS, WHOLE), ROWS),
    ):  # fmt: skip
        own = derivatives(ranks, call, (x, z, H), placements)
        assert own.placements == (result,)
        same(own, call(x, z, H))
    derivatives(ranks, lambda x: mc.kernel_matrix("gauss", x, bandwidth=1.1), (x,), (ROWS,))
    derivatives(ranks, lambda x, z: mc.cdist(x, z, p=1.5), (x, z), (ROWS, WHOLE), second=False)


def check_float32(ranks):
    x, z = points(33, 29, 8, torch.float32)
    v = randn(29, 3, seed=4, dtype=torch.float32)
    expected = mc.kernel_product("gauss", x, z, v)
    whole = [ranks.put(t, WHOLE) for t in (z, v)]
    same(mc.kernel_product("gauss", ranks.put(x), *whole), expected)
    own = mc.kernel_product("gauss", ranks.put(x, WHOLE), ranks.put(z), ranks.put(v))
    magnitude = mc.kernel_product("gauss", x, z, v.abs()).max().item()
    close(own, expected, 29 * torch.finfo(torch.float32).eps * magnitude)


def check_more_ranks_than_rows(ranks):
    for m, n in ((1, 3), (3, 1), (2, 2)):
        x, z = points(m, n)
        v = randn(n, 2, seed=4)
        for placements in ((ROWS, WHOLE, WHOLE), (WHOLE, ROWS, ROWS)):
            derivatives(
                ranks, lambda x, z, v: mc.kernel_product("gauss", x, z, v), (x, z, v), placements
            )


def check_reductions(ranks):
    for m, n in ((7, 5), (3, 2)):
        x, z = points(m, n)
        for kind in ("sum", "max", "min", "logsumexp", "argmax", "argmin"):

            def call(x, z, kind=kind):
                return mc.kernel_reduce("sqeuclidean", x, z, kind)

            for placements in ((ROWS, WHOLE), (WHOLE, ROWS), (ROWS, ROWS)):
                if kind.startswith("arg"):
                    put = [ranks.put(t, p) for t, p in zip((x, z), placements, strict=True)]
                    same(call(*put), call(x, z))
                else:
                    derivatives(ranks, call, (x, z), placements)


def check_nan_and_ties(ranks):
    x, z = points(4, 9)
    z[5], z[7, 1], z[2] = z[8], torch.nan, z[0]
    x[1] = z[0]
    for kind in ("max", "min", "argmax", "argmin", "logsumexp"):
        for some in (z, z[[0, 1, 2, 3, 4, 5, 6, 8]]):
            found = mc.kernel_reduce("l1", ranks.put(x, WHOLE), ranks.put(some), kind)
            expected = mc.kernel_reduce("l1", x, some, kind)
            close(found, expected, 1e-12) if kind == "logsumexp" else same(found, expected)
    for k in (1, 4, 9):
        own = mc.knn("l1", ranks.put(x, WHOLE), ranks.put(z), k)
        for found, expected in zip(own, mc.knn("l1", x, z, k), strict=True):
            same(found, expected)


def check_neighbours(ranks):
    x, z = points()

    def call(x, z):
        return mc.knn("sqeuclidean", x, z, 3)[0]

    for placements in ((ROWS, WHOLE), (WHOLE, ROWS)):
        derivatives(ranks, call, (x, z), placements)


def check_indices(ranks):
    x, z = points()
    for placements in ((ROWS, WHOLE), (WHOLE, ROWS), (ROWS, ROWS)):
        derivatives(ranks, lambda x, z: mc.pairwise(INDEXED, x, z), (x, z), placements)
    v = randn(7, 2, seed=4)
    offsets = {"i_offset": 3, "j_offset": 3}
    derivatives(
        ranks, lambda x, v: mc.kernel_product(INDEXED, x, x, v, **offsets), (x, v), (ROWS, WHOLE)
    )


def check_weights_rows_and_columns(ranks):
    x, z = points()
    v, row, col, w = randn(5, 2, seed=4), randn(7, seed=5), randn(5, seed=6), randn(3, seed=7).abs()
    text = "row*exp(-sum(w*(x-z)^2))*col"

    def call(x, z, v, row, col, w):
        return mc.kernel_product(text, x, z, v, row=row, col=col, w=w)

    for placements in (
        (ROWS, WHOLE, WHOLE, ROWS, WHOLE, WHOLE), (WHOLE, ROWS, ROWS, WHOLE, ROWS, WHOLE),
    ):  # fmt: skip
        derivatives(ranks, call, (x, z, v, row, col, w), placements)


def check_gradients(ranks):
    x, z = points()
    coef, amplitude = randn(4, 5, seed=4), randn(7, 5, seed=5)
    for placements in ((ROWS, WHOLE, WHOLE), (WHOLE, ROWS, Shard(1)), (WHOLE, WHOLE, ROWS)):
        for verb in (mc.kernel_gradient, mc.kernel_agop):
            derivatives(
                ranks, lambda x, z, c, verb=verb: verb("gauss", x, z, c), (x, z, coef), placements,
                second=verb is mc.kernel_gradient,
            )  # fmt: skip
    derivatives(
        ranks, lambda x, z, a, c: mc.gradient_field("(x-z)*abs(x-z)", x, z, a, c),
        (x, z, amplitude, coef), (ROWS, WHOLE, ROWS, WHOLE), second=False,
    )  # fmt: skip


def check_batches(ranks):
    x, z, v = randn(3, 7, 2, seed=1), randn(5, 2, seed=2), randn(2, 1, 5, 2, seed=3)
    h = 1 + randn(3, seed=4).abs()

    def call(x, z, v, h):
        return mc.kernel_product(GAUSS, x, z, v, h=h)

    for placements in (
        (ROWS, WHOLE, WHOLE, ROWS), (WHOLE, WHOLE, ROWS, WHOLE), (Shard(1), WHOLE, WHOLE, WHOLE),
        (WHOLE, ROWS, Shard(2), WHOLE), (WHOLE, WHOLE, WHOLE, ROWS),
    ):  # fmt: skip
        derivatives(ranks, call, (x, z, v, h), placements, second=False)


def check_mesh_of_two_dimensions(ranks):
    shape = (2, ranks.size // 2) if ranks.size > 1 else (1, 1)
    mesh = init_device_mesh("cpu", shape)
    x, z = points()
    v = randn(5, 2, seed=4)
    expected = mc.kernel_product(INDEXED, x, z, v)
    for xs, zs in (
        ([ROWS, WHOLE], [WHOLE, ROWS]), ([ROWS, ROWS], [WHOLE, WHOLE]), ([WHOLE] * 2, [ROWS] * 2),
    ):  # fmt: skip
        own = [ranks.put(t, p, mesh) for t, p in ((x, xs), (z, zs), (v, zs))]
        close(mc.kernel_product(INDEXED, *own), expected, 1e-12)
        values, index = mc.knn("l1", own[0], own[1], 3)
        same(values, mc.knn("l1", x, z, 3)[0])
        same(index, mc.knn("l1", x, z, 3)[1])


def check_registered_operators(ranks):
    """torch.ops.mercer through PyTorch's dispatcher, with the rules alone."""
    x, z = points()
    v, weights = randn(5, 2, seed=4), randn(7, 5, seed=5)
    product, ops = randn(7, 2, seed=6), torch.ops.mercer

    def pairs(x, z, h, f=GAUSS):
        return (f, x, z, None, None, None, [h], "h", [], [], "", 0, 0)

    calls = {
        "pairwise": lambda p, *_: ops.pairwise(*p),
        "product": lambda p, v, *_: ops.product(*p, v),
        "field": lambda p, v, *_: ops.field(*p, "z", None, None, v),
        "agop": lambda p, v, *_: ops.agop(*p, v.mT),
        "reduce": lambda p, *_: [ops.reduce(*p, kind) for kind in ("sum", "max", "argmin")],
        "knn": lambda p, *_: ops.knn(*p, 2),
        "product_backward": lambda p, v, _, u: ops.product_backward(
            *p, u, v, "p:h", True, False
        ),
        "pairwise_backward": lambda p, _, weights, __: [
            *ops.pairwise_backward(*p, weights, "p:h", False),
            *ops.pairwise_backward(*p, weights, "", False),
        ],
        "matmul": lambda p, v, weights, _: ops.matmul(weights, v),
    }  # fmt: skip
    for xs, zs, ws in ((ROWS, WHOLE, ROWS), (WHOLE, ROWS, Shard(1)), (ROWS, ROWS, WHOLE)):
        h = ranks.put(H, WHOLE)
        for f in (GAUSS, GAUSS + "*(1+i+j)"):
            own = pairs(ranks.put(x, xs), ranks.put(z, zs), h, f)
            rest = (ranks.put(v, zs), ranks.put(weights, ws), ranks.put(product, xs))
            for call in calls.values():
                found, expected = call(own, *rest), call(pairs(x, z, H, f), v, weights, product)
                lists = isinstance(found, (list, tuple))
                for mine, one in zip(
                    found if lists else [found], expected if lists else [expected], strict=True
                ):
                    close(mine, one, 1e-12)
    leaves = [ranks.put(t, p).requires_grad_() for t, p in ((x, ROWS), (z, WHOLE), (v, WHOLE))]
    value = ops.product(*pairs(*leaves[:2], ranks.put(H, WHOLE)), leaves[2])
    plain = [t.clone().requires_grad_() for t in (x, z, v)]
    expected = torch.autograd.grad(ops.product(*pairs(*plain[:2], H), plain[2]).sum(), plain)
    for mine, one in zip(torch.autograd.grad(value.sum(), leaves), expected, strict=True):
        close(mine, one, 1e-12)


def check_compile(ranks):
    """What the rules say, and what they do not: neighbours over rows of z, indices, reshapes."""
    x, z = points()
    v, factors = randn(5, 2, seed=4), [randn(3, 2, seed=5), randn(1, 2, seed=6)]

    def call(x, z, v, h, a, b):
        product = mc.kernel_product(GAUSS + "*(1+i+j/2)", x, z, v, h=h).sum()
        nearest = mc.knn("sqeuclidean", x, z, 2)[0].sum()
        return product + nearest + mc.kron.matmul(x, [a, b]).square().sum()

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    plain = [t.clone().requires_grad_() for t in (x, z, v, H, *factors)]
    value = call(*plain)
    expected = torch.autograd.grad(value, plain)
    for own in ((ROWS, WHOLE, WHOLE), (WHOLE, ROWS, ROWS)):
        leaves = ranks.leaves((x, z, v, H, *factors), (*own, *[WHOLE] * 3))
        found = compiled(*leaves)
        close(found, value.detach(), 1e-11)
        for mine, one in zip(torch.autograd.grad(found, leaves), expected, strict=True):
            close(mine, one, 1e-11)


def check_optimiser(ranks):
    """Steps of sharded centres, coefficients and a bandwidth that every rank has."""
    x, z = points()
    v, found = randn(5, 2, seed=4), []
    for put in (lambda t, _: t.clone(), ranks.put):
        parameters = [torch.nn.Parameter(put(t, p)) for t, p in ((z, ROWS), (v, ROWS), (H, WHOLE))]
        centres, coef, h = parameters
        optimiser, points_x = torch.optim.Adam(parameters, lr=0.1), put(x, WHOLE)
        for _ in range(4):
            optimiser.zero_grad()
            loss = (mc.kernel_product(GAUSS, points_x, centres, coef, h=h) ** 2).sum()
            loss.backward()
            optimiser.step()
        found.append(parameters)
    for one, mine in zip(*found, strict=True):
        close(mine.detach(), one.detach(), 1e-10)


def check_ring(ranks):
    for m, n in ((7, 5), (1, 2)):
        x, z = points(m, n)
        v = randn(n, 2, seed=4)
        for f in (GAUSS, GAUSS + "*(1+i+j/2)"):
            plain = [t.clone().requires_grad_() for t in (x, z, v, H)]
            leaves = ranks.leaves((x, z, v, H), (ROWS, ROWS, ROWS, WHOLE))
            value = mc.kernel_product(f, *plain[:3], h=plain[3])
            own = mercer.distributed.ring_product(f, *leaves[:3], h=leaves[3])
            assert own.placements == (ROWS,)
            close(own, value.detach(), 1e-12)
            expected = torch.autograd.grad((value**2).sum(), plain)
            for mine, one in zip(
                torch.autograd.grad((own**2).sum(), leaves), expected, strict=True
            ):
                close(mine, one, 1e-11)
