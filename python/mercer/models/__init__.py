"""Kernel models in scikit-learn's conventions. Needs scikit-learn: ``pip install mercer[models]``.

Estimators take arrays of NumPy, pandas, PyTorch, CuPy and JAX and answer in kind, and arrays of
Dask and DTensors where products suffice; fitted arrays stay where the fit computed. ``kernel`` is a
name of the zoo, the text of a formula, an expression, a function of two points, or "precomputed".
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any

if _TYPE_CHECKING:
    from mercer.models.decomposition import KernelPCA, Nystroem
    from mercer.models.density import KernelDensity
    from mercer.models.feature_machine import RFMClassifier, RFMRegressor
    from mercer.models.gaussian_process import GaussianProcessRegressor
    from mercer.models.logistic import KernelLogisticRegression
    from mercer.models.neighbors import (
        KNeighborsClassifier,
        KNeighborsRegressor,
        KNeighborsTransformer,
    )
    from mercer.models.ridge import KernelRidge, KernelRidgeClassifier
    from mercer.models.ridge_cv import KernelRidgeCV
    from mercer.models.sparse_gaussian_process import SparseGaussianProcessRegressor
    from mercer.models.spectral_embedding import SpectralEmbedding
    from mercer.models.two_samples import HSIC, MMD, PermutationTest

#: Which module has which name; a module is imported when one of its names is first asked for.
_HOMES: dict[str, str] = {
    "GaussianProcessRegressor": "gaussian_process",
    "HSIC": "two_samples",
    "KNeighborsClassifier": "neighbors",
    "KNeighborsRegressor": "neighbors",
    "KNeighborsTransformer": "neighbors",
    "KernelDensity": "density",
    "KernelLogisticRegression": "logistic",
    "KernelPCA": "decomposition",
    "KernelRidge": "ridge",
    "KernelRidgeCV": "ridge_cv",
    "KernelRidgeClassifier": "ridge",
    "MMD": "two_samples",
    "Nystroem": "decomposition",
    "PermutationTest": "two_samples",
    "RFMClassifier": "feature_machine",
    "RFMRegressor": "feature_machine",
    "SparseGaussianProcessRegressor": "sparse_gaussian_process",
    "SpectralEmbedding": "spectral_embedding",
}

__all__ = [
    "HSIC",
    "MMD",
    "GaussianProcessRegressor",
    "KNeighborsClassifier",
    "KNeighborsRegressor",
    "KNeighborsTransformer",
    "KernelDensity",
    "KernelLogisticRegression",
    "KernelPCA",
    "KernelRidge",
    "KernelRidgeCV",
    "KernelRidgeClassifier",
    "Nystroem",
    "PermutationTest",
    "RFMClassifier",
    "RFMRegressor",
    "SparseGaussianProcessRegressor",
    "SpectralEmbedding",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = _importlib.import_module(f"mercer.models.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise ModuleNotFoundError(
            "mercer.models needs scikit-learn 1.6 or newer: pip install 'mercer[models]'",
            name="sklearn",
        ) from error
    return getattr(home, name)


def __dir__() -> list[str]:
    return __all__
