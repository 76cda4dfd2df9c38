"""Fits on a GPU, of PyTorch's tensors there: seconds by the clock, each row after a first run.

Every row waits for the device before and after; "first" is that of the process, with the making of
code. ``--divide 20 --device cpu`` runs the rows in small on the host, to see that they are right.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mercer as mc
import numpy as np
from bench_models import Result, Sets, Skipped, rmse
from mercer import models
from mercer.models import _gp_exact, _low_rank
from mercer.models._arrays import Space
from mercer.models._kernels import fit_kernel
from mercer.models._solve import System

from models._flights import flights
from models.gp import gpytorch_step, start
from models.ridge import PUBLISHED


@dataclass
class Timed:
    """Seconds of the first run and of a later one, and what it gave."""

    first: float
    warm: float
    value: Any

    def result(self, peer: float | None, bar: str, **notes: Any) -> Result:
        return Result(self.warm, peer, {"bar": bar, "first": f"{self.first:.3g}", **notes})


def device_of(sets: Sets) -> str:
    """ "cuda:0", or "cpu" where it is asked for."""
    import torch

    if sets.device == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise Skipped("PyTorch sees no CUDA device")
    gc.collect()
    torch.cuda.empty_cache()
    return "cuda:0"


def tensors(device: str, *arrays: Any) -> list[Any]:
    import torch

    return [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays]


def wait(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def seconds(function: Callable[[], Any], device: str) -> tuple[float, Any]:
    wait(device)
    begin = time.perf_counter()
    value = function()
    wait(device)
    return time.perf_counter() - begin, value


def timed(function: Callable[[], Any], device: str) -> Timed:
    """The first run, and the best of three later ones, or of as many as five seconds have."""
    first, _ = seconds(function, device)
    runs = [seconds(function, device)]
    while len(runs) < 3 and sum(run[0] for run in runs) < 5:
        runs.append(seconds(function, device))
    return Timed(first, *min(runs, key=lambda run: run[0]))


def host(a: Any) -> np.ndarray:
    return a.cpu().numpy()


def attempted(run: Callable[[], Any], instead: Any, notes: dict[str, Any]) -> Any:
    """What a peer gives, or else what stands for it, and its error among the notes."""
    try:
        return run()
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        notes["peer's error"] = f"{type(error).__name__}: {first[:100]}"
        return instead


def likelihood(sets: Sets) -> Result:
    """elevators, its rows repeated with a jitter, compared with GPyTorch's Cholesky."""
    device = device_of(sets)
    n, rng = 32768 // sets.divide, np.random.default_rng(0)
    x, y, _, _ = sets.load("elevators", dtype="float32")
    rows = np.arange(n) % len(x)
    x = (x[rows] + 0.1 * rng.standard_normal((n, x.shape[1]))).astype("float32")
    y = (y[rows] + 0.1 * rng.standard_normal(n)).astype("float32")
    x, y = tensors(device, x, y)
    given = _gp_exact.problem(Space("torch", device, "float32"), mc.gauss(bandwidth=1.0), x, y)
    function, theta = _gp_exact.ExactLikelihood(given), start(x.shape[1])
    ours = timed(lambda: function(theta), device)
    value, slope = ours.value
    notes = {}
    for name, invert in (
        ("inverse", functools.partial(_gp_exact.inverse_of_factor, space=given.space)),
        ("cho_inverse", functools.partial(mc.linalg.cho_inverse, overwrite_factor=True)),
    ):
        factor, found = seconds(lambda: function.factored(theta).factor, device)
        inverse, _ = seconds(functools.partial(invert, found), device)
        notes |= {"factor": f"{factor:.3g}", name: f"{inverse:.3g}"}
    device_of(sets)
    peer = attempted(lambda: timed(gpytorch_step(x, y), device), None, notes)
    if peer is None:
        return ours.result(None, "1 s", value=f"{value:.1f}", **notes)
    expected, lengths = peer.value
    off = abs(slope[1:-1] - lengths).max() / abs(lengths).max()
    return ours.result(
        peer.warm, "1 s", value=f"{value:.1f} / {expected:.1f}", gradient=f"{off:.1e}", **notes
    )


def leaf(sets: Sets, n: int) -> tuple[np.ndarray, ...]:
    """n points of 50 features, of which eight count, and 2000 to validate with."""
    rng, held = np.random.default_rng(0), 2000
    x = rng.standard_normal((n + held, 50)).astype("float32")
    y = np.sin(x[:, 0] + x[:, 1]) + x[:, 2] * x[:, 3] + np.tanh(x[:, 4:8].sum(1))
    y = (y + 0.1 * rng.standard_normal(len(y))).astype("float32")
    return x[:n], y[:n], x[n:], y[n:]


