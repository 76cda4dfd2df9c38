"""Functions become formulas: a lambda is called once with symbols, and returns the formula."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from mercer import _mercer
from mercer._mercer import Expr, Kernel
from mercer._types import Array, ExprLike, FormulaLike

__all__ = ["kernel", "metric", "ptx", "reduce", "trace"]

# Arguments of these names, after the two points, are those symbols; any other is a parameter.
_SYMBOLS = {name: getattr(_mercer, name) for name in ("w", "row", "col", "i", "j", "K")}


def trace(function: Callable[..., ExprLike]) -> Expr:
    """Calls ``function(x, z, …)`` with symbols."""
    try:
        signature: inspect.Signature | None = inspect.signature(function)
    except ValueError:  # a builtin without one
        signature = None
    arguments = list(signature.parameters.values()) if signature else []
    positional = [a for a in arguments if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 or any(a.kind in (a.VAR_POSITIONAL, a.VAR_KEYWORD) for a in arguments):
        raise ValueError(
            "kernel: a function must take the two points first, then parameters by name: "
            f"lambda x, z, bandwidth=2.0: …. Received {signature or function}"
        )
    values, named = [_mercer.x, _mercer.z], {}
    for argument in arguments[2:]:
        value = _SYMBOLS.get(argument.name)
        if value is None:
            value = _parameter(argument)
        if argument.kind is argument.KEYWORD_ONLY:
            named[argument.name] = value
        else:
            values.append(value)
    return _as_expr(function(*values, **named), "kernel")


def _parameter(argument: inspect.Parameter) -> Expr:
    default = argument.default
    return _mercer.param(argument.name, None if default is argument.empty else default)


def kernel(f: FormulaLike) -> Kernel:
    """A formula from a function, a text, or the name of a metric or kernel of the zoo.

    >>> mc.kernel(lambda x, z, bandwidth=2.0: mc.exp(-mc.sum(abs(x - z)) / bandwidth))
    >>> mc.kernel("exp(-sum(abs(x-z))/bandwidth)")
    >>> mc.kernel("canberra")

    The first two arguments of a function are the points; arguments named w, row, col, i, j or K are
    the symbols of that name; all others are parameters of the formula, with the defaults of the
    signature. Numbers that the function takes from outside become constants of the formula; arrays
    of one number, as tensors that are trained, stay arrays. Python's ``if``, ``and`` and ``or``
    cannot be traced: use where, &, |. A function is traced at every call of a verb; keep what this
    returns where that matters. Two kernels are equal where their formulas and arrays are.
    """
    return _mercer.formula_of(f)


def restore(text: str, arrays: dict[str, Any], is_kernel: bool) -> Expr:
    """What pickle calls to make an expression of its text and the arrays that it carries."""
    return _mercer.restored(text, arrays, is_kernel)


def metric(name: str, *, weighted: bool = False, **options: float | Array) -> Kernel:
    """The formula of an entry of the zoo, by name or alias, with its options by name.

    >>> mc.metric("minkowski", p=1.5)
    """
    return _mercer.zoo_formula(name, options, weighted)


def _as_expr(value: Any, where: str, what: str = "a traced function must return") -> Expr:
    if isinstance(value, Expr):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _mercer.constant(value)
    raise TypeError(f"{where}: {what} an expression or a number. Received {type(value).__name__}")


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def reduce(
    term: ExprLike | Sequence[ExprLike],
    combine: Callable[..., ExprLike | Sequence[ExprLike]],
    identity: ExprLike | Sequence[ExprLike],
    merge: Callable[..., ExprLike | Sequence[ExprLike]] | None = None,
    finish: Callable[..., ExprLike] | None = None,
    associative: bool = False,
) -> Expr:
    """A reduction of your own over the features.

    The state starts as ``identity``; for each feature it becomes ``combine(state, term)``; the
    value is ``finish(state)``, or the state itself. With several terms the state is a tuple and so
    are the arguments of the functions. ``merge(state, other)`` joins two partial states, and
    ``associative=True`` says that the features may be split so.

    >>> spread = mc.reduce(
    ...     term=(mc.x - mc.z, mc.x - mc.z),
    ...     combine=lambda s, t: (mc.maximum(s[0], t[0]), mc.minimum(s[1], t[1])),
    ...     identity=(-math.inf, math.inf),
    ...     finish=lambda s: s[0] - s[1],
    ... )
    """
    terms, identities = _as_tuple(term), _as_tuple(identity)
    if len(terms) != len(identities):
        raise ValueError(
            "reduce: term and identity must have one entry per slot of the state. "
            f"Received {len(terms)} and {len(identities)}"
        )
    several = isinstance(term, (tuple, list))
    states = tuple(_mercer.state(slot) for slot in range(len(terms)))
    incoming = tuple(_mercer.incoming(slot) for slot in range(len(terms)))
    arguments = (states, incoming) if several else (states[0], incoming[0])
    combined = _as_tuple(combine(*arguments))
    merged = _as_tuple(merge(*arguments)) if merge is not None else ()
    if finish is not None:
        finished = finish(arguments[0])
    elif several:
        raise ValueError(
            "reduce: a state of several slots needs finish, a function that makes one number of it"
        )
    else:
        finished = states[0]
    return _mercer.custom_reduction(terms, combined, identities, merged, finished, associative)


def ptx(
    text: str,
    inputs: ExprLike | Sequence[ExprLike],
    outputs: int = 1,
    *,
    meaning: Callable[..., ExprLike | Sequence[ExprLike]] | ExprLike | Sequence[ExprLike],
) -> Any:
    """PTX of your own as a function of up to eight inputs, inside a formula.

    The text reads ``{0}``, ``{1}``, … and writes ``{out}``, of type ``.f32`` where no other is
    named: ``{0:u32}`` and ``{out:u32}`` are the bits of a float32; ``{0:pred}`` is a predicate,
    true where the input is not 0, and ``{out:pred}`` one that becomes 1 or 0. ``meaning`` says
    the same as a formula: a function of the inputs, or an expression that reads nothing else than
    they do. Float32 programs of GPUs run the text, in fields of ``gradient_field`` too; CPUs,
    float64, reductions of one side and derivatives follow the meaning.

    >>> gap = mc.ptx(
    ...     "{ .reg .f32 t; sub.f32 t, {0}, {1}; abs.f32 {out}, t; }",
    ...     (mc.x, mc.z),
    ...     meaning=lambda a, b: abs(a - b),
    ... )
    >>> l1 = mc.sum(gap)

    With ``outputs=2`` or more (at most four) the text writes ``{out0}``, ``{out1}``, …, the meaning
    is that many expressions, and so is the result; a GPU runs the text once for all of them. The
    text must give the same for the same inputs and touch nothing else. What only the assembler
    refuses is a CompileError of the call.
    """
    reads = tuple(_as_expr(value, "ptx", "an input must be") for value in _as_tuple(inputs))
    is_function = callable(meaning) and not isinstance(meaning, Expr)
    said: Any = meaning
    meanings = _as_tuple(said(*reads) if is_function else said)
    if outputs < 1 or len(meanings) != outputs:
        raise ValueError(
            f"ptx: the meaning must have one expression per output. Received {len(meanings)} "
            f"for {outputs}"
        )
    results = _mercer.ptx_outputs(text, reads, meanings)
    return results if outputs > 1 else results[0]
