"""Recursive feature machines against xRFM, with the same validation data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from bench_models import Result, Sets, rmse, seconds
from mercer.models import RFMRegressor

ROUNDS = 3


def beside_xrfm(sets: Sets, name: str, n: int, bandwidth: float, alpha: float,
                **options: Any) -> Result:  # fmt: skip
    x, y, xt, yt = sets.load(name, n, dtype="float32")
    held = min(len(xt) // 2, 2000)
    xv, yv, xt, yt = xt[:held], yt[:held], xt[held:], yt[held:]
    model = RFMRegressor(bandwidth=bandwidth, alpha=alpha, n_rounds=ROUNDS, early_stopping=False,
                         random_state=0, **options)  # fmt: skip
    RFMRegressor(n_rounds=1).fit(x[:500], y[:500])  # code is made at the first call
    peer, expected, slow = peer_of((x, y), (xv, yv), xt, bandwidth, alpha)
    ours, _ = seconds(lambda: model.fit(x, y, X_val=xv, y_val=yv))
    fast, predicted = seconds(lambda: model.predict(xt), 3)
    notes = {
        "RMSE": f"{rmse(predicted, yt):.5f} / {rmse(expected, yt):.5f}",
        "predict": f"{slow / fast:.1f}x",
        "products": [row["n_iter"] for row in model.history_],
        "solver": model.solver_,
    }
    return Result(ours, peer, notes)


def peer_of(train: Any, held: Any, xt: np.ndarray, bandwidth: float,
            alpha: float) -> tuple[float, np.ndarray, float]:  # fmt: skip
    """(seconds of xRFM's fit, its predictions, seconds of these)."""
    import torch
    from xrfm.rfm_src import RFM

    torch.set_num_threads(1)
    tensors = [(torch.from_numpy(x), torch.from_numpy(y)[:, None]) for x, y in (train, held)]
    machine = RFM("l2", bandwidth=bandwidth, exponent=1.0, iters=ROUNDS, device="cpu",
                  verbose=False, tuning_metric="mse")  # fmt: skip
    fit = partial(machine.fit, *tensors, reg=alpha, iters=ROUNDS, early_stop_rfm=False,
                  solver="cholesky")  # fmt: skip
    time, _ = seconds(fit)
    queries = torch.from_numpy(xt)
    machine.predict(queries[:10])
    slow, predicted = seconds(lambda: machine.predict(queries), 3)
    return time, predicted.numpy()[:, 0], slow


def rows() -> dict[str, Callable[[Sets], Result]]:
    cases = {
        "elevators": (6000, 10.0, 1e-3),
        "protein": (8000, 5.0, 1e-2),
        "pol": (6000, 10.0, 1e-3),
        "bike": (6000, 10.0, 1e-3),
    }
    return {
        f"{name} n {case[0]}, {solver}": partial(
            beside_xrfm, name=name, n=case[0], bandwidth=case[1], alpha=case[2], solver=solver
        )
        for name, case in cases.items()
        for solver in ("auto", "direct")
    }
