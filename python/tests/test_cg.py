"""mercer.linalg.cg and its preconditioners, by residuals in float64 as they are promised."""

from __future__ import annotations

import copy
import pickle

import mercer as mc
import numpy as np
import pytest

linalg = mc.linalg
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
KERNELS = {"gauss": "exp(-sum(square(x-z))/4)", "laplace": "exp(-sum(abs(x-z))/4)"}


def points(n, dtype="float64", features=3):
    return np.random.default_rng(n).normal(size=(n, features)).astype(dtype)


def assert_promise(a, b, x, tolerance):
    """|b - a x| <= tol |b| in the products of the call.

    Their rounding is n u of the sums |a| |x| at most. Kernel products of float32 keep 1e-6 of them,
    which is more.
    """
    exact = a.astype("d")
    unit = 1e-6 if b.dtype == np.float32 else len(a) * 2.0**-53
    gap = np.linalg.norm(b.astype("d") - exact @ x.astype("d"), axis=0)
    lost = 2 * unit * np.linalg.norm(np.abs(exact) @ np.abs(x.astype("d")), axis=0)
    assert (gap <= 1.0001 * tolerance * np.linalg.norm(b.astype("d"), axis=0) + lost).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 3), (33, 0), (300, 1), (777, 5)])
def test_kernel_ridge(n, k, kernel, dtype):
    x = points(n, dtype)
    shape = (n, k) if k else (n,)
    b = np.random.default_rng(1).normal(size=shape).astype(dtype)
    a = mc.kernel_matrix(KERNELS[kernel], x) + np.asarray(2, dtype) * np.eye(n, dtype=dtype)
    for operator in (a, linalg.KernelOperator(KERNELS[kernel], x, ridge=2.0)):
        tol = None if dtype == "float64" else 1e-4
        alpha, info, iterations = linalg.cg(operator, b, tol=tol, check=False)
        assert alpha.shape == shape
        assert alpha.dtype == dtype
        assert info.shape == iterations.shape == shape[1:]
        assert info.dtype == iterations.dtype == "int64"
        assert (info == 0).all()
        assert_promise(a, b, alpha, tol or TOLERANCE[dtype])


@pytest.mark.parametrize("condition", [1e1, 1e2, 1e3, 1e4, 1e5, 1e6])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_conditions(condition, dtype):
    """What is said is true, whether or not float32 gets as far."""
    n = 200
    random = np.random.default_rng(2)
    q = np.linalg.qr(random.normal(size=(n, n)))[0]
    a = (q * np.logspace(0, -np.log10(condition), n)) @ q.T
    a = ((a + a.T) / 2).astype(dtype)
    b = random.normal(size=(n, 4)).astype(dtype)
    b[:, 2] = 0
    x, info, iterations = linalg.cg(a, b, max_iter=8000, check=False)
    assert iterations[2] == 0
    assert (x[:, 2] == 0).all()
    done = info == 0
    assert ((info[~done] == iterations[~done]) | (info[~done] == -2)).all()
    if dtype == "float64" or condition <= 1e2:
        assert done.all()
    assert_promise(a, b[:, done], x[:, done], TOLERANCE[dtype])
    # The bound of the theory, 2 ((c - 1) / (c + 1))^i, c the root, and what measuring takes.
    if done.all():
        root = np.sqrt(condition)
        most = np.log(4 * root / TOLERANCE[dtype]) / np.log((root + 1) / (root - 1))
        assert iterations.max() <= 1.2 * most + 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_preconditioners_save_products(dtype):
    n, ridge = 600, 0.05
    x = points(n, dtype)
    operator = linalg.KernelOperator(KERNELS["gauss"], x, ridge=ridge)
    a = mc.kernel_matrix(KERNELS["gauss"], x) + np.asarray(ridge, dtype) * np.eye(n, dtype=dtype)
    tol = 1e-8 if dtype == "float64" else 2e-3
    products = {}
    inverses = {
        "none": None,
        "nystrom": linalg.nystrom(operator, 150),
        "matrix": linalg.nystrom(a, 150, ridge=ridge),
        "pivots": linalg.pivoted_cholesky(operator, 150),
    }
    for round_ in range(2):  # they serve more than one call
        b = np.random.default_rng(round_).normal(size=(n, 3)).astype(dtype)
        for name, inverse in inverses.items():
            alpha, info, iterations = linalg.cg(
                operator, b, preconditioner=inverse, tol=tol, check=False
            )
            assert (info == 0).all(), name
            assert_promise(a, b, alpha, tol)
            products[name] = int(iterations.max())
        for name in ("nystrom", "matrix", "pivots"):
            assert 3 * products[name] < products["none"], products
    assert inverses["nystrom"].shape == (n, n)
    assert inverses["nystrom"].rank <= 150
    assert inverses["pivots"].rank <= 150
    with pytest.raises(AttributeError):
        inverses["pivots"].rank = 3


