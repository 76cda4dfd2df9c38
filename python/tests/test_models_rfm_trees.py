"""Trees of feature machines: splits, routes, leaves, and what is chosen for them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from mercer.models import RFMClassifier, RFMRegressor, _memory, _tree
from mercer.models._arrays import Space
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import check_estimator

SPACE = Space()


def steps(n=600, seed=0):
    """A function that is another one on either side of feature 2."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5))
    return x, np.where(x[:, 2] > 0, 5 + np.sin(2 * x[:, 0]), np.sin(2 * x[:, 1]))


def small(**options):
    return RFMRegressor(**{"n_rounds": 1, "max_leaf_size": 200, "random_state": 0} | options)


def plain_shares(tree, x, temperature):
    """[m, leaves] by a walk for each point."""
    found = np.zeros((len(x), tree.n_leaves))
    for row, point in zip(found, x, strict=True):
        stack = [(0, 1.0)]
        while stack:
            at, share = stack.pop()
            if at < 0:
                row[~at] = share
                continue
            split, (left, right) = tree.splits[at], tree.children[at]
            beyond = split.direction @ point - split.point
            p = 1 / (1 + np.exp(beyond / (temperature * split.scale))) if temperature else (
                float(beyond <= 0)
            )  # fmt: skip
            stack += [(left, share * p), (right, share * (1 - p))]
    return found


@pytest.mark.parametrize("limit", [100, 37, 1])
def test_leaves_are_balanced_and_hold_each_row_once(limit):
    x = np.random.default_rng(0).normal(size=(300, 3))
    tree, leaves = _tree.grow(x, np.arange(300)[::-1], limit, lambda rows: np.eye(3), SPACE)
    np.testing.assert_array_equal(np.sort(np.concatenate(leaves)), np.arange(300))
    sizes = [len(rows) for rows in leaves]
    assert max(sizes) <= limit
    assert max(sizes) <= 2 * min(sizes)
    assert all((np.diff(rows) < 0).all() for rows in leaves)  # as they were given
    for rows, (reached, shares) in zip(leaves, tree.routes(x, 0.0, SPACE), strict=True):
        np.testing.assert_array_equal(reached, np.sort(rows))
        np.testing.assert_array_equal(shares, 1)


@pytest.mark.parametrize("temperature", [0.0, 0.05, 1.0])
def test_routes_are_walks_down_the_tree(temperature, monkeypatch):
    monkeypatch.setattr(_tree, "_BLOCK", 100)  # several blocks of points
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(200, 3)), rng.normal(size=(50, 3))
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    tree, leaves = _tree.grow(x, np.arange(200), 15, lambda rows: turn, SPACE)
    assert len(leaves) == tree.n_leaves == 16
    found = np.zeros((50, 16))
    for column, (rows, shares) in zip(found.T, tree.routes(z, temperature, SPACE), strict=True):
        column[rows] = shares
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-14)
    expected = plain_shares(tree, z, temperature)
    cut = np.where(found > 0, expected, 0)
    np.testing.assert_allclose(found, cut / cut.sum(1)[:, None], atol=1e-13)
    assert ((found > 0).sum(1) <= 12).all()
    left_out = 1 - cut.sum(1)
    assert (left_out[(found > 0).sum(1) < 12] <= 0.01 + 1e-12).all()
    assert temperature < 1 or left_out.max() > 0


def test_splits_lie_in_gaps_between_values():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.random(400) < 0.1, rng.integers(0, 3, 400), np.full(400, 0.1)])
    x = x.astype(float)
    split, left, right = _tree.cut(x, np.arange(400), np.eye(3), SPACE)
    np.testing.assert_array_equal(right, ~left)
    np.testing.assert_array_equal(split.direction, [0, 1, 0])  # a tenth is too few for a side
    np.testing.assert_array_equal(left, x[:, 1] <= split.point)
    assert split.point in (0.5, 1.5)
    assert split.scale >= 1
    same, left, _ = _tree.cut(x[:, 2:], np.arange(400), np.eye(1), SPACE)
    assert left.sum() == 200  # nothing tells the rows apart
    assert same.scale == 1
    rare = np.array([[0.0]] * 395 + [[4.0]] * 5)
    assert _tree.cut(rare, np.arange(400), np.eye(1), SPACE)[0].scale == 4


