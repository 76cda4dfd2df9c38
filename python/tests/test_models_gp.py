"""Gaussian processes against scikit-learn, dense algebra in float64, and finite differences."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")

import mercer as mc
from mercer.models import (
    GaussianProcessRegressor,
    SparseGaussianProcessRegressor,
    _gp_exact,
    _gp_iterative,
    _gp_posterior,
    _gp_sparse,
    _triangles,
)
from mercer.models._arrays import Space, host
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor as Peer
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.utils.estimator_checks import parametrize_with_checks

LENGTHS, AMPLITUDE, NOISE = np.array([0.5, 1.0, 2.0]), 1.5, 0.2
THETA = np.log(np.r_[AMPLITUDE, LENGTHS, NOISE])
KERNELS = {
    "gauss": RBF,
    "matern12": lambda lengths: Matern(lengths, nu=0.5),
    "matern32": lambda lengths: Matern(lengths, nu=1.5),
    "matern52": lambda lengths: Matern(lengths, nu=2.5),
}


def points(n: int = 60, p: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    waves = np.sin(x @ rng.normal(size=(3, p))) + 0.3 * rng.normal(size=(n, p))
    return x, waves[:, 0] if p == 1 else waves


def problem(f, x, y, weights=None):
    return _gp_exact.problem(Space(), f, x, y, weights)


def fixed(kernel="matern52", **options):
    """An estimator whose parameters stay THETA's."""
    given = {"lengthscale": LENGTHS, "amplitude": AMPLITUDE, "noise": NOISE, "optimizer": None}
    return GaussianProcessRegressor(kernel, **{"normalize_y": False, **given, **options})


def peer(kernel="matern52", lengths=LENGTHS, noise=NOISE, **options):
    """scikit-learn's with THETA, whose deviations are without the noise."""
    f = ConstantKernel(AMPLITUDE) * KERNELS[kernel](lengths)
    return Peer(f, alpha=noise, optimizer=None, **options)


def differences(function, start, step=1e-5):
    """Central differences of a function of a vector."""
    return np.array(
        [
            (function(start + step * e) - function(start - step * e)) / (2 * step)
            for e in np.eye(len(start))
        ]
    )


def small():
    return SparseGaussianProcessRegressor(n_inducing=20, random_state=0)


