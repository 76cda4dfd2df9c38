"""The functions of mercer.linalg on tensors that PyTorch follows, made of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mercer import _linalg_calls, _linalg_tangents, _mercer
from mercer._torch import autograd, batching, linalg, linalg_cg, operators, symbolic


def call(name: str, arguments: tuple, options: dict[str, Any], refusal: Any = None) -> Any:
    """A function that PyTorch follows, which the engine has refused with this error; none where
    torch.compile traces."""
    proxy = symbolic.proxy_among((*arguments, *options.values()))
    tensors = [t for value in (*arguments, *options.values()) for t in _leaves(value)]
    if refusal is not None and proxy is None:
        is_followed = isinstance(refusal, NotImplementedError) and not any(map(_is_sparse, tensors))
        if not is_followed or autograd.are_sharded(tensors):
            raise refusal
    if name in ON_MEMORY:
        if proxy is not None:
            raise refusal
        return on_memory(name, arguments, options, refusal)
    autograd.require_traceable(name)
    for option in _linalg_calls.OPTIONS:
        if options.get(option) is not None and options[option] is not False:
            raise NotImplementedError(
                f"{name}: {option} is not offered where PyTorch records the call, for gradients, "
                f"torch.compile or torch.func. Received one"
            )
    if proxy is not None:
        return symbolic.node(proxy, "mercer.linalg", name, arguments, options)
    given = {key: value for key, value in options.items() if key not in _linalg_calls.OPTIONS}
    return VERBS[name](*arguments, **given)


def on_memory(name: str, arguments: tuple, options: dict[str, Any], refusal: Any) -> Any:
    """A function that computes with products alone: solutions have derivatives, preconditioners,
    which say nothing about one, are those of the same numbers without gradients."""
    values = [*arguments, *options.values()]
    tensors = [t for value in values for t in linalg_cg.tensors_of(value)]
    # What else is in a function, or in another library's operator, could not be differentiated by.
    a = arguments[0] if arguments else options.get("a")
    is_known = isinstance(a, Tensor) or linalg_cg.is_operator(a)
    is_solver = name in ("cg", "minres")
    if not is_known or not linalg_cg.are_memory(tensors, is_mapped=True) or (
        name == "eigh_top"
    ):  # fmt: skip
        raise refusal
    if is_solver:
        if options.pop("out", None) is not None:
            raise NotImplementedError(
                f"{name}: out is not offered where PyTorch records the call, for "
                "gradients or torch.func. Received one"
            )
        return getattr(linalg_cg, name)(*arguments, **options)
    options = {key: value for key, value in options.items() if key != "a"}
    held = linalg_cg.detached(a, name)
    with linalg_cg.outside():
        return _mercer.unfollowed(name, held, *arguments[1:], **options)


def _leaves(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)


def _is_sparse(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout != torch.strided


def _check(verb: str, name: str, a: Any, b: Any = None, *, square: bool = True) -> None:
    """What stands for tensors does not reach the engine's own checks."""
    _linalg_calls.check(verb, name, a, b, "torch", lambda t: isinstance(t, Tensor), square)


def _with_columns(b: Tensor, solve: Callable[[Tensor], Tensor], axis: int = -1) -> Tensor:
    """solve(b), of a vector as of a matrix of one column."""
    return solve(b.unsqueeze(-1)).squeeze(axis) if b.ndim == 1 else solve(b)


def _with_info(found: Any, info: Tensor, check: bool) -> Any:
    return found if check else (found, info)


# ---- Jitter. ------------------------------------------------------------------------------------


def _amount(a: Tensor, lower: bool, amounts: Sequence[float]) -> Tensor:
    """[...]: the first of the amounts with which a has a factor, 0 where it needs none."""
    found = a.new_zeros(a.shape[:-2])
    mean = a.diagonal(0, -2, -1).mean(-1)
    for amount in amounts:
        given = a.clone()
        given.diagonal(0, -2, -1).add_((found * mean).unsqueeze(-1))
        info = _mercer.unfollowed("cholesky", given, lower=lower, check=False)[1]
        found = torch.where(info > 0, amount, found)
    return found


_jitter = operators.operator("jitter", _amount, "(Tensor a, bool lower, float[] amounts) -> Tensor")


@_jitter.register_fake
def _(a: Any, lower: Any, amounts: Any) -> Any:
    return a.new_empty(a.shape[:-2])


