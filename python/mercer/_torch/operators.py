"""The registered operators: what they compute, and the shapes of their results.

mercer::pairwise  [..., M, N]   the formula on all pairs
mercer::product   [..., M, E]   that matrix times v [..., N, E]
mercer::field     [..., M, K]   sum over n of weight[m, n] d f(x_m, z_n) / d target[m, k]
mercer::agop      [..., K, K]   sum over m and o of g[o, m, k] g[o, m, l], of the fields g to x with
                                weights coef[..., o, n]
mercer::reduce    [..., M]      a reduction over n
mercer::knn       [..., M, k]   the smallest values over n, and their indices

mercer::product_backward and pairwise_backward have several results of a backward in one pass; they
have no derivatives themselves, and serve where none is recorded (rules.py).

Each takes a formula as text, and may take directions: then it is about a derivative of the formula
(operands.Pairs). So the derivative of an operator is made of operators, however often.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mercer import _mercer
from mercer._derived import derivative, field_of, parsed
from mercer._torch import autograd, calls, evaluate, table
from mercer._torch.operands import SCHEMA, Pairs, Weights, is_tiny_batch, options

_FIELDS = len(Pairs._fields)
# Bytes of the weights of some rows that are made at once, where they are a product u v'.
_WEIGHTS = 1 << 26


def operator(name: str, function: Callable[..., Any], schema: str) -> Any:
    """Registered with PyTorch, for calls through its dispatcher."""
    table.FUNCTIONS[name] = function

    def checked(*inputs: Any) -> Any:
        # The rules have forward mode off. Elsewhere the dispatcher drops tangents: an operator
        # that is registered from Python can have no derivative in that mode.
        if forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled():
            raise NotImplementedError(
                f"mercer::{name}: must not be part of forward-mode differentiation. Received a "
                f"call of the operator itself, as in a traced graph; differentiate the function "
                f"that was traced"
            )
        return function(*inputs)

    return torch.library.custom_op(f"mercer::{name}", checked, mutates_args=(), schema=schema)


def _define(name: str, more: str, result: str = "Tensor") -> Callable[..., Any]:
    schema = f"({SCHEMA}{more}) -> {result}"
    return lambda function: operator(name, function, schema)


def _in_engine(pairs: Pairs) -> bool:
    """Whether the engine computes this: no derivative of second order, no batch of tiny items."""
    return not pairs.along and not is_tiny_batch(pairs)


def _points(pairs: Pairs) -> tuple[Tensor, Tensor | None]:
    return pairs.x.resolve_neg(), None if pairs.z is None else pairs.z.resolve_neg()


def _new(pairs: Pairs, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    return pairs.x.new_empty(shape, dtype=dtype or pairs.type)


def _shape(pairs: Pairs) -> tuple[int, ...]:
    return (*pairs.batch(), pairs.x.shape[-2], pairs.columns.shape[-2])


@_define("pairwise", "")
def pairwise(*operands: Any) -> Tensor:
    pairs = Pairs(*operands)
    if not _in_engine(pairs):
        return evaluate.matrix(pairs, _new(pairs, _shape(pairs)))
    return _mercer.unfollowed("pairwise", parsed(pairs.f), *_points(pairs), **options(pairs))


@pairwise.register_fake
def _(*operands: Any) -> Any:
    pairs = Pairs(*operands)
    return _new(pairs, _shape(pairs))


def _product_shape(pairs: Pairs, v: Tensor) -> tuple[int, ...]:
    return (*pairs.batch((v, 2)), pairs.x.shape[-2], v.shape[-1])


@_define("product", ", Tensor v")
def product(*operands: Any) -> Tensor:
    pairs, v = Pairs(*operands[:_FIELDS]), operands[_FIELDS]
    if not _in_engine(pairs):
        return evaluate.product(pairs, v, _new(pairs, _product_shape(pairs, v)))
    return _mercer.unfollowed(
        "kernel_product", parsed(pairs.f), *_points(pairs), v.resolve_neg(), **options(pairs)
    )


@product.register_fake
def _(*operands: Any) -> Any:
    pairs, v = Pairs(*operands[:_FIELDS]), operands[_FIELDS]
    return _new(pairs, _product_shape(pairs, v))


def _field_shape(pairs: Pairs, wrt: str, weights: Weights) -> tuple[int, ...]:
    batch, (m, k) = pairs.batch(*((t, 2) for t in weights)), pairs.x.shape[-2:]
    if wrt == "w":
        return (*batch, k)
    return (*batch, m if wrt in "xt" else pairs.columns.shape[-2], k)


@_define("field", ", str wrt, Tensor? amplitude, Tensor? u, Tensor? v")
def field(*operands: Any) -> Tensor:
    """For wrt = "w" the field is summed over m as well: [..., K]."""
    pairs, wrt = Pairs(*operands[:_FIELDS]), operands[_FIELDS]
    weights = Weights(*(None if t is None else t.resolve_neg() for t in operands[_FIELDS + 1 :]))
    if wrt in "zs":
        pairs, weights, wrt = pairs.swapped(), weights.swapped(), "x" if wrt == "z" else "t"
    shape = (*pairs.batch(*((t, 2) for t in weights)), *pairs.x.shape[-2:])
    if 0 in shape:
        out = _new(pairs, shape).zero_()
    elif _in_engine(pairs):
        out = _engine_field(pairs, wrt, weights)
    else:
        out = evaluate.field(pairs, wrt, weights, _new(pairs, shape))
    out = out.expand(shape)
    return out.sum(-2) if wrt == "w" else out.contiguous()


@field.register_fake
def _(*operands: Any) -> Any:
    pairs, wrt = Pairs(*operands[:_FIELDS]), operands[_FIELDS]
    return _new(pairs, _field_shape(pairs, wrt, Weights(*operands[_FIELDS + 1 :])))


@functools.lru_cache(4096)
def _field_verb(text: str, wrt: str, *request: Any) -> str:
    return _mercer.plan_field(parsed(text), wrt, *request)


def _engine_field(pairs: Pairs, wrt: str, weights: Weights) -> Tensor:
    given = " ".join([name for name, t in weights._asdict().items() if t is not None])
    columns = 1 if weights.v is None else weights.v.shape[-1]
    verb = _field_verb(pairs.f, wrt, given, pairs.x.shape[-1], columns, pairs.x.is_cuda)
    return _FIELD_VERBS[verb](pairs, wrt, weights)


def _of_product(pairs: Pairs, wrt: str, weights: Weights) -> Tensor:
    z = None if pairs.z is None else pairs.z.resolve_neg()
    points = pairs.x.resolve_neg()
    assert weights.u is not None
    assert weights.v is not None
    factors = (t.to(pairs.type).resolve_neg() for t in (weights.u, weights.v))
    formula = parsed(pairs.f)
    return _mercer.unfollowed("product_gradient", formula, points, z, *factors, **options(pairs))


def _of_one_pass(pairs: Pairs, wrt: str, weights: Weights) -> Tensor:
    """The field to x, or in addition to it the one by w."""
    if wrt == "x":
        return _in_one_pass(pairs, weights, "")["field"]
    return _in_one_pass(pairs, weights, "w")["w"].mT


def _contraction(pairs: Pairs, wrt: str, weights: Weights) -> Tensor:
    """Weights of rows and columns: u is a factor of the result, v the coefficients."""
    amplitude, u, v = weights
    joint = _is_axis_of_coefficients(pairs, weights)
    if joint:
        pairs, amplitude = _without_axis(pairs), _squeezed(amplitude, 2)
    if v is None:
        coef = pairs.x.new_ones(1, dtype=pairs.type).expand(pairs.columns.shape[-2])
    else:
        coef = v.squeeze(-1) if v.shape[-1] == 1 else v.sum(-1)  # [..., N], or [..., O, N]
        coef = coef if joint else coef.unsqueeze(-2)
    out = _contracted(pairs, wrt, amplitude, coef)
    if v is not None and not joint:
        out = out.squeeze(-3)
    return out if u is None else out * u.sum(-1, keepdim=True)


def _contracted(pairs: Pairs, wrt: str, amplitude: Tensor | None, coef: Tensor) -> Tensor:
    """The field of amplitude[m, n] coef[o, n], of each output."""
    points, columns = pairs.x.resolve_neg(), pairs.columns.resolve_neg()
    if amplitude is None and wrt == "x":
        z = None if pairs.z is None else columns
        formula = parsed(pairs.f)
        return _mercer.unfollowed("kernel_gradient", formula, points, z, coef, **options(pairs))
    if amplitude is None:
        amplitude = points.new_ones(1, 1, dtype=pairs.type)
        amplitude = amplitude.expand(points.shape[-2], columns.shape[-2])
    near = pairs if wrt == "t" else pairs.with_formula(field_of(pairs.f, wrt))
    return _mercer.unfollowed(
        "gradient_field", parsed(near.f), points, columns, amplitude, coef, **options(near)
    )


def _is_axis_of_coefficients(pairs: Pairs, weights: Weights) -> bool:
    """Whether v alone varies along the last axis of the batch, which the engine takes at once."""
    amplitude, u, v = weights
    if v is None or u is not None or v.ndim < 3 or v.shape[-3] == 1:
        return False
    others = [(tensor, axes) for _, tensor, axes in pairs.tensors()]
    if amplitude is not None:
        others.append((amplitude, 2))
    return all(t.ndim <= axes or t.shape[t.ndim - axes - 1] == 1 for t, axes in others)


def _squeezed(tensor: Tensor | None, axes: int) -> Tensor | None:
    if tensor is None or tensor.ndim <= axes:
        return tensor
    return tensor.squeeze(tensor.ndim - axes - 1)


def _without_axis(pairs: Pairs) -> Pairs:
    """Without the last axis of the batch, which has the extent 1."""
    return pairs._replace(
        x=_squeezed(pairs.x, 2), z=_squeezed(pairs.z, 2),
        row=_squeezed(pairs.row, 1), col=_squeezed(pairs.col, 1),
        params=[_squeezed(p, 0) for p in pairs.params],
    )  # fmt: skip


def _named(by: str) -> tuple[list[str], bool]:
    """Leaves, "p:h" and "row"; and whether the weights "w" are among them."""
    names = by.split()
    return [name for name in names if name != "w"], "w" in names


def _backward_shapes(pairs: Pairs, weights: tuple, by: str, columns: int | None) -> dict:
    batch, (m, k) = pairs.batch(*((t, 2) for t in weights if t is not None)), pairs.x.shape[-2:]
    leaves, by_w = _named(by)
    shapes = {"field": (*batch, m, k)}
    if leaves:
        shapes["sums"] = (*batch, len(leaves), m)
    if by_w:
        shapes["w"] = (*batch, k)
    if columns is not None:
        shapes["product"] = (*batch, m, columns)
    return shapes


def _in_one_pass(
    pairs: Pairs, weights: Weights, by: str, without_weight: bool = False, product: bool = False
) -> dict[str, Tensor]:
    """What one pass of the engine has of that, which it says before it runs; the sums by w are
    [..., K, M]."""
    leaves, by_w = _named(by)
    given: list[Any] = [t.to(pairs.type).resolve_neg() for t in weights if t is not None]
    verb = "product_backward" if weights.amplitude is None else "pairwise_backward"
    given.append([name.removeprefix("p:") for name in leaves])
    if weights.amplitude is None:
        given.append(product)
    given += [without_weight, by_w]
    found = _mercer.unfollowed(verb, parsed(pairs.f), *_points(pairs), *given, **options(pairs))
    gradient, sums, *values, by_weights = found
    results = {"field": gradient, "sums": sums, "w": by_weights}
    results["product"] = values[0] if values else None
    return {name: result for name, result in results.items() if result is not None}


def both_sides(pairs: Pairs, weights: Weights, product: bool) -> tuple[Tensor, Tensor, Any]:
    """The fields to x and to z in one pass, and the product with u, in the host's memory."""
    amplitude, u, v = weights
    if amplitude is None:
        assert u is not None
        assert v is not None
        given = [t.to(pairs.type).resolve_neg() for t in (u, v)]
    else:
        given = [amplitude.to(pairs.type).resolve_neg(), None]
    return _mercer.unfollowed(
        "both_sides_backward", parsed(pairs.f), *_points(pairs), *given, product, **options(pairs)
    )


