"""inv_quad_logdet of operators against float64 factors: estimates within their standard errors.

The error of one estimate over its own standard error of p probes follows Student's law of p - 1
degrees: of 15 beyond 6 with a probability of 3e-5, and in the root of its mean square near 1.
"""

from __future__ import annotations

import math

import mercer as mc
import numpy as np
import pytest
from mercer.linalg import _stochastic

linalg = mc.linalg
SEEDS = range(24)


def points(n, dtype="float64"):
    return np.random.default_rng(n).normal(size=(n, 3)).astype(dtype)


def operator(n, ridge=0.1, dtype="float64", bandwidth=1.0, library=np):
    x = points(n, dtype)
    dense = mc.kernel_matrix("gauss", x.astype("d"), bandwidth=bandwidth) + ridge * np.eye(n)
    given = x if library is np else library.from_numpy(x)
    return linalg.KernelOperator("gauss", given, ridge=ridge, bandwidth=bandwidth), dense


class Dense:
    """A preconditioner from a matrix, with a root that is not symmetric when asked."""

    def __init__(self, matrix, symmetric):
        w, v = np.linalg.eigh(matrix)
        self.matrix, self.root = matrix, (v * np.sqrt(w)) @ v.T
        if not symmetric:
            self.root = np.linalg.cholesky(matrix)

    def solve(self, v):
        return np.linalg.solve(self.matrix, v)

    def sqrt(self, v):
        return self.root @ v

    def logdet(self):
        return np.linalg.slogdet(self.matrix)[1]


def estimate(op, like, inverse=None, probes=16, seed=0, most=200):
    made = _stochastic._Probes(op, inverse, _stochastic._Vectors(np, like), probes, seed)
    return made.logdet(most)


def assert_sound(errors, deviations):
    ratios = np.abs(errors) / deviations
    assert ratios.max() <= 6
    assert 0.6 <= math.sqrt((ratios**2).mean()) <= 1.7


def test_parts_of_a_likelihood():
    op, dense = operator(300)
    b = np.random.default_rng(1).normal(size=(300, 3))
    found = linalg.inv_quad_logdet(op, b, tol=1e-10)
    assert found._fields == ("inv_quad", "logdet", "error")
    quad, logdet, error = found
    np.testing.assert_allclose(quad, (b * np.linalg.solve(dense, b)).sum(0), rtol=1e-8)
    assert quad.dtype == logdet.dtype == error.dtype == "float64"
    assert abs(logdet - np.linalg.slogdet(dense)[1]) <= 6 * error
    single = linalg.inv_quad_logdet(op, b[:, 0], tol=1e-10)
    assert single.inv_quad.shape == ()
    np.testing.assert_allclose(single.inv_quad, quad[0], rtol=1e-8)
    assert single.logdet == logdet
    assert linalg.inv_quad_logdet(op, b[:, 0], seed=1).logdet != logdet


def test_standard_errors_are_sound():
    op, dense = operator(200)
    exact = np.linalg.slogdet(dense)[1]
    found = [estimate(op, op_points(op), seed=seed) for seed in SEEDS]
    assert_sound([logdet - exact for logdet, _ in found], [error for _, error in found])


def op_points(op):
    return op.__reduce__()[1][1]


@pytest.mark.parametrize("symmetric", [True, False])
def test_preconditioned_probes(symmetric):
    """log det P is exact, and probes see what P misses: less of it, with fewer steps."""
    op, dense = operator(200)
    values, vectors = np.linalg.eigh(dense)
    near = np.where(values > 1, values, values.min())
    inverse = Dense((vectors * near) @ vectors.T, symmetric)
    exact = np.linalg.slogdet(dense)[1]
    found = [estimate(op, op_points(op), inverse, seed=seed) for seed in SEEDS]
    deviations = np.array([error for _, error in found])
    assert_sound([logdet - exact for logdet, _ in found], deviations)
    plain = np.array([estimate(op, op_points(op), seed=seed)[1] for seed in SEEDS])
    assert deviations.mean() <= 0.7 * plain.mean()
    for scale in (1e-40, 1.0, 1e40):
        same = Dense(scale * dense, symmetric)
        logdet, error = estimate(op, op_points(op), same)
        np.testing.assert_allclose(logdet, exact, rtol=1e-10)
        assert error <= 1e-8 * abs(exact)


def test_nystrom_serves():
    op, dense = operator(400, ridge=0.01)
    inverse = linalg.nystrom(op, 100)
    b = np.random.default_rng(2).normal(size=400)
    quad, logdet, error = linalg.inv_quad_logdet(op, b, preconditioner=inverse, tol=1e-10)
    np.testing.assert_allclose(quad, b @ np.linalg.solve(dense, b), rtol=1e-7)
    assert abs(logdet - np.linalg.slogdet(dense)[1]) <= 6 * error


