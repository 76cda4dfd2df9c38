"""Where and how large the GPU's rows run."""

from __future__ import annotations

from . import gpu_rows
from .gpu_result import GpuLine
from .gpu_timing import Call, Stopwatch


class GpuSettings:
    """Where and how large. ``floors``: the device or architecture whose floors count."""

    def __init__(
        self, device: str = "cuda:0", quick: bool = False, floors: str = "", tunes: bool = False
    ) -> None:
        self.device = device
        self.tunes = tunes  # tiles are measured before a row
        self.floors = floors or device
        self.scale = 1 / 4 if quick else 1.0
        self.watch = Stopwatch(device, 3 if quick else 9)
        self.name = ""  # of the GPU; bars in milliseconds hold for one kind
        self.peer_times: dict[tuple, tuple[float, bool]] = {}

    def time(self, line: GpuLine, call: Call) -> None:
        """Milliseconds of ``call`` and at which clock, with rests between the calls and without."""
        line.ms, line.clock_mhz = self.watch.median(call), self.watch.clock_mhz
        line.sustained_ms = self.watch.sustained(call, line.ms)
        if line.sustained_ms is not None:
            line.sustained_clock_mhz = self.watch.clock_mhz

    def shape(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        m, n, k = shape
        return max(8, int(m * self.scale)), max(8, int(n * self.scale)), k

    def has_bars(self) -> bool:
        return self.scale == 1 and self.name == gpu_rows.BARS_FOR
