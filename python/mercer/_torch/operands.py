"""What the operators take, as one tuple, and how derived operands are made of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mercer import _mercer
from mercer._derived import SWAPPED, leaves, parsed, swapped_text

SCHEMA = (
    "str f, Tensor x, Tensor? z, Tensor? row, Tensor? col, Tensor? w, Tensor[] params, str names, "
    "float[] numbers, Tensor[] directions, str along, int i_offset, int j_offset"
)


class WeightForm(NamedTuple):
    """How gradients by w are made of those by the points (weight_form.py)."""

    weight: str  # the factor c of w, over row
    slope: str  # c' / d, over row
    of_both_sides: bool
    of_differences: bool


@functools.lru_cache(4096)
def weight_form(text: str) -> WeightForm | None:
    found = _mercer.weight_form(parsed(text))
    return found and WeightForm(*found)


class LinearForm(NamedTuple):
    """f = offset + scale [row] [col] sum(c(w) x z) (linear_form.py)."""

    scale: float
    offset: float
    of_row: bool
    of_col: bool
    weight: str  # c of w, over row; empty: none
    slope: str  # c'


@functools.lru_cache(4096)
def linear_form(text: str) -> LinearForm | None:
    found = _mercer.linear_form(parsed(text))
    return found and LinearForm(*found)


def computing_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in (torch.float64, torch.int32) else torch.float32


class Pairs(NamedTuple):
    """A formula on pairs of points, in the order of the schema.

    `names` holds the names of the parameters with spaces between them: of the tensors `params`,
    then of the `numbers`. What stands for f is its derivative at t = 0 where each directions[d] is
    added, t times, to the target along[d]: to x ([..., M, K]), z ([..., N, K]), w ([..., K]), or to
    the multiplier of a field (t or s).
    """

    f: str
    x: Tensor
    z: Tensor | None
    row: Tensor | None
    col: Tensor | None
    w: Tensor | None
    params: Sequence[Tensor]
    names: str
    numbers: Sequence[float]
    directions: Sequence[Tensor]
    along: str
    i_offset: int
    j_offset: int

    @property
    def columns(self) -> Tensor:
        return self.x if self.z is None else self.z

    @property
    def type(self) -> torch.dtype:
        return computing_type(self.x.dtype)

    def tensors(self) -> list[tuple[str, Tensor, int]]:
        """Each tensor with its field and the number of its axes after the leading ones."""
        found = [("x", self.x, 2), ("z", self.z, 2), ("row", self.row, 1), ("col", self.col, 1)]
        found += [("w", self.w, 1), *(("params", p, 0) for p in self.params)]
        pairs = zip(self.directions, self.along, strict=True)
        found += [("directions", d, 1 if target == "w" else 2) for d, target in pairs]
        return [(name, tensor, axes) for name, tensor, axes in found if tensor is not None]

    def batch(self, *extra: tuple[Tensor | None, int]) -> torch.Size:
        """The leading axes of a result; `extra` are other tensors with their trailing axes."""
        known = [(tensor, axes) for _, tensor, axes in self.tensors()]
        given = [(tensor, axes) for tensor, axes in extra if tensor is not None]
        shapes = [t.shape[: t.ndim - axes] for t, axes in known + given if t.ndim > axes]
        return torch.broadcast_shapes(*shapes) if shapes else torch.Size(())

    def values(self) -> dict[str, Tensor | float]:
        """The parameters by name."""
        names = self.names.split()
        return dict(zip(names, [*self.params, *self.numbers], strict=True))

    def widened(self) -> Pairs:
        """Pairs with their real operands in the computing type."""

        def wide(tensor: Tensor | None) -> Tensor | None:
            return (
                tensor if tensor is None or not tensor.is_floating_point() else tensor.to(self.type)
            )

        return self._replace(
            x=wide(self.x), z=wide(self.z), row=wide(self.row), col=wide(self.col), w=wide(self.w)
        )

    def swapped(self) -> Pairs:
        """The pairs with the roles of rows and columns exchanged."""
        return self._replace(
            f=swapped_text(self.f),
            x=self.columns, z=None if self.z is None else self.x, row=self.col, col=self.row,
            along="".join(SWAPPED[target] for target in self.along),
            i_offset=self.j_offset, j_offset=self.i_offset,
        )  # fmt: skip

    def moved(self, target: str, direction: Tensor) -> Pairs:
        """Differentiated once more, in this direction of the target."""
        return self._replace(
            directions=[*self.directions, direction.to(self.type)], along=self.along + target
        )

    def without_direction(self, index: int) -> Pairs:
        directions = list(self.directions)
        del directions[index]
        along = self.along[:index] + self.along[index + 1 :]
        return self._replace(directions=directions, along=along)

    def with_formula(self, text: str) -> Pairs:
        """Another formula on the same points; operands that it does not read are left out."""
        read = leaves(text)
        names = self.names.split()
        tensors, numbers = names[: len(self.params)], names[len(self.params) :]
        kept = [(n, t) for n, t in zip(tensors, self.params, strict=True) if f"p:{n}" in read]
        rest = [(n, v) for n, v in zip(numbers, self.numbers, strict=True) if f"p:{n}" in read]
        return self._replace(
            f=text,
            row=self.row if "row" in read else None,
            col=self.col if "col" in read else None,
            w=self.w if "w" in read else None,
            params=[t for _, t in kept],
            numbers=[v for _, v in rest],
            names=" ".join(n for n, _ in kept + rest),
        )

    def rows(self, first: int, last: int) -> Pairs:
        """The rows first … last - 1. The columns stay."""
        return self._replace(
            x=self.x[..., first:last, :],
            z=self.columns,
            row=None if self.row is None else self.row[..., first:last],
            directions=[
                d[..., first:last, :] if target in "xt" else d
                for d, target in zip(self.directions, self.along, strict=True)
            ],
            i_offset=self.i_offset + first,
        )


@functools.lru_cache(64)
def _tiny_batch(device: int) -> tuple[int, int]:
    return _mercer.tiny_batch(device)


def is_tiny_batch(pairs: Pairs) -> bool:
    """Whether it is a CUDA batch of so many tiny items that the engine would launch too often."""
    if not pairs.x.is_cuda:
        return False
    tiny_item, many_items = _tiny_batch(pairs.x.get_device())
    item = pairs.x.shape[-2] * pairs.columns.shape[-2] * pairs.x.shape[-1]
    return item <= tiny_item and pairs.batch().numel() >= many_items


def options(pairs: Pairs) -> dict:
    """The keyword arguments of a verb."""
    given: dict = {"i_offset": pairs.i_offset, "j_offset": pairs.j_offset}
    for name, tensor in (("row", pairs.row), ("col", pairs.col), ("w", pairs.w)):
        if tensor is not None:
            given[name] = tensor.resolve_neg()
    for name, value in pairs.values().items():
        given[name] = _bare(value)
    return given


def _bare(value: Tensor | float) -> Tensor | float:
    # A test of float comes first: that of Tensor is slow.
    if isinstance(value, float) or not isinstance(value, Tensor):
        return value
    return value.resolve_neg()


def like(gradient: Tensor, operand: Tensor) -> Tensor:
    """Summed over the axes along which the operand was broadcast."""
    if type(gradient) is Tensor and type(operand) is Tensor:  # the shapes of others may be symbols
        is_alike = gradient.dtype == operand.dtype and gradient.device == operand.device
        if is_alike and gradient.shape == operand.shape:
            return gradient
    return gradient.sum_to_size(operand.shape).to(operand.device, operand.dtype)


class Weights(NamedTuple):
    """A weight for each pair: amplitude[m, n] * sum_e u[m, e] v[n, e]; what is absent is one."""

    amplitude: Tensor | None = None
    u: Tensor | None = None
    v: Tensor | None = None

    def swapped(self) -> Weights:
        amplitude = None if self.amplitude is None else self.amplitude.mT
        return Weights(amplitude, self.v, self.u)

    def rows(self, first: int, last: int) -> Weights:
        return Weights(
            None if self.amplitude is None else self.amplitude[..., first:last, :],
            None if self.u is None else self.u[..., first:last, :],
            self.v,
        )


def split_field(inputs: tuple) -> tuple[Pairs, str, Weights]:
    """The operands of mercer::field."""
    count = len(Pairs._fields)
    return Pairs(*inputs[:count]), inputs[count], Weights(*inputs[count + 1 :])
