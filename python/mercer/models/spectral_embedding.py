"""Laplacian eigenmaps with scikit-learn's conventions, of a kernel or a graph of neighbours."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components, laplacian
from scipy.sparse.linalg import eigsh
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, check_symmetric
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import validate_data

import mercer as mc
from mercer._progress import between
from mercer.models._arrays import Data, host, restores, validate
from mercer.models._base import why_not_products
from mercer.models._kernels import PRECOMPUTED, FittedKernel
from mercer.models._neighbour_lists import refuse_negative, smallest
from mercer.models._peer_kernels import fit_peer_kernel, is_peer
from mercer.models._rules import BANDWIDTH, DEVICE, KERNEL, check, refuse_ignored
from mercer.models._spectra import flipped, normalised_top

__all__ = ["SpectralEmbedding"]

_GRAPHS = ("nearest_neighbors", "precomputed_nearest_neighbors")
_SMALL = 256  # of a graph of so many points all eigenvectors are computed


class SpectralEmbedding(BaseEstimator):
    """Coordinates that keep what is alike together: scikit-learn's estimator on Mercer's products.

    affinity: "nearest_neighbors", a graph of n_neighbors (n/10 unless given); a kernel, as that of
    KernelPCA, with gamma, bandwidth and kernel_params; "precomputed", affinities [n, n], dense or
    sparse; or "precomputed_nearest_neighbors", distances [n, n]. The eigenvectors of a kernel are
    found by products, those of a graph by SciPy's sparse solver on the host. eigen_tol: of the
    eigenvectors; "auto" is near rounding. device: where host arrays are computed with, such as
    "cuda". progress: a fit of more than two seconds shows a bar. eigen_solver and n_jobs are
    scikit-learn's and change nothing.

    After ``fit``: ``embedding_`` [n, n_components], ``n_neighbors_`` or ``bandwidth_`` and
    ``gamma_``, ``affinity_matrix_``, which for a kernel is computed when it is asked for, and
    ``n_features_in_``.

    >>> SpectralEmbedding(2, affinity="matern52", bandwidth=0.5).fit_transform(X)

    Source: Belkin & Niyogi 2003; normalised as by von Luxburg 2007.
    """

    embedding_: Any
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "affinity": KERNEL,
        "gamma": [Interval(Real, 0, None, closed="left"), None],
        "random_state": ["random_state"],
        "eigen_solver": [StrOptions({"arpack", "lobpcg", "amg"}), None],
        "eigen_tol": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "n_neighbors": [Interval(Integral, 1, None, closed="left"), None],
        "n_jobs": [None, Integral],
        "bandwidth": BANDWIDTH,
        "kernel_params": [Mapping, None],
        "device": DEVICE,
        "progress": ["boolean"],
    }

    def __init__(
        self, n_components: int = 2, *, affinity: Any = "nearest_neighbors",
        gamma: float | None = None, random_state: Any = None, eigen_solver: str | None = None,
        eigen_tol: float | str = "auto", n_neighbors: int | None = None,
        n_jobs: int | None = None, bandwidth: float | str = "scale",
        kernel_params: dict[str, Any] | None = None, device: str | None = None,
        progress: bool = False,
    ) -> None:  # fmt: skip
        self.n_components = n_components
        self.affinity = affinity
        self.gamma = gamma
        self.random_state = random_state
        self.eigen_solver = eigen_solver
        self.eigen_tol = eigen_tol
        self.n_neighbors = n_neighbors
        self.n_jobs = n_jobs
        self.bandwidth = bandwidth
        self.kernel_params = kernel_params
        self.device = device
        self.progress = progress

    @restores
    def fit(self, X: Any, y: Any = None) -> SpectralEmbedding:
        """X: [n, d], or affinities or distances [n, n]; y is ignored. Returns the estimator.

        Raises ValueError for NaN, wrong shapes and parameters out of their range. Warns where the
        graph is not connected.
        """
        self._embed(X)
        return self

    @restores
    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """The coordinates [n, n_components] of the points X [n, d]."""
        data = self._embed(X)
        return self.embedding_ if data is None else data.like(self.embedding_)

    @property
    def affinity_matrix_(self) -> Any:
        """Affinities [n, n] that were embedded: a sparse matrix for graphs."""
        if "_affinity" not in vars(self):
            raise AttributeError("affinity_matrix_: the estimator is not fitted")
        kernel, x = self._affinity
        return x if kernel is None or kernel.precomputed else kernel.matrix(x)

    def _embed(self, X: Any) -> Data | None:
        check(self)
        if self._kind() in (PRECOMPUTED, *_GRAPHS):
            because = f"affinity={self.affinity!r}"
            refuse_ignored(self, because, "gamma", "kernel_params", "bandwidth")
        elif is_peer(self.affinity):
            refuse_ignored(self, f"affinity={self.affinity!r}", "bandwidth")
        else:
            refuse_ignored(self, "an affinity that is not scikit-learn's", "gamma")
        if self._kind() == PRECOMPUTED and scipy.sparse.issparse(X):
            x = validate_data(self, X, accept_sparse="csr", ensure_min_samples=2)
            self._of_graph(check_symmetric(x))
            return None
        data = validate(self, X, device=self.device, min_samples=2)
        if self._kind() in _GRAPHS:
            with between(0, 0.5, "neighbours", is_one_call=True):
                graph = self._neighbour_graph(data)
            with between(0.5, 1, "eigenvectors of the graph"):
                self._of_graph(graph)
            self.embedding_ = data.space.array(self.embedding_)
        else:
            self._of_kernel(data)
        return data

    _takes: ClassVar[tuple[str, ...]] = ("dask", "dtensor")

    def _why_not(self, kind: str) -> str | None:
        if self._kind() in (PRECOMPUTED, *_GRAPHS):
            return f"affinity={self.affinity!r} needs the points in memory, a kernel does not"
        return why_not_products(self, kind)

    def _kind(self) -> str | None:
        return self.affinity if isinstance(self.affinity, str) else None

    def _neighbour_graph(self, data: Data) -> Any:
        n, x = data.x.shape[0], data.x
        self.n_neighbors_ = self.n_neighbors or max(n // 10, 1)
        if self.n_neighbors_ > n:
            raise ValueError(
                f"Expected n_neighbors <= n_samples_fit, but n_neighbors = {self.n_neighbors_}, "
                f"n_samples_fit = {n}, n_samples = {n}"
            )
        if self._kind() == "nearest_neighbors":
            indices = mc.knn("sqeuclidean", x, x, k=self.n_neighbors_)[1]
        else:
            if x.shape[1] != n:
                raise ValueError(f"Precomputed matrix must be square. Received {tuple(x.shape)}")
            refuse_negative(x)
            indices = smallest(x, self.n_neighbors_, data.space)[1]
        starts = np.arange(0, n * self.n_neighbors_ + 1, self.n_neighbors_)
        ones = np.ones(n * self.n_neighbors_)
        graph = scipy.sparse.csr_matrix((ones, host(indices).ravel(), starts), shape=(n, n))
        return 0.5 * (graph + graph.T)

    def _of_graph(self, graph: Any) -> None:
        self._affinity: tuple[FittedKernel | None, Any] = (None, graph)
        _warn_of_parts(graph)
        k, n = self.n_components + 1, graph.shape[0]
        matrix, roots = laplacian(graph, normed=True, return_diag=True)
        matrix = scipy.sparse.csr_matrix(matrix)
        matrix.setdiag(1)
        if n <= _SMALL or k >= n:
            vectors = np.linalg.eigh(matrix.toarray())[1][:, :k]
        else:
            start = check_random_state(self.random_state).uniform(-1, 1, n)
            tol = 0.0 if isinstance(self.eigen_tol, str) else self.eigen_tol
            # Shifted and inverted: the smallest eigenvalues come first.
            vectors = eigsh(matrix, k, sigma=-1e-5, which="LM", tol=tol, v0=start)[1]
        self.embedding_ = flipped(vectors / roots[:, None])[:, 1:]

    def _of_kernel(self, data: Data) -> None:
        space, x = data.space, data.x
        self.gamma_ = 1 / x.shape[1] if self.gamma is None else self.gamma
        kernel = fit_peer_kernel(
            self.affinity, x, space, gamma=self.gamma_, bandwidth=self.bandwidth,
            kernel_params=self.kernel_params, random_state=self.random_state,
        )  # fmt: skip
        if kernel.precomputed:
            _warn_of_parts(host(x))
        self.bandwidth_ = kernel.bandwidth
        tol = 0.0 if isinstance(self.eigen_tol, str) else self.eigen_tol
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        vectors, roots = normalised_top(
            kernel, x, min(self.n_components + 1, x.shape[0]), space, tol=tol, seed=seed
        )
        self._affinity = (kernel, x)
        self.embedding_ = space.array(flipped(vectors / roots[:, None])[:, 1:])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._kind() in (PRECOMPUTED, "precomputed_nearest_neighbors")
        tags.input_tags.sparse = self._kind() == PRECOMPUTED
        return tags


def _warn_of_parts(affinities: Any) -> None:
    if connected_components(scipy.sparse.csr_matrix(affinities), directed=False)[0] > 1:
        warnings.warn(
            "Graph is not fully connected, spectral embedding may not work as expected.",
            stacklevel=6,
        )