@pytest.mark.parametrize("ridge", [1e-1, 1e-3, 1e-6, 1e-9])
def test_preconditioners_of_small_ridges(ridge):
    """Neither preconditioner makes a matrix fail that is positive in its dtype."""
    for dtype in ("float32", "float64"):
        x = np.concatenate([points(150, dtype)] * 2)  # singular but for the ridge
        operator = linalg.KernelOperator(KERNELS["gauss"], x, ridge=ridge)
        b = mc.kernel_product(KERNELS["gauss"], x, x, points(300, dtype))
        for inverse in (linalg.nystrom(operator, 100), linalg.pivoted_cholesky(operator, 100)):
            alpha, info, _ = linalg.cg(
                operator, b, preconditioner=inverse, tol=1e-3, max_iter=300, check=False
            )
            # What float32 makes of the least ridge may be indefinite: that is said, no more.
            named = info == -1 if (dtype, ridge) == ("float32", 1e-9) else np.zeros(3, bool)
            assert (info[~named] >= 0).all()
            np.testing.assert_array_equal(np.isfinite(alpha).all(axis=0), ~named)
            if ridge >= 1e-3:
                assert (info == 0).all()


def test_rank_beyond_the_order():
    x = points(40)
    operator = linalg.KernelOperator(KERNELS["laplace"], x, ridge=0.1)
    b = points(40, features=2)
    for inverse in (linalg.nystrom(operator, 99), linalg.pivoted_cholesky(operator, 99)):
        assert inverse.rank == 40
        iterations = linalg.cg(operator, b, preconditioner=inverse, check=False)[2]
        assert iterations.max() <= 4


def test_identity_and_guesses():
    a = 3.0 * np.eye(50)
    b = points(50, features=2)
    inverse = linalg.nystrom(a, 5, ridge=3.0)
    assert inverse.rank == 0
    plain = linalg.cg(a, b, check=False)
    same = linalg.cg(a, b, preconditioner=inverse, check=False)
    for left, right in zip(plain, same, strict=True):
        np.testing.assert_array_equal(left, right)
    assert (plain[2] == 2).all()
    assert (linalg.cg(a, b, x0=b / 3, check=False)[2] == 1).all()
    x0 = b / 3
    kept = x0.copy()
    linalg.cg(a, 2 * b, x0=x0)
    np.testing.assert_array_equal(x0, kept)


def test_layouts_and_libraries():
    torch = pytest.importorskip("torch")
    x = points(120)
    a = mc.kernel_matrix(KERNELS["gauss"], x) + np.eye(120)
    b = points(120, features=4)
    expected = np.linalg.solve(a, b)
    wide = np.full((120, 250), np.nan)
    wide[:, :240:2] = a
    for matrix in (a, np.asfortranarray(a), wide[:, :240:2]):
        for right in (b, np.asfortranarray(b), np.repeat(b, 2, axis=0)[::2], b[::-1].copy()[::-1]):
            np.testing.assert_allclose(linalg.cg(matrix, right), expected, rtol=1e-7, atol=1e-9)
    out = np.full((4, 240), np.nan).T[::2]
    assert linalg.cg(a, b, out=out) is out
    np.testing.assert_allclose(out, expected, rtol=1e-7, atol=1e-9)
    place = b.copy()
    assert linalg.cg(a, place, out=place) is place
    np.testing.assert_allclose(place, expected, rtol=1e-7, atol=1e-9)
    operator = linalg.KernelOperator(KERNELS["gauss"], torch.from_numpy(x), ridge=1.0)
    solved, info, iterations = linalg.cg(
        operator, torch.from_numpy(b), preconditioner=linalg.nystrom(operator, 30), check=False
    )
    assert all(isinstance(part, torch.Tensor) for part in (solved, info, iterations))
    np.testing.assert_allclose(solved.numpy(), expected, rtol=1e-7, atol=1e-9)