@pytest.mark.parametrize("overlap", [0.0, 0.1, 0.25])
def test_halves_share_what_is_near_the_split(overlap):
    x = np.repeat(np.random.default_rng(0).normal(size=(101, 2)), 2, 0)
    split, left, right = _tree.cut(x, np.arange(202), np.eye(2), SPACE, overlap)
    assert (left | right).all()
    beyond = x @ split.direction - split.point
    for own, side in ((left, beyond <= 0), (right, beyond > 0)):
        assert own[side].all()
        assert abs((own & ~side).sum() - 202 * overlap) <= 2
        assert abs(beyond[own & ~side]).max(initial=0) <= abs(beyond[~own]).min()
        np.testing.assert_array_equal(own[::2], own[1::2])  # equal rows stay together
    tree, leaves = _tree.grow(x, np.arange(202), 30, lambda rows: np.eye(2), SPACE, overlap)
    np.testing.assert_array_equal(np.unique(np.concatenate(leaves)), np.arange(202))
    assert max(map(len, leaves)) <= 30
    assert tree.n_leaves == len(leaves)
    assert (sum(map(len, leaves)) > 202) == (overlap > 0)
    few = np.random.default_rng(0).integers(0, 2, (40, 1)).astype(float)
    _, left, right = _tree.cut(few, np.arange(40), np.eye(1), SPACE, overlap)
    np.testing.assert_array_equal(right, ~left)  # no gap but the split's


def test_rounding_is_no_gap():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(2, 30)), 50, 0).astype(np.float32)
    x *= 1 + np.float32(1e-7) * rng.integers(-1, 2, (100, 1)).astype(np.float32)
    _, left, _ = _tree.cut(x, np.arange(100), np.eye(30)[:, :1], Space(dtype="float32"))
    assert left.sum() == 50
    assert len(np.unique(left.reshape(2, 50), axis=1).T) == 1


def test_temperatures_are_chosen_by_errors():
    tree, _ = _tree.grow(np.arange(4.0)[:, None], np.arange(4), 2, lambda rows: np.eye(1), SPACE)
    x = np.linspace(0, 3, 40)[:, None]
    table = np.stack([np.zeros((40, 1)), np.ones((40, 1))])
    for temperature in (0.0, _tree.TEMPERATURES[9]):
        y = plain_shares(tree, x, temperature) @ [0.0, 1.0]
        assert _tree.best_temperature(tree, x, table, y[:, None], None) == temperature


def test_trees_serve_functions_of_parts():
    x, y = steps(800)
    whole = small(max_leaf_size=None).fit(x[:600], y[:600])
    tree = small(max_leaf_size=300).fit(x[:600], y[:600])
    assert [leaf.X_fit_.shape[0] for leaf in tree.leaves_] == [300, 300]
    assert abs(tree.tree_.splits[0].direction).argmax() == 2
    assert tree.score(x[600:], y[600:]) > whole.score(x[600:], y[600:])
    assert tree.feature_importances_.argmax() in (0, 1)
    assert tree.n_iter_ == 1
    assert tree.residual_ == max(leaf.residual_ for leaf in tree.leaves_)
    np.testing.assert_allclose(
        tree.metric_, np.mean([leaf.metric_ for leaf in tree.leaves_], 0), atol=1e-14
    )


