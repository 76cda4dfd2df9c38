"""What is measured on a GPU: formulas, data, peers, and bars.

A bar in milliseconds belongs to one kind of GPU (``BARS_FOR``) and to the full size; elsewhere only
the share of the floor, the error and the ratio count.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from . import gpu_peers
from .gpu_peers import Peer

BARS_FOR = "NVIDIA H200"
LARGE = (30000, 30000, 1024)
SMALL = (2048, 2048, 256)
H_OF_TWO = 2048.0  # of the row with two sums: about the mean square

# A function of differences x - z, float64 [..., K]: the value, or the derivative by x.
OfDifferences = Callable
# As `OfDifferences`, a function of x [..., K] and z [N, K].
OfPoints = Callable


def power_sum(d: Any, p: float) -> Any:
    return d.abs().pow(p).sum(-1)


def norm(p: float) -> OfDifferences:
    """The norm of the differences."""
    if math.isinf(p):
        return lambda d: d.abs().amax(-1)
    return lambda d: power_sum(d, p).pow(1 / p)


def norm_slope(p: float) -> OfDifferences:
    """The norm's derivative by every feature."""
    return lambda d: d.sign() * d.abs().pow(p - 1) * power_sum(d, p).pow(1 / p - 1).unsqueeze(-1)


def norm_text(p: float) -> str:
    return {
        1: "sum(abs(x-z))", 2: "sqrt(sum((x-z)^2))", math.inf: "max(abs(x-z))",
    }.get(p, f"sum(abs(x-z)^{p:g})^(1/{p:g})")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Bars:
    """The most milliseconds that are accepted, and those to reach for."""

    least: float | None = None
    reach: float | None = None
    of_floor: float | None = None  # the least share of the floor, in place of milliseconds
    error: float | None = 1e-6
    ratio: float | None = None
    of_tile: float | None = None  # the most times that the matrix of the pairs alone takes


@dataclasses.dataclass(frozen=True)
class Pairs:
    """out[m, n] = formula(x_m, z_n)."""

    name: str
    formula: str
    reference: OfDifferences
    shape: tuple[int, int, int] = LARGE
    data: str = "normal"
    dtype: str = "float32"
    out: str = "float32"
    params: dict = dataclasses.field(default_factory=dict)
    mixed_pipes: bool = True  # the range of the data allows them: the floor counts them
    products: int = 3  # on tensor cores: 1 where values have no low pieces
    precision: str = "fp32"
    same: bool = False  # z is x
    of_points: bool = False  # the reference takes x and z, and the error is one of |x| |z|
    peers: tuple[Peer, ...] = ()
    bars: Bars = Bars()


@dataclasses.dataclass(frozen=True)
class Several:
    """Pairs for several values of a parameter that only the epilogue reads: one accumulation."""

    name: str
    formula: str
    reference: Callable[[float], OfDifferences]
    param: str
    values: tuple[float, ...]
    shape: tuple[int, int, int]
    bars: Bars


@dataclasses.dataclass(frozen=True)
class Nearest:
    """The ``count`` smallest of every row."""

    name: str
    formula: str
    reference: OfDifferences
    shape: tuple[int, int, int]
    count: int
    peers: tuple[Peer, ...] = ()
    bars: Bars = Bars()


@dataclasses.dataclass(frozen=True)
class Product:
    """out[m, e] = sum_n formula(x_m, z_n) v[n, e]."""

    name: str
    formula: str
    reference: OfDifferences
    shape: tuple[int, int, int]
    params: dict
    peers: tuple[Peer, ...]
    bars: Bars
    noted: tuple[str, float] | None = None  # a peer's published milliseconds
    columns: int = 1
    data: str = "normal"
    of_median: Callable[[float], Product] | None = None  # the row, by the median squared distance


