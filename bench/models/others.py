"""Densities, components, neighbours, permutations, and predictions of support vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable

import mercer as mc
import numpy as np
from bench_models import Result, Sets, seconds
from mercer import models


def density(sets: Sets, kernel: str = "gaussian", bandwidth: float = 0.5) -> Result:
    """12000 points of protein, 1000 queries. The tree's sums lose digits in tails."""
    from sklearn.neighbors import KernelDensity

    x, _, queries, _ = sets.load("protein", 12000)
    queries = queries[:1000]
    ours = models.KernelDensity(bandwidth=bandwidth, kernel=kernel).fit(x)
    peer = KernelDensity(bandwidth=bandwidth, kernel=kernel).fit(x)
    known_time, known = seconds(lambda: peer.score_samples(queries))
    time, found = seconds(lambda: ours.score_samples(queries), 3)
    ok = np.isfinite(known) & np.isfinite(found)
    exact = _dense(x, queries, bandwidth) if kernel == "gaussian" else found
    notes = {
        "median difference": np.median(abs(found - known)[ok]),
        "error": np.abs(found - exact)[ok].max(),
        "peer's error": np.abs(known - exact)[ok].max(),
    }
    return Result(time, known_time, {name: f"{value:.1e}" for name, value in notes.items()})


def _dense(x: np.ndarray, queries: np.ndarray, h: float) -> np.ndarray:
    from scipy.special import logsumexp

    logs = np.stack([logsumexp(-np.square(q - x).sum(1) / (2 * h * h)) for q in queries])
    d = x.shape[1]
    return logs - np.log(len(x)) - d * np.log(h) - 0.5 * d * np.log(2 * np.pi)


def components(sets: Sets, dtype: str = "float64") -> Result:
    """3000 points of protein, 30 components of a Gauss kernel."""
    from sklearn.decomposition import KernelPCA

    x, _, _, _ = sets.load("protein", 3000, dtype=dtype)
    ours = models.KernelPCA(30, kernel="rbf", gamma=0.125)
    peer = KernelPCA(30, kernel="rbf", gamma=0.125)
    known_time, _ = seconds(lambda: peer.fit(x), 3)
    time, _ = seconds(lambda: ours.fit(x), 9)
    gap = np.abs(ours.eigenvalues_ / peer.eigenvalues_ - 1).max()
    a, b = ours._scores(), peer.eigenvectors_ * np.sqrt(peer.eigenvalues_)
    scores = np.abs(a * np.sign((a * b).sum(0)) - b).max()
    return Result(time, known_time, {"eigenvalues": f"{gap:.1e}", "scores": f"{scores:.1e}"})


def support(sets: Sets) -> Result:
    """Predictions of a support vector regression: a product of a kernel with dual coefficients."""
    from sklearn.svm import SVR

    x, y, queries, _ = sets.load("protein", 6000)
    peer = SVR(gamma=0.5).fit(x, y)
    known_time, known = seconds(lambda: peer.predict(queries))
    points, coef = peer.support_vectors_, peer.dual_coef_[0]

    def predict() -> np.ndarray:
        return mc.kernel_product("rbf", queries, points, coef, gamma=0.5) + peer.intercept_

    time, found = seconds(predict, 3)
    return Result(time, known_time, {"difference": f"{np.abs(found - known).max():.1e}"})


def neighbours(
    sets: Sets, name: str = "protein", n: int = 40000, dtype: str = "float64", search: str = "brute"
) -> Result:
    """Five neighbours of 2000 points."""
    from sklearn.neighbors import NearestNeighbors

    x, _, queries, _ = sets.load(name, n, dtype=dtype)
    queries = queries[:2000]
    peer = NearestNeighbors(n_neighbors=5, algorithm=search).fit(x)
    ours = models.KNeighborsTransformer(n_neighbors=5).fit(x)
    known_time, known = seconds(lambda: peer.kneighbors(queries))
    time, found = seconds(lambda: ours.kneighbors(queries), 2)
    same = np.mean([set(a) == set(b) for a, b in zip(found[1], known[1], strict=True)])
    return Result(time, known_time, {"same sets": f"{same:.4f}"})


def permutations(sets: Sets, n: int = 1000) -> Result:
    """MMD of two samples with 1000 permutations; the peer is the dense formula in NumPy."""
    x, _, y, _ = sets.load("protein", n)
    y = y[:n]
    test = models.MMD(bandwidth=1.0, random_state=0)
    time, found = seconds(lambda: test.test(x, y), 2)

    def dense() -> np.ndarray:
        z = np.concatenate([x, y])
        k = np.exp(-((z[:, None] - z[None]) ** 2).sum(-1) / 2)
        np.fill_diagonal(k, 0)
        rng, values = np.random.RandomState(0), []
        for _ in range(1000):
            order = rng.permutation(2 * n)
            a, b = order[:n], order[n:]
            within = k[a][:, a].sum() + k[b][:, b].sum()
            values.append(within / (n * (n - 1)) - 2 * k[a][:, b].sum() / n**2)
        return np.array(values)

    known_time, known = seconds(dense)
    return Result(time, known_time, {"difference": f"{np.abs(found.null - known).max():.1e}"})


def independence(sets: Sets, n: int = 1000) -> Result:
    """HSIC of pairs with 1000 permutations; the peer gathers the rows and columns in NumPy."""
    x, y, _, _ = sets.load("protein", n)
    test = models.HSIC(bandwidth_x=1.0, bandwidth_y=1.0, random_state=0)
    time, found = seconds(lambda: test.test(x, y[:, None]), 2)

    def dense() -> np.ndarray:
        k, other = (np.exp(-((a[:, None] - a[None]) ** 2).sum(-1) / 2) for a in (x, y[:, None]))
        np.fill_diagonal(k, 0)
        np.fill_diagonal(other, 0)
        a, b, rng, values = k.sum(0), other.sum(0), np.random.RandomState(0), []
        bound = a.sum() * b.sum() / ((n - 1) * (n - 2))
        for _ in range(1000):
            order = rng.permutation(n)
            trace = np.vdot(k, other[order][:, order])
            values.append((trace + bound - 2 / (n - 2) * (a @ b[order])) / (n * (n - 3)))
        return np.array(values)

    known_time, known = seconds(dense)
    return Result(time, known_time, {"difference": f"{np.abs(found.null - known).max():.1e}"})


def rows() -> dict[str, Callable[[Sets], Result]]:
    found: dict[str, Callable[[Sets], Result]] = {
        "KernelDensity 12000 x 1000 x 9": density,
        "KernelDensity 12000 x 1000 x 9 epanechnikov": functools.partial(
            density, kernel="epanechnikov", bandwidth=2.0
        ),
        "KernelPCA 3000, 30 components": components,
        "KernelPCA 3000, 30 components float32": functools.partial(components, dtype="float32"),
        "SVR.predict 6000 x 4573 x 9": support,
        "MMD 1000 + 1000, 1000 permutations": permutations,
        "HSIC 1000, 1000 permutations": independence,
    }
    for name, n in (("protein", 40000), ("kin40k", 36000), ("elevators", 14000), ("pol", 13500)):
        for dtype in ("float64", "float32"):
            for search in ("brute", "kd_tree"):
                found[f"kneighbors {name} {n} {dtype} {search}"] = functools.partial(
                    neighbours, name=name, n=n, dtype=dtype, search=search
                )
    return found
