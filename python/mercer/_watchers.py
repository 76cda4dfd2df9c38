"""What of PyTorch is to see the calls of this thread: torch.jit.trace, and modes.

They listen to PyTorch's dispatcher, and would miss what is computed past it. PyTorch is imported by
the time that this is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext


def find() -> str | None:
    """The first one in words. ``torch.device`` as a context is none: it is about new tensors. So is
    a mode that says ``devices_only``."""
    if torch._C._is_tracing():
        return "torch.jit.trace"
    for count, mode_at in (
        (torch._C._len_torch_dispatch_stack(), torch._C._get_dispatch_stack_at),
        (torch._C._len_torch_function_stack(), torch._C._get_function_stack_at),
    ):
        for place in range(count):
            mode = mode_at(place)
            if not (isinstance(mode, DeviceContext) or getattr(mode, "devices_only", False)):
                return type(mode).__name__
    return None


def follow(values: Iterable[Any]) -> bool:
    """Whether PyTorch records what is done with the tensors among them: for gradients, in a
    transform of torch.func, in forward mode, for torch.compile, a tracer or a mode."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return True
    if any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) for tensor in tensors):
        return True
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
    if is_transformed or forward_ad._current_level >= 0 or torch.compiler.is_compiling():
        return True
    return find() is not None