def test_leaves_are_machines_of_their_rows():
    x, y = steps()
    m = small(split_temperature=0).fit(x, y)
    values = np.empty(len(x))
    for leaf, (rows, _) in zip(m.leaves_, m.tree_.routes(x, 0.0, SPACE), strict=True):
        assert sorted(map(tuple, leaf.X_fit_)) == sorted(map(tuple, x[rows]))
        alone = small(max_leaf_size=None)
        alone._encoder = m._encoder
        order = [np.flatnonzero((x == row).all(1))[0] for row in leaf.X_fit_]
        alone.fit(leaf.X_fit_, y[order])
        np.testing.assert_allclose(alone.metric_, leaf.metric_, atol=1e-12)
        np.testing.assert_allclose(alone.predict(x), leaf.predict(x), atol=1e-9)
        assert alone.history_ == leaf.history_
        values[rows] = leaf.predict(x[rows])
    np.testing.assert_allclose(m.predict(x), values, atol=1e-12)


def test_rows_that_fit_are_not_split():
    x, y = steps(150)
    one, other = (small(max_leaf_size=most).fit(x, y) for most in (150, None))
    np.testing.assert_array_equal(one.predict(x), other.predict(x))
    assert one.leaves_ == []
    again = small(max_leaf_size=50).fit(x, y)
    assert not hasattr(again, "dual_coef_")
    again.set_params(max_leaf_size=None).fit(x, y)
    assert not hasattr(again, "tree_")
    np.testing.assert_array_equal(again.predict(x), other.predict(x))


@pytest.mark.parametrize("validation", [0.2, "gcv", None])
def test_the_same_seed_gives_the_same_tree(validation):
    x, y = steps(300)
    first, again = (small(validation=validation, max_leaf_size=80).fit(x, y) for _ in range(2))
    np.testing.assert_array_equal(first.predict(x), again.predict(x))
    if validation != 0.2:
        assert first.split_temperature_ == 0  # no rows to choose it by
    restored = pickle.loads(pickle.dumps(clone(first).fit(x, y)))
    np.testing.assert_array_equal(restored.predict(x), first.predict(x))


def test_the_temperature_is_that_of_the_validation_data():
    x, y = steps(600)
    m = small(max_leaf_size=100).fit(x[:300], y[:300], X_val=x[300:], y_val=y[300:])
    errors = []
    for temperature in _tree.TEMPERATURES:
        fixed = small(max_leaf_size=100, split_temperature=temperature)
        fixed.fit(x[:300], y[:300], X_val=x[300:], y_val=y[300:])
        errors.append(np.mean((fixed.predict(x[300:]) - y[300:]) ** 2))
    assert m.split_temperature_ == _tree.TEMPERATURES[np.argmin(errors)]
    assert m.split_temperature_ > 0


def test_own_rows_judge_a_leaf_by_rounds_without_them():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    y = np.sin(x[:, 0]) + 0.5 * rng.normal(size=400)
    # Leaves go through all points, so that what they say of their own would make splits hard.
    m = small(max_leaf_size=100, n_rounds=0, alpha=1e-6, validation=0.3).fit(x, y)
    assert m.split_temperature_ > 0


def test_rows_of_two_leaves_are_judged_by_rounds_without_them(monkeypatch):
    told, choose = [], _tree.best_temperature
    monkeypatch.setattr(_tree, "best_temperature", lambda *a: told.append(a) or choose(*a))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    y = np.sin(x[:, 0]) + 0.5 * rng.normal(size=600)
    options = {"max_leaf_size": 200, "n_rounds": 0, "alpha": 1e-6, "validation": 0.3}
    m = small(overlap=0.2, **options).fit(x, y)  # leaves go through all of their points
    ((_, rows, table, targets, _),) = told
    shared = np.zeros(len(rows), int)
    for leaf, words in zip(m.leaves_, table, strict=True):
        own = (rows[:, None] == leaf.X_fit_[None]).all(2).any(1)
        shared += own
        np.testing.assert_allclose(leaf.predict(rows[own]), targets[own, 0], atol=1e-3)
        assert (abs(words[own] - targets[own]) < 1e-3).mean() < 0.05
    assert (shared > 1).sum() > 10
    assert shared.min() == 1


