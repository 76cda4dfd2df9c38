"""mercer.linalg against SciPy in float64, by residuals.

With u the rounding unit and n the order, a backward stable solution of a x = b leaves a residual
of at most a small multiple of n u |a| |x|, whatever the condition; eigenpairs and factors likewise.
The multiple is 4 for Cholesky (Higham, Accuracy and Stability of Numerical Algorithms, chapter 10),
64 for LU with its growth, 10 for eigenpairs; norms are those of Frobenius.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import sys
import textwrap

import mercer as mc
import numpy as np
import pytest
import scipy.linalg
from conftest import in_threads

linalg = mc.linalg
ORDERS = [0, 1, 2, 33, 100, 1025]
DTYPES = ["float32", "float64"]


class Home:
    """Where a test's arrays live: NumPy, PyTorch on the CPU, PyTorch on its CUDA device."""

    def __init__(self, name):
        self.library = pytest.importorskip("numpy" if name == "numpy" else "torch")
        self.device = "cuda" if name == "cuda" else "cpu"
        if name == "cuda" and not self.library.cuda.is_available():
            pytest.skip("no GPU")

    def array(self, values):
        """The values, strides and all, as an array of this home."""
        if self.library is np:
            return values
        host = self.library.from_numpy(values)
        if self.device == "cpu":
            return host
        if host.numel() == 0:
            return host.cuda()
        steps = zip(host.stride(), host.shape, strict=True)
        extent = 1 + sum(stride * (size - 1) for stride, size in steps)
        memory = self.library.as_strided(host, (extent,), (1,)).cuda()
        return memory.as_strided(host.shape, host.stride())

    def empty(self, shape, dtype):
        if self.library is np:
            return np.empty(shape, dtype)
        kind = getattr(self.library, dtype)
        return self.library.empty(shape, dtype=kind, device=self.device)


@pytest.fixture(params=["numpy", "torch", "cuda"])
def home(request):
    return Home(request.param)


def to_numpy(array):
    return array.cpu().numpy() if hasattr(array, "cpu") else np.asarray(array)


def unit(dtype):
    return np.finfo(dtype).eps / 2


def norm(a):
    return np.linalg.norm(to_numpy(a).astype("d"))


def kernel(n, dtype, ridge=1e-3):
    """A kernel matrix of n points in 3 dimensions; its condition is below n / ridge."""
    x = np.random.default_rng(n).normal(size=(n, 3))
    return (mc.kernel_matrix("exp(-sum(square(x-z)))", x) + ridge * np.eye(n)).astype(dtype)


def with_spectrum(w, seed=0):
    """Symmetric, of these eigenvalues, and its eigenvectors."""
    q = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(w), len(w))))[0]
    return (q * w) @ q.T, q


def assert_solves(a, x, b, multiple):
    a, x, b = (to_numpy(array) for array in (a, x, b))
    assert x.dtype == a.dtype
    assert x.shape == b.shape
    residual = norm(a.astype("d") @ x.astype("d") - b)
    assert residual <= multiple * len(a) * unit(a.dtype) * norm(a) * norm(x)


def assert_eigenpairs(a, w, v):
    a, w, v = (to_numpy(array) for array in (a, w, v))
    bound = 10 * len(a) * unit(a.dtype)
    exact = a.astype("d")
    assert (np.diff(w) >= 0).all()
    assert norm(exact @ v - v.astype("d") * w) <= bound * norm(a)
    assert norm(v.T.astype("d") @ v - np.eye(v.shape[1])) <= bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", ORDERS)
