"""The rules handed to PyTorch, in two ways.

Registered with the operators they serve torch.compile, and whoever listens to the dispatcher, as
tracers and modes do. An eager call goes through a torch.autograd.Function: it takes a third of the
time, and torch.func and forward mode know no other way.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch.autograd import forward_ad

from mercer import _context, _mercer, _watchers
from mercer._torch import batching, table
from mercer._torch.inputs import Room, join, pick, separate

_MEMORY = {Tensor, torch.nn.Parameter}
_PLAIN = (Tensor, torch.nn.Parameter, type(None))


def call(name: str, *inputs: Any) -> Any:
    """The operator on tensors of any kind."""
    if torch.compiler.is_compiling():
        if are_sharded(separate(inputs)[1]):
            from mercer._torch import sharded

            return sharded.call(name, inputs)
        if not _is_differentiated():
            return getattr(torch.ops.mercer, name)(*inputs)
        # torch.compile takes no rules of forward mode: it leaves the function as it is.
        torch._dynamo.graph_break()
    form, tensors = separate(inputs)
    if any(map(torch._C._functorch.is_legacy_batchedtensor, tensors)):
        return batching.legacy(call, name, form, tensors)
    if is_transformed():
        transform = torch._C._functorch.peek_interpreter_stack()
        if transform is not None and transform.key() == TransformType.Functionalize:
            return getattr(torch.ops.mercer, name)(*inputs)
        # Where torch.compile left a function as it is, it would compile each rule by itself.
        apply = _uncompiled() if "torch._dynamo" in sys.modules else Mercer.apply
        return apply(_Call(name, form), None, *tensors)
    if not _are_memory(tensors):
        if are_sharded(tensors):
            from mercer._torch import sharded

            return sharded.call(name, inputs)
        return getattr(torch.ops.mercer, name)(*inputs)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        # Past Function.apply itself, whose look at the signature takes 25 us.
        return super(torch.autograd.Function, Mercer).apply(_Call(name, form), inputs, *tensors)
    return table.FUNCTIONS[name](*inputs)


def are_sharded(tensors: Sequence[Any]) -> bool:
    """Whether there are DTensors among them, whose module PyTorch imports with the first one."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(
        type(t) not in _PLAIN and isinstance(t, module.DTensor) for t in tensors
    )


@functools.cache
def _uncompiled() -> Any:
    return torch.compiler.disable(Mercer.apply)


def require_traceable(verb: str) -> None:
    """torch.jit.trace cannot look into what torch.func and forward mode hand on."""
    if torch.jit.is_tracing() and is_transformed():
        raise NotImplementedError(
            f"{verb}: torch.jit.trace must not go through torch.func or forward mode. Received a "
            f"call in both; trace with make_fx or torch.export"
        )


@torch.compiler.assume_constant_result
def _is_differentiated() -> bool:
    """Whether torch.func, more of it than vmap, or forward mode is around what is compiled."""
    if forward_ad._current_level >= 0:
        return True
    stack = torch._C._functorch.get_interpreter_stack() or []
    return any(transform.key() in (TransformType.Grad, TransformType.Jvp) for transform in stack)


def records_nothing(tensors: Sequence[Tensor]) -> bool:
    """Whether no derivative of what is computed now will be asked for, and no axis is hidden."""
    hidden = any(map(torch._C._functorch.is_legacy_batchedtensor, tensors))
    return not (torch.is_grad_enabled() or is_transformed() or hidden)


def is_transformed() -> bool:
    in_functorch = torch._C._functorch.peek_interpreter_stack() is not None
    return in_functorch or forward_ad._current_level >= 0


def is_memory(tensors: Sequence[Tensor]) -> bool:
    """Whether a call on them is one on memory alone, that nobody follows."""
    return not (torch.compiler.is_compiling() or is_transformed()) and _are_memory(tensors)


def _are_memory(tensors: Sequence[Tensor]) -> bool:
    """Whether nobody listens to the dispatcher: no subclass, no mode, no tracer."""
    plain = {type(t) for t in tensors} <= _MEMORY
    modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
    is_seen = modes > 0 or torch._C._is_tracing()
    return plain and not (is_seen and _watchers.find())


def _count(form: tuple) -> int:
    return sum(abs(part.length) for part in form if isinstance(part, Room))


