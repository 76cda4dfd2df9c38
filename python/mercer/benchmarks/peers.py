"""The peers. Each is ``call(case)(rows)``: the first ``rows`` rows, the fastest way it offers.

Peers with an ``out=`` get one, as Mercer does. SciPy computes in float64 only: it is given float64
data, so that no conversion counts against it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from .data import Case

RowsCall = Callable[[int], object]
Peer = Callable[[Case], RowsCall]


def installed(peer_name: str) -> bool:
    """Whether the library of "library function" can be imported."""
    library = {"scikit-learn": "sklearn"}.get(peer_name.split()[0], peer_name.split()[0])
    return importlib.util.find_spec(library) is not None


def scipy_cdist(metric: str, **options: float) -> Peer:
    """scipy.spatial.distance.cdist."""

    def make(case: Case) -> RowsCall:
        from scipy.spatial.distance import cdist

        x, z, out = case.x64, case.z64, case.out64
        return lambda rows: cdist(x[:rows], z, metric, out=out[:rows], **options)

    return make


def torch_cdist(p: float, mode: str = "use_mm_for_euclid_dist_if_necessary") -> Peer:
    """torch.cdist."""

    def make(case: Case) -> RowsCall:
        import torch

        x, z = case.tx, case.tz
        return lambda rows: torch.cdist(x[:rows], z, p=p, compute_mode=mode)

    return make


def sklearn_pairwise(name: str, **options: object) -> Peer:
    """A function of sklearn.metrics.pairwise."""

    def make(case: Case) -> RowsCall:
        import sklearn.metrics.pairwise

        function, x, z = getattr(sklearn.metrics.pairwise, name), case.x, case.z
        return lambda rows: function(x[:rows], z, **options)

    return make


def sklearn_product(name: str, gamma: float) -> Peer:
    """A scikit-learn kernel matrix, formed and then multiplied."""

    def make(case: Case) -> RowsCall:
        import sklearn.metrics.pairwise

        function, x, z, v = getattr(sklearn.metrics.pairwise, name), case.x, case.z, case.v
        return lambda rows: function(x[:rows], z, gamma=gamma) @ v

    return make


def torch_product(p: float, gamma: float) -> Peer:
    """torch: exp(-gamma * cdist^p) @ v, formed and then multiplied."""

    def make(case: Case) -> RowsCall:
        import torch

        x, z, v = case.tx, case.tz, torch.from_numpy(case.v)

        def call(rows: int) -> Any:
            distance = torch.cdist(x[:rows], z, p=p)
            if p != 1:
                distance = distance.pow_(p)
            return distance.mul_(-gamma).exp_() @ v

        return call

    return make


def numpy_matmul(case: Case) -> RowsCall:
    """numpy's matrix product (OpenBLAS in its wheels)."""
    x, zt, out = case.x, case.z.T, case.out
    return lambda rows: np.matmul(x[:rows], zt, out=out[:rows])


def torch_matmul(case: Case) -> RowsCall:
    """torch's matrix product."""
    x, zt = case.tx, case.tz.T
    return lambda rows: x[:rows] @ zt
