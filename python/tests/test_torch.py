"""PyTorch: derivatives of the verbs by finite differences.

On CUDA too where there is a GPU; without one those tests are skipped, and counted.
"""

from __future__ import annotations

import mercer as mc
import pytest

torch = pytest.importorskip("torch")

from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch_table import GAUSS, VERBS, K, M, N, every_device, normal, operands, positive  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def check(function, *arguments, second=True):
    """Compares backward, forward mode and the backward's derivative with finite differences."""
    assert gradcheck(function, arguments, fast_mode=True, check_forward_ad=True)
    if second:
        assert gradgradcheck(function, arguments, fast_mode=True)


@every_device
@pytest.mark.parametrize("verb", VERBS)
def test_verbs(verb, device):
    function, shapes = VERBS[verb]
    check(function, *operands(device), *(normal(*shape, device=device) for shape in shapes))


@every_device
@pytest.mark.parametrize("verb", ["pairwise", "kernel_product", "logsumexp", "max", "knn"])
def test_the_same_points(verb, device):
    def call(x, h):
        if verb == "pairwise":
            return mc.pairwise(GAUSS, x, h=h)
        if verb == "kernel_product":
            return mc.kernel_product(GAUSS, x, None, x, h=h)
        if verb == "knn":
            return mc.knn(GAUSS, x, None, 2, h=h)[0]
        return mc.kernel_reduce(GAUSS, x, None, verb, h=h)

    check(call, normal(M, K, device=device), positive(device=device))


@every_device
@pytest.mark.parametrize("shape", [(N,), (2, N)])
def test_gradient_field(shape, device):
    def call(x, z, amplitude, coef, p):
        phi = "tanh(x-z)*x^2*p"
        return mc.gradient_field(phi, x, z, amplitude, coef, p=p)

    others = normal(M, N, device=device), normal(*shape, device=device), positive(device=device)
    check(call, normal(M, K, device=device), normal(N, K, device=device), *others)


@every_device
@pytest.mark.parametrize("f", [
    "euclidean", "cityblock", "chebyshev", "cosine", "correlation", "canberra", "jensenshannon",
    "laplace", "matern52", "polynomial", "arc_cosine", "logsumexp(x*z) + prod(x-z)",
    "where(i == j, 2, 1)*sum(min(x, z))", "sum(x^2)*max(x*z)",
])  # fmt: skip
def test_formulas(f, device):
    x, z = positive(M, K, device=device), positive(N, K, device=device)
    check(lambda x, z: mc.pairwise(f, x, z), x, z)


@every_device
@pytest.mark.parametrize("f", [GAUSS, "sum(abs(x-z)^3)/h", "sqrt(1 + sum(square(x-z))/h)"])
def test_coincident_points(f, device):
    points = torch.randn(4, K, dtype=torch.float64, device=device)
    x = torch.cat([points, points[:1]]).requires_grad_()
    z = torch.cat([points[:2], points[1:2] * torch.tensor([1, 1, 2.0], device=device)])
    check(lambda x, z, h: mc.pairwise(f, x, z, h=h), x, z.requires_grad_(), positive(device=device))
    check(lambda x, h: mc.pairwise(f, x, h=h), x, positive(device=device))


@every_device
@pytest.mark.parametrize("f", ["euclidean", "cityblock", "matern32", "sum(abs(x-z)^0.5)"])
def test_kinks_contribute_nothing(f, device):
    """The derivatives at a point that is there twice are those without its twin."""
    x, z = normal(M, K, device=device), normal(N, K, device=device)
    with torch.no_grad():
        z[1] = x[2]
    by_x, by_z = torch.autograd.grad(mc.pairwise(f, x, z).sum(), (x, z), create_graph=True)
    assert torch.isfinite(by_x).all()
    others = [0, 2, 3]
    alone = torch.autograd.grad(mc.pairwise(f, x, z[others]).sum(), x)[0]
    torch.testing.assert_close(by_x[2], alone[2])
    second = torch.autograd.grad((by_x.square().sum() + by_z.square().sum()), (x, z))
    assert all(torch.isfinite(s).all() for s in second)


