"""Names that simplification leaves nothing of, reductions of constants; gradients of extrema."""

import importlib
import re

import mercer as mc
import numpy as np
import pytest
from conftest import assert_close

TEXTS = ["sum(w^0*x*z)", "row^0*sum(x*z)", "sum(x*z)+p^0-1", "sum(x*z) + where(1 < 2, 0, col)"]


@pytest.fixture
def operands(rng):
    arrays = {"x": (4, 3), "z": (5, 3), "w": (3,), "row": (4,), "col": (5,)}
    return {name: rng.standard_normal(shape) for name, shape in arrays.items()}


def named(text, operands):
    """What the formula names in addition to x and z."""
    names = set(re.findall("[a-z]+", text))
    found = {name: operands[name] for name in ("w", "row", "col") if name in names}
    return found | ({"p": 1.5} if "p" in names else {})


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("library", ["numpy", "torch", "jax.numpy"])
def test_what_a_formula_names_may_be_given(operands, text, library):
    module = pytest.importorskip(library)
    if library == "jax.numpy":
        importlib.import_module("jax").config.update("jax_enable_x64", True)
    given = {name: module.asarray(value) for name, value in named(text, operands).items()}
    x, z = (module.asarray(operands[name]) for name in "xz")
    expected = operands["x"] @ operands["z"].T
    assert_close(mc.pairwise(text, x, z, **given), expected)
    assert_close(mc.pairwise(mc.kernel(text), x, z, **given), expected)
    v = module.asarray(np.ones((5, 1)))
    assert_close(mc.kernel_product(text, x, z, v, **given)[:, 0], expected.sum(1))
    assert_close(mc.kernel_reduce(text, x, z, "max", **given), expected.max(1))
    gradient = mc.kernel_gradient(text, x, z, v[:, 0], **given)
    assert_close(gradient, np.tile(operands["z"].sum(0), (4, 1)))


@pytest.mark.parametrize("text", TEXTS)
def test_gradients_by_what_is_needless_are_zero(operands, text):
    torch = pytest.importorskip("torch")
    x, z = (torch.tensor(operands[name], requires_grad=True) for name in "xz")
    given = {n: torch.tensor(v, requires_grad=True) for n, v in named(text, operands).items()}
    mc.pairwise(text, x, z, **given).sum().backward()
    assert_close(x.grad, np.tile(operands["z"].sum(0), (4, 1)))
    assert_close(z.grad, np.tile(operands["x"].sum(0), (5, 1)))
    for tensor in given.values():
        assert tensor.grad is None or not tensor.grad.any()


def test_reductions_of_constants(operands):
    x, z = operands["x"], operands["z"]
    ones, amplitude = np.ones(5), np.ones((4, 5))
    assert_close(mc.kernel_gradient("sum(2)*sum(x*z)", x, z, ones), 6 * np.tile(z.sum(0), (4, 1)))
    assert_close(mc.gradient_field("sum(3)*x", x, z, amplitude, ones), 45 * x)


def test_fields_that_the_interpreter_runs(rng):
    """Too many conditions for masks: rows of a tile that go together."""
    x, z = rng.standard_normal((2, 4, 4))
    text = "prod(min(max(x, z), min(z, x - z)))"
    found = mc.kernel_gradient(text, x, z, np.ones(4))

    def value(x):
        x = x[:, None]
        return np.minimum(np.maximum(x, z), np.minimum(z, x - z)).prod(-1).sum(-1)

    for k in range(4):
        step = np.zeros(4)
        step[k] = 1e-6
        np.testing.assert_allclose(
            found[:, k], (value(x + step) - value(x - step)) / 2e-6, rtol=1e-5, atol=1e-8
        )


EXTREMA = ["max(abs(x-z)^1.3)", "min(tanh(x)*1.1-z)", "max(tanh(x))*sum(x*z)", "max(exp(x*w)-z*z)"]


@pytest.mark.parametrize("text", EXTREMA)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_backward_of_extrema(rng, text, dtype):
    """Against PyTorch's own derivative of the same in float64."""
    torch = pytest.importorskip("torch")
    given = {"w": rng.uniform(0.5, 1.5, 3)} if "w" in text else {}
    arrays = {"x": rng.standard_normal((4, 3)), "z": rng.standard_normal((5, 3))} | given
    arrays = {name: value.astype(dtype).astype("float64") for name, value in arrays.items()}
    cotangent = torch.tensor(rng.standard_normal((4, 5)))

    def plain(x, z, w=None):
        x, z = x[:, None], z[None]
        return {
            "max(abs(x-z)^1.3)": lambda: ((x - z).abs() ** 1.3).amax(-1),
            "min(tanh(x)*1.1-z)": lambda: (x.tanh() * 1.1 - z).amin(-1),
            "max(tanh(x))*sum(x*z)": lambda: x.tanh().amax(-1) * (x * z).sum(-1),
            "max(exp(x*w)-z*z)": lambda: ((x * w).exp() - z * z).amax(-1),
        }[text]()

    def gradients(function, dtype):
        leaves = {n: torch.tensor(v, dtype=dtype, requires_grad=True) for n, v in arrays.items()}
        value = (function(**leaves) * cotangent.to(dtype)).sum()
        first = torch.autograd.grad(value, list(leaves.values()), create_graph=True)
        loss = sum((g.double().sin() * (1 + i)).sum() for i, g in enumerate(first))
        second = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        none = [torch.zeros_like(leaf) for leaf in leaves.values()]
        second = [b if b is not None else a for a, b in zip(none, second, strict=True)]
        return [g.double() for g in (*first, *second)]

    tolerance = 1e-4 if dtype == "float32" else 1e-8
    expected = gradients(plain, torch.float64)
    found = gradients(lambda x, z, **w: mc.pairwise(text, x, z, **w), getattr(torch, dtype))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
