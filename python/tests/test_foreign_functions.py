"""Functions of NumPy, PyTorch and math on expressions: right, or refused in words."""

from __future__ import annotations

import math

import mercer as mc
import numpy as np
import pytest

X, Z = np.random.default_rng(0).normal(size=(2, 6, 4))
PAIRS = X[:, None], Z[None]

# (what NumPy makes of two symbols, the same of the points by the definition)
RIGHT = {
    "mean": (lambda x, z: np.mean(x * z), lambda x, z: np.mean(x * z, -1)),
    "sum": (lambda x, z: np.sum(x * z), lambda x, z: np.sum(x * z, -1)),
    "prod": (lambda x, z: np.prod(x * z), lambda x, z: np.prod(x * z, -1)),
    "max": (lambda x, z: np.max(x - z), lambda x, z: np.max(x - z, -1)),
    "amin": (lambda x, z: np.amin(x - z), lambda x, z: np.min(x - z, -1)),
    "norm": (lambda x, z: np.linalg.norm(x - z), lambda x, z: np.linalg.norm(x - z, axis=-1)),
    "norm 1": (lambda x, z: np.linalg.norm(x - z, 1), lambda x, z: np.abs(x - z).sum(-1)),
    "norm inf": (lambda x, z: np.linalg.norm(x - z, ord=np.inf),
                 lambda x, z: np.abs(x - z).max(-1)),
    "dot": (lambda x, z: np.dot(x, z), lambda x, z: (x * z).sum(-1)),
    "inner": (lambda x, z: np.inner(x - 1, z), lambda x, z: ((x - 1) * z).sum(-1)),
    "vdot": (lambda x, z: np.vdot(x, z), lambda x, z: (x * z).sum(-1)),
    "where": (lambda x, z: np.sum(np.where(x < z, x, 2.0)),
              lambda x, z: np.where(x < z, x, 2.0).sum(-1)),
    "ufuncs": (lambda x, z: np.sum(np.exp(x) * np.arctan2(x, z) + np.float64(2) * z),
               lambda x, z: (np.exp(x) * np.arctan2(x, z) + 2 * z).sum(-1)),
    "mercer": (lambda x, z: mc.mean(x * z) + mc.norm(x - z) + mc.dot(x, z + 1),
               lambda x, z: (x * z).mean(-1) + np.linalg.norm(x - z, axis=-1)
               + (x * (z + 1)).sum(-1)),
    "mercer's weighted dot": (lambda x, z: mc.dot(x, z, weighted=True) / mc.norm(z, 3),
                              lambda x, z: (np.arange(4) * x * z).sum(-1)
                              / (np.abs(z) ** 3).sum(-1) ** (1 / 3)),
    "math": (lambda x, z: mc.sum(math.floor(x) + math.ceil(z) + math.prod([x, z]) + sum([x, z])),
             lambda x, z: (np.floor(x) + np.ceil(z) + x * z + x + z).sum(-1)),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right(name):
    of_symbols, of_points = RIGHT[name]
    f = mc.kernel(of_symbols)
    given = {"w": np.arange(4.0)} if "w*" in str(f) else {}
    np.testing.assert_allclose(mc.pairwise(f, X, Z, **given), of_points(*PAIRS), rtol=1e-12)


REFUSED = {
    "median": lambda x: np.median(x),
    "average": lambda x: np.average(x),
    "std": lambda x: np.std(x),
    "argmax": lambda x: np.argmax(x),
    "nan_to_num": lambda x: np.nan_to_num(x),
    "clip": lambda x: np.clip(x, 0, 1),
    "concatenate": lambda x: np.concatenate([x, x]),
    "norm along an axis": lambda x: np.linalg.norm(x, axis=0),
    "mean along an axis": lambda x: np.mean(x, axis=-1),
    "mean along the first axis": lambda x: np.mean(x, 0),
    "mean in a dtype": lambda x: np.mean(x, dtype="f"),
    "dot into an array": lambda x: np.dot(x, x, np.empty(())),
    "where of one": lambda x: np.where(x),
    "det": lambda x: np.linalg.det(x),
    "round": lambda x: np.round(x, 2),
    "mod": lambda x: np.mod(x, 2),
    "operator %": lambda x: np.float64(2) % x,
    "arctan": lambda x: np.arctan(x),
    "ufunc out": lambda x: np.exp(x, out=np.empty(())),
    "ufunc where": lambda x: np.add(x, 1, where=True),
    "reduce": lambda x: np.add.reduce(x),
    "accumulate": lambda x: np.add.accumulate(x),
    "outer": lambda x: np.multiply.outer(x, x),
    "at": lambda x: np.add.at(x, 0, 1),
    "asarray": lambda x: np.asarray(x),
    "array": lambda x: np.array([x, x]),
    "asarray in a dtype": lambda x: np.asarray(x, dtype=float),
    "ones_like": lambda x: np.ones_like(x),
    "a matrix product": lambda x: np.ones((2, 2)) @ x,
    "an operator": lambda x: np.ones(3) * x,
    "math.exp": lambda x: math.exp(x),
    "math.sqrt": lambda x: math.sqrt(x),
    "math.hypot": lambda x: math.hypot(x, x),
    "math.trunc": lambda x: math.trunc(x),
    "float": lambda x: float(x),
    "int": lambda x: int(x),
    "complex": lambda x: complex(x),
    "round()": lambda x: round(x),
    "max()": lambda x: max(x, 2),
    "iteration": lambda x: list(x),
    "len": lambda x: len(x),
    "divmod": lambda x: divmod(x, 2),
}


@pytest.mark.parametrize("kind", ["symbol", "kernel"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, kind):
    with pytest.raises(TypeError):
        REFUSED[name]({"symbol": mc.x, "kernel": mc.gauss()}[kind])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: np.median(mc.x), r"numpy.median: it has no meaning for an expression; write it"),
        (lambda: np.arctan(mc.x), r"numpy.arctan: it has no meaning for an expression"),
        (
            lambda: np.add.reduce(mc.x),
            r"numpy.add.reduce: it has no meaning for an expression; it g",
        ),
        (lambda: np.mean(mc.x, axis=0), r"numpy.mean: it takes no options on an expression"),
        (lambda: np.asarray(mc.x), r"Expr: an expression holds no numbers, so it is no array"),
        (lambda: mc.dot(mc.x), r"dot: both terms must be given, or none"),
    ],
)
def test_words(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_torch():
    torch = pytest.importorskip("torch")
    one = torch.ones(())
    for call in (torch.mean, torch.exp, torch.sum, torch.linalg.norm, torch.as_tensor,
                 torch.tensor, lambda e: torch.add(e, 1), lambda e: torch.dot(e, e),
                 lambda e: torch.stack([e, e]), lambda e: torch.ones(2, 2) @ e,
                 lambda e: torch.exp(one, out=e), lambda e: torch.where(e, 1.0, 2.0)):  # fmt: skip
        for expression in (mc.x, mc.gauss()):
            with pytest.raises((TypeError, RuntimeError), match=r"Expr|Kernel|has no truth value"):
                call(expression)


def test_torch_operators_on_either_side():
    torch = pytest.importorskip("torch")
    t = torch.tensor(1.5, dtype=torch.float64)
    x, z = torch.from_numpy(X), torch.from_numpy(Z)
    for f, expected in (
        (mc.sum(t * mc.x + mc.z * t), (t * x[:, None] + z * t).sum(-1)),
        (mc.sum(t - mc.x - (mc.z - t)), (t - x[:, None] - (z - t)).sum(-1)),
        (mc.sum(t / mc.exp(mc.x) + mc.z / t), (t / torch.exp(x[:, None]) + z / t).sum(-1)),
        (mc.sum(t**mc.x * abs(mc.z) ** t), (t ** x[:, None] * z.abs() ** t).sum(-1)),
        (mc.sum((t < mc.x) + (mc.z <= t) + 0), ((t < x[:, None]).double() + (z <= t)).sum(-1)),
        (mc.sum((t > mc.x) + (t == mc.z) + (t != mc.z)), ((t > x[:, None]).double() + 1).sum(-1)),
    ):
        torch.testing.assert_close(mc.pairwise(f, x, z), expected.expand(6, 6))


def test_jax():
    jnp = pytest.importorskip("jax.numpy")
    for call in (jnp.exp, jnp.mean, jnp.sum, jnp.asarray, lambda e: jnp.dot(e, e)):
        with pytest.raises(TypeError):
            call(mc.x)
    t = jnp.float32(2)
    for f in (t * mc.x, mc.x * t, t - mc.x, t / mc.x, t < mc.x):
        assert "array" in f.parameters
