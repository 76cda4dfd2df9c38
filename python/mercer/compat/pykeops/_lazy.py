"""LazyTensor: operators and methods that build the tree, and reductions that compute."""

from __future__ import annotations

from typing import Any

import numpy as np

import mercer as mc
from mercer import _array_likes
from mercer._vectors import matrices, sums
from mercer._vectors.nodes import (
    I_SIDE,
    J_SIDE,
    PARAMETER,
    Node,
    applied,
    extract,
    leaves,
    outer,
    place_of,
    transposed,
)  # fmt: skip
from mercer.compat.pykeops._solving import operator

__all__ = ["REFUSED", "GenericLazyTensor"]

#: Operations of the package that are not offered, and why.
REFUSED = {
    "BSpline": "a vector of basis functions has no formula yet",
    "Conj": "complex numbers are not offered", "ComplexMult": "complex numbers are not offered",
    "ComplexAbs": "complex numbers are not offered", "Angle": "complex numbers are not offered",
    "Diff": "derivatives are PyTorch's", "Divergence": "derivatives are PyTorch's",
    "Grad": "derivatives are PyTorch's: reduce, then call torch.autograd.grad",
    "GradMatrix": "derivatives are PyTorch's", "Laplacian": "derivatives are PyTorch's",
    "Imag": "complex numbers are not offered", "Real": "complex numbers are not offered",
    "Real2Complex": "complex numbers are not offered",
    "Kron": "products of small tensors along axes are not offered",
    "SoftDTW_SqDist": "it is no formula of sums over features",
    "TensorDot": "products of small tensors along axes are not offered",
}  # fmt: skip
# Options that say how the package computes; here they say nothing.
_IGNORED = frozenset((
    "backend", "device_id", "dtype_acc", "use_double_acc", "sum_scheme", "enable_chunks",
    "use_fast_math", "optional_flags",
))  # fmt: skip

# The text of an index grows with the square of the number of features.
_MOST_PLACES = 32


def refused(name: str) -> NotImplementedError:
    return NotImplementedError(f"pykeops: {name} is not offered; {REFUSED[name]}. Received one")