def test_orders(home, n, dtype):
    rng = np.random.default_rng(1)
    symmetric, general = kernel(n, dtype), rng.normal(size=(n, n)).astype(dtype)
    s, g = home.array(symmetric), home.array(general)
    for b in (rng.normal(size=(n, 3)).astype(dtype), rng.normal(size=n).astype(dtype)):
        rhs = home.array(b)
        x = linalg.solve_cholesky(s, rhs)
        assert type(x) is type(rhs)
        assert_solves(symmetric, x, b, 4)
        factor = linalg.cholesky(s)
        assert_solves(symmetric, linalg.cho_solve(factor, rhs), b, 4)
        assert_solves(general, linalg.solve_lu(g, rhs), b, 64)
        factors = linalg.lu_factor(g)
        assert_solves(general, linalg.lu_solve(factors, rhs), b, 64)
        assert_solves(general.T, linalg.lu_solve(factors, rhs, transposed=True), b, 64)
    np.testing.assert_allclose(
        to_numpy(factor) @ to_numpy(factor).T, symmetric, atol=4 * (n + 1) * unit(dtype) * (n + 1)
    )
    w, v = linalg.eigh(s)
    assert_eigenpairs(symmetric, w, v)
    if n:
        expected = scipy.linalg.eigvalsh(symmetric.astype("d"))
        bound = 10 * n * unit(dtype) * norm(symmetric)
        assert np.abs(to_numpy(w) - expected).max() <= bound
        assert np.abs(to_numpy(linalg.eigh(s, eigvals_only=True)) - expected).max() <= bound


@pytest.mark.parametrize("ridge", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_conditions(home, dtype, ridge):
    """Conditions of 1e3, 1e5 and 1e7: the residual does not grow with them, the error may."""
    n = 200
    a, b = kernel(n, dtype, ridge), np.random.default_rng(2).normal(size=(n, 2)).astype(dtype)
    matrix, rhs = home.array(a), home.array(b)
    if dtype == "float64" or ridge > 1e-4:
        x = to_numpy(linalg.solve_cholesky(matrix, rhs))
        assert_solves(a, x, b, 4)
        expected = scipy.linalg.solve(a.astype("d"), b, assume_a="pos")
        condition = np.linalg.cond(a.astype("d"))
        assert norm(x - expected) <= 4 * n * unit(dtype) * condition * norm(expected)
    assert_solves(a, linalg.solve_lu(matrix, rhs), b, 64)
    assert_eigenpairs(a, *linalg.eigh(matrix))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "spectrum",
    [np.repeat([1.0, 1 + 1e-9, 5.0], 20), np.r_[np.zeros(50), np.ones(10)], np.logspace(-7, 0, 60)],
    ids=["clustered", "rank 10", "condition 1e7"],
)
def test_spectra(home, dtype, spectrum):
    a = with_spectrum(spectrum)[0].astype(dtype)
    matrix = home.array(a)
    w, v = (to_numpy(array) for array in linalg.eigh(matrix))
    assert_eigenpairs(a, w, v)
    assert np.abs(w - np.sort(spectrum)).max() <= 20 * len(a) * unit(dtype) * norm(a)
    for subset in ((0, 0), (45, 59), (7, 51)):
        some, vectors = (to_numpy(r) for r in linalg.eigh(matrix, subset_by_index=subset))
        assert some.shape == (subset[1] - subset[0] + 1,)
        assert_eigenpairs(a, some, vectors)
        assert np.abs(some - w[subset[0] : subset[1] + 1]).max() <= 20 * 60 * unit(dtype) * norm(a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(0, 4), (4, 0), (1, 7), (7, 1), (60, 150), (700, 30)])
def test_lu_of_any_shape(home, m, n, dtype):
    values = np.random.default_rng(2).normal(size=(2, m, n)).astype(dtype)
    a = home.array(values)
    lu, pivots = linalg.lu_factor(a)
    assert tuple(lu.shape) == (2, m, n)
    assert tuple(pivots.shape) == (2, min(m, n))
    least, multiple = min(m, n), 64 * max(m, n) * unit(dtype)
    for given, both, swaps in zip(values.astype("d"), to_numpy(lu), to_numpy(pivots), strict=True):
        permuted = given.copy()
        for i, other in enumerate(swaps):
            permuted[[i, other]] = permuted[[other, i]]
        factors = both.astype("d")
        lower, upper = np.tril(factors, -1)[:, :least] + np.eye(m, least), np.triu(factors)[:least]
        assert norm(lower @ upper - permuted) <= multiple * norm(given)
    (again, _), info = linalg.lu_factor(a, check=False, overwrite_a=True)
    assert again is a
    assert to_numpy(info).tolist() == [0, 0]
    assert norm(to_numpy(again) - to_numpy(lu)) <= multiple * norm(values)


def test_lu_that_is_not_square_serves_no_system():
    factors = linalg.lu_factor(np.ones((3, 5)) + np.eye(3, 5))
    with pytest.raises(ValueError, match=r"lu_solve: lu must have the shape \[..., n, n\]"):
        linalg.lu_solve(factors, np.ones(3))
    with pytest.raises(mc.LinAlgError, match="pivot 2 is zero"):
        linalg.lu_factor(np.ones((3, 5)))


