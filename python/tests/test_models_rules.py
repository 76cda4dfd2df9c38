"""Parameters of estimators: wrong types and ranges are refused by name before any work."""

from __future__ import annotations

import importlib.util
import inspect

import mercer as mc
import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from mercer import models
from sklearn.base import is_classifier, is_regressor
from sklearn.utils._param_validation import InvalidParameterError

ESTIMATORS = sorted(set(models.__all__) - {"PermutationTest"})
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 3)), RNG.normal(size=30)


def parameters(name):
    return list(inspect.signature(getattr(models, name)).parameters)


def work(estimator, x=None, y=None):
    """Data of None are refused by the first step that looks at them, with other words."""
    return estimator.test(x, x) if hasattr(estimator, "test") else estimator.fit(x, y)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_parameter_has_a_rule_that_refuses_objects(name):
    kind = getattr(models, name)
    assert set(parameters(name)) == set(kind._parameter_constraints)
    for parameter in parameters(name):
        with pytest.raises(InvalidParameterError, match=rf"'{parameter}' parameter of {name} must"):
            work(kind(**{parameter: object()}))


RANGES = {
    "alpha": (-1.0, np.nan, np.inf), "C": (0, -1.0), "noise": (0.0, np.inf), "amplitude": (-1,),
    "tol": (-1e-3, np.nan, "small"), "max_iter": (0, 2.5), "rank": (-1, 2.5, "all"),
    "bandwidth": (0, -1.0, np.inf, "wide"), "n_neighbors": (0, 1.5), "n_probes": (0,),
    "n_components": (0, 2.5), "n_permutations": (0,), "n_rounds": (-1,), "agop_power": (0,),
    "agop_samples": (0,), "validation": (0, 1, "loo"), "n_inducing": (0,), "n_restarts": (-1,),
    "solver": ("lu",), "select": ("aic",), "weights": ("square",), "mode": ("sum",), "p": (0, -1),
    "eigen_solver": ("lu",), "landmarks": ("kmeans",), "optimizer": ("newton",),
    "kernel_params": ("degree", [1]), "metric_params": ([1],), "bounds": ("free", 3),
    "lengthscale": (0, "median"), "class_weight": ("equal",), "centers": (0, "k-means"),
    "alphas": (-1.0, "many"), "bandwidths": (0.0,), "warm_start": ("yes",), "ard": (None,),
    "progress": ("yes", 2), "max_leaf_size": (0, 2.5), "split_temperature": (-1, "hot"),
    "overlap": (-0.1, 0.3), "n_trees": (0, 1.5),
    "random_state": ("seed",), "device": ("foo", "cuda:", "gpu", "cuda:x"), "leaf_size": (0,),
}  # fmt: skip


@pytest.mark.parametrize("name", ESTIMATORS)
def test_ranges(name):
    for parameter in set(parameters(name)) & set(RANGES):
        for value in RANGES[parameter]:
            estimator = getattr(models, name)(**{parameter: value})
            with pytest.raises(InvalidParameterError) as caught:
                work(estimator)
            text = str(caught.value)
            assert f"The '{parameter}' parameter of {name} must be" in text
            assert f"Got {value!r} instead" in text


def test_devices_are_listed():
    words = r"must be 'cpu', 'cuda' or 'cuda:0', 'cuda:1' and so on or None. Got 'foo' instead"
    with pytest.raises(ValueError, match=words):
        models.KernelRidge(device="foo").fit(X, Y)
    model = models.KernelRidge(device="cpu").fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), models.KernelRidge().fit(X, Y).predict(X))


def test_a_device_that_is_not_there_is_named():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() or importlib.util.find_spec("cupy") is not None:
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="device='cuda' needs a CUDA device that PyTorch or CuPy"):
        models.KernelRidge(device="cuda").fit(X, Y)


def test_numbers_of_numpy_and_functions_are_fine():
    models.KernelRidge(lambda x, z: mc.exp(-mc.sum(abs(x - z))), alpha=np.float32(1)).fit(X, Y)
    models.KernelRidgeCV(alphas=np.array([1, 2]), bandwidths=[1.0]).fit(X, Y)
    models.KNeighborsRegressor(np.int64(3), weights=lambda d: d + 1).fit(X, Y)


