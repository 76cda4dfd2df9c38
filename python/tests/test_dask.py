"""mercer.dask: blocks give what one array gives, from memory and from files, on threads and on a
cluster that loses a worker."""

from __future__ import annotations

import importlib
import os
import pathlib
import pickle
import runpy
import signal
import sys
import threading
import time
import weakref

import mercer as mc
import numpy as np
import pytest
from mercer import _random_pivots

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
md = importlib.import_module("mercer.dask")

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench/bench_dask.py"
M, N, K = 61, 83, 5
# Chunks of x and z: odd sizes, single rows, empty ones, and one alone.
CHUNKS = [((20, 1, 0, 40), (33, 0, 50)), ((61,), (1, 1, 80, 1)), ((0, 61, 0), (83,))]
GAUSS = "exp(-sum((x-z)^2)/h)"


@pytest.fixture(params=CHUNKS, ids=["odd", "single rows", "one of z"])
def chunks(request):
    return request.param


@pytest.fixture(params=["float64", "float32"])
def points(request, rng):
    x, z = (rng.standard_normal((rows, K)).astype(request.param) for rows in (M, N))
    z[40] = z[3]  # ties across chunks
    return x, z


def in_chunks(points, chunks):
    return [da.from_array(a, chunks=(rows, -1)) for a, rows in zip(points, chunks, strict=True)]


def gauss(x, z, h):
    gaps = x[:, None].astype("d") - z[None].astype("d")
    return np.exp(-(gaps**2).sum(-1) / h)


def sum_bound(terms, dtype, parts):
    """K + 4 roundings of a term, one of each part, and that of the sum over the last axis."""
    return (K + 4 + parts) * np.finfo(dtype).eps * np.abs(terms).sum(-1) + 1e-300


@pytest.mark.parametrize("verb", ["pairwise", "kernel_matrix"])
def test_matrices_are_those_of_one_array_to_the_bit(points, chunks, verb):
    x, z = in_chunks(points, chunks)
    for other, whole in ((z, points[1]), (None, None)):
        k = getattr(md, verb)(GAUSS, x, other, h=2.0)
        assert k.dtype == points[0].dtype
        assert k.chunks == (x.chunks[0], (x if other is None else other).chunks[0])
        expected = getattr(mc, verb)(GAUSS, points[0], whole, h=2.0)
        np.testing.assert_array_equal(k.compute(), expected)


@pytest.mark.parametrize(
    "options", [{"p": 1.3}, {"metric": "canberra"}, {"p": 2, "w": True}, {"metric": "V"}]
)
def test_distances(points, chunks, options):
    x, z = in_chunks(points, chunks)
    weights = np.linspace(0.5, 2, K).astype(x.dtype)
    if "w" in options:
        options = {**options, "w": weights}
    if options.get("metric") == "V":
        options = {"metric": "seuclidean", "V": weights}
    expected = mc.cdist(*points, **options)
    np.testing.assert_array_equal(md.cdist(x, z, **options).compute(), expected)


def test_indices_and_values_of_points(points, chunks, rng):
    x, z = in_chunks(points, chunks)
    row, col = (rng.random(rows).astype(x.dtype) for rows in (M, N))
    f = "where(i == j, 100, 0) + (i + 2*j)*row - col + sum(abs(x-z))"
    options = {"row": row, "col": da.from_array(col, chunks=(chunks[1],)), "i_offset": 7}
    expected = mc.pairwise(f, *points, row=row, col=col, i_offset=7)
    np.testing.assert_array_equal(md.pairwise(f, x, z, **options).compute(), expected)
    best = md.kernel_reduce(f, x, z, "argmin", **options)
    np.testing.assert_array_equal(best.compute(), expected.argmin(1))


def test_products(points, chunks, rng):
    x, z = in_chunks(points, chunks)
    v = rng.standard_normal((N, 3)).astype(x.dtype)
    values = gauss(*points, 2.0)
    for given in (v, v[:, 0], da.from_array(v, chunks=(chunks[1], (2, 1)))):
        y = md.kernel_product(GAUSS, x, z, given, h=2.0)
        whole = np.asarray(given, "d").reshape(N, -1)
        terms = values[:, None, :] * whole.T
        assert y.shape == (M, *given.shape[1:])
        assert y.dtype == x.dtype
        found = y.compute().reshape(M, -1)
        error = np.abs(found - terms.sum(-1))
        assert (error <= sum_bound(terms, x.dtype, len(chunks[1]))).all()
    if len(chunks[1]) == 1:
        np.testing.assert_array_equal(found, mc.kernel_product(GAUSS, *points, v, h=2.0))


