"""DTensors on two gloo ranks of one core each, beside one rank.

    python -m torch.distributed.run --nproc-per-node 2 bench/bench_distributed.py [--part 4]

``--part``: sizes divided by it. Each line is the best of three, of one rank alone and of all.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Callable

import mercer as mc
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh


def best(call: Callable[[], object], rounds: int = 3) -> float:
    times = []
    for _ in range(rounds + 1):
        dist.barrier()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times[1:]) * 1e3


def cases(part: int) -> dict[str, tuple[Callable, list, list]]:
    """A call, its tensors, and the axis along which each is split."""
    draw = torch.Generator().manual_seed(0)
    n = 40000 // part
    x, z, v = (torch.randn(n, k, generator=draw) for k in (64, 64, 1))
    few, targets = torch.randn(n // 2, 8, generator=draw), torch.randn(n // 2, 1, generator=draw)
    factors = [torch.randn(32, 32, generator=draw) for _ in range(4)]
    row = torch.randn(1, 32**4, generator=draw)

    def ridge(points, y):
        operator = mc.linalg.KernelOperator("gauss", points, ridge=10.0, bandwidth=2.0)
        return mc.linalg.cg(operator, y, max_iter=20, check=False)

    tiny = torch.randn(8, 3, generator=draw)
    return {
        f"Gauss product {n} x {n} x 64": (
            lambda *t: mc.kernel_product("gauss", *t, bandwidth=8.0), [x, z, v], [0, None, None],
        ),
        f"knn of {n // 2} in {n // 2} x 64, k = 10": (
            lambda *t: mc.knn("l2", *t, 10), [x[: n // 2], z[: n // 2]], [0, None],
        ),
        f"kernel ridge by cg, {n // 2} x 8": (ridge, [few, targets], [0, 0]),
        "kron.matmul 1 x 32^4, by columns": (
            lambda r, *f: mc.kron.matmul(r, list(f)), [row, *factors], [1, *[None] * 4],
        ),
        "a call on 8 points": (lambda a, b: mc.pairwise("gauss", a, b), [tiny, tiny], [0, None]),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", type=int, default=1)
    part = parser.parse_args().part
    torch.set_num_threads(1)
    mc.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    mesh = init_device_mesh("cpu", (ranks,))
    for name, (call, tensors, axes) in cases(part).items():
        alone = best(functools.partial(call, *tensors) if rank == 0 else lambda: None)
        split = [
            distribute_tensor(t, mesh, [Replicate() if axis is None else Shard(axis)])
            for t, axis in zip(tensors, axes, strict=True)
        ]
        shared = best(functools.partial(call, *split))
        if rank == 0:
            print(
                f"{name:42} {alone:10.2f} ms {shared:10.2f} ms {alone / shared:6.2f}x", flush=True
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
