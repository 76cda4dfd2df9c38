"""Kernel ridge regression and classification: scikit-learn's checks, numbers, arrays and errors."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import mercer as mc
import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from mercer.models import KernelRidge, KernelRidgeClassifier, _costs, _memory
from mercer.models._arrays import Space, host
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.kernel_ridge import KernelRidge as Peer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

X, Y = load_diabetes(return_X_y=True)
X, Y = StandardScaler().fit_transform(X), (Y - Y.mean()) / Y.std()
TEST = X[:50] + 0.1


@parametrize_with_checks(
    [
        KernelRidge(),
        KernelRidge(solver="cg", tol=1e-10),
        KernelRidge(centers=20),
        KernelRidge(centers=20, solver="falkon", tol=1e-8),
        KernelRidgeClassifier(),
        KernelRidgeClassifier(probability=True),
    ]
)
@pytest.mark.filterwarnings("ignore")
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


def peer(**options):
    return Peer(kernel="rbf", gamma=1 / 18, alpha=0.1, **options)


def ours(**options):
    return KernelRidge(**{"bandwidth": 3.0, "alpha": 0.1} | options)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("outputs", [None, 3])
def test_coefficients_are_those_of_scikit_learn(weighted, outputs):
    y = Y if outputs is None else np.stack([Y, X[:, 0], X[:, 1] ** 2], axis=1)
    weights = np.random.default_rng(0).random(len(X)) + 0.1 if weighted else None
    reference, model = peer().fit(X, y, weights), ours().fit(X, y, weights)
    scale = abs(reference.dual_coef_).max()
    assert model.dual_coef_.shape == reference.dual_coef_.shape
    np.testing.assert_allclose(model.dual_coef_, reference.dual_coef_, atol=1e-10 * scale)
    np.testing.assert_allclose(model.predict(TEST), reference.predict(TEST), rtol=1e-9, atol=1e-9)
    assert model.score(TEST, y[:50]) == pytest.approx(reference.score(TEST, y[:50]), abs=1e-9)
    assert (model.solver_, model.n_iter_) == ("direct", 1)
    assert model.residual_ < 1e-12


@pytest.fixture(params=["host", "device"])
def way(request, monkeypatch):
    """Device: what fits do there is done with arrays of the host."""
    if request.param == "device":
        monkeypatch.setattr(Space, "on_device", True)
    return request.param


@pytest.mark.parametrize("weighted", [False, True])
def test_conjugate_gradients_agree(weighted, way):
    weights = np.random.default_rng(0).integers(0, 3, len(X)) if weighted else None
    reference = peer().fit(X, Y, weights)
    model = ours(solver="cg", tol=1e-9).fit(X, Y, weights)
    assert model.residual_ <= 1e-9
    np.testing.assert_allclose(model.predict(TEST), reference.predict(TEST), atol=1e-7)
    taken = model.n_iter_
    model.set_params(warm_start=True).fit(X, Y, weights)
    assert model.n_iter_ < taken


@pytest.mark.parametrize(
    "options",
    [
        {"solver": "direct"},
        {"solver": "cg", "tol": 1e-10},
        {"solver": "sap", "tol": 1e-8},
        {"centers": X[:60], "solver": "direct"},
        {"centers": X[:60], "solver": "falkon", "tol": 1e-10, "max_iter": 300},
    ],
    ids=lambda options: options["solver"] + "-centers" * ("centers" in options),
)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_ridge_for_each_output(options, weighted, way):
    weights = np.random.default_rng(0).random(len(X)) + 0.5 if weighted else None
    y, alpha = np.stack([Y, X[:, 0], X[:, 1] ** 2], 1), np.array([0.1, 3.0, 0.1])
    alone = KernelRidge(bandwidth=3.0, solver="direct", centers=options.get("centers"))
    columns = [alone.set_params(alpha=a).fit(X, y[:, j], weights).predict(TEST)
               for j, a in enumerate(alpha)]  # fmt: skip
    model = KernelRidge(bandwidth=3.0, alpha=alpha, **options).fit(X, y, weights)
    np.testing.assert_array_equal(model.alpha_, alpha)
    expected = np.stack(columns, 1)
    scale = abs(expected).max(0)
    np.testing.assert_allclose(model.predict(TEST) / scale, expected / scale, atol=1e-5)
    again = model.set_params(warm_start=True).fit(X, y, weights)
    np.testing.assert_allclose(again.predict(TEST) / scale, expected / scale, atol=1e-5)


def test_ridges_for_outputs_are_scikit_learns():
    y, alpha = np.stack([Y, X[:, 0]], 1), np.array([0.1, 3.0])
    reference = peer().set_params(alpha=alpha).fit(X, y)
    scale = abs(reference.dual_coef_).max(0)
    for given in (alpha, list(alpha)):
        model = ours(alpha=given).fit(X, y)
        np.testing.assert_allclose(
            model.dual_coef_ / scale, reference.dual_coef_ / scale, atol=1e-10
        )
    assert model.residual_ < 1e-12
    assert ours(alpha=[0.1]).fit(X, Y).alpha_ == 0.1
    stream = ours(alpha=alpha, centers=X[:40]).partial_fit(X[:90], y[:90])
    stream.partial_fit(X[90:], y[90:])
    whole = ours(alpha=alpha, centers=X[:40]).fit(X, y)
    np.testing.assert_allclose(stream.predict(TEST), whole.predict(TEST), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "alpha", [[0.1, 0.2], [0.1, 0.2, -1.0], [0.1, 0.2, np.nan], np.ones((3, 1)), ["a", "b", "c"]]
)
def test_ridges_that_are_none(alpha):
    with pytest.raises(ValueError, match=r"one for each output of y, of the shape \(3,\)"):
        ours(alpha=alpha).fit(X, np.stack([Y, Y, Y], 1))


def test_classes_and_fixed_steps_take_one_ridge():
    with pytest.raises(ValueError, match=r"'alpha' parameter of KernelRidgeClassifier"):
        KernelRidgeClassifier(alpha=[0.1, 0.2]).fit(X, Y > 0)
    with pytest.raises(ValueError, match="alpha must be one number"):
        ours(alpha=[0.1, 0.2], solver="fixed").fit(X, np.stack([Y, Y], 1))


def test_falkon_says_what_float32_leaves(way):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 3)).astype(np.float32)
    y = (np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=1500)).astype(np.float32)
    model = KernelRidge("gauss", bandwidth=1.0, alpha=0.1, centers=x[:150], solver="falkon")
    model.set_params(tol=3e-5, max_iter=100)
    with pytest.warns(ConvergenceWarning, match="above tol"):  # the recurrence gets there
        model.fit(x, y)
    assert model.n_iter_ < 100
    assert model.residual_ > 1e-4


def test_float32_stays_float32():
    reference = peer().fit(X, Y)
    model = ours().fit(X.astype("float32"), Y)
    assert model.dual_coef_.dtype == model.predict(TEST).dtype == np.float32
    np.testing.assert_allclose(model.predict(TEST), reference.predict(TEST), atol=1e-3)


def test_precomputed_matrices(way):
    k = mc.kernel_matrix(mc.gauss(bandwidth=3.0), X)
    cross = mc.kernel_matrix(mc.gauss(bandwidth=3.0), TEST, X)
    weights = np.random.default_rng(0).integers(0, 3, len(X))
    expected = ours().fit(X, Y, weights).predict(TEST)
    for solver in ("direct", "cg"):
        model = KernelRidge("precomputed", alpha=0.1, solver=solver, tol=1e-10)
        np.testing.assert_allclose(model.fit(k, Y, weights).predict(cross), expected, atol=1e-7)
    before = k.copy()
    model.fit(k, Y)
    np.testing.assert_array_equal(k, before)
    with pytest.raises(ValueError, match="square"):
        model.fit(k[:, :5], Y)
    with pytest.raises(ValueError, match="symmetric"):
        model.fit(np.triu(k), Y)
    search = GridSearchCV(KernelRidge("precomputed"), {"alpha": [0.1, 1.0]}, cv=3).fit(k, Y)
    plain = GridSearchCV(KernelRidge(bandwidth=3.0), {"alpha": [0.1, 1.0]}, cv=3).fit(X, Y)
    assert search.best_score_ == pytest.approx(plain.best_score_, abs=1e-9)


def test_metrics_stretch_the_features():
    m = np.arange(10) / 5.0
    expected = KernelRidge(bandwidth=3.0).fit(X * np.sqrt(m), Y).predict(TEST * np.sqrt(m))
    for metric in (m, np.diag(m)):
        model = KernelRidge(bandwidth=3.0, metric=metric).fit(X, Y)
        np.testing.assert_allclose(model.predict(TEST), expected, rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(model.X_fit_, X)


@pytest.mark.parametrize("solver", ["direct", "falkon"])
@pytest.mark.parametrize("weighted", [False, True])
def test_all_points_as_centres_give_the_whole_model(solver, weighted, way):
    weights = np.random.default_rng(0).integers(1, 3, len(X)) if weighted else None
    whole = ours().fit(X, Y, weights)
    model = ours(centers=X, solver=solver, tol=1e-10, max_iter=200).fit(X, Y, weights)
    assert model.solver_ == solver
    np.testing.assert_allclose(model.predict(TEST), whole.predict(TEST), atol=1e-5)


@pytest.mark.parametrize("solver", ["direct", "falkon"])
def test_centres_solve_their_normal_equations(solver, way):
    weights = np.random.default_rng(0).random(len(X)) + 0.5
    y = np.stack([Y, X[:, 0]], axis=1)
    model = ours(centers=40, solver=solver, tol=1e-10, random_state=1).fit(X, y, weights)
    f, z = mc.gauss(bandwidth=3.0), model.centers_
    k, inner = mc.kernel_matrix(f, X, z), mc.kernel_matrix(f, z)
    a = k.T @ (weights[:, None] * k) + 0.1 * inner
    b = k.T @ (weights[:, None] * y)
    fit = mc.kernel_product(f, TEST, z, np.linalg.lstsq(a, b, rcond=1e-15)[0])
    np.testing.assert_allclose(model.predict(TEST), fit, atol=1e-7)
    assert 0 < model.residual_ < 1e-9
    assert {tuple(row) for row in z} <= {tuple(row) for row in X}
    assert not hasattr(ours(), "partial_fit")


def test_partial_fits_add_up_in_any_order():
    weights = np.random.default_rng(0).integers(0, 3, len(X))
    z = X[::10]
    whole = ours(centers=z).fit(X, Y, weights)
    order = [slice(300, None), slice(0, 50), slice(50, 300)]
    model = ours(centers=z)
    for part in order:
        model.partial_fit(X[part], Y[part], weights[part])
    np.testing.assert_allclose(model.predict(TEST), whole.predict(TEST), atol=1e-8)
    copy = pickle.loads(pickle.dumps(model)).partial_fit(X, Y)
    assert abs(copy.predict(TEST) - model.predict(TEST)).max() > 1e-4
    np.testing.assert_allclose(model.predict(TEST), whole.predict(TEST), atol=1e-8)
    model.fit(X[:60], Y[:60]).partial_fit(X[60:], Y[60:])
    np.testing.assert_allclose(
        model.predict(TEST), ours(centers=z).fit(X, Y).predict(TEST), atol=1e-8
    )
    with pytest.raises(ValueError, match="expecting 10 features"):
        model.partial_fit(X[:, :3], Y)
    model.set_params(solver="falkon").fit(X, Y)
    assert not hasattr(model, "partial_fit")
    with pytest.raises(ValueError, match="fitted by 'falkon'"):
        model.set_params(solver="auto").partial_fit(X, Y)


def test_residuals_with_centres_are_measured():
    """Coefficients in float32 measure them, as predictions take them."""
    x, y, alpha = X.astype("float32"), np.stack([Y, X[:, 0]], 1).astype("float32"), [0.1, 0.3]
    whole = ours(alpha=alpha, centers=x[:40]).fit(x, y)
    stream = ours(alpha=alpha, centers=x[:40]).partial_fit(x[:90], y[:90])
    stream.partial_fit(x[90:], y[90:])
    k, inner = (mc.kernel_matrix(mc.gauss(bandwidth=3.0), a, x[:40]).astype("d")
                for a in (x, x[:40]))  # fmt: skip
    b = k.T @ y
    for model in (whole, stream):
        c = model.dual_coef_.astype("d")
        rest = np.linalg.norm(b - k.T @ (k @ c) - inner @ c * alpha, axis=0)
        # K_mm is of float32 here and of float64 there, and float64 sums have another order.
        gap = 6e-7 * np.linalg.norm(inner @ abs(c) * alpha, axis=0)
        gap += 1e-13 * np.linalg.norm(k.T @ (k @ abs(c)), axis=0)
        lengths = np.linalg.norm(b, axis=0)
        assert model.residual_ == pytest.approx((rest / lengths).max(), abs=(gap / lengths).max())
        assert model.residual_ > (gap / lengths).max()


@pytest.mark.parametrize("solver", ["direct", "fixed"])
def test_fits_without_centres_keep_no_sums(solver):
    model = ours(centers=20).fit(X, Y)
    model.set_params(centers=None, solver=solver).fit(X, Y)
    assert not hasattr(model, "_moments")
    with pytest.raises(ValueError, match=f"fitted by '{solver}' without centres"):
        model.set_params(centers=20, solver="auto").partial_fit(X, Y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_ill_conditioned_systems_end_in_the_factor(monkeypatch):
    """Conjugate gradients do not come to an end within the cost of a factor here."""
    monkeypatch.setattr("mercer.models._solve.DIRECT", {"cpu": 100})
    rates = replace(_costs.RATES["float64"], flops=1.5e9)  # a factor costs many products
    monkeypatch.setitem(_costs.RATES, "float64", rates)
    model = KernelRidge(bandwidth=30.0, alpha=1e-6, rank=10, tol=1e-6).fit(X, Y)
    assert model.solver_ == "direct"
    assert model.residual_ < 1e-6


def as_torch(a):
    return pytest.importorskip("torch").as_tensor(np.array(a))


def as_jax(a):
    return pytest.importorskip("jax").numpy.asarray(a)


@pytest.mark.parametrize("make", [np.asarray, as_torch, as_jax])
@pytest.mark.parametrize("centers", [None, 30])
def test_arrays_of_all_libraries(make, centers):
    x, y, test = (a.astype("float32") for a in (X, Y, TEST))
    expected = ours(centers=centers, random_state=0).fit(x, y)
    model = ours(centers=centers, random_state=0).fit(make(x), make(y))
    predicted = model.predict(make(test))
    assert type(predicted) is type(make(test))
    np.testing.assert_allclose(host(predicted), expected.predict(test), atol=1e-4)
    assert model.score(make(test), make(y[:50])) == pytest.approx(
        expected.score(test, y[:50]), abs=1e-3
    )
    np.testing.assert_allclose(model.predict(test), host(predicted), atol=1e-6)
    labels = (y > 0).astype("int32")
    classifier = KernelRidgeClassifier(probability=True).fit(make(x), make(labels))
    for method in ("predict", "decision_function", "predict_proba"):
        assert type(getattr(classifier, method)(make(test))) is type(make(test))
    assert classifier.score(make(x), make(labels)) > 0.7


def test_cuda_tensors_and_host_arrays_on_the_device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    expected = ours().fit(X, Y).predict(TEST)
    x, y, test = (torch.as_tensor(a, device="cuda") for a in (X, Y, TEST))
    for solver in ("direct", "cg"):
        model = ours(solver=solver, tol=1e-9).fit(x, y)
        assert model.dual_coef_.is_cuda
        assert model.predict(test).is_cuda
        np.testing.assert_allclose(host(model.predict(test)), expected, atol=1e-6)
    for solver in ("direct", "falkon"):
        model = ours(device="cuda", centers=X, solver=solver, tol=1e-9).fit(X, Y)
        np.testing.assert_allclose(model.predict(TEST), expected, atol=1e-5)


def test_frames_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[f"f{i}" for i in range(10)])
    model = ours().fit(frame, pandas.Series(Y))
    np.testing.assert_array_equal(model.predict(frame), ours().fit(X, Y).predict(X))
    assert list(model.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[frame.columns[::-1]])


@pytest.mark.parametrize("kernel", ["laplace", mc.gauss(bandwidth=2.0), "exp(-sum(abs(x-z))/4)"])
def test_models_clone_and_pickle(kernel):
    model = clone(KernelRidge(kernel, alpha=0.3)).fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(TEST), model.predict(TEST))
    assert "alpha=0.3" in repr(model)


def test_pipelines_and_searches():
    search = GridSearchCV(
        make_pipeline(StandardScaler(), KernelRidge()),
        {"kernelridge__kernel": ["gauss", "laplace"], "kernelridge__alpha": [0.1, 1.0]},
        cv=3,
    ).fit(X, Y)
    assert search.best_score_ > 0.4
    assert search.predict(TEST).shape == (50,)


def test_classes_and_probabilities():
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = KernelRidgeClassifier(alpha=0.1, probability=True).fit(x, names)
    p = model.predict_proba(x)
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    assert model.score(x, names) > 0.95
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_array_equal(model.classes_[p.argmax(1)], model.predict(x))
    np.testing.assert_array_equal(model.decision_function(x).argmax(1), p.argmax(1))
    assert not hasattr(KernelRidgeClassifier(), "predict_proba")


@pytest.mark.parametrize("solver", ["direct", "cg"])
def test_probabilities_hold_on_points_not_seen(solver):
    """Their logarithmic loss on the other half is that of the best slope but for a few percent."""
    x, y = load_breast_cancer(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    model = KernelRidgeClassifier(alpha=0.3, probability=True, solver=solver, random_state=0)
    model.fit(x[::2], y[::2])
    score = model.decision_function(x[1::2])
    signs = 2.0 * y[1::2] - 1

    def loss(slope):
        return np.mean(np.logaddexp(0, -2 * slope * score * signs))

    p = model.predict_proba(x[1::2])[:, 1]
    slope = np.median(np.log(p / (1 - p)) / (2 * score))
    best = min(loss(s) for s in np.linspace(0.2, 8, 100))
    assert loss(slope) < best + 0.02
    assert best < 0.15


def test_probabilities_are_not_those_of_a_fit_before():
    model = KernelRidgeClassifier(probability=True).fit(X, Y > 0)
    model.set_params(probability=False).fit(X, Y > 1)
    with pytest.raises(NotFittedError, match="fitted with probability=False"):
        model.set_params(probability=True).predict_proba(TEST)


def test_probabilities_come_from_scores_without_the_point():
    """The slope is that of refits without each point; a weight of 2 is the point twice."""
    from mercer.models import _calibrate

    x, y = load_breast_cancer(return_X_y=True)
    x, y = StandardScaler().fit_transform(x)[:60], y[:60]
    make = KernelRidgeClassifier(bandwidth=8.0, alpha=0.5, probability=True)
    scores = np.array(
        [
            clone(make).set_params(probability=False).fit(np.delete(x, i, 0), np.delete(y, i))
            .decision_function(x[i : i + 1])[0]
            for i in range(60)
        ]
    )  # fmt: skip
    both = np.stack([-scores, scores], axis=1)
    slope = _calibrate.fit_slope(both, y, np.ones(60))
    assert make.fit(x, y)._slope == pytest.approx(slope, rel=1e-8)
    weights = np.arange(60) % 3
    repeated = clone(make).fit(np.repeat(x, weights, 0), np.repeat(y, weights))
    assert make.fit(x, y, weights)._slope == pytest.approx(repeated._slope, rel=1e-8)


def test_errors_say_what_is_wrong(monkeypatch):
    for options, words in [
        ({"alpha": -1.0}, "'alpha' parameter of"),
        ({"alpha": np.nan}, "'alpha' parameter of"),
        ({"solver": "lu"}, "'solver' parameter of"),
        ({"centers": 5, "solver": "cg"}, "must be one of .* with centers. Got 'cg'"),
        ({"solver": "falkon"}, "must be one of .* without centers"),
        ({"centers": 0}, "'centers' parameter of"),
        ({"centers": X[:, :3]}, "points of 10 features"),
        ({"bandwidth": "large"}, "'bandwidth' parameter of"),
        (
            {"kernel": "precomputed", "centers": 5},
            "'centers' parameter of KernelRidge must be None",
        ),
        ({"kernel": "sum(x*z*z)"}, "kernel must be symmetric"),
        ({"kernel": "sum(x*z*z)", "centers": 5}, "kernel must be symmetric"),
    ]:
        with pytest.raises(ValueError, match=words):
            KernelRidge(**options).fit(X, Y)
    with pytest.raises(ValueError, match="one class"):
        KernelRidgeClassifier().fit(X, np.ones(len(X)))
    with pytest.raises(ValueError, match="with centers, which"):
        KernelRidgeClassifier(centers=5, probability=True).fit(X, Y > 0)
    with pytest.raises(NotFittedError):
        KernelRidge().predict(X)
    monkeypatch.setattr(_memory, "free", lambda space: 100_000)
    with pytest.raises(MemoryError, match='solver="cg" stores no matrix; centers=9'):
        KernelRidge().fit(X, Y)
    with pytest.raises(MemoryError, match="with 400 centres"):
        KernelRidge(centers=400).fit(X, Y)


def test_a_matrix_that_is_not_definite_names_the_ridge():
    with pytest.raises(mc.LinAlgError, match=r"alpha = .* would do") as caught:
        KernelRidge("sigmoid", alpha=1e-6).fit(X, Y)
    alpha = float(str(caught.value).split("alpha = ")[2].split(" would")[0])
    KernelRidge("sigmoid", alpha=alpha).fit(X, Y)


def test_failed_and_interrupted_fits_change_nothing(monkeypatch):
    model = ours().fit(X, Y)
    before = dict(vars(model))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(X[:, :3] * np.nan, Y)
    assert vars(model) == before

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(mc.linalg, "solve_cholesky", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:, :3], Y)
    assert vars(model) == before
    assert model.predict(TEST).shape == (50,)


def test_tolerances_that_are_not_met_are_said():
    for options in ({"solver": "cg", "rank": 1}, {"centers": 100, "solver": "falkon"}):
        with pytest.warns(ConvergenceWarning, match="relative residual"):
            KernelRidge(alpha=1e-6, tol=1e-12, max_iter=2, **options).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelRidge(solver="cg").fit(X, Y)


def test_duplicates_and_constant_features():
    x = np.concatenate([X, X])
    x[:, 3] = 7.0
    model = KernelRidge(alpha=0.2).fit(x, np.concatenate([Y, Y]))
    once = KernelRidge(alpha=0.2, bandwidth=model.bandwidth_).fit(
        x[: len(X)], Y, np.full(len(X), 2)
    )
    np.testing.assert_allclose(model.predict(TEST), once.predict(TEST), atol=1e-9)
    constant = KernelRidge().fit(np.ones((5, 2)), Y[:5])
    np.testing.assert_allclose(constant.predict(np.ones((1, 2))), Y[:5].sum() / 6)


def test_calibration_leaves_out_rows_of_weight_zero_of_a_given_matrix():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    labels, w = x[:, 0] > 0, rng.integers(0, 3, 60).astype(float)
    k, kept = np.asarray(mc.kernel_matrix("gauss", x)), w > 0
    whole = KernelRidgeClassifier("precomputed", probability=True).fit(k, labels, w)
    alone = KernelRidgeClassifier("precomputed", probability=True)
    alone.fit(k[np.ix_(kept, kept)], labels[kept], w[kept])
    np.testing.assert_allclose(whole.predict_proba(k), alone.predict_proba(k[:, kept]), rtol=1e-9)


@pytest.mark.parametrize(("first", "then"), [(3, None), (None, 3), (2, 3), (1, None)])
def test_partial_fits_have_the_same_outputs(first, then):
    x, one = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40.0)
    y, other = (one if k is None else np.tile(one[:, None], k) for k in (first, then))
    model = KernelRidge(centers=5, random_state=0).fit(x, y)
    before = model.dual_coef_.copy()
    with pytest.raises(ValueError, match="y must have as many outputs as before"):
        model.partial_fit(x, other)
    np.testing.assert_array_equal(model.dual_coef_, before)


def test_conjugate_gradients_have_products_for_small_ridges(way):
    """Without max_iter there are 10 n of them."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 3)), rng.choice([-1.0, 1.0], 300)
    options = {"bandwidth": 1.0, "alpha": 1e-5, "solver": "cg", "rank": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = KernelRidge(**options).fit(x, y)
    assert 1000 < model.n_iter_ < 3000
    assert model.residual_ <= 1e-3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ["gauss", "dot"])
