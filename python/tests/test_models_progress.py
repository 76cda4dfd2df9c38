"""Bars of long fits: what they show, that they change nothing, and that nobody asked is nothing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from mercer import _progress
from mercer.models import (
    GaussianProcessRegressor,
    KernelLogisticRegression,
    KernelRidge,
    KernelRidgeCV,
    RFMRegressor,
    SparseGaussianProcessRegressor,
    _paths,
)
from sklearn.base import clone

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 3))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=150)
GP = {"random_state": 0, "max_iter": 3, "n_probes": 2}
FITS = [
    (KernelRidge("laplace", alpha=0.01, solver="cg", random_state=0), "residual"),
    (KernelRidge(solver="sap", random_state=0), "residual"),
    (KernelRidge(centers=20, solver="falkon", random_state=0), "residual"),
    (KernelRidge(centers=20, random_state=0), "points"),
    (KernelRidgeCV(select="gcv", solver="cg", random_state=0), "bandwidth 2 of 5, residual"),
    (KernelRidgeCV(select="loo", random_state=0), "bandwidth 5 of 5"),
    (KernelLogisticRegression(solver="cg", random_state=0), "objective"),
    (RFMRegressor(solver="cg", n_rounds=2, random_state=0), "error"),
    (GaussianProcessRegressor(**GP), "log likelihood"),
    (GaussianProcessRegressor(**GP, solver="cg"), "gradient"),
    (SparseGaussianProcessRegressor(n_inducing=9, max_iter=3, random_state=0), "log likelihood"),
]
IDS = [f"{type(row[0]).__name__}{i}" for i, row in enumerate(FITS)]


@pytest.fixture
def bars(monkeypatch):
    """What bars showed, as (share, note)."""
    opened = []

    class Bar(list):
        def __init__(self, name):
            self.name, self.closed = name, 0
            opened.append(self)

        def show(self, done, total, note=""):
            self.append((done / total, note))

        def close(self):
            self.closed += 1

    monkeypatch.setattr(_progress, "open_bar", Bar)
    monkeypatch.setattr(_progress, "DELAY", 0.0)
    monkeypatch.setattr(_progress, "INTERVAL", 0.0)
    return opened


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("estimator", "quantity"), FITS, ids=IDS)
def test_bars_tell_what_matters_and_change_no_number(bars, estimator, quantity):
    y = Y > 0 if isinstance(estimator, KernelLogisticRegression) else Y
    shown = clone(estimator).set_params(progress=True).fit(X, y).predict(X)
    (bar,) = bars
    assert bar.name == f"{type(estimator).__name__}.fit"
    assert bar.closed == 1
    shares = [share for share, _ in bar]
    assert shares == sorted(shares)
    assert shares[0] >= 0
    assert shares[-1] <= 1
    assert any(quantity in note for _, note in bar)
    np.testing.assert_array_equal(shown, clone(estimator).fit(X, y).predict(X))
    assert len(bars) == 1


def test_residuals_are_those_of_the_solver(bars):
    model = KernelRidge("laplace", alpha=0.01, solver="cg", tol=1e-6, random_state=0)
    weights = RNG.uniform(0.5, 2, 150)
    model.set_params(progress=True).fit(X, np.stack([Y, Y**2], 1), sample_weight=weights)
    last = float(bars[0][-1][1].partition("residual ")[2])
    assert last == pytest.approx(model.residual_, rel=0.1)


def test_failures_close_the_bar_and_leave_none_behind(bars):
    with pytest.raises(ValueError, match="NaN"):
        KernelRidgeCV(progress=True).fit(X * np.nan, Y)
    assert not bars
    model = GaussianProcessRegressor(progress=True, optimizer=lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.fit(X, Y)
    assert _progress.current() is None

    def stop(*arguments):
        raise KeyboardInterrupt

    bars.append(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_paths._Run, "polish", stop)
        with pytest.raises(KeyboardInterrupt):
            KernelRidge(solver="cg", progress=True).fit(X, Y)
    assert bars[-1].closed == 1
    assert _progress.current() is None


@pytest.mark.parametrize("progress", [False, True])
def test_without_a_bar_and_in_short_fits_nothing_is_shown(monkeypatch, capsys, progress):
    def watch(*arguments):
        raise AssertionError("residuals were computed for nobody")

    if not progress:
        monkeypatch.setattr(_paths._Run, "_tell", watch)
    KernelRidge(solver="cg", progress=progress).fit(X, Y)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("has_tqdm", [False, True])
def test_what_is_drawn(monkeypatch, capsys, has_tqdm):
    if not has_tqdm:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    else:
        pytest.importorskip("tqdm")
    monkeypatch.setattr(_progress, "DELAY", 0.0)
    KernelRidge(solver="cg", progress=True).fit(X, Y)
    out, err = capsys.readouterr()
    assert out == ""
    assert "KernelRidge.fit: " in err
    assert "residual" in err