@pytest.mark.parametrize("overlap", [0.0, 0.1])
def test_trees_are_averaged(overlap):
    x, y = steps(600)
    options = {"max_leaf_size": 100, "overlap": overlap}
    m, one = (small(n_trees=n, **options).fit(x[:400], y[:400]) for n in (3, 1))
    assert not hasattr(one, "trees_")
    assert not hasattr(m, "tree_")
    values = [tree.predict(x) for tree in m.trees_]
    np.testing.assert_array_equal(values[0], one.predict(x))
    assert np.std(values, 0).max() > 0.01
    np.testing.assert_allclose(m.predict(x), np.mean(values, 0), atol=1e-12)
    for name in ("metric_", "feature_importances_"):
        mean = np.mean([getattr(tree, name) for tree in m.trees_], 0)
        np.testing.assert_allclose(getattr(m, name), mean, atol=1e-12)
    errors = [np.mean((v[400:] - y[400:]) ** 2) for v in (*values, m.predict(x))]
    assert errors[-1] < np.mean(errors[:-1])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(m)).predict(x), m.predict(x))
    again = m.set_params(max_leaf_size=None).fit(x[:400], y[:400])
    assert not hasattr(again, "trees_")
    assert again.dual_coef_.shape == (400,)


def test_trees_of_classes():
    x, y = load_wine(return_X_y=True)
    x = scale(x)
    m = RFMClassifier(n_rounds=1, max_leaf_size=40, n_trees=2, overlap=0.1, random_state=0)
    p = m.fit(x[::2], y[::2]).predict_proba(x)
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_array_equal(m.classes_[p.argmax(1)], m.predict(x))
    np.testing.assert_allclose(
        m.decision_function(x), np.mean([tree.decision_function(x) for tree in m.trees_], 0)
    )
    assert m.score(x[1::2], y[1::2]) > 0.85


def test_validation_data_finds_the_leaves():
    x, y = steps(600)
    right = x[:, 2] > 0
    m = small(max_leaf_size=300, early_stopping=False)
    given = np.concatenate([np.flatnonzero(right)[:60], np.flatnonzero(~right)[:3]])
    m.fit(x, y, X_val=x[given], y_val=y[given])
    routes = m.tree_.routes(x[given], 0.0, SPACE)
    for leaf, (rows, _) in zip(m.leaves_, routes, strict=True):
        error = leaf.history_[leaf.best_round_]["error"]
        rest = np.mean((leaf.predict(x[given][rows]) - y[given][rows]) ** 2)
        is_enough = len(rows) >= 30
        assert is_enough == bool(abs(error - rest) < 1e-9 * rest)  # else rows of its own
    assert min(len(rows) for rows, _ in routes) < 30


def test_weights_count_in_the_leaves():
    x, y = steps(400)
    w = np.where(x[:, 0] > 0, 1.0, 1e-9)
    m = small(max_leaf_size=100, validation=None).fit(x, y, w)
    rest = abs(m.predict(x) - y)
    assert rest[w == 1].mean() < 0.2 * rest[w < 1].mean()
    dropped = small(max_leaf_size=100).fit(x, y, np.where(x[:, 0] > 0, 1.0, 0.0))
    kept = small(max_leaf_size=100).fit(
        x[x[:, 0] > 0], y[x[:, 0] > 0], np.ones((x[:, 0] > 0).sum())
    )
    np.testing.assert_array_equal(dropped.predict(x), kept.predict(x))


