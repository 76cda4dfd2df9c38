"""What both modules share: the rules of PyFastKron, then one call of mercer.kron."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mercer import kron


def gemkm(
    x: Any, fs: Sequence[Any], alpha: float, beta: float, y: Any, wide: bool, short: Any = None
) -> Any:
    """alpha x (F1 (x) ... (x) FN) + beta y."""
    return _product(kron.matmul, True, x, fs, alpha, beta, y, wide, short)


def gekmm(
    fs: Sequence[Any], x: Any, alpha: float, beta: float, y: Any, wide: bool, short: Any = None
) -> Any:
    """alpha (F1 (x) ... (x) FN) x + beta y."""
    return _product(kron.kron_matmul, False, x, fs, alpha, beta, y, wide, short)


def _product(
    verb: Callable[..., Any], right: bool, x: Any, fs: Sequence[Any], alpha: float, beta: float,
    y: Any, wide: bool, short: Any,
) -> Any:  # fmt: skip
    """wide: alpha and beta may go into the sum. Else each of them rounds the result once more.

    short: for whole numbers of fewer bits than 32 how to convert an array, and to which type; sums
    of 32 bits wrap around to what fewer bits have.
    """
    for f in fs:
        if f.ndim < 2:
            fs = [f if f.ndim > 1 else f.reshape(-1, 1) for f in fs]
            break
    if wide:
        arguments = (x, fs) if right else (fs, x)
        return verb(*arguments, alpha=alpha, beta=beta, y=y)
    convert, dtype = short or (None, None)
    if convert and all(f.dtype == x.dtype for f in fs):
        narrow, x, fs = x.dtype, convert(x, dtype), [convert(f, dtype) for f in fs]
        z = convert(verb(x, fs) if right else verb(fs, x), narrow)
    else:
        z = verb(x, fs) if right else verb(fs, x)
    if alpha != 1:
        z = alpha * z
    return z if beta == 0 else z + beta * y


def check(kind: Any, name: str, x: Any, fs: Any, sequences: Any, beta: float, y: Any) -> None:
    """Types and batches as PyFastKron asks for them, all of them ValueErrors."""
    if not isinstance(x, kind):
        raise ValueError(f"Input 'x' should be a {name}, got {type(x).__name__}")
    if not isinstance(fs, sequences):
        raise ValueError(f"Input 'fs' should be a list of {name}, got {type(fs).__name__}")
    batched = False
    for i, f in enumerate(fs):
        if not isinstance(f, kind):
            raise ValueError(f"Input fs[{i}] should be a {name}, got {type(f).__name__}")
        batched = batched or f.ndim > 2
        if batched and f.shape[:-2] != fs[0].shape[:-2]:
            raise ValueError(
                f"Batched dims of factors do not match: {tuple(fs[0].shape[:-2])} != "
                f"{tuple(f.shape[:-2])} of fs[{i}]"
            )
    if y is not None and not isinstance(y, kind):
        raise ValueError(f"Input 'y' should be a {name}, got {type(y).__name__}")
    if beta != 0 and y is None:
        raise ValueError(f"When beta != 0 y should not be None, got beta = {beta}")
