"""The inputs of an operator as a list of tensors, and a form with room for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Room(NamedTuple):
    """Stands for a tensor (length -1) or for a list of them."""

    length: int


_ONE, _EMPTY = Room(-1), Room(0)


def separate(inputs: Sequence[Any]) -> tuple[tuple, list[Tensor]]:
    form: list[Any] = []
    tensors: list[Tensor] = []
    for value in inputs:
        if isinstance(value, Tensor):
            form.append(_ONE)
            tensors.append(value)
        elif value is None or isinstance(value, (str, int, float)):
            form.append(value)
        elif isinstance(value, (list, tuple)):
            if not value:
                form.append(_EMPTY)
            elif isinstance(value[0], Tensor) and all(isinstance(v, Tensor) for v in value):
                form.append(Room(len(value)))
                tensors.extend(value)
            else:
                form.append(value)
        else:
            form.append(value)
    return tuple(form), tensors


def join(form: tuple, values: Sequence[Any]) -> tuple:
    """The form with these values in the place of its tensors."""
    rest = iter(values)
    return tuple(
        [
            part if not isinstance(part, Room)
            else next(rest) if part.length < 0
            else [next(rest) for _ in range(part.length)]
            for part in form
        ]
    )  # fmt: skip


def pick(form: tuple, values: Sequence[Any]) -> list[Any]:
    """The values in the places of tensors, of values in the structure of the inputs."""
    found: list[Any] = []
    for part, value in zip(form, values, strict=True):
        if not isinstance(part, Room):
            continue
        if part.length < 0:
            found.append(value)
        else:
            found.extend(value)
    return found
