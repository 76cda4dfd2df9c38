"""mercer.compat.pykeops: operations, reductions and public tutorials against float64 NumPy."""

from __future__ import annotations

import importlib
import importlib.resources
import math
import sys

import mercer.compat
import numpy as np
import pytest
from mercer._vectors.nodes import KEOPS
from mercer.compat.pykeops._formulas import FUNCTIONS
from mercer.compat.pykeops._lazy import REFUSED

RNG = np.random.default_rng(3)
M, N, D = 9, 11, 3
X, Y = RNG.uniform(0.2, 0.9, (M, D)), RNG.uniform(0.2, 0.9, (N, D))
B = RNG.standard_normal((N, 2))
PAIRS = X[:, None], Y[None]
SQUARED = ((PAIRS[0] - PAIRS[1]) ** 2).sum(-1)
K = np.exp(-SQUARED / 0.3)


class Library:
    """pykeops of a library, and arrays of it."""

    def __init__(self, name):
        self.name, self.xp = name, pytest.importorskip(name)
        self.keops = importlib.import_module(f"mercer.compat.pykeops.{name}")
        self.cluster = importlib.import_module(f"mercer.compat.pykeops.{name}.cluster")

    def array(self, values):
        return self.xp.asarray(values)

    def i(self, values=X):
        return self.keops.LazyTensor(self.array(values)[:, None, :])

    def j(self, values=Y):
        return self.keops.LazyTensor(self.array(values)[None, :, :])

    def gauss(self, width=0.3):
        return (-((self.i() - self.j()) ** 2).sum(-1) / width).exp()


@pytest.fixture(params=["numpy", "torch"])
def of(request):
    return Library(request.param)


def check(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-10, atol=1e-11)


def test_deep_formulas_are_refused(of):
    total = of.gauss()
    for _ in range(100):
        total = total + of.gauss()
    check(total.sum(1), 101 * K.sum(1, keepdims=True))
    with pytest.raises(ValueError, match="at most 150 operations deep"):
        sum([of.gauss() for _ in range(100)], total)


def test_infinities_of_one_side(of):
    """They are computed by the library, before the product with numbers of pairs."""
    y = Y.copy()
    y[0] = np.inf, -np.inf, np.nan
    step, relu = np.where(y < 0, 0, 1.0), np.where(y < 0, 0, y)
    check((of.gauss() * of.j(y).step()).sum(1), K @ step)
    check((of.gauss() * of.j(y).clamp(-0.5, 0.5)).sum(1)[:, :2], K @ np.clip(y, -0.5, 0.5)[:, :2])
    with np.errstate(all="raise"):
        found = (of.gauss() * of.j(y).relu()).sum(1)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(K @ relu))
    check(np.asarray(found)[:, 1], (K @ relu)[:, 1])


