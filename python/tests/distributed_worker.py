"""What a rank runs: checks of DTensors against one process, each on all ranks of a gloo group.

test_distributed.py starts it, with a backend and names of modules whose functions check_* are the
checks.
"""

from __future__ import annotations

import datetime
import importlib
import os
import sys
import traceback

import mercer as mc
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

ROWS, WHOLE = Shard(0), Replicate()


class Ranks:
    """The mesh of all ranks, and tensors on it."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
        self.device = torch.device(kind, self.rank) if kind == "cuda" else torch.device(kind)
        self.mesh = init_device_mesh(kind, (self.size,))

    def put(self, tensor, placement=ROWS, mesh=None):
        placements = placement if isinstance(placement, (list, tuple)) else [placement]
        return distribute_tensor(tensor, mesh or self.mesh, placements)

    def leaves(self, tensors, placements):
        pairs = zip(tensors, placements, strict=True)
        return [self.put(t, p).requires_grad_(t.is_floating_point()) for t, p in pairs]


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def close(found, expected, bound):
    """Within `bound`, NaN and infinities in the same places."""
    found = found.full_tensor() if hasattr(found, "full_tensor") else found
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert torch.equal(found.isfinite(), expected.isfinite())
    errors = (found - expected)[expected.isfinite()].abs()
    error = errors.max().item() if errors.numel() else 0.0
    assert error <= bound, (error, bound)


def same(found, expected):
    found = found.full_tensor() if hasattr(found, "full_tensor") else found
    assert torch.equal(found.nan_to_num(nan=1e30), expected.nan_to_num(nan=1e30))


def derivatives(ranks, call, tensors, placements, second=True):
    """Value, gradients and gradients of their squares: of DTensors, and of one process. float64
    sums of some ten terms of magnitude ten."""
    bound, found = 1e3 * torch.finfo(torch.float64).eps, []
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
    close(own, value.detach(), bound)
    for mine, one in zip([*own_first, *own_rest], [*first, *rest], strict=True):
        close(mine, one.detach(), bound * max(1, one.abs().max().item()) * 10)
    return own


def raises(kind, words, call):
    with pytest.raises(kind) as caught:
        call()
    assert words in str(caught.value), str(caught.value)


def main() -> int:
    torch.set_num_threads(1)
    mc.set_num_threads(1)
    backend, *modules = sys.argv[1:]
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=60))
    ranks, failed, count = Ranks(), [], 0
    for module in modules:
        for name, check in list(vars(importlib.import_module(module)).items()):
            if not name.startswith("check_"):
                continue
            count += 1
            try:
                check(ranks)
            except (Exception, pytest.fail.Exception):
                failed.append(name)
                print(f"rank {ranks.rank}, {name}:\n{traceback.format_exc()}", flush=True)
    dist.destroy_process_group()
    print(f"rank {ranks.rank}: {count} checks, failed: {failed}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of PyTorch's gloo may end while Python does, and abort
