"""Arrays that are described, not there: what `mercer.workspace_size` takes in their place."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer.errors import DtypeError

__all__ = ["described"]

_FAR_APART = 1 << 48
_FIRST = 1 << 11  # below are the addresses of outputs that no call makes


@dataclasses.dataclass(frozen=True, slots=True)
class Outline:
    """One array. strides: in elements, None for rows; device: -1 the CPU, -2 CUDA's current one."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device: int
    address: int


def described(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with outlines in the place of descriptions, which lie on `device`.

    Without descriptions everything stays, ``device`` too: it may be a parameter of the formula.
    """
    found: list[Any] = []

    def noted(outline: Any) -> Any:
        found.append(outline)
        return outline

    _walk(list(args) + list(kwargs.values()), noted)
    if not found:
        return args, kwargs
    rest = dict(kwargs)
    outlines = _Outlines(_device(rest.pop("device", None)))
    return tuple(_walk(list(args), outlines)), {k: _walk(v, outlines) for k, v in rest.items()}


class _Outlines:
    """A meta tensor is one array wherever it stands, a shape with a dtype a new one each time."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._known: dict[int, Outline] = {}
        self._count = 0

    def __call__(self, x: Any) -> Outline:
        if isinstance(x, tuple):
            return self._make(x[0], None, x[1])
        if id(x) not in self._known:
            strides = x.stride() if _is_meta(x) else None
            self._known[id(x)] = self._make(x.shape, strides, x.dtype)
        return self._known[id(x)]

    def _make(self, shape: Any, strides: Any, dtype: Any) -> Outline:
        self._count += 1
        address = _FAR_APART * (_FIRST + self._count)
        lengths = tuple(map(int, shape))
        return Outline(lengths, strides, _dtype_name(dtype), self._device, address)


def _walk(x: Any, change: Callable[[Any], Any]) -> Any:
    if _is_description(x):
        return change(x)
    if type(x) is list:
        return [_walk(part, change) for part in x]
    if type(x) is tuple:
        return tuple(_walk(part, change) for part in x)
    return x


def _is_meta(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor) and x.is_meta


def _is_description(x: Any) -> bool:
    if type(x) is tuple:
        return len(x) == 2 and _is_shape(x[0]) and _is_dtype(x[1])
    if _is_meta(x):
        return True
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.ShapeDtypeStruct)


def _is_shape(x: Any) -> bool:
    return isinstance(x, (tuple, list)) and all(
        hasattr(length, "__index__") and not isinstance(length, bool) for length in x
    )


def _is_dtype(x: Any) -> bool:
    return isinstance(x, (str, type, np.dtype)) or type(x).__name__ == "dtype"


def _dtype_name(dtype: Any) -> str:
    text = str(dtype).removeprefix("torch.")
    if text == "bfloat16":
        return text
    try:
        return np.dtype(text if str(dtype) != text else dtype).name
    except TypeError:
        raise DtypeError(
            f"workspace_size: a dtype must be one of arrays. Received {dtype!r}"
        ) from None


def _device(device: Any) -> int:
    text = "nothing" if device is None else str(device)
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", text)
    if match is None:
        raise ValueError(
            'workspace_size: device must be "cpu", "cuda" or "cuda:0" and so on, where an array is '
            f"described. Received {text}"
        )
    if text == "cpu":
        return -1
    return -2 if match[1] is None else int(match[1])