A, C = PAIRS[0], PAIRS[1] + 0 * PAIRS[0]
UNARY = {
    "exp": np.exp, "log": np.log, "xlogx": lambda a: a * np.log(a), "sin": np.sin, "cos": np.cos,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "abs": np.abs, "sign": np.sign,
    "sinxdivx": lambda a: np.where(a == 0, 1, np.sin(a) / np.where(a == 0, 1, a)),
    "step": lambda a: (a >= 0) * 1.0, "relu": lambda a: np.maximum(a, 0), "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a), "inv": lambda a: 1 / a, "square": np.square,
    "__neg__": np.negative, "__abs__": np.abs,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_argument(of, name):
    of_points = name in ("asin", "acos", "log", "xlogx", "sqrt", "rsqrt")
    lazy, expected = (of.i() * of.j(), A * C) if of_points else (of.i() - of.j(), A - C)
    with np.errstate(all="ignore"):
        expected = UNARY[name](expected)
    check(getattr(lazy, name)().sum(-1).sum(1), expected.sum((1, 2))[:, None])
    check(getattr(lazy, name)().sum(1), expected.sum(1))
    if of_points:  # functions of arrays, times a kernel
        one_sided = getattr(of.i(), name)() * getattr(of.j(), name)() * of.gauss()
        check(one_sided.sum(1), (UNARY[name](A) * UNARY[name](C) * K[..., None]).sum(1))


@pytest.mark.parametrize(
    ("lazy", "expected"),
    [
        (lambda x, y: x + y * 2 - 0.5, lambda a, c: a + c * 2 - 0.5),
        (lambda x, y: 1 / (x * y) + (2 - y) / x, lambda a, c: 1 / (a * c) + (2 - c) / a),
        (lambda x, y: (x * y) ** 1.5 + x**3 + y**0.5, lambda a, c: (a * c) ** 1.5 + a**3 + c**0.5),
        (lambda x, y: 2 ** (x * y) + x**y, lambda a, c: 2 ** (a * c) + a**c),
        (lambda x, y: x.atan2(y) + x.power(2), lambda a, c: np.arctan2(a, c) + a * a),
        (lambda x, y: (x - y).clamp(-0.1, 0.2), lambda a, c: np.clip(a - c, -0.1, 0.2)),
        (lambda x, y: (x - y).ifelse(x, 3 * y), lambda a, c: np.where(a >= c, a, 3 * c)),
        (lambda x, y: (9 * (x - y)).mod(2, 0.5), lambda a, c: np.mod(9 * (a - c) - 0.5, 2) + 0.5),
        (lambda x, y: (x < y) * y + (x >= y) * x, lambda a, c: np.maximum(a, c)),
        (lambda x, y: (x <= 0.5) + (y > 0.5) + x.eq(x) - y.ne(y),
         lambda a, c: 1.0 * (a <= 0.5) + (c > 0.5) + 1.0),
    ],
)  # fmt: skip
def test_functions_of_several_arguments(of, lazy, expected):
    values = expected(A, C) if expected is not None else None
    if "mod" in lazy.__code__.co_names:  # x - n floor((x - offset)/n)
        values = 9 * (A - C) - 2 * np.floor((9 * (A - C) - 0.5) / 2)
    check(lazy(of.i(), of.j()).sum(1), values.sum(1))
    check(lazy(of.i(), of.j()).sum(-1).sum(0), values.sum((0, 2))[:, None])


def test_norms_and_products_of_features(of):
    x, y, gap = of.i(), of.j(), A - C
    for lazy, expected in (
        (x.sqdist(y), (gap**2).sum(-1)), ((x - y).norm2(), np.sqrt((gap**2).sum(-1))),
        ((x - y).norm(2), np.sqrt((gap**2).sum(-1))), (x | y, (A * C).sum(-1)),
        ((x - y).abs().max(-1), abs(gap).max(-1)), ((x * y).min(-1), (A * C).min(-1)),
        ((x - y).weightedsqnorm(0.5), 0.5 * (gap**2).sum(-1)),
        (x.weightedsqdist(y, of.array([1.0, 2.0, 3.0])), (gap**2 * [1, 2, 3]).sum(-1)),
        (x.normalize() | y.normalize(),
         (A * C).sum(-1) / np.sqrt((A**2).sum(-1) * (C**2).sum(-1))),
        (((x - y) / of.array([1.0, 2.0, 3.0])).sqnorm2(), (gap**2 / [1, 4, 9]).sum(-1)),
    ):  # fmt: skip
        check(lazy.sum(1), expected.sum(1)[:, None])


def test_small_matrices(of):
    x, y, gap = of.i(), of.j(), A - C
    entries = np.arange(6.0) + 1
    matrix, values = of.array(entries), entries.reshape(2, 3)
    lazy = of.keops.Pm(matrix)
    moved = (lazy.matvecmult((x - y) * 2) * of.gauss()).sum(1)
    check(moved, (2 * gap @ values.T * K[..., None]).sum(1))
    check(x[..., :2].vecmatmult(lazy).sqdist(y).sum(1),
          ((A[..., :2] @ values - C) ** 2).sum((1, 2))[:, None])  # fmt: skip
    each = RNG.random((M, 6))
    turned = (each.reshape(M, 2, 3) @ X[..., None])[..., 0]
    check(of.i(each).matvecmult(x).sqdist(y[..., :2]).sum(1),
          ((turned[:, None] - C[..., :2]) ** 2).sum((1, 2))[:, None])  # fmt: skip
    metric = np.eye(3) * 2 + 0.5
    metric[0, 1] += 0.3
    weights = of.array(metric.ravel())
    expected = np.einsum("mnk,kl,mnl->mn", gap, metric, gap)
    check(x.weightedsqdist(y, weights).sum(1), expected.sum(1)[:, None])
    k = of.keops.Genred("Exp(-WeightedSqNorm(a, x-y))*b",
                        ["a = Pm(9)", "x = Vi(3)", "y = Vj(3)", "b = Vj(2)"], axis=1)  # fmt: skip
    check(k(weights, of.array(X), of.array(Y), of.array(B)), np.exp(-expected) @ B)
    with pytest.raises(NotImplementedError, match="positive definite"):
        x.weightedsqdist(y, of.array(-metric.ravel()))
    with pytest.raises(NotImplementedError, match="MatVecMult"):
        lazy.matvecmult((x - y).exp())
    with pytest.raises(ValueError, match="a multiple of 3"):
        of.keops.Pm(of.array(np.ones(4))).matvecmult(x)


def test_components(of):
    x, y = of.i(), of.j()
    check((x[..., 0] * y[:, :, 2]).sum(1), (A[..., 0] * C[..., 2]).sum(1)[:, None])
    check((x[:, :, 1:] * y.extract(0, 2)).sum(1), (A[..., 1:] * C[..., :2]).sum(1))
    joined = x.concat(y) * of.gauss()
    expected = np.concatenate([A + 0 * C, C], -1) * K[..., None]
    check(joined.sum(1), expected.sum(1))
    check(joined.sqnorm2().sum(1), (expected**2).sum((1, 2))[:, None])
    check(joined.elem(4).sum(0), expected[..., 4].sum(0)[:, None])
    assert type(x).cat((x, y, x), -1).ndim == 9
    assert joined.max(-1).node.dim == 1


def test_shapes(of):
    x, y = of.i(), of.j()
    assert x.shape == (M, 1, D)
    assert (x - y).shape == (M, N, D)
    assert of.gauss().shape == (M, N)
    assert of.gauss().dim() == 3
    assert of.gauss().T.shape == (N, M)
    assert len(x) == M


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions(of, axis):
    lazy, d = (of.i() - of.j()).sqnorm2(), SQUARED if axis else SQUARED.T
    check(lazy.min(axis), d.min(-1)[:, None])
    check(lazy.max(dim=axis), d.max(-1)[:, None])
    check(lazy.argmin(axis), d.argmin(-1)[:, None])
    check(lazy.argmax(dim=axis, backend="GPU"), d.argmax(-1)[:, None])
    check(lazy.Kmin(3, axis), np.sort(d, -1)[:, :3])
    check(lazy.argKmin(3, dim=axis), np.argsort(d, -1)[:, :3])
    for found, expected in zip(lazy.min_argmin(axis), (d.min(-1), d.argmin(-1)), strict=True):
        check(found, expected[:, None])
    for found, expected in zip(lazy.max_argmax(axis), (d.max(-1), d.argmax(-1)), strict=True):
        check(found, expected[:, None])
    check(lazy.logsumexp(axis), np.log(np.exp(d).sum(-1))[:, None])
    check((of.i() * of.j()).max(axis), (A * C).max(axis))
    check((of.i() * of.j()).argmin(axis), (A * C).argmin(axis))
    with pytest.raises(ValueError, match="needs axis"):
        lazy.logsumexp()
    with pytest.raises(TypeError, match="no option"):
        lazy.logsumexp(1, colour="red")


def test_one_point_is_a_parameter(of):
    x, y = of.i(X[:1]), of.j()
    d = ((x - y) ** 2).sum(-1)
    check(d.argKmin(3, dim=1), np.argsort(SQUARED[:1], -1)[:, :3])
    check((-d / 0.3).exp() @ of.array(B), K[:1] @ B)
    check(((-d / 0.3).exp() * (x - y)).sum(1), (K[:1, :, None] * (A - C)[:1]).sum(1))
    check((of.j() * 2).sum(1), 2 * Y.sum(0, keepdims=True))
    check((of.i() ** 2).sum(1), X**2)
    with pytest.raises(ValueError, match="needs variables of i or j"):
        x.sum(1)


def test_no_points(of):
    check((of.i(X[:0]) - of.j()).sqnorm2().sum(1), np.zeros((0, 1)))
    check((of.i() - of.j(Y[:0])).sum(1), np.zeros((M, D)))
    assert of.i(X[:0]).shape == (0, 1, D)


def test_programs_keep_their_imports(monkeypatch):
    for name in ("pykeops", "pykeops.numpy", "pykeops.numpy.cluster", "pykeops.torch",
                 "pykeops.torch.cluster"):  # fmt: skip
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    pytest.importorskip("torch")
    mercer.compat.install("pykeops")
    from pykeops.numpy import LazyTensor
    from pykeops.numpy.cluster import from_matrix

    assert LazyTensor.__module__ == "mercer.compat.pykeops.numpy"
    assert callable(from_matrix)
    sys.modules["pykeops"].clean_pykeops()
    sys.modules["pykeops"].set_verbose(False)


def test_weighted_softmax(of):
    d, weight = -(of.i() - of.j()).sqnorm2(), of.j(B**2)
    shares = np.exp(-SQUARED)
    check(d.sumsoftmaxweight(weight, axis=1), shares @ B**2 / shares.sum(-1)[:, None])
    check(d.logsumexp(1, weight=weight), np.log(shares @ B**2))
    lazy = d * of.i(X[:, :1]) + of.j(Y[:, 1:2])
    scaled = np.exp(-SQUARED * X[:, :1] + Y[:, 1])
    found = lazy.sumsoftmaxweight(weight, axis=1)
    check(found, scaled @ B**2 / scaled.sum(-1)[:, None])
    moved = ((shares[..., None] * (C - A)).sum(1)) / shares.sum(-1)[:, None]
    check(d.sumsoftmaxweight(of.j() - of.i(), axis=1), moved)


def test_products(of):
    k = of.gauss()
    check(k @ of.array(B), K @ B)
    check(k @ of.array(B[:, 0]), K @ B[:, 0])
    check(k.T @ of.array(X), K.T @ X)
    check(k.rmatvec(of.array(X)), K.T @ X)
    check(of.array(X.T) @ k if of.name == "numpy" else k.__rmatmul__(of.array(X.T)), X.T @ K)
    check((k * of.j(B)).sum(1), K @ B)
    check((k * of.i(X)).sum(0), K.T @ X)


def test_vectors_for_each_pair(of):
    k, x, y = of.gauss(), of.i(), of.j()
    b, square = of.j(B[:, :1]), K[..., None]
    check((k * (x - y)).sum(1), (square * (A - C)).sum(1))
    check((k * b * (x - y) / 2).sum(1), (square * B[:, :1] * (A - C) / 2).sum(1))
    check((k * x * y + y / k - x).sum(0), (square * A * C + C / square - A).sum(0))
    check((k * (x - y).square()).sum(1), (square * (A - C) ** 2).sum(1))
    check((k * (x - y).exp()).sum(1), (square * np.exp(A - C)).sum(1))
    moved = square * (A - C)
    check((-(k * (x - y))).abs().sqnorm2().sum(1), (moved**2).sum((1, 2))[:, None])
    check(
        (k / (k * (x + y)) + x / k).sum(-1).sum(1), (1 / (A + C) + A / square).sum((1, 2))[:, None]
    )
    check(((k * (x - y)) / (y / k)).sum(-1).sum(1), (moved * square / C).sum((1, 2))[:, None])
    check(((k * (x - y)) | y).sum(1), (square * (A - C) * C).sum((1, 2))[:, None])


def test_vectors_of_points_far_from_zero_keep_their_digits(of):
    x, y = ((a + 1000).astype(np.float32) for a in (X, Y))
    gap = x[:, None].astype(np.float64) - y
    weights = np.exp(-(gap**2).sum(-1) / 0.3)[..., None]
    lazy = of.i(x) - of.j(y)
    found = ((-lazy.sqnorm2() / 0.3).exp() * lazy).sum(1)
    np.testing.assert_allclose(np.asarray(found), (weights * gap).sum(1), atol=2e-6)


def test_several_variables(of):
    """Weights of an oriented varifold: <u, v>^2 exp(-|x - y|^2)."""
    u, v = RNG.standard_normal((M, 2)), RNG.standard_normal((N, 2))
    k = of.gauss() * (of.i(u) | of.j(v)) ** 2
    check(k @ of.array(B), (K * (u @ v.T) ** 2) @ B)


def test_batches(of):
    x, y, h = RNG.random((2, 1, M, D)), RNG.random((4, N, D)), RNG.random((2, 4)) + 0.5
    lazy = of.keops.LazyTensor
    x_i, y_j = lazy(of.array(x[..., None, :])), lazy(of.array(y[:, None]))
    k = (-(x_i - y_j).sqnorm2() / lazy(of.array(h[..., None, None, None]))).exp()
    expected = np.exp(-((x[..., None, :] - y[:, None]) ** 2).sum(-1) / h[..., None, None])
    assert k.shape == (2, 4, M, N)
    check(k.sum(3), expected.sum(-1, keepdims=True))
    b = RNG.random((2, 4, N, 2))
    check(k @ of.array(b), expected @ b)
    # Columns of one product have batches of their own: (1,) and (4,).
    one, some = RNG.random((1, 1, N, D)), RNG.random((4, 1, N, D))
    x, rows = x[0], lazy(of.array(x[0][:, :, None]))
    vectors = lazy(of.array(one)) - rows * lazy(of.array(some))
    found = (vectors * (rows | lazy(of.array(one)))).sum_reduction(axis=2)
    weights = (x[:, :, None] * one).sum(-1)[..., None]
    check(found, (weights * (one - x[:, :, None] * some)).sum(-2))


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("Exp(-p*SqDist(x,y))*b", lambda: np.exp(-2 * SQUARED) @ B),
        ("Exp(-SqNorm2(x-y)/IntCst(2)) * b", lambda: np.exp(-SQUARED / 2) @ B),
        ("Square(x|y) * b", lambda: (X @ Y.T) ** 2 @ B),
        ("Scalprod(x,y) * Minus(b)", lambda: -(X @ Y.T) @ B),
        ("Pow(Sum(Abs(x-y)),2) * Vj(3,2)", lambda: abs(A - C).sum(-1) ** 2 @ B),
        ("Inv(IntCst(1)+WeightedSqDist(p,x,y))*b", lambda: 1 / (1 + 2 * SQUARED) @ B),
        ("Exp(Elem(x,0)*Elem(y,1)) * Extract(b,1,1)",
         lambda: np.exp(A[..., 0] * C[..., 1]) @ B[:, 1:]),
        ("Sqrt(SqDist(x,y)) * Concat(b,y)",
         lambda: np.sqrt(SQUARED) @ np.concatenate([B, Y], -1)),
        ("Clamp(SqDist(x,y), 0.1, Var(0,1,2)) * b", lambda: np.clip(SQUARED, 0.1, 2) @ B),
    ],
)  # fmt: skip
def test_formula_strings(of, formula, expected):
    aliases = ["p = Pm(1)", f"x = Vi({D})", f"y=Vj(2,{D})", "b = Vj(2)"]
    arrays = [of.array(a) for a in (np.array([2.0]), X, Y, B)]
    check(of.keops.Genred(formula, aliases, axis=1)(*arrays), expected())


