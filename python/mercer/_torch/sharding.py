"""How the operators split over the ranks of a device mesh, as one table, and its rules for DTensor.

Each tensor of an operator has a word: a letter for each of its last axes. Where the axes of one
letter are split over ranks, tensors without that letter are whole on each of them; results without
it are partial, to be combined as the table says, or there is no such rule. Leading axes (batches)
may be split wherever they are; their places are counted from the last one, as -1.

    m rows of x, n rows of z, k features, e columns of v, o outputs of an agop
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from mercer._derived import leaves
from mercer._torch.operands import Pairs

try:
    from torch.distributed.tensor._op_schema import (
        OpSchema,
        OpStrategy,
        RuntimeSchemaInfo,
        TupleStrategy,
    )
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy
except ImportError as error:  # PyTorch does not promise them
    raise NotImplementedError(
        f"mercer: DTensors need what PyTorch 2.13 has of them. Received {torch.__version__}, "
        f"{error}"
    ) from error

_FIELDS = len(Pairs._fields)
# Newer ones leave out rules whose shards would be uneven unless they are told not to.
_OPTIONS = inspect.signature(expand_to_full_mesh_op_strategy).parameters
_UNEVEN = {name: True for name in _OPTIONS if name == "allow_uneven_sharding"}
# Where an axis is split: a letter, or the place of a leading axis; None: nowhere.
Axis = str | int | None
Range = tuple[int, int]
_WORDS = {"x": "mk", "z": "nk", "row": "m", "col": "n", "w": "k"}
_MEANINGS = {"m": "rows of x", "n": "points of z", "k": "features"}
_TARGETS = {"x": "mk", "z": "nk", "t": "mk", "s": "nk", "w": "k"}


class _Row(NamedTuple):
    others: tuple[str | None, ...]  # words of the operands after those of pairs
    results: tuple[str, ...]
    splits: dict[str, str | None]  # letters, and how results without the letter are combined


_SUMS: dict[str, str | None] = {"m": "sum", "n": "sum"}
_TABLE = {
    "pairwise": _Row((), ("mn",), {"m": None, "n": None}),
    "product": _Row(("ne",), ("me",), {"m": None, "n": "sum", "e": None}),
    "field": _Row((None, "mn", "me", "ne"), (), _SUMS),
    "agop": _Row(("on",), ("kl",), {"m": "sum", "o": "sum"}),
    "reduce": _Row((None,), ("m",), {"m": None}),
    "knn": _Row((None,), ("mq", "mq"), {"m": None}),
    "product_backward": _Row(("me", "ne", None, None, None), (), _SUMS),
    "pairwise_backward": _Row(("mn", None, None), (), _SUMS),
}
OF_PAIRS = frozenset(_TABLE)
# Operators that are no pairs of points: the words of each input, "*" for a list of such.
_OTHERS = {
    "matmul": _Row(("mn", "ne"), ("me",), {"m": None, "n": "sum", "e": None}),
    "kron": _Row(("mp", "*pq", None), ("mj",), {"m": None}),
    "kron_left": _Row(("pm", "*qp", None), ("jm",), {"m": None}),
}


class Operand(NamedTuple):
    """A tensor, or what DTensor has in its place when it asks for a rule."""

    tensor: Any
    word: str
    slot: int  # among the flat inputs

    def place(self, axis: Axis) -> int | None:
        """Which of its axes this is; None where it has none, or one of a single element."""
        lead = self.tensor.ndim - len(self.word)
        if isinstance(axis, int):
            place = lead + axis
        else:
            place = -1 if axis is None or axis not in self.word else lead + self.word.index(axis)
        return place if place >= 0 and self.tensor.shape[place] != 1 else None

    def axis(self, place: int) -> Axis:
        lead = self.tensor.ndim - len(self.word)
        return place - lead if place < lead else self.word[place - lead]


class Form(NamedTuple):
    """An operator on these inputs: its operands in order, and what may be split."""

    operands: list[Operand]
    results: tuple[str, ...]
    splits: dict[str, str | None]

    @property
    def batch(self) -> tuple[int, ...]:
        leads = [tuple(o.tensor.shape)[: o.tensor.ndim - len(o.word)] for o in self.operands]
        return tuple(torch.broadcast_shapes(*leads)) if leads else ()

    def extent(self, letter: str) -> int:
        found = [
            o.tensor.shape[o.tensor.ndim - len(o.word) + o.word.index(letter)]
            for o in self.operands
            if letter in o.word
        ]
        return found[0] if found else 0

    def require_extents(self, name: str) -> None:
        """Shards could agree where the whole does not."""
        for letter in "mnk":
            found = {
                o.tensor.shape[o.tensor.ndim - len(o.word) + o.word.index(letter)]
                for o in self.operands
                if letter in o.word
            }
            if len(found) > 1:
                raise ValueError(
                    f"{name}: arguments must agree in the number of {_MEANINGS[letter]}. "
                    f"Received {' and '.join(map(str, sorted(found)))}"
                )
        leads = [tuple(o.tensor.shape)[: o.tensor.ndim - len(o.word)] for o in self.operands]
        try:
            torch.broadcast_shapes(*leads)
        except RuntimeError:
            raise ValueError(
                f"{name}: leading axes must broadcast. Received {', '.join(map(str, leads))}"
            ) from None

    def allows(self, axis: Axis) -> bool:
        return isinstance(axis, int) or axis in self.splits

    def placement(self, operand: Operand, axis: Axis) -> Shard | Replicate:
        place = operand.place(axis)
        return Replicate() if place is None else Shard(place)

    def of_result(self, word: str, axis: Axis) -> Shard | Replicate | Partial:
        lead = len(self.batch)
        if axis is None:
            return Replicate()
        if isinstance(axis, int):
            return Shard(lead + axis)
        if axis in word:
            return Shard(lead + word.index(axis))
        return Partial(self.splits[axis] or "sum")

    def chosen(self, placements: Sequence[Sequence[Any]], dimension: int) -> Axis:
        """What is split over this dimension of the mesh: as the first operand that is split."""
        for operand, own in zip(self.operands, placements, strict=True):
            placed = own[dimension]
            if type(placed) is Shard:
                axis = operand.axis(placed.dim)
                if self.allows(axis) and operand.place(axis) is not None:
                    return axis
        return None


def _backward_results(by: str, with_product: bool) -> tuple[str, ...]:
    names = by.split()
    words = ["mk"]
    words += ["rm"] if any(name != "w" for name in names) else []
    words += ["k"] if "w" in names else []
    return (*words, *(["me"] if with_product else []))


def _results(name: str, row: _Row, inputs: Sequence[Any]) -> tuple[str, ...]:
    rest = inputs[_FIELDS:]
    if name == "field":
        return ({"w": "k", "x": "mk", "t": "mk"}.get(rest[0], "nk"),)
    if name == "product_backward":
        return _backward_results(rest[2], rest[3])
    if name == "pairwise_backward":
        return _backward_results(rest[1], False)
    return row.results


def flat(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found.extend(flat(value) if isinstance(value, (list, tuple)) else [value])
    return found


def _words(row: _Row, inputs: Sequence[Any], of_pairs: bool) -> list[str | None]:
    """A word for each of the flat inputs that is a tensor."""
    words: list[str | None] = []
    if of_pairs:
        pairs = Pairs(*inputs[:_FIELDS])
        own = [None, *_WORDS.values(), [""] * len(pairs.params), None, [None] * len(pairs.numbers)]
        words = flat([*own, [_TARGETS[target] for target in pairs.along], None, None, None])
    rest = inputs[_FIELDS:] if of_pairs else inputs
    for word, value in zip(row.others, rest, strict=True):
        if word is not None and word[0] == "*":
            words.extend([word[1:]] * len(value))
        else:
            words.append(word)
    return words


@torch.compiler.assume_constant_result
def read(text: str) -> tuple[str, ...]:
    """Which of i and j the formula reads."""
    return tuple(leaves(text) & {"i", "j"})


def form_of(name: str, inputs: Sequence[Any], in_shards: bool = False) -> Form:
    """`in_shards`: the caller sees to the offsets of i and j, and merges reductions over n."""
    if name == "kron" and inputs[2]:
        name = "kron_left"
    of_pairs = name in _TABLE
    row = _TABLE[name] if of_pairs else _OTHERS[name]
    words = _words(row, inputs, of_pairs)
    operands = [
        Operand(value, word, place)
        for place, (value, word) in enumerate(zip(flat(inputs), words, strict=True))
        if word is not None and value is not None
    ]
    if not of_pairs:
        return Form(operands, row.results, row.splits)
    splits = dict(row.splits)
    # Process groups may lose NaN in a maximum, as gloo does: no Partial("max").
    if name == "reduce" and (in_shards or inputs[_FIELDS] == "sum"):
        splits["n"] = inputs[_FIELDS]
    elif name == "knn" and in_shards:
        splits["n"] = "knn"
    found = read(inputs[0])
    refused = set() if in_shards else {side for i, side in (("i", "m"), ("j", "n")) if i in found}
    # One tensor cannot be split as rows and whole as columns.
    refused |= {"m", "n"} if inputs[2] is None else set()
    splits = {letter: how for letter, how in splits.items() if letter not in refused}
    return Form(operands, _results(name, row, inputs), splits)


def global_shape(form: Form, word: str, local: Sequence[int]) -> tuple[int, ...]:
    """The shape of a result from that of its shard."""
    known = {letter for o in form.operands for letter in o.word}
    own = local[len(local) - len(word) :]
    ends = [form.extent(c) if c in known else size for c, size in zip(word, own, strict=True)]
    return (*form.batch, *ends)


def ranges(extent: int, ranks: int, step: int = 1) -> list[Range]:
    """The parts of ranks, as DTensor makes them, each `step` long."""
    each = -(-extent // ranks)
    ends = [min(each * r, extent) * step for r in range(ranks + 1)]
    return list(itertools.pairwise(ends))


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


# ---- The rules as DTensor takes them. -----------------------------------------------------------


def _spec(value: Any) -> Any:
    """What DTensor says of an input, in place of the strategies that it hands over."""
    if isinstance(value, OpStrategy):
        return value.strategies[0].output_spec
    if isinstance(value, TupleStrategy):
        return [_spec(child) for child in value.children]
    return [_spec(each) for each in value] if isinstance(value, (list, tuple)) else value


def _strategy(name: str, schema: OpSchema) -> OpStrategy:
    """One rule for each split that the operands have; the last is none."""
    form = form_of(name, [_spec(value) for value in schema.args_schema])
    mesh = schema.get_mesh_from_args()
    placements = [operand.tensor.placements for operand in form.operands]
    axes = [form.chosen(placements, d) for d in range(mesh.ndim)]
    found = []
    for axis in dict.fromkeys([*axes, None]):
        results = [form.of_result(word, axis) for word in form.results]
        found.append(results + [form.placement(operand, axis) for operand in form.operands])
    strategy = expand_to_full_mesh_op_strategy(
        mesh, schema, found, input_index=len(form.results), **_UNEVEN
    )
    if schema.return_type_list_tensor_like() and len(form.results) == 1:
        for each in strategy.strategies:
            each.output_specs = (each.output_specs,)
    return strategy


@functools.cache
def register() -> None:
    """The rules of all operators, once. torch.distributed.tensor.experimental.register_sharding has
    neither texts among what decides nor operators that return lists."""
    import mercer._torch.kron  # noqa: F401  registers its operator

    for name in (*_TABLE, "matmul", "kron"):
        DTensor._op_dispatcher.sharding_propagator.register_op_strategy(
            getattr(torch.ops.mercer, name).default,
            functools.partial(_strategy, name),
            RuntimeSchemaInfo(0, needs_pytree=True),
        )
