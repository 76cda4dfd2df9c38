"""Categorical features become a column for each category, and metrics blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mercer.models._arrays import Space, host


@dataclass(frozen=True)
class Encoder:
    """Numeric columns first, then those of each categorical feature; unknown ones are all 0."""

    numeric: np.ndarray  # column numbers
    categorical: list[int]
    categories: list[np.ndarray]  # of each categorical column, sorted

    @property
    def groups(self) -> np.ndarray:
        """0 for each numeric column made, 1, 2, ... for those of the categorical features."""
        made = [np.full(len(found), i + 1) for i, found in enumerate(self.categories)]
        return np.concatenate([np.zeros(len(self.numeric), int), *made])

    @property
    def sources(self) -> np.ndarray:
        """The feature that each column made comes from."""
        made = [
            np.full(len(found), column)
            for found, column in zip(self.categories, self.categorical, strict=True)
        ]
        return np.concatenate([self.numeric, *made]).astype(int)

    def __call__(self, x: Any, space: Space) -> Any:
        if not self.categorical:
            return x
        parts = [space.array(x[:, space.index(self.numeric)])]
        for column, found in zip(self.categorical, self.categories, strict=True):
            same = x[:, column : column + 1] == space.array(found)[None, :]
            parts.append(space.array(same * 1))
        return space.array(space.xp.concatenate(parts, 1))


def fit_encoder(chosen: Any, x: Any, names: np.ndarray | None) -> Encoder:
    """chosen: None, column numbers, names, or a mask [d]; x: [n, d], numbers name categories."""
    d = x.shape[1]
    columns = [] if chosen is None else _columns(np.asarray(chosen), d, names)
    numeric = np.setdiff1d(np.arange(d), columns)
    return Encoder(numeric, columns, [np.unique(host(x[:, column])) for column in columns])


def _columns(chosen: np.ndarray, d: int, names: np.ndarray | None) -> list[int]:
    if chosen.dtype.kind == "b" and chosen.shape == (d,):
        return [int(column) for column in np.flatnonzero(chosen)]
    if chosen.ndim == 1 and chosen.dtype.kind in "iu" and np.isin(chosen, np.arange(-d, d)).all():
        return [int(column) for column in np.unique(chosen % d)]
    if chosen.size == 0:
        return []
    if chosen.ndim == 1 and chosen.dtype.kind in "UO" and names is not None:
        known = list(names)
        if all(name in known for name in chosen):
            return sorted({known.index(name) for name in chosen})
    raise ValueError(
        f"categorical_features must be numbers of the {d} columns, a mask of as many, or names of "
        f"columns that X has. Received {chosen.tolist()}"
    )
