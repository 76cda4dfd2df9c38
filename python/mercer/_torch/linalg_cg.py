"""mercer.linalg.cg, minres and sap with derivatives, by the implicit function theorem.

For x with a x = b and its cotangent G, the solution g of a g = G is dL/db, and the derivative by
all that a is made of is that of -g' (a x) with g and x held: of a kernel matrix the backward of
kernel_product, which never stores it. g is one more call of the same function, with the same
operator and options, and is differentiated as this one is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch._functorch import pyfunctorch
from torch.autograd import forward_ad
from torch.utils import _pytree

import mercer
from mercer import _linalg_tangents, _mercer, _watchers
from mercer._torch import autograd, batching, products, table
from mercer.linalg import _sap


class System(NamedTuple):
    """What a call is, but for b and the tensors of a and its ridges, its leaves."""

    verb: str
    structure: Any
    constants: tuple  # of the leaves those that are no tensors; None in the place of tensors
    options: dict[str, Any]

    def parts(self, leaves: Sequence[Tensor]) -> tuple[Any, Any]:
        """a, a matrix or what an operator is made of, and the ridges of columns."""
        rest = iter(leaves)
        filled = [next(rest) if c is None else c.value for c in self.constants]
        return _pytree.tree_unflatten(filled, self.structure)


class _Constant(NamedTuple):
    value: Any


def system_of(
    a: Any, ridge: Any, options: dict[str, Any], verb: str = "cg"
) -> tuple[System, list[Tensor]]:
    if is_operator(a):
        a = written_out(a)
    leaves, structure = _pytree.tree_flatten((a, ridge))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    constants = tuple(None if isinstance(leaf, Tensor) else _Constant(leaf) for leaf in leaves)
    return System(verb, structure, constants, options), tensors


def is_operator(a: Any) -> bool:
    """Whether it is made of points: also of such as a transform of torch.func holds."""
    return isinstance(a, _mercer.KernelOperator) or hasattr(type(a), "_mercer_is_followed")


def written_out(operator: Any) -> dict[str, Any]:
    """The arguments that it was made with; arrays that its formula carries are parameters."""
    if hasattr(type(operator), "_mercer_is_followed"):
        return operator.written
    f, x, ridge, params, *rest = operator.__reduce__()[1]
    sides, params = dict(rest[0]) if rest else {}, dict(params)
    f = _mercer.formula_for(f, "kernel_product", "w" in sides, params)
    return {"f": f, "x": x, "ridge": ridge, **sides, "params": params}


def _operator(a: Any) -> Any:
    if isinstance(a, Tensor):
        return a
    given = dict(a)
    return mercer.linalg.KernelOperator(
        given.pop("f"), given.pop("x"), **given.pop("params"), **given
    )


def _column(values: Any, v: Tensor) -> Any:
    """Numbers of points, [n], as factors of v [n, k] or [n]."""
    return (
        values.unsqueeze(-1) if isinstance(values, Tensor) and v.ndim > values.ndim > 0 else values
    )


def _root(weights: Tensor) -> Tensor:
    """The square root with the derivative 0 at 0, where it has none: such a point is held."""
    live = weights > 0
    return torch.where(live, torch.where(live, weights, 1).sqrt(), 0)


def _product(a: Any, ridge: Any, v: Tensor) -> Tensor:
    """(a + ridge) v. Derivatives by a matrix are those by its symmetric part."""
    if isinstance(a, Tensor):
        whole = _linalg_tangents.symmetric(a)
        columns = v.unsqueeze(-1) if v.ndim == 1 else v
        found = products.matmul(whole, columns).reshape(v.shape)
    else:
        sides = {name: a[name] for name in ("row", "col", "w") if a.get(name) is not None}
        weights = a.get("weights")
        roots = None if weights is None else _column(_root(weights), v)
        given = v if roots is None else roots * v
        found = mercer.kernel_product(a["f"], a["x"], None, given, **sides, **a["params"])
        found = (found if roots is None else roots * found) + _column(a["ridge"], v) * v
    return found if ridge is None else found + ridge * v


def _compute(system: System, b: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    a, ridge = system.parts([leaf.detach().resolve_neg() for leaf in leaves])
    options = dict(system.options)
    if ridge is not None:
        options["ridge"] = ridge
    if system.verb == "sap":
        found = _sap.computed(_operator(a), b.detach().resolve_neg(), **options)
        if not options["check"]:
            x, *told = found
            return x, *(torch.as_tensor(part, device=b.device) for part in told)
    else:
        found = _mercer.unfollowed(system.verb, _operator(a), b.resolve_neg(), **options)
    if not options["check"]:
        return found
    none = b.new_zeros(b.shape[1:], dtype=torch.int64)
    return found, none, none.clone()


def _solve(system: System, b: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return autograd.call("cg", system, b, list(leaves))


def _again(system: System) -> System:
    """The system without its first guess."""
    return system._replace(options={n: v for n, v in system.options.items() if n != "x0"})


def _gradients(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    (system, _, leaves), x = inputs, outputs[0]
    g = _solve(_again(system), cotangents[0], leaves)[0]
    found: list[Tensor | None] = [None] * len(leaves)
    wanted = [i for i, need in enumerate(needs[2]) if need]
    if wanted:
        for i, gradient in zip(wanted, _pulled(system, leaves, wanted, x, -g), strict=True):
            found[i] = gradient
    return None, g, found


def _of_moving(system: System, leaves: Sequence[Tensor], moving: Sequence[int], x: Tensor) -> Any:
    """a x as a function of some leaves."""

    def product(*values: Tensor) -> Tensor:
        whole = list(leaves)
        for i, value in zip(moving, values, strict=True):
            whole[i] = value
        return _product(*system.parts(whole), x)

    return product


def _in_functorch() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


def _views(leaves: Sequence[Tensor], moving: Sequence[int], recorded: bool) -> list[Tensor]:
    """Some leaves as tensors of their own: what is held may depend on the leaves, too."""
    views = [leaves[i].view_as(leaves[i]) if recorded else leaves[i].detach() for i in moving]
    return [v if v.requires_grad else v.detach().requires_grad_() for v in views]


def _pulled(
    system: System, leaves: Sequence[Tensor], moving: Sequence[int], x: Tensor, g: Tensor
) -> Sequence[Tensor]:
    """The derivatives of g' (a x) by some leaves, with g and x held."""
    product = _of_moving(system, leaves, moving, x)
    if _in_functorch():
        return torch.func.vjp(product, *(leaves[i] for i in moving))[1](g)
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        views = _views(leaves, moving, recorded)
        value = product(*views)
    return _gradients_or_zeros(value, views, g, recorded)


