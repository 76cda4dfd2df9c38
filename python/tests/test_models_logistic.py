"""KernelLogisticRegression: minima and gradients against dense float64 algebra and scikit-learn."""

from __future__ import annotations

import pickle
import warnings

import mercer as mc
import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from mercer.models import KernelLogisticRegression
from mercer.models import logistic as home
from mercer.models._arrays import Space
from mercer.models._newton import MultinomialLoss
from scipy.special import expit, log_softmax, softmax
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import check_estimator

EXACT = {"tol": 1e-13, "random_state": 0}


def two_classes(n=150, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    return x, (np.sin(2 * x[:, 0]) + 0.5 * rng.normal(size=n) > 0).astype(int)


def dense_newton(k, y, s, ridge, steps=60):
    """Coefficients for labels y of 0 and 1, by damped Newton steps in float64."""
    a = np.zeros(len(y))

    def value(a):
        f = k @ a
        return s @ (np.logaddexp(0, f) - y * f) + ridge / 2 * a @ f

    for _ in range(steps):
        p = expit(k @ a)
        step = np.linalg.solve((s * p * (1 - p))[:, None] * k + ridge * np.eye(len(y)),
                               s * (y - p) - ridge * a)  # fmt: skip
        length = 1.0
        while value(a + length * step) > value(a) and length > 1e-8:
            length /= 2
        a = a + length * step
    return a, value(a)


@pytest.mark.parametrize("solver", ["direct", "cg"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("C", [0.1, 10.0, 1000.0])
def test_two_classes_as_dense_newton(solver, weighted, C):
    x, y = two_classes()
    s = np.random.default_rng(1).integers(1, 5, len(y)).astype(float) if weighted else None
    k = mc.kernel_matrix(mc.gauss(bandwidth=1.0), x)
    a, value = dense_newton(k, y, np.ones(len(y)) if s is None else s, 1 / C)
    m = KernelLogisticRegression(bandwidth=1.0, C=C, solver=solver, rank=40, **EXACT)
    m.fit(x, y, s)
    assert m.solver_ == solver
    np.testing.assert_allclose(m.objective_, value, rtol=1e-11)
    np.testing.assert_allclose(m.decision_function(x), k @ a, atol=1e-5 * abs(k @ a).max())
    assert (np.diff(m.objectives_) < 0).all()
    assert m.residual_ < 1e-3


@pytest.mark.parametrize("solver", ["direct", "cg"])
def test_many_classes_have_no_gradient_left(solver):
    x, y = load_wine(return_X_y=True)
    x = scale(x)
    s = np.random.default_rng(0).random(len(y)) + 0.1
    m = KernelLogisticRegression(bandwidth=3.0, C=5.0, solver=solver, rank=50, **EXACT)
    m.fit(x, y, s)
    k = mc.kernel_matrix(mc.gauss(bandwidth=3.0), x)
    f = k @ m.dual_coef_
    rest = s[:, None] * (softmax(f, axis=1) - np.eye(3)[y]) + m.dual_coef_ / 5.0
    assert np.abs(rest).max() < 1e-5
    own = -log_softmax(f, axis=1)[np.arange(len(y)), y]
    value = s @ own + 0.5 / 5.0 * (m.dual_coef_ * f).sum()
    np.testing.assert_allclose(m.objective_, value, rtol=1e-12)
    np.testing.assert_allclose(m.predict_proba(x), softmax(f, axis=1), rtol=1e-10)
    assert (np.diff(m.objectives_) < 0).all()


def test_root_of_the_multinomial_hessian():
    rng = np.random.default_rng(0)
    f, y, s = rng.normal(size=(5, 4)), np.eye(4)[[0, 1, 2, 3, 0]], rng.random((5, 1)) + 0.5
    bend = MultinomialLoss(y, s, Space()).curvature(f)
    p = softmax(f, axis=1)
    v = rng.normal(size=(5, 4))
    expected = s * (p * v - p * (p * v).sum(1)[:, None])
    np.testing.assert_allclose(bend.root(bend.transposed(v)), expected, atol=1e-5)
    np.testing.assert_allclose(bend.root(bend.inverse(bend.gradient)), bend.gradient, atol=1e-12)


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
@pytest.mark.parametrize("C", [0.01, 1.0])
def test_linear_kernel_as_scikit_learn(load, C):
    x, y = load(return_X_y=True)
    x = scale(x)
    peer = LogisticRegression(C=C, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(x, y)
    m = KernelLogisticRegression("linear", C=C, solver="cg", rank=x.shape[1], **EXACT).fit(x, y)
    expected = peer.predict_proba(x)
    np.testing.assert_allclose(m.predict_proba(x), expected, atol=1e-5)
    np.testing.assert_array_equal(m.predict(x), peer.predict(x))


@pytest.mark.parametrize("classes", [2, 3])
def test_centres(classes, monkeypatch):
    monkeypatch.setattr("mercer.models._newton._BLOCK", 500)  # several blocks of rows
    x, y = two_classes()
    y = y + (x[:, 1] > 1) * (classes - 2)
    s = np.random.default_rng(1).random(len(y)) + 0.5
    options = {"bandwidth": 1.0, "C": 5.0, **EXACT}
    m = KernelLogisticRegression(centers=x[:20], **options).fit(x, y, s)
    assert m.centers_.shape == (20, 3)
    assert m.dual_coef_.shape == ((20,) if classes == 2 else (20, 3))
    assert not hasattr(m, "X_fit_")
    tall, small = (mc.kernel_matrix(mc.gauss(bandwidth=1.0), a, x[:20]) for a in (x, x[:20]))
    f = tall @ m.dual_coef_
    p = expit(f)[:, None] if classes == 2 else softmax(f, axis=1)
    truth = y[:, None] if classes == 2 else np.eye(3)[y]
    rest = tall.T @ (s[:, None] * (p - truth)) + (small @ m.dual_coef_ / 5.0).reshape(20, -1)
    assert np.abs(rest).max() < 1e-4
    np.testing.assert_allclose(m.decision_function(x), f, rtol=1e-9)
    every = KernelLogisticRegression(centers=x, **options).fit(x, y, s)
    exact = KernelLogisticRegression(**options).fit(x, y, s)
    np.testing.assert_allclose(every.objective_, exact.objective_, rtol=1e-6)
    drawn = KernelLogisticRegression(centers=30, **options).fit(x.astype("float32"), y)
    assert drawn.centers_.dtype == np.float32
    assert drawn.score(x.astype("float32"), y) > 0.8
    with pytest.raises(ValueError, match="with centers"):
        KernelLogisticRegression(centers=30, solver="direct").fit(x, y)


def test_class_weight():
    x, y = two_classes()
    y = np.where(np.arange(len(y)) % 5 == 0, 1, y * 0)
    share = len(y) / (2 * np.bincount(y))
    by_rows = KernelLogisticRegression(bandwidth=1.0, **EXACT).fit(x, y, share[y])
    for given in ("balanced", {0: share[0], 1: share[1]}):
        m = KernelLogisticRegression(bandwidth=1.0, class_weight=given, **EXACT).fit(x, y)
        np.testing.assert_allclose(m.decision_function(x), by_rows.decision_function(x), rtol=1e-9)


@pytest.mark.parametrize("on_device", [False, True])
def test_float32_with_a_low_rank_and_digits(on_device, monkeypatch):
    monkeypatch.setattr(Space, "on_device", on_device)
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    m = KernelLogisticRegression(C=100.0, solver="cg", random_state=0).fit(x[:300], y[:300])
    assert m.dual_coef_.dtype == np.float32
    assert m.score(x[300:], y[300:]) > 0.85
    p = m.predict_proba(x[900:])
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-6)
    exact = KernelLogisticRegression(C=100.0, solver="cg", random_state=0)
    exact.fit(x[:300].astype(float), y[:300])
    np.testing.assert_allclose(m.objective_, exact.objective_, rtol=1e-5)


def test_duplicates_and_classes_that_part():
    x, y = two_classes(40)
    x, y = np.tile(x, (3, 1)), np.tile((x[:, 0] > 0).astype(int), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m = KernelLogisticRegression(C=1e4, solver="cg", rank=60, random_state=0).fit(x, y)
    assert m.score(x, y) == 1.0
    assert np.isfinite(m.dual_coef_).all()


def test_precomputed_and_metric():
    x, y = two_classes()
    k = mc.kernel_matrix(mc.gauss(bandwidth=1.0), x * [1.0, 2.0, 0.0])
    m = KernelLogisticRegression("precomputed", solver="cg", rank=60, **EXACT).fit(k, y)
    scaled = KernelLogisticRegression(bandwidth=1.0, metric=[1.0, 4.0, 0.0], **EXACT).fit(x, y)
    np.testing.assert_allclose(m.decision_function(k), scaled.decision_function(x), atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_of_zero_in_a_precomputed_matrix(classes):
    x, y = two_classes()
    y = y + (x[:, 1] > 1) * (classes - 2)
    s = (np.arange(len(y)) % 3 > 0).astype(float)
    k = mc.kernel_matrix(mc.gauss(bandwidth=1.0), x)
    m = KernelLogisticRegression("precomputed", solver="cg", **EXACT).fit(k, y, s)
    fewer = KernelLogisticRegression(bandwidth=1.0, **EXACT).fit(x[s > 0], y[s > 0])
    np.testing.assert_allclose(m.decision_function(k), fewer.decision_function(x), atol=1e-5)
    np.testing.assert_allclose(m.dual_coef_[s == 0], 0, atol=1e-9)


def test_warm_start_and_pickle():
    x, y = two_classes()
    m = KernelLogisticRegression(warm_start=True, random_state=0).fit(x, y)
    cold = m.n_iter_
    assert m.fit(x, y).n_iter_ < cold
    again = pickle.loads(pickle.dumps(m))
    np.testing.assert_array_equal(again.predict_proba(x), m.predict_proba(x))


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_arrays_of_other_libraries(library):
    xp = pytest.importorskip(library)
    x, y = two_classes()
    x = x.astype(np.float32)
    given = xp.asarray(x)
    m = KernelLogisticRegression(solver="cg", rank=40, random_state=0).fit(given, xp.asarray(y))
    host = KernelLogisticRegression(solver="cg", rank=40, random_state=0).fit(x, y)
    for method in ("decision_function", "predict_proba", "predict"):
        found = getattr(m, method)(given)
        assert type(found) is type(given)
        np.testing.assert_allclose(np.asarray(found), getattr(host, method)(x), atol=2e-4)
    assert m.score(given, xp.asarray(y)) == host.score(x, y)
    words = np.array(["no", "yes"])[y]
    assert set(m.fit(given, words).predict(given)) == {"no", "yes"}


@pytest.mark.parametrize("classes", [2, 3])
def test_cuda(classes):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    x, y = two_classes(300)
    y = y + (x[:, 1] > 1) * (classes - 2)
    given = torch.as_tensor(x, device="cuda")
    for solver in ("direct", "cg"):
        options = {"solver": solver, "rank": 60, **EXACT}
        host = KernelLogisticRegression(**options).fit(x, y)
        m = KernelLogisticRegression(**options).fit(given, torch.as_tensor(y, device="cuda"))
        assert m.predict_proba(given).device.type == "cuda"
        np.testing.assert_allclose(m.predict_proba(given).cpu(), host.predict_proba(x), atol=1e-6)
        np.testing.assert_allclose(m.objective_, host.objective_, rtol=1e-9)
        moved = KernelLogisticRegression(**options, device="cuda").fit(x, y)
        np.testing.assert_array_equal(moved.predict(x), host.predict(x))


def test_a_fit_that_ends_early_leaves_the_estimator(monkeypatch):
    x, y = two_classes()
    m = KernelLogisticRegression().fit(x, y)
    before = dict(vars(m))

    def stop(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(home, "minimise", stop)
    with pytest.raises(KeyboardInterrupt):
        m.fit(x[:, :2], 1 - y)
    assert vars(m) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"C": 0}, "'C' parameter of"),
        ({"solver": "lu"}, "'solver' parameter of"),
        ({"max_iter": 0}, "'max_iter' parameter of"),
        ({"bandwidth": -1.0}, "'bandwidth' parameter of"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        KernelLogisticRegression(**options).fit(*two_classes())


def test_bad_data_and_steps_that_run_out():
    x, y = two_classes()
    with pytest.raises(ValueError, match="only one class"):
        KernelLogisticRegression().fit(x, np.zeros_like(y))
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        KernelLogisticRegression().fit(x, y, -np.ones(len(y)))
    with pytest.warns(ConvergenceWarning, match="did not reach"):
        KernelLogisticRegression(C=1e3, max_iter=1).fit(x, y)


def test_check_estimator():
    found = check_estimator(KernelLogisticRegression(), on_skip=None)
    assert {row["status"] for row in found} <= {"passed", "skipped"}


@pytest.mark.parametrize("solver", ["direct", "cg"])
def test_kernels_that_are_not_positive_semi_definite_name_the_c(solver):
    x, y = two_classes(40)
    model = KernelLogisticRegression("tanh(2*sum(x*z)-1)", C=100.0, solver=solver)
    with pytest.raises(mc.LinAlgError, match=r"C = [0-9.e+-]+ would do") as caught:
        model.fit(x, y)
    model.set_params(C=float(str(caught.value).split("C = ")[-1].split()[0])).fit(x, y)
    assert model.residual_ < 1e-2
    with pytest.raises(ValueError, match="symmetric"):
        KernelLogisticRegression("sum(x*z*z)").fit(x, y)
