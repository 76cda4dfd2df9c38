"""PyTorch: backwards of formulas linear in x and in z (_torch/linear_form.py)."""

from __future__ import annotations

import mercer as mc
import pytest
from mercer import _mercer

torch = pytest.importorskip("torch")

from torch_table import every_device, normal, positive  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# scale, offset, whether row and col are factors, the weight
FORMS = {
    "sum(x*z)": (1, 0, False, False, ""),
    "1 - col*(row*sum(x*z))": (-1, 1, True, True, ""),
    "-2*row*sum(z*(x*w))": (-2, 0, True, False, "row"),
    "2*sum(exp(-w)*x*z)*col/4 - 3": (0.5, -3, False, True, "exp(-row)"),
}
OTHERS = [
    "sum(x*z)^2", "row*row*sum(x*z)", "sum(x*z)*h", "sum(x)*sum(z)", "sum(x*z*z)", "sum(x*z)*i",
    "sum((x-z)^2)", "row*(sum(x*z) - 1)", "sum(w*x*w*z)*sum(x*z)", "max(x*z)", "sum(x*abs(z))",
]  # fmt: skip


@pytest.mark.parametrize("f", FORMS)
def test_forms(f):
    assert _mercer.linear_form(mc.parse(f))[:5] == FORMS[f]


@pytest.mark.parametrize("f", OTHERS)
def test_other_formulas(f):
    assert _mercer.linear_form(mc.parse(f)) is None


@pytest.fixture
def forms(monkeypatch):
    """How many passes were products."""
    mc.pairwise("sum(x*z)", normal(2, 2))  # registers the operators
    from mercer._torch import linear_form, passes

    found = []
    whole = linear_form.passed
    monkeypatch.setattr(
        linear_form, "passed", lambda *a, **how: found.append(whole(*a, **how)) or found[-1]
    )
    monkeypatch.setattr(passes, "PASSES", 2)
    return found


def _given(f, m, n, features, device, dtype=torch.float64):
    read = _mercer.leaves(mc.parse(f))
    own = {"row": (m,), "col": (n,), "w": (features,)}
    made = {k: positive(*s, device=device) for k, s in own.items() if k in read}
    return {k: t.detach().to(dtype).requires_grad_() for k, t in made.items()}


@every_device
@pytest.mark.parametrize("features", [4, 40])
@pytest.mark.parametrize("sides", ["two", "one", "batched"])
@pytest.mark.parametrize("f", FORMS)
def test_gradients(f, sides, features, device, forms):
    """Gradients are those of a recorded backward."""
    lead = (2,) if sides == "batched" else ()
    x = normal(*lead, 13, features, device=device).requires_grad_()
    z = None if sides == "one" else normal(9, features, device=device).requires_grad_()
    n = 13 if z is None else 9
    v = normal(n, 3, device=device)
    given = _given(f, 13, n, features, device)
    for verb in ("product", "pairwise", "sum"):
        inputs = [t for t in (x, z, *given.values()) if t is not None]
        inputs += [v] if verb == "product" else []

        def call(verb=verb):
            if verb == "product":
                return mc.kernel_product(f, x, z, v, **given)
            if verb == "pairwise":
                return mc.pairwise(f, x, z, **given)
            return mc.kernel_reduce(f, x, z, "sum", **given)

        cotangent = torch.randn_like(call())
        expected = torch.autograd.grad(call(), inputs, cotangent, create_graph=True)
        assert not forms
        for some in filter(None, (inputs, inputs[:1], inputs[1:])):
            found = torch.autograd.grad(call(), some, cotangent)
            assert all(form is not None for form in forms)
            assert forms or not (some[0] is x or verb == "product")
            forms.clear()
            for one, tensor in zip(found, some, strict=True):
                other = expected[[t is tensor for t in inputs].index(True)].detach()
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@every_device
@pytest.mark.parametrize("features", [7, 40, 330])
@pytest.mark.parametrize("layout", ["rows", "odd rows", "transposed", "one value"])
@pytest.mark.parametrize("f", list(FORMS)[:2])
def test_cotangents_in_float32(f, layout, features, device, forms):
    """An error is that of the sums of |C| |z|, of all layouts of C."""
    m, n = 1100, 1204
    x, z = (normal(k, features, device=device).float().requires_grad_() for k in (m, n))
    given = _given(f, m, n, features, device, torch.float32)
    cotangent = {
        "rows": lambda: torch.randn(m, n, device=device),
        "odd rows": lambda: torch.randn(m, n + 1, device=device)[:, 1:],
        "transposed": lambda: torch.randn(n, m, device=device).mT,
        "one value": lambda: torch.ones((), device=device).expand(m, n),
    }[layout]()
    inputs = [x, z, *given.values()]
    found = torch.autograd.grad(mc.pairwise(f, x, z, **given), inputs, cotangent)
    assert all(form is not None for form in forms)
    assert forms
    exact = {k: t.detach().double() for k, t in given.items()}
    scale, _, of_row, of_col = FORMS[f][:4]
    c = cotangent.double() * scale
    rows = exact["row"][:, None] if of_row else 1.0
    columns = exact["col"] if of_col else 1.0
    far, near = z.detach().double(), x.detach().double()
    field = (c * columns) @ far
    sizes = (c * columns).abs() @ far.abs()
    checks = [(found[0], rows * field, rows * sizes)]
    of_z = ((c * rows).mT @ near, (c * rows).abs().mT @ near.abs())
    checks.append((found[1], *(p * (columns[:, None] if of_col else 1.0) for p in of_z)))
    if of_row:
        checks.append((found[2], (near * field).sum(-1), (near.abs() * sizes).sum(-1)))
    for one, other, size in checks:
        assert ((one - other).abs() <= 8 * 2**-24 * size).all()


