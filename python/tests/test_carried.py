"""Arrays inside formulas stay arrays: gradients reach them, and nothing reads them back."""

from __future__ import annotations

import copy
import math
import operator
import pickle

import mercer as mc
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_table import every_device, normal  # noqa: E402

GAUSS = "exp(-sum(square(x-z))/(2*h^2))"


def squares():
    return mc.sum(mc.square(mc.x - mc.z))


# exp(-|x - z|^2 / (2 h^2)) with a tensor h in every place that takes one.
WAYS = {
    "zoo": lambda h: mc.gauss(bandwidth=h),
    "metric": lambda h: mc.metric("gauss", bandwidth=h),
    "bind": lambda h: mc.kernel(GAUSS).bind(h=h),
    "bind over a tensor": lambda h: mc.gauss(bandwidth=torch.ones(())).bind(bandwidth=h),
    "param": lambda h: mc.exp(-squares() / (2 * mc.param("h", default=h) ** 2)),
    "default of a function": lambda h: mc.kernel(
        lambda x, z, h=h: mc.exp(-mc.sum((x - z) ** 2) / (2 * h**2))
    ),
    "closure": lambda h: mc.kernel(lambda x, z: mc.exp(-mc.sum((x - z) ** 2) / (2 * h**2))),
    "function traced by the verb": lambda h: lambda x, z: mc.exp(-mc.dot(x - z, x - z) / 2 / h**2),
    "operator on the right": lambda h: mc.exp(-(squares() / h) / (2 * h)),
    "operator on the left": lambda h: mc.exp((-1 / h**2) * squares() * 0.5),
    "inside the sum": lambda h: mc.exp(-mc.sum(mc.square(mc.x / h - (1 / h) * mc.z)) / 2),
    "functions": lambda h: mc.exp(-mc.norm((mc.x - mc.z) * mc.rcp(h)) ** 2 / 2),
    "where": lambda h: mc.where(mc.i < 0, h, mc.exp(-squares() / (2 * mc.maximum(h, -1) ** 2))),
    "reduce": lambda h: mc.exp(
        -mc.reduce(mc.square((mc.x - mc.z) / h), lambda s, t: s + t, 0.0) / 2
    ),
    "derivative": lambda h: -h**2 * mc.differentiate(
        mc.exp(-mc.square(mc.param("r") + mc.sqrt(squares())) / (2 * h**2)), "r"
    ).bind(r=0.0) / mc.sqrt(squares()),
}  # fmt: skip


def by_torch(x, z, h):
    return torch.exp(-(x[:, None] - z).square().sum(-1) / (2 * h**2))


@every_device
@pytest.mark.parametrize("way", WAYS)
def test_gradients_reach_a_tensor(way, device):
    x, z = normal(5, 3, device=device), normal(4, 3, device=device)
    h = torch.nn.Parameter(torch.tensor(1.7, dtype=x.dtype, device=device))
    cotangent = torch.randn(5, 4, dtype=x.dtype, device=device)
    result = mc.pairwise(WAYS[way](h), x, z)
    expected = by_torch(x, z, h)
    torch.testing.assert_close(result, expected)
    for one, other in zip(
        torch.autograd.grad(result, (x, z, h), cotangent),
        torch.autograd.grad(expected, (x, z, h), cotangent), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other)


VERBS = {
    "pairwise": lambda f, x, z, v: mc.pairwise(f, x, z),
    "kernel_matrix": lambda f, x, z, v: mc.kernel_matrix(f, x, z),
    "cdist": lambda f, x, z, v: mc.cdist(x, z, metric=f),
    "kernel_product": lambda f, x, z, v: mc.kernel_product(f, x, z, v),
    "kernel_reduce": lambda f, x, z, v: mc.kernel_reduce(f, x, z, "logsumexp"),
    "knn": lambda f, x, z, v: mc.knn(f, x, z, 2)[0],
    "kernel_gradient": lambda f, x, z, v: mc.kernel_gradient(f, x, z, v[:, 0]),
    "kernel_agop": lambda f, x, z, v: mc.kernel_agop(f, x, z, v[:, 0]),
    "gradient_field": lambda f, x, z, v: mc.gradient_field(
        mc.tanh(mc.param("h", f.parameters["bandwidth"]) * (mc.x - mc.z)),
        x,
        z,
        torch.ones_like(mc.cdist(x, z)),
        v[:, 0],
    ),
}


