"""The few private parts of Mercer that the benchmarks need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

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


_clocks: list[tuple[float, float, bool]] = []


def measure_clock() -> None:
    """Looks again: shared hosts change their clocks, and a best time is one of the fastest."""
    _clocks.append(mercer._mercer.clock_ghz())


def clock_ghz() -> float | None:
    """The fastest clock of this core on which two ways of measuring agreed; None where none did."""
    if not _clocks:
        measure_clock()
    return max((clock for clock, _, agree in _clocks if agree), default=None)


def costs() -> str:
    """Whose costs of vector instructions the floors have."""
    return str(mercer._mercer.cpu_costs()[2])


def why_no_floor() -> str:
    """Why no share of a floor is claimed; empty where it is."""
    if clock_ghz() is None:
        first, second, _ = _clocks[-1]
        return (
            f"no share of a floor: the clock is {first:.2f} GHz by multiplications of three cycles "
            f"and {second:.2f} by rotations of one"
        )
    known = mercer._mercer.cpu_costs()[1]
    return "" if known else f"no share of a floor: the costs at hand are {costs()}"


def floor(formula: str, shape: tuple[int, int, int], dtype: str, name: str) -> float | None:
    """Gelem/s that the pipes of one core allow at the measured clock; None when not modelled."""
    if name == "interpreter":
        return None
    measure_clock()
    clock = clock_ghz()
    if why_no_floor() or clock is None:
        return None
    return float(mercer._mercer.floor_rate(formula, shape, dtype, name, clock))


def gpu_floor(
    formula: str, shape: tuple[int, int, int], dtype: str, device: str, **call: Any
) -> dict[str, float]:
    """Milliseconds that a call takes at least on a GPU: "ms", and those of each unit.

    ``device``: "cuda:0", or an architecture such as "sm_90", which needs no GPU. ``call``: verb,
    items (values of a parameter that share one accumulation), columns, symmetric, mixed_pipes.
    """
    return mercer._mercer.gpu_floor(formula, shape, dtype, device, **call)
