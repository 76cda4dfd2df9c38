"""Points that no one array holds: arrays of Dask and DTensors of PyTorch, and who takes them.

An estimator says in ``_takes`` which of the two its fit takes. A fit on arrays of Dask keeps the
points in their chunks (`_chunks`); one on DTensors shares products over the ranks (`_ranks`).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from mercer._progress import of_calls, wanted_by

#: Kind -> (what it is called, the method that gives all of it in memory).
_WORDS = {"dask": ("an array of Dask", "compute"), "dtensor": ("a DTensor", "full_tensor")}


def kind_of(a: Any) -> str | None:
    """ "dask", "dtensor", or None for all else."""
    dask, tensor = (sys.modules.get(name) for name in ("dask.array", "torch.distributed.tensor"))
    if dask is not None and isinstance(a, getattr(dask, "Array", ())):
        return "dask"
    if tensor is not None and isinstance(a, getattr(tensor, "DTensor", ())):
        return "dtensor"
    return None


def mapped(function: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """function(x, y) for points x [n, d] and what all of them share; of Dask a block at a time,
    which leaves the array one that is read anew for each use."""
    if kind_of(x) != "dask":
        return function(x, y)
    return x.map_blocks(function, y, dtype=x.dtype, meta=x._meta)


def known(a: Any) -> Any:
    """A small array of Dask in memory: what is made of it then needs no chunk that it is made of,
    which Dask would hold until both are there."""
    return a.compute() if kind_of(a) == "dask" else a


def in_words(a: Any) -> str:
    dtype = str(a.dtype).rpartition(".")[2]
    return f"{_WORDS[kind_of(a) or ''][0]}, {dtype} {list(a.shape)}"


def written_out(name: str, a: Any) -> str:
    """What gives all of the array in memory."""
    return f"{name}.{_WORDS[kind_of(a) or ''][1]}()"


def fitted(estimator: Any, method: Callable[..., Any], arguments: tuple, named: dict) -> Any:
    """A fit or its like of which an argument is of a kind."""
    bound = inspect.signature(method).bind(estimator, *arguments, **named).arguments
    given = {name: value for name, value in bound.items() if name != "self"}
    kind = _required(estimator, method.__name__, given)
    if kind == "dask":
        found = method(estimator, **given)
        estimator._in_chunks = True
        return found
    from mercer.models import _ranks

    found = _ranks.fitted(estimator, method, given)
    vars(estimator).pop("_in_chunks", None)
    return found


def _required(estimator: Any, method: str, given: dict[str, Any]) -> str:
    """The kind of X; refuses what the estimator does not take, before anything is computed."""
    place, X = f"{type(estimator).__name__}.{method}", given["X"]
    kind = kind_of(X)
    for name, value in given.items():
        found = kind_of(value)
        if found is not None and found != kind:
            raise ValueError(
                f"{place}: {name} must be in memory where X is; write {written_out(name, value)}. "
                f"Received {in_words(value)}, with X {in_words(X) if kind else type(X)}"
            )
    takes = getattr(estimator, "_takes", ())
    why = "X must be in memory"
    if kind in takes and method != "partial_fit":
        why = estimator._why_not(kind)
    if why:
        raise NotImplementedError(
            f"{place}: {why}; write {written_out('X', X)}. Received {in_words(X)}"
        )
    return kind or ""


def require_memory(estimator: Any, X: Any, name: str = "X") -> None:
    """For what takes neither kind."""
    if kind_of(X):
        raise NotImplementedError(
            f"{type(estimator).__name__}: {name} must be in memory; write {written_out(name, X)}. "
            f"Received {in_words(X)}"
        )


class Ready:
    """Stands for points [m, d] whose sums with the fitted points are there: parts [m, ...]."""

    ndim = 2

    def __init__(self, *parts: Any) -> None:
        self.parts, self.dtype = parts, parts[0].dtype


def by_rows(method: Callable[..., Any]) -> Callable[..., Any]:
    """For predict and its like, whose answers are rows as X has: of an array of Dask they are one,
    lazily; of a DTensor they are DTensors, split as X is. With the estimator's ``progress`` calls
    of the engine show themselves, or tell the bar of the fit that runs."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        with of_calls(wanted_by(self)):
            return answer(self, arguments, named)

    def answer(self: Any, arguments: tuple, named: dict[str, Any]) -> Any:
        X = arguments[0] if arguments else named.get("X")
        kind = kind_of(X)
        if kind is None and (isinstance(X, Ready) or not vars(self).get("_in_chunks")):
            return method(self, *arguments, **named)
        bound = inspect.signature(method).bind(self, *arguments, **named).arguments
        rest = {name: value for name, value in bound.items() if name not in ("self", "X")}
        if kind is not None and rest.get("return_cov"):
            raise NotImplementedError(
                f"{type(self).__name__}.{method.__name__}: return_cov is of all pairs of X, which "
                f"must be in memory; write {written_out('X', X)}. Received {in_words(X)}"
            )
        if kind == "dtensor":
            from mercer.models import _ranks

            return _ranks.answered(self, method, X, rest)
        from mercer.models import _chunks

        return _chunks.answered(self, method, X, rest)

    return call
