"""PyTorch: gradients by the weights w, made of those by the points (_torch/weight_form.py)."""

from __future__ import annotations

import itertools
import re

import mercer as mc
import pytest
from mercer import _mercer

torch = pytest.importorskip("torch")

from torch_table import every_device, normal, positive  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# Whether both sides' points are read, and as differences.
FORMULAS = {
    "squares": ("exp(-sum(w*(x-z)^2)/h)", True, True),
    "length scales": ("exp(-sum(((x-z)/w)^2)/h)*row", True, True),
    "logarithms": ("h/(1 + sum(exp(-2*w)*(x-z)^2))", True, True),
    "magnitudes": ("exp(-sum(w^2*abs(x-z))/h)", True, True),
    "roots": ("exp(-sum(w*sqrt(abs(x-z)))/h)*col", True, True),
    "larger of two": ("exp(-sum(w*max(abs(x-z),2*(x-z)))/h)", True, True),
    "scaled differences": ("exp(-sum(w*(2*x-2*z)^2)/h)", True, True),
    "differences by a parameter": ("exp(-sum(w*abs(h*x-h*z)))", True, True),
    "products": ("(1 + sum(w*x*z)/h)^3", False, False),
    "one side": ("exp(-sum(w*x*z)/h)*row", False, False),
    "unlike degrees": ("exp(-sum(w*x*z^2)/h)", True, False),
    "sums": ("exp(-sum(w*(x+z)^2)/h)", True, False),
}
OTHERS = [
    "sum((x-z)^2)", "sum(w*(x-z)^2) + sum(x*z)", "sum(w*(x-z)^2 + w)", "sum(w*(x-z)^2) + sum(w)",
    "sum(w*(x-z)^2 + abs(x-z))", "sum(w*sin(x-z))", "sum(w*(x-z)^2) + sum(w*abs(x-z))",
    "sum(w*(x-z)^2)*exp(-sum(w*(x-z)^2*row))",
    "sum(w*x)*sum(w*z)", "max(w*abs(x-z))", "sum((x-z)^w)", "sum(where(x < z, w, 1)*(x-z))",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_forms(name):
    f, both, differences = FORMULAS[name]
    form = _mercer.weight_form(mc.parse(f))
    assert form is not None
    assert form[2:] == (both, differences)


@pytest.mark.parametrize("f", OTHERS)
def test_other_formulas(f):
    assert _mercer.weight_form(mc.parse(f)) is None


@pytest.fixture
def passes(monkeypatch):
    """The calls of the operators of passes, which CPUs have too."""
    mc.pairwise("sum(x*z)", normal(2, 2))  # registers the operators
    from mercer._torch import passes, table

    calls = []
    for verb in ("product_backward", "pairwise_backward"):
        whole = table.FUNCTIONS[verb]
        counted = lambda *a, whole=whole: calls.append(a) or whole(*a)  # noqa: E731
        monkeypatch.setitem(table.FUNCTIONS, verb, counted)
    monkeypatch.setattr(passes, "PASSES", 2)
    return calls


def _verbs(f, x, z, v, given):
    return {
        "product": lambda: mc.kernel_product(f, x, z, v, **given),
        "pairwise": lambda: mc.pairwise(f, x, z, **given),
        "sum": lambda: mc.kernel_reduce(f, x, z, "sum", **given),
        "logsumexp": lambda: mc.kernel_reduce(f, x, z, "logsumexp", **given),
    }


@every_device
@pytest.mark.parametrize("features", [4, 20, 165])
@pytest.mark.parametrize("sides", ["two", "one", "batched"])
@pytest.mark.parametrize("name", FORMULAS)
def test_gradients(name, sides, features, device, passes):
    """Gradients are those of a recorded backward, which takes fields by w."""
    f = FORMULAS[name][0]
    lead = (2,) if sides == "batched" else ()
    scale = features**-0.5
    x = (normal(*lead, 13, features, device=device) * scale + 0.3).detach().requires_grad_()
    z = None
    if sides != "one":
        z = (normal(9, features, device=device) * scale).detach().requires_grad_()
    v = normal(13 if z is None else 9, 3, device=device)
    w = positive(features, device=device)
    given = {"w": w, "h": torch.tensor(3.0, device=device).double().requires_grad_()}
    read = _mercer.leaves(mc.parse(f))
    if "row" in read:
        given["row"] = positive(13, device=device)
    if "col" in read:
        given["col"] = normal(13 if z is None else 9, device=device)
    for verb, call in _verbs(f, x, z, v, given).items():
        if "row" in given and verb == "logsumexp":
            continue
        inputs = [t for t in (x, z, *given.values()) if t is not None]
        inputs += [v] if verb == "product" else []
        cotangent = torch.randn_like(call())
        expected = torch.autograd.grad(call(), inputs, cotangent, create_graph=True)
        assert not passes
        for some in (inputs, [w], [x, w], inputs[1:]):
            found = torch.autograd.grad(call(), some, cotangent)
            assert 1 <= len(passes) <= 2, verb
            passes.clear()
            for one, tensor in zip(found, some, strict=True):
                other = expected[[t is tensor for t in inputs].index(True)].detach()
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@every_device
@pytest.mark.parametrize("f", ["exp(-sum(w*(x-z)^2)/9)", "exp(-sum(w*abs(x-z))/9)", "sum(w*x*z)^2"])
def test_features_that_weigh_nothing(f, device, passes):
    x, z, v = (normal(n, 20, device=device) for n in (12, 9, 9))
    w = positive(20, device=device)
    with torch.no_grad():
        w[3] = w[7] = 0
    inputs = [x, z, v, w]
    out = mc.kernel_product(f, x, z, v, w=w)
    found = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    assert passes
    expected = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-10)
    assert (found[3][3] != 0).all()
    assert (found[0][:, 3] == 0).all()


