"""torch.vmap of the operators: the mapped axis is one more leading axis, which the engine has."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mercer._torch import table
from mercer._torch.inputs import join
from mercer._torch.operands import Pairs

_FIELDS = len(Pairs._fields)
# Axes of the other tensor operands after the leading ones: v; amplitude, u and v.
_MATRIX_AXES = 2


class Operand:
    """A tensor among the operands, and where its mapped axis is."""

    def __init__(self, tensor: Tensor, mapped: int | None, axes: int):
        self.tensor = tensor if mapped is None else tensor.movedim(mapped, 0)
        self.is_mapped, self.axes = mapped is not None, axes

    @property
    def leading(self) -> int:
        return max(self.tensor.ndim - self.axes - self.is_mapped, 0)

    def aligned(self, leading: int) -> Tensor:
        """The mapped axis first, then as many leading axes as the operand with the most has."""
        if not self.is_mapped:
            return self.tensor
        missing = leading - self.leading
        return self.tensor.reshape(self.tensor.shape[0], *[1] * missing, *self.tensor.shape[1:])


def _operands(inputs: Sequence[Any], in_dims: Sequence[Any]) -> list[Any]:
    """The inputs with an Operand in place of each tensor, in the same structure."""
    pairs, dims = Pairs(*inputs[:_FIELDS]), Pairs(*in_dims[:_FIELDS])
    axes = {"x": 2, "z": 2, "row": 1, "col": 1, "w": 1}
    found: list[Any] = []
    for name, value, dim in zip(Pairs._fields, pairs, dims, strict=True):
        if name in axes and value is not None:
            found.append(Operand(value, dim, axes[name]))
        elif name == "params":
            found.append([Operand(p, d, 0) for p, d in zip(value, dim, strict=True)])
        elif name == "directions":
            kinds = [1 if target == "w" else 2 for target in pairs.along]
            found.append([Operand(*each) for each in zip(value, dim, kinds, strict=True)])
        else:
            found.append(value)
    for value, dim in zip(inputs[_FIELDS:], in_dims[_FIELDS:], strict=True):
        found.append(Operand(value, dim, _MATRIX_AXES) if isinstance(value, Tensor) else value)
    return found


def _flat(operands: Sequence[Any]) -> list[Operand]:
    lists = [o if isinstance(o, list) else [o] for o in operands]
    return [o for each in lists for o in each if isinstance(o, Operand)]


def _mapped(operands: Sequence[Any], change: Any) -> list[Any]:
    return [
        [change(o) for o in value] if isinstance(value, list) and _flat([value])
        else change(value) if isinstance(value, Operand)
        else value
        for value in operands
    ]  # fmt: skip


def rule(
    call: Callable[..., Any], name: str, info: Any, in_dims: Sequence[Any], inputs: Sequence[Any]
) -> tuple[Any, Any]:
    """The results of an operator on mapped inputs, and where their mapped axes are; `call` calls
    operators."""
    if name in table.MAPPED:
        return table.MAPPED[name](name, info, in_dims, inputs)
    operands = _operands(inputs, in_dims)
    # Weights [K] take no leading axis in the engine: one call after the other.
    weights = operands[Pairs._fields.index("w")]
    if isinstance(weights, Operand) and weights.is_mapped:
        items = [
            call(name, *_mapped(operands, lambda o, b=b: o.tensor[b] if o.is_mapped else o.tensor))
            for b in range(info.batch_size)
        ]
        if isinstance(items[0], Tensor):
            return torch.stack(items), 0
        return tuple(torch.stack(each) for each in zip(*items, strict=True)), (0, 0)
    leading = max(o.leading for o in _flat(operands))
    result = call(name, *_mapped(operands, lambda o: o.aligned(leading)))
    return result, 0 if isinstance(result, Tensor) else (0, 0)


def _legacy_level(tensor: Tensor) -> int:
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    if level > 0:
        return level
    # Threads of autograd, as on CUDA, do not know it: a tensor loses its axis at its own level.
    for level in range(1, 65):
        bare = torch._remove_batch_dim(tensor, level, 1, 0)
        if not torch._C._functorch.is_legacy_batchedtensor(bare):
            return level
    raise NotImplementedError("mercer: is_grads_batched within itself is not offered on CUDA")


def legacy(call: Callable[..., Any], name: str, form: tuple, tensors: Sequence[Tensor]) -> Any:
    """Inside torch.autograd.grad(is_grads_batched=True), whose vmap is another one."""
    mapped = [torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors]
    level = _legacy_level(tensors[mapped.index(True)])
    bare = [
        torch._remove_batch_dim(t, level, 1, 0) if is_mapped else t
        for t, is_mapped in zip(tensors, mapped, strict=True)
    ]
    size = next(t.shape[0] for t, is_mapped in zip(bare, mapped, strict=True) if is_mapped)
    inputs = join(form, bare)
    dims = join(form, [0 if is_mapped else None for is_mapped in mapped])
    result, _ = rule(call, name, types.SimpleNamespace(batch_size=size), dims, inputs)
    if isinstance(result, Tensor):
        return torch._add_batch_dim(result, 0, level)
    return tuple(torch._add_batch_dim(each, 0, level) for each in result)
