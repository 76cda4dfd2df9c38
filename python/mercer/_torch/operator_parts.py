"""Parts of a KernelOperator whose tensors PyTorch follows: products, diagonal and rows, by verbs.

Within a transform of torch.func tensors have no memory for the compiled class, so that an operator
of such tensors is a FollowedOperator. It is written out, as linalg_cg has it, and its methods are
those of the verbs, which PyTorch differentiates and maps.
"""

from __future__ import annotations

import operator as _operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mercer
from mercer import _mercer, _watchers
from mercer._derived import leaves
from mercer._torch import linalg_cg
from mercer.errors import DtypeError

_VERB = "KernelOperator"
_DIAGONAL = 64  # points of which all pairs are made for their diagonal


def are_wrapped(values: Any) -> bool:
    """Whether a transform of torch.func holds one of them."""
    return any(
        isinstance(v, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(v) for v in values
    )


def is_followed(a: Any, v: Any) -> bool:
    tensors = [*linalg_cg.tensors_of(a), *([v] if isinstance(v, Tensor) else [])]
    return are_wrapped(tensors) or _watchers.follow(tensors)


class FollowedOperator:
    """The symmetric matrix of a KernelOperator, of tensors within a transform of torch.func."""

    __array_ufunc__ = None
    _mercer_is_followed = True  # on the class: whatever stands for a tensor has all attributes

    def __init__(
        self, f: Any, x: Any, *, ridge: Any = 0.0, weights: Any = None, w: Any = None,
        row: Any = None, col: Any = None, **params: Any,
    ) -> None:  # fmt: skip
        params = dict(params)
        text = _mercer.formula_for(f, "kernel_product", w is not None, params)
        if not isinstance(x, Tensor) or x.ndim != 2:
            raise ValueError(
                f"{_VERB}: x must be a tensor of the shape [n, K]. "
                f"Received {tuple(getattr(x, 'shape', ()))}"
            )
        if row is not col:
            raise ValueError(
                f"{_VERB}: row and col must be one tensor, since the matrix is symmetric. "
                f"Received {type(row)} and {type(col)}"
            )
        _check_by_one_point(text, x, ridge, {"w": w, "row": row, "col": col}, params)
        for name, values in (("ridge", ridge), ("weights", weights), ("row", row)):
            shape = tuple(getattr(values, "shape", ()))
            if values is not None and shape != tuple(x.shape[:1]) and (name != "ridge" or shape):
                raise ValueError(
                    f"{_VERB}: {name} must have shape {tuple(x.shape[:1])}. Received {shape}"
                )
        sides = {"weights": weights, "w": w, "row": row, "col": col}
        self.written = {"f": text, "x": x, "ridge": ridge, "params": params}
        self.written |= {name: value for name, value in sides.items() if value is not None}

    @property
    def shape(self) -> tuple[int, int]:
        return (self.points.shape[0],) * 2

    @property
    def points(self) -> Tensor:
        return self.written["x"]

    @property
    def dtype(self) -> torch.dtype:
        return self.points.dtype

    @property
    def device(self) -> torch.device:
        return self.points.device

    @property
    def ridge(self) -> Any:
        return self.written["ridge"]

    @property
    def weights(self) -> Any:
        return self.written.get("weights")

    @property
    def T(self) -> FollowedOperator:
        return self

    def __matmul__(self, v: Tensor) -> Tensor:
        return product(self, v)

    def __rmatmul__(self, v: Tensor) -> Tensor:
        return product(self, v.mT if v.ndim > 1 else v).mT if v.ndim > 1 else product(self, v)

    def diagonal(self) -> Tensor:
        return diagonal(self)

    def rows(self, i: Any) -> Tensor:
        return rows(self, i)


def _check_by_one_point(f: Any, x: Tensor, ridge: Any, sides: dict, params: dict) -> None:
    """Formula and names, by an operator of one point of ones, which NumPy has: within a transform
    there are no plain tensors."""
    dtype = str(x.dtype).rpartition(".")[2]
    if dtype not in ("float32", "float64"):
        raise DtypeError(f"{_VERB}: x must be float32 or float64. Received {dtype}")
    known: dict[str, Any] = {
        name: np.ones(x.shape[1] if name == "w" else 1, dtype)
        for name, value in sides.items() if value is not None
    }  # fmt: skip
    numbers = {name: 1.0 if isinstance(v, Tensor) else v for name, v in params.items()}
    known |= {"ridge": ridge} if isinstance(ridge, (int, float)) else {}
    _mercer.KernelOperator(f, np.ones((1, x.shape[1]), dtype), **known, **numbers)


def product(a: Any, v: Any) -> Tensor:
    """a v, of v [n, k] or [n]."""
    n = a.shape[0]
    if not isinstance(v, Tensor) or v.ndim not in (1, 2) or v.shape[0] != n:
        raise ValueError(
            f"{_VERB}: v must be a tensor of the shape [n, k] or [n], n = {n}. "
            f"Received {tuple(getattr(v, 'shape', ())) or type(v)}"
        )
    if v.dtype != a.dtype:
        raise DtypeError(f"{_VERB}: v must be {a.dtype}. Received {v.dtype}")
    return linalg_cg._product(linalg_cg.written_out(a), None, v)


def _scaled(written: dict, values: Tensor, places: Any = None) -> Tensor:
    """The roots of the weights of some points times the rows that they are."""
    weights = written.get("weights")
    if weights is None:
        return values
    roots = linalg_cg._root(weights if places is None else weights[places])
    return linalg_cg._column(roots, values) * values


def _verb_options(written: dict) -> dict[str, Any]:
    given = {name: written[name] for name in ("w", "row", "col") if written.get(name) is not None}
    return {**given, **written["params"]}


def diagonal(a: Any) -> Tensor:
    """Ridges and weights included: from all pairs of a few points."""
    written = linalg_cg.written_out(a)
    f, x = written["f"], written["x"]
    if not leaves(str(f)).isdisjoint("ij"):
        raise NotImplementedError(
            f"{_VERB}: diagonal is not offered for formulas that read indices. Received {f}"
        )
    n = x.shape[0]
    size = min(_DIAGONAL, max(n, 1))
    count = -(-n // size)
    places = torch.arange(count * size, device=x.device).clamp(max=max(n - 1, 0))
    places = places.reshape(count, size)
    options = _verb_options(written)
    if "row" in options:
        options["row"] = options["col"] = options["row"][places]
    found = mercer.pairwise(f, x[places], x[places], **options)
    found = found.diagonal(0, -2, -1).reshape(-1)[:n]
    return _scaled(written, _scaled(written, found)) + written["ridge"]


def rows(a: Any, i: Any) -> Tensor:
    """Ridges and weights included: [n] for a whole number, [r, n] for r of them."""
    written = linalg_cg.written_out(a)
    x, n = written["x"], a.shape[0]
    places, single = _places(i, n)
    chosen = torch.nn.functional.one_hot(places, max(n, 1)).to(x)[:, :n]
    if not leaves(str(written["f"])).isdisjoint("ij"):  # products know their indices
        found = product(a, chosen.mT).mT
    else:
        options = _verb_options(written)
        if "row" in options:
            options["row"] = options["row"][places]
        found = mercer.kernel_matrix(written["f"], x[places], x, **options)
        found = _scaled(written, _scaled(written, found, places).mT).mT
        found = found + chosen * written["ridge"]
    return found[0] if single else found


def _places(i: Any, n: int) -> tuple[Tensor, bool]:
    if isinstance(i, slice):
        return torch.arange(*i.indices(n)), False
    single = not hasattr(i, "__len__") or getattr(i, "ndim", 1) == 0
    found = []
    for value in [i] if single else i.tolist() if hasattr(i, "tolist") else i:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{_VERB}: rows are whole numbers. Received {value!r}")
        place = _operator.index(value)
        if not -n <= place < n:
            raise IndexError(f"{_VERB}: rows must be from {-n} to {n - 1}. Received {place}")
        found.append(place % n)
    return torch.tensor(found, dtype=torch.int64), single