def _sums(pairs: Pairs, by: list[str], weights: Weights, shape: tuple) -> Tensor:
    """A pass for each derivative in `by`."""
    amplitude, u, v = weights
    parts = []
    for name in by:
        near = pairs.with_formula(derivative(pairs.f, name))
        values = u * product(*near, v) if amplitude is None else amplitude * pairwise(*near)
        parts.append(values.sum(-1))
    return torch.stack(torch.broadcast_tensors(*parts), -2).expand(shape).contiguous()


def _has_pairs(pairs: Pairs, shapes: dict) -> bool:
    return pairs.columns.shape[-2] > 0 and not any(0 in shape for shape in shapes.values())


def _backward(
    pairs: Pairs, weights: Weights, by: str, without_weight: bool, columns: int | None = None
) -> list[Tensor]:
    """What one pass of the engine does not have is made on its own."""
    weights = Weights(*(None if t is None else t.to(pairs.type).resolve_neg() for t in weights))
    shapes = _backward_shapes(pairs, weights, by, columns)
    found: dict[str, Tensor] = {}
    if _in_engine(pairs) and _has_pairs(pairs, shapes):
        found = _in_one_pass(pairs, weights, by, without_weight, columns is not None)
    if "w" in found:
        found["w"] = found["w"].sum(-1)
    if "field" not in found and _has_pairs(pairs, shapes):
        found["field"] = field(*pairs, "x", *weights)
    elif "field" not in found:
        found["field"] = _new(pairs, shapes["field"]).zero_()
    if "sums" in shapes and "sums" not in found:
        found["sums"] = _sums(pairs, _named(by)[0], weights, shapes["sums"])
    if "w" in shapes and "w" not in found:
        found["w"] = field(*pairs, "w", *weights)
    if "product" in shapes and "product" not in found:
        values = product(*pairs, weights.v)
        found["product"] = values.expand(shapes["product"]).contiguous()
    return [found[name] for name in shapes]


