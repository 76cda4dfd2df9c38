"""PyTorch: derivatives of kernel_agop, whose rules work in parts of rows and outputs."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import mercer as mc
import pytest
from conftest import rest_long

torch = pytest.importorskip("torch")

from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch_table import ALL, GAUSS, K, M, N, every_device, normal, operands, positive  # noqa: E402

OUTPUTS = 3


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=rest_long([1, 300, 1 << 26], 300, 1 << 26), ids=["smallest", "small", "one"])
def parts(request, monkeypatch):
    """The most bytes of a part: the smallest is one row of one output."""
    mc.pairwise("sum(x*z)", normal(2, 2))  # registers the operators
    from mercer._torch import agop

    monkeypatch.setattr(agop, "_BYTES", request.param)


def check(function, *arguments):
    assert gradcheck(function, arguments, fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(function, arguments, fast_mode=True)


@every_device
def test_every_operand(parts, device):
    def call(x, z, row, col, w, h, coef):
        f = ALL + "*(1+i-2*j)"
        offsets = {"i_offset": 3, "j_offset": 1}
        return mc.kernel_agop(f, x, z, coef, row=row, col=col, w=w, h=h, **offsets)

    check(call, *operands(device), normal(OUTPUTS, N, device=device))


@every_device
@pytest.mark.parametrize("shape", [(OUTPUTS, M), (M,)])
def test_the_same_points(parts, shape, device):
    def call(x, h, coef):
        return mc.kernel_agop(GAUSS, x, None, coef, h=h)

    check(call, normal(M, K, device=device), positive(device=device), normal(*shape, device=device))


@every_device
def test_coincident_points(parts, device):
    points = torch.randn(4, K, dtype=torch.float64, device=device)
    x = torch.cat([points, points[:1]]).requires_grad_()
    z = torch.cat([points[:2], points[1:2]]).requires_grad_()
    coef = normal(OUTPUTS, 3, device=device)
    check(lambda x, z, a: mc.kernel_agop(GAUSS, x, z, a, h=2.0), x, z, coef)
    coef = normal(OUTPUTS, 5, device=device)
    check(lambda x, a: mc.kernel_agop(GAUSS, x, None, a, h=2.0), x, coef)


@every_device
def test_batches(parts, device):
    x, z = normal(2, 1, M, K, device=device), normal(3, N, K, device=device)
    h, coef = positive(2, 1, device=device), normal(3, OUTPUTS, N, device=device)
    check(lambda x, z, h, a: mc.kernel_agop(GAUSS, x, z, a, h=h), x, z, h, coef)


def plain(x, z, coef, h):
    """The product in PyTorch, from the gradients as a whole."""
    g = mc.kernel_gradient(GAUSS, x, z, coef, h=h).flatten(-3, -2)
    return g.mT @ g


@every_device
def test_against_the_gradients(parts, device):
    x, z, coef = (normal(*shape, device=device) for shape in ((M, K), (N, K), (OUTPUTS, N)))
    given = x, z, coef, positive(device=device)
    results = [f(*given) for f in (lambda x, z, a, h: mc.kernel_agop(GAUSS, x, z, a, h=h), plain)]
    cotangent = torch.randn(K, K, dtype=torch.float64, device=device)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(r, given, cotangent) for r in results))


@pytest.mark.parametrize("lacking", ["x", "z", "coef"])
def test_gradients_that_nobody_wants(parts, lacking):
    given = {"x": normal(M, K), "z": normal(N, K), "coef": normal(OUTPUTS, N)}
    wanted = [t for name, t in given.items() if name != lacking]
    every = torch.autograd.grad(mc.kernel_agop(GAUSS, **given, h=2.0).sum(), wanted)
    given[lacking] = given[lacking].detach()
    torch.testing.assert_close(
        torch.autograd.grad(mc.kernel_agop(GAUSS, **given, h=2.0).sum(), wanted), every
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_points(parts, dtype):
    """Sums over parts lose nothing: a gradient is rounded once."""
    narrow = [torch.randn(s).to(dtype).requires_grad_() for s in ((40, K), (N, K), (OUTPUTS, N))]
    wide = [t.detach().double().requires_grad_() for t in narrow]
    found, exact = (
        torch.autograd.grad(mc.kernel_agop(GAUSS, *each, h=2.0).sum(), each)
        for each in (narrow, wide)
    )
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == dtype
        assert (one - other).norm() <= max(torch.finfo(dtype).eps, 2e-6) * other.norm()


@every_device
@pytest.mark.parametrize(("m", "n", "outputs"), [(0, 3, 2), (3, 0, 2), (3, 3, 0)])
def test_empty(m, n, outputs, device):
    given = [normal(*s, device=device) for s in ((m, K), (n, K), (outputs, n))]
    result = mc.kernel_agop(GAUSS, *given, h=2.0)
    torch.testing.assert_close(result, torch.zeros_like(result))
    for gradient, tensor in zip(torch.autograd.grad(result.sum(), given), given, strict=True):
        torch.testing.assert_close(gradient, torch.zeros_like(tensor))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(parts, dynamic):
    def call(x, z, coef):
        return mc.kernel_agop(GAUSS, x, z, coef, h=2.0)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (M, 2 * M):
        given = normal(rows, K), normal(N, K), normal(OUTPUTS, N)
        results, expected = compiled(*given), call(*given)
        torch.testing.assert_close(results, expected)
        torch.testing.assert_close(
            torch.autograd.grad(results.sum(), given), torch.autograd.grad(expected.sum(), given)
        )


def test_func(parts):
    z, coef = normal(N, K).detach(), normal(OUTPUTS, N).detach()

    def loss(x):
        return mc.kernel_agop(GAUSS, x, z, coef, h=2.0).sin().sum()

    x = normal(2, M, K)
    slopes = torch.autograd.grad(loss(x[0]) + loss(x[1]), x)[0]
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(x.detach()), slopes)
    hessian = torch.autograd.functional.hessian(loss, x[0].detach())
    torch.testing.assert_close(torch.func.hessian(loss)(x[0].detach()), hessian)


# 32 outputs of 100000 x 16 gradients are 205 MB; the points are 6.4.
LARGE = """
    import resource, torch, mercer as mc
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    def call(m, n):
        given = [torch.randn(s, requires_grad=True) for s in ((m, 16), (n, 16), (32, n))]
        value = mc.kernel_agop("exp(-sum(square(x-z))/99)", *given)
        torch.autograd.grad(value.square().sum(), given)
    call(2, 2)
    from mercer._torch import agop, evaluate
    agop._BYTES, evaluate._PAIRS["cpu"] = 1 << 22, 1 << 14
    before = peak()
    call(100000, 1)
    print(peak() - before)
"""


def test_memory():
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LARGE)], capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < 0.15


@pytest.mark.parametrize(("m", "n"), [(90, 20), (20, 90), (90, 0)])
def test_nothing_is_made_for_all_rows_and_outputs(m, n, monkeypatch):
    mc.pairwise("sum(x*z)", normal(2, 2))  # registers the operators
    from mercer._torch import agop, table

    most = 30 * K
    monkeypatch.setattr(agop, "_BYTES", 8 * most)
    sizes = []
    for name in ("field", "matmul"):

        def watched(*inputs, function=table.FUNCTIONS[name]):
            result = function(*inputs)
            sizes.append(result.numel())
            return result

        monkeypatch.setitem(table.FUNCTIONS, name, watched)
    x, z, coef = normal(m, K), normal(n, K) if n else None, normal(6, n or m)
    given = [t for t in (x, z, coef) if t is not None]
    torch.autograd.grad(mc.kernel_agop(GAUSS, x, z, coef, h=2.0).sum(), given)
    assert len(sizes) > 6
    assert max(sizes) <= max(most, n * K, 0 if n else m * K)
