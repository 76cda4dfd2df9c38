"""Derivatives of the verbs on arrays of JAX, in every mode and order, against plain JAX, against
PyTorch's in float64, and against differences."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest
from conftest import rest_long

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
torch = pytest.importorskip("torch")

M, N, K, E = 6, 5, 3, 2
GAUSS = "exp(-sum((x-z)^2)/h)"


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        yield


def points(rng):
    return {
        "x": rng.normal(size=(M, K)), "z": rng.normal(size=(N, K)), "h": np.array(1.3),
        "v": rng.normal(size=(N, E)), "coef": rng.normal(size=(2, N)),
    }  # fmt: skip


def gauss(x, z, h):
    return jnp.exp(-((x[:, None] - z) ** 2).sum(-1) / h)


def gauss_gradient(x, z, h, coef):
    by_x = jax.grad(lambda a, b: jnp.exp(-((a - b) ** 2).sum() / h))
    pairs = jax.vmap(jax.vmap(by_x, (None, 0)), (0, None))(x, z)
    return jnp.einsum("mnk,on->omk", pairs, coef)


# verb: (the operands that it is differentiated by, Mercer, plain JAX)
PLAIN = {
    "pairwise": (("x", "z", "h"), lambda x, z, h: mc.pairwise(GAUSS, x, z, h=h), gauss),
    "kernel_product": (
        ("x", "z", "h", "v"),
        lambda x, z, h, v: mc.kernel_product(GAUSS, x, z, v, h=h),
        lambda x, z, h, v: gauss(x, z, h) @ v,
    ),
    "kernel_gradient": (
        ("x", "z", "h", "coef"),
        lambda x, z, h, coef: mc.kernel_gradient(GAUSS, x, z, coef, h=h),
        gauss_gradient,
    ),
    "kernel_reduce sum": (
        ("x", "z", "h"),
        lambda x, z, h: mc.kernel_reduce(GAUSS, x, z, "sum", h=h),
        lambda x, z, h: gauss(x, z, h).sum(1),
    ),
    "kernel_reduce max": (
        ("x", "z", "h"),
        lambda x, z, h: mc.kernel_reduce(GAUSS, x, z, "max", h=h),
        lambda x, z, h: gauss(x, z, h).max(1),
    ),
    "kernel_reduce logsumexp": (
        ("x", "z", "h"),
        lambda x, z, h: mc.kernel_reduce(GAUSS, x, z, "logsumexp", h=h),
        lambda x, z, h: jax.nn.logsumexp(gauss(x, z, h), 1),
    ),
    "knn": (
        ("x", "z", "h"),
        lambda x, z, h: mc.knn(GAUSS, x, z, 2, h=h)[0],
        lambda x, z, h: jnp.sort(gauss(x, z, h), 1)[:, :2],
    ),
}


def close(found, expected):
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = float(jnp.abs(wanted).max()) if wanted.size else 1.0
        np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12 * max(1.0, scale))


def test_kron_of_whole_numbers_has_no_derivative():
    """A result that does not move has a tangent of zeros."""
    factors = [jnp.arange(4).reshape(2, 2)]
    moved = jax.jvp(
        lambda s: s * mc.kron.matmul(jnp.arange(4).reshape(2, 2), factors), (2.0,), (1.0,)
    )
    np.testing.assert_array_equal(
        moved[1], mc.kron.matmul(np.arange(4).reshape(2, 2), [np.arange(4).reshape(2, 2)])
    )


@pytest.mark.parametrize("verb", rest_long(PLAIN, "pairwise", "kernel_product"))
def test_modes_and_orders(rng, verb):
    names, mine, plain = PLAIN[verb]
    given = points(rng)
    arguments = [jnp.asarray(given[name]) for name in names]
    places = tuple(range(len(names)))

    def loss(f):
        return lambda *a: jnp.sin(f(*a)).sum()

    close(mine(*arguments), plain(*arguments))
    close(jax.grad(loss(mine), places)(*arguments), jax.grad(loss(plain), places)(*arguments))
    tangents = [jnp.asarray(rng.normal(size=a.shape)) for a in arguments]
    close(jax.jvp(mine, arguments, tangents), jax.jvp(plain, arguments, tangents))

    def twice(f):  # a gradient of gradients by all operands, compiled
        def square(*a):
            return sum((g**2).sum() for g in jax.grad(loss(f), places)(*a))

        return jax.jit(jax.grad(square, places))

    close(twice(mine)(*arguments), twice(plain)(*arguments))

    def forward_over_reverse(f):
        return jax.jvp(jax.grad(loss(f), places), arguments, tangents)[1]

    close(forward_over_reverse(mine), forward_over_reverse(plain))


@pytest.mark.parametrize(
    "verb", rest_long(["pairwise", "kernel_product", "kernel_gradient"], "kernel_product")
)
def test_third_order_and_vmap(rng, verb):
    names, mine, plain = PLAIN[verb]
    given = points(rng)
    arguments = [jnp.asarray(given[name]) for name in names]

    def third(f):
        def loss(*a):
            return jnp.sin(f(*a)).sum()

        def second(*a):
            return (jax.grad(loss)(*a) ** 2).sum()

        return jax.grad(lambda *a: (jax.grad(second)(*a) ** 3).sum())

    close(third(mine)(*arguments), third(plain)(*arguments))
    xs = jnp.stack([arguments[0], arguments[0] + 1, arguments[0] * 2])
    axes = (0, *([None] * (len(names) - 1)))

    def gradient(f):
        return jax.vmap(jax.grad(lambda *a: jnp.sin(f(*a)).sum(), (0, 1)), axes)

    close(gradient(mine)(xs, *arguments[1:]), gradient(plain)(xs, *arguments[1:]))


# Formulas with every kind of operand, norms at coincident points, extrema, a user's reduce.
FORMULAS = {
    "weights": ("exp(-sum(w*(x-z)^2))", ("w",)),
    "rows": ("row*col*sum(x*z) + sin(row - col)", ("row", "col")),
    "indices": ("exp(-sum((x-z)^2)/h)*(1 + (i == j)) + 0.1*i*j", ("h",)),
    "norm": ("sum(abs(x-z)^1.3)^(1/1.3)", ()),
    "euclid": ("sqrt(sum((x-z)^2))", ()),
    "maximum": ("max(abs(x-z))*h", ("h",)),
    "cosine": ("sum(x*z)/sqrt(sum(x^2)*sum(z^2))", ()),
    "branches": ("where(sum(x*z) > 0, sqrt(sum(x*z)), sum(abs(x-z)))", ()),
    "product": ("prod(1 + h*x*z)", ("h",)),
}


@pytest.mark.parametrize("verb", ["pairwise", "kernel_product"])
@pytest.mark.parametrize("formula", rest_long(FORMULAS, "weights", "rows", "indices", "product"))
def test_formulas_as_pytorch(rng, formula, verb):
    f, others = FORMULAS[formula]
    x, z = rng.normal(size=(M, K)), rng.normal(size=(N, K))
    z[0] = x[1]  # coincident
    operands = {"w": rng.uniform(1, 2, K), "row": rng.normal(size=M), "col": rng.normal(size=N)}
    operands["h"] = np.array(0.7)
    arrays = [x, z, *(operands[name] for name in others)]
    v = rng.normal(size=(N, E))

    def value(x, z, *rest):
        words = dict(zip(others, rest, strict=True))
        if verb == "pairwise":
            return mc.pairwise(f, x, z, **words)
        as_x = torch.as_tensor if isinstance(x, torch.Tensor) else jnp.asarray
        return mc.kernel_product(f, x, z, as_x(v), **words)

    def loss_of(sine, total):
        return lambda *a: total(sine(value(*a)))

    jax_loss = loss_of(jnp.sin, jnp.sum)
    torch_loss = loss_of(torch.sin, torch.sum)
    places = tuple(range(len(arrays)))
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    first = torch.autograd.grad(torch_loss(*tensors), tensors, create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), tensors)
    gradient = jax.grad(jax_loss, places)
    close(gradient(*arrays), [g.detach().numpy() for g in first])
    close(
        jax.grad(lambda *a: sum((g**2).sum() for g in gradient(*a)), places)(*arrays),
        [g.detach().numpy() for g in second],
    )


def test_same_points(rng):
    """x as both sides moves both."""
    x = jnp.asarray(rng.normal(size=(M, K)))
    for verb in (
        lambda x, z: mc.pairwise(GAUSS, x, z, h=1.3),
        lambda x, z: mc.kernel_reduce(GAUSS, x, z, "logsumexp", h=1.3),
    ):
        mine = jax.grad(lambda x, verb=verb: jnp.sin(verb(x, None)).sum())
        apart = jax.grad(lambda x, verb=verb: jnp.sin(verb(x, x)).sum())
        close(mine(x), apart(x))
        close(jax.jacfwd(mine)(x), jax.jacfwd(apart)(x))


def test_vmap_over_weights(rng):
    x = jnp.asarray(rng.normal(size=(M, K)))
    ws = jnp.asarray(rng.uniform(1, 2, size=(3, K)))

    def gradient(w):
        return jax.grad(lambda w: mc.pairwise("exp(-sum(w*(x-z)^2))", x, w=w).sum())(w)

    close(jax.vmap(gradient)(ws), jnp.stack([gradient(w) for w in ws]))


def test_gradient_field(rng):
    """A field of one's own is linear in its amplitude and coefficients."""
    given = points(rng)
    x, z, coef = (jnp.asarray(given[name]) for name in ("x", "z", "coef"))
    amplitude = jnp.asarray(rng.normal(size=(M, N)))

    def mine(x, z, amplitude, coef):
        return mc.gradient_field("sin(x-z)*h", x, z, amplitude, coef, h=0.5)

    def plain(x, z, amplitude, coef):
        field = 0.5 * jnp.sin(x[:, None] - z)
        return jnp.einsum("mn,on,mnk->omk", amplitude, coef, field)

    def second(f):
        loss = lambda *a: (f(*a) ** 2).sum()  # noqa: E731
        gradient = jax.grad(loss, (0, 1, 2, 3))
        return jax.grad(lambda *a: sum((g**2).sum() for g in gradient(*a)), (0, 1, 2, 3))

    close(mine(x, z, amplitude, coef), plain(x, z, amplitude, coef))
    close(second(mine)(x, z, amplitude, coef), second(plain)(x, z, amplitude, coef))


