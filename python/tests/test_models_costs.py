"""Who solves a system on a CPU: costs, what is given up, and how exact the result is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")

import mercer as mc
from mercer.models import KernelRidge, _costs, _paths
from mercer.models._arrays import Space
from mercer.models._kernels import fit_kernel
from mercer.models._solve import System


def data(n, d=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, np.sin(x.sum(1))[:, None] + 0.3 * rng.normal(size=(n, 1))


def system(x, ridge, dtype="float32", kernel="gauss", bandwidth=2.0, **options):
    space, x = Space(dtype=dtype), x.astype(dtype)
    fitted = fit_kernel(kernel, x, space, bandwidth=bandwidth)
    return System(fitted, x, space, ridge, **options)


def plan(n=6000, dtype="float32", ridge=0.1, tol=1e-4, rank=600, given=False, may_turn=True,
         **options):  # fmt: skip
    costs = _costs.Costs(n, options.pop("d", 9), options.pop("k", 1), dtype, **options)
    return _costs.Plan(costs, ridge, tol, rank, given, may_turn)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_few_points_are_not_worth_a_try(dtype):
    worth = [plan(n, dtype).costs.is_worth_a_try() for n in (100, 500, 2000, 6000, 50_000)]
    assert worth == [False, False, True, True, True]


def test_pivots_go_on_while_they_pay():
    quick = plan(ridge=1.0)
    assert [quick.goes_on(r, 64 / r**1.5, 1000.0) for r in (64, 128)] == [True, True]
    assert not quick.goes_on(192, 1e-4, 1000.0)  # nothing is left that matters
    assert not quick.has_turned
    full = plan(ridge=1.0, given=True)
    assert full.goes_on(64, 1e-9, 1000.0)


@pytest.mark.parametrize("n", [2000, 20_000])
@pytest.mark.parametrize("ridge", [0.0, 1e-6])
def test_without_a_factor_nothing_turns(n, ridge):
    """What test_what_is_out_of_reach_turns gives up takes all columns here."""
    steps = plan(n, ridge=ridge, rank=1150, may_turn=False)
    assert all(steps.goes_on(r, 0.5 / r**0.1, 100.0) for r in range(64, 1150, 64))
    assert not any(steps.turns(i, 1e9) for i in range(1, 500))


def test_ranks_of_paths_are_chosen():
    """Few columns for large ridges, more for small ones, and never more than the most."""
    x, y = data(1200)
    target, ranks = y.astype("float32"), []
    for ridges in ([100.0, 30.0], [1.0, 0.01]):
        asked = system(x, 0.0, kernel="matern32", bandwidth=2.0)
        chosen = _paths.plan_of_rank(asked, np.array(ridges), 1e-3, 17)
        assert chosen.rank == 300  # a quarter of the points
        found = _paths.solve(asked, target, np.array(ridges), rank="auto", tol=1e-3,
                             max_iter=None, probes=16, seed=0, plan=chosen)  # fmt: skip
        assert found.met.all()
        ranks.append(chosen.columns)
    assert ranks[0] <= 128 < ranks[1] <= 300


def test_what_is_out_of_reach_turns():
    few = plan(2000, ridge=1e-6)
    assert not few.goes_on(64, 0.5, 100.0)
    assert few.has_turned
    many = plan(20_000, ridge=1e-6)  # a few steps are cheap there: they decide
    ranks = [r for r in range(64, 1200, 64) if many.goes_on(r, 0.5 / r**0.1, 100.0)]
    assert ranks == list(range(64, 64 * len(ranks) + 1, 64))
    assert not many.has_turned
    assert many.costs.preparation(64 * len(ranks)) < 0.06 * many.limit


@pytest.mark.parametrize(
    ("factor", "turns"), [(0.5, False), (0.97, True), (1.0, True), (1.1, True)]
)
def test_rates_decide(factor, turns):
    steps = plan(10_000)
    steps.goes_on(600, 0.1, 100.0)
    gaps = 1e4 * factor ** np.arange(30)
    said = [steps.turns(i + 1, gap) for i, gap in enumerate(gaps) if gap > 1]
    assert any(said) == turns
    if turns:
        assert not any(said[: _costs.FEW])
        spent = said.index(True) * steps.costs.step(600)
        assert spent < 0.1 * steps.limit


def test_no_more_than_a_factor_is_spent():
    steps = plan(3000)
    steps.goes_on(300, 0.1, 100.0)
    taken = 0
    while not steps.turns(taken, 10.0 ** (8 - taken)):
        steps.begin()  # residuals that are measured anew hide the rate
        taken += 1
    step = steps.costs.step(300)
    assert abs(steps.costs.preparation(300) + taken * step - steps.limit) < 2 * step


def test_float64_reckons_with_the_factor_of_float32():
    easy, hard = plan(dtype="float64", ridge=1.0), plan(dtype="float64", ridge=1e-7)
    for one in (easy, hard):
        one.goes_on(64, 0.1, 100.0)
    assert easy.limit < 0.8 * hard.limit
    assert plan(dtype="float64", k=100).limit > hard.limit  # too many columns
    assert plan(ridges=3, k=3).limit > 2.5 * plan(k=3).limit


@pytest.mark.parametrize("weighted", [False, True])
def test_auto_is_as_exact_as_a_factor(weighted):
    x, y = data(2200)
    weights = np.random.default_rng(1).random(len(x)) + 0.5 if weighted else None
    exact = system(x, 1.0, "float64", weights=weights).solve(y, solver="direct").coef
    small = None if weights is None else weights.astype("float32")
    narrow = system(x, 1.0, weights=small)
    y = y.astype("float32")
    found, direct = narrow.solve(y), narrow.solve(y, solver="direct")
    assert (found.solver, direct.solver) == ("cg", "direct")
    ours, theirs = (abs(one.coef - exact).max() / abs(exact).max() for one in (found, direct))
    assert ours < 3 * max(theirs, 1e-6)
    assert found.residual < 1e-5  # far below tol


def test_auto_turns_to_the_factor_and_says_so():
    x, y = data(2200)
    x, y = x.astype("float32"), y.ravel().astype("float32")
    large = KernelRidge(bandwidth=2.0, alpha=1.0, random_state=0).fit(x, y)
    small = KernelRidge(bandwidth=0.5, alpha=0.01, random_state=0).fit(x, y)
    assert (large.solver_, small.solver_) == ("cg", "direct")


def test_float64_goes_far_below_tol(monkeypatch):
    rates = replace(_costs.RATES["float64"], flops=1e9)
    monkeypatch.setitem(_costs.RATES, "float64", rates)
    monkeypatch.setattr(_costs, "LEAST", 10_000)
    x, y = data(400)
    made = system(x, 0.5, "float64")
    found, direct = made.solve(y), made.solve(y, solver="direct")
    assert found.solver == "cg"
    np.testing.assert_allclose(found.coef, direct.coef, rtol=0, atol=1e-10 * abs(y).max())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_try_that_fails_ends_in_the_factor(monkeypatch):
    """Steps are dear or of no use: whatever the way, the numbers are the factor's."""
    rates = replace(_costs.RATES["float64"], flops=1e10)
    monkeypatch.setitem(_costs.RATES, "float64", rates)
    x, y = data(900, 6)
    for kernel, ridge in (("gauss", 1e-9), ("matern12", 1e-7)):
        made = system(x, ridge, "float64", kernel)
        found = made.solve(y)
        assert found.solver == "direct"
        assert (found.coef == made.solve(y, solver="direct").coef).all()


def test_a_given_matrix_of_float32_has_a_factor():
    """Steps with it end at its rounding, short of what is wanted."""
    x, y = data(2000)
    x, y = x.astype("float32"), y.astype("float32")
    model = KernelRidge("precomputed", alpha=1.0, random_state=0)
    assert model.fit(mc.kernel_matrix(mc.gauss(bandwidth=2.0), x), y).solver_ == "direct"


def test_no_ridge_at_all():
    x, y = data(2000)
    made = system(x, 0.0, "float64", "matern12")
    found = made.solve(y)
    assert found.solver == "direct"
    assert found.residual < 1e-9
