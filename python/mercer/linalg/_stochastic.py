"""inv_quad_logdet of a matrix that is known by its products: cg and Lanczos quadrature.

With P = S S^T near a, and random signs z, log det a = log det P + E z^T log(S^-1 a S^-T) z. The
quadrature is that of Lanczos' recurrence in the inner product of P^-1, from S z: it takes products
with a and solutions with P, never a root of its inverse (Ubaru, Chen, Saad, SIAM J. Matrix Anal.
Appl. 38, 2017; Gardner et al., NeurIPS 2018, for preconditioned probes). Gauss quadrature of a
logarithm comes from above and improves with each step, so that what the last steps gained bounds
what is missing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from mercer import linalg
from mercer._libraries import namespace_of, plain
from mercer.errors import LinAlgError

_VERB = "inv_quad_logdet"
_MOST_STEPS = 400
_WEIGHT = 1e-14  # of a value of the quadrature that is rounding


class InvQuadLogdet(NamedTuple):
    """What inv_quad_logdet gives of an operator; float64, in arrays of the operator's library."""

    inv_quad: Any
    logdet: Any
    error: Any


def inv_quad_logdet(
    a: Any, b: Any, *, n_probes: int = 16, preconditioner: Any = None, tol: float | None = None,
    max_iter: int | None = None, seed: int = 0,
) -> InvQuadLogdet:  # fmt: skip
    check_probes(n_probes)
    b = plain(b)
    x = linalg.cg(a, b, preconditioner=preconditioner, tol=tol, max_iter=max_iter)
    double = _Vectors(namespace_of(x), x)
    quad = (double.of(b) * double.of(x)).sum(0)
    options = {"preconditioner": preconditioner, "tol": tol, "max_iter": max_iter}
    logdet, error = _logdet(a, double, n_probes, seed, options)
    return InvQuadLogdet(quad, logdet, error)


def stochastic_logdet(
    a: Any, like: Any, *, n_probes: int, preconditioner: Any, max_iter: int | None, seed: int,
) -> tuple[Any, Any]:  # fmt: skip
    """(log det a, its standard error); like: columns of its dtype, in its library. preconditioner:
    what has solve, sqrt and logdet."""
    options = {"preconditioner": preconditioner, "tol": None, "max_iter": max_iter}
    return _logdet(a, _Vectors(namespace_of(like), like), n_probes, seed, options)


def _logdet(a: Any, vectors: _Vectors, count: int, seed: int, options: dict) -> tuple[Any, Any]:
    most = min(a.shape[0], options["max_iter"] or _MOST_STEPS)
    if vectors.library.__name__ != "torch" or hasattr(type(a), "_mercer_multiply"):
        probes = _Probes(a, options["preconditioner"], vectors, count, seed)
        return tuple(vectors.scalar(part) for part in probes.logdet(most))
    from mercer._torch import linalg_cg, linalg_logdet

    is_followed = linalg_logdet.is_followed(a)
    held = linalg_cg.detached(a, _VERB) if is_followed else a
    with linalg_cg.outside():
        probes = _Probes(held, options["preconditioner"], vectors, count, seed)
        logdet, error = (vectors.scalar(part) for part in probes.logdet(most))
    if is_followed:
        logdet = linalg_logdet.followed(logdet, a, probes.start, probes.solved, options)
    return logdet, error


def check_probes(n_probes: Any) -> None:
    if isinstance(n_probes, bool) or not isinstance(n_probes, int) or n_probes < 1:
        raise ValueError(
            f"{_VERB}: n_probes must be a whole number from 1 on. Received {n_probes!r}"
        )


class _Vectors:
    """Columns [n, probes] in float64, in the library and on the device of an array."""

    def __init__(self, library: Any, like: Any) -> None:
        self.library, self.dtype = library, like.dtype
        self.place = {"device": like.device} if library.__name__ == "torch" else {}

    def put(self, host: Any) -> Any:
        return self.library.asarray(host, **self.place)

    def scalar(self, value: float) -> Any:
        return np.float64(value) if self.library is np else self.put(np.float64(value))

    def of(self, values: Any) -> Any:
        return self._cast(values, self.library.float64)

    def narrow(self, values: Any) -> Any:
        return self._cast(values, self.dtype)

    def _cast(self, values: Any, dtype: Any) -> Any:
        return values.to(dtype) if hasattr(values, "to") else values.astype(dtype, copy=False)

    def to_host(self, rows: list[Any]) -> Any:
        stacked = self.library.stack(rows)
        if hasattr(stacked, "cpu"):
            return stacked.cpu().numpy()
        return stacked.get() if hasattr(stacked, "get") else stacked


