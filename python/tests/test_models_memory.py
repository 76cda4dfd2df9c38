"""Memory is reckoned before a fit; what the error names fits."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from mercer.models import (
    GaussianProcessRegressor,
    KernelLogisticRegression,
    KernelRidge,
    KernelRidgeCV,
    RFMRegressor,
    _memory,
)
from mercer.models._arrays import Space
from sklearn.exceptions import ConvergenceWarning

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(400, 3)), RNG.normal(size=400)
COLUMN = 400 * 8


def refused(estimator, y=Y):
    with pytest.raises(MemoryError) as caught:
        estimator.fit(X, y)
    text = str(caught.value)
    assert text.startswith(f"{type(estimator).__name__}: ")
    assert "of 400 points needs" in text
    return text


def fits(estimator, y=Y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(X, y)


#: (estimator, its y, columns that are solved for together, copies of the factor)
BY_PRODUCTS = [
    (KernelRidge(solver="cg", rank=100), Y, 1, 4),
    (KernelRidge(solver="cg", rank=100), np.stack([Y] * 5, 1), 5, 4),
    (
        KernelRidgeCV(select="gcv", solver="cg", rank=100, alphas=(0.1, 1.0), n_probes=4),
        Y,
        10,
        4,
    ),
    (KernelLogisticRegression(solver="cg", rank=100), (Y > 0) * 1 + (Y > 1), 3, 5),
    (GaussianProcessRegressor(solver="cg", rank=100, optimizer=None, n_probes=4), Y, 5, 4),
]


@pytest.mark.parametrize(
    ("estimator", "y", "columns", "copies"), BY_PRODUCTS,
    ids=[f"{type(row[0]).__name__}{row[2]}" for row in BY_PRODUCTS],
)  # fmt: skip
def test_factors_of_conjugate_gradients(monkeypatch, estimator, y, columns, copies):
    available = COLUMN * (8 * columns + copies * 50) + 7
    monkeypatch.setattr(_memory, "free", lambda space: available)
    text = refused(estimator, y)
    assert "rank=50 or less fits" in text
    assert f"a factor of 100 columns and the vectors of {columns} right-hand sides" in text
    fits(estimator.set_params(rank=50), y)
    fits(estimator.set_params(rank="auto"), y)


def test_vectors_alone_are_too_much(monkeypatch):
    monkeypatch.setattr(_memory, "free", lambda space: COLUMN * 8 - 1)
    centers = int(re.search(r"centers=(\d+) or fewer fit", refused(KernelRidge(solver="cg")))[1])
    fits(KernelRidge(centers=centers))
    refused(KernelRidge(centers=centers + 1))
    text = refused(KernelRidgeCV(select="gcv"))
    assert "Up to 0 columns at a time fit without a factor" in text
    text = refused(GaussianProcessRegressor(solver="cg"))
    assert text.endswith("SparseGaussianProcessRegressor fits")


def test_blocks_of_rows(monkeypatch):
    blocks = 2 * 64**2 * 8 + 8 * COLUMN
    monkeypatch.setattr(_memory, "free", lambda space: blocks - 1)
    text = refused(KernelRidge(solver="sap"))
    assert 'solver="sap" with blocks of 64 rows' in text
    assert 'solver="cg" with rank=0 has no blocks; centers=' in text
    fits(KernelRidge(solver="cg", rank=0))
    monkeypatch.setattr(_memory, "free", lambda space: blocks)
    fits(KernelRidge(solver="sap", max_iter=1))


def test_machines_without_centres_name_none(monkeypatch):
    """Rounds that generalised cross-validation judges by products."""
    monkeypatch.setattr(_memory, "free", lambda space: 60 * COLUMN)
    machine = RFMRegressor(solver="cg", rank=4, alpha=1.0, validation="gcv", n_rounds=0)
    text = refused(machine)
    assert "centers=" not in text
    assert text.endswith("Up to 7 columns at a time fit without a factor")


def test_used_memory_is_without_what_files_leave(monkeypatch, tmp_path):
    limits = [tmp_path / name for name in ("max", "current")]
    for path, text in zip(limits, ("1000000", "900000"), strict=True):
        path.write_text(text)
    monkeypatch.setattr(_memory, "_LIMITS", (tuple(map(str, limits)),))
    assert _memory.free(Space()) == 100_000
    stat = tmp_path / "memory.stat"
    stat.write_text("anon 1\ninactive_file 200000\nactive_file 7\n")
    assert _memory.free(Space()) == 300_000
    stat.write_text("inactive_file 1\ntotal_inactive_file 300000\n")  # of cgroup v1, with children
    assert _memory.free(Space()) == 400_000


def test_centres_and_points_of_a_device(monkeypatch):
    monkeypatch.setattr(_memory, "free", lambda space: 24 * 300**2 + 4 * COLUMN)
    text = refused(KernelRidge(centers=300, solver="direct"))
    assert "solver='direct' with 300 centres" in text
    fits(KernelRidge(centers=300, solver="falkon"))
    space = Space("torch", "cuda:0", "float32")
    with pytest.raises(MemoryError, match=r"M: a copy of 900 features of 2000 points .* on cuda:0"):
        _memory.require_points(2000, 900, space, "M")
