"""A program that uses every public name: type checkers accept it, and it runs.

A new public name is used here, or the test of this folder fails.
"""

from __future__ import annotations

import math
from typing import Any

import mercer as mc
import mercer.models as models
import numpy as np
from mercer import errors, kron, linalg, zoo
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

rng = np.random.default_rng(0)
x: Floats = rng.random((12, 3))
z: Floats = rng.random((9, 3))
v: Floats = rng.random(9)
targets: Floats = x[:, 0]
labels: Integers = (x[:, 0] > 0.5).astype(np.int64)


def formulas() -> list[mc.Expr]:
    gap = mc.x - mc.z
    one_argument: list[mc.Expr] = [
        mc.abs(gap), mc.acos(gap), mc.asin(gap), mc.ceil(gap), mc.cos(gap), mc.erf(gap),
        mc.exp(gap), mc.exp2(gap), mc.expm1(gap), mc.floor(gap), mc.log(gap), mc.log1p(gap),
        mc.log2(gap), mc.logical_not(gap), mc.rcp(gap), mc.round(gap), mc.rsqrt(gap),
        mc.sign(gap), mc.sin(gap), mc.sqrt(gap), mc.square(gap), mc.tanh(gap),
    ]  # fmt: skip
    two: list[mc.Expr] = [
        mc.atan2(gap, 1), mc.copysign(gap, mc.x), mc.equal(gap, 0), mc.fma(gap, gap, 1.0),
        mc.logical_and(gap, mc.x), mc.logical_or(gap, mc.z), mc.maximum(gap, 0.0),
        mc.minimum(gap, 0.0), mc.not_equal(gap, 0.0), mc.pow(gap, 2), mc.xlogy(mc.x, mc.z),
        mc.where(mc.x < mc.z, gap, 0.0), mc.where(mc.i == mc.j, 1, mc.row * mc.col),
    ]  # fmt: skip
    features: list[mc.Expr] = [
        mc.sum(mc.w * gap), mc.prod(gap), mc.max(gap), mc.min(gap, 1.0), mc.logsumexp(gap),
        mc.mean(gap) / mc.K, mc.norm(gap, 3), mc.dot(mc.x, mc.z),
    ]  # fmt: skip
    spread = mc.reduce(
        (gap, gap), lambda s, t: (mc.maximum(s[0], t[0]), mc.minimum(s[1], t[1])),
        (-math.inf, math.inf), finish=lambda s: s[0] - s[1],
    )  # fmt: skip
    own = mc.ptx("abs.f32 {out}, {0};", gap, meaning=mc.abs)
    return [*one_argument, *two, *features, spread, mc.sum(own)]


def kernels() -> mc.Kernel:
    bandwidth = mc.param("bandwidth", 2.0)
    written = mc.kernel("exp(-sum(abs(x-z)^p)/bandwidth)")
    traced: mc.Kernel = mc.kernel(lambda x, z, b=1.0: mc.exp(-mc.sum(abs(x - z)) / b))
    built: mc.Kernel = mc.kernel(mc.exp(-mc.sum(abs(mc.x - mc.z)) / bandwidth))
    slope: mc.Kernel = mc.differentiate(built, "x")
    bound: mc.Kernel = written.bind(p=1.5)
    is_same: bool = bound.same(built)
    names: dict[str, Any] = bound.parameters
    assert hash(bound) != hash(slope)
    assert bound.symmetric
    assert not is_same
    assert "bandwidth" in names
    assert traced(x, z).shape == (12, 9)
    mc.explain(built, shape=(8, 8, 2))
    mc.compile(built, shapes=[(4, 4, 2)])
    return mc.parse("sum(abs(x-z))")


def named() -> list[mc.Kernel]:
    every = [getattr(zoo, name)() for name in zoo.__all__]
    return [*every, mc.metric("minkowski", p=1.5), mc.gauss(bandwidth=2.0), mc.zoo.l1()]


def pairs(f: mc.Kernel) -> tuple[Floats, Integers]:
    distances: Floats = mc.cdist(x, z, 1.5, progress=False)
    squares: Floats = mc.pairwise(f, x, z)
    matrix: Floats = mc.kernel_matrix(mc.gauss(), x)
    product: Floats = mc.kernel_product(f, x, z, v)
    slopes: Floats = mc.kernel_gradient(f, x, z, v)
    outer: Floats = mc.kernel_agop(f, x, z, v)
    field: Floats = mc.gradient_field("x-z", x, z, distances, v)
    nearest: Integers = mc.kernel_reduce(f, x, z, "argmin")
    total: Floats = mc.kernel_reduce(f, x, z, "sum")
    values, indices = mc.knn(f, x, z, 3)
    by_name: dict[str, Any] = mc.parameter_gradient("sum(abs(x-z)^p)", x, z, squares, p=1.5)
    vectors: Floats = mc.kernel_sum("sum(x*z)*(x-z)*v", x, z, v=v)
    condensed: Floats = mc.pdist(x)
    square: Floats = mc.squareform(condensed)
    paired: Floats = mc.paired_distances(x, x)
    size: int = mc.workspace_size("pairwise", f, x, z)
    assert size == 0
    assert set(by_name) == {"p"}
    for array in (matrix, product, vectors, slopes, outer, field, nearest, total, square, paired):
        assert array.ndim
    found: Floats = values
    return found, indices


