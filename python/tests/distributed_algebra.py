"""mercer.linalg for operators of DTensors, and Kronecker products of sharded x."""

from __future__ import annotations

import math
from unittest import mock

import mercer as mc
import numpy as np
import torch
from distributed_worker import ROWS, WHOLE, close, derivatives, raises, randn, same
from mercer import _random_pivots
from mercer._torch import sharded_linalg
from torch.distributed.tensor import Shard

N = 101


def operators(ranks, dtype=torch.float64, placement=ROWS, **options):
    x = randn(N, 3, seed=1, dtype=dtype)
    dense = mc.pairwise("gauss", x.double(), bandwidth=1.5) + 0.5 * torch.eye(N).double()
    options = {"ridge": 0.5, "bandwidth": 1.5, **options}
    return mc.linalg.KernelOperator("gauss", ranks.put(x, placement), **options), dense


def same_on_all(ranks, tensor):
    """Equal to the bit on every rank."""
    parts = [torch.empty_like(tensor) for _ in range(ranks.size)]
    torch.distributed.all_gather(parts, tensor.contiguous())
    for part in parts:
        same(part, tensor)


def check_cg(ranks):
    b = randn(N, 4, seed=2)
    b[:, 2] = 0
    a, dense = operators(ranks)
    solution = torch.linalg.solve(dense, b)
    # A residual of 1e-10 |b|, by a matrix whose smallest eigenvalue is 0.5.
    bound = 2e-10 * b.norm(dim=0).max().item()
    made = (mc.linalg.nystrom(a, 30, seed=3), mc.linalg.pivoted_cholesky(a, 30),
            mc.linalg.rpcholesky(a, 30, block=7))  # fmt: skip
    for inverse in (None, *made):
        x, info, rounds = mc.linalg.cg(a, ranks.put(b), preconditioner=inverse, check=False)
        assert x.placements == (ROWS,)
        close(x, solution, bound)
        assert info.to_local().tolist() == [0] * 4
        assert int(rounds.to_local().max()) <= (60 if inverse is None else 25)
        same_on_all(ranks, x.full_tensor())
    vector = ranks.put(b[:, 0].contiguous(), WHOLE)
    x = mc.linalg.cg(a, vector)
    assert x.placements == (WHOLE,)
    close(x, solution[:, 0], bound)
    out = ranks.put(torch.zeros_like(b))
    x = mc.linalg.cg(a, ranks.put(b), x0=ranks.put(solution), out=out)
    assert x is out
    close(out, solution, bound)


def check_random_pivots(ranks):
    """Any number of ranks finds the pivots that one process finds in the stored matrix."""
    a, dense = operators(ranks)
    kernel, rank = (dense - 0.5 * torch.eye(N)).numpy(), 20
    draws = _random_pivots.Draws(kernel.diagonal(), 2.0**-52, seed=5)
    lower, pivots = np.zeros((N, 0)), []
    while lower.shape[1] < rank:
        some = draws.proposed(6)
        left = kernel - lower @ lower.T
        taken, small = draws.accepted(some, left[np.ix_(some, some)], rank - lower.shape[1])
        pivots += some[taken].tolist()
        lower = np.c_[lower, np.linalg.solve(small, left[some[taken]]).T]
        draws.take(some[taken], (kernel - lower @ lower.T).diagonal())
    assert len(set(pivots)) == rank
    wanted = np.linalg.inv(lower @ lower.T + 0.5 * np.eye(N))
    inverse = mc.linalg.rpcholesky(a, rank, block=6, seed=5)
    rows = slice(a.first, a.first + a.rows)
    # Rounding of 1e-15 times the condition of L L^T + ridge, below 1e3, twice.
    close(inverse.apply(torch.eye(N).double()[rows]), torch.from_numpy(wanted[rows]), 1e-11)
    assert inverse.rank == rank
    for kind, words, call in (
        (ValueError, "rpcholesky: rank must be", lambda: mc.linalg.rpcholesky(a, 0)),
        (ValueError, "rpcholesky: ridge must be", lambda: mc.linalg.rpcholesky(a, 2, ridge=0.0)),
        (ValueError, "rpcholesky: block must be", lambda: mc.linalg.rpcholesky(a, 2, block=0)),
        (mc.LinAlgError, "rpcholesky: a without its ridge must be", lambda: mc.linalg.rpcholesky(
            mc.linalg.KernelOperator("1+sum((x-z)^2)", ranks.put(randn(N, 3))), 5, ridge=1.0)),
        (NotImplementedError, "for formulas that read indices", lambda: mc.linalg.rpcholesky(
            mc.linalg.KernelOperator("exp(-sum((x-z)^2))*(i+j)", ranks.put(randn(N, 3))), 5,
            ridge=1.0)),
    ):  # fmt: skip
        raises(kind, words, call)