@every_device
def test_batches_and_parameters(device):
    x, z = normal(2, 1, M, K, device=device), normal(3, N, K, device=device)
    h, v = positive(2, 1, device=device), normal(3, N, 2, device=device)
    check(lambda x, z, h: mc.pairwise(GAUSS, x, z, h=h), x, z, h)
    check(lambda x, z, h, v: mc.kernel_product(GAUSS, x, z, v, h=h), x, z, h, v)
    check(lambda x, z, h: mc.kernel_reduce(GAUSS, x, z, "max", h=h), x, z, h)
    check(lambda x, z, h: mc.knn(GAUSS, x, z, 2, h=h)[0], x, z, h)
    check(
        lambda x, p: mc.cdist(x, None, metric="sum(abs(x-z)^p)^(1/p)", p=p),
        x,
        positive(device=device),
    )


@every_device
def test_any_strides(device):
    x, z = normal(K, 2 * M, device=device), normal(K, N, device=device)
    check(lambda x, z: mc.pairwise(GAUSS, x.T[::2], z.T, h=2.0), x, z)
    matrix = mc.pairwise(GAUSS, x.T, z.T, h=2.0)
    plain = mc.pairwise(GAUSS, x.T.contiguous(), z.T.contiguous(), h=2.0)
    for one, other in zip(
        torch.autograd.grad(matrix.sum(), (x, z)),  # a cotangent with strides of 0
        torch.autograd.grad((plain * torch.ones_like(plain)).sum(), (x, z)), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_points(dtype):
    x = torch.randn(M, K).to(dtype).requires_grad_()
    by_x = torch.autograd.grad(mc.cdist(x, None, 1.5).sum(), x)[0]
    wide = x.detach().double().requires_grad_()
    expected = torch.autograd.grad(mc.cdist(wide, None, 1.5).sum(), wide)[0]
    assert by_x.dtype == dtype
    torch.testing.assert_close(by_x, expected.to(dtype), rtol=1e-2, atol=1e-2)


@every_device
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
def test_against_torch(p, device):
    x, z = normal(40, 17, device=device), normal(30, 17, device=device)
    cotangent = torch.randn(40, 30, dtype=torch.float64, device=device)
    result = torch.autograd.grad(mc.cdist(x, z, p), (x, z), cotangent)
    expected = torch.autograd.grad(torch.cdist(x, z, p), (x, z), cotangent)
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_third_derivative():
    x, z = normal(3, 2), normal(2, 2)

    def slope(x, z):
        value = mc.pairwise(GAUSS, x, z, h=2.0).sin().sum()
        return torch.autograd.grad(value, x, create_graph=True)[0]

    assert gradgradcheck(slope, (x, z), fast_mode=True)


# ---- Second derivatives are computed step by step. ----------------------------------------------

STEPS = [
    "abs(x-z)", "sign(x-z)", "sqrt(x*z)", "rsqrt(x)+rcp(z)", "exp(x)-exp2(z)", "expm1(x)*log(z)",
    "log2(x)+log1p(z)", "sin(x)*cos(z)", "asin(x/9)-acos(z/9)", "tanh(x)*erf(z)", "-floor(3*x)+z",
    "ceil(3*x)-round(2*z)", "!(x-z)+x", "min(x,z)/max(x,z)", "x^z", "xlogy(x-z,z)", "atan2(x,-z)",
    "copysign(x,z-1)", "x<z", "x<=z", "x==z", "(x!=z)+(x>z)*2", "x<1 && z<1", "x<1 || z<1",
    "where(x<z,x,2*z)", "fma(x,z,x)", "(x-mean(x))*w+K+i-j*row*col", "nan*x", "p*x+q*z",
]  # fmt: skip


@every_device
@pytest.mark.parametrize("reduction", ["sum", "prod", "max", "min", "logsumexp"])
def test_steps(reduction, device, monkeypatch):
    from mercer._torch import evaluate, operands

    monkeypatch.setattr(
        evaluate, "is_tiny_batch", lambda pairs: True
    )  # the engine has no part in it
    assert set(mc._mercer.operations()) == set(evaluate._FUNCTIONS)
    x, z = positive(M, K, device=device).detach(), positive(N, K, device=device).detach()
    z[1] = x[2]
    for term in STEPS:
        f = mc.parse(f"{reduction}({term})")
        read = operands.leaves(str(f))
        given = {
            "row": x[:, 0] if "row" in read else None, "col": z[:, 0] if "col" in read else None,
            "w": x[0] if "w" in read else None,
        }  # fmt: skip
        params = {"p": x[0, 0], "q": 2.0} if "p:p" in read else {}
        pairs = operands.Pairs(
            str(f), x, z, *given.values(), list(params.values())[:1], " ".join(params),
            list(params.values())[1:], [], "", 3, 1,
        )  # fmt: skip
        result = evaluate.matrix(pairs, torch.empty(M, N, dtype=x.dtype, device=x.device))
        expected = mc.pairwise(f, x, z, **given, i_offset=3, j_offset=1, **params)
        torch.testing.assert_close(result, expected, equal_nan=True, msg=lambda m, t=term: t + m)


SQUARES = "exp(-sum(square(x-z))/8)"
PRODUCTS = "(sum(w*x*z)+1)^3*exp(-sum(square(x-z))/8)+sum(sin(x)*tanh(z))"


def second(f, x, z, v, **operands):
    """Gradients of the squares of gradients."""
    value = mc.kernel_product(f, x, z, v, **operands).square().sum()
    first = torch.autograd.grad(value, (x, z, v), create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), (x, z, v))


