"""mercer.linalg.KernelOperator for points of JAX: a pytree, whose products JAX traces."""

from __future__ import annotations

import operator as _operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mercer
from mercer import _linalg_tangents as moves
from mercer import _mercer
from mercer._derived import leaves
from mercer._mixed import require_one_library
from mercer.errors import DtypeError

_VERB = "KernelOperator"
_DIAGONAL = 64  # points of which all pairs are made for their diagonal


def check_amounts(verb: str, name: str, values: Any, shape: tuple[int, ...]) -> None:
    """A number or an array of that shape, from 0 on and finite where the values are known."""
    if values is None:
        return
    if np.shape(values) not in ((), shape):
        raise ValueError(
            f"{verb}: {name} must be a number or have shape {shape}. Received {np.shape(values)}"
        )
    if isinstance(values, jax.core.Tracer):
        return
    known = np.asarray(values)
    if not ((known >= 0) & np.isfinite(known)).all():
        raise ValueError(f"{verb}: {name} must be from 0 on and finite. Received {values}")


def _root(weights: Any) -> Any:
    """The square root with the derivative 0 at 0, where it has none: such a point is held."""
    live = weights > 0
    return jnp.where(live, jnp.sqrt(jnp.where(live, weights, 1)), 0)


def matmul(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


@jax.tree_util.register_pytree_node_class
class KernelOperator:
    """The symmetric matrix diag(s) f(x_m, x_n) diag(s) + diag(ridge), s the roots of the weights,
    of points [n, K] of JAX, which is never stored. Arguments and parts: those of the compiled
    class."""

    __array_ufunc__ = None  # arrays of NumPy leave v @ a to this class

    def __init__(
        self, f: Any, x: Any, *, ridge: Any = 0.0, weights: Any = None, w: Any = None,
        row: Any = None, col: Any = None, **params: Any,
    ) -> None:  # fmt: skip
        params = dict(params)
        self._f = str(_mercer.formula_for(f, "kernel_product", w is not None, params))
        one = {n: np.ones(1, x.dtype) for n, v in (("row", row), ("col", col)) if v is not None}
        if x.ndim == 2:  # an operator of one point checks formula and parameters
            numbers = {n: 1.0 if hasattr(v, "dtype") else v for n, v in params.items()}
            known: dict[str, Any] = {} if w is None else {"w": np.ones(x.shape[1], x.dtype)}
            known |= {"ridge": ridge} if isinstance(ridge, (int, float)) else {}
            point = np.zeros((1, x.shape[1]), x.dtype)
            _mercer.KernelOperator(self._f, point, **one, **known, **numbers)
        if x.ndim != 2:
            raise ValueError(f"{_VERB}: x must have the shape [n, K]. Received {tuple(x.shape)}")
        if row is not col:
            raise ValueError(
                f"{_VERB}: row and col must be one array, since the matrix is symmetric. "
                f"Received {type(row)} and {type(col)}"
            )
        sides = {"weights": weights, "w": w, "row": row}
        require_one_library(_VERB, {"x": x, "ridge": ridge, **sides, **params})
        for name, values in (("ridge", ridge), ("weights", weights)):
            check_amounts(_VERB, name, values, (x.shape[0],))
        self.points, self.ridge = x, ridge
        self._number = ridge if isinstance(ridge, (int, float)) else None
        self._sides = {name: value for name, value in sides.items() if value is not None}
        self._params = {n: v for n, v in params.items() if hasattr(v, "dtype")}
        # Numbers are a part of the program that JAX compiles.
        self._numbers = {n: v for n, v in params.items() if not hasattr(v, "dtype")}

    # ---- What JAX passes through its transforms. ------------------------------------------------

    def tree_flatten(self) -> tuple[tuple, Any]:
        ridge = self.ridge if self._number is None else None
        arrays = (self.points, ridge, self._sides, self._params)
        return arrays, (self._f, self._number, tuple(self._numbers.items()))

    @classmethod
    def tree_unflatten(cls, form: Any, arrays: tuple) -> KernelOperator:
        made = object.__new__(cls)
        made._f, made._number, numbers = form
        made.points, ridge, made._sides, made._params = arrays
        made.ridge = ridge if made._number is None else made._number
        made._numbers = dict(numbers)
        return made

    # ---- The matrix. ----------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        return (self.points.shape[0],) * 2

    @property
    def dtype(self) -> Any:
        return self.points.dtype

    @property
    def device(self) -> Any:
        return self.points.device

    @property
    def weights(self) -> Any:
        return self._sides.get("weights")

    @property
    def T(self) -> KernelOperator:
        return self

    @property
    def reads_indices(self) -> bool:
        return not leaves(self._f).isdisjoint("ij")

    def _options(self, rows: Any = None) -> dict[str, Any]:
        """The keywords of a verb whose rows are some of the points."""
        row = self._sides.get("row")
        sides = {} if row is None else {"row": row if rows is None else row[rows], "col": row}
        if "w" in self._sides:
            sides["w"] = self._sides["w"]
        return {**sides, **self._params, **self._numbers}

    def _scaled(self, columns: Any, rows: Any = None) -> Any:
        """diag(s) columns."""
        if self.weights is None:
            return columns
        roots = _root(self.weights)
        roots = roots if rows is None else roots[rows]
        return _factors(roots, columns) * columns

    def __matmul__(self, v: Any) -> Any:
        """The product with v [n, k] or [n] of JAX, of the dtype of the points."""
        _check_columns(_VERB, "v", v, self)
        return self.kernel_product(v) + _factors(jnp.asarray(self.ridge, self.dtype), v) * v

    def __rmatmul__(self, v: Any) -> Any:
        n = self.shape[0]
        if not isinstance(v, jax.Array):
            raise ValueError(f"{_VERB}: v on the left must be an array of JAX. Received {type(v)}")
        if v.ndim not in (1, 2) or v.shape[-1] != n:
            raise ValueError(
                f"{_VERB}: v on the left must have the shape [k, n] or [n], n = {n}. "
                f"Received {tuple(v.shape)}"
            )
        return (self @ v.T).T

    def kernel_product(self, v: Any) -> Any:
        """Without ridges."""
        given = self._scaled(v)
        found = mercer.kernel_product(self._f, self.points, None, given, **self._options())
        return self._scaled(found)

    def kernel_rows(self, rows: Any) -> Any:
        """The matrix [r, n] of these points, an array of whole numbers, without ridges."""
        if self.reads_indices:  # the matrix is symmetric, and products know their indices
            return self.kernel_product(jax.nn.one_hot(rows, self.shape[0], dtype=self.dtype).T).T
        found = mercer.kernel_matrix(self._f, self.points[rows], self.points, **self._options(rows))
        return self._scaled(self._scaled(found, rows).T).T

    def product_of_rows(self, rows: Any, v: Any) -> Any:
        """Some rows of the product with v [n, k], without ridges."""
        options, given = self._options(rows), self._scaled(v)
        found = mercer.kernel_product(self._f, self.points[rows], self.points, given, **options)
        return self._scaled(found, rows)

    def square(self, rows: Any) -> Any:
        """The matrix of some points, without ridges."""
        options = self._options(rows)
        if "col" in options:
            options["col"] = options["row"]
        found = mercer.kernel_matrix(self._f, self.points[rows], **options)
        return self._scaled(self._scaled(found, rows).T, rows)

    def kernel_diagonal(self) -> Any:
        """Without ridges: from all pairs of a few points."""
        if self.reads_indices:
            raise NotImplementedError(
                f"{_VERB}: diagonal is not offered for formulas that read indices. "
                f"Received {self._f}"
            )
        n = self.shape[0]
        size = min(_DIAGONAL, max(n, 1))
        count = -(-n // size)
        rows = jnp.minimum(jnp.arange(count * size), n - 1).reshape(count, size)
        given, options = self.points[rows], self._options(rows)
        if "col" in options:
            options["col"] = options["row"]
        found = mercer.pairwise(self._f, given, given, **_led(options, self._params))
        found = jnp.diagonal(found, 0, -2, -1).reshape(-1)[:n]
        return self._scaled(self._scaled(found))

    def diagonal(self) -> Any:
        """The diagonal [n], ridges and weights included."""
        return self.kernel_diagonal() + jnp.asarray(self.ridge, self.dtype)

    def rows(self, i: Any) -> Any:
        """Rows of the matrix: [n] for a whole number i, [r, n] for a slice, a list or an array of r
        of them. What JAX traces cannot be looked at: rows that are not there are NaN."""
        n = self.shape[0]
        rows, single = _places(i, n)
        is_there = (rows >= -n) & (rows < n)
        rows = jnp.where(is_there, rows % max(n, 1), 0)
        ridge = jnp.broadcast_to(jnp.asarray(self.ridge, self.dtype), (n,))
        found = self.kernel_rows(rows)
        found = found.at[jnp.arange(len(rows)), rows].add(ridge[rows])
        found = jnp.where(is_there[:, None], found, jnp.nan)
        return found[0] if single else found


def _led(options: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of one number as those of every item of a batch."""
    return {**options, **{name: jnp.reshape(value, ()) for name, value in params.items()}}


def _factors(values: Any, v: Any) -> Any:
    """Numbers of points, [n], as factors of v [n, k] or [n]."""
    return values[:, None] if v.ndim > values.ndim > 0 else values


def _check_columns(verb: str, name: str, v: Any, a: Any) -> None:
    n, library = a.shape[0], "jax"
    if not isinstance(v, jax.Array):
        raise ValueError(
            f"{verb}: {name} must come from the library of the points, {library}. "
            f"Received {type(v)}"
        )
    if v.ndim not in (1, 2) or v.shape[0] != n:
        raise ValueError(
            f"{verb}: {name} must have the shape [n, k] or [n], n = {n}. Received {tuple(v.shape)}"
        )
    if v.dtype != a.dtype:
        raise DtypeError(f"{verb}: {name} must be {a.dtype}. Received {v.dtype}")


def _places(i: Any, n: int) -> tuple[Any, bool]:
    """Whole numbers as an array [r], and whether there was one without an axis."""
    if isinstance(i, slice):
        return jnp.arange(*i.indices(n)), False
    if isinstance(i, jax.core.Tracer):
        if not jnp.issubdtype(i.dtype, jnp.integer) or i.ndim > 1:
            raise TypeError(f"{_VERB}: rows are whole numbers. Received {i.dtype} {i.shape}")
        return jnp.atleast_1d(i), i.ndim == 0
    single = np.ndim(i) == 0
    given = [i] if single else i.tolist() if hasattr(i, "tolist") else list(i)
    found = []
    for value in given:
        if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
            raise TypeError(f"{_VERB}: rows are whole numbers. Received {value!r}")
        found.append(_operator.index(value))
    for value in found:
        if not -n <= value < n:
            raise IndexError(f"{_VERB}: rows must be from {-n} to {n - 1}. Received {value}")
    return jnp.asarray(found, int).reshape(-1), single


class Matrix:
    """A stored matrix [n, n], with the parts of an operator that the methods ask for."""

    reads_indices = False

    def __init__(self, a: Any, ridge: Any = 0.0) -> None:
        self.a, self.ridge, self.shape, self.dtype = moves.symmetric(a), ridge, a.shape, a.dtype

    def __matmul__(self, v: Any) -> Any:
        return matmul(self.a, v)

    def kernel_product(self, v: Any) -> Any:
        return self @ v - self.ridge * v

    def kernel_rows(self, rows: Any) -> Any:
        return self.a[rows].at[jnp.arange(len(rows)), rows].add(-self.ridge)

    def kernel_diagonal(self) -> Any:
        return jnp.diagonal(self.a) - self.ridge


def check_matrix(verb: str, a: Any) -> None:
    """An operator, or a matrix."""
    if isinstance(a, KernelOperator):
        return
    if not isinstance(a, jax.Array) or a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(
            f"{verb}: a must be a matrix [n, n] of jax or a KernelOperator of its points. "
            f"Received {tuple(a.shape) if isinstance(a, jax.Array) else type(a)}"
        )
    if a.dtype not in (jnp.float32, jnp.float64):
        raise DtypeError(f"{verb}: a must be float32 or float64. Received {a.dtype}")


def taken(a: Any, ridge: Any = 0.0) -> Any:
    return a if isinstance(a, KernelOperator) else Matrix(a, ridge)


def is_known(*values: Any) -> bool:
    """Whether there are numbers to look at, which there are not where JAX traces."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def double(array: Any) -> Any:
    """The array in the dtype of sums: float64, where JAX has it."""
    return array.astype(jnp.float64) if jax.config.jax_enable_x64 else array