@parametrize_with_checks(
    [GaussianProcessRegressor(), SparseGaussianProcessRegressor(n_inducing=30)]
)
def test_conventions(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("lengths", [LENGTHS, 0.7])
def test_likelihood_and_gradient(kernel, lengths):
    x, y = points(p=2)
    f = ConstantKernel(AMPLITUDE) * KERNELS[kernel](lengths) + WhiteKernel(NOISE)
    other = Peer(f, alpha=0, optimizer=None).fit(x, y)
    theta = other.kernel_.theta
    value, gradient = other.log_marginal_likelihood(theta, eval_gradient=True)
    likelihood = _gp_exact.ExactLikelihood(problem(mc.metric(kernel), x, y))
    got, slope = likelihood(theta)
    assert got == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(slope, gradient, rtol=1e-9, atol=1e-9)
    model = fixed(kernel, ard=np.ndim(lengths) > 0, lengthscale=lengths).fit(x, y)
    assert model.log_marginal_likelihood() == pytest.approx(value, rel=1e-12)
    again = model.log_marginal_likelihood(theta + 0.1, eval_gradient=True)
    wanted = other.log_marginal_likelihood(theta + 0.1, eval_gradient=True)
    assert again[0] == pytest.approx(wanted[0], rel=1e-12)
    np.testing.assert_allclose(again[1], wanted[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", ["matern52", "polynomial", "exp(-sum(abs(x-z)))*(1+sum(x*z)^2)"])
def test_gradient_by_differences(kernel):
    x, y = points(n=40, p=2)
    weights = np.random.default_rng(1).uniform(0.5, 3, len(x))
    f = mc.metric(kernel) if kernel.isidentifier() else mc.kernel(kernel)
    likelihood = _gp_exact.ExactLikelihood(problem(f, x, y, weights))
    gradient = likelihood(THETA)[1]
    wanted = differences(lambda t: likelihood(t)[0], THETA)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-6 * abs(gradient).max())


def test_float32_likelihood():
    x, y = points()
    exact = _gp_exact.ExactLikelihood(problem(mc.matern52(), x, y))(THETA)
    space = Space(dtype="float32")
    single = _gp_exact.problem(space, mc.matern52(), space.array(x), space.array(y))
    value, gradient = _gp_exact.ExactLikelihood(single)(THETA)
    reach = 60 * 2.0**-24 * AMPLITUDE * 60 / NOISE  # n units of rounding times the condition
    assert abs(value - exact[0]) < reach
    assert abs(gradient - exact[1]).max() < reach * abs(exact[1]).max()


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("normalize_y", [False, True])
def test_predictions(p, normalize_y):
    x, y = points(p=p)
    y, queries = 5 + 3 * y, points(n=25, seed=2)[0]
    ours = fixed(normalize_y=normalize_y).fit(x, y)
    other = peer(normalize_y=normalize_y).fit(x, y)
    for ask in ({"return_std": True}, {"return_cov": True}):
        for got, wanted in zip(
            ours.predict(queries, **ask), other.predict(queries, **ask), strict=True
        ):
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(ours.predict(queries), ours.predict(queries, return_std=True)[0])
    np.testing.assert_allclose(ours.alpha_, other.alpha_, rtol=1e-9)
    np.testing.assert_allclose(np.tril(ours.L_), other.L_, rtol=1e-9, atol=1e-12)


def test_noise_of_observations():
    x, y = points()
    model, queries = fixed().fit(x, y), points(n=5, seed=2)[0]
    unit = y.std() * 0 + 1  # y is not normalised
    quiet = model.predict(queries, return_std=True)[1]
    loud = model.predict(queries, return_std=True, include_noise=True)[1]
    np.testing.assert_allclose(loud**2, quiet**2 + NOISE * unit, rtol=1e-12)
    loud = model.predict(queries, return_cov=True, include_noise=True)[1]
    quiet = model.predict(queries, return_cov=True)[1]
    np.testing.assert_allclose(loud, quiet + NOISE * np.eye(5), rtol=1e-12)


def test_samples():
    x, y = points(p=2)
    model, queries = fixed(normalize_y=True).fit(x, y), points(n=4, seed=2)[0]
    count = 40_000
    drawn = model.sample_y(queries, count, random_state=1)
    assert drawn.shape == (4, 2, count)
    mean, covariance = model.predict(queries, return_cov=True)
    for k in range(2):
        wanted = covariance[..., k]
        spread = np.sqrt(np.diag(wanted))
        assert (abs(drawn[:, k].mean(1) - mean[:, k]) < 5 * spread / count**0.5).all()
        error = abs(
            np.cov(drawn[:, k]) - wanted
        )  # a deviation of at most sqrt(2) s_i s_j / sqrt(n)
        assert (error < 5 * np.sqrt(2 / count) * np.outer(spread, spread)).all()
    np.testing.assert_array_equal(drawn, model.sample_y(queries, count, random_state=1))
    assert fixed().fit(x, y[:, 0]).sample_y(queries, 3).shape == (4, 3)


def test_samples_at_repeated_points():
    x, y = points()
    drawn = fixed().fit(x, y).sample_y(np.repeat(x[:2], 3, axis=0), 50)
    assert abs(drawn[0] - drawn[2]).max() < 1e-3


def test_fit_finds_the_optimum():
    x, y = load_diabetes(return_X_y=True)
    x, y = x[:150] / x.std(0), (y[:150] - y.mean()) / y.std()
    bounds = {"amplitude": (1e-3, 1e3), "lengthscale": (1e-2, 1e3), "noise": (1e-5, 10)}
    ours = GaussianProcessRegressor(
        "gauss", ard=False, lengthscale=3.0, bounds=bounds, normalize_y=False
    ).fit(x, y)
    f = ConstantKernel(1.0, bounds["amplitude"]) * RBF(3.0, bounds["lengthscale"])
    other = Peer(f + WhiteKernel(0.1, bounds["noise"]), alpha=0).fit(x, y)
    assert ours.log_marginal_likelihood_value_ == pytest.approx(
        other.log_marginal_likelihood_value_, abs=1e-4
    )
    value, gradient = ours.log_marginal_likelihood(ours.theta_, eval_gradient=True)
    assert value == pytest.approx(ours.log_marginal_likelihood_value_, rel=1e-12)
    inner = (ours.theta_ > ours.bounds_[:, 0]) & (ours.theta_ < ours.bounds_[:, 1])
    assert abs(gradient[inner]).max() < 0.01
    np.testing.assert_allclose(ours.predict(x), other.predict(x), atol=2e-3)


def test_ard_finds_what_matters():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)) * [1, 100, 1, 0.01]
    y = np.sin(2 * x[:, 0]) + x[:, 1] / 100 + 0.05 * rng.normal(size=120)
    model = GaussianProcessRegressor("gauss").fit(x, y)
    relative = model.lengthscale_ / x.std(0)
    assert relative[[2, 3]].min() > 5 * relative[[0, 1]].max()
    assert np.sqrt(model.noise_) * y.std() == pytest.approx(0.05, rel=0.3)