@every_device
@pytest.mark.parametrize("features", [4, 20])
@pytest.mark.parametrize("f", ["sum(x*z*w/w)", "exp(-sum(w/w*(x-z)^2)/9)", "sum(x*z*w^2/w)"])
def test_weights_that_cancel(f, features, device):
    """w / w is no weight: it is NaN where w is 0."""
    assert (_mercer.weight_form(mc.parse(f)) is None) == ("w^2/w" not in f)
    x, z, v = (normal(n, features, device=device) for n in (12, 9, 9))
    w = positive(features, device=device)
    plain = f.replace("x*z*w^2/w", "x*z*w").replace("w/w*", "").replace("*w/w", "")
    given = {"w": w} if "w" in plain else {}
    for verb, call in _verbs(f, x, z, v, {"w": w}).items():
        found = torch.autograd.grad(call().sum(), [x, z, w])
        expected = torch.autograd.grad(
            _verbs(plain, x, z, v, given)[verb]().sum(), [x, z, w], allow_unused=True
        )
        for one, other in zip(found, expected, strict=True):
            other = torch.zeros_like(one) if other is None else other
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@every_device
@pytest.mark.parametrize("features", [17, 40, 200])
@pytest.mark.parametrize("f", ["exp(-sum(w*(x-z)^2))", "exp(-sum(w/4*(2*x-2*z)^2))"])
@pytest.mark.parametrize("kind", ["normal", "far from the origin", "clusters"])
def test_errors_in_float32(kind, f, features, device, passes):
    """An error is that of the sums of |W| |x - z| (|x - o| + |z - o|), with o near the points."""
    x, z = torch.randn(200, features), torch.randn(150, features)
    w = (torch.rand(features) + 0.5) / features
    if kind == "far from the origin":
        x, z = x + 1000, z + 1000
    if kind == "clusters":
        x, z = x + 20 * (torch.arange(200) % 3)[:, None], z + 20 * (torch.arange(150) % 3)[:, None]
    v, c = torch.rand(150, 2), torch.rand(200, 2)
    exact = [t.double().to(device).requires_grad_() for t in (x, z, w)]
    given = [t.to(device).requires_grad_() for t in (x, z, w)]

    def gradient(x, z, w):
        out = mc.kernel_product(f, x, z, v.to(x), w=w)
        return torch.autograd.grad(out, [w], c.to(x), create_graph=x.dtype == torch.float64)[0]

    found, expected = gradient(*given), gradient(*exact).detach()
    with torch.no_grad():
        x, z, w = exact
        kernel = mc.pairwise(f, x, z, w=w) * (c.to(x) @ v.to(x).T)
        gaps = (x[:, None] - z).abs()
        centre = (x.median(0).values + z.median(0).values) / 2
        reach = (x - centre).abs()[:, None] + (z - centre).abs()
        sums = (kernel[..., None] * gaps * reach).sum((0, 1))
    # Rounded are points, values, weights and sums: some units each.
    assert ((found - expected).abs() <= 16 * 2**-24 * sums).all()


# Powers of negative numbers are none.
ALL = [f.replace("(x-z)^w", "abs(x-z)^w") for f in [*(f for f, *_ in FORMULAS.values()), *OTHERS]]


@every_device
@pytest.mark.parametrize("f", ALL)
def test_few_features_in_float32(f, device, passes):
    """Added up in the pass of the fields, whatever weights are to a formula."""
    features = (1, 3, 16)[ALL.index(f) % 3]
    points = [normal(n, features, device=device) * features**-0.5 for n in (40, 30)]
    v, row, col = (positive(*shape, device=device) for shape in ((30, 3), (40,), (30,)))
    w = (positive(features, device=device) + 0.1).detach().requires_grad_()
    read = _mercer.leaves(mc.parse(f))
    given = {name: t for name, t in {"row": row, "col": col, "w": w}.items() if name in read}
    given |= {"h": positive(device=device)} if re.search(r"\bh\b", f) else {}

    def gradients(dtype, verb, alone):
        own = {name: t.detach().to(dtype).requires_grad_() for name, t in given.items()}
        x, z, u = (t.detach().to(dtype).requires_grad_() for t in (*points, v))
        if alone:
            z, u = None, u.mean() + x[:, :1].detach().abs()
        inputs = [t for t in (x, z, *own.values()) if t is not None]
        out = _verbs(f, x, z, u, own)[verb]()
        found = torch.autograd.grad(out.sum(), inputs, allow_unused=True)
        return [torch.zeros(()) if t is None else t for t in found]

    one_side = mc.parse(f).symmetric and not {"row", "col"} & set(read)
    for verb, alone in itertools.product(("product", "pairwise"), (False, True)[: 1 + one_side]):
        passes.clear()
        found = gradients(torch.float32, verb, alone)
        assert len(passes) <= 2
        if "w" in read:
            assert sum("w" in p for call in passes for p in call if isinstance(p, str)) >= 1
        for one, other in zip(found, gradients(torch.float64, verb, alone), strict=True):
            error = (one - other).norm()
            assert error <= 2e-5 * other.norm() + 1e-30, (verb, error / other.norm())