def test_failures_stay_in_their_columns():
    a = np.diag(np.linspace(1, 10, 30))
    b = points(30, features=4)
    b[3, 1] = np.nan
    b[5, 2] = np.inf
    x, info, _ = linalg.cg(a, b, check=False)
    assert info.tolist() == [0, -1, -1, 0]
    assert np.isnan(x[:, 1:3]).all()
    np.testing.assert_allclose(a @ x[:, [0, 3]], b[:, [0, 3]], atol=1e-8)
    with pytest.raises(
        mc.LinAlgError, match=r"must be finite. Received NaN or infinity in column 1 \(2 of 4"
    ):
        linalg.cg(a, b)
    a[4, 4] = -1
    with pytest.raises(mc.LinAlgError, match="a must be positive definite"):
        linalg.cg(a, b[:, :1])
    with pytest.raises(mc.LinAlgError, match=r"must be at most 1e-10 of b. Received .* 3 products"):
        linalg.cg(np.diag(np.linspace(1, 10, 30)), b[:, 0], max_iter=3)
    x, info, iterations = linalg.cg(
        np.diag(np.linspace(1, 10, 30)), b[:, 0], max_iter=3, check=False
    )
    assert info == iterations == 3
    assert np.isfinite(x).all()


def test_columns_do_not_depend_on_each_other():
    """Nor on threads: only products may round in another way."""
    x = points(90)
    operator = linalg.KernelOperator(KERNELS["laplace"], x, ridge=0.5)
    b = points(90, features=6)
    together = linalg.cg(operator, b)
    for j in range(6):
        np.testing.assert_allclose(
            linalg.cg(operator, b[:, j]), together[:, j], rtol=1e-7, atol=1e-9
        )
    threads = mc.get_num_threads()
    try:
        mc.set_num_threads(1)
        np.testing.assert_array_equal(linalg.cg(operator, b), together)
    finally:
        mc.set_num_threads(threads)


REFUSED = {
    "rows": (lambda a, b: linalg.cg(a, b[:3]), ValueError, r"b must have the shape \[n, k\] or"),
    "axes": (lambda a, b: linalg.cg(a, b[None]), ValueError, r"b must have the shape \[n, k\] or"),
    "square": (lambda a, b: linalg.cg(b, b), ValueError, r"cg: a must have the shape \[n, n\]"),
    "dtype": (lambda a, b: linalg.cg(a, b.astype("f4")), ValueError, "b must be float64"),
    "ints": (lambda a, b: linalg.cg(a.astype(int), b), mc.DtypeError, "Received int64"),
    "tol": (lambda a, b: linalg.cg(a, b, tol=-1.0), ValueError, "tol must be from 0 to 1"),
    "max_iter": (lambda a, b: linalg.cg(a, b, max_iter=-1), ValueError, "max_iter must not be"),
    "no tol": (lambda a, b: linalg.cg(a, b, tol=0), ValueError, "tol must be positive. Received 0"),
    "no products": (lambda a, b: linalg.cg(a, b, max_iter=0), ValueError, "max_iter must be pos"),
    "x0": (lambda a, b: linalg.cg(a, b, x0=b[:, 0]), ValueError, "x0 must have shape"),
    "out": (lambda a, b: linalg.cg(a, b, out=b[:, :1]), ValueError, "x must have shape"),
    "preconditioner": (lambda a, b: linalg.cg(a, b, preconditioner=a), TypeError,
                       "must come from rpcholesky, nystrom or pivoted_cholesky"),
    "order": (lambda a, b: linalg.cg(a, b, preconditioner=linalg.nystrom(np.eye(3), 2)), ValueError,
              "must be of the operator's order"),
    "rank": (lambda a, b: linalg.nystrom(a, 0), ValueError, "nystrom: rank must be positive"),
    "ridge": (lambda a, b: linalg.nystrom(a, 2, ridge=-1.0), ValueError, "ridge must not be neg"),
    "too much": (lambda a, b: linalg.nystrom(a, 2, ridge=9.0), mc.LinAlgError, "semi-definite"),
    "no ridge": (lambda a, b: linalg.pivoted_cholesky(linalg.KernelOperator("l1", b), 2),
                 ValueError, "pivoted_cholesky: ridge must be positive"),
    "matrix": (lambda a, b: linalg.pivoted_cholesky(a, 2), TypeError, "incompatible"),
    "formula": (lambda a, b: linalg.cg(linalg.KernelOperator("sum(x-z)", b), b), ValueError,
                "KernelOperator: the formula must be symmetric"),
    "half": (lambda a, b: linalg.cg(linalg.KernelOperator("l1", b.astype("f2")), b), ValueError,
             "x must be float32 or float64. Received float16"),
}  # fmt: skip


