"""Products of matrices within the rules, in float32 as Mercer computes it.

mercer::matmul  [..., M, E]   a [..., M, N] times b [..., N, E]

PyTorch's own may round float32 to TF32 or bfloat16, as the process chose for all of its products,
which is no business of a kernel's derivatives. Where it did, the engine has products of matrices:
sum(x*z) of the rows of a and the columns of b.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mercer import _mercer
from mercer._derived import parsed
from mercer._torch import autograd, batching, operators, table
from mercer._torch.operands import Pairs, computing_type, is_tiny_batch

_PRODUCT = "sum(x*z)"
# Terms that the engine's products of matrices on GPUs add up at once.
_MOST_TERMS = 1 << 17
# So few values of so long sums are the sums of parts, of so many terms each.
_FEW, _LONG, _PART = 1 << 16, 1 << 12, 1 << 9
# Bytes in float64 of parts that are multiplied at once.
_BYTES = 1 << 26


def _engine(rows: Tensor, columns: Tensor) -> Tensor:
    return _mercer.unfollowed("pairwise", parsed(_PRODUCT), rows, columns)


def _in_double(rows: Tensor, columns: Tensor) -> Tensor:
    """Batches on CUDA, for each item of which the engine would have a launch."""
    return (rows.double() @ columns.double().mT).to(computing_type(rows.dtype))


def _is_exact(device: str) -> bool:
    """Whether PyTorch's products of float32 are not rounded, as is its default."""
    if torch.is_autocast_enabled(device):
        return False
    own = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    setting = getattr(getattr(own, "matmul", None), "fp32_precision", None)
    if setting is None:  # before PyTorch 2.9
        return torch.get_float32_matmul_precision() == "highest"
    if setting == "none":
        setting = torch.backends.fp32_precision
    return setting in ("none", "ieee")


def _compute(a: Tensor, b: Tensor) -> Tensor:
    terms = a.shape[-1]
    is_long = terms > _LONG and 0 < a.shape[-2] * b.shape[-1] <= _FEW
    # PyTorch's products of so many terms lose, on CPUs, up to 2e-7 of their magnitudes.
    is_taken = _is_exact(a.device.type) and (a.is_cuda or not is_long)
    kind = computing_type(a.dtype)
    if kind == torch.float64 or is_taken:
        return a.to(kind) @ b.to(kind)
    rows, columns = a.resolve_neg(), b.resolve_neg().mT
    pairs = Pairs(_PRODUCT, rows, columns, None, None, None, [], "", [], [], "", 0, 0)
    if is_tiny_batch(pairs):
        return _in_double(rows, columns)
    if is_long:
        return _of_parts(rows, columns)
    most = _MOST_TERMS if rows.is_cuda else max(terms, 1)
    total = _engine(rows[..., :most], columns[..., :most])
    for first in range(most, terms, most):
        total += _engine(rows[..., first : first + most], columns[..., first : first + most])
    return total


def _of_parts(rows: Tensor, columns: Tensor) -> Tensor:
    terms = rows.shape[-1]
    whole = terms - terms % _PART
    total = _engine(rows[..., whole:], columns[..., whole:])
    each = max(1, 8 * _PART * (rows.numel() + columns.numel()) // terms)
    step = max(1, _BYTES // each) * _PART
    for first in range(0, whole, step):
        last = min(first + step, whole)
        x, z = (
            t[..., first:last].unflatten(-1, (-1, _PART)).movedim(-2, -3).to(total.dtype)
            for t in (rows, columns)
        )
        part = _in_double(x, z) if x.is_cuda else _mercer.unfollowed("matmul", x, [z.mT])
        total += part.sum(-3)
    return total


_operator = operators.operator("matmul", _compute, "(Tensor a, Tensor b) -> Tensor")


@_operator.register_fake
def _(a: Any, b: Any) -> Any:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=computing_type(a.dtype))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a times b, of one dtype; of the computing type."""
    return autograd.call("matmul", a, b)


def _gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    (a, b), g = inputs, cotangents[0]
    by_a = matmul(g, b.to(g.dtype).mT) if needs[0] else None
    by_b = matmul(a.to(g.dtype).mT, g) if needs[1] else None
    return tuple(
        None if by is None else by.sum_to_size(operand.shape).to(operand.dtype)
        for by, operand in ((by_a, a), (by_b, b))
    )


def _tangent(inputs: tuple, outputs: tuple, given: tuple) -> Tensor:
    (a, b), (da, db) = inputs, given
    parts = [] if da is None else [matmul(da, b)]
    parts += [] if db is None else [matmul(a, db)]
    return sum(parts[1:], parts[0])


def _mapped(name: str, info: Any, in_dims: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
    operands = [batching.Operand(t, dim, 2) for t, dim in zip(inputs, in_dims, strict=True)]
    leading = max(operand.leading for operand in operands)
    return matmul(*(operand.aligned(leading) for operand in operands)), 0


table.GRADIENTS["matmul"] = _gradients
table.TANGENTS["matmul"] = _tangent
table.MAPPED["matmul"] = _mapped
autograd.register("matmul", _operator)