def _gradients_or_zeros(
    value: Tensor, views: Sequence[Tensor], g: Tensor, recorded: bool
) -> list[Tensor]:
    found = torch.autograd.grad(value, views, g, create_graph=recorded, allow_unused=True)
    return [torch.zeros_like(v) if f is None else f for f, v in zip(found, views, strict=True)]


def _moved(
    system: System, leaves: Sequence[Tensor], moving: Sequence[int], x: Tensor,
    along: Sequence[Tensor],
) -> Tensor:  # fmt: skip
    """How a x moves with some leaves, x held: the derivative of their gradients, which are linear
    in the cotangent, since forward mode does not nest outside of torch.func."""
    product = _of_moving(system, leaves, moving, x)
    if _in_functorch():
        return torch.func.jvp(product, tuple(leaves[i] for i in moving), tuple(along))[1]
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        views = _views(leaves, moving, recorded)
        g = torch.zeros_like(x, requires_grad=True)
        found = _gradients_or_zeros(product(*views), views, g, True)
        total = sum((f * d).sum() for f, d in zip(found, along, strict=True))
    return _gradients_or_zeros(total, [g], torch.ones_like(total), recorded)[0]


def _tangent(inputs: tuple, outputs: tuple, given: tuple) -> tuple:
    (system, _, leaves), (_, db, along), x = inputs, given, outputs[0]
    right = torch.zeros_like(x) if db is None else db
    moving = [i for i, direction in enumerate(along) if direction is not None]
    if moving:
        right = right - _moved(system, leaves, moving, x, [along[i] for i in moving])
    return _solve(_again(system), right, leaves)[0], None, None


