"""Verbs on pairs as primitives of JAX: traced, mapped, partitioned and differentiated as its own.

    pairwise  [..., M, N]     the formula on all pairs
    product   [..., M, E]     that matrix times v [..., N, E]
    field     [..., O, M, K]  sum over n of amplitude[m, n] coef[o, n] d f(x_m, z_n) / d x[m, k];
                              by w [..., O, K], summed over m too
    gradient  [..., M, K]     sum over n and e of u[m, e] v[n, e] d f(x_m, z_n) / d x[m, k]

A primitive takes directions: then it is about a derivative of the formula (``Pairs``), and it is
linear in each of them. So the tangents of a primitive are primitives, and so are the transposes
of those (the rules are those of docs/design/autograd.md): derivatives of any order, in any mode.
Without directions the engine computes; with them ``_jax_steps`` does. A gradient never has any: it
is a field whose amplitude is u v', without an array of all pairs.

All operands but w have the same number of leading axes, so the axis that vmap adds is one more of
each.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from mercer import _jax_sharding, _jax_steps
from mercer._array_likes import computing_type
from mercer._derived import SWAPPED, derivative, field_of, leaves, swapped_text
from mercer._jax_primitive import primitive
from mercer._jax_sharding import Rule, factors, partitioned

# JAX's own choice for float32 keeps eleven binary digits on GPUs.
FULL = jax.lax.Precision.HIGHEST
# Axes after the leading ones; of a parameter ("p:name") there are none.
_TRAILING = {"x": 2, "z": 2, "row": 1, "col": 1, "w": 1, "u": 2, "v": 2, "amplitude": 2, "coef": 2}
_MATRICES = ("u", "v", "amplitude", "coef")
_OPERATIONS = {
    "pairwise": "pairwise", "product": "kernel_product", "gradient": "product_gradient",
}  # fmt: skip
# What the axes after the leading ones run over (_jax_sharding).
_FACTORS = {
    "x": "mk", "z": "nk", "row": "m", "col": "n", "w": "k", "u": "me", "v": "ne",
    "amplitude": "mn", "coef": "on", "p": "", "t": "mk", "s": "nk",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Form:
    """What a primitive computes, but for its operands, which are named here in their order: of the
    pairs, then directions "d0", "d1", …, then matrices."""

    kind: str
    f: str
    operands: tuple[str, ...]
    numbers: tuple[tuple[str, float], ...]
    along: str  # the target of each direction: x, z, w, or t and s, the multiplier of a field
    wrt: str  # of a field: x, w or t
    i_offset: int
    j_offset: int
    options: str  # in force when the verb was called
    verb: str

    def trailing(self, name: str) -> int:
        if name[0] == "d":
            return 1 if self.along[int(name[1:])] == "w" else 2
        return _TRAILING.get(name, 0)

    def role(self, name: str) -> str:
        """The operand whose axes it has."""
        return self.along[int(name[1:])] if name[0] == "d" else "p" if name[1:2] == ":" else name

    def own_axes(self) -> str:
        """The factors of the result's axes after the leading ones."""
        if self.kind == "field":
            return "ok" if self.wrt == "w" else "omk"
        return {"pairwise": "mn", "product": "me", "gradient": "mk"}[self.kind]

    def leading(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        return () if name == "w" else tuple(shape[: len(shape) - self.trailing(name)])

    def batch(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        given = [self.leading(n, s) for n, s in zip(self.operands, shapes, strict=True)]
        return np.broadcast_shapes(*given)

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        by = dict(zip(self.operands, shapes, strict=True))
        batch, (m, k) = self.batch(shapes), by["x"][-2:]
        if self.kind == "pairwise":
            return (*batch, m, by.get("z", by["x"])[-2])
        if self.kind == "product":
            return (*batch, m, by["v"][-1])
        if self.kind == "gradient":
            return (*batch, m, k)
        outputs = by["coef"][-2]
        return (*batch, outputs, k) if self.wrt == "w" else (*batch, outputs, m, k)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """A formula on pairs of points. `arrays` has x, z, row, col, w and parameters as "p:name"; no z
    means that it is x. What is computed of f is its derivative at t = 0 where each direction is
    added, t times, to its target in `along`."""

    f: str
    arrays: Mapping[str, Any]
    numbers: tuple[tuple[str, float], ...] = ()
    directions: tuple[Any, ...] = ()
    along: str = ""
    i_offset: int = 0
    j_offset: int = 0
    options: str = ""
    verb: str = ""

    @property
    def type(self) -> Any:
        return computing_type(self.arrays["x"].dtype)

    @property
    def columns(self) -> Any:
        return self.arrays.get("z", self.arrays["x"])

    def ones(self, points: Any) -> Any:
        return jnp.ones((1, points.shape[-2]), self.type)

    def swapped(self) -> Pairs:
        """Pairs with the roles of rows and columns exchanged."""
        names = {"row": "col", "col": "row", "x": "z", "z": "x"}
        arrays = {names.get(name, name): array for name, array in self.arrays.items()}
        if "z" not in self.arrays:
            arrays["x"] = arrays.pop("z")
        return dataclasses.replace(
            self, f=swapped_text(self.f), arrays=arrays,
            along="".join(SWAPPED[target] for target in self.along),
            i_offset=self.j_offset, j_offset=self.i_offset,
        )  # fmt: skip

    def moved(self, target: str, direction: Any) -> Pairs:
        """Differentiated once more, in this direction of the target."""
        directions = (*self.directions, direction.astype(self.type))
        return dataclasses.replace(self, directions=directions, along=self.along + target)

    def without_direction(self, index: int) -> Pairs:
        directions = self.directions[:index] + self.directions[index + 1 :]
        along = self.along[:index] + self.along[index + 1 :]
        return dataclasses.replace(self, directions=directions, along=along)

    def by(self, variable: str) -> Pairs:
        """Differentiated by row, col or a parameter."""
        return self.with_formula(derivative(self.f, variable))

    def with_formula(self, text: str) -> Pairs:
        """Another formula on the same points; what it does not read is left out."""
        read = leaves(text) | {"x", "z"}
        arrays = {name: array for name, array in self.arrays.items() if name in read}
        numbers = tuple((name, value) for name, value in self.numbers if f"p:{name}" in read)
        return dataclasses.replace(self, f=text, arrays=arrays, numbers=numbers)

    def with_outputs(self) -> Pairs:
        """Pairs with one more leading axis, the last one, along which directions may vary."""
        axes = max(
            (a.ndim - _TRAILING.get(n, 0) for n, a in self.arrays.items() if n != "w"), default=0
        )
        widths = [1 if target == "w" else 2 for target in self.along]
        axes = max([axes, *(d.ndim - w for d, w in zip(self.directions, widths, strict=True))])

        def wide(array: Any, trailing: int) -> Any:
            return jnp.expand_dims(_led_by(array, axes, trailing), axes)

        arrays = {
            name: array if name == "w" else wide(array, _TRAILING.get(name, 0))
            for name, array in self.arrays.items()
        }
        directions = tuple(wide(d, width) for d, width in zip(self.directions, widths, strict=True))
        return dataclasses.replace(self, arrays=arrays, directions=directions)


def _led_by(array: Any, axes: int, trailing: int) -> Any:
    missing = axes + trailing - array.ndim
    return jnp.expand_dims(array, tuple(range(missing))) if missing > 0 else array


# ---- The primitives as functions. ---------------------------------------------------------------


def pairwise(pairs: Pairs) -> Any:
    return _bind(pairs, "pairwise")


def product(pairs: Pairs, v: Any) -> Any:
    return _bind(pairs, "product", v=v)


def field(pairs: Pairs, wrt: str, coef: Any, amplitude: Any = None) -> Any:
    """The field by x, w, t, or by z, s of the rows z, whose weights are swapped: [..., O, N, K]."""
    given = {"coef": coef} if amplitude is None else {"amplitude": amplitude, "coef": coef}
    return _bind(pairs, "field", wrt, **given)


def gradient(pairs: Pairs, u: Any, v: Any) -> Any:
    return _bind(pairs, "gradient", u=u, v=v)


def formed(pairs: Pairs, kind: str, wrt: str = "", **matrices: Any) -> tuple[Form, list[Any]]:
    """The form of a call, and its operands with as many leading axes each."""
    directions = {f"d{i}": d for i, d in enumerate(pairs.directions)}
    matrices = {name: matrix.astype(pairs.type) for name, matrix in matrices.items()}
    arrays = {**pairs.arrays, **directions, **matrices}
    form = Form(
        kind, pairs.f, tuple(arrays), pairs.numbers, pairs.along, wrt,
        pairs.i_offset, pairs.j_offset, pairs.options, pairs.verb,
    )  # fmt: skip
    axes = max(a.ndim - form.trailing(n) for n, a in arrays.items() if n != "w")
    return form, [a if n == "w" else _led_by(a, axes, form.trailing(n)) for n, a in arrays.items()]


def _bind(pairs: Pairs, kind: str, wrt: str = "", **matrices: Any) -> Any:
    form, operands = formed(pairs, kind, wrt, **matrices)
    return _jax_sharding.bind(
        functools.partial(pairs_p.bind, form=form), _rule(operands, form), operands
    )


def unpacked(operands: Sequence[Any], form: Form) -> tuple[Pairs, dict[str, Any]]:
    """The pairs, and the matrices of the call."""
    arrays: dict[str, Any] = {}
    matrices: dict[str, Any] = {}
    directions: list[Any] = []
    for name, operand in zip(form.operands, operands, strict=True):
        if name[0] == "d":
            directions.append(operand)
        else:
            (matrices if name in _MATRICES else arrays)[name] = operand
    pairs = Pairs(
        form.f, arrays, form.numbers, tuple(directions), form.along,
        form.i_offset, form.j_offset, form.options, form.verb,
    )  # fmt: skip
    return pairs, matrices


def _run(form: Form, pairs: Pairs, matrices: Mapping[str, Any]) -> Any:
    return _bind(pairs, form.kind, form.wrt, **matrices)


# ---- Forward mode. ------------------------------------------------------------------------------


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, form: Form) -> tuple:
    result = pairs_p.bind(*primals, form=form)
    pairs, matrices = unpacked(primals, form)
    if form.kind == "gradient" and any(type(tangent) is not ad.Zero for tangent in tangents):
        return result, _tangent_of_gradient(primals, tangents, form)
    parts = [
        part
        for name, tangent in zip(form.operands, tangents, strict=True)
        if type(tangent) is not ad.Zero
        for part in _moves(form, pairs, matrices, name, tangent)
    ]
    if not parts:
        return result, _jax_sharding.zero(result)
    return result, jnp.broadcast_to(functools.reduce(jnp.add, parts), result.shape)


def _tangent_of_gradient(primals: Sequence[Any], tangents: Sequence[Any], form: Form) -> Any:
    """The tangent of the field that a gradient is."""
    followed = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]

    def as_field(*given: Any) -> Any:
        operands = list(primals)
        for i, operand in zip(followed, given, strict=True):
            operands[i] = operand
        pairs, matrices = unpacked(operands, form)
        amplitude = jnp.matmul(matrices["u"], matrices["v"].mT, precision=FULL)
        found = field(pairs, "x", pairs.ones(pairs.columns), amplitude)[..., 0, :, :]
        return jnp.broadcast_to(found, form.shape([o.shape for o in operands]))

    return jax.jvp(as_field, [primals[i] for i in followed], [tangents[i] for i in followed])[1]