@dataclasses.dataclass(frozen=True)
class Gradient:
    """out[o, m, k] = sum_n coef[o, n] d formula(x_m, z_n) / d x_mk.

    With ``field``, that of the feature, in place of the derivative, times an amplitude [M, N].
    """

    name: str
    formula: str
    slope: OfDifferences
    shape: tuple[int, int, int] = (10000, 10000, 768)
    outputs: int = 16
    bars: Bars = Bars(error=1e-6)
    params: dict = dataclasses.field(default_factory=dict)
    field: str | None = None
    agop: bool = False  # the gradients' outer products
    peers: tuple[Peer, ...] = ()
    noted: tuple[str, float] | None = None  # a peer's published milliseconds


@dataclasses.dataclass(frozen=True)
class Backward:
    """The gradients of a product with v by x, z and v, by PyTorch's autograd; without columns those
    of the matrix by x and z. With ``weighs`` by the weights of the features, which are 1, too."""

    name: str
    formula: str
    slope: OfDifferences | OfPoints
    shape: tuple[int, int, int]
    columns: int
    params: dict
    peers: tuple[Peer, ...]
    bars: Bars = Bars(error=2e-6)
    of_points: bool = False
    weighs: bool = False


def norm_row(name: str, p: float, least: float | None, reach: float | None, **fields: Any) -> Pairs:
    return Pairs(
        name, norm_text(p), norm(p), peers=(gpu_peers.cdist(p),), bars=Bars(least, reach), **fields
    )


LAPLACE = "exp(-sum(abs(x-z))/bandwidth)"


def laplace(bandwidth: float) -> OfDifferences:
    return lambda d: (-power_sum(d, 1) / bandwidth).exp()


GAUSS = "exp(-sum((x-z)^2)/(2*h^2))"


def gauss(h: float) -> OfDifferences:
    return lambda d: (-power_sum(d, 2) / (2 * h * h)).exp()


def laplace_row(features: int) -> Pairs:
    return Pairs(
        f"laplace-k{features}",
        LAPLACE,
        laplace(features),
        (30000, 30000, features),
        params={"bandwidth": float(features)},
        peers=(gpu_peers.laplace(features),),
        bars=Bars(of_floor=1 / 1.25, error=2e-6),
        mixed_pipes=False,  # the floor is that of two additions a term
    )


def laplace_product_row(
    points: int, features: int, columns: int, least: float | None, noted: float | None
) -> Product:
    return Product(
        f"product-d{features}" + (f"-{columns}" if columns > 1 else ""),
        LAPLACE,
        laplace(features),
        (points, points, features),
        {"bandwidth": float(features)},
        (gpu_peers.laplace_product(features, columns),),
        Bars(least, error=2e-6),
        None if noted is None else ("KeOps (notes)", noted),
        columns,
    )


def gauss_product_row(
    points: int,
    features: int,
    columns: int,
    least: float | None,
    reach: float | None,
    noted: float | None,
) -> Product:
    h = features**0.5
    return Product(
        f"gauss-product-d{features}-{columns}",
        GAUSS,
        gauss(h),
        (points, points, features),
        {"h": h},
        (gpu_peers.gauss_product(h, columns),),
        Bars(least, reach, error=2e-6),
        None if noted is None else ("KeOps (notes)", noted),
        columns,
    )


def gauss_width_row(points: int, features: int, columns: int, width: float) -> Product:
    """exp(-s / h), h ``width`` times the features; narrow values may lose as much of themselves."""
    h = (width * features / 2) ** 0.5
    return dataclasses.replace(
        gauss_product_row(points, features, columns, None, None, None),
        name=f"gauss-product-d{features}-{columns}-width-{width:g}",
        reference=gauss(h),
        params={"h": h},
        peers=(gpu_peers.gauss_product(h, columns),),
        bars=Bars(error=2e-6 + 2e-6 / width),
    )


def gauss_data_row(points: int, features: int, columns: int, data: str) -> Product:
    """h is the median squared distance of such data."""
    name = f"gauss-product-d{features}-{columns}-{data}"

    def of_median(square: float) -> Product:
        row = gauss_width_row(points, features, columns, square / features)
        return dataclasses.replace(row, name=name, data=data)

    return dataclasses.replace(of_median(2.0 * features), of_median=of_median)


