"""Hyper-parameters of Gaussian processes: their vector of logarithms, bounds, starts, optimizers.

theta [d + 2] has the logarithms of the amplitude, of the length scales (d of them, or one) and of
the variance of the noise, on the host, in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
from sklearn.exceptions import ConvergenceWarning

from mercer._progress import current

DEFAULT_BOUNDS = {"amplitude": (1e-5, 1e5), "lengthscale": (1e-2, 1e3), "noise": (1e-5, 1e5)}


class Values(NamedTuple):
    """What a theta means."""

    amplitude: float
    lengthscale: np.ndarray  # [d] or [1]
    noise: float


def values(theta: np.ndarray) -> Values:
    numbers = np.exp(np.asarray(theta, dtype=np.float64))
    return Values(float(numbers[0]), numbers[1:-1], float(numbers[-1]))


def pack(amplitude: float, lengthscale: Any, noise: float) -> np.ndarray:
    return np.log(np.r_[amplitude, np.atleast_1d(lengthscale), noise].astype(np.float64))


def positive(name: str, value: Any) -> None:
    number = np.asarray(value, dtype=np.float64)
    if not (np.isfinite(number).all() and (number > 0).all()):
        raise ValueError(f"{name} must be positive and finite. Received {value}")


def bounds_of(bounds: Mapping[str, Any] | str | None, start: np.ndarray, units: np.ndarray) -> Any:
    """Bounds of theta, [d + 2, 2].

    bounds: None, "fixed", or a dict with pairs of numbers, or "fixed", for some of "amplitude",
    "lengthscale" and "noise"; pairs of length scales may be [d, 2]. units [d] or [1]: the scales of
    the features, which the default bounds of the length scales are multiples of.
    """
    given: dict[str, Any] = dict.fromkeys(DEFAULT_BOUNDS, "fixed")
    if not isinstance(bounds, str):
        given = dict(bounds or {})
    unknown = given.keys() - DEFAULT_BOUNDS.keys()
    if unknown:
        raise ValueError(
            f"bounds are those of {', '.join(DEFAULT_BOUNDS)}. Received {sorted(unknown)}"
        )
    default = {name: np.array(pair) for name, pair in DEFAULT_BOUNDS.items()}
    default["lengthscale"] = units[:, None] * default["lengthscale"]
    parts = {"amplitude": start[:1], "lengthscale": start[1:-1], "noise": start[-1:]}
    return np.concatenate(
        [_log_bounds(name, given.get(name, default[name]), part) for name, part in parts.items()]
    )


def _log_bounds(name: str, pair: Any, start: np.ndarray) -> np.ndarray:
    """[len(start), 2]; "fixed" holds the start."""
    if isinstance(pair, str):
        if pair != "fixed":
            raise ValueError(f'bounds of {name} are a pair of numbers or "fixed". Received {pair}')
        return np.stack([start, start], axis=1)
    pair = np.asarray(pair, dtype=np.float64)
    if pair.shape not in {(2,), (len(start), 2)}:
        raise ValueError(
            f"bounds of {name} must have shape (2,) or ({len(start)}, 2). Received {pair.shape}"
        )
    positive(f"bounds of {name}", pair)
    if (pair[..., 0] > pair[..., 1]).any():
        raise ValueError(f"bounds of {name} must be (low, high). Received {pair.tolist()}")
    return np.log(np.broadcast_to(pair, (len(start), 2)))


def starts(theta: np.ndarray, bounds: np.ndarray, count: int, rng: Any) -> list[np.ndarray]:
    """The first guess, within the bounds, and `count` more of them, uniform in the logarithms."""
    low, high = bounds.T
    return [np.clip(theta, low, high), *(rng.uniform(low, high) for _ in range(count))]


#: theta -> (log likelihood, its gradient)
Objective = Callable[[np.ndarray], "tuple[float, np.ndarray]"]


class Optimum(NamedTuple):
    theta: np.ndarray
    value: float
    n_iter: int
    converged: bool


#: What a step gains, in units of a draft's rounding, below which drafts have served; and the
#: rounding from which on one would mislead a step.
MARGIN, MISLEADS = 10, 1.0


class _Search:
    """What an optimizer is told: a draft's values while they serve, then the objective's."""

    def __init__(self, objective: Objective, start: np.ndarray, draft: Any) -> None:
        self.objective, self.draft = objective, draft
        self.theta, self.value = start, -np.inf  # the best of the objective
        self.top, self.at = -np.inf, start  # the best of both, and where
        self.gain, self.off = np.inf, 0.0  # of the last from it; of drafts at the best one
        self.has_served = False

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = self._drafted(theta) or self._exact(theta)
        with np.errstate(invalid="ignore"):  # two values of -inf
            self.gain = abs(value - self.top)
        if value > self.top:
            self.top, self.at = value, theta
        return value, gradient

    def _exact(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = self.objective(theta)
        if value > self.value:
            self.theta, self.value = theta, value
        return value + self.off, gradient

    def _drafted(self, theta: np.ndarray) -> Any:
        rounding = np.inf if self.draft is None else self.draft.rounding(theta)
        if not rounding < MISLEADS:
            return None
        if self.gain < MARGIN * rounding:
            # A step goes on from a draft: values that its error set apart would end the search.
            off = self.top - self.draft.exact(self.at)
            self.off, self.draft = off if np.isfinite(off) else 0.0, None
            return None
        found = self.draft(theta)
        if not np.isfinite(found[0]):
            return None
        self.has_served = True
        return found


def lbfgs(objective: Objective, start: np.ndarray, bounds: np.ndarray, max_iter: int,
          draft: Any = None) -> Optimum:  # fmt: skip
    """The maximum by L-BFGS-B of SciPy. Parameters with equal bounds stay where they are.

    draft: as the objective, of less time, with methods ``rounding`` (how far it may be off) and
    ``exact`` (the objective's value). It serves steps that gain far more; SciPy keeps what it
    learnt of the curvature.
    """
    free = bounds[:, 0] < bounds[:, 1]
    if not free.any():
        return Optimum(start, objective(start)[0], 0, True)
    bar, taken, search = current(), iter(range(1, max_iter + 2)), _Search(objective, start, draft)

    def tell(part: np.ndarray) -> None:
        if bar is not None:
            bar.step(next(taken, max_iter) / max_iter, f"log likelihood {search.top:.6g}")

    def whole(part: np.ndarray) -> np.ndarray:
        theta = start.copy()
        theta[free] = part
        return theta

    def negative(part: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = search(whole(part))
        return -value, -gradient[free]

    found = scipy.optimize.minimize(
        negative, start[free], jac=True, method="L-BFGS-B", bounds=bounds[free],
        options={"maxiter": max_iter}, callback=None if bar is None else tell,
    )  # fmt: skip
    theta, left, steps = whole(found.x), max_iter - int(found.nit), int(found.nit)
    is_draft = search.draft is not None or -found.fun > search.value + search.off
    if search.has_served and (is_draft or found.status == 2) and left > 0:
        rest = lbfgs(objective, theta, bounds, left)
        return rest._replace(n_iter=steps + rest.n_iter)
    if search.has_served and is_draft:
        search.draft = None
        search(theta)
    return Optimum(search.theta, float(search.value), steps, found.status != 1)


def adam(
    gradient: Callable[[np.ndarray], np.ndarray], start: np.ndarray, bounds: np.ndarray,
    max_iter: int, *, step: float = 0.1, tol: float = 1e-2,
) -> Optimum:  # fmt: skip
    """The maximum by Adam, from gradients alone, which may be noisy; the value is not known.

    The step shrinks towards the end. Done where no parameter would still move by more than tol in
    the mean of the last steps.
    """
    theta, first, second = start.copy(), np.zeros_like(start), np.zeros_like(start)
    free = bounds[:, 0] < bounds[:, 1]
    moves: list[np.ndarray] = []
    bar = current()
    for count in range(1, max_iter + 1):
        slope = gradient(theta)
        first = 0.9 * first + 0.1 * slope
        second = 0.99 * second + 0.01 * slope**2
        direction = (first / (1 - 0.9**count)) / (np.sqrt(second / (1 - 0.99**count)) + 1e-12)
        rate = step * min(1.0, 2 * (1 - (count - 1) / max_iter))
        moved = np.clip(theta + rate * direction, *bounds.T)
        moves.append((moved - theta)[free])
        theta = moved
        if bar is not None:
            length = float(np.abs(slope[free]).max(initial=0.0))
            bar.step(count / max_iter, f"step {count}, gradient {length:.1e}")
        if count >= 10 and np.abs(np.mean(moves[-10:], axis=0)).max(initial=0.0) < tol * step:
            return Optimum(theta, np.nan, count, True)
    return Optimum(theta, np.nan, max_iter, False)


def warn_not_converged(name: str, max_iter: int) -> None:
    warnings.warn(
        f"{name}: the optimizer took all of its {max_iter} iterations before it converged. "
        "Increase max_iter, or scale the features.",
        ConvergenceWarning,
        stacklevel=3,
    )


def warn_unsolved(name: str, products: int) -> None:
    warnings.warn(
        f"{name}: {products} products with the kernel matrix did not reach tol. A larger rank, tol "
        'or noise, or solver="direct" where its matrices fit, does.',
        ConvergenceWarning,
        stacklevel=3,
    )
