"""mercer.linalg.eigh_top against SciPy's whole spectrum in float64, by residuals as it promises."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest
import scipy.linalg

linalg = mc.linalg
TOLERANCE = {"float32": 2e-6, "float64": 1e-10}


def points(n, dtype="float64"):
    return np.random.default_rng(n).normal(size=(n, 8)).astype(dtype)


def assert_pairs(a, w, v, tolerance, k, which="largest"):
    """Residuals within the tolerance bound the errors of eigenvalues by it.

    Products with orthonormal vectors lose n u at most in each entry; 8 n u is far above that.
    """
    exact = a.astype("d")
    unit = np.finfo(a.dtype).eps / 2
    values = scipy.linalg.eigvalsh(exact)
    scale = np.abs(values).max()
    rounding = 8 * len(a) * unit
    assert (
        np.linalg.norm(exact @ v - v.astype("d") * w, axis=0).max()
        <= (tolerance + rounding) * scale
    )
    assert np.abs(v.T.astype("d") @ v - np.eye(k)).max() <= rounding * np.sqrt(k)
    order = np.argsort(-np.abs(values) if which == "magnitude" else values, kind="stable")
    chosen = order[-k:] if which == "largest" else order[:k]
    assert np.abs(w - np.sort(values[chosen])).max() <= (tolerance + rounding) * scale


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ["exp(-sum(square(x-z))/8)", "exp(-sum(abs(x-z))/4)"])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (33, 33), (100, 5), (777, 3), (1025, 20)])
def test_kernel_matrices(n, k, kernel, dtype):
    x = points(n, dtype)
    a = mc.kernel_matrix(kernel, x)
    w, v = linalg.eigh_top(a, k)
    assert w.dtype == v.dtype == dtype
    assert_pairs(a, w, v, TOLERANCE[dtype], k)
    if n > 700:
        w, v = linalg.eigh_top(linalg.KernelOperator(kernel, x, ridge=0.5), k)
        ridged = a + np.asarray(0.5, dtype) * np.eye(n, dtype=dtype)
        assert_pairs(ridged, w, v, TOLERANCE[dtype], k)


@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
@pytest.mark.parametrize(
    "spectrum",
    [
        np.r_[np.repeat([-30.0, 5.0, 40.0], 7), np.linspace(-1, 1, 479)],
        np.r_[np.zeros(480), np.arange(1, 21)],
        np.zeros(500),
        np.ones(500),
        np.r_[np.linspace(-3, 3, 490), 4 + 1e-9 * np.arange(10)],
    ],
    ids=["multiple", "rank 20", "zero", "identity", "clustered"],
)
def test_spectra(spectrum, which):
    n = len(spectrum)
    q = np.linalg.qr(np.random.default_rng(1).normal(size=(n, n)))[0]
    a = (q * spectrum) @ q.T
    a = (a + a.T) / 2
    w, v = linalg.eigh_top(a, 7, which=which, tol=1e-8)
    exact = scipy.linalg.eigvalsh(a)
    scale = max(np.abs(exact).max(), 1e-300)
    assert np.linalg.norm(a @ v - v * w, axis=0).max() <= 1.01e-8 * scale
    assert np.abs(v.T @ v - np.eye(7)).max() <= 1e-10
    order = np.argsort(-np.abs(exact) if which == "magnitude" else exact, kind="stable")
    chosen = order[-7:] if which == "largest" else order[:7]
    if which != "magnitude":  # ties of both signs may go either way
        assert np.abs(w - np.sort(exact[chosen])).max() <= 1.01e-8 * scale
    else:
        gaps = np.sort(np.abs(w)) - np.sort(np.abs(exact[chosen]))
        assert np.abs(gaps).max() <= 1.01e-8 * scale


def test_blocks_of_which_little_is_left():
    """Centred values of a narrow kernel: nearly all eigenvalues are 1, and blocks lie nearly in the
    basis, to which what is left of them must become orthogonal."""
    x = np.random.default_rng(0).normal(size=(600, 2))
    a = mc.kernel_matrix("gauss", x, bandwidth=1e-3)
    a = a - a.mean(0) - (a.mean(0) - a.mean())[:, None]
    w, v = linalg.eigh_top(a, 4, tol=1e-12)
    assert_pairs(a, w, v, 1e-12, 4)


def test_layouts_libraries_and_seeds():
    torch = pytest.importorskip("torch")
    a = mc.kernel_matrix("exp(-sum(square(x-z))/8)", points(300))
    expected = linalg.eigh_top(a, 4)[0]
    wide = np.full((300, 305), np.nan)
    wide[:, :300] = a
    strided = np.zeros((600, 600))
    strided[::2, ::2] = a
    for view in (wide[:, :300], np.asfortranarray(a), strided[::2, ::2], a[::-1, ::-1]):
        np.testing.assert_allclose(linalg.eigh_top(view, 4)[0], expected, rtol=1e-9)
    w, v = linalg.eigh_top(torch.from_numpy(a), 4)
    assert isinstance(w, torch.Tensor)
    assert v.shape == (300, 4)
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-12)
    np.testing.assert_array_equal(linalg.eigh_top(a, 4)[1], linalg.eigh_top(a, 4)[1])
    np.testing.assert_allclose(linalg.eigh_top(a, 4, seed=7)[0], expected, rtol=1e-9)
    small = linalg.eigh_top(a, 4, max_basis=24)[0]  # thick restarts
    np.testing.assert_allclose(small, expected, rtol=1e-9)


def test_what_is_missed_is_told():
    a = np.diag(np.linspace(0, 1, 2000))  # no gap to speak of
    with pytest.raises(
        mc.LinAlgError, match=r"residuals must meet the tolerance. Received \d of 3"
    ):
        linalg.eigh_top(a, 3, tol=1e-15, max_basis=20)
    (_, v), missed = linalg.eigh_top(a, 3, tol=1e-15, max_basis=20, check=False)
    assert 1 <= missed <= 3
    assert v.shape == (2000, 3)
    a = np.eye(400)
    a[3, 3] = np.nan
    with pytest.raises(mc.LinAlgError, match="must be finite"):
        linalg.eigh_top(a, 2)


REFUSED = {
    "k": (lambda a: linalg.eigh_top(a, 6), ValueError, r"k must be from 1 to .* \(5\). Received 6"),
    "no k": (lambda a: linalg.eigh_top(a, 0), ValueError, "Received 0"),
    "which": (lambda a: linalg.eigh_top(a, 1, which="LA"), ValueError, 'Received "LA"'),
    "tol": (lambda a: linalg.eigh_top(a, 1, tol=-1.0), ValueError, "tol must not be negative"),
    "no tol": (lambda a: linalg.eigh_top(a, 1, tol=0.0), ValueError, "tol must be positive"),
    "no basis": (lambda a: linalg.eigh_top(a, 1, max_basis=0), ValueError, "max_basis must be"),
    "batch": (lambda a: linalg.eigh_top(a[None], 1), ValueError, r"shape \[n, n\]"),
    "ints": (lambda a: linalg.eigh_top(a.astype(int), 1), mc.DtypeError, "Received int64"),
    "formula": (lambda a: linalg.eigh_top(linalg.KernelOperator("sum(x-z)", a), 1), ValueError,
                "the formula must be symmetric"),
    "half": (lambda a: linalg.eigh_top(linalg.KernelOperator("l1", a.astype("f2")), 1), ValueError,
             "x must be float32 or float64. Received float16"),
    "parameter": (lambda a: linalg.eigh_top(linalg.KernelOperator("l1", a, q=1), 1), ValueError,
                  'has no parameter "q"'),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call(np.eye(5))
