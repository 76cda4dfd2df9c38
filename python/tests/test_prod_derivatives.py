"""Second and third derivatives of products where terms are 0, in PyTorch and JAX.

The oracle multiplies term by term: backward of ``torch.prod`` itself is not differentiable there.
"""

from __future__ import annotations

import functools
import operator

import mercer as mc
import pytest

torch = pytest.importorskip("torch")


def product(t):
    return functools.reduce(operator.mul, (t[..., k] for k in range(t.shape[-1])))


FORMULAS = {
    "prod(x-h*z)": lambda x, z, h: product(x[:, None] - h * z),
    "h*exp(-prod((x-z)*(x*z+h)))": lambda x, z, h: h * (
        -product((x[:, None] - z) * (x[:, None] * z + h))
    ).exp(),
}  # fmt: skip


def points(features, dtype):
    """Pairs of 0, 1, 2 and 3 coincident features."""
    x = torch.linspace(-1, 1.25, 2 * features, dtype=dtype).reshape(2, features)
    z = x[:1] + torch.linspace(0.5, 1, 4 * features, dtype=dtype).reshape(4, features)
    for zeros in range(4):
        z[zeros, :zeros] = x[zeros % 2, :zeros]
    return x, z, torch.ones((), dtype=dtype)


def derivatives(function, inputs, directions):
    """The gradient of the value, its sum by a direction, and so on."""
    value = function(*inputs).sum()
    for direction in directions:
        slopes = torch.autograd.grad(
            value, inputs, create_graph=True, allow_unused=True, materialize_grads=True
        )
        value = sum((a * b).sum() for a, b in zip(slopes, direction, strict=True))
    return torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("features", [1, 2, 3, 5])
@pytest.mark.parametrize("formula", FORMULAS)
def test_torch(formula, features, dtype):
    torch.manual_seed(features)
    inputs = points(features, dtype)
    wide = [t.double().requires_grad_() for t in inputs]
    inputs = [t.requires_grad_() for t in inputs]
    directions = [[torch.randn_like(t) for t in inputs] for _ in range(2)]
    for order in (2, 3):
        way = directions[: order - 1]
        found = derivatives(lambda x, z, h: mc.pairwise(formula, x, z, h=h), inputs, way)
        expected = derivatives(
            FORMULAS[formula], wide, [[d.double() for d in direction] for direction in way]
        )
        for a, b in zip(found, expected, strict=True):
            # Some tens of roundings of values whose sizes are those of the largest derivatives.
            allowed = 200 * torch.finfo(dtype).eps * (1 + b.abs().max())
            assert (a.double() - b).abs().max() <= allowed


def test_torch_hessian():
    for coincident, expected in ((1, [[0, 1], [1, 0]]), (2, [[0, 1], [1, 0]])):
        x = torch.tensor([[2.0, 3.0]], dtype=torch.float64)
        z = torch.tensor([[2.0, 3.0 if coincident == 2 else 1.0]], dtype=torch.float64)
        hessian = torch.func.hessian(lambda x, z=z: mc.pairwise("prod(x-z)", x, z).sum())(x)
        assert hessian.reshape(2, 2).tolist() == expected


@pytest.mark.parametrize("power", [1, 2])
def test_torch_fields(power):
    """A field of the caller's, a power of the derivative of a product, differentiated again."""
    phi = mc.differentiate("prod(x-z)", "x") ** power
    x, z, _ = (t.requires_grad_() for t in points(5, torch.float64))
    torch.manual_seed(0)
    amplitude, coef = torch.randn(2, 4).double(), torch.randn(1, 4).double()

    def by_terms(x, z):
        t = x[:, None] - z
        others = [product(torch.cat([t[..., :k], t[..., k + 1 :]], -1)) for k in range(5)]
        return torch.einsum("mn,on,mnk->omk", amplitude, coef, torch.stack(others, -1) ** power)

    way = [[torch.randn_like(t) for t in (x, z)] for _ in range(2)]

    def call(x, z):
        return mc.gradient_field(phi, x, z, amplitude, coef)

    for order in (1, 2, 3) if power == 1 else (1,):
        found = derivatives(call, (x, z), way[: order - 1])
        torch.testing.assert_close(found, derivatives(by_terms, (x, z), way[: order - 1]))
    if power == 2:
        with pytest.raises(NotImplementedError, match="no known derivative inside a reduction"):
            derivatives(call, (x, z), way[:1])


def test_jax():
    jax = pytest.importorskip("jax")
    x, z, _ = (t.numpy() for t in points(3, torch.float64))

    def hessian(function):
        return jax.hessian(lambda x, z: jax.numpy.sin(function(x, z)).sum(), (0, 1))(x, z)

    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        found = hessian(lambda x, z: mc.pairwise("prod(x-z)", x, z))
        expected = hessian(lambda x, z: product(x[:, None] - z))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert abs(a - b).max() < 1e-13