class _Probes:
    """Lanczos' recurrence of all probes at once: one product with a is one of all their columns."""

    def __init__(self, a: Any, preconditioner: Any, vectors: _Vectors, count: int, seed: int):
        self.a, self.vectors, self.n = a, vectors, a.shape[0]
        has_parts = all(hasattr(preconditioner, part) for part in ("solve", "sqrt", "logdet"))
        self.inverse = preconditioner if has_parts else None
        self.rounding = 1e-4 if "32" in str(vectors.dtype) else 1e-9  # what ends a recurrence
        signs = np.random.default_rng(seed).integers(0, 2, (count, self.n), dtype=np.int8)
        start = vectors.of(vectors.put(np.ascontiguousarray(2 * signs.T - 1)))
        if self.inverse is not None:
            start = vectors.of(self.inverse.sqrt(vectors.narrow(start)))
        self.start, self.solved = vectors.narrow(start), vectors.narrow(self._solve(start))
        self.residual, self.before = start, start * 0
        self.diagonal: list[Any] = []
        self.sides: list[Any] = []
        self.squares: list[Any] = []  # next to those of the diagonal
        self.unit: float | None = None  # of a, not to be squared
        self._turn()

    def _solve(self, columns: Any) -> Any:
        if self.inverse is None:
            return columns
        return self.vectors.of(self.inverse.solve(self.vectors.narrow(columns)))

    def _turn(self) -> None:
        """What is left becomes the next pair: v of length 1 in the inner product, and P^-1 v."""
        solved = self._solve(self.residual)
        square = (self.residual * solved).sum(0)
        where = self.vectors.library.where
        scale = self.diagonal[-1] if self.diagonal else abs(square) ** 0.5
        self.squares.append(square / where(scale == 0, 1, scale**2))
        is_live = square > (1e-13 * scale) ** 2
        side = where(is_live, abs(square), 1) ** 0.5
        self.sides.append(where(is_live, side, 0))
        self.v = where(is_live, self.residual / side, 0)
        self.q = where(is_live, solved / side, 0)

    def step(self) -> None:
        product = self.vectors.of(multiply(self.a, self.vectors.narrow(self.q)))
        if self.unit is None:
            self.unit = self._unit(product)
        if self.unit != 1:
            product = product / self.unit
        product = product - self.sides[-1] * self.before
        alpha = (self.q * product).sum(0)
        self.residual, self.before = product - alpha * self.v, self.v
        self.diagonal.append(alpha)
        self._turn()

    def _unit(self, product: Any) -> float:
        """A power of two near the first product, where squares of such numbers leave the range."""
        most = float(abs(product).max())
        if self.inverse is not None or not 0 < most < math.inf or 2.0**-400 < most < 2.0**400:
            return 1.0
        return math.ldexp(1.0, min(max(math.frexp(most)[1], -1021), 1023))

    def quadrature(self) -> Any:
        """e1^T log(T) e1 for the tridiagonal matrix T of each probe."""
        alpha = self.vectors.to_host(self.diagonal).T
        beta = self.vectors.to_host(self.sides[1:-1]).T if len(self.diagonal) > 1 else None
        if not (np.isfinite(alpha).all() and (beta is None or np.isfinite(beta).all())):
            raise LinAlgError(
                f"{_VERB}: products with a must be finite. Received NaN or an infinity"
            )
        lost = self.vectors.to_host(self.squares).min()
        if lost < -(self.rounding**2):
            raise LinAlgError(
                f"{_VERB}: solutions with the preconditioner must be positive definite. Received "
                f"one with {lost:.3g} of the square; a larger ridge or float64 helps"
            )
        small = alpha[:, :, None] * np.eye(alpha.shape[1])
        if beta is not None:
            steps = np.arange(beta.shape[1])
            small[:, steps, steps + 1] = small[:, steps + 1, steps] = beta
        values, vectors = np.linalg.eigh(small)
        weights = vectors[:, 0, :] ** 2
        is_used = weights > _WEIGHT
        if (values[is_used] <= 0).any():
            raise LinAlgError(
                f"{_VERB}: a must be positive definite. Received an eigenvalue near "
                f"{values[is_used].min():.3g}; a larger ridge or float64 helps"
            )
        return (weights * np.log(np.where(is_used, values, 1))).sum(1)

    def logdet(self, most: int) -> tuple[float, float]:
        """The mean over the probes and its standard error; with what is missing where the steps
        ran out."""
        known = self.inverse.logdet() if self.inverse is not None else 0.0
        if self.n == 0:
            return float(known), 0.0
        least = self.n * (1e-6 if "32" in str(self.vectors.dtype) else 1e-10)
        last, steps = math.inf, 0
        while True:
            for _ in range(min(max(4, steps // 4), most - steps)):
                self.step()
            steps = len(self.diagonal)
            found = self.n * (self.quadrature() + math.log(self.unit or 1.0))
            deviation = found.std(ddof=1) / math.sqrt(len(found)) if len(found) > 1 else math.inf
            missing, last = abs(found.mean() - last), found.mean()
            if missing <= max(least, 0.1 * deviation if len(found) > 1 else 0):
                return float(known + last), float(deviation)
            if steps >= most:
                is_exact = steps >= self.n
                return float(known + last), float(
                    deviation if is_exact else math.hypot(deviation, missing)
                )


def multiply(a: Any, v: Any) -> Any:
    """a v of columns."""
    if hasattr(type(a), "_mercer_multiply"):
        return a._mercer_multiply(v)
    return a @ v
