"""The derivative of a weighted sum over pairs, for arrays whose library does not follow the verbs.

With S = sum_mn g_mn f(x_m, z_n), g a matrix or u v^T,

    dS/dp = sum_mn g_mn df/dp,    dS/dx_mk = sum_n g_mn df/dx_mk,    dS/dw_k = sum_mn g_mn df/dw_k

come from one pass over the pairs with the rows x; dS/dz and dS/dcol from one with the rows z, of
the formula with its sides swapped. For names that such a pass does not take, df/dp is a
formula again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mercer import _mercer, _progress
from mercer._derived import derivative, leaves, parsed, swapped_text
from mercer._libraries import namespace_of, plain
from mercer._mixed import require_one_library
from mercer.errors import DtypeError

_VERB = "parameter_gradient"
_ENGINE = ("pairwise_backward", "product_backward", "kernel_product", "pairwise")
_BLOCK = 1 << 22  # values of a derivative that are stored at a time


@dataclasses.dataclass(frozen=True)
class _Weights:
    """g [..., m, n], or u [..., m, r] and v [..., n, r]."""

    matrix: Any = None
    u: Any = None
    v: Any = None

    def swapped(self) -> _Weights:
        if self.matrix is not None:
            return _Weights(self.matrix.swapaxes(-1, -2))
        return _Weights(None, self.v, self.u)

    def of_both_sides(self) -> _Weights:
        """u v^T + v u^T."""
        library = namespace_of(self.u)
        join = getattr(library, "concatenate", None) or library.cat
        return _Weights(None, join([self.u, self.v], -1), join([self.v, self.u], -1))


@dataclasses.dataclass(frozen=True)
class _Pairs:
    f: str
    x: Any
    z: Any
    arrays: dict[str, Any]  # row, col and w, where they are given
    offsets: tuple[int, int]
    params: dict[str, Any]

    @property
    def columns(self) -> Any:
        return self.x if self.z is None else self.z

    def options(self) -> dict[str, Any]:
        i_offset, j_offset = self.offsets
        return {"i_offset": i_offset, "j_offset": j_offset, **self.arrays, **self.params}

    def swapped(self) -> _Pairs:
        sides = {"row": "col", "col": "row"}
        arrays = {sides.get(name, name): array for name, array in self.arrays.items()}
        x, z = (self.x, None) if self.z is None else (self.z, self.x)
        return _Pairs(swapped_text(self.f), x, z, arrays, self.offsets[::-1], self.params)

    def rows(self, first: int, end: int) -> _Pairs:
        arrays = dict(self.arrays)
        if "row" in arrays:
            arrays["row"] = arrays["row"][..., first:end]
        offsets = (self.offsets[0] + first, self.offsets[1])
        near = self.x[..., first:end, :]
        return _Pairs(self.f, near, self.columns, arrays, offsets, self.params)


@_progress.watched
def parameter_gradient(
    f: Any, x: Any, z: Any = None, weights: Any = None, *, by: Sequence[str] | str | None = None,
    w: Any = None, row: Any = None, col: Any = None, i_offset: int = 0, j_offset: int = 0,
    progress: bool = False, **params: Any,
) -> dict[str, Any]:  # fmt: skip
    """Derivatives of sum_mn weights[m, n] f(x_m, z_n), by name, in one pass over the pairs.

    f, x, z, w, row, col, i_offset, j_offset, params: those of pairwise; arrays of NumPy, PyTorch,
    CuPy or JAX, under whose transforms it works as the verbs do. weights: [..., M, N], read where
    it lies; or a pair (u, v) of [..., M, R] and [..., N, R], or [M] and [N], for u v^T, which is
    never stored; or None for ones. by: names of parameters of the formula, "x", "z", "w", "row" or
    "col"; all parameters when nothing is said.

    The result is a dict in the order of ``by``. By a parameter that is a number: float64, without
    axes (of NumPy a float64 scalar; elsewhere an array on the device, so that nothing waits). By
    an array: its shape, summed over leading axes along which it is broadcast. Sums are rounded as
    those of kernel_product in a row, and added up over rows in float64.

    With z=None the points are both sides, and "x" is the whole derivative, by x_m and by x_n of
    every pair. "z" and "col" take a second pass, with the sides swapped, and so does "x" then,
    unless f is symmetric and the weights are a pair; exponents that are numbers, and more than
    eight names, take passes of their own. Derivatives are 0 at kinks and singular points.

    Raises ValueError for a name that f does not read or that is not given, and for shapes that do
    not fit; NotImplementedError for tensors that require gradients, whose library follows the verbs
    itself; DtypeError as pairwise does. progress: that of pairwise, for each pass.

    >>> x, z = np.array([[0.0], [1.0]]), np.array([[1.0], [3.0]])
    >>> float(mc.parameter_gradient("a*sum(abs(x-z))", x, z, a=5.0)["a"])
    6.0
    """
    x, z, w, row, col = map(plain, (x, z, w, row, col))
    weights = tuple(map(plain, weights)) if isinstance(weights, tuple | list) else plain(weights)
    params = {name: _number(value, x) for name, value in params.items()}
    named = {"x": x, "z": z, "w": w, "row": row, "col": col, **params}
    u, v = weights if isinstance(weights, tuple) and len(weights) == 2 else (weights, None)
    require_one_library(_VERB, {**named, "weights": u})
    require_one_library(_VERB, {**named, "weights": v})
    _refuse_followed([x, z, w, row, col, *params.values(),
                      *(weights if isinstance(weights, tuple) else [weights])])  # fmt: skip
    formula = str(_mercer.formula_for(f, _VERB, w is not None, params))
    named = {"row": row, "col": col, "w": w}
    arrays = {name: array for name, array in named.items() if array is not None}
    pairs = _Pairs(formula, x, z, arrays, (i_offset, j_offset), params)
    names = _names(pairs, by)
    with _own_name():
        if any(len(getattr(points, "shape", ())) < 2 for points in (x, pairs.columns)):
            _mercer.pairwise(formula, x, z, **pairs.options())  # says what is wrong
        given = _weights(pairs, weights)
        if _is_of_jax(x):
            from mercer import _jax_gradient

            found = _jax_gradient.gradients(pairs, given, names)
            return {name: found[name] for name in names}
        found = _gradients(pairs, given, names)
    return {name: _shaped(pairs, name, found[name]) for name in names}


def _number(value: Any, x: Any) -> Any:
    """A number of NumPy as one of Python, for points of another library."""
    is_number = isinstance(value, np.generic | np.ndarray) and np.ndim(value) == 0
    return value.item() if is_number and not isinstance(x, np.ndarray) else value


def _is_of_jax(x: Any) -> bool:
    return "jax" in sys.modules and isinstance(x, sys.modules["jax"].Array)


def _refuse_followed(values: list[Any]) -> None:
    if "torch" not in sys.modules:
        return
    from mercer import _watchers

    if _watchers.follow(values):
        raise NotImplementedError(
            f"{_VERB}: tensors must not track gradients, which autograd takes of pairwise. "
            "Received one that does"
        )


@contextlib.contextmanager
def _own_name() -> Iterator[None]:
    """What the engine refuses, it refuses in the name of this verb."""
    try:
        yield
    except Exception as error:
        text = str(error)
        for name in _ENGINE:
            if text.startswith(f"{name}:"):
                raise type(error)(_VERB + text.removeprefix(name)) from None
        raise


def _names(pairs: _Pairs, by: Sequence[str] | str | None) -> list[str]:
    read = leaves(pairs.f)
    own = [name.removeprefix("p:") for name in sorted(read) if name.startswith("p:")]
    if by is None:
        return own
    names = [by] if isinstance(by, str) else list(by)
    for name in names:
        if name == "z" and pairs.z is None:
            raise ValueError(
                f'{_VERB}: with z=None the points are both sides, and by names them "x". '
                'Received "z"'
            )
        if name in ("x", "z"):
            continue
        if name not in own and name not in ("w", "row", "col"):
            listed = ", ".join(f'"{own_name}"' for own_name in own) or "none"
            raise ValueError(
                f'{_VERB}: by must name parameters of the formula ({listed}), "x", "z", "w", "row" '
                f'or "col". Received {name!r}'
            )
        if name in ("w", "row", "col") and (name not in read or name not in pairs.arrays):
            why = "is not given" if name in read else "is not read by the formula"
            raise ValueError(f'{_VERB}: by names "{name}", which {why}. Received by={names}')
    return list(dict.fromkeys(names))


def _weights(pairs: _Pairs, weights: Any) -> _Weights:
    if weights is None:
        library = namespace_of(pairs.x)
        place = {"device": pairs.x.device} if library.__name__ == "torch" else {}
        dtype = pairs.x.dtype
        ones = [library.ones((points.shape[-2], 1), dtype=dtype, **place)
                for points in (pairs.x, pairs.columns)]  # fmt: skip
        return _Weights(None, *ones)
    if isinstance(weights, tuple | list):
        if len(weights) != 2:
            raise ValueError(
                f"{_VERB}: weights must be a matrix [..., M, N] or a pair (u, v). "
                f"Received a {type(weights).__name__} of {len(weights)}"
            )
        for factor in weights:
            if len(getattr(factor, "shape", ())) == 0:
                raise ValueError(
                    f"{_VERB}: weights (u, v) must be two arrays with axes. "
                    f"Received a {type(factor).__name__}"
                )
        u, v = (t[:, None] if len(t.shape) == 1 else t for t in weights)
        sizes = pairs.x.shape[-2], pairs.columns.shape[-2]
        if u.shape[-1] != v.shape[-1] or (u.shape[-2], v.shape[-2]) != sizes:
            raise ValueError(
                f"{_VERB}: weights (u, v) must have the shapes [..., {sizes[0]}, R] and "
                f"[..., {sizes[1]}, R]. Received {tuple(u.shape)} and {tuple(v.shape)}"
            )
        _check_dtypes(pairs, u, v)
        return _Weights(None, u, v)
    sizes = pairs.x.shape[-2], pairs.columns.shape[-2]
    if tuple(getattr(weights, "shape", ()))[-2:] != sizes:
        raise ValueError(
            f"{_VERB}: weights must be a matrix [..., {sizes[0]}, {sizes[1]}] or a pair (u, v). "
            f"Received {getattr(weights, 'shape', type(weights))}"
        )
    _check_dtypes(pairs, weights)
    return _Weights(weights)


def _check_dtypes(pairs: _Pairs, *weights: Any) -> None:
    for each in weights:
        if each.dtype != pairs.x.dtype:
            raise DtypeError(
                f"{_VERB}: weights must be {pairs.x.dtype}, as x is. Received {each.dtype}"
            )


@functools.lru_cache(1024)
def _planned(text: str, *request: Any) -> list[tuple]:
    return _mercer.plan_parameter_gradient(parsed(text), *request)


def _plan(pairs: _Pairs, weights: _Weights, names: list[str]) -> list[tuple]:
    read = leaves(pairs.f)
    wanted = [f"p:{name}" if f"p:{name}" in read else name for name in names]
    is_one_row = pairs.arrays.get("row") is pairs.arrays.get("col")
    facts = [("same_points", pairs.z is None), ("same_row", is_one_row),
             ("same_offsets", pairs.offsets[0] == pairs.offsets[1])]  # fmt: skip
    return _planned(
        pairs.f, "factors" if weights.matrix is None else "matrix", " ".join(wanted),
        pairs.x.shape[-2], pairs.columns.shape[-2], pairs.x.shape[-1], _cuda_index(pairs.x),
        " ".join(name for name, holds in facts if holds),
        " ".join(name for name, value in pairs.params.items() if _is_array(value)),
    )  # fmt: skip


def _gradients(pairs: _Pairs, weights: _Weights, names: list[str]) -> dict[str, Any]:
    """Fields for the points; of the others sums over one side alone, but for w."""
    found: dict[str, Any] = {}
    for verb, rows, by, yields, *_ in _plan(pairs, weights, names):
        near, own = (pairs, weights) if rows != "z" else (pairs.swapped(), weights.swapped())
        own = weights.of_both_sides() if rows == "both" else own
        passed = [_sums(near, own, by[0])] if verb == "sums" else _pass(near, own, by)
        for place, (leaf, result) in enumerate(zip(yields, passed, strict=True)):
            is_twice = rows == "both" and (place > 0 or verb == "sums")
            if leaf:
                name = leaf.removeprefix("p:")
                each = result / 2 if is_twice else result
                found[name] = found[name] + each if name in found else each
    # Without pairs there is no field.
    for name, points in (("x", pairs.x), ("z", pairs.z), ("w", pairs.arrays.get("w"))):
        if name in names and name not in found and points is not None:
            found[name] = points * 0
    return found


def _cuda_index(array: Any) -> int:
    """-1 for memory of the host."""
    return array.__dlpack_device__()[1] if hasattr(array, "__cuda_array_interface__") else -1


def _is_array(value: Any) -> bool:
    return bool(getattr(value, "shape", ())) or hasattr(value, "__cuda_array_interface__")


def _pass(pairs: _Pairs, weights: _Weights, by: tuple[str, ...]) -> list[Any]:
    """The field of the rows, and sums in the order of `by`."""
    names, by_w = [leaf.removeprefix("p:") for leaf in by if leaf != "w"], "w" in by
    points = (pairs.f, pairs.x, pairs.z)
    passed: Any
    if weights.matrix is not None:
        passed = _mercer.pairwise_backward(
            *points, weights.matrix, names, False, by_w, **pairs.options()
        )
    else:
        passed = _mercer.product_backward(
            *points, weights.u, weights.v, names, False, False, by_w, **pairs.options()
        )
    own = [_in_double(passed[-1], -1)] if by_w else []
    return [passed[0], *own, *(passed[1][..., place, :] for place in range(len(names)))]


def _sums(pairs: _Pairs, weights: _Weights, leaf: str) -> Any:
    """sum_n g_mn df/dleaf of each row, by the formula df/dleaf."""
    near = dataclasses.replace(pairs, f=derivative(pairs.f, leaf))
    near = dataclasses.replace(near, **_unread(near))
    if weights.matrix is None:
        product = _mercer.kernel_product(near.f, near.x, near.z, weights.v, **near.options())
        return (weights.u * product).sum(-1)
    m, n = pairs.x.shape[-2], pairs.columns.shape[-2]
    rows = max(1, _BLOCK // max(1, n * _count(pairs.x.shape[:-2])))
    parts = []
    for first in range(0, max(m, 1), rows):
        block = near.rows(first, min(first + rows, m))
        values = _mercer.pairwise(block.f, block.x, block.z, **block.options())
        parts.append((weights.matrix[..., first : first + rows, :] * values).sum(-1))
    library = namespace_of(parts[0])
    return (getattr(library, "concatenate", None) or library.cat)(parts, -1)


def _unread(near: _Pairs) -> dict[str, Any]:
    """A derivative may read less than its formula, and what it does not read must not be given."""
    read = leaves(near.f)
    params = {name: value for name, value in near.params.items() if f"p:{name}" in read}
    arrays = {name: array for name, array in near.arrays.items() if name in read}
    return {"params": params, "arrays": arrays}


def _count(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _in_double(values: Any, axis: int) -> Any:
    return values.sum(axis, dtype=namespace_of(values).float64)


def _shaped(pairs: _Pairs, name: str, value: Any) -> Any:
    """The sums as the operand has its axes; those of a number without any, in float64."""
    if name in ("x", "z", "row", "col"):
        operand = getattr(pairs, name) if name in ("x", "z") else pairs.arrays[name]
        return _summed_to(value, tuple(operand.shape))
    if name == "w":
        return _cast(_summed_to(value, tuple(pairs.arrays["w"].shape)), pairs.arrays["w"])
    total, operand = _in_double(value, -1), pairs.params[name]
    if not hasattr(operand, "shape"):
        return _summed_to(total, ())
    return _cast(_summed_to(total, tuple(operand.shape)), operand)


def _cast(value: Any, operand: Any) -> Any:
    """Floating operands keep their dtype."""
    if "float" not in str(operand.dtype):
        return value
    return value.to(operand.dtype) if hasattr(value, "to") else value.astype(operand.dtype)


def _summed_to(value: Any, shape: tuple[int, ...]) -> Any:
    extra = len(value.shape) - len(shape)
    axes = tuple(
        axis for axis in range(len(value.shape))
        if axis < extra or (shape[axis - extra] == 1 and value.shape[axis] != 1)
    )  # fmt: skip
    if not axes:
        return value
    return value.sum(axes).reshape(shape)
