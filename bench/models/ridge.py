"""Kernel ridge regression: against scikit-learn, products to a residual, a path, and errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest import mock

import mercer as mc
import numpy as np
from bench_models import Result, Sets, rmse, seconds
from mercer.models import KernelRidge, _inverse, _paths
from mercer.models._arrays import Space
from mercer.models._kernels import fit_kernel
from mercer.models._select import generalised
from mercer.models._solve import System

# Length scales, signal and noise that Lin et al. ("Sampling from Gaussian process posteriors using
# stochastic gradient descent", 2023) found for Matern 3/2, their split 0.
PUBLISHED = {
    "elevators": (
        0.70837, 0.31428,
        "5.4685 6.7224 5.2294 6.4530 6.8570 1.2667 6.6950 1.4320 8.1938 1.9280 3.4437 3.4437 "
        "1.2176 7.4840 0.6931 8.4953 0.6931 1.2171",
    ),
    "pol": (
        0.40083, 0.036741,
        "0.52525 0.61863 1.5090 10.133 1.7407 5.0544 5.2264 9.3371 10.217 6.5756 3.6487 3.0319 "
        "5.2059 8.4906 7.5354 3.3828 7.9568 9.5670 9.3149 9.8944 9.5333 10.516 10.594 5.8729 "
        "7.5083 4.9716",
    ),
    "bike": (
        0.16144, 0.0062472,
        "18.008 17.092 15.843 17.062 18.008 17.092 18.296 1.8289 16.002 16.631 16.450 15.781 "
        "15.685 15.612 15.148 0.46499 0.10836",
    ),
    "protein": (
        0.86508, 0.081619,
        "0.36843 2.7493 0.84745 0.21588 0.34910 0.30310 0.11767 0.35099 0.29550",
    ),
}  # fmt: skip


def against_scikit_learn(sets: Sets, dtype: str = "float64") -> Result:
    from sklearn.kernel_ridge import KernelRidge as Peer

    x, y, xt, yt = sets.load("protein", 6000)
    reference = Peer(kernel="rbf", gamma=0.5, alpha=0.1)
    model = KernelRidge(bandwidth=1.0, alpha=0.1)
    mine, target = x.astype(dtype), y.astype(dtype)
    model.fit(mine[:500], target[:500])
    peer, _ = seconds(lambda: reference.fit(x, y))
    ours, _ = seconds(lambda: model.fit(mine, target), 3)
    off = abs(model.dual_coef_ - reference.dual_coef_).max() / abs(reference.dual_coef_).max()
    slow, expected = seconds(lambda: reference.predict(xt))
    fast, predicted = seconds(lambda: model.predict(xt.astype(dtype)))
    notes = {"RMSE": f"{rmse(predicted, yt):.5f} / {rmse(expected, yt):.5f}"}
    return Result(ours, peer, {**notes, "coefficients": f"{off:.1e}", "predict":
                               f"{slow / fast:.1f}x"})  # fmt: skip


def product_time(system: System, y: np.ndarray) -> float:
    """Seconds of one product with one column, the unit of other times."""
    return seconds(lambda: system.product(y), 3)[0]


def system_of(kernel: str, x: np.ndarray, bandwidth: float, ridge: float) -> System:
    space = Space(dtype=str(x.dtype))
    return System(fit_kernel(kernel, x, space, bandwidth=bandwidth), x, space, ridge)


def to_residual(sets: Sets, name: str, n: int, bandwidth: float, ridge: float) -> Result:
    x, y, xt, yt = sets.load(name, n, dtype="float32")
    system, y = system_of("gauss", x, bandwidth, ridge), y[:, None]
    unit = product_time(system, y)
    options = {"solver": "cg", "tol": 1e-4, "seed": 1}
    plan = _paths.plan_of_rank(system, np.array([ridge]), 1e-4, 1)
    given = system.kernel, system.x, system.scale, system.space, np.array([ridge])
    preparation, found = seconds(lambda: _paths.Inverse(*given, plan.rank, 1, plan))
    rank = len(found.values)
    operator = system.operator(0.0)
    ours, solution = seconds(lambda: system.solve(y, **options))
    nystrom, inverse = seconds(lambda: mc.linalg.nystrom(operator, rank, ridge=ridge))
    steps, answer = seconds(
        lambda: mc.linalg.cg(
            operator, y, ridge=ridge, preconditioner=inverse, tol=1e-4, check=False
        )
    )
    error = rmse(system.kernel.product(xt, x, solution.coef)[:, 0], yt)
    notes = {"preparation": f"{preparation / unit:.1f} / {nystrom / unit:.1f}"}
    notes |= {"products": f"{solution.n_iter} / {int(answer[2].max())}", "RMSE": f"{error:.4f}"}
    notes |= {"residual": f"{solution.residual:.1e}", "rank": rank}
    return Result(ours / unit, (nystrom + steps) / unit, notes, "products")


def without_what_is_left(sets: Sets, name: str) -> Result:
    """Products for a rough kernel, with and without what the preconditioner's factor leaves."""
    x, y, *_ = sets.load(name, 6000, dtype="float32")
    system, y = system_of("matern12", x, 10.0, 1e-3), y[:, None]
    counts = []
    for part in (_inverse.LEFT, 0.0):
        with mock.patch.object(_inverse, "LEFT", part):
            found = _paths.solve(
                system, y, np.array([1e-3]), rank=450, tol=1e-3, max_iter=400, probes=0, seed=0
            )
        counts.append(found.taken)
    return Result(*counts, {}, "products")