@_define(
    "product_backward",
    ", Tensor u, Tensor v, str by, bool with_product, bool without_weight",
    "Tensor[]",
)
def product_backward(*operands: Any) -> list[Tensor]:
    """The field to x with the weights u v', [..., M, K], or that without its factor of w; of each
    derivative in `by` ("p:h", "row") the sums over n with these weights, [..., R, M]; of "w" in it
    the sums over m and n, [..., K]; the product with v, [..., M, E]."""
    pairs, (u, v, by, with_product, without_weight) = Pairs(*operands[:_FIELDS]), operands[_FIELDS:]
    columns = v.shape[-1] if with_product else None
    return _backward(pairs, Weights(None, u, v), by, without_weight, columns)


@product_backward.register_fake
def _(*operands: Any) -> Any:
    pairs, (u, v, by, with_product, _) = Pairs(*operands[:_FIELDS]), operands[_FIELDS:]
    shapes = _backward_shapes(pairs, (u, v), by, v.shape[-1] if with_product else None)
    return [_new(pairs, shape) for shape in shapes.values()]


@_define("pairwise_backward", ", Tensor weights, str by, bool without_weight", "Tensor[]")
def pairwise_backward(*operands: Any) -> list[Tensor]:
    """The field to x with weights [..., M, N], and sums, as product_backward has them."""
    pairs, (weights, by, without_weight) = Pairs(*operands[:_FIELDS]), operands[_FIELDS:]
    return _backward(pairs, Weights(weights), by, without_weight)


