"""mercer.linalg.minres: residuals in float64 as they are promised, of indefinite and singular."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest

linalg = mc.linalg
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def indefinite(n, condition, seed=0):
    """Eigenvalues of both signs, from 1 to 1 / condition in size."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    values = np.logspace(0, -np.log10(condition), n) * np.where(np.arange(n) % 3 == 0, -1, 1)
    a = (q * values) @ q.T
    return (a + a.T) / 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("condition", [1e1, 1e2, 1e3, 1e5])
def test_conditions(condition, dtype):
    """What is said is true, whether or not float32 gets as far."""
    n = 120
    a = indefinite(n, condition).astype(dtype)
    b = np.random.default_rng(1).normal(size=(n, 4)).astype(dtype)
    b[:, 2] = 0
    x, info, products = linalg.minres(a, b, max_iter=4000, check=False)
    assert products[2] == info[2] == 0
    assert (x[:, 2] == 0).all()
    done = info == 0
    assert (((info == -2) | (info == products)) | done).all()
    if condition <= (1e2 if dtype == "float32" else 1e3):
        assert done.all()
    exact = x.astype("d")
    gap = np.linalg.norm(b - a.astype("d") @ exact, axis=0)
    # Products lose n u of the sums of absolute values.
    unit = 2.0**-24 if dtype == "float32" else 2.0**-53
    lost = n * unit * np.linalg.norm(np.abs(a.astype("d")) @ np.abs(exact), axis=0)
    size = np.linalg.norm(b.astype("d"), axis=0)
    assert (gap <= 1.01 * TOLERANCE[dtype] * size + lost)[done].all()
    assert (gap <= size + lost).all()  # minimal residuals: never above that of zeros


def test_shapes_guesses_and_places():
    a = indefinite(50, 10)
    b = np.random.default_rng(2).normal(size=(50, 3))
    expected = np.linalg.solve(a, b)
    for right in (b, np.asfortranarray(b), b[:, 0], b[:, :0]):
        columns = expected[:, 0] if right.ndim == 1 else expected[:, : right.shape[1]]
        np.testing.assert_allclose(linalg.minres(a, right), columns, rtol=1e-6, atol=1e-7)
    assert (linalg.minres(a, b, x0=expected, check=False)[2] == 1).all()
    near = linalg.minres(a, b, x0=1.0001 * expected, check=False)
    assert (near[2] < linalg.minres(a, b, check=False)[2]).all()
    out = b.copy()
    assert linalg.minres(a, out, out=out) is out
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-7)
    assert linalg.minres(np.empty((0, 0)), np.empty((0, 2))).shape == (0, 2)
    swap = np.array([[0.0, 1], [1, 0]])
    np.testing.assert_allclose(linalg.minres(swap, np.array([2.0, 3])), [3, 2], rtol=1e-12)


def test_operators_and_ridges():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(3).normal(size=(90, 3))
    b = np.random.default_rng(4).normal(size=(90, 3))
    a = mc.pairwise("sum(x*z)^2-2*exp(-sum(square(x-z)))", x)  # of both signs
    assert np.linalg.eigvalsh(a)[[0, -1]].prod() < 0
    operator = linalg.KernelOperator("sum(x*z)^2-2*exp(-sum(square(x-z)))", x)
    path = [0.5, 3.0, 7.0]
    for of in (operator, lambda v: a @ v):
        solved = linalg.minres(of, b, ridge=path, tol=1e-9)
        gap = np.linalg.norm(b - a @ solved - path * solved, axis=0)
        assert (gap <= 1.1e-9 * np.linalg.norm(b, axis=0)).all()
    shifted = torch.from_numpy(a + 3 * np.eye(90))
    tensors = linalg.minres(shifted, torch.from_numpy(b[:, 1]), tol=1e-9)
    np.testing.assert_allclose(tensors.numpy(), solved[:, 1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("condition", [1e1, 1e2])
def test_singular(condition):
    """A b in the range is solved for; outside of it the residual ends at its least."""
    n = 100
    rng = np.random.default_rng(5)
    q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    values = np.logspace(0, -np.log10(condition), n) * np.where(np.arange(n) % 3 == 0, -1, 1)
    values[:4] = 0
    a = (q * values) @ q.T
    a = (a + a.T) / 2
    inside, outside = a @ rng.normal(size=n), rng.normal(size=n)
    x, info, _ = linalg.minres(a, np.stack([inside, outside], axis=1), check=False, max_iter=9000)
    assert info.tolist() == [0, -2]
    assert np.linalg.norm(inside - a @ x[:, 0]) <= 1.1e-10 * np.linalg.norm(inside)
    least = np.linalg.norm(q[:, :4].T @ outside)
    assert np.linalg.norm(outside - a @ x[:, 1]) <= 1.001 * least
    with pytest.raises(mc.LinAlgError, match=r"minres: residuals must be at most .* it stagnated"):
        linalg.minres(a, outside, max_iter=9000)
    x, info, _ = linalg.minres(np.zeros((5, 5)), np.ones(5), check=False)
    assert info == -2
    assert (x == 0).all()


def test_failures():
    a, b = np.diag([1.0, -2, 3]), np.ones((3, 3))
    b[1, 1] = np.nan
    x, info, _ = linalg.minres(a, b, check=False)
    assert info.tolist() == [0, -1, 0]
    assert np.isnan(x[:, 1]).all()
    with pytest.raises(mc.LinAlgError, match="minres: b, x and products with a must be finite"):
        linalg.minres(a, b)
    with pytest.raises(mc.LinAlgError, match="after 2 products, which were all of them"):
        linalg.minres(indefinite(9, 10), np.ones(9), max_iter=2)
    with pytest.raises(TypeError, match="preconditioner"):
        linalg.minres(a, b, preconditioner=None)
    with pytest.raises(ValueError, match="minres: tol must be positive"):
        linalg.minres(a, b, tol=0)
    with pytest.raises(ValueError, match="minres: ridge must be from 0 on and finite"):
        linalg.minres(a, b, ridge=-1.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_on_cuda(cuda, dtype):
    a = indefinite(150, 30).astype(dtype)
    b = np.random.default_rng(6).normal(size=(150, 5)).astype(dtype)
    matrix, right = cuda.from_numpy(a).cuda(), cuda.from_numpy(b).cuda()
    for operator in (matrix, lambda v: matrix @ v):
        x, info, _ = linalg.minres(operator, right, check=False)
        assert (info == 0).all()
        gap = np.linalg.norm(b - a.astype("d") @ x.cpu().numpy(), axis=0)
        assert (gap <= 2 * TOLERANCE[dtype] * np.linalg.norm(b, axis=0)).all()