@every_device
@pytest.mark.parametrize("f", [SQUARES, PRODUCTS, "exp(-sum(abs(x-z)))"])
@pytest.mark.parametrize("values", [1, 60, 1 << 20])
def test_second_derivatives_in_blocks(f, values, device, monkeypatch):
    """As many blocks as it may take, of any extents."""
    from mercer._torch import evaluate

    for blocks in ("_BLOCK", "_PAIRS"):
        monkeypatch.setattr(evaluate, blocks, {"cpu": values, "cuda": values})
    for m, n, k in ((7, 9, 4), (1, 9, 4), (7, 1, 4), (7, 9, 1), (1, 1, 1), (3, 0, 2)):
        operands = {"w": torch.rand(k, dtype=torch.float64, device=device)} if f == PRODUCTS else {}
        x, z, v = (normal(*shape, device=device) for shape in ((m, k), (n, k), (n, 2)))
        parts = second(f, x, z, v, **operands)
        monkeypatch.undo()
        for part, expected in zip(parts, second(f, x, z, v, **operands), strict=True):
            torch.testing.assert_close(part, expected)
        for blocks in ("_BLOCK", "_PAIRS"):
            monkeypatch.setattr(evaluate, blocks, {"cpu": values, "cuda": values})


@every_device
@pytest.mark.parametrize("f", [SQUARES, PRODUCTS])
def test_products_of_matrices_are_second_derivatives(f, device, monkeypatch):
    """Against every value of pair and feature by itself."""
    from mercer._torch import separable

    operands = {"w": torch.rand(5, dtype=torch.float64, device=device)} if f == PRODUCTS else {}
    x, z, v = (normal(*shape, device=device) for shape in ((40, 5), (30, 5), (30, 2)))
    result = second(f, x, z, v, **operands)
    monkeypatch.setattr(separable, "_MOST_TERMS", 0)
    for one, other in zip(result, second(f, x, z, v, **operands), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@every_device
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_second_derivatives_in_float32(offset, device):
    """They agree to a few dozen roundings of single values, 6e-8 each."""
    points = [torch.randn(m, 6, device=device) + offset for m in (40, 50)]
    points.append(torch.randn(50, 1, device=device))
    narrow = second(SQUARES, *(p.clone().requires_grad_() for p in points))
    wide = second(SQUARES, *(p.double().requires_grad_() for p in points))
    for one, other in zip(narrow, wide, strict=True):
        assert (one - other).norm() < 2e-6 * other.norm()


@every_device
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_point_that_is_not_finite_is_alone(value, device):
    x, z, direction = (torch.randn(m, 3, device=device) for m in (4, 5, 4))
    z[1, 2] = value

    def call(x):
        return mc.pairwise("sum(square(x-z))^2", x, z)

    slopes = torch.func.jvp(call, (x,), (direction,))[1]
    assert slopes.isfinite().all(0).tolist() == [True, False, True, True, True]


@pytest.mark.parametrize(
    ("f", "is_made"), [(SQUARES, False), (PRODUCTS, False), ("exp(-sum(abs(x-z)))", True)]
)
def test_values_of_pair_and_feature_are_made_where_they_must(f, is_made, monkeypatch):
    from mercer._torch import evaluate

    blocks = []
    evaluated = evaluate._Block.evaluate

    def watched(block, program):
        blocks.append(block)
        return evaluated(block, program)

    monkeypatch.setattr(evaluate._Block, "evaluate", watched)
    operands = {"w": torch.rand(4, dtype=torch.float64)} if f == PRODUCTS else {}
    second(f, normal(6, 4), normal(5, 4), normal(5, 2), **operands)
    assert any(not block.separates for block in blocks) == is_made