def machine(sets: Sets, solver: str) -> Result:
    """A leaf of 60000 x 50 in five rounds, compared with xRFM's own class on the same device."""
    device = device_of(sets)
    x, y, xv, yv = tensors(device, *leaf(sets, 60000 // sets.divide))
    model = models.RFMRegressor(
        bandwidth=10.0, alpha=1e-3, n_rounds=5, early_stopping=False, solver=solver, random_state=0
    )
    ours = timed(lambda: model.fit(x, y, X_val=xv, y_val=yv), device)
    error = rmse(host(model.predict(xv)), host(yv))
    notes = {"solver": [row["solver"] for row in model.history_]}
    notes |= {"products": [row["n_iter"] for row in model.history_]}
    notes |= {"residuals": [f"{row['residual']:.0e}" for row in model.history_]}
    device_of(sets)
    peer, other = None, np.nan
    if solver == "auto":
        peer, other = attempted(lambda: _xrfm(device, x, y, xv, yv), (None, np.nan), notes)
    return ours.result(peer, "5 s, 5x", RMSE=f"{error:.5f} / {other:.5f}", **notes)


def _xrfm(device: str, x: Any, y: Any, xv: Any, yv: Any) -> tuple[float, float]:
    """(seconds of a fit by its default solver, its error)."""
    from xrfm.rfm_src import RFM

    peer = RFM("l2", bandwidth=10.0, exponent=1.0, iters=5, device=device.partition(":")[0],
               verbose=False, tuning_metric="mse")  # fmt: skip
    some = x[:1000], y[:1000, None]
    options = {"reg": 1e-3, "iters": 5, "early_stop_rfm": False}
    peer.fit(some, (xv, yv[:, None]), **options | {"iters": 1})
    time, _ = seconds(lambda: peer.fit((x, y[:, None]), (xv, yv[:, None]), **options), device)
    return time, rmse(host(peer.predict(xv))[:, 0], host(yv))


def delayed(sets: Sets, n: int, compares: bool) -> Result:
    """Flights that arrive late, by kernel logistic regression; xRFM's dense Newton steps."""
    device, n = device_of(sets), n // sets.divide
    x, delay = flights(sets.folder)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:n], order[-8000:]
    x = ((x - x[train].mean(0)) / x[train].std(0)).astype("float32")
    y = (delay > 0).astype("float32")
    mine, labels, queries, truth = tensors(device, x[train], y[train], x[test], y[test])
    model = models.KernelLogisticRegression(bandwidth=2.0, random_state=0)
    ours = timed(lambda: model.fit(mine, labels), device)
    notes = {"steps": model.n_iter_, "products": model.n_products_, "solver": model.solver_}
    peer, value = None, np.nan
    if compares:
        peer, value = attempted(lambda: _dense_newton(device, mine, labels), (None, np.nan), notes)
    return ours.result(
        peer, "2 s", objective=f"{model.objective_:.3f} / {value:.3f}",
        accuracy=f"{model.score(queries, truth):.4f}", **notes,
    )  # fmt: skip


def _dense_newton(device: str, x: Any, labels: Any) -> tuple[float, float]:
    """(seconds of xRFM's Newton steps, the objective that they reach)."""
    import torch
    from xrfm.rfm_src.kernel_log_reg import kernel_log_solve

    formula = mc.gauss(bandwidth=2.0)

    def solve() -> Any:
        k = mc.kernel_matrix(formula, x)
        return kernel_log_solve(k, labels, reg=0.5, max_iters=12, tol=1e-4)[:, 0]

    solve()
    peer, a = seconds(solve, device)
    a = a.double()
    f = mc.kernel_product(formula, x.double(), None, a)
    loss = torch.nn.functional.softplus(f).sum() - labels.double() @ f
    return peer, float(loss + 0.5 * a @ f)


def notes_of(model: Any) -> dict[str, Any]:
    return {
        "solver": model.solver_, "products": model.n_iter_, "residual": f"{model.residual_:.1e}",
    }  # fmt: skip


def exact(sets: Sets) -> Result:
    """All rows of the flights, exact."""
    device = device_of(sets)
    x, y, xt, yt = _flights_of(sets, device)
    model = models.KernelRidge(bandwidth=2.0, alpha=1.0, random_state=0)
    ours = timed(lambda: model.fit(x, y), device)
    error = rmse(host(model.predict(xt)), yt)
    notes = {"RMSE": f"{error:.4f}", **notes_of(model)}
    return _against_plain_steps(sets, device, ours, "6 s", notes, x, y[:, None], 2.0, 1.0)


def _against_plain_steps(sets: Sets, device: str, ours: Timed, bar: str, notes: dict[str, Any],
                         x: Any, y: Any, bandwidth: float, alpha: float) -> Result:  # fmt: skip
    """PyTorch gets the same factor, and its making for nothing."""
    from models import _plain

    making, inverse = seconds(lambda: _factor(x, device, bandwidth, alpha), device)
    notes["factor"] = f"{making:.3g}"
    device_of(sets)
    peer = attempted(
        lambda: _plain.ridge(x, y, bandwidth, alpha, inverse, 1e-3, sets.cap), None, notes
    )
    if peer is None:
        return ours.result(None, bar, **notes)
    return ours.result(peer.seconds, bar, **notes, plain=peer)


def _flights_of(sets: Sets, device: str) -> tuple[Any, Any, Any, np.ndarray]:
    n = None if sets.divide == 1 else 294_612 // sets.divide
    x, y, xt, yt = sets.load("flights", n, dtype="float32")
    return *tensors(device, x, y, xt), yt


def _factor(x: Any, device: str, bandwidth: float, alpha: float) -> Callable[[Any], Any]:
    """The preconditioner of `KernelRidge`, for any products."""
    space = Space("torch", device, "float32")
    system = System(fit_kernel("gauss", x, space, bandwidth=bandwidth), x, space, alpha)
    return _low_rank.preconditioner(system, "auto", 0)


def centred(sets: Sets) -> Result:
    """All rows of the flights by 10000 centres."""
    from models import _plain

    device = device_of(sets)
    x, y, xt, yt = _flights_of(sets, device)
    options = {"bandwidth": 2.0, "alpha": 1.0, "tol": 1e-3}
    model = models.KernelRidge(
        centers=10_000 // sets.divide, solver="falkon", random_state=0, **options
    )
    ours = timed(lambda: model.fit(x, y), device)
    z = model.centers_
    error, notes = rmse(host(model.predict(xt)), yt), notes_of(model)

    def run() -> Any:
        return _plain.falkon(x, y[:, None], z, cap=sets.cap, **options)

    attempted(run, None, notes)
    peer = attempted(run, None, notes)
    if peer is None:
        return ours.result(None, "0.3 s", RMSE=f"{error:.4f}", **notes)
    other = rmse(host(_plain.product(xt, z, peer.coef, 2.0))[:, 0], yt)
    return ours.result(
        peer.seconds, "0.3 s", RMSE=f"{error:.4f} / {other:.4f}", **notes, plain=peer
    )


def many_outputs(sets: Sets, solver: str = "auto") -> Result:
    """1e5 points of 64 features with 16 outputs; a ridge of 1e-6 n."""
    device, n = device_of(sets), 100_000 // sets.divide
    x, y = tensors(device, *_synthetic(n, 16))
    options = {"bandwidth": 8.0, "alpha": 1e-6 * n}
    model = models.KernelRidge(solver=solver, random_state=0, **options)
    ours = timed(lambda: model.fit(x, y), device)
    notes = notes_of(model)
    if solver != "auto":
        return ours.result(None, "3.5 s", **notes)
    product = functools.partial(mc.kernel_product, mc.gauss(bandwidth=8.0), x, None, y)
    notes["product"] = f"{timed(product, device).warm:.3g}"
    if importlib.util.find_spec("pykeops") is not None:
        keops = attempted(lambda: timed(_keops(x, y, 8.0), device).warm, np.nan, notes)
        notes["KeOps' product"] = f"{keops:.3g}"
    return _against_plain_steps(sets, device, ours, "2 s", notes, x, y, *options.values())


def _keops(x: Any, v: Any, bandwidth: float) -> Callable[[], Any]:
    from pykeops.torch import LazyTensor

    squares = ((LazyTensor(x[:, None]) - LazyTensor(x[None])) ** 2).sum(-1)
    matrix = (squares * (-0.5 / bandwidth**2)).exp()
    return lambda: matrix @ v


def million(sets: Sets, solver: str) -> Result:
    """1e6 points of 64 features to a residual of 1e-2; one run alone, which makes its code too."""
    device, n = device_of(sets), 1_000_000 // sets.divide
    x, y = tensors(device, *_synthetic(n, 1))
    model = models.KernelRidge(
        bandwidth=8.0, alpha=1e-6 * n, tol=1e-2, solver=solver, random_state=0
    )
    time, _ = seconds(lambda: model.fit(x, y), device)
    return Result(time, None, {"bar": "90 s", **notes_of(model)})


def _synthetic(n: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 64), dtype="float32")
    w = rng.standard_normal((64, outputs), dtype="float32") / 8
    y = np.sin(3 * x @ w) + 0.1 * rng.standard_normal((n, outputs), dtype="float32")
    return x, y.astype("float32")