def test_gradients(points, chunks, rng):
    x, z = in_chunks(points, chunks)
    coef = rng.standard_normal((2, N)).astype(x.dtype)
    gaps = (points[0][:, None].astype("d") - points[1][None]).transpose(0, 2, 1)
    slopes = -gauss(*points, 2.0)[:, None] * gaps  # [M, K, N], h = 2
    for given in (coef, coef[0], da.from_array(coef, chunks=(1, chunks[1]))):
        g = md.kernel_gradient(GAUSS, x, z, given, h=2.0)
        assert g.shape == (*given.shape[:-1], M, K)
        terms = slopes * np.asarray(given, "d")[..., None, None, :]
        error = np.abs(g.compute() - terms.sum(-1))
        assert (error <= 2 * sum_bound(terms, x.dtype, len(chunks[1]))).all()


@pytest.mark.parametrize("reduce", ["max", "min", "argmax", "argmin"])
def test_extremes_are_those_of_one_array_to_the_bit(points, chunks, reduce):
    points[0][5, 0] = points[1][40, 1] = np.nan
    points[1][60, 0] = np.nan
    x, z = in_chunks(points, chunks)
    found = md.kernel_reduce(GAUSS, x, z, reduce, h=2.0)
    expected = mc.kernel_reduce(GAUSS, *points, reduce, h=2.0)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.compute(), expected)


@pytest.mark.parametrize("reduce", ["sum", "logsumexp"])
def test_sums(points, chunks, reduce):
    x, z = in_chunks(points, chunks)
    f = GAUSS if reduce == "sum" else "300*sum(x*z)"
    found = md.kernel_reduce(f, x, z, reduce, **({"h": 2.0} if reduce == "sum" else {})).compute()
    if reduce == "sum":
        terms = gauss(*points, 2.0)
        assert (np.abs(found - terms.sum(1)) <= sum_bound(terms, x.dtype, 4)).all()
        return
    terms = 300 * (points[0].astype("d") @ points[1].T.astype("d"))
    largest = 300 * np.abs(points[0].astype("d")) @ np.abs(points[1].T.astype("d"))
    bound = (K + 6) * np.finfo(x.dtype).eps * (largest.max(1) + 10)
    assert (np.abs(found - np.logaddexp.reduce(terms, 1)) <= bound).all()


def test_logsumexp_of_infinities(chunks):
    x, z = np.zeros((M, 1)), np.zeros((N, 1))
    x[:3, 0] = [1, 2, 3]
    row = np.zeros(M)
    col = np.full(N, -np.inf)
    f = "where(row > 0, where(j == 70, 1/(0*row), col), where(row < 0, where(j < 2, 5, col), col))"
    row[:2] = [1, -1]
    given = in_chunks((x, z), chunks)
    found = md.kernel_reduce(f, *given, "logsumexp", row=row, col=col).compute()
    np.testing.assert_array_equal(
        found, mc.kernel_reduce(f, x, z, "logsumexp", row=row, col=col)
    )  # fmt: skip
    assert found[0] == np.inf
    assert found[1] == pytest.approx(5 + np.log(2), rel=1e-15)
    assert (found[2:] == -np.inf).all()


