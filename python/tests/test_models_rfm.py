"""Recursive feature machines against plain NumPy, and what they learn."""

from __future__ import annotations

import pickle

import mercer as mc
import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from mercer.models import KernelRidge, RFMClassifier, RFMRegressor, _low_rank, _memory
from mercer.models import _rounds as home
from mercer.models._agop import metric_root, outer_products
from mercer.models._arrays import Space
from mercer.models._categories import fit_encoder
from mercer.models._kernels import FittedKernel, fit_kernel
from mercer.models._solve import System
from sklearn.datasets import load_diabetes, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import check_estimator

SPACE = Space()


def relevant(n=300, d=8, seed=0):
    """A target of features 1 and 4 alone."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, np.sin(x[:, 1]) + x[:, 4] ** 2 / 2 + 0.01 * rng.normal(size=n)


def plain_gradients(x, a, bandwidth):
    """Gradients of sums of exp(-|x - z| / b) at all points, [n, k, d], in float64."""
    diff = x[:, None] - x[None]
    r = np.sqrt((diff**2).sum(-1))
    slope = np.divide(-np.exp(-r / bandwidth) / bandwidth, r, out=np.zeros_like(r), where=r > 0)
    return np.einsum("mn,mnd,nk->mkd", slope, diff, a)


def plain_round(x, y, root, bandwidth, alpha, diag):
    """(coefficients, the next root) of one round."""
    points = x * root if diag else x @ root
    k = np.exp(-np.sqrt(((points[:, None] - points[None]) ** 2).sum(-1)) / bandwidth)
    a = np.linalg.solve(k + alpha * np.eye(len(x)), y)
    g = plain_gradients(points, a, bandwidth).reshape(-1, x.shape[1])
    g = g * root if diag else g @ root
    m = g.T @ g
    m = np.diag(m) / np.diag(m).max() if diag else m / m.max()
    if diag:
        return a, np.sqrt(m)
    values, vectors = np.linalg.eigh(m)
    return a, (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


@pytest.mark.parametrize("diag", [False, True])
def test_rounds_as_plain_numpy(diag):
    x, y = relevant(120, 5)
    y = np.stack([y, x[:, 0]], 1)
    y = y - y.mean(0)
    root = np.ones(5) if diag else np.eye(5)
    for _ in range(3):
        metric = root * root if diag else root @ root
        a, root = plain_round(x, y, root, 4.0, 0.01, diag)
    m = RFMRegressor(
        bandwidth=4.0, alpha=0.01, n_rounds=2, diag=diag, validation=None, early_stopping=False
    ).fit(x, y)
    np.testing.assert_allclose(m.metric_, metric, atol=1e-9)
    np.testing.assert_allclose(m.dual_coef_, a, rtol=1e-6, atol=1e-6 * abs(a).max())
    assert m.best_round_ == 2
    assert [row["solver"] for row in m.history_] == ["direct"] * 3


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_outer_products_of_gradients(dtype, center, weighted, monkeypatch):
    monkeypatch.setattr("mercer.models._agop._BLOCK", 100)  # several blocks of rows
    rng = np.random.default_rng(0)
    space = Space(dtype=dtype)
    x, a = (space.array(rng.normal(size=(40, c))) for c in (4, 2))
    w = rng.random(40) if weighted else None
    kernel = fit_kernel("matern12", x, space, bandwidth=3.0)
    found = outer_products(
        kernel, x, x, a, space, weights=None if w is None else space.array(w), center=center
    )
    g = plain_gradients(x.astype(float), a.astype(float), 3.0).reshape(-1, 4)
    rows = np.repeat(np.ones(40) if w is None else w, 2)
    if center:
        g = g - rows @ g / rows.sum()
    expected = (g * rows[:, None]).T @ g
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(found, expected, atol=tolerance * abs(expected).max())


@pytest.mark.parametrize("power", [0.5, 0.25])
def test_metric_of_groups(power):
    rng = np.random.default_rng(0)
    g, root = rng.normal(size=(20, 4)), np.eye(4) + 0.1
    groups = np.array([0, 0, 1, 1])
    m = root @ g.T @ g @ root
    m[:2, 2:] = m[2:, :2] = 0
    m /= m.max()
    values, vectors = np.linalg.eigh(m)
    found = metric_root(g.T @ g, root, groups, power)
    np.testing.assert_allclose(found, (vectors * values**power) @ vectors.T, atol=1e-12)
    assert metric_root(np.zeros((4, 4)), root, groups, power) is None


KERNELS = [
    ("matern12", None, 10.0),
    ("product_laplace", None, 10.0),
    ("lpq", {"p": 1.5, "q": 0.9}, 10.0),
    ("sum_power_laplace", None, 5.0),
    ("gauss", None, "median"),
    ("exp(-sum(abs(x-z)^1.2)/20)", None, "scale"),
]


@pytest.mark.parametrize(("kernel", "params", "bandwidth"), KERNELS)
@pytest.mark.parametrize("diag", [False, True])
def test_relevant_features_are_found(kernel, params, bandwidth, diag):
    x, y = relevant()
    m = RFMRegressor(
        kernel, kernel_params=params, bandwidth=bandwidth, diag=diag, n_rounds=3, random_state=0
    ).fit(x[:200], y[:200])
    assert set(np.argsort(m.feature_importances_)[-2:]) == {1, 4}
    assert m.history_[m.best_round_]["error"] < m.history_[0]["error"]
    first = RFMRegressor(
        kernel, kernel_params=params, bandwidth=bandwidth, n_rounds=0, random_state=0
    ).fit(x[:200], y[:200])
    assert m.score(x[200:], y[200:]) > first.score(x[200:], y[200:])
    np.testing.assert_array_equal(first.metric_, np.eye(8))


def test_the_metric_serves_other_models():
    x, y = relevant()
    m = RFMRegressor(n_rounds=2, validation=None, random_state=0).fit(x, y)
    ridge = KernelRidge("matern12", bandwidth=10.0, alpha=1e-3, metric=m.metric_)
    ridge.fit(x, y - m.intercept_)
    np.testing.assert_allclose(ridge.predict(x) + m.intercept_, m.predict(x), atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_conjugate_gradients_find_what_a_factor_finds(weighted, on_device, monkeypatch):
    monkeypatch.setattr(Space, "on_device", on_device)
    x, y = relevant(400)
    w = np.random.default_rng(0).random(400) + 0.2 if weighted else None
    exact, found = (
        RFMRegressor(n_rounds=2, validation=None, solver=solver, tol=1e-9, rank=60).fit(x, y, w)
        for solver in ("direct", "cg")
    )
    assert found.solver_ == "cg"
    assert found.n_iter_ > 1
    np.testing.assert_allclose(found.metric_, exact.metric_, atol=1e-6)
    np.testing.assert_allclose(found.predict(x), exact.predict(x), atol=1e-5)
    assert found.residual_ < 1e-8


def test_first_guesses_of_any_size_and_ends_of_the_budget():
    x, y = relevant(200)
    system = System(FittedKernel(mc.gauss(bandwidth=3.0)), x, SPACE, 0.1)
    b = np.stack([y, 0 * y], 1)
    exact = np.linalg.solve(mc.kernel_matrix(mc.gauss(bandwidth=3.0), x) + 0.1 * np.eye(200), b)
    cold, _ = _low_rank.solve(system, b, rank=20, tol=1e-8, max_iter=200)
    warm, met = _low_rank.solve(system, b, rank=20, tol=1e-8, max_iter=200, coef0=1000 * exact)
    assert met
    assert warm.n_iter < cold.n_iter
    np.testing.assert_allclose(warm.coef, exact, atol=1e-6)
    assert not _low_rank.solve(system, b, rank=1, tol=1e-8, max_iter=2)[1]


def test_what_a_factor_leaves_counts_in_the_preconditioner():
    x, y = relevant(400)
    system = System(FittedKernel(mc.matern12(bandwidth=10.0)), x, SPACE, 1e-3)
    low = _low_rank.random_cholesky(system.kernel, x, SPACE, 60, 1e-3, 0)
    k = mc.kernel_matrix(mc.matern12(bandwidth=10.0), x)
    rest = k - low.factor @ low.factor.T
    np.testing.assert_allclose(low.left, np.diag(rest), atol=1e-12)
    assert np.linalg.eigvalsh(rest).min() > -1e-10
    none = _low_rank.LowRank(low.factor, 0 * low.left, SPACE)
    taken = [
        _low_rank.conjugate_gradients(
            lambda p: (system.product(p), p), factor.inverse(1e-3), y[:, None], 1e-3, 400, SPACE,
            _low_rank.by_columns,
        ).taken
        for factor in (low, none)
    ]  # fmt: skip
    assert 1.3 * taken[0] < taken[1]


def test_auto_ends_in_a_factor(monkeypatch):
    monkeypatch.setattr(home, "DIRECT", {"cpu": 50})
    x, y = relevant(300)
    hard = RFMRegressor(n_rounds=1, validation=None, tol=1e-13, rank=2, bandwidth=30.0).fit(x, y)
    assert hard.solver_ == "direct"
    easy = RFMRegressor(n_rounds=1, validation=None, alpha=0.1).fit(x, y)
    assert easy.solver_ == "cg"


def test_validation_data_and_gcv():
    x, y = relevant(300)
    m = RFMRegressor(n_rounds=3, early_stopping=False)
    m.fit(x[:150], y[:150], X_val=x[150:], y_val=y[150:])
    np.testing.assert_allclose(m.history_[m.best_round_]["error"],
                               np.mean((m.predict(x[150:]) - y[150:]) ** 2), rtol=1e-9)  # fmt: skip
    assert m.best_round_ == np.argmin([row["error"] for row in m.history_])
    by_gcv = RFMRegressor(n_rounds=1, validation="gcv", alpha=0.1).fit(x[:150], y[:150])
    k = mc.kernel_matrix(mc.matern12(bandwidth=10.0), x[:150])
    inverse = np.linalg.inv(k + 0.1 * np.eye(150))
    rest = inverse @ (y[:150] - y[:150].mean())
    gcv = np.mean(rest**2) / np.mean(np.diag(inverse)) ** 2
    np.testing.assert_allclose(by_gcv.history_[0]["error"], gcv, rtol=1e-9)


def test_early_stopping():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 30))
    y = x.sum(1) + rng.normal(size=200)  # every round overfits more
    m = RFMRegressor("gauss", bandwidth=3.0, n_rounds=12, random_state=0).fit(x, y)
    whole = RFMRegressor("gauss", bandwidth=3.0, n_rounds=12, early_stopping=False, random_state=0)
    assert len(m.history_) < len(whole.fit(x, y).history_) == 13
    assert m.history_[-1]["error"] > 1.1 * m.history_[m.best_round_]["error"]


def test_categories():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    x[:, 2] = rng.integers(0, 3, 300) + 5
    y = np.array([1.0, -3.0, 2.0])[x[:, 2].astype(int) - 5] + x[:, 0]
    fits = [
        RFMRegressor(n_rounds=2, categorical_features=chosen, random_state=0).fit(x, y)
        for chosen in ([2], [-2], [False, False, True, False])
    ]
    m = fits[0]
    assert m.metric_.shape == (6, 6)
    np.testing.assert_array_equal(m.metric_[:3, 3:], 0)
    np.testing.assert_array_equal(fits[1].metric_, m.metric_)
    np.testing.assert_array_equal(fits[2].metric_, m.metric_)
    assert m.feature_importances_.shape == (4,)
    assert m.feature_importances_[2] > 10 * m.feature_importances_[[1, 3]].max()
    assert m.score(x, y) > 0.99
    other = x.copy()
    other[:, 2] = 99
    assert np.isfinite(m.predict(other)).all()
    encoder = fit_encoder([2], x, None)
    np.testing.assert_array_equal(encoder(other, SPACE)[:, 3:], 0)
    np.testing.assert_array_equal(encoder(x, SPACE)[:, 3:].sum(1), 1)


def test_few_rows_give_gradients():
    x, y = relevant(300)
    m = RFMRegressor(n_rounds=2, agop_samples=50, random_state=0).fit(x, y)
    assert set(np.argsort(m.feature_importances_)[-2:]) == {1, 4}


def test_weights_are_repeats():
    x, y = relevant(120)
    w = np.random.default_rng(1).integers(0, 3, 120)
    weighted = RFMRegressor(n_rounds=2, random_state=0).fit(x, y, w)
    repeated = RFMRegressor(n_rounds=2, random_state=0).fit(np.repeat(x, w, 0), np.repeat(y, w))
    np.testing.assert_allclose(weighted.metric_, repeated.metric_, atol=1e-8)
    np.testing.assert_allclose(weighted.predict(x), repeated.predict(x), rtol=1e-5)


def test_constant_targets_and_equal_rows():
    x, _ = relevant(60)
    flat = RFMRegressor().fit(x, np.full(60, 3.0))
    np.testing.assert_allclose(flat.predict(x), 3.0)
    assert len(flat.history_) == 1
    same = RFMRegressor().fit(np.ones((20, 2)), np.arange(20.0))
    np.testing.assert_allclose(same.predict(np.ones((1, 2))), 9.5, rtol=1e-3)


@pytest.mark.parametrize("labels", [["a", "b", "c"], [0, 1]])
def test_classes(labels):
    x, y = load_wine(return_X_y=True)
    x, y = scale(x), np.array(labels)[y % len(labels)]
    m = RFMClassifier(n_rounds=2, random_state=0).fit(x[::2], y[::2], X_val=x[1::2], y_val=y[1::2])
    assert m.score(x[1::2], y[1::2]) > 0.9
    p = m.predict_proba(x)
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_array_equal(m.classes_[p.argmax(1)], m.predict(x))
    shape = (178,) if len(labels) == 2 else (178, 3)
    assert m.decision_function(x).shape == shape
    with pytest.raises(ValueError, match="labels that y has"):
        m.fit(x, y, X_val=x, y_val=np.full(178, 7))


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_arrays_of_other_libraries(library):
    xp = pytest.importorskip(library)
    x, y = (a.astype(np.float32) for a in load_diabetes(return_X_y=True))
    x, y = x[:150] * 20, y[:150]
    given = xp.asarray(x)
    options = {"n_rounds": 2, "alpha": 0.1, "random_state": 0}
    m, host = (RFMRegressor(**options).fit(a, b) for a, b in ((given, xp.asarray(y)), (x, y)))
    found = m.predict(given)
    assert type(found) is type(given)
    np.testing.assert_allclose(np.asarray(found), host.predict(x), rtol=1e-3)
    groups = (y > 100).astype(int)
    c = RFMClassifier(**options).fit(given, xp.asarray(groups))
    assert type(c.predict_proba(given)) is type(given)
    assert type(c.predict(given)) is type(given)
    assert c.score(given, xp.asarray(groups)) > 0.7


def test_cuda():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    x, y = relevant(400)
    x = np.column_stack([x, np.arange(400) % 3])
    options = {"n_rounds": 2, "random_state": 0, "categorical_features": [8], "rank": 60}
    w = np.random.default_rng(0).random(400) + 0.5
    for solver in ("direct", "cg"):
        options |= {"solver": solver, "tol": 1e-8}
        host = RFMRegressor(**options).fit(x, y, w)
        given = torch.as_tensor(x, device="cuda")
        m = RFMRegressor(**options).fit(given, torch.as_tensor(y, device="cuda"), w)
        assert m.predict(given).device.type == "cuda"
        np.testing.assert_allclose(m.predict(given).cpu(), host.predict(x), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(m.metric_, host.metric_, atol=1e-5)
        moved = RFMRegressor(**options, device="cuda").fit(x, y, w)
        np.testing.assert_allclose(moved.predict(x), host.predict(x), rtol=1e-4, atol=1e-4)
    kinds = (y > 1).astype(int)
    c = RFMClassifier(n_rounds=1, random_state=0).fit(given, torch.as_tensor(kinds, device="cuda"))
    assert c.predict_proba(given).device.type == "cuda"
    assert c.score(given, kinds) > 0.9


def test_a_fit_that_ends_early_leaves_the_estimator(monkeypatch):
    x, y = relevant(60)
    m = RFMRegressor(n_rounds=1).fit(x, y)
    before = dict(vars(m))
    again = pickle.loads(pickle.dumps(m))
    np.testing.assert_array_equal(again.predict(x), m.predict(x))

    def stop(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(home, "metric_root", stop)
    with pytest.raises(KeyboardInterrupt):
        m.fit(x[:, :3], 2 * y)
    assert vars(m) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": 0}, "'alpha' parameter of"),
        ({"n_rounds": -1}, "'n_rounds' parameter of"),
        ({"kernel": "precomputed"}, "precomputed"),
        ({"validation": 2}, "'validation' parameter of"),
        ({"solver": "lu"}, "'solver' parameter of"),
        ({"agop_power": 0}, "'agop_power' parameter of"),
        ({"agop_samples": 0}, "'agop_samples' parameter of"),
        ({"categorical_features": [17]}, "categorical_features must be"),
        ({"categorical_features": ["age"]}, "categorical_features must be"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        RFMRegressor(**options).fit(*relevant(30))


def test_bad_validation_data():
    x, y = relevant(30)
    with pytest.raises(ValueError, match="given together"):
        RFMRegressor().fit(x, y, X_val=x)
    with pytest.raises(ValueError, match="features"):
        RFMRegressor().fit(x, y, X_val=x[:, :3], y_val=y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        RFMRegressor().fit(x, y, X_val=x, y_val=y[:4])
    with pytest.raises(ValueError, match="y_val"):
        RFMRegressor().fit(x, y, X_val=x, y_val=np.full(30, np.nan))
    three = np.stack([y] * 3, 1)
    for many, few, words in ((three, y, "3. Received 1"), (y, three, "1. Received 3")):
        with pytest.raises(ValueError, match=f"as many outputs as y, {words}"):
            RFMRegressor().fit(x, many, X_val=x, y_val=few)
    with pytest.raises(ValueError, match=r"one label for each row of X_val, \[1\]. .* \(1, 2\)"):
        RFMClassifier().fit(x, y > 0, X_val=x[:1], y_val=np.array([[True, False]]))


@pytest.mark.parametrize("kind", [RFMRegressor, RFMClassifier])
def test_check_estimator(kind):
    found = check_estimator(kind(), on_skip=None)
    assert {row["status"] for row in found} <= {"passed", "skipped"}


def test_generalised_cross_validation_takes_weights_as_repetitions():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    y = np.sin(x[:, 0])
    options = {"validation": "gcv", "n_rounds": 2, "random_state": 0}
    weighted = RFMRegressor(**options).fit(x, y, w.astype(float))
    repeated = RFMRegressor(**options).fit(np.repeat(x, w, 0), np.repeat(y, w))
    np.testing.assert_allclose(weighted.predict(x), repeated.predict(x), atol=1e-8)
    for one, other in zip(weighted.history_, repeated.history_, strict=True):
        np.testing.assert_allclose(one["error"], other["error"], rtol=1e-6)


def test_memory_and_tolerances_that_are_missed_are_said(monkeypatch):
    x = np.random.default_rng(0).normal(size=(1500, 8))
    y = np.sin(2 * x[:, 0]) + x[:, 1]
    few = RFMRegressor(solver="cg", tol=1e-4, alpha=0.1, max_iter=2, rank=200, random_state=0)
    with pytest.warns(ConvergenceWarning, match="above tol"):
        few.fit(x, y)
    monkeypatch.setattr(_memory, "free", lambda space: 1000)
    with pytest.raises(MemoryError, match=r'solver="cg" stores no matrix; max_leaf_size=11 makes'):
        RFMRegressor(solver="direct").fit(x, y)


def test_rounds_without_an_error_are_said_and_never_the_best(monkeypatch):
    """Products of "gcv" run out at a small ridge; an error that is no number counts as infinite."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 3)), rng.normal(size=200)
    few = {"n_rounds": 1, "validation": "gcv", "random_state": 0, "max_iter": 50, "rank": 20}
    model = RFMRegressor("gauss", bandwidth=1.0, alpha=1e-8, solver="cg", **few)
    with pytest.warns(ConvergenceWarning) as said:
        model.fit(x, y)
    assert any("2 of 2 rounds have no error" in str(warning.message) for warning in said)
    assert [row["error"] for row in model.history_] == [np.inf, np.inf]
    errors = iter([1.0, np.nan, 2.0])
    monkeypatch.setattr(home, "mean_square", lambda *_: next(errors))
    model = RFMRegressor(n_rounds=2, early_stopping=False, random_state=0)
    with pytest.warns(ConvergenceWarning, match="RFMRegressor: 1 of 3 rounds have no error"):
        model.fit(x, y, X_val=x, y_val=y)
    assert model.best_round_ == 0


def test_memory_that_cross_validation_lacks_names_the_estimator(monkeypatch):
    judged = home._gcv

    def short(*arguments):
        monkeypatch.setattr(_memory, "free", lambda space: 1000)
        return judged(*arguments)

    monkeypatch.setattr(home, "_gcv", short)
    model = RFMRegressor(solver="cg", validation="gcv", alpha=0.1)
    with pytest.raises(MemoryError, match=r"^RFMRegressor: a factor") as caught:
        model.fit(*relevant(200))
    assert "centers=" not in str(caught.value)