def test_like_scipy(rng):
    a, general, b = kernel(30, "d"), rng.normal(size=(30, 30)), rng.normal(size=(30, 2))
    for lower in (True, False):
        np.testing.assert_allclose(
            linalg.cholesky(a, lower=lower), scipy.linalg.cholesky(a, lower=lower), atol=1e-12
        )
    lu, pivots = linalg.lu_factor(general)
    expected, swaps = scipy.linalg.lu_factor(general)
    np.testing.assert_allclose(lu, expected, atol=1e-12)
    np.testing.assert_array_equal(pivots, swaps)
    x = linalg.lu_solve((lu, pivots), b)
    np.testing.assert_allclose(x, scipy.linalg.lu_solve((lu, pivots), b))
    quad, logdet = linalg.inv_quad_logdet(a, b)
    np.testing.assert_allclose(quad, (b * np.linalg.solve(a, b)).sum(0), rtol=1e-9)
    np.testing.assert_allclose(logdet, np.linalg.slogdet(a)[1], rtol=1e-9)
    quad, logdet = linalg.inv_quad_logdet(a, b[:, 0])
    assert quad.shape == logdet.shape == ()


def test_batches_broadcast(home):
    rng = np.random.default_rng(3)
    a = np.stack([kernel(8, "d", ridge) for ridge in (0.1, 1.0, 10.0)])
    for shape_a, shape_b in [((3,), ()), ((3, 1), (4,)), ((), (5,)), ((1,), (2, 3)), ((3,), (3,))]:
        matrix = a.reshape((*shape_a, 8, 8)) if shape_a != (1,) and shape_a else a[0]
        b = rng.normal(size=(*shape_b, 8, 2))
        expected = np.linalg.solve(*np.broadcast_arrays(matrix, matrix)[:1], b)
        for solve in (linalg.solve_cholesky, linalg.solve_lu):
            x = solve(home.array(matrix), home.array(b))
            np.testing.assert_allclose(to_numpy(x), expected, rtol=1e-9, atol=1e-9)
    assert linalg.solve_cholesky(a, np.ones(8)).shape == (3, 8)
    assert linalg.eigh(a)[1].shape == (3, 8, 8)
    assert linalg.inv_quad_logdet(a, np.ones((4, 1, 8, 2)))[0].shape == (4, 3, 2)
    assert linalg.cholesky(np.empty((0, 8, 8))).shape == (0, 8, 8)
    x, info = linalg.solve_lu(a, np.empty((3, 8, 0)), check=False)
    assert x.shape == (3, 8, 0)
    np.testing.assert_array_equal(info, [0, 0, 0])


def test_views_are_read_where_they_lie(home):
    a, b = kernel(20, "d"), np.random.default_rng(4).normal(size=(20, 6))
    wide, deep = np.full((20, 27), np.nan), np.full((27, 20), np.nan)
    wide[:, :20], deep[:20] = a, a
    for view in (wide[:, :20], deep[:20].T, np.asfortranarray(a)):
        for rhs in (b[:, ::2], b[:, :3], np.asfortranarray(b)):
            x = linalg.solve_cholesky(home.array(view), home.array(rhs))
            assert_solves(a, x, rhs, 4)


def test_overwriting(home):
    # CUDA solves with small matrices in registers: overwrite_a then leaves a as it is.
    a, b = kernel(100, "d"), np.random.default_rng(5).normal(size=(100, 2))

    def fresh(array):
        return home.array(array.copy())

    rhs, matrix = fresh(b), fresh(a)
    x = linalg.solve_cholesky(matrix, rhs, overwrite_a=True, overwrite_b=True)
    assert x is rhs
    assert_solves(a, x, b, 4)
    assert not np.array_equal(to_numpy(matrix), a)
    matrix = fresh(a)
    assert linalg.cholesky(matrix, overwrite_a=True) is matrix
    np.testing.assert_allclose(np.tril(to_numpy(matrix)), to_numpy(matrix))
    matrix = fresh(a)
    w, v = linalg.eigh(matrix, overwrite_a=True)
    assert v is matrix
    assert_eigenpairs(a, w, v)
    matrix = fresh(a)
    lu, pivots = linalg.lu_factor(matrix, overwrite_a=True)
    assert lu is matrix
    assert_solves(a, linalg.lu_solve((lu, pivots), fresh(b)), b, 64)
    matrix, rhs = fresh(a), fresh(b)
    linalg.solve_cholesky(matrix, rhs)
    linalg.solve_lu(matrix, rhs)
    linalg.eigh(matrix)
    np.testing.assert_array_equal(to_numpy(matrix), a)
    np.testing.assert_array_equal(to_numpy(rhs), b)


