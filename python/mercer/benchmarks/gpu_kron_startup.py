"""What a Kronecker product costs in addition to its kernels: the host's part, compiling, loading.

As a program, ``python -m mercer.benchmarks.gpu_kron_startup MxPxN DEVICE``, it times the first two
calls of a process for M rows and N factors P x P, after one of another shape, and prints them as
JSON.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator

import mercer

from . import gpu_rows, gpu_startup
from .gpu_kron import uniform
from .gpu_result import GpuLine
from .gpu_settings import GpuSettings

TRIALS = 3
COLD_BAR = 500.0  # milliseconds
SHAPES = (
    (1024, 8, 5), (1024, 16, 4), (1024, 32, 3), (1024, 64, 2), (1024, 128, 2),
    (1024, 64, 3), (320, 128, 3), (1024, 8, 6), (1024, 16, 5), (1024, 32, 4),
)  # fmt: skip
OTHER = (8, 3, 2)  # loads NVRTC and what all calls need
TINY = (64, 4, 3)

Shape = tuple[int, int, int]  # rows, P, N


class Call:
    """A product into an array that is there."""

    def __init__(self, shape: Shape, s: GpuSettings) -> None:
        rows, p, n = shape
        self.x = uniform(s, (rows, p**n), "float32", 0)
        self.factors = [uniform(s, (p, p), "float32", 1 + i) for i in range(n)]
        self.out = self.x.new_empty(rows, p**n)

    def __call__(self) -> None:
        mercer.kron.matmul(self.x, self.factors, out=self.out)


def call_lines(s: GpuSettings) -> Iterator[GpuLine]:
    """How long a call of small arrays keeps the host, its kernels compiled and loaded."""
    call = Call(TINY, s)
    rows, size = call.x.shape
    line = GpuLine("kron-call", (rows, size, size), data="uniform", peer="torch x @ x.mT")
    line.peer_ms = s.watch.host(lambda: call.x @ call.x.mT)
    calls: dict[str, Callable[[], object]] = {
        "with out=": call,
        "allocating": lambda: mercer.kron.matmul(call.x, call.factors),
    }
    yield from gpu_startup.host_lines(line, calls, s)


def startup_lines(name: str, shape: Shape, s: GpuSettings) -> Iterator[GpuLine]:
    """The first call for a shape, by processes with an empty cache and with a filled one."""
    if s.scale < 1e-3:  # the tests' size
        shape = TINY
    text, size = "x".join(map(str, shape)), shape[1] ** shape[2]
    times: dict[str, list[dict[str, float]]] = {"compiled": [], "from the disk": []}
    for _ in range(TRIALS):
        with tempfile.TemporaryDirectory() as cache:
            for note in times:
                run = gpu_startup.in_new_process(__name__, text, s.device, MERCER_CACHE_DIR=cache)
                times[note].append(run)
    bars = {"compiled": COLD_BAR, "from the disk": gpu_rows.DISK_BAR}
    for note, runs in times.items():
        ms = [run["first"] for run in runs]
        second = statistics.median(run["second"] for run in runs)
        line = GpuLine(name, (shape[0], size, size), data="uniform", ms=statistics.median(ms))
        line.note = f"first call, {note}, {min(ms):.3g} to {max(ms):.3g} ms; second {second:.3g}"
        # Where the kernel is from the disk, the second call is the share of the product itself.
        own = second if note == "from the disk" else 0.0
        line.least = bars[note] + own if s.device.startswith("cuda") else None
        yield line


def all_rows() -> dict[str, Callable[[GpuSettings], Iterator[GpuLine]]]:
    rows: dict[str, Callable[[GpuSettings], Iterator[GpuLine]]] = {"kron-call": call_lines}
    for shape in SHAPES:
        name = f"kron-startup {shape[1]}^{shape[2]}"
        rows[name] = functools.partial(startup_lines, name, shape)
    return rows


def main(arguments: list[str]) -> None:
    text, device = arguments
    rows, p, n = (int(size) for size in text.split("x"))
    s = GpuSettings(device)
    other, call = Call(OTHER, s), Call((rows, p, n), s)
    other()
    other()
    print(json.dumps({key: s.watch.wall(call) for key in ("first", "second")}))


if __name__ == "__main__":
    main(sys.argv[1:])
