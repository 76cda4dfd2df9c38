"""The products of mercer.kron as primitives of JAX: traced, mapped and differentiated as its own.

    product  alpha op(x) (op(F1) (x) ... (x) op(FN)) + beta y, or the factors times op(x)
    tangent  what directions of some operands add to it: it is linear in each of them

All operands have the same number of axes, so the axis that vmap adds is one more leading axis of
each. ``product`` is one call of the handler that serves all verbs, ``tangent`` a sum of products;
read backwards it gives all gradients at once. With G the cotangent,

    by x    alpha G (F1' (x) ... (x) FN')
    by F_i  alpha times the sum over m, l, r of T_i[m, l, p, r] S_i[m, l, q, r]

T_i is x with the factors after i applied, S_i is G with the transposes of those before it: each
takes one more factor than the next one, and nothing has the size of the Kronecker product.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from mercer import _jax, _jax_sharding, _mercer
from mercer._jax_primitive import primitive


@dataclasses.dataclass(frozen=True)
class Form:
    """What a product is, but for its operands: x, the factors and, where beta is not 0, y."""

    left: bool
    turn_x: bool
    turns: tuple[bool, ...]  # of each factor
    alpha: float = 1.0
    beta: float = 0.0
    options: str = dataclasses.field(default_factory=_mercer.settings_text)  # in force by then

    def shape(self, x: Any, factors: Sequence[Any], more: Sequence[Any] = ()) -> tuple[int, ...]:
        """The shape of the result; leading axes broadcast, those of ``more`` as well."""
        batch = np.broadcast_shapes(*(o.shape[:-2] for o in (x, *factors, *more)))
        rows = x.shape[-1 if self.turn_x != self.left else -2]
        columns = math.prod(
            f.shape[-2 if turn != self.left else -1]
            for f, turn in zip(factors, self.turns, strict=True)
        )
        return (*batch, columns, rows) if self.left else (*batch, rows, columns)


def call(
    left: bool, x: Any, factors: Sequence[Any], alpha: Any, beta: Any, y: Any,
    transpose_x: bool, transpose_factors: Sequence[bool],
) -> jax.Array:  # fmt: skip
    """A verb with checked arguments."""
    if hasattr(alpha, "dtype") or hasattr(beta, "dtype"):  # numbers are a part of the program
        plain = call(left, x, factors, 1.0, 0.0, None, transpose_x, transpose_factors)
        scaled = _by(alpha, "alpha", plain, left)
        return scaled if y is None else scaled + _by(beta, "beta", y, left)
    factors = [jnp.expand_dims(f, 0 if left else 1) if f.ndim == 1 else f for f in factors]
    is_vector, axis = x.ndim == 1, -1 if left else -2
    if is_vector:
        x = jnp.expand_dims(x, axis)
        y = y if y is None or y.ndim == 0 else jnp.expand_dims(y, axis)
    axes = max(o.ndim for o in (x, *factors))
    operands = (x, *factors) if beta == 0 else (x, *factors, y)
    form = Form(left, transpose_x, tuple(transpose_factors), alpha, beta)
    result = product_p.bind(*(_aligned(o, axes) for o in operands), form=form)
    return jnp.squeeze(result, axis) if is_vector else result


def _by(scale: Any, name: str, array: Any, left: bool) -> Any:
    """The array times a number, or an array of one number that JAX differentiates by."""
    if not hasattr(scale, "dtype"):
        return _scaled(array, scale)
    whole = jnp.issubdtype(array.dtype, jnp.integer)
    if scale.ndim != 0 or (whole and not jnp.issubdtype(scale.dtype, jnp.integer)):
        raise ValueError(
            f"{'kron.kron_matmul' if left else 'kron.matmul'}: {name} must be a number or an array "
            f"of one, without axes{', and whole' if whole else ''}. "
            f"Received {scale.dtype.name}{list(scale.shape)}"
        )
    return array * scale.astype(array.dtype)


def _aligned(array: Any, axes: int) -> Any:
    return jnp.expand_dims(array, tuple(range(axes - array.ndim))) if array.ndim < axes else array


def _product(x: Any, factors: Sequence[Any], form: Form) -> Any:
    return product_p.bind(x, *factors, form=form)


def _scaled(array: Any, scale: float) -> Any:
    if scale == 1:
        return array
    return array * (int(scale) if jnp.issubdtype(array.dtype, jnp.integer) else scale)


def _turned(array: Any, turn: bool = True) -> Any:
    return jnp.swapaxes(array, -1, -2) if turn else array


# ---- product. -----------------------------------------------------------------------------------


def _call_handler(*operands: Any, form: Form) -> Any:
    x, factors = operands[0], operands[1 : 1 + len(form.turns)]
    verb = "kron.kron_matmul" if form.left else "kron.matmul"
    return _jax.ffi_call(jax.ShapeDtypeStruct(form.shape(x, factors), x.dtype))(
        *operands,
        verb=verb,
        operation=verb,
        operands=" ".join(["x", *(f"f:{i}" for i in range(len(factors))), "y"][: len(operands)]),
        transpose_x=np.int64(form.turn_x),
        transpose_factors="".join("1" if turn else "0" for turn in form.turns),
        alpha=np.float64(form.alpha),
        beta=np.float64(form.beta),
        options=form.options,
    )


def _product_batched(operands: Sequence[Any], axes: Sequence[Any], *, form: Form) -> tuple:
    if form.beta != 0 and all(axis is None for axis in axes[:-1]):  # y alone is mapped
        once = product_p.bind(*operands[:-1], form=dataclasses.replace(form, beta=0.0))
        return once + _scaled(jnp.moveaxis(operands[-1], axes[-1], 0), form.beta), 0
    return product_p.bind(*_led(operands, axes), form=form), 0


def _led(operands: Sequence[Any], axes: Sequence[Any]) -> list[Any]:
    """One more leading axis for each: the mapped one, or one of length 1."""
    return [
        operand[None] if axis is None else jnp.moveaxis(operand, axis, 0)
        for operand, axis in zip(operands, axes, strict=True)
    ]


def _product_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, form: Form) -> tuple:
    result = product_p.bind(*primals, form=form)
    given = tuple(type(t) is not ad.Zero for t in tangents)
    if not any(given) or not jnp.issubdtype(result.dtype, jnp.floating):
        return result, _jax_sharding.zero(result)
    directions = [t for t in tangents if type(t) is not ad.Zero]
    points = primals[: 1 + len(form.turns)]
    return result, tangent_p.bind(*points, *directions, form=form, given=given)


def _product_transposed(cotangent: Any, *operands: Any, form: Form) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [None] * len(operands)
    shapes = [o.aval.shape if ad.is_undefined_primal(o) else None for o in operands]
    points = operands[: 1 + len(form.turns)]
    return _gradients(points[0], points[1:], cotangent, form, shapes)


# ---- tangent. -----------------------------------------------------------------------------------


def _parts(operands: Sequence[Any], form: Form, given: Sequence[bool]) -> tuple:
    """x, the factors, and the direction of each operand of the product, None for those without."""
    count = 1 + len(form.turns)
    directions = iter(operands[count:])
    return operands[0], operands[1:count], [next(directions) if g else None for g in given]


def _tangent_shape(*operands: Any, form: Form, given: Sequence[bool]) -> tuple[int, ...]:
    x, factors, directions = _parts(operands, form, given)
    return form.shape(x, factors, [d for d in directions if d is not None])


def _sum_of_products(*operands: Any, form: Form, given: Sequence[bool]) -> Any:
    points = operands[: 1 + len(form.turns)]
    directions = _parts(operands, form, given)[2]
    total, plain = None, dataclasses.replace(form, beta=0.0)
    for i, direction in enumerate(directions):
        if direction is None:
            continue
        if i < len(points):
            part = product_p.bind(*points[:i], direction, *points[i + 1 :], form=plain)
        else:
            part = _scaled(direction, form.beta)
        total = part if total is None else total + part
    return jnp.broadcast_to(total, _tangent_shape(*operands, form=form, given=given))


def _tangent_batched(operands: Sequence[Any], axes: Sequence[Any], **settings: Any) -> tuple:
    return tangent_p.bind(*_led(operands, axes), **settings), 0


def _tangent_jvp(primals: Sequence[Any], tangents: Sequence[Any], **settings: Any) -> tuple:
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def moved(*values: Any) -> Any:
        operands = list(primals)
        for i, value in zip(moving, values, strict=True):
            operands[i] = value
        return _sum_of_products(*operands, **settings)

    return jax.jvp(moved, [primals[i] for i in moving], [tangents[i] for i in moving])


def _tangent_transposed(
    cotangent: Any, *operands: Any, form: Form, given: Sequence[bool]
) -> list[Any]:
    x, factors, directions = _parts(operands, form, given)
    skipped: list[Any] = [None] * (1 + len(factors))
    if type(cotangent) is ad.Zero:
        return [None] * len(operands)
    shapes = [d.aval.shape if ad.is_undefined_primal(d) else None for d in directions]
    found = _gradients(x, factors, cotangent, form, shapes)
    return skipped + [f for f, g in zip(found, given, strict=True) if g]


# ---- Gradients. ---------------------------------------------------------------------------------

# JAX's own choice for float32 keeps eleven binary digits on GPUs.
_FULL = jax.lax.Precision.HIGHEST


def _gradients(
    x: Any, factors: Sequence[Any], g: Any, form: Form, shapes: Sequence[tuple[int, ...] | None]
) -> list[Any]:
    """Gradients by those operands that have a shape here; others need not be there."""
    count = 1 + len(factors)
    found: list[Any] = [None] * len(shapes)
    added = shapes[count] if len(shapes) > count else None
    if added is not None:
        found[count] = _summed_to(_scaled(g, form.beta), added)
    if not any(shape is not None for shape in shapes[:count]):
        return found
    extents = [o.aval.shape if ad.is_undefined_primal(o) else o.shape for o in (x, *factors)]
    if form.alpha == 0 or 0 in g.shape or any(0 in shape for shape in extents):
        for i, shape in enumerate(shapes[:count]):
            found[i] = None if shape is None else jnp.zeros(shape, g.dtype)
        return found
    # kron_matmul is taken as matmul: out' = op(x)' (op(F1)' (x) ... (x) op(FN)').
    turn_x, turns = form.turn_x != form.left, [turn != form.left for turn in form.turns]
    g = _turned(_scaled(g, form.alpha), form.left)
    rows = x if ad.is_undefined_primal(x) else _turned(x, turn_x)
    wanted = [shape is not None for shape in shapes[:count]]
    for i, gradient in enumerate(_row_gradients(rows, factors, turns, g, extents[1:], wanted)):
        shape = shapes[i]
        if gradient is not None and shape is not None:
            found[i] = _summed_to(_turned(gradient, [turn_x, *turns][i]), shape)
    return found


def _row_gradients(
    x: Any, factors: Sequence[Any], turns: Sequence[bool], g: Any,
    extents: Sequence[tuple[int, ...]], wanted: Sequence[bool],
) -> list[Any]:  # fmt: skip
    """Gradients of x (op(F1) (x) ...) by x and each op(F_i), with the leading axes of the sum."""
    sides = [
        (shape[-1], shape[-2]) if turn else (shape[-2], shape[-1])
        for shape, turn in zip(extents, turns, strict=True)
    ]
    after = [math.prod(q for _, q in sides[i + 1 :]) for i in range(len(sides))]
    places = [i for i in range(len(factors)) if wanted[1 + i]]
    found: list[Any] = [None] * len(wanted)
    if not places:
        found[0] = _product(g, factors, Form(False, False, tuple(not turn for turn in turns)))
        return found
    partial, t = [x] * len(factors), x
    for i in range(len(factors) - 1, places[0], -1):
        t = partial[i - 1] = _along(t, factors[i], turns[i], sides[i], after[i])
    s = g
    for i, (p, q) in enumerate(sides):
        if wanted[1 + i]:
            found[1 + i] = _contracted(partial[i], s, p, q, after[i])
        if wanted[0] or i < places[-1]:
            s = _along(s, factors[i], not turns[i], (q, p), after[i])
    found[0] = s if wanted[0] else None
    return found


def _along(t: Any, factor: Any, turn: bool, sides: tuple[int, int], right: int) -> Any:
    """t [..., M, L P R] with op(factor) [..., P, Q] applied along P: [..., M, L Q R]."""
    m, (p, q) = t.shape[-2], sides
    left = t.shape[-1] // (p * right)
    if right == 1:
        rows = t.reshape(*t.shape[:-2], m * left, p)
        rows = _product(rows, [factor], Form(False, False, (turn,)))
        return rows.reshape(*rows.shape[:-2], m, left * q)
    columns = t.reshape(*t.shape[:-2], m * left, p, right)
    form = Form(True, False, (not turn,))
    columns = _product(columns, [jnp.expand_dims(factor, -3)], form)
    return columns.reshape(*columns.shape[:-3], m, left * q * right)


def _contracted(t: Any, s: Any, p: int, q: int, right: int) -> Any:
    """A matrix product, or one for each l: they read both arrays as they lie."""
    m, left = t.shape[-2], t.shape[-1] // (p * right)
    t = t.reshape(*t.shape[:-2], m * left, p, right)
    s = s.reshape(*s.shape[:-2], m * left, q, right)
    if right == 1:
        return jnp.matmul(t[..., 0].mT, s[..., 0], precision=_FULL)
    if right < q:  # one product: what is added up below would be larger than they are
        return jnp.einsum("...lpr,...lqr->...pq", t, s, precision=_FULL)
    return jnp.matmul(t, s.mT, precision=_FULL).sum(-3)


def _summed_to(array: Any, shape: Sequence[int]) -> Any:
    """The transpose of broadcasting an array of this shape."""
    pairs = enumerate(zip(array.shape, shape, strict=True))
    axes = tuple(i for i, (have, wanted) in pairs if have != wanted)
    return array.sum(axes, keepdims=True) if axes else array


# ---- The rules. ---------------------------------------------------------------------------------


def _product_type(*operands: Any, form: Form) -> Any:
    shape = form.shape(operands[0], operands[1 : 1 + len(form.turns)])
    return jax.core.ShapedArray(shape, operands[0].dtype)


def _tangent_type(*operands: Any, form: Form, given: Sequence[bool]) -> Any:
    return jax.core.ShapedArray(
        _tangent_shape(*operands, form=form, given=given), operands[0].dtype
    )


product_p = primitive(
    "kron_product", abstract=_product_type, lowered=_call_handler, jvp=_product_jvp,
    batched=_product_batched, transposed=_product_transposed,
)  # fmt: skip
tangent_p = primitive(
    "kron_tangent", abstract=_tangent_type, lowered=_sum_of_products, jvp=_tangent_jvp,
    batched=_tangent_batched, transposed=_tangent_transposed,
)  # fmt: skip
