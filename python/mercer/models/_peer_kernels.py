"""scikit-learn's names of kernels, with its parameters gamma, degree and coef0."""

from __future__ import annotations

from typing import Any

import mercer as mc
from mercer.models._arrays import Space
from mercer.models._kernels import FittedKernel, check_precomputed, fit_kernel

_COSINE = (
    "nx = sqrt(sum(x*x)); nz = sqrt(sum(z*z)); "
    "sum((x/where(nx == 0, 1, nx))*(z/where(nz == 0, 1, nz)))"
)
_CHI2 = "s = x + z; sum(square(x - z)/where(s == 0, 1, s))"
#: Name -> formula and the parameters that it reads.
_TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "linear": ("sum(x*z)", ()),
    "polynomial": ("(gamma*sum(x*z) + coef0)^degree", ("gamma", "degree", "coef0")),
    "rbf": ("exp(-gamma*sum(square(x - z)))", ("gamma",)),
    "laplacian": ("exp(-gamma*sum(abs(x - z)))", ("gamma",)),
    "sigmoid": ("tanh(gamma*sum(x*z) + coef0)", ("gamma", "coef0")),
    "cosine": (_COSINE, ()),
    "chi2": (_CHI2.replace("sum(", "exp(-gamma*sum(") + ")", ("gamma",)),
    "additive_chi2": (_CHI2.replace("sum(", "-sum("), ()),
}
_TEXTS["poly"] = _TEXTS["polynomial"]


def is_peer(kernel: Any) -> bool:
    """Whether scikit-learn has a kernel of this name."""
    return isinstance(kernel, str) and kernel in _TEXTS


def fit_peer_kernel(
    kernel: Any,
    x: Any,
    space: Space,
    *,
    gamma: float | None = None,
    degree: float | None = None,
    coef0: float | None = None,
    bandwidth: float | str = "scale",
    kernel_params: dict[str, Any] | None = None,
    random_state: Any = None,
) -> FittedKernel:
    """A kernel by scikit-learn's name, or what ``fit_kernel`` takes, on points x [n, d].

    None stands for scikit-learn's values: gamma 1/d, of "chi2" 1, degree 3 and coef0 1. Raises
    ValueError for a precomputed kernel that is no symmetric matrix, and for unknown parameters.
    """
    if not is_peer(kernel):
        fitted = fit_kernel(
            kernel, x, space, bandwidth=bandwidth, kernel_params=kernel_params,
            random_state=random_state,
        )  # fmt: skip
        if fitted.precomputed:
            check_precomputed(x)
        return fitted
    text, names = _TEXTS[kernel]
    unknown = set(kernel_params or {}) - set(names)
    if unknown:
        raise ValueError(
            f"kernel_params: the parameters of {kernel} are {sorted(names)}. "
            f"Received {sorted(unknown)}"
        )
    values = {"gamma": gamma, "degree": degree, "coef0": coef0, **(kernel_params or {})}
    plain = {"gamma": 1.0 if kernel == "chi2" else 1 / x.shape[1], "degree": 3, "coef0": 1.0}
    params = {name: plain[name] if values[name] is None else values[name] for name in names}
    formula = mc.kernel(text)
    if "degree" in params:  # a constant, so that odd powers of negative numbers stay negative
        formula = formula.bind(degree=params.pop("degree"))
    return FittedKernel(formula, {name: float(value) for name, value in params.items()})
