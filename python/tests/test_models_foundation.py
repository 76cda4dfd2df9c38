"""What estimators stand on: arrays of any library, kernels with their numbers, and systems."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import mercer as mc
import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from mercer.models import _costs, _low_rank, _memory, _refined
from mercer.models._arrays import Space, exact_products, host, like, restores, space_of, validate
from mercer.models._kernels import fit_kernel
from mercer.models._solve import System
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

SPACE = Space()


def points(n=60, d=3, seed=0, dtype="float64"):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


def as_torch(a):
    return pytest.importorskip("torch").as_tensor(np.array(a))


def as_jax(a):
    jax = pytest.importorskip("jax")
    return jax.numpy.asarray(a)


LIBRARIES = {"numpy": np.array, "list": lambda a: a.tolist(), "torch": as_torch, "jax": as_jax}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_go_in_and_come_back_alike(library, dtype):
    if (library, dtype) in {("list", "float32"), ("jax", "float64")}:
        pytest.skip("lists are float64, and JAX has float32 unless told otherwise")
    x = points(dtype=dtype)
    given = LIBRARIES[library](x)
    data = validate(BaseEstimator(), given, LIBRARIES[library](x[:, 0]))
    assert data.space == Space("torch" if library == "torch" else "numpy", "cpu", dtype)
    np.testing.assert_array_equal(host(data.x), x)
    np.testing.assert_array_equal(host(data.y), x[:, 0])
    back = data.like(data.y)
    assert type(back) is (np.ndarray if library == "list" else type(given))
    assert str(back.dtype).endswith(dtype)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda x: np.log(x), "Input X contains NaN"),
        (lambda x: np.where(x > 2, np.inf, x), "infinity"),
        (lambda x: x[0], "Expected 2D array, got 1D array"),
        (lambda x: x[:0], "minimum of 1 is required"),
        (lambda x: x[:, :0], "minimum of 1 is required"),
        (lambda x: x + 1j, "Complex data not supported"),
    ],
)
def test_errors_are_those_of_scikit_learn(library, spoil, words):
    x = points()
    with np.errstate(all="ignore"):
        bad = spoil(x)
    with pytest.raises(ValueError, match=words):
        validate(BaseEstimator(), LIBRARIES[library](bad), LIBRARIES[library](x[: len(bad), 0]))


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_features_targets_and_weights_are_checked(library):
    make, x, estimator = LIBRARIES[library], points(), BaseEstimator()
    validate(estimator, make(x), make(x[:, 0]))
    with pytest.raises(ValueError, match="expecting 3 features"):
        validate(estimator, make(x[:, :2]), reset=False)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        validate(estimator, make(x), make(x[:5, 0]))
    with pytest.raises(ValueError, match="y contains NaN"):
        validate(estimator, make(x), make(x[:, 0] * np.nan))
    for weights, words in [
        (-np.ones(60), "Negative values in data"),
        (np.zeros(60), "at least one non-zero"),
        (np.ones(7), "sample_weight.shape"),
    ]:
        with pytest.raises(ValueError, match=words):
            validate(estimator, make(x), make(x[:, 0]), sample_weight=make(weights))


def test_rows_of_weight_zero_are_left_out():
    x, weights = points(), np.arange(60) % 3
    data = validate(BaseEstimator(), x, x[:, 0], sample_weight=weights)
    np.testing.assert_array_equal(data.x, x[weights > 0])
    np.testing.assert_array_equal(data.weights, weights[weights > 0])
    kept = validate(BaseEstimator(), x, x[:, 0], sample_weight=weights, keep_rows=True)
    assert kept.x is x
    assert len(kept.weights) == 60


def test_half_precision_is_computed_in_float64():
    torch = pytest.importorskip("torch")
    x = torch.as_tensor(points()).to(torch.bfloat16)
    data = validate(BaseEstimator(), x)
    assert data.space.dtype == "float64"
    np.testing.assert_array_equal(host(data.x), x.double().numpy())


def test_a_failed_fit_leaves_the_estimator_as_it_was():
    class Model(BaseEstimator):
        @restores
        def fit(self, X, stop=False):
            self.x_ = validate(self, X).x
            if stop:
                raise KeyboardInterrupt
            return self

    model = Model().fit(points())
    before = dict(vars(model))
    with pytest.raises(KeyboardInterrupt):
        model.fit(points(d=2), stop=True)
    assert vars(model) == before
    assert model.n_features_in_ == 3


def test_products_of_pytorch_keep_their_digits_in_fits():
    torch = pytest.importorskip("torch")
    matmul, seen = torch.backends.cuda.matmul, []
    name = "fp32_precision" if hasattr(matmul, "fp32_precision") else "allow_tf32"

    class Model(BaseEstimator):
        @restores
        def fit(self):
            seen.append(getattr(matmul, name))
            with exact_products:
                pass
            seen.append(getattr(matmul, name))
            raise RuntimeError

    before = getattr(matmul, name)
    for wanted in ("tf32", "ieee") if name == "fp32_precision" else (True, False):
        setattr(matmul, name, wanted)
        try:
            with pytest.raises(RuntimeError):
                Model().fit()
            assert getattr(matmul, name) == wanted
        finally:
            setattr(matmul, name, before)
    assert set(seen) <= {"ieee", False}
    assert torch.get_float32_matmul_precision() == "highest"


def test_host_arrays_compute_on_a_device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    x = points()
    data = validate(BaseEstimator(), x, device="cuda")
    assert data.space.device == "cuda:0"
    np.testing.assert_array_equal(data.like(data.x), x)
    assert space_of(data.x).device == "cuda:0"
    assert like(x, data.x).device == data.x.device


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_scale_is_the_root_of_all_weighted_variances(library):
    x, weights = points() + 1e3, np.random.default_rng(1).integers(1, 4, 60)
    space = Space(library)
    fitted = fit_kernel("gauss", space.array(x), space, weights=space.array(weights.astype(float)))
    expected = np.sqrt(np.repeat(x, weights, axis=0).var(axis=0).sum())
    assert fitted.bandwidth == pytest.approx(expected, rel=1e-10)
    assert fitted.params == {"bandwidth": fitted.bandwidth}


def test_bandwidths_by_name_number_and_none():
    x = points()
    median = fit_kernel("laplace", x, SPACE, bandwidth="median", random_state=0).bandwidth
    assert median == pytest.approx(np.median(mc.pdist(x)), rel=1e-12)
    rbf = fit_kernel("rbf", x, SPACE, bandwidth=2.0)
    np.testing.assert_allclose(
        rbf.matrix(x), mc.kernel_matrix(mc.gauss(bandwidth=2.0), x), rtol=1e-12
    )
    assert fit_kernel("dot", x, SPACE).bandwidth is None
    assert fit_kernel("gauss", np.ones((4, 2)), SPACE).bandwidth == 1.0
    own = fit_kernel(mc.gauss(bandwidth=3.0), x, SPACE)
    np.testing.assert_array_equal(own.matrix(x), mc.kernel_matrix(mc.gauss(bandwidth=3.0), x))
    assert fit_kernel(mc.gauss(bandwidth=3.0), x, SPACE, bandwidth=2.0).bandwidth == 2.0


@pytest.mark.parametrize(
    "kernel",
    [
        "laplace",
        "exp(-sum(abs(x-z))/bandwidth)",
        mc.kernel("exp(-sum(abs(x-z))/bandwidth)"),
        lambda x, z, bandwidth: mc.exp(-mc.sum(abs(x - z)) / bandwidth),
    ],
    ids=["name", "text", "kernel", "function"],
)
def test_kernels_in_all_spellings(kernel):
    x = points()
    expected = mc.kernel_matrix(mc.laplace(bandwidth=2.5), x)
    np.testing.assert_allclose(
        fit_kernel(kernel, x, SPACE, bandwidth=2.5).matrix(x), expected, rtol=1e-12
    )


def test_kernel_parameters():
    x = points()
    fitted = fit_kernel("polynomial", x, SPACE, kernel_params={"degree": 2, "coef0": 0.5})
    np.testing.assert_allclose(fitted.matrix(x), (x @ x.T + 0.5) ** 2, rtol=1e-10)
    fitted = fit_kernel("laplace", x, SPACE, kernel_params={"p": 2, "bandwidth": 0.7})
    np.testing.assert_allclose(fitted.matrix(x), np.exp(-mc.cdist(x, x) / 0.7), rtol=1e-10)
    with pytest.raises(ValueError, match="sigma"):
        fit_kernel("gauss", x, SPACE, kernel_params={"sigma": 1.0})
    with pytest.raises(ValueError, match="sigma"):
        fit_kernel("sum(x*z)", x, SPACE, kernel_params={"sigma": 1.0})


@pytest.mark.parametrize("bandwidth", [0, -1.0, np.inf, "wide"])
def test_bandwidths_that_are_none(bandwidth):
    with pytest.raises(ValueError, match="bandwidth must be"):
        fit_kernel("gauss", points(), SPACE, bandwidth=bandwidth)


def test_a_number_for_a_formula_without_bandwidth_is_refused():
    with pytest.raises(ValueError, match="bandwidth: a number is for formulas"):
        fit_kernel("dot", points(), SPACE, bandwidth=1.0)


def test_the_metric_is_that_of_squared_distances():
    x, rng = points(), np.random.default_rng(2)
    a = rng.normal(size=(3, 3))
    for m in (a @ a.T, rng.random(3)):
        full = np.diag(m) if m.ndim == 1 else m
        differences = x[:, None] - x[None]
        squared = np.einsum("mni,ij,mnj->mn", differences, full, differences)
        fitted = fit_kernel("gauss", x, SPACE, bandwidth=1.5, metric=m)
        np.testing.assert_allclose(
            fitted.matrix(fitted.points(x, SPACE)), np.exp(-squared / 4.5), atol=1e-12
        )
    for m, words in [
        (np.ones(2), "shape"), (-np.eye(3), "semi-definite"),
        (np.triu(np.ones((3, 3))), "symmetric"), (np.full(3, np.nan), "finite"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=words):
            fit_kernel("gauss", x, SPACE, metric=m)


def dense(x, y, ridge, weights, bandwidth):
    s = np.sqrt(weights)
    k = s[:, None] * mc.kernel_matrix(mc.gauss(bandwidth=bandwidth), x) * s + ridge * np.eye(len(x))
    return s[:, None] * np.linalg.solve(k, s[:, None] * y)


@pytest.fixture(params=["host", "device"])
def way(request, monkeypatch):
    """Device: what systems do there is done with arrays of the host."""
    if request.param == "device":
        monkeypatch.setattr(Space, "on_device", True)
    return request.param


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("solver", ["auto", "direct", "cg"])
@pytest.mark.parametrize("weighted", [False, True])
def test_systems_are_solved(library, solver, weighted, way):
    x, space = points(200), Space(library)
    y = np.stack([np.sin(x[:, 0]), x[:, 1] ** 2], axis=1)
    weights = np.random.default_rng(3).random(200) + 0.5 if weighted else np.ones(200)
    kernel = fit_kernel("gauss", space.array(x), space, bandwidth=1.5)
    system = System(kernel, space.array(x), space, 0.1, space.array(weights) if weighted else None)
    solution = system.solve(space.array(y), solver=solver, tol=1e-10, keep_factor=True)
    expected = dense(x, y, 0.1, weights, 1.5)
    np.testing.assert_allclose(host(solution.coef), expected, atol=1e-8 * abs(expected).max())
    assert solution.residual < 1e-9
    assert solution.solver == ("direct" if solver == "auto" else solver)
    if solution.factor is not None:
        lower = host(solution.factor)
        np.testing.assert_allclose(lower @ lower.T, host(system.matrix()), atol=1e-12)
        assert solution.n_iter == 1
    again = system.solve(space.array(y), solver="cg", tol=1e-6, coef0=solution.coef)
    assert again.n_iter == 1  # the residual of the first guess


def test_buffers_are_kept():
    x = points(50)
    system = System(fit_kernel("gauss", x, SPACE), x, SPACE, 0.1)
    first = system.matrix()
    assert np.shares_memory(first, system.matrix())
    half = System(system.kernel, x[:20], SPACE, 0.1, buffer=system.buffer)
    assert np.shares_memory(first, half.matrix())
    np.testing.assert_array_equal(half.matrix(), first[:20, :20] * 0 + half.matrix())


def test_residuals_that_are_measured_meet_tol(monkeypatch):
    """Where the steps' own ran ahead of them, the steps go on."""
    monkeypatch.setattr(Space, "on_device", True)
    steps, goals_seen = _low_rank.conjugate_gradients, []

    def ends_early(multiply, inverse, r, goals, *rest):
        goals_seen.append(goals)
        return steps(multiply, inverse, r, goals * (10 if len(goals_seen) == 1 else 1), *rest)

    monkeypatch.setattr(_low_rank, "conjugate_gradients", ends_early)
    x = points(300)
    system = System(fit_kernel("gauss", x, SPACE, bandwidth=2.0), x, SPACE, 5e-3)
    y = np.random.default_rng(4).standard_normal((300, 2))
    solution = system.solve(y, solver="cg", tol=1e-6, rank=20)
    exact = np.linalg.norm(y - system.matrix() @ solution.coef, axis=0) / np.linalg.norm(y, axis=0)
    assert len(goals_seen) == 2
    assert exact.max() <= 1e-6
    assert solution.residual == pytest.approx(exact.max(), rel=1e-6)


