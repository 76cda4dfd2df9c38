"""Inverses from Cholesky's factor, and triangular systems, against float64 and residuals.

With u the rounding unit, n the order and c the condition of a, both halves of an inverse, M = L^-1
and M^T M, are backward stable, so that |X - a^-1| <= 8 n u c |a^-1| in Frobenius' norm (Higham,
Accuracy and Stability of Numerical Algorithms, section 14.2); a triangular solution satisfies
|t x - b| <= 2 n u |t| |x|.
"""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest
import scipy.linalg
from test_linalg import DTYPES, ORDERS, Home, kernel, norm, to_numpy, unit

linalg = mc.linalg
NAN = np.nan


@pytest.fixture(params=["numpy", "torch", "cuda"])
def home(request):
    return Home(request.param)


def exact_inverse(factor, lower=True):
    """The inverse in float64 or better, of the factor as it was rounded."""
    t = np.tril(factor) if lower else np.triu(factor).T
    m = scipy.linalg.solve_triangular(t.astype("d"), np.eye(len(t)), lower=True)
    return m.T @ m, np.linalg.cond(t.astype("d")) ** 2 if len(t) else 1.0


def assert_inverse(factor, x, lower=True):
    expected, condition = exact_inverse(factor, lower)
    x = to_numpy(x)
    assert x.dtype == factor.dtype
    assert (x == x.T).all()
    bound = 8 * len(factor) * unit(factor.dtype) * condition * norm(expected)
    assert norm(x - expected) <= bound


def spoiled(factor, lower):
    """What must not be read is NaN."""
    other_half = np.triu(np.ones_like(factor), 1) if lower else np.tril(np.ones_like(factor), -1)
    return np.where(other_half > 0, np.array(NAN, factor.dtype), factor)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [*ORDERS, 65, 200])
def test_orders(home, n, dtype, lower):
    factor = linalg.cholesky(kernel(n, dtype, 1e-2), lower=lower)
    given = home.array(spoiled(factor, lower))
    x = linalg.cho_inverse(given, lower=lower)
    assert type(x) is type(given)
    assert_inverse(factor, x, lower)
    diagonal = to_numpy(linalg.cho_inverse_diagonal(given, lower=lower))
    expected, condition = exact_inverse(factor, lower)
    assert diagonal.dtype == dtype
    error = np.abs(diagonal - expected.diagonal())
    assert (error <= 8 * n * unit(dtype) * condition * expected.diagonal()).all()
    again = linalg.cho_inverse(given, lower=lower, overwrite_factor=True)
    assert again is given
    np.testing.assert_array_equal(to_numpy(again), to_numpy(x))


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("n", [20, 150])
def test_views(home, n, lower):
    """Rows, columns, gaps, every second element, from the back: what is read, written, replaced."""
    factor = linalg.cholesky(kernel(n, "d", 1e-2), lower=lower)
    expected = exact_inverse(factor, lower)[0]
    bound = {"rtol": 0, "atol": 1e-9 * np.abs(expected).max()}
    wide = np.zeros((2 * n, 2 * n + 3))
    places = {
        "rows": np.zeros((n, n)), "columns": np.zeros((n, n)).T, "gaps": wide[:n, 1 : n + 1],
        "every second": np.zeros((2 * n, 2 * n))[::2, ::2],
    }  # fmt: skip
    if home.library is np:
        places["from the back"] = np.zeros((n, n))[::-1, ::-1]
    for place in places.values():
        place[:] = factor
        given = home.array(place)
        np.testing.assert_allclose(
            to_numpy(linalg.cho_inverse(given, lower=lower)), expected, **bound
        )
        diagonal = linalg.cho_inverse_diagonal(given, lower=lower)
        np.testing.assert_allclose(to_numpy(diagonal), expected.diagonal(), **bound)
        out = home.array(np.zeros_like(place))
        assert linalg.cho_inverse(home.array(factor), lower=lower, out=out) is out
        np.testing.assert_allclose(to_numpy(out), expected, **bound)
        linalg.cho_inverse(given, lower=lower, overwrite_factor=True)
        np.testing.assert_allclose(to_numpy(given), expected, **bound)
    with pytest.raises(ValueError, match="out must not be given with overwrite_factor"):
        linalg.cho_inverse(given, overwrite_factor=True, out=home.array(np.zeros((n, n))))


