"""PyTorch: backwards of formulas of norms and means go by other points (_torch/point_form.py)."""

from __future__ import annotations

import mercer as mc
import pytest
from mercer import _mercer

torch = pytest.importorskip("torch")

from torch_table import every_device, normal, positive  # noqa: E402

NORMS = "nx = sqrt(sum(x*x)); nz = sqrt(sum(z*z)); "
FORMULAS = {
    "cosine": ("sum(x*z)/sqrt(sum(x*x)*sum(z*z))", True),
    "unit points": (NORMS + "exp(-sum(square(x/nx - z/nz))/h)", True),
    "one side": ("sum(x*z)*sum(x)/h", False),
    "centred": ("cx = x - mean(x); exp(-sum(square(cx - z))/h)", False),
    "correlation": (str(mc.zoo.correlation()), True),
    "arc-cosine": (str(mc.zoo.arc_cosine()), True),
    "neural tangent": (str(mc.zoo.ntk(depth=3)), True),
    "user's row": ("row*sum(x*z)/sum(z*z)*b", False),
    "weighted cosine": ("sum(w*x*z)/sqrt(sum(w*x*x)*sum(w*z*z))", True),
    "weighted scale": ("exp(-sum(w*(x/sqrt(sum(w*x*x) + b) - z)^2)/h)", False),
    "weighted correlation": (
        "cx = x - mean(w*x)/mean(w); cz = z - mean(w*z)/mean(w); "
        "sum(w*cx*cz)/sqrt((sum(w*cx^2) + b)*(sum(w*cz^2) + b))",
        True,
    ),
    "parameter of a norm": ("h*sum(x*z)/(sum(abs(z)^1.5) + b*h)", False),
}


@pytest.fixture
def modules(monkeypatch):
    mc.pairwise("sum(x*z)", normal(2, 2))  # registers the operators
    from mercer._torch import passes, point_form

    monkeypatch.setattr(passes, "POINTS", 2)
    return point_form, passes


def _gradients(call, inputs, cotangent, is_recorded):
    return torch.autograd.grad(call(), inputs, cotangent, create_graph=is_recorded)


@every_device
@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("sides", ["two", "one", "batched"])
@pytest.mark.parametrize("name", FORMULAS)
def test_gradients(name, sides, passes, device, modules, monkeypatch):
    """Gradients by the other points are those of the formula, which a recorded backward takes."""
    point_form, planned = modules
    f, is_symmetric = FORMULAS[name]
    assert point_form._form(f) is not None
    assert mc.parse(f).symmetric == is_symmetric
    monkeypatch.setattr(planned, "PASSES", 2 if passes else 1)
    lead = (2,) if sides == "batched" else ()
    x = normal(*lead, 13, 5, device=device)
    z = None if sides == "one" else normal(9, 5, device=device)
    v = normal(13 if z is None else 9, 3, device=device)
    given = {k: torch.tensor(t, device=device).double().requires_grad_()
             for k, t in (("h", 3.0), ("b", 0.5)) if k in mc.parse(f).parameters}  # fmt: skip
    if "row" in f:
        given["row"] = normal(13, device=device)
    if "w" in _mercer.leaves(mc.parse(f)):
        given["w"] = positive(5, device=device)
    if sides == "batched" and "b" in given:  # points of items, or of all items
        given["b"] = positive(2, device=device)
        x = x[0].detach().requires_grad_() if "w" in given else x
    made = []
    whole = point_form.PointForm.back
    monkeypatch.setattr(point_form.PointForm, "back", lambda *a: made.append(1) or whole(*a))
    calls = {
        "product": lambda: mc.kernel_product(f, x, z, v, **given),
        "pairwise": lambda: mc.pairwise(f, x, z, **given),
        "sum": lambda: mc.kernel_reduce(f, x, z, "sum", **given),
    }
    for verb, call in calls.items():
        inputs = [t for t in (x, z, *given.values()) if t is not None]
        inputs += [v] if verb == "product" else []
        cotangent = torch.randn_like(call())
        made.clear()
        found = _gradients(call, inputs, cotangent, False)
        assert made, verb
        made.clear()
        expected = _gradients(call, inputs, cotangent, True)
        assert not made, verb
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-9)
        for tensor in inputs:  # one of them
            (found,) = torch.autograd.grad(call().sum(), [tensor])
            (expected,) = torch.autograd.grad(call().sum(), [tensor], create_graph=True)
            torch.testing.assert_close(found, expected.detach(), rtol=1e-9, atol=1e-9)


