"""PyTorch: each verb as a registered operator, for tensors whose gradients are wanted.

Imported at the first call with such a tensor, and by ``torch.compile`` when it traces a verb.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

if not hasattr(torch.library, "register_vmap"):
    raise NotImplementedError(
        f"mercer: PyTorch must be 2.5 or newer, for gradients. Received {torch.__version__}"
    )

from mercer._torch import agop, autograd, rules, symbolic, tangents  # noqa: F401
from mercer._torch.operands import Pairs, computing_type


def call(
    verb: str,
    operation: str,
    text: str,
    x: Tensor,
    z: Tensor | None,
    arrays: dict[str, Tensor | None],
    settings: dict[str, Any],
    params: dict[str, Any],
) -> Any:
    """The operator for a call of a verb; `settings` are its options that are no tensors."""
    autograd.require_traceable(verb)
    for option in ("out", "workspace"):
        if settings.get(option) is not None:
            raise NotImplementedError(
                f"{verb}: {option} is not offered where PyTorch records the call, for gradients, "
                f"torch.compile or torch.func. Received one"
            )
    proxy = symbolic.proxy_among((x, z, *arrays.values(), *params.values()))
    if proxy is not None:
        return _recorded(proxy, verb, text, x, z, arrays, settings, params)
    for name, array in (("z", z), *arrays.items()):
        if array is not None and not isinstance(array, Tensor):
            raise ValueError(
                f"{verb}: {name} must come from the library of x, torch. Received {type(array)}"
            )
    if x.ndim < 2 or (z is not None and z.ndim < 2):
        shape = (x if x.ndim < 2 or z is None else z).shape
        raise ValueError(
            f"{verb}: x and z must have the shape [..., M, K]. Received {tuple(shape)}"
        )
    pairs = pairs_of(
        verb, text, x, None if z is x else z, params, (arrays["row"], arrays["col"], arrays["w"]),
        (settings["i_offset"], settings["j_offset"]),
    )  # fmt: skip
    if autograd.are_sharded((x, z, *arrays.values(), *pairs.params)):
        from mercer._torch import sharded

        return sharded.verb(verb, _OPERATIONS[operation], pairs, arrays, settings)
    return _OPERATIONS[operation](pairs, arrays, settings)


def pairs_of(
    verb: str, text: str, x: Tensor, z: Tensor | None, params: dict[str, Any],
    sides: tuple = (None, None, None), offsets: tuple[int, int] = (0, 0),
) -> Pairs:  # fmt: skip
    """Points, parameters, and row, col and w, as operators take them."""
    tensors = {name: value for name, value in params.items() if not _is_number(value)}
    numbers = {n: _number(v, verb, n) for n, v in params.items() if n not in tensors}
    row, col, w = sides
    return Pairs(
        text, x, z, row, col, w, [_parameter(value, x) for value in tensors.values()],
        " ".join([*tensors, *numbers]), list(numbers.values()), [], "", *offsets,
    )  # fmt: skip


def _recorded(
    proxy: Any, verb: str, text: str, x: Any, z: Any, arrays: dict, settings: dict, params: dict
) -> Any:
    """The call as a node of torch.fx, of the formula's text."""
    options = {"row", "col", "w", "i_offset", "j_offset"}
    given = {name: v for name, v in (arrays | settings).items() if v is not None}
    own = [value for name, value in given.items() if name not in options]
    named = {name: value for name, value in given.items() if name in options}
    name = "pairwise" if verb == "cdist" else verb
    return symbolic.node(proxy, "mercer", name, (text, x, z, *own), named | params)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (
        not isinstance(value, (list, tuple)) and not hasattr(value, "__array__")
    )


def _number(value: Any, verb: str, name: str) -> float:
    if isinstance(value, (int, float)) or hasattr(value, "__float__"):
        return float(value)
    raise TypeError(
        f"{verb}: the parameter {name} must be a number, an array or a list of numbers. "
        f"Received {value!r}"
    )


def _parameter(value: Any, x: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (list, tuple)):
        return torch.tensor(value, dtype=computing_type(x.dtype), device=x.device)
    return torch.as_tensor(value)


def _pairwise(pairs: Pairs, arrays: dict, settings: dict) -> Tensor:
    return autograd.call("pairwise", *pairs)


def _product(pairs: Pairs, arrays: dict, settings: dict) -> Tensor:
    v = arrays["v"]
    if v.ndim == 1:
        return autograd.call("product", *pairs, v.unsqueeze(-1)).squeeze(-1)
    return autograd.call("product", *pairs, v)


def _reduce(pairs: Pairs, arrays: dict, settings: dict) -> Tensor:
    return autograd.call("reduce", *pairs, settings["reduce"])


def _knn(pairs: Pairs, arrays: dict, settings: dict) -> tuple[Tensor, Tensor]:
    return autograd.call("knn", *pairs, settings["k"])


def _gradient(pairs: Pairs, arrays: dict, settings: dict) -> Tensor:
    return _field(pairs, "x", None, arrays["coef"])


def _agop(pairs: Pairs, arrays: dict, settings: dict) -> Tensor:
    coef = arrays["coef"]
    return autograd.call("agop", *pairs, coef.unsqueeze(0) if coef.ndim == 1 else coef)


def _gradient_field(pairs: Pairs, arrays: dict, settings: dict) -> Tensor:
    return _field(pairs, "t", arrays["amplitude"], arrays["coef"])


def _field(pairs: Pairs, wrt: str, amplitude: Tensor | None, coef: Tensor) -> Tensor:
    if coef.ndim == 1:
        return autograd.call("field", *pairs, wrt, amplitude, None, coef.unsqueeze(-1))
    # The axis o of coef [..., O, N] becomes the last one of the batch.
    pairs = pairs._replace(
        x=pairs.x.unsqueeze(-3),
        z=None if pairs.z is None else pairs.z.unsqueeze(-3),
        row=None if pairs.row is None else pairs.row.unsqueeze(-2),
        col=None if pairs.col is None else pairs.col.unsqueeze(-2),
        params=[p if p.ndim == 0 else p.unsqueeze(-1) for p in pairs.params],
    )
    amplitude = None if amplitude is None else amplitude.unsqueeze(-3)
    return autograd.call("field", *pairs, wrt, amplitude, None, coef.unsqueeze(-1))


_OPERATIONS: dict[str, Callable[[Pairs, dict, dict], Any]] = {
    "pairwise": _pairwise,
    "kernel_product": _product,
    "kernel_reduce": _reduce,
    "knn": _knn,
    "kernel_gradient": _gradient,
    "kernel_agop": _agop,
    "gradient_field": _gradient_field,
}


if "torch.distributed.tensor" in sys.modules:
    # A PyTorch without DTensors for Mercer has gradients all the same.
    with contextlib.suppress(NotImplementedError):
        from mercer._torch import sharding

        sharding.register()
