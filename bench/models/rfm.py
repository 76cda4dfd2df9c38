"""Recursive feature machines against xRFM, with the same validation data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from bench_models import Result, Sets, rmse, seconds
from mercer.models import RFMRegressor

ROUNDS = 3


def xrfm_leaf(sets: Sets, name: str, n: int, bandwidth: float, alpha: float,
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


def xrfm_trees(sets: Sets, name: str, leaf: int, bandwidth: float, alpha: float) -> Result:
    """All rows of a set, in leaves; xRFM finds the directions of splits from as many rows too."""
    x, y, xt, yt = sets.load(name, dtype="float32")
    held = min(len(xt) // 2, 2000)
    xv, yv, xt, yt = xt[:held], yt[:held], xt[held:], yt[held:]
    options = {"bandwidth": bandwidth, "alpha": alpha, "n_rounds": ROUNDS, "random_state": 0}
    options |= {"early_stopping": False, "max_leaf_size": leaf}
    RFMRegressor(**options | {"max_leaf_size": 300}).fit(x[:500], y[:500])
    ours, model = seconds(lambda: RFMRegressor(**options).fit(x, y, X_val=xv, y_val=yv))
    fast, predicted = seconds(lambda: model.predict(xt), 3)
    peer, expected, slow = tree_of_peer((x, y, xv, yv), xt, leaf, bandwidth, alpha)
    notes = {
        "rows": len(x), "leaves": len(model.leaves_), "temperature": model.split_temperature_,
        "RMSE": f"{rmse(predicted, yt):.5f} / {rmse(expected, yt):.5f}",
        "predict": f"{slow / fast:.1f}x",
    }  # fmt: skip
    return Result(ours, peer, notes)


def tree_of_peer(data: tuple[np.ndarray, ...], xt: np.ndarray, leaf: int, bandwidth: float,
                 alpha: float) -> tuple[float, np.ndarray, float]:  # fmt: skip
    import torch
    from xrfm import xRFM

    torch.set_num_threads(1)
    model = {"kernel": "l2", "bandwidth": bandwidth, "exponent": 1.0, "diag": False,
             "bandwidth_mode": "constant"}  # fmt: skip
    how = {"reg": alpha, "iters": ROUNDS, "early_stop_rfm": False, "solver": "cholesky"}
    machine = xRFM({"model": model, "fit": how}, max_leaf_size=leaf, device="cpu", verbose=False,
                   tuning_metric="mse", random_state=0)  # fmt: skip
    machine._get_agop_on_subset = partial(machine._get_agop_on_subset, subset_size=3000)
    x, y, xv, yv = (torch.from_numpy(a if a.ndim == 2 else a[:, None]) for a in data)
    time, _ = seconds(lambda: machine.fit(x, y, xv, yv))
    queries = torch.from_numpy(xt)
    slow, predicted = seconds(lambda: machine.predict(queries), 3)
    return time, predicted[:, 0], slow


def rows() -> dict[str, Callable[[Sets], Result]]:
    cases = {
        "elevators": (6000, 10.0, 1e-3),
        "protein": (8000, 5.0, 1e-2),
        "pol": (6000, 10.0, 1e-3),
        "bike": (6000, 10.0, 1e-3),
    }
    trees = {"elevators": (4000, 10.0, 1e-3), "protein": (6000, 5.0, 1e-2)}
    return {
        f"tree of {name}, leaf {case[0]}": partial(
            xrfm_trees, name=name, leaf=case[0], bandwidth=case[1], alpha=case[2]
        )
        for name, case in trees.items()
    } | {
        f"{name} n {case[0]}, {solver}": partial(
            xrfm_leaf, name=name, n=case[0], bandwidth=case[1], alpha=case[2], solver=solver
        )
        for name, case in cases.items()
        for solver in ("auto", "direct")
    }