def p2_row(name: str, least: float, reach: float | None, **fields: Any) -> Pairs:
    """Distances on tensor cores."""
    peers = (gpu_peers.cdist(2, mm=True),)
    return Pairs(name, norm_text(2), norm(2), peers=peers, bars=Bars(least, reach), **fields)


def matern52(h: float) -> OfDifferences:
    def kernel(d: Any) -> Any:
        r = (5 * power_sum(d, 2)).sqrt() / h
        return (1 + r + r * r / 3) * (-r).exp()

    return kernel


def kernel_row(name: str, formula: str, kernel: Callable[[float], OfDifferences]) -> Pairs:
    """A function of the squared distance."""
    h = 40.0
    return Pairs(
        name,
        formula,
        kernel(h),
        params={"h": h},
        peers=(gpu_peers.gauss(h),),
        bars=Bars(10.5, 9, error=2e-6),
    )


def product_kernel_row(name: str, formula: str, reference: Callable) -> Pairs:
    """A function of x · z."""
    return Pairs(
        name,
        formula,
        reference,
        of_points=True,
        peers=(gpu_peers.matmul(),),
        bars=Bars(9.8, 8, error=4e-6),
    )


def double_row(
    name: str, formula: str, reference: Callable, peer: Peer | None = None, of_points: bool = False
) -> Pairs:
    """Products of matrices in float64: 40e12 operations a second, two a pair and feature."""
    shape = (16384, 16384, 1024)
    operations = 2 * shape[0] * shape[1] * shape[2]
    return Pairs(
        name,
        formula,
        reference,
        shape,
        dtype="float64",
        out="float64",
        of_points=of_points,
        peers=(peer or gpu_peers.matmul(),),
        bars=Bars(operations / 40e12 * 1e3, error=1e-13),
    )


