"""Derivatives of mercer.linalg and mercer.kron in PyTorch, and what traces them.

Derivatives are compared with finite differences in float64 (gradcheck's own tolerances) and with
torch.linalg's. A derivative is a few solves with the matrix: its error is a small multiple of
n u cond(a) of its magnitude, with u the rounding unit; of second derivatives, of cond(a)^2.
"""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

import mercer as mc  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils import _pytree  # noqa: E402

linalg, kron = mc.linalg, mc.kron
N = 4


def symmetric(a):
    return (a + a.mT) / 2


def positive(*shape, seed=0, kind=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (a @ a.mT / shape[-1] + torch.eye(shape[-1], dtype=torch.float64)).to(kind)


def normal(*shape, seed=1, kind=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(kind)


def weighed(result):
    """A number that depends on all of a result's elements differently."""
    total = 0
    for i, part in enumerate(_pytree.tree_leaves(result)):
        total = total + (part.double() * normal(*part.shape, seed=i)).sum()
    return total


def up_to_signs(pair):
    return pair[0], pair[1].square()


CASES = {
    "cholesky": (lambda a: linalg.cholesky(symmetric(a)), (positive(2, N, N),)),
    "cholesky, upper": (lambda a: linalg.cholesky(symmetric(a), lower=False), (positive(N, N),)),
    "cholesky with jitter": (lambda a: linalg.cholesky(symmetric(a), jitter=[0.01, 0.5]),
                             (torch.stack([symmetric(positive(3, 3)), positive(3, 3) - 1.1]),)),
    "solve_cholesky": (lambda a, b: linalg.solve_cholesky(symmetric(a), b),
                       (positive(2, N, N), normal(N, 3))),
    "solve_cholesky of a vector": (lambda a, b: linalg.solve_cholesky(symmetric(a), b, lower=False),
                                   (positive(2, N, N), normal(N))),
    "solve_cholesky of one matrix": (lambda a, b: linalg.solve_cholesky(symmetric(a).T, b.mT),
                                     (positive(N, N), normal(3, 2, N))),
    "solve_cholesky with jitter": (
        lambda a, b: linalg.solve_cholesky(symmetric(a), b, jitter=1.0, check=False)[0],
        (positive(2, 3, 3) - 1.1, normal(3, 1))),
    "solve_cholesky of nothing": (lambda a, b: linalg.solve_cholesky(a, b).sum(),
                                  (positive(2, N, N)[:, :0, :0], normal(0, 2))),
    "cho_solve": (lambda a, b: linalg.cho_solve(a, b), (positive(2, N, N), normal(N, 3))),
    "cho_solve, upper": (lambda a, b: linalg.cho_solve(a, b, lower=False),
                         (positive(N, N), normal(2, N, 3))),
    "cho_solve of cholesky": (lambda a, b: linalg.cho_solve(linalg.cholesky(symmetric(a)), b),
                              (positive(N, N), normal(N))),
    "cho_inverse": (lambda a: linalg.cho_inverse(a), (positive(2, N, N),)),
    "cho_inverse, upper": (lambda a: linalg.cho_inverse(linalg.cholesky(symmetric(a)).mT,
                                                        lower=False), (positive(N, N),)),
    "cho_inverse_diagonal": (lambda a: linalg.cho_inverse_diagonal(a), (positive(2, N, N),)),
    "solve_triangular": (lambda a, b: linalg.solve_triangular(a, b),
                         (positive(2, N, N), normal(N, 3))),
    "solve_triangular, upper": (lambda a, b: linalg.solve_triangular(a, b, lower=False),
                                (positive(N, N), normal(N))),
    "solve_triangular, transposed": (
        lambda a, b: linalg.solve_triangular(a, b, transposed=True, unit_diagonal=True),
        (positive(N, N), normal(2, N, 3))),
    "inv_quad_logdet": (lambda a, b: linalg.inv_quad_logdet(symmetric(a), b),
                        (positive(2, N, N), normal(N, 3))),
    "inv_quad_logdet of a vector": (
        lambda a, b: linalg.inv_quad_logdet(symmetric(a), b, lower=False, jitter=1e-3),
        (positive(2, N, N), normal(N))),
    "lu_factor": (lambda a: linalg.lu_factor(a)[0], (normal(2, N, N),)),
    "lu_factor of tall ones": (lambda a: linalg.lu_factor(a, check=False)[0][0], (normal(5, 3),)),
    "lu_factor of wide ones": (lambda a: linalg.lu_factor(a)[0], (normal(2, 3, 5),)),
    "lu_solve": (lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b),
                 (normal(2, N, N), normal(N, 3))),
    "lu_solve, transposed": (lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b, transposed=True),
                             (normal(N, N), normal(N))),
    "solve_lu": (lambda a, b: linalg.solve_lu(a, b), (normal(2, N, N), normal(N, 3))),
    "solve_lu of a vector": (lambda a, b: linalg.solve_lu(a.mT, b), (normal(2, N, N), normal(N))),
    "eigh": (lambda a: up_to_signs(linalg.eigh(symmetric(a))), (positive(2, N, N),)),
    "eigh, some of it": (lambda a: up_to_signs(linalg.eigh(symmetric(a), subset_by_index=(1, 2))),
                         (positive(N, N),)),
    "eigh of equal eigenvalues": (
        lambda a: linalg.eigh(symmetric(a), eigvals_only=True).sum(),
        (2 * torch.eye(3, dtype=torch.float64),)),
    "kron.solve": (lambda a, c, b: kron.solve([symmetric(a), symmetric(c)], b, jitter=1e-3),
                   (positive(3, 3), positive(2, 2, 2), normal(6, 2))),
    "kron.solve by LU": (lambda a, c, b: kron.solve([a, c], b, positive=False),
                         (normal(3, 3), normal(2, 2), normal(6))),
    "kron.solve with a shift": (
        lambda a, c, b, s: kron.solve([symmetric(a), symmetric(c)], b, shift=s),
        (positive(3, 3), positive(2, 2, 2), normal(6, 2), torch.tensor(0.3).double())),
    "kron.solve of equal eigenvalues": (
        lambda a, c, b: kron.solve([symmetric(a), symmetric(c)], b, shift=0.3),
        (torch.eye(3).double(), positive(2, 2), normal(6))),
    "kron.logdet": (lambda a, c: kron.logdet([symmetric(a), symmetric(c)]),
                    (positive(3, 3), positive(2, 2, 2))),
    "kron.logdet with a shift": (
        lambda a, c, s: kron.logdet([symmetric(a), symmetric(c)], shift=s),
        (positive(3, 3), positive(2, 2, 2), torch.tensor(0.3).double())),
}  # fmt: skip
EQUAL = "eigh of equal eigenvalues"