@every_device
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_what_a_formula_carries(verb, device):
    """The derivative by a carried tensor, against a finite difference in float64."""
    x, z, v = (torch.randn(n, 3, dtype=torch.float64, device=device) for n in (5, 4, 4))
    h = torch.nn.Parameter(torch.tensor(1.7, dtype=x.dtype, device=device))

    def value(h):
        return VERBS[verb](mc.gauss(bandwidth=h), x, z, v).square().sum()

    slope, gap = torch.autograd.grad(value(h), h)[0], 1e-6
    with torch.no_grad():
        difference = (value(h + gap) - value(h - gap)) / (2 * gap)
    torch.testing.assert_close(slope, difference, rtol=1e-5, atol=1e-7)


def test_a_call_gives_other_values():
    x, h = torch.randn(4, 3), torch.nn.Parameter(torch.tensor(2.0))
    f = mc.gauss(bandwidth=h)
    torch.testing.assert_close(
        mc.pairwise(f, x, bandwidth=3.0), mc.pairwise(mc.gauss(), x, bandwidth=3.0)
    )
    assert f.parameters == {"bandwidth": h}


def test_values_follow_the_tensor():
    """It is read at each call, not when the formula is written."""
    x, h = torch.randn(4, 3), torch.tensor(2.0)
    f = mc.exp(-squares() / h)
    before = mc.pairwise(f, x)
    h.fill_(3.0)
    torch.testing.assert_close(mc.pairwise(f, x), before ** (2 / 3))


def test_several_values_of_a_named_parameter():
    x, h = torch.randn(4, 3), torch.tensor([1.0, 2.0], requires_grad=True)
    stacked = torch.stack([by_torch(x, x, one) for one in h])
    torch.testing.assert_close(mc.pairwise(mc.gauss(bandwidth=h), x), stacked)


def test_names_of_arrays():
    a, b = torch.tensor(1.0), torch.tensor(2.0)
    both = mc.gauss(bandwidth=a) + mc.laplace(bandwidth=b) * a + a * mc.gauss(bandwidth=a)
    assert {n: id(v) for n, v in both.parameters.items()} == {
        "bandwidth": id(a), "bandwidth_2": id(b), "array": id(a)
    }  # fmt: skip
    x = torch.randn(3, 2)
    one, other = (
        mc.pairwise(mc.gauss(), x, bandwidth=1.0),
        mc.pairwise(mc.laplace(), x, bandwidth=2.0),
    )
    torch.testing.assert_close(mc.pairwise(both, x), one + other + one)


def test_numbers_keep_their_own_defaults_among_arrays():
    x, a = torch.randn(3, 2), torch.tensor(2.0)
    one, other = (
        mc.pairwise(mc.gauss(), x, bandwidth=2.0),
        mc.pairwise(mc.gauss(), x, bandwidth=3.0),
    )
    for f in (
        mc.gauss(bandwidth=a) - mc.gauss(bandwidth=3.0),
        -mc.gauss(bandwidth=3.0) + mc.gauss(bandwidth=a),
    ):
        torch.testing.assert_close(mc.pairwise(f, x), one - other)
    f = mc.gauss(bandwidth=a) * mc.param("bandwidth")
    with pytest.raises(ValueError, match='"bandwidth" needs a value'):
        mc.pairwise(f, x)
    torch.testing.assert_close(mc.pairwise(f, x, bandwidth=5.0), one * 5)
    f = mc.sum(mc.x * mc.z * a) + mc.param("array")
    torch.testing.assert_close(mc.pairwise(f, x, array=1.0), 2 * x @ x.T + 1)


def test_formulas_of_new_tensors_are_the_same_text():
    """Else each step of an optimiser would compile anew."""
    texts = {str(mc.exp(-squares() / torch.tensor(float(n)) * torch.tensor(2.0))) for n in range(3)}
    assert texts == {"exp(-sum(square(x - z))/array*array_2)"}


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))]
)
def test_copies(again):
    x = torch.randn(3, 2)
    for f in (mc.gauss(bandwidth=torch.tensor(2.0)), mc.sum(mc.x * mc.z) * torch.tensor(2.0)):
        g = again(f)
        assert type(g) is type(f)
        torch.testing.assert_close(mc.pairwise(g, x), mc.pairwise(f, x))


def test_arrays_of_numpy():
    x = np.random.default_rng(0).normal(size=(4, 3))
    for number in (np.array(2.0), np.float32(2.0)):
        assert (mc.x * number).same(mc.x * 2.0)
        assert (number * mc.x).same(2.0 * mc.x)
        assert mc.gauss(bandwidth=number).parameters == {"bandwidth": 2.0}
    h = np.array([1.0, 2.0])
    two = mc.pairwise(mc.gauss(bandwidth=h), x)
    np.testing.assert_array_equal(two, mc.pairwise("gauss", x, bandwidth=h))


