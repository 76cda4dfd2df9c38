"""Calls on DTensors: each rank computes its shard with the operator of one process.

The inputs are redistributed to what the table of sharding.py asks for, and PyTorch follows the way
to the shards and back, so that gradients of every order are those of local calls with the sums that
the redistributions have. What no placement says is done here: indices i and j start where the shard
does, and reductions that are no sums, and nearest neighbours, are merged from candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from mercer._torch import agreement, autograd, sharding
from mercer._torch.operands import Pairs
from mercer._torch.sharding import Axis, Form

_FIELDS = len(Pairs._fields)

sharding.register()


def require(verb: str, named: Sequence[tuple[str, Any]], facts: Sequence[Any]) -> None:
    """All ranks make this call. Where torch.compile traces one process's, nothing is asked."""
    if not torch.compiler.is_compiling():
        agreement.require(verb, named, facts)


def verb(name: str, operation: Any, pairs: Pairs, arrays: dict, settings: dict) -> Any:
    """A verb on DTensors. torch.compile traces one process's calls: nothing is compared there."""
    if torch.compiler.is_compiling():
        return operation(pairs, arrays, settings)
    given = [("x", pairs.x), ("z", pairs.z), *arrays.items()]
    names = pairs.names.split()
    tensors = zip(names, pairs.params, strict=False)
    given += [(f"parameter {name}", parameter) for name, parameter in tensors]
    numbers = dict(zip(names[len(pairs.params) :], pairs.numbers, strict=True))
    chosen = {key: value for key, value in settings.items() if value is not None}
    agreement.require(name, given, [pairs.f, numbers, chosen])
    with agreement.answered(name):
        return operation(pairs, arrays, settings)


def call(name: str, inputs: Sequence[Any]) -> Any:
    if name == "kron" and not torch.compiler.is_compiling():
        found = _by_columns(*inputs)
        if found is not None:
            return found
    inputs = _with_columns(inputs) if name in sharding.OF_PAIRS else tuple(inputs)
    form = sharding.form_of(name, inputs, in_shards=True)
    if name in sharding.OF_PAIRS:
        form.require_extents(name)
    mesh = next(o.tensor.device_mesh for o in form.operands if isinstance(o.tensor, DTensor))
    whole = [Replicate()] * mesh.ndim
    placements = [getattr(o.tensor, "placements", whole) for o in form.operands]
    axes = [form.chosen(placements, d) for d in range(mesh.ndim)]
    merges = "n" in axes and name in ("knn", "reduce") and inputs[_FIELDS] != "sum"
    if merges and not _all_have_points(form.extent("n"), axes, mesh):
        axes, merges = [None if axis == "n" else axis for axis in axes], False
    parts = [_part(form, operand, axes, mesh) for operand in form.operands]
    local = _placed(inputs, form, parts)
    if name in sharding.OF_PAIRS:
        local = _with_offsets(local, form, axes, mesh)
    if merges:
        return _merged(name, form, local, axes, mesh)
    result = _run(name, local)
    if isinstance(result, Tensor):
        return _whole(result, form, form.results[0], axes, mesh)
    parts = [_whole(r, form, w, axes, mesh) for r, w in zip(result, form.results, strict=True)]
    return parts if isinstance(result, list) else tuple(parts)


def _by_columns(x: Tensor, factors: Sequence[Tensor], left: bool) -> Tensor | None:
    from mercer._torch import kron, sharded_kron

    x = x.mT if left else x
    if not sharded_kron.serves(x, factors):
        return None
    found = sharded_kron.by_columns(x, [f.mT for f in factors] if left else factors, kron.product)
    return found.mT if left else found


def _run(name: str, inputs: Sequence[Any]) -> Any:
    return autograd.call(name, *inputs)


def _with_columns(inputs: Sequence[Any]) -> tuple:
    """Points that are rows and columns, as two operands: each has a placement of its own."""
    f, x, z, *rest = inputs
    return (f, x, x if z is None and isinstance(x, DTensor) else z, *rest)


def _part(form: Form, operand: sharding.Operand, axes: Sequence[Axis], mesh: Any) -> Tensor:
    """This rank's. The gradient of what is whole is the sum over ranks that have other shards."""
    tensor = operand.tensor
    if not isinstance(tensor, DTensor):
        if not tensor.requires_grad:
            return tensor
        tensor = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    placements = [form.placement(operand, axis) for axis in axes]
    gradients = [
        Partial() if axis is not None and placed.is_replicate() else placed
        for axis, placed in zip(axes, placements, strict=True)
    ]
    if tuple(placements) != tensor.placements:
        tensor = tensor.redistribute(mesh, placements)
    return tensor.to_local(grad_placements=gradients)


def _placed(inputs: Sequence[Any], form: Form, parts: Sequence[Tensor]) -> list[Any]:
    """The inputs with these in the places of the operands."""
    by_slot = {o.slot: part for o, part in zip(form.operands, parts, strict=True)}
    place = 0
    found: list[Any] = []
    for value in inputs:
        values = value if isinstance(value, (list, tuple)) else [value]
        own = [by_slot.get(place + i, v) for i, v in enumerate(values)]
        place += len(values)
        found.append(own if isinstance(value, (list, tuple)) else own[0])
    return found


