"""Vi, Vj, Pm, Genred and the generic reductions, for the LazyTensor of a library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mercer._vectors.nodes import I_SIDE, J_SIDE, PARAMETER, Node, leaves
from mercer.compat.pykeops._formulas import read
from mercer.compat.pykeops._lazy import GenericLazyTensor

__all__ = ["NAMES", "names_of"]

#: What the module of a library has.
NAMES = (
    "LazyTensor", "Genred", "KernelSolve", "Pm", "Vi", "Vj", "generic_argkmin", "generic_argmin",
    "generic_logsumexp", "generic_sum",
)  # fmt: skip

_CATEGORIES = {"Vi": I_SIDE, "Vj": J_SIDE, "Pm": PARAMETER}
_ALIAS = re.compile(r"\s*(\w+)\s*=\s*(Vi|Vj|Pm|Var)\s*\(([\d\s,]+)\)\s*")
#: Reductions of Genred: the method, and whether it takes K or a weight.
REDUCTIONS = {
    "Sum": ("sum_reduction", None), "Min": ("min", None), "Max": ("max", None),
    "ArgMin": ("argmin", None), "ArgMax": ("argmax", None), "Min_ArgMin": ("min_argmin", None),
    "Max_ArgMax": ("max_argmax", None), "KMin": ("Kmin", "K"), "ArgKMin": ("argKmin", "K"),
    "KMin_ArgKMin": ("Kmin_argKmin", "K"), "LogSumExp": ("logsumexp", "weight"),
    "LogSumExpWeight": ("logsumexp", "weight"), "SumSoftMaxWeight": ("sumsoftmaxweight", "weight"),
}  # fmt: skip


class Variable:
    """An argument of a formula string: its place, dimension and category."""

    def __init__(self, place: int, dim: int, category: int):
        self.place, self.dim, self.category = place, dim, category

    def lazy(self, lazy_class: type[GenericLazyTensor], arrays: Sequence[Any]) -> Any:
        if self.place >= len(arrays):
            raise ValueError(
                f"Genred: the formula has a variable number {self.place}. Received {len(arrays)} "
                f"arrays"
            )
        array = arrays[self.place]
        if not isinstance(array, lazy_class.array):
            return lazy_class(array)
        axes = 1 if self.category == PARAMETER else 2
        if array.ndim < axes or array.shape[-1] != self.dim:
            raise ValueError(
                f"Genred: variable number {self.place} must have {axes} axes or more, the last of "
                f"length {self.dim}. Received the shape {tuple(array.shape)}"
            )
        return lazy_class.of(lazy_class._array(array, self.category))


def variable(kind: str, numbers: Sequence[int], place: int) -> Variable:
    """Vi(dim), Vi(place, dim) or Var(place, dim, category)."""
    if kind == "Var" and len(numbers) == 3:
        return Variable(*numbers)
    if kind != "Var" and len(numbers) in (1, 2):
        place = numbers[0] if len(numbers) == 2 else place
        return Variable(place, numbers[-1], _CATEGORIES[kind])
    raise ValueError(
        f"Genred: variables are Vi(dim), Vi(place, dim) and Var(place, dim, category). Received "
        f"{kind}({', '.join(map(str, numbers))})"
    )


class Genred:
    """A formula and its reduction, as a function of arrays."""

    lazy_class: type[GenericLazyTensor]

    def __init__(
        self, formula: str, aliases: Sequence[str] | str = (), reduction_op: str = "Sum",
        axis: int = 0, dtype: Any = None, opt_arg: Any = None, formula2: str | None = None,
        **options: Any,
    ):  # fmt: skip
        if reduction_op not in REDUCTIONS:
            raise NotImplementedError(
                f"Genred: reduction_op must be one of {', '.join(REDUCTIONS)}. Received "
                f"{reduction_op!r}"
            )
        if axis not in (0, 1):
            raise ValueError(f"Genred: axis must be 0 or 1. Received {axis}")
        self.formula, self.formula2, self.axis = formula, formula2, axis
        self.reduction_op, self.opt_arg, self.options = reduction_op, opt_arg, options
        self.variables: dict[str, Variable] = {}
        for place, alias in enumerate([aliases] if isinstance(aliases, str) else aliases):
            found = _ALIAS.fullmatch(alias)
            if found is None:
                raise ValueError(f"Genred: an alias is written 'x = Vi(3)'. Received {alias!r}")
            numbers = [int(number) for number in found[3].split(",")]
            self.variables[found[1]] = variable(found[2], numbers, place)

    def __call__(self, *arrays: Any, ranges: Any = None, **options: Any) -> Any:
        known = {n: v.lazy(self.lazy_class, arrays) for n, v in self.variables.items()}
        given = self.given(arrays)
        lazy = read(self.formula, known, given, self.lazy_class)
        method, extra = REDUCTIONS[self.reduction_op]
        if extra == "K":
            options["K"] = self.opt_arg
        elif extra == "weight" and self.formula2 is not None:
            options["weight"] = read(self.formula2, known, given, self.lazy_class)
        if ranges is not None:
            options["ranges"] = ranges
        return getattr(lazy, method)(axis=self.axis + len(lazy._batch()), **self.options, **options)

    def given(self, arrays: Sequence[Any]) -> Any:
        """Makes variables that the formula writes as Vi(0, 3)."""
        return lambda kind, numbers: variable(kind, numbers, 0).lazy(self.lazy_class, arrays)


class KernelSolve:
    """(K + alpha) a = b for a formula K * b, symmetric positive definite, of the same points."""

    genred: type[Genred]

    def __init__(
        self, formula: str, aliases: Sequence[str], varinvalias: str, axis: int = 0,
        **options: Any,
    ):  # fmt: skip
        options.pop("dtype", None)
        self.product = self.genred(formula, aliases, axis=axis, **options)
        if varinvalias not in self.product.variables:
            raise ValueError(
                f"KernelSolve: varinvalias must be one of {', '.join(self.product.variables)}. "
                f"Received {varinvalias!r}"
            )
        self.name = varinvalias

    def __call__(self, *arrays: Any, alpha: float = 1e-10, **options: Any) -> Any:
        product = self.product
        known = {n: v.lazy(product.lazy_class, arrays) for n, v in product.variables.items()}
        right = known[self.name]
        lazy = read(product.formula, known, product.given(arrays), product.lazy_class)
        kernel = _without_factor(lazy.node, right.node.value)
        if kernel is None or right.node.value.ndim != 2:
            raise NotImplementedError(
                f"KernelSolve: the formula must be a number for each pair times {self.name}, "
                f"without batches. Received {product.formula!r}"
            )
        k = product.lazy_class.of(kernel)
        k = k if product.axis == 1 else k.T
        return k.solve(right.node.value, alpha=alpha, **options)


def _without_factor(node: Node, array: Any) -> Node | None:
    """A product without the factor that an array is; None where it is none, or occurs elsewhere."""
    if node.op == "array" and node.value is array and node.dim == array.shape[-1]:
        return Node("number", value=1)
    if node.op == "Mult":
        for one, other in (node.arguments, node.arguments[::-1]):
            rest = _without_factor(one, array)
            is_free = all(leaf.value is not array for leaf in leaves(other))
            if rest is not None and is_free and other.dim == 1:
                return Node("Mult", (rest, other), rest.dim)
    if node.op == "Minus":
        rest = _without_factor(node.arguments[0], array)
        return None if rest is None else Node("Minus", (rest,), rest.dim)
    return None


def _generic(reduction_op: str, genred: type[Genred], takes_k: bool = False) -> Any:
    def make(formula: str, output: str, *aliases: str, **options: Any) -> Genred:
        found = _ALIAS.fullmatch(output)
        if found is None or found[2] not in ("Vi", "Vj"):
            raise ValueError(
                f"generic reductions: the output is written 'a = Vi(1)'. Received {output!r}"
            )
        if takes_k:
            options["opt_arg"] = int(found[3].split(",")[-1])
        axis = 1 if found[2] == "Vi" else 0
        return genred(formula, aliases, reduction_op=reduction_op, axis=axis, **options)

    make.__doc__ = f"{reduction_op} of a formula, over the index that the output has not."
    return make


def names_of(lazy_class: type[GenericLazyTensor]) -> tuple[Any, ...]:
    """What the module of a library has, in the order of NAMES, but for LazyTensor itself."""

    def Vi(x_or_ind: Any, dim: int | None = None) -> Any:
        """A variable of i, of an array [..., M, D]."""
        return _variable(x_or_ind, dim, I_SIDE)

    def Vj(x_or_ind: Any, dim: int | None = None) -> Any:
        """A variable of j, of an array [..., N, D]."""
        return _variable(x_or_ind, dim, J_SIDE)

    def Pm(x_or_ind: Any, dim: int | None = None) -> Any:
        """Parameters, of a number or an array [..., D]."""
        return _variable(x_or_ind, dim, PARAMETER)

    def _variable(x: Any, dim: int | None, category: int) -> Any:
        if dim is not None:
            return lazy_class((x, dim, category))
        if not isinstance(x, lazy_class.array):
            return lazy_class(x)
        x = x.reshape(1) if x.ndim == 0 else x
        return lazy_class.of(lazy_class._array(x, category))

    genred = type("Genred", (Genred,), {"lazy_class": lazy_class, "__doc__": Genred.__doc__})
    return (
        genred, type("KernelSolve", (KernelSolve,), {"genred": genred}), Pm, Vi, Vj,
        _generic("ArgKMin", genred, takes_k=True), _generic("ArgMin", genred),
        _generic("LogSumExp", genred), _generic("Sum", genred),
    )  # fmt: skip
