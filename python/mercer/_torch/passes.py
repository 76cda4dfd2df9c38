"""A backward as a list of passes, planned by ops/pairs/backward_plan.h and run here.

A pass has results, in an order: the field of its rows, sums for what it is `by`, the product with
v, and the part of its side in the gradients by w. Each is added to what its leaves have so far.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mercer import _mercer
from mercer._derived import derivative, parsed
from mercer._torch import autograd, linear_form, operators
from mercer._torch.calls import field, matrix, ones, over_columns, product
from mercer._torch.operands import Pairs, Weights, is_tiny_batch, like
from mercer._torch.point_form import PointForm
from mercer._torch.weight_form import GradientByWeights

NONE = Pairs._make([None] * len(Pairs._fields))
# Whether other points, passes over the pairs, and one for both sides are taken: 0 as planned, 1
# never, 2 always.
POINTS = PASSES = BOTH_SIDES = 0
# Stands for an extent that depends on the data of a traced call.
_UNKNOWN = 1 << 12


class Pass(NamedTuple):
    verb: str
    rows: str  # "x", "z" or "both"
    by: tuple[str, ...]
    yields: tuple[str, ...]  # the leaves of each result, with a space between several
    has_product: bool
    without_weight: bool


class _Request(NamedTuple):
    """What a plan depends on; see mercer._mercer.plan_backward."""

    text: str
    weights: str
    needs: tuple[bool | None, ...]  # x, z, w, row, col and v
    needs_params: tuple[bool, ...]
    needs_directions: tuple[bool, ...]
    names: str
    are_arrays: tuple[bool, ...]  # the parameters that have axes or lie on a device
    along: str
    m: int
    n: int
    k: int
    columns: int
    doubles: bool
    device: int
    same_points: bool
    same_row: bool
    same_offsets: bool
    tiny_items: bool
    in_memory: bool
    is_recorded: bool
    w: bool
    row: bool
    col: bool
    points: int
    passes: int
    both_sides: int

    def wanted(self) -> str:
        leaves = ("x", "z", "w", "row", "col", "v")
        wanted = [leaf for leaf, needed in zip(leaves, self.needs, strict=True) if needed]
        named = zip(self.names.split(), self.needs_params, strict=False)
        wanted += [f"p:{name}" for name, needed in named if needed]
        wanted += [f"d:{d}" for d, needed in enumerate(self.needs_directions) if needed]
        return " ".join(wanted)

    def facts(self) -> str:
        names = (
            "same_points", "same_row", "same_offsets", "tiny_items", "in_memory", "is_recorded",
            "w", "row", "col",
        )  # fmt: skip
        return " ".join([name.removeprefix("is_") for name in names if getattr(self, name)])

    def arrays(self) -> str:
        named = zip(self.names.split(), self.are_arrays, strict=False)
        return " ".join([name for name, is_array in named if is_array])


@functools.lru_cache(4096)
def _planned(request: _Request) -> list[Pass]:
    passes = _mercer.plan_backward(
        parsed(request.text), request.weights, request.wanted(), request.m, request.n, request.k,
        request.columns, request.doubles, request.device, request.facts(), request.along,
        request.arrays(), request.points, request.passes, request.both_sides,
    )  # fmt: skip
    return [Pass(*each) for each in passes]


def _extent(extent: Any) -> int:
    """The extent that a traced call has now: a plan serves all of them."""
    if type(extent) is int:
        return extent
    hint = extent.node.hint
    return _UNKNOWN if hint is None else int(hint)


def _is_recorded(tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() or not autograd.records_nothing(tensors)


def plan(pairs: Pairs, weights: Weights, needs: Pairs, needs_v: bool = False) -> list[Pass]:
    """The passes that have the gradient to each operand that needs one."""
    amplitude, u, v = weights
    if amplitude is None:
        kind = "other" if u is None or v is None else "factors"
    else:
        kind = "matrix" if u is None and v is None else "other"
    f, x, z, row, col, w, params, names, _, directions, along, i_offset, j_offset = pairs
    m, k = x.shape[-2:]
    given = [t for t in (x, z, row, col, w, *params, *directions, *weights) if t is not None]
    request = _Request(
        f, kind, (needs.x, needs.z, needs.w, needs.row, needs.col, needs_v),
        tuple(needs.params or ()), tuple(needs.directions or ()), names,
        tuple([p.ndim > 0 or p.is_cuda for p in params]), along,
        _extent(m), _extent(m if z is None else z.shape[-2]), _extent(k),
        1 if v is None else _extent(v.shape[-1]), pairs.type == torch.float64, x.get_device(),
        z is None, row is col, i_offset == j_offset, is_tiny_batch(pairs),
        not x.is_cuda and autograd.is_memory(given), _is_recorded(given),
        w is not None, row is not None, col is not None, POINTS, PASSES, BOTH_SIDES,
    )  # fmt: skip
    return _planned(request)


def gradients(pairs: Pairs, weights: Weights, needs: Pairs) -> Pairs:
    """The gradient to each operand that needs one."""
    steps = plan(pairs, weights, needs)
    if _is_both_sides_alone(steps):
        return _both_sides_alone(pairs, weights, False)[0]
    return _Backward(pairs, weights, needs).run(steps)


def gradients_and_v(
    pairs: Pairs, weights: Weights, needs: Pairs, needs_v: bool
) -> tuple[Pairs, Tensor | None]:
    """As `gradients`, and the gradient by the v of a product."""
    steps = plan(pairs, weights, needs, needs_v)
    if _is_both_sides_alone(steps):
        return _both_sides_alone(pairs, weights, needs_v)
    backward = _Backward(pairs, weights, needs)
    found = backward.run(steps)
    return found, backward.found.get("v")


def _is_both_sides_alone(steps: Sequence[Pass]) -> bool:
    return len(steps) == 1 and steps[0].verb == "both_sides"


def _both_sides_alone(pairs: Pairs, weights: Weights, needs_v: bool) -> tuple[Pairs, Tensor | None]:
    """What most backwards of few points are, past the steps that other plans need."""
    by_x, by_z, by_v = operators.both_sides(pairs, weights, needs_v)
    _, x, z, _, _, _, params, _, numbers, directions, _, _, _ = pairs
    assert z is not None
    found = Pairs._make(
        (
            None, like(by_x, x), like(by_z, z), None, None, None, [None] * len(params), None,
            None if numbers else [], [None] * len(directions), None, None, None,
        )
    )  # fmt: skip
    return found, by_v


class _Backward:
    """What the passes have found so far."""

    def __init__(self, pairs: Pairs, weights: Weights, needs: Pairs) -> None:
        self.pairs, self.weights, self.needs = pairs, weights, needs
        self.found: dict[str, Tensor] = {}
        self._whole: Pairs | None = None
        self._form: PointForm | None = None
        self._by_weights: GradientByWeights | None = None

    def run(self, passes: Sequence[Pass]) -> Pairs:
        for step in passes:
            _RUN[step.verb](self, step)
        return self._gathered() if self._whole is None else self._whole

    def _side(self, rows: str) -> tuple[Pairs, Weights]:
        if rows == "x":
            return self.pairs, self.weights
        if rows == "z":
            return self.pairs.swapped(), self.weights.swapped()
        amplitude, u, v = self.weights
        if amplitude is not None:
            whole = matrix(self.weights)
            assert whole is not None
            return self.pairs, Weights(whole + whole.mT)
        one = ones(self.pairs, self.pairs.x)
        u, v = one if u is None else u, one if v is None else v
        shape = torch.broadcast_shapes(u.shape, v.shape)  # broadcast_tensors has no rule for vmap
        u, v = u.expand(shape), v.expand(shape)
        return self.pairs, Weights(None, torch.cat([u, v], -1), torch.cat([v, u], -1))

    def _add(self, leaves: str, result: Tensor) -> None:
        for leaf in leaves.split():
            self.found[leaf] = self.found[leaf] + result if leaf in self.found else result

    def over_pairs(self, step: Pass) -> None:
        pairs, weights = self._side(step.rows)
        what = step.by, step.has_product, step.without_weight
        result, sums = _PASSED[step.verb](pairs, weights, *what)
        # Both sides at once give twice the sums of one side, and v follows u.
        is_twice = step.rows == "both"
        results = [result, *(sums[name] / 2 if is_twice else sums[name] for name in step.by)]
        if step.has_product:
            results.append(_of_v(sums["v"], is_twice))
        if step.without_weight:
            if self._by_weights is None:
                self._by_weights = GradientByWeights(self.pairs)
            form = self._by_weights
            results[0], part = form.taken(pairs, result)
            results.append(part / 2 if is_twice and not form.of_both_sides else part)
        for leaves, each in zip(step.yields, results, strict=False):
            self._add(leaves, each)

    def both_sides(self, step: Pass) -> None:
        results = operators.both_sides(self.pairs, self.weights, step.has_product)
        for leaf, result in zip(step.yields, results, strict=False):
            self._add(leaf, result)

    def field(self, step: Pass) -> None:
        pairs, weights = self._side(step.rows)
        result = field(pairs, step.by[0], weights)
        is_twice = step.rows == "both" and step.by[0] != "x"
        self._add(step.yields[0], result / 2 if is_twice else result)

    def sums(self, step: Pass) -> None:
        (leaf,) = step.by
        if step.rows == "z":
            own = derivative(self.pairs.f, "col" if leaf == "row" else leaf)
            pairs, weights = self.pairs.with_formula(own).swapped(), self.weights.swapped()
        else:
            pairs, weights = self._side(step.rows)
            pairs = pairs.with_formula(derivative(pairs.f, leaf))
        result = over_columns(pairs, weights)
        self._add(step.yields[0], result / 2 if step.rows == "both" else result)

    def product(self, step: Pass) -> None:
        pairs, weights = self._side(step.rows)
        self._add(step.yields[0], _of_v(product(pairs, weights.v), step.rows == "both"))

    def direction(self, step: Pass) -> None:
        number = int(step.by[0])
        pairs = self.pairs.without_direction(number)
        self._add(step.yields[0], field(pairs, self.pairs.along[number], self.weights))

    def point_form(self, step: Pass) -> None:
        self._form = PointForm.of(self.pairs)
        self._given = self.pairs, self.needs
        self.needs, self.pairs = self._form.needs(self.needs), self._form.pairs

    def point_form_back(self, step: Pass) -> None:
        own = self._gathered()
        self.pairs, self.needs = self._given
        assert self._form is not None
        self._whole = self._form.back(own, self.needs)

    def _gathered(self) -> Pairs:
        """The gradients in PyTorch's form: numbers count as one value, an empty list as a list."""
        pairs, needs, found = self.pairs, self.needs, self.found
        by: dict[str, Any] = {"numbers": None if pairs.numbers else []}
        for leaf in ("x", "z", "w", "row", "col"):
            operand = getattr(pairs, leaf)
            if operand is not None and getattr(needs, leaf):
                by[leaf] = like(found[leaf], operand)
        by["params"] = [
            like(found[f"p:{name}"].sum(-1), parameter) if needed else None
            for name, parameter, needed in zip(
                pairs.names.split(), pairs.params, needs.params, strict=False
            )
        ]
        by["directions"] = [
            like(found[f"d:{d}"], direction) if needed else None
            for d, (direction, needed) in enumerate(
                zip(pairs.directions, needs.directions, strict=True)
            )
        ]
        return NONE._replace(**by)


