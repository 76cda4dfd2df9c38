"""Whether all ranks of a mesh make the same call with whole shards, before any of them computes.

What differs would hang, or be a wrong number: two ranks with two formulas, or a shard that is
missing a row. One reduction of three numbers tells all ranks at once; texts follow where it fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from mercer._torch.sharding import ranges
from mercer.errors import DeviceError

# What gloo and NCCL say where PyTorch has no class for it.
_OF_GROUPS = re.compile("gloo|nccl|timeout|timed out|closed by peer|reset by peer", re.IGNORECASE)
# Parameters of at most so many bytes are compared by value, larger ones by shape.
_BYTES = 1 << 12


@contextlib.contextmanager
def answered(verb: str) -> Iterator[None]:
    """Errors of the process group say that a rank did not answer."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not _OF_GROUPS.search(str(error)):
            raise
        raise DeviceError(
            f"{verb}: every rank of the mesh must take part, within the time-out of its process "
            f"group. Received no answer from one: {error}"
        ) from error


def require(
    verb: str, named: Sequence[tuple[str, Any]], facts: Sequence[Any],
    check: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """`named`: the arguments that may be tensors; `facts`: what must be the same on all ranks;
    `check`: raises for arguments that this rank refuses, which then all ranks do."""
    tensors = [(name, t) for name, t in named if isinstance(t, Tensor)]
    mesh = next(t.device_mesh for _, t in tensors if isinstance(t, DTensor))
    require_mesh(verb, mesh)
    texts = [verb, *map(str, facts), *(_described(name, tensor) for name, tensor in tensors)]

    def checks() -> None:
        for name, tensor in tensors:
            _check(verb, name, tensor, mesh)
        if check is not None:
            check()

    compare(verb, mesh, "; ".join(texts), checks)


def require_mesh(verb: str, mesh: Any) -> None:
    root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
    ranks = dist.get_world_size()
    if root.size() != ranks or mesh.get_coordinate() is None:
        raise ValueError(
            f"{verb}: the device mesh must span the process group of {ranks} ranks. "
            f"Received {root.size()} ranks"
        )


def _check(verb: str, name: str, tensor: Tensor, mesh: Any) -> None:
    if not isinstance(tensor, DTensor):
        if name == "w" or name.startswith("parameter"):
            return
        raise ValueError(
            f"{verb}: {name} must be a DTensor on the mesh of x; write distribute_tensor({name}, "
            f"mesh, [Shard(0)]) or [Replicate()]. Received a plain tensor of shape "
            f"{tuple(tensor.shape)}"
        )
    if tensor.device_mesh != mesh:
        raise ValueError(
            f"{verb}: {name} must be on the mesh of x, {mesh}. Received one on {tensor.device_mesh}"
        )
    expected, own = _own_shape(tensor, mesh), tuple(tensor._local_tensor.shape)
    if own != expected:
        raise ValueError(
            f"{verb}: {name} must have the shards that distribute_tensor makes, here "
            f"{expected} of {tuple(tensor.shape)}. Received {own}"
        )


def _own_shape(tensor: DTensor, mesh: Any) -> tuple[int, ...]:
    """The shape of this rank's shard, as DTensor makes it.

    PyTorch's own function lists every index of a split axis, which takes tens of milliseconds for
    rows of 64^4 elements, so it serves strided shards alone.
    """
    shape = list(tensor.shape)
    for dimension, placed in enumerate(tensor.placements):
        if type(placed) is Shard:
            parts = ranges(shape[placed.dim], mesh.size(dimension))
            first, last = parts[mesh.get_local_rank(dimension)]
            shape[placed.dim] = last - first
        elif not (placed.is_replicate() or placed.is_partial()):
            found, _ = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
            return tuple(found)
    return tuple(shape)


def _described(name: str, tensor: Tensor) -> str:
    placements = getattr(tensor, "placements", ())
    text = f"{name} {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} {placements}"
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    is_whole = all(p.is_replicate() for p in placements)
    if (name == "w" or name.startswith("parameter")) and is_whole and local.nbytes <= _BYTES:
        text += f" = {local.detach().cpu().flatten().tolist()}"
    return text


def compare(verb: str, mesh: Any, text: str, check: Callable[[], None]) -> None:
    """Raises on every rank where texts differ or the check of a rank raises."""
    error: Exception | None = None
    try:
        check()
    except (ValueError, TypeError, NotImplementedError) as found:
        error = found
    digest = hashlib.blake2b(text.encode(), digest_size=7).digest()
    number = int.from_bytes(digest, "little")
    sent = torch.tensor([number, -number, error is not None], device=_device(mesh))
    with answered(verb):
        for dimension in range(mesh.ndim):
            dist.all_reduce(sent, dist.ReduceOp.MAX, mesh.get_group(dimension))
        most, least, is_wrong = sent.tolist()
        if most == -least and not is_wrong:
            return
        told = _told(mesh, (dist.get_rank(), text, "" if error is None else str(error)))
    if error is not None:
        raise error
    for rank, _, wrong in told:
        if wrong:
            raise ValueError(f"on rank {rank}: {wrong}")
    first, other = told[0], next(each for each in told if each[1] != told[0][1])
    raise ValueError(
        f"{verb}: all ranks must make the same call. Received on rank {first[0]}: {first[1]}; "
        f"on rank {other[0]}: {other[1]}"
    )


def _device(mesh: Any) -> str:
    """The host where the group serves it, as gloo does next to NCCL: nothing waits for a GPU."""
    try:
        mesh.get_group(0)._get_backend(torch.device("cpu"))
    except RuntimeError:
        return mesh.device_type
    return "cpu"


def _told(mesh: Any, own: tuple[int, str, str]) -> list[tuple[int, str, str]]:
    """What each rank says, on all of them."""
    found = [own]
    for dimension in range(mesh.ndim):
        group = mesh.get_group(dimension)
        parts: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(parts, found, group=group)
        found = [each for part in parts for each in part]
    return found
