"""The few private parts of Mercer that the benchmarks need, each absent-safe."""

from __future__ import annotations

import contextlib
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


def floor(formula: str, shape: tuple[int, int, int], dtype: str, name: str) -> float | None:
    """Gelem/s that the pipes of one core allow at today's clock; None when not modelled."""
    model = getattr(mercer, "_floor", None)
    if model is None or name == "interpreter":
        return None
    rate = model(formula, shape, dtype, name)
    return float(rate) if rate else None


def clock_ghz() -> float | None:
    """The clock of this core, measured by a chain of FMAs."""
    native = getattr(mercer, "_native", None) or getattr(mercer, "_mercer", None)
    measure = getattr(native, "clock_ghz", None)
    return float(measure()) if measure else None
