"""What metrics need and no formula has: cdist's V and VI, condensed vectors, points row by row.

A metric of three in the table reads weights that are no option of SciPy's, or none of it: these are
made here, from the arguments that SciPy has, in the library of the points.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np

from mercer import _array_likes, _mercer, _progress, _verbs
from mercer._spelling import hint
from mercer._types import ArrayT, FormulaLike, Parameter
from mercer.errors import LinAlgError

__all__ = ["paired_distances", "pdist", "squareform"]

#: The metrics that cdist hands to this module.
NAMES = frozenset(("seuclidean", "mahalanobis", "haversine"))
_TEXTS = {row["name"]: row["text"] for row in _mercer.zoo_rows() if row["name"] in NAMES}
# Arguments of pairwise that are none of a distance.
_FOREIGN = ("z", "row", "col", "i_offset", "j_offset", "out", "workspace", "progress")
# Pairs that pdist stores at a time.
_BLOCK = 1 << 20
# Rows of which paired_distances computes all pairs and keeps the diagonal: a tile, as one pair is.
_SIDE = 16


def _module(x: Any, verb: str) -> Any:
    """numpy, torch, cupy or jax.numpy."""
    root = type(x).__module__.partition(".")[0]
    if root in ("jax", "jaxlib"):
        return sys.modules["jax"].numpy
    if root not in ("numpy", "torch", "cupy"):
        raise NotImplementedError(
            f"{verb}: it is offered for arrays of NumPy, PyTorch, CuPy and JAX. Received {type(x)}"
        )
    return sys.modules[root]


def _check(x: Any, z: Any) -> None:
    """Raises what cdist raises for points of other shapes, dtypes, libraries or devices."""
    if getattr(x, "ndim", 0) >= 2 and getattr(z, "ndim", 0) >= 2:
        x, z = x[..., :0, :], z[..., :0, :]
    _verbs.cdist(x, z)


def _is_torch(xp: Any) -> bool:
    return xp.__name__ == "torch"


def _read(verb: str, x: Any, z: Any, w: Any) -> tuple[Any, Any, Any]:
    """Points and weights as the verbs read lists and tables."""
    again = _array_likes.read(verb, {"x": x, "z": z, "w": w})
    return (x, z, w) if again is None else (again["x"], again["z"], again["w"])


def _array(values: Any, xp: Any, like: Any, dtype: Any) -> Any:
    """Numbers, or an array of NumPy, as an array of a library where `like` lies."""
    if _is_torch(xp):
        return xp.as_tensor(values, dtype=dtype, device=like.device)
    return xp.asarray(values, dtype=dtype)


def _cast(array: Any, dtype: Any) -> Any:
    return array.to(dtype) if hasattr(array, "to") else array.astype(dtype)


def _computing(x: Any, xp: Any) -> Any:
    return xp.float64 if x.dtype in (xp.float64, xp.int32) else xp.float32


def _given(value: Any, name: str, verb: str, xp: Any, like: Any) -> Any:
    """V or VI as an array of the points' library and computing type."""
    if isinstance(value, (list, tuple)):
        return _array(value, xp, like, _computing(like, xp))
    if _module(value, verb) is not xp:
        raise ValueError(
            f"{verb}: {name} must come from the library of the points, {xp.__name__}. "
            f"Received {type(value)}"
        )
    return value


def _observations(points: tuple[Any, ...], name: str, verb: str, xp: Any) -> Any:
    """All points [M, K], in float64 where the library has it."""
    if any(array.ndim != 2 for array in points):
        raise ValueError(
            f"{verb}: {name} must be given where the points have leading axes. "
            f"Received {', '.join(str(tuple(array.shape)) for array in points)}"
        )
    wide = _computing(points[0], xp) if xp.__name__ == "jax.numpy" else xp.float64
    return xp.concatenate([_cast(array, wide) for array in points])


