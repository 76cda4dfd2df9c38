"""The smallest distances of rows that are given."""

from __future__ import annotations

from typing import Any

import numpy as np

from mercer.models._arrays import Space


def smallest(distances: Any, count: int, space: Space) -> tuple[Any, Any]:
    """(values, indices) [m, count] of the smallest of each row [m, n], ascending, ties by index."""
    stable: dict[str, Any] = {"kind": "stable"} if space.library != "torch" else {"stable": True}
    axis = {"axis": 1} if space.library != "torch" else {"dim": 1}
    order = distances.argsort(**axis, **stable)[:, :count]
    return distances[space.index(np.arange(distances.shape[0])[:, None]), order], order
