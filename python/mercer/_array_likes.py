"""Lists, tables, whole numbers and truth values as points: read as float64, as SciPy reads them.

Verbs come here after the compiled function refused a call, so that arrays that it takes cost
nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from mercer import _mercer
from mercer._spelling import hint
from mercer.errors import DtypeError

#: What the compiled functions raise, before they write anything, for arrays that they do not take.
REFUSED = (ValueError, TypeError, NotImplementedError)
#: The verbs that take ranges.
RANGED = ("kernel_product", "kernel_reduce", "knn")

_POINTS = ("x", "z", "x1", "x2")
_OTHERS = ("row", "col", "w", "v", "coef", "amplitude")
#: The dtypes that points may have, each with the one in which values are computed.
POINT_TYPES = _mercer.point_types()
#: Those of NumPy, which has no bfloat16 of its own.
NUMPY_TYPES = tuple(np.dtype(name) for name in POINT_TYPES if hasattr(np, name))
_FLOATS = tuple(dtype for dtype in NUMPY_TYPES if dtype.kind == "f")
TAKEN = tuple(dtype for dtype in NUMPY_TYPES if dtype.kind != "f")
_EXACT = 2**53
_BY_NUMBER = re.compile(r"\b[xz]\s*\[\s*[\d:]")
_OF_VECTORS = re.compile(r"\b(?:matvec|vector|dot|outer|concat)\s*\(")


def computing_type(dtype: Any) -> np.dtype:
    """The type that values of points of a dtype, of whatever library, are computed in."""
    name = str(dtype).rpartition(".")[2]
    return np.dtype(POINT_TYPES.get(name, "float64"))


def is_table(array: Any) -> bool:
    """A DataFrame or Series of pandas or polars."""
    return type(array).__module__.partition(".")[0] in ("pandas", "polars") and hasattr(
        array, "to_numpy"
    )


def _loses_something(values: Any) -> bool:
    """Whether a list holds masked values, or arrays of other libraries, which have gradients."""
    if isinstance(values, (int, float)):
        return False
    if isinstance(values, (list, tuple)):
        return any(map(_loses_something, values))
    return np.ma.is_masked(values) or not isinstance(values, (np.generic, np.ndarray))


def is_grouped(arguments: dict[str, Any]) -> bool:
    """Whether points have names or features numbers, which mercer._groups reads."""
    if any(isinstance(arguments.get(name), Mapping) for name in _POINTS):
        return True
    f = next((arguments[name] for name in ("f", "metric", "phi") if name in arguments), None)
    return isinstance(f, str) and _BY_NUMBER.search(f) is not None


def is_of_vectors(arguments: dict[str, Any]) -> bool:
    """Whether a formula has words of vectors, which mercer._vectors reads."""
    f = arguments.get("f")
    return isinstance(f, str) and _OF_VECTORS.search(f) is not None


def by_ranges(verb: str, arguments: dict[str, Any]) -> Any:
    """A verb with ranges among its parameters."""
    from mercer import _ranges  # which calls the verbs

    return _ranges.call(verb, arguments)


def gradient_of_groups(arguments: dict[str, Any]) -> Any:
    """kernel_gradient of points by name, or of features by number."""
    from mercer import _groups, _verbs  # which calls the verbs

    return _groups.gradient(_verbs.kernel_gradient, arguments)


def array(values: Any) -> Any:
    """An array of NumPy; what is none, and cannot be read as one, as it is."""
    if isinstance(values, np.ma.MaskedArray):
        return values if np.ma.is_masked(values) else values.data
    if isinstance(values, (list, tuple)):
        if _loses_something(values):
            return values
        try:
            return np.asarray(values)
        except ValueError:  # rows of several lengths
            return values
    if is_table(values):
        table = np.asarray(values.to_numpy())
        return table if table.dtype != object else _numbers(values, table)
    return values


def refuse_masked(verb: str, **arrays: Any) -> None:
    """Refuses masked values, as compiled functions do, in arrays whose copies would have none."""
    for name, values in arrays.items():
        if np.ma.is_masked(values):
            raise NotImplementedError(
                f"{verb}: {name} must have no mask: masked values would count as any others. "
                "Received a masked array"
            )


def _numbers(values: Any, table: Any) -> Any:
    """A table with columns of several dtypes; what is missing is NaN."""
    with_missing = {"na_value": np.nan} if "pandas" in type(values).__module__ else {}
    kinds = getattr(values, "dtypes", ())
    numeric = all(
        getattr(kind, "kind", "f") in "biuf" for kind in np.ravel(np.array(kinds, object))
    )
    try:
        return values.to_numpy(dtype=np.float64, **with_missing) if numeric else table
    except (TypeError, ValueError):
        return table


def _is_whole(array: np.ndarray) -> bool:
    return array.dtype.kind in "biu"


def widened(verb: str, name: str, array: np.ndarray) -> np.ndarray:
    """An array of numbers in float64; ValueError for whole ones that float64 does not have."""
    if array.dtype.itemsize == 8 and array.dtype.kind in "iu" and array.size:
        least, most = int(array.min()), int(array.max())
        if max(-least, most) > _EXACT:
            raise ValueError(
                f"{verb}: {name} must have whole numbers of at most 2**53, which float64 has "
                f"exactly. Received {least if -least > most else most}"
            )
    return array if array.dtype.itemsize > 8 else array.astype(np.float64, copy=False)


def _should_widen(found: dict[str, Any], is_read: bool) -> bool:
    points = [array for name, array in found.items() if name in _POINTS]
    dtypes = {array.dtype for array in points}
    foreign = any(_is_whole(array) and array.dtype not in TAKEN for array in points)
    mixed = len(dtypes) > 1 and any(map(_is_whole, points))
    follow = dtypes == {np.dtype("float64")} and any(map(_is_whole, found.values()))
    return foreign or mixed or follow or (is_read and len({a.dtype for a in found.values()}) > 1)


def read(verb: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments of a verb with its points as arrays that it takes; None where nothing changes.

    Lists, tables and masked arrays without masked values become arrays of NumPy, if all arrays of
    the call are NumPy's then. All arrays become float64 where points are whole numbers or truth
    values that the engine does not take, or together with other dtypes; where a list or table has
    another dtype than the rest; and where the points are float64 and others are whole numbers.
    """
    rest = {name: value for name, value in arguments.items() if name != "params"}
    if is_of_vectors(arguments):
        from mercer._vectors import numbers

        return {**rest, **numbers.arguments(verb, arguments)}
    if is_grouped(arguments):
        from mercer import _groups

        return {**rest, **arguments.get("params", {}), **_groups.arguments(verb, arguments)}
    if "ranges" in arguments.get("params", {}) and verb not in RANGED:
        raise NotImplementedError(
            f"{verb}: ranges are offered by {', '.join(RANGED)}. Received ranges"
        ) from None
    _explain(arguments)
    names = [name for name in (*_POINTS, *_OTHERS) if arguments.get(name) is not None]
    found = {name: array(arguments[name]) for name in names}
    if not all(isinstance(a, np.ndarray) and a.dtype.kind in "biuf" for a in found.values()):
        return None
    if _should_widen(found, any(found[name] is not arguments[name] for name in names)):
        found = {name: widened(verb, name, array) for name, array in found.items()}
        _check_out(verb, arguments.get("out"))
    if all(found[name] is arguments[name] for name in names):
        return None
    return {**rest, **arguments.get("params", {}), **found}


def _explain(arguments: dict[str, Any]) -> None:
    """Refuses again, with what may have been meant, an unknown parameter that the engine refused:
    it does not know the names that the verb's arguments have in Python."""
    refusal = sys.exc_info()[1]
    unknown = re.search(r'has no parameter "(\w+)"\. It has', str(refusal))
    if isinstance(refusal, ValueError) and unknown:
        known = arguments.keys() - {"params", *arguments.get("params", {})}
        near = hint(unknown[1], sorted(known))
        if near:
            raise ValueError(str(refusal).replace('". It has', f'"{near}. It has', 1)) from None


def _check_out(verb: str, out: Any) -> None:
    if isinstance(out, np.ndarray) and out.dtype != np.float64:
        raise DtypeError(
            f"{verb}: whole numbers and mixed points are computed in float64, so out must be "
            f"float64. Received {out.dtype}"
        )


def points(verb: str, *arrays: Any) -> tuple[Any, ...]:
    """Points of a function that is written in Python, as ``read`` reads them."""
    if all(type(a) is np.ndarray and a.dtype in _FLOATS for a in arrays):
        return arrays
    named = dict(zip(_POINTS, arrays, strict=False))
    again = read(verb, named)
    return arrays if again is None else tuple(again[name] for name in named)
