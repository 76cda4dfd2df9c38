"""Layouts of tensors, and a timer."""

from __future__ import annotations

import time
from enum import Enum, auto

import torch

from mercer.compat._calls import Majorness, majorness


class Alignment(Enum):
    """Elements that one copy of kermac's may take at once."""

    ALIGN_1 = auto()
    ALIGN_4 = auto()


class FillMode(Enum):
    """The triangle of a symmetric matrix, counted as cuSOLVER does: by columns."""

    UPPER = auto()
    LOWER = auto()


class CudaTimer:
    """Milliseconds between ``start`` and ``stop``: of the device, or of the host without one."""

    def __init__(self) -> None:
        self._on_device = torch.cuda.is_available()
        if self._on_device:
            self.start_event = torch.cuda.Event(enable_timing=True)
            self.end_event = torch.cuda.Event(enable_timing=True)
        self._started = time.perf_counter()

    def start(self) -> None:
        if self._on_device:
            self.start_event.record()
        self._started = time.perf_counter()

    def stop(self) -> float:
        """Waits for the work before it."""
        if not self._on_device:
            return (time.perf_counter() - self._started) * 1e3
        self.end_event.record()
        self.end_event.synchronize()
        return self.start_event.elapsed_time(self.end_event)


def ceil_div(x: int, d: int) -> int:
    """x / d, rounded up."""
    return int((x + d - 1) // d)


class TensorStats:
    """The layout of a matrix, or of a batch of them: float32 ``[M, N]`` or ``[L, M, N]``.

    Raises ValueError for other numbers of axes, and where neither rows nor columns have
    neighbouring elements without overlaps; TypeError for another dtype.
    """

    __slots__ = ("alignment", "batch_stride", "leading_dimension_stride", "majorness",
                 "num_batches", "shape")  # fmt: skip

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.ndim not in (2, 3):
            raise ValueError(f"Input tensor must be 2 or 3-dimensional, got {tensor.ndim}")
        if tensor.dtype is not torch.float32:
            raise TypeError(f"Input tensor must have dtype torch.float32, got {tensor.dtype}")
        shape, strides = tensor.shape, tensor.stride()
        self.num_batches: int = 1 if len(shape) == 2 else shape[0]
        self.batch_stride: int = 0 if self.num_batches == 1 else strides[0]
        self.shape: tuple[int, int, int] = (self.num_batches, shape[-2], shape[-1])
        self.majorness = majorness(tensor)
        self.leading_dimension_stride: int = max(strides[-2:])
        aligned = tensor.data_ptr() % 16 == 0 and self.leading_dimension_stride % 4 == 0
        by_columns = self.majorness is Majorness.COL_MAJOR
        self.alignment = Alignment.ALIGN_4 if aligned and by_columns else Alignment.ALIGN_1


def tensor_stats(tensor: torch.Tensor) -> TensorStats:
    """``TensorStats(tensor)``."""
    return TensorStats(tensor)