class GenericLazyTensor:
    """A formula of variables x_i, y_j and parameters that a reduction over i or j computes."""

    xp: Any  # the module of the library
    array: Any  # its class of arrays
    __array_ufunc__ = None  # NumPy's arrays leave operators to this class
    __array_priority__ = 1e6

    def __init__(self, x: Any = None, axis: int | None = None):
        self.ranges: tuple[Any, ...] | None = None
        self.node = self._leaf(x, axis)

    @classmethod
    def of(cls, node: Node, *others: GenericLazyTensor) -> Any:
        made = cls.__new__(cls)
        made.node = node
        made.ranges = next((o.ranges for o in others if o.ranges is not None), None)
        return made

    # What is given -------------------------------------------------------------------------------

    def _leaf(self, x: Any, axis: int | None) -> Node:
        if isinstance(x, (list, tuple)) and not (isinstance(x, tuple) and len(x) == 3):
            x = self._from_list(x)
        if isinstance(x, (int, float, np.floating, np.integer)) and not isinstance(x, bool):
            return Node("number", value=x if isinstance(x, int) else float(x))
        if isinstance(x, tuple):
            raise NotImplementedError(
                "pykeops: symbolic variables (index, dimension, category) are offered in formulas "
                f"of Genred alone. Received {x}"
            )
        if not isinstance(x, self.array):
            raise TypeError(
                f"LazyTensor: x must be an array of {self.xp.__name__}, a number or a list of "
                f"numbers. Received {type(x)}"
            )
        return self._of_array(x, axis)

    def _from_list(self, x: Any) -> Any:
        if len(x) == 1:
            return float(x[0])
        return self.xp.asarray(np.asarray(x, np.float64)) if self.xp is np else (
            self.xp.as_tensor(x, dtype=self.xp.get_default_dtype())
        )  # fmt: skip

    def _of_array(self, x: Any, axis: int | None) -> Node:
        shape = tuple(x.shape)
        if len(shape) >= 3 and axis is None:
            if shape[-3] != 1 and shape[-2] != 1:
                raise ValueError(
                    "LazyTensor: an array of three axes or more must have 1 as one of "
                    f"the two before the last. Received {shape}"
                )
            category = I_SIDE if shape[-2] == 1 else J_SIDE
            if shape[-3] == shape[-2] == 1:
                return self._array(x[..., 0, 0, :], PARAMETER)
            return self._array(x[..., 0, :] if category == I_SIDE else x[..., 0, :, :], category)
        if len(shape) == 2 and axis in (0, 1):
            return self._array(x, axis)
        if len(shape) <= 1 and axis in (None, 2):
            return self._array(x.reshape(-1), PARAMETER)
        raise ValueError(
            "LazyTensor: axis must be 0 or 1 for an array of two axes, and not be given for one of "
            f"three or more. Received axis={axis} and the shape {shape}"
        )

    @staticmethod
    def _array(x: Any, category: int) -> Node:
        _array_likes.refuse_masked("LazyTensor", x=x)
        return Node("array", (), x.shape[-1], value=x, category=category)

    # What it is ----------------------------------------------------------------------------------

    def _arrays(self) -> list[Node]:
        return [leaf for leaf in leaves(self.node) if leaf.op == "array"]

    def _batch(self) -> tuple[int, ...]:
        shapes = [
            leaf.value.shape[: -1 if leaf.category == PARAMETER else -2] for leaf in self._arrays()
        ]
        return tuple(np.broadcast_shapes(*map(tuple, shapes)))

    def _size(self, category: int) -> int | None:
        found = {leaf.value.shape[-2] for leaf in self._arrays() if leaf.category == category}
        if len(found) > 1:
            raise ValueError(
                f"LazyTensor: variables of {'ij'[category]} must have the same number of points. "
                f"Received {sorted(found)}"
            )
        return found.pop() if found else None

    def _sizes(self) -> tuple[int, int]:
        """The numbers of points i and j; 1 where there is no variable of them."""
        rows, columns = self._size(I_SIDE), self._size(J_SIDE)
        return 1 if rows is None else rows, 1 if columns is None else columns

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch..., M, N, D), without the last where it is 1; M and N are 1 where unknown."""
        full = self._shape
        return full if full[-1] > 1 else full[:-1]

    @property
    def _shape(self) -> tuple[int, ...]:
        return (*self._batch(), *self._sizes(), self.node.dim)

    @property
    def ndim(self) -> int:
        return self.node.dim

    def dim(self) -> int:
        return len(self._shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError(
            "LazyTensor: it has no truth value; use ifelse. Received one in a condition"
        )

    # Operations ----------------------------------------------------------------------------------

    def _lazy(self, other: Any) -> Any:
        return other if isinstance(other, GenericLazyTensor) else type(self)(other)

    def _apply(self, name: str, *others: Any, dim: int | None = None) -> Any:
        given = [self, *map(self._lazy, others)]
        dims = {one.node.dim for one in given} - {1}
        if len(dims) > 1:
            raise ValueError(
                f"{name}: vectors must have the same dimension, or 1. Received "
                f"{[one.node.dim for one in given]}"
            )
        dim = dim or max(one.node.dim for one in given)
        node = applied(name, [one.node for one in given], dim)
        return self.of(node, *given)

    def __add__(self, other: Any) -> Any:
        return self if _is(other, 0) else self._apply("Add", other)

    def __radd__(self, other: Any) -> Any:
        return self if _is(other, 0) else self._lazy(other)._apply("Add", self)

    def __sub__(self, other: Any) -> Any:
        return self if _is(other, 0) else self._apply("Subtract", other)

    def __rsub__(self, other: Any) -> Any:
        return -self if _is(other, 0) else self._lazy(other)._apply("Subtract", self)

    def __mul__(self, other: Any) -> Any:
        return self if _is(other, 1) else self._apply("Mult", other)

    def __rmul__(self, other: Any) -> Any:
        return self if _is(other, 1) else self._lazy(other)._apply("Mult", self)

    def __truediv__(self, other: Any) -> Any:
        return self if _is(other, 1) else self._apply("Divide", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._apply("Inv") if _is(other, 1) else self._lazy(other)._apply("Divide", self)

    def __pow__(self, other: Any) -> Any:
        if _is(other, 2):
            return self._apply("Square")
        return self._apply("Powf", self._exponent(other))

    def __rpow__(self, other: Any) -> Any:
        return self._lazy(other)._apply("Powf", self)

    def _exponent(self, other: Any) -> Any:
        """Numbers stay in the text, as their sign and whether they are whole count."""
        if isinstance(other, (float, np.floating)) and float(other).is_integer():
            return int(other)
        return other

    def __or__(self, other: Any) -> Any:
        return self._apply("Mult", other).sum(-1)

    def __ror__(self, other: Any) -> Any:
        return self._lazy(other) | self

    def __neg__(self) -> Any:
        return self._apply("Minus")

    def __abs__(self) -> Any:
        return self._apply("Abs")

    def __lt__(self, other: Any) -> Any:
        return self._apply("LessThan", other)

    def __le__(self, other: Any) -> Any:
        return self._apply("LessOrEqual", other)

    def __gt__(self, other: Any) -> Any:
        return self._lazy(other)._apply("LessThan", self)

    def __ge__(self, other: Any) -> Any:
        return self._lazy(other)._apply("LessOrEqual", self)

    def eq(self, other: Any) -> Any:
        return self._apply("Equal", other)

    def ne(self, other: Any) -> Any:
        return self._apply("NotEqual", other)

    def power(self, other: Any) -> Any:
        return self**other

    def mod(self, modulus: Any, offset: Any = 0) -> Any:
        return self._apply("Mod", modulus, offset)

    def clamp(self, low: Any, high: Any) -> Any:
        return self._apply("Clamp", low, high)

    def ifelse(self, first: Any, second: Any) -> Any:
        return self._apply("IfElse", first, second)

    def atan2(self, other: Any) -> Any:
        return self._apply("Atan2", other)

    def normalize(self) -> Any:
        return self / self.norm2()

    def sqnorm2(self) -> Any:
        return self._apply("Square").sum(-1)

    def norm2(self) -> Any:
        return self.sqnorm2()._apply("Sqrt")

    def norm(self, p: Any = 2, dim: int = -1) -> Any:
        if dim not in (-1, len(self._shape) - 1) or not _is(p, 2):
            raise ValueError(
                f"norm: it is that of order 2 over the last axis. Received p={p}, dim={dim}"
            )
        return self.norm2()

    def sqdist(self, other: Any) -> Any:
        return (self - other).sqnorm2()

    def weightedsqnorm(self, weight: Any) -> Any:
        """The squared norm with one weight, D weights, or a positive definite D x D matrix."""
        weight = self._lazy(weight)
        if weight.node.dim in (1, self.node.dim):
            return (weight * self._apply("Square")).sum(-1)
        return self.symsqnorm(weight)

    def symsqnorm(self, matrix: Any) -> Any:
        """x A x of parameters A, D x D, positive definite."""
        matrix = self._lazy(matrix)
        self._require_matrix("SymSqNorm", matrix, self.node.dim**2)
        factor = matrices.root(matrix.node, self.xp, self._like())
        if factor is None:
            raise NotImplementedError(
                "SymSqNorm: the matrix must be of parameters and positive definite. Received "
                "another one"
            )
        return self.of(factor, matrix).matvecmult(self).sqnorm2()

    def _like(self) -> Any:
        return next((leaf.value for leaf in self._arrays()), None)

    @staticmethod
    def _require_matrix(name: str, matrix: Any, multiple: int) -> None:
        if multiple == 0 or matrix.node.dim % multiple:
            raise ValueError(
                f"{name}: the matrix must have a multiple of {multiple} entries. Received "
                f"{matrix.node.dim}"
            )

    def matvecmult(self, other: Any) -> Any:
        """The product of this matrix, by rows, with a vector of parameters or of one side, or with
        sums of such vectors times numbers."""
        return self._mapped("MatVecMult", self, self._lazy(other), False)

    def vecmatmult(self, other: Any) -> Any:
        """The product of this vector with a matrix, by rows."""
        return self._mapped("VecMatMult", self._lazy(other), self, True)

    def _mapped(self, name: str, matrix: Any, vector: Any, is_transposed: bool) -> Any:
        self._require_matrix(name, matrix, vector.node.dim)
        like = next(one._like() for one in (vector, matrix) if one._like() is not None)
        node = matrices.mapped(vector.node, matrix.node, is_transposed, self.xp, like)
        if node is None:
            raise NotImplementedError(
                f"{name}: it is offered where matrix and vector are of one side, and for a matrix "
                f"of parameters with sums of vectors of one side. Received others"
            )
        return self.of(node, matrix, vector)

    def weightedsqdist(self, other: Any, weight: Any) -> Any:
        return (self - other).weightedsqnorm(weight)

    # Components ----------------------------------------------------------------------------------

    def elem(self, k: int) -> Any:
        return self.extract(k, 1)

    def extract(self, first: int, dim: int) -> Any:
        if not 0 <= first < first + dim <= self.node.dim:
            raise ValueError(
                f"extract: the components must lie within the {self.node.dim} that there are. "
                f"Received {first} to {first + dim - 1}"
            )
        return self.of(extract(self.node, first, dim), self)

    def __getitem__(self, key: Any) -> Any:
        key = key if isinstance(key, tuple) else (key,)
        last = key[-1]
        is_last = key[0] is Ellipsis or len(key) == len(self._shape)
        others = [part for part in key[:-1] if part is not Ellipsis and part != slice(None)]
        if not is_last or others or len(key) < 2:
            raise NotImplementedError(
                f"LazyTensor: components of the last axis are offered, as x[..., 2]. Received {key}"
            )
        if isinstance(last, slice):
            first, end, step = last.indices(self.node.dim)
            if step == 1:
                return self.extract(first, end - first)
        elif isinstance(last, int):
            return self.elem(last)
        raise NotImplementedError(f"LazyTensor: a slice must have the step 1. Received {last}")

    def concat(self, other: Any) -> Any:
        other = self._lazy(other)
        parts = [
            part for node in (self.node, other.node)
            for part in (node.arguments if node.op == "Concat" else (node,))
        ]  # fmt: skip
        node = Node("Concat", tuple(parts), self.node.dim + other.node.dim)
        return self.of(node, self, other)

    @classmethod
    def concatenate(cls, tensors: Any, axis: int = -1) -> Any:
        if axis not in (-1, len(tensors[0]._shape) - 1):
            raise ValueError(f"concatenate: axis must be the last one. Received {axis}")
        first, *rest = tensors
        for other in rest:
            first = first.concat(other)
        return first

    @classmethod
    def cat(cls, tensors: Any, dim: int = -1) -> Any:
        return cls.concatenate(tensors, dim)

    def tensorprod(self, other: Any) -> Any:
        """All products of components, by rows."""
        other = self._lazy(other)
        return self.of(outer(self.node, other.node), self, other)

    def one_hot(self, dim: int) -> Any:
        """A vector of zeros, with 1 at the component of this number."""
        self._require_number("one_hot")
        whole = Node("Round", (self.node,))
        parts = [Node("Equal", (whole, Node("literal", value=str(k)))) for k in range(dim)]
        return self.of(parts[0] if dim == 1 else Node("Concat", tuple(parts), dim), self)

    def _place(self, name: str) -> Any:
        if self.node.dim > _MOST_PLACES:
            raise NotImplementedError(
                f"LazyTensor: the index of a component is offered for {_MOST_PLACES} features at "
                f"most. Received {self.node.dim}"
            )
        return self.of(place_of(name, self.node), self)

    @property
    def T(self) -> Any:
        made = self.of(transposed(self.node))
        if self.ranges is not None:
            made.ranges = (*self.ranges[3:], *self.ranges[:3])
        return made

    def t(self) -> Any:
        return self.T

    # Reductions ----------------------------------------------------------------------------------

    def _request(
        self, axis: int | None, dim: int | None, options: dict[str, Any], *others: Any
    ) -> sums.Request:
        ranges = options.pop("ranges", self.ranges)
        for name in options:
            if name not in _IGNORED:
                raise TypeError(f"LazyTensor: there is no option {name!r} of a reduction")
        axis = dim if axis is None else axis
        whole = self.of(Node("Concat", tuple(o.node for o in (self, *others)), 1), self, *others)
        place = None if axis is None else axis - len(self._batch())
        place = axis + 3 if axis is not None and axis < 0 else place
        if place not in (0, 1):
            raise ValueError(
                "LazyTensor: a reduction over points needs axis (or dim), the number of batch axes "
                f"plus 0 for i or 1 for j. Received {axis}"
            )
        arrays = [leaf.value for leaf in whole._arrays() if leaf.category != PARAMETER]
        if not arrays:
            raise ValueError(
                "LazyTensor: a reduction over points needs variables of i or j. Received none"
            )
        rows, columns = whole._sizes()
        return sums.Request(place, (rows, columns), arrays[0], self.xp, ranges)

    def _of_features(self, axis: int, dim: int | None) -> bool:
        axis = axis if dim is None else dim
        return axis in (-1, len(self._shape) - 1)

    def _over_features(self, name: str) -> Any:
        return self._apply(name, dim=1) if self.node.dim > 1 else self

    def _over_points(self, name: str, axis: int | None, dim: int | None, options: Any) -> Any:
        request = self._request(axis, dim, options)
        found = sums.by_components(
            self.node, lambda node: sums.reduced(node, name, request), self.xp
        )
        return found

    def sum(self, axis: int = -1, dim: int | None = None, **options: Any) -> Any:
        if self._of_features(axis, dim):
            return self._over_features("Sum")
        return self.sum_reduction(axis, dim, **options)

    def sum_reduction(self, axis: Any = None, dim: Any = None, **options: Any) -> Any:
        axis = axis if dim is None else dim
        return sums.summed(self.node, request=self._request(axis, None, options))[0]

    def min(self, axis: int = -1, dim: int | None = None, **options: Any) -> Any:
        if self._of_features(axis, dim):
            return self._over_features("Min")
        return self._over_points("min", axis if dim is None else dim, None, options)

    def max(self, axis: int = -1, dim: int | None = None, **options: Any) -> Any:
        if self._of_features(axis, dim):
            return self._over_features("Max")
        return self._over_points("max", axis if dim is None else dim, None, options)

    def argmin(self, axis: int = -1, dim: int | None = None, **options: Any) -> Any:
        if self._of_features(axis, dim):
            return self._place("Smaller")
        return self._over_points("argmin", axis if dim is None else dim, None, options)

    def argmax(self, axis: int = -1, dim: int | None = None, **options: Any) -> Any:
        if self._of_features(axis, dim):
            return self._place("Larger")
        return self._over_points("argmax", axis if dim is None else dim, None, options)

    def min_argmin(self, axis: Any = None, dim: Any = None, **options: Any) -> Any:
        return self.Kmin_argKmin(1, axis, dim, **options)

    def max_argmax(self, axis: Any = None, dim: Any = None, **options: Any) -> Any:
        values, indices = (-self).min_argmin(axis, dim, **options)
        return -values, indices

    def Kmin_argKmin(self, K: int, axis: Any = None, dim: Any = None, **options: Any) -> Any:
        self._require_number("Kmin")
        return sums.nearest(self.node, K, self._request(axis, dim, options))

    def Kmin(self, K: int, axis: Any = None, dim: Any = None, **options: Any) -> Any:
        return self.Kmin_argKmin(K, axis, dim, **options)[0]

    def argKmin(self, K: int, axis: Any = None, dim: Any = None, **options: Any) -> Any:
        return self.Kmin_argKmin(K, axis, dim, **options)[1]

    def logsumexp(
        self, axis: Any = None, dim: Any = None, weight: Any = None, **options: Any
    ) -> Any:
        if weight is None:
            return self._over_points("logsumexp", axis, dim, options)
        self._require_number("logsumexp")
        weight = self._lazy(weight)
        request = self._request(axis, dim, options, weight)
        whole = sums.reduced(self.node, "logsumexp", request)[..., None]
        return whole + self.xp.log(sums.softmax(self.node, weight.node, request))

    def sumsoftmaxweight(
        self, weight: Any, axis: Any = None, dim: Any = None, **options: Any
    ) -> Any:
        self._require_number("sumsoftmaxweight")
        weight = self._lazy(weight)
        request = self._request(axis, dim, options, weight)
        return sums.softmax(self.node, weight.node, request)

    def _require_number(self, name: str) -> None:
        if self.node.dim != 1:
            raise NotImplementedError(
                f"{name}: it is offered for numbers of pairs, of dimension 1. Received "
                f"{self.node.dim}"
            )

    min_reduction, max_reduction = min, max
    argmin_reduction, argmax_reduction = argmin, argmax
    min_argmin_reduction, max_argmax_reduction = min_argmin, max_argmax
    Kmin_reduction, argKmin_reduction, Kmin_argKmin_reduction = Kmin, argKmin, Kmin_argKmin
    logsumexp_reduction, sumsoftmaxweight_reduction = logsumexp, sumsoftmaxweight

    # Products and solutions ----------------------------------------------------------------------

    def __matmul__(self, v: Any, **options: Any) -> Any:
        self._require_number("@")
        request = self._request(len(self._batch()) + 1, None, options)
        return sums.product(self.node, v, request)

    matvec = __matmul__

    def __rmatmul__(self, v: Any) -> Any:
        if v.ndim == 1:
            return self.T @ v
        return self.xp.swapaxes(self.T @ self.xp.swapaxes(v, -1, -2), -1, -2)

    def rmatvec(self, v: Any) -> Any:
        return self.T @ v

    def solve(self, other: Any, var: Any = None, alpha: float = 1e-10, **options: Any) -> Any:
        """(K + alpha) a = other, of a symmetric positive definite K of the same points."""
        if var is not None:
            raise NotImplementedError("solve: var is not offered. Received one")
        self._require_number("solve")
        eps = options.pop("eps", 1e-6)
        request = self._request(len(self._batch()) + 1, None, options)
        b = other.node.value if isinstance(other, GenericLazyTensor) else other
        solved = operator(self.node, request, alpha)
        return mc.linalg.cg(solved, b, tol=eps)


def _is(value: Any, number: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == number


def _unary(name: str) -> Any:
    def method(self: GenericLazyTensor) -> Any:
        return self._apply(name)

    method.__name__ = name.lower()
    method.__doc__ = f"KeOps' {name}, feature by feature."
    return method


for _name, _method in {
    "exp": "Exp", "log": "Log", "xlogx": "XLogX", "sin": "Sin", "cos": "Cos", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinxdivx": "SinXDivX", "abs": "Abs", "sign": "Sign",
    "step": "Step", "relu": "ReLU", "sqrt": "Sqrt", "rsqrt": "Rsqrt", "inv": "Inv",
    "square": "Square",
}.items():  # fmt: skip
    setattr(GenericLazyTensor, _name, _unary(_method))


def _refusing(name: str) -> Any:
    def method(self: GenericLazyTensor, *arguments: Any, **options: Any) -> Any:
        raise refused(name)

    method.__doc__ = f"Refused: {REFUSED[name]}."
    return method


for _name, _method in {
    "keops_tensordot": "TensorDot", "keops_kron": "Kron",
    "bspline": "BSpline", "grad": "Grad", "diff": "Diff", "grad_matrix": "GradMatrix",
    "divergence": "Divergence", "laplacian": "Laplacian", "real2complex": "Real2Complex",
    "real": "Real", "imag": "Imag", "angle": "Angle", "conj": "Conj",
}.items():  # fmt: skip
    setattr(GenericLazyTensor, _name, _refusing(_method))
