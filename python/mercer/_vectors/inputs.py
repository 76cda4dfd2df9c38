"""The arrays of a call whose formula is read as a tree: checked, of one library and one dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from mercer import _array_likes, _groups, _libraries
from mercer._mercer import Expr
from mercer._trace import trace
from mercer._vectors import text
from mercer._vectors.nodes import I_SIDE, J_SIDE, Node, has_float64
from mercer.errors import DtypeError

__all__ = ["Inputs"]

_NUMBERS = (
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float32", "float64",
)  # fmt: skip


def _sides(verb: str, given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Arrays [..., n, D] of x, z, u and v by the names of their groups."""
    found: dict[str, dict[str, Any]] = {}
    for side in ("x", "z", "u", "v"):
        points = given.get(side)
        if side == "z" and points is None:
            found["z"] = found["x"]  # one set of arrays, also after a cast
        if points is None:
            continue
        groups = _groups._groups(verb, side, points)
        least = 2 if side in "xz" and "" in groups else 1
        for name, array in groups.items():
            if getattr(array, "ndim", 0) < least or not hasattr(array, "dtype"):
                written = f"{side}[{name!r}]" if name else side
                shapes = "[..., n, D]" if least == 2 else "[..., n, D] or [n]"
                raise ValueError(
                    f"{verb}: {written} must be an array of the shape {shapes}. Received "
                    f"{tuple(getattr(array, 'shape', ()))} of {type(array).__name__}"
                )
        found[side] = {n: a[:, None] if a.ndim == 1 else a for n, a in groups.items()}
    return found