def test_diagonal_operators_are_exact():
    """Signs see a diagonal without an error, whatever it is: far points, one point, no points."""
    far = np.arange(50.0)[:, None] * 1e3
    for n in (50, 1, 0):
        op = linalg.KernelOperator("gauss", far[:n], ridge=0.5, bandwidth=1.0)
        quad, logdet, error = linalg.inv_quad_logdet(op, np.ones(n))
        np.testing.assert_allclose([quad, logdet], [n / 1.5, n * math.log(1.5)], rtol=1e-12)
        assert error <= 1e-12
    assert linalg.inv_quad_logdet(op, np.ones((0, 2))).inv_quad.shape == (2,)


@pytest.mark.parametrize("ridge", [1e-3, 1.0])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_scales_and_conditions(ridge, scale):
    """log det of s a is that of a and n log s."""
    x = points(150)
    dense = mc.kernel_matrix("gauss", x, bandwidth=1.0) + ridge * np.eye(150)
    op = linalg.KernelOperator("c*exp(-sum(square(x-z))/2)", x, ridge=ridge * scale, c=scale)
    _, logdet, error = linalg.inv_quad_logdet(op, np.ones(150), tol=1e-8)
    exact = np.linalg.slogdet(mc.kernel_matrix("exp(-sum(square(x-z))/2)", x) + ridge * np.eye(150))
    assert abs(logdet - (exact[1] + 150 * math.log(scale))) <= 6 * error
    assert dense.shape == (150, 150)


def test_float32_and_libraries():
    torch = pytest.importorskip("torch")
    b = np.random.default_rng(3).normal(size=(200, 2)).astype("f")
    op, dense = operator(200, dtype="float32")
    found = linalg.inv_quad_logdet(op, b)
    assert all(part.dtype == "float64" for part in found)
    assert abs(found.logdet - np.linalg.slogdet(dense)[1]) <= 6 * found.error
    np.testing.assert_allclose(found.inv_quad, (b * np.linalg.solve(dense, b)).sum(0), rtol=1e-3)
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        other = linalg.KernelOperator(
            "gauss", torch.from_numpy(points(200, "float32")).to(device), ridge=0.1, bandwidth=1.0
        )
        tensors = linalg.inv_quad_logdet(other, torch.from_numpy(b).to(device))
        for tensor, array in zip(tensors, found, strict=True):
            assert tensor.dtype == torch.float64
            assert tensor.device.type == device
            np.testing.assert_allclose(tensor.cpu(), array, rtol=1e-4)


def test_gradients():
    """Gradients by all parts of the operator are those of the mean estimate, by exact traces."""
    torch = pytest.importorskip("torch")
    n, rng = 80, np.random.default_rng(5)
    numbers = {"x": points(n), "b": rng.normal(size=n), "width": np.float64(1.5)}
    x, b, width = (torch.tensor(value, requires_grad=True) for value in numbers.values())
    f = "exp(-sum(square(x-z))/width)"

    def estimate(x, b, width, probes=4 * n):
        op = linalg.KernelOperator(f, x, ridge=0.1, width=width)
        quad, logdet, _ = linalg.inv_quad_logdet(op, b, n_probes=probes, tol=1e-12)
        return quad + logdet

    def exact(x, b, width):
        dense = mc.pairwise(f, x, width=width) + 0.1 * torch.eye(n, dtype=torch.float64)
        return sum(part.sum() for part in linalg.inv_quad_logdet(dense, b))

    found = torch.autograd.grad(estimate(x, b, width), (x, b, width), create_graph=True)
    wanted = torch.autograd.grad(exact(x, b, width), (x, b, width), create_graph=True)
    # One probe's trace of M is off by sqrt(2) |M|; |a^-1 da| is at most a few times the sum here.
    for own, other in zip(found, wanted, strict=True):
        assert own.dtype == torch.float64
        assert (own - other).norm() <= 6 * math.sqrt(2 / (4 * n)) * other.norm()
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-8, atol=1e-8)
    second = [torch.autograd.grad(g[2], width)[0] for g in (found, wanted)]
    assert abs(second[0] - second[1]) <= 6 * math.sqrt(2 / (4 * n)) * abs(second[1])


