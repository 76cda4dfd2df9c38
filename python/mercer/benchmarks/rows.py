"""What is measured: formulas, peers, and bars (least ratios, least shares of the floor)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from . import peers
from .peers import Peer

Reference = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Rival:
    name: str
    make: Peer
    bar: float | None = None


@dataclasses.dataclass(frozen=True)
class Pairwise:
    """out[m, n] = formula(x_m, z_n), float32, one thread."""

    name: str
    formula: str
    reference: Reference  # of one x [K] and all z [N, K], in float64
    rivals: tuple[Rival, ...] = ()
    floor_bar: float | None = None
    params: dict = dataclasses.field(default_factory=dict)
    error_bar: float | None = 1e-6
    fp64_bar: float | None = 0.45  # least rate of float64 in terms of float32's


@dataclasses.dataclass(frozen=True)
class Product:
    """out[m] = sum_n kernel(x_m, z_n) v[n], float32, one thread."""

    name: str
    formula: str
    reference: Reference
    rivals: tuple[Rival, ...]
    gamma: float
    floor_bar: float | None = None
    fp64_bar: float | None = 0.22


PAIRWISE = (
    Pairwise(
        "l1",
        "sum(abs(x-z))",
        lambda x, z: np.abs(x - z).sum(1),
        (
            Rival("scipy cityblock (f64)", peers.scipy_cdist("cityblock"), 15),
            Rival("torch cdist p=1", peers.torch_cdist(1.0), 20),
            Rival("scikit-learn manhattan", peers.sklearn_pairwise("manhattan_distances")),
        ),
        floor_bar=0.85,
    ),
    Pairwise(
        "l2",
        "sqrt(sum((x-z)^2))",
        lambda x, z: np.sqrt(np.square(x - z).sum(1)),
        (
            Rival("torch cdist (mm)", peers.torch_cdist(2.0, "use_mm_for_euclid_dist"), 1.2),
            Rival("scikit-learn euclidean", peers.sklearn_pairwise("euclidean_distances"), 2.2),
            Rival("scipy euclidean (f64)", peers.scipy_cdist("euclidean")),
        ),
        floor_bar=0.88,
    ),
    Pairwise(
        "dot",
        "sum(x*z)",
        lambda x, z: z @ x,
        (
            Rival("numpy matmul", peers.numpy_matmul, 1.0),
            Rival("torch matmul", peers.torch_matmul),
        ),
        error_bar=1e-6,  # of |x||z|
    ),
    Pairwise(
        "linf",
        "max(abs(x-z))",
        lambda x, z: np.abs(x - z).max(1),
        (
            Rival("scipy chebyshev (f64)", peers.scipy_cdist("chebyshev"), 12),
            Rival("torch cdist p=inf", peers.torch_cdist(float("inf"))),
        ),
        floor_bar=0.88,
    ),
    Pairwise(
        "abs3",
        "sum(abs(x-z)^3)",
        lambda x, z: (np.abs(x - z) ** 3).sum(1),
        (Rival("scipy minkowski p=3", peers.scipy_cdist("minkowski", p=3.0)),),
        floor_bar=0.88,
    ),
    Pairwise(
        "p1.3",
        "sum(abs(x-z)^1.3)^(1/1.3)",
        lambda x, z: (np.abs(x - z) ** 1.3).sum(1) ** (1 / 1.3),
        (
            Rival("scipy minkowski p=1.3", peers.scipy_cdist("minkowski", p=1.3), 55),
            Rival("torch cdist p=1.3", peers.torch_cdist(1.3), 25),
        ),
        fp64_bar=0.22,
    ),
    Pairwise(
        "user",
        "sum(max(abs(x-z)-c,0)^2)",
        lambda x, z: np.square(np.maximum(np.abs(x - z) - 0.5, 0)).sum(1),
        floor_bar=0.90,
        params={"c": 0.5},
        error_bar=None,  # abs(x-z)-c cancels: the relative error of one term is not bounded
    ),
)

GAMMA = 1 / 64
PRODUCTS = (
    Product(
        "gauss-product",
        f"exp(-sum((x-z)^2)*{GAMMA})",
        lambda x, z: np.exp(-GAMMA * np.square(x - z).sum(1)),
        (
            Rival("scikit-learn rbf @ v", peers.sklearn_product("rbf_kernel", GAMMA), 8),
            Rival("torch cdist, exp, @ v", peers.torch_product(2.0, GAMMA)),
        ),
        GAMMA,
    ),
    Product(
        "laplace-product",
        f"exp(-sum(abs(x-z))*{GAMMA})",
        lambda x, z: np.exp(-GAMMA * np.abs(x - z).sum(1)),
        (
            Rival(
                "scikit-learn laplacian @ v", peers.sklearn_product("laplacian_kernel", GAMMA), 30
            ),
            Rival("torch cdist, exp, @ v", peers.torch_product(1.0, GAMMA)),
        ),
        GAMMA,
    ),
)


@dataclasses.dataclass(frozen=True)
class Mask:
    """A product of which a condition on i and j leaves a part. The bar: the least gain."""

    name: str
    condition: str
    keeps: Callable[[np.ndarray, np.ndarray, int], np.ndarray]  # i, j and their number
    bar: float


MASKS = (
    Mask("triangle", "j <= i", lambda i, j, n: j <= i, 1 / 0.55),
    Mask("band", "abs(i-j) < width", lambda i, j, n: abs(i - j) < n // 20, 1 / 0.13),
)

AVX2_FLOOR_BAR = 0.80
THREADS_BAR = 1.85
JIT_BAR_SECONDS = 200e-6
INTERPRETER_BAR = 1 / 8
