"""mercer.linalg.KernelOperator and cg for arrays of JAX: a loop of XLA's around kernel_product.

The solution is that of jax.lax.custom_linear_solve, so that derivatives of every order, by all that
the operator is made of, are further solves and those of kernel_product. JAX cannot raise from what
it compiles: columns that fail are NaN there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mercer
from mercer import _linalg_tangents as moves
from mercer import _mercer
from mercer.errors import DtypeError, LinAlgError

_GAIN = 0.75  # a restart must take the residual to that part of the last one


def _check_amounts(verb: str, name: str, values: Any, shape: tuple[int, ...]) -> None:
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


class KernelOperator:
    """The symmetric matrix diag(s) f(x_m, x_n) diag(s) + diag(ridge), s the roots of the weights,
    of points [n, K] of JAX, which is never stored. Arguments: those of the compiled class."""

    def __init__(
        self, f: Any, x: Any, *, ridge: Any = 0.0, weights: Any = None, w: Any = None,
        row: Any = None, col: Any = None, **params: Any,
    ) -> None:  # fmt: skip
        self._params = dict(params)
        self._f = _mercer.formula_for(f, "kernel_product", w is not None, self._params)
        one = {n: np.ones(1, x.dtype) for n, v in (("row", row), ("col", col)) if v is not None}
        if x.ndim == 2:  # an operator of one point checks formula and parameters
            numbers = {n: 1.0 if hasattr(v, "dtype") else v for n, v in self._params.items()}
            known = {} if w is None else {"w": np.ones(x.shape[1], x.dtype)}
            known |= {"ridge": ridge} if isinstance(ridge, (int, float)) else {}
            point = np.zeros((1, x.shape[1]), x.dtype)
            _mercer.KernelOperator(self._f, point, **one, **known, **numbers)
        if x.ndim != 2:
            raise ValueError(
                f"KernelOperator: x must have the shape [n, K]. Received {tuple(x.shape)}"
            )
        if row is not col:
            raise ValueError(
                f"KernelOperator: row and col must be one array, since the matrix is symmetric. "
                f"Received {type(row)} and {type(col)}"
            )
        for name, values in (("ridge", ridge), ("weights", weights)):
            _check_amounts("KernelOperator", name, values, (x.shape[0],))
        self.x, self.ridge, self.weights = x, ridge, weights
        sides = {"w": w, "row": row, "col": col}
        self._sides = {name: value for name, value in sides.items() if value is not None}
        self.shape, self.dtype = (x.shape[0],) * 2, x.dtype

    def __matmul__(self, v: Any) -> Any:
        def factors(values: Any) -> Any:
            values = jnp.asarray(values, self.dtype)
            return values[:, None] if v.ndim > values.ndim > 0 else values

        roots = None if self.weights is None else _root(factors(self.weights))
        given = v if roots is None else roots * v
        found = mercer.kernel_product(self._f, self.x, None, given, **self._sides, **self._params)
        return (found if roots is None else roots * found) + factors(self.ridge) * v

    def __rmatmul__(self, v: Any) -> Any:
        shape = getattr(v, "shape", ())
        if len(shape) not in (1, 2) or shape[-1] != self.shape[0]:
            raise ValueError(
                f"KernelOperator: v on the left must be an array of the shape [k, n] or [n], "
                f"n = {self.shape[0]}. Received {shape or type(v)}"
            )
        return self @ v if v.ndim == 1 else (self @ v.T).T


def cg(
    a: Any, b: Any, *, ridge: Any = None, preconditioner: Any = None, tol: float | None = None,
    max_iter: int | None = None, x0: Any = None, out: Any = None, check: bool = True,
) -> Any:  # fmt: skip
    for name, value in (("preconditioner", preconditioner), ("x0", x0), ("out", out)):
        if value is not None:
            raise NotImplementedError(f"cg: {name} is not offered for arrays of jax. Received one")
    n = a.shape[-1]
    if a.ndim != 2 if isinstance(a, jax.Array) else not isinstance(a, KernelOperator):
        raise ValueError("cg: a must be a matrix [n, n] of jax or a KernelOperator of its points")
    if not isinstance(b, jax.Array) or b.ndim not in (1, 2) or b.shape[0] != n:
        raise ValueError(
            f"cg: b must be an array of jax of the shape [n, k] or [n], n = {n} as in a. "
            f"Received {getattr(b, 'shape', type(b))}"
        )
    if b.dtype != a.dtype:
        raise DtypeError(f"cg: b must be {a.dtype}, the dtype of a. Received {b.dtype}")
    single = jnp.finfo(b.dtype).bits == 32
    tolerance = (1e-5 if single else 1e-10) if tol is None else tol
    if not 0 < tolerance < 1:
        raise ValueError(f"cg: tol must be from 0 to 1. Received {tol}")
    most = min(10 * max(n, 1), 10000) if max_iter is None else max_iter
    matrix = moves.symmetric(a) if isinstance(a, jax.Array) else a

    def multiply(v: Any) -> Any:
        if isinstance(matrix, KernelOperator):
            found = matrix @ v
        else:
            found = jnp.matmul(matrix, v, precision=jax.lax.Precision.HIGHEST)
        return found if ridge is None else found + jnp.asarray(ridge, v.dtype) * v

    def solve(product: Callable[[Any], Any], right: Any) -> Any:
        x, info, count = _iterate(product, right, tolerance, most)
        bad = info != 0 if check else info == -1
        return jnp.where(bad, jnp.nan, x), (info, count)

    _check_amounts("cg", "ridge", ridge, b.shape[1:])
    columns = b[:, None] if b.ndim == 1 else b
    x, (info, count) = jax.lax.custom_linear_solve(
        multiply, columns, solve, symmetric=True, has_aux=True
    )
    if b.ndim == 1:
        x, info, count = x[:, 0], info[0], count[0]
    if not check:
        return x, info, count
    if not isinstance(info, jax.core.Tracer) and bool((info != 0).any()):
        raise LinAlgError(
            f"cg: a must be positive definite and residuals at most {tolerance:.3g} of b. Received "
            f"info {info.tolist()}: -1 not finite or not positive definite, -2 stagnated, else "
            f"products taken; a larger ridge, tol or max_iter helps"
        )
    return x


def _iterate(multiply: Callable[[Any], Any], b: Any, tol: float, most: int) -> tuple[Any, Any, Any]:
    """x, info and products of each column. They share the products, and each ends on its own: by a
    residual that was measured, after the one of the recurrence has promised it."""

    def dot(u: Any, v: Any) -> Any:
        return (u * v).sum(0)

    bound = tol**2 * dot(b, b)
    nobody = jnp.zeros(b.shape[1:], bool)

    def step(state: Any) -> Any:
        x, r, p, square, live, failed, count = state
        q = multiply(p)
        curvature = dot(p, q)
        bad = live & ~(curvature > 0)
        goes = live & ~bad
        alpha = jnp.where(goes, square / jnp.where(goes, curvature, 1), 0)
        x, r = x + alpha * p, r - alpha * q
        fresh = jnp.where(goes, dot(r, r), square)
        p = r + jnp.where(goes, fresh / jnp.where(goes, square, 1), 0) * p
        count = count + live
        return x, r, p, fresh, goes & (fresh > bound) & (count < most), failed | bad, count

    def measured(state: Any) -> Any:
        x, before, live, failed, stagnated, count = state
        r = b - multiply(x)
        square = dot(r, r)
        ends = (square <= bound) | failed | (count >= most)
        stuck = live & ~ends & ~(square < _GAIN**2 * before)
        live = live & ~ends & ~stuck
        inner = (x, r, r, square, live, failed, count)
        x, _, _, _, _, failed, count = jax.lax.while_loop(lambda s: s[4].any(), step, inner)
        return x, square, live, failed, stagnated | stuck, count

    start = (
        jnp.zeros_like(b), jnp.full(b.shape[1:], jnp.inf, b.dtype), ~nobody, nobody, nobody,
        jnp.zeros(b.shape[1:], int),
    )  # fmt: skip
    x, square, _, failed, stagnated, count = jax.lax.while_loop(
        lambda s: s[2].any(), measured, start
    )
    info = jnp.where(square <= bound, 0, jnp.where(stagnated, -2, count))
    return x, jnp.where(failed | ~jnp.isfinite(square), -1, info), count
