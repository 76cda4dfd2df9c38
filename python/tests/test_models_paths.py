"""Paths of ridges whose columns leave when they are done, against dense float64 algebra."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from mercer.models import KernelRidge, _local_inverse, _paths
from mercer.models._arrays import Space, host
from mercer.models._kernels import FittedKernel, fit_kernel
from mercer.models._solve import System

RIDGES = np.array([3.0, 0.3, 0.03])
OPTIONS = {"rank": 60, "max_iter": None, "probes": 32, "seed": 0}


def system_of(dtype="float64", library="numpy", weighted=False, n=400):
    """(system, y [n, 2], its matrix without a ridge in float64)."""
    device = "cpu" if library != "cuda" else "cuda:0"
    if library != "numpy":
        torch = pytest.importorskip("torch")
        if library == "cuda" and not torch.cuda.is_available():
            pytest.skip("needs a GPU")
        library = "torch"
    rng, space = np.random.default_rng(0), Space(library, device, dtype)
    x = rng.normal(size=(n, 3)).astype(dtype)
    y = np.sin(x[:, :2]) + 0.3 * rng.normal(size=(n, 2))
    w = rng.uniform(0.5, 2, n).astype(dtype) if weighted else None
    kernel = fit_kernel("gauss", x, space, bandwidth=1.0)
    weights = None if w is None else space.array(w)
    k = mc.kernel_matrix(mc.gauss(bandwidth=1.0), x.astype("d"))
    s = np.ones(n) if w is None else np.sqrt(w.astype("d"))
    return System(kernel, space.array(x), space, 0.0, weights), space.array(y), s[:, None] * k * s


def inverse_of(system, ridges, rank):
    return _paths.Inverse(system.kernel, system.x, system.scale, system.space, ridges, rank, 0)


@pytest.mark.parametrize("library", ["numpy", "torch", "cuda"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_columns_meet_their_tolerance(library, dtype, weighted):
    system, y, k = system_of(dtype, library, weighted)
    tol = 1e-4 if dtype == "float32" else 1e-9
    found = _paths.solve(system, y, RIDGES, tol=tol, **OPTIONS)
    assert found.met.all()
    rounding = 400 * np.finfo(dtype).eps * np.linalg.norm(k, 2)
    for ridge, a, trace in zip(RIDGES, found.columns, found.traces, strict=True):
        a, b = host(a).astype("d"), host(y).astype("d")
        gap = np.linalg.norm(k @ a + ridge * a - b, axis=0)
        bound = tol * np.linalg.norm(b, axis=0) + rounding * np.linalg.norm(a, axis=0)
        assert (gap <= bound).all()
        inverse = np.linalg.inv(k + ridge * np.eye(400))
        # Four standard errors of 32 signs, without what the control variate takes away.
        spread = np.sqrt(2 * (inverse**2).sum() / 32)
        assert abs(trace - np.trace(inverse)) <= 4 * spread + 0.01 * np.trace(inverse)


def test_forms_are_within_their_bracket():
    """The bracket holds the form: where it is narrow, so is the error."""
    system, _, k = system_of()
    inverse = inverse_of(system, RIDGES, 60)
    run = _paths._Run(system, RIDGES, inverse, 1e-3, 300, np.empty(0, int))
    z = np.random.default_rng(1).choice([-1.0, 1.0], (400, 5))
    run.begin(
        np.tile(z, 3), np.repeat(np.arange(3), 5), np.tile(np.arange(5), 3), np.full(15, 20.0)
    )
    run.go()
    for (i, j), (form, _) in run.forms.items():
        exact = z[:, j] @ np.linalg.solve(k + RIDGES[i] * np.eye(400), z[:, j])
        assert abs(form / exact - 1) <= 2 * _paths.BRACKET + _paths.LOOSELY**2
    assert len(run.forms) == 15


@pytest.mark.parametrize("weighted", [False, True])
def test_inverses_among_neighbours(weighted, monkeypatch):
    """Forms and traces of C, whose rows are made one by one here."""
    monkeypatch.setattr(_local_inverse, "VALUES", 150 * 16 * (3 + 16 + 5))
    system, _, k = system_of(weighted=weighted)
    z = np.random.default_rng(1).choice([-1.0, 1.0], (400, 5))
    forms, traces = _local_inverse.controls(system, RIDGES, z)
    apart = ((system.x[:, None] - system.x) ** 2).sum(2)
    for i, ridge in enumerate(RIDGES):
        c = np.zeros((400, 400))
        for row in range(400):
            near = np.argsort(apart[row])[: _local_inverse.NEIGHBOURS]
            block = k[np.ix_(near, near)] + ridge * np.eye(len(near))
            c[row, near] = np.linalg.solve(block, np.eye(len(near))[:, 0])
        assert traces[i] == pytest.approx(np.trace(c), rel=1e-9)
        np.testing.assert_allclose(forms[i], (z * (c @ z)).sum(0), rtol=1e-9)


def test_traces_of_rough_kernels_take_neighbours(monkeypatch):
    """Where the preconditioner says little of a trace, the error is a fraction of what it was."""
    space, x = Space(), np.random.default_rng(0).normal(size=(400, 2))
    kernel = fit_kernel("matern12", x, space, bandwidth=2.0)
    system, ridges = System(kernel, x, space, 0.0), np.array([0.1, 0.01])
    exact = [np.trace(np.linalg.inv(system.matrix(ridge))) for ridge in ridges]

    def errors():
        found = [
            _paths.solve(system, x[:, :1], ridges, tol=1e-3, **OPTIONS | {"seed": seed}).traces
            for seed in range(6)
        ]
        return np.sqrt(((np.array(found) / exact - 1) ** 2).mean(0))

    with_neighbours = errors()
    monkeypatch.setattr(_paths, "ERROR", np.inf)
    assert (with_neighbours < 0.5 * errors()).all()


def test_neighbours_of_many_features_take_little_memory(monkeypatch):
    x, taken = np.random.default_rng(0).normal(size=(300, 6000)).astype("float32"), []
    matrix = FittedKernel.matrix

    def watched(self, x, *rest, **options):
        taken.append(x.size)
        return matrix(self, x, *rest, **options)

    monkeypatch.setattr(FittedKernel, "matrix", watched)
    space = Space(dtype="float32")
    system = System(fit_kernel("gauss", x, space, bandwidth=100.0), x, space, 0.0)
    _local_inverse.controls(system, RIDGES, np.ones((300, 1), "float32"))
    assert sum(taken) == 16 * x.size
    assert max(taken) <= 2**24


def test_duplicates_have_neighbours_too():
    system, *_ = system_of()
    x = system.x.copy()
    x[:50] = x[0]  # more than are neighbours
    near = _local_inverse._neighbours(System(system.kernel, x, system.space, 0.0))
    assert (near[:, 0] == np.arange(400)).all()
    assert all(len(set(row)) == _local_inverse.NEIGHBOURS for row in near)


@pytest.mark.parametrize("rank", [0, 1, 60])
def test_the_inverse_is_that_of_factor_and_ridge(rank):
    system, _, k = system_of()
    inverse = inverse_of(system, RIDGES, rank)
    factor, v = inverse.factor, np.random.default_rng(1).normal(size=(400, 3))
    if rank:
        assert inverse.left == pytest.approx(np.trace(k - factor @ factor.T) / 400)
    got, traces = inverse(v, np.array([0, 1, 2])), inverse.traces()
    for i, ridge in enumerate(inverse.ridges):
        exact = np.linalg.inv(factor @ factor.T + ridge * np.eye(400))
        np.testing.assert_allclose(got[:, i], exact @ v[:, i], atol=1e-9 * abs(exact).max())
        assert traces[i] == pytest.approx(np.trace(exact), rel=1e-9)
    p = factor @ factor.T + inverse.ridges[0] * np.eye(400)
    np.testing.assert_allclose(inverse.sqrt(inverse.sqrt(v)), p @ v, atol=1e-9 * abs(p).max())
    np.testing.assert_allclose(inverse.solve(p @ v), v, atol=1e-9)
    assert inverse.logdet() == pytest.approx(np.linalg.slogdet(p)[1], rel=1e-9)


@pytest.mark.parametrize("ridge", [1e-3, 10.0])
def test_what_a_factor_leaves_of_a_diagonal(ridge):
    x = np.random.default_rng(0).normal(size=(500, 2)).astype("float32")
    left = []
    for dtype in ("float32", "float64"):
        space = Space(dtype=dtype)
        points = space.array(x)
        kernel = fit_kernel("gauss", points, space, bandwidth=3.0)
        system = System(kernel, points, space, 0.0)
        left.append(inverse_of(system, np.array([ridge]), 100).left)
    assert abs(left[0] - left[1]) < 1e-5


def test_columns_leave_the_products(monkeypatch):
    system, y, _ = system_of()
    widths, product = [], System.product

    def counted(self, a):
        widths.append(a.shape[1])
        return product(self, a)

    monkeypatch.setattr(System, "product", counted)
    found = _paths.solve(system, y, RIDGES, tol=1e-6, **OPTIONS)
    assert found.met.all()
    assert len(widths) == found.taken
    assert widths[:-1] == sorted(widths[:-1], reverse=True)  # the last one measures
    assert widths[0] > 40
    assert widths[-2] <= 2


def test_what_a_recurrence_promised_is_measured(monkeypatch):
    """Columns that end too early go on from what is left of their right-hand sides."""
    system, y, k = system_of()
    measured, looks = _paths._Run._preconditioned, []

    def flattered(self):
        looks.append(1)
        z, square, gaps = measured(self)
        return z, square, gaps * (1e-3 if len(looks) <= 10 else 1)

    monkeypatch.setattr(_paths._Run, "_preconditioned", flattered)
    found = _paths.solve(system, y, RIDGES, tol=1e-8, **OPTIONS)
    assert found.met.all()
    for ridge, a in zip(RIDGES, found.columns, strict=True):
        gap = np.linalg.norm(k @ a + ridge * a - y, axis=0)
        assert (gap <= 1.01e-8 * np.linalg.norm(y, axis=0)).all()


def test_float32_reaches_what_float64_measures():
    """Products in float32 are off by more than tol here: what they leave is measured in float64."""
    x = np.random.default_rng(0).normal(size=(600, 2)).astype("float32")
    space = Space(dtype="float32")
    kernel = fit_kernel("gauss", x, space, bandwidth=2.0)
    y, ridge = np.sin(3 * x).astype("float32"), 3e-3
    system, options = System(kernel, x, space, 0.0), OPTIONS | {"probes": 0}
    found = _paths.solve(system, y, np.array([ridge]), tol=2e-4, **options)
    k, b = mc.kernel_matrix(mc.gauss(bandwidth=2.0), x.astype("d")), y.astype("d")
    a = found.columns[0].astype("d")
    gaps = np.linalg.norm(k @ a + ridge * a - b, axis=0) / np.linalg.norm(b, axis=0)
    assert found.met.all()
    assert gaps.max() == pytest.approx(found.residual, rel=1e-3)
    assert found.residual <= 2e-4
    narrow = np.linalg.norm(system.with_ridge(ridge).product(a.astype("f")) - k @ a - ridge * a)
    assert narrow > 2e-4 * np.linalg.norm(b)


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_scales_of_targets_change_nothing(scale):
    system, y, _ = system_of("float32")
    y[:, 1] = 0
    options = OPTIONS | {"tol": 1e-3}
    found = _paths.solve(system, y, RIDGES, **options)
    again = _paths.solve(system, y * np.float32(scale), RIDGES, **options)
    assert again.met.all()
    for a, b in zip(found.columns, again.columns, strict=True):
        np.testing.assert_array_equal(b, a * np.float32(scale))
        assert (b[:, 1] == 0).all()


def test_first_guesses_are_improved():
    system, y, k = system_of()
    options = OPTIONS | {"tol": 1e-8, "probes": 0}
    near = np.linalg.solve(k + 0.3 * np.eye(400), y)
    found = _paths.solve(system, y, RIDGES, x0=near, **options)
    assert found.met.all()
    assert found.residual <= 1e-8
    again = _paths.solve(system, y, RIDGES[1:2], x0=near, **options)
    np.testing.assert_array_equal(again.columns[0], near)
    assert again.taken == 1  # which measures


def test_what_has_no_solution_is_not_met():
    system, y, _ = system_of()
    found = _paths.solve(system, y, RIDGES, tol=1e-8, **OPTIONS | {"max_iter": 3})
    assert not found.met.any()
    assert not found.failed.any()
    negative = fit_kernel("-exp(-sum((x-z)^2))", system.x, system.space)
    bad = System(negative, system.x, system.space, 0.0)
    found = _paths.solve(bad, y, RIDGES, tol=1e-8, **OPTIONS)
    assert not found.met.any()
    assert found.failed.all()
    y[7, 1] = np.nan
    assert not _paths.solve(system, y, RIDGES, tol=1e-8, **OPTIONS).met.any()


def test_formulas_of_indices_have_no_preconditioner():
    system, y, _ = system_of()
    kernel = fit_kernel("exp(-sum((x-z)^2)) + (i == j)", system.x, system.space)
    system = System(kernel, system.x, system.space, 0.0)
    with pytest.raises(NotImplementedError, match="rank must be 0"):
        _paths.solve(system, y, RIDGES, tol=1e-6, **OPTIONS)
    assert _paths.solve(system, y, RIDGES, tol=1e-6, **OPTIONS | {"rank": 0}).met.all()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_step_fetches_sums_twice_and_scales_are_fetched_once(library, monkeypatch):
    """The host waits for each fetch from a device."""
    system, y, _ = system_of(library=library)
    fetched = []

    def counted(function):
        def call(*arguments):
            fetched.append(function)
            return function(*arguments)

        return call

    inverse = inverse_of(system, RIDGES, 60)
    run = _paths._Run(system, RIDGES, inverse, 1e-9, 300, np.zeros(2, int))
    run.begin(y, run.each, np.arange(2), system.space.norms(y))
    monkeypatch.setattr(Space, "sums", counted(Space.sums))
    run._step()
    assert len(fetched) == 2
    monkeypatch.setattr(_paths, "host", counted(host))
    scales = _paths._scales(y, system.space)
    assert len(fetched) == 3
    tops = abs(host(y)).max(0)
    assert ((scales <= tops) & (tops < 2 * scales)).all()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_ridge_for_each_output_on_devices(device, weighted, monkeypatch):
    """Columns of all ridges share products there, too, and nothing of `mercer.linalg.cg`'s host."""
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    monkeypatch.setattr(Space, "on_device", True)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = np.stack([np.sin(x[:, 0]), x[:, 1], x[:, 2] ** 2], 1)
    w = rng.uniform(0.5, 2, 300) if weighted else None
    model = KernelRidge(alpha=[0.1, 10.0, 0.1], bandwidth=1.0, solver="cg", tol=1e-10)
    with monkeypatch.context() as patch:
        for name in ("cg", "rpcholesky"):
            patch.setattr(mc.linalg, name, None)
        model.fit(torch.as_tensor(x, device=device), torch.as_tensor(y, device=device), w)
    assert model.solver_ == "cg"
    assert model.residual_ <= 1e-10
    for i, alpha in enumerate((0.1, 10.0, 0.1)):
        one = KernelRidge(alpha=alpha, bandwidth=1.0, solver="direct").fit(x, y[:, i], w)
        np.testing.assert_allclose(host(model.dual_coef_)[:, i], one.dual_coef_, atol=1e-8)