def _moves(
    form: Form, pairs: Pairs, matrices: dict[str, Any], name: str, tangent: Any
) -> list[Any]:
    """What the tangent of one operand adds to that of the result."""
    tangent = tangent.astype(pairs.type)
    if name in ("x", "z", "w"):
        targets = "xz" if name == "x" and "z" not in pairs.arrays else name
        return [_run(form, pairs.moved(target, tangent), matrices) for target in targets]
    if name[0] == "d":
        directions = list(pairs.directions)
        directions[int(name[1:])] = tangent
        moved = dataclasses.replace(pairs, directions=tuple(directions))
        return [_run(form, moved, matrices)]
    if name in _MATRICES:
        return [_run(form, pairs, {**matrices, name: tangent})]
    return [_scaled(form, pairs.by(name), matrices, name, tangent)]


def _scaled(form: Form, pairs: Pairs, matrices: dict[str, Any], name: str, factor: Any) -> Any:
    """The result times a factor of each row ("row"), column ("col") or item of the batch."""
    if name == "col" and form.kind != "pairwise":
        if form.kind == "product":
            return _run(form, pairs, {"v": matrices["v"] * factor[..., :, None]})
        return _run(form, pairs, {**matrices, "coef": matrices["coef"] * factor[..., None, :]})
    if name == "row" and form.wrt == "w":  # the rows are summed
        shape = (pairs.arrays["x"].shape[-2], pairs.columns.shape[-2])
        amplitude = matrices.get("amplitude", jnp.ones(shape, pairs.type))
        return _run(form, pairs, {**matrices, "amplitude": amplitude * factor[..., :, None]})
    result = _run(form, pairs, matrices)
    outputs = form.kind == "field"  # the axis O is between those of the batch and the rows
    if name == "row":
        factor = factor[..., None, :, None] if outputs else factor[..., :, None]
    elif name == "col":
        factor = factor[..., None, :]
    else:
        extra = 1 + outputs + (form.wrt != "w")
        factor = jnp.expand_dims(factor, tuple(range(factor.ndim, factor.ndim + extra)))
    return result * factor


