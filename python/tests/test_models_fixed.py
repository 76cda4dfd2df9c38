"""Fits of which nothing is read: on the CPU under a guard, on CUDA in a graph."""

from __future__ import annotations

import contextlib

import mercer as mc
import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
pytest.importorskip("torch")
import torch
from mercer.models import KernelRidge, KernelRidgeClassifier, KernelRidgeCV, _fixed
from mercer.models._arrays import Space
from mercer.models._kernels import fit_kernel
from torch.utils._python_dispatch import TorchDispatchMode

ALPHAS, WIDTHS = (0.03, 0.3, 3.0), (0.5, 1.0, 2.0)


def sample(n=300, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    y = np.sin(x[:, :outputs]) + 0.3 * rng.normal(size=(n, outputs))
    return x, y, rng.integers(0, 4, n).astype(float)


class NothingRead(TorchDispatchMode):
    """Raises where a number of a tensor comes to the host."""

    READS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.READS:
            raise AssertionError(f"{name} reads")
        tensors = [a for a in (args[1] if name.startswith("index") else ()) if a is not None]
        assert not any(t.dtype == torch.bool or t.ndim == 0 for t in tensors), "an index is read"
        return func(*args, **(kwargs or {}))


HANDS = (
    "__array__",
    "__bool__",
    "__float__",
    "__index__",
    "__int__",
    "cpu",
    "item",
    "numpy",
    "tolist",
)


@contextlib.contextmanager
def guard():
    """Nothing is read by PyTorch, nor through the methods of a tensor that hand it to the host."""

    def read(*_, **__):
        raise AssertionError("a tensor is read")

    with pytest.MonkeyPatch.context() as patch, NothingRead():
        for name in HANDS:
            patch.setattr(torch.Tensor, name, read)
        yield


@pytest.mark.parametrize("bad", [float, bool, torch.Tensor.item, np.asarray])
def test_the_guard_sees_reads(bad):
    t = torch.ones(())
    with pytest.raises(AssertionError, match="read"), guard():
        bad(t)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_read(weighted, dtype):
    x, y, w = (torch.as_tensor(a, dtype=getattr(torch, dtype)) for a in sample())
    w = w if weighted else None
    number = torch.tensor(0.3, dtype=x.dtype)
    one = KernelRidge(solver="fixed", alpha=number, bandwidth="scale")
    metric = KernelRidge(solver="fixed", bandwidth=number, metric=torch.ones(3, dtype=x.dtype))
    many = KernelRidgeCV(
        "matern32", solver="fixed", alphas=torch.tensor(ALPHAS, dtype=x.dtype), bandwidths=WIDTHS
    )
    with guard():
        found = [model.fit(x, y, w).predict(x[:9]) for model in (one, metric, many)]
    assert all(torch.isfinite(f).all() and f.shape == (9, 2) for f in found)
    assert isinstance(many.alpha_, torch.Tensor)
    assert float(many.alpha_) in many.cv_results_["alphas"]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_solves_its_system(library, weighted):
    """Against float64 dense algebra: the residual bounds the error by the least eigenvalue."""
    x, y, w = sample()
    put = torch.as_tensor if library == "torch" else np.asarray
    weights = w if weighted else np.ones(300)
    model = KernelRidge(solver="fixed", bandwidth=1.5, alpha=0.1, tol=1e-9, max_iter=80)
    model.fit(put(x), put(y), put(weights) if weighted else None)
    kept = weights > 0
    s = np.sqrt(weights[kept])[:, None]
    k = s * mc.kernel_matrix(mc.gauss(bandwidth=1.5), x[kept]) * s.T + 0.1 * np.eye(kept.sum())
    wanted = s * np.linalg.solve(k, s * y[kept])
    got = np.asarray(model.dual_coef_)
    got = got if len(got) == kept.sum() else got[kept]
    gap = 1e-9 / 0.1 * s.max() * np.linalg.norm(s * y[kept], axis=0).max()
    assert abs(got - wanted).max() <= gap
    assert float(model.residual_) <= 1e-9
    assert model.n_iter_ == 80
    assert model.solver_ == "fixed"


@pytest.mark.parametrize("weighted", [False, True])
def test_a_path_chooses_what_a_spectrum_says(weighted):
    """Scores are those of the exact trace, within what 64 random signs leave."""
    x, y, w = sample()
    weights = w if weighted else np.ones(300)
    options = {"bandwidth": 2.0, "bandwidths": WIDTHS, "alphas": ALPHAS, "n_probes": 64}
    tensors = (torch.as_tensor(a) for a in (x, y, weights))
    model = KernelRidgeCV(solver="fixed", tol=1e-5, max_iter=100, **options).fit(*tensors)
    s, mass = np.sqrt(weights)[:, None], max(weights.sum(), (weights > 0).sum())
    exact = np.empty((3, 3))
    for i, width in enumerate(WIDTHS):
        k = s * mc.kernel_matrix(mc.gauss(bandwidth=2.0 * width), x) * s.T
        for j, alpha in enumerate(ALPHAS):
            inverse = np.linalg.inv(k + alpha * np.eye(300))
            square = ((alpha * inverse @ (s * y)) ** 2).sum() / (weights.sum() * 2)
            degrees = 300 - alpha * np.trace(inverse)
            exact[i, j] = square / (1 - degrees / mass) ** 2
    results = model.cv_results_
    np.testing.assert_allclose(results["scores"].numpy(), exact, rtol=0.02)
    i, j = np.unravel_index(int(results["scores"].argmin()), (3, 3))
    assert (float(model.alpha_), float(model.bandwidth_)) == (ALPHAS[j], 2.0 * WIDTHS[i])
    assert float(model.best_score_) == float(results["scores"].min())
    one = KernelRidge(solver="direct", bandwidth=float(model.bandwidth_), alpha=float(model.alpha_))
    wanted = one.fit(x, y, weights).predict(x)
    np.testing.assert_allclose(model.predict(torch.as_tensor(x)), wanted, atol=1e-4)


def test_what_is_not_met_has_no_score():
    x, y, _ = sample()
    model = KernelRidgeCV(solver="fixed", bandwidths=WIDTHS, alphas=ALPHAS, tol=1e-9, max_iter=2)
    model.fit(x, y)
    assert np.isinf(model.cv_results_["scores"]).any()
    assert (model.cv_results_["residuals"][np.isinf(model.cv_results_["scores"])] > 1e-9).all()
    none = KernelRidgeCV(solver="fixed", alphas=(1e-6,), tol=1e-12, max_iter=1).fit(x, y)
    assert np.isinf(none.best_score_)
    assert np.isnan(none.dual_coef_).all()
    assert np.isnan(none.alpha_)
    assert np.isnan(none.predict(x)).all()


@pytest.mark.parametrize("where", ["x", "y", "weights", "bandwidth", "alpha"])
def test_what_is_not_read_becomes_nan(where):
    """Refusing it would need a look."""
    x, y, w = map(torch.as_tensor, sample(80))
    values = {"bandwidth": torch.tensor(1.0), "alpha": torch.tensor(0.1)}
    if where in values:
        values[where] = torch.tensor(-1.0)
    else:
        {"x": x, "y": y, "weights": w}[where][5] = -1 if where == "weights" else torch.nan
    model = KernelRidge(solver="fixed", **values).fit(x, y, w)
    assert torch.isnan(model.dual_coef_).all()
    assert torch.isnan(model.residual_)


def test_an_indefinite_kernel_is_nan():
    x, y, _ = sample(80)
    model = KernelRidge("-exp(-sum((x-z)^2))", solver="fixed", alpha=0.1)
    assert np.isnan(model.fit(x, y).dual_coef_).all()


def test_scales_of_targets_change_nothing():
    x, y, _ = (torch.as_tensor(a, dtype=torch.float32) for a in sample())
    y[:, 1] = 0
    model = KernelRidge(solver="fixed", alpha=0.1, bandwidth=1.0, random_state=0)
    coef = model.fit(x, y).dual_coef_
    for scale in (2.0**-80, 2.0**80):
        torch.testing.assert_close(model.fit(x, y * scale).dual_coef_ / scale, coef)
    assert (coef[:, 1] == 0).all()


def test_the_factor_of_many_blocks():
    """F F^T is below K, what it leaves is said, and the inverse is that of a Cholesky factor."""
    space = Space()
    x = np.random.default_rng(0).normal(size=(400, 2))
    kernel = fit_kernel("matern12", x, space, bandwidth=1.0)
    factor, left = _fixed.low_rank(kernel, x, None, space, 150, 3)
    rest = mc.kernel_matrix(mc.matern12(bandwidth=1.0), x) - factor @ factor.T
    assert np.linalg.eigvalsh(rest).min() > -1e-10
    assert left == pytest.approx(np.trace(rest) / 400)
    assert left < 0.2
    inverse = _fixed.Inverse.of(factor, np.array([0.1, 2.0]), space)
    v = np.random.default_rng(1).normal(size=(400, 2, 3))
    for i, ridge in enumerate((0.1, 2.0)):
        wanted = np.linalg.solve(factor @ factor.T + ridge * np.eye(400), v[:, i])
        np.testing.assert_allclose(inverse(v)[:, i], wanted, atol=1e-9)


@pytest.mark.parametrize(("n", "dtype", "bandwidth", "bound"),
                         [(2000, "float32", 1.0, 2e-2), (600, "float64", 3.0, 1e-8)])  # fmt: skip
def test_pivots_near_each_other_are_taken_together(n, dtype, bandwidth, bound):
    """A block of a smooth kernel is singular but for rounding: its columns are neither lost nor
    made of that."""
    x, space = np.random.default_rng(0).normal(size=(n, 2)).astype(dtype), Space(dtype=dtype)
    kernel = fit_kernel("gauss", x, space, bandwidth=bandwidth)
    factor = _fixed.low_rank(kernel, x, None, space, 256, 0)[0].astype("d")
    rest = mc.kernel_matrix(mc.gauss(bandwidth=bandwidth), x.astype("d")) - factor @ factor.T
    assert abs(np.linalg.eigvalsh(rest)).max() < bound


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bandwidth": "median"}, "bandwidth must be"),
        ({"kernel": "precomputed"}, "must be of points"),
        ({"metric": torch.eye(3)}, r"must have the shape \(3,\)"),
        ({"centers": 10}, "'solver' parameter of"),
        ({"alpha": torch.ones(2)}, "alpha must be one number"),
    ],
)
def test_what_is_refused(options, words):
    x, y, _ = sample(30)
    x = x @ x.T if "kernel" in options else x
    with pytest.raises(ValueError, match=words):
        KernelRidge(**{"solver": "fixed", **options}).fit(torch.as_tensor(x), torch.as_tensor(y))


