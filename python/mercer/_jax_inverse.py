"""Preconditioners of mercer.linalg for matrices and operators of JAX, as programs of fixed shapes.

They work eagerly and under every transform. Rows that are not taken are zeros, and what fails where
nothing can be raised is NaN. No derivative goes through them.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mercer._jax_operator import KernelOperator, check_matrix, double, is_known, matmul, taken
from mercer.errors import DtypeError, LinAlgError

_ROUNDING = 32  # units of rounding of U that bound what P divides by


@jax.tree_util.register_pytree_node_class
class Preconditioner:
    """P = U diag(l) U^T + ridge with orthonormal columns U; that of nystrom is
    (U diag(l) U^T + ridge + least (1 - U U^T)) / (least + ridge), least being its smallest l."""

    def __init__(self, columns: Any, values: Any, ridge: Any, least: Any, is_relative: bool):
        self._columns, self._values = columns, values
        self._ridge, self._least, self._is_relative = ridge, least, is_relative

    def tree_flatten(self) -> tuple[tuple, Any]:
        return (self._columns, self._values, self._ridge, self._least), self._is_relative

    @classmethod
    def tree_unflatten(cls, form: Any, arrays: tuple) -> Preconditioner:
        columns, values, ridge, least = arrays
        return cls(columns, values, ridge, least, form)

    @property
    def shape(self) -> tuple[int, int]:
        return (self._columns.shape[0],) * 2

    @property
    def dtype(self) -> Any:
        return self._columns.dtype

    @property
    def rank(self) -> int:
        return self._columns.shape[1]

    @property
    def ridge(self) -> Any:
        return self._ridge

    def _spectrum(self) -> tuple[Any, Any]:
        """The eigenvalues along U, [r] or [r, k], over the one elsewhere; and that one."""
        ridge = jnp.asarray(self._ridge, self.dtype)
        rest = ridge + self._least
        values = self._values if ridge.ndim == 0 else self._values[:, None]
        most = 1 / (_ROUNDING * jnp.finfo(self.dtype).eps)
        ratios = jnp.where(rest > 0, (values + ridge) / jnp.where(rest > 0, rest, 1), 1)
        base = jnp.ones_like(rest) if self._is_relative else rest
        return jnp.clip(ratios, 1, most), base

    def _multiplied(self, v: Any, ratios: Any, base: Any) -> Any:
        """base (1 + U (ratios - 1) U^T) v."""
        columns = v if v.ndim == 2 else v[:, None]
        factors = ratios - 1 if ratios.ndim == 2 else (ratios - 1)[:, None]
        inner = factors * matmul(self._columns.T, columns)
        found = base * (columns + matmul(self._columns, inner))
        return found.reshape(v.shape)

    def _check(self, v: Any) -> None:
        ridges = jnp.ndim(self._ridge) and len(self._ridge)
        wanted = f"[n, {ridges}]" if ridges else "[n, k] or [n]"
        shape = tuple(v.shape) if isinstance(v, jax.Array) else type(v)
        if not isinstance(v, jax.Array) or v.ndim not in (1, 2) or v.shape[0] != self.shape[0] or (
            ridges and v.shape[1:] != (ridges,)
        ):  # fmt: skip
            raise ValueError(
                f"Preconditioner: v must be an array of jax of the shape {wanted}, n = "
                f"{self.shape[0]}. Received {shape}"
            )
        if v.dtype != self.dtype:
            raise DtypeError(f"Preconditioner: v must be {self.dtype}. Received {v.dtype}")

    def solve(self, v: Any) -> Any:
        """P^-1 v, for v [n] or [n, k]."""
        self._check(v)
        ratios, base = self._spectrum()
        return self._multiplied(v, 1 / ratios, 1 / base)

    def sqrt(self, v: Any) -> Any:
        """P^(1/2) v, by the symmetric root."""
        self._check(v)
        ratios, base = self._spectrum()
        return self._multiplied(v, jnp.sqrt(ratios), jnp.sqrt(base))

    def logdet(self) -> Any:
        """log det P, a number, or one for each ridge."""
        ratios, base = map(double, self._spectrum())
        return self.shape[0] * jnp.log(base) + jnp.log(ratios).sum(0)

    def diagonal(self) -> Any:
        """[n], or [n, k] of a ridge for each column."""
        ratios, base = self._spectrum()
        return base * (1 + matmul(self._columns**2, ratios - 1))

    def with_ridge(self, ridge: Any) -> Preconditioner:
        """P with another ridge, a positive number, or with one for each column, [k]."""
        ridge = jnp.asarray(ridge, self.dtype)
        if ridge.ndim > 1:
            raise ValueError(
                f"Preconditioner: ridge must be a number or have the shape [k]. "
                f"Received {ridge.shape}"
            )
        _check_ridge("Preconditioner", ridge)
        return Preconditioner(
            self._columns, self._values, jax.lax.stop_gradient(ridge), self._least,
            self._is_relative,
        )  # fmt: skip

    def weighted(self, w: Any) -> Preconditioner:
        """P of diag(s) k diag(s) + ridge, s the roots of the weights w [n]."""
        if not isinstance(w, jax.Array) or w.shape != self.shape[:1]:
            raise ValueError(
                f"Preconditioner: w must be an array of jax of the shape {self.shape[:1]}. "
                f"Received {getattr(w, 'shape', type(w))}"
            )
        if is_known(w) and not bool((jnp.isfinite(w) & (w >= 0)).all()):
            raise ValueError("Preconditioner: weights must be from 0 on and finite. Received w")
        w = jax.lax.stop_gradient(w).astype(self.dtype)
        scaled = jnp.sqrt(w)[:, None] * self._columns * jnp.sqrt(self._values)
        columns, values = _principal(scaled)
        least = values.min(initial=jnp.inf) if self._is_relative else self._least
        return Preconditioner(columns, values, self._ridge, least, self._is_relative)


def _principal(columns: Any) -> tuple[Any, Any]:
    """U with orthonormal columns and l, descending, with U diag(l) U^T = columns columns^T."""
    q, r = jnp.linalg.qr(columns)
    turn, roots, _ = jnp.linalg.svd(r, full_matrices=False)
    return matmul(q, turn), roots**2


def _check_ridge(verb: str, ridge: Any) -> None:
    if is_known(ridge) and not (np.isfinite(ridge) & (np.asarray(ridge) > 0)).all():
        raise ValueError(f"{verb}: ridge must be positive and finite. Received {ridge}")


def _check(verb: str, a: Any, rank: int) -> int:
    """The rank, of at most n."""
    check_matrix(verb, a)
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
        raise TypeError(f"{verb}: rank must be a whole number. Received {rank!r}")
    if rank < 1:
        raise ValueError(f"{verb}: rank must be positive. Received {rank}.")
    return min(int(rank), a.shape[0])


def _ridge_of(verb: str, a: Any, ridge: Any) -> Any:
    """The multiple of the identity in a: an operator's least one where nothing is said."""
    own = a.ridge if isinstance(a, KernelOperator) else 0.0
    found = jnp.min(jnp.asarray(own, a.dtype), initial=jnp.inf) if ridge is None else ridge
    if ridge is not None and jnp.ndim(ridge) > 0:
        raise ValueError(f"{verb}: ridge must be a number. Received {jnp.shape(ridge)}")
    return jnp.asarray(found, a.dtype)


