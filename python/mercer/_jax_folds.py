"""Verbs that fold the pairs over n, as a primitive of JAX with several results.

    reduce  [..., M]        "max", "min", "argmax", "argmin", "logsumexp"; a sum is a product
    knn     [..., M, k]     the smallest values and their indices
    agop    [..., K, K]     the average gradient outer product of coef [..., O, N]
    fold    [..., O, M, K]  a reduction over n of a field; [..., M, K] where it reads no coef

Values are differentiated by the pairs that they are of (docs/design/autograd.md); indices, agop and
fold have no derivative.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from mercer import _array_likes, _jax_pairs, _jax_sharding, _mercer
from mercer._derived import leaves, parsed
from mercer._jax_pairs import Form, Pairs
from mercer._jax_primitive import primitive

_OPERATIONS = {"knn": "knn", "agop": "kernel_agop", "fold": "gradient_fold"}


def reduce(pairs: Pairs, kind: str) -> Any:
    if kind == "sum":
        return _jax_pairs.product(pairs, pairs.ones(pairs.columns).mT)[..., 0]
    return _bind(pairs, kind)[0]


def knn(pairs: Pairs, neighbours: int) -> tuple[Any, Any]:
    points = pairs.columns.shape[-2]
    if not 1 <= neighbours <= points:
        raise ValueError(
            f"knn: k must be from 1 to the number of points of z ({points}). Received {neighbours}."
        )
    values, indices = _bind(pairs, "knn", neighbours)
    return values, indices


def agop(pairs: Pairs, coef: Any) -> Any:
    return _bind(pairs, "agop", coef=coef)[0]


def fold(pairs: Pairs, matrices: Mapping[str, Any]) -> Any:
    return _bind(pairs, "fold", **matrices)[0]


def _bind(pairs: Pairs, kind: str, count: int = 0, **matrices: Any) -> list[Any]:
    form, operands = _jax_pairs.formed(pairs, kind, **matrices)
    bind = functools.partial(folds_p.bind, form=form, count=count)
    return _jax_sharding.bind(bind, _rule(operands, form), operands)


# ---- Shapes. ------------------------------------------------------------------------------------


def _results(form: Form, shapes: Sequence[Sequence[int]], count: int) -> list[tuple]:
    """Axes, shape and dtype of each result."""
    by = dict(zip(form.operands, shapes, strict=True))
    batch, (m, k) = form.batch(shapes), by["x"][-2:]
    if form.kind == "fold":
        outputs = (by["coef"][-2],) if "coef" in by else ()
        return [("omk" if outputs else "mk", (*batch, *outputs, m, k), "")]
    if form.kind == "agop":
        return [("kl", (*batch, k, k), "")]
    if form.kind == "knn":
        return [("mq", (*batch, m, count), ""), ("mq", (*batch, m, count), "int64")]
    return [("m", (*batch, m), "int64" if form.kind.startswith("arg") else "")]


def _types(form: Form, shapes: Sequence[Any], count: int, computing: Any) -> list[Any]:
    """As XLA has them: without 64-bit types int64 are pairs of int32, the low half first."""
    found = []
    for _, shape, dtype in _results(form, shapes, count):
        halves = dtype == "int64" and not jax.config.jax_enable_x64
        wide = np.dtype(np.int32 if halves else dtype or computing)
        found.append(jax.ShapeDtypeStruct((*shape, 2) if halves else shape, wide))
    return found


def _computing(form: Form, operands: Sequence[Any]) -> Any:
    x = operands[form.operands.index("x")]
    return _array_likes.computing_type(x.dtype)


def _abstract(*operands: Any, form: Form, count: int) -> list[Any]:
    computing = _computing(form, operands)
    index = np.int64 if jax.config.jax_enable_x64 else np.int32
    return [
        _jax_sharding.result_type(shape, np.dtype(index if dtype else computing), operands)
        for _, shape, dtype in _results(form, [o.shape for o in operands], count)
    ]


# ---- Lowering. ----------------------------------------------------------------------------------


def _rule(operands: Sequence[Any], form: Form) -> Any:
    own = [axes for axes, _, _ in _results(form, [o.shape for o in operands], 1)]
    if form.kind == "agop":
        return _jax_pairs.rule_of(operands, form, own, ("m",), ("n", "l", "o"))
    if form.kind == "fold":
        return _jax_pairs.rule_of(operands, form, own, (), ("n",))
    if form.kind in ("max", "min"):
        return _jax_pairs.rule_of(operands, form, own, ("n",), (), form.kind)
    return _jax_pairs.rule_of(operands, form, own, (), ("n", "q"))


def _lowered(*operands: Any, form: Form, count: int) -> Any:
    given, apart = list(operands), form
    if "z" not in form.operands:
        given.append(operands[form.operands.index("x")])
        apart = dataclasses.replace(form, operands=(*form.operands, "z"))
    found = _jax_sharding.partitioned(
        _rule(given, apart),
        lambda *parts: _computed(parts[: len(operands)], form, count),
        lambda *parts: _computed(parts, apart, count),
        *given,
    )
    return list(found) if isinstance(found, tuple) else [found]


def _computed(operands: Sequence[Any], form: Form, count: int) -> Any:
    pairs, matrices = _jax_pairs.unpacked(operands, form)
    operation = _OPERATIONS.get(form.kind, "kernel_reduce")
    settings: dict[str, dict[str, Any]] = {
        "knn": {"k": np.int64(count)},
        "kernel_reduce": {"reduce": form.kind},
    }
    types = _types(form, [o.shape for o in operands], count, pairs.type)
    arrays = {**pairs.arrays, **matrices}
    found = _jax_pairs.engine(operation, pairs, arrays, types, **settings.get(operation, {}))
    halves = [r[..., 0] if r.dtype == np.int32 else r for r in found]
    return tuple(halves) if len(halves) > 1 else halves[0]


# ---- Derivatives. -------------------------------------------------------------------------------


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, form: Form, count: int) -> tuple:
    results = folds_p.bind(*primals, form=form, count=count)
    zeros = [_jax_sharding.zero(r) for r in results]
    if form.kind in ("agop", "fold") and any(type(t) is not ad.Zero for t in tangents):
        raise NotImplementedError(
            f"{form.verb}: must not be differentiated for arrays of JAX, where "
            f"{'the verb' if form.kind == 'agop' else 'a combine other than a sum'} has no "
            "derivative. Received a call of which one is asked"
        )
    if form.kind.startswith("arg") or all(type(t) is ad.Zero for t in tangents):
        return results, zeros
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
    value = functools.partial(_value, form=form, count=count, results=results)

    def moved(*values: Any) -> Any:
        operands = list(primals)
        for i, given in zip(moving, values, strict=True):
            operands[i] = given
        return value(operands)

    _, tangent = jax.jvp(moved, [primals[i] for i in moving], [tangents[i] for i in moving])
    return results, [tangent, *zeros[1:]]


def _value(operands: Sequence[Any], form: Form, count: int, results: Sequence[Any]) -> Any:
    """Something that has the tangent of the first result."""
    pairs, _ = _jax_pairs.unpacked(operands, form)
    if form.kind == "logsumexp":
        return _shifted_sum(pairs, results[0])
    if form.kind == "knn":
        return _at(pairs, results[1])
    index = folds_p.bind(*operands, form=dataclasses.replace(form, kind="arg" + form.kind), count=0)
    return _at(pairs, jax.lax.stop_gradient(index[0])[..., None])[..., 0]


def _shifted_sum(pairs: Pairs, out: Any) -> Any:
    """The sum over n of exp(f - out) with out held: its tangent is that of logsumexp."""
    if "row" in leaves(pairs.f):
        values = _jax_pairs.pairwise(pairs)
        weights = jax.lax.stop_gradient(jnp.exp(values - out[..., None]))
        return (weights * jnp.where(weights == 0, 0, values)).sum(-1)
    text = str(_mercer.exp(parsed(pairs.f) - _mercer.row))
    shifted = dataclasses.replace(pairs, f=text, arrays={**pairs.arrays, "row": out})
    return _jax_pairs.product(shifted, shifted.ones(shifted.columns).mT)[..., 0]


def _at(pairs: Pairs, index: Any) -> Any:
    """f(x_m, z_index[m, q]), [..., M, Q]."""
    if leaves(pairs.f) & {"i", "j"}:
        return jnp.take_along_axis(_jax_pairs.pairwise(pairs), index, -1)
    batch = index.shape[:-2]

    def gathered(values: Any, trailing: int) -> Any:
        wide = jnp.broadcast_to(values, (*batch, *values.shape[values.ndim - trailing :]))
        if trailing == 1:
            return jnp.take_along_axis(wide[..., None, :], index, -1)
        return jnp.take_along_axis(wide[..., None, :, :], index[..., None], -2)

    arrays = {}
    for name, array in pairs.arrays.items():
        if name == "x":
            arrays[name] = array[..., :, None, :]
        elif name == "row":
            arrays[name] = array[..., :, None]
        elif name == "col":
            arrays[name] = gathered(array, 1)
        elif name.startswith("p:"):
            arrays[name] = array[..., None]
        elif name != "z":
            arrays[name] = array
    arrays["z"] = gathered(pairs.columns, 2)
    near = dataclasses.replace(pairs, arrays=arrays)
    return _jax_pairs.pairwise(near)[..., 0, :]


def _batched(operands: Sequence[Any], axes: Sequence[Any], *, form: Form, count: int) -> tuple:
    bind = functools.partial(folds_p.bind, form=form, count=count)
    found = _jax_pairs.mapped(bind, operands, axes, form)
    return found, [0] * len(found)


folds_p = primitive(
    "folds", abstract=_abstract, lowered=_lowered, jvp=_jvp, batched=_batched, several=True,
    is_partitioned=True,
)  # fmt: skip