def test_steps_end_at_a_matrix_that_is_indefinite(way):
    x = points(60)
    system = System(fit_kernel("sigmoid", x, SPACE), x, SPACE, 1e-3)
    with pytest.raises(mc.LinAlgError, match="not positive definite"):
        system.solve(x, solver="cg", tol=1e-8)
    zeros = system.solve(0 * x, solver="cg")
    assert (zeros.residual, abs(zeros.coef).max()) == (0, 0)


def test_auto_falls_back_to_the_factor(monkeypatch, way):
    """Near-duplicates and a tiny ridge, which conjugate gradients do not solve in their budget."""
    monkeypatch.setattr("mercer.models._solve.DIRECT", {"cpu": 100})
    rates = replace(_costs.RATES["float64"], flops=1.5e9)  # a factor costs many products
    monkeypatch.setitem(_costs.RATES, "float64", rates)
    x = points(400, 6)
    system = System(fit_kernel("gauss", x, SPACE, bandwidth=3.0), x, SPACE, 1e-8)
    y = np.random.default_rng(0).normal(size=(400, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = system.solve(y, tol=1e-6, rank=5)
    assert solution.solver == "direct"
    assert solution.residual < 1e-6
    monkeypatch.setattr(_memory, "free", lambda space: 1_000_000)
    with pytest.warns(ConvergenceWarning, match="relative residual"):
        assert system.solve(y, tol=1e-6, rank=5).solver == "cg"


def test_memory_is_reckoned_before(monkeypatch):
    monkeypatch.setattr(_memory, "free", lambda space: 10_000)
    x = points(50)
    system = System(fit_kernel("gauss", x, SPACE), x, SPACE, 0.1)
    with pytest.raises(MemoryError, match=r'Model: solver="direct" of 50 points .* centers=7'):
        system.solve(x, solver="direct", name="Model")
    assert system.buffer._flat is None


def test_free_memory_of_this_machine():
    assert 2**20 < _memory.free(SPACE) < 2**50


def test_memory_that_a_library_keeps_is_free(monkeypatch):
    cuda = SimpleNamespace(
        mem_get_info=lambda device: (100, 400),
        memory_reserved=lambda device: 50,
        memory_allocated=lambda device: 20,
    )
    monkeypatch.setattr(Space, "xp", SimpleNamespace(cuda=cuda))
    assert _memory.free(Space("torch", "cuda:0")) == 130


def test_freed_memory_of_a_device_counts_as_free():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    space = Space("torch", "cuda:0", "float32")
    before = _memory.free(space)
    held = space.empty(2**28)
    assert _memory.free(space) <= before - 2**30 + 2**26
    del held
    assert _memory.free(space) >= before - 2**26


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_named_ridge_suffices(dtype):
    space = Space(dtype=dtype)
    for kernel, x in [("gauss", np.ones((40, 2), dtype)), ("sigmoid", points(40, dtype=dtype))]:
        fitted = fit_kernel(kernel, x, space)
        with pytest.raises(mc.LinAlgError, match="not positive definite") as caught:
            System(fitted, x, space, 1e-20).solve(x, solver="direct")
        ridge = float(str(caught.value).split("alpha = ")[2].split(" would")[0])
        System(fitted, x, space, ridge).solve(x, solver="direct")


def test_float32_says_what_it_cannot_resolve():
    space, x = Space(dtype="float32"), points(200, dtype="float32")
    system = System(fit_kernel("gauss", x, space), x, space, 1e-4)
    with pytest.warns(ConvergenceWarning, match="float32 leaves"):
        system.solve(x, tol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        System(system.kernel, x, space, 1e-2).solve(x, tol=1e-3)


def test_devices_do_not_try_what_float32_cannot_reach(monkeypatch):
    monkeypatch.setattr("mercer.models._solve.DIRECT", {"cpu": 100})
    space, x = Space(dtype="float32"), points(200, dtype="float32")
    system = System(fit_kernel("gauss", x, space), x, space, 1e-4)
    monkeypatch.setattr(_low_rank, "steps", None)  # not to be called
    monkeypatch.setattr(Space, "on_device", True)
    with pytest.warns(ConvergenceWarning, match="float32 leaves"):
        assert system.solve(x, tol=1e-3).solver == "direct"


def test_unknown_solvers_are_refused():
    x = points()
    with pytest.raises(ValueError, match="solver must be one of"):
        System(fit_kernel("gauss", x, SPACE), x, SPACE, 0.1).solve(x, solver="qr")


@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_of_rows_solve_loosely(monkeypatch, weighted):
    monkeypatch.setattr("mercer.models._solve.DIRECT", {"cpu": 100})
    monkeypatch.setattr("mercer.models._solve.MANY", 300)
    x = points(400)
    y = np.sin(x[:, :1])
    weights = np.random.default_rng(3).random(400) + 0.5 if weighted else None
    system = System(fit_kernel("gauss", x, SPACE, bandwidth=1.5), x, SPACE, 0.5, weights)
    exact = system.solve(y, solver="direct")
    for solver in ("sap", "auto"):
        solution = system.solve(y, solver=solver, tol=1e-2)
        assert solution.solver == "sap"
        assert solution.residual <= 1.1e-2
        wanted, fit = (system.kernel.product(x, x, s.coef) for s in (exact, solution))
        np.testing.assert_allclose(fit, wanted, atol=0.05)
    assert system.solve(y, tol=1e-3).solver != "sap"
    with pytest.raises(ValueError, match="needs points"):
        System(fit_kernel("precomputed", x, SPACE), x @ x.T, SPACE, 0.5).solve(y, solver="sap")


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("ridge", "shift", "tried", "serves"),
    [(0.1, 0.0, True, True), (1e-8, 0.0, False, False), (0.1, 1e8, True, False)],
)  # fmt: skip
def test_factors_of_float32_are_refined(
    library, weighted, ridge, shift, tried, serves, monkeypatch
):
    """What float32 does not resolve, by the ridge or by the points, takes a factor of float64."""
    monkeypatch.setattr(_refined, "LEAST", 100)
    found, steps = [], _refined._steps
    monkeypatch.setattr(_refined, "_steps", lambda *a: found.append(steps(*a)) or found[-1])
    x, space = points(400) + shift, Space(library)
    y = np.stack([np.sin(x[:, 0]), 0 * x[:, 0]], axis=1)
    weights = np.random.default_rng(3).random(400) + 0.5 if weighted else np.ones(400)
    kernel = fit_kernel("gauss", space.array(x), space, bandwidth=1.5)
    given = space.array(weights) if weighted else None
    system = System(kernel, space.array(x), space, ridge, given)
    solution = system.solve(space.array(y), solver="direct")
    assert [one is not None for one in found] == [serves] * tried
    assert (solution.solver, solution.factor) == ("direct", None)
    assert solution.residual < (1e-13 if ridge > 1e-3 else 1e-6)
    expected = dense(x, y, ridge, weights, 1.5)
    bound = (1e-12 if ridge > 1e-3 else 1e-4) * abs(expected).max()
    np.testing.assert_allclose(host(solution.coef), expected, atol=bound)
    kept = system.solve(space.array(y), solver="direct", keep_factor=True)
    assert str(kept.factor.dtype).endswith("float64")
    assert len(found) == tried


def test_a_step_of_rounding_is_left_out(monkeypatch):
    """The ratio of two steps says that the next one would be nothing."""
    monkeypatch.setattr(_refined, "LEAST", 100)
    solved, solve = [], mc.linalg.cho_solve
    monkeypatch.setattr(mc.linalg, "cho_solve", lambda *a: solved.append(1) or solve(*a))
    x = points(400)
    y, kernel = np.sin(x[:, :1]), fit_kernel("gauss", x, SPACE, bandwidth=1.5)
    for least, steps in ((_refined.NOTHING, 3), (0.0, 4)):
        monkeypatch.setattr(_refined, "NOTHING", least)
        solution = System(kernel, x, SPACE, 1.0).solve(y, solver="direct")
        assert len(solved) == steps
        assert solution.residual < 1e-14
        solved.clear()


def test_nothing_of_other_kinds_is_refined(monkeypatch):
    monkeypatch.setattr(_refined, "_steps", None)  # not to be called
    monkeypatch.setattr(_refined, "LEAST", 100)
    for dtype, columns in (("float32", 1), ("float64", 5)):
        x, space = points(400).astype(dtype), Space(dtype=dtype)
        system = System(fit_kernel("gauss", x, space, bandwidth=1.5), x, space, 0.1)
        assert system.solve(np.ones((400, columns), dtype), solver="direct").residual < 1e-4
    few = System(system.kernel, x[:90], space, 0.1)
    assert few.solve(np.ones((90, 1)), solver="direct").residual < 1e-12
    k = System(fit_kernel("linear", x, space), x, space, 0.0)
    with pytest.raises(mc.LinAlgError, match="would do"):
        k.solve(np.ones((400, 1)), solver="direct")
