"""Layouts of tensors, and a timer."""

from __future__ import annotations

import time
from enum import Enum, auto
from typing import Any

import torch


class Majorness(Enum):
    """Which of the last two axes has neighbouring elements."""

    COL_MAJOR = auto()
    ROW_MAJOR = auto()


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


def majorness(tensor: torch.Tensor) -> Majorness:
    """By rows where both hold. Raises ValueError where neither does."""
    *_, rows, columns = tensor.shape
    *_, row, column = tensor.stride()
    if column == 1 and row >= columns:
        return Majorness.ROW_MAJOR
    if row == 1 and column >= rows:
        return Majorness.COL_MAJOR
    raise ValueError(
        f"Tensor has non-standard memory layout: strides={tensor.stride()}, "
        f"shape={tuple(tensor.shape)}"
    )


def check_tensors(named: dict[str, Any]) -> None:
    """float32 tensors of one device; an output may be None."""
    device = None
    for name, tensor in named.items():
        if tensor is None and name == "out":
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a PyTorch tensor, got {type(tensor).__name__}")
        if tensor.dtype is not torch.float32:
            raise TypeError(f"{name} must have dtype torch.float32, got {tensor.dtype}")
        if device is None:
            device = tensor.device
        elif tensor.device != device:
            raise ValueError(f"{name} must be on the device {device}, got {tensor.device}")


def merge_batch(length: int, name: str, other: int) -> int:
    """The length of the batch axis of both."""
    if other != length and other != 1 and length != 1:
        raise ValueError(f"batch sizes don't match: {name} has {other}, expected 1 or {length}")
    return length if other == 1 else other


def batch_of(named: dict[str, Any], axes: int, length: int = 1) -> int:
    """The common batch length of tensors with ``axes`` axes, or one more."""
    for name, tensor in named.items():
        if tensor is None or not isinstance(tensor, torch.Tensor):
            continue
        if tensor.ndim not in (axes, axes + 1):
            raise ValueError(
                f"{name} must be {axes}-dimensional, or {axes + 1}-dimensional with a batch, "
                f"got {tensor.ndim} dimensions"
            )
        if tensor.ndim > axes:
            length = merge_batch(length, name, tensor.shape[0])
    return length


def check_hypers(named: dict[str, Any], length: int, device: torch.device) -> dict[str, Any]:
    """Those hyper-parameters that are given: numbers, or float32 tensors of shape () or (L,).

    A single value that lies in the host's memory becomes a number, which costs nothing to read and
    lets the formula be compiled for it.
    """
    given = {}
    for name, value in named.items():
        if value is None:
            continue
        if isinstance(value, torch.Tensor):
            check_hyper(name, value, length, device)
            if value.device.type == "cpu" and value.numel() == 1 and not value.requires_grad:
                value = value.item()
        elif not isinstance(value, (int, float)):
            raise TypeError(
                f"{name} must be a number or a PyTorch tensor, got {type(value).__name__}"
            )
        given[name] = value
    return given


def check_hyper(name: str, value: torch.Tensor, length: int, device: torch.device) -> None:
    if value.dtype is not torch.float32:
        raise TypeError(f"{name} must have dtype torch.float32, got {value.dtype}")
    if value.device != device:
        raise ValueError(f"{name} must be on the device {device}, got {value.device}")
    if value.ndim > 1 or (value.ndim == 1 and value.shape[0] not in (1, length)):
        raise ValueError(f"{name} must have shape () or (L,), L={length}, got {tuple(value.shape)}")