def test_generic_reductions(of):
    x, y = of.array(X), of.array(Y)
    aliases = (f"x = Vi({D})", f"y = Vj({D})")
    nearest = of.keops.generic_argkmin("SqDist(x,y)", "a = Vi(4)", *aliases)
    check(nearest(x, y), np.argsort(SQUARED, -1)[:, :4])
    log = of.keops.generic_logsumexp("-SqDist(x,y)", "a = Vj(1)", *aliases)
    check(log(x, y), np.log(np.exp(-SQUARED).sum(0))[:, None])
    check(of.keops.generic_argmin("SqDist(x,y)", "a = Vi(1)", *aliases)(x, y)[:, 0],
          SQUARED.argmin(-1))  # fmt: skip
    total = of.keops.generic_sum("Exp(-SqDist(x,y))*y", f"a = Vi({D})", *aliases)
    check(total(x, y), np.exp(-SQUARED) @ Y)
    soft = of.keops.Genred("-SqDist(x,y)", aliases, "SumSoftMaxWeight", axis=1, formula2="y")
    check(soft(x, y), np.exp(-SQUARED) @ Y / np.exp(-SQUARED).sum(-1)[:, None])


def test_block_sparse_reductions(of):
    labels = of.cluster.grid_cluster(of.array(X), 0.4)
    x, labels = of.cluster.sort_clusters(of.array(X), labels)
    ranges, centres, _ = of.cluster.cluster_ranges_centroids(x, labels)
    keep = ((centres[:, None] - centres[None]) ** 2).sum(-1) < 0.1
    blocks = of.cluster.from_matrix(ranges, ranges, keep)
    kept, groups = np.asarray(keep), np.asarray(labels)
    points = np.asarray(x)
    dense = np.exp(-((points[:, None] - points) ** 2).sum(-1)) * kept[groups][:, groups]
    k = (-(of.i(points) - of.j(points)).sqnorm2()).exp()
    k.ranges = blocks
    check(k @ of.array(points), dense @ points)
    check(k.T @ of.array(points), dense.T @ points)
    check(k.sum(0, ranges=of.cluster.swap_axes(of.cluster.swap_axes(blocks)))[:, 0], dense.sum(0))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_operations_are_named(of, name):
    with pytest.raises(NotImplementedError, match=rf"{name} is not offered"):
        of.keops.Genred(f"{name}(x, y)", [f"x = Vi({D})", f"y = Vj({D})"])(of.array(X), of.array(Y))