def _variances(points: tuple[Any, ...], variance: Any, verb: str) -> Any:
    """seuclidean's V: what is given, or the variance over all points with ddof = 1."""
    x = points[0]
    xp = _module(x, verb)
    if variance is None:
        seen = _observations(points, "V", verb, xp)
        variance = seen.var(0) if _is_torch(xp) else seen.var(0, ddof=1)
    variance = _given(variance, "V", verb, xp, x)
    if tuple(variance.shape) != (x.shape[-1],):
        raise ValueError(
            f"{verb}: V must hold one variance for each of the {x.shape[-1]} features. "
            f"Received the shape {tuple(variance.shape)}"
        )
    return _cast(variance, _computing(x, xp))


def _host(array: Any, verb: str) -> np.ndarray:
    """An array of NumPy, CuPy or JAX as one of NumPy."""
    try:
        return array.get() if hasattr(array, "get") else np.asarray(array)
    except Exception as error:  # a tracer of JAX
        raise NotImplementedError(
            f"{verb}: VI, or points that it is made of, must not be traced. Received {type(array)}"
        ) from error


def _inverse_covariance(points: tuple[Any, ...], verb: str, xp: Any) -> Any:
    """SciPy's default of VI."""
    count, features = sum(array.shape[-2] for array in points), points[0].shape[-1]
    if count <= features:
        raise ValueError(
            f"{verb}: there must be more points than features where VI is not given, else their "
            f"covariance is singular. Received {count} points of {features} features"
        )
    seen = _observations(points, "VI", verb, xp)
    library = xp if _is_torch(xp) else np
    seen = seen if _is_torch(xp) else _host(seen, verb)
    singular: type[Exception] = RuntimeError if _is_torch(xp) else np.linalg.LinAlgError
    try:
        return library.linalg.inv(library.cov(seen.T).reshape(features, features))
    except singular as error:
        raise LinAlgError(
            f"{verb}: the covariance of the points must not be singular; give VI. "
            f"Received points with a singular one"
        ) from error


def _lower(a: Any, library: Any) -> Any:
    """Cholesky's factor, or None where there is none."""
    if _is_torch(library):
        if library.compiler.is_compiling():
            return library.linalg.cholesky(a)  # raises by itself, when it runs
        factor, info = library.linalg.cholesky_ex(a)
        return None if info.item() else factor
    try:
        return np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        return None


def _root(a: Any, precision: float, verb: str, library: Any) -> Any:
    """F with F F^T = a for a symmetric a: Cholesky's, or of eigenvectors where a is singular."""
    traced = _is_torch(library) and library.compiler.is_compiling()
    if not traced and not bool(library.isfinite(a).all()):
        raise ValueError(f"{verb}: VI must be finite. Received a matrix with NaN or infinities")
    factor = _lower(a, library)
    if factor is not None:
        return factor
    values, vectors = library.linalg.eigh(a)
    least, most = values[0].item(), abs(values).max().item()
    if least < -precision * len(values) * most:
        raise ValueError(
            f"{verb}: VI must be positive semi-definite, else some squared distances are negative. "
            f"Received a matrix with the eigenvalue {least:.3g}"
        )
    if getattr(a, "requires_grad", False):
        raise NotImplementedError(
            f"{verb}: VI must be positive definite where its gradient is asked for. "
            f"Received a matrix with the eigenvalue {least:.3g}"
        )
    return vectors * library.sqrt(values.clip(0, None))


def _transformation(points: tuple[Any, ...], inverse: Any, verb: str) -> Any:
    """F^T of VI = F F^T, so that (x - z) VI (x - z) is the squared length of F^T (x - z)."""
    x = points[0]
    xp = _module(x, verb)
    library = xp if _is_torch(xp) else np
    features, computing = x.shape[-1], _computing(x, xp)
    if inverse is None:
        given, precision = _inverse_covariance(points, verb, xp), 2.0**-52
    else:
        given = _given(inverse, "VI", verb, xp, x)
        given = given if library is xp else _host(given, verb)
        precision = 2.0**-52 if given.dtype == library.float64 else 2.0**-23
    if tuple(given.shape) != (features, features):
        raise ValueError(
            f"{verb}: VI must have the shape {(features, features)}. Received {tuple(given.shape)}"
        )
    wide = _cast(given, library.float64)
    factor = _root((wide + wide.T) / 2, precision, verb, library)
    return _array(factor.T, xp, x, computing) if library is not xp else _cast(factor.T, computing)


