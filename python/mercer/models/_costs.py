"""What a factor and conjugate gradients cost on a CPU, and which of them goes on.

Seconds are those of one thread of Zen 5; others, and more threads, have them in about the same
proportion. docs/design/models.md says how they were measured and what follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np

#: Pivots that are drawn at once.
BLOCK = 64
#: The part of what its factor leaves of the mean diagonal that a preconditioner's ridge has more:
#: rough kernels take a third of the products, smooth ones as many as without.
LEFT = 0.3
#: The least ridge of a preconditioner.
TINY = 1e-12
#: The largest eigenvalue that r pivots leave, in units of n / r times the mean diagonal left.
SPREAD = 2.0
#: Parts of a factor's cost: what pivots take before a verdict, and first steps.
PIVOTS, TRIAL = 0.05, 0.06
#: Steps from which on a rate is measured.
FEW = 4
#: What a factor of float32 leaves of the sum of a row, at most, as a part of the ridge.
PROMISES = 0.03
#: Solutions with a factor of float32 for float64, about, and points from which on there are any.
REFINES, LEAST = 4, 2000


@dataclass(frozen=True)
class Rates:
    """Seconds, but for the first two."""

    flops: float  # a second, of a Cholesky factor of many points
    half: float  # points with which it takes twice as long
    element: float  # one of the matrix
    pair: float  # one of a product, and more of it for each feature and each column after the first
    feature: float
    column: float
    stored: float  # a pair of a matrix that is given
    pivot: float  # a point of a column of the preconditioner, and more of it for each column before
    gram: float
    spectrum: float  # of r^3
    apply: float  # a number of the preconditioner, in a step


RATES = {
    "float32": Rates(120e9, 750, 0.46e-9, 0.2e-9, 0.01e-9, 0.014e-9, 0.14e-9, 6.5e-9, 0.021e-9,
                     0.075e-9, 0.2e-9),
    "float64": Rates(57e9, 350, 1.2e-9, 0.5e-9, 0.02e-9, 0.02e-9, 0.28e-9, 10e-9, 0.039e-9,
                     0.14e-9, 0.5e-9),
}  # fmt: skip
#: Seconds of a step, or of a block of pivots, in addition.
CALL = 1.5e-4


@dataclass(frozen=True)
class Costs:
    """Seconds for n points with so many features and right-hand sides."""

    n: int
    features: int
    columns: int
    dtype: str
    is_stored: bool = False  # whether the matrix is given
    ridges: int = 1  # distinct ones, each of which has a factor

    @property
    def rates(self) -> Rates:
        return RATES[self.dtype]

    @property
    def product(self) -> float:
        rates, more = self.rates, self.rates.column * (self.columns - 1)
        each = rates.stored if self.is_stored else rates.pair + rates.feature * self.features
        return self.n**2 * (each + more)

    def step(self, rank: int) -> float:
        return CALL + self.product + self.rates.apply * self.n * rank * self.columns

    def preparation(self, rank: int) -> float:
        rates = self.rates
        columns = self.n * rank * (rates.pivot + rates.gram * rank)
        return columns + rates.spectrum * rank**3 + CALL * (1 + rank / BLOCK)

    def factor(self, refines: bool = False) -> float:
        """refines: whether one of float32 serves float64."""
        rates = RATES["float32"] if refines else self.rates
        found = self.n**3 / 3 / rates.flops * (1 + rates.half / self.n)
        found += self.n**2 * rates.element
        if refines:
            found += REFINES * (self.product + self.n**2 * self.columns * rates.stored)
        return CALL + self.ridges * found + 2 * self.n**2 * self.columns / rates.flops

    @property
    def may_refine(self) -> bool:
        is_large = self.n >= LEAST and self.columns <= self.n // 100
        return self.dtype == "float64" and is_large

    def is_worth_a_try(self) -> bool:
        """Whether the first pivots are cheap compared with a factor."""
        return self.preparation(BLOCK) <= PIVOTS * self.factor(self.may_refine)


class Plan:
    """Looks on while conjugate gradients prepare and step, and says when a factor is sooner."""

    def __init__(self, costs: Costs, ridge: float, tol: float, rank: int, is_given: bool,
                 may_turn: bool = True) -> None:  # fmt: skip
        """rank: columns of the preconditioner at most; is_given: exactly; may_turn: to a factor."""
        self.costs, self.ridge, self.tol = costs, max(ridge, 1e-300), tol
        self.rank, self.is_given, self.may_turn = rank, is_given, may_turn
        self.has_turned = False
        self.refines = costs.may_refine
        self._last: tuple[int, float] | None = None  # pivots and what they left, a block before
        self._prepared = 0.0
        self._gaps: list[float] = []

    @property
    def columns(self) -> int:
        """Pivots that were taken."""
        return 0 if self._last is None else self._last[0]

    @property
    def limit(self) -> float:
        """What a factor costs, where there may be one."""
        return self.costs.factor(self.refines) if self.may_turn else inf

    def steps(self, rank: int, left: float, largest: float) -> float:
        """Steps of conjugate gradients, about."""
        rounding = 16 * float(np.finfo(self.costs.dtype).eps) * largest
        middle = max(self.ridge + LEFT * left, rounding, TINY)
        rest = SPREAD * left * self.costs.n / rank
        condition = middle / self.ridge * (1 + rest / middle)
        return 1 + 0.5 * sqrt(condition) * log(2 / self.tol)

    def goes_on(self, rank: int, left: float, largest: float) -> bool:
        """Whether another block of pivots pays after so many.

        left: the mean diagonal that they leave. largest: the largest eigenvalue, about.
        """
        eps = float(np.finfo(np.float32).eps)
        self.refines &= eps * largest <= PROMISES * self.ridge
        self._prepared = spent = self.costs.preparation(rank)
        power = 1.0
        if self._last is not None and 0 < left < self._last[1]:
            power = log(self._last[1] / left) / log(rank / self._last[0])
        self._last = rank, left
        if self.is_given:
            return True
        best, there = inf, rank
        for more in range(rank, self.rank + BLOCK, BLOCK):
            at = min(more, self.rank)
            steps = self.steps(at, left * (rank / at) ** power, largest)
            total = self.costs.preparation(at) - spent + steps * self.costs.step(at)
            if total < best:
                best, there = total, at
        if best < self.limit:
            return there > rank
        # Where K has no small eigenvalues, rough kernels take far fewer steps: some are tried.
        if FEW * self.costs.step(rank) > TRIAL * self.limit:
            self.has_turned = True
            return False
        return self.costs.preparation(rank + BLOCK) <= PIVOTS * self.limit

    def begin(self) -> None:
        """Steps begin anew, from a residual that was measured."""
        self._gaps = []

    def turns(self, taken: int, gap: float) -> bool:
        """Whether a factor is sooner than what is left after so many products.

        gap: the residual over what it is to be, of the column that is furthest.
        """
        step, limit = self.costs.step(self._last[0] if self._last else self.rank), self.limit
        self._gaps.append(log(max(gap, 1e-300)) if gap < inf else inf)
        count = len(self._gaps) - 1
        self.has_turned |= self._prepared + taken * step > limit
        if count >= FEW and count * step >= TRIAL * limit / 2:
            now, half = self._gaps[-1], count // 2
            rate = max((self._gaps[0] - now) / count, (self._gaps[half] - now) / (count - half))
            self.has_turned |= not now * step <= rate * limit
        return self.has_turned