def test_what_is_refused_elsewhere():
    x, y, _ = sample(30)
    with pytest.raises(ValueError, match='must be "gcv" or "auto"'):
        KernelRidgeCV(solver="fixed", select="loo").fit(x, y)
    with pytest.raises(ValueError, match="'solver' parameter of"):
        KernelRidgeClassifier(solver="fixed").fit(x, y[:, 0] > 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["one", "path", "path and bandwidths"])
def test_a_graph_holds_a_fit(kind, dtype):
    """Captured once, replayed on other targets, points and bandwidths: as fits outside."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    to = {"device": "cuda", "dtype": getattr(torch, dtype)}
    x, y, w = (torch.as_tensor(a, **to) for a in sample(2000))
    width, tol = torch.tensor(1.5, **to), 1e-3 if dtype == "float32" else 1e-8
    options = {"solver": "fixed", "bandwidth": width, "tol": tol, "random_state": 0}
    if kind == "one":
        alpha = torch.tensor(0.3, **to)
        model = KernelRidge(alpha=alpha, **options)
    else:
        widths = (1.0,) if kind == "path" else WIDTHS
        model = KernelRidgeCV(alphas=(0.3, 3.0, 30.0), bandwidths=widths, **options)

    def call():
        model.fit(x, y, w)
        return model.dual_coef_, model.residual_, model.alpha_, model.predict(x[:100])

    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()  # compiles, and makes the handles of this stream
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    graph, close = torch.cuda.CUDAGraph(), 2e-3 if dtype == "float32" else 1e-5
    with torch.cuda.graph(graph, stream=stream):
        captured = call()
    for seed in (1, 2):
        for old, new in zip((x, y, w), sample(2000, seed=seed), strict=True):
            old.copy_(torch.as_tensor(new))
        width.fill_(1.0 + seed / 4)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        got = [value.clone() for value in captured]
        for value, wanted in zip(got, call(), strict=True):
            torch.testing.assert_close(value, wanted, rtol=close, atol=close)
        assert float(got[1]) <= tol