def _centre(x: Any, xp: Any) -> Any:
    """The mean [K] of all points, 0 where one is not finite; distances do not depend on it."""
    rows = _cast(x.detach() if _is_torch(xp) else x, _computing(x, xp)).reshape(-1, x.shape[-1])
    mean = rows.sum(0) / max(rows.shape[0], 1)
    return xp.where(xp.isfinite(mean), mean, xp.zeros_like(mean))


def _mapped(points: tuple[Any, ...], matrix: Any, verb: str) -> tuple[Any, ...]:
    """The points times a matrix, less their centre, so that points far from 0 keep digits."""
    centre = _centre(points[0], _module(points[0], verb))
    return tuple(_verbs.pairwise("sum(x*z)", array - centre, matrix) for array in points)


def _prepared(
    verb: str, metric: str, points: tuple[Any, ...], w: Any, params: dict[str, Any]
) -> tuple[str, tuple[Any, ...], Any]:
    """A formula of a metric of this module, with the points and weights that it is called with.

    Takes V or VI out of the parameters."""
    if w is not None:
        raise ValueError(f"{verb}: {metric} takes no weights w. Received w")
    if metric == "mahalanobis":
        matrix = _transformation(points, params.pop("VI", None), verb)
        return "euclidean", _mapped(points, matrix, verb), None
    if metric == "seuclidean":
        return _TEXTS[metric], points, _variances(points, params.pop("V", None), verb)
    if any(array.shape[-1] != 2 for array in points):
        raise ValueError(
            f"{verb}: haversine is of points with two features, latitude and longitude in radians. "
            f"Received {', '.join(str(array.shape[-1]) for array in points)}"
        )
    xp = _module(points[0], verb)
    return _TEXTS[metric], points, _array([1.0, 0.0], xp, points[0], _computing(points[0], xp))


def cdist(x1: Any, x2: Any, metric: str, w: Any, params: dict[str, Any], options: Any) -> Any:
    """mercer.cdist of a metric of this module; the options go to the verb."""
    x1, x2 = _array_likes.points("cdist", x1, x2)
    points = (x1, x1 if x2 is None else x2)
    _check(*points)
    f, (x1, z), w = _prepared("cdist", metric, points, w, params)
    return _verbs.cdist(x1, None if x2 is None else z, metric=f, w=w, **options, **params)


def _distance(
    verb: str,
    p: float | None,
    metric: FormulaLike | None,
    points: tuple[Any, ...],
    w: Any,
    params: dict[str, Any],
) -> tuple[Any, tuple[Any, ...], Any]:
    """The formula, points and weights of a distance with cdist's arguments.

    Arrays that the formula carries go to the parameters; options that choose it leave them."""
    foreign = [name for name in _FOREIGN if name in params]
    if foreign:
        raise TypeError(f"{verb}: it does not take {', '.join(foreign)}. Received {foreign}")
    _check(points[0], points[-1])
    if metric is None:
        metric, p = "minkowski", 2.0 if p is None else p
    if p is not None:
        params["p"] = p
    if isinstance(metric, str) and metric in NAMES:
        metric, points, w = _prepared(verb, metric, points, w, params)
    return _formula(metric, verb, w is not None, params), points, w


