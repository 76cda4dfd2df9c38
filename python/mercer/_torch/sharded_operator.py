"""mercer.linalg for kernel operators whose points are DTensors.

Long columns [n, k] are split by rows as the points are. A product gathers its columns and has the
rows of this rank; sums over rows are float64, gathered and added in the order of the ranks, so
that every rank has the same bits; small matrices are factored on the first rank and sent to all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from mercer import _mercer, _verbs
from mercer._derived import leaves
from mercer._torch import agreement
from mercer._torch.sharded import first_of
from mercer.errors import DtypeError

_COLUMNS = 1 << 16  # rows of random columns that are drawn at once


class ShardedOperator:
    """The symmetric matrix f(x_m, x_n) + ridge (m = n) of points [n, K] that are a DTensor.

    What mercer.linalg.KernelOperator makes of such points: on a mesh of one dimension, split by
    rows or replicated. The points are gathered once, n K numbers on each rank; columns of the
    methods are split.
    """

    def __init__(self, f: Any, x: DTensor, *, ridge: float = 0.0, **params: Any) -> None:
        verb, self.mesh, self.ridge = "KernelOperator", x.device_mesh, ridge
        _refuse_sides(ridge, params)
        self._formula = _mercer.formula_for(f, "kernel_product", False, params)
        text = str(self._formula)
        self._params = {name: _bare(value) for name, value in params.items()}

        def check() -> None:
            _placement(verb, "x", x)
            if x.requires_grad and torch.is_grad_enabled():
                raise NotImplementedError(
                    f"{verb}: x must not track gradients. Received requires_grad=True; pass "
                    f"x.detach()"
                )

        self.facts = [text, *map(_told, sorted(self._params.items())), ridge]
        agreement.require(verb, [("x", x)], self.facts, check)
        with agreement.answered(verb):
            self.points = x.detach().redistribute(self.mesh, [Replicate()]).to_local()
        # It checks formula, parameters and ridge.
        self.on_this_rank = _mercer.KernelOperator(
            self._formula, self.points, ridge=ridge, **self._params
        )
        self._reads = leaves(text) & {"i", "j"}
        self.placement, self.dtype = x.placements[0], self.points.dtype
        self.ridge = float(ridge)
        self.shape = (x.shape[0], x.shape[0])
        self.first, self.rows = first_of(x.shape[0], "m", ["m"], self.mesh)
        self._own = self.points[self.first : self.first + self.rows]

    @property
    def group(self) -> Any:
        return self.mesh.get_group(0)

    def values(self, first: int, own: Tensor, columns: Tensor, start: int) -> Tensor:
        """The matrix without its ridge, of points from these indices on."""
        offsets: dict[str, Any] = {"i_offset": first, "j_offset": start} if self._reads else {}
        return _verbs.pairwise(self._formula, own, columns, **offsets, **self._params)

    def multiply(self, columns: Tensor) -> Tensor:
        """The rows of this rank of the matrix times the columns [n, k] of all."""
        whole = self.gathered(columns)
        offsets: dict[str, Any] = {"i_offset": self.first} if self._reads else {}
        product = _verbs.kernel_product(
            self._formula, self._own, self.points, whole, **offsets, **self._params
        )
        return product.add_(columns, alpha=self.ridge) if self.ridge else product

    def gathered(self, columns: Tensor) -> Tensor:
        shape = torch.Size((self.shape[0], columns.shape[1]))
        split = DTensor.from_local(
            columns.contiguous(), self.mesh, [Shard(0)], run_check=False, shape=shape,
            stride=(shape[1], 1),
        )  # fmt: skip
        return split.redistribute(self.mesh, [Replicate()]).to_local()

    def each(self, part: Tensor) -> Tensor:
        """The parts of all ranks [ranks, ...], in their order."""
        part = part.contiguous()
        found = [torch.empty_like(part) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(found, part, group=self.group)
        return torch.stack(found)

    def summed(self, part: Tensor) -> Tensor:
        return self.each(part.double()).sum(0)

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        return self.summed((a.double() * b.double()).sum(0))

    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        return self.summed(a.double().mT @ b.double())

    def agreed(self, *small: Tensor) -> list[Tensor]:
        """What the first rank found: libraries on other processors may differ in last bits."""
        sent = [t.contiguous() for t in small]
        for tensor in sent:
            dist.broadcast(tensor, dist.get_global_rank(self.group, 0), group=self.group)
        return sent

    def eigh(self, matrix: Tensor) -> list[Tensor]:
        return self.agreed(*torch.linalg.eigh((matrix + matrix.mT) / 2))

    def split(self, tensor: Any) -> Tensor:
        """The rows of this rank of an argument [n, k], or [n] as one column."""
        rows = tensor.detach().redistribute(self.mesh, [Shard(0)]).to_local()
        return rows if rows.ndim == 2 else rows.unsqueeze(1)

    def joined(self, rows: Tensor, like: Any) -> DTensor:
        """Rows of all ranks as a DTensor with the shape and placement of an argument."""
        if like.ndim == 1:
            rows = rows[:, 0]
        stride = (1,) if like.ndim == 1 else (like.shape[1], 1)
        whole = DTensor.from_local(
            rows.contiguous(), self.mesh, [Shard(0)], run_check=False, shape=like.shape,
            stride=stride,
        )  # fmt: skip
        return whole.redistribute(self.mesh, like.placements)

    def whole(self, small: Tensor) -> DTensor:
        return DTensor.from_local(small, self.mesh, [Replicate()], run_check=False)

    def random(self, columns: int, seed: int) -> Tensor:
        """The rows of this rank of normal columns that are the same for any number of ranks."""
        draw = torch.Generator().manual_seed(seed)
        found = []
        for start in range(0, self.shape[0], _COLUMNS):
            rows = min(_COLUMNS, self.shape[0] - start)
            block = torch.randn(rows, columns, generator=draw, dtype=torch.float64)
            begin = max(self.first - start, 0)
            found.append(block[begin : max(self.first + self.rows - start, 0)])
        drawn = torch.cat(found) if found else torch.empty(0, columns, dtype=torch.float64)
        return drawn.to(self._own.device)


def _refuse_sides(ridge: Any, params: dict[str, Any]) -> None:
    for name in ("weights", "w", "row", "col"):
        if params.pop(name, None) is not None:
            raise NotImplementedError(
                f"KernelOperator: {name} is not offered for points of DTensors. Received one"
            )
    if hasattr(ridge, "shape") or isinstance(ridge, (list, tuple)):
        raise NotImplementedError(
            f"KernelOperator: ridge must be a number for points of DTensors. Received {type(ridge)}"
        )


def _bare(value: Any) -> Any:
    if not isinstance(value, DTensor):
        return value
    return value.detach().full_tensor()


def _told(parameter: tuple[str, Any]) -> str:
    name, value = parameter
    return f"{name} = {value.tolist() if hasattr(value, 'tolist') else value}"


def _placement(verb: str, name: str, tensor: Any) -> None:
    """A DTensor must be split by rows, or replicated, on a mesh of one dimension."""
    if not isinstance(tensor, DTensor):
        raise ValueError(
            f"{verb}: {name} must be a DTensor on the mesh of the points; write "
            f"distribute_tensor({name}, mesh, [Shard(0)]). Received {type(tensor)}"
        )
    placements = tensor.placements
    if len(placements) != 1:
        raise ValueError(
            f"{verb}: {name} must be on a mesh of one dimension; write {name} on a part of it, "
            f"mesh['name']. Received {tensor.device_mesh}"
        )
    if type(placements[0]) not in (Shard, Replicate) or placements[0] not in (
        Shard(0),
        Replicate(),
    ):
        raise ValueError(
            f"{verb}: {name} must be split by rows or replicated; write "
            f"{name}.redistribute(placements=[Shard(0)]). Received {placements[0]}"
        )


def begin(
    verb: str, a: Any, facts: Sequence[Any], check: Callable[[], None], **columns: Any
) -> None:
    """Checks the arguments, those of n rows among them; and that all ranks make the same call."""
    given = [(name, tensor) for name, tensor in columns.items() if tensor is not None]
    texts = [*a.facts, a.shape, *facts]

    def checks() -> None:
        check()
        for name, tensor in given:
            _check_columns(verb, a, name, tensor)

    if any(isinstance(tensor, DTensor) for _, tensor in given):
        agreement.require(verb, given, texts, checks)
    else:
        agreement.compare(verb, a.mesh, "; ".join(map(str, [verb, *texts])), checks)


def _check_columns(verb: str, a: Any, name: str, tensor: Any) -> None:
    _placement(verb, name, tensor)
    if tensor.ndim not in (1, 2) or tensor.shape[0] != a.shape[0]:
        raise ValueError(
            f"{verb}: {name} must have the shape [n, k] or [n], n = {a.shape[0]}. "
            f"Received {tuple(tensor.shape)}"
        )
    if tensor.dtype != a.dtype:
        raise DtypeError(
            f"{verb}: {name} must have the dtype of the operator, {a.dtype}. "
            f"Received {tensor.dtype}"
        )


def check_tolerance(verb: str, tol: float) -> None:
    if not 0 < tol < 1:
        raise ValueError(f"{verb}: tol must be from 0 to 1. Received {tol}.")
