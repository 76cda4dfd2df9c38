"""How arrays of devices are read, as far as that shows without one; test_cuda.py has the rest."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap

import mercer as mc
import numpy as np
import pytest
from conftest import assert_close

torch = pytest.importorskip("torch")
X, Z = np.ones((4, 3), "f"), np.ones((5, 3), "f")


pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class OnDevice:
    """NumPy's memory that says it lies on a device, behind DLPack."""

    def __init__(self, array, kind, index=0):
        self.array, self.device_, self.streams = array, (kind, index), []

    def __dlpack_device__(self):
        return self.device_

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        capsule = self.array.__dlpack__(max_version=max_version)
        versioned = '"dltensor_versioned"' in repr(capsule)
        managed = pointer_of(capsule, b"dltensor_versioned" if versioned else b"dltensor")
        tensor = managed + (
            32 if versioned else 0
        )  # the struct begins with its data, then has its device
        (ctypes.c_int32 * 2).from_address(tensor + 8)[:] = self.device_
        return capsule


CUDA, PINNED, MANAGED, VULKAN = 2, 3, 13, 7


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (
            (CUDA, 0),
            (CUDA, 1),
            "z must lie on the device of x, cuda:0. Received an array on cuda:1",
        ),
        ((CUDA, 2), (PINNED, 0), "z must lie on the device of x, cuda:2. Received an array on cpu"),
        (
            (PINNED, 0),
            (MANAGED, 1),
            "z must lie on the device of x, cpu. Received an array on cuda:1",
        ),
    ],
)
def test_one_device_a_call(first, second, words):
    with pytest.raises(ValueError, match=words):
        mc.cdist(OnDevice(X, *first), OnDevice(Z, *second))


def test_parameters_of_a_call_on_the_cpu_lie_there_too():
    h = OnDevice(np.ones(2, "f"), CUDA, 0)
    x, out = OnDevice(X, PINNED), OnDevice(np.empty((2, 4, 4), "f"), PINNED)
    with pytest.raises(ValueError, match=r"h must lie on the device of x, cpu. Received .* cuda:0"):
        mc.pairwise("sum(x*z)*h", x, h=h, out=out)


def test_pinned_memory_is_memory_of_the_cpu():
    out = np.empty((4, 5), "f")
    mc.cdist(OnDevice(X, PINNED), OnDevice(Z, PINNED), out=OnDevice(out, PINNED))
    assert_close(out, np.zeros((4, 5)))


def test_dlpack_orders_for_the_legacy_default_stream():
    x, z = OnDevice(X, CUDA), OnDevice(Z, CUDA, 1)
    with pytest.raises(ValueError, match="device"):
        mc.cdist(x, z)
    assert set(x.streams) == {1}
    pinned = OnDevice(X, PINNED)
    mc.cdist(pinned, None, out=OnDevice(np.empty((4, 4), "f"), PINNED))
    assert set(pinned.streams) == {None}


def test_other_devices_are_refused():
    with pytest.raises(NotImplementedError, match=r"CPU or on a CUDA device. Received .* type 7"):
        mc.cdist(OnDevice(X, VULKAN), None)


def test_a_library_without_empty_needs_out():
    with pytest.raises(
        ValueError, match="out must be given where the library of x has no function"
    ):
        mc.cdist(OnDevice(X, PINNED), None)


class Interface:
    """The CUDA array interface alone."""

    def __init__(self, **entries):
        self.__cuda_array_interface__ = {
            "shape": (4, 3), "typestr": "<f4", "data": (0x1000, False), "version": 3,
        } | entries  # fmt: skip


@pytest.mark.skipif("GPU 0" in mc.info(), reason="a CUDA driver is here")
def test_the_cuda_array_interface_needs_a_driver():
    with pytest.raises((NotImplementedError, mc.DeviceError), match="CUDA"):
        mc.cdist(Interface(), None)


@pytest.mark.parametrize(
    ("entries", "kind", "words"),
    [
        ({"typestr": ">f4"}, mc.DtypeError, "Received >f4"),
        ({"typestr": "<i2"}, mc.DtypeError, "must be float16"),
        ({"mask": object()}, NotImplementedError, "must have no mask"),
        ({"strides": (13, 4)}, ValueError, "at multiples of their size"),
    ],
)
def test_the_cuda_array_interface(entries, kind, words):
    with pytest.raises(kind, match=words):
        mc.cdist(Interface(**entries), None)


# What Mercer reads of CuPy's arrays, streams and devices, for a machine without it.
CUPY = """
    import sys, types, numpy as np
    cupy = types.ModuleType("cupy")
    log = []

    class ndarray:
        def __init__(self, array, device):
            self.array = array
            self.data = types.SimpleNamespace(ptr=array.ctypes.data, device_id=device)
            self.dtype, self.shape, self.strides = array.dtype, array.shape, array.strides

    class Runtime:
        device = 0
        def getDevice(self):
            return self.device
        def setDevice(self, device):
            log.append(device)
            self.device = device

    def get_current_stream():
        log.append(f"stream on {cupy.cuda.runtime.device}")
        return types.SimpleNamespace(ptr=0)

    cupy.ndarray, cupy.empty = ndarray, None
    cupy.cuda = types.SimpleNamespace(runtime=Runtime(), get_current_stream=get_current_stream)
    sys.modules["cupy"] = cupy

    import mercer as mc
    x = ndarray(np.ones((4, 6), "f")[:, ::2], 1)
    try:
        mc.cdist(x, ndarray(np.ones((4, 3), "f"), 0))
    except ValueError as error:
        print(error, log)
    try:
        mc.cdist(ndarray(np.ones((4, 3), "i2"), 0), None)
    except mc.DtypeError as error:
        print(error)
"""


def test_cupy_by_its_attributes():
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CUPY)], capture_output=True, text=True, check=True
    )
    first, second = run.stdout.splitlines()
    assert "z must lie on the device of x, cuda:1. Received an array on cuda:0" in first
    assert first.endswith("[1, 'stream on 1', 0]")
    assert "write x.astype('float32')" in second


@pytest.mark.parametrize("library", [np, torch])
def test_a_workspace_is_checked_on_the_cpu_too(library):
    x = library.ones((4, 3), dtype=library.float32)
    memory = library.empty(4096, dtype=library.uint8)
    assert_close(mc.cdist(x, None, workspace=memory), np.zeros((4, 4)))
    for wrong in (x, memory[::2], memory.reshape(2, -1)):
        with pytest.raises(ValueError, match="workspace must be a contiguous array of uint8"):
            mc.cdist(x, None, workspace=wrong)


def test_leading_axes_of_every_array_count(rng):
    """The output made for the caller has the axes of all arrays, not of the points alone."""
    x, z = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    dots = x @ z.T
    row, col = rng.normal(size=(2, 4)), rng.normal(size=(6, 1, 5))
    expected = dots + row[:, :, None] + col[..., None, :]
    assert_close(mc.pairwise("sum(x*z) + row + col", x, z, row=row, col=col), expected)
    v = rng.normal(size=(2, 5, 7))
    assert_close(mc.kernel_product("sum(x*z)", x, z, v), dots @ v)
    coef = rng.normal(size=(2, 3, 5))
    assert_close(
        mc.kernel_gradient("sum(x*z)", x, z, coef),
        np.broadcast_to((coef @ z)[:, :, None, :], (2, 3, 4, 3)),
    )
    amplitude = rng.normal(size=(6, 1, 4, 5))
    assert_close(
        mc.gradient_field("z", x, z, amplitude, coef),
        np.einsum("bon,amn,nk->abomk", coef, amplitude[:, 0], z),
    )