IGNORED = [
    ("KernelRidge", "kernel", {"bandwidth": 2.0}),
    ("KernelRidge", "kernel", {"metric": [1.0, 2.0]}),
    ("KernelRidge", "kernel", {"kernel_params": {"p": 1.0}}),
    ("KernelRidge", "kernel", {"centers": X}),
    ("KernelRidgeClassifier", "kernel", {"bandwidth": "median"}),
    ("KernelRidgeCV", "kernel", {"metric": [1.0, 2.0]}),
    ("KernelLogisticRegression", "kernel", {"bandwidth": 2.0}),
    ("KernelPCA", "kernel", {"gamma": 2.0}),
    ("KernelPCA", "kernel", {"bandwidth": 2.0}),
    ("Nystroem", "kernel", {"kernel_params": {"p": 1.0}}),
    ("SpectralEmbedding", "affinity", {"gamma": 2.0}),
    ("HSIC", "kernel_x", {"bandwidth_x": 2.0}),
    ("KNeighborsRegressor", "metric", {"p": 1}),
    ("KNeighborsTransformer", "metric", {"metric_params": {"p": 1}}),
]


@pytest.mark.parametrize(("name", "whose", "options"), IGNORED)
def test_what_a_matrix_has_no_use_for_is_refused(name, whose, options):
    (parameter,) = options
    words = rf"'{parameter}' parameter of {name} must be .* with {whose}='precomputed'"
    with pytest.raises(InvalidParameterError, match=words):
        work(getattr(models, name)(**{whose: "precomputed"}, **options))


UNREAD = [
    ("KernelPCA", {"kernel": "rbf"}, {"bandwidth": 2.0}),
    ("KernelPCA", {"kernel": "gauss"}, {"gamma": 2.0}),
    ("KernelPCA", {"kernel": "sum(x*z)"}, {"degree": 2}),
    ("Nystroem", {"kernel": "sigmoid"}, {"bandwidth": 2.0}),
    ("SpectralEmbedding", {"affinity": "rbf"}, {"bandwidth": 2.0}),
    ("SpectralEmbedding", {"affinity": "gauss"}, {"gamma": 2.0}),
    ("SpectralEmbedding", {"affinity": "nearest_neighbors"}, {"bandwidth": 2.0}),
]


@pytest.mark.parametrize(("name", "kernel", "options"), UNREAD)
def test_what_a_kernel_does_not_read_is_refused(name, kernel, options):
    (parameter,) = options
    with pytest.raises(InvalidParameterError, match=rf"'{parameter}' parameter of {name} must be"):
        getattr(models, name)(**kernel, **options).fit(X)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in ("HSIC", "MMD")])
def test_masks_are_refused(name):
    """They would be forgotten, and masked values count as any others."""
    model = getattr(models, name)()
    masked, y = np.ma.array(X, mask=X > 1), (Y > 0) * 1
    calls = [("X", lambda: model.fit(masked, y))]
    takes = inspect.signature(model.fit).parameters
    if is_classifier(model) or is_regressor(model):
        calls += [("y", lambda: model.fit(X, np.ma.array(y, mask=X[:, 0] > 1)))]
    if "sample_weight" in takes:
        weights = np.ma.array(np.ones(30), mask=X[:, 0] > 1)
        calls += [("sample_weight", lambda: model.fit(X, y, sample_weight=weights))]
    if "y_val" in takes:
        calls += [("an array", lambda: model.fit(X, y, X_val=X, y_val=np.ma.array(y, mask=y > 0)))]
    for words, call in calls:
        with pytest.raises(NotImplementedError, match=f"{words} must have no mask"):
            call()
    for method in {"predict", "transform", "score_samples"} & set(dir(model)):
        with pytest.raises(NotImplementedError, match="X must have no mask"):
            getattr(model.fit(X, y), method)(masked)


@pytest.mark.parametrize("library", [np.array, "torch"])
def test_negative_distances_are_refused(library):
    if library == "torch":
        library = pytest.importorskip("torch").as_tensor
    d = mc.cdist(X, X)
    bad = d.copy()
    bad[3, 4] = bad[4, 3] = -0.5
    for make in (models.KNeighborsRegressor, models.KNeighborsTransformer):
        with pytest.raises(ValueError, match=r"Negative values in data.* distance of -0\.5"):
            make(metric="precomputed").fit(library(bad), Y)
    model = models.KNeighborsClassifier(metric="precomputed").fit(library(d), Y > 0)
    for ask in (model.predict, model.kneighbors):
        with pytest.raises(ValueError, match="Negative values"):
            ask(library(bad))
    nearest = models.SpectralEmbedding(affinity="precomputed_nearest_neighbors", n_neighbors=3)
    with pytest.raises(ValueError, match="Negative values"):
        nearest.fit(library(bad))
