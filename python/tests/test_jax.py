"""Arrays of JAX: every verb eagerly, under jit and under vmap, against NumPy's in float64."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import mercer as mc
import numpy as np
import pytest
from conftest import assert_close
from verb_table import GAUSS, VERBS, extra_arrays

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

M, N, K = 7, 5, 3


def make(rng, *lead):
    """Points and the other arrays with these leading axes, in float32."""
    x, z = rng.normal(size=(*lead, M, K)), rng.normal(size=(*lead, N, K))
    return x.astype("f"), z.astype("f"), extra_arrays(rng, lead, M, N, K)


def exact(verb, x, z, extra):
    return VERBS[verb](x.astype("d"), z.astype("d"), {n: a.astype("d") for n, a in extra.items()})


def compare(result, expected):
    for got, wanted in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert isinstance(got, jax.Array)
        assert got.shape == np.shape(wanted)
        assert_close(got, wanted)


def run(verb, how, x, z, extra):
    x, z, extra = jax.tree.map(jnp.asarray, (x, z, extra))
    return how(VERBS[verb])(x, z, extra)


@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("verb", VERBS)
def test_verbs(rng, verb, how):
    arrays = make(rng)
    compare(run(verb, how, *arrays), exact(verb, *arrays))


@pytest.mark.parametrize("verb", VERBS)
def test_vmap_over_everything(rng, verb):
    x, z, extra = make(rng, 3)
    expected = [exact(verb, x[b], z[b], {n: a[b] for n, a in extra.items()}) for b in range(3)]
    stacked = jax.tree.map(lambda *items: np.stack(items), *expected)
    compare(run(verb, jax.vmap, x, z, extra), stacked)


@pytest.mark.parametrize("verb", VERBS)
def test_vmap_over_x_alone_inside_jit(rng, verb):
    _, z, extra = make(rng)
    xs = rng.normal(size=(3, M, K)).astype("f")
    stacked = jax.tree.map(
        lambda *items: np.stack(items), *(exact(verb, xs[b], z, extra) for b in range(3))
    )
    how = lambda f: jax.jit(jax.vmap(f, in_axes=(0, None, None)))  # noqa: E731
    compare(run(verb, how, xs, z, extra), stacked)


def test_vmap_over_a_parameter(rng):
    x, z, _ = make(rng)
    hs = np.array([1, 2, 5], "f")
    result = jax.vmap(lambda h: mc.pairwise(GAUSS, jnp.asarray(x), jnp.asarray(z), h=h))(hs)
    compare(result, mc.pairwise(GAUSS, x.astype("d"), z.astype("d"), h=hs.astype("d")))


def test_leading_axes(rng):
    x, z = rng.normal(size=(2, 1, M, K)).astype("f"), rng.normal(size=(3, N, K)).astype("f")
    v = rng.normal(size=(4, 1, 1, N, 6)).astype("f")
    result = mc.kernel_product(GAUSS, *map(jnp.asarray, (x, z, v)), h=2.0)
    compare(result, mc.kernel_product(GAUSS, *(a.astype("d") for a in (x, z, v)), h=2.0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "uint8", "int8"])
def test_narrow_dtypes(rng, dtype):
    x = jnp.asarray(rng.uniform(0, 9, size=(M, K))).astype(dtype)
    result = mc.cdist(x, x[:4])
    assert result.dtype == jnp.float32
    wide = np.asarray(x).astype("d")
    compare(result, mc.cdist(wide, wide[:4]))


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (3, 2, 0)])
def test_empty(m, n, k):
    compare(mc.cdist(jnp.ones((m, k)), jnp.ones((n, k))), np.zeros((m, n)))


def test_parameters_of_every_kind(rng):
    x, _, _ = make(rng)
    xj = jnp.asarray(x)
    expected = mc.pairwise(GAUSS, x, h=[1.0, 2.0])
    for h in ([1.0, 2.0], np.array([1.0, 2.0]), jnp.array([1, 2]), (1, 2)):
        compare(mc.pairwise(GAUSS, xj, h=h), expected)
    for h in (2, 2.0, np.float32(2)):
        compare(mc.pairwise(GAUSS, xj, h=h), mc.pairwise(GAUSS, x, h=2.0))


X, Z = np.ones((4, 3), "f"), np.ones((5, 3), "f")
REFUSED = {
    "out": (lambda x, z: mc.cdist(x, z, out=x), NotImplementedError,
            "cdist: out is not offered for arrays of JAX, which cannot be written"),
    "workspace": (lambda x, z: mc.cdist(x, z, workspace=x), NotImplementedError, "workspace"),
    "another library": (lambda x, z: mc.cdist(x, Z), ValueError,
                        "z must come from the library of x, jax. Received numpy.ndarray"),
    "JAX in another library": (lambda x, z: mc.cdist(X, z), ValueError, "Received an array of jax"),
    "whole numbers": (lambda x, z: mc.cdist(x.astype("int32"), None), mc.DtypeError,
                      "x of int32 is computed in float64, .*jax_enable_x64.*; write x.astype"),
    "two dtypes": (lambda x, z: mc.cdist(x, z.astype("float16")), mc.DtypeError, "one dtype"),
    "features": (lambda x, z: mc.cdist(x, z[:, :2]), ValueError, "same number of features"),
    "one axis": (lambda x, z: mc.cdist(x[0], z), ValueError, r"shape \[..., M, K\]"),
    "an unknown parameter": (lambda x, z: mc.pairwise("l1", x, z, q=1.0), ValueError, '"q"'),
    "a missing parameter": (lambda x, z: mc.pairwise(GAUSS, x, z), ValueError, '"h" needs a value'),
    "k": (lambda x, z: mc.knn("l1", x, z, 6), ValueError, "points of z .5.. Received 6"),
    "a fault that the handler finds": (
        lambda x, z: mc.kernel_product("sum(x*z)", x, z, x), Exception, "v must have one row per"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        jax.block_until_ready(call(jnp.asarray(X), jnp.asarray(Z)))


# A program with 64-bit types, which JAX has for a whole process or not at all.
WIDE = """
    import jax, numpy as np
    jax.config.update("jax_enable_x64", True)
    import mercer as mc
    x = np.random.default_rng(0).normal(size=(7, 3))
    xj = jax.numpy.asarray(x)
    d = mc.cdist(xj, xj[:5], 1.3)
    assert d.dtype == np.float64
    np.testing.assert_allclose(d, mc.cdist(x, x[:5], 1.3), 1e-14)
    whole = jax.numpy.asarray([[2**24 + 1, 3], [2**24, -(2**31)]], "int32")
    d = mc.cdist(whole, whole[1:], p=1)
    assert d.dtype == np.float64
    assert d.tolist() == [[2.0**31 + 4], [0.0]]
    values, indices = mc.knn("l1", whole, whole, 2)
    assert values[0].tolist() == [0.0, 2.0**31 + 4]
    assert indices.tolist() == [[0, 1], [1, 0]]
    values, indices = jax.jit(lambda x: mc.knn("l1", x, None, 2))(xj)
    assert indices.dtype == np.int64
    np.testing.assert_array_equal(indices, mc.knn("l1", x, None, 2)[1])
    assert mc.cdist(xj.astype("float32"), None).dtype == np.float32
"""


def test_64_bits():
    subprocess.run([sys.executable, "-c", textwrap.dedent(WIDE)], check=True)