def taken(name, device="cpu"):
    function, inputs = CASES[name]
    return function, [t.clone().to(device).requires_grad_() for t in inputs]


@pytest.mark.parametrize("name", CASES)
def test_first_derivatives(name):
    function, inputs = taken(name)
    assert torch.autograd.gradcheck(
        function, inputs, check_forward_ad=name != EQUAL, check_batched_grad=True
    )


@pytest.mark.parametrize("name", [name for name in CASES if name != EQUAL])
def test_second_derivatives(name):
    assert torch.autograd.gradgradcheck(*taken(name))


@pytest.mark.parametrize("name", ["solve_cholesky", "solve_lu", "inv_quad_logdet", "lu_factor"])
def test_derivatives_on_cuda(name):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    function, inputs = taken(name, "cuda")
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, inputs)


# ---- Conjugate gradients. -----------------------------------------------------------------------

WIDTH = torch.tensor(1.5, dtype=torch.float64)


def solved(x, b, preconditioned=False, **options):
    operator = linalg.KernelOperator("gauss", x, **{"ridge": 0.5, "bandwidth": 1.5, **options})
    inverse = linalg.nystrom(operator, 3) if preconditioned else None
    return linalg.cg(operator, b, preconditioner=inverse, tol=1e-13)


OF_OPERATORS = {
    "points, width and b": (lambda x, h, b: solved(x, b, bandwidth=h),
                            (normal(6, 2), WIDTH, normal(6, 3))),
    "a vector b, with a preconditioner": (lambda x, h, b: solved(x, b, True, bandwidth=h),
                                          (normal(6, 2), WIDTH, normal(6))),
    "b alone": (lambda b: solved(normal(6, 2).to(b.device), b), (normal(6, 1),)),
    "the ridge": (lambda x, r, b: solved(x, b, ridge=r),
                  (normal(6, 2), torch.tensor(0.4).double(), normal(6))),
    "ridges and weights of points": (
        lambda x, r, s, b: solved(x, b, ridge=r, weights=s),
        (normal(6, 2), 0.5 + normal(6).abs(), 0.5 + normal(6, seed=3).abs(), normal(6, 2))),
    "weights of features, and row": (
        lambda x, w, r, b: linalg.cg(
            linalg.KernelOperator("row*col*exp(-sum(w*(x-z)^2))", x, w=w, row=r, col=r, ridge=0.5),
            b, tol=1e-13),
        (normal(6, 2), torch.tensor([0.7, 1.2]).double(), normal(6), normal(6))),
    "ridges of columns": (
        lambda x, r, b: linalg.cg(
            linalg.KernelOperator("gauss", x, ridge=0.1, bandwidth=1.5), b, ridge=r, tol=1e-13),
        (normal(6, 2), torch.tensor([0.3, 0.7]).double(), normal(6, 2))),
    "a matrix and ridges of columns": (
        lambda a, r, b: linalg.cg(symmetric(a), b, ridge=r, tol=1e-13),
        (positive(N, N), torch.tensor([0.3, 0.7]).double(), normal(N, 2))),
    "a formula that carries its width": (
        lambda h, b: linalg.cg(
            linalg.KernelOperator(mc.gauss(bandwidth=h), normal(6, 2).to(b.device), ridge=0.5),
            b, tol=1e-13),
        (WIDTH, normal(6))),
    "a matrix": (lambda a, b: linalg.cg(symmetric(a), b, tol=1e-13),
                 (positive(N, N), normal(N, 2))),
    "a matrix, a vector, a guess": (
        lambda a, b: linalg.cg(symmetric(a), b, tol=1e-13, x0=b, check=False)[0],
        (positive(N, N), normal(N))),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_OPERATORS)
