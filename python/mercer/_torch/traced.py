"""The verbs as torch.compile traces them: plain Python from the arguments to an operator."""

from __future__ import annotations

import re
from typing import Any

import torch

from mercer import _array_likes, _mercer, _metrics, _normalized
from mercer._torch import call
from mercer._torch.kron import kron_matmul as kron_matmul
from mercer._torch.kron import matmul as matmul

# What mercer._groups reads, as x.name and x[2:5].
_GROUPS = re.compile(r"\b[xz]\s*(\.\s*[A-Za-z_]|\[\s*[\d:])")


@torch.compiler.assume_constant_result
def _choosing_options(f: Any) -> tuple[str, ...]:
    """The options of an entry of the zoo that choose its formula, such as a norm's p."""
    rows = _mercer.zoo_rows() if isinstance(f, str) else []
    found = [row for row in rows if f in (row["name"], *row["aliases"])]
    return tuple(o["name"] for row in found for o in row["options"] if o["is_static"])


@torch.compiler.assume_constant_result
def _formula(f: Any, verb: str, weighted: bool, options: tuple) -> str:
    if verb == "gradient_field":
        formula = _mercer.formula_of(f)
        arrays = {
            n for n, v in formula.parameters.items() if not isinstance(v, (float, type(None)))
        }
    else:
        rest = dict(options)
        formula = _mercer.formula_for(f, verb, weighted, rest)
        arrays = rest.keys() - dict(options).keys()
    if arrays:
        raise NotImplementedError(
            f"{verb}: a formula that carries arrays is not offered where torch.compile traces; "
            f"give them by name in the call. Received {', '.join(sorted(arrays))}"
        )
    return str(formula)


@torch.compiler.assume_constant_result
def _reads_groups(f: Any) -> bool:
    is_read = _array_likes.is_of_vectors({"f": f})
    return is_read or (isinstance(f, str) and _GROUPS.search(f) is not None)


def formula_for(f: Any, verb: str, weighted: bool, params: dict[str, Any]) -> str:
    """What _mercer.formula_for gives, as text: it takes options that choose the formula out."""
    if "ranges" in params or _reads_groups(f):
        raise NotImplementedError(
            f"{verb}: ranges, points by name, features by number and words of vectors are not "
            "offered where torch.compile traces; without fullgraph=True the call runs as it is. "
            f"Received {f}"
        )
    chosen = tuple((n, params.pop(n)) for n in _choosing_options(f) if n in params)
    return _formula(f, verb, weighted, chosen)


def _call(
    verb: str, operation: str, f: Any, x: Any, z: Any, arrays: Any, settings: Any,
    out: Any = None, row: Any = None, col: Any = None, w: Any = None, i_offset: Any = 0,
    j_offset: Any = 0, workspace: Any = None, progress: Any = False, **params: Any,
) -> Any:  # fmt: skip
    text = formula_for(f, verb, w is not None, params)
    arrays = {**arrays, "row": row, "col": col, "w": w}
    settings = {
        **settings, "i_offset": i_offset, "j_offset": j_offset, "out": out, "workspace": workspace
    }  # fmt: skip
    return call(verb, operation, text, x, z, arrays, settings, params)


def pairwise(f: Any, x: Any, z: Any = None, **options: Any) -> Any:
    return _call("pairwise", "pairwise", f, x, z, {}, {}, **options)


def kernel_matrix(f: Any, x: Any, z: Any = None, **options: Any) -> Any:
    return _call("kernel_matrix", "pairwise", f, x, z, {}, {}, **options)


@torch.compiler.assume_constant_result
def _shifted(text: str) -> str:
    return _normalized.shifted(text)


def kernel_product(
    f: Any, x: Any, z: Any, v: Any, *, normalize: Any = None, out: Any = None, **options: Any
) -> Any:
    if normalize is not None:
        _normalized.check(normalize, options.pop("workspace", None))
        text = formula_for(f, "kernel_product", options.get("w") is not None, options)
        texts = text, _shifted(text) if normalize == "softmax" else None
        row = options.pop("row", None)
        return _normalized.of_text(
            (kernel_product, kernel_reduce), texts, x, z, v, out, row, options
        )
    options["out"] = out
    return _call("kernel_product", "kernel_product", f, x, z, {"v": v}, {}, **options)


def kernel_reduce(f: Any, x: Any, z: Any, reduce: Any, **options: Any) -> Any:
    return _call("kernel_reduce", "kernel_reduce", f, x, z, {}, {"reduce": reduce}, **options)


def knn(f: Any, x: Any, z: Any, k: Any, **options: Any) -> Any:
    return _call("knn", "knn", f, x, z, {}, {"k": k}, **options)


def kernel_gradient(f: Any, x: Any, z: Any, coef: Any, **options: Any) -> Any:
    return _call("kernel_gradient", "kernel_gradient", f, x, z, {"coef": coef}, {}, **options)


def kernel_agop(f: Any, x: Any, z: Any, coef: Any, **options: Any) -> Any:
    return _call("kernel_agop", "kernel_agop", f, x, z, {"coef": coef}, {}, **options)


def gradient_field(
    phi: Any, x: Any, z: Any, amplitude: Any, coef: Any, combine: Any = None, **options: Any
) -> Any:
    if combine is not None:
        raise NotImplementedError(
            "gradient_field: combine= is not offered where torch.compile traces; call it outside "
            f"of the compiled function. Received combine={combine!r}"
        )
    arrays = {"amplitude": amplitude, "coef": coef}
    return _call("gradient_field", "gradient_field", phi, x, z, arrays, {}, **options)


def cdist(x1: Any, x2: Any, p: Any = None, *, metric: Any = None, **options: Any) -> Any:
    if metric is None:
        metric, p = "minkowski", 2.0 if p is None else p
    if p is not None:
        options["p"] = p
    if isinstance(metric, str) and metric in _metrics.NAMES:
        own = {n: options.pop(n) for n in ("out", "workspace", "progress") if n in options}
        return _metrics.cdist(x1, x2, metric, options.pop("w", None), options, own)
    return _call("cdist", "pairwise", metric, x1, x2, {}, {}, **options)
