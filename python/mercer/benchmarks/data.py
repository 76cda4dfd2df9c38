"""The data of a benchmark: the same points for all, converted before the clock runs."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


class Case:
    """Points x [M, K] and z [N, K], and a right-hand side v [N]."""

    def __init__(self, m: int, n: int, k: int, dtype: str = "float32", seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.shape = (m, n, k)
        self.dtype = dtype
        self.x = rng.standard_normal((m, k)).astype(dtype)
        self.z = rng.standard_normal((n, k)).astype(dtype)
        self.v = rng.standard_normal(n).astype(dtype)

    @functools.cached_property
    def out(self) -> np.ndarray:
        """An output for pairwise calls, touched once so that no call pays for its pages."""
        return np.zeros(self.shape[:2], self.dtype)

    @functools.cached_property
    def out64(self) -> np.ndarray:
        return np.zeros(self.shape[:2])

    @functools.cached_property
    def x64(self) -> np.ndarray:
        return self.x.astype(np.float64)

    @functools.cached_property
    def z64(self) -> np.ndarray:
        return self.z.astype(np.float64)

    @functools.cached_property
    def tx(self) -> Any:
        import torch

        return torch.from_numpy(self.x)

    @functools.cached_property
    def tz(self) -> Any:
        import torch

        return torch.from_numpy(self.z)

    @property
    def elements(self) -> float:
        """M * N * K."""
        m, n, k = self.shape
        return float(m) * n * k