def test_derivatives_of_conjugate_gradients(name):
    function, inputs = OF_OPERATORS[name]
    inputs = [t.clone().requires_grad_() for t in inputs]
    stored = "matrix" in name
    assert torch.autograd.gradcheck(
        function, inputs, check_batched_grad=stored, check_forward_ad=stored
    )
    assert torch.autograd.gradgradcheck(function, inputs)


def test_conjugate_gradients_on_cuda():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    for function, inputs in OF_OPERATORS.values():
        assert torch.autograd.gradcheck(function, [t.cuda().requires_grad_() for t in inputs])


def test_an_operator_is_differentiated_as_its_matrix_is():
    """They agree to cg's tolerance times the condition of the matrix, below 600/0.1."""
    x, b = normal(600, 3).requires_grad_(), normal(600, 2).requires_grad_()
    h = WIDTH.clone().requires_grad_()
    operator = linalg.KernelOperator("gauss", x, ridge=0.1, bandwidth=h)
    found = linalg.cg(operator, b, preconditioner=linalg.pivoted_cholesky(operator, 100), tol=1e-11)
    a = mc.kernel_matrix("gauss", x, bandwidth=h) + 0.1 * torch.eye(600, dtype=torch.float64)
    wanted = linalg.solve_cholesky(a, b)
    for ours, theirs in zip(
        torch.autograd.grad(weighed(found), (x, b, h)),
        torch.autograd.grad(weighed(wanted), (x, b, h)),
        strict=True,
    ):
        assert (ours - theirs).norm() <= 1e-11 * 6000 * theirs.norm()


