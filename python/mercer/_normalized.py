"""Products whose weights of a row add up to one: ``kernel_product(..., normalize=)``.

With a column of ones behind v, one pass over the pairs gives numerator and denominator, so that
what both share cancels:

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


def _with_ones(v: Any) -> Any:
    """[..., N, E + 1] of v [..., N, E], or of [N]."""
    columns = v[:, None] if v.ndim == 1 else v
    library = namespace_of(v)
    return library.concatenate([columns, library.ones_like(columns[..., :1])], -1)


def _constant(array: Any) -> Any:
    """The array, whose derivative is 0."""
    if hasattr(array, "detach"):
        return array.detach()
    if type(array).__module__.partition(".")[0] not in ("jax", "jaxlib"):
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
    if exponential is not None:
        row = _constant(reduce(text, x, z, "logsumexp", **options))
        text = exponential
    sums = product(text, x, z, _with_ones(v), row=row, **options)
    result = _divided(sums)
    if v.ndim == 1:
        result = result[..., 0]
    if out is None:
        return result
    if out.shape != result.shape or out.dtype != result.dtype:
        raise ValueError(
            f"kernel_product: out must have shape {tuple(result.shape)} and dtype {result.dtype}. "
            f"Received {tuple(out.shape)} and {out.dtype}"
        )
    out[...] = result
    return out


def product(
    f: Any, x: Any, z: Any, v: Any, normalize: Any, *, out: Any = None, row: Any = None,
    workspace: Any = None, w: Any = None, params: dict[str, Any], **options: Any,
) -> Any:  # fmt: skip
    """``kernel_product`` with ``normalize``, which is not None."""
    from mercer import _verbs

    check(normalize, workspace)
    text = str(_mercer.formula_for(f, "kernel_product", w is not None, params))
    exponential = shifted(text) if normalize == "softmax" else None
    given = {"x": x, "z": z, "v": v, "w": w, "col": options.get("col"), "row": row}
    given = {name: array for name, array in given.items() if array is not None}
    read = _array_likes.read("kernel_product", given)
    given = given if read is None else read
    x, v = given.pop("x"), given.pop("v")
    check_arrays(v, out)
    rest = {**options, **given, **params}
    rest.pop("row", None)
    return of_text(
        (_verbs.kernel_product, _verbs.kernel_reduce), (text, exponential), x, rest.pop("z", None),
        v, out, given.get("row"), rest,
    )  # fmt: skip


def check_arrays(v: Any, out: Any) -> None:
    """Before anything is computed: v has points, out can be written."""
    if getattr(v, "ndim", 0) == 0:
        raise ValueError(
            "kernel_product: v must have the shape [..., N, E] or [N]. "
            f"Received {getattr(v, 'shape', type(v).__name__)}"
        )
    if out is not None and type(out).__module__.partition(".")[0] in ("jax", "jaxlib"):
        raise ValueError(
            "kernel_product: out must be an array that can be written. Received one of JAX"
        )
