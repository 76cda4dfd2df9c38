"""PyTorch: products of matrices within the rules are float32's, whatever PyTorch's own are."""

from __future__ import annotations

import mercer as mc
import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad, gradcheck, gradgradcheck  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from torch_table import VERBS, K, M, N, every_device, normal, operands, positive  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def products():
    mc.pairwise("sum(x*z)", normal(2, 2))  # registers the operators
    from mercer._torch import products

    return products


@pytest.fixture(params=["highest", "high", "medium"])
def precision(request):
    """PyTorch's products of float32 may be those of TF32, or of bfloat16."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


SHAPES = [
    ((7, 5), (5, 3)), ((2, 1, 7, 5), (3, 5, 3)), ((3, 7, 5), (5, 3)), ((0, 5), (5, 3)),
    ((7, 0), (0, 3)), ((0, 7, 5000), (5000, 3)), ((300, 20), (20, 500)),
    ((8, 9000), (9000, 3)), ((2, 3, 4096), (4096, 1)), ((1, 300000), (300000, 2)),
]  # fmt: skip


@every_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("shapes", SHAPES)
def test_values(shapes, dtype, device, products, precision):
    a, b = (torch.randn(shape, device=device).to(dtype) for shape in shapes)
    check_values(products.matmul(a, b), a, b)
    check_values(products.matmul(a.mT.contiguous().mT, -b), a, -b)


def check_values(result, a, b):
    exact = a.double() @ b.double()
    scale = a.double().norm(dim=-1)[..., :, None] * b.double().norm(dim=-2)[..., None, :]
    assert result.shape == exact.shape
    assert result.dtype == (torch.float64 if a.dtype == torch.float64 else torch.float32)
    bound = 1e-14 if a.dtype == torch.float64 else 1e-6
    assert ((result - exact).abs() <= bound * scale + 1e-30).all()


def test_autocast(products):
    a, b = torch.randn(30, 40), torch.randn(40, 50)
    with torch.autocast("cpu", torch.bfloat16):
        check_values(products.matmul(a, b), a, b)


def test_long_sums_in_pieces(products, monkeypatch):
    monkeypatch.setattr(products, "_is_exact", lambda device: False)
    a, b = torch.randn(3, 50000), torch.randn(50000, 4)
    monkeypatch.setattr(products, "_BYTES", 1 << 20)
    check_values(products.matmul(a, b), a, b)


def test_long_sums_of_many_values_on_cuda(cuda, products):
    a, b = (torch.randn(shape, device="cuda") for shape in ((300, 140000), (140000, 300)))
    check_values(products.matmul(a, b), a, b)


@every_device
def test_derivatives(products, device):
    for shapes in SHAPES[:5]:
        a, b = (normal(*shape, device=device) for shape in shapes)
        assert gradcheck(
            products.matmul, (a, b), fast_mode=True, check_forward_ad=True, check_batched_grad=True
        )
        assert gradgradcheck(products.matmul, (a, b), fast_mode=True)


@pytest.mark.parametrize("mapped", [(0, None), (None, 1), (2, 0)])
def test_vmap(mapped, products):
    sides = []
    for shape, axis in zip(((2, 4, 5), (5, 3)), mapped, strict=True):
        side = torch.randn(6, *shape)
        sides.append(side[0] if axis is None else side.movedim(0, axis))
    result = torch.vmap(products.matmul, in_dims=mapped)(*sides)
    torch.testing.assert_close(result, torch.vmap(torch.matmul, in_dims=mapped)(*sides))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_factors_of_16_bits(dtype):
    """Long sums of the gradients of factors are rounded once."""
    given = [torch.randn(s).to(dtype).requires_grad_() for s in ((3000, 12), (3, 2), (4, 4))]
    wide = [t.detach().double().requires_grad_() for t in given]
    found, exact = (
        torch.autograd.grad(mc.kron.matmul(x, factors).sum(), factors)
        for x, *factors in (given, wide)
    )
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == dtype
        assert (one - other).norm() < 4 * torch.finfo(dtype).eps * other.norm()


@pytest.fixture
def refused(monkeypatch):
    """No products of matrices in float32 by PyTorch itself."""

    def refuse(home, name):
        product = getattr(home, name)

        def watched(*operands, **options):
            tensors = [t for t in tree_leaves(operands) if isinstance(t, torch.Tensor)]
            assert all(t.dtype == torch.float64 for t in tensors), name
            return product(*operands, **options)

        monkeypatch.setattr(home, name, watched)

    for name in ("matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "addmv", "dot", "inner"):
        refuse(torch, name)
        refuse(torch.Tensor, name)
    for name in ("einsum", "tensordot", "chain_matmul", "cdist"):
        refuse(torch, name)
    refuse(torch.Tensor, "__matmul__")


def derivatives(function, tensors):
    """A value, its gradients, theirs, and a tangent."""
    value = function(*tensors)
    first = torch.autograd.grad(value.square().sum(), tensors, create_graph=True)
    second = torch.autograd.grad(
        sum(g.square().sum() for g in first), tensors, materialize_grads=True
    )
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t.detach(), torch.ones_like(t)) for t in tensors]
        tangent = forward_ad.unpack_dual(function(*duals)).tangent
    return [value, *first, *second, tangent]


def field(*tensors):
    """The operator with every kind of weights."""
    from mercer._torch import autograd

    x, z, *weights = tensors
    formula = "sum(x*z)^2", x, z, None, None, None, [], "", [], [], "", 0, 0
    return autograd.call("field", *formula, "x", *weights)


OF_ALL = [t.shape for t in operands()]
CALLS = {name: (function, [*OF_ALL, *shapes]) for name, (function, shapes) in VERBS.items()} | {
    "gradient_field": (
        lambda x, z, a, coef: mc.gradient_field("x*z*z", x, z, a, coef),
        [(M, K), (N, K), (M, N), (2, N)],
    ),
    "field": (field, [(M, K), (N, K), (M, N), (M, 2), (N, 2)]),
    "kron": (lambda x, f, g: mc.kron.matmul(x, [f, g]), [(3, 20), (4, 2), (5, 6)]),
    "kron from the left": (
        lambda x, f, g: mc.kron.kron_matmul([f, g], x), [(12, 3), (2, 4), (6, 3)]
    ),
}  # fmt: skip


@every_device
@pytest.mark.parametrize("call", CALLS)
def test_no_product_is_left_to_torch(call, device, products, refused, monkeypatch):
    monkeypatch.setattr(products, "_is_exact", lambda device: False)
    function, shapes = CALLS[call]
    tensors = [(torch.rand(shape, device=device) + 0.5).requires_grad_() for shape in shapes]
    derivatives(function, tensors)


@every_device
@pytest.mark.parametrize("call", CALLS)
def test_derivatives_in_float32(call, device, precision, products):
    function, shapes = CALLS[call]
    larger = {M: 200, N: 150}
    if "kron" not in call:
        shapes = [tuple(larger.get(size, size) for size in shape) for shape in shapes]
    tensors = [(torch.rand(shape) + 0.5).to(device) for shape in shapes]
    found = derivatives(function, [t.clone().requires_grad_() for t in tensors])
    exact = derivatives(function, [t.double().requires_grad_() for t in tensors])
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 1e-5 * other.norm()


# ---- The backward of kernel_product in passes over the pairs. ------------------------------------

PASSES = {
    "two sides": ("exp(-sum((x-z)^2)/h)*row*b*col", True, 2),
    "one side": ("exp(-sum((x-z)^2)/h)*b", False, 1),
    "one side twice": ("exp(-sum((x-z)^2)/h)*sum(x)*b", False, 2),
}


@every_device
@pytest.mark.parametrize("features", [3, 20])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("name", PASSES)
def test_backward_in_passes(name, columns, features, device, products, monkeypatch):
    """Two passes, one of points that are the same on both sides; what they give is what the rules
    give that are recorded."""
    from mercer._torch import passes, table

    f, has_z, count = PASSES[name]
    x = normal(31, features, device=device)
    z, v = (normal(17, features, device=device), 17) if has_z else (None, 31)
    v = normal(v, columns, device=device)
    h, b = (torch.tensor(value, device=device).double().requires_grad_() for value in (9.0, 0.5))
    given = {"h": h, "b": b}
    if has_z:
        given |= {"row": normal(31, device=device), "col": normal(17, device=device)}
    inputs = [t for t in (x, z, v, *given.values()) if t is not None]
    cotangent = torch.randn(31, columns, device=device, dtype=torch.float64)
    calls = []
    whole = table.FUNCTIONS["product_backward"]
    monkeypatch.setitem(
        table.FUNCTIONS, "product_backward", lambda *a: calls.append(a) or whole(*a)
    )
    monkeypatch.setattr(passes, "PASSES", 2)
    out = mc.kernel_product(f, x, z, v, **given)
    found = torch.autograd.grad(out, inputs, cotangent, retain_graph=True)
    assert len(calls) == count
    expected = torch.autograd.grad(out, inputs, cotangent, create_graph=True)
    assert len(calls) == count
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
    # Some of them.
    monkeypatch.setattr(passes, "PASSES", 2)
    for some in ([x], inputs[1:], [x, h], [inputs[1], b]):
        out = mc.kernel_product(f, x, z, v, **given)
        found = torch.autograd.grad(out, some, cotangent)
        for one, tensor in zip(found, some, strict=True):
            other = expected[[t is tensor for t in inputs].index(True)]
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@every_device
@pytest.mark.parametrize("features", [3, 20, 170])
@pytest.mark.parametrize("layout", ["rows", "columns", "one value"])
@pytest.mark.parametrize("name", PASSES)
def test_backward_of_pairwise_in_passes(name, layout, features, device, products, monkeypatch):
    """A pass for each side."""
    from mercer._torch import passes, table

    f, has_z, _ = PASSES[name]
    x, z = normal(31, features, device=device), normal(17, features, device=device)
    h, b = (torch.tensor(value, device=device).double().requires_grad_() for value in (9.0, 0.5))
    given = {"h": h, "b": b}
    if has_z:
        given |= {"row": normal(31, device=device), "col": normal(17, device=device)}
    inputs = [x, *([z] if has_z else []), *given.values()]
    calls = []
    whole = table.FUNCTIONS["pairwise_backward"]
    monkeypatch.setitem(
        table.FUNCTIONS, "pairwise_backward", lambda *a: calls.append(a) or whole(*a)
    )
    monkeypatch.setattr(passes, "PASSES", 2)
    out = mc.pairwise(f, x, z if has_z else None, **given)
    cotangent = {
        "rows": torch.randn_like(out),
        "columns": torch.randn_like(out.mT).mT,
        "one value": out.new_tensor(0.7).expand(out.shape),
    }[layout].detach()
    found = torch.autograd.grad(out, inputs, cotangent, retain_graph=True)
    assert len(calls) == 2
    expected = torch.autograd.grad(out, inputs, cotangent, create_graph=True)
    assert len(calls) == 2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
    for some in ([x], inputs[1:], [x, h], [b]):
        out = mc.pairwise(f, x, z if has_z else None, **given)
        for one, tensor in zip(torch.autograd.grad(out, some, cotangent), some, strict=True):
            other = expected[[t is tensor for t in inputs].index(True)]
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@every_device
@pytest.mark.parametrize("name", ["by", "product", "weights", "without_weight", "by_weights"])
def test_parameters_of_any_name(name, device):
    x, z, v = (normal(*shape, device=device) for shape in ((20, 5), (30, 5), (30, 2)))
    given = {name: positive(device=device)}
    f = f"exp(-{name}*sum((x-z)^2))"
    for out in (mc.kernel_product(f, x, z, v, **given), mc.pairwise(f, x, z, **given)):
        inputs = [x, z, *given.values()]
        found = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
        expected = torch.autograd.grad(out.sum(), inputs, create_graph=True)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-10)


@every_device
def test_no_columns_and_no_features(device):
    x, z, v, w = (normal(*shape, device=device) for shape in ((20, 5), (30, 5), (30, 0), (5,)))
    out = mc.kernel_product("exp(-sum(w*(x-z)^2))", x, z, v, w=w)
    for graph in (False, True):
        found = torch.autograd.grad(
            out, [x, z, v, w], torch.ones_like(out), create_graph=graph, retain_graph=True
        )
        assert all((t == 0).all() for t in found)
    x, w = normal(2, 3, 0, device=device), normal(0, device=device)
    out = mc.pairwise("exp(-sum(w^2*(x-z)^2))", x, w=w)
    found = torch.autograd.grad(out.sum(), [x, w])
    assert [t.shape for t in found] == [x.shape, w.shape]
    x, z, v, h = (normal(*shape, device=device) for shape in ((4, 0), (3, 0), (3, 2), ()))
    out = mc.kernel_product("h*exp(-sum((x-z)^2))", x, z, v, h=h)
    by_v, by_h = torch.autograd.grad(out.sum(), [x, z, v, h])[2:]
    torch.testing.assert_close(by_v, (4 * h).expand(3, 2).detach())
    torch.testing.assert_close(by_h, 4 * v.sum().detach())
