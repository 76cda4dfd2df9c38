"""mercer.nn: values by the definition, gradients, precision, states."""

from __future__ import annotations

import copy
import io
import math

import mercer as mc
import pytest

torch = pytest.importorskip("torch")
nn = pytest.importorskip("mercer.nn")

SCALES = [0.5, 1.0, 2.0]


def gaps(x, z, scale=1.0):
    return (x[:, None] - z) / torch.as_tensor(scale, dtype=x.dtype)


def distance(x, z, scale):
    return gaps(x, z, scale).norm(dim=-1)


def matern(x, z, nu, scale):
    r = distance(x, z, scale) * math.sqrt(2 * nu)
    return {0.5: 1, 1.5: 1 + r, 2.5: 1 + r + r**2 / 3}[nu] * torch.exp(-r)


#: A module, its arguments, and its values by the definition.
MODULES = {
    "rbf": (nn.RBF, (1.5,), lambda x, z: torch.exp(-(distance(x, z, 1.5) ** 2) / 2)),
    "rbf ard": (nn.RBF, (SCALES,), lambda x, z: torch.exp(-(distance(x, z, SCALES) ** 2) / 2)),
    "matern 1/2": (nn.Matern, (0.5, 1.5), lambda x, z: matern(x, z, 0.5, 1.5)),
    "matern 3/2": (nn.Matern, (1.5, SCALES), lambda x, z: matern(x, z, 1.5, SCALES)),
    "matern 5/2": (nn.Matern, (2.5, 1.5), lambda x, z: matern(x, z, 2.5, 1.5)),
    "laplace": (nn.Laplace, (SCALES,), lambda x, z: torch.exp(-gaps(x, z, SCALES).abs().sum(-1))),
    "rational": (
        nn.RationalQuadratic, (1.3, SCALES),
        lambda x, z: (1 + distance(x, z, SCALES) ** 2 / 2.6) ** -1.3,
    ),
    "periodic": (
        nn.Periodic, (1.2, 0.8),
        lambda x, z: torch.exp(-2 * (torch.sin(math.pi * gaps(x, z, 1.2)) ** 2).sum(-1) / 0.64),
    ),
    "linear": (nn.Linear, (2.0, 0.5), lambda x, z: 2 * x @ z.T + 0.5),
    "polynomial": (nn.Polynomial, (3, 2.0, 0.5), lambda x, z: (2 * x @ z.T + 0.5) ** 3),
    "norm": (nn.CDist, (1.5,), lambda x, z: (gaps(x, z).abs() ** 1.5).sum(-1) ** (1 / 1.5)),
    "formula": (
        lambda: nn.Formula("s*exp(-sum(w*abs(x-z)^p))", s=2.0, p=1.3, w=SCALES), (),
        lambda x, z: 2 * torch.exp(-((gaps(x, z).abs() ** 1.3) * torch.tensor(SCALES)).sum(-1)),
    ),
}  # fmt: skip


@pytest.fixture(params=MODULES, ids=str)
def case(request):
    make, arguments, reference = MODULES[request.param]
    return lambda: make(*arguments), reference


@pytest.fixture
def x():
    return torch.rand(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def z():
    return torch.rand(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_values(case, x, z):
    make, reference = case
    module = make().double()
    with torch.no_grad():  # the logarithms were rounded to float32
        expected = reference(x, z)
        torch.testing.assert_close(module(x, z), expected, rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(module(x), reference(x, x), rtol=2e-6, atol=2e-6)
        batch = module(torch.stack([x, 2 * x]), z)
        torch.testing.assert_close(batch[1], module(2 * x, z), rtol=1e-12, atol=1e-12)
        found = make()(x.float(), z.float())
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_gradients_reach_points_and_parameters(case, x, z):
    make, _ = case
    module = make().double()
    names = [name for name, _ in module.named_parameters()]

    def call(x, z, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x, z))

    values = [p.detach().requires_grad_() for p in module.parameters()]
    inputs = (x.requires_grad_(), z.requires_grad_(), *values)
    assert torch.autograd.gradcheck(call, inputs, atol=1e-6)
    if len(names) < 3:
        small = (x.detach()[:2].requires_grad_(), z.detach()[:2].requires_grad_(), *values)
        assert torch.autograd.gradgradcheck(call, small, atol=1e-6)


def test_products_store_no_matrix(case, x, z):
    module = case[0]().double()
    if isinstance(module, nn.CDist):
        assert not hasattr(module, "product")
        return
    v = torch.rand(5, 2, dtype=torch.float64)
    torch.testing.assert_close(module.product(x, z, v), module(x, z) @ v)
    torch.testing.assert_close(module.product(x, z, v[:, 0]), module(x, z) @ v[:, 0])
    torch.testing.assert_close(module.product(x, None, x), module(x) @ x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_modules_of_16_bits(case, x, z, dtype):
    """half() rounds parameters and the result, and nothing between."""
    module = case[0]().to(dtype)
    x, z = x.to(dtype).requires_grad_(), z.to(dtype)
    found = module(x, z)
    assert found.dtype == dtype
    wide = copy.deepcopy(module).double()
    expected = wide(x.double(), z.double())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=eps, atol=1e-5)
    found.sum().backward()
    for parameter in (x, *module.parameters()):
        assert parameter.grad.dtype == dtype
        assert bool(parameter.grad.isfinite().all())


def test_autocast_and_amp(case, x, z):
    module = case[0]()
    x, z = x.bfloat16(), z.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for first, second in ((x, z), (x, z.float()), (x.float(), z)):
            found = module(first, second)
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, module(x.float(), z.float()))
        if not isinstance(module, nn.CDist):
            assert module.product(x, z, z).dtype == torch.float32
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        loss = torch.nn.Linear(5, 1)(module(x, z)).float().sum()
    scaler.scale(loss).backward()
    if parameters := list(module.parameters()):
        optimiser = torch.optim.SGD(parameters, lr=0.1)
        before = [p.detach().clone() for p in parameters]
        scaler.step(optimiser)
        assert any(not torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
    with pytest.raises(mc.DtypeError, match="one dtype outside of"):
        module(x, z.float())


def test_states(case, x):
    module, other = case[0](), case[0]()
    for parameter in module.parameters():
        torch.nn.init.constant_(parameter, 0.3)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), module(x))
    assert torch.equal(copy.deepcopy(module)(x), module(x))