def _mapped(name: str, info: Any, in_dims: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
    a, *rest = inputs
    return autograd.call("jitter", batching.Operand(a, in_dims[0], 2).tensor, *rest), 0


linalg.register_constant("jitter", _jitter, _mapped)


def _with_jitter(verb: str, a: Tensor, lower: bool, jitter: Any) -> Tensor:
    """a with the jitter that it needs, which is a multiple of the mean of its diagonal."""
    amounts = _linalg_calls.amounts_of(verb, jitter)
    if not amounts or a.shape[-1] == 0:
        return a
    added = autograd.call("jitter", a.detach(), lower, amounts)
    added = added * a.diagonal(0, -2, -1).mean(-1)
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    return a + added[..., None, None] * eye


# ---- The functions. -----------------------------------------------------------------------------


def _factored(verb: str, a: Tensor, lower: bool, jitter: Any, check: bool) -> tuple:
    """a with its jitter, and its factor as what derivatives do not go through."""
    a = _with_jitter(verb, a, lower, jitter)
    factor, info = linalg.cholesky(a.detach(), lower, check, verb)
    return a, factor, info


def cholesky(a: Any, *, lower: bool = True, jitter: Any = None, check: bool = True) -> Any:
    _check("cholesky", "a", a)
    a = _with_jitter("cholesky", a, lower, jitter)
    factor, info = linalg.cholesky(a, lower, check, "cholesky")
    return _with_info(factor, info, check)


def solve_cholesky(
    a: Any, b: Any, *, lower: bool = True, jitter: Any = None, check: bool = True
) -> Any:
    _check("solve_cholesky", "a", a, b)
    a, factor, info = _factored("solve_cholesky", a, lower, jitter, check)
    x = _with_columns(b, lambda b: linalg.solve_factored(a, factor, b, lower))
    return _with_info(x, info, check)


def cho_solve(factor: Any, b: Any, *, lower: bool = True) -> Tensor:
    _check("cho_solve", "factor", factor, b)
    return _with_columns(b, lambda b: linalg.cho_solve(factor, b, lower))


def cho_inverse(factor: Any, *, lower: bool = True) -> Tensor:
    """NaN where a factor's diagonal is not positive, as the engine's is."""
    _check("cho_inverse", "factor", factor)
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = _linalg_tangents.symmetric(linalg.cho_solve(factor, eye, lower))
    is_factor = (factor.diagonal(0, -2, -1) > 0).all(-1)[..., None, None]
    return torch.where(is_factor, inverse, torch.nan)


def cho_inverse_diagonal(factor: Any, *, lower: bool = True) -> Tensor:
    _check("cho_inverse_diagonal", "factor", factor)
    return cho_inverse(factor, lower=lower).diagonal(0, -2, -1)


def solve_triangular(
    a: Any, b: Any, *, lower: bool = True, transposed: bool = False, unit_diagonal: bool = False
) -> Tensor:
    _check("solve_triangular", "a", a, b)
    triangle = a.tril() if lower else a.triu()
    side, upper = (triangle.mT if transposed else triangle), lower == transposed
    return _with_columns(
        b,
        lambda b: torch.linalg.solve_triangular(side, b, upper=upper, unitriangular=unit_diagonal),
    )


def inv_quad_logdet(
    a: Any, b: Any, *, lower: bool = True, jitter: Any = None, check: bool = True
) -> Any:
    _check("inv_quad_logdet", "a", a, b)
    a, factor, info = _factored("inv_quad_logdet", a, lower, jitter, check)
    quad = _with_columns(b, lambda b: linalg.inv_quad(a, factor, b, lower))
    return _with_info((quad, linalg.logdet(a, factor, lower)), info, check)


def lu_factor(a: Any, *, check: bool = True) -> Any:
    _check("lu_factor", "a", a, square=False)
    packed, pivots, info = linalg.lu_factor(a, check, "lu_factor")
    return _with_info((packed, pivots), info, check)


def lu_solve(lu_and_pivots: Any, b: Any, *, transposed: bool = False) -> Tensor:
    packed, pivots = lu_and_pivots
    _check("lu_solve", "lu", packed, b)
    return _with_columns(b, lambda b: linalg.lu_solve(packed, pivots, b, transposed))


def solve_lu(a: Any, b: Any, *, check: bool = True) -> Any:
    _check("solve_lu", "a", a, b)
    packed, pivots, info = linalg.lu_factor(a.detach(), check, "solve_lu")
    x = _with_columns(b, lambda b: linalg.solve_pivoted(a, packed, pivots, b, False))
    return _with_info(x, info, check)


def eigh(
    a: Any, *, lower: bool = True, eigvals_only: bool = False, subset_by_index: Any = None,
    check: bool = True,
) -> Any:  # fmt: skip
    """All pairs are computed, since the derivative of each vector reads them."""
    _check("eigh", "a", a)
    first, last = _linalg_calls.subset_of(subset_by_index, a.shape[-1])
    w, v, info = linalg.eigh(a, lower, check, "eigh")
    w, v = w[..., first : last + 1], v[..., first : last + 1]
    return _with_info(w if eigvals_only else (w, v), info, check)


VERBS: dict[str, Callable[..., Any]] = {name: globals()[name] for name in _linalg_calls.STORED}
ON_MEMORY = ("cg", "eigh_top", "minres", "nystrom", "pivoted_cholesky", "rpcholesky")
