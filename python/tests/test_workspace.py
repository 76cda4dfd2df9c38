"""mercer.workspace_size: exactly what a call takes as workspace=."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest

TEXT = "exp(-sum(abs(x-z))/b)"


def arrays(make):
    """Points, right-hand sides, coefficients."""
    return make((300, 90)), make((200, 90)), make((200, 3)), make((200,)), make((300, 200))


def calls(make):
    """A row for each verb: its name, its arguments, its options."""
    x, z, v, coef, amplitude = arrays(make)
    return [
        ("pairwise", (TEXT, x, z), {"b": 2.0}),
        ("pairwise", (TEXT, x), {"b": [1.0, 2.0]}),
        ("kernel_matrix", (TEXT, x), {"b": 2.0}),
        ("cdist", (x, z), {"p": 1.3}),
        ("kernel_product", (TEXT, x, z, v), {"b": 2.0}),
        ("kernel_reduce", (TEXT, x, z, "argmin"), {"b": 2.0}),
        ("knn", (TEXT, x, z, 5), {"b": 2.0}),
        ("kernel_gradient", (TEXT, x, z, coef), {"b": 2.0}),
        ("kernel_agop", (TEXT, x, z, coef), {"b": 2.0}),
        ("gradient_field", ("x - z", x, z, amplitude, coef), {}),
    ]


def test_is_zero_on_the_cpu():
    for verb, arguments, options in calls(lambda shape: np.ones(shape, "f")):
        assert mc.workspace_size(verb, *arguments, **options) == 0


def test_arguments_are_checked():
    x = np.ones((4, 4), "f")
    with pytest.raises(ValueError, match=r"verb must be one of pairwise, .*Received \"knm\""):
        mc.workspace_size("knm", "l1", x)
    with pytest.raises(ValueError, match="kernel_product: v must have one row per point of z"):
        mc.workspace_size("kernel_product", "l1", x, None, np.ones(3, "f"))
    with pytest.raises(ValueError, match="out must have shape"):
        mc.workspace_size("pairwise", "l1", x, out=np.ones((4, 3), "f"))


def test_no_output_is_made_however_large():
    x = np.ones((1 << 20, 2), "f")
    assert mc.workspace_size("pairwise", "l1", x) == 0


def test_calls_after_it_run():
    x = np.ones((4, 4), "f")
    with pytest.raises(ValueError, match="no parameter"):
        mc.workspace_size("pairwise", "l1", x, q=1)
    np.testing.assert_array_equal(mc.pairwise("l1", x), np.zeros((4, 4)))


def test_is_exact_on_cuda():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    for verb, arguments, options in calls(lambda shape: torch.rand(shape, device="cuda")):
        size = mc.workspace_size(verb, *arguments, **options)
        assert size > 0
        memory = torch.empty(size, dtype=torch.uint8, device="cuda")
        getattr(mc, verb)(*arguments, workspace=memory, **options)
        with pytest.raises(ValueError, match=f"at least {size} bytes. Received {size - 1}"):
            getattr(mc, verb)(*arguments, workspace=memory[:-1], **options)


def test_jax_has_none():
    jax = pytest.importorskip("jax")
    with pytest.raises(NotImplementedError, match="workspace_size is not offered for arrays"):
        mc.workspace_size("pairwise", "l1", jax.numpy.ones((4, 4)))