@every_device
@pytest.mark.parametrize("f", [f.replace("(x-z)^w", "abs(x-z)^w") for f in OTHERS if "w" in f])
def test_many_features(f, device, passes):
    """Whatever weights are to a formula, their gradients come with the fields."""
    case = ALL.index(f) % 3
    features, dtype = (20, 130, 30)[case], (torch.float64, torch.float32, torch.float32)[case]
    x, z = (normal(n, features, device=device) * features**-0.5 for n in (40, 30))
    given = {"w": positive(features, device=device) + 0.1}
    if "row" in f:
        given["row"] = positive(40, device=device)

    def gradients(dtype, verb, names, create_graph=False):
        own = {"x": x, "z": z, "v": positive_v, **given}
        own = {name: t.detach().to(dtype).requires_grad_() for name, t in own.items()}
        leaves = {name: own[name] for name in given}
        out = _verbs(f, own["x"], own["z"], own["v"], leaves)[verb]()
        wanted = [own[name] for name in names]
        return torch.autograd.grad(out.sum(), wanted, create_graph=create_graph)

    positive_v = positive(30, 3, device=device)
    for verb in ("product", "pairwise"):
        passes.clear()
        found = gradients(dtype, verb, ["x", "z", *given])
        assert len(passes) == 2
        assert any("w" in p for call in passes for p in call if isinstance(p, str) and p != f)
        expected = gradients(torch.float64, verb, ["x", "z", *given], create_graph=True)
        (alone,) = gradients(dtype, verb, ["w"])
        bound = 2e-5 if dtype == torch.float32 else 1e-10
        for one, other in zip((*found, alone), (*expected, expected[2]), strict=True):
            error = (one - other.detach()).norm()
            assert error <= bound * other.norm() + 1e-30, (verb, error / other.norm())


@every_device
@pytest.mark.parametrize("features", [1, 3, 16])
def test_narrow_kernels_of_few_features(features, device, passes):
    """Whose pairs are much closer than the points are spread: the sums of both sides lose them."""
    x = torch.rand(300, features)
    z = x + 1e-5 * torch.randn(300, features)
    w, c = torch.full((features,), 1e10), torch.randn(300, 300)

    def gradient(dtype):
        points = (t.to(device, dtype) for t in (x, z))
        own = w.to(device, dtype).requires_grad_()
        out = mc.pairwise("exp(-sum(w*(x-z)^2))", *points, w=own)
        return torch.autograd.grad(out, own, c.to(out))[0]

    found, expected = gradient(torch.float32), gradient(torch.float64)
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@every_device
def test_more_parameters_than_a_pass_takes(device, passes):
    names = [f"p{i}" for i in range(11)]
    f = "exp(-sum(w*(x-z)^2)/9)*(" + " + ".join(f"{p}*sin({p}*sum(w*(x-z)^2))" for p in names) + ")"
    x, z, v = (normal(n, 5, device=device) for n in (12, 9, 9))
    w = positive(5, device=device)
    given = {p: positive(device=device) for p in names}
    inputs = [x, z, v, w, *given.values()]
    out = mc.kernel_product(f, x, z, v, w=w, **given)
    found = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    assert len(passes) == 2
    expected = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-10)


@every_device
def test_where_results_are_to_repeat(device, passes):
    """PyTorch refuses operations on CUDA whose bits may differ from run to run."""
    inputs = [
        normal(30, 6, device=device),
        normal(20, 6, device=device),
        positive(6, device=device),
    ]
    out = mc.pairwise("exp(-sum(w*(x-z)^2)/9)", *inputs[:2], w=inputs[2])
    torch.use_deterministic_algorithms(True)
    try:
        found = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert passes
    expected = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-10)


def test_compiled(passes):
    """A compiled backward takes the same way."""
    inputs = [normal(20, 6), normal(15, 6), normal(15, 3), positive(6)]

    def total(x, z, v, w):
        return mc.kernel_product("exp(-sum(w*(x-z)^2)/9)", x, z, v, w=w).sin().sum()

    expected = torch.autograd.grad(total(*inputs), inputs)
    assert len(passes) == 2
    found = torch.autograd.grad(torch.compile(total, fullgraph=True)(*inputs), inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
