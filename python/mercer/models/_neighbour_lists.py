"""The smallest distances of rows that are given."""

from __future__ import annotations

from typing import Any

import numpy as np

from mercer.models._arrays import Space


def smallest(distances: Any, count: int, space: Space) -> tuple[Any, Any]:
    """(values, indices) [m, count] of the smallest of each row [m, n], ascending, ties by index."""
    if space.library == "torch":
        order = distances.argsort(dim=1, stable=True)
    else:  # CuPy's sort is stable and takes no word for it
        order = distances.argsort(1, **({"kind": "stable"} if space.library == "numpy" else {}))
    order = order[:, :count]
    return distances[space.index(np.arange(distances.shape[0])[:, None]), order], order
