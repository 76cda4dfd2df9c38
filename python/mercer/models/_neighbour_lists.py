"""The smallest distances of rows that are given."""

from __future__ import annotations

from typing import Any

import numpy as np

from mercer.models._arrays import Space


def refuse_negative(distances: Any) -> None:
    """ValueError, in scikit-learn's words, for distances [m, n] that are none."""
    if float(distances.min()) < 0:
        raise ValueError(
            "Negative values in data passed to precomputed distance matrix. Received a distance "
            f"of {float(distances.min()):.6g}"
        )


def smallest(distances: Any, count: int, space: Space) -> tuple[Any, Any]:
    """(values, indices) [m, count] of the smallest of each row [m, n], ascending, ties by index."""
    if space.library == "torch":
        order = distances.argsort(dim=1, stable=True)
    else:  # CuPy's sort is stable and takes no word for it
        order = distances.argsort(1, **({"kind": "stable"} if space.library == "numpy" else {}))
    order = order[:, :count]
    return distances[space.index(np.arange(distances.shape[0])[:, None]), order], order
