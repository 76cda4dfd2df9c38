"""Names of the types in signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from mercer._mercer import Expr

__all__ = ["ArrayT", "ExprLike", "FormulaLike", "Parameter"]

#: An array of NumPy, PyTorch, CuPy, JAX or another library with DLPack; one library a call.
ArrayT = TypeVar("ArrayT")
#: What operators and functions take: an expression or a number.
ExprLike: TypeAlias = "Expr | float"
#: What verbs take for f: an expression, a text, a name of the zoo, or a function of (x, z, …).
FormulaLike: TypeAlias = "Expr | str | Callable[..., ExprLike]"
#: The value of a parameter: a number, an array, or numbers written out.
Parameter: TypeAlias = "float | Sequence[float] | Sequence[Sequence[float]] | Any"
