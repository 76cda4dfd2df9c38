"""The few private parts of Mercer that the benchmarks need."""

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


_clocks: list[float] = []


def measure_clock() -> None:
    """Looks again: shared hosts change their clocks, and a best time is one of the fastest."""
    _clocks.append(float(mercer._mercer.clock_ghz()))


def clock_ghz() -> float:
    """The fastest clock of this core that was measured."""
    if not _clocks:
        measure_clock()
    return max(_clocks)


def floor(formula: str, shape: tuple[int, int, int], dtype: str, name: str) -> float | None:
    """Gelem/s that the pipes of one core allow at the measured clock; None when not modelled."""
    if name == "interpreter":
        return None
    measure_clock()
    return float(mercer._mercer.floor_rate(formula, shape, dtype, name, clock_ghz()))


def gpu_floor(
    formula: str, shape: tuple[int, int, int], dtype: str, device: str, **call: object
) -> dict[str, float]:
    """Milliseconds that a call takes at least on a GPU: "ms", and those of each unit.

    ``device``: "cuda:0", or an architecture such as "sm_90", which needs no GPU. ``call``: verb,
    items (values of a parameter that share one accumulation), columns, symmetric, mixed_pipes.
    """
    return mercer._mercer.gpu_floor(formula, tuple(shape), dtype, device, **call)
