"""One line of the GPU's table, and how it is printed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from .result import Measurement, Table, time_text


@dataclasses.dataclass
class GpuLine(Measurement):
    """A measurement in milliseconds, at a clock: cards that have drawn much power lower theirs, so
    that calls which follow one another without rests (``sustained_ms``) may take longer. Bars: at
    most ``least`` is accepted, ``reach`` is aimed at."""

    data: str = "normal"
    ms: float = math.nan
    clock_mhz: float | None = None
    sustained_ms: float | None = None
    sustained_clock_mhz: float | None = None
    floor_ms: float | None = None
    least: float | None = None
    reach: float | None = None
    peer_ms: float | None = None
    peer_error: float | None = None

    @property
    def of_floor(self) -> float | None:
        return self.floor_ms / self.ms if self.floor_ms else None

    @property
    def ratio(self) -> float | None:
        """How many times as long the peer takes."""
        return self.peer_ms / self.ms if self.peer_ms else None

    def misses(self) -> list[str]:
        """Names of the bars that were missed."""
        missed = []
        if self.least is not None and not self.ms <= self.least:
            missed.append("time")
        if self.ratio_bar is not None and not (self.ratio or 0) >= self.ratio_bar:
            missed.append("ratio")
        if self.misses_error():
            missed.append("error")
        return missed

    def reached(self) -> bool | None:
        """Whether the aim was reached; None where there is none."""
        return None if self.reach is None else self.ms <= self.reach

    def to_dict(self) -> dict:
        """Plain values for JSON."""
        measured = {"of_floor": self.of_floor, "ratio": self.ratio}
        return {**dataclasses.asdict(self), **measured, "misses": self.misses()}


def ms_text(ms: float | None) -> str:
    """Three digits with a unit."""
    return "" if ms is None else time_text(ms / 1e3)


def bars_text(line: GpuLine) -> str:
    """ "50 / 45 ms": at least, reach for."""
    if line.least is None:
        return ""
    reach = f" / {line.reach:.3g}" if line.reach is not None else ""
    return f"{line.least:.3g}{reach} ms" if line.least >= 0.02 else ms_text(line.least)


def errors_text(line: GpuLine) -> str:
    """Mercer's, and the peer's where it was measured."""
    errors = [f"{e:.1e}" for e in (line.error, line.peer_error) if e is not None]
    return " / ".join(errors)


def ratio_text(line: GpuLine) -> str:
    bar = f" / {line.ratio_bar:.3g}" if line.ratio_bar is not None else ""
    return "" if line.ratio is None else f"{line.ratio:.3g}{bar}"


COLUMNS = ("row", "data", "shape", "dtype", "mercer", "MHz", "sustained", "of floor",
           "least / reach", "error", "peer", "its time", "ratio / bar", "missed",
           "note")  # fmt: skip


def cells(line: GpuLine) -> tuple[str, ...]:
    """The texts of one line, in the order of COLUMNS."""
    return (
        line.row,
        line.data,
        "x".join(map(str, line.shape)),
        line.dtype,
        ms_text(line.ms),
        "" if line.clock_mhz is None else f"{line.clock_mhz:.0f}",
        ms_text(line.sustained_ms),
        "" if line.of_floor is None else f"{line.of_floor:.0%}",
        bars_text(line),
        errors_text(line),
        line.peer,
        ms_text(line.peer_ms) + ("*" if line.peer_scaled else ""),
        ratio_text(line),
        " ".join(line.misses()),
        line.note,
    )


class GpuTable(Table):
    """Prints lines as they come."""

    COLUMNS = COLUMNS
    WIDTHS = (24, 13, 16, 8, 8, 5, 9, 8, 13, 17, 22, 8, 11, 6, 0)

    @staticmethod
    def cells(line: Any) -> tuple[str, ...]:
        return cells(line)