def test_outputs_of_the_caller(home):
    a, b = home.array(kernel(9, "f")), home.array(np.ones((9, 2), "f"))
    x, factor = home.empty((9, 2), "float32"), home.empty((9, 9), "float32")
    assert linalg.solve_cholesky(a, b, out=x) is x
    assert linalg.cholesky(a, out=factor) is factor
    assert_solves(a, x, b, 4)
    w, v = home.empty((9,), "float32"), home.empty((9, 9), "float32")
    pair = linalg.eigh(a, out=(w, v))
    assert pair[0] is w
    assert pair[1] is v
    assert_eigenpairs(a, w, v)
    assert linalg.eigh(a, eigvals_only=True, out=w) is w


def test_vectors_of_a_range_keep_no_more_memory(home):
    v = linalg.eigh(home.array(kernel(100, "d")), subset_by_index=(90, 99))[1]
    memory = v.base.nbytes if home.library is np else v.untyped_storage().nbytes()
    assert memory == 100 * 10 * 8


def test_info(home):
    a = np.stack([kernel(6, "d", 1.0)] * 4)
    a[1, 3, 3], a[2, 4, 1], a[3, 0, 4] = -1, np.nan, np.inf
    matrices, b = home.array(a), home.array(np.ones((6, 2)))
    x, info = linalg.solve_cholesky(matrices, b, check=False)
    np.testing.assert_array_equal(to_numpy(info), [0, 4, -1, 0])
    np.testing.assert_array_equal(np.isnan(to_numpy(x)).all((1, 2)), [False, True, True, False])
    assert not np.isnan(to_numpy(x)[[0, 3]]).any()
    (w, v), info = linalg.eigh(matrices, lower=False, check=False)
    np.testing.assert_array_equal(to_numpy(info), [0, 0, 0, -1])
    assert np.isnan(to_numpy(w)[3]).all()
    assert np.isnan(to_numpy(v)[3]).all()
    (lu, _), info = linalg.lu_factor(matrices, check=False)
    np.testing.assert_array_equal(to_numpy(info), [0, 0, -1, -1])
    assert np.isnan(to_numpy(lu)[2:]).all()
    with pytest.raises(mc.LinAlgError, match=r"item \(1,\) \(2 of 4 failed\) whose leading"):
        linalg.cholesky(matrices)
    with pytest.raises(np.linalg.LinAlgError, match=r"a must be finite. Received item \(2,\)"):
        linalg.solve_lu(matrices, b)
    (quad, logdet), info = linalg.inv_quad_logdet(matrices, b, check=False)
    np.testing.assert_array_equal(np.isnan(to_numpy(logdet)), [False, True, True, False])
    np.testing.assert_array_equal(np.isnan(to_numpy(quad)).all(1), [False, True, True, False])
    np.testing.assert_array_equal(to_numpy(info), [0, 4, -1, 0])


def test_nan_in_b_stays_in_its_column(home):
    b = np.ones((5, 2))
    b[2, 0] = np.nan
    for solve in (linalg.solve_cholesky, linalg.solve_lu):
        x, info = solve(home.array(kernel(5, "d")), home.array(b), check=False)
        x = to_numpy(x)
        assert int(info) == 0
        assert not np.isnan(x[:, 1]).any()
        assert np.isnan(x[:, 0]).any()


