"""The state that calls share: threads, instruction set, compiled plans."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterator

from mercer import _libraries, _mercer, _messages, _progress, _threads

_libraries.hand_over()
_threads.hand_over()
_messages.hand_over()

__all__ = ["info", "options"]


def info() -> str:
    """Versions, and what this machine offers and Mercer chose, as text."""
    versions = [f"mercer {_mercer.__version__}", f"Python {platform.python_version()}"]
    for name in ("numpy", "torch", "cupy", "jax"):
        if name in sys.modules:
            versions.append(f"{name} {sys.modules[name].__version__}")
    shipped = f"GPU kernels that came along: {_libraries.shipped_kernels()}\n"
    return ", ".join(versions) + "\n" + _mercer.describe_machine() + shipped


@contextlib.contextmanager
def options(
    *,
    threads: int | None = None,
    target: str | None = None,
    precision: str | None = None,
    progress: bool = False,
) -> Iterator[None]:
    """Other threads, instruction set or precision for a while, for calls of this thread or task.

    They are a context variable: other threads, and tasks of asyncio that began before, keep theirs,
    which ``set_num_threads``, ``set_target`` and ``set_precision`` set for the process. A backward
    pass of PyTorch follows the options of its forward pass, a function that JAX has traced those of
    its tracing.

    ``precision`` says how sums of products and of squared differences of float32 run on a GPU's
    tensor cores: ``"fp32"`` (the default, as accurate as float32 arithmetic), ``"direct"`` (not at
    all), ``"tf32"`` or ``"bf16"`` (one product of eleven binary digits a value: about twice
    as fast, with errors near 2**-11 of ``|x| |z|``). Sums of float64 are products of float64,
    whatever is asked for, but for ``"direct"``; ``"fp64"`` says so, and is ``"fp32"`` for float32.

    ``progress=True`` lets every long call of this thread show a bar, or how long it has taken, once
    that is two seconds: those too that have no such option.

    >>> with mc.options(threads=1, target="interpreter"):
    ...     reference = mc.cdist(x1, x2)
    """
    before = _mercer.current_settings()
    _mercer.set_settings(_mercer.settings(threads, target, precision))
    try:
        with _progress.of_calls(progress):
            yield
    finally:
        _mercer.set_settings(before)


@contextlib.contextmanager
def under(settings: _mercer.Settings | None) -> Iterator[None]:
    """The options that were in force elsewhere, such as in the forward pass of a backward one."""
    if settings is None:
        yield
        return
    before = _mercer.current_settings()
    _mercer.set_settings(settings)
    try:
        yield
    finally:
        _mercer.set_settings(before)
