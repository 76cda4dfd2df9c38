"""Products whose weights of a row add up to one: ``kernel_product(..., normalize=)``.

With a column of ones after those of v, one pass over the pairs gives numerator and denominator,
so that what both share cancels:

    out[m] = sum_n e_mn v_n / sum_n e_mn        e = f            "sum"
                                                e = exp(f - s)   "softmax"

The shift s_m = log sum_n exp(f_mn) of a first pass keeps e within (0, 1]. The result does not
depend on it, so derivatives take it as a constant.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer import _array_likes, _mercer
from mercer._derived import leaves, parsed
from mercer._libraries import namespace_of

KINDS = ("softmax", "sum")


@functools.lru_cache(1024)
def shifted(text: str) -> str:
    """The text of exp(f - row)."""
    if "row" in leaves(text):
        raise NotImplementedError(
            "kernel_product: with normalize='softmax' the formula must not read row, whose place "
            f"the largest exponents take. Received {text}"
        )
    return str(_mercer.exp(parsed(text) - _mercer.row))


def check(normalize: Any, workspace: Any) -> None:
    if normalize not in KINDS:
        raise ValueError(
            f"kernel_product: normalize must be one of {', '.join(KINDS)}, or None. "
            f"Received {normalize!r}"
        )
    if workspace is not None:
        raise NotImplementedError(
            "kernel_product: normalize= makes two calls, so workspace= is not offered with it; "
            "leave it out. Received an array"
        )


def _check_values(v: Any) -> None:
    """Refuses a v that no column of ones can be added to."""
    if not getattr(v, "ndim", 0) or not hasattr(namespace_of(v), "concatenate"):
        raise ValueError(
            "kernel_product: v must be an array of the shape [..., N, E] or [N], of the library of "
            f"x. Received {type(v).__module__}.{type(v).__name__}"
        )


def _check_out(product: Callable[..., Any], text: str, arrays: tuple, options: Any) -> None:
    """Refuses an out that kernel_product refuses, before anything is computed: by calls of no rows.

    Points that are none are left to the calls that compute."""
    x, z, v, out, row = arrays
    if getattr(x, "ndim", 0) < 2:
        return
    others = x if z is None else z
    row = None if row is None else row[..., :0]
    empty = product(text, x[..., :0, :], others, v, row=row, **options)
    tail = (x.shape[-2],) if v.ndim == 1 else (x.shape[-2], v.shape[-1])
    shape = (*empty.shape[: -len(tail)], *tail)
    if tuple(getattr(out, "shape", shape)) != shape:
        raise ValueError(
            f"kernel_product: out must have shape {shape}. Received {tuple(out.shape)}."
        )
    if hasattr(out, "shape"):
        out = out[..., :0] if v.ndim == 1 else out[..., :0, :]
    product(text, x[..., :0, :], others, v, row=row, out=out, **options)


def _with_ones(v: Any) -> Any:
    """[..., N, E + 1] of v [..., N, E], or of [N]."""
    columns = v[:, None] if v.ndim == 1 else v
    library = namespace_of(v)
    return library.concatenate([columns, library.ones_like(columns[..., :1])], -1)


def _constant(array: Any) -> Any:
    """The array, whose derivative is 0."""
    if hasattr(array, "detach"):
        return array.detach()
    library = namespace_of(array)
    if library.__name__ != "jax.numpy":
        return array
    import jax

    return jax.lax.stop_gradient(array)


def _divided(sums: Any) -> Any:
    """The first columns by the last, which is 0 where there are no weights: NaN, without a word."""
    if not isinstance(sums, np.ndarray):
        return sums[..., :-1] / sums[..., -1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[..., :-1] / sums[..., -1:]


def of_text(
    verbs: tuple[Callable[..., Any], Callable[..., Any]], texts: tuple[str, str | None],
    x: Any, z: Any, v: Any, out: Any, row: Any, options: dict[str, Any],
) -> Any:  # fmt: skip
    """The product by kernel_product and kernel_reduce of a formula, and of its shifted one."""
    product, reduce = verbs
    text, exponential = texts
    _check_values(v)
    if exponential is not None and row is not None:
        raise ValueError("kernel_product: row was given, but the formula does not read it.")
    if out is not None:
        _check_out(product, text, (x, z, v, out, row), options)
    if exponential is not None:
        row = _constant(reduce(text, x, z, "logsumexp", **options))
        text = exponential
    result = _divided(product(text, x, z, _with_ones(v), row=row, **options))
    if v.ndim == 1:
        result = result[..., 0]
    if out is None:
        return result
    out[...] = result
    return out


def _reduce(*arguments: Any, **options: Any) -> Any:
    """kernel_reduce, whose refusals name the verb that was called."""
    from mercer import _verbs

    try:
        return _verbs.kernel_reduce(*arguments, **options)
    except _array_likes.REFUSED as error:
        text = str(error).replace("kernel_reduce:", "kernel_product:", 1)
        raise type(error)(text) from None


def product(
    f: Any, x: Any, z: Any, v: Any, normalize: Any, *, out: Any = None, row: Any = None,
    workspace: Any = None, w: Any = None, params: dict[str, Any], **options: Any,
) -> Any:  # fmt: skip
    """``kernel_product`` with ``normalize``, which is not None."""
    from mercer import _verbs

    check(normalize, workspace)
    text = str(_mercer.formula_for(f, "kernel_product", w is not None, params))
    exponential = shifted(text) if normalize == "softmax" else None
    given = {"x": x, "z": z, "v": v, "w": w, "row": row, "col": options.pop("col", None)}
    read = _array_likes.read("kernel_product", {**given, "out": out})
    given = {name: (read or given)[name] for name in given}
    x, z, v, row = (given.pop(name) for name in ("x", "z", "v", "row"))
    _array_likes.refuse_masked("kernel_product", v=v)
    return of_text(
        (_verbs.kernel_product, _reduce), (text, exponential), x, z, v, out, row,
        {**options, **given, **params},
    )  # fmt: skip