@pytest.mark.parametrize("k", [1, 4, N])
def test_neighbours_are_those_of_one_array_to_the_bit(points, chunks, k):
    points[0][5, 0] = points[1][60, 1] = np.nan
    points[1][:, 2] = points[0][:, 2] = 0
    points[0][7] = points[1][3]
    x, z = in_chunks(points, chunks)
    found = md.knn("cityblock", x, z, k)
    expected = mc.knn("cityblock", *points, k)
    assert [a.shape for a in found] == [(M, k)] * 2
    for a, b in zip(dask.compute(*found), expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(found[1].compute(), expected[1])


def test_no_points():
    x, none = da.zeros((4, 3), chunks=(2, 3)), da.zeros((0, 3), chunks=(2, 3))
    f = "sum(x*z)"
    assert md.pairwise(f, x, none).compute().shape == (4, 0)
    assert md.pairwise(f, none, x).compute().shape == (0, 4)
    np.testing.assert_array_equal(
        md.kernel_product(f, x, none, np.zeros((0, 2))).compute(), np.zeros((4, 2))
    )
    assert md.kernel_product(f, none, x, np.ones(4)).compute().shape == (0,)
    np.testing.assert_array_equal(md.kernel_reduce(f, x, none, "sum").compute(), np.zeros(4))
    assert not md.pairwise(f, x[:, :0], x[:, :0]).compute().any()  # points of no features
    lowest = md.kernel_reduce(f, x, none, "logsumexp").compute()
    np.testing.assert_array_equal(lowest, np.full(4, -np.inf))
    for call in (
        lambda: md.kernel_reduce(f, x, none, "max"),
        lambda: md.knn(f, x, none, 1),
    ):
        with pytest.raises(ValueError, match=r"[Rr]eceived"):
            call()


def test_types_of_points(rng):
    x = rng.integers(0, 9, (30, 3)).astype("uint8")
    given = da.from_array(x, chunks=(11, -1))
    k = md.pairwise("sum(abs(x-z))", given)
    assert k.dtype == np.float32
    np.testing.assert_array_equal(k.compute(), mc.pairwise("sum(abs(x-z))", x))
    wide = 2**24 + np.arange(30, dtype="int32").reshape(10, 3)
    k = md.pairwise("sum(x*z)", da.from_array(wide, chunks=(4, -1)))
    assert k.dtype == k.compute().dtype == np.float64
    np.testing.assert_array_equal(k.compute(), wide.astype(float) @ wide.T.astype(float))
    points = given.astype("float32")
    weighted = md.pairwise("sum(w*abs(x-z))", points, w=[1, 2, 3])
    assert weighted.dtype == weighted.compute().dtype == np.float32
    half = md.kernel_product("sum(x*z)", given.astype("float16"), None, np.ones(30, "float16"))
    assert half.compute().dtype == np.float32


def test_functions_and_arrays_of_formulas(points, chunks):
    x, z = in_chunks(points, chunks)
    width = np.asarray(3.0)
    f = lambda x, z, h=2.0: mc.exp(-mc.sum(abs(x - z)) * width / h)  # noqa: E731
    expected = mc.pairwise(f, *points)
    np.testing.assert_array_equal(md.pairwise(f, x, z).compute(), expected)
    names = [md.pairwise(g, x, z).name for g in (f, f, GAUSS.replace("h", "3"))]
    assert names[0] == names[1] != names[2]


# ---- What is refused, before a chunk is read. ---------------------------------------------------


class Unread:
    """An array whose chunks must not be asked for."""

    def __init__(self, shape, dtype="float32"):
        self.shape, self.ndim, self.dtype = shape, len(shape), np.dtype(dtype)

    def __getitem__(self, index):
        raise AssertionError("a chunk was read")


def unread(*shape, chunks=None, dtype="float32"):
    return da.from_array(Unread(shape, dtype), chunks=chunks or shape, meta=np.empty(0, dtype))


REFUSED = {
    "unknown sizes": (
        lambda x: md.pairwise("cityblock", x[x[:, 0] > 0]),
        ValueError,
        r"x must have chunks of known sizes; write x.compute_chunk_sizes\(\)",
    ),
    "features apart": (
        lambda x: md.cdist(x, unread(10, 3, chunks=(10, 2))),
        ValueError,
        r"x2 must have all features of a point in one chunk; write x2.rechunk\(\{1: -1\}\)",
    ),
    "features": (
        lambda x: md.cdist(x, unread(10, 4)),
        ValueError,
        "the same number of features",
    ),
    "batch": (lambda x: md.pairwise("cityblock", x[None]), NotImplementedError, "batches"),
    "batch of parameters": (
        lambda x: md.pairwise(GAUSS, x, h=np.ones(2, "f")),
        NotImplementedError,
        "arrays of one number",
    ),
    "a vector": (lambda x: md.pairwise("cityblock", x[:, 0]), ValueError, r"\[rows, K\]"),
    "a list": (lambda x: md.pairwise("cityblock", [[1.0]]), TypeError, "must be an array of Dask"),
    "two types": (
        lambda x: md.pairwise("cityblock", x, unread(10, 3, dtype="float64")),
        mc.DtypeError,
        "one dtype",
    ),
    "whole numbers and others": (
        lambda x: md.pairwise("cityblock", x, unread(10, 3, dtype="int32")),
        mc.DtypeError,
        "x and z must have one dtype. Received float32 and int32",
    ),
    "whole numbers": (
        lambda x: md.pairwise("cityblock", unread(10, 3, dtype="int64")),
        mc.DtypeError,
        r"x.astype\('float32'\)",
    ),
    "v in other chunks": (
        lambda x: md.kernel_product("cityblock", x, None, unread(10, 2, chunks=(3, 2))),
        ValueError,
        r"v must have the chunks of x; write v.rechunk\(\{0: x.chunks\[0\]\}\)",
    ),
    "v of other points": (
        lambda x: md.kernel_product("cityblock", x, unread(9, 3), unread(10, 2)),
        ValueError,
        "each of the 9 points of z",
    ),
    "v of another type": (
        lambda x: md.kernel_product("cityblock", x, None, np.ones(10, "int32")),
        mc.DtypeError,
        "v must have the computing type",
    ),
    "no v": (lambda x: md.kernel_product("cityblock", x, None, None), TypeError, "v must be"),
    "coef in other chunks": (
        lambda x: md.kernel_gradient("cityblock", x, None, unread(2, 10)),
        ValueError,
        r"coef.rechunk\(\{1: x.chunks\[0\]\}\)",
    ),
    "row in other chunks": (
        lambda x: md.pairwise("row*sum(x*z)", x, row=unread(10)),
        ValueError,
        "row must have the chunks of x",
    ),
    "no row": (lambda x: md.pairwise("row*sum(x*z)", x), ValueError, "reads row"),
    "w of Dask": (
        lambda x: md.pairwise("sum(w*x*z)", x, w=unread(3)),
        ValueError,
        r"w must be in memory; write w.compute\(\)",
    ),
    "w of other features": (
        lambda x: md.pairwise("sum(w*x*z)", x, w=np.ones(4, "f")),
        ValueError,
        "one weight per feature",
    ),
    "k": (lambda x: md.knn("cityblock", x, None, 11), ValueError, r"points of z \(10\)"),
    "part of k": (lambda x: md.knn("cityblock", x, None, 1.5), TypeError, "whole number"),
    "reduce": (lambda x: md.kernel_reduce("cityblock", x, None, "prod"), ValueError, "one of sum"),
    "no parameter": (lambda x: md.pairwise(GAUSS, x), ValueError, "needs a value"),
    "out": (lambda x: md.pairwise(GAUSS, x, h=1, out=1), NotImplementedError, "out is not offered"),
    "normalize": (
        lambda x: md.kernel_product(GAUSS, x, None, unread(10, 2), h=1, normalize="sum"),
        NotImplementedError,
        "normalize is not offered",
    ),
    "ranges": (
        lambda x: md.kernel_reduce(GAUSS, x, None, "sum", h=1, ranges=([[0, 9]], [1], [[0, 9]])),
        NotImplementedError,
        "ranges is not offered",
    ),
    "V": (lambda x: md.cdist(x, metric="seuclidean"), ValueError, "V must be given"),
    "VI": (lambda x: md.cdist(x, metric="mahalanobis"), ValueError, "VI must be given"),
    "not symmetric": (
        lambda x: mc.linalg.KernelOperator("sum(x)", x),
        ValueError,
        "must be symmetric",
    ),
    "ridge": (
        lambda x: mc.linalg.KernelOperator("gauss", x, ridge=-1.0),
        ValueError,
        "ridge must be from 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_read(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call(unread(10, 3, chunks=(4, 3)))


def test_chunks_that_are_not_what_their_array_says():
    x = da.from_array(np.ones((10, 3)), chunks=(5, -1))
    for change, words in ((lambda b: b[:-1], "shape"), (lambda b: b.astype("f"), "dtype")):
        wrong = x.map_blocks(change, meta=x._meta)
        with pytest.raises(ValueError, match=f"the {words} that its array declares"):
            md.kernel_product("sum(x*z)", x, wrong, np.ones(10)).compute()


def test_without_dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.array", None)
    monkeypatch.delitem(sys.modules, "mercer.dask")
    with pytest.raises(ImportError, match=r"pip install 'mercer\[dask\]'"):
        importlib.import_module("mercer.dask")
    monkeypatch.setattr(mc, "dask", md)


# ---- Memory and files. --------------------------------------------------------------------------


class Counted:
    """An array in storage that counts the chunks that were read and those still in memory."""

    def __init__(self, array):
        self.array, self.shape, self.ndim, self.dtype = array, array.shape, 2, array.dtype
        self.read = self.held = self.most = 0
        self.lock = threading.RLock()

    def __getitem__(self, index):
        block = np.array(self.array[index])
        with self.lock:
            self.read += 1
            self.held += 1
            self.most = max(self.most, self.held)
        weakref.finalize(block, self.drop)
        return block

    def drop(self):
        with self.lock:
            self.held -= 1


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("verb", ["product", "knn", "matrix"])
def test_blocks_read_their_chunks_and_hold_none(rng, same, verb):
    sides = [Counted(rng.standard_normal((120, 3))) for _ in range(1 if same else 2)]
    x, *z = (da.from_array(side, chunks=(10, -1), meta=np.empty((0, 0))) for side in sides)
    z = z[0] if z else None
    with dask.config.set(scheduler="threads", num_workers=2):
        if verb == "product":
            other = x.mean(0)  # another use of the same chunks
            dask.compute(md.kernel_product("cityblock", x, z, np.ones(120)), other)
        elif verb == "knn":
            dask.compute(*md.knn("cityblock", x, z, 3))
        else:
            md.pairwise("cityblock", x, z).sum().compute()
    read, most = (sum(getattr(side, name) for side in sides) for name in ("read", "most"))
    assert read >= 2 * 12 * 12
    assert most <= 10  # of 12 or 24: two for each of two threads, and what waits to be dropped


def test_rows_of_matrices_are_divided(rng):
    x, z = rng.standard_normal((100, 3)), rng.standard_normal((60, 3))
    row = rng.random(100)
    with dask.config.set({"array.chunk-size": "8 KiB"}):
        given = da.from_array(x, chunks=((70, 30), -1))
        k = md.pairwise("row*sum(x*z)", given, da.from_array(z, chunks=(40, -1)), row=row)
    assert max(k.chunks[0]) * 40 * 8 <= 8192
    assert k.chunks[1] == (40, 20)
    np.testing.assert_array_equal(k.compute(), mc.pairwise("row*sum(x*z)", x, z, row=row))


@pytest.fixture
def files(tmp_path, rng):
    """Points as a memory map, parts of one, in HDF5 and in Zarr; and the points."""
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    x = rng.standard_normal((300, 4)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "f.npy", np.asfortranarray(x))
    map_, columns = (np.load(tmp_path / name, mmap_mode="r") for name in ("x.npy", "f.npy"))
    array = zarr.create_array(store=tmp_path / "x.zarr", shape=x.shape, chunks=(50, 4), dtype="f4")
    array[:] = x
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = x
    with h5py.File(tmp_path / "x.h5", "r") as file:
        yield x, {
            "map": (map_, slice(None)), "columns": (columns, slice(None)),
            "part": (map_[20:90], slice(20, 90)), "steps": (map_[::2], slice(None, None, 2)),
            "hdf5": (file["x"], slice(None)), "zarr": (array, slice(None)),
        }  # fmt: skip


def test_files(files):
    x, sources = files
    with dask.config.set({"array.chunk-size": "1 KiB"}):
        for name, (source, rows) in sources.items():
            k = md.pairwise("cityblock", source, x[:50])
            assert len(k.chunks[0]) > 1, name
            np.testing.assert_array_equal(
                k.compute(), mc.pairwise("cityblock", x[rows], x[:50]), err_msg=name
            )
            found = md.knn("cityblock", source, None, 3)
            for a, b in zip(
                dask.compute(*found), mc.knn("cityblock", x[rows], None, 3), strict=True
            ):
                np.testing.assert_array_equal(a, b, err_msg=name)


def test_files_travel_by_name(files):
    x, sources = files
    for name in ("map", "columns", "part", "hdf5"):
        source, rows = sources[name]
        k = md.pairwise("cityblock", source, x[:5])
        sent = pickle.dumps(md._dask_inputs.known_points("pairwise", "x", source).dask)
        assert len(sent) < 4000 < x[rows].nbytes or name == "part"
        back = pickle.loads(pickle.dumps(k.dask))
        (key,) = [key for row in k.__dask_keys__() for key in row]
        np.testing.assert_array_equal(
            dask.get(back, key), mc.pairwise("cityblock", x[rows], x[:5]), err_msg=name
        )


class Views:
    """A memory map whose chunks are views of it."""

    def __init__(self, array):
        self.array, self.shape, self.ndim, self.dtype = array, array.shape, 2, array.dtype

    def __getitem__(self, index):
        return np.asarray(self.array[index])


def test_memory_maps_that_shrink(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((3000, 4)))
    map_ = np.load(path, mmap_mode="r")
    later = [
        md.kernel_product("cityblock", given, None, np.ones(3000))
        for given in (map_, map_[::-1], da.from_array(Views(map_), chunks=(1000, -1)))
    ]
    os.truncate(path, 50000)
    for y in later:
        with pytest.raises(ValueError, match="a memory map must have its whole file"):
            y.compute()
    with pytest.raises(ValueError, match="whole file"):
        md.kernel_product("cityblock", map_, None, np.ones(3000))


def test_memory_maps_that_are_replaced_or_copied_on_write(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((30, 4)))
    map_ = np.load(path, mmap_mode="r")
    y = md.kernel_reduce("cityblock", map_, None, "sum")
    np.save(tmp_path / "y.npy", np.zeros((30, 4)))
    os.replace(tmp_path / "y.npy", path)
    with pytest.raises(ValueError, match="must stay in its place"):
        y.compute()
    changed = np.load(path, mmap_mode="c")
    changed[3] = 5
    found = md.kernel_reduce("cityblock", changed, None, "max").compute()
    np.testing.assert_array_equal(found, mc.kernel_reduce("cityblock", changed, None, "max"))


# ---- Options, linear algebra, clusters. ---------------------------------------------------------


def test_options_go_with_the_tasks(monkeypatch):
    x = da.ones((10, 3), chunks=(5, 3))
    with mc.options(threads=1, target="interpreter"):
        inside = md.pairwise("cityblock", x)
    outside = md.pairwise("cityblock", x)
    seen = []
    pairwise = mc.pairwise

    def recorded(*arguments, **options):
        seen.append(mc._mercer.settings_text().split())
        return pairwise(*arguments, **options)

    monkeypatch.setattr(mc, "pairwise", recorded)
    with dask.config.set(scheduler="threads"):
        for k in (inside, outside):
            k.compute()
    assert seen[:4] == [["threads", "1", "target", "interpreter"]] * 4
    assert seen[4:] == [[]] * 4


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_linear_algebra(rng, scheduler):
    x, b = rng.standard_normal((250, 3)), rng.standard_normal((250, 2))
    given = da.from_array(x, chunks=((100, 0, 150), -1))
    a = mc.kernel_matrix("gauss", x, bandwidth=1.0) + 0.5 * np.eye(250)
    operator = mc.linalg.KernelOperator("gauss", given, ridge=0.5, bandwidth=1.0)
    assert isinstance(operator, md.KernelOperator)
    assert operator.shape == (250, 250)
    with dask.config.set(scheduler=scheduler):
        alpha = mc.linalg.cg(operator, b, tol=1e-9)
        inverse = mc.linalg.nystrom(operator, 60)
        faster, info, products = mc.linalg.cg(
            operator, b[:, 0], tol=1e-9, preconditioner=inverse, check=False
        )
        w, v = mc.linalg.eigh_top(operator, 3)
    size = np.linalg.norm(b, axis=0)
    assert (np.linalg.norm(b - a @ alpha, axis=0) <= 1.01e-9 * size).all()
    assert np.linalg.norm(b[:, 0] - a @ faster) <= 1.01e-9 * size[0]
    assert info == 0
    assert products < mc.linalg.cg(operator, b, tol=1e-9, check=False)[2].max()
    np.testing.assert_allclose(w, np.linalg.eigvalsh(a)[-3:], rtol=1e-9)
    assert np.linalg.norm(a @ v - v * w, axis=0).max() <= 1e-9 * w[-1]


@pytest.fixture
def cupy():
    library = pytest.importorskip("cupy")
    try:
        library.cuda.runtime.getDeviceCount()
    except library.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(str(error))
    return library


def test_chunks_of_cupy(cupy, rng):
    x, z = rng.standard_normal((40, 3)), rng.standard_normal((50, 3))
    z[30] = z[3]
    x[3, 0] = z[7, 0] = np.nan
    v = rng.standard_normal((50, 2))
    on_device = [da.from_array(cupy.asarray(a), chunks=(17, -1)) for a in (x, z, v)]
    gx, gz, gv = on_device
    calls = {
        "pairwise": lambda m, x, z, v: m.pairwise(GAUSS, x, z, h=2.0),
        "product": lambda m, x, z, v: m.kernel_product(GAUSS, x, z, v, h=2.0),
        "gradient": lambda m, x, z, v: m.kernel_gradient(GAUSS, x, z, v[:, 0], h=2.0),
        **{
            name: lambda m, x, z, v, name=name: m.kernel_reduce(GAUSS, x, z, name, h=2.0)
            for name in ("sum", "max", "min", "argmax", "argmin", "logsumexp")
        },
    }
    for name, call in calls.items():
        found = call(md, gx, gz, gv).compute()
        assert isinstance(found, cupy.ndarray), name
        expected = call(mc, x, z, v)
        np.testing.assert_allclose(found.get(), expected, rtol=1e-12, atol=1e-13, err_msg=name)
    found = dask.compute(*md.knn("cityblock", gx, gz, 50))
    for a, b in zip(found, mc.knn("cityblock", x, z, 50), strict=True):
        np.testing.assert_allclose(a.get(), b, rtol=1e-14)
    b = rng.standard_normal(40)
    x[3, 0] = 0
    own = da.from_array(cupy.asarray(x), chunks=(17, -1))
    a = mc.linalg.KernelOperator("gauss", own, ridge=0.1, bandwidth=1.0)
    alone = mc.linalg.KernelOperator("gauss", x, ridge=0.1, bandwidth=1.0)
    np.testing.assert_allclose(mc.linalg.cg(a, b), mc.linalg.cg(alone, b), rtol=1e-7)


def test_random_pivots(rng):
    """Pivots are those of these draws from the stored matrix, and as good as NumPy's own."""
    x, row = rng.standard_normal((90, 2)), rng.uniform(1, 2, 90)
    options = {"weights": rng.uniform(0.1, 1, 90), "ridge": rng.uniform(0.2, 1, 90),
               "row": row, "col": row}  # fmt: skip
    text = "row*col*exp(-sum(square(x-z)))"
    with dask.config.set(scheduler="synchronous"):
        given = da.from_array(x, chunks=((40, 50), -1))
        operator = mc.linalg.KernelOperator(text, given, **options)
        inverse = mc.linalg.rpcholesky(operator, 25, block=6, seed=3)
    alone = mc.linalg.KernelOperator(text, x, **options)
    a = alone.rows(slice(None))
    kernel, least = a - np.diag(options["ridge"]), options["ridge"].min()
    draws = _random_pivots.Draws(kernel.diagonal(), 2.0**-52, 3)
    lower = _random_pivots.factor(
        draws, 25, 6, lambda some: kernel[np.ix_(some, some)], lambda some: kernel[:, some]
    )
    assert inverse.rank == lower.shape[1] == 25
    wanted = np.linalg.inv(lower @ lower.T + least * np.eye(90))
    # Rounding of 1e-15 times the condition of L L^T + ridge, below 2e3, twice.
    np.testing.assert_allclose(inverse.solve(np.eye(90)), wanted, rtol=0, atol=1e-9)
    conditions = [np.linalg.cond(p.solve(a)) for p in (inverse, mc.linalg.rpcholesky(alone, 25))]
    assert conditions[0] < 2 * conditions[1] < np.linalg.cond(a)
    with pytest.raises(
        NotImplementedError, match="rpcholesky: is not offered for formulas that re"
    ):
        mc.linalg.rpcholesky(
            mc.linalg.KernelOperator("exp(-sum((x-z)^2))*(i+j)", given), 2, ridge=1
        )
    with pytest.raises(ValueError, match="rpcholesky: ridge must be positive"):
        mc.linalg.rpcholesky(mc.linalg.KernelOperator("gauss", given), 2)
    with pytest.raises(mc.LinAlgError, match="rpcholesky: a without its ridge must be positive se"):
        mc.linalg.rpcholesky(mc.linalg.KernelOperator("0-exp(-sum((x-z)^2))", given), 2, ridge=1.0)


def test_operators_of_weighted_points(rng):
    x, b = rng.standard_normal((90, 3)), rng.standard_normal((90, 2))
    weights, ridge, row = rng.uniform(0, 1, 90), rng.uniform(0.5, 2, 90), rng.uniform(1, 2, 90)
    weights[:5] = 0
    text, w = "exp(-sum(w*square(x-z)))*(row+col)", np.array([1.0, 0.5, 0.0])
    options = {"ridge": ridge, "weights": weights, "w": w, "row": row, "col": row}
    given = da.from_array(x, chunks=((40, 50), -1))
    operator = mc.linalg.KernelOperator(text, given, **options)
    alone = mc.linalg.KernelOperator(text, x, **options)
    size = np.abs(alone.rows(slice(None))) @ np.abs(b)
    assert (np.abs(operator @ b - alone @ b) <= 1e-13 * size).all()
    np.testing.assert_array_equal(operator @ b[:, 0], (operator @ b[:, :1])[:, 0])
    np.testing.assert_allclose(operator.diagonal(), alone.diagonal(), rtol=1e-14)
    path = [0.0, 4.0]
    np.testing.assert_allclose(
        mc.linalg.cg(operator, b, ridge=path), mc.linalg.cg(alone, b, ridge=path), rtol=1e-7
    )
    for name in ("ridge", "weights"):
        with pytest.raises(ValueError, match=f"{name} must be from 0 on and finite"):
            mc.linalg.KernelOperator(text, given, **{**options, name: -ridge})
        with pytest.raises(ValueError, match=rf"{name} must have shape \(90,\). Received \(89,"):
            mc.linalg.KernelOperator(text, given, **{**options, name: ridge[1:]})
    with pytest.raises(ValueError, match="row and col must be one array"):
        mc.linalg.KernelOperator(text, given, **{**options, "col": ridge})
    with pytest.raises(ValueError, match="v must be float64 of the shape"):
        operator @ b[1:]


def test_operators_check_their_columns_and_pass_errors_on():
    x = da.ones((10, 3), chunks=(4, 3))
    operator = mc.linalg.KernelOperator("gauss", x, ridge=1.0, bandwidth=1.0)
    with pytest.raises(ValueError, match=r"cg: b must have the shape \[n, k\] or \[n\], n = 10"):
        mc.linalg.cg(operator, np.ones(9))
    with pytest.raises(mc.DtypeError, match="b must be float64"):
        mc.linalg.cg(operator, np.ones(10, "f"))

    def fail(block):
        raise RuntimeError("a chunk is lost")

    lost = x.map_blocks(fail, meta=x._meta)
    with pytest.raises(RuntimeError, match="a chunk is lost"):
        mc.linalg.cg(md.KernelOperator("gauss", lost, bandwidth=1.0), np.ones(10))
    alone = np.ones((10, 3))
    assert type(mc.linalg.KernelOperator("gauss", alone)) is mc.linalg.KernelOperator


class Multiplied:
    """An operator whose products a function makes."""

    shape, dtype, ridge = (4, 4), np.dtype("float64"), 0.0

    def __init__(self, product):
        self.product = product

    def _mercer_multiply(self, columns):
        return self.product(columns)


@pytest.mark.parametrize("product", [lambda v: v[:-1], lambda v: v.astype("f")])
def test_products_are_checked(product):
    with pytest.raises(ValueError, match=r"cg: a product with a must be float64\[4, 1\] on cpu"):
        mc.linalg.cg(Multiplied(product), np.ones(4))
    np.testing.assert_allclose(
        mc.linalg.cg(Multiplied(lambda v: 2 * v), np.ones(4)), np.full(4, 0.5)
    )


def _slow(block):
    time.sleep(0.1)
    return block


def test_a_cluster_that_loses_a_worker(files, rng):
    distributed = pytest.importorskip("distributed")
    x, sources = files
    v = rng.standard_normal((300, 2)).astype("float32")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with (
        cluster,
        distributed.Client(cluster) as client,
        dask.config.set({"array.chunk-size": "1 KiB"}),
    ):
        expected = mc.pairwise("cityblock", x, x[:40])
        for name in ("map", "hdf5", "zarr"):
            found = md.pairwise("cityblock", sources[name][0], x[:40]).compute()
            np.testing.assert_array_equal(found, expected, err_msg=name)
        slow = da.from_array(x, chunks=(75, -1)).map_blocks(_slow, meta=np.empty((0, 0), "f"))
        parts = [
            client.compute(part)
            for part in (
                md.kernel_product(GAUSS, slow, None, v, h=2.0),
                *md.knn("cityblock", slow, None, 3),
            )
        ]
        victim = next(iter(cluster.workers.values()))
        while not any(client.processing().values()):
            time.sleep(0.05)
        time.sleep(0.7)
        lost = victim.pid
        assert not any(part.done() for part in parts)
        os.kill(lost, signal.SIGKILL)
        y, values, indices = client.gather(parts)
        assert victim.pid != lost
    terms = gauss(x, x, 2.0)[:, None] * v.T.astype("d")
    assert (np.abs(y - terms.sum(-1)) <= sum_bound(terms, "float32", 4)).all()
    for a, b in zip((values, indices), mc.knn("cityblock", x, None, 3), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_benchmark_runs(tmp_path, capsys, monkeypatch):
    sizes = [
        "--queries",
        "500",
        "--points",
        "200",
        "--gigabytes",
        "1e-5",
        "--folder",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", [str(BENCH), *sizes, "--limit", "0"])
    runpy.run_path(str(BENCH), run_name="__main__")
    assert {"nearest", "product"} <= set(capsys.readouterr().out.split())
