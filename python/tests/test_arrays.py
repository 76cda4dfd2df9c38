"""Arrays of any library, layout and dtype go in; arrays of the caller's library come out."""

from __future__ import annotations

import sys

import mercer as mc
import numpy as np
import pytest
from conftest import assert_close, minkowski, to_library, to_numpy

pytestmark = pytest.mark.quick

torch = pytest.importorskip("torch")


def layouts(array):
    """The array's values in every layout that a view can have."""
    rows, columns = array.shape
    padded = np.zeros((rows + 2, columns + 3), array.dtype)
    padded[1:-1, 2:-1] = array
    spaced = np.zeros((2 * rows, 3 * columns), array.dtype)
    spaced[::2, ::3] = array
    return {
        "row-major": np.ascontiguousarray(array),
        "column-major": np.asfortranarray(array),
        "padded": padded[1:-1, 2:-1],
        "spaced": spaced[::2, ::3],
        "reversed": np.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1],
    }


LAYOUTS = ["row-major", "column-major", "padded", "spaced", "reversed"]


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("batch", [(), (2,), (3, 1, 2), (0,)])
def test_results_are_as_numpy_makes_arrays(rng, batch, dtype):
    x, z = rng.normal(size=(*batch, 4, 3)).astype(dtype), rng.normal(size=(5, 3)).astype(dtype)
    values, indices = mc.knn("euclidean", x, z, 2)
    for result, shape, made in (
        (mc.cdist(x, z), (4, 5), dtype), (values, (4, 2), dtype), (indices, (4, 2), "q"),
    ):  # fmt: skip
        expected = np.empty((*batch, *shape), made)
        assert type(result) is np.ndarray
        assert result.dtype == expected.dtype
        assert (result.shape, result.strides) == (expected.shape, expected.strides)
        assert result.flags.owndata
        assert result.flags.writeable


def test_results_hold_one_reference_to_their_dtype(rng):
    x, single = rng.normal(size=(4, 3)).astype("f"), np.dtype("f")
    mc.cdist(x, None)
    before = sys.getrefcount(single)
    results = [mc.cdist(x, None) for _ in range(50)]
    assert sys.getrefcount(single) == before + len(results)
    del results
    assert sys.getrefcount(single) == before


