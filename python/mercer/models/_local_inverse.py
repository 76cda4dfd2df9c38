"""Rows of the inverse of S K S + ridge from a few neighbours: a control variate of rough kernels.

Row i of C is row i of the inverse of the matrix among point i and its nearest ones (Kaporin, 1994,
for factors). Its trace is known, and z^T C z follows z^T A^-1 z where the inverse is local.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mercer as mc
from mercer.models._arrays import host
from mercer.models._solve import System

#: Points of a row, the first of which is its own.
NEIGHBOURS = 16
#: Numbers of these points, of matrices among them and of z at them that are there at a time.
VALUES = 2**24


def controls(system: System, ridges: np.ndarray, z: Any) -> tuple[np.ndarray, np.ndarray]:
    """(z^T C z [R, c] for z [n, c], traces of C [R]); the system has points, and no ridge."""
    forms, traces = np.zeros((len(ridges), z.shape[1])), np.zeros(len(ridges))
    near, m = _neighbours(system), min(NEIGHBOURS, system.n)
    identity = system.space.array(np.eye(m))
    first = system.space.array(identity[:, :1])
    count = max(1, VALUES // (m * (system.x.shape[1] + m + z.shape[1])))
    for start in range(0, system.n, count):
        some = system.space.index(near[start : start + count])
        k = system.kernel.matrix(system.x[some])
        if system.scale is not None:
            s = system.scale[some]  # [rows, m, 1]
            k = s * k * s.reshape(s.shape[0], 1, m)
        signs = z[some]  # [rows, m, c]
        for i, ridge in enumerate(ridges):
            rows, info = mc.linalg.solve_cholesky(k + float(ridge) * identity, first, check=False)
            failed = (info != 0)[:, None, None]
            rows = system.space.xp.where(failed, 0 * first, rows)
            forms[i] += system.space.sums((rows * signs).sum(1) * signs[:, 0])
            traces[i] += float(system.space.sums(rows[:, 0])[0])
    return forms, traces


def _neighbours(system: System) -> np.ndarray:
    """[n, m], row numbers of each point and of those nearest to it."""
    m, own = min(NEIGHBOURS, system.n), np.arange(system.n)[:, None]
    found = host(mc.knn("sqeuclidean", system.x, system.x, m)[1])
    others = np.argsort(found == own, axis=1, kind="stable")[:, : m - 1]
    return np.concatenate([own, np.take_along_axis(found, others, 1)], axis=1)
