"""Kernel PCA and Nystroem's features with scikit-learn's conventions, by products and few rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_psd_eigenvalues, check_is_fitted

import mercer as mc
from mercer._progress import between
from mercer.models._arrays import host, library_of, like, restores, validate
from mercer.models._base import why_not_products
from mercer.models._kernels import PRECOMPUTED, FittedKernel
from mercer.models._landmarks import rpcholesky_landmarks
from mercer.models._peer_kernels import fit_peer_kernel, is_peer
from mercer.models._rules import BANDWIDTH, DEVICE, KERNEL, check, refuse_ignored
from mercer.models._spectra import centred_top, flipped
from mercer.models._spread import Ready, by_rows, kind_of

__all__ = ["KernelPCA", "Nystroem"]


class KernelPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Kernel principal components: scikit-learn's estimator on products with the kernel.

    n_components: None for all of them. kernel: a name of scikit-learn ("linear", "poly", "rbf",
    "sigmoid", "cosine", "laplacian", "chi2"), which reads gamma, degree and coef0; a name of the
    zoo, the text of a formula, an expression or a function of two points, whose parameters are
    kernel_params and ``bandwidth`` (a number, "scale" or "median"); or "precomputed". alpha: ridge
    of the inverse map, learned with fit_inverse_transform=True. eigen_solver: "dense" factors the
    matrix, "arpack" and "randomized" mean eigenpairs by products; "auto" does so for up to n/20
    components. tol: of these eigenpairs, 0 for 1e-12 in float64 and 2e-6 in float32. device: where
    host arrays are computed with, such as "cuda". progress: a call of more than two seconds shows a
    bar. max_iter, iterated_power, copy_X and n_jobs are scikit-learn's and change nothing.

    After ``fit``: ``eigenvalues_`` [k] descending, ``eigenvectors_`` [n, k], ``X_fit_``,
    ``gamma_``, ``bandwidth_``, ``n_features_in_``, with the inverse map ``dual_coef_`` and
    ``X_transformed_fit_``.

    >>> KernelPCA(2, kernel="matern52", bandwidth="median").fit_transform(X)

    Source: Schoelkopf, Smola & Mueller 1998; the inverse map: Bakir, Weston & Schoelkopf 2004.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "kernel": KERNEL,
        "gamma": [Interval(Real, 0, None, closed="left"), None],
        "degree": [Interval(Real, 0, None, closed="left")],
        "coef0": [Interval(Real, None, None, closed="neither")],
        "kernel_params": [Mapping, None],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "fit_inverse_transform": ["boolean"],
        "eigen_solver": [StrOptions({"auto", "dense", "arpack", "randomized"})],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left"), None],
        "iterated_power": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "remove_zero_eig": ["boolean"],
        "random_state": ["random_state"],
        "copy_X": ["boolean"],
        "n_jobs": [None, Integral],
        "bandwidth": BANDWIDTH,
        "device": DEVICE,
        "progress": ["boolean"],
    }

    def __init__(
        self, n_components: int | None = None, *, kernel: Any = "linear",
        gamma: float | None = None, degree: float = 3, coef0: float = 1,
        kernel_params: dict[str, Any] | None = None, alpha: float = 1.0,
        fit_inverse_transform: bool = False, eigen_solver: str = "auto", tol: float = 0,
        max_iter: int | None = None, iterated_power: int | str = "auto",
        remove_zero_eig: bool = False, random_state: Any = None, copy_X: bool = True,
        n_jobs: int | None = None, bandwidth: float | str = "scale", device: str | None = None,
        progress: bool = False,
    ) -> None:  # fmt: skip
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.kernel_params = kernel_params
        self.alpha = alpha
        self.fit_inverse_transform = fit_inverse_transform
        self.eigen_solver = eigen_solver
        self.tol = tol
        self.max_iter = max_iter
        self.iterated_power = iterated_power
        self.remove_zero_eig = remove_zero_eig
        self.random_state = random_state
        self.copy_X = copy_X
        self.n_jobs = n_jobs
        self.bandwidth = bandwidth
        self.device = device
        self.progress = progress

    @restores
    def fit(self, X: Any, y: Any = None) -> KernelPCA:
        """X: [n, d], or the kernel matrix [n, n]; y is ignored. Returns the estimator.

        Raises ValueError for NaN, wrong shapes, parameters out of their range, a kernel with
        markedly negative eigenvalues, and for an inverse map of a precomputed kernel.
        """
        self._fitted(X)
        return self

    @restores
    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """The components [n, k] of the points X [n, d] that are fitted."""
        data = self._fitted(X)
        return data.like(self._scores())

    def _fitted(self, X: Any) -> Any:
        check(self)
        if self._given_matrix():
            names = ("gamma", "degree", "coef0", "kernel_params", "bandwidth")
            refuse_ignored(self, "kernel='precomputed'", *names)
        elif is_peer(self.kernel):
            refuse_ignored(self, f"kernel={self.kernel!r}", "bandwidth")
        else:
            refuse_ignored(self, "a kernel that is not scikit-learn's", "gamma", "degree", "coef0")
        if self.fit_inverse_transform and self._given_matrix():
            raise ValueError("Cannot fit_inverse_transform with a precomputed kernel.")
        data = validate(self, X, device=self.device)
        self.gamma_ = 1 / data.x.shape[1] if self.gamma is None else self.gamma
        self._space = data.space
        copies = self.copy_X and data.x is X and not kind_of(X)
        self.X_fit_ = data.x + 0 if copies else data.x
        self._kernel = self._kernel_on(data.x)
        self.bandwidth_ = self._kernel.bandwidth
        with between(0, 0.8 if self.fit_inverse_transform else 1):
            self._decompose()
        if self.fit_inverse_transform:
            with between(0.8, 1, "inverse map"):
                self._learn_inverse()
        return data

    _takes: ClassVar[tuple[str, ...]] = ("dask", "dtensor")

    def _why_not(self, kind: str) -> str | None:
        if self.n_components is None:
            return "n_components=None needs the matrix in memory, a number does not"
        if self.fit_inverse_transform:
            return "fit_inverse_transform needs the matrix in memory"
        return why_not_products(self, kind, eigen_solver=("dense",))

    def _given_matrix(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == PRECOMPUTED

    def _kernel_on(self, x: Any) -> FittedKernel:
        return fit_peer_kernel(
            self.kernel, x, self._space, gamma=self.gamma_, degree=self.degree, coef0=self.coef0,
            bandwidth=self.bandwidth, kernel_params=self.kernel_params,
            random_state=self.random_state,
        )  # fmt: skip

    def _decompose(self) -> None:
        n = self.X_fit_.shape[0]
        k = n if self.n_components is None else min(n, self.n_components)
        by_products = {"auto": None, "dense": False}.get(self.eigen_solver, True)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        values, vectors, self._means = centred_top(
            self._kernel, self.X_fit_, k, self._space, tol=self.tol, by_products=by_products,
            seed=seed,
        )  # fmt: skip
        values = _check_psd_eigenvalues(values, enable_warnings=False)
        if self.remove_zero_eig or self.n_components is None:
            positive = values > 0
            values, vectors = values[positive], vectors[:, self._space.index(positive.nonzero()[0])]
        self.eigenvalues_ = self._space.array(values)
        self.eigenvectors_ = self._space.array(flipped(vectors))

    def _scores(self) -> Any:
        return self.eigenvectors_ * self._space.xp.sqrt(self.eigenvalues_)

    def _learn_inverse(self) -> None:
        """Kernel ridge regression of the points on their components."""
        scores = self._space.array(self._scores())
        own = is_peer(self.kernel) or not isinstance(self.bandwidth, str)
        self._inverse_kernel = self._kernel if own else self._kernel_on(scores)
        matrix = self._inverse_kernel.matrix(scores)
        matrix.reshape(-1)[:: matrix.shape[0] + 1] += self.alpha
        self.dual_coef_ = mc.linalg.solve_cholesky(matrix, self.X_fit_, overwrite_a=True)
        self.X_transformed_fit_ = scores

    @by_rows
    def transform(self, X: Any) -> Any:
        """The components [m, k] of the points X [m, d], or of kernel rows [m, n]."""
        check_is_fitted(self)
        data, scaled = validate(self, X, reset=False, space=self._space), self._scaled()
        n, sums, means = self.X_fit_.shape[0], scaled.sum(0), self._means
        product = X.parts[0] if isinstance(X, Ready) else self._parts(data.x)[0]
        shift = means @ scaled - means.sum() / n * sums
        return data.like(product[:, :-1] - product[:, -1:] * sums - shift)

    def _scaled(self) -> Any:
        """Eigenvectors over the roots of their eigenvalues; components of the null space are 0."""
        roots = self._space.xp.sqrt(self.eigenvalues_)
        return self.eigenvectors_ / (roots + (roots == 0)) * (roots != 0)

    def _parts(self, x: Any) -> tuple[Any]:
        """The kernel of x [m, d] and the fitted points times these, and its means: [m, k + 1]."""
        n, scaled = self.X_fit_.shape[0], self._scaled()
        columns = self._space.zeros(n, scaled.shape[1] + 1) + 1 / n
        columns[:, :-1] = scaled
        return (self._kernel.product(x, self.X_fit_, columns),)

    @by_rows
    def inverse_transform(self, X: Any) -> Any:
        """Points [m, d] whose components are near X [m, k].

        Raises NotFittedError without fit_inverse_transform=True.
        """
        if not self.fit_inverse_transform:
            raise NotFittedError(
                "The fit_inverse_transform parameter was not set to True when instantiating and "
                "hence the inverse transform is not available."
            )
        check_is_fitted(self)
        width = self.X_transformed_fit_.shape[1]
        if library_of(X) == "numpy":
            X = check_array(X, dtype=[np.float64, np.float32], input_name="X")
        if X.ndim != 2 or X.shape[1] != width:
            raise ValueError(
                f"X has {X.shape[-1]} features, but {type(self).__name__}.inverse_transform "
                f"expects {width} components as input."
            )
        scores = self._space.array(X)
        product = self._inverse_kernel.product(scores, self.X_transformed_fit_, self.dual_coef_)
        return like(product, X)

    @property
    def _n_features_out(self) -> int:
        return self.eigenvalues_.shape[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.pairwise = self._given_matrix()
        return tags


class Nystroem(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Features whose dot products are near a kernel: scikit-learn's estimator on fused products.

    kernel, gamma, coef0, degree, kernel_params, bandwidth, device and progress: those of KernelPCA;
    None stands for scikit-learn's values. With kernel="precomputed" ``fit`` takes the matrix [n, n]
    and ``transform`` rows [m, n]. n_components: how many landmarks. landmarks: "uniform" draws them
    as scikit-learn does, for the same seed the same ones; "rpcholesky" by randomly pivoted
    Cholesky, which represents the kernel better and reads n_components of its rows. n_jobs changes
    nothing.

    After ``fit``: ``components_`` [k, d], ``component_indices_`` [k], ``normalization_`` [k, k],
    ``bandwidth_``, ``n_features_in_``.

    >>> Nystroem("matern32", n_components=300, landmarks="rpcholesky").fit_transform(X)

    Source: Williams & Seeger 2001; landmarks: Chen, Epperly, Tropp & Webber 2025.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel": KERNEL,
        "gamma": [Interval(Real, 0, None, closed="left"), None],
        "coef0": [Interval(Real, None, None, closed="neither"), None],
        "degree": [Interval(Real, 1, None, closed="left"), None],
        "kernel_params": [Mapping, None],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "n_jobs": [Integral, None],
        "landmarks": [StrOptions({"uniform", "rpcholesky"})],
        "bandwidth": BANDWIDTH,
        "device": DEVICE,
        "progress": ["boolean"],
    }

    def __init__(
        self, kernel: Any = "rbf", *, gamma: float | None = None, coef0: float | None = None,
        degree: float | None = None, kernel_params: dict[str, Any] | None = None,
        n_components: int = 100, random_state: Any = None, n_jobs: int | None = None,
        landmarks: str = "uniform", bandwidth: float | str = "scale", device: str | None = None,
        progress: bool = False,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.gamma = gamma
        self.coef0 = coef0
        self.degree = degree
        self.kernel_params = kernel_params
        self.n_components = n_components
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.landmarks = landmarks
        self.bandwidth = bandwidth
        self.device = device
        self.progress = progress

    @restores
    def fit(self, X: Any, y: Any = None) -> Nystroem:
        """X: [n, d], or the kernel matrix [n, n]; y is ignored. Returns the estimator.

        Raises ValueError for NaN, wrong shapes, parameters out of their range, and for gamma,
        coef0 or degree of a kernel that is none of scikit-learn's. Warns where n_components > n.
        """
        self._fitted(X)
        return self

    def _fitted(self, X: Any, last: float = 1) -> Any:
        check(self)
        self._refuse_parameters()
        data = validate(self, X, device=self.device)
        x, self._space = data.x, data.space
        self._kernel = self._kernel_on(x)
        self.bandwidth_ = self._kernel.bandwidth
        self._kernel.require_symmetric()
        with between(0, 0.8 * last):
            chosen = self._chosen(x)
        rows = self._space.index(chosen)
        basis = x[rows][:, rows] if self._kernel.precomputed else x[rows]
        self.components_ = self._space.array(basis)
        self.component_indices_ = chosen
        with between(0.8 * last, last, "root of the matrix of landmarks"):
            root = _inverse_root(self._kernel, self.components_)
        self.normalization_ = self._space.array(root)
        self._n_features_out = len(chosen)
        return data

    @restores
    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """The features [n, k] of the points X [n, d] that are fitted."""
        data = self._fitted(X)
        with between(0.5, 1, "features", is_one_call=True):
            return data.like(self._features(data.x))

    def _refuse_parameters(self) -> None:
        given = (self.gamma, self.coef0, self.degree)
        if not is_peer(self.kernel) and any(value is not None for value in given):
            raise ValueError(
                "Don't pass gamma, coef0 or degree to Nystroem if using a callable or precomputed "
                "kernel, or one of Mercer's. Pass kernel_params"
            )
        if isinstance(self.kernel, str) and self.kernel == PRECOMPUTED:
            refuse_ignored(self, "kernel='precomputed'", "kernel_params", "bandwidth")
        elif is_peer(self.kernel):
            refuse_ignored(self, f"kernel={self.kernel!r}", "bandwidth")

    def _kernel_on(self, x: Any) -> FittedKernel:
        return fit_peer_kernel(
            self.kernel, x, self._space, gamma=self.gamma, degree=self.degree, coef0=self.coef0,
            bandwidth=self.bandwidth, kernel_params=self.kernel_params,
            random_state=self.random_state,
        )  # fmt: skip

    def _chosen(self, x: Any) -> np.ndarray:
        n, rng = x.shape[0], check_random_state(self.random_state)
        if self.n_components > n:
            warnings.warn(
                "n_components > n_samples. This is not possible.\n"
                "n_components was set to n_samples, which results in inefficient evaluation of the "
                "full kernel.",
                stacklevel=5,
            )
        count = min(n, self.n_components)
        if self.landmarks == "rpcholesky":
            return rpcholesky_landmarks(self._kernel, x, count, rng, self._space)
        return rng.permutation(n)[:count]

    @by_rows
    def transform(self, X: Any) -> Any:
        """The features [m, k] of the points X [m, d], or of kernel rows [m, n]."""
        check_is_fitted(self)
        data = validate(self, X, reset=False, space=self._space)
        return data.like(self._features(data.x))

    def _features(self, x: Any) -> Any:
        if self._kernel.precomputed:
            x = x[:, self._space.index(self.component_indices_)]
        return self._kernel.product(x, self.components_, self._space.array(self.normalization_.T))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.pairwise = isinstance(self.kernel, str) and self.kernel == PRECOMPUTED
        return tags


def _inverse_root(kernel: FittedKernel, basis: Any) -> np.ndarray:
    """K^(-1/2) of the landmarks [k, k] on the host, singular values kept from 0."""
    matrix = host(kernel.matrix(basis))
    u, s, v = np.linalg.svd(matrix.astype(np.float64))
    noise = 1e-12 if matrix.dtype == np.float64 else s[0] * float(np.finfo(matrix.dtype).eps)
    return u / np.sqrt(np.maximum(s, max(noise, 1e-12))) @ v