@every_device
def test_points_at_the_origin(device, modules):
    """An all-zero point has the gradients that the formula gives it, and none is NaN."""
    f = FORMULAS["neural tangent"][0]
    x, z, v = (normal(n, 4, device=device) for n in (6, 5, 5))
    with torch.no_grad():
        x[2] = 0
        z[1] = 0
        z[3] = x[4]
    v = normal(5, 2, device=device)
    out = mc.kernel_product(f, x, z, v)
    cotangent = torch.randn_like(out)
    found = torch.autograd.grad(out, [x, z], cotangent, retain_graph=True)
    expected = torch.autograd.grad(out, [x, z], cotangent, create_graph=True)
    for one, other in zip(found, expected, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other.detach(), rtol=1e-8, atol=1e-8)


@every_device
@pytest.mark.parametrize(
    "f",
    [
        FORMULAS["cosine"][0], FORMULAS["weighted cosine"][0], "sum(w*x*z)/sum(w*x*x)",
        "sum(x*z)/(sum(w*x)*sum(w*z))", "exp(-sum(w*(x/sqrt(sum(w*x*x)) - z)^2))",
    ],
)  # fmt: skip
def test_a_point_without_a_norm(f, device, modules):
    """Where nothing is asked of it, no gradient has its infinity."""
    x, z, w = (positive(*shape, device=device) for shape in ((4, 3), (5, 3), (3,)))
    with torch.no_grad():
        x[2] = 0
    others = x.detach()[[0, 1, 3]].requires_grad_()
    given = {"w": w} if "w" in f else {}

    def gradients(points):
        out = mc.pairwise(f, points, z, **given).nan_to_num()
        return torch.autograd.grad(out.sum(), [points, z, *given.values()])

    found, expected = gradients(x), gradients(others)
    assert (found[0][2] == 0).all()
    for one, other in zip((found[0][[0, 1, 3]], *found[1:]), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@every_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_types_of_points(dtype, device, modules):
    f = FORMULAS["cosine"][0]
    x = torch.randn(40, 6, device=device, dtype=dtype, requires_grad=True)
    z = torch.randn(30, 6, device=device, dtype=dtype, requires_grad=True)
    v = torch.randn(30, 2, device=device, requires_grad=True)
    found = torch.autograd.grad(mc.kernel_product(f, x, z, v).sum(), [x, z, v])
    wide = [t.detach().double().requires_grad_() for t in (x, z, v)]
    expected = torch.autograd.grad(mc.kernel_product(f, *wide).sum(), wide)
    for one, other, given in zip(found, expected, (x, z, v), strict=True):
        assert one.dtype == given.dtype
        bound = 2e-3 if given.dtype == torch.float16 else 2e-6
        error = (one.double() - other).norm() / other.norm()
        assert error <= bound


def test_small_calls_go_as_they_are(modules, monkeypatch):
    point_form, passes = modules
    monkeypatch.setattr(passes, "POINTS", 0)
    monkeypatch.setattr(point_form.PointForm, "back", None)
    x = normal(7, 3)
    mc.pairwise(FORMULAS["cosine"][0], x).sum().backward()
    assert x.grad is not None


def test_compiled(modules, monkeypatch):
    """A compiled backward takes the same way, and vmap the plain one."""
    point_form, _ = modules
    f = FORMULAS["cosine"][0]
    made = []
    whole = point_form.PointForm.back
    monkeypatch.setattr(point_form.PointForm, "back", lambda *a: made.append(1) or whole(*a))
    inputs = [normal(20, 6), normal(15, 6), normal(15, 3)]

    def total(*operands):
        return mc.kernel_product(f, *operands).sin().sum()

    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*inputs), inputs)
    assert made
    made.clear()
    expected = torch.autograd.grad(total(*inputs), inputs, create_graph=True)
    mapped = torch.func.vmap(torch.func.grad(total), (0, None, None))(inputs[0][None], *inputs[1:])
    assert not made
    for one, other in zip((*found, mapped[0]), (*expected, expected[0]), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-12, atol=1e-12)
