"""The products of mercer.kron as an operator that PyTorch knows.

mercer::kron  [..., M, J]   x [..., M, K] times the Kronecker product of factors [..., P_i, Q_i];
                            from the left, [..., J, M], that product times x [..., K, M]

It is linear in x and in each factor, so its derivatives are products again. With G the cotangent,

    dL/dx   = G (F1' (x) ... (x) FN')
    dL/dF_i = sum over m, l, r of T_i[m, l, p, r] S_i[m, l, q, r]

T_i is x with the factors after i applied, S_i is G with the transposes of those before it: each
takes one more factor than the next one, and the last S is dL/dx. So all gradients together take
three products of the size of the forward one, and nothing of the size of the Kronecker product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mercer import _mercer
from mercer._torch import autograd, batching, operators, products, symbolic, table
from mercer.errors import DtypeError


def _compute(x: Tensor, factors: Sequence[Tensor], left: bool) -> Tensor:
    x, factors = x.resolve_neg(), [f.resolve_neg() for f in factors]
    if left:
        return _mercer.unfollowed("kron_matmul", factors, x)
    return _mercer.unfollowed("matmul", x, factors)


def _shape(x: Tensor, factors: Sequence[Tensor], left: bool) -> tuple[int, ...]:
    batch = torch.broadcast_shapes(x.shape[:-2], *(f.shape[:-2] for f in factors))
    if left:
        return (*batch, math.prod(f.shape[-2] for f in factors), x.shape[-1])
    return (*batch, x.shape[-2], math.prod(f.shape[-1] for f in factors))


_operator = operators.operator(
    "kron", _compute, "(Tensor x, Tensor[] factors, bool left) -> Tensor"
)


@_operator.register_fake
def _(x: Any, factors: Any, left: Any) -> Any:
    return x.new_empty(_shape(x, factors, left))


def product(x: Tensor, factors: Sequence[Tensor], left: bool = False) -> Tensor:
    return autograd.call("kron", x, list(factors), left)


def _along(t: Tensor, factor: Tensor, right: int) -> Tensor:
    """t [..., M, L P R] with the factor applied along P: [..., M, L Q R]."""
    m, (p, q) = t.shape[-2], factor.shape[-2:]
    left = t.shape[-1] // max(p * right, 1)
    if right == 1:
        rows = product(t.reshape(*t.shape[:-2], m * left, p), [factor])
    else:
        columns = t.reshape(*t.shape[:-2], m * left, p, right)
        rows = product(columns, [factor.mT.unsqueeze(-3)], left=True)
    return rows.reshape(*rows.shape[: rows.ndim - (2 if right == 1 else 3)], m, left * q * right)


def _contract(t: Tensor, s: Tensor, p: int, q: int, right: int) -> Tensor:
    m, left = t.shape[-2], t.shape[-1] // max(p * right, 1)
    terms = m * left * right
    t = t.reshape(*t.shape[:-2], m * left, p, right).mT
    s = s.reshape(*s.shape[:-2], m * left, q, right).mT
    t, s = t.reshape(*t.shape[:-3], terms, p), s.reshape(*s.shape[:-3], terms, q)
    return products.matmul(t.mT, s)


def _empty_gradients(x: Tensor, factors: Sequence[Tensor], g: Tensor, needs: tuple) -> tuple:
    """Sums over nothing, or of factors without elements. They hang on all operands, as others do:
    ranks with and without rows must record the same steps."""
    zero = sum(t.reshape(-1)[:0].sum() for t in (x, *factors, g))
    wanted = [
        torch.zeros_like(f) + zero if n else None for f, n in zip(factors, needs[1], strict=True)
    ]
    return torch.zeros_like(x) + zero if needs[0] else None, wanted


def gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    x, factors, left = inputs
    if not left:
        return *_right_gradients(x, factors, cotangents[0], needs), None
    sides = [f.mT for f in factors]
    by_x, by_factors = _right_gradients(x.mT, sides, cotangents[0].mT, needs)
    turned = [None if each is None else each.mT for each in by_factors]
    return None if by_x is None else by_x.mT, turned, None


def _right_gradients(x: Tensor, factors: Sequence[Tensor], g: Tensor, needs: tuple) -> tuple:
    if x.numel() == 0 or g.numel() == 0 or any(f.numel() == 0 for f in factors):
        return _empty_gradients(x, factors, g, needs)
    found: list[Tensor | None] = [None] * len(factors)
    if not any(needs[1]):
        return product(g, [f.mT for f in factors]).sum_to_size(x.shape), found
    after = [math.prod(f.shape[-1] for f in factors[i + 1 :]) for i in range(len(factors))]
    first = needs[1].index(True)
    partial, t = [x] * len(factors), x
    for i in range(len(factors) - 1, first, -1):
        t = partial[i - 1] = _along(t, factors[i], after[i])
    s, last = g, len(factors) - 1 - list(reversed(needs[1])).index(True)
    for i, factor in enumerate(factors):
        if needs[1][i]:
            p, q = factor.shape[-2:]
            each = _contract(partial[i], s, p, q, after[i])
            found[i] = each.sum_to_size(factor.shape).to(factor.dtype)
        if needs[0] or i < last:
            s = _along(s, factor.mT, after[i])
    return s.sum_to_size(x.shape) if needs[0] else None, found


def _tangent(inputs: tuple, outputs: tuple, given: tuple) -> Tensor:
    (x, factors, left), (dx, along, _) = inputs, given
    parts = [] if dx is None else [product(dx, factors, left)]
    for i, direction in enumerate(along):
        if direction is not None:
            parts.append(product(x, [*factors[:i], direction, *factors[i + 1 :]], left))
    return sum(parts[1:], parts[0])


def _mapped(name: str, info: Any, in_dims: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
    (x, factors, left), (x_dim, dims, _) = inputs, in_dims
    axes = [None] * len(factors) if dims is None else dims
    operands = [batching.Operand(x, x_dim, 2)]
    operands += [batching.Operand(f, d, 2) for f, d in zip(factors, axes, strict=True)]
    leading = max(o.leading for o in operands)
    x, *factors = [o.aligned(leading) for o in operands]
    return product(x, factors, left), 0


table.GRADIENTS["kron"] = gradients
table.TANGENTS["kron"] = _tangent
table.MAPPED["kron"] = _mapped
autograd.register("kron", _operator)


# ---- The verbs. ---------------------------------------------------------------------------------


def call(
    left: bool, x: Any, factors: Any, alpha: Any = 1, beta: Any = 0, y: Any = None, out: Any = None,
    transpose_x: bool = False, transpose_factors: Any = False, workspace: Any = None,
) -> Tensor:  # fmt: skip
    """A verb on tensors that PyTorch follows."""
    verb = "kron.kron_matmul" if left else "kron.matmul"
    autograd.require_traceable(verb)
    for name, value in (("out", out), ("workspace", workspace)):
        if value is not None:
            raise NotImplementedError(
                f"{verb}: {name} is not offered where PyTorch records the call, for gradients, "
                f"torch.compile or torch.func. Received one"
            )
    proxy = symbolic.proxy_among((x, factors, y))
    if proxy is not None:
        arguments = (factors, x) if left else (x, factors)
        options = {"alpha": alpha, "beta": beta, "y": y, "transpose_x": transpose_x}
        options["transpose_factors"] = transpose_factors
        return symbolic.node(proxy, "mercer.kron", verb[len("kron.") :], arguments, options)
    factors = [_as_matrix(f, left) for f in factors]
    turned = transpose_factors
    turned = [turned] * len(factors) if isinstance(turned, bool) else list(turned)
    _check(verb, left, x, factors, beta, y, transpose_x, turned)
    if autograd.are_sharded((x, *factors)):
        from mercer._torch import sharded

        named = [("x", x), ("y", y), *((f"factors[{i}]", f) for i, f in enumerate(factors))]
        sharded.require(verb, named, [alpha, beta, transpose_x, turned])
    is_vector = x.ndim == 1
    axis = -1 if left else -2  # of the rows of a vector
    operand = x.unsqueeze(axis) if is_vector else x.mT if transpose_x else x
    sides = [f.mT if t else f for f, t in zip(factors, turned, strict=True)]
    result = product(operand, sides, left)
    if is_vector:
        result = result.squeeze(axis)
    if isinstance(alpha, Tensor):
        result = result * _scalar(verb, "alpha", alpha, x)
    elif alpha == 0:  # NaN goes nowhere
        result = torch.where(torch.zeros((), dtype=torch.bool, device=x.device), result, 0)
    elif alpha != 1:
        result = result * _scalar(verb, "alpha", alpha, x)
    if not isinstance(beta, Tensor) and beta == 0:
        return result
    if not _broadcasts(y.shape, result.shape):
        raise ValueError(
            f"{verb}: y must broadcast to the shape of out, {tuple(result.shape)}. "
            f"Received {tuple(y.shape)}"
        )
    return result + _scalar(verb, "beta", beta, x) * y


def _as_matrix(factor: Any, left: bool) -> Any:
    """A vector is summed over: a column from the right, a row from the left."""
    is_vector = isinstance(factor, Tensor) and factor.ndim == 1
    return factor.unsqueeze(0 if left else 1) if is_vector else factor


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    if len(shape) > len(to):
        return False
    after = to[len(to) - len(shape) :]
    return all(have in (1, wanted) for have, wanted in zip(shape, after, strict=True))


def _scalar(verb: str, name: str, value: Any, x: Tensor) -> Any:
    """A number that leaves the dtype of x as it is; a tensor of one stays a tensor."""
    if isinstance(value, Tensor):
        if value.ndim == 0 and (x.dtype.is_floating_point or not value.dtype.is_floating_point):
            return value
        raise ValueError(
            f"{verb}: {name} must be a number or a tensor of one, without axes, and whole for "
            f"whole numbers. Received {value.dtype} of shape {tuple(value.shape)}"
        )
    if not isinstance(value, (int, float)):
        if not hasattr(value, "__float__") or getattr(value, "ndim", 0) != 0:
            raise TypeError(f"{verb}: {name} must be a number. Received {type(value)}")
        value = float(value)
    if x.dtype.is_floating_point:
        return value
    if value != int(value):
        raise ValueError(
            f"{verb}: {name} must be a whole number of magnitude at most 2^53 for arrays of "
            f"{str(x.dtype).removeprefix('torch.')}. Received {value}"
        )
    return int(value)


def _check(
    verb: Any, left: Any, x: Any, factors: Any, beta: Any, y: Any, transpose_x: Any, turned: Any
) -> None:
    arrays = [("x", x), *((f"factors[{i}]", f) for i, f in enumerate(factors))]
    arrays += [] if y is None else [("y", y)]
    for name, array in arrays:
        if not isinstance(array, Tensor):
            raise ValueError(
                f"{verb}: {name} must come from the library of x, torch. Received {type(array)}"
            )
        if array.dtype != x.dtype:
            raise DtypeError(
                f"{verb}: {name} must have the dtype of x, {x.dtype}. Received {array.dtype}"
            )
    if not factors or len(turned) != len(factors) or any(f.ndim < 2 for f in factors):
        raise ValueError(
            f"{verb}: there must be 1 to 64 factors of at least 1 axis, each with its flag. "
            f"Received {[tuple(f.shape) for f in factors]}"
        )
    if x.ndim == 0 or (x.ndim == 1 and transpose_x):
        raise ValueError(f"{verb}: op(x) must have axes to sum over. Received {tuple(x.shape)}")
    axis = -1 if x.ndim == 1 or transpose_x == left else -2
    inner = [f.shape[-1 if t != left else -2] for f, t in zip(factors, turned, strict=True)]
    if x.shape[axis] != math.prod(inner):
        raise ValueError(
            f"{verb}: op(x) must have the product of the extents of op(factors), "
            f"{math.prod(inner)}. Received shape {tuple(x.shape)}"
        )
    if (isinstance(beta, Tensor) or beta != 0) and y is None:
        raise ValueError(f"{verb}: y must be given where beta is not 0. Received beta = {beta}")


def matmul(x: Any, factors: Any, *, progress: Any = False, **rest: Any) -> Any:
    return call(False, x, factors, **rest)


def kron_matmul(factors: Any, x: Any, *, progress: Any = False, **rest: Any) -> Any:
    return call(True, x, factors, **rest)
