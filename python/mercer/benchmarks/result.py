"""One line of the table, and the table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any


@dataclasses.dataclass
class Measurement:
    """What lines of the CPU and of GPUs have in common. A bar is a least value to reach."""

    row: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    error: float | None = None  # largest relative error against float64
    error_bar: float | None = None
    peer: str = ""
    peer_scaled: bool = False  # the peer was timed on some of the rows
    ratio_bar: float | None = None
    note: str = ""

    def misses_error(self) -> bool:
        if self.error is None or self.error_bar is None:
            return False
        return not self.error <= self.error_bar  # NaN misses too


@dataclasses.dataclass
class Line(Measurement):
    """A measurement of Mercer, perhaps with one peer's."""

    target: str = "auto"
    seconds: float = math.nan
    gelem: float | None = None
    floor: float | None = None  # fraction of the pipe model's rate that was reached
    floor_bar: float | None = None
    peer_seconds: float | None = None
    ratio: float | None = None

    def misses(self) -> list[str]:
        """Names of the bars that were missed."""
        missed = []
        if self.floor is not None and self.floor_bar is not None and self.floor < self.floor_bar:
            missed.append("floor")
        if self.ratio is not None and self.ratio_bar is not None and self.ratio < self.ratio_bar:
            missed.append("ratio")
        if self.misses_error():
            missed.append("error")
        return missed

    def to_dict(self) -> dict:
        """Plain values for JSON."""
        return {**dataclasses.asdict(self), "misses": self.misses()}


def time_text(seconds: float | None) -> str:
    """Seconds with a unit: three digits."""
    if seconds is None or math.isnan(seconds):
        return ""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _against_bar(value: float | None, bar: float | None, form: str) -> str:
    if value is None:
        return ""
    return form.format(value) + (f" / {form.format(bar)}" if bar is not None else "")


COLUMNS = ("row", "shape", "dtype", "mercer", "Gelem/s", "of floor / bar", "error", "peer",
           "its time", "ratio / bar", "missed", "note")  # fmt: skip


def cells(line: Line) -> tuple[str, ...]:
    """The texts of one line, in the order of COLUMNS."""
    return (
        line.row,
        "x".join(map(str, line.shape)),
        line.dtype,
        time_text(line.seconds),
        "" if line.gelem is None else f"{line.gelem:.3g}",
        _against_bar(line.floor, line.floor_bar, "{:.0%}"),
        "" if line.error is None else f"{line.error:.1e}",
        line.peer,
        time_text(line.peer_seconds) + ("*" if line.peer_scaled else ""),
        _against_bar(line.ratio, line.ratio_bar, "{:.3g}"),
        " ".join(line.misses()),
        line.note,
    )


class Table:
    """Prints lines as they come, in columns of fixed width."""

    COLUMNS: tuple[str, ...] = COLUMNS
    WIDTHS: tuple[int, ...] = (18, 15, 8, 8, 7, 14, 8, 24, 9, 13, 6, 0)

    def __init__(self) -> None:
        self.lines: list[Any] = []

    @staticmethod
    def cells(line: Any) -> tuple[str, ...]:
        """The texts of one line."""
        return cells(line)

    @classmethod
    def _print(cls, texts: Iterable[str]) -> None:
        pairs = zip(texts, cls.WIDTHS, strict=True)
        print("  ".join(f"{text:<{width}}" for text, width in pairs).rstrip(), flush=True)

    def print_head(self) -> None:
        """The names of the columns."""
        self._print(self.COLUMNS)

    def add(self, line: Any) -> None:
        """Keeps and prints one line."""
        self.lines.append(line)
        self._print(self.cells(line))
