"""mercer.kron of x whose columns are split over ranks: few rows of great length.

The columns are an index a of the first factors and an index b of the rest. Where a is split, a rank
applies all of the rest; then the ranks exchange, so that b is split, and apply the first ones; then
they exchange back. So several factors lie between exchanges, and each exchange of a part goes on
while the next part is multiplied. Extents need not be multiples of the number of ranks.

    [M, a of rank, B] -> [M, a of rank, B'] -> [M, A, b of rank] -> [M, A', b of rank]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from mercer._torch import sharding
from mercer._torch.sharding import Range, ranges

# Elements of a shard from which it is exchanged in parts.
_LONG = 1 << 16


def serves(x: Any, factors: Sequence[Tensor]) -> bool:
    """Whether x [..., M, K] is split by columns, and the factors have no axes of a batch."""
    if not isinstance(x, DTensor) or x.device_mesh.ndim != 1 or x.ndim < 2:
        return False
    placed = x.placements[0]
    is_split = type(placed) is Shard and placed.dim == x.ndim - 1
    return is_split and len(factors) > 1 and all(f.ndim == 2 for f in factors)


class _Exchange(torch.autograd.Function):
    """Parts for all ranks, one after the other, against theirs. The caller waits for `works`."""

    @staticmethod
    def forward(
        ctx: Any, parts: Tensor, group: Any, sent: list, received: list, works: list
    ) -> Any:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        parts, found = parts.contiguous(), parts.new_empty(sum(received))
        work = dist.all_to_all_single(found, parts, received, sent, group=group, async_op=True)
        works.append((work, parts))
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        works: list = []
        found = _Exchange.apply(gradient, ctx.group, ctx.received, ctx.sent, works)
        works[0][0].wait()
        return found, None, None, None, None


class _Columns:
    """One product: who has which a, b and columns before and after."""

    def __init__(self, x: DTensor, factors: Sequence[Tensor], product: Callable[..., Tensor]):
        mesh = x.device_mesh
        self.group, self.product = mesh.get_group(0), product
        self.ranks, self.rank = mesh.size(0), mesh.get_local_rank(0)
        split = self._first_factors(factors)
        self.first, self.rest = list(factors[:split]), list(factors[split:])
        self.inner = [math.prod(f.shape[0] for f in part) for part in (self.first, self.rest)]
        self.outer = [math.prod(f.shape[1] for f in part) for part in (self.first, self.rest)]

    def _first_factors(self, factors: Sequence[Tensor]) -> int:
        """As few as have an index for each rank, before and after."""
        for split in range(1, len(factors)):
            part = factors[:split]
            extents = [math.prod(f.shape[axis] for f in part) for axis in (0, 1)]
            if min(extents) >= self.ranks:
                return split
        return len(factors) - 1

    def run(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        (a, b), (a_out, b_out) = self.inner, self.outer
        x = self._moved(x, ranges(a * b, self.ranks), ranges(a, self.ranks, b))
        x = x.reshape(rows, x.shape[1] // max(b, 1), b)
        split_b, split_out = ranges(b_out, self.ranks), ranges(a_out, self.ranks)
        split_a = ranges(a, self.ranks)
        x = self._turned(x, 1, lambda part: self._rest(part, b_out), split_a, split_b)
        x = self._turned(x, 2, self._first, split_b, split_out)
        x = x.reshape(rows, x.shape[1] * b_out)
        return self._moved(x, ranges(a_out, self.ranks, b_out), ranges(a_out * b_out, self.ranks))

    def _rest(self, part: Tensor, columns: int) -> Tensor:
        rows, own, b = part.shape
        return self.product(part.reshape(rows * own, b), self.rest).reshape(rows, own, columns)

    def _first(self, part: Tensor) -> Tensor:
        return self.product(part, [f.mT for f in self.first], left=True)

    def _turned(
        self, x: Tensor, axis: int, multiply: Callable[[Tensor], Tensor], own: list[Range],
        new: list[Range],
    ) -> Tensor:  # fmt: skip
        """Multiplied along the other axis, of 1 and 2, then split along it and whole along this."""
        works: list = []
        found = []
        count = 2 if x.numel() >= _LONG and x.shape[axis] > 1 else 1
        bounds = [[_piece(first, last, c, count) for first, last in own] for c in range(count)]
        start = own[self.rank][0]
        for some in bounds:
            first, last = some[self.rank]
            part = multiply(x.narrow(axis, first - start, last - first))
            low, high = new[self.rank]
            shapes = [list(part.shape) for _ in some]
            for shape, (begin, end) in zip(shapes, some, strict=True):
                shape[axis], shape[3 - axis] = end - begin, high - low
            sent, flat = _flat(part, 3 - axis, new)
            received = [math.prod(s) for s in shapes]
            found.append((_Exchange.apply(flat, self.group, sent, received, works), shapes))
        for work, _ in works:
            work.wait()
        pieces = [
            [
                p.reshape(s)
                for p, s in zip(got.split([math.prod(s) for s in shapes]), shapes, strict=True)
            ]
            for got, shapes in found
        ]
        return torch.cat([piece for rank in zip(*pieces, strict=True) for piece in rank], axis)

    def _moved(self, x: Tensor, before: list[Range], after: list[Range]) -> Tensor:
        """Columns of one division into ranges, for those of another."""
        if before == after:
            return x
        own, new = before[self.rank], after[self.rank]
        cuts = [_common(own, other) for other in after]
        sizes = [high - low for low, high in (_common(other, new) for other in before)]
        works: list = []
        sent, flat = _flat(x, 1, [(low - own[0], high - own[0]) for low, high in cuts])
        received = [x.shape[0] * size for size in sizes]
        got = _Exchange.apply(flat, self.group, sent, received, works)
        works[0][0].wait()
        split = got.split(received)
        return torch.cat([p.reshape(x.shape[0], s) for p, s in zip(split, sizes, strict=True)], 1)


def _flat(x: Tensor, axis: int, bounds: Sequence[Range]) -> tuple[list[int], Tensor]:
    """The numbers of elements of x between the bounds along an axis, and all of them in turn."""
    others = x.numel() // max(x.shape[axis], 1)
    sizes = [high - low for low, high in bounds]
    counts = [others * size for size in sizes]
    if sizes[0] > 0 and sizes == [sizes[0]] * len(sizes) and sum(sizes) == x.shape[axis]:
        parts = x.unflatten(axis, (len(sizes), sizes[0])).movedim(axis, 0)
        return counts, parts.reshape(-1)  # one copy, where parts of their own take two
    parts = [x.narrow(axis, low, size) for (low, _), size in zip(bounds, sizes, strict=True)]
    # PyTorch loses the derivative of what it joins of the shape [0].
    return counts, torch.cat([part.reshape(1, -1) for part in parts], 1)[0]


def _piece(first: int, last: int, part: int, count: int) -> Range:
    size = last - first
    return first + size * part // count, first + size * (part + 1) // count


def _common(a: Range, b: Range) -> Range:
    low = max(a[0], b[0])
    low = min(max(low, a[0]), a[1])
    return low, max(low, min(a[1], b[1]))


def by_columns(x: DTensor, factors: Sequence[Tensor], product: Callable[..., Tensor]) -> DTensor:
    """x [..., M, K], split by columns, times the Kronecker product; split by columns too."""
    mesh = x.device_mesh
    local = []
    for factor in factors:
        if isinstance(factor, DTensor):
            whole = factor.redistribute(mesh, [Replicate()])
            factor = whole.to_local(grad_placements=[Partial()])
        local.append(factor)
    columns = _Columns(x, local, product)
    own = x.to_local()
    found = columns.run(own.reshape(math.prod(own.shape[:-1]), own.shape[-1]))
    shape = (*x.shape[:-1], math.prod(columns.outer))
    return DTensor.from_local(
        found.reshape(*shape[:-1], found.shape[-1]), mesh, [Shard(x.ndim - 1)], run_check=False,
        shape=torch.Size(shape), stride=sharding.strides(shape),
    )  # fmt: skip