# ---- Reverse mode: each primitive is linear in its directions and matrices. ---------------------


def _transposed(cotangent: Any, *operands: Any, form: Form) -> list[Any]:
    found: list[Any] = [None] * len(operands)
    if type(cotangent) is ad.Zero:
        return found
    (place,) = (i for i, o in enumerate(operands) if ad.is_undefined_primal(o))
    name, aval = form.operands[place], operands[place].aval
    pairs, matrices = unpacked(operands, form)
    rule = {"pairwise": _pairwise_by, "product": _product_by, "field": _field_by}[form.kind]
    result = rule(pairs, matrices, form, name, cotangent)
    found[place] = _summed_to(result, aval.shape).astype(aval.dtype)
    return found


def _pairwise_by(pairs: Pairs, _: dict, form: Form, name: str, cotangent: Any) -> Any:
    index = int(name[1:])
    target, rest = form.along[index], pairs.without_direction(index)
    if target in "zs":
        rest, target, cotangent = rest.swapped(), SWAPPED[target], cotangent.mT
    return field(rest, target, rest.ones(rest.columns), cotangent)[
        (..., 0, slice(None)) if target == "w" else (..., 0, slice(None), slice(None))
    ]


def _product_by(pairs: Pairs, matrices: dict, form: Form, name: str, cotangent: Any) -> Any:
    if name == "v":
        return product(pairs.swapped(), cotangent)
    index = int(name[1:])
    target, rest, v = form.along[index], pairs.without_direction(index), matrices["v"]
    if target in "zs":
        rest, target, v, cotangent = rest.swapped(), SWAPPED[target], cotangent, v
    if target == "x" and not rest.along:
        return gradient(rest, cotangent, v)
    columns, features = v.shape[-1], pairs.arrays["x"].shape[-1]
    if target == "w" or columns * features > rest.columns.shape[-2]:
        amplitude = jnp.matmul(cotangent, v.mT, precision=FULL)
        by = field(rest, target, rest.ones(rest.columns), amplitude)
        return by[..., 0, :] if target == "w" else by[..., 0, :, :]
    parts = field(rest, target, v.mT)  # [..., E, M, K]
    return jnp.einsum("...me,...emk->...mk", cotangent, parts, precision=FULL)


