"""Times on a device: CUDA events, the median of several runs after a warm-up, in milliseconds."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from .gpu_machine import clock_mhz

Call = Callable[[], object]

# Shorter calls are queued several at a time between two events, so that the gaps of single launches
# do not show.
SHORTEST = 2.0
# Longer ones are not repeated as often.
LONG = 200.0
# Between those two a card that has drawn much power lowers its clock. So each of them follows a
# rest of so many times its length, in seconds at most; `sustained` has none.
REST, MOST_REST = 5, 0.2
# How long sustained calls follow one another, in milliseconds; the later half counts.
SUSTAINED = 800.0
# What the device does while the host prepares the calls that follow: some tenths of a millisecond.
BUSY_BYTES = 1 << 28
BUSY_FILLS = 4


class Stopwatch:
    """Times calls on one device. On the CPU, where the tests run it, by the wall clock."""

    def __init__(self, device: str, repeats: int = 9) -> None:
        self.device = device
        self.repeats = repeats
        self._busy: Any = None  # made when the device is used
        self._clocks: list[int] = []  # since the last median began

    def synchronize(self) -> None:
        import torch

        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)

    def _keep_busy(self) -> None:
        import torch

        if self._busy is None:
            self._busy = torch.empty(BUSY_BYTES, dtype=torch.uint8, device=self.device)
        for _ in range(BUSY_FILLS):
            self._busy.zero_()

    def once(self, call: Call, count: int = 1) -> float:
        """Milliseconds that one of ``count`` calls in a row keeps the device."""
        if not self.device.startswith("cuda"):
            return self.wall(lambda: [call() for _ in range(count)]) / count
        import torch

        with torch.cuda.device(self.device):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._keep_busy()
            start.record()
            for _ in range(count):
                call()
            end.record()
            clock = clock_mhz(self.device)  # while the device runs
            end.synchronize()
        if clock is not None:
            self._clocks.append(clock)
        return start.elapsed_time(end) / count

    @property
    def clock_mhz(self) -> float | None:
        """The median while the last median was timed; None where nobody knows."""
        return statistics.median(self._clocks) if self._clocks else None

    def median(self, call: Call) -> float:
        """Median of the repeats, after calls that compile, allocate and warm up."""
        call()  # by quick kernels
        call()  # waits for those that stay
        self.synchronize()
        self._clocks.clear()
        first = self.once(call)
        count = max(1, math.ceil(SHORTEST / max(first, 1e-3)))
        if first < LONG:
            self.once(call, count)  # the clocks have risen by now
        repeats = self.repeats if first < LONG else min(3, self.repeats)
        times = []
        for _ in range(repeats):
            self._rest(first)
            times.append(self.once(call, count))
        return statistics.median(times)

    def _rest(self, ms: float) -> None:
        if SHORTEST <= ms < LONG and self.device.startswith("cuda"):
            self.synchronize()
            time.sleep(min(MOST_REST, REST * ms / 1e3))

    def sustained(self, call: Call, ms: float) -> float | None:
        """Milliseconds of a call that follows many others without a rest, where one takes `ms`;
        None where it is too short or too long to matter."""
        if not SHORTEST <= ms < LONG:
            return None
        count = math.ceil(SUSTAINED / 2 / ms)
        self._clocks.clear()
        self.once(call, count)
        return self.once(call, count)

    def in_turn(self, call: Callable[[int], object], count: int) -> float:
        """Milliseconds of one of ``count`` calls, which are told their number: the median of
        replays of a graph of them all, after calls that compile and allocate."""
        self._clocks.clear()
        call(0)
        call(0)
        if not self.device.startswith("cuda"):
            return self.once(lambda: [call(turn) for turn in range(count)]) / count
        import torch

        with torch.cuda.device(self.device):
            with torch.cuda.stream(torch.cuda.Stream()):
                call(1)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for turn in range(count):
                    call(turn)
        self.once(graph.replay)
        repeats = max(self.repeats // 2, 1)
        return statistics.median(self.once(graph.replay) for _ in range(repeats)) / count

    def wall(self, call: Call) -> float:
        """Milliseconds until the device is done, by the host's clock."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return 1e3 * (time.perf_counter() - start)

    def host(self, call: Call, count: int = 50, bursts: int = 40) -> float:
        """Milliseconds that one call keeps the host: the median of short bursts, which the device
        can queue."""
        times = []
        for _ in range(bursts):
            self.synchronize()
            start = time.perf_counter()
            for _ in range(count):
                call()
            times.append(1e3 * (time.perf_counter() - start) / count)
        self.synchronize()
        return statistics.median(times)