X = np.ones((5, 2))
UNMADE = {
    "out": (lambda: linalg.KernelOperator("l1", X, out=X), NotImplementedError, "out is not offe"),
    "z": (lambda: linalg.KernelOperator("l1", X, z=X), NotImplementedError, "z is not offered"),
    "a weighted formula": (lambda: linalg.KernelOperator(mc.cityblock(weighted=True), X),
                           ValueError, "KernelOperator: the formula reads the weights"),
    "an unknown name": (lambda: linalg.KernelOperator("gauss", X, bandwith=1.0), ValueError,
                        'KernelOperator: the formula has no parameter "bandwith"'),
    "no value": (lambda: linalg.KernelOperator("sum(x*z)*q", X), ValueError, '"q" needs a value'),
    "a batch": (lambda: linalg.KernelOperator("gauss", X, bandwidth=[1.0, 2.0]), ValueError,
                r"a batch of operators is not offered. Received a batch \(2,\)"),
    "ridge": (lambda: linalg.KernelOperator("gauss", X, ridge=-1.0), ValueError,
              "KernelOperator: ridge must be from 0 on and finite. Received -1"),
    "ridge of NaN": (lambda: linalg.KernelOperator("gauss", X, ridge=float("nan")), ValueError,
                     "ridge must be from 0 on and finite"),
    "axes": (lambda: linalg.KernelOperator("gauss", X[0]), ValueError, "x must have the shape"),
    "a batch of points": (lambda: linalg.KernelOperator("gauss", X[None]), ValueError,
                          "KernelOperator: x must have the shape"),
    "asymmetric": (lambda: linalg.KernelOperator("sum(x-z)", X), ValueError, "must be symmetric"),
    "whole numbers": (lambda: linalg.KernelOperator("gauss", X.astype(int)), mc.DtypeError,
                      "KernelOperator: x must be"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNMADE)
def test_operators_are_checked_when_they_are_made(case):
    call, error, words = UNMADE[case]
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_operators_and_preconditioners_pickle(again, library):
    module = pytest.importorskip(library)
    x = module.asarray(points(60))
    b = module.asarray(np.random.default_rng(1).normal(size=(60, 2)))
    h = module.asarray(1.5) if library == "torch" else 1.5
    for f, params in (("gauss", {"bandwidth": h}), (mc.gauss(bandwidth=h), {}),
                      (lambda x, z: mc.exp(-mc.dot(x - z, x - z) / (2 * h**2)), {})):  # fmt: skip
        operator = linalg.KernelOperator(f, x, ridge=0.1, **params)
        copied = again(operator)
        assert copied.shape == operator.shape == (60, 60)
        np.testing.assert_array_equal(linalg.cg(copied, b), linalg.cg(operator, b))
    for inverse in (linalg.nystrom(operator, 7), linalg.pivoted_cholesky(operator, 7)):
        copied = again(inverse)
        assert (copied.shape, copied.rank) == (inverse.shape, inverse.rank)
        for one, other in zip(linalg.cg(operator, b, preconditioner=copied, check=False),
                              linalg.cg(operator, b, preconditioner=inverse, check=False),
                              strict=True):  # fmt: skip
            np.testing.assert_array_equal(one, other)
    empty = linalg.nystrom(np.empty((0, 0), "f"), 2)
    assert again(empty).shape == (0, 0)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call(np.eye(5), np.ones((5, 2)))


# ---- CUDA devices --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("inverse", ["none", "nystrom", "pivots"])
def test_on_cuda(cuda, inverse, dtype):
    n, ridge, tol = 1500, 0.05, 1e-8 if dtype == "float64" else 2e-3
    x = points(n, dtype)
    b = points(n, dtype, features=7)
    a = mc.kernel_matrix(KERNELS["gauss"], x) + np.asarray(ridge, dtype) * np.eye(n, dtype=dtype)
    kernel = linalg.KernelOperator(KERNELS["gauss"], cuda.from_numpy(x).cuda(), ridge=ridge)
    make = {
        "none": lambda: None,
        "nystrom": lambda: linalg.nystrom(kernel, 200),
        "pivots": lambda: linalg.pivoted_cholesky(kernel, 200),
    }
    preconditioner = make[inverse]()
    matrix = cuda.from_numpy(a).cuda()
    wide = cuda.zeros((n, 2 * n), dtype=matrix.dtype, device="cuda")
    wide[:, ::2] = matrix
    right = cuda.from_numpy(b).cuda()
    for operator in (kernel, matrix, wide[:, ::2]):
        solved, info, iterations = linalg.cg(
            operator, right, preconditioner=preconditioner, tol=tol, check=False
        )
        assert solved.device == info.device == iterations.device == right.device
        assert (info == 0).all()
        assert_promise(a, b, solved.cpu().numpy(), tol)
        again = linalg.cg(operator, right, preconditioner=preconditioner, tol=tol)
        assert cuda.equal(again, solved)
    if inverse != "none":
        copied = pickle.loads(pickle.dumps(preconditioner))
        assert (copied.shape, copied.rank) == (preconditioner.shape, preconditioner.rank)
        assert cuda.equal(linalg.cg(wide[:, ::2], right, preconditioner=copied, tol=tol), again)
        alone = linalg.cg(kernel, right, tol=tol, check=False)[2]
        assert 3 * iterations.max() < alone.max()
    bad = right.clone()
    bad[3, 1] = float("nan")
    with pytest.raises(mc.LinAlgError, match="column 1"):
        linalg.cg(kernel, bad, preconditioner=preconditioner, tol=tol)


@pytest.mark.parametrize("kind", ["kernel", "matrix", "nystrom"])
def test_captured_calls_solve_for_new_right_hand_sides(cuda, kind):
    n = 700
    x = cuda.from_numpy(points(n, "float32")).cuda()
    kernel = linalg.KernelOperator(KERNELS["gauss"], x, ridge=1.0)
    matrix = mc.kernel_matrix(KERNELS["gauss"], x) + cuda.eye(n, device="cuda")
    operator = matrix if kind == "matrix" else kernel
    options = {
        "tol": 1e-3,
        "max_iter": 40,
        "check": False,
        "preconditioner": linalg.nystrom(kernel, 100) if kind == "nystrom" else None,
    }
    b = cuda.randn(n, 4, device="cuda")
    cuda.cuda.synchronize()
    stream = cuda.cuda.Stream()
    with cuda.cuda.stream(stream):
        linalg.cg(operator, b, **options)  # compiles, and makes the handles of this stream
    cuda.cuda.synchronize()
    graph = cuda.cuda.CUDAGraph()
    with cuda.cuda.graph(graph, stream=stream):
        solved, info, iterations = linalg.cg(operator, b, **options)
    for _ in range(3):
        b.copy_(cuda.randn(n, 4, device="cuda"))
        b[:, 2] = 0
        cuda.cuda.synchronize()
        graph.replay()
        cuda.cuda.synchronize()
        expected = linalg.cg(operator, b, **options)
        for got, wanted in zip((solved, info, iterations), expected, strict=True):
            assert cuda.equal(got, wanted)
        assert (info == 0).all()
        assert iterations[2] == 0
    refused = cuda.cuda.CUDAGraph()
    with (
        pytest.raises(ValueError, match="in a graph capture nothing can be thrown"),
        cuda.cuda.graph(refused, stream=stream),
    ):
        linalg.cg(operator, b, tol=1e-3)