def _field_by(pairs: Pairs, matrices: dict, form: Form, name: str, cotangent: Any) -> Any:
    """The field in the direction of its cotangent is the formula's derivative in that direction."""
    coef, amplitude = matrices["coef"], matrices.get("amplitude")
    rest = pairs.without_direction(int(name[1:])) if name[0] == "d" else pairs
    moved = rest.with_outputs().moved(form.wrt, cotangent)
    if name == "coef":
        if amplitude is None:
            return product(moved.swapped(), moved.ones(moved.arrays["x"]).mT)[..., 0]
        return (amplitude[..., None, :, :] * pairwise(moved)).sum(-2)
    if name == "amplitude":
        return (coef[..., :, None, :] * pairwise(moved)).sum(-3)
    target = form.along[int(name[1:])]
    wide_amplitude = None if amplitude is None else amplitude[..., None, :, :]
    if target in "xtw":
        found = field(moved, target, coef[..., :, None, :], wide_amplitude)
        return found[..., 0, :].sum(-2) if target == "w" else found[..., 0, :, :].sum(-3)
    swapped = moved.swapped()
    turned = None if wide_amplitude is None else wide_amplitude.mT
    found = field(swapped, SWAPPED[target], swapped.ones(swapped.columns), turned)[..., 0, :, :]
    return (found * coef[..., :, :, None]).sum(-3)


