"""Pairs that are chosen: listed ones, blocks, neighbours; against float64 NumPy of all pairs."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest

RNG = np.random.default_rng(72)
GAUSS = "exp(-sum((x-z)^2)/h)"
REDUCTIONS = ("sum", "mean", "max", "min", "logsumexp")


def points(rows, features, dtype=np.float64):
    return RNG.standard_normal((rows, features)).astype(dtype)


def gauss(x, z, h):
    x, z = x.astype(np.float64), z.astype(np.float64)
    return np.exp(-((x[:, None] - z) ** 2).sum(-1) / h)


def listed(count, rows, columns):
    return RNG.integers(0, rows, count), RNG.integers(0, columns, count)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("features", [3, 40])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 33])
def test_values_of_listed_pairs(dtype, features, count):
    x, z = points(9, features, dtype), points(7, features, dtype)
    rows, cols = listed(count, 9, 7)
    found = mc.edges(GAUSS, x, z, rows, cols, h=20.0)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, gauss(x, z, 20.0)[rows, cols], rtol=200 * np.finfo(dtype).eps)


def test_listed_pairs_have_the_numbers_of_their_points():
    x, row, col = points(20, 3), points(20, 1)[:, 0], points(20, 1)[:, 0]
    rows, cols = listed(50, 20, 20)
    found = mc.edges(
        "row*col*sum(w*abs(x-z))", x, None, rows, cols, row=row, col=col, w=[1, 2, 3.0]
    )
    weighted = (np.abs(x[rows] - x[cols]) * [1, 2, 3]).sum(-1)
    np.testing.assert_allclose(found, row[rows] * col[cols] * weighted, rtol=1e-13)


def test_options_of_a_metric_choose_the_formula_of_listed_pairs():
    x, w = points(20, 3), np.array([1.0, 2.0, 3.0])
    rows, cols = listed(50, 20, 20)
    for given in ({"p": 3.0}, {"p": 1}, {"p": 3.0, "w": w}):
        p, weights = given["p"], given.get("w", 1.0)
        expected = ((np.abs(x[rows] - x[cols]) ** p * weights).sum(-1)) ** (1 / p)
        found = mc.edges("minkowski", x, None, rows, cols, **given)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("where", ["operator", "cuda"])
def test_listed_pairs_by_one_launch(where, monkeypatch):
    torch = pytest.importorskip("torch")
    if where == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    if where == "operator":  # the way of CUDA, on tensors of the CPU
        monkeypatch.setattr(mc._edges._Pairs, "_is_cuda", lambda self: True)
    device = "cuda" if where == "cuda" else "cpu"
    x, z, v = (torch.tensor(points(*s), device=device) for s in ((30, 3), (20, 3), (20, 2)))
    rows, cols = (torch.tensor(a, device=device) for a in listed(2000, 30, 20))
    f = mc.kernel(GAUSS).bind(h=torch.tensor(1.5, dtype=torch.float64, device=device))
    k = gauss(x.cpu().numpy(), z.cpu().numpy(), 1.5)
    pairs = rows.cpu(), cols.cpu()
    found = mc.edges(f, x, z, rows, cols)
    np.testing.assert_allclose(found.cpu(), k[pairs], rtol=1e-12)
    matrix = np.zeros_like(k)
    np.add.at(matrix, pairs, k[pairs])
    found = mc.edge_product(f, x, z, rows, cols, v)
    np.testing.assert_allclose(found.cpu(), matrix @ v.cpu().numpy(), rtol=1e-11)
    x.requires_grad_()
    gap = (x[rows] - z[cols]).square().sum(-1)
    (found,) = torch.autograd.grad(mc.edges(f, x, z, rows, cols).sum(), x)
    (expected,) = torch.autograd.grad((-gap / 1.5).exp().sum(), x)
    torch.testing.assert_close(found, expected)
    near = mc.radius_neighbors("sqeuclidean", x.detach(), z, 1.0)
    assert near[0][-1] == len(near[1]) == len(near[2])


def test_blocks_of_listed_pairs_are_those_of_one_call(monkeypatch):
    x, v = points(30, 3), points(30, 2)
    rows, cols = listed(200, 30, 30)
    whole = mc.edges(GAUSS, x, None, rows, cols, h=1.0)
    product = mc.edge_product(GAUSS, x, None, rows, cols, v, h=1.0)
    monkeypatch.setattr(mc._edges, "_BLOCK", 100)
    np.testing.assert_array_equal(mc.edges(GAUSS, x, None, rows, cols, h=1.0), whole)
    np.testing.assert_allclose(
        mc.edge_product(GAUSS, x, None, rows, cols, v, h=1.0), product, rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("columns", [None, 0, 2])
def test_products_with_listed_pairs(library, columns):
    x, z = points(8, 3), points(6, 3)
    v = points(6, 1)[:, 0] if columns is None else points(6, columns)
    rows, cols = listed(25, 7, 6)  # the last row has none
    matrix = np.zeros((8, 6))
    np.add.at(matrix, (rows, cols), gauss(x, z, 1.5)[rows, cols])
    given = [x, z, rows, cols, v]
    if library == "torch":
        given = [pytest.importorskip("torch").from_numpy(a) for a in given]
    found = np.asarray(mc.edge_product(GAUSS, *given, h=1.5))
    assert found.shape == (8, *v.shape[1:])
    np.testing.assert_allclose(found, matrix @ v, atol=1e-13)


def reduced(matrix, is_listed, reduce):
    """The reduction over the listed columns of each row."""
    result = {
        "sum": lambda a: a.sum(), "mean": lambda a: a.mean() if a.size else np.nan,
        "max": lambda a: a.max(initial=-np.inf), "min": lambda a: a.min(initial=np.inf),
        "logsumexp": lambda a: np.logaddexp.reduce(a, initial=-np.inf),
    }[reduce]  # fmt: skip
    return np.array([result(a[kept]) for a, kept in zip(matrix, is_listed, strict=True)])


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reductions_of_listed_pairs(library, reduce):
    x, z = points(8, 3), points(6, 3)
    is_listed = RNG.random((8, 6)) < 0.5
    is_listed[3] = False
    order = RNG.permutation(is_listed.sum())
    rows, cols = (a[order] for a in np.nonzero(is_listed))
    given = [x, z, rows, cols]
    if library == "torch":
        given = [pytest.importorskip("torch").from_numpy(a) for a in given]
    found = np.asarray(mc.edge_reduce("300*sum(x*z)", *given, reduce))
    np.testing.assert_allclose(found, reduced(300 * x @ z.T, is_listed, reduce), rtol=1e-12)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_nan_and_infinities_of_listed_pairs(library):
    x = np.array([[1.0], [np.nan], [np.inf], [-np.inf]])
    given = [x, np.ones((1, 1)), np.array([0, 0, 1, 2, 3, 0]), np.zeros(6, int)]
    if library == "torch":
        given = [pytest.importorskip("torch").from_numpy(a) for a in given]
    found = {r: np.asarray(mc.edge_reduce("sum(x*z)", *given, r)) for r in REDUCTIONS}
    for reduce in ("sum", "max", "min", "logsumexp"):
        first = {"sum": 3.0, "logsumexp": 1 + np.log(3)}.get(reduce, 1.0)
        np.testing.assert_allclose(found[reduce], [first, np.nan, np.inf, -np.inf], rtol=1e-12)


def test_derivatives_of_listed_pairs():
    torch = pytest.importorskip("torch")
    x, z = (torch.tensor(points(n, 3), requires_grad=True) for n in (5, 4))
    v, h = torch.tensor(points(4, 2), requires_grad=True), torch.tensor(1.3, requires_grad=True)
    h = h.double().detach().requires_grad_()
    rows, cols = (torch.from_numpy(a) for a in listed(9, 5, 4))

    def values(x, z, h):
        return mc.edges(GAUSS, x, z, rows, cols, h=h)

    def product(x, z, v, h):
        return mc.edge_product(GAUSS, x, z, rows, cols, v, h=h)

    assert torch.autograd.gradcheck(values, (x, z, h))
    assert torch.autograd.gradgradcheck(values, (x, z, h))
    assert torch.autograd.gradcheck(product, (x, z, v, h))
    every = torch.cat([rows, torch.arange(5)]), torch.cat([cols, torch.arange(5) % 4])
    for reduce in REDUCTIONS:
        assert torch.autograd.gradcheck(
            lambda x, z, r=reduce: mc.edge_reduce("sum(x*z)", x, z, *every, r), (x, z)
        )


def test_a_nan_outside_the_listed_pairs_spoils_no_gradient():
    torch = pytest.importorskip("torch")
    x = torch.tensor([[1.0], [np.nan], [2.0]], requires_grad=True)
    mc.edges("sum((x-z)^2)", x, None, [0, 1], [2, 2]).nan_to_num(0).sum().backward()
    assert x.grad[0].item() == -2


@pytest.mark.parametrize(
    ("rows", "cols", "match"),
    [
        ([0, 5], [0, 0], "from 0 to 4"), ([-1], [0], "from 0 to 4"), ([0], [7], "from 0 to 3"),
        ([0.5], [0], "whole numbers"), ([[0]], [[0]], "whole numbers"),
        ([0, 1], [0], "same length"),
    ],
)  # fmt: skip
def test_indices_that_no_point_has_are_refused(rows, cols, match):
    with pytest.raises(ValueError, match=match):
        mc.edges("euclidean", points(5, 2), points(4, 2), rows, cols)


def test_what_listed_pairs_cannot_have_is_refused():
    x = points(5, 2)
    with pytest.raises(ValueError, match="must not read i or j"):
        mc.edges("i + sum(x*z)", x, None, [0], [0])
    with pytest.raises(ValueError, match="h must be one number"):
        mc.edges(GAUSS, x, None, [0, 1], [0, 1], h=[1.0, 2.0])
    with pytest.raises(ValueError, match="reduce must be one of"):
        mc.edge_reduce(GAUSS, x, None, [0], [0], "argmin", h=1.0)
    with pytest.raises(ValueError, match="v must be"):
        mc.edge_product(GAUSS, x, None, [0], [0], points(4, 1), h=1.0)
    with pytest.raises(mc.DtypeError, match="v must be real"):
        mc.edge_product(GAUSS, x, None, [0], [0], np.ones(5, complex), h=1.0)
    with pytest.raises(ValueError, match="row must have the shape"):
        mc.edges("row*sum(x*z)", x, None, [0], [0], row=np.ones(4))
    with pytest.raises(ValueError, match="features"):
        mc.edges("euclidean", x, points(5, 3), [0], [0])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_rows_of_csr(library):
    xp = np if library == "numpy" else pytest.importorskip("torch")
    found = mc.csr_rows(xp.asarray([0, 2, 2, 5]))
    assert found.tolist() == [0, 0, 2, 2, 2]
    for wrong in ([1, 2], [0, 2, 1], [0.0, 1.0]):
        with pytest.raises(ValueError, match="csr_rows"):
            mc.csr_rows(xp.asarray(wrong))


# Blocks ------------------------------------------------------------------------------------------


def blocks():
    """Rows 2 to 3 keep nothing, rows 5 to 8 keep two intervals out of order, two of them touch."""
    ranges = ([[4, 9], [0, 2], [9, 10]], [3, 4, 5], [[6, 8], [0, 2], [2, 3], [1, 4], [0, 9]])
    kept = np.zeros((11, 9), bool)
    kept[4:9, [0, 1, 2, 6, 7]] = kept[0:2, 1:4] = kept[9] = True
    return tuple(np.array(a) for a in ranges), kept


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_products_of_blocks(library):
    x, z, v, (ranges, kept) = points(11, 3), points(9, 3), points(9, 2), blocks()
    given = [x, z, v]
    if library == "torch":
        torch = pytest.importorskip("torch")
        given, ranges = [torch.from_numpy(a) for a in given], tuple(map(torch.from_numpy, ranges))
    expected = (gauss(x, z, 1.5) * kept) @ v
    found = np.asarray(mc.kernel_product(GAUSS, *given, h=1.5, ranges=ranges))
    np.testing.assert_allclose(found, expected, atol=1e-13)
    found = mc.kernel_product(GAUSS, *given[:2], given[2][:, 0], h=1.5, ranges=(*ranges, 0, 0, 0))
    np.testing.assert_allclose(np.asarray(found), expected[:, 0], atol=1e-13)


def test_blocks_of_lists():
    ranges, kept = blocks()
    x, z, v = points(11, 3), points(9, 3), points(9, 1)[:, 0]
    lists = (array.tolist() for array in (x, z, v))
    found = mc.kernel_product(GAUSS, *lists, h=1.5, ranges=ranges)
    np.testing.assert_allclose(found, (gauss(x, z, 1.5) * kept) @ v, atol=1e-13)


def test_blocks_take_batches_numbers_of_points_and_indices():
    x, z, v, (ranges, kept) = points(22, 3).reshape(2, 11, 3), points(9, 3), points(9, 2), blocks()
    row, col = points(11, 1)[:, 0], points(9, 1)[:, 0]
    found = mc.kernel_product(
        "row*col*i*sum(x*z)", x, z, v, row=row, col=col, i_offset=2, ranges=ranges
    )
    matrix = row[:, None] * col * (np.arange(11) + 2)[:, None] * (x @ z.T) * kept
    np.testing.assert_allclose(found, matrix @ v, atol=1e-12)


def test_softmax_of_blocks():
    x, z, v, (ranges, kept) = points(11, 3), points(9, 3), points(9, 2), blocks()
    ranges, kept, x = (
        (ranges[0][[0, 2]] - 4, np.array([3, 4]), ranges[2][[0, 1, 2, 4]]),
        kept[4:10],
        x[:6],
    )
    found = mc.kernel_product("sum(x*z)", x, z, v, normalize="softmax", ranges=ranges)
    weights = np.exp(x @ z.T) * kept
    np.testing.assert_allclose(found, weights @ v / weights.sum(-1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("reduce", ["sum", "max", "min", "logsumexp", "argmax", "argmin"])
def test_reductions_of_blocks(reduce):
    x, z, (ranges, kept) = points(11, 3), points(9, 3), blocks()
    if reduce in ("sum", "logsumexp"):
        found = mc.kernel_reduce("sum(x*z)", x, z, reduce, ranges=ranges)
        np.testing.assert_allclose(found, reduced(x @ z.T, kept, reduce), rtol=1e-12)
    else:
        with pytest.raises(ValueError, match="at least 1 column"):
            mc.kernel_reduce("sum(x*z)", x, z, reduce, ranges=ranges)
        x, kept = x[4:10], kept[4:10]
        ranges = (ranges[0][[0, 2]] - 4, np.array([3, 4]), ranges[2][[0, 1, 2, 4]])
        fill = -np.inf if reduce.endswith("max") else np.inf
        expected = getattr(np, reduce)(np.where(kept, x @ z.T, fill), -1)
        found = mc.kernel_reduce("sum(x*z)", x, z, reduce, ranges=ranges)
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_nearest_of_blocks():
    x, z = points(6, 3), points(9, 3)
    ranges = ([[0, 4], [4, 6]], [2, 3], [[7, 9], [1, 4], [0, 9]])
    kept = np.ones((6, 9), bool)
    kept[:4, [0, 4, 5, 6]] = False
    d = np.where(kept, np.abs(x[:, None] - z).sum(-1), np.inf)
    values, indices = mc.knn("cityblock", x, z, 3, ranges=ranges)
    np.testing.assert_array_equal(indices, np.argsort(d, -1, "stable")[:, :3])
    np.testing.assert_allclose(values, np.sort(d, -1)[:, :3], rtol=1e-13)
    with pytest.raises(ValueError, match="at least 6 columns"):
        mc.knn("cityblock", x, z, 6, ranges=ranges)


def test_derivatives_of_blocks():
    torch = pytest.importorskip("torch")
    ranges, _ = blocks()
    x, z, v = (torch.tensor(points(*s), requires_grad=True) for s in ((11, 2), (9, 2), (9, 2)))
    assert torch.autograd.gradcheck(
        lambda x, z, v: mc.kernel_product(GAUSS, x, z, v, h=1.5, ranges=ranges), (x, z, v)
    )


def test_ranges_of_clusters():
    labels, others = RNG.integers(0, 4, 40), RNG.integers(5, 8, 30)
    order, rows = mc.cluster_ranges(labels)
    other, columns = mc.cluster_ranges(others)
    assert (np.diff(labels[order]) >= 0).all()
    assert [set(labels[order][a:b]) for a, b in rows] == [{0}, {1}, {2}, {3}]
    keep = RNG.random((4, 3)) < 0.5
    x, z, v = points(40, 3), points(30, 3), points(30, 1)
    found = mc.kernel_product(
        GAUSS, x[order], z[other], v[other], h=2.0, ranges=mc.block_ranges(rows, columns, keep)
    )
    expected = (gauss(x, z, 2.0) * keep[labels][:, others - 5]) @ v
    np.testing.assert_allclose(found, expected[order], atol=1e-13)


@pytest.mark.parametrize(
    ("ranges", "match"),
    [
        (([[0, 2]], [1]), "they are"),
        (([[0, 6]], [1], [[0, 1]]), "0 <= start <= end <= 5"),
        (([[0, 2]], [1], [[3, 5]]), "0 <= start <= end <= 4"),
        (([[0, 2], [1, 3]], [1, 2], [[0, 1], [0, 1]]), "rows must not overlap"),
        (([[0, 2]], [2], [[0, 2], [1, 3]]), "must not overlap"),
        (([[0, 2]], [2], [[0, 1]]), "ends must be"),
        (([[0, 2], [2, 3]], [1, 0], [[0, 1]]), "ends must be"),
        (([[0.0, 2]], [1], [[0, 1]]), "whole numbers"),
    ],
)
def test_wrong_ranges_are_refused(ranges, match):
    with pytest.raises(ValueError, match=match):
        mc.kernel_product("sum(x*z)", points(5, 2), points(4, 2), np.ones(4), ranges=ranges)


def test_what_blocks_cannot_have_is_refused():
    x, v, ranges = points(5, 2), np.ones(5), ([[0, 5]], [2], [[0, 1], [2, 3]])
    with pytest.raises(NotImplementedError, match="out is not offered"):
        mc.kernel_product("sum(x*z)", x, None, v, out=np.ones(5), ranges=ranges)
    for count in (3, 4, 6):
        with pytest.raises(ValueError, match=r"v must have one row per point \(5\)"):
            mc.kernel_product("sum(x*z)", x, None, np.ones((count, 2)), ranges=ranges)
        with pytest.raises(ValueError, match="col must have one value per point"):
            mc.kernel_reduce("col*sum(x*z)", x, None, "sum", col=np.ones(count), ranges=ranges)
    with pytest.raises(ValueError, match="row must have one value per point"):
        mc.kernel_product("row*sum(x*z)", x, None, v, row=np.ones(6), ranges=ranges)
    with pytest.raises(ValueError, match="must not read j"):
        mc.kernel_product("j + sum(x*z)", x, None, v, ranges=ranges)
    with pytest.raises(NotImplementedError, match="ranges are offered by"):
        mc.pairwise("sum(x*z)", x, ranges=ranges)
    with pytest.raises(ValueError, match="keep must be"):
        mc.block_ranges([[0, 1]], [[0, 1]], [[1]])


# Neighbours --------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_neighbours_within_a_radius(library, monkeypatch):
    monkeypatch.setattr(mc._neighbors, "_BLOCK", 60)  # some rows at a time
    x, z = points(13, 3), points(9, 3)
    given = [x, z]
    if library == "torch":
        given = [pytest.importorskip("torch").from_numpy(a) for a in given]
    d = np.abs(x[:, None] - z).max(-1)
    indptr, indices, values = map(np.asarray, mc.radius_neighbors("chebyshev", *given, 1.0))
    rows, cols = np.nonzero(d <= 1.0)
    np.testing.assert_array_equal(mc.csr_rows(indptr), rows)
    np.testing.assert_array_equal(indices, cols)
    np.testing.assert_array_equal(values, d[rows, cols])
    band = mc.radius_neighbors("abs(i - j)", given[0], None, 1)
    np.testing.assert_array_equal(np.diff(np.asarray(band[0])), [2, *[3] * 11, 2])


def test_values_within_a_radius_have_gradients():
    torch = pytest.importorskip("torch")
    x = torch.tensor(points(9, 2), requires_grad=True)
    near = mc.radius_neighbors("sqeuclidean", x, None, 1.0)[2]
    d = ((x[:, None] - x) ** 2).sum(-1)
    (found,) = torch.autograd.grad(near.sum(), x)
    (expected,) = torch.autograd.grad(d[d <= 1.0].sum(), x)
    torch.testing.assert_close(found, expected)


def test_a_graph_of_the_nearest():
    x, z = points(13, 3), points(9, 3)
    indptr, indices, values = mc.knn_graph("cityblock", x, z, 4)
    d = np.abs(x[:, None] - z).sum(-1)
    np.testing.assert_array_equal(indptr, np.arange(14) * 4)
    np.testing.assert_array_equal(indices, np.argsort(d, -1, "stable")[:, :4].ravel())
    np.testing.assert_allclose(values, np.sort(d, -1)[:, :4].ravel(), rtol=1e-13)
    with pytest.raises(ValueError, match="radius must be a number"):
        mc.radius_neighbors("euclidean", x, z, "near")
    formula = "h*row*sum((x-z)^2)"
    for batch in ({"h": [1.0, 2.0]}, {"row": np.ones((2, 13))}, {"z": np.stack([z, z])}):
        options = {"h": 1.0, "row": np.ones(13), "z": z} | batch
        with pytest.raises(ValueError, match="must have no leading axes"):
            mc.radius_neighbors(formula, x, options.pop("z"), 1.0, **options)
    with pytest.raises(NotImplementedError, match="out is not offered"):
        mc.radius_neighbors("euclidean", x, z, 1.0, out=d)
    with pytest.raises(ValueError, match="x must have the shape"):
        mc.knn_graph("cityblock", x[None], z, 2)