def check_ridges_of_columns(ranks):
    b = randn(N, 3, seed=5)
    a, dense = operators(ranks)
    path = torch.tensor([0.0, 1.0, 20.0], dtype=torch.float64)
    for ridge in (path, path.tolist()):
        x = mc.linalg.cg(a, ranks.put(b), ridge=ridge).full_tensor()
        gap = (b - dense @ x - path * x).norm(dim=0)
        assert (gap <= 1.01e-10 * b.norm(dim=0)).all()
    raises(
        ValueError, "cg: ridge must be a number or have one for each column of b, shape (3,)",
        lambda: mc.linalg.cg(a, ranks.put(b), ridge=[1.0]),
    )  # fmt: skip
    raises(
        ValueError, "cg: ridge must be from 0 on and finite",
        lambda: mc.linalg.cg(a, ranks.put(b), ridge=-1.0),
    )  # fmt: skip
    raises(
        NotImplementedError, "minres: is not offered for operators that are split over ranks",
        lambda: mc.linalg.minres(a, ranks.put(b)),
    )  # fmt: skip
    x, info, _ = mc.linalg.cg(a, ranks.put(b), tol=1e-17, check=False)
    assert info.to_local().tolist() == [-2] * 3
    raises(
        mc.LinAlgError, "where it stagnated: float64 gets no closer",
        lambda: mc.linalg.cg(a, ranks.put(b), tol=1e-17),
    )  # fmt: skip


def check_cg_fails_alike(ranks):
    b = randn(N, 2, seed=2)
    a, _ = operators(ranks)
    out = ranks.put(torch.zeros_like(b))
    raises(
        mc.LinAlgError, "residuals must be at most",
        lambda: mc.linalg.cg(a, ranks.put(b), max_iter=3, out=out),
    )  # fmt: skip
    same(out, torch.zeros_like(b))
    b[N - 1, 1] = torch.nan
    raises(mc.LinAlgError, "must be finite", lambda: mc.linalg.cg(a, ranks.put(b)))
    x, info, _ = mc.linalg.cg(a, ranks.put(b), check=False)
    assert info.to_local().tolist() == [0, -1]
    assert bool(x.full_tensor()[:, 1].isnan().all())
    indefinite = mc.linalg.KernelOperator("0-sum((x-z)^2)",
                                          ranks.put(randn(N, 3, seed=1)))  # fmt: skip
    raises(
        mc.LinAlgError, "positive definite",
        lambda: mc.linalg.cg(indefinite, ranks.put(randn(N, 2, seed=2))),
    )  # fmt: skip


def check_float32(ranks):
    b = randn(N, 2, seed=2, dtype=torch.float32)
    a, dense = operators(ranks, torch.float32, WHOLE)
    solution = torch.linalg.solve(dense, b.double())
    close(mc.linalg.cg(a, ranks.put(b)), solution.float(), 4e-5 * b.norm(dim=0).max().item())


def check_eigh_top(ranks):
    a, dense = operators(ranks)
    values = torch.linalg.eigvalsh(dense)
    for which, expected in (("largest", values[-4:]), ("magnitude", values[-4:])):
        w, v = mc.linalg.eigh_top(a, 4, which=which)
        close(w, expected, 1e-9)
        whole = v.full_tensor()
        close(dense @ whole - whole * expected, torch.zeros_like(whole), 1e-9 * values[-1].item())
        same_on_all(ranks, w.to_local())
        same_on_all(ranks, whole)
    close(mc.linalg.eigh_top(a, 2, which="smallest", tol=1e-6)[0], values[:2], 1e-4)


def check_eigh_top_of_cheap_products(ranks):
    """Each rank computes it, and all have what the first one found."""
    a, dense = operators(ranks)
    values = torch.linalg.eigvalsh(dense)
    with mock.patch.object(sharded_linalg, "_is_quick", return_value=True):
        (w, v), missed = mc.linalg.eigh_top(a, 4, check=False)
        raises(ValueError, "k must be from 1 to", lambda: mc.linalg.eigh_top(a, N + 1))
    assert missed == 0
    close(w, values[-4:], 1e-9)
    assert v.placements == (ROWS,)
    whole = v.full_tensor()
    close(dense @ whole - whole * values[-4:], torch.zeros_like(whole), 1e-9 * values[-1].item())
    same_on_all(ranks, w.to_local())
    same_on_all(ranks, whole)