def test_what_a_lazy_tensor_cannot_be(of):
    lazy, x = of.keops.LazyTensor, of.array(X)
    for value, axis, error in ((x, None, ValueError), (x[None, None, :, :], 0, ValueError),
                               ("x", None, TypeError), (of.array(np.ones((2, 3, 4))), None,
                               ValueError), ((0, 3, 1), None, NotImplementedError)):  # fmt: skip
        with pytest.raises(error):
            lazy(value, axis)
    with pytest.raises(NotImplementedError, match="TensorDot is not offered"):
        of.i().keops_tensordot(of.j())
    with pytest.raises(ValueError, match="same dimension"):
        of.i() - of.j(B)
    with pytest.raises(ValueError, match="same number of points"):
        (of.i() - of.i(Y)).sum(1)
    with pytest.raises(TypeError, match="truth value"):
        bool(of.i() < of.j())
    with pytest.raises(NotImplementedError, match="reduction_op must be"):
        of.keops.Genred("x", ["x = Vi(1)"], "Median")
    with pytest.raises(ValueError, match="an alias is written"):
        of.keops.Genred("x", ["x is Vi(1)"])
    with pytest.raises(ValueError, match="of KeOps"):
        of.keops.Genred("x ;", ["x = Vi(3)"])(x)


def test_sums_that_rows_share_have_their_own_memory(of):
    found = (of.i() * 0 + of.j()).sum(1)
    found += 1
    check(found, np.broadcast_to(Y.sum(0) + 1, (M, D)))
    found = (of.j() + 0 * of.i().sum(-1)).sum(1)
    found[0] += 1
    check(found[1:], np.broadcast_to(Y.sum(0), (M - 1, D)))