def test_conjugate_gradients_in_transforms():
    a, b = positive(3, 3), normal(3, 2)

    def ours(a, b):
        return linalg.cg(symmetric(a), b, tol=1e-14).sin().sum()

    def theirs(a, b):
        return torch.linalg.solve(symmetric(a), b).sin().sum()

    for transform in (torch.func.grad, torch.func.hessian):
        torch.testing.assert_close(transform(ours)(a, b), transform(theirs)(a, b))
    found = torch.vmap(torch.func.grad(ours), (0, None))(torch.stack([a, 2 * a]), b)
    torch.testing.assert_close(found[1], torch.func.grad(theirs)(2 * a, b))


def test_what_conjugate_gradients_refuse():
    a, b = positive(3, 3).requires_grad_(), normal(3).requires_grad_()
    with pytest.raises(NotImplementedError, match="cg: out is not offered where PyTorch records"):
        linalg.cg(a, b, out=torch.empty(3).double())
    operator = linalg.KernelOperator("gauss", normal(3, 2).requires_grad_(), bandwidth=1.0)
    with pytest.raises(NotImplementedError, match="eigh_top: x must not track gradients"):
        linalg.eigh_top(operator, 1)
    with pytest.raises(mc.LinAlgError, match="cg: a must be positive definite"):
        linalg.cg(-a, b)
    x, info, _ = linalg.cg(-a, b, check=False)
    assert info == -1
    assert torch.autograd.grad(x.sum(), b)[0].isnan().all()


OURS = {
    "cholesky": (lambda a, b: linalg.cholesky(a), lambda a, b: torch.linalg.cholesky(a)),
    "solve_cholesky": (linalg.solve_cholesky, torch.linalg.solve),
    "solve_lu": (linalg.solve_lu, torch.linalg.solve),
    "inv_quad_logdet": (
        lambda a, b: sum(t.sum() for t in linalg.inv_quad_logdet(a, b)),
        lambda a, b: (b * torch.linalg.solve(a, b)).sum() + torch.linalg.slogdet(a)[1].sum(),
    ),
    "eigh": (lambda a, b: up_to_signs(linalg.eigh(a)),
             lambda a, b: up_to_signs(torch.linalg.eigh(a))),
    "eigvalsh": (lambda a, b: linalg.eigh(a, eigvals_only=True),
                 lambda a, b: torch.linalg.eigvalsh(a)),
    "lu_factor": (lambda a, b: linalg.lu_factor(a)[0],
                  lambda a, b: torch.linalg.lu_factor(a)[0]),
}  # fmt: skip


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OURS)
def test_gradients_of_an_ill_conditioned_matrix(name, kind):
    """Against torch.linalg's in float64, of eigenvalues from 1 to 1e-3."""
    n = 12
    q = torch.linalg.qr(normal(n, n))[0]
    values = torch.logspace(0, -3, n, dtype=torch.float64)
    exact, b = symmetric(q * values @ q.T).to(kind).double(), normal(n, 2, kind=kind).double()
    ours, theirs = OURS[name]
    wanted = torch.autograd.functional.jacobian(lambda a: weighed(theirs(symmetric(a), b)), exact)
    found = torch.autograd.functional.jacobian(
        lambda a: weighed(ours(symmetric(a), b.to(kind))), exact.to(kind)
    )
    bound = 16 * n * torch.finfo(kind).eps * 1e3
    assert found.dtype == kind
    assert (found.double() - wanted).norm() <= bound * wanted.norm()


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_that_nobody_follows(name):
    function, inputs = taken(name)
    with torch.no_grad():
        wanted = function(*inputs)
    torch.testing.assert_close(function(*inputs), wanted, rtol=1e-12, atol=1e-12)


def test_the_inverse_of_what_is_no_factor_is_nan():
    a = torch.diag(torch.tensor([1.0, -1.0])).requires_grad_()
    assert linalg.cho_inverse(a).isnan().all()


