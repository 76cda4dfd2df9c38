"""Regularised kernel systems and who solves them. Newton's steps (`_newton`), rounds of learned
metrics and centres (`_centers`) have the conjugate gradients of `_low_rank`.

A system is (S K S + ridge) a = S b with S = diag(sqrt(weights)); its coefficients are S a, so that
the prediction at x is sum_n f(x, x_n) coef_n, as in scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import mercer as mc
from mercer.linalg._sap import block_of
from mercer.models import _costs, _memory
from mercer.models._arrays import Space
from mercer.models._kernels import FittedKernel
from mercer.models._products import is_shared, operator
from mercer.models._spread import kind_of

SOLVERS = ("auto", "direct", "cg")
#: And with blocks of rows, for which the kernel must be a formula.
ALL_SOLVERS = (*SOLVERS, "sap")
#: Points up to which "auto" leaves what a Cholesky factor would; on devices, has one.
DIRECT = {"cpu": 6000, "cuda": 32768}
#: The residual of float64 for it.
EXACTLY = 1e-12
#: Points beyond which blocks of rows serve tolerances from LOOSE on sooner. Devices make a wide
#: factor soon, and keep it up to so many times as many points.
MANY, LOOSE, MORE_ON_DEVICES = 500_000, 1e-2, 4
#: The residual from which on steps that ended in rounding found nothing.
ALL = 0.999
#: Columns of a preconditioner at most.
MAX_RANK = 4096


@dataclass
class Solution:
    """What a solver found, and how."""

    coef: Any  # [n, k]
    solver: str
    n_iter: int  # products with the matrix, or sweeps over it; 1 for a factorisation
    residual: float  # the largest |b - A a| / |b| of a column, measured
    factor: Any = None  # lower Cholesky factor of S K S + ridge, where "direct" was asked for it
    preconditioner: Any = None
    is_lost: bool = False  # whether rounding is all that steps found


class Buffer:
    """The memory of one matrix, kept for the next of its kind: rounds, folds, bandwidths."""

    def __init__(self) -> None:
        self._flat: Any = None
        self._space: Space | None = None

    def holds(self, space: Space, rows: int, columns: int) -> bool:
        return self._space == space and self._flat.shape[0] >= rows * columns

    def take(self, space: Space, rows: int, columns: int) -> Any:
        if not self.holds(space, rows, columns):
            self._flat = self._space = None
            self._flat, self._space = space.empty(rows * columns), space
        return self._flat[: rows * columns].reshape(rows, columns)


@dataclass
class System:
    """Points x [n, d] as the kernel sees them (or the matrix itself), weights [n] and a ridge.

    The ridge may be an array of NumPy, one for each column of what ``product`` and ``solve`` take.
    """

    kernel: FittedKernel
    x: Any
    space: Space
    ridge: Any
    weights: Any = None
    buffer: Buffer = field(default_factory=Buffer)
    has_centers: bool = True  # whether its estimator has the parameter, which errors then name

    def __post_init__(self) -> None:
        self.kernel.require_symmetric()

    @property
    def n(self) -> int:
        return int(self.x.shape[0])

    def with_ridge(self, ridge: float) -> System:
        return replace(self, ridge=ridge)

    @property
    def scale(self) -> Any:
        """S, [n, 1], or None."""
        return None if self.weights is None else (self.weights**0.5)[:, None]

    def unscaled(self, coef: Any) -> Any:
        """a [n, k] of coefficients S a; 0 in rows of weight 0."""
        s = self.scale
        return coef if s is None else self.space.xp.where(s > 0, coef / (s + (s == 0)), 0 * s)

    def matrix(self, ridge: float | None = None) -> Any:
        """S K S + ridge, [n, n], in the buffer."""
        k = self.kernel.matrix(self.x, out=self.buffer.take(self.space, self.n, self.n))
        if self.weights is not None:
            k *= self.scale
            k *= self.scale[:, 0]
        add_diagonal(k, self.ridge if ridge is None else ridge)
        return k

    def product(self, a: Any) -> Any:
        """(S K S + ridge) a for a [n, k], the matrix never stored."""
        s = self.scale
        inner = a if s is None else s * a
        product = self.space.array(self.kernel.product(self.x, self.x, inner))
        ridge = self.space.array(self.ridge) if self._has_ridges else self.ridge
        return (product if s is None else s * product) + ridge * a

    def operator(self, ridge: float) -> Any:
        """S K S + ridge by products."""
        return operator(
            self.kernel.formula, self.x, ridge=ridge, weights=self.weights, **self.kernel.params
        )

    @property
    def _has_ridges(self) -> bool:
        return isinstance(self.ridge, np.ndarray)

    @property
    def _takes_one_ridge(self) -> bool:
        """Whether the steps are `_low_rank`'s, where the host should wait little."""
        return self.space.on_device and not self._has_ridges

    @property
    def is_shared(self) -> bool:
        """Whether the matrix is known by its products alone."""
        return is_shared(self.x)

    @property
    def is_in_chunks(self) -> bool:
        """Whether points are read by passes alone."""
        return kind_of(self.x) == "dask"

    def solve(
        self,
        b: Any,
        *,
        solver: str = "auto",
        rank: int | str = "auto",
        tol: float = 1e-3,
        max_iter: int | None = None,
        coef0: Any = None,
        keep_factor: bool = False,
        seed: int = 0,
        name: str = "solve",
    ) -> Solution:
        """Coefficients for b [n, k]; coef0: a first guess; name: whose warnings they are."""
        if solver not in ALL_SOLVERS:
            raise ValueError(f"solver must be one of {ALL_SOLVERS}. Received {solver!r}")
        s = self.scale
        b = b if s is None else s * b
        reach, may_turn = self._reach(), solver == "auto" and not self.is_shared
        plan = None
        if solver == "auto":
            fixed = keep_factor or max_iter is not None
            solver, plan = self._chosen(b.shape[1], rank, tol, reach, fixed)
        wanted = tol if plan is None else plan.tol
        # residuals of `_paths` go below float32, but by passes over chunks
        goes_on = solver == "cg" and not self.is_in_chunks and not self._takes_one_ridge
        if reach > tol and not goes_on:
            self._warn_of_float32(reach, tol, name)
        if solver == "direct":
            return self._direct(b, keep_factor, name)
        if may_turn and solver == "cg" and max_iter is None and self.space.on_device:
            max_iter = max(20, self.n // 300)  # cost what a factor does
        x0 = None if coef0 is None else self.unscaled(coef0)
        solution: Solution | None
        if solver == "sap":
            block = min(block_of(self.n), self.n)
            _memory.require_blocks(
                self.n, block, b.shape[1], self.space, name, self.has_centers
            )  # fmt: skip
            solution, converged = self._sap(b, tol, max_iter, x0, seed)
        else:
            self.require_columns(rank, b.shape[1], name)
            solution, converged = self._cg(b, rank, wanted, max_iter, x0, seed, plan)
        if solution is not None and converged:
            return solution
        if solution is None or (may_turn and self.fits()):
            if reach > tol and goes_on:
                self._warn_of_float32(reach, tol, name)
            return self._direct(b, keep_factor, name)
        if solution.is_lost:
            raise self.not_definite()
        warn_unconverged(name, solution, tol)
        return solution

    @property
    def _is_small(self) -> bool:
        """Whether "auto" leaves what a factor would, whoever solves."""
        return self.n <= DIRECT[self.space.device.partition(":")[0]]

    def _chosen(self, columns: int, rank: int | str, tol: float, reach: float,
                fixed: bool) -> tuple[str, _costs.Plan | None]:  # fmt: skip
        """Who begins as "auto", and who looks on and may turn to a factor, unless that is fixed."""
        if self._is_for_blocks(tol):
            return "sap", None
        if self.is_shared:
            return "cg", None
        given = self.kernel.precomputed
        # steps with a float32 matrix that is given end at its rounding, which a factor reaches, too
        fixed |= given and self._is_small and self.space.dtype == "float32"
        if not (fixed or self.space.on_device):
            costs = _costs.Costs(self.n, 0 if given else self.x.shape[1], columns, self.space.dtype,
                                 given, np.size(np.unique(self.ridge)))  # fmt: skip
            if not costs.is_worth_a_try():
                return "direct", None
            if self.fits():
                return "cg", self._plan(costs, rank, tol)
        loses = self.space.on_device and reach > tol and self.fits()
        return "direct" if self._is_small or loses else "cg", None

    def _plan(self, costs: _costs.Costs, rank: int | str, tol: float) -> _costs.Plan:
        from mercer.models import _paths

        least = max(EXACTLY, self._rounding())
        exactly = min(tol, least) if self._is_small else tol
        most = _paths.rank_of(self, rank)
        return _costs.Plan(costs, float(np.min(self.ridge)), exactly, most, rank != "auto")

    def require_matrix(self, name: str) -> None:
        """MemoryError, with what would fit, where the matrix does not."""
        if not self.buffer.holds(self.space, self.n, self.n):
            advice = None if self.has_centers else lambda free: 'solver="cg" stores no matrix'
            needed, what = self._bytes_direct(), 'solver="direct"'
            _memory.require(needed, self.space, what, self.n, name, advice)

    def require_columns(self, rank: int | str, columns: int, name: str) -> None:
        """MemoryError, with what would fit, where a factor and so many columns do not."""
        available, other = _memory.free(self.space), ""
        if self.has_centers and not self.is_shared:
            other = _memory.centers_that_fit(self.n, self.space, available)
        rank = min(rank_of(rank, self.n, self.space), self.n)
        _memory.require_columns(self.n, rank, columns, self.space, name, other)

    def fits(self) -> bool:
        """Whether the matrix takes at most half of the free memory."""
        return 2 * self._bytes_direct() <= _memory.free(self.space)

    def _bytes_direct(self) -> int:
        return self.n * self.n * np.dtype(self.space.dtype).itemsize

    def _direct(self, b: Any, keep_factor: bool, name: str) -> Solution:
        self.require_matrix(name)
        return in_groups(
            self.ridge, b, None, self.space,
            lambda ridge, b, _: self.with_ridge(ridge)._factored(b, keep_factor),
        )  # fmt: skip

    def _factored(self, b: Any, keep_factor: bool) -> Solution:
        from mercer.models import _refined

        x = None if keep_factor else _refined.solve(self, b)
        if x is not None:
            return Solution(self._coef(x), "direct", 1, self._residual(x, b))
        a = self.matrix()
        if keep_factor:
            factor, info = mc.linalg.cholesky(a, overwrite_a=True, check=False)
            x = None if int(info) else mc.linalg.cho_solve(factor, b)
        else:
            factor = None
            x, info = mc.linalg.solve_cholesky(a, b, overwrite_a=True, check=False)
        if int(info):
            raise self.not_definite()
        return Solution(self._coef(x), "direct", 1, self._residual(x, b), factor)

    def _is_for_blocks(self, tol: float) -> bool:
        most = MANY * (MORE_ON_DEVICES if self.space.on_device else 1)
        many = self.n > most and not self.is_shared
        return many and tol >= LOOSE and not self.kernel.precomputed

    def _sap(self, b: Any, tol: float, max_iter: int | None, x0: Any,
             seed: int) -> tuple[Solution, bool]:  # fmt: skip
        if self.kernel.precomputed:
            raise ValueError('solver="sap" needs points. Received kernel="precomputed"')
        met: list[bool] = []

        def sweep(ridge: float, b: Any, x0: Any) -> Solution:
            found, converged = self.with_ridge(ridge)._swept(b, tol, max_iter, x0, seed)
            met.append(converged)
            return found

        return in_groups(self.ridge, b, x0, self.space, sweep), all(met)

    def _swept(self, b: Any, tol: float, max_iter: int | None, x0: Any,
               seed: int) -> tuple[Solution, bool]:  # fmt: skip
        sweeps: dict[str, Any] = {} if max_iter is None else {"max_iter": max_iter}
        x, info, taken = mc.linalg.sap(
            self.operator(self.ridge), b, tol=tol, x0=x0, seed=seed, check=False, **sweeps
        )
        if (info == -1).any():
            raise self.not_definite()
        residual = self._residual(x, b)
        return Solution(self._coef(x), "sap", int(taken.max(initial=0)), residual), not info.any()

    def _cg(self, b: Any, rank: Any, tol: float, max_iter: int | None, x0: Any, seed: int,
            plan: _costs.Plan | None) -> tuple[Solution | None, bool]:  # fmt: skip
        max_iter = max_iter or most_products(self.n)
        if self._takes_one_ridge:
            from mercer.models import _low_rank

            return _low_rank.steps(
                self, b, rank=rank, tol=tol, max_iter=max_iter, x0=x0, seed=seed, strict=True,
            )  # fmt: skip
        from mercer.models import _paths

        each = np.broadcast_to(self.ridge, b.shape[1])
        ridges, each = np.unique(each, return_inverse=True)
        found = _paths.solve(self, b, ridges, rank=rank, tol=tol, max_iter=max_iter, probes=0,
                             seed=seed, x0=x0, each=each, plan=plan)  # fmt: skip
        if found is None or (plan is not None and found.failed.any()):
            return None, False  # a factor says so, or is sooner
        if found.failed.any():
            raise self.not_definite()
        coef = self._coef(found.columns[0])
        is_lost = bool(found.lost.any())
        solution = Solution(coef, "cg", found.taken, found.residual, is_lost=is_lost)
        return solution, bool(found.met.all())

    def _coef(self, a: Any) -> Any:
        return a if self.weights is None else a * self.scale

    def _residual(self, a: Any, b: Any) -> float:
        return relative(b - self.product(a), b, self.space)

    def not_definite(self) -> mc.LinAlgError:
        """Names the ridge that would do, from the smallest eigenvalue."""
        ones = self.space.zeros(self.n, 1) + 1
        if not np.isfinite(float(self.product(ones).sum())):
            return mc.LinAlgError("the kernel matrix holds NaN or an infinity")
        smallest, rounding = self.smallest_eigenvalue()
        wider = rounding > -smallest and self.space.dtype == "float32"
        return mc.LinAlgError(
            f"the kernel matrix plus alpha = {np.min(self.ridge):g} is not positive definite in "
            f"{self.space.dtype}: its smallest eigenvalue without alpha is near {smallest:.2g}. "
            f"alpha = {2 * (max(-smallest, 0) + rounding):.1e} would do"
            + (", and float64 a smaller one" if wider else "")
        )

    def smallest_eigenvalue(self) -> tuple[float, float]:
        """That of S K S, and what rounding hides of it."""
        k = self.matrix(0.0) if self.kernel.precomputed else self.operator(0.0)
        ends = [
            float(mc.linalg.eigh_top(k, 1, which=which, check=False)[0][0][0])
            for which in ("smallest", "magnitude")
        ]
        return ends[0], 4 * float(np.finfo(self.space.dtype).eps) * abs(ends[1])

    def _reach(self) -> float:
        """The relative residual that rounding leaves of steps in float32; 0 in float64."""
        return self._rounding() if self.space.dtype == "float32" else 0.0

    def _rounding(self) -> float:
        """The relative residual that rounding leaves."""
        some = self.x if self.kernel.precomputed else self.space.array(self.x[:1])
        top = abs(float(self.kernel.diagonal(some)[0]))
        unit = float(np.finfo(self.space.dtype).eps) / 2
        return unit * self.n**0.5 * top / max(float(np.min(self.ridge)), 1e-300)

    def _warn_of_float32(self, reach: float, tol: float, name: str) -> None:
        warnings.warn(
            f"{name}: float32 leaves a relative residual of about {min(reach, 1):.1g} where "
            f"alpha = {np.min(self.ridge):g}, above tol = {tol:g}. Pass float64, or a larger "
            "alpha or tol",
            ConvergenceWarning,
            stacklevel=4,
        )


def relative(rest: Any, b: Any, space: Space) -> float:
    """The largest |rest| / |b| of a column [n, k]; |rest| where b is 0."""
    lengths = space.norms(b)
    return float((space.norms(rest) / np.where(lengths > 0, lengths, 1)).max(initial=0))


def in_groups(ridges: Any, b: Any, x0: Any, space: Space,
              solve: Callable[[float, Any, Any], Solution]) -> Solution:  # fmt: skip
    """What ``solve`` finds for each distinct ridge, with its columns of b [n, k] and of x0.

    ridges: a number, or one for each column.
    """
    if not isinstance(ridges, np.ndarray):
        return solve(ridges, b, x0)
    parts, chosen = [], [np.flatnonzero(ridges == ridge) for ridge in np.unique(ridges)]
    for columns in chosen:
        i = space.index(columns)
        guess = None if x0 is None else space.array(x0[:, i])
        parts.append(solve(float(ridges[columns[0]]), space.array(b[:, i]), guess))
    order = space.index(np.argsort(np.concatenate(chosen)))
    coef = space.xp.concatenate([part.coef for part in parts], 1)[:, order]
    steps, residual = max(part.n_iter for part in parts), max(part.residual for part in parts)
    return Solution(space.array(coef), parts[0].solver, steps, residual)


def most_products(n: int) -> int:
    """Products of conjugate gradients at most where max_iter is None."""
    return min(10 * n, 10_000)


def is_lost(residuals: Any, starts: Any, ended: Any, space: Space) -> np.ndarray:
    """Whether steps ended in rounding with all of a right-hand side left, or residuals grew by more
    than 1 / sqrt(eps), which a condition of 1 / eps lets them. starts: those before, 1 at least."""
    growth = float(np.finfo(space.dtype).eps) ** -0.5
    return ~(residuals <= starts * np.where(ended, ALL, growth))


def auto_rank(n: int) -> int:
    """Columns of the preconditioner: 600 for 10 000 points, 1900 for 100 000."""
    return max(1, min(n // 4, int(6 * n**0.5), MAX_RANK))


def rank_of(rank: int | str, n: int, space: Space, wanted: int | None = None) -> int:
    """Columns of the preconditioner; of "auto" those wanted, at most a tenth of the free memory."""
    if rank != "auto":
        return int(rank)
    column = n * np.dtype(space.dtype).itemsize
    wanted = auto_rank(n) if wanted is None else wanted
    return int(min(wanted, _memory.free(space) // (10 * column)))


def add_diagonal(a: Any, values: Any) -> None:
    """Adds a number, or one for each row, to the diagonal of a contiguous [n, n]."""
    flat = a.reshape(-1)
    flat[:: a.shape[0] + 1] += values


def warn_unconverged(name: str, solution: Solution, tol: float) -> None:
    warnings.warn(
        f"{name}: solver={solution.solver!r} took {solution.n_iter} products and left a relative "
        f"residual of {solution.residual:.2g}, above tol = {tol:g}. A larger max_iter, rank, tol "
        'or alpha, or solver="direct" where its matrix fits, ends it',
        ConvergenceWarning,
        stacklevel=4,
    )