def _summed_to(array: Any, shape: Sequence[int]) -> Any:
    """The transpose of broadcasting an array of this shape."""
    if array.ndim > len(shape):
        array = array.sum(tuple(range(array.ndim - len(shape))))
    pairs = enumerate(zip(array.shape, shape, strict=True))
    axes = tuple(i for i, (have, wanted) in pairs if have != wanted)
    return array.sum(axes, keepdims=True) if axes else array


# ---- Mapping, shapes and lowering. --------------------------------------------------------------


def mapped(
    bind: Callable[..., Any], operands: Sequence[Any], axes: Sequence[Any], form: Form
) -> Any:
    """One more leading axis for each; of w, which has none, one call an item."""
    weights = [n == "w" and a is not None for n, a in zip(form.operands, axes, strict=True)]
    if any(weights):
        return _one_by_one(bind, operands, axes)
    led = [
        operand
        if name == "w"
        else operand[None]
        if axis is None
        else jnp.moveaxis(operand, axis, 0)
        for name, operand, axis in zip(form.operands, operands, axes, strict=True)
    ]
    return bind(*led)


def _one_by_one(bind: Callable[..., Any], operands: Sequence[Any], axes: Sequence[Any]) -> Any:
    places = [i for i, axis in enumerate(axes) if axis is not None]
    stacked = [jnp.moveaxis(operands[i], axes[i], 0) for i in places]

    def one(values: Sequence[Any]) -> Any:
        given = list(operands)
        for i, value in zip(places, values, strict=True):
            given[i] = value
        return bind(*given)

    return jax.lax.map(one, stacked)


def _lowered(*operands: Any, form: Form) -> Any:
    """Calls the engine, on each shard where the call is divided over devices."""
    pairs, _ = unpacked(operands, form)
    shapes = [o.shape for o in operands]
    shape = form.shape(shapes)
    if 0 in shape or (form.kind != "pairwise" and pairs.columns.shape[-2] == 0):
        return jnp.zeros(shape, pairs.type)
    given = list(operands)
    apart = form
    if "z" not in form.operands:
        given.append(pairs.columns)
        apart = dataclasses.replace(form, operands=(*form.operands, "z"))
    rule = _rule(given, apart)
    return partitioned(
        rule,
        lambda *parts: _computed(parts[: len(operands)], form),
        lambda *parts: _computed(parts, apart),
        *given,
    )


