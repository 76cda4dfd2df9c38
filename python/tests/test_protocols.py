"""What arrays say of themselves is checked before it is used: whatever a protocol's object says, a
call raises an error of Python or is right; it never crashes, and the next call is right."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import types

import mercer as mc
import numpy as np
import pytest
from conftest import assert_close, minkowski

X = np.arange(12, dtype="f").reshape(4, 3)
# Errors that say what was wrong. A SystemError, a RuntimeError or a crash says nothing.
FAULTS = (ValueError, TypeError, NotImplementedError, AttributeError, mc.DeviceError)


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", DLTensor),
    ]  # fmt: skip


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Described:
    """Memory of NumPy behind a capsule of DLPack; `changes` are its fields or how it is given."""

    def __init__(self, versioned=True, **changes):
        self.array = X.copy()
        self.device = changes.pop("device", (1, 0))
        self.result = changes.pop("result", None)
        self.name = changes.pop("name", b"dltensor_versioned" if versioned else b"dltensor")
        self.managed = Versioned() if versioned else Managed()
        if versioned:
            self.managed.major, self.managed.minor = changes.pop("major", 1), 0
            self.managed.flags = changes.pop("flags", 0)
        self.numbers = {
            key: (ctypes.c_int64 * 4)(*values)  # as many as a changed ndim reads
            for key, values in (
                ("shape", changes.pop("shape", (4, 3))),
                ("strides", changes.pop("strides", (3, 1))),
            )
            if values is not None
        }
        fields = {
            "data": self.array.ctypes.data, "device_type": 1, "ndim": 2, "code": 2, "bits": 32,
            "lanes": 1,
        } | {key: ctypes.addressof(numbers) for key, numbers in self.numbers.items()}  # fmt: skip
        for key, value in (fields | changes).items():
            setattr(self.managed.tensor, key, value)

    def __dlpack_device__(self):
        if isinstance(self.device, Exception):
            raise self.device
        return self.device

    def __dlpack__(self, **options):
        if isinstance(self.result, Exception):
            raise self.result
        if self.result is not None:
            return self.result
        return new_capsule(ctypes.addressof(self.managed), self.name, None)


class Interface:
    """The CUDA array interface alone."""

    def __init__(self, interface):
        self.array, self.interface = X.copy(), interface

    @property
    def __cuda_array_interface__(self):
        if isinstance(self.interface, Exception):
            raise self.interface
        return self.interface


def entries(**changes):
    table = {"shape": (4, 3), "typestr": "<f4", "data": (0x1000, False), "version": 3} | changes
    return {key: value for key, value in table.items() if value is not ...}


def call(x):
    out = np.full((4, 4), np.nan, "f")
    mc.cdist(x, None, p=1, out=Described(data=out.ctypes.data, shape=(4, 4), strides=(4, 1)))
    return out


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ndim": -1}, "ndim must be from 0 to 64"),
        ({"ndim": 1000}, "ndim must be from 0 to 64"),
        ({"shape": None}, "ndim must be from 0 to 64, with a shape"),
        ({"shape": (-4, 3)}, "no axis may be shorter than 0"),
        ({"shape": (1 << 62, 1 << 62)}, "must fit in 64 bits"),
        ({"strides": (1 << 61, 1)}, "within the addresses of a process"),
        ({"data": None}, "must have an address"),
        ({"byte_offset": 2}, "at multiples of their size"),
        ({"lanes": 4}, "must be float16"),
        ({"bits": 31}, "must be float16"),
        ({"code": 77}, "must be float16"),
        ({"device_type": 2}, "must name the device of the memory, cuda:0"),
        ({"device": (2, 0)}, "must name the device of the memory, cpu"),
        ({"device": None}, "__dlpack_device__ must give"),
        ({"device": (1,)}, "__dlpack_device__ must give"),
        ({"device": (1, "0")}, "the index of a device must be a whole number"),
        ({"device": (1 << 40, 0)}, "the type of a device must be a whole number that fits"),
        ({"name": b"used_dltensor"}, "must give a capsule that nobody has used"),
        ({"name": None}, "must give a capsule that nobody has used"),
        ({"result": 3}, "must give a capsule that nobody has used"),
    ],
)
def test_capsules(versioned, changes, words):
    with pytest.raises(ValueError, match=words):
        call(Described(versioned, **changes))
    assert_close(call(Described(versioned)), minkowski(X, X, 1))


def test_versions_and_rows():
    with pytest.raises(NotImplementedError, match=r"DLPack of version 1\. Received version 2\.0"):
        call(Described(major=2))
    assert_close(call(Described(strides=None)), minkowski(X, X, 1))
    assert_close(call(Described(False, strides=None)), minkowski(X, X, 1))


def test_errors_of_producers_come_through():
    for changes in ({"device": KeyError("mine")}, {"result": KeyError("mine")}):
        with pytest.raises(KeyError, match="mine"):
            call(Described(**changes))
    with pytest.raises(ZeroDivisionError, match="by zero"):
        call(type("Liar", (), {"__class__": property(lambda self: 1 // 0)})())
    with pytest.raises(ValueError, match="must be an array"):
        call(Interface(KeyError("mine")))


@pytest.mark.parametrize(
    ("interface", "words"),
    [
        (None, "it must be a dict. Received None"),
        (types.MappingProxyType(entries()), "it must be a dict. Received mappingproxy"),
        (entries(typestr=...), "typestr must be a str. Received nothing"),
        (entries(typestr=4), "typestr must be a str. Received 4"),
        (entries(typestr="<f\u20ac"), "must be float16"),
        (entries(data=...), "data must be a tuple of an address and a bool. Received nothing"),
        (entries(data=None), "data must be a tuple of an address and a bool. Received None"),
        (entries(data=(1,)), "data must be a tuple of an address and a bool"),
        (entries(data=("1", False)), "the address must be a whole number"),
        (entries(data=(-1, False)), "the address must be a whole number"),
        (entries(data=(0, False)), "must have an address"),
        (entries(shape=...), "shape must be a tuple of whole numbers. Received nothing"),
        (entries(shape=None), "shape must be a tuple of whole numbers. Received None"),
        (entries(shape=(4, 1.5)), "shape must be a whole number"),
        (entries(shape=(4, -3)), "no axis may be shorter than 0"),
        (entries(shape=(1 << 62, 8)), "must fit in 64 bits"),
        (entries(strides=(12,)), "shape and strides must have one length"),
        (entries(strides=7), "strides must be a tuple of whole numbers"),
        (entries(strides=(1 << 62, 4)), "within the addresses of a process"),
        (entries(stream="s"), "stream must be a whole number"),
    ],
)
def test_interfaces(interface, words):
    with pytest.raises(ValueError, match=words):
        mc.cdist(Interface(interface), None)


def odd_values(random):
    class Raises:
        def __getattr__(self, name):
            raise ZeroDivisionError(name)

        def __index__(self):
            raise ZeroDivisionError

    return random.choice(
        [None, ..., -1, 0, 1, 2, 3, 1 << 31, 1 << 63, 1 << 64, 1.5, "x", b"", (), [], {}, (1, 2),
         (4, 3), (4, -3), (1 << 40, 1 << 40), ("4", 3), Raises(), object(), type]
    )  # fmt: skip


def drawn_array(random):
    """A description with one to three things in it changed, none of which makes it name more memory
    than there is."""
    kind, many = random.randrange(4), range(random.randint(1, 3))
    if kind == 0:
        choices = {
            "ndim": [-(2**31), -1, 0, 1, 3, 65, 2**31 - 1], "code": range(9), "bits": range(130),
            "lanes": [0, 2, 65535], "device_type": range(20), "device_id": [-1, 1, 2**31 - 1],
            "data": [None], "byte_offset": [1, 2, 3],
            "shape": [None, (0, 3, 0), (4, -3, 2), (2**62, 2, 1)],
            "strides": [None, (-(2**63), 1, 0), (2**62, 2**62, 2**62), (0, 0, 0)],
            "name": [b"", b"dltensor", b"dltensor_versioned", b"used_dltensor_versioned"],
            "device": [odd_values(random)], "result": [odd_values(random)],
        }  # fmt: skip
        # A capsule must be what its name says it is: no name of the other kind.
        versioned = random.random() < 0.5
        choices["name"].remove(b"dltensor" if versioned else b"dltensor_versioned")
        changes = {}
        for _ in many:
            key = random.choice(sorted(choices))
            changes[key] = random.choice(list(choices[key]))
        if changes.get("bits", 32) > 32 or changes.get("ndim", 2) > 2 or "code" in changes:
            changes["data"] = None  # of larger elements or more axes than there are
        return Described(versioned, **changes)
    table = entries()
    for _ in many:
        table[random.choice([*sorted(table), "strides", "stream", "mask"])] = odd_values(random)
    if kind == 1:
        return Interface(entries(**table))
    if kind == 2:
        return Interface(odd_values(random))
    names = ["__dlpack__", "__dlpack_device__", "__cuda_array_interface__", "__array_namespace__",
             "__module__", "dtype", "device", "shape", "__dlpack_c_exchange_api__"]  # fmt: skip
    return type("Odd", (), {random.choice(names): odd_values(random) for _ in range(4)})()


def fuzz(seed, count):
    draws = random.Random(seed)
    verbs = [
        call,
        lambda x: mc.cdist(X, x),
        lambda x: mc.kernel_product("sum(x*z)", X, X, x),
        lambda x: mc.pairwise("sum(x*z)*h", X, h=x),
        lambda x: mc.cdist(X, None, out=x),
        lambda x: mc.knn("l2", x, k=1),
    ]
    for i in range(count):
        verb, x = draws.choice(verbs), drawn_array(draws)
        try:
            verb(x)
        except (*FAULTS, ZeroDivisionError):
            pass
        except BaseException as error:
            raise AssertionError(f"seed {seed}, number {i}") from error
    assert_close(call(Described()), minkowski(X, X, 1))
    print("done")


def test_objects_of_all_kinds_never_crash():
    folder = os.path.dirname(__file__)
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", "import test_protocols as t; t.fuzz(7, 4000)"],
        cwd=folder, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([folder, *sys.path])},
    )  # fmt: skip
    assert run.stdout == "done\n", run.stderr[-3000:]