@pytest.mark.parametrize("n", [5, 40, 150, 600])
@pytest.mark.parametrize("dtype", DTYPES)
def test_batches(home, n, dtype):
    ridges = (0.01, 0.1, 1.0, 10.0)
    a = np.stack([kernel(n, dtype, ridge) for ridge in ridges]).reshape(2, 2, n, n)
    factors = linalg.cholesky(a)
    given = home.array(factors.swapaxes(0, 1))
    x, diagonals = linalg.cho_inverse(given), linalg.cho_inverse_diagonal(given)
    assert tuple(diagonals.shape) == (2, 2, n)
    for i in np.ndindex(2, 2):
        assert_inverse(factors[i[::-1]], x[i])
        error = np.abs(to_numpy(diagonals[i]) - to_numpy(x[i]).diagonal()).max()
        assert error <= 16 * n * unit(dtype) * np.linalg.cond(a[i[::-1]].astype("d")) * norm(
            x[i].diagonal()
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [8, 100, 700])
def test_what_is_no_factor_gives_nan(home, n, dtype):
    good = linalg.cholesky(kernel(n, dtype, 1e-2))
    factors = np.stack([good] * 5)
    factors[1, n - 1, 0], factors[2, n // 2, n // 2] = NAN, 0
    factors[3, n - 2, 1], factors[4, 3, 3] = np.inf, -factors[4, 3, 3]
    given = home.array(factors)
    x, diagonal = to_numpy(linalg.cho_inverse(given)), to_numpy(linalg.cho_inverse_diagonal(given))
    assert_inverse(good, x[0])
    assert np.isfinite(diagonal[0]).all()
    assert np.isnan(x[1:]).all()
    assert np.isnan(diagonal[1:]).all()
    for one in factors[1:]:
        assert np.isnan(to_numpy(linalg.cho_inverse(home.array(one)))).all()
        assert np.isnan(to_numpy(linalg.cho_inverse_diagonal(home.array(one)))).all()


@pytest.mark.parametrize("exponent", [-50, -25, 25, 45])
@pytest.mark.parametrize("n", [10, 100])
def test_scales(home, n, exponent):
    """Powers of two go through unchanged, as long as they are in range."""
    factor = linalg.cholesky(kernel(n, "f", 1e-2))
    x = to_numpy(linalg.cho_inverse(home.array(factor)))
    scaled = home.array(np.ldexp(factor, exponent))
    np.testing.assert_array_equal(to_numpy(linalg.cho_inverse(scaled)), np.ldexp(x, -2 * exponent))
    diagonal = to_numpy(linalg.cho_inverse_diagonal(home.array(factor)))
    np.testing.assert_array_equal(
        to_numpy(linalg.cho_inverse_diagonal(scaled)), np.ldexp(diagonal, -2 * exponent)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_ill_conditioned(home, dtype):
    """A residual that the condition of the factor bounds, not its square."""
    n = 120
    factor = linalg.cholesky(kernel(n, dtype, 1e-9 if dtype == "float64" else 1e-4))
    exact = np.tril(factor).astype("d")
    x = to_numpy(linalg.cho_inverse(home.array(factor))).astype("d")
    bound = 8 * n * unit(dtype) * norm(exact) ** 2 * norm(x)
    assert norm(exact @ (exact.T @ x) - np.eye(n)) <= bound
    assert (x.diagonal() > 0).all()


def test_empty_and_out(home):
    for shape in [(0, 0), (0, 4, 4), (3, 0, 0)]:
        given = home.array(np.zeros(shape))
        assert tuple(linalg.cho_inverse(given).shape) == shape
        assert tuple(linalg.cho_inverse_diagonal(given).shape) == shape[:-1]
        x = linalg.solve_triangular(given, home.array(np.zeros((shape[-1], 2))))
        assert tuple(x.shape) == (*shape[:-1], 2)
    given = home.array(np.eye(4))
    out = home.array(np.zeros((4, 2)))[:, 0]
    assert linalg.cho_inverse_diagonal(given, out=out) is out
    np.testing.assert_array_equal(to_numpy(out), np.ones(4))
    with pytest.raises(ValueError, match=r"cho_inverse_diagonal: out must have shape \(4,\)"):
        linalg.cho_inverse_diagonal(given, out=home.array(np.zeros(3)))
    with pytest.raises(ValueError, match="out must not overlap factor"):
        linalg.cho_inverse_diagonal(given, out=given[0])
    with pytest.raises(TypeError, match="cho_inverse: factor must be float32 or float64"):
        linalg.cho_inverse(np.eye(3, dtype=int))
    with pytest.raises(ValueError, match=r"solve_triangular: a must have the shape \[..., n, n\]"):
        linalg.solve_triangular(np.ones((2, 3)), np.ones(2))


CASES = [(lower, turned, unit) for lower in (True, False) for turned in (True, False)
         for unit in (True, False)]  # fmt: skip


@pytest.mark.parametrize(("lower", "turned", "unit_diagonal"), CASES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 33, 100, 530])
def test_triangular_systems(home, n, dtype, lower, turned, unit_diagonal):
    rng = np.random.default_rng(n)
    a = rng.normal(size=(n, n)) / np.sqrt(n) + 2 * np.eye(n)
    t = (np.tril if lower else np.triu)(a if not unit_diagonal else a - np.diag(a.diagonal() - 1))
    t = t.astype(dtype)
    given = spoiled(a.astype(dtype), lower)
    if unit_diagonal:
        np.fill_diagonal(given, NAN)
    exact = (t.T if turned else t).astype("d")
    options = {"lower": lower, "transposed": turned, "unit_diagonal": unit_diagonal}
    for place in (given, given.T.copy().T, np.repeat(np.repeat(given, 2, 0), 2, 1)[::2, ::2]):
        for b in (rng.normal(size=(n, 3)), rng.normal(size=n), rng.normal(size=(3, n)).T):
            b = b.astype(dtype)
            rhs = home.array(b.copy(order="K"))
            first = linalg.solve_triangular(home.array(place), rhs, **options)
            assert (
                linalg.solve_triangular(home.array(place), rhs, overwrite_b=True, **options) is rhs
            )
            for x in (to_numpy(first), to_numpy(rhs)):
                assert x.dtype == dtype
                residual = norm(exact @ x.astype("d") - b)
                assert residual <= 2 * n * unit(dtype) * norm(exact) * norm(x)


def test_triangular_batches_broadcast(home):
    rng = np.random.default_rng(5)
    a = np.tril(rng.normal(size=(3, 9, 9))) + 4 * np.eye(9)
    for shape in [(), (3,), (4, 1), (4, 3)]:
        b = rng.normal(size=(*shape, 9, 2))
        x = linalg.solve_triangular(home.array(a), home.array(b))
        np.testing.assert_allclose(to_numpy(x), np.linalg.solve(a, b), rtol=1e-12, atol=1e-12)
    assert tuple(linalg.solve_triangular(home.array(a), home.array(np.ones(9))).shape) == (3, 9)


def test_leave_one_out():
    """a^-1 y over the diagonal of a^-1 is what each point misses when it is left out."""
    a, y = kernel(40, "d", 0.1), np.random.default_rng(6).normal(size=40)
    factor = linalg.cholesky(a)
    residuals = linalg.cho_solve(factor, y) / linalg.cho_inverse_diagonal(factor)
    for i in (0, 7, 39):
        rest = np.delete(np.arange(40), i)
        predicted = a[i, rest] @ np.linalg.solve(a[np.ix_(rest, rest)], y[rest])
        np.testing.assert_allclose(residuals[i], y[i] - predicted, rtol=1e-9)