def _rule(operands: Sequence[Any], form: Form) -> Rule:
    folded = {"pairwise": (), "gradient": ("n", "e")}.get(form.kind, ("n",))
    folded = ("n", "m") if form.wrt == "w" else folded
    return rule_of(operands, form, [form.own_axes()], folded)


def rule_of(
    operands: Sequence[Any],
    form: Form,
    results: Sequence[Sequence[str]],
    folded: Sequence[str],
    whole: Sequence[str] = (),
    combine: str = "sum",
) -> Rule:
    """How a call is divided; `results` are the axes of each after the leading ones."""
    shapes = [o.shape for o in operands]
    batch = form.batch(shapes)
    given = (
        factors(shape, () if name == "w" else batch, _FACTORS[form.role(name)], place)
        for place, (name, shape) in enumerate(zip(form.operands, shapes, strict=True))
    )
    leading = tuple(f"b{axis}" for axis in range(len(batch)))
    read = leaves(form.f)
    by_index = (side for side, index in (("m", "i"), ("n", "j")) if index in read)
    made = tuple((*leading, *own) for own in results)
    return Rule(tuple(given), made, tuple(folded), ("k", *by_index, *whole), combine)


def _computed(operands: Sequence[Any], form: Form) -> Any:
    pairs, matrices = unpacked(operands, form)
    shape = form.shape([o.shape for o in operands])
    if form.along:
        return _jax_steps.evaluate(form.kind, pairs, form.wrt, matrices, shape)
    if form.kind != "field":
        return _engine(_OPERATIONS[form.kind], pairs, matrices, shape)
    rows = shape if form.wrt != "w" else (*shape[:-1], pairs.arrays["x"].shape[-2], shape[-1])
    if form.wrt == "x" and "amplitude" not in matrices:
        return _engine("kernel_gradient", pairs, matrices, rows)
    if form.wrt != "t":
        pairs = pairs.with_formula(field_of(pairs.f, form.wrt))
    if "amplitude" not in matrices:
        one = jnp.ones((), pairs.type)
        pair = (pairs.arrays["x"].shape[-2], pairs.columns.shape[-2])
        lead = (1,) * (pairs.arrays["x"].ndim - 2)
        matrices = {"amplitude": jnp.broadcast_to(one, (*lead, *pair)), **matrices}
    found = _engine("gradient_field", pairs, matrices, rows)
    return found.sum(-2) if form.wrt == "w" else found


def _engine(operation: str, pairs: Pairs, matrices: dict[str, Any], shape: tuple) -> Any:
    result = jax.ShapeDtypeStruct(shape, pairs.type)
    return engine(operation, pairs, {**pairs.arrays, **matrices}, result)


def engine(
    operation: str, pairs: Pairs, arrays: Mapping[str, Any], results: Any, **settings: Any
) -> Any:
    from mercer import _jax

    return _jax.ffi_call(results)(
        *arrays.values(),
        operands=" ".join(arrays),
        verb=pairs.verb,
        operation=operation,
        formula=pairs.f,
        options=pairs.options,
        i_offset=np.int64(pairs.i_offset),
        j_offset=np.int64(pairs.j_offset),
        **{f"n:{name}": np.float64(value) for name, value in pairs.numbers},
        **settings,
    )


def _batched(operands: Sequence[Any], axes: Sequence[Any], *, form: Form) -> tuple:
    return mapped(functools.partial(pairs_p.bind, form=form), operands, axes, form), 0


def _abstract(*operands: Any, form: Form) -> Any:
    shape = form.shape([o.shape for o in operands])
    dtype = next(o.dtype for n, o in zip(form.operands, operands, strict=True) if n == "x")
    return _jax_sharding.result_type(shape, computing_type(dtype), operands)


pairs_p = primitive(
    "pairs", abstract=_abstract, lowered=_lowered, jvp=_jvp, batched=_batched,
    transposed=_transposed, is_partitioned=True,
)  # fmt: skip