C = 0.5
PAIRS = (
    norm_row("p1-normal", 1, 50, 45),
    norm_row("p1-uniform", 1, 50, 45, data="uniform"),
    norm_row("p1-integer", 1, 50, 45, data="integer"),
    norm_row("p1-lognormal", 1, 70, 62, data="lognormal", mixed_pipes=False),
    norm_row("p1-mixed", 1, 70, 62, data="mixed", mixed_pipes=False),
    Pairs(
        "p2-direct",
        norm_text(2),
        norm(2),
        precision="direct",
        products=0,
        peers=(gpu_peers.cdist(2, mm=False), gpu_peers.cdist(2, mm=True)),
        bars=Bars(66, 60),
    ),
    p2_row("p2", 9.8, 8.4),
    p2_row("p2-symmetric", 6, 4.8, same=True),
    p2_row("p2-integer", 4.5, 3.2, data="integer", products=1),
    p2_row("p2-uniform", 9.8, 8.4, data="uniform"),
    p2_row("p2-lognormal", 9.8, 8.4, data="lognormal"),
    p2_row("p2-mixed", 9.8, 8.4, data="mixed"),
    p2_row("p2-clusters-1%", 13, None, data="100 clusters in order"),
    p2_row("p2-scattered-1%", 17, None, data="100 clusters"),
    p2_row("p2-scattered-10%", 60, None, data="10 clusters"),
    p2_row("p2-clusters-10%", 30, None, data="10 clusters in order"),
    p2_row("p2-halves", 76, None, data="2 clusters in order"),
    p2_row("p2-small", 0.055, 0.03, shape=SMALL),
    Pairs(
        "p2-k64",
        norm_text(2),
        norm(2),
        (8192, 8192, 64),
        peers=(gpu_peers.cdist(2, mm=True),),
        bars=Bars(of_floor=1 / 1.5),
    ),
    Pairs(
        "p2-tf32",
        norm_text(2),
        norm(2),
        precision="tf32",
        products=1,
        peers=(gpu_peers.cdist(2, mm=True),),
        bars=Bars(error=2**-11),
    ),
    kernel_row("gauss", GAUSS, gauss),
    kernel_row(
        "laplace-l2", "exp(-sqrt(sum((x-z)^2))/h)", lambda h: lambda d: (-norm(2)(d) / h).exp()
    ),
    kernel_row(
        "matern52",
        "(1 + sqrt(5*sum((x-z)^2))/h + 5*sum((x-z)^2)/(3*h^2))*exp(-sqrt(5*sum((x-z)^2))/h)",
        matern52,
    ),
    product_kernel_row("dot", "sum(x*z)", lambda x, z: (x * z).sum(-1)),
    product_kernel_row(
        "cosine",
        "sum(x*z)/sqrt(sum(x*x)*sum(z*z))",
        lambda x, z: (x * z).sum(-1) / (x.square().sum(-1) * z.square().sum(-1)).sqrt(),
    ),
    product_kernel_row(
        "polynomial", "(sum(x*z)/K + 1)^3", lambda x, z: ((x * z).mean(-1) + 1) ** 3
    ),
    Pairs(
        "gauss-dot",
        "exp(-sum((x-z)^2)/h)*sum(x*z)",
        lambda x, z: (-(x - z).square().sum(-1) / H_OF_TWO).exp() * (x * z).sum(-1),
        params={"h": H_OF_TWO},
        of_points=True,
        peers=(gpu_peers.gauss_times_product(H_OF_TWO),),
        bars=Bars(error=4e-6),
    ),
    norm_row("p1.3", 1.3, 310, 270),
    norm_row("p1.5", 1.5, 215, 190),
    norm_row("p3", 3, 95, 88),
    norm_row("linf", math.inf, 70, 64),
    Pairs(
        "user",
        "sum(max(abs(x-z)-c,0)^2)",
        lambda d: (d.abs() - C).clamp(min=0).square().sum(-1),
        params={"c": C},
        # abs(x-z)-c cancels: the relative error of one term is not bounded.
        bars=Bars(of_floor=0.9, error=None),
    ),
    norm_row("p1-small", 1, 0.08, None, shape=SMALL),
    norm_row("p1.3-small", 1.3, 0.40, None, shape=SMALL),
    laplace_row(3),
    laplace_row(8),
    laplace_row(32),
    Pairs(
        "p1-uint8",
        norm_text(1),
        norm(1),
        data="integer",
        dtype="uint8",
        peers=(gpu_peers.cdist(1),),
        bars=Bars(18),
    ),
    Pairs(
        "p1-float64",
        norm_text(1),
        norm(1),
        (8192, 8192, 1024),
        dtype="float64",
        out="float64",
        peers=(gpu_peers.cdist(1),),
        bars=Bars(error=1e-14),
    ),
    double_row("p2-float64", norm_text(2), norm(2), peer=gpu_peers.cdist(2, mm=True)),
    double_row("dot-float64", "sum(x*z)", lambda x, z: (x * z).sum(-1), of_points=True),
    Pairs(
        "p1-bfloat16",
        norm_text(1),
        norm(1),
        dtype="bfloat16",
        peers=(gpu_peers.cdist(1),),
    ),
    Pairs(
        "p1-bfloat16-out",
        norm_text(1),
        norm(1),
        dtype="bfloat16",
        out="bfloat16",
        peers=(gpu_peers.cdist(1),),
        bars=Bars(error=2**-8),
    ),
)


def nearest_row(p: float, m: int, n: int, d: int, k: int) -> Nearest:
    return Nearest(
        f"knn-p{p:g}-{d}-{k}",
        norm_text(p),
        norm(p),
        (m, n, d),
        k,
        peers=(gpu_peers.nearest(p, k),),
        bars=Bars(of_tile=1.3 if p == 2 else None),
    )


