"""Regularised kernel systems and who solves them: the only place where models call solvers.

A system is (S K S + ridge) a = S b with S = diag(sqrt(weights)); its coefficients are S a, so that
the prediction at x is sum_n f(x, x_n) coef_n, as in scikit-learn.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import mercer as mc
from mercer.models import _memory
from mercer.models._arrays import Space, host
from mercer.models._kernels import FittedKernel

SOLVERS = ("auto", "direct", "cg")
#: Points up to which a Cholesky factor is the quickest way.
DIRECT = {"cpu": 6000, "cuda": 32768}
#: Columns of a preconditioner at most.
MAX_RANK = 4096


@dataclass
class Solution:
    """What a solver found, and how."""

    coef: Any  # [n, k]
    solver: str
    n_iter: int  # products with the matrix; 1 for a factorisation
    residual: float  # the largest |b - A a| / |b| of a column, measured
    factor: Any = None  # lower Cholesky factor of S K S + ridge, where "direct" was asked for it
    preconditioner: Any = None


class Buffer:
    """The memory of one matrix, kept for the next of its kind: rounds, folds, bandwidths."""

    def __init__(self) -> None:
        self._flat: Any = None

    def take(self, space: Space, rows: int, columns: int) -> Any:
        flat = self._flat
        fits = flat is not None and flat.shape[0] >= rows * columns
        if (
            not fits
            or Space(space.library, space.device, str(flat.dtype).rpartition(".")[2]) != space
        ):
            self._flat = None
            flat = self._flat = space.empty(rows * columns)
        return flat[: rows * columns].reshape(rows, columns)


@dataclass
class System:
    """Points x [n, d] as the kernel sees them (or the matrix itself), weights [n] and a ridge."""

    kernel: FittedKernel
    x: Any
    space: Space
    ridge: float
    weights: Any = None
    buffer: Buffer = field(default_factory=Buffer)

    @property
    def n(self) -> int:
        return int(self.x.shape[0])

    @property
    def scale(self) -> Any:
        """S, [n, 1], or None."""
        return None if self.weights is None else (self.weights**0.5)[:, None]

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
        if s is None:
            return self.kernel.product(self.x, self.x, a) + self.ridge * a
        return s * self.kernel.product(self.x, self.x, s * a) + self.ridge * a

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
        if solver not in SOLVERS:
            raise ValueError(f"solver must be one of {SOLVERS}. Received {solver!r}")
        s = self.scale
        b = b if s is None else s * b
        self._warn_of_float32(tol, name)
        if solver == "auto":
            return self._auto(b, rank, tol, max_iter, coef0, keep_factor, seed, name)
        if solver == "direct":
            return self._direct(b, keep_factor, name)
        solution, converged = self._cg(b, rank, tol, max_iter, coef0, seed)
        if not converged:
            warn_unconverged(name, solution, tol)
        return solution

    def _auto(self, b: Any, rank: Any, tol: float, max_iter: int | None, coef0: Any,
              keep_factor: bool, seed: int, name: str) -> Solution:  # fmt: skip
        if self.n <= DIRECT[self.space.device.partition(":")[0]]:
            return self._direct(b, keep_factor, name)
        budget = self._budget(b.shape[1]) if max_iter is None else max_iter
        solution, converged = self._cg(b, rank, tol, budget, coef0, seed)
        if converged:
            return solution
        if 2 * self._bytes_direct() <= _memory.free(self.space):
            return self._direct(b, keep_factor, name)
        warn_unconverged(name, solution, tol)
        return solution

    def _bytes_direct(self) -> int:
        return self.n * self.n * np.dtype(self.space.dtype).itemsize

    def _budget(self, columns: int) -> int:
        """Products that cost what a factorisation does: n^3 / 3 flop against n^2 pairs."""
        return max(20, int(self.n / (3 * (25 + 2 * self.x.shape[1] + 2 * columns))))

    def _direct(self, b: Any, keep_factor: bool, name: str) -> Solution:
        _memory.require(self._bytes_direct(), self.space, 'solver="direct"', self.n, name)
        a = self.matrix()
        if keep_factor:
            factor, info = mc.linalg.cholesky(a, overwrite_a=True, check=False)
            x = None if int(info) else mc.linalg.cho_solve(factor, b)
        else:
            factor = None
            x, info = mc.linalg.solve_cholesky(a, b, overwrite_a=True, check=False)
        if int(info):
            raise self._not_definite()
        return Solution(self._coef(x), "direct", 1, self._residual(x, b), factor)

    def _cg(self, b: Any, rank: Any, tol: float, max_iter: int | None, coef0: Any,
            seed: int) -> tuple[Solution, bool]:  # fmt: skip
        a = self._operator()
        inverse = preconditioner(a, auto_rank(self.n) if rank == "auto" else rank, self.ridge, seed)
        x0 = coef0 if coef0 is None or self.weights is None else coef0 / self.scale
        x, info, taken = mc.linalg.cg(
            a, b, preconditioner=inverse, tol=tol, max_iter=max_iter, x0=x0, check=False
        )
        info = host(info)
        if (info == -1).any():
            raise self._not_definite()
        residual = self._residual(x, b)
        solution = Solution(self._coef(x), "cg", int(host(taken).max()), residual, None, inverse)
        return solution, not info.any()

    def inverse(self, b: Any, preconditioner: Any, tol: float, max_iter: int | None = None) -> Any:
        """(S K S + ridge)^-1 b by conjugate gradients, as far as they come."""
        a = self._operator()
        return mc.linalg.cg(
            a, b, preconditioner=preconditioner, tol=tol, max_iter=max_iter, check=False
        )[0]

    def _operator(self) -> Any:
        if self.kernel.precomputed or self.weights is not None:
            return self.matrix()
        return mc.linalg.KernelOperator(
            self.kernel.formula, self.x, ridge=self.ridge, **self.kernel.params
        )

    def _coef(self, a: Any) -> Any:
        return a if self.weights is None else a * self.scale

    def _residual(self, a: Any, b: Any) -> float:
        lengths = self.space.norms(b)
        ratios = self.space.norms(b - self.product(a)) / np.where(lengths > 0, lengths, 1)
        return float(ratios.max(initial=0))

    def _not_definite(self) -> mc.LinAlgError:
        """Names the ridge that would do, from the smallest eigenvalue."""
        k = self.matrix(0.0)
        if not np.isfinite(float(k.sum())):
            return mc.LinAlgError("the kernel matrix holds NaN or an infinity")
        smallest = float(mc.linalg.eigh_top(k, 1, which="smallest", check=False)[0][0][0])
        rounding = float(np.finfo(self.space.dtype).eps) * float(abs(k).sum(1).max())
        needed = f"{2 * (max(-smallest, 0) + rounding):.1e}"
        return mc.LinAlgError(
            f"the kernel matrix plus alpha = {self.ridge:g} is not positive definite in "
            f"{self.space.dtype}: its smallest eigenvalue without alpha is near {smallest:.2g}. "
            f"alpha = {needed} would do" + (", and float64 a smaller one" if rounding > -smallest
            and self.space.dtype == "float32" else "")
        )  # fmt: skip

    def _warn_of_float32(self, tol: float, name: str) -> None:
        if self.space.dtype != "float32":
            return
        top = float(self.kernel.diagonal(self.x[:1] if not self.kernel.precomputed else self.x)[0])
        reach = 6e-8 * np.sqrt(self.n) * abs(top) / max(self.ridge, 1e-300)
        if reach > tol:
            warnings.warn(
                f"{name}: float32 leaves a relative residual of about {min(reach, 1):.1g} where "
                f"alpha = {self.ridge:g}, above tol = {tol:g}. Pass float64, or a larger "
                "alpha or tol",
                ConvergenceWarning,
                stacklevel=4,
            )


def auto_rank(n: int) -> int:
    """Columns of the preconditioner: 600 for 10 000 points, 1900 for 100 000."""
    return max(1, min(n // 4, int(6 * n**0.5), MAX_RANK))


def preconditioner(a: Any, rank: int, ridge: float, seed: int = 0) -> Any:
    """The one place that says which preconditioner models use."""
    if rank <= 0:
        return None
    try:
        return mc.linalg.nystrom(a, min(rank, a.shape[0]), ridge=ridge, seed=seed)
    except mc.LinAlgError:  # indefinite before the ridge: conjugate gradients go without
        return None


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
