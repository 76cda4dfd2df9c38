"""The few private parts of Mercer that the benchmarks need."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import mercer


def targets() -> list[str]:
    """CPU targets that this machine runs, the fastest first."""
    usable = []
    for name in ("x86_avx512", "x86_avx2", "interpreter"):
        with contextlib.suppress(NotImplementedError, ValueError), target(name):
            usable.append(name)
    return usable


@contextlib.contextmanager
def target(name: str | None) -> Iterator[None]:
    """Runs the block on one CPU target (None: leave it as it is)."""
    if name is None:
        yield
        return
    with mercer.options(target=name):
        yield


@functools.cache
def clock_ghz() -> float:
    """The clock of this core, measured once."""
    return float(mercer._mercer.clock_ghz())


def floor(formula: str, shape: tuple[int, int, int], dtype: str, name: str) -> float | None:
    """Gelem/s that the pipes of one core allow at the measured clock; None when not modelled."""
    if name == "interpreter":
        return None
    return float(mercer._mercer.floor_rate(formula, shape, dtype, name, clock_ghz()))