@pytest.mark.parametrize("layout_z", LAYOUTS)
@pytest.mark.parametrize("layout_x", LAYOUTS)
def test_layouts(rng, library, layout_x, layout_z):
    x, z = rng.normal(size=(7, 5)).astype("f"), rng.normal(size=(9, 5)).astype("f")
    views = layouts(x)[layout_x], layouts(z)[layout_z]
    if library is torch and "reversed" in (layout_x, layout_z):
        pytest.skip("PyTorch has no negative strides")
    result = mc.cdist(*(to_library(library, v) for v in views), p=1)
    assert_close(result, minkowski(x, z, 1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_out(rng, library, layout):
    if library is torch and layout == "reversed":
        pytest.skip("PyTorch has no negative strides")
    x, z = rng.normal(size=(7, 5)).astype("f"), rng.normal(size=(9, 5)).astype("f")
    out = to_library(library, layouts(np.zeros((7, 9), "f"))[layout])
    result = mc.cdist(to_library(library, x), to_library(library, z), p=1, out=out)
    assert result is out
    assert_close(out, minkowski(x, z, 1))


def test_broadcast_points(rng):
    x = np.broadcast_to(rng.normal(size=(1, 5)).astype("f"), (6, 5))  # strides of zero
    z = rng.normal(size=(4, 5)).astype("f")
    assert_close(mc.cdist(x, z), minkowski(x, z, 2))
    assert_close(mc.cdist(x, None), np.zeros((6, 6)))


def test_expanded_tensor(rng):
    x = torch.from_numpy(rng.normal(size=(1, 5)).astype("f")).expand(6, 5)
    assert_close(mc.cdist(x, None), np.zeros((6, 6)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int8", "int32"])
def test_dtypes(rng, library, dtype):
    scale = {"uint8": 40, "int8": 30, "int32": 5e8}.get(dtype, 1)
    x, z = rng.normal(size=(7, 5)) * scale, rng.normal(size=(9, 5)) * scale
    if dtype == "uint8":
        x, z = np.abs(x), np.abs(z)
    x, z = x.astype(dtype), z.astype(dtype)
    result = mc.cdist(to_library(library, x), to_library(library, z), p=1)
    is_wide = dtype in ("float64", "int32")
    assert result.dtype == (library.float64 if is_wide else library.float32)
    assert_close(result, minkowski(x.astype("d"), z.astype("d"), 1), 1e-12 if is_wide else 1e-5)


def test_int32_is_not_rounded(library):
    """2^24 + 1 would be 2^24 in float32."""
    x = to_library(library, np.array([[2**24 + 1, -(2**31)], [2**31 - 1, 2]], "i4"))
    z = to_library(library, np.array([[2**24, 2**31 - 1]], "i4"))
    exact = np.array([[2.0**32], [2.0**31 - 1 - 2**24 + 2**31 - 3]])
    assert np.array_equal(np.asarray(mc.cdist(x, z, p=1)), exact)
    values, indices = mc.knn("l1", z, x, 1)
    assert float(values[0, 0]) == exact.min()
    assert int(indices[0, 0]) == exact.argmin()
    w = to_library(library, np.array([2**24 + 1, 0], "i4"))
    assert float(mc.pairwise("sum(w*abs(x-z))", x, z, w=w)[0, 0]) == 2**24 + 1
    narrow = to_library(library, np.ones((2, 2), "f"))
    with pytest.raises(mc.DtypeError, match="w may be int32 where x is float64 or int32"):
        mc.pairwise("sum(w*abs(x-z))", narrow, w=w)


def test_other_operands_of_whole_points(library):
    """v and coef of a type that is computed in that of x."""
    x = np.array([[1, -2], [3, 4], [-5, 6]])
    for kind, others, refused in (("i1", ("i1", "f4", "u1"), "i4"), ("i4", ("i4", "f8"), "f4")):
        for other in others:
            v = np.array([1, 2, 3]).astype(other)
            given = [to_library(library, a) for a in (x.astype(kind), v)]
            result = mc.kernel_product("sum(x*z)", given[0], None, given[1])
            assert_close(result, x @ x.T @ v, 1e-6)
            gradient = mc.kernel_gradient("sum(x*z)", given[0], None, given[1])
            assert_close(gradient, np.broadcast_to(v @ x, (3, 2)), 1e-6)
        wrong = to_library(library, np.ones(3, refused))
        with pytest.raises(mc.DtypeError, match="v must have the computing type of x"):
            mc.kernel_product("sum(x*z)", given[0], None, wrong)


def test_whole_points_and_gradients_of_the_rest():
    x = torch.tensor([[1, -2], [3, 4], [-5, 6]])
    for kind, computed in ((torch.int8, torch.float32), (torch.int32, torch.float64)):
        v = torch.ones(3, dtype=computed, requires_grad=True)
        h = torch.tensor(50.0, dtype=computed, requires_grad=True)
        f = "exp(-sum((x-z)^2)/h)"
        mc.kernel_product(f, x.to(kind), None, v, h=h).sum().backward()
        wide = x.double()
        d2 = torch.cdist(wide, wide) ** 2
        k = torch.exp(-d2 / 50)
        assert_close(v.grad, k.sum(0).numpy(), 1e-5)
        assert_close(h.grad, float((k * d2 / 2500).sum()), 1e-5)
        with pytest.raises(RuntimeError, match="floating point"):
            x.to(kind).requires_grad_()


def test_bfloat16(rng):
    x = torch.from_numpy(rng.normal(size=(7, 5)).astype("f")).bfloat16()
    z = torch.from_numpy(rng.normal(size=(9, 5)).astype("f")).bfloat16()
    result = mc.cdist(x, z, p=1)
    assert result.dtype == torch.float32
    assert_close(result, minkowski(x.float().numpy(), z.float().numpy(), 1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16_of_numpy(rng, layout):
    """As the package ml_dtypes has it, of which JAX makes its own."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x, z = rng.normal(size=(7, 5)).astype(bfloat16), rng.normal(size=(9, 5)).astype(bfloat16)
    wide = x.astype("f"), z.astype("f")
    views = layouts(x)[layout], layouts(z)[layout]
    np.testing.assert_array_equal(mc.cdist(*views, 1), mc.cdist(*wide, 1))
    w = rng.random(5).astype(bfloat16)
    np.testing.assert_array_equal(mc.cdist(*views, 1, w=w), mc.cdist(*wide, 1, w=w.astype("f")))
    out = layouts(np.zeros((7, 9), bfloat16))[layout]
    assert mc.cdist(*views, 1, out=out) is out
    np.testing.assert_array_equal(out, mc.cdist(*wide, 1).astype(bfloat16))
    factor = layouts(rng.normal(size=(5, 3)).astype(bfloat16))[layout]
    product = mc.kron.matmul(views[0], [factor])
    assert product.dtype == bfloat16
    np.testing.assert_allclose(
        product.astype("f"), wide[0] @ factor.astype("f"), rtol=2**-8, atol=2**-8
    )
    out.flags.writeable = False
    with pytest.raises(ValueError, match="must be writable"):
        mc.cdist(*views, 1, out=out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_out_of_16_bits(rng, dtype):
    x = torch.from_numpy(rng.normal(size=(7, 5)).astype("f")).to(dtype)
    out = mc.cdist(x, None, p=1, out=torch.empty(7, 7, dtype=dtype))
    exact = minkowski(x.float().numpy(), x.float().numpy(), 1)
    assert_close(out.float(), exact, 2**-8)


def test_results_have_the_type_of_the_caller(rng, library):
    x = to_library(library, rng.normal(size=(7, 5)).astype("f"))
    kind = type(x)
    v = to_library(library, rng.normal(size=(7, 2)).astype("f"))
    assert type(mc.cdist(x, None)) is kind
    assert type(mc.kernel_product("sum(x*z)", x, None, v)) is kind
    assert type(mc.kernel_reduce("sum(x*z)", x, None, "max")) is kind
    assert [type(a) for a in mc.knn("euclidean", x, None, 2)] == [kind, kind]
    assert mc.knn("euclidean", x, None, 2)[1].dtype == library.int64
    assert mc.kernel_reduce("euclidean", x, None, "argmin").dtype == library.int64


def test_memory_mapped_and_read_only_points(rng, tmp_path):
    x = rng.normal(size=(7, 5)).astype("f")
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert_close(mc.cdist(mapped, mapped), minkowski(x, x, 2))


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (0, 0, 4), (3, 2, 0), (0, 0, 0)])
def test_empty(library, m, n, k):
    x, z = library.ones((m, k)), library.ones((n, k))
    result = mc.cdist(x, z)
    assert tuple(result.shape) == (m, n)
    assert_close(result, np.zeros((m, n)))


def test_leading_axes_broadcast(rng, library):
    x, z = rng.normal(size=(3, 1, 7, 5)).astype("f"), rng.normal(size=(2, 9, 5)).astype("f")
    result = mc.cdist(to_library(library, x), to_library(library, z))
    assert tuple(result.shape) == (3, 2, 7, 9)
    assert_close(result, minkowski(x, z, 2))


def test_the_same_points_by_object_or_by_memory(rng, library):
    x = to_library(library, rng.normal(size=(30, 5)).astype("f"))
    for z in (None, x, x[:]):
        result = to_numpy(mc.cdist(x, z, p=1.3))
        np.testing.assert_array_equal(result, result.T)
        np.testing.assert_array_equal(np.diag(result), 0)


class Foreign:
    """An array of a library that nobody has heard of: NumPy's memory behind DLPack."""

    def __init__(self, array, versioned=True):
        self.array, self.versioned = array, versioned

    def __array_namespace__(self):
        return Foreign.Namespace

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        if options and not self.versioned:
            raise TypeError("no options here")
        return self.array.__dlpack__(**options)

    class Namespace:
        float32, float64, int64 = "float32", "float64", "int64"

        @staticmethod
        def empty(shape, dtype):
            return Foreign(np.empty(shape, dtype))


@pytest.mark.parametrize("versioned", [True, False])
def test_any_library_with_dlpack(rng, versioned):
    x, z = rng.normal(size=(7, 5)).astype("f"), rng.normal(size=(9, 5)).astype("f")
    result = mc.cdist(Foreign(x, versioned), Foreign(z, versioned), p=1)
    assert isinstance(result, Foreign)
    assert_close(result.array, minkowski(x, z, 1))


def test_subclasses(rng):
    x = rng.normal(size=(7, 5)).astype("f")
    parameter = torch.nn.Parameter(torch.from_numpy(x), requires_grad=False)
    assert_close(mc.cdist(parameter, None), minkowski(x, x, 2))


def test_tensors_with_gradients_inside_no_grad(rng):
    x = torch.from_numpy(rng.normal(size=(7, 5)).astype("f")).requires_grad_()
    with torch.no_grad():
        assert_close(mc.cdist(x, None), minkowski(x.numpy(), x.numpy(), 2))


def test_arrays_are_not_kept(rng):
    import sys

    x, z = rng.normal(size=(7, 5)).astype("f"), rng.normal(size=(9, 5)).astype("f")
    before = sys.getrefcount(x), sys.getrefcount(z)
    for _ in range(10):
        mc.cdist(x, z)
    assert (sys.getrefcount(x), sys.getrefcount(z)) == before
    x.resize((8, 5), refcheck=True)  # refused while somebody looks at the memory
