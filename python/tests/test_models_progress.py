"""Bars of long fits: what they show, that they change nothing, and that nobody asked is nothing."""

from __future__ import annotations

import sys

import mercer as mc
import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from mercer import _mercer, _progress
from mercer.models import (
    HSIC,
    MMD,
    GaussianProcessRegressor,
    KernelDensity,
    KernelLogisticRegression,
    KernelPCA,
    KernelRidge,
    KernelRidgeCV,
    KNeighborsClassifier,
    KNeighborsRegressor,
    KNeighborsTransformer,
    Nystroem,
    RFMRegressor,
    SparseGaussianProcessRegressor,
    SpectralEmbedding,
    _paths,
    density,
    neighbors,
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
LABELS = (Y > 0).astype(int)
#: Estimators without targets, what they are asked for, and what their bars tell.
OTHERS = [
    (KernelPCA(3, random_state=0), lambda m: m.fit_transform(X), "3 eigenpairs"),
    (KernelPCA(3, fit_inverse_transform=True), lambda m: m.fit_transform(X), "inverse map"),
    (Nystroem(n_components=70, landmarks="rpcholesky", random_state=0),
     lambda m: m.fit_transform(X), "of 70 landmarks"),
    (Nystroem(n_components=9, random_state=0), lambda m: m.fit_transform(X), "features"),
    (SpectralEmbedding(random_state=0), lambda m: m.fit_transform(X), "neighbours"),
    (SpectralEmbedding(affinity="rbf", random_state=0), lambda m: m.fit_transform(X), "row sums"),
    (MMD(n_permutations=40, random_state=0), lambda m: m.test(X, X + 1).null, "41 products"),
    (HSIC(n_permutations=40, random_state=0), lambda m: m.test(X, Y[:, None]).null,
     "41 permutations"),
]  # fmt: skip
#: Models, what they are asked once fitted, and the function of the engine that answers.
ANSWERS = [
    (KNeighborsClassifier(3).fit(X, LABELS), lambda m: m.predict(X), "knn"),
    (KNeighborsRegressor(3).fit(X, Y), lambda m: m.predict(X), "knn"),
    (KNeighborsTransformer(n_neighbors=3).fit(X), lambda m: m.transform(X).data, "knn"),
    (KernelDensity().fit(X), lambda m: m.score_samples(X), "kernel_product"),
    (KernelPCA(3).fit(X), lambda m: m.transform(X), "kernel_product"),
    (Nystroem(n_components=9).fit(X), lambda m: m.transform(X), "kernel_product"),
    (KernelRidge().fit(X, Y), lambda m: m.predict(X), "kernel_product"),
]
#: Estimators, a call that computes, and where Ctrl-C comes.
INTERRUPTED = [
    (KNeighborsClassifier(3), lambda m: m.fit(X, LABELS), (neighbors, "fit_distance")),
    (KNeighborsRegressor(3), lambda m: m.fit(X, Y), (neighbors, "fit_distance")),
    (KNeighborsTransformer(n_neighbors=3), lambda m: m.fit(X), (neighbors, "fit_distance")),
    (KernelDensity(), lambda m: m.fit(X), (density, "fit_distance")),
    (KernelPCA(3), lambda m: m.fit(X), (mc, "kernel_product")),
    (Nystroem(n_components=9), lambda m: m.fit(X), (mc, "kernel_matrix")),
    (SpectralEmbedding(), lambda m: m.fit(X), (mc, "knn")),
    (MMD(n_permutations=9), lambda m: m.test(X, X + 1), (mc, "kernel_product")),
    (HSIC(n_permutations=9), lambda m: m.test(X, Y[:, None]), (mc, "kernel_product")),
]


def names(rows):
    return [f"{type(row[0]).__name__}{i}" for i, row in enumerate(rows)]


def bars_are_shown():
    before = _mercer.show_bars(True)
    _mercer.show_bars(before)
    return before


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

    monkeypatch.setattr(_progress, "drawn", Bar)
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
    # Told are those of the recurrence in the norm of the preconditioner, of the last column alone.
    assert model.residual_ / 2 < last < 2 * model.residual_


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


@pytest.mark.parametrize(("estimator", "asked", "quantity"), OTHERS, ids=names(OTHERS))
def test_estimators_without_targets_tell_their_parts(bars, estimator, asked, quantity):
    shown = asked(clone(estimator).set_params(progress=True))
    (bar,) = bars
    assert bar.name.startswith(f"{type(estimator).__name__}.")
    assert bar.closed == 1
    shares = [share for share, _ in bar]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1
    assert any(quantity in note for _, note in bar)
    np.testing.assert_array_equal(shown, asked(clone(estimator)))
    assert len(bars) == 1
    assert not bars_are_shown()


@pytest.mark.parametrize(("model", "asked", "function"), ANSWERS, ids=names(ANSWERS))
def test_calls_of_predictions_show_themselves(monkeypatch, model, asked, function):
    plain, original, seen = asked(model), getattr(mc, function), []

    def watched(*arguments, **options):
        seen.append(bars_are_shown())
        return original(*arguments, **options)

    monkeypatch.setattr(mc, function, watched)
    model.set_params(progress=True)
    np.testing.assert_array_equal(asked(model), plain)
    model.set_params(progress=False)
    np.testing.assert_array_equal(asked(model), plain)
    assert set(seen[: len(seen) // 2]) == {True}
    assert set(seen[len(seen) // 2 :]) == {False}
    assert not bars_are_shown()


@pytest.mark.parametrize(("estimator", "asked", "place"), INTERRUPTED, ids=names(INTERRUPTED))
def test_an_interrupt_leaves_the_estimator_as_it_was(monkeypatch, bars, estimator, asked, place):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    for is_fitted in (False, True):
        model = clone(estimator).set_params(progress=True)
        if is_fitted:
            asked(model)
        before = dict(vars(model))
        with monkeypatch.context() as patch:
            patch.setattr(*place, stop)
            with pytest.raises(KeyboardInterrupt):
                asked(model)
        assert vars(model).keys() == before.keys()
        assert all(vars(model)[name] is value for name, value in before.items())
        assert _progress.current() is None
        assert not bars_are_shown()
    assert all(bar.closed == 1 for bar in bars)


def test_calls_of_the_engine_tell_the_bar_of_the_fit(bars):
    with _progress.shown("Model.fit", True):
        assert bars_are_shown()
        with _progress.between(0.5, 1, "part", is_one_call=True):
            call = _progress.open_bar("knn")
            call.show(1, 4)
            call.wait(0)
            call.wait(7)
            call.close()
        with _progress.between(0.75, 1, "next"):
            _progress.open_bar("cholesky").show(1, 2)
        with _progress.silent():
            assert not bars_are_shown()
            _progress.open_bar("alone")
        assert bars_are_shown()
    fit, alone = bars
    assert fit == [
        (0.5, "part"), (0.625, "part, knn 25%"), (0.625, "part, knn computes"),
        (0.625, "part, knn 7 products"), (0.75, "next"), (0.75, "next, cholesky 50%"),
    ]  # fmt: skip
    assert (fit.closed, alone.name) == (1, "alone")
    assert not bars_are_shown()
    assert _progress.open_bar("knn").name == "knn"
