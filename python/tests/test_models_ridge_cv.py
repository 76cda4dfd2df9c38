"""The ridge and the bandwidth that kernel ridge regression chooses, against refits and formulas."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from mercer.models import KernelRidge, KernelRidgeCV, _select
from mercer.models._arrays import Space, host
from mercer.models._kernels import fit_kernel
from mercer.models._select import generalised
from mercer.models._solve import System
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

X, Y = load_diabetes(return_X_y=True)
X, Y = StandardScaler().fit_transform(X), (Y - Y.mean()) / Y.std()
ALPHAS = (0.01, 0.1, 1.0, 10.0)


@parametrize_with_checks([KernelRidgeCV()])
@pytest.mark.filterwarnings("ignore")
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("outputs", [None, 2])
def test_points_are_left_out_exactly(outputs):
    x = X[:40]
    y = Y[:40] if outputs is None else np.stack([Y[:40], x[:, 0] ** 2], axis=1)
    model = KernelRidgeCV(alphas=ALPHAS, bandwidths=(0.5, 1.0)).fit(x, y)
    results = model.cv_results_
    for i, bandwidth in enumerate(results["bandwidths"]):
        for j, alpha in enumerate(ALPHAS):
            plain = KernelRidge(bandwidth=bandwidth, alpha=alpha)
            missed = [
                y[m] - plain.fit(np.delete(x, m, 0), np.delete(y, m, 0)).predict(x[m : m + 1])[0]
                for m in range(40)
            ]
            assert results["scores"][i, j] == pytest.approx(np.mean(np.square(missed)), rel=1e-8)
    assert model.select_ == "loo"
    assert model.best_score_ == results["scores"].min()
    chosen = KernelRidge(bandwidth=model.bandwidth_, alpha=model.alpha_).fit(x, y)
    np.testing.assert_array_equal(model.dual_coef_, chosen.dual_coef_)
    np.testing.assert_array_equal(model.predict(X), chosen.predict(X))


@pytest.mark.parametrize("select", ["loo", "gcv"])
def test_a_weight_is_so_many_points(select):
    weights = np.arange(120) % 4
    options = {"alphas": ALPHAS, "bandwidths": (1.0,), "select": select, "n_probes": 200}
    model = KernelRidgeCV(**options, tol=1e-8).fit(X[:120], Y[:120], weights)
    again = KernelRidgeCV(**options, tol=1e-8).fit(
        np.repeat(X[:120], weights, 0), np.repeat(Y[:120], weights)
    )
    assert model.bandwidth_ == pytest.approx(again.bandwidth_)
    rtol = 1e-8 if select == "loo" else 0.03
    np.testing.assert_allclose(model.cv_results_["scores"], again.cv_results_["scores"], rtol=rtol)


def exact_gcv(x, y, bandwidth, alpha, weights):
    s = np.sqrt(weights)
    k = s[:, None] * mc.kernel_matrix(mc.gauss(bandwidth=bandwidth), x) * s
    inverse = np.linalg.inv(k + alpha * np.eye(len(x)))
    mass = max(weights.sum(), len(x))
    degrees = len(x) - alpha * np.trace(inverse)
    residual = alpha * inverse @ (s[:, None] * y)
    return (residual**2).sum() / (weights.sum() * y.shape[1]) / (1 - degrees / mass) ** 2


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("weighted", [False, True])
def test_generalised_cross_validation_by_probes(library, weighted):
    """64 vectors of random signs: within 2 %, since they estimate a small difference alone."""
    if library == "torch":
        pytest.importorskip("torch")
    space = Space(library)
    weights = np.random.default_rng(0).random(len(X)) + 0.3 if weighted else np.ones(len(X))
    y = np.stack([Y, X[:, 0] * X[:, 1]], axis=1)
    x = space.array(X)
    kernel = fit_kernel("gauss", x, space, bandwidth=4.0)
    system = System(kernel, x, space, 0.0, space.array(weights) if weighted else None)
    scores, products = generalised(
        system, space.array(y), np.array(ALPHAS), rank=80, tol=1e-4, max_iter=None, probes=64,
        seed=0,
    )  # fmt: skip
    expected = [exact_gcv(X, y, 4.0, alpha, weights) for alpha in ALPHAS]
    np.testing.assert_allclose(scores, expected, rtol=0.02)
    assert 0 < products < 200


def test_both_selections_agree_on_the_choice():
    options = {"alphas": ALPHAS, "bandwidths": (0.5, 1.0, 2.0), "random_state": 0}
    exact = KernelRidgeCV(select="loo", **options).fit(X, Y)
    quick = KernelRidgeCV(select="gcv", solver="cg", **options).fit(X, Y)
    assert (quick.alpha_, quick.bandwidth_) == (exact.alpha_, exact.bandwidth_)
    assert quick.best_score_ == pytest.approx(exact.best_score_, rel=0.05)
    assert quick.solver_ == "cg"


def test_gcv_is_taken_beyond_the_spectrum(monkeypatch):
    monkeypatch.setattr("mercer.models._select.SPECTRUM", {"cpu": 100})
    assert KernelRidgeCV(alphas=ALPHAS, bandwidths=(1.0,)).fit(X, Y).select_ == "gcv"
    direct = KernelRidgeCV(alphas=ALPHAS, bandwidths=(1.0,), solver="direct").fit(X, Y)
    assert direct.select_ == "loo"


def test_choices_without_a_bandwidth():
    k = mc.kernel_matrix(mc.gauss(bandwidth=3.0), X)
    model = KernelRidgeCV("precomputed", alphas=ALPHAS).fit(k, Y)
    expected = KernelRidgeCV(bandwidth=3.0, bandwidths=(1.0,), alphas=ALPHAS).fit(X, Y)
    assert model.alpha_ == expected.alpha_
    assert model.bandwidth_ is None
    np.testing.assert_allclose(model.predict(k), expected.predict(X), atol=1e-9)
    assert KernelRidgeCV("dot", alphas=ALPHAS).fit(X, Y).cv_results_["scores"].shape == (1, 4)


def test_arrays_of_torch_in_and_out():
    torch = pytest.importorskip("torch")
    options = {"alphas": ALPHAS, "bandwidths": (1.0, 2.0)}
    expected = KernelRidgeCV(**options).fit(X, Y)
    model = KernelRidgeCV(**options).fit(torch.as_tensor(X), torch.as_tensor(Y))
    predicted = model.predict(torch.as_tensor(X))
    assert isinstance(predicted, torch.Tensor)
    np.testing.assert_allclose(host(predicted), expected.predict(X), atol=1e-9)


def test_cuda_tensors_and_host_arrays_on_the_device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    options = {"alphas": ALPHAS, "bandwidths": (1.0, 2.0), "random_state": 0}
    for select in ("loo", "gcv"):
        expected = KernelRidgeCV(select=select, **options).fit(X, Y)
        x, y = (torch.as_tensor(a, device="cuda") for a in (X, Y))
        for model in (
            KernelRidgeCV(select=select, **options).fit(x, y),
            KernelRidgeCV(select=select, device="cuda", **options).fit(X, Y),
        ):
            np.testing.assert_allclose(
                model.cv_results_["scores"], expected.cv_results_["scores"], rtol=0.02
            )
            assert model.dual_coef_.is_cuda


def test_choices_that_cannot_be_scored_are_said():
    with pytest.warns(ConvergenceWarning, match="2 of 3 choices have no score"):
        model = KernelRidgeCV("sigmoid", alphas=(1e-6, 1e-3, 500.0)).fit(X, Y)
    assert model.alpha_ == 500.0
    assert np.isinf(model.cv_results_["scores"][0, :2]).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alphas": ()}, "one number at least"),
        ({"alphas": (1.0, -1.0)}, "from 0 on"),
        ({"bandwidths": (0.0,)}, "positive numbers"),
        ({"bandwidths": ()}, "positive numbers"),
        ({"select": "aic"}, "'select' parameter of"),
        ({"solver": "lu"}, "'solver' parameter of"),
    ],
)
def test_errors_say_what_is_wrong(options, words):
    with pytest.raises(ValueError, match=words):
        KernelRidgeCV(**options).fit(X, Y)


def test_no_choice_left_is_an_error():
    with pytest.raises(mc.LinAlgError, match="would do"), pytest.warns(ConvergenceWarning):
        KernelRidgeCV("sigmoid", alphas=(1e-6,)).fit(X, Y)


@pytest.mark.parametrize("select", ["loo", "gcv"])
def test_rows_of_weight_zero_in_a_given_matrix_count_for_nothing(select):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y, w = np.sin(x[:, 0]) + 0.1 * rng.normal(size=60), rng.integers(0, 3, 60).astype(float)
    k = np.asarray(mc.kernel_matrix("gauss", x))
    kept = w > 0
    given = KernelRidgeCV("precomputed", select=select, n_probes=400, random_state=0)
    alone = KernelRidgeCV("precomputed", select=select, n_probes=400, random_state=0)
    given.fit(k, y, w), alone.fit(k[np.ix_(kept, kept)], y[kept], w[kept])
    # Traces by 400 signs each: a relative error of sqrt(2 / 400) of what no control explains.
    a, b = given.cv_results_["scores"], alone.cv_results_["scores"]
    np.testing.assert_allclose(a, b, rtol=1e-9 if select == "loo" else 0.1)
    assert given.alpha_ == alone.alpha_


def test_generalised_cross_validation_is_of_the_weighted_problem():
    weights, scores = np.random.default_rng(3).integers(1, 4, 60), []
    x, y, w = X[:60], Y[:60, None], weights.astype(float)
    again = [np.repeat(a, weights, axis=0) for a in (x, y)]
    for points, targets, given in ((x, y, w), (*again, None)):
        system = System(fit_kernel("gauss", x, Space(), bandwidth=2.0), points, Space(), 0.3, given)
        scale = 1.0 if given is None else np.sqrt(given)[:, None]
        inverse = np.linalg.inv(system.matrix())
        scores.append(_select.gcv(system, inverse @ (scale * targets), 0.3, np.trace(inverse)))
    assert scores[0] == pytest.approx(scores[1], rel=1e-10)