_RUN: dict[str, Callable[[_Backward, Pass], None]] = {
    "product_backward": _Backward.over_pairs,
    "pairwise_backward": _Backward.over_pairs,
    "both_sides": _Backward.both_sides,
    "linear_form": _Backward.over_pairs,
    "linear_form_by_pass": _Backward.over_pairs,
    "field": _Backward.field,
    "sums": _Backward.sums,
    "product": _Backward.product,
    "direction": _Backward.direction,
    "point_form": _Backward.point_form,
    "point_form_back": _Backward.point_form_back,
}


def _of_v(values: Tensor, is_twice: bool) -> Tensor:
    return values[..., values.shape[-1] // 2 :] if is_twice else values


def _passed(
    pairs: Pairs, weights: Weights, by: tuple[str, ...], needs_v: bool, without_weight: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """The field to x, and in the same pass gradients by `by` ("w", "p:h", "row") and v."""
    amplitude, u, v = weights
    if amplitude is not None:
        found = autograd.call("pairwise_backward", *pairs, amplitude, " ".join(by), without_weight)
    else:
        found = autograd.call(
            "product_backward", *pairs, u, v, " ".join(by), needs_v, without_weight
        )
    gradient, *more = found
    summed = [name for name in by if name != "w"]
    sums = dict(zip(summed, more.pop(0).unbind(-2), strict=True)) if summed else {}
    if "w" in by:
        sums["w"] = more.pop(0)
    if needs_v:
        sums["v"] = more[-1]
    return gradient, sums


def _linear_form_by_pass(
    pairs: Pairs, weights: Weights, by: tuple[str, ...], needs_v: bool, without_weight: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    return linear_form.passed(pairs, weights, by, needs_v, without_weight, is_by_pass=True)


_PASSED: dict[str, Callable[..., tuple[Tensor, dict[str, Tensor]]]] = {
    "product_backward": _passed,
    "pairwise_backward": _passed,
    "linear_form": lambda *what: linear_form.passed(*what),
    "linear_form_by_pass": _linear_form_by_pass,
}
