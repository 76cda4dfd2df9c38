"""The compiled functions of mercer.linalg, with arrays that they do not compute on themselves.

A call is the compiled function's first. What it refuses because PyTorch follows a tensor goes to
the operators of ``_torch/linalg_verbs.py``, arrays of JAX to ``_jax_linalg.py``. Neither library is
imported.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer import _mercer, _progress
from mercer._mixed import require_one_library
from mercer._spelling import hint
from mercer.errors import DtypeError, LinAlgError

MODULE = "mercer.linalg"
#: Functions of stored matrices; the modules for PyTorch and for JAX have all of them.
STORED = (
    "cho_inverse", "cho_inverse_diagonal", "cho_solve", "cholesky", "eigh", "inv_quad_logdet",
    "lu_factor", "lu_solve", "solve_cholesky", "solve_lu", "solve_triangular",
)  # fmt: skip


def followed(name: str, engine: Callable[..., Any], is_traced: bool = True) -> Callable[..., Any]:
    """The function, but for tensors that PyTorch follows; `is_traced`: an operator for
    torch.compile, which is opaque to it otherwise."""

    @_progress.watched
    @functools.wraps(engine)
    def verb(*arguments: Any, **options: Any) -> Any:
        if is_traced and "torch._dynamo" in sys.modules and _is_compiling():
            return _in_torch(name, arguments, options)
        try:
            return engine(*arguments, **options)
        except (NotImplementedError, TypeError, ValueError) as refusal:
            if isinstance(refusal, TypeError):
                _require_known(name, engine, options)
            require_one_library(name, _by_name(name, arguments, options))
            if isinstance(refusal, ValueError):
                raise
            values = (*arguments, *options.values())
            way = _in_jax if _is_of_jax(values) else _in_torch if _is_of_torch(values) else None
            if way is None:
                raise
            refused = refusal.with_traceback(
                None
            )  # else frames, with all arrays, until a collection
        return way(name, arguments, options, refused)

    verb.__module__ = MODULE
    return verb


def _require_known(name: str, engine: Any, options: dict[str, Any]) -> None:
    """Names the option that the function does not have."""
    compiled = getattr(engine, "__wrapped__", engine)
    known = re.findall(r"(\w+): ", getattr(compiled, "__nb_signature__", (("",),))[0][0])
    for option in options:
        if known and option not in known:
            raise TypeError(
                f'{name}: there is no option "{option}"{hint(option, known)}. It has '
                f"{', '.join(known)}"
            )


#: What the first arguments of a function are called, if not a and b.
_FIRST = {
    "cho_inverse": ("factor",), "cho_inverse_diagonal": ("factor",), "cho_solve": ("factor", "b"),
    "lu_solve": ("lu", "b"),
}  # fmt: skip


def _by_name(name: str, arguments: tuple, options: dict[str, Any]) -> dict[str, Any]:
    first = _FIRST.get(name, ("a", "b"))
    given = dict(zip(first, arguments, strict=False)) | options
    return {key: given.pop(key) for key in first if key in given} | given


def _is_compiling() -> bool:
    return sys.modules["torch"].compiler.is_dynamo_compiling()


def _in_torch(name: str, arguments: tuple, options: dict, refusal: Any = None) -> Any:
    from mercer._torch import linalg_verbs

    return linalg_verbs.call(name, arguments, options, refusal)


def is_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def _is_of_jax(values: tuple) -> bool:
    return any(is_jax(value) for value in _flat(values))


#: Methods that know a matrix, or an operator, by its products and rows, and their modules for JAX.
ITERATED = {
    "cg": "_jax_cg", "eigh_top": "_jax_spectra", "inv_quad_logdet": "_jax_spectra",
    "minres": "_jax_cg", "nystrom": "_jax_inverse", "pivoted_cholesky": "_jax_inverse",
    "rpcholesky": "_jax_inverse", "sap": "_jax_sap",
}  # fmt: skip


def of_jax(name: str, *arguments: Any, **options: Any) -> Any:
    """A method for an operator of JAX's points, or for a matrix of JAX."""
    require_one_library(name, _by_name(name, arguments, options))
    module = importlib.import_module(f"mercer.{ITERATED[name]}")
    return getattr(module, name)(*arguments, **options)


def _in_jax(name: str, arguments: tuple, options: dict, refusal: Any) -> Any:
    from mercer import _jax_linalg

    if name in ITERATED and name not in _jax_linalg.VERBS:
        return of_jax(name, *arguments, **options)
    if name not in _jax_linalg.VERBS:
        raise refusal
    for option in OPTIONS:
        if options.get(option) is not None and options[option] is not False:
            raise NotImplementedError(
                f"{name}: {option} is not offered for arrays of jax. Received one"
            )
    given = {key: value for key, value in options.items() if key not in OPTIONS}
    return _jax_linalg.VERBS[name](*arguments, **given)


