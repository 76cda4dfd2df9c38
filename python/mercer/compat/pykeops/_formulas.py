"""Formula strings of KeOps: their operators bind as Python's, so Python's parser reads them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mercer._vectors.nodes import KEOPS
from mercer.compat.pykeops._lazy import REFUSED, GenericLazyTensor, refused

__all__ = ["FUNCTIONS", "read"]

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.BitOr: operator.or_, ast.Pow: operator.pow,
}  # fmt: skip


def _operation(name: str) -> Callable[..., Any]:
    return lambda first, *others: first._apply(name, *others)


#: Functions of strings, of lazy tensors and whole numbers.
FUNCTIONS: dict[str, Callable[..., Any]] = {name: _operation(name) for name in KEOPS} | {
    "Add": operator.add, "Subtract": operator.sub, "Mult": operator.mul,
    "Divide": operator.truediv, "Scal": operator.mul, "Scalprod": operator.or_,
    "Pow": lambda x, n: x**n, "IntInv": lambda n: 1 / n,
    "Sum": lambda x: x.sum(-1), "Max": lambda x: x.max(-1), "Min": lambda x: x.min(-1),
    "SqNorm2": lambda x: x.sqnorm2(), "Norm2": lambda x: x.norm2(),
    "Normalize": lambda x: x.normalize(), "SqDist": lambda x, y: x.sqdist(y),
    "WeightedSqNorm": lambda w, x: x.weightedsqnorm(w),
    "WeightedSqDist": lambda w, x, y: x.weightedsqdist(y, w),
    "SqNormIso": lambda w, x: x.weightedsqnorm(w), "SqNormDiag": lambda w, x: x.weightedsqnorm(w),
    "SymSqNorm": lambda matrix, x: x.symsqnorm(matrix),
    "MatVecMult": lambda matrix, x: matrix.matvecmult(x),
    "VecMatMult": lambda x, matrix: x.vecmatmult(matrix),
    "ArgMax": lambda x: x.argmax(-1), "ArgMin": lambda x: x.argmin(-1),
    "TensorProd": lambda x, y: x.tensorprod(y), "OneHot": lambda x, dim: x.one_hot(dim),
    "Elem": lambda x, k: x.elem(k), "Extract": lambda x, k, dim: x.extract(k, dim),
    "Concat": lambda *parts: type(parts[0]).concatenate(parts),
    "ClampInt": lambda x, low, high: x.clamp(low, high),
}  # fmt: skip


def read(
    formula: str,
    variables: Mapping[str, GenericLazyTensor],
    given: Callable[[str, Sequence[int]], GenericLazyTensor],
    lazy_class: type[GenericLazyTensor],
) -> GenericLazyTensor:
    """The lazy tensor of a string. `given` makes those that it writes as Vi(0, 3)."""
    try:
        tree = ast.parse(formula.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(
            f"Genred: the formula must be text of KeOps. Received {formula!r}"
        ) from error

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in variables:
                return variables[node.id]
            raise ValueError(
                f"Genred: variables are {', '.join(variables) or 'none'}. Received {node.id!r}"
            )
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return call(node.func.id, [value(argument) for argument in node.args])
        raise ValueError(
            f"Genred: the formula must be operations of KeOps. Received {ast.unparse(node)!r}"
        )

    def call(name: str, arguments: list[Any]) -> Any:
        if name in ("Vi", "Vj", "Pm", "Var"):
            return given(name, arguments)
        if name == "IntCst":
            return int(arguments[0])
        if name == "Zero" and arguments == [1]:
            return lazy_class(0)
        if name in REFUSED:
            raise refused(name)
        if name not in FUNCTIONS:
            raise NotImplementedError(
                f"Genred: the operation {name!r} is not offered. Received {formula!r}"
            )
        known = FUNCTIONS[name]
        if name in KEOPS and not isinstance(arguments[0], GenericLazyTensor):
            arguments[0] = lazy_class(arguments[0])
        return known(*arguments)

    found = value(tree)
    return found if isinstance(found, GenericLazyTensor) else lazy_class(found)