def test_softmax_weights_of_vectors_of_the_pair(of):
    gap = of.i() - of.j()
    weight = (-gap.sqnorm2()).exp() * gap
    out = (3 * (of.i() | of.j())).sumsoftmaxweight(weight, axis=1)
    weights = np.exp(3 * X @ Y.T)
    weights = weights / weights.sum(1, keepdims=True) * np.exp(-SQUARED)
    expected = (weights[..., None] * (PAIRS[0] - PAIRS[1])).sum(1)
    np.testing.assert_allclose(np.asarray(out), expected, atol=1e-13)


def test_tensor_products_indices_and_one_hot_vectors(of):
    gap = PAIRS[0] - PAIRS[1]
    products = (of.gauss() * (of.i() - of.j()).tensorprod(of.j(B))).sum(1)
    expected = (K[..., None, None] * gap[..., None] * B[:, None, :]).sum(1).reshape(M, -1)
    check(products, expected)
    check((of.i() - of.j()).argmax(-1).sum(1), gap.argmax(-1).sum(1)[:, None])
    tied = np.round(gap * 2)
    lazy = ((of.i() - of.j()) * 2)._apply("Round")
    check(lazy.argmin(-1).sum(1), tied.argmin(-1).sum(1)[:, None])
    labels = RNG.integers(0, 4, (N, 1)).astype(np.float64)
    votes = (of.gauss() * of.j(labels).one_hot(4)).sum(1)
    check(votes, K @ np.eye(4)[labels[:, 0].astype(int)])
    with pytest.raises(NotImplementedError, match="32 features at most"):
        of.i(np.ones((M, 33))).argmax(-1)
    text = of.keops.Genred(
        "TensorProd(x, y) * (ArgMax(x) + ArgMin(y))", ["x = Vi(3)", "y = Vj(3)"], axis=1
    )
    expected = PAIRS[0][..., None] * PAIRS[1][..., None, :]
    weights = X.argmax(-1)[:, None] + Y.argmin(-1)
    check(
        text(of.array(X), of.array(Y)), (expected * weights[..., None, None]).sum(1).reshape(M, 9)
    )


