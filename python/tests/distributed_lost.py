"""A rank that fails, is late, and dies: test_distributed.py starts it with "cpu" or "cuda", a rank,
how many there are, and a port for each group.

The last rank takes no part in a call of the first group, is late for one of the second, and dies in
the middle of a call; the rest raise, make a new group in the same processes and go on.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time

import mercer as mc
import mercer.distributed
import torch
import torch.distributed as dist
from mercer._torch import agreement
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor, init_device_mesh

TIMEOUT, LATE, SHORT = 60, 20, 3
X = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
EXPECTED = mc.kernel_product("gauss", X, X, X)
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


def points(mesh: DeviceMesh):
    return distribute_tensor(X.to(mesh.device_type), mesh, [Shard(0)])


def start(device: str, rank: int, ranks: int, port: str, timeout: int = TIMEOUT) -> None:
    dist.init_process_group(
        BACKENDS[device], init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks,
        timeout=datetime.timedelta(seconds=timeout),
    )  # fmt: skip


def check(x) -> None:
    found = mercer.distributed.ring_product("gauss", x, x, x).full_tensor()
    torch.testing.assert_close(found.cpu(), EXPECTED)


def die_after_the_check() -> None:
    """The call of this rank ends where all ranks have agreed to make it."""
    agree = agreement.require

    def agree_and_die(*args, **options) -> None:
        agree(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    agreement.require = agree_and_die


def require_error(rank: int, seconds: int, call) -> None:
    began = time.monotonic()
    try:
        call()
    except mc.DeviceError as error:
        print(f"rank {rank}: {error}")
    else:
        sys.exit("a rank is missing, and nobody noticed")
    assert time.monotonic() - began < 2 * seconds + 5
    dist.destroy_process_group()


def main(device: str, rank: int, ranks: int, *ports: str) -> None:
    is_last = rank == ranks - 1
    if device == "cuda":
        torch.cuda.set_device(rank)
    start(device, rank, ranks, ports[0])
    dist.barrier()
    short = dist.new_group(timeout=datetime.timedelta(seconds=SHORT))
    x = points(DeviceMesh.from_group(short, device))
    dist.barrier()
    if is_last:
        time.sleep(SHORT + 1)
        dist.destroy_process_group()
    else:
        require_error(rank, SHORT, lambda: mc.kernel_product("gauss", x, x, x))

    start(device, rank, ranks, ports[1], LATE)
    x = points(init_device_mesh(device, (ranks,)))
    if is_last:
        time.sleep(1)
    check(x)
    dist.barrier()
    if is_last:
        die_after_the_check()
    require_error(rank, LATE, lambda: mercer.distributed.ring_product("gauss", x, x, x))

    start(device, rank, ranks - 1, ports[2])
    check(points(init_device_mesh(device, (ranks - 1,))))
    dist.destroy_process_group()
    print(f"rank {rank}: went on")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