def test_weights_and_ridges_of_points():
    """diag(s) k diag(s) + diag(ridge), s^2 = weights: values, and gradients by both."""
    torch = pytest.importorskip("torch")
    n, rng = 60, np.random.default_rng(8)
    x, b = torch.from_numpy(points(n)), torch.from_numpy(rng.normal(size=n))
    ridge, weights = (
        torch.tensor(rng.uniform(low, high, n), requires_grad=True)
        for low, high in ((0.2, 0.4), (0.5, 2.0))
    )
    op = linalg.KernelOperator("gauss", x, ridge=ridge, weights=weights, bandwidth=1.0)
    quad, logdet, error = linalg.inv_quad_logdet(op, b, n_probes=240, tol=1e-12)
    roots = weights.sqrt()
    kernels = mc.pairwise("gauss", x, bandwidth=1.0)
    dense = roots[:, None] * kernels * roots + torch.diag(ridge)
    exact = linalg.inv_quad_logdet(dense, b)
    torch.testing.assert_close(quad, exact[0], rtol=1e-9, atol=0)
    assert abs(logdet - exact[1]) <= 6 * error
    found = torch.autograd.grad(quad + logdet, (ridge, weights))
    wanted = torch.autograd.grad(exact[0] + exact[1], (ridge, weights))
    for own, other in zip(found, wanted, strict=True):
        assert (own - other).norm() <= 6 * math.sqrt(2 / 240) * other.norm()
    host = linalg.KernelOperator(
        "gauss", x.numpy(), ridge=ridge.detach().numpy(), weights=weights.detach().numpy(),
        bandwidth=1.0,
    )  # fmt: skip
    plain = linalg.inv_quad_logdet(host, b.numpy(), n_probes=240, tol=1e-12)
    np.testing.assert_allclose(plain.logdet, logdet.item(), rtol=1e-9)


def test_linear_operators_of_scipy_serve():
    sparse = pytest.importorskip("scipy.sparse.linalg")
    op, dense = operator(100)
    b = np.random.default_rng(9).normal(size=(100, 2))
    found = linalg.inv_quad_logdet(sparse.aslinearoperator(dense), b)
    expected = linalg.inv_quad_logdet(op, b)
    # Lanczos' recurrence magnifies rounding, which differs between the two products.
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-3)


def test_gradients_of_probes_are_those_of_the_quadratic_forms():
    """For signs z, d log det a is the mean of (a^-1 z)' da z, to the tolerance of cg."""
    torch = pytest.importorskip("torch")
    n = 50
    x = torch.from_numpy(points(n)).requires_grad_()
    width = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    f = "exp(-sum(square(x-z))/width)"
    op = linalg.KernelOperator(f, x, ridge=0.1, width=width)
    b = torch.ones(n, dtype=torch.float64)
    logdet = linalg.inv_quad_logdet(op, b, n_probes=5, tol=1e-13).logdet
    found = torch.autograd.grad(logdet, (x, width))
    signs = np.random.default_rng(0).integers(0, 2, (5, n), dtype=np.int8)
    z = torch.from_numpy(2.0 * signs.T - 1)
    dense = mc.pairwise(f, x, width=width) + 0.1 * torch.eye(n, dtype=torch.float64)
    solved = torch.linalg.solve(dense.detach(), z)
    wanted = torch.autograd.grad((solved * (dense @ z)).sum() / 5, (x, width))
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)
    with torch.no_grad():
        assert not linalg.inv_quad_logdet(op, b).logdet.requires_grad


def test_steps_that_run_out_are_in_the_error():
    op, dense = operator(300, ridge=1e-3)
    exact = np.linalg.slogdet(dense)[1]
    logdet, error = estimate(op, op_points(op), most=6)
    full, deviation = estimate(op, op_points(op), most=250)
    assert error > deviation
    assert abs(logdet - exact) > 6 * deviation
    assert abs(full - exact) <= 6 * deviation
    assert math.isinf(estimate(op, op_points(op), probes=1)[1])


def test_what_is_refused():
    op, _ = operator(30)
    b = np.ones(30)
    for probes in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="n_probes must be a whole number from 1 on"):
            linalg.inv_quad_logdet(op, b, n_probes=probes)
    with pytest.raises(TypeError):
        linalg.inv_quad_logdet(np.eye(3), np.ones(3), n_probes=4)
    indefinite = linalg.KernelOperator("-sum(square(x-z))", points(30), ridge=0.1)
    with pytest.raises(mc.LinAlgError):
        linalg.inv_quad_logdet(indefinite, b)
    with pytest.raises(mc.LinAlgError, match="a must be positive definite"):
        estimate(indefinite, points(30))
    wrong = Dense(np.eye(30), True)
    wrong.matrix = np.diag(np.where(np.arange(30) < 15, 1.0, -1e-3))
    with pytest.raises(mc.LinAlgError, match="the preconditioner must be positive definite"):
        estimate(operator(30)[0], points(30), wrong)
    nan = points(30)
    nan[3] = np.nan
    with pytest.raises(mc.LinAlgError, match="products with a must be finite"):
        estimate(linalg.KernelOperator("gauss", nan, ridge=0.1, bandwidth=1.0), nan)
