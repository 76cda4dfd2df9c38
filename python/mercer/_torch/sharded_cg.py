"""Conjugate gradients on sharded columns."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mercer._torch import agreement
from mercer._torch.sharded_inverse import ShardedPreconditioner
from mercer._torch.sharded_operator import ShardedOperator, begin, check_tolerance
from mercer.errors import LinAlgError

_LIVE, _DONE, _MISSED, _STAGNATED, _NOT_FINITE, _NOT_POSITIVE = range(6)


class _Solve:
    """Columns that share their products; each ends on its own, by a residual that was measured."""

    def __init__(
        self, a: ShardedOperator, b: Tensor, ridges: Tensor, inverse: Any, tol: float, most: int
    ) -> None:  # fmt: skip
        self.a, self.b, self.inverse, self.tol, self.most = a, b, inverse, tol, most
        self.ridges = ridges.to(b)
        count = b.shape[1]
        self.x = torch.zeros_like(b)
        self.size = a.dots(b, b)
        self.state = torch.full((count,), _LIVE)
        self.products = torch.zeros(count, dtype=torch.int64)
        self.measured = torch.full((count,), torch.inf, dtype=torch.float64)
        self.state[~self.size.isfinite().cpu()] = _NOT_FINITE
        self.state[(self.size == 0).cpu()] = _DONE

    def live(self) -> Tensor:
        return (self.state == _LIVE).nonzero()[:, 0]

    def run(self, guess: Tensor | None) -> None:
        self.r = self.b.clone()
        if guess is not None:
            self.x = guess.clone()
            self.x[:, self.state == _DONE] = 0
            self.measure(self.live())
        self.p, self.rz = torch.zeros_like(self.b), torch.ones_like(self.size)
        fresh = torch.ones_like(self.state, dtype=torch.bool)
        while len(self.live()):
            own = self.live()
            z = self.r[:, own] if self.inverse is None else self.inverse.apply(self.r[:, own])
            rz = self.a.dots(self.r[:, own], z)
            lost = ~(rz > 0) & rz.isfinite()  # by rounding of the preconditioner
            z = torch.where(lost, self.r[:, own], z)
            rz = torch.where(lost, self.a.dots(self.r[:, own], self.r[:, own]), rz)
            beta = torch.where(fresh[own].to(rz.device), torch.zeros_like(rz), rz / self.rz[own])
            self.p[:, own] = z + beta.to(z.dtype) * self.p[:, own]
            self.rz[own] = rz
            fresh[own] = False
            ended = self.step(own)
            again = self.measure(ended) if len(ended) else ended
            fresh[again] = True

    def multiply(self, columns: Tensor, own: Tensor) -> Tensor:
        return self.a.multiply(columns) + self.ridges[own] * columns

    def step(self, own: Tensor) -> Tensor:
        """One product for each; gives those whose residual should be measured."""
        p = self.p[:, own]
        q = self.multiply(p, own)
        self.products[own] += 1
        pq = self.a.dots(p, q)
        is_bad, is_flat = ~pq.isfinite(), pq <= 0
        self.state[own[is_bad.cpu()]] = _NOT_FINITE
        self.state[own[is_flat.cpu()]] = _NOT_POSITIVE
        alpha = (self.rz[own] / pq).to(p.dtype)
        self.x[:, own] += alpha * p
        self.r[:, own] -= alpha * q
        left = self.a.dots(self.r[:, own], self.r[:, own])
        should = (left <= 0.25 * self.tol**2 * self.size[own]).cpu() | ~left.isfinite().cpu()
        should |= self.products[own] + 1 >= self.most
        return own[should & (self.state[own] == _LIVE)]

    def measure(self, own: Tensor) -> Tensor:
        """b - a x itself. Gives the columns that start again from it."""
        if not len(own):
            return own
        self.r[:, own] = self.b[:, own] - self.multiply(self.x[:, own], own)
        self.products[own] += 1
        found = self.a.dots(self.r[:, own], self.r[:, own]).cpu()
        size = self.size[own].cpu()
        state = torch.full_like(self.state[own], _LIVE)
        # What has not fallen to three quarters never will: the dtype does not reach the tolerance.
        state[found > (0.75**2) * self.measured[own]] = _STAGNATED
        state[self.products[own] >= self.most] = _MISSED
        state[found <= self.tol**2 * size] = _DONE
        state[~found.isfinite()] = _NOT_FINITE
        self.state[own], self.measured[own] = state, found
        return own[state == _LIVE]

    def require_done(self) -> None:
        failed = (self.state != _DONE).nonzero()[:, 0].tolist()
        if not failed:
            return
        worst = max(
            failed, key=lambda c: (int(self.state[c]) > _STAGNATED, self.measured[c].item())
        )
        which = f"column {worst} ({len(failed)} of {len(self.state)} failed)"
        if self.state[worst] == _NOT_FINITE:
            raise LinAlgError(
                f"cg: b, x and products with a must be finite. Received NaN or infinity in {which}."
            )
        if self.state[worst] == _NOT_POSITIVE:
            raise LinAlgError(
                f"cg: a must be positive definite. Received p^T a p <= 0 in {which} after "
                f"{int(self.products[worst])} products."
            )
        residual = math.sqrt(self.measured[worst] / self.size[worst])
        missed = (
            f"cg: residuals must be at most {self.tol:.3g} of b. Received {residual:.3g} in "
            f"{which} after {int(self.products[worst])} products, "
        )
        if self.state[worst] == _STAGNATED:
            wider = ", or float64," if self.a.dtype == torch.float32 else ""
            name = str(self.a.dtype).removeprefix("torch.")
            raise LinAlgError(
                f"{missed}where it stagnated: {name} gets no closer; a larger ridge or tol{wider} "
                f"helps."
            )
        raise LinAlgError(
            f"{missed}which were all of them; a larger max_iter, ridge or tol, or a preconditioner "
            f"helps."
        )


def _check_preconditioner(a: ShardedOperator, inverse: Any) -> None:
    if inverse is None:
        return
    if not isinstance(inverse, ShardedPreconditioner):
        raise ValueError(
            f"cg: the preconditioner must be of an operator of DTensors. Received {type(inverse)}"
        )
    if inverse.shape != a.shape or inverse.dtype != a.dtype:
        raise ValueError(
            f"cg: the preconditioner must be of the operator's order and dtype, {a.shape[0]} and "
            f"{a.dtype}. Received {inverse.shape[0]} and {inverse.dtype}"
        )


def _check_ridges(ridges: Tensor, b: Any) -> None:
    if ridges.ndim > 0 and tuple(ridges.shape) != tuple(b.shape[1:]):
        raise ValueError(
            f"cg: ridge must be a number or have one for each column of b, shape "
            f"{tuple(b.shape[1:])}. Received {tuple(ridges.shape)}."
        )
    if not bool(((ridges >= 0) & ridges.isfinite()).all()):
        raise ValueError(f"cg: ridge must be from 0 on and finite. Received {ridges.tolist()}.")


def cg(
    a: ShardedOperator, b: Any, *, ridge: Any = None, preconditioner: Any = None,
    tol: float | None = None, max_iter: int | None = None, x0: Any = None, out: Any = None,
    check: bool = True,
) -> Any:  # fmt: skip
    tolerance = (1e-5 if a.dtype == torch.float32 else 1e-10) if tol is None else tol
    most = min(10 * max(a.shape[0], 1), 10000) if max_iter is None else max_iter
    ridges = torch.as_tensor(0.0 if ridge is None else ridge, dtype=torch.float64).cpu()

    def checks() -> None:
        check_tolerance("cg", tolerance)
        if most < 1:
            raise ValueError(f"cg: max_iter must be positive. Received {max_iter}.")
        _check_preconditioner(a, preconditioner)
        _check_ridges(ridges, b)
        for name, other in (("x0", x0), ("out", out)):
            if other is not None and tuple(other.shape) != tuple(b.shape):
                raise ValueError(
                    f"cg: {name} must have the shape of b, {tuple(b.shape)}. "
                    f"Received {tuple(other.shape)}"
                )

    begin("cg", a, [tolerance, most, check, ridges.tolist()], checks, b=b, x0=x0, out=out)
    with agreement.answered("cg"):
        own = a.split(b)
        solve = _Solve(a, own, ridges.expand(own.shape[1]), preconditioner, tolerance, most)
        solve.run(None if x0 is None else a.split(x0))
    if check:
        solve.require_done()
    solve.x[:, (solve.state == _NOT_FINITE) | (solve.state == _NOT_POSITIVE)] = torch.nan
    x = a.joined(solve.x, b)
    if out is not None:
        x = out.copy_(x)
    if check:
        return x
    info = torch.full_like(solve.products, -1)
    info[solve.state == _DONE], info[solve.state == _STAGNATED] = 0, -2
    missed = solve.state == _MISSED
    info[missed] = solve.products[missed]
    counts = [a.whole(t[0] if b.ndim == 1 else t) for t in (info, solve.products)]
    return (x, *counts)