class Inputs:
    """The checked arguments of a call, in one library and one dtype."""

    def __init__(self, verb: str, given: dict[str, Any], separate: bool | None = True):
        self.verb, self.separate = verb, separate
        self.points = _sides(verb, given)
        self.numbers = {
            name: (_array_likes.array(given[name]), side)
            for name, side in (("row", I_SIDE), ("col", J_SIDE))
            if given.get(name) is not None
        }
        _array_likes.refuse_masked(self.verb, **{n: a for n, (a, _) in self.numbers.items()})
        self.weights = None if given.get("w") is None else _array_likes.array(given["w"])
        self.params = given["params"]
        first = next(iter(self.points["x"].values()), None)
        if first is None:
            raise ValueError(f"{self.verb}: x must have groups. Received none")
        self.xp = _libraries.namespace_of(first)
        if self.xp.__name__ not in ("numpy", "torch", "jax.numpy", "cupy"):
            raise NotImplementedError(
                f"{self.verb}: it is offered for arrays of NumPy, PyTorch, JAX and CuPy. Received "
                f"{type(first).__module__}.{type(first).__name__}"
            )
        self._check_library(first)
        self._cast()
        self.like = next(iter(self.points["x"].values()))
        self.sizes = self._count(("x", "u"), "row", "M"), self._count(("z", "v"), "col", "N")
        self._check_batches()

    def _named(self) -> dict[str, Any]:
        named = {
            f"{side}[{name!r}]" if name else side: array
            for side, groups in self.points.items()
            for name, array in groups.items()
        }
        named |= {name: array for name, (array, _) in self.numbers.items()}
        return named if self.weights is None else named | {"w": self.weights}

    def _check_library(self, first: Any) -> None:
        for name, array in self._named().items():
            if not hasattr(array, "dtype") or _libraries.namespace_of(array) is not self.xp:
                raise ValueError(
                    f"{self.verb}: {name} must be an array of the library of x. Received "
                    f"{type(array).__module__}.{type(array).__name__}"
                )
            kind = str(array.dtype).rpartition(".")[2]
            if kind not in _NUMBERS:
                raise DtypeError(
                    f"{self.verb}: {name} must hold real numbers of at most 64 bits. Received "
                    f"{array.dtype}"
                )
            place, here = getattr(array, "device", None), getattr(first, "device", None)
            if self.xp.__name__ == "torch" and place != here:
                raise ValueError(
                    f"{self.verb}: {name} must be on the device of x, {here}. Received {place}"
                )

    def _cast(self) -> None:
        """All arrays in one type that holds the numbers of all."""
        kinds = [_array_likes.computing_type(array.dtype) for array in self._named().values()]
        self.dtype = getattr(self.xp, max(kinds, key=lambda kind: kind.itemsize).name)
        for groups in self.points.values():
            groups.update({name: self._in_type(name, array) for name, array in groups.items()})
        self.numbers = {n: (self._in_type(n, a), side) for n, (a, side) in self.numbers.items()}
        if self.weights is not None:
            self.weights = self._in_type("w", self.weights)
            if self.weights.ndim != 1:
                raise ValueError(
                    f"{self.verb}: w must have the shape [K]. Received {tuple(self.weights.shape)}"
                )

    def _in_type(self, name: str, array: Any) -> Any:
        if self.xp.__name__ == "torch":
            return array.to(self.dtype)
        if self.xp is np and array.dtype.kind in "iu":
            array = _array_likes.widened(self.verb, name, array)
        if (
            self.xp.__name__ == "jax.numpy"
            and self.dtype == np.float64
            and not has_float64(self.xp)
        ):
            raise DtypeError(
                f"{self.verb}: {name} of {array.dtype} is computed in float64, which JAX has with "
                "jax_enable_x64 alone; give float32. Received JAX without it"
            )
        return array.astype(self.dtype) if array.dtype != self.dtype else array

    def _count(self, sides: tuple[str, str], number: str, letter: str) -> int:
        """The number of points of a side, which all of its arrays share."""
        shapes = {
            f"{side}.{name}" if name else side: tuple(array.shape)
            for side in sides
            for name, array in self.points.get(side, {}).items()
        }
        counts = {shape[-2] for shape in shapes.values()}
        if number in self.numbers:
            shapes[number] = tuple(self.numbers[number][0].shape)
            if len(shapes[number]) < 1:
                raise ValueError(f"{self.verb}: {number} must have the shape [..., {letter}]")
            counts.add(shapes[number][-1])
        if len(counts) > 1:
            raise ValueError(
                f"{self.verb}: {', '.join(shapes)} must have the same number {letter} of points. "
                f"Received {shapes}"
            )
        return counts.pop()

    def _check_batches(self) -> None:
        named = self._named()
        shapes = {
            name: tuple(array.shape[: -1 if name in ("row", "col") else -2])
            for name, array in named.items()
            if name != "w"
        }
        try:
            self.batch: tuple[int, ...] = np.broadcast_shapes(*shapes.values())
        except ValueError:
            raise ValueError(
                f"{self.verb}: batch axes, those before [n, D], must broadcast. Received "
                f"{ {name: tuple(named[name].shape) for name in shapes} }"
            ) from None

    def array(self, name: str, value: Any) -> Any:
        """A parameter as an array of the library."""
        value = _array_likes.array(value)
        _array_likes.refuse_masked(self.verb, **{name: value})
        kind = str(getattr(value, "dtype", "float64")).rpartition(".")[2]
        if kind not in _NUMBERS:
            raise DtypeError(
                f"{self.verb}: the parameter {name} must hold real numbers. Received {value!r}"
            )
        if self.xp.__name__ == "torch":
            return self.xp.as_tensor(value, dtype=self.dtype, device=self.like.device)
        return self.xp.asarray(value, dtype=self.dtype)

    def node(self, f: Any) -> tuple[Node, set[str]]:
        if callable(f) and not isinstance(f, Expr):
            f = trace(f)
        if not isinstance(f, (str, Expr)):
            raise ValueError(
                f"{self.verb}: a formula must be a text, an expression of symbols, or a function "
                f"that gives one. Received {type(f).__name__}"
            )
        defaults = {} if isinstance(f, str) else dict(f.parameters)
        is_wide = self.separate is None and "float32" in str(self.dtype) and has_float64(self.xp)
        maps_pairs = (
            self.separate is True
            or is_wide
            or (self.separate is None and "float64" in str(self.like.dtype))
        )
        given = text.Given(
            self.points,
            self.numbers,
            self.weights,
            self.params,
            defaults,
            self.xp,
            self.array,
            maps_pairs,
            is_wide,
        )
        return text.read(str(f), self.verb, given)

    def check_read(self, read: set[str], f: Any) -> None:
        unread = sorted(self.params.keys() - read)
        if unread:
            raise ValueError(
                f"{self.verb}: the formula must read each parameter. Received {', '.join(unread)} "
                f"for {f}"
            )
