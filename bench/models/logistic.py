"""Kernel logistic regression of delayed flights, against the dense Newton steps of xRFM.

The folder of the sets has flights.csv.gz, or the package that it is made of (`_flights`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import mercer as mc
import numpy as np
from bench_models import Result, Sets, seconds
from mercer.models import KernelLogisticRegression

from models._flights import flights


def delayed(sets: Sets, n: int, dtype: str) -> Result:
    x, delay = flights(sets.folder)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:n], order[-8000:]
    x = (x - x[train].mean(0)) / x[train].std(0)
    xt, yt = x[test].astype(dtype), delay[test] > 0
    x, y = x[train].astype(dtype), (delay[train] > 0).astype("float32")
    model = KernelLogisticRegression(bandwidth=2.0, random_state=0)
    model.fit(x[:500], y[:500])  # code is made at the first call
    ours, _ = seconds(lambda: model.fit(x, y), 3)
    peer, value = xrfm(x.astype("float32"), y) if n <= 10_000 else (None, np.nan)
    notes = {
        "objective": f"{model.objective_:.4f} / {value:.4f}",
        "steps": model.n_iter_,
        "products": model.n_products_,
        "accuracy": f"{model.score(xt, yt):.4f}",
    }
    return Result(ours, peer, notes)


def xrfm(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """(seconds, the objective) of the same problem there."""
    import torch
    from xrfm.rfm_src.kernel_log_reg import kernel_log_solve

    torch.set_num_threads(1)

    def solve() -> np.ndarray:
        k = torch.from_numpy(mc.kernel_matrix(mc.gauss(bandwidth=2.0), x))
        target = torch.from_numpy(y)
        return kernel_log_solve(k, target, reg=0.5, max_iters=12, tol=1e-4)[:, 0].numpy()

    time, a = seconds(solve)
    a = a.astype(float)
    f = mc.kernel_product(mc.gauss(bandwidth=2.0), x.astype(float), None, a)
    return time, float(np.logaddexp(0, f).sum() - y @ f + 0.5 * a @ f)


def rows() -> dict[str, Callable[[Sets], Result]]:
    return {
        f"flights delayed, n {n}, {dtype}": partial(delayed, n=n, dtype=dtype)
        for n, dtype in ((6000, "float32"), (6000, "float64"), (36000, "float32"))
    }
