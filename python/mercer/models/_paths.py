"""A path of ridges by conjugate gradients: targets and random signs share each product, and leave.

Every ridge has a column for each target and some of random signs z, whose z^T A^-1 z estimate the
trace of the inverse. A product is of all columns that are left, so that those of large ridges, done
after a few, cost little compared with those of small ones.

Signs need no solution: after j steps their form lies between Gauss's quadrature, the sum of steps
times squares so far, and Gauss and Radau's, which takes the least eigenvalue of P^-1 A into account
(Meurant, Tichy, Numer. Algorithms 62, 2013). That is known, ridge / (ridge of P) or more, since
A - ridge is nowhere below P - its ridge, and close to where most of the spectrum lies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mercer._progress import Fit, current, share_of_residual
from mercer.models import _memory
from mercer.models._arrays import Space, host
from mercer.models._costs import Costs, Plan
from mercer.models._inverse import Inverse
from mercer.models._local_inverse import controls
from mercer.models._solve import MAX_RANK, System, auto_rank, is_lost, most_products

#: Products at most where max_iter is None and a score needs the traces.
PATIENCE = 300
#: Half of the bracket of a mean form that signs stop at, as a part of it.
BRACKET = 5e-3
#: The residual that they stop at in any case: their form is then known to about its square.
LOOSELY = 0.03
#: Signs of a ridge at least.
FEW = 4
#: The standard error of a trace, as a part of it, that asks for another control variate.
ERROR = 2.5e-3


def rank_of(system: System, rank: int | str, factor: int = 8) -> int:
    """Columns of the preconditioner: on a CPU 800 for 10 000 points where rank is "auto".

    factor: of the root of n.
    """
    if rank != "auto":
        return max(0, min(int(rank), system.n))
    if system.space.device != "cpu":
        wanted = auto_rank(system.n)
    else:
        wanted = min(int(factor * system.n**0.5), system.n // 4, MAX_RANK)
    column = system.n * np.dtype(system.space.dtype).itemsize
    return max(1, min(wanted, _memory.free(system.space) // (10 * column)))


@dataclass
class Found:
    """What was found for R ridges and k targets."""

    columns: list[Any]  # a [n, k] of each ridge, or of all targets where each has its own
    met: np.ndarray  # [R], or [1], whether tol was met by all targets
    failed: np.ndarray  # as met, whether a matrix showed not to be positive definite, or NaN
    lost: np.ndarray  # as met, whether rounding is all that steps found
    residual: float  # the largest |b - A a| / |b|, measured
    traces: np.ndarray  # [R], estimates of the trace of A^-1
    taken: int  # products


@np.errstate(all="ignore")  # a singular matrix makes steps overflow, which residuals show
def solve(system: System, b: Any, ridges: np.ndarray, *, rank: int | str, tol: float,
          max_iter: int | None, probes: int, seed: int, x0: Any = None,
          each: np.ndarray | None = None, name: str = "path",
          plan: Plan | None = None) -> Found | None:  # fmt: skip
    """(S K S + ridge) a = b for b [n, k] and every ridge, from x0, and the traces of the inverses.

    each: [k], the number of the one ridge of each target. A column whose matrix shows itself not to
    be positive definite is not met. None where a plan turns.
    """
    space, xp, (n, k), many = system.space, system.space.xp, b.shape, len(ridges)
    scales = _scales(b, space)  # squares neither overflow nor vanish
    b, x0 = b / space.array(scales), None if x0 is None else x0 / space.array(scales)
    if plan is None and rank == "auto" and space.device == "cpu" and not system.is_in_chunks:
        plan = plan_of_rank(system, ridges, tol, k + probes)
    rank = rank_of(system, rank) if plan is None else plan.rank
    copies = many if each is None else 1
    targets = copies * k
    system.require_columns(rank, targets + many * min(probes, FEW), name)
    inverse = Inverse(system.kernel, system.x, system.scale, space, ridges, rank, seed, plan)
    if plan is not None and plan.has_turned:
        return None
    each = np.repeat(np.arange(many), k) if each is None else each
    most = max_iter or (PATIENCE if probes else most_products(n))
    run = _Run(system.with_ridge(0.0), ridges, inverse, tol, most, each, plan)
    counts = [run.count(i, probes) for i in range(many)]
    system.require_columns(rank, targets + sum(counts), name)
    draws = np.random.default_rng(seed).choice([-1.0, 1.0], (n, max(counts)))
    signs = space.array(draws)
    right = rest = xp.concatenate([b] * copies, axis=1)
    if x0 is not None:
        run.solved = xp.concatenate([x0] * copies, axis=1)
        rest = right - run.product(run.solved, each)
        run.start = np.maximum(1, space.norms(rest) / np.maximum(space.norms(right), 1e-300))
    columns = xp.concatenate([rest, *(signs[:, :count] for count in counts)], axis=1)
    lengths = np.concatenate([space.norms(right), np.full(sum(counts), n**0.5)])
    which = np.concatenate([each, np.repeat(np.arange(many), counts)])
    owner = np.concatenate([np.arange(targets), *(targets + np.arange(c) for c in counts)])
    before = run.taken
    run.begin(columns, which, owner, lengths)
    run.go()
    rest = rest if run.taken == before else None
    met, residual = run.polish(right, rest) if k else (np.ones(0, bool), 0.0)
    if run.has_turned:
        return None
    parts = [run.solved[:, i * k : (i + 1) * k] * space.array(scales) for i in range(copies)]
    missed, failed, lost = (
        np.asarray(own.reshape(copies, k).any(1)) for own in (~met, run.failed, run.lost)
    )
    return Found(parts, ~missed, failed, lost, residual, run.traces(signs), run.taken)


def plan_of_rank(system: System, ridges: np.ndarray, tol: float, columns: int) -> Plan:
    """How many columns of the preconditioner pay for the least ridge, up to twice the usual."""
    features = 0 if system.kernel.precomputed else system.x.shape[1]
    costs = Costs(system.n, features, columns, system.space.dtype, system.kernel.precomputed)
    most = rank_of(system, "auto", 16)
    return Plan(costs, float(ridges.min()), min(tol, LOOSELY), most, False, may_turn=False)


def _scales(b: Any, space: Space) -> np.ndarray:
    """Powers of two near the largest numbers of the columns [k]."""
    if b.shape[1] == 0:
        return np.ones(0)
    tops = host(space.xp.amax(abs(b), 0)).astype("float64")
    usable = np.isfinite(tops) & (tops > 0)
    return 2.0 ** np.floor(np.log2(np.where(usable, tops, 1)))


class _Run:
    """The columns that are left, each for a ridge and one of k targets or of random signs.

    each: [k], the number of each target's ridge.
    """

    def __init__(self, system: System, ridges: np.ndarray, inverse: Inverse, tol: float, most: int,
                 each: np.ndarray, plan: Plan | None = None) -> None:  # fmt: skip
        self.system, self.space, self.inverse = system, system.space, inverse
        self.each, self.k, self.plan = each, len(each), plan
        self.ridges, self.tol, self.most, self.taken = ridges, tol, most, 0
        self.solved = self.space.zeros(system.n, self.k)
        self.failed, self.ended, self.lost = (np.zeros(self.k, bool) for _ in range(3))
        self.start = np.ones(self.k)  # residuals of first guesses, those of 0 at least
        self.bar = current()
        self.forms: dict[tuple[int, int], tuple[float, float]] = {}  # and those with P^-1

    def count(self, i: int, probes: int) -> int:
        """Signs of ridge i: few where the preconditioner leaves little of its trace."""
        if len(self.inverse.values) == 0:
            return probes
        share = min(1.0, 4 * self.inverse.left / max(self.ridges[i], 1e-300))
        return min(probes, max(FEW, int(np.ceil(probes * share))))

    def product(self, v: Any, which: np.ndarray) -> Any:
        self.taken += 1
        return self.system.product(v) + v * self.space.array(self.ridges[which])

    def begin(self, r: Any, which: np.ndarray, owner: np.ndarray, lengths: np.ndarray) -> None:
        """r [n, c]: what is left of right-hand sides of these lengths."""
        self.which, self.owner, self.r, self.x = which, owner, r, 0 * r
        self.count_of_all = len(which)
        self.least = lengths * np.where(owner < self.k, 0.9 * self.tol, LOOSELY)
        self.p, self.rho, gaps = self._preconditioned()
        self.form, self.first = 0 * self.rho, self.rho
        self.low = self.ridges[which] / self.inverse.ridges[which]
        self.radau = 1 / np.maximum(self.low, 1e-300)
        self.part = np.full(len(which), 0.5)  # of a bracket, where the form lies
        if self.plan is not None:
            self.plan.begin()
        self._leave(gaps <= self.least, np.zeros(len(which), bool))

    def _preconditioned(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """(P^-1 r, r^T P^-1 r, |r|); a column whose square is lost in rounding goes without P."""
        space, z = self.space, self.inverse(self.r, self.which)
        wide = space.of("float64").array(self.r)
        square, gaps = space.sums(self.r * z, wide * wide)
        lost = square <= 0
        if lost.any():
            plain = self.r * space.array(1 / self.inverse.ridges[self.which])
            z = space.xp.where(space.array(lost) > 0, plain, z)
            square = space.sums(self.r * z)
        return z, square, np.sqrt(gaps)

    def polish(self, right: Any, rest: Any = None) -> tuple[np.ndarray, float]:
        """Columns whose recurrence promised too much go on from what is measured, or known to be
        left. ([k], which met tol; the largest residual as a part of its right-hand side.)
        """
        space, which, last = self.space, self.each, np.inf
        lengths, is_wide = space.norms(right), self.system.kernel.precomputed
        is_wide |= space.dtype == "float64" or self.system.is_in_chunks
        rest = right - self.product(self.solved, which) if rest is None else rest
        while True:
            gaps = space.norms(rest)
            met = gaps <= self.tol * lengths
            left = np.flatnonzero(~met & ~self.failed)
            shares = gaps / np.where(lengths > 0, lengths, 1)
            worst = shares[left].max(initial=0)
            is_out = self.taken >= self.most or self.has_turned
            if not left.size or is_out or (is_wide and not worst < 0.75 * last):
                self.lost = is_lost(shares, self.start, self.ended, self.space)
                return met, float(shares.max(initial=0))
            if is_wide:
                last, index = worst, space.index(left)
                self.begin(space.array(rest[:, index]), which[left], left, lengths[left])
                self.go()
            is_wide, rest = True, self._rest(right, which)

    def _rest(self, right: Any, which: np.ndarray) -> Any:
        """What the solutions leave of right-hand sides, in float64: float32 would stagnate. A
        matrix that is given is what it is."""
        wide, system = self.space.of("float64"), self.system
        if system.kernel.precomputed or system.is_in_chunks or self.space == wide:
            return right - self.product(self.solved, which)
        weights = None if system.weights is None else wide.array(system.weights)
        system = replace(system, x=wide.array(system.x), space=wide, weights=weights)
        x, self.taken = wide.array(self.solved), self.taken + 1
        return wide.array(right) - system.product(x) - x * wide.array(self.ridges[which])

    def go(self) -> None:
        """Steps until no column is left; forms are unknown where products run out before."""
        while self.which.size and self.taken < self.most and not self.has_turned:
            self._step()
        self._leave(np.ones(len(self.which), bool), self.owner >= self.k)

    @property
    def has_turned(self) -> bool:
        return self.plan is not None and self.plan.has_turned

    def _step(self) -> None:
        space = self.space
        q = self.product(self.p, self.which)
        curvature = space.sums(self.p * q)
        bad = failed = ~(curvature > 0)
        if bad.any():  # below zero by rounding, a column has stagnated
            failed = ~(curvature > -self.inverse.rounding * space.sums(self.p * self.p))
        step = np.where(bad, 0, self.rho / np.where(bad, 1, curvature))
        steps = space.array(step)
        self.x += steps * self.p
        self.r -= steps * q
        z, new, gaps = self._preconditioned()
        before, wide = self.form, self.radau * self.rho
        self.form = before + step * self.rho
        gain = np.maximum(self.radau - step, 0)
        turn = new / self.rho
        self.radau = gain / np.maximum(self.low * gain + turn, 1e-300)
        self.p = z + space.array(turn) * self.p
        self.rho = new
        narrow = self.radau * new
        middle = self.form + self.part * narrow - before
        self.part = np.clip(middle / np.where(wide > 0, wide, 1), 0, 1)
        done: np.ndarray = gaps <= self.least
        if self.bar is not None:
            self._tell(self.bar, gaps)
        done |= (self.owner >= self.k) & (narrow <= 2 * BRACKET * self.form)
        ended = bad | ~(new > 0)
        self.ended[self.owner[ended & ~done & (self.owner < self.k)]] = True
        if self.plan is not None and not done.all():
            self.plan.turns(self.taken, float((gaps / np.maximum(self.least, 1e-300)).max()))
        self._leave(done | ended, failed)

    def _tell(self, bar: Fit, gaps: np.ndarray) -> None:
        """The residual that is furthest from what its column wants."""
        worst = float((gaps / np.maximum(self.least, 1e-300)).max(initial=0)) * self.tol
        gone = 1 - len(self.which) / self.count_of_all
        share = gone + (1 - gone) * share_of_residual(worst, self.tol)
        bar.step(max(share, self.taken / self.most), f"residual {worst:.1e}")

    def _leave(self, leaves: np.ndarray, failed: np.ndarray) -> None:
        """Writes down what these columns found, and closes up."""
        if not leaves.any():
            return
        for j in np.flatnonzero(leaves):
            i, own = int(self.which[j]), int(self.owner[j])
            if own < self.k:
                self.failed[own] |= failed[j]
                self.solved[:, own] += self.x[:, j]
            elif not failed[j]:
                missing = max(float(self.part[j] * self.radau[j] * self.rho[j]), 0.0)
                missing = missing if missing < self.form[j] / 10 else 0.0  # no ridge, no bracket
                self.forms[i, own] = (float(self.form[j]) + missing, float(self.first[j]))
        kept = np.flatnonzero(~leaves)
        index = self.space.index(kept)
        self.x, self.r, self.p = (self.space.array(a[:, index]) for a in (self.x, self.r, self.p))
        for name in ("which", "owner", "least", "rho", "form", "first", "low", "radau", "part"):
            setattr(self, name, getattr(self, name)[kept])

    def traces(self, signs: Any) -> np.ndarray:
        """Traces of A^-1 for each ridge, from the forms of signs [n, probes].

        P^-1 is their control variate, and inverses among neighbours where that leaves much.
        """
        found, errors = np.array([self._trace(i) for i in range(len(self.ridges))]).T
        shares = errors / np.maximum(abs(found), 1e-300)
        has_points = not (self.system.kernel.precomputed or self.system.is_in_chunks)
        if (shares > ERROR).any() and has_points:
            large = np.flatnonzero(shares > ERROR / 3)  # neighbours, once found, serve all
            forms, traces = controls(self.system, self.ridges[large], signs)
            for i, form, trace in zip(large, forms, traces, strict=True):
                found[i] = self._trace(int(i), form, trace)[0]
        return found

    def _trace(self, i: int, form: Any = None, trace: float = 0.0) -> tuple[float, float]:
        """(of A^-1 for ridge i, its standard error); form: of another control with this trace."""
        owners = sorted(own for ridge, own in self.forms if ridge == i)
        if not owners:
            return np.nan, np.nan
        values, first = np.array([self.forms[i, own] for own in owners]).T
        held, known = [first], [self.inverse.traces()[i]]
        if form is not None and len(owners) >= 2 * FEW:
            held.append(form[np.array(owners) - self.k])
            known.append(trace)
        means = np.mean(held, axis=1)
        spread, slopes = np.array(held).T - means, np.ones(1)
        if len(owners) >= 2 * FEW:
            slopes = np.linalg.lstsq(spread, values - values.mean(), rcond=None)[0]
        found = values.mean() + slopes @ (known - means)
        rest = values - values.mean() - spread @ slopes
        return found, float(np.sqrt(rest @ rest / max(len(owners) - 2, 1) / len(owners)))