def test_jitter(home):
    values = np.ones((6, 6)) - 1e-9 * np.eye(6)
    a = home.array(values)
    with pytest.raises(mc.LinAlgError, match="jitter adds to the diagonal"):
        linalg.cholesky(a)
    with pytest.raises(mc.LinAlgError, match="with jitter 1e-10 too"):
        linalg.cholesky(a, jitter=1e-12)
    for jitter, used in ((1e-8, 1e-8), (1e-10, 1e-8), ([1e-10, 1e-4], 1e-4)):
        for check in (True, False):
            factor = linalg.cholesky(a, jitter=jitter, check=check)
            factor = to_numpy(factor if check else factor[0])
            added = np.diag(factor @ factor.T - values)
            np.testing.assert_allclose(added, used, rtol=1e-5)
    factor = linalg.cholesky(home.array(4 * np.eye(2)), jitter=1e-3)
    np.testing.assert_array_equal(to_numpy(factor), 2 * np.eye(2))


REFUSED = {
    "ints": (lambda a, b: linalg.cholesky(a.astype("i8")), mc.DtypeError,
             "cholesky: a must be float32 or float64. Received int64"),
    "half": (lambda a, b: linalg.eigh(a.astype("f2")), mc.DtypeError, "Received float16"),
    "not square": (lambda a, b: linalg.cholesky(b), ValueError,
                   r"a must have the shape \[..., n, n\]. Received \(4, 2\)."),
    "one axis": (lambda a, b: linalg.lu_factor(a[0]), ValueError, r"Received \(4,\)."),
    "rows of b": (lambda a, b: linalg.solve_lu(a, b[:3]), ValueError,
                  r"n = 4 as in a. Received \(3, 2\)"),
    "dtype of b": (lambda a, b: linalg.solve_lu(a, b.astype("f")), ValueError,
                   "b must have the dtype of a, float64. Received float32"),
    "batches": (lambda a, b: linalg.solve_lu(np.stack([a] * 2), np.stack([b] * 3)), ValueError,
                r"batch axes must broadcast. Received \(2,\) and \(3,\)"),
    "broadcast b overwritten": (
        lambda a, b: linalg.solve_lu(np.stack([a] * 2), b, overwrite_b=True), ValueError,
        r"x must have shape \(2, 4, 2\). Received \(4, 2\)"),
    "out and overwrite": (lambda a, b: linalg.solve_lu(a, b, overwrite_b=True, out=b), ValueError,
                          "out must not be given with overwrite_b"),
    "out overlaps": (lambda a, b: linalg.cholesky(a, out=a.T), ValueError,
                     "out must not overlap a"),
    "subset": (lambda a, b: linalg.eigh(a, subset_by_index=(1, 4)), ValueError,
               r"0 <= first <= last < 4. Received \(1, 4\)"),
    "subset of one": (lambda a, b: linalg.eigh(a, subset_by_index=3), TypeError,
                      "must be two whole numbers"),
    "pair": (lambda a, b: linalg.lu_solve(a, b), TypeError,
             r"lu_and_pivots must be a pair of arrays \(lu, pivots\). Received numpy.ndarray"),
    "pivots": (lambda a, b: linalg.lu_solve((a, np.array([0, 4, 2, 3])), b), ValueError,
               "pivot 1 must be from 1 to 3. Received 4"),
    "jitter": (lambda a, b: linalg.cholesky(a, jitter=-1), ValueError,
               "jitter must be positive and finite. Received -1"),
    "a list": (lambda a, b: linalg.cholesky([[1.0]]), ValueError, r"write numpy.asarray\(a\)"),
    "read-only": (lambda a, b: linalg.cholesky(np.broadcast_to(a, (2, 4, 4)), overwrite_a=True),
                  ValueError, "a must be writable"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call(np.eye(4), np.ones((4, 2)))


def test_other_libraries_are_refused_in_words():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="b must come from the library of a, numpy"):
        linalg.solve_lu(np.eye(2), torch.ones(2, 1))
    with pytest.raises(NotImplementedError, match=r"must not track gradients.*pass a.detach\(\)"):
        linalg.eigh_top(torch.eye(2, requires_grad=True), 1)
    jax = pytest.importorskip("jax")
    with pytest.raises(NotImplementedError, match="out is not offered for arrays of jax"):
        linalg.solve_lu(jax.numpy.eye(2), jax.numpy.ones((2, 1)), out=jax.numpy.ones((2, 1)))


def test_workspaces_of_the_cpu_are_empty():
    assert mc.workspace_size("solve_cholesky", np.eye(3), np.ones(3)) == 0
    assert mc.workspace_size("eigh", np.eye(3), subset_by_index=(0, 1)) == 0
    with pytest.raises(ValueError, match="a must have the shape"):
        mc.workspace_size("cholesky", np.ones(3))


def test_calls_of_many_threads_share_openblas():
    matrices = [np.stack([kernel(12, "d")] * 64), kernel(200, "d")]
    expected = [linalg.cholesky(a) for a in matrices]
    for results in in_threads(lambda: [linalg.cholesky(a) for a in matrices]):
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-12)


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_forked_children_compute():
    code = """
        import os, numpy as np, mercer as mc
        a = np.eye(400) + 0.1
        factor = mc.linalg.cholesky(a)
        many = np.stack([a[:9, :9]] * 100)
        mc.linalg.cholesky(many)
        pid = os.fork()
        if pid == 0:
            same = np.allclose(mc.linalg.cholesky(a), factor)
            os._exit(0 if same and len(mc.linalg.cholesky(many)) == 100 else 1)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_a_missing_library_is_told():
    code = """
        import numpy as np, mercer as mc
        mc.kernel_matrix("l1", np.ones((2, 2)))
        try:
            mc.linalg.cholesky(np.eye(2))
        except NotImplementedError as error:
            print(error)
    """
    done = run(code, MERCER_LAPACK="/nowhere/libopenblas.so")
    assert "cholesky: needs LAPACK on the CPU, which NumPy's wheels have; pip" in done.stdout
    assert "MERCER_LAPACK names no LAPACK: /nowhere/libopenblas.so" in done.stdout


def copies_of_openblas():
    packages = pathlib.Path(np.__file__).parent.parent
    return sorted(
        file
        for name in ("numpy", "scipy")
        for file in packages.glob(f"{name}.libs/lib*openblas*.so*")
    )


@pytest.mark.parametrize("file", copies_of_openblas(), ids=lambda file: file.name)
def test_the_copies_of_numpy_and_scipy_serve(file):
    """One has integers of 64 bits, the other of 32."""
    code = """
        import numpy as np, mercer as mc
        a = np.eye(70) + np.ones((70, 70)) / 70
        b = np.cos(np.arange(70.0))[:, None]
        for x in mc.linalg.solve_cholesky(a, b), mc.linalg.solve_lu(a, b):
            np.testing.assert_allclose(a @ x, b, atol=1e-13)
        np.testing.assert_allclose(mc.linalg.eigh(a)[0][-1], 2.0, rtol=1e-13)
        print(mc.info())
    """
    done = run(code, MERCER_LAPACK=str(file))
    assert file.name in done.stdout, done.stderr


def test_a_thousand_calls_leave_nothing_behind():
    code = """
        import resource, numpy as np, mercer as mc
        a, b = np.stack([np.eye(60) + 0.1] * 8), np.ones((60, 4))
        for call in range(1000):
            mc.linalg.solve_cholesky(a, b)
            mc.linalg.solve_lu(a, b, check=False)
            if call % 10 == 0:
                mc.linalg.eigh(a, subset_by_index=(0, 3))
                mc.linalg.cholesky(-a, check=False)
            if call == 200:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = run(code)
    # 800 calls that each kept but one matrix of 60 x 60 would take 22 MB.
    assert int(done.stdout) < 8 << 10, done.stderr