@pytest.mark.parametrize("number", [torch.ones(3), np.ones(3), torch.ones(1)])
@pytest.mark.parametrize("operation", [operator.mul, operator.sub, operator.truediv, operator.lt])
def test_arrays_with_axes_are_refused_by_operators(operation, number):
    for pair in ((mc.x, number), (number, mc.x)):
        with pytest.raises(
            TypeError, match="must be one number, without axes; give values of feat"
        ):
            operation(*pair)
    with pytest.raises(TypeError, match="must be one number, without axes"):
        mc.exp(number)


@pytest.mark.parametrize("kind", ["tensor", "parameter", "jax"])
def test_what_chooses_a_formula_must_be_a_number(kind):
    p = {"tensor": lambda: torch.tensor(2.0),
         "parameter": lambda: torch.nn.Parameter(torch.ones(())),
         "jax": lambda: pytest.importorskip("jax.numpy").float32(2)}[kind]()  # fmt: skip
    x = torch.randn(3, 2)
    for call in (lambda: mc.minkowski(p=p), lambda: mc.pairwise("laplace", x, p=p),
                 lambda: mc.cdist(x, None, metric="minkowski", p=p)):  # fmt: skip
        with pytest.raises(
            TypeError, match="p chooses the formula, so it must be one number; where"
        ):
            call()
    with pytest.raises(
        TypeError, match=r'p must be a number; where it is an array write metric="sum'
    ):
        mc.cdist(x, None, p)


def test_a_norm_of_a_tensor():
    x, p = normal(4, 3), torch.nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
    z = normal(5, 3)
    result = mc.pairwise(mc.norm(mc.x - mc.z, p), x, z)
    expected = ((x[:, None] - z).abs() ** p).sum(-1) ** (1 / p)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(
        torch.autograd.grad(result.sum(), p)[0], torch.autograd.grad(expected.sum(), p)[0]
    )


@every_device
@pytest.mark.parametrize("left", [False, True])
def test_scales_of_kronecker_products(left, device):
    a, b = normal(2, 3, device=device), normal(2, 2, device=device)
    x = normal(4, 4, device=device) if not left else normal(6, 4, device=device)
    y = normal(4, 6, device=device) if not left else normal(4, 4, device=device)
    alpha, beta = (
        torch.tensor(v, dtype=x.dtype, device=device, requires_grad=True) for v in (0.0, 2)
    )

    def product():
        k = torch.kron(a, b)
        return alpha * (k @ x if left else x @ k) + beta * y

    verb = (lambda x, f, **o: mc.kron.kron_matmul(f, x, **o)) if left else mc.kron.matmul
    result = verb(x, [a, b], alpha=alpha, beta=beta, y=y)
    torch.testing.assert_close(result, product())
    operands = (x, a, b, y, alpha, beta)
    for one, other in zip(
        torch.autograd.grad(result.square().sum(), operands),
        torch.autograd.grad(product().square().sum(), operands), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other)


def test_scales_that_are_refused():
    x, a = torch.ones(2, 2), torch.ones(2, 2)
    with pytest.raises(ValueError, match="alpha must be a number or a tensor of one, without axes"):
        mc.kron.matmul(x, [a], alpha=torch.ones(2))
    with pytest.raises(ValueError, match="and whole for whole numbers"):
        mc.kron.matmul(x.long(), [a.long()], alpha=torch.tensor(0.5))
    with pytest.raises(TypeError, match=r"kron\.matmul: alpha must be a number\. Received an arr"):
        mc.kron.matmul(x.numpy(), [a.numpy()], alpha=torch.tensor(2.0))


@every_device
def test_a_shift_of_a_kronecker_product(device):
    options = {"dtype": torch.float64, "device": device}
    factors = [torch.randn(3, 3, **options) for _ in range(2)]
    factors = [f @ f.T + torch.eye(3, **options) for f in factors]
    b, shift = torch.randn(9, 2, **options), torch.tensor(0.5, **options, requires_grad=True)

    def matrix():
        return torch.kron(*factors) + shift * torch.eye(9, **options)

    for one, other in ((mc.kron.solve(factors, b, shift=shift), torch.linalg.solve(matrix(), b)),
                       (mc.kron.logdet(factors, shift=shift), torch.logdet(matrix()))):  # fmt: skip
        torch.testing.assert_close(one, other)
        slopes = [torch.autograd.grad(v.sum(), shift)[0] for v in (one, other)]
        torch.testing.assert_close(*slopes)