def first_of(extent: int, axis: str, axes: Sequence[Axis], mesh: Any) -> tuple[int, int]:
    """Where the rows of this rank's shard start, and how many it has."""
    start, size = 0, extent
    for dimension, own in enumerate(axes):
        if own == axis:
            each = -(-size // mesh.size(dimension))
            begin = min(each * mesh.get_local_rank(dimension), size)
            start, size = start + begin, min(each, size - begin)
    return start, size


def _with_offsets(inputs: list[Any], form: Form, axes: Sequence[Axis], mesh: Any) -> list[Any]:
    pairs, read = Pairs(*inputs[:_FIELDS]), sharding.read(inputs[0])
    i, j = pairs.i_offset, pairs.j_offset
    if "i" in read and "m" in axes:
        i += first_of(form.extent("m"), "m", axes, mesh)[0]
    if "j" in read and "n" in axes:
        j += first_of(form.extent("n"), "n", axes, mesh)[0]
    return [*pairs._replace(i_offset=i, j_offset=j), *inputs[_FIELDS:]]


def _whole(local: Tensor, form: Form, word: str, axes: Sequence[Axis], mesh: Any) -> DTensor:
    placements = [form.of_result(word, axis) for axis in axes]
    shape = sharding.global_shape(form, word, local.shape)
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape),
        stride=sharding.strides(shape),
    )  # fmt: skip


# ---- Reductions over points that are split, from candidates of each rank. -----------------------


def _merged(name: str, form: Form, local: list[Any], axes: Sequence[Axis], mesh: Any) -> Any:
    if name == "reduce" and local[_FIELDS] == "logsumexp":
        gathered = _gathered(_run(name, local).unsqueeze(-1), form, axes, mesh)
        return _of_rows(torch.logsumexp(gathered, -1), form, axes, mesh)
    values, index = _candidates(name, form, local, axes, mesh)
    values = _gathered(values, form, axes, mesh)
    index = _gathered(index, form, axes, mesh)
    kind = local[_FIELDS]
    chosen = _nearest(values, index, kind) if name == "knn" else _extremum(values, kind)
    values, index = values.gather(-1, chosen), index.gather(-1, chosen)
    if name == "knn":
        return tuple(_of_rows(t, form, axes, mesh) for t in (values, index))
    found = index if kind.startswith("arg") else values
    return _of_rows(found.squeeze(-1), form, axes, mesh)


def _candidates(
    name: str, form: Form, local: list[Any], axes: Sequence[Axis], mesh: Any
) -> tuple[Tensor, Tensor]:
    """Values and global indices [..., M, q] of this rank, q the same on all; without a point -1."""
    total = form.extent("n")
    first, own = first_of(total, "n", axes, mesh)
    kind = local[_FIELDS]
    if name == "knn" and not 0 < kind <= total:
        raise ValueError(
            f"knn: k must be from 1 to the number of points of z, {total}. Received {kind}"
        )
    if name == "knn":
        shards = [size for d, size in enumerate(mesh.shape) if axes[d] == "n"]
        width = min(kind, _largest(total, shards))
        values, index = _run("knn", [*local[:_FIELDS], min(kind, own)])
    else:
        width, extremum = 1, kind.removeprefix("arg")
        with torch.no_grad():
            index = _run("reduce", [*local[:_FIELDS], "arg" + extremum]).unsqueeze(-1)
        values = _run("reduce", [*local[:_FIELDS], extremum]).unsqueeze(-1)
    index = index + first
    missing = width - index.shape[-1]
    if missing > 0:
        values = torch.nn.functional.pad(values, (0, missing), value=torch.inf)
        index = torch.nn.functional.pad(index, (0, missing), value=-1)
    return values, index


def _largest(total: int, shards: Sequence[int]) -> int:
    for ranks in shards:
        total = -(-total // ranks)
    return total


def _all_have_points(total: int, axes: Sequence[Axis], mesh: Any) -> bool:
    """So few points are gathered: without one a rank had no candidate, and nothing to record."""
    sizes = {total}
    for dimension, axis in enumerate(axes):
        if axis == "n":
            parts = [sharding.ranges(size, mesh.size(dimension)) for size in sizes]
            sizes = {last - first for part in parts for first, last in part}
    return 0 not in sizes


def _gathered(candidates: Tensor, form: Form, axes: Sequence[Axis], mesh: Any) -> Tensor:
    """The candidates of all ranks that share rows, along the last axis, in the points' order."""
    last = candidates.ndim - 1
    placements = [Shard(last) if axis == "n" else form.of_result("mq", axis) for axis in axes]
    ranks = 1
    for dimension, axis in enumerate(axes):
        ranks *= mesh.size(dimension) if axis == "n" else 1
    shape = (*form.batch, form.extent("m"), candidates.shape[-1] * ranks)
    whole = DTensor.from_local(
        candidates, mesh, placements, run_check=False, shape=torch.Size(shape),
        stride=sharding.strides(shape),
    )  # fmt: skip
    own = [Replicate() if axis == "n" else p for axis, p in zip(axes, placements, strict=True)]
    return whole.redistribute(mesh, own).to_local(grad_placements=own)


def _of_rows(local: Tensor, form: Form, axes: Sequence[Axis], mesh: Any) -> DTensor:
    own = [None if axis == "n" else axis for axis in axes]
    word = "mq" if local.ndim > len(form.batch) + 1 else "m"
    return _whole(local, form, word, own, mesh)


def _nearest(values: Tensor, index: Tensor, k: int) -> Tensor:
    """Places of the k smallest: ties by index, NaN after all numbers, what is no point last."""
    order = torch.sort(values.detach(), dim=-1, stable=True).indices
    absent = index.gather(-1, order) < 0
    return order.gather(-1, torch.sort(absent.byte(), dim=-1, stable=True).indices)[..., :k]


def _extremum(values: Tensor, kind: str) -> Tensor:
    find = torch.argmax if kind.endswith("max") else torch.argmin
    return find(values.detach(), dim=-1, keepdim=True)