def test_formulas_with_several_vectors_of_parameters(of):
    a, b = np.array([1.0, 2, 3]), np.array([3.0, 2, 1])
    out = (of.i() * of.array(a) + of.j() / of.array(b)).sqnorm2().sum(1)
    expected = ((X[:, None] * a + Y / b) ** 2).sum((1, 2))
    np.testing.assert_allclose(np.asarray(out)[:, 0], expected, rtol=1e-13)


def test_the_table_of_the_page_names_every_operation():
    page = importlib.resources.files("mercer").parent.parent / "docs/guide/keops.md"
    if not page.is_file():
        pytest.skip("the package is installed without its pages")
    text = page.read_text("utf-8")
    for name in {*KEOPS, *FUNCTIONS, *REFUSED} - {"Add", "Subtract", "Mult", "Divide"}:
        assert f"`{name}`" in text, name


# Gradients and tutorials -------------------------------------------------------------------------


def test_autograd_follows_lazy_tensors():
    of = Library("torch")
    torch = of.xp
    x, y, b, h = (of.array(a).requires_grad_() for a in (X, Y, B, np.array([0.3])))

    def product(x, y, b, h):
        lazy = of.keops.LazyTensor
        gap = lazy(x[:, None]) - lazy(y[None])
        return (-gap.sqnorm2() / lazy(h)).exp() @ b

    def moved(x, y, b, h):
        gap = of.keops.Vi(x) - of.keops.Vj(y)
        return ((-gap.sqnorm2() / of.keops.Pm(h)).exp() * gap).sum(1)

    for function in (product, moved):
        assert torch.autograd.gradcheck(function, (x, y, b, h))
    assert torch.autograd.gradgradcheck(product, (x[:3], y[:3], b[:3], h))