def check_determinants(ranks):
    b = randn(N, 2, seed=2)
    a, dense = operators(ranks)
    quad, logdet, error = mc.linalg.inv_quad_logdet(a, ranks.put(b), n_probes=64)
    close(quad, (b * torch.linalg.solve(dense, b)).sum(0), 1e-8)
    # The deviation of 64 probes: sqrt(2 / 64) times the norm of the logarithm off its diagonal.
    logs = torch.linalg.eigh(dense)
    matrix = logs.eigenvectors @ torch.diag(logs.eigenvalues.log()) @ logs.eigenvectors.mT
    deviation = math.sqrt(2 / 64) * (matrix - torch.diag(matrix.diagonal())).norm().item()
    close(logdet, torch.logdet(dense), 4 * deviation)
    close(logdet, torch.logdet(dense), 5 * error.to_local().item())
    assert error.to_local().item() <= 2 * deviation
    assert quad.dtype == logdet.dtype == torch.float64
    same_on_all(ranks, logdet.to_local())


def check_few_points(ranks):
    """Ranks without a row, no columns, and no points."""
    for n in (3, 1):
        x, b = randn(n, 2, seed=1), randn(n, 2, seed=2)
        a = mc.linalg.KernelOperator("gauss", ranks.put(x), ridge=0.5)
        dense = mc.pairwise("gauss", x) + 0.5 * torch.eye(n).double()
        made = [getattr(mc.linalg, name)(a, 2)
                for name in ("nystrom", "pivoted_cholesky", "rpcholesky")]  # fmt: skip
        for inverse in (None, *made):
            found = mc.linalg.cg(a, ranks.put(b), preconditioner=inverse)
            close(found, torch.linalg.solve(dense, b), 1e-8)
        close(mc.linalg.eigh_top(a, n)[0], torch.linalg.eigvalsh(dense), 1e-9)
        close(mc.linalg.inv_quad_logdet(a, ranks.put(b))[0].sum(), (b * found.full_tensor()).sum(),
              1e-8)  # fmt: skip
        same(mc.linalg.cg(a, ranks.put(b[:, :0])), b[:, :0])
    nothing = mc.linalg.KernelOperator("gauss", ranks.put(randn(0, 2)))
    same(mc.linalg.cg(nothing, ranks.put(randn(0, 2))), randn(0, 2))


def check_indices(ranks):
    x = randn(N, 3, seed=1)
    text = "exp(-sum((x-z)^2)) + 0.3*(i==j) + i*j/10000"
    a = mc.linalg.KernelOperator(text, ranks.put(x), ridge=0.5)
    dense = mc.pairwise(text, x) + 0.5 * torch.eye(N).double()
    b = randn(N, 2, seed=2)
    for inverse in (None, mc.linalg.pivoted_cholesky(a, 20)):
        close(
            mc.linalg.cg(a, ranks.put(b), preconditioner=inverse),
            torch.linalg.solve(dense, b), 2e-10 * b.norm(dim=0).max().item(),
        )  # fmt: skip


def check_kron(ranks):
    for rows, shapes in (
        (3, [(3, 2), (5, 4), (2, 3)]), (1, [(2, 2), (3, 5)]), (2, [(1, 3), (2, 2), (7, 1)]),
        (5, [(4, 4)]),
    ):  # fmt: skip
        factors = [randn(*shape, seed=i) for i, shape in enumerate(shapes)]
        x = randn(rows, math.prod(shape[0] for shape in shapes), seed=9)
        for placement in (ROWS, Shard(1), WHOLE):
            placements = (placement, *[WHOLE] * len(factors))
            derivatives(ranks, lambda x, *f: mc.kron.matmul(x, list(f)), (x, *factors), placements)
            sides = [f.mT.contiguous() for f in factors]
            derivatives(
                ranks, lambda x, *f: mc.kron.kron_matmul(list(f), x, alpha=2),
                (x.mT.contiguous(), *sides), placements, second=False,
            )  # fmt: skip


def check_long_rows(ranks):
    """Long enough to be exchanged in parts, of extents that no number of ranks divides."""
    shapes = [(33, 30), (40, 41), (67, 70)]
    factors = [randn(*shape, seed=i) for i, shape in enumerate(shapes)]
    x = randn(2, math.prod(shape[0] for shape in shapes), seed=9)
    found = mc.kron.matmul(ranks.put(x, Shard(1)), [ranks.put(f, WHOLE) for f in factors])
    assert found.placements == (Shard(1),)
    expected = mc.kron.matmul(x, factors)
    magnitudes = mc.kron.matmul(x.abs(), [f.abs() for f in factors]).max().item()
    close(found, expected, 140 * torch.finfo(torch.float64).eps * magnitudes)
