"""Names of the types in signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mercer._mercer import Expr

__all__ = [
    "Array", "ArrayT", "ExprLike", "FormulaLike", "Indices", "Numbers", "Parameter", "ScalarT",
]  # fmt: skip


class Array(Protocol):
    """An array of any library."""

    @property
    def ndim(self) -> int: ...


#: An array of NumPy, PyTorch, CuPy, JAX or another library with DLPack; one library a call.
ArrayT = TypeVar("ArrayT", bound=Any)
#: NumPy's arrays have the type of their elements in their own, so indices have a type as well.
ScalarT = TypeVar("ScalarT", bound=np.generic)
Numbers: TypeAlias = NDArray[ScalarT]
Indices: TypeAlias = NDArray[np.int64]
#: What operators and functions take: an expression, a number, or an array without axes, which
#: becomes a parameter with this value.
ExprLike: TypeAlias = "Expr | float | Array"
#: What verbs take for f: an expression, a text, a name of the zoo, or a function of (x, z, …).
FormulaLike: TypeAlias = "Expr | str | Callable[..., ExprLike]"
#: The value of a parameter: a number, an array, or numbers written out.
Parameter: TypeAlias = "float | Sequence[float] | Sequence[Sequence[float]] | Any"