def _formula(metric: Any, verb: str, weighted: bool, params: dict[str, Any]) -> Any:
    if "torch._dynamo" in sys.modules and sys.modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        return traced.formula_for(metric, verb, weighted, params)
    f = _mercer.formula_for(metric, verb, weighted, params)
    for name in params:
        if name not in f.parameters:
            known = ", ".join(f.parameters) or "none"
            near = hint(name, ("metric", "p", "progress", "w", *f.parameters))
            raise ValueError(
                f'{verb}: the formula has no parameter "{name}"{near}. It has {known}.'
            )
    return f


@_progress.watched
def pdist(
    x: ArrayT,
    p: float | None = None,
    *,
    metric: FormulaLike | None = None,
    w: ArrayT | None = None,
    progress: bool = False,
    **params: Parameter,
) -> ArrayT:
    """Distances of the pairs of one set, without doubles: SciPy's pdist.

    x: [..., M, K]. The result is [..., M (M - 1) / 2] of the computing dtype: d(x_0, x_1),
    d(x_0, x_2), …, d(x_1, x_2), …; ``squareform`` makes the symmetric matrix of it. p, metric, w
    and parameters: those of cdist, except that V and VI are by default of the points x alone.
    Arrays of NumPy, PyTorch (with gradients), CuPy and JAX. progress and errors: those of cdist.

    >>> mc.pdist(np.array([[0.0], [1.0], [3.0]]))
    array([1., 3., 2.])
    """
    points, w = _read("pdist", x, None, w)[::2]
    options: dict[str, Any] = params
    f, (points,), w = _distance("pdist", p, metric, (points,), w, params)
    xp, count = _module(points, "pdist"), points.shape[-2]
    rows = max(1, min(count, _BLOCK // max(count, 1)))
    parts = []
    for first in range(0, max(count, 1), rows):
        taken = points[..., first : first + rows, :]
        rest = None if rows >= count else points[..., first:, :]
        d = _verbs.pairwise(f, taken, rest, w=w, i_offset=first, j_offset=first, **options)
        parts.append(d[(..., *_above(d.shape[-2], d.shape[-1], xp, d))])
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, -1)


def _above(rows: int, columns: int, xp: Any, like: Any) -> tuple[Any, Any]:
    """Indices of what lies above the diagonal, row by row."""
    if _is_torch(xp):
        return tuple(xp.triu_indices(rows, columns, 1, device=like.device))
    return xp.triu_indices(rows, 1, columns)


def squareform(d: ArrayT, force: str = "no", checks: bool = True) -> ArrayT:
    """A condensed vector of distances as a symmetric matrix, or the other way: SciPy's squareform.

    d: [M (M - 1) / 2], as pdist gives it, then the result is [M, M] with a diagonal of 0; or
    [M, M], then the result is the vector. An empty vector is of one point. force: "tomatrix" or
    "tovector" refuses the other direction. checks: whether a matrix must be symmetric with a
    diagonal of 0; it is read on the host, which JAX does not allow while it traces. Arrays of
    NumPy, PyTorch (with gradients), CuPy and JAX. Raises ValueError for other shapes and where a
    check fails.

    >>> mc.squareform(np.array([1.0, 3.0, 2.0]))
    array([[0., 1., 3.],
           [1., 0., 2.],
           [3., 2., 0.]])
    """
    given: Any = _array_likes.points("squareform", d)[0]
    xp, shape = _module(given, "squareform"), tuple(given.shape)
    wanted = {"no": (1, 2), "tomatrix": (1,), "tovector": (2,)}.get(force)
    if wanted is None:
        raise ValueError(
            f'squareform: force must be "no", "tomatrix" or "tovector". Received {force!r}'
        )
    if len(shape) not in wanted:
        kinds = {1: "a vector", 2: "a square matrix"}
        raise ValueError(
            f"squareform: d must be {' or '.join(kinds[n] for n in wanted)}. Received {shape}"
        )
    return _to_matrix(given, xp) if len(shape) == 1 else _to_vector(given, checks, xp)


def _to_matrix(d: Any, xp: Any) -> Any:
    length = d.shape[0]
    count = round((1 + (1 + 8 * length) ** 0.5) / 2)
    if count * (count - 1) != 2 * length:
        raise ValueError(
            f"squareform: a vector must have M (M - 1) / 2 numbers for a whole M. Received {length}"
        )
    points = xp.arange(count, device=d.device) if _is_torch(xp) else xp.arange(count)
    first, last = xp.minimum(points[:, None], points), xp.maximum(points[:, None], points)
    places = first * (2 * count - first - 1) // 2 + last - first - 1
    places = xp.where(first == last, length, places)
    zero = xp.zeros_like(d, shape=(1,)) if not _is_torch(xp) else d.new_zeros(1)
    return xp.concatenate([d, zero])[places]


def _to_vector(d: Any, checks: bool, xp: Any) -> Any:
    rows, columns = d.shape
    if rows != columns:
        raise ValueError(f"squareform: a matrix must be square. Received {tuple(d.shape)}")
    if checks and not bool((d == d.T).all()):
        raise ValueError("squareform: a matrix must be symmetric. Received one that is not")
    if checks and not bool((xp.diagonal(d) == 0).all()):
        raise ValueError("squareform: the diagonal of a matrix must be 0. Received one that is not")
    return d[_above(rows, columns, xp, d)]


@_progress.watched
def paired_distances(
    x: ArrayT,
    z: ArrayT,
    p: float | None = None,
    *,
    metric: FormulaLike | None = None,
    w: ArrayT | None = None,
    progress: bool = False,
    **params: Parameter,
) -> ArrayT:
    """Distances of the rows of two sets, one by one: scikit-learn's paired_distances.

    x, z: [..., M, K], leading axes broadcast. The result is [..., M] of the computing dtype:
    d(x_0, z_0), d(x_1, z_1), …. p, metric, w and parameters: those of cdist. A formula that reads
    the indices i and j is refused. Arrays of NumPy, PyTorch (with gradients), CuPy and JAX. Errors:
    those of cdist, and ValueError where x and z differ in M. progress: that of cdist.

    >>> mc.paired_distances(np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[3.0, 4.0], [1.0, 1.0]]))
    array([5., 0.])
    """
    one, other, w = _read("paired_distances", x, z, w)
    _check(one, other)
    if one.shape[-2] != other.shape[-2]:
        raise ValueError(
            f"paired_distances: x and z must have the same number of points. "
            f"Received {tuple(one.shape)} and {tuple(other.shape)}"
        )
    f, (one, other), w = _distance("paired_distances", p, metric, (one, other), w, params)
    if re.search(r"\b[ij]\b", str(f)):
        raise ValueError(f"paired_distances: a formula must not read i or j. Received {f}")
    params = {name: _with_axis(value) for name, value in params.items()}
    xp, count = _module(one, "paired_distances"), one.shape[-2]
    # Gradients take pairs alone: 0 times what is NaN at a pair off the diagonal would be NaN.
    whole = 0 if _is_torch(xp) else count - count % _SIDE
    parts = [
        _diagonal(f, one[..., first:last, :], other[..., first:last, :], w, params, side, xp)
        for first, last, side in ((0, whole, _SIDE), (whole, count, 1))
        if first < last or last == count == 0
    ]
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, -1)


def _diagonal(f: Any, x: Any, z: Any, w: Any, params: dict, side: int, xp: Any) -> Any:
    """The distances of rows [M] by all pairs of `side` of them at a time; M is a multiple of it."""
    one, other = (a.reshape(*a.shape[:-2], a.shape[-2] // side, side, a.shape[-1]) for a in (x, z))
    pairs = _verbs.cdist(one, other, metric=f, w=w, **params)
    kept = xp.diagonal(pairs, 0, -2, -1)
    return kept.reshape(*kept.shape[:-2], -1)


def _with_axis(value: Any) -> Any:
    """A parameter along leading axes, for points with one axis more."""
    if isinstance(value, (list, tuple)):
        return np.asarray(value)[..., None].tolist()
    return value[..., None] if getattr(value, "ndim", 0) else value