def _mapped(name: str, info: Any, in_dims: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
    """One call after the other, as each has products of its own."""
    (system, b, leaves), (_, b_dim, dims) = inputs, in_dims
    axes = [None] * len(leaves) if dims is None else dims
    operands = [batching.Operand(b, b_dim, 1)]
    operands += [batching.Operand(t, d, 1) for t, d in zip(leaves, axes, strict=True)]
    found = []
    for i in range(info.batch_size):
        b, *own = [o.tensor[i] if o.is_mapped else o.tensor for o in operands]
        found.append(_solve(system, b, own))
    return tuple(torch.stack(each) for each in zip(*found, strict=True)), (0, 0, 0)


table.FUNCTIONS["cg"] = _compute
table.GRADIENTS["cg"], table.TANGENTS["cg"], table.MAPPED["cg"] = _gradients, _tangent, _mapped
autograd.KEPT["cg"] = slice(0, 1)


def solved(verb: str, a: Any, b: Any, ridge: Any, options: dict[str, Any]) -> Any:
    x0 = options.get("x0")
    options = {**options, "x0": x0.detach() if isinstance(x0, Tensor) else x0}
    system, leaves = system_of(a, ridge, options, verb)
    found = _solve(system, b, leaves)
    return found[0] if options["check"] else found


def cg(
    a: Any, b: Any, *, ridge: Any = None, preconditioner: Any = None, tol: float | None = None,
    max_iter: int | None = None, x0: Any = None, check: bool = True,
) -> Any:  # fmt: skip
    options = {"tol": tol, "max_iter": max_iter, "check": check, "x0": x0}
    return solved("cg", a, b, ridge, {**options, "preconditioner": preconditioner})


def minres(
    a: Any, b: Any, *, ridge: Any = None, tol: float | None = None, max_iter: int | None = None,
    x0: Any = None, check: bool = True,
) -> Any:  # fmt: skip
    options = {"tol": tol, "max_iter": max_iter, "check": check, "x0": x0}
    return solved("minres", a, b, ridge, options)


def sap(a: Any, b: Any, options: dict[str, Any]) -> Any:
    if not are_memory([b, *tensors_of(a)], is_mapped=True):
        raise NotImplementedError(
            "sap: computes on memory, where tracers and modes of PyTorch would miss it. Received a "
            "call under one, or tensors of another class"
        )
    found = solved("sap", a, b, None, options)
    if options["check"]:
        return found
    x, *told = found
    return x, *(part.cpu().numpy()[()] for part in told)


@contextlib.contextmanager
def outside(tensors: Sequence[Tensor] = (), verb: str = "") -> Iterator[list[Tensor]]:
    """Out of the transforms of torch.func, within which every new tensor is one of theirs, with the
    numbers alone of some tensors."""
    functorch = torch._C._functorch
    found = list(tensors)
    with contextlib.ExitStack() as stack:
        while (transform := functorch.peek_interpreter_stack()) is not None:
            if transform.key() == TransformType.Jvp:
                found = [forward_ad.unpack_dual(t).primal for t in found]
            level = transform.level()
            stack.enter_context(pyfunctorch.temporarily_pop_interpreter_stack())
            found = [
                functorch.get_unwrapped(t)
                if functorch.is_gradtrackingtensor(t) and functorch.maybe_get_level(t) == level
                else t
                for t in found
            ]
            if any(map(functorch.is_batchedtensor, found)):
                raise NotImplementedError(
                    f"{verb}: is not offered within torch.vmap, where a stands for several "
                    "matrices. Received such a tensor; call it for each of them, outside"
                )
        if forward_ad._current_level >= 0:
            found = [forward_ad.unpack_dual(t).primal for t in found]
        stack.enter_context(forward_ad._set_fwd_grad_enabled(False))
        yield [t.detach() for t in found]


def detached(a: Any, verb: str) -> Any:
    """A matrix, or an operator, of the same numbers that nothing is differentiated by."""
    leaves, structure = _pytree.tree_flatten(a if isinstance(a, Tensor) else written_out(a))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    with outside([leaves[i] for i in places], verb) as held:
        for i, tensor in zip(places, held, strict=True):
            leaves[i] = tensor
        found = _pytree.tree_unflatten(leaves, structure)
        if isinstance(a, Tensor):
            return found
        if found.get("row") is not None:
            found["col"] = found["row"]
        return _operator(found)


def tensors_of(a: Any) -> list[Tensor]:
    if is_operator(a):
        a = written_out(a)
    return [leaf for leaf in _pytree.tree_leaves(a) if isinstance(leaf, Tensor)]


def are_memory(tensors: Sequence[Tensor], is_mapped: bool) -> bool:
    """Whether there is memory to compute on, and nobody listens who would miss it; `is_mapped`: or
    what torch.func makes of it."""
    if torch.compiler.is_compiling() or _watchers.find() is not None:
        return False
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return all(
        type(t) in (Tensor, torch.nn.Parameter)
        and not torch._is_functional_tensor(t)
        and (is_mapped or not is_wrapped(t))
        for t in tensors
    )
