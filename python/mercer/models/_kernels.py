"""What ``kernel=`` says becomes a formula with its parameters, and a map of the points."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import mercer as mc
from mercer.models._arrays import Space, exact_products, host, library_of
from mercer.models._products import kernel_product
from mercer.models._spread import kind_of, known, mapped

PRECOMPUTED = "precomputed"
_ZOO = {name: row for row in mc.zoo.table for name in (row["name"], *row["aliases"])}


@dataclass(frozen=True)
class FittedKernel:
    """A formula with the numbers that a fit gave it; without a formula the matrix is the input."""

    formula: mc.Kernel | None
    params: dict[str, Any] = field(default_factory=dict)
    bandwidth: float | None = None
    root: Any = None  # of the metric: [d] or [d, d], what points are multiplied with
    name: str | None = None  # of the parameter that the bandwidth decides

    @property
    def precomputed(self) -> bool:
        return self.formula is None

    def with_bandwidth(self, bandwidth: float) -> FittedKernel:
        """Another bandwidth for a kernel that has one."""
        params = self.params | _as_parameter(self.name, bandwidth)
        return FittedKernel(self.formula, params, bandwidth, self.root, self.name)

    def require_symmetric(self) -> None:
        if self.formula is not None and not self.formula.symmetric:
            raise ValueError(f"kernel must be symmetric in x and z. Received {self.formula}")

    def require_rows(self) -> None:
        """Rows of the matrix are kernels of some points: not of a formula that reads indices."""
        if self.formula is not None and re.search(r"\b[ij]\b", str(self.formula)):
            raise NotImplementedError(
                "rank must be 0 for a formula that reads indices: a preconditioner is made of rows "
                f"of its matrix. Received {self.formula}"
            )

    def rows(self, x: Any, pivots: Any) -> Any:
        """Rows of the matrix of x [n, d] at row numbers [r], [r, n]."""
        return x[pivots] if self.formula is None else self.matrix(known(x[pivots]), x)

    def points(self, x: Any, space: Space) -> Any:
        """x [n, d] as the formula sees it: x times the root of the metric."""
        if self.root is None:
            return x
        root = space.array(self.root)
        with exact_products:
            found = mapped(operator.mul if root.ndim == 1 else operator.matmul, x, root)
        return found if kind_of(found) else space.array(found)

    def matrix(self, x: Any, z: Any = None, out: Any = None) -> Any:
        """[n, n], or [m, n] with z; a copy of x where the matrix is the input."""
        if self.formula is not None:
            if "dask" in (kind_of(x), kind_of(z)):
                from mercer import dask

                return dask.kernel_matrix(self.formula, x, z, **self.params).compute()
            return mc.kernel_matrix(self.formula, x, z, out=out, **self.params)
        if out is None:
            return x + 0
        out[...] = x
        return out

    def product(self, x: Any, z: Any, v: Any) -> Any:
        """The matrix of x [m, d] and z [n, d] times v [n, k], the matrix never stored."""
        if self.formula is None:
            return x @ v
        return kernel_product(self.formula, x, z, v, **self.params)

    def diagonal(self, x: Any) -> Any:
        """f(x_i, x_i), [n]."""
        if self.formula is None:
            return x.reshape(-1)[:: x.shape[0] + 1]
        if kind_of(x) == "dask":
            return mc.linalg.KernelOperator(self.formula, x, **self.params).diagonal()
        return mc.paired_distances(x, x, metric=self.formula, **self.params)


def fit_kernel(
    kernel: Any,
    x: Any,
    space: Space,
    *,
    bandwidth: float | str = "scale",
    weights: Any = None,
    metric: Any = None,
    kernel_params: Mapping[str, float] | None = None,
    random_state: Any = None,
    reads: bool = True,
) -> FittedKernel:
    """The kernel of an estimator on its points x [n, d].

    kernel: a name of the zoo, the text of a formula, an expression, a function of two points, or
    "precomputed". bandwidth: a number, "scale" (the root of the sum of the features' variances,
    weighted) or "median" (of the distances between 512 points); the words give a value to a
    parameter called bandwidth (gamma = 1 / (2 bandwidth^2) of "rbf") that has none of its own.
    metric: M of the squared distance (x - z)^T M (x - z), positive semi-definite [d, d] or its
    diagonal [d]. kernel_params: the formula's other parameters by name. reads: with False numbers
    that are arrays stay arrays, as does what "scale" says, and "median" is refused.
    """
    if isinstance(kernel, str) and kernel == PRECOMPUTED:
        return FittedKernel(None)
    given = dict(kernel_params or {})
    formula = _formula(kernel, given)
    root = None
    if metric is not None:
        held = not reads and library_of(metric) != "numpy"
        root = space.array(_held_root(metric, x.shape[1]) if held else _root(metric, x.shape[1]))
    name = _free_bandwidth(kernel, formula, given, bandwidth)
    params = {
        key: value if _is_held(value, reads) else float(value)
        for key, value in given.items()
        if key in formula.parameters
    }
    fitted = FittedKernel(formula, params, None, root, name)
    if name is None:
        return fitted
    if _is_held(bandwidth, reads):
        return fitted.with_bandwidth(held_number(bandwidth, space))
    points = fitted.points(x, space)
    if not reads and isinstance(bandwidth, str):
        return fitted.with_bandwidth(_held_scale(bandwidth, points, space, weights))
    return fitted.with_bandwidth(_number(bandwidth, points, space, weights, random_state))


def _is_held(value: Any, reads: bool) -> bool:
    """Whether a number stays in its array."""
    return not reads and library_of(value) != "numpy"


def held_number(value: Any, space: Space) -> Any:
    """An array of one number, which becomes NaN where it is not positive, as one of no axes."""
    number = space.array(value).reshape(())
    return space.xp.where(number > 0, number, np.nan + 0 * number)


def _held_root(metric: Any, d: int) -> Any:
    if tuple(metric.shape) != (d,):
        raise ValueError(
            f'metric: an array that solver="fixed" does not read must have the shape ({d},). '
            f"Received {tuple(metric.shape)}"
        )
    return metric**0.5


def _held_scale(word: str, x: Any, space: Space, weights: Any) -> Any:
    if word != "scale":
        raise ValueError(
            'bandwidth must be "scale" or a positive number where solver is "fixed". '
            f"Received {word!r}"
        )
    made = _scale(x, weights)
    return space.xp.where(made > 0, made, 1 + 0 * made)


def _as_parameter(name: str | None, bandwidth: float) -> dict[str, float]:
    if name is None:
        raise ValueError("the formula has no bandwidth to choose")
    return {name: bandwidth if name == "bandwidth" else 0.5 / bandwidth**2}


def check_precomputed(k: Any) -> None:
    """ValueError for what is no symmetric matrix [n, n]."""
    if k.shape[0] != k.shape[1]:
        raise ValueError(f"Precomputed matrix must be square. Received {tuple(k.shape)}")
    rows = max(1, 2**22 // k.shape[0])
    for start in range(0, k.shape[0], rows):
        block, mirror = k[start : start + rows], k[:, start : start + rows].T
        if float(abs(block - mirror).max()) > 1e-5 * float(abs(block).max()):
            raise ValueError("Precomputed matrix must be symmetric")


def _formula(kernel: Any, given: dict[str, Any]) -> mc.Kernel:
    if isinstance(kernel, str) and kernel in _ZOO:
        return mc.metric(kernel, **given)
    formula = mc.kernel(kernel)
    unknown = given.keys() - formula.parameters.keys()
    if unknown:
        raise ValueError(
            f"kernel_params: the formula's parameters are {sorted(formula.parameters)}. "
            f"Received {sorted(unknown)}"
        )
    return formula


def _free_bandwidth(
    kernel: Any, formula: mc.Kernel, given: dict[str, float], bandwidth: float | str
) -> str | None:
    """The name of the parameter that ``bandwidth`` decides, if there is one."""
    named = isinstance(kernel, str) and kernel in _ZOO
    name = "gamma" if named and _ZOO[kernel]["name"] == "rbf" else "bandwidth"
    if name in given or name not in formula.parameters:
        if not isinstance(bandwidth, str):
            raise ValueError(
                f"bandwidth: a number is for formulas with a parameter {name}, where kernel_params "
                f"does not give it. Received {bandwidth!r} for {formula}"
            )
        return None
    own = not named and formula.parameters[name] is not None
    return None if own and isinstance(bandwidth, str) else name


def _number(bandwidth: float | str, x: Any, space: Space, weights: Any, random_state: Any) -> float:
    if isinstance(bandwidth, str):
        if bandwidth not in ("scale", "median"):
            raise ValueError(
                f'bandwidth must be "scale", "median" or a positive number. Received {bandwidth!r}'
            )
        made = scale_bandwidth(x, space, weights) if bandwidth == "scale" else (
            median_bandwidth(x, space, random_state)
        )  # fmt: skip
        return made if made > 0 else 1.0
    number = float(bandwidth)
    if not (number > 0 and np.isfinite(number)):
        raise ValueError(f"bandwidth must be a positive number. Received {bandwidth!r}")
    return number


def scale_bandwidth(x: Any, space: Space, weights: Any = None) -> float:
    """The root of the sum of the features' variances, weighted; 0 for points that are all one."""
    return float(_scale(x, weights))