def test_optimizers():
    x, y = points()
    best = GaussianProcessRegressor(random_state=0).fit(x, y).log_marginal_likelihood_value_
    more = GaussianProcessRegressor(n_restarts=2, random_state=0).fit(x, y)
    assert more.log_marginal_likelihood_value_ >= best - 1e-6
    adam = GaussianProcessRegressor(optimizer="adam", max_iter=200).fit(x, y)
    assert adam.log_marginal_likelihood_value_ == pytest.approx(best, abs=0.5)

    def stay(objective, theta, bounds):
        assert bounds.shape == (len(theta), 2)
        value, gradient = objective(theta)
        assert gradient.shape == theta.shape
        assert objective(theta, eval_gradient=False) == pytest.approx(value)
        return theta, value

    stayed = GaussianProcessRegressor(optimizer=stay).fit(x, y)
    still = GaussianProcessRegressor(optimizer=None).fit(x, y)
    assert stayed.log_marginal_likelihood_value_ == still.log_marginal_likelihood_value_ < best
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        GaussianProcessRegressor(max_iter=1).fit(x, y)


def test_fixed_bounds():
    x, y = points()
    model = GaussianProcessRegressor(noise=0.3, bounds={"noise": "fixed"}).fit(x, y)
    assert model.noise_ == pytest.approx(0.3)
    still = GaussianProcessRegressor(bounds="fixed").fit(x, y)
    assert still.amplitude_ == pytest.approx(1.0)
    assert still.log_marginal_likelihood_value_ < model.log_marginal_likelihood_value_
    each = np.tile([0.9, 1.1], (3, 1))
    near = GaussianProcessRegressor(bounds={"lengthscale": each}).fit(x, y).lengthscale_
    assert ((near > 0.899) & (near < 1.101)).all()


def test_weights_are_repetitions():
    x, y = points()
    counts = np.random.default_rng(3).integers(0, 4, len(x))
    again = x.repeat(counts, axis=0), y.repeat(counts)
    weighted = GaussianProcessRegressor().fit(x, y, sample_weight=counts)
    repeated = GaussianProcessRegressor().fit(*again)
    np.testing.assert_allclose(weighted.theta_, repeated.theta_, rtol=1e-9)
    assert weighted.log_marginal_likelihood_value_ == pytest.approx(
        repeated.log_marginal_likelihood_value_, rel=1e-12
    )
    f = ConstantKernel(AMPLITUDE) * Matern(LENGTHS, nu=2.5) + WhiteKernel(NOISE)
    plain = Peer(f, alpha=0, optimizer=None).fit(*again)
    model = fixed().fit(x, y, sample_weight=counts)
    assert model.log_marginal_likelihood() == pytest.approx(
        plain.log_marginal_likelihood_value_, rel=1e-11
    )