def test_training_finds_the_length_scale(x):
    target = nn.RBF(0.4, trainable=False)(x.float())
    module = nn.RBF(1.0)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(150):
        optimiser.zero_grad()
        (module(x.float()) - target).square().sum().backward()
        optimiser.step()
    assert module.lengthscale.item() == pytest.approx(0.4, abs=1e-3)


def test_values_by_their_names():
    module = nn.RationalQuadratic(2.0, SCALES)
    torch.testing.assert_close(module.alpha, torch.tensor(2.0))
    torch.testing.assert_close(module.lengthscale, torch.tensor(SCALES))
    module.alpha = 3.0
    torch.testing.assert_close(module.log_alpha.detach(), torch.tensor(3.0).log())
    assert [name for name, _ in module.named_parameters()] == ["log_alpha", "log_lengthscale"]
    fixed = nn.RBF(2.0, trainable=False)
    assert list(fixed.parameters()) == []
    assert list(fixed.state_dict()) == ["log_lengthscale"]
    signed = nn.Formula("a*sum(x*z) + b", a=-1.0, b=2.0, positive=("b",))
    assert [name for name, _ in signed.named_parameters()] == ["a", "log_b"]
    with pytest.raises(ValueError, match="must be positive"):
        module.alpha = -1.0


def test_a_trained_norm(x, z):
    module = nn.CDist(1.5, trainable=True).double()
    x = torch.cat([x, z[:1]])  # coincident with a point of z
    torch.testing.assert_close(module(x, z), torch.cdist(x, z, p=1.5), rtol=1e-6, atol=1e-6)
    module(x, z).sum().backward()
    step = 1e-5
    slope = (torch.cdist(x, z, p=1.5 + step) - torch.cdist(x, z, p=1.5 - step)).sum() / (2 * step)
    assert module.trained.log_p.grad.item() == pytest.approx(1.5 * slope.item(), rel=1e-5)


def test_metrics_by_name(x, z):
    torch.testing.assert_close(nn.CDist(metric="canberra")(x, z), mc.cdist(x, z, metric="canberra"))
    assert repr(nn.CDist(metric="canberra")) == "CDist(metric='canberra')"


def test_under_compile(x, z):
    module = nn.Matern(1.5, SCALES)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x.float(), z.float()), module(x.float(), z.float()))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: nn.RBF(-1.0), "lengthscale must be positive. Received -1.0"),
        (lambda x: nn.RBF([1.0, 2.0])(x), "each of the 3 features. Received 2"),
        (lambda x: nn.RBF([[1.0]]), "a number or have the shape"),
        (lambda x: nn.Matern(2.0), "nu must be 0.5, 1.5 or 2.5. Received 2.0"),
        (lambda x: nn.Polynomial(1.5), "degree must be a whole number"),
        (lambda x: nn.Formula("sum(abs(x-z))", b=1.0), 'has no parameter "b"'),
        (lambda x: nn.Formula("b*sum(abs(x-z))"), 'parameter "b" needs a value'),
        (lambda x: nn.Formula("b*sum(abs(x-z))", b=1.0, positive=("c",)), "name parameters"),
        (lambda x: nn.Formula("training*sum(x*z)", training=1.0, positive=False), "attribute"),
        (lambda x: nn.Formula("half*sum(x*z)", half=1.0), "attribute"),
        (lambda x: nn.RBF(0.5)(x.int()), r"x must be of a floating-point type; write x.float"),
        (lambda x: nn.Laplace()(x, x.bool()), "z must be of a floating-point type"),
        (lambda x: nn.CDist()(x.int()), "x must be of a floating-point type"),
        (lambda x: nn.CDist(math.inf, trainable=True), "positive and finite"),
        (lambda x: nn.CDist(metric="canberra", trainable=True), "without a metric"),
    ],
)
def test_rules(make, words, x):
    with pytest.raises(ValueError, match=words):
        make(x)


def test_tensors_of_metrics_belong_to_the_module(x, z):
    scale = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    module = nn.CDist(metric="seuclidean", V=scale)
    assert list(module.state_dict()) == ["V"]
    module(x.float(), z.float()).sum().backward()
    assert module.V.grad.abs().min() > 0
    held = nn.CDist(metric="seuclidean", V=scale.detach()).double()
    assert list(held.parameters()) == []
    assert held.V.dtype == torch.float64
    expected = mc.cdist(x.double(), z.double(), metric="seuclidean", V=scale.detach().double())
    torch.testing.assert_close(held(x.double(), z.double()), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(case, x, z):
    module = case[0]()
    expected = module(x.float(), z.float())
    module, x, z = module.cuda(), x.float().cuda(), z.float().cuda()
    torch.testing.assert_close(module(x, z).cpu(), expected, rtol=1e-4, atol=1e-4)
    with torch.autocast("cuda", dtype=torch.float16):
        assert module(x.half(), z).dtype == torch.float32
    short = module.half()(x.half(), z.half())
    assert short.dtype == torch.float16
    if parameters := list(module.parameters()):
        short.sum().backward()
        assert all(bool(p.grad.isfinite().all()) for p in parameters)