def path_of_ridges(sets: Sets) -> Result:
    x, y, *_ = sets.load("protein", 5000, dtype="float32")
    ridges = np.array([10, 3, 1, 0.3, 0.1, 0.03, 0.01])
    system, y = system_of("gauss", x, 1.0, 0.0), y[:, None]
    unit = product_time(system, y)
    ours, (scores, products) = seconds(
        lambda: generalised(
            system, y, ridges, rank="auto", tol=1e-3, max_iter=None, probes=16, seed=0
        )
    )
    wide = x.astype("float64")
    peer, (values, vectors) = seconds(
        lambda: mc.linalg.eigh(mc.kernel_matrix(mc.gauss(bandwidth=1.0), wide))
    )
    turned = vectors.T @ y[:, 0].astype("float64")
    shrunk = ridges[:, None] / (values + ridges[:, None])
    exact = ((shrunk * turned) ** 2).mean(1) / shrunk.mean(1) ** 2
    notes = {"largest error of GCV": f"{abs(scores / exact - 1).max():.2%}", "shared": products}
    return Result(ours / unit, peer / unit, notes, "products")


def published(sets: Sets, name: str) -> Result:
    """The error with published length scales."""
    signal, noise, scales = PUBLISHED[name]
    options = {"bandwidth": 1.0, "alpha": (noise / signal) ** 2}
    options["metric"] = 1 / np.array(scales.split(), float) ** 2
    x, y, xt, yt = sets.load(name, 15000, dtype="float32")
    model = KernelRidge("matern32", random_state=0, **options)
    ours, _ = seconds(lambda: model.fit(x, y))
    notes = {"RMSE": f"{rmse(model.predict(xt), yt):.4f}", "solver": model.solver_}
    notes |= {"products": model.n_iter_, "residual": f"{model.residual_:.1e}"}
    return Result(ours, None, notes)


PROBLEMS = [
    ("protein", 10000, 1.0, 0.1), ("kin40k", 10000, 2.0, 0.01), ("pol", 8000, 3.0, 0.01),
    ("elevators", 8000, 4.0, 0.1),
]  # fmt: skip


def rows() -> dict[str, Callable[[Sets], Result]]:
    found = {
        f"protein 6000, {dtype}, with scikit-learn": partial(against_scikit_learn, dtype=dtype)
        for dtype in ("float64", "float32")
    }
    for name, n, bandwidth, ridge in PROBLEMS:
        found[f"{name} {n}, to 1e-4, with nystrom"] = partial(
            to_residual, name=name, n=n, bandwidth=bandwidth, ridge=ridge
        )
    for name in ("elevators", "pol", "bike"):
        found[f"{name} 6000, rough, with the bare ridge"] = partial(without_what_is_left, name=name)
    found["protein 5000, GCV of 7 ridges, with eigh"] = path_of_ridges
    for name in PUBLISHED:
        found[f"{name} 15000, published length scales"] = partial(published, name=name)
    return found