def test_kernel_interpolation(of):
    x = RNG.random((60, 2))
    y = np.sin(6 * x[:, :1]) + 0.1 * RNG.standard_normal((60, 1))
    lazy = of.keops.Vi(of.array(x)) - of.keops.Vj(of.array(x))
    k = (-lazy.sqnorm2() / (2 * 0.2**2)).exp()
    found = np.asarray(k.solve(of.array(y), alpha=0.5, eps=1e-10))
    matrix = np.exp(-((x[:, None] - x) ** 2).sum(-1) / (2 * 0.2**2))
    np.testing.assert_allclose(found, np.linalg.solve(matrix + 0.5 * np.eye(60), y), atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_kernel_solve(of, axis):
    x, b = RNG.random((40, 3)), RNG.random((40, 2))
    formula, index = "Exp(-Norm2(x-y)/h) * a", "ij"[axis]
    aliases = ["h = Pm(1)", "x = Vi(3)", "y = Vj(3)", f"a = V{index}(2)"]
    solve = of.keops.KernelSolve(formula, aliases, "a", axis=axis)
    arrays = [of.array(a) for a in (np.array([0.4]), x, x, b)]
    matrix = np.exp(-np.sqrt(((x[:, None] - x) ** 2).sum(-1)) / 0.4) + 0.1 * np.eye(40)
    found = np.asarray(solve(*arrays, alpha=0.1, eps=1e-10))
    np.testing.assert_allclose(found, np.linalg.solve(matrix, b), atol=1e-7)
    with pytest.raises(NotImplementedError, match="a number for each pair times"):
        of.keops.KernelSolve("Exp(-SqDist(x,y)) * Square(a)", aliases, "a", axis=axis)(*arrays)
    with pytest.raises(ValueError, match="varinvalias must be"):
        of.keops.KernelSolve(formula, aliases, "c", axis=axis)


def test_k_means(of):
    x = np.concatenate([RNG.normal(c, 0.1, (20, 2)) for c in ((0, 0), (1, 0), (0, 1))])
    centres = x[[0, 20, 40]].copy()
    expected = centres.copy()
    x_i = of.i(x)
    for _ in range(4):
        labels = np.asarray((x_i - of.j(centres)).sqnorm2().argmin(dim=1)).reshape(-1)
        wanted = ((x[:, None] - expected) ** 2).sum(-1).argmin(-1)
        np.testing.assert_array_equal(labels, wanted)
        centres = np.stack([x[labels == c].mean(0) for c in range(3)])
        expected = np.stack([x[wanted == c].mean(0) for c in range(3)])
    assert (np.bincount(labels) == 20).all()


def test_nearest_neighbours_vote(of):
    train, labels = RNG.random((80, 2)), RNG.integers(0, 3, 80)
    test = RNG.random((30, 2))
    d = (of.i(test) - of.j(train)).sqnorm2()
    votes = labels[np.asarray(d.argKmin(7, dim=1))]
    exact = np.argsort(((test[:, None] - train) ** 2).sum(-1), -1)[:, :7]
    np.testing.assert_array_equal(votes, labels[exact])


def test_sinkhorn_divergence(of):
    """Log-domain iterations of entropic optimal transport."""
    a, b = np.full(M, 1 / M), np.full(N, 1 / N)
    eps, cost = 0.05, SQUARED / 2
    f, g = np.zeros(M), np.zeros(N)
    c_ij = (of.i() - of.j()).sqnorm2() / 2
    lazy_f, lazy_g = of.array(f[:, None]), of.array(g[:, None])
    for _ in range(20):
        h = of.j(np.asarray(lazy_g) / eps + np.log(b)[:, None])
        lazy_f = -eps * (h - c_ij / eps).logsumexp(dim=1)
        h = of.i(np.asarray(lazy_f) / eps + np.log(a)[:, None])
        lazy_g = -eps * (h - c_ij / eps).logsumexp(dim=0)
        f = -eps * np.log(np.exp(g / eps + np.log(b) - cost / eps).sum(1))
        g = -eps * np.log(np.exp((f / eps + np.log(a))[:, None] - cost / eps).sum(0))
    check(np.asarray(lazy_f)[:, 0], f)
    check(np.asarray(lazy_g)[:, 0], g)


def test_mean_shift(of):
    x = np.concatenate([RNG.normal(c, 0.1, (15, 2)) for c in (0, 1)])
    moved, expected = of.array(x), x.copy()
    for _ in range(3):
        k = (-(of.i(moved) - of.j(x)).sqnorm2() / 0.08).exp()
        moved = (k @ of.array(x)) / k.sum(1)
        weights = np.exp(-((expected[:, None] - x) ** 2).sum(-1) / 0.08)
        expected = weights @ x / weights.sum(-1, keepdims=True)
    check(moved, expected)


def test_a_mixture_of_gaussians(of):
    """The log-likelihood of a mixture with isotropic components of several widths."""
    weights, widths = RNG.random(N) + 0.1, RNG.random(N) + 0.5
    weights = weights / weights.sum()
    d = (of.i() - of.j()).sqnorm2()
    scale, log = of.j(1 / widths[:, None]), of.j(np.log(weights / widths ** (D / 2))[:, None])
    found = (log - d * scale / 2).logsumexp(dim=1)
    expected = np.log((weights / widths ** (D / 2) * np.exp(-SQUARED / widths / 2)).sum(-1))
    check(np.asarray(found)[:, 0], expected)


def test_stein_variational_gradient_descent(of):
    """sum_j k(x_j, x_i) s_j + grad_j k(x_j, x_i), for a normal target."""
    x, h = X, 0.3
    score = -x
    gap = of.i(x) - of.j(x)
    k = (-gap.sqnorm2() / h).exp()
    found = (k * of.j(score) + 2 / h * k * gap).sum(1) / M
    matrix = np.exp(-((x[:, None] - x) ** 2).sum(-1) / h)
    expected = (matrix @ score + 2 / h * (matrix[..., None] * (x[:, None] - x)).sum(1)) / M
    check(found, expected)


def test_matching_surfaces_with_varifolds():
    """The squared distance of two varifolds, and its gradient by the points."""
    of = Library("torch")
    torch = of.xp
    u, v = (
        torch.nn.functional.normalize(of.array(RNG.standard_normal(s))) for s in ((M, D), (N, D))
    )
    x, y = of.array(X).requires_grad_(), of.array(Y)

    def scalar(x, y, u, v, lazy):
        if lazy:
            vi, vj = of.keops.Vi, of.keops.Vj
            k = (-(vi(x) - vj(y)).sqnorm2() / 0.5).exp() * (vi(u) | vj(v)) ** 2
            return (k @ y.new_ones(len(y), 1)).sum()
        return (torch.exp(-((x[:, None] - y) ** 2).sum(-1) / 0.5) * (u @ v.mT) ** 2).sum()

    found, expected = (
        scalar(x, x, u, u, lazy) - 2 * scalar(x, y, u, v, lazy) + scalar(y, y, v, v, lazy)
        for lazy in (True, False)
    )
    assert math.isclose(found.item(), expected.item(), rel_tol=1e-10)
    for one, other in zip(torch.autograd.grad(found, x), torch.autograd.grad(expected, x),
                          strict=True):  # fmt: skip
        torch.testing.assert_close(one, other)


def test_on_a_gpu(cuda):
    of = Library("torch")
    x, y, b = (cuda.tensor(a, device="cuda") for a in (X, Y, B))
    x_i, y_j = of.keops.Vi(x), of.keops.Vj(y)
    d = (x_i - y_j).sqnorm2()
    k = (-d / 0.3).exp()
    check((k @ b).cpu(), K @ B)
    check((k * (x_i - y_j)).sum(1).cpu(), (K[..., None] * (A - C)).sum(1))
    check(d.argKmin(3, dim=1).cpu(), np.argsort(SQUARED, -1)[:, :3])
    check((-d).logsumexp(0).cpu(), np.log(np.exp(-SQUARED).sum(0))[:, None])
    check((k * (of.keops.Vi(b[:M]) | of.keops.Vj(b)) ** 2).sum(1).cpu(),
          (K * (B[:M] @ B.T) ** 2).sum(1)[:, None])  # fmt: skip