def published(sets: Sets, name: str, best: float) -> Result:
    """A whole set with published length scales."""
    device = device_of(sets)
    signal, noise, scales = PUBLISHED[name]
    n = None if sets.divide == 1 else 30_000 // sets.divide
    x, y, xt, yt = sets.load(name, n, dtype="float32")
    x, y, xt = tensors(device, x, y, xt)
    model = models.KernelRidge(
        "matern32", bandwidth=1.0, alpha=(noise / signal) ** 2, random_state=0,
        metric=1 / np.array(scales.split(), float) ** 2,
    )  # fmt: skip
    ours = timed(lambda: model.fit(x, y), device)
    error = rmse(host(model.predict(xt)), yt)
    return ours.result(None, f"1 s, RMSE {best}", n=len(x), RMSE=f"{error:.4f}", **notes_of(model))


def captured(sets: Sets, n: int) -> Result:
    """Seven ridges and three bandwidths in one CUDA graph, which is replayed on other targets,
    compared with the same fit outside; "cg" is the fit that looks at its numbers."""
    import torch

    device = device_of(sets)
    if device == "cpu":
        raise Skipped("a CUDA graph needs a GPU")
    x, y, *_ = sets.load("protein", n, dtype="float32")
    x, y = tensors(device, x, y)
    options = {"alphas": np.logspace(-2, 1, 7), "bandwidths": (0.5, 1.0, 2.0), "random_state": 0}
    model = models.KernelRidgeCV(bandwidth=1.0, solver="fixed", tol=1e-2, **options)
    other = models.KernelRidgeCV(bandwidth=1.0, solver="cg", tol=1e-2, **options)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        first, _ = seconds(lambda: model.fit(x, y), device)
    with torch.cuda.graph(graph, stream=stream):
        model.fit(x, y)
    found = model.dual_coef_, model.alpha_, model.bandwidth_, model.residual_
    y.copy_(y.flip(0).roll(7) + torch.sin(3 * x[:, 0]))
    replay = timed(graph.replay, device)
    coef, alpha, width, residual = (value.clone() for value in found)
    outside = timed(lambda: model.fit(x, y), device)
    off = abs(model.dual_coef_ - coef).max() / abs(coef).max()
    looks = timed(lambda: other.fit(x, y), device)
    notes = {"alpha": f"{float(alpha):.3g} / {other.alpha_:.3g}"}
    notes |= {"bandwidth": f"{float(width):.3g} / {other.bandwidth_:.3g}"}
    notes |= {"residual": f"{float(residual):.1e}", "difference": f"{float(off):.1e}"}
    gap = abs(host(model.cv_results_["scores"]) / other.cv_results_["scores"] - 1)
    gap = gap[np.isfinite(gap)]  # what tol was missed by has no score
    notes |= {"scores": f"{gap.max():.1%}", "scored": gap.size, "cg": f"{looks.warm:.3g}"}
    return Result(replay.warm, outside.warm, {"first": f"{first:.3g}", **notes})