def _scale(x: Any, weights: Any) -> Any:
    x = x - known(x[:1])  # a shift takes no digits from the variances of points far from 0
    if weights is None:
        return (((x - known(x.sum(0)) / x.shape[0]) ** 2).sum() / x.shape[0]) ** 0.5
    share = (weights / weights.sum())[:, None]
    return ((x - known((x * share).sum(0))) ** 2 * share).sum() ** 0.5


def median_bandwidth(x: Any, space: Space, random_state: Any = None, count: int = 512) -> float:
    """The median distance between at most ``count`` points drawn without replacement."""
    from sklearn.utils import check_random_state

    n = x.shape[0]
    chosen = check_random_state(random_state).permutation(n)[:count]
    some = host(space.array(x[space.index(chosen)]))
    if len(some) < 2:
        return 0.0
    return float(np.median(mc.cdist(some, some)[np.triu_indices(len(some), 1)]))


def _root(metric: Any, d: int) -> np.ndarray:
    """What points are multiplied with: sqrt(M), elementwise for a diagonal, else symmetric."""
    m = np.asarray(host(metric), dtype=np.float64)
    if m.shape not in ((d,), (d, d)):
        raise ValueError(f"metric must have the shape ({d},) or ({d}, {d}). Received {m.shape}")
    if not np.isfinite(m).all() or (
        m.ndim == 2 and not np.allclose(m, m.T, atol=1e-10 * abs(m).max())
    ):
        raise ValueError("metric must be finite, and symmetric where it is a matrix")
    values, vectors = (m, None) if m.ndim == 1 else np.linalg.eigh(m)
    if values.min() < -1e-6 * max(values.max(), 0):
        raise ValueError(
            "metric must be positive semi-definite. "
            f"Received eigenvalues down to {values.min():.3g}"
        )
    roots = np.sqrt(np.maximum(values, 0))
    return roots if vectors is None else (vectors * roots) @ vectors.T
