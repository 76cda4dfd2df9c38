"""mercer.linalg for points that are DTensors: the end of a spectrum, and determinants."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from mercer import _mercer
from mercer._torch import agreement
from mercer._torch.sharded_cg import cg
from mercer._torch.sharded_inverse import nystrom, orthonormal, pivoted_cholesky, rpcholesky
from mercer._torch.sharded_operator import ShardedOperator, begin, check_tolerance
from mercer.errors import LinAlgError
from mercer.linalg._stochastic import InvQuadLogdet, check_probes

_STALLED = 100  # products without a smaller residual that end a search
_MOST_STEPS = 64  # of Lanczos' quadrature
_LAST = 4  # steps whose gain stands for what is missing


def eigh_top(
    a: ShardedOperator, k: int, *, which: str = "largest", tol: float | None = None,
    max_basis: int | None = None, seed: int = 0, check: bool = True,
) -> Any:  # fmt: skip
    n = a.shape[0]
    tolerance = (2e-6 if a.dtype == torch.float32 else 1e-10) if tol is None else tol
    most = min(n, max(10 * k, 96) if max_basis is None else max(max_basis, 2 * max(8, k)))

    def checks() -> None:
        check_tolerance("eigh_top", tolerance)
        if not 1 <= k <= n:
            raise ValueError(f"eigh_top: k must be from 1 to n, {n}. Received {k}.")
        if which not in ("largest", "smallest", "magnitude"):
            raise ValueError(
                f'eigh_top: which must be "largest", "smallest" or "magnitude". Received {which!r}.'
            )

    begin("eigh_top", a, [k, which, tolerance, most, seed], checks)
    search = _alone if _is_quick(a, k) else _top
    with agreement.answered("eigh_top"):
        values, vectors, missed = search(a, k, which, tolerance, most, seed)
    if check and missed:
        raise LinAlgError(
            f"eigh_top: residuals must be at most {tolerance:.3g} of the largest eigenvalue. "
            f"Received {missed} of {k} pairs that miss it; a larger tol or max_basis helps."
        )
    w = a.whole(values.to(a.dtype))
    like = DTensor.from_local(
        vectors.to(a.dtype).contiguous(), a.mesh, [Shard(0)], run_check=False,
        shape=torch.Size((n, k)), stride=(k, 1),
    )  # fmt: skip
    found = (w, like.redistribute(a.mesh, [a.placement]))
    return found if check else (found, missed)


def _is_quick(a: ShardedOperator, k: int) -> bool:
    """Whether a step is so short that the sums over ranks take longer than their share saves."""
    if not a.points.is_cuda:
        return False
    operations = float(a.shape[0]) ** 2 * (a.points.shape[1] + max(8, k))
    return operations < _mercer.alone_until(a.points.get_device())


def _chosen(values: Tensor, k: int, which: str) -> Tensor:
    """Places of the wanted values, ascending by value."""
    key = {"largest": -values, "smallest": values, "magnitude": -values.abs()}[which]
    return torch.sort(torch.sort(key, stable=True).indices[:k]).values


def _alone(
    a: ShardedOperator, k: int, which: Any, tol: float, most: int, seed: int
) -> tuple[Tensor, Tensor, int]:
    """The search of one process on each rank, and what the first rank found."""
    (values, vectors), missed = _mercer.eigh_top(
        a.on_this_rank, k, which=which, tol=tol, max_basis=most, seed=seed, check=False
    )
    count = torch.tensor([missed], device=values.device)
    values, vectors, count = a.agreed(values, vectors, count)
    return values, vectors[a.first : a.first + a.rows], int(count)


def _top(
    a: ShardedOperator, k: int, which: str, tol: float, most: int, seed: int
) -> tuple[Tensor, Tensor, int]:
    """Krylov's method by blocks: products of the residuals' span, thick restarts."""
    block = min(most, max(8, k))
    basis = orthonormal(a, a.random(block, seed))
    products = a.multiply(basis.to(a.dtype)).double()
    best, stalled = torch.inf, 0
    while True:
        values, vectors = a.eigh(a.gram(basis, products))
        chosen = _chosen(values, k, which)
        top = basis @ vectors[:, chosen]
        rest = products @ vectors[:, chosen] - top * values[chosen]
        residuals = a.dots(rest, rest).sqrt()
        bound = tol * values.abs().max()
        missed = int((~(residuals <= bound)).sum())
        worst = residuals.max().item()
        stalled = 0 if worst < 0.9 * best else stalled + 1
        best = min(best, worst)
        if not missed or stalled > _STALLED or basis.shape[1] >= a.shape[0]:
            return values[chosen], top, missed
        if basis.shape[1] + block > most:
            kept = _chosen(values, min(max(k + block, most // 2), most - block), which)
            basis, products = basis @ vectors[:, kept], products @ vectors[:, kept]
        added = _beyond(a, basis, rest[:, ~(residuals <= bound)][:, :block])
        if added.shape[1] == 0:
            return values[chosen], top, missed
        basis = torch.cat([basis, added], 1)
        products = torch.cat([products, a.multiply(added.to(a.dtype)).double()], 1)


def _beyond(a: ShardedOperator, basis: Tensor, columns: Tensor) -> Tensor:
    """Orthonormal columns of the span, orthogonal to the basis."""
    size = a.dots(columns, columns).sqrt()
    columns = columns / size.clamp(min=torch.finfo(torch.float64).tiny)
    for _ in range(2):
        columns = columns - basis @ a.gram(basis, columns)
        columns = orthonormal(a, columns)
    return columns


def inv_quad_logdet(
    a: ShardedOperator, b: Any, *, n_probes: int = 16, preconditioner: Any = None,
    tol: float | None = None, max_iter: int | None = None, seed: int = 0,
) -> InvQuadLogdet:  # fmt: skip
    begin("inv_quad_logdet", a, [n_probes, max_iter, seed], lambda: check_probes(n_probes), b=b)
    x = cg(a, b, tol=tol, max_iter=max_iter, preconditioner=preconditioner)
    with agreement.answered("inv_quad_logdet"):
        quad = a.dots(a.split(b), a.split(x))
        steps = _MOST_STEPS if max_iter is None else max_iter
        logdet, error = _logdet(a, n_probes, min(steps, a.shape[0]), seed)
    found = (quad[0] if b.ndim == 1 else quad, logdet, error)
    return InvQuadLogdet(*(a.whole(part) for part in found))


def _logdet(a: ShardedOperator, probes: int, steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """Lanczos quadrature of the logarithm with random signs: the mean of n e1^T log(T) e1, and its
    standard error with what the last steps gained, where there are more of them."""
    n = a.shape[0]
    v = a.random(probes, seed).sign()
    v[v == 0] = 1
    v = v / math.sqrt(max(n, 1))
    before, beta = torch.zeros_like(v), torch.zeros(probes, dtype=torch.float64, device=v.device)
    diagonal, sides, known = [], [], []
    is_live = torch.ones_like(beta, dtype=torch.bool)
    for _ in range(steps):
        known.append(v)
        q = a.multiply(v.to(a.dtype)).double() - beta * before
        alpha = a.dots(v, q)
        q = q - alpha * v
        basis = torch.stack(known)
        q = q - (a.summed((basis * q).sum(1)).unsqueeze(1) * basis).sum(0)  # what rounding brings
        before, beta = v, a.dots(q, q).sqrt()
        diagonal.append(torch.where(is_live, alpha, 1))  # log 1 = 0 where nothing is left
        is_live = is_live & (beta > 1e-12 * alpha.abs())
        beta = torch.where(is_live, beta, 0)
        sides.append(beta)
        v = torch.where(is_live, q / torch.where(is_live, beta, 1), 0)
    if not diagonal:
        return torch.zeros_like(beta[0]), torch.zeros_like(beta[0])
    found = n * _quadrature(a, diagonal, sides)
    error = found.std() / math.sqrt(probes) if probes > 1 else torch.full_like(found[0], math.inf)
    if steps < n and steps > _LAST:
        earlier = n * _quadrature(a, diagonal[:-_LAST], sides[:-_LAST]).mean()
        error = torch.hypot(error, found.mean() - earlier)
    return found.mean(), error


def _quadrature(a: ShardedOperator, diagonal: list[Tensor], sides: list[Tensor]) -> Tensor:
    """e1^T log(T) e1 of each probe."""
    small = torch.diag_embed(torch.stack(diagonal, -1))
    if len(diagonal) > 1:
        off = torch.stack(sides[:-1], -1)
        small = small + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    values, vectors = a.agreed(*torch.linalg.eigh(small))
    weights = vectors[:, 0, :] ** 2
    is_used = weights > 1e-14
    if not bool((values[is_used] > 0).all()):
        raise LinAlgError(
            "inv_quad_logdet: a must be positive definite. Received an eigenvalue of "
            f"{values[is_used].min().item():.3g}."
        )
    logs = torch.where(is_used, values.clamp(min=1e-300).log(), torch.zeros_like(values))
    return (weights * logs).sum(-1)


SERVED: dict[str, Callable[..., Any]] = {
    "cg": cg,
    "eigh_top": eigh_top,
    "inv_quad_logdet": inv_quad_logdet,
    "nystrom": nystrom,
    "pivoted_cholesky": pivoted_cholesky,
    "rpcholesky": rpcholesky,
}
