"""Kernel tests of two samples: MMD, whether they have one law; HSIC, whether they are independent.

p-values are of permutations: with K the kernel matrix without its diagonal, each permutation is a
column of one product with K (MMD), or of one product with K taken as a vector (HSIC).
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, InvalidParameterError
from sklearn.utils.validation import check_consistent_length

from mercer._progress import between, current
from mercer.models._arrays import Space, host, shows, validate
from mercer.models._kernels import PRECOMPUTED, FittedKernel, check_precomputed, fit_kernel
from mercer.models._rules import BANDWIDTH, DEVICE, KERNEL, check, refuse_ignored
from mercer.models._spectra import without_diagonal
from mercer.models._spread import require_memory

__all__ = ["HSIC", "MMD", "PermutationTest"]

_STORED = 1 << 28  # bytes of a kernel matrix, or of columns, that are held at a time
_BATCH = 1 << 18  # entries of permuted kernel matrices at a time: they stay in a core's cache


class PermutationTest(NamedTuple):
    """What a test found; null: the statistic under each permutation.

    >>> MMD(n_permutations=99, random_state=0).test(X, X + 5.0).p_value
    0.01
    """

    statistic: float
    p_value: float
    null: np.ndarray


def _tested(values: np.ndarray, size: float, dtype: str) -> PermutationTest:
    """values: the statistic, then its permutations; size: what they are sums of, as for rounding.

    Permutations that equal the statistic but for rounding count as equal, so that the level holds.
    """
    statistic, null = float(values[0]), values[1:]
    slack = 64 * float(np.finfo(dtype).eps) * size
    larger = int((null >= statistic - slack).sum())
    return PermutationTest(statistic, (1 + larger) / (1 + len(null)), null)


class MMD(BaseEstimator):
    """The maximum mean discrepancy of two samples: unbiased, with a p-value of permutations.

    kernel: a name of the zoo, the text of a formula, an expression or a function of two points,
    symmetric. bandwidth: "median" of the distances between up to 512 of all points, "scale" (the
    root of the sum of the features' variances) or a number. n_permutations: of the null
    distribution; the smallest p-value is 1/(n_permutations + 1). device: where host arrays are
    computed with, such as "cuda". progress: a call of more than two seconds shows a bar. Nothing of
    (m + n)^2 is stored for large samples.

    >>> statistic, p_value, null = MMD(random_state=0).test(X, Y)

    Source: Gretton, Borgwardt, Rasch, Schoelkopf & Smola 2012.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel": KERNEL,
        "bandwidth": BANDWIDTH,
        "kernel_params": [Mapping, None],
        "n_permutations": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "device": DEVICE,
        "progress": ["boolean"],
    }

    def __init__(
        self, kernel: Any = "gauss", *, bandwidth: float | str = "median",
        kernel_params: dict[str, Any] | None = None, n_permutations: int = 1000,
        random_state: Any = None, device: str | None = None, progress: bool = False,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.kernel_params = kernel_params
        self.n_permutations = n_permutations
        self.random_state = random_state
        self.device = device
        self.progress = progress

    @shows
    def statistic(self, X: Any, Y: Any) -> float:
        """The unbiased estimate of MMD^2 of X [m, d] and Y [n, d], m and n at least 2."""
        return float(self._run(X, Y, 0)[0][0])

    @shows
    def test(self, X: Any, Y: Any) -> PermutationTest:
        """(statistic, p_value, null [n_permutations]) of X [m, d] and Y [n, d], m, n at least 2.

        Raises ValueError for NaN, wrong shapes and parameters out of their range.
        """
        values, size, dtype = self._run(X, Y, self.n_permutations)
        return _tested(values, size, dtype)

    def _run(self, X: Any, Y: Any, count: int) -> tuple[np.ndarray, float, str]:
        """(the statistic, then its permutations; the mean of |K|; the dtype)."""
        check(self)
        require_memory(self, X)
        require_memory(self, Y, "Y")
        if isinstance(self.kernel, str) and self.kernel == PRECOMPUTED:
            raise InvalidParameterError(
                "The 'kernel' parameter of MMD must be of points. Got 'precomputed' instead."
            )
        checked = BaseEstimator()
        first = validate(checked, X, device=self.device, min_samples=2)
        space = first.space
        second = validate(checked, Y, reset=False, space=space, min_samples=2)
        rng = check_random_state(self.random_state)
        z = space.array(space.xp.concatenate([first.x, second.x]))
        kernel = without_diagonal(
            fit_kernel(
                self.kernel, z, space, bandwidth=self.bandwidth, kernel_params=self.kernel_params,
                random_state=rng,
            )
        )  # fmt: skip
        kernel.require_symmetric()
        m, n = first.x.shape[0], second.x.shape[0]
        drawn = _Subsets(m, m + n, 1 + count, rng)
        within, total, row_sums = _quadratic_forms(kernel, z, drawn, space)
        crossing = row_sums - within
        rest = total - within - 2 * crossing
        values = within / (m * (m - 1)) + rest / (n * (n - 1)) - 2 * crossing / (m * n)
        return values, abs(total) / ((m + n) * (m + n - 1)), space.dtype


class _Subsets:
    """Columns of 0 and 1: the first m rows, then random subsets of m rows."""

    def __init__(self, m: int, rows: int, count: int, rng: np.random.RandomState) -> None:
        self.m, self.rows, self.count, self._rng = m, rows, count, rng

    def columns(self, first: int, last: int) -> np.ndarray:
        """Columns from first to last; callers ask for them in order."""
        columns, bar = np.zeros((self.rows, last - first)), current()
        for j in range(last - first):
            if bar is not None:
                bar.step(j / (last - first))
            chosen = self._rng.permutation(self.rows) if first + j else np.arange(self.rows)
            columns[chosen[: self.m], j] = 1
        return columns


def _quadratic_forms(
    kernel: FittedKernel, z: Any, drawn: _Subsets, space: Space
) -> tuple[np.ndarray, float, np.ndarray]:
    """(a^T K a for each column a, 1^T K 1, a^T K 1 for each column) of K [N, N]."""
    n, wide = z.shape[0], space.of("float64")
    entry = np.dtype(space.dtype).itemsize
    matrix = kernel.matrix(z) if entry * n * n <= _STORED else None
    held = max(16, _STORED // (2 * entry * n))
    sums = wide.array(kernel.product(z, z, space.zeros(n) + 1))
    within, rows = [], []
    for first in range(0, drawn.count, held):
        last = min(first + held, drawn.count)
        done, gone = first / drawn.count, (last - first) / drawn.count
        with between(done, done + gone / 2, "permutations drawn"):
            a = space.array(drawn.columns(first, last))
        with between(done + gone / 2, done + gone, f"{drawn.count} products", is_one_call=True):
            product = kernel.product(z, z, a) if matrix is None else matrix @ a
        a = wide.array(a)
        within.append(host(space.xp.einsum("nb,nb->b", a, wide.array(product))))
        rows.append(host(sums @ a))
    return np.concatenate(within), float(sums.sum()), np.concatenate(rows)


class HSIC(BaseEstimator):
    """The Hilbert-Schmidt independence criterion: unbiased, with a p-value of permutations.

    kernel_x, kernel_y: those of the two samples, as MMD's, or "precomputed" where a sample is given
    as its kernel matrix [n, n]. bandwidth_x, bandwidth_y, n_permutations, device and progress: as
    MMD's. Nothing of n^2 is stored beyond a few rows.

    >>> statistic, p_value, null = HSIC(random_state=0).test(X, Y)

    Source: Gretton et al. 2007; the unbiased estimate: Song, Smola, Gretton, Bedo & Borgwardt 2012.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel_x": KERNEL,
        "kernel_y": KERNEL,
        "bandwidth_x": BANDWIDTH,
        "bandwidth_y": BANDWIDTH,
        "n_permutations": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "device": DEVICE,
        "progress": ["boolean"],
    }

    def __init__(
        self, kernel_x: Any = "gauss", kernel_y: Any = "gauss", *,
        bandwidth_x: float | str = "median", bandwidth_y: float | str = "median",
        n_permutations: int = 1000, random_state: Any = None, device: str | None = None,
        progress: bool = False,
    ) -> None:  # fmt: skip
        self.kernel_x = kernel_x
        self.kernel_y = kernel_y
        self.bandwidth_x = bandwidth_x
        self.bandwidth_y = bandwidth_y
        self.n_permutations = n_permutations
        self.random_state = random_state
        self.device = device
        self.progress = progress

    @shows
    def statistic(self, X: Any, Y: Any) -> float:
        """The unbiased estimate for the pairs of X [n, d] and Y [n, e], n at least 4."""
        return float(self._run(X, Y, 0)[0][0])

    @shows
    def test(self, X: Any, Y: Any) -> PermutationTest:
        """(statistic, p_value, null [n_permutations]) for the pairs of X [n, d] and Y [n, e].

        n is at least 4; the permutations are of Y's rows. Raises ValueError for NaN, wrong shapes
        and parameters out of their range.
        """
        values, size, dtype = self._run(X, Y, self.n_permutations)
        return _tested(values, size, dtype)

    def _run(self, X: Any, Y: Any, count: int) -> tuple[np.ndarray, float, str]:
        check(self)
        for side, kernel in (("x", self.kernel_x), ("y", self.kernel_y)):
            if isinstance(kernel, str) and kernel == PRECOMPUTED:
                refuse_ignored(self, f"kernel_{side}='precomputed'", f"bandwidth_{side}")
        require_memory(self, X)
        require_memory(self, Y, "Y")
        check_consistent_length(X, Y)
        rng = check_random_state(self.random_state)
        data = validate(BaseEstimator(), X, device=self.device, min_samples=4)
        space, x, n = data.space, data.x, data.x.shape[0]
        y = validate(BaseEstimator(), Y, space=space, min_samples=4).x
        for kernel, points in ((self.kernel_x, x), (self.kernel_y, y)):
            if isinstance(kernel, str) and kernel == PRECOMPUTED:
                check_precomputed(points)
        f = fit_kernel(self.kernel_x, x, space, bandwidth=self.bandwidth_x, random_state=rng)
        g = fit_kernel(self.kernel_y, y, space, bandwidth=self.bandwidth_y, random_state=rng)
        f.require_symmetric()
        g.require_symmetric()
        orders = np.stack([np.arange(n), *(rng.permutation(n) for _ in range(count))])
        k, sums = _row_sums(f, x, space), _row_sums(g, y, space)
        traces = _traces(f, x, g, y, orders, space)
        bound = k.sum() * sums.sum() / ((n - 1) * (n - 2))
        values = (traces + bound - 2 / (n - 2) * (sums[orders] @ k)) / (n * (n - 3))
        return values, abs(bound) / n**2, space.dtype


def _row_sums(kernel: FittedKernel, x: Any, space: Space) -> np.ndarray:
    """sum_{j != i} k(x_i, x_j), [n], in float64 on the host."""
    if kernel.precomputed:
        matrix = host(x).astype(np.float64)
        return matrix.sum(1) - np.diagonal(matrix)
    ones = space.zeros(x.shape[0]) + 1
    return host(without_diagonal(kernel).product(x, x, ones)).astype(np.float64)


def _traces(
    f: FittedKernel, x: Any, g: FittedKernel, y: Any, orders: np.ndarray, space: Space
) -> np.ndarray:
    """sum_{i != j} f(x_i, x_j) g(y_p(i), y_p(j)) for each permutation p of orders [B, n].

    A strip of rows of K, and those of the permuted L for as many permutations as fit next to it.
    """
    n, wide = x.shape[0], space.of("float64")
    rows = max(1, min(n, _BATCH // n))
    batch = max(1, min(len(orders), _BATCH // (rows * n)))
    totals, every, bar = np.zeros(len(orders)), np.arange(n), current()
    for top in range(0, n, rows):
        strip = every[top : top + rows]
        memory = space.empty(batch, len(strip), n)  # touched once, used again and again
        k = space.array(_block(f, x, strip[None], every[None], space, None)[0])
        k[space.index(strip - top), space.index(strip)] = 0
        for first in range(0, len(orders), batch):
            if bar is not None:
                share = (top + len(strip) * first / len(orders)) / n
                bar.step(share, f"{len(orders)} permutations")
            some = orders[first : first + batch]
            permuted = _block(g, y, some[:, strip], some, space, memory[: len(some)])
            products = permuted.reshape(len(some), -1) @ k.reshape(-1)
            totals[first : first + batch] += host(wide.array(products))
    return totals


def _block(
    kernel: FittedKernel, x: Any, rows: np.ndarray, columns: np.ndarray, space: Space, out: Any
) -> Any:
    """Kernel values [b, r, n] of rows [b, r] and columns [b, n] of the points."""
    i, j = space.index(rows), space.index(columns)
    if kernel.precomputed:
        return x[i[:, :, None], j[:, None, :]]
    return kernel.matrix(space.array(x[i]), space.array(x[j]), out=out)