@pytest.mark.parametrize("labels", [["a", "b", "c"], [0, 1]])
@pytest.mark.parametrize("temperature", ["auto", 1.0])
def test_classes(labels, temperature):
    x, y = load_wine(return_X_y=True)
    x, y = scale(x), np.array(labels)[y % len(labels)]
    m = RFMClassifier(n_rounds=1, max_leaf_size=40, random_state=0, split_temperature=temperature)
    m.fit(x[::2], y[::2], X_val=x[1::2], y_val=y[1::2])
    assert len(m.leaves_) > 1
    assert m.score(x[1::2], y[1::2]) > 0.85
    p = m.predict_proba(x)
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_array_equal(m.classes_[p.argmax(1)], m.predict(x))
    np.testing.assert_array_equal(m.leaves_[0].classes_, m.classes_)
    assert m.leaves_[0].predict_proba(x).shape == p.shape


def test_outputs_categories_diagonals_and_names():
    x, y = steps(300)
    table = np.column_stack([x, np.arange(300) % 3])
    two = np.column_stack([y, table[:, 5]])
    m = small(max_leaf_size=100, diag=True, categorical_features=[5]).fit(table, two)
    assert m.predict(table).shape == (300, 2)
    assert m.metric_.shape == (8,)
    assert m.feature_importances_.shape == (6,)
    assert m.score(table, two) > 0.8
    np.testing.assert_array_equal(m.leaves_[0].predict(table[:4]).shape, (4, 2))


def test_arrays_of_other_libraries():
    torch = pytest.importorskip("torch")
    x, y = (a.astype(np.float32) for a in steps(300))
    host = small(max_leaf_size=100).fit(x, y)
    m = small(max_leaf_size=100).fit(torch.from_numpy(x), torch.from_numpy(y))
    found = m.predict(torch.from_numpy(x))
    assert type(found) is torch.Tensor
    np.testing.assert_allclose(found.numpy(), host.predict(x), atol=1e-3)
    assert m.split_temperature_ == host.split_temperature_


def test_cuda():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    x, y = steps(400)
    options = {"max_leaf_size": 100, "alpha": 0.1}
    host = small(**options).fit(x, y)
    given = torch.as_tensor(x, device="cuda")
    m = small(**options).fit(given, torch.as_tensor(y, device="cuda"))
    assert m.predict(given).device.type == "cuda"
    assert m.split_temperature_ == host.split_temperature_
    np.testing.assert_allclose(m.predict(given).cpu(), host.predict(x), rtol=1e-5, atol=1e-5)


def test_memory_that_would_not_suffice_names_leaves_that_would(monkeypatch):
    x, y = steps(400)
    monkeypatch.setattr(_memory, "free", lambda space: 100_000)
    with pytest.raises(MemoryError, match=r'solver="cg" stores no matrix; max_leaf_size=111 makes'):
        small(max_leaf_size=None).fit(x, y)
    with pytest.raises(MemoryError, match=r"rank=100 of 400 points .* free. max_leaf_size=78 "):
        small(max_leaf_size=None, solver="cg").fit(x, y)
    assert len(small(max_leaf_size=111).fit(x, y).leaves_) == 4
    assert len(small(max_leaf_size=78, solver="cg", alpha=0.1).fit(x, y).leaves_) == 8


def test_a_search_over_leaves():
    x, y = steps(300)
    found = GridSearchCV(small(), {"max_leaf_size": [75, None]}, cv=3).fit(x, y)
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_leaf_size": 0}, "'max_leaf_size' parameter of"),
        ({"max_leaf_size": 10.5}, "'max_leaf_size' parameter of"),
        ({"split_temperature": -1}, "'split_temperature' parameter of"),
        ({"split_temperature": "hot"}, "'split_temperature' parameter of"),
        ({"overlap": 0.3}, "'overlap' parameter of"),
        ({"overlap": -0.1}, "'overlap' parameter of"),
        ({"n_trees": 0}, "'n_trees' parameter of"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        RFMRegressor(**options).fit(*steps(30))


@pytest.mark.parametrize("kind", [RFMRegressor, RFMClassifier])
def test_check_estimator(kind):
    model = kind(max_leaf_size=50, n_rounds=1, n_trees=2, overlap=0.1)
    found = check_estimator(model, on_skip=None)
    assert {row["status"] for row in found} <= {"passed", "skipped"}