def test_singular_systems_are_refused_by_every_solver(kernel, dtype, way):
    """Points twice with targets of both signs, and a matrix of rank 3, have no solution."""
    rng = np.random.default_rng(0)
    x, y = np.tile(rng.normal(size=(100, 3)), (2, 1)).astype(dtype), rng.normal(size=100)
    y = np.concatenate([y, -y]).astype(dtype)
    for solver, seed in (("direct", 0), ("cg", 2), ("cg", 32)):
        model = KernelRidge(kernel, alpha=0.0, solver=solver, tol=1e-2, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            warnings.simplefilter("ignore", ConvergenceWarning)
            with pytest.raises(mc.LinAlgError, match=r"alpha = .* would do"):
                model.fit(x, y)


def test_first_guesses_of_rows_without_weight_and_of_no_numbers(way):
    k = np.asarray(mc.kernel_matrix("gauss", X[:80]))
    weights = np.arange(80) % 3.0
    options = {"alpha": 0.1, "solver": "cg", "tol": 1e-9, "random_state": 0}
    model = KernelRidge("precomputed", warm_start=True, **options)
    first = model.fit(k, Y[:80], weights).dual_coef_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = model.fit(k, Y[:80], weights).dual_coef_
        np.testing.assert_allclose(again, first, atol=1e-6 * abs(first).max())
        assert not again[weights == 0].any()
        model.dual_coef_ = np.full(80, np.nan)
        np.testing.assert_array_equal(model.fit(k, Y[:80], weights).dual_coef_, first)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_unscaled_coefficients(library):
    from mercer.models._kernels import FittedKernel
    from mercer.models._solve import System

    if library == "torch":
        pytest.importorskip("torch")
    space = Space(library, "cpu", "float32")
    weights = space.array(np.array([0.0, 4.0, 0.25]))
    system = System(FittedKernel(mc.gauss()), space.zeros(3, 2), space, 0.1, weights)
    found = system.unscaled(space.array(np.array([[1.0, np.nan], [2.0, 4.0], [3.0, 5.0]])))
    assert str(found.dtype).endswith("float32")
    expected = [[0.0, 0.0], [1.0, 2.0], [6.0, 10.0]]
    np.testing.assert_array_equal(host(found), expected)


@pytest.mark.parametrize("fits", [True, False])
def test_probabilities_where_products_run_out(fits, monkeypatch):
    """A factor gives what signs do not; where there is no room for it, a warning does."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    labels = x[:, 0] + rng.normal(size=200) > 0
    options = {"bandwidth": 1.0, "alpha": 1e-6, "probability": True, "random_state": 0}
    exact = KernelRidgeClassifier(solver="direct", **options).fit(x, labels)
    model = KernelRidgeClassifier(solver="cg", **options)
    if fits:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.fit(x, labels)
        assert model._slope == pytest.approx(exact._slope, rel=0.01)
        return
    monkeypatch.setattr("mercer.models._solve.System.fits", lambda self: False)
    with pytest.warns(ConvergenceWarning, match="predict_proba is NaN.* alpha = 1e-06"):
        model.fit(x, labels)
    assert np.isnan(model.predict_proba(x)).all()
    assert model.score(x, labels) > 0.9


def test_memory_that_probabilities_lack_is_said_by_the_estimators_name(monkeypatch):
    model = KernelRidgeClassifier(solver="cg", alpha=1.0, probability=True)

    found = KernelRidgeClassifier._calibrated

    def calibrated(self, *arguments):
        monkeypatch.setattr(_memory, "free", lambda space: 1000)
        return found(self, *arguments)

    monkeypatch.setattr(KernelRidgeClassifier, "_calibrated", calibrated)
    with pytest.raises(MemoryError, match=r"^KernelRidgeClassifier: a factor"):
        model.fit(X, Y > 0)