def gpu():
    return Home("cuda").library


def test_calls_on_cuda_go_into_the_current_stream_and_wait_for_nothing():
    torch = gpu()
    a = torch.eye(600, device="cuda") + 0.1
    b = torch.ones(600, 2, device="cuda")
    linalg.solve_cholesky(a, b)
    linalg.solve_lu(a, b)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)  # a fifth of a second or more
        x, info = linalg.solve_cholesky(a, b, check=False)
        y, _ = linalg.solve_lu(a, b, check=False)
        assert not stream.query(), "the call waited for the stream"
    stream.synchronize()
    assert int(info) == 0
    torch.testing.assert_close(a @ x, b)
    torch.testing.assert_close(x, y)


def test_workspaces_on_cuda_are_exact():
    torch = gpu()
    a, b = (
        torch.eye(200, device="cuda").expand(3, 200, 200).contiguous(),
        torch.ones(200, 2, device="cuda"),
    )
    lu = linalg.lu_factor(a)
    for verb, arguments, options in [
        ("cholesky", (a,), {}), ("cholesky", (a[0],), {"jitter": 1e-3}),
        ("solve_cholesky", (a, b), {}), ("cho_solve", (a, b), {}), ("inv_quad_logdet", (a, b), {}),
        ("cho_inverse", (a,), {}), ("cho_inverse", (a[0],), {"lower": False}),
        ("cho_inverse_diagonal", (a[0],), {}), ("solve_triangular", (a, b), {"transposed": True}),
        ("lu_factor", (a,), {}), ("lu_solve", (lu, b), {}), ("solve_lu", (a[0], b), {}),
        ("eigh", (a,), {}), ("eigh", (a[0],), {"subset_by_index": (3, 7)}),
    ]:  # fmt: skip
        size = mc.workspace_size(verb, *arguments, **options)
        assert size > 0, verb
        memory = torch.empty(size, dtype=torch.uint8, device="cuda")
        getattr(linalg, verb)(*arguments, workspace=memory, **options)
        with pytest.raises(ValueError, match=f"at least {size} bytes"):
            getattr(linalg, verb)(*arguments, workspace=memory[:-1], **options)


