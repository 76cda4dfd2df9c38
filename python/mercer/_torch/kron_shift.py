"""Kronecker products plus a multiple of the identity, as operators that PyTorch knows.

mercer::kron_solve  [..., n, C]   x with (F1 (x) ... (x) FN + shift I) x = b
mercer::kron_log    [..., n]      log(w + shift) of its eigenvalues

The first takes the eigenvalues and eigenvectors of the factors: they are what it computes with, the
factors what it is differentiated by. With G' the solution for the cotangent G,

    dL/db = G',  dL/dshift = -sum(G' x),  dL/dF_i that of the product (F1 (x) ... (x) FN) x by -G'

so that equal eigenvalues of a factor, of whose vectors there is no derivative, do no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mercer import _linalg_tangents, _mercer, linalg
from mercer import kron as verbs
from mercer._torch import autograd, batching, kron, operators, table
from mercer._torch.inputs import join, pick, separate


def _compute(
    factors: Sequence[Tensor], b: Tensor, shift: Tensor, values: Sequence[Tensor],
    vectors: Sequence[Tensor],
) -> Tensor:  # fmt: skip
    b, vectors = b.resolve_neg(), [v.resolve_neg() for v in vectors]
    w = verbs.products_of(values)
    sums = w + shift.unsqueeze(-1)
    verbs.require_regular(w, sums)
    turned = _mercer.unfollowed("kron_matmul", vectors, b, transpose_factors=True)
    return _mercer.unfollowed("kron_matmul", vectors, turned / sums.unsqueeze(-1))


_operator = operators.operator(
    "kron_solve", _compute,
    "(Tensor[] factors, Tensor b, Tensor shift, Tensor[] values, Tensor[] vectors) -> Tensor",
)  # fmt: skip


@_operator.register_fake
def _(factors: Any, b: Any, shift: Any, values: Any, vectors: Any) -> Any:
    leading = [t.shape[:-2] for t in (*factors, b)]
    return b.new_empty((*torch.broadcast_shapes(*leading, shift.shape), *b.shape[-2:]))


def _solve(factors: Any, b: Any, shift: Any, values: Any, vectors: Any) -> Any:
    return autograd.call("kron_solve", list(factors), b, shift, list(values), list(vectors))


def _gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    (factors, b, shift, values, vectors), x = inputs, outputs[0]
    g = _solve(factors, cotangents[0], shift, values, vectors)
    by_factors = [None] * len(factors)
    if any(needs[0]):
        product = (False, list(needs[0]), False)
        by_factors = kron.gradients((x, factors, True), (), (-g,), product)[1]
        by_factors = [None if f is None else _linalg_tangents.symmetric(f) for f in by_factors]
    by_shift = -(g * x).sum((-2, -1)).sum_to_size(shift.shape) if needs[2] else None
    by_b = g.sum_to_size(b.shape) if needs[1] else None
    return by_factors, by_b, by_shift, [None] * len(values), [None] * len(vectors)


def _tangent(inputs: tuple, outputs: tuple, given: tuple) -> Tensor:
    (factors, _, shift, values, vectors), x = inputs, outputs[0]
    along, db, by_shift = given[:3]
    parts = [] if db is None else [db.expand(x.shape)]
    parts += [] if by_shift is None else [-by_shift[..., None, None] * x]
    for i, direction in enumerate(along):
        if direction is not None:
            moved = _linalg_tangents.symmetric(direction)
            parts.append(-kron.product(x, [*factors[:i], moved, *factors[i + 1 :]], True))
    return _solve(factors, sum(parts[1:], parts[0]), shift, values, vectors)


def _mapped(name: str, info: Any, in_dims: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
    axes = [[2] * len(inputs[0]), 2, 0, [1] * len(inputs[3]), [2] * len(inputs[4])]
    form, flat = separate(inputs)
    dims = pick(form, in_dims)
    operands = [
        batching.Operand(tensor, dim, count)
        for tensor, dim, count in zip(flat, dims, pick(form, axes), strict=True)
    ]
    leading = max(operand.leading for operand in operands)
    aligned = join(form, [operand.aligned(leading) for operand in operands])
    return _solve(*aligned), 0


table.GRADIENTS["kron_solve"] = _gradients
table.TANGENTS["kron_solve"] = _tangent
table.MAPPED["kron_solve"] = _mapped
autograd.KEPT["kron_solve"] = slice(0, 1)
autograd.register("kron_solve", _operator)


def _log(sums: Tensor) -> Tensor:
    verbs.require_positive(sums)
    return sums.log()


_log_operator = operators.operator("kron_log", _log, "(Tensor sums) -> Tensor")


@_log_operator.register_fake
def _(sums: Any) -> Any:
    return torch.empty_like(sums)


table.GRADIENTS["kron_log"] = lambda inputs, outputs, g, needs: (g[0] / inputs[0],)
table.TANGENTS["kron_log"] = lambda inputs, outputs, given: given[0] / inputs[0]
table.MAPPED["kron_log"] = lambda name, info, dims, inputs: (
    autograd.call("kron_log", inputs[0]), dims[0]
)  # fmt: skip
autograd.register("kron_log", _log_operator)


# ---- What mercer.kron calls. --------------------------------------------------------------------


def _shift(shift: Any, like: Tensor) -> Tensor:
    if isinstance(shift, Tensor):
        return shift.to(like.device, like.dtype)
    return torch.tensor(float(shift), dtype=like.dtype, device=like.device)


def solve(factors: Sequence[Tensor], b: Tensor, shift: Any) -> Tensor:
    values, vectors = zip(*(linalg.eigh(factor.detach()) for factor in factors), strict=True)
    return _solve(factors, b, _shift(shift, b), values, vectors)


def log(sums: Tensor) -> Tensor:
    return autograd.call("kron_log", sums)
