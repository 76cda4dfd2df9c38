"""What there is for each operator by its name, filled in by the modules that define operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# What it does with tensors that are memory and nothing else, past PyTorch's dispatcher.
FUNCTIONS: dict[str, Callable[..., Any]] = {}
# (inputs, outputs, cotangents, which inputs need a gradient) -> gradients.
GRADIENTS: dict[str, Callable[[tuple, tuple, tuple, tuple], tuple]] = {}
# (inputs, outputs, tangents) -> tangent.
TANGENTS: dict[str, Callable[[tuple, tuple, tuple], Any]] = {}
# Rules of operators that are no pairs of points: (name, info, in_dims, inputs) -> (results, axes).
MAPPED: dict[str, Callable[..., tuple[Any, Any]]] = {}