def test_repeated_points_with_different_targets():
    x, _ = points(n=20)
    twice, y = np.concatenate([x, x, x[:5]]), np.random.default_rng(4).normal(size=45)
    f = ConstantKernel(AMPLITUDE) * Matern(LENGTHS, nu=2.5) + WhiteKernel(NOISE)
    other = Peer(f, alpha=0, optimizer=None, normalize_y=True).fit(twice, y)
    model = fixed(normalize_y=True).fit(twice, y)
    assert len(model.X_train_) == 20
    np.testing.assert_array_equal(model.X_train_, x)
    value, gradient = model.log_marginal_likelihood(THETA, eval_gradient=True)
    wanted = other.log_marginal_likelihood(THETA, eval_gradient=True)
    assert value == pytest.approx(wanted[0], rel=1e-11)
    np.testing.assert_allclose(gradient, wanted[1], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(model.predict(x), other.predict(x), rtol=1e-9)


@pytest.mark.parametrize("make", [GaussianProcessRegressor, SparseGaussianProcessRegressor])
def test_constant_targets_and_features(make):
    x, _ = points(n=30)
    x[:, 1] = 7.0
    mean, std = make().fit(x, np.full(30, 3.0)).predict(x, return_std=True)
    np.testing.assert_allclose(mean, 3.0, rtol=1e-12)
    assert np.isfinite(std).all()
    one = make().fit(x[:1], [2.0])
    np.testing.assert_allclose(one.predict(x[:1]), 2.0)


def test_bandwidths_and_other_parameters():
    x, y = points()
    rbf = fixed("rbf").fit(x, y)
    np.testing.assert_allclose(rbf.predict(x), fixed("gauss").fit(x, y).predict(x), rtol=1e-12)
    text = fixed("exp(-0.5*sum((x-z)^2)/bandwidth^2)").fit(x, y)
    np.testing.assert_allclose(text.predict(x), rbf.predict(x), rtol=1e-12)
    wide = fixed("rational_quadratic", kernel_params={"alpha": 1e7}).fit(x, y)
    np.testing.assert_allclose(wide.predict(x), rbf.predict(x), rtol=1e-4)
    called = fixed(lambda x, z: mc.exp(-0.5 * mc.sum((x - z) ** 2))).fit(x, y)
    np.testing.assert_allclose(called.predict(x), rbf.predict(x), rtol=1e-12)


REFUSED = [
    ({"kernel": "precomputed"}, "precomputed"),
    ({"kernel": "exp(-sum((x-z)^2)/h)"}, "kernel_params"),
    ({"kernel": "exp(-sum(x-2*z))"}, "symmetric"),
    ({"kernel_params": {"nu": 3}}, "nu"),
    ({"noise": -1.0}, "'noise' parameter of"),
    ({"amplitude": 0}, "'amplitude' parameter of"),
    ({"lengthscale": "median"}, "'lengthscale' parameter of"),
    ({"lengthscale": [1.0, 2.0]}, r"shape \(3,\)"),
    ({"lengthscale": [1.0, 2.0, 3.0], "ard": False}, r"shape \(1,\)"),
    ({"bounds": {"width": (1, 2)}}, "width"),
    ({"bounds": {"noise": (2.0, 1.0)}}, r"\(low, high\)"),
    ({"bounds": {"noise": (0.0, 1.0)}}, "positive"),
    ({"bounds": {"noise": "free"}}, "fixed"),
    ({"bounds": {"lengthscale": np.ones((2, 2))}}, "shape"),
    ({"optimizer": "newton"}, "'optimizer' parameter of"),
    ({"solver": "lu"}, "'solver' parameter of"),
    ({"optimizer": "lbfgs", "solver": "cg"}, "optimizer must be"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_refused(options, words):
    x, y = points()
    with pytest.raises((ValueError, TypeError), match=words):
        GaussianProcessRegressor(**options).fit(x, y)


def test_not_positive_definite_names_the_noise():
    x, y = points()
    bounds = {"noise": "fixed"}
    with pytest.raises(mc.LinAlgError, match="would do") as caught:
        GaussianProcessRegressor("euclidean", noise=1e-3, bounds=bounds).fit(x, y)
    enough = float(str(caught.value).split("noise = ")[2].split(",")[0])
    GaussianProcessRegressor("euclidean", noise=enough, optimizer=None).fit(x, y)


def test_before_fit_and_both_questions():
    x, y = points()
    for model in (GaussianProcessRegressor(), SparseGaussianProcessRegressor()):
        with pytest.raises(NotFittedError):
            model.predict(x)
        with pytest.raises(NotFittedError):
            model.sample_y(x)
    with pytest.raises(NotFittedError):
        GaussianProcessRegressor().log_marginal_likelihood()
    with pytest.raises(RuntimeError, match="At most one"):
        fixed().fit(x, y).predict(x, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="theta must have shape"):
        fixed().fit(x, y).log_marginal_likelihood(THETA[1:])


def test_memory_is_reckoned(monkeypatch):
    from mercer.models import _memory

    x, y = points()
    model = fixed().fit(x, y)
    monkeypatch.setattr(_memory, "free", lambda space: 1000)
    with pytest.raises(MemoryError, match='solver="cg" stores no matrix'):
        model.fit(x, y)
    np.testing.assert_array_equal(model.X_train_, x)
    with pytest.raises(MemoryError, match="inducing points"):
        SparseGaussianProcessRegressor().fit(x, y)


def test_interruption_leaves_the_model(monkeypatch):
    x, y = points()
    model = GaussianProcessRegressor().fit(x, y)
    before, wanted = dict(vars(model)), model.predict(x)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_gp_exact.ExactLikelihood, "_gradient", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x[:30, :2], y[:30])
    assert vars(model) == before
    np.testing.assert_array_equal(model.predict(x), wanted)


def products(**options):
    """The likelihood and gradient by products alone, solved to rounding."""
    return fixed(**{"solver": "cg", "tol": 1e-9, "random_state": 0, **options})


@pytest.mark.parametrize("make", [fixed, small, products])
def test_pickle_and_clone(make):
    x, y = points()
    model = make().fit(x, y)
    back = pickle.loads(pickle.dumps(model))
    for got, wanted in zip(
        back.predict(x, return_std=True), model.predict(x, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(clone(model).fit(x, y).predict(x), model.predict(x))


@pytest.mark.parametrize("make", [fixed, small, lambda: products(tol=1e-5)])
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_arrays_of_other_libraries(make, library):
    xp = pytest.importorskip("torch" if library == "torch" else "jax.numpy")
    x, y = (a.astype(np.float32) for a in points())
    wanted = make().fit(x, y).predict(x, return_std=True)
    model = make().fit(xp.asarray(x), xp.asarray(y))
    got = model.predict(xp.asarray(x), return_std=True)
    for one, other in zip(got, wanted, strict=True):
        assert type(one) is type(xp.asarray(x))
        assert one.dtype == xp.asarray(x).dtype
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-5, atol=1e-6)
    assert type(model.sample_y(xp.asarray(x[:3]), 2)) is type(xp.asarray(x))
    assert model.score(xp.asarray(x), xp.asarray(y)) > 0.5


# ---- by products ----


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ard", [False, True])
def test_gradient_from_probes(weighted, ard):
    x, y = points(p=2)
    theta = THETA if ard else np.log([AMPLITUDE, 0.7, NOISE])
    weights = np.random.default_rng(1).uniform(0.5, 3, len(x)) if weighted else None
    given = problem(mc.matern52(), x, y, weights)
    exact = _gp_exact.ExactLikelihood(given)(theta)[1]
    options = {"rank": 20, "tol": 1e-10, "max_products": 500, "seed": 0}
    likelihood = _gp_iterative.IterativeLikelihood(given, n_probes=len(x), **options)
    likelihood._probes = len(x) ** 0.5 * np.eye(len(x))  # their mean is the trace itself
    for _ in range(2):  # the second one begins with the solutions of the first
        np.testing.assert_allclose(likelihood.gradient(theta), exact, rtol=1e-6, atol=1e-6)
    likelihood = _gp_iterative.IterativeLikelihood(given, n_probes=400, **options)
    error = likelihood.gradient(theta) - exact
    assert abs(error).max() < 5 * len(x) / np.sqrt(2 * 400)  # at most the deviation of trace I


def test_value_from_probes():
    x, y = points(n=200, p=2)
    weights = np.random.default_rng(1).uniform(0.5, 3, len(x))
    given = problem(mc.matern52(), x, y, weights)
    likelihood = _gp_iterative.IterativeLikelihood(
        given, rank=20, n_probes=50, tol=1e-4, max_products=500, seed=0
    )
    value, error = likelihood.value(THETA)
    assert 0 < error < 20
    assert abs(value - _gp_exact.ExactLikelihood(given)(THETA)[0]) < 5 * error


@pytest.mark.parametrize("many", [120, 0.1])
def test_predictions_by_products(many, monkeypatch):
    monkeypatch.setattr(_gp_posterior, "MANY", many)  # a factor for 1.7 points, or for 2000
    x, y = points(n=200, p=2)
    exact, model = fixed(normalize_y=True).fit(x, y), products(normalize_y=True).fit(x, y)
    assert (exact.solver_, model.solver_) == ("direct", "cg")
    assert model.n_products_ > 0
    assert not hasattr(model, "L_")
    queries = points(n=70, seed=2)[0]
    for ask in ({"return_std": True}, {"return_cov": True}):
        for got, wanted in zip(
            model.predict(queries, **ask), exact.predict(queries, **ask), strict=True
        ):
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
    assert (model._posterior.factor is None) == (many < 1)
    got, wanted = model.sample_y(queries, 3), exact.sample_y(queries, 3)
    np.testing.assert_allclose(got, wanted, atol=1e-3)
    value, slope = model.log_marginal_likelihood(THETA, eval_gradient=True)
    assert value == pytest.approx(model.log_marginal_likelihood(THETA))
    assert slope.shape == THETA.shape


def test_fit_by_products(monkeypatch):
    from mercer.models import gaussian_process

    x, y = points(n=400)
    exact = GaussianProcessRegressor("gauss").fit(x, y)
    monkeypatch.setitem(gaussian_process.DIRECT, "cpu", 300)
    monkeypatch.setattr(gaussian_process, "SUBSET", 100)
    options = {"n_probes": 64, "max_iter": 25, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model, again = (GaussianProcessRegressor("gauss", **options).fit(x, y) for _ in range(2))
    assert model.solver_ == "cg"
    best = exact.log_marginal_likelihood_value_
    assert best - 2 < exact.log_marginal_likelihood(model.theta_) <= best + 1e-6
    error = model.log_marginal_likelihood_error_
    assert abs(model.log_marginal_likelihood_value_ - best) < 5 * error + 2
    np.testing.assert_allclose(model.predict(x), exact.predict(x), atol=0.1)
    np.testing.assert_array_equal(again.theta_, model.theta_)


def test_unsolved_is_said():
    x, y = points(n=300)
    model = GaussianProcessRegressor(
        solver="cg", noise=1e-9, bounds="fixed", optimizer=None, tol=1e-8, rank=1, random_state=0
    )
    with pytest.warns(ConvergenceWarning, match="rank"):
        model.fit(x, y)


@pytest.mark.parametrize("library", ["numpy", "torch", "cuda"])
def test_many_points_of_float32_stay_so(library, monkeypatch):
    monkeypatch.setattr("mercer.models._gp_base.DOUBLE", 100)
    x, y = (a.astype("float32") for a in points(n=400))
    wanted = fixed().fit(x.astype("d"), y.astype("d")).predict(x.astype("d"), return_std=True)
    if library != "numpy":
        torch = pytest.importorskip("torch")
        if library == "cuda" and not torch.cuda.is_available():
            pytest.skip("needs a GPU")
        x, y = (torch.as_tensor(a, device=library if library == "cuda" else "cpu") for a in (x, y))
    model = GaussianProcessRegressor(
        "gauss", solver="cg", tol=1e-4, max_iter=2, n_probes=4, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    assert str(model.alpha_.dtype).endswith("float32")
    assert str(model._posterior.solver.inverse.factor.dtype).endswith("float32")
    model = products(tol=1e-4).fit(x, y)
    for got, expected in zip(model.predict(x, return_std=True), wanted, strict=True):
        assert str(got.dtype).endswith("float32")
        np.testing.assert_allclose(host(got), expected, atol=5e-3)


def test_products_of_an_indefinite_kernel_are_refused():
    x, y = points()
    model = GaussianProcessRegressor("euclidean", solver="cg", noise=1e-3, bounds="fixed")
    with pytest.raises(mc.LinAlgError, match="not positive definite"):
        model.fit(x, y)
    assert not hasattr(model, "theta_")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_factors_stay_where_the_points_are(device, monkeypatch):
    """What comes to the host is of the order of n, not of n times the rank."""
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    x, y = (torch.as_tensor(a, device=device) for a in points(n=500))
    fetched, rank, fetch = [], 80, torch.Tensor.cpu

    def counted(tensor, *arguments, **options):
        fetched.append(tensor.numel())
        return fetch(tensor, *arguments, **options)

    model = GaussianProcessRegressor(
        "gauss", solver="cg", rank=rank, max_iter=2, n_probes=4, random_state=0
    )
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        patch.setattr(Space, "on_device", True)
        patch.setattr(torch.Tensor, "cpu", counted)
        for name in ("cg", "rpcholesky"):  # whose small matrices are the host's
            patch.setattr(mc.linalg, name, None)
        model.fit(x, y)
        mean, deviation = model.predict(x[:1], return_std=True)
    assert fetched
    assert max(fetched) < 500 * rank / 4
    factor = model._posterior.solver.inverse.factor
    assert tuple(factor.shape) == (500, rank)
    assert factor.device == x.device == mean.device
    assert 0 < float(deviation[0]) < 1


# ---- sparse ----


def dense_bound(f, x, y, u, weights, jitter):
    """Titsias' bound by matrices [n, n]."""
    n, p = y.shape
    scaled, inducing, noises = x / LENGTHS, u / LENGTHS, NOISE / weights
    g = AMPLITUDE * mc.pairwise(f, inducing) + jitter * AMPLITUDE * np.eye(len(u))
    cross = AMPLITUDE * mc.pairwise(f, inducing, scaled)
    q = cross.T @ np.linalg.solve(g, cross)
    a = q + np.diag(noises)
    prior = AMPLITUDE * np.diag(mc.pairwise(f, scaled))
    quad = np.trace(y.T @ np.linalg.solve(a, y))
    rest = ((prior - np.diag(q)) / noises).sum()
    value = quad + p * (np.linalg.slogdet(a)[1] + n * np.log(2 * np.pi) + rest)
    repeats = (weights - 1).sum() * np.log(2 * np.pi * NOISE) + np.log(weights).sum()
    return -0.5 * (value + p * repeats)


@pytest.mark.parametrize("kernel", ["gauss", "matern52", "polynomial"])
def test_bound_and_gradient(kernel, monkeypatch):
    monkeypatch.setattr(_gp_sparse, "BLOCK", 64 * 12)  # several blocks of rows
    f = mc.metric(kernel)
    x, y = points(n=150, p=2)
    rng = np.random.default_rng(5)
    u, weights = rng.normal(size=(12, 3)), rng.uniform(0.5, 2, 150)
    likelihood = _gp_sparse.SparseLikelihood(problem(f, x, y, weights))
    value, slope, by_u = likelihood(THETA, u, by_inducing=True)
    wanted = dense_bound(f, x, y, u, weights, _gp_sparse.JITTER)
    assert value == pytest.approx(wanted, rel=1e-9)
    numeric = differences(lambda t: likelihood(t, u)[0], THETA)
    np.testing.assert_allclose(slope, numeric, rtol=1e-6, atol=2e-8 * abs(slope).max())
    numeric = differences(lambda t: likelihood(THETA, t.reshape(u.shape))[0], u.ravel())
    reach = 1e-6 * abs(by_u).max() + 1e-10 * abs(value) / 1e-5  # rounding over the step
    np.testing.assert_allclose(by_u.ravel(), numeric, rtol=1e-6, atol=reach)


def test_all_points_as_inducing_points():
    x, y = points()
    exact = fixed(normalize_y=True).fit(x, y)
    options = {"lengthscale": LENGTHS, "amplitude": AMPLITUDE, "noise": NOISE, "optimizer": None}
    sparse = SparseGaussianProcessRegressor(**options).fit(x, y)
    assert len(sparse.inducing_) == len(x)
    reach = 10 * len(x) * _gp_sparse.JITTER * AMPLITUDE / NOISE
    assert sparse.lower_bound_ == pytest.approx(exact.log_marginal_likelihood(), abs=reach)
    queries = points(n=25, seed=2)[0]
    for got, wanted in zip(
        sparse.predict(queries, return_cov=True), exact.predict(queries, return_cov=True),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(got, wanted, atol=reach)


def test_sparse_fit():
    rng = np.random.default_rng(6)
    x = rng.uniform(-3, 3, size=(800, 2))
    y = np.sin(x[:, 0]) * np.cos(x[:, 1]) + 0.1 * rng.normal(size=800)
    exact = GaussianProcessRegressor("gauss").fit(x, y)
    loose = SparseGaussianProcessRegressor("gauss", n_inducing=12, random_state=0).fit(x, y)
    tight = SparseGaussianProcessRegressor(
        "gauss", n_inducing=12, train_inducing=True, random_state=0
    ).fit(x, y)
    many = SparseGaussianProcessRegressor("gauss", n_inducing=100, random_state=0).fit(x, y)
    best = exact.log_marginal_likelihood_value_
    assert loose.lower_bound_ < tight.lower_bound_ < best
    assert best - 0.5 < many.lower_bound_ < best + 1e-3
    assert many.noise_ == pytest.approx(exact.noise_, rel=0.01)
    truth = np.sin(x[:, 0]) * np.cos(x[:, 1])
    mean, std = many.predict(x, return_std=True)
    assert np.mean(((mean - truth) / std) ** 2) < 3
    given = SparseGaussianProcessRegressor(inducing=x[:30], optimizer=None).fit(x, y)
    np.testing.assert_array_equal(given.inducing_, x[:30])


def test_sparse_weights_are_repetitions():
    x, y = points()
    counts = np.random.default_rng(3).integers(0, 4, len(x))
    options = {"inducing": x[:15], "max_iter": 20}
    weighted = SparseGaussianProcessRegressor(**options).fit(x, y, sample_weight=counts)
    repeated = SparseGaussianProcessRegressor(**options).fit(
        x.repeat(counts, axis=0), y.repeat(counts)
    )
    assert weighted.lower_bound_ == pytest.approx(repeated.lower_bound_, rel=1e-10)
    np.testing.assert_allclose(weighted.predict(x), repeated.predict(x), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_inducing": 0}, "'n_inducing' parameter of"),
        ({"inducing": np.ones((3, 2))}, "inducing must have shape"),
        ({"inducing": np.full((3, 3), np.nan)}, "finite"),
        ({"optimizer": "adam"}, "'optimizer' parameter of"),
        ({"kernel": "precomputed"}, "precomputed"),
    ],
)
def test_sparse_refused(options, words):
    x, y = points()
    with pytest.raises(ValueError, match=words):
        SparseGaussianProcessRegressor(**options).fit(x, y)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("n", [70, 96, 150])
def test_inverses_by_blocks(library, n, monkeypatch):
    """As devices make them: in the factor's memory, both triangles."""
    monkeypatch.setattr(Space, "on_device", True)
    monkeypatch.setattr(_triangles, "PANEL", 32)
    monkeypatch.setattr(_triangles, "LEAF", 16)
    space, x = Space(library), points(n)[0]
    a = mc.pairwise(mc.matern52(bandwidth=1.0), x) + 0.2 * np.eye(n)
    factor = space.array(np.linalg.cholesky(a) + np.triu(np.full((n, n), 7.0), 1))
    found = _gp_exact.inverse_of_factor(factor, space)
    assert found is factor
    exact = np.linalg.inv(a)
    np.testing.assert_allclose(np.asarray(found), exact, atol=1e-13 * n * abs(exact).max())


@pytest.mark.parametrize("make", [fixed, small, lambda: products(tol=1e-5)])
@pytest.mark.parametrize("lent", [False, True])
def test_on_cuda(make, lent):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    x, y = points()
    wanted = make().fit(x, y).predict(x, return_std=True)
    model = make().set_params(device="cuda" if lent else None)
    given = (x, y) if lent else (torch.as_tensor(x).cuda(), torch.as_tensor(y).cuda())
    got = model.fit(*given).predict(given[0], return_std=True)
    for one, other in zip(got, wanted, strict=True):
        assert type(one) is type(given[0])
        one = one if lent else one.cpu().numpy()
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert type(model.sample_y(given[0][:3], 2)) is type(given[0])