def chosen_pairs() -> Floats:
    rows, cols = np.array([0, 0, 3]), np.array([1, 2, 0])
    values: Floats = mc.edges("l1", x, z, rows, cols)
    summed: Floats = mc.edge_product("l1", x, z, rows, cols, v)
    largest: Floats = mc.edge_reduce("l1", x, z, rows, cols, "max")
    pointers, indices, near = mc.radius_neighbors("l1", x, None, 0.5)
    graph = mc.knn_graph("l1", x, None, 2)
    assert mc.csr_rows(pointers).shape == indices.shape == near.shape
    order, intervals = mc.cluster_ranges(labels)
    ranges = mc.block_ranges(intervals, intervals, np.eye(len(intervals), dtype=bool))
    blocks: Floats = mc.kernel_product("l1", x[order], None, x[order, 0], ranges=ranges)
    assert len(graph) == 3
    assert values.ndim == summed.ndim == largest.ndim
    return blocks


def algebra() -> Floats:
    a: Floats = mc.kernel_matrix(mc.gauss(), x) + np.eye(12)
    factor: Floats = linalg.cholesky(a)
    lu, pivots = linalg.lu_factor(a)
    rows: Integers = pivots
    checked, info = linalg.solve_cholesky(a, targets, check=False)
    orders: Integers = info
    solutions: list[Floats] = [
        linalg.cho_solve(factor, targets), linalg.cho_inverse(factor),
        linalg.cho_inverse_diagonal(factor), linalg.solve_cholesky(a, targets, jitter=1e-6),
        linalg.solve_lu(a, targets), linalg.lu_solve((lu, rows), targets), checked,
        linalg.solve_triangular(factor, targets), linalg.minres(a, targets),
    ]  # fmt: skip
    values, vectors = linalg.eigh(a)
    quadratic, logdet = linalg.inv_quad_logdet(a, targets)
    operator = linalg.KernelOperator(mc.gauss(), x, ridge=1.0)
    helpers: list[linalg.Preconditioner] = [
        linalg.nystrom(operator, 4), linalg.rpcholesky(operator, 4),
        linalg.pivoted_cholesky(operator, 4),
    ]  # fmt: skip
    found: Floats = linalg.cg(operator, targets, preconditioner=helpers[1])
    _, _, products = linalg.cg(a, targets, check=False)
    counts: Integers = products
    top, _ = linalg.eigh_top(operator, 2)
    assert linalg.sap(operator, targets, block=6).shape == found.shape
    assert orders.ndim == counts.ndim == 0
    assert len(solutions) + values.size + vectors.size + top.size > quadratic.size + logdet.size
    return found


def products() -> Floats:
    factors: list[Floats] = [np.eye(2) * 2, np.eye(3) + 0.1]
    b: Floats = rng.random((4, 6))
    right: Floats = kron.matmul(b, factors)
    left: Floats = kron.kron_matmul(factors, b.T)
    between: list[Floats] = kron.intermediates(b, factors)
    solved: Floats = kron.solve(factors, left, shift=0.1)
    values, vectors = kron.eigh(factors)
    assert kron.logdet(factors) > 0
    assert right.shape == between[0].shape
    assert values.size == len(vectors) * 3
    assert callable(kron.tune)
    assert callable(kron.linear_operator)
    return solved


def settings() -> str:
    threads: int = mc.get_num_threads()
    mc.set_num_threads(threads)
    mc.set_target(mc.get_target())
    mc.set_precision(mc.get_precision())
    with mc.options(threads=1, target="interpreter"):
        assert mc.get_num_threads() == 1
    mc.clear_plans()
    assert mc.plan_count() == 0
    with mc.patch("scipy.spatial.distance.cdist"):
        pass
    mc.unpatch()
    assert callable(mc.tune)
    return mc.info() + mc.__version__


def refusals() -> list[type[Exception]]:
    try:
        mc.cdist(x, z[:, :2])
    except errors.DtypeError:
        raise
    except ValueError:
        pass
    return [mc.CompileError, mc.DeviceError, mc.DtypeError, mc.LinAlgError, errors.LinAlgError]


def fits() -> list[Any]:
    regressors = [
        models.GaussianProcessRegressor(), models.KNeighborsRegressor(), models.KernelRidge(),
        models.KernelRidgeCV(), models.RFMRegressor(n_rounds=1),
        models.SparseGaussianProcessRegressor(n_inducing=4),
    ]  # fmt: skip
    classifiers = [
        models.KNeighborsClassifier(), models.KernelLogisticRegression(),
        models.KernelRidgeClassifier(), models.RFMClassifier(n_rounds=1),
    ]  # fmt: skip
    others = [
        models.KNeighborsTransformer(n_neighbors=2), models.KernelDensity(),
        models.KernelPCA(2), models.Nystroem(n_components=4), models.SpectralEmbedding(),
    ]  # fmt: skip
    test: models.PermutationTest = models.MMD(n_permutations=9, random_state=0).test(x, z)
    assert models.HSIC(n_permutations=9, random_state=0).test(x, x).p_value <= 1
    assert 0 < test.p_value <= 1
    assert models.KernelRidge().fit(x, targets).predict(z).shape == (9,)
    return [*regressors, *classifiers, *others]


def main() -> None:
    formulas()
    named()
    pairs(kernels())
    chosen_pairs()
    algebra()
    products()
    settings()
    refusals()
    fits()


if __name__ == "__main__":
    main()
