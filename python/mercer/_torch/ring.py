"""A product with z and v that stay split: their parts go round the ranks, and none is gathered.

Each rank has the rows of x of its own and, in turn, the parts of z and v of all: while it
multiplies by one, the next is on its way. The backward goes round once more, with the gradients of
a part after it; what a part needs is computed again, so nothing is kept but the parts of the rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from mercer._torch import agreement, autograd
from mercer._torch.operands import Pairs
from mercer._torch.sharding import Range, ranges

_VERB = "distributed.ring_product"


class _Ring:
    """The ranks in a circle; parts of z and v go to the rank before."""

    def __init__(self, mesh: Any, pairs: Pairs, parts: list[Range]) -> None:
        self.group, self.pairs, self.parts = mesh.get_group(0), pairs, parts
        self.ranks, self.rank = mesh.size(0), mesh.get_local_rank(0)
        self.before = dist.get_global_rank(self.group, (self.rank - 1) % self.ranks)
        self.after = dist.get_global_rank(self.group, (self.rank + 1) % self.ranks)

    def part(self, step: int) -> Range:
        return self.parts[(self.rank + step) % self.ranks]

    def pass_on(self, own: Sequence[Tensor], step: int) -> tuple[list[Tensor], list[Any]]:
        """What the next rank has now, as the parts of step + 1 once these works are done."""
        first, last = self.part(step + 1)
        found = [t.new_empty(last - first, t.shape[1]) for t in own]
        moves = [dist.P2POp(dist.isend, t, self.before, self.group) for t in own if t.numel()]
        moves += [dist.P2POp(dist.irecv, t, self.after, self.group) for t in found if t.numel()]
        return found, dist.batch_isend_irecv(moves) if moves else []

    def product(
        self, x: Tensor, z: Tensor, v: Tensor, params: Sequence[Tensor], step: int
    ) -> Tensor:
        offset = self.pairs.j_offset + self.part(step)[0]
        near = self.pairs._replace(x=x, z=z, params=list(params), j_offset=offset)
        return autograd.call("product", *near, v)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ring: _Ring, x: Tensor, z: Tensor, v: Tensor, *params: Tensor) -> Tensor:
        ctx.ring = ring
        ctx.save_for_backward(x, z, v, *params)
        total, part = None, [z.contiguous(), v.contiguous()]
        for step in range(ring.ranks):
            is_last = step + 1 == ring.ranks
            following, works = ([], []) if is_last else ring.pass_on(part, step)
            product = ring.product(x, part[0], part[1], params, step)
            total = product if total is None else total.add_(product)
            for work in works:
                work.wait()
            part = following
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple:
        ring, (x, z, v, *params) = ctx.ring, ctx.saved_tensors
        own: list[Any] = [None] * (1 + len(params))
        part = [z.contiguous(), v.contiguous()]
        sums: list[Tensor] = []
        late: list[Any] = []
        for step in range(ring.ranks):
            is_last = step + 1 == ring.ranks
            following, works = ([], []) if is_last else ring.pass_on(part, step)
            by_x, by_z, by_v, *by_params = _gradients(ring, x, part, params, step, cotangent)
            own = [g if o is None else o + g for o, g in zip(own, [by_x, *by_params], strict=True)]
            for work in (*late, *works):
                work.wait()
            gone = [by_z + sums[0], by_v + sums[1]] if sums else [by_z, by_v]
            # The gradients of a part follow it, and come home after the last step.
            sums, late = ring.pass_on(gone, step) if ring.ranks > 1 else (gone, [])
            kept, part = gone, following
        for work in late:
            work.wait()
        del kept
        return None, own[0], *sums, *own[1:]


def _gradients(
    ring: _Ring, x: Tensor, part: Sequence[Tensor], params: Sequence[Tensor], step: int,
    cotangent: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    given = [t.detach().requires_grad_() for t in (x, *part, *params)]
    with torch.enable_grad():
        value = ring.product(given[0], given[1], given[2], given[3:], step)
    return torch.autograd.grad(value, given, cotangent.contiguous())


def product(pairs: Pairs, v: Any) -> DTensor:
    named = [("x", pairs.x), ("z", pairs.z), ("v", v)]
    names = pairs.names.split()
    tensors = zip(names, pairs.params, strict=False)
    if not any(isinstance(tensor, DTensor) for _, tensor in named):
        _check(named)
    given = [*named, *((f"parameter {name}", parameter) for name, parameter in tensors)]
    agreement.require(_VERB, given, [pairs.f, names, pairs.numbers], lambda: _check(named))
    mesh = pairs.x.device_mesh
    own = [t.to_local() for _, t in named]
    params = [_whole(p, mesh) for p in pairs.params]
    ranks = mesh.size(0)
    first, _ = ranges(pairs.x.shape[0], ranks)[mesh.get_local_rank(0)]
    local = pairs._replace(i_offset=first)
    ring = _Ring(mesh, local, ranges(pairs.columns.shape[0], ranks))
    with agreement.answered(_VERB):
        found = _Product.apply(ring, *own, *params)
    shape = torch.Size((pairs.x.shape[0], v.shape[1]))
    return DTensor.from_local(
        found, mesh, [Shard(0)], run_check=False, shape=shape, stride=(shape[1], 1)
    )


def _check(named: Sequence[tuple[str, Any]]) -> None:
    for name, tensor in named:
        if not isinstance(tensor, DTensor):
            raise ValueError(
                f"{_VERB}: {name} must be a DTensor; write distribute_tensor({name}, mesh, "
                f"[Shard(0)]). Received {type(tensor)}"
            )
        if tensor.ndim != 2:
            raise ValueError(f"{_VERB}: {name} must have two axes. Received {tuple(tensor.shape)}")
        if tuple(tensor.placements) != (Shard(0),):
            raise ValueError(
                f"{_VERB}: {name} must be split by rows on a mesh of one dimension; write "
                f"{name}.redistribute(placements=[Shard(0)]). Received {tensor.placements}"
            )
    (_, z), (_, v) = named[1:]
    if v.shape[0] != z.shape[0]:
        raise ValueError(
            f"{_VERB}: v must have a row for each point of z, {z.shape[0]}. Received {v.shape[0]}"
        )


def _whole(parameter: Tensor, mesh: Any) -> Tensor:
    if not isinstance(parameter, DTensor):
        if not parameter.requires_grad:
            return parameter
        parameter = DTensor.from_local(parameter, mesh, [Replicate()], run_check=False)
    return parameter.redistribute(mesh, [Replicate()]).to_local(grad_placements=[Partial()])
