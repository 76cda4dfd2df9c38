"""PyTorch: the operators under opcheck, torch.compile and torch.func, and what they cost."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import mercer as mc
import numpy as np
import pytest
from conftest import rest_long

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad, gradcheck  # noqa: E402
from torch_table import GAUSS, VERBS, K, M, N, every_device, normal, operands, positive  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def points_of(device, z=True, f="exp(-sum(square(x-z))/h*b)", directions=(), along=""):
    x, h = normal(M, K, device=device), positive(device=device)
    columns = normal(N, K, device=device) if z else None
    return (
        f, x, columns, None, None, None, [h], "h b", [2.0], list(directions), along, 0, 0,
    )  # fmt: skip


OPERATORS = {
    "pairwise": lambda d: points_of(d),
    "pairwise of the same points": lambda d: points_of(d, z=False),
    "pairwise in a direction": lambda d: points_of(
        d, directions=[normal(M, K, device=d)], along="x"
    ),
    "product": lambda d: (*points_of(d), normal(N, 2, device=d)),
    "field": lambda d: (*points_of(d), "x", normal(M, N, device=d), None, None),
    "field of z": lambda d: (
        *points_of(d), "z", None, normal(M, 2, device=d), normal(N, 2, device=d)
    ),
    "agop": lambda d: (*points_of(d), normal(2, N, device=d)),
    "agop of the same points": lambda d: (*points_of(d, z=False), normal(2, M, device=d)),
    "matmul": lambda d: (normal(3, M, K, device=d), normal(K, N, device=d)),
    "reduce": lambda d: (*points_of(d), "logsumexp"),
    "reduce to indices": lambda d: (*points_of(d), "argmin"),
    "knn": lambda d: (*points_of(d), 2),
}  # fmt: skip


def inputs_of_a_pass(device, *others):
    mc.pairwise("sum(x*z)", normal(2, 2))  # registers the operators
    pairs = list(points_of(device, f="exp(-sum(w*square(x-z))/h*b)*row"))
    pairs[3], pairs[5] = normal(M, device=device), positive(K, device=device)
    inputs = [t.detach() if isinstance(t, torch.Tensor) else t for t in [*pairs, *others]]
    inputs[6] = [t.detach() for t in inputs[6]]
    return tuple(inputs)


@every_device
@pytest.mark.parametrize("without_weight", [False, True])
@pytest.mark.parametrize(("by", "with_product"), [("", False), ("p:h row", True), ("p:b", False)])
def test_opcheck_of_a_pass(by, with_product, without_weight, device):
    factors = normal(M, 2, device=device), normal(N, 2, device=device)
    inputs = inputs_of_a_pass(device, *factors, by, with_product, without_weight)
    torch.library.opcheck(torch.ops.mercer.product_backward.default, inputs)


@every_device
@pytest.mark.parametrize("without_weight", [False, True])
@pytest.mark.parametrize("by", ["", "p:h row p:b"])
def test_opcheck_of_a_pass_of_a_matrix(by, without_weight, device):
    inputs = inputs_of_a_pass(device, normal(M, N, device=device), by, without_weight)
    torch.library.opcheck(torch.ops.mercer.pairwise_backward.default, inputs)


@every_device
@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name, device):
    mc.pairwise("sum(x*z)", normal(2, 2))  # registers them
    operator = getattr(torch.ops.mercer, name.split()[0]).default
    torch.library.opcheck(operator, OPERATORS[name](device))


COMPILED = "exp(-sum(abs(x-z)^p)/h)"
# Before PyTorch 2.13 an object such as an Expr is no constant to torch.compile.
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):
    COMPILED = mc.kernel(COMPILED)
TRACED = {
    "pairwise": lambda x, z: mc.pairwise(COMPILED, x, z, p=1.3, h=2.0).relu(),
    "a function": lambda x, z: mc.pairwise(lambda x, z: mc.sum(abs(x - z)), x, z),
    "a tensor as parameter": lambda x, z: mc.pairwise(GAUSS, x, z, h=x.mean()),
    "cdist": lambda x, z: mc.cdist(x, z, 1.5),
    "a metric": lambda x, z: mc.cdist(x, None, metric="minkowski", p=3),
    "kernel_matrix": lambda x, z: mc.kernel_matrix("gauss", x, bandwidth=2.0),
    "kernel_product": lambda x, z: mc.kernel_product(COMPILED, x, z, z, p=1.3, h=2.0),
    "kernel_reduce": lambda x, z: mc.kernel_reduce("l1", x, z, reduce="logsumexp"),
    "knn": lambda x, z: mc.knn("l1", x, z, k=2)[0],
    "kernel_gradient": lambda x, z: mc.kernel_gradient(COMPILED, x, z, z.T, p=1.3, h=2.0),
    "kernel_agop": lambda x, z: mc.kernel_agop(COMPILED, x, z, z.T, p=1.3, h=2.0),
    "kernel_agop of a vector": lambda x, z: mc.kernel_agop(GAUSS, x, None, x[:, 0], h=2.0),
    "gradient_field": lambda x, z: mc.gradient_field("x-z", x, z, x @ z.T, z.T),
}


@every_device
@pytest.mark.parametrize(
    "name", rest_long(TRACED, "pairwise", "a function", "a metric", "knn", "gradient_field")
)
def test_compile(name, device):
    x, z = normal(M, K, device=device), normal(N, K, device=device)
    torch._dynamo.reset()
    compiled = torch.compile(TRACED[name], fullgraph=True, backend="aot_eager")
    results, expected = compiled(x, z), TRACED[name](x, z)
    torch.testing.assert_close(results, expected)
    wanted = torch.autograd.grad(expected.sum(), (x, z), allow_unused=True)
    torch.testing.assert_close(
        torch.autograd.grad(results.sum(), (x, z), allow_unused=True), wanted
    )


def test_compile_for_all_sizes():
    compiled = torch.compile(
        lambda x, h: mc.pairwise(COMPILED, x, p=1.3, h=h),
        fullgraph=True, backend="aot_eager", dynamic=True,
    )  # fmt: skip
    for rows, h in ((5, 2.5), (9, 3.5), (7, 4.5)):
        x = torch.randn(rows, K)
        torch.testing.assert_close(compiled(x, h), mc.pairwise(COMPILED, x, p=1.3, h=h))


@pytest.mark.parametrize("verb", [v for v in VERBS if v != "kernel_matrix"])
def test_vmap(verb):
    function, shapes = VERBS[verb]
    given = [*operands(), *(normal(*shape) for shape in shapes)]
    for mapped in range(len(given)):
        stacked = torch.stack([given[mapped].detach() * (1 + 0.1 * b) for b in range(3)])
        dims = tuple(0 if i == mapped else None for i in range(len(given)))
        rest = [t.detach() for t in given]
        rest[mapped] = stacked
        result = torch.vmap(function, in_dims=dims)(*rest)
        for b in range(3):
            rest[mapped] = stacked[b]
            torch.testing.assert_close(result[b], function(*rest))


def test_func():
    x, z = normal(3, M, K).detach(), normal(N, K).detach()

    def loss(x):
        return mc.pairwise(GAUSS, x, z, h=2.0).sin().sum()

    one = x[0].clone().requires_grad_()
    slope = torch.autograd.grad(loss(one), one)[0]
    torch.testing.assert_close(torch.func.grad(loss)(x[0]), slope)
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(x)[0], slope)
    hessian = torch.autograd.functional.hessian(loss, x[0])
    torch.testing.assert_close(torch.func.hessian(loss)(x[0]), hessian)
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacfwd(loss))(x[0]), hessian)


@pytest.mark.parametrize("verb", [
    "pairwise", "kernel_product", "logsumexp", "max", "knn", "kernel_gradient", "kernel_agop",
])  # fmt: skip
@every_device
def test_batched_gradients(verb, device):
    function, shapes = VERBS[verb]
    arguments = *operands(device), *(normal(*shape, device=device) for shape in shapes)
    assert gradcheck(function, arguments, fast_mode=True, check_batched_grad=True)


def test_forward_mode_is_not_lost():
    x = torch.randn(M, K)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        assert forward_ad.unpack_dual(mc.cdist(dual, x)).tangent is not None


def test_tensors_without_memory():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert mc.cdist(torch.randn(7, K), torch.randn(2, K)).shape == (7, 2)


# ---- What it costs. -----------------------------------------------------------------------------

LARGE = """
    import resource, torch, mercer as mc
    x = torch.randn(10000, 128, requires_grad=True)
    z, v = torch.randn(10000, 128), torch.randn(10000, 1)
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    torch.autograd.grad(mc.cdist(x[:2], z[:2], 1).sum(), x)
    before = peak()
    torch.autograd.grad(mc.kernel_product("exp(-sum(abs(x-z))/9)", x, z, v).sum(), x)
    product = peak() - before
    distances = mc.cdist(x, z, 1)
    torch.autograd.grad(distances, x, torch.ones(1).expand_as(distances))
    print(product, peak() - before)
