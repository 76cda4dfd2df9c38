"""Arrays of NumPy as the engine views them: layouts, types and flags that their fields tell."""

from __future__ import annotations

import ctypes
import platform

import mercer as mc
import numpy as np
import pytest

DOT = "sum(x*z)"


def has_no_buffer(array):
    """Whether nobody has asked for the array's buffer, which NumPy then keeps in its last field."""
    place = ctypes.c_void_p.from_address(id(array) + 80)
    return (place.value or 0) & ~7 == 0


def expected(x, z):
    return np.asarray(x, np.float64) @ np.asarray(z, np.float64).T


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "uint8", "int8", "int32", "=f4", "<f8", "i"]
)
def test_types_of_points(dtype):
    values = np.arange(15).reshape(3, 5)
    x, z = values.astype(dtype), (values[::-1] + 1).astype(dtype)
    np.testing.assert_array_equal(mc.pairwise(DOT, x, z), expected(x, z))


@pytest.mark.skipif(
    platform.python_implementation() != "CPython" or platform.machine() != "x86_64",
    reason="NumPy's fields have other places",
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int8", "int32"])
def test_fields_are_read_in_place(dtype):
    mc.pairwise(DOT, np.ones((1, 1)))  # the first array of a process is viewed both ways
    x, out = np.ones((2, 3), dtype), np.empty((2, 2), "f8" if dtype == "int32" else "f4")
    assert has_no_buffer(x)
    mc.pairwise(DOT, x, out=out if dtype != "float64" else None)
    assert has_no_buffer(x)
    memoryview(x)
    assert not has_no_buffer(x)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::2, 1:4], lambda a: a[::-1, ::-1], lambda a: a.T[:7], np.asfortranarray,
        lambda a: np.broadcast_to(a[:1], a.shape), lambda a: a[:, :0], lambda a: a[:0],
        lambda a: a[2:3],
    ],
)  # fmt: skip
def test_layouts_of_points_and_outputs(view):
    whole = np.arange(70.0).reshape(7, 10)
    x, z = view(whole), view(whole + 3)
    np.testing.assert_array_equal(mc.pairwise(DOT, x, z), expected(x, z))
    wide = np.full((2 * len(x), 3 * len(z)), -1.0)
    out = wide[::2, ::3]
    assert mc.pairwise(DOT, x, z, out=out) is out
    np.testing.assert_array_equal(out, expected(x, z))
    assert (wide[1::2] == -1).all()


def test_arrays_that_are_refused():
    x = np.ones((2, 3), np.float32)
    for dtype in (np.float32, np.float64):
        fixed = np.empty((2, 2), dtype)
        fixed.flags.writeable = False
        with pytest.raises(ValueError, match=r"must be writable\. Received a read-only array"):
            mc.pairwise(DOT, x.astype(dtype), out=fixed)
    with pytest.raises(mc.DtypeError, match="must be in the byte order of this machine"):
        mc.pairwise(DOT, x.astype(">f4"))
    with pytest.raises(mc.DtypeError, match="must be float16"):
        mc.pairwise(DOT, np.ones((2, 3), np.complex64))
    for dtype in (np.float32, np.float64):
        bytes_ = np.zeros(6 * np.dtype(dtype).itemsize + 1, np.uint8)
        odd = bytes_[1:].view(dtype).reshape(2, 3)
        with pytest.raises(ValueError, match="must have its elements at multiples of their size"):
            mc.pairwise(DOT, odd)


def test_a_text_that_is_made_anew_is_read_anew():
    """Texts are known by the object that they are; another one may take its place in memory."""
    x = np.arange(6.0).reshape(2, 3)
    for power in range(2, 300):
        text = f"sum(x*z)+{power}"
        np.testing.assert_array_equal(mc.pairwise(text, x, x), expected(x, x) + power)
        del text
    weighted = np.array([1.0, 2.0, 3.0])
    name = "sqeuclidean"
    for _ in range(2):
        np.testing.assert_allclose(mc.cdist(x, x[:1], metric=name)[1, 0], 27)
        np.testing.assert_allclose(mc.cdist(x, x[:1], metric=name, w=weighted)[1, 0], 54)
