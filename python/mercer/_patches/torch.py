"""torch.cdist and torch.pdist through Mercer."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import has_torch_function

import mercer as mc

_MODES = frozenset(
    (
        "use_mm_for_euclid_dist_if_necessary",
        "use_mm_for_euclid_dist",
        "donot_use_mm_for_euclid_dist",
    )
)
_COMPUTED = (torch.float32, torch.float64)
_DEVICES = ("cpu", "cuda")
_SHORT = (torch.float16, torch.bfloat16)
#: What Mercer raises before it writes anything, where it does not serve a call.
_REFUSED = (ValueError, TypeError, NotImplementedError)


def _is_served(*points: Any) -> bool:
    """Dense tensors of one dtype that PyTorch computes in, on a CPU or a CUDA device."""
    first = points[0]
    return (
        all(isinstance(array, Tensor) for array in points)
        and not has_torch_function(points)
        and first.dtype in _COMPUTED
        and first.device.type in _DEVICES
        and all(a.dtype == first.dtype and a.layout is torch.strided for a in points)
    )


def _widened(points: tuple[Any, ...]) -> tuple[Any, ...]:
    """Points as autocast hands them to torch.cdist: 16-bit ones in float32."""
    device = points[0].device.type if isinstance(points[0], Tensor) else None
    if device not in _DEVICES or not torch.is_autocast_enabled(device):
        return points
    return tuple(
        a.float() if isinstance(a, Tensor) and a.dtype in _SHORT and not a.is_sparse else a
        for a in points
    )


def _is_of_torch(p: Any, found: Tensor) -> bool:
    """Whether a result is PyTorch's: on CPUs it drops NaN from a largest difference.

    Numbers that a tracer hides may be NaN."""
    if p != math.inf or found.device.type != "cpu":
        return True
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    try:
        return not found.isnan().any()
    except RuntimeError:
        return False


def _scripted_as(plain: Callable[..., Any], function: Any) -> Callable[..., Any]:
    """The function, for which TorchScript compiles the plain one."""
    function.__prepare_scriptable__ = lambda: plain
    return function


def _cdist(original: Callable[..., Any]) -> Callable[..., Any]:
    def cdist(
        x1: Tensor, x2: Tensor, p: float = 2.0,
        compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
    ) -> Tensor:  # fmt: skip
        left, right = _widened((x1, x2))
        if compute_mode in _MODES and _is_served(left, right):
            try:
                found = mc.cdist(left, right, p=p)
                if _is_of_torch(p, found):
                    return found
            except _REFUSED:
                pass
        return original(x1, x2, p=p, compute_mode=compute_mode)

    return _scripted_as(original, cdist)


def _pdist(original: Callable[..., Any]) -> Callable[..., Any]:
    def pdist(input: Tensor, p: float = 2) -> Tensor:
        if _is_served(input) and input.ndim == 2:
            try:
                found = mc.pdist(input, p=p)
                if _is_of_torch(p, found):
                    return found
            except _REFUSED:
                pass
        return original(input, p)

    def scripted(input: Tensor, p: float = 2.0) -> Tensor:
        return original(input, p)

    return _scripted_as(scripted, pdist)


REPLACEMENTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "torch.cdist": _cdist,
    "torch.pdist": _pdist,
}


def restored(pairs: list[tuple[Any, Any]]) -> None:
    """After (replacement, original) of each function went back.

    Dynamo makes a table of PyTorch's functions when it first compiles, by their names then. One
    that was made within a patch lacks the originals, at which it would break graphs from then on.
    """
    rules = sys.modules.get("torch._dynamo.trace_rules")
    made = getattr(rules, "get_torch_obj_rule_map", None)
    if made is None or not hasattr(made, "cache_info") or not made.cache_info().currsize:
        return
    table = made()
    for replacement, original in pairs:
        if replacement in table:
            table[original] = table.pop(replacement)
