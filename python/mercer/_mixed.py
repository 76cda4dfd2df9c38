"""Arguments of one call that come from several libraries of arrays, refused by their names."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

#: Numbers, and ridges of columns, may lie in arrays of NumPy whatever the matrix is.
_FREE = ("ridge",)


def library_of(value: Any) -> str | None:
    """The library of an array, or of what is made of some; None for what is no array."""
    if isinstance(value, tuple | list):
        return next((found for found in map(library_of, value) if found), None)
    if isinstance(value, np.ndarray):
        return "numpy" if value.ndim else None
    for module, name in (("torch", "Tensor"), ("jax", "Array"), ("cupy", "ndarray")):
        known = sys.modules.get(module)
        if known is not None and isinstance(value, getattr(known, name, ())):
            return module
    if type(value).__module__.startswith("mercer.") and hasattr(value, "points"):
        return library_of(value.points)
    return None


def require_one_library(verb: str, named: dict[str, Any]) -> None:
    """All arrays must come from the library of the first of them."""
    first = library = None
    for name, value in named.items():
        found = library_of(value)
        if found is None or (name in _FREE and found == "numpy"):
            continue
        if library is None:
            first, library = name, found
        if found != library:
            raise ValueError(
                f"{verb}: {name} must come from the library of {first}, {library}. Received an "
                f"array of {found}"
            ) from None
