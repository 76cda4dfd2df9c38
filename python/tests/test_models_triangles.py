"""Inverses and squares of triangles by blocks, against float64 algebra."""

from __future__ import annotations

import functools

import mercer as mc
import numpy as np
import pytest
import scipy.linalg

pytest.importorskip("sklearn", minversion="1.6")
from mercer.models import KernelLogisticRegression, KernelRidge, _triangles
from mercer.models._arrays import Space, host

N = 1300


@functools.cache
def triangle(dtype):
    """(L [N, N] of a dtype, L^-1 and |L^-1| |L| |L^-1| in float64)."""
    x = np.random.default_rng(0).normal(size=(N, 3))
    k = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1)) + 0.3 * np.eye(N)
    lower = np.linalg.cholesky(k).astype(dtype)
    wide = lower.astype("float64")
    inverse = scipy.linalg.solve_triangular(wide, np.eye(N), lower=True)
    return lower, inverse, abs(inverse) @ abs(wide) @ abs(inverse)


def space_of(library, dtype):
    if library == "numpy":
        return Space(dtype=dtype)
    torch = pytest.importorskip("torch")
    if library == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return Space("torch", "cpu" if library == "torch" else "cuda:0", dtype)


@pytest.mark.parametrize("library", ["numpy", "torch", "cuda"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("panel", [300, 2048])
def test_inverses(library, dtype, panel, monkeypatch):
    monkeypatch.setattr(_triangles, "PANEL", panel)
    space = space_of(library, dtype)
    lower, exact, growth = triangle(dtype)
    given = space.array(lower + np.triu(np.full((N, N), 7.0, dtype), 1))
    found = _triangles.triangular_inverse(given, space)
    assert found is given
    assert not np.triu(host(found), 1).any()
    # Leaves and both products of a merge err by N u each, the reference by N u of float64.
    bound = 4 * N * np.finfo(dtype).eps / 2 * growth
    assert (abs(host(found) - exact) <= bound).all()


@pytest.mark.parametrize("library", ["numpy", "torch", "cuda"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("in_place", [False, True])
def test_squares(library, dtype, in_place, monkeypatch):
    monkeypatch.setattr(_triangles, "PANEL", 300)
    space, (lower, *_) = space_of(library, dtype), triangle(dtype)
    given = space.array(lower.copy())
    out = given if in_place else space.empty(N, N)
    found = host(_triangles.transposed_times_self(given, out))
    wide = lower.astype("float64")
    bound = 2 * N * np.finfo(dtype).eps / 2 * (abs(wide).T @ abs(wide))
    assert (abs(found - wide.T @ wide) <= bound).all()


def test_falkon_on_devices_solves_small_triangles_alone(monkeypatch):
    """A device waits in each for its rows."""
    monkeypatch.setattr(Space, "on_device", True)
    solve, rows = mc.linalg.solve_triangular, []

    def watched(a, *rest, **options):
        rows.append(a.shape[0])
        return solve(a, *rest, **options)

    monkeypatch.setattr(mc.linalg, "solve_triangular", watched)
    x = np.random.default_rng(0).normal(size=(700, 3))
    model = KernelRidge("laplace", bandwidth=1.0, centers=600, solver="falkon", random_state=0)
    model.fit(x, np.sin(x[:, 0]))
    assert model.residual_ <= 1e-3
    assert sum(rows) == 1200
    assert max(rows) <= 512


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logistic_regression_of_centers_on_a_device(dtype, monkeypatch):
    """Only float32, which rounds by more, takes the inverse of a factor whose condition is 1e7."""
    torch = pytest.importorskip("torch")
    inverted, invert = [], _triangles.triangular_inverse

    def watched(lower, space):
        inverted.append(lower.dtype)
        return invert(lower, space)

    monkeypatch.setattr(_triangles, "triangular_inverse", watched)
    x = np.random.default_rng(0).normal(size=(500, 2)).astype(dtype)
    y, options = x[:, 0] * x[:, 1] > 0, {"bandwidth": 1.0, "centers": 150, "tol": 1e-9}
    host_fit = KernelLogisticRegression(**options, random_state=0).fit(x, y)
    assert not inverted
    monkeypatch.setattr(Space, "on_device", True)
    model = KernelLogisticRegression(**options, random_state=0).fit(torch.as_tensor(x), y)
    assert inverted == [torch.float64] * (dtype == "float32")
    bound = 1e-2 if dtype == "float32" else 1e-6  # of sums whose terms are 1e4 times as large
    found = model.predict_proba(torch.as_tensor(x)).numpy()
    np.testing.assert_allclose(found, host_fit.predict_proba(x), atol=bound)