# What a rule reads of the results: [..., M] of a reduce, the indices of knn.
KEPT: dict[str, slice] = {"reduce": slice(0, 1), "knn": slice(1, 2)}


def _kept_outputs(name: str, outputs: tuple) -> tuple:
    return outputs[KEPT.get(name, slice(0, 0))]


def _outputs(name: str, kept: Sequence[Tensor]) -> tuple:
    """The tensors that a call kept, in their places among its results."""
    return (*[None] * KEPT.get(name, slice(0, 0)).start, *kept)


def _mark(ctx: Any, outputs: tuple) -> None:
    whole = [output for output in outputs if not output.is_floating_point()]
    if whole:
        ctx.mark_non_differentiable(*whole)


# ---- Through the dispatcher. --------------------------------------------------------------------


def register(name: str, operator: Any) -> None:
    def setup(ctx: Any, inputs: tuple, output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.form, tensors = separate(inputs)
        ctx.settings = _mercer.current_settings()
        _mark(ctx, outputs)
        ctx.save_for_backward(*tensors, *_kept_outputs(name, outputs))

    def backward(ctx: Any, *cotangents: Tensor) -> tuple:
        saved = ctx.saved_tensors
        count = _count(ctx.form)
        inputs, outputs = join(ctx.form, saved), _outputs(name, saved[count:])
        with _context.under(ctx.settings):
            return table.GRADIENTS[name](inputs, outputs, cotangents, ctx.needs_input_grad)

    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[Any, Any]:
        return batching.rule(call, name, info, in_dims, inputs)

    operator.register_autograd(backward, setup_context=setup)
    operator.register_vmap(vmap)


# ---- Through torch.autograd.Function. -----------------------------------------------------------


class _Call(NamedTuple):
    name: str
    form: tuple


class Mercer(torch.autograd.Function):
    """An operator; its tensors one by one after what is no tensor.

    `inputs`: all in their places, where the tensors are memory that nobody else looks at.
    """

    @staticmethod
    def forward(what: _Call, inputs: tuple | None, *tensors: Tensor) -> Any:
        if inputs is not None:
            return table.FUNCTIONS[what.name](*inputs)
        inputs = join(what.form, tensors)
        if _are_memory(tensors):
            return table.FUNCTIONS[what.name](*inputs)
        return getattr(torch.ops.mercer, what.name)(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.what, _, *tensors = inputs
        ctx.settings = _mercer.current_settings()
        outputs = output if isinstance(output, tuple) else (output,)
        _mark(ctx, outputs)
        kept = _kept_outputs(ctx.what.name, outputs)
        ctx.save_for_backward(*tensors, *kept)
        ctx.save_for_forward(*tensors, *kept)

    @staticmethod
    def _values(ctx: Any, saved: Sequence[Tensor]) -> tuple[tuple, tuple]:
        name, form = ctx.what
        return join(form, saved), _outputs(name, saved[_count(form) :])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple:
        inputs, outputs = Mercer._values(ctx, ctx.saved_tensors)
        needs = join(ctx.what.form, ctx.needs_input_grad[2:])
        rule = table.GRADIENTS[ctx.what.name]
        if ctx.settings is None:  # a context manager takes as long as the rest of this function
            found = rule(inputs, outputs, cotangents, needs)
        else:
            with _context.under(ctx.settings):
                found = rule(inputs, outputs, cotangents, needs)
        return (None, None, *pick(ctx.what.form, found))

    @staticmethod
    def vmap(info: Any, in_dims: tuple, what: _Call, _: None, *tensors: Tensor) -> tuple[Any, Any]:
        inputs, dims = join(what.form, tensors), join(what.form, in_dims[2:])
        return batching.rule(call, what.name, info, dims, inputs)

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *given: Tensor | None) -> Any:
        # PyTorch has forward mode off here, and with it that of the levels around this one, which
        # follow the tangents. What moves at this level is in the tangents: its values stand still.
        with forward_ad._set_fwd_grad_enabled(True):
            still = [forward_ad.unpack_dual(t).primal for t in ctx.saved_tensors]
            inputs, outputs = Mercer._values(ctx, still)
            return table.TANGENTS[ctx.what.name](inputs, outputs, join(ctx.what.form, given))
