"""A kernel of scikit-learn's Gaussian processes from any formula.

Imported as ``mercer.sklearn``; scikit-learn must be installed. ``FormulaKernel`` has what
``sklearn.gaussian_process.kernels.Kernel`` asks for: hyper-parameters with bounds, their logarithms
``theta``, and the gradient by them, so that it stands alone, in sums and in products with
scikit-learn's kernels. Estimators that take a kernel, as ``KernelRidge(kernel=...)``, ask it for
whole matrices.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

import mercer as mc
from mercer import _sparse
from mercer._types import FormulaLike

__all__ = ["FormulaKernel"]

_BOUNDS = (1e-5, 1e5)


class FormulaKernel(Kernel):
    """A formula of points divided by a length scale, for scikit-learn's Gaussian processes.

    f: a formula without weights w, symmetric and positive definite, as verbs take it. length_scale:
    a number, or one for each feature; None for points as they are. params: the parameters of the
    formula, positive numbers by name. The bounds are those of scikit-learn: a pair, or "fixed";
    params_bounds also a dict of them by name, with the default for all others. Raises ValueError
    for names that the formula does not read and for bounds of names that params lacks, and, of
    gradients, NotImplementedError for a formula that has no text: with arrays, reductions of its
    own or PTX.

    >>> k = FormulaKernel("exp(-sum(abs(x-z)^p)/b)", [1.0, 1.0, 2.0], params={"p": 1.3, "b": 1.0})
    >>> GaussianProcessRegressor(1.0 * k + WhiteKernel()).fit(rows, targets)
    """

    def __init__(
        self, f: FormulaLike, length_scale: Any = 1.0, length_scale_bounds: Any = _BOUNDS,
        params: dict[str, Any] | None = None, params_bounds: Any = _BOUNDS,
    ) -> None:  # fmt: skip
        self.f = f
        self.length_scale = length_scale
        self.length_scale_bounds = length_scale_bounds
        self.params = params
        self.params_bounds = params_bounds

    @property
    def hyperparameters(self) -> list[Hyperparameter]:
        """The length scale, where there is one, then the parameters in their order."""
        found = []
        if self.length_scale is not None:
            if "length_scale" in (self.params or {}):
                raise ValueError(
                    "FormulaKernel: a parameter must not be named length_scale where points have "
                    "one; give length_scale=None, or name it otherwise. Received both"
                )
            count = np.size(self.length_scale)
            found.append(Hyperparameter("length_scale", "numeric", self.length_scale_bounds, count))
        bounds = self._bounds_by_name()
        return [*found, *(Hyperparameter(name, "numeric", bounds[name]) for name in bounds)]

    def _bounds_by_name(self) -> dict[str, Any]:
        params = self.params or {}
        if not isinstance(self.params_bounds, dict):
            return dict.fromkeys(params, self.params_bounds)
        unknown = [name for name in self.params_bounds if name not in params]
        if unknown:
            raise ValueError(
                "FormulaKernel: params_bounds must name parameters among "
                f"{sorted(params)}. Received {unknown}"
            )
        return {name: self.params_bounds.get(name, _BOUNDS) for name in params}

    def _value(self, name: str) -> Any:
        return self.length_scale if name == "length_scale" else (self.params or {})[name]

    @property
    def theta(self) -> np.ndarray:
        """The logarithms of the hyper-parameters that are not fixed."""
        free = [np.atleast_1d(self._value(h.name)) for h in self.hyperparameters if not h.fixed]
        return np.log(np.concatenate(free)) if free else np.array([])

    @theta.setter
    def theta(self, theta: np.ndarray) -> None:
        values, at = np.exp(theta), 0
        params = dict(self.params or {})
        for h in self.hyperparameters:
            if h.fixed:
                continue
            taken = values[at : at + h.n_elements]
            at += h.n_elements
            if h.name == "length_scale":
                self.length_scale = taken if np.ndim(self.length_scale) else float(taken[0])
            else:
                params[h.name] = float(taken[0])
        if at != len(values):
            raise ValueError(
                f"FormulaKernel: theta must have {at} numbers, those of the hyper-parameters that "
                f"are not fixed. Received {len(values)}"
            )
        self.params = None if self.params is None else params

    def _scaled(self, x: Any) -> np.ndarray:
        if _sparse.is_sparse(x):
            raise TypeError(
                f"FormulaKernel: points must be dense. Received {type(x).__name__}; "
                "pass X.toarray()"
            )
        x = np.atleast_2d(np.asarray(x, np.float64))
        if self.length_scale is None:
            return x
        scale = np.asarray(self.length_scale, np.float64)
        if scale.ndim > 1 or scale.size not in (1, x.shape[1]):
            raise ValueError(
                f"FormulaKernel: length_scale must be a number or have one for each of the "
                f"{x.shape[1]} features. Received the shape {scale.shape}"
            )
        return x / scale

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        """The matrix [n, m] of X with Y, or with itself; with eval_gradient (of X alone) also its
        gradient [n, n, d] by theta."""
        if eval_gradient and Y is not None:
            raise ValueError("Gradient can only be evaluated when Y is None.")
        x, params = self._scaled(X), self.params or {}
        matrix = mc.pairwise(self.f, x, None if Y is None else self._scaled(Y), **params)
        return (matrix, self._gradient(x)) if eval_gradient else matrix

    def _gradient(self, x: np.ndarray) -> np.ndarray:
        parts: list[np.ndarray] = []
        params = self.params or {}
        for h in self.hyperparameters:
            if h.fixed:
                continue
            if h.name == "length_scale":
                parts += self._by_length_scale(x)
            else:
                by = _by_parameter(_text(self.f), h.name)
                parts.append(params[h.name] * mc.pairwise(by, x, **_read(by, params)))
        return np.stack(parts, -1) if parts else np.empty((len(x), len(x), 0))

    def _by_length_scale(self, x: np.ndarray) -> list[np.ndarray]:
        """A feature's weight says whether its length scale is the one that is differentiated by."""
        by, count = _by_stretch(_text(self.f)), x.shape[1]
        weights = np.eye(count) if np.ndim(self.length_scale) else np.ones((1, count))
        if np.size(self.length_scale) == 1:
            weights = np.ones((1, count))
        params = {**(self.params or {}), "stretch": 0.0}
        return [-mc.pairwise(by, x, w=w, **_read(by, params)) for w in weights]

    def diag(self, X: Any) -> np.ndarray:
        """The diagonal [n] of the matrix."""
        x = self._scaled(X)
        return mc.paired_distances(x, x, metric=mc.kernel(self.f), **(self.params or {}))

    def is_stationary(self) -> bool:
        """Whether the formula's text reads points as differences x - z or z - x alone."""
        kernel = mc.kernel(self.f)
        rest = _DIFFERENCE.sub(r"\1", str(kernel))
        return _is_whole(kernel) and not re.search(r"\b(x|z|row|col|i|j)\b", rest)

    def __repr__(self) -> str:
        values = [f"{h.name}={np.round(self._value(h.name), 3)}" for h in self.hyperparameters]
        return f"FormulaKernel({', '.join([repr(str(self.f)), *values])})"


