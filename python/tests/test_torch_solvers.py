"""minres and sap of tensors that PyTorch follows, against torch.linalg.solve in float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mercer as mc  # noqa: E402

linalg = mc.linalg
N = 40
RNG = np.random.default_rng(0)
X, B = torch.tensor(RNG.normal(size=(N, 2))), torch.tensor(RNG.normal(size=(N, 2)))
RIDGES = torch.tensor(RNG.uniform(0.3, 1, N))
H = torch.tensor(1.2, dtype=torch.float64)


def operator(x, h, r):
    return linalg.KernelOperator("gauss", x, ridge=r, bandwidth=h)


def matrix(x, h, r):
    return mc.kernel_matrix("gauss", x, bandwidth=h) + torch.diag(r)


SOLVERS = {
    "minres": lambda a, b: linalg.minres(a, b, tol=1e-13),
    "minres without check": lambda a, b: linalg.minres(a, b, tol=1e-13, x0=b, check=False)[0],
    "sap": lambda a, b: linalg.sap(a, b, tol=1e-11, block=20, max_iter=500),
    "sap without check": lambda a, b: linalg.sap(
        a, b, tol=1e-11, block=20, max_iter=500, x0=b, check=False
    )[0],
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVERS)
def test_derivatives(name):
    """By points, width, ridges and right-hand sides, twice; to the residual of 1e-11 times the
    condition of the matrix, which is below 150, and of the solutions that add up."""
    leaves = [t.clone().requires_grad_() for t in (X, H, RIDGES, B)]
    *parts, b = leaves
    ours = SOLVERS[name](operator(*parts), b)
    theirs = torch.linalg.solve(matrix(*parts), b)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
    slopes = [torch.autograd.grad(x.sin().sum(), leaves, create_graph=True) for x in (ours, theirs)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)
    second = [torch.autograd.grad(slope[1], leaves) for slope in slopes]
    for one, other in zip(*second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_derivatives_of_an_indefinite_matrix():
    a = matrix(X, H, 0 * RIDGES) - 0.7 * torch.eye(N)
    values = torch.linalg.eigvalsh(a)
    assert values[0] < 0 < values[-1]
    bound = 1e-11 * float((values[-1] / values.abs().min()) ** 2)

    def loss(solve):
        def of(a, b):
            return solve((a + a.mT) / 2, b).sin().sum()

        return of

    ours = loss(lambda a, b: linalg.minres(a, b, tol=1e-13))
    leaves = [t.clone().requires_grad_() for t in (a, B)]
    found = torch.autograd.grad(ours(*leaves), leaves)
    wanted = torch.autograd.grad(loss(torch.linalg.solve)(*leaves), leaves)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=bound, atol=bound)
    for one, other in zip(torch.func.grad(ours, (0, 1))(a, B), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=bound, atol=bound)
    moved = torch.func.jvp(lambda b: linalg.minres(a, b, tol=1e-13), (B,), (B,))[1]
    torch.testing.assert_close(moved, torch.linalg.solve(a, B), rtol=bound, atol=bound)


def test_what_sap_says_beside_a_solution_that_is_followed():
    right = B.clone().requires_grad_()
    x, info, sweeps = linalg.sap(operator(X, H, RIDGES), right, check=False)
    assert x.requires_grad
    assert isinstance(info, np.ndarray)
    assert info.tolist() == [0, 0]
    plain = linalg.sap(operator(X, H, RIDGES), B, check=False)
    np.testing.assert_array_equal(sweeps, plain[2])
    assert linalg.sap(operator(X, H, RIDGES), right[:, 0], check=False)[1].shape == ()
    with pytest.raises(mc.LinAlgError, match="sap: residuals must be at most 1e-12"):
        linalg.sap(operator(X, H, RIDGES), right, tol=1e-12, block=10, max_iter=1)


def test_refused():
    a = torch.eye(3, dtype=torch.float64).requires_grad_()
    b = torch.ones(3, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="minres: out is not offered where PyTorch"):
        linalg.minres(a, b, out=b.clone())
    with pytest.raises(NotImplementedError, match="eigh_top: a must not track gradients"):
        linalg.eigh_top(a, 1)
    with (
        torch.overrides.BaseTorchFunctionMode(),
        pytest.raises(NotImplementedError, match="sap: comp"),
    ):
        linalg.sap(operator(X, H, RIDGES), B)
