"""mercer.linalg for kernel operators whose points are DTensors.

Long columns [n, k] are split by rows as the points are. A product gathers its columns and has the
rows of this rank; sums over rows are float64, gathered and added in the order of the ranks, so
that every rank has the same bits; small matrices are factored on the first rank and sent to all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from mercer import _mercer, _verbs
from mercer._torch import agreement
from mercer._torch.operands import leaves
from mercer._torch.sharded import first_of
from mercer.errors import DtypeError, LinAlgError

_DIAGONAL = 256  # points of which all pairs are made for their diagonal
_COLUMNS = 1 << 16  # rows of random columns that are drawn at once
_STALLED = 100  # products without a smaller residual that end a search


class ShardedOperator:
    """The symmetric matrix f(x_m, x_n) + ridge (m = n) of points [n, K] that are a DTensor.

    What mercer.linalg.KernelOperator makes of such points: on a mesh of one dimension, split by
    rows or replicated. The points are gathered once, n K numbers on each rank; columns of the
    methods are split.
    """

    def __init__(self, f: Any, x: DTensor, *, ridge: float = 0.0, **params: Any) -> None:
        verb, self.mesh, self.ridge = "KernelOperator", x.device_mesh, ridge
        self._formula = _mercer.formula_for(f, "kernel_product", False, params)
        text = str(self._formula)
        self._params = {name: _bare(value) for name, value in params.items()}

        def check() -> None:
            _placement(verb, "x", x)
            if x.requires_grad and torch.is_grad_enabled():
                raise NotImplementedError(
                    f"{verb}: x must not track gradients. Received requires_grad=True; pass "
                    f"x.detach()"
                )

        self.facts = [text, *map(_told, sorted(self._params.items())), ridge]
        agreement.require(verb, [("x", x)], self.facts, check)
        with agreement.answered(verb):
            self._points = x.detach().redistribute(self.mesh, [Replicate()]).to_local()
        # One process's operator checks formula, parameters and ridge.
        _mercer.KernelOperator(self._formula, self._points, ridge=ridge, **self._params)
        self._reads = leaves(text) & {"i", "j"}
        self.placement, self.dtype = x.placements[0], self._points.dtype
        self.ridge = float(ridge)
        self.shape = (x.shape[0], x.shape[0])
        self.first, self.rows = first_of(x.shape[0], "m", ["m"], self.mesh)
        self._own = self._points[self.first : self.first + self.rows]

    @property
    def group(self) -> Any:
        return self.mesh.get_group(0)

    def values(self, first: int, own: Tensor, columns: Tensor, start: int) -> Tensor:
        """The matrix without its ridge, of points from these indices on."""
        offsets = {"i_offset": first, "j_offset": start} if self._reads else {}
        return _verbs.pairwise(self._formula, own, columns, **offsets, **self._params)

    def multiply(self, columns: Tensor) -> Tensor:
        """The rows of this rank of the matrix times the columns [n, k] of all."""
        whole = self.gathered(columns)
        offsets = {"i_offset": self.first} if self._reads else {}
        product = _verbs.kernel_product(
            self._formula, self._own, self._points, whole, **offsets, **self._params
        )
        return product.add_(columns, alpha=self.ridge) if self.ridge else product

    def gathered(self, columns: Tensor) -> Tensor:
        shape = torch.Size((self.shape[0], columns.shape[1]))
        split = DTensor.from_local(
            columns.contiguous(), self.mesh, [Shard(0)], run_check=False, shape=shape,
            stride=(shape[1], 1),
        )  # fmt: skip
        return split.redistribute(self.mesh, [Replicate()]).to_local()

    def each(self, part: Tensor) -> Tensor:
        """The parts of all ranks [ranks, ...], in their order."""
        part = part.contiguous()
        found = [torch.empty_like(part) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(found, part, group=self.group)
        return torch.stack(found)

    def summed(self, part: Tensor) -> Tensor:
        return self.each(part.double()).sum(0)

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        return self.summed((a.double() * b.double()).sum(0))

    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        return self.summed(a.double().mT @ b.double())

    def agreed(self, *small: Tensor) -> list[Tensor]:
        """What the first rank found: libraries on other processors may differ in last bits."""
        sent = [t.contiguous() for t in small]
        for tensor in sent:
            dist.broadcast(tensor, dist.get_global_rank(self.group, 0), group=self.group)
        return sent

    def eigh(self, matrix: Tensor) -> list[Tensor]:
        return self.agreed(*torch.linalg.eigh((matrix + matrix.mT) / 2))

    def split(self, tensor: Any) -> Tensor:
        """The rows of this rank of an argument [n, k], or [n] as one column."""
        rows = tensor.detach().redistribute(self.mesh, [Shard(0)]).to_local()
        return rows.to(self.dtype).reshape(self.rows, -1)

    def joined(self, rows: Tensor, like: Any) -> DTensor:
        """Rows of all ranks as a DTensor with the shape and placement of an argument."""
        if like.ndim == 1:
            rows = rows[:, 0]
        stride = (1,) if like.ndim == 1 else (like.shape[1], 1)
        whole = DTensor.from_local(
            rows.contiguous(), self.mesh, [Shard(0)], run_check=False, shape=like.shape,
            stride=stride,
        )  # fmt: skip
        return whole.redistribute(self.mesh, like.placements)

    def whole(self, small: Tensor) -> DTensor:
        return DTensor.from_local(small, self.mesh, [Replicate()], run_check=False)

    def random(self, columns: int, seed: int) -> Tensor:
        """The rows of this rank of normal columns that are the same for any number of ranks."""
        draw = torch.Generator().manual_seed(seed)
        found = []
        for start in range(0, self.shape[0], _COLUMNS):
            rows = min(_COLUMNS, self.shape[0] - start)
            block = torch.randn(rows, columns, generator=draw, dtype=torch.float64)
            begin = max(self.first - start, 0)
            found.append(block[begin : max(self.first + self.rows - start, 0)])
        drawn = torch.cat(found) if found else torch.empty(0, columns, dtype=torch.float64)
        return drawn.to(self._own.device)


def _bare(value: Any) -> Any:
    if not isinstance(value, DTensor):
        return value
    return value.detach().full_tensor()


def _told(parameter: tuple[str, Any]) -> str:
    name, value = parameter
    return f"{name} = {value.tolist() if hasattr(value, 'tolist') else value}"


def _placement(verb: str, name: str, tensor: Any) -> None:
    """A DTensor must be split by rows, or replicated, on a mesh of one dimension."""
    if not isinstance(tensor, DTensor):
        raise ValueError(
            f"{verb}: {name} must be a DTensor on the mesh of the points; write "
            f"distribute_tensor({name}, mesh, [Shard(0)]). Received {type(tensor)}"
        )
    placements = tensor.placements
    if len(placements) != 1:
        raise ValueError(
            f"{verb}: {name} must be on a mesh of one dimension; write {name} on a part of it, "
            f"mesh['name']. Received {tensor.device_mesh}"
        )
    if type(placements[0]) not in (Shard, Replicate) or placements[0] not in (
        Shard(0),
        Replicate(),
    ):
        raise ValueError(
            f"{verb}: {name} must be split by rows or replicated; write "
            f"{name}.redistribute(placements=[Shard(0)]). Received {placements[0]}"
        )


def _begin(
    verb: str, a: Any, facts: Sequence[Any], check: Callable[[], None], **columns: Any
) -> None:
    """Checks the arguments, those of n rows among them; and that all ranks make the same call."""
    given = [(name, tensor) for name, tensor in columns.items() if tensor is not None]
    texts = [*a.facts, a.shape, *facts]

    def checks() -> None:
        check()
        for name, tensor in given:
            _check_columns(verb, a, name, tensor)

    if any(isinstance(tensor, DTensor) for _, tensor in given):
        agreement.require(verb, given, texts, checks)
    else:
        agreement.compare(verb, a.mesh, "; ".join(map(str, [verb, *texts])), checks)


def _check_columns(verb: str, a: Any, name: str, tensor: Any) -> None:
    _placement(verb, name, tensor)
    if tensor.ndim not in (1, 2) or tensor.shape[0] != a.shape[0]:
        raise ValueError(
            f"{verb}: {name} must have the shape [n, k] or [n], n = {a.shape[0]}. "
            f"Received {tuple(tensor.shape)}"
        )
    if tensor.dtype != a.dtype:
        raise DtypeError(
            f"{verb}: {name} must have the dtype of the operator, {a.dtype}. "
            f"Received {tensor.dtype}"
        )


# ---- Conjugate gradients. -----------------------------------------------------------------------

_LIVE, _DONE, _MISSED, _NOT_FINITE, _NOT_POSITIVE = range(5)


class _Solve:
    """Columns that share their products; each ends on its own, by a residual that was measured."""

    def __init__(self, a: ShardedOperator, b: Tensor, inverse: Any, tol: float, most: int) -> None:
        self.a, self.b, self.inverse, self.tol, self.most = a, b, inverse, tol, most
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

    def step(self, own: Tensor) -> Tensor:
        """One product for each; gives those whose residual should be measured."""
        p = self.p[:, own]
        q = self.a.multiply(p)
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
        self.r[:, own] = self.b[:, own] - self.a.multiply(self.x[:, own])
        self.products[own] += 1
        found = self.a.dots(self.r[:, own], self.r[:, own]).cpu()
        size = self.size[own].cpu()
        state = torch.full_like(self.state[own], _LIVE)
        # What has not fallen to three quarters never will: the dtype does not reach the tolerance.
        state[(found > (0.75**2) * self.measured[own]) | (self.products[own] >= self.most)] = (
            _MISSED
        )
        state[found <= self.tol**2 * size] = _DONE
        state[~found.isfinite()] = _NOT_FINITE
        self.state[own], self.measured[own] = state, found
        return own[state == _LIVE]

    def require_done(self) -> None:
        failed = (self.state != _DONE).nonzero()[:, 0].tolist()
        if not failed:
            return
        worst = max(failed, key=lambda c: (int(self.state[c]) > _MISSED, self.measured[c].item()))
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
        raise LinAlgError(
            f"cg: residuals must be at most {self.tol:.3g} of b. Received {residual:.3g} in "
            f"{which} after {int(self.products[worst])} products; a larger ridge, tol or "
            f"max_iter, a preconditioner or float64 help."
        )


def _check_tolerance(verb: str, tol: float) -> None:
    if not 0 < tol < 1:
        raise ValueError(f"{verb}: tol must be from 0 to 1. Received {tol}.")


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


def cg(
    a: ShardedOperator, b: Any, *, preconditioner: Any = None, tol: float | None = None,
    max_iter: int | None = None, x0: Any = None, out: Any = None, check: bool = True,
) -> Any:  # fmt: skip
    tolerance = (1e-5 if a.dtype == torch.float32 else 1e-10) if tol is None else tol
    most = min(10 * max(a.shape[0], 1), 10000) if max_iter is None else max_iter

    def checks() -> None:
        _check_tolerance("cg", tolerance)
        if most < 1:
            raise ValueError(f"cg: max_iter must be positive. Received {max_iter}.")
        _check_preconditioner(a, preconditioner)
        for name, other in (("x0", x0), ("out", out)):
            if other is not None and tuple(other.shape) != tuple(b.shape):
                raise ValueError(
                    f"cg: {name} must have the shape of b, {tuple(b.shape)}. "
                    f"Received {tuple(other.shape)}"
                )

    _begin("cg", a, [tolerance, most, check], checks, b=b, x0=x0, out=out)
    with agreement.answered("cg"):
        solve = _Solve(a, a.split(b), preconditioner, tolerance, most)
        solve.run(None if x0 is None else a.split(x0))
    if check:
        solve.require_done()
    solve.x[:, (solve.state == _NOT_FINITE) | (solve.state == _NOT_POSITIVE)] = torch.nan
    x = a.joined(solve.x, b)
    if out is not None:
        x = out.copy_(x)
    if check:
        return x
    info = torch.where(
        solve.state == _DONE, 0, torch.where(solve.state == _MISSED, solve.products, -1)
    )
    counts = [a.whole(t[0] if b.ndim == 1 else t) for t in (info, solve.products)]
    return (x, *counts)


# ---- Preconditioners. ---------------------------------------------------------------------------


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


def _orthonormal(a: ShardedOperator, columns: Tensor) -> Tensor:
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
    _begin("nystrom", a, [rank, ridge, seed], lambda: _check_rank("nystrom", rank))
    with agreement.answered("nystrom"):
        basis = _orthonormal(a, a.random(min(rank, a.shape[0]), seed))
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
        columns = _orthonormal_of(a, long @ (vectors / squares.sqrt()))
        found = (squares - 2 * shift).clamp(min=0)
        least = found[0].item() if found.numel() else 0.0
        return _damped(a, columns, found, ridge, least, 1.0) if ridge + least > 0 else _identity(a)


def _identity(a: ShardedOperator) -> ShardedPreconditioner:
    return ShardedPreconditioner(a, torch.zeros(a.rows, 1, dtype=a.dtype), 1.0)


def _orthonormal_of(a: ShardedOperator, columns: Tensor) -> Tensor:
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

    _begin("pivoted_cholesky", a, [rank], checks)
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
            column = a.values(a.first, a._own, a._points[pivot : pivot + 1], pivot)[:, 0].double()
            lower[:, step] = (column - lower @ row) / math.sqrt(value)
            left = left - lower[:, step] ** 2
            if a.first <= pivot < a.first + a.rows:
                left[pivot - a.first] = 0
        values, vectors = a.eigh(a.gram(lower, lower))
        kept = values > torch.finfo(a.dtype).eps * values.max().clamp(min=0) if rank else values > 0
        values, vectors = values[kept], vectors[:, kept]
        columns = lower @ (vectors / values.sqrt())
        return _damped(a, columns, values, a.ridge, 0.0, 1 / a.ridge)


def _next_pivot(a: ShardedOperator, left: Tensor, lower: Tensor) -> tuple[float, int, Tensor]:
    """The largest diagonal that is left, its index, and its row of the factor."""
    own = torch.full((2 + lower.shape[1],), -torch.inf, dtype=torch.float64, device=left.device)
    if a.rows:
        place = int(left.argmax())
        own = torch.cat([left[place : place + 1], own.new_tensor([a.first + place]), lower[place]])
    found = a.each(own)
    best = found[int(found[:, 0].argmax())]
    return best[0].item(), int(best[1].item()) if best[0].isfinite() else 0, best[2:]


# ---- Eigenvalues and determinants. --------------------------------------------------------------


def eigh_top(
    a: ShardedOperator, k: int, *, which: str = "largest", tol: float | None = None,
    max_basis: int | None = None, seed: int = 0, check: bool = True,
) -> Any:  # fmt: skip
    n, tolerance = a.shape[0], tol
    if tol is None:
        tolerance = 2e-6 if a.dtype == torch.float32 else 1e-10
    most = min(n, max(10 * k, 96) if max_basis is None else max(max_basis, 2 * max(8, k)))

    def checks() -> None:
        _check_tolerance("eigh_top", tolerance)
        if not 1 <= k <= n:
            raise ValueError(f"eigh_top: k must be from 1 to n, {n}. Received {k}.")
        if which not in ("largest", "smallest", "magnitude"):
            raise ValueError(
                f'eigh_top: which must be "largest", "smallest" or "magnitude". Received {which!r}.'
            )

    _begin("eigh_top", a, [k, which, tolerance, most, seed], checks)
    with agreement.answered("eigh_top"):
        values, vectors, missed = _top(a, k, which, tolerance, most, seed)
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


def _chosen(values: Tensor, k: int, which: str) -> Tensor:
    """Places of the wanted values, ascending by value."""
    key = {"largest": -values, "smallest": values, "magnitude": -values.abs()}[which]
    return torch.sort(torch.sort(key, stable=True).indices[:k]).values


def _top(
    a: ShardedOperator, k: int, which: str, tol: float, most: int, seed: int
) -> tuple[Tensor, Tensor, int]:
    """Krylov's method by blocks: products of the residuals' span, thick restarts."""
    block = min(most, max(8, k))
    basis = _orthonormal(a, a.random(block, seed))
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
        columns = _orthonormal(a, columns)
    return columns


def inv_quad_logdet(
    a: ShardedOperator, b: Any, *, probes: int = 32, steps: int = 64, tol: float | None = None,
    seed: int = 0, preconditioner: Any = None,
) -> tuple[DTensor, DTensor]:  # fmt: skip
    def checks() -> None:
        if probes < 1 or steps < 1:
            raise ValueError(
                f"inv_quad_logdet: probes and steps must be positive. "
                f"Received {probes} and {steps}."
            )

    _begin("inv_quad_logdet", a, [probes, steps, seed], checks, b=b)
    x = cg(a, b, tol=tol, preconditioner=preconditioner)
    with agreement.answered("inv_quad_logdet"):
        quad = a.dots(a.split(b), a.split(x)).to(a.dtype)
        logdet = _logdet(a, probes, min(steps, a.shape[0]), seed).to(a.dtype)
    return a.whole(quad[0] if b.ndim == 1 else quad), a.whole(logdet)


def _logdet(a: ShardedOperator, probes: int, steps: int, seed: int) -> Tensor:
    """Lanczos quadrature of the logarithm with random signs: the mean of n e1^T log(T) e1."""
    v = a.random(probes, seed).sign()
    v[v == 0] = 1
    v = v / math.sqrt(max(a.shape[0], 1))
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
    small = torch.diag_embed(torch.stack(diagonal, -1))
    if steps > 1:
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
    return a.shape[0] * (weights * logs).sum(-1).mean()


SERVED: dict[str, Callable[..., Any]] = {
    "cg": cg,
    "eigh_top": eigh_top,
    "inv_quad_logdet": inv_quad_logdet,
    "nystrom": nystrom,
    "pivoted_cholesky": pivoted_cholesky,
}
