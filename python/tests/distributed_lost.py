"""A rank that fails, is late, and dies: test_distributed.py starts it with a rank, how many there
are, and a port for each group.

The last rank takes no part in a call of the first group, is late for one of the second, and dies;
the rest raise, make a new group in the same processes and go on.
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
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor, init_device_mesh

TIMEOUT, SHORT = 60, 3
X = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
EXPECTED = mc.kernel_product("gauss", X, X, X)


def points(mesh: DeviceMesh):
    return distribute_tensor(X, mesh, [Shard(0)])


def start(rank: int, ranks: int, port: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks,
        timeout=datetime.timedelta(seconds=TIMEOUT),
    )  # fmt: skip


def check(x) -> None:
    found = mercer.distributed.ring_product("gauss", x, x, x).full_tensor()
    torch.testing.assert_close(found, EXPECTED)


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


def main(rank: int, ranks: int, *ports: str) -> None:
    is_last = rank == ranks - 1
    start(rank, ranks, ports[0])
    dist.barrier()
    short = dist.new_group(timeout=datetime.timedelta(seconds=SHORT))
    x = points(DeviceMesh.from_group(short, "cpu"))
    dist.barrier()
    if is_last:
        time.sleep(SHORT + 1)
        dist.destroy_process_group()
    else:
        require_error(rank, SHORT, lambda: mc.kernel_product("gauss", x, x, x))

    start(rank, ranks, ports[1])
    x = points(init_device_mesh("cpu", (ranks,)))
    if is_last:
        time.sleep(1)
    check(x)
    dist.barrier()
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)
    require_error(rank, TIMEOUT, lambda: mc.linalg.KernelOperator("gauss", x, ridge=1.0))

    start(rank, ranks - 1, ports[2])
    check(points(init_device_mesh("cpu", (ranks - 1,))))
    dist.destroy_process_group()
    print(f"rank {rank}: went on")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