@pytest.mark.parametrize("n", [40, 700])
def test_batches_on_cuda_repeat(n):
    """Chunks, and matrices side by side in several streams, with more work before and after."""
    torch = gpu()
    x = torch.randn(6, n, 5, device="cuda", dtype=torch.float64)
    a = torch.exp(-torch.cdist(x, x)) + 0.1 * torch.eye(n, device="cuda", dtype=torch.float64)
    b = torch.randn(6, n, 3, device="cuda", dtype=torch.float64)
    expected = linalg.solve_cholesky(a, b), linalg.solve_lu(a, b), linalg.eigh(a)[0]
    torch.testing.assert_close(a @ expected[0], b)
    for _ in range(20):
        again = a * 1  # made in the stream just before, and freed just after
        y, (x, _) = linalg.solve_lu(again, b), linalg.solve_cholesky(again, b, check=False)
        (w, v), _ = linalg.eigh(again, check=False)
        del again
        for result, wanted in zip((x, y, w), expected, strict=True):
            torch.testing.assert_close(result, wanted)
        torch.testing.assert_close(a @ v, v * w[:, None])


def test_captures_on_cuda_hold_small_matrices():
    torch = gpu()
    a, b = 2 * torch.eye(8, device="cuda"), torch.ones(8, 2, device="cuda")
    linalg.solve_cholesky(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x, info = linalg.solve_cholesky(a, b, check=False)
    b.fill_(3)
    graph.replay()
    torch.testing.assert_close(x, torch.full_like(b, 1.5))
    assert int(info) == 0


def test_captures_on_cuda_refuse_large_ones():
    torch = gpu()
    a = torch.eye(129, device="cuda")
    linalg.cholesky(a)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    refused = pytest.raises(ValueError, match="must stay out of the capture of a CUDA graph")
    with refused, torch.cuda.graph(graph):
        linalg.cholesky(a, check=False)
    torch.testing.assert_close(linalg.cholesky(a), a)


def test_nan_on_cuda_leaves_the_device_alive():
    torch = gpu()
    for n in (8, 100, 700):
        a = torch.full((3, n, n), float("nan"), device="cuda")
        a[1] = torch.eye(n)
        for call in (linalg.cholesky, linalg.lu_factor, linalg.eigh):
            _, info = call(a, check=False)
            assert info.tolist() == [-1, 0, -1]
    assert float(torch.ones(3, device="cuda").sum()) == 3


def test_a_thousand_calls_on_cuda_leave_nothing_behind():
    """Other processes take memory of the device too: what leaks is missing after every round."""
    torch = gpu()
    a, b = torch.eye(60, device="cuda").expand(8, 60, 60) + 0.1, torch.ones(60, 4, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(50)]  # more than there are handles kept

    def free_after_round():
        for call in range(200):
            with torch.cuda.stream(streams[call % len(streams)]):
                linalg.solve_cholesky(a, b, check=False)
                linalg.solve_lu(a[0], b, check=False)
                if call % 10 == 0:
                    linalg.eigh(a, check=False)
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    free = [free_after_round()]
    held = torch.cuda.memory_allocated()
    free += [free_after_round() for _ in range(5)]
    assert torch.cuda.memory_allocated() == held
    assert min(before - after for before, after in itertools.pairwise(free)) < 12 << 20
