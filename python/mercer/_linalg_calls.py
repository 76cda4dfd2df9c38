"""The compiled functions of mercer.linalg, with arrays that they do not compute on themselves.

A call is the compiled function's first. What it refuses because PyTorch follows a tensor goes to
the operators of ``_torch/linalg_verbs.py``. PyTorch is not imported.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from mercer import _mercer

MODULE = "mercer.linalg"


def followed(name: str, engine: Callable[..., Any], is_traced: bool = True) -> Callable[..., Any]:
    """The function, but for tensors that PyTorch follows; `is_traced`: an operator for
    torch.compile, which is opaque to it otherwise."""

    @functools.wraps(engine)
    def verb(*arguments: Any, **options: Any) -> Any:
        if is_traced and "torch._dynamo" in sys.modules and _is_compiling():
            return _in_torch(name, arguments, options)
        try:
            return engine(*arguments, **options)
        except (NotImplementedError, TypeError) as refusal:
            if not _is_of_torch((*arguments, *options.values())):
                raise
            refused = refusal
        return _in_torch(name, arguments, options, refused)

    verb.__module__ = MODULE
    return verb


def _is_compiling() -> bool:
    return sys.modules["torch"].compiler.is_dynamo_compiling()


def _in_torch(name: str, arguments: tuple, options: dict, refusal: Any = None) -> Any:
    from mercer._torch import linalg_verbs

    return linalg_verbs.call(name, arguments, options, refusal)


def _is_of_torch(values: tuple) -> bool:
    """Whether one of them is a tensor of PyTorch's, what stands for one, or made of some."""
    found = [v for value in values for v in (value if type(value) is tuple else (value,))]
    if "torch" in sys.modules and any(isinstance(v, _mercer.KernelOperator) for v in found):
        return True
    return any(t.__module__.partition(".")[0] == "torch" for v in found for t in type(v).__mro__)


def with_tensor_of_one(ridge: Any, x: Any) -> Any:
    """A tensor of one number as one for each point, which is an array and keeps its gradient."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(ridge, torch.Tensor) or ridge.ndim > 0:
        return ridge
    return ridge.to(x.device, x.dtype).expand(len(x))
