"""DTensors on two gloo ranks of one core each, or on GPUs through NCCL, compared with one rank.

    python -m torch.distributed.run --nproc-per-node 2 bench/bench_distributed.py [--part 4]
        [--device cuda] [--only words]

``--part``: sizes divided by it. Each line is the best of three, of one rank alone and of all. On
GPUs the last lines give the bandwidth of a send from one to the next.
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

_CALLS, _LONG = 10, 0.05  # calls in a row, of calls of less than these seconds


def synchronise() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def best(call: Callable[[], object], rounds: int = 3) -> float:
    """Milliseconds a call. Calls on a GPU follow each other, as in a program that never waits."""
    times, calls = [], _CALLS if torch.cuda.is_initialized() else 1
    for _ in range(rounds + 1):
        dist.barrier()
        synchronise()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        synchronise()
        times.append((time.perf_counter() - began) / calls)
        if times[-1] > _LONG:
            calls = 1
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


def gpu_cases(part: int) -> dict[str, tuple[Callable, list, list]]:
    """Larger sizes, whose arrays every rank draws alike on its own GPU."""

    def draw(*shape: int) -> torch.Tensor:
        generator = torch.Generator("cuda").manual_seed(sum(shape))
        return torch.randn(*shape, generator=generator, device="cuda")

    def ridge(points, y):
        operator = mc.linalg.KernelOperator("gauss", points, ridge=10.0, bandwidth=2.0)
        return mc.linalg.cg(operator, y, max_iter=4, check=False)

    def largest(points):
        operator = mc.linalg.KernelOperator("gauss", points, bandwidth=2.0)
        return mc.linalg.eigh_top(operator, 16)

    def backward(*tensors):
        leaves = [t.detach().requires_grad_() for t in tensors]
        result = mc.kernel_product("gauss", *leaves, bandwidth=8.0)
        return torch.autograd.grad(result, leaves, torch.ones_like(result))

    def product(*tensors):
        return mc.kernel_product("gauss", *tensors, bandwidth=8.0)

    def multiply(row, *factors):
        return mc.kron.matmul(row, list(factors))

    n = 200000 // part
    rows = [0, None, None]
    few = 10**6 // part
    side = 64 if part == 1 else 16
    return {
        f"Gauss product {n} x {n} x 64, 16 columns": (
            product, [draw(n, 64), draw(n, 64), draw(n, 16)], rows,
        ),
        "its backward": (backward, [draw(n, 64), draw(n, 64), draw(n, 16)], rows),
        f"knn of {few} in {2 * few} x 64, k = 10": (
            lambda *t: mc.knn("l2", *t, 10), [draw(few, 64), draw(2 * few, 64)], rows[:2],
        ),
        f"kernel ridge by cg, {few} x 8, 4 steps": (ridge, [draw(few, 8), draw(few, 1)], [0, 0]),
        "kron.matmul 1024 x 32^4, by rows": (
            multiply, [draw(1024, 32**4), *(draw(32, 32) for _ in range(4))], [0, *[None] * 4],
        ),
        f"kron.matmul 64 x {side}^4, by columns": (
            multiply, [draw(64, side**4), *(draw(side, side) for _ in range(4))], [1, *[None] * 4],
        ),
        f"eigh_top of {32768 // part} x 8": (largest, [draw(32768 // part, 8)], [0]),
        f"eigh_top of {262144 // part} x 64": (largest, [draw(262144 // part, 64)], [0]),
    }  # fmt: skip


def print_bandwidth() -> None:
    """A GiB from each rank to the next."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sent, received = torch.empty(2, 2**28, device="cuda").unbind()

    def pass_on() -> None:
        operations = [
            dist.P2POp(dist.isend, sent, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
        ]
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        torch.cuda.synchronize()

    milliseconds = best(pass_on)
    if rank == 0:
        print(f"a GiB to the next rank: {milliseconds:.2f} ms, {1073.7 / milliseconds:.0f} GB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", type=int, default=1, help="divides the sizes")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", nargs="*", default=[""], help="lines with one of these words")
    options = parser.parse_args()
    on_gpus = options.device == "cuda"
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl")
    else:
        torch.set_num_threads(1)
        mc.set_num_threads(1)
        dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if not on_gpus:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    mesh = init_device_mesh(options.device, (ranks,))
    for name, (call, tensors, axes) in (gpu_cases if on_gpus else cases)(options.part).items():
        if not any(word in name for word in options.only):
            continue
        try:
            alone = best(functools.partial(call, *tensors) if rank == 0 else lambda: None)
            split = [
                distribute_tensor(t, mesh, [Replicate() if axis is None else Shard(axis)])
                for t, axis in zip(tensors, axes, strict=True)
            ]
            shared = best(functools.partial(call, *split))
        except (ValueError, RuntimeError) as error:
            print(f"{name:42} rank {rank} failed: {str(error)[:300]}", flush=True)
            continue
        if rank == 0:
            print(
                f"{name:42} {alone:10.2f} ms {shared:10.2f} ms {alone / shared:6.2f}x", flush=True
            )
    if on_gpus:
        print_bandwidth()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
