"""How well fits predict what they have not seen: left out one by one, and generalised.

With A = S K S + alpha the leverage of point i is h_i = 1 - alpha (A^-1)_ii, and its residual in a
fit without it is r_i / (1 - h_i). A point of weight w > 1 counts as w points of which one is left
out, h_i / w, as if it were repeated. Generalised cross-validation puts the mean of the h_i in their
place (Golub, Heath, Wahba, 1979), which random signs give without a factor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mercer as mc
from mercer.models import _paths
from mercer.models._solve import System

#: Points up to which eigenvalues serve a path of ridges sooner than products do.
SPECTRUM = {"cpu": 1500, "cuda": 8192}


def mean_inverse(system: System, seed: int, name: str, probes: int = 16) -> float:
    """The mean of the diagonal of A^-1, without a factor; NaN where signs ran out of products.

    name: whose errors are raised.
    """
    ridges = np.array([system.ridge])
    found = _paths.solve(system, system.space.zeros(system.n, 0), ridges, rank="auto", tol=1.0,
                         max_iter=None, probes=probes, seed=seed, name=name)  # fmt: skip
    assert found is not None  # no plan turns
    trace = float(found.traces[0])
    kept = rows_that_count(system)  # a row of weight 0 has 1 / ridge on the diagonal
    return (trace - (system.n - kept) / max(system.ridge, 1e-300)) / max(kept, 1)


def rows_that_count(system: System) -> int:
    """Rows of positive weight: matrices that are given keep the others."""
    return system.n if system.weights is None else int((system.weights > 0).sum())


def left_out(system: System, coef: Any, ridge: float, diagonal: Any) -> Any:
    """y - f [n, k] of each point in a fit without it; diagonal: of A^-1, [n], or its mean."""
    if system.weights is None:
        return coef / (diagonal[:, None] if hasattr(diagonal, "shape") else diagonal)
    w = system.weights
    units = system.space.xp.where(w > 1, w, 1 + 0 * w)
    shares = (1 - 1 / units) / max(ridge, 1e-300) + diagonal / units
    counts = (w > 0)[:, None]
    return system.space.xp.where(counts, coef / ((w + (w == 0)) * shares)[:, None], 0 * coef)


def leave_one_out(system: System, y: Any, ridges: np.ndarray) -> np.ndarray:
    """Mean squared errors [ridges] of y [n, k] left out one by one, exactly, by eigenvalues.

    Infinite where the matrix is not positive definite.
    """
    values, vectors = mc.linalg.eigh(system.matrix(0.0), overwrite_a=True)
    s, lowest = system.scale, float(values[0])
    turned = vectors.T @ (y if s is None else s * y)
    squares, scores = vectors**2, []
    for ridge in map(float, ridges):
        if lowest + ridge <= 0:
            scores.append(np.inf)
            continue
        shrunk = 1 / (values + ridge)
        a = vectors @ (shrunk[:, None] * turned)
        missed = left_out(system, a if s is None else s * a, ridge, squares @ shrunk)
        scores.append(mean_square(system, missed))
    return np.array(scores)


def mean_square(system: System, missed: Any) -> float:
    """Over points, by their weights, and outputs."""
    squares = (missed**2).sum(1)
    if system.weights is None:
        return float(squares.sum()) / (system.n * missed.shape[1])
    total = float(system.weights.sum()) * missed.shape[1]
    return float((system.weights * squares).sum()) / total


def generalised(
    system: System, y: Any, ridges: np.ndarray, *, rank: int | str, tol: float,
    max_iter: int | None, probes: int, seed: int, name: str = "generalised",
) -> tuple[np.ndarray, int]:  # fmt: skip
    """(mean squared errors [ridges], products taken); infinite where tol was missed."""
    s = system.scale
    found = _paths.solve(system, y if s is None else s * y, ridges, rank=rank, tol=tol,
                         max_iter=max_iter, probes=probes, seed=seed, name=name)  # fmt: skip
    assert found is not None  # no plan turns
    scores = np.full(len(ridges), np.inf)
    for i in np.flatnonzero(found.met):
        scores[i] = gcv(system, found.columns[i], float(ridges[i]), float(found.traces[i]))
    return np.where(np.isfinite(scores), scores, np.inf), found.taken


def gcv(system: System, a: Any, ridge: float, trace: float) -> float:
    """Generalised cross-validation for (S K S + ridge) a = S y, a [n, k], and the trace of the
    inverse: the mean square of what is left over the square of its mean share."""
    mass = system.n if system.weights is None else float(system.weights.sum())
    square = float(((ridge * a) ** 2).sum()) / (mass * a.shape[1])
    degrees = system.n - ridge * trace
    return square / (1 - min(degrees / max(mass, rows_that_count(system)), 1 - 1e-12)) ** 2