NEAREST = (
    nearest_row(2, 100000, 1000000, 128, 16),
    nearest_row(2, 20000, 1000000, 128, 256),
    nearest_row(2, 100000, 100000, 64, 16),
    nearest_row(2, 100000, 100000, 784, 16),
    nearest_row(1, 20000, 100000, 128, 16),
)

PRODUCTS = (
    *(
        dataclasses.replace(
            gauss_product_row(50000, 64, columns, None, None, None),
            bars=Bars(of_floor=1 / 1.3, error=2e-6),
        )
        for columns in (64, 512)
    ),
    laplace_product_row(100000, 3, 1, 3.8, 5.64),
    laplace_product_row(100000, 16, 1, 10.5, 21.9),
    laplace_product_row(10000, 784, 10, 5.5, 33.9),
    laplace_product_row(10000, 784, 64, None, None),
    laplace_product_row(10000, 784, 512, None, None),
    laplace_product_row(20000, 64, 128, None, None),
    *(
        dataclasses.replace(
            laplace_product_row(m, features, columns, None, None), shape=(m, n, features)
        )
        for m, n, features, columns in ((2116, 321, 609, 449), (18384, 189, 6, 503))
    ),
    gauss_product_row(100000, 3, 1, 3.6, 2.8, 5.6),
    gauss_product_row(100000, 3, 16, 5, 3.5, 16.9),
    gauss_product_row(50000, 64, 1, 3.2, 2.2, 37.5),
    gauss_product_row(50000, 64, 16, 3.4, 2.2, 28.1),
    gauss_product_row(50000, 20, 1, None, None, None),
    gauss_product_row(50000, 20, 16, None, None, None),
    gauss_product_row(20000, 256, 1, 2, 1.4, 37.6),
    gauss_product_row(10000, 784, 10, 1.5, 1.1, 33.9),
    gauss_product_row(10000, 784, 512, None, None, None),
    *(
        gauss_width_row(points, features, columns, width)
        for points, features, columns in ((100000, 3, 16), (50000, 64, 16), (50000, 64, 64))
        for width in (1, 0.25)
    ),
    *(gauss_data_row(50000, 64, 16, data) for data in ("lognormal", "sparse", "mixed")),
)


def field_row(p: float, outputs: int, least: float, reach: float, noted: float | None) -> Gradient:
    """The contraction of four tensors: points, centres, amplitudes, coefficients."""
    power = {1.0: "", 2.0: "*abs(x-z)"}.get(p, f"*abs(x-z)^{p - 1:g}")
    return Gradient(
        f"field-p{p:g}" + (f"-{outputs}" if outputs != 16 else ""),
        f"sum(abs(x-z)^{p:g})",  # its derivative is p times the field: the same floor
        lambda d: d.sign() * d.abs().pow(p - 1),
        outputs=outputs,
        bars=Bars(least, reach, error=1e-6),
        field="x-z" if p == 2 else "sign(x-z)" + power,
        noted=None if noted is None else ("kermac (notes)", noted),
    )


def gauss_slope(h: float) -> OfDifferences:
    return lambda d: gauss(h)(d).unsqueeze(-1) * d * (-1 / h**2)


def laplace_l2_slope(h: float) -> OfDifferences:
    return lambda d: (-norm(2)(d) / h).exp().unsqueeze(-1) * norm_slope(2)(d) * (-1 / h)


def gauss_gradient_row(points: int, features: int, outputs: int) -> Gradient:
    h = math.sqrt(features)
    return Gradient(
        f"gradient-gauss-d{features}-{outputs}",
        GAUSS,
        gauss_slope(h),
        (points, points, features),
        outputs,
        params={"h": h},
        peers=(gpu_peers.gauss_gradients(h, outputs),),
    )


