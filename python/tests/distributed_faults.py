"""What is refused, on every rank and before anything is computed."""

from __future__ import annotations

import mercer as mc
import mercer.distributed
import torch
import torch.distributed as dist
from distributed_worker import ROWS, WHOLE, raises, randn, same
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

X, Z, V = randn(7, 3, seed=1), randn(5, 3, seed=2), randn(5, 2, seed=3)


def check_different_calls(ranks):
    if ranks.size == 1:
        return
    x, z, v = (ranks.put(t) for t in (X, Z, V))
    is_first = ranks.rank == 0
    own, words = float(ranks.rank), "all ranks must make the same call"
    raises(ValueError, words, lambda: mc.kernel_product("gauss", x, z, v, bandwidth=1 + own))
    h = torch.tensor(1 + own, dtype=torch.float64)
    raises(ValueError, words, lambda: mc.kernel_product("gauss", x, z, v, bandwidth=h))
    raises(ValueError, words, lambda: mc.kernel_product("gauss" if is_first else "l1", x, z, v))
    raises(ValueError, words, lambda: mc.knn("l1", x, z, 2 if is_first else 3))
    verb = mc.pairwise if is_first else mc.kernel_matrix
    raises(ValueError, words, lambda: verb("l1", x, z))
    raises(ValueError, words, lambda: mc.linalg.KernelOperator("gauss", x, ridge=own))
    a = mc.linalg.KernelOperator("gauss", x, ridge=0.5)
    raises(ValueError, words, lambda: mc.linalg.nystrom(a, 2, seed=ranks.rank))
    raises(ValueError, words, lambda: mercer.distributed.ring_product("l1", x, z, v, a=own))
    factor = ranks.put(randn(3, 2), WHOLE)
    raises(ValueError, words, lambda: mc.kron.matmul(x, [factor], alpha=1 + own))
    # The group serves the next call.
    same(mc.pairwise("l1", x, z), mc.pairwise("l1", X, Z))


def check_refusal_of_one_rank(ranks):
    """Where one rank refuses its arguments, the others hear of it."""
    x, z, v = (ranks.put(t) for t in (X, Z, V))
    is_last = ranks.rank == ranks.size - 1
    shards = DTensor.from_local(
        X[:0] if is_last else x.to_local(), ranks.mesh, [ROWS], run_check=False, shape=X.shape,
        stride=(3, 1),
    )  # fmt: skip
    raises(
        ValueError, "must have the shards that distribute_tensor makes",
        lambda: mc.kernel_product("gauss", shards, z, v),
    )  # fmt: skip
    a = mc.linalg.KernelOperator("gauss", x, ridge=0.5)
    raises(ValueError, "rank must be positive", lambda: mc.linalg.nystrom(a, 0 if is_last else 2))
    other = ranks.put(Z, WHOLE) if ranks.size > 1 else ranks.put(Z, Shard(1))
    raises(
        ValueError, "write z.redistribute(placements=[Shard(0)])",
        lambda: mercer.distributed.ring_product("l1", x, other if is_last else z, v),
    )  # fmt: skip
    same(mc.pairwise("l1", x, z), mc.pairwise("l1", X, Z))


def check_plain_tensors_and_placements(ranks):
    x, z = ranks.put(X), ranks.put(Z)
    raises(ValueError, "write distribute_tensor(z, mesh", lambda: mc.pairwise("l1", x, Z))
    raises(
        ValueError, "write distribute_tensor(v, mesh, [Shard(0)])",
        lambda: mercer.distributed.ring_product("l1", x, z, V),
    )  # fmt: skip
    raises(
        ValueError, "write x.redistribute(placements=[Shard(0)])",
        lambda: mc.linalg.KernelOperator("l1", ranks.put(X, Shard(1))),
    )  # fmt: skip
    for name in ("weights", "w", "row", "col"):
        raises(
            NotImplementedError, f"KernelOperator: {name} is not offered for points of DTensors",
            lambda name=name: mc.linalg.KernelOperator("gauss", x, **{name: X[:, 0]}),
        )  # fmt: skip
    raises(
        NotImplementedError, "ridge must be a number for points of DTensors",
        lambda: mc.linalg.KernelOperator("gauss", x, ridge=X[:, 0]),
    )  # fmt: skip
    a = mc.linalg.KernelOperator("gauss", x, ridge=0.5)
    raises(ValueError, "write distribute_tensor(b, mesh", lambda: mc.linalg.cg(a, X))
    raises(ValueError, "must have the shape [n, k]", lambda: mc.linalg.cg(a, ranks.put(Z)))
    raises(mc.DtypeError, "must have the dtype", lambda: mc.linalg.cg(a, ranks.put(X.float())))
    raises(ValueError, "k must be from 1 to", lambda: mc.linalg.eigh_top(a, 8))
    raises(ValueError, "k must be from 1 to", lambda: mc.knn("l1", ranks.put(X, WHOLE), z, 6))
    raises(NotImplementedError, "out is not offered", lambda: mc.pairwise("l1", x, z, out=X))


def check_shapes(ranks):
    """Shards of one row would agree where the whole does not."""
    x, z = ranks.put(X), ranks.put(Z, WHOLE)
    raises(ValueError, "points of z", lambda: mc.kernel_product("l1", x, z, ranks.put(X)))
    short = ranks.put(V[:1], WHOLE)
    raises(ValueError, "points of z", lambda: mc.kernel_product("l1", x, ranks.put(Z[:2]), short))
    raises(ValueError, "rows of x", lambda: mc.pairwise("row*sum(x*z)",
           x, z, row=ranks.put(X[0])))  # fmt: skip
    raises(ValueError, "features", lambda: mc.pairwise("l1", x, ranks.put(V, WHOLE)))
    one, two = ranks.put(randn(2, 7, 3), Shard(1)), ranks.put(randn(3, 5, 3), WHOLE)
    raises(ValueError, "leading axes must broadcast", lambda: mc.pairwise("l1", one, two))


def check_meshes(ranks):
    if ranks.size < 4:
        return
    # Every rank makes both meshes; each takes part in one.
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    assert len(halves) == 2
    part = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))["b"]
    x, z = (ranks.put(t, ROWS, part) for t in (X, Z))
    same(mc.pairwise("l1", x, z), mc.pairwise("l1", X, Z))
    other = ranks.put(Z)
    raises(ValueError, "must be on the mesh of x", lambda: mc.pairwise("l1", x, other))
    small = dist.device_mesh.DeviceMesh("cpu", [0, 1])
    raises(
        ValueError, "the device mesh must span the process group of 4 ranks. Received 2",
        lambda: mc.pairwise("l1", DTensor.from_local(X, small, [WHOLE]),
                            DTensor.from_local(Z, small, [WHOLE])),
    )  # fmt: skip
