"""``kernel_product(..., normalize=)`` against softmax and sums in float64."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def points(dtype, *shapes):
    rng = np.random.default_rng(3)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


# An exponent of size s has an error of eps s, and so has its weight; the mean of v with such
# weights is off by at most twice that of the largest |v|. K + 2 roundings in a product of points.
@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax(dtype, scale):
    x, z, v = points(dtype, (2, 33, 4), (57, 4), (57, 5))
    s = scale * (x.astype("f8") @ z.astype("f8").T)
    found = mc.kernel_product("a*sum(x*z)", x, z, v, normalize="softmax", a=scale)
    size = scale * (np.abs(x) @ np.abs(z).T).max()
    bound = 4 * (4 + 2) * np.finfo(dtype).eps * (size + 57) * np.abs(v).max()
    assert found.dtype == v.dtype
    assert found.shape == (2, 33, 5)
    np.testing.assert_allclose(found, softmax(s) @ v, rtol=0, atol=bound)
    column = mc.kernel_product("a*sum(x*z)", x, z, v[:, 0], normalize="softmax", a=scale)
    np.testing.assert_allclose(column, softmax(s) @ v[:, 0], rtol=0, atol=bound)


def test_rows_whose_exponents_overflow_alone():
    x, z, v = points("float64", (5, 2), (9, 2), (9, 1))
    found = mc.kernel_product("1e4*sum(x*z)", x, z, v, normalize="softmax")
    np.testing.assert_allclose(found, softmax(1e4 * x @ z.T) @ v, rtol=1e-9)
    far = mc.kernel_product("-1e6-sum(square(x-z))", x, z, v, normalize="softmax")
    near = mc.kernel_product("-sum(square(x-z))", x, z, v, normalize="softmax")
    np.testing.assert_allclose(far, near, rtol=1e-8)
    z[3] = np.nan
    assert np.isnan(mc.kernel_product("sum(x*z)", x, z, v, normalize="softmax")).all()


def test_sum_is_kernel_smoothing_and_reads_all_operands():
    x, z, v, row, col, w = points("float64", (7, 3), (11, 3), (11, 2), 7, 11, 3)
    f = "exp(-sum(w*w*square(x-z)))*(2+sin(row))*(2+cos(col+j))"
    k = mc.kernel_matrix(f, x, z, row=row, col=col, w=w)
    found = mc.kernel_product(f, x, z, v, row=row, col=col, w=w, normalize="sum")
    np.testing.assert_allclose(found, k @ v / k.sum(1, keepdims=True), rtol=1e-12)
    s = mc.pairwise("col*sum(w*x*z)", x, z, col=col, w=w, j_offset=3)
    found = mc.kernel_product(
        "col*sum(w*x*z)", x, z, v, col=col, w=w, j_offset=3, normalize="softmax"
    )
    np.testing.assert_allclose(found, softmax(s) @ v, rtol=1e-12)


def test_one_set_lists_functions_and_out():
    x, v = points("float64", (6, 3), (6, 2))
    expected = softmax(x @ x.T) @ v
    out = np.empty((6, 2))
    f = mc.kernel(lambda x, z: mc.sum(x * z))
    assert mc.kernel_product(f, x, None, v, normalize="softmax", out=out) is out
    np.testing.assert_allclose(out, expected, rtol=1e-13)
    lists = mc.kernel_product("sum(x*z)", x.tolist(), None, v.tolist(), normalize="softmax")
    np.testing.assert_allclose(lists, expected, rtol=1e-13)


def test_without_points():
    x, z, v = np.ones((3, 2)), np.ones((0, 2)), np.ones((0, 4))
    assert np.isnan(mc.kernel_product("sum(x*z)", x, z, v, normalize="sum")).all()
    assert mc.kernel_product("sum(x*z)", x[:0], x, x, normalize="softmax").shape == (0, 2)


def read_only(shape):
    array = np.zeros(shape)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"normalize": "l2"}, ValueError, "one of softmax, sum"),
        ({"normalize": "sum", "out": np.zeros((3, 3))}, ValueError, "shape .5, 1."),
        ({"normalize": "sum", "out": np.zeros((5, 1), "f4")}, ValueError, "float64"),
        ({"normalize": "softmax", "out": read_only((5, 1))}, ValueError, "out must be writable"),
        ({"normalize": "softmax", "out": [[0.0]] * 5}, ValueError, "out must be an array"),
        ({"normalize": "sum", "workspace": np.zeros(9, "u1")}, NotImplementedError, "workspace"),
        ({"normalize": "softmax", "row": np.zeros(5)}, ValueError, "does not read it"),
        ({"normalize": "softmax", "device": "cpu"}, ValueError, "kernel_product: device"),
    ],
)
def test_refusals_write_nothing(options, error, words):
    x, z, v = points("float64", (5, 2), (9, 2), (9, 1))
    with pytest.raises(error, match=words):
        mc.kernel_product("sum(x*z)", x, z, v, **options)
    assert not np.any(options.get("out", 0))


def test_values_that_are_no_arrays_or_have_a_mask_are_refused():
    sparse = pytest.importorskip("scipy.sparse")
    x, z, v = points("float64", (5, 2), (9, 2), (9, 1))
    with pytest.raises(NotImplementedError, match="v must have no mask"):
        mc.kernel_product("sum(x*z)", x, z, np.ma.masked_array(v, v > 0), normalize="sum")
    for wrong in ("v", sparse.csr_array(v), 1.0):
        with pytest.raises(ValueError, match="v must be an array"):
            mc.kernel_product("sum(x*z)", x, z, wrong, normalize="softmax")


def test_out_is_refused_where_pytorch_records():
    torch = pytest.importorskip("torch")
    x, z, v = (torch.tensor(a, requires_grad=True) for a in points("f8", (4, 2), (5, 2), (5, 3)))
    out = torch.zeros(4, 3, dtype=torch.float64)

    def into(x, z, v, out):
        return mc.kernel_product("sum(x*z)", x, z, v, normalize="softmax", out=out)

    with pytest.raises(NotImplementedError, match="records"):
        into(x, z, v, out)
    traced = torch.compile(into, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="out is not offered"):
        traced(x.detach(), z.detach(), v.detach(), out)
    with pytest.raises(NotImplementedError, match="must not track gradients"):
        into(x.detach(), z.detach(), v.detach(), out.clone().requires_grad_())
    with pytest.raises(ValueError, match="library of x"):
        into(x.detach(), z.detach(), v.detach(), out.numpy())
    assert not out.any()
    into(x.detach(), z.detach(), v.detach(), out)
    torch.testing.assert_close(out, torch.softmax(x @ z.T, -1) @ v)


def test_formulas_that_read_row_are_refused_for_softmax():
    x, z, v = points("float64", (5, 2), (9, 2), (9, 1))
    with pytest.raises(NotImplementedError, match="must not read row"):
        mc.kernel_product("row*sum(x*z)", x, z, v, row=np.ones(5), normalize="softmax")
    with pytest.raises(NotImplementedError, match="two calls"):
        mc.workspace_size("kernel_product", "gauss", x, z, v, normalize="sum", bandwidth=1.0)


def test_derivatives_in_pytorch():
    torch = pytest.importorskip("torch")
    x, z, v = (torch.tensor(a, requires_grad=True) for a in points("f8", (4, 2), (5, 2), (5, 3)))
    s = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def attention(x, z, v, s):
        return mc.kernel_product("s*sum(x*z)", x, z, v, s=s, normalize="softmax")

    assert torch.autograd.gradcheck(attention, (x, z, v, s))
    assert torch.autograd.gradgradcheck(attention, (x, z, v, s))
    found = torch.compile(attention, fullgraph=True)(x, z, v, s)
    torch.testing.assert_close(found, torch.softmax(s * x @ z.T, -1) @ v)


def test_derivatives_in_jax():
    jax = pytest.importorskip("jax")
    x, z, v = points("float32", (4, 2), (5, 2), (5, 3))

    def loss(product):
        return lambda x, z, v: (product(x, z, v) ** 2).sum()

    ours = loss(lambda *a: mc.kernel_product("sum(x*z)", *a, normalize="softmax"))
    theirs = loss(lambda x, z, v: jax.nn.softmax(x @ z.T) @ v)
    for found, expected in zip(
        jax.jit(jax.grad(ours, (0, 1, 2)))(x, z, v), jax.grad(theirs, (0, 1, 2))(x, z, v),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_on_a_gpu(cuda):
    x, z, v = points("float32", (300, 16), (500, 16), (500, 16))
    there = [cuda.tensor(array, device="cuda") for array in (x, z, v)]
    found = mc.kernel_product("sum(x*z)", *there, normalize="softmax")
    s = x.astype("f8") @ z.astype("f8").T
    np.testing.assert_allclose(found.cpu(), softmax(s) @ v, atol=1e-4)
