"""What both modules share: the rules of PyFastKron, then one call of mercer.kron."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mercer import kron


def gemkm(x: Any, fs: Sequence[Any], alpha: float, beta: float, y: Any, wide: bool) -> Any:
    """alpha x (F1 (x) ... (x) FN) + beta y."""
    return _product(lambda f, **words: kron.matmul(x, f, **words), fs, alpha, beta, y, wide)


def gekmm(fs: Sequence[Any], x: Any, alpha: float, beta: float, y: Any, wide: bool) -> Any:
    """alpha (F1 (x) ... (x) FN) x + beta y."""
    return _product(lambda f, **words: kron.kron_matmul(f, x, **words), fs, alpha, beta, y, wide)


def _product(
    multiply: Callable[..., Any], fs: Sequence[Any], alpha: float, beta: float, y: Any, wide: bool
) -> Any:
    """wide: alpha and beta may go into the sum. Else each of them rounds the result once more."""
    factors = [f if f.ndim > 1 else f.reshape(-1, 1) for f in fs]
    if wide:
        return multiply(factors, alpha=alpha, beta=beta, y=y)
    z = multiply(factors)
    if alpha != 1:
        z = alpha * z
    return z if beta == 0 else z + beta * y


def check(kind: type, name: str, x: Any, fs: Any, sequences: Any, beta: float, y: Any) -> None:
    """Types and batches as PyFastKron asks for them, all of them ValueErrors."""
    if not isinstance(x, kind):
        raise ValueError(f"Input 'x' should be a {name}, got {type(x).__name__}")
    if not isinstance(fs, sequences):
        raise ValueError(f"Input 'fs' should be a list of {name}, got {type(fs).__name__}")
    for i, f in enumerate(fs):
        if not isinstance(f, kind):
            raise ValueError(f"Input fs[{i}] should be a {name}, got {type(f).__name__}")
        if f.shape[:-2] != fs[0].shape[:-2]:
            raise ValueError(
                f"Batched dims of factors do not match: {tuple(fs[0].shape[:-2])} != "
                f"{tuple(f.shape[:-2])} of fs[{i}]"
            )
    if y is not None and not isinstance(y, kind):
        raise ValueError(f"Input 'y' should be a {name}, got {type(y).__name__}")
    if beta != 0 and y is None:
        raise ValueError(f"When beta != 0 y should not be None, got beta = {beta}")