def test_numbers_that_stay_numbers_refuse_tensors():
    a, t = torch.eye(3), torch.tensor(1e-3)
    for call in (lambda: mc.linalg.cholesky(a, jitter=t), lambda: mc.linalg.cg(a, a, tol=t),
                 lambda: mc.linalg.nystrom(a, 2, ridge=t)):  # fmt: skip
        with pytest.raises(
            TypeError, match=r"must be a number\. Received an array, torch\.Tensor; write"
        ):
            call()


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="before PyTorch 2.13 torch.compile takes no Expr at all",
)
def test_torch_compile_refuses_what_a_formula_carries():
    f = mc.gauss(bandwidth=torch.tensor(2.0))
    call = torch.compile(lambda x: mc.pairwise(f, x), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"carries arrays is not offered where torch\.compile tr"):
        call(torch.randn(3, 2))


def test_vmap():
    x, h = torch.randn(4, 3), torch.tensor([1.0, 2.0, 3.0])
    result = torch.vmap(lambda h: mc.pairwise(mc.gauss(bandwidth=h) * h, x))(h)
    torch.testing.assert_close(result, torch.stack([by_torch(x, x, one) * one for one in h]))
    slope = torch.func.grad(lambda h: mc.pairwise(mc.gauss(bandwidth=h) * h, x).sum())(h[0])
    torch.testing.assert_close(
        slope, torch.func.grad(lambda h: (by_torch(x, x, h) * h).sum())(h[0])
    )


def test_cupy(cuda):
    cupy = pytest.importorskip("cupy")
    x, t = cupy.random.default_rng(0).standard_normal((4, 3)), cupy.asarray(2.0)
    expected = mc.pairwise("exp(-sum(square(x-z))/2)*2", cupy.asnumpy(x))
    for f in (mc.exp(-squares() / t) * t, t * mc.exp(-1 / t * squares())):
        np.testing.assert_allclose(cupy.asnumpy(mc.pairwise(f, x)), expected, rtol=1e-12)


def test_jax():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)

    def matrix(h):
        return mc.pairwise(mc.exp(-squares() / h + h * 0), x)

    expected = mc.pairwise("exp(-sum(square(x-z))/2)", np.asarray(x))
    for call in (matrix, jax.jit(matrix)):
        np.testing.assert_allclose(call(jnp.float32(2)), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(matrix)(jnp.asarray([2.0, 2.0]))[1], expected, rtol=1e-6)
    np.testing.assert_allclose(
        jax.jit(lambda h: mc.pairwise(mc.gauss(bandwidth=h), x))(1.0), expected, rtol=1e-6
    )
    k = jnp.asarray(np.random.default_rng(1).normal(size=(3, 2)), jnp.float32)

    def loss(alpha, beta, y):
        return (mc.kron.matmul(x, [k], alpha=alpha, beta=beta, y=y) ** 2).sum()

    def plain(alpha, beta, y):
        return ((alpha * x @ k + beta * y) ** 2).sum()

    y = jnp.ones((4, 2), jnp.float32)
    for one, other in zip(jax.jit(jax.grad(loss, (0, 1, 2)))(1.5, 0.5, y),
                          jax.grad(plain, (0, 1, 2))(1.5, 0.5, y), strict=True):  # fmt: skip
        np.testing.assert_allclose(one, other, rtol=1e-4)


def test_jax_takes_no_tensors_of_others():
    x = pytest.importorskip("jax.numpy").ones((4, 3))
    for call in (lambda: mc.pairwise(mc.gauss(bandwidth=torch.tensor(2.0)), x),
                 lambda: mc.pairwise("gauss", x, bandwidth=torch.tensor(2.0))):  # fmt: skip
        with pytest.raises(ValueError, match="bandwidth must come from the library of x, jax"):
            call()


def test_a_norm_by_its_order():
    x, z = np.random.default_rng(0).normal(size=(2, 5, 3))
    gaps = np.abs(x[:, None] - z[None])
    for order in (0, 0.5, 1, 2, 3.5, math.inf, np.float32(2), np.array(1.0)):
        expected = (
            np.linalg.norm(gaps, float(order), axis=-1)
            if order >= 1 or order == 0
            else (gaps**0.5).sum(-1) ** 2
        )
        np.testing.assert_allclose(
            mc.pairwise(mc.norm(mc.x - mc.z, order), x, z), expected, rtol=1e-12
        )
    for order in (-1, -math.inf, math.nan):
        with pytest.raises(ValueError, match="norm: ord must be from 0 to inf"):
            mc.norm(mc.x, order)
