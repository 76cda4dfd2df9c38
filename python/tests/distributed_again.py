"""Process groups that are closed and made again, with many calls in each: nothing is kept."""

from __future__ import annotations

import gc
import os
import pathlib
import tempfile

import mercer as mc
import mercer.distributed
import torch
import torch.distributed as dist
from distributed_worker import ROWS, WHOLE, Ranks, close, randn

GROUPS, CALLS = 5, {"cpu": 20, "cuda": 200}
SPARE = 32 << 20  # bytes that a driver may keep for a group


def held(device: torch.device) -> tuple[int, int]:
    """What this process has open: files, and bytes of the GPU, those of a cache left out."""
    files = len(list(pathlib.Path("/proc/self/fd").iterdir()))
    if device.type == "cpu":
        return files, 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, whole = torch.cuda.mem_get_info()
    return files, whole - free


def check_groups(ranks: Ranks) -> None:
    backend, run = dist.get_backend(), os.environ["TORCHELASTIC_RUN_ID"]
    x, v = (randn(301, k, seed=k).to(ranks.device) for k in (5, 2))
    expected = mc.kernel_product("gauss", x, x, v)
    gradient = torch.autograd.functional.vjp(
        lambda p: mc.kernel_product("gauss", p, p, v), x, expected
    )[1]
    before = held(ranks.device)
    for number in range(GROUPS):
        dist.destroy_process_group()
        store = pathlib.Path(tempfile.gettempdir()) / f"mercer-{run}-{number}"
        dist.init_process_group(
            backend, init_method=store.as_uri(), rank=ranks.rank, world_size=ranks.size
        )
        again = Ranks()
        for _ in range(CALLS[ranks.device.type]):
            points = again.put(x).requires_grad_()
            found = mc.kernel_product("gauss", points, points, again.put(v, WHOLE))
            found.backward(again.put(expected, ROWS))
        close(found.detach(), expected, 1e-11)
        close(points.grad, gradient, 1e-9)
        dist.barrier()
        del found, points, again
        gc.collect()
        now = held(ranks.device)
        if number < 2:  # PyTorch's caches keep what they were first called with
            before = now
        assert now[0] <= before[0] + 2, (number, before, now)
        assert now[1] <= before[1] + SPARE, (number, before, now)