@pytest.mark.parametrize("sizes", [(0, N, K), (M, 0, K), (M, N, 0)])
def test_empty(sizes):
    m, n, k = sizes
    x, z, v = jnp.ones((m, k)), jnp.ones((n, k)), jnp.ones((n, E))
    loss = lambda x, z, v: mc.kernel_product(GAUSS, x, z, v, h=2.0).sum()  # noqa: E731
    for gradient, operand in zip(jax.grad(loss, (0, 1, 2))(x, z, v), (x, z, v), strict=True):
        assert gradient.shape == operand.shape
        assert bool(jnp.isfinite(gradient).all())


def test_narrow_points(rng):
    """Gradients have the dtype of their operand."""
    x = jnp.asarray(rng.normal(size=(M, K)), "float16")
    gradient = jax.grad(lambda x: mc.cdist(x, x[:2]).sum())(x)
    assert gradient.dtype == jnp.float16
    expected = jax.grad(lambda x: mc.cdist(x, x[:2]).sum())(x.astype("float64"))
    # The result is rounded to float16, and JAX adds up the two uses of x in float16.
    np.testing.assert_allclose(gradient, expected, rtol=4e-3, atol=4e-3)


def test_agop_has_none(rng):
    x = jnp.asarray(rng.normal(size=(M, K)))
    with pytest.raises(NotImplementedError, match="kernel_agop: must not be differentiated"):
        jax.grad(lambda x: mc.kernel_agop("gauss", x, x, jnp.ones((1, M)), bandwidth=1.0).sum())(x)


def test_gradients_of_products_store_no_pairs():
    """Of points and of v alike; second derivatives may."""
    x, z, v = (np.ones(shape) for shape in ((37, K), (41, K), (41, E)))

    def total(x, z, v):
        return mc.kernel_product(GAUSS, x, z, v, h=2.0).sum()

    text = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(x, z, v).as_text()
    assert "product_gradient" in text
    assert "37x41x" not in text
    assert "41x37x" not in text