@every_device
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sides", ["two", "one"])
def test_narrow_points(sides, dtype, device, forms):
    """Computed in float32, of points as they were rounded."""
    x = torch.randn(30, 20, device=device, dtype=dtype, requires_grad=True)
    z = torch.randn(25, 20, device=device, dtype=dtype, requires_grad=True)
    points = [x, z] if sides == "two" else [x]
    wide = [t.detach().double().requires_grad_() for t in points]
    found = torch.autograd.grad(mc.pairwise("2*sum(x*z)", *points).sum(), points)
    assert forms
    expected = torch.autograd.grad(mc.pairwise("2*sum(x*z)", *wide).sum(), wide)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert (one.double() - other).norm() <= 4 * torch.finfo(dtype).eps * other.norm()


@every_device
@pytest.mark.parametrize("weight", ["2/w", "3/(1+w)", "0.5/w^2", "exp(-w)"])
def test_factors_of_weights(weight, device, forms):
    """Constants in them are not lost where a pass leaves the factor out."""
    f = f"sum(({weight})*x*z)"
    x, z = (normal(n, 20, device=device).requires_grad_() for n in (13, 9))
    inputs = [x, z, positive(20, device=device)]
    out = mc.pairwise(f, x, z, w=inputs[2])
    found = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    expected = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-9)


@every_device
def test_norms(device, forms):
    """A cosine is linear in other points."""
    f = "sum(x*z)/sqrt(sum(x^2)*sum(z^2))"
    x = normal(700, 80, device=device).requires_grad_()
    z, v = normal(500, 80, device=device), normal(500, 4, device=device)
    out = mc.kernel_product(f, x, z, v)
    cotangent = torch.randn_like(out)
    found = torch.autograd.grad(out, [x, z, v], cotangent, retain_graph=True)
    if device == "cpu":
        assert len(forms) == 2  # of fewer pairs the GPU takes other ways
    cosine = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(z).mT
    expected = torch.autograd.grad(cosine @ v, [x, z, v], cotangent)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_compiled(forms):
    inputs = [normal(20, 6).requires_grad_(), normal(15, 6), normal(15, 3)]

    def total(x, z, v):
        return mc.kernel_product("2*sum(x*z) + 1", x, z, v).sin().sum()

    expected = torch.autograd.grad(total(*inputs), inputs)
    assert len(forms) == 2
    found = torch.autograd.grad(torch.compile(total, fullgraph=True)(*inputs), inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
