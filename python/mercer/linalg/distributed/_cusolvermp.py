"""cuSOLVERMp by ctypes: what one GPU of a grid calls, on a thread of its own.

Every routine has a query of its scratch memory with the same leading arguments, and both are
collective: all GPUs of the grid call them, or those that do wait for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from mercer.errors import DeviceError
from mercer.linalg.distributed import _libraries
from mercer.linalg.distributed._layout import Layout

__all__ = ["Job", "Stream", "Worker"]

_INT, _LONG, _POINTER, _TEXT = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
_SUB = (_POINTER, _LONG, _LONG, _POINTER)  # a matrix, its first row and column, its descriptor
_LEADING = {
    "Potrf": (_INT, _LONG, *_SUB, _INT),
    "Potrs": (_INT, _LONG, _LONG, *_SUB, *_SUB, _INT),
    "Getrf": (_LONG, _LONG, *_SUB, _POINTER, _INT),
    "Getrs": (_INT, _LONG, _LONG, *_SUB, _POINTER, *_SUB, _INT),
    "Syevd": (_TEXT, _INT, _LONG, *_SUB, _POINTER, *_SUB, _INT),
}
_OTHERS = {
    "Create": (_POINTER, _INT, _POINTER),
    "Destroy": (_POINTER,),
    "GetVersion": (_POINTER, _POINTER),
    "CreateDeviceGrid": (_POINTER, _POINTER, _POINTER, ctypes.c_int32, ctypes.c_int32, _INT),
    "DestroyGrid": (_POINTER,),
    "CreateMatrixDesc": (
        _POINTER, _POINTER, _INT, _LONG, _LONG, _LONG, _LONG, ctypes.c_uint32, ctypes.c_uint32,
        _LONG,
    ),
    "DestroyMatrixDesc": (_POINTER,),
}  # fmt: skip
_BY_ROWS, _REAL = 1, {torch.float32: 0, torch.float64: 1}


class Stream:
    """A stream of the grid's own: cuSOLVERMp takes no default stream."""

    def __init__(self, device: torch.device) -> None:
        torch.cuda.set_device(device)
        self._stream = torch.cuda.Stream(device)
        self.handle = self._stream.cuda_stream

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """After what was asked of the device before; ended when the block ends."""
        torch.cuda.synchronize(self._stream.device)
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()


class Job:
    """A routine with its arguments and scratch memory, ready to run."""

    def __init__(self, worker: Worker, name: str, *leading: Any) -> None:
        self._worker, self._name, self._leading = worker, name, leading
        sizes = ctypes.c_size_t(), ctypes.c_size_t()
        worker.call(f"{name}_bufferSize", *leading, *map(ctypes.byref, sizes))
        on_device, on_host = (max(1, size.value) for size in sizes)
        self._device = torch.empty(on_device, dtype=torch.uint8, device=worker.device)
        self._host = np.empty(on_host, np.uint8)
        self._info = torch.zeros(1, dtype=torch.int32, device=worker.device)

    def run(self) -> int:
        """Waits for the device; info."""
        info, error = self.attempt()
        if error is not None:
            raise error
        return info

    def attempt(self) -> tuple[int, DeviceError | None]:
        """As ``run``, with the library's own error as a result: info may give its reason."""
        device, host = self._device, self._host
        scratch = (device.data_ptr(), device.numel(), host.ctypes.data, host.size)
        error = None
        with self._worker.stream.work():
            try:
                self._worker.call(self._name, *self._leading, *scratch, self._info.data_ptr())
            except DeviceError as raised:
                error = raised
        return int(self._info.item()), error


class Worker:
    """One GPU's handles."""

    def __init__(self, device: torch.device, comm: Any, shape: tuple[int, int]) -> None:
        self._library = declared(_libraries.cusolvermp())
        self.device, self.stream = device, Stream(device)
        self._spare = torch.zeros(1, dtype=torch.float64, device=device)
        self._handle, self._grid = ctypes.c_void_p(), ctypes.c_void_p()
        self._check("Create", ctypes.byref(self._handle), device.index or 0, self.stream.handle)
        version = ctypes.c_int()
        self.call("GetVersion", ctypes.byref(version))
        _libraries.check_cusolvermp(version.value)
        self.call("CreateDeviceGrid", ctypes.byref(self._grid), comm, *shape, _BY_ROWS)

    def call(self, name: str, *arguments: Any) -> None:
        self._check(name, self._handle, *arguments)

    @contextlib.contextmanager
    def described(self, layout: Layout, shard: torch.Tensor) -> Iterator[tuple[Any, ...]]:
        """The arguments that say a whole matrix: its memory, first row and column, descriptor."""
        there = ctypes.c_void_p()
        lead = max(1, shard.shape[0])
        self._check(
            "CreateMatrixDesc", ctypes.byref(there), self._grid, _REAL[shard.dtype], *layout.shape,
            *layout.block, 0, 0, lead,
        )  # fmt: skip
        try:
            # A shard without elements has no memory, and null is no array to the library.
            yield shard.data_ptr() or self._spare.data_ptr(), 1, 1, there
        finally:
            self._check("DestroyMatrixDesc", there)

    def close(self) -> None:
        self._check("DestroyGrid", self._grid)
        self._check("Destroy", self._handle)

    def _check(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"cusolverMp{name}")(*arguments)
        if status != 0:
            raise DeviceError(f"cusolverMp{name} failed on {self.device} with status {status}")


def real(dtype: torch.dtype) -> int:
    """cudaDataType."""
    return _REAL[dtype]


def declared(library: Any) -> Any:
    """The library, whose functions know the types of their arguments."""
    sizes = (_POINTER, _POINTER)
    scratch = (_POINTER, ctypes.c_size_t, _POINTER, ctypes.c_size_t, _POINTER)
    for name, leading in _LEADING.items():
        getattr(library, f"cusolverMp{name}").argtypes = (_POINTER, *leading, *scratch)
        getattr(library, f"cusolverMp{name}_bufferSize").argtypes = (_POINTER, *leading, *sizes)
    for name, arguments in _OTHERS.items():
        getattr(library, f"cusolverMp{name}").argtypes = arguments
    return library
