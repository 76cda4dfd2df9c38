"""minres and sap of tensors that PyTorch follows, against torch.linalg.solve in float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mercer as mc  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

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
    """First and second derivatives by points, width, ridges and right-hand sides agree to the
    residual of 1e-11 times the condition of the matrix, which is below 150."""
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


def test_what_sap_says_of_a_solution_that_is_followed():
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


# ---- Operators whose tensors PyTorch follows, and torch.func. -----------------------------------

SIDED = "row*col*exp(-sum(w*(x-z)^2)/h)"
FEW = 12
GIVEN = (
    X[:FEW], H, RIDGES[:FEW], torch.tensor(RNG.uniform(0.1, 1, FEW)),
    torch.tensor([0.5, 2], dtype=torch.float64), torch.tensor(RNG.normal(size=FEW)),
)  # fmt: skip
RIGHT = B[:FEW]


def sided(x, h, r, s, w, row):
    return linalg.KernelOperator(SIDED, x, ridge=r, weights=s, w=w, row=row, col=row, h=h)


def sided_matrix(x, h, r, s, w, row):
    root = s.sqrt()
    k = mc.kernel_matrix(SIDED, x, w=w, row=row, col=row, h=h)
    return root[:, None] * root * k + torch.diag(r)


def quadratic(a):
    """The matrix of an operator, by products."""
    return linalg.inv_quad_logdet(a, RIGHT, tol=1e-13).inv_quad


def with_preconditioner(a):
    return linalg.cg(a, RIGHT, preconditioner=linalg.rpcholesky(a, 3, ridge=0.3), tol=1e-13)


def solution(a):
    return torch.linalg.solve(a, RIGHT)


PARTS = {
    "product": (lambda a: a @ RIGHT, lambda a: a @ RIGHT),
    "product from the left": (lambda a: RIGHT.mT @ a, lambda a: RIGHT.mT @ a),
    "diagonal": (lambda a: a.diagonal(), lambda a: a.diagonal()),
    "rows": (lambda a: a.rows([3, -1]), lambda a: a[[3, -1]]),
    "a row": (lambda a: a.rows(2), lambda a: a[2]),
    "cg": (lambda a: linalg.cg(a, RIGHT, tol=1e-13), solution),
    "cg with a preconditioner": (with_preconditioner, solution),
    "minres": (lambda a: linalg.minres(a, RIGHT, tol=1e-13), solution),
    "sap": (lambda a: linalg.sap(a, RIGHT, tol=1e-12, block=6, max_iter=500), solution),
    "inv_quad_logdet": (quadratic, lambda a: (RIGHT * torch.linalg.solve(a, RIGHT)).sum(0)),
}


def by_autograd(loss):
    leaves = [t.clone().requires_grad_() for t in GIVEN]
    return torch.autograd.grad(loss(*leaves), leaves)


def by_forward_mode(loss):
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, torch.ones_like(t)) for t in GIVEN]
        return [forward_ad.unpack_dual(loss(*duals)).tangent.detach()]


TRANSFORMS = {
    "autograd": by_autograd,
    "forward mode": by_forward_mode,
    "grad": lambda loss: torch.func.grad(loss, tuple(range(len(GIVEN))))(*GIVEN),
    "jvp": lambda loss: [torch.func.jvp(loss, GIVEN, tuple(map(torch.ones_like, GIVEN)))[1]],
    "jacfwd of jacrev": lambda loss: [torch.func.jacfwd(torch.func.jacrev(loss, 1), 1)(*GIVEN)],
    "vmap of grad": lambda loss: [torch.func.vmap(torch.func.grad(loss, 1), (None, 0, *[None] * 4))(
        GIVEN[0], torch.stack([H, 2 * H]), *GIVEN[2:])],
}  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", PARTS)
def test_operators_within_transforms(name, transform):
    """They agree to what solutions to 1e-12 leave, of matrices whose condition is below 100."""
    if transform == "vmap of grad" and name in ("cg with a preconditioner", "inv_quad_logdet"):
        return  # below
    ours, theirs = PARTS[name]
    apply = TRANSFORMS[transform]
    found = apply(lambda *given: ours(sided(*given)).sin().sum())
    wanted = apply(lambda *given: theirs(sided_matrix(*given)).sin().sum())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("mode", ["grad", "jvp", "hessian", "forward mode"])
def test_determinants_within_transforms(mode):
    """Derivatives of the estimate, which reverse mode of autograd is proved to differentiate."""

    def estimate(h):
        a = linalg.KernelOperator("gauss", X, ridge=0.3, bandwidth=h)
        return linalg.inv_quad_logdet(a, B, tol=1e-13).logdet

    width = H.clone().requires_grad_()
    (slope,) = torch.autograd.grad(estimate(width), width, create_graph=True)
    if mode == "hessian":
        found, slope = torch.func.hessian(estimate)(H), torch.autograd.grad(slope, width)[0]
    elif mode == "grad":
        found = torch.func.grad(estimate)(H)
    elif mode == "jvp":
        found = torch.func.jvp(estimate, (H,), (torch.ones_like(H),))[1]
    else:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(H, torch.ones_like(H))
            found = forward_ad.unpack_dual(estimate(dual)).tangent
    torch.testing.assert_close(found.detach(), slope.detach(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda a: linalg.eigh_top(a, 2)[0], NotImplementedError, "eigh_top: is not offered within to"),
    (lambda a: linalg.nystrom(a, 2).solve(B), NotImplementedError,
     "nystrom: is not offered within torch.vmap, where a stands for several"),
    (lambda a: linalg.inv_quad_logdet(a, B).logdet, NotImplementedError,
     "inv_quad_logdet: is not offered within torch.vmap"),
    (lambda a: a @ B[1:], ValueError, r"v must be a tensor of the shape \[n, k\] or \[n\], n = 40"),
    (lambda a: a @ B.float(), mc.DtypeError, "v must be torch.float64. Received torch.float32"),
    (lambda a: a.rows(N), IndexError, f"rows must be from -{N} to {N - 1}"),
    (lambda a: linalg.cg(a, B.numpy()), ValueError, "cg: b must come from the library of a, torch"),
    (lambda a: linalg.KernelOperator("sum(x)", a.points), ValueError, "symmetric"),
    (lambda a: linalg.KernelOperator("l1", a.points, weights=B), ValueError, "weights must have"),
    (lambda a: linalg.KernelOperator("l1", a.points[0]), ValueError, "x must be a tensor of"),
])  # fmt: skip
def test_refused_within_transforms(call, error, words):
    def of(x):
        return call(linalg.KernelOperator("gauss", x, ridge=0.3, bandwidth=1.2))

    with pytest.raises(error, match=words):
        torch.func.vmap(of)(torch.stack([X, X]))