#: A difference that opens an argument or a parenthesis. In the text of a formula an operator that
#: binds tighter than the minus has no spaces around it, so nothing takes z or x from the minus.
_DIFFERENCE = re.compile(r"(\(|, )(?:x - z|z - x)(?=[), ])")


def _is_whole(kernel: mc.Kernel) -> bool:
    """Whether its text reads back as the kernel."""
    try:
        return mc.kernel(str(kernel)) == kernel
    except ValueError:
        return False


def _text(f: FormulaLike) -> str:
    """The formula as text that reads back as itself."""
    kernel = mc.kernel(f)
    text = str(kernel)
    if not _is_whole(kernel):
        raise NotImplementedError(
            f"FormulaKernel: gradients need a formula that its text says whole, without arrays, "
            f"reductions of its own and PTX. Received {text}"
        )
    if re.search(r"\b(w|stretch)\b", text):
        raise ValueError(
            f"FormulaKernel: a formula must not read w or a parameter named stretch. "
            f"Received {text}"
        )
    return text


@functools.lru_cache(64)
def _by_parameter(text: str, name: str) -> Any:
    return mc.differentiate(mc.kernel(text), name)


@functools.lru_cache(64)
def _by_stretch(text: str) -> Any:
    """The derivative by s, at 0, of the formula of points whose features are 1 + s w as large."""
    stretched = re.sub(r"\b([xz])\b", r"(\1*(1 + stretch*w))", text)
    return mc.differentiate(mc.kernel(stretched), "stretch")


def _read(formula: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The parameters that a derivative still reads."""
    text = str(formula)
    return {name: v for name, v in params.items() if re.search(rf"\b{re.escape(name)}\b", text)}
