"""Preconditioners of sharded operators, scale (1 - F F^T), as those of one process."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mercer import _random_pivots
from mercer._torch import agreement
from mercer._torch.sharded_operator import ShardedOperator, begin
from mercer.errors import LinAlgError

_DIAGONAL = 256  # points of which all pairs are made for their diagonal


class ShardedPreconditioner:
    """scale (1 - F F^T), with the rows of F on the ranks of the operator."""

    def __init__(self, a: ShardedOperator, factor: Tensor, scale: float) -> None:
        self._a, self._factor, self._scale = a, factor, scale
        self.shape, self.dtype = a.shape, a.dtype

    @property
    def rank(self) -> int:
        return self._factor.shape[1]

    def apply(self, r: Tensor) -> Tensor:
        damped = self._a.gram(self._factor, r).to(r.dtype)
        return self._scale * (r - self._factor @ damped)


def orthonormal(a: ShardedOperator, columns: Tensor) -> Tensor:
    """Columns in float64 that span the same: by factors of their Gram matrix, twice."""
    for _ in range(2):
        gram = a.gram(columns, columns)
        values, vectors = a.eigh(gram)
        if not bool(values.isfinite().all()):
            raise LinAlgError("products with a must be finite. Received NaN or infinity.")
        kept = values > 1e-14 * columns.shape[1] * values[-1]
        columns = columns @ (vectors[:, kept] / values[kept].sqrt())
    return columns


def _damped(
    a: ShardedOperator, columns: Tensor, values: Tensor, ridge: float, least: float, scale: float
) -> ShardedPreconditioner:
    rounding = torch.finfo(a.dtype).eps
    weights = 1 - (least + ridge) / (values + ridge)
    factor = columns * weights.clamp(0, 1 - 32 * rounding).sqrt()
    return ShardedPreconditioner(a, factor.to(a.dtype), scale)


def _check_rank(verb: str, rank: int) -> None:
    if rank < 1:
        raise ValueError(f"{verb}: rank must be positive. Received {rank}.")


def nystrom(
    a: ShardedOperator, rank: int, *, ridge: float | None = None, seed: int = 0
) -> ShardedPreconditioner:
    ridge = a.ridge if ridge is None else float(ridge)
    begin("nystrom", a, [rank, ridge, seed], lambda: _check_rank("nystrom", rank))
    with agreement.answered("nystrom"):
        basis = orthonormal(a, a.random(min(rank, a.shape[0]), seed))
        products = a.multiply(basis.to(a.dtype)).double() - ridge * basis
        core = a.gram(basis, products)
        if not bool(core.isfinite().all()):
            raise LinAlgError("nystrom: products with a must be finite. Received NaN or infinity.")
        core = (core + core.mT) / 2
        # The shift keeps the factor from failing by rounding; the values below lose it again.
        values = a.eigh(core)[0]
        rounding = torch.finfo(a.dtype).eps * max(core.norm().item(), 8 * len(core) * ridge)
        if values.numel() and values[0].item() < -1e-2 * max(values[-1].item(), rounding):
            raise LinAlgError(
                "nystrom: a without its ridge must be positive semi-definite. Received an "
                f"eigenvalue of {values[0].item():.3g}."
            )
        shift = rounding + max(0.0, -values[0].item() if values.numel() else 0.0)
        identity = torch.eye(len(core), dtype=core.dtype, device=core.device)
        (upper,) = a.agreed(torch.linalg.cholesky(core + 2 * shift * identity, upper=True))
        long = torch.linalg.solve_triangular(
            upper, products + 2 * shift * basis, upper=True, left=False
        )
        squares, vectors = a.eigh(a.gram(long, long))
        kept = squares > 0
        squares, vectors = squares[kept], vectors[:, kept]
        columns = orthonormal_near(a, long @ (vectors / squares.sqrt()))
        found = (squares - 2 * shift).clamp(min=0)
        least = found[0].item() if found.numel() else 0.0
        return _damped(a, columns, found, ridge, least, 1.0) if ridge + least > 0 else _identity(a)


def _identity(a: ShardedOperator) -> ShardedPreconditioner:
    return ShardedPreconditioner(a, torch.zeros(a.rows, 1, dtype=a.dtype), 1.0)


def orthonormal_near(a: ShardedOperator, columns: Tensor) -> Tensor:
    """Nearly orthonormal columns made so, each staying near its own: by the root of the Gram."""
    values, vectors = a.eigh(a.gram(columns, columns))
    return columns @ (vectors / values.clamp(min=0.5).sqrt()) @ vectors.mT


def _diagonal(a: ShardedOperator) -> Tensor:
    parts = [torch.empty(0, dtype=a.dtype, device=a._own.device)]
    for start in range(0, a.rows, _DIAGONAL):
        some, first = a._own[start : start + _DIAGONAL], a.first + start
        parts.append(a.values(first, some, some, first).diagonal())
    return torch.cat(parts).double()


def pivoted_cholesky(a: ShardedOperator, rank: int) -> ShardedPreconditioner:
    def checks() -> None:
        _check_rank("pivoted_cholesky", rank)
        if not a.ridge > 0:
            raise ValueError(f"pivoted_cholesky: ridge must be positive. Received {a.ridge}.")

    begin("pivoted_cholesky", a, [rank], checks)
    with agreement.answered("pivoted_cholesky"):
        rank, left = min(rank, a.shape[0]), _diagonal(a)
        lower = torch.zeros(a.rows, rank, dtype=torch.float64, device=left.device)
        largest = None
        for step in range(rank):
            value, pivot, row = _next_pivot(a, left, lower)
            largest = value if largest is None else largest
            if not math.isfinite(value):
                raise LinAlgError("pivoted_cholesky: a must be finite. Received NaN or infinity.")
            if value <= torch.finfo(a.dtype).eps * largest:
                lower = lower[:, :step]
                break
            column = a.values(a.first, a._own, a.points[pivot : pivot + 1], pivot)[:, 0].double()
            lower[:, step] = (column - lower @ row) / math.sqrt(value)
            left = left - lower[:, step] ** 2
            if a.first <= pivot < a.first + a.rows:
                left[pivot - a.first] = 0
        return _of_factor(a, lower, a.ridge)


def _of_factor(a: ShardedOperator, lower: Tensor, ridge: float) -> ShardedPreconditioner:
    """(L L^T + ridge)^-1 of the rows of L."""
    values, vectors = a.eigh(a.gram(lower, lower))
    least = torch.finfo(a.dtype).eps * values.max().clamp(min=0) if len(values) else 0
    kept = values > least
    values, vectors = values[kept], vectors[:, kept]
    columns = lower @ (vectors / values.sqrt())
    return _damped(a, columns, values, ridge, 0.0, 1 / ridge)


def _next_pivot(a: ShardedOperator, left: Tensor, lower: Tensor) -> tuple[float, int, Tensor]:
    """The largest diagonal that is left, its index, and its row of the factor."""
    own = torch.full((2 + lower.shape[1],), -torch.inf, dtype=torch.float64, device=left.device)
    if a.rows:
        place = int(left.argmax())
        own = torch.cat([left[place : place + 1], own.new_tensor([a.first + place]), lower[place]])
    found = a.each(own)
    best = found[int(found[:, 0].argmax())]
    return best[0].item(), int(best[1].item()) if best[0].isfinite() else 0, best[2:]


def rpcholesky(
    a: ShardedOperator, rank: int, *, ridge: float | None = None, block: int | str = "auto",
    seed: int = 0,
) -> ShardedPreconditioner:  # fmt: skip
    """What is left of the diagonal is gathered, n numbers a block: every rank draws the same."""
    ridge = a.ridge if ridge is None else float(ridge)

    def checks() -> None:
        _random_pivots.check(rank, ridge, bool(a._reads))
        _random_pivots.block_of(block, rank)

    begin("rpcholesky", a, [rank, ridge, block, seed], checks)
    with agreement.answered("rpcholesky"):
        rank, size = min(rank, a.shape[0]), _random_pivots.block_of(block, rank)
        own = _diagonal(a)
        lower = own.new_zeros(a.rows, 0)
        draws = _random_pivots.Draws(_on_all(a, own), torch.finfo(a.dtype).eps, seed)
        for _ in range(4 * rank + 16):
            if lower.shape[1] >= rank or draws.is_used_up:
                break
            proposed = draws.proposed(size)
            pivots, fresh = _fresh_columns(a, lower, draws, proposed, rank)
            lower, own = torch.cat([lower, fresh], 1), own - fresh.square().sum(1)
            draws.take(pivots, _on_all(a, own))
            own = torch.from_numpy(draws.left[a.first : a.first + a.rows]).to(own.device)
        return _of_factor(a, lower, ridge)


def _on_all(a: ShardedOperator, own: Tensor) -> np.ndarray:
    return a.gathered(own.unsqueeze(1))[:, 0].cpu().numpy()


def _fresh_columns(
    a: ShardedOperator, lower: Tensor, draws: _random_pivots.Draws, proposed: np.ndarray, rank: int
) -> tuple[np.ndarray, Tensor]:
    """The pivots among the points, and this rank's rows of their columns of the factor."""
    places = torch.from_numpy(proposed).to(lower.device)
    points = a.points[places]
    is_own = (places >= a.first) & (places < a.first + a.rows)
    known = lower.new_zeros(len(places), lower.shape[1])
    known[is_own] = lower[places[is_own] - a.first]
    known = a.summed(known)  # one rank has each of the rows
    (square,) = a.agreed(a.values(0, points, points, 0).double() - known @ known.mT)
    square = square.cpu().numpy()
    taken, small = draws.accepted(proposed, (square + square.T) / 2, rank - lower.shape[1])
    columns = a.values(a.first, a._own, points[taken], 0).double() - lower @ known[taken].mT
    factor = torch.from_numpy(small).to(lower.device)
    fresh = torch.linalg.solve_triangular(factor, columns.mT, upper=False).mT
    return proposed[taken], fresh