@pairwise_backward.register_fake
def _(*operands: Any) -> Any:
    pairs, (weights, by, _) = Pairs(*operands[:_FIELDS]), operands[_FIELDS:]
    return [_new(pairs, shape) for shape in _backward_shapes(pairs, (weights,), by, None).values()]


def _field_of_rows(pairs: Pairs, wrt: str, weights: Weights) -> Tensor:
    """The weights of some rows at a time, as a matrix."""
    m, n = pairs.x.shape[-2], pairs.columns.shape[-2]
    items = pairs.batch(*((t, 2) for t in weights)).numel()
    rows = max(1, _WEIGHTS // (8 * max(1, n * items)))
    parts = [
        _engine_field(
            pairs.rows(first, min(first + rows, m)), wrt,
            Weights(calls.matrix(weights.rows(first, min(first + rows, m)))),
        )
        for first in range(0, m, rows)
    ]  # fmt: skip
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


_FIELD_VERBS: dict[str, Callable[[Pairs, str, Weights], Tensor]] = {
    "product_gradient": _of_product,
    "product_backward": _of_one_pass,
    "pairwise_backward": _of_one_pass,
    "by_rows": _field_of_rows,
    "contraction": _contraction,
}


def _agop_shape(pairs: Pairs, coef: Tensor) -> tuple[int, ...]:
    return (*pairs.batch((coef, 2)), pairs.x.shape[-1], pairs.x.shape[-1])


@_define("agop", ", Tensor coef")
def agop(*operands: Any) -> Tensor:
    pairs, coef = Pairs(*operands[:_FIELDS]), operands[_FIELDS]
    if coef.shape[-2] == 0:
        return _new(pairs, _agop_shape(pairs, coef)).zero_()
    return _mercer.unfollowed(
        "kernel_agop", parsed(pairs.f), *_points(pairs), coef.resolve_neg(), **options(pairs)
    )


@agop.register_fake
def _(*operands: Any) -> Any:
    pairs, coef = Pairs(*operands[:_FIELDS]), operands[_FIELDS]
    return _new(pairs, _agop_shape(pairs, coef))


def _reduce_type(pairs: Pairs, kind: str) -> torch.dtype:
    return torch.int64 if kind.startswith("arg") else pairs.type


@_define("reduce", ", str kind")
def reduce(*operands: Any) -> Tensor:
    pairs, kind = Pairs(*operands[:_FIELDS]), operands[_FIELDS]
    return _mercer.unfollowed(
        "kernel_reduce", parsed(pairs.f), *_points(pairs), kind, **options(pairs)
    )


@reduce.register_fake
def _(*operands: Any) -> Any:
    pairs, kind = Pairs(*operands[:_FIELDS]), operands[_FIELDS]
    return _new(pairs, _shape(pairs)[:-1], _reduce_type(pairs, kind))


@_define("knn", ", int k", "(Tensor, Tensor)")
def knn(*operands: Any) -> tuple[Tensor, Tensor]:
    pairs, k = Pairs(*operands[:_FIELDS]), operands[_FIELDS]
    return _mercer.unfollowed("knn", parsed(pairs.f), *_points(pairs), k, **options(pairs))


@knn.register_fake
def _(*operands: Any) -> Any:
    pairs, k = Pairs(*operands[:_FIELDS]), operands[_FIELDS]
    shape = (*_shape(pairs)[:-1], k)
    return _new(pairs, shape), _new(pairs, shape, torch.int64)


_FOLLOWED = {
    "pairwise": pairwise, "product": product, "field": field, "agop": agop, "reduce": reduce,
    "knn": knn,
}  # fmt: skip
for _name, _operator in _FOLLOWED.items():
    autograd.register(_name, _operator)