def _empty(a: Any, ridge: Any, is_relative: bool) -> Preconditioner:
    none = jnp.zeros((0, 0), a.dtype)
    return Preconditioner(none, none.reshape(0), ridge, 0.0, is_relative)


def _answered(verb: str, columns: Any, values: Any, ridge: Any, failure: Any, **rest: Any) -> Any:
    """What failed is NaN, or raised where that is known."""
    if is_known(columns, failure):
        if failure == 1:
            raise LinAlgError(f"{verb}: a must be finite. Received NaN or infinity.")
        if failure == 2:
            raise LinAlgError(
                f"{verb}: a without its ridge must be positive semi-definite. Received one that is "
                "not"
            )
        kept = int((values > 0).sum()) if not rest["is_relative"] else len(values)
        columns, values = columns[:, :kept], values[:kept]
    else:
        values = jnp.where(failure == 0, values, jnp.nan)
    return Preconditioner(columns, values, ridge, **rest)


# ---- From rows: pivots are proposed in blocks, and taken one after the other. -------------------


def rpcholesky(
    a: Any, rank: int, *, ridge: Any = None, block: int | str = "auto", seed: int = 0
) -> Preconditioner:
    rank = _check("rpcholesky", a, rank)
    if block != "auto" and (isinstance(block, (bool, str)) or block < 1):
        raise ValueError(f'rpcholesky: block must be positive or "auto". Received {block!r}')
    size = min(max(rank // 8, 16), 128) if block == "auto" else int(block)
    return _by_rows("rpcholesky", a, rank, ridge, size, seed)


def pivoted_cholesky(a: Any, rank: int) -> Preconditioner:
    rank = _check("pivoted_cholesky", a, rank)
    if not isinstance(a, KernelOperator):
        raise TypeError(f"pivoted_cholesky: a must be a KernelOperator. Received {type(a)}")
    return _by_rows("pivoted_cholesky", a, rank, None, min(max(rank // 8, 1), 64), None)


def _by_rows(verb: str, a: Any, rank: int, ridge: Any, block: int, seed: int | None) -> Any:
    if getattr(a, "reads_indices", False):
        raise NotImplementedError(
            f"{verb}: is not offered for formulas that read indices, of whose points the diagonal "
            f"is not known. Received {a._f}; nystrom takes it"
        )
    ridge = _ridge_of(verb, a, ridge)
    _check_ridge(verb, ridge)
    if rank == 0:
        return _empty(a, ridge, False)
    a, ridge = jax.tree.map(jax.lax.stop_gradient, (a, ridge))
    block = max(1, min(block, a.shape[0]))
    columns, values, failure = _rows_taken(a, ridge, seed, rank, block)
    return _answered(verb, columns, values, ridge, failure, least=0.0, is_relative=False)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _rows_taken(a: Any, ridge: Any, seed: Any, rank: int, block: int) -> tuple:
    a = taken(a, ridge)
    n, eps = a.shape[0], jnp.finfo(a.dtype).eps
    left = a.kernel_diagonal()
    largest = left.max(initial=0)
    failure = jnp.where((left < -1e5 * eps * largest).any() | (left.sum() < 0), 2, 0)
    failure = jnp.where(jnp.isfinite(left).all(), failure, 1)

    def goes_on(state: Any) -> Any:
        _, left, count, failure, round_ = state
        rest, bound = (left.max(initial=0), eps * largest) if seed is None else (
            left.sum(), eps * n * largest)  # fmt: skip
        return (count < rank) & (rest > bound) & (failure == 0) & (round_ < 4 * rank + 16)

    def one_round(state: Any) -> Any:
        factor, left, count, failure, round_ = state
        proposed, least = _proposed(left, block, seed, round_)
        rows = a.kernel_rows(proposed) - matmul(factor[:, proposed].T, factor)
        square = (rows[:, proposed] + rows[:, proposed].T) / 2
        least = jnp.maximum(least, eps * largest)
        accepted = _accepted(square, least, rank - count)
        both = accepted[:, None] & accepted
        lower = jnp.linalg.cholesky(jnp.where(both, square, jnp.eye(block, dtype=a.dtype)))
        fresh = jax.lax.linalg.triangular_solve(
            lower, jnp.where(accepted[:, None], rows, 0), left_side=True, lower=True
        )
        fresh = fresh[jnp.argsort(~accepted, stable=True)]
        factor = jax.lax.dynamic_update_slice_in_dim(factor, fresh, count, 0)
        left = left - (fresh**2).sum(0)
        failure = jnp.where((left < -1e5 * eps * largest).any(), 2, failure)
        failure = jnp.where(jnp.isfinite(left).all(), failure, 1)
        left = jnp.maximum(left, 0).at[proposed].min(jnp.where(accepted, 0, jnp.inf))
        return factor, left, count + accepted.sum(), failure, round_ + 1

    start = (jnp.zeros((rank + block, n), a.dtype), left, jnp.zeros((), int), failure,
             jnp.zeros((), int))  # fmt: skip
    factor, *_, failure, _ = jax.lax.while_loop(goes_on, one_round, start)
    return *_principal(factor[:rank].T), failure


def _proposed(left: Any, block: int, seed: Any, round_: Any) -> tuple[Any, Any]:
    """Points, and what must be left of each when its turn comes: of the largest that are left half
    of the largest; of those drawn in proportion a random part of what was."""
    if seed is None:
        found, places = jax.lax.top_k(left, block)
        return places, jnp.broadcast_to(found[0] / 2, found.shape)
    draw, accept = jax.random.split(jax.random.fold_in(jax.random.key(seed), round_))
    sums = jnp.cumsum(double(left))
    at = jax.random.uniform(draw, (block,), sums.dtype) * sums[-1]
    places = jnp.minimum(jnp.searchsorted(sums, at, side="right"), len(left) - 1)
    return places, jax.random.uniform(accept, (block,), left.dtype) * left[places]


def _accepted(square: Any, least: Any, most: Any) -> Any:
    """Which of the block are pivots: elimination, one after the other."""

    def one(i: Any, state: Any) -> Any:
        square, accepted = state
        value = square[i, i]
        takes = (value > least[i]) & (accepted.sum() < most)
        column = jnp.where(takes, square[:, i] / jnp.sqrt(jnp.where(takes, value, 1)), 0)
        return square - column[:, None] * column, accepted.at[i].set(takes)

    start = square, jnp.zeros(len(square), bool)
    return jax.lax.fori_loop(0, len(square), one, start)[1]


# ---- From products with random vectors. ---------------------------------------------------------


def nystrom(a: Any, rank: int, *, ridge: Any = None, seed: int = 0) -> Preconditioner:
    rank = _check("nystrom", a, rank)
    ridge = _ridge_of("nystrom", a, ridge)
    if is_known(ridge) and not (jnp.isfinite(ridge) and ridge >= 0):
        raise ValueError(f"nystrom: ridge must be from 0 on and finite. Received {ridge}")
    if rank == 0:
        return _empty(a, ridge, True)
    a, ridge = jax.tree.map(jax.lax.stop_gradient, (a, ridge))
    columns, values, failure = _sketched(a, ridge, rank, seed)
    least = values.min(initial=jnp.inf)
    return _answered("nystrom", columns, values, ridge, failure, least=least, is_relative=True)


@functools.partial(jax.jit, static_argnums=2)
def _sketched(a: Any, ridge: Any, rank: int, seed: Any) -> tuple:
    a = taken(a, ridge)
    draws = jax.random.normal(jax.random.key(seed), (a.shape[0], rank), a.dtype)
    basis = jnp.linalg.qr(draws)[0]
    products = a.kernel_product(basis)
    core = matmul(basis.T, products)
    core = (core + core.T) / 2
    finite = jnp.isfinite(core).all()
    core = jnp.where(finite, core, jnp.eye(rank, dtype=a.dtype))
    values = jnp.linalg.eigvalsh(core)
    # The shift keeps the factor from failing by rounding; the values below lose it again.
    rounding = jnp.finfo(a.dtype).eps * jnp.maximum(jnp.linalg.norm(core), 8 * rank * ridge)
    failure = jnp.where(values[0] < -1e-2 * jnp.maximum(values[-1], rounding), 2, 0)
    shift = 2 * (rounding + jnp.maximum(0, -values[0]))
    upper = jnp.linalg.cholesky(core + shift * jnp.eye(rank, dtype=a.dtype)).T
    long = jax.lax.linalg.triangular_solve(
        upper, products + shift * basis, left_side=False, lower=False
    )
    columns, squares = _principal(long)
    return columns, jnp.maximum(squares - shift, 0), jnp.where(finite, failure, 1)