"""


def test_memory():
    """10000 x 10000 x 128 values would be 51 GB; the matrix is 0.4 GB."""
    code = textwrap.dedent(LARGE)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    product, matrix = map(float, result.stdout.split())
    assert product < 0.15
    assert matrix < 0.7


def test_torch_is_imported_by_its_user_only():
    code = "import sys, mercer; mercer.cdist; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_calls_that_nobody_follows_stay_as_they_are():
    code = "import sys, torch, mercer; x = torch.ones(3, 2); mercer.cdist(x, x); "
    code += "assert 'mercer._torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    x = torch.ones(3, 2, requires_grad=True)
    with torch.no_grad():
        assert mc.cdist(x, x).grad_fn is None


def test_workspace_size_reads_no_gradient():
    assert mc.workspace_size("cdist", normal(M, K), None) == 0


def test_arrays_of_numpy_as_parameters():
    x = normal(M, K)
    result = mc.pairwise(GAUSS, x, h=np.array([1.0, 2.0]))
    torch.testing.assert_close(result, mc.pairwise(GAUSS, x, h=[1.0, 2.0]))
    assert result.shape == (2, M, M)
    with pytest.raises(ValueError, match="no parameter"):
        mc.pairwise(GAUSS, x, h=2.0, bandwith=1.0)
    with pytest.raises(TypeError, match="the parameter h must be a number"):
        mc.pairwise(GAUSS, x, h="2")