def rows() -> dict[str, Callable[[Sets], Result]]:
    found: dict[str, Callable[[Sets], Result]] = {
        "protein 2000, path and bandwidths in a graph": functools.partial(captured, n=2000),
        "protein 20000, path and bandwidths in a graph": functools.partial(captured, n=20_000),
        "GP value and gradient, 32768 x 18": likelihood,
        "flights delayed, n 100000": functools.partial(delayed, n=100_000, compares=False),
        "flights delayed, n 20000, with xRFM": functools.partial(delayed, n=20_000, compares=True),
        "flights 294612, 10000 centres": centred,
        "1e5 x 64, 16 outputs": many_outputs,
        "1e5 x 64, 16 outputs, direct": functools.partial(many_outputs, solver="direct"),
    }
    bars = {"elevators": 0.363, "pol": 0.088, "bike": 0.053, "protein": 0.548}
    for name, best in bars.items():
        found[f"{name}, published length scales"] = functools.partial(
            published, name=name, best=best
        )
    for solver in ("auto", "direct"):
        found[f"RFM 60000 x 50, {solver}"] = functools.partial(machine, solver=solver)
    found["flights 294612, exact"] = exact
    for solver in ("sap", "cg"):
        found[f"long: 1e6 x 64, {solver}"] = functools.partial(million, solver=solver)
    return found
