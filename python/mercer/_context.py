"""The state that calls share: threads, instruction set, compiled plans."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterator

from mercer import _libraries, _mercer

_libraries.hand_over()

__all__ = ["info", "options"]


def info() -> str:
    """Versions, and what this machine offers and Mercer chose, as text."""
    versions = [f"mercer {_mercer.__version__}", f"Python {platform.python_version()}"]
    for name in ("numpy", "torch", "cupy", "jax"):
        if name in sys.modules:
            versions.append(f"{name} {sys.modules[name].__version__}")
    return ", ".join(versions) + "\n" + _mercer.describe_machine()


@contextlib.contextmanager
def options(
    *, threads: int | None = None, target: str | None = None, precision: str | None = None
) -> Iterator[None]:
    """Other threads, instruction set or precision for a while, for all calls of the process.

    ``precision`` says how sums of products and of squared differences of float32 run on a GPU's
    tensor cores: ``"fp32"`` (the default, as accurate as float32 arithmetic), ``"direct"`` (not at
    all), ``"tf32"`` or ``"bf16"`` (one product of eleven binary digits a value: about twice
    as fast, with errors near 2**-11 of ``|x| |z|``). Those of float64 are products of float64,
    whatever is asked for, but for ``"direct"``; ``"fp64"`` says so, and is ``"fp32"`` for float32.

    >>> with mc.options(threads=1, target="interpreter"):
    ...     reference = mc.cdist(x1, x2)
    """
    before = _mercer.get_num_threads(), _mercer.get_target(), _mercer.get_precision()
    try:
        if threads is not None:
            _mercer.set_num_threads(threads)
        if target is not None:
            _mercer.set_target(target)
        if precision is not None:
            _mercer.set_precision(precision)
        yield
    finally:
        _mercer.set_num_threads(before[0])
        _mercer.set_target(before[1])
        _mercer.set_precision(before[2])
