"""Files that back arrays: reading a memory map past the end of its file would end the process."""

from __future__ import annotations

import mmap
from typing import Any


def _map_of(array: Any) -> tuple[Any, mmap.mmap] | None:
    """The array that was made of the map, and the map; None for other memory."""
    base = getattr(array, "base", None)
    while base is not None and not isinstance(base, mmap.mmap):
        if isinstance(base, memoryview):
            base = base.obj
            continue
        array, base = base, getattr(base, "base", None)
    return None if base is None else (array, base)


def require_whole_file(verb: str, name: str, array: Any) -> None:
    """Raises ValueError where the file of a memory map is shorter than what is mapped."""
    found = _map_of(array)
    if found is None:
        return
    mapped, memory = found
    needed = getattr(mapped, "offset", 0) + mapped.nbytes
    try:
        size = memory.size()
    except (OSError, ValueError):  # of no file
        return
    if size < needed:
        raise ValueError(
            f"{verb}: the file of {name} must have the {needed} bytes that its memory map reads. "
            f"Received a file of {size} bytes"
        )