def test_a_gradient_is_symmetric_whichever_triangle_is_read():
    for lower in (True, False):
        a = positive(N, N)
        hidden = torch.triu(torch.full_like(a, torch.nan), 1)
        given = (a + (hidden if lower else hidden.T)).requires_grad_()
        x = linalg.solve_cholesky(given, normal(N, 2), lower=lower)
        by_a = torch.autograd.grad(weighed(x), given, create_graph=True)[0]
        twice = torch.autograd.grad(weighed(by_a), given)[0]
        for gradient in (by_a, twice):
            assert torch.isfinite(gradient).all()
            torch.testing.assert_close(gradient, gradient.T, rtol=0, atol=0)


def test_equal_eigenvalues_have_values_that_move_and_vectors_that_do_not():
    a = torch.eye(3, dtype=torch.float64, requires_grad=True)
    w, v = linalg.eigh(a)
    torch.testing.assert_close(torch.autograd.grad(w.sum(), a, retain_graph=True)[0], a.detach())
    assert not torch.isfinite(torch.autograd.grad(weighed(v), a)[0]).all()


def test_what_failed_is_not_differentiated_into_numbers():
    a = torch.stack([positive(3, 3), -positive(3, 3)]).requires_grad_()
    with pytest.raises(mc.LinAlgError, match=r"solve_cholesky: a must be positive.*item \(1,\)"):
        linalg.solve_cholesky(a, normal(3))
    x, info = linalg.solve_cholesky(a, normal(3), check=False)
    assert info.tolist() == [0, 1]
    gradient = torch.autograd.grad(x.sum(), a)[0]
    assert torch.isfinite(gradient[0]).all()
    assert gradient[1].isnan().all()


