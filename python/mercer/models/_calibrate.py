"""Probabilities of scores: a softmax with one slope, which leaves the largest score the largest.

(Guo, Pleiss, Sun, Weinberger, "On calibration of modern neural networks", 2017: temperatures.)
"""

from __future__ import annotations

import numpy as np


def fit_slope(scores: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> float:
    """The positive slope a for which softmax(a scores) is likeliest, by Newton's method.

    scores: [n, classes]; codes: the class [n]; weights: [n]. Targets are smoothed by one more point
    of each class, so that separable scores have a finite slope.
    """
    n, classes = scores.shape
    unit = max(float(np.sqrt(np.mean(scores**2))), 1e-300)
    z, total = scores / unit, weights.sum()
    target = np.full((n, classes), 1 / (total + classes))
    target[np.arange(n), codes] += total / (total + classes)
    low, high = 1e-6, 1e6  # the derivative grows with the slope: a bracket around its zero
    slope = 1.0
    for _ in range(200):
        p = softmax(slope * z)
        mean = (p * z).sum(1)
        first = float(weights @ (mean - (target * z).sum(1)))
        second = float(weights @ ((p * z**2).sum(1) - mean**2))
        low, high = (low, slope) if first > 0 else (slope, high)
        step = slope - first / second if second > 0 else 0.0
        new = step if low < step < high else float(np.sqrt(low * high))
        if abs(new - slope) <= 1e-12 * slope:
            break
        slope = new
    return slope / unit


def softmax(t: np.ndarray) -> np.ndarray:
    """Rows of positive numbers that sum to 1."""
    e = np.exp(t - t.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