H = 30.0
GRADIENTS = (
    field_row(1, 16, 14, 10, 110),
    field_row(2, 16, 12.5, 11.5, 105),
    field_row(1.3, 16, 47, 38, 119),
    field_row(1, 1, 10, 7, None),
    field_row(1, 64, 36, 30, None),
    *(Gradient(f"gradient-p{p:g}", norm_text(p), norm_slope(p)) for p in (1, 2, 1.3)),
    *(
        Gradient(
            name,
            GAUSS,
            gauss_slope(H),
            params={"h": H},
            bars=Bars(16.3, error=1e-6),
            agop=name == "agop-gauss",
            peers=(gpu_peers.gauss_gradients(H, 16, name == "agop-gauss"),),
        )
        for name in ("gradient-gauss", "agop-gauss")
    ),
    Gradient(
        "gradient-laplace-l2",
        "exp(-sqrt(sum((x-z)^2))/h)",
        laplace_l2_slope(H),
        params={"h": H},
        bars=Bars(16.3, error=1e-6),
    ),
    gauss_gradient_row(50000, 64, 1),
    gauss_gradient_row(50000, 20, 4),
)


def gauss_backward_row(points: int, features: int, columns: int) -> Backward:
    h = math.sqrt(features)
    peer = gpu_peers.gauss_backward(h, columns) if columns else gpu_peers.gauss_matrix_backward(h)
    return Backward(
        f"gauss-backward-d{features}-{columns or 'matrix'}",
        GAUSS,
        gauss_slope(h),
        (points, points, features),
        columns,
        {"h": h},
        (peer,),
    )


def weights_backward_row(points: int, features: int, columns: int) -> Backward:
    h = math.sqrt(features)
    return Backward(
        f"gauss-backward-d{features}-{columns}-weights",
        "exp(-sum(w*(x-z)^2)/(2*h^2))",
        gauss_slope(h),
        (points, points, features),
        columns,
        {"h": h},
        (gpu_peers.gauss_weights_backward(h, columns),),
        weighs=True,
    )


def cosine_slope(x: Any, z: Any) -> Any:
    norm_x, norm_z = x.norm(dim=-1, keepdim=True), z.norm(dim=-1, keepdim=True)
    unit_x, unit_z = x / norm_x, z / norm_z
    return (unit_z - unit_x * (unit_x * unit_z).sum(-1, keepdim=True)) / norm_x


def cosine_backward_row(points: int, features: int, columns: int) -> Backward:
    return Backward(
        f"cosine-backward-d{features}-{columns}",
        "sum(x*z)/sqrt(sum(x*x)*sum(z*z))",
        cosine_slope,
        (points, points, features),
        columns,
        {},
        (gpu_peers.cosine_backward(columns),),
        of_points=True,
    )


BACKWARDS = (
    gauss_backward_row(100000, 3, 1),
    gauss_backward_row(100000, 3, 16),
    gauss_backward_row(50000, 64, 1),
    gauss_backward_row(50000, 64, 16),
    gauss_backward_row(50000, 64, 512),
    gauss_backward_row(20000, 3, 0),
    gauss_backward_row(20000, 64, 0),
    gauss_backward_row(20000, 784, 0),
    weights_backward_row(20000, 3, 1),
    weights_backward_row(20000, 64, 16),
    weights_backward_row(10000, 784, 10),
    cosine_backward_row(20000, 64, 1),
    cosine_backward_row(20000, 64, 16),
    cosine_backward_row(10000, 784, 10),
)

SEVERAL = (
    Several(
        "laplace-8",
        LAPLACE,
        laplace,
        "bandwidth",
        (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0),
        (8192, 8192, 64),
        Bars(0.64, error=2e-6, ratio=3),
    ),
    Several(
        "gauss-8",
        GAUSS,
        gauss,
        "h",
        tuple(5.0 * (i + 1) for i in range(8)),
        (16384, 16384, 128),
        Bars(of_floor=1 / 1.2, error=2e-6),
    ),
)

# Milliseconds on any machine: the host's part.
CACHED_CALL_BAR = 12e-3
COLD_BARS = {"cold-l1": 300.0, "cold-l2": 800.0, "cold-lp": 450.0}
DISK_BAR = 5.0
