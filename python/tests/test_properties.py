"""Random shapes, strides, dtypes and formulas against NumPy."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest
from conftest import assert_close, differences
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

# (text over {x} and {z}, the same in NumPy on x, z and their difference g, in float64)
FORMULAS = [
    ("sum(abs({x}-{z}))", lambda x, z, g: np.abs(g).sum(-1)),
    ("sqrt(sum(square({x}-{z})))", lambda x, z, g: np.sqrt((g * g).sum(-1))),
    ("sum(abs({x}-{z})^1.5)", lambda x, z, g: (np.abs(g) ** 1.5).sum(-1)),
    ("exp(-sum(abs({x}-{z})^0.7)/8)", lambda x, z, g: np.exp(-(np.abs(g) ** 0.7).sum(-1) / 8)),
    ("max(abs({x}-{z}))", lambda x, z, g: np.abs(g).max(-1)),
    ("min({x}+{z})", lambda x, z, g: (x + z).min(-1)),
    ("sum({x}*{z}) + 1", lambda x, z, g: (x * z).sum(-1) + 1),
    ("sum(min({x}, {z}))/(1 + sum(max({x}, {z})^2))",
     lambda x, z, g: np.minimum(x, z).sum(-1) / (1 + (np.maximum(x, z) ** 2).sum(-1))),
    ("prod(1 + tanh({x}*{z})/8)", lambda x, z, g: np.prod(1 + np.tanh(x * z) / 8, -1)),
    ("logsumexp({x} - {z})", lambda x, z, g: np.log(np.exp(g).sum(-1))),
    ("K*sum(square({x})) - sum({z})",
     lambda x, z, g: x.shape[-1] * (x * x).sum(-1) - z.sum(-1)),
]  # fmt: skip

sizes = st.integers(1, 40)
steps = st.sampled_from([1, 2, -1])


@st.composite
def points(draw, features, batch, dtype):
    """A view [batch, points, features] with drawn strides."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (*batch, draw(sizes), features)
    strides = [draw(steps) for _ in shape]
    backing = [n * abs(s) for n, s in zip(shape, strides, strict=True)]
    order = draw(st.permutations(range(len(shape))))
    array = rng.normal(size=[backing[a] for a in order]) * (1 if "float" in dtype else 20)
    array = np.abs(array) if dtype == "uint8" else array
    array = array.astype(dtype).transpose(np.argsort(order))
    return array[tuple(slice(None, None, s) for s in strides)][tuple(slice(n) for n in shape)]


@st.composite
def calls(draw):
    features = draw(st.integers(1, 70))
    dtype = draw(st.sampled_from(["float16", "float32", "float64", "uint8", "int8", "int32"]))
    batches = draw(st.sampled_from([((), ()), ((2,), ()), ((3, 1), (2,)), ((), (2,))]))
    return tuple(draw(points(features, batch, dtype)) for batch in batches)


@given(calls(), st.sampled_from(FORMULAS))
def test_pairwise(arrays, formula):
    x, z = arrays
    text, exact = formula
    # Whole numbers are large: brought near 1 inside the formula.
    scale, names = (64, ("(x/64)", "(z/64)")) if x.dtype.kind in "iu" else (1, ("x", "z"))
    result = mc.pairwise(text.format(x=names[0], z=names[1]), x, z)
    wide_x, wide_z = x.astype(np.float64) / scale, z.astype(np.float64) / scale
    expected = exact(wide_x[..., :, None, :], wide_z[..., None, :, :], differences(wide_x, wide_z))
    assert result.shape == expected.shape
    assert_close(result, expected, 1e-10 if x.dtype == np.float64 else 2e-5)


@given(calls())
def test_same_values_in_any_layout(arrays):
    x, z = arrays
    plain = mc.cdist(np.ascontiguousarray(x), np.ascontiguousarray(z), 1.3)
    np.testing.assert_array_equal(mc.cdist(x, z, 1.3), plain)


@given(calls(), st.integers(0, 3))
def test_products(arrays, columns):
    x, z = arrays
    v = np.random.default_rng(0).normal(size=(z.shape[-2], columns))
    v = v.astype(np.float64 if x.dtype in (np.float64, np.int32) else np.float32)
    k = mc.pairwise("laplace", x, z, bandwidth=50.0)
    assert_close(mc.kernel_product("laplace", x, z, v, bandwidth=50.0), k.astype("d") @ v)


@given(calls(), st.integers(1, 6))
def test_nearest(arrays, k):
    x, z = arrays
    k = min(k, z.shape[-2])
    distances = mc.cdist(x, z, 1)
    values, indices = mc.knn("cityblock", x, z, k)
    # Two verbs may take two ways, whose values differ in their last bits.
    found = np.take_along_axis(distances, indices, -1)
    rtol = 2e-6 if values.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(values, found, rtol)
    np.testing.assert_allclose(found, np.sort(distances, -1)[..., :k], rtol)
