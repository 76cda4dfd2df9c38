"""Gaussian processes: a value of the likelihood with its gradient, fits, inducing points."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import mercer as mc
import numpy as np
from bench_models import Result, Sets, rmse, seconds
from mercer import models
from mercer.models import _gp_exact
from mercer.models._arrays import Space

BOUNDS = {"amplitude": (1e-3, 1e3), "lengthscale": (1e-2, 1e3), "noise": (1e-5, 10.0)}


def start(d: int) -> np.ndarray:
    return np.log(np.r_[1.0, np.full(d, 2.0), 0.1])


def peer(d: int, optimize: bool) -> Any:
    """scikit-learn's with the same parameters, starts and bounds."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0, BOUNDS["amplitude"]) * RBF(np.full(d, 2.0), BOUNDS["lengthscale"])
    kernel = kernel + WhiteKernel(0.1, BOUNDS["noise"])
    return GaussianProcessRegressor(
        kernel, alpha=0, optimizer="fmin_l_bfgs_b" if optimize else None
    )


def likelihood(x: np.ndarray, y: np.ndarray, dtype: str) -> Callable[[], Any]:
    space = Space(dtype=dtype)
    given = _gp_exact.problem(space, mc.gauss(bandwidth=1.0), space.array(x), space.array(y))
    function, theta = _gp_exact.ExactLikelihood(given), start(x.shape[1])
    function(theta)
    return lambda: function(theta)


def evaluation(sets: Sets, dtype: str = "float64") -> Result:
    """elevators, 1500 points."""
    x, y, _, _ = sets.load("elevators", 1500)
    model = peer(x.shape[1], False).fit(x, y)
    theta = model.kernel_.theta
    known_time, known = seconds(lambda: model.log_marginal_likelihood(theta, eval_gradient=True))
    time, found = seconds(likelihood(x, y, dtype), 5)
    error = abs(found[1] - known[1]).max() / abs(known[1]).max()
    return Result(time, known_time, {"value": f"{found[0]:.6f}", "gradient": f"{error:.1e}"})


def gpytorch_step(points: Any, targets: Any) -> Callable[[], tuple[float, np.ndarray]]:
    """GPyTorch's log likelihood by a Cholesky factor, and its gradient by the logarithms of the
    length scales, at the parameters of `start`."""
    import gpytorch

    d = points.shape[1]

    class Model(gpytorch.models.ExactGP):
        def __init__(self, noise: Any) -> None:
            super().__init__(points, targets, noise)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=d))

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    noise = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(noise).to(points)
    scales = model.kernel.base_kernel
    model.kernel.outputscale, scales.lengthscale, noise.noise = 1.0, 2.0, 0.1
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(noise, model)
    model.train()
    noise.train()

    def step() -> tuple[float, np.ndarray]:
        with gpytorch.settings.max_cholesky_size(10**6):
            loss = -marginal(model(points), targets)
            model.zero_grad()
            loss.backward()
        raw, n = scales.raw_lengthscale, len(targets)
        by_logarithm = raw.grad / raw.sigmoid() * scales.lengthscale
        return -loss.item() * n, -n * by_logarithm.detach().cpu().numpy()[0].astype(float)

    return step


def evaluation_of_gpytorch(sets: Sets, dtype: str = "float64") -> Result:
    """elevators, 1500 points, GPyTorch's Cholesky in float64."""
    import torch

    torch.set_num_threads(1)
    x, y, _, _ = sets.load("elevators", 1500)
    step = gpytorch_step(torch.from_numpy(x), torch.from_numpy(y))
    step()
    known_time, (known, lengths) = seconds(step, 3)
    time, found = seconds(likelihood(x, y, dtype), 5)
    off = abs(found[1][1:-1] - lengths).max() / abs(lengths).max()
    notes = {"value": f"{found[0]:.4f}", "peer's": f"{known:.4f}", "gradient": f"{off:.1e}"}
    return Result(time, known_time, notes)


def fit(sets: Sets, name: str, n: int) -> Result:
    """A whole fit with a length scale for each feature."""
    x, y, x_test, y_test = sets.load(name, n)
    ours = models.GaussianProcessRegressor(
        "gauss", lengthscale=2.0, bounds=BOUNDS, normalize_y=False
    )
    time, _ = seconds(lambda: ours.fit(x, y), 3)
    other = peer(x.shape[1], True)
    known_time, _ = seconds(lambda: other.fit(x, y))
    mean, std = ours.predict(x_test, return_std=True, include_noise=True)
    notes = {
        "likelihood": f"{ours.log_marginal_likelihood_value_:.6f}",
        "peer's": f"{other.log_marginal_likelihood_value_:.6f}",
        "rmse": f"{rmse(mean, y_test):.4f}",
        "nll": f"{_nll(mean, std, y_test):.4f}",
    }
    return Result(time, known_time, notes)


def _nll(mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean(0.5 * np.log(2 * math.pi * std**2) + 0.5 * ((y - mean) / std) ** 2))


def many(sets: Sets, name: str, n: int, **options: Any) -> Result:
    """Fits beyond the sizes of an exact one, without a peer."""
    x, y, x_test, y_test = sets.load(name, n, dtype="float32")
    make = models.SparseGaussianProcessRegressor if "n_inducing" in options else (
        models.GaussianProcessRegressor
    )  # fmt: skip
    model = make(random_state=0, **options)
    time, _ = seconds(lambda: model.fit(x, y))
    mean, std = model.predict(x_test[:1000], return_std=True, include_noise=True)
    notes = {"rmse": f"{rmse(mean, y_test[:1000]):.4f}", "iterations": model.n_iter_}
    return Result(time, None, notes | {"nll": f"{_nll(mean, std, y_test[:1000]):.4f}"})


def rows() -> dict[str, Callable[[Sets], Result]]:
    found: dict[str, Callable[[Sets], Result]] = {}
    for dtype in ("float64", "float32"):
        name = f"value and gradient, elevators 1500 {dtype}"
        found[name] = functools.partial(evaluation, dtype=dtype)
        found[f"{name}, gpytorch"] = functools.partial(evaluation_of_gpytorch, dtype=dtype)
    for name, n in (("concrete", 900), ("airfoil", 1300)):
        found[f"fit with length scales, {name} {n}"] = functools.partial(fit, name=name, n=n)
    found["300 inducing points, kin40k 20000"] = functools.partial(
        many, name="kin40k", n=20000, n_inducing=300, max_iter=50
    )
    return found