def _flat(values: tuple) -> list[Any]:
    return [v for value in values for v in (value if type(value) is tuple else (value,))]


def _is_of_torch(values: tuple) -> bool:
    """Whether one of them is a tensor of PyTorch's, what stands for one, or made of some."""
    found = _flat(values)
    if "torch" in sys.modules and any(isinstance(v, _mercer.KernelOperator) for v in found):
        return True
    return any(t.__module__.partition(".")[0] == "torch" for v in found for t in type(v).__mro__)


def are_transformed(values: tuple) -> bool:
    """Whether a transform of torch.func holds one of them."""
    torch = sys.modules.get("torch")
    if torch is None or torch._C._functorch.peek_interpreter_stack() is None:
        return False
    from mercer._torch import operator_parts

    return operator_parts.are_wrapped(values)


def of_transformed(name: str, *arguments: Any, **options: Any) -> Any:
    """A method for an operator of tensors within a transform of torch.func."""
    from mercer._torch import linalg_verbs

    require_one_library(name, _by_name(name, arguments, options))
    refusal = NotImplementedError(
        f"{name}: is not offered within torch.func for an operator. Received one"
    )
    return linalg_verbs.on_memory(name, arguments, options, refusal)


def part(operator: Any, name: str, argument: Any, refusal: Exception) -> Any:
    """A product, the diagonal or rows of an operator that PyTorch follows."""
    named = {"x": operator, "v": argument} if name == "product" else {"x": operator}
    require_one_library("KernelOperator", named)
    if not _is_of_torch((operator.points,)):
        raise refusal
    from mercer._torch import operator_parts

    if not operator_parts.is_followed(operator, argument):
        raise refusal
    if argument is None:
        return operator_parts.diagonal(operator)
    return getattr(operator_parts, name)(operator, argument)


def with_tensor_of_one(ridge: Any, x: Any) -> Any:
    """A tensor of one number as one for each point, which is an array and keeps its gradient."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(ridge, torch.Tensor) or ridge.ndim > 0:
        return ridge
    if not isinstance(x, torch.Tensor):
        return ridge
    return ridge.to(x.device, x.dtype).expand(len(x))


# ---- What PyTorch's and JAX's ways share: checks in the engine's words. --------------------------

OPTIONS = ("out", "workspace", "overwrite_a", "overwrite_b", "overwrite_factor")


def check(
    verb: str, name: str, a: Any, b: Any, library: str, is_own: Callable[[Any], bool],
    square: bool = True,
) -> None:  # fmt: skip
    """Matrices of this name, and b unless it is None; `is_own` tells arrays of the library."""
    for word, value in ((name, a), ("b", b)):
        if value is not None and not is_own(value):
            raise ValueError(
                f"{verb}: {word} must come from the library of {name}, {library}. "
                f"Received {type(value)}"
            )
    if str(a.dtype).rpartition(".")[2] not in ("float32", "float64"):
        raise DtypeError(f"{verb}: {name} must be float32 or float64. Received {a.dtype}")
    if a.ndim < 2 or (square and a.shape[-1] != a.shape[-2]):
        rows = "n" if square else "m"
        raise ValueError(
            f"{verb}: {name} must have the shape [..., {rows}, n]. Received {tuple(a.shape)}"
        )
    if b is None:
        return
    if b.dtype != a.dtype:
        raise DtypeError(f"{verb}: b must have the dtype of {name}, {a.dtype}. Received {b.dtype}")
    if b.ndim == 0 or b.shape[-1 if b.ndim == 1 else -2] != a.shape[-1]:
        raise ValueError(
            f"{verb}: b must have the shape [..., n, k] or [n], n = {a.shape[-1]} as in {name}. "
            f"Received {tuple(b.shape)}"
        )


def amounts_of(verb: str, jitter: Any) -> list[float]:
    """The amounts that are tried one after the other."""
    if jitter is None:
        return []
    amounts = [jitter, 10 * jitter, 100 * jitter] if isinstance(jitter, (int, float)) else jitter
    amounts = [float(amount) for amount in amounts]
    for amount in amounts:
        if not (amount > 0 and math.isfinite(amount)):
            raise ValueError(f"{verb}: jitter must be positive and finite. Received {amount:g}")
    return amounts


def subset_of(subset: Any, n: int) -> tuple[int, int]:
    """The first and the last one of n eigenvalues."""
    if subset is None:
        return 0, n - 1
    first, last = subset
    if not 0 <= first <= last < n:
        raise ValueError(
            f"eigh: subset_by_index must be (first, last), 0 <= first <= last < {n}. "
            f"Received ({first}, {last})"
        )
    return first, last


def raise_as(name: str, a: Any, **options: Any) -> None:
    """What the engine raises for matrices that failed."""
    if "b" in options:
        options["b"] = np.asarray(options["b"])
    getattr(_mercer, name)(np.asarray(a), **options)
    raise LinAlgError(f"{name}: a matrix failed in what JAX compiled, and not in a call of its own")
