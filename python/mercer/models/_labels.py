"""Labels of classes: their numbers, their weights, and predictions in the caller's library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets

from mercer.models._arrays import Space, host


def encode(estimator: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """(the classes, sorted; the number of each y's class), with scikit-learn's errors."""
    y = np.asarray(host(y))
    check_classification_targets(y)
    classes, numbers = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"{type(estimator).__name__} needs samples of at least 2 classes in the data, but the "
            f"data contains only one class: {classes[0]!r}"
        )
    return classes, numbers.reshape(-1)


def class_weights(class_weight: Any, classes: np.ndarray, numbers: np.ndarray,
                  weights: np.ndarray | None) -> np.ndarray | None:  # fmt: skip
    """Weights of rows [n], class_weight among them; "balanced" counts rows with their weights."""
    if class_weight is None:
        return weights
    rows = np.ones(len(numbers)) if weights is None else weights
    if isinstance(class_weight, str) and class_weight == "balanced":
        totals = np.bincount(numbers, rows, len(classes))
        each = totals.sum() / (len(classes) * totals)
    else:
        each = compute_class_weight(class_weight, classes=classes, y=classes[numbers])
    return rows * each[numbers]


def indicator(numbers: np.ndarray, count: int, space: Space) -> Any:
    """1 for each row's class, else 0: [n, count], of two classes the second alone, [n, 1]."""
    table = np.arange(count) if count > 2 else np.array([1])
    return space.array(numbers[:, None] == table)


def answers(classes: np.ndarray, numbers: Any, like: Callable[[Any], Any]) -> Any:
    """The labels of class numbers; those that are no numbers stay NumPy's."""
    labels = classes[np.asarray(host(numbers))]
    return like(labels) if labels.dtype.kind in "iufb" else labels