REFUSED = {
    "out": (lambda a, b: linalg.cholesky(a, out=b), NotImplementedError, "cholesky: out is not"),
    "overwrite_a": (lambda a, b: linalg.solve_lu(a, b, overwrite_a=True), NotImplementedError,
                    "solve_lu: overwrite_a is not offered where PyTorch records"),
    "overwrite_b": (lambda a, b: linalg.cho_solve(a, b, overwrite_b=True), NotImplementedError,
                    "cho_solve: overwrite_b is not offered"),
    "a workspace": (lambda a, b: linalg.eigh(a, workspace=b), NotImplementedError,
                    "eigh: workspace is not offered"),
    "a shape": (lambda a, b: linalg.solve_cholesky(a, b[1:]), ValueError,
                r"solve_cholesky: b must have the shape \[..., n, k\] or \[n\], n = 3 as in a"),
    "no square": (lambda a, b: linalg.eigh(a[1:]), ValueError, r"eigh: a must have the shape"),
    "a dtype": (lambda a, b: linalg.solve_lu(a, b.float()), mc.DtypeError,
                "solve_lu: b must have the dtype of a, torch.float64. Received torch.float32"),
    "whole numbers": (lambda a, b: linalg.solve_lu(a.long(), b), mc.DtypeError,
                      "solve_lu: a must be float32 or float64. Received"),
    "another library": (lambda a, b: linalg.solve_lu(a, b.detach().numpy()), ValueError,
                        "solve_lu: b must come from the library of a, torch"),
    "jitter": (lambda a, b: linalg.cholesky(a, jitter=-1.0), ValueError,
               "cholesky: jitter must be positive and finite. Received -1"),
    "a subset": (lambda a, b: linalg.eigh(a, subset_by_index=(2, 3)), ValueError,
                 r"subset_by_index must be \(first, last\), 0 <= first <= last < 3"),
    "a sparse matrix": (lambda a, b: linalg.cholesky(a.to_sparse()), NotImplementedError, "a must"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, error, words = REFUSED[case]
    a, b = positive(3, 3).requires_grad_(), normal(3, 3).requires_grad_()
    with pytest.raises(error, match=words):
        call(a, b)


@pytest.mark.parametrize("lower", [True, False])
def test_inverses_have_the_values_of_the_engine(lower):
    factor, b = linalg.cholesky(symmetric(positive(5, 5)), lower=lower), normal(5, 2)
    calls = {
        "inverse": lambda t: linalg.cho_inverse(t, lower=lower),
        "diagonal": lambda t: linalg.cho_inverse_diagonal(t, lower=lower),
        "triangle": lambda t: linalg.solve_triangular(t, b, lower=lower),
        "transposed": lambda t: linalg.solve_triangular(t, b, lower=lower, transposed=True),
        "unit": lambda t: linalg.solve_triangular(t, b, lower=lower, unit_diagonal=True),
    }
    for name, call in calls.items():
        followed = call(factor.detach().requires_grad_())
        assert followed.requires_grad, name
        torch.testing.assert_close(followed.detach(), call(factor.detach()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_likelihoods_are_of_float64(kind):
    """So they are without gradients, in reverse and in forward mode; gradients have a's dtype."""
    a, b = positive(3, 3).to(kind), normal(3, 2, kind=kind)
    plain = linalg.inv_quad_logdet(a, b)
    followed = linalg.inv_quad_logdet(a.requires_grad_(), b)
    for found in (*plain, *followed):
        assert found.dtype == torch.float64
    torch.testing.assert_close(followed, plain, rtol=32 * torch.finfo(kind).eps, atol=1e-6)
    (followed[0].sum() + followed[1]).backward()
    assert a.grad.dtype == kind
    tangents = torch.func.jvp(
        lambda a: linalg.inv_quad_logdet(symmetric(a), b), (a.detach(),), (torch.eye(3).to(kind),)
    )[1]
    assert [t.dtype for t in tangents] == [torch.float64] * 2


# ---- torch.func, torch.compile. -----------------------------------------------------------------


def likelihood(a, b):
    quad, logdet = linalg.inv_quad_logdet(symmetric(a), b)
    return quad.sum() + logdet


# PyTorch's own forward mode over forward mode gives wrong second derivatives of solve.
HESSIAN = torch.func.hessian
TRANSFORMS = {
    "grad": lambda f: torch.func.grad(f, (0, 1)),
    "grad of grad": lambda f: torch.func.grad(lambda a, b: torch.func.grad(f)(a, b).sin().sum()),
    "jacrev of jacfwd": lambda f: torch.func.jacrev(torch.func.jacfwd(f)),
    "jacfwd of jacfwd": lambda f: torch.func.jacfwd(torch.func.jacfwd(f)),
    "jvp": lambda f: lambda a, b: torch.func.jvp(f, (a, b), (a, b))[1],
    "vmap of grad": lambda f: (
        lambda a, b: torch.vmap(torch.func.grad(f), (0, None))(torch.stack([a, 2 * a]), b)
    ),
    "vmap by b": lambda f: lambda a, b: torch.vmap(f, (None, 1))(a, b),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name):
    def theirs(a, b):
        return (b * torch.linalg.solve(symmetric(a), b)).sum() + torch.logdet(symmetric(a))

    a, b = positive(3, 3), normal(3, 2)
    transform = TRANSFORMS[name]
    oracle = HESSIAN if "jacfwd" in name else transform
    torch.testing.assert_close(transform(likelihood)(a, b), oracle(theirs)(a, b))


def test_mapped_functions_with_other_batches():
    a, b = positive(3, 2, N, N), normal(3, N, 2)
    ours = torch.vmap(lambda a, b: linalg.solve_lu(a, b))(a, b)
    torch.testing.assert_close(ours, torch.linalg.solve(a, b[:, None]))
    pairs = linalg.lu_factor(a)
    ours = torch.vmap(lambda lu, p, b: linalg.lu_solve((lu, p), b), (0, 0, None))(*pairs, b[0])
    torch.testing.assert_close(ours, torch.linalg.solve(a, b[0]))
    w, v = torch.vmap(linalg.eigh)(a[:, 0])
    torch.testing.assert_close(v * w[:, None] @ v.mT, a[:, 0])


def test_compiled_likelihood_and_its_gradient():
    a, b = positive(3, 3).requires_grad_(), normal(3, 2)
    torch._dynamo.reset()
    compiled = torch.compile(likelihood, fullgraph=True, backend="aot_eager")
    value, wanted = compiled(a, b), likelihood(a, b)
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(torch.autograd.grad(value, a), torch.autograd.grad(wanted, a))


OPERATORS = {
    "cholesky": lambda a, b: (a, True, True, "cholesky"),
    "lu_factor": lambda a, b: (a, True, "lu_factor"),
    "eigh": lambda a, b: (a, True, True, "eigh"),
    "cho_solve": lambda a, b: (a, b, True),
    "solve_factored": lambda a, b: (a, linalg.cholesky(a.detach()), b, True),
    "solve_pivoted": lambda a, b: (a, *linalg.lu_factor(a.detach()), b, True),
    "inv_quad": lambda a, b: (a, linalg.cholesky(a.detach()), b, True),
    "logdet": lambda a, b: (a, linalg.cholesky(a.detach()), True),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_registered_operators(name):
    """Schemas, and fake results of the shapes, types and strides of true ones."""
    from mercer._torch import linalg_verbs  # noqa: F401

    inputs = OPERATORS[name](positive(2, 3, 3), normal(3, 2))
    operator = getattr(torch.ops.mercer, name).default
    torch.library.opcheck(operator, inputs, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", ["solve_cholesky", "solve_lu", "eigh", "kron.solve"])
def test_a_traced_call_computes_with_other_data(name):
    functions = {
        "solve_cholesky": lambda a, b: linalg.solve_cholesky(a, b, jitter=1e-3),
        "solve_lu": linalg.solve_lu,
        "eigh": lambda a, b: linalg.eigh(a, eigvals_only=True),
        "kron.solve": lambda a, b: kron.solve([a], b, shift=0.5),
    }
    function = functions[name]
    traced = make_fx(function, tracing_mode="symbolic")(positive(3, 3), normal(3, 2))
    a, b = positive(3, 3, seed=4), normal(3, 2, seed=5)
    torch.testing.assert_close(traced(a, b), function(a, b))


def test_points_of_weight_zero_are_held():
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    b = torch.randn(6, dtype=torch.float64)
    w = torch.tensor([1, 2, 0, 1, 1, 3.0], dtype=torch.float64, requires_grad=True)
    operator = mc.linalg.KernelOperator("gauss", x, ridge=0.5, weights=w, bandwidth=1.3)
    of_x, of_w = torch.autograd.grad((b * mc.linalg.cg(operator, b)).sum(), (x, w))
    assert of_w[2] == 0
    assert torch.isfinite(of_w).all()
    assert torch.isfinite(of_x).all()


def test_vectorised_jacobians_of_conjugate_gradients_by_points():
    x, b = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, dtype=torch.float64)

    def solution(points):
        operator = mc.linalg.KernelOperator("gauss", points, ridge=0.5, bandwidth=1.3)
        return mc.linalg.cg(operator, b)

    one, other = (
        torch.autograd.functional.jacobian(solution, x, vectorize=flag) for flag in (True, False)
    )
    torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)  # cg's residual is 1e-10


def test_ridges_of_preconditioners_refuse_gradients():
    operator = mc.linalg.KernelOperator("gauss", torch.randn(9, 2), ridge=0.5)
    p = mc.linalg.rpcholesky(operator, 3)
    with pytest.raises(NotImplementedError, match="ridge must not track gradients"):
        p.with_ridge(torch.tensor(0.3, requires_grad=True))


@pytest.mark.parametrize(
    "call",
    [linalg.solve_cholesky, linalg.solve_lu, lambda a, b: kron.matmul(a, [b]),
     lambda a, b: mc.kernel_product("sqeuclidean", a, None, b)],
    ids=["solve_cholesky", "solve_lu", "kron.matmul", "kernel_product"],
)  # fmt: skip
def test_a_recorded_call_keeps_nothing_until_a_collection(call):
    a, b = positive(N, N).requires_grad_(), normal(N, 3)
    call(a, b.clone())  # the first call imports
    dies = weakref.ref(b)
    gc.disable()
    try:
        assert call(a, b).requires_grad
        del b
        assert dies() is None
    finally:
        gc.enable()
