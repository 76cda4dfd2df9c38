"""One call of Mercer behind the functions of kermac and mm-kermac: what they check, then a verb."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Any

import torch
from torch.autograd import forward_ad

import mercer as mc

SILENT = contextlib.nullcontext()
_transform_around = torch._C._functorch.peek_interpreter_stack


class Majorness(Enum):
    """Which of the last two axes has neighbouring elements."""

    COL_MAJOR = auto()
    ROW_MAJOR = auto()


def majorness(tensor: torch.Tensor) -> Majorness:
    """How a tensor lies; ROW_MAJOR where both hold. Raises ValueError where neither does."""
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


def _rows_of(tensor: Any, device: torch.device) -> torch.Size | None:
    """The shape of a float32 matrix on the device that lies by rows; None for anything else."""
    if type(tensor) is not torch.Tensor or tensor.dtype is not torch.float32:
        return None
    shape = tensor.shape
    if len(shape) != 2 or tensor.device != device:
        return None
    row, column = tensor.stride()
    return shape if column == 1 and row >= shape[1] else None


def detached(*tensors: torch.Tensor) -> Iterable[torch.Tensor]:
    """The tensors without what records derivatives, which few of them have."""
    if forward_ad._current_level < 0 and _transform_around() is None:
        for tensor in tensors:
            if tensor.requires_grad:
                break
        else:
            return tensors
    return [tensor.detach() for tensor in tensors]


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
    """The hyper-parameters that are given: numbers, or float32 tensors of shape () or (L,).

    A single value that lies in the host's memory becomes a number, which costs nothing to read and
    lets the formula be compiled for it.
    """
    given = {}
    for name, value in named.items():
        if value is None:
            continue
        if isinstance(value, float):
            given[name] = value
            continue
        if isinstance(value, torch.Tensor):
            check_hyper(name, value, length, device)
            if value.is_cpu and value.numel() == 1 and not value.requires_grad:
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


def _have_axes(hypers: dict[str, Any]) -> bool:
    return bool(hypers) and any(isinstance(v, torch.Tensor) and v.ndim for v in hypers.values())


def pairwise(
    f: mc.Expr, a: Any, b: Any, out: Any, hypers: dict[str, Any], fixed: dict[str, Any],
    debug: bool,
) -> torch.Tensor:  # fmt: skip
    """Checks, then pairwise; the result has a batch axis unless out is given."""
    whole, length = out, 1
    if _fit(a, b, out) and not _have_axes(hypers):
        a, b = detached(a, b)
        if out is not None and out.ndim == 3:
            a = a.unsqueeze(0)
    else:
        length = batch_of(hypers, 0, batch_of({"a": a, "b": b, "out": out}, 2))
        _check_pairs(a, b, out)
        a, b = detached(a, b)
        if out is not None:
            a, out = _with_out(a, b, out, length)
    params = check_hypers(hypers, length, a.device) if hypers else hypers
    with announced(f) if debug else SILENT:
        result = mc.pairwise(f, a, b, out=out, **fixed, **params)
    if whole is not None:
        return whole
    return result if result.ndim == 3 else result.unsqueeze(0)


def _fit(a: Any, b: Any, out: Any) -> bool:
    """Whether all are matrices by rows that fit, as in most calls: such ones pass every check."""
    if not isinstance(a, torch.Tensor):
        return False
    device = a.device
    rows, columns = _rows_of(a, device), _rows_of(b, device)
    if rows is None or columns is None or rows[1] != columns[1]:
        return False
    if out is None:
        return True
    if type(out) is not torch.Tensor or out.dtype is not torch.float32 or out.device != device:
        return False
    m, n = rows[0], columns[0]
    row, column = out.stride()[-2:] if out.ndim > 1 else (0, 0)
    return out.shape in ((1, m, n), (m, n)) and column == 1 and row >= n


def _check_pairs(a: Any, b: Any, out: Any) -> None:
    check_tensors({"a": a, "b": b, "out": out})
    majorness(a), majorness(b)
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"K dimensions must match: got {a.shape[-1]} for a and {b.shape[-1]} for b"
        )


def _with_out(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """a and the output with a batch axis each."""
    majorness(out)
    shape, given = (length, a.shape[-2], b.shape[-2]), tuple(out.shape)
    if given != shape and (length, *given) != (1, *shape[1:]):
        raise ValueError(
            f"out must have shape (L={shape[0]}, M={shape[1]}, N={shape[2]}), got {given}"
        )
    return a.expand(length, *a.shape[-2:]), out.expand(shape)


def lies_by_columns(out: Any) -> bool:
    """Whether an output that may be None, or no matrix, lies by columns."""
    matrix = isinstance(out, torch.Tensor) and out.ndim > 1
    return matrix and majorness(out) is Majorness.COL_MAJOR


@contextlib.contextmanager
def announced(f: mc.Expr) -> Iterator[None]:
    """Prints the formula and whether its code was there, which a full cache of plans cannot say."""
    before = mc.plan_count()
    yield
    print(f"(mercer.compat) {'compiled' if mc.plan_count() > before else 'found'}: {f}")


def check_points(a: Any, b: Any, c: Any, d: Any, out: Any) -> bool:
    """The arrays of a gradient: a [K, M], b [N, K], c [O, K], d [N, M], out [O, N, M].

    True where all of them lie by rows and none has a batch axis, as in most calls.
    """
    if _points_fit(a, b, c, d, out):
        return True
    inputs = {"a": a, "b": b, "c": c, "d": d}
    check_tensors({**inputs, "out": out})
    batch_of(inputs, 2)
    k, m, n = a.shape[-2], a.shape[-1], b.shape[-2]
    for name, shape in (("b", (n, k)), ("c", (c.shape[-2], k)), ("d", (n, m))):
        if tuple(inputs[name].shape[-2:]) != shape:
            raise ValueError(
                f"Expected shape {shape} for {name}, got {tuple(inputs[name].shape[-2:])}"
            )
    for name, tensor in inputs.items():
        majorness(tensor)
        _check_last_stride(name, tensor)
    if out is not None:
        _check_last_stride("out", out)
    return False


def _points_fit(a: Any, b: Any, c: Any, d: Any, out: Any) -> bool:
    if not isinstance(a, torch.Tensor):
        return False
    device = a.device
    of_a, of_b, of_c, of_d = (_rows_of(tensor, device) for tensor in (a, b, c, d))
    if of_a is None or of_b is None or of_c is None:
        return False
    (k, m), (n, k_of_b), (o, k_of_c) = of_a, of_b, of_c
    if k_of_b != k or k_of_c != k or of_d != (n, m):
        return False
    if out is None:
        return True
    if type(out) is not torch.Tensor or out.dtype is not torch.float32 or out.device != device:
        return False
    return out.shape == (o, n, m) and out.stride()[2] == 1


def _check_last_stride(name: str, tensor: torch.Tensor) -> None:
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} must have stride 1 in last dimension")


def field(
    phi: mc.Expr,
    a: Any,
    b: Any,
    c: Any,
    d: Any,
    out: Any,
    hypers: dict[str, Any],
    debug: bool,
    combine: str | None = None,
    is_plain: bool = False,
) -> torch.Tensor:
    """out[o, n, m] = sum over k of c[o, k] a[k, m] phi(d[n, m], b[n, k]), of checked arrays.

    With combine, what gradient_field makes of phi, which need not read a and c. is_plain: what
    check_points found.
    """
    length, is_plain = 1, is_plain and not _have_axes(hypers)
    if not is_plain:
        length = batch_of({"out": out}, 3, batch_of({"a": a, "b": b, "c": c, "d": d}, 2))
        length = batch_of(hypers, 0, length)
    params = check_hypers(hypers, length, a.device) if hypers else hypers
    a, b, c, d = detached(a, b, c, d)
    if is_plain:
        points, place = d.mT, a.new_empty((c.shape[0], *d.shape)) if out is None else out
        whole = place.unsqueeze(0) if out is None else out
    else:
        whole, place = _places(a, c, d, out, length)
        points = d.mT.expand(length, d.shape[-1], d.shape[-2])
    known = ("amplitude", "coef") if combine is None else phi.parameters
    reads_a, reads_c = "amplitude" in known, "coef" in known
    written = place if reads_c else place[..., 0, :, :]
    amplitude, coef = a.mT if reads_a else None, c if reads_c else None
    with announced(phi) if debug else SILENT:
        mc.gradient_field(
            phi, points, b.mT, amplitude, coef, out=written.mT, combine=combine, **params
        )
    if not reads_c:
        place[..., 1:, :, :] = place[..., :1, :, :]
    return whole


def _places(
    a: torch.Tensor, c: torch.Tensor, d: torch.Tensor, out: Any, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is returned, and the same with a batch axis."""
    shape = (length, c.shape[-2], *d.shape[-2:])
    if out is None:
        whole = a.new_empty(shape)
        return whole, whole
    place = out.unsqueeze(0) if out.ndim == 3 else out
    if tuple(place.shape) != shape:
        raise ValueError(f"Expected shape {shape} for out, got {tuple(out.shape)}")
    return out, place
